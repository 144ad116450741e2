"""Batches, and the reused memory in which their values lie.

The values of each field of a batch lie in a slot: memory that is allocated once and reused for a
later batch when nothing refers to it any more. An array of the batch, or a view of it (a tensor
made with `torch.from_numpy` keeps its array), holds a lease on the slot; when the last one is
garbage-collected, the slot is returned. Each field has its own slots, so that keeping the labels
does not keep the images. If a consumer keeps many batches, more slots are allocated; the loader
does not wait for the consumer to release them.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.engine.ragged import Selectable
from fastio.errors import SampleError

AnyArray = npt.NDArray[Any]
Allocate = Callable[[tuple[int, ...], str], AnyArray]


class SlotPool:
    """Allocates and reuses the slots of one field. Thread-safe: leases may end on any thread.

    Args:
        shape: shape of one row.
        dtype: name of the element type.
        allocate: returns an array of a shape and dtype; called for new slots only.
        keep: number of free slots kept for reuse; with 0 every batch gets new memory.
        smallest: size in bytes below which a batch gets new memory too.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str,
        allocate: Allocate,
        keep: int,
        smallest: int = 0,
    ) -> None:
        self._shape = shape
        self._dtype = dtype
        self._row_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._allocate = allocate
        self._keep = keep
        self._smallest = smallest
        self._free: deque[AnyArray] = deque()
        self.leases: set[Lease] = set()  # those whose views are out

    def acquire(self, rows: int) -> AnyArray:
        """Returns an array (at least `rows`, *shape), the one released last if it is large enough.

        Free arrays that are too small are dropped.
        """
        try:
            # Takes no lock, because garbage collection may return a slot at any point of this loop,
            # also on this thread. `deque.pop` is atomic.
            while True:
                memory = self._free.pop()
                if len(memory) >= rows:
                    return memory
        except IndexError:
            pass
        return self._allocate((rows, *self._shape), self._dtype)

    def reuses(self, memory: AnyArray) -> bool:
        """Returns whether a slot is reused after its batch."""
        return self._keep > 0 and len(memory) * self._row_bytes >= self._smallest

    def release(self, memory: AnyArray) -> None:
        """Returns a slot to the pool."""
        if len(self._free) < self._keep and self.reuses(memory):
            self._free.append(memory)

    def clear(self) -> None:
        """Drops the free slots; slots that are released later are not kept."""
        self._keep = 0
        self._free.clear()


class Lease:
    """The use of a slot by one batch. It ends once: by `release`, or when every view is garbage.

    Weak references may call back on any thread, even during an allocation. Nothing here therefore
    takes a lock; a single atomic pop decides which call ends the lease.
    """

    def __init__(self, pool: SlotPool, memory: AnyArray) -> None:
        self._pool = pool
        self._memory = deque([memory])
        self._watched: weakref.ref[Any] | None = None

    def view(self, rows: int) -> AnyArray:
        """Returns the first `rows` rows of the slot as a view that holds the lease.

        Views returned by earlier calls no longer hold it.
        """
        view = self._memory[0][:rows]
        if not self._pool.reuses(self._memory[0]):
            return view
        # In NumPy a view of a view refers to the underlying array only, so a slice of a batch
        # would not hold the lease. With a memoryview in between it does, and that is watched.
        view = np.asarray(view.data)
        holder: Any = view.base  # NumPy's own memoryview
        self._watched = weakref.ref(holder, self._gone)
        # From here on only the weak reference refers to the lease: the set keeps both alive.
        self._pool.leases.add(self)
        return view

    def _gone(self, reference: weakref.ref[Any]) -> None:
        if reference is self._watched:
            self.release()

    def release(self) -> None:
        """Ends the lease: the slot will be overwritten."""
        self._watched = None
        self._pool.leases.discard(self)
        try:
            memory = self._memory.pop()
        except IndexError:
            return
        self._pool.release(memory)


@dataclass
class Batch:
    """A decoded batch.

    Attributes:
        fields: values of every field: an array (n, ...) for images of one size and for numbers and
            arrays of one shape, else a list of n values. Images are uint8 (n, H, W, C) or
            (n, C, H, W), or float32 if the engine normalised them; a list of uint8 (H, W, C) if
            their sizes differ.
        rows: int64 (n,), the global row of every sample.
        valid: number of samples that count; those after them are padding (see `plan.Plan`).
        epoch: the epoch to which the batch belongs.
        step: number of the batch in the plan that was run.
        next_position: samples of the epoch, over all ranks, that are done after this batch.
        errors: errors of the samples that were skipped or replaced.
        occurrences: as in `plan.PlannedBatch`.
        leases: leases of the fields whose values lie in a slot.
    """

    fields: dict[str, Any]
    rows: npt.NDArray[np.int64]
    valid: int
    epoch: int
    step: int
    next_position: int
    errors: list[SampleError] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict, repr=False)
    occurrences: npt.NDArray[np.int64] | None = None

    def release(self) -> None:
        """Returns the slots now. The arrays in `fields` must not be used afterwards."""
        for lease in self.leases.values():
            lease.release()

    def skip(self, good: npt.NDArray[np.int64]) -> None:
        """Keeps only the `good` rows, int64 indices in order."""
        self.fields = {name: _select(values, good) for name, values in self.fields.items()}
        for name, lease in self.leases.items():  # from here on the shorter views hold the lease
            if not isinstance(self.fields[name], Selectable):
                self.fields[name] = lease.view(len(good))
        self.valid = int(np.count_nonzero(good < self.valid))
        self._number(good)

    def replace(self, bad: list[int], good: npt.NDArray[np.int64]) -> None:
        """Replaces each bad row by the next good row, or by the first one if none follows."""
        sources = np.arange(len(self.rows))
        sources[bad] = good[np.searchsorted(good, bad) % good.size]
        self._number(sources)
        for name, values in self.fields.items():
            if isinstance(values, Selectable):
                self.fields[name] = values.take(sources)
                continue
            for index in bad:
                # In a list, what is done in place to a sample must not be done to its copy too.
                values[index] = copy.deepcopy(values[sources[index]])

    def _number(self, places: npt.NDArray[np.int64]) -> None:
        """Sets the row numbers to those of the samples at some places."""
        self.rows = self.rows[places]
        if self.occurrences is not None:
            self.occurrences = self.occurrences[places]


def _select(values: Any, good: npt.NDArray[np.int64]) -> Any:
    """Returns the good rows of a field. Arrays are compacted in place and stay in their slot."""
    if isinstance(values, Selectable):
        return values.take(good)
    if isinstance(values, list):
        return [values[index] for index in good.tolist()]
    for place, index in enumerate(good.tolist()):
        if place != index:
            values[place] = values[index]
    return values[: len(good)]
