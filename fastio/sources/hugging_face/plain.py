"""Converts columns as the datasets package stores them to columns of plain Arrow types.

Extension types become their storage types, arrays of one shape fixed-size lists, files their bytes,
dictionaries their values, and lists of dicts a dict of lists. Images are left out, because they are
read separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastio.errors import SchemaError
from fastio.packed.grouping import starts_of
from fastio.sources.named_files import NamedFiles
from fastio.sources.table.features import (
    Feature,
    File,
    FixedArray,
    Group,
    Plain,
    Several,
    has_pictures,
)
from fastio.sources.table.leaves import children, struct_values
from fastio.sources.table.reading import Origin
from fastio.sources.table.values import missing_rows


def bare(array: pa.Array) -> pa.Array:
    """Returns an array as it is stored."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def plain_type(kind: pa.DataType, feature: Feature) -> pa.DataType | None:
    """Returns the type of `plain_array`'s result; None for a struct of which nothing is left.

    Images and lists of images, which `plain_array` does not read, have a type of no meaning. Images
    in lists of structs are left out.
    """
    kind = getattr(kind, "storage_type", kind)  # of extension types
    if has_pictures(feature):
        return pa.binary()
    if isinstance(feature, File) and pa.types.is_struct(kind):
        return pa.large_binary()
    if isinstance(feature, FixedArray):
        return _array_type(_innermost(kind), feature.shape)
    if isinstance(feature, Group) and pa.types.is_struct(kind):
        found = [
            (child.name, plain_type(child.type, feature.children.get(child.name, Plain())))
            for child in children(kind)
        ]
        kept = [(name, child) for name, child in found if child is not None]
        return pa.struct(kept) if kept else None
    if is_list_of_structs(kind, feature):
        assert isinstance(feature, Several)
        return plain_type(_turned_type(kind.value_type, feature.of), _turned(feature.of))
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def plain_array(
    array: pa.Array, feature: Feature, column: str, origin: Origin, files: NamedFiles
) -> pa.Array:
    """Converts a column's values to the type that `plain_type` returns.

    Raises:
        SchemaError: If an array does not have its feature's shape, or a file cannot be read. The
            message names `column` and `origin`.
    """
    array = bare(array)
    if has_pictures(feature):
        raise SchemaError(
            f"{origin.column(column)} contains images, which neither filters nor tables can read"
        )
    if isinstance(feature, File) and pa.types.is_struct(array.type):
        return _contents(array, column, origin, files)
    if isinstance(feature, FixedArray):
        return _arrays(array, feature.shape, column, origin)
    if isinstance(feature, Group) and pa.types.is_struct(array.type):
        return _plain_struct(array, feature, column, origin, files)
    if is_list_of_structs(array.type, feature):
        assert isinstance(feature, Several)
        turned = _turned_array(array, feature.of)
        return plain_array(turned, _turned(feature.of), column, origin, files)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def plain_schema(schema: pa.Schema, features: Mapping[str, Feature]) -> pa.Schema:
    """Returns the schema of columns after `plain_array`, with the table's metadata."""
    found = [
        (field.name, plain_type(field.type, features.get(field.name, Plain()))) for field in schema
    ]
    kept = [(name, kind) for name, kind in found if kind is not None]
    return pa.schema(kept, metadata=schema.metadata)


def plain_batch(
    batch: pa.RecordBatch, features: Mapping[str, Feature], origin: Origin, files: NamedFiles
) -> pa.RecordBatch:
    """Converts rows of columns that are not images, as `plain_array` does."""
    names = batch.schema.names
    arrays = [
        plain_array(batch.column(number), features.get(name, Plain()), name, origin, files)
        for number, name in enumerate(names)
    ]
    return pa.RecordBatch.from_arrays(arrays, names)


