"""Checks of tars. Apart from their headers, tars have no checksums.

The check can tell whether the headers, and with them the positions of all files, are valid; whether
the tar is truncated; whether every sample has the same fields; and whether images can be decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from fastio.errors import FastioError, ShardCorrupt, SourceNotFound
from fastio.packed import BadImage, ImagesCheck, ShardCheck, check_file
from fastio.runtime.ahead import in_order
from fastio.runtime.memory import MAX_PIXELS
from fastio.schema import Image
from fastio.sources.tar.fields import choose_columns, complete_rows, field_name, lacks
from fastio.sources.tar.headers import Window, check_end
from fastio.sources.tar.index import TarIndex
from fastio.sources.tar.reader import TarReader
from fastio.sources.tar.samples import TarSamples, samples_of

_SAMPLES_AT_ONCE = 64


@dataclass(frozen=True)
class LackedField:
    """A field that some samples lack.

    Attributes:
        field: The name of the field.
        samples: The number of samples that lack it.
        tar, key: The tar and key of the first of them.
        problem: What is wrong with that sample.
    """

    field: str
    samples: int
    tar: str
    key: str
    problem: str


def check_tars(
    reader: TarReader, names: Sequence[str], window_bytes: int, workers: int
) -> Iterator[tuple[ShardCheck, TarSamples | None]]:
    """Reads the headers of tars to their ends.

    Args:
        reader: Reads the tars.
        names: The names of the tars, as the reader knows them.
        window_bytes: The number of bytes read at a time, as for `build_index`.
        workers: The number of tars that are read at the same time.

    Returns:
        For each tar in order the result, and its samples if it is valid, else None.
    """
    return in_order(partial(_check_tar, reader, window_bytes), names, workers)


def _check_tar(
    reader: TarReader, window_bytes: int, name: str
) -> tuple[ShardCheck, TarSamples | None]:
    nbytes = 0
    try:
        window = Window(reader, name, window_bytes)
        nbytes = window.size
        samples = samples_of(window)
        check_end(window)
    except SourceNotFound:
        return ShardCheck(name, nbytes, "missing"), None
    except ShardCorrupt as error:
        # The message begins with the name, which is shown beside it anyway.
        problem = str(error).removeprefix(name).removeprefix(" is ").removeprefix(": ").strip()
        return ShardCheck(name, nbytes, problem), None
    except (FastioError, OSError) as error:
        return ShardCheck(name, nbytes, str(error)), None
    return ShardCheck(name, nbytes, None), samples


def lacked_fields(index: TarIndex) -> list[LackedField]:
    """Returns the fields that some samples lack.

    Raises:
        SchemaError: If there are several fields of one name.
    """
    found = []
    for column in choose_columns(index, None):
        _, first = complete_rows(index, [column])
        if first is not None:
            _, row, count = first
            (tar,) = index.tar_numbers(np.array([row])).tolist()
            name, key = index.tars[tar].name, index.key(row)
            found.append(LackedField(column.name, count, name, key, lacks(index, column, row)))
    return found


def check_tar_images(
    reader: TarReader, index: TarIndex, workers: int, max_pixels: int = MAX_PIXELS
) -> Iterator[ImagesCheck]:
    """Decodes every image.

    Args:
        reader: Reads the tars.
        index: The index of the tars.
        workers: The number of threads.
        max_pixels: An image with more pixels is reported as bad.

    Returns:
        The results for consecutive rows, in order.

    Raises:
        SourceNotFound, OSError: If a tar can no longer be read.
    """
    parts = [
        (tar, range(begin, min(begin + _SAMPLES_AT_ONCE, end)))
        for tar, (first, end) in enumerate(pairwise(index.first_row.tolist()))
        for begin in range(first, end, _SAMPLES_AT_ONCE)
    ]
    return in_order(partial(_check_rows, reader, index, max_pixels), parts, workers)


def _check_rows(
    reader: TarReader, index: TarIndex, max_pixels: int, part: tuple[int, range]
) -> ImagesCheck:
    """Decodes the images of some rows of one tar."""
    tar, rows = part
    name, first = index.tars[tar].name, int(index.first_row[tar])
    bad = []
    for extension, about in index.extensions.items():
        if not isinstance(about.field, Image):
            continue
        for row, problem in _problems(reader, index, name, extension, rows, max_pixels):
            bad.append(BadImage(row, name, row - first, field_name(extension), problem))
    return ImagesCheck(len(rows), sorted(bad, key=lambda image: image.row))


def _problems(
    reader: TarReader,
    index: TarIndex,
    name: str,
    extension: str,
    rows: range,
    max_pixels: int,
) -> Iterator[tuple[int, str]]:
    """Yields row and problem of each damaged image of one extension among some rows."""
    offsets, lengths = index.offsets(extension), index.lengths(extension)
    there = [row for row in rows if offsets[row] >= 0]
    files = reader.read_ranges(name, [(int(offsets[row]), int(lengths[row])) for row in there])
    for row, data in zip(there, files, strict=True):
        try:
            check_file(bytes(data), max_pixels)
        except ValueError as error:
            yield row, f"sample {index.key(row)!r}: {error}"
