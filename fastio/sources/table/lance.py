"""Lance datasets as tables, here or in s3, gs and az, read by pylance (the extra `lance`).

Its fragments are divided into groups of consecutive rows, which are read separately.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from fastio.errors import PackageMissing, ShardCorrupt, SourceNotFound, StoreError
from fastio.runtime.lifecycle import Owner
from fastio.sources.table.objects import LocalFile, StoreFile, TableFile, as_file
from fastio.sources.table.reading import AtHand, Grouped
from fastio.store import Stamp, Store

_SUFFIX = ".lance"
_VERSIONS = "_versions"
_GROUP_BYTES = 8 << 20  # wanted in a group of rows
_LEAST_ROWS, _MOST_ROWS = 16, 65536
_LOOKED_AT = 16  # rows of which the size is taken


@cache
def _first_user() -> Owner:
    """Returns the process that was the first to open a dataset, of this one and its parents.

    pylance's threads do not survive a fork: a read in a child of that process waits for ever.
    """
    return Owner()


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


class LanceUrl(StoreFile):
    """A Lance dataset in a store. It is listed once, when its size or version is first asked for.

    Args:
        store: The store of its bucket.
        key: The name of its folder in the store.
    """

    def __init__(self, store: Store, key: str) -> None:
        super().__init__(store, key.rstrip("/"), {})
        self._objects: list[tuple[str, Stamp]] | None = None

    def size(self) -> int:
        """Returns the size of all of its objects in bytes."""
        return sum(stamp.size for _, stamp in self._listed())

    def stamp(self) -> str:
        """Returns the name of its folder, and the names of its versions."""
        versions = sorted(name for name, _ in self._listed() if f"/{_VERSIONS}/" in name)
        return "\0".join(versions)

    def _listed(self) -> list[tuple[str, Stamp]]:
        if self._objects is None:
            self.store.options_of_rust()  # an error for a store that pylance does not read
            self._objects = self.store.list(f"{self.key}/")
        if not self._objects:
            raise SourceNotFound(f"{self.name} does not exist, or is empty")
        return self._objects


def is_lance(path: str) -> bool:
    """Returns whether a path is the folder of a Lance dataset."""
    name = path.rstrip("/").lower()
    return name.endswith(_SUFFIX) and os.path.isdir(os.path.join(path, _VERSIONS))


class LanceTable(Grouped):
    """A Lance dataset, as it was when it was opened; see `Grouped`. Safe to use from threads.

    Args:
        file: Its folder, or its objects in a store.
        version: The version to read. If None, the newest.

    Raises:
        PackageMissing: pylance is not installed.
        StoreError: pylance does not read the URL, or takes none of the options; or this process is
            a forked child.
        ShardCorrupt: The dataset cannot be read.
    """

    has_groups = False

    def __init__(self, file: TableFile | str, version: int | None = None) -> None:
        self.file = as_file(file)
        self.name = self.file.name
        self._check_process()
        try:
            import lance  # optional, and large
        except ImportError as error:
            raise PackageMissing("pylance", f"read {self.name}", "fastio[lance]", error) from error
        options, where = None, self.name
        if isinstance(self.file, LanceUrl):
            options, where = self.file.store.options_of_rust(), self.file.url
        with _named(self.name):
            self._dataset: Any = lance.dataset(where, version=version, storage_options=options)
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
        self._check_process()
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

    def _check_process(self) -> None:
        if not _first_user().is_here:
            raise StoreError(
                f"{self.name} cannot be read: pylance does not work in a forked process. Start "
                "processes by spawn or forkserver"
            )


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
