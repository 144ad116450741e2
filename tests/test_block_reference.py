"""Block records: the plain reader and writer agree with each other, Pillow and the native code."""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests import block_reference as reference
from tests.block_reference import Coefficients
from tests.block_samples import (
    CLASSES,
    CODEBOOK,
    FLAT,
    SAMPLINGS,
    SIZES,
    SMALLEST,
    SPOILT,
    behind_the_lengths,
    code_class,
    noise,
    picture,
    quantisers,
    sound,
)
from tests.block_writer import Draft, draft, packed_exceptions, padded
from tests.coefficient_jpeg import coefficient_jpeg


def assert_same(ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)


def with_pillow(jpeg: bytes, mode: str = "RGB") -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert(mode))


# ------------------------------------------------------------------------------ written out by hand


def test_the_smallest_record_is_read_as_the_page_says() -> None:
    blocks = np.zeros((1, 1, 8, 8), np.int16)
    blocks[0, 0, 0, :2] = 10 - 2, -2

    assert_same(reference.coefficients(SMALLEST, CODEBOOK), [blocks])
    # 8 * 16 / 8 + 128, less 2 * 16 / 4 * cos(pi / 4) * cos(pi / 16) = 5.55
    assert_same(reference.planes(SMALLEST, CODEBOOK), [np.array([[138]], np.uint8)])
    assert_same(reference.dc_planes(SMALLEST, CODEBOOK), [np.array([[144]], np.uint8)])
    assert reference.rgb(SMALLEST, CODEBOOK).tolist() == [[[138, 138, 138]]]
    assert reference.parse_record(SMALLEST).metadata == b"\xff\xfe\x00\x02"


def one_block(dc: bytes, ac: bytes, exceptions: int = 0) -> bytes:
    """A record of one gray block of all 0, its two parts replaced."""
    parts = draft([np.zeros((1, 1, 8, 8), np.int16)], 8, 8, [FLAT], CODEBOOK)
    parts.dc, parts.ac, parts.exceptions = [dc], [padded(ac)], [exceptions]
    return parts.record()


def dc_part(base: int, number: int, bits: bytes = b"", escapes: Sequence[int] = ()) -> bytes:
    """The DC part of one block of a class."""
    head = struct.pack("<HhB3x", len(escapes), base, number)
    return head + padded(bits) + padded(struct.pack(f"<{len(escapes)}h", *escapes))


def zigzag_of(record: bytes) -> list[int]:
    """The first block of the first component, in zigzag order."""
    (blocks, *_) = reference.coefficients(record, CODEBOOK)
    values: list[int] = blocks[0, 0].reshape(64)[reference.ZIGZAG].tolist()
    return values


def test_an_escape_is_the_lowest_number_of_its_width_and_16_bits_at_the_end() -> None:
    # Base 100, class 1: the 4 bits 1000, then 16 bits of -32768.
    record = one_block(dc_part(100, 1, b"\x08", [-32768]), b"\0")
    assert zigzag_of(record)[0] == 100 - 32768


def test_sums_of_dc_are_modulo_16_bits() -> None:
    assert zigzag_of(one_block(dc_part(-32768, 1, b"\x0f"), b"\0"))[0] == 32767


def test_a_class_may_spend_no_bit_at_all() -> None:
    book = CODEBOOK[: 8 * 65] + code_class(0, 0) + CODEBOOK[9 * 65 :]
    (blocks,) = reference.coefficients(one_block(dc_part(7, 8), b""), book)
    assert blocks[0, 0].reshape(64).tolist() == [7] + [0] * 63


@pytest.mark.parametrize(("number", "value"), [(2, -128), (3, 128)])
def test_128_is_its_own_opposite_where_values_have_8_bits(number: int, value: int) -> None:
    # A mask of 63 bits, the sign, 0, and |v| - 1 = 127 in 7 planes, or 8 where W is 9.
    ac = (1 | 127 << 64).to_bytes(9, "little")
    dc = dc_part(0, number, b"\0" * (number == 3))
    assert zigzag_of(one_block(dc, ac))[1] == value


