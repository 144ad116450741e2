"""Loaders over tables as they are: the values that pyarrow reads, each row once."""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import re
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fastio
from fastio import (
    DatasetNotFound,
    Loader,
    LoaderTimeout,
    OnBatch,
    SchemaError,
    ShardCorrupt,
    SourceChanged,
    StateMismatch,
)
from fastio.feed.row_groups.blocks import Block, BlockMemory
from fastio.feed.row_groups.run import TableRun
from fastio.sources.table.direct import TableDataset
from tests.children import in_fork, run_code
from tests.support import open_loader

ROWS = 5000
WIDE = 64  # numbers of a row of `wide`


def table_of(rows: int, seed: int = 0) -> pa.Table:
    """Columns of most types; `number` counts the rows, and `wide` makes them 256 bytes larger."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, rows)
    flat = rng.standard_normal(int(lengths.sum())).astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    wide = pa.array(rng.standard_normal(rows * WIDE).astype(np.float32))
    return pa.table(
        {
            "number": np.arange(rows),
            "a": rng.standard_normal(rows).astype(np.float32),
            "b": rng.standard_normal(rows).astype(np.float32),
            "c": rng.integers(-100, 100, rows).astype(np.int8),
            "flag": rng.integers(0, 2, rows).astype(bool),
            "wide": pa.FixedSizeListArray.from_arrays(wide, WIDE),
            "list": pa.ListArray.from_arrays(offsets.astype(np.int32), flat),
            "text": [f"row {i} é" for i in range(rows)],
            "bytes": pa.array([bytes([i % 256]) * (i % 4) for i in range(rows)], pa.binary()),
            "word": pa.array([f"w{i % 7}" for i in range(rows)]).dictionary_encode(),
        }
    )


@pytest.fixture(scope="module")
def whole() -> pa.Table:
    return table_of(ROWS)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory, whole: pa.Table) -> str:
    """Three files of several row groups; a pattern of them."""
    folder = tmp_path_factory.mktemp("tables")
    for number, (begin, end) in enumerate([(0, 2100), (2100, 2107), (2107, ROWS)]):
        part = whole.slice(begin, end - begin)
        pa.parquet.write_table(part, folder / f"{number}.parquet", row_group_size=400)
    return str(folder / "*.parquet")


def loader(path: Any, batch_size: int | None = 96, **options: Any) -> Loader:
    """With windows of about 1000 rows."""
    given: dict[str, Any] = {"num_workers": 2, "memory": "1MiB", "seed": 0} | options
    return open_loader(path, batch_size, **given)


def numbers(batches: Iterable[Any]) -> list[int]:
    """The rows of all batches, read off their column."""
    return [number for batch in batches for number in batch["number"].tolist()]


def check(batch: dict[str, Any], rows: Any, whole: pa.Table) -> None:
    """A batch has what pyarrow read in these rows."""
    wanted = whole.take(pa.array(rows))
    for name in ("number", "a", "b", "c", "flag"):
        assert np.array_equal(batch[name].numpy(), wanted[name].to_numpy())
    assert batch["wide"].tolist() == wanted["wide"].to_pylist()
    assert batch["text"] == wanted["text"].to_pylist()
    assert batch["bytes"] == wanted["bytes"].to_pylist()
    lists = [batch["list"][i, :n].tolist() for i, n in enumerate(batch["list_length"].tolist())]
    assert lists == wanted["list"].to_pylist()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_size", [1, 96, ROWS, 2 * ROWS])
def test_each_row_comes_once_with_the_values_that_pyarrow_reads(
    parquet: str, whole: pa.Table, shuffle: bool, batch_size: int
) -> None:
    seen: list[int] = []
    with loader(parquet, batch_size, shuffle=shuffle) as batches:
        for batch in batches:
            if batch_size > 1 or len(seen) < 300:
                check(batch, batches.batch.rows, whole)
            seen += batch["number"].tolist()
        assert len(batches) == -(-ROWS // batch_size)
    assert (seen == list(range(ROWS))) is not shuffle
    assert sorted(seen) == list(range(ROWS))


def test_rows_are_shuffled_over_windows_of_row_groups(parquet: str) -> None:
    """Every run of rows the size of a batch has rows of several row groups."""
    with loader(parquet, shuffle=True) as batches:
        groups = [len(set((batch["number"] // 400).tolist())) for batch in batches]
    assert np.mean(groups) > 2


def test_the_order_is_that_of_seed_and_epoch(parquet: str) -> None:
    def epochs(seed: int, threads: int) -> list[list[int]]:
        with loader(parquet, shuffle=True, seed=seed, num_workers=threads) as batches:
            return [numbers(batches) for _ in range(2)]

    first = epochs(1, 1)
    assert first == epochs(1, 3)
    assert first[0] != first[1]
    assert first != epochs(2, 1)


def test_the_order_is_pinned(parquet: str) -> None:
    """States are kept for months: a change of the order is a change of the format."""
    with loader(parquet, 8, shuffle=True, fields=["number"]) as batches:
        assert next(iter(batches))["number"].tolist() == PINNED


PINNED = [1492, 2291, 4803, 2431, 1363, 1843, 3611, 2984]


@pytest.mark.parametrize("kind", ["arrow", "feather", "stream", "csv", "jsonl"])
def test_other_kinds_of_files(tmp_path: Path, whole: pa.Table, kind: str) -> None:
    table = whole.select(["number", "a", "text"]).slice(0, 3000)
    path = tmp_path / f"t.{'arrow' if kind == 'stream' else kind}"
    if kind in ("arrow", "stream"):
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
    elif kind == "feather":
        pa.feather.write_feather(table, path, chunksize=500)
    elif kind == "csv":
        pa.csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    seen: dict[int, Any] = {}
    with loader(str(path), shuffle=True, dtypes={"a": "float32"}) as batches:
        for batch in batches:
            rows = zip(batch["number"].tolist(), batch["a"].tolist(), batch["text"], strict=True)
            seen |= {number: (number, a, text) for number, a, text in rows}
    for row in table.to_pylist():
        assert seen[row["number"]] == (row["number"], pytest.approx(row["a"]), row["text"])


def test_text_that_does_not_fit_in_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x\n" + "123456789\n" * 100_000)
    with pytest.raises(SchemaError, match=r"t\.csv needs more than.*pack"):
        loader(str(path))


# Fields


def test_groups_casts_nulls_and_selected_fields(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    a = pa.array([1.5, None, 3.0, 4.0], pa.float32())
    b = pa.array([1, 2, None, 4], pa.int32())
    pa.parquet.write_table(pa.table({"a": a, "b": b, "c": [1, 2, 3, 4]}), path)
    options: dict[str, Any] = {
        "groups": {"ab": ["a", "b"]},
        "nulls": {"b": "mask"},
        "dtypes": {"c": "float32"},
    }
    with loader(str(path), 4, **options) as batches:
        (batch,) = batches
    assert list(batch) == ["ab", "ab_valid", "c"]
    assert batch["ab"].dtype == torch.float64
    assert torch.equal(batch["ab"].nan_to_num(-1)[:, 0], torch.tensor([1.5, -1, 3, 4]).double())
    assert batch["ab"][:, 1].tolist() == [1, 2, 0, 4]
    assert batch["ab_valid"][:, 1].tolist() == [True, True, False, True]
    assert batch["c"].tolist() == [1, 2, 3, 4]
    assert batch["c"].dtype == torch.float32
    for chosen in (["c"], ["ab_valid"], ["c", "ab"]):
        with loader(str(path), 4, fields=chosen, **options) as batches:
            (batch,) = batches
        assert list(batch) == chosen
    with pytest.raises(SchemaError, match="no field 'd'"):
        loader(str(path), fields=["d"], **options)


def test_words_are_codes_of_the_vocabulary(parquet: str) -> None:
    with loader([parquet.replace("*", "0")], columns=["number", "word"]) as batches:
        words = batches.dataset.schema.vocabularies["word"]
        for batch in batches:
            found = [words[code] for code in batch["word"].tolist()]
            assert found == [f"w{number % 7}" for number in batch["number"].tolist()]


def test_files_whose_numbers_differ_in_width(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"x": pa.array([1, 2], pa.int16())}), tmp_path / "0.parquet")
    pa.parquet.write_table(pa.table({"x": pa.array([3, 1 << 40])}), tmp_path / "1.parquet")
    with loader(str(tmp_path), 4) as batches:
        (batch,) = batches
    assert batch["x"].tolist() == [1, 2, 3, 1 << 40]


NUMBERS = ["int8", "uint16", "int32", "int64", "float16", "float32", "float64", "bool"]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_columns_nulls_files_and_groups(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Against pyarrow's own reading, with its own filling of nulls."""
    folder = tmp_path_factory.mktemp("any")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dtypes = data.draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=20))
    parts = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=3))
    with_nulls = data.draw(st.booleans())
    for number, rows in enumerate(parts):
        columns = {}
        for place, dtype in enumerate(dtypes):
            mask = rng.random(rows) < 0.2 if with_nulls else None
            columns[f"x{place}"] = pa.array(rng.integers(0, 100, rows).astype(dtype), mask=mask)
        path = folder / f"{number}.parquet"
        size = data.draw(st.integers(1, 80))
        pa.parquet.write_table(pa.table(columns), path, row_group_size=size)
    whole = pa.concat_tables(
        [pa.parquet.read_table(folder / f"{number}.parquet") for number in range(len(parts))]
    )
    names = [f"x{place}" for place in range(len(dtypes))]
    alike = [name for name, dtype in zip(names, dtypes, strict=True) if dtype == dtypes[0]]
    found: dict[str, Any] = {name: {} for name in names}
    options = {"nulls": dict.fromkeys(names, 1), "groups": {"g": alike}}
    with loader(str(folder), data.draw(st.integers(1, 99)), shuffle=True, **options) as batches:
        for batch in batches:
            assert batches.batch.rows is not None
            rows = batches.batch.rows.tolist()
            for name in names:
                values = batch["g"][:, alike.index(name)] if name in alike else batch[name]
                found[name] |= dict(zip(rows, values.tolist(), strict=True))
    for name in names:
        wanted = [1 if value is None else value for value in whole[name].to_pylist()]
        assert [found[name][row] for row in range(len(whole))] == wanted


