"""The runs of a bench: each phase is some passes of the loop over the same steps of an epoch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fastio.diagnose.bench.baseline import baseline_loader, image_folder
from fastio.diagnose.bench.compute import Compute
from fastio.diagnose.bench.subject import Subject
from fastio.diagnose.device import Device, resident
from fastio.diagnose.facts import StepFacts
from fastio.diagnose.loop import Limit, Resident, Run, phase_of, run_loop, there_and_back
from fastio.diagnose.measured import LEAST_STEPS, Phase, PhaseName, ThreadRate
from fastio.diagnose.probes.data import MOST_FILES, can_drop, chosen, drop
from fastio.diagnose.probes.machine import own_cpu_s
from fastio.diagnose.probes.rates import loader_part
from fastio.diagnose.probes.samples import packed_trial, pillow_part, step_facts
from fastio.loader import Loader
from fastio.runtime.cores import available_cores
from fastio.runtime.properties import cached_property

Progress = Callable[[str], None]

# The share of the allowed time that each phase takes; what is left is for opening, warming and
# packing. The time of phases that are left out goes to the others.
_SHARES = {
    "compute": 0.05,
    "cold": 0.12,
    "warm": 0.10,
    "curve": 0.10,
    "together": 0.13,
    "baseline": 0.12,
}
_USED = 0.85
_MOST_REPEATS = 40
_MOST_COLD = 5
_LEAST_STEPS = 4  # of a pass that is cut off; fewer steps give no reliable rate
_LEAST_BATCHES = 3  # of DataLoader, after the first one of each worker
_RESIDENT = 2  # batches that stay on the device, to measure the model alone
_STEPPED, _STEPPED_SHARE = 128, 0.02  # most images and time to measure a worker's steps


class Runs:
    """Makes the runs of a bench, in the order of its methods.

    Args:
        subject: the data and how it is loaded.
        compute: makes the devices that take the batches.
        progress: called before each phase, with a description of it in a few words.

    Attributes:
        notes: remarks for the report, one sentence each.
    """

    def __init__(self, subject: Subject, compute: Compute, progress: Progress) -> None:
        self.subject, self.compute, self.progress = subject, compute, progress
        self.notes: list[str] = []
        # The first of the epoch, which every pass goes over; found out by the first one.
        self._steps = subject.options.steps

    # --- Cold -------------------------------------------------------------------------------------

    @cached_property
    def _can_be_cold(self) -> bool:
        """Whether cold runs are made; a note says why not."""
        data, files = self.subject.data, self.subject.files()
        if not self.subject.options.cold or data.remote:
            return self.subject.options.cold
        if not files or not can_drop() or data.storage == "memory":
            self.notes.append("The data is in memory, so there are no cold runs")
            return False
        if len(files) >= MOST_FILES:
            self.notes.append(
                f"There are no cold runs: dropping {MOST_FILES:,} files or more from the page "
                "cache takes too long"
            )
            return False
        return True

    def cold(self, device: Callable[[], Device], share: str) -> list[Run]:
        """Runs new loaders and devices, with an empty page cache and an empty local cache.

        Args:
            device: returns a new device.
            share: which share of the time to use: "cold" for a loader alone, or "together".
        """
        if not self._can_be_cold:
            return []
        self.progress("loader alone, cold" if share == "cold" else "together, cold")
        limit = self._limit(share)
        used = 0.0
        runs: list[Run] = []
        # A short epoch is read several times, because one pass would be too short for a figure.
        while not runs or (runs[-1].whole and used < limit.seconds / 2 and len(runs) < _MOST_COLD):
            # The next loader must find neither pieces in the cache nor file contents in the page
            # cache.
            if self.subject.cache is not None:
                shutil.rmtree(self.subject.cache, ignore_errors=True)
            drop(self.subject.files())
            with self.subject.open() as loader:
                runs.append(self._pass(loader, device(), limit))
            used += runs[-1].end_s - runs[-1].marks[0]
        self._steps = self._steps or max(len(run.samples) for run in runs)
        return runs

    def settled(self, cold: Phase, runs: list[Run], warm: Phase) -> Phase:
        """Returns a cold phase as it would be in the middle of an epoch.

        A loader of data behind a URL fetches a window of blocks ahead, so that no batches come at
        first, and then many at once. The rate is therefore that of the samples fetched in the whole
        time, but at most that of the warm phase.

        Args:
            cold: the phase of the cold runs.
            runs: the cold runs.
            warm: the same phase with the data in the cache.
        """
        data = self.subject.data
        if not data.remote or all(run.whole for run in runs) or not data.nbytes:
            return cold
        seconds = sum(run.stop_s - run.marks[0] for run in runs)
        handed_over = sum(sum(run.samples) for run in runs)
        nbytes = sum(run.stats[-1].bytes_fetched for run in runs)
        fetched = nbytes / data.nbytes * data.rows
        samples = round(max(handed_over, min(fetched, seconds * warm.samples_per_s)))
        stats = replace(cold.stats, bytes_fetched=nbytes)
        return replace(cold, samples=samples, seconds=seconds, stats=stats)

    # --- Warm -------------------------------------------------------------------------------------

    def warm_up(self, loader: Loader) -> None:
        """Runs once over the steps of the other passes, so that their data is in memory."""
        self.progress("warming up")
        run = run_loop(loader, Device(), self._limit("warm"))
        self._steps = self._steps or len(run.samples)

    def alone(self, loader: Loader) -> Phase:
        """Runs the device alone, on resident batches."""
        self.progress("computing alone")
        kept = []
        loader.set_epoch(0)
        for batch in loader:
            kept.append((resident(batch, self.compute.device), loader.batch.valid))
            if len(kept) == _RESIDENT:
                break
        self.compute.warm_up(kept)
        # The first steps are left out (see `FILLING`), and at least `LEAST_STEPS` must remain.
        limit = Limit(self._seconds("compute"), None, 6)
        run = run_loop(Resident(kept), self.compute.new(resident=True), limit)
        if run.last - run.first < LEAST_STEPS:
            self.notes.append(
                "The model alone made too few steps for a comparison with the loader: use more "
                "--seconds or a smaller --batch-size"
            )
        return phase_of("compute", [run])

    def warm(self, loader: Loader) -> tuple[list[Run], list[Run]]:
        """Runs the loader alone, and with the device, in turns."""
        runs: dict[str, list[Run]] = {"warm": [], "together": []}
        devices = {"warm": Device(), "together": self.compute.new()}
        for share in there_and_back(devices):
            self.progress("loader alone, warm" if share == "warm" else "together, warm")
            runs[share] += self._passes(loader, self._seconds(share) / 2, devices[share])
        alone, together = map(_of_some_length, runs.values())
        return alone, together

    def _passes(self, loader: Loader, seconds: float, device: Device | None = None) -> list[Run]:
        """Makes passes until the time is used up."""
        until = time.perf_counter() + seconds
        runs: list[Run] = []
        while not runs or (time.perf_counter() < until and len(runs) < _MOST_REPEATS):
            limit = Limit(max(0.0, until - time.perf_counter()), self._steps)
            runs.append(self._pass(loader, device or Device(), limit))
        return runs

    # --- Other loaders ----------------------------------------------------------------------------

    def thread_curve(self) -> tuple[ThreadRate, ...]:
        """Measures the loader alone, warm, with different numbers of threads up to the cores."""
        cores = available_cores()
        counts = sorted({1, self.subject.threads, cores, *_powers_of_two(cores)})
        self.progress(f"loader alone with {', '.join(map(str, counts))} threads")
        seconds = self._seconds("curve") / len(counts) / 2
        runs: dict[int, list[Run]] = {count: [] for count in counts}
        for count in there_and_back(counts):
            with self.subject.open(threads=count, plain=True) as loader:
                # Warms up the new loader: its threads start, and its memory is touched for the
                # first time.
                run_loop(loader, Device(), Limit(seconds / 4, self._steps))
                runs[count] += self._passes(loader, seconds * 3 / 4)
        if not all(any(map(_is_long, found)) for found in runs.values()):
            self.notes.append(
                "The rates over threads were measured on few steps and are rough: use more "
                "--seconds or a smaller --batch-size"
            )
        return tuple(
            ThreadRate(count, phase_of("loader_warm", _of_some_length(found)).samples_per_s)
            for count, found in runs.items()
        )

    def baseline(self) -> list[Phase]:
        """Runs torch's DataLoader with one worker per core, alone and with the device.

        A run with too few batches for a reliable rate is left out, and a note says so.
        """
        self.progress("DataLoader")
        made: tuple[tuple[PhaseName, Device], ...] = (
            ("baseline_loader", Device()),
            # Where a model computes, the batches are delivered already.
            ("baseline_together", self.compute.new(resident=self.compute.device is not None)),
        )
        found = []
        workers = available_cores()  # which end after each run
        limit = Limit(self._seconds("baseline"), None, max(8, 4 * workers))
        for name, device in made:
            loader = baseline_loader(
                self.subject.options,
                self.subject.batch_size,
                self.compute.device,
                normalized=self.subject.normalized,
                endless=True,
            )
            # Workers that start at the same time deliver their batches at about the same time.
            run = run_loop(loader, device, limit, cpu=own_cpu_s, period=workers)
            if run.first < run.period or run.last - run.first < _LEAST_BATCHES:
                self.notes.append(
                    f"DataLoader made {len(run.samples)} x {self.subject.batch_size:,} samples in "
                    f"{run.end_s - run.marks[0]:.0f} s, too few for a figure: use more --seconds "
                    "or a smaller --batch-size"
                )
                break
            found.append(phase_of(name, [run]))
        return found

    def worker_steps(self) -> tuple[StepFacts, ...]:
        """Measures in this process what each step of a sample takes in a worker of DataLoader."""
        assert self.subject.options.baseline is not None
        paths = image_folder(self.subject.options.baseline).paths
        steps = self.subject.steps
        if steps.by_user and not steps.python:
            return ()
        files = [Path(path).read_bytes() for path in chosen(list(map(Path, paths)), _STEPPED)]
        seconds = self.subject.options.seconds * _STEPPED_SHARE
        return step_facts(steps, pillow_part(files, steps, seconds))

    def _seconds(self, share: str) -> float:
        """Returns the seconds of a phase."""
        used = {**_SHARES, "warming up": _SHARES["warm"], "cold": 0.0, "baseline": 0.0}
        if self._can_be_cold:
            used["cold"] = _SHARES["cold"] + _SHARES["together"]
        if self.subject.options.baseline:
            used["baseline"] = 2 * _SHARES["baseline"]
        return self.subject.options.seconds * _SHARES[share] * max(1.0, _USED / sum(used.values()))

    def _limit(self, share: str) -> Limit:
        return Limit(self._seconds(share), self._steps)

    def _pass(self, loader: Loader, device: Device, limit: Limit) -> Run:
        return run_loop(loader, device, limit, transforming=self.subject.transforming)


def _of_some_length(runs: list[Run]) -> list[Run]:
    """Returns the runs without those that were cut off early, unless all were."""
    return list(filter(_is_long, runs)) or runs


def _is_long(run: Run) -> bool:
    """Returns whether a run was not cut off early."""
    return run.whole or len(run.samples) > _LEAST_STEPS


def _powers_of_two(below: int) -> list[int]:
    return [2**n for n in range(below.bit_length()) if 2**n < below]


# --- Packed as a trial ----------------------------------------------------------------------------

_LEAST_IMAGES, _MOST_IMAGES = 16, 768


def packed_rate(subject: Subject, folder: Path, seconds: float) -> float | None:
    """Returns the samples per second of the loader alone on random files of a folder, packed as
    blocks.

    Args:
        subject: the data, an image folder.
        folder: folder to write the packed files to; it must not exist.
        seconds: duration of the measurement.

    Returns:
        The rate; None if there are too few JPEG files.
    """
    files = [path for path in subject.files() if path.suffix.lower() in (".jpg", ".jpeg")]
    if len(files) < _LEAST_IMAGES:
        return None
    images = [path.read_bytes() for path in chosen(files, _MOST_IMAGES)]
    trial = packed_trial(images, sum(map(len, images)), folder, "blocks")
    if trial is None:
        return None
    # As large as the subject's, so that batches go to as much memory, but a few of them.
    batch_size = max(1, min(subject.batch_size, trial.samples // 4))
    options = replace(subject.options, data=str(folder), baseline=None)
    part = replace(subject, options=options, batch_size=batch_size, cache=None)
    measured = loader_part(part.open(plain=True), seconds * 3 / 4, warm_samples=trial.samples)
    return None if measured is None else measured.rate
