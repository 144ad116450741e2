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

from fastio import Array, Bytes, Image, Scalar, Schema, SchemaError, Text
from fastio.schema import DTYPES, RECORD_COLUMN, Field, is_fixed_width

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
    st.none() | st.lists(st.text(), unique=True).map(tuple),
    st.booleans(),
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


@pytest.mark.parametrize("dtype", ["float128", "complex256", "object", "int", "<f4", "", "str"])
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
        {
            "fields": [{"name": "a", "type": "text"}],
            "structure": "dict",
            "classes": None,
            "records": 1,
        },
        {
            "fields": [{"name": "a", "type": "scalar", "dtype": "int32"}],
            "structure": "dict",
            "classes": None,
            "vocabularies": {"a": "xy"},
        },
    ],
)
def test_json_that_describes_no_schema_is_refused(value: Any) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(value)


@given(SCHEMAS)
def test_a_record_has_all_fixed_width_fields_at_their_alignment(schema: Schema) -> None:
    layout = schema.record_layout
    fixed = [name for name, kind in schema.fields.items() if is_fixed_width(kind)]
    if not schema.records or not fixed:
        assert layout is None
        return
    assert layout is not None
    assert list(layout.offsets) == fixed == list(layout.dtype.names or ())
    assert layout.dtype.itemsize == layout.nbytes
    end = 0
    records = np.zeros(3, np.uint8).repeat(layout.nbytes).view(layout.dtype)
    for name, offset in layout.offsets.items():
        values = records[name]
        kind: Any = schema.fields[name]
        assert values.dtype.name == kind.dtype
        assert values.shape == (3, *(getattr(kind, "shape", None) or ()))
        assert offset % values.dtype.itemsize == 0
        assert end <= offset < end + values.dtype.itemsize
        end = offset + values[0].nbytes


@pytest.mark.parametrize(
    ("fields", "nbytes"),
    [
        ([Array("float32", (13,)), Array("int32", (26,)), Scalar("float32")], 160),
        ([Scalar("int8")], 1),
        ([Scalar("int8"), Scalar("float64")], 16),
        ([Array("uint8", (27,)), Scalar("bool")], 28),  # 32 would be more than an eighth
        ([Array("uint8", (29,))], 32),
        ([Array("float32", (64,)), Scalar("int8")], 288),
    ],
)
def test_a_record_is_rounded_up_to_32_where_that_costs_little(
    fields: list[Field], nbytes: int
) -> None:
    schema = Schema({f"f{n}": kind for n, kind in enumerate(fields)}, records=True)
    assert schema.record_layout is not None
    assert schema.record_layout.nbytes == nbytes


def test_a_record_is_one_column_before_those_of_other_fields() -> None:
    fields = {"t": Text(), "a": Scalar("int8"), "v": Array("int8"), "b": Array("int16", (2,))}
    columns = Schema(fields, records=True).arrow_schema()
    assert columns.names == [RECORD_COLUMN, "t", "v", "v.shape"]
    assert columns.types[0] == pa.binary(6)


def test_a_schema_without_records_or_vocabularies_is_the_json_that_it_was() -> None:
    assert set(Schema({"a": Scalar("int8")}).to_json()) == {"structure", "fields", "classes"}


def test_vocabularies_come_back_from_json() -> None:
    schema = Schema({"a": Scalar("int32")}, vocabularies={"a": ("x", "y")})
    found = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert found == schema
    assert hash(found) == hash(schema)
    assert found.vocabularies == {"a": ("x", "y")}


@pytest.mark.parametrize("kind", [None, Scalar("float32"), Text(), Array("int32", (2,))])
def test_only_integer_scalars_have_vocabularies(kind: Field | None) -> None:
    fields: dict[str, Field] = {"b": Text()} if kind is None else {"a": kind}
    with pytest.raises(SchemaError, match="'a'"):
        Schema(fields, vocabularies={"a": ("x",)})


def test_complex_numbers_are_arrays_only() -> None:
    assert Array("complex64", (2,)).fixed_shape == (2,)
    with pytest.raises(SchemaError, match="complex64"):
        Scalar("complex64")


def test_shapes_with_variable_axes_say_what_fits_them() -> None:
    spectrogram = Array("float32", (80, None))
    assert (spectrogram.fixed_shape, spectrogram.variable_axes) == (None, (1,))
    assert spectrogram.fits((80, 0))
    assert not spectrogram.fits((79, 3))
    assert not spectrogram.fits((80,))
    assert (Array("float32").variable_axes, Array("float32", (2,)).variable_axes) == (None, ())
    assert Array("float32").fits(())
    with pytest.raises(SchemaError, match="empty"):
        Array("float32", (0, None))


def test_variable_axes_come_back_from_json() -> None:
    schema = Schema({"a": Array("complex64", (None, 3)), "b": Array("int8")})
    assert Schema.from_json(schema.to_json()) == schema
