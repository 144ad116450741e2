"""Opens what can be packed: as numbered samples, or as a table whose rows are read by thousands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

from fastio.errors import PackError, SampleError, SchemaError, SourceNotFound
from fastio.pack.cells import Bad, ImageFile, Item
from fastio.pack.datasets import tar_source
from fastio.pack.file_folders import audio_source, open_file_folder
from fastio.pack.hugging_face import Roots, open_dataset
from fastio.pack.infer import field_values, infer_schema
from fastio.pack.lists import LIST_SUFFIXES, ListSource, is_image_list
from fastio.pack.spread import spread
from fastio.pack.tables import TableSource, open_memory, open_table_files
from fastio.packed.rows import Rows
from fastio.schema import Image, Scalar, Schema
from fastio.sources import AudioFolder, FolderDataset, Kind, Options, TarDataset, find
from fastio.sources.registry import HUGGING_FACE, PACKED, TABLES, TARS, kind_of
from fastio.sources.table import TableOptions
from fastio.store import is_remote


@dataclass(frozen=True)
class TableRows:
    """Which rows of a source are packed, and how they are read; see the arguments of `pack`.

    Attributes:
        skip_damaged: Whether `on_error` is "skip".
    """

    filters: Any = None
    skip_damaged: bool = False
    storage_options: Mapping[str, Any] | None = None
    roots: Roots = None
    max_unzipped_bytes: int | None = None


_ALL = TableRows()


class Source(Protocol):
    """Samples to pack, in order.

    Attributes:
        name: What the manifest says the dataset was made of; no absolute path.
        schema: The fields of the samples.
        total: The number of samples, or None if it is not known beforehand.
        has_keys: Whether the items have keys that identify them across runs.
    """

    name: str
    schema: Schema
    total: int | None
    has_keys: bool

    def items(self, start: int) -> Iterator[Item | Bad]:
        """Yields the samples from number `start` on.

        Raises:
            PackError: The source ends before.
        """
        ...

    def sample(self, count: int) -> Iterator[Item | Bad]:
        """Yields up to `count` samples, such that the first of them are evenly spread, too.

        Raises:
            PackError: The source can be iterated over only once.
        """
        ...


def open_source(
    src: Any, schema: Schema | None, options: TableOptions | None = None, asked: TableRows = _ALL
) -> Source | TableSource:
    """Returns the source for what `fastio.pack` was given.

    Args:
        src: See `fastio.pack`.
        schema: The schema to use instead of the source's own.
        options: Which columns become which fields. If any are given, the source must be a table.
        asked: Which rows are packed, and how they are read.

    Raises:
        SourceNotFound: A path does not exist, or has no images.
        PackError: The source cannot be packed, or has no samples.
        ShardCorrupt: A table is damaged.
        SchemaError: The samples cannot be stored, or do not fit `schema`.
    """
    options = options or TableOptions()
    table = open_memory(src, options, asked.filters)
    if table is not None:
        return _as_table(table, schema)
    columns = bool(options) or asked.filters is not None
    if not columns and _is_list(src, schema):
        return ListSource(os.fspath(src), schema, asked.roots)
    kind, parts = _kind_of(src, asked)
    _check_asked(src, kind, columns, asked)
    open_kind = _OPENERS.get("" if kind is None else kind.key, _open_samples)
    return open_kind(_Asked(src, parts, schema, options, asked))


@dataclass(frozen=True)
class _Asked:
    """A source whose kind is known, and what is wanted of it; the arguments of an opener.

    Attributes:
        src: The source, as it was given.
        parts: What the registry found it to consist of.
        schema: The schema to use instead of the source's own, or None.
        options: What is wanted of a table's columns.
        rows: Which rows are wanted, and how they are reached.
    """

    src: Any
    parts: Any
    schema: Schema | None
    options: TableOptions
    rows: TableRows


def _kind_of(src: Any, asked: TableRows) -> tuple[Kind | None, Any]:
    """Returns the kind of a source and its parts; None for data that only packing reads."""
    if isinstance(src, Rows):
        kind = kind_of(src)
        # The others are read row by row, as any dataset.
        return (kind if kind in (TARS, PACKED) else None), None
    found = find(src, Options(asked.storage_options))
    if found is None:
        return None, None
    found.close()
    return found.kind, found.parts


def _as_table(found: TableSource, schema: Schema | None) -> TableSource:
    if schema is not None:
        raise SchemaError(
            "a table's fields are found out from its columns: say with columns, groups, dtypes "
            "and nulls what they are to be, instead of a schema"
        )
    return found


def _check_asked(src: Any, kind: Kind | None, columns: bool, asked: TableRows) -> None:
    """Checks that the options that are given are options of this kind of source."""
    given = src if isinstance(src, (str, os.PathLike)) else type(src).__name__
    if columns and kind not in (TABLES, HUGGING_FACE):
        raise PackError(
            "columns, groups, dtypes, nulls and filters are for tables (Parquet, Arrow, CSV, "
            f"JSONL), and {given} is none"
        )
    if asked.roots is not None and kind is not HUGGING_FACE:
        raise PackError(
            "roots is only for a list of images or a directory of save_to_disk, and the source is "
            "neither; leave it out"
        )
    if asked.max_unzipped_bytes is not None and isinstance(src, Rows):
        raise PackError("the tars are already open: pass max_unzipped_bytes to fastio.open instead")


def _is_list(path: Any, schema: Schema | None) -> bool:
    """Returns whether a path is a list of images, by its columns or because a schema is given."""
    if not isinstance(path, (str, os.PathLike)) or is_remote(path):
        return False
    name = os.fspath(path)
    if os.path.splitext(name)[1].lower() not in LIST_SUFFIXES or not os.path.isfile(name):
        return False
    return schema is not None or is_image_list(name)


def _open_tables(asked: _Asked) -> TableSource:
    rows = asked.rows
    files = open_table_files(asked.src, asked.parts, asked.options, rows.filters, rows.skip_damaged)
    return _as_table(files, asked.schema)


def _open_hugging_face(asked: _Asked) -> Source | TableSource:
    rows = asked.rows
    return open_dataset(asked.src, asked.schema, asked.options, rows.filters, rows.roots)


def _open_tars(asked: _Asked) -> Source:
    tars = asked.src
    if not isinstance(tars, TarDataset):
        # Samples that lack a field are bad ones, for the packer to stop at or to leave out.
        fields = None if asked.schema is None else list(asked.schema.fields)
        tars = TarDataset(tars, fields=fields, incomplete="keep")
        tars.limit(None, asked.rows.max_unzipped_bytes)
    return tar_source(tars, asked.schema)


def _refuse_packed(asked: _Asked) -> Source:
    raise PackError(f"{getattr(asked.src, 'path', asked.src)} is packed already")


def _open_samples(asked: _Asked) -> Source:
    src, schema = asked.src, asked.schema
    if isinstance(src, (str, os.PathLike)):
        return _open_path(os.fspath(src), schema, asked.rows)
    if isinstance(src, AudioFolder):
        return audio_source(src)
    if isinstance(src, FolderDataset):
        return FolderSource(src, schema)
    if isinstance(src, (bytes, Mapping)):
        raise PackError(
            f"a {type(src).__name__} is not a source of samples: give an iterable or dataset of "
            "tuples, dicts or single values"
        )
    folder = _files_of_image_folder(src)
    if folder is not None:
        return FolderSource(folder, schema)
    if _is_indexed(src):
        return IndexedSource(src, schema)
    if isinstance(src, Iterable):
        return IteratedSource(src, schema)
    raise PackError(
        f"a {type(src).__name__} cannot be packed: give a folder of images, a CSV or JSONL list, "
        "WebDataset tars, tables, an iterable, or a dataset with __len__ and __getitem__"
    )


class FolderSource:
    """An image folder, whose files are packed as samples (image, label)."""

    def __init__(self, folder: FolderDataset, schema: Schema | None) -> None:
        self.has_keys = True
        self.name = _base_name(folder.path) if folder.path else "image files"
        self.total: int | None = len(folder)
        self.schema = folder.schema if schema is None else _folder_schema(folder, schema)
        self._folder = folder

    def items(self, start: int) -> Iterator[Item | Bad]:
        """See `Source`."""
        return (self._item(row) for row in range(start, len(self._folder)))

    def sample(self, count: int) -> Iterator[Item | Bad]:
        """See `Source`."""
        return (self._item(row) for row in spread(len(self._folder), count))

    def _item(self, row: int) -> Item:
        path = self._folder.paths[row]
        values = (ImageFile(path), int(self._folder.labels[row]))
        key = self._folder.paths.relative(row)
        return Item(row, path, values[: len(self.schema.fields)], key)


class IndexedSource:
    """A dataset with `__len__` and `__getitem__`, which is called by one thread, in order."""

    def __init__(self, dataset: Any, schema: Schema | None) -> None:
        self.has_keys = False
        self.name = type(dataset).__name__
        self.total: int | None = len(dataset)
        self._dataset = dataset
        if not self.total:
            raise PackError(f"there is nothing to pack: {self.name} has no samples")
        self.schema = schema or infer_schema(self._first_sample(), _classes(dataset))

    def items(self, start: int) -> Iterator[Item | Bad]:
        """See `Source`."""
        total = self.total or 0
        if start > total:
            raise _ended(self.name, total, start)
        yield from map(self._item, range(start, total))

    def sample(self, count: int) -> Iterator[Item | Bad]:
        """See `Source`."""
        return map(self._item, spread(self.total or 0, count))

    def _item(self, position: int) -> Item | Bad:
        try:
            sample = self._dataset[position]
        except Exception as error:  # a dataset's own code: which errors it has is not known
            return _unreadable(self.name, position, error)
        return _item(self.schema, position, sample)

    def _first_sample(self) -> Any:
        """Returns the first sample that can be read; packing reports bad ones before it."""
        first_error = None
        for position in range(self.total or 0):
            try:
                return self._dataset[position]
            except Exception as error:  # as in items()
                first_error = first_error or error
        raise PackError(f"no sample of {self.name} can be read: {first_error}") from first_error


class IteratedSource:
    """Any iterable. It is iterated over only once, because generators cannot be restarted."""

    def __init__(self, iterable: Iterable[Any], schema: Schema | None) -> None:
        self.has_keys = False
        self.name = type(iterable).__name__
        self.total: int | None = None
        self._samples = iter(iterable)
        if schema is None:
            first = list(islice(self._samples, 1))
            if not first:
                raise PackError(f"there is nothing to pack: {self.name} has no samples")
            self._samples = chain(first, self._samples)
            schema = infer_schema(first[0], _classes(iterable))
        self.schema = schema

    def items(self, start: int) -> Iterator[Item | Bad]:
        """The samples from number `start` on; can be called once.

        Raises:
            SampleError: the iterable raised an error, after which it cannot go on.
        """
        position = 0
        while True:
            try:
                sample = next(self._samples)
            except StopIteration:
                if position < start:
                    raise _ended(self.name, position, start) from None
                return
            except Exception as error:  # the iterable's own code
                raise _unreadable(self.name, position, error).error from error
            if position >= start:
                yield _item(self.schema, position, sample)
            position += 1

    def sample(self, count: int) -> Iterator[Item | Bad]:
        """Not possible.

        Raises:
            PackError: always.
        """
        raise PackError(
            f"a codebook cannot be trained on a {self.name}, which can be gone through only once: "
            "give a dataset with __len__ and __getitem__, a folder or a list, or use the default "
            "codebook or one from a file"
        )


def _item(schema: Schema, position: int, sample: Any) -> Item | Bad:
    name = f"sample {position}"
    try:
        return Item(position, name, field_values(schema, sample, name))
    except SchemaError as error:
        return Bad(position, name, error)


def _unreadable(source: str, position: int, cause: Exception) -> Bad:
    name = f"sample {position}"
    error = SampleError(source, position, name, cause)
    error.__cause__ = cause
    return Bad(position, name, error)


def _ended(source: str, total: int, start: int) -> PackError:
    return PackError(
        f"cannot resume: {source} has {total} samples, but {start} of it are packed already; start "
        "again with overwrite"
    )


def _open_path(path: str, schema: Schema | None, asked: TableRows) -> Source:
    if os.path.isfile(path):
        raise SourceNotFound(
            f"{path} is a file, but nothing that fastio packs ({', '.join(LIST_SUFFIXES)}, .tar, "
            ".parquet, .arrow); text is packed with a tokenizer (--tokenizer)"
        )
    files = open_file_folder(path, schema, asked.max_unzipped_bytes)
    return files or FolderSource(FolderDataset(path), schema)


def _base_name(path: str) -> str:
    return os.path.basename(os.path.abspath(path))


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
_OPENERS: Mapping[str, Callable[[_Asked], Source | TableSource]] = {
    PACKED.key: _refuse_packed,
    TARS.key: _open_tars,
    TABLES.key: _open_tables,
    HUGGING_FACE.key: _open_hugging_face,
}
