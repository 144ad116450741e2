"""The sources of a loader's batches: here the native engine; in `workers`, torch's DataLoader.

A feed yields the host batches from a cursor to the end of the epoch. It creates expensive resources
(threads, worker processes, slots) on first use, in the process that uses them, so that a loader can
be pickled and forked.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from fastio.device import HostBatch
from fastio.engine import BatchStream, Engine, EngineSettings, OnError, StagingPlan
from fastio.engine.batch import Batch
from fastio.engine.fields import ReadAheadPlan, windows_of
from fastio.engine.ragged import Forms, RaggedBatch
from fastio.errors import SampleError, TransformError
from fastio.feed.samples import SampleForm, field_samples
from fastio.order.order import mixed_seed
from fastio.order.plan import PlannedBatch, draw_keys
from fastio.order.sampling import Ranks, Sampling
from fastio.order.state import Cursor
from fastio.packed.rows import Rows
from fastio.schema import Bytes, Image, Schema
from fastio.stage import Forecast, Stager, ahead_bytes, staged
from fastio.stats import Stats
from fastio.tensors.ragged import one_part, ragged_parts
from fastio.tensors.trees import (
    Finish,
    Step,
    Tail,
    image_tensors,
    pin,
    pinned_allocator,
    value_tensors,
)
from fastio.transforms import (
    AudioDecode,
    Augmentation,
    Compiled,
    ToDtype,
    compile,
    on_whole_batch,
)
from fastio.views.base import view_of


class BatchInfo(NamedTuple):
    """Information about a batch besides its data.

    Attributes:
        rows: int64 (n,), the global row of every sample; None if a torch dataset does not tell.
        valid: number of samples that count; those after them repeat others, so that every rank
            makes the same number of steps.
        epoch: epoch, from 0.
        step: number of the batch in its epoch, from 0.
        next_position: position of the epoch after this batch; see `Cursor.position`.
        errors: errors of samples that were skipped or replaced.
        occurrences: int64 (n,), how often each row occurred earlier in the epoch, which its random
            draws depend on; None if that has no effect: nothing is drawn, or no row occurs twice.
        order_seed: seed of the epoch's order, if it was drawn when the first row was requested.
    """

    rows: npt.NDArray[np.int64] | None
    valid: int
    epoch: int
    step: int
    next_position: int
    errors: tuple[SampleError, ...] = ()
    occurrences: npt.NDArray[np.int64] | None = None
    order_seed: int | None = None


class HostBatches(Protocol):
    """The batches of one run: an iterator of `HostBatch`, whose `info` is a `BatchInfo`."""

    def __iter__(self) -> Iterator[HostBatch]: ...
    def __next__(self) -> HostBatch: ...

    def ready(self) -> bool:
        """Returns whether next() would return or raise without waiting."""

    def close(self) -> None:
        """Ends the run and all work for it."""


class Feed(Protocol):
    """Makes host batches, and reports their order, draws and statistics."""

    path: Literal["native", "torch"]
    reason: str
    dataset: Any

    @property
    def fingerprint(self) -> str:
        """A text that identifies the dataset in a loader's state."""

    @property
    def sampling(self) -> Sampling:
        """The sampling, which decides the rows of each batch."""

    @property
    def random(self) -> bool:
        """Whether the order or the draws depend on the cursor's seed."""

    @property
    def follows_torch(self) -> bool:
        """Whether an epoch can have RandomSampler's order, drawn by torch's default generator."""

    @property
    def finish(self) -> Finish | None:
        """The steps that are applied to the data on its device; None if there are none."""

    def steps(self, ranks: Ranks) -> int:
        """Returns the number of batches of a whole epoch on one rank."""

    def run(self, cursor: Cursor, ranks: Ranks) -> HostBatches:
        """Returns the batches from the cursor to the end of its epoch."""

    def epoch_rows(self) -> int:
        """Returns the number of samples of a whole epoch over all ranks."""

    def rows(self, cursor: Cursor, ranks: Ranks) -> Iterator[int]:
        """Returns one rank's rows from the cursor to the end of its epoch, in the feed's own order.

        Raises:
            TypeError: rows are not numbered, or have no order before they are read.
        """

    def augmentation(
        self,
        cursor: Cursor,
        ranks: Ranks,
        rows: npt.ArrayLike,
        occurrences: npt.ArrayLike,
        field: str | None,
    ) -> list[Augmentation]:
        """Returns what is drawn for rows in the cursor's epoch; see `Loader.augmentation`."""

    def order_name(self, ranks: Ranks) -> str:
        """Returns the name of the order in which positions of a loader's state count."""

    def adopt_order(self, name: str, ranks: Ranks) -> None:
        """Uses the order parameters of a loader's state where they may differ from this feed's."""

    def stats(self) -> Stats:
        """Returns the counters of the threads; those of other stages are zero."""

    @property
    def ahead(self) -> int:
        """The number of batches that are ready or in work before they are requested."""

    def set_threads(self, threads: int) -> int:
        """Changes the number of native threads; returns the new number, or 0 if it is fixed."""

    def close(self) -> None:
        """Ends threads and processes. May be called more than once."""


