"""fastio pack: convert data into a packed dataset."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from typer import BadParameter

from fastio.cli.command import STANDARD, Given, Output, Written, command
from fastio.cli.parsing import (
    parse_conditions,
    parse_names,
    parse_nulls,
)
from fastio.pack.api import PackReport
from fastio.pack.api import pack as pack_samples
from fastio.pack.ray_engine import ray_cluster
from fastio.runtime.sizes import counted, size_in_bytes, size_text
from fastio.sources import describe, find


def _separator(text: str) -> int | str:
    """Returns a token, or its number if the text is decimal."""
    return int(text) if text.isdecimal() else text


_REPEATED = "May be repeated."
_WRITTEN = {
    "src": Written(many=True),
    "codebook": Written(metavar="default|train|FILE"),
    "quality": Written(most=100),
    "columns": Written(metavar="A,B,...", parse=parse_names),
    "nulls": Written("null", "NAME=VALUE|mask", _REPEATED, many=True, parse=parse_nulls),
    "filters": Written(
        "filter",
        "'COLUMN OP VALUE'",
        "For example 'year >= 2024', 'word != \"a\"' or 'kind in a,b'; OP is one of ==, !=, <, <=, "
        ">, >=, in, not in. May be repeated; a row must meet all conditions.",
        many=True,
        parse=parse_conditions,
    ),
    "max_unzipped_bytes": Written(
        "max-unzipped",
        "SIZE",
        "For example 1GiB.",
        parse=partial(size_in_bytes, option="max_unzipped"),
    ),
    "dtypes": replace(STANDARD["dtypes"], syntax="For example label=float32. May be repeated."),
    "tokenizer": Written(metavar="bytes|NAME|FILE"),
    "separator": Written(metavar="auto|none|TOKEN|NUMBER", parse=_separator),
    "ray": Written(metavar="auto|ADDRESS|local"),
    "source_options": replace(STANDARD["storage_options"], syntax=_REPEATED),
}


@command(
    pack_samples,
    written=_WRITTEN,
    without=frozenset({"progress", "schema", "vocabulary_size", "engine"}),
)
def pack(given: Given, quiet: bool = False, ray: str | None = None) -> Output:
    """Pack images, tables or text into a dataset that loads fast.

    Args:
        ray: Pack on a Ray cluster: 'auto' for the one that this machine belongs to, its address
            such as 10.0.0.1:6379, or 'local' for one that is started on this machine and ends with
            the pack. Needs fastio[ray]; see docs/ray.md.
    """
    src, text = given.pop("src"), given["tokenizer"] is not None
    if len(src) > 1 and not text and find(src) is None:
        raise BadParameter(
            f"there are {len(src)} sources ({src[0]}, {src[1]}{', ...' * (len(src) > 2)}): only "
            "tars, tables, and text with --tokenizer can have more than one"
        )
    source = src if len(src) > 1 else src[0]
    if ray is None:
        with _forking():
            report = pack_samples(source, **given, progress=not quiet)
    else:
        with ray_cluster(ray):
            report = pack_samples(source, **given, progress=not quiet, engine="ray")
    values = dataclasses.asdict(report)
    if report.tokens is None:
        del values["tokens"]
    problems = [f"skipped {name}: {reason}" for name, reason in report.skipped]
    version = ""
    if given["append"]:
        found = describe(given["dst"], storage_options=given["storage_options"])
        version = f"; version {found['version']} has {counted(found['rows'], 'samples')}"
    return Output(values, [f"{given['dst']}: {_summary(report)}{version}"], problems)


@contextmanager
def _forking() -> Iterator[None]:
    """Makes multiprocessing fork worker processes, which is not the default from Python 3.14 on.

    `fastio.pack` uses the start method of the calling program, and packs image files with threads
    if it is not fork. The command may change it, because no other code runs in its process.
    """
    methods = multiprocessing.get_all_start_methods()
    if multiprocessing.get_start_method(allow_none=True) is not None or "fork" not in methods:
        yield
        return
    multiprocessing.set_start_method("fork")
    try:
        yield
    finally:
        multiprocessing.set_start_method(None, force=True)


def _summary(report: PackReport) -> str:
    shards = counted(report.shards, "shards")
    if report.was_complete:
        size = f"{counted(report.rows, 'samples')} in {shards}, {size_text(report.bytes)}"
        return f"complete already, nothing to resume: {size}"
    made = f"{shards}, {size_text(report.bytes)}, packed in {report.seconds:.1f} s"
    if report.tokens is None:
        skipped = f"; {counted(len(report.skipped), 'bad ones')} skipped" if report.skipped else ""
        return f"{counted(report.rows, 'samples')} in {made}{skipped}"
    counts = report.tokens
    empty = f"; {counted(counts.empty, 'empty ones')} left out" if counts.empty else ""
    documents = f"{counted(counts.tokens, 'tokens')} of {counted(counts.documents, 'documents')}"
    return f"{documents} in {made}, {counts.tokens_per_second:,.0f} tokens/s{empty}"
