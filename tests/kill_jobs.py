"""Jobs that are killed at random points and gone on with: packs, cache warms and trainings.

    python -m tests.kill_storm --what pack --kills 200

Each kill is a process of its own, forked from one that has imported everything. It kills itself by
SIGKILL when a random number of files was opened, renamed or removed, or after a random time. What
it leaves must be whole or not there; a process that goes on with it must end with the same bytes as
one that was never killed, and leave nothing behind.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
import xxhash

import fastio
from fastio import Cache, Loader, warm
from fastio.cache.editions import block_of
from fastio.train import Options, fit
from fastio.train.checkpoint import load
from tests.pictures import jpeg
from tests.servers import http_folder
from tests.staging_support import MIB, noise, pack_table
from tests.train_support import TinyTask, tiny_data

_PR_SET_PDEATHSIG = 1
# What a kill between two of may leave behind.
_EVENTS = frozenset(("open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir"))
_EVENTS |= {"os.truncate", "fcntl.flock", "sqlite3.connect"}
_BUDGET = 16 * MIB


class Job:
    """Work that is killed. Made anew in every process; `root` is where everything lies.

    Attributes:
        name: of the job.
        variants: how many kinds of it there are.
        events: about how many files a whole run of it opens, renames and so on.
    """

    name = ""
    variants = 1
    events = 60

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Makes what the work needs; in the process that looks on."""
        yield

    def work(self, place: Path, variant: int) -> None:
        """Begins, or goes on with, what is in a folder."""
        raise NotImplementedError

    def left(self, place: Path, variant: int) -> list[str]:
        """What a killed process left in the folder and must not."""
        raise NotImplementedError

    def done(self, place: Path, variant: int) -> list[str]:
        """What is wrong with the folder when the work was gone on with to its end."""
        raise NotImplementedError


class _Noise:
    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return noise(row, 16), row


class Pack(Job):
    """A dataset is packed: of samples, of a folder of photos, and of a table."""

    name = "pack"
    variants = 3
    events = 90

    @contextmanager
    def prepared(self) -> Iterator[None]:
        for number in range(40):
            path = self.root / f"photos/{number % 2}/{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(40, 60, seed=number))
        for variant in range(self.variants):
            self.work(self.root / f"whole-{variant}", variant)
        yield

    def work(self, place: Path, variant: int) -> None:
        if (place / "manifest.arrow").exists() and not (place / "pack.journal").exists():
            return  # it was killed when all was done
        resume = place.exists()
        if variant == 0:
            fastio.pack(_Noise(), place, codec="raw", shard_size=8 << 10, resume=resume, workers=1)
        elif variant == 1:
            photos = self.root / "photos"
            fastio.pack(photos, place, shard_size=8 << 10, resume=resume, workers=2)
        else:
            samples = [{"x": float(n), "text": f"row {n}" * 20} for n in range(300)]
            fastio.pack(samples, place, shard_size=4 << 10, resume=resume, workers=1)

    def left(self, place: Path, variant: int) -> list[str]:
        try:
            dataset = fastio.open(place)
        except fastio.SourceNotFound:
            return []
        with closing(dataset):
            return self._differences(place, variant)

    def done(self, place: Path, variant: int) -> list[str]:
        left = [path.name for path in place.iterdir() if path.suffix != ".arrow"]
        return [*self._differences(place, variant), *(f"{name} is left" for name in left)]

    def _differences(self, place: Path, variant: int) -> list[str]:
        expected, found = (_hashes(p) for p in (self.root / f"whole-{variant}", place))
        return [] if found == expected else [f"{place.name} is not what a whole pack gives"]


