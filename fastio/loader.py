"""The loader: batches of a dataset, epoch after epoch.

This module imports torch, which takes a second: `fastio.Loader` imports it when it is first asked
for, and other modules import it inside functions.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import replace
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt
from torch import Generator
from torch.utils.data import DataLoader, Sampler, default_collate, default_convert
from typing_extensions import TypeVar

from fastio.cache import Cache
from fastio.engine import OnError
from fastio.errors import LoaderClosed, StateMismatch
from fastio.formats import Options, find_data, open_found
from fastio.formats import open as open_data
from fastio.formats.hugging_face import is_hugging_face
from fastio.formats.registry import kind_of
from fastio.mixing import Mix
from fastio.ragged import Form
from fastio.resume import Cursor, from_state, to_state
from fastio.samplers import NextEpoch, shown_samplers
from fastio.sampling import OrderName, Ranks, Sampling
from fastio.stats import Stats
from fastio.transforms import Augmentation

if TYPE_CHECKING:
    import torch

    from fastio.device import CopyStream, DevicePrefetcher
    from fastio.feed import BatchInfo, Feed
    from fastio.formats.torch_dataset import WorkerSettings
    from fastio.tuning import ThreadTuner

_Batch = TypeVar("_Batch", covariant=True, default=Any)


class Loader(DataLoader[_Batch]):
    """Batches of a dataset, epoch after epoch: DataLoader's arguments and meaning, faster.

    A path, a fastio dataset, or a torchvision ImageFolder whose transforms fastio knows takes the
    native path: threads of this process read and decode. Any other torch dataset takes the torch
    path: its samples go through torch's DataLoader and its worker processes, of which a
    `PerformanceWarning` tells, once a process and reason, why and what to do; `stats()` says it,
    too. Iterate over it once an epoch; several iterators may be open at once.

    What is yielded has the samples' structure: a tuple stays a tuple, a dict a dict (on the torch
    path it is what collate_fn makes, a list for tuples). Images are contiguous tensors
    (N, C, H, W); a list of (C, H, W) where sizes differ. Numbers and arrays are tensors, strings
    and bytes lists. The last batch may be padded where several ranks share an epoch, so
    that all make the same number of steps: `batch.valid` tells. Images are delivered upright, as
    their EXIF orientation says; those of a torchvision ImageFolder as torchvision does, not turned.

    Args:
        dataset: what `fastio.open` takes: a path, a URL, a pattern or a list of them, or a
            `datasets.Dataset`, which is then opened with the default options; or a dataset that
            `fastio.open` returned, several of them mixed (`fastio.mix`), or a torch dataset.
        batch_size: samples of a batch on each rank; None for single samples.
        shuffle: deliver the rows in a random order, see `seed`; None is False.
        sampler, batch_sampler: iterables of row numbers, or lists of them, followed exactly; ranks
            are then their business, and the process's rank keys what is drawn. Where the user moves
            a sampler's `epoch` (`set_epoch`), the augmentations' epoch follows it.
        num_workers: native path: the number of threads, 0 for one per core that this process may
            use. torch path: the number of worker processes, 0 for none. "auto" begins with one for
            each core, divided among the processes of torchrun on this machine; on the native path
            the loader then measures which number delivers more samples per second, and changes it
            while it runs (not for table files that are not packed). The batches are the same for
            any number of threads.
        collate_fn: makes a batch of the list of its samples, which are what `dataset[i]` gives: PIL
            images of an ImageFolder without ToTensor, ints and lists of rows of a
            `datasets.Dataset` (those with nulls, images, nested columns or a format take the torch
            path), arrays of fastio's datasets, None for nulls of tables as they are. Fields that
            `transforms` names are tensors. All transforms are done but those for the whole batch.
        pin_memory: deliver in pinned memory, each batch in memory of its own, for a later copy
            with non_blocking=True. Unnecessary with `device`. Needs CUDA.
        drop_last: leave out the last batch (over all ranks) if it is not full.
        timeout: seconds to wait for a batch; 0 for no limit.
        worker_init_fn, multiprocessing_context, persistent_workers: of the torch path's processes;
            without effect on the native path, which has none.
        generator: torch.Generator that every shuffled epoch is drawn from, exactly in DataLoader's
            order. Where that order is not possible (order="window", tables as they are, a mix) it
            draws the seed of each epoch's order. Ranks that share an epoch need generators in the
            same state.
        prefetch_factor: native path: batches ahead of the consumer (2, or more where batches are
            small). torch path: batches ahead per worker.
        pin_memory_device: as in DataLoader, where it is deprecated.
        in_order: torch path only; the native path always keeps the order.
        transforms: {field: transform or list of them}, or just a list for the only image field.
            fastio's specifications, or torchvision's objects where known. `OnBatch(function)`
            comes last and gets the field's batch on the device; other callables are refused. The
            key None is for callables that get the whole batch, once. A field of bytes may have an
            `AudioDecode` first. torch path: Normalize, ToDtype and OnBatch, by position or key; a
            list is for the first part.
        device: where batches are delivered; on CUDA they are copied ahead of the consumer, images
            as uint8, with Normalize, ToDtype and OnBatch done there. None: host memory.
        seed: of the order and of all augmentations, which are a function of (seed, epoch, row, how
            often the row came in the epoch before).
            None: they follow torch.manual_seed. Each shuffled epoch draws from torch's default
            generator what DataLoader draws, and has the order of its RandomSampler, so that losses
            can be compared bit by bit. That order is a permutation in memory, 4 bytes a row, drawn
            in 5 to 80 ns a row (1 million rows in 0.04 s, 2^24 in 1.3 s); give a seed where that
            is too long. Where it is not possible (data behind a URL, whose next epoch is known
            ahead, order="window", tables as they are, `datasets` without a collate_fn and without
            order="shuffle", a mix, more than 2^24 rows), and for augmentations of rows that are
            not shuffled, one seed of all epochs is drawn when the first iterator is made; ranks
            that share an epoch take that of rank 0 of torch.distributed. Beside a generator, which
            decides the order, a seed is of the augmentations alone.
        order: "sequential", "shuffle", "window" (large reads), or "auto": by `shuffle`; what is
            behind a URL is then shuffled by windows: see docs/remote.md.
        cache: of a dataset given as a URL, and of the URLs in a mix: as in `fastio.open`.
        on_error: what a sample that can't be read does: "raise" its error from next(), "skip" it
            (the batch shrinks; without any sample left it does not come, and this rank makes a
            step less than others), or "replace" it by another of its batch. What is wrong with a
            whole shard, tar or store (missing, cut off, replaced, damaged outside of an image) is
            no sample's error: it is raised in any case.
        distributed: True delivers this process's part of each global batch, by torch.distributed
            where it is initialised, else by RANK and WORLD_SIZE of the environment, where torchrun
            puts them. False delivers all of it to every process, as a DataLoader without a sampler
            does, and so does None, which warns where there are several processes. Without effect
            beside a sampler, and on datasets that iterate. Without `seed`, processes make such
            loaders in the same order, and wait in the first epoch until rank 0 has begun it.
        rank, world_size: the part of each global batch to deliver, in place of `distributed`.
        fields: the fields to deliver, in this order; None for all. Native path only.
        channels_last: lay image batches (N, C, H, W) out as torch.channels_last memory, which
            convolutions may be faster on; else they are contiguous.
        ragged: the form of fields whose rows differ in size (lists of table files, arrays with open
            axes, tokens), for all or as {field: form}: "list" of tensors; "padded" with zeros to
            the longest of the batch, beside `NAME_length` (`NAME_shape` where several axes are
            open); "nested", torch's jagged layout; "flat", the rows one after the other, beside
            `NAME_offsets`. In samples that are tuples the two stand together as a tuple. None:
            "padded" for table files that are not packed, else "list". Where samples come one by
            one (batch_size=None, collate_fn) each has its own tensor.

    Attributes:
        dataset: the dataset, as given or opened.
        device: where batches are delivered, or None.
        distributed: as given. Where it is None, a library that runs the loop may set it before the
            first iterator is made.
        batch_size, drop_last, num_workers, collate_fn, pin_memory, timeout, generator, ...: as
            DataLoader has them. Those that DataLoader protects cannot be assigned to; others can,
            and the next epoch follows.

    Raises:
        SourceNotFound: there is no dataset at the path.
        TypeError: an argument is one of `fastio.open`.
        TransformError: transforms that do not fit the dataset, each other, or the path.
        ValueError: arguments that exclude each other, as DataLoader's do.

    Warns:
        ShardingWarning: from the first iterator, once a process: one of several processes gets all
            of the data, and `distributed` does not say that it should.
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
        distributed: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        fields: Iterable[str] | None = None,
        ragged: Form | Mapping[str, Form] | None = None,
        channels_last: bool = False,
    ) -> None:
        from fastio.device import resolve_device
        from fastio.formats.torch_dataset import dataset_kind
        from fastio.paths import Request, dataset_settings, make_feed
        from fastio.seeds import process_ranks
        from fastio.workers import TorchFeed

        auto_threads = num_workers == "auto"
        if isinstance(num_workers, str):
            num_workers = _first_workers(num_workers)
        _check(num_workers, timeout, prefetch_factor, generator)
        if isinstance(fields, str):
            raise ValueError(f"fields is a list of names: fields=[{fields!r}]")
        if (rank is None) != (world_size is None):
            raise ValueError("rank and world_size are given together")
        if distributed is not None and rank is not None:
            raise ValueError("distributed option is mutually exclusive with rank and world_size")
        sampling = Sampling(batch_size, shuffle, sampler, batch_sampler, drop_last, order)
        # Attributes are named as the arguments are, so that Lightning can make another loader of
        # them; those that are not protected may be assigned to, and the next epoch follows.
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        # DataLoader's setter refuses one without workers, and on the native path it has no effect.
        self.__dict__["_DataLoader__multiprocessing_context"] = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.pin_memory_device = pin_memory_device
        self.in_order = in_order
        if collate_fn is None:
            collate_fn = default_collate if sampling.batched else default_convert
        self.collate_fn = collate_fn
        self.transforms = transforms
        self.device = resolve_device(device)
        self.seed = seed
        self.order = order
        self.on_error = on_error
        self.rank = rank
        self.world_size = world_size
        self.fields = None if fields is None else tuple(fields)
        self.channels_last = channels_last
        self.ragged = ragged
        self._batched = sampling.batched
        self._given_ranks = None if rank is None or world_size is None else Ranks(rank, world_size)
        self.distributed = distributed
        if distributed:
            process_ranks()  # impossible ones are known here
        self._opened = _open(dataset, cache, self.fields)
        self.dataset = dataset if self._opened is None else self._opened
        if self._opened is not None and self.fields is not None:
            self.fields = _read_fields(self._opened, self.fields)
        self.cache = cache if isinstance(dataset, Mix) else None  # else it is the dataset's
        self._request = Request(
            self.dataset,
            sampling,
            self._worker_settings(),
            transforms,
            self.device,
            on_error,
            self.fields,
            channels_last,
            ragged=ragged,
            cache=self.cache,
            auto_threads=auto_threads,
        )
        try:
            feed = make_feed(self._request)
        except BaseException:
            if self._opened is not None:
                self._opened.close()
            raise
        if isinstance(feed, TorchFeed):
            feed.warn()
        self._following = NextEpoch(
            feed,
            Cursor(0, 0, None if seed is None else int(seed)),
            generator,
            persistent_workers and num_workers > 0,
        )
        if (distributed or rank is not None) and seed is None and sampling.ours and feed.random:
            self._following.take_name()  # in the order in which all ranks make their loaders
        self.batch_size = batch_size if batch_sampler is None else None
        self.drop_last = drop_last
        self.__dict__["sampler"], self.__dict__["batch_sampler"] = shown_samplers(
            self.dataset, self._following, self.batch_size
        )
        if num_workers:
            self.multiprocessing_context = multiprocessing_context
            if prefetch_factor is None and self.path == "torch":
                self.prefetch_factor = 2
        self._workers, self._settings = self._worker_settings(), dataset_settings(self.dataset)
        self._tuner = self._make_tuner() if auto_threads else None
        self._at = self._drawn = self._next
        self._sampler_epoch = 0  # that was seen last
        self._batch: BatchInfo | None = None
        self._stats = Stats()
        self._stream: CopyStream | None = None
        self._closed = False
        self._open: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()
        self._replaced: list[Feed] = []  # feeds of before a change, which iterators may still read
        self._latest: weakref.ref[LoaderIterator] | None = None
        # What DataLoader's own __init__, which is not called, leaves behind: DataLoader's
        # __setattr__ protects attributes from here on.
        self._dataset_kind = dataset_kind(dataset)
        self._iterator = None
        object.__setattr__(self, "_DataLoader__initialized", True)

    def __new__(cls, *args: Any, **options: Any) -> Loader[_Batch]:
        # The only place that sees arguments that __init__ does not have.
        for name in _OF_DATA.intersection(options):
            raise TypeError(
                f"{name} is an option of the data: fastio.Loader(fastio.open(source, {name}=...))"
            )
        if "threads" in options:
            raise TypeError("the number of threads is num_workers, which may be 'auto'")
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_DataLoader__initialized" in self.__dict__:
            raise ValueError(f"{name} attribute should not be set after Loader is initialized")
        super().__setattr__(name, value)

    @property
    def sampler(self) -> Sampler[Any] | Iterable[Any]:  # type: ignore[override]
        """The sampler that was given, or one of torch's classes that gives the next epoch's rows.

        Raises:
            RuntimeError: Accelerate is about to make a DataLoader of this loader's parts.
        """
        found: Sampler[Any] | Iterable[Any] = self._shown("sampler")
        return found

    @property
    def batch_sampler(self) -> Sampler[Any] | Iterable[Any] | None:  # type: ignore[override]
        """The batch sampler that was given; or torch's BatchSampler; None for single samples.

        Raises:
            RuntimeError: Accelerate is about to make a DataLoader of this loader's parts.
        """
        found: Sampler[Any] | Iterable[Any] | None = self._shown("batch_sampler")
        return found

    def _shown(self, name: str) -> Any:
        # Accelerate's prepare and skip_first_batches take a loader apart and make a plain
        # DataLoader of its dataset and its sampler, without transforms and threads. They leave no
        # other place where they could be told.
        if sys._getframe(2).f_globals.get("__name__") == "accelerate.data_loader":
            raise RuntimeError(
                "Accelerate would replace this fastio.Loader by a plain DataLoader. Instead of "
                "accelerator.prepare(loader), use fastio.accelerate.prepare(accelerator, loader); "
                "skip_first_batches accepts its result. For the Trainer of transformers, use "
                "fastio.accelerate.TrainerLoaders"
            )
        self._following.ranks = self._ranks()
        return self.__dict__[name]

    @property
    def _feed(self) -> Feed:
        return self._following.feed

    @property
    def _at(self) -> Cursor:
        """Where the user stands. Made of `_place` when it is asked for, not for each batch."""
        cursor, position = self._place
        return replace(cursor, position=position)

    @_at.setter
    def _at(self, cursor: Cursor) -> None:
        self._place = cursor, cursor.position

    @property
    def _next(self) -> Cursor:
        return self._following.cursor

    @_next.setter
    def _next(self, cursor: Cursor) -> None:
        self._following.cursor = cursor

    @property
    def _generator(self) -> torch.Generator | None:
        return self._following.generator

    def _follow_changes(self) -> None:
        """Makes the feed again where attributes, or transforms of the dataset, were changed."""
        from fastio.paths import dataset_settings, make_feed
        from fastio.workers import TorchFeed

        workers, settings = self._worker_settings(), dataset_settings(self.dataset)
        if (workers, settings) == (self._workers, self._settings):
            return
        request = replace(self._request, workers=workers)
        before, feed = self._feed, make_feed(request)
        if isinstance(feed, TorchFeed):
            feed.warn()
        self._following.feed, self._following.generator = feed, self.generator
        self._request, self._workers, self._settings = request, workers, settings
        self._stats += before.stats()
        if self._open:  # an iterator that is under way goes on with what it has
            self._replaced.append(before)
        else:
            before.close()
        if self._tuner is not None:
            self._tuner = self._make_tuner()

    def _worker_settings(self) -> WorkerSettings:
        """DataLoader's own arguments, as the attributes say now."""
        from fastio.formats.torch_dataset import WorkerSettings

        usual = default_collate if self._batched else default_convert
        return WorkerSettings(
            self.num_workers,
            None if self.collate_fn is usual else self.collate_fn,
            self.pin_memory,
            self.timeout,
            self.worker_init_fn,
            self.multiprocessing_context,
            self.generator,
            self.prefetch_factor,
            self.persistent_workers,
            self.pin_memory_device,
            self.in_order,
        )

    @property
    def path(self) -> Literal["native", "torch"]:
        """Which path the dataset took; `stats().reason` says why it was torch's."""
        return self._feed.path

    @property
    def batch(self) -> BatchInfo:
        """What is known of the batch yielded last.

        Raises:
            RuntimeError: none was yielded yet.
        """
        if self._batch is None:
            raise RuntimeError("no batch was yielded yet")
        return self._batch

    def __repr__(self) -> str:
        given = self._feed.sampling.batch_sampler
        batches = f"batch_size={self.batch_size}" if given is None else "batch_sampler"
        return f"Loader({self.dataset!r}, {batches}, {self.path} path)"

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank.

        Raises:
            TypeError: the sampler, or a dataset that iterates, has no length.
        """
        counted = self.path == "native" and isinstance(self.dataset, Sized)
        if counted and not self._closed and len(self.dataset) != self._feed.epoch_rows():
            self._follow_changes()
        return self._feed.steps(self._ranks())

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
        """Begins the next epoch, or goes on where a loaded state says.

        Raises:
            LoaderClosed: after close().
            LoaderTimeout: ranks share an epoch without a seed, and rank 0 did not begin it within
                `timeout`, or the process group's timeout.
            ValueError: ranks share an epoch, and there is neither a seed nor a process group in
                which to agree on one.
        """
        from fastio.device import DevicePrefetcher, copy_stream, current
        from fastio.formats.torch_dataset import is_iterable_dataset
        from fastio.seeds import warn_unsharded

        if self._closed:
            raise LoaderClosed("this loader was closed: make another one")
        self._follow_changes()
        chosen = self.distributed is not None or self._given_ranks is not None
        if not chosen and self._feed.sampling.ours and not is_iterable_dataset(self.dataset):
            warn_unsharded()
        self._follow_sampler()
        with current(self.device):
            self._following.ranks, self._following.timeout_s = self._ranks(), self.timeout
            cursor = self._following.drawn(self._next)
            run = self._feed.run(cursor, self._ranks())
        if self._stream is None:
            self._stream = copy_stream(self.device)
        batches = DevicePrefetcher(
            run,
            self.device,
            finish=self._feed.finish,
            ready=run.ready,
            stats=self._stats,
            stream=self._stream,
        )
        iterator = LoaderIterator(self, cursor, batches)
        self._open.add(iterator)
        self._latest = weakref.ref(iterator)
        self._at = cursor
        self._next = cursor.at_epoch(cursor.epoch + 1)
        return iterator

    @property
    def _draws_order(self) -> bool:
        """Whether the order of an epoch comes from the generator."""
        return self._following.draws_order

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` (from 0) the next one to be iterated over.

        Without it each new iterator is the next epoch's. The epoch that a loaded state is in the
        middle of goes on there. A sampler that has `set_epoch` is told as well. A sampler whose
        `epoch` is changed after that, before the next iterator, sets this loader's epoch: the
        later call decides.
        """
        if epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {epoch}")
        self._tell_sampler(int(epoch))
        if epoch != self._next.epoch:
            self._next = self._next.at_epoch(int(epoch))
        self._at, self._latest = self._next, None

    def _samplers(self) -> list[Any]:
        """The sampler that was given, and those in it, the outer one first."""
        sampling = self._feed.sampling
        given = sampling.sampler if sampling.batch_sampler is None else sampling.batch_sampler
        return [one for one in (given, getattr(given, "sampler", None)) if one is not None]

    def _tell_sampler(self, epoch: int) -> None:
        """Sets the epoch of the sampler, where it has some."""
        for sampler in self._samplers():
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
                break
        self._sampler_epoch = self._epoch_of_sampler()

    def _epoch_of_sampler(self) -> int:
        """0 where it has none."""
        epochs = [getattr(sampler, "epoch", None) for sampler in self._samplers()]
        return next((epoch for epoch in epochs if type(epoch) is int and epoch >= 0), 0)

    def _follow_sampler(self) -> None:
        """Makes the epoch that the user moved the sampler to the next one."""
        epoch = self._epoch_of_sampler()
        if epoch not in (self._sampler_epoch, self._next.epoch):
            self._next = self._next.at_epoch(epoch)
        self._sampler_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, as JSON values: under a kilobyte, 4 KB with a generator.

        Only batches that the latest iterator yielded count. After an iterator's end the state is
        the next epoch's beginning. The state holds for any number of ranks, threads and samples a
        batch; with a sampler of the user's it counts samples, and it is exact if the sampler gives
        the same again. A generator's own state is part of it. For a dataset that iterates it counts
        batches, which are read and left out when the state is loaded.

        Seeds that were given or drawn are part of it. Where torch's default generator draws each
        epoch's (see `seed`), the state has those of the epoch that it is in the middle of; for the
        same epochs behind that one, put torch's generator back too (`torch.set_rng_state`).
        Otherwise, if no seed was drawn yet, this draws it, so that a later `torch.manual_seed` no
        longer matters. Where ranks share an epoch, none is drawn before the first iterator, and
        the state then has none. With a generator, the state is exact if one iterator at a time was
        open.
        """
        from fastio.seeds import generator_state, next_seed

        generator, ranks, cursor = self._generator, self._ranks(), self._at
        alone = ranks.world_size == 1
        undrawn = cursor.seed is None and cursor.order_seed is None and generator is None
        if undrawn and alone and not self._feed.follows_torch:
            self._at = self._next = replace(cursor, seed=next_seed())
        cursor = self._at
        if generator is not None and self._draws_order and cursor.generator is None:
            cursor = replace(cursor, generator=generator_state(generator))
        name = self._feed.order_name(self._ranks())
        return to_state(cursor, fingerprint=self._feed.fingerprint, order=name)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iterator go on exactly where `state_dict` was called.

        The state's seed goes before this loader's. A generator is put into the state that it had,
        and a sampler that has `set_epoch` is told the epoch.

        Raises:
            StateMismatch: the state is of another dataset, version or order, or it was saved with
                a generator and this loader has none, or the other way round.
        """
        if isinstance(state, Mapping) and state.get("fingerprint") == self._feed.fingerprint:
            self._feed.adopt_order(str(state.get("order")), self._ranks())
        name = self._feed.order_name(self._ranks())
        cursor = from_state(state, fingerprint=self._feed.fingerprint, order=name)
        if self._draws_order != (cursor.generator is not None):
            had, has = ("without", "with") if self._draws_order else ("with", "without")
            raise StateMismatch(
                f"the loader state was saved {had} a generator, and this loader is {has} one: give "
                "generator= to both or to none"
            )
        self._at = self._next = cursor
        self._latest = None
        self._tell_sampler(cursor.epoch)

    def augmentation(
        self,
        rows: npt.ArrayLike,
        epoch: int | None = None,
        field: str | None = None,
        occurrence: npt.ArrayLike = 0,
    ) -> list[Augmentation]:
        """The crops and flips that rows get in an epoch, in this process.

        Args:
            rows: int64 (n,), global row numbers.
            epoch: None for the one of the batch yielded last.
            field: the image field; None for the only one.
            occurrence: how often the row came in the epoch before, of all rows or int64 (n,), as
                `batch.occurrences` tells it.

        Raises:
            TransformError: on the torch path, which draws its own.
            RuntimeError: no seed was given, and none is known for the epoch: no iterator was made,
                or torch's default generator draws each epoch's, and it is another one.
        """
        if epoch is None:
            epoch = self._at.epoch if self._batch is None else self._batch.epoch
        known = [one for one in (self._at, self._drawn) if one.decides(epoch)]
        if not known and self.path == "native":
            raise RuntimeError(
                f"the seed of epoch {epoch} is not known, since it is drawn when its iterator is "
                "made: give seed=, or ask in that epoch"
            )
        cursor = replace((known or [self._at])[0], epoch=epoch)
        return self._feed.augmentation(cursor, self._ranks(), rows, occurrence, field)

    def stats(self) -> Stats:
        """What each stage did and waited for since the loader was made."""
        return self._feed.stats() + self._stats

    def close(self) -> None:
        """Ends iterators, threads and processes, and closes a dataset opened here. Idempotent."""
        self._closed = True
        for iterator in list(self._open):
            iterator.close()
        for feed in (*self._replaced, self._feed):
            feed.close()
        if self._opened is not None:
            self._opened.close()
        elif self._feed.dataset is not self.dataset and is_hugging_face(self.dataset):
            self._feed.dataset.close()

    def _make_tuner(self) -> ThreadTuner | None:
        """None where the number of threads cannot change."""
        from fastio.tuning import ThreadTuner, first_threads, most_threads

        threads = self._feed.set_threads(first_threads())
        return ThreadTuner(threads, most_threads(), self._feed.ahead) if threads else None

    def _tune(self) -> None:
        """Goes on with another number of threads where that is found to be better."""
        tuner, stats = self._tuner, self._stats
        if tuner is None:
            return
        before = tuner.threads
        threads = tuner.delivered(stats.batches, stats.samples, stats.elapsed_s, stats.wait_s)
        if threads != before:
            self._feed.set_threads(threads)

    def __enter__(self) -> Loader[_Batch]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        unpicklable = dict.fromkeys(("_open", "_latest", "_stream", "_tuner", "_settings"))
        auto = self._tuner is not None
        return {**self.__dict__, **unpicklable, "_replaced": [], "_auto": auto}

    def __setstate__(self, state: dict[str, Any]) -> None:
        auto = state.pop("_auto")
        from fastio.paths import dataset_settings

        self.__dict__.update(state, _open=weakref.WeakSet())
        self._settings = dataset_settings(self.dataset)  # of which some are of a process
        self._tuner = self._make_tuner() if auto else None

    def _ranks(self) -> Ranks:
        """This process's part, asked for when it is needed: torch.distributed may start late."""
        from fastio.seeds import distributed_ranks, process_ranks

        if self._given_ranks is not None:
            return self._given_ranks
        if not self._feed.sampling.ours:  # ranks share rows out by themselves, or do not
            return distributed_ranks() or Ranks()
        return process_ranks() if self.distributed else Ranks()


