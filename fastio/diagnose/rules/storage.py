"""Rules on disk, network, memory for the data, and the sizes of files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fastio.diagnose.costs import (
    cached_share,
    cold_rate,
    expected,
    network_rate,
    stays_in_memory,
)
from fastio.diagnose.facts import Facts
from fastio.diagnose.findings import CACHE, FASTER_DISK, Finding, packing
from fastio.diagnose.options import Use

_SMALL_SHARD = 4 << 20
_MANY_FILES = 20_000
_SMALL_FILE = 1 << 20
_SLOW_FIRST = 1.2  # a first epoch that is so much longer is worth a line
_SHARED = ("overlay", "fuse")


def disk(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports data that does not fit into memory and is read from disk in every epoch."""
    now, storage, data = expected(facts, use), facts.storage, facts.data
    if now is None or now.waits_for(cold=True) != "fetch" or storage is None or data is None:
        return
    warm = replace(now, fetch_s=0.0)
    where = f"a network file system ({storage.file_system})" if storage.network else "the disk"
    turning = "; it turns" if storage.rotating else ""
    evidence = [
        f"{now.samples_per_s(cold=True):,.0f} samples/s from the disk, "
        f"{warm.samples_per_s():,.0f} without it{turning}",
        f"{_gb(data.nbytes)} of data, {_gb(_available(facts))} of memory that is free",
    ]
    if storage.network:
        advice = "copy it to a local disk, or give its URL and cache= on a local disk"
    elif data.kind == "folder":
        advice = (
            f"{packing(data.path)} (few large reads), smaller with --max-side; or {FASTER_DISK}"
        )
    else:
        advice = f"Loader(order='window') for large reads; or {FASTER_DISK}"
    yield Finding(
        "network" if storage.network else "fetch",
        f"you wait for {where}: the data does not fit in memory",
        advice,
        now.gain_of(warm),
        (*evidence, "the gain assumes a disk that is never waited for"),
    )


def first_epoch(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports data that fits into memory but is not there yet."""
    now, storage, data = expected(facts, use), facts.storage, facts.data
    cold = cold_rate(facts)
    if now is None or storage is None or data is None or not cold or not data.rows:
        return
    missing = 1.0 - (storage.resident_share if storage.resident_share is not None else 0.0)
    sample_s = now.sample_s()
    if not stays_in_memory(facts) or missing < 0.2 or 1 / cold < _SLOW_FIRST * sample_s:
        return
    later_s = data.rows * sample_s
    seconds = data.rows * missing * (1 / cold - sample_s)
    yield Finding(
        "network" if storage.network else "fetch",
        f"the first epoch waits {seconds:,.0f} s for the disk; later epochs read from memory",
        "long runs need no change; for short runs (see --epochs) a faster disk or smaller data",
        1 + seconds / (use.epochs * later_s) if use.epochs else None,
        (f"{cold:,.0f} samples/s from the disk, {missing:.0%} of the data is not in memory now",),
    )


def network(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a URL without a cache, which is fetched in every epoch."""
    now, remote, data = expected(facts, use), facts.remote, facts.data
    rate = network_rate(facts)
    if remote is None or data is None or now is None or not rate or use.cache is not None:
        return
    if cached_share(facts, use) == 1.0:
        return
    cached = replace(now, fetch_s=0.0)
    yield Finding(
        "network",
        f"every epoch fetches {_gb(data.nbytes)} again: {data.rows / rate:,.0f} s at "
        f"{rate * data.sample_bytes / 1e6:,.0f} MB/s",
        CACHE,
        _over_epochs(now.gain_of(cached), use.epochs) if cached.rates() else None,
        (f"{rate:,.0f} samples/s over the network, {_latency(remote.latency_s)} a request",),
    )


def small_cache(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a cache that is too small for the data, or that is not on a local disk."""
    remote, data, now = facts.remote, facts.data, expected(facts, use)
    if remote is None or data is None or use.cache is None:
        return
    share = cached_share(facts, use)
    if share < 1.0:
        gain = now.gain_of(replace(now, fetch_s=0.0)) if now else None
        yield Finding(
            "network",
            f"the cache has room for {share:.0%} of the data: every epoch fetches the rest",
            "use a larger disk, or smaller data (fastio pack --max-side)",
            gain,
            (f"{_gb(remote.cache_bytes or 0)} for {_gb(data.nbytes)}",),
        )
    kind = remote.cache_file_system or ""
    if kind.startswith(("nfs", "cifs", "smb", *_SHARED)):
        yield Finding(
            "fetch",
            f"the cache is on {kind}, which is not a local disk",
            "use a folder on a local disk, such as NVMe",
        )


def plain_client(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests obstore for a store that it supports."""
    remote, data = facts.remote, facts.data
    schemes = ("s3://", "gs://", "az://", "http://", "https://")
    if remote is None or data is None or remote.backend != "fsspec":
        return
    if data.path.startswith(schemes):
        yield Finding(
            "network",
            "this store is read through fsspec, in Python",
            'install obstore: pip install "fastio[remote]"',
        )


def many_files(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports small files, each of which costs a look-up, an open and a read."""
    data, storage = facts.data, facts.storage
    if data is None or storage is None or data.kind != "folder" or data.files < _MANY_FILES:
        return
    if data.sample_bytes > _SMALL_FILE:
        return
    reads = storage.cold_reads_s
    yield Finding(
        "files",
        f"{data.files:,} files of {data.sample_bytes / 1e3:,.0f} kB: listing, opening and copying "
        "them takes long",
        f"{packing(data.path)}: a few large files, with checksums",
        None,
        (f"{reads:,.0f} files/s from the disk one after the other",) if reads else (),
    )


def small_shards(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports shards that are so small that their number has a cost."""
    data = facts.data
    if data is None or not data.packed or data.files < 64:
        return
    mean = data.nbytes / data.files
    if mean < _SMALL_SHARD:
        yield Finding(
            "files",
            f"{data.files:,} shards of {mean / 1e6:,.1f} MB: each is opened and mapped on its own",
            "pack again with --shard-size 64MiB",
        )


def layers(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports file systems between the data and its disk."""
    storage = facts.storage
    if storage is not None and storage.file_system.startswith(_SHARED):
        yield Finding(
            "fetch",
            f"the data is on {storage.file_system}, which is layered over another file system",
            "mount a volume for it (docker run -v), or copy it to a local disk",
        )


STORAGE_RULES = (
    disk,
    first_epoch,
    network,
    small_cache,
    plain_client,
    many_files,
    small_shards,
    layers,
)


def _over_epochs(gain: float, epochs: int | None) -> float:
    """Returns the gain over all epochs if the first epoch has none."""
    return gain if epochs is None else epochs / (1 + (epochs - 1) / gain)


def _available(facts: Facts) -> int:
    return facts.machine.available_bytes if facts.machine else 0


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.1f} MB"


def _latency(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else f"{seconds * 1e3:,.1f} ms"
