"""Loader with a CUDA device: the same batches as on the CPU, from both paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fastio
from fastio import Loader

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS = 96
EPOCHS, EDGE = 5, 2048  # passes over the data, rows of a matrix; `test_cuda_rehearsal` takes less
TRANSFORMS = [
    fastio.RandomResizedCrop(24),
    fastio.RandomHorizontalFlip(),
    fastio.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]


def packed_photos(path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (ROWS, 40, 40, 3), np.uint8)
    fastio.pack([(image, row) for row, image in enumerate(noise)], path)
    return path


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_photos(tmp_path_factory.mktemp("data") / "packed")


def busy(weights: torch.Tensor) -> torch.Tensor:
    """Work that keeps the consumer's stream behind the host."""
    for _ in range(3):
        weights = weights @ weights * 1e-4
    return weights


def test_batches_are_those_of_the_cpu_while_the_consumer_lags_behind(packed: Path) -> None:
    options: dict[str, Any] = {
        "shuffle": True,
        "seed": 0,
        "transforms": TRANSFORMS,
        "num_workers": 2,
    }
    with Loader(packed, 4, **options) as host:
        wanted = [list(host) for _ in range(EPOCHS)]
    weights = torch.ones(EDGE, EDGE, device="cuda")
    with Loader(packed, 4, device="cuda", **options) as batches:
        for epoch in wanted:
            errors = []
            for (images, labels), (expected, targets) in zip(batches, epoch, strict=True):
                assert images.is_contiguous()
                weights = busy(weights)
                gap = (images - expected.cuda()).abs().max()
                errors.append((gap, (labels == targets.cuda()).all()))
                del images, labels
            assert all(float(gap) < 1e-5 and bool(same) for gap, same in errors)
    assert batches.stats().copy_s > 0


def test_bytes_cross_the_bus_and_callables_run_on_the_device(packed: Path) -> None:
    seen = []

    def look(images: torch.Tensor) -> torch.Tensor:
        seen.append((images.dtype, images.device.type))
        return images

    transforms = [fastio.Resize((8, 8)), fastio.OnBatch(look)]
    with Loader(packed, 4, transforms=transforms, device="cuda") as batches:
        images, _ = next(iter(batches))
    assert images.dtype == torch.uint8
    assert seen[0] == (torch.uint8, "cuda")


def test_pinned_batches_survive_a_copy_from_a_part_of_them_that_was_dropped(packed: Path) -> None:
    options: dict[str, Any] = {
        "transforms": [fastio.RandomResizedCrop(24)],
        "num_workers": 2,
        "seed": 0,
    }
    with Loader(packed, 8, **options) as host:
        wanted = torch.cat([images for _ in range(EPOCHS) for images, _ in host])
    numbers = torch.arange(ROWS).view(-1, 8)[:, 4:].flatten().repeat(EPOCHS)
    weights = torch.ones(EDGE, EDGE, device="cuda")
    parts, labels_of = [], []
    with Loader(packed, 8, pin_memory=True, **options) as batches:
        for _ in range(EPOCHS):
            for images, labels in batches:
                assert images.is_pinned()
                assert labels.is_pinned()
                weights = busy(weights)
                parts += [half.to("cuda", non_blocking=True) for half in images.split(4)]
                labels_of.append(labels[4:].to("cuda", non_blocking=True))
                del images, labels
    assert torch.equal(torch.cat(parts).cpu(), wanted)
    assert torch.equal(torch.cat(labels_of).cpu(), numbers)


def test_an_early_break_frees_what_is_in_flight(packed: Path) -> None:
    with Loader(packed, 4, transforms=TRANSFORMS, device="cuda") as batches:
        next(iter(batches))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(20):
            for _ in batches:
                break
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() <= before + 4 * 3 * 24 * 24 * 4 * 8


# Python 3.12 and later warn of every fork of a process that has threads.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_torch_path_delivers_on_the_device_too(workers: int) -> None:
    dataset = TensorDataset(torch.arange(64.0).view(32, 2), torch.arange(32))
    with Loader(dataset, 5, device="cuda", num_workers=workers) as batches:
        found = list(batches)
    assert all(part.is_cuda for batch in found for part in batch)
    assert torch.equal(torch.cat([y for _, y in found]).cpu(), torch.arange(32))
    assert torch.equal(torch.cat([x for x, _ in found]).cpu(), torch.arange(64.0).view(32, 2))


def test_collate_fn_s_batches_are_delivered_on_the_device(packed: Path) -> None:
    def collate(samples: list[Any]) -> Any:  # default_collate itself would be as none
        return torch.utils.data.default_collate(samples)

    options: dict[str, Any] = {"transforms": TRANSFORMS, "collate_fn": collate, "seed": 0}
    with Loader(packed, 8, **options) as host, Loader(packed, 8, device="cuda", **options) as mine:
        for (images, labels), (expected, targets) in zip(mine, host, strict=True):
            assert torch.equal(images.cpu(), expected)
            assert torch.equal(labels.cpu(), targets)


def packed_rows(path: Path) -> Path:
    schema = fastio.Schema({"x": fastio.Array("float32", (None, 3))})
    rows = [np.full((n % 11, 3), n, np.float32) for n in range(ROWS)]
    fastio.pack([{"x": row} for row in rows], path, schema=schema)
    return path


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_rows(tmp_path_factory.mktemp("data") / "ragged")


@pytest.mark.parametrize("form", ["list", "padded", "nested", "flat"])
def test_rows_that_differ_in_size_are_those_of_the_cpu(ragged: Path, form: Any) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 0, "ragged": form, "num_workers": 2}
    weights = torch.ones(EDGE, EDGE, device="cuda")
    with Loader(ragged, 8, **options) as host, Loader(ragged, 8, device="cuda", **options) as mine:
        for _ in range(EPOCHS):
            for batch, expected in zip(mine, host, strict=True):
                weights = busy(weights)
                assert list(batch) == list(expected)
                for name, part in batch.items():
                    rows = part if isinstance(part, list) else part.unbind()
                    wanted = expected[name]
                    wanted = wanted if isinstance(wanted, list) else wanted.unbind()
                    assert all(row.is_cuda for row in rows)
                    for row, other in zip(rows, wanted, strict=True):
                        assert torch.equal(row.cpu(), other)


def test_both_parts_of_a_nested_tensor_are_pinned_and_copied(ragged: Path) -> None:
    with Loader(ragged, 8, ragged="nested", pin_memory=True) as loader:
        nested = next(iter(loader))["x"]
    assert nested.values().is_pinned()
    assert nested.offsets().is_pinned()
    with Loader(ragged, 8, ragged="nested", device="cuda") as loader:
        nested = next(iter(loader))["x"]
    assert nested.layout == torch.jagged
    assert nested.values().is_cuda
    assert nested.offsets().is_cuda
