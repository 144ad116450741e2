"""Image and sound files with a table about them: metadata.csv, .jsonl or .parquet beside them.

A row of the table names its file in the column `file_name`, relative to the table's folder, as the
datasets package lays out its ImageFolder and AudioFolder. The other columns become fields.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fastio.errors import FastioError, FormatUnsupported, SchemaError, SourceNotFound
from fastio.schema import Schema, Text
from fastio.shown import without_secrets
from fastio.sources.base import Options
from fastio.sources.folder import FolderDataset
from fastio.sources.listed import METADATA, About, ListedFiles
from fastio.sources.stored_files import StoredFiles, of_urls
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.files import find_tables
from fastio.sources.table.indexed import TableSamples
from fastio.sources.table.opening import open_table
from fastio.store import is_remote, join

_NAME = "file_name"
_OTHER_NAMES = ("_file_name", "file_names")  # ends of the names of columns that name other files
# Finds "file_name" and "file_names" as whole names or at the end of names, as in "image_file_name",
# but not in "profile_name" and "file_name_hash".
_NAMES_FILES = re.compile(rf"(?<![0-9A-Za-z]){_NAME}s?(?![0-9A-Za-z_])")
_MOST_HEADER_BYTES = 1 << 20  # of a CSV file, or of the first row of a JSON Lines file
_KEPT_BYTES = 1 << 30  # of decoded row groups that are kept, because single rows are read


def metadata_beside(folder: str) -> ListedFiles | None:
    """Returns the metadata that lies in a folder of files on this machine; None if none does.

    Tables without a column `file_name` have another purpose, and are ignored.
    """
    beside = (os.path.join(folder, name) for name in METADATA)
    found = tuple(path for path in beside if os.path.isfile(path) and _names_files(path))
    return ListedFiles(About(folder, metadata=found), []) if found else None


def _names_files(path: str) -> bool:
    """Returns whether a table has columns that name files; True for a damaged Parquet file."""
    if path.endswith(".parquet"):
        try:
            return any(map(_NAMES_FILES.search, open_table(path).schema.names))
        except FastioError:  # reading it later reports the error
            return True
    # The header of a CSV file, or the first object of a JSON Lines file, has all names of columns.
    # Neither is parsed: a table that is damaged, or not UTF-8, reports its error when it is opened.
    with open(path, "rb") as file:
        line = file.readline(_MOST_HEADER_BYTES)
    return _NAMES_FILES.search(line.decode("latin-1")) is not None


def open_described(opener: type[FolderDataset], about: About, options: Options) -> FolderDataset:
    """Returns the files that metadata names, as dicts of a file and the other columns.

    Args:
        opener: the class of the dataset, FolderDataset or AudioFolder.
        about: what is known of the files; it names the metadata.
        options: which columns of the metadata become which fields, and options of URLs.

    Raises:
        SchemaError: there is no column `file_name`, or a name in it leads out of the folder.
        SourceNotFound: a file behind a URL does not exist.
        FormatUnsupported: rows have several files, or several kinds of metadata are mixed.
    """
    table = _table(about, options)
    try:
        names = _names(table, about)
        if is_remote(names[0]):
            dataset = opener.of_objects(_stored(names, table, options))
        else:
            folder = about.name if os.path.isdir(about.name) else ""
            dataset = opener.from_samples([(name, 0) for name in names], (), folder)
        dataset.describe(table, _schema(dataset, table))
    except BaseException:
        table.close()
        raise
    return dataset


def _table(about: About, options: Options) -> TableSamples:
    """Returns the metadata as a table with a row for each file."""
    listed = ListedFiles(About(about.name, features=about.features), about.metadata)
    ends = sorted({os.path.splitext(name)[1].lower() for name in listed})
    if len(ends) > 1:
        raise FormatUnsupported(
            f"{about.name} has metadata files of several formats ({', '.join(ends)}): keep the "
            "files of one format, and remove the others"
        )
    files = find_tables(listed, options.storage_options)
    assert files is not None
    wanted = options.tables
    # The user lists the fields of samples. The column with file names is not a field, so it is
    # added.
    if wanted.columns is not None and _NAME not in wanted.columns:
        wanted = replace(wanted, columns=(*wanted.columns, _NAME))
    remote = any(file.remote for file in files)
    table = TableSamples(partial(TableDataset, files), wanted, None, options.memory, remote)
    table.keep(_KEPT_BYTES)
    return table


def _names(table: TableSamples, about: About) -> list[str]:
    """Returns the path or URL of each row's file."""
    fields = table.schema.fields
    several = [name for name in fields if name.endswith(_OTHER_NAMES)]
    if several:
        raise FormatUnsupported(
            f"{table.path}: the column {several[0]!r} names files, but fastio reads only the file "
            f"of each row that the column {_NAME!r} names: load the data with "
            "datasets.load_dataset, and pass the result to fastio"
        )
    if not isinstance(fields.get(_NAME), Text):
        raise SchemaError(
            f"{table.path} needs a column {_NAME!r} of text, which names the file of each row; it "
            f"has {', '.join(fields)}"
        )
    if not len(table):
        raise SourceNotFound(f"{table.path} has no rows: add a row for each file, or remove it")
    found: list[str] = []
    bounds = table.file_bounds
    for place, metadata in enumerate(about.metadata):
        rows = np.arange(bounds[place], bounds[place + 1], dtype=np.int64)
        found += _below(metadata, table.gather(_NAME, rows) if len(rows) else [])
    return found


def _schema(dataset: FolderDataset, table: TableSamples) -> Schema:
    """Returns the fields of samples: the file, and all columns of the table except `file_name`.

    Raises:
        SchemaError: The table has a column with the name of the file's field.
    """
    fields = {name: kind for name, kind in table.schema.fields.items() if name != _NAME}
    if dataset.field in fields:
        raise SchemaError(
            f"{table.path} has a column {dataset.field!r}, which is also the name of the field "
            "with the contents of the files: rename the column"
        )
    words = table.schema.vocabularies
    kept = {name: words[name] for name in fields if name in words}
    own = {dataset.field: dataset.schema.fields[dataset.field]}
    return Schema(own | fields, "dict", table.classes, vocabularies=kept)


def _below(metadata: str, names: Sequence[str]) -> list[str]:
    """Returns the paths or URLs of files that one metadata file names.

    Raises:
        SchemaError: A name is not a relative path, or leads out of the folder of the metadata.
    """
    remote = is_remote(metadata)
    folder = metadata.rpartition("/")[0] if remote else os.path.dirname(metadata)
    found = []
    for row, name in enumerate(names):
        path = posixpath.normpath(name.replace("\\", "/"))
        if "://" in name or "\0" in name or path.startswith(("/", "../")) or path in ("..", "."):
            raise SchemaError(
                f"{without_secrets(metadata)}, row {row}: the file name {name!r} is not the "
                "relative path of a file in the folder of the metadata"
            )
        found.append(join(folder, path) if remote else os.path.join(folder, path))
    return found


def _stored(names: Sequence[str], table: TableSamples, options: Options) -> StoredFiles:
    """Returns the objects of the rows; SourceNotFound if one does not exist."""
    stored = of_urls(names, options.storage_options, may_lack=True)
    lacking = np.flatnonzero(stored.objects.sizes < 0)
    if len(lacking):
        row = int(lacking[0])
        raise SourceNotFound(
            f"{without_secrets(names[row])} does not exist, and {table.sample_name(row)} names it "
            f"({len(lacking):,} of {len(names):,} files are missing): remove these rows, or add "
            "the files"
        )
    return stored