@dataclass(frozen=True)
class FieldTransforms:
    """The transforms of a loader, by field.

    Attributes:
        fields: transforms of each field that has any.
        whole: callables that take and return the whole batch.
        audio: decoding settings of fields of sound files.
    """

    fields: Mapping[str, Compiled]
    whole: tuple[Callable[[Any], Any], ...] = ()
    audio: Mapping[str, AudioDecode] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, transforms: Any, schema: Schema, known: Sequence[Any] = ()) -> FieldTransforms:
        """Parses `Loader(transforms=)`.

        Args:
            transforms: a mapping from field (or None for the whole batch) to a transform or a list
                of transforms; or a transform or list alone, for the only image field; or None.
            schema: schema of the dataset.
            known: transforms that the only image field already has.

        Raises:
            TransformError: the transforms do not fit the fields or each other.
        """
        if not isinstance(transforms, Mapping):
            given = as_list(transforms)
            transforms = {_only_field(schema, given): given} if given or known else {}
        if known:
            image = _only_image(schema)
            transforms = {**transforms, image: [*known, *as_list(transforms.get(image))]}
        whole = on_whole_batch(as_list(transforms.get(None)))
        fields, audio = {}, {}
        for name, given in transforms.items():
            if name is None:
                continue
            if name not in schema.fields:
                raise TransformError(
                    f"transforms name the field {name!r}; there are {', '.join(schema.fields)}"
                )
            first, *rest = as_list(given) or [None]
            if isinstance(first, AudioDecode):
                audio[name] = first
            fields[name] = compile(rest if isinstance(first, AudioDecode) else as_list(given), name)
            for step in (*fields[name].geometry, *fields[name].tail):
                if not isinstance(schema.fields[name], Image) and not isinstance(step, ToDtype):
                    raise TransformError(f"{step} needs an image, and {name!r} is none")
        return cls(fields, whole, audio)


def as_list(transforms: Any) -> list[Any]:
    """Returns None, one transform, a list or a torchvision Compose as a list of transforms."""
    if transforms is None:
        return []
    kind = type(transforms)
    if kind.__name__ == "Compose" and kind.__module__.startswith("torchvision.transforms"):
        transforms = transforms.transforms
    if not isinstance(transforms, (list, tuple)):
        return [transforms]
    return [step for given in transforms for step in as_list(given)]


def _only_field(schema: Schema, given: Sequence[Any]) -> str:
    """Returns the name of the field to which a list of transforms applies."""
    if not given or not isinstance(given[0], AudioDecode):
        return _only_image(schema)
    names = [name for name, kind in schema.fields.items() if isinstance(kind, Bytes)]
    if len(names) != 1:
        raise TransformError(
            f"AudioDecode alone is for the only field of bytes, and there are {len(names)}: give a "
            "dict, transforms={field: AudioDecode(...)}"
        )
    return names[0]