# Filters


@pytest.mark.parametrize("filters", [[("number", ">=", 1234)], pa.dataset.field("number") >= 1234])
def test_only_rows_that_pass_the_filter_come(parquet: str, filters: Any) -> None:
    with loader(parquet, shuffle=True, filters=filters, columns=["a", "number"]) as batches:
        seen = numbers(batches)
        assert len(batches.dataset) == ROWS - 1234
        first = batches._feed.dataset.groups[0]
    assert sorted(seen) == list(range(1234, ROWS))
    assert (first.number, first.rows) == (3, 1600 - 1234)


def test_a_filter_on_a_column_that_is_not_delivered(parquet: str, whole: pa.Table) -> None:
    filters = [[("c", "<", -50), ("flag", "==", True)], [("text", "==", "row 7 é")]]
    with loader(parquet, filters=filters, fields=["number", "text"]) as batches:
        seen = numbers(batches)
    c, flag = whole["c"].to_numpy(), whole["flag"].to_numpy()
    chosen = (c < -50) & flag
    chosen[7] = True
    assert seen == np.flatnonzero(chosen).tolist()


def test_a_filter_that_no_row_passes(parquet: str) -> None:
    with loader(parquet, filters=[("number", "<", 0)]) as batches:
        assert list(batches) == []
        assert len(batches) == 0
    with pytest.raises(ValueError, match="no row to shuffle"):
        loader(parquet, shuffle=True, filters=[("number", "<", 0)])


