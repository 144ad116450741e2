"""Writes a dataset: its shards one by one, the journal, and finally the manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from fastio import _native
from fastio.pack.destination import Destination, shard_name, writing_to
from fastio.pack.journal import FinishedShard
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, ShardEntry, write_manifest
from fastio.packed.manifest_writer import FORMAT_VERSION, METADATA_KEY
from fastio.packed.shard_writer import write_shard
from fastio.schema import Schema

RESUME = ", then go on with resume (--resume)"


@dataclass(frozen=True)
class Filled:
    """A full shard, or the last one.

    Attributes:
        arrays: The columns, in the order of `Schema.arrow_schema`.
        rows: The number of rows.
        position: The number of the source's samples that were used up to its end.
        source: A hash that identifies these samples.
        codecs: For each image field, its rows by codec.
        skipped: (name, reason) of the samples left out since the previous shard.
        last: Whether the source ended with it.
        statistics: JSON values for the source's columns in it, or None.
    """

    arrays: Sequence[pa.Array]
    rows: int
    position: int
    source: str
    last: bool
    codecs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    skipped: Sequence[tuple[str, str]] = ()
    statistics: list[Any] | None = None


@dataclass(frozen=True)
class About:
    """What a manifest says of how a dataset was made.

    Attributes:
        packing: JSON values.
        codebook: The codebook of the block codec, or None if no image is stored with it.
        statistics: JSON values for the source's columns, or None.
    """

    packing: Mapping[str, Any]
    codebook: bytes | None = None
    statistics: list[Any] | None = None


class Shards:
    """The shards of one dataset while it is written. Used by one thread.

    Args:
        destination: Where they are written to.
        schema: The fields of the samples.
        options: JSON values that the dataset's bytes depend on.
        resume: Whether to continue a half-written dataset at the destination.
        overwrite: Whether to replace a dataset at the destination.

    Attributes:
        entries: The finished shards.
        journal: The journal, which knows the shards finished by earlier runs.

    Raises:
        DatasetExists: If the destination holds a dataset.
        PackError: If it cannot be written, or cannot be resumed with these options.
    """

    def __init__(
        self,
        destination: Destination,
        schema: Schema,
        options: Mapping[str, Any],
        resume: bool,
        overwrite: bool,
    ) -> None:
        self.entries: list[ShardEntry] = []
        self._destination = destination
        self._schema = schema
        self._arrow_schema = schema.arrow_schema()
        with writing_to(destination.name, RESUME):
            self.journal = destination.open(options, resume, overwrite)

    def keep_codebook(self, codebook: bytes) -> None:
        """Writes a codebook that was trained for this pack to the journal.

        Raises:
            PackError: If it cannot be written.
        """
        with writing_to(self._destination.name, RESUME):
            self.journal.keep_codebook(codebook)

    def take_over(self) -> list[FinishedShard]:
        """Adds the shards that the journal lists as finished, and returns them.

        Raises:
            PackError: If one of them is missing.
        """
        for shard in self.journal.finished:
            self._destination.check(shard.entry)
            self.entries.append(shard.entry)
        return self.journal.finished

    def add(self, filled: Filled) -> None:
        """Writes a shard.

        Raises:
            PackError: If it cannot be written.
        """
        metadata = {METADATA_KEY: json.dumps(self._metadata(filled.arrays)).encode()}
        schema = self._arrow_schema.with_metadata(metadata)
        batch = pa.RecordBatch.from_arrays(list(filled.arrays), schema=schema)
        name = shard_name(len(self.entries))
        path = self._destination.folder / name
        with writing_to(path, RESUME):
            file = write_shard(path, batch, self._schema.image_fields)
            tokens = {field: len(batch.column(field).values) for field in self._schema.token_fields}
            entry = ShardEntry(name, filled.rows, file, filled.codecs, tokens)
            self._destination.add(
                FinishedShard(
                    entry,
                    filled.position,
                    filled.source,
                    list(filled.skipped),
                    filled.last,
                    filled.statistics,
                )
            )
        self.entries.append(entry)

    def finish(self, about: About) -> None:
        """Writes the manifest, which completes the dataset.

        Raises:
            PackError: If it cannot be written.
        """
        destination = self._destination
        with writing_to(destination.name, RESUME):
            kept = {entry.name for entry in self.entries} | {JOURNAL_NAME, MANIFEST_NAME}
            destination.keep_only(kept)
            write_manifest(
                destination.folder,
                self._schema,
                about.packing,
                self.entries,
                about.codebook,
                about.statistics,
            )
            destination.finish()

    def discard(self) -> None:
        """Deletes everything that was written."""
        with writing_to(self._destination.name, RESUME):
            self._destination.discard()

    def close(self) -> None:
        """Closes the journal. A half-written dataset stays and can be resumed."""
        self._destination.close(keep=bool(self.entries or self.journal.finished))

    def _metadata(self, arrays: Sequence[pa.Array]) -> dict[str, Any]:
        """Returns the metadata that make a shard readable without its manifest."""
        schema = replace(self._schema, classes=None, vocabularies={})
        metadata: dict[str, Any] = {"format_version": FORMAT_VERSION, "schema": schema.to_json()}
        if self._schema.record_layout is not None:
            records = np.frombuffer(arrays[0].buffers()[1], np.uint8)
            metadata["record_crc32c"] = f"{_native.crc32c(records):08x}"
        return metadata