def test_exceptions_set_values_whatever_the_mask_says() -> None:
    # Class 1 has a value, -2, at position 1 and knows of no others.
    exceptions = [(0, 1, 9), (0, 2, 2047), (0, 63, -2048)]
    record = one_block(dc_part(0, 1, b"\0"), padded(b"\7") + packed_exceptions(exceptions), 3)
    values = zigzag_of(record)
    assert [values[1], values[2], values[63]] == [9, 2047, -2048]
    assert np.count_nonzero(values) == 3


def test_every_part_begins_at_a_multiple_of_4_bytes() -> None:
    parts = sound()
    record = reference.parse_record(parts.record())
    assert record.header.size % 4 == 0
    assert {len(part) % 4 for part in (*record.dc, *record.ac)} == {0}


def test_groups_of_four_tiles_stand_in_the_record_column_by_column() -> None:
    tables = [FLAT]
    blocks = picture(20, 700, None, tables)
    data = draft(blocks, 20, 700, tables, CODEBOOK).record()
    header = reference.parse_header(data)
    assert header.groups == [
        *([(row, column) for column in range(4)] for row in range(3)),
        *([(row, column) for column in (4, 5)] for row in range(3)),
    ]
    assert len(header.ac_crcs) == 6
    assert_same(reference.coefficients(data, CODEBOOK), blocks)


# ------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("sampling", [None, *SAMPLINGS])
def test_coefficients_come_back(height: int, width: int, sampling: tuple[int, int] | None) -> None:
    tables = [quantisers(90), quantisers(70)][: 2 if sampling else 1]
    blocks = picture(height, width, sampling, tables)
    record = draft(
        blocks,
        height,
        width,
        tables,
        CODEBOOK,
        sampling=sampling or (1, 1),
        metadata=b"\xff\xe1\0\3x",
    ).record()

    assert_same(reference.coefficients(record, CODEBOOK), blocks)
    header = reference.parse_record(record).header
    assert (header.height, header.width) == (height, width)
    assert (header.across, header.down) == (sampling or (1, 1))
    assert header.tables == tuple(map(tuple, tables))


@pytest.mark.parametrize("seed", range(4))
def test_coefficients_come_back_from_any_classes(seed: int) -> None:
    blocks = noise(16, 136, 1 << 3 * seed, 0.05, seed)
    rng = np.random.default_rng(seed)

    def choose(number: int, values: Sequence[int]) -> int:
        allowed = [0, 1, 3, 4, 5, 6, 7] + [2] * (values[0] == 0)
        return int(rng.choice(allowed))

    record = draft([blocks], 16, 136, [FLAT], CODEBOOK, choose=choose, base=-3).record()
    assert_same(reference.coefficients(record, CODEBOOK), [blocks])


def test_rare_values_come_back() -> None:
    blocks = np.zeros((3, 2, 8, 8), np.int16)
    blocks[:, :, 0, 0] = [[0, 32767], [-32768, 5], [2047, -2048]]
    blocks[0, 0, 0, 1:] = 128, -128, 129, -129, 2047, -2047, 1
    blocks[2, 1, 7, 7] = -2048
    for number in (0, 1, 3, 5):

        def choose(_: int, __: Sequence[int], number: int = number) -> int:
            return number

        record = draft([blocks], 20, 9, [FLAT], CODEBOOK, choose=choose).record()
        assert_same(reference.coefficients(record, CODEBOOK), [blocks])


def test_header_fields_come_back() -> None:
    tables = [FLAT, [65535, *range(1, 64)], [255] * 64]
    blocks = picture(5, 6, (1, 1), tables)
    options: dict[str, Any] = {"identifiers": (82, 0, 255), "table_numbers": (2, 1, 1)}
    record = draft(blocks, 5, 6, tables, CODEBOOK, colour=reference.RGB, **options).record()

    header = reference.parse_header(record)
    assert (header.identifiers, header.table_numbers) == ((82, 0, 255), (2, 1, 1))
    assert header.tables == tuple(map(tuple, tables))
    assert header.colour == reference.RGB


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_block_is_in_one_tile_and_every_component_in_every_tile(
    sampling: tuple[int, int],
) -> None:
    for height, width in [*SIZES, (16, 256), (33, 257)]:
        header = reference.Header(
            3, 1, *sampling, width, height, (), (), (), 0, (), (), (), (), (), 0, 0
        )
        tiles = [
            header.tile_blocks(row, column)
            for row in range(header.tile_rows)
            for column in range(header.tile_columns)
        ]
        assert all({block[0] for block in tile} == {0, 1, 2} for tile in tiles)
        assert max(map(len, tiles)) <= 64
        everywhere = [
            (component, row, column)
            for component in range(3)
            for row in range(header.grid(component)[0])
            for column in range(header.grid(component)[1])
        ]
        assert sorted(itertools.chain(*tiles)) == everywhere


