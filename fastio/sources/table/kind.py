"""Table files as a kind of data: Parquet, Arrow, CSV and JSONL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from fastio.errors import SourceNotFound, StoreError
from fastio.packed import ShardCheck
from fastio.runtime.cores import available_cores
from fastio.sources.base import (
    Findings,
    Found,
    Kind,
    Options,
    Progress,
    checked_files,
    files_findings,
)
from fastio.sources.table.about import ColumnAbout, describe_tables
from fastio.sources.table.check import check_tables
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.files import find_tables, table_kind
from fastio.sources.table.indexed import TableSamples
from fastio.sources.table.objects import TableFile
from fastio.store import is_remote


def _sniff(source: Any, options: Options) -> list[TableFile] | None:
    """The files. A URL whose name does not say so means tables where it is a folder of them."""
    url = isinstance(source, (str, os.PathLike)) and is_remote(source)
    if url and table_kind(source) is None:
        with suppress(SourceNotFound, StoreError):
            return find_tables(source, options.storage_options)
        return None
    return find_tables(source, options.storage_options)


def _open(found: Found) -> TableSamples:
    options = found.options
    return TableSamples(
        partial(TableDataset, found.parts),
        options.tables,
        options.filters,
        options.memory,
        found.remote,
    )


def _describe(found: Found) -> dict[str, Any]:
    about = describe_tables(found.parts)
    return {
        "path": str(found.source),
        "kind": about.kind,
        "files": about.files,
        "bytes": about.nbytes,
        "rows": about.rows,
        "row_groups": about.row_groups,
        "created_by": list(about.created_by),
        "columns": [_column(column) for column in about.columns],
    }


def _column(column: ColumnAbout) -> dict[str, Any]:
    kind = None
    if column.kind is not None:
        kind = {"type": type(column.kind).__name__.lower()}
        for name in ("dtype", "shape"):
            if hasattr(column.kind, name):
                kind[name] = getattr(column.kind, name)
    return {
        "name": column.name,
        "type": column.type,
        "field": kind,
        "compression": sorted(column.compressions),
        "encodings": sorted(column.encodings),
        "bytes": column.nbytes,
        "uncompressed_bytes": column.uncompressed,
        "nulls": column.nulls,
    }


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    rows = 0

    def checks() -> Iterator[ShardCheck]:
        nonlocal rows
        for check, count in check_tables(found.parts, available_cores()):
            rows += count
            yield check

    done = checked_files(checks(), "files", len(found.parts), progress)
    return files_findings(str(found.source), done, rows)


# What can be said of columns, of tables and of other data that has some.
COLUMN_OPTIONS = frozenset({"columns", "groups", "dtypes", "nulls", "filters", "memory"})

TABLES = Kind(
    "tables",
    "table files (Parquet, Arrow, CSV, JSONL)",
    (TableSamples,),
    COLUMN_OPTIONS,
    _sniff,
    _open,
    _describe,
    _check,
)
