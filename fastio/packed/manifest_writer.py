"""Writes the manifests of new datasets and of later versions."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from fastio.packed.ipc import hash_columns
from fastio.packed.manifest import (
    COPY_KEY,
    FIRST_ROW,
    FORMAT_VERSION,
    HASH_KEY,
    MANIFEST_NAME,
    METADATA_KEY,
    Manifest,
    Version,
    arrow_schema,
)
from fastio.packed.shard_table import ShardTable, first_rows
from fastio.packed.shard_writer import write_sealed
from fastio.schema import Schema


def write_manifest(
    folder: str | os.PathLike[str],
    schema: Schema,
    packing: Mapping[str, Any],
    shards: ShardTable,
    codebook: bytes | None = None,
    statistics: Sequence[Mapping[str, Any]] | None = None,
    base: Manifest | None = None,
) -> None:
    """Writes a dataset's manifest atomically, which makes the folder a dataset.

    Args:
        folder, schema: The folder of the shards, and the fields of the samples.
        packing: JSON values that describe how the dataset was made: options and source.
        shards: The shards in the order of rows; at least one. They follow those of `base`.
        codebook: The codebook of the block codec, 16,640 bytes, if a row is stored as blocks.
        statistics: JSON values for each column of the packed table; None if it was not a table.
        base: The version to which these shards are appended; None for a new dataset.

    Raises:
        OSError: It cannot be written. An existing manifest is unchanged.
    """
    before = None
    history: tuple[Version, ...] = ()
    if base is not None:
        names = arrow_schema(schema).names
        # `first_row` is computed again, for old and new shards together.
        before = {name: base.column(name) for name in names if name != FIRST_ROW}
        history = (*base.history, base.as_version())
    columns = shards.columns(before)
    batch = manifest_batch(schema, packing, columns, codebook, statistics, history, Path(folder))
    write_sealed(Path(folder) / MANIFEST_NAME, batch)


def rewrite_manifest(manifest: Manifest, folder: str | os.PathLike[str]) -> None:
    """Writes a copy of a manifest to a folder, with other bytes than any manifest before."""
    batch = manifest.batch
    metadata = {**batch.schema.metadata, COPY_KEY: secrets.token_hex(8).encode()}
    write_sealed(Path(folder) / MANIFEST_NAME, batch.replace_schema_metadata(metadata))


def manifest_batch(
    schema: Schema,
    packing: Mapping[str, Any],
    columns: Mapping[str, pa.Array],
    codebook: bytes | None = None,
    statistics: Sequence[Mapping[str, Any]] | None = None,
    history: Sequence[Version] = (),
    folder: Path | None = None,
) -> pa.RecordBatch:
    """Builds a manifest as a record batch, from all of its columns except `first_row`."""
    rows: Any = np.from_dlpack(columns["rows"])
    described = arrow_schema(schema)
    columns = {**columns, FIRST_ROW: first_rows(rows, folder)}
    arrays = [columns[name] for name in described.names]
    description = {
        "format_version": FORMAT_VERSION,
        "schema": schema.to_json(),
        "packing": dict(packing),
        "codebook": None if codebook is None else base64.b64encode(codebook).decode(),
        "rows": int(rows.sum()),
        "bytes": int(np.from_dlpack(columns["bytes"]).sum()),
        "shards": len(rows),
        "columns_xxh3": hash_columns(pa.RecordBatch.from_arrays(arrays, schema=described)),
        "version": len(history) + 1,
        "history": [asdict(version) for version in history],
    }
    if statistics is not None:
        description["statistics"] = [dict(column) for column in statistics]
    return pa.RecordBatch.from_arrays(
        arrays, schema=described.with_metadata(manifest_metadata(description))
    )


def manifest_metadata(description: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Returns the schema metadata of a manifest: the description and its hash."""
    text = json.dumps(description).encode()
    return {METADATA_KEY: text, HASH_KEY: xxhash.xxh3_64(text).hexdigest().encode()}
