"""Batches of any torch dataset, loaded by torch's DataLoader and its worker processes.

DataLoader interprets its own arguments. Without a sampler the keys come from fastio's `Order`, so
that epochs, ranks and resuming work as on the native path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from itertools import count
from traceback import walk_tb
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastio.device import HostBatch
from fastio.errors import LoaderClosed, PerformanceWarning, StateMismatch, TransformError, warn
from fastio.feed.base import BatchInfo, Feed, HostBatches
from fastio.feed.fields import as_list
from fastio.feed.seeds import drawn_by, unchanged, with_order_seed
from fastio.order.sampling import Ranks, Sampling
from fastio.order.shuffling import Shuffling
from fastio.order.state import END, Cursor, OrderState, States
from fastio.runtime.lifecycle import Owner
from fastio.sources.stateful import is_stateful
from fastio.sources.torch_dataset import (
    Read,
    Slow,
    TorchReader,
    WorkerSettings,
    fingerprint,
    is_data_pipe,
    is_iterable_dataset,
)
from fastio.tensors.trees import Finish, Step, Tail, first_tensor
from fastio.transforms import compile, on_whole_batch

_NO_ROOM = "unable to allocate shared memory(shm)"  # part of torch's error message


class TorchFeed(Feed):
    """Makes batches of a torch dataset.

    Args:
        dataset: map-style (anything with indexing and a length) or iterable-style.
        sampling: sampling, which decides the keys of each batch.
        settings: other arguments of DataLoader.
        transforms: Normalize, ToDtype and OnBatch, as in `Loader(transforms=)`.
        slow: why the native path was not possible, and what makes it possible.

    Raises:
        TransformError: a crop, resize or flip is given, which only the native path applies.
        TypeError: the argument is not a dataset.
        ValueError: a sampler is given for an iterable dataset.
    """

    path: Literal["native", "torch"] = "torch"

    def __init__(
        self,
        dataset: Any,
        sampling: Sampling,
        settings: WorkerSettings,
        *,
        transforms: Any,
        slow: Slow,
    ) -> None:
        self.reason = slow.reason
        self._remedy = slow.remedy
        self._shuffle: bool | None = None
        self._iterable = is_iterable_dataset(dataset)
        if self._iterable:
            if is_data_pipe(dataset):  # which DataLoader tells whether to shuffle
                self._shuffle, sampling = sampling.shuffle, replace(sampling, shuffle=None)
            _check_iterable(sampling)
        elif not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"dataset must be a path, a fastio or a torch dataset, got {type(dataset).__name__}"
            )
        generator = None if self._iterable else settings.generator
        super().__init__(
            dataset, drawn_by(generator, sampling), _finish(dataset, transforms, slow.reason)
        )
        self.without_draws = f"augmentations are known on the native path, and here {slow.reason}"
        self._settings = settings
        self._reader: TorchReader | None = None
        self.reader()  # DataLoader checks its arguments

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def warn(self) -> None:
        """Warns that this path is slow, why, and what to do; once per process and reason."""
        if not self._remedy:
            return
        processes = self._settings.num_workers
        where = f"in {processes} worker processes" if processes else "in the calling thread"
        _warn(
            f"fastio reads {type(self.dataset).__name__} through torch's DataLoader, {where}, no "
            f"faster than DataLoader itself: {self.reason}. {self._remedy}"
        )

    @property
    def identity(self) -> str:
        return fingerprint(self.dataset)

    def shuffling(self, ranks: Ranks) -> Shuffling:
        return Shuffling("sampler", "argument") if self._iterable else self.sampling.how

    @property
    def random(self) -> bool:
        return self.sampling.random and not self._iterable

    @property
    def follows_torch(self) -> bool:
        return not self._iterable and super().follows_torch

    def reader(self) -> TorchReader:
        """Returns the DataLoader of this process."""
        if self._reader is None:
            self._reader = TorchReader(
                self.dataset,
                self._settings,
                batched=self.sampling.batched,
                batch_size=self.sampling.batch_size,
                drop_last=self.sampling.drop_last,
                shuffle=self._shuffle,
            )
        return self._reader

    def steps(self, ranks: Ranks) -> int:
        if self._iterable:
            return len(self.reader())
        return super().steps(ranks)

    def order(self, ranks: Ranks) -> OrderState:
        counted = {
            "num_workers": self._settings.num_workers,
            "batch_size": self.sampling.batch_size,
        }
        if not self._iterable:
            counted = dict.fromkeys(counted)
        return {**super().order(ranks), **counted}

    def states(self, cursor: Cursor) -> Mapping[str, Any]:
        if self._settings.num_workers and not self._settings.in_order:
            _warn(_UNORDERED, UserWarning)
        elif is_stateful(self.dataset):
            if not self.reader().keeps_state:
                _warn(f"{type(self.dataset).__name__}: {_STATELESS}", UserWarning)
            elif cursor.states is None:  # no epoch has begun: new workers get the dataset as it is
                return {"dataset": deepcopy(self.dataset.state_dict())}
        return super().states(cursor)

    def check_states(self, saved: Mapping[str, Any]) -> None:
        if not saved.keys() & {"dataset", "workers"}:
            return
        if not self.reader().keeps_state:
            raise StateMismatch(
                "the loader state has a state of the dataset, and this loader cannot restore it: "
                f"{_NEEDED}. Leave in_order out, and give a dataset with load_state_dict"
            )
        workers, own = saved.get("workers", {}).get("num_workers"), self._settings.num_workers
        if workers not in (None, own):
            raise StateMismatch(
                f"the loader state has the state of the dataset in {workers} worker processes, and "
                f"this loader has num_workers={own}: pass num_workers={workers}"
            )

    def _restore(self, states: States, redrawn: bool) -> None:
        """Makes the next run begin with the states that were loaded, if any were.

        Args:
            states: contains them.
            redrawn: whether a sampler draws an order of before again.
        """
        saved, reader = states.saved, self.reader()
        if saved is None or not reader.keeps_state:
            return
        self.check_states(saved)  # the settings may have changed since
        if "dataset" in saved:
            self.dataset.load_state_dict(deepcopy(saved["dataset"]))
        # A sampler that is iterated over again may draw from torch's generator after the base seed.
        drawn = self._iterable or self.sampling.ours or redrawn or "sampler" in saved
        reader.load(saved["workers"]["state"] if "workers" in saved else None, drawn)

    def run(self, cursor: Cursor, ranks: Ranks) -> HostBatches:
        drawn, batched = _Drawn(), self.sampling.batched
        states = cursor.states or States()
        redrawn = cursor.position > 0 and "generator" in (states.saved or {})
        self._restore(states, redrawn)
        noted = partial(_noted, states, self._settings.num_workers)
        restored = self.reader().keeps_state and "workers" in (states.saved or {})
        if self._iterable:
            counted = partial(_counted_info, count(cursor.position), cursor.epoch, batched)
            read = self.reader().read(skip=0 if restored else cursor.position)
            return _WorkerBatches(read, counted, drawn, noted, cursor.position)
        if self.sampling.ours:
            undrawn = self._settings.generator is None and not cursor.begun
            follows_torch = self.follows_torch if undrawn else None
            batches = partial(
                _planned, self.sampling, len(self.dataset), cursor, ranks, follows_torch
            )
        else:
            batches = partial(_sampled, self.sampling, cursor, ranks)
        # DataLoader draws a base seed from torch's generator. An epoch that is resumed has drawn it
        # before, so the generator is left unchanged. If the dataset is restored, which may set the
        # generator, the reader itself draws no seed from it.
        begun = cursor.begun if self.sampling.ours else redrawn
        ours = self._settings.generator is None and not restored
        with unchanged(None) if begun and ours else nullcontext():
            read = self.reader().read(partial(_tracked, batches, drawn, batched))
        info = partial(_drawn_info, read, drawn)
        return _WorkerBatches(read, info, drawn, noted, cursor.position)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


_NEEDED = "torchdata is needed to restore it: pip install 'fastio[stateful]'"
_STATELESS = (
    "the loader state does not include the state of the dataset. After loading it, an iterable "
    "dataset is read again from its beginning up to the position, and any other dataset keeps the "
    "state that it then has. torchdata is needed to save the state of a dataset: "
    "pip install 'fastio[stateful]'"
)
_UNORDERED = (
    "with in_order=False, the loader state is not exact: it counts batches in order, but others "
    "may have been delivered. After loading it, some batches may be repeated and others left out, "
    "and the state of the dataset is not saved. Leave in_order out to resume exactly"
)


@cache
def _warn(message: str, category: type[Warning] = PerformanceWarning) -> None:
    """Warns unless this process has already issued the same warning."""
    warn(message, category)


def _check_iterable(sampling: Sampling) -> None:
    for name in ("shuffle", "sampler", "batch_sampler"):
        value = getattr(sampling, name)
        if value not in (None, False):
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                f"{name}={value}: an iterable dataset determines the order itself"
            )
    if sampling.repeat > 1:
        raise ValueError(
            f"repeat={sampling.repeat} cannot be used with an iterable dataset, whose samples "
            "are read once: repeat them in the dataset"
        )
    if sampling.mode != "sequential":
        raise ValueError(
            f"order={sampling.mode!r} cannot be used with an iterable dataset, "
            "which determines the order itself"
        )


def _finish(dataset: Any, transforms: Any, reason: str) -> Finish | None:
    steps: list[Step] = []
    classes = getattr(dataset, "classes", None)  # of torchvision's datasets
    classes = classes if isinstance(classes, (list, tuple)) else None
    named = isinstance(transforms, Mapping)
    for key, given in transforms.items() if named else [(None, transforms)]:
        if named and key is None:
            steps += [(None, function) for function in on_whole_batch(as_list(given), classes)]
            continue
        compiled = compile(as_list(given), None if key is None else str(key))
        for step in (*compiled.steps, *compiled.erasing, *compiled.per_sample):
            raise TransformError(
                f"{step} needs the native path, but {reason}: apply it in the "
                "dataset, whose samples are loaded by worker processes, or in a fastio.OnBatch, "
                "which runs once per batch"
            )
        functions: list[Callable[[Any], Any]] = [*compiled.batch]
        if compiled.tail:
            functions.insert(0, Tail(compiled.tail))
        for function in functions:
            steps.append((key, function) if named else (None, partial(_on_input, function)))
    return Finish(steps) if steps else None


def _on_input(function: Callable[[Any], Any], data: Any) -> Any:
    """Applies a function to the input of the model: the first part of a batch."""
    if isinstance(data, Mapping):
        raise TransformError(
            f"the batches are dicts: name the key, transforms={{key: [...]}}; the keys are "
            f"{list(data)}"
        )
    return Finish([(0, function)])(data) if isinstance(data, (tuple, list)) else function(data)


def _break_cycle(error: Exception) -> None:
    """Clears the frame of torch's `reraise`, which refers to the error of a worker process.

    The error's traceback refers to the frame. This reference cycle would keep the worker processes
    of a loader that is no longer used until the garbage collector runs.
    """
    *_, (frame, _) = walk_tb(error.__traceback__)
    if frame.f_code.co_name == "reraise":
        frame.clear()


def _planned(
    sampling: Sampling, rows: int, cursor: Cursor, ranks: Ranks, follows_torch: bool | None
) -> Iterator[tuple[Sequence[Any], BatchInfo]]:
    """Yields the batches of fastio's order, which is drawn when the first key is requested.

    This is not a method: persistent workers keep it, and must end when the feed is garbage.

    Args:
        sampling: sampling, which decides the rows of each batch.
        rows: number of rows of the dataset.
        cursor: where to start.
        ranks: ranks that share the epoch.
        follows_torch: as in `with_order_seed`; None if the cursor already has all that is drawn.
    """
    order_seed = None
    if follows_torch is not None:
        cursor = with_order_seed(cursor, sampling, ranks, follows_torch)
        order_seed = cursor.order_seed
    first = sampling.first_step(cursor.position, ranks)
    # RandomSampler draws once more at its end, where BatchSampler arrives with a batch that is not
    # full, else behind the last one. Worker processes are ahead of what was delivered.
    left = [] if sampling.draw is None else [sampling.draw]
    for batch in sampling.plan(rows, cursor, ranks):
        if left and batch.valid < (sampling.batch_size or 1):
            left.pop()(rows)
        info = BatchInfo(
            batch.rows,
            batch.valid,
            cursor.epoch,
            first + batch.step,
            batch.next_position,
            order_seed=order_seed,
        )
        yield batch.rows.tolist(), info
    for draw in left:
        draw(rows)


def _sampled(
    sampling: Sampling, cursor: Cursor, ranks: Ranks
) -> Iterator[tuple[Sequence[Any], BatchInfo]]:
    first = sampling.first_step(cursor.position, ranks)
    position = cursor.position
    for step, keys in enumerate(sampling.keys(cursor), first):
        position += len(keys)
        yield keys, BatchInfo(_as_rows(keys), len(keys), cursor.epoch, step, position)


def _as_rows(keys: Sequence[Any]) -> npt.NDArray[np.int64] | None:
    """Returns keys as row numbers, or None if they are something else."""
    if not len(keys) or not isinstance(keys[0], (int, np.integer)):
        return None if len(keys) else np.empty(0, np.int64)
    try:
        rows = np.asarray(keys)
    except (ValueError, OverflowError):  # a list among them
        return None
    return rows.astype(np.int64, copy=False) if rows.ndim == 1 and rows.dtype.kind in "iu" else None


def _tracked(
    batches: Callable[[], Iterator[tuple[Sequence[Any], BatchInfo]]],
    drawn: _Drawn,
    batched: bool,
) -> Iterator[Any]:
    drawn.clear()  # an iterator that was replaced may have left some
    for keys, info in batches():
        drawn.add(info)
        yield keys if batched else keys[0]


def _drawn_info(read: Read, drawn: _Drawn, data: Any) -> BatchInfo:
    """Returns the information about the batch that came last."""
    return drawn.take(read.place)


def _counted_info(steps: Iterator[int], epoch: int, batched: bool, data: Any) -> BatchInfo:
    """Returns the information about a batch of an iterable dataset, whose position is a step."""
    step, valid = next(steps), 1
    if batched and (tensor := first_tensor(data)) is not None and tensor.ndim:
        valid = len(tensor)
    return BatchInfo(None, valid, epoch, step, step + 1)


def _noted(states: States, num_workers: int, position: float, state: Any) -> None:
    """Records the state of the dataset at a position; does nothing if there is none."""
    if state is not None:
        states.note("workers", position, {"num_workers": num_workers, "state": state})


class _Drawn:
    """The batches whose keys were drawn, in order, without those that came from the workers.

    With in_order=False, a batch may come before others. Positions count the batches that came.
    """

    def __init__(self) -> None:
        self._infos = deque[BatchInfo]()
        self._positions = deque[int]()

    def __len__(self) -> int:
        return len(self._infos)

    def clear(self) -> None:
        self._infos.clear()
        self._positions.clear()

    def add(self, info: BatchInfo) -> None:
        self._infos.append(info)
        self._positions.append(info.next_position)

    def take(self, place: int) -> BatchInfo:
        """Removes the batch at a place, which came, and returns the information about it."""
        info = self._infos[place]
        del self._infos[place]
        return info._replace(next_position=self._positions.popleft())


class _WorkerBatches:
    """The batches of one run, as DataLoader returns them.

    Args:
        batches: what collate_fn returned for each batch.
        info: returns the information about a batch, given what collate_fn returned.
        drawn: information about batches whose keys were drawn. A batch that has an error is removed
            from it; after a timeout, the same batch is expected. Empty for iterable datasets.
        noted: called with each position that is reached, and the state of the dataset there.
        position: where the run begins.
    """

    def __init__(
        self,
        batches: Read,
        info: Callable[[Any], BatchInfo],
        drawn: _Drawn,
        noted: Callable[[float, Any], None],
        position: int,
    ) -> None:
        self._batches: Read | None = batches
        self._info = info
        self._drawn = drawn
        self._noted = noted
        self._owner = Owner()
        noted(position, batches.state())

    def __iter__(self) -> _WorkerBatches:
        return self

    def __next__(self) -> HostBatch:
        batches = self._batches
        if batches is None:
            raise StopIteration
        if not self._owner.is_here:  # would take batches that the worker processes send to it
            raise LoaderClosed("this iterator belongs to the process that forked this one")
        taken = batches.taken()
        try:
            data = next(batches)
        except StopIteration:
            self._noted(END, batches.state())
            raise
        except Exception as error:
            if self._batches is None:
                raise LoaderClosed("closed while waiting for a batch") from error
            # The keys of a failed batch count as used. After a timeout, no keys were taken, and the
            # batch can still arrive.
            if self._drawn and (taken is None or batches.taken() != taken):
                self._drawn.take(batches.place)
            _break_cycle(error)
            if _NO_ROOM in str(error):
                raise RuntimeError(
                    "/dev/shm is full, through which DataLoader's worker processes send batches: "
                    "start the container with --shm-size 8g or --ipc host, or use fewer workers "
                    "(num_workers) or a smaller prefetch_factor"
                ) from error
            raise
        info = self._info(data)
        self._noted(info.next_position, batches.state())
        return HostBatch(data, info)

    def ready(self) -> bool:
        return True  # DataLoader does not tell

    def close(self) -> None:
        if self._owner.is_here:
            self._batches = None  # the workers end when the iterator is garbage
