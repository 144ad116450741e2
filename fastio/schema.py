"""The fields of a sample, their types, and the Arrow columns that hold them.

A field is one value of a sample. Some fields need several columns: an image stored under the
name ``image`` has its bytes in ``image`` and one small column each for the codec
(``image.codec``), its size and its orientation, so that reads and crops are planned without
reading a pixel. A dot in a column's name therefore always means "part of a field".

A schema may also store all fields of fixed width side by side, row by row, in one column,
``.record``. A shuffled gather of 160-byte rows then touches three cache lines and one page per row.
With one column per field it touches six lines and three pages, and takes twice as long.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeGuard, cast

import numpy as np
import pyarrow as pa

from fastio import _native
from fastio.errors import SchemaError
from fastio.records import RecordLayout, record_layout
from fastio.runtime.properties import cached_property

# What an image column holds, row by row. These numbers are part of the disk format.
CODEC_JPEG = _native.CODEC_JPEG  # a JPEG file, byte for byte
CODEC_RAW = _native.CODEC_RAW  # uint8 pixels (H, W, C), row-major
CODEC_ENCODED = _native.CODEC_ENCODED  # any other image file, byte for byte; Pillow decodes it
CODEC_BLOCKS = _native.CODEC_BLOCKS  # a JPEG's coefficients as a block record
CODEC_NAMES = ("jpeg", "raw", "encoded", "blocks")

# Names of the integer field whose numbers stand for a schema's classes. The first one counts.
CLASS_FIELDS = ("label", "class")

# The column of the fields that lie side by side.
RECORD_COLUMN = ".record"
INDEX_COLUMN = ".index"  # after the name of an image field; shards need not have it

Structure = Literal["tuple", "dict", "single"]

_NUMBERS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_ARROW_TYPES = {
    "bool": pa.uint8(),  # one byte a value: Arrow's own bool is a bitmap, which no view can show
    **{name: pa.from_numpy_dtype(name) for name in _NUMBERS},
}
DTYPES = tuple(_ARROW_TYPES)
# What Arrow has no type for: an Array of them is stored as pairs, real part first.
_PAIRS = {"complex64": "float32", "complex128": "float64"}
ARRAY_DTYPES = (*DTYPES, *_PAIRS)
TOKEN_DTYPES = ("uint8", "uint16", "uint32")
# The columns of an image beside its bytes, by the part of their names after the field's.
_OF_IMAGE = {
    "codec": pa.uint8(),
    "height": pa.int32(),
    "width": pa.int32(),
    "orientation": pa.uint8(),
    "crc32c": pa.uint32(),
}


@dataclass(frozen=True)
class Image:
    """An image, delivered as uint8 (H, W, C).

    Args:
        mode: "RGB" (C = 3, the default) or "L" (gray, C = 1).
    """

    mode: Literal["RGB", "L"] = "RGB"

    def __post_init__(self) -> None:
        if self.mode not in ("RGB", "L"):
            raise SchemaError(f"Image mode must be 'RGB' or 'L', got {self.mode!r}")

    @property
    def channels(self) -> int:
        """C of (H, W, C): 3 for RGB, 1 for L."""
        return 3 if self.mode == "RGB" else 1


@dataclass(frozen=True)
class Images:
    """A list of images, delivered as a list of uint8 (H, W, C). Lists may differ in length.

    Args:
        mode: mode of all images, as for `Image`.
    """

    mode: Literal["RGB", "L"] = "RGB"

    def __post_init__(self) -> None:
        self.each  # noqa: B018 - checks the mode

    @property
    def each(self) -> Image:
        """The field that each image of a list would be by itself."""
        return Image(self.mode)


@dataclass(frozen=True)
class Array:
    """A numeric array.

    Args:
        dtype: NumPy name of the element type: bool, int8 to int64, uint8 to uint64, float16 to
            float64, complex64 or complex128.
        shape: shape of every sample, with None for each axis whose length differs between samples,
            such as (80, None) for spectrograms. None instead of a shape allows any number of axes
            of any lengths.
    """

    dtype: str
    shape: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        _check_dtype(self.dtype, ARRAY_DTYPES)
        if self.shape is None:
            return
        known = [length for length in self.shape if length is not None]
        if not self.shape or (known and min(known) < 1):
            raise SchemaError(
                f"Array shape must have at least one axis and no empty one, got {self.shape}; "
                "use shape=None, or None for an axis, for arrays that differ in shape, and Scalar "
                "for single numbers"
            )

    @cached_property
    def fixed_shape(self) -> tuple[int, ...] | None:
        """The shape of every sample, or None when it differs between samples."""
        known = tuple(length for length in self.shape or () if length is not None)
        return known if self.shape is not None and len(known) == len(self.shape) else None

    @property
    def variable_axes(self) -> tuple[int, ...] | None:
        """The axes whose lengths differ between samples; None if the number of axes differs too."""
        if self.shape is None:
            return None
        return tuple(axis for axis, length in enumerate(self.shape) if length is None)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Returns whether an array of this shape is a value of this field."""
        if self.shape is None or shape == self.shape:
            return True
        return len(shape) == len(self.shape) and all(
            wanted in (None, length) for wanted, length in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True)
