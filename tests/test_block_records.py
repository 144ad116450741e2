"""The native block codec against the plain reader and writer, and against Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fastio import _native
from fastio._native import Codebook
from tests import block_reference as reference
from tests.block_samples import (
    CODEBOOK,
    FLAT,
    SAMPLINGS,
    SIZES,
    SMALLEST,
    SPOILT,
    behind_the_lengths,
    noise,
    picture,
    quantisers,
    sound,
)
from tests.block_writer import Draft, draft, packed_exceptions
from tests.coefficient_jpeg import coefficient_jpeg
from tests.pictures import cmyk_jpeg, decoded, jpeg, save
from tests.pictures import picture as photo

CLASSES_READ = reference.parse_codebook(CODEBOOK)

# libjpeg rounds upsampled chroma to 8 bits, the native code does not: half a level of chroma, which
# is less than one of a colour.
CHROMA_TOLERANCE = 1


def as_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


@pytest.fixture(scope="module")
def codebook() -> Codebook:
    return Codebook(as_array(CODEBOOK))


def encoded(data: bytes, codebook: Codebook) -> bytes:
    """The record that the native writer makes of a JPEG file."""
    result = _native.blocks_encode(as_array(data), codebook)
    assert result is not None
    return bytes(result[0])


def exported(record: bytes, codebook: Codebook) -> bytes:
    return bytes(_native.blocks_export(as_array(record), codebook))


def native_pixels(record: bytes, codebook: Codebook, **options: int) -> NDArray[np.uint8]:
    return np.asarray(_native.blocks_pixels(as_array(record), codebook, **options))


def coefficients_read_natively(record: bytes, codebook: Codebook) -> list[reference.Coefficients]:
    """What the native reader finds in a record, by way of a JPEG and the native writer."""
    return reference.coefficients(encoded(exported(record, codebook), codebook), CODEBOOK)


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)


def assert_close(ours: NDArray[np.uint8], theirs: NDArray[np.uint8], tolerance: int) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= tolerance


# ------------------------------------------------------------------------------ Pillow's JPEG files

OPTIONS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "progressive": {"subsampling": 2, "progressive": True},
    "progressive 4:4:4": {"subsampling": 0, "progressive": True},
    "restart markers": {"subsampling": 2, "restart_marker_blocks": 3},
    "optimised": {"subsampling": 1, "optimize": True},
    "RGB": {"keep_rgb": True},
    "metadata": {"comment": b"a remark", "exif": b"Exif\0\0x", "icc_profile": b"i" * 70000},
}


def pillow_jpeg(kind: str, height: int, width: int, quality: int) -> bytes:
    if kind == "gray":
        return save(photo(height, width).convert("L"), "JPEG", quality=quality)
    return jpeg(height, width, quality=quality, **OPTIONS[kind])


@pytest.mark.parametrize(("height", "width"), [*SIZES, (100, 77)])
@pytest.mark.parametrize("kind", ["gray", *OPTIONS])
def test_a_record_is_the_picture_that_pillow_makes_of_the_jpeg(
    kind: str, height: int, width: int, codebook: Codebook
) -> None:
    data = pillow_jpeg(kind, height, width, 85)
    result = _native.blocks_encode(as_array(data), codebook)

    assert result is not None
    assert result[1:] == (height, width, 1)
    np.testing.assert_array_equal(reference.rgb(result[0], CODEBOOK), decoded(data))


@pytest.mark.parametrize("quality", [1, 2, 5, *range(10, 101, 10)])
def test_a_record_is_the_picture_at_any_quality(quality: int, codebook: Codebook) -> None:
    data = pillow_jpeg("4:2:0", 45, 141, quality)
    record = encoded(data, codebook)
    np.testing.assert_array_equal(reference.rgb(record, CODEBOOK), decoded(data))


@pytest.mark.parametrize("kind", ["gray", *OPTIONS])
def test_an_exported_jpeg_is_the_picture_of_the_first(kind: str, codebook: Codebook) -> None:
    data = pillow_jpeg(kind, 37, 150, 75)
    record = encoded(data, codebook)
    again = exported(record, codebook)

    np.testing.assert_array_equal(decoded(again), decoded(data))
    assert encoded(again, codebook) == record


def test_metadata_are_the_segments_before_the_first_scan(codebook: Codebook) -> None:
    data = pillow_jpeg("metadata", 20, 30, 75)
    expected, at = b"", 2
    while data[at + 1] != 0xDA:
        size = 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] >> 4 == 0xE or data[at + 1] == 0xFE:
            expected += data[at : at + size]
        at += size

    record = encoded(data, codebook)
    assert reference.parse_record(record).metadata == expected
    assert expected in exported(record, codebook)


@pytest.mark.parametrize(
    "data",
    [pytest.param(cmyk_jpeg(), id="four components")],
)
def test_what_no_record_holds_is_told(data: bytes, codebook: Codebook) -> None:
    assert _native.blocks_encode(as_array(data), codebook) is None


def test_a_damaged_jpeg_is_an_error(codebook: Codebook) -> None:
    data = pillow_jpeg("4:2:0", 64, 64, 90)
    with pytest.raises(ValueError, match=r"\w"):
        _native.blocks_encode(as_array(data[: len(data) // 2]), codebook)


# --------------------------------------------------------------------- JPEG files of known numbers


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("sampling", [None, *SAMPLINGS])
def test_the_native_writer_keeps_every_coefficient(
    height: int, width: int, sampling: tuple[int, int] | None, codebook: Codebook
) -> None:
    tables = [quantisers(95), quantisers(60)][: 2 if sampling else 1]
    blocks = picture(height, width, sampling, tables)
    sampling, numbers = sampling or (1, 1), (0, 1, 1) if len(tables) > 1 else (0,)
    data = coefficient_jpeg(blocks, height, width, tables, sampling=sampling, table_numbers=numbers)
    record = encoded(data, codebook)

    assert_same(reference.coefficients(record, CODEBOOK), blocks)
    header = reference.parse_header(record)
    assert (header.across, header.down) == sampling
    assert [header.tables[n] for n in header.table_numbers] == [tuple(tables[n]) for n in numbers]


@pytest.mark.parametrize("limit", [1, 9, 127, 128, 129, 1023])
@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_the_native_writer_keeps_any_numbers(limit: int, share: float, codebook: Codebook) -> None:
    blocks = noise(24, 264, limit, share)
    record = encoded(coefficient_jpeg([blocks], 24, 264, [FLAT]), codebook)
    assert_same(reference.coefficients(record, CODEBOOK), [blocks])


def first_cheapest(number: int, values: Sequence[int]) -> int:
    """The rule of the native writer: the first of the classes that take the fewest bits.

    It looks at those that reach the last value.
    """
    last = max((z for z in range(64) if values[z]), default=0)
    nonzero = [z for z in range(1, last + 1) if values[z]]

    @cache  # for equal classes
    def bits(code_class: reference.CodeClass) -> int:
        if code_class.last < last or (code_class.widths[0] == 0 and values[0]):
            return 1 << 30
        total = code_class.last + code_class.widths[0]
        total += 0 if code_class.holds_difference(values[0]) else 16
        for z in nonzero:
            total += code_class.widths[z] if code_class.holds(z, values[z]) else 24
        return total

    return min(range(256), key=lambda n: bits(CLASSES_READ[n]))


@pytest.mark.parametrize("sampling", [None, (1, 1), (2, 2)])
def test_the_native_writer_picks_the_first_of_the_cheapest_classes(
    sampling: tuple[int, int] | None, codebook: Codebook
) -> None:
    tables = [quantisers(95)]
    blocks = picture(33, 150, sampling, tables)
    sampling = sampling or (1, 1)
    data = coefficient_jpeg(blocks, 33, 150, tables, sampling=sampling)
    ours = draft(
        blocks, 33, 150, tables, CODEBOOK, sampling=sampling, choose=first_cheapest
    ).record()
    mine, theirs = reference.parse_record(encoded(data, codebook)), reference.parse_record(ours)
    assert (mine.dc, mine.ac) == (theirs.dc, theirs.ac)
    assert mine.header.exceptions == theirs.header.exceptions


# -------------------------------------------------------------------- records of the plain writer


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("sampling", [None, *SAMPLINGS])
def test_the_native_reader_reads_every_shape(
    height: int, width: int, sampling: tuple[int, int] | None, codebook: Codebook
) -> None:
    tables = [quantisers(90), quantisers(70)][: 2 if sampling else 1]
    blocks = picture(height, width, sampling, tables)
    record = draft(blocks, height, width, tables, CODEBOOK, sampling=sampling or (1, 1)).record()

    assert tuple(_native.blocks_check(as_array(record), codebook)) == (height, width)
    assert_same(coefficients_read_natively(record, codebook), blocks)


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 6, 7])
def test_the_native_reader_reads_every_class_with_escapes_and_exceptions(
    number: int, codebook: Codebook
) -> None:
    blocks = noise(16, 136, 140, 0.02)
    record = draft([blocks], 16, 136, [FLAT], CODEBOOK, choose=lambda *_: number, base=-9).record()
    assert_same(coefficients_read_natively(record, codebook), [blocks])


def test_the_native_reader_takes_the_low_8_bits_of_narrow_values(
    codebook: Codebook,
) -> None:
    blocks = np.zeros((1, 1, 8, 8), np.int16)
    blocks[0, 0].reshape(64)[1:] = 127, *[-128, 1, -1] * 20, 5, -6
    record = draft([blocks], 8, 8, [FLAT], CODEBOOK, choose=lambda *_: 2).record()
    assert reference.parse_header(record).exceptions == (0,)
    assert_same(coefficients_read_natively(record, codebook), [blocks])


@pytest.fixture(params=_native.simd_levels())
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kernels for one instruction set, for a while."""
    _native.simd_force(request.param)
    yield
    _native.simd_force(_native.simd_levels()[-1])


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_instruction_set_reads_and_writes_the_same(
    sampling: tuple[int, int], codebook: Codebook
) -> None:
    tables = [quantisers(97), quantisers(90)]
    blocks = picture(40, 300, sampling, tables)
    ours = draft(
        blocks,
        40,
        300,
        tables,
        CODEBOOK,
        sampling=sampling,
        choose=lambda number, _: 1 if number == 3 else (0, 3)[number % 2],
    ).record()

    record = encoded(exported(ours, codebook), codebook)
    assert_same(reference.coefficients(record, CODEBOOK), blocks)
    expected = reference.rgb(ours, CODEBOOK)
    assert_close(native_pixels(ours, codebook), expected, CHROMA_TOLERANCE)
    assert_same([native_pixels(record, codebook)], [native_pixels(ours, codebook)])


