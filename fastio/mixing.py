"""Several datasets as one: which row of which stands where.

The order of a mix is arithmetic like any other, a function of (seed, epoch): positions are cut in
cycles of `CYCLE`, in each of which every source has its share of places, in an order of the cycle's
own. The k-th place of a source, counted over all epochs, has position k of that source's own
epochs, which follow one another, each in an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fastio.order import Order
from fastio.plan import BucketPlan, Lengths, Plan, PlannedBatch
from fastio.sampling import Sampling

CYCLE = 10_000  # places: weights are rounded to so many parts
_WORD = 0xFFFFFFFFFFFFFFFF
_KEPT_CYCLES = 4

Stop = Literal["all", "first"]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mix:
    """Datasets to be loaded as one; see `fastio.mix`.

    Attributes:
        sources: what the loader takes as datasets: paths, URLs, or datasets.
        weights: of each, which add up to 1.
        seed: of the order in which they take turns; None: the loader's.
        stop: where an epoch ends.
    """

    sources: tuple[Any, ...]
    weights: tuple[float, ...]
    seed: int | None = None
    stop: Stop | int = "all"


def mix(
    sources: Mapping[Any, float] | Iterable[tuple[Any, float]],
    *,
    seed: int | None = None,
    stop: Stop | int = "all",
) -> Mix:
    """Several datasets with the same fields as one dataset for `Loader`.

    Samples come from each in proportion to its weight: exactly so in each run of 10,000 samples of
    an epoch, in random order within it. A source that ends begins again, in its next epoch's order
    and with its next epoch's augmentations; at the beginning of the mix's next epoch each source
    goes on where it was. All of it is a function of the seeds: the same for any number of ranks
    and threads, and resumed exactly.

    Windows of tokens have `cu_seqlens` of the whole batch. Documents (`TokenPad`) are padded to the
    longest of the batch, whichever dataset it is of; with `pool`, batches of similar lengths are
    made of the mix's samples, each batch of all sources.

        loader = fastio.Loader(
            fastio.mix({"web": 0.7, "books": 0.3}), 64, shuffle=True,
            transforms={"tokens": fastio.TokenWindows(2048)},
        )

    Args:
        sources: {path: weight, ...}, or pairs of a dataset (or a path) and its weight. A torch
            Subset or ConcatDataset of such datasets is one, too. Weights are above 0, of any sum.
        seed: of the turns, also of loaders that do not shuffle; None: the loader's seed, which
            decides the order within each source in any case.
        stop: where an epoch ends: "all", when every source was gone through once (small ones more
            than once); "first", when the first source would begin again; or after so many samples.

    Raises:
        ValueError: there are no sources, or a weight or `stop` is not possible.
    """
    pairs = list(sources.items() if isinstance(sources, Mapping) else sources)
    if not pairs:
        raise ValueError("there is nothing to mix: give {path: weight, ...}")
    weights = np.array([float(weight) for _, weight in pairs])
    if not np.isfinite(weights).all() or weights.min() <= 0:
        raise ValueError(f"weights are above 0, got {weights.tolist()}")
    shares = weights / weights.sum()
    if shares.min() < 1 / CYCLE:
        raise ValueError(
            f"a weight below 1/{CYCLE} of the sum gives a source no place: {weights.tolist()}"
        )
    if stop not in ("all", "first") and (type(stop) is not int or stop < 1):
        raise ValueError(f"stop is 'all', 'first' or a number of samples, got {stop!r}")
    return Mix(tuple(source for source, _ in pairs), tuple(shares.tolist()), seed, stop)


class Part(NamedTuple):
    """Those of some positions that one source has in one of its epochs.

    Attributes:
        source: its number.
        epoch: of the source.
        places: int64 (n,), where they stand among the positions that were asked for.
        rows: int64 (n,), of the source.
        occurrences: int64 (n,), how often each came in the epoch before; None: never.
    """

    source: int
    epoch: int
    places: Indices
    rows: Indices
    occurrences: Indices | None = None


class Chain:
    """Datasets one after the other, of whose rows some may be picked.

    Args:
        rows: of each dataset.
        sampling: tells which rows are picked.
    """

    def __init__(self, rows: Sequence[int], sampling: Sampling) -> None:
        self._bounds = np.append(0, np.cumsum(rows)).astype(np.int64)
        self._sampling = sampling

    def __len__(self) -> int:
        picked = self._sampling.picked
        return int(self._bounds[-1]) if picked is None else len(picked)

    @property
    def datasets(self) -> int:
        """How many there are."""
        return len(self._bounds) - 1

    def parts_at(self, part: Part, first: int = 0) -> list[Part]:
        """A part, whose rows are places among those that are picked, by dataset.

        Args:
            part: of one source.
            first: the first dataset's number.
        """
        rows, occurrences = self._sampling.picked_at(part.rows)
        return self.parts(part._replace(rows=rows, occurrences=occurrences), first)

    def parts(self, part: Part, first: int = 0) -> list[Part]:
        """A part, whose rows are those of all datasets together, by dataset."""
        numbers = np.searchsorted(self._bounds, part.rows, side="right") - 1
        found = []
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            rows = part.rows[here] - self._bounds[number]
            often = None if part.occurrences is None else part.occurrences[here]
            found.append(Part(first + number, part.epoch, part.places[here], rows, often))
        return found

    def places(self, dataset: int, rows: Indices, occurrences: Indices | None) -> Indices:
        """Where rows of a dataset stand among those that are picked; see `Sampling.places`."""
        return self._sampling.places(rows + self._bounds[dataset], occurrences)


class MixOrder:
    """The order of a mix.

    Args:
        rows: of each source.
        weights: of each, which add up to 1.
        seed: of the turns.
        order_seed: of the order within sources.
        shuffle: whether sources are shuffled.
        stop: where an epoch ends.

    Attributes:
        samples: of an epoch.

    Raises:
        ValueError: a source has no rows.
    """

    def __init__(
        self,
        rows: list[int],
        weights: tuple[float, ...],
        *,
        seed: int,
        order_seed: int,
        shuffle: bool,
        stop: Stop | int,
    ) -> None:
        if min(rows) < 1:
            raise ValueError(f"a source of the mix has no samples: {rows}")
        self._rows = np.array(rows, np.int64)
        self._quota = _quota(np.array(weights))
        self._bounds = np.cumsum(self._quota)
        self._seed = seed
        self._cycles: dict[int, tuple[Indices, Indices]] = {}
        self._order_seed = order_seed
        self._mode: Literal["shuffle", "sequential"] = "shuffle" if shuffle else "sequential"
        self.samples = self._samples(stop)

    def parts(self, epoch: int, positions: Indices) -> list[Part]:
        """What stands at positions of an epoch, int64 (n,) in [0, samples).

        Parts come by source, and by its epochs.
        """
        # Epochs follow one another, and so do the sources' places in them.
        cycle, place = np.divmod(positions + epoch * self.samples, CYCLE)
        source, nth = np.empty_like(place), np.empty_like(place)
        for each in np.unique(cycle).tolist():
            here = cycle == each
            sources, before = self._cycle(each)
            source[here], nth[here] = sources[place[here]], before[place[here]]
        nth += cycle * self._quota[source]
        own_epoch, own_position = np.divmod(nth, self._rows[source])
        found = []
        for number in np.unique(source).tolist():
            for own in np.unique(own_epoch[source == number]).tolist():
                places = np.flatnonzero((source == number) & (own_epoch == own))
                rows = self._of(number, own).at(own_position[places])
                found.append(Part(number, own, places, rows))
        return found

    def _cycle(self, cycle: int) -> tuple[Indices, Indices]:
        """Of each place of a cycle: its source, and how many places that has there before."""
        kept = self._cycles.get(cycle)
        if kept is None:
            turns = Order(CYCLE, self._seed, cycle).span(0, CYCLE)
            sources = np.searchsorted(self._bounds, turns, side="right")
            before = np.empty_like(sources)
            by_source = np.argsort(sources, kind="stable")
            before[by_source] = np.arange(CYCLE) - (self._bounds - self._quota)[sources[by_source]]
            while len(self._cycles) >= _KEPT_CYCLES:
                del self._cycles[next(iter(self._cycles))]
            kept = self._cycles[cycle] = sources, before
        return kept

    def _of(self, number: int, epoch: int) -> Order:
        key = (self._order_seed + 0x9E3779B97F4A7C15 * number) & _WORD
        return Order(int(self._rows[number]), key, epoch, self._mode)

    def _samples(self, stop: Stop | int) -> int:
        if isinstance(stop, int):
            return stop
        needed = -(-self._rows * CYCLE // self._quota)
        return int(needed.max() if stop == "all" else max(1, needed.min()))


@dataclass(frozen=True)
class MixLengths:
    """How long what stands at positions of an epoch is; see `plan.Lengths`.

    Args:
        order: of the mix.
        epoch: from 0.
        lengths: of each source's rows.
    """

    order: MixOrder
    epoch: int
    lengths: Sequence[Lengths]

    def __getitem__(self, positions: Indices, /) -> npt.NDArray[np.int32]:
        found = np.empty(len(positions), np.int32)
        for part in self.order.parts(self.epoch, positions):
            found[part.places] = self.lengths[part.source][part.rows]
        return found


class MixedBatch(NamedTuple):
    """One batch of one rank; the attributes are those of `plan.PlannedBatch`, and `pool`.

    A source's epochs follow one another from pool to pool, in any order within one.
    """

    step: int
    parts: list[Part]
    size: int
    valid: int
    next_position: int
    pool: int


@dataclass(frozen=True)
class MixPlan:
    """The batches of one rank in one epoch of a mix.

    Args:
        order: of the mix.
        epoch: from 0.
        positions: a plan of the epoch's positions, in order or by lengths, whose rows are the
            positions.
        chains: what the sources are made of, whose datasets are numbered one after the other.
    """

    order: MixOrder
    epoch: int
    positions: Plan | BucketPlan
    chains: Sequence[Chain]

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[MixedBatch]:
        positions = self.positions
        first = np.cumsum([0, *(chain.datasets for chain in self.chains)]).tolist()
        for planned in self.positions:
            parts = [
                part
                for whole in self.order.parts(self.epoch, planned.rows)
                for part in self.chains[whole.source].parts_at(whole, first[whole.source])
            ]
            size, valid, after = len(planned.rows), planned.valid, planned.next_position
            pool = planned.step
            if isinstance(positions, BucketPlan):
                pool = (after - 1) // positions.pool_rows
            yield MixedBatch(planned.step, parts, size, valid, after, pool)


def concatenated(chain: Chain, epoch: int, plan: Iterable[PlannedBatch]) -> Iterator[MixedBatch]:
    """Batches of rows of a chain of datasets, in parts by dataset."""
    for planned in plan:
        size = len(planned.rows)
        whole = Part(0, epoch, np.arange(size), planned.rows, planned.occurrences)
        yield MixedBatch(
            planned.step, chain.parts(whole), size, planned.valid, planned.next_position, 0
        )


def _quota(shares: npt.NDArray[np.float64]) -> Indices:
    """Places of a cycle for each source, by largest remainders, one at least."""
    exact = shares * CYCLE
    quota = np.maximum(1, np.floor(exact)).astype(np.int64)
    by_remainder = np.argsort(np.floor(exact) - exact, kind="stable")
    for place in range(CYCLE - int(quota.sum())):
        quota[by_remainder[place % len(quota)]] += 1
    while quota.sum() > CYCLE:
        quota[np.argmax(quota)] -= 1
    return quota
