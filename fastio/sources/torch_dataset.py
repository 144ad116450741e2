"""Datasets of torch: an ImageFolder is read as files, any other by torch's DataLoader.

torchvision is never imported: its classes are recognised by name and module.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sized
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import profiler
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    IterDataPipe,
    Sampler,
    Subset,
    default_convert,
)
from torch.utils.data.dataloader import _DatasetKind, _InfiniteConstantSampler

from fastio.runtime.sockets import ensure_short_socket_paths
from fastio.shown import without_addresses
from fastio.sources.folder import FolderDataset
from fastio.sources.stateful import is_stateful
from fastio.sources.subset_indices import check_indices
from fastio.sources.worker_start import WorkerStart
from fastio.store import absolute_path

_FOLDER_MODULE = "torchvision.datasets.folder"
_WORKERS_S = 5.0  # for all workers to end; DataLoader waits as long for each
_TERMINATED_S = 0.2  # for each worker to end after it was terminated
_PACK = (
    "Pack the dataset once with fastio.pack(dataset, 'packed/'), and load the result with "
    "fastio.Loader('packed/')."
)


class Slow(NamedTuple):
    """Why samples go through torch's DataLoader.

    Attributes:
        reason: The reason, as a clause.
        remedy: A sentence that says what to do for native speed; "" if there is nothing to load.
    """

    reason: str
    remedy: str = _PACK


@dataclass(frozen=True)
class ImageFiles:
    """What a torchvision ImageFolder, or a Subset or ConcatDataset of some, consists of.

    Attributes:
        samples: (path, class index) of each row, in the dataset's order.
        classes: the class names; none if ImageFolders that are joined have other names for the
            same numbers.
        transform: the ImageFolder's transform, or None.
        target_transform: the ImageFolder's function of labels, or None.
        root: the ImageFolder's folder.
    """

    samples: list[tuple[str, int]]
    classes: list[str]
    transform: Any
    root: str
    target_transform: Any = None

    def as_dataset(self, upright: bool = False) -> FolderDataset:
        """Returns the rows as a dataset.

        Args:
            upright: whether images are turned as their EXIF orientation says. If not, they are
                delivered as stored, as torchvision does.
        """
        return FolderDataset.from_samples(self.samples, self.classes, self.root, upright=upright)


def _joined_files(dataset: ConcatDataset[Any]) -> ImageFiles | Slow:
    """Returns the files of ImageFolders one after the other, if all have the same transform."""
    parts = []
    for part in dataset.datasets:
        files = image_files(part)
        if isinstance(files, Slow):
            return files
        parts.append(files)
    first = parts[0]
    if any(part.transform is not first.transform for part in parts) or any(
        part.target_transform is not first.target_transform for part in parts
    ):
        return Slow("the ImageFolders of the ConcatDataset have different transform objects")
    samples = [(absolute_path(name), label) for part in parts for name, label in part.samples]
    # A folder may lack the last classes of another one.
    classes = max((part.classes for part in parts), key=len)
    alike = [part.classes and part.classes == classes[: len(part.classes)] for part in parts]
    if not all(alike):
        classes = []  # a number stands for several classes
    roots = [absolute_path(part.root) for part in parts]
    root = os.path.commonpath(roots)
    return ImageFiles(samples, classes, first.transform, root, first.target_transform)


def image_files(dataset: object) -> ImageFiles | Slow:
    """Returns the files of a torchvision ImageFolder, or a torch Subset or ConcatDataset of some.

    An ImageDataset of timm that reads a folder is one, too.

    Returns:
        The files; or why `dataset` cannot be read as files.
    """
    if type(dataset) is Subset:
        inner = image_files(dataset.dataset)
        if isinstance(inner, Slow):
            return inner
        indices = [operator.index(index) for index in dataset.indices]
        check_indices(np.asarray(indices, np.int64), len(inner.samples))
        samples = [inner.samples[index] for index in indices]
        return replace(inner, samples=samples)
    if type(dataset) is ConcatDataset:
        return _joined_files(dataset)
    kind = type(dataset)
    if (kind.__module__, kind.__qualname__) == ("timm.data.dataset", "ImageDataset"):
        return _files_of_timm(dataset)
    if (kind.__module__, kind.__qualname__) != (_FOLDER_MODULE, "ImageFolder"):
        return Slow(f"fastio has no native reader for {kind.__qualname__}")
    folder: Any = dataset
    loader = folder.loader
    name = getattr(loader, "__qualname__", without_addresses(repr(loader)))
    standard = name in ("default_loader", "pil_loader")
    if not standard or getattr(loader, "__module__", None) != _FOLDER_MODULE:
        return Slow(
            f"the ImageFolder has a loader of its own, {name}",
            f"Leave the loader out if it only decodes files. {_PACK}",
        )
    samples, classes = list(folder.samples), list(folder.classes)
    root, target = os.fspath(folder.root), folder.target_transform
    return ImageFiles(samples, classes, folder.transform, root, target)


def _files_of_timm(dataset: Any) -> ImageFiles | Slow:
    """Returns the files of an ImageDataset of timm."""
    reader = dataset.reader
    if type(reader).__name__ != "ReaderImageFolder":
        return Slow(f"the ImageDataset of timm has a {type(reader).__name__}")
    plain = not dataset.load_bytes and dataset.input_img_mode == "RGB"
    if not plain or dataset.additional_features is not None:
        return Slow("the ImageDataset of timm gives something else than RGB images and classes")
    numbers = reader.class_to_idx
    classes = sorted(numbers, key=numbers.get)
    if [numbers[name] for name in classes] != list(range(len(classes))):
        return Slow("the classes of the ImageDataset of timm are not numbered from 0")
    samples, root = list(reader.samples), os.fspath(reader.root)
    return ImageFiles(samples, classes, dataset.transform, root, dataset.target_transform)


def is_iterable_dataset(dataset: object) -> bool:
    """Returns whether torch iterates over a dataset rather than indexing it."""
    return isinstance(dataset, IterableDataset)


def is_data_pipe(dataset: object) -> bool:
    """Returns whether a dataset is an IterDataPipe, which DataLoader tells whether to shuffle."""
    return isinstance(dataset, IterDataPipe)


def fingerprint(dataset: object) -> str:
    """Returns a text that identifies a torch dataset: its class, and its length if it has one."""
    kind = type(dataset)
    name = f"{kind.__module__}.{kind.__qualname__}"
    # The length of an iterable dataset is an estimate, which may change while it is read.
    indexed = isinstance(dataset, Sized) and not is_iterable_dataset(dataset)
    return f"{name}[{len(dataset)}]" if indexed else name  # type: ignore[arg-type]


def may_have_state(dataset: Any) -> bool:
    """Returns whether a dataset, or an iterator over it, may have a state of its own."""
    if is_stateful(dataset):
        return True
    if not is_iterable_dataset(dataset) or is_data_pipe(dataset):
        return False
    # Only an iterator of a class can have state_dict; a generator has none.
    return not inspect.isgeneratorfunction(type(dataset).__iter__)


@cache
def stateful_loader() -> type[DataLoader[Any]] | None:
    """Returns torchdata's StatefulDataLoader; None if torchdata is not installed."""
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return None
    kind: type[DataLoader[Any]] = StatefulDataLoader
    return kind


