"""The rows of a dataset that are recoded, and where their records lie, as known to this process."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastio.recoded.piece import DIRECTORY, Directory

Rows = NDArray[np.int64]


class PieceFile(NamedTuple):
    """Identifies the file of a piece, as it was when its directory was read."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class RecodedTable:
    """The directories of all pieces, 72 bytes per row, and the blocks to recode. Thread-safe.

    Args:
        rows: The number of rows of the dataset.
        block_rows: The number of rows in a block.

    Attributes:
        recoded: The number of rows that have a record.
        described: The number of rows, with and without a record, in blocks that have a directory.
    """

    def __init__(self, rows: int, block_rows: int) -> None:
        self.rows, self.block_rows = rows, block_rows
        self.recoded = self.described = 0
        self._directory = np.zeros(rows, DIRECTORY)  # pages are allocated as blocks are added
        self._pieces: dict[int, PieceFile] = {}
        self._wanted: deque[int] = deque()
        self._is_wanted = np.zeros(-(-rows // block_rows), np.bool_)
        self._used: set[int] = set()
        self._lock = threading.Lock()

    def span(self, block: int) -> tuple[int, int]:
        """Returns the rows [first, last) of a block."""
        return block * self.block_rows, min((block + 1) * self.block_rows, self.rows)

    def look(self, rows: Rows) -> Directory:
        """Returns the entries of rows, (n,), and adds blocks without a directory to the list."""
        blocks = np.unique(rows // self.block_rows).tolist()
        with self._lock:
            for block in blocks:
                if block in self._pieces:
                    self._used.add(block)
                else:
                    self._want(block)
            return self._directory[rows]

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

    def put(self, block: int, directory: Directory, file: PieceFile) -> None:
        """Adds the directory of a block."""
        first, last = self.span(block)
        with self._lock:
            self._forget(block)
            self._directory[first:last] = directory
            self._pieces[block] = file
            self._count(block, 1)

    def forget(self, block: int) -> None:
        """Removes the directory of a block whose piece was deleted or is out of date."""
        with self._lock:
            self._forget(block)

    def _forget(self, block: int) -> None:
        if block in self._pieces:
            self._count(block, -1)
            first, last = self.span(block)
            self._directory[first:last] = np.zeros((), DIRECTORY)
            del self._pieces[block]

    def _count(self, block: int, sign: int) -> None:
        first, last = self.span(block)
        self.recoded += sign * int(np.count_nonzero(self._directory["length"][first:last]))
        self.described += sign * (last - first)

    def known(self) -> dict[int, PieceFile]:
        """Returns the blocks that have a directory here, with the files of their pieces."""
        with self._lock:
            return dict(self._pieces)

    def piece(self, block: int) -> PieceFile | None:
        """Returns the file of a block's piece, as it was when its directory was read."""
        return self._pieces.get(block)

    def take_used(self) -> set[int]:
        """Returns the blocks that were read from since the last call."""
        with self._lock:
            used, self._used = self._used, set()
            return used
