"""Samples on their way to an encoder, and the sources that they come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastio.errors import FastioError, PackError, SampleError
from fastio.packed.layout import WHOLE_FILE
from fastio.packed.rows import Rows
from fastio.recoded import RecodedImages
from fastio.runtime.files import read_file
from fastio.schema import Schema
from fastio.sources.named_files import NamedFiles

# What to do if a pack cannot be resumed. To overwrite would delete a dataset that is appended to.
AGAIN = "start again with overwrite, or discard an append with `fastio gc --unfinished`"


@dataclass(frozen=True)
class ImageFile:
    """An image that is still in a file; `named` checks a path that comes from data."""

    path: str
    named: NamedFiles | None = None

    def read(self) -> bytes:
        """Returns the bytes of the file. Raises OSError or, for a path with NUL, ValueError."""
        return read_file(self.path) if self.named is None else self.named.read(self.path)

    def stamp(self) -> tuple[str, int]:
        """Returns a text that changes when the file does, and its size. Raises OSError."""
        status = os.stat(self.path if self.named is None else self.named.find(self.path))
        return f"{status.st_size} {status.st_mtime_ns}", status.st_size


@dataclass(frozen=True)
class RowImage:
    """An image that is still in an open dataset.

    Attributes:
        dataset, field, row: The dataset, and the place of the image in it.
        recoded: The recoded images of the field, in a cache.
        max_pixels: An image with more pixels is bad. If None, the limit of the pack applies.
    """

    dataset: Rows
    field: str
    row: int
    recoded: RecodedImages | None = None
    max_pixels: int | None = None

    def read(self) -> bytes:
        """Returns the bytes of the image file. Raises ValueError or OSError."""
        try:
            return self.dataset.read(self.field, self.row)
        except SampleError as error:
            raise ValueError(str(error.cause)) from error

    def stamp(self) -> tuple[str, int]:
        """Returns a text that changes when the image does, and its size. Raises OSError."""
        reads = self.dataset.image_reads(self.field, np.array([self.row], np.int64))
        length = int(reads.length[0])
        if length == WHOLE_FILE:
            return ImageFile(reads.path(int(reads.file[0]))).stamp()
        return f"{int(reads.offset[0])} {length}", length


# Images that are not in memory yet.
UNREAD = (ImageFile, RowImage)


class Item(NamedTuple):
    """One sample of a source, before it is checked and encoded.

    Attributes:
        position: The number of the sample in the source, from 0.
        name: What messages call it: a path, or "sample 17".
        values: One value for each field of the schema, in order; none of a bad sample.
        key: A text that identifies the sample across runs, in a source of files; "" in others.
        error: Why the sample cannot be packed, in a message that names it; None if it was read.
    """

    position: int
    name: str
    values: Sequence[Any] = ()
    key: str = ""
    error: FastioError | None = None


class Row(NamedTuple):
    """A sample as a shard stores it.

    Attributes:
        name: The name of the sample.
        stamp: What identifies the sample across runs.
        cells: A cell for each field; none of a bad sample.
        nbytes: The bytes that it adds to the shard.
        error: Why the sample is bad; None if it is not.
    """

    name: str
    stamp: bytes
    cells: Sequence[Any] = ()
    nbytes: int = 0
    error: FastioError | None = None


@dataclass(frozen=True)
class SourceProcesses:
    """Worker processes that can read a source.

    Attributes:
        count: The number of processes.
        call: Calls functions with the source in the processes, and yields what they return, in
            order. There, the source reads its samples by itself. If an error ends the iteration,
            the processes have ended. The functions can be pickled.
        pack_all: Whether the processes pack all units. If False, each packs the same number of
            units, and the calling process packs the others.
    """

    count: int
    call: Callable[[Iterable[Callable[[Source], Any]]], Generator[Any, None, None]]
    pack_all: bool = False


@dataclass(frozen=True)
class Source:
    """Samples to pack, in order.

    Attributes:
        name: What the manifest says the dataset was made of; no absolute path.
        schema: The fields of the samples.
        total: The number of samples, or None if it is not known beforehand.
        has_keys: Whether the items have keys that identify them across runs.
        items: Yields the samples from a number on. Raises PackError if the source ends before.
        pick: Yields the samples of some numbers. Raises PackError if the source can be iterated
            over only once.
        reading: Entered while samples are read; its end frees what reads them.
        rows: Yields the samples from a number on, encoded by a function in the processes that read
            them. None if they are encoded in this process. The function can be pickled.
        named: Yields the samples from the first on without values that are objects of a store, and
            with the keys that `items` gives them. None if `items` reads no objects.
        processes: Worker processes that can read the source; None if there are none.
        limits: (max_pixels, number of rows) of each dataset in the source, if each image has the
            limit of its own dataset; empty if all images have the limit of the pack.
        recodes: Whether its images may be copied from the cache that was given.
    """

    name: str
    schema: Schema
    total: int | None
    has_keys: bool
    items: Callable[[int], Iterator[Item]]
    pick: Callable[[Sequence[int]], Iterator[Item]]
    reading: Callable[[], AbstractContextManager[None]] = nullcontext
    rows: Callable[[int, Callable[[Item], Row]], Iterator[Row]] | None = None
    named: Callable[[], Iterator[Item]] | None = None
    processes: SourceProcesses | None = None
    limits: Sequence[tuple[int, int]] = ()
    recodes: bool = False

    def sample(self, count: int) -> Iterator[Item]:
        """Yields up to `count` samples, such that the first of them are evenly spread, too."""
        return self.pick(spread(self.total or 0, count))


def source_of_rows(
    name: str,
    schema: Schema,
    total: int,
    read: Callable[[Sequence[int]], Iterable[Item]],
    *,
    has_keys: bool = True,
    named: Callable[[], Iterator[Item]] | None = None,
) -> Source:
    """Returns a source whose samples can be read by number.

    Args:
        name, schema, total, has_keys, named: See `Source`.
        read: Yields the samples of consecutive numbers, and reads few of them ahead.
    """

    def items(start: int) -> Iterator[Item]:
        if start > total:
            raise ended(name, total, start)
        yield from read(range(start, total))

    def pick(rows: Sequence[int]) -> Iterator[Item]:
        return (item for row in rows for item in read([row]))

    return Source(name, schema, total, has_keys, items, pick, named=named)


def ended(name: str, total: int, start: int) -> PackError:
    """Returns the error of a source with fewer samples than are packed already."""
    return PackError(
        f"cannot resume: {name} has {total} samples, but {start} were packed already; {AGAIN}"
    )


def unreadable(
    source: str, row: int, cause: Exception, name: str | None = None, key: str = ""
) -> Item:
    """Returns the bad sample that a source failed to give.

    Args:
        source, row: The name of the source, and the number of the sample.
        cause: The error that was raised.
        name, key: As for `Item`. If the name is None, "sample 17".
    """
    reason = cause.cause if isinstance(cause, SampleError) and name is not None else cause
    name = f"sample {row}" if name is None else name
    error = SampleError(source, row, name, reason)
    error.__cause__ = cause
    return Item(row, name, (), key, error)


def spread(total: int, count: int) -> list[int]:
    """Returns up to `count` numbers below `total`, such that every prefix is evenly spread.

    The order is by reversed bits: halves first, then quarters, eighths, and so on.
    """
    count = min(total, count)
    bits = max(1, (count - 1).bit_length())
    order = sorted(range(count), key=lambda number: f"{number:0{bits}b}"[::-1])
    return [number * total // count for number in order]
