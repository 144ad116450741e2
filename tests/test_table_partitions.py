"""Columns that the names of folders are, against pyarrow.dataset's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import fastio
from fastio import Loader, SchemaError
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.files import find_tables, values_of
from fastio.sources.table.filters import constants_of
from fastio.sources.table.opening import joined, open_all
from fastio.sources.table.options import TableOptions
from tests.support import open_loader

ROWS = 20


def write(root: Path, folders: str, first: int, **columns: Any) -> Path:
    path = root / folders / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    x = list(range(first, first + ROWS))
    table = pa.table({"x": x, **{n: pa.array([v] * ROWS, pa.int32()) for n, v in columns.items()}})
    pa.parquet.write_table(table, path, row_group_size=8)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Years and countries, one of them unknown and one of them with a space."""
    folder = tmp_path / "data"
    places = ["year=2023/in=fr", "year=2023/in=__HIVE_DEFAULT_PARTITION__", "year=2024/in=de"]
    for number, place in enumerate([*places, "year=2024/in=new%20york", "year=-1/in=7"]):
        write(folder, place, number * ROWS)
    return folder


def samples(source: Any, **options: Any) -> list[dict[str, Any]]:
    """All rows as the loader gives them, words for codes, sorted by x."""
    found: list[dict[str, Any]] = []
    with open_loader(source, 7, num_workers=2, memory="8MiB", **options) as batches:
        words = batches._feed.dataset.schema.vocabularies  # type: ignore[attr-defined,union-attr]
        for batch in batches:
            columns = {name: values.tolist() for name, values in batch.items()}
            for name, known in words.items():
                valid = columns.pop(f"{name}_valid", [True] * len(columns[name]))
                columns[name] = [
                    known[code] if there else None
                    for code, there in zip(columns[name], valid, strict=True)
                ]
            rows = zip(*columns.values(), strict=True)
            found += [dict(zip(columns, row, strict=True)) for row in rows]
    return sorted(found, key=lambda row: row["x"])


def wanted(root: Path, filters: Any = None) -> list[dict[str, Any]]:
    dataset = pa.dataset.dataset(root, partitioning="hive")
    condition = None if filters is None else pa.parquet.filters_to_expression(filters)
    return dataset.to_table(filter=condition).sort_by("x").to_pylist()


MASK = {"in": "mask"}


def test_a_folder_s_columns_are_pyarrow_s(root: Path) -> None:
    assert samples(root, nulls=MASK) == wanted(root)
    assert samples(f"{root}/*/*/*.parquet", shuffle=True, nulls=MASK) == wanted(root)
    files = [str(path) for path in root.rglob("*.parquet")]
    assert samples(files, nulls=MASK) == wanted(root)
    assert samples(files[0])[0].keys() == {"x"}


@pytest.mark.parametrize(
    "filters",
    [
        [("year", "==", 2024)],
        [("year", ">", 0), ("x", "<", 50)],
        [("in", "==", "new york")],
        [("in", "in", ["de", "fr"])],
        [[("year", "==", -1)], [("x", "<", 5)]],
        [("year", "==", 1999)],
        pa.dataset.field("in").is_null(),
    ],
)
def test_filters_leave_what_pyarrow_leaves(root: Path, filters: Any) -> None:
    assert samples(root, filters=filters, nulls=MASK) == wanted(root, filters)


def test_files_that_a_filter_leaves_out_are_not_opened(root: Path) -> None:
    for path in root.rglob("year=2023/**/*.parquet"):
        path.write_bytes(b"no table")
    (root / "year=-1/in=7/part-0.parquet").rename(root / "year=-1/in=7/0.parquet")
    found = samples(root, filters=[("year", "==", 2024)])
    assert [row["x"] for row in found] == list(range(2 * ROWS, 4 * ROWS))


def test_they_are_columns_as_others_are(root: Path) -> None:
    with Loader(
        fastio.open(root, columns=["g", "in"], groups={"g": ["x", "year"]}, nulls=MASK), 50
    ) as batches:
        for batch in batches:
            assert batch["g"].shape[1] == 2
            assert set(batch["g"][:, 1].tolist()) <= {2023, 2024, -1}
    assert samples(root, columns=["x", "year"])[0] == {"x": 0, "year": 2023}
    with Loader(root, 30, fields=["year"]) as batches:
        assert sum(batch["year"].sum().item() for batch in batches) == ROWS * (2 * 4047 - 1)
    with pytest.raises(SchemaError, match="cannot be in the group"):
        samples(root, groups={"g": ["x", "in"]})


