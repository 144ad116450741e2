"""Sizes and counts as people write them."""

from __future__ import annotations

import re
from contextlib import suppress

from fastio.errors import OptionError

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def size_in_bytes(size: int | str, option: str) -> int:
    """Returns a number of bytes from an int or from text such as "64MiB", "1.5 GB" or "65536".

    Raises:
        OptionError: the value of the option is not a size, or less than 1 byte.
    """
    nbytes = 0
    with suppress(ValueError, OverflowError):  # raised by int() for NaN and infinity
        if not isinstance(size, str):
            nbytes = int(size)
        elif match := _SIZE.fullmatch(size):
            power = " kmgt".index(match[2].lower() or " ")
            nbytes = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if nbytes < 1:
        raise OptionError(
            f"{option} {size!r} is not a size: give bytes, or text such as '64MiB' or '1GB'"
        )
    return nbytes


def size_text(nbytes: float) -> str:
    """Returns bytes in powers of 1000, with three digits: "1 byte", "109 kB", "5.48 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale * 0.9995:
            return f"{three_digits(nbytes / scale)} {unit}"
    return f"{nbytes:.0f} byte{'' if round(nbytes) == 1 else 's'}"


def three_digits(value: float) -> str:
    """Returns a number of at least 0 with three digits, or with all those before the point."""
    return f"{value:,.{decimals(value)}f}"


def decimals(value: float) -> int:
    """Returns the number of decimals that make three digits; 0 for zero."""
    return 0 if value >= 99.95 or value == 0 else 1 if value >= 9.995 else 2


def counted(count: int, plural: str) -> str:
    """Returns a count with a noun: "1 image", "1,200 images"."""
    return f"{count:,} {plural[:-1] if count == 1 else plural}"
