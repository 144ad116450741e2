"""Parsers of strangers' bytes refuse by name what they cannot read; `fuzz_python` does the work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import fuzz_python
from tests.fuzz_python import Target, fuzz
from tests.fuzz_targets import TARGETS

RUNS = 200


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_runs(name: str, tmp_path: Path) -> None:
    """Each target's modules are imported under their names, and its seeds are sound."""
    report = fuzz(TARGETS[name], tmp_path, runs=1, seed=12)
    assert report.runs == 1


@pytest.mark.parametrize(
    ("name", "runs"),
    [("tars", RUNS), *(pytest.param(name, 20 * RUNS, marks=pytest.mark.long) for name in TARGETS)],
)
def test_mutated_input_is_read_or_refused_by_name(name: str, runs: int, tmp_path: Path) -> None:
    report = fuzz(TARGETS[name], tmp_path, runs=runs, seed=12)
    assert not report.findings, str(report)
    assert report.runs == runs


# --- The fuzzer itself -------------------------------------------------------------------------


class Sensitive(Target):
    """Does what it is told to where an input has become large."""

    name = "sensitive"
    modules = ("tests.tars",)
    allowed = (ValueError,)

    def seeds(self) -> list[bytes]:
        return [bytes(100)]

    def run(self, data: bytes) -> None:
        if len(data) > 100:
            self.fail()
        if len(data) < 100:
            raise ValueError("refused")

    def fail(self) -> None:
        raise ZeroDivisionError


class Crashing(Sensitive):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Greedy(Sensitive):
    memory_bytes = 8 << 20

    def fail(self) -> None:
        bytearray(b"x") * (300 << 20)


class Endless(Sensitive):
    def fail(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.05)  # in place of what it waits for
        while True:
            pass


class Waiting(Sensitive):
    def fail(self) -> None:
        threading.Event().wait()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (Sensitive, "ZeroDivisionError"),
        (Crashing, "the process ended: -11"),
        (Greedy, "it took "),
        (Endless, "more than"),
        (Waiting, "it waits for ever"),
    ],
)
def test_what_must_not_be_is_found_and_kept(
    make: Callable[[Path], Target], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_python, "STUCK_S", 2.0 if make is Waiting else 300.0)
    report = fuzz(make, tmp_path, runs=30, seed=1, deaths=1)
    found = next(finding for finding in report.findings.values() if what in finding.what)
    assert found.path is not None
    assert len(Path(found.path).read_bytes()) > 100
