"""The EXIF orientation in JPEG files (EXIF 2.32, tag 0x0112)."""

from __future__ import annotations

from typing import Literal

_EXIF = b"Exif\0\0"
_APP1, _END, _SCAN = 0xE1, 0xD9, 0xDA
_TAG = 0x0112
_VALUE_BYTES = {3: 2, 4: 4}  # of the TIFF types SHORT and LONG


def without_orientation(jpeg: bytes) -> bytes:
    """Returns a JPEG file with its EXIF orientation, if there is one, set to 1: not turned."""
    at = 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF and jpeg[at + 1] not in (_END, _SCAN):
        if jpeg[at + 1] == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if jpeg[at + 1] == _APP1 and jpeg[at + 4 : at + 10] == _EXIF:
            return jpeg[: at + 10] + _reset(jpeg[at + 10 : end]) + jpeg[end:]
        at = end
    return jpeg


def _reset(tiff: bytes) -> bytes:
    """Returns EXIF data with the orientation 1, if they have one."""
    order: Literal["little", "big"] = "little" if tiff.startswith(b"II") else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)

    # Only the first directory is read: the second one describes the thumbnail.
    first = number(4, 4)
    for entry in range(first + 2, first + 2 + 12 * number(first, 2), 12):
        size, value = _VALUE_BYTES.get(number(entry + 2, 2)), entry + 8
        if number(entry, 2) == _TAG and size is not None and value + size <= len(tiff):
            return tiff[:value] + (1).to_bytes(size, order) + tiff[value + size :]
    return tiff
