"""fastio verify: compare every byte of a dataset with its manifest."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    EXIT_FAILED,
    StorageOptions,
    clear_errors,
    complain,
    counted,
    open_packed,
    parse_storage_options,
    readable_bytes,
)

if TYPE_CHECKING:
    from fastio.dataset import BadImage, Dataset, ShardCheck


@dataclass
class _Images:
    """What decoding them all found."""

    damaged: list[BadImage] = field(default_factory=list)
    not_decoded: int = 0


def verify(
    dst: Annotated[str, typer.Argument(help="A packed dataset, or its URL.")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode every image too, and name the damaged ones.")
    ] = False,
    storage_options: StorageOptions = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar; only what is damaged.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all checksums of a dataset; the exit code is 1 if anything is damaged."""
    options = parse_storage_options(storage_options)
    with clear_errors():
        with open_packed(dst, options) as dataset:
            shards = _check_shards(dataset, not quiet)
            images = _check_images(dataset, not quiet) if deep else None
            _report(dataset, shards, images, quiet, as_json)
        if shards or (images and (images.damaged or images.not_decoded)):
            raise typer.Exit(EXIT_FAILED)


def _check_shards(dataset: Dataset, shown: bool) -> list[ShardCheck]:
    """The damaged shards."""
    from fastio.pack.progress import progress_bar

    damaged = []
    with progress_bar("checking", "shards", dataset.num_shards, shown) as advance:
        for check in dataset.verify():
            if check.problem is not None:
                damaged.append(check)
            advance(1)
    return damaged


def _check_images(dataset: Dataset, shown: bool) -> _Images:
    """Decode them all."""
    from fastio.cores import available_cores
    from fastio.dataset import check_images
    from fastio.pack.progress import progress_bar

    images = _Images()
    with progress_bar("decoding", "samples", len(dataset), shown) as advance:
        for check in check_images(dataset, available_cores()):
            images.damaged += check.bad
            images.not_decoded += check.not_decoded
            advance(check.rows)
    return images


def _report(
    dataset: Dataset,
    shards: list[ShardCheck],
    images: _Images | None,
    quiet: bool,
    as_json: bool,
) -> None:
    count, nbytes = dataset.num_shards, dataset.manifest.nbytes
    if as_json:
        found: dict[str, Any] = {"shards": count, "bytes": nbytes}
        found["damaged"] = [{"name": item.name, "problem": item.problem} for item in shards]
        if images is not None:
            found["damaged_images"] = [dataclasses.asdict(item) for item in images.damaged]
            found["images_not_decoded"] = images.not_decoded
        print(json.dumps(found))
    for item in shards:
        complain(f"{item.name}: {item.problem}")
    for image in () if images is None else images.damaged:
        complain(
            f"{dataset.path}: {image.shard} row {image.local_row}: {image.field}: {image.problem} "
            f"(row {image.row} of the dataset)"
        )
    if shards:
        complain(
            f"{dataset.path}: {len(shards):,} of {counted(count, 'shard')} damaged; copy or pack "
            f"{'it' if len(shards) == 1 else 'them'} again"
        )
    if images is not None:
        _report_images(dataset.path, images)
    if not (shards or quiet or as_json) and (images is None or images == _Images()):
        samples = counted(len(dataset), "sample")
        decoded = "" if images is None else f", and all images of {samples} can be decoded"
        size = f"{counted(count, 'shard')}, {readable_bytes(nbytes)}"
        print(f"{dataset.path}: {size}: all checksums hold{decoded}")


def _report_images(path: str, images: _Images) -> None:
    if images.damaged:
        complain(f"{path}: {counted(len(images.damaged), 'damaged image')}")
    if images.not_decoded:
        complain(
            f"{path}: {counted(images.not_decoded, 'image')} not decoded, in shards that cannot be "
            "opened"
        )
