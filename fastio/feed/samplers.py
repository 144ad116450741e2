"""The values of `Loader.sampler` and `Loader.batch_sampler` if the user gave none.

They are instances of torch's classes, because frameworks test for these, and yield the rows of the
loader's next epoch. Iterating over them does not change the loader or random generators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from fastio.feed.base import Feed
from fastio.feed.seeds import (
    agreed_seed,
    draw_seed,
    generator_state,
    next_seed,
    restore,
    shared_name,
    unchanged,
    with_order_seed,
)
from fastio.order.sampling import Ranks
from fastio.order.state import Cursor
from fastio.sources.torch_dataset import endless_sampler, is_iterable_dataset


@dataclass
class NextEpoch:
    """The epoch that the loader's next iterator starts or continues. The loader changes it.

    Attributes:
        feed: feed of the loader.
        cursor: where the next iterator starts.
        generator: generator that draws the epoch's order; None if the seed decides the order, or
            torch's default generator draws it.
        persists: whether epochs after the first one draw no base seed, as with DataLoader's
            persistent workers.
        ranks: rank and world size that decide the loader's part of each global batch.
        timeout_s: maximum time to wait for the seed of rank 0, see `agreed_seed`.
    """

    feed: Feed
    cursor: Cursor
    generator: torch.Generator | None
    persists: bool = False
    ranks: Ranks = field(default_factory=Ranks)
    timeout_s: float = 0
    _based: Feed | None = None  # whose iterator drew a base seed last

    _name: str | None = None  # on all ranks

    def take_name(self) -> str:
        """Returns the name of the loader, which is the same on all ranks that share its epochs."""
        if self._name is None:
            feed, sampling = self.feed, self.feed.sampling
            kind, rows = type(feed.dataset).__name__, feed.epoch_rows()
            batches = f"batches of {sampling.batch_size}"
            self._name = shared_name(f"{kind} of {rows} rows, {sampling.mode}, {batches}")
        return self._name

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_based": None}

    def rows(self) -> Iterator[int]:
        """Returns the rows of the whole epoch on this rank, in order.

        Raises:
            TypeError: rows are not numbered, or have no order before they are read.
        """
        drawn = self.cursor.seed is not None or self.cursor.begun or self.generator is not None
        if not drawn and self.ranks.world_size > 1 and self.feed.random:
            raise TypeError(
                "without seed=, ranks that share an epoch agree on a seed when the first "
                "iterator is created, and the order is not known before: pass seed="
            )
        with unchanged(self.generator):
            cursor = self.drawn(replace(self.cursor, position=0), ahead=True)
            rows = self.feed.rows(cursor, self.ranks)
            first = list(islice(rows, 1))  # which draws the order
        return chain(first, rows)

    @property
    def draws_order(self) -> bool:
        """Whether the generator decides the order."""
        sampling = self.feed.sampling
        by_seed = sampling.random and self.feed.random  # a dataset that iterates has its own order
        return self.generator is not None and (sampling.draw is not None or by_seed)

    def drawn(self, cursor: Cursor, ahead: bool = False) -> Cursor:
        """Returns a cursor with the seeds of its epoch; seeds that are not given are drawn.

        Args:
            cursor: where an iterator starts.
            ahead: whether to draw on the torch path too what DataLoader would draw, because no
                iterator is made.

        Raises:
            LoaderTimeout: rank 0 did not share its seed in time.
            ValueError: ranks that share the epoch cannot agree on a seed.
        """
        generator, feed = self.generator, self.feed
        resumed = cursor.generator is not None
        if generator is not None and cursor.generator is not None:
            restore(generator, cursor.generator)
        if generator is not None and self.draws_order:
            cursor = replace(cursor, generator=generator_state(generator))
        # DataLoader draws this before its sampler draws anything; on the torch path it does here,
        # and the sampler draws when its first key is asked for. An epoch that goes on in the middle
        # has drawn both from torch's default generator before.
        own = ahead or feed.path == "native"
        again = self._based is feed or (resumed and cursor.epoch > 0)
        drawn = self.persists and again
        drawn = drawn or (generator is None and cursor.begun)
        base = draw_seed(generator) if own and not drawn else None
        self._based = self._based if ahead else feed
        if generator is not None and self.draws_order and feed.sampling.draw is None:
            cursor = replace(cursor, order_seed=draw_seed(generator))
        elif generator is None and own:
            cursor = with_order_seed(cursor, feed.sampling, self.ranks, feed.follows_torch)
        if cursor.seed is not None:
            return cursor
        if generator is not None or not feed.random:
            return replace(cursor, seed=base or 0)
        follows = feed.follows_torch and self.ranks.world_size == 1
        if follows or cursor.follows_torch:
            return replace(cursor, seed=cursor.order_seed if base is None else base)
        seed = next_seed() if base is None else base
        if self.ranks.world_size > 1 and feed.sampling.ours:
            seed = agreed_seed(seed, self.ranks, self.take_name(), self.timeout_s)
        return replace(cursor, seed=seed)

    def __len__(self) -> int:
        """Returns the number of samples of a whole epoch on this rank."""
        rows, size = self.feed.epoch_rows(), self.feed.sampling.batch_size or 1
        full, rest = divmod(rows, size * self.ranks.world_size)
        return full * size + -(-rest // self.ranks.world_size)


class RowsInOrder(SequentialSampler):
    """A sampler with the rows of a loader that does not shuffle."""

    def __init__(self, data_source: Any, following: NextEpoch) -> None:
        super().__init__(data_source)
        self._following = following

    def __iter__(self) -> Iterator[int]:
        return self._following.rows()

    def __len__(self) -> int:
        return len(self._following)


class ShuffledRows(RandomSampler):
    """A sampler with the rows of a loader that shuffles, in the next epoch's order."""

    def __init__(self, data_source: Any, following: NextEpoch) -> None:
        # RandomSampler's own __init__ counts the rows, and the data may have no length.
        self.data_source = data_source
        self.replacement = False
        self.generator = following.generator
        self._following = following

    @property
    def num_samples(self) -> int:
        return len(self._following)

    def __iter__(self) -> Iterator[int]:
        return self._following.rows()


def shown_samplers(
    dataset: Any, following: NextEpoch, batch_size: int | None
) -> tuple[Sampler[Any] | Iterable[Any], Sampler[Any] | Iterable[Any] | None]:
    """Returns the sampler and the batch sampler of a loader, as DataLoader has them.

    Args:
        dataset: dataset of the loader.
        following: next epoch of the loader.
        batch_size: number of samples per batch on each rank; None for single samples.
    """
    sampling = following.feed.sampling
    sampler: Any
    if sampling.sampler is not None:
        sampler = sampling.sampler
    elif is_iterable_dataset(dataset):
        sampler = endless_sampler()
    elif sampling.batch_sampler is None and sampling.mode != "sequential":
        sampler = ShuffledRows(dataset, following)
    elif sampling.batch_sampler is None:
        sampler = RowsInOrder(dataset, following)
    else:
        sampler = SequentialSampler(dataset)
    if sampling.batch_sampler is not None:
        return sampler, sampling.batch_sampler
    if batch_size is None:
        return sampler, None
    return sampler, BatchSampler(sampler, batch_size, sampling.drop_last)
