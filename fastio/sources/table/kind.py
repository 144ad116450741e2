"""Table files as a kind of data: Parquet, Arrow, CSV and JSONL."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pa_parquet

from fastio.errors import FastioError, ShardCorrupt, SourceNotFound, StoreError
from fastio.packed import ShardCheck
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import available_cores
from fastio.runtime.threads import DaemonPool
from fastio.schema import Field, Image, Images
from fastio.sources.base import (
    LIMITS,
    Findings,
    Found,
    Kind,
    Options,
    Progress,
    check_image_files,
    check_values,
    checked_files,
    file_check,
    files_findings,
)
from fastio.sources.hugging_face.dataset import HuggingFaceDataset
from fastio.sources.hugging_face.sources import ArrowFiles
from fastio.sources.table.arrow import ArrowTable
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.embedded import embedded_files
from fastio.sources.table.features import File, Picture
from fastio.sources.table.files import find_tables
from fastio.sources.table.filters import unwrapped
from fastio.sources.table.indexed import TableSamples
from fastio.sources.table.leaves import Leaf, field_or_none, leaves
from fastio.sources.table.media import MediaTable
from fastio.sources.table.names import table_kind
from fastio.sources.table.objects import TableFile, stamp
from fastio.sources.table.opening import Opened, look_into, open_all, open_table
from fastio.sources.table.parquet import ParquetTable, check_codecs
from fastio.sources.table.reading import Grouped, Table, reading
from fastio.store import is_remote

_COUNTED_AT_ONCE = 4
_ROWS_AT_ONCE = 65536
# Options for columns, of tables and of other data that has columns.
COLUMN_OPTIONS = frozenset({"columns", "groups", "dtypes", "nulls", "filters", "memory"})


def _sniff(source: Any, options: Options) -> list[TableFile] | None:
    """Returns the files. A URL without the ending of a table is one if it is a folder of tables."""
    url = isinstance(source, (str, os.PathLike)) and is_remote(source)
    if url and table_kind(source) is None:
        with suppress(SourceNotFound, StoreError):
            return find_tables(source, options.storage_options)
        return None
    return find_tables(source, options.storage_options)


def _open(found: Found) -> TableSamples | HuggingFaceDataset:
    return _opened(found, _embedded(found, map(look_into, found.parts)))


def _opened(found: Found, embedded: dict[str, Field]) -> TableSamples | HuggingFaceDataset:
    """Returns the dataset, given its columns that hold files."""
    options = found.options
    if options.filters is None and _lie_in_place(found.parts, embedded):
        features = {
            name: Picture(kind.mode) if isinstance(kind, Image) else File()
            for name, kind in embedded.items()
        }
        files = ArrowFiles(tuple(file.name for file in found.parts), features)
        dataset = HuggingFaceDataset(files, options.tables)
        dataset.memory = options.memory
        return dataset
    return (MediaTable if embedded else TableSamples)(
        partial(TableDataset, found.parts, embedded=embedded),
        options.tables,
        options.filters,
        options.memory,
        found.remote,
    )


def _embedded(found: Found, tables: Iterable[Table]) -> dict[str, Field]:
    """Returns the columns that hold files, by the first table with rows; see `embedded_files`.

    Text has none, unless the options name some. Then no table is opened.
    """
    options = found.options
    named = None if options.images is None else [str(name) for name in options.images]
    columns = options.tables.columns
    text = found.parts[0].kind in ("csv", "jsonl", "text")
    if text and named is None:
        return {}
    rest = iter(tables)
    first = next(rest)
    if first.rows == 0:
        first = next((table for table in rest if table.rows != 0), first)
    return embedded_files(first, named, columns)


def _lie_in_place(files: Sequence[TableFile], embedded: Mapping[str, Field]) -> bool:
    """Returns whether images can be read where they lie: in local, uncompressed Arrow files."""
    images = [name for name, kind in embedded.items() if isinstance(kind, Image)]
    if any(isinstance(kind, Images) for kind in embedded.values()):
        return False  # lists are read by row groups
    if not images or any(file.remote or file.values for file in files):
        return False
    if files[0].kind != "arrow":
        return False
    tables = open_all(files).tables
    kinds = [_bytes_type(tables[0].schema.field(name).type) for name in images]
    return (
        any(table.rows for table in tables)
        and all(
            isinstance(table, ArrowTable)
            and table.has_batches
            and table.has_parts
            and table.schema.equals(tables[0].schema)
            for table in tables
        )
        and all(kind in (pa.binary(), pa.large_binary()) for kind in kinds)
    )


def _bytes_type(kind: pa.DataType) -> pa.DataType:
    return kind.field("bytes").type if pa.types.is_struct(kind) else kind


def _pack(found: Found, skip_damaged: bool) -> Opened | TableSamples | HuggingFaceDataset:
    if isinstance(found.source, TableSamples):
        return found.source
    with suppress(ShardCorrupt) if skip_damaged else nullcontext():
        embedded = _embedded(found, map(look_into, found.parts))
        if embedded:
            return _opened(found, embedded)
    opened = open_all(found.parts, found.options.filters, skip_damaged=skip_damaged)
    return replace(opened, stamp=stamp(opened.files))


# --- fastio info ----------------------------------------------------------------------------------


def _describe(found: Found) -> dict[str, Any]:
    """Returns what the footers say; local files without one are read to count their rows."""
    opened = open_all(found.parts)
    first = opened.tables[0]
    embedded = _embedded(found, opened.tables)
    columns = {
        leaf.name: _column(leaf, embedded.get(leaf.path[0]))
        for leaf in leaves(first.schema, first.name, embedded).values()
    }
    inner = [unwrapped(table)[0] for table in opened.tables]
    parquet = [table for table in inner if isinstance(table, ParquetTable)]
    for table in parquet:
        _add_chunks(columns, table, embedded)
    with DaemonPool(_COUNTED_AT_ONCE, "fastio-table-rows") as pool:
        counts = list(pool.map(_rows, inner, opened.files))
    return {
        "path": str(found.source),
        "kind": found.parts[0].kind,
        "files": len(found.parts),
        "bytes": sum(file.size() for file in opened.files),
        "rows": None if None in counts else sum(count or 0 for count in counts),
        "row_groups": _row_groups(inner),
        "created_by": sorted({table.metadata.created_by or "" for table in parquet} - {""}),
        "columns": [
            column
            | {
                "compression": sorted(column["compression"]),
                "encodings": sorted(column["encodings"]),
            }
            for column in columns.values()
        ],
    }


def _column(leaf: Leaf, embedded: Field | None) -> dict[str, Any]:
    """Returns the description of a column, to which `_add_chunks` adds; None is not known.

    `embedded` is the field of a column that holds files.
    """
    kind, field = embedded or field_or_none(leaf.type), None
    if kind is not None:
        told = {name: getattr(kind, name) for name in ("dtype", "shape") if hasattr(kind, name)}
        field = {"type": type(kind).__name__.lower(), **told}
    return {
        "name": leaf.path[0] if embedded else leaf.spoken,
        "type": str(leaf.type),
        "field": field,
        "compression": set(),
        "encodings": set(),
        "bytes": None,
        "uncompressed_bytes": None,
        "nulls": None,
    }


def _add_chunks(
    found: dict[str, dict[str, Any]], table: ParquetTable, embedded: Collection[str]
) -> None:
    """Adds the sizes and encodings of a file's column chunks to their columns."""
    columns: dict[int, dict[str, Any]] = {}
    for leaf in leaves(table.schema, table.name, embedded).values():
        for number in range(table.metadata.num_columns):
            path = table.metadata.schema.column(number).path
            if f"{path}.".startswith(f"{leaf.spoken}.") and leaf.name in found:
                columns[number] = found[leaf.name]
    for group in range(table.metadata.num_row_groups):
        about = table.metadata.row_group(group)
        with reading(table.name):
            check_codecs(table.metadata, group, list(columns))
        for number, column in columns.items():
            chunk = about.column(number)
            column["compression"].add(chunk.compression)
            column["encodings"].update(chunk.encodings)
            sizes = {
                "bytes": chunk.total_compressed_size,
                "uncompressed_bytes": chunk.total_uncompressed_size,
            }
            flat = not table.metadata.schema.column(number).max_repetition_level
            told = chunk.statistics
            if flat and told is not None and told.has_null_count:  # of lists, empty ones count too
                sizes["nulls"] = told.null_count
            for name, size in sizes.items():
                column[name] = (column[name] or 0) + size


