"""The threads for what Pillow decodes: how many of them work at a time."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from fastio.engine.pillow import PillowThreads

_LONG_S = 60.0  # a test that waits so long hangs


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
    threads = PillowThreads(sizes[0])
    for size in sizes:
        threads.resize(size)
        work = Together(size)
        for future in [threads.submit(work) for _ in range(8)]:
            future.result(_LONG_S)
        assert work.most == size
    threads.close()


def test_what_waits_for_its_turn_is_cancelled_by_close() -> None:
    threads = PillowThreads(2)
    threads.resize(1)
    begun, go_on = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return go_on.wait(_LONG_S)

    first = threads.submit(work)
    assert begun.wait(_LONG_S)
    others = [threads.submit(go_on.is_set) for _ in range(4)]
    closer = threading.Thread(target=threads.close)
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

    threads = PillowThreads(1)
    gc.disable()
    try:
        reference = failed()
        threads.submit(int).result(_LONG_S)  # the one before is left
        assert reference() is None
    finally:
        gc.enable()
        threads.close()
