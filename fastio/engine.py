"""The Python face of the native engine: plans in, decoded batches out, in order.

One native call a batch: it queues the rows of an image field, threads read and decode them
without the interpreter's lock, and `next()` waits for the oldest batch only. Batches ahead of it
are being decoded meanwhile. What the native side cannot decode (PNG, CMYK JPEG, ...) goes through
Pillow in a pool of Python threads.

An error rides in its batch: it is raised, or skipped, or replaced, when that batch's turn comes.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.batch import Allocate, AnyArray, Batch, Lease, SlotMemory, SlotPool
from fastio.dataset import Dataset
from fastio.errors import ImageError, LoaderClosed, LoaderTimeout, SampleError, TransformError
from fastio.fetch import ImageSource, image_source
from fastio.formats.folder import FolderDataset
from fastio.plan import PlannedBatch
from fastio.schema import CODEC_ENCODED, Image
from fastio.stats import Stats
from fastio.transforms import (
    Augmentation,
    Compiled,
    Pointwise,
    affine,
    augmentation,
)

OnError = Literal["raise", "skip", "replace"]
_FOREIGN = 6  # status.h: for Pillow to decode
_WAIT_S = 0.05  # between two looks at signals and the deadline
_WORD = 0xFFFFFFFFFFFFFFFF


def numpy_memory(shape: tuple[int, ...], dtype: str) -> AnyArray:
    """Slot memory from NumPy."""
    return np.empty(shape, dtype)


@dataclass(frozen=True)
class _ImageField:
    """All that is known of an image field before the first batch."""

    name: str
    source: ImageSource
    compiled: Compiled
    geometry: _native.Geometry
    channels: int
    affine: tuple[list[float], list[float]] | None
    tail: tuple[Pointwise, ...]

    def shape(self, channels_last: bool) -> tuple[tuple[int, ...], str] | None:
        """One row's shape and dtype in a slot; None where sizes differ."""
        size = self.compiled.size
        if size is None:
            return None
        shape = (*size, self.channels) if channels_last else (self.channels, *size)
        return shape, "uint8" if self.affine is None else "float32"


