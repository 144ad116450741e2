"""The parsers of strangers' bytes that are written in Python, for `fuzz_python`."""

from __future__ import annotations

import gzip
import io
import json
import random
import socket
import struct
import tarfile
import threading
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import xxhash

import fastio
import fastio.packed.ipc
import fastio.packed.manifest
import fastio.packed.shard
import fastio.sources.table
import fastio.sources.tar.dataset
import fastio.sources.tar.fields
import fastio.store.receive
from fastio import (
    Array,
    Bytes,
    CacheError,
    FastioError,
    Image,
    Scalar,
    Schema,
    TarDataset,
    Text,
    Tokens,
)
from fastio.packed import Manifest
from fastio.schema import Field
from fastio.sources.tar.headers import BLOCK, Window, check_end, read_members
from fastio.sources.tar.index import TarIndex, build_index
from fastio.sources.tar.kept import index_bytes, read_index
from fastio.sources.tar.reader import TarReader
from fastio.sources.tar.values import decode, infer_field
from fastio.store.receive import Receiver
from fastio.store.retry import Limits, Permanent
from tests.fuzz_python import Target, mutate_bytes, mutate_json
from tests.tars import npy

_ROWS = 24  # read of a dataset that opens


# --- Tars -----------------------------------------------------------------------------------------


class _Memory:
    """One tar in memory, as a reader."""

    def __init__(self, data: bytes, window_bytes: int = 8192) -> None:
        self._data = data
        self.window_bytes = window_bytes
        self.versions = [("x.tar", "1", len(data))]

    def where(self, name: str) -> str:
        return name

    def size(self, name: str) -> int:
        return len(self._data)

    def read(self, name: str, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0:
            raise AssertionError(f"a read of {length} bytes at {offset}")
        return self._data[offset : offset + length]

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(name, offset, length) for offset, length in ranges]


class Tars(Target):
    """A tar's headers, its samples, and what their files hold."""

    name = "tars"
    modules = (
        "fastio.sources.tar.headers",
        "fastio.sources.tar.index",
        "fastio.sources.tar.values",
        "fastio.sources.tar.fields",
    )
    allowed = (FastioError,)
    _words = (b"ustar\0", b"ustar  \0", b"path=", b"size=", b"GNU.sparse.major=1", b".cls", b".npy")
    _words += (b"L", b"K", b"x", b"g", b"S", b"\x80" + bytes(11), b"\xff" * 12, b".json.gz")

    def seeds(self) -> list[bytes]:
        found = []
        for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w", format=form) as tar:
                for number in range(3):
                    for name, data in self._files(number, form):
                        member = tarfile.TarInfo(name)
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
            found.append(file.getvalue()[: 40 * BLOCK] + bytes(2 * BLOCK))
            self._whole = file.getvalue()
            found.append(self._whole)
        return [data for data in found if self._opens(data)]

    def _files(self, number: int, form: int) -> list[tuple[str, bytes]]:
        long = "" if form == tarfile.USTAR_FORMAT else "ö" * 120
        files = {
            "cls": str(number).encode(),
            "txt": f"sample {number}".encode(),
            "json": json.dumps({"number": number}).encode(),
            "score.json": json.dumps(number / 2).encode(),
            "emb.npy": npy(np.arange(3, dtype=np.float32) + number),
            "more.json.gz": gzip.compress(json.dumps([number]).encode()),
            "bin": bytes([number, 255]),
        }
        return [(f"{long}{number:04d}.{extension}", data) for extension, data in files.items()]

    def _opens(self, data: bytes) -> bool:
        try:
            self.run(data)
        except FastioError:
            return False
        return True

    def mutate(self, choice: random.Random, data: bytes) -> bytes:
        made = bytearray(mutate_bytes(choice, data, self._words))
        if choice.randrange(8):
            _sum_headers(made)
        return bytes(made)

    def run(self, data: bytes) -> None:
        reader = _Memory(data, 4096)
        window = Window(_Memory(data, 1024), "x.tar")
        for _ in read_members(window):
            pass
        check_end(window)
        index = build_index(reader, reader.versions, workers=1)
        dataset = _samples(index, reader)
        for row in range(min(len(dataset), _ROWS)):
            with suppress(FastioError):
                dataset[row]


