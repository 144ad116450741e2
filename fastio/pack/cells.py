"""Samples to cells, and cells to columns; and the schema of a sample.

A cell is one checked value of one row, in the form in which its column wants it: an ImageCell, a
number, or bytes. Cells are made by many threads; columns, from whole shards of them, by one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image as PillowImage

from fastio.errors import ImageError, SchemaError
from fastio.pack.image_lists import ListedImageError, encode_list, list_arrays, list_bytes
from fastio.pack.images import (
    GRAY_MODES,
    ImageCell,
    ImageOptions,
    PillowFile,
    encode_file,
    encode_pillow,
    encode_pixels,
    is_picture,
    is_tensor,
    taken,
)
from fastio.pack.items import UNREAD, Item, Row
from fastio.pack.unread_images import encode_unread
from fastio.packed.image_lists import image_name
from fastio.packed.ipc import number_array, number_dtype
from fastio.packed.pixels import is_image_file
from fastio.packed.sample_errors import NOT_OF_SAMPLES
from fastio.schema import (
    ARRAY_DTYPES,
    CODEC_NAMES,
    DTYPES,
    PICTURES,
    Array,
    Bytes,
    Field,
    Image,
    Images,
    Scalar,
    Schema,
    Structure,
    Text,
    Tokens,
    field_columns,
    is_fixed_width,
    row_shape,
    stored_dtype,
)
from fastio.sources.arrays import usual_names
from fastio.sources.table.values import Ragged

# Checks a value. Returns its cell, and the bytes of the cell's data of variable width, which
# `row_bytes` does not count.
Encode = Callable[[Any], tuple[Any, int]]


def field_encoders(schema: Schema, images: ImageOptions) -> list[tuple[str, Field, Encode]]:
    """Returns the name, the field and the encoder of each field of a schema."""
    return [
        (name, field, partial(_ENCODERS[type(field)], field, images))
        for name, field in schema.fields.items()
    ]


def encode_row(
    fields: Sequence[tuple[str, Field, Encode]], source: str, item: Item
) -> tuple[list[Any], int]:
    """Returns a sample's cells, which are checked, and the bytes of their variable-width data.

    Args:
        fields: What `field_encoders` returned.
        source, item: The name of the source, and the sample.

    Raises:
        ImageError: An image file cannot be read, or an image cannot be stored.
        SchemaError: A value is missing or does not fit its field.
        FastioError: One of `NOT_OF_SAMPLES`.
    """
    cells = []
    nbytes = 0
    for (name, field, encode), value in zip(fields, item.values, strict=True):
        try:
            if value is None:
                raise SchemaError("the value is None, and fastio does not store nulls")
            cell, size = encode(value)
        except NOT_OF_SAMPLES:
            raise
        except Exception as error:  # MemoryError and RecursionError are a sample's own too
            if isinstance(field, PICTURES) and not isinstance(error, SchemaError):
                named, cause = item.name, error
                if isinstance(error, ListedImageError):
                    named, cause = image_name(item.name, name, error.index), error.cause
                raise ImageError(source, item.position, named, cause) from error
            problem = str(error) or type(error).__name__
            raise SchemaError(f"{item.name}: field {name!r}: {problem}") from error
        cells.append(cell)
        nbytes += size
    return cells, nbytes


def memory_bytes(item: Item) -> int:
    """Returns the bytes that a sample takes in memory before it is encoded, without its files."""
    return sum(_value_bytes(value) for value in item.values)


def _value_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, PillowFile):
        return len(value.data)
    if isinstance(value, PillowImage.Image):
        return value.width * value.height * len(value.getbands())
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, (list, tuple)) and value and is_picture(value[0]):
        return sum(map(_value_bytes, value))
    return int(getattr(value, "nbytes", 0))


def as_array(value: Any) -> NDArray[Any] | None:
    """Returns a NumPy array, or a tensor as an array of the same memory; None for other values."""
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise SchemaError("a masked array has no values below its mask: use its filled()")
        return value
    if not is_tensor(value):
        return None
    try:
        array: NDArray[Any] = value.detach().cpu().numpy()
    except TypeError as error:
        raise SchemaError(f"a tensor of {value.dtype} cannot be stored: convert it") from error
    return array


def interleaved(planes: NDArray[Any]) -> NDArray[Any]:
    """Returns an array (C, H, W) as (H, W, C)."""
    # Copies plane by plane, which takes a sixth of the time of a copy with transposed axes.
    return np.stack(tuple(planes), -1) if len(planes) else planes.transpose(1, 2, 0)


def columns(schema: Schema, rows: Sequence[Row]) -> list[pa.Array]:
    """Returns the Arrow columns of a shard, in the order of `Schema.arrow_schema`.

    An image field has a column of indexes if `indexed_fields` returns its name.
    """
    layout = schema.record_layout
    # Filled with zeros, so that the bytes between fields are the same in each pack.
    records = None if layout is None else np.zeros(len(rows), layout.dtype)
    arrays: list[pa.Array] = [] if records is None else [record_array(records)]
    for number, (name, field) in enumerate(schema.fields.items()):
        cells = [row.cells[number] for row in rows]
        if records is not None and is_fixed_width(field):
            records[name] = _fixed_values(field, cells)
        else:
            arrays += _field_arrays(name, field, cells)
    return arrays


def record_array(records: NDArray[Any]) -> pa.Array:
    """Returns the column ".record" over the memory of records (rows,), C-contiguous."""
    kind = pa.binary(records.dtype.itemsize)
    return pa.Array.from_buffers(kind, len(records), [None, pa.py_buffer(records)])


def indexed_fields(schema: Schema, rows: Sequence[Row]) -> list[str]:
    """Returns the image fields that get a column of indexes: those with an index in any row."""
    return [
        name
        for number, (name, field) in enumerate(schema.fields.items())
        if isinstance(field, Image) and any(row.cells[number].jpeg_index for row in rows)
    ]


def codec_counts(schema: Schema, rows: Sequence[Row]) -> dict[str, int]:
    """Returns the images of a shard by field and codec: {"image.jpeg": 10, ...}."""
    counts: dict[str, int] = {}
    for number, (name, field) in enumerate(schema.fields.items()):
        if isinstance(field, PICTURES):
            cells = [row.cells[number] for row in rows]
            if isinstance(field, Images):
                cells = [cell for each in cells for cell in each]
            codecs = [cell.codec for cell in cells]
            counts |= {f"{name}.{word}": codecs.count(n) for n, word in enumerate(CODEC_NAMES)}
    return counts


def _encode_image(field: Image, images: ImageOptions, value: Any) -> tuple[ImageCell, int]:
    cell = _image_cell(field, images, value)
    return cell, len(cell.data) + len(cell.jpeg_index)


def _encode_images(field: Images, images: ImageOptions, value: Any) -> tuple[Any, int]:
    cells = encode_list(field, value, lambda kind, each: _image_cell(kind, images, each))
    return cells, list_bytes(cells)


def _image_cell(field: Image, images: ImageOptions, value: Any) -> ImageCell:
    if isinstance(value, UNREAD):
        return encode_unread(value, field, images)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return encode_file(bytes(value), field, images)
    if isinstance(value, (PillowImage.Image, PillowFile)):
        return encode_pillow(value, field, images)
    if isinstance(value, ValueError):
        raise value  # of an image that cannot be decoded
    pixels = as_array(value)
    if pixels is None:
        raise SchemaError(
            "expected an image (PIL.Image, uint8 array, uint8 tensor or an image file's bytes), "
            f"got {type(value).__name__}"
        )
    if is_tensor(value) and pixels.ndim == 3:
        pixels = interleaved(pixels)
    try:
        return encode_pixels(pixels, field, images.max_side)
    except ValueError as error:
        raise SchemaError(str(error)) from error


def _encode_scalar(field: Scalar, _: ImageOptions, value: Any) -> tuple[Any, int]:
    array = as_array(value)
    if array is not None:
        if array.ndim:
            raise SchemaError(f"expected one number, got an array of shape {array.shape}")
        value = array[()]
    # bool is a kind of int for Python, and would be stored as 0 or 1 in fields of numbers.
    is_bool = isinstance(value, (bool, np.bool_))
    if is_bool != (field.dtype == "bool") or isinstance(value, (str, bytes)):
        raise SchemaError(f"expected {field.dtype}, got {value!r}")
    if is_bool:
        return bool(value), 0
    lowest, highest = _limits(field.dtype)
    try:
        # Not int(), which would truncate 1.5 to 1.
        number = float(value) if isinstance(highest, float) else operator.index(value)
    except TypeError as error:
        raise SchemaError(f"expected a number ({field.dtype}), got {value!r}") from error
    if not lowest <= number <= highest and math.isfinite(number):
        raise SchemaError(f"{number} does not fit {field.dtype}")
    return number, 0


@cache
def _limits(dtype: str) -> tuple[int, int] | tuple[float, float]:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return float(np.finfo(kind).min), float(np.finfo(kind).max)
    return np.iinfo(kind).min, np.iinfo(kind).max


def _encode_array(field: Array, _: ImageOptions, value: Any) -> tuple[Any, int]:
    array = as_array(value)
    if array is None:
        raise SchemaError(f"expected an array or tensor, got {type(value).__name__}")
    if array.dtype != field.dtype:
        if array.dtype.name != field.dtype:
            raise SchemaError(
                f"its dtype is {array.dtype.name}, but the field has the dtype {field.dtype}"
            )
        array = array.astype(field.dtype)  # only the byte order differs
    if not field.fits(array.shape):
        raise SchemaError(
            f"its shape is {array.shape}, the field's is {field.shape}; give a schema with "
            f"Array({field.dtype!r}, None), or None for an axis of the shape, when shapes differ"
            + (
                "; for the tokens of a document, use fastio.Tokens('uint32')"
                if array.ndim == 1 and array.dtype.kind in "iu"
                else ""
            )
        )
    data = array.tobytes()
    if field.fixed_shape is not None:
        return data, 0
    return (data, array.shape), len(data) + 8 * array.ndim


def _encode_tokens(field: Tokens, _: ImageOptions, value: Any) -> tuple[NDArray[Any], int]:
    array = as_array(value)
    array = np.asarray(value) if array is None else array
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SchemaError(
            f"expected tokens, a list or array (n,) of integers, got {array.dtype} {array.shape}"
        )
    # Without a vocabulary, tokens of the stored type need no check.
    if array.size and (field.vocabulary_size is not None or array.dtype != field.dtype):
        below = field.vocabulary_size or int(_limits(field.dtype)[1]) + 1
        lowest, highest = int(array.min()), int(array.max())
        if lowest < 0 or highest >= below:
            raise SchemaError(
                f"tokens from {lowest} to {highest}, but the vocabulary has 0 to {below - 1}"
            )
    tokens = np.ascontiguousarray(array, field.dtype)
    return tokens, tokens.nbytes


def _encode_text(field: Text, _: ImageOptions, value: Any) -> tuple[bytes, int]:
    if not isinstance(value, str):
        raise SchemaError(f"expected a str, got {type(value).__name__}")
    data = value.encode()
    return data, len(data)


def _encode_bytes(field: Bytes, _: ImageOptions, value: Any) -> tuple[bytes, int]:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise SchemaError(f"expected bytes, got {type(value).__name__}")
    data = bytes(value)
    return data, len(data)


_ENCODERS: Mapping[type[Field], Callable[[Any, ImageOptions, Any], tuple[Any, int]]] = {
    Image: _encode_image,
    Images: _encode_images,
    Scalar: _encode_scalar,
    Array: _encode_array,
    Tokens: _encode_tokens,
    Text: _encode_text,
    Bytes: _encode_bytes,
}


def _field_arrays(name: str, field: Field, cells: list[Any]) -> list[pa.Array]:
    if is_fixed_width(field):
        return [fixed_array(name, field, _fixed_values(field, cells))]
    if isinstance(field, Images):
        return list_arrays(name, field, cells)
    if isinstance(field, Image):
        indexes = [cell.jpeg_index for cell in cells]
        images = _variable_arrays(name, field, [cell[:-1] for cell in cells])
        return images + _variable_arrays("", Bytes(), indexes) if any(indexes) else images
    return _variable_arrays(name, field, cells)


def _variable_arrays(name: str, field: Field, cells: list[Any]) -> list[pa.Array]:
    data, *more = zip(*cells, strict=True) if isinstance(cells[0], tuple) else (cells,)
    values = np.frombuffer(b"".join(data), field.dtype if isinstance(field, Tokens) else np.uint8)
    lengths = np.array([len(each) for each in data], np.int64)
    types = [kind for _, kind in field_columns(name, field)][1:]
    others = [_numbers(column, kind) for column, kind in zip(more, types, strict=True)]
    return [variable_array(name, field, Ragged.of_lengths(values, lengths)), *others]


def _numbers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Returns a column of numbers, or of lists of numbers."""
    if not pa.types.is_list(kind):
        return number_array(np.array(values, number_dtype(kind)))
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    numbers = np.array([*chain.from_iterable(values)], number_dtype(kind.value_type))
    return pa.ListArray.from_arrays(number_array(offsets), number_array(numbers), type=kind)


