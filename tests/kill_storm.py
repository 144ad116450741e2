"""Processes that work on one cache folder, killed at random moments; and what must hold after each.

    python -m tests.kill_storm --kills 200
    python -m tests.kill_storm --kills 200 --what pack

Loaders, pairs of ranks, loaders of a table, packers and cache commands run against a server with
some latency and a cache so small that evictions never end. One of them is killed, again and again.
Nobody else may notice: the next loader starts as fast as ever and gets the right bytes, the folder
stays within its budget, and only files of the cache's are ever deleted. `kill_jobs` does the same
to work that is gone on with: packs, cache warms and trainings.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import statistics
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

import fastio
from fastio import Cache, Loader
from fastio.cache import CacheFolder
from tests.kill_jobs import JOBS, in_memory, index_faults
from tests.kill_jobs import Outcome as JobOutcome
from tests.kill_jobs import storm as storm_of_jobs
from tests.servers import FaultProxy, http_folder
from tests.staging_support import (
    CROPS,
    MIB,
    Reference,
    disk_use,
    noise,
    pack_noise,
    pack_table,
)

ROWS, TABLE_ROWS, EPOCHS = 640, 6000, 3
BUDGET = 7 * MIB // 2
RUNNING = 3  # victims at once
# A new loader that got no batch while the victims and it used so much CPU time hangs. It takes one
# or two itself. Wall-clock time says nothing: on a busy machine it took more than a minute.
_HANGS_AFTER_CPU_S = 180.0
_FOREIGN = ("NOTES.txt", "tmp/notes.txt", "members/README", "data/keep/0/7", "data/list.txt")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Place:
    """Where everything is.

    Attributes:
        root: with photos/ and table/ (what is served), crops-N.npy, packed/, cache/ and out/.
        url: of root, through the proxy.
    """

    root: str
    url: str

    @property
    def cache(self) -> Cache:
        return Cache(Path(self.root, "cache"), BUDGET)

    def failed(self, text: str) -> None:
        """Notes a failure; the storm collects it."""
        Path(self.root, "failures", f"{os.getpid()}-{time.time_ns()}").write_text(text)


class NoisySource:
    """What is packed."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return noise(row), row


# --- Victims, each a process of its own -----------------------------------------------------------


