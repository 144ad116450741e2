"""Threads that call functions for chunks of samples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastio.errors import LoaderClosed, WorkerDied
from fastio.feed.per_sample.calls import Caller, FieldCalls
from fastio.feed.per_sample.chunks import SampleChunk
from fastio.runtime.lifecycle import Owner
from fastio.runtime.threads import PATIENCE_S, DaemonPool


class ThreadWorkers:
    """A pool of threads of this process; see `Pool`.

    Args:
        fields: what is called for each field.
        count: number of threads.
    """

    def __init__(self, fields: Mapping[str, FieldCalls], count: int) -> None:
        # All threads share the global random generators, which are therefore not seeded. Functions
        # in threads draw from the generator that they are given.
        self._caller = Caller(fields, seeds=False)
        self._count = count
        self._threads: DaemonPool | None = None
        self._owner = Owner()

    def start(self) -> None:
        """See `Pool`."""
        self._owner.take_over(self._begin_anew)
        if self._threads is None:
            self._threads = DaemonPool(self._count, "fastio-per-sample")

    def submit(self, chunks: list[SampleChunk]) -> None:
        """See `Pool`."""
        for chunk in chunks:
            threads = self._threads
            try:
                if threads is None:
                    raise RuntimeError("the threads have ended")
                future = threads.submit(partial(_work, self._caller, chunk))
            except RuntimeError:
                chunk.failed(LoaderClosed("closed while waiting for a batch"))
                continue
            future.add_done_callback(
                lambda future, chunk=chunk: (  # type: ignore[misc]
                    chunk.failed(LoaderClosed("closed while waiting for a batch"))
                    if future.cancelled()
                    else None
                )
            )

    def close(self) -> None:
        """See `Pool`. A function that does not return is abandoned after some seconds."""
        threads, self._threads = self._threads, None
        if threads is not None and self._owner.is_here:
            threads.shutdown(cancel_futures=True, timeout_s=PATIENCE_S)

    def _begin_anew(self) -> None:
        self._threads = None


def _work(caller: Caller, chunk: SampleChunk) -> None:
    if chunk.leave_out():
        return
    try:
        outcome = caller(chunk.fields, chunk.first, chunk.keys, chunk.cancelled)
    except Exception as error:
        chunk.failed(error)
    except BaseException as error:
        chunk.failed(WorkerDied(f"a function that runs per sample raised {error!r}"))
        raise
    else:
        chunk.done(chunk, outcome)
