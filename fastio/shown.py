"""Makes names and URLs safe to show: on terminals, in JSON, in pages and in error messages.

Names of files, columns and classes come from other people, and a terminal executes control
characters in them. URLs may hold credentials and signatures, and reports are often shared.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from typing import Any

# Control characters (C0, DEL, C1), marks that change the direction of text, line separators,
# characters that XML forbids, and lone surrogates, which stand for bytes that are not UTF-8.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff"
    "\ud800-\udfff]"
)
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+\b")
_LOWEST_ESCAPED_BYTE = 0xDC80  # the first surrogate of the error handler "surrogateescape"
# In URLs of these schemes, the text before an "@" is a container's name and no credential.
_CONTAINER_BEFORE_AT = re.compile(r"^(abfss?|az|adl|wasbs?)$")
_USERINFO = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,30})://([^/\s'\"<>]*)@")
_QUERY = re.compile(r"(https?://[^\s?'\"<>]{0,4000})\?[^\s'\"<>)]*", re.IGNORECASE)
# In other schemes a "?" may be part of a glob pattern, so only one followed by "=" is a query.
_OTHER_QUERY = re.compile(
    r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s?'\"<>]{0,4000})\?[^\s'\"<>)=]*=[^\s'\"<>)]*", re.IGNORECASE
)
_PARAMETER = re.compile(
    r"([?&;](?:[\w.-]*(?:signature|credential|token|secret|password|accesskeyid|accessid|apikey)"
    r"|sig|key|sv|se|skoid)=)[^&\s'\"<>]+",
    re.IGNORECASE,
)


def stderr_is_terminal() -> bool:
    """Returns whether stderr is a terminal. It may be None, or have only `write` and `flush`."""
    return bool(getattr(sys.stderr, "isatty", bool)())


def clean(text: str) -> str:
    r"""Returns a text in which control characters are replaced by escapes such as \x1b or \u202e.

    A text without control characters is returned unchanged.
    """
    return _CONTROL.sub(_escaped, text)


def without_secrets(text: str) -> str:
    """Returns a text whose URLs have no credentials, signatures or query strings."""
    if "://" not in text and "=" not in text:
        return text
    text = _USERINFO.sub(_without_user, text)
    if "?" in text:
        text = _OTHER_QUERY.sub(r"\1", _QUERY.sub(r"\1", text))
    return _PARAMETER.sub(r"\1***", text)


def without_addresses(text: str) -> str:
    """Returns a text without the memory addresses that default reprs of objects contain."""
    return _ADDRESS.sub("", text)


def shown(text: str) -> str:
    """Returns a name, a URL or a line of text that is safe to print and share."""
    return clean(without_secrets(text))


def shown_lines(text: str) -> str:
    """Returns a text of several lines in which each line is safe to print and share."""
    return "\n".join(map(shown, text.split("\n")))


def shown_values(value: Any) -> Any:
    """Returns JSON values in which all strings, including keys, are safe to print and share."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return {shown_values(key): shown_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown_values(item) for item in value]
    return value


def finite(value: Any) -> Any:
    """Returns JSON values with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if _LOWEST_ESCAPED_BYTE <= code <= _LOWEST_ESCAPED_BYTE + 0x7F:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _without_user(found: re.Match[str]) -> str:
    keep = _CONTAINER_BEFORE_AT.match(found[1]) and not {":", "@"} & set(found[2])
    return found[0] if keep else f"{found[1]}://"
