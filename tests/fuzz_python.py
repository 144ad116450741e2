"""Fuzzes the Python parsers of bytes that others wrote; `fuzz_targets` says which.

    python -m tests.fuzz_python --target tars --seconds 60

A process of its own mutates seeds and runs the target on each result. These are findings: an
exception that the target does not allow, a signal, more memory than the target may take, and no
end. What is found is kept as a file, for

    python -m tests.fuzz_python --target tars --replay FILE

Every run with the same seed tries the same inputs in the same order, whatever the machine does
meanwhile. Every few inputs one is traced; those that reach a new line of the target's modules join
the seeds.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import multiprocessing
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

CPU_S = 20.0  # that one input may take
STUCK_S = 300.0  # without progress: a wait that takes no processor time
_START_S = 120.0  # until the first input is under way: a process is started, modules are imported
ADDRESS_BYTES = 2 << 30  # beyond what the process has mapped when it begins
TRACED = 8  # one of so many inputs
MOST_BYTES = 256 << 10  # of an input
MOST_SEEDS = 2000
_SHARED_BYTES = 1 << 20


class TooSlow(BaseException):
    """An input took too much processor time. No parser's `except Exception` swallows it."""


class Target:
    """One parser. Made in the process that fuzzes it.

    Attributes:
        name: of the target.
        modules: whose lines are counted.
        allowed: exceptions by which the parser refuses an input.
        memory_bytes: how much the process may grow by one input.
    """

    name = ""
    modules: tuple[str, ...] = ()
    allowed: tuple[type[Exception], ...] = ()
    memory_bytes = 128 << 20

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def seeds(self) -> list[bytes]:
        """Sound inputs."""
        raise NotImplementedError

    def mutate(self, choice: random.Random, data: bytes) -> bytes:
        """Another input, made of this one; checksums in it may be made right again."""
        return mutate_bytes(choice, data)

    def run(self, data: bytes) -> None:
        """Parse an input, and use all that comes of it."""
        raise NotImplementedError


@dataclass
class Finding:
    """An input that must not have this effect.

    Attributes:
        what: the exception with its last lines, or what happened instead of one.
        path: the input, or None where it was not kept.
        count: how many inputs had the same effect.
    """

    what: str
    path: str | None
    count: int = 1


@dataclass
class Report:
    """What fuzzing a target gave.

    Attributes:
        target: its name.
        runs: inputs that were tried.
        seconds: it took.
        outcomes: how often the target ended in which way.
        findings: by their signatures.
        lines: of the target's modules that were reached, and all that there are.
        seeds: at the end.
    """

    target: str
    runs: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    lines: tuple[int, int] = (0, 0)
    seeds: int = 0

    def __str__(self) -> str:
        outcomes = ", ".join(f"{name} {n:,}" for name, n in self.outcomes.most_common())
        text = [
            f"== {self.target}: {self.runs:,} runs in {self.seconds:.0f} s, "
            f"{len(self.findings)} findings; {self.seeds} seeds, {self.lines[0]} of "
            f"{self.lines[1]} lines ({outcomes})"
        ]
        for finding in self.findings.values():
            text.append(f"-- {finding.count} times, {finding.path}:\n{finding.what}")
        return "\n".join(text)


# --- Mutations ------------------------------------------------------------------------------------

