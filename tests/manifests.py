"""Manifests that tests make up, of shards that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from fastio import Schema
from fastio.packed import MANIFEST_NAME
from fastio.packed.manifest_writer import manifest_batch
from fastio.packed.shard_writer import write_sealed
from fastio.schema import CODEC_NAMES

HASH = "0123456789abcdef"


def made_up(
    schema: Schema, names: Sequence[str], rows: int = 1, nbytes: int = 1000
) -> dict[str, pa.Array]:
    """All columns of a manifest but `first_row`, of shards that are alike."""
    n = len(names)
    columns = {
        "name": pa.array(names, pa.large_utf8()),
        "rows": pa.array(np.full(n, rows)),
        "bytes": pa.array(np.full(n, nbytes)),
        "xxh3": pa.array([HASH] * n, pa.large_utf8()),
        "head_bytes": pa.array(np.full(n, 64)),
        "foot_bytes": pa.array(np.full(n, 64)),
        "head_xxh3": pa.array([HASH] * n, pa.large_utf8()),
        "columns_xxh3": pa.array([HASH] * n, pa.large_utf8()),
    }
    for field in schema.image_fields:
        columns[f"{field}.offset"] = pa.array(np.full(n, 128))
        columns[f"{field}.bytes"] = pa.array(np.full(n, 0))
        for codec in CODEC_NAMES:
            counts = np.full(n, rows if codec == "jpeg" else 0)
            columns[f"{field}.{codec}"] = pa.array(counts)
    for field in schema.token_fields:
        columns[f"{field}.tokens"] = pa.array(np.full(n, rows))
    return columns


def write_made_up(
    folder: Path,
    schema: Schema,
    names: Sequence[str],
    rows: int = 1,
    change: Mapping[str, pa.Array] | None = None,
    codebook: bytes | None = None,
) -> Path:
    """Writes such a manifest, with other columns in the place of some."""
    columns = made_up(schema, names, rows) | dict(change or {})
    write_sealed(folder / MANIFEST_NAME, manifest_batch(schema, {}, columns, codebook))
    return folder
