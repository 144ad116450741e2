"""Rules of what an epoch waits for, stage by stage. Doctor, bench and statistics ask all of them.

A case without the measurement that a rule needs raises Unknown, and the rule does not apply.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastio.diagnose.cases import Case, known
from fastio.diagnose.costs import Costs
from fastio.diagnose.findings import COPIES_AHEAD, Culprit, packing
from fastio.diagnose.rules.rule import Rule
from fastio.diagnose.thresholds import LEAST_GAIN, NEAR_THE_BEST

# --- Storage --------------------------------------------------------------------------------------

_FASTER_DISK = "put the data on a faster disk, or have as much memory as data"


def in_memory(case: Case) -> Costs:
    """Returns the costs of a sample whose bytes are in memory."""
    return replace(case.now, fetch_s=0.0)


def _rates_of_storage(case: Case) -> dict[str, Any]:
    """Returns the rates with and without waiting for storage; None if they are not known."""
    now, data = case.now, case.facts.data
    cold = 1 / now.fetch_s if now.fetch_s else None
    warm = in_memory(case).samples_per_s() or None
    nbytes = data.sample_bytes if data is not None else 0.0
    return {
        "cold": cold,
        "warm": warm,
        "read": cold * nbytes / 1e6 if cold and nbytes else None,
        "needed": warm * nbytes / 1e6 if warm and nbytes else None,
    }


_RATES_OF_STORAGE = (
    "{cold:,.0f} samples/s from storage, {warm:,.0f} without waiting for it",
    "{read:,.0f} MB/s were read, {needed:,.0f} are needed",
)


def _network(case: Case) -> dict[str, Any] | None:
    """Returns the values of data that is fetched from a store, in every epoch."""
    if not case.is_slow("network"):
        return None
    found, epochs = _rates_of_storage(case), case.use.epochs
    if epochs is not None:  # of which the first one fetches the data in any case
        found["gain"] = epochs / (1 + (epochs - 1) / case.gain(in_memory(case), "network"))
    latency = case.facts.remote.latency_s if case.facts.remote else None
    found["request"] = "" if latency is None else f", and a request takes {latency * 1e3:,.1f} ms"
    return found


def disk_or_network(case: Case) -> Culprit:
    """Returns whether files lie on a disk or on a file system of the network."""
    storage = case.facts.storage
    return "network" if storage is not None and storage.network else "fetch"


def _disk(case: Case) -> dict[str, Any] | None:
    """Returns the values of data that is read from a disk, or a file system of the network."""
    if not case.is_slow("fetch"):
        return None
    storage, data = case.facts.storage, case.facts.data
    where, advice = "the disk", f"Loader(order='window') for large reads; or {_FASTER_DISK}"
    if storage is not None and storage.network:
        where = f"a network file system ({storage.file_system})"
        advice = "copy it to a local disk, or give its URL and cache= on a local disk"
    elif data is None or data.kind == "folder":
        pack = packing(None) if data is None else case.how_to_pack()
        advice = f"{pack} (few large reads), smaller with --max-side; or {_FASTER_DISK}"
    turning = ", which turns" if storage is not None and storage.rotating else ""
    machine = case.facts.machine
    free = machine.available_bytes if machine is not None else 0
    values = {"where": where + turning, "advice": advice, "free": free or None}
    return _rates_of_storage(case) | values


# --- Threads --------------------------------------------------------------------------------------


def _threads(case: Case) -> dict[str, Any] | None:
    """Returns the fewest threads that come near the best rate; None if the loader has so many."""
    rates = {count: rate for count, rate in case.rates_by_threads.items() if rate}
    if case.threads not in rates:
        return None
    best = min(n for n, rate in rates.items() if rate >= NEAR_THE_BEST * max(rates.values()))
    if best == case.threads:
        return None
    counts = ", ".join(f"{rates[count]:,.0f} with {count}" for count in sorted(rates))
    return {
        "best": best,
        "advice": "Loader(num_workers=0) uses all cores"
        if best == case.machine.cores
        else f"use Loader(num_workers={best})",
        "rates": None if case.stats else f"samples/s by num_workers: {counts}",
    }


def _best_threads(case: Case) -> Costs:
    rates = case.rates_by_threads
    return replace(case.now, prep_s=1 / rates[(_threads(case) or {})["best"]])


def _workers(case: Case) -> dict[str, Any] | None:
    """Returns why torch's workers read the samples, if they do."""
    stats = known(case.stats)
    slow = stats.path == "torch" and case.is_slow("threads")
    return {"why": stats.reason} if slow else None