_NUMBERS = (0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 511, 512, 513, 0x7FFF, 0x8000, 0xFFFF)
_NUMBERS += (1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def mutate_bytes(choice: random.Random, data: bytes, words: Sequence[bytes] = ()) -> bytes:
    """Bytes after one to six random changes.

    Args:
        choice: says which.
        data: the bytes.
        words: what the format knows; inserted or written over other bytes now and then.
    """
    made = bytearray(data)
    for _ in range(choice.choice((1, 1, 1, 2, 3, 6))):
        _change(choice, made, words)
    return bytes(made[:MOST_BYTES])


def _change(choice: random.Random, data: bytearray, words: Sequence[bytes]) -> None:
    at = choice.randrange(len(data) + 1)
    some = choice.choice((1, 2, 4, 8, 16, 100, 512, 4096))
    kind = choice.randrange(11 if words else 10)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << choice.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = choice.randrange(256)
    elif kind in (2, 3):
        size = choice.choice((1, 2, 4, 8))
        order: Any = choice.choice(("little", "big"))
        number = (choice.choice(_NUMBERS) + choice.choice((0, 0, -1, 1))) % (1 << 8 * size)
        data[at : at + size] = number.to_bytes(size, order)
    elif kind == 4:
        del data[at : at + some]
    elif kind == 5:
        data[at:at] = data[at : at + some]
    elif kind == 6:
        data[at:at] = choice.choice((bytes(some), choice.randbytes(some), b"\xff" * some))
    elif kind == 7:
        data[at : at + some] = choice.choice((bytes(some), choice.randbytes(some)))
    elif kind == 8:
        other = choice.randrange(len(data) + 1)
        data[at : at + some] = data[other : other + some]
    elif kind == 9:
        if choice.randrange(4) == 0:
            del data[at:]
        else:
            _change_digits(choice, data, at)
    elif words:
        word = choice.choice(words)
        data[at : at + choice.choice((0, len(word)))] = word


def _change_digits(choice: random.Random, data: bytearray, at: int) -> None:
    """Write another number over the next one in digits, of as many or, seldom, more of them."""
    begin = next((n for n in range(at, min(len(data), at + 600)) if 48 <= data[n] < 58), None)
    if begin is None:
        return
    end = begin
    while end < len(data) and 48 <= data[end] < 58:
        end += 1
    width = end - begin
    number = choice.choice((*_NUMBERS, -1, 10**18, 10**30))
    text = f"{number:0{width}d}" if choice.randrange(4) else f"{number:0{width}o}"
    data[begin:end] = (text if choice.randrange(8) == 0 else text[-width:]).encode()


def mutate_json(choice: random.Random, value: Any) -> Any:
    """A JSON value with another value, of any type, at one place of it."""
    if isinstance(value, dict) and value and choice.randrange(10):
        name = choice.choice(list(value))
        made = dict(value)
        if choice.randrange(16) == 0:
            del made[name]
        elif choice.randrange(16) == 0:
            made[choice.choice(("", "\0", "x" * 100, name + "2"))] = made.pop(name)
        else:
            made[name] = mutate_json(choice, value[name])
        return made
    if isinstance(value, list) and value and choice.randrange(10):
        place = choice.randrange(len(value))
        return [mutate_json(choice, v) if n == place else v for n, v in enumerate(value)]
    others: tuple[Any, ...] = (None, True, -1, 0, 1, 1.5, 1e308, float("nan"), 10**30, 2**63)
    others += ("", "x", "\0", "\ud800", "../x", "a" * 5000, [], {}, [[]], {"a": []}, "uint8")
    others += (2**31, 2**62, [0] * 100, [2**40, 2**40], "\x1b[31m", "int64")
    if isinstance(value, int) and not isinstance(value, bool) and choice.randrange(2):
        return value + choice.choice((-1, 1, 8, -value, -2 * value, 1 << 31))
    return choice.choice(others)


# --- The process that fuzzes ----------------------------------------------------------------------


class _Shared:
    """What survives the process that fuzzes: the input under way, and how many there were."""

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SHARED_BYTES)

    def begin(self, number: int, data: bytes) -> None:
        self._map[16 : 16 + len(data)] = data
        self._map[:16] = struct.pack("<QQ", number, len(data))

    def under_way(self) -> tuple[int, bytes]:
        number, size = struct.unpack("<QQ", self._map[:16])
        return number, bytes(self._map[16 : 16 + size])


class _Lines:
    """Lines of some modules that were reached."""

    def __init__(self, modules: Sequence[str]) -> None:
        files = [str(sys.modules[name].__file__) for name in modules]
        self._files = frozenset(files)
        self.reached: set[tuple[str, int]] = set()
        self.all = sum(_lines_of(file) for file in files)

    def run(self, target: Target, data: bytes) -> bool:
        """Run the target on an input; whether it reaches a new line. Exceptions pass."""
        before = len(self.reached)
        sys.settrace(self._enter)
        try:
            target.run(data)
        finally:
            sys.settrace(None)
            self.is_new = len(self.reached) > before
        return self.is_new

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.reached.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def _lines_of(path: str) -> int:
    """Lines with code in the functions of a file."""

    def walk(code: Any) -> set[int]:
        lines = {line for _, _, line in code.co_lines() if line is not None}
        lines.discard(code.co_firstlineno)
        for constant in code.co_consts:
            if hasattr(constant, "co_lines"):
                lines |= walk(constant)
        return lines

    code = compile(Path(path).read_text(), path, "exec")
    found = set()
    for constant in code.co_consts:
        if hasattr(constant, "co_lines"):
            found |= walk(constant)
    return len(found)


