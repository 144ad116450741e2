"""A bench from its options to `Measured`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from fastio.diagnose.bench.baseline import image_folder
from fastio.diagnose.bench.compute import Compute
from fastio.diagnose.bench.runs import Progress, Runs, packed_rate
from fastio.diagnose.bench.subject import Subject, work_folder
from fastio.diagnose.bench.synthetic import synthetic
from fastio.diagnose.bench.training import accuracies, check_val
from fastio.diagnose.costs import cold_epoch, costs
from fastio.diagnose.device import Device
from fastio.diagnose.facts import DataFacts
from fastio.diagnose.loop import Run, phase_of, stage_seconds, timeline
from fastio.diagnose.measured import (
    STAGES,
    Epoch,
    Measured,
    Memory,
    Phase,
    PhaseName,
    Settings,
    Span,
    Stage,
)
from fastio.diagnose.options import Options
from fastio.diagnose.probes.machine import CoreTimes, cores_of_others, machine_facts, peak_memory
from fastio.diagnose.probes.rates import room, temporary
from fastio.diagnose.rules import predictions
from fastio.runtime.memory import available_memory

MADE = "made"  # the value of `Options.baseline` for the photos that are made for a preset
_SYNTHETIC_ROWS = 4000
_TRIAL_SHARE = 0.04


def bench(options: Options, progress: Progress = lambda _: None) -> Measured:
    """Measures a dataset, a loader and a model, alone and together.

    Args:
        options: what is measured, and how.
        progress: called before each phase, with a description of it in a few words.

    Raises:
        OptionError: an option is not possible, or does not apply to the data.
        BenchError: the data or the machine do not allow the bench.
        FastioError: the data cannot be read.
    """
    if options.baseline and not (options.data is None and options.baseline == MADE):
        image_folder(options.baseline)
    with ExitStack() as folders:
        work = folders.enter_context(work_folder(options))
        if options.data is None and options.emulated is not None:
            progress("making photos")
            photos, packed = synthetic(options.emulated, work, _SYNTHETIC_ROWS)
            baseline = str(photos) if options.baseline == MADE else options.baseline
            options = replace(options, data=str(packed), baseline=baseline)
        progress("opening")
        subject = Subject.of(options)
        check_val(subject)
        if subject.cacheable:
            cache = folders.enter_context(temporary(options.cache or options.work))
            subject = replace(subject, cache=str(cache))
        compute, subject = Compute.of(options, subject)
        with compute.backends():
            return _measure(Runs(subject, compute, progress))


def _measure(runs: Runs) -> Measured:
    """Makes all runs, one after the other."""
    subject, compute, options = runs.subject, runs.compute, runs.subject.options
    available, began = available_memory(), CoreTimes.now()
    loader_cold = runs.cold(Device, "cold")
    with subject.open() as loader:
        runs.warm_up(loader)
        phases = [runs.alone(loader)]
        loader_warm, together_warm = runs.warm(loader)
    together_cold = runs.cold(compute.new, "together")
    pairs: tuple[tuple[PhaseName, list[Run], PhaseName, list[Run]], ...] = (
        ("loader_warm", loader_warm, "loader_cold", loader_cold),
        ("together_warm", together_warm, "together_cold", together_cold),
    )
    for warm_name, warm, cold_name, cold in pairs:
        phases.append(phase_of(warm_name, warm))
        if cold:
            phases.append(runs.settled(phase_of(cold_name, cold), cold, phases[-1]))
    curve = runs.thread_curve()
    packed = None
    if subject.data.kind == "folder":
        runs.progress("packing a part as a trial")
        with room(options.work) as folder:
            packed = packed_rate(subject, folder / "packed", options.seconds * _TRIAL_SHARE)
    phases += runs.baseline() if options.baseline else []
    others = cores_of_others(began, CoreTimes.now())
    measured = Measured(
        machine=replace(machine_facts(compute.device), others_cores=others),
        dataset=_dataset(subject.data, phases[1]),
        settings=_settings(subject, compute),
        phases=tuple(phases),
        threads=curve,
        memory=Memory(peak_memory(), available),
        notes=tuple(runs.notes + _about(subject, compute)),
        baseline=options.baseline or "",
        packed_samples_per_s=packed,
        worker_steps=runs.worker_steps() if options.baseline else (),
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
    read = warm.stats.bytes_read / max(1, warm.samples)
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
        runs: warm runs of loader and model together.
        rows: number of rows of an epoch.
    """
    samples = sum(sum(run.samples[run.first : run.last]) for run in runs)
    parts: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
    for run in runs:
        for stage, seconds in stage_seconds(run, "decode").items():
            parts[stage] += seconds * rows / samples
    return Epoch("warm", sum(parts.values()), parts)


def _timeline(measured: Measured, warm: list[Run], cold: list[Run]) -> tuple[Span, ...]:
    """Returns a few dozen steps of the longest warm and cold run."""
    found = timeline(max(warm, key=lambda run: len(run.samples)), "decode", "warm")
    if cold:
        fetches = costs(measured).waits_for(cold=True) == "fetch"
        longest = max(cold, key=lambda run: len(run.samples))
        found += timeline(longest, "fetch" if fetches else "decode", "cold")
    return found


def _fed(measured: Measured) -> float | None:
    """Returns how many emulated accelerators the loader alone could keep at their utilisation."""
    rate, now = measured.settings.accelerator_rate, costs(measured)
    slowest = max(now.prep_s, now.transform_s)
    if rate is None or not slowest:
        return None
    return 1 / slowest / (rate * measured.settings.au_target)
