"""Opens what can be packed: as numbered samples, or as a table whose rows are read by thousands."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fastio.cache import Cache
from fastio.errors import DatasetNotFound, PackError, SchemaError, SourceNotFound
from fastio.pack.cells import infer_schema
from fastio.pack.files import open_array_folder
from fastio.pack.images import PillowFile
from fastio.pack.items import Item, RowImage, Source, SourceProcesses, source_of_rows, unreadable
from fastio.pack.iterables import iterated_source
from fastio.pack.joined import JoinedRows
from fastio.pack.lists import LIST_SUFFIXES, is_image_list, list_file, list_source
from fastio.pack.objects import call_with_source, indexed_source, is_indexed
from fastio.pack.refusals import TABLE_OPTIONS, check_source_options
from fastio.pack.row_sources import RowSource, column_source, open_memory, table_source
from fastio.pack.tokens.encoders import TokenOptions
from fastio.pack.tokens.source import open_documents
from fastio.packed.image_lists import NULL_LIST, image_numbers, null_list
from fastio.packed.listed_images import ListedImages
from fastio.packed.rows import Rows
from fastio.packed.sample_errors import NOT_OF_SAMPLES
from fastio.recoded import RecodedImages
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import available_cores
from fastio.schema import Image, Images, Scalar, Schema, is_fixed_width
from fastio.shown import without_secrets
from fastio.sources import FolderDataset, Found, Options, find
from fastio.sources.arrays import class_names, is_columns
from fastio.sources.folder_kind import IMAGE_FOLDER, SOUND_FOLDER
from fastio.sources.hugging_face.kind import HUGGING_FACE
from fastio.sources.memory import ARRAYS
from fastio.sources.registry import as_rows, kind_of, opened_from, why_nothing
from fastio.sources.table.opening import Opened
from fastio.sources.tar.kind import TARS
from fastio.store import OBJECTS_AT_ONCE, is_remote

_UNZIPPED = "max_unzipped_bytes"
_ROWS_AT_ONCE = 256
_LEAST_PROCESSES = 4  # with fewer cores, threads are as fast
_AHEAD_BYTES = 64 << 20  # of objects of a store that are read at once
_NO_SCHEMA = (
    "schema cannot be used with {} determine the fields: use columns, groups, dtypes and nulls"
)


def open_source(
    src: Any,
    schema: Schema | None,
    tokens: TokenOptions,
    data: Options,
    skip_damaged: bool,
    workers: int = 1,
) -> Source | RowSource:
    """Returns the source for what `fastio.pack` was given.

    Args:
        src: What to pack.
        schema: The schema to use instead of the source's own, or None.
        tokens: How text becomes tokens, if there is a tokenizer.
        data: The options of the source, as `fastio.open` has them.
        skip_damaged: Whether tables that are empty or cannot be opened are left out.
        workers: The largest number of processes that read a dataset of Python code.

    Raises:
        SourceNotFound: A path does not exist, or has no images.
        PackError: The source cannot be packed, or has no samples.
        ShardCorrupt: A table is damaged.
        SchemaError: The samples cannot be stored, or do not fit the schema.
    """
    if tokens.tokenizer is not None:
        check_source_options(src, TABLE_OPTIONS - {"filters"}, data, text=True)
        if schema is not None:
            raise SchemaError(
                "schema cannot be used with text: choose columns with columns, and their types "
                "with dtypes"
            )
        return open_documents(src, tokens, data.tables)
    opened: Source | RowSource | Opened | None = open_memory(src, data.filters)
    if opened is None:
        opened = _open_kind(src, schema, data, skip_damaged, workers)
    else:
        check_source_options(src, TABLE_OPTIONS, data)
    if not isinstance(opened, Opened):
        return opened
    if schema is not None:
        raise SchemaError(_NO_SCHEMA.format("tables, whose columns"))
    first = opened.files[0].name if opened.files else ""
    before = opened_from(src)
    if before is not None:
        src, data = before.source, before.options
    return table_source(opened, data.tables, _name_of(src, first))


def max_pixels_of(src: Any) -> int | None:
    """Returns the limit that open datasets were given: one, or those in a Subset or ConcatDataset.

    Returns None if no dataset has a limit, or if their limits differ.
    """
    if type(src).__module__ != "torch.utils.data.dataset":
        return getattr(src, "max_pixels", None)
    parts = src.datasets if hasattr(src, "datasets") else [getattr(src, "dataset", None)]
    limits = set(map(max_pixels_of, parts))
    return limits.pop() if len(limits) == 1 else None


def _open_kind(
    src: Any, schema: Schema | None, data: Options, skip_damaged: bool, workers: int
) -> Source | RowSource | Opened:
    """Returns the samples or tables of data that the registry knows, or that only packing reads."""
    others = (data.filters, data.split, data.config)
    if not data.tables and all(each is None for each in others) and _is_list(src, schema):
        check_source_options(src, {"roots"}, data)
        return list_source(os.fspath(src), schema, data.roots, data.storage_options)
    kind = kind_of(src)
    found = find(src, data) if kind is None else Found(kind, src, data, src)
    before = opened_from(src)
    if before is not None:
        found = before  # its tables are read by the thousand rows
    columns = type(src) is dict or (type(src) is tuple and is_columns(src)) or kind is ARRAYS
    if found is not None and found.kind is ARRAYS:
        # A tuple of arrays that are alike is a dataset of samples, as for a Loader.
        of_rows = schema is None and (columns or type(src) is not tuple)
        rows = _columns_of(found, src) if of_rows else None
        if rows is not None:
            check_source_options(src, (), data)
            return rows
        if not columns:
            # Its samples show which fields are images: PIL images and tensors (C, H, W).
            found, workers = None, 1
    takes = {"split", "config"} if kind is None else set()  # of the files that were found
    if found is not None and kind is None:
        takes |= found.kind.options if found.kind is TARS else found.kind.options - {_UNZIPPED}
    arrays = None
    if found is None or found.kind in (IMAGE_FOLDER, SOUND_FOLDER):
        arrays = open_array_folder(src, schema, data.max_unzipped_bytes)
    check_source_options(src, takes if arrays is None else {*takes, _UNZIPPED}, data)
    if arrays is not None:
        return arrays
    if found is None:
        return _open_samples(src, schema, data, workers)
    if found.kind is HUGGING_FACE and schema is not None and kind is None:
        raise SchemaError(_NO_SCHEMA.format("a Hugging Face dataset, whose features"))
    packed = found.kind.pack(found, skip_damaged)
    if isinstance(packed, Opened):
        return packed
    if packed.row_key(0) is None:
        of_images = packed.schema if packed.schema.pictured else None
        return indexed_source(packed, schema or of_images)
    name = _name_of(src, packed.path)
    source = rows_source(JoinedRows([packed]), name, schema, data.kept)
    return _in_processes(source, packed, data, workers)


def _in_processes(source: Source, dataset: Rows, data: Options, workers: int) -> Source:
    """Returns the rows of a dataset, with processes that pack units of it if they are faster.

    Clients of stores, and a cache, are used only in this process. If Python's start method is not
    fork, there are no processes either: they would run the user's script again unless it packs
    below `if __name__ == "__main__":`, and would lack settings and plugins of Pillow.
    """
    here = data.cache is not None or dataset.remote_part is not None
    here = here or multiprocessing.current_process().daemon  # may have no child processes
    # The first method is the default; asking for the default would set it for the user's code.
    method = multiprocessing.get_start_method(allow_none=True)
    forks = (method or multiprocessing.get_all_start_methods()[0]) == "fork"
    count = min(workers, available_cores())
    if here or not forks or count < _LEAST_PROCESSES or not source.schema.image_fields:
        return source
    make = partial(_all_rows, name=source.name, schema=source.schema)  # sent to them

    def call(functions: Iterable[Callable[[Source], Any]]) -> Generator[Any, None, None]:
        # Imports torch.
        from fastio.sources.torch_calls import DatasetCalls

        calls = DatasetCalls(dataset, count, source.name)
        try:
            yield from call_with_source(calls, make, functions)
        finally:
            calls.close()

    return replace(source, processes=SourceProcesses(count, call, pack_all=True))


def _all_rows(dataset: Rows, name: str, schema: Schema) -> Source:
    """Returns all rows of a dataset as a source."""
    return rows_source(JoinedRows([dataset]), name, schema)


def _columns_of(found: Found, src: Any) -> RowSource | None:
    """Returns arrays as a source of rows; None if a sample has other fields than the arrays."""
    dataset = _arrays_of(found, src)
    return None if dataset is None else column_source(JoinedRows([dataset]), dataset.path)


def _arrays_of(found: Found, src: Any) -> Rows | None:
    """Returns arrays as a dataset; None if a sample has other fields than the arrays.

    The first sample decides which fields are images. Without samples, None is returned as well.
    """
    dataset = cast(Rows, found.kind.pack(found, False))
    samples = dataset if type(src) in (dict, tuple) else src
    if not len(dataset) or infer_schema(samples[0], class_names(samples)) != dataset.schema:
        return None
    return dataset


def _name_of(src: Any, path: str) -> str:
    """Returns what a manifest says that a dataset was made of: no absolute path.

    Args:
        src: The source as it was given.
        path: The path of its first file, or that of an open dataset.
    """
    if isinstance(src, (str, os.PathLike)):
        path = os.fspath(src)
    elif not isinstance(src, (list, tuple)) and kind_of(src) is None:
        return type(src).__name__
    if is_remote(path):
        return without_secrets(path).rstrip("/").rpartition("/")[2]
    return os.path.basename(os.path.abspath(path)) if path else "image files"


def _is_list(src: Any, schema: Schema | None) -> bool:
    """Returns whether a source is a list of images, by its columns or because a schema is given."""
    path = list_file(src)
    return path is not None and (schema is not None or is_image_list(path))


def _open_samples(
    src: Any, schema: Schema | None, data: Options, workers: int
) -> Source | RowSource:
    """Returns data that no kind in the registry knows as a source."""
    if isinstance(src, (str, os.PathLike)):
        if os.path.isfile(src):
            raise SourceNotFound(
                f"{os.fspath(src)} is a file of a type that fastio does not pack "
                f"({', '.join(LIST_SUFFIXES)}, .tar, .parquet, .arrow); text is packed with a "
                "tokenizer (--tokenizer)"
            )
        if is_remote(src) or not os.path.exists(src):
            missing = DatasetNotFound if is_remote(src) else SourceNotFound
            raise missing(why_nothing(src, data))
        FolderDataset(src)  # raises what a folder of images would need
    what = f"an object of type {type(src).__name__}"
    if isinstance(src, (bytes, Mapping)):
        how = "an iterable or a dataset of tuples, dicts or single values"
        raise PackError(f"{what} cannot be packed: give {how}")
    folder = _files_of_image_folder(src)
    if folder is not None:
        return rows_source(JoinedRows([folder]), _name_of(folder, folder.path), schema, data.kept)
    joined = _joined_source(src, schema, data.max_pixels)
    if joined is not None:
        return joined
    if is_indexed(src):
        return indexed_source(src, schema, workers)
    if isinstance(src, Iterable):
        return iterated_source(src, schema)
    raise PackError(
        f"{what} cannot be packed: give a folder of images, a CSV or JSONL list, WebDataset tars, "
        "tables, an iterable, or a dataset with __len__ and __getitem__"
    )


def _joined_source(
    src: Any, schema: Schema | None, max_pixels: int | None
) -> Source | RowSource | None:
    """Returns a Subset or ConcatDataset of torch as a source; None if its rows cannot be joined.

    They can be joined if all datasets in it are fastio's, or TensorDatasets without images, with
    the same fields. If their images have different limits (`max_pixels`), and the pack has none,
    each image has that of its dataset; images that are objects of a store are not joined then.
    Images of packed datasets are copied as they are stored; others are encoded from their files.

    Args:
        src: What is packed.
        schema: The schema to use instead of the datasets', or None.
        max_pixels: The limit that the pack was given, or None.
    """
    if type(src).__module__ != "torch.utils.data.dataset":
        return None
    # Imports torch, which is there already when one of its classes is.
    from fastio.views.subsets import is_concat, parts_of

    parts, picked = parts_of(src)
    found = [_rows_of(part) for part in parts if picked is not None or is_concat(src)]
    datasets = [dataset for dataset in found if dataset is not None]
    alike = {_in_any_order(dataset.schema) for dataset in datasets}
    if len(datasets) != len(parts) or len(alike) > 1:
        return None
    own_limits = max_pixels is None and len({dataset.max_pixels for dataset in datasets}) > 1
    if own_limits and any(dataset.separate for dataset in datasets):
        return None
    rows, name = JoinedRows(datasets, picked), type(src).__name__
    if not len(rows):
        return None
    columns = column_source(rows, name) if schema is None else None
    if columns is not None or any(as_rows(part) is None for part in parts):
        return columns
    return rows_source(rows, name, schema, own_limits=own_limits)


def _in_any_order(schema: Schema) -> Schema:
    """Returns the schema with the fields of dicts sorted by name, for comparisons."""
    if schema.structure != "dict":
        return schema
    return replace(schema, fields=dict(sorted(schema.fields.items())))


def _rows_of(part: Any) -> Rows | None:
    """Returns a dataset of fastio's, or the arrays of a TensorDataset; None for others."""
    dataset = as_rows(part)
    if dataset is not None or type(part).__name__ != "TensorDataset":
        return dataset
    found = find(part)
    return _arrays_of(found, part) if found is not None and found.kind is ARRAYS else None