def is_list_of_structs(kind: pa.DataType, feature: Feature) -> bool:
    """Returns whether a column has lists of dicts, which become a dict of lists."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    of_structs = isinstance(feature, Several) and isinstance(feature.of, Group)
    return bool(lists and of_structs and pa.types.is_struct(kind.value_type))


def _turned(feature: Feature) -> Group:
    """Returns the feature of a dict of lists, given that of the dicts in a list."""
    assert isinstance(feature, Group)
    return Group({name: Several(child) for name, child in feature.children.items()})


def _turned_children(kind: pa.DataType, feature: Feature) -> list[pa.Field]:
    """Returns the fields of a struct in a list that are not images."""
    known = _turned(feature).children
    return [each for each in children(kind) if not has_pictures(known.get(each.name, Plain()))]


def _turned_type(kind: pa.DataType, feature: Feature) -> pa.DataType:
    kept = _turned_children(kind, feature)
    return pa.struct([(child.name, pa.large_list(child.type)) for child in kept])


def _turned_array(array: pa.Array, feature: Feature) -> pa.Array:
    """Converts lists of structs to structs of lists, null where the list is."""
    mask, offsets = _mask(array), _offsets(array)
    structs = array.flatten()
    names = [child.name for child in _turned_children(structs.type, feature)]
    inside = struct_values(structs)
    lists = [pa.LargeListArray.from_arrays(offsets, inside[name], mask=mask) for name in names]
    return pa.StructArray.from_arrays(lists, names, mask=mask)


def _mask(array: pa.Array) -> pa.Array | None:
    """Returns which rows are null; None if none is."""
    missing = missing_rows(array)
    return None if missing is None else pa.array(missing)


def _offsets(array: pa.Array) -> pa.Array:
    """Returns the offsets of lists in the result of `flatten`, which leaves null lists out."""
    counts = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(starts_of(counts))


def _plain_struct(
    array: pa.Array, feature: Group, column: str, origin: Origin, files: NamedFiles
) -> pa.Array:
    names, arrays = [], []
    for number, child in enumerate(children(array.type)):
        known = feature.children.get(child.name, Plain())
        if not has_pictures(known) and plain_type(child.type, known) is not None:
            names.append(child.name)
            spoken = f"{column}.{child.name}"
            arrays.append(plain_array(array.field(number), known, spoken, origin, files))
    return pa.StructArray.from_arrays(arrays, names, mask=_mask(array))


def _arrays(array: pa.Array, shape: Sequence[int | None], column: str, origin: Origin) -> pa.Array:
    """Converts lists of lists to fixed-size lists, except for axes of variable length."""
    if not shape:
        return array
    if None not in shape:
        return _fixed_lists(array, [length or 0 for length in shape], column, origin)
    if shape[0] is not None:  # never happens: in the package only the first axis may vary
        return array
    inside = _arrays(array.flatten(), shape[1:], column, origin)
    return pa.LargeListArray.from_arrays(_offsets(array), inside, mask=_mask(array))


def _fixed_lists(array: pa.Array, lengths: Sequence[int], column: str, origin: Origin) -> pa.Array:
    """Converts lists of lists to fixed-size lists, without a copy if none is null."""
    # A null list has no values, but takes room in an array of fixed-size lists. The lists that are
    # not null are converted, and then put in their places with nulls between them.
    missing = missing_rows(array)
    values = array if missing is None else array.filter(pa.array(~missing))
    for length in lengths:
        counts = np.diff(np.asarray(values.offsets).astype(np.int64))
        if values.null_count or (counts != length).any():
            raise SchemaError(
                f"{origin.column(column)}: not all arrays in {origin.rows(len(array))} have the "
                f"shape {tuple(lengths)} that the dataset's features specify: cast the column "
                "to its actual type, or leave it out"
            )
        values = values.flatten()
    for length in reversed(lengths):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    if missing is None:
        return values
    places = np.cumsum(~missing) - 1
    return values.take(pa.array(places, mask=missing))


def _contents(array: pa.Array, column: str, origin: Origin, files: NamedFiles) -> pa.Array:
    """Returns the bytes of files. A file that has only a path is read."""
    inside = struct_values(array)
    data = inside.get("bytes", pa.nulls(len(array), pa.binary())).cast(pa.large_binary())
    absent = missing_rows(data)
    if absent is None or "path" not in inside:
        return data
    paths = inside["path"].to_pylist()
    if not any(paths[row] for row in np.flatnonzero(absent).tolist()):
        return data
    values = data.to_pylist()
    for row in np.flatnonzero(absent).tolist():
        if paths[row]:
            values[row] = _read(paths[row], column, origin.after(row), files)
    return pa.array(values, pa.large_binary())


def _read(path: str, column: str, origin: Origin, files: NamedFiles) -> bytes:
    try:
        return files.read(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SchemaError(
            f"{origin.column(column)}, row {origin.row(0)}: the file {path} cannot be read: "
            f"{reason}; save the dataset with its files (save_to_disk), or leave this column out"
        ) from error


def _innermost(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return kind


def _array_type(kind: pa.DataType, shape: Sequence[int | None]) -> pa.DataType:
    """Returns the type of `_arrays`' result."""
    if shape and shape[0] is None:
        return pa.large_list(_array_type(kind, shape[1:]))
    for length in reversed(shape):
        kind = pa.list_(kind, length or 0)
    return kind