def fixed_array(name: str, field: Array | Scalar, values: NDArray[Any]) -> pa.Array:
    """Returns the column of a field of fixed width, which shares memory with `values`.

    Args:
        name, field: The field.
        values: An array (rows, *shape).
    """
    stored = "uint8" if field.dtype == "bool" else stored_dtype(field.dtype)
    flat = number_array(np.ascontiguousarray(values).reshape(-1).view(stored))
    if isinstance(field, Scalar):
        return flat
    return pa.FixedSizeListArray.from_arrays(flat, type=field_columns(name, field)[0][1])


def variable_array(name: str, field: Field, rows: Ragged) -> pa.Array:
    """Returns the first column of a field of variable width, over the memory of its rows."""
    kind = field_columns(name, field)[0][1]
    values = np.ascontiguousarray(rows.values)
    if isinstance(field, Tokens):
        offsets = number_array(rows.offsets)
        return pa.LargeListArray.from_arrays(offsets, number_array(values), type=kind)
    ends = np.ascontiguousarray(rows.offsets * values.itemsize)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(values.view(np.uint8))]
    return pa.Array.from_buffers(kind, len(rows), buffers)


def _fixed_values(field: Array | Scalar, cells: list[Any]) -> NDArray[Any]:
    """Returns the cells of a fixed-width field as an array (rows, *shape) of its dtype."""
    if isinstance(field, Scalar):
        return np.array(cells, dtype=field.dtype)
    shape, dtype = row_shape(field)
    return np.frombuffer(b"".join(cells), dtype=dtype).reshape(len(cells), *shape)


