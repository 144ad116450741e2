"""The batches of one run, in order."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from fastio.batch import Batch
from fastio.engine.pending import WAIT_S, Pending
from fastio.errors import LoaderClosed, LoaderTimeout, StoreError
from fastio.plan import PlannedBatch
from fastio.staging import Lookahead
from fastio.threads import PATIENCE_S


class Decoder(Protocol):
    """What a stream asks of its engine."""

    @property
    def name(self) -> str:
        """Of the dataset, for messages."""

    def submit(self, planned: PlannedBatch, seed: int, epoch: int) -> Pending:
        """Puts a batch to work; what fails is noted in it."""

    def sort_out(self, pending: Pending) -> None:
        """Once the native threads are done: gives Pillow what turned out to be its."""

    def finish(self, pending: Pending) -> Batch | None:
        """The batch, all work on it done; None when every row of it was skipped."""

    def again(self, failed: Pending) -> Pending:
        """Puts a batch to work again whose bytes could not be fetched."""

    def give_back(self, pending: Pending) -> None:
        """Takes the slot of a batch that is not delivered."""

    def lose(self, pending: Pending) -> None:
        """Forgets the slot of a batch that hangs: its memory stays with the threads in it."""


class Watched(Protocol):
    """Data that may be replaced while they are read."""

    def look(self) -> None:
        """Raises SourceChanged where that is seen to have happened; called for every batch."""

    def finish_epoch(self) -> None:
        """Raises SourceChanged, or another error where rows that were read may be wrong."""


class BatchStream:
    """The batches of one run, in order. An iterator; `close` ends it early.

    Used by one thread at a time. After an error from next() the stream goes on with the next
    batch.
    """

    def __init__(
        self,
        engine: Decoder,
        plan: Iterator[PlannedBatch],
        seed: int,
        epoch: int,
        ahead: int,
        timeout_s: float,
        watched: Watched | None = None,
    ) -> None:
        self._engine = engine
        self._plan: Iterator[PlannedBatch] | None = plan
        self._source = plan
        self._seed = seed
        self._epoch = epoch
        self._ahead = ahead
        self._timeout_s = timeout_s
        self._watched = watched
        self._pending: deque[Pending] = deque()
        self._left: PlannedBatch | None = None  # taken from the plan, and not put to work
        self._told_s = 0.0  # when next() last raised what could not be fetched
        self._pid = os.getpid()
        self._closed = False

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            SampleError: a sample of it is bad, under on_error="raise".
            LoaderTimeout: it took longer than the timeout; next() goes on waiting for it.
            LoaderClosed: another thread closed the stream meanwhile; or this is a forked child,
                whose parent has the threads.
            StoreError: its bytes cannot be fetched; the next call tries the same batch again.
            SourceChanged: the data were replaced; every further call says so too.
            ShardCorrupt: rows that were delivered may be wrong; likewise.
            StopIteration: there are no more.
        """
        while True:
            self._check_process()
            self._fill(self._ahead + 1)
            if not self._pending:
                if self._watched is not None:
                    self._watched.finish_epoch()
                raise StopIteration
            pending = self._pending[0]
            self._wait(pending)
            if self._watched is not None:
                self._watched.look()  # after the rows were read
            self._take(pending)
            try:
                batch = self._finish(pending)
            except StoreError:
                self._try_again(pending)
                if pending.began_s < self._told_s:
                    continue  # the outage that was told of already
                self._told_s = time.monotonic()
                raise
            if isinstance(self._source, Lookahead):
                self._source.finished(pending.planned)
            if batch is not None:
                return batch

    def _finish(self, pending: Pending) -> Batch | None:
        try:
            if pending.error is not None:
                raise pending.error
            return self._engine.finish(pending)
        except StoreError:
            raise
        except BaseException:
            self._engine.give_back(pending)
            raise

    def _try_again(self, pending: Pending) -> None:
        """Puts the batch to work again, and those behind it that could not be fetched either."""
        self._pending.appendleft(pending)
        for place, failed in enumerate(self._pending):
            if failed is pending or isinstance(failed.error, StoreError):
                self._pending[place] = self._engine.again(failed)
                self._engine.give_back(failed)

    @property
    def ended(self) -> bool:
        """Whether all batches were delivered."""
        return self._plan is None and not self._pending

    def ready(self) -> bool:
        """Whether next() would return, or raise, without waiting."""
        self._check_process()
        self._fill(self._ahead + 1)
        return not self._pending or self._is_done(self._pending[0], 0.0)

    def close(self) -> None:
        """Cancels what is in work; returns when no thread works for this stream any more."""
        self._closed = True
        self._plan = None
        if self._pid != os.getpid():
            self._pending.clear()
            return
        self._give_up()
        if isinstance(self._source, Lookahead):
            self._source.close()

    def cancel(self) -> None:
        """Leaves out what is not begun yet; waits for nothing."""
        self._closed = True
        self._plan = None
        for pending in list(self._pending):
            pending.cancel()

    def _give_up(self) -> None:
        """Takes all batches out of the queue and ends the work on them; several threads may."""
        pending = []
        with suppress(IndexError):
            while True:
                pending.append(self._pending.popleft())
        for batch in pending:
            batch.cancel()
        deadline_s = time.monotonic() + PATIENCE_S
        for batch in pending:
            if batch.abandon(deadline_s):
                self._engine.give_back(batch)
            else:
                self._engine.lose(batch)

    def __del__(self) -> None:
        # Not close(): garbage may be collected on any thread, also on one of those that Pillow
        # works on, which must not be waited for there. They and the native slots keep the memory.
        if self._pid != os.getpid():
            return
        for batch in self._pending:
            batch.cancel()
        for batch in self._pending:
            if batch.wait(WAIT_S) and batch.wait_for_pillow(0.0):
                self._engine.give_back(batch)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise LoaderClosed("the stream belongs to the parent process: run() again in a child")

    def _fill(self, wanted: int) -> None:
        while (plan := self._plan) is not None and len(self._pending) < wanted:
            planned = self._left or next(plan, None)
            if planned is None:
                self._plan = None
                return
            self._left = planned  # so that an interrupt does not lose it
            pending = self._engine.submit(planned, self._seed, self._epoch)
            self._left = None
            self._pending.append(pending)
            if self._closed:  # by another thread, which may not have seen this batch
                self._give_up()
                raise LoaderClosed("closed while a batch was waited for")

    def _take(self, pending: Pending) -> None:
        """Takes the first batch out of the queue, unless another thread was faster to close it."""
        closed = pending.error is None and pending.cancelled
        try:
            if not closed:
                self._pending.popleft()
        except IndexError:
            closed = True
        if closed:
            raise LoaderClosed("closed while a batch was waited for")

    def _wait(self, pending: Pending) -> None:
        deadline = time.monotonic() + self._timeout_s if self._timeout_s > 0 else None
        while not self._is_done(pending, WAIT_S):
            if deadline is not None and time.monotonic() > deadline:
                raise LoaderTimeout(
                    f"batch {pending.planned.step} of {self._engine.name} was not ready "
                    f"after {self._timeout_s} s"
                )

    def _is_done(self, pending: Pending, timeout_s: float) -> bool:
        """Waits no longer than the timeout for each part, so that signals are seen in between."""
        if pending.error is not None:
            return True
        if not pending.wait(timeout_s):
            return False
        if not pending.sorted_out and not pending.cancelled:
            self._engine.sort_out(pending)
        return pending.wait_for_pillow(timeout_s)
