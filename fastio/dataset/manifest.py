"""The manifest: what a dataset consists of, in one Arrow file that is mapped, not read.

One row describes one shard, in the order of the dataset's rows:

    name            large_utf8   file name within the dataset's folder
    rows            int64        rows in the shard, at least 1
    first_row       int64        global number of its first row
    bytes           int64        size of the file
    xxh3            large_utf8   xxh3_64 of the file, 16 hexadecimal digits
    FIELD.jpeg, FIELD.raw, FIELD.encoded, FIELD.blocks
                    int64        for each image field: its rows by codec

The schema metadata has two keys. `fastio` is JSON with `format_version`, `schema`, `packing`, the
`codebook` of the block codec in base64 or null, `statistics` of a packed table's columns where it
was one, the sums `rows`, `bytes` and `shards`, and `columns_xxh3`, the hash of the columns above.
`fastio.xxh3` is the xxh3_64 of that JSON's bytes, 16 hexadecimal digits. It is the dataset's
fingerprint too: it stands for every byte of the dataset, and costs the same for any number of
shards.

Version 1, which is read for ever, had neither the block codec's column, nor its codebook, nor
`fastio.xxh3`. Version 3 is version 2 with fields in a column of records, or fields of tokens and a
column FIELD.tokens for each, how many a shard has, or with arrays some of whose axes are open, or
of complex numbers; only datasets that have some are of it, and all others are written as version 2.
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
from numpy.typing import NDArray

from fastio.errors import (
    DatasetNotFound,
    FormatVersionUnsupported,
    ManifestInvalid,
    SchemaError,
)
from fastio.schema import CODEC_NAMES, DTYPES, Array, Schema
from fastio.shard import map_batch, write_shard

FORMAT_VERSION = 3
# The codecs that each version counts in columns, for the versions that can be read.
_CODECS = {1: CODEC_NAMES[:3], 2: CODEC_NAMES, FORMAT_VERSION: CODEC_NAMES}
CODEBOOK_BYTES = 16_640
MANIFEST_NAME = "manifest.arrow"
JOURNAL_NAME = "pack.journal"
METADATA_KEY = b"fastio"
HASH_KEY = b"fastio.xxh3"

# Manifests up to this size are hashed when opened, a few milliseconds; `fastio verify` hashes all.
_CHECKED_BYTES = 16 << 20


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest describes it.

    Attributes:
        name: file name within the dataset's folder.
        rows: number of rows, at least 1.
        nbytes: size of the file in bytes.
        xxh3: xxh3_64 of the file, 16 hexadecimal digits.
        codecs: for each image field, its rows by codec, in the order of `CODEC_NAMES`.
        tokens: for each field of tokens, how many it has in all rows.
    """

    name: str
    rows: int
    nbytes: int
    xxh3: str
    codecs: Mapping[str, tuple[int, ...]]
    tokens: Mapping[str, int] = field(default_factory=dict)


def format_version(schema: Schema) -> int:
    """The oldest format version that can hold datasets of a schema."""
    arrays = [kind for kind in schema.fields.values() if isinstance(kind, Array)]
    new = any(kind.open_axes or kind.dtype not in DTYPES for kind in arrays)
    if new or schema.record_layout is not None or schema.token_fields:
        return FORMAT_VERSION
    return 2


