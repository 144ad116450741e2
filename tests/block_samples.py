"""Coefficients, a codebook and records for tests of the block format, good ones and bad ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tests import block_reference as reference
from tests.block_reference import Coefficients
from tests.block_writer import Draft, draft
from tests.pictures import pixels

SAMPLINGS = sorted(reference.SAMPLINGS)
SIZES = [(1, 1), (8, 8), (9, 7), (3, 130), (35, 5), (17, 129), (40, 300)]
FLAT = [16] * 64  # a quantisation table


def code_class(last: int, *widths: int) -> bytes:
    """L, W[0], and W[1] to W[L]: the last of them is repeated."""
    first, *others = widths
    others += others[-1:] * (last - len(others))
    return bytes([last, first, *others[:last]] + [0] * (63 - len(others[:last])))


# The classes that the tests below name by number; class 0 fills the rest.
CLASSES = [
    code_class(63, 12, 12),
    code_class(1, 4, 2),
    code_class(63, 0, 8),  # no bits for a DC difference, and the widest narrow values
    code_class(63, 1, 9),  # one bit for it, which can only say 0 or escape; wide values
    code_class(0, 6),  # no AC at all
    code_class(63, 7, 5, 5, 5, 4, 4, 3, 3, 2, 2, 1),
    code_class(20, 8, 6, 5, 4, 3, 2, 1),
    code_class(5, 5, 1),
]
CODEBOOK = b"".join(CLASSES + [CLASSES[0]] * (256 - len(CLASSES)))


def quantisers(quality: int) -> list[int]:
    """A table in zigzag order: coarser at higher frequencies, 16-bit at very low quality."""
    return [max(1, (8 + 2 * z) * (101 - quality) // 25) for z in range(64)]


def quantised(plane: NDArray[np.uint8], table: Sequence[int]) -> Coefficients:
    """The coefficients of a plane, edges repeated to whole blocks."""
    rows, columns = plane.shape
    padded = np.pad(plane, ((0, -rows % 8), (0, -columns % 8)), "edge").astype(float) - 128
    blocks = padded.reshape(len(padded) // 8, 8, -1, 8).transpose(0, 2, 1, 3)
    frequency, sample = np.mgrid[0:8, 0:8]
    basis = np.cos((2 * sample + 1) * frequency * np.pi / 16) / 2
    basis[0] /= np.sqrt(2)
    natural = np.zeros(64)
    natural[reference.ZIGZAG] = table
    transformed: NDArray[np.float64] = basis @ blocks @ basis.T / natural.reshape(8, 8)
    return np.rint(transformed).astype(np.int16)


def picture(
    height: int,
    width: int,
    sampling: tuple[int, int] | None,
    tables: Sequence[Sequence[int]],
    seed: int = 0,
) -> list[Coefficients]:
    """A picture's components: one if there is no sampling (H, V). The last table is chroma's."""
    image = pixels(height, width, seed)
    planes = [image[..., 0]]
    if sampling:
        across, down = sampling
        planes += [image[::down, ::across, c] for c in (1, 2)]
    return [quantised(plane, tables[-1 if c else 0]) for c, plane in enumerate(planes)]


def noise(height: int, width: int, limit: int, share: float, seed: int = 0) -> Coefficients:
    """A gray image's coefficients up to a limit, some of which are not 0, as no camera makes."""
    rng = np.random.default_rng(seed)
    shape = (-(-height // 8), -(-width // 8), 8, 8)
    values = rng.integers(-limit, limit + 1, shape) * (rng.random(shape) < share)
    return values.astype(np.int16)


# The smallest record, written out by hand; it is of class 1 above.
SMALLEST = bytes.fromhex(
    "01"  # version
    "01 00 11"  # one component, gray, not subsampled
    "0100 0100"  # 1 x 1 samples
    "01 00 00"  # the component's identifier is 1
    "00 00 00"  # it uses table 0
    "01 00"  # of one table, of 8 bits
    "04000000"  # bytes of metadata
    + "10"
    * 64  # the table: all 16
    + "04000000"  # bytes of the tile row's part of the DC section
    "0200"  # and of the tile's part of the AC section
    "f02c9ebe"  # checksum of the DC section
    "3913ab25"  # of the AC section
    "a46a1bb5"  # of the metadata
    "0bb5503f"  # of all that is above
    # DC section
    "0a00"  # base DC: 10
    "01"  # the block is of class 1: L = 1, W[0] = 4, W[1] = 2
    "0e"  # difference -2 in 4 bits
    # AC section
    "00"  # no exception
    "07"  # mask 1; value -2: sign 1, then |v| - 1 = 1
    # metadata
    "fffe 0002"
)


def sound() -> Draft:
    """Three rows of two tiles, in colour."""
    tables = [quantisers(90), quantisers(70)]
    return draft(picture(20, 130, (2, 1), tables), 20, 130, tables, CODEBOOK, sampling=(2, 1))


def in_header(offset: int, *values: int) -> Callable[[Draft], None]:
    """Writes bytes into the header."""

    def spoil(parts: Draft) -> None:
        parts.head[offset : offset + len(values)] = bytes(values)

    return spoil


def in_part(section: str, spoil: Callable[[bytes], bytes]) -> Callable[[Draft], None]:
    """Changes the last tile's part of a section."""

    def spoil_part(parts: Draft) -> None:
        tiles: list[bytes] = getattr(parts, section)
        tiles[-1] = spoil(tiles[-1])

    return spoil_part


def exception_at(number: int, z: int) -> Callable[[bytes], bytes]:
    def spoil(part: bytes) -> bytes:
        field = number | z << 6 | 1 << 12
        return bytes([part[0] + 1]) + field.to_bytes(3, "little") + part[1:]

    return spoil


# What is wrong, and how it comes about; checksums are right each time.
SPOILT: list[tuple[str, Callable[[Draft], None]]] = [
    ("version 2", in_header(0, 2)),
    ("2 components", in_header(1, 2)),
    ("colour 0 of 3", in_header(2, 0)),
    ("colour 3 of 3", in_header(2, 3)),
    ("colour 1 of 1", in_header(1, 1)),
    ("sampling 2 x 4", in_header(3, 0x24)),
    ("gray image is not subsampled", in_header(1, 1, 0)),
    ("0 x 20 samples", in_header(4, 0, 0)),
    ("130 x 0 samples", in_header(6, 0, 0)),
    ("fields of no component", in_header(1, 1, 0, 0x11)),
    ("names no table", in_header(12, 2)),
    ("0 quantisation tables", in_header(14, 0)),
    ("4 quantisation tables", in_header(14, 4)),
    ("width bits 0x4 of 2", in_header(15, 4)),
    ("quantisation value of 0", in_header(20 + 64 + 63, 0)),
    ("DC part of tile row 2: it ends before its classes", in_part("dc", lambda part: part[:7])),
    ("DC part of tile row 2: its bits end early", in_part("dc", lambda part: part[:-1])),
    ("DC part of tile row 2: more bytes", in_part("dc", lambda part: part + b"\0")),
    ("AC part of tile 5: it is empty", in_part("ac", lambda part: b"")),
    ("AC part of tile 5: it ends before its exc", in_part("ac", lambda part: b"\xff" + part[1:])),
    ("AC part of tile 5: its bits end early", in_part("ac", lambda part: part[:-1])),
    ("AC part of tile 5: more bytes", in_part("ac", lambda part: part + b"\0")),
    ("an exception in block 3 of 3", in_part("ac", exception_at(3, 1))),
    ("an exception at position 0", in_part("ac", exception_at(2, 0))),
]
