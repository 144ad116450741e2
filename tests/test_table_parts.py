"""Some rows of table files, and table files among other datasets: as DataLoader has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import csv, feather, parquet
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import fastio
from fastio import StateMismatch
from fastio.runtime import memory

ROWS, GROUP = 60, 7
PICKED = [59, 3, *range(30, 10, -1), 3, -2]


def table(first: int = 0) -> pa.Table:
    numbers = list(range(first, first + ROWS))
    return pa.table(
        {"x": numbers, "y": [x / 2 for x in numbers], "t": [f"row {x}" for x in numbers]}
    )


@pytest.fixture(params=["parquet", "arrow", "csv", "saved"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / f"rows.{request.param}"
    if request.param == "parquet":
        parquet.write_table(table(), path, row_group_size=GROUP)
    elif request.param == "arrow":
        feather.write_feather(table(), path, "uncompressed", chunksize=GROUP)
    elif request.param == "csv":
        csv.write_csv(table(), path)
    else:
        datasets = pytest.importorskip("datasets")
        datasets.Dataset(table()).save_to_disk(path)
    with fastio.open(path) as dataset:
        yield dataset


def plain(batches: Any) -> list[Any]:
    return [(b["x"].tolist(), b["y"].tolist(), b["y"].dtype, b["t"]) for b in batches]


def xs(batches: Any) -> list[int]:
    return [x for batch in batches for x in batch["x"].tolist()]


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"sampler": [5, 0, 0]}], ids=str)
def test_batches_of_a_subset_are_dataloader_s(opened: Any, options: Any) -> None:
    subset = Subset(opened, PICKED)
    with fastio.Loader(subset, 4, **options) as loader:
        assert loader.path == "native"
        assert plain(loader) == plain(DataLoader(subset, 4, **options))


def test_a_generator_draws_dataloader_s_order(opened: Any) -> None:
    subset = Subset(opened, PICKED)
    theirs = DataLoader(subset, 4, True, generator=torch.Generator().manual_seed(1))
    with fastio.Loader(subset, 4, True, generator=torch.Generator().manual_seed(1)) as loader:
        assert [plain(loader), plain(loader)] == [plain(theirs), plain(theirs)]


def test_collate_fn_gets_the_rows_of_a_subset(opened: Any) -> None:
    subset = Subset(opened, PICKED)
    how: dict[str, Any] = {"collate_fn": lambda found: [(s["x"], s["y"], s["t"]) for s in found]}
    with fastio.Loader(subset, 4, **how) as loader:
        assert list(loader) == list(DataLoader(subset, 4, **how))


def test_halves_of_a_table_have_every_row_once(opened: Any) -> None:
    halves = random_split(opened, [0.5, 0.5], torch.Generator().manual_seed(0))
    found: list[int] = []
    for half in halves:
        with fastio.Loader(half, 4, True, seed=0) as loader:
            told, first = list(loader.sampler), xs(loader)
            assert first == [half.indices[place] for place in told]
            assert xs(loader) != first
            found += first
    assert sorted(found) == list(range(ROWS))


def test_a_shuffled_subset_reads_each_row_group_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = pa.table({"x": range(8), "v": [[float(x)] * 100_000 for x in range(8)]})
    parquet.write_table(wide, tmp_path / "wide.parquet", row_group_size=1)
    reads = []
    from fastio.sources.table.direct import TableDataset

    read = TableDataset.read
    monkeypatch.setattr(
        TableDataset,
        "read",
        lambda self, group, *how: reads.append(group.number) or read(self, group, *how),
    )
    with fastio.open(tmp_path / "wide.parquet", memory="2MiB") as dataset:
        subset = Subset(dataset, [7, 1, 4, 2, 0])
        with fastio.Loader(subset, 2, True, seed=0) as loader:
            found = [(x, v) for b in loader for x, v in zip(b["x"].tolist(), b["v"], strict=True)]
    assert sorted(x for x, _ in found) == sorted(subset.indices)
    assert all(v.shape == (100_000,) and bool((v == x).all()) for x, v in found)
    assert sorted(reads) == sorted(subset.indices)


def test_an_epoch_of_a_subset_goes_on_with_other_memory(opened: Any) -> None:
    subset = Subset(opened, PICKED)
    with fastio.Loader(subset, 4, True, seed=3) as loader:
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), xs(batches)
    with fastio.Loader(subset, 4, True) as loader:
        loader.load_state_dict(state)
        assert xs(loader) == rest
    with fastio.Loader(Subset(opened, [1]), 4, True) as loader, pytest.raises(StateMismatch):
        loader.load_state_dict(state)


def test_tables_of_several_kinds_are_joined(opened: Any, tmp_path: Path) -> None:
    parquet.write_table(table(100), tmp_path / "more.parquet", row_group_size=GROUP)
    fastio.pack(table(200).to_pylist(), tmp_path / "packed")
    with fastio.open(tmp_path / "more.parquet") as more, fastio.open(tmp_path / "packed") as packed:
        for joined in (
            ConcatDataset([opened, more]),
            ConcatDataset([opened, packed, Subset(more, [5, 1])]),
            Subset(ConcatDataset([more, opened]), [119, 3, 60]),
        ):
            with fastio.Loader(joined, 7) as loader:
                assert loader.path == "native"
                assert plain(loader) == plain(DataLoader(joined, 7))
            with fastio.Loader(joined, 7, True, seed=0) as loader:
                told, found = list(loader.sampler), xs(loader)
                assert found == [joined[row]["x"] for row in told]
                assert sorted(told) == list(range(len(joined)))


def test_ranks_have_one_order_however_much_memory_is_free_when_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, path = 400_000, tmp_path / "t.parquet"  # several times as much as the least memory
    parquet.write_table(pa.table({"x": range(count)}), path, row_group_size=10_000)
    seen: list[int] = []
    states = []
    for rank, free in enumerate((1 << 40, 1 << 24)):
        told = SimpleNamespace(read_text=lambda free=free: f"MemAvailable: {free >> 10} kB")
        monkeypatch.setattr(memory, "_MEMINFO", told)
        how: dict[str, Any] = {"shuffle": True, "seed": 0, "rank": rank, "world_size": 2}
        part = Subset(fastio.open(path), range(count))
        with fastio.Loader(part, 5000, **how) as loader:
            for batch in loader:
                seen += batch["x"].tolist()[: loader.batch.valid]
        with fastio.Loader(path, 5000, **how) as loader:
            states.append(loader.state_dict()["order"])
    assert sorted(seen) == list(range(count))
    assert states[0] == states[1]
