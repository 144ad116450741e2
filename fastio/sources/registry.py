"""Which kind of data a path, a URL or an object is. Nothing else decides it.

    source -> find: the first of KINDS that knows it -> Found -> open, describe, check

To add a kind of data, write a module with a `Kind`, and name it in `KINDS`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

from fastio.cache import Cache
from fastio.errors import DatasetNotFound, FastioError, OptionError, SourceNotFound
from fastio.packed.rows import Rows
from fastio.packed.subclasses import is_users
from fastio.runtime.signatures import elsewhere
from fastio.shown import without_secrets
from fastio.sources.base import COMMON, Findings, Found, Kind, Options, Progress
from fastio.sources.corpus.kind import TOKEN_FILES
from fastio.sources.folder_kind import IMAGE_FOLDER, SOUND_FOLDER, is_file_url
from fastio.sources.hugging_face.hub import hub_files
from fastio.sources.hugging_face.kind import HUGGING_FACE
from fastio.sources.memory import ARRAYS
from fastio.sources.packed import PACKED
from fastio.sources.table.kind import TABLES
from fastio.sources.table.names import of_table_package, table_kind
from fastio.sources.tar.kind import TARS
from fastio.sources.tar.reader import is_tar_name
from fastio.store import absolute_path, is_remote, local_path, open_store

_OF_URLS = ("storage_options", "cache", "partitions")  # cache: of image files, too

# The first kind that recognises a source opens it. A packed dataset and a folder of save_to_disk
# have Arrow files, so both come before tables.
KINDS = (TOKEN_FILES, PACKED, HUGGING_FACE, ARRAYS, TARS, TABLES, SOUND_FOLDER, IMAGE_FOLDER)


def find(source: Any, options: Options | None = None) -> Found | None:
    """Returns the kind of a source and what it consists of; None if no kind knows it.

    Args:
        source: a path, a URL, a pattern, a list of these, or an object.
        options: as for `open`; they do not decide what it is.

    Raises:
        SourceNotFound: a file that it names does not exist, or the system refuses to read it.
        SchemaError: it names files of several kinds.
        StoreError: a store does not answer.
        ManifestInvalid, FormatUnsupported: it is a packed dataset that cannot be read.
    """
    options = options or Options()
    if isinstance(source, os.PathLike):
        source = os.fsdecode(source)
    source = local_source(source)
    _check_names(source)
    source = hub_files(source, options)
    for kind in KINDS:
        with _named_errors(source):
            parts = kind.sniff(source, options)
        if parts is not None:
            return Found(kind, source, options, parts)
    return None


def local_source(source: Any) -> Any:
    """Returns a source with paths for file URLs, also in a list of paths; see `local_path`."""
    if not is_named(source):
        return source
    return (
        list(map(local_path, source)) if isinstance(source, (list, tuple)) else local_path(source)
    )


def is_named(source: Any) -> bool:
    """Returns whether a source is a path or a list of them, not a list of samples."""
    if not isinstance(source, (list, tuple)):
        return isinstance(source, (str, os.PathLike))
    if not source or not all(isinstance(each, (str, os.PathLike)) for each in source):
        return False
    first = source[0]
    return (
        not isinstance(first, str)
        or table_kind(first) is not None
        or is_tar_name(first)
        or is_file_url(first)
    )


def kind_of(dataset: Rows) -> Kind | None:
    """Returns the kind of an open dataset; None for others, and for views of datasets."""
    if as_rows(dataset) is None:
        return None
    return next((kind for kind in KINDS if isinstance(dataset, kind.classes)), None)


def opened_from(dataset: object) -> Found | None:
    """Returns the source and options that `fastio.open` opened a dataset from, or None."""
    rows = as_rows(dataset)
    return None if rows is None else rows.opened_from


def as_rows(dataset: object) -> Rows | None:
    """Returns the dataset if its rows can be read without asking it for samples; else None.

    Not if a subclass of the user's makes samples of its own.
    """
    if not isinstance(dataset, Rows):
        return None
    own = (is_users(type(dataset), name) for name in ("__getitem__", "__getitems__"))
    return None if any(own) else dataset


def find_data(source: Any, options: Options | None = None) -> Found:
    """Returns as `find`, for a source that must be data of some kind that takes the options.

    Raises:
        DatasetNotFound: no kind knows it.
        OptionError: an option is one of another kind.
        StoreError: the folder of a URL cannot be listed.
    """
    found = find(source, options)
    if found is None:
        raise DatasetNotFound(why_nothing(source, options))
    try:
        _check_options(found)
    except OptionError:
        found.close()
        raise
    return found


def open_found(found: Found) -> Rows:
    """Opens the dataset of a source whose kind is known."""
    with _named_errors(found.source):
        dataset = found.kind.open(found)
    dataset.limit(found.options.max_pixels, found.options.max_unzipped_bytes)
    dataset.partitions = found.options.partitions
    if "columns" in found.kind.options:  # tables, which a pack reads by the thousand rows
        dataset.opened_from = replace(found, source=absolute_path(found.source))
    # Datasets behind a URL already have the cache, for their blocks.
    if dataset.recodes and dataset.cache is None:
        dataset.cache = found.options.kept
    return dataset


@elsewhere("an argument of a Loader goes there: fastio.Loader(fastio.open(source), {name}=...)")
def open(
    source: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: Cache | str | os.PathLike[str] | None = None,
    fields: Iterable[str] | None = None,
    incomplete: Literal["raise", "skip", "keep"] | None = None,
    columns: Iterable[str] | None = None,
    groups: Mapping[str, Iterable[str]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    nulls: Mapping[str, Any] | None = None,
    filters: Any = None,
    memory: int | str | None = None,
    resident: bool | None = None,
    roots: Iterable[str | os.PathLike[str]] | None = None,
    max_pixels: int | None = None,
    max_unzipped_bytes: int | None = None,
    images: Iterable[str | int] | None = None,
    version: int | None = None,
    split: str | None = None,
    config: str | None = None,
    separator: int | None = None,
    partitions: int | None = None,
) -> Any:
    """Open data of any kind that fastio reads, local, behind a URL, or in memory.

    Args:
        source: one of these, most of which may also be a URL (file:///folder is a local path):

            - the folder that `fastio.pack` or `fastio.Writer` wrote;
            - a tar, a folder of tars, a pattern such as "train-{000000..000009}.tar", or a list;
            - table files (Parquet, Arrow, CSV, JSONL): one, a folder, a pattern, or a list; Lance
              datasets, local or in s3, gs and az;
            - a dataset on the Hugging Face Hub, hf://datasets/ORG/NAME (docs/hugging_face.md);
            - a directory that `save_to_disk` of the datasets package wrote, or a
              `datasets.Dataset`;
            - token files: a .bin file of Megatron (with its .idx file), llm.c or nanoGPT, a
              pattern, or a list; local only;
            - a folder with a folder of images, or of sound files, for each class; or a list of URLs
              of images or sound files;
            - an array or a CPU tensor, (rows, ...), a tuple of up to 64 of them with equal numbers
              of rows, a dict of them, or a TensorDataset. They are not copied.
        storage_options: for a URL: options of its file system (keys, endpoint, ...), as in fsspec,
            and limits of time (docs/remote.md).
        cache: a folder on a local disk, or a `fastio.Cache`. It keeps the data that is fetched of
            anything but tables behind a URL. A Loader also recodes the JPEG files of a
            folder, of tars and of data of the datasets package there while its epochs run, so
            that later epochs are faster (docs/cache.md). None caches nothing.
        fields: for tars: names of the fields to read. A sample may lack other fields.
        incomplete: for tars: what happens to a sample that lacks a field: "raise" raises an error
            when the tars are opened (the default), "skip" leaves it out, and "keep" raises when it
            is read.
        columns, groups, dtypes, nulls: for table files and data of the datasets package: which
            columns become which fields, as in `fastio.pack`. Token files of nanoGPT need the type
            of their tokens: dtypes={"tokens": "uint16"}.
        filters: for the same data: the rows to read, as in pyarrow: [("day", ">", 7), ...], or an
            expression of pyarrow.dataset. The rows are counted when a Loader is made, by reading
            the filter's columns of the row groups that statistics do not rule out.
        memory: for the same data: bytes, or a string such as "512MiB", that a Loader may use to
            shuffle and decode. None: an eighth of the machine's memory, divided by the ranks on it,
            at most 1 GiB; for tables with images, 512 MiB.
        resident: for a packed table (no images): copy it to memory, whose huge pages can make
            shuffled reads faster. The ranks of a job on one machine share a copy. None: copy it
            after the first epoch if it is shuffled, takes at most half of the memory that is
            available, and is mapped by small pages.
        roots: for data of the datasets package: folders, besides its own, in which the images and
            other files that it names may lie. A path that leads elsewhere is an error, because
            data of others could name any of your files.
        max_pixels: maximum number of pixels of an image. A larger image is an error of its sample,
            raised before memory is allocated for it. None: 178,956,970.
        max_unzipped_bytes: maximum size of a compressed file in a tar after decompression, and of
            a decoded sound. A larger one is an error of its sample.
        images: for arrays in memory: which of them hold images, uint8 (rows, H, W), (rows, H, W, C)
            or (rows, C, H, W) with 1 or 3 channels: positions, or keys of a dict. A Loader delivers
            them as (N, C, H, W) and can transform them. Other arrays are delivered as they are. For
            Parquet, Arrow and Lance tables: names of the columns of encoded images, [] for none.
            None: as metadata and first values of the columns say (docs/tables.md).
        version: number of the version of a packed dataset to open, as listed by `fastio info`
            (docs/growing.md). None opens the newest version.
        split, config: for a dataset on the Hugging Face Hub, hf://datasets/ORG/NAME, or a local
            folder with the layout of one: the names of its split and configuration. They may be
            left out where there is only one; a local folder is then read as any folder.
        separator: for token files without an index (nanoGPT, llm.c): the number of the token that
            ends each document. All tokens are read once to find the documents. None: each file is
            one document.
        partitions: for packed data, tars and folders behind a URL: into how many parts a shuffle by
            windows divides the data. Each part is read by one node (docs/distributed.md). None: one
            per node of torchrun or Slurm.

    Returns:
        The dataset: `Dataset`, `TarDataset`, `FolderDataset`, `AudioFolder`, or another one of
        rows with a `schema`, a length and indexing. Close it, or use it in a `with` statement, to
        close its files.

    Raises:
        DatasetNotFound: there is nothing at the path, nothing that fastio reads, or no such
            version.
        FormatUnsupported: the data has a format that fastio does not read, or a newer fastio packed
            it.
        PackageMissing: an optional package is needed to read it, and is not installed.
        OptionError, ValueError: an option is one of another kind of data, or its value is invalid.
        SourceNotFound, ShardCorrupt, SchemaError: the data cannot be read.
        StoreError: a store does not answer, or the folder of a URL cannot be listed.
        ManifestInvalid: the manifest of a packed dataset is damaged.
    """
    for name, given in {"fields": fields, "images": images}.items():
        if isinstance(given, (str, int)):
            raise ValueError(f"{name} must be a list of names: {name}=[{given!r}]")
    if partitions is not None and (type(partitions) is not int or partitions < 1):
        raise ValueError(f"partitions must be an integer of at least 1, got {partitions!r}")
    options = Options(
        storage_options,
        cache,
        None if fields is None else tuple(fields),
        incomplete,
        columns,
        groups,
        dtypes,
        nulls,
        filters,
        memory,
        resident,
        roots,
        max_pixels,
        max_unzipped_bytes,
        None if images is None else tuple(images),
        version,
        split,
        config,
        separator,
        partitions,
    )
    if isinstance(source, Rows):
        if options.given:
            raise OptionError(
                f"{source!r} is already open: pass {', '.join(options.given)} to the call that "
                "opens it"
            )
        return source
    dataset = open_found(find_data(source, options))
    try:
        len(dataset)  # what is read lazily is read now, so that errors come from here
    except BaseException:
        dataset.close()
        raise
    return dataset


def describe(
    source: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    version: int | None = None,
    dtypes: Mapping[str, str] | None = None,
    split: str | None = None,
    config: str | None = None,
) -> dict[str, Any]:
    """Returns what a source consists of, as JSON values. `fastio info` prints it.

    Args:
        source: A packed dataset, WebDataset tars, table files (Parquet, Arrow, CSV, JSONL), a
            folder of images or sound files, or the URL of one of these; or a directory of Hugging
            Face's save_to_disk.
        storage_options: Options of the file system of a URL, such as keys and endpoint.
        version: Number of a version of a packed dataset (default: the newest).
        dtypes: For token files without a header (nanoGPT): dtype, such as tokens=uint16. In Python
            {"tokens": "uint16"}.
        split: Name of the split of data with the layout of the Hugging Face Hub, if it has several.
        config: Name of its configuration, if it has several.

    Raises:
        FastioError: As `open`.
    """
    given = Options(
        storage_options, dtypes=dtypes or None, version=version, split=split, config=config
    )
    found = find_data(source, given)
    with _named_errors(source):
        described = {"dataset": found.kind.key} | found.kind.describe(found)
    return described | {"path": _as_given(source, described["path"])}


def check(
    source: Any,
    *,
    deep: bool = False,
    max_pixels: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    version: int | None = None,
    dtypes: Mapping[str, str] | None = None,
    split: str | None = None,
    config: str | None = None,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    progress: Progress,
) -> Findings:
    """Reads all of a source and returns what is damaged. `fastio verify` prints it.

    Args:
        source: A packed dataset, WebDataset tars, table files (Parquet, Arrow, CSV, JSONL), a
            folder of images or sound files, or the URL of one of these; or a directory of Hugging
            Face's save_to_disk.
        deep: Also decode every image, and name damaged ones.
        max_pixels: With deep: maximum number of pixels of an image; larger images count as damaged
            (default: about 179 million).
        storage_options: Options of the file system of a URL, such as keys and endpoint.
        version: Number of a version of a packed dataset (default: the newest).
        dtypes: For token files without a header (nanoGPT): dtype, such as tokens=uint16. In Python
            {"tokens": "uint16"}.
        split: Name of the split of data with the layout of the Hugging Face Hub, if it has several.
        config: Name of its configuration, if it has several.
        roots: For a save_to_disk directory: other folders, besides its own, in which the files that
            it names may lie. They are read with `deep`.
        progress: Shows how much is done.

    Raises:
        FastioError: As `open`.
    """
    given = Options(
        storage_options,
        dtypes=dtypes or None,
        max_pixels=max_pixels,
        version=version,
        split=split,
        config=config,
        roots=roots or None,
    )
    found = find_data(source, given)
    with _named_errors(source):
        findings = found.kind.check(found, deep, progress)
    return replace(findings, path=_as_given(source, findings.path))


def _as_given(source: Any, path: str) -> str:
    """Returns a local source as the user wrote it, relative or absolute; for others, `path`."""
    source = local_path(source)
    if not isinstance(source, (str, os.PathLike)) or is_remote(source):
        return path
    return os.fsdecode(source)


def takers(option: str) -> str:
    """Returns the kinds that take an option of `open`, in words."""
    names = [kind.name for kind in KINDS if option in kind.options]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _check_names(source: Any) -> None:
    """Raises SourceNotFound if a path or URL contains NUL, which no system can open."""
    if not is_named(source):
        return
    for name in source if isinstance(source, (list, tuple)) else (source,):
        if isinstance(name, os.PathLike):
            name = os.fsdecode(name)
        if isinstance(name, str) and "\0" in name:
            raise SourceNotFound(f"{name} does not exist: names of files cannot contain NUL")


@contextmanager
def _named_errors(source: Any) -> Iterator[None]:
    """Turns errors of the file system, such as a missing permission, into SourceNotFound."""
    try:
        yield
    except FastioError:  # some are OSErrors, too, and have good messages
        raise
    except OSError as error:
        name = os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else "the list"
        inner = os.fsdecode(error.filename or name)
        why = str(error.strerror or error) + (f" ({inner})" if inner != name else "")
        raise SourceNotFound(f"{without_secrets(name)} cannot be read: {why}") from error


def _check_options(found: Found) -> None:
    """Raises OptionError unless all options are those of the kind, and of URLs for one."""
    for option in found.options.given:
        if option not in found.kind.options | COMMON:
            raise OptionError(
                f"{option} is an option for {takers(option)}, not for {found.kind.name}: leave "
                f"it out for {found.name}"
            )
        recodes = option == "cache" and any(each.recodes for each in found.kind.classes)
        if option in _OF_URLS and not found.remote and not recodes:
            also = " and image files" if option == "cache" else ""
            raise OptionError(
                f"{option} is only for URLs{also}, and {found.name} is not one; leave it out"
            )


def why_nothing(source: Any, options: Options | None = None) -> str:
    """Returns why no kind knows a source, and what to do.

    Raises:
        StoreError: The folder of a URL cannot be listed, which is why no kind knows it.
    """
    source = local_source(source)
    if isinstance(source, (list, tuple)):
        return (
            "the list is neither one of tars nor one of table files (Parquet, Arrow, CSV, JSONL): "
            "read image files with fastio.FolderDataset.from_samples([(path, label), ...]), and "
            "pack other samples (fastio.pack)"
        )
    if isinstance(source, bytes):
        return f"paths are text, and {source!r} is bytes: give os.fsdecode(path)"
    if of_table_package(source):
        return (
            f"fastio.open does not read a {type(source).__name__} in memory: pack it with "
            "fastio.pack, write it to a Parquet file, or give a dict of arrays of its columns"
        )
    if not isinstance(source, (str, os.PathLike)):
        return (
            f"fastio.open does not read objects of type {type(source).__name__}: give it to "
            "fastio.Loader, or pack it (fastio.pack)"
        )
    source = os.fsdecode(source)
    name = without_secrets(source)
    if source.startswith(("http://", "https://")):
        return (
            f"{name} has no manifest.arrow, and its web server lists no folder of images or sound "
            "files there: check the URL, or name the files (folder/train-{000..009}.tar, a list of "
            "table files)"
        )
    if is_remote(source):
        given = None if options is None else options.storage_options
        with suppress(SourceNotFound), open_store(source, given) as store:
            next(store.pages(), None)
        return (
            f"{name} has no manifest.arrow, and no tars, table files, images or sound files: check "
            "the URL, or pack the data with `fastio pack SOURCE URL`"
        )
    others = "give images and sound files by their folder"
    if not os.path.exists(source):
        if any(glob.iglob(re.sub(r"\{[^{}]*\}", "*", source), recursive=True)):
            return f"{name} matches no tars or tables; {others}"
        return f"{name} {'does not exist' if set('*?').isdisjoint(source) else 'matches no file'}"
    if not os.path.isdir(source):
        return (
            f"{name} is not a tar, a table (Parquet, Arrow, CSV, JSONL) or a token file (.bin): "
            f"{others}, and pack text with a tokenizer (fastio pack --tokenizer)"
        )
    return (
        f"{name} is not a packed dataset, it has no manifest.arrow; and it has no tars, table "
        "files, images or sound files"
    )
