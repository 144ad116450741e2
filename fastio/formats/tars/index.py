"""The index of a set of tars: where every file of every sample lies; built once, then mapped.

One Arrow IPC file of one batch, a row a sample: `key`, and for the extension number N `offset.N`
and `length.N` (offset -1: the sample has no such file), for those that stand for numbers `value.N`
and `state.N` too. The schema's metadata `fastio.tars` say which tars, extensions and fields these
are. The file is a cache, to be rebuilt from the tars at any time, and no format to rely on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio.errors import SchemaError, SourceNotFound
from fastio.formats.tars.reader import TarReader
from fastio.formats.tars.samples import (
    STATE_MISSING,
    STATE_NO_INTEGER,
    STATE_THERE,
    TarSamples,
    scan_tar,
)
from fastio.formats.tars.values import infer_field, is_integer
from fastio.schema import Field, Schema
from fastio.threads import DaemonPool

# Seeking over bodies beats reading them where a read costs microseconds.
LOCAL_WINDOW_BYTES = 8 << 10
METADATA_KEY = b"fastio.tars"
VERSION = 1
_EXAMPLES = 16
_EXAMPLE_BYTES = 4 << 20  # what is larger is looked at once
_WORKERS = 8
# Each extension has a column of every sample: what few samples have takes much for little.
_CELL_BYTES = 25
_FREE_BYTES = 64 << 20
_MOST_CELLS = 32  # for each member


@dataclass(frozen=True)
class Tar:
    """One of the tars.

    Attributes:
        name: as its reader knows it; the path of a local one.
        stamp: what changes when it changes; size and time of a local one.
        rows: its samples.
        nbytes: its size.
    """

    name: str
    stamp: str
    rows: int
    nbytes: int


@dataclass(frozen=True)
class Extension:
    """The files of one extension.

    Attributes:
        name: the extension, in lower case, without its first dot.
        field: what they hold.
        missing, first_missing: samples without such a file, and the row of the first one, or -1.
        no_integer, first_no_integer: likewise those where it holds no number, but should.
    """

    name: str
    field: Field
    missing: int
    first_missing: int
    no_integer: int
    first_no_integer: int


class TarIndex:
    """Which samples a set of tars has, and where. Immutable; safe to use from several threads.

    Args:
        batch: as `assemble` makes it, and as `kept.read_index` reads and checks it.

    Attributes:
        tars: in order.
        first_row: int64 (tars + 1,), the row that each tar begins with, and the number of rows.
        extensions: by name, in the order in which they occur.
        fingerprint: 16 hexadecimal digits that stand for the samples and where they lie, but not
            for the tars' folder or time.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        about = json.loads(batch.schema.metadata[METADATA_KEY])
        self.batch = batch
        self.tars = tuple(Tar(*values) for values in about["tars"])
        fields = Schema.from_json(about["schema"]).fields
        self.extensions = {
            values[0]: Extension(values[0], field, *values[1:])
            for values, field in zip(about["extensions"], fields.values(), strict=True)
        }
        self.first_row = np.cumsum([0, *(tar.rows for tar in self.tars)], dtype=np.int64)
        self.fingerprint: str = about["fingerprint"]
        self._numbers = {name: number for number, name in enumerate(self.extensions)}
        keys = batch.column("key").buffers()
        self._key_ends = np.frombuffer(keys[1], np.int64, batch.num_rows + 1)
        self._key_bytes = memoryview(keys[2] or b"")

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __reduce__(self) -> tuple[type[TarIndex], tuple[pa.RecordBatch]]:
        return TarIndex, (self.batch,)

    def key(self, row: int) -> str:
        """The key of a sample."""
        begin, end = self._key_ends[row : row + 2].tolist()
        return str(self._key_bytes[begin:end], "utf-8", "surrogateescape")

    def key_buffers(self) -> tuple[NDArray[np.int64], memoryview]:
        """int64 (rows + 1,), where each key begins and ends in the bytes of all; and these."""
        return self._key_ends, self._key_bytes

    def offsets(self, extension: str) -> NDArray[np.int64]:
        """int64 (rows,), where an extension's files begin in their tars, or -1."""
        return self._column("offset", extension)

    def lengths(self, extension: str) -> NDArray[np.int64]:
        """int64 (rows,), their bytes."""
        return self._column("length", extension)

    def values(self, extension: str) -> NDArray[np.int64]:
        """int64 (rows,), what the files of an extension for numbers hold."""
        return self._column("value", extension)

    def states(self, extension: str) -> NDArray[np.uint8]:
        """uint8 (rows,), what there is of an extension: a `STATE_...` number."""
        if is_integer(extension):
            return self._column("state", extension)
        return np.where(self.offsets(extension) < 0, STATE_MISSING, STATE_THERE).astype(np.uint8)

    def tar_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 (n,), the tars that rows lie in."""
        return np.searchsorted(self.first_row, rows, side="right").astype(np.int64) - 1

    def _column(self, kind: str, extension: str) -> NDArray[Any]:
        column = self.batch.column(f"{kind}.{self._numbers[extension]}")
        values: NDArray[Any] = column.to_numpy(zero_copy_only=True)
        return values


def build_index(
    reader: TarReader,
    names: Sequence[str],
    stamps: Sequence[str],
    *,
    window_bytes: int = LOCAL_WINDOW_BYTES,
    workers: int = _WORKERS,
) -> TarIndex:
    """Index tars by one pass over the headers of each.

    Args:
        reader: reads them.
        names: the tars, as the reader knows them, in order.
        stamps: what changes when they change, for the index to be known as theirs.
        window_bytes: read at a time: little where seeking is cheap, megabytes where every read is
            a request.
        workers: tars under way at a time.

    Raises:
        SourceNotFound: a tar does not exist, or none has a sample.
        ShardCorrupt: a tar is none, or damaged, or has a file twice in one sample.
        SchemaError: extensions that no field can be made for.
    """
    with DaemonPool(max(1, min(workers, len(names))), "fastio-tars") as pool:
        pending = [pool.submit(scan_tar, reader, name, window_bytes) for name in names]
        found = [future.result() for future in pending]
    return assemble(reader, names, stamps, found)


def assemble(
    reader: TarReader, names: Sequence[str], stamps: Sequence[str], found: Sequence[TarSamples]
) -> TarIndex:
    """The index of tars whose samples were found.

    Args:
        reader, names, stamps: as `build_index` takes them.
        found: in each of them.

    Raises:
        SourceNotFound: none has a sample.
        SchemaError: as `build_index`.
    """
    if not any(map(len, found)):
        where = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        raise SourceNotFound(f"{where}: no samples (files NAME.EXTENSION) in it")
    tars = [
        Tar(name, stamp, len(samples), reader.size(name))
        for name, stamp, samples in zip(names, stamps, found, strict=True)
    ]
    columns: dict[str, pa.Array] = {"key": _keys(found)}
    digest = xxhash.xxh3_64(columns["key"].buffers()[1])
    digest.update(columns["key"].buffers()[2] or b"")
    about = []
    fields: dict[str, Field] = {}
    names = list(dict.fromkeys(name for samples in found for name in samples.extensions))
    _check_extensions(tars, found, names)
    for number, name in enumerate(names):
        offset, length, value, state = _columns(found, name)
        columns[f"offset.{number}"] = pa.array(offset)
        columns[f"length.{number}"] = pa.array(length)
        digest.update(name.encode("utf-8", "surrogateescape"))
        for part in (offset, length, value, state):
            digest.update(part.tobytes())
        if is_integer(name):
            columns[f"value.{number}"] = pa.array(value)
            columns[f"state.{number}"] = pa.array(state)
        # Names are checked with those of the dataset's fields; here each stands for itself.
        fields[str(number)] = _field(reader, tars, name, offset, length)
        missing = np.flatnonzero(state == STATE_MISSING)
        wrong = np.flatnonzero(state == STATE_NO_INTEGER)
        about.append([name, *_count_and_first(missing), *_count_and_first(wrong)])
    description = {
        "version": VERSION,
        "tars": [[tar.name, tar.stamp, tar.rows, tar.nbytes] for tar in tars],
        "extensions": about,
        "schema": Schema(fields).to_json(),
        "fingerprint": digest.hexdigest(),
    }
    schema = pa.schema(
        [pa.field(name, column.type, nullable=False) for name, column in columns.items()],
        {METADATA_KEY: json.dumps(description).encode()},
    )
    return TarIndex(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))


def _check_extensions(
    tars: Sequence[Tar], found: Sequence[TarSamples], names: Sequence[str]
) -> None:
    """Refuses samples almost each of which has other extensions, which would take much memory.

    Raises:
        SchemaError: they have; names some.
    """
    cells = len(names) * sum(map(len, found))
    members = sum(len(samples.members) // 6 for samples in found)
    if cells * _CELL_BYTES > _FREE_BYTES and cells > _MOST_CELLS * members:
        some = ", ".join(f".{name}" for name in names[:3])
        raise SchemaError(
            f"{tars[0].name}: {members:,} files have {len(names):,} different extensions "
            f"({some}, ...). An extension begins at the first dot of a file's name, and each "
            "would become a field: rename the files so that their keys contain no dots"
        )


def _keys(found: Sequence[TarSamples]) -> pa.Array:
    ends = [np.zeros(1, np.int64)]
    total = 0
    for samples in found:
        ends.append(np.frombuffer(samples.key_ends, np.int64) + total)
        total += len(samples.keys)
    keys = b"".join(samples.keys for samples in found)
    offsets = np.concatenate(ends)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(keys)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _columns(
    found: Sequence[TarSamples], name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Offset, length, value and state of one extension, for every sample of all tars."""
    rows = sum(map(len, found))
    offset = np.full(rows, -1, np.int64)
    length, value = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    state = np.full(rows, STATE_MISSING, np.uint8)
    first = 0
    for samples in found:
        if name in samples.extensions:
            members = np.frombuffer(samples.members, np.int64).reshape(-1, 6)
            chosen = members[members[:, 1] == samples.extensions.index(name)]
            places = chosen[:, 0] + first
            offset[places], length[places] = chosen[:, 2], chosen[:, 3]
            value[places], state[places] = chosen[:, 4], chosen[:, 5]
        first += len(samples)
    return offset, length, value, state


