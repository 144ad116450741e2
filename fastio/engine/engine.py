"""The engine: it owns threads and slots, and handles bad samples."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import ImageFile

from fastio import _native
from fastio.engine.audio import Clip, audio_fields
from fastio.engine.batch import Allocate, AnyArray, Batch, Lease, SlotPool
from fastio.engine.feeder import Feeder
from fastio.engine.fields import ColdRows, Columns, SpanRead, Spans
from fastio.engine.fields.readers import ImageField, check_names, image_field
from fastio.engine.mend import replace, skip
from fastio.engine.pending import WAIT_S, Pending
from fastio.engine.pillow import PillowThreads
from fastio.engine.ragged import Forms, RaggedBatch, is_ragged, of_field
from fastio.engine.stream import BatchStream
from fastio.errors import (
    AudioError,
    FastioError,
    ImageError,
    LoaderClosed,
    SampleError,
    ShardCorrupt,
)
from fastio.order.plan import PlannedBatch
from fastio.packed.of_sample import NOT_OF_SAMPLES, of_sample
from fastio.packed.reads import ImageReads
from fastio.packed.rows import Rows
from fastio.runtime.lifecycle import Owner, at_exit
from fastio.runtime.threads import PATIENCE_S
from fastio.schema import CODEC_ENCODED, Image
from fastio.stage import Forecast, Lookahead, Stager
from fastio.stats import Stats
from fastio.transforms import AudioDecode, Augmentation, Compiled, Pointwise, augmentation

OnError = Literal["raise", "skip", "replace"]
_SMALL_BYTES = 64 << 10  # fields of a batch below this size, such as labels, get new memory
_ATTEMPTS = 3  # at fetching a damaged shard again
_END_S = 1.0  # time that the feeder's thread has to end when the interpreter exits
_DAMAGED = (_native.TRUNCATED, _native.CORRUPT)
_WORD = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class StagingPlan:
    """How far ahead a run over a remote dataset fetches blocks; see `Lookahead`."""

    forecast: Forecast
    position: int
    ahead_bytes: int
    following: Callable[[], Iterator[PlannedBatch]] | None = None


def numpy_memory(shape: tuple[int, ...], dtype: str) -> AnyArray:
    """Returns slot memory allocated by NumPy."""
    return np.empty(shape, dtype)


class Engine:
    """Decodes batches of one dataset with a fixed set of transforms.

    Args:
        dataset: packed dataset, folder or tars; the engine does not close it.
        transforms: transforms of each image field; fields that are not named keep their pixels.
        fields: names of the fields to deliver, in order; None for all.
        threads: number of native threads, 1 or more.
        on_error: "raise" raises the error of a bad sample from next(), "skip" leaves the sample out
            of its batch, "replace" replaces it by the next good sample of the batch.
        channels_last: whether image batches are stored (n, H, W, C); else (n, C, H, W).
        normalize_on_cpu: apply ToDtype("float32") and Normalize in the engine, which then writes
            float32; `tails` has the remaining steps.
        allocate: function that returns slot memory; None uses NumPy.
        recycle: whether slots are reused; False gives every batch memory of its own.
        stager: fetches the blocks of a remote dataset; the engine does not close it.
        resident: keep a copy of a table's rows in memory; see `fetch.Columns`.
        ragged: forms of the fields whose rows differ in size; lists for fields without one.
        audio: decoding settings of fields of sound files; fields that are not named stay bytes.

    Raises:
        TransformError: transforms name a field that does not exist or is not an image.
    """

    def __init__(
        self,
        dataset: Rows,
        *,
        transforms: Mapping[str, Compiled],
        fields: Sequence[str] | None = None,
        threads: int = 1,
        on_error: OnError = "raise",
        channels_last: bool = False,
        normalize_on_cpu: bool = False,
        allocate: Allocate | None = None,
        recycle: bool = True,
        stager: Stager | None = None,
        resident: bool = False,
        ragged: Forms | None = None,
        audio: Mapping[str, AudioDecode] | None = None,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        if on_error not in ("raise", "skip", "replace"):
            raise ValueError(f"on_error must be 'raise', 'skip' or 'replace', got {on_error!r}")
        self.dataset = dataset
        self.on_error = on_error
        self.channels_last = channels_last
        self._threads = threads
        self._transforms = dict(transforms)
        self._normalize_on_cpu = normalize_on_cpu
        self._stager = stager
        self._feeder: Feeder | None = None
        self.fields = list(dataset.schema.fields if fields is None else fields)
        check_names(dataset.schema, self.fields, transforms)
        self._resident = resident
        self._images = self._make_images()
        self._columns = self._make_columns()
        self._forms = ragged or Forms()
        self._spans = self._make_spans()
        self._audio = audio_fields(dataset, self.fields, audio or {}, self._forms)
        self._pools = self._make_pools(allocate, 8 if recycle else 0)
        self._native: _native.Engine | None = None
        self._python: PillowThreads | None = None
        self._python_lock = threading.Lock()
        self._owner = Owner()
        at_exit(self._end)
        self._closed = False
        self._streams: weakref.WeakSet[BatchStream] = weakref.WeakSet()
        self._skipped = self._replaced = 0
        self._fetch_s = 0.0

    @property
    def name(self) -> str:
        """The name of the dataset, for messages."""
        return str(self.dataset.path)

    @property
    def tails(self) -> dict[str, tuple[Pointwise, ...]]:
        """For each image field, the ToDtype and Normalize steps that the engine does not apply."""
        return {name: image.tail for name, image in self._images.items()}

    @property
    def stats(self) -> Stats:
        """Returns the counters of the threads since the engine was made."""
        if self._native is None:
            return Stats(fetch_s=self._fetch_s)
        images, nbytes, read, decode, resample = self._native.counters()
        return Stats(
            bytes_read=nbytes,
            images_decoded=images,
            skipped=self._skipped,
            replaced=self._replaced,
            read_s=read * 1e-9,
            decode_s=decode * 1e-9,
            resample_s=resample * 1e-9,
            fetch_s=self._fetch_s,
        )

    @property
    def threads(self) -> int:
        """The number of native threads that work, or will work once they are started."""
        return self._threads

    def set_threads(self, threads: int) -> None:
        """Sets the number of threads, at least 1; fewer if the system cannot start as many."""
        self._threads = threads
        if not self._owner.is_here:
            return
        if self._native is not None:
            self._threads = self._native.set_threads(threads)
        with self._python_lock:
            python = self._python  # another thread may close the engine
            if python is not None:
                python.resize(self._threads)

    def run(
        self,
        plan: Iterable[PlannedBatch],
        *,
        epoch: int,
        seed: int = 0,
        ahead: int = 2,
        timeout_s: float = 0.0,
        staging: StagingPlan | None = None,
    ) -> BatchStream:
        """Decodes the batches of a plan, in order.

        Args:
            plan: the batches; it is read `ahead` of the consumer.
            seed, epoch: key of the augmentations.
            ahead: number of batches in work besides the one that next() waits for.
            timeout_s: seconds after which next() raises LoaderTimeout; 0 waits without a limit.
            staging: for a remote dataset, how far ahead of the batches blocks are fetched.

        Raises:
            LoaderClosed: the engine was closed.
            SourceChanged: the data was replaced after it was opened.
        """
        if self._closed:
            raise LoaderClosed("the engine was closed")
        packed = self.dataset.packed
        if packed is not None:
            packed.check_unchanged()
        self._start()
        batches = iter(plan)
        if self._stager is not None and staging is not None:
            self._stager.reopen()
            batches = Lookahead(
                batches,
                self._stager,
                staging.forecast,
                staging.position,
                staging.ahead_bytes,
                staging.following,
            )
        stream = BatchStream(self, batches, seed & _WORD, epoch, max(1, ahead), timeout_s, packed)
        self._streams.add(stream)
        return stream

    def cold_rows(self) -> ColdRows | None:
        """Returns the places of fixed-width rows in files, or None if there are no such rows."""
        return None if self._columns is None else ColdRows(self._columns.layout)

    def augmentation(
        self,
        field: str,
        seed: int,
        epoch: int,
        keys: npt.ArrayLike,
        heights: npt.ArrayLike,
        widths: npt.ArrayLike,
    ) -> list[Augmentation]:
        """Returns the draws for keys of `plan.draw_keys`, given the sizes of the upright images."""
        compiled = self._images[field].compiled
        return augmentation(compiled, seed, epoch, keys, heights, widths)

    def close(self) -> None:
        """Ends all streams, joins the threads and closes the files. May be called again."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()
        if self._feeder is not None and self._owner.is_here:
            self._feeder.close(PATIENCE_S)
        self._feeder = None
        for pool in self._pools.values():
            pool.clear()
        if self._native is not None:
            self._native.close()
        if self._python is not None and self._owner.is_here:
            self._python.close()
        self._python = None
        for image in self._images.values():
            image.source.close()
        if self._columns is not None:
            self._columns.close()

    def _end(self) -> None:
        """Ends the threads at the exit of the interpreter, without waiting for any server."""
        if not self._owner.is_here:
            return
        self._closed = True
        for stream in list(self._streams):
            stream.cancel()
        if self._feeder is not None:
            self._feeder.close(_END_S)
        if self._native is not None:
            self._native.close()

    def _make_images(self) -> dict[str, ImageField]:
        dataset = self.dataset
        return {
            name: image_field(
                dataset,
                name,
                kind,
                self._transforms.get(name),
                self._normalize_on_cpu,
                self._stager,
            )
            for name, kind in dataset.schema.fields.items()
            if name in self.fields and isinstance(kind, Image)
        }

    def _make_columns(self) -> Columns | None:
        layout = self.dataset.fixed_columns(self.fields)
        return None if layout is None else Columns(layout, self._resident)

    def _make_spans(self) -> dict[str, Spans]:
        """Returns the fields whose rows differ in size and lie in local files."""
        kinds = self.dataset.schema.fields
        ragged = [name for name in self.fields if is_ragged(kinds[name])]
        found = {name: self.dataset.ragged_rows(name) for name in ragged}
        return {
            name: Spans(rows, self._forms.get(name, "list"))
            for name, rows in found.items()
            if rows is not None
        }

    def _make_pools(self, allocate: Allocate | None, keep: int) -> dict[str, SlotPool]:
        """Returns slot pools for the fields that native threads fill with rows of one shape."""
        pools = {}
        smallest = _SMALL_BYTES if allocate is None else 0
        allocate = numpy_memory if allocate is None else allocate
        for name, image in self._images.items():
            row = image.shape(self.channels_last)
            if row is not None:
                pools[name] = SlotPool(*row, allocate, keep)
        for field in () if self._columns is None else self._columns.fields:
            pools[field.name] = SlotPool(field.shape, field.dtype, allocate, keep, smallest)
        for name, sound in self._audio.items():
            if sound.how.shape is not None:
                pools[name] = SlotPool(sound.how.shape, sound.how.dtype, allocate, keep, smallest)
        for name in self._spans:  # those that are not kept are pinned later, as a whole
            memory = allocate if keep else numpy_memory
            pools[name] = SlotPool((), "uint8", memory, keep, smallest)
        return pools

    def _start(self) -> None:
        """Starts the threads once per process: a forked child has none of its parent's threads."""
        self._owner.take_over(self._begin_anew)
        if self._native is None:
            self._native = _native.Engine(self._threads)
            weakref.finalize(self, self._native.close)

    def _begin_anew(self) -> None:
        """Makes anew what has threads, or locks that the parent's threads may hold."""
        self._native = self._python = self._feeder = None
        self._python_lock = threading.Lock()
        self._images = self._make_images()
        self._columns = self._make_columns()

    def _pillow(self) -> PillowThreads:
        with self._python_lock:  # batches are begun by the feeder's thread and the consumer's
            if self._python is None:
                self._python = PillowThreads(self._threads)
            return self._python

    def submit(self, planned: PlannedBatch, seed: int, epoch: int) -> Pending:
        pending = Pending(planned, seed, epoch)
        if self._stager is None:
            self._begin(pending)
            return pending
        pending.blocks = self._stager.blocks.of(planned.rows)
        if self._stager.has(pending.blocks) and self._stager.blocks.describes(planned.rows):
            try:
                self._begin(pending)
            except BaseException:  # an interrupt
                if pending.abandon():
                    self._release(pending)
                raise
            return pending
        if self._feeder is None:
            self._feeder = Feeder(self._stager, self._begin)
        pending.staged = threading.Event()
        self._stager.retry(pending.blocks)  # those that failed while nobody waited for them
        self._feeder.put(pending)
        return pending

    def again(self, failed: Pending) -> Pending:
        """Submits a batch again whose blocks could not be fetched."""
        assert self._stager is not None
        assert failed.blocks is not None
        self._stager.want(failed.blocks)
        return self.submit(failed.planned, failed.seed, failed.epoch)

    def _begin(self, pending: Pending) -> None:
        """Passes a batch to the threads, once all of its bytes can be read."""
        planned = pending.planned
        rows = np.ascontiguousarray(planned.rows, np.int64)
        try:
            for name, pool in self._pools.items():
                if name not in self._spans:
                    pending.memory[name] = pool.acquire(len(rows))
            for image in self._images.values():
                self._submit_images(pending, image, rows)
            self._gather(pending, rows)
            self._copy(pending, rows)
            self._submit_audio(pending)
            elsewhere = {*self._images, *self._audio, *self._pools}
            others = [name for name in self.fields if name not in elsewhere]
            if others:
                values = self._gathered(pending, others)
                pending.values |= {name: self._in_form(name, values[name]) for name in others}
        except Exception as error:
            for slot in pending.native():
                slot.cancel()
                while not slot.wait(WAIT_S):
                    pass
            for future in pending.clips():
                future.cancel()
            while not pending.wait_for_pillow(WAIT_S):
                pass
            pending.error = error

    def _gathered(self, pending: Pending, fields: list[str]) -> Mapping[str, Any]:
        """Returns the fields that Python reads; bad samples get the values of a good one.

        Errors of single samples are recorded in the batch and handled by `on_error`.
        """
        rows, dataset = pending.planned.rows, self.dataset
        try:
            return dataset.gather_all(fields, rows)
        except NOT_OF_SAMPLES:
            raise
        except Exception as error:
            if self.on_error == "raise" and isinstance(error, FastioError):
                raise
            whole = error
        for index, row in enumerate(rows.tolist()):
            try:
                with of_sample(dataset, row):
                    dataset.gather_all(fields, rows[index : index + 1])
            except SampleError as error:
                pending.failures[index] = error
        if not pending.failures:
            raise whole
        good = np.setdiff1d(np.arange(len(rows)), list(pending.failures))
        if not good.size:
            return {name: [] for name in fields}
        places = np.arange(len(rows))
        places[list(pending.failures)] = good[0]
        return dataset.gather_all(fields, rows[places])

    def _gather(self, pending: Pending, rows: npt.NDArray[np.int64]) -> None:
        if self._columns is not None:
            assert self._native is not None
            out = [pending.memory[field.name] for field in self._columns.fields]
            pending.gathered = self._columns.gather(self._native, rows, out)

    def _copy(self, pending: Pending, rows: npt.NDArray[np.int64]) -> None:
        assert self._native is not None
        for name, spans in self._spans.items():

            def acquire(nbytes: int, name: str = name) -> AnyArray:
                memory = self._pools[name].acquire(_rounded(nbytes))
                pending.memory[name] = memory
                return memory

            pending.spans[name] = spans.read(self._native, rows, acquire)

    def _submit_audio(self, pending: Pending) -> None:
        for name, sound in self._audio.items():
            out = pending.memory.get(name)
            pending.audio[name] = [
                self._pillow().submit(
                    sound.decode,
                    row,
                    (pending.seed, pending.epoch, key & _WORD),
                    None if out is None else out[index],
                )
                for index, (row, key) in enumerate(
                    zip(pending.planned.rows.tolist(), pending.keys.tolist(), strict=True)
                )
            ]

    def _in_form(self, name: str, values: Any) -> Any:
        """Returns rows that a dataset gave as a list in the requested form."""
        kind = self.dataset.schema.fields[name]
        form = self._forms.get(name, "list")
        return values if form == "list" or not is_ragged(kind) else of_field(values, form, kind)

    def _submit_images(
        self, pending: Pending, image: ImageField, rows: npt.NDArray[np.int64]
    ) -> None:
        out = pending.memory.get(image.name)
        slot, reads = self._submit_reads(pending, image, pending.keys, rows, out)
        pending.slots[image.name] = slot
        pending.foreign[image.name] = {
            index: self._to_pillow(pending, image, index)
            for index in np.flatnonzero(reads.codec == CODEC_ENCODED).tolist()
        }

    def _submit_reads(
        self,
        pending: Pending,
        image: ImageField,
        keys: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        out: AnyArray | None,
    ) -> tuple[_native.Slot, ImageReads]:
        assert self._native is not None
        files, reads = image.source.reads(rows)
        slot = self._native.submit(
            files,
            image.geometry,
            pending.seed,
            pending.epoch,
            reads.file,
            reads.offset,
            reads.length,
            reads.codec,
            reads.orientation,
            reads.height,
            reads.width,
            keys,
            reads.crc32c,
            reads.codebook,
            image.channels,
            self.channels_last,
            image.affine,
            out,
            image.max_pixels,
        )
        return slot, reads

    def sort_out(self, pending: Pending) -> None:
        """Passes images to Pillow that the native threads could not decode.

        These are foreign formats that are recognised only when read, such as a PNG named .jpg, and
        truncated files if Pillow is set to load them (`ImageFile.LOAD_TRUNCATED_IMAGES`).
        """
        damaged = _DAMAGED if ImageFile.LOAD_TRUNCATED_IMAGES else ()
        wanted = (_native.FOREIGN, *damaged)
        for name, slot in pending.slots.items():
            image, futures = self._images[name], pending.foreign[name]
            for index, code, _ in slot.failures():
                if code in wanted and index not in futures:
                    futures[index] = self._to_pillow(pending, image, index)
        pending.sorted_out = True

    def _to_pillow(
        self, pending: Pending, image: ImageField, index: int
    ) -> Future[AnyArray | None]:
        row = int(pending.planned.rows[index])
        out = pending.memory.get(image.name)
        place = None if out is None else out[index]
        return self._pillow().submit(
            image.decode_with_pillow,
            row,
            (pending.seed, pending.epoch, int(pending.keys[index])),
            self.channels_last,
            place,
        )

    def finish(self, pending: Pending) -> Batch | None:
        """Returns a batch whose threads are done; None if all of its rows were skipped."""
        planned = pending.planned
        self._fetch_s += pending.fetch_s
        failures = dict(pending.failures)
        for name, slot in pending.slots.items():
            self._finish_images(pending, self._images[name], slot, failures)
        self._finish_gathered(pending)
        self._finish_spans(pending)
        clips = {name: self._clips(pending, name, failures) for name in self._audio}
        self._let_go(pending)
        count = len(planned.rows)
        leases = {n: Lease(self._pools[n], memory) for n, memory in pending.memory.items()}
        pending.memory = {}
        if failures and self.on_error == "raise":
            for lease in leases.values():
                lease.release()
            raise failures[min(failures)]
        values = dict(pending.values)
        for name, lease in leases.items():
            read = pending.spans.get(name)
            values[name] = lease.view(count) if read is None else _leased(read, lease)
        for name, found in clips.items():
            values[name] = self._audio[name].batch(found, values.get(name))
        batch = Batch(
            {name: values[name] for name in self.fields},
            planned.rows,
            planned.valid,
            pending.epoch,
            planned.step,
            planned.next_position,
            [failures[index] for index in sorted(failures)],
            leases,
            planned.occurrences,
        )
        return self._mend(batch, sorted(failures)) if failures else batch

    def _finish_gathered(self, pending: Pending) -> None:
        """Reads rows of damaged shards again, after the shard was opened or fetched again."""
        if pending.gathered is None:
            return
        assert self._columns is not None
        rows = np.ascontiguousarray(pending.planned.rows, np.int64)
        for _ in range(_ATTEMPTS):
            broken = [index for index, _, _ in pending.gathered.failures()]
            if not broken or not self._columns.renew(rows[broken]):
                break
            self._gather(pending, rows)
            while not pending.gathered.wait(WAIT_S):
                pass
        for index, _, message in pending.gathered.failures():
            raise self._shard_error(int(rows[index]), message)

    def _clips(self, pending: Pending, name: str, failures: dict[int, SampleError]) -> list[Clip]:
        """Returns a field's decoded clips; a bad clip is replaced by another, or by nothing."""
        found: list[Clip | None] = []
        for index, future in enumerate(pending.audio[name]):
            try:
                found.append(future.result())
            except NOT_OF_SAMPLES:
                raise
            except Exception as error:
                row = int(pending.planned.rows[index])
                cause = error.cause if isinstance(error, SampleError) else error
                told = AudioError(self.name, row, self.dataset.sample_name(row), cause)
                failures.setdefault(index, told)
                found.append(None)
        good = next((clip for clip in found if clip is not None), None)
        empty = (np.zeros(self._audio[name].how.shape or (1, 0), self._audio[name].how.dtype), 0)
        return [clip if clip is not None else good or empty for clip in found]

    def _finish_spans(self, pending: Pending) -> None:
        for name, read in pending.spans.items():
            broken = read.failures()
            if broken:
                rows = pending.planned.rows[sorted(broken)]
                self._spans[name].source.forget(rows)
                raise self._shard_error(int(rows[0]), broken[min(broken)])

    def _finish_images(
        self,
        pending: Pending,
        image: ImageField,
        slot: _native.Slot,
        failures: dict[int, SampleError],
    ) -> None:
        rows = pending.planned.rows
        futures = pending.foreign[image.name]
        own_size = image.compiled.size is None
        broken = {
            i: message
            for i, code, message in slot.failures()
            if code != _native.FOREIGN and i not in futures
        }
        images: list[AnyArray | None] = []
        if own_size:
            images += (slot.take(index) for index in range(len(rows)))
            pending.values[image.name] = images
        if broken and self._stager is not None:
            broken = self._read_again(pending, image, broken, images)
        packed = self.dataset.packed
        if broken and packed is not None:
            packed.check_unchanged()  # a shard that was cut off is no row's own error
        for index, message in broken.items():
            failures.setdefault(index, self._error(int(rows[index]), message))
        for index, future in futures.items():
            try:
                pixels = future.result()
            except NOT_OF_SAMPLES:
                raise
            except Exception as error:
                cause = error.cause if isinstance(error, SampleError) else error
                failures.setdefault(index, self._error(int(rows[index]), cause))
            else:
                if own_size:
                    images[index] = pixels

    def _read_again(
        self,
        pending: Pending,
        image: ImageField,
        broken: dict[int, str],
        images: list[AnyArray | None],
    ) -> dict[int, str]:
        """Reads failed rows from blocks that are fetched again; staged data may be damaged or gone.

        Returns:
            The rows that still fail, and why.
        """
        for in_memory in (False, True):
            broken = self._read_once_more(pending, image, broken, images, in_memory)
            if not broken:
                break
        return broken

    def _read_once_more(
        self,
        pending: Pending,
        image: ImageField,
        broken: dict[int, str],
        images: list[AnyArray | None],
        in_memory: bool,
    ) -> dict[int, str]:
        assert self._stager is not None
        indices = np.array(sorted(broken), np.int64)
        rows = np.ascontiguousarray(pending.planned.rows[indices], np.int64)
        blocks = self._stager.blocks.of(rows)
        self._stager.restage(blocks.tolist(), in_memory=in_memory)
        while not self._stager.wait(blocks, WAIT_S):
            if self._closed:
                raise LoaderClosed("closed while a batch was waited for")
        out = pending.memory.get(image.name)
        place = None if out is None else np.empty((len(rows), *out.shape[1:]), out.dtype)
        keys = pending.keys[indices]
        slot, _ = self._submit_reads(pending, image, keys, rows, place)
        while not slot.wait(WAIT_S):
            pass
        still = {index: message for index, code, message in slot.failures()}
        for position, index in enumerate(indices.tolist()):
            if position in still:
                continue
            if out is None:
                images[index] = slot.take(position)
            else:
                assert place is not None
                out[index] = place[position]
        return {int(indices[position]): message for position, message in still.items()}

    def _let_go(self, pending: Pending) -> None:
        """Releases the blocks of a batch."""
        if self._stager is not None and pending.blocks is not None:
            self._stager.done(pending.blocks)
            pending.blocks = None

    def _shard_error(self, row: int, cause: str) -> ShardCorrupt:
        return ShardCorrupt(
            f"{self.dataset.sample_name(row)}: {cause} (row {row} of {self.name}); copy the shard "
            "again, or pack again"
        )

    def _error(self, row: int, cause: BaseException | str) -> SampleError:
        return ImageError(self.name, row, self.dataset.sample_name(row), cause)

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
            skip(batch, good)
        else:
            self._replaced += len(bad)
            replace(batch, bad, good)
        return batch

    def give_back(self, pending: Pending) -> None:
        """Takes back the slots of a batch that is not delivered. Called by `BatchStream`."""
        self._let_go(pending)
        self._release(pending)

    def lose(self, pending: Pending) -> None:
        """Drops a batch whose threads hang; they keep its slots. Called by `BatchStream`."""
        self._let_go(pending)
        pending.memory = {}

    def _release(self, pending: Pending) -> None:
        for name, memory in pending.memory.items():
            self._pools[name].release(memory)
        pending.memory = {}


def _rounded(nbytes: int) -> int:
    """Returns a rounded-up size, so that slightly larger batches can reuse the memory."""
    step = 1 << max(12, nbytes.bit_length() - 3)
    return -(-nbytes // step) * step


def _leased(read: SpanRead, lease: Lease) -> RaggedBatch:
    """Returns copied rows whose views hold the lease of their memory."""
    values = read.batch.values
    view = lease.view(values.nbytes)
    read.batch.values = view.view(values.dtype).reshape(values.shape)
    return read.batch
