"""A packed dataset: its samples by global row number."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import (
    FastioError,
    ImageError,
    ManifestInvalid,
    SchemaError,
    ShardCorrupt,
    SourceChanged,
    SourceNotFound,
)
from fastio.packed.compared import Comparisons, compare
from fastio.packed.fixed import FixedWidth
from fastio.packed.layout import Layout
from fastio.packed.manifest import Manifest
from fastio.packed.of_sample import of_sample
from fastio.packed.pixels import decode_image
from fastio.packed.ragged import RaggedRows
from fastio.packed.reads import ImageReads, shard_reads
from fastio.packed.rows import Rows
from fastio.packed.shard import ShardReader, checksum
from fastio.schema import CODEC_BLOCKS, Array, Image, Scalar, Schema, Tokens, is_fixed_width
from fastio.shown import without_secrets

# Columns up to this size are hashed when their shard is opened, larger ones in the background.
_CHECKED_BYTES = 16 << 20
# How often files are looked at while an epoch goes on, and at how many shards each time: as many
# as a file system behind a network can tell of without being felt.
_LOOK_S = 0.25
_LOOKS = 8
# Maps are cheap, but a process may have only so many (65530 on Linux, as it comes).
_KEPT_SHARDS = 4096


@dataclass(frozen=True)
class ShardCheck:
    """What checking one shard found.

    Attributes:
        name: the shard's file name.
        nbytes: its size in bytes, as the manifest has it.
        problem: what is wrong with it, or None.
    """

    name: str
    nbytes: int
    problem: str | None


class ShardRows(NamedTuple):
    """Those of some rows that lie in one shard.

    Attributes:
        shard: the shard's number.
        places: int64 (n,), where they stand among the rows that were asked for.
        local: int64 (n,), their numbers within the shard.
    """

    shard: int
    places: NDArray[np.int64]
    local: NDArray[np.int64]


class StoredImage(NamedTuple):
    """One image as its shard has it.

    Attributes:
        data: uint8 (n,), the stored bytes, a view of the shard.
        codec: how they are stored, a `CODEC_...` number of `fastio.schema`.
        height: of the stored pixels, before orientation.
        width: likewise.
        orientation: EXIF orientation that turns the stored pixels upright.
        crc32c: of the stored bytes, as it was when they were written.
    """

    data: NDArray[np.uint8]
    codec: int
    height: int
    width: int
    orientation: int
    crc32c: int

    def check(self) -> None:
        """Compare the bytes with their checksum.

        Raises:
            ValueError: they are not those that were written.
        """
        found = _native.crc32c(self.data)
        if found != self.crc32c:
            raise ValueError(f"its CRC-32C is {found:08x}, expected {self.crc32c:08x}: damaged")


class Dataset(Rows):
    """A packed dataset. Safe to use from several threads; unpickling opens it again.

    Args:
        path: folder that `fastio pack` or `fastio.Writer` wrote.
        manifest: manifest of the folder, if it is already open.

    Attributes:
        path: the folder.
        manifest: the manifest, which lists the contents of the folder.
        schema: fields of the samples.

    Raises:
        DatasetNotFound: the folder does not exist or has no manifest.
        ManifestInvalid: the manifest is damaged.
        FormatVersionUnsupported: a newer fastio wrote it.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: Manifest | None = None) -> None:
        self.path = os.fspath(path)
        self.manifest = Manifest(self.path) if manifest is None else manifest
        self.schema: Schema = self.manifest.schema
        self._shards: OrderedDict[int, ShardReader] = OrderedDict()
        self._comparisons = Comparisons(self.manifest.nbytes)
        self._look_s, self._looks = 0.0, 0
        self._manifest_asked = self.manifest.checked
        self._codebook: _native.Codebook | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that stand for the dataset's contents."""
        return self.manifest.fingerprint

    @property
    def codebook(self) -> _native.Codebook | None:
        """What the block codec needs to decode this dataset; None where it is not used.

        Raises:
            ManifestInvalid: the manifest has something else in its place.
        """
        if self._codebook is None and self.manifest.codebook is not None:
            try:
                # Twice, if two threads are here at once, which does no harm.
                self._codebook = _native.Codebook(np.frombuffer(self.manifest.codebook, np.uint8))
            except ValueError as error:
                raise ManifestInvalid(f"{self.manifest.path}: its codebook: {error}") from error
        return self._codebook

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return self.manifest.shards

    def __len__(self) -> int:
        return self.manifest.rows

    def __repr__(self) -> str:
        return (
            f"Dataset({without_secrets(self.path)!r}, rows={len(self)}, shards={self.num_shards})"
        )

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where rows lie.

        Args:
            rows: int64 (n,), global row numbers from 0.

        Returns:
            Shard numbers and row numbers within them, int64 (n,) both.

        Raises:
            IndexError: a row number is negative or too large.
        """
        rows = self._in_range(rows)
        first_row = self.manifest.first_row
        shards = np.searchsorted(first_row, rows, side="right").astype(np.int64) - 1
        return shards, rows - first_row[shards]

    def by_shard(self, rows: NDArray[np.int64]) -> list[ShardRows]:
        """Rows as `locate` finds them, shard by shard.

        Args:
            rows: int64 (n,), global row numbers from 0.

        Raises:
            IndexError: a row number is negative or too large.
        """
        shards, local = self.locate(rows)
        order = np.argsort(shards, kind="stable")
        shards, local = shards[order], local[order]
        begins = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        bounds = [0, *begins.tolist(), len(order)] if len(order) else []
        return [
            ShardRows(int(shards[begin]), order[begin:end], local[begin:end])
            for begin, end in pairwise(bounds)
        ]

    def shard_path(self, shard: int) -> str:
        """The path of a shard's file."""
        return os.path.join(self.path, self.manifest.name(shard))

    def shard(self, shard: int) -> ShardReader:
        """A shard's reader, opened when first asked for and kept.

        Raises:
            SourceNotFound: the file is missing.
            SourceChanged: the folder holds another dataset by now.
            ShardCorrupt: it is damaged, or not the file that the manifest describes.
        """
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.path}: this dataset was closed")
            reader = self._shards.get(shard)
            if reader is None:
                reader = self._shards[shard] = self._open_shard(shard)
                if len(self._shards) > _KEPT_SHARDS:
                    # Dropped, not closed: another thread may be using it.
                    self._shards.popitem(last=False)
            else:
                self._shards.move_to_end(shard)
            return reader

    def gather(self, field: str, rows: NDArray[np.int64]) -> NDArray[Any] | list[Any]:
        """One field of many rows.

        Args:
            field: a field that is not an image.
            rows: int64 (n,), global row numbers in any order.

        Returns:
            An array of shape (n,) for Scalar and (n, *shape) for Array; a list of n str, bytes
            or arrays for Text, Bytes and Array of differing shapes.

        Raises:
            SchemaError: there is no such field, or it is an image.
            IndexError: a row number is out of range.
            SourceNotFound, ShardCorrupt: a shard cannot be read.
        """
        return self.gather_all([field], rows)[field]

    def gather_all(
        self, fields: Sequence[str], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any] | list[Any]]:
        """`gather` for several fields, whose rows are looked for once."""
        kinds = {name: self._field(name) for name in fields}
        for name, kind in kinds.items():
            if isinstance(kind, Image):
                raise SchemaError(f"field {name!r} is an image: index the dataset, or use a Loader")
        groups = self.by_shard(rows)
        readers = [self.shard(group.shard) for group in groups]
        values = {
            name: _gathered(name, kind, len(rows), groups, readers) for name, kind in kinds.items()
        }
        self._check_undamaged(readers)
        return values

    def check_unchanged(self) -> None:
        """Look at whether the manifest and all shards that are open are those that were opened.

        Raises:
            SourceChanged: one of them was replaced or written since.
            ShardCorrupt: columns that were compared in the background are damaged.
        """
        self._comparisons.raise_problem()
        self.manifest.check_unchanged()
        for reader in self._readers():
            reader.check_unchanged()

    def look(self) -> None:
        """As `check_unchanged`, but for a few of the shards in turn, and now and then; cheap."""
        self._comparisons.raise_problem()
        now_s = time.monotonic()
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        self.manifest.check_unchanged()
        readers = self._readers()
        for place in range(self._looks, self._looks + min(_LOOKS, len(readers))):
            readers[place % len(readers)].check_unchanged()
        self._looks += _LOOKS

    def finish_epoch(self) -> None:
        """Wait for what is compared in the background, and look at all files that are open.

        Raises:
            SourceChanged, ShardCorrupt, ManifestInvalid: the rows that were read may be wrong.
        """
        self._comparisons.finish()
        self.manifest.check_unchanged()
        for reader in self._readers():
            reader.check_unchanged()

    def _readers(self) -> list[ShardReader]:
        with self._lock:
            return list(self._shards.values())

    @property
    def packed(self) -> Dataset:
        """The dataset itself."""
        return self

    def shard_bounds(self) -> NDArray[np.int64]:
        """Returns the first row of each shard and the number of rows, int64 (shards + 1,)."""
        return np.append(self.manifest.first_row, self.manifest.rows).astype(np.int64)

    def image_reads(self, field: str, rows: NDArray[np.int64]) -> ImageReads:
        """See `Rows`. A file's number is its shard's."""
        return shard_reads(self, field, rows)

    def image_size(self, field: str, row: int) -> tuple[int, int]:
        """Returns the (height, width) of an upright image, without decoding it."""
        image = self.stored_image(field, row, np.empty(0, np.uint8))
        turned = image.orientation >= 5
        return (image.width, image.height) if turned else (image.height, image.width)

    def fixed_columns(self, fields: Sequence[str]) -> Layout | None:
        """See `Rows`."""
        fixed = [name for name in fields if is_fixed_width(self.schema.fields[name])]
        return FixedWidth(self, fixed) if fixed else None

    def ragged_rows(self, field: str) -> RaggedRows | None:
        """See `Rows`. Of a remote dataset, shards come and go, and rows are read in Python."""
        return RaggedRows(self, field) if self.remote_part is None else None

    def sound_file(self, field: str, row: int) -> str | NDArray[np.uint8]:
        """See `Rows`. The bytes are a view of the shard."""
        if self.remote_part is not None:
            return super().sound_file(field, row)
        shards, local = self.locate(np.array([row], np.int64))
        return self.shard(int(shards[0])).view(field, int(local[0]))

    def renew_shards(self, shards: Iterable[int]) -> bool:
        """Opens damaged shards anew; returns whether reading their rows again can help."""
        self.forget(shards)
        return False

    def forget(self, shards: Iterable[int]) -> None:
        """Has shards opened anew when they are asked for next."""
        with self._lock:
            for shard in shards:
                self._shards.pop(shard, None)

    def is_kept(self, shard: int) -> bool:
        """Whether a shard's reader is there, to be returned at once."""
        return shard in self._shards

    def image(
        self,
        field: str,
        row: int,
        *,
        at_least: int | None = None,
        data: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """One upright image.

        Args:
            field: an image field.
            row: global row number from 0.
            at_least: for thumbnails: pixels of the longer side that are enough. An image that is
                stored as blocks may then come 2, 4 or 8 times smaller, which costs less; an
                eighth is read from a sixth of its bytes.
            data: uint8 (n,), the row's stored bytes where they were read already; they are checked.

        Returns:
            uint8 (H, W, C).

        Raises:
            SchemaError: there is no such field, or it is no image.
            IndexError: the row number is out of range.
            ImageError: it cannot be decoded.
            SourceNotFound, ShardCorrupt: the shard cannot be read.
        """
        stored = self.stored_image(field, row, data)
        codebook = self.codebook
        mode: Literal["RGB", "L"] = self._field(field).mode
        with of_sample(self, row, ImageError):
            if at_least is None or stored.codec != CODEC_BLOCKS:
                stored.check()  # else the parts that are read have checksums of their own
            pixels = decode_image(*stored[:5], mode, codebook, at_least, self.max_pixels)
        self._check_undamaged([self.shard(int(self.locate(np.array([row]))[0][0]))])
        return pixels

    def stored_image(
        self, field: str, row: int, data: NDArray[np.uint8] | None = None
    ) -> StoredImage:
        """One image as it is stored, neither decoded nor checked.

        Args:
            field: an image field.
            row: global row number from 0.
            data: uint8 (n,), its bytes where they were read already.

        Raises:
            SchemaError, IndexError, SourceNotFound, ShardCorrupt: as `image`.
        """
        if not isinstance(self._field(field), Image):
            raise SchemaError(f"field {field!r} is no image: use gather")
        shards, rows = self.locate(np.array([row], dtype=np.int64))
        reader, local = self.shard(int(shards[0])), int(rows[0])
        parts = (
            int(reader.fixed(f"{field}.{part}")[local])
            for part in ("codec", "height", "width", "orientation", "crc32c")
        )
        if data is None:
            data = self._stored_bytes(reader, field, row, local)
        return StoredImage(data, *parts)

    def sample_name(self, row: int) -> str:
        """How messages name a row: its shard's file name and its row there."""
        shards, local = self.locate(np.array([row], dtype=np.int64))
        return f"{self.manifest.name(int(shards[0]))} row {int(local[0])}"

    def __getitem__(self, index: int) -> Any:
        """One sample in the structure that it was packed in.

        Images are upright uint8 (H, W, C) arrays; numbers are Python's where
        Python has their type (int64, float64, bool), else NumPy scalars.

        Args:
            index: row number; negative ones count from the end.

        Raises:
            IndexError: it is out of range.
            ImageError: an image cannot be decoded.
            SourceNotFound, ShardCorrupt: the shard cannot be read.
        """
        row = self._row(index)
        values = {name: self._value(name, row) for name in self.schema.fields}
        if self.schema.structure == "dict":
            return values
        if self.schema.structure == "tuple":
            return tuple(values.values())
        return next(iter(values.values()))

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def verify(self) -> Iterator[ShardCheck]:
        """Read every shard and compare it with the manifest, one by one.

        Returns:
            What was found, shard after shard, in order.

        Raises:
            ManifestInvalid: the manifest itself is damaged.
        """
        self.manifest.check()
        for shard in range(self.num_shards):
            problem = self._check_shard(shard)
            nbytes = int(self.manifest.shard_bytes[shard])
            yield ShardCheck(self.manifest.name(shard), nbytes, problem)

    def close(self) -> None:
        """Let go of the shards. Views taken before stay valid."""
        with self._lock:
            self._closed = True
            self._comparisons.close()
            self._shards.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.path, self.fingerprint)

    def _stored_bytes(
        self, reader: ShardReader, field: str, row: int, local: int
    ) -> NDArray[np.uint8]:
        """An image's bytes, uint8 (n,)."""
        return reader.view(field, local)

    def _open_shard(self, shard: int) -> ShardReader:
        self.manifest.check_unchanged()
        if not self._manifest_asked:
            self._manifest_asked = True
            self._comparisons.add(self.manifest.check)
        try:
            reader = self._opened(self.shard_path(shard), shard)
            if reader.column_bytes <= _CHECKED_BYTES:
                compare(reader)
            else:
                self._comparisons.add_shard(reader)
        except (ShardCorrupt, SourceNotFound):
            self.manifest.check_unchanged()  # which says more, where it is not the same one
            raise
        return reader

    def _check_undamaged(self, readers: Iterable[ShardReader]) -> None:
        """After values were read.

        Raises:
            ShardCorrupt: a shard was cut off while it was mapped.
            SourceChanged: it was replaced or written.
        """
        self._comparisons.raise_problem()
        for reader in readers:
            if reader.damaged:
                raise ShardCorrupt(
                    f"{reader.path} was cut off while it was read: it had {reader.nbytes} bytes "
                    "when it was opened"
                )
            self._check_file(reader)

    def _check_file(self, reader: ShardReader) -> None:
        reader.check_unchanged()

    def _opened(
        self,
        path: str | os.PathLike[str],
        shard: int,
        name: str | None = None,
        columns_first: bool = False,
    ) -> ShardReader:
        """A reader whose head and foot are those that the manifest describes; see `ShardReader`.

        Raises:
            SourceNotFound, ShardCorrupt: there is no such file, or another.
        """
        file = self.manifest.file(shard)
        reader = ShardReader(path, name, self.schema, file, columns_first=columns_first)
        rows = int(self.manifest.shard_rows[shard])
        if reader.rows != rows:
            raise ShardCorrupt(
                f"{reader.path} has {reader.rows} rows, the manifest says {rows}; copy the dataset "
                "again, or pack again"
            )
        return reader

    def _check_shard(self, shard: int) -> str | None:
        try:
            path = self.shard_path(shard)
            nbytes, whole = os.path.getsize(path), int(self.manifest.shard_bytes[shard])
            if nbytes != whole:
                state = "truncated" if nbytes < whole else "too long"
                return f"{state}: {nbytes:,} of {whole:,} bytes"
            found = checksum(path)
            expected = self.manifest.xxh3(shard)
            if found != expected:
                return f"its xxh3 is {found}, expected {expected}"
            self._open_shard(shard)
        except FileNotFoundError:
            return "missing"
        except (FastioError, OSError) as error:
            return str(error)
        return None

    def _value(self, name: str, row: int) -> Any:
        kind = self._field(name)
        rows = np.array([row], dtype=np.int64)
        if isinstance(kind, Image):
            return self.image(name, row)
        value: Any = self.gather(name, rows)[0]
        if isinstance(kind, Scalar) and kind.dtype in ("int64", "float64", "bool"):
            return value.item()
        return value


