"""Images that keep their own size: batches of one size share a slot, others are lists."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

import fastio
from fastio import Cache, Loader
from fastio.engine.fields.image_files import ImageSource
from fastio.engine.fields.images import ImagePart
from fastio.engine.settings import EngineSettings
from fastio.transforms import augmentation
from tests.pictures import jpeg, save
from tests.recoding import age, pieces, recode_all

SIZES = {"one": [(6, 9)], "two": [(6, 9), (9, 6)], "square": [(8, 8)]}
ROWS = 24


def pictures(sizes: list[tuple[int, int]], by: int = 1) -> list[np.ndarray[Any, Any]]:
    """Noise; the size changes after so many pictures."""
    rng = np.random.default_rng(4)
    shapes = [sizes[row // by % len(sizes)] for row in range(ROWS)]
    return [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


def png(pixels: np.ndarray[Any, Any]) -> PillowImage.Image:
    """An opened PNG file."""
    return PillowImage.open(io.BytesIO(save(PillowImage.fromarray(pixels), "PNG")))


def batches(path: Path, size: int = 4, **options: Any) -> list[Any]:
    with Loader(path, size, num_workers=2, seed=3, **options) as loader:
        return [images for images, _ in loader]


def as_tensors(images: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(image) for image in images]


@pytest.mark.parametrize("codec", ["raw", "blocks"])
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_images_are_those_that_were_packed(
    tmp_path: Path, codec: str, kind: str, shuffle: bool
) -> None:
    given = pictures(SIZES[kind])
    stored = given if codec == "raw" else [png(image) for image in given]  # Pillow decodes PNGs
    fastio.pack([(image, row) for row, image in enumerate(stored)], tmp_path / "ds", codec=codec)
    with Loader(tmp_path / "ds", 4, shuffle=shuffle, num_workers=2) as loader:
        for _ in range(3):  # slots are reused
            seen = []
            for images, rows in loader:
                assert isinstance(images, torch.Tensor) == (len({i.shape for i in images}) == 1)
                for image, row in zip(images, rows.tolist(), strict=True):
                    assert torch.equal(image.permute(1, 2, 0), torch.from_numpy(given[row]))
                    seen.append(row)
            assert sorted(seen) == list(range(ROWS))


def test_sizes_that_change_between_batches(tmp_path: Path) -> None:
    given = pictures(SIZES["two"], by=6)  # every other batch of 4 has one size
    fastio.pack([(image, row) for row, image in enumerate(given)], tmp_path / "ds", codec="raw")
    kept = batches(tmp_path / "ds")
    flat = [image for images in kept for image in as_tensors(images)]
    assert [isinstance(images, torch.Tensor) for images in kept] == [True, False, True] * 2
    for image, expected in zip(flat, given, strict=True):
        assert torch.equal(image.permute(1, 2, 0), torch.from_numpy(expected))


def test_transforms_without_a_size_of_their_own(tmp_path: Path) -> None:
    given = pictures(SIZES["one"])
    fastio.pack([(image, row) for row, image in enumerate(given)], tmp_path / "ds", codec="raw")
    steps = [fastio.Resize(3), fastio.RandomHorizontalFlip(), fastio.Normalize((0.5,), (0.5,))]
    found = torch.cat(batches(tmp_path / "ds", transforms=steps, shuffle=True))
    one = torch.cat(batches(tmp_path / "ds", 1, transforms=steps, shuffle=True))
    assert found.shape == (ROWS, 3, 3, 4)
    assert found.dtype == torch.float32
    assert torch.equal(found, one)


def test_batches_that_are_kept_are_not_written_again(tmp_path: Path) -> None:
    given = pictures(SIZES["square"])
    fastio.pack([(image, row) for row, image in enumerate(given)], tmp_path / "ds", codec="raw")
    kept = batches(tmp_path / "ds", 2)
    for number, images in enumerate(kept):
        expected = np.stack(given[2 * number : 2 * number + 2])
        assert torch.equal(images.permute(0, 2, 3, 1), torch.from_numpy(expected))


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_damaged_image_in_a_slot(tmp_path: Path, on_error: Any) -> None:
    given = pictures(SIZES["one"])
    fastio.pack([(image, row) for row, image in enumerate(given)], tmp_path / "ds", codec="raw")
    (shard,) = (tmp_path / "ds").glob("shard-*.arrow")
    data = bytearray(shard.read_bytes())
    data[data.index(given[5].tobytes())] ^= 1
    shard.write_bytes(data)
    with Loader(tmp_path / "ds", 4, on_error=on_error) as loader:
        found = [(images, rows) for images, rows in loader]
    rows = torch.cat([rows for _, rows in found]).tolist()
    others = [row for row in range(ROWS) if row != 5]
    assert rows == (others if on_error == "skip" else [*range(5), 6, *range(6, ROWS)])
    for image, row in zip(torch.cat([images for images, _ in found]), rows, strict=True):
        assert torch.equal(image.permute(1, 2, 0), torch.from_numpy(given[row]))


def test_there_is_no_slot_for_images_of_too_many_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastio.pack([(image, 0) for image in pictures(SIZES["one"])], tmp_path / "ds", codec="raw")
    shapes, pool = [], EngineSettings.pool

    def noted(settings: EngineSettings, shape: tuple[int, ...], *args: Any, **how: Any) -> Any:
        shapes.append(shape)
        return pool(settings, shape, *args, **how)

    monkeypatch.setattr(EngineSettings, "pool", noted)
    with (
        Loader(fastio.open(tmp_path / "ds", max_pixels=50), 4) as loader,
        pytest.raises(fastio.ImageError, match="pixels"),
    ):
        next(iter(loader))
    assert (3, 6, 9) not in shapes
    assert len(batches(tmp_path / "ds")) == ROWS // 4
    assert (3, 6, 9) in shapes


def test_streams_that_begin_together_share_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def slow(*args: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # the other thread, unless it waits for this one
        return augmentation(*args)

    monkeypatch.setattr("fastio.engine.fields.images.augmentation", slow)
    part = ImagePart("image", fastio.schema.Image(), EngineSettings())
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(part.pool_of, [(6, 9), (9, 6)]))
    assert sum(each is not None for each in found) == 1


@pytest.mark.parametrize("size", [(100, 130), (60, 90)])
def test_a_file_that_is_replaced_while_its_batch_is_read_may_have_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    folder = tmp_path / "photos"
    (folder / "a").mkdir(parents=True)
    for row in range(8):
        (folder / "a" / f"{row}.jpg").write_bytes(jpeg(100, 130, seed=row))
    age(folder)
    new, replaced = jpeg(*size, seed=99), list[bool]()
    reads_of = ImageSource.reads_of

    def then_replaced(source: ImageSource, *args: Any) -> Any:
        found = reads_of(source, *args)
        if wanted and not replaced and found[0].pieces is not None:
            replaced.append(True)
            (folder / "a" / "2.jpg").write_bytes(new)
            for piece in pieces(tmp_path / "cache"):
                piece.unlink()
        return found

    monkeypatch.setattr(ImageSource, "reads_of", then_replaced)
    wanted = False
    with Cache(tmp_path / "cache") as cache, Loader(folder, 4, cache=cache) as loader:
        recode_all(loader, 8)
        wanted = True
        first = next(batch[0] for batch in loader)
    assert replaced
    expected = np.asarray(PillowImage.open(io.BytesIO(new)))
    assert isinstance(first, torch.Tensor) == (size == (100, 130))
    found = torch.as_tensor(first[2]).permute(1, 2, 0).numpy().astype(int)
    assert found.shape == expected.shape
    assert abs(found - expected).max() <= 3
    for row in (0, 1, 3):
        assert torch.as_tensor(first[row]).shape == (3, 100, 130)