# --- Schemas --------------------------------------------------------------------------------------


def infer_schema(sample: Any, classes: Sequence[str] | None = None) -> Schema:
    """Returns the schema of a sample; `fastio.pack` has the table of what becomes what.

    A dict's fields are named by its keys, a named tuple's by its names. Fields of other tuples
    and single values are named by what they are: image, label (an integer), value (any other
    number), array, text, bytes; the second of a kind is image_1, and so on.

    Raises:
        SchemaError: A value has a type that cannot be stored.
    """
    values: Sequence[Any]
    structure: Structure
    if isinstance(sample, Mapping):
        values, structure = list(sample.values()), "dict"
    elif isinstance(sample, (tuple, list)):
        values, structure = sample, "tuple"
    else:
        values, structure = [sample], "single"
    fields = [_infer_field(value, number) for number, value in enumerate(values)]
    if isinstance(sample, Mapping):
        names = list(sample)
    else:
        names = list(getattr(sample, "_fields", usual_names(fields)))
    return Schema(
        dict(zip(names, fields, strict=True)),
        structure,
        None if classes is None else tuple(classes),
    )


def field_values(schema: Schema, sample: Any, name: str) -> Sequence[Any]:
    """Returns the values of a sample in the order of the fields, see `taken`; or SchemaError."""
    return list(map(taken, _in_order(schema, sample, name)))


