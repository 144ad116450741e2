"""Reads shards: files of rows that are written once and then memory-mapped.

A shard is an Arrow IPC file with one uncompressed record batch. All buffers begin at multiples of
64 bytes, so that a mapping can be used as arrays directly; `ipc` implements this layout. The
manifest describes the file (`ShardEntry`): a head and a foot, which share one hash, and columns,
which have another hash. The hash of the columns leaves out the bytes of images, each of which has a
CRC.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio import _native
from fastio.errors import ShardCorrupt, SourceChanged
from fastio.packed.ipc import NUMPY_DTYPES, FileStamp, MappedFile, stamp
from fastio.packed.shard_writer import ShardEntry
from fastio.schema import INDEX_COLUMN, RECORD_COLUMN, Schema

if TYPE_CHECKING:
    from fastio.packed.shard_images import ShardImages

_READ_BYTES = 1 << 20  # hashed at a time

Ranges = Sequence[tuple[int, int]]  # offset, bytes

# What a column holds, for messages.
FIXED = "values of fixed width"
BYTES = "bytes of variable width"
TEXT = "text of variable width"
TOKENS = "tokens"
SHAPES = "shapes"
# The columns of variable width: their Arrow types, what they hold, and the dtype of their offsets.
_VARIABLE = (
    (pa.types.is_large_binary, BYTES, np.int64),
    (pa.types.is_large_string, TEXT, np.int64),
    (pa.types.is_large_list, TOKENS, np.int64),
    (pa.types.is_list, SHAPES, np.int32),
)

_NO_OFFSETS = np.empty(0, np.int64)


class Column(NamedTuple):
    """The memory of a column, as read-only views of the map.

    Attributes:
        holds: What it holds: FIXED, BYTES, TEXT, TOKENS or SHAPES.
        values: The rows of a column of fixed width, else the data of all rows one after another.
        at: The offset of the data in the file, in bytes; 0 without data.
        offsets: Where each row begins in `values`, and the last one ends: int64 (rows + 1,), int32
            of shapes; empty for a fixed width.
    """

    holds: str
    values: NDArray[Any]
    at: int
    offsets: NDArray[Any]


class ShardReader:
    """Read-only views of one shard through a memory map. Thread-safe.

    Opening verifies size, head and foot against the manifest before they are parsed.
    `check_columns` verifies the rest. Methods that read a column raise ShardCorrupt if there is no
    such column, if it has another type, or if its offsets or values are damaged. Views stay valid
    after `close()`, because they keep the map alive; no file descriptor stays open.

    Args:
        path: The path of the shard's file.
        name: The name in messages. If None, the path.
        schema: The fields of the samples. If None, any columns are accepted.
        expected: The parts and hashes of the file. If None, nothing is verified.
        columns_first: Whether to verify the columns too before anything is parsed, as is right for
            data that has just arrived.

    Raises:
        SourceNotFound: If there is no such file.
        SourceChanged: If it was replaced while it was being opened.
        ShardCorrupt: If it is not a complete Arrow file with one record batch without nulls, or not
            the expected file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        schema: Schema | None = None,
        expected: ShardEntry | None = None,
        *,
        columns_first: bool = False,
    ) -> None:
        self._where = os.fspath(path)
        self.path = self._where if name is None else name
        self._layout = None if schema is None else schema.record_layout
        self._expected = expected
        self._columns: dict[str, Column] = {}
        self.images: dict[str, ShardImages] = {}  # what `images_of` has found, by field
        file = MappedFile(self._where, ShardCorrupt, name)
        self.stamp: FileStamp = file.stamp
        self._changed_ns = file.changed_ns
        self._mapping: _native.Mapping | None = file.mapping
        self._size = len(file.data)
        self._address = file.data.ctypes.data
        if expected is not None:
            # Compared before Arrow parses anything: fastio has written bytes whose hash is in the
            # manifest.
            self._check_head(file.data.data, expected)
            if columns_first:
                self._check_columns(self._mapped_ranges(file.data.data))
        self._batch, *body = self._parsed(file, schema)
        if expected is not None:
            self._check_layout(expected, *body)

    def _parsed(self, file: MappedFile, schema: Schema | None) -> tuple[pa.RecordBatch, int, int]:
        """Returns the columns of the file, and where their bytes begin and end."""
        images = () if schema is None else schema.image_fields
        columns = None if schema is None else schema.arrow_schema(images)
        return file.batch(columns, [name + INDEX_COLUMN for name in images])

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._opened().num_rows)

    @property
    def column_bytes(self) -> int:
        """The number of bytes that `check_columns` reads."""
        return sum(nbytes for _, nbytes in self._ranges)

    @property
    def identity(self) -> tuple[FileStamp, int, str]:
        """The identity of the file, when it was changed last, and the expected columns' hash."""
        assert self._expected is not None
        return self.stamp, self._changed_ns, self._expected.columns_xxh3

    def check_columns(
        self,
        *,
        in_file: bool = False,
        past_cache: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Verifies the columns against the hash in the manifest.

        Args:
            in_file: Whether to read them with file reads, which map none of the file's pages.
            past_cache: Whether these bypass the page cache; see `file_pieces`.
            stopped: Called regularly. If it returns True, the check stops without a result.

        Raises:
            ShardCorrupt: They are not what was written.
            SourceChanged: The file was replaced meanwhile.
        """
        if not in_file:
            self._check_columns(self._mapped_ranges(self.mapping.data.data), stopped)
            return
        # Checked before and after the reads, because the path may lead to another file than the
        # mapped one.
        self.check_unchanged()
        self._check_columns(file_pieces(self._where, self._ranges, past_cache=past_cache), stopped)
        self.check_unchanged()

    @property
    def _ranges(self) -> list[tuple[int, int]]:
        assert self._expected is not None
        return self._expected.column_ranges()

    def _mapped_ranges(self, data: memoryview) -> Iterator[memoryview]:
        return (data[at : at + nbytes] for at, nbytes in self._ranges)

    def _check_columns(
        self, pieces: Iterator[memoryview], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        assert self._expected is not None
        digest = xxhash.xxh3_64()
        for piece in pieces:
            if stopped():
                return
            digest.update(piece)
        self._compare("its columns have", digest.hexdigest(), self._expected.columns_xxh3)

    def check_offsets(self) -> None:
        """Checks the offsets of all variable-width columns."""
        for name in self._opened().schema.names:
            self._column(name, FIXED, BYTES, TEXT, TOKENS, SHAPES)

    def check_unchanged(self) -> None:
        """Checks that the file is still the one that was opened, and was not written to.

        Raises:
            SourceChanged: It was replaced, written to or deleted.
            ShardCorrupt: It was truncated.
        """
        try:
            found = stamp(self._where)
        except OSError as error:
            raise SourceChanged(
                f"{self.path} was deleted or became unreadable after it was opened ({error}); "
                "open the data again"
            ) from error
        if found == self.stamp:
            return
        # It is the same file, but shorter: mapped bytes after its new end read as zeros.
        if found[:2] == self.stamp[:2] and found.nbytes < self.stamp.nbytes:
            raise ShardCorrupt(
                f"{self.path} was cut off while it was being read: it had {self.stamp.nbytes} "
                f"bytes when it was opened, and now has {found.nbytes}; copy it again, or pack "
                "again"
            )
        raise SourceChanged(
            f"{self.path} was replaced or written to after it was opened; open the data again"
        )

    def _check_head(self, data: memoryview, expected: ShardEntry) -> None:
        if len(data) != expected.bytes:
            raise ShardCorrupt(
                f"{self.path} has {len(data)} bytes, the manifest says {expected.bytes}; copy the "
                "dataset again, or pack again"
            )
        digest = xxhash.xxh3_64(data[: expected.head_bytes])
        digest.update(data[len(data) - expected.foot_bytes :])
        self._compare("its head and foot have", digest.hexdigest(), expected.head_xxh3)

    def _check_layout(self, expected: ShardEntry, begin: int, end: int) -> None:
        """Checks that hashes and CRCs cover the parts they should, and that nothing is left out."""
        if (begin, end) != (expected.head_bytes, self._size - expected.foot_bytes):
            raise ShardCorrupt(
                f"{self.path}: its columns lie at {begin} to {end}, and the manifest says "
                f"{expected.head_bytes} to {self._size - expected.foot_bytes}"
            )
        for name, (offset, nbytes) in expected.payloads().items():
            column = self._column(name, BYTES)
            # A column without data has no position, so the manifest may have any offset for it.
            found = column.at if column.values.size else offset, column.values.nbytes
            if found != (offset, nbytes) or column.offsets[[0, -1]].tolist() != [0, nbytes]:
                raise ShardCorrupt(
                    f"{self.path}: the {nbytes} bytes of {name!r} do not lie at {offset}, where "
                    "the manifest says"
                )

    def _compare(self, what: str, found: str, expected: str) -> None:
        if found != expected:
            raise ShardCorrupt(
                f"{self.path} is damaged or another file: {what} the XXH3 hash {found}, expected "
                f"{expected}; copy it again, or pack again"
            )

    @property
    def nbytes(self) -> int:
        """The size of the file in bytes."""
        self._opened()
        return self._size

    @property
    def damaged(self) -> bool:
        """Whether the file was found truncated while it was read. Missing parts read as zeros."""
        return self.mapping.damaged

    @property
    def mapping(self) -> _native.Mapping:
        """The memory map of the file, for the engine's threads."""
        self._opened()
        assert self._mapping is not None
        return self._mapping

    def extent(self, column: str) -> tuple[int, int]:
        """Returns the offset in the file and the size of the data of a column, in bytes."""
        found = self._column(column, FIXED, BYTES, TEXT, TOKENS)
        return found.at, found.values.nbytes

    def fixed(self, column: str) -> NDArray[Any]:
        """Returns a fixed-width column as a read-only view of the map.

        Returns:
            An array of shape (rows,), (rows, length) for lists, or (rows, *shape) for a field in
            the records, with a stride of one record between rows.
        """
        return self._column(column, FIXED).values

    def offsets(self, column: str) -> NDArray[np.int64]:
        """Returns the offsets of a variable-width column, int64 (rows + 1,), a view of the map.

        Row i is bytes [offsets[i], offsets[i + 1]) of the column's data.
        """
        return self._column(column, BYTES, TEXT).offsets

    def has(self, column: str) -> bool:
        """Returns whether the shard has a column."""
        return column in self._opened().schema.names

    def tokens(self, column: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Returns a column of lists of numbers, such as tokens, as views of the map.

        Returns:
            int64 (rows + 1,), the first number of each row; and the numbers of all rows.
        """
        found = self._column(column, TOKENS)
        return found.offsets, found.values

    def bytes_of(self, column: str) -> NDArray[np.uint8]:
        """Returns a view of the bytes of all rows of a variable-width column: uint8 (n,)."""
        return self._column(column, BYTES, TEXT).values

    def view(self, column: str, local_row: int) -> NDArray[np.uint8]:
        """Returns a view of the bytes of one row of a variable-width column: uint8 (n,)."""
        found = self._column(column, BYTES, TEXT)
        begin, end = found.offsets[local_row : local_row + 2].tolist()
        return found.values[begin:end]

    def values(self, column: str, local_rows: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """Returns a str or bytes for each row of a variable-width column, copied from the map.

        Raises:
            IndexError: A row number is out of range.
            ShardCorrupt: A string is not UTF-8.
        """
        found = self._column(column, BYTES, TEXT)
        data, rows = found.values.data, np.asarray(local_rows, dtype=np.int64)
        count = len(found.offsets) - 1
        if rows.size and (rows.min() < 0 or rows.max() >= count):
            raise IndexError(f"{self.path} has {count} rows, but {rows.tolist()} were requested")
        spans = zip(found.offsets[rows].tolist(), found.offsets[rows + 1].tolist(), strict=True)
        if found.holds == BYTES:
            return [bytes(data[begin:end]) for begin, end in spans]
        try:
            return [str(data[begin:end], "utf-8") for begin, end in spans]
        except UnicodeDecodeError as error:
            raise ShardCorrupt(f"{self.path}: text in column {column!r}: {error}") from error

    def shapes(
        self, field: str, local_rows: NDArray[np.int64]
    ) -> NDArray[np.int64] | list[tuple[int, ...]]:
        """Returns the shapes of rows of a variable-shape array field.

        They are int64 (n, axes), or a list of n tuples if the rows differ in their number of axes.
        """
        found = self._column(f"{field}.shape", SHAPES)
        begins = found.offsets[local_rows].astype(np.int64)
        axes = found.offsets[local_rows + 1] - begins
        if not len(local_rows) or bool((axes != axes[0]).any()):
            spans = zip(begins.tolist(), axes.tolist(), strict=True)
            return [tuple(found.values[begin : begin + n].tolist()) for begin, n in spans]
        shapes: NDArray[np.int64] = found.values[begins[:, None] + np.arange(axes[0])]
        return shapes

    def close(self) -> None:
        """Releases the map. Existing views keep it alive; the reader cannot be used any more."""
        self._mapping = self._batch = None
        self._columns, self.images = {}, {}

    def _opened(self) -> pa.RecordBatch:
        if self._batch is None:
            raise ValueError(f"{self.path}: this shard reader was closed")
        return self._batch

    def _column(self, name: str, *expected: str) -> Column:
        """Returns a column, whose offsets are checked when it is first used."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._read(name)
        if found.holds not in expected:
            raise ShardCorrupt(
                f"{self.path}: column {name!r} holds {found.holds}, expected {expected[0]}"
            )
        return found

    def _read(self, name: str) -> Column:
        layout = self._layout
        if layout is not None and name in layout.offsets:
            return self._placed(FIXED, self._column(RECORD_COLUMN, FIXED).values[name])
        array = self._array(name)
        # Arrow's arrays have the buffers validity and values, or validity, offsets and data. The
        # values of lists are an array with buffers of its own.
        kind, buffers = array.type, array.buffers()
        if layout is not None and name == RECORD_COLUMN:
            if kind != pa.binary(layout.nbytes):
                raise ShardCorrupt(
                    f"{self.path}: its records are {kind}, expected {layout.nbytes} bytes"
                )
            return self._placed(FIXED, _view(buffers[1], layout.dtype, len(array)))
        holds, number = next(
            ((holds, number) for is_it, holds, number in _VARIABLE if is_it(kind)), (FIXED, None)
        )
        if holds in (BYTES, TEXT):
            values = _view(buffers[2], np.uint8, 0 if buffers[2] is None else buffers[2].size)
        else:
            flat = getattr(array, "values", array)  # the numbers in lists
            if flat.type not in NUMPY_DTYPES:
                raise ShardCorrupt(f"{self.path}: {name!r} is {kind}, which fastio never writes")
            values = _view(flat.buffers()[1], NUMPY_DTYPES[flat.type], len(flat))
            if holds == FIXED and flat is not array:
                values = values.reshape(len(array), kind.list_size)
        if number is None:
            return self._placed(holds, values)
        offsets = _view(buffers[1], number, len(array) + 1)
        self._check_offsets(name, holds, values, offsets)
        return self._placed(holds, values, offsets)

    def _placed(self, holds: str, values: NDArray[Any], offsets: Any = _NO_OFFSETS) -> Column:
        at = int(values.ctypes.data - self._address) if values.size else 0
        return Column(holds, values, at, offsets)

    def _check_offsets(
        self, name: str, holds: str, values: NDArray[Any], offsets: NDArray[Any]
    ) -> None:
        first, last, count = int(offsets[0]), int(offsets[-1]), len(values)
        wrong = first < 0 or last > count or bool((offsets[1:] < offsets[:-1]).any())
        if holds == TOKENS:
            wrong = wrong or (first, last) != (0, count)
        elif holds == SHAPES:
            wrong = wrong or bool(values.min(initial=0) < 0)
        if wrong:
            raise ShardCorrupt(
                f"{self.path}: the offsets of column {name!r} are damaged, or do not lie within "
                f"its {count} values; run `fastio verify` on the dataset"
            )

    def _array(self, name: str) -> pa.Array:
        batch = self._opened()
        position = batch.schema.get_field_index(name)
        if position < 0:
            raise ShardCorrupt(
                f"{self.path} has no column {name!r}; it has {', '.join(batch.schema.names)}"
            )
        return batch.column(position)


def _view(buffer: pa.Buffer | None, dtype: Any, count: int) -> NDArray[Any]:
    return np.frombuffer(buffer or b"", dtype=dtype, count=count)


# --- Files in pieces, to hash them ----------------------------------------------------------------


def file_pieces(path: str, ranges: Ranges, *, past_cache: bool) -> Iterator[memoryview]:
    """Yields the bytes of ranges of a file, 1 MiB at most at a time, from reads that map no pages.

    If `past_cache`, and the file system supports it, they bypass the page cache (O_DIRECT), whose
    contents then do not change.
    """
    # O_DIRECT reads whole pages to page-aligned memory.
    room = memoryview(mmap.mmap(-1, _READ_BYTES + 2 * mmap.PAGESIZE))
    file = _open_to_read(path, past_cache=past_cache)
    try:
        for offset, size in ranges:
            for at in range(offset, offset + size, _READ_BYTES):
                nbytes, before = min(_READ_BYTES, offset + size - at), at % mmap.PAGESIZE
                pages = -(-(before + nbytes) // mmap.PAGESIZE)
                found = os.preadv(file, [room[: pages * mmap.PAGESIZE]], at - before)
                yield room[before : min(found, before + nbytes)]
    finally:
        os.close(file)


def _open_to_read(path: str, *, past_cache: bool) -> int:
    """Opens a file for reading, without the page cache if asked for and supported."""
    if past_cache and hasattr(os, "O_DIRECT"):
        with suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
