"""Arrow data of strangers, whose buffers lie: a named error, whatever is done with them.

Every case runs in a process of its own, which is forked off one that has imported all: what walks
a wild offset ends the process, and not the tests.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

import fastio
from fastio import FastioError, Loader, ShardCorrupt
from fastio.sources import HuggingFaceDataset
from tests import hostile_arrow
from tests.children import run_code

WAYS = {"arrow": ("loader", "pack"), "stream": ("loader",), "saved": ("index", "pack")}
COMMANDS = ("verify", "info", "show")


def outcomes(paths: dict[str, Path], folder: Path, *ways: str) -> dict[str, dict[str, Any]]:
    """What became of each way with each path."""
    report = folder / "report.json"
    code = "import sys; from tests.hostile_child import run; run(sys.argv[1:])"
    given = [f"{name}={path}" for name, path in paths.items()]
    child = run_code(code, report, ",".join(ways), *given)
    assert child.returncode == 0, child.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(report.read_text())
    return found


def written(kind: str, folder: Path) -> dict[str, Path]:
    """A file of a kind for each lie."""
    found = {}
    for name in hostile_arrow.columns():
        if kind == "saved":
            found[name] = hostile_arrow.write_saved(folder / name, name)
        elif kind == "stream":
            found[name] = hostile_arrow.write_stream(folder / f"{name}.arrow", name)
        else:
            found[name] = hostile_arrow.write_file(folder / f"{name}.{kind}", name)
    return found


@pytest.mark.parametrize("kind", WAYS)
def test_columns_whose_buffers_lie_end_in_a_named_error(tmp_path: Path, kind: str) -> None:
    found = outcomes(written(kind, tmp_path), tmp_path, *WAYS[kind])
    told = {}
    for name, ways in found.items():
        assert tuple(ways) == WAYS[kind]
        for way, (status, text) in ways.items():
            if name == "list_of_structs" and (kind != "saved" or way == "pack"):
                assert status in ("SchemaError", "refused")  # no field holds it
                continue
            told[f"{name} {way}"] = status, " ".join(text.split())
    wrong = {
        key: told[key]
        for key, (status, text) in told.items()
        if status not in ("ShardCorrupt", "refused") or "column 'column'" not in text
    }
    assert not wrong
    assert all("record batch 0" in text for _, text in told.values())


@pytest.mark.parametrize("kind", ["arrow", "feather", "saved"])
def test_commands_end_with_a_message(tmp_path: Path, kind: str) -> None:
    paths = {"negative": written(kind, tmp_path)["negative"]}
    (found,) = outcomes(paths, tmp_path, *COMMANDS).values()
    assert {status for status, _ in found.values()} <= {"ok", "refused"}
    status, text = found["verify"]
    assert status == "refused"
    assert "record batch 0" in text
    assert "column 'column'" in " ".join(text.split())


def test_arrow_data_in_memory_is_checked_too(tmp_path: Path) -> None:
    path = hostile_arrow.write_file(tmp_path / "a.arrow", "slightly_negative")
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    with pytest.raises(ShardCorrupt, match="record batch 0: column 'column' is damaged"):
        fastio.pack(table, tmp_path / "packed")
    with pytest.raises(ShardCorrupt, match="record batch 0: column 'column' is damaged"):
        fastio.pack(table.to_reader(), tmp_path / "packed")


def test_a_dataset_object_over_a_hostile_file_is_checked_too(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = hostile_arrow.write_stream(tmp_path / "a.arrow", "slightly_negative")
    dataset = HuggingFaceDataset(datasets.Dataset.from_file(str(path)))
    with pytest.raises(ShardCorrupt, match="record batch 0: column 'column' is damaged"):
        dataset[0]


def test_a_column_that_nobody_asks_for_may_be_damaged(tmp_path: Path) -> None:
    path = hostile_arrow.write_file(tmp_path / "a.arrow", "descending")
    with Loader(path, batch_size=100, fields=["number"]) as loader:
        assert sum(len(batch["number"]) for batch in loader) == hostile_arrow.ROWS


@pytest.mark.parametrize("stream", [False, True], ids=("file", "stream"))
@pytest.mark.parametrize("claims", [None, 1 << 50, (1 << 63) - 1])
def test_compressed_buffers_beyond_reason_are_refused(
    tmp_path: Path, stream: bool, claims: int | None
) -> None:
    path = hostile_arrow.inflated(tmp_path / "a.arrow", claims, stream)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ShardCorrupt, match=r"compressed bytes would decompress to [\d,]+"):
        fastio.pack(path, tmp_path / "packed")
    with (
        pytest.raises(ShardCorrupt, match="compressed bytes"),
        Loader(path, batch_size=8) as loader,
    ):
        next(iter(loader))


def test_compressed_files_of_the_usual_kind_are_read(tmp_path: Path) -> None:
    whole = pa.table({"number": np.arange(5000), "text": [f"row {row}" for row in range(5000)]})
    for compression in ("zstd", "lz4"):
        for new in (pa.ipc.new_file, pa.ipc.new_stream):
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with new(tmp_path / "a.arrow", whole.schema, options=options) as writer:
                writer.write_table(whole, max_chunksize=1000)
            dataset = fastio.open(tmp_path / "a.arrow")
            assert dataset[4321] == {"number": 4321, "text": "row 4321"}


def test_metadata_with_wrong_bytes_never_end_the_process(tmp_path: Path) -> None:
    """Bytes of the schema, of messages and of the footer are changed, one or some at a time."""
    rng = np.random.default_rng(5)
    whole = hostile_arrow.table("dictionary").slice(0, 20)
    for number in range(120):
        path = tmp_path / f"{number}.arrow"
        new = pa.ipc.new_stream if number % 2 else pa.ipc.new_file
        with new(path, whole.schema) as writer:
            writer.write_table(whole)
        data = bytearray(path.read_bytes())
        for place in rng.integers(8, len(data), 1 + number % 4).tolist():
            data[place] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)]))
        path.write_bytes(data)
    (found,) = outcomes({"all": tmp_path}, tmp_path, "each").values()
    assert found["each"] == ["ok", ""]


@pytest.mark.parametrize("kind", ["arrow", "stream", "saved"])
def test_a_mapped_file_that_is_cut_off_is_named(tmp_path: Path, kind: str) -> None:
    rows = 40_000
    whole = pa.table({"number": np.arange(rows), "text": [f"row {row:09}" for row in range(rows)]})
    path = file = tmp_path / "a.arrow"
    if kind == "saved":
        path, file = tmp_path / "saved", tmp_path / "saved" / "data.arrow"
        path.mkdir()
        (path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
        (path / "dataset_info.json").write_text("{}")
    new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
    with new(file, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=4000)
    (found,) = outcomes({"cut": path}, tmp_path, f"cut:{file}").values()
    status, text = found[f"cut:{file}"]
    if kind == "stream":  # it was read into memory before
        assert status == "ok", text
        return
    assert status == "ShardCorrupt", text
    assert str(file) in text
    assert "cut off" in text or "cannot be read" in text  # if a thread opens what is left


def test_a_record_batch_of_impossible_buffers_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"text": pa.array(["a", "bcdefghijkl"])})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    data = path.read_bytes()
    sound = struct.pack("<qq", 16, 12)  # where the text begins, and how long it is
    assert data.count(sound) == 1
    path.write_bytes(data.replace(sound, struct.pack("<qq", -16, 12)))
    with pytest.raises(ShardCorrupt, match=r"a\.arrow, record batch 0 cannot be read"):
        len(fastio.open(path))


def test_a_parquet_footer_that_contradicts_itself_does_not_end_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pa_parquet.write_table(pa.table({"x": [None] * 37 + [1] * 63}), path)
    data = path.read_bytes()
    footer_bytes = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - footer_bytes : -8]
    counts = b"\x26\x4a\x7e"  # a histogram: Thrift's list of two numbers, 37 nulls and 63 others
    if counts not in footer:
        pytest.skip("this pyarrow writes no histograms")
    other = footer.replace(counts, b"\x16\x4a")
    size = len(other).to_bytes(4, "little")
    path.write_bytes(data[: -8 - footer_bytes] + other + size + b"PAR1")
    status, text = outcomes({"footer": path}, tmp_path, "loader")["footer"]["loader"]
    assert status == "ShardCorrupt"
    assert "histogram" in text


def test_a_parquet_column_whose_name_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pa_parquet.write_table(pa.table({"column": ["a", "b"]}), path, store_schema=False)
    before, name, after = path.read_bytes().rpartition(b"column")  # in the row group
    assert name
    path.write_bytes(before + b"\x9column" + after)
    with pytest.raises(ShardCorrupt, match=r"a\.parquet cannot be read: 'utf-8'"):
        len(fastio.open(path))


def test_a_parquet_dictionary_whose_path_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    words = pa.array(["a", "b"]).dictionary_encode()
    pa_parquet.write_table(pa.table({"column": words}), path)
    before, column, after = path.read_bytes().rpartition(b"\x18\x06column")  # in the row group
    assert column
    path.write_bytes(before + b"\x18\x06\x9column" + after)
    with pytest.raises(ShardCorrupt, match=r"a\.parquet, row group 0 cannot be read: 'utf-8'"):
        len(fastio.open(path))


@pytest.mark.parametrize("nested", [False, True])
def test_a_parquet_index_beyond_its_dictionary_is_refused(tmp_path: Path, nested: bool) -> None:
    path = tmp_path / "a.parquet"
    words = pa.array(["a", "b", "c"] * 4).dictionary_encode()
    column = pa.StructArray.from_arrays([words], ["word"]) if nested else words
    pa_parquet.write_table(pa.table({"column": column}), path, compression="none")
    data, indices = path.read_bytes(), b"\x24\x49\x92"  # 0, 1, 2, ... of two bits each
    assert data.count(indices) == 1
    path.write_bytes(data.replace(indices, b"\x27" + indices[1:]))
    message = r"a\.parquet, row group 0: column 'column' is damaged: .*out of bounds: 3"
    with pytest.raises(ShardCorrupt, match=message):
        fastio.open(path)[0]
    with pytest.raises(ShardCorrupt, match=message), Loader(path, 4) as loader:
        next(iter(loader))


def _with_rows(path: Path, table: pa.Table, rows: int, compression: str | None = None) -> None:
    """Writes an Arrow file whose only record batch states another number of rows."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table)
    number, other = table.num_rows.to_bytes(8, "little"), rows.to_bytes(8, "little")
    path.write_bytes(path.read_bytes().replace(number, other))