def test_a_filter_on_a_column_that_is_not_there(parquet: str) -> None:
    with pytest.raises(SchemaError, match="filters="):
        loader(parquet, filters=[("nothing", "<", 0)])


# Ranks and states


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [96, 833])
def test_ranks_share_an_epoch(
    parquet: str, world_size: int, drop_last: bool, batch_size: int
) -> None:
    seen: list[int] = []
    steps = set()
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "drop_last": drop_last}
        with loader(parquet, batch_size, shuffle=True, fields=["number"], **options) as batches:
            made = 0
            for batch in batches:
                seen += batch["number"][: batches.batch.valid].tolist()
                made += 1
            assert made == len(batches)
            steps.add(made)
    assert len(steps) == 1
    assert len(set(seen)) == len(seen)
    if drop_last:
        assert len(seen) == steps.pop() * batch_size * world_size
    else:
        assert sorted(seen) == list(range(ROWS))


def test_more_ranks_than_rows(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"x": [1, 2]}), tmp_path / "t.parquet")
    found = []
    for rank in range(5):
        with loader(str(tmp_path), 4, rank=rank, world_size=5, shuffle=True) as batches:
            (batch,) = batches
            assert len(batch["x"]) == 1
            found += batch["x"][: batches.batch.valid].tolist()
    assert sorted(found) == [1, 2]


