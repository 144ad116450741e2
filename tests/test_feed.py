"""The native feed: transforms, collation and bad samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastio
from fastio import Loader, RandomHorizontalFlip, RandomResizedCrop
from tests.numbered import ROWS, SMALL, loader
from tests.support import numbered_folder, told

# Transforms


def test_augmentations_are_a_function_of_seed_epoch_and_row(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    noise = np.random.default_rng(0).integers(0, 256, (12, 20, 20, 3), np.uint8)
    fastio.pack([{"image": image} for image in noise], path)
    transforms = [RandomResizedCrop(9), RandomHorizontalFlip()]

    def images(threads: int, epoch: int, batch_size: int) -> torch.Tensor:
        with Loader(
            path, batch_size, num_workers=threads, transforms=transforms, seed=0
        ) as batches:
            batches.set_epoch(epoch)
            return torch.cat([batch["image"] for batch in batches])

    assert torch.equal(images(1, 0, 12), images(3, 0, 5))
    assert not torch.equal(images(1, 0, 12), images(1, 1, 12))


def test_augmentation_tells_what_was_drawn(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    ramp = np.repeat(np.arange(0, 240, 8, dtype=np.uint8)[None, :, None], 3, axis=2)
    fastio.pack([{"image": np.repeat(ramp, 10, axis=0)} for _ in range(16)], path)
    transforms = [fastio.RandomCrop((4, 5)), RandomHorizontalFlip()]
    with Loader(path, 16, transforms=transforms) as batches:
        batches.set_epoch(3)
        (batch,) = list(batches)
        drawn = batches.augmentation(range(16))
        assert drawn == batches.augmentation(range(16), epoch=3, field="image")
        assert drawn != batches.augmentation(range(16), epoch=4)
    for image, what in zip(batch["image"], drawn, strict=True):
        left = what.window[1] if what.window[2:] == (4, 5) else what.crop[1]
        columns = ramp[0, left : left + 5, 0]
        wanted = columns[::-1] if what.flip_horizontal else columns
        assert image[0, 0].tolist() == wanted.tolist()
    assert {what.flip_horizontal for what in drawn} == {True, False}


def test_on_batch_runs_on_the_field_s_batch_and_callables_under_none_on_the_whole_one(
    folder: Path,
) -> None:
    transforms = {
        "image": [*SMALL, fastio.OnBatch(lambda images: images.float().mean(dim=(1, 2, 3)))],
        "label": fastio.OnBatch(lambda labels: labels + 10),
        None: lambda batch: {"mean": batch[0], "label": batch[1]},
    }
    with loader(folder, transforms=transforms) as batches:
        batch = next(iter(batches))
    assert batch["mean"].shape == (5,)
    assert batch["label"].tolist() == [10] * 5


@pytest.mark.parametrize("channels_last", [False, True])
def test_normalize_on_the_cpu_gives_floats_in_the_layout_asked_for(
    folder: Path, channels_last: bool
) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    steps = [*SMALL, fastio.Normalize(mean, std)]
    with loader(folder, transforms=steps, channels_last=channels_last) as batches:
        images = next(iter(batches))[0]
    with loader(folder) as batches:
        raw = next(iter(batches))[0]
    assert images.dtype == torch.float32
    assert images.is_contiguous() is not channels_last
    assert images.is_contiguous(memory_format=torch.channels_last) is channels_last
    shift, scale = (torch.tensor(part)[:, None, None] for part in (mean, std))
    torch.testing.assert_close(images, (raw / 255 - shift) / scale, rtol=0, atol=1e-5)


def test_a_dtype_that_the_engine_does_not_write_is_made_afterwards(folder: Path) -> None:
    transforms = [*SMALL, fastio.ToDtype("float16", scale=True)]
    with loader(folder, transforms=transforms) as batches, loader(folder) as plain:
        images, raw = next(iter(batches))[0], next(iter(plain))[0]
    assert torch.equal(images, raw.half() / 255)


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ({"picture": SMALL}, "picture"),
        ({"label": SMALL}, r"Resize.*'label'"),
        ({"label": fastio.Normalize([0.5], [0.5])}, r"Normalize.*'label'"),
        ({None: SMALL}, "whole batch"),
        ([3], "3"),
    ],
)
def test_impossible_transforms_are_refused_at_once(
    folder: Path, transforms: Any, message: str
) -> None:
    with pytest.raises(fastio.TransformError, match=message):
        loader(folder, transforms=transforms)


# Collation


def test_collate_fn_gets_the_samples_as_the_dataset_has_them(folder: Path) -> None:
    seen: list[Any] = []

    def collate(samples: list[Any]) -> int:
        seen.extend(samples)
        return len(samples)

    with loader(folder, collate_fn=collate) as batches:
        assert list(batches) == [5, 5, 5, 5, 4]
    image, label = seen[9]
    assert isinstance(seen[9], tuple)
    assert (tuple(image.shape), image.dtype) == ((3, 8, 8), torch.uint8)
    assert (label, type(label)) == (1, int)
    assert told([image for image, _ in seen]) == list(range(ROWS))


def test_collate_fn_gets_normalised_images(folder: Path) -> None:
    transforms = [*SMALL, fastio.Normalize([0.5] * 3, [0.5] * 3)]
    collate = torch.utils.data.default_collate
    with loader(folder, transforms=transforms, collate_fn=collate) as mine:
        images, labels = next(iter(mine))
    with loader(folder, transforms=transforms) as plain:
        wanted, targets = next(iter(plain))
    assert torch.equal(images, wanted)
    assert torch.equal(labels, targets)


def test_collate_fn_without_batching_gets_each_sample(folder: Path) -> None:
    with loader(folder, None, collate_fn=lambda sample: sample[1]) as labels:
        assert list(labels) == [0] * 9 + [1] * 7 + [2] * 8


# Bad samples


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A numbered folder whose row 6 is cut short."""
    folder = numbered_folder(tmp_path / "damaged", (12,))
    path = folder / "class0" / "006.jpg"
    path.write_bytes(path.read_bytes()[:300])
    return folder


def test_a_bad_sample_is_raised_by_name_and_the_next_batches_are_whole(damaged: Path) -> None:
    with loader(damaged, 4) as batches:
        iterator = iter(batches)
        assert told(next(iterator)[0]) == [0, 1, 2, 3]
        with pytest.raises(fastio.SampleError, match=r"006\.jpg"):
            next(iterator)
        assert told(next(iterator)[0]) == [8, 9, 10, 11]


def test_bad_samples_can_be_skipped(damaged: Path) -> None:
    with loader(damaged, 4, on_error="skip") as batches:
        rows, errors = [], []
        for images, _ in batches:
            rows.append(told(images))
            errors += batches.batch.errors
        assert rows == [[0, 1, 2, 3], [4, 5, 7], [8, 9, 10, 11]]
        assert [error.row for error in errors] == [6]
        assert batches.stats().skipped == 1
        assert batches.stats().samples == 11


def test_bad_samples_can_be_replaced(damaged: Path) -> None:
    with loader(damaged, 4, on_error="replace") as batches:
        sizes = [(len(set(told(images))), len(images)) for images, _ in batches]
        assert sizes == [(4, 4), (3, 4), (4, 4)]
        assert batches.stats().replaced == 1