def _samples(index: TarIndex, reader: TarReader) -> TarDataset:
    """Return the samples of tars that are not opened by their names."""
    dataset = TarDataset.__new__(TarDataset)
    dataset._fill("x.tar", reader, index, None, "keep")
    return dataset


def _sum_headers(data: bytearray) -> None:
    """Give whatever looks like a tar header its checksum."""
    for at in range(0, len(data) - BLOCK + 1, BLOCK):
        header = data[at : at + BLOCK]
        if header[257:262] == b"ustar":
            header[148:156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % (sum(header) & 0o777777)


class Values(Target):
    """One file of a sample: npy, JSON, numbers and text, zipped or not."""

    name = "npy"
    modules = ("fastio.sources.tar.values",)
    allowed = (ValueError, RecursionError)  # which the dataset makes a SampleError of
    _extensions = ("npy", "npy.gz", "json", "json.gz", "cls", "txt", "emb.npy", "n.json")
    _fields: tuple[Field, ...] = (
        Array("float32", (3,)),
        Array("int64"),
        Scalar("float64"),
        Scalar("int64"),
        Scalar("bool"),
        Text(),
        Bytes(),
    )
    _words = (b"'descr': ", b"'<f8'", b"'fortran_order': True", b"'shape': (", b"1000000000000,")
    _words += (b"'|O'", b"[('a','<i4')]", b"\x93NUMPY\x01\0", b"\x93NUMPY\x03\0", b"(" * 300)
    _words += (b"[" * 100_000, b'{"a":', b"1e999", b"NaN", b"9" * 5000, b"'|V9'", b"'<M8[s]'")

    def seeds(self) -> list[bytes]:
        values: list[tuple[int, int, bytes]] = []
        arrays = [np.arange(3, dtype=np.float32), np.ones((2, 3), np.int64), np.float64(2.5)]
        arrays += [np.asfortranarray(np.ones((3, 2), np.int64)), np.arange(3, dtype=">i8")]
        for field, array in zip((0, 1, 2, 1, 1), arrays, strict=True):
            values.append((0, field, npy(array)))
            values.append((1, field, gzip.compress(npy(array))))
        values += [(2, 5, json.dumps({"a": [1, 2, {"b": None}]}).encode()), (2, 2, b"1.5")]
        values += [(3, 3, gzip.compress(b"7")), (4, 3, b" 12 "), (5, 5, "tèxt".encode())]
        values += [(2, 4, b"true"), (6, 0, npy(np.arange(3, dtype=np.float32)))]
        return [bytes([extension, field]) + data for extension, field, data in values]

    def mutate(self, choice: random.Random, data: bytes) -> bytes:
        kinds, body = bytearray(data[:2].ljust(2, b"\0")), data[2:]
        if choice.randrange(8) == 0:
            kinds[choice.randrange(2)] = choice.randrange(16)
        if not self._extension(kinds).endswith(".gz") or choice.randrange(3) == 0:
            return bytes(kinds) + mutate_bytes(choice, body, self._words)
        with suppress(zlib.error):  # inside
            body = zlib.decompress(body, wbits=31)
        return bytes(kinds) + gzip.compress(mutate_bytes(choice, body, self._words), 1)

    def _extension(self, kinds: bytes | bytearray) -> str:
        return self._extensions[kinds[0] % len(self._extensions)]

    def run(self, data: bytes) -> None:
        if len(data) < 2:
            return
        extension, body = self._extension(data[:2]), data[2:]
        infer_field(extension, [body], bool(data[1] & 16))
        decode(extension, self._fields[data[1] % len(self._fields)], body)


class Index(Target):
    """The index of tars that is kept in a folder which others may have written."""

    name = "index"
    modules = ("fastio.sources.tar.index", "fastio.sources.tar.kept")
    allowed = (FastioError,)

    def seeds(self) -> list[bytes]:
        tars = Tars(self.folder)
        self._tar = max(tars.seeds(), key=len)
        self._reader = _Memory(self._tar)
        self._path = self.folder / "index"
        return [index_bytes(self._build()).to_pybytes()]

    def _build(self) -> TarIndex:
        return build_index(self._reader, self._reader.versions, workers=1)

    def mutate(self, choice: random.Random, data: bytes) -> bytes:
        return _mutate_arrow(choice, data, [b"fastio.tars"])

    def run(self, data: bytes) -> None:
        self._path.write_bytes(data)
        try:
            index = read_index(str(self._path))
        except CacheError:
            index = self._build()
        dataset = _samples(index, self._reader)
        for row in range(min(len(dataset), _ROWS)):
            with suppress(FastioError):
                dataset[row]


# --- Packed datasets ------------------------------------------------------------------------------


class _SameHash:
    """A hash that every byte string has: as if whoever changed the bytes made all hashes anew."""

    def __init__(self, data: Any = b"", seed: int = 0) -> None:
        pass

    def update(self, data: Any) -> None:
        memoryview(data)

    def reset(self) -> None:
        pass

    def hexdigest(self) -> str:
        return "0" * 16

    def intdigest(self) -> int:
        return 0xFFFFFFFF  # what stands before the footer of a file that pyarrow wrote

    def digest(self) -> bytes:
        return bytes(8)


def _hash_alike() -> None:
    """Every xxh3 is the same from here on, in this process."""
    xxhash.xxh3_64 = _SameHash  # type: ignore[misc,assignment]
    xxhash.xxh3_64_hexdigest = lambda data, seed=0: "0" * 16
    xxhash.xxh3_64_digest = lambda data, seed=0: bytes(8)
    xxhash.xxh3_64_intdigest = lambda data, seed=0: 0xFFFFFFFF


def _mutate_arrow(choice: random.Random, data: bytes, described: Sequence[bytes]) -> bytes:
    """An Arrow file after a change: of its bytes, of JSON in its metadata, or of a column."""
    kind = choice.randrange(4)
    if kind:
        try:
            return _rebuilt(choice, data, described, kind)
        except Exception:  # no Arrow file any more
            pass
    if choice.randrange(2):  # where its head and foot are
        at = choice.choice((0, max(0, len(data) - 3000)))
        return data[:at] + mutate_bytes(choice, data[at : at + 3000]) + data[at + 3000 :]
    return mutate_bytes(choice, data)


def _rebuilt(choice: random.Random, data: bytes, described: Sequence[bytes], kind: int) -> bytes:
    batch = pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)
    columns, schema = list(batch.columns), batch.schema
    metadata = dict(schema.metadata or {})
    if kind == 1 and (keys := [key for key in described if key in metadata]):
        key = choice.choice(keys)
        for _ in range(choice.choice((1, 1, 2))):
            value = mutate_json(choice, json.loads(metadata[key]))
            metadata[key] = json.dumps(value).encode()
        schema = schema.with_metadata(metadata)
    elif columns:
        place = choice.randrange(len(columns))
        columns[place] = _changed_column(choice, columns[place])
        if choice.randrange(16) == 0:
            fields = [
                pa.field(f.name, c.type, f.nullable) for f, c in zip(schema, columns, strict=True)
            ]
            fields[place] = pa.field(
                choice.choice(("\0", "x", fields[0].name)), columns[place].type
            )
            schema = pa.schema(fields, metadata)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(
        compression=choice.choice((None,) * 30 + ("zstd", "lz4"))  # refused by name
    )
    rows = len(columns[0]) if columns else 0
    arrays = [column if len(column) == rows else column[:rows] for column in columns]
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def _changed_column(choice: random.Random, column: Any) -> Any:
    """A column whose buffers hold something else, never checked."""
    if isinstance(column, pa.DictionaryArray):
        indices = _changed_column(choice, column.indices)
        return pa.DictionaryArray.from_arrays(indices, column.dictionary, safe=False)
    buffers = [buffer and buffer.to_pybytes() for buffer in column.buffers()]
    there = [n for n, buffer in enumerate(buffers) if buffer]
    if not there:
        return column
    place = choice.choice(there)
    buffer, width = bytearray(buffers[place]), choice.choice((4, 8))
    for _ in range(choice.choice((1, 1, 4))):
        at = choice.randrange(0, len(buffer), width)
        old = int.from_bytes(buffer[at : at + width], "little", signed=True)
        values = (0, -1, 1, old + 1, old - 1, -old, 1 << (8 * width - 2), -(1 << (8 * width - 1)))
        number = choice.choice((*values, choice.getrandbits(16), len(buffer)))
        number %= 1 << 8 * width
        buffer[at : at + width] = number.to_bytes(width, "little")[: len(buffer) - at]
    buffers[place] = bytes(buffer)
    left = iter([buffer if buffer is None else pa.py_buffer(buffer) for buffer in buffers])
    return _from_buffers(column, left)


