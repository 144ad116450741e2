"""A table's columns become the fields that the table in `fastio.sources.table.leaves` says."""

from __future__ import annotations

import datetime
import decimal
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastio
from fastio import Array, Bytes, Scalar, SchemaError, Text
from fastio.sources.table.arrow import MemoryTable
from fastio.sources.table.leaves import widest
from fastio.sources.table.options import TableOptions, expand_range
from fastio.sources.table.tables import Tables
from fastio.sources.table.values import Ragged


def fields(table: pa.Table, piece_rows: int = 7, **options: Any) -> dict[str, Any]:
    """All rows as fields, Ragged ones as lists."""
    tables = Tables([MemoryTable("table", table)], TableOptions(**options))
    found: dict[str, list[Any]] = {name: [] for name in tables.schema.fields}
    for piece in tables.pieces(0, piece_rows):
        for place, batch in piece.parts:
            converted = tables.conversion.convert(batch, place)
            for name, rows in converted.fields.items():
                found[name].append(rows)
    return {name: _whole(parts) for name, parts in found.items()}


def _whole(parts: list[Any]) -> Any:
    if not isinstance(parts[0], Ragged):
        return np.concatenate(parts)
    rows = Ragged.joined(parts)
    ends = rows.offsets.tolist()
    return [rows.values[a:b] for a, b in pairwise(ends)]


def schema_of(table: pa.Table, **options: Any) -> dict[str, Any]:
    return dict(Tables([MemoryTable("table", table)], TableOptions(**options)).schema.fields)


NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@st.composite
def number_columns(draw: Any) -> tuple[pa.Table, str]:
    """A column of numbers in chunks, some sliced, without nulls."""
    dtype = draw(st.sampled_from([*NUMBERS, "float16", "float32", "float64", "bool"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    chunks = []
    for _ in range(draw(st.integers(1, 4))):
        values = rng.integers(0, 100, draw(st.integers(0, 12))).astype(dtype)
        array = pa.array(values)
        cut = draw(st.integers(0, len(array)))
        chunks.append(array.slice(cut, draw(st.integers(0, len(array)))))
    column = pa.chunked_array(chunks, type=pa.from_numpy_dtype(dtype))
    return pa.table({"x": column}), dtype


@given(number_columns(), st.integers(1, 9))
def test_numbers_come_as_they_are(drawn: tuple[pa.Table, str], piece_rows: int) -> None:
    table, dtype = drawn
    if not table.num_rows:
        return
    found = fields(table, piece_rows)["x"]
    assert found.dtype.name == dtype
    assert found.tolist() == table.column("x").to_pylist()


@given(st.lists(st.none() | st.floats(width=32), min_size=1, max_size=20), st.integers(0, 5))
def test_nulls_of_floats_are_nan(values: list[float | None], cut: int) -> None:
    table = pa.table({"x": pa.array(values, pa.float32())}).slice(cut)
    if not table.num_rows:
        return
    expected = [np.nan if v is None else v for v in table.column("x").to_pylist()]
    np.testing.assert_array_equal(fields(table)["x"], np.array(expected, np.float32))


@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20))
def test_masked_nulls_are_zero_and_told(values: list[int | None]) -> None:
    table = pa.table({"x": pa.array(values, pa.int32())})
    found = fields(table, nulls={"x": "mask"})
    assert found["x"].tolist() == [v or 0 for v in values]
    assert found["x_valid"].tolist() == [v is not None for v in values]


@given(st.lists(st.none() | st.text(max_size=9), min_size=1, max_size=20), st.integers(0, 4))
def test_text_and_what_its_nulls_become(values: list[str | None], cut: int) -> None:
    table = pa.table({"t": pa.array(values, pa.string())}).slice(cut)
    if not table.num_rows:
        return
    kept = table.column("t").to_pylist()
    found = fields(table, nulls={"t": "?"})["t"]
    assert [bytes(v).decode() for v in found] == ["?" if v is None else v for v in kept]
    found = fields(table, nulls={"t": "mask"})
    assert [bytes(v).decode() for v in found["t"]] == [v or "" for v in kept]
    assert found["t_valid"].tolist() == [v is not None for v in kept]


@given(
    st.lists(
        st.none() | st.lists(st.none() | st.integers(0, 99), max_size=5), min_size=1, max_size=20
    ),
    st.sampled_from([pa.list_, pa.large_list]),
    st.integers(0, 4),
)
def test_lists_of_numbers(values: list[Any], kind: Any, cut: int) -> None:
    table = pa.table({"v": pa.array(values, kind(pa.float64()))}).slice(cut)
    if not table.num_rows:
        return
    found = fields(table, nulls={"v": -1})["v"]
    for row, expected in zip(found, table.column("v").to_pylist(), strict=True):
        assert row.tolist() == [-1 if v is None else v for v in expected or []]


@given(
    st.lists(
        st.none() | st.lists(st.none() | st.floats(width=32), min_size=6, max_size=6),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 4),
)
def test_fixed_size_lists_are_arrays(values: list[Any], cut: int) -> None:
    flat = pa.array(values, pa.list_(pa.float32(), 6)).slice(cut)
    if not len(flat):
        return
    table = pa.table({"a": flat})
    assert schema_of(table) == {"a": Array("float32", (6,))}
    expected = [
        [np.nan if v is None else v for v in row] if row else [np.nan] * 6
        for row in flat.to_pylist()
    ]
    np.testing.assert_array_equal(fields(table)["a"], np.array(expected, np.float32))


def test_nulls_in_lists_are_no_nulls_of_rows(tmp_path: Path) -> None:
    """A mask of a list column tells which rows have a list, whatever is in it."""
    table = pa.table({"x": pa.array([[None, 1], [None], []], pa.list_(pa.int32()))})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    with fastio.open(tmp_path / "t.parquet", nulls={"x": "mask"}) as dataset:
        rows = np.arange(3)
        assert dataset.gather("x_valid", rows).tolist() == [True, True, True]
        assert [row.tolist() for row in dataset.gather("x", rows)] == [[0, 1], [0], []]


def test_nested_fixed_size_lists_have_several_axes() -> None:
    values = np.arange(24, dtype=np.int16).reshape(4, 2, 3)
    inner = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 3)
    table = pa.table({"a": pa.FixedSizeListArray.from_arrays(inner, 2).slice(1)})
    assert schema_of(table) == {"a": Array("int16", (2, 3))}
    np.testing.assert_array_equal(fields(table)["a"], values[1:])


