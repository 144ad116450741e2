"""Chunks of batches: what the pools of workers take, and what goes to a worker process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastio.errors import LoaderClosed
from fastio.feed.per_sample.calls import ChunkOutcome, FieldInput, Keys
from fastio.feed.per_sample.memory import MappedMemory, SharedExtent
from fastio.tensors.results import Layout


class SamplesAt(Protocol):
    """Where a worker process finds the samples of a field."""

    def extents(self) -> list[SharedExtent]:
        """Returns what it refers to in shared memory."""

    def samples(self, memory: MappedMemory) -> Any:
        """Returns the samples, in a worker process."""


class RowsAt(NamedTuple):
    """Images of one size that lie one after the other: uint8 arrays of a shape."""

    extent: SharedExtent
    shape: tuple[int, ...]

    def extents(self) -> list[SharedExtent]:
        return [self.extent]

    def samples(self, memory: MappedMemory) -> Any:
        nbytes = int(np.prod(self.shape))
        return memory.bytes_at(self.extent, nbytes).reshape(self.shape)


class ImagesAt(NamedTuple):
    """Images of different sizes: the extent and the shape of each."""

    images: list[tuple[SharedExtent, tuple[int, ...]]]

    def extents(self) -> list[SharedExtent]:
        return [extent for extent, _ in self.images]

    def samples(self, memory: MappedMemory) -> Any:
        return [
            memory.bytes_at(extent, int(np.prod(shape))).reshape(shape)
            for extent, shape in self.images
        ]


class PickledAt(NamedTuple):
    """A pickled list of other values in shared memory."""

    extent: SharedExtent
    nbytes: int

    def extents(self) -> list[SharedExtent]:
        return [self.extent]

    def samples(self, memory: MappedMemory) -> Any:
        return pickle.loads(memory.bytes_at(self.extent, self.nbytes).data)


class Values(NamedTuple):
    """A short pickled list of other values."""

    pickled: bytes

    def extents(self) -> list[SharedExtent]:
        return []

    def samples(self, memory: MappedMemory) -> Any:
        return pickle.loads(self.pickled)


class FieldTask(NamedTuple):
    """A field of a task.

    Attributes:
        source: where its samples are.
        results: where the memory of the batch's results is; None if there is none yet.
        layout: where results lie in the memory.
    """

    source: SamplesAt
    results: SharedExtent | None
    layout: Layout


class ChunkTask(NamedTuple):
    """What a worker process is sent for a chunk.

    Attributes:
        number: number of the task.
        first: row of the first sample in the memory of the results.
        keys: key of the random draws.
        fields: the fields.
        freed: segments of shared memory that are not used any more.
    """

    number: int
    first: int
    keys: Keys
    fields: dict[str, FieldTask]
    freed: list[int]

    def inputs(self, memory: MappedMemory) -> dict[str, FieldInput]:
        """Returns the fields as `Caller` takes them, in a worker process."""
        return {
            name: FieldInput(
                field.source.samples(memory),
                None if field.results is None else memory.bytes_at(field.results),
                field.layout,
            )
            for name, field in self.fields.items()
        }


@dataclass
class SampleChunk:
    """Some consecutive samples of a batch.

    Attributes:
        first: row of the first sample in the batch.
        keys: key of the random draws.
        fields: the samples of each field: `FieldInput` for threads, `FieldTask` for processes.
        done: receives the results; called once, unless `failed` is.
        failed: receives the error because of which there are no results.
        cancelled: returns whether nobody wants the results any more.
    """

    first: int
    keys: Keys
    fields: Mapping[str, Any]
    done: Callable[[SampleChunk, ChunkOutcome], None]
    failed: Callable[[Exception], None]
    cancelled: Callable[[], bool]

    def leave_out(self) -> bool:
        """Ends a chunk that was cancelled before it began; returns whether it was."""
        if not self.cancelled():
            return False
        self.failed(LoaderClosed("closed while waiting for a batch"))
        return True


class Pool(Protocol):
    """Workers of one kind."""

    def start(self) -> None:
        """Starts the workers that are missing, in this process."""

    def submit(self, chunks: list[SampleChunk]) -> None:
        """Adds chunks, which workers take in order. Does not wait."""

    def close(self) -> None:
        """Ends the workers; chunks that have not begun fail with `LoaderClosed`."""
