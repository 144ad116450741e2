"""Rows that differ in size: which of their bytes go where in the memory of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.engine.batch import AnyArray
from fastio.engine.fields.reader import InWork, Work, shard_error
from fastio.engine.ragged import Form, Int64s, RaggedBatch, open_axis, places
from fastio.engine.settings import EngineSettings
from fastio.engine.threads import Threads
from fastio.errors import ShardCorrupt
from fastio.packed.ragged import RaggedPlaces, RaggedRows
from fastio.packed.rows import Rows

Memory = npt.NDArray[np.uint8]


@dataclass
class SpanRead:
    """A field of a batch that native threads copy.

    Attributes:
        batch: the rows; their values are undefined until `slot` is done.
        memory: uint8, memory of the rows.
        slot: the work; None if there are no bytes.
        row: int64 (pieces,), row of the batch for each piece of the slot.
    """

    batch: RaggedBatch
    memory: Memory
    slot: _native.Slot | None = None
    row: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def failures(self) -> dict[int, str]:
        """Returns the rows of the batch that could not be read, and why, after the slot is done."""
        found = [] if self.slot is None else self.slot.failures()
        return {int(self.row[piece]): message for piece, _, message in found}


class Spans:
    """A field whose rows differ in size, copied by the engine's threads.

    Args:
        source: where the rows lie.
        form: form of its batches.
    """

    def __init__(self, source: RaggedRows, form: Form) -> None:
        self.source = source
        self._form = form
        self._dtype = source.dtype
        axis = open_axis(source.kind)
        self._axis, self._declared = axis or 0, axis is not None

    def read(
        self, engine: _native.Engine, rows: Int64s, acquire: Callable[[int], Memory]
    ) -> SpanRead:
        """Looks up the offsets and shapes of rows and lets threads copy them.

        Args:
            engine: engine whose threads are used.
            rows: int64 (n,), global row numbers.
            acquire: function that returns memory of at least the given number of bytes.

        Raises:
            SchemaError: the shapes of the rows cannot form a batch of this form.
            SourceNotFound, ShardCorrupt: a shard cannot be read.
        """
        found = self.source.locate(rows)
        at = places(self._form, found.shapes, self._axis)
        item = self._dtype.itemsize
        memory = acquire(math.prod(at.shape) * item)
        values = memory[: math.prod(at.shape) * item].view(self._dtype).reshape(at.shape)
        batch = RaggedBatch(self._form, values, found.shapes, self._axis, self._declared)
        if not len(at.row):
            return SpanRead(batch, memory)
        # An empty column lies nowhere.
        begin = np.where(at.count > 0, found.begin[at.row] + at.begin * item, 0)
        source = np.ascontiguousarray(found.reader[at.row])
        nbytes = at.count * item
        try:
            slot = engine.copy(
                [reader.mapping for reader in found.readers],
                source,
                begin,
                nbytes,
                at.target * item,
                at.room * item,
                memory,
            )
        except ValueError as error:
            raise self._outside(found, rows, at.row, begin, nbytes) or error from None
        return SpanRead(batch, memory, slot, at.row)

    def _outside(
        self, found: RaggedPlaces, rows: Int64s, row: Int64s, begin: Int64s, nbytes: Int64s
    ) -> ShardCorrupt | None:
        """Returns an error for the first piece outside its shard's file; None if there is none.

        Offsets were checked when they were first read, so they have changed in the file since.
        """
        sizes = np.array([len(reader.mapping.data) for reader in found.readers], np.int64)
        wrong = (begin < 0) | (nbytes < 0) | (begin > sizes[found.reader[row]] - nbytes)
        if not wrong.any():
            return None
        first = int(row[np.argmax(wrong)])
        return ShardCorrupt(
            f"{found.readers[found.reader[first]].path}: row {int(rows[first])} of the dataset, "
            f"field {self.source.name!r}, leaves the file; run `fastio verify` on the dataset"
        )


class SpanReader:
    """Reads a field whose rows differ in size; see `Reader`.

    Args:
        dataset: dataset of the field.
        source: where its rows lie.
        settings: settings of the engine.
        threads: threads of the engine.
    """

    def __init__(
        self, dataset: Rows, source: RaggedRows, settings: EngineSettings, threads: Threads
    ) -> None:
        self.fields = (source.name,)
        self.pools = {source.name: settings.byte_pool()}
        self._name = source.name
        self._dataset = dataset
        self._spans = Spans(source, settings.ragged.get(source.name, "list"))
        self._threads = threads

    def submit(self, batch: InWork, work: Work) -> None:
        """See `Reader`."""

        def acquire(nbytes: int) -> AnyArray:
            return work.acquire(self._name, _rounded(nbytes))

        read = work.detail = self._spans.read(self._threads.native, batch.rows, acquire)
        if read.slot is not None:
            work.slots.append(read.slot)

    def follow(self, batch: InWork, work: Work) -> None:
        """Does nothing."""

    def finish(self, batch: InWork, work: Work) -> dict[str, Any]:
        """See `Reader`.

        Raises:
            ShardCorrupt: a shard is damaged; it is opened again on the next read.
        """
        read: SpanRead = work.detail
        broken = read.failures()
        if broken:
            rows = batch.rows[sorted(broken)]
            self._spans.source.forget(rows)
            raise shard_error(self._dataset, int(rows[0]), broken[min(broken)])
        values = read.batch.values
        view = work.lease(self._name).view(values.nbytes)  # which holds the lease
        read.batch.values = view.view(values.dtype).reshape(values.shape)
        return {self._name: read.batch}

    def close(self) -> None:
        """Does nothing: the dataset has the shards."""


def _rounded(nbytes: int) -> int:
    """Returns a rounded-up size, so that slightly larger batches can reuse the memory."""
    step = 1 << max(12, nbytes.bit_length() - 3)
    return -(-nbytes // step) * step
