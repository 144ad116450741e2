"""Probes of a store: latency of requests, and bytes per second.

Each waits for the store for a few seconds at most, even if the store sends single bytes.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import ParamSpec, TypeVar

from fastio.diagnose.device import Device
from fastio.diagnose.facts import RemoteFacts
from fastio.diagnose.loop import Epochs, Limit, run_loop
from fastio.diagnose.probes.data import Context, Images, file_system
from fastio.diagnose.probes.rates import SECONDS, image_loader, loader_part, room, within
from fastio.packed import Dataset
from fastio.sources import open as open_data
from fastio.store import Store, open_store, split
from fastio.store.ranges import parallel

P = ParamSpec("P")
T = TypeVar("T")

_ASKED = 5  # requests to measure the latency
_SMALL_BYTES = 1024
_LEAST_BYTES, _LARGE_BYTES = 64 << 10, 4 << 20  # limits of the length of a request
_REQUEST_S = 0.25  # approximate duration of the requests that measure the bandwidth
_PARALLEL = 8
_DEADLINE_S = 16.0  # for one probe
_LATE_S = 8.0  # how much longer than the time for all probes the last one may take
_SECONDS = 3.0
_LOADER_S = 8.0  # for the loader, including its start
_POLL_S = 0.05
_LEAST_FETCHED = 24 << 20  # by a loader: fewer bytes are only its first prefetching
_BUSY = 0.7  # share of the threads' time: busier threads limit the rate, not the store
_SAMPLED = 256
_PLACES = 8  # most places of a packed dataset that are sampled
_BLOCK_BYTES = 4 << 20  # fetched for one row, approximately
_SAMPLED_S = 3.0  # time to fetch the sampled rows


def remote_facts(context: Context) -> RemoteFacts:
    """Returns the facts of a store, and how fast its data is decoded."""
    attempts, cache = context.attempts, context.use.cache

    def ask(what: str, probe: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Calls a probe of the store, with a time limit."""
        call, seconds = partial(probe, *args, **kwargs), min(_DEADLINE_S, attempts.left_s + _LATE_S)
        return attempts(what, within, seconds, "the store", call)

    facts = RemoteFacts(
        "unknown",
        cache_bytes=None if cache is None else attempts("the cache", cache_room, Path(cache)),
        cache_file_system=None if cache is None else file_system(Path(cache)),
    )
    found = ask("an object to read", _object, context)
    if found is None:
        return facts
    latency = ask("latency", latency_s, *found)
    length = ask("the length of requests", request_bytes, *found) or _LEAST_BYTES
    stream = ask("one stream", stream_rate, *found, 1, length)
    many = ask("parallel streams", stream_rate, *found, _PARALLEL, length)
    best = max(stream or 0.0, many or 0.0)
    images = context.data.facts.kind in ("packed", "tars") and best > 0
    return replace(
        facts,
        backend=found[0].backend,
        latency_s=latency,
        stream_bytes_s=stream,
        parallel_bytes_s=many,
        decode_rate=ask("decoding what comes", decode_rate, context, best) if images else None,
        loader_bytes_s=ask("a loader", loader_bytes_s, context) if images else None,
    )


