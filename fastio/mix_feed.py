"""Batches of a mix: each source's rows by its own engine, put together in the mix's order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from fastio.batch import Batch
from fastio.device import HostBatch
from fastio.engine import BatchStream
from fastio.errors import SampleError, SchemaError, TransformError
from fastio.feed import BatchInfo, NativeFeed
from fastio.mixing import Mix, MixedBatch, MixLengths, MixOrder, MixPlan, Part
from fastio.order import Order
from fastio.plan import BucketPlan, Buckets, PlannedBatch
from fastio.ragged import Forms, is_ragged
from fastio.ragged_tensors import ragged_of_lists
from fastio.resume import Cursor
from fastio.sampling import Ranks, Sampling
from fastio.stats import Stats
from fastio.tensors import Finish, merged, pin
from fastio.transforms import Augmentation


class MixFeed:
    """Makes host batches of several native feeds; see `feed.Feed`.

    Args:
        mix: what is mixed.
        feeds: of each source, alike but for the dataset; closed with this one, and so are the
            datasets of sources that were given as paths.
        sampling: batch size and so on.
        ragged: the forms of fields whose rows differ in size.

    Raises:
        SchemaError: the sources' samples are not alike.
        TransformError: what a batch has cannot be put together.
        ValueError: an order that mixes do not have.
    """

    path: Literal["native", "torch"] = "native"
    reason = ""

    def __init__(
        self,
        mix: Mix,
        feeds: Sequence[NativeFeed],
        sampling: Sampling,
        ragged: Forms | None = None,
    ) -> None:
        if not sampling.ours or sampling.order not in ("auto", "shuffle", "sequential"):
            raise ValueError("a mix has an order of its own: no sampler, and no order='window'")
        self.dataset = mix
        self.sampling = sampling
        self._feeds = list(feeds)
        self._ragged = ragged or Forms()
        _check_alike(self._feeds)
        self._buckets = _buckets(self._feeds)

    @property
    def fingerprint(self) -> str:
        parts = [feed.fingerprint for feed in self._feeds]
        how = f"{parts} {self.dataset.weights} {self.dataset.seed} {self.dataset.stop}"
        return xxhash.xxh3_64_hexdigest(how.encode())

    @property
    def random(self) -> bool:
        own = self.sampling.mode == "shuffle" or bool(self._buckets)
        return own or any(feed.draws for feed in self._feeds)

    @property
    def follows_torch(self) -> bool:
        return False

    @property
    def finish(self) -> Finish | None:
        return self._feeds[0].finish

    def steps(self, ranks: Ranks) -> int:
        return len(self._plan(Cursor(0, 0, 0), ranks))

    def run(self, cursor: Cursor, ranks: Ranks) -> MixBatches:
        plan = self._plan(cursor, ranks)
        first = cursor.position // ((self.sampling.batch_size or 1) * ranks.world_size)
        return MixBatches(self._feeds, iter(plan), cursor, first, ranks, self._ragged)

    def epoch_rows(self) -> int:
        return self._plan(Cursor(0, 0, 0), Ranks()).order.samples

    def rows(self, cursor: Cursor, ranks: Ranks) -> Iterator[int]:
        raise TypeError(
            "a mix has no row numbers of its own, only those of its sources: its "
            "sampler cannot be iterated over"
        )

    def order_name(self, ranks: Ranks) -> str:
        if not self._buckets:
            return f"mix:{self.sampling.mode}"
        global_batch = (self.sampling.batch_size or 1) * ranks.world_size
        return f"mix:{self.sampling.mode}:{self._buckets[0].pool}x{global_batch}"

    def adopt_order(self, name: str, ranks: Ranks) -> None:
        """There is nothing that may differ."""

    def augmentation(
        self,
        cursor: Cursor,
        ranks: Ranks,
        rows: npt.ArrayLike,
        occurrences: npt.ArrayLike,
        field: str | None,
    ) -> list[Augmentation]:
        raise TransformError("rows of a mix are those of its sources: ask a loader of one of them")

    @property
    def ahead(self) -> int:
        return self._feeds[0].settings.ahead

    def set_threads(self, threads: int) -> int:
        return min(feed.set_threads(threads) for feed in self._feeds)

    def stats(self) -> Stats:
        total = Stats(threads=self._feeds[0].settings.threads)
        for feed in self._feeds:
            total += feed.stats()
        return total

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()
        for feed, source in zip(self._feeds, self.dataset.sources, strict=True):
            if isinstance(source, (str, os.PathLike)):
                feed.dataset.close()

    def _plan(self, cursor: Cursor, ranks: Ranks) -> MixPlan:
        mix = self.dataset
        seed = cursor.of_order()
        order = MixOrder(
            [len(feed.dataset) for feed in self._feeds],
            mix.weights,
            seed=mix.seed,
            order_seed=seed,
            shuffle=self.sampling.mode == "shuffle",
            stop=mix.stop,
        )
        in_order = Order(order.samples, seed, cursor.epoch, mode="sequential")
        plan = self.sampling.cut(in_order, ranks, cursor.position)
        if not self._buckets:
            return MixPlan(order, cursor.epoch, plan)
        lengths = MixLengths(order, cursor.epoch, [buckets.lengths for buckets in self._buckets])
        buckets = Buckets(lengths, self._buckets[0].pool)
        return MixPlan(order, cursor.epoch, BucketPlan(plan, buckets))


class MixBatches:
    """The batches of one run of a mix: an iterator of `HostBatch`."""

    def __init__(
        self,
        feeds: Sequence[NativeFeed],
        plan: Iterator[MixedBatch],
        cursor: Cursor,
        first_step: int,
        ranks: Ranks,
        ragged: Forms,
    ) -> None:
        self._epoch = cursor.epoch
        self._feed = feeds[0]  # as which all others are, but for the dataset
        kinds = feeds[0].dataset.schema.fields
        self._kinds = {name: kinds[name] for name in feeds[0].fields}
        ragged_names = [name for name, kind in self._kinds.items() if is_ragged(kind)]
        self._forms = {name: ragged.get(name, "list") for name in ragged_names}
        self._first_step = first_step
        self._pinned = feeds[0].settings.pinned != "no"
        self._fresh = feeds[0].settings.pinned == "fresh"
        self._deal = _Deal(plan)
        self._sources = [
            _Source(number, feed, self._deal, cursor, ranks) for number, feed in enumerate(feeds)
        ]

    def __iter__(self) -> MixBatches:
        return self

    def __next__(self) -> HostBatch:
        """The next batch; see `BatchStream.__next__` for what it raises."""
        while True:
            mixed = self._deal.first()
            if mixed is None:
                raise StopIteration
            parts = [self._sources[part.source].batch(mixed, part) for part in mixed.parts]
            self._deal.drop_first()
            batch = self._put_together(mixed, parts)
            if batch is not None:
                return batch

    def ready(self) -> bool:
        """Whether next() would return, or raise, without waiting."""
        mixed = self._deal.first()
        if mixed is None:
            return True
        return all(self._sources[part.source].ready(mixed.step, part) for part in mixed.parts)

    def close(self) -> None:
        """Ends the run."""
        self._deal.close()
        for source in self._sources:
            source.close()

    def _put_together(
        self, mixed: MixedBatch, batches: Sequence[tuple[HostBatch, Batch] | None]
    ) -> HostBatch | None:
        found = [(part, batch) for part, batch in zip(mixed.parts, batches, strict=True) if batch]
        places = [_places(part, batch) for part, (_, batch) in found]
        if not places:
            return None
        rank_of = np.full(mixed.size, -1, np.int64)  # of each place among those that are left
        left = np.sort(np.concatenate(places))
        rank_of[left] = np.arange(len(left))
        rows, errors = np.empty(len(left), np.int64), list[SampleError]()
        for (_, (_, batch)), at in zip(found, places, strict=True):
            rows[rank_of[at]] = batch.rows
            errors += batch.errors
        parts = self._feed.of_one_length(
            [host.data for _, (host, _) in found], [batch for _, (_, batch) in found]
        )
        trees = [(part, rank_of[at]) for part, at in zip(parts, places, strict=True)]
        data = merged(trees, len(left), self._pinned)
        data = self._feed.with_bounds(data, data)
        if self._forms:  # the sources give lists of views of their slots, which are copied here
            data = ragged_of_lists(data, self._forms, self._kinds)
        for _, (host, _) in found:
            if host.release is not None:
                host.release()
        info = BatchInfo(
            rows,
            int(np.count_nonzero(left < mixed.valid)),
            self._epoch,
            self._first_step + mixed.step,
            mixed.next_position,
            tuple(errors),
        )
        return HostBatch(pin(data) if self._fresh else data, info)


class _Deal:
    """Hands the parts of a plan's batches to the sources, as far ahead as any of them asks."""

    def __init__(self, plan: Iterator[MixedBatch]) -> None:
        self._plan: Iterator[MixedBatch] | None = plan
        self._planned: deque[MixedBatch] = deque()  # not delivered yet
        self._queues: dict[tuple[int, int], deque[PlannedBatch]] = {}
        self._epochs = _Epochs()

    def first(self) -> MixedBatch | None:
        """The batch that is delivered next; None at the end."""
        if not self._planned:
            self._pull()
        return self._planned[0] if self._planned else None

    def drop_first(self) -> None:
        """It was delivered."""
        if self._planned:
            self._planned.popleft()

    def of(self, source: int, epoch: int) -> Iterator[PlannedBatch]:
        """What a source has in one of its epochs, step by step."""
        queue = self._queue(source, epoch)
        while True:
            while not queue and not self._epochs.is_over(source, epoch) and self._pull():
                pass
            if not queue:
                self._queues.pop((source, epoch), None)
                return
            yield queue.popleft()

    def holds(self, source: int, epoch: int) -> bool:
        """Whether a source has something in one of its epochs that was not taken yet."""
        return bool(self._queues.get((source, epoch)))

    def close(self) -> None:
        """There is nothing more."""
        self._plan = None
        self._planned.clear()
        self._queues.clear()

    def _pull(self) -> bool:
        mixed = None if self._plan is None else next(self._plan, None)
        if mixed is None:
            self._plan = None
            return False
        for part in mixed.parts:
            planned = PlannedBatch(mixed.step, part.rows, len(part.rows), 0)
            self._queue(part.source, part.epoch).append(planned)
            self._epochs.pass_by(mixed.pool, part)
        self._planned.append(mixed)
        return True

    def _queue(self, source: int, epoch: int) -> deque[PlannedBatch]:
        return self._queues.setdefault((source, epoch), deque())


