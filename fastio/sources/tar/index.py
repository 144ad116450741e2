"""The index of a set of tars: the position of every file. It is built once and then mapped.

It is an Arrow IPC file of one batch with one row for each sample. The columns are `key`, and for
extension number N `offset.N` and `length.N` (offset -1 if the sample has no such file); extensions
that hold numbers also have `value.N` and `state.N`. The schema's metadata `fastio.tars` describe
the tars, extensions and fields. The file is a cache that can be rebuilt from the tars at any time;
its format may change.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio.errors import SchemaError, SourceNotFound
from fastio.packed.grouping import starts_of
from fastio.packed.ipc import number_array
from fastio.runtime.threads import DaemonPool, wait_for
from fastio.schema import Field, Schema
from fastio.sources.tar.headers import (
    STATE_MISSING,
    STATE_NO_INTEGER,
    STATE_THERE,
    TarSamples,
    scan_tar,
)
from fastio.sources.tar.reader import TarReader, tars_name
from fastio.sources.tar.values import infer_field, is_integer

METADATA_KEY = b"fastio.tars"
VERSION = 1
_EXAMPLES = 16  # files whose contents say what field an extension becomes
_EXAMPLE_BYTES = 4 << 20  # total size of the examples, unless the first is larger
_WORKERS = 8  # tars scanned at once: scanning one waits for many small reads in sequence
# Each extension takes a column for all samples, which wastes memory if few samples have it.
_CELL_BYTES = 25
_FREE_BYTES = 64 << 20
_MOST_CELLS = 32  # for each member


@dataclass(frozen=True)
class Tar:
    """One of the tars: its name for the reader, stamp, number of samples, and size in bytes.

    The stamp is a text that changes when the tar does.
    """

    name: str
    stamp: str
    rows: int
    nbytes: int


@dataclass(frozen=True)
class Extension:
    """The files of one extension.

    Attributes:
        name: The extension in lower case, without its first dot.
        field: The type of their contents.
        missing, first_missing: The number of samples without such a file, and the row of the first
            one, or -1.
        no_integer, first_no_integer: The same for samples whose file should hold a number but does
            not.
    """

    name: str
    field: Field
    missing: int
    first_missing: int
    no_integer: int
    first_no_integer: int


class TarIndex:
    """The samples of a set of tars and the positions of their files. Immutable and thread-safe.

    Args:
        batch: as `assemble` makes it, and as `kept.read_index` reads and checks it.

    Attributes:
        tars: The tars in order.
        first_row: int64 (tars + 1,), the first row of each tar, and the number of rows.
        extensions: The extensions by name, in order of first occurrence.
        fingerprint: 16 hexadecimal digits that identify the samples and their positions, but not
            the folder or time of the tars.
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
        self.first_row = starts_of([tar.rows for tar in self.tars])
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
        """Returns the key of a sample."""
        begin, end = self._key_ends[row : row + 2].tolist()
        return str(self._key_bytes[begin:end], "utf-8", "surrogateescape")

    def key_buffers(self) -> tuple[NDArray[np.int64], memoryview]:
        """Returns where each key begins and ends, int64 (rows + 1,), and the bytes of all keys."""
        return self._key_ends, self._key_bytes

    def offsets(self, extension: str) -> NDArray[np.int64]:
        """Returns the offsets of an extension's files: int64 (rows,), -1 if missing."""
        return self._column("offset", extension)

    def lengths(self, extension: str) -> NDArray[np.int64]:
        """Returns the sizes of an extension's files in bytes: int64 (rows,)."""
        return self._column("length", extension)

    def values(self, extension: str) -> NDArray[np.int64]:
        """Returns the values of an extension that holds numbers: int64 (rows,)."""
        return self._column("value", extension)

    def states(self, extension: str) -> NDArray[np.uint8]:
        """Returns the state of each row's file of an extension: uint8 (rows,), a `STATE_...`."""
        if is_integer(extension):
            return self._column("state", extension)
        return np.where(self.offsets(extension) < 0, STATE_MISSING, STATE_THERE).astype(np.uint8)

    def tar_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the numbers of the tars that rows lie in: int64 (n,)."""
        return np.searchsorted(self.first_row, rows, side="right").astype(np.int64) - 1

    def _column(self, kind: str, extension: str) -> NDArray[Any]:
        column = self.batch.column(f"{kind}.{self._numbers[extension]}")
        values: NDArray[Any] = column.to_numpy(zero_copy_only=True)
        return values


def build_index(
    reader: TarReader, versions: Sequence[tuple[str, str, int]], workers: int = _WORKERS
) -> TarIndex:
    """Builds the index of tars by one pass over the headers of each.

    Args:
        reader: Reads the tars.
        versions: The name of each tar, in order, as the reader knows it; its stamp, by which a
            cached index is recognised as outdated; and its size in bytes.
        workers: The number of tars that are read at the same time.

    Raises:
        SourceNotFound: If a tar does not exist, or if none has a sample.
        ShardCorrupt: If a file is not a tar or is damaged, or has a file twice in one sample.
        SchemaError: If there are more extensions than fields can be made for.
    """
    with DaemonPool(max(1, min(workers, len(versions))), "fastio-tars") as pool:
        pending = [pool.submit(scan_tar, reader, name) for name, _, _ in versions]
        return assemble(reader, versions, [wait_for(future) for future in pending])


def assemble(
    reader: TarReader, versions: Sequence[tuple[str, str, int]], found: Sequence[TarSamples]
) -> TarIndex:
    """Builds the index of tars whose samples were already found; see `build_index`."""
    if not any(map(len, found)):
        where = tars_name([], [name for name, _, _ in versions])
        raise SourceNotFound(f"{where}: no samples (files NAME.EXTENSION) in it")
    tars = [
        Tar(name, stamp, len(samples), nbytes)
        for (name, stamp, nbytes), samples in zip(versions, found, strict=True)
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
        columns[f"offset.{number}"] = number_array(offset)
        columns[f"length.{number}"] = number_array(length)
        digest.update(name.encode("utf-8", "surrogateescape"))
        for part in (offset, length, value, state):
            digest.update(part.tobytes())
        if is_integer(name):
            columns[f"value.{number}"] = number_array(value)
            columns[f"state.{number}"] = number_array(state)
        # Numbers as names, because the names of fields are validated with the dataset's schema.
        fields[str(number)] = _field(reader, tars, name, offset, length)
        missing, wrong = state == STATE_MISSING, state == STATE_NO_INTEGER
        about.append([name, *count_and_first(missing), *count_and_first(wrong)])
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
    """Raises SchemaError if nearly all samples have different extensions."""
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
    """Returns offset, length, value and state of one extension for every sample of all tars."""
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
    """Infers the field of an extension from its first files."""
    there = np.flatnonzero(offset >= 0)
    first_row = starts_of([tar.rows for tar in tars])
    examples: list[bytes] = []
    nbytes = 0
    for row in there[:_EXAMPLES].tolist():
        if examples and nbytes + length[row] > _EXAMPLE_BYTES:
            break
        tar = tars[int(np.searchsorted(first_row, row, side="right")) - 1]
        size = int(length[row])
        # For numbers, the extension is enough to know the field.
        known = is_integer(name)
        examples.append(b"" if known else bytes(reader.read(tar.name, int(offset[row]), size)))
        nbytes += size
    lengths = length[there]
    return infer_field(name, examples, bool((lengths == lengths[0]).all()))


def count_and_first(rows: NDArray[np.bool_]) -> tuple[int, int]:
    """Returns how many rows are marked, and the number of the first, or -1."""
    count = int(np.count_nonzero(rows))
    return count, int(np.argmax(rows)) if count else -1
