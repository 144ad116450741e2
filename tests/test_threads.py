"""A pool of daemon threads does what ThreadPoolExecutor does, but nobody waits for ever."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError, Future, wait
from functools import partial

import pytest

from fastio.runtime.threads import DaemonPool, wait_for

_LONG_S = 60.0  # a test that waits so long hangs


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


class Together:
    """Work that lasts until `wanted` threads are at it, and notes how many ever were."""

    def __init__(self, wanted: int) -> None:
        self.most = 0
        self._wanted = wanted
        self._busy = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self._busy += 1
            self.most = max(self.most, self._busy)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.most >= self._wanted, _LONG_S)
            self._changed.wait_for(lambda: self.most > self._wanted, 0.001)  # is not allowed
            self._busy -= 1


@pytest.mark.parametrize("sizes", [(1, 3), (3, 1), (2, 4, 1, 2)])
def test_as_many_work_at_a_time_as_were_asked_for_last(sizes: tuple[int, ...]) -> None:
    threads = DaemonPool(sizes[0], "test")
    for size in sizes:
        threads.resize(size)
        work = Together(size)
        for future in [threads.submit(work) for _ in range(8)]:
            future.result(_LONG_S)
        assert work.most == size
    threads.shutdown()


def test_what_waits_for_its_turn_is_cancelled_by_a_shutdown() -> None:
    threads = DaemonPool(2, "test")
    threads.resize(1)
    begun, go_on = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return go_on.wait(_LONG_S)

    first = threads.submit(work)
    assert begun.wait(_LONG_S)
    others = [threads.submit(go_on.is_set) for _ in range(4)]
    closer = threading.Thread(target=threads.shutdown, kwargs={"cancel_futures": True})
    closer.start()
    go_on.set()
    closer.join(_LONG_S)
    assert first.result(_LONG_S)
    assert all(future.done() for future in others)


def test_an_error_does_not_keep_what_it_was_about() -> None:
    """It has whole images, and must go when the error goes, not when garbage is collected."""

    def fail(about: Together) -> None:
        raise ValueError(about.most)

    def failed() -> weakref.ref[Together]:
        about = Together(0)
        assert isinstance(threads.submit(fail, about).exception(_LONG_S), ValueError)
        return weakref.ref(about)

    threads = DaemonPool(1, "test")
    gc.disable()
    try:
        reference = failed()
        threads.submit(int).result(_LONG_S)  # the one before is left
        assert reference() is None
    finally:
        gc.enable()
        threads.shutdown()


def test_who_waits_for_a_task_that_is_dropped_wakes_up() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return go_on.wait(_LONG_S)

    pool = DaemonPool(1, "test")
    pool.submit(work)
    dropped = pool.submit(print)
    assert begun.wait(_LONG_S)
    pool.shutdown(wait=False, cancel_futures=True)
    assert not wait([dropped], _LONG_S).not_done
    go_on.set()


def test_threads_of_a_pool_that_is_garbage_end_after_its_tasks() -> None:
    threads: list[threading.Thread] = []
    pool = DaemonPool(2, "test")
    done = [pool.submit(lambda: threads.append(threading.current_thread())) for _ in range(6)]
    del pool
    assert not wait(done, _LONG_S).not_done
    for thread in threads:
        thread.join(_LONG_S)
    assert len(threads) == 6
    assert not any(thread.is_alive() for thread in threads)


def test_calls_that_are_submitted_together_have_one_result_in_their_order() -> None:
    with DaemonPool(3, "test") as pool:
        calls = [partial(pow, number, 2) for number in range(50)]
        assert wait_for(pool.submit_all(calls)) == [number * number for number in range(50)]


def test_the_first_error_of_calls_together_is_raised_at_once_and_drops_the_others() -> None:
    release, ran = threading.Event(), list[int]()

    def fail() -> int:
        raise KeyError("here")

    with DaemonPool(2, "test") as pool:
        calls = [partial(release.wait, _LONG_S), fail, *(partial(ran.append, 1) for _ in range(20))]
        future = pool.submit_all(calls)
        with pytest.raises(KeyError, match="here"):
            future.result(_LONG_S)
        release.set()
    assert not ran


def test_calls_together_that_are_dropped_are_cancelled() -> None:
    begun, release = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        release.wait(_LONG_S)

    pool = DaemonPool(1, "test")
    pool.submit(hold)
    begun.wait(_LONG_S)
    future = pool.submit_all([hold, hold, hold])
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        future.result(_LONG_S)
    release.set()


def test_a_pool_that_was_shut_down_takes_no_calls_together() -> None:
    pool = DaemonPool(1, "test")
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit_all([partial(pow, 2, 2)])


def test_the_main_thread_and_others_wait_for_results_and_errors() -> None:
    found: list[object] = []
    with DaemonPool(2, "test") as pool:
        assert wait_for(pool.submit(pow, 2, 5)) == 32
        found.append(pool.submit(lambda: wait_for(pool.submit(pow, 2, 6))).result(_LONG_S))
    assert found == [64]
