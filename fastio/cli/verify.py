"""fastio verify: compare a dataset with its checksums, if it has any."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    EXIT_FAILED,
    AsJson,
    StorageOptions,
    clear_errors,
    complain,
    counted,
    parse_storage_options,
    readable_bytes,
    say,
    say_json,
)

if TYPE_CHECKING:
    from fastio.packed import BadImage
    from fastio.sources import Findings, Images


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
    as_json: AsJson = False,
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


def report(found: Findings, *, quiet: bool, as_json: bool) -> None:
    """Prints the result on stdout and damage on stderr.

    Args:
        found: the result of the check.
        quiet: print damage only.
        as_json: also print the result as a line of JSON.
    """
    if as_json:
        say_json(_as_json(found))
    for item in found.damaged:
        complain(f"{item.name}: {item.problem}")
    for lack in found.lacked or ():
        complain(
            f"{lack.tar} sample {lack.key!r}: {lack.problem}, like {lack.samples:,} of "
            f"{counted(found.rows, 'sample')}"
        )
    for image in [] if found.images is None else found.images.damaged:
        complain(_image_line(found, image))
    for line in _sums(found):
        complain(f"{found.path}: {line}")
    if found.all_well and not (quiet or as_json):
        say(_all_well(found))


def _as_json(found: Findings) -> dict[str, Any]:
    counted_as = "files" if found.kind == "file" else "shards"
    told: dict[str, Any] = {counted_as: found.files, "bytes": found.nbytes}
    if found.kind == "file":
        told["rows"] = found.rows
    told["damaged"] = [{"name": item.name, "problem": item.problem} for item in found.damaged]
    if found.lacked is not None:
        told["incomplete"] = [dataclasses.asdict(item) for item in found.lacked]
    if found.images is not None:
        told["damaged_images"] = [dataclasses.asdict(item) for item in found.images.damaged]
        told["images_not_decoded"] = found.images.not_decoded
    return told


def _image_line(found: Findings, image: BadImage) -> str:
    # Row numbers of tars leave damaged samples out, so only shards have a dataset row to show.
    row = f" (row {image.row} of the dataset)" if found.kind == "shard" else ""
    where = f"{image.shard} row {image.local_row}"
    return f"{found.path}: {where}: {image.field}: {image.problem}{row}"


def _sums(found: Findings) -> list[str]:
    """Returns one summary line per kind of damage."""
    lines = []
    if found.damaged:
        count, them = len(found.damaged), "it" if len(found.damaged) == 1 else "them"
        again = {"shard": "pack", "tar": "make", "file": "write"}[found.kind]
        files = counted(found.files, found.kind)
        lines.append(f"{count:,} of {files} damaged; copy or {again} {them} again")
    if found.images is not None:
        lines += _image_sums(found.images)
    return lines


def _image_sums(images: Images) -> list[str]:
    lines = []
    if images.damaged:
        lines.append(counted(len(images.damaged), "damaged image"))
    if images.not_decoded is None:
        lines.append("the images of damaged tars were not decoded")
    elif images.not_decoded:
        count = counted(images.not_decoded, "image")
        lines.append(f"{count} not decoded, in shards that cannot be opened")
    return lines


def _all_well(found: Findings) -> str:
    samples = counted(found.rows, "sample")
    decoded = "" if found.images is None else f", and all images of {samples} can be decoded"
    holds = "all checksums hold"
    if found.lacked is not None:
        holds = f"all headers are sound, and {samples} have the same fields"
    if found.kind == "file":
        holds = f"all {counted(found.rows, 'row')} can be read"
    size = f"{counted(found.files, found.kind)}, {readable_bytes(found.nbytes)}"
    return f"{found.path}: {size}: {holds}{decoded}"
