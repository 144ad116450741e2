"""docs/format.md holds: its reader reads, files lie as it says, what it describes is read."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from PIL import Image

import fastio

PAGE = Path(__file__).parent.parent / "docs" / "format.md"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packed-jpeg/: images of two classes, some of them PNG."""
    folder = tmp_path_factory.mktemp("format")
    for number in range(12):
        path = (
            folder
            / "photos"
            / ("cat", "dog")[number % 2]
            / f"{number}.{'png' if number % 4 == 1 else 'jpg'}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + number, 30), (20 * number, 0, 60)).save(path)
    fastio.pack(folder / "photos", folder / "packed-jpeg", codec="jpeg", shard_size=2000)
    return folder


def test_its_reader_reads_what_fastio_reads(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packed)
    (reader,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(reader, names)
    with fastio.open("packed-jpeg") as dataset:
        assert dataset.classes is not None
        for row in range(len(dataset)):
            image, label = names["image_and_label"](row)
            pixels, number = dataset[row]
            assert np.array_equal(np.asarray(image), pixels)
            assert dataset.classes[number] == label


def test_records_lie_as_the_page_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {f"I{n}": rng.standard_normal(1000, np.float32) for n in range(1, 14)}
    columns |= {f"C{n}": rng.integers(0, 100, 1000, np.int32) for n in range(1, 27)}
    columns["label"] = rng.integers(0, 2, 1000)
    groups = {"dense": [f"I{n}" for n in range(1, 14)], "sparse": [f"C{n}" for n in range(1, 27)]}
    fastio.pack(pa.table(columns), tmp_path / "clicks", groups=groups, dtypes={"label": "float32"})
    shard = pa.ipc.open_file(pa.memory_map(str(tmp_path / "clicks/shard-000000.arrow"))).get_batch(
        0
    )
    rows = np.array([list(row) for row in shard.column(".record").to_pylist()], np.uint8)
    assert rows.shape == (1000, 160)
    for number, name in enumerate(columns):  # each takes four bytes here, and none are between
        dtype = np.float32 if name == "label" else columns[name].dtype
        found = rows[:, 4 * number : 4 * number + 4].copy().view(dtype)[:, 0]
        assert np.array_equal(found, columns[name])
    about = json.loads(shard.schema.metadata[b"fastio"])
    assert (about["format_version"], about["schema"]["records"]) == (1, True)


# --- The page, followed by a writer of its own ---------------------------------------------------


def crc32c(data: bytes) -> int:
    """CRC-32C as its definition has it, a bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def xxh3(pieces: Iterable[bytes]) -> str:
    return xxhash.xxh3_64(b"".join(pieces)).hexdigest()


def buffers(column: pa.Array) -> list[bytes]:
    return [buffer.to_pybytes() for buffer in column.buffers() if buffer is not None]


def write_file(path: Path, columns: dict[str, pa.Array], metadata: dict[str, str]) -> bytes:
    """One record batch as pyarrow writes it, its buffers aligned to 8 bytes."""
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    schema = pa.schema(fields, metadata=metadata)
    with pa.ipc.new_file(path, schema) as file:
        file.write_batch(pa.record_batch(list(columns.values()), schema=schema))
    return path.read_bytes()


def seal(path: Path, data: bytes) -> None:
    """Puts the hash of a file in it, before its footer."""
    footer = len(data) - 10 - struct.unpack_from("<i", data, len(data) - 10)[0]
    digest = xxhash.xxh3_64(data).intdigest()
    path.write_bytes(data[:footer] + struct.pack("<Q", digest) + data[footer:])


def shard_columns(pixels: list[bytes], names: list[str]) -> dict[str, pa.Array]:
    """Raw gray images of 2 x 3 pixels, and a Text."""
    rows = len(pixels)
    return {
        "image": pa.array(pixels, pa.large_binary()),
        "image.codec": pa.array([1] * rows, pa.uint8()),
        "image.height": pa.array([2] * rows, pa.int32()),
        "image.width": pa.array([3] * rows, pa.int32()),
        "image.orientation": pa.array([1] * rows, pa.uint8()),
        "image.crc32c": pa.array([crc32c(data) for data in pixels], pa.uint32()),
        "name": pa.array(names, pa.large_utf8()),
    }


def test_a_dataset_written_as_the_page_says_is_read(tmp_path: Path) -> None:
    fields = [{"name": "image", "type": "image", "mode": "L"}, {"name": "name", "type": "text"}]
    schema = {"structure": "dict", "fields": fields, "classes": None}
    pixels = [bytes(range(n, n + 6)) for n in (0, 6, 12)]
    columns = shard_columns(pixels, ["a", "", "c c"])
    about: dict[str, Any] = {"format_version": 1, "schema": schema}
    shard = write_file(tmp_path / "part one.arrow", columns, {"fastio": json.dumps(about)})
    begin, end = shard.index(b"".join(pixels)), sum(map(len, pixels))
    end += begin
    (schema_bytes,) = struct.unpack_from("<i", shard, 12)
    (batch_bytes,) = struct.unpack_from("<i", shard, 20 + schema_bytes)
    (footer_bytes,) = struct.unpack_from("<i", shard, len(shard) - 10)
    body, foot = 24 + schema_bytes + batch_bytes, len(shard) - 10 - footer_bytes - 8
    assert shard[foot : foot + 8] == b"\xff\xff\xff\xff\0\0\0\0"

    numbers = {
        "rows": 3,
        "first_row": 0,
        "bytes": len(shard),
        "head_bytes": body,
        "foot_bytes": len(shard) - foot,
        "image.offset": begin,
        "image.bytes": end - begin,
        "image.jpeg": 0,
        "image.raw": 3,
        "image.encoded": 0,
        "image.blocks": 0,
    }
    texts = {
        "name": "part one.arrow",
        "xxh3": xxh3([shard]),
        "head_xxh3": xxh3([shard[:body], shard[foot:]]),
        "columns_xxh3": xxh3([shard[body:begin], shard[end:foot]]),
    }
    arrays = {name: pa.array([value], pa.int64()) for name, value in numbers.items()}
    arrays |= {name: pa.array([value], pa.large_utf8()) for name, value in texts.items()}
    order = ["name", "rows", "first_row", "bytes", "xxh3", "head_bytes", "foot_bytes"]
    order += ["head_xxh3", "columns_xxh3"]
    manifest = {name: arrays[name] for name in [*order, *list(numbers)[5:]]}
    about |= {
        "packing": {},
        "codebook": None,
        "rows": 3,
        "bytes": len(shard),
        "shards": 1,
        "version": 1,
        "history": [],
        "something": "else",
    }
    hashed = [column for name, column in manifest.items() if name != "name"]
    about["columns_xxh3"] = xxh3(buffer for column in hashed for buffer in buffers(column))
    text = json.dumps(about)
    metadata = {"fastio": text, "fastio.xxh3": xxh3([text.encode()])}
    seal(tmp_path / "manifest.arrow", write_file(tmp_path / "manifest.arrow", manifest, metadata))

    with fastio.open(tmp_path) as dataset:
        assert [check.problem for check in dataset.verify()] == [None]
        assert [sample["name"] for sample in dataset] == ["a", "", "c c"]
        assert [sample["image"].tobytes() for sample in dataset] == pixels
    with fastio.Loader(tmp_path, batch_size=3) as loader:
        (batch,) = loader
    assert [image.numpy().tobytes() for image in batch["image"]] == pixels


@pytest.mark.parametrize("name", ["manifest.arrow", "shard-000000.arrow"])
def test_a_file_is_laid_out_as_the_page_says(packed: Path, name: str) -> None:
    data = (packed / "packed-jpeg" / name).read_bytes()
    (schema_bytes,) = struct.unpack_from("<i", data, 12)
    (batch_bytes,) = struct.unpack_from("<i", data, 20 + schema_bytes)
    (footer_bytes,) = struct.unpack_from("<i", data, len(data) - 10)
    body = 24 + schema_bytes + batch_bytes
    footer = len(data) - 10 - footer_bytes
    assert data[:12] == b"ARROW1\0\0\xff\xff\xff\xff"
    assert data[16 + schema_bytes :][:4] == b"\xff\xff\xff\xff"
    end = footer - (16 if name == "manifest.arrow" else 8)
    assert (body % 64, end % 64) == (0, 0)
    assert data[end : end + 8] == b"\xff\xff\xff\xff\0\0\0\0"
    if name == "manifest.arrow":
        rest = data[: footer - 8] + data[footer:]
        assert data[footer - 8 : footer] == struct.pack("<Q", xxhash.xxh3_64(rest).intdigest())
    assert data[-6:] == b"ARROW1"
    mapped = pa.py_buffer(data)
    columns = pa.ipc.open_file(mapped).get_batch(0).columns
    found = [buffer for column in columns for buffer in column.buffers() if buffer is not None]
    assert {(buffer.address - mapped.address) % 64 for buffer in found} == {0}
