"""Where rows of a table come from, as messages say it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Place:
    """Rows of one file.

    Attributes:
        file: its path, or what a table in memory is called.
        first_row: number in the file of the first row, from 0.
        row_group: that they lie in, None where there are none.
        numbers: int64, of all rows, where they do not follow one another: others were left out.
    """

    file: str
    first_row: int
    row_group: int | None = None
    numbers: NDArray[np.int64] | None = None

    def column(self, name: str) -> str:
        """A column, as a message begins."""
        return f"{self.file}: column {name!r}"

    def row(self, place: int) -> int:
        """The number in the file of one of the rows."""
        return self.first_row + place if self.numbers is None else int(self.numbers[place])

    def rows(self, count: int) -> str:
        """The rows of which these are the first `count`."""
        group = "" if self.row_group is None else f" (row group {self.row_group})"
        return f"rows {self.row(0)} to {self.row(count - 1)}{group}"

    def after(self, rows: int) -> Place:
        """The rows from one of them on; `rows` may be their number."""
        if not rows:
            return self
        numbers = None if self.numbers is None else self.numbers[rows:]
        first = self.first_row + rows
        if numbers is not None and len(numbers):
            first = int(numbers[0])
        return Place(self.file, first, self.row_group, numbers)
