"""fastio verify: compare a dataset with its checksums, if it has any."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from fastio.cli.common import EXIT_FAILED, StorageOptions, clear_errors, parse_storage_options
from fastio.cli.findings import report


def verify(
    dst: Annotated[
        str,
        typer.Argument(
            help="A packed dataset, WebDataset tars or table files (Parquet, Arrow, CSV, JSONL), "
            "or the URL of one of these; a directory of Hugging Face's save_to_disk; or a folder "
            "of images or sound files."
        ),
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Also decode every image, and name damaged ones.")
    ] = False,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --deep: maximum number of pixels of an image; larger images count as "
            "damaged (default: about 179 million).",
        ),
    ] = None,
    storage_options: StorageOptions = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress bar; print damage only.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all checksums of a dataset. The exit code is 1 if anything is damaged.

    Tars have checksums only in their headers: verify checks these, that no tar is truncated, and
    that all samples have the same fields. For tables and save_to_disk directories it reads every
    column and checks Parquet's page checksums if there are any. Folders of files have no checksums:
    verify reads every file.
    """
    options = parse_storage_options(storage_options)
    with clear_errors():
        from fastio.pack.progress import progress_bar
        from fastio.sources import Options, check

        progress = partial(progress_bar, shown=not quiet)
        found = check(dst, Options(storage_options=options, max_pixels=max_pixels), deep, progress)
        report(found, quiet=quiet, as_json=as_json)
        if not found.all_well:
            raise typer.Exit(EXIT_FAILED)
