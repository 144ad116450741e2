"""A bench from its options to `Measured`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from fastio.diagnose.bench.baseline import image_folder
from fastio.diagnose.bench.compute import Compute
from fastio.diagnose.bench.runs import Progress, Runs, packed_rate
from fastio.diagnose.bench.subject import Subject
from fastio.diagnose.bench.synthetic import synthetic
from fastio.diagnose.bench.training import accuracies, check_val
from fastio.diagnose.costs import costs
from fastio.diagnose.facts import DataFacts
from fastio.diagnose.loop import Run, phase_of, stage_seconds, timeline
from fastio.diagnose.measured import STAGES, Epoch, Measured, Memory, Phase, Settings, Span, Stage
from fastio.diagnose.options import Options
from fastio.diagnose.probes.machine import CoreTimes, cores_of_others, machine_facts, peak_memory
from fastio.diagnose.rules.runs import cold_epoch, predictions
from fastio.runtime.memory import available_memory

MADE = "made"  # as a baseline: the photos that were made for a preset
_SYNTHETIC_ROWS = 4000
_TRIAL_SHARE = 0.04


def bench(options: Options, progress: Progress = lambda _: None) -> Measured:
    """Measures a dataset, a loader and a model, alone and together.

    Args:
        options: what and how.
        progress: gets a few words before each phase.

    Raises:
        BenchError: what was asked for is not possible.
        FastioError: the data cannot be read.
    """
    if options.baseline and not (options.data is None and options.baseline == MADE):
        image_folder(options.baseline)
    with ExitStack() as folders:
        work = Path(options.work or folders.enter_context(_temporary(None)))
        if options.data is None and options.emulated is not None:
            progress("making photos")
            work.mkdir(parents=True, exist_ok=True)
            photos, packed = synthetic(options.emulated, work, _SYNTHETIC_ROWS)
            baseline = str(photos) if options.baseline == MADE else options.baseline
            options = replace(options, data=str(packed), baseline=baseline)
        progress("opening")
        subject = Subject.of(options)
        check_val(subject)
        if subject.cacheable:
            cache = folders.enter_context(_temporary(options.cache or options.work))
            subject = replace(subject, cache=cache)
        compute, subject = Compute.of(options, subject)
        with compute.backends():
            runs = Runs(subject, compute, options.seconds, options.steps, progress)
            return _measure(runs)


@contextmanager
def _temporary(where: str | None) -> Iterator[str]:
    """Returns a new temporary folder inside another, which is made if necessary."""
    if where is not None:
        Path(where).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="fastio-bench-", dir=where, ignore_cleanup_errors=True
    ) as folder:
        yield folder


def _measure(runs: Runs) -> Measured:
    """Makes all runs, one after the other."""
    subject, compute, options = runs.subject, runs.compute, runs.subject.options
    available, began = available_memory(), CoreTimes.now()
    cold = runs.can_be_cold()
    loader_cold = runs.loader_cold() if cold else []
    with subject.open() as loader:
        runs.warm_up(loader)
        alone = runs.alone(loader)
        warm, together_warm = runs.warm(loader)
    loader_warm = phase_of("loader_warm", warm)
    together_cold = runs.together_cold() if cold else []
    phases = [alone, loader_warm]
    if cold:
        phases.append(runs.settled(phase_of("loader_cold", loader_cold), loader_cold, loader_warm))
    together = phase_of("together_warm", together_warm)
    phases.append(together)
    if cold:
        first = phase_of("together_cold", together_cold)
        phases.append(runs.settled(first, together_cold, together))
    curve = runs.thread_curve()
    packed = None
    if subject.data.kind == "folder":
        runs.progress("packing a part as a trial")
        with _temporary(options.work) as folder:
            seconds = options.seconds * _TRIAL_SHARE
            packed = packed_rate(subject, Path(folder) / "packed", seconds)
    phases += runs.baseline() if options.baseline else []
    others = cores_of_others(began, CoreTimes.now())
    measured = Measured(
        machine=replace(machine_facts(compute.device), others_cores=others),
        dataset=_dataset(subject.data, loader_warm),
        settings=_settings(subject, compute),
        phases=tuple(phases),
        threads=curve,
        memory=Memory(peak_memory(), available),
        notes=tuple(runs.notes + _about(subject, compute)),
        baseline=options.baseline or "",
        packed_samples_per_s=packed,
    )
    measured = replace(
        measured,
        epochs=_epochs(measured, together_warm),
        timeline=_timeline(measured, together_warm, together_cold),
        accelerators_fed=_fed(measured),
    )
    if options.epochs:
        runs.progress("training")
        device = compute.device
        assert device is not None
        measured = replace(measured, trainings=accuracies(subject, device))
    return replace(measured, predictions=predictions(measured))


def _dataset(data: DataFacts, warm: Phase) -> DataFacts:
    """Returns the facts of the data with the bytes that were read for a sample."""
    read = warm.bytes_read / max(1, warm.samples)
    return replace(data, read_bytes=read, nbytes=data.nbytes or round(read * data.rows))


def _settings(subject: Subject, compute: Compute) -> Settings:
    return Settings(
        batch_size=subject.batch_size,
        threads=subject.threads,
        transforms=subject.described(),
        model=subject.options.model or "",
        accelerator="" if compute.preset is None else compute.preset.name,
        accelerator_rate=compute.rate,
        device=str(compute.device or "cpu"),
        seed=subject.options.seed,
        asynchronous=compute.asynchronous,
        blocking_copies=subject.options.blocking_copies,
        au_target=compute.au_target,
        amp=subject.options.amp or "",
        compile=subject.options.compile,
        channels_last=subject.options.channels_last,
    )


def _about(subject: Subject, compute: Compute) -> list[str]:
    """Returns notes on the options that were used and on those that were not."""
    options = subject.options
    found = []
    if compute.preset is not None and options.preset is None:
        found.append(
            f"The accelerator {compute.preset.name} of MLPerf Storage is emulated; these are not "
            "official MLPerf results. --model trains a model instead; --accelerator or --preset "
            "emulate another accelerator"
        )
    if subject.data.remote and not options.cache:
        found.append(
            "Warm runs read from a temporary cache on this machine; without Loader(cache=) every "
            "epoch is as slow as the cold one"
            if subject.cache is not None
            else "These files are fetched again in every epoch: warm runs are as slow as cold ones"
        )
    if options.epochs and options.val is None:
        found.append("Accuracy was measured on the training images; use --val for others")
    return found


def _epochs(measured: Measured, warm: list[Run]) -> tuple[Epoch, ...]:
    found = warm_epoch(warm, measured.dataset.rows)
    cold = measured.phase("together_cold")
    if cold is None:
        return (found,)
    epoch_s = measured.epoch_s(cold)
    return found, cold_epoch(found, epoch_s, epoch_s * (cold.wait_share or 0.0))


def warm_epoch(runs: list[Run], rows: int) -> Epoch:
    """Returns a warm epoch by stage, from the runs of loader and model together.

    Args:
        runs: warm ones.
        rows: of an epoch.
    """
    samples = sum(sum(run.samples[run.first : run.last]) for run in runs)
    parts: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
    for run in runs:
        for stage, seconds in stage_seconds(run, "decode").items():
            parts[stage] += seconds * rows / samples
    return Epoch("warm", sum(parts.values()), parts)


def _timeline(measured: Measured, warm: list[Run], cold: list[Run]) -> tuple[Span, ...]:
    """Returns a few dozen steps of the longest warm and cold run."""
    found = timeline(max(warm, key=_steps), "decode", "warm")
    if cold:
        waits_for = costs(measured).waits_for(cold=True)
        found += timeline(
            max(cold, key=_steps), "fetch" if waits_for == "fetch" else "decode", "cold"
        )
    return found


def _steps(run: Run) -> int:
    return len(run.samples)


def _fed(measured: Measured) -> float | None:
    """Returns how many emulated accelerators the loader alone could keep at their utilisation."""
    rate, now = measured.settings.accelerator_rate, costs(measured)
    slowest = max(now.prep_s, now.transform_s)
    if rate is None or not slowest:
        return None
    return 1 / slowest / (rate * measured.settings.au_target)
