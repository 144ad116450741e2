"""Table files of every kind are found and read; what is wrong with one is told by its name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as pa_feather
import pyarrow.parquet as pa_parquet
import pytest

from fastio import SchemaError, ShardCorrupt, SourceNotFound
from fastio.sources.table.files import find_tables
from fastio.sources.table.objects import TableFile
from fastio.sources.table.opening import joined, open_all
from fastio.sources.table.options import TableOptions
from fastio.sources.table.tables import Tables


def write(path: Path, table: pa.Table) -> Path:
    """A table file of the kind that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name
    if name.endswith((".parquet", ".pq")):
        pa_parquet.write_table(table, path, row_group_size=4)
    elif name.endswith((".arrow", ".ipc")):
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    elif name.endswith(".feather"):
        pa_feather.write_feather(table, path, compression="lz4")
    else:
        text = _text(table, "csv" in name)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def _text(table: pa.Table, is_csv: bool) -> str:
    records = table.to_pylist()
    if not is_csv:
        return "".join(json.dumps(record) + "\n" for record in records)
    lines = [",".join("" if v is None else str(v) for v in r.values()) for r in records]
    return "\n".join([",".join(table.schema.names), *lines]) + "\n"


def rows_of(tables: Tables, start: int = 0, piece_rows: int = 4) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in tables.schema.fields}
    first = start
    for piece in tables.pieces(start, piece_rows):
        assert piece.first_row == first
        first += piece.rows
        for place, batch in piece.parts:
            for name, values in tables.conversion.convert(batch, place).fields.items():
                found[name] += values.tolist()  # type: ignore[union-attr]
    return found


def names(files: list[TableFile] | None) -> list[str]:
    return [file.name for file in files or ()]


def table(first: int, count: int) -> pa.Table:
    x = np.arange(first, first + count)
    return pa.table({"x": x, "y": x + 0.5})


KINDS = [
    "a.parquet", "a.pq", "a.arrow", "a.ipc", "a.feather", "a.csv", "a.csv.gz", "a.jsonl",
    "a.ndjson", "a.jsonl.gz",
]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("start", [0, 1, 4, 9, 10, 17, 18])
def test_files_are_read_from_any_row_on(tmp_path: Path, name: str, start: int) -> None:
    stem, _, suffix = name.partition(".")
    paths = [str(write(tmp_path / f"{stem}{n}.{suffix}", table(9 * n, 9))) for n in range(2)]
    tables = joined(open_all(paths), TableOptions())
    assert tables.total in (18, None)
    found = rows_of(tables, start)
    assert found["x"] == list(range(start, 18))
    assert found["y"] == [n + 0.5 for n in range(start, 18)]


def test_pieces_end_at_multiples_whatever_the_files_are(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.parquet", table(n * 7, 7)) for n in range(3)]
    tables = joined(open_all([str(p) for p in paths]), TableOptions())
    ends = [piece.first_row + piece.rows for piece in tables.pieces(2, 5)]
    assert ends == [5, 10, 15, 20, 21]


def test_arrow_streams_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    with pa.ipc.new_stream(path, table(0, 1).schema) as writer:
        writer.write_table(table(0, 5))
    assert rows_of(joined(open_all([str(path)]), TableOptions()))["x"] == [0, 1, 2, 3, 4]


def test_a_folder_s_tables_are_sorted_and_hidden_ones_left_out(tmp_path: Path) -> None:
    for name in ("b/2.parquet", "a.parquet", "b/10.parquet", "_tmp.parquet", ".x/c.parquet"):
        write(tmp_path / name, table(0, 1))
    (tmp_path / "README.md").write_text("about")
    found = names(find_tables(tmp_path))
    assert [Path(p).relative_to(tmp_path).as_posix() for p in found] == [
        "a.parquet", "b/10.parquet", "b/2.parquet",
    ]  # fmt: skip
    assert names(find_tables(f"{tmp_path}/b/*.parquet")) == found[1:]
    assert names(find_tables([found[2], found[0]])) == [found[2], found[0]]


def test_a_folder_with_images_is_no_table(tmp_path: Path) -> None:
    write(tmp_path / "metadata.csv", table(0, 1))
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.JPG").write_bytes(b"")
    assert find_tables(tmp_path) is None
    assert find_tables(tmp_path / "cat") is None
    assert find_tables([1, 2]) is None
    assert find_tables("nowhere") is None


def test_a_pattern_that_matches_nothing(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"\*\.parquet matches no file"):
        find_tables(f"{tmp_path}/*.parquet")


def test_a_listed_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"b\.parquet does not exist"):
        find_tables([write(tmp_path / "a.parquet", table(0, 1)), tmp_path / "b.parquet"])


def test_files_of_several_kinds(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table(0, 1))
    write(tmp_path / "b.csv", table(0, 1))
    with pytest.raises(SchemaError, match=r"a\.parquet and .*b\.csv"):
        find_tables(tmp_path)


# --- Files that differ ----------------------------------------------------------------------------


def both(tmp_path: Path, second: pa.Table, **options: Any) -> Tables:
    paths = [write(tmp_path / "a.parquet", table(0, 3)), write(tmp_path / "b.parquet", second)]
    return joined(open_all([str(path) for path in paths]), TableOptions(**options))


def test_columns_may_stand_in_another_order(tmp_path: Path) -> None:
    found = rows_of(both(tmp_path, table(3, 3).select(["y", "x"])))
    assert found["x"] == [0, 1, 2, 3, 4, 5]


def test_narrower_numbers_are_widened(tmp_path: Path) -> None:
    second = pa.table({"x": np.int32([3]), "y": np.float32([3.5])})
    tables = both(tmp_path, second)
    assert [kind.dtype for kind in tables.schema.fields.values()] == ["int64", "float64"]  # type: ignore[union-attr]
    assert rows_of(tables)["x"] == [0, 1, 2, 3]


