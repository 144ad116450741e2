"""The batches of one run, in order."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from fastio.engine.batch import Batch
from fastio.engine.pending import Pending
from fastio.engine.pump import Pump
from fastio.errors import LoaderClosed, LoaderTimeout, StoreError
from fastio.order.plan import PlannedBatch
from fastio.packed.shards import Shards
from fastio.runtime.lifecycle import Owner
from fastio.runtime.threads import PATIENCE_S, WAIT_S
from fastio.stage import Lookahead

if TYPE_CHECKING:
    from fastio.engine.engine import Engine


class BatchStream:
    """The batches of one run, in order. An iterator; `close` ends it early.

    Used by one thread at a time. After an error from next() the stream continues with the next
    batch.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Iterator[PlannedBatch],
        seed: int,
        epoch: int,
        ahead: int,
        timeout_s: float,
        watched: Shards | None = None,
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
        self._owner = Owner()
        self._closed = False
        self._pump = None if engine.stage is None else Pump(engine, engine.stage)

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> Batch:
        """Returns the next batch.

        Raises:
            SampleError: a sample of the batch is bad, with on_error="raise".
            LoaderTimeout: the batch took longer than the timeout; next() waits for it again.
            LoaderClosed: another thread closed the stream, or this process is a forked child, whose
                parent has the threads.
            StoreError: the bytes cannot be fetched; the next call tries the same batch again.
            SourceChanged: the data was replaced; every further call raises it again.
            ShardCorrupt: rows that were delivered may be wrong; every further call raises it again.
            StopIteration: there are no more batches.
        """
        while True:
            self._check_process()
            self._fill(self._ahead + 1)
            if not self._pending:
                if self._watched is not None:
                    self._watched.finish_epoch()
                if not self._closed:
                    self._engine.end_epoch()
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
            if pending.after is not None:
                return pending.after.result()
            if pending.error is not None:
                raise pending.error
            return self._engine.finish(pending)
        except StoreError:
            raise
        except BaseException:
            self._engine.give_back(pending)
            raise

    def _try_again(self, pending: Pending) -> None:
        """Submits the batch again, and the following batches that could not be fetched either."""
        self._pending.appendleft(pending)
        for place, failed in enumerate(self._pending):
            # With a stage, threads may still use what a later batch has.
            if failed is pending or (
                isinstance(failed.error, StoreError) and self._is_done(failed, 0.0)
            ):
                self._pending[place] = self._begun(self._engine.again(failed))
                self._engine.give_back(failed)

    @property
    def ended(self) -> bool:
        """Whether all batches were delivered."""
        return self._plan is None and not self._pending

    def ready(self) -> bool:
        """Returns whether next() would return or raise without waiting."""
        self._check_process()
        self._fill(self._ahead + 1)
        return not self._pending or self._is_done(self._pending[0], 0.0)

    def close(self) -> None:
        """Cancels the work; returns when no thread works for this stream any more."""
        self._closed = True
        self._plan = None
        if not self._owner.is_here:
            self._pending.clear()
            return
        self._give_up()
        if self._pump is not None:
            self._pump.close()
        if isinstance(self._source, Lookahead):
            self._source.close()

    def cancel(self) -> None:
        """Cancels work that has not started; does not wait."""
        self._closed = True
        self._plan = None
        for pending in list(self._pending):
            pending.cancel()

    def _give_up(self) -> None:
        """Removes all batches from the queue and ends their work. May run on several threads."""
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

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Not close(): garbage may be collected on any thread, also on one of those that Pillow
        # works on, which must not be waited for there. They and the native slots keep the memory.
        # When the interpreter exits, the engine has ended the work, and modules may be unloaded.
        if is_finalizing() or not self._owner.is_here:
            return
        # A copy, because `give_back` drops errors. An error may hold the last reference to an
        # iterator, whose finalizer closes this stream and empties the queue.
        pending = list(self._pending)
        for batch in pending:
            batch.cancel()
        if self._pump is not None:
            self._pump.close()
        for batch in pending:
            if batch.wait(WAIT_S) and batch.wait_for_futures(0.0):
                self._engine.give_back(batch)

    def _check_process(self) -> None:
        if not self._owner.is_here:
            raise LoaderClosed(
                "the stream belongs to the parent process: call run() again in the child"
            )

    def _fill(self, wanted: int) -> None:
        while (plan := self._plan) is not None and len(self._pending) < wanted:
            planned = self._left or next(plan, None)
            if planned is None:
                self._plan = None
                return
            self._left = planned  # so that an interrupt does not lose it
            pending = self._begun(self._engine.submit(planned, self._seed, self._epoch))
            self._left = None
            self._pending.append(pending)
            if self._closed:  # by another thread, which may not have seen this batch
                self._give_up()
                raise LoaderClosed("closed while waiting for a batch")

    def _begun(self, pending: Pending) -> Pending:
        """Passes a batch that was submitted to the pump, if a stage follows the engine."""
        if self._pump is not None:
            self._pump.put(pending)
        return pending

    def _take(self, pending: Pending) -> None:
        """Removes the first batch from the queue, unless another thread has closed the stream."""
        closed = pending.error is None and pending.cancelled
        try:
            if not closed:
                self._pending.popleft()
        except IndexError:
            closed = True
        if closed:
            raise LoaderClosed("closed while waiting for a batch")

    def _wait(self, pending: Pending) -> None:
        deadline = time.monotonic() + self._timeout_s if self._timeout_s > 0 else None
        while not self._is_done(pending, WAIT_S):
            if deadline is not None and time.monotonic() > deadline:
                raise LoaderTimeout(
                    f"batch {pending.planned.step} of {self._engine.dataset.path} was not ready "
                    f"after {self._timeout_s} s"
                )

    def _is_done(self, pending: Pending, timeout_s: float) -> bool:
        """Waits for each part up to the timeout, so that signals are handled in between."""
        if pending.after is not None:
            self._engine.start_stage()  # also workers in the place of those that were killed
            return pending.wait_for_futures(timeout_s)
        if pending.error is not None:
            return True
        if not pending.wait(timeout_s):
            return False
        if not pending.followed and not pending.cancelled:
            pending.follow()
        return pending.wait_for_futures(timeout_s)
