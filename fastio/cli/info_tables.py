"""How `fastio info` and others print lines and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastio.cli.common import readable_bytes
from fastio.shown import shown

if TYPE_CHECKING:
    from rich.table import Table

_PIPED_WIDTH = 100  # characters of a line of a table where the output is no terminal


def new_table(*headings: str) -> Table:
    """A table of narrow gaps, whose columns with these headings are folded where it is too wide."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def cell(text: str) -> str:
    """What stands in a table: no markup, and no control characters."""
    from rich.markup import escape

    return escape(shown(text))


def print_table(table: Table) -> None:
    """As wide as the terminal; where there is none, folded to lines that editors and logs hold."""
    from rich.console import Console

    console = Console(highlight=False)
    piped = Console(width=_PIPED_WIDTH, highlight=False)
    (console if console.is_terminal else piped).print(table)


def print_columns(columns: list[dict[str, Any]]) -> None:
    """The columns of table files: a line each."""
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
    """A line of what is told of a dataset."""
    return f"{key:<12} {value}".rstrip()


def _encoding(names: list[str]) -> str:
    """What of Parquet's encodings tells columns apart: a dictionary and levels are in most."""
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
