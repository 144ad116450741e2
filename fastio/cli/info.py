"""fastio info: describe a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    AsJson,
    StorageOptions,
    clear_errors,
    counted,
    parse_storage_options,
    readable_bytes,
    say,
    say_json,
)
from fastio.shown import shown

if TYPE_CHECKING:
    from rich.table import Table


_SHOWN_CLASSES = 8
_KINDS = {"parquet": "Parquet", "arrow": "Arrow", "csv": "CSV", "jsonl": "JSONL"}


def info(
    dst: Annotated[
        str,
        typer.Argument(
            help="A packed dataset, WebDataset tars or table files (Parquet, Arrow, CSV, JSONL), "
            "or their URL; a directory of Hugging Face's save_to_disk; or a folder of images or "
            "sound files."
        ),
    ],
    storage_options: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Describe a dataset: samples, fields, sizes and statistics."""
    options = parse_storage_options(storage_options)
    with clear_errors():
        from fastio.sources import describe

        description = describe(dst, options)
        if as_json:
            say_json(description)
            return
        say(*_lines(description))
        if description.get("statistics"):
            _print_statistics(description["statistics"])
        if description.get("columns"):
            print_columns(description["columns"])


def _lines(description: dict[str, Any]) -> list[str]:
    """Returns the lines that describe a dataset, one for each property that its kind has."""
    rows, nbytes = description["rows"], description.get("bytes")
    lines = [
        line("dataset", description["path"]),
        line("kind", _kind(description)),
        line("samples", "known after all rows are read" if rows is None else f"{rows:,}"),
    ]
    for files in ("shards", "tars", "files"):
        if files in description:
            lines.append(line(files, f"{description[files]:,}, {readable_bytes(nbytes or 0)}"))
    if "bytes_per_sample" in description:
        lines.append(line("a sample", readable_bytes(round(description["bytes_per_sample"]))))
    if description.get("row_groups") is not None:
        lines.append(line("row groups", f"{description['row_groups']:,}"))
    if description.get("created_by"):
        lines.append(line("written by", ", ".join(description["created_by"])))
    if "fields" in description:
        lines.append(line("structure", description["structure"]))
        lines += [line("fields", ""), *map(_field_line, description["fields"])]
    for name, words in description.get("vocabularies", {}).items():
        lines.append(line("words", f"{name} {_class_list(words)}"))
    if description.get("classes") is not None:
        lines.append(line("classes", _class_list(description["classes"])))
    if "packing" in description:
        lines += _packing_lines(description)
    if "fingerprint" in description:
        lines.append(line("fingerprint", description["fingerprint"]))
    return [*lines, *([line("columns", "")] if "columns" in description else [])]


def _kind(description: dict[str, Any]) -> str:
    kind = _KINDS.get(description.get("kind", ""))
    return str(description["dataset"]).replace("_", " ") if kind is None else f"{kind} files"


def _packing_lines(description: dict[str, Any]) -> list[str]:
    """Returns the lines on how a packed dataset was made."""
    packing, codebook = description["packing"], description["codebook"]
    lines = []
    if codebook is not None:
        lines.append(line("codebook", f"{codebook['origin']}, xxh3 {codebook['xxh3']}"))
    for name, made in (("tokenizer", _tokenizer(packing)), ("made with", _made_with(packing))):
        if made:
            lines.append(line(name, made))
    bad = packing.get("skipped")
    skipped = f", {counted(bad, 'bad sample')} skipped" if bad else ""
    return [*lines, line("packed from", f"{packing.get('source')}{skipped}")]


def _print_statistics(statistics: list[dict[str, Any]]) -> None:
    """Prints the statistics of a packed table, one line per column."""
    table = new_table("column")
    keys = ("count", "nulls", "nan", "min", "max", "mean", "std", "distinct")
    shown = [key for key in keys if any(column.get(key) for column in statistics)]
    for key in shown:
        table.add_column(key, justify="right", overflow="fold")
    for column in statistics:
        cells = (_number(column.get(key)) for key in shown)
        field, name = column["field"], column["column"]
        table.add_row(cell(name if name == field else f"{field}: {name}"), *cells)
    print_table(table)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _made_with(packing: dict[str, Any]) -> str:
    """Returns how the pixels of the images were changed, or ""."""
    max_side, quality = packing.get("max_side"), packing.get("quality")
    parts = [] if max_side is None else [f"max side {max_side}"]
    if quality is not None:
        parts.append(f"quality {quality} (re-encoded)")
    return ", ".join(parts)


def _field_line(field: dict[str, Any]) -> str:
    kind = field["type"].capitalize()
    details = [str(field[key]) for key in ("mode", "dtype", "shape") if key in field]
    counts = [f"{count:,} {codec}" for codec, count in field.get("codecs", {}).items() if count]
    if field["type"] == "tokens" and "tokens" in field:
        counts = _token_words(field)
    if counts:
        details.append(f"({', '.join(counts)})")
    return f"  {field['name']:<12} {kind} {' '.join(details)}".rstrip()


def _token_words(field: dict[str, Any]) -> list[str]:
    """Returns the properties of a field of tokens."""
    words = [
        f"{field['tokens']:,} in all",
        f"{field['tokens_per_document']:,.1f} a document",
    ]
    if field["vocabulary_size"] is not None:
        words.append(f"vocabulary {field['vocabulary_size']:,}")
    separator = field["separator"]
    return [*words, "no separator" if separator is None else f"separator {separator}"]


def _tokenizer(packing: dict[str, Any]) -> str | None:
    """Returns the tokenizer that made the tokens, or None if there are none."""
    made = packing.get("tokens")
    if made is None:
        return None
    found, empty = made["tokenizer"], made["empty"]
    parts = [found["name"], *([f"xxh3 {found['xxh3']}"] if "xxh3" in found else [])]
    if made["special_tokens"]:
        parts.append("with special tokens")
    if empty:
        parts.append(f"{counted(empty, 'empty document')} left out")
    return ", ".join(parts)


def _class_list(classes: list[str]) -> str:
    more = ", ..." if len(classes) > _SHOWN_CLASSES else ""
    return f"{len(classes):,}: {', '.join(classes[:_SHOWN_CLASSES])}{more}"


# --- Lines and tables -----------------------------------------------------------------------------

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
        return "not supported"
    details = [str(kind[name]) for name in ("dtype", "shape") if kind.get(name) is not None]
    return " ".join([kind["type"].capitalize(), *details])
