"""fastio cache: inspect, fill and clean the local disk cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import typer

from fastio.cache import Cache, CacheStatus, Removed, check_is_cache
from fastio.cli.command import EXIT_FAILED, Given, Output, Written, command
from fastio.cli.common import line
from fastio.pack.progress import progress_bar
from fastio.runtime.sizes import counted, size_text
from fastio.sources import open as open_data
from fastio.stage import WarmReport
from fastio.stage import warm as warm_dataset
from fastio.stage.blocks import check_remote
from fastio.stage.forecast import next_use

cache = typer.Typer(
    help="Inspect, fill and clean the local disk cache of remote datasets and recoded images.",
    no_args_is_help=True,
    add_completion=False,
)

_PATH = {"path": Written(metavar="DIR")}
_UNUSED = frozenset({"budget", "pack"})


@cache.command()
@command(Cache, written=_PATH, without=_UNUSED)
def status(folder: Given) -> Output:
    """Show the contents of a cache and its hit rate."""
    with _opened(folder) as opened:
        found = opened.status()
    values = {**dataclasses.asdict(found), "hit_rate": found.hit_rate}
    return Output(values, [*_status_lines(found)])


@cache.command()
@command(
    warm_dataset,
    Cache,
    written=_PATH | {"fields": Written("field", "NAME", "May be repeated.", many=True)},
    without=frozenset({"cache", "advance", "pack"}),
)
def warm(given: Given, folder: Given, quiet: bool = False) -> Output:
    """Fetch a dataset, or as much of its beginning as fits, into a cache before training.

    Data that is already in the cache is not fetched again. The exit code is 1 if data is damaged at
    the source.
    """
    how = {name: given[name] for name in ("storage_options", "fields", "split", "config")}
    opened = Cache(**folder)
    # The cache keeps the index of tars, which takes a pass over their headers to build.
    with opened, open_data(given["url"], **how, cache=opened) as dataset:
        check_remote(dataset, given["url"])
        total = min(dataset.nbytes, opened.budget or dataset.nbytes)
    with progress_bar("fetching", "bytes", total, not quiet) as advance:
        report = warm_dataset(**given, cache=opened, advance=advance)
        if report.complete:
            advance(total - report.bytes)  # bytes that are neither images nor samples
    return Output(
        {**dataclasses.asdict(report), "complete": report.complete},
        [f"{folder['path']}: {_warm_summary(report)}"],
        [f"damaged at the source: {problem}" for problem in report.damaged],
        EXIT_FAILED if report.damaged else 0,
    )


@cache.command()
@command(Cache, Cache.prune, written=_PATH | {"to": Written(argument=False)}, without=_UNUSED)
def prune(folder: Given, given: Given, quiet: bool = False) -> Output:
    """Delete the least recently used data until the cache has a given size; data in use stays."""
    with _opened(folder) as opened:
        removed = opened.prune(**given)
        left = size_text(opened.status().bytes)
    return _deleted(folder, removed, f", {left} left")


@cache.command()
@command(Cache, Cache.clear, written=_PATH | {"url": Written("dataset", "URL")}, without=_UNUSED)
def clear(folder: Given, given: Given, quiet: bool = False) -> Output:
    """Delete the contents of a cache, except data that running processes are fetching."""
    with _opened(folder) as opened:
        return _deleted(folder, opened.clear(**given))


@cache.command()
@command(Cache, written=_PATH, without=_UNUSED)
def verify(folder: Given, quiet: bool = False) -> Output:
    """Compare a cache with its checksums. The exit code is 1 if anything is damaged.

    Damaged pieces are deleted, and fetched again when they are needed. Files that the index does
    not list are deleted too.
    """
    with (
        _opened(folder) as opened,
        progress_bar("checking", "bytes", opened.status().bytes, not quiet) as advance,
    ):
        found = opened.verify(advance)
    problems = [f"{each.path} of {each.url}: {each.problem}: deleted" for each in found.damaged]
    problems += [f"{path} is not in the index: deleted" for path in found.strays]
    bad = f"; {counted(len(found.damaged), 'pieces')} damaged" if found.damaged else ""
    text = f"{folder['path']}: {_pieces(found.pieces, found.bytes)} checked{bad}"
    code = EXIT_FAILED if found.damaged else 0
    return Output(dataclasses.asdict(found), [text], problems, code)


def _opened(folder: Given) -> Cache:
    """Opens an existing cache, with the knowledge of what running loaders need next."""
    check_is_cache(Path(folder["path"]))
    opened = Cache(**folder)
    opened.folder(next_use)
    return opened


def _deleted(folder: Given, removed: Removed, left: str = "") -> Output:
    size = _pieces(removed.pieces, removed.bytes)
    return Output(dataclasses.asdict(removed), [f"{folder['path']}: {size} deleted{left}"])


def _status_lines(found: CacheStatus) -> Iterator[str]:
    claims = f", {counted(found.claims, 'pieces')} being fetched" if found.claims else ""
    rate = "nothing requested yet" if found.hit_rate is None else f"{found.hit_rate:.1%}"
    yield line("cache", found.path)
    yield line("holds", f"{_pieces(found.pieces, found.bytes)}{claims}")
    yield line("disk", f"{size_text(found.free_bytes)} free")
    yield line("open in", f"{found.processes} other process{'' if found.processes == 1 else 'es'}")
    yield line("hit rate", f"{rate} ({found.hits:,} hits, {found.misses:,} misses)")
    yield line("fetched", size_text(found.fetched_bytes))
    yield line("evicted", counted(found.evicted, "pieces"))
    yield line("damaged", counted(found.damaged, "pieces"))
    if found.indexes:
        yield line("indexes", _pieces(found.indexes, found.index_bytes))
    for dataset in found.datasets:
        yield line("recoded" if dataset.recoded else "dataset", dataset.url)
        size = _pieces(dataset.pieces, dataset.bytes)
        yield f"  {dataset.share:.1%} of {counted(dataset.rows, 'samples')}, {size}"


def _pieces(count: int, nbytes: int) -> str:
    return f"{counted(count, 'pieces')}, {size_text(nbytes)}"


def _warm_summary(report: WarmReport) -> str:
    rate = size_text(round(report.bytes_fetched / max(report.seconds, 1e-3)))
    part = "all" if report.complete else f"{report.rows_staged:,} of"
    return (
        f"{part} {counted(report.rows, 'samples')} of {report.url}, "
        f"{size_text(report.bytes)}; {size_text(report.bytes_fetched)} fetched in "
        f"{report.seconds:.1f} s ({rate}/s)"
    )