def _only_image(schema: Schema) -> str:
    if len(schema.image_fields) != 1:
        raise TransformError(
            f"a list of transforms is for the only image field, and there are "
            f"{len(schema.image_fields)}: give a dict, transforms={{field: [...]}}, for the fields "
            f"{', '.join(schema.fields)}"
        )
    return schema.image_fields[0]


@dataclass(frozen=True)
class NativeSettings:
    """Settings of a native feed.

    Attributes:
        threads: number of native threads.
        ahead: number of batches in work besides the one that is waited for.
        timeout_s: maximum time to wait for a batch in seconds; 0 for no limit.
        on_error: as in `Loader`.
        channels_last: whether image batches have torch.channels_last memory format.
        fields: names of the fields to deliver, in order; None for all.
        collate_fn: function that makes a batch from a list of samples.
        on_cpu: whether the batches stay in host memory, so that the CPU does Normalize and ToDtype.
        pinned: "slots" allocates slots in pinned memory and reuses them after `release`; "fresh"
            gives every batch pinned memory of its own; "no" pins nothing.
        resident: whether a table is copied to memory.
        read_ahead: whether a table's rows are read into the page cache before batches need them.
        let_go: whether rows that were read ahead are dropped from the page cache after use.
        ragged: forms of the fields whose rows differ in size.
        samples: form of the samples that collate_fn receives.
    """

    threads: int
    ahead: int
    timeout_s: float = 0.0
    on_error: OnError = "raise"
    channels_last: bool = False
    fields: tuple[str, ...] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    on_cpu: bool = True
    pinned: Literal["no", "slots", "fresh"] = "no"
    resident: bool = False
    read_ahead: bool = False
    let_go: bool = False
    ragged: Forms = dataclasses.field(default_factory=Forms)
    samples: SampleForm = dataclasses.field(default_factory=SampleForm)


