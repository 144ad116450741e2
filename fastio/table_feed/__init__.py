"""Batches of tables as they are: row groups are decoded and their rows shuffled by windows.

    row groups -> cut (which rank, which window) -> run: threads decode row groups
      -> records (rows one after the other) -> chunks of the stream -> batches

`cut` is arithmetic, `records` the layout of a row, `blocks` the memory, `run` the threads, `ragged`
what has no fixed width, `feed` what a loader sees.
"""

from __future__ import annotations

from fastio.table_feed.feed import TableFeed, TableSettings, table_memory

__all__ = ["TableFeed", "TableSettings", "table_memory"]
