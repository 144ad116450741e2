"""Checks the descriptions of columns in the footer of a Parquet file, without reading columns."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress

import pyarrow.parquet as pa_parquet

_ANY_BYTES = 1 << 62
_BUFFER_BYTES = 4096


def check_footer(metadata: pa_parquet.FileMetaData, nbytes: int) -> None:
    """Checks the description of every column of every row group.

    pyarrow ends the process (C++ `terminate`) if `RowGroupMetaData.column` finds a description that
    contradicts itself, such as a histogram of a wrong size. No Python code can catch that. A read
    of row groups checks the same descriptions first, and raises an error. So this function begins
    to read the row groups from a file that refuses to be read.

    Args:
        metadata: The footer.
        nbytes: The size of the file.

    Raises:
        OSError: If a description contradicts itself, if the file is too short for it, or if a row
            group has a negative number of rows.
    """
    groups = list(range(metadata.num_row_groups))
    if metadata.num_rows < 0 or any(metadata.row_group(group).num_rows < 0 for group in groups):
        raise OSError("a row group has a negative number of rows")
    try:
        with pa_parquet.ParquetFile(_Unread(nbytes), metadata=metadata, pre_buffer=True) as file:
            file.read_row_groups(groups, use_threads=False)
    except _Reached:
        pass  # all descriptions were looked at
    except NotImplementedError:
        pass  # a column that pyarrow has no type for, which nobody need ask for


def check_codecs(metadata: pa_parquet.FileMetaData, group: int, columns: Sequence[int]) -> None:
    """Checks the compression of columns. An unknown one would end the process too.

    Args:
        metadata: The footer.
        group: The number of the row group.
        columns: The numbers of the columns.

    Raises:
        OSError: If pyarrow does not know a column's compression.
    """
    # Buffered, or the data would be read before the compression is looked at.
    with pa_parquet.ParquetFile(
        _Unread(_ANY_BYTES), metadata=metadata, pre_buffer=False, buffer_size=_BUFFER_BYTES
    ) as file:
        for column in columns:
            with suppress(_Reached, NotImplementedError):
                file.reader.read_row_group(group, column_indices=[column], use_threads=False)


class _Reached(Exception):
    """Data would be read now."""


class _Unread(io.RawIOBase):
    """A file of a given size, from which nothing can be read."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        raise _Reached
