"""Repeated augmentation: `repeat` copies of a row with draws of their own, as timm divides them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

import fastio
from fastio import ColorJitter, Loader, RandomResizedCrop, Resize, StateMismatch
from fastio.order.order import Order
from fastio.order.plan import Plan
from tests.servers import http_folder
from tests.staging_support import pack_noise

ROWS = 24
CROPS = [RandomResizedCrop((8, 12)), ColorJitter(0.4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repeat") / "photos"
    rng = np.random.default_rng(0)
    for row in range(ROWS):
        (path / f"class{row // 8}").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(pixels).save(path / f"class{row // 8}" / f"{row:03}.png")
    return path


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    fastio.pack(folder, folder.parent / "packed")
    return folder.parent / "packed"


def epoch(loader: Loader) -> list[tuple[int, int, torch.Tensor]]:
    """Returns the rows, occurrences and images of the samples of an epoch that count."""
    found = []
    for images, _ in loader:
        rows, occurrences = loader.batch.rows, loader.batch.occurrences
        assert rows is not None
        assert occurrences is not None
        for place in range(loader.batch.valid):
            found.append((int(rows[place]), int(occurrences[place]), images[place].clone()))
    return found


def described(order: list[int], repeats: int, rank: int, world: int) -> list[tuple[int, int]]:
    """Returns the rows of a rank and the numbers of their copies, as timm's sampler is described.

    Each index of the shuffled epoch is repeated, the ranks take turns to get one, and each rank
    keeps only as many as it would have without repeating. (timm also rounds this number down to a
    multiple of 256, by default.)
    """
    indices = [(row, copy) for row in order for copy in range(repeats)]
    return indices[rank::world][: len(order) // world]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_ranks_get_the_samples_of_timms_sampler(packed: Path, world: int, repeats: int) -> None:
    shuffled = DataLoader(range(ROWS), None, True, generator=torch.Generator().manual_seed(5))  # type: ignore[arg-type]
    order, batch_size = [int(row) for row in shuffled], ROWS // world // 3
    for rank in range(world):
        with Loader(
            packed, batch_size, shuffle=True, seed=1, repeat=repeats, drop_last=True,
            generator=torch.Generator().manual_seed(5), rank=rank, world_size=world,
            transforms=CROPS,
        ) as loader:  # fmt: skip
            assert len(loader) == ROWS // (world * batch_size)
            found = epoch(loader)
        assert [sample[:2] for sample in found] == described(order, repeats, rank, world)


@pytest.mark.parametrize("kind", ["folder", "packed", "concat", "subset"])
def test_copies_are_drawn_apart_and_told(folder: Path, packed: Path, kind: str) -> None:
    parts = [fastio.open(packed), fastio.open(packed)]
    source: Any = {
        "folder": folder,
        "packed": packed,
        "concat": ConcatDataset(parts),
        "subset": Subset(parts[0], [3, 5, 5, 7, 11, 2]),
    }[kind]
    with Loader(source, 4, shuffle=True, seed=1, repeat=3, transforms=CROPS) as loader:
        found, following = epoch(loader), epoch(loader)
        pairs = [sample[:2] for sample in found]
        assert len(set(pairs)) == len(pairs) == len(loader.dataset)
        assert {sample[:2] for sample in following} != set(pairs)
        rows = [row for row, _ in pairs]
        occurrences = [occurrence for _, occurrence in pairs]
        drawn = loader.augmentation(rows, 0, occurrence=occurrences)
    assert len({str(each) for each in drawn}) == len(found)
    assert len({sample[2].numpy().tobytes() for sample in found}) == len(found)
    with Loader(source, 5, seed=1, repeat=3, transforms=CROPS) as unshuffled:
        images = {(row, occurrence): image for row, occurrence, image in epoch(unshuffled)}
    both = [sample for sample in found if sample[:2] in images]
    assert both
    assert all(torch.equal(image, images[row, copy]) for row, copy, image in both)


def test_rows_picked_twice_have_places_and_draws_of_their_own(packed: Path) -> None:
    subset = Subset(fastio.open(packed), [3, 5, 5, 7, 5, 2])
    with Loader(subset, 2, shuffle=True, seed=3, repeat=2, transforms=CROPS) as loader:
        for _ in range(4):
            found = epoch(loader)
            for place in {place for place, _, _ in found}:
                assert sum(place == other for other, _, _ in found) == 2
            assert len({image.numpy().tobytes() for *_, image in found}) == 6


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_resume_in_the_middle_of_copies_is_exact(packed: Path, world: int, after: int) -> None:
    def loader(rank: int, batch_size: int = 4, of: int = world, repeat: int = 3) -> Loader:
        return Loader(
            packed, batch_size, shuffle=True, seed=2, repeat=repeat, rank=rank, world_size=of,
            transforms=CROPS,
        )  # fmt: skip

    for rank in range(world):
        with loader(rank) as whole, loader(rank) as begun, loader(rank) as resumed:
            expected = epoch(whole)
            batches = iter(begun)
            for _ in range(min(after, len(begun) - 1)):
                next(batches)
            state = begun.state_dict()
            resumed.load_state_dict(state)
            rest = epoch(resumed)
            following = epoch(resumed)
            assert [each[:2] for each in rest] == [each[:2] for each in expected][-len(rest) :]
            assert all(
                torch.equal(a[2], b[2])
                for a, b in zip(rest, expected[len(expected) - len(rest) :], strict=True)
            )
            assert [each[:2] for each in following] == [each[:2] for each in epoch(whole)]
    with loader(0, of=1) as other:  # with other ranks: the same samples come next
        other.load_state_dict(state)
        left = {each[:2] for each in epoch(other)}
    with loader(0, of=1) as other:
        everything = {each[:2] for each in epoch(other)}
    assert len(left) == ROWS - state["position"]
    assert left <= everything
    with loader(0, repeat=2) as other, pytest.raises(StateMismatch, match="order"):
        other.load_state_dict(state)


@pytest.mark.parametrize("rows", [1, 2, 7, 24, 25])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_padding_is_no_sample_of_the_epoch(rows: int, world: int) -> None:
    plans = [Plan(Order(rows, seed=1), 3, False, rank, world, 0, 3) for rank in range(world)]
    seen = []
    for step in range(len(plans[0])):
        parts = [plan.batch(step) for plan in plans]
        assert len({len(part.rows) for part in parts}) == 1
        for part in parts:
            assert part.occurrences is not None
            copies = part.occurrences.tolist()
            seen += list(zip(part.rows.tolist(), copies, strict=True))[: part.valid]
    order = Order(rows, seed=1).at(np.arange(rows)).tolist()
    assert sorted(seen) == sorted([(row, copy) for row in order for copy in range(3)][:rows])


def test_tables_and_torch_datasets_repeat_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array(range(30))}), tmp_path / "table.parquet")
    tensors = TensorDataset(torch.arange(30))
    sources: list[Any] = [tmp_path / "table.parquet", tensors]
    for source in sources:
        with Loader(source, 5, shuffle=True, seed=1, repeat=3) as loader:
            batches = [batch["x"] if isinstance(batch, dict) else batch[0] for batch in loader]
            assert len(loader) == len(batches) == 6
        values = torch.cat(batches).reshape(10, 3)
        assert torch.equal(values[:, 0], values[:, 1])
        assert torch.equal(values[:, 0], values[:, 2])
        assert len(set(values[:, 0].tolist())) == 10


def test_remote_rows_repeat_with_the_draws_of_local_ones(tmp_path: Path) -> None:
    data = pack_noise(tmp_path / "noise", rows=200)
    with (
        http_folder(data) as url,
        Loader(
            url, 16, shuffle=True, seed=1, repeat=3, transforms=CROPS, cache=tmp_path / "cache"
        ) as loader,
    ):
        assert "windows" in loader.stats().order
        found = epoch(loader), epoch(loader)
    for each in found:
        pairs = [sample[:2] for sample in each]
        assert len(set(pairs)) == 200
        assert len({row for row, _ in pairs}) == 67
    with Loader(data, 16, seed=1, repeat=3, transforms=CROPS) as local:
        images = {sample[:2]: sample[2] for sample in epoch(local)}
    both = [sample for sample in found[0] if sample[:2] in images]
    assert both
    assert all(torch.equal(image, images[row, copy]) for row, copy, image in both)


def test_without_a_repeat_nothing_changes(packed: Path) -> None:
    with (
        Loader(packed, 5, shuffle=True, seed=4, transforms=[Resize((8, 12))]) as plain,
        Loader(packed, 5, shuffle=True, seed=4, transforms=[Resize((8, 12))], repeat=1) as once,
    ):
        for images, expected in zip(once, plain, strict=True):
            assert torch.equal(images[0], expected[0])
            assert torch.equal(images[1], expected[1])


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def test_what_cannot_be_repeated_is_refused(packed: Path, tmp_path: Path) -> None:
    schema = fastio.Schema({"tokens": fastio.Tokens()})
    with fastio.Writer(tmp_path / "tokens", schema) as writer:
        for length in (5, 9, 12):
            writer.write({"tokens": np.arange(length, dtype=np.uint16)})
    tokens = tmp_path / "tokens"
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (packed, {"repeat": 0}, "at least 1, got 0"),
        (packed, {"repeat": -1}, "at least 1, got -1"),
        (packed, {"repeat": 2.0}, "integer of at least 1, got 2.0"),
        (packed, {"repeat": True}, "integer of at least 1, got True"),
        (packed, {"sampler": range(4)}, "cannot be combined with a sampler"),
        (packed, {"batch_sampler": [[0, 1]]}, "cannot be combined with a sampler"),
        (_Stream(), {}, "iterable dataset"),
        (fastio.mix({packed: 1}), {}, "cannot be combined with a mix"),
        (fastio.TokenWindows(fastio.open(tokens), 4), {}, "windows of tokens"),
        (fastio.TokenPad(fastio.open(tokens), 8), {}, "windows of tokens"),
    ]
    for source, options, message in cases:
        with pytest.raises((ValueError, fastio.TransformError), match=message):
            Loader(source, **{"repeat": 3, **options})