@pytest.mark.usefixtures("level")
def test_the_native_reader_reads_exceptions_as_the_page_says(codebook: Codebook) -> None:
    blocks = np.zeros((1, 1, 8, 8), np.int16)
    blocks[0, 0].reshape(64)[reference.ZIGZAG[1]] = -2
    parts = draft([blocks], 8, 8, [FLAT], CODEBOOK, choose=lambda *_: 1)
    assert (parts.ac, parts.exceptions) == ([b"\7\0\0\0"], [0])
    exceptions = [(0, 1, 9), (0, 2, 1023), (0, 3, 0), (0, 63, -1023)]
    parts.ac[0] += packed_exceptions(exceptions)
    parts.exceptions = [len(exceptions)]

    record = parts.record()
    assert_same(
        coefficients_read_natively(record, codebook), reference.coefficients(record, CODEBOOK)
    )


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("quantiser", [1, 7, 255, 65535])
def test_the_native_reader_keeps_16_bits_of_any_dc(quantiser: int, codebook: Codebook) -> None:
    rng = np.random.default_rng(quantiser)
    blocks = np.zeros((5, 40, 8, 8), np.int16)
    blocks[..., 0, 0] = rng.integers(-32768, 32768, (5, 40))
    blocks[:, ::3, 0, 0] >>= 6
    table = [quantiser, *FLAT[1:]]
    record = draft(
        [blocks], 40, 320, [table], CODEBOOK, base=32767, choose=lambda number, _: 3 + number % 3
    ).record()

    eighth = native_pixels(record, codebook, channels=1, denominator=8)
    assert_same([eighth[..., 0]], reference.dc_planes(record, CODEBOOK))