Loader.__new__.__wrapped__ = Loader.__init__  # type: ignore[attr-defined] # for help()

# Arguments of `fastio.open` that a loader does not have.
_OF_DATA = frozenset(signature(open_data).parameters) - frozenset(
    signature(Loader.__init__).parameters
)

# Arguments beside DataLoader's, whose attributes cannot be assigned to.
_FIXED = (
    frozenset(signature(Loader.__init__).parameters)
    - {"self"}
    - frozenset(signature(DataLoader).parameters)
    - {"distributed"}  # which libraries set that run the loop
)


class LoaderIterator:
    """One epoch of a loader, or what is left of it. `close`, or dropping it, frees its batches."""

    def __init__(self, loader: Loader, cursor: Cursor, batches: DevicePrefetcher) -> None:
        self._loader = loader
        self._cursor = cursor
        self._batches = batches
        self._left_s: float | None = None  # when the caller got the last batch
        self._exhausted = False
        self._draw = loader._feed.sampling.draw

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            SampleError: a sample of it cannot be read; the next call goes on behind the batch.
            LoaderTimeout: it took longer than the timeout; the next call waits on.
            LoaderClosed: the loader was closed.
        """
        loader = self._loader
        if loader._closed:
            raise LoaderClosed("this loader was closed")
        stats = loader._stats
        began_s = time.perf_counter()
        if self._left_s is not None:
            stats.between_s += began_s - self._left_s
        try:
            data, info = next(self._batches)
        except StopIteration:
            self._exhaust()
            self._stand_at(self._cursor.at_epoch(self._cursor.epoch + 1), 0)
            self.close()
            raise
        finally:
            self._left_s = time.perf_counter()
            stats.wait_s += self._left_s - began_s
        stats.batches += 1
        stats.samples += info.valid
        loader._tune()
        # Past DataLoader's __setattr__, which would take as long as all the rest of this.
        vars(loader).update(_batch=info, _drawn=self._cursor)
        if info.order_seed is not None and self._cursor.order_seed is None:
            self._cursor = replace(self._cursor, order_seed=info.order_seed)
        self._stand_at(self._cursor, info.next_position)
        self._exhaust(info.next_position)
        return data

    def close(self) -> None:
        """Ends the epoch here. Idempotent."""
        self._batches.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's exit the modules that `close` needs may be gone.
        if not is_finalizing():
            self.close()

    def _exhaust(self, position: int | None = None) -> None:
        """Draws once more at the end of an epoch, as RandomSampler does, which uses nothing of it.

        BatchSampler comes to that end with the last batch if it is not full, else behind it.

        Args:
            position: where the epoch stands; None behind its last batch.
        """
        loader = self._loader
        draw = self._draw
        if draw is None or self._exhausted:
            return
        rows = loader._feed.epoch_rows()
        partial = rows % (loader._feed.sampling.batch_size or 1) and not loader.drop_last
        if position is None or (position >= rows and partial):
            self._exhausted = True
            draw(rows)

    def _stand_at(self, cursor: Cursor, position: int) -> None:
        """Notes where the user stands, if this is the loader's latest iterator."""
        latest = self._loader._latest
        if latest is not None and latest() is self:
            vars(self._loader)["_place"] = cursor, position


