"""fastio verify: compare every byte of a dataset with its manifest."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import EXIT_FAILED, clear_errors, complain, readable_bytes

if TYPE_CHECKING:
    from fastio.dataset import BadImage, Dataset, ShardCheck


def verify(
    dst: Annotated[str, typer.Argument(help="A packed dataset.")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode every image too, and name the damaged ones.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar; only what is damaged.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all checksums of a dataset; the exit code is 1 if anything is damaged."""
    with clear_errors():
        from fastio.dataset import open as open_dataset

        with open_dataset(dst) as dataset:
            shards = _check_shards(dataset, not quiet)
            images = _check_images(dataset, not quiet) if deep else []
            _report(dataset, shards, images, deep, quiet, as_json)
        if shards or images:
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


def _check_images(dataset: Dataset, shown: bool) -> list[BadImage]:
    """The damaged images."""
    from fastio.dataset import check_images
    from fastio.engine import available_cores
    from fastio.pack.progress import progress_bar

    damaged = []
    with progress_bar("decoding", "samples", len(dataset), shown) as advance:
        for check in check_images(dataset, available_cores()):
            damaged += check.bad
            advance(check.rows)
    return damaged


def _report(
    dataset: Dataset,
    shards: list[ShardCheck],
    images: list[BadImage],
    deep: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    count, nbytes = dataset.num_shards, dataset.manifest.nbytes
    if as_json:
        found: dict[str, Any] = {"shards": count, "bytes": nbytes}
        found["damaged"] = [{"name": item.name, "problem": item.problem} for item in shards]
        if deep:
            found["damaged_images"] = [dataclasses.asdict(item) for item in images]
        print(json.dumps(found))
    for item in shards:
        complain(f"{item.name}: {item.problem}")
    for image in images:
        complain(
            f"{dataset.path}: {image.shard} row {image.local_row}: {image.field}: {image.problem} "
            f"(row {image.row} of the dataset)"
        )
    if shards:
        complain(
            f"{dataset.path}: {len(shards)} of {count} shards damaged; copy or pack them again"
        )
    if images:
        complain(f"{dataset.path}: {len(images)} damaged images")
    if not (shards or images or quiet or as_json):
        decoded = f", and all images of {len(dataset):,} samples can be decoded" if deep else ""
        size = f"{count:,} shards, {readable_bytes(nbytes)}"
        print(f"{dataset.path}: {size}: all checksums hold{decoded}")
