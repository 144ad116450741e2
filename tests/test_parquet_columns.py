"""Columns of Parquet files that are decoded natively are what pyarrow reads; damage is told."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pa_parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio import ShardCorrupt, SourceChanged, _native
from fastio.packed.ipc import number_dtype
from fastio.runtime.memory import ReusedMemory
from fastio.sources.table import parquet
from fastio.sources.table.arrow import ArrowTable
from fastio.sources.table.parquet import ColumnReader, ParquetTable, flat_columns
from fastio.sources.table.reading import AtHand, Handles
from tests.children import in_fork

TYPES = [
    pa.int32(),
    pa.int64(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.date32(),
]


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pa_parquet.write_table(table, sink, **options)
    return sink.getvalue()


class Native:
    """A file in memory as this package reads it, and which columns pyarrow was asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.file = pa_parquet.ParquetFile(pa.BufferReader(data))
        self.reader = ColumnReader("a.parquet", self.file.metadata, self.file.schema_arrow)
        self.asked: list[str] = []

    def read(
        self,
        group: int,
        columns: list[str],
        threads: bool = False,
        handles: Handles | None = None,
    ) -> pa.Table:
        def others(names: list[str]) -> pa.Table:
            self.asked += names
            return self.file.read_row_group(group, columns=names, use_threads=False)

        def data(offset: int, length: int) -> np.ndarray:
            return self.data[offset : offset + length]

        handles = Handles() if handles is None else handles
        return self.reader.read(group, columns, data, others, handles, threads)


def same(got: pa.Table, expected: pa.Table) -> None:
    """Equal tables: values bit for bit, so that NaNs count too."""
    got.validate(full=True)
    assert got.schema.equals(expected.schema, check_metadata=True)
    assert got.num_rows == expected.num_rows
    for name in expected.column_names:
        a, b = got.column(name).combine_chunks(), expected.column(name).combine_chunks()
        assert a.null_count == b.null_count
        if pa.types.is_floating(a.type):
            bits = pa.int32() if a.type == pa.float32() else pa.int64()
            a, b = a.view(bits), b.view(bits)
        assert a.equals(b)


