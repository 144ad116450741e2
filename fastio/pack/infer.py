"""Derives a schema from the first sample, and takes the values of its fields from samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image as PillowImage

from fastio.errors import SchemaError
from fastio.pack.cells import as_array, is_tensor
from fastio.pack.images import is_image_file
from fastio.schema import (
    ARRAY_DTYPES,
    DTYPES,
    Array,
    Bytes,
    Field,
    Image,
    Scalar,
    Schema,
    Structure,
    Text,
)


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
        names = list(getattr(sample, "_fields", _names(fields)))
    return Schema(
        dict(zip(names, fields, strict=True)),
        structure,
        None if classes is None else tuple(classes),
    )


def field_values(schema: Schema, sample: Any, name: str) -> Sequence[Any]:
    """Returns the values of a sample in the order of the fields, or raises SchemaError."""
    if schema.structure == "single":
        return [sample]
    if schema.structure == "tuple":
        if not isinstance(sample, (tuple, list)) or len(sample) != len(schema.fields):
            raise SchemaError(
                f"{name}: expected a tuple of {len(schema.fields)} values "
                f"({', '.join(schema.fields)}), got {_describe(sample)}"
            )
        return sample
    if not isinstance(sample, Mapping) or set(sample) != set(schema.fields):
        raise SchemaError(
            f"{name}: expected a dict with the keys {', '.join(schema.fields)}, "
            f"got {_describe(sample)}"
        )
    return [sample[key] for key in schema.fields]


def _infer_field(value: Any, number: int) -> Field:
    if isinstance(value, PillowImage.Image):
        return Image("L" if value.mode in ("1", "L", "LA", "La") else "RGB")
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
            "Supported are PIL images, arrays and tensors of numbers, numbers, str and bytes; "
            "convert lists to arrays, and flatten nested dicts and tuples"
        )
    if not array.ndim:
        return Scalar(array.dtype.name)
    if array.dtype == np.uint8 and array.ndim == 3 and array.size:
        channels = array.shape[0] if is_tensor(value) else array.shape[2]
        if channels in (1, 3):
            return Image("RGB" if channels == 3 else "L")
    return Array(array.dtype.name, array.shape if array.size else None)


def _names(fields: Sequence[Field]) -> list[str]:
    names: list[str] = []
    counts: dict[str, int] = {}
    for field in fields:
        name = type(field).__name__.lower()
        if isinstance(field, Scalar):
            name = "label" if "int" in field.dtype else "value"
        seen = counts.get(name, 0)
        counts[name] = seen + 1
        names.append(f"{name}_{seen}" if seen else name)
    return names


def _describe(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return f"one with {', '.join(map(str, sample))}"
    if isinstance(sample, (tuple, list)):
        return f"one of {len(sample)}"
    return _article(type(sample).__name__)


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
