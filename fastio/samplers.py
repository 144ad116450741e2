"""What `Loader.sampler` and `Loader.batch_sampler` are where the user gave none.

They are of torch's classes, because frameworks test for these, and give the rows of the loader's
next epoch. Iterating over them leaves the loader and random generators as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from fastio.device import draw_seed
from fastio.feed import Feed
from fastio.formats.torch_dataset import endless_sampler, is_iterable_dataset
from fastio.resume import Cursor
from fastio.sampling import Ranks


@dataclass
class NextEpoch:
    """The epoch that a loader's next iterator begins or goes on with. The loader changes it.

    Attributes:
        feed: of the loader.
        cursor: where the next iterator begins.
        generator: that the epoch's order is drawn from; None: the cursor tells the order.
        ranks: the part of each global batch that the loader delivers.
    """

    feed: Feed
    cursor: Cursor
    generator: torch.Generator | None
    ranks: Ranks = field(default_factory=Ranks)

    def rows(self) -> Iterator[int]:
        """The rows of the whole epoch on this rank, in order.

        Raises:
            TypeError: rows are not numbered, or have no order before they are read.
        """
        cursor = replace(self.cursor, position=0)
        if self.generator is not None and cursor.order_seed is None:
            peeked = torch.Generator(self.generator.device)
            peeked.set_state(self.generator.get_state())
            cursor = replace(cursor, order_seed=draw_seed(peeked))
        return self.feed.rows(cursor, self.ranks)

    def __len__(self) -> int:
        """Samples of a whole epoch on this rank."""
        rows, size = self.feed.epoch_rows(), self.feed.sampling.batch_size or 1
        full, rest = divmod(rows, size * self.ranks.world_size)
        return full * size + -(-rest // self.ranks.world_size)


class RowsInOrder(SequentialSampler):
    """The rows of a loader that does not shuffle."""

    def __init__(self, data_source: Any, following: NextEpoch) -> None:
        super().__init__(data_source)
        self._following = following

    def __iter__(self) -> Iterator[int]:
        return self._following.rows()

    def __len__(self) -> int:
        return len(self._following)


class ShuffledRows(RandomSampler):
    """The rows of a loader that shuffles, in the next epoch's order."""

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
    """The sampler and the batch sampler of a loader, as DataLoader has them.

    Args:
        dataset: of the loader.
        following: the loader's next epoch.
        batch_size: samples of a batch on each rank; None: single samples.
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