# --- Decoding and augmentation --------------------------------------------------------------------

_CODECS = {
    "blocks": "--codec blocks is lossless",
    "raw": "--codec raw keeps pixels as they are",
    "": "rows are shuffled one by one",
}


def _packing(case: Case) -> dict[str, Any] | None:
    """Returns the values for packing the data as it is."""
    trial, images = case.trial, case.facts.images
    if not case.now.prep_s:
        return None
    decoded, noun = "", case.data.noun
    if images is not None:
        (only, *more) = list(images.formats) or ["image"]
        decoded, noun = " images" if more else f" {only}s", "images"
    elif case.facts.tables is not None:
        decoded, noun = " Parquet", "rows"  # no other tables are packed in a trial
    waits = {"augment": "threads that decode and augment images", "fetch": "the disk"}
    return {
        "what": waits.get(case.limit, f"threads that decode{decoded}"),
        "pack": case.how_to_pack("" if trial.codec != "raw" else " --codec raw"),
        "noun": noun,
        "of": f" of {trial.samples:,}" if trial.samples else "",
        "size": trial.bytes_share,
        "codec": _CODECS[trial.codec],
    }


def _decoding(case: Case) -> dict[str, Any] | None:
    """Returns what makes decoding cheaper where no trial shows it."""
    if not case.is_slow("decode"):
        return None
    data = case.facts.data
    ways = []
    # Packing does not help tokens, which are read as they are stored in any case.
    if data is None or not (data.packed or data.kind == "tokens"):
        ways.append(packing(None if data is None else data.path))
    if data is None or data.codec:
        ways.append("smaller images (`fastio pack --max-side`), or smaller crops")
    return {"advice": "; or ".join([*ways, "more cores"])}


def _in_python(case: Case) -> bool:
    """Returns whether functions that run once per sample are what takes longest."""
    return case.stats is not None and case.stats.sample_s > case.stats.busy_s


def _threads_need(case: Case, prep_s: float) -> Costs:
    """Returns the costs with other ones of threads, for a loader that ran: its waiting is known."""
    known(case.stats)
    return replace(case.now, prep_s=prep_s)


# --- Copies and the model -------------------------------------------------------------------------


def _model(case: Case) -> dict[str, Any] | None:
    """Returns the values of a model that is slower than everything before it."""
    now = case.now
    # If a cold epoch is longer, it waits for storage, which another rule reports.
    if case.limit != "compute" or now.sample_s(cold=True) > LEAST_GAIN * now.sample_s():
        return None
    share, alone = case.model_share, replace(now, compute_s=0.0, compute_cpu_s=0.0)
    return {
        "takes": "" if share is None else f": the model takes {share:.0%} of an epoch",
        "model": 1 / now.compute_s if now.compute_s else None,
        "loader": alone.samples_per_s(cold=True) or None,
        "counted": None if now.compute_s else "all that the loop does between two batches",
    }


def _copies(case: Case) -> bool:
    """Returns whether copies on a stream of their own take as long as everything else."""
    now = case.now
    return not now.blocking_copies and now.copy_s * case.rate * LEAST_GAIN > 1


# What is waited for comes before what might be better, where no gain tells them apart.
MODEL_RULE = Rule(
    "compute",
    _model,
    "training does not wait for data{takes}",
    "{model_advice}",
    (
        "{model:,.0f} samples/s by the model, {loader:,.0f} by the loader",
        "{counted} counts as the model; --model-rate separates copies and logging from it",
    ),
    after=lambda c: replace(c.now, compute_s=0.0, compute_cpu_s=0.0),
    change="if the model took no time",
)