def dataset_kind(dataset: object) -> int:
    """Returns DataLoader's number for datasets that are indexed, or that are iterated over."""
    return _DatasetKind.Iterable if is_iterable_dataset(dataset) else _DatasetKind.Map


def endless_sampler() -> Sampler[None]:
    """Returns the sampler that DataLoader shows for a dataset that iterates."""
    return _InfiniteConstantSampler()


def single_sample(sample: Any) -> Any:
    """Returns a sample as DataLoader delivers it without a batch size: arrays become tensors."""
    return default_convert(sample)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class WorkerSettings:
    """The arguments that are passed on to torch's DataLoader unchanged."""

    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: Any = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory_device: str = ""
    in_order: bool = True

    @classmethod
    def of(cls, loader: Any, usual: Callable[..., Any]) -> WorkerSettings:
        """Returns the values of a loader's attributes, with None for the usual collate_fn."""
        given = {field.name: getattr(loader, field.name) for field in fields(cls)}
        if given["collate_fn"] is usual:
            given["collate_fn"] = None
        return cls(**given)


Keys = Callable[[], Iterator[Any]]


class TorchReader:
    """Reads a torch dataset with torch's DataLoader: its workers, collation and timeouts.

    For an indexed dataset the caller gives the keys of every batch, epoch by epoch, so that any
    sampler, sharding and resuming can be had. A dataset that iterates decides by itself.

    Args:
        dataset: a map-style or iterable-style dataset.
        settings: DataLoader's other arguments.
        batched: whether keys come as lists, whose samples are collated (an indexed dataset).
        batch_size, drop_last: how an iterable-style dataset is batched; ignored for others.
        shuffle: whether an IterDataPipe shuffles; None: as it says itself.

    Attributes:
        keeps_state: whether the state of the dataset is kept, which torchdata's StatefulDataLoader
            does if the dataset may have one. It knows only batches that come in order.
    """

    def __init__(
        self,
        dataset: Any,
        settings: WorkerSettings,
        *,
        batched: bool,
        batch_size: int | None = None,
        drop_last: bool = False,
        shuffle: bool | None = None,
    ) -> None:
        self._latest: Callable[[], Any] = lambda: None
        self._resumes = False
        self._keys: _Sampler | None = None if is_iterable_dataset(dataset) else _Sampler()
        if self._keys is None:
            batching: dict[str, Any] = {
                "batch_size": batch_size,
                "drop_last": drop_last,
                "shuffle": shuffle,
            }
        elif batched:
            batching = {"batch_sampler": self._keys}
        else:
            batching = {"sampler": self._keys, "batch_size": None}
        arguments = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
        in_order = settings.in_order or not settings.num_workers
        kind = stateful_loader() if in_order and may_have_state(dataset) else None
        self.keeps_state = kind is not None
        if settings.num_workers:
            ensure_short_socket_paths()
            arguments["worker_init_fn"] = WorkerStart(settings.worker_init_fn, self.keeps_state)
        with warnings.catch_warnings():  # torchdata 0.11 calls what torch 2.13 deprecated
            warnings.filterwarnings("ignore", "'set_vital' is deprecated")
            self._loader: Any = (kind or DataLoader)(dataset, **batching, **arguments)

    def __len__(self) -> int:
        """Returns the batches in an epoch of an iterable-style dataset, as DataLoader estimates."""
        return len(self._loader)

    def load(self, state: Any, drawn: bool) -> None:
        """Makes the next `read` continue from a state of the dataset.

        Args:
            state: what `Read.state` returned; None for the dataset as it is in this process, with
                new workers.
            drawn: whether the base seed, which DataLoader draws for workers, was already drawn.
        """
        loader, ended = self._loader, bool(state) and state["_iterator_finished"]
        if ended and loader.num_workers and not loader.persistent_workers:
            state = None  # the next epoch has new workers, with copies of this process's dataset
        loader.load_state_dict({} if state is None else state)
        ended = ended and state is not None
        self._resumes = ended or (drawn and state is not None)
        if ended:
            # The iterator that restores the end of an epoch gets no keys; the next epoch follows.
            loader._iterator = self._batches(lambda: iter(()), loader._get_iterator)

    def read(self, keys: Keys | None = None, skip: int = 0) -> Read:
        """Returns an iterator over the batches of one epoch, as collate_fn returns them.

        Args:
            keys: for an indexed dataset, gives the keys of a sample, or of a batch as a list, one
                after the other. Called once, from which keys are drawn as far ahead as the
                workers prefetch.
            skip: for an iterable-style dataset, batches to read and leave out at the beginning.

        Returns:
            The batches; its workers end with it, unless they are persistent.
        """
        lasting = self._loader._iterator  # None unless workers are persistent
        if any(worker.exitcode is not None for worker in getattr(lasting, "_workers", ())):
            # Ctrl-C in a terminal or a notebook ends persistent workers, too: start new ones.
            lasting._shutdown_workers()
            self._loader._iterator = None
        batches = self._batches(keys, partial(iter, self._loader))
        if not self._loader.persistent_workers:
            self._loader._iterator = None  # else it would keep its workers alive
        _end_together(batches)
        self._latest = weakref.ref(batches)
        for _ in range(skip):
            if next(batches, self) is self:  # the sentinel, which no batch is: the end
                break
        return _StatefulRead(batches) if self.keeps_state else Read(batches)

    def _batches(self, keys: Keys | None, make: Callable[[], Any]) -> Any:
        """Returns a new iterator of DataLoader, which draws a base seed unless one was drawn."""
        loader, generator = self._loader, self._loader.generator
        if self._keys is not None and keys is not None:
            self._keys.source = keys
        if self._resumes:
            loader.generator = torch.Generator()
        try:
            batches = make()
        finally:
            loader.generator, self._resumes = generator, False
        return batches

    def close(self) -> None:
        """Ends the workers, also where another thread waits for a batch of theirs.

        The reader cannot be used afterwards.
        """
        batches = self._latest()  # a weak reference: the loader keeps the object
        del self._loader
        if getattr(batches, "_workers", None):
            workers = list(batches._workers)
            batches._shutdown_workers()
            batches._worker_result_queue.close()  # of which the other thread is told
            for worker in workers:  # DataLoader does not wait for workers that it has terminated
                worker.join(_WORKERS_S)
            # A thread closes the pipes of each queue. A process that is forked before it is done
            # may inherit a number that is closed already, and close another file by it.
            deadline_s = time.monotonic() + _WORKERS_S  # a thread hangs if its pipe is full
            for queue in batches._index_queues:
                if queue._thread is not None:
                    queue._thread.join(max(0.0, deadline_s - time.monotonic()))


