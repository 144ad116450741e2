"""Images that came wrong, or asked for more than there is."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import fastio
from fastio import Dataset, FolderDataset, Image, ImageError, Scalar, Schema, _native
from fastio import transforms as T
from fastio.engine import Engine, EngineSettings
from fastio.order.order import Order
from fastio.order.plan import Plan
from tests.pictures import decoded, jpeg, pixels


def folder(root: Path, files: Iterable[bytes]) -> FolderDataset:
    (root / "a").mkdir()
    for number, data in enumerate(files):
        (root / "a" / f"{number}.jpg").write_bytes(data)
    return FolderDataset(root)


def images(dataset: Dataset | FolderDataset, steps: list[Any], **options: Any) -> Any:
    """All images in order, as one batch; or the error of it."""
    options = {"channels_last": True, **options}
    engine = Engine(dataset, EngineSettings(transforms={"image": T.compile(steps)}, **options))
    try:
        order = Order(len(dataset), mode="sequential")
        (batch,) = engine.run(Plan(order, len(dataset)), epoch=0)
        return batch.fields["image"]
    finally:
        engine.close()


def segments(data: bytes) -> list[tuple[int, int, int]]:
    """(marker, begin, end) of a JPEG's segments up to the first scan's header."""
    found = []
    at = 2
    while not found or found[-1][0] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((data[at + 1], at, end))
        at = end
    return found


def without(data: bytes, marker: int) -> bytes:
    for kind, begin, end in reversed(segments(data)):
        if kind == marker:
            data = data[:begin] + data[end:]
    return data


def test_raw_gray_images_have_one_channel(tmp_path: Path) -> None:
    """They were read with three, which no file has the bytes for."""
    schema = Schema({"image": Image("L"), "label": Scalar("int64")}, "tuple", None)
    originals = [pixels(20 + number, 30, number, channels=1) for number in range(3)]
    with fastio.Writer(tmp_path / "out", schema, codec="raw") as writer:
        for number, original in enumerate(originals):
            writer.write((original[..., 0], number))
    dataset = fastio.open(tmp_path / "out")
    for found, original in zip(images(dataset, []), originals, strict=True):
        np.testing.assert_array_equal(found, original)
    dataset.close()


def test_images_of_their_own_sizes_have_the_layout_of_batches(tmp_path: Path) -> None:
    """Planes came in an array (H, W, C)."""
    dataset = folder(tmp_path, [jpeg(20, 30, 1), jpeg(25, 21, 2)])
    last, first = (images(dataset, [], channels_last=layout) for layout in (True, False))
    for one, other in zip(last, first, strict=True):
        np.testing.assert_array_equal(one, other.transpose(1, 2, 0))
        assert other.flags.c_contiguous


def test_a_crop_larger_than_the_one_before_is_padded_with_zeros(tmp_path: Path) -> None:
    """It showed the pixels that the first one had cut off."""
    data = jpeg(40, 40)
    dataset = folder(tmp_path, [data])
    expected = np.zeros((20, 20, 3), np.uint8)
    expected[5:15, 5:15] = decoded(data)[15:25, 15:25]
    (found,) = images(dataset, [T.CenterCrop(10), T.CenterCrop(20)])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("marker", [0xDB, 0xC4])
def test_a_file_that_lacks_tables_does_not_get_those_of_the_file_before(
    tmp_path: Path, marker: int
) -> None:
    """What came out depended on which file the thread had decoded before."""
    lacking = without(jpeg(40, 40, quality=30, optimize=True), marker)
    others = [jpeg(40, 40, seed, quality=90, optimize=True) for seed in range(2)]
    outcomes = []
    for number, files in enumerate(([lacking], [others[0], lacking], [others[1], lacking])):
        root = tmp_path / str(number)
        root.mkdir()
        try:
            outcomes.append(images(folder(root, files), [T.Resize((40, 40))])[-1].tobytes())
        except ImageError as error:
            outcomes.append(str(error.cause))
    assert len(set(outcomes)) == 1


@pytest.mark.parametrize("progressive", [False, True])
def test_a_small_file_of_a_huge_image_is_refused_at_once(tmp_path: Path, progressive: bool) -> None:
    """It asked for 25 GB."""
    data = bytearray(jpeg(16, 16, progressive=progressive))
    begin = next(begin for kind, begin, _ in segments(bytes(data)) if kind in (0xC0, 0xC2))
    data[begin + 5 : begin + 9] = struct.pack(">HH", 65500, 65500)
    with pytest.raises(ValueError, match=r"bytes are too few for a JPEG of 65500 x 65500 pixels"):
        _native.jpeg_probe(np.frombuffer(bytes(data), np.uint8))
    with pytest.raises(ImageError, match=r"65500 x 65500"):
        images(folder(tmp_path, [bytes(data)]), [T.RandomResizedCrop(8)])


def test_a_pipe_is_no_image_and_is_not_waited_for(tmp_path: Path) -> None:
    """A thread waited for its writer, for ever."""
    dataset = folder(tmp_path, [jpeg()])
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    with pytest.raises(ImageError, match="not a regular file"):
        images(FolderDataset(dataset.path), [T.Resize((8, 8))])


def test_damaged_restart_markers_cost_what_they_cost_in_pillow(tmp_path: Path) -> None:
    """The rest of the image was blank, or shifted by an interval."""
    image = Pillow.fromarray(pixels(64, 64, channels=1)[..., 0])
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", restart_marker_blocks=4)
    good = buffer.getvalue()
    scan = segments(good)[-1][2]
    files = []
    for number in range(8):
        place = good.index(bytes([0xFF, 0xD0 + number]), scan)
        for instead in (b"", b"\xff\x01", bytes([0xFF, 0xD0 + (number + 3) % 8])):
            files.append(good[:place] + instead + good[place + 2 :])
    found = images(folder(tmp_path, files), [])
    for data, one in zip(sorted_as_folder(files), found, strict=True):
        np.testing.assert_array_equal(one, decoded(data))


def sorted_as_folder(files: list[bytes]) -> list[bytes]:
    """The order in which a folder lists files named by their numbers."""
    return [files[number] for number in sorted(range(len(files)), key=str)]