def _in_order(schema: Schema, sample: Any, name: str) -> Sequence[Any]:
    if schema.structure == "single":
        return [sample]
    if schema.structure == "tuple":
        if not isinstance(sample, (tuple, list)) or len(sample) != len(schema.fields):
            raise SchemaError(
                f"{name}: expected a tuple of {len(schema.fields)} values "
                f"({', '.join(schema.fields)}), got {_describe(sample)}"
            )
        return sample
    if not isinstance(sample, Mapping) or set(sample) != schema.fields.keys():
        raise SchemaError(
            f"{name}: expected a dict with the keys {', '.join(schema.fields)}, "
            f"got {_describe(sample)}"
        )
    return [sample[key] for key in schema.fields]


def _infer_field(value: Any, number: int) -> Field:
    if isinstance(value, PillowImage.Image):
        return Image("L" if value.mode in GRAY_MODES else "RGB")
    if isinstance(value, (list, tuple)) and value and is_picture(value[0]):
        first = _infer_field(value[0], number)
        if isinstance(first, Image):
            return Images(first.mode)
    if isinstance(value, str):
        return Text()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Image() if is_image_file(bytes(value)) else Bytes()
    if isinstance(value, (bool, np.bool_)):
        return Scalar("bool")
    if isinstance(value, int):
        return Scalar("int64")
    if isinstance(value, float) and not isinstance(value, np.generic):
        return Scalar("float64")
    array = np.asarray(value) if isinstance(value, np.generic) else as_array(value)
    possible = ARRAY_DTYPES if array is not None and array.ndim else DTYPES
    if array is None or array.dtype.name not in possible:
        kind = type(value).__name__ if array is None else f"array of {array.dtype}"
        raise SchemaError(
            f"value {number} of the first sample is {_article(kind)}, which cannot be stored. "
            "Supported are PIL images, lists of images, arrays and tensors of numbers, numbers, "
            "str and bytes; convert other lists to arrays, and flatten nested dicts and tuples"
        )
    if not array.ndim:
        return Scalar(array.dtype.name)
    if array.dtype == np.uint8 and array.ndim == 3 and array.size:
        # Tensors are (C, H, W), arrays (H, W, C).
        channels = array.shape[0] if is_tensor(value) else array.shape[2]
        if channels in (1, 3):
            return Image("RGB" if channels == 3 else "L")
    # An empty array says nothing about the shapes of the others.
    return Array(array.dtype.name, array.shape if array.size else None)


def _describe(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return f"one with {', '.join(map(str, sample))}"
    if isinstance(sample, (tuple, list)):
        return f"one of {len(sample)}"
    return _article(type(sample).__name__)


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
