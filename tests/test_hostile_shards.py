"""What no writer of fastio makes is refused by name, before memory is taken for it.

Whoever makes such files may make their hashes too: none of these tests is passed by a hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from fastio import Dataset as open_dataset
from fastio import Image, ManifestInvalid, Scalar, Schema, ShardCorrupt, Text
from fastio.packed import MANIFEST_NAME
from fastio.packed.ipc import hash_columns
from fastio.packed.manifest import METADATA_KEY
from fastio.packed.manifest_writer import manifest_batch, manifest_metadata
from fastio.packed.shard import ShardReader
from fastio.packed.shard_writer import write_sealed
from tests.manifests import made_up

SCHEMA = Schema({"image": Image(), "label": Scalar("int64"), "text": Text()})


def write(path: Path, batch: pa.RecordBatch, **options: Any) -> Path:
    with pa.ipc.new_file(
        str(path), batch.schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as file:
        file.write_batch(batch)
    return path


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_buffers_are_refused_before_they_are_unpacked(
    tmp_path: Path, compression: str
) -> None:
    zeros = pa.record_batch({"x": pa.array(np.zeros(1 << 20, np.int64))})
    path = write(tmp_path / "a.arrow", zeros, compression=compression)
    assert path.stat().st_size < 100_000
    del zeros
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(ShardCorrupt, match=r"a\.arrow has compressed buffers"):
        ShardReader(path)
    assert pa.default_memory_pool().max_memory() - before < 1 << 20


def test_validity_bitmaps_are_refused_whatever_they_hold(tmp_path: Path) -> None:
    full = pa.Array.from_buffers(
        pa.int64(), 3, [pa.py_buffer(b"\x07"), pa.py_buffer(bytes(24))], null_count=1
    )
    path = write(tmp_path / "a.arrow", pa.record_batch({"x": full}))
    with pytest.raises(ShardCorrupt, match=r"a\.arrow has nulls"):
        ShardReader(path)


def test_dictionaries_are_refused(tmp_path: Path) -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    path = write(tmp_path / "a.arrow", pa.record_batch({"x": words}))
    with pytest.raises(ShardCorrupt, match=r"a\.arrow has dictionaries"):
        ShardReader(path)


@pytest.mark.parametrize("value", [-8, 1 << 40, (1 << 62) + 8, 3])
def test_buffers_that_leave_the_file_are_refused(tmp_path: Path, value: int) -> None:
    rows = pa.record_batch({"x": np.arange(5), "y": np.arange(5)})
    path = write(tmp_path / "a.arrow", rows)
    data = path.read_bytes()
    place = (40).to_bytes(8, "little")  # the size of both buffers, among others
    places = [at for at in range(len(data)) if data[at : at + 8] == place]
    for at in places[:1] + places[2:]:  # the second is where an empty buffer lies: nowhere
        path.write_bytes(data[:at] + value.to_bytes(8, "little", signed=True) + data[at + 8 :])
        with pytest.raises(ShardCorrupt, match=r"a\.arrow"):
            ShardReader(path)


def test_other_columns_than_the_schema_s_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.record_batch({"label": np.arange(3)}))
    with pytest.raises(ShardCorrupt, match=r"a\.arrow has the columns label int64, expected image"):
        ShardReader(path, schema=SCHEMA)


# Manifests


def made(folder: Path, change: Callable[[dict[str, pa.Array], dict[str, Any]], None]) -> Path:
    """A manifest of three shards, changed, all of whose hashes are right."""
    columns = made_up(SCHEMA, [f"shard-{n:06}.arrow" for n in range(3)], rows=4)
    batch = manifest_batch(SCHEMA, {}, columns)
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    description = json.loads(batch.schema.metadata[METADATA_KEY])
    change(arrays, description)
    description.setdefault("columns_xxh3", "")
    if description["columns_xxh3"] is not None:
        changed = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        description["columns_xxh3"] = hash_columns(changed)
    schema = batch.schema.with_metadata(manifest_metadata(description))
    write_sealed(
        folder / MANIFEST_NAME, pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)
    )
    return folder


def numbers(*values: int) -> pa.Array:
    return pa.array(values, pa.int64())


def test_a_manifest_that_is_not_changed_is_opened(tmp_path: Path) -> None:
    assert len(open_dataset(made(tmp_path, lambda *_: None))) == 12


@pytest.mark.parametrize(
    ("column", "values", "what"),
    [
        ("first_row", (0, 8, 4), "does not follow"),
        ("first_row", (0, -4, 8), "does not follow"),
        ("first_row", (4, 8, 12), "does not follow"),
        ("rows", (4, 0, 8), "(no rows|does not follow)"),
        ("rows", (4, -4, 12), "(no rows|does not follow)"),
        ("bytes", (1000, 2**62, 1000), "size is not possible"),
        ("bytes", (1000, -1, 1000), "size is not possible"),
        ("head_bytes", (64, 2**62, 64), "head and foot"),
        ("head_bytes", (64, -8, 64), "head and foot"),
        ("foot_bytes", (64, 1000, 64), "head and foot"),
        ("foot_bytes", (64, 2**63 - 1, 64), "head and foot"),
        ("image.offset", (128, 2**63 - 1, 128), "do not lie inside"),
        ("image.offset", (128, 8, 128), "do not lie inside"),
        ("image.bytes", (0, 2**63 - 1, 0), "do not lie inside"),
        ("image.bytes", (0, -1, 0), "do not lie inside"),
        ("image.raw", (0, -1, 0), "negative"),
    ],
)
def test_columns_of_a_manifest_that_cannot_be_are_refused(
    tmp_path: Path, column: str, values: tuple[int, ...], what: str
) -> None:
    made(tmp_path, lambda arrays, _: arrays.update({column: numbers(*values)}))
    with pytest.raises(ManifestInvalid, match=rf"is damaged: shard \d of 3: .*{what}"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("offsets", [(0, 18, 5, 54), (0, -18, 36, 54), (0, 18, 2**40, 54)])
def test_texts_of_a_manifest_that_leave_their_bytes_are_refused(
    tmp_path: Path, offsets: tuple[int, ...]
) -> None:
    def change(arrays: dict[str, pa.Array], _: dict[str, Any]) -> None:
        data = arrays["name"].buffers()[2]
        index = pa.py_buffer(np.array(offsets, np.int64).tobytes())
        arrays["name"] = pa.Array.from_buffers(pa.large_utf8(), 3, [None, index, data])

    with pytest.raises(ManifestInvalid, match=r"manifest\.arrow"):
        open_dataset(made(tmp_path, change))


@pytest.mark.parametrize(
    "value", [None, -1, 0, 2**63, 2**4000, 1.5, "x", "\ud800", True, [], {}, [[]], [1, 2], {"a": 1}]
)
@pytest.mark.parametrize(
    "key", ["schema", "packing", "codebook", "rows", "shards", "bytes", "statistics"]
)
def test_descriptions_that_cannot_be_are_refused_or_harmless(
    tmp_path: Path, key: str, value: Any
) -> None:
    made(tmp_path, lambda _, description: description.update({key: value}))
    with suppress(ManifestInvalid):
        open_dataset(tmp_path).close()


@pytest.mark.parametrize(
    "field",
    [
        {"name": "x", "type": "array", "dtype": "int64", "shape": [2**40, 2**40]},
        {"name": "x", "type": "array", "dtype": "int64", "shape": [2**31]},
        {"name": "x", "type": "array", "dtype": "complex128", "shape": [2**62]},
        {"name": "x", "type": "array", "dtype": "V9", "shape": [1]},
        {"name": "x", "type": "tokens", "dtype": "uint16", "vocabulary_size": "x"},
        {"name": "\ud800", "type": "text"},
        {"name": "x", "type": "image", "mode": []},
        {"name": "x", "type": "scalar", "dtype": []},
        {"name": "x", "type": []},
        ["x"],
        None,
    ],
    ids=repr,
)
@pytest.mark.parametrize("records", [False, True])
def test_fields_that_cannot_be_are_refused(tmp_path: Path, field: Any, records: bool) -> None:
    def change(_: dict[str, pa.Array], description: dict[str, Any]) -> None:
        description["schema"]["fields"].append(field)
        description["schema"]["records"] = records

    with pytest.raises(ManifestInvalid, match=r"manifest\.arrow"):
        open_dataset(made(tmp_path, change))


def test_a_description_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    columns = made_up(SCHEMA, ["shard-000000.arrow"])
    batch = manifest_batch(SCHEMA, {}, columns)
    text = batch.schema.metadata[METADATA_KEY][:-1] + b', "x": ' + b"[" * 100_000 + b"}"
    metadata = manifest_metadata({}) | {METADATA_KEY: text}
    metadata[b"fastio.xxh3"] = xxhash.xxh3_64(text).hexdigest().encode()
    write_sealed(tmp_path / MANIFEST_NAME, batch.replace_schema_metadata(metadata))
    with pytest.raises(ManifestInvalid, match="description is damaged"):
        open_dataset(tmp_path)
