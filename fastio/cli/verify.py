"""fastio verify: compare every byte of a dataset with its manifest."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fastio.cli.common import EXIT_FAILED, clear_errors, complain, readable_bytes


def verify(
    dst: Annotated[str, typer.Argument(help="A packed dataset.")],
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar; only what is damaged.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check all checksums of a dataset; the exit code is 1 if a shard is damaged."""
    with clear_errors():
        from fastio.dataset import open as open_dataset
        from fastio.pack.progress import progress_bar

        damaged = []
        with (
            open_dataset(dst) as dataset,
            progress_bar("checking", "shards", dataset.num_shards, not quiet) as advance,
        ):
            shards, nbytes = dataset.num_shards, dataset.manifest.nbytes
            for check in dataset.verify():
                if check.problem is not None:
                    damaged.append({"name": check.name, "problem": check.problem})
                advance(1)
        if as_json:
            print(json.dumps({"shards": shards, "bytes": nbytes, "damaged": damaged}))
        for item in damaged:
            complain(f"{item['name']}: {item['problem']}")
        if damaged:
            complain(f"{dst}: {len(damaged)} of {shards} shards damaged; copy or pack them again")
            raise typer.Exit(EXIT_FAILED)
        if not quiet and not as_json:
            print(f"{dst}: {shards:,} shards, {readable_bytes(nbytes)}: all checksums hold")