class NativeFeed:
    """Makes batches with the threads of the native engine.

    Args:
        dataset: packed dataset, folder or tars; the feed does not close it.
        sampling: sampling, which decides the rows of each batch.
        transforms: transforms of the fields.
        settings: settings of the engine and the batches.
        stager: fetches the blocks of a remote dataset; the feed closes it.

    Raises:
        TransformError: the dataset does not have the fields, or cannot apply the transforms.
    """

    path: Literal["native", "torch"] = "native"
    reason = ""

    def __init__(
        self,
        dataset: Rows,
        sampling: Sampling,
        transforms: FieldTransforms,
        settings: NativeSettings,
        stager: Stager | None = None,
    ) -> None:
        self.dataset = dataset
        self._view = view_of(dataset)
        self._stager = stager
        self.sampling = sampling
        self.transforms = transforms
        self.settings = settings
        self._engine: Engine | None = None
        self.transform_s = 0.0  # time of collate_fn and the steps before it
        engine = self.engine()  # has no threads yet; raises here if an argument is wrong
        self.fields = tuple(engine.fields)
        self.collate_steps, self._finish = self._place_steps(engine)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None, "_stager": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.dataset.remote_part is not None:
            self.sampling, self._stager = staged(self.dataset, self.sampling, self.settings.fields)

    @property
    def fingerprint(self) -> str:
        picked = self.sampling.picked
        if picked is None:
            return self.dataset.fingerprint
        return xxhash.xxh3_64_hexdigest(self.dataset.fingerprint.encode() + picked.tobytes())

    @property
    def random(self) -> bool:
        return self.sampling.random or self.draws

    @property
    def follows_torch(self) -> bool:
        # Blocks are fetched ahead, also beyond the epoch's end, so the order must be known early.
        return self._stager is None and self.sampling.permutes(self.epoch_rows())

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn for each sample."""
        crops = any(compiled.random for compiled in self.transforms.fields.values())
        return crops or any(how.draws for how in self.transforms.audio.values())

    @property
    def finish(self) -> Finish | None:
        return self._finish

    def steps(self, ranks: Ranks) -> int:
        return self.sampling.steps(self.epoch_rows(), ranks)

    def run(self, cursor: Cursor, ranks: Ranks) -> HostBatches:
        engine = self.engine()
        plan = self.sampling.plan(self.epoch_rows(), cursor, ranks, count=self.draws)
        stream = engine.run(
            self._asked_ahead(plan, engine, cursor),
            seed=self.draw_seed(cursor, ranks),
            epoch=cursor.epoch,
            ahead=self.settings.ahead,
            timeout_s=self.settings.timeout_s,
            staging=self.staging(cursor, ranks),
        )
        return _NativeBatches(self, stream, self.sampling.first_step(cursor.position, ranks))

    def epoch_rows(self) -> int:
        picked = self.sampling.picked
        return len(self.dataset) if picked is None else len(picked)

    def rows(self, cursor: Cursor, ranks: Ranks) -> Iterator[int]:
        return self.sampling.rows(self.epoch_rows(), cursor, ranks)

    def draw_seed(self, cursor: Cursor, ranks: Ranks) -> int:
        """Returns the seed of the draws, mixed with the rank if a sampler decides the rows.

        A sampler may give the same row to several ranks.
        """
        assert cursor.seed is not None
        if self.sampling.ours or ranks.rank == 0:
            return cursor.seed
        return mixed_seed(cursor.seed, ranks.rank)

    def _asked_ahead(
        self, plan: Iterator[PlannedBatch], engine: Engine, cursor: Cursor
    ) -> Iterator[PlannedBatch]:
        """Returns the plan, which also reads rows into the page cache ahead if that is enabled."""
        ours = self.sampling.ours and self.sampling.picked is None
        rows = engine.cold_rows() if self.settings.read_ahead and ours else None
        if rows is None:
            return plan
        order = self.sampling.orders(self.epoch_rows(), cursor.of_order()).epoch(cursor.epoch)
        windows = windows_of(order, rows.nbytes / max(1, order.rows))
        return ReadAheadPlan(plan, windows, rows, cursor.position, self.settings.let_go)

    def staging(self, cursor: Cursor, ranks: Ranks, known_order: bool = True) -> StagingPlan | None:
        """Returns how far ahead a remote dataset's blocks are fetched; None for local datasets.

        Args:
            cursor, ranks: as for `run`.
            known_order: whether the rows follow this feed's own sampling.
        """
        if self._stager is None:
            return None
        rows, sampling = self.epoch_rows(), self.sampling
        following = orders = None
        known_order = known_order and sampling.ours and sampling.draw is None
        known_order = known_order and sampling.picked is None
        if known_order and cursor.order_seed is None:
            orders = sampling.orders(rows, cursor.of_order())
            following = Cursor(cursor.epoch + 1, 0, cursor.seed)
        return StagingPlan(
            Forecast(orders, cursor.epoch, self._stager.blocks.block_rows),
            cursor.position,
            ahead_bytes(sampling, self._stager),
            None if following is None else partial(sampling.plan, rows, following, ranks),
        )

    def order_name(self, ranks: Ranks) -> str:
        return self.sampling.named(ranks)

    def adopt_order(self, name: str, ranks: Ranks) -> None:
        """Uses the block and window of a loader's state, if rows are shuffled by windows."""
        sampling = self.sampling.adopting(name)
        if sampling == self.sampling:
            return
        if self._stager is None:  # another machine had room for other windows of a table
            if self.sampling.window is not None or self.sampling.bounds is not None:
                self.sampling = sampling
            return
        self.close()
        self._engine = None
        self.sampling, self._stager = staged(self.dataset, sampling, self.settings.fields)

    @property
    def ahead(self) -> int:
        return self.settings.ahead

    def set_threads(self, threads: int) -> int:
        if self._engine is not None:
            self._engine.set_threads(threads)
            threads = min(threads, self._engine.threads)
        self.settings = replace(self.settings, threads=threads)
        return threads

    def stats(self) -> Stats:
        total = Stats(threads=self.settings.threads, transform_s=self.transform_s)
        if self._engine is not None:
            total += self._engine.stats
        if self._stager is not None:
            transfers = self._stager.transfers
            total += Stats(
                bytes_fetched=self._stager.bytes_fetched,
                retries=transfers.retries,
                refetched=transfers.refetched,
            )
        return total

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        if self._stager is not None:
            self._stager.close()

    def engine(self) -> Engine:
        """Returns the engine of this process."""
        if self._engine is None:
            how = self.settings
            images = self.dataset.schema.image_fields
            settings = EngineSettings(
                transforms={k: v for k, v in self.transforms.fields.items() if k in images},
                fields=how.fields,
                threads=how.threads,
                on_error=how.on_error,
                channels_last=how.channels_last,
                normalize_on_cpu=how.on_cpu or how.collate_fn is not None,
                allocate=None if how.pinned == "no" else pinned_allocator(),
                recycle=how.pinned != "fresh",
                resident=how.resident,
                ragged=how.ragged,
                audio=self.transforms.audio,
            )
            self._engine = Engine(self.dataset, settings, self._stager)
        return self._engine

    def augmentation(
        self,
        cursor: Cursor,
        ranks: Ranks,
        rows: npt.ArrayLike,
        occurrences: npt.ArrayLike,
        field: str | None,
    ) -> list[Augmentation]:
        name = _only_image(self.dataset.schema) if field is None else field
        numbers = np.asarray(rows, np.int64).reshape(-1)
        if self.sampling.picked is not None:
            numbers = self.sampling.picked[numbers]
        sizes = [self.dataset.image_size(name, row) for row in numbers.tolist()]
        heights, widths = np.array(sizes, np.int32).reshape(-1, 2).T
        often = np.broadcast_to(np.asarray(occurrences, np.int64), numbers.shape)
        seed, keys = self.draw_seed(cursor, ranks), draw_keys(numbers, often)
        return self.engine().augmentation(name, seed, cursor.epoch, keys, heights, widths)

    def _place_steps(self, engine: Engine) -> tuple[Finish | None, Finish | None]:
        """Returns the steps before collate_fn and the steps on the device."""
        structure = self.dataset.schema.structure
        steps: list[Step] = []
        for place, name in enumerate(self.fields):
            keys: dict[str, int | str | None] = {"tuple": place, "dict": name, "single": None}
            key = keys[structure]
            compiled = self.transforms.fields.get(name, Compiled())
            tail = engine.tails.get(name, compiled.tail)
            steps += [(key, Tail(tail))] if tail else []
            steps += [(key, function) for function in compiled.batch]
        whole: list[Step] = [(None, function) for function in self.transforms.whole]
        return split_steps(steps, whole, self.settings.collate_fn is not None, self.sampling)

    def host_batch(self, batch: Batch, first_step: int) -> HostBatch:
        """Returns a batch of the engine as tensors in the structure of the samples.

        Args:
            batch: batch of the engine.
            first_step: number of the first step of the run.
        """
        info = BatchInfo(
            self.sampling.places(batch.rows, batch.occurrences),
            batch.valid,
            batch.epoch,
            first_step + batch.step,
            batch.next_position,
            tuple(batch.errors),
            batch.occurrences,
        )
        fresh = self.settings.pinned == "fresh"
        data = self.tensors(batch)
        if self.settings.collate_fn is None:
            (data,) = self.of_one_length([data], [batch])
            data = self.with_bounds(data, batch.fields)
            release = batch.release if self.settings.pinned == "slots" else None
            return HostBatch(pin(data) if fresh else data, info, release)
        began_s = time.perf_counter()
        if self.collate_steps is not None:
            data = self.collate_steps(data)
        data = self.collated(self.samples(data, batch))
        self.transform_s += time.perf_counter() - began_s
        # The result may hold views of the slot, which is returned when they are garbage.
        return HostBatch(pin(data) if fresh else data, info)

    def tensors(self, batch: Batch) -> Any:
        """Returns a batch as tensors in the structure of the samples, before any transform."""
        fresh = self.settings.pinned == "fresh"
        return self._structured(
            [self._tensors(name, batch.fields[name], fresh) for name in self.fields]
        )

    def collated(self, samples: list[Any]) -> Any:
        """Returns the batch that collate_fn makes from samples."""
        collate = self.settings.collate_fn
        assert collate is not None
        return collate(samples) if self.sampling.batched else collate(samples[0])

    def of_one_length(self, parts: Sequence[Any], batches: Sequence[Batch]) -> list[Any]:
        """Pads the parts of a batch of documents to the longest of all parts.

        Args:
            parts: tensors in the structure of the samples.
            batches: the batches from which the parts were made.
        """
        if self._view is None:
            return list(parts)
        return self._view.of_one_length(parts, [batch.fields for batch in batches])

    def with_bounds(self, data: Any, arrays: Mapping[str, Any]) -> Any:
        """Adds the values that describe a batch of a view as a whole.

        Args:
            data: tensors in the structure of the samples.
            arrays: the same values, by field, in memory that can be read now.
        """
        found = {} if self._view is None else self._view.of_batch(arrays)
        if not found:
            return data
        kept = {name: part for name, part in data.items() if name not in found}
        new = {
            name: value_tensors(value) if isinstance(value, np.ndarray) else value
            for name, value in found.items()
            if value is not None
        }
        return {**kept, **new}

    def _tensors(self, name: str, values: Any, fresh: bool) -> dict[str, Any]:
        """Returns a field as tensors, followed by its sizes if the form has them."""
        if isinstance(values, RaggedBatch):
            return ragged_parts(name, values)
        if not isinstance(self.dataset.schema.fields[name], Image):
            return {name: value_tensors(values, fresh=fresh)}
        how = self.settings
        return {name: image_tensors(values, channels_last=how.channels_last, fresh=fresh)}

    def _structured(self, parts: Sequence[dict[str, Any]]) -> Any:
        structure = self.dataset.schema.structure
        if structure == "dict":
            return {name: value for found in parts for name, value in found.items()}
        joined = tuple(one_part(found) for found in parts)
        return joined if structure == "tuple" else joined[0]

    def samples(self, data: Any, batch: Batch) -> list[Any]:
        """Splits a batch into samples for collate_fn, in the form that `dataset[i]` has."""
        parts = tuple(data.values()) if isinstance(data, dict) else data
        parts = list(parts) if isinstance(parts, tuple) else [parts]
        kinds, how = self.dataset.schema.fields, self.settings
        columns = [
            field_samples(
                batch.fields[name],
                part,
                kinds[name],
                how.samples,
                transformed=self._view is not None or name in self.transforms.fields,
                channels_last=how.channels_last,
            )
            for name, part in zip(self.fields, parts, strict=True)
        ]
        samples = zip(*columns, strict=True)
        return [
            self._structured([{n: v} for n, v in zip(self.fields, values, strict=True)])
            for values in samples
        ]


