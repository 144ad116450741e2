"""Batches of table files in place: row groups are decoded, and rows are shuffled by windows.

    row groups -> cut (which rank, which window) -> run: threads decode row groups
      -> records (rows one after another) -> chunks of the stream -> batches

`cut` computes the order, `records` defines the layout of a row, `blocks` manages memory, `run` has
the threads, `ragged` handles variable-width fields, and `feed` is the interface for the loader.
"""

from __future__ import annotations

from fastio.feed.row_groups.feed import TableFeed, table_memory

__all__ = ["TableFeed", "table_memory"]
