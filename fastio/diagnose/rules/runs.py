"""Findings of what ran, a bench or a loader: the bottleneck, the remedy and the expected gain.

A change is another `Costs`; its gain is the ratio of two epochs, which a bench predicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fastio.diagnose.costs import Costs, costs
from fastio.diagnose.findings import (
    CACHE,
    COPIES_AHEAD,
    FASTER_DISK,
    FEWER_OPERATIONS,
    NATIVE_AUGMENTATION,
    SMALLER_COPIES,
    THREADS,
    TRANSFORMS,
    Culprit,
    Finding,
    by_gain,
    faster_model,
    packing,
)
from fastio.diagnose.measured import Epoch, Measured, Prediction, Stage
from fastio.stats import Stats

LEAST_GAIN = 1.05  # less is within what two runs of the same differ by
_MOST_OVERHEAD = 1.25  # that an epoch may take beyond the model of it


@dataclass(frozen=True)
class Change:
    """A possible change, and the costs of a sample after it.

    Attributes:
        name: a few words, as in `Prediction.name`.
        culprit: the cause whose cost it lowers.
        advice: how to make it.
        after: the costs after it.
        evidence: the numbers behind it.
        cold: whether it is for an epoch that reads from storage.
    """

    name: str
    culprit: Culprit
    advice: str
    after: Costs
    evidence: tuple[str, ...]
    cold: bool = False


def epoch_after(measured: Measured, after: Costs, cold: bool = False) -> float:
    """Returns the predicted seconds of an epoch.

    Args:
        measured: the epoch as it is. What it took beyond the model of it, the side that it waited
            for, loader or loop, is taken to need beyond its costs in the future, too.
        after: what a sample would cost.
        cold: of an epoch that reads from storage.
    """
    now = costs(measured)
    together = measured.phase("together_warm")
    overhead = 1.0
    if together is not None and together.samples and now.sample_s() > 0:
        overhead = together.seconds / together.samples / now.sample_s()
    overhead = min(max(overhead, 1.0), _MOST_OVERHEAD)
    loader = now.waits_for() in ("decode", "augment", "fetch")
    supply_s = after.supply_s(cold) * (overhead if loader else 1.0)
    loop_s = after.loop_s * (1.0 if loader else overhead)
    return max(supply_s, loop_s, after.cpu_s) * measured.dataset.rows


def epoch_now(measured: Measured, cold: bool = False) -> float:
    """Returns the seconds of an epoch as it is: measured together, or computed from the phases."""
    phase = measured.phase("together_cold" if cold else "together_warm")
    if phase is not None and phase.samples:
        return measured.epoch_s(phase)
    return epoch_after(measured, costs(measured), cold)


def changes(measured: Measured) -> list[Change]:
    """Returns the possible changes for this dataset on this machine."""
    now = costs(measured)
    return [*_storage(measured, now), *_threads(measured, now), *_stages(measured, now)]


def _worthwhile(measured: Measured) -> Iterator[tuple[Change, float, float]]:
    """Yields the changes that gain something, with the seconds of an epoch before and after."""
    for change in changes(measured):
        before, after = epoch_now(measured, change.cold), epoch_after(measured, change.after)
        if after > 0 and before / after >= LEAST_GAIN:
            yield change, before, after


def of_runs(measured: Measured) -> tuple[Finding, ...]:
    """Returns the findings of a bench, the largest gain first.

    There is always a finding: where nothing can be gained it says what the epoch consists of.
    """
    found = []
    for change, before, after in _worthwhile(measured):
        # How much faster the model can become is not known.
        gain = None if change.culprit == "compute" else before / after
        waits_for = _waits(measured, change)
        found.append(Finding(change.culprit, waits_for, change.advice, gain, change.evidence))
    return by_gain(found) or (_nothing_to_gain(measured),)


def predictions(measured: Measured) -> tuple[Prediction, ...]:
    """Returns the epoch times now, cold and warm, and after each change, the largest gain first."""
    cold, warm = measured.phase("together_cold"), measured.phase("together_warm")
    now = [
        Prediction(f"now, {name}", measured.epoch_s(phase), measured.epoch_s(phase))
        for name, phase in (("cold", cold), ("warm", warm))
        if phase is not None
    ]
    known = None if warm is None else epoch_now(measured)
    after = [
        Prediction(change.name, epoch_s, known if change.cold else None)
        for change, _, epoch_s in _worthwhile(measured)
    ]
    return (*now, *sorted(after, key=lambda one: one.epoch_s))


def cold_epoch(warm: Epoch, epoch_s: float, wait_s: float) -> Epoch:
    """Returns a cold epoch by stage; what it takes longer than the warm one is fetching.

    As far as it was waited for: where a busy machine makes the model slower in the cold epoch, that
    is none of the disk's doing, and all of the warm epoch's parts take longer.

    Args:
        warm: the warm epoch.
        epoch_s: seconds of the cold one.
        wait_s: those of them in which the loop waited for a batch.
    """
    fetch_s = min(max(0.0, epoch_s - warm.epoch_s), wait_s)
    rest = (epoch_s - fetch_s) / warm.epoch_s if warm.epoch_s else 0.0
    stages = {stage: spent * rest for stage, spent in warm.stages.items()}
    return Epoch("cold", epoch_s, stages | {"fetch": fetch_s})


# --- Changes --------------------------------------------------------------------------------------


def _storage(measured: Measured, now: Costs) -> Iterator[Change]:
    """Yields the change to a faster disk or to a cache, where a cold epoch waits for storage."""
    cold, after = measured.phase("loader_cold"), replace(now, fetch_s=0.0)
    if now.waits_for(cold=True) != "fetch" or not now.prep_s or cold is None:
        return
    network = measured.dataset.storage == "network"
    nbytes = max(cold.stats.bytes_fetched if network else 0, cold.stats.bytes_read)
    needed_s = max(now.loop_s, now.prep_s)
    evidence = (
        f"{nbytes / cold.seconds / 1e6:,.0f} MB/s were read, "
        f"{nbytes / cold.samples / needed_s / 1e6:,.0f} are needed",
        f"cold {cold.samples_per_s:,.0f} samples/s, warm {1 / now.prep_s:,.0f}",
        f"the loop would take {1 / needed_s:,.0f} samples/s",
    )[0 if nbytes else 1 :]
    if network:
        yield Change("from a cache on this machine", "network", CACHE, after, evidence, cold=True)
        return
    advice = FASTER_DISK
    if measured.dataset.kind == "folder":
        advice = f"{packing(measured.dataset.path)} (few large reads); or {advice}"
    yield Change("in memory, or from a faster disk", "fetch", advice, after, evidence, cold=True)


def _threads(measured: Measured, now: Costs) -> Iterator[Change]:
    """Yields the change to the number of threads that was fastest."""
    curve = {point.threads: point.samples_per_s for point in measured.threads}
    rate, highest = curve.get(measured.settings.threads), max(curve.values(), default=0.0)
    # The fewest that come near the best: others of the machine's cores stay free.
    best = min((count for count in curve if curve[count] >= 0.97 * highest), default=0)
    if rate is None or not highest or curve[best] < LEAST_GAIN * rate:
        return
    yield Change(
        f"threads: {best}",
        "threads",
        THREADS if best == measured.machine.cores else f"use Loader(num_workers={best})",
        replace(now, prep_s=1 / curve[best]),
        tuple(f"num_workers={count}: {curve[count]:,.0f} samples/s" for count in sorted(curve)),
    )


def _stages(measured: Measured, now: Costs) -> Iterator[Change]:
    """Yields a change for each other stage that has a cost: format, transforms, copies, model."""
    step = f"the step takes {now.compute_s * 1e6:,.0f}"
    rate = measured.packed_samples_per_s
    if rate and now.prep_s:
        yield Change(
            "packed as blocks",
            "decode",
            packing(measured.dataset.path),
            replace(now, prep_s=1 / rate, prep_cpu_s=now.prep_cpu_s / (now.prep_s * rate)),
            (f"{1 / now.prep_s:,.0f} samples/s as it is, {rate:,.0f} of a part in a trial pack",),
        )
    if now.transform_s:
        spent = f"{now.transform_s * 1e6:,.0f} us a sample on the loop's thread; {step}"
        after = replace(now, transform_s=0.0)
        yield Change("without Python transforms", "transform", TRANSFORMS, after, (spent,))
    if now.copy_s:
        evidence = (f"{now.copy_s * 1e6:,.0f} us a sample to the device; {step}",)
        if now.blocking_copies:
            after = replace(now, blocking_copies=False)
            yield Change("copies ahead, on a stream", "copy", COPIES_AHEAD, after, evidence)
        else:
            after = replace(now, copy_s=0.0)
            yield Change("if copies took no time", "copy", SMALLER_COPIES, after, evidence)
    if now.compute_s and now.waits_for() == "compute" and now.waits_for(cold=True) != "fetch":
        after = replace(now, compute_s=0.0, compute_cpu_s=0.0)
        spent, loader_s = f"the model takes {1 / now.compute_s:,.0f} samples/s", after.sample_s()
        spent += f", the loader gives {1 / loader_s:,.0f}" if loader_s else ""
        advice = f"training does not wait for data: {_faster(measured)}"
        yield Change("if the model took no time", "compute", advice, after, (spent,))


def _faster(measured: Measured) -> str:
    """Returns what can make a model faster, in words, without what it uses already."""
    settings = measured.settings
    laid_out = settings.channels_last or not measured.dataset.codec
    return faster_model(amp=bool(settings.amp), channels_last=laid_out, compiled=settings.compile)


# --- Words ----------------------------------------------------------------------------------------

# Of each culprit: the stage that it slows down, and how it is named.
_WHAT: dict[str, tuple[Stage, str]] = {
    "fetch": ("fetch", "the disk"),
    "network": ("fetch", "the network"),
    "decode": ("decode", "threads that decode"),
    "threads": ("decode", "the loader's threads: there are too few or too many"),
    "augment": ("augment", "threads that augment images"),
    "transform": ("transform", "transforms written in Python"),
    "copy": ("copy", "copies to the device"),
    "compute": ("compute", "the model"),
}


def _waits(measured: Measured, change: Change) -> str:
    """Returns what is waited for, with its share of the epoch if it is known."""
    epoch, (stage, what) = measured.epoch("cold" if change.cold else "warm"), _WHAT[change.culprit]
    if epoch is None or not epoch.epoch_s:
        return f"an epoch waits for {what}"
    verb = "is" if stage == "compute" else "waits for"
    waited_s = epoch.stages.get(stage, 0.0)
    if change.culprit == "threads":
        waited_s += epoch.stages.get("augment", 0.0)  # by the same threads
    share = waited_s / epoch.epoch_s
    return f"{share:.0%} of {'a cold' if change.cold else 'an'} epoch {verb} {what}"


def _nothing_to_gain(measured: Measured) -> Finding:
    """Returns the finding of a bench in which no change would help."""
    now = costs(measured)
    stage = now.waits_for()
    culprit: Culprit = "compute" if stage == "fetch" else stage
    rates = {"loader": now.prep_s, "model": now.compute_s}
    evidence = (f"{name} alone: {1 / s:,.0f} samples/s" for name, s in rates.items() if s)
    images = "more cores, smaller images (`fastio pack --max-side`), smaller crops"
    others = "more cores"
    if not measured.dataset.packed:
        others += f", or {packing(measured.dataset.path)}"
    advice = {
        "augment": FEWER_OPERATIONS,
        "decode": images if measured.dataset.codec else others,
        "compute": _faster(measured),
    }.get(culprit, "no change that was measured makes the epoch shorter")
    what = f"an epoch waits for {_WHAT[culprit][1]}"
    return Finding(culprit, what, advice, None, tuple(evidence))


# --- Statistics of a loader that ran --------------------------------------------------------------

_NOTABLE = 0.03  # of the time


def diagnose_stats(
    stats: Stats, cores: int, model_rate: float | None = None
) -> tuple[Finding, ...]:
    """Returns the findings from `Loader.stats()` of some epochs, the largest gain first.

    Gains are those of waiting that would be gone as a whole, up to what the loader's threads and
    the model take at least: without `model_rate` they are upper bounds.

    Args:
        stats: the statistics of a loader, or the difference of two snapshots.
        cores: number of cores that the process may use.
        model_rate: samples per second that the model takes when data is there; None if unknown.
    """
    if not stats.elapsed_s:
        return ()
    model_s = stats.samples / model_rate if model_rate else None
    return by_gain([*_loader_waits(stats, cores, model_s), *_loop_only(stats, model_s)])


def _loader_waits(stats: Stats, cores: int, model_s: float | None) -> Iterator[Finding]:
    """Yields a finding for each part of the time that is waited for and matters."""
    elapsed_s, batches = stats.elapsed_s, max(1, stats.batches)
    # Remedies that leave the threads as much to do gain no more than they take.
    least_s = max(model_s or 0.0, stats.busy_s / stats.threads if stats.threads else 0.0)
    between_s = stats.between_s * 1e3 / batches
    copies_s = 0.0 if model_s is None or stats.copy_s else max(0.0, stats.between_s - model_s)
    culprit, what, advice, after_s = _thread_waits(stats, cores, model_s or 0.0)
    busy = (
        f"threads: {stats.read_s:.1f} s reading, {stats.decode_s:.1f} s decoding, "
        f"{stats.resample_s:.1f} s resizing, {stats.augment_s:.1f} s augmenting"
        + (f"; workers: {stats.sample_s:.1f} s in per-sample functions" if stats.sample_s else "")
        if stats.path == "native"
        else f"{stats.wait_share:.0%} of the time is waiting in next()"
    )
    # Culprit, what is waited for, remedy, seconds waited, least seconds after it, evidence.
    parts: tuple[tuple[Culprit, str, str, float, float, str], ...] = (
        (culprit, what, advice, stats.wait_s - stats.fetch_s - stats.transform_s, after_s, busy),
        (
            "network",
            "bytes of the remote dataset",
            CACHE,
            stats.fetch_s,
            least_s,
            f"{stats.bytes_fetched / 1e6:,.0f} MB fetched",
        ),
        (
            "transform",
            "transforms written in Python (callables, collate_fn)",
            TRANSFORMS,
            stats.transform_s,
            least_s,
            f"{stats.transform_s / batches * 1e3:,.1f} ms a batch",
        ),
        (
            "copy",
            "copies that the loop makes itself, or other work between two batches",
            f"{COPIES_AHEAD}; then look for what else the loop waits for (.item(), logging)",
            copies_s,
            least_s,
            f"{between_s:,.1f} ms between two batches, of which the model takes "
            f"{(model_s or 0.0) / batches * 1e3:,.1f}",
        ),
    )
    for culprit, what, advice, waited_s, floor_s, evidence in parts:
        share = waited_s / elapsed_s
        if share >= _NOTABLE:
            then_s = max(elapsed_s - waited_s, floor_s, 1e-3 * elapsed_s)
            waits_for = f"you wait {share:.0%} of the time for {what}"
            yield Finding(culprit, waits_for, advice, max(1.0, elapsed_s / then_s), (evidence,))


def _thread_waits(stats: Stats, cores: int, model_s: float) -> tuple[Culprit, str, str, float]:
    """Returns what the loader's threads are waited for: culprit, words, remedy, seconds after."""
    threads = max(1, stats.threads)
    if stats.path == "torch":
        what = f"samples of torch's workers ({stats.reason})"
        advice = (
            "let the native path take it: a path or ImageFolder with known transforms; or more "
            "num_workers"
        )
        return "threads", what, advice, model_s
    if stats.sample_s > stats.busy_s:
        what = "functions that run once per sample in Python"
        return "augment", what, NATIVE_AUGMENTATION, max(model_s, stats.busy_s / threads)
    if 0 < stats.threads < cores:
        what = f"{stats.threads} loading threads, on {cores} cores"
        return "threads", what, THREADS, max(model_s, stats.elapsed_s * stats.threads / cores)
    if stats.augment_s > stats.busy_s / 2:
        least_s = (stats.busy_s - stats.augment_s) / threads
        return "augment", "threads that augment", FEWER_OPERATIONS, max(model_s, least_s)
    if stats.read_s > stats.busy_s / 2:
        advice = "fastio pack, a faster disk, more memory; see `fastio doctor DATA`"
        return "fetch", "threads that wait for the disk", advice, model_s
    advice = "fastio pack (blocks), more cores; see `fastio doctor DATA`"
    return "decode", "threads that decode", advice, model_s


def _loop_only(stats: Stats, model_s: float | None) -> Iterator[Finding]:
    """Yields findings without a gain: a copy stream that is full, a model that is the limit."""
    if stats.copy_s > (1 - _NOTABLE) * stats.elapsed_s:
        yield Finding("copy", "the copy stream is busy all the time", SMALLER_COPIES)
    if stats.wait_share < _NOTABLE:
        own_s = stats.between_s if model_s is None else min(stats.between_s, model_s)
        loop = "the loop (model, and copies if it makes any) takes"
        yield Finding(
            "compute",
            f"{'the model takes' if model_s else loop} {own_s / stats.elapsed_s:.0%} of the time: "
            "training does not wait for data",
            faster_model() + ("" if model_s else "; --model-rate separates it from copies"),
        )
