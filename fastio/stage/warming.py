"""Fetches a whole remote dataset into a cache, as fast as the network and the disk allow.

Blocks are received into aligned memory, from which the disk writes directly, and their rows are
checked. They are stored as the pieces that a Loader looks for. One request fetches several small
neighbouring blocks. Blocks that are in the cache are not fetched again, so that an interrupted call
is continued by the next one. Blocks that other processes are fetching are left to them.

`Stager` is not used here. Its blocks are read soon after they arrive, so that it claims and
publishes each block alone and writes through the page cache. In this way, warming was less than
half as fast and took twice the CPU time (benchmarks/LOG.md, 2026-11-21). `cached` has the code that
both share.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fastio.cache import (
    Aligned,
    Buffers,
    Cache,
    CacheFolder,
    Consumer,
    Outcome,
    Written,
    aligned_size,
    block_of,
)
from fastio.packed.layout import Range
from fastio.runtime.ahead import in_order
from fastio.runtime.cores import available_cores
from fastio.sources import Remote
from fastio.sources import open as open_data
from fastio.stage.blocks import Blocks, Known, Numbers, blocks_of, check_remote
from fastio.stage.cached import OTHERS_DEADLINE_S, claimed, heads_run, source_of
from fastio.stage.earlier import Earlier
from fastio.stage.forecast import Distances
from fastio.stage.forecast import next_use as forecast_next_use
from fastio.stage.pace import Pace
from fastio.stage.shuffling import cut
from fastio.store import Store

# The bytes of the blocks that one transaction claims or publishes.
_TOGETHER_BYTES = 64 << 20
_REQUEST_BYTES = 4 << 20
_PUBLISH_S = 0.25  # between two publications, so that readers see slowly fetched blocks soon
_OTHERS_S = 0.2  # between two checks of blocks that others fetch
# The largest gap between two ranges, such as a tar header, that is cheaper than another request.
_PASSED_OVER_BYTES = 16 << 10


@dataclass(frozen=True)
class WarmReport:
    """The result of `warm`.

    Attributes:
        url: URL of the dataset.
        rows: number of rows of the dataset.
        rows_staged: number of rows that are in the cache now, from the first on.
        bytes: size of the images, or of the tars' samples, that are in the cache now.
        bytes_fetched: the part of `bytes` that this call fetched.
        damaged: descriptions of data that is damaged at the source and was not kept.
        seconds: duration.
    """

    url: str
    rows: int
    rows_staged: int
    bytes: int
    bytes_fetched: int
    damaged: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether the whole dataset is in the cache."""
        return self.rows_staged == self.rows


def warm(
    url: str,
    cache: Cache | str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    split: str | None = None,
    config: str | None = None,
    parallel: int | None = None,
    advance: Callable[[int], object] | None = None,
) -> WarmReport:
    """Fetch a remote dataset, or as much of its beginning as fits, into a cache.

    To make room, data that no running loader is known to need is deleted. Loaders may use the cache
    at the same time. Pieces are written without filling the page cache if the file system allows
    it: see `fastio.cache.direct`.

    Args:
        url: URL of a packed dataset, a tar, a folder of tars, a pattern of tars, or a folder of
            images or sound files.
        cache: A folder, or a `fastio.Cache`, whose budget applies.
        fields: Tars: fields that the Loader will read, in its order (default: all). What it looks
            up depends on them. Packed datasets are fetched whole.
        storage_options: Options of the file system of the URL, such as keys and endpoint.
        split: Name of the split of a dataset on the Hugging Face Hub, if it has several.
        config: Name of its configuration, if it has several.
        parallel: Maximum number of concurrent requests, each of up to 4 MiB or one block (default:
            by the number of cores).
        advance: A function that is called with the number of bytes staged since its last call.

    Returns:
        A report of what is staged.

    Raises:
        DatasetNotFound, SourceNotFound, StoreError: the dataset cannot be read.
        ShardCorrupt, ManifestInvalid: the description of its rows is damaged.
        SchemaError: there is no such field, or samples of tars lack one.
        OptionError: the data is local.
        CacheError, OSError: the cache cannot be written.
    """
    start_s = time.monotonic()
    given = cache if isinstance(cache, Cache) else Cache(cache)
    # A cache of its own, because it ranks pieces for eviction by another function.
    own = Cache(given.path, given.budget, shared=given.shared)
    try:
        folder = own.folder(_needed_by_none)
        options: Any = {"storage_options": storage_options, "split": split, "config": config}
        with open_data(url, **options, cache=own, fields=fields) as dataset:
            check_remote(dataset, url)
            warming = _Warming(
                dataset, folder, parallel or _parallel(), advance or (lambda nbytes: None)
            )
            warming.run()
            return warming.report(time.monotonic() - start_s)
    finally:
        own.close()


