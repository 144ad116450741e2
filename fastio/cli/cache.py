"""fastio cache: inspect, fill and clean the local disk cache of remote datasets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastio.cli.common import (
    EXIT_FAILED,
    AsJson,
    Quiet,
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
    from fastio.stage import WarmReport

cache = typer.Typer(
    help="Inspect, fill and clean the local disk cache of remote datasets.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the cache.")]
Shared = Annotated[
    bool,
    typer.Option(
        "--shared", help="Use or create a cache that all members of the folder's group share."
    ),
]


@cache.command()
def status(folder: Folder, shared: Shared = False, as_json: AsJson = False) -> None:
    """Show the contents of a cache and its hit rate."""
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
            help="Maximum size of the cache, for example 200GB (default: the free space of its "
            "disk)."
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="Tars: a field that the loader reads; may be repeated, in the loader's order "
            "(default: all)."
        ),
    ] = None,
    shared: Shared = False,
    storage_options: StorageOptions = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of concurrent requests (default: by the number of cores)."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a dataset, or as much of its beginning as fits, into a cache before training.

    Data that is already in the cache is not fetched again. The exit code is 1 if data is damaged at
    the source.
    """
    options = parse_storage_options(storage_options)
    with clear_errors():
        from fastio.cache import Cache
        from fastio.pack.progress import progress_bar
        from fastio.sources import open as open_data
        from fastio.stage import warm as warm_dataset

        opened = Cache(folder, budget, shared=shared)
        # The cache keeps the index of tars, which takes a pass over their headers to build.
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
                advance(total - report.bytes)  # bytes that are neither images nor samples
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
    to: Annotated[str, typer.Option(help="Size to reduce the cache to, for example 50GB.")],
    shared: Shared = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Delete the least recently used data until the cache has a given size; data in use stays."""
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
        str | None, typer.Option(metavar="URL", help="Delete the data of this dataset only.")
    ] = None,
    shared: Shared = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Delete the contents of a cache, except data that running processes are fetching."""
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
    """Compare a cache with its checksums. The exit code is 1 if anything is damaged.

    Damaged pieces are deleted, and fetched again when they are needed. Files that the index does
    not list are deleted too.
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
            complain(f"{path} is not in the index: deleted")
        if not (quiet or as_json):
            bad = f"; {counted(len(found.damaged), 'piece')} damaged" if found.damaged else ""
            say(f"{folder}: {_pieces(found.pieces, found.bytes)} checked{bad}")
        if found.damaged:
            raise typer.Exit(EXIT_FAILED)


def _opened(folder: Path, shared: bool) -> Cache:
    """Opens an existing cache, with the knowledge of what running loaders need next."""
    from fastio.cache import Cache, check_is_cache
    from fastio.stage.forecast import next_use

    check_is_cache(folder)
    opened = Cache(folder, shared=shared)
    opened.folder(next_use)
    return opened


def _status_lines(found: CacheStatus) -> list[str]:
    claims = f", {counted(found.claims, 'piece')} being fetched" if found.claims else ""
    rate = "nothing requested yet" if found.hit_rate is None else f"{found.hit_rate:.1%}"
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
