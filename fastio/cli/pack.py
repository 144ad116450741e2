"""fastio pack: convert data into a packed dataset."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    BadParameter,
    StorageOptions,
    clear_errors,
    complain,
    counted,
    parse_names,
    parse_pairs,
    parse_storage_options,
    readable_bytes,
    say,
    say_json,
)
from fastio.cli.conditions import parse_conditions

if TYPE_CHECKING:
    from fastio.pack import PackReport
    from fastio.pack.api import TokenCounts


class Codec(str, Enum):
    """How images are stored."""

    blocks = "blocks"
    jpeg = "jpeg"
    raw = "raw"


class Document(str, Enum):
    """The unit of a text file that is one document."""

    file = "file"
    line = "line"
    blank_line = "blank-line"


class OnError(str, Enum):
    """What happens at a bad sample."""

    # "raise_" would be the attribute's usual name; typer shows values only.
    stop = "raise"
    skip = "skip"


def pack(
    src: Annotated[
        list[str],
        typer.Argument(
            help="Data to pack: a folder with one folder of images per class; a CSV or JSONL "
            "list with a column 'path'; WebDataset tars (one, a folder, or a pattern such "
            "as 'train-{000..099}.tar'); tables (a Parquet, Arrow, CSV or JSONL file, a "
            "folder, or a pattern such as 'data/*.parquet', also by URL); a directory "
            "written by save_to_disk of the datasets package; or, with --tokenizer, text "
            "in such tables or .txt files. Tars, tables and text may be given several "
            "times."
        ),
    ],
    dst: Annotated[
        str, typer.Argument(help="Folder to create, or a URL such as s3://bucket/dataset.")
    ],
    codec: Annotated[
        Codec | None,
        typer.Option(
            help="Image storage: 'blocks' (default) recodes JPEGs without loss into a form "
            "that decodes faster, and keeps other files; 'jpeg' keeps all files byte for "
            "byte; 'raw' stores pixels."
        ),
    ] = None,
    codebook: Annotated[
        str | None,
        typer.Option(
            metavar="default|train|FILE",
            help="Codebook of the block codec: the built-in one (default), one trained on a "
            "sample of SRC first, or one from a file.",
        ),
    ] = None,
    max_side: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum length of the longer side in pixels; larger images are shrunk."
        ),
    ] = None,
    quality: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="Re-encode all image files as JPEGs of this quality (default with --max-side: "
            "90, for shrunk files only).",
        ),
    ] = None,
    shard_size: Annotated[
        str, typer.Option(help="Size of a shard, for example 64MiB, 1GB or 100000.")
    ] = "64MiB",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of threads (default: all cores).")
    ] = None,
    on_error: Annotated[
        OnError, typer.Option(help="Stop at a bad sample, or skip and report it.")
    ] = OnError.stop,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted pack.")] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the dataset in DST; the old one is deleted when packing starts.",
        ),
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Tables: columns and groups to pack (default: all).",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B,...",
            help="Tables: columns that become one array, for example dense=I1..I13; may be "
            "repeated.",
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DTYPE",
            help="Tables: dtype of a column or group, for example label=float32; may be "
            "repeated. Text: tokens=uint32.",
        ),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE|mask",
            help="Tables: value that replaces the nulls of a column or group; 'mask' adds a "
            "field NAME_valid. May be repeated.",
        ),
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="'COLUMN OP VALUE'",
            help="Tables: condition for the rows to pack, for example 'year >= 2024', 'word != "
            "\"a\"' or 'kind in a,b'; OP is one of ==, !=, <, <=, >, >=, in, not in. May be "
            "repeated; a row must meet all conditions.",
        ),
    ] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Lists and save_to_disk directories: another folder, besides their own, in "
            "which the files they name may lie. May be repeated.",
        ),
    ] = None,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of pixels of an image; larger images are bad samples "
            "(default: about 179 million).",
        ),
    ] = None,
    max_unzipped: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Maximum decompressed size of a compressed file of a sample (.gz in tars, "
            ".npz), for example 1GiB; larger files are bad samples (default: 256MiB).",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="bytes|NAME|FILE",
            help="Pack text as tokens of this tokenizer: UTF-8 bytes, a name on the Hugging "
            "Face Hub, or the path of a tokenizer.json or of a folder with one.",
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            metavar="auto|none|TOKEN|NUMBER",
            help="Text: token that ends every document (default: the tokenizer's own, such as "
            "<|endoftext|> or </s>).",
        ),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Text in tables: name of the text column (default: text, content or document, "
            "or the only column of strings).",
        ),
    ] = None,
    document: Annotated[
        Document | None,
        typer.Option(help="Text files: unit that is one document (default: file)."),
    ] = None,
    special_tokens: Annotated[
        bool,
        typer.Option(
            "--special-tokens",
            help="Text: add the special tokens that the tokenizer puts around a text, such as "
            "[CLS] or <s>.",
        ),
    ] = False,
    storage_options: StorageOptions = None,
    source_options: Annotated[
        list[str] | None,
        typer.Option(
            "--source-options",
            metavar="KEY=VALUE|JSON",
            help="Like --storage-options, but for SRC only, if SRC and DST are both URLs.",
        ),
    ] = None,
    staging: Annotated[
        Path | None,
        typer.Option(
            help="For a URL: folder for shards that are not uploaded yet (default: a temporary "
            "folder)."
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress bar and no summary.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Pack images, tables or text into a dataset that loads fast."""
    options = parse_storage_options(storage_options)
    with clear_errors():
        from fastio.pack import pack as pack_samples
        from fastio.pack.api import parse_size

        groups = {
            name: parse_names(members) for name, members in parse_pairs("--group", group).items()
        }
        report = pack_samples(
            _source(src, text=tokenizer is not None),
            dst,
            codec=None if codec is None else codec.value,
            codebook=codebook,
            max_side=max_side,
            quality=quality,
            shard_size=shard_size,
            workers=workers,
            on_error=on_error.value,
            resume=resume,
            overwrite=overwrite,
            progress=not quiet,
            columns=None if columns is None else parse_names(columns),
            groups=groups,
            dtypes=parse_pairs("--dtype", dtype),
            nulls={name: _value(text) for name, text in parse_pairs("--null", null).items()},
            filters=parse_conditions(condition),
            roots=root,
            max_pixels=max_pixels,
            max_unzipped_bytes=None if max_unzipped is None else parse_size(max_unzipped),
            tokenizer=tokenizer,
            separator="auto" if separator is None else _separator(separator),
            text_column=text_column,
            document=None if document is None else document.value,
            special_tokens=special_tokens,
            storage_options=options,
            source_options=parse_storage_options(source_options, "--source-options"),
            staging=staging,
        )
        if as_json:
            say_json(_as_json(report))
            return
        for name, reason in report.skipped:
            complain(f"skipped {name}: {reason}")
        if not quiet:
            say(_summary(report, dst))


