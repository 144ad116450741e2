"""Tables are packed by columns: the values, the bytes, what is resumed, what is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from typer.testing import CliRunner

from fastio import (
    Array,
    DatasetNotFound,
    Image,
    OptionError,
    PackError,
    Scalar,
    Schema,
    SchemaError,
    Text,
    pack,
)
from fastio import Dataset as open_dataset
from fastio.cli import main
from fastio.pack import row_sources
from fastio.packed import Manifest
from fastio.sources.table.arrow import MemoryTable
from fastio.sources.table.options import TableOptions
from fastio.sources.table.tables import Tables
from tests.support import packing_ends_after, without_ids

GROUPS = {"dense": ("I1", "I2", "I3"), "sparse": ("C1", "C2")}


def table(rows: int = 1000, seed: int = 0) -> pa.Table:
    """Numbers of several types, text, words and lists."""
    rng = np.random.default_rng(seed)
    words = np.array(["low", "high", "none"])[rng.integers(0, 3, rows)]
    return pa.table(
        {
            "label": rng.integers(0, 2, rows),
            **{f"I{n}": rng.standard_normal(rows).astype(np.float32) for n in (1, 2, 3)},
            **{f"C{n}": rng.integers(0, 99, rows).astype(np.int32) for n in (1, 2)},
            "name": [f"row {n}" * (n % 4) for n in range(rows)],
            "word": pa.array(words).dictionary_encode(),
            "tags": [list(range(n % 5)) for n in range(rows)],
        }
    )


def read(folder: Path) -> dict[str, Any]:
    """All fields of a packed dataset, from its shards."""
    manifest = Manifest(folder)
    layout = manifest.schema.record_layout
    found: dict[str, list[Any]] = {name: [] for name in manifest.schema.fields}
    for number in range(manifest.shards):
        with pa.memory_map(str(folder / manifest.name(number))) as file:
            batch = pa.ipc.open_file(file.read_buffer()).get_batch(0)
        batch.validate(full=True)
        assert batch.num_rows == manifest.shard_rows[number]
        for name, kind in manifest.schema.fields.items():
            if layout is not None and name in layout.offsets:
                records = np.frombuffer(batch.column(".record").buffers()[1], layout.dtype)
                found[name] += records[name].tolist()
            elif isinstance(kind, Array):
                values = [np.frombuffer(v, kind.dtype) for v in batch.column(name).to_pylist()]
                assert batch.column(f"{name}.shape").to_pylist() == [[len(v)] for v in values]
                found[name] += [v.tolist() for v in values]
            else:
                found[name] += batch.column(name).to_pylist()
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write(path: Path, what: pa.Table, row_group_size: int = 300) -> Path:
    pa_parquet.write_table(what, path, row_group_size=row_group_size)
    return path


def test_a_table_s_values_come_back(tmp_path: Path) -> None:
    source = table()
    path = write(tmp_path / "t.parquet", source)
    report = pack(
        path, tmp_path / "out", groups=GROUPS, dtypes={"label": "float32"}, shard_size=9999
    )
    assert (report.rows, report.skipped) == (1000, [])
    assert report.shards > 3
    manifest = Manifest(tmp_path / "out")
    assert manifest.schema == Schema(
        {
            "label": Scalar("float32"),
            "dense": Array("float32", (3,)),
            "sparse": Array("int32", (2,)),
            "name": Text(),
            "word": Scalar("int32"),
            "tags": Array("int64"),
        },
        records=True,
        vocabularies=manifest.schema.vocabularies,
    )
    found = read(tmp_path / "out")
    columns = source.to_pydict()
    for name in ("label", "name", "tags"):
        assert found[name] == columns[name]
    for name, members in GROUPS.items():
        assert found[name] == [
            list(row) for row in zip(*(columns[m] for m in members), strict=True)
        ]
    words = manifest.schema.vocabularies["word"]
    assert [words[code] for code in found["word"]] == columns["word"]


def test_rows_of_a_packed_table_are_dicts(tmp_path: Path) -> None:
    source = table(300)
    pack(source, tmp_path / "out", groups=GROUPS, shard_size=5000)
    with open_dataset(tmp_path / "out") as dataset:
        rows = np.random.default_rng(0).permutation(300)
        for name in ("label", "name"):
            expected = source.column(name).take(rows).to_pylist()
            assert list(dataset.gather(name, rows)) == expected
        np.testing.assert_array_equal(
            dataset.gather("dense", rows)[:, 1],  # type: ignore[call-overload]
            source.column("I2").to_numpy()[rows],
        )
        sample = dataset[7]
        assert (sample["label"], sample["name"]) == (source["label"][7].as_py(), "row 7" * 3)
        assert sample["sparse"].tolist() == [source[name][7].as_py() for name in ("C1", "C2")]
        assert sample["tags"].tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["parquet", "folder", "memory", "reader", "batch", "stream"])
def test_every_form_of_a_table_gives_the_same_rows_and_numbers_the_same_shards(
    tmp_path: Path, kind: str
) -> None:
    """What has no fixed width is divided at row groups, which the forms do not have in common."""
    source = table(500).drop_columns(["word"])
    sources: dict[str, Any] = {
        "parquet": lambda: write(tmp_path / "t.parquet", source, 77),
        "folder": lambda: _parts(tmp_path / "parts", source),
        "memory": lambda: source,
        "reader": lambda: source.to_reader(max_chunksize=13),
        "batch": lambda: source.combine_chunks().to_batches()[0],
        "stream": lambda: _Stream(source),
    }
    pack(sources[kind](), tmp_path / "rows", groups=GROUPS, shard_size=5000)
    found_rows = read(tmp_path / "rows")
    for name in ("label", "name", "tags"):
        assert found_rows[name] == source[name].to_pylist()
    options: dict[str, Any] = {"columns": ["label", *GROUPS], "shard_size": 5000}
    source = source.drop_columns(["name", "tags"])
    shutil.rmtree(tmp_path / "parts", ignore_errors=True)
    pack(sources[kind](), tmp_path / "out", groups=GROUPS, **options)
    pack(source, tmp_path / "expected", groups=GROUPS, **options)
    found, expected = files(tmp_path / "out"), files(tmp_path / "expected")
    del found["manifest.arrow"], expected["manifest.arrow"]  # they name the source
    assert found == expected
    found_statistics = Manifest(tmp_path / "out").statistics
    assert found_statistics == Manifest(tmp_path / "expected").statistics


def _parts(folder: Path, source: pa.Table) -> Path:
    folder.mkdir()
    for number, first in enumerate(range(0, source.num_rows, 111)):
        write(folder / f"{number}.parquet", source.slice(first, 111), 50)
    return folder


class _Stream:
    """What data frames have: Arrow's stream interface."""

    def __init__(self, source: pa.Table) -> None:
        self._source = source

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._source.__arrow_c_stream__(requested_schema)


