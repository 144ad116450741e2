"""What exports to folders and to tars share: rows in order, and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

from fastio.pack.pipeline import OrderedPipeline
from fastio.pack.progress import progress_bar

R = TypeVar("R")

# The fields that hold a sample's class, the first of which counts.
CLASS_FIELDS = ("label", "class")
_LEAST_DIGITS = 6
_DEPTH_PER_WORKER = 16
_BUDGET_BYTES = 256 << 20


def digits_of(rows: int) -> int:
    """Returns the number of digits of row numbers in names, so that names sort as rows do."""
    return max(_LEAST_DIGITS, len(str(rows - 1)))


@contextmanager
def made_in_order(
    make: Callable[[int, Callable[[int], None]], R],
    size: Callable[[R], int],
    rows: Sequence[int],
    workers: int,
    units: str | None,
) -> Iterator[Iterator[R]]:
    """Applies a function to rows in threads, and gives the results in the order of the rows.

    Args:
        make: what to make of a row; see `OrderedPipeline`.
        size: how many bytes of memory that takes.
        rows: numbers of the rows.
        workers: threads.
        units: what a progress bar on stderr counts; None for no bar.
    """
    pipeline = OrderedPipeline(make, size, workers, workers * _DEPTH_PER_WORKER, _BUDGET_BYTES)

    def results(advance: Callable[[int], None]) -> Iterator[R]:
        submitted = (done for row in rows for done in pipeline.submit(row, 0))
        for done in chain(submitted, pipeline.drain()):
            yield done
            advance(1)

    try:
        with progress_bar("exporting", units, len(rows), units is not None) as advance:
            yield results(advance)
    finally:
        pipeline.close()
