"""Passes decoded batches on to a stage that follows the engine, while the consumer does other work.

Without such a stage, a batch is finished by the consumer that asks for it. A stage needs it
earlier, so a thread of each stream waits for the batches in its place.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Protocol

from fastio.engine.batch import Batch
from fastio.engine.pending import Pending
from fastio.errors import LoaderClosed, SampleError
from fastio.runtime.threads import WAIT_S

if TYPE_CHECKING:
    from fastio.engine.engine import Engine


class BatchStage(Protocol):
    """Changes the values of batches after they were decoded; used by several threads.

    It gets the images of the fields in `EngineSettings.handed` as uint8 (H, W, C).
    """

    def start(self) -> None:
        """Starts the workers that are missing, in this process."""

    def run(
        self,
        batch: Batch,
        seed: int,
        cancelled: Callable[[], bool],
        done: Callable[[dict[int, SampleError], Exception | None], None],
    ) -> None:
        """Begins to change a batch; does not wait.

        Args:
            batch: the batch.
            seed: seed of its draws.
            cancelled: returns whether nobody wants it any more.
            done: called once, on any thread, with a dict of the errors of single samples by
                their place, from which it may remove errors, and the error of the whole batch or
                None.
        """

    def close(self) -> None:
        """Ends the workers. `start` begins anew."""


class Pump:
    """A thread that waits for the batches of one stream and passes them on. It keeps no stream.

    Args:
        engine: the engine of the stream.
        stage: the stage.
    """

    def __init__(self, engine: Engine, stage: BatchStage) -> None:
        self._queue: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self._arguments = engine, stage, self._queue
        self._thread: threading.Thread | None = None

    def put(self, pending: Pending) -> None:
        """Adds a batch that was submitted; `pending.after` gets what comes of it."""
        # Before the thread gets the batch: whoever cancels it from now on must find the future.
        pending.after = Future()
        self._queue.put(pending)
        if self._thread is None:
            thread = threading.Thread(
                target=_work, args=self._arguments, name="fastio-pump", daemon=True
            )
            thread.start()
            self._thread = thread  # only when it runs: an interrupt may come before

    def close(self) -> None:
        """Ends the thread after the batches that it has; does not wait, and takes no lock."""
        # Called by the destructor of a stream, which may run on any thread, also on this one, in
        # the middle of anything. `SimpleQueue.put` may be called there; a lock might be held.
        self._queue.put(None)


def _work(engine: Engine, stage: BatchStage, batches: queue.SimpleQueue[Pending | None]) -> None:
    while (pending := batches.get()) is not None:
        after = pending.after
        # A batch that was cancelled belongs to whoever cancelled it, who may have freed its slots.
        # From here on, `cancel` of the future fails, and that thread waits for a result.
        if after is None or not after.set_running_or_notify_cancel():
            continue
        try:
            batch = _finished(engine, pending)
            if batch is None:
                after.set_result(None)
            else:
                stage.run(
                    batch,
                    pending.seed,
                    partial(getattr, pending, "left_out"),
                    partial(_settle, engine, batch, pending),
                )
        except BaseException as error:
            after.set_exception(error)  # also of an interrupt: somebody waits for this future
        # The loop would keep the batch, and with it its slots, until the next one comes.
        del pending, after
        batch = None


def _finished(engine: Engine, pending: Pending) -> Batch | None:
    try:
        # In short waits, between which other Python threads run, until the native threads are done
        # or have dropped the batch: a batch that is cancelled ends these loops, too.
        while not pending.wait(WAIT_S):
            pass
        pending.fetch_s = 0.0  # the consumer has not waited for it
        if pending.error is None and not pending.cancelled:
            pending.follow()
            while not pending.wait_for_readers(WAIT_S):
                pass
        if pending.error is not None:
            raise pending.error
        if pending.cancelled:
            raise LoaderClosed("closed while waiting for a batch")
        return engine.finish(pending)
    finally:
        # A traceback must not refer to the batch: if the stream was dropped, nobody releases the
        # batch, and the reference cycle would remain.
        del pending


def _settle(
    engine: Engine,
    batch: Batch,
    pending: Pending,
    failures: dict[int, SampleError],
    error: Exception | None,
) -> None:
    assert pending.after is not None  # `Pending.release` keeps it until it has a result
    if error is not None:
        pending.after.set_exception(error)
        return
    try:
        pending.after.set_result(engine.mended(batch, failures))
    except SampleError as raised:
        # The traceback is removed, because its frames refer to the batch: see `_finished`.
        pending.after.set_exception(raised.with_traceback(None))
    except BaseException as raised:
        pending.after.set_exception(raised)
