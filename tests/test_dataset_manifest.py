"""Opening a dataset costs the same for any size, and a manifest that is not whole is noticed."""

from __future__ import annotations

import base64
import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

import fastio
from fastio import Dataset as open_dataset
from fastio import (
    DatasetNotFound,
    FormatUnsupported,
    Image,
    ImageError,
    ManifestInvalid,
    Scalar,
    Schema,
    Text,
    Writer,
)
from fastio.packed import FORMAT_VERSION, JOURNAL_NAME, MANIFEST_NAME
from fastio.packed.manifest import HASH_KEY, METADATA_KEY
from fastio.packed.manifest_writer import manifest_metadata
from fastio.packed.shard_writer import write_sealed
from tests.manifests import write_made_up
from tests.pictures import jpeg

ROWS = 200
SCHEMA = Schema({"number": Scalar("int64")}, "single")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several shards; not to be changed."""
    path = tmp_path_factory.mktemp("packed") / "data"
    with Writer(path, SCHEMA, shard_size=320) as writer:
        for row in range(ROWS):
            writer.write(row)
    return path


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A dataset that a test may damage."""
    return Path(shutil.copytree(packed, tmp_path / "data"))


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest's description, and leave its columns."""
    with pa.OSFile(str(folder / MANIFEST_NAME)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    description = json.loads(batch.schema.metadata[METADATA_KEY])
    change(description)
    metadata = manifest_metadata(description)
    write_sealed(folder / MANIFEST_NAME, batch.replace_schema_metadata(metadata))


def edit_metadata(folder: Path, change: Callable[[dict[bytes, bytes]], Any]) -> None:
    """Change a manifest's schema metadata, and leave its columns."""
    with pa.OSFile(str(folder / MANIFEST_NAME)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    metadata = dict(batch.schema.metadata)
    change(metadata)
    write_sealed(folder / MANIFEST_NAME, batch.replace_schema_metadata(metadata))


def synthetic_manifest(folder: Path, shards: int, rows_each: int) -> None:
    """A manifest of shards that are not there."""
    names = [f"shard-{shard:06d}.arrow" for shard in range(shards)]
    write_made_up(folder, Schema({"label": Scalar("int64")}), names, rows_each)


@pytest.mark.parametrize("shards", [1, 500_000])
def test_opening_ten_million_rows_makes_no_objects_for_them(tmp_path: Path, shards: int) -> None:
    synthetic_manifest(tmp_path, shards, 10_000_000 // shards)
    open_dataset(tmp_path)
    tracemalloc.start()
    dataset = open_dataset(tmp_path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(dataset) == 10_000_000
    assert peak_bytes < 200_000
    shard, local = dataset.locate(np.array([0, 9_999_999]))
    assert shard.tolist() == [0, shards - 1]
    assert local.tolist() == [0, 10_000_000 // shards - 1]


def test_equal_datasets_have_equal_fingerprints_wherever_they_lie(packed: Path, copy: Path) -> None:
    assert open_dataset(packed).fingerprint == open_dataset(copy).fingerprint


def test_one_changed_number_changes_the_fingerprint(tmp_path: Path) -> None:
    prints = set()
    for value in (1, 2):
        with Writer(tmp_path / str(value), Schema({"x": Scalar("int64")}, "single")) as writer:
            writer.write(value)
        prints.add(open_dataset(tmp_path / str(value)).fingerprint)
    assert len(prints) == 2


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound, match="nothing does not exist"):
        open_dataset(tmp_path / "nothing")


def test_a_folder_without_a_manifest_is_no_dataset(copy: Path) -> None:
    (copy / MANIFEST_NAME).unlink()
    with pytest.raises(DatasetNotFound, match="fastio pack"):
        open_dataset(copy)


def test_a_half_written_dataset_is_to_be_resumed(copy: Path) -> None:
    (copy / MANIFEST_NAME).rename(copy / JOURNAL_NAME)
    with pytest.raises(DatasetNotFound, match=r"incomplete.*--resume"):
        open_dataset(copy)


def test_a_file_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DatasetNotFound, match="is a file"):
        open_dataset(tmp_path / "file")


def test_a_folder_in_the_manifest_s_place_is_no_manifest(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).mkdir()
    with pytest.raises(DatasetNotFound):
        open_dataset(tmp_path)


def test_a_truncated_manifest_is_noticed_at_any_length(copy: Path) -> None:
    data = (copy / MANIFEST_NAME).read_bytes()
    for length in [*range(0, len(data), 13), *range(len(data) - 50, len(data))]:
        (copy / MANIFEST_NAME).write_bytes(data[:length])
        with pytest.raises(ManifestInvalid, match=MANIFEST_NAME):
            open_dataset(copy)


def test_every_flipped_bit_of_a_manifest_is_noticed(copy: Path) -> None:
    path = copy / MANIFEST_NAME
    data = path.read_bytes()
    for position in range(len(data)):
        bit = 1 << position % 8
        path.write_bytes(data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :])
        with pytest.raises(ManifestInvalid, match=MANIFEST_NAME):
            open_dataset(copy)


def test_an_arrow_file_of_somebody_else_is_no_manifest(tmp_path: Path) -> None:
    write_sealed(tmp_path / MANIFEST_NAME, pa.RecordBatch.from_arrays([pa.array([1])], ["x"]))
    with pytest.raises(ManifestInvalid, match="not a fastio manifest"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, "1", 1.0, True, None, []])
def test_an_unknown_format_version_is_named(copy: Path, version: Any) -> None:
    edit_manifest(copy, lambda description: description.update(format_version=version))
    with pytest.raises(FormatUnsupported, match=r"version .*update fastio"):
        open_dataset(copy)


def test_a_manifest_keeps_a_codebook(tmp_path: Path) -> None:
    codebook = bytes(range(256)) * 65
    write_made_up(tmp_path, Schema({"x": Text()}), ["shard-000000.arrow"], codebook=codebook)
    assert open_dataset(tmp_path).manifest.codebook == codebook


@pytest.mark.parametrize(
    "value", ["", "?", 7, [], base64.b64encode(bytes(16_639)).decode(), "AAAA" * 5546 + "AAAA"]
)
def test_a_codebook_that_is_none_is_damage(copy: Path, value: Any) -> None:
    edit_manifest(copy, lambda description: description.update(codebook=value))
    with pytest.raises(ManifestInvalid, match="damaged"):
        open_dataset(copy)


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """A dataset with a JPEG as blocks."""
    with Writer(tmp_path / "blocks", Schema({"image": Image()}, "single")) as writer:
        writer.write(jpeg())
    return tmp_path / "blocks"


def first_batch(path: Path) -> Any:
    with fastio.Loader(path, 1, num_workers=1) as loader:
        return next(iter(loader))


@pytest.mark.parametrize("read", [lambda path: open_dataset(path)[0], first_batch])
def test_blocks_without_their_codebook_are_an_error(
    blocks: Path, read: Callable[[Path], Any]
) -> None:
    read(blocks)
    edit_manifest(blocks, lambda description: description.update(codebook=None))
    with pytest.raises(ImageError, match="codebook"):
        read(blocks)


@pytest.mark.parametrize("read", [lambda path: open_dataset(path)[0], first_batch])
def test_a_codebook_that_breaks_its_rules_is_named(
    blocks: Path, read: Callable[[Path], Any]
) -> None:
    text = base64.b64encode(b"\xff" * 16_640).decode()
    edit_manifest(blocks, lambda description: description.update(codebook=text))
    with pytest.raises(ManifestInvalid, match=r"manifest\.arrow: its codebook: "):
        read(blocks)


def test_a_newer_version_is_named_even_if_nothing_else_is_understood(copy: Path) -> None:
    def rewrite(description: dict[str, Any]) -> None:
        description.clear()
        description.update(format_version=99, what="ever")

    edit_manifest(copy, rewrite)
    with pytest.raises(FormatUnsupported, match="99"):
        open_dataset(copy)


@pytest.mark.parametrize(
    "key", ["schema", "rows", "shards", "bytes", "columns_xxh3", "packing", "codebook"]
)
def test_a_description_without_one_of_its_parts_is_damaged(copy: Path, key: str) -> None:
    edit_manifest(copy, lambda description: description.pop(key))
    with pytest.raises(ManifestInvalid, match="damaged"):
        open_dataset(copy)


def test_sums_that_do_not_fit_the_shards_are_noticed(copy: Path) -> None:
    edit_manifest(copy, lambda description: description.update(rows=ROWS + 1))
    with pytest.raises(ManifestInvalid, match="add up"):
        open_dataset(copy)


def test_the_description_s_hash_is_the_fingerprint(packed: Path) -> None:
    with pa.OSFile(str(packed / MANIFEST_NAME)) as file:
        metadata = pa.ipc.open_file(file).schema.metadata
    assert metadata[HASH_KEY].decode() == open_dataset(packed).fingerprint
    assert metadata[HASH_KEY].decode() == xxhash.xxh3_64(metadata[METADATA_KEY]).hexdigest()


@pytest.mark.parametrize(
    ("old", "new"), [(b'"source": "', b'"source": "x'), (b'version": 1', b'version": 2')]
)
def test_a_changed_description_is_damage(copy: Path, old: bytes, new: bytes) -> None:
    def change(metadata: dict[bytes, bytes]) -> None:
        assert old in metadata[METADATA_KEY]
        metadata[METADATA_KEY] = metadata[METADATA_KEY].replace(old, new)

    edit_metadata(copy, change)
    with pytest.raises(ManifestInvalid, match="is damaged: its description has the XXH3 hash"):
        open_dataset(copy)


def test_a_description_without_its_hash_is_damage(copy: Path) -> None:
    edit_metadata(copy, lambda metadata: metadata.pop(HASH_KEY))
    with pytest.raises(ManifestInvalid, match="its description has the XXH3 hash"):
        open_dataset(copy)


def test_a_schema_that_does_not_fit_the_columns_is_noticed(copy: Path) -> None:
    schema = Schema({"x": Image()}).to_json()
    edit_manifest(copy, lambda description: description.update(schema=schema))
    with pytest.raises(ManifestInvalid, match="columns"):
        open_dataset(copy)


@pytest.mark.parametrize("name", ["../shard-000000.arrow", "/etc/passwd", "", "..", "a\0b", "a/b"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    write_made_up(tmp_path, Schema({"x": Text()}), [name])
    with pytest.raises(ManifestInvalid, match="not the name of a shard"):
        open_dataset(tmp_path)[0]


def test_verify_notices_a_damaged_manifest_of_any_size(tmp_path: Path) -> None:
    synthetic_manifest(tmp_path, 300_000, 1)
    path = tmp_path / MANIFEST_NAME
    data = bytearray(path.read_bytes())
    assert len(data) > 16 << 20
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ManifestInvalid, match="do not match the hash"):
        next(open_dataset(tmp_path).verify())