def test_a_missing_column_is_named_with_both_files(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"b\.parquet has no column 'y', which .*a\.parquet has"):
        both(tmp_path, table(0, 1).select(["x"]))
    assert rows_of(both(tmp_path, table(0, 1).select(["x"]), columns=("x",)))["x"] == [0, 1, 2, 0]


def test_a_further_column_is_named_with_both_files(tmp_path: Path) -> None:
    more = table(0, 1).append_column("z", [[1]])
    with pytest.raises(SchemaError, match=r"b\.parquet has the column 'z', which .*a\.parquet"):
        both(tmp_path, more)
    assert rows_of(both(tmp_path, more, columns=("x",)))["x"] == [0, 1, 2, 0]


def test_another_type_is_named_with_both_files(tmp_path: Path) -> None:
    second = pa.table({"x": ["1"], "y": [1.0]})
    with pytest.raises(SchemaError) as caught:
        both(tmp_path, second)
    for part in ("'x'", "string", "int64", "a.parquet", "b.parquet"):
        assert part in str(caught.value)


def test_a_file_without_rows_may_be_among_others(tmp_path: Path) -> None:
    tables = both(tmp_path, table(0, 0))
    assert (tables.total, rows_of(tables)["x"]) == (3, [0, 1, 2])


# --- Files that are damaged -----------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ShardCorrupt, match=rf"{name} is empty: it has 0 bytes"):
        joined(open_all([str(tmp_path / name)]), TableOptions())


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.csv.gz", "a.jsonl"])
def test_a_file_of_something_else_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x01\x02 no table \xff" * 9)
    with pytest.raises(ShardCorrupt, match=rf"{name} cannot be read"):
        joined(open_all([str(tmp_path / name)]), TableOptions())


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = np.random.default_rng(0).integers(0, 2**60, 3000)
    pa_parquet.write_table(
        pa.table({"x": values}), path, row_group_size=1000, compression="zstd",
        use_dictionary=False,
    )  # fmt: skip
    column = pa_parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 64] = bytes(64)
    data[column.data_page_offset : column.data_page_offset + 8] = b"\xff" * 8
    path.write_bytes(data)
    tables = joined(open_all([str(path)]), TableOptions())
    with pytest.raises(ShardCorrupt, match=r"a\.parquet, row group 1 cannot be read"):
        rows_of(tables)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,x\n1,2\n")
    with pytest.raises(SchemaError, match=r"a\.csv: several columns have the name 'x'"):
        joined(open_all([str(tmp_path / "a.csv")]), TableOptions())


def test_nulls_are_named_with_their_row_group(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"x": [1, 2, 3, 4, 5, None, None, 8]}))
    with pytest.raises(SchemaError, match=r"a\.parquet: column 'x' has 2 nulls .* \(row group 1\)"):
        rows_of(joined(open_all([str(path)]), TableOptions()))


# --- Text -----------------------------------------------------------------------------------------


def test_csv_files_agree_on_a_type(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,t\n1,a\n")
    (tmp_path / "b.csv").write_text('t,x\n"b, c",2.5\n')
    paths = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    tables = joined(open_all(paths), TableOptions(columns=("x",)))
    assert rows_of(tables)["x"] == [1.0, 2.5]


LARGE = (1 << 64) - 1


@pytest.mark.parametrize("name", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("first", "second", "options", "expected"),
    [
        ([1, LARGE], [1 << 63], {}, "uint64"),
        ([1, 2], [LARGE], {}, "uint64"),  # the files agree on a type
        ([LARGE], [1.5], {}, "float64"),
        ([LARGE, 1.5], [1], {}, "float64"),
        ([LARGE + 1, 1], [1], {}, "float64"),
        ([-1, LARGE], [1], {}, "float64"),  # no type of integers holds both
        ([1] * 90 + [LARGE], [1], {"x": "uint64"}, "uint64"),  # not in the first block
    ],
)
def test_integers_of_text_files_that_only_uint64_holds_are_not_floats(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    first: list[float],
    second: list[float],
    options: dict[str, str],
    expected: str,
) -> None:
    monkeypatch.setattr("fastio.sources.table.text_files._TEXT_BLOCK", 64)
    paths = []
    for part, values in (("a", first), ("b", second)):
        line = "{}" if name == "csv" else '{{"x": {}}}'
        lines = ["x"] * (name == "csv") + [line.format(value) for value in values]
        path = tmp_path / f"{part}.{name}"
        path.write_text("\n".join(lines) + "\n")
        paths.append(str(path))
    tables = joined(open_all(paths), TableOptions(dtypes=options))
    assert tables.schema.fields["x"].dtype == expected
    values = first + second
    assert rows_of(tables)["x"] == (values if expected == "uint64" else list(map(float, values)))


def test_a_csv_value_of_another_type_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.sources.table.text_files._TEXT_BLOCK", 64)
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 90 + "2.5\n")
    paths = [str(tmp_path / "a.csv")]
    with pytest.raises(ShardCorrupt, match=r"a\.csv cannot be read: .*2\.5.*--dtype"):
        rows_of(joined(open_all(paths), TableOptions()))
    assert rows_of(joined(open_all(paths), TableOptions(dtypes={"x": "float32"})))["x"][-1] == 2.5


def test_jsonl_is_read_by_blocks_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio.sources.table.text_files._TEXT_BLOCK", 10)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"x": {n}, "s": {{"y": {n}}}}}\n' for n in range(50)) + "\n\n")
    found = rows_of(joined(open_all([str(path)]), TableOptions()), 7)
    assert found == {"x": list(range(7, 50)), "s_y": list(range(7, 50))}