class Scalar:
    """One number.

    Args:
        dtype: NumPy name of its type: bool, int8 to int64, uint8 to uint64, or float16 to float64.
    """

    dtype: str

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)


@dataclass(frozen=True)
class Text:
    """A string, stored as UTF-8.

    Args:
        listed: whether the field is a list of strings; a batch then has one list per row. Datasets
            of Hugging Face have such fields; they cannot be packed.
    """

    listed: bool = False


@dataclass(frozen=True)
class Bytes:
    """A byte string."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a document: any number of ids in a vocabulary.

    Args:
        dtype: NumPy name of the stored type: uint8, uint16 or uint32.
        vocabulary_size: number above all token ids; None if it is not known.
        separator: token that ends every document; None if there is none.
    """

    dtype: str = "uint16"
    vocabulary_size: int | None = None
    separator: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in TOKEN_DTYPES:
            raise SchemaError(
                f"the dtype of Tokens must be one of {', '.join(TOKEN_DTYPES)}, not {self.dtype!r}"
            )
        largest = np.iinfo(self.dtype).max
        if self.vocabulary_size is not None and not 0 < self.vocabulary_size <= largest + 1:
            raise SchemaError(f"{self.dtype} is too small for {self.vocabulary_size} tokens")
        if self.separator is not None and not 0 <= self.separator <= largest:
            raise SchemaError(f"the separator {self.separator} is not a valid {self.dtype}")


Field = Image | Images | Array | Scalar | Text | Bytes | Tokens
PICTURES = (Image, Images)  # fields that hold images
_FIELD_TYPES: dict[str, type[Field]] = {
    kind.__name__.lower(): kind for kind in (Image, Images, Array, Scalar, Text, Bytes, Tokens)
}