@pytest.mark.parametrize(
    ("kind", "value", "field", "stored"),
    [
        (pa.date32(), datetime.date(1970, 1, 3), Scalar("int32"), 2),
        (pa.date64(), datetime.date(1970, 1, 3), Scalar("int64"), 2 * 86_400_000),
        (pa.timestamp("ms", "UTC"), datetime.datetime(1970, 1, 1, 0, 0, 1), Scalar("int64"), 1000),
        (pa.time32("s"), datetime.time(0, 1), Scalar("int64"), 60),
        (pa.time64("us"), datetime.time(0, 0, 1), Scalar("int64"), 1_000_000),
        (pa.duration("s"), datetime.timedelta(minutes=2), Scalar("int64"), 120),
        (pa.decimal128(9, 2), decimal.Decimal("1.25"), Scalar("float64"), 1.25),
    ],
)
def test_time_and_decimals(kind: Any, value: Any, field: Any, stored: Any) -> None:
    table = pa.table({"x": pa.array([value, value], kind)})
    assert schema_of(table) == {"x": field}
    assert fields(table)["x"].tolist() == [stored, stored]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view()])
def test_byte_strings(kind: Any) -> None:
    table = pa.table({"x": pa.array([b"ab", b"\xff\0"], kind)})
    assert schema_of(table) == {"x": Bytes()}
    assert [bytes(v) for v in fields(table)["x"]] == [b"ab", b"\xff\0"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_strings_of_every_kind(kind: Any) -> None:
    table = pa.table({"x": pa.array(["a", "größe", ""], kind)})
    assert schema_of(table) == {"x": Text()}
    assert [bytes(v).decode() for v in fields(table)["x"]] == ["a", "größe", ""]


def test_structs_are_taken_apart_and_their_nulls_are_their_children_s() -> None:
    rows = [{"a": 1.0, "b": {"c": 5.0}}, None, {"a": 3.0, "b": None}]
    table = pa.table({"s": pa.array(rows), "n": [1, 2, 3]})
    found = fields(table)
    np.testing.assert_array_equal(found["s_a"], [1, np.nan, 3])
    np.testing.assert_array_equal(found["s_b_c"], [5, np.nan, np.nan])
    assert list(fields(table, columns=("s.b.c", "n"))) == ["s_b_c", "n"]


def test_words_are_numbered_as_they_come_over_all_tables() -> None:
    first = pa.table({"w": pa.array(["b", "a", "b"]).dictionary_encode()})
    second = pa.table({"w": pa.array(["c", None, "a"]).dictionary_encode()})
    tables = [MemoryTable("one", first), MemoryTable("two", second)]
    found = Tables(tables, TableOptions(nulls={"w": "none"}))
    assert found.schema.fields == {"w": Scalar("int32")}
    assert found.schema.vocabularies == {"w": ("b", "a", "c", "none")}
    (piece,) = found.pieces(0, 10)
    codes = [found.conversion.convert(batch, place).fields["w"] for place, batch in piece.parts]
    assert np.concatenate(codes).tolist() == [0, 1, 0, 2, 3, 1]  # type: ignore[arg-type]


def test_dictionaries_of_numbers_are_those_numbers() -> None:
    table = pa.table({"x": pa.array([1.5, 2.5, 1.5]).dictionary_encode()})
    assert fields(table)["x"].tolist() == [1.5, 2.5, 1.5]


# --- Groups and casts -----------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32))
def test_a_group_stacks_its_columns(columns: int, rows: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    names = [f"I{n}" for n in range(columns)]
    table = pa.table({name: values[:, n].copy() for n, name in enumerate(names)})
    found = fields(table, groups={"dense": tuple(names)})
    assert list(found) == ["dense"]
    np.testing.assert_array_equal(found["dense"], values)


def test_a_group_has_the_common_type_of_its_columns_or_the_one_that_is_given() -> None:
    table = pa.table({"a": np.int8([1, 2]), "b": np.float32([0.5, 1]), "c": [True, False]})
    group = {"g": ("a", "b", "c")}
    assert schema_of(table, groups=group) == {"g": Array("float32", (3,))}
    assert schema_of(table, groups=group, dtypes={"g": "float16"})["g"] == Array("float16", (3,))
    np.testing.assert_array_equal(fields(table, groups=group)["g"], [[1, 0.5, 1], [2, 1, 0]])


def test_a_group_may_have_lists_of_one_length() -> None:
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4, dtype=np.int32)), 2)
    table = pa.table({"x": np.int32([9, 8]), "p": pairs})
    found = fields(table, groups={"g": ("p", "x")})
    assert found["g"].tolist() == [[0, 1, 9], [2, 3, 8]]


