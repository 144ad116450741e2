"""What readers of fields have in common: the seam between them and the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fastio import _native
from fastio.engine.batch import AnyArray, Lease, SlotPool
from fastio.errors import SampleError, ShardCorrupt
from fastio.packed.rows import Rows
from fastio.packed.sample_errors import NOT_OF_SAMPLES

if TYPE_CHECKING:
    from fastio.engine.pending import Pending

T = TypeVar("T")


@dataclass
class Work:
    """The work of one reader for a batch.

    Attributes:
        pools: pools of the reader's fields.
        memory: slots that threads write, by field.
        leases: leases of slots whose values were delivered.
        slots: work of native threads.
        futures: work of Python threads, by place in the batch.
        values: values that need no slot, by field.
        detail: what a reader keeps from `submit` to `finish` besides this.
    """

    pools: Mapping[str, SlotPool] = field(default_factory=dict)
    memory: dict[str, AnyArray] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    slots: list[_native.Slot] = field(default_factory=list)
    futures: dict[int, Future[Any]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    detail: Any = None

    def acquire(self, name: str, rows: int) -> AnyArray:
        """Returns a slot of a field, with room for at least `rows` rows."""
        memory = self.memory[name] = self.pools[name].acquire(rows)
        return memory

    def lease(self, name: str) -> Lease:
        """Returns the lease of a field's slot, which no thread writes any more."""
        lease = self.leases[name] = Lease(self.pools[name], self.memory.pop(name))
        return lease

    def release(self) -> None:
        """Takes back all slots of a batch that is not delivered."""
        for name, memory in self.memory.items():
            self.pools[name].release(memory)
        self.memory = {}
        # Fields that were finished before another one failed have leases.
        for lease in self.leases.values():
            lease.release()
        self.futures = {}  # futures refer to errors: see `Pending.release`


class Reader(ABC):
    """Reads one kind of field for batches: finds the reads, submits them, and finishes them.

    Attributes:
        fields: names of the fields.
        pools: slot pools of those fields whose values threads write.
    """

    fields: tuple[str, ...]
    pools: Mapping[str, SlotPool]

    @abstractmethod
    def submit(self, batch: Pending, work: Work) -> None:
        """Finds where the rows lie, and passes the reads to threads. Does not wait for them.

        What it started is in `work`, also if it raises an error.

        Raises:
            FastioError, OSError: the rows cannot be found, for a reason that is no single row's.
        """

    def follow(self, batch: Pending, work: Work) -> None:  # noqa: B027 - most kinds have none
        """Starts what follows from the results of the native threads, which are done."""

    @abstractmethod
    def finish(self, batch: Pending, work: Work) -> dict[str, Any]:
        """Returns the values of the fields, once all threads are done.

        Errors of single samples are added to the batch's failures, and their values are undefined.

        Raises:
            FastioError, OSError: rows cannot be read, for a reason that is no single row's.
        """

    def close(self) -> None:  # noqa: B027 - most kinds keep none open
        """Closes the files."""


def result_of(
    future: Future[T], batch: Pending, place: int, dataset: Rows, kind: type[SampleError]
) -> T | None:
    """Returns the result of a row's future; if it failed, records the error and returns None.

    An error of the row is added to the batch's failures. Others become the error of the batch.

    Args:
        future: future that is done.
        batch: batch of the row.
        place: place of the row in the batch.
        dataset: dataset of the row, which names it.
        kind: class of the error.
    """
    error = future.exception()  # not raised here, because this frame refers to the future
    if error is None:
        return future.result()
    if isinstance(error, NOT_OF_SAMPLES) or not isinstance(error, Exception):
        batch.error = batch.error or error
    else:
        # The dataset may have raised a SampleError with the name already.
        cause = error.cause if isinstance(error, SampleError) else error
        batch.failures.setdefault(place, sample_error(dataset, batch, place, cause, kind))
    return None


def sample_error(
    dataset: Rows, batch: Pending, place: int, cause: BaseException | str, kind: type[SampleError]
) -> SampleError:
    """Returns the error of the sample at a place of a batch."""
    row = int(batch.planned.rows[place])
    return kind(str(dataset.path), row, dataset.sample_name(row), cause)


def shard_error(dataset: Rows, row: int, cause: str) -> ShardCorrupt:
    """Returns the error of a row whose shard is damaged."""
    return ShardCorrupt(
        f"{dataset.sample_name(row)}: {cause} (row {row} of {dataset.path}); copy the shard "
        "again, or pack again"
    )
