"""Probes that may fail or hang, and samples a second of loaders, measured in turns."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from fastio.diagnose.device import Device
from fastio.diagnose.loop import Epochs, Limit, run_loop, there_and_back
from fastio.runtime.threads import DaemonPool
from fastio.stats import Stats

if TYPE_CHECKING:
    from fastio.diagnose.probes.data import Images
    from fastio.loader import Loader


P = ParamSpec("P")
T = TypeVar("T")


class Attempts:
    """Calls probes while there is time, and notes which ones failed.

    Args:
        seconds: the time limit in seconds for all probes together.

    Attributes:
        notes: what failed or was left out, one sentence each.
    """

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self.notes: list[str] = []

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return max(0.0, self._end_s - time.monotonic())

    def __call__(
        self, what: str, probe: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Returns the result of a probe; None, with a note, if it fails or no time is left."""
        if not self.left_s:
            self.notes.append(f"{what}: skipped, because no time was left")
            return None
        try:
            return probe(*args, **kwargs)
        except Exception as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{what}: {cause}")
            return None

    def each(self, probes: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Returns the results of a table of probes by name.

        Args:
            probes: for each name, what the probe is called in notes, a function, and its arguments.
        """
        return {name: self(*probe) for name, probe in probes.items()}


def within(seconds: float, what: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns the result of a call that may hang, or raises TimeoutError and stops waiting for it.

    Args:
        seconds: how long to wait.
        what: what is waited for, for the error message.
        call: the function. It runs in a daemon thread, so the process can exit before it returns.
        args, kwargs: the arguments of the function.

    Raises:
        TimeoutError: the function did not return in time.
        Exception: whatever the function raises.
    """
    pool = DaemonPool(1, "fastio-doctor")
    done = pool.submit(call, *args, **kwargs)
    # The thread ends when the call returns, which may be after the timeout.
    pool.shutdown(wait=False)
    if not wait([done], seconds).done:
        raise TimeoutError(f"{what} did not answer within {seconds:.0f} s")
    return done.result()


# --- Rates ----------------------------------------------------------------------------------------

SECONDS = 1.5  # for each measurement, in all of its turns
TURNS = 4
_BATCHES = 3  # least batches of a turn
_PATIENCE_S = 8.0  # most time to reach them, and to warm up
_BATCH = 32
_AHEAD = 3  # batches that a loader prepares ahead
_FRESH = 12  # first batches, which do not count because their memory is newly allocated
_FRESH_S = 1.0  # most time for them: allocation matters little if batches are slow
_SHM = Path("/dev/shm")
_ROOM_BYTES = 1 << 30


@dataclass(frozen=True)
class Part:
    """The result of one turn of a measurement, or of several.

    Attributes:
        samples, seconds: the number of samples that were delivered, and the time it took.
        spent: seconds of parts of the work. For a loader: those of its threads' augmentation, and
            all busy seconds of its threads. For Python: those of each step.
    """

    samples: float
    seconds: float
    spent: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @classmethod
    def sum(cls, parts: Sequence[Part]) -> Part:
        """Returns the sum of several turns of one measurement."""
        spent = zip(*(part.spent for part in parts), strict=True)
        samples, seconds = (sum(map(attrgetter(name), parts)) for name in ("samples", "seconds"))
        return cls(samples, seconds, tuple(map(sum, spent)))


Measure = Callable[[float], Part | None]  # gets the seconds to measure for


def in_turns(
    measures: Mapping[str, Measure], attempts: Attempts, turns: int = TURNS
) -> dict[str, Part]:
    """Measures several rates in turns, so that they can be compared; see `there_and_back`.

    Args:
        measures: the measurements, by their names in notes.
        attempts: notes the measurements that fail.
        turns: the number of turns of each measurement. Together they take `SECONDS`.

    Returns:
        The sum of the turns of each measurement that succeeded.
    """
    parts: dict[str, list[Part]] = {name: [] for name in measures}
    failed = set[str]()
    for name in there_and_back(measures, turns):
        if name in failed:
            continue
        part = attempts(name, measures[name], SECONDS / turns)
        if part is None:
            failed.add(name)
        else:
            parts[name].append(part)
    return {name: Part.sum(found) for name, found in parts.items() if found}


def rates_of(parts: Mapping[str, Part]) -> dict[str, float]:
    """Returns the samples per second of each measurement."""
    return {name: part.rate for name, part in parts.items()}


def loader_part(
    loader: Loader,
    seconds: float,
    warm_samples: int = 0,
    warm_s: float = _PATIENCE_S,
    once: bool = False,
) -> Part | None:
    """Measures a loader without its start-up, and closes it. Returns None if it yields no batches.

    Args:
        loader: the loader. Its epoch is repeated if it is too short.
        seconds: how long to measure.
        warm_samples: the number of samples at the beginning that do not count: at least as many as
            the loader prepares ahead, and enough to bring the data into memory.
        warm_s: the longest time for these samples.
        once: whether to stop at the end of one epoch.
    """

    def begins(stats: Stats, spent_s: float) -> bool:
        return stats.samples > warm_samples or spent_s > warm_s

    with loader:
        limit = Limit(seconds, None, _BATCHES, _PATIENCE_S, begins)
        run = run_loop(Epochs(loader, once), Device(), limit)
    if run.begun is None or run.begun == len(run.samples):
        return None
    stats = run.stats[-1] - run.stats[run.begun]
    spent = stats.augment_s, stats.busy_s
    return Part(sum(run.samples[run.begun :]), run.stop_s - run.begin_s, spent)


def image_loader(
    images: Images,
    threads: int,
    transforms: Sequence[Any],
    batch_size: int = _BATCH,
    ahead: int = _AHEAD,
    again: bool = True,
) -> Loader:
    """Returns a loader of images, in the order of their rows, or endless (`again`)."""
    from fastio.loader import Loader  # which imports torch

    return Loader(
        images.dataset,
        batch_size=batch_size,
        sampler=_Again(images.rows) if again else images.rows,
        fields=[images.field],
        transforms={images.field: transforms},
        num_workers=threads,
        prefetch_factor=ahead,
        # A few damaged images must not end the measurement.
        on_error="replace",
    )


def images_part(
    images: Images, threads: int, transforms: Sequence[Any], seconds: float
) -> Part | None:
    """Measures a loader of images that are in memory; see `loader_part`."""
    loader = image_loader(images, threads, transforms)
    return loader_part(loader, seconds, warm_samples=_BATCH * _FRESH, warm_s=_FRESH_S)


class _Again:
    """Yields rows in random orders, often enough for any measurement."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = np.array(rows, np.int64)
        self._times = max(1, 200_000 // max(1, len(rows)))

    def __iter__(self) -> Iterator[int]:
        draws = np.random.default_rng(0)
        for _ in range(self._times):
            yield from draws.permutation(self._rows).tolist()

    def __len__(self) -> int:
        return len(self._rows) * self._times


@contextmanager
def temporary(where: str | None = None) -> Iterator[Path]:
    """Yields a new folder inside another one, which is made if necessary, and deletes it later.

    If a probe that nobody waits for still uses it, it is deleted at the interpreter's exit.
    """
    if where is not None:
        Path(where).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="fastio-doctor-", dir=where, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


def room(scratch: str | None = None) -> AbstractContextManager[Path]:
    """Returns a temporary folder in /dev/shm if there is room, else in the system's usual place.

    Args:
        scratch: the folder for temporary data that the user has chosen, or None.
    """
    # Memory is preferred, because the speed of a disk must not affect the rates of trial packs.
    if scratch is None and _SHM.is_dir() and os.access(_SHM, os.W_OK):
        scratch = str(_SHM) if shutil.disk_usage(_SHM).free > _ROOM_BYTES else None
    return temporary(scratch)
