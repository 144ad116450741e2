"""Coefficients, a codebook and records for tests of the block format, good ones and bad ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tests import block_reference as reference
from tests.block_reference import Coefficients
from tests.block_writer import Draft, draft, packed_exceptions, padded
from tests.pictures import pixels

SpoilDraft = Callable[[Draft], None]

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
    "01 00"  # version, flags
    "00 11"  # gray, not subsampled
    "0100 0100"  # 1 x 1 samples
    "01 00 00"  # the component's identifier is 1
    "00 00 00"  # it uses table 0
    "01 00"  # of one table, of 8 bits
    "04000000"  # bytes of metadata
    + "10"
    * 64  # the table: all 16
    + "0300"  # words of the tile row's part of the DC section
    "0100"  # and of the tile's part of the AC section
    "00"  # which has no exception
    "000000"  # up to a multiple of 4
    "5bd3c785"  # checksum of the DC section
    "0df36751"  # of the AC section
    "a46a1bb5"  # of the metadata
    "7ca95561"  # of all that is above
    # DC section
    "0000"  # no escape
    "0a00"  # base DC: 10
    "01 000000"  # the block is of class 1: L = 1, W[0] = 4, W[1] = 2
    "0e 000000"  # difference -2 in 4 bits
    # AC section
    "07 000000"  # mask 1; value -2: sign 1, then |v| - 1 = 1
    # metadata
    "fffe 0002"
)


def sound() -> Draft:
    """Three rows of two tiles, in colour."""
    tables = [quantisers(90), quantisers(70)]
    return draft(picture(20, 130, (2, 1), tables), 20, 130, tables, CODEBOOK, sampling=(2, 1))


def behind_the_lengths() -> bytes:
    """The smallest record, a bit of which is set between lengths and checksums."""
    parts = draft([np.zeros((1, 1, 8, 8), np.int16)], 1, 1, [FLAT], CODEBOOK)
    index = bytearray(parts.index())
    index[5] = 0x80
    return parts.record(bytes(index))


def in_header(offset: int, *values: int) -> SpoilDraft:
    """Writes bytes into the header."""

    def spoil(parts: Draft) -> None:
        parts.head[offset : offset + len(values)] = bytes(values)

    return spoil


def in_part(section: str, spoil: Callable[[bytes], bytes]) -> SpoilDraft:
    """Changes the last part of a section."""

    def spoil_part(parts: Draft) -> None:
        tiles: list[bytes] = getattr(parts, section)
        tiles[-1] = spoil(tiles[-1])

    return spoil_part


def one_more_escape(part: bytes) -> bytes:
    """A tile row's part of the DC section that says that it has another escape."""
    count = part[0]
    return bytes([count + 1]) + part[1:] + bytes(0 if count % 2 else 4)


def bits_of_last_tile(parts: Draft) -> bytes:
    """The last tile's bits, without the exceptions behind them."""
    return parts.ac[-1][: len(parts.ac[-1]) - len(padded(bytes(3 * parts.exceptions[-1])))]


def in_bits(spoil: Callable[[bytes], bytes]) -> SpoilDraft:
    """Changes the last tile's bits; the exceptions behind them stay."""

    def spoil_bits(parts: Draft) -> None:
        bits = bits_of_last_tile(parts)
        parts.ac[-1] = spoil(bits) + parts.ac[-1][len(bits) :]

    return spoil_bits


def with_exceptions(*exceptions: tuple[int, int, int], packed: bytes = b"") -> SpoilDraft:
    """Replaces the last tile's exceptions: (block, position, value)."""

    def spoil(parts: Draft) -> None:
        parts.ac[-1] = bits_of_last_tile(parts) + (packed or packed_exceptions(exceptions))
        parts.exceptions[-1] = len(exceptions)

    return spoil


def with_count(count: int) -> SpoilDraft:
    def spoil(parts: Draft) -> None:
        parts.exceptions[-1] = count

    return spoil


# What is wrong, and how it comes about; checksums are right each time.
SPOILT: list[tuple[str, SpoilDraft]] = [
    ("version 2", in_header(0, 2)),
    ("flags 0x1", in_header(1, 1)),
    ("flags 0x80", in_header(1, 0x80)),
    ("colour 3", in_header(2, 3)),
    ("sampling 2 x 4", in_header(3, 0x24)),
    ("gray image is not subsampled", in_header(2, 0)),
    ("0 x 20 samples", in_header(4, 0, 0)),
    ("130 x 0 samples", in_header(6, 0, 0)),
    ("fields of no component", in_header(2, 0, 0x11)),
    ("names no table", in_header(12, 2)),
    ("0 quantisation tables", in_header(14, 0)),
    ("4 quantisation tables", in_header(14, 4)),
    ("width bits 0x4 of 2", in_header(15, 4)),
    ("quantisation value of 0", in_header(20 + 64 + 63, 0)),
    ("DC part of tile row 2: it ends before its classes", in_part("dc", lambda part: part[:8])),
    ("bits set after its classes", in_part("dc", lambda part: part[:43] + b"\1" + part[44:])),
    ("DC part of tile row 2: its bits end early", in_part("dc", lambda part: part[:-4])),
    ("DC part of tile row 2: more words", in_part("dc", lambda part: part + bytes(4))),
    ("it ends before its escapes", in_part("dc", lambda part: b"\xff\xff" + part[2:])),
    ("DC part of tile row 2: 15 escapes for 14 diff", in_part("dc", one_more_escape)),
    ("AC part of tile 1 of row 2: it ends before its exceptions", with_count(255)),
    ("AC part of tile 1 of row 2: its bits end early", in_bits(lambda bits: bits[:-4])),
    ("AC part of tile 1 of row 2: more words", in_bits(lambda bits: bits + bytes(4))),
    ("an exception in block 3 of 3", with_exceptions((3, 1, 1))),
    ("an exception at position 0", with_exceptions((2, 0, 1))),
    ("exceptions that do not ascend", with_exceptions((1, 5, 1), (1, 5, 1))),
    ("exceptions that do not ascend", with_exceptions((1, 6, 1), (1, 5, 2))),
    ("exceptions that do not ascend", with_exceptions((2, 1, 1), (1, 63, 2))),
    ("bits set after its exceptions", with_exceptions((0, 1, 1), packed=b"\1\x10\0\1")),
]