_WIDTH = 0x1234
_ARRAYS = {
    "numbers": pa.array(np.ones(12_345, np.float32)),
    "lists": pa.FixedSizeListArray.from_arrays(np.ones(2 * 12_345, np.float32), 2),
    "strings": pa.array(["word"] * 12_345),
    "words": pa.array(["word"] * 12_345).dictionary_encode(),
}


@pytest.mark.parametrize("rows", [13_000_000, 1 << 50, (1 << 63) - 1])
@pytest.mark.parametrize("name", _ARRAYS)
def test_more_rows_than_a_record_batch_can_hold_are_refused(
    tmp_path: Path, name: str, rows: int
) -> None:
    path = tmp_path / "a.arrow"
    _with_rows(path, pa.table({"column": _ARRAYS[name]}), rows)
    with pytest.raises(ShardCorrupt, match=rf"a\.arrow cannot be read: .* states {rows:,} rows"):
        len(fastio.open(path))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_stated_rows_of_sound_files_are_accepted(
    tmp_path: Path, compression: str | None
) -> None:
    path = tmp_path / "a.arrow"
    more = {
        "flags": pa.array([True, None] * 6000 + [False] * 345),
        "none": pa.nulls(12_345),
        "fixed": pa.array([b"ab"] * 12_345, pa.binary(2)),
        "views": pa.array(["word"] * 12_345, pa.string_view()),
        "nulls": pa.nulls(12_345, pa.list_(pa.float32(), 9)),
    }
    _with_rows(path, pa.table(_ARRAYS | more), 12_345, compression)
    columns = [*_ARRAYS, "fixed", "views", "nulls"]
    assert len(fastio.open(path, columns=columns)) == 12_345