def values(rng: np.random.Generator, kind: pa.DataType, rows: int, distinct: int) -> np.ndarray:
    """Random bits of a type, of which `distinct` differ."""
    dtype = np.dtype(np.int32) if kind == pa.date32() else number_dtype(kind)
    some = rng.integers(0, 256, distinct * dtype.itemsize, np.uint8).view(dtype)
    picked: np.ndarray = some[rng.integers(0, distinct, rows) // rng.integers(1, 4)]
    return picked


def column(
    rng: np.random.Generator, kind: pa.DataType, rows: int, distinct: int, nulls: float
) -> pa.Array:
    array = pa.array(values(rng, kind, rows, distinct))
    if kind == pa.date32():
        array = array.cast(kind)
    # Runs of nulls and single ones.
    null = (
        np.repeat(rng.random(rows // 9 + 1), 9)[:rows] if rng.random() < 0.5 else rng.random(rows)
    )
    validity = pa.py_buffer(np.packbits(null >= nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [validity, array.buffers()[1]])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([0, 1, 7, 8, 65, 1000, 5000]),
    group=st.sampled_from([1000, 3001, 100_000]),
    nulls=st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.1]),
    distinct=st.sampled_from([1, 2, 100, 5000]),
    compression=st.sampled_from(["none", "snappy", "zstd", "gzip"]),
    dictionary=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([64, 1000, 1 << 20]),
    dictionary_page=st.sampled_from([100, 1 << 20]),
)
def test_columns_are_what_pyarrow_reads(
    seed: int,
    rows: int,
    group: int,
    nulls: float,
    distinct: int,
    compression: str,
    dictionary: bool,
    version: str,
    page: int,
    dictionary_page: int,
) -> None:
    rng = np.random.default_rng(seed)
    arrays = {f"c{i}": column(rng, kind, rows, distinct, nulls) for i, kind in enumerate(TYPES)}
    fields = [pa.field(name, array.type, array.null_count > 0) for name, array in arrays.items()]
    data = written(
        pa.table(list(arrays.values()), schema=pa.schema(fields)),
        row_group_size=group,
        compression=compression,
        use_dictionary=dictionary,
        data_page_version=version,
        data_page_size=page,
        dictionary_pagesize_limit=dictionary_page,
        write_batch_size=64,
    )
    native = Native(data)
    columns = [str(name) for name in rng.permutation(list(arrays))[: rng.integers(1, 8)]]
    for number in range(native.file.num_row_groups):
        expected = native.file.read_row_group(number, columns=columns)
        same(native.read(number, columns), expected.select(columns))
    if rows and compression in ("none", "snappy"):
        assert native.asked == []


def test_other_types_are_left_to_pyarrow() -> None:
    numbers = pa.array(range(100), pa.int32())
    others: dict[str, pa.Array] = {
        str(kind): numbers.cast(kind)
        for kind in (pa.int8(), pa.uint16(), pa.bool_(), pa.time32("s"), pa.string())
    }
    others["timestamp"] = pa.array(range(100)).cast(pa.timestamp("us"))
    others["dictionary"] = pa.array(["x", "y"] * 50).dictionary_encode()
    others["list"] = pa.array([[n] for n in range(100)])
    others["struct"] = pa.array([{"x0": n} for n in range(100)])
    table = pa.table({"x0": numbers, **others, "x1": numbers})
    table = table.replace_schema_metadata({"some": "thing"})
    native = Native(written(table))
    assert set(flat_columns(native.file.metadata, native.file.schema_arrow)) == {"x0", "x1"}
    columns = table.column_names[::-1]
    same(native.read(0, columns), native.file.read_row_group(0).select(columns))
    assert "x0" not in native.asked


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("encoding", ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
def test_other_encodings_are_left_to_pyarrow(
    monkeypatch: pytest.MonkeyPatch, encoding: str, is_told: bool
) -> None:
    """Whether the footer tells of them, or only the pages do."""
    if not is_told:
        known = parquet._ENCODINGS | {encoding}
        monkeypatch.setattr(parquet, "_ENCODINGS", known)
    table = pa.table({"a": pa.array(range(1000), pa.int32()), "b": pa.array(range(1000))})
    native = Native(written(table, use_dictionary=False, column_encoding={"a": encoding}))
    same(native.read(0, ["a", "b"]), table)
    assert native.asked == ["a"]


def test_files_whose_columns_are_longer_than_they_say_are_left_to_pyarrow() -> None:
    file = Native(written(pa.table({"a": [1]}))).file

    class Old:
        created_by = "parquet-mr version 1.2.8 (build 1)"

    assert flat_columns(file.metadata, file.schema_arrow)
    assert not flat_columns(Old(), file.schema_arrow)  # type: ignore[arg-type]


def test_several_threads_decode_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "available_cores", lambda: 4)
    table = pa.table({f"c{i}": np.arange(5000) * i for i in range(20)})
    same(Native(written(table)).read(0, table.column_names, threads=True), table)


def chunk_of(native: Native) -> range:
    about = native.file.metadata.row_group(0).column(0)
    begin = about.dictionary_page_offset or about.data_page_offset
    return range(begin, begin + about.total_compressed_size)


def outcome(read: Callable[[], pa.Table]) -> pa.Table | str:
    """A table, or why there is none."""
    try:
        return read()
    except (ShardCorrupt, pa.ArrowException, OSError) as error:
        return str(error)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_any_damaged_byte_is_told_or_means_what_pyarrow_reads(
    version: str, compression: str, dictionary: bool
) -> None:
    table = pa.table({"a": pa.array([None if n % 7 == 3 else n % 20 for n in range(60)])})
    sound = written(
        table, compression=compression, data_page_version=version, use_dictionary=dictionary
    )
    refused = 0
    for at in chunk_of(Native(sound)):
        for change in (0x01, 0x08, 0x80, 0xFF):
            data = bytearray(sound)
            data[at] ^= change
            native = Native(bytes(data))
            found = outcome(lambda native=native: native.read(0, ["a"]))
            if isinstance(found, str):
                refused += found.startswith("a.parquet, row group 0, column 'a': page ")
                assert found.startswith("a.parquet") or native.asked  # or it is pyarrow's message
                continue
            found.validate(full=True)
            expected = outcome(lambda native=native: native.file.read_row_group(0))
            # pyarrow may refuse what says nothing about values.
            assert isinstance(expected, str) or found.equals(expected)
    assert refused > 100


def test_a_column_that_is_cut_off_is_told() -> None:
    native = Native(written(pa.table({"a": list(range(1000))})))
    whole, pages = native.data, chunk_of(native)
    for end in range(pages.start, pages.stop, 37):
        native.data = whole[:end]
        with pytest.raises(ShardCorrupt, match="column 'a'"):
            native.read(0, ["a"])


def test_rows_that_are_not_there_are_told() -> None:
    native = Native(written(pa.table({"a": list(range(10))})))
    decoder = _native.ColumnDecoder()
    pages = native.data[chunk_of(native).start : chunk_of(native).stop]
    for rows, error in ((9, "more values than there are rows"), (11, "fewer rows")):
        bits = np.empty(-(-rows // 8), np.uint8)
        with pytest.raises(ValueError, match=error):
            decoder.decode(pages, rows, 8, True, True, np.empty(rows * 8, np.uint8), bits)


@pytest.mark.parametrize(
    ("rows", "width", "values", "validity"),
    [(10, 3, 30, 2), (10, 4, 39, 2), (10, 4, 40, 1), (1 << 60, 8, 0, 0), (10, 4, 40, 0)],
)
def test_arrays_of_other_sizes_are_refused(
    rows: int, width: int, values: int, validity: int
) -> None:
    arrays = [np.empty(values, np.uint8), np.empty(validity, np.uint8)]
    with pytest.raises(ValueError, match=r"width|rows|entries"):
        _native.ColumnDecoder().decode(np.empty(9, np.uint8), rows, width, True, True, *arrays)


def test_memory_is_lent_again_when_nothing_refers_to_it() -> None:
    memory = ReusedMemory(100)
    first = memory.take(100)
    address = first.ctypes.data
    part = pa.py_buffer(first[10:20])
    del first
    assert memory.take(50).ctypes.data != address
    del part
    assert memory.take(50).ctypes.data == address
    large = memory.take(101)
    assert len(large) == 101
    assert memory.take(10).ctypes.data == address


def test_columns_that_are_kept_are_not_overwritten() -> None:
    table = pa.table({"a": np.arange(300, dtype=np.int32), "b": np.arange(300, dtype=np.float64)})
    native, handles = Native(written(table, row_group_size=100)), Handles()
    kept = [native.read(group, ["b", "a"], handles=handles) for group in range(3)]
    assert native.asked == []
    assert pa.concat_tables(kept).equals(table.select(["b", "a"]))


def test_threads_get_the_handles_of_threads_that_ended() -> None:
    at_hand = AtHand(0)

    def in_threads(count: int) -> set[int]:
        found: list[Handles] = []
        together = threading.Barrier(count)

        def look() -> None:
            found.append(at_hand.handles)
            together.wait()

        threads = [threading.Thread(target=look) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen.extend(found)  # none is freed, so that no other has its id
        return {id(handles) for handles in found}

    seen: list[Handles] = []
    (one,) = in_threads(1)
    two = in_threads(2)
    assert len(two) == 2
    assert one in two
    assert in_threads(2) == two
    assert id(pickle.loads(pickle.dumps(at_hand)).handles) not in two
    at_hand.close()
    assert in_threads(2).isdisjoint(two)


def test_a_forked_child_does_not_get_the_handles_of_a_thread_that_it_does_not_have() -> None:
    at_hand = AtHand(0)
    found: list[Handles] = []
    holds, forked = threading.Event(), threading.Event()

    def hold() -> None:
        found.append(at_hand.handles)
        holds.set()
        forked.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(60.0)
    try:
        assert in_fork(lambda: at_hand.handles is not found[0]) == 0
    finally:
        forked.set()
        thread.join()
    assert at_hand.handles is found[0]


@pytest.mark.parametrize("kind", [ParquetTable, ArrowTable])
def test_another_file_that_was_in_the_place_of_a_file_is_not_kept_open(
    tmp_path: Path, kind: type[ParquetTable | ArrowTable]
) -> None:
    path, aside, other = tmp_path / "a", tmp_path / "aside", tmp_path / "other"
    for each, first in ((path, 0), (other, 1000)):
        table = pa.table({"a": np.arange(first, first + 100)})
        if kind is ParquetTable:
            # Pages of the same sizes.
            pa_parquet.write_table(table, each, compression="none", use_dictionary=False)
        else:
            pa.feather.write_feather(table, each, compression="uncompressed")
    opened, at_hand = kind(str(path)), AtHand(0)

    def read() -> list[int]:
        batches = opened.read(0, ["a"], None, False, at_hand)
        found: list[int] = pa.Table.from_batches(batches)["a"].to_pylist()
        return found

    path.rename(aside)
    other.rename(path)
    with pytest.raises(SourceChanged):
        read()
    aside.rename(path)
    assert read() == list(range(100))


def test_local_files_are_read_so(tmp_path: Path) -> None:
    """And a damaged one names itself, its row group and its column."""
    table = pa.table({"a": pa.array([1.5, None, 3.0] * 100), "b": ["x"] * 300})
    path = tmp_path / "a.parquet"
    pa_parquet.write_table(table, path, row_group_size=100)

    def read(group: int) -> pa.Table:
        table = ParquetTable(str(path))
        return pa.Table.from_batches(table.read(group, ["b", "a"], None, False, AtHand(0)))

    assert read(2).equals(table.slice(200).select(["b", "a"]))
    data = bytearray(path.read_bytes())
    about = pa_parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data[about.data_page_offset] ^= 0xFF
    path.write_bytes(data)
    assert read(0).equals(table.slice(0, 100).select(["b", "a"]))
    with pytest.raises(ShardCorrupt, match=r"a\.parquet, row group 1, column 'a'"):
        read(1)
