"""fastio cache: what is kept of remote data, and keeping it in order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastio.cli.common import (
    EXIT_FAILED,
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
    from fastio.cache import Cache, CacheStatus
    from fastio.staging import WarmReport

cache = typer.Typer(
    help="What is kept of remote datasets on a local disk: see it, fill it, keep it in order.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The cache's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Shared = Annotated[
    bool,
    typer.Option(
        "--shared", help="Use or create a cache that all members of the folder's group share."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")]


@cache.command()
def status(folder: Folder, shared: Shared = False, as_json: AsJson = False) -> None:
    """Show what a cache holds, and how often it had what was asked for."""
    with clear_errors(), _opened(folder, shared) as opened:
        found = opened.status()
        if as_json:
            say_json({**dataclasses.asdict(found), "hit_rate": found.hit_rate})
        else:
            say(*_status_lines(found))


@cache.command()
def warm(
    url: Annotated[str, typer.Argument(metavar="URL", help="A packed dataset or tars in a store.")],
    folder: Folder,
    budget: Annotated[
        str | None,
        typer.Option(
            help="What the cache may take, as in 200GB; what is free on its disk by default."
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="Of tars: a field that the loader is given; several times, in its order. All by "
            "default."
        ),
    ] = None,
    shared: Shared = False,
    storage_options: StorageOptions = None,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Requests under way at once; by the number of cores by default."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a dataset, or as much of its beginning as there is room for, before it is needed.

    What is there is not fetched again. The exit code is 1 if something is damaged at the source.
    """
    options = parse_storage_options(storage_options)
    with clear_errors():
        from fastio.cache import Cache
        from fastio.formats import open as open_data
        from fastio.pack.progress import progress_bar
        from fastio.staging import warm as warm_dataset

        opened = Cache(folder, budget, shared=shared)
        # With the cache, where the index of tars stays: making it costs a pass over them.
        with (
            opened,
            open_data(url, storage_options=options, cache=opened, fields=field or None) as dataset,
        ):
            total = min(dataset.nbytes, opened.budget or dataset.nbytes)
        with progress_bar("fetching", "bytes", total, not quiet) as advance:
            report = warm_dataset(
                url,
                opened,
                fields=field or None,
                storage_options=options,
                parallel=parallel,
                advance=advance,
            )
            if report.complete:
                advance(total - report.bytes)  # what shards have beside images, tars beside samples
        for problem in report.damaged:
            complain(f"damaged at the source: {problem}")
        if as_json:
            say_json({**dataclasses.asdict(report), "complete": report.complete})
        elif not quiet:
            say(_warm_summary(report, folder))
        if report.damaged:
            raise typer.Exit(EXIT_FAILED)


@cache.command()
def prune(
    folder: Folder,
    to: Annotated[str, typer.Option(help="What may stay, as in 50GB.")],
    shared: Shared = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Delete what was used longest ago until the rest has a size; what is in use stays."""
    with clear_errors(), _opened(folder, shared) as opened:
        removed = opened.prune(to)
        if as_json:
            say_json(dataclasses.asdict(removed))
        elif not quiet:
            left = readable_bytes(opened.status().bytes)
            say(f"{folder}: {_pieces(removed.pieces, removed.bytes)} deleted, {left} left")


@cache.command()
def clear(
    folder: Folder,
    dataset: Annotated[
        str | None, typer.Option(metavar="URL", help="Only what there is of this dataset.")
    ] = None,
    shared: Shared = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Delete what a cache holds; what live processes are fetching is left to them."""
    with clear_errors(), _opened(folder, shared) as opened:
        removed = opened.clear(dataset)
        if as_json:
            say_json(dataclasses.asdict(removed))
        elif not quiet:
            say(f"{folder}: {_pieces(removed.pieces, removed.bytes)} deleted")


@cache.command()
def verify(
    folder: Folder, shared: Shared = False, as_json: AsJson = False, quiet: Quiet = False
) -> None:
    """Compare what a cache holds with its checksums; the exit code is 1 if anything is damaged.

    Damaged pieces are deleted, and fetched again when they are needed; so are files that belong
    to nothing.
    """
    with clear_errors(), _opened(folder, shared) as opened:
        from fastio.pack.progress import progress_bar

        with progress_bar("checking", "bytes", opened.status().bytes, not quiet) as advance:
            found = opened.verify(advance)
        if as_json:
            say_json(dataclasses.asdict(found))
        for piece in found.damaged:
            complain(f"{piece.path} of {piece.url}: {piece.problem}: deleted")
        for path in found.strays:
            complain(f"{path} is in no index: deleted")
        if not (quiet or as_json):
            bad = f"; {counted(len(found.damaged), 'piece')} damaged" if found.damaged else ""
            say(f"{folder}: {_pieces(found.pieces, found.bytes)} checked{bad}")
        if found.damaged:
            raise typer.Exit(EXIT_FAILED)


def _opened(folder: Path, shared: bool) -> Cache:
    """A cache that is there, opened so that what running loaders need is known."""
    from fastio.cache import Cache, check_is_cache
    from fastio.staging.forecast import next_use

    check_is_cache(folder)
    opened = Cache(folder, shared=shared)
    opened.folder(next_use)
    return opened


def _status_lines(found: CacheStatus) -> list[str]:
    claims = f", {counted(found.claims, 'piece')} being fetched" if found.claims else ""
    rate = "nothing asked for yet" if found.hit_rate is None else f"{found.hit_rate:.1%}"
    lines = [
        _line("cache", found.path),
        _line("holds", f"{_pieces(found.pieces, found.bytes)}{claims}"),
        _line("disk", f"{readable_bytes(found.free_bytes)} free"),
        _line("open in", f"{found.processes} other process{'' if found.processes == 1 else 'es'}"),
        _line("hit rate", f"{rate} ({found.hits:,} hits, {found.misses:,} misses)"),
        _line("fetched", readable_bytes(found.fetched_bytes)),
        _line("evicted", counted(found.evicted, "piece")),
        _line("damaged", counted(found.damaged, "piece")),
    ]
    if found.tar_indexes:
        size = readable_bytes(found.tar_index_bytes)
        lines.append(_line("tar indexes", f"{counted(found.tar_indexes, 'piece')}, {size}"))
    for dataset in found.datasets:
        lines.append(_line("dataset", dataset.url))
        size = _pieces(dataset.pieces, dataset.bytes)
        lines.append(f"  {dataset.share:.1%} of {counted(dataset.rows, 'sample')}, {size}")
    return lines


def _line(key: str, value: str) -> str:
    return f"{key:<12} {value}"


def _pieces(count: int, nbytes: int) -> str:
    return f"{counted(count, 'piece')}, {readable_bytes(nbytes)}"


def _warm_summary(report: WarmReport, folder: Path) -> str:
    rate = report.bytes_fetched / max(report.seconds, 1e-3)
    all_of_it = "all" if report.complete else f"{report.rows_staged:,} of"
    return (
        f"{folder}: {all_of_it} {counted(report.rows, 'sample')} of {report.url}, "
        f"{readable_bytes(report.bytes)}; {readable_bytes(report.bytes_fetched)} fetched in "
        f"{report.seconds:.1f} s ({readable_bytes(round(rate))}/s)"
    )
