"""Packing some rows of tables, and some of their files; files that are many or have long lines."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest
import typer
from typer.testing import CliRunner

import fastio
from fastio import OptionError, PackError, SchemaError, ShardCorrupt
from fastio.cli import main
from fastio.cli.parsing import parse_condition
from fastio.sources.table import text_files as text_module
from fastio.sources.table.filters import Filter
from fastio.sources.table.opening import joined, open_all
from fastio.sources.table.options import TableOptions
from tests.children import run_code
from tests.support import packing_ends_after


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "in"
    root.mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        x = np.arange(number * 500, number * 500 + 500)
        table = pa.table(
            {
                "x": x,
                "y": rng.standard_normal(500),
                "word": pa.array([f"w{n % 5}" for n in x]),
                "kind": pa.array([f"k{n % 3}" for n in x]).dictionary_encode(),
            }
        )
        pa.parquet.write_table(table, root / f"{number}.parquet", row_group_size=120)
    return root


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def numbers(path: Path) -> list[int]:
    with fastio.open(path) as packed:
        return [int(packed[row]["x"]) for row in range(len(packed))]


FILTERS: list[Any] = [
    [("x", ">=", 130), ("x", "<", 777)],
    [[("x", "<", 9)], [("x", ">", 1490)]],
    [("word", "in", ["w1", "w3"])],
    [("kind", "==", "k2"), ("y", ">", 0.5)],
    pa.dataset.field("y") > 1,
    pa.dataset.scalar(True),
]


@pytest.mark.parametrize("filters", FILTERS)
def test_the_rows_are_those_that_pyarrow_leaves(folder: Path, tmp_path: Path, filters: Any) -> None:
    report = fastio.pack(folder, tmp_path / "out", filters=filters, columns=["x"])
    wanted = pa.parquet.read_table(folder, filters=filters)["x"].to_pylist()
    assert numbers(tmp_path / "out") == wanted
    assert report.rows == len(wanted)


def test_tables_in_memory_and_of_text_are_filtered_too(folder: Path, tmp_path: Path) -> None:
    table = pa.parquet.read_table(folder)
    pa.csv.write_csv(table.select(["x", "y", "word"]), tmp_path / "t.csv")
    filters = [("x", ">=", 700), ("word", "==", "w2")]
    wanted = table.filter(pa.parquet.filters_to_expression(filters))["x"].to_pylist()
    for name, source in (("memory", table), ("text", tmp_path / "t.csv")):
        fastio.pack(source, tmp_path / name, filters=filters, columns=["x"])
        assert numbers(tmp_path / name) == wanted


def test_row_groups_that_cannot_match_are_not_read(folder: Path, tmp_path: Path) -> None:
    path = folder / "0.parquet"
    column = pa.parquet.read_metadata(path).row_group(0).column(0)
    with open(path, "r+b") as file:
        file.seek(column.dictionary_page_offset or column.data_page_offset)
        file.write(b"\xff" * 64)
    with pytest.raises(ShardCorrupt, match=r"0\.parquet, row group 0"):
        fastio.pack(folder, tmp_path / "all", columns=["x"])
    fastio.pack(folder, tmp_path / "out", columns=["x"], filters=[("x", ">=", 120)])
    assert numbers(tmp_path / "out") == list(range(120, 1500))


@pytest.mark.parametrize("workers", [1, 4])
def test_a_filtered_pack_is_resumed_to_the_same_bytes(
    folder: Path, tmp_path: Path, workers: int
) -> None:
    options: dict[str, Any] = {"filters": [("word", "!=", "w0")], "shard_size": 3000}
    fastio.pack(folder, tmp_path / "whole", workers=1, **options)
    with pytest.raises(KeyboardInterrupt), packing_ends_after(4):
        fastio.pack(folder, tmp_path / "out", workers=workers, **options)
    with pytest.raises(PackError, match="table was"):
        fastio.pack(folder, tmp_path / "out", resume=True, shard_size=3000)
    fastio.pack(folder, tmp_path / "out", workers=workers, resume=True, **options)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


def test_errors_name_rows_of_the_file(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"x": [5, 6, 300, 7, 301]}), tmp_path / "t.parquet")
    with pytest.raises(SchemaError, match="column 'x', row 4: 301 does not fit int8"):
        fastio.pack(
            tmp_path / "t.parquet",
            tmp_path / "out",
            dtypes={"x": "int8"},
            filters=[("x", "!=", 300)],
        )


def test_filters_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"0\.parquet: filters=.*does not fit the table"):
        fastio.pack(folder, tmp_path / "out", filters=[("nowhere", "==", 1)])
    pa.parquet.write_table(pa.table({"z": [1]}), folder / "9.parquet")
    with pytest.raises(SchemaError, match=r"9\.parquet: filters="):
        fastio.pack(folder, tmp_path / "out", filters=[("x", "==", 1)], columns=["z"])
    with pytest.raises(OptionError, match="filters can"):
        fastio.pack([1, 2], tmp_path / "out", filters=[("x", "==", 1)])
    with pytest.raises(PackError, match="there is nothing to pack"):
        fastio.pack(folder / "0.parquet", tmp_path / "out", filters=[("x", "<", 0)])


# Files that cannot be read


def test_files_that_cannot_be_opened_are_left_out_where_that_is_wanted(
    folder: Path, tmp_path: Path
) -> None:
    data = (folder / "1.parquet").read_bytes()
    (folder / "1.parquet").write_bytes(data[: len(data) // 2])
    (folder / "2b.parquet").write_bytes(b"")
    with pytest.raises(ShardCorrupt):
        fastio.pack(folder, tmp_path / "none")
    report = fastio.pack(folder, tmp_path / "out", on_error="skip")
    assert [Path(name).name for name, _ in report.skipped] == ["1.parquet", "2b.parquet"]
    assert "0 bytes" in report.skipped[1][1]
    assert numbers(tmp_path / "out") == [*range(500), *range(1000, 1500)]

    options: dict[str, Any] = {"on_error": "skip", "shard_size": 3000}
    with pytest.raises(KeyboardInterrupt), packing_ends_after(2):
        fastio.pack(folder, tmp_path / "half", **options)
    (folder / "1.parquet").write_bytes(data)
    with pytest.raises(PackError, match="has changed"):
        fastio.pack(folder, tmp_path / "half", resume=True, **options)


def test_where_no_file_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"none")
    for filters in (None, [("x", ">", 1)]):
        with pytest.raises(ShardCorrupt, match=r"no file can be read: .*t\.parquet"):
            fastio.pack(tmp_path / "t.parquet", tmp_path / "out", on_error="skip", filters=filters)


# The command


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x >= 3", ("x", ">=", 3)),
        ("x<=-2.5", ("x", "<=", -2.5)),
        ("a b = 'c d'", ("a b", "==", "c d")),
        ('n == "3"', ("n", "==", "3")),
        ("flag != true", ("flag", "!=", True)),
        ("kind in a,b", ("kind", "in", ["a", "b"])),
        ("kind not  in [1, 2]", ("kind", "not in", [1, 2])),
        ("kind in 'a, b', c", ("kind", "in", ["a, b", "c"])),
        ("word == in", ("word", "==", "in")),
    ],
)
def test_conditions_read_as_they_look(text: str, wanted: Any) -> None:
    assert parse_condition(text) == wanted


@pytest.mark.parametrize("text", ["x", "x 3", ">= 3", "x >=", "in a", ""])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="must have the form"):
        parse_condition(text)


def test_the_command_filters(folder: Path, tmp_path: Path) -> None:
    arguments = ["pack", str(folder), str(tmp_path / "out"), "--json"]
    arguments += ["--filter", "x >= 100", "--filter", "word in w1,w2"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    filters = [("x", ">=", 100), ("word", "in", ["w1", "w2"])]
    wanted = pa.parquet.read_table(folder, filters=filters)["x"].to_pylist()
    assert json.loads(result.stdout)["rows"] == len(wanted)
    assert numbers(tmp_path / "out") == wanted


# Long lines, and many files


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("block", [1 << 16, 8 << 20])
def test_lines_of_any_length(
    tmp_path: Path, place: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "_TEXT_BLOCK", block)
    texts = ["a", "b", "c"]
    texts[place] = "long " * (1 << 20)
    lines = [json.dumps({"x": n, "text": text}) for n, text in enumerate(texts)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    tables = joined(open_all([str(tmp_path / "t.jsonl")]), TableOptions())
    (piece,) = tables.pieces(0, 100)
    found = [row for _, batch in piece.parts for row in batch.to_pylist()]
    assert found == [{"x": n, "text": text} for n, text in enumerate(texts)]


def test_many_files_take_few_descriptors(tmp_path: Path) -> None:
    for number in range(150):
        table = pa.table({"x": [number], "k": pa.array(["w"]).dictionary_encode()})
        pa.parquet.write_table(table, tmp_path / f"{number:03}.parquet")
        with pa.ipc.new_file(tmp_path / f"{number:03}.arrow", table.schema) as writer:
            writer.write_table(table)
    program = (
        "import resource, sys, fastio\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))\n"
        "for pattern in sys.argv[1:3]:\n"
        "    with (\n"
        "        fastio.open(pattern, filters=[('x', '<', 140)]) as rows,\n"
        "        fastio.Loader(rows, 50, shuffle=True, num_workers=4) as batches,\n"
        "    ):\n"
        "        print(sorted(x for b in batches for x in b['x'].tolist()) == list(range(140)))\n"
        "    print(fastio.pack(pattern, sys.argv[3], overwrite=True).rows)\n"
    )
    patterns = [str(tmp_path / "*.parquet"), str(tmp_path / "*.arrow")]
    done = run_code(program, *patterns, tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, "True\n150\n" * 2), done.stderr


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([("a", ">", 1)], [2**63 + 5, 7]),
        ([("a", "!=", 2**63 + 5)], [1, 7]),
        ([("b", ">", 1e6)], [1]),
        ([("b", "<", 2.5)], [7]),
        ([("b", ">=", 2.5), ("b", "<=", np.float32(3.5))], [2**63 + 5]),
        ([("b", "in", [2.5, 3.0, float(2**40), None, 2.0**70])], [1, 2**63 + 5]),
        ([("a", ">", -0.5), ("a", "<", 1e300)], [1, 2**63 + 5, 7]),
        ([[("a", "==", 7)], [("b", ">", 1e6)]], [1, 7]),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_numbers_of_filters_have_the_types_of_their_columns(
    form: str, filters: Any, found: list[int], tmp_path: Path
) -> None:
    """pyarrow takes 1 for an int64 and 1e6 for a float32, and large values fit in neither."""
    table = large_integers(tmp_path / f"t.{form}")
    with fastio.Loader(fastio.open(table, filters=filters), 10) as loader:
        assert [x for batch in loader for x in batch["a"].tolist()] == found


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integers_are_compared_with_numbers_as_python_compares_them(kind: str) -> None:
    limits = np.iinfo(kind)
    ends = (int(limits.min), int(limits.max), 2**24 + 1, 2**53 + 1, 0)
    near = {end + step for end in ends for step in (-1, 0, 1)}
    values = sorted(value for value in near if limits.min <= value <= limits.max)
    table = pa.table({"x": pa.array([*values, None], kind)})
    halves = {float(value) + step for value in near for step in (-0.5, 0.0, 0.5)}
    numbers = {
        *near,
        *halves,
        2**80,
        -(2**2000),
        1e300,
        -1e300,
        *map(float, ("inf", "-inf", "nan")),
    }

    def left(sign: str, number: Any) -> list[int]:
        wanted = Filter.of([("x", sign, number)], table.schema, "t")
        assert wanted is not None
        batch = wanted.of_batch(table.to_batches()[0])
        return batch.column("x").to_pylist()  # type: ignore[no-any-return]

    for number in numbers:
        for sign, holds in OPERATORS.items():
            expected = [value for value in values if holds(value, number)]
            assert left(sign, number) == expected, (sign, number)
    some_numbers = [number for number in numbers if number == number]
    for some in (
        some_numbers,
        some_numbers[:5],
        [np.float32(0.5)],
        np.array([0.5, 1]),
        [float("nan")],
    ):
        among = list(some)
        assert left("in", some) == [value for value in values if value in among]
        assert left("not in", some) == [*(value for value in values if value not in among), None]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_values_that_a_filter_cannot_be_compared_with_are_no_damage(
    form: str, tmp_path: Path
) -> None:
    table = large_integers(tmp_path / f"t.{form}")
    with (
        pytest.raises(SchemaError, match="cannot be compared with the values"),
        fastio.Loader(fastio.open(table, filters=pc.field("b") < 2.5), 10) as loader,
    ):
        list(loader)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("values", [[True], ["1"]])
def test_lists_with_values_of_another_type_are_errors_of_the_filter(
    form: str, values: list[Any], tmp_path: Path
) -> None:
    table = large_integers(tmp_path / f"t.{form}")
    with (
        pytest.raises(SchemaError, match="filter"),
        fastio.Loader(fastio.open(table, filters=[("b", "in", values)]), 10) as loader,
    ):
        list(loader)


def large_integers(path: Path) -> Path:
    """A file with values beyond int64 in column a and beyond float32 in column b."""
    table = pa.table({"a": pa.array([1, 2**63 + 5, 7], pa.uint64()), "b": [2**40, 3, -(2**60)]})
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, row_group_size=1)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path