@pytest.mark.parametrize("done", [0, 1, 13, 52])
def test_a_state_goes_on_where_it_was_taken(parquet: str, done: int) -> None:
    with loader(parquet, shuffle=True, fields=["number"]) as batches:
        wanted = numbers(batches) + numbers(batches)
    with loader(parquet, shuffle=True, fields=["number"]) as batches:
        iterator = iter(batches)
        for _ in range(done):
            next(iterator)
        state = json.loads(json.dumps(batches.state_dict()))
    with loader(parquet, shuffle=True, fields=["number"]) as batches:
        batches.load_state_dict(state)
        assert numbers(batches) + numbers(batches) == wanted[done * 96 :]


def test_a_state_of_one_rank_of_two_goes_on(parquet: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "rank": 1, "world_size": 2, "fields": ["number"]}
    with loader(parquet, **options) as batches:
        wanted = [batch["number"].tolist() for batch in batches]
        iterator = iter(batches)
        batches.set_epoch(0)
        iterator = iter(batches)
        next(iterator)
        state = batches.state_dict()
    with loader(parquet, **options) as batches:
        batches.load_state_dict(state)
        assert [batch["number"].tolist() for batch in batches] == wanted[1:]


def test_a_state_of_another_cut_is_refused(parquet: str) -> None:
    with loader(parquet, shuffle=True) as batches:
        state = batches.state_dict()
    for other in ({"memory": "2MiB"}, {"fields": ["number"]}, {"rank": 0, "world_size": 2}):
        with (
            loader(parquet, shuffle=True, **other) as batches,
            pytest.raises(StateMismatch, match=r"divided differently.*pack"),
        ):
            batches.load_state_dict(state)
    with loader(parquet, shuffle=True, memory=None) as batches:
        batches.load_state_dict(state)
        assert batches.state_dict()["order"] == state["order"]


# Memory


def test_a_row_group_that_memory_cannot_hold_is_refused(tmp_path: Path, whole: pa.Table) -> None:
    pa.parquet.write_table(whole, tmp_path / "t.parquet")
    with pytest.raises(SchemaError, match=r"row group 0.*use memory='3MiB'"):
        loader(str(tmp_path), shuffle=True)
    with loader(str(tmp_path), shuffle=True, memory="3MiB") as batches:
        assert sum(len(batch["number"]) for batch in batches) == ROWS