def _reopened(path: str, fingerprint: str) -> Dataset:
    """A dataset in another process.

    Raises:
        SourceChanged: the folder holds another one by now.
    """
    return same_dataset(Dataset(path), fingerprint)


_AnyDataset = TypeVar("_AnyDataset", bound=Dataset)


def same_dataset(dataset: _AnyDataset, fingerprint: str) -> _AnyDataset:
    """A dataset that was opened again.

    Raises:
        SourceChanged: it is not the one that was opened before.
    """
    if dataset.fingerprint != fingerprint:
        dataset.close()
        raise SourceChanged(
            f"{dataset.path} was replaced by another dataset after it was first opened: its "
            f"fingerprint is {dataset.fingerprint}, expected {fingerprint}; open it again"
        )
    return dataset


def _gathered(
    field: str, kind: Any, count: int, groups: list[ShardRows], readers: list[ShardReader]
) -> NDArray[Any] | list[Any]:
    """One field of `count` rows, from their shards."""
    shape: tuple[int, ...] | None = () if isinstance(kind, Scalar) else None
    if isinstance(kind, Array):
        shape = kind.fixed_shape
    if shape is not None:
        array = np.empty((count, *shape), dtype=kind.dtype)
        for (_, places, local), reader in zip(groups, readers, strict=True):
            stored = reader.fixed(field)[local]
            if array.dtype.kind == "c":  # columns have pairs of numbers
                stored = stored.view(array.dtype)
            array[places] = stored.reshape(-1, *shape)
        return array
    values: list[Any] = [None] * count
    for (_, places, local), reader in zip(groups, readers, strict=True):
        found = _variable_values(reader, field, kind, local)
        for place, value in zip(places.tolist(), found, strict=True):
            values[place] = value
    return values


def _variable_values(
    reader: ShardReader, field: str, kind: Any, local: NDArray[np.int64]
) -> Sequence[Any]:
    if isinstance(kind, Tokens):
        starts, flat = reader.tokens(field)
        bounds = zip(starts[local].tolist(), starts[local + 1].tolist(), strict=True)
        return [flat[begin:end].copy() for begin, end in bounds]
    values = reader.values(field, local)
    if not isinstance(kind, Array):
        return values
    arrays = []
    for row, value in zip(local.tolist(), values, strict=True):
        # A copy, since arrays over bytes are read-only.
        try:
            flat = np.frombuffer(value, dtype=kind.dtype).copy()
            arrays.append(flat.reshape(reader.shape(field, row)))
        except ValueError as error:
            raise ShardCorrupt(
                f"{reader.path} row {row}: the {len(value)} bytes of {field!r} do not form an "
                f"array of {kind.dtype} with the stored shape: {error}"
            ) from error
    return arrays
