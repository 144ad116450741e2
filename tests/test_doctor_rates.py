"""Rates that are compared: measured in turns, without what a loader begins with."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fastio
from fastio import FolderDataset
from fastio.diagnose.imagesteps import ImageSteps
from fastio.diagnose.probes.data import Images
from fastio.diagnose.probes.rates import (
    Attempts,
    Measure,
    Part,
    images_part,
    in_turns,
    loader_part,
    rates_of,
    within,
)
from tests.support import numbered_folder


def test_loaders_take_turns_there_and_back() -> None:
    asked: list[str] = []

    def measure(name: str) -> Measure:
        def part(seconds: float) -> Part:
            asked.append(name)
            return Part(10.0 * len(asked), 1.0)

        return part

    found = in_turns({"a": measure("a"), "b": measure("b")}, Attempts(60.0), turns=2)
    assert asked == ["a", "b", "b", "a"]
    assert rates_of(found) == {"a": (10 + 40) / 2, "b": (20 + 30) / 2}


def test_longer_turns_count_for_more() -> None:
    parts = iter([Part(100.0, 1.0), Part(100.0, 3.0)])
    found = in_turns({"a": lambda _: next(parts)}, Attempts(60.0), turns=2)
    assert rates_of(found) == {"a": 50.0}


def test_what_fails_has_no_more_turns_and_the_others_go_on() -> None:
    asked: list[str] = []

    def fails(seconds: float) -> Part:
        asked.append("bad")
        raise OSError("it is broken")

    attempts = Attempts(60.0)
    found = in_turns({"bad": fails, "good": lambda _: Part(5.0, 1.0)}, attempts, turns=4)
    assert rates_of(found) == {"good": 5.0}
    assert asked == ["bad"]
    assert attempts.notes == ["bad: it is broken"]


def test_what_a_loader_hands_over_counts_from_behind_its_start(tmp_path: Path) -> None:
    images = Images(FolderDataset(numbered_folder(tmp_path)), "image", range(24))
    part = images_part(images, 2, ImageSteps.usual(16).native, 0.01)
    assert part is not None
    assert part.samples >= 3 * 32
    assert part.samples % 32 == 0
    assert part.seconds > 0


def test_a_loader_without_batches_has_no_rate(tmp_path: Path) -> None:
    loader = fastio.Loader(str(numbered_folder(tmp_path)), 100, drop_last=True)
    assert loader_part(loader, 0.01) is None


def test_an_epoch_that_does_not_begin_again_counts_to_its_end(tmp_path: Path) -> None:
    folder = str(numbered_folder(tmp_path))
    part = loader_part(fastio.Loader(folder, 4), 600.0, warm_samples=8, once=True)
    assert part is not None
    assert part.samples == 24 - 12


def test_a_room_that_a_probe_is_still_in_is_gone_at_exit(tmp_path: Path) -> None:
    code = """
import sys, threading
from fastio.diagnose.probes.rates import room

there = threading.Event()

def probe():
    with room(sys.argv[1]) as folder:
        (folder / "file").touch()
        there.set()
        threading.Event().wait()

threading.Thread(target=probe, daemon=True).start()
there.wait()
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=120)
    assert list(tmp_path.iterdir()) == []


# --- Calls that wait for a server -----------------------------------------------------------------


def test_what_comes_in_time_is_returned() -> None:
    assert within(600.0, "a server", lambda: 7) == 7


def test_an_error_is_the_call_s_own() -> None:
    def call() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        within(600.0, "a server", call)


def test_what_does_not_come_is_not_waited_for() -> None:
    answered = threading.Event()
    with pytest.raises(TimeoutError, match="a server did not answer within 0 s"):
        within(0.01, "a server", answered.wait, 600.0)
    answered.set()