def test_blocks_that_cannot_be_allocated_are_an_error_of_their_batch(
    parquet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    with loader(parquet, shuffle=False, timeout=60) as batches:
        monkeypatch.setattr("fastio.feed.row_groups.blocks.huge_pages", refused)
        with pytest.raises(SchemaError, match=r"row group 0: no memory for [\d,]+ bytes"):
            next(iter(batches))


def test_an_error_between_two_tasks_is_the_consumers(
    parquet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the silent end of a thread, for which the consumer would wait."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("no windows")

    with loader(parquet, shuffle=True, timeout=60) as batches:
        monkeypatch.setattr("fastio.feed.row_groups.run.RaggedRuns", broken)
        with pytest.raises(RuntimeError, match="no windows"):
            next(iter(batches))


def test_kept_batches_are_not_overwritten(parquet: str, whole: pa.Table) -> None:
    """Nor does a consumer that keeps all of them wait for ever."""
    with loader(parquet, shuffle=True, timeout=60) as batches:
        kept = [(batches.batch.rows, batch) for _ in range(2) for batch in batches]
    gc.collect()
    for rows, batch in kept:
        check(batch, rows, whole)


def test_blocks_stay_within_their_number(parquet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    open_window = TableRun._open_window

    def watched(self: TableRun) -> Any:
        nonlocal most
        opened = open_window(self)
        most = max(most, self._held_blocks())
        assert self._held_blocks() <= self._settings.blocks
        return opened

    monkeypatch.setattr(TableRun, "_open_window", watched)
    with loader(parquet, shuffle=True) as batches:
        assert sum(len(batch["number"]) for batch in batches) == ROWS
    assert most


@pytest.mark.parametrize("shuffle", [True, False])
def test_variable_width_values_count_as_memory_of_windows_and_chunks(
    tmp_path: Path, shuffle: bool
) -> None:
    rows, width = 8000, 1024
    table = pa.table({"text": [f"{row:0{width}}" for row in range(rows)]})
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(table, path, row_group_size=100, use_dictionary=False)
    source = fastio.open(str(path), memory="1MiB")
    with Loader(source, 16, shuffle=shuffle, seed=0, num_workers=2) as batches:
        iterator = iter(batches)
        (made,) = batches._feed._runs  # type: ignore[attr-defined]
        run, opened = made._source, []
        while (window := run._open_window()) is not None:
            opened.append(window.window.rows)
        assert len(opened) > 1
        assert sum(opened) * width <= 1 << 20
        assert run._settings.chunk_rows * width <= 1 << 20
        assert sum(len(batch["text"]) for batch in iterator) == rows


# Errors and ends


def damage(path: Path, group: int) -> None:
    """Overwrites the data of a row group's first column."""
    column = pa.parquet.ParquetFile(path).metadata.row_group(group).column(0)
    offset = column.dictionary_page_offset or column.data_page_offset
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 64)


def damaged_table(folder: Path) -> str:
    """Writes a file of eight row groups, whose seventh is damaged, and returns its path."""
    path = folder / "t.parquet"
    pa.parquet.write_table(table_of(4000), path, row_group_size=500)
    damage(path, 6)
    return str(path)


def test_a_damaged_row_group_is_named_when_its_batch_is_due(tmp_path: Path) -> None:
    with loader(damaged_table(tmp_path), 500) as batches:
        iterator = iter(batches)
        seen = [next(iterator)["number"][0].item() for _ in range(3)]
        assert seen == [0, 500, 1000]
        with pytest.raises(ShardCorrupt, match=r"t\.parquet, row group 6"):
            list(iterator)
        with pytest.raises(ShardCorrupt, match=r"t\.parquet, row group 6"):
            next(iterator)


@pytest.mark.parametrize("options", [{}, {"memory": "16MiB"}, {"num_workers": 1}])
@pytest.mark.parametrize("batch_size", [70, 96, 500, 3000])
def test_all_batches_before_a_damaged_row_group_come_first(
    tmp_path: Path, batch_size: int, options: dict[str, Any]
) -> None:
    path = damaged_table(tmp_path)
    whole = table_of(4000)
    for start in (0, 1):
        with loader(path, batch_size, shuffle=False, **options) as batches:
            if start:
                batches.load_state_dict({**batches.state_dict(), "position": batch_size})
            found: list[Any] = []
            with pytest.raises(ShardCorrupt, match="row group 6"):
                found.extend(batches)
            for batch in found:
                check(batch, batch["number"].numpy(), whole)
        assert numbers(found) == [*range(start * batch_size, 3000 // batch_size * batch_size)]


def test_row_groups_before_the_position_are_not_read(tmp_path: Path) -> None:
    path = damaged_table(tmp_path)
    with loader(path, 250, shuffle=False, memory="16MiB") as batches:
        batches.load_state_dict({**batches.state_dict(), "position": 3500})
        assert numbers(batches) == [*range(3500, 4000)]


def test_a_damaged_row_group_ends_a_shuffled_epoch_at_the_same_batch(tmp_path: Path) -> None:
    path = damaged_table(tmp_path)
    runs = []
    for threads in (1, 2, 2, 3):
        with loader(path, 70, shuffle=True, num_workers=threads) as batches:
            found: list[Any] = []
            with pytest.raises(ShardCorrupt, match="row group 6"):
                found.extend(batches)
        runs.append(numbers(found))
    assert runs == [runs[0]] * 4
    assert len(runs[0]) // 70 in (1000 // 70, 2000 // 70, 3000 // 70)


@pytest.mark.parametrize("shuffle", [False, True])
def test_of_two_damaged_row_groups_the_first_in_the_order_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    path = damaged_table(tmp_path)
    damage(Path(path), 5)
    # One window has all row groups, and two threads decode.
    options: dict[str, Any] = {"shuffle": shuffle, "memory": "64MiB"}

    def named(threads: int) -> str:
        with (
            loader(path, 4000, **options, num_workers=threads) as batches,
            pytest.raises(ShardCorrupt) as caught,
        ):
            list(batches)
        return re.findall(r"row group (\d)", str(caught.value))[0]

    first, other_failed = named(1), threading.Event()
    runs: list[TableRun] = []
    ready: list[bool] = []
    read, fail = TableDataset.read, TableRun._fail

    def read_late(table: TableDataset, group: Any, *args: Any) -> Any:
        if str(group.number) == first:
            assert other_failed.wait(60.0)
            ready.append(runs[0].ready())
        return read(table, group, *args)

    def note(run: TableRun, *args: Any) -> None:
        fail(run, *args)
        runs.append(run)
        other_failed.set()

    monkeypatch.setattr(TableDataset, "read", read_late)
    monkeypatch.setattr(TableRun, "_fail", note)
    assert named(2) == first
    assert ready == [False]


def test_a_damaged_row_group_takes_no_memory_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent: list[int] = []
    ever: list[int] = []
    take, give = BlockMemory.take, BlockMemory.give

    def taken(self: BlockMemory, count: int, where: str) -> list[Block]:
        blocks = take(self, count, where)
        lent.extend(map(id, blocks))
        ever.extend(map(id, blocks))
        return blocks

    def given(self: BlockMemory, block: Block) -> None:
        lent.remove(id(block))
        give(self, block)

    monkeypatch.setattr(BlockMemory, "take", taken)
    monkeypatch.setattr(BlockMemory, "give", given)
    with loader(damaged_table(tmp_path), 500) as batches:
        iterator = iter(batches)
        with pytest.raises(ShardCorrupt, match="row group 6"):
            list(iterator)
        assert ever
        assert lent == []


def test_memory_that_a_hanging_thread_writes_to_is_not_lent_again(
    parquet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Block] = []
    go_on = threading.Event()
    read = TableDataset.read

    def hang(*arguments: Any, **options: Any) -> Any:
        assert go_on.wait(60.0)
        return read(*arguments, **options)

    monkeypatch.setattr(TableDataset, "read", hang)
    monkeypatch.setattr(BlockMemory, "give", lambda _, block: given.append(block))
    with loader(parquet, 100, timeout=0.2) as batches:
        iterator = iter(batches)
        with pytest.raises(LoaderTimeout):
            next(iterator)
        (made,) = batches._feed._runs  # type: ignore[attr-defined]
        run, threads = made._source, list(made._source._threads)
        run.close(0.1)
        run.close(0.1)
        assert given == []
        go_on.set()
        for thread in threads:
            thread.join(60.0)
        assert given == []


def test_a_value_that_does_not_fit_is_named(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"x": [1, 2, 300]}), tmp_path / "t.parquet")
    with (
        loader(str(tmp_path), dtypes={"x": "int8"}) as batches,
        pytest.raises(SchemaError, match="column 'x', row 2: 300 does not fit int8"),
    ):
        next(iter(batches))


def test_a_null_where_none_is_expected_is_named(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"x": [1, None, 3]}), tmp_path / "t.parquet")
    with (
        loader(str(tmp_path)) as batches,
        pytest.raises(SchemaError, match=r"t\.parquet: column 'x' has 1 null"),
    ):
        next(iter(batches))


