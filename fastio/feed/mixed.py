"""Joins several native feeds into one: as a mix, or one after the other as ConcatDataset does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import xxhash

from fastio.engine.ragged import Forms
from fastio.errors import SchemaError, TransformError
from fastio.feed.base import Asked, Batches, Feed, HostBatches
from fastio.feed.joined import JoinedRun, Joiner, LeafFeed
from fastio.feed.native import NativeFeed
from fastio.order.buckets import BucketPlan, Buckets, JoinedLengths
from fastio.order.order import Order, mixed_seed
from fastio.order.sampling import Ranks, Sampling
from fastio.order.shuffling import Shuffling
from fastio.order.state import Cursor, OrderState
from fastio.stage.shuffling import by_parts
from fastio.stats import Stats
from fastio.transforms import Augmentation
from fastio.views.mixing import CYCLE, Chain, Mix, MixLengths, MixOrder, MixPlan, Part, concatenated

_PLANNED = 64  # batches that are planned ahead to find the next one of each source
_PLANNED_CYCLES = 8  # likewise for a mix with a schedule, in cycles of its samples
_PLANNED_REMOTE = 4096  # likewise, if a source is remote and its blocks are fetched ahead


class JoinedFeed(Feed):
    """The base of feeds that join several sources.

    Args:
        dataset: object that describes the sources.
        leaves: native feeds that differ in the dataset only; closed with this one.
        sampling: batch size, order and other sampling arguments.
        ragged: forms of the fields whose rows differ in size.
        alike: names of the properties that all leaves must share.

    Raises:
        SchemaError: a shared property differs between leaves.
        TransformError: values of a batch cannot be joined.
    """

    def __init__(
        self,
        dataset: Any,
        leaves: Sequence[NativeFeed],
        sampling: Sampling,
        ragged: Forms,
        alike: Sequence[str],
    ) -> None:
        first = leaves[0]
        super().__init__(dataset, sampling, first.finish, first.settings.ahead)
        self.leaves = list(leaves)
        self._ragged = ragged
        _check_alike(self.leaves, alike)

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """Whether random numbers are drawn for each sample."""
        return any(leaf.draws for leaf in self.leaves)

    @property
    def local(self) -> bool:  # type: ignore[override]
        """Whether all data is on this machine."""
        return all(leaf.local for leaf in self.leaves)

    def set_threads(self, threads: int) -> int:
        return min(leaf.set_threads(threads) for leaf in self.leaves)

    def stats(self) -> Stats:
        first = self.leaves[0].stats()
        total = Stats(threads=first.threads, transforms=first.transforms)
        for leaf in self.leaves:
            total += leaf.stats()
        return total

    def close(self) -> None:
        for leaf in self.leaves:
            leaf.close()


class ConcatFeed(JoinedFeed):
    """Makes batches from native feeds one after the other, as torch's ConcatDataset.

    If the rows of one part are shuffled by windows of its blocks, the rows of all parts are.

    Args:
        dataset: the ConcatDataset, or a Subset of it.
        leaves: as in `JoinedFeed`.
        sampling: sampling of the rows of all parts together, of which some may be picked.
        ragged: as in `JoinedFeed`.
    """

    chain: Chain

    def __init__(
        self, dataset: Any, leaves: Sequence[NativeFeed], sampling: Sampling, ragged: Forms
    ) -> None:
        buckets = _buckets(leaves)
        if buckets:
            ends = np.cumsum([len(leaf.dataset) for leaf in leaves])
            lengths = JoinedLengths([each.lengths for each in buckets], np.append(0, ends[:-1]))
            sampling = replace(sampling, buckets=Buckets(lengths, buckets[0].pool))
        sampling = by_parts(sampling, [(leaf.sampling, len(leaf.dataset)) for leaf in leaves])
        super().__init__(dataset, leaves, sampling, ragged, ("structure", "fields", "transforms"))
        self.chain = Chain([len(leaf.dataset) for leaf in leaves], sampling)

    @property
    def identity(self) -> str:
        parts = [leaf.fingerprint for leaf in self.leaves]
        return xxhash.xxh3_64_hexdigest(f"concatenated {parts}".encode())

    def run(self, cursor: Cursor, ranks: Ranks) -> HostBatches:
        plan = self.sampling.plan(self.epoch_rows(), cursor, ranks, count=self.draws)
        first = self.sampling.first_step(cursor.position, ranks)
        batches = concatenated(self.chain, cursor.epoch, plan)
        most = max(_PLANNED, 4 * self.ahead) if self.local else _PLANNED_REMOTE
        run = JoinedRun(leaves_of(self.leaves, self.chain, cursor), batches, ranks, most)
        return Batches(run, Joiner(cursor.epoch, first, self._ragged, run.leaves).host_batch)

    def order(self, ranks: Ranks) -> OrderState:
        bounds = self.sampling.shuffling.bounds
        hashed = None if bounds is None else xxhash.xxh3_64_hexdigest(repr(bounds).encode())
        return {**super().order(ranks), "bounds": hashed}

    def adopt_order(self, order: Mapping[str, Any], ranks: Ranks) -> None:
        """Uses the window and the number of partitions of a state."""
        self.sampling = self.sampling.adopting(order)

    def drawn(self, cursor: Cursor, ranks: Ranks, asked: Asked) -> list[Augmentation]:
        at = np.arange(len(asked.rows))
        whole = Part(0, cursor.epoch, at, asked.rows, asked.occurrences)
        leaves = leaves_of(self.leaves, self.chain, cursor)
        found: list[Augmentation | None] = [None] * len(at)
        for part in self.chain.parts(whole):
            feed, own, _ = leaves[part.source]
            assert part.occurrences is not None
            of_part = asked._replace(rows=part.rows, occurrences=part.occurrences)
            for place, each in zip(
                part.places.tolist(), feed.augmentation(own, ranks, of_part), strict=True
            ):
                found[place] = each
        return [each for each in found if each is not None]


class MixFeed(JoinedFeed):
    """Makes batches from several native feeds that alternate; see `fastio.mix`.

    Args:
        mix: description of the mix.
        feeds: feed of each source, which has a chain. Feeds of sources that were given as paths are
            closed with this one, with their datasets.
        sampling: batch size, order and other sampling arguments.
        ragged: as in `JoinedFeed`.

    Raises:
        ValueError: mixes do not support the order.
    """

    dataset: Mix
    without_draws = "a mix has no row numbers of its own: use a loader of one of its sources"

    def __init__(self, mix: Mix, feeds: Sequence[Feed], sampling: Sampling, ragged: Forms) -> None:
        if not sampling.ours or sampling.order not in ("auto", "shuffle", "sequential"):
            raise ValueError(
                "a mix cannot be combined with a sampler or with order='window': "
                "it determines the order itself"
            )
        if sampling.repeat > 1:
            raise ValueError(
                f"repeat={sampling.repeat} cannot be combined with a mix, whose weights determine "
                "how often a row occurs"
            )
        self._feeds = list(feeds)
        leaves = [leaf for feed in feeds for leaf in feed.leaves]
        super().__init__(mix, leaves, sampling, ragged, ("structure", "classes", "fields"))
        self._chains = [feed.chain for feed in feeds if feed.chain is not None]
        self._buckets = _buckets(feeds)

    @property
    def identity(self) -> str:
        parts = [feed.fingerprint for feed in self._feeds]
        mix = self.dataset
        how = f"{parts} {mix.weights} {mix.seed} {mix.stop} {mix.schedule or ''}"
        return xxhash.xxh3_64_hexdigest(how.encode())

    def shuffling(self, ranks: Ranks) -> Shuffling:
        return Shuffling("mix", "argument")

    @property
    def random(self) -> bool:
        own = self.sampling.mode == "shuffle" or bool(self._buckets) or self.dataset.seed is None
        return own or self.draws

    def steps(self, ranks: Ranks) -> int:
        return len(self._plan(Cursor(0, 0, 0), ranks))

    def run(self, cursor: Cursor, ranks: Ranks) -> HostBatches:
        plan = self._plan(cursor, ranks)
        first = cursor.position // ((self.sampling.batch_size or 1) * ranks.world_size)
        leaves = [
            leaf
            for feed, chain in zip(self._feeds, self._chains, strict=True)
            for leaf in leaves_of(feed.leaves, chain, cursor)
        ]
        # A source's epochs follow one another: each is looked for to its end. With a schedule, a
        # source may be left out for as long as a phase.
        most = sys.maxsize
        if self.dataset.schedule:
            most = max(_PLANNED, _PLANNED_CYCLES * CYCLE // (self.sampling.batch_size or 1))
        run = JoinedRun(leaves, iter(plan), ranks, most)
        return Batches(run, Joiner(cursor.epoch, first, self._ragged, leaves).host_batch)

    def epoch_rows(self) -> int:
        return self._plan(Cursor(0, 0, 0), Ranks()).order.samples

    def rows(self, cursor: Cursor, ranks: Ranks) -> Iterator[int]:
        raise TypeError(
            "the sampler of a mix cannot be iterated over: a mix has no row numbers of its own"
        )

    def order(self, ranks: Ranks) -> OrderState:
        sampling = replace(self.sampling, buckets=self._buckets[0] if self._buckets else None)
        return {"kind": "mix", "mode": sampling.mode, **sampling.described_buckets(ranks)}

    def close(self) -> None:
        super().close()
        for feed, source in zip(self._feeds, self.dataset.sources, strict=True):
            if isinstance(source, (str, os.PathLike)):
                feed.dataset.close()

    def _plan(self, cursor: Cursor, ranks: Ranks) -> MixPlan:
        mix = self.dataset
        # Sources continue where they were in the epoch before, so no seed of one epoch's order,
        # which a generator draws, can be used.
        seed = cursor.seed or 0
        order = MixOrder(
            [len(chain) for chain in self._chains],
            mix.weights,
            seed=seed if mix.seed is None else mix.seed,
            order_seed=seed,
            shuffle=self.sampling.mode == "shuffle",
            stop=mix.stop,
            schedule=mix.schedule,
        )
        in_order = Order(order.samples, seed, cursor.epoch, mode="sequential")
        plan = self.sampling.cut(in_order, ranks, cursor.position)
        if not self._buckets:
            return MixPlan(order, cursor.epoch, plan, self._chains)
        lengths = MixLengths(order, cursor.epoch, [buckets.lengths for buckets in self._buckets])
        buckets = Buckets(lengths, self._buckets[0].pool)
        return MixPlan(order, cursor.epoch, BucketPlan(plan, buckets), self._chains)


def leaves_of(feeds: Sequence[NativeFeed], chain: Chain, cursor: Cursor) -> list[LeafFeed]:
    """Returns the datasets of a chain as leaves, with different seeds for their random draws."""
    assert cursor.seed is not None
    return [
        LeafFeed(
            feed,
            # Rows with the same number in two datasets must have different random draws. The first
            # dataset draws as it does alone.
            replace(cursor, seed=mixed_seed(cursor.seed, number)) if number else cursor,
            partial(chain.places, number),
        )
        for number, feed in enumerate(feeds)
    ]


def _check_alike(leaves: Sequence[NativeFeed], alike: Sequence[str]) -> None:
    first = leaves[0]
    for leaf in leaves:
        if any(how.length is None for how in leaf.transforms.audio.values()):
            raise TransformError(
                "batches of several sources need clips of one length: use AudioDecode(length=...)"
            )
        for what in alike:
            expected, found = (_described(each, what) for each in (first, leaf))
            if expected != found:
                raise SchemaError(
                    f"the sources of one loader must be alike: {first.dataset.path} has the "
                    f"{what} {expected}, but {leaf.dataset.path} has {found}"
                )


def _buckets(feeds: Sequence[Feed]) -> list[Buckets]:
    """Returns the buckets of each source if batches have documents of similar lengths, else []."""
    found = []
    for feed in feeds:
        buckets, picked = feed.sampling.buckets, feed.sampling.picked
        if buckets is not None:
            found.append(buckets.of(picked))
    return found


def _described(feed: NativeFeed, what: str) -> Any:
    if what == "fields":
        kinds = feed.dataset.schema.fields
        return {name: kinds[name] for name in feed.fields}
    if what == "transforms":
        images = feed.settings.samples if feed.settings.collate_fn is not None else None
        return feed.transforms, images
    return getattr(feed.dataset.schema, what)
