"""Where a loader's batches come from: here, the native engine; in `workers`, torch's DataLoader.

A feed turns a cursor into the host batches from there to the end of the epoch. What costs to make
(threads, worker processes, slots) it makes when it is first needed, in the process that needs it,
so that a loader can be pickled and forked.
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

from fastio.batch import Batch
from fastio.device import HostBatch
from fastio.engine import BatchStream, Engine, OnError, StagingPlan
from fastio.errors import SampleError, TransformError
from fastio.fetch import ReadAheadPlan, windows_of
from fastio.formats import (
    AnyDataset,
    FolderDataset,
    HuggingFaceDataset,
    Loadable,
    PaddedDataset,
    TableSamples,
    TarDataset,
    TokenDataset,
    remote_part,
)
from fastio.order import mixed_seed
from fastio.plan import PlannedBatch, draw_keys
from fastio.ragged import Forms, RaggedBatch
from fastio.ragged_tensors import one_part, ragged_parts
from fastio.resume import Cursor
from fastio.samples import SampleForm, field_samples
from fastio.sampling import Ranks, Sampling
from fastio.schema import Bytes, Image, Schema
from fastio.staging import Forecast, Stager, ahead_bytes, staged
from fastio.stats import Stats
from fastio.tensors import (
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


class BatchInfo(NamedTuple):
    """What is known of a batch beside its data.

    Attributes:
        rows: int64 (n,), the global row of every sample; None where a torch dataset does not tell.
        valid: samples that count: the ones behind them repeat others, so that every rank makes the
            same number of steps.
        epoch: from 0.
        step: number of the batch in its epoch, from 0.
        next_position: where the epoch goes on after it; see `Cursor.position`.
        errors: samples that were skipped or replaced.
        occurrences: int64 (n,), how often each row came in the epoch before, which its draws depend
            on; None where that does not matter: nothing is drawn, or no row comes twice.
        order_seed: of the epoch's order, where it was drawn when the first row was asked for.
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
        """Whether next() would return, or raise, without waiting."""

    def close(self) -> None:
        """Ends the run; nothing works for it any more."""


class Feed(Protocol):
    """Makes host batches, and says how and why so."""

    path: Literal["native", "torch"]
    reason: str
    dataset: Any

    @property
    def fingerprint(self) -> str:
        """Stands for the dataset in a loader's state."""

    @property
    def sampling(self) -> Sampling:
        """Which rows make up which batch."""

    @property
    def random(self) -> bool:
        """Whether orders or draws depend on the cursor's seed."""

    @property
    def follows_torch(self) -> bool:
        """Whether an epoch can have RandomSampler's order, drawn by torch's default generator."""

    @property
    def finish(self) -> Finish | None:
        """What is left to do with the data on its device."""

    def steps(self, ranks: Ranks) -> int:
        """Batches of a whole epoch on one rank."""

    def run(self, cursor: Cursor, ranks: Ranks) -> HostBatches:
        """The batches from the cursor to the end of its epoch."""

    def epoch_rows(self) -> int:
        """Samples of a whole epoch, over all ranks."""

    def rows(self, cursor: Cursor, ranks: Ranks) -> Iterator[int]:
        """The rows of one rank from the cursor to the end of its epoch, in the feed's own order.

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
        """What is drawn for rows in the cursor's epoch; see `Loader.augmentation`."""

    def order_name(self, ranks: Ranks) -> str:
        """What positions in a loader's state count in."""

    def adopt_order(self, name: str, ranks: Ranks) -> None:
        """Takes over what the order of a loader's state was computed with, where it may differ."""

    def stats(self) -> Stats:
        """What the threads did; the counters of other stages are zero."""

    @property
    def ahead(self) -> int:
        """Batches that are ready, or in work, before they are asked for."""

    def set_threads(self, threads: int) -> int:
        """Goes on with so many native threads; returns how many, 0 where that is not possible."""

    def close(self) -> None:
        """Ends threads and processes. Idempotent."""


@dataclass(frozen=True)
class FieldTransforms:
    """The transforms of a loader, field by field.

    Attributes:
        fields: of the fields that have some.
        whole: callables that take and return the whole batch.
        audio: how fields of sound files are decoded.
    """

    fields: Mapping[str, Compiled]
    whole: tuple[Callable[[Any], Any], ...] = ()
    audio: Mapping[str, AudioDecode] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, transforms: Any, schema: Schema, known: Sequence[Any] = ()) -> FieldTransforms:
        """Takes `Loader(transforms=)` apart.

        Args:
            transforms: a mapping of field (or None: the whole batch) to a transform or a list of
                them; or such a list alone, for the only image field; or None.
            schema: of the dataset.
            known: transforms that the only image field has already.

        Raises:
            TransformError: they do not fit the fields or each other.
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
    """None, one transform or several, as a list; torchvision's Compose is one of several."""
    if transforms is None:
        return []
    kind = type(transforms)
    if kind.__name__ == "Compose" and kind.__module__.startswith("torchvision.transforms"):
        transforms = transforms.transforms
    if not isinstance(transforms, (list, tuple)):
        return [transforms]
    return [step for given in transforms for step in as_list(given)]


