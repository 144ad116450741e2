"""The files of samples: their positions in the tars, their bytes and their values.

Functions take rows of the index. Errors name the row of the dataset, the tar and the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastio.errors import SampleError
from fastio.sources.tar.fields import Column, lacks
from fastio.sources.tar.index import TarIndex, by_tar
from fastio.sources.tar.reader import TarReader
from fastio.sources.tar.samples import STATE_THERE
from fastio.sources.tar.values import decode, is_integer

Rows = NDArray[np.int64]


class Extents(NamedTuple):
    """The positions of the files of an image field.

    Attributes:
        tar: int64 (n,), indices of `TarDataset.tars`.
        offset, length: int64 (n,), in bytes.
        is_jpeg: bool (n,), whether the extension is one of JPEGs.
    """

    tar: Rows
    offset: Rows
    length: Rows
    is_jpeg: NDArray[np.bool_]


def extents(index: TarIndex, column: Column, at: Rows) -> Extents:
    """Returns the positions of a field's files, for rows of the index."""
    offset = column.pick(index, "offsets", at)
    length = column.pick(index, "lengths", at)
    return Extents(index.tar_numbers(at), offset, length, column.is_jpeg(index, at))


def sample_extents(index: TarIndex, columns: Iterable[Column], at: Rows) -> tuple[Rows, Rows, Rows]:
    """Returns the parts of tars that hold the rows' files; see `TarDataset.sample_extents`."""
    begin = np.full(len(at), np.iinfo(np.int64).max)
    end = np.zeros(len(at), np.int64)
    for column in columns:
        if not column.extensions or all(map(is_integer, column.extensions)):
            continue
        offset = column.pick(index, "offsets", at)
        length = column.pick(index, "lengths", at)
        there = offset >= 0
        begin[there] = np.minimum(begin, offset)[there]
        end[there] = np.maximum(end, offset + length)[there]
    return index.tar_numbers(at), np.minimum(begin, end), end


def row_name(index: TarIndex, at: int) -> str:
    """Returns the name of a row of the index in messages: its tar and its key."""
    (tar,) = index.tar_numbers(np.array([at]))
    return f"{index.tars[int(tar)].name} sample {index.key(at)!r}"


class SampleFiles:
    """Reads files of samples. As thread-safe as its reader.

    Methods take rows twice, int64 (n,) each: as rows of the dataset, for messages (`rows`), and as
    rows of the index (`at`).

    Args:
        path: The name of the dataset in messages.
        index: The index of the tars.
        reader: Reads the tars.
        incomplete: Whether some samples may lack a field.
    """

    def __init__(self, path: str, index: TarIndex, reader: TarReader, incomplete: bool) -> None:
        self._path = path
        self._index = index
        self._reader = reader
        self._incomplete = incomplete

    def read(self, column: Column, rows: Rows, at: Rows) -> list[bytes]:
        """Reads the files of rows, grouped by tar.

        Raises:
            SampleError: If a sample lacks the field, or if the tar is truncated.
            SourceNotFound, OSError: If a tar cannot be read.
        """
        self._check_there(column, rows, at)
        offset = column.pick(self._index, "offsets", at)
        length = column.pick(self._index, "lengths", at)
        found: list[bytes] = [b""] * len(at)
        for tar, places in by_tar(self._index.tar_numbers(at)):
            ranges = list(zip(offset[places].tolist(), length[places].tolist(), strict=True))
            read = self._reader.read_ranges(self._index.tars[tar].name, ranges)
            for place, data in zip(places.tolist(), read, strict=True):
                found[place] = bytes(data)
                if len(found[place]) != length[place]:
                    cause = f"{len(found[place])} of {length[place]} bytes: the tar was truncated"
                    raise self._error(rows, at, place, cause)
        return found

    def integers(self, column: Column, rows: Rows, at: Rows) -> NDArray[Any]:
        """Returns the values of a field of numbers, from the index.

        Raises:
            SampleError: If a sample lacks the field.
        """
        self._check_there(column, rows, at)
        return column.pick(self._index, "values", at)

    def decoded(
        self,
        column: Column,
        rows: Rows,
        at: Rows,
        data: Sequence[bytes],
        max_unzipped_bytes: int,
    ) -> list[Any]:
        """Decodes files that `read` returned; gz files up to `max_unzipped_bytes`.

        Raises:
            SampleError: If a file does not fit the field.
        """
        values = []
        for place, number in enumerate(column.choice(self._index, at).tolist()):
            extension = column.extensions[number]
            try:
                values.append(decode(extension, column.field, data[place], max_unzipped_bytes))
            except Exception as error:  # also MemoryError and RecursionError, due to the sample
                problem = str(error) or type(error).__name__
                raise self._error(rows, at, place, f".{extension}: {problem}") from error
        return values

    def _check_there(self, column: Column, rows: Rows, at: Rows) -> None:
        """Raises if a sample lacks the field. Only datasets that keep incomplete samples have such.

        Raises:
            SampleError: For the first of them.
        """
        if not self._incomplete or not column.extensions:
            return
        bad = np.flatnonzero(column.pick(self._index, "states", at) != STATE_THERE)
        if len(bad):
            place = int(bad[0])
            raise self._error(rows, at, place, lacks(self._index, column, int(at[place])))

    def _error(self, rows: Rows, at: Rows, place: int, cause: str) -> SampleError:
        name = row_name(self._index, int(at[place]))
        return SampleError(self._path, int(rows[place]), name, cause)
