"""What `fastio info` says of table files, and of directories of save_to_disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastio.cli.common import counted, readable_bytes
from fastio.shown import shown

if TYPE_CHECKING:
    from rich.table import Table

    from fastio.formats import HuggingFaceDataset
    from fastio.formats.tables import ColumnAbout, TableFile

_PIPED_WIDTH = 100  # characters of a line of a table where the output is no terminal
_KINDS = {"parquet": "Parquet", "arrow": "Arrow", "csv": "CSV", "jsonl": "JSONL"}


def describe_table_files(path: str, files: list[TableFile]) -> dict[str, Any]:
    """What table files consist of, for JSON."""
    from fastio.formats.tables import describe_tables

    about = describe_tables(files)
    return {
        "path": path,
        "kind": about.kind,
        "files": about.files,
        "bytes": about.nbytes,
        "rows": about.rows,
        "row_groups": about.row_groups,
        "created_by": list(about.created_by),
        "columns": [_column(column) for column in about.columns],
    }


def table_lines(description: dict[str, Any]) -> list[str]:
    """`describe_table_files` for people."""
    rows, groups = description["rows"], description["row_groups"]
    size = readable_bytes(description["bytes"])
    kind = f"{_KINDS[description['kind']]}, {counted(description['files'], 'file')}, {size}"
    named = "row groups" if description["kind"] == "parquet" else "batches"
    return [
        line("tables", description["path"]),
        line("kind", kind),
        line("rows", "known when all is read" if rows is None else f"{rows:,}"),
        *([] if groups is None else [line(named, f"{groups:,}")]),
        *([line("written by", ", ".join(made))] if (made := description["created_by"]) else []),
        line("columns", ""),
    ]


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


def describe_hugging_face(dataset: HuggingFaceDataset) -> dict[str, Any]:
    """What a directory of save_to_disk consists of, for JSON."""
    nbytes = sum(os.path.getsize(path) for path in dataset.sources)
    return {
        "path": dataset.path,
        "kind": "hugging_face",
        "rows": len(dataset),
        "files": len(dataset.sources),
        "bytes": nbytes,
        "bytes_per_sample": nbytes / len(dataset),
        **dataset.schema.to_json(),
        "fingerprint": dataset.fingerprint,
    }


def line(key: str, value: str) -> str:
    """A line of what is told of a dataset."""
    return f"{key:<12} {value}".rstrip()


def _column(column: ColumnAbout) -> dict[str, Any]:
    kind = None
    if column.kind is not None:
        kind = {"type": type(column.kind).__name__.lower()}
        for name in ("dtype", "shape"):
            if hasattr(column.kind, name):
                kind[name] = getattr(column.kind, name)
    return {
        "name": column.name,
        "type": column.type,
        "field": kind,
        "compression": sorted(column.compressions),
        "encodings": sorted(column.encodings),
        "bytes": column.nbytes,
        "uncompressed_bytes": column.uncompressed,
        "nulls": column.nulls,
    }


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
