"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def size_in_bytes(size: int | str) -> int:
    """Returns a number of bytes from an int or from text such as "64MiB", "1.5 GB" or "65536".

    Raises:
        ValueError: it is not a size, or less than 1 byte.
    """
    nbytes = 0
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match:
            power = " kmgt".index(match[2].lower() or " ")
            nbytes = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    else:
        nbytes = int(size)
    if nbytes < 1:
        raise ValueError(f"{size!r} is not a size: give bytes, or text such as '64MiB' or '1GB'")
    return nbytes
