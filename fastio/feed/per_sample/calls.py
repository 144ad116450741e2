"""Calls the functions of a chunk of samples; in threads and in worker processes alike."""

from __future__ import annotations

import pickle
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fastio.errors import LoaderClosed
from fastio.order.order import WORD
from fastio.tensors.results import Layout, ResultWriter
from fastio.tensors.samples import image_as, seed_torch
from fastio.tensors.trees import Tail
from fastio.transforms import PerSample, Pipeline, Pointwise, SampleType, Workers, spoken

_STATE = 1 << 32  # counted with the place: draws of the generators that are seeded


@dataclass(frozen=True)
class FieldCalls:
    """What is called for the samples of a field.

    Attributes:
        steps: the functions, with the ToDtype and Normalize steps between them.
        image: whether the field has images.
        channels_last: whether images among the results are stored (H, W, C).
        first: number that keys the draws of the first step; those after it count on from there.
    """

    steps: tuple[PerSample | Pointwise, ...]
    image: bool
    channels_last: bool
    first: int = 0

    @property
    def workers(self) -> Workers:
        """The kind of workers: threads if all of the functions ask for them, else processes."""
        asked = {step.workers for step in self.steps if isinstance(step, PerSample)}
        return "threads" if asked == {"threads"} else "processes"

    @property
    def makes_images(self) -> bool:
        """Whether an array of three axes that the last function returns is an image (H, W, C)."""
        last = self.steps[-1]
        return self.image and not (
            isinstance(last, PerSample) and isinstance(last.function, Pipeline)
        )


class Failure(NamedTuple):
    """The error of a function for one sample.

    Attributes:
        text: the function, the error and the traceback.
        error: the error, pickled; None if it cannot be pickled.
    """

    text: str
    error: bytes | None


@dataclass
class ChunkOutcome:
    """What the functions returned for a chunk.

    Attributes:
        results: of each field, what `ResultWriter.put` returned for the samples.
        failures: errors, by place of the sample in the chunk.
        sizes: for each field, by number of the array in a result, its smallest and largest size in
            bytes.
        seconds: time that the functions took.
    """

    results: dict[str, list[Any]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    sizes: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    seconds: float = 0.0


class Keys(NamedTuple):
    """What the random draws of a chunk are keyed by: seed, epoch, and int64 (n,) of the samples."""

    seed: int
    epoch: int
    samples: npt.NDArray[np.int64]


class FieldInput(NamedTuple):
    """The samples of a field in a chunk, and where their results go.

    Attributes:
        samples: the values; images are arrays (H, W, C).
        memory: memory of the results of the whole batch; None if there is none yet.
        layout: where results lie in the memory.
    """

    samples: Sequence[Any]
    memory: npt.NDArray[Any] | None
    layout: Layout


class Caller:
    """Calls the functions of all fields of a loader.

    Args:
        fields: what is called for each field.
        seeds: whether the global random generators are seeded for each sample.
    """

    def __init__(self, fields: Mapping[str, FieldCalls], seeds: bool) -> None:
        self._fields = dict(fields)
        self._seeds = seeds
        self._steps = {
            name: [
                (number, _prepared(step, calls.image))
                for number, step in enumerate(calls.steps, calls.first)
            ]
            for name, calls in fields.items()
        }

    def __call__(
        self,
        inputs: Mapping[str, FieldInput],
        first: int,
        keys: Keys,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> ChunkOutcome:
        """Calls the functions for a chunk.

        Args:
            inputs: the samples of each field.
            first: row of the first sample in the memory of the results.
            keys: key of the random draws.
            cancelled: returns whether nobody wants the results any more.

        Raises:
            LoaderClosed: it was cancelled.
        """
        began_s, outcome, draws = time.perf_counter(), ChunkOutcome(), _Draws(keys)
        for name, given in inputs.items():
            calls = self._fields[name]
            image = calls.makes_images
            writer = ResultWriter(given.memory, given.layout, image, calls.channels_last)
            results: list[Any] = []
            steps = self._steps[name]
            for place, sample in enumerate(given.samples):
                if cancelled():
                    raise LoaderClosed("closed while functions were called")
                result, called = None, steps[0][1].name
                try:
                    if self._seeds:
                        draws.seed_globals(place, calls.first)
                    for number, step in steps:
                        called = step.name
                        sample = step.call(sample, draws, place, number)
                    result = writer.put(first + place, sample)
                except Exception as error:
                    outcome.failures.setdefault(place, failure(called, error))
                results.append(result)
            outcome.results[name] = results
            outcome.sizes[name] = writer.sizes
        outcome.seconds = time.perf_counter() - began_s
        return outcome


@dataclass(frozen=True)
class _Step:
    """One function of a field.

    Attributes:
        function: the function.
        name: its name, for messages.
        kind: type of the images that it gets; None if the field has none.
        rng_by: how it gets a random generator; None if it gets none.
    """

    function: Callable[..., Any]
    name: str
    kind: SampleType | None
    rng_by: Literal["position", "name"] | None = None

    def call(self, sample: Any, draws: _Draws, place: int, number: int) -> Any:
        """Returns the result for a sample at a place of the chunk."""
        if self.kind is not None:
            sample = image_as(sample, self.kind)
        if self.rng_by is None:
            return self.function(sample)
        rng = draws.rng(place, number)
        return (
            self.function(sample, rng=rng) if self.rng_by == "name" else self.function(sample, rng)
        )


def _prepared(step: PerSample | Pointwise, image: bool) -> _Step:
    if not isinstance(step, PerSample):
        return _Step(Tail([step]), repr(step), "tensor" if image else None)
    kind = step.sample_type if image else None
    return _Step(step.function, spoken(step.function), kind, step.rng_by)


class _Draws:
    """Random generators whose state is a function of the key of a sample.

    Philox is counter-based: its state is a key (seed and epoch) and a counter, of which the upper
    words are the key of the sample and the place of the function in the list.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys.samples
        self._bits = np.random.Philox(key=np.array([keys.seed, keys.epoch], np.uint64))
        self._state: Any = self._bits.state
        self._rng = np.random.Generator(self._bits)

    def rng(self, place: int, number: int) -> np.random.Generator:
        """Returns the generator for the sample at a place and the function with a number."""
        counter = self._state["state"]["counter"]
        counter[2] = int(self._keys[place]) & WORD
        counter[3] = number
        self._bits.state = self._state
        return self._rng

    def seed_globals(self, place: int, first: int) -> None:
        """Seeds the global generators of random, NumPy and torch for the sample at a place.

        Args:
            place: place of the sample in the chunk.
            first: number of the first function that is called for it.
        """
        self.rng(place, _STATE + first)
        # NumPy's seed has 32 bits and torch's 63; the upper bits of a draw are kept.
        python, numpy, torch = self._bits.random_raw(3).tolist()
        random.seed(python)
        np.random.seed(numpy >> 32)
        seed_torch(torch >> 1)


def failure(name: str, error: Exception) -> Failure:
    """Returns the error of a function, or of another thing with a name, as a value."""
    lines = "".join(traceback.format_exception(error)).rstrip()
    try:
        pickled = pickle.dumps(error)
        # Some errors can be pickled, but not be unpickled.
        pickle.loads(pickled)
    except Exception:
        pickled = None
    return Failure(f"{name} raised {type(error).__name__}: {error}\n{lines}", pickled)