def write_manifest(
    folder: str | os.PathLike[str],
    schema: Schema,
    packing: Mapping[str, Any],
    entries: Sequence[ShardEntry],
    codebook: bytes | None = None,
    statistics: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write a dataset's manifest, which makes the folder a dataset, in one atomic step.

    Args:
        folder: where the shards are.
        schema: the samples' fields.
        packing: JSON values that say how the dataset was made: options and source.
        entries: at least one shard, in the order of rows.
        codebook: the block codec's, 16,640 bytes, where a row is stored as blocks.
        statistics: JSON values, of each column of the table that was packed; None for others.

    Raises:
        OSError: it cannot be written; there is no manifest then.
    """
    columns: dict[str, pa.Array] = {
        "name": pa.array([entry.name for entry in entries], pa.large_utf8()),
        "rows": pa.array([entry.rows for entry in entries], pa.int64()),
        "bytes": pa.array([entry.nbytes for entry in entries], pa.int64()),
        "xxh3": pa.array([entry.xxh3 for entry in entries], pa.large_utf8()),
    }
    for name in schema.image_fields:
        for number, codec in enumerate(CODEC_NAMES):
            counts = [entry.codecs[name][number] for entry in entries]
            columns[f"{name}.{codec}"] = pa.array(counts, pa.int64())
    for name in schema.token_fields:
        counts = [entry.tokens[name] for entry in entries]
        columns[f"{name}.tokens"] = pa.array(counts, pa.int64())
    batch = manifest_batch(schema, packing, columns, codebook, statistics)
    write_shard(Path(folder) / MANIFEST_NAME, batch)


def manifest_batch(
    schema: Schema,
    packing: Mapping[str, Any],
    columns: Mapping[str, pa.Array],
    codebook: bytes | None = None,
    statistics: Sequence[Mapping[str, Any]] | None = None,
) -> pa.RecordBatch:
    """A manifest as a record batch, from all its columns but `first_row`."""
    rows = columns["rows"].to_numpy()
    first_row = np.zeros(len(rows), dtype=np.int64)
    np.cumsum(rows[:-1], out=first_row[1:])
    version = format_version(schema)
    arrays = [
        pa.array(first_row) if name == "first_row" else columns[name]
        for name in _column_names(schema, version)
    ]
    description = {
        "format_version": version,
        "schema": schema.to_json(),
        "packing": dict(packing),
        "codebook": None if codebook is None else base64.b64encode(codebook).decode(),
        "rows": int(rows.sum()),
        "bytes": int(columns["bytes"].to_numpy().sum()),
        "shards": len(rows),
        "columns_xxh3": _hash_columns(arrays),
    }
    if statistics is not None:
        description["statistics"] = [dict(column) for column in statistics]
    return pa.RecordBatch.from_arrays(
        arrays, schema=_arrow_schema(schema, version, manifest_metadata(description))
    )


def manifest_metadata(description: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The schema metadata of a manifest with this description: it and its hash."""
    text = json.dumps(description).encode()
    return {METADATA_KEY: text, HASH_KEY: xxhash.xxh3_64(text).hexdigest().encode()}


class Manifest:
    """A mapped manifest. Nothing in it costs time or memory by the shard until it is asked for.

    Args:
        folder: the dataset's folder, or its URL.
        file: a local copy of a remote dataset's manifest; None: the one in the folder.

    Attributes:
        folder: that folder.
        schema: the samples' fields.
        packing: how the dataset was made.
        version: of the format, 1 to 3.
        codebook: the block codec's, 16,640 bytes not yet looked at; None where there is none.
        statistics: of each column of the table that was packed, as JSON values; empty for others.
        fingerprint: 16 hexadecimal digits that stand for the dataset's contents.
        rows: number of rows of all shards.
        shards: number of shards.
        nbytes: size of all shards in bytes.
        shard_rows: int64 (shards,), rows of each shard.
        first_row: int64 (shards,), the global number of each shard's first row.
        shard_bytes: int64 (shards,), size of each shard's file.

    Raises:
        DatasetNotFound: there is no manifest.
        ManifestInvalid: it is truncated, damaged or not a manifest.
        FormatVersionUnsupported: a newer fastio wrote it.
    """

    def __init__(self, folder: str | os.PathLike[str], file: str | None = None) -> None:
        self.folder = os.fspath(folder)
        self.path = os.path.join(self.folder, MANIFEST_NAME)
        if file is None and not os.path.isfile(self.path):
            raise DatasetNotFound(_why_no_dataset(self.folder))
        mapped, self._batch = map_batch(file or self.path, ManifestInvalid, self.path)
        metadata = self._batch.schema.metadata or {}
        if METADATA_KEY not in metadata:
            raise ManifestInvalid(f"{self.path} is an Arrow file, but not a fastio manifest")
        text = metadata[METADATA_KEY]
        self.fingerprint: str = xxhash.xxh3_64(text).hexdigest()
        expected = metadata.get(HASH_KEY)
        if expected is not None and expected != self.fingerprint.encode():
            raise self._damaged_description(f"expected {expected.decode('ascii', 'replace')}")
        description = self._parse(text)
        if expected is None and self.version > 1:
            raise self._damaged_description(f"and there is no {HASH_KEY.decode()} to expect")
        self.rows: int = description["rows"]
        self.shards: int = description["shards"]
        self.nbytes: int = description["bytes"]
        self._columns_xxh3: str = description["columns_xxh3"]
        if not self._batch.schema.equals(_arrow_schema(self.schema, self.version, None)):
            raise ManifestInvalid(f"{self.path} has other columns than its schema needs")
        self.shard_rows = self._integers("rows")
        self.first_row = self._integers("first_row")
        self.shard_bytes = self._integers("bytes")
        if len(self._batch) != self.shards or (
            self.first_row[0] != 0 or self.first_row[-1] + self.shard_rows[-1] != self.rows
        ):
            raise ManifestInvalid(f"{self.path}: its shards do not add up to {self.rows} rows")
        if len(mapped.data) <= _CHECKED_BYTES:
            self.check()

    def check(self) -> None:
        """Hash the columns. Opening does this by itself up to 16 MiB.

        Raises:
            ManifestInvalid: they are not those that were written.
        """
        found = _hash_columns(self._batch.columns)
        if found != self._columns_xxh3:
            raise ManifestInvalid(
                f"{self.path} is damaged: its columns have the xxh3 {found}, expected "
                f"{self._columns_xxh3}; copy it again, or pack again"
            )

    def name(self, shard: int) -> str:
        """The file name of a shard.

        Raises:
            ManifestInvalid: it is not a plain file name.
        """
        name = str(self._batch.column("name")[shard].as_py())
        if name in ("", ".", "..") or os.path.basename(name) != name:
            raise ManifestInvalid(f"{self.path}: {name!r} is not the name of a shard")
        return name

    def xxh3(self, shard: int) -> str:
        """The xxh3_64 of a shard's file, 16 hexadecimal digits."""
        return str(self._batch.column("xxh3")[shard].as_py())

    def codec_counts(self) -> dict[str, dict[str, int]]:
        """For each image field, how many rows each codec holds: {"image": {"jpeg": 10, ...}}."""
        return {
            field: {codec: self._count(f"{field}.{codec}") for codec in CODEC_NAMES}
            for field in self.schema.image_fields
        }

    def shard_tokens(self, field: str) -> NDArray[np.int64]:
        """How many tokens a field of tokens has in each shard: int64 (shards,)."""
        return self._integers(f"{field}.tokens")

    def _count(self, column: str) -> int:
        """The sum of a column; 0 of one that the manifest's version has not."""
        there = column in self._batch.schema.names
        return int(self._integers(column).sum()) if there else 0

    def _damaged_description(self, expected: str) -> ManifestInvalid:
        return ManifestInvalid(
            f"{self.path} is damaged: its description has the xxh3 {self.fingerprint}, {expected}; "
            "copy it again, or pack again"
        )

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            description = json.loads(text)
            version = description["format_version"]
            if type(version) is not int or version not in _CODECS:
                raise FormatVersionUnsupported(
                    f"{self.path} has the format version {version!r}; this fastio reads versions "
                    f"{', '.join(map(str, _CODECS))}: update fastio, or pack again with this one"
                )
            self.version = version
            self.schema = Schema.from_json(description["schema"])
            self.packing: dict[str, Any] = dict(description["packing"])
            for key in ("rows", "shards", "bytes"):
                if not isinstance(description[key], int) or description[key] < 1:
                    raise ValueError(f"{key} is {description[key]!r}")
            str(description["columns_xxh3"])
            self.codebook = _parse_codebook(description["codebook"]) if version > 1 else None
            self.statistics: list[dict[str, Any]] = list(description.get("statistics", ()))
        except FormatVersionUnsupported:
            raise
        except (KeyError, TypeError, ValueError, SchemaError) as error:
            raise ManifestInvalid(
                f"{self.path}: its description is damaged ({type(error).__name__}: {error})"
            ) from error
        return dict(description)

    def _integers(self, column: str) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self._batch.column(column).to_numpy(zero_copy_only=True)
        return values


def is_dataset(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a manifest."""
    return os.path.isfile(os.path.join(folder, MANIFEST_NAME))


def is_half_written(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds what an unfinished pack leaves: its journal, and no manifest."""
    return not is_dataset(folder) and os.path.isfile(os.path.join(folder, JOURNAL_NAME))


def _why_no_dataset(folder: str) -> str:
    if not os.path.exists(folder):
        return f"{folder} does not exist"
    if not os.path.isdir(folder):
        return f"{folder} is a file; a packed dataset is the folder that `fastio pack` writes"
    if is_half_written(folder):
        return (
            f"{folder} holds a half-written dataset: finish it with `fastio pack SOURCE {folder} "
            "--resume`"
        )
    return (
        f"{folder} is not a packed dataset, it has no {MANIFEST_NAME}: make one with `fastio pack "
        "SOURCE DESTINATION`"
    )


def _parse_codebook(text: Any) -> bytes | None:
    """A codebook from its base64.

    Raises:
        TypeError, ValueError: it is none.
    """
    if text is None:
        return None
    data = base64.b64decode(text, validate=True)
    if len(data) != CODEBOOK_BYTES:
        raise ValueError(f"the codebook has {len(data)} bytes, expected {CODEBOOK_BYTES}")
    return data


def _column_names(schema: Schema, version: int) -> list[str]:
    codecs = [f"{field}.{codec}" for field in schema.image_fields for codec in _CODECS[version]]
    tokens = [f"{field}.tokens" for field in schema.token_fields]
    return ["name", "rows", "first_row", "bytes", "xxh3", *codecs, *tokens]


def _arrow_schema(
    schema: Schema, version: int, metadata: Mapping[bytes, bytes] | None
) -> pa.Schema:
    fields = [
        pa.field(name, pa.large_utf8() if name in ("name", "xxh3") else pa.int64(), nullable=False)
        for name in _column_names(schema, version)
    ]
    return pa.schema(fields, metadata=metadata)


def _hash_columns(columns: Sequence[pa.Array]) -> str:
    """xxh3_64 of the columns' values in order: integers as little-endian int64; strings as their
    offsets (little-endian int64, one more than rows) and then their bytes."""
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