def _from_buffers(column: Any, buffers: Any) -> Any:
    """An array like this one, of other buffers."""
    kind = column.type
    own = [next(buffers) for _ in range(_own_buffers(kind))]
    children = []
    if pa.types.is_struct(kind):
        children = [_from_buffers(column.field(n), buffers) for n in range(kind.num_fields)]
    elif pa.types.is_nested(kind):
        children = [_from_buffers(column.values, buffers)]
    return pa.Array.from_buffers(kind, len(column), own, offset=column.offset, children=children)


def _own_buffers(kind: Any) -> int:
    if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind):
        return 1
    variable = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    variable += (pa.types.is_large_binary,)
    return 3 if any(of(kind) for of in variable) else 2


class Manifests(Target):
    """A manifest, all of whose hashes are right."""

    name = "manifest"
    modules = (
        "fastio.packed.manifest",
        "fastio.packed.ipc",
        "fastio.packed.metadata",
        "fastio.schema",
    )
    allowed = (FastioError,)

    def seeds(self) -> list[bytes]:
        _hash_alike()
        found = []
        for number, pack in enumerate((_pack_images, _pack_tokens, _pack_records)):
            path = self.folder / str(number)
            pack(path)
            found.append((path / "manifest.arrow").read_bytes())
        (self.folder / "x").mkdir()
        return found

    def mutate(self, choice: random.Random, data: bytes) -> bytes:
        return _mutate_arrow(choice, data, [b"fastio"])

    def run(self, data: bytes) -> None:
        (self.folder / "x/manifest.arrow").write_bytes(data)
        manifest = Manifest(self.folder / "x")
        manifest.check()
        manifest.codec_counts()
        for shard in range(min(manifest.shards, _ROWS)):
            manifest.name(shard), manifest.entry(shard)
        for name in manifest.schema.token_fields:
            manifest.shard_tokens(name)
        manifest.schema.to_json()
        str(manifest.statistics), str(manifest.packing)