def test_a_file_that_changes_under_a_loader_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    pa.feather.write_feather(pa.table({"x": np.arange(10)}), path, compression="uncompressed")
    with loader(str(path)) as batches:
        path.unlink()
        pa.feather.write_feather(pa.table({"x": np.arange(7)}), path, compression="uncompressed")
        with pytest.raises(SourceChanged, match="replaced"):
            next(iter(batches))


def table_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("fastio-table")]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_dropped_loader_leaves_nothing(tmp_path: Path, damaged: bool) -> None:
    path = damaged_table(tmp_path)
    if damaged:
        damage(Path(path), 0)

    def use() -> weakref.ref[Loader]:
        batches = loader(path, 100)
        with contextlib.suppress(ShardCorrupt):
            next(iter(batches))
        return weakref.ref(batches)

    dropped = use()
    gc.collect()
    assert dropped() is None
    assert not table_threads()


def test_close_and_dropping_an_iterator_end_the_threads(parquet: str) -> None:
    batches = loader(parquet, shuffle=True)
    iterator = iter(batches)
    assert not table_threads()
    next(iterator)
    assert table_threads()
    del iterator
    gc.collect()
    assert not table_threads()
    next(iter(batches))
    batches.close()
    batches.close()
    assert not table_threads()


def test_an_error_ends_the_threads_although_its_traceback_keeps_the_iterator(
    tmp_path: Path,
) -> None:
    with loader(damaged_table(tmp_path), 500) as batches:
        iterator = iter(batches)
        with pytest.raises(ShardCorrupt, match="row group 6"):
            list(iterator)
        assert not table_threads()
        with pytest.raises(ShardCorrupt, match="row group 6"):
            next(iterator)


