"""A bench from its options to `Measured`: the runs, one after the other, in the time allowed."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fastio.bench.baseline import BaselineBatches, PillowFolder
from fastio.bench.device import (
    CpuModel,
    CudaModel,
    Device,
    EmulatedAccelerator,
    Nothing,
    Resident,
    TrainStep,
    resident,
)
from fastio.bench.loop import Limit, Run, phase_of, run_loop, stage_seconds, timeline
from fastio.bench.machine import machine, memory
from fastio.bench.models import load_step
from fastio.bench.options import Options
from fastio.bench.presets import PRESETS, Preset
from fastio.bench.storage import MOST_FILES, can_drop, drop
from fastio.bench.subject import LoaderBatches, Subject
from fastio.bench.synthetic import synthetic
from fastio.bench.training import accuracies
from fastio.bench.trial import packed_rate
from fastio.cores import available_cores
from fastio.device import resolve_device
from fastio.diagnose import (
    Measured,
    Phase,
    PhaseName,
    Settings,
    Split,
    ThreadRate,
    Training,
    costs,
    predictions,
)
from fastio.memory import available_memory

Progress = Callable[[str], None]

# Parts of the time allowed that a run takes; what is left is for opening, warming and packing.
_SHARES = {
    "compute": 0.05,
    "cold": 0.12,
    "warm": 0.10,
    "curve": 0.10,
    "together": 0.13,
    "baseline": 0.12,
}
_MOST_REPEATS = 40
_SYNTHETIC_ROWS = 4000
_SPLIT_NAMES = ("warm", "cold")


def bench(options: Options, progress: Progress = lambda _: None) -> Measured:
    """Measures a dataset, a loader and a model, alone and together.

    Args:
        options: what and how.
        progress: gets a few words before each run.

    Raises:
        BenchError: what was asked for is not possible.
        FastioError: the data cannot be read.
    """
    with _work_folder(options) as work:
        if options.data is None and options.emulated is not None:
            progress("making photos")
            photos, packed = synthetic(options.emulated, work, _SYNTHETIC_ROWS)
            baseline = str(photos) if options.baseline == "" else options.baseline
            options = replace(options, data=str(packed), baseline=baseline)
        return _Bench(options, work, progress).run()


@contextmanager
def _work_folder(options: Options) -> Iterator[Path]:
    if options.work is not None:
        Path(options.work).mkdir(parents=True, exist_ok=True)
        yield Path(options.work)
        return
    folder = Path(tempfile.mkdtemp(prefix="fastio-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Bench:
    """The state of one bench: what was asked for, what was found out so far."""

    options: Options
    work: Path
    progress: Progress
    notes: list[str] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)

    def run(self) -> Measured:
        available = available_memory()
        self.progress("opening")
        self.device = self._device()
        options = self.options
        subject = Subject.of(options)
        to_device = options.model is not None and not options.blocking_copies
        self.subject = subject = replace(
            subject,
            normalized=options.model is not None,
            device=self.device if to_device else None,
            cache=str(self.work / "cache") if subject.remote else None,
        )
        self.preset = self._preset()
        self.step = None if options.model is None else load_step(subject, self._on())
        self.steps = options.steps  # the first of the epoch that all runs go over
        cold_runs = self._cold_runs()
        with subject.open() as batches:
            self._warm_up(batches)
            self._alone(batches)
            self._compute(batches)
            self._together(batches)
        self._cold_together(cold_runs)
        threads = self._thread_curve()
        measured = self._measured(threads, available)
        measured = replace(measured, packed_samples_per_s=self._packed())
        return self._with_baseline(measured)

    # --- What computes ----------------------------------------------------------------------------

    def _device(self) -> torch.device | None:
        """Where a model is; None for host memory."""
        if self.options.model is None:
            return None
        name = self.options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        return resolve_device(name)

    def _on(self) -> torch.device:
        return self.device or torch.device("cpu")

    def _preset(self) -> Preset | None:
        """The accelerator that is emulated, as asked for or by the kind of data."""
        options = self.options
        if options.model is not None or (options.rate is not None and options.preset is None):
            return None
        if options.emulated is not None:
            return options.emulated
        images = bool(self.subject.schema.image_fields)
        preset = PRESETS["resnet50-h100" if images else "dlrm-b200"]
        self.notes.append(
            f"Emulated {preset.name} of MLPerf Storage, {preset.rate:,.0f} samples/s: give --model "
            "to compute, or --accelerator RATE"
        )
        return preset

    @property
    def _rate(self) -> float | None:
        """Of the emulated accelerator."""
        if self.options.model is not None:
            return None
        if self.options.rate is not None:
            return self.options.rate
        return self.preset.rate if self.preset is not None else None

    def _new_device(self, alone: bool = False) -> Device:
        """What takes the batches.

        Args:
            alone: on batches that are on the device already.
        """
        if self._rate is not None:
            bus = None if alone else self.options.bus
            return EmulatedAccelerator(self._rate, bus, self.options.blocking_copies)
        assert self.step is not None
        return _model_device(self.step, self._on(), self.options.blocking_copies and not alone)

    # --- Runs -------------------------------------------------------------------------------------

    def _limit(self, share: str) -> Limit:
        return Limit(self.options.seconds * _SHARES[share], self.steps)

    def _repeated(self, batches: LoaderBatches, device: Device, share: str) -> list[Run]:
        """Runs over the same steps until the time is used up."""
        limit = self._limit(share)
        began = time.perf_counter()
        runs: list[Run] = []
        while not runs or time.perf_counter() - began < limit.seconds:
            left = limit.seconds - (time.perf_counter() - began)
            runs.append(
                run_loop(
                    batches,
                    device,
                    replace(limit, seconds=max(left, 0.0)),
                    stats=batches.stats,
                    transforming=batches.transforming,
                )
            )
            if len(runs) == _MOST_REPEATS:
                break
        # What was cut off by the time has no filling left out of it where it is short.
        return [run for run in runs if run.whole or len(run.samples) > 4] or runs

    def _cold_runs(self) -> bool:
        """The loader alone, cold; returns whether cold runs are possible."""
        if not self.options.cold:
            return False
        files = self.subject.files()
        if not self.subject.remote:
            facts = self.subject.facts(0.0)
            if facts.storage == "memory" or not files or not can_drop():
                self.notes.append("The data is in memory, or none of its files: nothing is cold")
                return False
            if len(files) >= MOST_FILES:
                self.notes.append(
                    f"More than {MOST_FILES:,} files: cold runs left out, as dropping them from "
                    "the page cache takes long"
                )
                return False
        self.progress("loader alone, cold")
        runs = self._cold(Nothing)
        if self.steps is None:
            self.steps = max(len(run.samples) for run in runs)
        self.phases.append(phase_of("loader_cold", runs))
        return True

    def _cold(self, device: Callable[[], Device]) -> list[Run]:
        """Runs of new loaders, each with nothing of the data in memory or in the cache."""
        share = "cold" if device is Nothing else "together"
        limit = self._limit(share)
        used = 0.0
        runs: list[Run] = []
        while not runs or (runs[-1].whole and used < limit.seconds / 2 and len(runs) < 5):
            self._forget()
            with self.subject.open() as batches:
                run = run_loop(
                    batches,
                    device(),
                    limit,
                    stats=batches.stats,
                    transforming=batches.transforming,
                )
            runs.append(run)
            used += run.end_s - run.marks[0]
        return runs

    def _forget(self) -> None:
        if self.subject.cache is not None:
            shutil.rmtree(self.subject.cache, ignore_errors=True)
        drop(self.subject.files())

    def _warm_up(self, batches: LoaderBatches) -> None:
        """Reads what the other runs will, and finds out how many steps that is."""
        self.progress("warming up")
        run = run_loop(batches, Nothing(), self._limit("warm"))
        if self.steps is None:
            self.steps = len(run.samples)

    def _alone(self, batches: LoaderBatches) -> None:
        self.progress("loader alone, warm")
        self.phases.append(phase_of("loader_warm", self._repeated(batches, Nothing(), "warm")))

    def _compute(self, batches: LoaderBatches) -> None:
        self.progress("computing alone")
        kept = []
        for batch, samples in batches:
            kept.append((resident(batch, self.device), samples))
            if len(kept) == 2:
                break
        seconds = self.options.seconds * _SHARES["compute"]
        run = run_loop(Resident(kept), self._new_device(alone=True), Limit(seconds, None, 6))
        self.phases.append(phase_of("compute", [run]))

    def _together(self, batches: LoaderBatches) -> None:
        self.progress("together, warm")
        runs = self._repeated(batches, self._new_device(), "together")
        self.phases.append(phase_of("together_warm", runs))
        self.runs["warm"] = max(runs, key=lambda run: len(run.samples))
        self.splits.append(self._split("warm", runs))

    def _cold_together(self, possible: bool) -> None:
        if not possible:
            return
        self.progress("together, cold")
        runs = self._cold(self._new_device)
        self.phases.append(phase_of("together_cold", runs))
        self.runs["cold"] = runs[-1]
        self.splits.append(self._split("cold", runs))

    def _split(self, name: Any, runs: list[Run]) -> Split:
        """What an epoch's seconds go to; see `Split`."""
        samples = sum(sum(run.samples[run.first :]) for run in runs)
        parts: dict[str, float] = dict.fromkeys(("decode", "transform", "copy", "compute"), 0.0)
        for run in runs:
            for stage, seconds in stage_seconds(run, "decode").items():
                parts[stage] += seconds * self.subject.rows / samples
        fetch_s = 0.0
        if name == "cold":
            fetch_s = max(0.0, parts["decode"] - self.splits[0].decode_s)
        return Split(
            name,
            fetch_s=fetch_s,
            decode_s=parts["decode"] - fetch_s,
            transform_s=parts["transform"],
            copy_s=parts["copy"],
            compute_s=parts["compute"],
        )

    def _thread_curve(self) -> tuple[ThreadRate, ...]:
        """The loader alone, warm, over numbers of threads up to the cores."""
        cores, own = available_cores(), self.subject.threads
        counts = {1, own, cores, *(2**n for n in range(12) if 2**n < cores)}
        self.progress(f"loader alone with {', '.join(map(str, sorted(counts)))} threads")
        share = self.options.seconds * _SHARES["curve"] / len(counts)
        found = []
        for count in sorted(counts):
            with self.subject.open(threads=count, plain=True) as batches:
                limit = Limit(share / 2, self.steps)
                run_loop(batches, Nothing(), replace(limit, seconds=share / 4))
                runs = [run_loop(batches, Nothing(), limit, stats=batches.stats) for _ in range(2)]
                phase = phase_of("loader_warm", runs)
                found.append(ThreadRate(count, phase.samples_per_s))
        return tuple(found)

    def _packed(self) -> float | None:
        """The loader alone on a part of the data, packed for a try."""
        if self.subject.kind != "folder" or self.subject.codec != "jpeg":
            return None
        self.progress("packing a part for a try")
        return packed_rate(self.subject, self.work, self.options.seconds * 0.04)

    # --- Results ----------------------------------------------------------------------------------

    def _measured(self, threads: tuple[ThreadRate, ...], available: int) -> Measured:
        options, subject = self.options, self.subject
        warm = next(phase for phase in self.phases if phase.name == "loader_warm")
        order: list[PhaseName] = [
            "compute",
            "loader_warm",
            "loader_cold",
            "together_warm",
            "together_cold",
        ]
        measured = Measured(
            machine=machine(self.device),
            dataset=subject.facts(warm.bytes_read / warm.samples if warm.samples else 0.0),
            settings=Settings(
                batch_size=subject.batch_size,
                threads=subject.threads,
                transforms=subject.described(),
                model=options.model or "",
                accelerator=self.preset.name if self.preset is not None else "",
                accelerator_rate=self._rate,
                device=str(self.device or "cpu"),
                seed=options.seed,
                asynchronous=self._new_device().asynchronous,
                blocking_copies=options.blocking_copies,
                au_target=self.preset.au if self.preset is not None else 0.9,
            ),
            phases=tuple(sorted(self.phases, key=lambda phase: order.index(phase.name))),
            splits=tuple(self.splits),
            threads=threads,
            memory=memory(available),
            notes=tuple(self.notes),
            baseline=options.baseline or "",
        )
        now = costs(measured)
        spans = timeline(self.runs["warm"], "decode", "warm")
        if "cold" in self.runs:
            waiting = now.waits_for(cold=True)
            spans += timeline(
                self.runs["cold"], "fetch" if waiting == "fetch" else "decode", "cold"
            )
        fed = None
        if self._rate is not None and now.prep_s:
            supply = 1 / max(now.prep_s, now.transform_s)
            fed = supply / (self._rate * measured.settings.au_target)
        return replace(measured, timeline=spans, accelerators_fed=fed)

    def _with_baseline(self, measured: Measured) -> Measured:
        """With torch's DataLoader beside it, trained epochs, and the predictions."""
        phases = measured.phases
        if self.options.baseline:
            phases += self._baseline(self.options.baseline)
        trainings: tuple[Training, ...] = ()
        if self.options.epochs:
            self.progress("training")
            trainings = accuracies(self.subject, self._on())
        measured = replace(measured, phases=phases, trainings=trainings)
        return replace(measured, predictions=predictions(measured))

    def _baseline(self, folder: str) -> tuple[Phase, ...]:
        self.progress("DataLoader")
        subject, seconds = self.subject, self.options.seconds * _SHARES["baseline"]
        batches = BaselineBatches(
            PillowFolder(folder, self.options.size, subject.normalized),
            subject.batch_size,
            available_cores(),
            self.options.transforms,
            pin_memory=subject.device is not None and subject.device.type == "cuda",
        )
        run_loop(batches, Nothing(), Limit(seconds / 4, None, 2))
        alone = run_loop(batches, Nothing(), Limit(seconds))
        device: Device = self._new_device()
        if subject.device is not None and subject.device.type == "cuda":
            assert self.step is not None
            device = CudaModel(self.step, subject.device, blocking=True)
        together = run_loop(batches, device, Limit(seconds))
        return (
            phase_of("baseline_loader", [alone]),
            phase_of("baseline_together", [together]),
        )


def _model_device(step: TrainStep, device: torch.device, blocking: bool) -> Device:
    return CudaModel(step, device, blocking) if device.type == "cuda" else CpuModel(step)