def test_any_number_of_workers_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sources, "PIECE_ROWS", 64)
    path = write(tmp_path / "t.parquet", table(3000), 170)
    for workers in (1, 4):
        pack(path, tmp_path / str(workers), groups=GROUPS, shard_size=20_000, workers=workers)
    assert files(tmp_path / "1") == files(tmp_path / "4")


def test_of_a_stream_the_row_that_reaches_the_size_is_a_shard_s_last(tmp_path: Path) -> None:
    source = pa.table({"x": np.arange(100), "t": ["a" * n for n in range(100)]})
    pack(source.to_reader(), tmp_path / "out", shard_size=500)
    rows, held = [0], 0
    for n in range(100):
        rows[-1] += 1
        held += 8 + 8 + n  # a record, an offset, the text
        if held >= 500:
            rows.append(0)
            held = 0
    assert Manifest(tmp_path / "out").shard_rows.tolist() == [count for count in rows if count]


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_killed_pack_goes_on_where_it_was(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sources, "PIECE_ROWS", 64)
    path = write(tmp_path / "t.parquet", table(2000), 300)
    options: dict[str, Any] = {"groups": GROUPS, "shard_size": 15_000}
    pack(path, tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt), packing_ends_after(after):
        pack(path, tmp_path / "out", **options)
    with pytest.raises(DatasetNotFound):
        Manifest(tmp_path / "out")
    first = tmp_path / "out" / "shard-000000.arrow"
    written = first.stat().st_mtime_ns
    report = pack(path, tmp_path / "out", resume=True, **options)
    assert first.stat().st_mtime_ns == written
    assert report.rows == 2000
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_table_that_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table(2000))
    with pytest.raises(KeyboardInterrupt), packing_ends_after(2):
        pack(path, tmp_path / "out", shard_size=15_000)
    write(path, table(2000), 301)
    with pytest.raises(PackError, match=r"t\.parquet has changed"):
        pack(path, tmp_path / "out", shard_size=15_000, resume=True)
    with pytest.raises(PackError, match="table was"):
        pack(path, tmp_path / "out", shard_size=15_000, resume=True, dtypes={"C1": "int8"})


