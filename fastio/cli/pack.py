"""fastio pack: make a dataset."""

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
    """What a document of a text file is."""

    file = "file"
    line = "line"
    blank_line = "blank-line"


class OnError(str, Enum):
    """What a bad sample does."""

    # "raise_" would be the attribute's usual name; typer shows values only.
    stop = "raise"
    skip = "skip"


def pack(
    src: Annotated[
        list[str],
        typer.Argument(
            help="A folder with a folder of images for each class, a CSV or JSONL list with a "
            "column 'path', WebDataset tars: one, a folder of them, or a pattern such as "
            "'train-{000..099}.tar'; tables: a Parquet, Arrow, CSV or JSONL file, a folder of "
            "them, or a pattern such as 'data/*.parquet', also by URL; a directory that the "
            "datasets package's save_to_disk wrote; or, with --tokenizer, text: such tables or "
            ".txt files. Of tars, tables and text also several."
        ),
    ],
    dst: Annotated[
        str, typer.Argument(help="The folder to make, or a URL such as s3://bucket/dataset.")
    ],
    codec: Annotated[
        Codec | None,
        typer.Option(
            help="How images are stored: 'blocks' (the default) recodes JPEGs without loss to what "
            "is decoded faster, and keeps other files; 'jpeg' keeps all files byte for byte; "
            "'raw' stores pixels."
        ),
    ] = None,
    codebook: Annotated[
        str | None,
        typer.Option(
            metavar="default|train|FILE",
            help="Of the block codec: the one that ships, one trained on a sample of SRC first, or "
            "one from a file.",
        ),
    ] = None,
    max_side: Annotated[
        int | None,
        typer.Option(min=1, help="Shrink images whose longer side has more pixels."),
    ] = None,
    quality: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help="Make all image files JPEGs of this quality; 90 if shrunk."
        ),
    ] = None,
    shard_size: Annotated[
        str, typer.Option(help="Data in a shard, as in 64MiB, 1GB or 100000.")
    ] = "64MiB",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads; all cores by default.")
    ] = None,
    on_error: Annotated[
        OnError, typer.Option(help="Stop at a bad sample, or leave it out and report it.")
    ] = OnError.stop,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a pack that was interrupted.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the dataset in DST; the old one is deleted when packing begins.",
        ),
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Of a table: the columns and groups that are wanted; all by default.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B,...",
            help="Of a table: columns that become one array, also as in dense=I1..I13; several "
            "times.",
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DTYPE",
            help="Of a table: the type of a column or group, as in label=float32; several times. "
            "Of text also tokens=uint32.",
        ),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE|mask",
            help="Of a table: what the nulls of a column or group become; 'mask' adds a field "
            "NAME_valid. Several times.",
        ),
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="'COLUMN OP VALUE'",
            help="Of a table: the rows that are wanted, as in 'year >= 2024', 'word != \"a\"' or "
            "'kind in a,b'; OP is one of ==, !=, <, <=, >, >=, in, not in. Several times: all "
            "hold.",
        ),
    ] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="For a list or a directory of save_to_disk: another folder from which it may name "
            "files, besides its own. May be given several times.",
        ),
    ] = None,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of pixels of an image; larger images are bad samples. Default: "
            "about 179 million.",
        ),
    ] = None,
    max_unzipped: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Maximum decompressed size of a compressed file of a sample (.gz in tars, .npz), "
            "for example 1GiB; larger files are bad samples. Default: 256MiB.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="bytes|NAME|FILE",
            help="Pack text as tokens: UTF-8 bytes, a tokenizer of the Hugging Face Hub, or the "
            "path of its tokenizer.json or of a folder with one.",
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            metavar="auto|none|TOKEN|NUMBER",
            help="Of text: the token that ends every document; by default the one that the "
            "tokenizer has, as <|endoftext|> or </s>.",
        ),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of text in tables: its column; by default text, content or document, or the "
            "only column of strings.",
        ),
    ] = None,
    document: Annotated[
        Document | None,
        typer.Option(help="Of .txt files: what a document is; the file by default."),
    ] = None,
    special_tokens: Annotated[
        bool,
        typer.Option(
            "--special-tokens",
            help="Of text: add what the tokenizer puts around every text, as [CLS] or <s>.",
        ),
    ] = False,
    storage_options: StorageOptions = None,
    source_options: Annotated[
        list[str] | None,
        typer.Option(
            "--source-options",
            metavar="KEY=VALUE|JSON",
            help="As --storage-options, for SRC alone, where both are URLs.",
        ),
    ] = None,
    staging: Annotated[
        Path | None,
        typer.Option(
            help="For a URL: the folder for shards that are not uploaded yet; a temporary one by "
            "default."
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")
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
    """What is to be packed: one path, or several of what there may be several of.

    Raises:
        typer.BadParameter: several of what there may be only one of.
    """
    from fastio.formats import find

    if len(src) == 1:
        return src[0]
    if not text and find(src) is None:
        raise BadParameter(
            f"there are {len(src)} sources ({src[0]}, {src[1]}, ...): several are possible for "
            "tars, for tables, and for text with --tokenizer"
        )
    return src


def _separator(text: str) -> int | str:
    """A token, or its number where it reads like one."""
    return int(text) if text.isdecimal() else text


def _as_json(report: PackReport) -> dict[str, Any]:
    """The report; what is said of tokens where there are some."""
    found = dataclasses.asdict(report)
    if report.tokens is None:
        del found["tokens"]
    return found


def _value(text: str) -> int | float | str:
    """What a null becomes: a number where it reads like one."""
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
