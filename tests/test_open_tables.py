"""Table files and directories of save_to_disk: opened by row, described and verified."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

import fastio
from fastio import Loader, SchemaError
from tests.saved import image_dataset, jpeg_bytes, save_to, table_dataset
from tests.test_cli import run

ROWS = 50
KINDS = ["parquet", "arrow", "stream.arrow", "csv", "jsonl"]


def table(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "n": range(rows),
            "x": [row / 4 for row in range(rows)],
            "text": [f"row {row} é" for row in range(rows)],
        }
    )


def write(path: Path, found: pa.Table, **options: Any) -> Path:
    """A table file of the kind that its name tells."""
    if path.name.endswith(".parquet"):
        pa_parquet.write_table(found, path, row_group_size=20, **options)
    elif path.name.endswith(".csv"):
        pa_csv.write_csv(found, path)
    elif path.name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in found.to_pylist()))
    else:
        make = pa.ipc.new_stream if ".stream" in path.name else pa.ipc.new_file
        with make(str(path), found.schema) as writer:
            writer.write_table(found, max_chunksize=20)
    return path


# --- Opened ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_table_files_are_samples(kind: str, tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"{number}.{kind}", table())
    wanted = table().to_pylist() * 2
    for path in (tmp_path, tmp_path / f"*.{kind}"):
        with fastio.open(path) as dataset:
            assert len(dataset) == 2 * ROWS
            assert list(dataset) == wanted
            assert dataset[-1] == wanted[-1]
            assert isinstance(dataset[3]["n"], int)
            rows = np.array([99, 0, 50, 49, 0])
            assert dataset.gather("n", rows).tolist() == [wanted[row]["n"] for row in rows]
            assert dataset.gather("text", rows) == [wanted[row]["text"] for row in rows]
            with pytest.raises(IndexError, match="out of range"):
                dataset[2 * ROWS]
            with pytest.raises(IndexError, match="out of range"):
                dataset.gather("n", np.array([-1]))
            with pytest.raises(fastio.SchemaError, match="no field 'z'"):
                dataset.gather("z", rows)


def test_options_say_what_becomes_of_columns(tmp_path: Path) -> None:
    columns = {
        "a": pa.array([1, None, 3]),
        "b": pa.array([0.5, 1.5, 2.5]),
        "c": pa.array([4, 5, 6]),
        "lists": pa.array([[1], [2, 3], []]),
        "vectors": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)),
        "left_out": pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int32())),
    }
    path = write(tmp_path / "t.parquet", pa.table(columns))
    with fastio.open(
        path,
        columns=["bc", "a", "lists", "vectors"],
        groups={"bc": ["b", "c"]},
        dtypes={"bc": "float32"},
        nulls={"a": "mask"},
        filters=[("c", ">", 4)],
    ) as dataset:
        assert list(dataset.schema.fields) == ["bc", "a", "a_valid", "lists", "vectors"]
        assert len(dataset) == 2
        sample = dataset[0]
        assert sample["bc"].tolist() == [1.5, 5.0]
        assert (sample["a"], sample["a_valid"]) == (0, False)
        assert sample["lists"].tolist() == [2, 3]
        assert sample["vectors"].tolist() == [3, 4]
        with Loader(dataset, 2, num_workers=1) as loader:
            (batch,) = list(loader)
        assert batch["bc"].tolist() == [[1.5, 5.0], [2.5, 6.0]]
        assert batch["a_valid"].tolist() == [False, True]
        with pytest.raises(ValueError, match="is already open"):
            fastio.open(dataset, columns=["a"])
        copied = pickle.loads(pickle.dumps(dataset))
        assert copied[1]["vectors"].tolist() == [5, 6]


def test_options_do_not_fit_other_datasets(tmp_path: Path) -> None:
    fastio.pack(write(tmp_path / "t.parquet", table()), tmp_path / "packed")
    with pytest.raises(ValueError, match=r"columns is an option for .*not for a packed dataset"):
        fastio.open(tmp_path / "packed", columns=["n"])
    with pytest.raises(ValueError, match="a list of names"):
        fastio.open(tmp_path / "t.parquet", columns="n")
    with pytest.raises(ValueError, match="cache is an option for"):
        fastio.open("memory://t.parquet", cache=tmp_path / "cache")


def test_a_directory_of_save_to_disk_is_opened(tmp_path: Path) -> None:
    images = save_to(image_dataset(4), tmp_path / "images")
    with fastio.open(images) as dataset:
        assert len(dataset) == 4
        assert dataset[1]["image"].shape[2] == 3
        assert dataset.classes == ("cat", "dog", "emu")
    numbers = save_to(table_dataset(), tmp_path / "numbers")
    with fastio.open(numbers, columns=["number"]) as dataset:
        assert dataset[7] == {"number": 7}
    with fastio.open(numbers, filters=[("number", ">", 4)]) as dataset:
        assert min(dataset[row]["number"] for row in range(len(dataset))) == 5
    with pytest.raises(SchemaError, match=r"use ds.filter of the datasets package"):
        fastio.open(images, filters=[("label", ">", 0)])


def test_tables_behind_a_url_are_opened() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    with files.open("/open_tables/a.parquet", "wb") as file:
        pa_parquet.write_table(table(), file, row_group_size=20)
    for url in ("memory://open_tables/a.parquet", "memory://open_tables"):
        with fastio.open(url) as dataset:
            assert list(dataset) == table().to_pylist()
        assert run("verify", url, "--quiet")[0] == 0
        code, out, _ = run("info", url, "--json")
        assert (code, json.loads(out)["rows"]) == (0, ROWS)


# --- fastio info ----------------------------------------------------------------------------------


def test_info_tells_columns_row_groups_and_compression(tmp_path: Path) -> None:
    found = pa.table(
        {
            "n": pa.array([1, None, 3] * 10, pa.int16()),
            "lists": pa.array([["a"], [], None] * 10),
            "pair": pa.array([{"x": 1.0, "y": "b"}] * 30),
            "map": pa.array([[("k", 1)]] * 30, pa.map_(pa.string(), pa.int32())),
            "[red]": pa.array([b"1"] * 30),
        }
    )
    compression = {"n": "zstd", "lists": "none"}
    write(tmp_path / "a.parquet", found.select(["n", "lists", "pair", "map", "[red]"]))
    path = write(tmp_path / "b.parquet", found, compression={**compression, "[red]": "gzip"})
    code, out, _ = run("info", path, "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["kind"], told["rows"]) == ("parquet", 30)
    assert (told["files"], told["row_groups"], told["bytes"]) == (1, 2, path.stat().st_size)
    columns = {column["name"]: column for column in told["columns"]}
    assert list(columns) == ["n", "lists", "pair.x", "pair.y", "map", "[red]"]
    assert columns["n"]["type"] == "int16"
    assert columns["n"]["field"] == {"type": "scalar", "dtype": "int16"}
    assert (columns["n"]["compression"], columns["n"]["nulls"]) == (["ZSTD"], 10)
    assert (columns["map"]["field"], columns["lists"]["nulls"]) == (None, None)
    assert columns["lists"]["compression"] == ["UNCOMPRESSED"]
    metadata = pa_parquet.read_metadata(path)
    chunks = [metadata.row_group(group).column(2) for group in range(2)]
    assert chunks[0].path_in_schema == "pair.x"
    assert columns["pair.x"]["bytes"] == sum(chunk.total_compressed_size for chunk in chunks)

    code, out, _ = run("info", tmp_path)
    assert code == 0
    assert re.search(r"kind +Parquet files\nsamples +60\nfiles +2, ", out)
    assert re.search(r"row groups +4\n", out)
    assert re.search(r"n +int16 +Scalar int16 +SNAPPY, ZSTD .* 20 *\n", out)
    assert re.search(r"map +map<string, .*not supported", out)
    assert max(map(len, out.splitlines())) <= 100
    assert "[red]" in out


@pytest.mark.parametrize(
    ("kind", "batches"), [("arrow", 3), ("stream.arrow", None), ("csv", None), ("jsonl", None)]
)
def test_info_counts_the_rows_of_other_files(
    kind: str, batches: int | None, tmp_path: Path
) -> None:
    path = write(tmp_path / f"t.{kind}", table())
    told = json.loads(run("info", path, "--json")[1])
    assert (told["rows"], told["row_groups"]) == (ROWS, batches)
    assert [column["name"] for column in told["columns"]] == ["n", "x", "text"]
    assert run("info", path)[0] == 0


def test_info_tells_what_a_directory_of_save_to_disk_has(tmp_path: Path) -> None:
    folder = save_to(image_dataset(4), tmp_path / "saved", num_shards=2)
    told = json.loads(run("info", folder, "--json")[1])
    assert (told["kind"], told["rows"], told["files"]) == ("hugging_face", 4, 2)
    assert [field["name"] for field in told["fields"]] == ["image", "label", "caption", "boxes"]
    code, out, _ = run("info", folder)
    assert code == 0
    assert re.search(r"files +2, ", out)
    assert re.search(r"classes +3: cat, dog, emu", out)


# --- fastio verify --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_verify_reads_all_rows(kind: str, tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"{number}.{kind}", table())
    code, out, _ = run("verify", tmp_path, "--quiet", "--json")
    assert code == 0
    nbytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert json.loads(out) == {"files": 2, "bytes": nbytes, "rows": 100, "damaged": []}
    assert "all 100 rows can be read" in run("verify", tmp_path)[1]


@pytest.mark.parametrize("checksums", [True, False])
def test_verify_names_row_group_and_column(checksums: bool, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table())
    path = write(
        tmp_path / "b.parquet",
        table(),
        compression="zstd",
        use_dictionary=False,
        write_page_checksum=checksums,
    )
    chunk = pa_parquet.read_metadata(path).row_group(1).column(2)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 4
    path.write_bytes(data)
    code, out, errors = run("verify", tmp_path, "--quiet", "--json")
    assert code == 1
    (damaged,) = json.loads(out)["damaged"]
    assert damaged["name"] == str(path)
    assert damaged["problem"].startswith("row group 1, column 'text': ")
    assert f"{path}: row group 1, column 'text'" in errors
    assert "1 of 2 files damaged; copy or write it again" in errors


def test_verify_finds_strings_that_are_not_utf8(tmp_path: Path) -> None:
    text = pa.array([b"a", b"\xff", b"b"])
    bad = pa.StringArray.from_buffers(3, text.buffers()[1], text.buffers()[2])
    found = pa.table({"n": [1, 2, 3], "text": bad})
    write(tmp_path / "t.arrow", found)
    write(tmp_path / "t.parquet", found)
    for name, where in (("t.arrow", "record batch 0"), ("t.parquet", "row group 0")):
        code, _, errors = run("verify", tmp_path / name, "--quiet")
        assert code == 1
        assert f"{name}: {where}, column 'text': " in errors
        assert "UTF" in errors


@pytest.mark.parametrize("kind", KINDS)
def test_verify_names_files_that_are_cut_off(kind: str, tmp_path: Path) -> None:
    write(tmp_path / f"a.{kind}", table())
    path = write(tmp_path / f"b.{kind}", table())
    path.write_bytes(path.read_bytes()[: -path.stat().st_size // 3])
    if kind == "csv":  # a line that is cut off has fewer cells
        path.write_text(path.read_text().rpartition("\n")[0] + "\n7")
    code, _, errors = run("verify", tmp_path, "--quiet")
    assert code == 1
    assert f"b.{kind}: " in errors
    assert f"a.{kind}: " not in errors


def test_verify_looks_at_directories_of_save_to_disk(tmp_path: Path) -> None:
    folder = save_to(image_dataset(8), tmp_path / "saved", num_shards=2)
    code, out, _ = run("verify", folder, "--deep", "--quiet", "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["files"], told["rows"], told["damaged_images"]) == (2, 8, [])
    path = Path(folder, "data-00001-of-00002.arrow")
    data = path.read_bytes()
    at = data.index(jpeg_bytes(5))
    path.write_bytes(data[:at] + bytes(3) + data[at + 3 :])
    assert run("verify", folder, "--quiet")[0] == 0  # of images only decoding tells
    code, _, errors = run("verify", folder, "--deep", "--quiet")
    assert code == 1
    assert "saved row 5: image: " in errors
    data = path.read_bytes().replace(b"picture 6", b"pictur\xff 6")
    path.write_bytes(data)
    code, _, errors = run("verify", folder, "--quiet")
    assert code == 1
    assert "data-00001-of-00002.arrow: record batch 0, column 'caption'" in errors


@pytest.mark.parametrize("option", ["groups", "dtypes", "nulls"])
@pytest.mark.parametrize("value", ["float32", ["x"], 0])
def test_options_by_column_that_are_no_dicts_are_refused(
    tmp_path: Path, option: str, value: Any
) -> None:
    pa_parquet.write_table(pa.table({"x": [1]}), tmp_path / "t.parquet")
    with pytest.raises(fastio.OptionError, match=f"{option} must be a dict, as in {option}={{"):
        fastio.open(tmp_path / "t.parquet", **{option: value})