def test_masks_of_a_group_are_one_field() -> None:
    table = pa.table({"a": [1, None, 3], "b": [None, 5, 6], "c": [7, 8, 9]})
    found = fields(table, groups={"g": ("a", "b", "c")}, nulls={"g": "mask"})
    assert found["g"].tolist() == [[1, 0, 7], [0, 5, 8], [3, 6, 9]]
    assert found["g_valid"].tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 1]]
    assert found["g_valid"].dtype == np.bool_


def test_a_group_stands_where_its_first_column_does_unless_columns_are_named() -> None:
    table = pa.table({name: [1] for name in "abcd"})
    groups = {"g": ("d", "b")}
    assert list(schema_of(table, groups=groups)) == ["a", "g", "c"]
    assert list(schema_of(table, groups=groups, columns=("c",))) == ["c", "g"]
    assert list(schema_of(table, groups=groups, columns=("g", "c", "b"))) == ["g", "c", "b"]


@pytest.mark.parametrize(
    ("values", "dtype", "bad_row"),
    [
        (np.int64([1, 127, 128]), "int8", 2),
        (np.int64([0, -1]), "uint64", 1),
        (np.uint64([2**63]), "int64", 0),
        (np.int64([2**24, 2**24 + 1]), "float32", 1),
        (np.int64([2**63 - 1]), "float64", 0),
        (np.float64([1.0, 1.5]), "int32", 1),
        (np.float64([1.0, np.nan]), "int32", 1),
        (np.float64([2.0**63]), "int64", 0),
        (np.float64([0.5, 1e300]), "float32", 1),
        (np.float32([7e4]), "float16", 0),
        (np.int32([0, 1, 2]), "bool", 2),
        (np.int32([65536 * 2]), "float16", 0),
    ],
)
def test_numbers_that_do_not_fit_are_named(values: Any, dtype: str, bad_row: int) -> None:
    table = pa.table({"x": values})
    with pytest.raises(SchemaError, match=rf"table: column 'x', row {bad_row}: .* fit {dtype}"):
        fields(table, dtypes={"x": dtype})


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.int64([-128, 127]), "int8"),
        (np.int64([-(2**24), 2**24, 2**25]), "float32"),
        (np.float64([0.1, np.inf, np.nan]), "float32"),
        (np.float64([-(2.0**63)]), "int64"),
        (np.int8([0, 1]), "bool"),
        (np.array([True, False]), "float32"),
    ],
)
def test_numbers_that_fit_are_cast(values: Any, dtype: str) -> None:
    found = fields(pa.table({"x": values}), dtypes={"x": dtype})["x"]
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found, values.astype(dtype))


# --- What cannot be stored ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, None]),
        pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int8())),
        pa.array([[{"a": 1}], []]),
        pa.array([[[1], [2, 3]], []]),
        pa.array([["a"], []]),
    ],
)
def test_types_that_no_field_can_hold(column: Any) -> None:
    table = pa.table({"x": column, "y": [1, 2]})
    with pytest.raises(SchemaError) as caught:
        schema_of(table)
    assert "table: column 'x'" in str(caught.value)
    assert str(column.type) in str(caught.value)
    assert list(schema_of(table, columns=("y",))) == ["y"]


