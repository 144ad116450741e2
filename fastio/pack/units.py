"""Packs the units of a source: parts in, finished units out, with their shards in a folder.

A source is divided into units (`journal.Plan`), and each unit into shards, usually only one. A
`UnitPacker` packs one unit after the other, as `packer.Packer` does on this machine; `pack_unit`
packs a single one by itself, as the tasks of `ray_engine` do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

import pyarrow as pa

from fastio.pack.encoder import E, Encoder, Filled, P
from fastio.pack.journal import FinishedUnit, Plan, writing_to
from fastio.pack.names import shard_name, with_hash
from fastio.pack.pipeline import OrderedPipeline
from fastio.packed import ShardEntry
from fastio.packed.manifest import FORMAT_VERSION, METADATA_KEY
from fastio.packed.shard_writer import write_shard
from fastio.runtime.files import flush_folder
from fastio.schema import Schema

# The bytes of parts that may be in memory beside the shard that is being filled.
_BUDGET_BYTES = 256 << 20


@dataclass(frozen=True)
class ShardWriter:
    """Writes the shards of one version of a dataset.

    Attributes:
        folder: The folder to write to.
        schema: The fields of the samples.
        version: The version of the dataset that gets the shards.
        when_full: What to do if the disk is full, see `journal.when_full`.
        ending: What file names have in addition to the shards' names, see `task_output`.
        pack_id: What the shards' names contain, see `Destination.pack_id`.
    """

    folder: Path
    schema: Schema
    version: int
    when_full: str
    ending: str = ""
    pack_id: str = ""

    def write(self, filled: Filled, unit: int, part: int) -> ShardEntry:
        """Writes a shard atomically, given its unit and its number in the unit."""
        schema = self.schema
        metadata = {METADATA_KEY: json.dumps(self._metadata()).encode()}
        columns = schema.arrow_schema(filled.indexed).with_metadata(metadata)
        batch = pa.RecordBatch.from_arrays(list(filled.arrays), schema=columns)
        name = shard_name(unit, part, self.version, self.pack_id)
        path = self.folder / (name + self.ending)
        with writing_to(path, self.when_full):
            entry = replace(write_shard(path, batch, schema.pictured), name=name)
            # In a store, the id in the names has the same purpose as the hash; see `with_hash`.
            if self.version > 1 and not self.pack_id:
                entry = replace(entry, name=with_hash(name, entry.xxh3))
                path.rename(path.with_name(entry.name + self.ending))
                flush_folder(path.parent)
            tokens = {f"{n}.tokens": len(batch.column(n).values) for n in schema.token_fields}
        return replace(entry, of_fields={**entry.of_fields, **filled.counts, **tokens})

    def _metadata(self) -> dict[str, Any]:
        """Returns the metadata that make a shard readable without its manifest."""
        # Only the manifest has the names of classes and words: they may be many, and grow with
        # later versions.
        schema = replace(self.schema, classes=None, vocabularies={})
        return {"format_version": FORMAT_VERSION, "schema": schema.to_json()}


class UnitPacker(Generic[P, E]):
    """Encodes parts in threads and writes the shards of consecutive units. Used by one thread.

    Args:
        encoder: The source's encoder, which has begun.
        writer: Writes the shards.
        number: The number of the first unit.

    Attributes:
        number: The number of the unit that is being packed.
        entries: The shards of this unit.
    """

    def __init__(self, encoder: Encoder[P, E], writer: ShardWriter, number: int) -> None:
        self.entries: list[ShardEntry] = []
        self._encoder = encoder
        self._writer = writer
        self.number = number
        self._pipeline: OrderedPipeline[P, E] = OrderedPipeline(
            encoder.encode,
            encoder.encoded_bytes,
            encoder.workers,
            encoder.depth,
            _BUDGET_BYTES,
            encoder.memory_bytes,
        )

    def add(self, part: P) -> Iterator[FinishedUnit]:
        """Takes a part, which may be encoded later, and yields units that are finished.

        The part has been taken when the iterator is exhausted.
        """
        for encoded in self._pipeline.submit(part):
            for filled in self._encoder.fill(encoded):
                yield from self._write(filled)

    def rest(self) -> Iterator[FinishedUnit]:
        """Yields the remaining units, after the last part."""
        for encoded in self._pipeline.drain():
            for filled in self._encoder.fill(encoded):
                yield from self._write(filled)
        last = self._encoder.rest()
        if last is not None:
            yield from self._write(last)

    def close(self) -> None:
        """Ends the threads. What is not written yet is dropped."""
        self._pipeline.close()

    def _write(self, filled: Filled) -> Iterator[FinishedUnit]:
        """Writes a shard, and yields its unit if it ends with it."""
        if filled.arrays:
            self.entries.append(self._writer.write(filled, self.number, len(self.entries)))
        if filled.end is not None:
            unit = FinishedUnit(self.entries, filled.end)
            self.number, self.entries = self.number + 1, []
            yield unit


def pack_units(
    encoder: Encoder[P, E], parts: Iterator[P], writer: ShardWriter, number: int
) -> Iterator[FinishedUnit]:
    """Packs parts, and yields each unit after its shards were written.

    Args:
        encoder, writer, number: As for `UnitPacker`.
        parts: What `begin` or `parts_of_unit` of the encoder has returned.

    Raises:
        ImageError, SampleError, SchemaError: A bad sample, unless bad samples are skipped.
        PackError: A shard cannot be written.
    """
    packer = UnitPacker(encoder, writer, number)
    try:
        for part in parts:
            yield from packer.add(part)
        yield from packer.rest()
    finally:
        packer.close()


def pack_unit(encoder: Encoder[P, E], plan: Plan, number: int, writer: ShardWriter) -> FinishedUnit:
    """Packs one unit by itself; its shards are those of a pack of the whole source.

    Args:
        encoder: A new encoder of the source.
        plan: The plan of the whole pack, which tells the number of units.
        number: The number of the unit.
        writer: Writes the shards.

    Raises:
        As for `pack_units`.
    """
    (unit,) = pack_units(encoder, encoder.parts_of_unit(plan, number), writer, number)
    return unit
