"""Mixes several datasets into one: which row of which dataset stands at which position.

The order of a mix is a function of (seed, epoch), computed without state. Positions are divided
into cycles of `CYCLE`. In each cycle every source has a number of places proportional to its
weight, in an order of the cycle's own. The k-th place of a source, counted over all epochs, has
position k of that source's own epochs, which follow one another, each in its own order.

With a schedule, the positions of all epochs together are divided into phases with weights of their
own. Each phase begins a new cycle, and each source goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fastio.order.buckets import BucketPlan, Lengths
from fastio.order.order import WORD, Order
from fastio.order.plan import Plan, PlannedBatch
from fastio.order.sampling import Sampling
from fastio.packed.grouping import starts_of
from fastio.runtime.properties import cached_property
from fastio.shown import without_secrets

CYCLE = 10_000  # places; weights are rounded to multiples of 1 / CYCLE
_KEPT_CYCLES = 4

Stop = Literal["all", "first"]
Weights = Mapping[Any, float] | Sequence[float]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mix:
    """Several datasets that are loaded as one; returned by `fastio.mix`.

    Attributes:
        sources: datasets as the loader takes them: paths, URLs, or dataset objects.
        weights: weight of each source; they add up to 1.
        seed: seed of the order in which sources alternate; None uses the loader's seed.
        stop: where an epoch ends, as in `fastio.mix`.
        schedule: later weights, and the sample from which on each applies; ascending.
    """

    sources: tuple[Any, ...]
    weights: tuple[float, ...]
    seed: int | None = None
    stop: Stop | int = "all"
    schedule: tuple[tuple[int, tuple[float, ...]], ...] = ()


def mix_of(dataset: object) -> Mix | None:
    """Returns the dataset if it is a mix, else None."""
    return dataset if isinstance(dataset, Mix) else None


def mix(
    sources: Mapping[Any, float] | Iterable[tuple[Any, float]],
    *,
    seed: int | None = None,
    stop: Stop | int = "all",
    schedule: Mapping[int, Weights] | None = None,
) -> Mix:
    """Return several datasets with the same fields as one dataset for `Loader`.

    Samples come from each source in proportion to its weight: exactly in each run of 10,000 samples
    of an epoch, in random order within it. A source that ends starts again, with the order and the
    augmentations of its next epoch. At the start of the mix's next epoch each source continues
    where it was. The order is a function of the seeds: it is the same for any number of ranks and
    threads, and a resumed run continues exactly.

        web, books = fastio.TokenWindows("web/", 2048), fastio.TokenWindows("books/", 2048)
        loader = fastio.Loader(fastio.mix({web: 0.7, books: 0.3}), 64, shuffle=True)

    Windows of tokens have the `cu_seqlens` of the whole batch. Documents (`TokenPad`) are padded to
    the longest of the batch, whichever dataset it comes from. With `pool`, batches of similar
    lengths are made from the samples of the mix, so that each batch has samples of all sources.

    Args:
        sources: {source: weight, ...}, or pairs of a source and its weight. A source is a path, a
            URL, a dataset, or a torch Subset or ConcatDataset of datasets. Weights are positive and
            may have any sum.
        seed: seed of the order in which sources alternate, also in loaders that do not shuffle;
            None uses the loader's seed, which always decides the order within each source.
        stop: length of an epoch: "all", until every source has been read once at the proportions of
            the weights (small sources are read several times); "first", until the first source
            would start again; or a number of samples. Since the sources alternate in random order,
            the last rows of a source may come at the beginning of the next epoch.
        schedule: {sample: weights, ...}, the weights that apply from a sample on. Samples are
            counted over all ranks and epochs, from 0: step s begins at sample `s * batch_size *
            world_size`. Weights are {source: weight} for all sources, or a sequence of numbers in
            the order of `sources`. Weights may be 0 if there is a schedule. `stop` has to be a
            number, because the other values depend on the weights.

    Raises:
        ValueError: there are no sources, or a weight, `stop` or `schedule` is not possible.
    """
    pairs = list(sources.items() if isinstance(sources, Mapping) else sources)
    if not pairs or not all(isinstance(each, (tuple, list)) and len(each) == 2 for each in pairs):
        got = without_secrets(str(pairs))
        raise ValueError(f"mix needs a weight for each source, {{path: weight, ...}}, got {got}")
    given = tuple(source for source, _ in pairs)
    first = _shares([weight for _, weight in pairs], zeros=bool(schedule))
    if stop not in ("all", "first") and (type(stop) is not int or stop < 1):
        raise ValueError(f"stop must be 'all', 'first' or a number of samples, got {stop!r}")
    if not schedule:
        return Mix(given, first, seed, stop)
    if not isinstance(stop, int):
        raise ValueError(
            f"stop={stop!r} cannot be combined with schedule, because it depends on weights that "
            "change: pass the number of samples of an epoch as stop="
        )
    later = tuple((_start(at), _shares(_numbers(given, each, at))) for at, each in schedule.items())
    starts = [start for start, _ in later]
    if starts != sorted(set(starts)):
        raise ValueError(f"the samples of schedule must be ascending, got {starts}")
    for number, source in enumerate(given):
        if not any(weights[number] for weights in (first, *(weights for _, weights in later))):
            name = without_secrets(str(source))
            raise ValueError(f"the weight of {name} is never above 0: leave it out of the mix")
    return Mix(given, first, seed, stop, later)


def _shares(weights: Sequence[Any], zeros: bool = True) -> tuple[float, ...]:
    """Returns weights that add up to 1.

    Args:
        weights: any numbers.
        zeros: whether some may be 0.
    """
    numbers = np.array([float(weight) for weight in weights])
    least = numbers.min() if np.isfinite(numbers).all() else -1.0
    if least < 0 or (least == 0 and not zeros) or not numbers.any():
        bound = "0 or more, and one above 0" if zeros else "above 0"
        raise ValueError(f"weights must be {bound}, got {numbers.tolist()}")
    shares = numbers / numbers.sum()
    if shares[shares > 0].min() < 1 / CYCLE:
        raise ValueError(
            f"a weight must be at least 1/{CYCLE} of their sum, got {numbers.tolist()}"
        )
    return tuple(shares.tolist())


def _start(sample: object) -> int:
    if type(sample) is not int or sample < 1:
        raise ValueError(
            f"the keys of schedule must be sample numbers of at least 1, got {sample!r}. The "
            "weights that apply from sample 0 on are those of the sources"
        )
    return sample


def _numbers(sources: Sequence[Any], weights: Weights, sample: int) -> list[float]:
    """Returns the weights of one entry of a schedule in the order of the sources."""
    if not isinstance(weights, Mapping):
        if len(weights) != len(sources):
            raise ValueError(
                f"schedule has {len(weights)} weights from sample {sample} on, but the mix has "
                f"{len(sources)} sources: give one weight for each"
            )
        return list(weights)
    unknown = [source for source in weights if source not in sources]
    missing = [source for source in sources if source not in weights]
    if unknown or missing:
        what = "names an unknown source" if unknown else "names no weight for a source"
        name = without_secrets(str((unknown or missing)[0]))
        raise ValueError(
            f"schedule {what} from sample {sample} on: {name}. Give a weight for each source of "
            "the mix; 0 leaves a source out"
        )
    return [weights[source] for source in sources]


class Part(NamedTuple):
    """The positions of a request that belong to one epoch of one source, with their rows.

    Attributes:
        source: number of the source.
        epoch: epoch of the source.
        places: int64 (n,), indices of the rows among the requested positions.
        rows: int64 (n,), row numbers in the source.
        occurrences: int64 (n,), how often each row occurred earlier in the epoch; None if never.
    """

    source: int
    epoch: int
    places: Indices
    rows: Indices
    occurrences: Indices | None = None


class Chain:
    """Several datasets one after the other, of which some rows may be picked.

    Args:
        rows: number of rows of each dataset.
        sampling: sampling whose `picked` says which rows are picked.
    """

    def __init__(self, rows: Sequence[int], sampling: Sampling) -> None:
        self._bounds = starts_of(rows)
        self._sampling = sampling

    def __len__(self) -> int:
        picked = self._sampling.picked
        return int(self._bounds[-1]) if picked is None else len(picked)

    @property
    def datasets(self) -> int:
        """The number of datasets."""
        return len(self._bounds) - 1

    def parts_at(self, part: Part, first: int = 0) -> list[Part]:
        """Splits a part by dataset; its rows are places among the picked rows.

        Args:
            part: part of one source.
            first: number of the first dataset.
        """
        rows, occurrences = self._sampling.picked_at(part.rows)
        return self.parts(part._replace(rows=rows, occurrences=occurrences), first)

    def parts(self, part: Part, first: int = 0) -> list[Part]:
        """Splits a part by dataset; its rows count all datasets together."""
        numbers = np.searchsorted(self._bounds, part.rows, side="right") - 1
        found = []
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            rows = part.rows[here] - self._bounds[number]
            often = None if part.occurrences is None else part.occurrences[here]
            found.append(Part(first + number, part.epoch, part.places[here], rows, often))
        return found

    def places(self, dataset: int, rows: Indices, occurrences: Indices | None) -> Indices:
        """Returns the places of a dataset's rows among the picked rows; see `Sampling.places`."""
        return self._sampling.places(rows + self._bounds[dataset], occurrences)


