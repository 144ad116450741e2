"""A pool of daemon threads does what ThreadPoolExecutor does, but nobody waits for ever."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future

import pytest

from fastio.runtime.threads import DaemonPool


def test_results_come_in_the_order_of_the_tasks() -> None:
    with DaemonPool(3, "test") as pool:
        assert list(pool.map(lambda n: n * n, range(100))) == [n * n for n in range(100)]


def test_no_more_threads_than_asked_for_work_and_all_are_daemons() -> None:
    threads: set[threading.Thread] = set()
    with DaemonPool(2, "test") as pool:
        list(pool.map(lambda _: threads.add(threading.current_thread()), range(50)))
    assert 1 <= len(threads) <= 2
    assert all(thread.daemon for thread in threads)
    assert not any(thread.is_alive() for thread in threads)


def test_what_a_task_raises_is_raised_where_its_result_is_asked_for() -> None:
    def fail() -> None:
        raise KeyError("here")

    with DaemonPool(1, "test") as pool:
        future = pool.submit(fail)
        with pytest.raises(KeyError, match="here"):
            future.result()


def test_the_end_of_a_block_waits_for_tasks_that_have_begun() -> None:
    begun, done = threading.Event(), threading.Event()

    def task() -> None:
        begun.set()
        time.sleep(0.2)
        done.set()

    with DaemonPool(1, "test") as pool:
        pool.submit(task)
        begun.wait()
    assert done.is_set()


def test_an_error_in_a_block_drops_what_has_not_begun_and_abandons_what_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastio.runtime.threads.PATIENCE_S", 0.05)
    begun, for_ever = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        for_ever.wait()

    waiting: list[Future[None]] = []

    def interrupted() -> None:
        with DaemonPool(1, "test") as pool:
            pool.submit(hang)
            waiting.append(pool.submit(print))
            begun.wait()
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        with pytest.raises(CancelledError):
            waiting[0].result()
    finally:
        for_ever.set()


def test_a_pool_that_was_shut_down_takes_no_tasks() -> None:
    pool = DaemonPool(1, "test")
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(print)
