"""Columns that hold encoded files, images and sounds: which they are, and where their bytes lie.

A column holds files if it has byte strings, or structs of `bytes` and `path` as the datasets
package writes them, or lists of either. What kind of files they are is decided in this order:

1. by the user: `fastio.open(path, images=[...])` names the columns of images, none if it is empty;
2. by the metadata of the datasets package, if the file has any: `Image` columns and lists of
   `Image` are images, and the files of `Audio` and similar columns become one field of bytes;
3. by the first values: a column whose first values begin as image files do has images, and structs
   whose bytes begin as sound files do become one field of bytes.

Lists of files are read only if the files are images.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import SchemaError, ShardCorrupt
from fastio.packed.image_lists import MOST_IMAGES, NULL_LIST
from fastio.packed.pixels import is_image_file
from fastio.runtime.properties import cached_property
from fastio.schema import PICTURES, Bytes, Field, Image, Images
from fastio.sources.table.features import File, Picture, Several, features_of
from fastio.sources.table.filters import unwrapped
from fastio.sources.table.leaves import children, is_binary, is_list, struct_values
from fastio.sources.table.parquet import ParquetTable
from fastio.sources.table.reading import Table

_LOOKED_AT = 16  # first rows of a table, of which one has to be there
_JPEG = (0xFF, 0xD8)
_SOUNDS = (b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"caff", b".snd")


@dataclass(frozen=True)
class EncodedImages:
    """The files of consecutive rows, in memory.

    Attributes:
        data: uint8, the bytes of all files.
        offsets: int64 (rows + 1,); row i has data[offsets[i]:offsets[i + 1]].
        missing: bool (rows,), rows that have no bytes; None if all have.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    missing: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def is_jpeg(self) -> NDArray[np.bool_]:
        """Which rows begin as JPEG files do, bool (rows,)."""
        found = np.diff(self.offsets) >= len(_JPEG)
        if self.missing is not None:
            found &= ~self.missing
        begins = self.offsets[:-1][found]
        for number, byte in enumerate(_JPEG):
            found[found] = self.data[begins + number] == byte
            begins = self.offsets[:-1][found]
        return found

    def bytes_of(self, row: int) -> bytes:
        """Returns the file of a row; ValueError if it has none."""
        if self.missing is not None and self.missing[row]:
            raise ValueError("there is no image: the row is null, or has no bytes")
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


