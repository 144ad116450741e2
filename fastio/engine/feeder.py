"""Passes batches of remote datasets to the native threads once their blocks have arrived."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from fastio.engine.pending import Pending
from fastio.errors import LoaderClosed
from fastio.stage import Stager

_LOOK_S = 0.1


class Feeder:
    """A thread that starts batches in order, each when its blocks have arrived.

    Args:
        stager: fetches the blocks.
        begin: passes a batch to the threads; records errors in the batch.
    """

    def __init__(self, stager: Stager, begin: Callable[[Pending], None]) -> None:
        self._stager = stager
        self._begin = begin
        self._queue: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self._closed = False
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
                assert pending.staged is not None
                pending.staged.set()

    def _feed(self, pending: Pending) -> None:
        assert pending.blocks is not None
        while not pending.left_out:
            if self._closed:
                raise LoaderClosed("the engine was closed")
            if self._stager.wait(pending.blocks, _LOOK_S):
                self._begin(pending)
                return