def test_integers_are_int32_and_all_else_is_words() -> None:
    def kinds(*values: str) -> tuple[Any, Any]:
        class File:
            def __init__(self, value: str) -> None:
                self.values = values_of([f"k={value}"])

        constants = constants_of([File(value) for value in values])  # type: ignore[misc]
        found = constants[0]
        assert found is not None
        return found.fields["k"], found.values["k"]

    words = pa.dictionary(pa.int32(), pa.string())
    assert kinds("03", "-2") == (pa.int32(), 3)
    assert kinds("2147483647") == (pa.int32(), 2147483647)
    assert kinds("2147483648") == (words, "2147483648")
    assert kinds("+4") == (words, "+4")
    assert kinds("1", "a") == (words, "1")
    assert kinds("") == (words, "")
    assert kinds("a%2Fb=c") == (words, "a/b=c")


def test_the_path_counts_where_the_file_has_the_column_too(tmp_path: Path) -> None:
    write(tmp_path / "d", "year=2024", 0, year=1)
    write(tmp_path / "d", "year=2025", ROWS, year=1)
    found = samples(tmp_path / "d")
    assert found == wanted(tmp_path / "d")
    assert {row["year"] for row in found} == {2024, 2025}
    found = samples(tmp_path / "d", filters=[("year", "==", 2025)])
    assert [row["x"] for row in found] == list(range(ROWS, 2 * ROWS))
    assert samples(tmp_path / "d", filters=[("year", "==", 1)]) == []


def test_files_without_a_value_have_nulls(tmp_path: Path) -> None:
    write(tmp_path / "d", "year=2024", 0)
    write(tmp_path / "d", "", ROWS)
    found = samples(tmp_path / "d", nulls={"year": -5})
    assert [row["year"] for row in found] == [2024] * ROWS + [-5] * ROWS


def test_lines_of_text_have_them_too(tmp_path: Path) -> None:
    for number, day in enumerate(("mon", "tue")):
        path = tmp_path / f"day={day}" / "0.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps({"x": 3 * number + n}) + "\n" for n in range(3)))
    found = samples(tmp_path)
    assert [row["day"] for row in found] == ["mon"] * 3 + ["tue"] * 3
    found = samples(tmp_path, filters=[("day", "==", "tue")])
    assert [row["x"] for row in found] == [3, 4, 5]
    tables = joined(open_all(find_tables(tmp_path) or []), TableOptions(columns=("day",)))
    pieces = list(tables.pieces(0, 4))
    assert [piece.rows for piece in pieces] == [4, 2]


@pytest.fixture
def memory(root: Path) -> Iterator[str]:
    """The files in a store."""
    store = fsspec.filesystem("memory")
    for path in root.rglob("*.parquet"):
        store.pipe_file(f"/hive/{path.relative_to(root)}", path.read_bytes())
    yield "memory://hive"
    store.rm("/hive", recursive=True)


def test_stores_have_them_too(root: Path, memory: str) -> None:
    assert samples(memory, nulls=MASK) == wanted(root)
    filters = [("year", "==", 2024)]
    found = samples(f"{memory}/**/*.parquet", filters=filters, nulls=MASK)
    assert found == wanted(root, filters)


def test_packed_they_are_the_same_here_and_from_a_store(
    root: Path, memory: str, tmp_path: Path
) -> None:
    for name, source in (("here", root), ("there", memory)):
        fastio.pack(source, tmp_path / name, nulls=MASK, shard_size=400)
    shards = {path.name: path.read_bytes() for path in (tmp_path / "here").glob("shard-*")}
    assert len(shards) > 2
    assert shards == {p.name: p.read_bytes() for p in (tmp_path / "there").glob("shard-*")}
    with fastio.open(tmp_path / "here") as packed:
        words = packed.schema.vocabularies["in"]
        found = [packed[row] for row in range(len(packed))]
    ours = [
        {
            "x": int(row["x"]),
            "year": int(row["year"]),
            "in": words[int(row["in"])] if row["in_valid"] else None,
        }
        for row in found
    ]
    assert sorted(ours, key=lambda row: row["x"]) == wanted(root)


def test_a_moved_file_is_another_dataset(root: Path) -> None:
    def fingerprint() -> str:
        files = find_tables(root)
        assert files is not None
        return TableDataset(files, TableOptions(nulls=MASK), memory=1 << 20, threads=1).fingerprint

    before = fingerprint()
    os.rename(root / "year=-1", root / "year=-2")
    assert fingerprint() != before
