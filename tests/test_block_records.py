"""The native block codec against the plain reader and writer, and against Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import fastio._native as native_module
from tests import block_reference as reference
from tests.block_samples import (
    CODEBOOK,
    FLAT,
    SAMPLINGS,
    SIZES,
    SMALLEST,
    SPOILT,
    noise,
    picture,
    quantisers,
    sound,
)
from tests.block_writer import Draft, cheapest, draft
from tests.coefficient_jpeg import coefficient_jpeg
from tests.pictures import cmyk_jpeg, decoded, jpeg, save
from tests.pictures import picture as photo

_native: Any = native_module
pytestmark = pytest.mark.skipif(
    not hasattr(_native, "blocks_encode"), reason="the native block codec is not built yet"
)

# One level of chroma is at most 1.772 levels of a colour; each side rounds on its own besides.
CHROMA_TOLERANCE = 3


def as_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


@pytest.fixture(scope="module")
def codebook() -> Any:
    return _native.Codebook(as_array(CODEBOOK))


def encoded(data: bytes, codebook: Any) -> bytes:
    """The record that the native writer makes of a JPEG file."""
    result = _native.blocks_encode(as_array(data), codebook)
    assert result is not None
    return bytes(result[0])


def exported(record: bytes, codebook: Any) -> bytes:
    return bytes(_native.blocks_export(as_array(record), codebook))


def native_pixels(record: bytes, codebook: Any, **options: int) -> NDArray[np.uint8]:
    return np.asarray(_native.blocks_pixels(as_array(record), codebook, **options))


def coefficients_read_natively(record: bytes, codebook: Any) -> list[reference.Coefficients]:
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
    kind: str, height: int, width: int, codebook: Any
) -> None:
    data = pillow_jpeg(kind, height, width, 85)
    record, rows, columns, orientation = _native.blocks_encode(as_array(data), codebook)

    assert (rows, columns, orientation) == (height, width, 1)
    np.testing.assert_array_equal(reference.rgb(bytes(record), CODEBOOK), decoded(data))


@pytest.mark.parametrize("quality", [1, 2, 5, *range(10, 101, 10)])
def test_a_record_is_the_picture_at_any_quality(quality: int, codebook: Any) -> None:
    data = pillow_jpeg("4:2:0", 45, 141, quality)
    record = encoded(data, codebook)
    np.testing.assert_array_equal(reference.rgb(record, CODEBOOK), decoded(data))


@pytest.mark.parametrize("kind", ["gray", *OPTIONS])
def test_an_exported_jpeg_is_the_picture_of_the_first(kind: str, codebook: Any) -> None:
    data = pillow_jpeg(kind, 37, 150, 75)
    record = encoded(data, codebook)
    again = exported(record, codebook)

    np.testing.assert_array_equal(decoded(again), decoded(data))
    assert encoded(again, codebook) == record


def test_metadata_are_the_segments_before_the_first_scan(codebook: Any) -> None:
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
def test_what_no_record_holds_is_told(data: bytes, codebook: Any) -> None:
    assert _native.blocks_encode(as_array(data), codebook) is None


def test_a_damaged_jpeg_is_an_error(codebook: Any) -> None:
    data = pillow_jpeg("4:2:0", 64, 64, 90)
    with pytest.raises(ValueError, match=r"\w"):
        _native.blocks_encode(as_array(data[: len(data) // 2]), codebook)


# --------------------------------------------------------------------- JPEG files of known numbers


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("sampling", [None, *SAMPLINGS])
def test_the_native_writer_keeps_every_coefficient(
    height: int, width: int, sampling: tuple[int, int] | None, codebook: Any
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
def test_the_native_writer_keeps_any_numbers(limit: int, share: float, codebook: Any) -> None:
    blocks = noise(24, 264, limit, share)
    record = encoded(coefficient_jpeg([blocks], 24, 264, [FLAT]), codebook)
    assert_same(reference.coefficients(record, CODEBOOK), [blocks])


@pytest.mark.parametrize("sampling", [None, (1, 1), (2, 2)])
def test_the_native_writer_spends_the_fewest_bits(
    sampling: tuple[int, int] | None, codebook: Any
) -> None:
    tables = [quantisers(95)]
    blocks = picture(33, 150, sampling, tables)
    sampling = sampling or (1, 1)
    data = coefficient_jpeg(blocks, 33, 150, tables, sampling=sampling)
    ours = draft(
        blocks, 33, 150, tables, CODEBOOK, sampling=sampling, choose=cheapest(CODEBOOK)
    ).record()
    assert len(encoded(data, codebook)) <= len(ours)


# -------------------------------------------------------------------- records of the plain writer


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("sampling", [None, *SAMPLINGS])
def test_the_native_reader_reads_every_shape(
    height: int, width: int, sampling: tuple[int, int] | None, codebook: Any
) -> None:
    tables = [quantisers(90), quantisers(70)][: 2 if sampling else 1]
    blocks = picture(height, width, sampling, tables)
    record = draft(blocks, height, width, tables, CODEBOOK, sampling=sampling or (1, 1)).record()

    assert tuple(_native.blocks_check(as_array(record), codebook)) == (height, width)
    assert_same(coefficients_read_natively(record, codebook), blocks)


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 6, 7])
def test_the_native_reader_reads_every_class_with_escapes_and_exceptions(
    number: int, codebook: Any
) -> None:
    blocks = noise(16, 136, 140, 0.02)
    record = draft([blocks], 16, 136, [FLAT], CODEBOOK, choose=lambda *_: number, base=-9).record()
    assert_same(coefficients_read_natively(record, codebook), [blocks])


def test_the_native_reader_takes_the_low_8_bits_of_narrow_values(codebook: Any) -> None:
    blocks = np.zeros((1, 1, 8, 8), np.int16)
    blocks[0, 0].reshape(64)[1:] = 127, *[-128, 1, -1] * 20, 5, -6
    record = draft([blocks], 8, 8, [FLAT], CODEBOOK, choose=lambda *_: 2).record()
    assert reference.parse_record(record).ac[0][0] == 0
    assert_same(coefficients_read_natively(record, codebook), [blocks])


def test_the_native_reader_reads_the_smallest_record(codebook: Any) -> None:
    assert tuple(_native.blocks_check(as_array(SMALLEST), codebook)) == (1, 1)
    assert native_pixels(SMALLEST, codebook).tolist() == [[[138, 138, 138]]]
    assert b"\xff\xfe\0\2" in exported(SMALLEST, codebook)


@pytest.mark.parametrize(("message", "spoil"), SPOILT, ids=[message for message, _ in SPOILT])
def test_the_native_reader_refuses_what_is_wrong(
    message: str, spoil: Callable[[Draft], None], codebook: Any
) -> None:
    parts = sound()
    spoil(parts)
    for read in (_native.blocks_check, _native.blocks_export):
        with pytest.raises(ValueError, match=r"\w"):
            read(as_array(parts.record()), codebook)


def test_the_native_reader_notices_every_flipped_bit(codebook: Any) -> None:
    for bit in range(8 * len(SMALLEST)):
        spoilt = bytearray(SMALLEST)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"\w"):
            _native.blocks_check(as_array(bytes(spoilt)), codebook)


def test_the_native_reader_notices_every_other_length(codebook: Any) -> None:
    for data in [*(SMALLEST[:size] for size in range(len(SMALLEST))), SMALLEST + b"\0"]:
        with pytest.raises(ValueError, match=r"\w"):
            _native.blocks_check(as_array(data), codebook)


def test_the_same_codebooks_are_refused() -> None:
    for data in (CODEBOOK[:-1], CODEBOOK[65:] + CODEBOOK[65:130], b"\x40" + CODEBOOK[1:]):
        with pytest.raises(ValueError, match=r"\w"):
            reference.parse_codebook(data)
        with pytest.raises(ValueError, match=r"\w"):
            _native.Codebook(as_array(data))


# ------------------------------------------------------------------------------------ the picture


@pytest.mark.parametrize("quality", [1, 60, 95])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_native_gray_pixels_are_libjpegs(
    height: int, width: int, quality: int, codebook: Any
) -> None:
    tables = [quantisers(quality)]
    blocks = picture(height, width, None, tables, seed=quality)
    record = draft(blocks, height, width, tables, CODEBOOK).record()
    (plane,) = reference.planes(record, CODEBOOK)
    (eighth,) = reference.dc_planes(record, CODEBOOK)

    assert_same([native_pixels(record, codebook, channels=1)[..., 0]], [plane])
    assert_same([native_pixels(record, codebook)], [reference.rgb(record, CODEBOOK)])
    assert_same([native_pixels(record, codebook, channels=1, denominator=8)[..., 0]], [eighth])


@pytest.mark.parametrize("denominator", [2, 4, 8])
def test_native_reduced_gray_pixels_are_libjpegs(denominator: int, codebook: Any) -> None:
    data = pillow_jpeg("gray", 120, 200, 80)
    image = Image.open(io.BytesIO(data))
    image.draft("L", (200 // denominator, 120 // denominator))
    pixels = native_pixels(encoded(data, codebook), codebook, channels=1, denominator=denominator)
    assert_same([pixels[..., 0]], [np.asarray(image)])


@pytest.mark.parametrize(("height", "width"), [*SIZES, (21, 3), (6, 5), (2, 4)])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_native_colours_are_libjpegs_but_for_rounding(
    height: int, width: int, sampling: tuple[int, int], codebook: Any
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
def test_native_pixels_are_upright(orientation: int, denominator: int, codebook: Any) -> None:
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
    height: int, width: int, sampling: tuple[int, int] | None, codebook: Any
) -> None:
    tables = [quantisers(90)]
    blocks = picture(height, width, sampling, tables)
    record = draft(blocks, height, width, tables, CODEBOOK, sampling=sampling or (1, 1)).record()
    start = record[: _native.blocks_header_bytes(height, width)]

    assert len(reference.dc_planes(start, CODEBOOK)) == len(blocks)
