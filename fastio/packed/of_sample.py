"""Which errors are those of a single sample: the one place where that is decided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from fastio.errors import (
    LoaderClosed,
    ManifestInvalid,
    SampleError,
    ShardCorrupt,
    SourceChanged,
    SourceNotFound,
    StoreError,
)

# What ends a run, also where it comes while a sample is decoded: what is wrong with a whole shard,
# tar or store. Its thousands of rows are no bad samples that somebody wanted left out.
NOT_OF_SAMPLES = (
    LoaderClosed,
    ManifestInvalid,
    ShardCorrupt,
    SourceChanged,
    SourceNotFound,
    StoreError,
)


class NamedRows(Protocol):
    """Rows that messages can name.

    Attributes:
        path: of the dataset, or what it is called.
    """

    @property
    def path(self) -> str:
        """What messages call it."""
        ...

    def sample_name(self, row: int) -> str:
        """How messages name a row."""
        ...


@contextmanager
def of_sample(rows: NamedRows, row: int, kind: type[SampleError] = SampleError) -> Iterator[None]:
    """Turns whatever is raised within into the error of one sample, which `on_error` is about.

    What decoders, parsers and allocations raise is not known beforehand: MemoryError and
    RecursionError are as much a sample's own as ValueError. KeyboardInterrupt, SystemExit and
    `NOT_OF_SAMPLES` pass.

    Args:
        rows: the dataset.
        row: number of the sample.
        kind: the error that is raised.

    Raises:
        SampleError: of that kind, with what was raised as its cause.
    """
    try:
        yield
    except (*NOT_OF_SAMPLES, kind):
        raise
    except SampleError as error:
        raise kind(rows.path, row, rows.sample_name(row), error.cause) from error
    except Exception as error:
        raise kind(rows.path, row, rows.sample_name(row), error) from error
