"""Tables as rows of fields: Parquet, Arrow, CSV and JSONL files, and Arrow data in memory.

    files -> readers -> tables (one after the other) -> columns (Arrow to NumPy) -> fields

`objects` has the files, here or in a store, in one form: readers get `Data` of them, which is a
mapping (`mapped`) or fetched ranges (`spans`). `partitions` has the columns in names of folders.
`leaves` has the table of what type becomes what field,
`options` what can be asked for, `values` how arrays become NumPy's, `words` the codes of
dictionary-encoded strings, `filters` which rows are wanted. `direct` reads row groups where they
lie, in any order and by many threads, by way of `sources` and `row_groups`; `indexed` single rows.
`about` and `check` are for `fastio info` and `fastio verify`.
"""

from __future__ import annotations

from fastio.sources.table.about import ColumnAbout, TablesAbout, describe_tables
from fastio.sources.table.check import check_tables
from fastio.sources.table.columns import Column, Conversion, Converted, Part
from fastio.sources.table.direct import RowGroup, Rows, TableDataset
from fastio.sources.table.files import find_tables, table_kind
from fastio.sources.table.filters import Filter
from fastio.sources.table.indexed import TableSamples
from fastio.sources.table.objects import LocalFile, StoreFile, TableFile, stamp
from fastio.sources.table.opening import Opened, joined, open_all, open_files
from fastio.sources.table.options import KEPT_SUFFIX, TableOptions, expand_range
from fastio.sources.table.readers import MemoryTable, StreamTable, Table
from fastio.sources.table.tables import Piece, Tables
from fastio.sources.table.values import Ragged

__all__ = [
    "KEPT_SUFFIX",
    "Column",
    "ColumnAbout",
    "Conversion",
    "Converted",
    "Filter",
    "LocalFile",
    "MemoryTable",
    "Opened",
    "Part",
    "Piece",
    "Ragged",
    "RowGroup",
    "Rows",
    "StoreFile",
    "StreamTable",
    "Table",
    "TableDataset",
    "TableFile",
    "TableOptions",
    "TableSamples",
    "Tables",
    "TablesAbout",
    "check_tables",
    "describe_tables",
    "expand_range",
    "find_tables",
    "joined",
    "open_all",
    "open_files",
    "stamp",
    "table_kind",
]
