"""Calls functions with a dataset in the worker processes of torch's DataLoader, in order."""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from fastio.errors import WorkerDied
from fastio.runtime.lifecycle import Owner
from fastio.sources.torch_dataset import TorchReader, WorkerSettings

# Results up to this size go through a pipe, larger ones through shared memory.
_PIPE_BYTES = 64 << 10

# Called with the dataset, and a function that returns whether results are still wanted.
Call = Callable[[Any, Callable[[], bool]], Any]


class DatasetCalls:
    """Worker processes that have a dataset and call functions with it. Used by one thread.

    The dataset is used in the workers only, so that files which it opens when the first sample is
    read, and keeps open, are opened by each worker for itself.

    Args:
        dataset: The dataset. It is pickled unless processes are forked.
        processes: The number of worker processes, which start with the first call.
        name: What the dataset is called in messages.
    """

    def __init__(self, dataset: Any, processes: int, name: str) -> None:
        self._name = name
        settings = WorkerSettings(
            num_workers=processes,
            collate_fn=_as_it_is,
            # With its default seed: what workers draw does not depend on torch's global generator,
            # nor does it change that generator.
            generator=torch.Generator(),
            persistent_workers=True,
        )
        called = _Called(dataset)
        self._ended = called.ended
        self._reader: TorchReader | None = TorchReader(called, settings, batched=False)
        # An iterator of DataLoader must not end as garbage. Its __del__ would send a last message
        # to each worker while the garbage collector closes the same pipes, and the message could
        # be written to whatever file has the number of a pipe by then.
        self._end = weakref.finalize(self, _end, self._reader, Owner())
        self._end.atexit = False  # DataLoader itself ends workers at exit

    def results(self, calls: Iterable[Call]) -> Iterator[Any]:
        """Yields the results of functions, in order. They are drawn as far ahead as workers take.

        Raises:
            TypeError: A function cannot be pickled.
            WorkerDied: A worker process ended.
            The error of a function, if it raised one.
        """
        assert self._reader is not None
        pickled = partial(_pickled, name=self._name)
        with self.naming_deaths():
            for message in self._reader.read(lambda: map(pickled, calls)):
                found = pickle.loads(_payload(message))
                if isinstance(found, _Failed):
                    raise found.error
                yield found

    @contextmanager
    def naming_deaths(self) -> Iterator[None]:
        """Raises WorkerDied when DataLoader reports, at any point, that a worker process ended."""
        try:
            yield
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            reason = (str(error.__cause__ or "") or str(error)).partition(". ")[0].strip()
            main = "" if _forks() else ' Does the script pack below `if __name__ == "__main__":`?'
            raise WorkerDied(
                f"a worker process that read samples of {self._name} ended: {reason}.{main} If "
                "memory or shared memory (/dev/shm) ran out, use fewer workers; with workers=1, no "
                "worker processes are used. To continue this pack, use resume=True"
            ) from error

    def close(self) -> None:
        """Ends the workers. Idempotent."""
        self._ended.value = True
        self._reader = None
        self._end()


def _pickled(call: Call, *, name: str) -> bytes:
    """Returns a function, pickled for a worker process.

    If the thread of DataLoader's queue cannot pickle a function, it only prints the error, and the
    caller would wait for the result forever.

    Raises:
        TypeError: The function cannot be pickled.
    """
    try:
        return bytes(ForkingPickler.dumps(call))
    except Exception as error:
        raise TypeError(
            f"a function that reads {name} in worker processes cannot be pickled: {error}"
        ) from error


def _end(reader: TorchReader, owner: Owner) -> None:
    """Ends the workers. Does nothing in a forked process, to which they do not belong."""
    if owner.is_here:
        reader.close()


def may_start_processes() -> bool:
    """Returns whether this process may have child processes, which a daemonic one may not."""
    return not multiprocessing.current_process().daemon


def _forks() -> bool:
    """Returns whether worker processes are forked, and so do not run the main script again."""
    return multiprocessing.get_start_method() == "fork"


def why_not_sent(dataset: Any) -> str | None:
    """Returns why a dataset cannot be sent to worker processes; None if it can be."""
    if _forks():
        return None
    try:
        pickle.dumps(dataset)
    except Exception as error:  # a dataset's own code, too
        return str(error) or type(error).__name__
    return None


def portable(error: Exception) -> Any:
    """Returns an error in a form that can be pickled, with its traceback as a text."""
    kept = error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kept = RuntimeError(f"{type(error).__name__}: {error}")
    return ExceptionWithTraceback(kept, error.__traceback__)


class _Failed:
    """The error of a function that was called in a worker."""

    def __init__(self, error: Any) -> None:
        self.error = error


class _Called:
    """The object that DataLoader indexes: keys are pickled functions, items are their results.

    Attributes:
        ended: Whether the calls were closed, in memory that the processes share.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.ended = multiprocessing.RawValue(ctypes.c_bool, False)

    def __getitem__(self, pickled: bytes) -> Any:
        # Pickled here: if DataLoader's thread cannot pickle a result, the result is never sent.
        try:
            call: Call = pickle.loads(pickled)
            return _message(call(self._dataset, self._is_wanted))
        except Exception as error:
            return pickle.dumps(_Failed(portable(error)))

    def _is_wanted(self) -> bool:
        return not self.ended.value


class _Parts(list[memoryview]):
    """The file that an object is pickled to: long bytes of the object are not copied."""

    def write(self, data: Any) -> None:
        self.append(pickle.PickleBuffer(data).raw())  # of an array, data is a PickleBuffer


def _message(result: Any) -> Any:
    """Returns an object, pickled, as bytes or as a tensor in shared memory."""
    parts = _Parts()
    pickle.Pickler(parts, pickle.HIGHEST_PROTOCOL).dump(result)
    total = sum(map(len, parts))
    if total <= _PIPE_BYTES:
        return b"".join(parts)
    # As torch's collation does, so that the data are not copied again when they are sent.
    storage = torch.UntypedStorage._new_shared(total, device="cpu")  # type: ignore[no-untyped-call]
    message = torch.empty(0, dtype=torch.uint8).set_(storage)
    memory, at = message.numpy(), 0
    for part in parts:
        memory[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return message


def _payload(message: Any) -> Any:
    return message.numpy().data if isinstance(message, torch.Tensor) else message


def _as_it_is(message: Any) -> Any:
    return message
