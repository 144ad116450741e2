"""Whether table files can be read: what `fastio verify` looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pa_parquet

from fastio.errors import FastioError, SourceNotFound
from fastio.packed import ShardCheck
from fastio.runtime.ahead import in_order
from fastio.sources.table.binary_files import ParquetTable
from fastio.sources.table.objects import TableFile
from fastio.sources.table.readers import open_table
from fastio.sources.table.reading import Table

_ROWS_AT_ONCE = 65536


def check_tables(files: Sequence[TableFile], workers: int) -> Iterator[tuple[ShardCheck, int]]:
    """Read every column of every row group, with the checksums of Parquet's pages where it has any.

    Args:
        files: what to check.
        workers: files under way at a time.

    Returns:
        What was found, file after file, and its rows; those of a damaged file as far as it was
        read. A problem names row group and column.
    """
    return in_order(_check_file, files, workers)


def check_values(array: pa.Array | pa.Table, where: str) -> Iterator[str]:
    """What is wrong with a column: offsets that leave it, strings that are not UTF-8, ..."""
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        yield f"{where}: {_one_line(error)}"


def _check_file(file: TableFile) -> tuple[ShardCheck, int]:
    nbytes = rows = 0
    problems: list[str] = []
    try:
        nbytes = file.size()
        for count, found in _check_table(open_table(file)):
            rows += count
            problems += found
    except SourceNotFound:
        problems.append("missing")
    except (FastioError, pa.ArrowException, OSError) as error:
        # Messages begin with the name, which stands beside them here.
        problems.append(_one_line(error).removeprefix(file.name).lstrip(":, "))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ShardCheck(file.name, nbytes, problems[0] + more if problems else None), rows


def _check_table(table: Table) -> Iterator[tuple[int, list[str]]]:
    """Rows that were read, and what is wrong with them, some at a time."""
    if isinstance(table, ParquetTable):
        yield from _check_parquet(table)
        return
    types = {name: table.schema.field(name).type for name in table.schema.names}
    batches = table.batches(table.schema.names, types, 0, _ROWS_AT_ONCE)
    for number, (_, batch) in enumerate(batches):
        where = "" if table.is_text else f"record batch {number}, "
        problems = [
            problem
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            for problem in check_values(column, f"{where}column {name!r}")
        ]
        yield batch.num_rows, problems


def _check_parquet(table: ParquetTable) -> Iterator[tuple[int, list[str]]]:
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
                    problems.append(f"{where}: {_one_line(error)}")
                    continue
                problems += check_values(column, where)
        yield table.metadata.row_group(group).num_rows, problems


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
