"""Which errors are errors of one sample, which `on_error` is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastio.errors import (
    DatasetClosed,
    LoaderClosed,
    ManifestInvalid,
    SampleError,
    ShardCorrupt,
    SourceChanged,
    SourceNotFound,
    StoreError,
)

if TYPE_CHECKING:
    from fastio.packed.rows import Rows

# Errors that end a run, even if they occur while a sample is decoded: something is wrong with a
# whole dataset, shard, tar or store, whose thousands of rows are not bad samples to be left out.
NOT_OF_SAMPLES = (
    DatasetClosed,
    LoaderClosed,
    ManifestInvalid,
    ShardCorrupt,
    SourceChanged,
    SourceNotFound,
    StoreError,
)


@contextmanager
def of_sample(rows: Rows, row: int, kind: type[SampleError] = SampleError) -> Iterator[None]:
    """Raises any error within as the error of one sample, which `on_error` is about.

    What decoders, parsers and allocations raise is not known beforehand: MemoryError and
    RecursionError are as much a sample's own as ValueError. KeyboardInterrupt, SystemExit and
    `NOT_OF_SAMPLES` pass.

    Raises:
        SampleError: Of this kind, with the original error as its cause.
    """
    try:
        yield
    except (*NOT_OF_SAMPLES, kind):
        raise
    except SampleError as error:
        raise kind(rows.path, row, rows.sample_name(row), error.cause) from error
    except Exception as error:
        raise kind(rows.path, row, rows.sample_name(row), error) from error