class Read:
    """Iterates over the batches of DataLoader's iterator without a mark for torch's profiler.

    The mark takes about 10 µs per batch, as long as everything else for a few small samples.

    Attributes:
        place: Place of the batch that came last, errors included, among those whose keys were drawn
            and that had not come before. It is above 0 only with in_order=False.
    """

    def __init__(self, batches: Any) -> None:
        self._batches, self._next_data = batches, batches._next_data
        self._ordered = not batches._num_workers or batches._in_order
        self.place = 0
        length = batches._IterableDataset_len_called
        self._length = math.inf if length is None else length  # DataLoader warns of more batches

    def __iter__(self) -> Read:
        return self

    def taken(self) -> int | None:
        """Returns how many batches came from workers, errors included; None without workers.

        If the number is the same before and after an error, the error is no batch's: a timeout.
        """
        batches = self._batches
        return batches._send_idx - len(batches._task_info) if batches._num_workers else None

    def state(self) -> Any:
        """Returns the state of the dataset after the batch yielded last; None if it has none."""
        return None

    def __next__(self) -> Any:
        batches = self._batches
        if profiler._is_profiler_enabled or batches._num_yielded >= self._length:
            return self._placed(lambda: next(batches))
        data = self._placed(self._next_data)
        batches._num_yielded += 1
        return data

    def _placed(self, take: Callable[[], Any]) -> Any:
        """Returns the next batch that a function takes, and sets `place`."""
        if self._ordered:
            return take()
        before = sorted(self._batches._task_info)
        try:
            return take()
        finally:
            left = self._batches._task_info
            self.place = next((n for n, task in enumerate(before) if task not in left), 0)


