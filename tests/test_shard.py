"""Shards are aligned Arrow files that any reader opens; damaged ones are told from whole ones."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from fastio import Array, Bytes, FastioError, Scalar, Schema, ShardCorrupt, SourceNotFound, Text
from fastio.packed.ipc import ALIGNMENT, number_array, number_dtype
from fastio.packed.shard import ShardReader
from fastio.packed.shard_writer import write_shard
from fastio.schema import DTYPES
from tests.support import descriptors

SCHEMA = Schema({"number": Scalar("int64"), "text": Text(), "data": Bytes()})


def batch(rows: int, metadata: dict[bytes, bytes] | None = None) -> pa.RecordBatch:
    """Numbers, strings and bytes, of lengths that fit no alignment."""
    columns = [
        pa.array(np.arange(rows)),
        pa.array([f"größe {row}" for row in range(rows)], pa.large_utf8()),
        pa.array([bytes(row % 7) for row in range(rows)], pa.large_binary()),
    ]
    schema = SCHEMA.arrow_schema().with_metadata(metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    write_shard(tmp_path / "shard.arrow", batch(100))
    return tmp_path / "shard.arrow"


def write_ipc(path: Path, *batches: pa.RecordBatch) -> None:
    """A file as pyarrow writes it by itself."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for item in batches:
            writer.write_batch(item)


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 1000])
@pytest.mark.parametrize("padding", [0, 1, 8, 17, 60])
def test_any_arrow_reader_gets_back_what_was_written(
    tmp_path: Path, rows: int, padding: int
) -> None:
    written = batch(rows, {b"key": b"x" * padding})
    write_shard(tmp_path / "a.arrow", written)
    with pa.OSFile(str(tmp_path / "a.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    table.validate(full=True)
    assert table.equals(pa.Table.from_batches([written]), check_metadata=True)


@pytest.mark.parametrize("padding", range(0, 72, 7))
def test_every_buffer_begins_at_a_multiple_of_64_bytes(tmp_path: Path, padding: int) -> None:
    write_shard(tmp_path / "a.arrow", batch(33, {b"key": b"x" * padding}))
    with pa.memory_map(str(tmp_path / "a.arrow")) as file:
        mapped = file.read_buffer()
    found = pa.ipc.open_file(mapped).get_batch(0)
    buffers = [buffer for column in found.columns for buffer in column.buffers() if buffer]
    assert len(buffers) == 5
    assert [(buffer.address - mapped.address) % ALIGNMENT for buffer in buffers] == [0] * 5


def test_a_stream_reader_gets_the_batch_too(shard: Path) -> None:
    """An IPC file holds a stream between its magic bytes."""
    data = shard.read_bytes()
    assert data[:8] == b"ARROW1\0\0"
    assert data[-6:] == b"ARROW1"
    assert pa.ipc.open_stream(data[8:]).read_next_batch().equals(batch(100))


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.arrow", "b.arrow"):
        write_shard(tmp_path / name, batch(50))
    assert (tmp_path / "a.arrow").read_bytes() == (tmp_path / "b.arrow").read_bytes()


def test_writing_returns_size_and_checksum(tmp_path: Path) -> None:
    file = write_shard(tmp_path / "a.arrow", batch(50))
    data = (tmp_path / "a.arrow").read_bytes()
    assert file.bytes == len(data)
    assert file.xxh3 == xxhash.xxh3_64(data).hexdigest()


def test_a_batch_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        write_shard(tmp_path / "a.arrow", batch(1).slice(0, 0))
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_what_was_there(
    shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shard.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_shard(shard, batch(7))
    assert shard.read_bytes() == before
    assert [path.name for path in shard.parent.iterdir()] == [shard.name]


@given(dtype=st.sampled_from(DTYPES), rows=st.integers(1, 9), data=st.data())
def test_numbers_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, rows: int, data: st.DataObject
) -> None:
    stored = np.dtype("uint8" if dtype == "bool" else dtype)
    raw = data.draw(
        st.binary(min_size=rows * 6 * stored.itemsize, max_size=rows * 6 * stored.itemsize)
    )
    values = np.frombuffer(raw, stored)
    (kind,) = Schema({"x": Array(dtype, (2, 3))}).arrow_schema().types
    column = pa.FixedSizeListArray.from_arrays(pa.array(values), type=kind)
    path = tmp_path_factory.mktemp("shard") / "a.arrow"
    write_shard(path, pa.RecordBatch.from_arrays([column], ["x"]))
    reader = ShardReader(path)
    assert reader.fixed("x").shape == (rows, 6)
    assert reader.fixed("x").dtype == stored
    assert reader.fixed("x").tobytes() == raw


def test_fixed_columns_are_views_that_cannot_be_written(shard: Path) -> None:
    numbers = ShardReader(shard).fixed("number")
    assert numbers.tolist() == list(range(100))
    assert not numbers.flags.writeable
    assert not numbers.flags.owndata


def test_offsets_and_data_offset_lead_to_a_row_in_the_file(shard: Path) -> None:
    reader = ShardReader(shard)
    offsets = reader.offsets("text")
    begin = reader.extent("text")[0] + int(offsets[42])
    data = shard.read_bytes()[begin : begin + int(offsets[43] - offsets[42])]
    assert data == "größe 42".encode()
    assert reader.extent("text")[0] % ALIGNMENT == 0


def test_values_are_copied_in_the_order_asked_for(shard: Path) -> None:
    reader = ShardReader(shard)
    assert reader.values("text", [99, 0, 0]) == ["größe 99", "größe 0", "größe 0"]
    assert reader.values("data", np.array([13, 8])) == [bytes(6), bytes(1)]
    assert reader.values("data", []) == []


@pytest.mark.parametrize("row", [-1, 100])
def test_rows_out_of_range_are_refused(shard: Path, row: int) -> None:
    with pytest.raises(IndexError, match="100 rows"):
        ShardReader(shard).values("text", [row])


def test_a_column_of_the_other_kind_is_refused(shard: Path) -> None:
    reader = ShardReader(shard)
    with pytest.raises(ShardCorrupt, match="fixed"):
        reader.fixed("text")
    with pytest.raises(ShardCorrupt, match="variable"):
        reader.offsets("number")
    with pytest.raises(ShardCorrupt, match="no column 'nothing'"):
        reader.fixed("nothing")


def test_views_outlive_close_and_the_file(shard: Path) -> None:
    reader = ShardReader(shard)
    numbers = reader.fixed("number")
    reader.close()
    shard.unlink()
    gc.collect()
    assert int(numbers.sum()) == 4950
    with pytest.raises(ValueError, match="closed"):
        reader.fixed("number")


def test_an_open_reader_holds_no_file_descriptor(shard: Path) -> None:
    before = descriptors()
    readers = [ShardReader(shard) for _ in range(20)]
    assert descriptors() <= before
    assert len(readers) == 20


def test_a_closed_reader_s_map_is_gone(shard: Path) -> None:
    reader = ShardReader(shard)
    reader.fixed("number")
    reader.offsets("text")
    assert str(shard) in Path("/proc/self/maps").read_text()
    reader.close()
    gc.collect()
    assert str(shard) not in Path("/proc/self/maps").read_text()


def test_threads_can_share_a_reader(shard: Path) -> None:
    reader = ShardReader(shard)
    wrong: list[Any] = []

    def read() -> None:
        for row in range(100):
            if (
                reader.values("text", [row]) != [f"größe {row}"]
                or reader.fixed("number")[row] != row
            ):
                wrong.append(row)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_every_truncation_is_noticed(shard: Path) -> None:
    for length in reversed(range(shard.stat().st_size)):
        os.truncate(shard, length)
        with pytest.raises(ShardCorrupt, match=r"shard\.arrow"):
            ShardReader(shard)


def test_no_flipped_byte_crashes_the_reader(shard: Path) -> None:
    """Data may come out wrong, which checksums are for; but only named errors are raised."""
    data = shard.read_bytes()
    # In place: a file that is written anew has to reach the disk each time.
    with shard.open("r+b", buffering=0) as file:
        for position, byte in enumerate(data):
            os.pwrite(file.fileno(), bytes([byte ^ 0xFF]), position)
            with suppress(FastioError):
                reader = ShardReader(shard)
                for column in ("text", "data"):
                    reader.values(column, range(reader.rows))
                reader.fixed("number").sum()
            os.pwrite(file.fileno(), bytes([byte]), position)


@pytest.mark.parametrize("offsets", [[0, 5, 3], [-1, 2, 3], [0, 2, 99], [2**62, 2**62, 2**62]])
def test_offsets_that_leave_the_data_are_noticed(tmp_path: Path, offsets: list[int]) -> None:
    written = pa.RecordBatch.from_arrays([pa.array([b"ab", b"c"], pa.large_binary())], ["data"])
    path = tmp_path / "a.arrow"
    write_shard(path, written)
    good, bad = np.array([0, 2, 3]).tobytes(), np.array(offsets).tobytes()
    assert path.read_bytes().count(good) == 1
    path.write_bytes(path.read_bytes().replace(good, bad))
    with pytest.raises(ShardCorrupt, match=r"a\.arrow"):
        ShardReader(path).values("data", [0, 1])


_TOKENS, _SHAPES = pa.large_list(pa.uint16()), pa.list_(pa.int64())
_WILD = ([0, 5, 3], [-1, 2, 3], [0, 2, 99])
_LEFT_OUT = ([1, 2, 3], [0, 2, 2])  # numbers that are no row's


@pytest.mark.parametrize(
    ("kind", "offsets"),
    [*((_TOKENS, each) for each in (*_WILD, *_LEFT_OUT)), *((_SHAPES, each) for each in _WILD)],
)
def test_offsets_of_tokens_and_shapes_are_noticed(
    tmp_path: Path, kind: pa.DataType, offsets: list[int]
) -> None:
    path = tmp_path / "a.arrow"
    write_shard(path, pa.RecordBatch.from_arrays([pa.array([[1, 2], [3]], kind)], ["x"]))
    dtype = np.int64 if kind == _TOKENS else np.int32
    good, bad = (np.array(each, dtype).tobytes() for each in ([0, 2, 3], offsets))
    assert path.read_bytes().count(good) == 1
    path.write_bytes(path.read_bytes().replace(good, bad))
    with pytest.raises(ShardCorrupt, match=r"a\.arrow.*offsets"):
        ShardReader(path).check_offsets()


def test_shapes_below_zero_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_shard(path, pa.RecordBatch.from_arrays([pa.array([[1, -2], [3]], _SHAPES)], ["x"]))
    with pytest.raises(ShardCorrupt, match=r"a\.arrow: the offsets of column 'x' are damaged"):
        ShardReader(path).check_offsets()


def test_text_that_is_not_utf8_is_noticed(shard: Path) -> None:
    data = shard.read_bytes()
    shard.write_bytes(data.replace("größe 42".encode(), b"gr\xff\xffx\xffe 42"))
    reader = ShardReader(shard)
    assert reader.values("text", [41]) == ["größe 41"]
    with pytest.raises(ShardCorrupt, match="utf-8"):
        reader.values("text", [42])


def test_nulls_are_refused(tmp_path: Path) -> None:
    write_ipc(tmp_path / "a.arrow", pa.RecordBatch.from_arrays([pa.array([1, None])], ["x"]))
    with pytest.raises(ShardCorrupt, match="nulls"):
        ShardReader(tmp_path / "a.arrow")


def test_several_batches_are_refused(tmp_path: Path) -> None:
    write_ipc(tmp_path / "a.arrow", batch(3), batch(4))
    with pytest.raises(ShardCorrupt, match="2 record batches"):
        ShardReader(tmp_path / "a.arrow")


@pytest.mark.parametrize("data", [b"", b"ARROW1", b"no arrow at all" * 10, bytes(4096)])
def test_what_is_no_arrow_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.arrow").write_bytes(data)
    with pytest.raises(ShardCorrupt, match=r"a\.arrow"):
        ShardReader(tmp_path / "a.arrow")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"nothing\.arrow does not exist"):
        ShardReader(tmp_path / "nothing.arrow")


def test_a_folder_is_no_shard(tmp_path: Path) -> None:
    with pytest.raises(FastioError, match=str(tmp_path)):
        ShardReader(tmp_path)


def test_names_may_be_long_and_in_any_script(shard: Path) -> None:
    path = shard.with_name("日本語 ñ 🎈 " + "x" * 200 + ".arrow")
    shutil.copy(shard, path)
    assert ShardReader(path).rows == 100
    assert path.read_bytes() == shard.read_bytes()


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float16])
def test_numbers_become_an_arrow_array(dtype: Any) -> None:
    for values in (np.arange(6, dtype=dtype)[::2], np.empty(0, dtype)):
        array = number_array(values)
        array.validate(full=True)
        assert array.to_pylist() == values.tolist()
        assert number_dtype(array.type) == dtype


@pytest.mark.parametrize("dtype", ["bool", ">i4" if sys.byteorder == "little" else "<i4"])
def test_values_that_arrow_stores_in_another_way_are_not_taken_as_they_are(dtype: str) -> None:
    with pytest.raises(TypeError, match="byte order"):
        number_array(np.zeros(3, dtype))