def test_the_native_reader_reads_the_smallest_record(codebook: Codebook) -> None:
    assert tuple(_native.blocks_check(as_array(SMALLEST), codebook)) == (1, 1)
    assert native_pixels(SMALLEST, codebook).tolist() == [[[138, 138, 138]]]
    assert b"\xff\xfe\0\2" in exported(SMALLEST, codebook)


@pytest.mark.parametrize(
    ("message", "spoil"),
    [pytest.param(*case, id=case[0]) for case in SPOILT],
)
def test_the_native_reader_refuses_what_is_wrong(
    message: str, spoil: Callable[[Draft], None], codebook: Codebook
) -> None:
    parts = sound()
    spoil(parts)
    for read in (_native.blocks_check, _native.blocks_export):
        with pytest.raises(ValueError, match=r"\w"):
            read(as_array(parts.record()), codebook)


@pytest.mark.parametrize("section", ["dc", "ac"])
def test_the_native_reader_refuses_bits_after_the_end_of_a_part(
    section: str, codebook: Codebook
) -> None:
    parts = draft([np.zeros((1, 1, 8, 8), np.int16)], 8, 8, [FLAT], CODEBOOK, choose=lambda *_: 1)
    tiles: list[bytes] = getattr(parts, section)
    tiles[0] = tiles[0][:-1] + b"\x80"
    with pytest.raises(ValueError, match=r"\w"):
        _native.blocks_check(as_array(parts.record()), codebook)


