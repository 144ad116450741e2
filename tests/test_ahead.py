"""runtime.ahead: jobs that run before their results are taken."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from fastio.runtime.ahead import Ahead, in_order


def test_results_come_in_the_order_of_the_items() -> None:
    first = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert first.wait(60)
        elif item == 3:
            first.set()
        return item

    assert list(in_order(work, range(20), 2)) == list(range(20))


def test_no_more_items_are_taken_than_may_be_ahead() -> None:
    taken: list[int] = []

    def items() -> Any:
        for item in range(100):
            taken.append(item)
            yield item

    results = in_order(lambda item: item, items(), 2, ahead=5)
    for item in range(100):
        assert next(results) == item
        assert len(taken) == min(100, item + 6)


def test_an_error_comes_in_place_of_its_result() -> None:
    results = in_order(lambda item: 6 // item, [3, 2, 0, 1], 2)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_what_is_fetched_ahead_has_a_bound() -> None:
    ahead = Ahead[Any](100)
    spans = [(0, memoryview(b"x"))]
    assert ahead.begin("a", 60, lambda: spans)
    assert not ahead.begin("b", 60, lambda: spans)
    assert ahead.take("a", lambda: []) == spans
    assert ahead.begin("b", 60, lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(ZeroDivisionError):
        ahead.take("b", lambda: spans)
    assert ahead.take("b", lambda: spans) == spans


def test_what_no_thread_could_fetch_is_fetched_when_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ahead = Ahead[Any](100)
    spans = [(0, memoryview(b"x"))]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert not ahead.begin("a", 100, lambda: [])
    taken: list[Any] = []
    taker = threading.Thread(target=lambda: taken.append(ahead.take("a", lambda: spans)))
    taker.daemon = True
    taker.start()
    taker.join(20)
    assert taken == [spans]
    assert ahead.begin("b", 100, lambda: spans)  # nothing of the room is lost


def test_a_forked_child_fetches_for_itself() -> None:
    ahead, answered = Ahead[Any](100), threading.Event()
    spans = [(0, memoryview(b"x"))]
    assert ahead.begin("a", 60, lambda: (answered.wait() and spans) or spans)
    child = os.fork()
    if not child:
        os._exit(0 if ahead.take("a", lambda: spans) == spans and ahead.begin("b", 90, list) else 1)
    deadline_s = time.monotonic() + 30
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline_s:
        time.sleep(0.01)
    answered.set()
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)