def test_a_null_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SchemaError) as caught:
        fields(pa.table({"x": [1, None, None]}))
    message = str(caught.value)
    for part in ("table", "'x'", "2 nulls", "rows 0 to 2", "nulls=", "--null x=0", "'mask'"):
        assert part in message


@pytest.mark.parametrize(
    "column", [pa.array(["a", None]), pa.array(["a", None]).dictionary_encode()]
)
def test_the_error_of_a_null_in_text_advises_what_is_possible(column: pa.Array) -> None:
    table = pa.table({"t": column})
    with pytest.raises(SchemaError) as caught:
        fields(table)
    message = str(caught.value)
    for part in ("text has none", "nulls={'t': 'unknown'}", "--null t=unknown", "t_valid"):
        assert part in message
    assert fields(table, nulls={"t": "unknown"})


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize("value", [None, True, ["a"]])
def test_what_is_not_text_does_not_replace_nulls_of_text(value: Any, encode: bool) -> None:
    column = pa.array(["a", None])
    table = pa.table({"t": column.dictionary_encode() if encode else column})
    with pytest.raises(SchemaError, match=f"column 't': nulls={re.escape(repr(value))} is not"):
        fields(table, nulls={"t": value})


def test_a_number_replaces_nulls_of_text_as_it_is_written() -> None:
    table = pa.table({"t": ["a", None]})
    found = fields(table, nulls={"t": 0})["t"]  # as --null t=0 gives it
    assert [bytes(v).decode() for v in found] == ["a", "0"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"columns": ("q",)}, "no column 'q'"),
        ({"groups": {"g": ("a", "q")}}, "no column 'q'"),
        ({"dtypes": {"q": "int8"}}, "no column 'q'"),
        ({"nulls": {"q": 0}}, "no column 'q'"),
        ({"groups": {"g": ("a", "t")}}, "'t' is string and cannot be in the group 'g'"),
        ({"dtypes": {"t": "float32"}}, "'t' is string and cannot become float32"),
        ({"dtypes": {"a": "float99"}}, "float99"),
        ({"groups": {"g": ()}}, "'g' has no columns"),
        ({"columns": ("a", "a")}, "twice"),
        ({"groups": {"t": ("a", "b")}, "columns": ("b", "t")}, ""),
        ({"groups": {"b": ("a",)}}, "two fields would have the name 'b'"),
        ({"nulls": {"a": "word"}}, "'word'"),
    ],
)
def test_options_that_do_not_fit_the_table(options: Any, part: str) -> None:
    table = pa.table({"a": [1, None], "b": [1.0, 2.0], "t": ["x", "y"]})
    if not part:
        schema_of(table, **options)  # a group may be called as a column that is left out
        return
    refused = fastio.OptionError if part == "float99" else SchemaError
    with pytest.raises(refused) as caught:
        fields(table, **options)
    assert part in str(caught.value)


def test_a_wide_table_names_the_columns_that_are_like_the_wanted_one() -> None:
    table = pa.table({f"w{number}": [1] for number in range(300)})
    with pytest.raises(SchemaError) as caught:
        fields(table, columns=("w2999",))
    assert "no column 'w2999'; it has w299, " in str(caught.value)
    assert str(caught.value).endswith(", ... (300 columns in all)")
    assert len(str(caught.value)) < 150


def test_columns_whose_names_meet_are_refused() -> None:
    table = pa.table({"a_b": [1], "a": pa.array([{"b": 1}])})
    with pytest.raises(SchemaError, match=r"'a_b' \(a_b and a.b\)"):
        schema_of(table)


def test_strings_that_are_not_utf_8_are_refused() -> None:
    raw = pa.array([b"ok", b"\xff\xfe"], pa.binary())
    buffers = raw.buffers()
    text = pa.Array.from_buffers(pa.string(), 2, buffers)
    with pytest.raises(SchemaError, match="'t' is not UTF-8 in rows 0 to 1"):
        fields(pa.table({"t": text}))


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int16(), pa.int16()),
        (pa.uint32(), pa.int32(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int64(), pa.float64(), None),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string(), pa.int8(), None),
        (pa.bool_(), pa.int8(), None),
        (pa.timestamp("s"), pa.timestamp("ms"), None),
        (pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8())),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), None),
        (pa.null(), pa.int8(), pa.int8()),
    ],
)
def test_the_type_that_holds_two(first: Any, second: Any, both: Any) -> None:
    assert widest(first, second) == both
    if not pa.types.is_list(first):
        assert widest(second, first) == both


def test_ranges_of_names() -> None:
    assert expand_range("I1..I3") == ["I1", "I2", "I3"]
    assert expand_range("c08..c10") == ["c08", "c09", "c10"]
    assert expand_range("label") == ["label"]
    for wrong in ("I3..I1", "I1..C3"):
        with pytest.raises(SchemaError, match="range"):
            expand_range(wrong)