def test_the_native_reader_refuses_bits_behind_the_lengths(codebook: Codebook) -> None:
    with pytest.raises(ValueError, match="after the lengths"):
        _native.blocks_check(as_array(behind_the_lengths()), codebook)


def test_the_native_reader_refuses_bits_after_the_escapes(codebook: Codebook) -> None:
    blocks = np.full((1, 1, 8, 8), 0, np.int16)
    blocks[0, 0, 0, 0] = 9000
    parts = draft([blocks], 8, 8, [FLAT], CODEBOOK, choose=lambda *_: 1, base=0)
    _native.blocks_check(as_array(parts.record()), codebook)
    parts.dc = [parts.dc[0][:-1] + b"\1"]
    with pytest.raises(ValueError, match="violates"):
        _native.blocks_check(as_array(parts.record()), codebook)


def test_the_native_reader_notices_every_flipped_bit(codebook: Codebook) -> None:
    for bit in range(8 * len(SMALLEST)):
        spoilt = bytearray(SMALLEST)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"\w"):
            _native.blocks_check(as_array(bytes(spoilt)), codebook)


def test_the_native_reader_notices_every_other_length(codebook: Codebook) -> None:
    for data in [*(SMALLEST[:size] for size in range(len(SMALLEST))), SMALLEST + b"\0"]:
        with pytest.raises(ValueError, match=r"\w"):
            _native.blocks_check(as_array(data), codebook)


def test_the_same_codebooks_are_refused() -> None:
    for data in (CODEBOOK[:-1], CODEBOOK[65:] + CODEBOOK[65:130], b"\x40" + CODEBOOK[1:]):
        with pytest.raises(ValueError, match=r"\w"):
            reference.parse_codebook(data)
        with pytest.raises(ValueError, match=r"\w"):
            Codebook(as_array(data))


# ------------------------------------------------------------------------------------ the picture


