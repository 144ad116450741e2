"""fastio export: write a dataset's images to files, or the whole dataset to WebDataset tars."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastio.cli.command import Given, Output, Written, command
from fastio.cli.parsing import parse_rows
from fastio.pack.export import export as export_images
from fastio.runtime.sizes import counted, size_text
from fastio.sources import open as open_data

_ROWS = Written(metavar="A:B", syntax="Rows A to B - 1; A or B may be omitted.", parse=parse_rows)


@command(export_images, written={"rows": _ROWS}, without=frozenset({"progress"}))
def export(
    given: Given,
    version: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Output:
    """Write the images of a packed dataset to files, or the whole dataset to WebDataset tars.

    Args:
        version: Version of a packed dataset, as listed by `fastio info`. By default, the newest.
    """
    source = given.pop("dataset")
    with open_data(source, version=version, storage_options=storage_options) as dataset:
        report = export_images(dataset, **given, progress=not quiet)
    images, size = counted(report.images, "images"), size_text(report.bytes)
    index = "" if report.index is None else f", and {report.index}"
    tars = f" in {counted(report.tars, 'tars')}" if report.tars else ""
    summary = f"{given['dst']}: {images}, {size}{tars}{index}, in {report.seconds:.1f} s"
    return Output(dataclasses.asdict(report), [summary])
