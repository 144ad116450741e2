"""Decodes the files of a sample by their extensions, as the webdataset package does.

Only the part of an extension after its last dot matters ("seg.png" is an image). A final "gz" is
decompressed first. Nothing is unpickled: what is not an image, number, text, JSON or array stays
bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastio.runtime.memory import MAX_UNZIPPED_BYTES
from fastio.schema import ARRAY_DTYPES, DTYPES, Array, Bytes, Field, Image, Scalar, Text
from fastio.sources.npy import array_of

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
# The dtypes of JSON numbers, the narrowest first, and which values fit.
_JSON_NUMBERS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int64": lambda value: type(value) is int and value in _INT64,
    "float64": lambda value: type(value) in (int, float),
}
# The fields that files of a category can become; arrays become others too.
_FIELDS: dict[Category, tuple[Field, ...]] = {
    "image": (Image(),),
    "int": (Scalar("int64"),),
    "text": (Text(),),
    "json": (Bytes(), Text(), *map(Scalar, _JSON_NUMBERS)),
    "array": (Bytes(),),
    "bytes": (Bytes(),),
}
_PART_BYTES = 1 << 20  # of gz files, decompressed at a time
MOST_DIGITS = 64  # longest file with an int64, including whitespace


def category(extension: str) -> Category:
    """Returns what files of an extension hold. Images in gz files count as bytes."""
    *before, last = extension.split(".")
    if last == "gz":
        inner = category(".".join(before))
        return "bytes" if inner == "image" else inner
    return _CATEGORIES.get(last, "bytes")


def is_integer(extension: str) -> bool:
    """Returns whether the index stores the values of an extension, such as class numbers."""
    return _CATEGORIES.get(extension.rpartition(".")[2]) == "int"


def parse_integer(data: bytes) -> int | None:
    """Returns the number in a file of an `is_integer` extension; None if it is not an int64."""
    if len(data) > MOST_DIGITS:
        return None
    try:
        number = int(data)
    except ValueError:
        return None
    return number if number in _INT64 else None


def infer_field(extension: str, examples: Sequence[bytes], same_length: bool) -> Field:
    """Infers the field for the files of an extension.

    Args:
        extension: The extension.
        examples: The contents of some files.
        same_length: Whether all files, not only the examples, have the same size in bytes.

    Returns:
        For JSON, a Scalar if the examples are numbers or booleans, else Text with the whole
        document. For arrays, an Array, with a shape if all files can have the same one. Bytes if
        the examples cannot be read as their extension says.
    """
    kind = category(extension)
    if kind not in ("json", "array"):
        return _FIELDS[kind][0]
    found = list(_readable(extension, examples))
    if len(found) <= len(examples) // 2:
        return Bytes()
    if kind == "json":
        dtypes = (dtype for dtype, fits in _JSON_NUMBERS.items() if all(map(fits, found)))
        return next(map(Scalar, dtypes), Text())
    return _array_field(found, same_length and len(found) == len(examples))


def may_be_field(extension: str, field: Field) -> bool:
    """Returns whether `infer_field` can return a field for the files of an extension."""
    kind = category(extension)
    if kind == "array" and isinstance(field, Array):
        return field.shape is None or field.fixed_shape is not None
    return field in _FIELDS[kind] or (kind == "array" and isinstance(field, Scalar))


def _readable(extension: str, examples: Sequence[bytes]) -> Iterator[Any]:
    """Yields the contents of the readable examples. Others will be errors of their samples."""
    is_array = category(extension) == "array"
    for data in examples:
        with suppress(Exception):  # MemoryError and RecursionError too
            whole = unzipped(extension, data)
            yield _load_array(whole) if is_array else json.loads(whole)


def decode(
    extension: str, field: Field, data: bytes, max_unzipped_bytes: int = MAX_UNZIPPED_BYTES
) -> Any:
    """Returns the value of a file that is not an image, which must fit a field.

    Raises:
        ValueError: If the contents do not fit the field, or a gz file decompresses to more than
            `max_unzipped_bytes`. The message gives only the reason.
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
            raise ValueError(f"it contains {data[:40]!r}, which is not an int64")
        return number
    return _checked_number(field.dtype, json.loads(data))


def unzipped(extension: str, data: bytes, max_unzipped_bytes: int = MAX_UNZIPPED_BYTES) -> bytes:
    """Returns the decompressed contents of a gz file; other files unchanged.

    As with the gzip module, these are the contents of all members of the file, one after another.

    Raises:
        ValueError: If it is not a gzip file, or decompresses to more than the limit. Decompression
            stops there.
    """
    if extension.rpartition(".")[2] != "gz":
        return data
    # A file of one member takes a call of zlib: GzipFile costs several times as much if it is
    # small, but reads more members, and says what is wrong with a file.
    one = zlib.decompressobj(wbits=31)
    with suppress(zlib.error):
        whole = one.decompress(data, min(max_unzipped_bytes, sys.maxsize - 1) + 1)
        if len(whole) > max_unzipped_bytes:
            del whole  # the traceback would keep it in memory
            raise _too_large(data, max_unzipped_bytes)
        if one.eof and not one.unused_data.strip(b"\0"):
            return whole
        del whole
    parts: list[bytes] = []
    room = max_unzipped_bytes
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while room >= 0 and (part := file.read(_PART_BYTES)):
                room -= len(part)
                parts.append(part)
    except EOFError as error:
        raise ValueError("it is not a complete gzip file: it is truncated") from error
    except (OSError, zlib.error) as error:
        raise ValueError(f"it is not a gzip file: {error}") from error
    if room < 0:
        parts.clear()  # as above
        raise _too_large(data, max_unzipped_bytes)
    if not data:
        raise ValueError("it is not a complete gzip file: it is empty")
    return b"".join(parts)


def _too_large(data: bytes, max_unzipped_bytes: int) -> ValueError:
    return ValueError(
        f"its {len(data):,} bytes decompress to more than max_unzipped_bytes="
        f"{max_unzipped_bytes:,}. If you trust the data, pass a larger "
        "max_unzipped_bytes to fastio.open or fastio.pack"
    )


def _checked_number(dtype: str, value: Any) -> Any:
    if not _JSON_NUMBERS[dtype](value):
        raise ValueError(
            f"it contains {json.dumps(value)[:40]}, but the first ones contain {dtype}"
        )
    if dtype != "float64":
        return value
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"it holds {json.dumps(value)[:40]}..., too large for float64") from error


def _load_array(data: bytes) -> NDArray[Any]:
    array = array_of(data)
    if array.dtype.name not in ARRAY_DTYPES:
        raise ValueError(f"its dtype is {array.dtype}; supported are {', '.join(ARRAY_DTYPES)}")
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
        raise ValueError(
            f"its dtype is {array.dtype.name}, but that of the first one is {field.dtype}"
        )
    if not field.fits(array.shape):
        raise ValueError(f"its shape is {array.shape}, but that of the first one is {field.shape}")
    return array