@pytest.mark.parametrize("quality", [1, 60, 95])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_native_gray_pixels_are_libjpegs(
    height: int, width: int, quality: int, codebook: Codebook
) -> None:
    tables = [quantisers(quality)]
    blocks = picture(height, width, None, tables, seed=quality)
    record = draft(blocks, height, width, tables, CODEBOOK).record()
    (plane,) = reference.planes(record, CODEBOOK)

    assert_same([native_pixels(record, codebook, channels=1)[..., 0]], [plane])
    assert_same([native_pixels(record, codebook)], [reference.rgb(record, CODEBOOK)])


@pytest.mark.parametrize(
    ("height", "width", "denominator"),
    [
        (120, 200, 2),
        (120, 200, 4),
        (120, 200, 8),
        (117, 203, 2),
        (117, 203, 4),
        (117, 203, 8),
        (17, 129, 8),
    ],
)
def test_native_reduced_gray_pixels_are_libjpegs(
    height: int, width: int, denominator: int, codebook: Codebook
) -> None:
    data = pillow_jpeg("gray", height, width, 80)
    image = Image.open(io.BytesIO(data))
    image.draft("L", (width // denominator, height // denominator))
    record = encoded(data, codebook)
    pixels = native_pixels(record, codebook, channels=1, denominator=denominator)
    assert_same([pixels[..., 0]], [np.asarray(image)])


@pytest.mark.parametrize(("height", "width"), [*SIZES, (21, 3), (6, 5), (2, 4)])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_native_colours_are_libjpegs_but_for_rounding(
    height: int, width: int, sampling: tuple[int, int], codebook: Codebook
) -> None:
    tables = [quantisers(90), quantisers(80)]
    blocks = picture(height, width, sampling, tables)
    record = draft(blocks, height, width, tables, CODEBOOK, sampling=sampling).record()

    expected = reference.rgb(record, CODEBOOK)
    assert_close(native_pixels(record, codebook), expected, CHROMA_TOLERANCE)
    (luma, *_) = reference.planes(record, CODEBOOK)
    assert_same([native_pixels(record, codebook, channels=1)[..., 0]], [luma])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("denominator", [1, 8])
def test_native_pixels_are_upright(orientation: int, denominator: int, codebook: Codebook) -> None:
    turns: dict[int, Callable[[Any], Any]] = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: a.swapaxes(0, 1)[:, ::-1],
        7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
        8: lambda a: a.swapaxes(0, 1)[::-1],
    }
    tables = [quantisers(90)]
    record = draft(picture(21, 43, (1, 1), tables), 21, 43, tables, CODEBOOK).record()
    plain = native_pixels(record, codebook, denominator=denominator)
    turned = native_pixels(record, codebook, orientation=orientation, denominator=denominator)
    assert_same([turned], [turns[orientation](plain)])


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("sampling", [None, *SAMPLINGS])
def test_an_eighth_needs_no_more_than_the_bytes_that_are_told(
    height: int, width: int, sampling: tuple[int, int] | None, codebook: Codebook
) -> None:
    tables = [quantisers(90)]
    blocks = picture(height, width, sampling, tables)
    record = draft(blocks, height, width, tables, CODEBOOK, sampling=sampling or (1, 1)).record()
    start = record[: _native.blocks_header_bytes(height, width)]

    assert len(reference.dc_planes(start, CODEBOOK)) == len(blocks)
    assert_same(
        [native_pixels(start, codebook, denominator=8, record_size=len(record))],
        [native_pixels(record, codebook, denominator=8)],
    )


@pytest.mark.parametrize("colour", [reference.YCBCR, reference.RGB])
def test_an_eighth_in_colour_is_of_the_dc_section(colour: int, codebook: Codebook) -> None:
    tables = [quantisers(90)]
    blocks = picture(40, 300, (1, 1), tables)
    record = draft(blocks, 40, 304, tables, CODEBOOK, colour=colour).record()
    planes = reference.dc_planes(record, CODEBOOK)
    rgb = np.stack(planes, -1) if colour == reference.RGB else reference.ycbcr_to_rgb(*planes)
    assert_close(native_pixels(record, codebook, denominator=8), rgb, CHROMA_TOLERANCE)
