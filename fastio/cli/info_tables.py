"""What `fastio info` says of table files, and of directories of save_to_disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastio.cli.common import counted, readable_bytes

if TYPE_CHECKING:
    from fastio.formats import HuggingFaceDataset
    from fastio.formats.tables import ColumnAbout, TableFile

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


def print_columns(columns: list[dict[str, Any]]) -> None:
    """The columns of table files: a line each."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("column", "type", "field", box=box.SIMPLE, pad_edge=False)
    stored = any(column["compression"] for column in columns)
    for heading in ("compression", "encodings", "bytes", "uncompressed", "nulls") if stored else ():
        table.add_column(heading, justify="left" if heading[0] in "ce" else "right")
    for column in columns:
        cells = [column["name"], column["type"], _field_words(column["field"])]
        if stored:
            cells += [", ".join(column["compression"]), ", ".join(column["encodings"])]
            sizes = column["bytes"], column["uncompressed_bytes"]
            cells += ["" if size is None else readable_bytes(size) for size in sizes]
            cells.append("" if column["nulls"] is None else f"{column['nulls']:,}")
        table.add_row(*map(escape, cells))
    # As wide as it is where the output is no terminal, so that scripts find whole lines.
    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(width=200, highlight=False)
    wide.print(table)


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


def _field_words(kind: dict[str, Any] | None) -> str:
    if kind is None:
        return "none: no field can hold it"
    details = [str(kind[name]) for name in ("dtype", "shape") if kind.get(name) is not None]
    return " ".join([kind["type"].capitalize(), *details])