class _Epochs:
    """Which epochs of the sources are over, as batches pass by."""

    def __init__(self) -> None:
        self._pool = -1
        self._latest: dict[int, int] = {}  # epoch of each source
        self._before: dict[int, int] = {}  # likewise, in the pools before this one

    def pass_by(self, pool: int, part: Part) -> None:
        """Notes a part of a batch of a pool."""
        if pool != self._pool:
            self._pool, self._before = pool, dict(self._latest)
        self._latest[part.source] = max(part.epoch, self._latest.get(part.source, 0))

    def is_over(self, source: int, epoch: int) -> bool:
        """Whether nothing of an epoch comes any more, but what fills up the last batch."""
        return epoch < self._before.get(source, 0)


class _Source:
    """The streams of one source: one for each of its epochs, which follow one another."""

    def __init__(
        self, number: int, feed: NativeFeed, deal: _Deal, cursor: Cursor, ranks: Ranks
    ) -> None:
        self._number = number
        self._feed = feed
        self._deal = deal
        self._cursor = cursor
        self._ranks = ranks
        self._streams: dict[int, BatchStream] = {}
        self._held: dict[tuple[int, int], Batch] = {}  # came while all of one before was left out
        self._epochs = _Epochs()

    def batch(self, mixed: MixedBatch, part: Part) -> tuple[HostBatch, Batch] | None:
        """A batch's rows of one of the source's epochs; None where all of them were left out."""
        step = mixed.step
        self._epochs.pass_by(mixed.pool, part)
        batch = self._held.pop((part.epoch, step), None)
        if batch is None and any(epoch == part.epoch for epoch, _ in self._held):
            return None
        if batch is None:
            batch = self._next(part.epoch)
            if batch is None:
                return None
            if batch.step != step:
                self._held[part.epoch, batch.step] = batch
                return None
        for epoch, stream in list(self._streams.items()):
            if stream.ended and self._epochs.is_over(self._number, epoch):
                del self._streams[epoch]
                stream.close()
        return self._feed.host_batch(batch, 0, part=True), batch

    def ready(self, step: int, part: Part) -> bool:
        """Whether `batch` would return, or raise, without waiting."""
        return (part.epoch, step) in self._held or self._stream(part.epoch).ready()

    def close(self) -> None:
        """Ends them."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._held.clear()

    def _next(self, epoch: int) -> Batch | None:
        """The next batch of an epoch; None: all of the rest were left out."""
        batch = next(self._stream(epoch), None)
        if batch is None and self._deal.holds(self._number, epoch):
            self._streams.pop(epoch).close()  # it had ended: the last batch is filled up with more
            batch = next(self._stream(epoch), None)
        return batch

    def _stream(self, epoch: int) -> BatchStream:
        stream = self._streams.get(epoch)
        if stream is None:
            feed = self._feed
            stream = self._streams[epoch] = feed.engine().run(
                self._deal.of(self._number, epoch),
                seed=self._cursor.seed or 0,
                epoch=epoch,
                ahead=feed.settings.ahead,
                timeout_s=feed.settings.timeout_s,
                staging=feed.staging(self._cursor, self._ranks, known_order=False),
            )
        return stream


def _places(part: Part, batch: Batch) -> npt.NDArray[np.int64]:
    """Where a batch's rows stand, when some of the part's were left out of it."""
    if len(batch.rows) == len(part.rows):
        return part.places
    kept, at = [], 0
    for row in batch.rows.tolist():
        while part.rows[at] != row:
            at += 1
        kept.append(at)
        at += 1
    return part.places[kept]


def _check_alike(feeds: Sequence[NativeFeed]) -> None:
    first = feeds[0]
    for feed in feeds:
        if any(how.length is None for how in feed.transforms.audio.values()):
            raise TransformError("a mix needs clips of one length: give AudioDecode(length=...)")
        if feed.settings.collate_fn is not None:
            raise TransformError("a mix makes its batches itself: collate_fn is not possible")
        for what in ("structure", "classes", "fields"):
            expected, found = (_described(each, what) for each in (first, feed))
            if expected != found:
                raise SchemaError(
                    f"samples of a mix are alike: {first.dataset.path} has the {what} {expected}, "
                    f"{feed.dataset.path} has {found}"
                )


def _buckets(feeds: Sequence[NativeFeed]) -> list[Buckets]:
    """Of each source, where batches are of documents of similar lengths; else none."""
    found = [feed.sampling.buckets for feed in feeds]
    return [buckets for buckets in found if buckets is not None]


def _described(feed: NativeFeed, what: str) -> Any:
    if what == "fields":
        kinds = feed.dataset.schema.fields
        return {name: kinds[name] for name in feed.fields}
    return getattr(feed.dataset.schema, what)
