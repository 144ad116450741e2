"""Prepares worker processes of torch's DataLoader to report batches that they cannot send."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch._utils import ExceptionWrapper


class WorkerStart:
    """DataLoader's worker_init_fn: has errors of sending reported, and calls the user's function.

    A thread of the worker pickles each batch and writes it to a pipe. If it cannot, because a
    sample cannot be pickled or no more files can be opened, it prints a traceback and drops the
    batch, for which the main process would wait forever.

    Args:
        function: the user's worker_init_fn, or None.
        keeps_state: whether torchdata's StatefulDataLoader starts the worker.
    """

    def __init__(self, function: Callable[[int], None] | None, keeps_state: bool) -> None:
        self._function, self._keeps_state = function, keeps_state

    def __call__(self, worker: int) -> None:
        # DataLoader gives this function nothing but the number. The queue is an argument of the
        # function that calls it, of torch as of torchdata, and its thread has not started yet.
        queue = sys._getframe(1).f_locals.get("data_queue")
        if queue is not None:
            queue._on_queue_feeder_error = partial(_send_error, queue, worker, self._keeps_state)
        if self._function is not None:
            self._function(worker)


def _send_error(queue: Any, worker: int, keeps_state: bool, error: Exception, message: Any) -> None:
    """Sends an error in the place of a batch that cannot be sent.

    Args:
        queue: the queue of batches.
        worker: the number of the worker process.
        keeps_state: whether messages have the state of the dataset, too.
        error: why `message` cannot be sent.
        message: the number of the batch, and the batch; with states, the number of the batch, and
            a tuple of the batch, the number of the worker and the state.
    """
    if not (isinstance(message, tuple) and len(message) == 2):  # bytes: the pipe is closed
        type(queue)._on_queue_feeder_error(error, message)
        return
    number = message[0]
    where = f"in DataLoader worker process {worker}, when it sent a batch"
    problem = _wrapped(type(error), error, where)
    try:
        ForkingPickler.dumps(problem)
    except Exception:  # a class of errors inside a function, or from __main__ of the worker
        problem = _wrapped(RuntimeError, error, where)
    queue.put((number, (problem, worker, None) if keeps_state else problem))


def _wrapped(kind: type[Exception], error: Exception, where: str) -> ExceptionWrapper:
    return ExceptionWrapper((kind, error, error.__traceback__), where)  # type: ignore[no-untyped-call]
