"""The loader, which delivers the batches of a dataset, epoch after epoch.

This module imports torch, which takes about a second. `fastio.Loader` therefore imports it on first
use, and other modules import it inside functions.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt
from torch.utils.data import default_collate, default_convert
from typing_extensions import TypeVar

from fastio.cache import Cache
from fastio.device import CopyStream, copy_stream, current, resolve_device
from fastio.engine import OnError
from fastio.engine.ragged import Form
from fastio.errors import LoaderClosed
from fastio.feed.arguments import check_arguments, check_names, given_ranks, open_named
from fastio.feed.base import Asked, BatchInfo, Feed
from fastio.feed.current import CurrentFeed
from fastio.feed.epochs import Epochs
from fastio.feed.iterator import LoaderIterator, step_draw
from fastio.feed.request import Request
from fastio.feed.samplers import LikeDataLoader, own_arguments
from fastio.feed.seeds import ranks_of, warn_unsharded
from fastio.order.sampling import OrderName, Ranks, Sampling
from fastio.runtime.signatures import parameters
from fastio.sources.torch_dataset import WorkerSettings, is_iterable_dataset
from fastio.stats import Stats
from fastio.transforms import Augmentation, Mixed

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

_Batch = TypeVar("_Batch", covariant=True, default=Any)


class Loader(LikeDataLoader[_Batch]):
    """Loads batches of a dataset; takes the arguments of torch's DataLoader and is faster.

        crop = [fastio.RandomResizedCrop(224), fastio.RandomHorizontalFlip()]
        for images, labels in fastio.Loader("photos/", 64, shuffle=True, transforms=crop): ...

    Paths, fastio datasets, arrays in memory, a TensorDataset, and torchvision's ImageFolder and
    in-memory datasets (CIFAR10, MNIST, ...) use the native path: threads of this process read and
    decode the samples. Any other torch dataset uses the torch path: torch's DataLoader loads it,
    with worker processes if there are any. A `PerformanceWarning` then says why and what to do,
    once per process and reason; `stats()` has the reason too. Iterate over the loader once per
    epoch; several iterators may be open at once.

    A batch has the structure of the samples: tuples give a tuple, dicts a dict (on the torch path
    it is what collate_fn returns: a list for tuples). Images are contiguous tensors (N, C, H, W),
    or a list of tensors (C, H, W) if their sizes differ. Numbers and arrays become tensors, strings
    and bytes become lists. If several ranks share an epoch, the last batch may be padded, so that
    all ranks make the same number of steps; `batch.valid` is the number of samples without padding.
    Images are rotated upright according to their EXIF orientation, except those of a torchvision
    ImageFolder, which torchvision does not rotate either.

    Args:
        dataset: anything that `fastio.open` accepts: a path, a URL, a pattern or a list of them, a
            `datasets.Dataset`, or arrays, which are opened with the default options. Also one that
            `fastio.open` returned, several datasets mixed by `fastio.mix`, or a torch dataset.
        batch_size: number of samples per batch on each rank; None delivers single samples, whose
            numbers are Python's where DataLoader's are (int64, float64 and bool without transforms,
            in host memory).
        shuffle: whether the rows are delivered in random order, see `seed`. None means False.
        sampler, batch_sampler: iterables of row numbers, or of lists of them, whose order is
            followed exactly. The sampler is then responsible for dividing rows among ranks, and the
            rank of the process is part of the key of random draws. If you change a sampler's
            `epoch` (`set_epoch`), the augmentations use that epoch.
        num_workers: native path: number of threads; 0 uses one per core, and the ranks of a job on
            one machine divide its cores. torch path: number of worker processes; 0 uses none.
            "auto" starts with one per core, divided in the same way. On the native path the loader
            then measures which number of threads has the highest throughput and changes it while it
            runs (except for table files that are not packed). The number of threads never changes
            the batches.
        collate_fn: function that makes a batch from a list of samples. Its samples are what
            `dataset[i]` returns: PIL images for an ImageFolder without ToTensor, ints and lists for
            rows of a `datasets.Dataset` (which then uses the torch path), arrays for fastio's
            datasets, and None for nulls of table files that are not packed. Fields named in
            `transforms` are tensors. All transforms run before collate_fn, except those for the
            whole batch.
        pin_memory: deliver batches in pinned memory, each batch in memory of its own, so that they
            can be copied with non_blocking=True. Not needed with `device`. Requires CUDA.
        drop_last: drop the last batch (counted over all ranks) if it is not full.
        timeout: maximum time to wait for a batch, in seconds; 0 waits without a limit.
        worker_init_fn, multiprocessing_context, persistent_workers: settings of the worker
            processes of the torch path. The first two also apply to the processes of `PerSample`,
            which always persist until the loader is closed.
        generator: torch.Generator from which the order of every shuffled epoch is drawn, in exactly
            DataLoader's order. Where that is not possible (order="window", table files that are not
            packed), it draws the seed of each epoch's order, and for a mix one seed for all epochs
            unless `seed` is given. Ranks that share an epoch need generators in the same state.
        prefetch_factor: native path: number of batches prepared ahead (default: 2, or more if
            batches are small). torch path: number of batches prepared ahead per worker.
        pin_memory_device, in_order: as in DataLoader; the native path always keeps the order.
        transforms: {field: transform or list of transforms}, or a list alone if there is one image
            field. A transform is one of fastio's, or one of torchvision's that fastio knows.
            `PerSample(function)`, or any other callable, runs once per sample in worker processes
            or threads, after the crops. `OnBatch(function)` comes last and receives the field's
            values of a batch on the device. The key None holds callables that receive the whole
            batch. A field of bytes may have an `AudioDecode` first. On the torch path only
            Normalize, ToDtype and OnBatch are possible, by position or key; a list applies to the
            first element.
        device: device on which batches are delivered. On CUDA, batches are copied ahead of the
            consumer, images as uint8, and Normalize, ToDtype and OnBatch run on the device. None
            delivers in host memory.
        seed: seed of the order and of all augmentations, which are a function of (seed, epoch, row,
            how often the row occurred earlier in the epoch). None makes both follow
            torch.manual_seed: each shuffled epoch has the order that DataLoader would draw from
            torch's default generator. It is a permutation in memory, 4 bytes per row, which takes
            up to 80 ns per row to draw. Where it is not possible (docs/order.md), and for
            augmentations of rows that are not shuffled, one seed for all epochs is drawn when the
            first iterator is made; ranks that share an epoch take that of rank 0. With a generator,
            which decides the order, the seed applies to augmentations only.
        order: "sequential", "shuffle", "window" (shuffles within windows, for large reads), or
            "auto", which follows `shuffle` and shuffles data behind a URL by windows: see
            docs/remote.md.
        cache: a folder on a local disk, or a `fastio.Cache`. It keeps data that is fetched from
            URLs, and JPEG files are recoded there while epochs run, so that later epochs are
            faster; as in `fastio.open`. It can also be given with an ImageFolder, an open dataset
            of images, or a mix.
        on_error: what happens if a sample cannot be read: "raise" raises its error from next(),
            "skip" leaves it out (the batch is smaller; a batch without samples is left out, and
            this rank makes one step less than the others), "replace" puts another sample of the
            batch in its place. Faults of a whole shard, tar or store (missing, truncated, replaced,
            damaged outside of an image) are always raised.
        distributed: True delivers this process's part of each global batch; rank and world size
            come from torch.distributed if it is initialised, else from the environment variables
            RANK and WORLD_SIZE that torchrun sets. False delivers all of the batch to every
            process, as a DataLoader without a sampler does. None does the same, and warns if there
            are several processes. It has no effect with a sampler or on iterable datasets. Without
            `seed`, all processes must make such loaders in the same order, and in the first epoch
            they wait until rank 0 has started it. A `DeviceMesh` of torch divides the batch along
            all of its dimensions, and needs `seed`. A part of a mesh, such as mesh["dp", "fsdp"],
            gives the same batches to ranks that differ only in other dimensions.
        rank, world_size: the part of each global batch to deliver, instead of `distributed`.
        fields: names of the fields to deliver, in this order; None delivers all. Native path only.
        channels_last: deliver image batches (N, C, H, W) in torch.channels_last memory format,
            which can make convolutions faster. By default they are contiguous.
        repeat: how often each row of an epoch is delivered, each time with other random draws:
            repeated augmentation (Hoffer et al., 2020). The copies are neighbours in a global
            batch, on different ranks if there are several. An epoch keeps its length, so that it
            has the first `1 / repeat` of the rows of its order. Not with a sampler, a mix, tokens,
            or an iterable dataset.
        ragged: form of fields whose rows differ in size (lists of table files, arrays with open
            axes, tokens), for all fields or as {field: form}. "list" gives a list of tensors;
            "padded" pads with zeros to the longest row of the batch and adds `NAME_length`
            (`NAME_shape` unless the field has exactly one open axis); "nested" gives torch's jagged
            layout; "flat" concatenates the rows and adds `NAME_offsets`. In tuples the two values
            form a tuple. None means "padded" for table files that are not packed, else "list".
            Where samples are delivered one by one (batch_size=None, collate_fn), each has a tensor
            of its own.

    Attributes:
        dataset: the dataset, as given or opened.
        device: the device on which batches are delivered, or None.
        distributed: as given. If it is None, a library that runs the training loop may set it
            before the first iterator is made.
        batch_size, drop_last, num_workers, collate_fn, pin_memory, timeout, generator, ...: as in
            DataLoader. Attributes that DataLoader protects cannot be assigned; a change of the
            others applies from the next epoch.

    Raises:
        SourceNotFound: there is no dataset at the path.
        TypeError: an argument is an option of `fastio.open`.
        TransformError: the transforms do not fit the dataset, each other, or the path.
        ValueError: arguments are mutually exclusive, as in DataLoader.

    Warns:
        ShardingWarning: one of several processes receives all of the data, and `distributed` does
            not say that it should. Issued when an iterator is made, once per process.
    """

    dataset: Any  # of any kind, with the attributes of that kind

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        transforms: Any = None,
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        order: OrderName = "auto",
        cache: Cache | str | os.PathLike[str] | None = None,
        on_error: OnError = "raise",
        distributed: bool | DeviceMesh | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        fields: Iterable[str] | None = None,
        ragged: Form | Mapping[str, Form] | None = None,
        channels_last: bool = False,
        repeat: int = 1,
    ) -> None:
        auto_threads = num_workers == "auto"
        num_workers = check_arguments(num_workers, timeout, prefetch_factor, generator, fields)
        self._given_ranks = given_ranks(distributed, rank, world_size, seed)
        drawn = Sampling(batch_size, shuffle, sampler, batch_sampler, drop_last, order)
        sampling = replace(drawn, repeat=repeat)
        # Attributes have the names of the arguments, so that Lightning can make another loader
        # from them. Those that are not protected may be assigned; the next epoch uses the change.
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        # DataLoader's setter refuses a context without workers; the native path ignores it.
        self.__dict__["_DataLoader__multiprocessing_context"] = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.pin_memory_device = pin_memory_device
        self.in_order = in_order
        self._usual_collate = default_collate if sampling.batched else default_convert
        self.collate_fn = self._usual_collate if collate_fn is None else collate_fn
        self.transforms = transforms
        self.device = resolve_device(device)
        self.seed, self.order, self.on_error = seed, order, on_error
        self.rank, self.world_size, self.distributed = rank, world_size, distributed
        self.channels_last, self.repeat, self.ragged = channels_last, repeat, ragged
        given = open_named(dataset, cache, fields)
        self.dataset, self._opened, self.fields, self.cache = given
        request = Request(
            self.dataset,
            sampling,
            WorkerSettings.of(self, self._usual_collate),
            transforms,
            self.device,
            on_error,
            self.fields,
            channels_last,
            ragged=ragged,
            cache=self.cache,
            auto_threads=auto_threads,
        )
        with ExitStack() as failed:  # closes what is open, unless all goes well
            if self._opened is not None:
                failed.callback(self._opened.close)
            self._current = CurrentFeed(request)
            feed = self._current.feed
            failed.callback(self._current.close)
            self._epochs = Epochs(
                feed,
                None if seed is None else int(seed),
                generator,
                persistent_workers and num_workers > 0,
            )
            if (distributed or rank is not None) and seed is None and sampling.ours and feed.random:
                self._epochs.take_name()  # all ranks make their loaders in the same order
            self._imitate(dataset, batch_size if batch_sampler is None else None, drop_last)
            self._current.begin(WorkerSettings.of(self, self._usual_collate))
            failed.pop_all()
        self._batch: BatchInfo | None = None
        self._stats = Stats()
        self._stream: CopyStream | None = None
        self._closed = False
        self._open: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()

    def __new__(cls, *args: Any, **options: Any) -> Loader[_Batch]:
        # Only __new__ sees arguments that __init__ does not have.
        own = parameters(cls.__init__).keys()  # of a subclass, too
        check_names(options.keys() - own, parameters(Loader.__init__).keys())
        return super().__new__(cls)

    @property
    def _feed(self) -> Feed:
        return self._epochs.feed

    def _follow_changes(self) -> None:
        """Changes the feed if attributes, or the transforms of the dataset, have changed."""
        workers = WorkerSettings.of(self, self._usual_collate)
        before = self._current.follow(workers, in_use=bool(self._open))
        if before is not None:
            self._epochs.feed, self._epochs.generator = self._current.feed, self.generator
            self._stats += before

    @property
    def path(self) -> Literal["native", "torch"]:
        """The path that loads the dataset; `stats().reason` says why it is the torch path."""
        return self._feed.path

    @property
    def batch(self) -> BatchInfo:
        """Information about the batch yielded last: rows, epoch, number of valid samples and more.

        Raises:
            RuntimeError: no batch has been yielded yet.
        """
        if self._batch is None:
            raise RuntimeError("no batch has been delivered yet")
        return self._batch

    def __repr__(self) -> str:
        given = self._feed.sampling.batch_sampler
        batches = f"batch_size={self.batch_size}" if given is None else "batch_sampler"
        order = self._feed.shuffling(self._ranks()).what()
        return f"Loader({self.dataset!r}, {batches}, {self.path} path, {order})"

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch, which is the same on every rank.

        Raises:
            TypeError: the sampler or the iterable dataset has no length.
        """
        counted = self.path == "native" and hasattr(self.dataset, "__len__")
        if counted and not self._closed and len(self.dataset) != self._feed.epoch_rows():
            self._follow_changes()
        return self._feed.steps(self._ranks())

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
        """Starts the next epoch, or continues where a loaded state says.

        Raises:
            LoaderClosed: the loader was closed.
            LoaderTimeout: ranks share an epoch without a seed, and rank 0 did not start it within
                `timeout`, or within the timeout of the process group.
            ValueError: ranks share an epoch, and there is neither a seed nor a process group in
                which to agree on one.
        """
        if self._closed:
            raise LoaderClosed("this loader was closed: create a new one")
        self._follow_changes()
        chosen = self.distributed is not None or self._given_ranks is not None
        if not chosen and self._feed.sampling.ours and not is_iterable_dataset(self.dataset):
            warn_unsharded()
        epochs = self._epochs
        epochs.follow_sampler()
        with current(self.device):
            epochs.ranks, epochs.timeout_s = self._ranks(), self.timeout
            cursor = epochs.drawn(epochs.next).for_run()
            run = self._feed.run(cursor, self._ranks())
        # All epochs use one stream, because torch does not reuse the memory of one stream on
        # another.
        if self._stream is None:
            self._stream = copy_stream(self.device)
        iterator = LoaderIterator(self, cursor, run)
        self._open.add(iterator)
        epochs.start(iterator, cursor)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch (from 0) that the next iterator delivers.

        Without a call, each new iterator delivers the following epoch. If `epoch` is the one that a
        loaded state is in the middle of, the iterator continues there. A sampler with a `set_epoch`
        method is told as well. If the `epoch` of a sampler is changed afterwards, before the next
        iterator is made, that change sets the epoch of this loader: the later call decides.

        Raises:
            ValueError: the epoch is negative.
        """
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the loader as JSON values: under 1 KB, or 4 KB with a generator.

        The state counts only batches that the latest iterator has yielded. After the end of an
        iterator it is the beginning of the next epoch. It can be loaded with any number of ranks,
        threads and samples per batch. With a sampler of yours it counts samples, and is exact if
        the sampler yields the same rows again, as torch's random samplers do. It includes the
        states of the loader's generator and of such a sampler's generator. For an iterable dataset
        it counts batches, which are read and dropped after the state is loaded.
        If a sampler or a torch dataset has a state of its own, the loader's state includes it, with
        whatever types and size it has, and the sampler or dataset continues from it
        (docs/order.md).

        The state includes seeds that were given or drawn. If torch's default generator draws the
        seed of each epoch (see `seed`), the state has the seed of the current epoch only; to repeat
        the epochs after it, also restore torch's generator (`torch.set_rng_state`). Otherwise, if
        no seed has been drawn yet, this method draws it, and a later `torch.manual_seed` has no
        effect. If ranks share an epoch, no seed is drawn before the first iterator, and the state
        has none. With a generator, the state is exact only if one iterator was open at a time.
        """
        self._epochs.ranks = self._ranks()
        return self._epochs.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iterator continue exactly where `state_dict` was called.

        The seed of the state replaces the seed of this loader. The generators of the loader and of
        a random sampler are set to the saved states, and a sampler with a `set_epoch` method is
        told the epoch.

        Raises:
            StateMismatch: the state belongs to another dataset, version or order; or only one of
                the state and this loader has a generator; or the state includes that of a dataset,
                and torchdata is not installed or the number of workers differs.
        """
        self._epochs.ranks = self._ranks()
        self._epochs.load(state)

    def augmentation(
        self,
        rows: npt.ArrayLike,
        epoch: int | None = None,
        field: str | None = None,
        occurrence: npt.ArrayLike = 0,
        view: int = 0,
    ) -> list[Augmentation]:
        """Returns the crops and flips that rows get in an epoch, in this process.

        Args:
            rows: int64 (n,), global row numbers.
            epoch: the epoch; None for that of the batch yielded last.
            field: name of the image field; None for the only one.
            occurrence: how often the row occurred earlier in the epoch: one number for all rows, or
                int64 (n,), as in `batch.occurrences`.
            view: number of the view, for a field with `fastio.Views`.

        Raises:
            TransformError: the loader uses the torch path, where datasets draw their own.
            RuntimeError: the seed of the epoch is not known: none was given, and either no iterator
                was made, or torch's default generator draws one per epoch and this is another
                epoch.
        """
        if epoch is None:
            epoch = self._epochs.at.epoch if self._batch is None else self._batch.epoch
        cursor = self._epochs.cursor_of(epoch)
        asked = Asked.of(rows, occurrence, field, view)
        return self._feed.augmentation(cursor, self._ranks(), asked)

    def mixing(self, size: tuple[int, int], step: int | None = None) -> list[Mixed | None]:
        """Returns how the samples of a batch are mixed, in the epoch of the batch yielded last.

        Args:
            size: height and width of its images.
            step: number of the batch in its epoch; None for the batch yielded last.

        Returns:
            What each `Mixup`, `CutMix` or choice of them has drawn; None if it does not mix.

        Raises:
            RuntimeError: no batch has been yielded yet.
        """
        info, finish = self.batch, self._feed.finish
        info = info if step is None else info._replace(step=step)
        draw = step_draw(self._epochs.cursor_of(info.epoch), self._ranks().rank, info)
        return [each.drawn(draw, *size) for each in ([] if finish is None else finish.mixing)]

    def stats(self) -> Stats:
        """Returns the counters since the loader was made, and how its rows are shuffled."""
        total = self._feed.stats() + self._stats
        return replace(total, order=self._feed.shuffling(self._ranks()).sentence())

    def close(self) -> None:
        """Stops all iterators, threads and processes, and closes a dataset opened here.

        May be called more than once.
        """
        self._closed = True
        for iterator in list(self._open):
            iterator.close()
        self._current.close()
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Loader[_Batch]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # Iterators and the CUDA stream belong to this process.
        return {**self.__dict__, "_open": None, "_stream": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=weakref.WeakSet())

    def _ranks(self) -> Ranks:
        # Looked up whenever it is needed, because torch.distributed may start late.
        return ranks_of(self._given_ranks, self._feed.sampling, self.distributed)


Loader.__new__.__wrapped__ = Loader.__init__  # type: ignore[attr-defined] # for help()
Loader._fixed = own_arguments(Loader.__init__)