def test_a_table_is_packed_to_a_url(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table(500))
    report = pack(path, "memory://bucket/table", shard_size=9999, groups=GROUPS)
    pack(path, tmp_path / "out", shard_size=9999, groups=GROUPS)
    import fsspec

    store = fsspec.filesystem("memory")
    found = {p.rpartition("/")[2]: store.cat(p) for p in store.ls("/bucket/table", detail=False)}
    assert without_ids(found) == without_ids(files(tmp_path / "out"))
    assert report.rows == 500


# --- Statistics -----------------------------------------------------------------------------------


def statistics(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(about["field"], about["column"]): about for about in Manifest(folder).statistics}


def test_statistics_are_numpy_s(tmp_path: Path) -> None:
    source = table(5000)
    pack(source, tmp_path / "out", groups=GROUPS, shard_size=9999)
    found = statistics(tmp_path / "out")
    for field, column in (("label", "label"), ("dense", "I2"), ("sparse", "C1")):
        values = source.column(column).to_numpy().astype(np.float64)
        about = found[field, column]
        assert (about["count"], about["nulls"], about["nan"]) == (5000, 0, 0)
        assert (about["min"], about["max"]) == (values.min(), values.max())
        np.testing.assert_allclose(about["mean"], values.mean(), rtol=1e-12)
        np.testing.assert_allclose(about["std"], values.std(), rtol=1e-12)
    assert found["word", "word"]["distinct"] == 3
    assert set(found["name", "name"]) == {"field", "column", "count", "nulls", "nan"}
    tags = np.concatenate(source.column("tags").to_pylist())
    np.testing.assert_allclose(found["tags", "tags"]["mean"], tags.mean(), rtol=1e-12)


def test_statistics_leave_out_nulls_and_nan(tmp_path: Path) -> None:
    x = [1.0, None, float("nan"), 4.0]
    source = pa.table(
        {"x": x, "n": [None, 5, None, 7], "t": ["a", None, "b", "c"], "w": [None] * 4}
    )
    source = source.set_column(3, "w", pa.array([None] * 4, pa.float32()))
    pack(source, tmp_path / "out", nulls={"n": "mask", "t": "?"})
    found = statistics(tmp_path / "out")
    assert found["x", "x"] == {
        "field": "x", "column": "x", "count": 2, "nulls": 1, "nan": 1, "min": 1.0, "max": 4.0,
        "mean": 2.5, "std": 1.5,
    }  # fmt: skip
    about = found["n", "n"]
    assert (about["count"], about["nulls"], about["mean"]) == (2, 2, 6)
    assert (found["t", "t"]["count"], found["t", "t"]["nulls"]) == (3, 1)
    about = found["w", "w"]
    assert (about["count"], about["nulls"], about["mean"], about["min"]) == (0, 4, None, None)


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"codec": "jpeg"}, "codec can only be used with images, and Table has only the fields"),
        ({"quality": 90}, "quality can only be used with images"),
        ({"max_side": 90}, "max_side can only be used with images"),
        ({"max_pixels": 90}, "max_pixels can only be used with images"),
        ({"on_error": "skip"}, "on_error='skip' cannot be used with tables"),
    ],
)
def test_options_about_images_are_refused(tmp_path: Path, options: Any, part: str) -> None:
    with pytest.raises(OptionError, match=part):
        pack(table(3), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="columns, groups, dtypes and nulls"):
        pack(table(3), tmp_path / "out", schema=Schema({"label": Scalar("int8")}))