@dataclass(frozen=True)
class EncodedLists:
    """The lists of image files of consecutive rows, in memory.

    Attributes:
        values: The column of all lists' values.
        images: Their files.
        first: int64 (rows + 1,); the list of row i has the files from first[i] to first[i + 1].
        missing: bool (rows,), rows whose list is null; None if none is.
    """

    values: pa.Array
    images: EncodedImages
    first: NDArray[np.int64]
    missing: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.first) - 1

    def counts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the lengths of the lists of rows, int64 (n,); NULL_LIST where a list is null."""
        found = self.first[rows + 1] - self.first[rows]
        return found if self.missing is None else np.where(self.missing[rows], NULL_LIST, found)


def embedded_files(
    table: Table, named: Collection[str] | None, columns: Sequence[str] | None
) -> dict[str, Field]:
    """Returns the columns that hold files, with the fields that they become.

    They are Image, Images for lists of images, or Bytes.

    Args:
        table: The first of the tables.
        named: The columns that hold images, as the user says. If None, the table tells.
        columns: The columns that are wanted. If None, all.

    Raises:
        SchemaError: A named column does not exist, or does not hold byte strings.
        ShardCorrupt: The table is damaged.
    """
    inner = unwrapped(table)[0]
    types = {field.name: field.type for field in inner.schema}
    features = features_of(inner.schema)
    found: dict[str, Field] = {}
    unknown = []
    for name in named or ():
        if name not in types or not _holds_files(types[name]):
            kind = f"is {types[name]}" if name in types else "does not exist"
            raise SchemaError(
                f"{inner.name}: images={list(named or ())!r} names the column {name!r}, which "
                f"{kind}; images are byte strings, structs of bytes and path, or lists of these"
            )
    for name, kind in types.items():
        if not _holds_files(kind) or (columns is not None and name not in columns):
            continue
        feature = features.get(name)
        listed = is_list(kind)
        if listed and isinstance(feature, Several):
            feature = feature.of
        if named is not None:
            if name in named:
                mode = feature.mode if isinstance(feature, Picture) else "RGB"
                found[name] = (Images if listed else Image)(mode)
        elif isinstance(feature, Picture):
            found[name] = (Images if listed else Image)(feature.mode)
        elif isinstance(feature, File) and pa.types.is_struct(kind):
            found[name] = Bytes()
        elif name not in features:
            unknown.append(name)
    if unknown:
        first = _first_rows(inner, unknown)
        begins = {name: _beginning(first, name) for name in unknown}
        found |= {
            name: Images() if is_list(types[name]) else Image()
            for name, begin in begins.items()
            if is_image_file(begin)
        }
        structs = [name for name in unknown if pa.types.is_struct(types[name])]
        found |= {name: Bytes() for name in structs if _is_sound(begins[name])}
    return {name: found[name] for name in types if name in found}


def bytes_and_paths(array: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Returns the files' bytes, binary or large_binary, and their paths or None."""
    kind = array.type
    if not pa.types.is_struct(kind):
        paths = array if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
        return (array if paths is None else pa.nulls(len(array), pa.binary())), paths
    inside = struct_values(array)
    data = inside.get("bytes")
    if data is None or pa.types.is_null(data.type):
        data = pa.nulls(len(array), pa.binary())
    return data, inside.get("path")


def encoded_images(array: pa.Array, where: str) -> EncodedImages:
    """Returns the files in a column, without a copy.

    Raises:
        ShardCorrupt: The offsets lead outside the buffer. The message begins with `where`.
    """
    nulls = array.is_null()
    data, _ = bytes_and_paths(array)
    if not (pa.types.is_binary(data.type) or pa.types.is_large_binary(data.type)):
        data = data.cast(pa.large_binary())
    missing = nulls.to_numpy(zero_copy_only=False) | data.is_null().to_numpy(zero_copy_only=False)
    width = np.int64 if pa.types.is_large_binary(data.type) else np.int32
    _, offsets, content = data.buffers()
    ends = np.zeros(len(data) + 1, np.int64)
    if offsets is not None and len(data):
        at = data.offset * np.dtype(width).itemsize
        ends = np.frombuffer(offsets, width, len(data) + 1, at).astype(np.int64)
    values = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
    # Native threads follow these offsets without a check of their own.
    if ends[0] < 0 or ends[-1] > len(values) or (np.diff(ends) < 0).any():
        raise ShardCorrupt(
            f"{where}: the offsets of the images are damaged; write the file again, or save the "
            "dataset again"
        )
    return EncodedImages(values, ends, missing if missing.any() else None)


def encoded_lists(array: pa.Array, where: str) -> EncodedLists:
    """Returns the lists of files in a column, without a copy of the files.

    Raises:
        ShardCorrupt: The offsets lead outside the values. The message begins with `where`.
        SchemaError: A list is too long.
    """
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        first = np.arange(len(array) + 1, dtype=np.int64) * kind.list_size
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
    else:
        first, values = np.asarray(array.offsets).astype(np.int64), array.values
        if first[0] < 0 or first[-1] > len(values) or (np.diff(first) < 0).any():
            raise ShardCorrupt(f"{where}: the offsets of the lists are damaged; write it again")
        values, first = values.slice(first[0], first[-1] - first[0]), first - first[0]
    longest = int(np.diff(first).max(initial=0))
    if longest > MOST_IMAGES:
        raise SchemaError(
            f"{where}: a list has {longest:,} images, and fastio reads lists of at most "
            f"{MOST_IMAGES:,}"
        )
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return EncodedLists(values, encoded_images(values, where), first, missing)