def _child(place: Place, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    # Names of semaphores tell whose they are: other programs of this machine make some meanwhile.
    multiprocessing.current_process()._config["semprefix"] = f"/{_semaphores(place)}"  # type: ignore[attr-defined]
    warnings.simplefilter("error", RuntimeWarning)  # the cache that cannot be used
    try:
        work(place, *arguments)
    except BaseException:
        place.failed(f"{work.__name__}{arguments}:\n{traceback.format_exc()}")
        raise


def load(place: Place, seed: int, rank: int = 0, world_size: int = 1) -> None:
    """Epoch after epoch of images, each batch compared."""
    crops = [np.load(Path(place.root, f"crops-{epoch}.npy"), mmap_mode="r") for epoch in range(3)]
    order = random.Random(seed)
    while True:
        with Loader(
            f"{place.url}/photos",
            8,
            shuffle=True,
            transforms=CROPS,
            cache=place.cache,
            num_workers=1,
            seed=0,
            rank=rank,
            world_size=world_size,
        ) as loader:
            epochs = range(EPOCHS) if world_size > 1 else order.sample(range(EPOCHS), EPOCHS)
            for epoch in epochs:
                loader.set_epoch(epoch)
                for images, labels in loader:
                    rows = loader.batch.rows
                    assert rows is not None
                    if not np.array_equal(images.numpy(), crops[epoch][rows]):
                        raise AssertionError(f"wrong pixels in epoch {epoch}, rows {rows}")
                    if labels.tolist() != rows.tolist():
                        raise AssertionError(f"wrong labels in epoch {epoch}, rows {rows}")


def tabulate(place: Place, seed: int) -> None:
    """Epoch after epoch of a table."""
    with Loader(f"{place.url}/table", 64, shuffle=True, cache=place.cache, num_workers=1) as loader:
        while True:
            for batch in loader:
                if batch["x"][:, 3].tolist() != batch["y"].tolist():
                    raise AssertionError("wrong values")


def pack(place: Place, number: int) -> None:
    """One pack after another; each goes on where a killed one stopped."""
    while True:
        path = Path(place.root, "out", str(number))
        if path.exists() and (path / "manifest.arrow").exists():
            expected = _bytes_of(Path(place.root, "packed"))
            if _bytes_of(path) != expected:
                raise AssertionError(f"{path} is not what an undisturbed pack gives")
            done = Path(tempfile.mkdtemp(dir=place.root))
            os.rename(path, done / "done")
            shutil.rmtree(done)
        fastio.pack(
            NoisySource(), path, codec="raw", shard_size=MIB // 4, resume=path.exists(), workers=1
        )


def command(place: Place, seed: int) -> None:
    """Commands on the cache, over and over."""
    from fastio import warm

    choice = random.Random(seed)
    while True:
        cache = place.cache
        match choice.choice(("warm", "prune", "verify", "status", "clear")):
            case "warm":
                warm(f"{place.url}/{choice.choice(('photos', 'table'))}", cache)
            case "prune":
                cache.prune(choice.randrange(1, BUDGET))
            case "verify":
                if damaged := _damaged(cache):
                    raise AssertionError(f"verify found damage: {damaged}")
            case "status":
                cache.status()
            case "clear":
                if not choice.randrange(4):
                    cache.clear()
        cache.close()


def probe(place: Place, epoch: int, answer: Any) -> None:
    """A new loader: seconds to its first batch, and whether that is right."""
    begin = time.perf_counter()
    crops = np.load(Path(place.root, f"crops-{epoch}.npy"), mmap_mode="r")
    with Loader(
        f"{place.url}/photos",
        8,
        shuffle=True,
        transforms=CROPS,
        cache=place.cache,
        num_workers=1,
        seed=0,
    ) as loader:
        loader.set_epoch(epoch)
        images, _ = next(iter(loader))
        seconds = time.perf_counter() - begin
        rows = loader.batch.rows
        answer.send((seconds, bool(np.array_equal(images.numpy(), crops[rows]))))


def _bytes_of(path: Path) -> dict[str, str]:
    return {
        file.name: xxhash.xxh3_64_hexdigest(file.read_bytes())
        for file in path.iterdir()
        if file.suffix == ".arrow"
    }


# --- The storm ------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a storm saw.

    Attributes:
        kills: by what was killed.
        first_batch_s: of the loaders that were started after the kills.
        wrong: everything that must not be, in words.
        most_bytes: that the folder had at any time, as walks over it found.
        most_reserved: by all pieces at any time, as the index said.
        suspicions: walks that found too much, each done again with everybody stopped.
    """

    kills: Counter[str] = field(default_factory=Counter)
    first_batch_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    most_bytes: int = 0
    most_reserved: int = 0
    suspicions: int = 0

    def __str__(self) -> str:
        times = sorted(self.first_batch_s) or [float("nan")]
        lines = [
            f"kills                     {sum(self.kills.values())}",
            *(f"  {name:<24}{count}" for name, count in sorted(self.kills.items())),
            f"first batch, median       {statistics.median(times):.2f} s",
            f"first batch, 95%          {times[int(0.95 * (len(times) - 1))]:.2f} s",
            f"first batch, longest      {times[-1]:.2f} s",
            f"starts of 2 s or more     {sum(t >= 2 for t in times)}",
            f"starts of 60 s or more    {sum(t >= 60 for t in times)}",
            f"folder, most bytes        {self.most_bytes:,} of {BUDGET:,}",
            f"walks done again          {self.suspicions}",
            f"reserved, most bytes      {self.most_reserved:,} of {BUDGET - MIB:,}",
            f"failures                  {len(self.wrong)}",
        ]
        return "\n".join([*lines, *self.wrong])


class _Watcher(threading.Thread):
    """Sums the folder's files up, over and over, and asks the index for its sum.

    The index answers for one moment: a piece's bytes are reserved before its file is made, and
    given back when it is gone. A walk is none: what is deleted behind it and made before it counts
    as if both were there. So where a walk finds too much, it is done again with everybody stopped.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self.suspicions = 0
        self.most_bytes = 0
        self.most_reserved = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.most_reserved = max(self.most_reserved, self._reserved())
            found = disk_use(self._folder)
            if found > BUDGET:
                self.suspicions += 1
                with suppress(OSError), _stopped(_workers()):  # else the first walk counts
                    found = disk_use(self._folder)
            self.most_bytes = max(self.most_bytes, found)

    def _reserved(self) -> int:
        try:
            with closing(
                sqlite3.connect(f"file:{self._folder}/index.sqlite?mode=ro", uri=True)
            ) as db:
                (total,) = db.execute("SELECT value FROM totals WHERE name = 'bytes'").fetchone()
        except (sqlite3.Error, TypeError):
            return 0  # not there yet
        return int(total)


def _workers() -> list[int]:
    """The processes that the fork server started."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    children = Path(f"/proc/{server}/task/{server}/children")
    return [int(pid) for pid in children.read_text().split()]


def _cpu_seconds() -> dict[int, float]:
    """CPU time by process: of this one, whose watcher never rests, and of the fork server's."""
    found = {os.getpid(): time.process_time()}
    for pid in _workers():
        with suppress(OSError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


@contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    """None of these processes runs meanwhile."""
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    try:
        for pid in pids:
            while _state(pid) not in "TZX":
                time.sleep(0.001)
        yield
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _state(pid: int) -> str:
    """As /proc calls it: T stopped, Z ended, X gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def storm(root: Path, kills: int, seed: int = 0, say: Callable[[str], None] = print) -> Outcome:
    """Kills so many processes, and looks after each."""
    outcome = Outcome()
    choice = random.Random(seed)
    with ExitStack() as stack:
        url = stack.enter_context(http_folder(root))
        proxy = stack.enter_context(FaultProxy(url))
        proxy.set(latency_s=0.005)
        place = Place(str(root), proxy.url)
        _prepare(place)
        shared_before = set(os.listdir("/dev/shm"))
        context = multiprocessing.get_context("forkserver")
        # One that runs already has not imported this: victims would be killed while they do.
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        context.set_forkserver_preload(["tests.kill_storm"])
        watcher = _Watcher(root / "cache")
        watcher.start()
        victims: list[tuple[str, Any]] = []
        try:
            while sum(outcome.kills.values()) < kills:
                while len(victims) < RUNNING:
                    victims += _start(context, place, choice)
                time.sleep(choice.uniform(0.02, 0.6))
                name, victim = victims.pop(choice.randrange(len(victims)))
                ended = victim.exitcode
                victim.kill()
                victim.join()
                if ended is not None:
                    outcome.wrong.append(f"{name} ended by itself: {ended}")
                outcome.kills[name] += 1
                _probe(context, place, choice.randrange(EPOCHS), outcome)
                if len(outcome.kills) and sum(outcome.kills.values()) % 20 == 0:
                    say(f"{sum(outcome.kills.values())} kills, {len(outcome.wrong)} failures")
        finally:
            for _, victim in victims:
                victim.kill()
                victim.join()
            watcher.ended.set()
            watcher.join()
        outcome.most_bytes = watcher.most_bytes
        outcome.most_reserved = watcher.most_reserved
        outcome.suspicions = watcher.suspicions
        if outcome.most_reserved > BUDGET - MIB:
            outcome.wrong.append(f"{outcome.most_reserved:,} bytes were reserved")
        outcome.wrong += [path.read_text() for path in Path(root, "failures").iterdir()]
        if outcome.most_bytes > BUDGET:
            outcome.wrong.append(f"the folder had {outcome.most_bytes:,} bytes of {BUDGET:,}")
        left = {name for name in os.listdir("/dev/shm") if not _is_anothers(name, place)}
        if left := left - shared_before:
            outcome.wrong.append(f"left in /dev/shm: {left}")
        outcome.wrong += quiet_check(place)
    return outcome


def _semaphores(place: Place) -> str:
    """What the names of semaphores begin with that processes of this storm make."""
    return f"storm-{os.stat(place.root).st_ino}"


def _is_anothers(name: str, place: Place) -> bool:
    """Whether a file in /dev/shm is of another program: a semaphore, of a torch process that lives,
    or a folder of a test or of the doctor."""
    if name.startswith("sem."):
        return not name.startswith(f"sem.{_semaphores(place)}")
    if name.startswith(("kill-jobs-", "fuzz-", "fastio-doctor-")):  # of tests that run beside it
        return True
    kind, _, rest = name.partition("_")
    return kind == "torch" and Path("/proc", rest.partition("_")[0]).exists()


def _prepare(place: Place) -> None:
    root = Path(place.root)
    photos = pack_noise(root / "photos", ROWS)
    pack_table(root / "table", TABLE_ROWS, 64 << 10)
    reference = Reference(photos)
    for epoch in range(EPOCHS):
        np.save(root / f"crops-{epoch}.npy", reference.crops(epoch).numpy())
    fastio.pack(NoisySource(), root / "packed", codec="raw", shard_size=MIB // 4, workers=1)
    (root / "failures").mkdir()
    (root / "out").mkdir()
    place.cache.folder().close()
    for name in _FOREIGN:
        path = root / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not the cache's\n")
    (root / "beside.txt").write_text("not the cache's\n")


def _start(context: Any, place: Place, choice: random.Random) -> list[tuple[str, Any]]:
    """One or two new victims."""
    number = choice.randrange(1 << 30)
    plans: dict[str, list[tuple[Any, ...]]] = {
        "loader": [(load, (number,))],
        "rank of 2": [(load, (number, rank, 2)) for rank in range(2)],
        "table loader": [(tabulate, (number,))],
        "packer": [(pack, (choice.randrange(1 << 30),))],
        "cache command": [(command, (number,))],
    }
    name = choice.choices(list(plans), (4, 3, 2, 1, 2))[0]
    if name == "packer":  # goes on with one that was killed, if any
        left = sorted(os.listdir(Path(place.root, "out")))
        plans[name] = [(pack, (int(left[0]) if left else 0,))]
        if any("pack" in process.name for process in multiprocessing.active_children()):
            name = "loader"
    started = []
    for work, arguments in plans[name]:
        process = context.Process(
            target=_child, args=(place, work, arguments), daemon=True, name=work.__name__
        )
        process.start()
        started.append((name, process))
    return started


def _probe(context: Any, place: Place, epoch: int, outcome: Outcome) -> None:
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(place, probe, (epoch, theirs)), daemon=True)
    process.start()
    theirs.close()
    before = _cpu_seconds()
    while not mine.poll(1):
        used = sum(seconds - before.get(pid, 0.0) for pid, seconds in _cpu_seconds().items())
        if used > _HANGS_AFTER_CPU_S:
            outcome.wrong.append(f"a new loader gave no batch while {used:.0f} s of CPU were used")
            process.kill()
            process.join()
            return
    try:
        seconds, right = mine.recv()
    except EOFError:
        outcome.wrong.append("a new loader ended without a batch")
    else:
        outcome.first_batch_s.append(seconds)
        if not right:
            outcome.wrong.append("a new loader's first batch was wrong")
    process.join()
    if process.exitcode:
        outcome.wrong.append(f"a new loader ended with {process.exitcode}")


def quiet_check(place: Place) -> list[str]:
    """What is wrong with the folder when nobody works in it any more."""
    wrong = []
    root = Path(place.root)
    cache = root / "cache"
    folder = CacheFolder(cache, BUDGET)  # buries the dead
    token = folder.token
    folder.close()
    members = set(os.listdir(cache / "members")) - {"README"}
    wrong += [f"a member is left: {name}" for name in members if name.strip(".") != token]
    for name in _FOREIGN:
        if not (cache / name).exists():
            wrong.append(f"a file that is not the cache's was deleted: {name}")
    if not (root / "beside.txt").exists():
        wrong.append("a file beside the cache was deleted")
    if damaged := _damaged(place.cache):
        wrong.append(f"verify: {damaged}")
    wrong += index_faults(cache, _FOREIGN)
    return wrong


def _damaged(cache: Cache) -> list[Any]:
    """What verify finds, but for pieces that are missing.

    An eviction deletes the file and then the entry, so that the budget holds between the two.
    """
    return [piece for piece in cache.verify().damaged if "missing" not in piece.problem]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--what", choices=["loaders", *JOBS], default="loaders")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin = time.monotonic()
    outcome: Outcome | JobOutcome
    if arguments.what == "loaders":
        with tempfile.TemporaryDirectory(prefix="kill-storm-") as folder:
            outcome = storm(Path(folder), arguments.kills, arguments.seed)
    else:
        with in_memory() as root:
            job = JOBS[arguments.what]
            outcome = storm_of_jobs(job, root, arguments.kills, arguments.seed)
    print(outcome)
    print(f"took                      {time.monotonic() - begin:.0f} s")
    raise SystemExit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    from tests import kill_storm  # so that children import it by this name

    kill_storm.main()
