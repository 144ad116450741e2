"""fastio doctor: find the bottleneck of training, the change to make, and its expected gain."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    AsJson,
    BadParameter,
    StorageOptions,
    check_there,
    clear_errors,
    parse_storage_options,
    say_json,
)
from fastio.cli.described import Written, with_options_of
from fastio.diagnose.options import Use

if TYPE_CHECKING:
    from fastio.diagnose import Finding

EXIT_FINDINGS = 3


_WRITTEN = {"model_rate": Written(metavar="SAMPLES/S", least=0.001)}


@with_options_of(Use, written=_WRITTEN, without=frozenset({"storage_options"}))
def doctor(
    given: dict[str, Any],
    data: Annotated[
        str | None,
        typer.Argument(
            help="The path or URL of a dataset that a Loader reads. Without it, only the machine "
            "is examined."
        ),
    ] = None,
    stats: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="JSON of loader.stats().to_dict(): diagnose a loader that ran.",
        ),
    ] = None,
    storage_options: StorageOptions = None,
    fail_over: Annotated[
        float,
        typer.Option(min=1.0, help="Exit with status 3 if a change gains at least this factor."),
    ] = 1.2,
    as_json: AsJson = False,
) -> None:
    """Find what training waits for, what to change, and the gain to expect, in under a minute."""
    use = Use(**given, storage_options=parse_storage_options(storage_options) or {})
    with clear_errors():
        check_there(data)
        from fastio.diagnose import diagnose, expected
        from fastio.diagnose.probes import examine
        from fastio.diagnose.report import fact_lines, print_diagnosis

        told: dict[str, Any] = {}
        lines: list[tuple[str, str]] = []
        if stats is not None:
            found = _of_stats(stats, use.model_rate)
        else:
            if not as_json and sys.stderr.isatty():
                print("measuring ...", end="\r", file=sys.stderr, flush=True)
            facts = examine(data, use)
            found, now = diagnose(facts, use), expected(facts, use)
            told = {"facts": facts.to_dict(), "stages": now.rates() if now else {}}
            lines = fact_lines(facts, use)
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