class Shards(Target):
    """A dataset of one shard, all of whose xxh3 are right; every row is read."""

    name = "shard"
    modules = (
        "fastio.packed.ipc",
        "fastio.packed.metadata",
        "fastio.packed.shard",
        "fastio.packed.packed",
        "fastio.packed.shards",
        "fastio.packed.manifest",
    )
    allowed = (FastioError,)

    def seeds(self) -> list[bytes]:
        _hash_alike()
        found = []
        for number, pack in enumerate((_pack_images, _pack_tokens, _pack_records)):
            path = self.folder / str(number)
            pack(path)
            files = [(path / name).read_bytes() for name in ("manifest.arrow", _SHARD)]
            found.append(struct.pack("<I", len(files[0])) + b"".join(files))
        (self.folder / "x").mkdir()
        return found

    def mutate(self, choice: random.Random, data: bytes) -> bytes:
        manifest, shard = _two(data)
        if choice.randrange(4):
            shard = _mutate_arrow(choice, shard, [b"fastio"])
            if choice.randrange(8):
                manifest = _describing(manifest, shard)
        else:
            manifest = _mutate_arrow(choice, manifest, [b"fastio"])
        return struct.pack("<I", len(manifest)) + manifest + shard

    def run(self, data: bytes) -> None:
        folder = self.folder / "x"
        for name, content in zip(("manifest.arrow", _SHARD), _two(data), strict=True):
            (folder / name).write_bytes(content)
        with fastio.open(folder) as dataset:
            assert isinstance(dataset, fastio.Dataset)
            rows = np.arange(min(len(dataset), _ROWS))
            for name, kind in dataset.schema.fields.items():
                if not isinstance(kind, Image):
                    with suppress(FastioError):
                        dataset.gather(name, rows)
            for row in rows.tolist():
                with suppress(FastioError):
                    dataset[row]