def cache_room(folder: Path) -> int:
    """Returns the bytes that a cache in a folder may hold: those held now and those free on its
    disk.

    Raises:
        OSError: the folder's disk does not answer.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return held + shutil.disk_usage(there).free


def latency_s(store: Store, name: str, size: int) -> float:
    """Returns the median seconds of a request for one kilobyte."""
    took = []
    for number in range(_ASKED):
        length = min(_SMALL_BYTES, size)
        began_s = time.perf_counter()
        store.read(name, min(number * length, size - length), length)
        took.append(time.perf_counter() - began_s)
    return median(took)


def request_bytes(store: Store, name: str, size: int) -> int:
    """Returns a request length that takes a fraction of a second, within the limits."""
    length = min(_LEAST_BYTES, size)
    while True:
        began_s = time.perf_counter()
        store.read(name, 0, length)
        if time.perf_counter() - began_s > _REQUEST_S or length >= min(_LARGE_BYTES, size):
            return length
        length = min(2 * length, _LARGE_BYTES, size)


def stream_rate(store: Store, name: str, size: int, streams: int, length: int) -> float:
    """Returns the bytes per second of a number of concurrent requests.

    Args:
        store, name, size: the object.
        streams: the number of concurrent requests.
        length: the bytes of each request.
    """
    length = min(length, size)
    places = max(1, size - length + 1)
    end_s = time.monotonic() + _SECONDS
    # The ranges are far apart, because a store may cache what it sent last.
    offsets = [(number * 7919 * 4096) % places for number in range(16 * streams)]

    def read(number: int, stop: threading.Event) -> int:
        """Reads a range, unless the time is up. Each stream reads at least one."""
        if number >= streams and time.monotonic() > end_s:
            return 0
        return len(store.read(name, offsets[number], length, stop=stop))

    began_s = time.perf_counter()
    done = parallel([partial(read, number) for number in range(len(offsets))], streams)
    return sum(done) / max(time.perf_counter() - began_s, 1e-9)


def loader_bytes_s(context: Context) -> float | None:
    """Returns the bytes per second that a loader fetches, from the first byte on, with prefetching.

    Returns None if the loader's threads, and not the store, limit the rate, or if too little is
    fetched for a measurement.

    Raises:
        FastioError: the data cannot be loaded.
    """
    from fastio.loader import Loader  # which imports torch

    facts, use = context.data.facts, context.use
    with Loader(
        open_data(facts.path, storage_options=use.storage_options or None),
        min(use.batch_size, max(1, facts.rows // 8)),
        True,
        transforms=context.steps.native,
        num_workers=context.cores,
        # Lets the loop see the first bytes come, before there is a whole batch: see `Epochs`.
        timeout=_POLL_S,
        seed=0,
        distributed=False,
        on_error="replace",
    ) as loader:
        # The run ends after a time, and not after a number of batches.
        limit = Limit(0.0, None, 1 << 40, _LOADER_S, lambda stats, _: stats.bytes_fetched > 0)
        run = run_loop(Epochs(loader, once=True), Device(), limit)
    if run.begun is None:
        return None
    done = run.stats[-1] - run.stats[run.begun]
    took_s = run.stop_s - run.begin_s
    if done.bytes_fetched < _LEAST_FETCHED or done.busy_s > _BUSY * context.cores * took_s:
        return None
    return done.bytes_fetched / took_s


def decode_rate(context: Context, bytes_s: float) -> float | None:
    """Returns the samples per second that a loader decodes from data that was fetched before.

    The samples are a few from each of several places of a packed dataset, because neighbours may be
    similar; of other data they are the first ones.

    Args:
        context: what is examined.
        bytes_s: bytes per second of the store.

    Raises:
        FastioError: the samples cannot be loaded.
    """
    facts, use = context.data.facts, context.use
    few = round(_SAMPLED_S * bytes_s / max(1.0, facts.sample_bytes))
    count = max(1, min(facts.rows, _SAMPLED, max(16, few)))
    # A packed dataset is fetched in blocks, so neighbouring rows cost one request.
    places = min(_PLACES, int(_SAMPLED_S * bytes_s / _BLOCK_BYTES)) if facts.packed else 1
    rows = _spread(facts.rows, count, max(1, places))
    with (
        room(use.scratch) as cache,
        open_data(facts.path, storage_options=use.storage_options or None, cache=cache) as dataset,
    ):
        images = Images(dataset, dataset.schema.image_fields[0], rows)
        for seconds in (0.0, SECONDS):  # first they are fetched
            loader = image_loader(images, context.cores, context.steps.native)
            part = loader_part(loader, seconds, warm_samples=len(rows))
    return None if part is None else part.rate


def _spread(rows: int, count: int, places: int) -> Sequence[int]:
    """Returns about `count` rows: a few neighbouring rows at each of several places."""
    run = -(-count // places)
    last = max(0, rows - run)
    begins = {place * last // max(1, places - 1) for place in range(places)}
    return sorted({row for begin in begins for row in range(begin, min(rows, begin + run))})


def _object(context: Context) -> tuple[Store, str, int]:
    """Returns a large object of the dataset: its store, name and size."""
    url, options = context.data.facts.path, context.use.storage_options
    if context.data.facts.packed:
        with Dataset(url, dict(options)) as dataset:
            name = dataset.manifest.name(0)
        store = open_store(url, options)
    else:
        folder, name = split(url)
        store = open_store(folder, options)
    return store, name, store.size(name)
