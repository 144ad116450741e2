"""Rows that differ in size: native threads copy them from mapped shards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastio.engine.fields.reader import Reader, Work, shard_error
from fastio.engine.ragged import Int64s, RaggedBatch, Scatter, scatter, variable_axis
from fastio.engine.settings import EngineSettings
from fastio.engine.threads import Threads
from fastio.errors import ShardCorrupt
from fastio.packed.layout import RaggedExtents, RaggedRows
from fastio.packed.rows import Rows

if TYPE_CHECKING:
    from fastio.engine.pending import Pending


@dataclass
class _Read:
    """A batch that native threads copy.

    Attributes:
        batch: the rows; their values are undefined until the threads are done.
        row: int64 (pieces,), row of the batch for each piece of the slot.
    """

    batch: RaggedBatch
    row: Int64s


class SpanReader(Reader):
    """Reads a field whose rows differ in size; see `Reader`.

    Args:
        dataset: dataset of the field.
        source: where its rows lie.
        settings: settings of the engine, which have the form of the batches.
        threads: threads of the engine.
    """

    def __init__(
        self, dataset: Rows, source: RaggedRows, settings: EngineSettings, threads: Threads
    ) -> None:
        self.fields = (source.name,)
        self.pools = {source.name: settings.byte_pool()}
        self._name = source.name
        self._dataset = dataset
        self._source = source
        self._threads = threads
        self._form = settings.ragged.get(source.name, "list")
        axis = variable_axis(source.kind)
        self._axis, self._declared = axis or 0, axis is not None

    def submit(self, batch: Pending, work: Work) -> None:
        """See `Reader`.

        Raises:
            SchemaError: the shapes of the rows cannot form a batch of this form.
            SourceNotFound, ShardCorrupt: a shard cannot be read.
        """
        dtype = self._source.dtype
        found = self._source.locate(batch.rows)
        at = scatter(self._form, found.shapes, self._axis)
        nbytes = math.prod(at.shape) * dtype.itemsize
        memory = work.acquire(self._name, _rounded(nbytes))
        values = memory[:nbytes].view(dtype).reshape(at.shape)
        rows = RaggedBatch(self._form, values, found.shapes, self._axis, self._declared)
        work.detail = _Read(rows, at.row)
        if len(at.row):
            self._copy(batch, work, found, at, memory)

    def finish(self, batch: Pending, work: Work) -> dict[str, Any]:
        """See `Reader`.

        Raises:
            ShardCorrupt: a shard is damaged; it is opened again on the next read.
        """
        read: _Read = work.detail
        failed = [failure for slot in work.slots for failure in slot.failures()]
        broken = {int(read.row[piece]): message for piece, _, message in failed}
        if broken:
            rows = batch.rows[sorted(broken)]
            # The next read opens the shard again, because the file may have been replaced by a good
            # copy.
            self._source.forget(rows)
            raise shard_error(self._dataset, int(rows[0]), broken[min(broken)])
        values = read.batch.values
        view = work.lease(self._name).view(values.nbytes)  # which holds the lease
        read.batch.values = view.view(values.dtype).reshape(values.shape)
        return {self._name: read.batch}

    def _copy(
        self,
        batch: Pending,
        work: Work,
        found: RaggedExtents,
        at: Scatter,
        memory: npt.NDArray[np.uint8],
    ) -> None:
        """Lets threads copy the pieces of rows to their places in memory."""
        item = self._source.dtype.itemsize
        # An empty column lies nowhere.
        begin = np.where(at.count > 0, found.begin[at.row] + at.begin * item, 0)
        nbytes = at.count * item
        try:
            slot = self._threads.native.copy(
                [reader.mapping for reader in found.readers],
                np.ascontiguousarray(found.reader[at.row]),
                begin,
                nbytes,
                at.target * item,
                at.room * item,
                memory,
            )
        except ValueError as error:
            raise self._outside(found, batch.rows, at.row, begin, nbytes) or error from None
        work.slots.append(slot)

    def _outside(
        self, found: RaggedExtents, rows: Int64s, row: Int64s, begin: Int64s, nbytes: Int64s
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
            f"field {self._name!r}, lies outside of the file; run `fastio verify` on the dataset"
        )


def _rounded(nbytes: int) -> int:
    """Returns a rounded-up size, so that slightly larger batches can reuse the memory."""
    step = 1 << max(12, nbytes.bit_length() - 3)
    return -(-nbytes // step) * step
