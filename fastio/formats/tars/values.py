"""What the files of a sample hold, by their extensions, as the webdataset package decodes them.

Only the part of an extension behind its last dot counts ("seg.png" is an image), and a "gz" there
is undone first. Nothing is ever unpickled: what is no image, number, text, JSON or array stays
bytes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastio.formats.npy import array_of
from fastio.memory import MAX_UNZIPPED_BYTES
from fastio.schema import ARRAY_DTYPES, DTYPES, Array, Bytes, Field, Image, Scalar, Text

Category = Literal["image", "int", "text", "json", "array", "bytes"]

JPEG_EXTENSIONS = frozenset(["jpg", "jpeg", "jpe", "jfif"])
_CATEGORIES: dict[str, Category] = {
    **dict.fromkeys(JPEG_EXTENSIONS, "image"),
    **dict.fromkeys(("png", "apng", "webp", "gif", "bmp", "dib", "tif", "tiff"), "image"),
    **dict.fromkeys(("ppm", "pgm", "pbm", "pnm", "jp2", "j2k", "jpx", "tga"), "image"),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), "int"),
    **dict.fromkeys(("txt", "text", "transcript"), "text"),
    **dict.fromkeys(("json", "jsn"), "json"),
    "npy": "array",
}
_INT64 = range(-(2**63), 2**63)
MOST_DIGITS = 64  # of an int64, with blanks around it


def category(extension: str) -> Category:
    """What files of an extension hold. Images that are compressed again are bytes."""
    *before, last = extension.split(".")
    if last == "gz":
        inner = category(".".join(before))
        return "bytes" if inner == "image" else inner
    return _CATEGORIES.get(last, "bytes")


def is_integer(extension: str) -> bool:
    """Whether the index keeps the values of an extension: numbers of classes and the like."""
    return _CATEGORIES.get(extension.rpartition(".")[2]) == "int"


def parse_integer(data: bytes) -> int | None:
    """The number in a file of `is_integer`, or None where it holds no int64."""
    if len(data) > MOST_DIGITS:
        return None
    try:
        number = int(data)
    except ValueError:
        return None
    return number if number in _INT64 else None


def infer_field(extension: str, examples: Sequence[bytes], same_length: bool) -> Field:
    """The field for the files of an extension.

    Args:
        extension: theirs.
        examples: some of them.
        same_length: whether all of them, beyond the examples, have as many bytes as each other.

    Returns:
        For JSON: a Scalar where the examples are numbers, or are true and false, else Text, the
        document as it is. For arrays: an Array, with a shape where all can have the same one.
        Bytes where the examples cannot be read as what their extension says.
    """
    kind = category(extension)
    if kind == "image":
        return Image()
    if kind == "int":
        return Scalar("int64")
    if kind == "text":
        return Text()
    if kind not in ("json", "array"):
        return Bytes()
    found = list(_readable(extension, examples))
    if len(found) <= len(examples) // 2:
        return Bytes()
    if kind == "json":
        return _json_field(found)
    return _array_field(found, same_length and len(found) == len(examples))


def may_be_field(extension: str, field: Field) -> bool:
    """Whether `infer_field` can give a field for the files of an extension."""
    kind = category(extension)
    if kind == "image":
        return field == Image()
    if kind == "int":
        return field == Scalar("int64")
    if kind == "text":
        return field == Text()
    if field == Bytes():
        return True
    if kind == "json":
        return field in (Scalar("bool"), Scalar("int64"), Scalar("float64"), Text())
    if kind != "array":
        return False
    if isinstance(field, Array):
        return field.shape is None or field.fixed_shape is not None
    return isinstance(field, Scalar)


def _readable(extension: str, examples: Sequence[bytes]) -> Iterator[Any]:
    """What those examples hold that can be read; the others are errors of their own samples."""
    is_array = category(extension) == "array"
    for data in examples:
        with suppress(Exception):  # MemoryError and RecursionError too
            whole = unzipped(extension, data)
            yield _load_array(whole) if is_array else json.loads(whole)


def decode(
    extension: str, field: Field, data: bytes, max_unzipped_bytes: int = MAX_UNZIPPED_BYTES
) -> Any:
    """The value of a file that is no image.

    Args:
        extension: of the file.
        field: what it holds.
        data: its bytes.
        max_unzipped_bytes: what a gz file may hold.

    Raises:
        ValueError: it does not hold what the field does; the message is a reason without a name.
    """
    data = unzipped(extension, data, max_unzipped_bytes)
    if isinstance(field, Text):
        return data.decode("utf-8")
    if isinstance(field, Bytes):
        return data
    if isinstance(field, Array):
        return _checked_array(field, _load_array(data))
    assert isinstance(field, Scalar)
    kind = category(extension)
    if kind == "array":
        return _checked_array(Array(field.dtype), _load_array(data))[()]
    if kind == "int":
        number = parse_integer(data)
        if number is None:
            raise ValueError(f"it holds {data[:40]!r}, and no int64")
        return number
    return _checked_number(field.dtype, json.loads(data))


def unzipped(extension: str, data: bytes, max_unzipped_bytes: int = MAX_UNZIPPED_BYTES) -> bytes:
    """What a gz file holds; other files as they are.

    Raises:
        ValueError: it is no gzip file, or holds more than it may, of which no more is made.
    """
    if extension.rpartition(".")[2] != "gz":
        return data
    inflater = zlib.decompressobj(wbits=31)
    try:
        found = inflater.decompress(data, max_unzipped_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"it is no gzip file: {error}") from error
    if len(found) > max_unzipped_bytes:
        del found  # which the error would keep
        raise ValueError(
            f"its {len(data):,} bytes decompress to more than max_unzipped_bytes="
            f"{max_unzipped_bytes:,}. If you trust the data, pass a larger "
            "max_unzipped_bytes to fastio.open or fastio.pack"
        )
    if not inflater.eof:
        raise ValueError("it is not a complete gzip file: it is truncated")
    return found


def _json_field(values: list[Any]) -> Field:
    if all(isinstance(value, bool) for value in values):
        return Scalar("bool")
    if any(isinstance(value, bool) for value in values):
        return Text()
    if all(isinstance(value, int) and value in _INT64 for value in values):
        return Scalar("int64")
    if all(isinstance(value, (int, float)) for value in values):
        return Scalar("float64")
    return Text()


def _checked_number(dtype: str, value: Any) -> Any:
    fits = {
        "bool": isinstance(value, bool),
        "int64": isinstance(value, int) and not isinstance(value, bool) and value in _INT64,
        "float64": isinstance(value, (int, float)) and not isinstance(value, bool),
    }
    if not fits[dtype]:
        raise ValueError(f"it holds {json.dumps(value)[:40]}, and the first ones hold {dtype}")
    return float(value) if dtype == "float64" else value


def _load_array(data: bytes) -> NDArray[Any]:
    array = array_of(data)
    if array.dtype.name not in ARRAY_DTYPES:
        raise ValueError(f"its dtype is {array.dtype}; possible are {', '.join(ARRAY_DTYPES)}")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)


def _array_field(arrays: list[NDArray[Any]], same_length: bool) -> Field:
    first = arrays[0]
    same_shape = all(array.shape == first.shape for array in arrays)
    if not first.ndim and same_shape and first.dtype.name in DTYPES:
        return Scalar(first.dtype.name)
    return Array(
        first.dtype.name,
        first.shape if same_shape and same_length and first.ndim and first.size else None,
    )


def _checked_array(field: Array, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.name != field.dtype:
        raise ValueError(f"its dtype is {array.dtype.name}, and that of the first {field.dtype}")
    if not field.fits(array.shape):
        raise ValueError(f"its shape is {array.shape}, and that of the first {field.shape}")
    return array
