"""What all readers of tables share: the protocol, skipping of rows, and translation of errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from fastio.errors import FastioError, ShardCorrupt, SourceNotFound
from fastio.sources.table.place import Place
from fastio.sources.table.trust import Checks

Batches = Iterator[tuple[Place, pa.RecordBatch]]


class Table(Protocol):
    """A table in one file or in memory.

    Attributes:
        name: The path, or another name for messages.
        schema: The columns.
        rows: The number of rows; None if only reading the table tells.
        is_text: Whether the types were inferred from text.
    """

    name: str
    schema: pa.Schema
    rows: int | None
    is_text: bool

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """Yields the rows from number `start` on.

        Args:
            columns: The names of the columns to read.
            types: The types of the columns, for text files.
            start: The first row.
            rows: The approximate number of rows in a batch.

        Raises:
            ShardCorrupt: If the file is damaged. For Parquet the message names the row group.
            StoreError: If the file's store does not deliver it.
        """
        ...


def skipped_to(
    name: str,
    batches: Iterator[pa.RecordBatch],
    start: int,
    columns: Sequence[str],
    checks: Checks | None = None,
) -> Batches:
    """Yields batches from row `start` on, for tables that are only readable from the beginning.

    Args:
        name: The name of the table.
        batches: All batches of the table.
        start: The first row that is wanted.
        columns: The columns that are wanted.
        checks: Validates columns that Arrow took over unchecked. None if Arrow built them itself.
    """
    first = 0
    for number, batch in enumerate(batches):
        kept, skipped = without_rows(batch, start - first)
        if kept.num_rows:
            if checks is not None:
                checks.check(batch, number, columns)
            yield Place(name, first + skipped), kept.select(list(columns))
        first += batch.num_rows


def without_rows(batch: pa.RecordBatch, start: int) -> tuple[pa.RecordBatch, int]:
    """Returns a batch without the rows before `start`, and the number of rows removed."""
    skipped = min(max(start, 0), batch.num_rows)
    return (batch.slice(skipped) if skipped else batch), skipped


@contextmanager
def reading(
    where: str, advice: str = "copy it again, or write it again", *, kind: str = ""
) -> Iterator[None]:
    """Translates errors of pyarrow to those of fastio, which name the file and its `kind`."""
    try:
        yield
    except FastioError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFound(f"{where} does not exist") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        cause = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        of_kind = f" as {kind}" if kind else ""
        raise ShardCorrupt(f"{where} cannot be read{of_kind}: {cause}; {advice}") from error
