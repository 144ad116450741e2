"""What all readers of tables share: base classes, row groups, the origin of rows, and errors."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import FastioError, ShardCorrupt, SourceNotFound
from fastio.packed.grouping import starts_of
from fastio.runtime.ahead import Ahead
from fastio.runtime.cores import machine_cores
from fastio.runtime.files import most_open
from fastio.runtime.memory import ReusedMemory
from fastio.runtime.properties import cached_property
from fastio.sources.table.data import Data
from fastio.sources.table.objects import TableFile

_KEPT_BYTES = 64 << 20  # of decoded columns, for each thread
_OPEN_FILES = 4  # for each thread, if the limit of open files allows it
_ANY_BYTES = 1 << 62


@dataclass(frozen=True)
class Origin:
    """The origin of some rows of one file.

    Attributes:
        file: The path, or the name of a table in memory.
        first_row: The number of the first row in the file, from 0.
        row_group: The number of the row group; None if the file has none.
        numbers: int64, the numbers of all rows if they are not consecutive because of a filter.
        rows_before: Returns what is added to the numbers of rows, if they do not count from the
            beginning of the file; called for messages only, because it may read the file.
    """

    file: str
    first_row: int
    row_group: int | None = None
    numbers: NDArray[np.int64] | None = None
    rows_before: Callable[[], int] | None = None

    def column(self, name: str) -> str:
        """Returns the file and a column, as messages begin."""
        return f"{self.file}: column {name!r}"

    def row(self, place: int) -> int:
        """Returns the number in the file of one of the rows."""
        row = self.first_row + place if self.numbers is None else int(self.numbers[place])
        return row if self.rows_before is None else row + self.rows_before()

    def rows(self, count: int) -> str:
        """Returns a description of the first `count` rows."""
        group = "" if self.row_group is None else f" (row group {self.row_group})"
        return f"rows {self.row(0)} to {self.row(count - 1)}{group}"

    def after(self, rows: int) -> Origin:
        """Returns the origin of the rows from number `rows` on, which may be none."""
        if not rows:
            return self
        numbers = None if self.numbers is None else self.numbers[rows:]
        first = self.first_row + rows
        if numbers is not None and len(numbers):
            first = int(numbers[0])
        return replace(self, first_row=first, numbers=numbers)


ADVICE = "copy it again, or write it again"  # for damaged files
Batches = Iterator[tuple[Origin, pa.RecordBatch]]
Columns = Mapping[str, pa.DataType]  # the columns that are read, and their types
Place = tuple[int, int, int]  # of a part of a table: one row of `Spans.places`


@dataclass(frozen=True)
class Spans:
    """The parts of a table, in order.

    Attributes:
        places: int64 (parts, 3): where each part begins and ends, in what the table counts (row
            groups, rows or bytes), and its approximate size in bytes.
        is_whole: Whether the table has one part because it can only be read from its beginning.
    """

    places: NDArray[np.int64]
    is_whole: bool = False

    @staticmethod
    def whole(nbytes: int) -> Spans:
        """Returns the only part of a table that is read from its beginning to its end."""
        return Spans(np.array([[0, 1, max(nbytes, 1)]], np.int64), True)

    @staticmethod
    def of_lines(nbytes: int, step: int) -> Spans:
        """Returns parts of about `step` bytes of a file, see `cuts.line_bytes`."""
        count = max(1, round(nbytes / step))
        edges = np.linspace(0, nbytes, count + 1).astype(np.int64)
        return Spans(np.stack([edges[:-1], edges[1:], np.maximum(np.diff(edges), 1)], axis=1))


class Table(ABC):
    """A table in one file or in memory.

    Attributes:
        name: The path, or another name for messages.
        schema: The columns.
        rows: The number of rows; None if only reading the table tells.
        is_text: Whether the types were inferred from text.
        classes: The names of classes, by column path; None if the metadata of the schema has them.
    """

    name: str
    schema: pa.Schema
    rows: int | None = None
    is_text: bool = False
    classes: Mapping[tuple[str, ...], tuple[str, ...]] | None = None

    @abstractmethod
    def batches(self, columns: Columns, start: int, rows: int) -> Batches:
        """Yields the rows from number `start` on.

        Args:
            columns: The columns to read, with the types that they have in text files.
            start: The first row; 0 if the table's number of rows is None.
            rows: The approximate number of rows in a batch.

        Raises:
            ShardCorrupt: If the file is damaged. For Parquet the message names the row group.
            StoreError: If the file's store does not deliver it.
        """

    def spans(self, columns: Iterable[str], step: int) -> Spans | None:
        """Returns the parts that can be read by themselves; None if the table is read only once.

        Args:
            columns: The columns that will be read.
            step: The wanted size of a part in bytes.
        """
        return None

    def span(self, columns: Columns, place: Place, rows: int, most: int | None = None) -> Batches:
        """Yields the rows of a part, which is the whole table if it is not divided.

        Args:
            columns, rows: As for `batches`, with its errors.
            place: The part.
            most: The number of bytes after which reading stops, approximately. If None, the whole
                part is read.
        """
        return self.batches(columns, 0, rows)


def rows_within(rows: int, nbytes: int, most: int | None) -> int:
    """Returns how many of the rows of a part, which has `nbytes`, are in its first `most` bytes."""
    return rows if most is None else min(rows, -(-rows * most // nbytes))


def first_rows(batches: Batches, count: int) -> Batches:
    """Yields the first `count` rows, and reads no further."""
    if count <= 0:
        return
    for origin, batch in batches:
        yield origin, batch.slice(0, count)
        count -= batch.num_rows
        if count <= 0:
            return


def _most_open() -> int:
    """Returns how many files a thread may keep open.

    All threads together keep at most a quarter of the process's limit: with the usual limit of
    1,024 files, each of the 128 threads of a large machine keeps two.
    """
    threads = machine_cores()
    return max(1, most_open(_OPEN_FILES * threads) // threads)


class Handles:
    """The decoder, memory and open files that one thread at a time uses to read row groups.

    Attributes:
        decoder: Decodes columns.
        memory: The memory of decoded columns.
    """

    def __init__(self) -> None:
        self.decoder = _native.ColumnDecoder()
        self.memory = ReusedMemory(_KEPT_BYTES)
        self._files: OrderedDict[Hashable, Any] = OrderedDict()  # ordered by last use
        self._most = _most_open()

    def opened(self, key: Hashable, opener: Callable[[], Any]) -> Any:
        """Returns an open file, and closes the least recently used one if there are too many."""
        file = self._files.pop(key, None)
        if file is None:
            file = opener()
        self._files[key] = file
        if len(self._files) > self._most:
            self._files.popitem(last=False)
        return file


class _Borrowed:
    """Handles that go back to `idle` when the thread that has them ends."""

    def __init__(self, idle: deque[Handles]) -> None:
        self._idle = idle
        self._pid = os.getpid()
        try:
            self.handles = idle.pop()
        except IndexError:
            self.handles = Handles()

    def __del__(self) -> None:
        # A forked child calls this for the parent's other threads, which were still working.
        if self._pid == os.getpid():
            self._idle.append(self.handles)


class _OfThread(threading.local):
    """The handles of each thread. Those of threads that ended are used by later ones.

    The threads of a loader end with each epoch. Mapping files and allocating memory again in each
    epoch would take 5% of its time.
    """

    def __init__(self) -> None:
        self.borrowed: _Borrowed | None = None


class AtHand:
    """The bytes of row groups: local files stay open in each thread, others are fetched ahead.

    Args:
        nbytes: The memory limit in bytes for fetches that are running or not taken yet.
    """

    def __init__(self, nbytes: int) -> None:
        self._ahead: Ahead[Data] = Ahead(nbytes)
        self._of_thread = _OfThread()
        self._idle: deque[Handles] = deque()

    def __getstate__(self) -> dict[str, Any]:
        # Open files are not shared between processes.
        return {"_ahead": self._ahead}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _of_thread=_OfThread(), _idle=deque())

    @property
    def handles(self) -> Handles:
        """The handles of this thread."""
        if self._of_thread.borrowed is None:
            self._of_thread.borrowed = _Borrowed(self._idle)
        return self._of_thread.borrowed.handles

    def opened(self, key: Hashable, opener: Callable[[], Any]) -> Any:
        """Returns a file that `opener` opens, and that this thread keeps open for a while."""
        return self.handles.opened(key, opener)

    def take(self, file: TableFile, key: Hashable, fetch: Callable[[], Data]) -> Data:
        """Returns the bytes of a row group in a store, which is identified by file and key."""
        return self._ahead.take((file.name, key), fetch)

    def begin(self, file: TableFile, key: Hashable, nbytes: int, fetch: Callable[[], Data]) -> bool:
        """Starts to fetch `nbytes` bytes that `take` will ask for; see `Grouped.ahead`."""
        return not file.remote or self._ahead.begin((file.name, key), nbytes, fetch)

    def close(self) -> None:
        """Forgets what was fetched and not taken, and closes the files of threads that ended."""
        self._ahead.clear()
        self._idle.clear()


class Grouped(Table):
    """A table whose row groups can be read separately, in any order and by any thread.

    Attributes:
        has_groups: Whether the file has row groups. If False, they are parts of other data.
        lends: Whether batches are views of a mapped file, which other programs can change.
        skip: The numbers of row groups that `batches` leaves out.
    """

    has_groups = True
    lends = False
    skip: frozenset[int] = frozenset()

    @abstractmethod
    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """Returns each group's rows, and the approximate bytes of its `varying` columns."""

    @abstractmethod
    def read(
        self, number: int, columns: Sequence[str], rows: int | None, threads: bool, at_hand: AtHand
    ) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a row group.

        Args:
            number: The number of the row group.
            columns: The names of the columns to read.
            rows: The most rows of a batch. If None, the fastest size is chosen.
            threads: Whether several threads may decode.
            at_hand: Has the files that are open, and what was fetched ahead.
        """

    def ahead(self, number: int, columns: Sequence[str], at_hand: AtHand) -> bool:
        """Starts to fetch a row group. Returns False if there is no memory for it now."""
        return True

    def batches(self, columns: Columns, start: int, rows: int) -> Batches:
        """See `Table`. The next row group is fetched meanwhile."""
        firsts = self._firsts
        wanted = [n for n, end in enumerate(firsts[1:].tolist()) if end > start]
        return self._batches_of(wanted, list(columns), start, rows)

    def spans(self, columns: Iterable[str], step: int) -> Spans | None:
        """See `Table`. Each row group is a part."""
        groups = enumerate(self.groups(list(columns)))
        found = [(n, n + 1, max(nbytes, rows)) for n, (rows, nbytes) in groups if rows]
        places = np.array(found, np.int64).reshape(-1, 3)
        return Spans(places[~np.isin(places[:, 0], list(self.skip))] if self.skip else places)

    def span(self, columns: Columns, place: Place, rows: int, most: int | None = None) -> Batches:
        """See `Table`."""
        begin, end, nbytes = place
        count = rows_within(int(self._firsts[end] - self._firsts[begin]), nbytes, most)
        found = self._batches_of(range(begin, end), list(columns), 0, min(rows, count))
        return first_rows(found, count)

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """The first row of each row group, and the number of rows: int64 (groups + 1,)."""
        return starts_of([count for count, _ in self.groups([])])

    def _batches_of(
        self, groups: Sequence[int], columns: Sequence[str], start: int, rows: int
    ) -> Batches:
        """Yields the rows of some row groups from number `start` of the table on."""
        wanted = [number for number in groups if number not in self.skip]
        at_hand = AtHand(_ANY_BYTES)
        try:
            for number, following in zip_longest(wanted, wanted[1:]):
                group = number if self.has_groups else None
                where = self.name if group is None else f"{self.name}, row group {group}"
                if following is not None:
                    self.ahead(following, columns, at_hand)
                # Batches before `start` are read and left out, because a part of a row group cannot
                # be read.
                first = int(self._firsts[number])
                for batch in each_batch(self.read(number, columns, rows, True, at_hand), where):
                    skipped = min(max(start - first, 0), batch.num_rows)
                    if skipped < batch.num_rows:
                        yield Origin(self.name, first + skipped, group), batch.slice(skipped)
                    first += batch.num_rows
        finally:
            at_hand.close()


def from_beginning(
    name: str,
    batches: Iterator[pa.RecordBatch],
    columns: Iterable[str],
    check: Callable[[pa.RecordBatch, int, Iterable[str]], None] | None = None,
) -> Batches:
    """Yields all rows of a table that is only readable from its beginning.

    `check` validates columns of a batch, by its number; None if Arrow built them itself.
    """
    first = 0
    for number, batch in enumerate(batches):
        if batch.num_rows:
            if check is not None:
                check(batch, number, columns)
            yield Origin(name, first), batch.select(list(columns))
        first += batch.num_rows


def sliced(batch: pa.RecordBatch, rows: int | None) -> Iterator[pa.RecordBatch]:
    """Returns the parts of a batch that have at most `rows` rows; if None, the whole."""
    step = rows or max(batch.num_rows, 1)
    return (batch.slice(begin, step) for begin in range(0, batch.num_rows, step))


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
        if "crypt" in cause.lower():  # pyarrow has no class of errors for it
            advice = "fastio cannot decrypt Parquet files: write it again without encryption"
        elif "all lists to be of size" in cause:  # 25 is the newest on Python 3.10
            advice = "pyarrow before 26 cannot read nulls among fixed-size lists of Parquet files"
        raise ShardCorrupt(f"{where} cannot be read{of_kind}: {cause}; {advice}") from error