def _field(
    reader: TarReader,
    tars: list[Tar],
    name: str,
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
) -> Field:
    """What the files of an extension hold, by the first of them."""
    there = np.flatnonzero(offset >= 0)
    first_row = np.cumsum([0, *(tar.rows for tar in tars)])
    examples: list[bytes] = []
    nbytes = 0
    for row in there[:_EXAMPLES].tolist():
        if examples and nbytes + length[row] > _EXAMPLE_BYTES:
            break
        tar = tars[int(np.searchsorted(first_row, row, side="right")) - 1]
        size = int(length[row])
        # Of images and numbers, the extension says all.
        known = is_integer(name)
        examples.append(b"" if known else bytes(reader.read(tar.name, int(offset[row]), size)))
        nbytes += size
    lengths = length[there]
    return infer_field(name, examples, bool((lengths == lengths[0]).all()))


def _count_and_first(rows: NDArray[np.int64]) -> tuple[int, int]:
    return len(rows), int(rows[0]) if len(rows) else -1


def by_tar(tar_numbers: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Places of the same tar together: (tar, places), places in their order."""
    if not len(tar_numbers):
        return []
    order = np.argsort(tar_numbers, kind="stable")
    ordered = tar_numbers[order]
    begins = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    bounds = [0, *begins.tolist(), len(order)]
    return [(int(ordered[begin]), order[begin:end]) for begin, end in pairwise(bounds)]
