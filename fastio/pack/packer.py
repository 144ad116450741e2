"""The packer: parts of a source in, shards out, a journal beside them and a manifest at the end.

    source -> parts -> encoder (threads) -> encoder (one thread: shards) -> destination

A source is divided into units (`journal.Plan`), and each unit into shards, usually only one.

Every kind of data takes this way. What differs is the source, which gives the parts, and the
encoder: `samples` encodes rows one by one, `tables` thousands of rows at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from fastio.pack.destination import Destination, shard_name, with_hash
from fastio.pack.journal import APPEND_TO, FinishedUnit, Plan, UnitEnd, when_full, writing_to
from fastio.pack.pipeline import OrderedPipeline
from fastio.pack.progress import progress_bar
from fastio.packed import Manifest, ShardEntry, write_manifest
from fastio.packed.manifest import FORMAT_VERSION, METADATA_KEY
from fastio.packed.shard_writer import write_shard
from fastio.runtime.files import flush_folder
from fastio.schema import Schema

P = TypeVar("P")
E = TypeVar("E")

# The bytes of parts that may be in memory beside the shard that is being filled.
_BUDGET_BYTES = 256 << 20


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
        unit: What the source consists of, in words: "samples", "rows" or "documents".
        total: The number of samples, or None if it is not known beforehand.
        position: The number of samples of the source that are in shards or were left out.
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

    def plan(self, progress: bool) -> Plan:
        """Derives from the source how it is packed. Not called again when a pack is resumed."""
        ...

    def begin(self, plan: Plan, finished: Sequence[FinishedUnit]) -> Iterator[P]:
        """Returns the parts of the source after the finished units.

        Raises:
            PackError: The source is not the one from which these units were packed.
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
        """Returns the last shard of the source, or None if no rows are left for it."""
        ...

    def about(self, entries: list[ShardEntry]) -> About:
        """Returns what the manifest says of the dataset; raises PackError if there are no rows."""
        ...


class Packer(Generic[P, E]):
    """Writes one dataset. Used by one thread.

    Args:
        destination: Where it is written to.
        encoder: The source's encoder.
        resume: Whether to continue a half-written dataset at the destination.
        overwrite: Whether to replace a dataset at the destination.
        base: The dataset at the destination to which the samples are appended, or None.

    Attributes:
        entries: The finished shards, without those of `base`.
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
        base: Manifest | None = None,
    ) -> None:
        self.entries: list[ShardEntry] = []
        self.resumed = 0
        self._units = 0  # number of finished units
        self._unit: list[ShardEntry] = []  # the shards of the unit that is being packed
        self._encoder = encoder
        self._destination = destination
        self._schema = encoder.schema
        self._base = base
        identity = dict(encoder.identity())
        if base is not None:
            identity[APPEND_TO] = base.fingerprint
        self._when_full = when_full(identity)
        with writing_to(destination.name, self._when_full):
            self._journal = destination.open(identity, resume, overwrite, base)
        self._pipeline: OrderedPipeline[P, E] = OrderedPipeline(
            encoder.encode, encoder.encoded_bytes, encoder.workers, encoder.depth, _BUDGET_BYTES
        )

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(name, reason) of the samples that were left out."""
        return self._encoder.skipped

    def run(self, progress: bool) -> None:
        """Packs the whole source, and closes the packer in any case.

        Raises:
            As for `add`; PackError: A finished shard is missing, the source is not the one that was
                packed, or it has no samples.
        """
        encoder = self._encoder
        journal = self._journal
        try:
            for unit in journal.finished:
                for entry in unit.entries:
                    self._destination.check(entry)
                    self.entries.append(entry)
            self.resumed, self._units = len(self.entries), len(journal.finished)
            if journal.plan is None:
                journal.keep_plan(encoder.plan(progress))
            parts = encoder.begin(journal.plan or Plan(), journal.finished)
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
        """Writes what is left and the manifest; raises PackError if there were no samples."""
        for encoded in self._pipeline.drain():
            self._store(encoded)
        last = self._encoder.rest()
        if last is not None:
            self.write(last)
        about = self._encoder.about(self.entries)
        destination, base = self._destination, self._base
        packing, codebook = about.packing, about.codebook
        if base is not None and "tokens" in base.packing:
            packing = {"tokens": base.packing["tokens"], **packing}
        if base is not None and base.codebook is not None:
            codebook = base.codebook
            packing = {**packing, "codebook": base.packing.get("codebook")}
        with writing_to(destination.name, self._when_full):
            destination.prepare({entry.name for entry in self.entries}, base)
            write_manifest(
                destination.folder,
                self._schema,
                packing,
                self.entries,
                codebook,
                about.statistics,
                base,
            )
            destination.finish()

    def write(self, filled: Filled) -> None:
        """Writes a shard, and records its unit in the journal if the unit ends with it."""
        entry = self._write_shard(filled) if filled.arrays else None
        with writing_to(self._destination.name, self._when_full):
            if filled.end is not None:
                self._destination.record(FinishedUnit(self._unit, filled.end))
                self._units, self._unit = self._units + 1, []
            if entry is not None:
                self._destination.send(entry)

    def _write_shard(self, filled: Filled) -> ShardEntry:
        metadata = {METADATA_KEY: json.dumps(self._metadata()).encode()}
        schema = self._schema.arrow_schema(filled.indexed).with_metadata(metadata)
        batch = pa.RecordBatch.from_arrays(list(filled.arrays), schema=schema)
        version = 1 if self._base is None else self._base.version + 1
        path = self._destination.folder / shard_name(self._units, len(self._unit), version)
        with writing_to(path, self._when_full):
            entry = write_shard(path, batch, self._schema.image_fields)
            if version > 1:
                entry = replace(entry, name=with_hash(entry.name, entry.xxh3))
                path.rename(path.with_name(entry.name))
                flush_folder(path.parent)
            fields = self._schema.token_fields
            tokens = {f"{name}.tokens": len(batch.column(name).values) for name in fields}
        entry = replace(entry, of_fields={**entry.of_fields, **filled.counts, **tokens})
        self.entries.append(entry)
        self._unit.append(entry)
        return entry

    def discard(self) -> None:
        """Stops, and deletes everything that was written."""
        self._pipeline.close()
        with writing_to(self._destination.name, self._when_full):
            self._destination.discard({entry.name for entry in self.entries}, self._base)

    def close(self) -> None:
        """Ends the threads and closes the journal. A half-written dataset can be resumed."""
        self._pipeline.close()
        self._destination.close(keep=bool(self.entries or self._journal.finished))

    def _store(self, encoded: E) -> None:
        for filled in self._encoder.fill(encoded):
            self.write(filled)

    def _metadata(self) -> dict[str, Any]:
        """Returns the metadata that make a shard readable without its manifest."""
        schema = replace(self._schema, classes=None, vocabularies={})
        return {"format_version": FORMAT_VERSION, "schema": schema.to_json()}
