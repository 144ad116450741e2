"""What reading tables has in common: the protocol, rows to skip, and errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from fastio.errors import FastioError, ShardCorrupt, SourceNotFound
from fastio.formats.tables.place import Place
from fastio.formats.tables.trust import Checks

Batches = Iterator[tuple[Place, pa.RecordBatch]]


class Table(Protocol):
    """A table: one file, or one in memory.

    Attributes:
        name: its path, or what it is called.
        schema: its columns.
        rows: how many it has, None where only reading it tells.
        is_text: whether its types are those that its text looks like.
    """

    name: str
    schema: pa.Schema
    rows: int | None
    is_text: bool

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType], start: int, rows: int
    ) -> Batches:
        """The rows from number `start` on.

        Args:
            columns: what is wanted.
            types: their types, for files of text.
            start: the first row.
            rows: about so many at a time.

        Raises:
            ShardCorrupt: the file is damaged; names row groups of Parquet.
            StoreError: it lies in a store that does not give it.
        """
        ...


def skipped_to(
    name: str,
    batches: Iterator[pa.RecordBatch],
    start: int,
    columns: Sequence[str],
    checks: Checks | None = None,
) -> Batches:
    """Batches of a table that can only be read from its beginning, from row `start` on.

    Args:
        name: of the table.
        batches: all of them.
        start: the first row that is wanted.
        columns: that are wanted.
        checks: of columns that Arrow took as they are; None where they are Arrow's own.
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
    """A batch without the rows before `start`, and how many those are."""
    skipped = min(max(start, 0), batch.num_rows)
    return (batch.slice(skipped) if skipped else batch), skipped


@contextmanager
def reading(where: str, advice: str = "copy it again, or write it again") -> Iterator[None]:
    """pyarrow's errors as fastio's, naming the file."""
    try:
        yield
    except FastioError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFound(f"{where} does not exist") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ShardCorrupt(f"{where} cannot be read: {error}; {advice}") from error
