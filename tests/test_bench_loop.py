"""The loop of a bench, and what is read off its intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fastio import LoaderTimeout, Stats
from fastio.diagnose import loop as module
from fastio.diagnose.device import Device, subtract, total, within
from fastio.diagnose.loop import (
    FILLING,
    SHOWN_STEPS,
    Epochs,
    Given,
    Limit,
    Run,
    phase_of,
    run_loop,
    stage_seconds,
    timeline,
)


class Clock:
    """A time that the test moves."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now


class Counting(Given):
    """Batches 0, 1, ... of ten samples, closed when the loop is through."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self.closed = 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        try:
            for step in range(self._steps):
                self.batch.valid = 10
                yield step
        finally:
            self.closed += 1


class Taking(Device):
    """A device that notes what it took."""

    asynchronous = False

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Any] = []
        self.waited = 0

    def step(self, batch: Any, samples: int) -> None:
        self.taken.append((batch, samples))

    def wait(self) -> None:
        self.waited += 1


def made(steps: int = 6, *, whole: bool = True) -> Run:
    """A run of steps of 1 s: 0.3 s waiting, of these 0.1 transforming, then 0.7 computing."""
    starts = [float(step) for step in range(steps)]
    return Run(
        whole=whole,
        waits=[(start, start + 0.3) for start in starts],
        marks=[0.0, *(start + 1.0 for start in starts)],
        samples=[10] * steps,
        end_s=float(steps),
        computing=[(start + 0.3, start + 1.0) for start in starts],
        transforming=[(start + 0.2, start + 0.3) for start in starts],
        stats=[Stats(decode_s=2.0 * step, samples=10 * step) for step in (*range(4), steps)],
        cpu=[1.5 * step for step in (*range(4), steps)],
    )


def test_a_whole_epoch_goes_to_the_device() -> None:
    batches, device = Counting(5), Taking()
    run = run_loop(batches, device, Limit(seconds=3600))
    assert device.taken == [(step, 10) for step in range(5)]
    assert run.whole
    assert run.samples == [10] * 5
    assert len(run.waits) == 5
    assert len(run.marks) == 6
    assert batches.closed == device.waited == 1


def test_a_limit_of_steps_ends_it_early() -> None:
    batches, device = Counting(100), Taking()
    run = run_loop(batches, device, Limit(seconds=3600, steps=7))
    assert len(device.taken) == 7
    assert not run.whole
    assert batches.closed == 1


def test_a_limit_of_time_ends_it_early() -> None:
    run = run_loop(Counting(100), Taking(), Limit(seconds=0.0))
    assert len(run.samples) == 1
    assert not run.whole


def test_a_limit_of_time_waits_for_the_least_steps() -> None:
    class Slow(Taking):
        def step(self, batch: Any, samples: int) -> None:
            clock.now += 1.0

    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        assert len(run_loop(Counting(100), Slow(), Limit(2.5, least=2)).samples) == 3
        assert len(run_loop(Counting(100), Slow(), Limit(2.5, least=6)).samples) == 6
        assert len(run_loop(Counting(100), Slow(), Limit(2.5, least=60)).samples) == 13


def test_batches_that_end_before_their_length_are_no_error() -> None:
    class Short(Counting):
        def __len__(self) -> int:
            return 10

    assert len(run_loop(Short(3), Taking(), Limit(3600)).samples) == 3


def test_transforms_of_earlier_runs_are_forgotten() -> None:
    transforming = [(0.0, 1.0)]
    run = run_loop(Counting(3), Device(), Limit(3600), transforming=transforming)
    assert run.transforming == []


def test_a_device_beside_the_loop_tells_when_steps_ended() -> None:
    class Beside(Taking):
        asynchronous = True

        def step(self, batch: Any, samples: int) -> None:
            self.computing.append((1000.0 + batch, 1000.5 + batch))

    run = run_loop(Counting(4), Beside(), Limit(3600))
    assert run.marks[1:] == [1000.5, 1001.5, 1002.5, 1003.5]


def test_each_step_s_samples_are_counted_with_its_own_duration() -> None:
    class Uneven(Counting):
        def __iter__(self) -> Iterator[tuple[Any, int]]:
            for step in range(self._steps):
                self.batch.valid = 44 if step % 2 else 256
                yield step

    class Beside(Taking):
        asynchronous = True
        free_s = 1000.0

        def step(self, batch: Any, samples: int) -> None:
            begin_s, self.free_s = self.free_s, self.free_s + samples / 2000
            self.computing.append((begin_s, self.free_s))

    run = run_loop(Uneven(11), Beside(), Limit(3600, steps=8))
    assert run.first > 0
    assert phase_of("compute", [run]).samples_per_s == pytest.approx(2000)


class Late(Counting):
    """Batches of which every second one comes after a timeout."""

    def __iter__(self) -> Iterator[Any]:
        self.turn = 0
        return self

    def __next__(self) -> Any:
        self.turn += 1
        if self.turn > 2 * len(self):
            raise StopIteration
        if self.turn % 2:
            raise LoaderTimeout("nothing came")
        self.batch.valid = 10
        return self.turn


def test_epochs_are_repeated_until_the_limit() -> None:
    device = Taking()
    run = run_loop(Epochs(Counting(2)), device, Limit(3600, steps=5))
    assert [batch for batch, _ in device.taken] == [0, 1, 0, 1, 0]
    assert not run.whole
    assert len(run_loop(Epochs(Counting(2), once=True), Taking(), Limit(3600)).samples) == 2
    assert run_loop(Epochs(Counting(0)), Taking(), Limit(3600)).samples == []


def test_a_timeout_of_the_loader_is_a_step_without_samples() -> None:
    run = run_loop(Epochs(Late(2), once=True), Taking(), Limit(3600))
    assert run.samples == [0, 10, 0, 10]


def test_the_measurement_begins_where_the_limit_says_so() -> None:
    class Counted(Epochs):
        def stats(self) -> Stats:
            return Stats(samples=10 * len(run_of), wait_s=float(len(run_of)))

    class Noting(Taking):
        def step(self, batch: Any, samples: int) -> None:
            run_of.append(samples)

    run_of: list[int] = []
    begins = Limit(0.0, least=3, most_s=3600, begins=lambda stats, _: stats.samples >= 50)
    run = run_loop(Counted(Counting(100)), Noting(), begins)
    assert (run.begun, run.first, len(run.samples)) == (5, 5, 8)
    assert not run.whole
    assert (run.stats[-1] - run.stats[run.first]).wait_s == 3
    never = Limit(3600, most_s=0.0, begins=lambda stats, _: False)
    assert run_loop(Epochs(Counting(5)), Taking(), never).begun is None


def test_a_whole_epoch_is_measured_from_its_beginning() -> None:
    phase = phase_of("together_warm", [made()])
    assert (phase.samples, phase.steps, phase.seconds) == (60, 6, 6.0)
    assert phase.stats.wait_s == pytest.approx(6 * 0.2)
    assert phase.stats.transform_s == pytest.approx(6 * 0.1)
    assert phase.compute_s == pytest.approx(6 * 0.7)
    assert phase.stats.decode_s == 12.0
    assert phase.cpu_s == 9.0


def test_of_a_part_the_filling_is_left_out() -> None:
    phase = phase_of("together_warm", [made(8, whole=False)])
    assert phase.steps == 8 - FILLING
    assert phase.seconds == 8.0 - FILLING
    assert phase.stats.decode_s == pytest.approx(2.0 * (8 - FILLING))


def test_batches_that_come_in_pairs_are_measured_in_pairs() -> None:
    run = made(11, whole=False)
    run.period = 2
    run.stats = [Stats() for _ in range(6)]
    run.cpu = [0.0] * 6
    assert (run.first, run.last) == (4, 10)
    phase = phase_of("baseline_loader", [run])
    assert (phase.steps, phase.samples, phase.seconds) == (6, 60, 6.0)


def test_utilisation_leaves_out_what_the_first_step_waits_for() -> None:
    phase = phase_of("together_warm", [made()])
    assert phase.au == pytest.approx(6 * 0.7 / 5.7)


def test_runs_add_up() -> None:
    one, two = phase_of("loader_warm", [made()]), phase_of("loader_warm", [made(), made()])
    assert two.seconds == 2 * one.seconds
    assert two.stats.transform_s == pytest.approx(2 * one.stats.transform_s)
    assert two.au == pytest.approx(one.au)


def test_one_step_has_no_utilisation() -> None:
    assert phase_of("together_warm", [made(1)]).au is None


def test_without_computing_there_is_no_utilisation() -> None:
    run = made()
    run.computing = []
    assert phase_of("loader_warm", [run]).au is None


def test_every_moment_counts_for_one_stage() -> None:
    found = stage_seconds(made(), "decode")
    assert found == pytest.approx(
        {"compute": 4.2, "copy": 0.0, "transform": 0.6, "decode": 1.2, "augment": 0.0}
    )
    assert sum(found.values()) == pytest.approx(6.0)


def test_what_hides_behind_computing_counts_as_computing() -> None:
    run = made()
    run.computing = [(0.0, 5.1)]
    found = stage_seconds(run, "decode")
    assert found["compute"] == pytest.approx(5.1 + 0.7)  # and the loop itself, at the end
    assert found["decode"] == pytest.approx(0.1)
    assert found["transform"] == pytest.approx(0.1)


def test_copies_are_told_apart() -> None:
    run = made()
    run.blocked = [(step + 0.3, step + 0.5) for step in range(6)]
    run.computing = [(step + 0.5, step + 1.0) for step in range(6)]
    assert stage_seconds(run, "fetch")["copy"] == pytest.approx(1.2)


def test_a_timeline_has_the_spans_of_a_few_dozen_steps() -> None:
    spans = timeline(made(100), "fetch", "cold")
    assert {span.stage for span in spans} == {"fetch", "transform", "compute"}
    assert {span.step for span in spans} == set(range(SHOWN_STEPS))
    assert all(span.run == "cold" for span in spans)
    first = [span for span in spans if span.step == 0]
    assert [(span.stage, span.start_s, span.end_s) for span in first] == [
        ("fetch", 0.0, pytest.approx(0.2)),
        ("transform", 0.2, pytest.approx(0.3)),
        ("compute", 0.3, pytest.approx(1.0)),
    ]


def test_a_timeline_of_nothing_is_empty() -> None:
    assert timeline(Run(marks=[0.0]), "decode", "warm") == ()


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], [(0, 10)]),
        ([(2, 3)], [(0, 2), (3, 10)]),
        ([(8, 20), (0, 1)], [(1, 8)]),
        ([(0, 10)], []),
        ([(1, 5), (2, 3), (4, 6)], [(0, 1), (6, 10)]),
        ([(-5, -1), (10, 11)], [(0, 10)]),
    ],
)
def test_intervals_without_others(others: list[Any], left: list[Any]) -> None:
    assert subtract([(0, 10)], others) == left


def test_several_intervals_without_others() -> None:
    assert subtract([(0, 2), (3, 5), (6, 8)], [(1, 4), (7, 9)]) == [(0, 1), (4, 5), (6, 7)]


def test_intervals_are_cut_to_a_window() -> None:
    assert within([(0, 2), (3, 5), (6, 8)], 1, 6.5) == [(1, 2), (3, 5), (6, 6.5)]
    assert total([(1, 2), (3, 5)]) == 3