def test_a_slow_batch_times_out_and_comes_later(
    parquet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    decode = TableRun._decode

    def slow(self: TableRun, *arguments: Any) -> None:
        gate.wait(30)
        decode(self, *arguments)

    monkeypatch.setattr(TableRun, "_decode", slow)
    with loader(parquet, timeout=0.05) as batches:
        iterator = iter(batches)
        with pytest.raises(LoaderTimeout):
            next(iterator)
        gate.set()
        batch = None
        while batch is None:
            with contextlib.suppress(LoaderTimeout):
                batch = next(iterator)
    assert batch["number"][0] == 0


def test_a_loader_can_be_pickled_and_used_after_a_fork(parquet: str) -> None:
    with loader(parquet, shuffle=True, fields=["number"]) as batches:
        wanted = [batch["number"].tolist() for batch in batches]
        with pickle.loads(pickle.dumps(batches)) as copy:
            copy.set_epoch(0)
            assert [batch["number"].tolist() for batch in copy] == wanted
        batches.set_epoch(0)
        next(iter(batches))

        def work() -> bool:
            batches.set_epoch(0)
            return [batch["number"].tolist() for batch in batches] == wanted

        assert in_fork(work) == 0


def test_the_interpreter_may_end_in_the_middle_of_an_epoch(parquet: str) -> None:
    program = (
        "import sys, fastio\n"
        "source = fastio.open(sys.argv[1], memory='1MiB')\n"
        "batches = fastio.Loader(source, 8, shuffle=True)\n"
        "iterator = iter(batches)\n"
        "print(len(next(iterator)['number']))\n"
    )
    done = run_code(program, parquet, whole_exit=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", "")


# What else a loader does


def test_transforms_collate_fn_and_single_samples(parquet: str) -> None:
    def double(values: Any) -> Any:
        return values * 2

    with loader(parquet, 3, fields=["number"], transforms={"number": OnBatch(double)}) as batches:
        assert next(iter(batches))["number"].tolist() == [0, 2, 4]
    with loader(parquet, 3, fields=["number", "text"], collate_fn=list) as batches:
        samples = next(iter(batches))
        assert [(int(s["number"]), s["text"]) for s in samples][2] == (2, "row 2 é")
    with loader(parquet, None, fields=["number", "text"]) as batches:
        sample = next(iter(batches))
        assert (int(sample["number"]), sample["text"]) == (0, "row 0 é")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": [1, 2]}, "a sampler cannot be used"),
        ({"order": "shuffle"}, "order='shuffle' cannot be used"),
        ({"on_error": "skip"}, "row groups"),
        ({"memory": "1KiB"}, "at least 1 MiB"),
        ({"columns": "number"}, "list of names"),
        ({"cache": "there"}, "cache is an option for a packed dataset, data of the datasets"),
    ],
)
def test_what_tables_cannot_do_is_said(parquet: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader(parquet, **options)


def test_options_of_tables_need_tables(parquet: str) -> None:
    with pytest.raises(TypeError, match=r"columns is an option of fastio.open: .*fastio\.open\("):
        Loader(parquet, columns=["number"])  # type: ignore[call-arg]
    with pytest.raises(DatasetNotFound, match=r"neither one of tars nor one of table files"):
        open_loader(list(range(5)), columns=["x"])
    with pytest.raises(
        ValueError, match="cache is an option for a packed dataset, data of the datasets"
    ):
        Loader("https://example.org/t.parquet", cache="there")
