"""Which version of an object a request was answered from.

A `Stamp` is what a store says of an object when it is first asked; every later answer is compared
with it, so that bytes of two versions never meet.
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
    """An answer's headers, by names in any case."""

    def get(self, name: str, /) -> str | None: ...


@dataclass(frozen=True)
class Stamp:
    """The size and version of an object.

    Attributes:
        size: in bytes.
        version: its ETag as the server writes it ('"a1"', or weak: 'W/"a1"'); where there is none
            "version ID", or "modified TIME" of its last change; "" where the store tells no more
            than the size.
    """

    size: int
    version: str

    @property
    def key(self) -> str:
        """What changes when the object does: for indexes, fingerprints and keys of caches."""
        return f"{self.size} {_opaque(self.version)}"

    @property
    def etag(self) -> str | None:
        """What If-Match takes: a strong ETag. Servers refuse weak ones there (RFC 9110, 13.1.1)."""
        return self.version if self.version.startswith('"') else None

    @property
    def version_id(self) -> str | None:
        """The store's own number of the version."""
        return self.version.removeprefix(_ID) if self.version.startswith(_ID) else None

    def __str__(self) -> str:
        if not self.version:
            return f"{self.size:,} bytes, of a version that the store does not report"
        kind = "" if self.version.startswith((_ID, _TIME)) else "ETag "
        return f"{self.size:,} bytes, {kind}{self.version}"


@dataclass(frozen=True)
class Marks:
    """All that one answer says of the version that it was made of.

    Attributes:
        size: of the whole object, None where it is not said.
        etag, version_id, modified: "" where they are not said; the time as `Stamp.version` has it.
    """

    size: int | None = None
    etag: str = ""
    version_id: str = ""
    modified: str = ""

    @classmethod
    def of_headers(cls, headers: Headers, size: int | None) -> Marks:
        """Those of an answer of HTTP."""
        modified = headers.get("Last-Modified") or ""
        return cls(size, _quoted(headers.get("ETag")), modified=_time(modified))

    @classmethod
    def of_info(cls, info: Mapping[str, Any]) -> Marks:
        """Those of a description by obstore or one of fsspec's file systems."""

        def first(*names: str) -> Any:
            return next((info[name] for name in names if info.get(name) is not None), None)

        size = first("size")
        return cls(
            None if size is None else int(size),
            _quoted(first("e_tag", "ETag", "etag")),
            str(first("version", "VersionId", "version_id", "generation") or ""),
            _time(
                first("last_modified", "LastModified", "updated", "mtime", "modified", "created")
            ),
        )

    def stamp(self) -> Stamp:
        """The best that there is; the size has to be known."""
        assert self.size is not None
        version = self.etag or (self.version_id and _ID + self.version_id)
        return Stamp(self.size, version or (self.modified and _TIME + self.modified))

    def agrees(self, expected: Stamp) -> bool | None:
        """Whether the answer is of the expected version; None: it does not say enough."""
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


def _opaque(version: str) -> str:
    """A version without the mark of weak ETags, which proxies that compress set and take away."""
    return version.removeprefix("W/")


def _quoted(etag: Any) -> str:
    """An ETag as headers have it: some stores list it without its quotes."""
    text = str(etag or "").strip()
    return text if not text or text.endswith('"') else f'"{text}"'


def _time(value: Any) -> str:
    """A time in one form, whoever tells it; "" for none."""
    if isinstance(value, str):
        text: str = value
        try:
            value = parsedate_to_datetime(text) if "," in text else datetime.fromisoformat(text)
        except ValueError:
            return text
    if isinstance(value, (int, float)):
        value = datetime.fromtimestamp(value, timezone.utc)
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        # obstore has the beginning of time where a server says none.
        return aware.astimezone(timezone.utc).isoformat() if aware.timestamp() else ""
    return "" if value is None else str(value)
