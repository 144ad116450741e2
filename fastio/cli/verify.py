"""fastio verify: compare every byte of a dataset with its checksums, where it has some."""

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
        bool, typer.Option("--deep", help="Decode every image too, and name the damaged ones.")
    ] = False,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --deep: maximum number of pixels of an image; larger images are damaged "
            "ones. Default: about 179 million.",
        ),
    ] = None,
    storage_options: StorageOptions = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar; only what is damaged.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all checksums of a dataset. The exit code is 1 if anything is damaged.

    Tars have checksums only in their headers: these are checked, that no tar is truncated, and
    that all samples have the same fields. Of tables and save_to_disk directories every column is
    read, with the page checksums of Parquet where there are some. Folders of files have no
    checksums: every file is read.
    """
    options = parse_storage_options(storage_options)
    with clear_errors():
        from fastio.formats import Options, check
        from fastio.pack.progress import progress_bar

        progress = partial(progress_bar, shown=not quiet)
        found = check(dst, Options(storage_options=options, max_pixels=max_pixels), deep, progress)
        report(found, quiet=quiet, as_json=as_json)
        if not found.all_well:
            raise typer.Exit(EXIT_FAILED)