def _parallel() -> int:
    """Returns how many requests keep a network busy if a response begins after 0.1 s."""
    return max(16, min(64, 2 * available_cores()))


def _needed_by_none(runs: Sequence[Consumer], numbers: Numbers) -> Distances:
    """Ranks pieces for eviction: those that any run will need count as in use."""
    until = forecast_next_use(runs, numbers)
    return np.where(np.isfinite(until), -1.0, until)


@dataclass
class _Stretch:
    """Neighbouring blocks that were claimed and are fetched together."""

    first: int
    sizes: list[int]

    @property
    def numbers(self) -> range:
        """The numbers of the blocks."""
        return range(self.first, self.first + len(self.sizes))

    def takes(self, number: int, size: int) -> bool:
        """Returns whether a block follows this stretch and fits into the same request."""
        return number == self.numbers.stop and sum(self.sizes) + size <= _REQUEST_BYTES


class _Pieces(Collection[int]):
    """The pieces of all blocks, without those of earlier contents of the blocks."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __contains__(self, piece: object) -> bool:
        assert isinstance(piece, int)
        # Computed each time, because a dataset may have millions of blocks.
        block = block_of(piece)
        return block < len(self) and self._blocks.piece(block) == piece

    def __iter__(self) -> Iterator[int]:
        return map(self._blocks.piece, range(len(self)))

    def __len__(self) -> int:
        return self._blocks.count


class _Warming:
    """One call of `warm`. The caller's thread claims blocks in order; others fetch and write."""

    def __init__(
        self,
        dataset: Remote,
        folder: CacheFolder,
        parallel: int,
        advance: Callable[[int], object],
    ) -> None:
        self._dataset = dataset
        self._folder = folder
        self._advance = advance
        self._parallel = parallel
        rows, nbytes = len(dataset), dataset.nbytes
        block_rows = cut(rows, nbytes, folder.room).block_rows
        self._blocks = blocks_of(dataset, block_rows)
        self._source = source_of(folder, self._blocks)
        self._earlier = Earlier(folder, self._source, self._blocks)
        # The bytes that were copied from earlier pieces, by block, until the block is noted.
        self._reused: dict[int, int] = {}
        self._buffers = Buffers()
        self._pace = Pace(parallel)
        self._lock = threading.Lock()
        self._staged: set[int] = set()
        self._damaged: list[str] = []
        self._bytes = self._fetched = 0
        self._written: dict[int, Written] = {}
        self._published_s = time.monotonic()

    def run(self) -> None:
        """Fetches the heads and blocks that are missing in the cache."""
        self._tell()
        if self._dataset.whole:
            self._heads_only()
        else:
            others = self._stage()
            self._publish(at_least=1)
            self._wait_for(others)
            self._publish(at_least=1)

    def report(self, seconds: float) -> WarmReport:
        """Returns what was staged so far."""
        rows = (self._blocks.rows(number) for number in self._staged)
        return WarmReport(
            url=self._dataset.store.url,
            rows=len(self._dataset),
            rows_staged=sum(last - first for first, last in rows),
            bytes=self._bytes,
            bytes_fetched=self._fetched,
            damaged=sorted(self._damaged),
            seconds=seconds,
        )

    def _tell(self) -> None:
        """Records that heads are in use, so that no process evicts them to store blocks."""
        heads = heads_run(self._dataset)
        if heads is not None:
            self._folder.tell(0, heads)

    # --- What is fetched --------------------------------------------------------------------------

    def _stage(self) -> list[int]:
        """Fetches the blocks that are missing. Returns those that others are fetching."""
        others: list[int] = []
        most = 4 * self._parallel  # more than are fetched, because one may take long
        for _ in in_order(self._fetch, self._stretches(others), self._parallel, ahead=most):
            pass
        return others

    def _stretches(self, others: list[int]) -> Iterator[_Stretch]:
        """Claims blocks until there is no more room, and yields the stretches to fetch.

        Args:
            others: Blocks that others are fetching are added to it.
        """
        for group in self._groups():
            stretches, left, full = self._claim(group)
            others += left
            yield from stretches
            if full:
                return

    def _groups(self) -> Iterator[dict[int, int]]:
        """Yields blocks with their sizes, in order, about 64 MiB at a time."""
        group: dict[int, int] = {}
        nbytes = 0
        for number, size in self._blocks.sizes():
            if group and nbytes + size > _TOGETHER_BYTES:
                yield group
                group, nbytes = {}, 0
            group[number] = size
            nbytes += size
        if group:
            yield group

    def _claim(self, sizes: Mapping[int, int]) -> tuple[list[_Stretch], dict[int, str], bool]:
        """Returns stretches to fetch, blocks that others fetch, and whether the cache is full.

        Blocks that others fetch have the outcome "others", or "stopped" if that process is
        suspended, so that waiting for it is not worthwhile.
        """
        wanted = {number: size for number, size in sizes.items() if size}
        for number in sizes.keys() - wanted.keys():
            self._note(number, 0)
        stretches: list[_Stretch] = []
        others: dict[int, str] = {}
        for number, outcome in self._claimed(wanted).items():
            if outcome == "ready":
                self._note(number, sizes[number])
            elif outcome in ("others", "stopped"):
                others[number] = outcome
            elif outcome == "mine":
                if not (stretches and stretches[-1].takes(number, sizes[number])):
                    stretches.append(_Stretch(number, []))
                stretches[-1].sizes.append(sizes[number])
            else:
                return stretches, others, True
        return stretches, others, False

    def _claimed(self, sizes: Mapping[int, int]) -> dict[int, Outcome]:
        """Returns the outcome of each block's claim, in order. Files of ready ones were checked."""
        folder, source = self._folder, self._source
        pieces = {number: self._blocks.piece(number) for number in sorted(sizes)}
        claim = partial(folder.claim, source, keep=_Pieces(self._blocks), if_stopped="stopped")
        wanted = {piece: self._blocks.piece_bytes(number) for number, piece in pieces.items()}
        found = claimed(folder, source, wanted, claim, folder.exists)
        # If a block does not fit, those after it are not staged either.
        ordered = {number: found[piece] for number, piece in pieces.items()}
        full = next((n for n, how in ordered.items() if how == "no room"), None)
        if full is not None:
            late = [n for n, how in ordered.items() if n > full and how == "mine"]
            folder.abandon(source, map(self._blocks.piece, late))
            ordered = {n: how for n, how in ordered.items() if n <= full}
        return ordered

    def _wait_for(self, numbers: list[int]) -> None:
        """Waits for blocks that others fetch, and fetches those that they give up."""
        sizes = {number: self._blocks.size(number) for number in numbers}
        deadline_s = time.monotonic() + OTHERS_DEADLINE_S
        while sizes and time.monotonic() < deadline_s:
            time.sleep(_OTHERS_S)
            stretches, others, full = self._claim(sizes)
            for stretch in stretches:
                self._fetch(stretch)
            if full:
                break
            sizes = {number: sizes[number] for number, how in others.items() if how == "others"}

    # --- One stretch ------------------------------------------------------------------------------

    def _fetch(self, stretch: _Stretch) -> None:
        """Fetches, checks and writes blocks."""
        if self._dataset.separate:
            self._fetch_objects(stretch)
            return
        nbytes = sum(map(aligned_size, stretch.sizes))
        with ExitStack() as until_written:
            with self._pace.request():
                # Memory is taken when the request may run, so that waiting requests hold none.
                memory = until_written.enter_context(self._buffers.take(nbytes))
                pieces: dict[int, memoryview] = {}
                for number, size in zip(stretch.numbers, stretch.sizes, strict=True):
                    pieces[number] = memory[: aligned_size(size)]
                    memory = memory[aligned_size(size) :]
                self._receive(pieces)
                # Checked at once, because they are still in the CPU cache.
                files = {number: self._checked(number, each) for number, each in pieces.items()}
            with self._pace.write():
                written = {
                    number: self._folder.write(self._source, self._blocks.piece(number), file)
                    for number, file in files.items()
                    if file is not None
                }
        self._done(files, written)

    def _fetch_objects(self, stretch: _Stretch) -> None:
        """Fetches, checks and writes blocks whose rows are objects."""
        written: dict[int, Written] = {}
        for number in stretch.numbers:
            parts, problem = self._blocks.fetch(number, self._known(number))
            if problem is None:
                piece = self._blocks.piece(number)
                parts += self._blocks.tail(number)
                written[number] = self._folder.write(self._source, piece, parts)
            else:
                with self._lock:
                    self._damaged.append(problem)
        self._done(stretch.numbers, written)

    def _done(self, numbers: Iterable[int], written: Mapping[int, Written]) -> None:
        """Records the blocks that were written, and gives up the others."""
        damaged = [number for number in numbers if number not in written]
        if damaged:
            self._folder.abandon(self._source, map(self._blocks.piece, damaged))
        with self._lock:
            self._written.update(written)
        for number in written:
            size = self._blocks.size(number)
            self._note(number, size, fetched=size - self._reused.pop(number, 0))
        self._publish(at_least=_TOGETHER_BYTES // self._blocks.mean_bytes)

    def _publish(self, at_least: int) -> None:
        """Publishes the written blocks if there are enough, or if some time has passed."""
        now_s = time.monotonic()
        with self._lock:
            late = now_s - self._published_s >= _PUBLISH_S
            if len(self._written) < (1 if late else max(1, at_least)):
                return
            written, self._written = self._written, {}
            self._published_s = now_s
        pieces = {self._blocks.piece(number): each for number, each in written.items()}
        self._folder.publish(self._source, pieces, misses=False)

    def _receive(self, pieces: Mapping[int, memoryview]) -> None:
        """Fetches the bytes of blocks."""
        wanted: list[tuple[Range, memoryview]] = []
        for number, memory in pieces.items():
            known, parts = self._known(number), self._parts(number, memory)
            for place, each in enumerate(self._blocks.ranges(number)):
                if place in known:
                    parts[place][:] = known[place]
                else:
                    wanted.append((each, parts[place]))
        receive(self._dataset.store, wanted)

    def _known(self, number: int) -> Known:
        """Returns the parts of a block that the cache has of earlier versions."""
        known = self._earlier.parts(number)
        with self._lock:
            self._reused[number] = sum(map(len, known.values()))
        return known

    def _parts(self, number: int, memory: memoryview) -> list[memoryview]:
        """Returns views of the parts of a block in memory."""
        lengths = [each.length for each in self._blocks.ranges(number)]
        ends = itertools.accumulate(lengths)
        return [memory[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def _checked(self, number: int, memory: memoryview) -> Aligned | list[Any] | None:
        """Checks a block. Returns what to write, or None if it is damaged at the source."""
        parts = self._parts(number, memory)
        problem = self._blocks.check(number, parts)
        if problem is None:
            return Aligned.of(memory, sum(part.nbytes for part in parts))
        again, problem = self._blocks.fetch(number)  # it may have been damaged on the way
        if problem is None:
            return again
        with self._lock:
            self._damaged.append(problem)
        return None

    def _note(self, number: int, size: int, fetched: int = 0) -> None:
        with self._lock:
            self._staged.add(number)
            self._bytes += size
            self._fetched += fetched
        self._advance(size)

    # --- Datasets without images ------------------------------------------------------------------

    def _heads_only(self) -> None:
        """Stages shards that consist of their heads only: opening one stores it in the cache."""
        kept, dataset = self._dataset.head_source(), self._dataset.packed
        assert kept is not None
        assert dataset is not None
        folder, source = kept
        sizes = [int(size) for size in dataset.manifest.shard_bytes]
        piece = dataset.manifest.piece
        there = [folder.exists(source, piece(shard), size) for shard, size in enumerate(sizes)]
        missing = [shard for shard, found in enumerate(there) if not found]
        opened = in_order(dataset.shard, missing, self._parallel)
        for shard, size in enumerate(sizes):
            if not there[shard]:
                next(opened)
                if not folder.exists(source, piece(shard), size):
                    break  # no room
            self._note(shard, size, fetched=0 if there[shard] else size)


def receive(store: Store, wanted: Iterable[tuple[Range, memoryview]]) -> None:
    """Fetches ranges into the caller's memory; each view has the length of its range.

    Raises:
        StoreError, SourceNotFound: If they cannot be read.
    """
    ordered = sorted((each for each in wanted if each[0].length), key=lambda each: each[0][:3])
    at = 0
    while at < len(ordered):
        first = ordered[at][0]
        end, views = first.offset, list[memoryview]()
        while at < len(ordered) and _goes_on(first.name, end, ordered[at][0]):
            following, view = ordered[at]
            if following.offset > end:
                views.append(memoryview(bytearray(following.offset - end)))
            views.append(view)
            end = following.offset + following.length
            at += 1
        store.read_into(first.name, first.offset, views, expect=first.expect)


def _goes_on(name: str, end: int, following: Range) -> bool:
    """Returns whether a range begins at or shortly after byte `end` of the same object."""
    return name == following.name and 0 <= following.offset - end <= _PASSED_OVER_BYTES
