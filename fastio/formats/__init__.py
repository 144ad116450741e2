"""What can be read as a dataset: packed folders, and what others wrote, as it is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fastio.cache import Cache
from fastio.dataset import Dataset, is_dataset, is_half_written
from fastio.dataset import open as open_packed
from fastio.dataset.remote import RemoteDataset
from fastio.errors import DatasetNotFound, SourceNotFound, StoreError
from fastio.formats.audio_folder import AUDIO_EXTENSIONS, AudioFolder, folder_extension
from fastio.formats.fixed import FixedWidth
from fastio.formats.folder import IMG_EXTENSIONS, FolderDataset
from fastio.formats.hugging_face import HuggingFaceDataset, is_hugging_face
from fastio.formats.layout import ShardPlace, TableField
from fastio.formats.tables import TableFile, TableOptions, TableSamples, find_tables, table_kind
from fastio.formats.tars import TarDataset, find_tars
from fastio.formats.tars.remote import RemoteTars, StoreTars, is_tar_url, open_store_tars
from fastio.formats.tokens import PaddedDataset, TokenDataset, TokenPad, TokenWindows
from fastio.memory import MAX_PIXELS, MAX_UNZIPPED_BYTES
from fastio.store import is_remote

__all__ = [
    "AUDIO_EXTENSIONS",
    "IMG_EXTENSIONS",
    "AnyDataset",
    "AudioFolder",
    "FixedWidth",
    "FolderDataset",
    "HuggingFaceDataset",
    "Loadable",
    "PaddedDataset",
    "Remote",
    "RemoteTars",
    "ShardPlace",
    "TableField",
    "TableSamples",
    "TarDataset",
    "TokenDataset",
    "TokenPad",
    "TokenWindows",
    "find_store_tars",
    "find_table_files",
    "folder_extension",
    "is_tars",
    "open",
    "open_any",
    "open_folder",
    "open_remote",
    "remote_part",
    "tables_of_url_folder",
]

# What the native path reads.
AnyDataset = Dataset | FolderDataset | TarDataset | HuggingFaceDataset
# ... and what it makes batches of: such a dataset, windows of its tokens, padded documents, or rows
# of tables.
Loadable = AnyDataset | TokenDataset | PaddedDataset | TableSamples
# What of it lies in a store.
Remote = RemoteDataset | RemoteTars


def remote_part(dataset: Loadable) -> Remote | None:
    """What of a dataset lies in a store: itself, or what its windows are made of; None: nothing."""
    if isinstance(dataset, (TokenDataset, PaddedDataset)):
        return dataset.dataset if isinstance(dataset.dataset, RemoteDataset) else None
    return dataset if isinstance(dataset, (RemoteDataset, RemoteTars)) else None


def open(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: Cache | str | os.PathLike[str] | None = None,
    columns: Iterable[str] | None = None,
    groups: Mapping[str, Iterable[str]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    nulls: Mapping[str, Any] | None = None,
    filters: Any = None,
    roots: Iterable[str | os.PathLike[str]] | None = None,
    max_pixels: int = MAX_PIXELS,
    max_unzipped_bytes: int = MAX_UNZIPPED_BYTES,
) -> AnyDataset | TableSamples:
    """Open a packed dataset or WebDataset tars, here or in a store; or what others wrote.

    Args:
        path: the folder that `fastio pack` or `fastio.Writer` wrote, or the URL of a copy of it; a
            tar, a folder of tars, or a pattern such as "train-{000000..000009}.tar"; a directory
            that Hugging Face's `save_to_disk` wrote; table files (Parquet, Arrow, CSV, JSONL):
            a file, a folder of them, or a pattern; or a folder of images or sound files, as
            `FolderDataset` and `AudioFolder` take it.
        storage_options: for a URL: what its file system takes (keys, endpoint, ...).
        cache: for a URL of a packed dataset or tars: a folder on a local disk, or a
            `fastio.Cache`; None: nothing is kept.
        columns, groups, dtypes, nulls: of table files and directories of `save_to_disk`, as for
            `Loader`: which columns, as which fields.
        filters: rows of table files that are wanted, as for `Loader`.
        roots: of a directory of `save_to_disk`: folders, beside its own, that images and other
            files which it names may lie in. Without them a path that leads elsewhere is an error,
            for such data may come from others, and name any file of yours.
        max_pixels: of an image, as its file or record says; a larger one is an error of its sample,
            before memory is taken for it.
        max_unzipped_bytes: what a gz file in a tar may hold; more is an error of its sample.

    Returns:
        The dataset; close it, or use it in a `with` statement, to let go of its files.

    Raises:
        DatasetNotFound: the folder does not exist, or has nothing of all this.
        ValueError: an option is for datasets of another kind.
        SourceNotFound, ShardCorrupt, SchemaError: as `TarDataset`, and as `TableSamples`.
        ManifestInvalid: the manifest is damaged.
        FormatVersionUnsupported: a newer fastio wrote it.
    """
    if not is_remote(path):
        _only_remote(path, storage_options, cache)
    options = TableOptions.of(columns, groups, dtypes, nulls)
    files = find_table_files(path, storage_options)
    if files is not None:
        if roots is not None:
            raise ValueError(
                "roots is only for directories of save_to_disk, not for tables; leave it out"
            )
        return _open_tables(files, options, filters, cache)
    if is_hugging_face(path):
        if filters is not None:
            raise ValueError("filters are for table files: filter the dataset (ds.filter)")
        images = HuggingFaceDataset(path, options, roots)
        images.limit(max_pixels, max_unzipped_bytes)
        return images
    if roots is not None:
        raise ValueError(
            f"roots is only for directories of save_to_disk, and {path} is something else; leave "
            "it out"
        )
    try:
        opened = _open_whole(path, storage_options, cache)
    except DatasetNotFound:
        files = tables_of_url_folder(path, storage_options) if is_remote(path) else None
        if files is None:
            raise
        return _open_tables(files, options, filters, cache)
    if options or filters is not None:
        opened.close()
        raise ValueError(
            "columns, groups, dtypes and nulls are for table files and directories of "
            f"save_to_disk, filters for table files: {path} is something else"
        )
    opened.limit(max_pixels, max_unzipped_bytes)
    return opened


def find_table_files(
    path: Any, storage_options: Mapping[str, Any] | None = None
) -> list[TableFile] | None:
    """The table files that a path means; None where it means something else.

    A URL means tables where its name does: what is in a folder there is asked for last, by
    whoever finds nothing else.

    Raises:
        SourceNotFound, SchemaError, StoreError: as `find_tables`.
    """
    if is_remote(path):
        return find_tables(path, storage_options) if table_kind(path) is not None else None
    if is_dataset(path) or is_half_written(path) or is_hugging_face(path) or is_tars(path):
        return None
    return find_tables(path)


def tables_of_url_folder(
    url: Any, storage_options: Mapping[str, Any] | None = None
) -> list[TableFile] | None:
    """The table files of a URL's folder that is no packed dataset and has no tars."""
    with suppress(SourceNotFound, StoreError):
        return find_tables(url, storage_options)
    return None


