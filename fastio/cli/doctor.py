"""fastio doctor: find the bottleneck of training, the change to make, and its expected gain."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import BadParameter

from fastio.cli.command import Given, Output, Written, command
from fastio.cli.common import check_there
from fastio.diagnose.options import Use, check_used
from fastio.shown import stderr_is_terminal

if TYPE_CHECKING:
    from fastio.diagnose import Finding

EXIT_FINDINGS = 3

_WRITTEN = {
    "data": Written(argument=True),
    "pipeline": Written(metavar="MODULE:NAME"),
    "model_rate": Written(metavar="SAMPLES/S", least=0.001),
    "fail_over": Written(least=1.0),
}


@command(Use, written=_WRITTEN, without=frozenset({"storage_options"}))
def doctor(
    given: Given,
    data: str | None = None,
    stats: Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fail_over: float = 1.2,
) -> Output:
    """Find what training waits for, what to change, and the gain to expect, in under a minute.

    Args:
        data: The path or URL of a dataset that a Loader reads. Without it, only the machine is
            examined.
        stats: JSON of loader.stats().to_dict(): diagnoses a loader that ran. Give it without DATA.
        fail_over: Exit with status 3 if a change gains at least this factor.
    """
    if stats is not None and data is not None:
        raise BadParameter(
            f"it describes a loader that ran, so {data} would not be examined: give either DATA or "
            "--stats",
            param_hint="--stats",
        )
    use = Use(**given, storage_options=storage_options or {})
    if stats is not None:
        check_used(use, {"model_rate"}, "cannot be used with --stats, of a loader that ran")
    elif data is None:
        unused = {"pipeline", "cache", "storage_options"}
        used = {each.name for each in fields(use)} - unused
        check_used(use, used, "needs DATA: without it, only the machine is examined")
    check_there(data)
    # Imported after the checks, because importing torch takes a second.
    from fastio.diagnose import diagnose, expected
    from fastio.diagnose.probes import examine
    from fastio.diagnose.report import doctor_report, print_report

    told: dict[str, Any] = {}
    facts = None
    if stats is not None:
        found = _of_stats(stats, use.model_rate)
    else:
        if stderr_is_terminal():
            print("measuring ...", end="\r", file=sys.stderr, flush=True)
        facts = examine(data, use)
        found, now = diagnose(facts, use), expected(facts, use)
        told = {"facts": facts.to_dict(), "stages": now.rates() if now else {}}
    gains = any((finding.gain or 0.0) >= fail_over for finding in found)
    return Output(
        told | {"findings": [finding.to_dict() for finding in found]},
        partial(print_report, doctor_report(facts, found, use)),
        code=EXIT_FINDINGS if gains else 0,
    )


def _of_stats(path: Path, model_rate: float | None) -> tuple[Finding, ...]:
    from fastio.diagnose import diagnose_stats
    from fastio.diagnose.measured import from_json
    from fastio.runtime.cores import available_cores
    from fastio.stats import Stats

    try:
        stats = from_json(Stats, json.loads(path.read_text()), "stats")
    except OSError as error:
        raise BadParameter(
            f"{path} cannot be read: {error.strerror}", param_hint="--stats"
        ) from error
    except ValueError as error:
        raise BadParameter(
            f"{path} does not contain the JSON of loader.stats().to_dict(): {error}",
            param_hint="--stats",
        ) from error
    return diagnose_stats(stats, available_cores(), model_rate)
