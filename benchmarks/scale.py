"""Many nodes over one bucket: real order, plan and look-ahead, with a simulated store and clock.

    .venv/bin/python benchmarks/scale.py [--nodes 1 10 100 1000] [--rows 1e6 1e9 1e12] [--json FILE]

No bytes are read. For blocks and shards drawn at random, the order's inverse says which nodes need
them: that is how often they are fetched in an epoch, if each node has a cache that holds its
windows. One node's look-ahead, run step by step, says how long before its use a block is requested.
From that and the latencies of the store (lognormal) follows the delay of a step that waits for the
slowest of all requests of all nodes. Each line is computed for one order of the whole dataset
("whole") and for a partition for each node ("parts"). A second table has whole epochs of nodes
whose caches hold little more than their share, with the eviction of `fastio.cache`. A third table
has what a rank needs for a corpus of tokens: time to make its order, to find the first batch, that
in the middle of an epoch, the windows to fetch, and the shards to evict.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from common import console, machine, machine_line, new_table, write_json

from fastio.cache import Consumer
from fastio.order.orders import Orders
from fastio.order.plan import Plan
from fastio.order.sampling import Ranks, Sampling
from fastio.order.shuffling import Shuffling
from fastio.sources import Remote
from fastio.stage import (
    Blocks,
    Forecast,
    Lookahead,
    Stager,
    StagingPlan,
    ahead_bytes,
    most_ahead_bytes,
)
from fastio.stage.forecast import next_use

Numbers = npt.NDArray[np.int64]

RANKS = 8  # of a node
SHARD_BYTES = 64 << 20
LATENCY_S, SPREAD = 0.030, 0.99  # median, and the sigma at which one request in 100 takes 300 ms
LINK = 3e9  # bytes/s of a node
ROOM = 256 << 30  # bytes of a node's cache
MANIFEST_ROW = 99  # bytes a shard, see LOG.md
MOST_SHARDS = 1 << 20  # of which a table's order has arrays


@dataclass(frozen=True)
class Data:
    """What is trained on.

    Attributes:
        row_bytes: size of a row.
        block: rows of a block; None where blocks are shards.
        window: blocks or shards of a window.
        batch: rows of a batch on each rank.
        step_s: time of a step.
    """

    row_bytes: int
    block: int | None
    window: int
    batch: int
    step_s: float

    def bounds(self, rows: int) -> tuple[int, ...] | None:
        """First row of each shard, and the number of rows; None for blocks."""
        if self.block is not None:
            return None
        return (*range(0, rows, SHARD_BYTES // self.row_bytes), rows)

    def shards(self, rows: int) -> int:
        return -(-rows * self.row_bytes // SHARD_BYTES)


KINDS = {
    "images": Data(row_bytes=100 << 10, block=40, window=32, batch=256, step_s=0.5),
    "tokens": Data(row_bytes=4 << 10, block=None, window=4, batch=16, step_s=0.5),
}


@dataclass(frozen=True)
class Run:
    """One line: data, rows, nodes, and the number of partitions."""

    data: Data
    rows: int
    nodes: int
    partitions: int

    @property
    def world(self) -> int:
        return self.nodes * RANKS

    @property
    def steps(self) -> int:
        return self.rows // (self.data.batch * self.world)

    def orders(self) -> Orders:
        data = self.data
        return Orders(
            self.rows,
            7,
            "window",
            data.block or 64,
            data.window,
            data.bounds(self.rows),
            self.partitions,
        )

    def sampling(self) -> Sampling:
        how = Shuffling(
            "window",
            "store",
            block=self.data.block,
            window=self.data.window,
            bounds=self.data.bounds(self.rows),
            fetched_by="node",
        )
        return Sampling(self.data.batch, True, shuffling=how, partitions=self.partitions)

    def nodes_of(self, order: Any, rows: Numbers) -> Numbers:
        """The nodes that deliver rows: what `Plan` does, for positions of full batches."""
        positions = order.positions(rows)
        positions = positions[positions < self.steps * self.data.batch * self.world]
        if self.partitions > 1:
            assert self.partitions == self.nodes
            return cast("Numbers", positions % self.partitions)
        in_step = positions % (self.data.batch * self.world)
        return cast("Numbers", in_step // (self.data.batch * RANKS))


def check_nodes(run: Run) -> None:
    """Holds `nodes_of` against the real plans of some ranks."""
    order = run.orders().epoch(1)
    for rank in {0, run.world // 2, run.world - 1}:
        plan = Plan(order, run.data.batch, False, rank, run.world)
        for step in {0, max(0, run.steps - 1)}:
            batch = plan.batch(step)
            assert set(run.nodes_of(order, batch.rows).tolist()) == {rank // RANKS}


def fetches(run: Run, drawn: int) -> dict[str, float]:
    """How many nodes need a block, and a shard; means and the most, over blocks drawn at random."""
    order, data = run.orders().epoch(1), run.data
    unit = data.block or SHARD_BYTES // data.row_bytes
    per_shard = SHARD_BYTES // data.row_bytes
    rng = np.random.default_rng(1)

    def needed(size: int, step: int) -> list[int]:
        count = -(-run.rows // size)
        found = []
        for number in np.unique(rng.integers(0, count, drawn)).tolist():
            rows = np.arange(number * size, min((number + 1) * size, run.rows), step)
            found.append(len(np.unique(run.nodes_of(order, rows))))
        return found

    of_blocks = needed(unit, max(1, unit // 4096))
    of_shards = needed(per_shard, max(1, per_shard // 640)) if data.block else of_blocks
    return {
        "times": statistics.fmean(of_blocks),
        "most": max(of_blocks),
        "heads": statistics.fmean(of_shards),
    }


class Requests:
    """A stager that fetches nothing: it notes in which step a node requests a block."""

    def __init__(self, blocks: Blocks, requested: dict[int, int]) -> None:
        self.blocks, self.generation = blocks, object()
        self.cache = SimpleNamespace(folder=lambda: SimpleNamespace(room=ROOM))
        self.requested, self.step = requested, 0

    def want(self, numbers: Numbers) -> None:
        for number in numbers.tolist():
            self.requested.setdefault(number, self.step)

    def nothing(self, *_: Any) -> None:
        """Stands for all other calls of a look-ahead."""

    done = carry = tell = nothing


class Sized:
    """As much of a remote dataset as blocks ask for."""

    packed = None

    def __init__(self, rows: int, nbytes: int) -> None:
        self._rows, self.nbytes = rows, nbytes

    def __len__(self) -> int:
        return self._rows


def slacks(run: Run, steps: int, node: int) -> tuple[list[float], int]:
    """How long before their use a node's blocks are requested, in s, and those of its first step.

    The node's ranks take `steps` steps from the middle of an epoch on. Blocks that are requested
    in the first quarter of them, in which the look-ahead grows, are left out of the times.
    """
    orders, data = run.orders(), run.data
    start = run.steps // 2 * data.batch * run.world
    remote = cast("Remote", Sized(run.rows, run.rows * data.row_bytes))
    bounds = None if orders.bounds is None else np.array(orders.bounds)
    blocks = Blocks(remote, data.block or 0, bounds=bounds)
    requested: dict[int, int] = {}
    used: dict[int, int] = {}
    ranks = []
    for rank in range(node * RANKS, (node + 1) * RANKS):
        plan = Plan(orders.epoch(1), data.batch, False, rank, run.world, start)
        share = Ranks(rank, run.world).share_of(run.partitions)
        stager = Requests(blocks, requested)
        staging = StagingPlan(
            Forecast(orders, 1, data.block or 0),
            start,
            ahead_bytes(run.sampling(), cast("Stager", stager), Ranks(rank, run.world)),
            partitions=share,
            most_bytes=most_ahead_bytes(cast("Stager", stager)),
        )
        plans: Iterator[Any] = iter(plan)
        ranks.append((stager, Lookahead(plans, cast("Stager", stager), staging)))
    first = 0
    for step in range(min(steps, run.steps - run.steps // 2)):
        for stager, ahead_of in ranks:
            stager.step = step
            for number in ahead_of.blocks(next(ahead_of)).tolist():
                used.setdefault(number, step)
        if step == 0:
            first = len(used)
    for _, ahead_of in ranks:
        ahead_of.close()
    late = [
        used[number] - at
        for number, at in requested.items()
        if at > min(steps, run.steps // 2) // 4 and number in used
    ]
    return [steps_between * data.step_s for steps_between in late], first


def slow(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The share of requests that take longer."""
    turns = (np.log(np.maximum(seconds, 1e-9) / LATENCY_S)) / (SPREAD * math.sqrt(2))
    return np.array([0.5 * math.erfc(turn) for turn in turns.tolist()])


