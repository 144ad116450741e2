"""What is wrong with tars. They have no checksums but those of their headers.

So what can be told is whether the headers, and with them the places of all files, are sound;
whether nothing is cut off; whether every sample has the fields of the others; and whether images
can be decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from fastio.dataset import BadImage, ImagesCheck, ShardCheck, check_file
from fastio.dataset.check import in_order
from fastio.errors import FastioError, ShardCorrupt, SourceNotFound
from fastio.formats.tars.fields import choose_columns, complete_rows, field_name, lacks
from fastio.formats.tars.headers import Window, check_end
from fastio.formats.tars.index import TarIndex
from fastio.formats.tars.reader import TarReader
from fastio.formats.tars.samples import TarSamples, samples_of
from fastio.memory import MAX_PIXELS
from fastio.schema import Image

_SAMPLES_AT_ONCE = 64


@dataclass(frozen=True)
class LackedField:
    """A field that some samples lack.

    Attributes:
        field: its name.
        samples: how many lack it.
        tar, key: the first of them, and where it is.
        problem: what is wrong with that one.
    """

    field: str
    samples: int
    tar: str
    key: str
    problem: str


def check_tars(
    reader: TarReader, names: Sequence[str], window_bytes: int, workers: int
) -> Iterator[tuple[ShardCheck, TarSamples | None]]:
    """Pass over the headers of tars, to their ends.

    Args:
        reader: reads them.
        names: the tars, as the reader knows them.
        window_bytes: read at a time, as for `build_index`.
        workers: tars under way at a time.

    Returns:
        What was found, tar after tar, and the samples of those that are sound.
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
        # Messages begin with the name, which stands beside them here.
        problem = str(error).removeprefix(name).removeprefix(" is ").removeprefix(": ").strip()
        return ShardCheck(name, nbytes, problem), None
    except (FastioError, OSError) as error:
        return ShardCheck(name, nbytes, str(error)), None
    return ShardCheck(name, nbytes, None), samples


def lacked_fields(index: TarIndex) -> list[LackedField]:
    """The fields that not every sample has.

    Raises:
        SchemaError: there are several fields of one name.
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
    """Decode every image.

    Args:
        reader: reads the tars.
        index: of them.
        workers: threads.
        max_pixels: an image with more is a bad one.

    Returns:
        What was found, some rows at a time, in order.

    Raises:
        SourceNotFound, OSError: a tar cannot be read any more.
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
    """Those of some rows' images of one extension that are damaged, and what is wrong."""
    offsets, lengths = index.offsets(extension), index.lengths(extension)
    there = [row for row in rows if offsets[row] >= 0]
    files = reader.read_ranges(name, [(int(offsets[row]), int(lengths[row])) for row in there])
    for row, data in zip(there, files, strict=True):
        try:
            check_file(bytes(data), max_pixels)
        except ValueError as error:
            yield row, f"sample {index.key(row)!r}: {error}"