def _fuzz_here(
    make: Callable[[Path], Target], plan: dict[str, Any], shared_path: Path, answer: Any
) -> None:
    """Fuzz in this process, and send a report."""
    logs = open(plan["log"], "w")  # noqa: SIM115  # until the process ends
    faulthandler.enable(logs)
    signal.signal(signal.SIGPROF, _too_slow)
    shared = _Shared(shared_path)
    choice = random.Random(f"{plan['seed']} {plan['part']}")
    target = make(Path(plan["folder"]))
    lines = _Lines(target.modules)
    report = Report(target.name)
    seeds = target.seeds()
    for data in seeds:
        target.run(data)  # a seed that is refused is a mistake in the target
    fixed = len(seeds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _mapped_bytes() + ADDRESS_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    begin = time.monotonic()
    runs, seconds = plan["runs"], plan["seconds"]
    while (runs and report.runs < runs) or (
        seconds is not None and time.monotonic() - begin < seconds
    ):
        data = target.mutate(choice, choice.choice(seeds))[:MOST_BYTES]
        shared.begin(report.runs, data)
        most = _most_bytes()
        outcome, what, where = _outcome(target, data, lines if report.runs % TRACED == 0 else None)
        if report.runs % TRACED == 0 and lines.is_new:
            if len(seeds) == MOST_SEEDS:
                seeds.pop(choice.randrange(fixed, len(seeds)))
            seeds.append(data)
        grown = _most_bytes() - most
        if grown > target.memory_bytes and not what:
            what = f"it took {grown >> 20} MiB for {len(data):,} bytes, and ended: {outcome}"
            outcome = "memory"
        report.runs += 1
        report.outcomes[outcome] += 1
        if what:
            _keep(report, f"{outcome} {where}", what, data, plan)
    report.seconds = time.monotonic() - begin
    report.lines, report.seeds = (len(lines.reached), lines.all), len(seeds)
    answer.send(report)


def _too_slow(number: int, frame: Any) -> None:
    raise TooSlow


def _outcome(target: Target, data: bytes, lines: _Lines | None) -> tuple[str, str, str]:
    """How a run ends, in a word; if it must not end so, in full, and where in fastio that was."""
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        if lines is None:
            target.run(data)
        else:
            lines.run(target, data)
    except target.allowed as error:
        return type(error).__name__, "", ""
    except TooSlow as error:
        text = f"{traceback.format_exc(limit=-8)}\nmore than {CPU_S:.0f} s"
        return "slow", text, _where(error, 1)
    except BaseException as error:
        return type(error).__name__, traceback.format_exc(limit=-8), _where(error, 2)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "sound", "", ""


def _where(error: BaseException, frames: int) -> str:
    """The innermost functions of fastio's that an exception passed."""
    passed = [f for f in traceback.extract_tb(error.__traceback__) if "/fastio/" in f.filename]
    return ", ".join(f"{Path(frame.filename).name} {frame.name}" for frame in passed[-frames:])


def _keep(report: Report, signature: str, what: str, data: bytes, plan: dict[str, Any]) -> None:
    if known := report.findings.get(signature):
        known.count += 1
        return
    path = Path(plan["findings"], f"{report.target}-{plan['part']}-{report.runs:06d}")
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(what)
    report.findings[signature] = Finding(what, str(path))


def _mapped_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _most_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- The process that watches ---------------------------------------------------------------------


def fuzz(
    make: Callable[[Path], Target],
    findings: Path,
    *,
    runs: int = 0,
    seconds: float | None = None,
    seed: int = 0,
    deaths: int = 20,
) -> Report:
    """Fuzz a target in a process of its own, which is started again where an input ends it.

    Args:
        make: makes the target, of a folder for its files.
        findings: folder, where inputs that are findings are kept.
        runs: how many inputs; 0: as `seconds` says.
        seconds: how long, where no runs are given.
        seed: of all that is random.
        deaths: how many processes may be ended by an input before it is left alone.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.fuzz_targets"])  # where none runs already
    findings.mkdir(parents=True, exist_ok=True)
    total = Report("")
    part = 0
    begin = time.monotonic()
    while total.runs < runs or (seconds is not None and time.monotonic() - begin < seconds):
        left = None if seconds is None else seconds - (time.monotonic() - begin)
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_shared_memory()) as folder:
            plan = {
                "runs": runs - total.runs if runs else 0,
                "seconds": left,
                "seed": seed,
                "part": part,
                "folder": folder,
                "findings": str(findings),
                "log": str(Path(folder, "log")),
            }
            report = _watched(context, make, plan, Path(folder))
        part += 1
        _add(total, report)
        if report.outcomes["died"] and part >= deaths:
            break
    total.seconds = time.monotonic() - begin
    return total


def _watched(
    context: Any, make: Callable[[Path], Target], plan: dict[str, Any], folder: Path
) -> Report:
    """One process, until it is through, or ended, or stuck."""
    shared_path = folder / "shared"
    with open(shared_path, "wb") as file:
        file.truncate(_SHARED_BYTES)
    shared = _Shared(shared_path)
    shared.begin(0, b"")
    Path(plan["folder"], "files").mkdir()
    mine, theirs = context.Pipe(duplex=False)
    given = plan | {"folder": str(folder / "files")}
    process = context.Process(
        target=_fuzz_here, args=(make, given, shared_path, theirs), daemon=True
    )
    process.start()
    theirs.close()
    last, since = -1, time.monotonic()
    stuck = False
    while not mine.poll(0.5):
        number, data = shared.under_way()
        if number != last:
            last, since = number, time.monotonic()
        elif time.monotonic() - since > (STUCK_S if data else max(STUCK_S, _START_S)):
            stuck = True
            process.kill()
            break
    try:
        report: Report | None = None if stuck else mine.recv()
    except EOFError:
        report = None
    process.join()
    if report is not None:
        return report
    number, data = shared.under_way()
    how = "it waits for ever" if stuck else f"the process ended: {process.exitcode}"
    log = Path(plan["log"]).read_text() if Path(plan["log"]).exists() else ""
    what = f"{how}\n{log}"
    if not data:
        raise RuntimeError(f"the target does not run at all: {what}")
    name = make(folder).name
    report = Report(name, runs=number + 1, outcomes=Counter(died=1))
    _keep(report, f"{how} {log.strip()[:2000]}", what, data, plan)
    return report


def _add(total: Report, more: Report) -> None:
    total.target = more.target
    total.runs += more.runs
    total.outcomes += more.outcomes
    total.lines = max(total.lines, more.lines)
    total.seeds = max(total.seeds, more.seeds)
    for signature, finding in more.findings.items():
        if known := total.findings.get(signature):
            known.count += finding.count
        else:
            total.findings[signature] = finding


def _shared_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> None:
    from tests.fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--runs", type=int, default=0, help="of each target, instead of seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz/findings/python"))
    parser.add_argument("--replay", type=Path, help="a file: run it here, with its traceback")
    arguments = parser.parse_args()
    chosen = list(TARGETS) if arguments.target == "all" else [arguments.target]
    if arguments.replay:
        with tempfile.TemporaryDirectory() as folder:
            target = TARGETS[chosen[0]](Path(folder))
            target.seeds()
            target.run(arguments.replay.read_bytes())
        return
    found = 0
    for name in chosen:
        report = fuzz(
            TARGETS[name],
            arguments.findings,
            runs=arguments.runs,
            seconds=None if arguments.runs else arguments.seconds / len(chosen),
            seed=arguments.seed,
        )
        print(report, flush=True)
        found += len(report.findings)
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    from tests import fuzz_python  # so that children import it by this name

    fuzz_python.main()
