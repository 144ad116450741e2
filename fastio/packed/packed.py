"""`Dataset`: the samples of a packed dataset by global row number."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio.cache import Cache, CacheFolder, Source
from fastio.errors import ManifestInvalid, OptionError, SchemaError, ShardCorrupt, SourceChanged
from fastio.packed.grouping import grouped
from fastio.packed.layout import FixedWidth, ImageReads, Layout, RaggedRows, Range, ranges, spans
from fastio.packed.pixels import decode_image, pillow_image, without_orientation
from fastio.packed.remote import Remote
from fastio.packed.shard import ShardReader
from fastio.packed.shard_images import check_rows, images_of, list_counts, shard_reads
from fastio.packed.shards import ShardCheck, Shards
from fastio.packed.stored import StoredShards
from fastio.packed.values import values_of
from fastio.schema import (
    CODEC_BLOCKS,
    CODEC_JPEG,
    CODEC_RAW,
    INDEX_COLUMN,
    Image,
    Images,
    Schema,
    is_fixed_width,
)
from fastio.shown import without_secrets
from fastio.store import FETCHES, Store, absolute_path, is_remote, open_store


class ShardRows(NamedTuple):
    """The part of some rows that lies in one shard.

    Attributes:
        shard: The number of the shard.
        places: int64 (n,), the positions of these rows among those that were asked for.
        local: int64 (n,), their numbers within the shard.
    """

    shard: int
    places: NDArray[np.int64]
    local: NDArray[np.int64]


class StoredImage(NamedTuple):
    """One image as it is stored in its shard.

    Attributes:
        data: uint8 (n,), the stored bytes, a view of the shard.
        codec: How they are stored, a `CODEC_...` number of `fastio.schema`.
        height, width: The size of the stored pixels, before orientation.
        orientation: The EXIF orientation that turns the stored pixels upright.
        crc32c: The CRC-32C of the bytes that were written.
        jpeg_index: The index of a JPEG (docs/format.md), or b"".
    """

    data: NDArray[np.uint8]
    codec: int
    height: int
    width: int
    orientation: int
    crc32c: int
    jpeg_index: bytes = b""

    def check(self) -> None:
        """Raises ValueError unless the bytes have the CRC-32C of those that were written."""
        found = _native.crc32c(self.data)
        if found != self.crc32c:
            raise ValueError(f"its CRC-32C is {found:08x}, expected {self.crc32c:08x}: damaged")

    def as_file(self, mode: Literal["RGB", "L"], codebook: _native.Codebook | None) -> bytes:
        """Returns the image as the bytes of a file: pixels as a PNG file. ValueError if damaged.

        A JPEG file that is stored without being turned gets the EXIF orientation 1.
        """
        self.check()
        if self.codec == CODEC_BLOCKS:
            if codebook is None:
                raise ValueError("it is stored as blocks, but the manifest has no codebook")
            return self._turned(_native.blocks_export(self.data, codebook))
        if self.codec == CODEC_RAW:
            file = io.BytesIO()
            pillow_image(decode_image(*self[:5], mode)).save(file, "PNG")
            return file.getvalue()
        data = self.data.tobytes()
        return self._turned(data) if self.codec == CODEC_JPEG else data

    def _turned(self, jpeg: bytes) -> bytes:
        """Returns a JPEG file that is turned as the image is; see `pack.images.encode_pillow`."""
        return without_orientation(jpeg) if self.orientation == 1 else jpeg


class Dataset(Remote):
    """A packed dataset, in a folder or in a store. Thread-safe. Unpickling opens it again.

    Args:
        path: The folder that `fastio pack` or `fastio.Writer` wrote, or its URL.
        storage_options: For a URL: options of the store, as in `fastio.open`.
        cache: For a URL: the cache for heads and images. If None, they are kept in memory while
            they are needed.
        version: The version to open, from 1; None for the newest.

    Attributes:
        path: The folder or the URL.
        manifest: The manifest, which describes the shards.
        schema: The fields of the samples.
        cache: As given.
        shards: The shards, which are opened, verified and watched for changes.
        whole: Whether `shard` opens shards with all of their bytes. If False, the bytes of images
            read as zeros there, and are fetched by ranges. In a store, shards without images are
            whole.

    Raises:
        DatasetNotFound: If the folder does not exist, or has no manifest or no such version.
        ManifestInvalid: If the manifest is damaged.
        OptionError: If `version` is not an integer.
        FormatUnsupported: If a newer fastio wrote it.
        StoreError: If the store does not answer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        cache: Cache | None = None,
        version: int | None = None,
    ) -> None:
        if isinstance(version, bool) or not isinstance(version, (int, type(None))):
            raise OptionError(f"version must be an integer, from 1, or None, got {version!r}")
        path = os.fsdecode(absolute_path(path))
        self._given = path, storage_options, cache
        self.cache = cache
        try:
            self.shards = (
                StoredShards(open_store(path, storage_options), cache, version)
                if is_remote(path)
                else Shards(path, version)
            )
        except ManifestInvalid as error:
            if version is None:
                raise
            raise type(error)(
                f"version {version} cannot be opened: {error}. If it is not the newest version, "
                f"`fastio gc {os.fspath(path)} --keep N` can delete it"
            ) from error
        self.path = self.shards.path
        self.whole = self.shards.whole
        self.manifest = self.shards.manifest
        self.schema: Schema = self.manifest.schema
        self._codebook: _native.Codebook | None = None

    @property
    def store(self) -> Store:
        """The store of the shards; ValueError if the dataset is in a local folder."""
        if self.shards.store is None:
            raise ValueError(f"{self.path} is a local folder, not in a store")
        return self.shards.store

    @property
    def nbytes(self) -> int:
        """The size of all shards in bytes."""
        return self.manifest.nbytes

    @property
    def head_bytes_fetched(self) -> int:
        """See `Remote`."""
        return self.shards.bytes_fetched

    def head_source(self) -> tuple[CacheFolder, Source] | None:
        """Returns the cache folder and source of heads, a piece per shard; None without a cache."""
        return self.shards.source()

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the dataset's contents."""
        return self.manifest.fingerprint

    @property
    def earlier_versions(self) -> Mapping[str, int]:
        """See `Rows`."""
        return {each.fingerprint: each.version for each in self.manifest.history}

    @property
    def codebook(self) -> _native.Codebook | None:
        """The codebook of the block codec, or None. ManifestInvalid if it is damaged."""
        if self._codebook is None and self.manifest.codebook is not None:
            try:
                # Twice, if two threads are here at once, which does no harm.
                self._codebook = _native.Codebook(np.frombuffer(self.manifest.codebook, np.uint8))
            except ValueError as error:
                raise ManifestInvalid(f"{self.manifest.path}: its codebook: {error}") from error
        return self._codebook

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return self.manifest.shards

    def __len__(self) -> int:
        return self.manifest.rows

    def __repr__(self) -> str:
        return (
            f"Dataset({without_secrets(self.path)!r}, rows={len(self)}, shards={self.num_shards})"
        )

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the shards of global rows int64 (n,), and their rows there: int64 (n,) both."""
        rows = self._in_range(rows)
        first_row = self.manifest.first_row
        shards = np.searchsorted(first_row, rows, side="right").astype(np.int64) - 1
        return shards, rows - first_row[shards]

    def _at(self, row: int) -> tuple[int, int]:
        """Returns the shard of a global row, and its number there."""
        shards, local = self.locate(np.array([row], np.int64))
        return int(shards[0]), int(local[0])

    def by_shard(self, rows: NDArray[np.int64]) -> list[ShardRows]:
        """Groups global rows, int64 (n,), by shard."""
        shards, local = self.locate(rows)
        return [ShardRows(n, places, local[places]) for n, places in grouped(shards)]

    def shard_path(self, shard: int) -> str:
        """Returns the path of a shard's file."""
        return os.path.join(self.path, self.manifest.name(shard))

    def shard(self, shard: int) -> ShardReader:
        """Returns a shard's reader. The first call opens it; in a store, this fetches its head.

        Raises:
            SourceNotFound: If the shard is missing.
            SourceChanged: If the dataset was replaced by another one.
            ShardCorrupt: If the shard is damaged, or not the one that the manifest describes.
            StoreError: If the store does not answer.
        """
        return self.shards.readers.get(shard)

    def gather_all(
        self, fields: Sequence[str], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any] | list[Any]]:
        """Reads several fields of many rows; see `gather`."""
        kinds = self._not_images(fields)
        for _ in range(FETCHES - 1):
            try:
                return self._gathered(kinds, rows)
            except ShardCorrupt:  # a shard may have been truncated in the cache
                if not self.shards.renew(group.shard for group in self.by_shard(rows)):
                    raise
        return self._gathered(kinds, rows)

    def _gathered(
        self, kinds: Mapping[str, Any], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any] | list[Any]]:
        groups = self.by_shard(rows)
        readers = [self.shard(group.shard) for group in groups]
        values = {
            name: values_of(name, kind, len(rows), groups, readers) for name, kind in kinds.items()
        }
        # Checked after the values were read: parts of a file that is cut off meanwhile read as
        # zeros.
        self.shards.check_read(readers)
        return values

    @property
    def remote_part(self) -> Dataset | None:
        """The dataset itself if it is in a store, else None."""
        return None if self.shards.store is None else self

    @property
    def lineage(self) -> str:
        """See `Remote`."""
        return self.manifest.lineage

    def contents(self, first: int, last: int) -> bytes:
        """See `Remote`. Nothing is fetched: the manifest has the hashes of the shards."""
        parts = spans(self, first, last)
        hashes = [(self.manifest.entry(shard).xxh3, begin, end) for shard, begin, end in parts]
        return repr(hashes).encode()

    def version(self, file: int) -> str:
        """See `Remote`."""
        entry = self.manifest.entry(file)
        return f"{entry.name}\0{entry.xxh3}"

    def ranges(self, first: int, last: int) -> list[Range]:
        """See `Remote`. Fetches the heads of the rows' shards."""
        return ranges(self, first, last)

    def check_parts(self, first: int, last: int, parts: Sequence[Any]) -> str | None:
        """See `Remote`. Compares images with their checksums."""
        return check_rows(self, first, last, parts)

    def check_source(self) -> None:
        """Raises SourceChanged if another manifest is in place of the one that was opened."""
        self.shards.check_manifest()

    def describes(self, rows: NDArray[np.int64]) -> bool:
        """Returns whether the heads of the rows' shards are in memory."""
        return all(map(self.shards.readers.has, np.unique(self.locate(rows)[0]).tolist()))

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
        # Passes empty bytes, because the bytes of the image might have to be fetched from a store.
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
        shard, local = self._at(row)
        return self.shard(shard).view(field, local)

    def _decoded(
        self,
        field: str,
        row: int,
        at_least: int | None,
        data: NDArray[np.uint8] | None,
        index: int | None = None,
    ) -> NDArray[np.uint8]:
        stored = self.stored_image(field, row, data, index=index)
        if at_least is None or stored.codec != CODEC_BLOCKS:
            stored.check()  # else the parts that are read have checksums of their own
        pixels = decode_image(
            *stored[:5], self._field(field).mode, self.codebook, at_least, self.max_pixels
        )
        # Checked after the bytes were used: parts of a file that is cut off meanwhile read as
        # zeros.
        self.shards.check_read([self.shard(self._at(row)[0])])
        return pixels

    def stored_image(
        self,
        field: str,
        row: int,
        data: NDArray[np.uint8] | None = None,
        *,
        index: int | None = None,
    ) -> StoredImage:
        """Returns one image as it is stored, neither decoded nor verified; see `image`.

        For a field of lists of images, `index` is its place in the row's list.

        Raises:
            SchemaError: The field does not hold images, or lists of images.
            IndexError: The row number or `index` is out of range.
        """
        if not isinstance(self._field(field), Image if index is None else Images):
            raise SchemaError(f"field {field!r} is not an image field: use gather")
        shard, number = self._at(row)
        reader = self.shard(shard)
        images = images_of(reader, field, in_lists=index is not None)
        if images.first is not None and index is not None:
            first, after = images.first[number : number + 2].tolist()
            if not 0 <= index < after - first:
                raise IndexError(f"{self.sample_name(row)}: {field!r} has no image {index}")
            number = first + index
        codec, height, width, orientation, crc = (
            int(images.columns[part][number])
            for part in ("codec", "height", "width", "orientation", "crc32c")
        )
        if data is None:
            begin, end = images.begin[number : number + 2].tolist()
            data = self.shards.image_bytes(reader, field, shard, begin, end, crc)
        kept = (
            b"" if images.jpeg_index is None else bytes(reader.view(field + INDEX_COLUMN, number))
        )
        return StoredImage(data, codec, height, width, orientation, crc, kept)

    def read(self, field: str, row: int) -> bytes:
        """See `Rows`. Images that are stored as pixels become PNG files."""
        return self.stored_image(field, row).as_file(self._field(field).mode, self.codebook)

    def read_listed(self, field: str, row: int, index: int) -> bytes:
        """See `Rows`. Images that are stored as pixels become PNG files."""
        stored = self.stored_image(field, row, index=index)
        return stored.as_file(self._field(field).mode, self.codebook)

    def image_counts(self, field: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Rows`. No list is null."""
        return list_counts(self, field, rows)

    def list_reads(
        self, field: str, rows: NDArray[np.int64], index: NDArray[np.int64]
    ) -> ImageReads:
        """See `Rows`. A file's number is its shard's."""
        return shard_reads(self, field, rows, index)

    def sample_name(self, row: int) -> str:
        """Returns the name of a row in messages: its shard's file name and its row there."""
        shard, local = self._at(row)
        return f"{self.manifest.name(shard)} row {local}"

    def verify(self) -> Iterator[ShardCheck]:
        """Yields the result of comparing each shard with the manifest, which is verified first."""
        self.manifest.check()
        for shard in range(self.num_shards):
            problem = self.shards.check(shard)
            nbytes = int(self.manifest.shard_bytes[shard])
            yield ShardCheck(self.manifest.name(shard), nbytes, problem)

    def close(self) -> None:
        """Drops the shards and closes connections. Views that were taken stay valid."""
        self.shards.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # The version is opened by its number, because there may be a newer one by then.
        return reopened, (Dataset, (*self._given, self.manifest.version), self.fingerprint)


def reopened(kind: type[Dataset], arguments: tuple[Any, ...], fingerprint: str) -> Dataset:
    """Opens a dataset again in another process; SourceChanged if it is another one by now."""
    dataset = kind(*arguments)
    if dataset.fingerprint != fingerprint:
        dataset.close()
        raise SourceChanged(
            f"{dataset.path} was replaced by another dataset after it was first opened: its "
            f"fingerprint is {dataset.fingerprint}, expected {fingerprint}; open it again"
        )
    return dataset
