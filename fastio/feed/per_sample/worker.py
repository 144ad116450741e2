"""The main function of a worker process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import NamedTuple

from fastio.feed.per_sample.calls import Caller, ChunkOutcome, FieldCalls, failure
from fastio.feed.per_sample.chunks import ChunkTask
from fastio.feed.per_sample.memory import MappedMemory
from fastio.tensors.samples import become_worker

# Not pickled with the results, so that the main process knows the task even if it cannot load them.
NUMBER_BYTES = 8  # of the number of a task, before its results
_LOOK_S = 1.0  # between two looks whether the main process is alive


class NewSegment(NamedTuple):
    """Announces a segment of shared memory, whose file descriptor follows."""

    number: int
    nbytes: int


def work(
    connection: Connection,
    fields: Mapping[str, FieldCalls],
    init: Callable[[int], None] | None,
    number: int,
    count: int,
    announces: bool,
) -> None:
    """Calls functions for the tasks that arrive, until the connection or the main process ends.

    Args:
        connection: brings `NewSegment` and `ChunkTask`; takes the number of a task, in
            `NUMBER_BYTES` bytes, and its pickled `ChunkOutcome`.
        fields: what is called for each field.
        init: function that is called once with the worker's number.
        number: number of the worker.
        count: number of workers that work at the same time.
        announces: whether to send an empty message first, to report that the work has started.
    """
    if announces:
        connection.send_bytes(b"")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process
    become_worker(number, count)
    if init is not None:
        init(number)
    caller, memory, parent = Caller(fields, seeds=True), MappedMemory(), os.getppid()
    try:
        while True:
            while not connection.poll(_LOOK_S):
                if not _is_alive(parent):
                    return
            message = pickle.loads(connection.recv_bytes())
            if isinstance(message, NewSegment):
                file = reduction.recv_handle(connection)
                memory.add(message.number, file, message.nbytes)
                continue
            assert isinstance(message, ChunkTask)
            memory.drop(message.freed)
            outcome = caller(message.inputs(memory), message.first, message.keys)
            connection.send_bytes(_pickled(message.number, outcome))
    except (EOFError, ConnectionError):
        return  # the main process has closed the connection


def _pickled(number: int, outcome: ChunkOutcome) -> bytes:
    """Returns an answer as bytes; results that cannot be pickled become failures."""
    head = number.to_bytes(NUMBER_BYTES, "little")
    try:
        return head + pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)
    except Exception:
        for results in outcome.results.values():
            for place, result in enumerate(results):
                try:
                    pickle.dumps(result)
                except Exception as error:
                    outcome.failures.setdefault(place, failure("the pickling of a result", error))
                    results[place] = None
    return head + pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)


def _is_alive(parent: int) -> bool:
    """Returns whether the process that started this one is alive; a fork server ends with it."""
    above = multiprocessing.parent_process()
    return os.getppid() == parent and (above is None or above.is_alive())
