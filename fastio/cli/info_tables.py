"""Formats lines and tables for `fastio info` and other commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastio.cli.common import readable_bytes
from fastio.shown import shown

if TYPE_CHECKING:
    from rich.table import Table

_PIPED_WIDTH = 100  # characters of a line of a table where the output is no terminal


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
    piped = Console(width=_PIPED_WIDTH, highlight=False)
    (console if console.is_terminal else piped).print(table)


def print_columns(columns: list[dict[str, Any]]) -> None:
    """Prints the columns of table files, one line per column."""
    table = new_table("column", "type")
    table.add_column("field", no_wrap=True)
    stored = any(column["compression"] for column in columns)
    for heading in ("compression", "encoding", "bytes", "unpacked", "nulls") if stored else ():
        words = heading in ("compression", "encoding")
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for column in columns:
        cells = [column["name"], column["type"], _field_words(column["field"])]
        if stored:
            cells += [", ".join(column["compression"]), _encoding(column["encodings"])]
            sizes = column["bytes"], column["uncompressed_bytes"]
            cells += ["" if size is None else readable_bytes(size) for size in sizes]
            cells.append("" if column["nulls"] is None else f"{column['nulls']:,}")
        table.add_row(*map(cell, cells))
    print_table(table)


def line(key: str, value: str) -> str:
    """Returns a line with the name and the value of a property."""
    return f"{key:<12} {value}".rstrip()


def _encoding(names: list[str]) -> str:
    """Returns the Parquet encodings that tell columns apart: most have a dictionary and levels."""
    values = {name.removeprefix("PLAIN_").removeprefix("RLE_") for name in names}
    if "DICTIONARY" in values:
        values.discard("PLAIN")  # its own page
    if len(values) > 1:
        values -= {"RLE", "BIT_PACKED"}  # of levels, which say what is null
    return ", ".join(sorted(values)).lower()


def _field_words(kind: dict[str, Any] | None) -> str:
    if kind is None:
        return "none can hold it"
    details = [str(kind[name]) for name in ("dtype", "shape") if kind.get(name) is not None]
    return " ".join([kind["type"].capitalize(), *details])