_SHARD = "shard-000000.arrow"


def _two(data: bytes) -> tuple[bytes, bytes]:
    size = struct.unpack("<I", data[:4].ljust(4, b"\0"))[0]
    return data[4 : 4 + size], data[4 + size :]


def _describing(manifest: bytes, shard: bytes) -> bytes:
    """A manifest that says of its only shard what that consists of; itself, where nobody can."""
    try:
        batch = pa.ipc.open_file(pa.py_buffer(manifest)).get_batch(0)
        description = json.loads(batch.schema.metadata[b"fastio"])
        numbers = _parts(shard)
        description["bytes"] = numbers["bytes"]
        metadata = dict(batch.schema.metadata) | {b"fastio": json.dumps(description).encode()}
        columns = [
            pa.array([numbers.get(name, column[0].as_py())] * batch.num_rows, column.type)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        schema = batch.schema.with_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    except Exception:
        return manifest
    return bytes(sink.getvalue().to_pybytes())


def _parts(shard: bytes) -> dict[str, int]:
    """What a manifest says of a shard, in numbers."""
    data = np.frombuffer(shard, np.uint8)
    begin, end = fastio.packed.ipc._check_metadata(data)
    found = {"bytes": len(shard), "head_bytes": begin, "foot_bytes": len(shard) - end}
    batch = pa.ipc.open_file(pa.py_buffer(shard)).get_batch(0)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        buffer = column.buffers()[-1]
        if buffer is not None:
            found[f"{name}.offset"] = buffer.address - data.ctypes.data
            found[f"{name}.bytes"] = buffer.size
    return found


def _pack_images(path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = ((rng.integers(0, 256, (8, 8 + n, 3), np.uint8), n, f"row {n}") for n in range(6))
    fastio.pack(samples, path, codec="raw")


def _pack_tokens(path: Path) -> None:
    schema = Schema({"tokens": Tokens("uint16"), "box": Array("float32"), "name": Text()})
    with fastio.Writer(path, schema) as writer:
        for row in range(12):
            box = np.ones((row % 3, 2), np.float32)
            tokens = np.arange(row * 7 % 20, dtype=np.uint16)
            writer.write({"tokens": tokens, "box": box, "name": f"row {row}"})


def _pack_records(path: Path) -> None:
    samples = (
        {"x": np.full(5, n, np.float32), "y": n, "flag": n % 2 == 0, "z": float(n)}
        for n in range(40)
    )
    fastio.pack(samples, path)


# --- Tables that fastio did not write -------------------------------------------------------------


_TABLE_MODULES = tuple(
    f"fastio.sources.table.{name}"
    for name in ("arrow", "columns", "direct", "parquet", "reading", "values")
)


class ArrowFiles(Target):
    """An Arrow file of a stranger's, read by default options."""

    name = "arrow"
    modules = _TABLE_MODULES
    allowed = (FastioError,)
    _file = "x.arrow"

    def seeds(self) -> list[bytes]:
        found = []
        for table in _tables():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            found.append(bytes(sink.getvalue().to_pybytes()))
        return found

    def mutate(self, choice: random.Random, data: bytes) -> bytes:
        return _mutate_arrow(choice, data, [])

    def run(self, data: bytes) -> None:
        path = self.folder / self._file
        path.write_bytes(data)
        with fastio.open(path) as dataset:
            for row in range(min(len(dataset), _ROWS)):
                with suppress(FastioError):
                    dataset[row]
        with fastio.Loader(path, 4, num_workers=1) as loader:
            for number, _ in enumerate(loader):
                if number == 8:
                    break


class ParquetFiles(ArrowFiles):
    """A Parquet file: its footer, and its pages by way of the native decoder."""

    name = "parquet-file"
    _file = "x.parquet"

    def seeds(self) -> list[bytes]:
        found = []
        for table in _tables():
            for version, compression in (("1.0", "snappy"), ("2.0", "none")):
                sink = io.BytesIO()
                pa.parquet.write_table(
                    table, sink, data_page_version=version, compression=compression
                )
                found.append(sink.getvalue())
        return found

    def mutate(self, choice: random.Random, data: bytes) -> bytes:
        if choice.randrange(2):
            return mutate_bytes(choice, data)
        (size,) = struct.unpack("<I", data[-8:-4].rjust(4, b"\0"))
        at = max(0, len(data) - 8 - min(size, len(data)))
        footer = mutate_bytes(choice, data[at:-8])
        return data[:at] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _tables() -> list[Any]:
    numbers = pa.table({"x": np.arange(30, dtype=np.float32), "n": np.arange(30), "y": [1] * 30})
    lists = [[1, 2], [], [3]] * 4
    mixed = pa.table(
        {
            "text": pa.array([f"row {n}" for n in range(12)]),
            "list": pa.array(lists, pa.list_(pa.int64())),
            "null": pa.array([None, 1.5, 2.5] * 4),
            "word": pa.array(["a", "b", "c"] * 4).dictionary_encode(),
            "flag": pa.array([True, False, True] * 4),
        }
    )
    return [numbers, mixed, mixed.select(["text", "null"])]


# --- HTTP -----------------------------------------------------------------------------------------


class Answers(Target):
    """What a server answers to a request for a range."""

    name = "http"
    modules = ("fastio.store.receive",)
    allowed = (OSError, Permanent)
    _offset, _length = 1000, 300
    _words = (b"\r\n", b"\r\n\r\n", b"HTTP/1.1 206 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n")
    _words += (
        b"Content-Range: bytes 1000-1299/5000\r\n",
        b"Content-Length: 300\r\n",
        b"206",
        b"200",
    )
    _words += (b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n", b": ", b"\0")
    _words += (b"multipart/byteranges; boundary=x", b"bytes */5000", b"A: b\r\n" * 200)
    _words += (b"x" * 70_000,)

    def seeds(self) -> list[bytes]:
        body = bytes(n % 251 for n in range(self._length))
        head = (
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1000-1299/5000\r\n"
            'Content-Length: 300\r\nETag: "5f-1"\r\nContent-Type: text/plain\r\n\r\n'
        )
        lower = head.replace("Content-Range", "content-range").replace("\r\n", "\n")
        whole = "HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n"
        chunked = "HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n\r\n12c\r\n"
        heads = (head, lower, whole, chunked, "HTTP/1.1 100 Continue\r\n\r\n" + head)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/folder"
        self._answer = b""
        threading.Thread(target=self._serve, daemon=True).start()
        return [text.encode() + body for text in heads]

    def mutate(self, choice: random.Random, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n") + 4 if choice.randrange(4) else len(data)
        return (mutate_bytes(choice, data[:end], self._words) + data[end:])[:150_000]

    def _serve(self) -> None:
        """Answer each connection with the input, whatever it asks for."""
        while True:
            client, _ = self._listener.accept()
            with client, suppress(OSError):
                client.recv(65536)
                client.sendall(self._answer)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass

    def run(self, data: bytes) -> None:
        self._answer = data
        receiver = Receiver(self._url, Limits(60.0, 60.0))
        memory = bytearray(self._length)
        try:
            taken = receiver.receive("x", self._offset, [memoryview(memory)], 60.0)
        finally:
            receiver.close()
        if taken and b"\n" + bytes(memory[:20]) not in data:
            raise AssertionError("what was received is not what was sent behind the headers")


TARGETS: dict[str, type[Target]] = {
    target.name: target
    for target in (
        Tars,
        Values,
        Index,
        Manifests,
        Shards,
        ArrowFiles,
        ParquetFiles,
        Answers,
    )
}
