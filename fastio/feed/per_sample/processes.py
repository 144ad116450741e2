"""Processes that call functions for chunks of samples.

A thread of this process sends tasks to the workers, two at a time, and receives their results. What
it has to do for a chunk takes tens of microseconds; pixels lie in shared memory.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from fastio.errors import LoaderClosed, TransformError, WorkerDied
from fastio.feed.per_sample.calls import FieldCalls
from fastio.feed.per_sample.chunks import ChunkTask, SampleChunk
from fastio.feed.per_sample.memory import SharedMemory
from fastio.feed.per_sample.worker import NUMBER_BYTES, NewSegment, work
from fastio.runtime.lifecycle import Owner
from fastio.runtime.sockets import ensure_short_socket_paths

_IN_HAND = 2  # tasks of a worker: the one that it works on, and the next
_END_S = 1.0  # for workers to end by themselves, and after SIGTERM
_JOIN_S = 4 * _END_S  # time for the thread to end all workers


@dataclass(eq=False)
class _Worker:
    """A worker process, seen from here.

    Attributes:
        process: the process.
        connection: this end of the connection to it.
        chunks: the chunks that it has, by number, oldest first.
        segments: segments of shared memory that it was told of.
    """

    process: Any
    connection: Connection
    chunks: dict[int, SampleChunk] = field(default_factory=dict)
    segments: set[int] = field(default_factory=set)


class ProcessWorkers:
    """A pool of processes; see `Pool`.

    Args:
        fields: what is called for each field.
        count: number of processes.
        context: a context of multiprocessing, which says how processes are started.
        init: function that each process calls once with its number, or None.
        memory: memory of the samples and results.
        what: what the processes do, for messages.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldCalls],
        count: int,
        context: Any,
        init: Callable[[int], None] | None,
        memory: SharedMemory,
        what: str,
    ) -> None:
        self._fields = dict(fields)
        self._count = count
        self._context = context
        self._init = init
        self._memory = memory
        self._what = what
        self._owner = Owner()
        self._lock = threading.Lock()
        self._exchange: _Exchange | None = None

    def start(self) -> None:
        """See `Pool`.

        Raises:
            TransformError: the functions cannot be pickled, which the context needs.
        """
        self._owner.take_over(self._begin_anew)
        if self._exchange is None:
            exchange = self._exchange = _Exchange(self._memory, self._what)
            weakref.finalize(self, exchange.end, os.getpid()).atexit = False
        else:
            exchange = self._exchange
        if len(exchange.workers) < self._count:
            with self._lock:  # by several consumers at once
                while len(exchange.workers) < self._count:
                    exchange.add(self._started(exchange.started, first=not exchange.workers))

    def submit(self, chunks: list[SampleChunk]) -> None:
        """See `Pool`."""
        exchange = self._exchange
        if exchange is None:
            for chunk in chunks:
                chunk.failed(LoaderClosed("closed while waiting for a batch"))
        else:
            exchange.put(chunks)

    def close(self) -> None:
        """See `Pool`. A function that does not return within a second is ended with its process."""
        exchange, self._exchange = self._exchange, None
        if exchange is None or not self._owner.is_here:
            return
        exchange.end(os.getpid())
        exchange.join()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._exchange = None

    def _started(self, number: int, first: bool) -> _Worker:
        """Returns a worker whose process was started."""
        # A process that is not forked runs the main script and imports the functions by their
        # names. An error there occurs in every process, so the first one is awaited and the error
        # is raised once.
        announces = first and self._context.get_start_method() != "fork"
        ensure_short_socket_paths()  # of the fork server
        ours, theirs = self._context.Pipe(duplex=True)
        try:
            process = self._context.Process(
                target=work,
                args=(theirs, self._fields, self._init, number, self._count, announces),
                name=f"fastio-per-sample-{number}",
                daemon=True,
            )
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            ours.close()
            raise TransformError(
                f"{self._what} cannot be sent to worker processes: {error}. Define its functions "
                "at the top of a module, use PerSample(workers='threads'), or pass "
                "multiprocessing_context='fork' to the loader"
            ) from error
        finally:
            # With this copy open, the end of the process would not end the connection, by which
            # it is noticed.
            theirs.close()
        if announces:
            self._await_begin(process, ours)
        return _Worker(process, ours)

    def _await_begin(self, process: Any, connection: Connection) -> None:
        """Waits for the message with which a process reports that it has started its work.

        Raises:
            WorkerDied: the process ended instead.
        """
        try:
            connection.recv_bytes()
        except BaseException as error:  # KeyboardInterrupt, too
            connection.close()
            if not isinstance(error, (EOFError, OSError)):
                process.kill()
                raise
            process.join(_END_S)
            method = self._context.get_start_method()
            raise WorkerDied(
                f"{_end_of(process, self._what)}. The process had not started its work. Processes "
                f"with the start method {method!r} run the main script again, so code that uses "
                'a Loader must be below `if __name__ == "__main__":`. They cannot use functions '
                "that were defined in a notebook or an interactive session: define these in a "
                "module, use PerSample(workers='threads'), or pass multiprocessing_context='fork' "
                "to the loader"
            ) from None