def _source(src: list[str], text: bool) -> str | list[str]:
    """Returns the source to pack: one path, or a list of paths.

    Raises:
        typer.BadParameter: several paths are given for a kind of data that allows only one.
    """
    from fastio.sources import find

    if len(src) == 1:
        return src[0]
    if not text and find(src) is None:
        raise BadParameter(
            f"there are {len(src)} sources ({src[0]}, {src[1]}, ...): several are possible for "
            "tars, for tables, and for text with --tokenizer"
        )
    return src


def _separator(text: str) -> int | str:
    """Returns a token, or its number if the text is decimal."""
    return int(text) if text.isdecimal() else text


def _as_json(report: PackReport) -> dict[str, Any]:
    """Returns the report as JSON values; the token counts are left out if there are none."""
    found = dataclasses.asdict(report)
    if report.tokens is None:
        del found["tokens"]
    return found


def _value(text: str) -> int | float | str:
    """Returns the value that replaces nulls: a number if the text reads like one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _summary(report: PackReport, dst: str) -> str:
    if report.tokens is not None:
        return _summary_of_text(report, report.tokens, dst)
    skipped = f"; {counted(len(report.skipped), 'bad one')} skipped" if report.skipped else ""
    return (
        f"{dst}: {counted(report.rows, 'sample')} in {counted(report.shards, 'shard')}, "
        f"{readable_bytes(report.bytes)}, packed in {report.seconds:.1f} s{skipped}"
    )


def _summary_of_text(report: PackReport, counts: TokenCounts, dst: str) -> str:
    empty = f"; {counted(counts.empty, 'empty one')} left out" if counts.empty else ""
    return (
        f"{dst}: {counted(counts.tokens, 'token')} of {counted(counts.documents, 'document')} in "
        f"{counted(report.shards, 'shard')}, {readable_bytes(report.bytes)}, packed in "
        f"{report.seconds:.1f} s, {counts.tokens_per_second:,.0f} tokens/s{empty}"
    )