class Warm(Job):
    """A cache is filled from a server: one for each place, and one that all share."""

    name = "warm"
    variants = 2
    events = 150

    @contextmanager
    def prepared(self) -> Iterator[None]:
        pack_table(self.root / "served/table", 2000, 8 << 10)
        with http_folder(self.root / "served") as url:
            (self.root / "url").write_text(f"{url}/table")
            yield

    def work(self, place: Path, variant: int) -> None:
        with closing(self._cache(place, variant)) as cache:
            warm((self.root / "url").read_text(), cache, parallel=2)

    def _cache(self, place: Path, variant: int) -> Cache:
        return Cache(self.root / "shared" if variant else place, _BUDGET)

    def left(self, place: Path, variant: int) -> list[str]:
        """Nothing that is wrong: verify looks at what is there, and the next one goes on."""
        cache = self._cache(place, variant)
        if not (cache.path / "fastio-cache.json").exists():
            return []  # killed before there was a cache: the next one begins it
        with closing(cache):
            found = [piece for piece in cache.verify().damaged if "missing" not in piece.problem]
        return [f"damaged: {piece}" for piece in found]

    def done(self, place: Path, variant: int) -> list[str]:
        wrong = []
        cache = self._cache(place, variant)
        with closing(cache):
            verified = cache.verify()
            wrong += [f"damaged: {piece}" for piece in verified.damaged]
            wrong += [f"a stray: {path}" for path in verified.strays]
        wrong += index_faults(cache.path)
        url = (self.root / "url").read_text()
        with closing(cache), Loader(url, 100, cache=cache, num_workers=1) as loader:
            rows = [int(y) for batch in loader for y in batch["y"]]
            if rows != list(range(2000)):
                wrong.append(f"{len(rows)} rows of the warm cache, which are not those packed")
            if loader.stats().bytes_fetched:
                wrong.append(f"{loader.stats().bytes_fetched} bytes were fetched after a warm")
        return wrong


class Training(Job):
    """A model is trained, and saves itself every few steps."""

    name = "checkpoint"
    events = 120

    @contextmanager
    def prepared(self) -> Iterator[None]:
        tiny_data(self.root / "data", 64)
        torch.set_num_threads(1)
        self.work(self.root / "whole", 0)
        yield

    def work(self, place: Path, variant: int) -> None:
        options = Options(
            data=str(self.root / "data"),
            checkpoint_dir=str(place),
            checkpoint_every=2,
            epochs=3,
            batch_size=8,
            threads=1,
            device="cpu",
            resume=True,
        )
        fit(TinyTask(options, dropout=0.2), options)

    def left(self, place: Path, variant: int) -> list[str]:
        for name in ("last.pt", "best.pt"):
            with suppress(FileNotFoundError):
                load(place / name)  # raises where it is not whole
        return []

    def done(self, place: Path, variant: int) -> list[str]:
        expected, found = (
            sorted(p.name for p in d.iterdir()) for d in (self.root / "whole", place)
        )
        wrong = [] if found == expected else [f"left: {found}, expected {expected}"]
        for name in ("last.pt", "best.pt"):
            mine, theirs = (load(d / name)["model"] for d in (self.root / "whole", place))
            if not all(torch.equal(mine[key], theirs[key]) for key in mine):
                wrong.append(f"{name} has other weights than that of a whole run")
        return wrong


JOBS: dict[str, type[Job]] = {job.name: job for job in (Pack, Warm, Training)}


def _hashes(path: Path) -> dict[str, str]:
    return {p.name: xxhash.xxh3_64_hexdigest(p.read_bytes()) for p in path.glob("*.arrow")}