def test_lists_that_memory_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    path = tmp_path / "a.arrow"
    table = pa.table({"column": pa.nulls(123, pa.list_(pa.float32(), _WIDTH))})
    _with_rows(path, table, 123, "zstd")
    data = path.read_bytes()
    size = _WIDTH.to_bytes(4, "little")
    path.write_bytes(data.replace(size, (0x7FFF0000).to_bytes(4, "little")))
    with pytest.raises(FastioError, match=r"a\.arrow"):
        fastio.open(path)[0]
    with (
        pytest.raises(FastioError, match=r"a\.arrow, (row group|record batch) 0"),
        Loader(path, 64, shuffle=False, timeout=60) as loader,
    ):
        next(iter(loader))
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    # Memory that was mapped for them would keep this process from forking.
    assert pages * os.sysconf("SC_PAGE_SIZE") < before + (8 << 30)


def test_a_parquet_column_of_unknown_compression_does_not_end_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pa_parquet.write_table(pa.table({"x": np.arange(9)}), path, compression="snappy")
    data = path.read_bytes()
    snappy = b"\x19\x18\x01x\x15\x02"  # Thrift's list of the name's parts, then the codec
    assert data.count(snappy) == 1
    path.write_bytes(data.replace(snappy, snappy[:-1] + b"\x50"))
    status, text = outcomes({"codec": path}, tmp_path, "loader")["codec"]["loader"]
    assert status == "ShardCorrupt"
    if pa.__version__ < "26":  # it calls such a column uncompressed
        assert "its sizes contradict each other" in text
        return
    assert "compression codec" in text
    found = subprocess.run(
        [sys.executable, "-m", "fastio", "info", path], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 1
    assert "compression codec" in found.stderr


@pytest.mark.long
@pytest.mark.parametrize("harm", ["cut", "write"])
@pytest.mark.parametrize("kind", ["arrow", "saved", "parquet"])
def test_files_that_change_while_they_are_read_never_end_the_process(
    tmp_path: Path, kind: str, harm: str
) -> None:
    """Files that are truncated or written to by another thread, at another moment each time."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.changing_files", kind, harm, tmp_path],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "30 epochs" in done.stdout
