"""What the packer asks of an encoder, which turns the parts of a source into the columns of shards.

`samples` encodes rows one by one, `tables` thousands of rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from fastio.pack.journal import Plan, UnitEnd
from fastio.packed import ShardTable
from fastio.schema import Schema

# A unit has about the size of one shard, by an estimate. It is divided only if it is larger than a
# shard by more than this factor: otherwise many units would end with a small shard.
LARGEST_UNIT = 2

P = TypeVar("P")
E = TypeVar("E")


@dataclass(frozen=True)
class Filled:
    """A full shard, or the last one of a unit.

    Attributes:
        arrays: The columns, in the order of `Schema.arrow_schema`; empty if the unit ends here
            and all of its remaining samples were left out.
        end: The end of the unit, or None if more rows of the unit follow.
        counts: The rows of each image field by codec, as FIELD.CODEC.
        indexed: The image fields that have a column of indexes.
    """

    arrays: Sequence[pa.Array]
    end: UnitEnd | None
    counts: Mapping[str, int] = field(default_factory=dict)
    indexed: Collection[str] = ()


@dataclass(frozen=True)
class About:
    """What a manifest says of how a dataset was made; see `write_manifest`."""

    packing: Mapping[str, Any]
    codebook: bytes | None = None
    statistics: list[Any] | None = None


class Encoder(Protocol[P, E]):
    """Turns the parts of one source into the columns of shards.

    `encode` is called by several threads, everything else by one.

    Attributes:
        schema: The fields of the samples.
        counted: What the source consists of, in words: "samples", "rows" or "documents".
        total: The number of samples, or None if it is not known beforehand.
        position: The number of samples of the source that are in shards or were left out.
        skipped: (name, reason) of the samples that were left out.
        workers: The number of threads; 0 encodes in the caller's thread.
        depth: The largest number of parts under way.
    """

    schema: Schema
    counted: str
    total: int | None
    position: int
    skipped: list[tuple[str, str]]
    workers: int
    depth: int

    def identity(self) -> Mapping[str, Any]:
        """Returns the options that the dataset's bytes depend on, as JSON values."""
        ...

    def plan(self, progress: bool) -> Plan:
        """Derives from the source how it is packed. Not called again when a pack is resumed."""
        ...

    def begin(self, plan: Plan, finished: Iterable[UnitEnd]) -> Iterator[P]:
        """Returns the parts of the source after the finished units, given their ends.

        Raises:
            PackError: The source is not the one from which these units were packed.
        """
        ...

    def units(self, plan: Plan) -> int | None:
        """Returns the number of units; None if it is only known after the source was read."""
        ...

    def parts_of_unit(self, plan: Plan, number: int) -> Iterator[P]:
        """Returns the parts of one unit, without those before it. Called in place of `begin`.

        Args:
            plan: The plan, with which `units` knows the number of units.
            number: The number of the unit, from 0.
        """
        ...

    def count(self, end: UnitEnd) -> None:
        """Counts the next unit of the source, which another encoder has packed."""
        ...

    def memory_bytes(self, part: P) -> int:
        """Returns about how many bytes a part takes before it is encoded."""
        ...

    def encode(self, part: P, hold: Callable[[int], None]) -> E:
        """Returns a part in the form that shards store; see `OrderedPipeline` for `hold`."""
        ...

    def encoded_bytes(self, encoded: E) -> int:
        """Returns about how many bytes an encoded part takes."""
        ...

    def fill(self, encoded: E) -> Iterator[Filled]:
        """Adds rows to the shard that is being filled, and yields each shard that is full."""
        ...

    def rest(self) -> Filled | None:
        """Returns the last shard of the source, or None if no rows are left for it."""
        ...

    def about(self, shards: ShardTable) -> About:
        """Returns what the manifest says of the dataset; raises PackError if there are no rows."""
        ...