def index_faults(cache: Path, foreign: tuple[str, ...] = ()) -> list[str]:
    """What a cache's index and its files have that does not fit together, nobody at work there.

    Args:
        cache: the folder.
        foreign: files in it that are not the cache's.
    """
    wrong = []
    with closing(sqlite3.connect(cache / "index.sqlite")) as db:
        pieces = db.execute(
            "SELECT key, number, pieces.bytes, size, xxh3, state FROM pieces "
            "JOIN sources ON sources.id = pieces.source"
        ).fetchall()
        (count,) = db.execute("SELECT count(*) FROM pieces").fetchone()
        (total,) = db.execute("SELECT value FROM totals WHERE name = 'bytes'").fetchone()
        (runs,) = db.execute("SELECT count(*) FROM runs").fetchone()
    if count != len(pieces):
        wrong.append("pieces without a source")
    if total != sum(piece[2] for piece in pieces):
        wrong.append(f"the index says {total} bytes, its pieces {sum(p[2] for p in pieces)}")
    if runs:
        wrong.append(f"{runs} runs of nobody are left in the index")
    expected = set()
    for key, number, nbytes, size, xxh3, state in pieces:
        path = cache / "data" / key / str(block_of(number) // 1000) / str(number)
        expected.add(path)
        if state != 1:
            wrong.append(f"a claim is left: {key} {number}")
        elif not path.exists():
            wrong.append(f"in the index, and not there: {path}")
        elif path.stat().st_size != size or nbytes < size:
            wrong.append(f"{path} has {path.stat().st_size} bytes, the index says {size}")
        elif xxhash.xxh3_64_hexdigest(path.read_bytes()) != xxh3:
            wrong.append(f"{path} is damaged")
    there = {path for path in cache.glob("data/*/*/*") if path.is_file()}
    strays = there - expected - {cache / name for name in foreign}
    wrong += [f"not in the index: {path}" for path in sorted(strays)]
    wrong += [f"left in tmp: {p}" for p in (cache / "tmp").glob("*") if p.name != "notes.txt"]
    return wrong


# --- The storm ------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a storm saw.

    Attributes:
        kills: by variant.
        whole: processes that came to their end before they could be killed.
        wrong: everything that must not be, in words.
    """

    kills: Counter[int] = field(default_factory=Counter)
    whole: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"variant {n}: {count}" for n, count in sorted(self.kills.items()))
        text = f"{self.kills.total()} kills ({kinds}), {self.whole} ended before; "
        return "\n".join([f"{text}{len(self.wrong)} failures", *self.wrong])


def storm(
    make: type[Job], root: Path, kills: int, seed: int = 0, say: Callable[[str], None] = print
) -> Outcome:
    """Kills so many processes of a job, and goes on with what each left.

    Args:
        make: the job.
        root: an empty folder.
        kills: how many.
        seed: of what is done, and when it is killed.
        say: is told how far it is.
    """
    outcome = Outcome()
    choice = random.Random(seed)
    job = make(root)
    context = multiprocessing.get_context("forkserver")
    if forkserver._forkserver._forkserver_pid is None:  # type: ignore[attr-defined]
        context.set_forkserver_preload(["tests.kill_preload"])
    with ExitStack() as stack:
        stack.enter_context(job.prepared())
        number = 0
        while outcome.kills.total() < kills and len(outcome.wrong) < 20:
            number += 1
            variant = choice.randrange(job.variants)
            place = root / f"place-{number}"
            for _ in range(choice.choice((1, 1, 2, 3))):
                when: tuple[str, float] = ("event", choice.randrange(1, job.events))
                if choice.randrange(3) == 0:
                    when = ("time", choice.uniform(0.0, 0.3))
                code, said = _forked(context, make, root, place, variant, when)
                if code == 0:
                    outcome.whole += 1
                elif code == -signal.SIGKILL:
                    outcome.kills[variant] += 1
                    _look(outcome, job.left, place, variant, when)
                else:
                    outcome.wrong.append(f"variant {variant}, {when}: it ended by itself: {said}")
            code, said = _forked(context, make, root, place, variant, None)
            if code:
                outcome.wrong.append(f"variant {variant}, {place}: going on ended: {code} {said}")
            else:
                _look(outcome, job.done, place, variant, None)
            if number % 20 == 0:
                say(f"{outcome.kills.total()} kills, {len(outcome.wrong)} failures")
    return outcome


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory, where there is one: flushing to a busy disk takes most of a job's time.

    What a killed process wrote is there for the next one, flushed or not.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kill-jobs-", dir=memory) as folder:
        yield Path(folder)


def _look(
    outcome: Outcome, check: Callable[[Path, int], list[str]], place: Path, variant: int, when: Any
) -> None:
    try:
        found = check(place, variant)
    except Exception:
        found = [traceback.format_exc()]
    outcome.wrong += [f"variant {variant}, {place.name}, killed {when}: {text}" for text in found]


def _forked(
    context: Any, make: type[Job], root: Path, place: Path, variant: int, when: Any
) -> tuple[int, str]:
    """The exit code of a process that does the work, and what it says of an error."""
    log = root / "errors"
    process = context.Process(target=_child, args=(make, root, place, variant, when, log))
    process.start()
    process.join()
    said = log.read_text() if process.exitcode not in (0, -signal.SIGKILL) else ""
    return int(process.exitcode), said


def _child(make: type[Job], root: Path, place: Path, variant: int, when: Any, log: Path) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    if when is not None and when[0] == "event":
        _kill_at_event(when[1])
    elif when is not None:
        threading.Thread(target=_kill_after, args=(when[1],), daemon=True).start()
    try:
        make(root).work(place, variant)
    except BaseException:
        log.write_text(traceback.format_exc())
        raise


def _kill_at_event(number: int) -> None:
    """Ends this process right before it opens, renames, ... for this time."""
    count = 0

    def hook(event: str, arguments: Any) -> None:
        nonlocal count
        if event in _EVENTS and not str(arguments[0]).endswith((".py", ".pyc", ".so")):
            count += 1
            if count >= number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
