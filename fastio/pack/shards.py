"""What all packers write: shards one by one, a journal beside them and a manifest at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from fastio import _native
from fastio.dataset import JOURNAL_NAME, MANIFEST_NAME, ShardEntry, write_manifest
from fastio.dataset.manifest import FORMAT_VERSION, METADATA_KEY
from fastio.pack.destination import Destination, shard_name, writing_to
from fastio.pack.journal import FinishedShard
from fastio.schema import Schema
from fastio.shard import write_shard

RESUME = ", then go on with resume (--resume)"


@dataclass(frozen=True)
class Filled:
    """A shard that is full, or the last one.

    Attributes:
        arrays: its columns, in the order of `Schema.arrow_schema`.
        rows: how many there are.
        position: how many of the source's samples are used up with it.
        source: a hash of what identifies those.
        codecs: for each image field, its rows by codec.
        skipped: (name, reason) of the samples left out since the shard before.
        last: whether the source ended with it.
        statistics: of the source's columns in it, JSON values, or None.
    """

    arrays: Sequence[pa.Array]
    rows: int
    position: int
    source: str
    last: bool
    codecs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    skipped: Sequence[tuple[str, str]] = ()
    statistics: list[Any] | None = None


class Shards:
    """The shards of one dataset on the way to its destination. Used by one thread.

    Args:
        destination: where to.
        schema: the samples' fields.
        options: JSON values that the dataset's bytes depend on.
        resume: whether to go on with a half-written dataset that is there.
        overwrite: whether to replace a dataset that is there.

    Attributes:
        entries: the shards that are finished.
        journal: what was finished before.

    Raises:
        DatasetExists: the destination holds a dataset.
        PackError: it cannot be written, or not resumed with these options.
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

    def take_over(self) -> list[FinishedShard]:
        """The shards that the journal says are finished are part of the dataset.

        Raises:
            PackError: one of them is missing.
        """
        for shard in self.journal.finished:
            self._destination.check(shard.entry)
            self.entries.append(shard.entry)
        return self.journal.finished

    def add(self, filled: Filled) -> None:
        """Write a shard.

        Raises:
            PackError: it cannot be written.
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

    def finish(
        self, packing: Mapping[str, Any], codebook: bytes | None, statistics: list[Any] | None
    ) -> None:
        """Write the manifest: from here on it is a dataset.

        Raises:
            PackError: it cannot be written.
        """
        destination = self._destination
        with writing_to(destination.name, RESUME):
            kept = {entry.name for entry in self.entries} | {JOURNAL_NAME, MANIFEST_NAME}
            destination.keep_only(kept)
            write_manifest(
                destination.folder, self._schema, packing, self.entries, codebook, statistics
            )
            destination.finish()

    def discard(self) -> None:
        """Delete all that was written."""
        with writing_to(self._destination.name, RESUME):
            self._destination.discard()

    def close(self) -> None:
        """Close the journal. What is half-written stays, to be resumed."""
        self._destination.close(keep=bool(self.entries or self.journal.finished))

    def _metadata(self, arrays: Sequence[pa.Array]) -> dict[str, Any]:
        """What makes a shard readable without its manifest."""
        schema = replace(self._schema, classes=None, vocabularies={})
        metadata: dict[str, Any] = {"format_version": FORMAT_VERSION, "schema": schema.to_json()}
        if self._schema.record_layout is not None:
            records = np.frombuffer(arrays[0].buffers()[1], np.uint8)
            metadata["record_crc32c"] = f"{_native.crc32c(records):08x}"
        return metadata
