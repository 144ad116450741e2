"""Decides the rows of each batch: by torch's sampling arguments, or by an `Order` of fastio.

Without a sampler the order is a function of (seed, epoch), and each rank gets its part of every
global batch. A sampler or batch sampler is followed exactly, on every rank: as in torch, it must
shard by itself if sharding is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np

from fastio.order.buckets import BucketPlan, Buckets
from fastio.order.followed import DrawnFrom, Followed, Skip, after, behind, chunks
from fastio.order.order import Indices, Mode, Order
from fastio.order.orders import AnyOrder, Orders, Permutation, PickedOrder
from fastio.order.plan import Occurrences, Plan, PlannedBatch, follow, row_numbers
from fastio.order.shuffling import Shuffling
from fastio.order.state import END, Cursor, OrderState, States
from fastio.runtime.properties import cached_property

MOST_PERMUTED = 1 << 24  # rows; a permutation of more than 64 MiB is not kept in memory
OrderName = Literal["auto", "sequential", "shuffle", "window"]


@dataclass(frozen=True)
class Ranks:
    """The rank and world size of this process among those that share an epoch.

    Attributes:
        rank, world_size: as in torch.distributed.
        nodes: number of nodes, each with as many consecutive ranks.

    Raises:
        ValueError: the rank is not in [0, world_size).
    """

    rank: int = 0
    world_size: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in [0, world_size {self.world_size}), got {self.rank}")

    def share_of(self, partitions: int) -> range:
        """Returns the partitions whose rows this rank gets; see `plan.Plan`."""
        ends = self.rank * partitions, (self.rank + 1) * partitions
        return range(ends[0] // self.world_size, -(-ends[1] // self.world_size))


@dataclass(frozen=True)
class Sampling:
    """How an epoch is divided into batches. Arguments of `Loader` have their meaning there.

    Attributes:
        shuffling: how order "auto" shuffles this dataset, and the sizes of windows. If it has
            sizes, the loader's state contains them.
        buckets: batches have rows of similar lengths, see `buckets.Buckets`; None for any lengths.
        picked: int64 (n,), the rows of the dataset that are loaded; None for all. Everything else
            counts in places of this list.
        draw: draws an epoch's permutation of a number of rows, int64 (n,), instead of the shuffle
            that the seed decides.
        permute: returns RandomSampler's permutation of a number of rows for a seed that torch's
            default generator drew.
        generator_of: returns the generator from which a sampler draws its orders; see `Followed`.
        repeat: how often each row that occurs in an epoch occurs there; see `plan.Plan`.
        partitions: number of partitions with which data in a store was opened; None for one per
            node, see `partitions_of`.

    Raises:
        ValueError: arguments are mutually exclusive or out of range.
    """

    batch_size: int | None = 1
    shuffle: bool | None = None
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None
    drop_last: bool = False
    order: OrderName = "auto"
    shuffling: Shuffling = field(default_factory=Shuffling)
    buckets: Buckets | None = None
    picked: Indices | None = field(default=None, compare=False)
    draw: Callable[[int], Permutation] | None = None
    permute: Callable[[int, int], Permutation] | None = None
    generator_of: Callable[[object], DrawnFrom | None] | None = None
    repeat: int = 1
    partitions: int | None = None

    def __post_init__(self) -> None:
        if self.sampler is not None and self.shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if self.batch_sampler is not None:
            if self.batch_size != 1 or self.shuffle or self.sampler is not None or self.drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                    "sampler, and drop_last"
                )
        elif self.batch_size is None:
            if self.drop_last:
                raise ValueError(
                    "batch_size=None option disables auto-batching and is mutually exclusive "
                    "with drop_last"
                )
        elif type(self.batch_size) is not int or self.batch_size < 1:
            raise ValueError(
                "batch_size should be a positive integer value, but got "
                f"batch_size={self.batch_size!r}"
            )
        self._check_order()
        self._check_repeat()

    def _check_repeat(self) -> None:
        if type(self.repeat) is not int or self.repeat < 1:
            raise ValueError(f"repeat must be an integer of at least 1, got {self.repeat!r}")
        if self.repeat > 1 and not self.ours:
            raise ValueError(
                f"repeat={self.repeat} cannot be combined with a sampler, which decides itself how "
                "often a row occurs: leave out one of them"
            )
        if self.repeat > 1 and self.buckets is not None:
            raise ValueError(
                f"repeat={self.repeat} cannot be combined with batches of documents of similar "
                "lengths: no random augmentation makes their copies differ"
            )

    def _check_order(self) -> None:
        if self.order not in ("auto", "sequential", "shuffle", "window"):
            raise ValueError(
                f"order must be 'auto', 'sequential', 'shuffle' or 'window', got {self.order!r}"
            )
        if self.order == "auto":
            return
        if not self.ours:
            raise ValueError(f"order={self.order!r} cannot be combined with a sampler")
        if self.shuffle is not None and self.shuffle == (self.order == "sequential"):
            raise ValueError(f"order={self.order!r} cannot be combined with shuffle={self.shuffle}")

    @property
    def batched(self) -> bool:
        """Whether samples are collated in batches."""
        return self.batch_size is not None or self.batch_sampler is not None

    @property
    def ours(self) -> bool:
        """Whether the order is an `Order`; otherwise a sampler decides it."""
        return self.sampler is None and self.batch_sampler is None

    @property
    def mode(self) -> Mode | Literal["settle"]:
        """The order's mode."""
        if self.order != "auto":
            return self.order
        kind = self.shuffling.kind if self.shuffle else "sequential"
        # "settle" relies on the first epoch to fetch all rows.
        if kind == "settle" and self.repeat > 1:  # no epoch has all rows
            kind = "window"
        return cast("Mode", kind)

    def permutes(self, rows: int) -> bool:
        """Returns whether the order of an epoch this long can be RandomSampler's permutation."""
        plain = self.ours and self.mode == "shuffle" and self.buckets is None
        return plain and self.permute is not None and rows <= MOST_PERMUTED

    @property
    def how(self) -> Shuffling:
        """How the rows are shuffled, and why, with the arguments of the loader."""
        if not self.ours:
            return Shuffling("sampler", "argument")
        if self.draw is not None:
            return Shuffling("generator", "argument")
        if self.mode == self.shuffling.kind and self.order == "auto":
            return self.shuffling
        return replace(self.shuffling, kind=self.mode, reason="argument")

    def how_among(self, ranks: Ranks) -> Shuffling:
        """How the rows are shuffled for these ranks."""
        return replace(self.how, partitions=self.partitions_of(ranks))

    def partitions_of(self, ranks: Ranks) -> int:
        """Returns the number of partitions of the dataset of which each batch has equal parts.

        If the ranks are on several nodes, each one that fetches data from the store for itself has
        a partition, so that each byte is fetched once. Row groups that each rank reads for itself
        are divided among the ranks of one node, too. A state, or the option with which the data was
        opened, may decide on another number.
        """
        how = self.how
        if not how.by_windows or how.fetched_by is None:
            return 1
        decided = self.partitions or how.partitions
        if decided is not None:
            return decided
        if ranks.nodes == 1 and how.granularity != "row group":
            return 1
        return ranks.nodes if how.fetched_by == "node" else ranks.world_size

    def described(self, ranks: Ranks) -> OrderState:
        """Returns the values besides the seed on which an epoch's order depends."""
        how = self.how
        windows = how.by_windows and how.window is not None
        return {
            "kind": how.kind,
            "block": how.block if windows and how.bounds is None else None,
            "window": how.window if windows else None,
            "partitions": self.partitions_of(ranks),
            "repeat": self.repeat,
            **self.described_buckets(ranks),
        }

    def described_buckets(self, ranks: Ranks) -> OrderState:
        """Returns the values on which batches of rows of similar lengths depend."""
        if self.buckets is None:
            return {"pool": None, "global_batch": None}
        return {"pool": self.buckets.pool, "global_batch": self._global_batch(ranks)}

    def _global_batch(self, ranks: Ranks) -> int:
        return (self.batch_size or 1) * ranks.world_size

    def pool_rows(self, ranks: Ranks) -> int:
        """Returns the number of positions per pool of `buckets`; 1 without buckets."""
        return 1 if self.buckets is None else self.buckets.pool * self._global_batch(ranks)

    @property
    def random(self) -> bool:
        """Whether an epoch's order depends on a seed."""
        own = self.ours and self.draw is None
        return own and (self.mode != "sequential" or self.buckets is not None)

    def adopting(self, order: Mapping[str, Any]) -> Sampling:
        """Returns this sampling with the sizes of a state, if both have windows."""
        kind, block, window = (order.get(key) for key in ("kind", "block", "window"))
        partitions = order.get("partitions")
        by_window = kind == self.mode or (self.order == "auto" and bool(self.shuffle))
        if not self.ours or not by_window or not _is_count(window):
            return self
        own = self.shuffling
        if own.fetched_by is not None and _is_count(partitions):
            own = replace(own, partitions=partitions)
        if block is None and own.bounds:
            saved = replace(own, window=window)
            saved = saved if own.kind == "settle" else replace(saved, kind="window")
        elif _is_count(block) and kind in ("window", "settle"):
            saved = replace(
                own, kind=kind, granularity="block", block=block, window=window, bounds=None
            )
        else:
            return self
        if saved == self.shuffling:
            return self
        return replace(self, shuffling=replace(saved, reason="state"))

    def orders(self, rows: int, seed: int, ranks: Ranks) -> Orders:
        """Returns the orders of all epochs, if no sampler decides them."""
        how = self.shuffling
        return Orders(
            rows,
            seed,
            self.mode,
            # The defaults of `Order`, for order="window" with data that sets no sizes.
            how.block or 64,
            how.window or 64,
            self._picked_bounds if self._by_windows else how.bounds,
            self.partitions_of(ranks),
        )

    def steps(self, rows: int, ranks: Ranks) -> int:
        """Returns the number of batches of a whole epoch.

        Raises:
            TypeError: the sampler has no length.
        """
        if self.ours:
            return len(self.cut(Order(rows, mode="sequential"), ranks, 0))
        source = self.sampler if self.batch_sampler is None else self.batch_sampler
        length = len(cast(Sized, source))
        if self.batch_sampler is not None or self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else -(-length // self.batch_size)

    def first_step(self, position: int, ranks: Ranks) -> int:
        """Returns the number of the step at a position, if the position determines it."""
        if self.batch_sampler is not None:
            return 0
        return position // ((self.batch_size or 1) * (ranks.world_size if self.ours else 1))

    def plan(
        self, rows: int, cursor: Cursor, ranks: Ranks, count: bool = False
    ) -> Iterator[PlannedBatch]:
        """Yields the batches of rows from the cursor to the end of its epoch, lazily.

        Args:
            rows: number of rows of the dataset.
            cursor: where to start.
            ranks: ranks that share the epoch.
            count: whether to count how often each row of a sampler occurred earlier. Without a
                sampler only rows that are repeated or picked twice occur twice, and those are
                always counted.
        """
        if self.ours:
            drawn = self.order_of(rows, cursor, ranks)
            buckets = self.buckets
            picked, again = self._listed
            # If no row is picked twice, the order yields rows, and small batches can be looked up
            # together. Otherwise it yields places in the list, which distinguish the occurrences of
            # a row.
            order = drawn if picked is None or again is not None else PickedOrder(drawn, picked)
            if picked is not None and again is not None and buckets is not None:
                buckets = buckets.of(picked)
            plan = self.cut(order, ranks, cursor.position)
            batches = iter(plan if buckets is None else BucketPlan(plan, buckets))
            if picked is None or again is None:
                return batches
            # Goes on after an error, unlike a generator.
            return map(partial(self._again_picked, picked, again), batches)
        seen = Occurrences(rows, self.picked) if count else None

        def skip(keys: Sequence[Any]) -> None:
            if seen is not None:
                seen.count(row_numbers(keys, rows))

        keys = self.keys(cursor, skip)
        followed, picked = follow(keys, rows, cursor.position, seen), self.picked
        if picked is None:
            return followed
        return (batch.with_rows(picked[batch.rows], batch.occurrences) for batch in followed)

    def _again_picked(
        self,
        picked: Indices,
        again: Indices,
        batch: PlannedBatch,
    ) -> PlannedBatch:
        """Returns a batch of places in a list as a batch of the dataset's rows.

        Args:
            picked: int64 (n,), the row at each place.
            again: int64 (n,), how often it was picked at an earlier place.
            batch: batch whose rows are places.
        """
        earlier, copies = again[batch.rows], batch.occurrences
        occurrences = earlier if copies is None else earlier * self.repeat + copies
        return batch.with_rows(picked[batch.rows], occurrences)

    def picked_at(self, places: Indices) -> tuple[Indices, Indices | None]:
        """Returns the picked rows at places, and how often each was picked at an earlier place."""
        if self.picked is None:
            return places, None
        return self.picked[places], None if self._again is None else self._again[places]

    def places(self, rows: Indices, occurrences: Indices | None) -> Indices:
        """Returns the places of dataset rows among the picked rows, int64 (n,).

        Args:
            rows: int64 (n,).
            occurrences: int64 (n,), how often each occurred earlier in the epoch; None if never.
                With a sampler, a row that is picked several times has the place where it was picked
                first.
        """
        if self.picked is None:
            return rows
        by_row, ascending = self._by_row
        found = np.searchsorted(ascending, rows)
        if occurrences is not None and self.ours:
            found = found + occurrences // self.repeat
        return by_row[found]

    @cached_property
    def _by_row(self) -> tuple[Indices, Indices]:
        """Returns the places of the picked rows, sorted by row, and these rows."""
        assert self.picked is not None
        places = np.argsort(self.picked, kind="stable")
        return places, self.picked[places]

    @property
    def _by_windows(self) -> bool:
        """Whether picked rows are shuffled in windows of the blocks in which they lie."""
        return self.how.by_windows and self.picked is not None

    @cached_property
    def _picked_bounds(self) -> tuple[int, ...]:
        """Returns the bounds of the dataset's blocks or shards among the sorted picked rows."""
        _, ascending = self._by_row
        last = int(ascending[-1]) + 1 if ascending.size else 0
        block, bounds = self.shuffling.block or 64, self.shuffling.bounds
        cuts = np.arange(0, last, block) if bounds is None else np.array(bounds, np.int64)
        places = np.searchsorted(ascending, cuts)
        return tuple(np.unique(np.append(places, [0, len(ascending)])).tolist())

    @cached_property
    def _listed(
        self,
    ) -> tuple[Indices | None, Indices | None]:
        """The picked rows in the list that an order permutes, and their earlier occurrences."""
        if not self._by_windows:
            return self.picked, self._again
        places, ascending = self._by_row
        return ascending, None if self._again is None else self._again[places]

    @cached_property
    def _again(self) -> Indices | None:
        """Returns how often each place's row was picked earlier; None if no row is picked twice."""
        if self.picked is None or not self.picked.size:
            return None
        # Counted once for a loader, not in each epoch.
        times = Occurrences(int(self.picked.max()) + 1).count(self.picked)
        return times if times.any() else None

    def rows(self, rows: int, cursor: Cursor, ranks: Ranks) -> Iterator[int]:
        """Returns the rows of the order from the cursor on, with those that `drop_last` drops."""
        for batch in replace(self, drop_last=False).plan(rows, cursor, ranks):
            yield from self.places(batch.rows, batch.occurrences).tolist()

    def order_of(self, rows: int, cursor: Cursor, ranks: Ranks) -> AnyOrder:
        """Returns the order of the cursor's epoch; a generator may draw it now."""
        in_order = Order(rows, cursor.of_order(), cursor.epoch, mode="sequential")
        if self.draw is not None:
            return PickedOrder(in_order, self.draw(rows))
        if cursor.follows_torch and self.permute is not None and self.permutes(rows):
            return PickedOrder(in_order, self.permute(rows, cursor.of_order()))
        return self.orders(rows, cursor.of_order(), ranks).epoch(cursor.epoch)

    def keys(self, cursor: Cursor, skip: Skip = lambda keys: None) -> Iterator[Sequence[Any]]:
        """Yields the sampler's batches of keys from the cursor to the end of its epoch.

        If the sampler, or the iterator over it, has a state of its own, it continues from the state
        that was saved, and its state after each batch is recorded in `cursor.states`. Any other
        sampler is iterated over from its beginning, and the samples before the cursor are skipped.
        One of torch's random samplers draws the same order again.

        Args:
            cursor: where to start.
            skip: function that is called with the keys of samples that are skipped.

        Raises:
            StateMismatch: the sampler cannot load the state that was saved.
        """
        given = self.sampler if self.batch_sampler is None else self.batch_sampler
        followed = Followed(
            cast("Iterable[Any]", given),
            cursor.states or States(),
            self.generator_of or (lambda sampler: None),
            cursor.position > 0,
        )
        position, left_out = cursor.position, 0 if followed.resumed else cursor.position
        if self.batch_sampler is not None:
            batches = after(followed.keys, left_out, skip)
        else:
            keys = behind(followed.keys, left_out, skip)
            batches = chunks(keys, self.batch_size or 1, self.drop_last)
        for batch in batches:
            position += len(batch)
            followed.note(position)
            yield batch
        followed.note(END)

    def cut(self, order: AnyOrder, ranks: Ranks, start: int) -> Plan:
        """Returns a plan that divides an order into batches from a position on."""
        start = min(start, order.rows)
        batch_size = self.batch_size or 1
        return Plan(
            order, batch_size, self.drop_last, ranks.rank, ranks.world_size, start, self.repeat
        )


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0
