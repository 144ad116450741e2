"""fastio verify: compare a dataset with its checksums, if it has any."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

from fastio.cli.command import EXIT_FAILED, Given, Output, command
from fastio.errors import OptionError
from fastio.pack.progress import progress_bar
from fastio.runtime.sizes import counted, size_text
from fastio.sources import Findings, check


@command(check, without=frozenset({"progress"}))
def verify(given: Given, quiet: bool = False) -> Output:
    """Check all checksums of a dataset. The exit code is 1 if anything is damaged.

    Tars have checksums only in their headers: verify checks these, that no tar is truncated, and
    that all samples have the same fields. For tables and save_to_disk directories it reads every
    column and checks Parquet's page checksums if there are any. Folders of files have no checksums:
    verify reads every file.

    Args:
        quiet: Print no progress bar; print damage only.
    """
    if given["max_pixels"] is not None and not given["deep"]:
        raise OptionError("max_pixels needs deep (--deep): otherwise no image is decoded")
    found = check(**given, progress=partial(progress_bar, shown=not quiet))
    well = found.all_well
    text = [_all_well(found)] if well else []
    return Output(_values(found), text, [*_problems(found)], 0 if well else EXIT_FAILED)


def _values(found: Findings) -> dict[str, Any]:
    told: dict[str, Any] = {"files" if found.kind == "file" else "shards": found.files}
    told["bytes"] = found.nbytes
    if found.kind == "file":
        told["rows"] = found.rows
    told["damaged"] = [{"name": item.name, "problem": item.problem} for item in found.damaged]
    if found.lacked is not None:
        told["incomplete"] = [dataclasses.asdict(item) for item in found.lacked]
    if found.images is not None:
        told["damaged_images"] = [dataclasses.asdict(item) for item in found.images.damaged]
        told["images_not_decoded"] = found.images.not_decoded
    return told


def _problems(found: Findings) -> Iterator[str]:
    """Returns a line for each thing that is damaged, and then one for each kind of damage."""
    for item in found.damaged:
        yield f"{item.name}: {item.problem}"
    for lack in found.lacked or ():
        samples = f"{lack.samples:,} of {counted(found.rows, 'samples')}"
        yield f"{lack.tar} sample {lack.key!r}: {lack.problem}, like {samples}"
    for image in [] if found.images is None else found.images.damaged:
        # Row numbers of tars leave damaged samples out: only shards have a dataset row to show.
        row = f" (row {image.row} of the dataset)" if found.kind == "shard" else ""
        where = f"{image.shard} row {image.local_row}"
        yield f"{found.path}: {where}: {image.field}: {image.problem}{row}"
    if found.damaged:
        count, them = len(found.damaged), "it" if len(found.damaged) == 1 else "them"
        again = {"shard": "pack", "tar": "make", "file": "write"}[found.kind]
        files = counted(found.files, found.kind + "s")
        yield f"{found.path}: {count:,} of {files} damaged; copy or {again} {them} again"
    if found.images is not None:
        left = found.images.not_decoded
        if found.images.damaged:
            yield f"{found.path}: {counted(len(found.images.damaged), 'damaged images')}"
        if left is None:
            yield f"{found.path}: the images of damaged tars were not decoded"
        elif left:
            images = counted(left, "images")
            yield f"{found.path}: {images} not decoded, in shards that cannot be opened"


def _all_well(found: Findings) -> str:
    samples = counted(found.rows, "samples")
    decoded = "" if found.images is None else f", and all images of {samples} can be decoded"
    holds = "all checksums hold"
    if found.lacked is not None:
        holds = f"all headers are sound, and {samples} have the same fields"
    if found.kind == "file":
        holds = f"all {counted(found.rows, 'rows')} can be read"
    size = f"{counted(found.files, found.kind + 's')}, {size_text(found.nbytes)}"
    return f"{found.path}: {size}: {holds}{decoded}"
