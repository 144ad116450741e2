"""Writes the manifest: the description of a dataset's shards, in one Arrow file.

One row describes one shard, in the order of the dataset's rows:

    name            large_utf8   file name within the dataset's folder
    rows            int64        rows in the shard, at least 1
    first_row       int64        global number of its first row
    bytes           int64        size of the file
    xxh3            large_utf8   xxh3_64 of the file, 16 hexadecimal digits
    head_bytes, foot_bytes
                    int64        bytes before its columns and after them
    head_xxh3       large_utf8   xxh3_64 of head and foot together
    columns_xxh3    large_utf8   xxh3_64 of all bytes between them, except the images' bytes
    FIELD.offset, FIELD.bytes
                    int64        for each image field: position of its images' bytes in the file
    FIELD.jpeg, FIELD.raw, FIELD.encoded, FIELD.blocks
                    int64        for each image field: its rows by codec
    FIELD.tokens    int64        for each field of tokens: number of tokens in all rows

The schema metadata has two keys. `fastio` is JSON with `format_version`, `schema`, `packing`, the
`codebook` of the block codec in base64 or null, `statistics` of the columns of a packed table if it
was one, the sums `rows`, `bytes` and `shards`, and `columns_xxh3`, the hash of the columns above.
`fastio.xxh3` is the xxh3_64 of that JSON's bytes, 16 hexadecimal digits. It is also the dataset's
fingerprint: it depends on every byte of the dataset, and its cost does not depend on the number of
shards. The file is sealed: it contains a hash of all its bytes, see `fastio.packed.ipc`.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from fastio.packed.shard_writer import ShardFile, write_sealed
from fastio.schema import CODEC_NAMES, Schema

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.arrow"
METADATA_KEY = b"fastio"
HASH_KEY = b"fastio.xxh3"

TEXTS = ("name", "xxh3", "head_xxh3", "columns_xxh3")
_COLUMNS = (
    *("name", "rows", "first_row", "bytes", "xxh3"),
    *("head_bytes", "foot_bytes", "head_xxh3", "columns_xxh3"),
)
_IMAGE_PARTS = ("offset", "bytes", *CODEC_NAMES)


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest describes it.

    Attributes:
        name: The file name within the dataset's folder.
        rows: The number of rows, at least 1.
        file: The parts and hashes of the file.
        codecs: For each image field, its rows by codec, in the order of `CODEC_NAMES`.
        tokens: For each field of tokens, the number of tokens in all rows.
    """

    name: str
    rows: int
    file: ShardFile
    codecs: Mapping[str, tuple[int, ...]]
    tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The size of the file in bytes."""
        return self.file.nbytes


def write_manifest(
    folder: str | os.PathLike[str],
    schema: Schema,
    packing: Mapping[str, Any],
    entries: Sequence[ShardEntry],
    codebook: bytes | None = None,
    statistics: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Writes a dataset's manifest atomically, which makes the folder a dataset.

    Args:
        folder, schema: The folder of the shards, and the fields of the samples.
        packing: JSON values that describe how the dataset was made: options and source.
        entries: The shards in the order of rows; at least one.
        codebook: The codebook of the block codec, 16,640 bytes, if a row is stored as blocks.
        statistics: JSON values for each column of the packed table; None if it was not a table.

    Raises:
        OSError: It cannot be written. No manifest exists in this case.
    """
    files = [entry.file for entry in entries]
    texts = {
        "name": [entry.name for entry in entries],
        "xxh3": [file.xxh3 for file in files],
        "head_xxh3": [file.head_xxh3 for file in files],
        "columns_xxh3": [file.columns_xxh3 for file in files],
    }
    numbers = {
        "rows": [entry.rows for entry in entries],
        "bytes": [file.nbytes for file in files],
        "head_bytes": [file.head_bytes for file in files],
        "foot_bytes": [file.foot_bytes for file in files],
    }
    for name in schema.image_fields:
        for number, part in enumerate(("offset", "bytes")):
            numbers[f"{name}.{part}"] = [file.payloads[name][number] for file in files]
        for number, codec in enumerate(CODEC_NAMES):
            numbers[f"{name}.{codec}"] = [entry.codecs[name][number] for entry in entries]
    for name in schema.token_fields:
        numbers[f"{name}.tokens"] = [entry.tokens[name] for entry in entries]
    columns = {name: pa.array(values, pa.large_utf8()) for name, values in texts.items()}
    columns |= {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
    batch = manifest_batch(schema, packing, columns, codebook, statistics)
    write_sealed(Path(folder) / MANIFEST_NAME, batch)


def manifest_batch(
    schema: Schema,
    packing: Mapping[str, Any],
    columns: Mapping[str, pa.Array],
    codebook: bytes | None = None,
    statistics: Sequence[Mapping[str, Any]] | None = None,
) -> pa.RecordBatch:
    """Builds a manifest as a record batch, from all of its columns except `first_row`."""
    rows = columns["rows"].to_numpy()
    first_row = np.zeros(len(rows), dtype=np.int64)
    np.cumsum(rows[:-1], out=first_row[1:])
    arrays = [
        pa.array(first_row) if name == "first_row" else columns[name]
        for name in column_names(schema)
    ]
    description = {
        "format_version": FORMAT_VERSION,
        "schema": schema.to_json(),
        "packing": dict(packing),
        "codebook": None if codebook is None else base64.b64encode(codebook).decode(),
        "rows": int(rows.sum()),
        "bytes": int(columns["bytes"].to_numpy().sum()),
        "shards": len(rows),
        "columns_xxh3": hash_columns(arrays),
    }
    if statistics is not None:
        description["statistics"] = [dict(column) for column in statistics]
    return pa.RecordBatch.from_arrays(
        arrays, schema=arrow_schema(schema).with_metadata(manifest_metadata(description))
    )


def manifest_metadata(description: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Returns the schema metadata of a manifest: the description and its hash."""
    text = json.dumps(description).encode()
    return {METADATA_KEY: text, HASH_KEY: xxhash.xxh3_64(text).hexdigest().encode()}


def column_names(schema: Schema) -> list[str]:
    """Returns the names of the columns of a manifest, in order."""
    images = [f"{name}.{part}" for name in schema.image_fields for part in _IMAGE_PARTS]
    tokens = [f"{name}.tokens" for name in schema.token_fields]
    return [*_COLUMNS, *images, *tokens]


def arrow_schema(schema: Schema) -> pa.Schema:
    """Returns the columns of a manifest."""
    return pa.schema(
        [
            pa.field(name, pa.large_utf8() if name in TEXTS else pa.int64(), nullable=False)
            for name in column_names(schema)
        ]
    )


def hash_columns(columns: Sequence[pa.Array]) -> str:
    """Returns the xxh3_64 of the columns' values in order.

    Integers are hashed as little-endian int64. Strings are hashed as their offsets (little-endian
    int64, one more than rows), followed by their bytes.
    """
    digest = xxhash.xxh3_64()
    for column in columns:
        if not pa.types.is_large_string(column.type):
            digest.update(np.ascontiguousarray(column.to_numpy()).data)
            continue
        _, offsets, data = column.buffers()
        offset_bytes = 8 * (len(column) + 1)
        digest.update(memoryview(offsets)[:offset_bytes])
        end = int.from_bytes(memoryview(offsets)[offset_bytes - 8 : offset_bytes], "little")
        digest.update(memoryview(data or b"")[:end])
    return digest.hexdigest()
