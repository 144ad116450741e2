"""The origin of a table's rows, for messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Place:
    """The origin of some rows of one file.

    Attributes:
        file: The path, or the name of a table in memory.
        first_row: The number of the first row in the file, from 0.
        row_group: The number of the row group; None if the file has none.
        numbers: int64, the numbers of all rows if they are not consecutive because of a filter.
    """

    file: str
    first_row: int
    row_group: int | None = None
    numbers: NDArray[np.int64] | None = None

    def column(self, name: str) -> str:
        """Returns the file and a column, as messages begin."""
        return f"{self.file}: column {name!r}"

    def row(self, place: int) -> int:
        """Returns the number in the file of one of the rows."""
        return self.first_row + place if self.numbers is None else int(self.numbers[place])

    def rows(self, count: int) -> str:
        """Returns a description of the first `count` rows."""
        group = "" if self.row_group is None else f" (row group {self.row_group})"
        return f"rows {self.row(0)} to {self.row(count - 1)}{group}"

    def after(self, rows: int) -> Place:
        """Returns the origin of the rows from number `rows` on, which may be none."""
        if not rows:
            return self
        numbers = None if self.numbers is None else self.numbers[rows:]
        first = self.first_row + rows
        if numbers is not None and len(numbers):
            first = int(numbers[0])
        return Place(self.file, first, self.row_group, numbers)