def test_the_writer_tells_what_no_record_holds() -> None:
    def written(blocks: Coefficients, number: int) -> bytes:
        def choose(_: int, __: Sequence[int]) -> int:
            return number

        height, width = (8 * side for side in blocks.shape[:2])
        return draft([blocks], height, width, [FLAT], CODEBOOK, choose=choose, base=0).record()

    full = np.ones((1, 16, 8, 8), np.int16)
    with pytest.raises(ValueError, match="class 2 has no bits for a DC difference of 1"):
        written(full, 2)
    with pytest.raises(ValueError, match="1008 exceptions in a tile"):
        written(full, 4)
    with pytest.raises(ValueError, match="no exception holds -2049"):
        written(full * -2049, 1)


def test_any_number_of_escapes_comes_back() -> None:
    def blocks(rows: int) -> Coefficients:
        values = np.zeros((rows, 16, 8, 8), np.int16)
        values[:, ::2, 0, 0] = 16384
        values[1:, ::2] *= -1
        return values

    colour = [blocks(2), blocks(1), blocks(1)]
    record = draft(
        colour, 16, 128, [FLAT], CODEBOOK, sampling=(1, 2), choose=lambda *_: 0, base=0
    ).record()
    assert_same(reference.coefficients(record, CODEBOOK), colour)


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("message", "spoil"), SPOILT, ids=[message for message, _ in SPOILT])
def test_what_is_wrong_is_named(message: str, spoil: Callable[[Draft], None]) -> None:
    parts = sound()
    reference.coefficients(parts.record(), CODEBOOK)
    spoil(parts)
    with pytest.raises(ValueError, match=message):
        reference.coefficients(parts.record(), CODEBOOK)


@pytest.mark.parametrize("section", ["dc", "ac"])
def test_bits_after_the_end_of_a_part_are_wrong(section: str) -> None:
    dc, ac = (b"\x10", b"") if section == "dc" else (b"\0", b"\2")
    with pytest.raises(
        ValueError, match=f"{section.upper()} part of tile.* 0: bits set after its end"
    ):
        reference.coefficients(one_block(dc_part(0, 1, dc), padded(ac or b"\0")), CODEBOOK)


def test_bits_after_the_escapes_are_wrong() -> None:
    dc = dc_part(100, 1, b"\x08", [-32768])
    with pytest.raises(ValueError, match="DC part of tile row 0: bits set after its escapes"):
        reference.coefficients(one_block(dc[:-1] + b"\1", b"\0"), CODEBOOK)


def test_bits_behind_the_lengths_are_wrong() -> None:
    with pytest.raises(ValueError, match="the padding before the checksums is not zero"):
        reference.coefficients(behind_the_lengths(), CODEBOOK)


def test_every_flipped_bit_is_noticed() -> None:
    for bit in range(8 * len(SMALLEST)):
        spoilt = bytearray(SMALLEST)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"\w"):
            reference.coefficients(bytes(spoilt), CODEBOOK)


def test_every_other_length_is_noticed() -> None:
    for size in range(len(SMALLEST)):
        with pytest.raises(ValueError, match=r"cut off|has \d+"):
            reference.coefficients(SMALLEST[:size], CODEBOOK)
    with pytest.raises(ValueError, match=f"a record of {len(SMALLEST)} bytes has"):
        reference.coefficients(SMALLEST + b"\0", CODEBOOK)


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (20, "the header's checksum is wrong"),
        (-10, "DC section, tile row 0: wrong checksum"),
        (-5, "AC section, tiles from row 0 and column 0: wrong checksum"),
        (-1, "metadata: wrong checksum"),
    ],
)
def test_a_wrong_checksum_tells_of_what(offset: int, message: str) -> None:
    spoilt = bytearray(SMALLEST)
    spoilt[offset] ^= 0x40
    with pytest.raises(ValueError, match=message):
        reference.coefficients(bytes(spoilt), CODEBOOK)


