"""Opens data of the datasets package: directories of `save_to_disk`, and its objects.

The package is never imported. Directories are read without it, and objects are recognised by the
names of their classes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio.errors import ShardCorrupt, SourceNotFound
from fastio.packed.metadata import MAGIC
from fastio.runtime.files import check_file, only_files
from fastio.sources.hugging_face.formats import Format
from fastio.sources.hugging_face.rows import Checked, SelectedRows, StoredBatch
from fastio.sources.table.arrow import CheckedStream
from fastio.sources.table.data import Mapped
from fastio.sources.table.features import (
    Feature,
    File,
    Picture,
    Plain,
    features_of,
    parse_features,
    pictures,
)
from fastio.sources.table.leaves import is_binary, is_list, is_number, is_text
from fastio.sources.table.objects import stamp
from fastio.sources.table.reading import reading

INFO = "dataset_info.json"
STATE = "state.json"
SPLITS = "dataset_dict.json"
_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BEGIN = MAGIC + bytes(2)  # of an Arrow file
_INDICES = "indices"
_EMBEDDED = (Picture, File)


@dataclass(frozen=True)
class Opened:
    """A dataset of the datasets package.

    Attributes:
        name: The directory, or another name for messages.
        rows: The rows, without columns that the dataset's format leaves out.
        features: The features of the columns.
        stamp: A text that changes when the data does.
        files: The files that hold the data; none if it is in memory.
        folder: The folder of the files; None if the user made or opened it with the package.
        format: The format that the user chose with the package.
    """

    name: str
    rows: SelectedRows
    features: Mapping[str, Feature]
    stamp: str
    files: tuple[str, ...] = ()
    folder: str | None = None
    format: Format = field(default_factory=Format)


@dataclass(frozen=True)
class ArrowFiles:
    """Local Arrow files that are not compressed, of which the datasets package need not know.

    Attributes:
        paths: The files, whose schemas are equal.
        features: The features of columns of images and other files. No other columns hold files.
            If None, as the metadata of the files says.
    """

    paths: tuple[str, ...]
    features: Mapping[str, Feature] | None = None


def is_hugging_face(dataset: Any) -> bool:
    """Returns whether this is a directory of `save_to_disk` or an object of the datasets package.

    A file of the package's cache, which is an Arrow stream, counts if it has images. Others are
    read as tables.
    """
    if isinstance(dataset, (str, os.PathLike)):
        folder = Path(dataset)
        has_both = (folder / STATE).is_file() and (folder / INFO).is_file()
        return has_both or (folder / SPLITS).is_file() or _has_images(folder)
    return _class_name(dataset) is not None


def is_dataset_object(dataset: Any) -> bool:
    """Returns whether this is a `datasets.Dataset`, not a path, a stream or several splits."""
    return _class_name(dataset) == "Dataset"


def has_transform(dataset: Any) -> bool:
    """Returns whether samples are made by a user's function (`set_transform`)."""
    return is_dataset_object(dataset) and bool(dataset.format["type"] == "custom")


def open_hugging_face(dataset: Any) -> Opened:
    """Opens a directory of `save_to_disk`, a `datasets.Dataset`, or Arrow files.

    Raises:
        SourceNotFound: If it has several splits or no rows, is a stream, or lacks a file.
        ShardCorrupt: If a file is damaged.
    """
    if isinstance(dataset, ArrowFiles):
        opened = _open_files(dataset)
    elif isinstance(dataset, (str, os.PathLike)):
        path = os.fspath(dataset)
        is_file = os.path.isfile(path)
        opened = _open_files(ArrowFiles((path,))) if is_file else _open_folder(path)
    else:
        opened = _open_object(dataset)
    if not len(opened.rows):
        raise SourceNotFound(f"{opened.name} has no rows")
    return opened


def _class_name(dataset: Any) -> str | None:
    known = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")
    for base in type(dataset).__mro__:
        if base.__module__.partition(".")[0] == "datasets" and base.__name__ in known:
            return str(base.__name__)
    return None


def _has_images(path: Path) -> bool:
    """Returns whether a file is an Arrow stream whose features include images."""
    if path.suffix != ".arrow" or not path.is_file():
        return False
    try:
        with open(path, "rb") as file, _stream(file.read, str(path)) as reader:
            return bool(pictures(features_of(reader.schema)))
    except Exception:  # what else it is, or lacks, is for others to say
        return False


def _open_files(files: ArrowFiles) -> Opened:
    found = [record_batches(path) for path in files.paths]
    name, schema = files.paths[0], found[0][0]
    features = features_of(schema)
    if files.features is not None:
        plain = {n: Plain() for n, kind in features.items() if isinstance(kind, _EMBEDDED)}
        features |= plain | dict(files.features)
    rows = _rows(name, schema, [batch for _, each in found for batch in each], None, None)
    folder = os.path.dirname(name) or "."
    return Opened(name, rows, features, stamp(files.paths), files.paths, folder)