def _rows(table: Table, file: TableFile) -> int | None:
    """Returns the number of rows; None for a file in a store that would have to be fetched."""
    if table.rows is not None or file.remote:
        return table.rows
    columns = table.schema.names[:1] if table.is_text else table.schema.names
    types = {name: table.schema.field(name).type for name in columns}
    return sum(int(batch.num_rows) for _, batch in table.batches(types, 0, _ROWS_AT_ONCE))


def _row_groups(tables: Sequence[Table]) -> int | None:
    """Returns the number of row groups or record batches; None for other files."""
    groups = [
        len(table.groups([])) if isinstance(table, Grouped) and table.rows is not None else None
        for table in tables
    ]
    return None if None in groups else sum(count or 0 for count in groups)


# --- fastio verify --------------------------------------------------------------------------------


def _check(found: Found, deep: bool, progress: Progress) -> Findings:
    rows = 0

    def checks() -> Iterator[ShardCheck]:
        nonlocal rows
        for check, count in in_order(_check_file, found.parts, available_cores()):
            rows += count
            yield check

    done = checked_files(checks(), "files", len(found.parts), progress)
    findings = files_findings(str(found.source), done, rows)
    sound = deep and not findings.damaged
    embedded = _embedded(found, map(look_into, found.parts)) if sound else {}
    if embedded:
        with _opened(found, embedded) as dataset:
            dataset.limit(found.options.max_pixels, None)
            findings.images = check_image_files(dataset, dataset.sample_name, progress)
    return findings