def delay_s(ahead_s: list[float], requests_per_step: float, block_bytes: int) -> float:
    """The delay of a step that one step in 1,000 exceeds, where a step waits for all requests."""
    if not ahead_s:
        return 0.0
    left = np.array(ahead_s) - block_bytes / LINK
    kinds, counts = np.unique(left, return_counts=True)
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        late = float((slow(kinds + middle) * counts).sum() / counts.sum()) * requests_per_step
        low, high = (middle, high) if late > 0.001 else (low, middle)
    return high if high > 1e-6 else 0.0


def restart(run: Run, before: int) -> float:
    """The time in ms from a state of `before` nodes to the first planned batches of a node."""
    began = time.perf_counter()
    order = Run(run.data, run.rows, run.nodes, before if run.partitions > 1 else 1).orders()
    start = run.steps // 3 * run.data.batch * run.world
    for rank in range(RANKS):
        Plan(order.epoch(1), run.data.batch, False, rank, run.world, start).batch(0)
    return 1e3 * (time.perf_counter() - began)


def line(kind: str, run: Run, arguments: argparse.Namespace) -> dict[str, float]:
    """The figures of one run."""
    check_nodes(run)
    data = run.data
    found = fetches(run, arguments.drawn)
    block_bytes = data.row_bytes * data.block if data.block else SHARD_BYTES
    # A step of all nodes delivers so many blocks' rows, each of which is fetched so many times.
    per_step = data.batch * run.world * data.row_bytes / block_bytes * found["times"]
    window_rows = data.window * (data.block or SHARD_BYTES // data.row_bytes)
    in_window = window_rows * run.partitions // (data.batch * run.world) + 1
    steps = min(arguments.steps, max(160, 3 * in_window))
    ahead_s, first = slacks(run, steps, run.nodes // 2)
    return {
        **found,
        "requests": per_step / data.step_s,
        "node_mb": per_step * block_bytes / data.step_s / run.nodes / 1e6,
        "ahead": statistics.median(ahead_s) if ahead_s else math.nan,
        "delay": delay_s(ahead_s, per_step, block_bytes),
        "first": first,
        "first_s": LATENCY_S * math.exp(SPREAD * 3.09) + first * block_bytes / LINK,
        "restart_ms": restart(run, 2 * run.nodes),
        "manifest_mb": data.shards(run.rows) * MANIFEST_ROW / 1e6,
    }


def epochs(run: Run, share: float, count: int, node: int) -> list[float]:
    """How many times the dataset all nodes fetch in each epoch, with caches of a share of it.

    Blocks are evicted as `fastio.cache` does: those that the forecast says are needed last. One
    node stands for all.
    """
    orders, data = run.orders(), run.data
    assert data.block is not None
    blocks = -(-run.rows // data.block)
    cached = np.zeros(0, np.int64)
    found = []
    for epoch in range(count):
        forecast = Forecast(orders, epoch, data.block).text
        ranks = range(node * RANKS, (node + 1) * RANKS)
        order = orders.epoch(epoch)
        plans = [Plan(order, data.batch, False, rank, run.world) for rank in ranks]
        fetched = 0
        for batches in zip(*plans, strict=True):
            needed = np.unique(np.concatenate([batch.rows // data.block for batch in batches]))
            new = np.setdiff1d(needed, cached)
            fetched += len(new)
            cached = np.union1d(cached, needed)
            over = len(cached) - max(len(needed), int(share * blocks))
            if over > 0:
                done = batches[0].next_position
                uses = next_use([Consumer(0, forecast, done, done)], cached)
                cached = np.sort(cached[np.argsort(uses, kind="stable")[:-over]])
        found.append(fetched * run.nodes / blocks)
    return found


def epochs_table(nodes: int, rows: int) -> dict[str, list[float]]:
    """Epochs over images whose caches hold little more than a node's share."""
    table = new_table(f"{nodes} nodes, {rows:.0e} images", *(f"epoch {n}" for n in range(3)))
    found = {}
    for name, partitions in (("whole", 1), ("parts", nodes)):
        run = Run(KINDS["images"], rows, nodes, partitions)
        found[name] = epochs(run, 1.1 / nodes, 3, nodes // 2)
        table.add_row(f"{name}, fetched x", *(f"{times:.2f}" for times in found[name]))
    console().print(table)
    return found


def corpus(tokens: int, window: int, nodes: int) -> dict[str, float]:
    """What a rank needs for a corpus of uint16 tokens in shards of 64 MiB, with the real orders.

    Times are of this thread's processor time in ms; memory is that of Python and NumPy.
    """
    of_shard = SHARD_BYTES // 2
    shards = -(-tokens // of_shard)
    windows = (of_shard - window - 1) // window + 1
    ranks, found = nodes * RANKS, dict[str, float](shards=shards)
    tracemalloc.start()
    bounds = tuple(range(0, (shards + 1) * windows, windows))
    orders = Orders(bounds[-1], 7, "window", 64, 4, bounds, nodes)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = work()
        found[name] = 1e3 * (time.thread_time() - began)
        return result

    share = Ranks(3, ranks).share_of(nodes)
    order = timed("order", lambda: orders.epoch(0))
    plan = timed("first batch", lambda: Plan(order, 16, False, 3, ranks))
    timed("first batch", lambda: plan.batch(0))
    half = plan.global_batch * (len(plan) // 2)
    timed("seek", lambda: Plan(orders.epoch(1), 16, False, 3, ranks, half).batch(0))
    forecast = Forecast(orders, 1, 0)
    staging = StagingPlan(forecast, half, 1 << 30, partitions=share)
    blocks = Blocks(cast("Remote", Sized(bounds[-1], tokens * 2)), 0, bounds=np.array(bounds))
    ahead = Lookahead(iter([]), cast("Stager", Requests(blocks, {})), staging)
    timed("windows", lambda: next(ahead, None))
    found["forecast kB"] = len(timed("forecast", lambda: forecast.text)) / 1e3
    timed("next use", lambda: Forecast.of_text(forecast.text).next_use(half, half, np.arange(64)))
    found["memory MB"] = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return found


def corpora(tokens: list[int], nodes: int) -> dict[str, dict[str, float]]:
    """Corpora of numbers of tokens, in windows of 2,048 and 8,192."""
    found = {
        f"{count:.0e}, {window}": corpus(count, window, nodes)
        for count in tokens
        for window in (2048, 8192)
    }
    table = new_table(f"tokens, window ({nodes} nodes)", *next(iter(found.values())))
    for name, figures in found.items():
        table.add_row(name, *(f"{figure:,.1f}" for figure in figures.values()))
    console().print(table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 10, 100, 1000])
    parser.add_argument("--rows", nargs="+", type=float, default=[1e6, 1e9, 1e12])
    parser.add_argument(
        "--drawn", type=int, default=300, help="blocks and shards that are looked at"
    )
    parser.add_argument("--steps", type=int, default=1000, help="most steps of a look-ahead")
    parser.add_argument(
        "--caches", nargs=2, type=int, default=[8, 10**6], metavar=("NODES", "ROWS")
    )
    parser.add_argument("--tokens", nargs="+", type=float, default=[1e9, 1e11, 1e12, 1e13])
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    table = new_table(
        "data, rows, nodes, order",
        "fetched x",
        "heads x",
        "most nodes a block",
        "requests/s",
        "MB/s a node",
        "ahead s",
        "delay p99.9 s",
        "first step s",
        "restart ms",
        "manifest MB",
    )
    results: dict[str, Any] = {}
    for kind, rows, nodes in itertools.product(
        arguments.kinds, map(int, arguments.rows), arguments.nodes
    ):
        data = KINDS[kind]
        for name, partitions in (("whole", 1), ("parts", nodes)):
            run = Run(data, rows, nodes, partitions)
            label = f"{kind}, {rows:.0e}, {nodes}, {name}"
            if run.steps < 20 or (name == "parts" and nodes == 1):
                continue  # an epoch of some steps; one partition
            if data.block is None and data.shards(rows) > MOST_SHARDS:
                console().print(f"{label}: {data.shards(rows):.1e} shards: not run")
                continue
            one = results[label] = line(kind, run, arguments)
            table.add_row(
                label,
                f"{one['times']:.2f}",
                f"{one['heads']:.1f}",
                f"{one['most']:.0f}",
                f"{one['requests']:,.0f}",
                f"{one['node_mb']:,.0f}",
                f"{one['ahead']:.1f}",
                f"{one['delay']:.2f}",
                f"{one['first_s']:.1f}",
                f"{one['restart_ms']:.1f}",
                f"{one['manifest_mb']:,.1f}",
            )
    console().print(table)
    tokens = corpora([int(count) for count in arguments.tokens], max(arguments.nodes))
    caches = epochs_table(*arguments.caches) if arguments.caches[0] else {}
    console().print(machine_line())
    found = {"results": results, "caches": caches, "corpora": tokens}
    write_json(arguments.json, {"machine": machine(), **found})


if __name__ == "__main__":
    main()
