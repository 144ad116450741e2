"""Names and URLs as people are shown them: on terminals, in JSON, in pages, and by errors.

File names, columns and classes are what others wrote, and a terminal obeys control characters in
them. URLs may hold credentials and signatures, and reports are made to be shared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Control characters (C0, DEL, C1), marks that turn the direction of what follows, line separators,
# what XML does not take, and halves of surrogate pairs, which bytes that are no UTF-8 become.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff"
    "\ud800-\udfff]"
)
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+\b")
_LOWEST_ESCAPED_BYTE = 0xDC80  # as the error handler "surrogateescape" has them
# What stands before an "@" is a container's name here, no credential.
_CONTAINER_BEFORE_AT = re.compile(r"^(abfss?|az|adl|wasbs?)$")
_USERINFO = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,30})://([^/\s'\"<>]*)@")
_QUERY = re.compile(r"(https?://[^\s?'\"<>]{0,4000})\?[^\s'\"<>)]*", re.IGNORECASE)
# A "?" may be a pattern's elsewhere, so that only what has an "=" is a query.
_OTHER_QUERY = re.compile(
    r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s?'\"<>]{0,4000})\?[^\s'\"<>)=]*=[^\s'\"<>)]*", re.IGNORECASE
)
_PARAMETER = re.compile(
    r"([?&;](?:[\w.-]*(?:signature|credential|token|secret|password|accesskeyid|accessid|apikey)"
    r"|sig|key|sv|se|skoid)=)[^&\s'\"<>]+",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    r"""A text without control characters: each stands as its escape, as \x1b or \u202e.

    What is clean already stays as it is.
    """
    return _CONTROL.sub(_escaped, text)


def without_secrets(text: str) -> str:
    """A URL, or a text with URLs in it, without credentials, signatures and query strings."""
    if "://" not in text and "=" not in text:
        return text
    text = _USERINFO.sub(_without_user, text)
    if "?" in text:
        text = _OTHER_QUERY.sub(r"\1", _QUERY.sub(r"\1", text))
    return _PARAMETER.sub(r"\1***", text)


def without_addresses(text: str) -> str:
    """A text in which no object's repr tells where in memory it is."""
    return _ADDRESS.sub("", text)


def shown(text: str) -> str:
    """A name, a URL or a line of text as it may be printed and shared."""
    return clean(without_secrets(text))


def shown_lines(text: str) -> str:
    """A text of several lines likewise."""
    return "\n".join(map(shown, text.split("\n")))


def shown_values(value: Any) -> Any:
    """JSON values, with every string in them, keys too, as it may be printed and shared."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return {shown_values(key): shown_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown_values(item) for item in value]
    return value


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if _LOWEST_ESCAPED_BYTE <= code <= _LOWEST_ESCAPED_BYTE + 0x7F:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _without_user(found: re.Match[str]) -> str:
    keep = _CONTAINER_BEFORE_AT.match(found[1]) and not {":", "@"} & set(found[2])
    return found[0] if keep else f"{found[1]}://"
