"""Opens what can be packed: as numbered samples, or as a table whose rows are read by thousands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from fastio.errors import PackError, SchemaError, SourceNotFound
from fastio.pack.datasets import Roots, hugging_face_source, tar_source
from fastio.pack.file_folders import audio_source, open_file_folder
from fastio.pack.infer import field_values, infer_schema
from fastio.pack.items import (
    Bad,
    ImageFile,
    Item,
    Source,
    ended,
    source_of_rows,
    unreadable,
)
from fastio.pack.lists import LIST_SUFFIXES, is_image_list, list_source
from fastio.pack.tables import RowSource, open_memory, open_table_files
from fastio.pack.tokens import TokenOptions, open_documents
from fastio.packed.rows import Rows
from fastio.schema import Image, Scalar, Schema
from fastio.sources import FolderDataset, Kind, Options, TarDataset, find
from fastio.sources.folder import IMAGE_FOLDER, SOUND_FOLDER
from fastio.sources.hugging_face.kind import HUGGING_FACE
from fastio.sources.packed import PACKED
from fastio.sources.registry import kind_of
from fastio.sources.table.kind import TABLES
from fastio.sources.table.options import TableOptions
from fastio.sources.tar.kind import TARS
from fastio.store import is_remote


@dataclass(frozen=True)
class Wanted:
    """What is wanted of a source, and how it is reached; see the arguments of `pack`.

    Attributes:
        schema: The schema to use instead of the source's own, or None.
        columns: Which columns become which fields. If any are given, the source must be a table.
        skip_damaged: Whether `on_error` is "skip".
        tokens: How text becomes tokens, if there is a tokenizer.
    """

    schema: Schema | None
    columns: TableOptions
    tokens: TokenOptions
    filters: Any = None
    skip_damaged: bool = False
    storage_options: Mapping[str, Any] | None = None
    roots: Roots = None
    max_unzipped_bytes: int | None = None


def open_source(src: Any, wanted: Wanted) -> Source | RowSource:
    """Returns the source for what `fastio.pack` was given.

    Raises:
        SourceNotFound: A path does not exist, or has no images.
        PackError: The source cannot be packed, or has no samples.
        ShardCorrupt: A table is damaged.
        SchemaError: The samples cannot be stored, or do not fit the schema.
    """
    if wanted.tokens.tokenizer is not None:
        return _open_text(src, wanted)
    table = open_memory(src, wanted.columns, wanted.filters)
    if table is not None:
        return _without_schema(table, wanted)
    of_columns = bool(wanted.columns) or wanted.filters is not None
    if not of_columns and _is_list(src, wanted.schema):
        return list_source(os.fspath(src), wanted.schema, wanted.roots)
    kind, parts = _kind_of(src, wanted)
    _check_wanted(src, kind, of_columns, wanted)
    open_kind = _OPENERS.get("" if kind is None else kind.key, _open_samples)
    return open_kind(src, parts, wanted)


def _open_text(src: Any, wanted: Wanted) -> RowSource:
    if wanted.filters is not None:
        raise PackError("filters can be used with tables, but not with a tokenizer")
    if wanted.schema is not None:
        raise SchemaError(
            "schema cannot be used with text: choose columns with columns, and their types "
            "with dtypes"
        )
    return open_documents(src, wanted.tokens, wanted.columns)


def _kind_of(src: Any, wanted: Wanted) -> tuple[Kind | None, Any]:
    """Returns the kind of a source and its parts; None for data that only packing reads."""
    if isinstance(src, Rows):
        kind = kind_of(src)
        # Rows of open tables are read one by one, as those of any dataset.
        return (None if kind in (TABLES, HUGGING_FACE) else kind), None
    found = find(src, Options(wanted.storage_options))
    if found is None:
        return None, None
    found.close()
    return found.kind, found.parts


def _without_schema(found: RowSource, wanted: Wanted) -> RowSource:
    if wanted.schema is not None:
        raise SchemaError(
            "schema cannot be used with tables, whose columns determine the fields: use "
            "columns, groups, dtypes and nulls"
        )
    return found


def _check_wanted(src: Any, kind: Kind | None, of_columns: bool, wanted: Wanted) -> None:
    """Checks that the options that are given are options of this kind of source."""
    given = src if isinstance(src, (str, os.PathLike)) else type(src).__name__
    if of_columns and kind not in (TABLES, HUGGING_FACE):
        raise PackError(
            "columns, groups, dtypes, nulls and filters can only be used with tables "
            f"(Parquet, Arrow, CSV, JSONL), and {given} is not one"
        )
    if wanted.roots is not None and kind is not HUGGING_FACE:
        raise PackError(
            "roots can only be used with a list of images or a save_to_disk directory: leave it out"
        )
    if wanted.max_unzipped_bytes is not None and isinstance(src, Rows):
        raise PackError("the tars are already open: pass max_unzipped_bytes to fastio.open instead")


def _is_list(path: Any, schema: Schema | None) -> bool:
    """Returns whether a path is a list of images, by its columns or because a schema is given."""
    if not isinstance(path, (str, os.PathLike)) or is_remote(path):
        return False
    name = os.fspath(path)
    if os.path.splitext(name)[1].lower() not in LIST_SUFFIXES or not os.path.isfile(name):
        return False
    return schema is not None or is_image_list(name)


def _open_tables(src: Any, parts: Any, wanted: Wanted) -> Source | RowSource:
    files = open_table_files(src, parts, wanted.columns, wanted.filters, wanted.skip_damaged)
    return _without_schema(files, wanted)


def _open_hugging_face(src: Any, parts: Any, wanted: Wanted) -> Source | RowSource:
    if wanted.schema is not None:
        raise SchemaError(
            "schema cannot be used with a Hugging Face dataset, whose features determine the "
            "fields: use columns, groups, dtypes and nulls"
        )
    return hugging_face_source(src, wanted.columns, wanted.filters, wanted.roots)


def _open_tars(src: Any, parts: Any, wanted: Wanted) -> Source:
    tars = src
    if not isinstance(src, Rows):
        # Samples that lack a field are bad ones, for the packer to stop at or to leave out.
        fields = None if wanted.schema is None else list(wanted.schema.fields)
        tars = TarDataset(src, fields=fields, incomplete="keep")
        tars.limit(None, wanted.max_unzipped_bytes)
    return tar_source(tars, wanted.schema)


def _refuse_packed(src: Any, parts: Any, wanted: Wanted) -> Source:
    raise PackError(f"{getattr(src, 'path', src)} is already packed")


def _open_samples(src: Any, parts: Any, wanted: Wanted) -> Source:
    schema = wanted.schema
    if isinstance(src, (str, os.PathLike)):
        return _open_path(os.fspath(src), wanted)
    if isinstance(src, (bytes, Mapping)):
        raise PackError(
            f"a {type(src).__name__} cannot be packed: give an iterable or a dataset of "
            "tuples, dicts or single values"
        )
    folder = _files_of_image_folder(src)
    if folder is not None:
        return folder_source(folder, schema)
    if _is_indexed(src):
        return indexed_source(src, schema)
    if isinstance(src, Iterable):
        return iterated_source(src, schema)
    raise PackError(
        f"a {type(src).__name__} cannot be packed: give a folder of images, a CSV or JSONL list, "
        "WebDataset tars, tables, an iterable, or a dataset with __len__ and __getitem__"
    )


def _open_path(path: str, wanted: Wanted) -> Source:
    if os.path.isfile(path):
        raise SourceNotFound(
            f"{path} is a file of a type that fastio does not pack "
            f"({', '.join(LIST_SUFFIXES)}, .tar, .parquet, .arrow); text is packed with a "
            "tokenizer (--tokenizer)"
        )
    files = open_file_folder(path, wanted.schema, wanted.max_unzipped_bytes)
    return files or folder_source(FolderDataset(path), wanted.schema)


def _open_folder(src: Any, parts: Any, wanted: Wanted) -> Source:
    if isinstance(src, (str, os.PathLike)):
        return _open_path(os.fspath(src), wanted)
    has_images = bool(src.schema.image_fields)
    return folder_source(src, wanted.schema) if has_images else audio_source(src)


def folder_source(folder: FolderDataset, schema: Schema | None) -> Source:
    """Returns the files of an image folder as samples (image, label)."""
    wanted = folder.schema if schema is None else _folder_schema(folder, schema)

    def item(row: int) -> Item:
        path = folder.paths[row]
        values = (ImageFile(path), int(folder.labels[row]))
        return Item(row, path, values[: len(wanted.fields)], folder.paths.relative(row))

    name = os.path.basename(os.path.abspath(folder.path)) if folder.path else "image files"
    return source_of_rows(name, wanted, len(folder), lambda rows: map(item, rows))


def indexed_source(dataset: Any, schema: Schema | None) -> Source:
    """Returns the samples of a dataset with `__len__` and `__getitem__`, called by one thread."""
    name, total = type(dataset).__name__, len(dataset)
    if not total:
        raise PackError(f"there is nothing to pack: {name} has no samples")
    wanted = schema or infer_schema(_first_sample(dataset, name), _classes(dataset))

    def item(row: int) -> Item | Bad:
        try:
            sample = dataset[row]
        except Exception as error:  # a dataset's own code: which errors it has is not known
            return unreadable(name, row, error)
        return checked_item(wanted, row, sample)

    return source_of_rows(name, wanted, total, lambda rows: map(item, rows), has_keys=False)


def _first_sample(dataset: Any, name: str) -> Any:
    """Returns the first sample that can be read; packing reports bad ones before it."""
    first_error = None
    for position in range(len(dataset)):
        try:
            return dataset[position]
        except Exception as error:  # as in `indexed_source`
            first_error = first_error or error
    raise PackError(f"no sample of {name} can be read: {first_error}") from first_error


def iterated_source(iterable: Iterable[Any], schema: Schema | None) -> Source:
    """Returns the samples of any iterable, which is iterated over only once."""
    name = type(iterable).__name__
    samples = iter(iterable)
    if schema is None:
        first = list(islice(samples, 1))
        if not first:
            raise PackError(f"there is nothing to pack: {name} has no samples")
        samples = chain(first, samples)
        schema = infer_schema(first[0], _classes(iterable))
    wanted = schema

    def items(start: int) -> Iterator[Item | Bad]:
        position = 0
        while True:
            try:
                sample = next(samples)
            except StopIteration:
                if position < start:
                    raise ended(name, position, start) from None
                return
            except Exception as error:  # the iterable's own code, which cannot go on after it
                raise unreadable(name, position, error).error from error
            if position >= start:
                yield checked_item(wanted, position, sample)
            position += 1

    def pick(rows: Sequence[int]) -> Iterator[Item | Bad]:
        raise PackError(
            f"a codebook cannot be trained on a {name}, which can be gone through only once: "
            "give a dataset with __len__ and __getitem__, a folder or a list, or use the default "
            "codebook or one from a file"
        )

    return Source(name, wanted, None, False, items, pick)


def checked_item(schema: Schema, position: int, sample: Any) -> Item | Bad:
    """Returns a sample as an item, or why it does not have the structure of the schema."""
    name = f"sample {position}"
    try:
        return Item(position, name, field_values(schema, sample, name))
    except SchemaError as error:
        return Bad(position, name, error)


def _folder_schema(folder: FolderDataset, schema: Schema) -> Schema:
    """Returns the schema for a folder whose names, mode or label the user has chosen."""
    kinds = list(schema.fields.values())
    fits = len(kinds) <= 2 and isinstance(kinds[0], Image)
    if not fits or not all(isinstance(kind, Scalar) for kind in kinds[1:]):
        raise SchemaError(
            "the schema for an image folder must be an Image, or an Image and then a Scalar for "
            f"the label, got {dict(schema.fields)}"
        )
    return Schema(schema.fields, schema.structure, schema.classes or folder.classes)


def _files_of_image_folder(src: Any) -> FolderDataset | None:
    """Returns the files of a torchvision ImageFolder without transforms; None for other objects."""
    if not type(src).__module__.startswith(("torchvision.", "torch.")):
        return None
    # Imports torch, which is there already when one of its classes is.
    from fastio.sources.torch_dataset import Slow, image_files

    found = image_files(src)
    if isinstance(found, Slow) or found.transform is not None:
        return None
    return found.as_dataset()


def _is_indexed(src: Any) -> bool:
    # torch's IterableDataset inherits a __getitem__ that only raises.
    names = {base.__name__ for base in type(src).__mro__ if base.__module__.startswith("torch.")}
    has_both = hasattr(src, "__len__") and hasattr(src, "__getitem__")
    return has_both and "IterableDataset" not in names


def _classes(dataset: Any) -> list[str] | None:
    """Returns the class names in a dataset's attribute `classes`, as torchvision's have it."""
    classes = getattr(dataset, "classes", None)
    is_names = isinstance(classes, (list, tuple)) and all(isinstance(c, str) for c in classes)
    return list(classes) if classes and is_names else None


# What opens a kind of data for packing, by the key that the kind has in the registry. Data of other
# kinds, and what only packing reads, is opened as samples.
_OPENERS: Mapping[str, Callable[[Any, Any, Wanted], Source | RowSource]] = {
    PACKED.key: _refuse_packed,
    IMAGE_FOLDER.key: _open_folder,
    SOUND_FOLDER.key: _open_folder,
    TARS.key: _open_tars,
    TABLES.key: _open_tables,
    HUGGING_FACE.key: _open_hugging_face,
}
