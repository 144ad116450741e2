"""Versions of objects: which version of an object a response was made from.

A `Stamp` records what a store says of an object when it is first asked. Every later response is
compared with it, so that bytes of two versions are never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

_ID = "version "
_TIME = "modified "


class Headers(Protocol):
    """The headers of a response. Names are case-insensitive."""

    def get(self, name: str, /) -> str | None: ...


@dataclass(frozen=True)
class Stamp:
    """The size and version of an object.

    Attributes:
        size: The size in bytes.
        version: The ETag as the server writes it ('"a1"', or weak: 'W/"a1"'). Without an ETag,
            "version ID", or "modified TIME" for the time of the last change. "" if the store
            reports only the size.
    """

    size: int
    version: str

    @property
    def key(self) -> str:
        """A text that changes when the object does, for indexes, fingerprints and cache keys."""
        return f"{self.size} {_opaque(self.version)}"

    @property
    def etag(self) -> str | None:
        """The ETag for If-Match, if it is strong. Servers refuse weak ones (RFC 9110, 13.1.1)."""
        return self.version if self.version.startswith('"') else None

    @property
    def version_id(self) -> str | None:
        """The store's own id of the version; None if there is none."""
        return self.version.removeprefix(_ID) if self.version.startswith(_ID) else None

    def __str__(self) -> str:
        if not self.version:
            return f"{self.size:,} bytes, of a version that the store does not report"
        kind = "" if self.version.startswith((_ID, _TIME)) else "ETag "
        return f"{self.size:,} bytes, {kind}{self.version}"


@dataclass(frozen=True)
class Marks:
    """What one response says about the version that it was made from.

    Attributes:
        size: The size of the whole object in bytes; None if the response does not say.
        etag, version_id: "" if the response does not say.
        changed: The time of the last change, as the response gives it; None if it does not.
    """

    size: int | None = None
    etag: str = ""
    version_id: str = ""
    changed: Any = None

    @property
    def modified(self) -> str:
        """The time of the last change as in `Stamp.version`; "" if the response does not say."""
        # Not parsed before it is asked for: most responses have an ETag, which is compared instead.
        return _time(self.changed)

    @classmethod
    def of_headers(cls, headers: Headers, size: int | None) -> Marks:
        """Returns the marks in the headers of an HTTP response."""
        return cls(size, _quoted(headers.get("ETag")), changed=headers.get("Last-Modified"))

    @classmethod
    def of_info(cls, info: Mapping[str, Any]) -> Marks:
        """Returns the marks in an object's description from obstore or an fsspec file system."""
        size = info.get("size")
        return cls(
            None if size is None else int(size),
            _quoted(_first(info, "e_tag", "ETag", "etag")),
            str(_first(info, "version", "VersionId", "version_id", "generation") or ""),
            _first(
                info, "last_modified", "LastModified", "updated", "mtime", "modified", "created"
            ),
        )

    def stamp(self) -> Stamp:
        """Returns a stamp with the best available version. The size must be known."""
        assert self.size is not None
        version = self.etag or (self.version_id and _ID + self.version_id)
        return Stamp(self.size, version or (self.modified and _TIME + self.modified))

    def agrees(self, expected: Stamp) -> bool | None:
        """Returns whether the response is of the expected version; None if that is unknown."""
        if self.size is not None and self.size != expected.size:
            return False
        version = _opaque(expected.version)
        if not version:
            return None if self.size is None else True
        if version.startswith(_ID):
            found = self.version_id and _ID + self.version_id
        elif version.startswith(_TIME):
            found = self.modified and _TIME + self.modified
        else:
            found = _opaque(self.etag)
        return found == version if found else None


def _first(info: Mapping[str, Any], *names: str) -> Any:
    """Returns the first value that is there and is not None; None if there is none."""
    for name in names:
        value = info.get(name)
        if value is not None:
            return value
    return None


def _opaque(version: str) -> str:
    """Removes the mark of a weak ETag, which proxies that compress may add or remove."""
    return version.removeprefix("W/")


def _quoted(etag: Any) -> str:
    """Returns an ETag with quotes, as in headers. Some stores list it without them."""
    text = str(etag or "").strip()
    return text if not text or text.endswith('"') else f'"{text}"'


def _time(value: Any) -> str:
    """Returns a time in ISO format, whichever form it is given in; "" if there is none."""
    if isinstance(value, str):
        text: str = value
        try:
            # Before Python 3.11, `fromisoformat` does not accept Z for UTC.
            iso = text.replace("Z", "+00:00")
            value = parsedate_to_datetime(text) if "," in text else datetime.fromisoformat(iso)
        except ValueError:
            return text
    if isinstance(value, (int, float)):
        value = datetime.fromtimestamp(value, timezone.utc)
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        # obstore reports the epoch (0) if a server gives no time.
        return aware.astimezone(timezone.utc).isoformat() if aware.timestamp() else ""
    return "" if value is None else str(value)
