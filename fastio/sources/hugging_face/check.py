"""Whether directories of the datasets package can be read: what `fastio verify` looks at."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

from fastio.errors import FastioError
from fastio.packed import BadImage, ImagesCheck, ShardCheck
from fastio.runtime.ahead import in_order
from fastio.sources.hugging_face.dataset import HuggingFaceDataset
from fastio.sources.hugging_face.plain import bare
from fastio.sources.hugging_face.sources import record_batches
from fastio.sources.table.check import check_values

_ROWS_AT_ONCE = 64


def check_arrow_streams(paths: Sequence[str], workers: int) -> Iterator[ShardCheck]:
    """Look at every value of the files of a dataset: offsets, and strings that are no UTF-8.

    Args:
        paths: the files.
        workers: files under way at a time.

    Returns:
        What was found, file after file; a problem names record batch and column.
    """
    return in_order(_check_stream, paths, workers)


def check_hugging_face_images(dataset: HuggingFaceDataset, workers: int) -> Iterator[ImagesCheck]:
    """Decode every image of a dataset.

    Returns:
        What was found, some rows at a time, in order.
    """
    spans = (
        range(begin, min(begin + _ROWS_AT_ONCE, len(dataset)))
        for begin in range(0, len(dataset), _ROWS_AT_ONCE)
    )
    yield from in_order(partial(_check_rows, dataset), spans, workers)


def _check_stream(path: str) -> ShardCheck:
    nbytes = 0
    problems: list[str] = []
    try:
        nbytes = os.path.getsize(path)
        for stored in record_batches(path)[1]:
            number, batch = stored.number, stored.batch
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                where = f"record batch {number}, column {name!r}"
                problems += check_values(bare(column), where)
    except (FastioError, OSError) as error:
        problems.append(" ".join(str(error).split()).removeprefix(path).lstrip(":, "))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ShardCheck(path, nbytes, problems[0] + more if problems else None)


def _check_rows(dataset: HuggingFaceDataset, rows: range) -> ImagesCheck:
    bad = []
    for row in rows:
        for field in dataset.schema.image_fields:
            try:
                dataset.image(field, row)
            except FastioError as error:
                name = os.path.basename(dataset.path.rstrip("/"))
                problem = str(error.__cause__ or error)
                bad.append(BadImage(row, name, row, field, problem))
    return ImagesCheck(len(rows), bad)
