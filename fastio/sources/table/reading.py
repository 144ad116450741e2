"""What all readers of tables share: the protocol, the origin of rows, and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import FastioError, ShardCorrupt, SourceNotFound


@dataclass(frozen=True)
class Place:
    """The origin of some rows of one file.

    Attributes:
        file: The path, or the name of a table in memory.
        first_row: The number of the first row in the file, from 0.
        row_group: The number of the row group; None if the file has none.
        numbers: int64, the numbers of all rows if they are not consecutive because of a filter.
    """

    file: str
    first_row: int
    row_group: int | None = None
    numbers: NDArray[np.int64] | None = None

    def column(self, name: str) -> str:
        """Returns the file and a column, as messages begin."""
        return f"{self.file}: column {name!r}"

    def row(self, place: int) -> int:
        """Returns the number in the file of one of the rows."""
        return self.first_row + place if self.numbers is None else int(self.numbers[place])

    def rows(self, count: int) -> str:
        """Returns a description of the first `count` rows."""
        group = "" if self.row_group is None else f" (row group {self.row_group})"
        return f"rows {self.row(0)} to {self.row(count - 1)}{group}"

    def after(self, rows: int) -> Place:
        """Returns the origin of the rows from number `rows` on, which may be none."""
        if not rows:
            return self
        numbers = None if self.numbers is None else self.numbers[rows:]
        first = self.first_row + rows
        if numbers is not None and len(numbers):
            first = int(numbers[0])
        return Place(self.file, first, self.row_group, numbers)


ADVICE = "copy it again, or write it again"  # for damaged files
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
    check: Callable[[pa.RecordBatch, int, Sequence[str]], None] | None = None,
) -> Batches:
    """Yields batches from row `start` on, for tables that are only readable from the beginning.

    `check` validates columns of a batch, by its number; None if Arrow built them itself.
    """
    first = 0
    for number, batch in enumerate(batches):
        kept, skipped = without_rows(batch, start - first)
        if kept.num_rows:
            if check is not None:
                check(batch, number, columns)
            yield Place(name, first + skipped), kept.select(list(columns))
        first += batch.num_rows


def without_rows(batch: pa.RecordBatch, start: int) -> tuple[pa.RecordBatch, int]:
    """Returns a batch without the rows before `start`, and the number of rows removed."""
    skipped = min(max(start, 0), batch.num_rows)
    return (batch.slice(skipped) if skipped else batch), skipped


def each_batch(
    batches: Iterator[pa.RecordBatch], where: str, advice: str = ADVICE
) -> Iterator[pa.RecordBatch]:
    """Yields batches. Errors of pyarrow name `where`."""
    while True:
        with reading(where, advice):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


@contextmanager
def reading(where: str, advice: str = ADVICE, *, kind: str = "") -> Iterator[None]:
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
        if "crypt" in cause.lower():
            advice = "fastio cannot decrypt Parquet files: write it again without encryption"
        raise ShardCorrupt(f"{where} cannot be read{of_kind}: {cause}; {advice}") from error