def test_options_about_tables_are_refused_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="can only be used with tables"):
        pack([1, 2], tmp_path / "out", columns=["x"])


def test_a_stream_of_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"'word' is dictionary-encoded.*read_all"):
        pack(table(3).to_reader(), tmp_path / "out")


def test_a_table_without_rows(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="there is nothing to pack: Table has no rows"):
        pack(table(3).slice(3), tmp_path / "out")


def test_a_null_leaves_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="'x' has 1 null"):
        pack(pa.table({"x": [1, None]}), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.arrow").exists()


def test_a_csv_with_paths_stays_a_list_of_images(tmp_path: Path) -> None:
    from tests.pictures import jpeg

    (tmp_path / "a.jpg").write_bytes(jpeg(seed=1))
    (tmp_path / "list.csv").write_text("path,label\na.jpg,1\n")
    pack(tmp_path / "list.csv", tmp_path / "images")
    assert Manifest(tmp_path / "images").schema.fields["image"] == Image()
    pack(tmp_path / "list.csv", tmp_path / "table", columns=["path", "label"])
    assert Manifest(tmp_path / "table").schema.fields == {"path": Text(), "label": Scalar("int64")}
    (tmp_path / "numbers.csv").write_text("x,label\n0.5,1\n")
    pack(tmp_path / "numbers.csv", tmp_path / "numbers")
    assert read(tmp_path / "numbers") == {"x": [0.5], "label": [1]}


# --- The command ----------------------------------------------------------------------------------


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_packs_tables_and_tells_their_statistics(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table(100))
    run(
        "pack", path, tmp_path / "out", "--quiet", "--columns", "label,dense,C1",
        "--group", "dense=I1..I3", "--dtype", "label=float32", "--null", "C1=0",
    )  # fmt: skip
    about = json.loads(run("info", tmp_path / "out", "--json"))
    assert [field["name"] for field in about["fields"]] == ["label", "dense", "C1"]
    assert about["records"] is True
    assert [column["column"] for column in about["statistics"]] == ["label", "I1", "I2", "I3", "C1"]
    assert about["packing"]["table"]["nulls"] == {"C1": 0}
    text = run("info", tmp_path / "out")
    for part in ("dense", "I2", "mean", "std", f"{about['statistics'][1]['mean']:.6g}"):
        assert part in text


@pytest.mark.parametrize("wrong", ["dense", "=I1", "dense="])
def test_options_that_do_not_read_like_pairs(tmp_path: Path, wrong: str) -> None:
    arguments = ["pack", "t.parquet", str(tmp_path / "out"), "--group", wrong]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "--group" in result.output


def test_pieces_of_tables_in_memory_cross_their_borders() -> None:
    parts = [MemoryTable(str(n), pa.table({"x": np.arange(3) + 3 * n})) for n in range(4)]
    tables = Tables(parts, TableOptions())
    (piece,) = tables.pieces(4, 100)
    assert [(place.file, place.first_row) for place, _ in piece.parts] == [
        ("1", 1), ("2", 0), ("3", 0),
    ]  # fmt: skip
