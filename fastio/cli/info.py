"""fastio info: what a dataset consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    StorageOptions,
    clear_errors,
    counted,
    parse_storage_options,
    readable_bytes,
    say,
    say_json,
)
from fastio.cli.info_tables import (
    cell,
    describe_hugging_face,
    describe_table_files,
    line,
    new_table,
    print_columns,
    print_table,
    table_lines,
)

if TYPE_CHECKING:
    from fastio.dataset import Dataset
    from fastio.formats import TarDataset

_SHOWN_CLASSES = 8


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a dataset consists of."""
    options = parse_storage_options(storage_options)
    with clear_errors():
        description, lines = _described(dst, options)
        say_json(description) if as_json else say(*lines)
        if as_json:
            return
        if description.get("statistics"):
            _print_statistics(description["statistics"])
        if description.get("columns"):
            print_columns(description["columns"])


def _described(dst: str, options: dict[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """What is told of a dataset, for JSON and for people."""
    from fastio.formats import (
        FolderDataset,
        HuggingFaceDataset,
        TableSamples,
        TarDataset,
        find_table_files,
    )
    from fastio.formats import open as open_dataset

    files = find_table_files(dst, options)
    if files is None:
        with open_dataset(dst, storage_options=options) as dataset:
            if isinstance(dataset, TarDataset):
                description = _describe_tars(dataset)
                return description, _file_lines(description, "tars")
            if isinstance(dataset, HuggingFaceDataset):
                description = describe_hugging_face(dataset)
                return description, _file_lines(description, "files")
            if isinstance(dataset, FolderDataset):
                description = {
                    "path": dataset.path,
                    "rows": len(dataset),
                    **dataset.schema.to_json(),
                    "fingerprint": dataset.fingerprint,
                }
                return description, _file_lines(description, "files")
            if not isinstance(dataset, TableSamples):
                description = _describe(dataset)
                return description, _lines(description)
            files = dataset.files  # of a URL's folder
    description = describe_table_files(dst, files)
    return description, table_lines(description)


def _describe(dataset: Dataset) -> dict[str, Any]:
    schema = dataset.schema.to_json()
    codecs = dataset.manifest.codec_counts()
    for field in schema["fields"]:
        if field["name"] in codecs:
            field["codecs"] = codecs[field["name"]]
        if field["type"] == "tokens":
            count = int(dataset.manifest.shard_tokens(field["name"]).sum())
            field |= {"tokens": count, "tokens_per_document": count / len(dataset)}
    return {
        "path": dataset.path,
        "rows": len(dataset),
        "shards": dataset.num_shards,
        "bytes": dataset.manifest.nbytes,
        "bytes_per_sample": dataset.manifest.nbytes / len(dataset),
        "format_version": dataset.manifest.format_version,
        "codebook": _codebook(dataset),
        **schema,
        "packing": dataset.manifest.packing,
        "statistics": dataset.manifest.statistics,
        "fingerprint": dataset.fingerprint,
    }


def _describe_tars(dataset: TarDataset) -> dict[str, Any]:
    return {
        "path": dataset.path,
        "rows": len(dataset),
        "tars": len(dataset.tars),
        "bytes": dataset.nbytes,
        "bytes_per_sample": dataset.nbytes / len(dataset),
        **dataset.schema.to_json(),
        "fingerprint": dataset.fingerprint,
    }


def _file_lines(description: dict[str, Any], files: str) -> list[str]:
    """Of tars, of the files of save_to_disk, or of a folder."""
    lines = [
        line("dataset", description["path"]),
        line("samples", f"{description['rows']:,}"),
    ]
    if files in description:  # else it is a folder of files, which nobody measured
        lines += [
            line(files, f"{description[files]:,}, {readable_bytes(description['bytes'])}"),
            line("a sample", readable_bytes(round(description["bytes_per_sample"]))),
        ]
    lines += [
        line("structure", description["structure"]),
        line("fields", ""),
        *(_field_line(field) for field in description["fields"]),
    ]
    if description["classes"] is not None:
        lines.append(line("classes", _class_list(description["classes"])))
    return [*lines, line("fingerprint", description["fingerprint"])]


def _codebook(dataset: Dataset) -> dict[str, Any] | None:
    """Where the block codec's codebook came from and which it is; None where there is none."""
    import xxhash

    data = dataset.manifest.codebook
    if data is None:
        return None
    origin = dataset.manifest.packing.get("codebook")
    return {"origin": origin, "xxh3": xxhash.xxh3_64(data).hexdigest()}


def _lines(description: dict[str, Any]) -> list[str]:
    shards, nbytes = description["shards"], description["bytes"]
    packing = description["packing"]
    lines = [
        line("dataset", description["path"]),
        line("samples", f"{description['rows']:,}"),
        line("shards", f"{shards:,}, {readable_bytes(nbytes)}"),
        line("a sample", readable_bytes(round(description["bytes_per_sample"]))),
        line("structure", description["structure"]),
        line("fields", ""),
        *(_field_line(field) for field in description["fields"]),
    ]
    for name, words in description.get("vocabularies", {}).items():
        lines.append(line("words", f"{name} {_class_list(words)}"))
    if description["classes"] is not None:
        lines.append(line("classes", _class_list(description["classes"])))
    codebook = description["codebook"]
    if codebook is not None:
        lines.append(line("codebook", f"{codebook['origin']}, xxh3 {codebook['xxh3']}"))
    tokenizer = _tokenizer(packing)
    if tokenizer is not None:
        lines.append(line("tokenizer", tokenizer))
    made_with = _made_with(packing)
    if made_with:
        lines.append(line("made with", made_with))
    bad = packing.get("skipped")
    skipped = f", {counted(bad, 'bad sample')} skipped" if bad else ""
    lines.append(line("packed from", f"{packing.get('source')}{skipped}"))
    lines.append(line("fingerprint", description["fingerprint"]))
    return lines


def _print_statistics(statistics: list[dict[str, Any]]) -> None:
    """The columns of a packed table: a line each."""
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
    """What was done to the images' pixels, if anything."""
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
    """What there is to say of a field of tokens."""
    words = [
        f"{field['tokens']:,} in all",
        f"{field['tokens_per_document']:,.1f} a document",
    ]
    if field["vocabulary_size"] is not None:
        words.append(f"vocabulary {field['vocabulary_size']:,}")
    separator = field["separator"]
    return [*words, "no separator" if separator is None else f"separator {separator}"]


def _tokenizer(packing: dict[str, Any]) -> str | None:
    """What made the tokens, None where there are none."""
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
