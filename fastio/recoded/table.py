"""The rows of a dataset that are recoded, and where their records lie, as known to this process."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from fastio.cache import FileStamp
from fastio.recoded.piece import DIRECTORY, Directory

Rows = NDArray[np.int64]


class RecodedTable:
    """The directories of all pieces, 72 bytes per row, and the blocks to recode. Thread-safe.

    Each directory that is added gets a new number, its edition. The offsets in one edition are not
    valid for the file of another edition of the same block.

    Args:
        rows: The number of rows of the dataset.
        block_rows: The number of rows in a block.
        versions: Whether other versions of the dataset, with other rows in some blocks, may use the
            same pieces.
    """

    def __init__(self, rows: int, block_rows: int, versions: bool = False) -> None:
        self._versions = versions
        self._replaced: set[int] = set()
        self.rows, self.block_rows = rows, block_rows
        self._directory = np.zeros(rows, DIRECTORY)  # pages are allocated as blocks are added
        self._pieces: dict[int, FileStamp] = {}
        self._editions = np.full(-(-rows // block_rows), -1, np.int64)
        self._added = 0
        self._wanted: deque[int] = deque()
        self._is_wanted = np.zeros(-(-rows // block_rows), np.bool_)
        self._used: set[int] = set()
        self._lock = threading.Lock()

    def span(self, block: int) -> tuple[int, int]:
        """Returns the rows [first, last) of a block."""
        return block * self.block_rows, min((block + 1) * self.block_rows, self.rows)

    def look(self, rows: Rows) -> tuple[Directory, Rows]:
        """Returns the entries of rows, and adds blocks without a directory to the list.

        Returns:
            The entries, (n,), and the editions that they are from, int64 (n,); -1: there is none.
        """
        blocks = np.unique(rows // self.block_rows).tolist()
        with self._lock:
            for block in blocks:
                if block in self._pieces:
                    self._used.add(block)
                else:
                    self._want(block)
            return self._directory[rows], self._editions[rows // self.block_rows]

    @property
    def wanted(self) -> int:
        """The number of blocks in the list of those to recode."""
        return len(self._wanted)

    def want(self, block: int) -> None:
        """Adds a block to the end of the list of those to recode."""
        with self._lock:
            self._want(block)

    def _want(self, block: int) -> None:
        if not self._is_wanted[block]:
            self._is_wanted[block] = True
            self._wanted.append(block)

    def next_wanted(self) -> int | None:
        """Removes the first block from the list of those to recode and returns it, or None."""
        with self._lock:
            while self._wanted:
                block = self._wanted.popleft()
                self._is_wanted[block] = False
                if block not in self._pieces:
                    return block
            return None

    def put(self, block: int, directory: Directory, file: FileStamp) -> None:
        """Adds the directory of a block."""
        first, last = self.span(block)
        with self._lock:
            self._forget(block)
            self._directory[first:last] = directory
            self._pieces[block] = file
            # Never used again: a batch that was planned with an earlier edition must notice that
            # its offsets are those of another file.
            self._editions[block] = self._added * len(self._editions) + block
            self._added += 1

    def may_replace(self, block: int) -> bool:
        """Returns whether to delete a piece that was not made from the present originals.

        With several versions, True is returned once for each block. A later piece belongs to
        another version that is in use too: two loaders would delete each other's pieces for ever.
        """
        with self._lock:
            first = block not in self._replaced
            if self._versions:
                self._replaced.add(block)
            return first

    def forget(self, block: int) -> None:
        """Removes the directory of a block whose piece was deleted or is out of date."""
        with self._lock:
            self._forget(block)

    def _forget(self, block: int) -> None:
        if block in self._pieces:
            first, last = self.span(block)
            self._directory[first:last] = np.zeros((), DIRECTORY)
            del self._pieces[block]
            self._editions[block] = -1

    def known(self) -> dict[int, FileStamp]:
        """Returns the blocks that have a directory here, with the files of their pieces."""
        with self._lock:
            return dict(self._pieces)

    def piece(self, block: int) -> FileStamp | None:
        """Returns the file of a block's piece, as it was when its directory was read."""
        return self._pieces.get(block)  # one lookup in a dict, which needs no lock

    def block_of(self, edition: int) -> int:
        """Returns the block that an edition is, or was, the directory of."""
        return edition % len(self._editions)

    def file_of(self, edition: int) -> FileStamp | None:
        """Returns the file that an edition was read from; None if it is no longer current."""
        block = self.block_of(edition)
        with self._lock:
            return self._pieces[block] if self._editions[block] == edition else None

    def take_used(self) -> set[int]:
        """Returns the blocks that were read from since the last call."""
        with self._lock:
            used, self._used = self._used, set()
            return used
