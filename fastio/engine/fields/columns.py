"""Fields of fixed width and windows of tokens: native threads gather them from mapped shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from fastio import _native
from fastio.engine.fields.reader import Reader, Work, shard_error
from fastio.engine.settings import EngineSettings
from fastio.engine.threads import Threads
from fastio.errors import PerformanceWarning, warn
from fastio.packed.comparisons import file_number
from fastio.packed.layout import Layout, ShardExtents, TableField
from fastio.packed.rows import Rows
from fastio.packed.shard import ShardReader
from fastio.runtime.cores import local_ranks
from fastio.runtime.memory import huge_page_share
from fastio.runtime.node import NodeMemory, has_shared_huge_pages
from fastio.runtime.threads import WAIT_S

if TYPE_CHECKING:
    from fastio.engine.pending import Pending

Int64s = npt.NDArray[np.int64]
_ATTEMPTS = 3  # at fetching a damaged shard again
_MOST_MAPPED = 32768  # shards: a process may have 65530 maps on Linux, as it comes
_ENOUGH_HUGE = 0.5  # part of the mapped files that is huge pages already: a copy gains little


class Columns:
    """Rows of a layout, gathered by the engine's threads. Safe to use from several threads.

    Args:
        layout: where the rows lie.
        resident: whether to copy the shards to memory with huge pages; see native/core/table.h. If
            None, they are copied after one epoch if the system maps most of them by small pages.
            The ranks on a machine share one copy. If they cannot, each has its own, but with None
            the shards stay mapped: the page cache has them once for all ranks.

    Attributes:
        layout: as given.
        fields: fields in the order of the native table.
    """

    def __init__(self, layout: Layout, resident: bool | None = False) -> None:
        self.layout = layout
        self._dataset = layout.dataset
        self.fields = tuple(layout.fields)
        described = [field.native() for field in layout.fields]
        self.table = _native.Table(layout.first_row, list(layout.strides), described)
        self._resident = resident
        self._gathered = 0  # rows, until it is known whether to copy
        self._copies = False  # whether the native table has a thread that copies
        self._node: NodeMemory | None = None  # with the copies
        # Else a shard may be let go of between two looks at the table.
        few = len(layout.first_row) <= _MOST_MAPPED
        self._always_kept = few and self._dataset.remote_part is None
        self._set: dict[int, None] = {}  # numbers that the table has, oldest first
        self._lock = threading.Lock()

    def gather(
        self, engine: _native.Engine, rows: Int64s, out: Sequence[npt.NDArray[Any] | None]
    ) -> _native.Slot:
        """Opens the shards of rows and lets threads gather them.

        Args:
            engine: engine whose threads are used.
            rows: int64 (n,), in [0, first_row[-1]).
            out: for each of `fields`, an array with room for n rows; None if it is not wanted.

        Raises:
            IndexError: a row is out of range.
            SourceNotFound, ShardCorrupt, StoreError: a shard cannot be read.
        """
        if self._resident is None:
            self._choose(len(rows))
        if self._always_kept and self.table.complete:
            return engine.gather(self.table, rows, list(out))
        if self._resident:  # not before: a forked child has no use for its parent's thread
            with self._lock:
                self._begin_copies()
        # Shards are opened without the lock, so another thread may drop some of them before it is
        # taken.
        while True:
            missing = self.table.missing(rows).tolist()
            with self._mapped(missing):
                # Another thread may have let go of some, of those that were there, too.
                if not len(self.table.missing(rows)):
                    slot = engine.gather(self.table, rows, list(out))  # has what the table has now
                    if missing:
                        self._let_go()
                    return slot

    @contextmanager
    def _mapped(self, numbers: Sequence[int]) -> Iterator[None]:
        """Opens shards, gives them to the table and holds the lock."""
        # Outside of the lock: a store may have to be waited for.
        readers = {n: self._dataset.shard(self.layout.shard(n)) for n in numbers}
        extents = {n: self.layout.extents(n, reader) for n, reader in readers.items()}
        with self._lock:
            for number, extent in extents.items():
                reader = readers[number]
                what = 0 if self._node is None else _number(reader, extent)
                self.table.set(number, reader.mapping, list(extent.columns), extent.segments, what)
                self._set[number] = None
            yield

    def _choose(self, rows: int) -> None:
        """Decides, when as many rows as an epoch has were gathered, whether to copy the shards."""
        with self._lock:
            self._gathered += rows
            if self._resident is not None or self._gathered <= self.layout.first_row[-1]:
                return
            self._resident = False
            mapped = list(self._set)
        # Without huge pages, a copy gains nothing, and the ranks already share the page cache.
        if local_ranks() > 1 and not has_shared_huge_pages():
            return
        paths = [self._dataset.shard(self.layout.shard(number)).path for number in mapped]
        if huge_page_share(paths) < _ENOUGH_HUGE:
            with self._lock:
                self._resident = self._begin_copies(alone=local_ranks() == 1)
            if self._resident:
                with self._mapped(mapped):  # which copies them
                    pass

    def _begin_copies(self, *, alone: bool = True) -> bool:
        """Has a thread copy the shards that are mapped from now on, unless there is one.

        Args:
            alone: Whether to copy them to memory of this process if it cannot be shared.

        Returns:
            Whether they are copied.
        """
        if self._copies:
            return True
        if local_ranks() > 1:
            key, shards = f"table-{self._layout_hash()}", len(self.layout.first_row) - 1
            try:
                self._node = NodeMemory(key, shards, self._dataset.manifest.nbytes)
            except OSError as error:
                if not alone:
                    return False
                warn(
                    f"each of the {local_ranks()} ranks on this machine makes its own copy of "
                    f"{self._dataset.path} in memory, because they cannot share one ({error}): run "
                    "them as one user in one container, or open the table with resident=False",
                    PerformanceWarning,
                )
        self._copies = True
        self.table.make_resident(None if self._node is None else self._node.native)
        return True

    def _layout_hash(self) -> str:
        """Returns a hash of the dataset and of what is copied of it."""
        # Ranks with the same hash share a copy. The hash contains the path, because a copy of the
        # dataset at another path may be damaged elsewhere.
        dataset = self._dataset.path, self._dataset.fingerprint
        described = [field.native() for field in self.fields], list(self.layout.strides)
        digest = xxhash.xxh3_128(repr((dataset, described)).encode())
        digest.update(self.layout.first_row.tobytes())
        return digest.hexdigest()

    def _let_go(self) -> None:
        """Unmaps shards that a remote dataset no longer keeps, and the oldest beyond the limit."""
        remote = self._dataset.remote_part is not None
        for number in list(self._set):
            gone = remote and not self._dataset.shards.readers.has(self.layout.shard(number))
            if gone or len(self._set) > _MOST_MAPPED:
                del self._set[number]
                self.table.unset(number)

    def renew(self, rows: Int64s) -> bool:
        """Opens damaged shards of rows again; returns False if that cannot help."""
        first_row = self.layout.first_row
        numbers = np.unique(np.searchsorted(first_row, rows, side="right") - 1).tolist()
        with self._lock:
            for number in numbers:
                self._set.pop(number, None)
                self.table.unset(number)
        return self._dataset.shards.renew([self.layout.shard(number) for number in numbers])

    def close(self) -> None:
        """Stops the copying of resident shards."""
        self.table.close()
        if self._node is not None:
            self._node.close()


def _number(reader: ShardReader, extent: ShardExtents) -> int:
    """Returns a number that identifies columns of a shard's file on this machine; not 0."""
    what = repr((file_number(reader), list(extent.columns)))
    return xxhash.xxh3_64_intdigest(what.encode()) or 1