class _Exchange:
    """The thread that sends tasks and receives results, and what it works on.

    It does not know the pool, so that a pool that is garbage can end it.
    """

    def __init__(self, memory: SharedMemory, what: str) -> None:
        self.workers: list[_Worker] = []
        self.started = 0  # workers so far
        self._memory = memory
        self._what = what
        self._numbers = count()
        self._waiting: deque[SampleChunk] = deque()
        self._new: deque[_Worker] = deque()
        self._ending = self._ended = False
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="fastio-per-sample", daemon=True)
        self._thread.start()

    def add(self, worker: _Worker) -> None:
        """Adds a worker."""
        self.started += 1
        self.workers.append(worker)
        self._new.append(worker)
        self._wake()

    def put(self, chunks: list[SampleChunk]) -> None:
        """Adds chunks."""
        self._waiting.extend(chunks)
        self._wake()
        # The thread may have ended just before: nobody else would tell those who wait for them.
        if self._ended:
            self._fail_waiting()

    def end(self, pid: int) -> None:
        """Has the thread end, which ends the workers. Does not wait, and takes no lock.

        Args:
            pid: process to which the thread belongs; in another one nothing is done.
        """
        if pid == os.getpid():
            self._ending = True
            self._wake()

    def join(self) -> None:
        """Waits until the thread and the workers have ended.

        A worker that was stopped while it sent or received a message blocks the thread. Workers are
        therefore killed if the thread has not ended them after `_JOIN_S` seconds.
        """
        if self._thread is threading.current_thread():
            return
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            for worker in list(self.workers):
                worker.process.kill()
            self._thread.join()

    def _wake(self) -> None:
        with suppress(OSError):  # full: it will wake up; closed: it has ended
            self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._ending:
                for key, _ in self._selector.select():
                    if key.data is None:
                        self._woken.recv(4096)
                    else:
                        self._receive(key.data)
                # Here, and not in `add`: only this thread may use the selector.
                while self._new:
                    worker = self._new.popleft()
                    reads = selectors.EVENT_READ
                    self._selector.register(worker.connection, reads, worker)
                self._send()
        finally:
            self._end_workers()

    def _send(self) -> None:
        """Sends waiting chunks to the workers that have the fewest."""
        while self._waiting and self.workers:
            worker = min(self.workers, key=lambda worker: len(worker.chunks))
            if len(worker.chunks) >= _IN_HAND:
                return
            chunk = self._waiting.popleft()
            if chunk.leave_out():
                continue
            number = next(self._numbers)
            worker.chunks[number] = chunk
            try:
                self._send_task(worker, number, chunk)
            except OSError:  # it has died, and begun nothing
                del worker.chunks[number]
                self._waiting.appendleft(chunk)
                self._lose(worker)

    def _send_task(self, worker: _Worker, number: int, chunk: SampleChunk) -> None:
        freed = self._memory.freed(worker.segments)
        worker.segments.difference_update(freed)
        for task in chunk.fields.values():
            extents = task.source.extents()
            for extent in extents if task.results is None else [*extents, task.results]:
                if extent.segment not in worker.segments:
                    file, nbytes = self._memory.file(extent.segment)
                    worker.connection.send_bytes(pickle.dumps(NewSegment(extent.segment, nbytes)))
                    reduction.send_handle(worker.connection, file, worker.process.pid)
                    worker.segments.add(extent.segment)
        task = ChunkTask(number, chunk.first, chunk.keys, dict(chunk.fields), freed)
        worker.connection.send_bytes(pickle.dumps(task, pickle.HIGHEST_PROTOCOL))

    def _receive(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv_bytes()
        except (EOFError, OSError):
            self._lose(worker)
        else:
            self._take(worker, message)

    def _take(self, worker: _Worker, message: bytes) -> None:
        """Passes an answer of a worker on."""
        chunk = worker.chunks.pop(int.from_bytes(message[:NUMBER_BYTES], "little"))
        try:
            outcome = pickle.loads(memoryview(message)[NUMBER_BYTES:])
        except Exception as error:  # of a class that this process cannot make
            chunk.failed(error)
        else:
            chunk.done(chunk, outcome)

    def _lose(self, worker: _Worker) -> None:
        """Takes note of the end of a worker: the chunk that it worked on has no results."""
        if worker not in self.workers:
            return
        with suppress(EOFError, OSError):  # answers from before its end
            while worker.connection.poll():
                self._take(worker, worker.connection.recv_bytes())
        with suppress(KeyError):
            self._selector.unregister(worker.connection)
        worker.connection.close()
        worker.process.join(_END_S)
        chunks = list(worker.chunks.values())
        worker.chunks.clear()
        # Chunks are worked on in order, so only the first one was begun. It is not tried again:
        # what ended this process may end the next one, too.
        self._waiting.extendleft(reversed(chunks[1:]))
        self.workers.remove(worker)
        if chunks:
            chunks[0].failed(_death(worker.process, self._what))

    def _fail_waiting(self) -> None:
        with suppress(IndexError):
            while True:
                self._waiting.popleft().failed(LoaderClosed("closed while waiting for a batch"))

    def _end_workers(self) -> None:
        """Ends all workers; a function that they are in has a second to return."""
        self._ending = True
        self._fail_waiting()
        for worker in self.workers:
            with suppress(OSError), socket.socket(fileno=os.dup(worker.connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)  # of forked copies of this end, too
        for end_process in (None, "terminate", "kill"):
            deadline_s = time.monotonic() + _END_S
            for worker in self.workers:
                if end_process is not None and worker.process.is_alive():
                    getattr(worker.process, end_process)()
            for worker in self.workers:
                worker.process.join(max(0.0, deadline_s - time.monotonic()))
        for worker in self.workers:
            worker.connection.close()
            for chunk in worker.chunks.values():
                chunk.failed(LoaderClosed("closed while waiting for a batch"))
        self._ended = True
        self._fail_waiting()
        self._selector.close()
        self._woken.close()
        self._waker.close()


def _death(process: Any, what: str) -> WorkerDied:
    return WorkerDied(
        f"{_end_of(process, what)}, and its samples have no results. Another process takes its "
        "place when the next batch is asked for"
    )


def _end_of(process: Any, what: str) -> str:
    """Returns how a worker process ended, as a sentence without its full stop."""
    code = process.exitcode
    if code is None:  # still exiting, which takes seconds on a busy machine
        how = "closed its connection; what it wrote to stderr may say why"
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            how += " (by the system, if memory ran out)"
    else:
        how = f"ended with exit code {code}; what it wrote to stderr says why"
    return f"a worker process (pid {process.pid}) of {what} {how}"
