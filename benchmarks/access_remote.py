"""The parts of benchmarks/access.py that go over a network, which is this machine's loopback.

Servers and the proxy that slows them down are those of the tests (tests/servers.py), processes of
their own; nginx serves where it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import console, new_table
from numpy.typing import NDArray

import fastio
from fastio.stage import warm

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.servers import FaultProxy, http_folder

SIDE = 256  # pixels: raw images of 196,608 bytes
LATENCY_S = 0.03
BANDWIDTH = 200e6  # bytes/s
SMALL = [fastio.Resize((32, 32))]
BUDGETS = 0.25, 0.5, 0.75
EPOCHS = 4


def raw_dataset(folder: Path, megabytes: int) -> Path:
    """A packed dataset of raw images, so that decoding is not what takes time."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (16, SIDE, SIDE, 3), np.uint8)

    def samples() -> Iterator[dict[str, Any]]:
        for index in range(megabytes * 10**6 // (SIDE * SIDE * 3)):
            picture = pictures[index % 16].copy()
            picture[0, :8] = rng.integers(0, 256, (8, 3))
            yield {"image": picture, "label": index % 10}

    fastio.pack(samples(), folder, codec="raw")
    return folder


def nbytes(dataset: Path) -> int:
    """Bytes of a packed dataset's shards."""
    with fastio.open(dataset) as opened:
        assert isinstance(opened, fastio.Dataset)
        return opened.manifest.nbytes


# --- http: as fast as plain requests? -------------------------------------------------------------


def http_part(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """From HTTP to checked pieces on the disk, against obstore's plain get of the same shards."""
    dataset = raw_dataset(work / "packed", arguments.megabytes or 1500)
    total = nbytes(dataset)
    names = sorted(path.name for path in dataset.glob("shard-*"))
    found: dict[str, list[tuple[float, float]]] = {}
    with http_folder(dataset) as url:
        for _ in range(arguments.rounds):
            contenders: dict[str, Callable[[], None]] = {
                "obstore get, one after the other": partial(plain_get, url, names, 1),
                "obstore get, 4 at once": partial(plain_get, url, names, 4),
                "fastio, staged and checked": partial(staged, url, work / "cache"),
            }
            for name, work_on in contenders.items():
                shutil.rmtree(work / "cache", ignore_errors=True)
                os.sync()
                begin, cpu = time.perf_counter(), time.process_time()
                work_on()
                seconds = time.perf_counter() - begin
                cores = time.process_time() - cpu
                found.setdefault(name, []).append((total / seconds / 1e6, cores / total * 1e9))
    table = new_table(
        f"{total / 1e6:,.0f} MB over HTTP", "MB/s", "core-seconds a GB", "of the best"
    )
    medians = {
        name: tuple(statistics.median(each) for each in zip(*values, strict=True))
        for name, values in found.items()
    }
    best = max(rate for name, (rate, _) in medians.items() if name.startswith("obstore"))
    if shutil.which("fio"):
        medians["this disk, fio, direct writes"] = fio_write_mb_s(work, total), float("nan")
    for name, (rate, cores) in medians.items():
        table.add_row(
            name, f"{rate:,.0f}", f"{cores:.2f}" if cores == cores else "", f"{rate / best:.0%}"
        )
    console().print(table)
    return {"rounds": found, "medians": medians}


def fio_write_mb_s(work: Path, total: int) -> float:
    """MB a second that fio writes past the page cache, in the same blocks of 4 MiB."""
    command = ["fio", "--name=disk", f"--directory={work}", "--rw=write", "--bs=4M", "--direct=1"]
    command += ["--ioengine=psync", "--thread", "--numjobs=4", f"--size={total // 4}"]
    command += ["--group_reporting", "--unlink=1", "--output-format=json"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(told)["jobs"][0]["write"]["bw_bytes"]) / 1e6


def plain_get(url: str, names: list[str], at_once: int) -> None:
    """All shards into memory, each dropped when it is there."""
    from concurrent.futures import ThreadPoolExecutor

    import obstore
    from obstore.store import HTTPStore

    store = HTTPStore.from_url(url, client_options={"allow_http": True})
    with ThreadPoolExecutor(at_once) as pool:
        for _ in pool.map(lambda name: len(obstore.get(store, name).bytes()), names):
            pass


def staged(url: str, cache: Path) -> None:
    report = warm(url, cache)
    assert report.complete
    assert not report.damaged


# --- latency: is the network busy? ----------------------------------------------------------------


def latency_part(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """First batch and whole epochs of a Loader through 30 ms of latency and 200 MB/s."""
    dataset = raw_dataset(work / "packed", arguments.megabytes or 3000)
    total = nbytes(dataset)
    ideal_s = total / BANDWIDTH
    with fastio.Loader(dataset, 64, shuffle=True, transforms=SMALL) as loader:
        local = [epoch_s(loader)[0] for _ in range(3)]
    local_s = min(local)
    table = new_table(
        f"{total / 1e6:,.0f} MB, 30 ms, 200 MB/s",
        "first batch s",
        "cold epoch s",
        "of ideal",
        "second epoch s",
        "of local",
    )
    found: dict[str, Any] = {"ideal_s": ideal_s, "local_s": local}
    with http_folder(dataset) as url, FaultProxy(url) as proxy:
        for name in ("without a cache", "with a cache"):
            cache = work / "cache" if name == "with a cache" else None
            firsts = [first_batch_s(proxy, cache) for _ in range(3)]
            proxy.set(latency_s=LATENCY_S, bandwidth=BANDWIDTH)
            shutil.rmtree(work / "cache", ignore_errors=True)
            with fastio.Loader(
                proxy.url, 64, shuffle=True, transforms=SMALL, cache=cache
            ) as loader:
                cold_s, wait_s = epoch_s(loader)
                later = [epoch_s(loader)[0] for _ in range(2)]
                fetched = loader.stats().bytes_fetched
            table.add_row(
                name,
                f"{statistics.median(firsts):.2f}",
                f"{cold_s:.2f} (first batch after {wait_s:.2f})",
                f"{cold_s / ideal_s:.3f}",
                ", ".join(f"{each:.2f}" for each in later),
                f"{min(later) / local_s:.2f}",
            )
            found[name] = {
                "first_s": firsts,
                "cold_s": cold_s,
                "later_s": later,
                "fetched": fetched / total,
            }
    console().print(table)
    return found


def first_batch_s(proxy: FaultProxy, cache: Path | None) -> float:
    """From the constructor to the first batch, with 30 ms of latency and nothing in the cache."""
    proxy.set(latency_s=LATENCY_S)
    if cache is not None:
        shutil.rmtree(cache, ignore_errors=True)
    begin = time.perf_counter()
    with fastio.Loader(proxy.url, 64, shuffle=True, transforms=SMALL, cache=cache) as loader:
        next(iter(loader))
        return time.perf_counter() - begin


def epoch_s(loader: fastio.Loader) -> tuple[float, float]:
    """Seconds of an epoch, and to its first batch."""
    begin, first = time.perf_counter(), 0.0
    for _ in loader:
        first = first or time.perf_counter() - begin
    return time.perf_counter() - begin, first


# --- budget: is the right data kept? --------------------------------------------------------------


def budget_part(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Bytes fetched in four shuffled epochs with a cache too small, and the least possible."""
    dataset = raw_dataset(work / "packed", arguments.megabytes or 1000)
    total = nbytes(dataset)
    table = new_table(
        f"{EPOCHS} epochs of {total / 1e6:,.0f} MB, MB fetched",
        "fastio",
        "optimum",
        "LRU",
        "over the optimum",
    )
    found = {}
    with http_folder(dataset) as url:
        for share in BUDGETS:
            shutil.rmtree(work / "cache", ignore_errors=True)
            cache = fastio.Cache(work / "cache", int(total * share))
            accesses: list[int] = []
            with fastio.Loader(url, 64, shuffle=True, transforms=SMALL, cache=cache) as loader:
                block_rows = loader._feed._stager.blocks.block_rows  # type: ignore[attr-defined]
                for _ in range(EPOCHS):
                    for _ in loader:
                        accesses += in_order(np.asarray(loader.batch.rows) // block_rows)
                fetched = loader.stats().bytes_fetched
            block_bytes = total * block_rows / len(fastio.open(dataset))
            room = int(total * share // block_bytes)
            least, lru = (
                misses(accesses, room, optimal=optimal) * block_bytes for optimal in (True, False)
            )
            table.add_row(
                f"cache of {share:.0%}",
                *(f"{each / 1e6:,.1f}" for each in (fetched, least, lru)),
                f"{fetched / least - 1:+.2%}",
            )
            found[f"{share:.0%}"] = {"fetched": fetched, "optimum": least, "lru": lru}
    console().print(table)
    return found


def in_order(blocks: NDArray[np.int64]) -> list[int]:
    """Each block once, as it comes."""
    return list(dict.fromkeys(blocks.tolist()))


def misses(accesses: list[int], room: int, *, optimal: bool) -> int:
    """How many accesses miss a cache of `room` blocks.

    Args:
        optimal: knowing the future, what is needed last goes, which may be the block that comes in
            (Belady's MIN with bypassing: no policy misses less); else what was used longest ago.
    """
    following: npt.NDArray[np.int64] = np.full(len(accesses), 2**62, np.int64)
    seen: dict[int, int] = {}
    for place in range(len(accesses) - 1, -1, -1):
        following[place] = seen.get(accesses[place], 2**62)
        seen[accesses[place]] = place
    kept: dict[int, int] = {}
    count = 0
    for place, block in enumerate(accesses):
        mark = int(following[place]) if optimal else -place
        if block not in kept:
            count += 1
            if len(kept) >= room:
                victim = max(kept, key=kept.__getitem__)
                if optimal and kept[victim] <= mark:
                    continue
                del kept[victim]
        kept[block] = mark
    return count
