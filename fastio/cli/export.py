"""fastio export: write a dataset's images to files, or the whole dataset to WebDataset tars."""

from __future__ import annotations

import dataclasses
import re
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fastio.cli.common import (
    BadParameter,
    StorageOptions,
    clear_errors,
    counted,
    parse_storage_options,
    readable_bytes,
    say,
    say_json,
)


class Target(str, Enum):
    """The form of the output."""

    folder = "folder"
    webdataset = "webdataset"


_ROWS = re.compile(r"(\d*):(\d*)")


def export(
    dataset: Annotated[str, typer.Argument(help="A packed dataset or its URL.")],
    dst: Annotated[Path, typer.Argument(help="Folder to write to.")],
    to: Annotated[
        Target,
        typer.Option(
            help="Output: 'folder' writes the images to one folder per class and other fields "
            "to a list; 'webdataset' writes tars with all fields."
        ),
    ] = Target.folder,
    shard_size: Annotated[
        str, typer.Option(help="Size of a tar, for example 256MiB, 1GB or 100000.")
    ] = "256MiB",
    field: Annotated[
        str | None, typer.Option(help="Name of the image field, if there are several.")
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Export rows A to B - 1 only; A or B may be omitted."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write to DST even if it is not empty.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of threads (default: all cores).")
    ] = None,
    storage_options: StorageOptions = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress bar and no summary.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Write the images of a packed dataset to files, or the whole dataset to WebDataset tars."""
    wanted = _parse_rows(rows)
    options = parse_storage_options(storage_options)
    with clear_errors():
        from fastio.pack import export as export_images
        from fastio.sources import open as open_data

        with open_data(dataset, storage_options=options) as opened:
            report = export_images(
                opened,
                dst,
                to=to.value,
                shard_size=shard_size,
                field=field,
                rows=wanted,
                overwrite=overwrite,
                workers=workers,
                progress=not quiet,
            )
        if as_json:
            say_json(dataclasses.asdict(report))
        elif not quiet:
            images, size = counted(report.images, "image"), readable_bytes(report.bytes)
            index = "" if report.index is None else f", and {report.index}"
            tars = f" in {counted(report.tars, 'tar')}" if report.tars else ""
            say(f"{dst}: {images}, {size}{tars}{index}, in {report.seconds:.1f} s")


def _parse_rows(text: str | None) -> slice | None:
    if text is None:
        return None
    match = _ROWS.fullmatch(text)
    if match is None:
        raise BadParameter(f"--rows must read like 100:200, 100: or :200, got {text!r}")
    first, last = (int(part) if part else None for part in match.groups())
    return slice(first, last)