@pytest.mark.parametrize(
    ("message", "number", "content"),
    [
        ("class 1: L is 64", 1, bytes([64, 1] + [1] * 63)),
        (r"class 2: W\[0\] is 13", 2, code_class(1, 13, 1)),
        (r"class 3: W\[2\] is 0, and L 2", 3, code_class(2, 1, 1, 0)),
        (r"class 4: W\[1\] is 13, and L 1", 4, code_class(1, 1, 13)),
        (r"class 5: W\[1\] is 1, and L 0", 5, bytes([0, 1, 1] + [0] * 62)),
        ("class 0 is not", 0, CLASSES[5]),
    ],
)
def test_what_is_no_codebook_is_told(message: str, number: int, content: bytes) -> None:
    spoilt = CODEBOOK[: 65 * number] + content + CODEBOOK[65 * (number + 1) :]
    with pytest.raises(ValueError, match=message):
        reference.parse_codebook(spoilt)


def test_a_codebook_has_one_size() -> None:
    with pytest.raises(ValueError, match="16640 bytes, not 16639"):
        reference.parse_codebook(CODEBOOK[:-1])


# ------------------------------------------------------------------- the picture, as Pillow has it


MORE_SIZES = [*SIZES, (21, 3), (6, 5), (2, 4)]
# Each size with each sampling and each quality, and each sampling with each quality, but not all
# of the three with one another.
PICTURES = [
    (height, width, sampling, (1, 50, 95)[(size + number) % 3])
    for size, (height, width) in enumerate(MORE_SIZES)
    for number, sampling in enumerate([None, *SAMPLINGS])
]


@pytest.mark.parametrize(("height", "width", "sampling", "quality"), PICTURES)
def test_the_picture_is_what_libjpeg_makes_of_a_jpeg_with_these_coefficients(
    height: int, width: int, sampling: tuple[int, int] | None, quality: int
) -> None:
    tables = [quantisers(quality), quantisers(quality)[::-1]][: 2 if sampling else 1]
    blocks = picture(height, width, sampling, tables, seed=quality)
    sampling = sampling or (1, 1)
    numbers = (0, 1, 1)[: len(blocks)] if len(tables) > 1 else (0,)
    jpeg = coefficient_jpeg(blocks, height, width, tables, sampling=sampling, table_numbers=numbers)
    record = draft(blocks, height, width, tables, CODEBOOK, sampling=sampling).record()

    np.testing.assert_array_equal(reference.rgb(record, CODEBOOK), with_pillow(jpeg))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_jpeg_of_rgb_is_not_converted(sampling: tuple[int, int]) -> None:
    blocks = picture(19, 37, sampling, [FLAT])
    identifiers = tuple(b"RGB")
    jpeg = coefficient_jpeg(blocks, 19, 37, [FLAT], sampling=sampling, identifiers=identifiers)
    record = draft(
        blocks,
        19,
        37,
        [FLAT],
        CODEBOOK,
        colour=reference.RGB,
        sampling=sampling,
        identifiers=identifiers,
    ).record()

    np.testing.assert_array_equal(reference.rgb(record, CODEBOOK), with_pillow(jpeg))


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 11), (17, 129), (40, 300)])
def test_the_dc_section_alone_is_libjpegs_picture_of_an_eighth(height: int, width: int) -> None:
    table = quantisers(80)
    blocks = picture(height, width, None, [table])
    eighth = Image.open(io.BytesIO(coefficient_jpeg(blocks, height, width, [table])))
    eighth.draft("L", (1, 1))
    record = draft(blocks, height, width, [table], CODEBOOK).record()
    header = reference.parse_header(record)
    start = record[: header.size + sum(header.dc_bytes)]

    assert_same(reference.dc_planes(start, CODEBOOK), [np.asarray(eighth)])
    with pytest.raises(ValueError, match="DC section is cut off"):
        reference.dc_planes(start[:-1], CODEBOOK)
