"""The loop of all runs of the probes and of a bench, and what follows from its intervals.

The loop marks when it waited for a batch, when a Python transform ran and when the device computed.
Everything else (seconds, waiting, utilisation, the split of an epoch) follows from these intervals.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from fastio.diagnose.device import Device, Interval, subtract, total, within
from fastio.diagnose.measured import Phase, PhaseName, Span, Stage
from fastio.errors import LoaderTimeout
from fastio.stats import Stats

T = TypeVar("T")

FILLING = 3  # first steps that do not count, in which a loader prepares its batches ahead
SHOWN_STEPS = 36  # steps in the timeline
_PATIENCE = 5  # a run may take this many times its seconds, to reach its least steps


class Batches(Protocol):
    """What the loops of a bench and of a training call on a loader."""

    @property
    def batch(self) -> Any:
        """Information about the latest batch: `valid` is its number of samples."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def set_epoch(self, epoch: int) -> None:
        """Makes the next iterator begin an epoch."""

    def stats(self) -> Stats:
        """Returns the statistics since the loader was made."""


class Given:
    """A base class of batches that do not come straight from a Loader, with the methods of one."""

    def __init__(self) -> None:
        self.batch = SimpleNamespace(valid=0)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: each iterator has its own order."""

    def stats(self) -> Stats:
        """Returns empty statistics: nothing is counted."""
        return Stats()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        """Does nothing: there is nothing to close."""


class Resident(Given):
    """Repeats resident batches without an end, to measure a step without a loader.

    Args:
        batches: (batch, number of samples) of each.
    """

    def __init__(self, batches: list[tuple[Any, int]]) -> None:
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return 1 << 40

    def __iter__(self) -> Iterator[Any]:
        while True:
            for batch, samples in self._batches:
                self.batch.valid = samples
                yield batch


class Epochs(Given):
    """Repeats the epochs of a loader without an end.

    An epoch without batches ends the iteration. If the loader waits for longer than its timeout, a
    batch without samples is yielded, so that the caller can read the statistics meanwhile.

    Args:
        loader: the loader.
        once: whether to stop after one epoch.
    """

    def __init__(self, loader: Any, once: bool = False) -> None:
        super().__init__()
        self._loader, self._once = loader, once

    def __len__(self) -> int:
        return 1 << 40

    def stats(self) -> Stats:
        """Returns the statistics of the loader."""
        return self._loader.stats()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        while True:
            batches, some = iter(self._loader), False
            while True:
                try:
                    batch = next(batches)
                except LoaderTimeout:
                    self.batch.valid = 0
                    yield ()
                    continue
                except StopIteration:
                    break
                self.batch.valid, some = self._loader.batch.valid, True
                yield batch
                del batch  # it may hold a slot
            if self._once or not some:
                return


@dataclass(frozen=True)
class Limit:
    """The limits of a run.

    Attributes:
        seconds: the run ends after the first step that is later than this.
        steps: largest number of steps; None for those of the epoch.
        least: smallest number of steps, unless they take `most_s`.
        most_s: largest duration before there are so many; None: several times `seconds`.
        begins: (statistics, seconds so far) -> whether the steps after this one are measured, for
            `least` steps and `seconds` from there on; None: the first few are left out, or none of
            a whole epoch.
    """

    seconds: float
    steps: int | None = None
    least: int = 8
    most_s: float | None = None
    begins: Callable[[Stats, float], bool] | None = None


@dataclass
class Run:
    """One pass of the loop over an epoch or its beginning.

    Attributes:
        whole: whether the run went to the end of the epoch. It is then measured from its beginning.
        waits: for each step, the interval in which the loop waited inside next().
        marks: the time at which the run began, and then the time at which each step ended: on this
            thread or, if the device computes in parallel, on the device.
        samples: the number of samples of each step.
        end_s: the time at which the last step ended.
        computing, copying, blocked: the intervals of the device; see `Device`.
        transforming: the intervals in which Python transforms ran.
        stats: the statistics of the loader at the first few marks and at the last one.
        cpu: the processor seconds at the same marks.
        period: the number of batches that come at once.
        begun: the first measured step, if `Limit.begins` chose it.
    """

    whole: bool = False
    waits: list[Interval] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    end_s: float = 0.0
    computing: list[Interval] = field(default_factory=list)
    copying: list[Interval] = field(default_factory=list)
    blocked: list[Interval] = field(default_factory=list)
    transforming: list[Interval] = field(default_factory=list)
    stats: list[Stats] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    period: int = 1
    begun: int | None = None

    @property
    def first(self) -> int:
        """The first measured step: 0 for a whole epoch, else the first after the pipeline has
        filled.
        """
        if self.begun is not None:
            return self.begun
        if self.whole:
            return 0
        return min(_filling(self.period), len(self.samples) // 2 // self.period * self.period)

    @property
    def last(self) -> int:
        """The end of the measured steps: a whole number of periods after the first."""
        steps = len(self.samples)
        return steps if self.whole else max(steps - (steps - self.first) % self.period, 1)

    @property
    def begin_s(self) -> float:
        """The time at which the measurement began."""
        return self.marks[self.first]

    @property
    def stop_s(self) -> float:
        """The time at which the measurement ended."""
        return self.end_s if self.whole else self.marks[self.last]


def _filling(period: int) -> int:
    """Returns the number of steps until prefetching is in full work."""
    return FILLING if period == 1 else 2 * period


def run_loop(
    batches: Batches,
    device: Device,
    limit: Limit,
    *,
    transforming: list[Interval] | None = None,
    cpu: Callable[[], float] = time.process_time,
    period: int = 1,
) -> Run:
    """Runs once over the first epoch, or until the limit.

    Args:
        batches: the loader; its iterator is closed at the end where it can be.
        device: what takes the batches.
        limit: the limits of the run.
        transforming: list to which transforms append when they ran; emptied first.
        cpu: returns the processor seconds so far; by default those of this process.
        period: number of batches that come at once, as from worker processes that began together.
    """
    run = Run(period=period)
    device.reset()
    if transforming is not None:
        transforming.clear()
    total = len(batches) if limit.steps is None else min(limit.steps, len(batches))
    run.whole = total == len(batches) and limit.begins is None

    def count() -> None:
        run.stats.append(batches.stats())
        run.cpu.append(cpu())

    # All passes go over the same batches, so that their times can be compared.
    batches.set_epoch(0)
    run.marks.append(time.perf_counter())
    count()
    iterator = iter(batches)
    for _ in range(total):
        begin = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            break
        run.waits.append((begin, time.perf_counter()))
        samples = batches.batch.valid
        device.step(batch, samples)
        del batch  # before the next is waited for: it may hold a slot
        run.samples.append(samples)
        run.marks.append(time.perf_counter())
        begins = limit.begins if run.begun is None else None
        # The measurement begins at one of these steps, so the counters of later steps are not
        # needed.
        if begins is not None or len(run.samples) <= _filling(period):
            count()
        if begins is not None and begins(run.stats[-1], run.marks[-1] - run.marks[0]):
            run.begun = len(run.samples)
        if len(run.samples) < total and _is_over(run, limit):
            run.whole = False
            break
    count()
    device.wait()
    run.end_s = time.perf_counter()
    run.computing, run.copying, run.blocked = device.computing, device.copying, device.blocked
    run.transforming = list(transforming or ())
    if device.asynchronous and run.computing:
        # The samples of a step count when it has ended, which is later than this thread goes on.
        run.marks[1:] = [end for _, end in run.computing]
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
    return run


def _is_over(run: Run, limit: Limit) -> bool:
    begun = run.begun or 0
    spent, steps = run.marks[-1] - run.marks[begun], len(run.samples) - begun
    most_s = limit.seconds * _PATIENCE if limit.most_s is None else limit.most_s
    # Slow steps get more time, up to a limit, because a few steps give no reliable rate.
    waits = steps < limit.least or (limit.begins is not None and run.begun is None)
    return spent > (most_s if waits else limit.seconds)


def there_and_back(names: Iterable[T], turns: int = 2) -> Iterator[T]:
    """Yields each name `turns` times, alternately in forward and backward order: a, b, b, a, ...

    A machine that becomes slower, or is busy with other programs for a while, then affects all
    measurements alike.
    """
    there = list(names)
    for turn in range(turns):
        yield from there if turn % 2 == 0 else reversed(there)


# --- What is read off -----------------------------------------------------------------------------


def phase_of(name: PhaseName, runs: list[Run]) -> Phase:
    """Returns a phase: the sum of its runs."""
    parts = [_phase(name, run) for run in runs if run.samples]
    computed = [part.au * part.seconds for part in parts if part.au is not None]
    seconds = sum(part.seconds for part in parts)
    summed = ("samples", "compute_s", "steps", "cpu_s")
    return Phase(
        name,
        seconds=seconds,
        stats=sum((part.stats for part in parts), Stats()),
        au=sum(computed) / seconds if computed and seconds else None,
        **{total: sum(getattr(part, total) for part in parts) for total in summed},
    )


def _phase(name: PhaseName, run: Run) -> Phase:
    first, begin, stop = run.first, run.begin_s, run.stop_s
    stats = run.stats[-1] - run.stats[first]
    transform_s = total(within(run.transforming, begin, stop))
    compute_s = total(within(run.computing, begin, stop))
    copy_s = stats.copy_s + total(within(run.copying, begin, stop))
    copy_s += 0.0 if run.copying else total(within(run.blocked, begin, stop))
    wait_s = max(0.0, total(within(run.waits, begin, stop)) - transform_s)
    au = None
    if run.computing and run.last - first > 1:  # of one step it would be 1.0 always
        # MLPerf Storage leaves out what the first step waits for.
        started = max(begin, run.computing[0][0])
        au = min(1.0, compute_s / (stop - started)) if stop > started else 1.0
    return Phase(
        name,
        samples=sum(run.samples[first : run.last]),
        seconds=stop - begin,
        stats=replace(stats, copy_s=copy_s, transform_s=transform_s, wait_s=wait_s),
        compute_s=compute_s,
        steps=run.last - first,
        cpu_s=run.cpu[-1] - run.cpu[first],
        au=au,
    )


Layers = list[tuple[Stage, list[Interval]]]


def stage_layers(run: Run, waiting: Stage) -> Layers:
    """Returns a run's intervals by stage; earlier stages hide later ones.

    Args:
        run: loader and device together.
        waiting: the stage that waits inside next() are for, transforms left out.
    """
    return [
        ("compute", run.computing),
        ("copy", [*run.copying, *run.blocked]),
        ("transform", run.transforming),
        (waiting, run.waits),
    ]


def stage_seconds(run: Run, waiting: Stage) -> dict[Stage, float]:
    """Returns the seconds of a run by stage; each moment counts for the first stage that was busy.

    Time in which no stage was busy (the loop itself) counts as computing. The time of waiting for
    decoding is divided into decoding and augmentation in the ratio of the threads' work on each.
    The sum of all stages is the time of the run.
    """
    found: dict[Stage, float] = {}
    free = [(run.begin_s, run.stop_s)]
    for stage, intervals in stage_layers(run, waiting):
        rest = subtract(free, intervals)
        found[stage] = found.get(stage, 0.0) + total(free) - total(rest)
        free = rest
    found["compute"] += total(free)
    if waiting == "decode":
        share = _phase("together_warm", run).stats.augment_share
        found["augment"] = share * found["decode"]
        found["decode"] -= found["augment"]
    return found


def timeline(run: Run, waiting: Stage, name: Any) -> tuple[Span, ...]:
    """Returns the spans of a few dozen steps, from the first measured step."""
    first = run.first
    steps = range(first, min(first + SHOWN_STEPS, len(run.samples)))
    if not steps:
        return ()
    begin = run.waits[first][0]
    bounds = [*(wait[0] for wait in run.waits), run.end_s]
    spans: list[Span] = []
    for stage, intervals in stage_layers(run, waiting):
        if stage == waiting:
            intervals = subtract(intervals, run.transforming)
        for number, (start, end) in enumerate(intervals):
            # Intervals are assigned to steps by number if there is one for each step, because an
            # asynchronous device ends a step while the loop is in a later one.
            one_each = len(intervals) == len(run.samples)
            step = number if one_each else _step_of(start, bounds)
            if step in steps and end > start:
                spans.append(Span(step, stage, start - begin, end - begin, name))
    return tuple(sorted(spans, key=lambda span: span.start_s))


def _step_of(moment: float, bounds: list[float]) -> int:
    return max(0, bisect_right(bounds, moment) - 1)