def rows_source(
    rows: JoinedRows,
    name: str,
    schema: Schema | None,
    cache: Cache | None = None,
    *,
    own_limits: bool = False,
) -> Source:
    """Returns rows of datasets whose `row_key` identifies them.

    Images stay where they are until they are encoded; other fields are read for many rows at once.

    Args:
        rows, name: The rows, and the name of the source.
        schema: The schema to use instead of the datasets': with the same names, or, if samples are
            tuples, with the fields in the same order.
        cache: A cache that may have records of the images, if there is one dataset.
        own_limits: Whether each image has the limit of its dataset, not that of the pack.

    Raises:
        SchemaError: The schema has fields that the datasets do not have.
    """
    first, wanted = rows.parts[0], rows.schema
    if schema is not None:
        wanted = Schema(schema.fields, schema.structure, schema.classes or first.classes)
    fields = _fields_of(first, wanted)
    lists = [field for field in fields if field in rows.schema.list_fields]
    others = [field for field in fields if field not in rows.schema.pictured]
    # Files of folders may be long sounds, so that few of them should be in memory at once.
    recoded: dict[str, RecodedImages] = {}
    separate = any(part.separate for part in rows.parts)
    if cache is not None and first.recodes and not separate and len(rows.parts) == 1:
        images = [field for field in fields if field not in (*others, *lists)]
        recoded = {field: RecodedImages(first, field, cache, 0) for field in images}
    kinds = rows.schema.fields
    small = rows.schema.structure == "dict" or all(is_fixed_width(kinds[name]) for name in others)
    at_once = _ROWS_AT_ONCE if small else 1

    def read(places: Sequence[int]) -> Iterator[Item]:
        remote = [part.remote_part for part in rows.parts if part.separate]
        objects = [part for part in remote if part is not None]
        if objects:
            count = sum(len(part) for part in rows.parts if part.separate)
            mean_bytes = max(1, sum(part.nbytes for part in objects) // max(1, count))
            ahead = max(1, min(OBJECTS_AT_ONCE, _AHEAD_BYTES // mean_bytes))
            yield from chain.from_iterable(in_order(alone, places, ahead, ahead=2 * ahead))
            return
        for begin in range(0, len(places), at_once):
            some = places[begin : begin + at_once]
            try:
                yield from gathered(some)
            except NOT_OF_SAMPLES:
                raise
            except Exception:  # MemoryError and RecursionError can be a sample's own too
                yield from (item for place in some for item in alone(place))

    def alone(place: int) -> list[Item]:
        try:
            return gathered([place])
        except NOT_OF_SAMPLES:
            raise
        except Exception as error:
            return [unreadable(name, place, error, *names(*rows.locate(place)))]

    def names(dataset: Rows, row: int) -> tuple[str, str]:
        """Returns how messages name a row, and its key."""
        # The rows of a packed dataset have no key.
        return dataset.sample_name(row), dataset.row_key(row) or f"{dataset.fingerprint} {row}"

    def gathered(places: Sequence[int]) -> list[Item]:
        some = np.array(places, np.int64)
        columns = dict(rows.gather_all(others, some)) if others else {}
        for field in lists:
            columns[field] = rows.by_row(some, partial(image_lists, field, own_limits=own_limits))
        return [item(place, number, columns) for number, place in enumerate(places)]

    def image(field: str, dataset: Rows, row: int) -> RowImage | PillowFile | bytes:
        # Objects are read here, many at a time: encoders would wait for one after the other.
        if dataset.separate and not dataset.upright:
            # Is not turned. Its mode is checked with its pixels, as for other files.
            return PillowFile(dataset.read(field, row), "L")
        if dataset.separate:
            return dataset.read(field, row)
        limit = dataset.max_pixels if own_limits else None
        return RowImage(dataset, field, row, recoded.get(field), limit)

    def item(place: int, number: int, columns: Mapping[str, Any]) -> Item:
        at = rows.locate(place)
        values = [
            columns[field][number] if field in columns else image(field, *at) for field in fields
        ]
        name, key = names(*at)
        return Item(place, name, values, key)

    def named() -> Iterator[Item]:
        for place in range(len(rows)):
            name, key = names(*rows.locate(place))
            yield Item(place, name, (), key)

    source = source_of_rows(name, wanted, len(rows), read, named=named if separate else None)
    limits = [(part.max_pixels, len(part)) for part in rows.parts] if own_limits else ()
    return replace(source, limits=limits, recodes=bool(recoded))


def image_lists(
    field: str, dataset: Rows, rows: NDArray[np.int64], *, own_limits: bool
) -> list[tuple[RowImage, ...] | ValueError]:
    """Returns the images of the lists of rows, int64 (n,), that are still in a dataset.

    In place of a list that is null, there is the error that it causes. `own_limits`: see
    `rows_source`.
    """
    limit = dataset.max_pixels if own_limits else None
    listed = ListedImages(dataset, field)
    found: list[tuple[RowImage, ...] | ValueError] = []
    for row, count in zip(rows.tolist(), dataset.image_counts(field, rows).tolist(), strict=True):
        if count == NULL_LIST:
            found.append(ValueError(null_list(field)))
            continue
        numbers = image_numbers(np.full(count, row, np.int64), np.arange(count, dtype=np.int64))
        images = (RowImage(listed, field, each, None, limit) for each in numbers.tolist())
        found.append(tuple(images))
    return found


def _fields_of(dataset: Rows, wanted: Schema) -> list[str]:
    """Returns the dataset's field for each field of a schema."""
    there = dataset.schema.fields
    names = list(there) if dataset.schema.structure != "dict" else list(wanted.fields)
    names += list(wanted.fields)[len(names) :]  # more than there are: none of the dataset's
    for own, (name, field) in zip(names, wanted.fields.items(), strict=False):
        found = there.get(own)
        fits = all(
            isinstance(found, kind) == isinstance(field, kind) for kind in (Image, Images, Scalar)
        )
        if found is None or not fits:
            raise SchemaError(
                f"the schema has the field {name!r}, {field}, and {dataset.path} has "
                f"{'none' if found is None else found} in its place; it has the fields {there}"
            )
    return names[: len(wanted.fields)]


def _files_of_image_folder(src: Any) -> FolderDataset | None:
    """Returns the files of a torchvision ImageFolder without transforms; None for other objects."""
    if not type(src).__module__.startswith(("torchvision.", "torch.")):
        return None
    # Imports torch, which is there already when one of its classes is.
    from fastio.sources.torch_dataset import Slow, image_files

    found = image_files(src)
    if isinstance(found, Slow) or found.transform is not None or found.target_transform is not None:
        return None
    return found.as_dataset(upright=True)
