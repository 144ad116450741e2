"""WebDataset tars as a dataset with access by row number, read in place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.cache import Cache
from fastio.errors import ImageError, SchemaError, SourceChanged, SourceNotFound
from fastio.packed.of_sample import of_sample
from fastio.packed.pixels import upright_pixels
from fastio.packed.reads import ImageReads, encoded_reads
from fastio.packed.rows import Rows
from fastio.schema import Array, Image, Scalar, Schema
from fastio.shown import without_secrets
from fastio.sources.tar.fields import Column, choose_columns, complete_rows, lacks
from fastio.sources.tar.files import Extents, SampleFiles, extents, row_name, sample_extents
from fastio.sources.tar.index import Tar, TarIndex, build_index
from fastio.sources.tar.kept import default_cache, open_index
from fastio.sources.tar.names import describe, find_tars
from fastio.sources.tar.reader import LocalTars, TarReader, stamp, stamped_bytes
from fastio.sources.tar.samples import KEY_FIELD
from fastio.sources.tar.values import is_integer

Incomplete = Literal["raise", "skip", "keep"]


class TarDataset(Rows):
    """The samples of WebDataset tars, in their order. Safe to use from several threads.

    Samples are dicts with the values that the webdataset package gives for the same tars:
    `__key__`, and a field for each extension, named after it with underscores for dots. Images
    become upright RGB pixels; cls, index, id and similar become int64; txt becomes text; npy
    becomes arrays; JSON numbers become numbers, and other JSON its text. All other files become
    bytes, which are never unpickled.

    Opening reads the headers of the tars once. The resulting index is kept in a cache folder until
    a tar changes; tars are never written to.

    Args:
        path: a tar, a folder of tars, a pattern such as "train-{000000..000009}.tar", or a list of
            tars and patterns.
        fields: names of the fields, in order; None for all. "jpg;png" is whichever of the two a
            sample has. Other files of a sample are ignored.
        incomplete: what happens with samples that lack one of the fields, or whose number cannot be
            parsed: "raise" raises an error that names the first; "skip" leaves them out; "keep"
            raises when they are read.
        cache: where the index is kept: a cache or its folder; None uses the folder `fastio/indexes`
            in $XDG_CACHE_HOME or ~/.cache.

    Attributes:
        path: the tars as given, as one string.
        index: index of all samples and their places, including samples that are left out.
        schema: the fields.
        rows: int64 (n,), rows of `index` that this dataset has; None for all.

    Raises:
        SourceNotFound: a tar does not exist, or there are no samples.
        ShardCorrupt: a file is not a tar, or is compressed, truncated or damaged.
        SchemaError: there is no such field, or samples lack one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        fields: Sequence[str] | None = None,
        incomplete: Incomplete = "raise",
        cache: Cache | str | os.PathLike[str] | None = None,
    ) -> None:
        found = find_tars(path)
        if found is None:
            raise SourceNotFound(
                f"{path} is neither a tar, nor a pattern of tars, nor a "
                "folder that contains only tars"
            )
        paths = [os.path.abspath(each) for each in found]
        tars = [(each, stamp(each)) for each in paths]
        reader = LocalTars(dict(tars))

        def build() -> TarIndex:
            return build_index(reader, paths, [stamp for _, stamp in tars])

        where = os.path.dirname(paths[0])
        known = [(each, stamp, stamped_bytes(stamp)) for each, stamp in tars]
        if isinstance(cache, Cache):
            index = open_index(where, known, cache, build)
        else:
            with default_cache() if cache is None else Cache(cache) as own:
                index = open_index(where, known, own, build)
        name = describe(found) if isinstance(path, (list, tuple)) else os.fspath(path)  # type: ignore[arg-type]
        self._fill(name, index, reader, fields, incomplete)
        self._reopen: tuple[Any, Any] | None = (path, cache)

    @classmethod
    def from_index(
        cls,
        path: str,
        index: TarIndex,
        reader: TarReader,
        *,
        fields: Sequence[str] | None = None,
        incomplete: Incomplete = "raise",
    ) -> TarDataset:
        """Creates a dataset from an index that `build_index` made and the reader of its tars.

        Args:
            path: The name of the dataset in messages.
            index: The index of the tars.
            reader: Reads the tars. It must be thread-safe.
            fields, incomplete: As above.

        Raises:
            SchemaError: As above.
        """
        self = cls.__new__(cls)
        self._fill(path, index, reader, fields, incomplete)
        self._reopen = None
        return self

    def _fill(
        self,
        path: str,
        index: TarIndex,
        reader: TarReader,
        fields: Sequence[str] | None,
        incomplete: Incomplete,
    ) -> None:
        if incomplete not in ("raise", "skip", "keep"):
            raise ValueError(f"incomplete must be 'raise', 'skip' or 'keep', got {incomplete!r}")
        if isinstance(fields, str):
            raise ValueError(f"fields must be a list of names: fields=[{fields!r}]")
        self.path = path
        self.index = index
        self._reader = reader
        self._files = SampleFiles(path, index, reader, incomplete == "keep")
        self._given = None if fields is None else tuple(fields), incomplete
        self._columns = {column.name: column for column in choose_columns(index, fields)}
        self.schema = Schema({name: column.field for name, column in self._columns.items()})
        rows, first = complete_rows(index, list(self._columns.values()))
        if first is not None and incomplete == "raise":
            raise SchemaError(self._incomplete(*first))
        if rows is not None and not len(rows) and incomplete == "skip":
            raise SourceNotFound(f"{path}: no sample has all of {', '.join(self._columns)}")
        self.rows = rows if incomplete == "skip" else None
        digest = xxhash.xxh3_64(index.fingerprint.encode())
        for column in self._columns.values():
            digest.update(repr(column).encode("utf-8", "surrogateescape"))
        digest.update(b"" if self.rows is None else self.rows.tobytes())
        self._fingerprint = digest.hexdigest()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """None: tars have numbers of classes and no names."""
        return None

    @property
    def tars(self) -> tuple[str, ...]:
        """The tars' names for their reader; the paths of local ones."""
        return tuple(tar.name for tar in self.index.tars)

    @property
    def nbytes(self) -> int:
        """Size of all tars."""
        return sum(tar.nbytes for tar in self.index.tars)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that stand for keys, fields and where they lie in the tars."""
        return self._fingerprint

    def __len__(self) -> int:
        return len(self.index) if self.rows is None else len(self.rows)

    def __repr__(self) -> str:
        where = without_secrets(self.path)
        return f"TarDataset({where!r}, rows={len(self)}, tars={len(self.index.tars)})"

    def locate(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the index that this dataset's rows are, int64 (n,) both.

        Raises:
            IndexError: a row number is negative or too large.
        """
        rows = self._in_range(rows)
        return rows if self.rows is None else self.rows[rows]

    def check_versions(self, tars: NDArray[np.int64]) -> None:
        """Checks that the local tars of these numbers have not changed since they were opened.

        Raises:
            SourceChanged: If one was replaced or written to.
            SourceNotFound: If one no longer exists.
        """
        if isinstance(self._reader, LocalTars):
            self._reader.check(self.index.tars[number].name for number in np.unique(tars).tolist())

    def extents(self, field: str, rows: NDArray[np.int64]) -> Extents:
        """Where a field's files lie; for images, of which nothing is in memory.

        Args:
            field: not `__key__`.
            rows: int64 (n,), row numbers in any order.

        Raises:
            SchemaError: there is no such field.
            IndexError: a row number is out of range.
        """
        return extents(self.index, self._column(field), self.locate(rows))

    def image_reads(self, field: str, rows: NDArray[np.int64]) -> ImageReads:
        """See `Rows`. A file's number is its tar's.

        Raises:
            SourceChanged, SourceNotFound: a local tar was replaced, written to or deleted.
        """
        tar, offset, length, is_jpeg = self.extents(field, rows)
        self.check_versions(tar)
        return encoded_reads(self._tar_name, tar, offset, length, is_jpeg)

    def _tar_name(self, number: int) -> str:
        return self.index.tars[number].name

    def sample_extents(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The parts of tars to have for some rows: number of the tar, first byte and end, of each.

        A part begins with the first file of the sample that is a field here, and ends with the
        last; what the index itself knows (keys and numbers) is not counted.
        """
        return sample_extents(self.index, self._columns.values(), self.locate(rows))

    def gather(self, field: str, rows: NDArray[np.int64]) -> NDArray[Any] | list[Any]:
        """One field of many rows.

        Args:
            field: a field that is not an image.
            rows: int64 (n,), row numbers in any order.

        Returns:
            An array of shape (n,) for Scalar and (n, *shape) for Array; a list of n str, bytes
            or arrays for Text, Bytes and Array of differing shapes.

        Raises:
            SchemaError: there is no such field, or it is an image.
            IndexError: a row number is out of range.
            SampleError: a file does not hold what the field does.
            SourceNotFound, OSError: a tar cannot be read.
        """
        column, rows = self._column(field), np.asarray(rows, np.int64)
        if isinstance(column.field, Image):
            raise SchemaError(f"field {field!r} is an image: index the dataset, or use a Loader")
        at = self.locate(rows)
        if field == KEY_FIELD:
            return [self.index.key(row) for row in at.tolist()]
        if all(map(is_integer, column.extensions)):
            return self._files.integers(column, rows, at)
        data = self._read_bytes(column, rows, at)
        values = self._files.decoded(column, rows, at, data, self.max_unzipped_bytes)
        if isinstance(column.field, Scalar):
            return np.array(values, column.field.dtype)
        if isinstance(column.field, Array) and column.field.fixed_shape is not None:
            return np.array(values, column.field.dtype).reshape(-1, *column.field.fixed_shape)
        return values

    def gather_all(
        self, fields: Sequence[str], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any] | list[Any]]:
        """`gather` for several fields."""
        return {field: self.gather(field, rows) for field in fields}

    def image(
        self,
        field: str,
        row: int,
        *,
        at_least: int | None = None,
        data: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """One upright image, uint8 (H, W, C), by Pillow.

        Args:
            field: an image field.
            row: row number from 0.
            at_least: as packed datasets have it; of no effect here.
            data: uint8 (n,), the file's bytes if they were read already.

        Raises:
            SchemaError: there is no such field, or it is no image.
            IndexError: the row number is out of range.
            ImageError: it cannot be read or decoded.
        """
        column = self._column(field)
        if not isinstance(column.field, Image):
            raise SchemaError(f"field {field!r} is not an image field: use gather")
        self._in_range(np.array([row], np.int64))
        with of_sample(self, row, ImageError):
            found = self.read(field, row) if data is None else data.tobytes()
            return upright_pixels(found, column.field.mode, None, self.max_pixels)

    def read(self, field: str, row: int) -> bytes:
        """The bytes of one file, as they are in the tar.

        Raises:
            SchemaError: there is no such field.
            IndexError: the row number is out of range.
            SampleError: the sample lacks the field, or the tar ends before.
            SourceNotFound, OSError: the tar cannot be read.
        """
        rows = np.array([row], dtype=np.int64)
        column, at = self._column(field), self.locate(rows)
        return self._read_bytes(column, rows, at)[0]

    def sample_name(self, row: int) -> str:
        """How messages name a row: its tar and its key."""
        (at,) = self.locate(np.array([row], dtype=np.int64))
        return row_name(self.index, int(at))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample, with images as upright uint8 (H, W, C) arrays.

        Args:
            index: row number; negative ones count from the end.

        Raises:
            IndexError: it is out of range.
            ImageError, SampleError: a file cannot be decoded.
            SourceNotFound, OSError: the tar cannot be read.
        """
        row = self._row(index)
        return {name: self._value(name, row) for name in self._columns}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def close(self) -> None:
        """Lets go of the tars' files."""
        close = getattr(self._reader, "close", None)
        if close is not None:
            close()

    def __reduce__(self) -> tuple[Any, ...]:
        fields, incomplete = self._given
        if self._reopen is not None:
            return _open_again, (*self._reopen, fields, incomplete, list(self.index.tars))
        return _from_index, (self.path, self.index, self._reader, fields, incomplete)

    def _column(self, name: str) -> Column:
        self._field(name)  # which raises what is to be said
        return self._columns[name]

    def _value(self, name: str, row: int) -> Any:
        kind = self._columns[name].field
        if isinstance(kind, Image):
            return self.image(name, row)
        value: Any = self.gather(name, np.array([row], dtype=np.int64))[0]
        if isinstance(kind, Scalar) and kind.dtype in ("int64", "float64", "bool"):
            return value.item()
        return value

    def _read_bytes(
        self, column: Column, rows: NDArray[np.int64], at: NDArray[np.int64]
    ) -> list[bytes]:
        """Reads the files of rows, which are rows `at` of the index."""
        return self._files.read(column, rows, at)

    def _incomplete(self, column: Column, at: int, count: int) -> str:
        return (
            f"{row_name(self.index, at)}: {lacks(self.index, column, at)}, like {count:,} of "
            f"{len(self.index):,} samples. Say which fields you want (fields=), or leave such "
            "samples out: fastio.TarDataset(path, incomplete='skip')"
        )


def _open_again(
    path: Any,
    cache: Any,
    fields: Any,
    incomplete: Incomplete,
    tars: list[Tar],
) -> TarDataset:
    found = TarDataset(path, fields=fields, incomplete=incomplete, cache=cache)
    for before, now in zip(tars, found.index.tars, strict=False):
        if before != now:
            raise SourceChanged(
                f"{now.name} was replaced or written to after another process opened it: open the "
                "dataset again in that process"
            )
    return found


def _from_index(
    path: str, index: TarIndex, reader: TarReader, fields: Any, incomplete: Incomplete
) -> TarDataset:
    return TarDataset.from_index(path, index, reader, fields=fields, incomplete=incomplete)
