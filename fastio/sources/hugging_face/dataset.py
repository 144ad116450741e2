"""A dataset of the datasets package that has images, by row number: read where it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.packed.layout import WHOLE_FILE, ImageReads, encoded_reads, is_jpeg_name
from fastio.runtime.properties import cached_property
from fastio.schema import PICTURES, Images, Schema
from fastio.sources.encoded_rows import EncodedRows
from fastio.sources.hugging_face.images import NOWHERE, ImageColumn
from fastio.sources.hugging_face.table import HuggingFaceTable, open_groups, wants_rows
from fastio.sources.table.columns import Conversion
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.features import sampling_rates, with_classes
from fastio.sources.table.options import TableOptions
from fastio.sources.table.reading import Origin
from fastio.sources.table.values import Ragged, listed
from fastio.store import absolute_path


class HuggingFaceDataset(EncodedRows):
    """The samples of a dataset of the datasets package, as dicts. Safe to use from several threads.

    Args:
        source: a directory that `save_to_disk` wrote, a `datasets.Dataset`, or one of them opened
            as a table with these options.
        options: which columns become which fields, as of tables.

    Attributes:
        path: the directory, or what messages call the dataset.
        schema: the fields.

    Raises:
        SourceNotFound: there are several splits, or no rows; or a file is missing.
        ShardCorrupt: a file is damaged.
        SchemaError: a column that is wanted cannot be a field.
    """

    recodes = True
    row_grouping = "possible"

    def __init__(self, source: Any, options: TableOptions | None = None) -> None:
        source = absolute_path(source)
        self._given = source, options
        opened = isinstance(source, HuggingFaceTable)
        self._table: HuggingFaceTable = source if opened else HuggingFaceTable(source, options)
        self.path = self._table.name
        self._options = options or TableOptions()
        table = self._table
        self._conversion = Conversion(table.schema, self._options, self.path, table.special)
        fields = Schema(self._conversion.schema().fields)
        self.schema: Schema = with_classes(fields, table.classes)
        rows, named = table.stored.rows, table.named_files
        self._images = {
            name: ImageColumn(rows, table.images[name], named, lists=isinstance(kind, Images))
            for name, kind in self.schema.fields.items()
            if isinstance(kind, PICTURES)
        }

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the data and the fields that are made of them."""
        about = f"{self._table.stamp} {self.schema.to_json()}"
        return xxhash.xxh3_64_hexdigest(about.encode("utf-8", "surrogateescape"))

    @property
    def sources(self) -> tuple[str, ...]:
        """The Arrow files of its rows, and of their order; none if they are in memory."""
        return self._table.stored.files

    def __len__(self) -> int:
        return len(self._table.stored.rows)

    def row_groups(
        self, fields: Sequence[str] | None, memory: int, threads: int, keep_nulls: bool = False
    ) -> TableDataset | None:
        """Opens the same rows as row groups; None if there are images or nested lists."""
        if wants_rows(self._table, self._options):
            return None
        options = replace(self._options, keep_nulls=keep_nulls)
        return open_groups(self._table, options, fields=fields, memory=memory, threads=threads)

    def gather_all(
        self, fields: Sequence[str], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[Any] | list[Any]]:
        """Returns several fields of many rows; see `gather`."""
        rows = np.asarray(rows, np.int64)
        self._not_images(fields)
        batch = self._table.take(self._conversion.reads_of(fields), rows)
        origin = Origin(self.path, int(rows[0]) if len(rows) else 0, None, rows)
        found: Mapping[str, Any] = self._conversion.convert(batch, origin, only=fields).fields
        return {
            name: listed(found[name], self.schema.fields[name])
            if isinstance(found[name], Ragged)
            else found[name]
            for name in fields
        }

    def _counts(self, field: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `EncodedRows`."""
        return self._images[field].counts(rows)

    def _reads(self, field: str, rows: NDArray[np.int64], index: NDArray[np.int64]) -> ImageReads:
        """See `EncodedRows`.

        Raises:
            IndexError: a row number is out of range.
            DatasetClosed: after `close`.
        """
        column = self._images[field]
        extents = column.extents(rows, index)
        # The native decoder finds out what is no JPEG when it reads it; if none of those that were
        # looked at is one, it reads nothing. Rows without an image are Pillow's, who names them.
        is_jpeg = (extents.file != NOWHERE) & column.has_jpegs
        file, length, files = np.maximum(extents.file, 0), extents.length, list(column.files)
        for place, path in extents.paths.items():
            file[place], length[place] = len(files), WHOLE_FILE
            is_jpeg[place] = is_jpeg_name(path)
            files.append(path)
        # A table of all paths that were ever read would grow and grow: these have new numbers.
        known = bool(files) and not extents.paths
        path_of = (files or [""]).__getitem__
        return encoded_reads(path_of, file, extents.offset, length, is_jpeg, same_files=known)

    def row_key(self, row: int) -> str:
        """Returns the stamp of the data, and the row."""
        return f"{self._table.stamp} {row}"

    def _file(self, field: str, row: int, index: int) -> bytes:
        """See `EncodedRows`.

        Raises:
            ValueError: there is no image.
            DatasetClosed: after `close`.
            OSError: its file cannot be read.
            IndexError: the row number is out of range.
        """
        return self._images[field].read(row, index)

    def sampling_rate(self, field: str) -> int | None:
        """See `Rows`."""
        return sampling_rates(self._table.features).get(field)

    def close(self) -> None:
        """Releases images that were copied out of memory; no image can be read any more."""
        for column in self._images.values():
            column.close()

    def __reduce__(self) -> Any:
        return HuggingFaceDataset, self._given