def _only_field(schema: Schema, given: Sequence[Any]) -> str:
    """The field that a list of transforms is for."""
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
    """How a native feed works.

    Attributes:
        threads: native threads.
        ahead: batches in work beyond the one that is waited for.
        timeout_s: longest wait for a batch, 0 for no limit.
        on_error: see `Loader`.
        channels_last: image batches have torch.channels_last memory, else contiguous.
        fields: the fields to deliver, in order; None for all.
        collate_fn: makes the batch of the list of its samples.
        on_cpu: the batches stay in host memory, so the CPU does Normalize and ToDtype.
        pinned: "slots" are in pinned memory and used again after `release`; "fresh" ones are
            pinned too, and every batch has its own; "no" means neither.
        resident: a table is copied to memory.
        read_ahead: a table's rows are asked of the disk before batches need them.
        let_go: ... and are not kept in the page cache behind them.
        ragged: the forms of fields whose rows differ in size.
        samples: what collate_fn gets.
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
    """Batches decoded by this package's threads.

    Args:
        dataset: packed, folder or tars; not closed by the feed.
        sampling: which rows make up which batch.
        transforms: of the fields.
        settings: how.
        stager: brings a remote dataset's blocks; the feed closes it.

    Raises:
        TransformError: fields or transforms that the dataset does not have.
    """

    path: Literal["native", "torch"] = "native"
    reason = ""

    def __init__(
        self,
        dataset: Loadable,
        sampling: Sampling,
        transforms: FieldTransforms,
        settings: NativeSettings,
        stager: Stager | None = None,
    ) -> None:
        self.dataset = dataset
        self._stager = stager
        self.sampling = sampling
        self.transforms = transforms
        self.settings = settings
        self._engine: Engine | None = None
        self.transform_s = 0.0  # of collate_fn and what comes before it
        engine = self.engine()  # has no threads yet; makes mistakes known here
        self.fields = tuple(engine.fields)
        self.collate_steps, self._finish = self._place_steps(engine)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None, "_stager": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if remote_part(self.dataset) is not None:
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
        # What is fetched ahead, over the epoch's end too, is of orders that are known before.
        return self._stager is None and self.sampling.permutes(self.epoch_rows())

    @property
    def draws(self) -> bool:
        """Whether something is drawn for each sample."""
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
        """The seed of the draws: a sampler may give a row to several ranks."""
        assert cursor.seed is not None
        if self.sampling.ours or ranks.rank == 0:
            return cursor.seed
        return mixed_seed(cursor.seed, ranks.rank)

    def _asked_ahead(
        self, plan: Iterator[PlannedBatch], engine: Engine, cursor: Cursor
    ) -> Iterator[PlannedBatch]:
        """A plan whose rows are asked of the disk, where that is wanted."""
        ours = self.sampling.ours and self.sampling.picked is None
        rows = engine.cold_rows() if self.settings.read_ahead and ours else None
        if rows is None:
            return plan
        order = self.sampling.orders(self.epoch_rows(), cursor.of_order()).epoch(cursor.epoch)
        windows = windows_of(order, rows.nbytes / max(1, order.rows))
        return ReadAheadPlan(plan, windows, rows, cursor.position, self.settings.let_go)

    def staging(self, cursor: Cursor, ranks: Ranks, known_order: bool = True) -> StagingPlan | None:
        """How far ahead the blocks of a remote dataset are fetched; None for others.

        Args:
            cursor, ranks: as for `run`.
            known_order: whether the rows are those of this feed's own sampling.
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
        """Takes over the block and window that a loader's state counts in, if it is remote."""
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
        """The engine of this process."""
        if self._engine is None:
            how = self.settings
            images = self.dataset.schema.image_fields
            self._engine = Engine(
                self.dataset,
                transforms={k: v for k, v in self.transforms.fields.items() if k in images},
                fields=how.fields,
                threads=how.threads,
                on_error=how.on_error,
                channels_last=how.channels_last,
                normalize_on_cpu=how.on_cpu or how.collate_fn is not None,
                allocate=None if how.pinned == "no" else pinned_allocator(),
                recycle=how.pinned != "fresh",
                stager=self._stager,
                resident=how.resident,
                ragged=how.ragged,
                audio=self.transforms.audio,
            )
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
        assert not isinstance(self.dataset, (TokenDataset, PaddedDataset, TableSamples))  # no image
        sizes = [_upright_size(self.dataset, name, row) for row in numbers.tolist()]
        heights, widths = np.array(sizes, np.int32).reshape(-1, 2).T
        often = np.broadcast_to(np.asarray(occurrences, np.int64), numbers.shape)
        seed, keys = self.draw_seed(cursor, ranks), draw_keys(numbers, often)
        return self.engine().augmentation(name, seed, cursor.epoch, keys, heights, widths)

    def _place_steps(self, engine: Engine) -> tuple[Finish | None, Finish | None]:
        """What is done before collate_fn, and what on the device."""
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
        """A batch of the engine as tensors in the samples' structure.

        Args:
            batch: of the engine.
            first_step: of the run.
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
        # What it returned may be views of the slot, which goes back when they are garbage.
        return HostBatch(pin(data) if fresh else data, info)

    def tensors(self, batch: Batch) -> Any:
        """A batch as tensors in the samples' structure, before anything is done with them."""
        fresh = self.settings.pinned == "fresh"
        return self._structured(
            [self._tensors(name, batch.fields[name], fresh) for name in self.fields]
        )

    def collated(self, samples: list[Any]) -> Any:
        """What collate_fn makes of samples."""
        collate = self.settings.collate_fn
        assert collate is not None
        return collate(samples) if self.sampling.batched else collate(samples[0])

    def of_one_length(self, parts: Sequence[Any], batches: Sequence[Batch]) -> list[Any]:
        """Parts of a batch, those of padded documents as long as the longest of all needs.

        Args:
            parts: tensors in the samples' structure.
            batches: that they were made of.
        """
        if not isinstance(self.dataset, PaddedDataset):
            return list(parts)
        longest = max((self.dataset.longest(batch.fields) for batch in batches), default=0)
        return [self.dataset.cut(part, longest) for part in parts]

    def with_bounds(self, data: Any, arrays: Mapping[str, Any]) -> Any:
        """A batch with where documents begin in it, if it is one of windows and that is wanted.

        Args:
            data: tensors in the samples' structure.
            arrays: the same in memory that can be read now, by field.
        """
        if not isinstance(self.dataset, TokenDataset):
            return data
        bounds = self.dataset.bounds(arrays)
        if bounds is None:
            return data
        left_out = set() if self.dataset.windows.documents else {"documents"}
        kept = {name: part for name, part in data.items() if name not in left_out}
        return {**kept, "cu_seqlens": value_tensors(bounds[0]), "max_seqlen": bounds[1]}

    def _tensors(self, name: str, values: Any, fresh: bool) -> dict[str, Any]:
        """A field, and behind it its sizes where it has some beside it."""
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
        """A batch taken apart, for collate_fn: as indexing the dataset gives samples."""
        parts = tuple(data.values()) if isinstance(data, dict) else data
        parts = list(parts) if isinstance(parts, tuple) else [parts]
        kinds, how = self.dataset.schema.fields, self.settings
        padded = isinstance(self.dataset, PaddedDataset)
        columns = [
            field_samples(
                batch.fields[name],
                part,
                kinds[name],
                how.samples,
                transformed=padded or name in self.transforms.fields,
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
    """One run of a native feed."""

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
    """What is done before collate_fn, and what on the device.

    Args:
        steps: of single fields.
        whole: of the whole batch.
        collates: whether there is a collate_fn.
        sampling: whether samples are batched.
    """
    if collates:
        return Finish(steps) if steps else None, Finish(whole) if whole else None
    only: list[Step] = [] if sampling.batched else [(None, _only_sample)]
    after = [*steps, *only, *whole]
    return None, Finish(after) if after else None


def _only_sample(data: Any) -> Any:
    """The sample of a batch of one."""
    if isinstance(data, dict):
        return {name: part[0] for name, part in data.items()}
    return tuple(part[0] for part in data) if isinstance(data, tuple) else data[0]


def _upright_size(dataset: AnyDataset, field: str, row: int) -> tuple[int, int]:
    """(height, width) of an image after its EXIF orientation is applied."""
    if isinstance(dataset, FolderDataset):
        height, width = dataset[row][0].shape[:2]
        return height, width
    if isinstance(dataset, (TarDataset, HuggingFaceDataset)):
        height, width = dataset.image(field, row).shape[:2]
        return height, width
    shards, local = dataset.locate(np.array([row]))
    reader = dataset.shard(int(shards[0]))
    height, width, orientation = (
        int(reader.fixed(f"{field}.{part}")[local[0]])
        for part in ("height", "width", "orientation")
    )
    return (width, height) if orientation >= 5 else (height, width)
