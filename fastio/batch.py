"""Batches, and the memory that they lease.

The values of a field of a batch lie in a slot: memory that is allocated once and used again for a
later batch, when nobody looks at it any more. Whoever holds the array, or a view of it (a tensor
made with `torch.from_numpy` keeps its array), holds the lease; the last one to let go gives the
slot back. Each field has slots of its own, so that who keeps labels does not keep images. A
consumer that keeps many batches makes the ring grow instead of waiting for ever.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio.errors import SampleError

AnyArray = npt.NDArray[Any]
Allocate = Callable[[tuple[int, ...], str], AnyArray]


class SlotPool:
    """Slots of one field that are lent and come back. Thread-safe: leases end on any thread.

    Args:
        shape: of one row.
        dtype: its name.
        allocate: gives an array of a shape and dtype; called for new slots only.
        keep: slots kept for later use; with 0 every batch gets memory of its own.
        smallest: bytes of a batch below which it gets memory of its own too.
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
        """An array (at least `rows`, *shape), used before or new; the one used last if possible."""
        try:
            while True:
                memory = self._free.pop()
                if len(memory) >= rows:
                    return memory
        except IndexError:
            pass
        return self._allocate((rows, *self._shape), self._dtype)

    def reuses(self, memory: AnyArray) -> bool:
        """Whether a slot is used again after its batch."""
        return self._keep > 0 and len(memory) * self._row_bytes >= self._smallest

    def release(self, memory: AnyArray) -> None:
        """Takes a slot back."""
        if len(self._free) < self._keep and self.reuses(memory):
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

    def __init__(self, pool: SlotPool, memory: AnyArray) -> None:
        self._pool = pool
        self._memory = deque([memory])
        self._watched: weakref.ref[Any] | None = None

    def view(self, rows: int) -> AnyArray:
        """The slot's first `rows` rows, as a view that holds the lease.

        Views from an earlier call hold it no longer.
        """
        view = self._memory[0][:rows]
        if not self._pool.reuses(self._memory[0]):
            return view
        # A view of an array's view holds the array alone, in NumPy: a part of a batch would not
        # hold the lease. It does where a memoryview stands in between, which is what is watched.
        view = np.asarray(view.data)
        holder: Any = view.base  # NumPy's own memoryview
        self._watched = weakref.ref(holder, self._gone)
        # Only the reference knows of the lease from here on: without this, both are garbage.
        self._pool.leases.add(self)
        return view

    def _gone(self, reference: weakref.ref[Any]) -> None:
        if reference is self._watched:
            self.release()

    def release(self) -> None:
        """Ends the lease: the slot will be written again."""
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
        fields: every field's values: arrays (n, ...) for images of one size, numbers and arrays of
            one shape, lists of n for the others. Images are uint8 (n, H, W, C) or (n, C, H, W), or
            float32 where the engine normalised them; a list of uint8 (H, W, C) where sizes differ.
        rows: int64 (n,), the global row of every sample.
        valid: samples that count; those after it are padding (see `plan.Plan`).
        epoch: the epoch that the batch belongs to.
        step: its number in the plan that was run.
        next_position: samples of the epoch, over all ranks, that are done with this batch.
        errors: what was skipped or replaced in it.
        occurrences: see `plan.PlannedBatch`.
        leases: of the fields whose values lie in a slot.
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
        """Gives the slots back now: nothing may use the arrays of `fields` any more."""
        for lease in self.leases.values():
            lease.release()
