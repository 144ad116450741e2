"""Where rows of a table come from, as messages say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Rows of one file.

    Attributes:
        file: its path, or what a table in memory is called.
        first_row: number in the file of the first row, from 0.
        row_group: that they lie in, None where there are none.
    """

    file: str
    first_row: int
    row_group: int | None = None

    def column(self, name: str) -> str:
        """A column, as a message begins."""
        return f"{self.file}: column {name!r}"

    def rows(self, count: int) -> str:
        """The rows of which these are the first `count`."""
        group = "" if self.row_group is None else f" (row group {self.row_group})"
        return f"rows {self.first_row} to {self.first_row + count - 1}{group}"
