"""fastio info: describe a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastio.cli.command import Given, Output, command
from fastio.cli.common import cell, line, new_table
from fastio.runtime.sizes import counted, size_text
from fastio.sources import describe

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN_CLASSES = 8
_KINDS = {"parquet": "Parquet", "arrow": "Arrow", "csv": "CSV", "jsonl": "JSONL"}
_STATISTICS = ("count", "nulls", "nan", "min", "max", "mean", "std", "distinct")
_COUNTS = ("nulls", "nan")  # statistics that are left out if they are 0 in all columns


@command(describe)
def info(given: Given) -> Output:
    """Describe a dataset: samples, fields, sizes and statistics."""
    found = describe(**given)
    text: list[str | Table] = [*_lines(found)]
    if given["version"] is not None:
        newest = describe(**{**given, "version": None})["version"]
        text.insert(1, line("version", f"{found['version']} (the newest one is {newest})"))
    if found.get("statistics"):
        text.append(_statistics_table(found["statistics"]))
    if found.get("columns"):
        text.append(_columns_table(found["columns"]))
    return Output(found, text)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """Returns the lines that describe a dataset, one for each property that its kind has."""
    rows, nbytes = found["rows"], found.get("bytes")
    kind = _KINDS.get(found.get("kind", ""))
    yield line("dataset", found["path"])
    yield line("kind", f"{kind} files" if kind else str(found["dataset"]).replace("_", " "))
    yield line("samples", "known after all rows are read" if rows is None else f"{rows:,}")
    for files in ("shards", "tars", "files"):
        if files in found:
            yield line(files, f"{found[files]:,}, {size_text(nbytes or 0)}")
    if "bytes_per_sample" in found:
        yield line("a sample", size_text(round(found["bytes_per_sample"])))
    if found.get("row_groups") is not None:
        yield line("row groups", f"{found['row_groups']:,}")
    if found.get("created_by"):
        yield line("written by", ", ".join(found["created_by"]))
    if "fields" in found:
        yield line("structure", found["structure"])
        yield line("fields", "")
        yield from map(_field_line, found["fields"])
    for name, words in found.get("vocabularies", {}).items():
        yield line("words", f"{name} {_class_list(words)}")
    if found.get("classes") is not None:
        yield line("classes", _class_list(found["classes"]))
    if "packing" in found:
        yield from _packing_lines(found["packing"], found["codebook"])
    if "fingerprint" in found:
        yield line("fingerprint", found["fingerprint"])
    if len(found.get("versions", ())) > 1:
        yield line("versions", "")
        yield from map(_version_line, found["versions"])
    if "columns" in found:
        yield line("columns", "")


def _packing_lines(packing: dict[str, Any], codebook: dict[str, Any] | None) -> Iterator[str]:
    """Returns the lines on how a packed dataset was made."""
    if codebook is not None:
        yield line("codebook", f"{codebook['origin']}, xxh3 {codebook['xxh3']}")
    if packing.get("tokens") is not None:
        yield line("tokenizer", _tokenizer(packing["tokens"]))
    max_side, quality = packing.get("max_side"), packing.get("quality")
    made = [] if max_side is None else [f"max side {max_side}"]
    made += [] if quality is None else [f"quality {quality} (re-encoded)"]
    if made:
        yield line("made with", ", ".join(made))
    bad = packing.get("skipped")
    skipped = f", {counted(bad, 'bad samples')} skipped" if bad else ""
    yield line("packed from", f"{packing.get('source')}{skipped}")


def _version_line(version: dict[str, Any]) -> str:
    size = f"{counted(version['rows'], 'samples')}, {counted(version['shards'], 'shards')}"
    kept = "" if version["kept"] else " (deleted by fastio gc)"
    return f"  {version['version']:<12} {size}, added: {version['source']}{kept}"


def _tokenizer(made: dict[str, Any]) -> str:
    """Returns the tokenizer that made the tokens."""
    found, empty = made["tokenizer"], made["empty"]
    parts = [found["name"], *([f"xxh3 {found['xxh3']}"] if "xxh3" in found else [])]
    parts += ["with special tokens"] if made["special_tokens"] else []
    parts += [f"{counted(empty, 'empty documents')} left out"] if empty else []
    return ", ".join(parts)


def _field_line(field: dict[str, Any]) -> str:
    details = [str(field[key]) for key in ("mode", "dtype", "shape") if key in field]
    counts = [f"{count:,} {codec}" for codec, count in field.get("codecs", {}).items() if count]
    if field["type"] == "tokens" and "tokens" in field:
        size, separator = field["vocabulary_size"], field["separator"]
        counts = [f"{field['tokens']:,} in all", f"{field['tokens_per_document']:,.1f} a document"]
        counts += [] if size is None else [f"vocabulary {size:,}"]
        counts.append("no separator" if separator is None else f"separator {separator}")
    if counts:
        details.append(f"({', '.join(counts)})")
    return f"  {field['name']:<12} {field['type'].capitalize()} {' '.join(details)}".rstrip()


def _class_list(classes: list[str]) -> str:
    more = ", ..." if len(classes) > _SHOWN_CLASSES else ""
    return f"{len(classes):,}: {', '.join(classes[:_SHOWN_CLASSES])}{more}"


def _statistics_table(statistics: list[dict[str, Any]]) -> Table:
    """Returns the statistics of a packed table, one row per column."""
    table = new_table("column")
    keys = []
    for key in _STATISTICS:
        values = [column.get(key) for column in statistics]
        if any(values) or (key not in _COUNTS and any(value is not None for value in values)):
            keys.append(key)
    for key in keys:
        table.add_column(key, justify="right", overflow="fold")
    for column in statistics:
        name, field = column["column"], column["field"]
        numbers = (_number(column.get(key)) for key in keys)
        table.add_row(cell(name if name == field else f"{field}: {name}"), *numbers)
    return table


def _columns_table(columns: list[dict[str, Any]]) -> Table:
    """Returns the columns of table files, one row per column."""
    table = new_table("column", "type")
    table.add_column("field", no_wrap=True)
    stored = any(column["compression"] for column in columns)
    for heading in ("codec", "encoding", "bytes", "unpacked", "nulls") if stored else ():
        words = heading in ("codec", "encoding")
        justify: Any = "left" if words else "right"
        table.add_column(heading, justify=justify, no_wrap=not words, overflow="fold")
    for column in columns:
        cells = [column["name"], column["type"], _field_words(column["field"])]
        if stored:
            cells += [", ".join(column["compression"]), _encoding(column["encodings"])]
            sizes = column["bytes"], column["uncompressed_bytes"]
            cells += ["" if size is None else size_text(size) for size in sizes]
            cells.append(_number(column["nulls"]))
        table.add_row(*map(cell, cells))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


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
