"""The base of all feeds. A feed makes the host batches of a loader's epochs.

A kind of feed defines `run`, which returns the batches of one epoch, and what it does otherwise
than the base: which rows an epoch has, how its order is named, what else must be closed. The base
answers all other questions from the dataset and the sampling.

What holds for every feed:
- `run` may be called again before an earlier run has ended. A run ends when it is exhausted,
  closed or garbage; `close` ends all runs.
- An epoch is a function of (dataset, sampling, cursor, ranks). A feed keeps no position: the cursor
  has it, and `BatchInfo.next_position` is the position after a batch. Hence a loader resumes
  exactly at any batch.
- After an error of one batch, the next call of `next` returns the following batch; after
  `LoaderTimeout` or `StoreError` it tries the same batch again.
- Expensive resources (threads, worker processes, slots) are created on first use in the process
  that uses them, so that a loader can be pickled and forked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from fastio.device import HostBatch
from fastio.errors import SampleError, TransformError
from fastio.order.sampling import Ranks, Sampling
from fastio.order.shuffling import Shuffling
from fastio.order.state import Cursor, OrderState
from fastio.stats import Stats
from fastio.tensors.trees import Finish
from fastio.transforms import Augmentation
from fastio.views.mixing import Chain

if TYPE_CHECKING:
    from fastio.feed.native import NativeFeed

Numbers = npt.NDArray[np.int64]
_Part = TypeVar("_Part")
_Part_co = TypeVar("_Part_co", covariant=True)


class BatchInfo(NamedTuple):
    """Information about a batch besides its data.

    Attributes:
        rows: int64 (n,), the global row of every sample; None if a torch dataset does not tell.
        valid: number of samples that count; those after them repeat others, so that every rank
            makes the same number of steps.
        epoch: epoch, from 0.
        step: number of the batch in its epoch, from 0.
        next_position: position of the epoch after this batch; see `Cursor.position`.
        errors: errors of samples that were skipped or replaced.
        occurrences: int64 (n,), how often each row occurred earlier in the epoch, which its random
            draws depend on; None if that has no effect: nothing is drawn, or no row occurs twice.
        order_seed: seed of the epoch's order, if it was drawn when the first row was requested.
    """

    rows: npt.NDArray[np.int64] | None
    valid: int
    epoch: int
    step: int
    next_position: int
    errors: tuple[SampleError, ...] = ()
    occurrences: npt.NDArray[np.int64] | None = None
    order_seed: int | None = None


class Asked(NamedTuple):
    """The arguments of `Loader.augmentation`: rows whose random draws are wanted.

    Attributes:
        rows, occurrences: int64 (n,): the rows, and how often each occurred earlier in the epoch.
        field: name of the image field; None if there is only one.
        view: number of the view of the field.
    """

    rows: Numbers
    occurrences: Numbers
    field: str | None
    view: int

    @classmethod
    def of(
        cls, rows: npt.ArrayLike, occurrences: npt.ArrayLike, field: str | None, view: int
    ) -> Asked:
        """Returns the arguments as arrays; a single number of occurrences applies to all rows."""
        numbers = np.asarray(rows, np.int64).reshape(-1)
        often = np.broadcast_to(np.asarray(occurrences, np.int64), numbers.shape)
        return cls(numbers, often, field, view)


class RunSource(Protocol[_Part_co]):
    """An iterator over what threads or processes make for one run."""

    def __iter__(self) -> Iterator[_Part_co]: ...
    def __next__(self) -> _Part_co: ...

    def ready(self) -> bool:
        """Returns whether next() would return or raise without waiting."""

    def close(self) -> None:
        """Ends the run and all work for it."""


HostBatches = RunSource[HostBatch]  # whose `info` is a `BatchInfo`


class Batches(Generic[_Part]):
    """The batches of one run: what a source makes, delivered as `HostBatch`.

    Args:
        source: makes the batches.
        deliver: returns one of them as tensors, with its `BatchInfo`.
    """

    def __init__(self, source: RunSource[_Part], deliver: Callable[[_Part], HostBatch]) -> None:
        self._source = source
        self._deliver = deliver

    def __iter__(self) -> Batches[_Part]:
        return self

    def __next__(self) -> HostBatch:
        return self._deliver(next(self._source))

    def ready(self) -> bool:
        """Returns whether next() would return or raise without waiting."""
        return self._source.ready()

    def close(self) -> None:
        """Ends the run."""
        self._source.close()


class Feed(ABC):
    """Makes host batches, and reports their order, draws and statistics.

    Args:
        dataset: the dataset.
        sampling: sampling, which decides the rows of each batch.
        finish: steps that are applied to the data on its device; None if there are none.
        ahead: number of batches that are ready or in work before they are requested.

    Attributes:
        path: the path of `Loader`.
        reason: why the torch path is used; "" on the native path.
        draws: whether random numbers are drawn for each sample.
        local: whether all data is on this machine. Remote blocks are fetched ahead, also beyond the
            epoch's end, so their order must be known early.
        leaves: native feeds of this feed, whose engines read the rows; none on other paths.
        chain: rows of the leaves, one leaf after the other, if other feeds can be joined to them.
        without_draws: message of the error that `augmentation` raises if there are none.
    """

    path: Literal["native", "torch"] = "native"
    reason = ""
    draws = False
    local = True
    without_draws = ""
    leaves: Sequence[NativeFeed] = ()
    chain: Chain | None = None

    def __init__(
        self, dataset: Any, sampling: Sampling, finish: Finish | None = None, ahead: int = 0
    ) -> None:
        self.dataset = dataset
        self.sampling = sampling
        self.finish = finish
        self.ahead = ahead

    @abstractmethod
    def run(self, cursor: Cursor, ranks: Ranks) -> HostBatches:
        """Returns the batches from the cursor to the end of its epoch."""

    @abstractmethod
    def close(self) -> None:
        """Ends threads and processes. May be called more than once."""

    def warn(self) -> None:  # noqa: B027 - most kinds have none
        """Issues the warnings that a loader with this feed must issue; none by default."""

    @property
    def identity(self) -> str:
        """The fingerprint of all rows of the dataset."""
        return str(self.dataset.fingerprint)

    @property
    def fingerprint(self) -> str:
        """A text that identifies the dataset and the picked rows in a loader's state."""
        picked = self.sampling.picked
        if picked is None:
            return self.identity
        return xxhash.xxh3_64_hexdigest(self.identity.encode() + picked.tobytes())

    @property
    def random(self) -> bool:
        """Whether the order or the draws depend on the cursor's seed."""
        return self.sampling.random or self.draws

    def shuffling(self, ranks: Ranks) -> Shuffling:
        """Returns how the rows are shuffled, and why."""
        return self.sampling.how_among(ranks)

    @property
    def follows_torch(self) -> bool:
        """Whether an epoch can have RandomSampler's order, drawn by torch's default generator."""
        possible = self.local and self.sampling.permute is not None
        return possible and self.sampling.permutes(self.epoch_rows())

    def epoch_rows(self) -> int:
        """Returns the number of samples of a whole epoch over all ranks."""
        picked = self.sampling.picked
        return len(self.dataset) if picked is None else len(picked)

    def steps(self, ranks: Ranks) -> int:
        """Returns the number of batches of a whole epoch on one rank."""
        # A dataset needs a length only where no sampler tells which rows there are.
        return self.sampling.steps(self.epoch_rows() if self.sampling.ours else 0, ranks)

    def ended(self, position: int, ranks: Ranks) -> bool:
        """Returns whether no batch of an epoch follows a position; False if that is unknown."""
        # With a sampler, it is not known in advance when an epoch ends. At position 0, none has
        # ended.
        if not position or not self.sampling.ours:
            return False
        done = self.sampling.first_step(position, ranks)
        return position >= self.epoch_rows() or done >= self.steps(ranks)

    def rows(self, cursor: Cursor, ranks: Ranks) -> Iterator[int]:
        """Returns one rank's rows from the cursor to the end of its epoch, in the feed's own order.

        Raises:
            TypeError: rows are not numbered, or have no order before they are read.
        """
        return self.sampling.rows(self.epoch_rows(), cursor, ranks)

    @property
    def order_varies(self) -> bool:
        """Whether the order depends on the room in the cache, which differs between nodes."""
        how = self.sampling.shuffling
        return self.sampling.ours and how.fetched_by == "node" and how.granularity == "block"

    def order(self, ranks: Ranks) -> OrderState:
        """Returns the values besides the seed on which the order of an epoch depends.

        A loader's state has them, because its position counts in that order. The keys are the same
        for all loaders with this kind of feed.
        """
        return self.sampling.described(ranks)

    def states(self, cursor: Cursor) -> Mapping[str, Any]:
        """Returns the states of the user's dataset and sampler at a cursor, by name."""
        return {} if cursor.states is None else cursor.states.at(cursor.position)

    def check_states(self, saved: Mapping[str, Any]) -> None:  # noqa: B027 - most kinds have none
        """Checks that the dataset of this feed can continue from saved states.

        Raises:
            StateMismatch: it cannot.
        """

    def adopt_order(  # noqa: B027 - most kinds have none
        self, order: Mapping[str, Any], ranks: Ranks
    ) -> None:
        """Uses the sizes of blocks and windows of a loader's state; most kinds have none."""

    def augmentation(self, cursor: Cursor, ranks: Ranks, asked: Asked) -> list[Augmentation]:
        """Returns what is drawn for rows of the loader in the cursor's epoch."""
        picked = self.sampling.picked
        return self.drawn(
            cursor, ranks, asked if picked is None else asked._replace(rows=picked[asked.rows])
        )

    def drawn(self, cursor: Cursor, ranks: Ranks, asked: Asked) -> list[Augmentation]:
        """Returns what is drawn for rows of the dataset.

        Raises:
            TransformError: this kind of feed draws nothing that it can tell.
        """
        raise TransformError(self.without_draws)

    def set_threads(self, threads: int) -> int:
        """Changes the number of native threads; returns the new number, or 0 if it is fixed."""
        return 0

    def stats(self) -> Stats:
        """Returns the counters of the threads; those of other stages are zero."""
        return Stats(path=self.path, reason=self.reason)