# --- Directories ----------------------------------------------------------------------------------


def _open_folder(folder: str) -> Opened:
    if os.path.isfile(os.path.join(folder, SPLITS)):
        splits = _json(os.path.join(folder, SPLITS)).get("splits") or []
        raise _several(folder, [os.path.join(folder, str(split)) for split in splits])
    state, info = (_json(os.path.join(folder, name)) for name in (STATE, INFO))
    paths = _files(folder, state, "_data_files")
    if not paths and "_data_files" in state:
        raise SourceNotFound(f"{folder} has no rows")
    if not paths:
        raise ShardCorrupt(f"{os.path.join(folder, STATE)} does not list any data files")
    batches: list[StoredBatch] = []
    schema: pa.Schema | None = None
    for path in paths:
        found, more = record_batches(path)
        if schema is not None and not found.equals(schema):
            raise ShardCorrupt(
                f"{path} has different columns than {paths[0]}: {found} instead of {schema}; "
                "save the dataset again"
            )
        schema = found
        batches += more
    assert schema is not None
    selected = _files(folder, state, "_indices_data_files")
    indices = None
    if selected:
        indices = _indices(
            [batch for path in selected for batch in record_batches(path)[1]], selected[0]
        )
    features = _folder_features(folder, info, schema)
    format_columns = None if state.get("_output_all_columns") else state.get("_format_columns")
    rows = _rows(folder, schema, batches, indices, format_columns)
    files = (*paths, *selected)
    given = Format(state.get("_format_type"))
    return Opened(
        folder, rows, features, stamp([*files, os.path.join(folder, STATE)]), files, folder, given
    )


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8", opener=only_files) as file:
            found = json.load(file)
    except OSError as error:
        raise SourceNotFound(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ShardCorrupt(f"{path} is not JSON: {error}; save the dataset again") from error
    if not isinstance(found, dict):
        raise ShardCorrupt(f"{path} is not a JSON object; save the dataset again")
    return found


def _files(folder: str, state: Mapping[str, Any], key: str) -> list[str]:
    """Returns the paths of the files that `state.json` lists under a key; none without it.

    Raises:
        ShardCorrupt: If it lists none rightly, or one that is not in the folder: data from somebody
            else must not name other files of this machine, which a pack would then contain.
    """
    listed = state.get(key) or []
    try:
        names = [str(item["filename"]) for item in listed]
    except (TypeError, KeyError) as error:
        raise ShardCorrupt(
            f"{os.path.join(folder, STATE)}: {key} is not a list of files; save the dataset again"
        ) from error
    for name in names:
        if os.path.isabs(name) or not name or os.pardir in name.split(os.sep):
            raise ShardCorrupt(
                f"{os.path.join(folder, STATE)} names the file {name!r}, which is not in the "
                "folder; save the dataset again"
            )
    return [os.path.join(folder, name) for name in names]


def record_batches(path: str) -> tuple[pa.Schema, list[StoredBatch]]:
    """Returns the record batches of an Arrow stream or file, as views of the mapped file.

    After eight bytes, an Arrow file is a stream that is followed by a footer.

    Raises:
        SourceNotFound: If there is no such file.
        ShardCorrupt: If it is damaged or truncated.
    """
    with reading(path):
        check_file(path)
        if os.path.getsize(path) == 0:
            raise ShardCorrupt(f"{path} is empty: it has 0 bytes; save the dataset again")
        file = Mapped(path)
        is_file = bytes(file.view[: len(_BEGIN)]) == _BEGIN
        end = MAGIC if is_file else _STREAM_END
        if file.view[-len(end) :] != end:
            raise ShardCorrupt(
                f"{path} is not an Arrow stream, or is truncated; copy it again, or save the "
                "dataset again"
            )
        views = pa.BufferReader(file.view[len(_BEGIN) :] if is_file else file.view)
        reader, checked = _stream(views.read_buffer, path), Checked(path)
        found = [StoredBatch(batch, n, checked, file) for n, batch in enumerate(reader)]
        file.check()
        reader.schema.to_string(show_field_metadata=False, show_schema_metadata=False)  # UTF-8?
        return reader.schema, found


def _stream(read: Callable[[int], Any], path: str) -> Any:
    """Returns pyarrow's reader of a stream."""
    return pa.ipc.open_stream(pa.PythonFile(CheckedStream(read, path), mode="r"))


def _folder_features(
    folder: str, info: Mapping[str, Any], schema: pa.Schema
) -> Mapping[str, Feature]:
    described = info.get("features")
    if described is None:
        return features_of(schema)
    try:
        return parse_features(described)
    except (ValueError, KeyError, TypeError) as error:
        raise ShardCorrupt(
            f"{os.path.join(folder, INFO)} has features that cannot be understood: {error}"
        ) from error


# --- Objects --------------------------------------------------------------------------------------


def _open_object(dataset: Any) -> Opened:
    kind = _class_name(dataset)
    if kind in ("DatasetDict", "IterableDatasetDict"):
        raise _several(f"a {kind}", [f"dataset[{split!r}]" for split in dataset])
    if kind == "IterableDataset":
        raise SourceNotFound(
            "a datasets.IterableDataset gives its samples one after the other, and fastio reads "
            "any row at any time: load it without streaming=True, or keep it with save_to_disk and "
            "give the directory; for its own order, iterate over it or use torch's DataLoader"
        )
    name = "datasets.Dataset"
    table: pa.Table = dataset.data.table
    stored = dataset._indices
    indices = (
        None
        if stored is None
        else _indices(_in_memory(stored.table, "the dataset's indices"), "the dataset's indices")
    )
    features = parse_features(dataset.features.to_dict())
    columns = None if dataset.format["output_all_columns"] else dataset.format["columns"]
    rows = _rows(name, table.schema, _in_memory(table, name), indices, columns)
    digest = xxhash.xxh3_64(f"{dataset._fingerprint} {len(rows)}".encode())
    given = Format(dataset.format["type"], dataset.format["format_kwargs"])
    return Opened(name, rows, features, digest.hexdigest(), format=given)


# --- Both -----------------------------------------------------------------------------------------


def _several(name: str, splits: Sequence[str]) -> SourceNotFound:
    choices = ", ".join(splits) or "none"
    return SourceNotFound(f"{name} has several splits: give one of them: {choices}")


def _in_memory(table: pa.Table, name: str) -> list[StoredBatch]:
    checked = Checked(name)
    return [StoredBatch(batch, n, checked) for n, batch in enumerate(table.to_batches())]


def _indices(batches: Sequence[StoredBatch], where: str) -> NDArray[np.int64]:
    """Returns the selected row numbers; empty if none, for which Arrow may have no batch."""
    try:
        parts = [
            stored.columns([_INDICES]).column(0).to_numpy(zero_copy_only=False)
            for stored in batches
        ]
        return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
    except ShardCorrupt:
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise ShardCorrupt(f"{where} cannot be understood: {error}") from error


def _rows(
    name: str,
    schema: pa.Schema,
    batches: Sequence[StoredBatch],
    indices: NDArray[np.int64] | None,
    columns: Sequence[str] | None,
) -> SelectedRows:
    if columns is not None:
        missing = [column for column in columns if column not in schema.names]
        if missing:
            raise ShardCorrupt(
                f"{name}: its format names the column {missing[0]!r}, which does not exist"
            )
        kept = [field for field in schema if field.name in columns]
        schema = pa.schema(kept, metadata=schema.metadata)
        batches = [each._replace(batch=each.batch.select(schema.names)) for each in batches]
    rows = SelectedRows(schema, batches, indices)
    if indices is not None and indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= rows.stored:
            bad = low if low < 0 else high
            raise ShardCorrupt(
                f"{name}: its indices refer to row {bad}, but it has {rows.stored} rows"
            )
    return rows


_FEATURES = ("Value", "ClassLabel", "Sequence", "List", "LargeList")


def unlike_python(dataset: Any, left_out: Collection[str] = ()) -> str | None:
    """Returns why `dataset[i]` is not what a loader makes of a row, as a clause, or None.

    They are equal if there are only numbers, strings and lists of numbers, none of them null.
    Columns `left_out` are not looked at.
    """
    given = dataset.format
    if given["type"] not in (None, "python"):
        return f"collate_fn would get rows in the format {given['type']!r}"
    table: pa.Table = dataset.data.table
    names = table.column_names if given["output_all_columns"] else given["columns"]
    for name in names:
        if name in left_out:
            continue
        column = table.column(name)
        feature = type(dataset.features[name]).__name__
        if "." in name or feature not in _FEATURES or not _is_plain(column.type):
            return f"collate_fn would get the column {name!r} ({column.type}) as Python objects"
        if _has_nulls(column):
            return f"the column {name!r} has nulls, and collate_fn gets them as None"
    return None


def _is_plain(kind: pa.DataType) -> bool:
    inner = kind.value_type if is_list(kind) else kind
    number = is_number(inner) and not pa.types.is_float16(inner)
    return number or (inner is kind and (is_text(kind) or is_binary(kind)))


def _has_nulls(column: pa.ChunkedArray) -> bool:
    if column.null_count:
        return True
    return is_list(column.type) and any(chunk.values.null_count for chunk in column.chunks)