def _open(dataset: Any, cache: Any, fields: tuple[str, ...] | None) -> Any:
    """The dataset that a path means; None where an object was given.

    Raises:
        ValueError: `cache` is given with an object, which is open already.
        As `fastio.open`.
    """
    named = isinstance(dataset, (str, os.PathLike))
    if not named and isinstance(dataset, (list, tuple)):
        named = bool(dataset) and all(isinstance(each, (str, os.PathLike)) for each in dataset)
    if not named:
        if cache is not None and not isinstance(dataset, Mix):
            raise ValueError(
                "cache is only for a dataset given as a URL: pass it to fastio.open(url, cache=...)"
            )
        return None
    found = find_data(dataset, Options(cache=cache))
    if "fields" in found.kind.options:
        found = replace(found, options=replace(found.options, fields=fields))
    return open_found(found)


def _read_fields(dataset: Any, fields: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the fields that are wanted; tars call "seg.png" seg_png."""
    kind = kind_of(dataset)
    if kind is None or "fields" not in kind.options:
        return fields
    return tuple(dataset.schema.fields)


def _first_workers(num_workers: str) -> int:
    from fastio.tuning import first_threads

    if num_workers != "auto":
        raise ValueError(f"num_workers option should be a number or 'auto', got {num_workers!r}")
    return first_threads()


def _check(
    num_workers: int, timeout: float, prefetch_factor: int | None, generator: object
) -> None:
    if not isinstance(generator, (Generator, type(None))):
        raise TypeError(
            f"generator should be a torch.Generator or None, got {generator!r}: "
            "torch.Generator().manual_seed(number) makes one of a seed"
        )
    if num_workers < 0:
        raise ValueError(
            f"num_workers option should be non-negative, got {num_workers}; 0 is all cores on the "
            "native path, and no worker process on the torch path"
        )
    if timeout < 0:
        raise ValueError(f"timeout option should be non-negative, got {timeout}")
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError(f"prefetch_factor option should be non-negative, got {prefetch_factor}")
