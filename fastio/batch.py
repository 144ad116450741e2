"""Batches, and the memory that they lease.

The pixels of a batch lie in a slot: memory that is allocated once and used again for a later
batch, when nobody looks at it any more. Whoever holds an array of a batch, or a view of one (a
tensor made with `torch.from_numpy` keeps its array), holds the lease; the last one to let go gives
the slot back. A consumer that keeps many batches makes the ring grow instead of waiting for ever.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.errors import SampleError

AnyArray = npt.NDArray[Any]
Allocate = Callable[[tuple[int, ...], str], AnyArray]


class SlotMemory:
    """The arrays of one slot, one a field, each (rows, ...)."""

    def __init__(self, arrays: dict[str, AnyArray], rows: int) -> None:
        self.arrays = arrays
        self.rows = rows


class SlotPool:
    """Slots that are lent and come back. Thread-safe: leases end on any thread.

    Args:
        shapes: shape of one row and dtype name of every field's array.
        allocate: gives an array of a shape and dtype; called for new slots only.
        keep: slots kept for later use; with 0 every batch gets memory of its own.

    Attributes:
        reuses: whether a slot is ever used again.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[tuple[int, ...], str]], allocate: Allocate, keep: int
    ) -> None:
        self._shapes = shapes
        self._allocate = allocate
        self._keep = keep
        self.reuses = keep > 0
        self._free: deque[SlotMemory] = deque()
        self.leases: set[Lease] = set()  # those whose views are out

    def acquire(self, rows: int) -> SlotMemory:
        """A slot with room for so many rows, used before or new."""
        try:
            while True:
                memory = self._free.pop()
                if memory.rows >= rows:
                    return memory
        except IndexError:
            pass
        arrays = {
            name: self._allocate((rows, *shape), dtype)
            for name, (shape, dtype) in self._shapes.items()
        }
        return SlotMemory(arrays, rows)

    def release(self, memory: SlotMemory) -> None:
        """Takes a slot back."""
        if len(self._free) < self._keep:
            self._free.append(memory)

    def clear(self) -> None:
        """Lets go of the free slots; those that come back later are not kept."""
        self._keep = 0
        self._free.clear()


class Lease:
    """One batch's use of a slot, which ends once: by `release`, or when every view is garbage.

    Weak references call back on any thread, even within an allocation. So nothing here takes a
    lock, and what decides is one atomic pop.
    """

    def __init__(self, pool: SlotPool, memory: SlotMemory) -> None:
        self._pool = pool
        self._memory = deque([memory])
        self._watched: dict[int, weakref.ref[Any]] = {}

    def views(self, rows: int) -> dict[str, AnyArray]:
        """The slot's arrays, the first `rows` rows of each, as views that hold the lease.

        Views from an earlier call hold it no longer.
        """
        views = {name: array[:rows] for name, array in self._memory[0].arrays.items()}
        if not self._pool.reuses:
            return views
        # A view of an array's view holds the array alone, in NumPy: a part of a batch would not
        # hold the lease. It does where a memoryview stands in between, which is what is watched.
        views = {name: np.asarray(view.data) for name, view in views.items()}
        holders: list[Any] = [view.base for view in views.values()]  # NumPy's own memoryviews
        watched = [weakref.ref(holder, self._gone) for holder in holders]
        self._watched = {id(reference): reference for reference in watched}
        # Only the references know of the lease from here on: without this, both are garbage.
        self._pool.leases.add(self)
        return views

    def _gone(self, reference: weakref.ref[Any]) -> None:
        self._watched.pop(id(reference), None)
        if not self._watched:
            self.release()

    def release(self) -> None:
        """Ends the lease: the slot will be written again."""
        self._watched = {}
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
        fields: every field's values: arrays (n, ...) for images of one size, numbers and arrays of
            one shape, lists of n for the others. Images are uint8 (n, H, W, C) or (n, C, H, W), or
            float32 where the engine normalised them; a list of uint8 (H, W, C) where sizes differ.
        rows: int64 (n,), the global row of every sample.
        valid: samples that count; those after it are padding (see `plan.Plan`).
        epoch: the epoch that the batch belongs to.
        step: its number in the plan that was run.
        next_position: samples of the epoch, over all ranks, that are done with this batch.
        errors: what was skipped or replaced in it.
    """

    fields: dict[str, Any]
    rows: npt.NDArray[np.int64]
    valid: int
    epoch: int
    step: int
    next_position: int
    errors: list[SampleError] = field(default_factory=list)
    lease: Lease | None = field(default=None, repr=False)

    def release(self) -> None:
        """Gives the slot back now: nothing may use the arrays of `fields` any more."""
        if self.lease is not None:
            self.lease.release()
