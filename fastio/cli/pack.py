"""fastio pack: make a dataset."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastio.cli.common import (
    StorageOptions,
    clear_errors,
    complain,
    counted,
    parse_storage_options,
    readable_bytes,
)

if TYPE_CHECKING:
    from fastio.pack import PackReport


class Codec(str, Enum):
    """How images are stored."""

    blocks = "blocks"
    jpeg = "jpeg"
    raw = "raw"


class OnError(str, Enum):
    """What a bad sample does."""

    # "raise_" would be the attribute's usual name; typer shows values only.
    stop = "raise"
    skip = "skip"


def pack(
    src: Annotated[
        str,
        typer.Argument(
            help="A folder with a folder of images for each class, a CSV or JSONL list with a "
            "column 'path', WebDataset tars: one, a folder of them, or a pattern such as "
            "'train-{000..099}.tar'; or tables: a Parquet, Arrow, CSV or JSONL file, a folder of "
            "them, or a pattern such as 'data/*.parquet'."
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
            help="Of a table: the type of a column or group, as in label=float32; several times.",
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
    storage_options: StorageOptions = None,
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
    """Pack images or tables into a dataset that loads fast."""
    options = parse_storage_options(storage_options)
    with clear_errors():
        from fastio.pack import pack as pack_samples

        groups = {name: _names(members) for name, members in _pairs("--group", group).items()}
        report = pack_samples(
            src,
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
            columns=None if columns is None else _names(columns),
            groups=groups,
            dtypes=_pairs("--dtype", dtype),
            nulls={name: _value(text) for name, text in _pairs("--null", null).items()},
            storage_options=options,
            staging=staging,
        )
        if as_json:
            print(json.dumps(dataclasses.asdict(report)))
            return
        for name, reason in report.skipped:
            complain(f"skipped {name}: {reason}")
        if not quiet:
            print(_summary(report, dst))


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """NAME=TEXT, several times.

    Raises:
        typer.BadParameter: it does not read so, or a name is there twice.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, mark, value = text.partition("=")
        if not mark or not name.strip() or not value or name.strip() in found:
            raise typer.BadParameter(f"{option} must read like NAME=..., once a name; got {text!r}")
        found[name.strip()] = value
    return found


def _names(text: str) -> list[str]:
    """Names with commas between them, and ranges of them."""
    from fastio.formats.tables import expand_range

    return [name for part in text.split(",") for name in expand_range(part.strip())]


def _value(text: str) -> int | float | str:
    """What a null becomes: a number where it reads like one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _summary(report: PackReport, dst: str) -> str:
    skipped = f"; {counted(len(report.skipped), 'bad one')} skipped" if report.skipped else ""
    return (
        f"{dst}: {counted(report.rows, 'sample')} in {counted(report.shards, 'shard')}, "
        f"{readable_bytes(report.bytes)}, packed in {report.seconds:.1f} s{skipped}"
    )
