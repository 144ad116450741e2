"""WebDataset tars as a dataset with access by row number, read in place, here or in a store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.cache import Cache, CacheFolder, Source, default_cache
from fastio.errors import SampleError, SchemaError, SourceChanged, SourceNotFound
from fastio.packed.grouping import grouped
from fastio.packed.layout import ImageReads, Range, encoded_reads
from fastio.packed.remote import Remote, Staged
from fastio.runtime.files import read_part
from fastio.schema import Array, Image, Scalar, Schema
from fastio.shown import without_secrets
from fastio.sources.tar.fields import (
    Column,
    choose_columns,
    complete_rows,
    lacks,
    row_name,
)
from fastio.sources.tar.headers import KEY_FIELD, STATE_THERE
from fastio.sources.tar.index import TarIndex, build_index
from fastio.sources.tar.kept import index_source, open_index
from fastio.sources.tar.reader import LocalTars, StoreTars, TarReader, open_tars, tars_name
from fastio.sources.tar.values import decode, is_integer
from fastio.store import Stamp, Store, absolute_path

Incomplete = Literal["raise", "skip", "keep"]


class TarDataset(Remote):
    """The samples of WebDataset tars, in their order. Safe to use from several threads.

    Samples are dicts with the values that the webdataset package gives for the same tars:
    `__key__`, and a field for each extension, named after it with underscores for dots. Images
    become upright RGB pixels; cls, index, id and similar become int64; txt becomes text; npy
    becomes arrays; JSON numbers become numbers, and other JSON its text. All other files become
    bytes, which are never unpickled.

    Opening reads the headers of the tars once. The resulting index is kept in a cache folder until
    a tar changes; tars are never written to. Headers have checksums; of the contents of files in a
    store only lengths and versions are checked.

    Args:
        path: a tar, a folder of tars, a pattern such as "train-{000000..000009}.tar", or a list of
            tars and patterns. All but a list may also be a URL.
        fields: names of the fields, in order; None for all. "jpg;png" is whichever of the two a
            sample has. Other files of a sample are ignored.
        incomplete: what happens with samples that lack one of the fields, or whose number cannot be
            parsed: "raise" raises an error that names the first; "skip" leaves them out; "keep"
            raises when they are read.
        cache: where the index, and blocks of rows of a URL, are kept: a cache or its folder. None
            keeps the index in the folder `fastio/indexes-N` in $XDG_CACHE_HOME or ~/.cache, and
            blocks in memory as long as they are needed.
        storage_options: options of the file system of a URL.
        reader: the tars of a URL, if they are open already.

    Attributes:
        path: the tars as given, as one string.
        index: index of all samples and their places, including samples that are left out.
        schema: the fields.
        rows: int64 (n,), rows of `index` that this dataset has; None for all.
        cache: for blocks of rows of a URL; None keeps them in memory.
        staged: finds the local blocks of rows of a URL, if some were fetched.

    Raises:
        SourceNotFound: a tar does not exist, or there are no samples.
        ShardCorrupt: a file is not a tar, or is compressed, truncated or damaged.
        SchemaError: there is no such field, or samples lack one.
        StoreError: the store does not answer.
    """

    recodes = True
    cache: Cache | None
    staged: Staged | None

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        fields: Sequence[str] | None = None,
        incomplete: Incomplete = "raise",
        cache: Cache | str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        reader: StoreTars | None = None,
    ) -> None:
        if incomplete not in ("raise", "skip", "keep"):
            raise ValueError(f"incomplete must be 'raise', 'skip' or 'keep', got {incomplete!r}")
        if isinstance(fields, str):
            raise ValueError(f"fields must be a list of names: fields=[{fields!r}]")
        single = isinstance(path, (str, os.PathLike))
        path = absolute_path(path) if single else list(map(absolute_path, path))  # type: ignore[arg-type]
        self._reopen = path, cache, storage_options
        self.cache = None
        opened = open_tars(path, storage_options) if reader is None else reader
        index = self._kept_index(opened, cache)
        name = opened.folder if isinstance(opened, StoreTars) else tars_name(path, opened.names)
        self._fill(name, opened, index, fields, incomplete)

    def _fill(
        self,
        path: str,
        reader: TarReader,
        index: TarIndex,
        fields: Sequence[str] | None,
        incomplete: Incomplete,
    ) -> None:
        """Chooses the fields and rows of tars that a reader reads, given their index."""
        self.path = path
        self.index = index
        self.staged = None
        self._reader = reader
        self._given = None if fields is None else tuple(fields), incomplete
        self._columns = {column.name: column for column in choose_columns(index, fields)}
        self.schema = Schema({name: column.field for name, column in self._columns.items()})
        rows, first = complete_rows(index, list(self._columns.values()))
        if first is not None and incomplete == "raise":
            raise SchemaError(self._incomplete(*first))
        if rows is not None and not len(rows) and incomplete == "skip":
            raise SourceNotFound(f"{self.path}: no sample has all of {', '.join(self._columns)}")
        self.rows = rows if incomplete == "skip" else None
        digest = xxhash.xxh3_64(index.fingerprint.encode())
        for column in self._columns.values():
            digest.update(repr(column).encode("utf-8", "surrogateescape"))
        digest.update(b"" if self.rows is None else self.rows.tobytes())
        if isinstance(reader, StoreTars):  # pieces in caches, and states, are of these versions
            digest.update("".join(f"\0{stamp}" for _, stamp, _ in reader.versions).encode())
        self._fingerprint = digest.hexdigest()

    def _kept_index(
        self, reader: LocalTars | StoreTars, cache: Cache | str | os.PathLike[str] | None
    ) -> TarIndex:
        """Returns the index of the tars from a cache, or makes it; keeps the cache of a URL."""
        kept = Cache(cache) if isinstance(cache, (str, os.PathLike)) else cache or default_cache()
        # Blocks of a URL are cached only if the user has passed a cache. The index is always
        # cached.
        if isinstance(reader, StoreTars) and cache is not None:
            self.cache = kept
            kept.folder()  # creates the cache, or raises if it cannot be used
        try:
            versions = reader.versions
            return open_index(reader.folder, versions, kept, partial(build_index, reader, versions))
        finally:
            if kept is not cache and self.cache is None:
                kept.close()

    @property
    def tars(self) -> tuple[str, ...]:
        """The tars' names for their reader; the paths of local ones."""
        return tuple(tar.name for tar in self.index.tars)

    @property
    def nbytes(self) -> int:
        """Size of all tars."""
        return sum(tar.nbytes for tar in self.index.tars)

    @property
    def shared_bytes(self) -> int:
        """See `Rows`."""
        return self.nbytes

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that stand for keys, fields and where they lie in the tars."""
        return self._fingerprint

    def __len__(self) -> int:
        return len(self.index) if self.rows is None else len(self.rows)

    def __repr__(self) -> str:
        where = without_secrets(self.path)
        return f"TarDataset({where!r}, rows={len(self)}, tars={len(self.index.tars)})"

    # --- Where files lie --------------------------------------------------------------------------

    def locate(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows of the index of this dataset's rows, int64 (n,) both, or IndexError."""
        rows = self._in_range(rows)
        return rows if self.rows is None else self.rows[rows]

    def image_reads(self, field: str, rows: NDArray[np.int64]) -> ImageReads:
        """See `Rows`. A file's number is its tar's.

        Raises:
            SourceChanged, SourceNotFound: a local tar was replaced, written to or deleted.
        """
        if not isinstance(self._field(field), Image):
            return super().image_reads(field, rows)
        column, at = self._columns[field], self.locate(rows)
        tar = self.index.tar_numbers(at)
        # Native threads open local tars by name, so these are checked here. Requests to a store
        # name the version.
        if isinstance(self._reader, LocalTars):
            self._reader.check(map(self._tar_name, np.unique(tar).tolist()))
        offset = column.pick(self.index, "offsets", at)
        length = column.pick(self.index, "lengths", at)
        is_jpeg = column.is_jpeg(self.index, at)
        return encoded_reads(self._tar_name, tar, offset, length, is_jpeg)

    def _tar_name(self, number: int) -> str:
        return self.index.tars[number].name

    def sample_extents(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns the number of the tar, and the first byte and end of the files of each row.

        Only files that are fields count; what the index itself knows (keys and numbers) does not.
        """
        at = self.locate(rows)
        begin = np.full(len(at), np.iinfo(np.int64).max)
        end = np.zeros(len(at), np.int64)
        for column in self._columns.values():
            if not all(map(is_integer, column.extensions)):
                offset = column.pick(self.index, "offsets", at)
                length = column.pick(self.index, "lengths", at)
                there = offset >= 0
                begin[there] = np.minimum(begin, offset)[there]
                end[there] = np.maximum(end, offset + length)[there]
        # A row without any of the files is empty: [0, 0).
        return self.index.tar_numbers(at), np.minimum(begin, end), end

    # --- Blocks of tars in a store ----------------------------------------------------------------

    @property
    def remote_part(self) -> TarDataset | None:
        """The dataset itself if its tars are in a store."""
        return self if isinstance(self._reader, StoreTars) else None

    @property
    def store(self) -> Store:
        """The store of the tars' folder, of a URL."""
        assert isinstance(self._reader, StoreTars)
        return self._reader.store

    @property
    def stamps(self) -> Mapping[str, Stamp]:
        """The version of each tar of a URL, by its name."""
        assert isinstance(self._reader, StoreTars)
        return self._reader.stamps

    def head_source(self) -> tuple[CacheFolder, Source] | None:
        """See `Remote`: those of the index; None without a cache."""
        if self.cache is None:
            return None
        return index_source(self.store.url, self.stamps, self.cache)

    @property
    def lineage(self) -> str:
        """See `Remote`. Versions of tars have the same URL, first tar and fields."""
        about = f"tars\0{self.store.url}\0{self.tars[0]}\0{list(self._columns.values())}"
        return xxhash.xxh3_64_hexdigest(about.encode("utf-8", "surrogateescape"))

    def version(self, file: int) -> str:
        """See `Remote`."""
        name = self.tars[file]
        return f"{name}\0{self.stamps[name].key}"

    def ranges(self, first: int, last: int) -> list[Range]:
        """Returns the parts of tars that hold the files of rows [first, last)."""
        tars, begins, ends = self.sample_extents(np.arange(first, last, dtype=np.int64))
        found, names, stamps = [], self.tars, self.stamps
        for tar in dict.fromkeys(tars.tolist()):
            here, name = tars == tar, names[tar]
            begin, end = int(begins[here].min()), int(ends[here].max())
            found.append(Range(name, begin, max(0, end - begin), tar, expect=stamps[name]))
        return found

    def describes(self, rows: NDArray[np.int64]) -> bool:
        """Returns False: fields other than images are read from the files in the blocks."""
        return False

    def read_through(self, staged: Staged) -> None:
        """Reads files from staged blocks, which `staged` gives."""
        self.staged = staged

    # --- Values -----------------------------------------------------------------------------------

    def gather_all(
        self, fields: Sequence[str], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any] | list[Any]]:
        """See `Rows`."""
        self._not_images(fields)
        rows = np.asarray(rows, np.int64)
        at = self.locate(rows)
        return {name: self._gathered(self._columns[name], rows, at) for name in fields}

    def _gathered(
        self, column: Column, rows: NDArray[np.int64], at: NDArray[np.int64]
    ) -> NDArray[Any] | list[Any]:
        """Returns a field of rows, which are rows `at` of the index."""
        if column.name == KEY_FIELD:
            return [self.index.key(row) for row in at.tolist()]
        if all(map(is_integer, column.extensions)):
            self._check_there(column, rows, at)
            return column.pick(self.index, "values", at)
        kind, data, values = column.field, self._read_bytes(column, rows, at), []
        for place, number in enumerate(column.choice(self.index, at).tolist()):
            extension = column.extensions[number]
            try:
                values.append(decode(extension, kind, data[place], self.max_unzipped_bytes))
            except Exception as error:  # also MemoryError and RecursionError, due to the sample
                cause = f".{extension}: {str(error) or type(error).__name__}"
                raise self._sample_error(rows[place], cause) from error
        if isinstance(kind, Scalar):
            return np.array(values, kind.dtype)
        if isinstance(kind, Array) and kind.fixed_shape is not None:
            return np.array(values, kind.dtype).reshape(-1, *kind.fixed_shape)
        return values

    def read(self, field: str, row: int) -> bytes:
        """Returns the bytes of one file, as they are in the tar.

        Raises:
            SchemaError: there is no such field, or it is the key, which is in no file.
            IndexError: the row number is out of range.
            SampleError: the sample lacks the field, or the tar ends before.
            SourceNotFound, OSError: the tar cannot be read.
        """
        self._field(field)  # raises if there is none
        if field == KEY_FIELD:
            return super().read(field, row)
        rows = np.array([row], dtype=np.int64)
        return self._read_bytes(self._columns[field], rows, self.locate(rows))[0]

    def row_key(self, row: int) -> str:
        """Returns the name and version of a row's tar, and the key of its sample."""
        at = self.locate(np.array([row]))
        tar = self.index.tars[int(self.index.tar_numbers(at)[0])]
        return f"{os.path.basename(tar.name)} {tar.stamp} {self.index.key(int(at[0]))}"

    def sample_name(self, row: int) -> str:
        """Returns how messages name a row: its tar and its key."""
        (at,) = self.locate(np.array([row], dtype=np.int64))
        return row_name(self.index, int(at))

    def close(self) -> None:
        """Closes the tars' files, or their store."""
        close = getattr(self._reader, "close", None)
        if close is not None:
            close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (*self._reopen, *self._given, list(self.index.tars))

    def _read_bytes(
        self, column: Column, rows: NDArray[np.int64], at: NDArray[np.int64]
    ) -> list[bytes]:
        """Reads the files of rows, which are rows `at` of the index: from staged blocks if there
        are any, else from the tars."""
        self._check_there(column, rows, at)
        offset = column.pick(self.index, "offsets", at).tolist()
        length = column.pick(self.index, "lengths", at).tolist()
        found: list[bytes | None] = [None] * len(at)
        tars, left = self.index.tar_numbers(at), np.arange(len(at))
        if self.staged is not None:
            for place, block in enumerate(self.staged(rows, tars)):
                if block is not None:
                    found[place] = read_part(block[0], offset[place] - block[1], length[place])
            left = np.array([place for place in left.tolist() if found[place] is None], np.int64)
        for tar, chosen in grouped(tars[left]):
            places = left[chosen].tolist()
            ranges = [(offset[place], length[place]) for place in places]
            read = self._reader.read_ranges(self._tar_name(tar), ranges)
            for place, data in zip(places, read, strict=True):
                found[place] = bytes(data)
                if len(data) != length[place]:
                    cause = f"{len(data)} of {length[place]} bytes: the tar was truncated"
                    raise self._sample_error(rows[place], cause)
        return [data for data in found if data is not None]

    def _check_there(self, column: Column, rows: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Raises SampleError if a sample lacks the field, as some that are kept do."""
        if self._given[1] == "keep" and column.extensions:
            bad = np.flatnonzero(column.pick(self.index, "states", at) != STATE_THERE)
            for place in bad[:1].tolist():
                raise self._sample_error(rows[place], lacks(self.index, column, int(at[place])))

    def _sample_error(self, row: Any, cause: str) -> SampleError:
        return SampleError(self.path, int(row), self.sample_name(int(row)), cause)

    def _incomplete(self, column: Column, at: int, count: int) -> str:
        return (
            f"{row_name(self.index, at)}: {lacks(self.index, column, at)}, like {count:,} of "
            f"{len(self.index):,} samples. Say which fields you want (fields=), or leave such "
            "samples out: fastio.TarDataset(path, incomplete='skip')"
        )


def _open_again(
    path: Any, cache: Any, options: Any, fields: Any, incomplete: Incomplete, tars: Sequence[Any]
) -> TarDataset:
    found = TarDataset(
        path, fields=fields, incomplete=incomplete, cache=cache, storage_options=options
    )
    for before, now in zip(tars, found.index.tars, strict=False):
        if before != now:
            raise SourceChanged(
                f"{now.name} was replaced or written to after another process opened it: open the "
                "dataset again in that process"
            )
    return found