class _NativeBatches:
    """The batches of one run of a native feed."""

    def __init__(self, feed: NativeFeed, stream: BatchStream, first_step: int) -> None:
        self._feed = feed
        self._stream = stream
        self._first_step = first_step

    def __iter__(self) -> _NativeBatches:
        return self

    def __next__(self) -> HostBatch:
        return self._feed.host_batch(next(self._stream), self._first_step)

    def ready(self) -> bool:
        return self._stream.ready()

    def close(self) -> None:
        self._stream.close()


def split_steps(
    steps: list[Step], whole: list[Step], collates: bool, sampling: Sampling
) -> tuple[Finish | None, Finish | None]:
    """Returns the steps before collate_fn and the steps on the device.

    Args:
        steps: steps of single fields.
        whole: steps of the whole batch.
        collates: whether there is a collate_fn.
        sampling: sampling, which says whether samples are batched.
    """
    if collates:
        return Finish(steps) if steps else None, Finish(whole) if whole else None
    only: list[Step] = [] if sampling.batched else [(None, _only_sample)]
    after = [*steps, *only, *whole]
    return None, Finish(after) if after else None


def _only_sample(data: Any) -> Any:
    """Returns the sample of a batch of one."""
    if isinstance(data, dict):
        return {name: part[0] for name, part in data.items()}
    return tuple(part[0] for part in data) if isinstance(data, tuple) else data[0]
