"""fastio pack: convert data into a packed dataset."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    AsJson,
    BadParameter,
    Quiet,
    StorageOptions,
    clear_errors,
    complain,
    counted,
    parse_groups,
    parse_names,
    parse_pairs,
    parse_storage_options,
    readable_bytes,
    say,
    say_json,
)
from fastio.cli.conditions import parse_conditions
from fastio.cli.described import Written, descriptions, with_options_of
from fastio.pack.api import pack as pack_samples
from fastio.pack.api import parse_size

if TYPE_CHECKING:
    from fastio.pack.api import PackReport, TokenCounts


def _nulls(given: list[str]) -> dict[str, int | float | str]:
    return {name: _value(text) for name, text in parse_pairs("--null", given).items()}


def _separator(text: str) -> int | str:
    """Returns a token, or its number if the text is decimal."""
    return int(text) if text.isdecimal() else text


def _value(text: str) -> int | float | str:
    """Returns the value that replaces nulls: a number if the text reads like one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


_REPEATED = "May be repeated."
_WRITTEN = {
    "codebook": Written(metavar="default|train|FILE"),
    "quality": Written(most=100),
    "columns": Written(metavar="A,B,...", parse=parse_names),
    "groups": Written(
        "group",
        "NAME=A,B,...",
        f"On the command line dense=I1..I13. {_REPEATED}",
        True,
        parse=partial(parse_groups, "--group"),
    ),
    "dtypes": Written(
        "dtype",
        "NAME=DTYPE",
        f"On the command line label=float32. {_REPEATED}",
        True,
        parse=partial(parse_pairs, "--dtype"),
    ),
    "nulls": Written("null", "NAME=VALUE|mask", _REPEATED, True, parse=_nulls),
    "filters": Written(
        "filter",
        "'COLUMN OP VALUE'",
        "On the command line 'year >= 2024', 'word != \"a\"' or 'kind in a,b'; OP is one of ==, "
        "!=, <, <=, >, >=, in, not in. May be repeated; a row must meet all conditions.",
        True,
        parse=parse_conditions,
    ),
    "roots": Written("root", "DIR", _REPEATED, True),
    "max_unzipped_bytes": Written("max-unzipped", "SIZE", "1GiB, for example.", parse=parse_size),
    "tokenizer": Written(metavar="bytes|NAME|FILE"),
    "separator": Written(metavar="auto|none|TOKEN|NUMBER", parse=_separator),
}
_TEXTS = descriptions(pack_samples)


@with_options_of(
    pack_samples,
    written=_WRITTEN,
    without=frozenset(
        {"progress", "schema", "vocabulary_size", "storage_options", "source_options"}
    ),
)
def pack(
    given: dict[str, Any],
    src: Annotated[list[str], typer.Argument(help=_TEXTS["src"])],
    dst: Annotated[str, typer.Argument(help=_TEXTS["dst"])],
    storage_options: StorageOptions = None,
    source_options: Annotated[
        list[str] | None,
        typer.Option("--source-options", metavar="KEY=VALUE|JSON", help=_TEXTS["source_options"]),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Pack images, tables or text into a dataset that loads fast."""
    options = parse_storage_options(storage_options)
    with clear_errors():
        report = pack_samples(
            _source(src, text=given["tokenizer"] is not None),
            dst,
            progress=not quiet,
            storage_options=options,
            source_options=parse_storage_options(source_options, "--source-options"),
            **given,
        )
        if as_json:
            say_json(_as_json(report))
            return
        for name, reason in report.skipped:
            complain(f"skipped {name}: {reason}")
        if not quiet:
            say(_summary(report, dst))


def _source(src: list[str], text: bool) -> str | list[str]:
    """Returns the source to pack: one path, or a list of paths.

    Raises:
        typer.BadParameter: several paths are given for a kind of data that allows only one.
    """
    from fastio.sources import find

    if len(src) == 1:
        return src[0]
    if not text and find(src) is None:
        raise BadParameter(
            f"there are {len(src)} sources ({src[0]}, {src[1]}, ...): only tars, tables, and "
            "text with --tokenizer can have more than one"
        )
    return src


def _as_json(report: PackReport) -> dict[str, Any]:
    """Returns the report as JSON values; the token counts are left out if there are none."""
    found = dataclasses.asdict(report)
    if report.tokens is None:
        del found["tokens"]
    return found


def _summary(report: PackReport, dst: str) -> str:
    if report.tokens is not None:
        return _summary_of_text(report, report.tokens, dst)
    skipped = f"; {counted(len(report.skipped), 'bad one')} skipped" if report.skipped else ""
    return (
        f"{dst}: {counted(report.rows, 'sample')} in {counted(report.shards, 'shard')}, "
        f"{readable_bytes(report.bytes)}, packed in {report.seconds:.1f} s{skipped}"
    )


def _summary_of_text(report: PackReport, counts: TokenCounts, dst: str) -> str:
    empty = f"; {counted(counts.empty, 'empty one')} left out" if counts.empty else ""
    return (
        f"{dst}: {counted(counts.tokens, 'token')} of {counted(counts.documents, 'document')} in "
        f"{counted(report.shards, 'shard')}, {readable_bytes(report.bytes)}, packed in "
        f"{report.seconds:.1f} s, {counts.tokens_per_second:,.0f} tokens/s{empty}"
    )