@dataclass(frozen=True)
class Schema:
    """The fields of a dataset's samples, in order.

    Args:
        fields: name and type of each field. A name must not be empty or contain a dot.
        structure: form of a sample in Python: a "tuple" of the fields in order, a "dict" by
            name, or the "single" field itself.
        classes: names of the classes if the numbers of an integer field `label` (or `class`)
            stand for them, else None.
        records: whether the fixed-width fields (Scalar, and Array with a shape) are stored side by
            side, row by row, in one column ".record" instead of one column each.
        vocabularies: for integer Scalar fields, the strings that the numbers 0, 1, ... stand for.

    Raises:
        SchemaError: there are no fields, a name is impossible, two classes have the same name,
            "single" is given with several fields, or a vocabulary for a field of another type.
    """

    fields: Mapping[str, Field]
    structure: Structure = "dict"
    classes: tuple[str, ...] | None = None
    records: bool = False
    vocabularies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", dict(self.fields))
        words = {name: tuple(words) for name, words in self.vocabularies.items()}
        object.__setattr__(self, "vocabularies", words)
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(self.classes))
            twice = [name for name, n in Counter(self.classes).items() if n > 1]
            if twice:
                raise SchemaError(f"several classes have the name {twice[0]!r}: rename them")
        if self.structure not in ("tuple", "dict", "single"):
            raise SchemaError(f"structure must be tuple, dict or single, got {self.structure!r}")
        if not self.fields:
            raise SchemaError("a schema needs at least one field")
        if self.structure == "single" and len(self.fields) != 1:
            raise SchemaError(
                f"structure 'single' needs exactly one field, got {len(self.fields)}: "
                f"{list(self.fields)}"
            )
        for name, kind in self.fields.items():
            _check_field(name, kind)
        for name in self.vocabularies:
            _check_vocabulary(name, self.fields.get(name))

    def __eq__(self, other: object) -> bool:
        # The order of fields counts, because samples may be tuples; equal dicts may differ in it.
        return isinstance(other, Schema) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[Any, ...]:
        words = frozenset(self.vocabularies.items())
        fields = tuple(self.fields.items())
        return (fields, self.structure, self.classes, self.records, words)

    @cached_property
    def image_fields(self) -> tuple[str, ...]:
        """The names of the image fields, in order."""
        return tuple(name for name, kind in self.fields.items() if isinstance(kind, Image))

    @cached_property
    def list_fields(self) -> tuple[str, ...]:
        """The names of the fields of lists of images, in order."""
        return tuple(name for name, kind in self.fields.items() if isinstance(kind, Images))

    @cached_property
    def pictured(self) -> tuple[str, ...]:
        """The names of the fields that hold images, one or a list of them per row, in order."""
        return tuple(name for name, kind in self.fields.items() if isinstance(kind, PICTURES))

    @cached_property
    def token_fields(self) -> tuple[str, ...]:
        """The names of the token fields, in order."""
        return tuple(name for name, kind in self.fields.items() if isinstance(kind, Tokens))

    @cached_property
    def class_field(self) -> str | None:
        """The integer field whose numbers stand for the classes; None if there is no such field."""
        named = (name for name in CLASS_FIELDS if self.classes and name in self.fields)
        return next((name for name in named if is_integer(self.fields[name])), None)

    @cached_property
    def record_layout(self) -> RecordLayout | None:
        """The layout of the column ".record"; None without records or fixed-width fields."""
        return self.layout_of_fixed() if self.records else None

    def layout_of_fixed(self) -> RecordLayout | None:
        """Returns the layout of the fixed-width fields side by side; None if there are none."""
        fixed = {n: row_shape(kind) for n, kind in self.fields.items() if is_fixed_width(kind)}
        return record_layout(fixed) if fixed else None

    def arrow_schema(self, indexed: Collection[str] = ()) -> pa.Schema:
        """Returns the Arrow schema of these fields, with no nullable column and no metadata.

        The image fields `indexed` have a column of indexes.
        """
        layout = self.record_layout
        columns: list[tuple[str, pa.DataType]] = []
        if layout is not None:
            columns.append((RECORD_COLUMN, pa.binary(layout.nbytes)))
        for name, kind in self.fields.items():
            if layout is None or name not in layout.offsets:
                columns += field_columns(name, kind)
            columns += [(name + INDEX_COLUMN, pa.large_binary())] if name in indexed else []
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])

    def to_json(self) -> dict[str, Any]:
        """Returns this schema as JSON values, as manifests store it."""
        fields = [{"name": name, **_field_json(kind)} for name, kind in self.fields.items()]
        value: dict[str, Any] = {"structure": self.structure, "fields": fields}
        value["classes"] = self.classes
        if self.records:
            value["records"] = True
        if self.vocabularies:
            value["vocabularies"] = {name: list(w) for name, w in self.vocabularies.items()}
        return value

    @classmethod
    def from_json(cls, value: Any) -> Schema:
        """Returns the schema that `to_json` described.

        Raises:
            SchemaError: the value does not describe a schema.
        """
        try:
            fields = {str(item["name"]): _field_from_json(item) for item in value["fields"]}
            if len(fields) != len(value["fields"]):
                raise SchemaError("two fields have the same name")
            classes = value["classes"]
            records = value.get("records", False)
            if not isinstance(records, bool):
                raise TypeError(f"records is {records!r}")
            return cls(
                fields,
                value["structure"],
                None if classes is None else tuple(str(name) for name in classes),
                records,
                _vocabularies_from_json(value.get("vocabularies", {})),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            if isinstance(error, SchemaError):
                raise
            text = json.dumps(value, default=repr)[:200]
            raise SchemaError(f"not a schema: {text} ({type(error).__name__}: {error})") from error


def is_integer(kind: Field | None) -> TypeGuard[Scalar]:
    """Returns whether a field is a Scalar of an integer type."""
    return isinstance(kind, Scalar) and np.dtype(kind.dtype).kind in "iu"


def is_fixed_width(kind: Field) -> TypeGuard[Scalar | Array]:
    """Returns whether all rows of a field have the same size: Scalar, and Array with a shape."""
    return fixed_shape(kind) is not None


def fixed_shape(kind: Field) -> tuple[int, ...] | None:
    """Returns the shape of one row of a field for which `is_fixed_width` holds; else None."""
    if isinstance(kind, Scalar):
        return ()
    return kind.fixed_shape if isinstance(kind, Array) else None


def row_shape(kind: Field) -> tuple[tuple[int, ...], str]:
    """Returns the shape and dtype name of one row of a field for which `is_fixed_width` holds."""
    shape = fixed_shape(kind)
    assert is_fixed_width(kind)
    assert shape is not None
    return shape, kind.dtype


def is_open_array(kind: Field) -> TypeGuard[Array]:
    """Returns whether a field holds arrays whose shapes differ between samples."""
    return isinstance(kind, Array) and kind.fixed_shape is None


def field_columns(name: str, field: Field) -> list[tuple[str, pa.DataType]]:
    """Returns a field's Arrow columns (name, type), main one first; SchemaError if it has none."""
    if isinstance(field, Image):
        parts = [(f"{name}.{part}", kind) for part, kind in _OF_IMAGE.items()]
        return [(name, pa.large_binary()), *parts]
    if isinstance(field, Images):
        parts = [("length", pa.int64()), *_OF_IMAGE.items()]
        lists = [(f"{name}.{part}", pa.large_list(_item(kind))) for part, kind in parts]
        return [(name, pa.large_binary()), *lists]
    if isinstance(field, Array):
        shape = field.fixed_shape
        if shape is None:
            return [(name, pa.large_binary()), (f"{name}.shape", pa.list_(_item(pa.int64())))]
        numbers = math.prod(shape) * (2 if field.dtype in _PAIRS else 1)
        return [(name, pa.list_(_item(_ARROW_TYPES[stored_dtype(field.dtype)]), numbers))]
    if isinstance(field, Scalar):
        return [(name, _ARROW_TYPES[field.dtype])]
    if isinstance(field, Text) and field.listed:
        raise SchemaError(
            f"field {name!r} contains lists of strings, which cannot be packed: join each list "
            "into one string, or leave the field out by choosing other columns (columns=, "
            "--columns)"
        )
    if isinstance(field, Tokens):
        return [(name, pa.large_list(_item(_ARROW_TYPES[field.dtype])))]
    return [(name, pa.large_utf8() if isinstance(field, Text) else pa.large_binary())]


def row_bytes(name: str, field: Field) -> int:
    """Returns the bytes of a row of a field in a shard, without data of variable width."""
    total = 0
    for _, kind in field_columns(name, field):
        if pa.types.is_fixed_size_list(kind):
            total += kind.list_size * kind.value_type.bit_width // 8
        elif pa.types.is_primitive(kind):
            total += kind.bit_width // 8
        else:
            total += 4 if pa.types.is_list(kind) else 8  # an offset
    return total


def stored_dtype(dtype: str) -> str:
    """Returns the NumPy name of the numbers that a column stores; complex types become pairs."""
    return _PAIRS.get(dtype, dtype)


def _item(kind: pa.DataType) -> pa.Field:
    return pa.field("item", kind, nullable=False)


def _check_dtype(dtype: str, possible: tuple[str, ...] = DTYPES) -> None:
    if dtype not in possible:
        raise SchemaError(f"dtype {dtype!r} cannot be stored; supported are {', '.join(possible)}")


def _check_field(name: object, field: object) -> None:
    if not isinstance(name, str) or not name or "." in name:
        raise SchemaError(
            f"field name {name!r} is not allowed: it must be a non-empty string without dots "
            "(dots name the columns that belong to a field)"
        )
    if not isinstance(field, tuple(_FIELD_TYPES.values())):
        raise SchemaError(
            f"field {name!r} must be an Image, Images, Array, Scalar, Text, Bytes or Tokens, got "
            f"{field!r}"
        )


def _check_vocabulary(name: str, kind: Field | None) -> None:
    if not is_integer(kind):
        raise SchemaError(
            f"the vocabulary {name!r} does not belong to an integer Scalar field: "
            f"{('there is no such field' if kind is None else f'{name!r} is {kind}')}"
        )


def _field_json(field: Field) -> dict[str, Any]:
    # Not vars(field), which also contains the values of cached properties.
    params = {each.name: getattr(field, each.name) for each in fields(field)}
    if isinstance(field, Text) and not field.listed:  # as it was before there was anything to say
        params = {}
    return {"type": type(field).__name__.lower(), **params}


def _vocabularies_from_json(value: Any) -> dict[str, tuple[str, ...]]:
    for words in value.values():
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise TypeError(f"a vocabulary must be a list of strings, got {words!r}"[:200])
    return {str(name): tuple(words) for name, words in value.items()}


def _field_from_json(item: dict[str, Any]) -> Field:
    if item["type"] not in _FIELD_TYPES:
        raise SchemaError(f"field {item['name']!r} has the unknown type {item['type']!r}")
    params = {key: item[key] for key in item if key not in ("name", "type")}
    if params.get("shape") is not None:
        params["shape"] = tuple(None if n is None else int(n) for n in params["shape"])
    # The mapping's values are the classes of fields; which arguments fit is for them to check.
    return cast("type[Any]", _FIELD_TYPES[item["type"]])(**params)  # type: ignore[no-any-return]
