"""Rules on the statistics of a loader that ran: what its epochs waited for."""

from __future__ import annotations

from collections.abc import Iterator

from fastio.diagnose.findings import (
    CACHE,
    COPIES_AHEAD,
    SMALLER_COPIES,
    THREADS,
    TRANSFORMS,
    Culprit,
    Finding,
    by_gain,
    faster_model,
)
from fastio.stats import Stats

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
    return by_gain([*_waits(stats, cores, model_s), *_loop(stats, model_s)])


def _waits(stats: Stats, cores: int, model_s: float | None) -> Iterator[Finding]:
    """Yields a finding for each part of the time that is waited for and matters."""
    elapsed_s, batches = stats.elapsed_s, max(1, stats.batches)
    busy_s = stats.read_s + stats.decode_s + stats.resample_s
    # Remedies that leave the threads as much to do gain no more than they take.
    least_s = max(model_s or 0.0, busy_s / stats.threads if stats.threads else 0.0)
    between_s = stats.between_s * 1e3 / batches
    copies_s = 0.0 if model_s is None or stats.copy_s else max(0.0, stats.between_s - model_s)
    culprit, what, advice, after_s = _threads(stats, cores, model_s or 0.0)
    busy = (
        f"threads: {stats.read_s:.1f} s reading, {stats.decode_s:.1f} s decoding, "
        f"{stats.resample_s:.1f} s resizing"
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


def _threads(stats: Stats, cores: int, model_s: float) -> tuple[Culprit, str, str, float]:
    """Returns what the loader's threads are waited for: culprit, words, remedy, seconds after."""
    if stats.path == "torch":
        what = f"samples of torch's workers ({stats.reason})"
        advice = (
            "let the native path take it: a path or ImageFolder with known transforms; or more "
            "num_workers"
        )
        return "threads", what, advice, model_s
    if 0 < stats.threads < cores:
        what = f"{stats.threads} loading threads, on {cores} cores"
        return "threads", what, THREADS, max(model_s, stats.elapsed_s * stats.threads / cores)
    if stats.read_s > stats.decode_s + stats.resample_s:
        advice = "fastio pack, a faster disk, more memory; see `fastio doctor DATA`"
        return "fetch", "threads that wait for the disk", advice, model_s
    advice = "fastio pack (blocks), more cores; see `fastio doctor DATA`"
    return "decode", "threads that decode", advice, model_s


def _loop(stats: Stats, model_s: float | None) -> Iterator[Finding]:
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