def _check_file(file: TableFile) -> tuple[ShardCheck, int]:
    """Reads every column of every row group. Returns the check and the rows that were read."""
    nbytes = rows = 0
    problems: list[str | BaseException] = []
    try:
        nbytes = file.size()
        table = open_table(file)
        parts = _parquet_parts(table) if isinstance(table, ParquetTable) else _parts(table)
        for count, found in parts:
            rows += count
            problems += found
    except SourceNotFound:
        problems.append("missing")
    except (FastioError, pa.ArrowException, OSError) as error:
        problems.append(error)
    return file_check(file.name, nbytes, problems), rows


def _parts(table: Table) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of rows and the problems of each record batch."""
    types = {name: table.schema.field(name).type for name in table.schema.names}
    batches = table.batches(types, 0, _ROWS_AT_ONCE)
    for number, (_, batch) in enumerate(batches):
        where = "" if table.is_text else f"record batch {number}, "
        columns = zip(batch.schema.names, batch.columns, strict=True)
        problems = [check_values(column, f"{where}column {name!r}") for name, column in columns]
        yield batch.num_rows, [problem for each in problems for problem in each]


def _parquet_parts(table: ParquetTable) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows and problems of each row group, by the checksums of pages if it has any."""
    names = table.schema.names
    for group in range(table.metadata.num_row_groups):
        source = table.file.fetch(table.ranges(group, names)).source()
        problems: list[str] = []
        with pa_parquet.ParquetFile(
            source, metadata=table.metadata, pre_buffer=False, page_checksum_verification=True
        ) as file:
            for name in names:
                where = f"row group {group}, column {name!r}"
                try:
                    column = file.read_row_group(group, columns=[name], use_threads=False)
                except (pa.ArrowException, OSError) as error:
                    problems.append(f"{where}: {' '.join(str(error).split())}")
                    continue
                problems += check_values(column, where)
        yield table.metadata.row_group(group).num_rows, problems


TABLES = Kind(
    "tables",
    "table files (Parquet, Arrow, CSV, JSONL)",
    (TableSamples,),
    COLUMN_OPTIONS | LIMITS | {"images"},
    _sniff,
    _open,
    _describe,
    _check,
    _pack,
)