class _Phase(NamedTuple):
    """A stretch of positions of all epochs in which the weights of the sources are the same.

    Attributes:
        start: first position.
        cycle: number of cycles of the phases before it, of which the last ones may be cut.
        quota: int64 (sources,), the places of each source in a cycle.
        before: int64 (sources,), the places of each source in the phases before it.
    """

    start: int
    cycle: int
    quota: Indices
    before: Indices


class MixOrder:
    """The order of a mix.

    Args:
        rows: number of rows of each source.
        weights: weight of each source; they add up to 1.
        seed: seed of the order in which sources alternate.
        order_seed: seed of the order within sources.
        shuffle: whether the rows of each source are shuffled.
        stop: where an epoch ends, as in `mix`.
        schedule: later weights, as in `Mix`.

    Attributes:
        samples: number of samples of an epoch.

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
        schedule: Sequence[tuple[int, tuple[float, ...]]] = (),
    ) -> None:
        if min(rows) < 1:
            raise ValueError(f"a source of the mix has no samples: {rows}")
        self._rows = np.array(rows, np.int64)
        self._seed = seed
        self._cycles: dict[int, tuple[Indices, Indices]] = {}
        self._order_seed = order_seed
        self._mode: Literal["shuffle", "sequential"] = "shuffle" if shuffle else "sequential"
        self._phases = [_Phase(0, 0, _quota(np.array(weights)), np.zeros(len(rows), np.int64))]
        for start, later in schedule:
            self._phases.append(self._after(self._phases[-1], start, _quota(np.array(later))))
        self._starts = np.array([phase.start for phase in self._phases])
        self.samples = self._samples(stop)

    def parts(self, epoch: int, positions: Indices) -> list[Part]:
        """Returns the rows at positions of an epoch, int64 (n,) in [0, samples), as parts.

        Parts are ordered by source, then by the source's epoch.
        """
        # Epochs follow one another, and so do the sources' places in them.
        places = positions + epoch * self.samples
        phases = np.searchsorted(self._starts, places, side="right") - 1
        source, nth = np.empty_like(places), np.empty_like(places)
        for number in np.unique(phases).tolist():
            phase = self._phases[number]
            of_phase = np.flatnonzero(phases == number)
            cycle, place = np.divmod(places[of_phase] - phase.start, CYCLE)
            for each in np.unique(cycle).tolist():
                here = cycle == each
                sources, before = self._cycle(phase, each)
                found_there = sources[place[here]]
                source[of_phase[here]] = found_there
                nth[of_phase[here]] = (
                    before[place[here]]
                    + phase.before[found_there]
                    + each * phase.quota[found_there]
                )
        own_epoch, own_position = np.divmod(nth, self._rows[source])
        found = []
        for number in np.unique(source).tolist():
            for own in np.unique(own_epoch[source == number]).tolist():
                places = np.flatnonzero((source == number) & (own_epoch == own))
                rows = self._of(number, own).at(own_position[places])
                found.append(Part(number, own, places, rows))
        return found

    def _cycle(self, phase: _Phase, cycle: int) -> tuple[Indices, Indices]:
        """Returns each cycle place's source, and how many earlier places that source has."""
        kept = self._cycles.get(phase.cycle + cycle)
        if kept is None:
            bounds = np.cumsum(phase.quota)
            turns = Order(CYCLE, self._seed, phase.cycle + cycle).span(0, CYCLE)
            sources = np.searchsorted(bounds, turns, side="right")
            before = np.empty_like(sources)
            by_source = np.argsort(sources, kind="stable")
            before[by_source] = np.arange(CYCLE) - (bounds - phase.quota)[sources[by_source]]
            # Positions are asked for in order, of one cycle or a few at a time.
            while len(self._cycles) >= _KEPT_CYCLES:
                del self._cycles[next(iter(self._cycles))]
            kept = self._cycles[phase.cycle + cycle] = sources, before
        return kept

    def _after(self, phase: _Phase, start: int, quota: Indices) -> _Phase:
        """Returns the phase with other places a cycle that follows a phase at a position."""
        cycles, places = divmod(start - phase.start, CYCLE)
        cut = np.zeros_like(quota)
        if places:
            cut = np.bincount(self._cycle(phase, cycles)[0][:places], minlength=len(quota))
        before = phase.before + cycles * phase.quota + cut
        return _Phase(start, phase.cycle + cycles + (places > 0), quota, before)

    def _of(self, number: int, epoch: int) -> Order:
        # Sources of equal sizes would have equal orders by one seed. The factor is that of
        # SplitMix64: 2**64 divided by the golden ratio.
        key = (self._order_seed + 0x9E3779B97F4A7C15 * number) & WORD
        return Order(int(self._rows[number]), key, epoch, self._mode)

    def _samples(self, stop: Stop | int) -> int:
        if isinstance(stop, int):
            return stop
        needed = -(-self._rows * CYCLE // self._phases[0].quota)
        return int(needed.max() if stop == "all" else max(1, needed.min()))


@dataclass(frozen=True)
class MixLengths:
    """The lengths of the rows at positions of an epoch; see `buckets.Lengths`.

    Args:
        order: order of the mix.
        epoch: epoch, from 0.
        lengths: lengths of each source's rows.
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
    """One batch of one rank, with the attributes of `plan.PlannedBatch` and `pool`.

    A source's epochs follow one another from pool to pool, but may alternate within one.
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
        order: order of the mix.
        epoch: epoch, from 0.
        positions: plan of the epoch's positions, in order or by lengths; its rows are positions.
        chains: the datasets of each source; they are numbered one after the other.
    """

    order: MixOrder
    epoch: int
    positions: Plan | BucketPlan
    chains: Sequence[Chain]

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[MixedBatch]:
        return map(self._mixed, self.positions)  # goes on after an error, unlike a generator

    @cached_property
    def _first(self) -> list[int]:
        """Returns the number of each source's first dataset, and of all datasets."""
        return starts_of([chain.datasets for chain in self.chains]).tolist()  # type: ignore[no-any-return]

    def _mixed(self, planned: PlannedBatch) -> MixedBatch:
        positions, first = self.positions, self._first
        parts = [
            part
            for whole in self.order.parts(self.epoch, planned.rows)
            for part in self.chains[whole.source].parts_at(whole, first[whole.source])
        ]
        size, valid, after = len(planned.rows), planned.valid, planned.next_position
        pool = planned.step
        if isinstance(positions, BucketPlan):
            pool = (after - 1) // positions.pool_rows
        return MixedBatch(planned.step, parts, size, valid, after, pool)


def concatenated(chain: Chain, epoch: int, plan: Iterable[PlannedBatch]) -> Iterator[MixedBatch]:
    """Returns batches of a chain of datasets, split into parts by dataset."""

    def parted(planned: PlannedBatch) -> MixedBatch:
        size = len(planned.rows)
        whole = Part(0, epoch, np.arange(size), planned.rows, planned.occurrences)
        return MixedBatch(
            planned.step, chain.parts(whole), size, planned.valid, planned.next_position, 0
        )

    return map(parted, plan)


def _quota(shares: npt.NDArray[np.float64]) -> Indices:
    """Returns the places of each source in a cycle, by largest remainders.

    A source with a share has at least one place, and one without has none.
    """
    exact = shares * CYCLE
    quota = np.maximum(shares > 0, np.floor(exact)).astype(np.int64)
    # A stable sort, here and above, so that every machine finds the same order.
    by_remainder = np.argsort(np.floor(exact) - exact, kind="stable")
    by_remainder = by_remainder[shares[by_remainder] > 0]
    for place in range(CYCLE - int(quota.sum())):
        quota[by_remainder[place % len(by_remainder)]] += 1
    while quota.sum() > CYCLE:  # many small shares were raised to one place
        quota[np.argmax(quota)] -= 1
    return quota
