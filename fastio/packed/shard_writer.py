"""Writes shards, and describes them with their hashes as the manifest does."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from fastio.packed.ipc import Piece, pieces, sealed
from fastio.runtime.files import whole_file


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest describes it: a row of the manifest, except `first_row`.

    Attributes:
        name: The file name within the dataset's folder.
        rows: The number of rows, at least 1.
        bytes: The size of the file in bytes.
        xxh3: The xxh3_64 of the file; like all hashes here, 16 hexadecimal digits.
        head_bytes, foot_bytes: The number of bytes before and after the columns.
        head_xxh3: The xxh3_64 of head and foot together.
        columns_xxh3: The xxh3_64 of all bytes between them, without the payloads.
        of_fields: The columns of single fields: FIELD.offset and FIELD.bytes, which are the place
            of a payload (the bytes of the images of a field), and counts of rows and of tokens.
    """

    name: str
    rows: int
    bytes: int
    xxh3: str
    head_bytes: int
    foot_bytes: int
    head_xxh3: str
    columns_xxh3: str
    of_fields: Mapping[str, int] = field(default_factory=dict)

    def payloads(self) -> dict[str, tuple[int, int]]:
        """Returns the offset and size of the payload of each image field."""
        names = [name[:-7] for name in self.of_fields if name.endswith(".offset")]
        places = self.of_fields
        return {name: (places[f"{name}.offset"], places[f"{name}.bytes"]) for name in names}

    def column_ranges(self) -> list[tuple[int, int]]:
        """Returns the ranges (offset, bytes) that `columns_xxh3` covers, ascending."""
        return self._without_payloads(self.head_bytes, self.bytes - self.foot_bytes)

    def described(self) -> list[tuple[int, int]]:
        """Returns the ranges (offset, bytes) of everything but the payloads, ascending."""
        return self._without_payloads(0, self.bytes)

    def _without_payloads(self, begin: int, end: int) -> list[tuple[int, int]]:
        ranges = []
        for offset, nbytes in sorted(self.payloads().values()):
            ranges.append((begin, offset - begin))
            begin = offset + nbytes
        ranges.append((begin, end - begin))
        return [each for each in ranges if each[1]]


class _Hashes:
    """Computes the hashes of a shard while it is written piece by piece."""

    def __init__(self, payloads: Collection[str]) -> None:
        self._whole, self._head, self._columns = (xxhash.xxh3_64() for _ in range(3))
        self._bytes = {"head": 0, "column": 0, "payload": 0, "foot": 0}
        self._payloads = dict.fromkeys(payloads, (0, 0))

    def add(self, piece: Piece) -> None:
        self._whole.update(piece.data)
        if piece.part == "payload":
            self._payloads[piece.column] = (sum(self._bytes.values()), piece.data.nbytes)
        elif piece.part == "column":
            self._columns.update(piece.data)
        else:
            self._head.update(piece.data)
        self._bytes[piece.part] += piece.data.nbytes

    def entry(self, name: str, rows: int) -> ShardEntry:
        nbytes, head, foot = sum(self._bytes.values()), self._bytes["head"], self._bytes["foot"]
        # A column without data has no position. The beginning of the columns is a valid one.
        payloads = {name: at if at[1] else (head, 0) for name, at in self._payloads.items()}
        places = {f"{name}.offset": at[0] for name, at in payloads.items()}
        places |= {f"{name}.bytes": at[1] for name, at in payloads.items()}
        digests = self._whole.hexdigest(), self._head.hexdigest(), self._columns.hexdigest()
        return ShardEntry(name, rows, nbytes, digests[0], head, foot, *digests[1:], places)


def write_shard(
    path: str | os.PathLike[str], batch: pa.RecordBatch, payloads: Collection[str] = ()
) -> ShardEntry:
    """Writes a record batch as an Arrow IPC file atomically, and returns its parts and hashes.

    Args:
        path: The path of the file, which is replaced if it exists; see `whole_file`.
        batch, payloads: See `pieces`.

    Raises:
        OSError: The file cannot be written. The temporary file is deleted.
    """
    hashes = _Hashes(payloads)
    with whole_file(path) as file:
        for piece in pieces(batch, payloads):
            file.write(piece.data)
            hashes.add(piece)
    return hashes.entry(os.path.basename(path), batch.num_rows)


def write_sealed(path: str | os.PathLike[str], batch: pa.RecordBatch) -> None:
    """Writes a record batch as `write_shard` does, with a hash of the whole file inside it."""
    with whole_file(path) as file:
        for data in sealed(batch):
            file.write(data)
