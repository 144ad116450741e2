"""Batches of several sources: each engine reads its source's rows, and the parts are joined."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from fastio.device import HostBatch
from fastio.engine import BatchStream
from fastio.engine.batch import Batch
from fastio.engine.ragged import Forms, is_ragged
from fastio.errors import FastioError, LoaderTimeout, SampleError, StoreError
from fastio.feed.base import BatchInfo, Numbers
from fastio.feed.delivery import Delivery
from fastio.feed.native import NativeFeed
from fastio.order.plan import PlannedBatch
from fastio.order.sampling import Ranks
from fastio.order.state import Cursor
from fastio.tensors.ragged import ragged_of_lists
from fastio.tensors.trees import merged, pin, rows_of
from fastio.views.mixing import MixedBatch, Part


class LeafFeed(NamedTuple):
    """One of the sources from which batches are made.

    Attributes:
        feed: feed that reads the source.
        cursor: seed and epoch that key the draws of its samples.
        places: function that returns the row numbers to report, given rows of the dataset and how
            often they occurred earlier.
    """

    feed: NativeFeed
    cursor: Cursor
    places: Callable[[Numbers, Numbers | None], Numbers]


class Joined(NamedTuple):
    """The parts of a batch that come from the sources.

    Attributes:
        mixed: the planned batch.
        parts: each part that has rows, the rows, and their places in the batch, int64 (n,).
        left: int64 (n,), the places in the planned batch that were not skipped, ascending.
    """

    mixed: MixedBatch
    parts: list[tuple[Part, Batch, Numbers]]
    left: Numbers


class JoinedRun:
    """Reads the parts of the batches of one run: an iterator of `Joined`.

    Args:
        leaves: the sources.
        plan: the batches, split into parts by source.
        ranks: ranks that share the epoch.
        most: maximum number of batches that are planned and not yet delivered.

    Attributes:
        leaves: the sources.
    """

    def __init__(
        self, leaves: Sequence[LeafFeed], plan: Iterator[MixedBatch], ranks: Ranks, most: int
    ) -> None:
        self.leaves = leaves
        self._deal = _Deal(plan, most)
        self._sources = [
            _Source(number, leaf, self._deal, ranks) for number, leaf in enumerate(leaves)
        ]
        self._taken: list[Batch | None] = []  # parts of the batch that is delivered next
        self._failed = False  # whether reading a part of that batch failed

    def __iter__(self) -> JoinedRun:
        return self

    def __next__(self) -> Joined:
        """Returns the parts of the next batch; raises the errors of `BatchStream.__next__`."""
        while True:
            mixed = self._deal.first()
            if mixed is None:
                for source in self._sources:
                    source.finish()
                raise StopIteration
            self._begin_following()
            for part in mixed.parts[len(self._taken) :]:
                self._taken.append(self._part(mixed, part))
            batches, self._taken = self._taken, []
            failed, self._failed = self._failed, False
            self._deal.drop_first()
            found = [(p, b) for p, b in zip(mixed.parts, batches, strict=True) if b is not None]
            if not failed and found:
                return _joined(mixed, found)
            for _, batch in found:
                batch.release()

    def _part(self, mixed: MixedBatch, part: Part) -> Batch | None:
        try:
            return self._sources[part.source].batch(mixed, part)
        except (StoreError, LoaderTimeout):  # the next call tries the same batch again
            raise
        except Exception:  # ... or goes on behind it
            self._taken.append(None)
            self._failed = True
            raise

    def _begin_following(self) -> None:
        """Starts the sources of the following batch, if they have not started."""
        # The rows are then read while the current batch is assembled and used.
        following = self._deal.second()
        for part in () if following is None else following.parts:
            self._sources[part.source].begin(part)

    def ready(self) -> bool:
        """Returns whether next() would return or raise without waiting."""
        mixed = self._deal.first()
        if mixed is None:
            return True
        left = mixed.parts[len(self._taken) :]
        return all(self._sources[part.source].ready(mixed.step, part) for part in left)

    def close(self) -> None:
        """Ends the run."""
        self._deal.close()
        for source in self._sources:
            source.close()


class Joiner:
    """Puts the parts of batches together.

    Args:
        epoch: epoch of the run.
        first_step: number of the first step of the run.
        ragged: forms of the fields whose rows differ in size.
        leaves: the sources.
    """

    def __init__(
        self, epoch: int, first_step: int, ragged: Forms, leaves: Sequence[LeafFeed]
    ) -> None:
        self._epoch = epoch
        self._first_step = first_step
        self._leaves = leaves
        feed = leaves[0].feed  # all other feeds are equal except for the dataset
        kinds = feed.dataset.schema.fields
        self._kinds = {name: kinds[name] for name in feed.fields}
        ragged_names = [name for name, kind in self._kinds.items() if is_ragged(kind)]
        self._forms = {name: ragged.get(name, "list") for name in ragged_names}
        self._delivery = feed.delivery
        self._collates = feed.settings.collate_fn is not None
        self._pinned = feed.settings.pinned != "no"
        self._fresh = feed.settings.pinned == "fresh"

    def host_batch(self, joined: Joined) -> HostBatch:
        """Returns a batch in the structure of the samples."""
        info = self._info(joined)
        host = (self._collated if self._collates else self._merged)(joined.parts)
        if self._pinned and not self._fresh:
            for _, batch, _ in joined.parts:
                batch.release()
        return HostBatch(pin(host) if self._fresh else host, info)

    def _info(self, joined: Joined) -> BatchInfo:
        mixed, parts, left = joined
        rows, occurrences = np.empty(len(left), np.int64), np.zeros(len(left), np.int64)
        errors = list[SampleError]()
        for part, batch, at in parts:
            rows[at] = self._leaves[part.source].places(batch.rows, batch.occurrences)
            if batch.occurrences is not None:
                occurrences[at] = batch.occurrences
            errors += batch.errors
        return BatchInfo(
            rows,
            int(np.count_nonzero(left < mixed.valid)),
            self._epoch,
            self._first_step + mixed.step,
            mixed.next_position,
            tuple(errors),
            occurrences if any(b.occurrences is not None for _, b, _ in parts) else None,
        )

    def _merged(self, found: Sequence[tuple[Part, Batch, Numbers]]) -> Any:
        """Joins parts into one batch of tensors; each part comes with the places of its rows."""
        trees = [self._of(part).tensors(batch.fields) for part, batch, _ in found]
        trees = self._delivery.of_one_length(trees, [batch.fields for _, batch, _ in found])
        turns = [at for _, _, at in found]
        count = sum(map(len, turns))
        data = merged(list(zip(trees, turns, strict=True)), count, self._pinned)
        data = self._delivery.with_bounds(data, data)
        # The sources give lists of views of their slots, which are copied here.
        return ragged_of_lists(data, self._forms, self._kinds) if self._forms else data

    def _collated(self, found: Sequence[tuple[Part, Batch, Numbers]]) -> Any:
        """Returns the batch that collate_fn makes from the samples of all parts."""
        began_s = time.perf_counter()
        steps, whole = self._delivery.steps, None
        if steps is not None:  # functions of whole batches are among them
            whole = steps(self._merged(found))
        samples: list[Any] = [None] * sum(len(at) for _, _, at in found)
        fields = [batch.fields for _, batch, _ in found]
        fields = self._delivery.of_one_length(fields, fields)
        for (part, _, at), values in zip(found, fields, strict=True):
            own = self._of(part)
            data = own.tensors(values) if whole is None else rows_of(whole, at)
            for place, sample in zip(at.tolist(), own.samples(data, values), strict=True):
                samples[place] = sample
        data = self._delivery.collated(samples)
        self._delivery.transform_s += time.perf_counter() - began_s
        return data

    def _of(self, part: Part) -> Delivery:
        return self._leaves[part.source].feed.delivery


class _Deal:
    """Distributes the parts of planned batches to the sources, as far ahead as any source asks."""

    def __init__(self, plan: Iterator[MixedBatch], most: int) -> None:
        self._plan: Iterator[MixedBatch] | None = plan
        self._most = most
        self._planned: deque[MixedBatch] = deque()  # not delivered yet
        self._queues: dict[tuple[int, int], deque[PlannedBatch]] = {}
        self._epochs = _Epochs()

    def first(self) -> MixedBatch | None:
        """Returns the batch that is delivered next; None at the end."""
        if not self._planned:
            self._pull()
        return self._planned[0] if self._planned else None

    def second(self) -> MixedBatch | None:
        """Returns the batch after the next one; None if it is not planned yet."""
        return self._planned[1] if len(self._planned) > 1 else None

    def drop_first(self) -> None:
        """Removes the first batch after its delivery."""
        if self._planned:
            self._planned.popleft()

    def of(self, source: int, epoch: int) -> Iterator[PlannedBatch]:
        """Yields the parts of a source in one of its epochs, step by step."""
        queue = self._queue(source, epoch)
        while True:
            while not queue and not self._epochs.is_over(source, epoch) and self._pull():
                pass
            if not queue:
                self._queues.pop((source, epoch), None)
                return
            yield queue.popleft()

    def holds(self, source: int, epoch: int) -> bool:
        """Returns whether a source has parts in one of its epochs that it has not taken yet."""
        return bool(self._queues.get((source, epoch)))

    def close(self) -> None:
        """Drops all planned batches and ends the plan."""
        self._plan = None
        self._planned.clear()
        self._queues.clear()

    def _pull(self) -> bool:
        if len(self._planned) >= self._most:  # a source that nothing comes of for long ends here,
            return False  # and is begun anew
        mixed = None if self._plan is None else next(self._plan, None)
        if mixed is None:
            self._plan = None
            return False
        for part in mixed.parts:
            planned = PlannedBatch(mixed.step, part.rows, len(part.rows), 0, part.occurrences)
            self._queue(part.source, part.epoch).append(planned)
            self._epochs.pass_by(mixed.pool, part)
        self._planned.append(mixed)
        return True

    def _queue(self, source: int, epoch: int) -> deque[PlannedBatch]:
        return self._queues.setdefault((source, epoch), deque())


class _Epochs:
    """Tracks which epochs of the sources are over."""

    def __init__(self) -> None:
        self._pool = -1
        self._latest: dict[int, int] = {}  # epoch of each source
        self._before: dict[int, int] = {}  # likewise, in the pools before this one

    def pass_by(self, pool: int, part: Part) -> None:
        """Records a part of a batch of a pool."""
        if pool != self._pool:
            self._pool, self._before = pool, dict(self._latest)
        self._latest[part.source] = max(part.epoch, self._latest.get(part.source, 0))

    def is_over(self, source: int, epoch: int) -> bool:
        """Returns whether an epoch has no more parts, except rows that fill the last batch."""
        return epoch < self._before.get(source, 0)


class _Source:
    """The streams of one source: one per epoch of the source."""

    def __init__(self, number: int, leaf: LeafFeed, deal: _Deal, ranks: Ranks) -> None:
        self._number = number
        self._feed, self._cursor = leaf.feed, leaf.cursor
        self._deal = deal
        self._ranks = ranks
        self._streams: dict[int, BatchStream] = {}
        # Batches that came before their turn because earlier rows were skipped.
        self._held: dict[tuple[int, int], Batch] = {}
        self._epochs = _Epochs()

    def batch(self, mixed: MixedBatch, part: Part) -> Batch | None:
        """Returns a batch's rows in one epoch of the source; None if all of them were skipped."""
        step = mixed.step
        self._epochs.pass_by(mixed.pool, part)
        batch = self._held.pop((part.epoch, step), None)
        if batch is None and any(epoch == part.epoch for epoch, _ in self._held):
            return None
        if batch is None:
            batch = self._next(part.epoch)
            if batch is None:
                return None
            # The batch is of a later step if all rows of this part were skipped.
            if batch.step != step:
                self._held[part.epoch, batch.step] = batch
                return None
        # The stream of an epoch that is over delivers nothing more.
        for epoch, stream in list(self._streams.items()):
            if stream.ended and self._epochs.is_over(self._number, epoch):
                del self._streams[epoch]
                stream.close()
        return batch

    def begin(self, part: Part) -> None:
        """Starts the work on the next part of one of its epochs."""
        with suppress(FastioError):  # the error is raised again when its batch is delivered
            self._stream(part.epoch).ready()

    def ready(self, step: int, part: Part) -> bool:
        """Returns whether `batch` would return or raise without waiting."""
        return (part.epoch, step) in self._held or self._stream(part.epoch).ready()

    def finish(self) -> None:
        """Raises errors that the streams found in data that they have read."""
        for stream in self._streams.values():
            next(stream, None)

    def close(self) -> None:
        """Closes the streams."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._held.clear()

    def _next(self, epoch: int) -> Batch | None:
        """Returns the next batch of an epoch; None if all remaining rows were skipped."""
        batch = next(self._stream(epoch), None)
        if batch is None and self._deal.holds(self._number, epoch):
            batch = next(self._stream(epoch), None)
        return batch

    def _stream(self, epoch: int) -> BatchStream:
        stream = self._streams.get(epoch)
        if stream is not None and stream.ended and self._deal.holds(self._number, epoch):
            # Nothing came of it for long, or the last batch is filled up with more.
            next(stream, None)  # says what was found to be wrong with what it read
            self._streams.pop(epoch).close()
            stream = None
        if stream is None:
            parts = self._deal.of(self._number, epoch)
            stream = self._feed.stream(parts, self._cursor, self._ranks, epoch, known_order=False)
            self._streams[epoch] = stream
        return stream


def _joined(mixed: MixedBatch, found: Sequence[tuple[Part, Batch]]) -> Joined:
    """Returns the parts of a batch, with the places of their rows without the skipped ones."""
    places = [_places(part, batch) for part, batch in found]
    left = np.sort(np.concatenate(places))
    rank_of = np.full(mixed.size, -1, np.int64)  # place in the planned batch -> place in the result
    rank_of[left] = np.arange(len(left))
    parts = zip(found, places, strict=True)
    return Joined(mixed, [(part, batch, rank_of[at]) for (part, batch), at in parts], left)


def _places(part: Part, batch: Batch) -> Numbers:
    """Returns the places of a batch's rows, of which some of the part's may be skipped."""
    if len(batch.rows) == len(part.rows):
        return part.places
    kept, at = [], 0
    for row in batch.rows.tolist():
        # Skipping rows does not change the order of the others.
        while part.rows[at] != row:
            at += 1
        kept.append(at)
        at += 1
    return part.places[kept]
