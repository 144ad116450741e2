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
        stats: of a loader, or the difference of two snapshots.
        cores: that the process may use.
        model_rate: samples a second that the model takes when data is there; None: not known.
    """
    if not stats.elapsed_s:
        return ()
    return by_gain(_findings(stats, cores, stats.samples / model_rate if model_rate else None))


def _findings(stats: Stats, cores: int, model_s: float | None) -> Iterator[Finding]:
    """Yields the findings; `model_s` is the time of the model in seconds."""
    elapsed_s, least_s = stats.elapsed_s, model_s or 0.0
    busy_s = stats.read_s + stats.decode_s + stats.resample_s
    # Of remedies that leave the threads with as much to do.
    as_busy_s = max(least_s, busy_s / stats.threads if stats.threads else 0.0)
    threads_s = max(0.0, stats.wait_s - stats.fetch_s - stats.transform_s)
    if stats.path == "torch":
        yield from _one(
            "threads",
            f"samples of torch's workers ({stats.reason})",
            "let the native path take it: a path or ImageFolder with known transforms; or more "
            "num_workers",
            threads_s,
            elapsed_s,
            least_s,
            (f"{stats.wait_share:.0%} of the time is waiting in next()",),
        )
    else:
        culprit, what, advice = _threads(stats, cores)
        if culprit == "threads":
            least_s = max(least_s, elapsed_s * stats.threads / cores)
        yield from _one(culprit, what, advice, threads_s, elapsed_s, least_s, _busy(stats))
    yield from _one(
        "network",
        "bytes of the remote dataset",
        CACHE,
        stats.fetch_s,
        elapsed_s,
        as_busy_s,
        (f"{stats.bytes_fetched / 1e6:,.0f} MB fetched",),
    )
    yield from _one(
        "transform",
        "transforms written in Python (callables, collate_fn)",
        TRANSFORMS,
        stats.transform_s,
        elapsed_s,
        as_busy_s,
        (f"{stats.transform_s / max(1, stats.batches) * 1e3:,.1f} ms a batch",),
    )
    yield from _loop(stats, model_s, as_busy_s)


def _loop(stats: Stats, model_s: float | None, least_s: float) -> Iterator[Finding]:
    """Yields findings about the loop between two batches: the model and copies."""
    elapsed_s = stats.elapsed_s
    if stats.copy_s > (1 - _NOTABLE) * elapsed_s:
        yield Finding(
            "copy",
            "the copy stream is busy all the time",
            SMALLER_COPIES,
        )
    rest_s = 0.0 if model_s is None else max(0.0, stats.between_s - model_s)
    if model_s is not None and not stats.copy_s:  # else the loader copies, beside the loop
        yield from _one(
            "copy",
            "copies that the loop makes itself, or other work between two batches",
            f"{COPIES_AHEAD}; then look for what else the loop waits for (.item(), logging)",
            rest_s,
            elapsed_s,
            least_s,
            (
                f"{stats.between_s / max(1, stats.batches) * 1e3:,.1f} ms between two batches, of "
                f"which the model takes {model_s / max(1, stats.batches) * 1e3:,.1f}",
            ),
        )
    if stats.wait_share < _NOTABLE:
        loop = (
            "the model takes" if model_s else "the loop (model, and copies if it makes any) takes"
        )
        share = (stats.between_s - rest_s) / elapsed_s
        yield Finding(
            "compute",
            f"{loop} {share:.0%} of the time: training does not wait for data",
            faster_model() + ("" if model_s else "; --model-rate separates it from copies"),
        )


def _threads(stats: Stats, cores: int) -> tuple[Culprit, str, str]:
    """Yields findings about what the native threads spend their time on."""
    if 0 < stats.threads < cores:
        return (
            "threads",
            f"{stats.threads} loading threads, on {cores} cores",
            THREADS,
        )
    if stats.read_s > stats.decode_s + stats.resample_s:
        return (
            "fetch",
            "threads that wait for the disk",
            "fastio pack, a faster disk, more memory; see `fastio doctor DATA`",
        )
    return (
        "decode",
        "threads that decode",
        "fastio pack (blocks), more cores; see `fastio doctor DATA`",
    )


def _busy(stats: Stats) -> tuple[str, ...]:
    return (
        f"threads: {stats.read_s:.1f} s reading, {stats.decode_s:.1f} s decoding, "
        f"{stats.resample_s:.1f} s resizing",
    )


def _one(
    culprit: Culprit,
    what: str,
    advice: str,
    waited_s: float,
    elapsed_s: float,
    least_s: float,
    evidence: tuple[str, ...],
) -> Iterator[Finding]:
    """Yields a finding if its share of the time matters; `least_s` is the time after the remedy."""
    share = waited_s / elapsed_s
    if share >= _NOTABLE:
        after_s = max(elapsed_s - waited_s, least_s, 1e-3 * elapsed_s)
        words = f"you wait {share:.0%} of the time for {what}"
        yield Finding(culprit, words, advice, max(1.0, elapsed_s / after_s), evidence)
