"""The stage of a native feed that calls Python functions for the samples of decoded batches."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastio.engine.batch import Allocate, Batch, Lease, SlotPool
from fastio.engine.ragged import RaggedBatch
from fastio.engine.settings import numpy_memory
from fastio.errors import PerSampleError, SampleError
from fastio.feed.per_sample.calls import ChunkOutcome, Failure, FieldCalls, FieldInput, Keys
from fastio.feed.per_sample.chunks import (
    FieldTask,
    ImagesAt,
    PickledAt,
    Pool,
    RowsAt,
    SampleChunk,
    SamplesAt,
    Values,
)
from fastio.feed.per_sample.memory import SharedExtent, SharedMemory
from fastio.feed.per_sample.processes import ProcessWorkers
from fastio.feed.per_sample.threads import ThreadWorkers
from fastio.order.plan import draw_keys
from fastio.packed.rows import Rows
from fastio.runtime.lifecycle import Owner
from fastio.tensors.results import Layout, Results
from fastio.transforms import STEPS, Compiled, PerSample, spoken

_KEPT = 8  # free slots of results, and of samples that are copied
_PER_WORKER = 4  # chunks of a batch for each worker, so that they end at about the same time
_MOST_ROWS = 32  # of a chunk
_SHORT = 16 << 10  # bytes of pickled values that go through the socket
# A row has room for results of up to _UNLIKE times the smallest size, or for larger ones as long as
# all rows together take at most _FREELY bytes.
_FREELY = 256 << 20
_UNLIKE = 4

_Done = Callable[[dict[int, SampleError], Exception | None], None]


@dataclass(frozen=True)
class ProcessSettings:
    """How worker processes are started.

    Attributes:
        context: a context of multiprocessing, its name, or None for the default.
        init: function that each process calls once with its number, or None.
    """

    context: Any = None
    init: Callable[[int], None] | None = None

    def resolved(self) -> Any:
        """Returns the context of multiprocessing."""
        given = self.context
        return multiprocessing.get_context(given) if isinstance(given, (str, type(None))) else given

    def can_send(self, steps: Sequence[Any]) -> bool:
        """Returns whether the functions of transforms can be sent to processes."""
        functions = [step for step in steps if isinstance(step, PerSample)]
        if functions and self.resolved().get_start_method() != "fork":
            try:
                pickle.dumps(functions)
            except Exception:
                return False
        return True


class PerSampleStage:
    """Calls the functions of a feed; see `fastio.engine.pump.BatchStage`.

    Args:
        dataset: dataset, which names samples in messages.
        transforms: transforms of the fields that have steps per sample; of each view, by its
            name, where a field has several.
        images: names of the fields, or views, with images.
        channels_last: whether image batches are stored (N, H, W, C).
        count: number of workers where the steps do not say it.
        processes: how worker processes are started.

    Attributes:
        images: image fields, with the functions that allocate memory for their samples.
        seconds: time that functions took, summed over workers.
    """

    def __init__(
        self,
        dataset: Rows,
        transforms: Mapping[str, Compiled],
        images: Collection[str],
        channels_last: bool,
        count: int,
        processes: ProcessSettings,
    ) -> None:
        self._dataset = dataset
        self._channels_last = channels_last
        self._calls = {
            name: FieldCalls(
                compiled.per_sample, name in images, channels_last, compiled.stream * STEPS
            )
            for name, compiled in transforms.items()
        }
        self._count = count
        self._processes = processes
        self._memory = SharedMemory()
        self._in_threads = {
            name for name, calls in self._calls.items() if calls.workers == "threads"
        }
        self._owner = Owner()
        self._make()

    def _make(self) -> None:
        """Makes what threads and processes use. A forked child shares none of it with its parent.

        The memory of the parent's free slots would be written to by both.
        """
        self._lock = threading.Lock()
        self.seconds = 0.0
        self._sizes: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in self._calls}
        self._make_pools()
        threads = {name: self._calls[name] for name in self._calls if name in self._in_threads}
        others = {name: self._calls[name] for name in self._calls if name not in self._in_threads}
        self._workers: list[tuple[Sequence[str], Pool, int]] = []
        if threads:
            count = self._workers_of(threads)
            self._workers.append((list(threads), ThreadWorkers(threads, count), count))
        if others:
            count, what = self._workers_of(others), self._what(others)
            context, init = self._processes.resolved(), self._processes.init
            pool = ProcessWorkers(others, count, context, init, self._memory, what)
            self._workers.append((list(others), pool, count))

    def _make_pools(self) -> None:
        self._pools = {name: self._pool(name) for name in self._calls}
        self._arenas = SlotPool((), "uint8", self._memory.allocate, _KEPT)

    def __getstate__(self) -> dict[str, Any]:
        made = ("_lock", "_owner", "_sizes", "_pools", "_arenas", "_workers", "seconds")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._owner = Owner()
        self._make()

    @property
    def images(self) -> Mapping[str, Allocate]:
        """The image fields, with the functions that allocate memory for their samples."""
        images = [name for name, calls in self._calls.items() if calls.image]
        return {name: self._allocate(name) for name in images}

    def described(self, name: str) -> str:
        """Returns where the functions of a field run, as a phrase."""
        names = [
            spoken(step.function) if isinstance(step, PerSample) else repr(step)
            for step in self._calls[name].steps
        ]
        count = next(count for fields, _, count in self._workers if name in fields)
        kind = "thread" if name in self._in_threads else "process"
        plural = "" if count == 1 else "s" if kind == "thread" else "es"
        return f"{', '.join(names)} per sample in {count} {kind}{plural}"

    def start(self) -> None:
        """See `BatchStage`."""
        self._owner.take_over(self._make)
        for _, pool, _ in self._workers:
            pool.start()

    def run(self, batch: Batch, seed: int, cancelled: Callable[[], bool], done: _Done) -> None:
        """See `BatchStage`."""
        keys = draw_keys(batch.rows, batch.occurrences)
        job = _Job(self, batch, Keys(seed, batch.epoch, keys), cancelled, done)
        for names, pool, count in self._workers:
            job.add(names, pool, count)
        job.begin()

    def close(self) -> None:
        """See `BatchStage`."""
        for _, pool, _ in self._workers:
            pool.close()
        self._make_pools()  # the free slots of those before are freed

    def error(self, batch: Batch, place: int, failure: Failure) -> SampleError:
        """Returns the error of a sample for which a function raised one."""
        row = int(batch.rows[place])
        name = self._dataset.sample_name(row)
        error = PerSampleError(str(self._dataset.path), row, name, failure.text)
        if failure.error is not None:
            with suppress(Exception):
                error.__cause__ = pickle.loads(failure.error)
        return error

    def samples(self, name: str, values: Any) -> Sequence[Any]:
        """Returns the values of a field as functions get them, one by one."""
        if isinstance(values, RaggedBatch):
            return values.rows()
        found: Sequence[Any] = values
        if not self._calls[name].image and isinstance(values, np.ndarray):
            found = values.tolist() if values.ndim == 1 else list(values)
        return found

    def slot(self, name: str, rows: int) -> tuple[Any, Layout]:
        """Returns memory for the results of a field, uint8 (n,), and its layout.

        The memory is None until the size of a result is known. Each row has room for the largest
        array seen so far, but not for arrays that are many times larger than others: these are
        pickled. Otherwise one large image among small ones would make every row as large.
        """
        with self._lock:
            known = self._sizes[name]
            capacities = [
                min(most, max(_FREELY // rows, _UNLIKE * least))
                for _, (least, most) in sorted(known.items())
            ]
        layout = Layout(rows, tuple(capacities))
        if not layout.nbytes:
            return None, layout
        pool = self._pools[name]
        return Lease(pool, pool.acquire(layout.nbytes)).view(layout.nbytes), layout

    def arena(self, nbytes: int) -> Any:
        """Returns shared memory for samples that have to be copied: uint8 (nbytes,)."""
        return Lease(self._arenas, self._arenas.acquire(nbytes)).view(nbytes)

    def extent(self, array: Any) -> SharedExtent:
        """Returns where an array lies that begins where shared memory was allocated."""
        return self._memory.extent(array)

    def learn(self, outcome: ChunkOutcome) -> None:
        """Records the time that a chunk took, and the sizes of its results."""
        with self._lock:
            self.seconds += outcome.seconds
            for name, sizes in outcome.sizes.items():
                known = self._sizes[name]
                for number, (least, most) in sizes.items():
                    before = known.get(number, (least, most))
                    known[number] = min(least, before[0]), max(most, before[1])

    def in_threads(self, name: str) -> bool:
        """Returns whether the functions of a field run in threads of this process."""
        return name in self._in_threads

    def results(self, values: list[Any], memory: Any, layout: Layout) -> Results:
        """Returns the results of a field."""
        return Results(values, memory, layout, self._channels_last)

    def _allocate(self, name: str) -> Allocate:
        return numpy_memory if name in self._in_threads else self._memory.allocate

    def _pool(self, name: str) -> SlotPool:
        return SlotPool((), "uint8", self._allocate(name), _KEPT)

    def _workers_of(self, calls: Mapping[str, FieldCalls]) -> int:
        given = [
            step.count
            for each in calls.values()
            for step in each.steps
            if isinstance(step, PerSample) and step.count is not None
        ]
        return max(given, default=self._count)

    def _what(self, calls: Mapping[str, FieldCalls]) -> str:
        steps = [step for each in calls.values() for step in each.steps]
        return ", ".join(dict.fromkeys(repr(s) for s in steps if isinstance(s, PerSample)))


class _Job:
    """The work on one batch."""

    def __init__(
        self,
        stage: PerSampleStage,
        batch: Batch,
        keys: Keys,
        cancelled: Callable[[], bool],
        done: _Done,
    ) -> None:
        self._stage = stage
        self._batch = batch
        self._keys = keys
        self._cancelled = cancelled
        self._done = done
        self._lock = threading.Lock()
        self._chunks: list[tuple[Pool, list[SampleChunk]]] = []
        self._left = 0
        self._results: dict[str, list[Any]] = {}
        self._memory: dict[str, tuple[Any, Layout]] = {}
        self._held: list[Any] = []  # arrays that processes read: their slots are not used again
        self._failures: dict[int, SampleError] = {}
        self._error: Exception | None = None

    def add(self, names: Sequence[str], pool: Pool, workers: int) -> None:
        """Divides the samples of some fields into chunks for a pool."""
        rows = len(self._batch.rows)
        # Several chunks for each worker even out functions that take longer for some samples.
        size = max(1, min(_MOST_ROWS, -(-rows // (workers * _PER_WORKER))))
        fields = {name: self._field(name, rows) for name in names}
        chunks = [
            SampleChunk(
                begin,
                self._keys._replace(samples=self._keys.samples[begin : begin + size]),
                {name: cut(begin, min(rows, begin + size)) for name, cut in fields.items()},
                self._chunk_done,
                self._chunk_failed,
                self._cancelled,
            )
            for begin in range(0, rows, size)
        ]
        self._left += len(chunks)
        self._chunks.append((pool, chunks))

    def begin(self) -> None:
        """Passes the chunks to their pools."""
        # Chunks are submitted after all of them were counted: otherwise the first one could end
        # before the last one is made, and would be taken for the last.
        for pool, chunks in self._chunks:
            pool.submit(chunks)
        self._chunks = []

    def _field(self, name: str, rows: int) -> Callable[[int, int], FieldInput | FieldTask]:
        """Returns a function that cuts the rows of a chunk out of a field."""
        batch, stage = self._batch, self._stage
        samples = stage.samples(name, batch.fields.pop(name))
        memory, layout = stage.slot(name, rows)
        self._memory[name] = memory, layout
        self._results[name] = [None] * rows
        batch.leases.pop(name, None)  # from here on the array holds it
        if stage.in_threads(name):  # the views keep the slot until nobody has them any more
            return lambda begin, end: FieldInput(samples[begin:end], memory, layout)
        self._held.append(samples)
        there = None if memory is None else stage.extent(memory)
        source = self._source(samples)
        return lambda begin, end: FieldTask(source(begin, end), there, layout)

    def _source(self, samples: Any) -> Callable[[int, int], SamplesAt]:
        """Returns a function that tells processes where the rows of a chunk are."""
        if isinstance(samples, np.ndarray):
            first, row, shape = self._stage.extent(samples), samples[0].nbytes, samples.shape[1:]
            return lambda begin, end: RowsAt(
                first._replace(offset=begin * row), (end - begin, *shape)
            )
        images = [each for each in samples if _is_pixels(each)]
        if len(images) < len(samples):
            return lambda begin, end: self._pickled(samples[begin:end])
        bounds = np.cumsum([0, *(each.nbytes for each in images)]).tolist()
        memory, extent = self._copied(bounds[-1])
        for each, begin in zip(images, bounds[:-1], strict=True):
            memory[begin : begin + each.nbytes].reshape(each.shape)[...] = each
        at = [
            (extent._replace(offset=begin), each.shape)
            for each, begin in zip(images, bounds[:-1], strict=True)
        ]
        return lambda begin, end: ImagesAt(at[begin:end])

    def _pickled(self, samples: Sequence[Any]) -> SamplesAt:
        pickled = pickle.dumps(list(samples), pickle.HIGHEST_PROTOCOL)
        if len(pickled) <= _SHORT:
            return Values(pickled)
        memory, extent = self._copied(len(pickled))
        memory[:] = np.frombuffer(pickled, np.uint8)
        return PickledAt(extent, len(pickled))

    def _copied(self, nbytes: int) -> tuple[Any, SharedExtent]:
        memory = self._stage.arena(nbytes)
        self._held.append(memory)
        return memory, self._stage.extent(memory)

    def _chunk_done(self, chunk: SampleChunk, outcome: ChunkOutcome) -> None:
        self._stage.learn(outcome)
        for name, results in outcome.results.items():
            self._results[name][chunk.first : chunk.first + len(results)] = results
        try:
            errors = {
                chunk.first + place: self._stage.error(self._batch, chunk.first + place, failure)
                for place, failure in outcome.failures.items()
            }
        except Exception as error:  # the dataset cannot name the sample
            self._end_chunk({}, error)
        else:
            self._end_chunk(errors, None)

    def _chunk_failed(self, error: Exception) -> None:
        self._end_chunk({}, error)

    def _end_chunk(self, failures: Mapping[int, SampleError], error: Exception | None) -> None:
        with self._lock:
            self._failures.update(failures)
            self._error = self._error or error
            self._left -= 1
            if self._left:
                return
        # The processes have finished with the samples, so their slots may be reused.
        self._held.clear()
        if self._error is None:
            for name, (memory, layout) in self._memory.items():
                results = self._stage.results(self._results[name], memory, layout)
                self._batch.fields[name] = results
        error, self._error = self._error, None  # its traceback may refer to this object
        self._done(self._failures, error)


def _is_pixels(sample: Any) -> bool:
    return isinstance(sample, np.ndarray) and sample.dtype == np.uint8 and sample.size > 0