class _StatefulRead(Read):
    """Iterates over the batches of a StatefulDataLoader's iterator, and returns its state."""

    def __next__(self) -> Any:
        # The `__next__` of the iterator keeps the states that come with the batches.
        return next(self._batches)

    def state(self) -> Any:
        state = self._batches.state_dict()
        # Worker processes send copies. Without them, the dataset may change the object it returned.
        return state if self._batches._num_workers else deepcopy(state)


def _end_together(batches: Any) -> None:
    """Has DataLoader wait for all of its workers as long as it waits for one.

    It waits five seconds for each that does not end by itself, one after the other, before it
    terminates them: workers whose reads hang would keep `close` for minutes.
    """
    deadlines_s: list[float] = []

    def join(process_join: Callable[[float | None], None], timeout: float | None = None) -> None:
        deadlines_s.append(time.monotonic() + _WORKERS_S)
        left_s = max(_TERMINATED_S, deadlines_s[0] - time.monotonic())
        process_join(left_s if timeout is None else min(left_s, timeout))

    for worker in getattr(batches, "_workers", ()):
        if not isinstance(worker.join, partial):  # those that persist have it from before
            worker.join = partial(join, worker.join)


class _Sampler:
    """The sampler that DataLoader sees, which takes the keys of each epoch from `source`.

    StatefulDataLoader would skip keys of a sampler without a state; `source` has skipped them.
    """

    def __init__(self) -> None:
        self.source: Keys = lambda: iter(())
        self._resumes = False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumes = True

    def __iter__(self) -> Iterator[Any]:
        keys, resumes = _drawn(self.source), self._resumes
        self._resumes = False
        # A dataset in this process, which is restored next, may restore the state of a global
        # generator, from which a sampler draws to reach its position.
        return chain(list(islice(keys, 1)), keys) if resumes else keys


def _drawn(source: Keys) -> Iterator[Any]:
    # A generator, which starts with its first key: DataLoader makes two and uses the second.
    yield from source()
