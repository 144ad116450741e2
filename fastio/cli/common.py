"""What commands print: messages, JSON, tables, and the format of sizes and counts."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from fastio.errors import SourceNotFound
from fastio.shown import finite, shown, shown_values
from fastio.store.urls import is_remote, local_path

if TYPE_CHECKING:
    from rich.table import Table

_PATTERN = set("*?[{")
_PIPED_WIDTH = 100  # characters of a line of a table where the output is no terminal


def check_there(data: str | None) -> None:
    """Raises an error if a path does not exist, before imports of torch and others take seconds.

    Args:
        data: Path, pattern or URL that a command was given, or None.

    Raises:
        SourceNotFound: There is no such file or folder, and it is neither a pattern nor a URL.
    """
    if data is None or is_remote(data) or _PATTERN & set(data) or os.path.exists(local_path(data)):
        return
    raise SourceNotFound(f"{data} does not exist")


def complain(message: str) -> None:
    """Prints one line on stderr."""
    print(shown(f"fastio: {' '.join(message.splitlines())}"), file=sys.stderr)


def say(*lines: str) -> None:
    """Prints lines on stdout; control characters in names are escaped."""
    print("\n".join(map(shown, lines)))


def json_text(values: Any, indent: int | None = None) -> str:
    """Returns values as JSON, in which null stands for numbers that are not finite."""
    return json.dumps(finite(shown_values(values)), indent=indent, allow_nan=False)


def say_json(values: Any) -> None:
    """Prints a line of JSON on stdout."""
    print(json_text(values))


def line(key: str, value: str) -> str:
    """Returns a line with the name and the value of a property."""
    return f"{key:<12} {value}".rstrip()


def new_table(*headings: str) -> Table:
    """Returns a table with narrow gaps; the columns with these headings wrap if it is too wide."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def cell(text: str) -> str:
    """Returns the text of a table cell without markup and control characters."""
    from rich.markup import escape

    return escape(shown(text))


def print_table(table: Table) -> None:
    """Prints a table as wide as the terminal, or wrapped to a readable width without a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    # rich assumes 80 columns if the output is not a terminal, and would wrap most tables.
    piped = Console(width=_PIPED_WIDTH, highlight=False)
    (console if console.is_terminal else piped).print(table)