def _open_whole(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    cache: Cache | str | os.PathLike[str] | None,
) -> AnyDataset:
    """A packed dataset, tars, or a folder of images or sound files, as `open`."""
    if not (is_remote(path) or is_tars(path)):
        if is_dataset(path) or is_half_written(path):
            return open_packed(path)
        if folder_extension(path, [IMG_EXTENSIONS, AUDIO_EXTENSIONS]) is None:
            return open_packed(path)  # which says that it is none
    return open_any(path, storage_options=storage_options, cache=cache)


def _open_tables(
    files: list[TableFile], options: TableOptions, filters: Any, cache: object
) -> TableSamples:
    if cache is not None:
        raise ValueError("cache is for packed datasets and tars behind a URL, and not for tables")
    return TableSamples(files, options, filters)


def open_remote(
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    cache: Cache | str | os.PathLike[str] | None = None,
    fields: Sequence[str] | None = None,
) -> RemoteDataset | RemoteTars:
    """Open a packed dataset or WebDataset tars in a store; see `open`."""
    kept = cache if cache is None or isinstance(cache, Cache) else Cache(cache)
    if is_tar_url(url):
        return RemoteTars(url, storage_options, kept, fields=fields)
    try:
        return RemoteDataset(url, storage_options, kept)
    except DatasetNotFound as error:
        try:
            return RemoteTars(url, storage_options, kept, fields=fields)
        except (SourceNotFound, StoreError):
            raise error from None


def find_store_tars(url: str, storage_options: Mapping[str, Any] | None = None) -> StoreTars | None:
    """The tars that a URL means, of which nothing is read; None where it means none.

    Raises:
        SourceNotFound: a tar that is named does not exist.
        StoreError: the store does not answer.
        ManifestInvalid, FormatVersionUnsupported: it is a packed dataset, which cannot be read.
    """
    if is_tar_url(url):
        return open_store_tars(url, storage_options)
    try:
        RemoteDataset(url, storage_options).close()
    except DatasetNotFound:
        with suppress(SourceNotFound, StoreError):
            return open_store_tars(url, storage_options)
    return None


def _only_remote(path: Any, storage_options: Any, cache: Any) -> None:
    if storage_options is not None or cache is not None:
        raise ValueError(
            f"storage_options and cache are for data behind a URL, and {path!r} is on this machine"
        )


def open_any(
    path: Any,
    fields: Sequence[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: Cache | str | os.PathLike[str] | None = None,
) -> AnyDataset:
    """Open a packed dataset, WebDataset tars, a saved Hugging Face dataset, or a folder of images.

    Args:
        path: a folder with a manifest, or its URL; a tar, a folder of tars, a pattern of tars, or
            a list of tars; a directory that `save_to_disk` wrote; or a folder with a folder of
            images for each class.
        fields: of tars, the fields that are wanted: samples may lack others.
        storage_options, cache: for a URL; see `open`.

    Raises:
        SourceNotFound: it is neither.
        ManifestInvalid: the manifest is damaged.
        ShardCorrupt, SchemaError: as `TarDataset`.
    """
    if is_remote(path):
        return open_remote(str(path), storage_options, cache, fields)
    _only_remote(path, storage_options, cache)
    if is_tars(path):
        return TarDataset(path, fields=fields)
    if is_hugging_face(path):
        return HuggingFaceDataset(path)
    if is_half_written(path):
        raise DatasetNotFound(
            f"{os.fspath(path)} holds a half-written dataset: finish it with `fastio pack SOURCE "
            f"{os.fspath(path)} --resume`"
        )
    return Dataset(path) if is_dataset(path) else open_folder(path)


def open_folder(path: str | os.PathLike[str]) -> FolderDataset:
    """A folder of images or, where the first file of either kind is one, of sound files.

    Raises:
        SourceNotFound: it has neither.
    """
    if folder_extension(path, [IMG_EXTENSIONS, AUDIO_EXTENSIONS]) == 1:
        return AudioFolder(path)
    return FolderDataset(path)


def is_tars(path: Any) -> bool:
    """Whether a path, a pattern, or a list of them means tars.

    Raises:
        SourceNotFound: a tar that is named does not exist.
    """
    is_path = isinstance(path, (str, os.PathLike))
    if is_path and (is_dataset(path) or is_half_written(path)):
        return False
    return find_tars(path) is not None