STAGE_RULES = (
    Rule(
        "network",
        _network,
        "{waits} the network",
        "keep the data on this machine: Loader(cache=FOLDER) with a folder on a local disk; "
        "`fastio cache warm` fetches all of it before the first epoch",
        (
            *_RATES_OF_STORAGE,
            "{stats.bytes_fetched:size} were fetched",
            "without a cache every epoch fetches {data.nbytes:size}{request}",
        ),
        after=in_memory,
        change="from a cache on this machine",
    ),
    Rule(
        disk_or_network,
        _disk,
        "{waits} {where}",
        "{advice}",
        (
            *_RATES_OF_STORAGE,
            "{data.nbytes:size} of data, {free:size} of memory that is free",
            "{busy}",
            "the gain assumes storage that is never waited for",
        ),
        after=in_memory,
        change="in memory, or from a faster disk",
    ),
    Rule(
        "threads",
        _threads,
        "{waits} {threads:threads} of the loader, on {machine.cores:cores}",
        "{advice}",
        ("{rates}", "{busy}"),
        after=_best_threads,
        change="threads: {best}",
    ),
    Rule(
        lambda c: "files" if c.limit == "fetch" else "decode",
        _packing,
        "{waits} {what}",
        "{pack}",
        (
            "{trial.rate:,.0f} {noun}/s in a trial pack{of}, {trial.before_rate:,.0f} as they are",
            "{size:.2f} x the size; {codec}",
        ),
        after=lambda c: c.packed(c.trial),
        change="packed as blocks",
    ),
    Rule(
        "transform",
        lambda c: c.now.transform_s,
        "{waits} transforms written in Python (callables, collate_fn)",
        "replace them by fastio's transforms, run them on the device (Loader(device=)) or on whole "
        "batches, or apply them once, before packing",
        ("{now.transform_s:seconds} a sample on the thread of the training loop",),
        after=lambda c: replace(c.now, transform_s=0.0),
        change="without Python transforms",
    ),
    Rule(
        "copy",
        lambda c: c.now.blocking_copies and c.now.copy_s,
        "{waits} copies that the loop makes itself, or other work between two batches",
        COPIES_AHEAD + "; then look for what else the loop waits for (.item(), logging)",
        ("{now.copy_s:seconds} a sample besides the model",),
        after=lambda c: replace(c.now, blocking_copies=False),
        change="copies ahead, on a stream",
    ),
    Rule(
        "copy",
        _copies,
        "{waits} copies to the device",
        "copy fewer bytes: smaller crops, or uint8 (Normalize runs on the device)",
        ("{now.copy_s:seconds} a sample on the stream that copies",),
        after=lambda c: replace(c.now, copy_s=0.0),
        change="if copies took no time",
    ),
    Rule(
        "threads",
        _workers,
        "{waits} samples of torch's workers ({why})",
        "use what the native path reads: a path or ImageFolder with known transforms; or more "
        "num_workers",
        after=lambda c: c.now,
    ),
    Rule(
        "augment",
        lambda c: _in_python(c) and c.is_slow("augment"),
        "{waits} functions that run once per sample in Python",
        "replace them by fastio's transforms, which have the names of torchvision's (ColorJitter, "
        "RandAugment, ...) and run in native threads; loader.stats().transforms says what runs "
        "where",
        ("{busy}",),
        after=lambda c: c.now,
    ),
)

# Of a stage for which no measurement shows what would make it faster. Without a gain they are
# reported only if nothing else has one.
LIMIT_RULES = (
    Rule(
        "augment",
        lambda c: c.is_slow("augment") and not _in_python(c),
        "{waits} threads that augment images",
        "more cores, or fewer and cheaper operations on pixels, or smaller crops",
        ("{busy}",),
        after=lambda c: _threads_need(c, c.now.prep_s - c.now.augment_s),
    ),
    Rule(
        "decode",
        _decoding,
        "{waits} threads that decode",
        "{advice}",
        ("{busy}",),
        after=lambda c: _threads_need(c, 0.0),
    ),
)
