"""The packer: parts of a source in, shards out, a journal beside them and a manifest at the end.

    source -> parts -> encoder (threads) -> encoder (one thread: shards) -> destination

Every kind of data takes this way. What differs is the source, which gives the parts, and the
encoder: `samples` encodes rows one by one, `columnar` thousands of rows of a table at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from fastio.pack.destination import Destination
from fastio.pack.pipeline import OrderedPipeline
from fastio.pack.progress import progress_bar
from fastio.pack.shards import About, Filled, Shards
from fastio.packed import ShardEntry
from fastio.schema import Schema

P = TypeVar("P")
E = TypeVar("E")

# The bytes of parts that may be in memory beside the shard that is being filled.
_BUDGET_BYTES = 256 << 20


class Encoder(Protocol[P, E]):
    """Turns the parts of one source into the columns of shards.

    `encode` is called by several threads, everything else by one.

    Attributes:
        schema: The fields of the samples.
        unit: What the source consists of, in words: "samples", "rows" or "documents".
        total: The number of samples, or None if it is not known beforehand.
        position: The number of the source's samples that are in shards or were left out.
        skipped: (name, reason) of the samples that were left out.
        workers: The number of threads; 0 encodes in the caller's thread.
        depth: The largest number of parts under way.
    """

    schema: Schema
    unit: str
    total: int | None
    position: int
    skipped: list[tuple[str, str]]
    workers: int
    depth: int

    def identity(self) -> Mapping[str, Any]:
        """Returns the options that the dataset's bytes depend on, as JSON values."""
        ...

    def parts(self, shards: Shards, progress: bool) -> Iterator[P]:
        """Returns the parts of the source that are not in finished shards.

        Raises:
            PackError: A finished shard is missing, or the source is not the one that was packed.
        """
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
        """Returns the last shard, or None if no rows are left for it."""
        ...

    def about(self, entries: list[ShardEntry]) -> About:
        """Returns what the manifest says of the dataset.

        Raises:
            PackError: There are no rows.
        """
        ...


class Packer(Generic[P, E]):
    """Writes one dataset. Used by one thread.

    Args:
        destination: Where it is written to.
        encoder: The source's encoder.
        resume: Whether to continue a half-written dataset at the destination.
        overwrite: Whether to replace a dataset at the destination.

    Attributes:
        resumed: The number of shards that an earlier run has finished.

    Raises:
        DatasetExists: The destination holds a dataset.
        PackError: It cannot be written, or cannot be resumed with this source and these options.
    """

    def __init__(
        self,
        destination: Destination,
        encoder: Encoder[P, E],
        *,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.resumed = 0
        self._encoder = encoder
        self._shards = Shards(destination, encoder.schema, encoder.identity(), resume, overwrite)
        self._pipeline: OrderedPipeline[P, E] = OrderedPipeline(
            encoder.encode, encoder.encoded_bytes, encoder.workers, encoder.depth, _BUDGET_BYTES
        )

    @property
    def entries(self) -> list[ShardEntry]:
        """The shards that are finished."""
        return self._shards.entries

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(name, reason) of the samples that were left out."""
        return self._encoder.skipped

    def run(self, progress: bool) -> None:
        """Packs the whole source, and closes the packer in any case.

        Args:
            progress: Whether to show a progress bar on stderr.

        Raises:
            As `add`; PackError: A finished shard is missing, the source is not the one that was
                packed, or it has no samples.
        """
        encoder = self._encoder
        try:
            parts = encoder.parts(self._shards, progress)
            self.resumed = len(self.entries)
            with progress_bar("packing", encoder.unit, encoder.total, progress) as advance:
                shown = 0
                for part in parts:
                    self.add(part)
                    advance(encoder.position - shown)
                    shown = encoder.position
                self.finish()
                advance(encoder.position - shown)
        finally:
            self.close()

    def add(self, part: P) -> None:
        """Takes a part. It may be encoded and written later.

        Raises:
            ImageError, SampleError, SchemaError: A bad sample, in this part or one before it,
                unless bad samples are skipped.
            PackError: The destination cannot be written.
        """
        for encoded in self._pipeline.submit(part, self._encoder.memory_bytes(part)):
            self._store(encoded)

    def finish(self) -> None:
        """Writes what is left and the manifest, which makes it a dataset.

        Raises:
            As `add`; PackError: There were no samples.
        """
        for encoded in self._pipeline.drain():
            self._store(encoded)
        last = self._encoder.rest()
        if last is not None:
            self._shards.add(last)
        self._shards.finish(self._encoder.about(self.entries))

    def discard(self) -> None:
        """Stops, and deletes everything that was written."""
        self._pipeline.close()
        self._shards.discard()

    def close(self) -> None:
        """Ends the threads and closes the journal. A half-written dataset can be resumed."""
        self._pipeline.close()
        self._shards.close()

    def _store(self, encoded: E) -> None:
        for filled in self._encoder.fill(encoded):
            self._shards.add(filled)