@dataclass
class _Pending:
    """A batch on its way."""

    planned: PlannedBatch
    memory: SlotMemory | None = None
    slots: dict[str, _native.Slot] = field(default_factory=dict)
    foreign: dict[str, dict[int, Future[AnyArray | None]]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    sorted_out: bool = False  # every image that is Pillow's has its future
    error: Exception | None = None

    def wait(self, timeout_s: float) -> bool:
        """True once no native thread works on it any more."""
        return all(slot.wait(timeout_s) for slot in self.slots.values())

    def wait_for_pillow(self, timeout_s: float) -> bool:
        """True once every future is done."""
        futures = [future for of_field in self.foreign.values() for future in of_field.values()]
        return not wait(futures, timeout_s).not_done

    def abandon(self) -> None:
        """Ends the work on it and waits for the rows in hand: its memory is free afterwards."""
        for futures in self.foreign.values():
            for future in futures.values():
                future.cancel()
        for slot in self.slots.values():
            slot.cancel()
        while not (self.wait(_WAIT_S) and self.wait_for_pillow(_WAIT_S)):
            pass


class Engine:
    """Decodes batches of one dataset with a fixed set of transforms.

    Args:
        dataset: packed or folder; not closed by the engine.
        transforms: what to do with each image field; a field that is not named keeps its pixels.
        fields: names of the fields to deliver, in order; None for all.
        threads: native threads, 1 or more.
        seed: of the augmentations.
        on_error: "raise" a bad sample's error from next(), "skip" the sample (its batch shrinks),
            or "replace" it by the next good one of the same batch.
        channels_last: image batches are stored (n, H, W, C), else (n, C, H, W).
        normalize_on_cpu: do ToDtype("float32") and Normalize in the engine, which writes float32
            then; see `tails` for what is left.
        allocate: gives slot memory; None for NumPy's.
        recycle: use slots again; False gives every batch memory of its own.

    Raises:
        TransformError: transforms name a field that is not there or no image.
    """

    def __init__(
        self,
        dataset: Dataset | FolderDataset,
        *,
        transforms: Mapping[str, Compiled],
        fields: Sequence[str] | None = None,
        threads: int = 1,
        seed: int = 0,
        on_error: OnError = "raise",
        channels_last: bool = True,
        normalize_on_cpu: bool = False,
        allocate: Allocate | None = None,
        recycle: bool = True,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        if on_error not in ("raise", "skip", "replace"):
            raise ValueError(f"on_error must be 'raise', 'skip' or 'replace', got {on_error!r}")
        self.dataset = dataset
        self.on_error = on_error
        self.channels_last = channels_last
        self._seed = seed & _WORD
        self._threads = threads
        kinds = dataset.schema.fields
        self.fields = list(kinds) if fields is None else list(fields)
        for name in (*self.fields, *transforms):
            if name not in kinds:
                raise TransformError(f"no field {name!r}: the dataset has {', '.join(kinds)}")
        for name in transforms:
            if not isinstance(kinds[name], Image):
                raise TransformError(f"field {name!r} is no image, transforms are for images")
        self._images = {
            name: _image_field(dataset, name, kind, transforms.get(name), normalize_on_cpu)
            for name, kind in kinds.items()
            if name in self.fields and isinstance(kind, Image)
        }
        shapes = {
            name: shape
            for name, image in self._images.items()
            if (shape := image.shape(channels_last)) is not None
        }
        self._pool = SlotPool(shapes, allocate or numpy_memory, 8 if recycle else 0)
        self._has_memory = bool(shapes)
        self._native: _native.Engine | None = None
        self._python: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False
        self._streams: weakref.WeakSet[BatchStream] = weakref.WeakSet()
        self._skipped = self._replaced = 0

    @property
    def tails(self) -> dict[str, tuple[Pointwise, ...]]:
        """For each image field, the ToDtype and Normalize steps that are left to do."""
        return {name: image.tail for name, image in self._images.items()}

    @property
    def stats(self) -> Stats:
        """What the threads did since the engine was made."""
        if self._native is None:
            return Stats()
        images, nbytes, read, decode, resample = self._native.counters()
        return Stats(
            bytes_read=nbytes,
            images_decoded=images,
            skipped=self._skipped,
            replaced=self._replaced,
            read_s=read * 1e-9,
            decode_s=decode * 1e-9,
            resample_s=resample * 1e-9,
        )

    def run(
        self,
        plan: Iterable[PlannedBatch],
        *,
        epoch: int,
        ahead: int = 2,
        timeout_s: float = 0.0,
    ) -> BatchStream:
        """Decodes a plan's batches, in order.

        Args:
            plan: the batches; read `ahead` of the consumer.
            epoch: keys the augmentations.
            ahead: batches in work beyond the one that next() waits for.
            timeout_s: raise LoaderTimeout when a batch takes longer; 0: wait for ever.

        Raises:
            LoaderClosed: after close().
        """
        if self._closed:
            raise LoaderClosed("the engine was closed")
        self._start()
        stream = BatchStream(self, iter(plan), epoch, max(1, ahead), timeout_s)
        self._streams.add(stream)
        return stream

    def augmentation(
        self,
        field: str,
        epoch: int,
        rows: npt.ArrayLike,
        heights: npt.ArrayLike,
        widths: npt.ArrayLike,
    ) -> list[Augmentation]:
        """What is drawn for rows of an epoch, given the upright images' sizes in pixels."""
        compiled = self._images[field].compiled
        return augmentation(compiled, self._seed, epoch, rows, heights, widths)

    def close(self) -> None:
        """Ends all streams, joins the threads, closes the files. May be called again."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()
        self._pool.clear()
        if self._native is not None and self._pid == os.getpid():
            self._native.close()
        if self._python is not None:
            self._python.shutdown(wait=True, cancel_futures=True)
            self._python = None
        for image in self._images.values():
            image.source.close()

    def _start(self) -> None:
        """Starts the threads, once a process: a forked child has none of its parent's."""
        if self._pid != os.getpid():
            if self._native is not None:
                self._native.abandon()
            self._native = self._python = None
            self._pid = os.getpid()
        if self._native is None:
            self._native = _native.Engine(self._threads)

    def _pillow(self) -> ThreadPoolExecutor:
        if self._python is None:
            self._python = ThreadPoolExecutor(self._threads, "fastio-pillow")
        return self._python

    def _submit(self, planned: PlannedBatch, epoch: int) -> _Pending:
        pending = _Pending(planned)
        try:
            if self._has_memory:
                pending.memory = self._pool.acquire(len(planned.rows))
            for image in self._images.values():
                self._submit_images(pending, image, epoch)
            for name in self.fields:
                if name not in self._images:
                    pending.values[name] = self.dataset.gather(name, planned.rows)
        except Exception as error:
            pending.abandon()
            pending.error = error
        return pending

    def _submit_images(self, pending: _Pending, image: _ImageField, epoch: int) -> None:
        assert self._native is not None
        rows = np.ascontiguousarray(pending.planned.rows, np.int64)
        reads = image.source.reads(rows)
        out = None if pending.memory is None else pending.memory.arrays.get(image.name)
        pending.slots[image.name] = self._native.submit(
            reads.files,
            image.geometry,
            self._seed,
            epoch,
            reads.file,
            reads.offset,
            reads.length,
            reads.codec,
            reads.orientation,
            reads.height,
            reads.width,
            rows,
            image.channels,
            self.channels_last,
            image.affine,
            out,
        )
        pending.foreign[image.name] = {
            index: self._to_pillow(pending, image, epoch, index)
            for index in np.flatnonzero(reads.codec == CODEC_ENCODED).tolist()
        }

    def _decode_foreign(
        self, image: _ImageField, epoch: int, row: int, out: AnyArray | None
    ) -> AnyArray | None:
        """One image through Pillow into its place in a slot, or as an array of its own."""
        pixels = image.source.pixels(row)
        height, width = pixels.shape[:2]
        plan = augmentation(image.compiled, self._seed, epoch, [row], [height], [width])[0]
        result = np.empty((*plan.window[2:], image.channels), np.uint8)
        _native.transform(image.geometry, self._seed, epoch, row, pixels, result)
        if out is None:
            return result
        values: AnyArray = result
        if image.affine is not None:
            scale, bias = (np.asarray(part, np.float32) for part in image.affine)
            values = result * scale + bias
        out[...] = values if self.channels_last else values.transpose(2, 0, 1)
        return None

    def _sort_out(self, pending: _Pending, epoch: int) -> None:
        """Gives Pillow what turned out to be foreign: a PNG named .jpg is known only when read."""
        for name, slot in pending.slots.items():
            image, futures = self._images[name], pending.foreign[name]
            for index, code, _ in slot.failures():
                if code == _FOREIGN and index not in futures:
                    futures[index] = self._to_pillow(pending, image, epoch, index)
        pending.sorted_out = True

    def _to_pillow(
        self, pending: _Pending, image: _ImageField, epoch: int, index: int
    ) -> Future[AnyArray | None]:
        row = int(pending.planned.rows[index])
        out = None if pending.memory is None else pending.memory.arrays.get(image.name)
        place = None if out is None else out[index]
        return self._pillow().submit(self._decode_foreign, image, epoch, row, place)

    def _finish(self, pending: _Pending, epoch: int) -> Batch | None:
        """The batch, all its threads done; None when every row of it was skipped."""
        planned = pending.planned
        failures: dict[int, SampleError] = {}
        for name, slot in pending.slots.items():
            self._finish_images(pending, self._images[name], slot, failures)
        lease = None
        values = dict(pending.values)
        count = len(planned.rows)
        if pending.memory is not None:
            lease = Lease(self._pool, pending.memory)
        if failures and self.on_error == "raise":
            if lease is not None:
                lease.release()
            raise failures[min(failures)]
        if lease is not None:
            values |= lease.views(count)
        batch = Batch(
            {name: values[name] for name in self.fields},
            planned.rows,
            planned.valid,
            epoch,
            planned.step,
            planned.next_position,
            [failures[index] for index in sorted(failures)],
            lease,
        )
        return self._mend(batch, sorted(failures)) if failures else batch

    def _finish_images(
        self,
        pending: _Pending,
        image: _ImageField,
        slot: _native.Slot,
        failures: dict[int, SampleError],
    ) -> None:
        rows = pending.planned.rows
        futures = pending.foreign[image.name]
        own_size = image.compiled.size is None
        broken = {i: message for i, code, message in slot.failures() if code != _FOREIGN}
        images: list[AnyArray | None] = []
        if own_size:
            images += (slot.take(index, image.channels) for index in range(len(rows)))
            pending.values[image.name] = images
        for index, message in broken.items():
            failures.setdefault(index, self._error(int(rows[index]), message))
        for index, future in futures.items():
            try:
                pixels = future.result()
            except Exception as error:
                cause = error.cause if isinstance(error, SampleError) else error
                failures.setdefault(index, self._error(int(rows[index]), cause))
            else:
                if own_size:
                    images[index] = pixels

    def _error(self, row: int, cause: BaseException | str) -> SampleError:
        return ImageError(str(self.dataset.path), row, self.dataset.sample_name(row), cause)

    def _mend(self, batch: Batch, bad: list[int]) -> Batch | None:
        """Skips or replaces the bad rows of a batch."""
        good = np.setdiff1d(np.arange(len(batch.rows)), bad)
        if not good.size:
            batch.release()
            if self.on_error == "replace":
                raise batch.errors[0]
            self._skipped += len(bad)
            return None
        if self.on_error == "skip":
            self._skipped += len(bad)
            batch.fields = {name: _select(values, good) for name, values in batch.fields.items()}
            if batch.lease is not None:  # shorter views hold the lease from here on
                batch.fields |= batch.lease.views(len(good))
            batch.rows = batch.rows[good]
            batch.valid = int(np.count_nonzero(good < batch.valid))
            return batch
        self._replaced += len(bad)
        batch.rows = batch.rows.copy()
        for index in bad:
            source = int(good[np.searchsorted(good, index) % good.size])
            batch.rows[index] = batch.rows[source]
            for values in batch.fields.values():
                values[index] = values[source]
        return batch


class BatchStream:
    """The batches of one run, in order. An iterator; `close` ends it early.

    Used by one thread at a time. After an error from next() the stream goes on with the next
    batch.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Iterator[PlannedBatch],
        epoch: int,
        ahead: int,
        timeout_s: float,
    ) -> None:
        self._engine = engine
        self._plan: Iterator[PlannedBatch] | None = plan
        self._epoch = epoch
        self._ahead = ahead
        self._timeout_s = timeout_s
        self._pending: deque[_Pending] = deque()
        self._pid = os.getpid()

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            SampleError: a sample of it is bad, under on_error="raise".
            LoaderTimeout: it took longer than the timeout; next() goes on waiting for it.
            StopIteration: there are no more.
        """
        while True:
            self._fill(self._ahead + 1)
            if not self._pending:
                raise StopIteration
            self._wait(self._pending[0])
            pending = self._pending.popleft()
            if pending.error is not None:
                self._give_back(pending)
                raise pending.error
            batch = self._engine._finish(pending, self._epoch)
            if batch is not None:
                return batch

    def close(self) -> None:
        """Cancels what is in work; returns when no thread works for this stream any more."""
        self._plan = None
        pending, self._pending = self._pending, deque()
        if self._pid != os.getpid():
            return
        for batch in pending:
            for slot in batch.slots.values():
                slot.cancel()
        for batch in pending:
            batch.abandon()
            self._give_back(batch)

    def __del__(self) -> None:
        self.close()

    def _fill(self, wanted: int) -> None:
        while self._plan is not None and len(self._pending) < wanted:
            planned = next(self._plan, None)
            if planned is None:
                self._plan = None
            else:
                self._pending.append(self._engine._submit(planned, self._epoch))

    def _wait(self, pending: _Pending) -> None:
        deadline = time.monotonic() + self._timeout_s if self._timeout_s > 0 else None
        while not self._is_done(pending):
            if deadline is not None and time.monotonic() > deadline:
                raise LoaderTimeout(
                    f"batch {pending.planned.step} of {self._engine.dataset.path} was not ready "
                    f"after {self._timeout_s} s"
                )

    def _is_done(self, pending: _Pending) -> bool:
        """Waits a little, so that signals are seen in between."""
        if not pending.wait(_WAIT_S):
            return False
        if not pending.sorted_out:
            self._engine._sort_out(pending, self._epoch)
        return pending.wait_for_pillow(_WAIT_S)

    def _give_back(self, pending: _Pending) -> None:
        if pending.memory is not None:
            self._engine._pool.release(pending.memory)
            pending.memory = None


def _image_field(
    dataset: Dataset | FolderDataset,
    name: str,
    kind: Image,
    compiled: Compiled | None,
    normalize_on_cpu: bool,
) -> _ImageField:
    compiled = compiled or Compiled()
    fused = None
    if normalize_on_cpu and compiled.size is not None:
        fused = affine(compiled.tail, kind.channels)
    return _ImageField(
        name,
        image_source(dataset, name, kind),
        compiled,
        compiled.native(),
        kind.channels,
        fused,
        compiled.tail if fused is None else (),
    )


def _select(values: Any, good: npt.NDArray[np.int64]) -> Any:
    """The good rows of a field. Arrays are packed in place, so that they stay in their slot."""
    if isinstance(values, list):
        return [values[index] for index in good.tolist()]
    for place, index in enumerate(good.tolist()):
        if place != index:
            values[place] = values[index]
    return values[: len(good)]