class ArrayColumns:
    """Rows of arrays in memory, gathered by the engine's threads.

    Args:
        dataset: dataset with at least one row.
        names: names of the fields, of which those are read that `Rows.array_columns` returns.

    Attributes:
        fields: a field for each array.
    """

    def __init__(self, dataset: Rows, names: Sequence[str]) -> None:
        self._dataset, self._names = dataset, tuple(names)
        self._arrays = dataset.array_columns(self._names)
        self.fields = tuple(
            TableField(name, array.shape[1:], array.dtype.name, column, 0, array[0].nbytes)
            for column, (name, array) in enumerate(self._arrays.items())
        )
        self._table = self._made()

    def _made(self) -> _native.Table:
        """Returns the table of the arrays."""
        columns = list(self._arrays.values())
        table = _native.Table(
            np.array([0, len(columns[0])], np.int64),
            [array.strides[0] for array in columns],
            [field.native() for field in self.fields],
        )
        table.set_memory(0, columns)
        return table

    def gather(
        self, engine: _native.Engine, rows: Int64s, out: Sequence[npt.NDArray[Any] | None]
    ) -> _native.Slot:
        """See `Columns`."""
        arrays = self._dataset.array_columns(self._names)
        if arrays is not self._arrays:  # they lie elsewhere now
            self._arrays = arrays
            self._table = self._made()
        return engine.gather(self._table, rows, list(out))

    def renew(self, rows: Int64s) -> bool:
        """Returns False: nothing in memory is damaged."""
        return False

    def close(self) -> None:
        """Does nothing: the arrays belong to the caller."""


class ColumnReader(Reader):
    """Reads all fields of some columns with one native call; see `Reader`.

    Args:
        dataset: dataset of the fields.
        columns: the columns, in shards or in memory.
        settings: settings of the engine.
        threads: threads of the engine.
    """

    def __init__(
        self,
        dataset: Rows,
        columns: Columns | ArrayColumns,
        settings: EngineSettings,
        threads: Threads,
    ) -> None:
        self._dataset = dataset
        self._threads = threads
        self._columns = columns
        self.fields = tuple(field.name for field in self._columns.fields)
        self.pools = {
            field.name: settings.pool(field.shape, field.dtype) for field in self._columns.fields
        }

    def submit(self, batch: Pending, work: Work) -> None:
        """See `Reader`."""
        for name in self.fields:
            work.acquire(name, len(batch.rows))
        work.slots.append(self._gather(batch, work))

    def finish(self, batch: Pending, work: Work) -> dict[str, Any]:
        """See `Reader`. Rows of damaged shards are read again, after the shard was fetched again.

        Raises:
            ShardCorrupt: a shard is damaged.
        """
        for _ in range(_ATTEMPTS):
            broken = [place for place, _, _ in work.slots[0].failures()]
            if not broken or not self._columns.renew(batch.rows[broken]):
                break
            work.slots[0] = self._gather(batch, work)
            while not work.slots[0].wait(WAIT_S):
                pass
        for place, _, message in work.slots[0].failures():
            raise shard_error(self._dataset, int(batch.rows[place]), message)
        return {name: work.lease(name).view(len(batch.rows)) for name in self.fields}

    def close(self) -> None:
        """Stops the copying of resident shards."""
        self._columns.close()

    def _gather(self, batch: Pending, work: Work) -> _native.Slot:
        out = [work.memory[name] for name in self.fields]
        return self._columns.gather(self._threads.native, batch.rows, out)
