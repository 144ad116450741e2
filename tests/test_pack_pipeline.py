"""Results come out in order, within the budget, whatever the threads do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio.pack.pipeline import OrderedPipeline
from tests.support import until

Hold = Callable[[int], None]


def run(pipeline: OrderedPipeline[int, int], tasks: list[int]) -> list[int]:
    """All results of some tasks."""
    results: list[int] = []
    try:
        for task in tasks:
            results += pipeline.submit(task)
        results += pipeline.drain()
    finally:
        pipeline.close()
    return results


class Meter:
    """Counts the bytes that are held at a time."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.now += nbytes
            self.peak = max(self.peak, self.now)


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 300), max_size=60),
    workers=st.integers(0, 6),
    depth=st.integers(1, 20),
    budget=st.integers(0, 400),
)
def test_order_is_kept_for_any_sizes_and_threads(
    sizes: list[int], workers: int, depth: int, budget: int
) -> None:
    def work(task: int, hold: Hold) -> int:
        hold(sizes[task])
        return task

    pipeline = OrderedPipeline(work, lambda task: sizes[task], workers, depth, budget)
    assert run(pipeline, list(range(len(sizes)))) == list(range(len(sizes)))


@pytest.mark.parametrize("sizes", [[10] * 200, [99, 1, 50, 100] * 50])
def test_not_more_than_the_budget_and_one_sample_is_held(sizes: list[int]) -> None:
    meter = Meter()

    def work(task: int, hold: Hold) -> int:
        hold(sizes[task])
        meter.add(sizes[task])
        return task

    pipeline = OrderedPipeline(work, lambda task: sizes[task], 8, 100, 100)
    done: list[int] = []
    try:
        for task in range(len(sizes)):
            for result in pipeline.submit(task):
                meter.add(-sizes[result])
                done.append(result)
        for result in pipeline.drain():
            meter.add(-sizes[result])
            done.append(result)
    finally:
        pipeline.close()
    assert done == list(range(len(sizes)))
    # The one whose turn it is may exceed the budget, and one taken may not be subtracted yet.
    assert meter.peak <= 100 + 2 * max(sizes)


def test_a_sample_larger_than_the_budget_goes_through_alone() -> None:
    def work(task: int, hold: Hold) -> int:
        hold(1000)
        return task

    assert run(OrderedPipeline(work, lambda _: 1000, 4, 10, 10), list(range(20))) == [*range(20)]


def test_samples_in_memory_wait_for_room_before_they_are_taken() -> None:
    waiting = threading.Event()
    pipeline: OrderedPipeline[int, int] = OrderedPipeline(
        lambda task, hold: (waiting.wait() and task) or task,
        lambda _: 60,
        2,
        100,
        100,
        lambda _: 60,
    )
    try:
        assert list(pipeline.submit(0)) == []
        waiting.set()
        # There is room for one only, so the first result has to come out.
        assert list(pipeline.submit(1)) == [0]
        assert list(pipeline.drain()) == [1]
    finally:
        pipeline.close()


def test_without_workers_the_caller_s_thread_works() -> None:
    def work(task: int, hold: Hold) -> int:
        hold(10**9)
        return threading.get_ident()

    found = run(OrderedPipeline(work, lambda _: 0, 0, 1, 0, lambda _: 10**9), [1, 2, 3])
    assert found == [threading.get_ident()] * 3


def test_an_error_comes_out_in_its_turn() -> None:
    def work(task: int, hold: Hold) -> int:
        if task == 5:
            raise RuntimeError("five")
        return task

    pipeline = OrderedPipeline(work, lambda _: 0, 3, 50, 100)
    results: list[int] = []

    def consume() -> None:
        for task in range(10):
            results.extend(pipeline.submit(task))
        for result in pipeline.drain():
            results.append(result)

    try:
        with pytest.raises(RuntimeError, match="five"):
            consume()
    finally:
        pipeline.close()
    assert results == sorted(results)
    assert not set(results) - set(range(5))


def test_closing_wakes_threads_that_wait_for_room() -> None:
    started = threading.Event()

    def work(task: int, hold: Hold) -> int:
        hold(100)
        started.set()
        return task

    before = set(threading.enumerate())
    pipeline = OrderedPipeline(work, lambda _: 100, 4, 100, 100)
    for task in range(20):
        for _ in pipeline.submit(task):
            break
    started.wait()
    threads = set(threading.enumerate()) - before
    assert len(threads) == 4
    pipeline.close()
    until(lambda: not any(thread.is_alive() for thread in threads))
