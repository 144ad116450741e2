"""Batches between submission and delivery, and the thread that starts those of remote datasets."""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.engine.batch import Batch
from fastio.engine.fields import Reader, Work
from fastio.errors import LoaderClosed, SampleError
from fastio.order.plan import PlannedBatch, draw_keys
from fastio.runtime.properties import cached_property
from fastio.runtime.threads import PATIENCE_S, WAIT_S
from fastio.stage import Stager

_LOOK_S = 0.1


@dataclass
class Pending:
    """A submitted batch.

    Attributes:
        planned: the batch.
        seed, epoch: key of the draws of its rows.
        work: the work of each reader.
        failures: errors of bad samples, by their place in the batch.
        followed: whether readers started what follows from the results of the native threads.
        error: error of the whole batch.
        began_s: time at which fetching of its blocks began that ended with `error`.
        blocks: blocks of a remote dataset that were requested for it.
        staged: event that is set once its blocks have arrived and `work` is complete.
        fetch_s: time that was spent waiting for `staged`.
        left_out: whether it was cancelled before it was passed to the threads, or to the stage that
            follows the engine.
        after: the batch as the stage that follows the engine leaves it; None if there is none.
    """

    planned: PlannedBatch
    seed: int = 0
    epoch: int = 0
    work: list[tuple[Reader, Work]] = field(default_factory=list)
    failures: dict[int, SampleError] = field(default_factory=dict)
    followed: bool = False
    error: BaseException | None = None
    began_s: float = math.inf
    blocks: npt.NDArray[np.int64] | None = None
    staged: threading.Event | None = None
    fetch_s: float = 0.0
    left_out: bool = False
    after: Future[Batch | None] | None = None

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """The rows, int64 (n,), contiguous."""
        return np.ascontiguousarray(self.planned.rows, np.int64)

    @cached_property
    def keys(self) -> npt.NDArray[np.int64]:
        """The keys of its rows' random draws: int64 (n,)."""
        return np.ascontiguousarray(draw_keys(self.planned.rows, self.planned.occurrences))

    def submit(self, readers: list[Reader]) -> None:
        """Passes the batch to the threads, once all of its bytes can be read."""
        for reader in readers:
            work = Work(reader.pools)
            self.work.append((reader, work))  # first: what it starts must be known to `cancel`
            reader.submit(self, work)

    def follow(self) -> None:
        """Starts what follows from the results of the native threads, which are done."""
        for reader, work in self.work:
            reader.follow(self, work)
        self.followed = True

    def native(self) -> list[_native.Slot]:
        """Returns the slots on which native threads work."""
        return [slot for _, work in self.work for slot in work.slots]

    def wait(self, timeout_s: float) -> bool:
        """Waits for the native threads; returns True once none of them works on the batch."""
        if self.staged is not None and not self.staged.is_set():
            began_s = time.perf_counter()
            staged = self.staged.wait(timeout_s)
            self.fetch_s += time.perf_counter() - began_s
            if not staged:
                return False
        return all(slot.wait(timeout_s) for slot in self.native())

    def wait_for_futures(self, timeout_s: float) -> bool:
        """Waits for the Python threads and what follows; returns True once all is done."""
        after = [] if self.after is None else [self.after]
        return _all_done([*self._futures(), *after], timeout_s)

    def wait_for_readers(self, timeout_s: float) -> bool:
        """Waits for the Python threads of readers; returns True once every future is done."""
        return _all_done(self._futures(), timeout_s)

    def _futures(self) -> list[Future[Any]]:
        # As a list first: the thread that submits may add some meanwhile.
        return [future for _, work in self.work for future in list(work.futures.values())]

    def withdraw(self) -> None:
        """Cancels the work of a batch that could not be submitted, and waits for its threads."""
        self.cancel()
        # Waits without a limit, because the slots must not be freed while a thread writes to them.
        while not all(slot.wait(WAIT_S) for slot in self.native()):
            pass
        while not self.wait_for_futures(WAIT_S):
            pass

    def release(self) -> None:
        """Takes back the slots, which no thread writes any more, and forgets the batch's errors.

        The traceback of an error refers to frames, and these refer to this batch. If the batch
        referred to the error, this reference cycle would keep the engine, its threads and its
        worker processes until the garbage collector runs.
        """
        for _, work in self.work:
            work.release()
        self.failures = {}
        if self.after is None or self.after.done():
            self.error = self.after = None

    def lose(self) -> None:
        """Leaves the slots to threads that hang."""
        # They are not used again: memory is lost, but no other batch is overwritten.
        for _, work in self.work:
            work.memory = {}

    @property
    def cancelled(self) -> bool:
        """Whether some of its rows may have been cancelled."""
        return self.left_out or any(slot.cancelled for slot in self.native())

    def cancel(self) -> None:
        """Cancels work that has not started; does not wait."""
        after = [] if self.after is None else [self.after]
        # First, so that the feeder drops the batch. If it is just passing it to the threads, the
        # slots that it takes are not known here: `abandon` cancels again once it is done.
        self.left_out = self.left_out or self.staged is not None or bool(after)
        for future in (*after, *self._futures()):
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
        while not (self.wait(WAIT_S) and self.wait_for_futures(WAIT_S)):
            if sys.is_finalizing() or time.monotonic() > deadline_s:
                # A thread may be in a read that never returns, and write to the slot if it does.
                for slot in self.native():
                    slot.abandon()
                return False
        return True


def _all_done(futures: list[Future[Any]], timeout_s: float) -> bool:
    return not futures or not wait(futures, timeout_s).not_done


class Feeder:
    """A thread that starts batches in order, each when its blocks have arrived.

    Args:
        stager: fetches the blocks.
        begin: method of the engine that passes a batch to the threads; it records errors in the
            batch. The feeder has only a weak reference to the engine, and its thread ends when the
            engine is deleted.
    """

    def __init__(self, stager: Stager, begin: Callable[[Pending], None]) -> None:
        self._stager = stager
        self._begin = weakref.WeakMethod(begin)
        self._queue: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self._closed = False
        engine: Any = begin.__self__  # type: ignore[attr-defined]
        weakref.finalize(engine, self._queue.put, None).atexit = False
        self._thread = threading.Thread(target=self._work, name="fastio-feeder", daemon=True)
        self._thread.start()

    def put(self, pending: Pending) -> None:
        """Adds a batch; its `staged` event is set in every case."""
        self._queue.put(pending)

    def close(self, timeout_s: float | None = None) -> None:
        """Ends the thread and waits for it up to a timeout. Waiting batches are left out."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (pending := self._queue.get()) is not None:
            try:
                self._feed(pending)
            except Exception as error:
                assert pending.blocks is not None
                pending.began_s = self._stager.failed_since_s(pending.blocks)
                pending.error = error
            finally:
                # Also after an error, and for a batch that was left out: `abandon` waits for this
                # before it gives the slots to another batch.
                assert pending.staged is not None
                pending.staged.set()

    def _feed(self, pending: Pending) -> None:
        assert pending.blocks is not None
        while not pending.left_out:
            if self._closed or self._begin() is None:
                raise LoaderClosed("the engine was closed")
            if self._stager.wait(pending.blocks, _LOOK_S) and (begin := self._begin()) is not None:
                begin(pending)
                return
