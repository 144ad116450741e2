"""Probes of a store: how long a request takes, how many bytes come a second."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from fastio.bench.storage import file_system
from fastio.dataset.remote import RemoteDataset
from fastio.doctor.attempt import Attempts
from fastio.doctor.data import Data
from fastio.doctor.facts import RemoteFacts
from fastio.doctor.rates import image_loader, loader_run
from fastio.doctor.use import Use
from fastio.store import Store, open_store, split

_ASKED = 5  # requests for the latency
_SMALL_BYTES = 1024
_LARGE_BYTES = 4 << 20
_PARALLEL = 8
_DEADLINE_S = 10.0
_SECONDS = 3.0
_SAMPLED = 256


def remote_facts(data: Data, use: Use, threads: int, attempts: Attempts) -> RemoteFacts:
    """How a store answers, and how fast what it sends is decoded.

    Args:
        data: behind a URL.
        use: how it is loaded.
        threads: that a loader is measured with.
        attempts: notes what cannot be measured.
    """
    options = use.storage_options
    room = None if use.cache is None else attempts("the cache", cache_room, Path(use.cache))
    kept = None if use.cache is None else file_system(Path(use.cache))
    found = attempts("an object to read", _object, data, options)
    if found is None:
        return RemoteFacts("unknown", cache_bytes=room, cache_file_system=kept)
    store, name, size = found
    decode = None
    if data.facts.kind in ("packed", "tars"):
        decode = attempts("decoding what comes", decode_rate, data, use, threads)
    return RemoteFacts(
        store.backend,
        attempts("latency", latency_s, store, name, size),
        attempts("one stream", stream_rate, store, name, size, 1),
        attempts("parallel streams", stream_rate, store, name, size, _PARALLEL),
        decode,
        room,
        kept,
    )


def cache_room(folder: Path) -> int:
    """Bytes that a cache in a folder may hold: those that it holds, and those that are free.

    Raises:
        OSError: the folder's disk does not answer.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    about = os.statvfs(there)
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return held + about.f_bavail * about.f_frsize


def latency_s(store: Store, name: str, size: int) -> float:
    """Seconds of a request for a kilobyte, median."""
    took = []
    for number in range(_ASKED):
        length = min(_SMALL_BYTES, size)
        began_s = time.perf_counter()
        store.read(name, min(number * length, size - length), length)
        took.append(time.perf_counter() - began_s)
    return median(took)


def stream_rate(store: Store, name: str, size: int, streams: int) -> float:
    """Bytes a second of so many requests at a time, some megabytes each."""
    length = min(_LARGE_BYTES, size)
    places = max(1, size - length + 1)
    end_s = time.monotonic() + _SECONDS
    # Ranges apart from each other: a store may keep what it sent last.
    offsets = [(number * 7919 * 4096) % places for number in range(4 * streams)]

    def read(number: int) -> int:
        """Each stream reads once, however late it begins."""
        if number >= streams and time.monotonic() > end_s:
            return 0
        return len(store.read(name, offsets[number], length))

    began_s = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        done = sum(pool.map(read, range(len(offsets))))
    return done / max(time.perf_counter() - began_s, 1e-9)


def decode_rate(data: Data, use: Use, threads: int) -> float | None:
    """Samples a second that the threads manage when bytes are there, by what they were busy."""
    dataset = RemoteDataset(data.facts.path, dict(use.storage_options))
    with dataset:
        field = dataset.schema.image_fields[0]
        rows = min(len(dataset), _SAMPLED)
        loader = image_loader(dataset, field, rows, threads, use.crop)
        _, stats = loader_run(loader, _SECONDS)
    busy_s = stats.decode_s + stats.resample_s
    return stats.images_decoded / busy_s * threads if busy_s and stats.images_decoded else None


def _object(data: Data, options: Mapping[str, Any]) -> tuple[Store, str, int]:
    """A large object of the dataset: its store, name and size."""
    url = data.facts.path
    if data.facts.packed:
        with RemoteDataset(url, dict(options)) as dataset:
            name = dataset.manifest.name(0)
        store = open_store(url, options, deadline_s=_DEADLINE_S)
    else:
        folder, name = split(url)
        store = open_store(folder, options, deadline_s=_DEADLINE_S)
    return store, name, store.size(name)
