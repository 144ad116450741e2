"""fastio export: write a dataset's images to files, or the whole dataset to WebDataset tars."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from fastio.cli.common import (
    AsJson,
    BadParameter,
    Quiet,
    StorageOptions,
    clear_errors,
    counted,
    parse_storage_options,
    readable_bytes,
    say,
    say_json,
)
from fastio.cli.described import Written, descriptions, with_options_of
from fastio.pack.export import export as export_images

_ROWS = re.compile(r"(\d*):(\d*)")


def _parse_rows(text: str) -> slice:
    match = _ROWS.fullmatch(text)
    if match is None:
        raise BadParameter(f"--rows must have the form 100:200, 100: or :200, got {text!r}")
    first, last = (int(part) if part else None for part in match.groups())
    return slice(first, last)


_TEXTS = descriptions(export_images)
_ROWS_WRITTEN = Written(
    metavar="A:B", syntax="Rows A to B - 1; A or B may be omitted.", parse=_parse_rows
)


@with_options_of(export_images, written={"rows": _ROWS_WRITTEN}, without=frozenset({"progress"}))
def export(
    given: dict[str, Any],
    dataset: Annotated[str, typer.Argument(help=_TEXTS["dataset"])],
    dst: Annotated[Path, typer.Argument(help=_TEXTS["dst"])],
    storage_options: StorageOptions = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the images of a packed dataset to files, or the whole dataset to WebDataset tars."""
    options = parse_storage_options(storage_options)
    with clear_errors():
        from fastio.sources import open as open_data

        with open_data(dataset, storage_options=options) as opened:
            report = export_images(opened, dst, progress=not quiet, **given)
        if as_json:
            say_json(dataclasses.asdict(report))
        elif not quiet:
            images, size = counted(report.images, "image"), readable_bytes(report.bytes)
            index = "" if report.index is None else f", and {report.index}"
            tars = f" in {counted(report.tars, 'tar')}" if report.tars else ""
            say(f"{dst}: {images}, {size}{tars}{index}, in {report.seconds:.1f} s")
