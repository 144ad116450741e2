"""Lance datasets on this machine as tables, read by the pylance package (the extra `lance`).

Its fragments are divided into groups of consecutive rows, which are read separately.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fastio.errors import PackageMissing, SchemaError, ShardCorrupt, SourceNotFound
from fastio.sources.table.objects import LocalFile, TableFile, as_file
from fastio.sources.table.reading import AtHand, Grouped

_SUFFIX = ".lance"
_VERSIONS = "_versions"
_GROUP_BYTES = 8 << 20  # wanted in a group of rows
_LEAST_ROWS, _MOST_ROWS = 16, 65536
_LOOKED_AT = 16  # rows of which the size is taken


@dataclass
class LanceFolder(LocalFile):
    """The folder of a Lance dataset."""

    def size(self) -> int:
        """Returns the size of all of its files in bytes."""
        walk = os.walk(self.name)
        return sum(
            os.path.getsize(os.path.join(at, name)) for at, _, names in walk for name in names
        )

    def stamp(self) -> str:
        """Returns the folder's name, and the names and times of its versions."""
        folder = os.path.join(self.name, _VERSIONS)
        try:
            found = sorted((each.name, each.stat().st_mtime_ns) for each in os.scandir(folder))
        except OSError as error:
            raise SourceNotFound(f"{self.name} cannot be read: {error}") from error
        return "\0".join([os.path.basename(self.name), *(f"{name} {at}" for name, at in found)])

    def check(self) -> None:
        """Does nothing: what a version has does not change."""


def is_lance(path: str) -> bool:
    """Returns whether a path is the folder of a Lance dataset."""
    name = path.rstrip("/").lower()
    return name.endswith(_SUFFIX) and os.path.isdir(os.path.join(path, _VERSIONS))


class LanceTable(Grouped):
    """A Lance dataset, as it was when it was opened; see `Grouped`. Safe to use from threads.

    Args:
        file: Its folder.
        version: The version to read. If None, the newest.

    Raises:
        SchemaError: pylance is not installed, or the dataset is behind a URL.
        ShardCorrupt: The dataset cannot be read.
    """

    has_groups = False

    def __init__(self, file: TableFile | str, version: int | None = None) -> None:
        self.file = as_file(file)
        self.name = self.file.name
        if self.file.remote:
            raise SchemaError(
                f"{self.name}: Lance datasets behind URLs cannot be read: copy it to this machine"
            )
        try:
            import lance  # optional, and large
        except ImportError as error:
            raise PackageMissing("pylance", f"read {self.name}", "fastio[lance]", error) from error
        with _named(self.name):
            self._dataset: Any = lance.dataset(self.name, version=version)
            self._fragments = list(self._dataset.get_fragments())
            counts = [fragment.count_rows() for fragment in self._fragments]
            self.schema = self._dataset.schema
            first = self._dataset.scanner(limit=_LOOKED_AT).to_table()
        self.rows = sum(counts)
        row_bytes = max(1, first.nbytes // max(1, first.num_rows))
        self._row_bytes = {
            name: first.column(name).nbytes // max(1, first.num_rows) for name in first.column_names
        }
        step = min(_MOST_ROWS, max(_LEAST_ROWS, _GROUP_BYTES // row_bytes))
        self._groups = [
            (fragment, begin, min(step, count - begin))
            for fragment, count in enumerate(counts)
            for begin in range(0, count, step)
        ]

    def __reduce__(self) -> Any:
        return LanceTable, (self.file, int(self._dataset.version))

    def groups(self, varying: Sequence[str]) -> list[tuple[int, int]]:
        """See `Grouped`. The sizes are estimated from the first rows."""
        nbytes = sum(self._row_bytes[name] for name in varying)
        return [(rows, rows * nbytes) for _, _, rows in self._groups]

    def read(
        self, number: int, columns: Sequence[str], rows: int | None, threads: bool, at_hand: AtHand
    ) -> Iterator[pa.RecordBatch]:
        """See `Grouped`."""
        fragment, begin, count = self._groups[number]
        names = list(columns)
        with _named(self.name):
            batches = self._dataset.scanner(
                columns=names or self.schema.names[:1],
                fragments=[self._fragments[fragment]],
                offset=begin,
                limit=count,
                batch_size=rows or count,
                scan_in_order=True,
            ).to_batches()
        while True:
            with _named(self.name):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch.select(names)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Translates errors of pylance, which are of many types, to ShardCorrupt."""
    try:
        yield
    except Exception as error:
        cause = (" ".join(str(error).split()) or type(error).__name__)[:500]
        raise ShardCorrupt(
            f"{name} cannot be read as a Lance dataset: {cause}. Copy or write the dataset again"
        ) from error
