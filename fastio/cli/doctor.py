"""fastio doctor: find the bottleneck of training, the change to make, and its expected gain."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    BadParameter,
    StorageOptions,
    check_there,
    clear_errors,
    parse_storage_options,
    say_json,
)

if TYPE_CHECKING:
    from fastio.diagnose import Finding

EXIT_FINDINGS = 3


def doctor(
    data: Annotated[
        str | None,
        typer.Argument(
            help="The path or URL of a dataset that a Loader reads. Without it, only the machine "
            "is examined."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples per step.")] = 256,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="num_workers of your loader (default: all cores)."),
    ] = None,
    crop: Annotated[
        int, typer.Option("--crop", min=1, help="Height and width of cropped images, in pixels.")
    ] = 224,
    model_rate: Annotated[
        float | None,
        typer.Option(
            "--model-rate",
            min=0.001,
            metavar="SAMPLES/S",
            help="Throughput of the model alone, as `fastio bench` measures it.",
        ),
    ] = None,
    cache: Annotated[
        str | None, typer.Option("--cache", help="Cache folder of your loader, for a URL.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Planned epochs (default: many)."),
    ] = None,
    stats: Annotated[
        Path | None,
        typer.Option(
            "--stats",
            exists=True,
            dir_okay=False,
            help="JSON of loader.stats().to_dict(): diagnose a loader that ran.",
        ),
    ] = None,
    scratch: Annotated[
        str | None,
        typer.Option(
            "--scratch", help="Folder whose write speed is measured (64 MiB, deleted afterwards)."
        ),
    ] = None,
    storage_options: StorageOptions = None,
    fail_over: Annotated[
        float,
        typer.Option(
            "--fail-over",
            min=1.0,
            help="Exit with status 3 if a change gains at least this factor.",
        ),
    ] = 1.2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find what training waits for, what to change, and the gain to expect, in under a minute."""
    options = parse_storage_options(storage_options) or {}
    with clear_errors():
        check_there(data)
        from fastio.diagnose import Use, diagnose, expected
        from fastio.diagnose.probes import examine
        from fastio.diagnose.report import fact_lines, print_diagnosis

        use = Use(batch_size, threads, crop, model_rate, cache, options, scratch, epochs)
        told: dict[str, Any] = {}
        lines: list[tuple[str, str]] = []
        if stats is not None:
            found = _of_stats(stats, model_rate)
        else:
            if not as_json and sys.stderr.isatty():
                print("measuring ...", end="\r", file=sys.stderr, flush=True)
            facts = examine(data, use)
            found, now = diagnose(facts, use), expected(facts, use)
            told = {"facts": facts.to_dict(), "stages": now.rates() if now else {}}
            lines = fact_lines(facts, now, use)
    if as_json:
        say_json(told | {"findings": [finding.to_dict() for finding in found]})
    else:
        print_diagnosis(lines, found)
    if any((finding.gain or 0.0) >= fail_over for finding in found):
        raise typer.Exit(EXIT_FINDINGS)


def _of_stats(path: Path, model_rate: float | None) -> tuple[Finding, ...]:
    from dataclasses import fields

    from fastio.diagnose import diagnose_stats
    from fastio.runtime.cores import available_cores
    from fastio.stats import Stats

    try:
        values = json.loads(path.read_text())
        known = {field.name: values[field.name] for field in fields(Stats) if field.name in values}
    except (ValueError, TypeError) as error:
        raise BadParameter(
            f"{path} does not contain the JSON of loader.stats().to_dict()"
        ) from error
    return diagnose_stats(Stats(**known), available_cores(), model_rate)
