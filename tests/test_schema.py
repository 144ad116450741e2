"""Schemas say what can be stored, and come back from JSON as they were."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastio.errors import SchemaError
from fastio.schema import DTYPES, Array, Bytes, Field, Image, Scalar, Schema, Text

FIELDS: st.SearchStrategy[Any] = st.one_of(
    st.builds(Image, st.sampled_from(["RGB", "L"])),
    st.builds(Scalar, st.sampled_from(DTYPES)),
    st.builds(
        Array,
        st.sampled_from(DTYPES),
        st.none() | st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    ),
    st.just(Text()),
    st.just(Bytes()),
)
NAMES = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1)
SCHEMAS = st.builds(
    Schema,
    st.dictionaries(NAMES, FIELDS, min_size=1, max_size=6),
    st.sampled_from(["tuple", "dict"]),
    st.none() | st.lists(st.text()).map(tuple),
)


@given(SCHEMAS)
def test_a_schema_comes_back_from_json(schema: Schema) -> None:
    found = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert found == schema
    assert list(found.fields) == list(schema.fields)
    assert hash(found) == hash(schema)


@given(SCHEMAS)
def test_a_schema_survives_pickling(schema: Schema) -> None:
    assert pickle.loads(pickle.dumps(schema)) == schema


@given(SCHEMAS)
def test_column_names_are_unique_and_not_nullable(schema: Schema) -> None:
    columns = schema.arrow_schema()
    assert len(set(columns.names)) == len(columns)
    assert not any(column.nullable for column in columns)


def test_an_image_takes_six_columns() -> None:
    columns = Schema({"photo": Image()}).arrow_schema()
    assert columns.names == [
        "photo",
        "photo.codec",
        "photo.height",
        "photo.width",
        "photo.orientation",
        "photo.crc32c",
    ]
    small = [pa.uint8(), pa.int32(), pa.int32(), pa.uint8(), pa.uint32()]
    assert columns.types == [pa.large_binary(), *small]


def test_a_fixed_array_is_one_list_of_all_its_values() -> None:
    (kind,) = Schema({"x": Array("float32", (2, 3, 4))}).arrow_schema().types
    assert kind.list_size == 24
    assert kind.value_type == pa.float32()


def test_bools_take_a_byte() -> None:
    assert Schema({"x": Scalar("bool")}).arrow_schema().types == [pa.uint8()]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_are_numpy_s_names(dtype: str) -> None:
    assert np.dtype(dtype).name == dtype


def test_fields_of_a_schema_do_not_change_with_the_mapping_they_came_from() -> None:
    fields: dict[str, Field] = {"x": Text()}
    schema = Schema(fields)
    fields["y"] = Text()
    assert list(schema.fields) == ["x"]


@pytest.mark.parametrize("name", ["", "a.b", "image.codec", 3, None])
def test_impossible_names_are_refused(name: Any) -> None:
    with pytest.raises(SchemaError, match="name"):
        Schema({name: Text()})


@pytest.mark.parametrize("dtype", ["float128", "complex64", "object", "int", "<f4", "", "str"])
def test_dtypes_that_cannot_be_stored_are_refused(dtype: str) -> None:
    for kind in (Scalar, Array):
        with pytest.raises(SchemaError, match="dtype"):
            kind(dtype)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (-1,)])
def test_array_shapes_without_values_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SchemaError, match="shape"):
        Array("float32", shape)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(SchemaError, match="mode"):
        Image("CMYK")  # type: ignore[arg-type]


def test_a_schema_needs_a_field() -> None:
    with pytest.raises(SchemaError, match="at least one"):
        Schema({})


def test_a_single_value_has_one_field() -> None:
    with pytest.raises(SchemaError, match="single"):
        Schema({"a": Text(), "b": Text()}, "single")


def test_an_unknown_structure_is_refused() -> None:
    with pytest.raises(SchemaError, match="structure"):
        Schema({"a": Text()}, "list")  # type: ignore[arg-type]


def test_what_is_no_field_is_refused() -> None:
    with pytest.raises(SchemaError, match="must be an Image"):
        Schema({"a": int})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"fields": [], "structure": "dict", "classes": None},
        {"fields": [{"name": "a", "type": "tensor"}], "structure": "dict", "classes": None},
        {"fields": [{"name": "a", "type": "scalar"}], "structure": "dict", "classes": None},
        {"fields": [{"name": "a", "type": "text"}] * 2, "structure": "dict", "classes": None},
        {"fields": [{"name": "a", "type": "text", "x": 1}], "structure": "dict", "classes": None},
        {"fields": [{"type": "text"}], "structure": "dict", "classes": None},
        {"fields": {"a": "text"}, "structure": "dict", "classes": None},
        {"fields": [{"name": "a", "type": "text"}], "structure": "dict", "classes": 7},
    ],
)
def test_json_that_describes_no_schema_is_refused(value: Any) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(value)
