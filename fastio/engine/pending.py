"""Batches between submission and delivery."""

from __future__ import annotations

import math
import sys
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.engine.audio import Clip
from fastio.engine.batch import AnyArray
from fastio.engine.fields import SpanRead
from fastio.errors import SampleError
from fastio.order.plan import PlannedBatch, draw_keys
from fastio.runtime.threads import PATIENCE_S

WAIT_S = 0.05  # between two looks at signals and the deadline


@dataclass
class Pending:
    """A submitted batch; `seed` and `epoch` key the draws of its rows."""

    planned: PlannedBatch
    seed: int = 0
    epoch: int = 0
    memory: dict[str, AnyArray] = field(default_factory=dict)  # slots, by field
    slots: dict[str, _native.Slot] = field(default_factory=dict)  # of images, by field
    gathered: _native.Slot | None = None  # of the fields of fixed width
    audio: dict[str, list[Future[Clip]]] = field(default_factory=dict)
    spans: dict[str, SpanRead] = field(default_factory=dict)  # of rows that differ in size
    foreign: dict[str, dict[int, Future[AnyArray | None]]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    failures: dict[int, SampleError] = field(default_factory=dict)  # of `values`, by place
    sorted_out: bool = False  # every image that is Pillow's has its future
    error: Exception | None = None
    began_s: float = math.inf  # when the fetching of its blocks began that ended with `error`
    blocks: npt.NDArray[np.int64] | None = None  # that were asked for, of a remote dataset
    staged: threading.Event | None = None  # set once they are there and `slots` is complete
    fetch_s: float = 0.0  # that it was waited for until they were
    left_out: bool = False  # cancelled before it was given to the threads

    @cached_property
    def keys(self) -> npt.NDArray[np.int64]:
        """The keys of its rows' random draws: int64 (n,)."""
        return np.ascontiguousarray(draw_keys(self.planned.rows, self.planned.occurrences))

    def native(self) -> list[_native.Slot]:
        """Returns the slots on which native threads work."""
        slots = list(self.slots.values())
        slots += [read.slot for read in self.spans.values() if read.slot is not None]
        return slots if self.gathered is None else [*slots, self.gathered]

    def wait(self, timeout_s: float) -> bool:
        """Waits for the native threads; returns True once none of them works on the batch."""
        if self.staged is not None and not self.staged.is_set():
            began_s = time.perf_counter()
            staged = self.staged.wait(timeout_s)
            self.fetch_s += time.perf_counter() - began_s
            if not staged:
                return False
        return all(slot.wait(timeout_s) for slot in self.native())

    def wait_for_pillow(self, timeout_s: float) -> bool:
        """Waits for the Python threads; returns True once every future is done."""
        futures = self._futures()
        return not futures or not wait(futures, timeout_s).not_done

    def clips(self) -> list[Future[Clip]]:
        """Returns the futures of the sound files."""
        return [future for clips in self.audio.values() for future in clips]

    def _futures(self) -> list[Future[Any]]:
        found: list[Future[Any]] = [f for of in self.foreign.values() for f in of.values()]
        return [*found, *self.clips()]

    @property
    def cancelled(self) -> bool:
        """Whether some of its rows may have been cancelled."""
        return self.left_out or any(slot.cancelled for slot in self.native())

    def cancel(self) -> None:
        """Cancels work that has not started; does not wait."""
        self.left_out = self.left_out or self.staged is not None
        for future in self._futures():
            future.cancel()
        for slot in self.native():
            slot.cancel()

    def abandon(self, deadline_s: float | None = None) -> bool:
        """Cancels the work and waits for the rows in progress, which takes milliseconds.

        Args:
            deadline_s: time of `time.monotonic` until which to wait; None: `PATIENCE_S` from now.

        Returns:
            Whether its memory is free. If a read hangs, the threads keep the memory.
        """
        self.cancel()
        deadline_s = time.monotonic() + PATIENCE_S if deadline_s is None else deadline_s
        if self.staged is not None:
            while not self.staged.wait(WAIT_S):
                if sys.is_finalizing() or time.monotonic() > deadline_s:
                    return False  # the thread that would set it has ended, or hangs
            self.cancel()  # what was given to the threads meanwhile
        while not (self.wait(WAIT_S) and self.wait_for_pillow(WAIT_S)):
            if sys.is_finalizing() or time.monotonic() > deadline_s:
                for slot in self.native():
                    slot.abandon()
                return False
        return True
