"""Checks of responses of web servers: HTTP libraries accept any body and follow any redirect."""

from __future__ import annotations

import re

from fastio.store.retry import Doubtful, Permanent
from fastio.store.versions import Headers, Marks

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.IGNORECASE)


def range_of(headers: Headers) -> tuple[int, int, int | None] | None:
    """Returns the first byte, the end and the size of the object that Content-Range states."""
    found = _RANGE.fullmatch((headers.get("Content-Range") or "").strip())
    if found is None:
        return None
    return int(found[1]), int(found[2]) + 1, None if found[3] == "*" else int(found[3])


def check_redirect(here: str, target: str) -> None:
    """Raises Permanent if a redirect leads from https to http, or to any other scheme."""
    if target not in ("http", "https") or (here, target) == ("https", "http"):
        raise Permanent(f"the server redirects from {here} to {target}: not followed")


def expected_body(
    status: int, headers: Headers, offset: int, length: int | None
) -> tuple[int | None, Marks]:
    """Returns the length that the body of a successful response must have, and its version.

    Args:
        status: The HTTP status, below 300 or 416.
        headers: The headers of the answer.
        offset, length: The range that was requested; to the end if the length is None.

    Returns:
        The number of bytes, or None if it is not known before the end of the body; and the marks.

    Raises:
        Permanent: The response has other bytes than requested, as another attempt would have.
        OSError: Another attempt may succeed.
    """
    asked = f"bytes {offset} to {'its end' if length is None else offset + length} were requested"
    text = headers.get("Content-Range") or ""
    if status == 416:
        total = text.rpartition("*/")[2]
        raise Permanent(f"{asked}, but the object has {total or 'fewer'} bytes")
    encoding = headers.get("Content-Encoding") or "identity"
    if encoding != "identity":
        raise Permanent(f"the response is encoded ({encoding}), which was not requested")
    declared = headers.get("Content-Length")
    count = None if declared is None else int(declared)
    is_part = bool(offset) or length is not None
    if status == 200:
        # RFC 9110, 14.2: a server may ignore Range, and then sends the whole object.
        if is_part and (offset or count is None or count != length):
            raise Doubtful(f"{asked}, but the whole object was received: the server ignores ranges")
        if count is None and not headers.get("Transfer-Encoding"):
            raise Permanent(
                "the response has no length, so that a truncated body would not be detected"
            )
        return count, Marks.of_headers(headers, count)
    if status != 206 or not is_part:
        raise Permanent(f"{asked}, but the response has HTTP status {status}")
    kind = headers.get("Content-Type") or ""
    if kind.lower().startswith("multipart/"):
        raise Permanent(f"{asked}, but several ranges were received ({kind})")
    said = range_of(headers)
    if said is None:
        raise OSError(
            f"{asked}, but Content-Range does not say which were sent ({text or 'missing'})"
        )
    first, end, total_bytes = said
    wanted = total_bytes if length is None else offset + length
    if total_bytes is not None and wanted is not None and wanted > total_bytes:
        raise Permanent(f"{asked}, but the object has {total_bytes} bytes")
    if first != offset or (wanted is not None and end != wanted):
        raise OSError(f"{asked}, but {first} to {end} were received")
    if count is not None and count != end - first:
        raise OSError(f"bytes {first} to {end} were announced, with a length of {count}")
    return end - first, Marks.of_headers(headers, total_bytes)