def files_without_bytes(
    batch: pa.RecordBatch, embedded: Mapping[str, Field], filled: Set[str]
) -> Iterator[tuple[str, int, str]]:
    """Yields the rows whose columns of files other than images have no bytes.

    Args:
        batch: The rows.
        embedded: The columns that hold files.
        filled: The columns whose nulls have a value.

    Yields:
        The column, the number of the row in the batch, and what is wrong.
    """
    for name, kind in embedded.items():
        if isinstance(kind, PICTURES) or name not in batch.schema.names:
            continue
        data, paths = bytes_and_paths(batch.column(name))
        if not data.null_count or not filled.isdisjoint((name, f"{name}.bytes", f"{name}_bytes")):
            continue
        for row in np.flatnonzero(data.is_null().to_numpy(zero_copy_only=False)).tolist():
            path = None if paths is None else paths[row].as_py()
            has = "has no bytes" if path is None else f"has no bytes, only the path {path!r}"
            yield (
                name,
                row,
                f"column {name!r} {has}. fastio opens no files that a table names: write the "
                "table with the bytes in it (Dataset.to_parquet of the datasets package embeds "
                f'them), leave such rows out with filters=, or give nulls={{"{name}": b""}}, so '
                "that they have no bytes",
            )


def without_nulls(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """Returns rows in which files of a column that have no bytes are empty."""
    array = batch.column(column)
    place = batch.schema.get_field_index(column)
    kind = array.type
    if not pa.types.is_struct(kind):
        return batch.set_column(place, batch.schema.field(place), _filled(array))
    inside = struct_values(array)
    inside["bytes"] = _filled(inside["bytes"])
    whole = pa.StructArray.from_arrays(list(inside.values()), fields=children(kind))
    return batch.set_column(place, batch.schema.field(place), whole)


def _filled(data: pa.Array) -> pa.Array:
    # pyarrow cannot fill nulls in views, and values of a fixed size cannot be empty, so the values
    # are cast to large_binary first.
    kind = data.type
    wide = data.cast(pa.large_binary())
    return wide.fill_null(b"").cast(kind)


def _holds_files(kind: pa.DataType) -> bool:
    """Returns whether a type is one of byte strings or structs of `bytes` and `path`, or lists."""
    kind = kind.value_type if is_list(kind) else kind
    if not pa.types.is_struct(kind):
        return is_binary(kind)
    types = {child.name: child.type for child in children(kind)}
    return types.keys() <= {"bytes", "path"} and "bytes" in types and is_binary(types["bytes"])


def _first_rows(table: Table, columns: Sequence[str]) -> pa.RecordBatch | None:
    """Returns some columns of the first rows of a table, or None if it has no rows."""
    if isinstance(table, ParquetTable):
        return table.first_rows(columns, _LOOKED_AT)
    types: Mapping[str, Any] = {name: table.schema.field(name).type for name in columns}
    batches: Iterator[Any] = table.batches(types, 0, _LOOKED_AT)
    return next((batch for _, batch in batches), None)


def _beginning(batch: pa.RecordBatch | None, name: str) -> bytes:
    """Returns how the first value that a column has begins; no bytes if it has none."""
    if batch is None:
        return b""
    array = batch.column(name).slice(0, _LOOKED_AT)
    data, _ = bytes_and_paths(array.flatten() if is_list(array.type) else array)
    value: bytes = next((each.as_py() for each in data if each.is_valid), b"")
    return value[:16]


def _is_sound(begin: bytes) -> bool:
    wave = begin[:4] in (b"RIFF", b"RF64") and begin[8:12] == b"WAVE"
    aiff = begin[:4] == b"FORM" and begin[8:12] in (b"AIFF", b"AIFC")
    return begin.startswith(_SOUNDS) or wave or aiff
