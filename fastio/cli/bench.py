"""fastio bench: measure where the time of an epoch goes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastio.cli.command import Given, Written, command
from fastio.cli.common import check_there, json_text
from fastio.diagnose.options import Options
from fastio.errors import BenchError, OptionError
from fastio.runtime.files import is_stream, write_output
from fastio.runtime.sizes import counted
from fastio.shown import shown, stderr_is_terminal
from fastio.store import local_only

if TYPE_CHECKING:
    from fastio.diagnose.report import Report


def _functions(names: list[str]) -> tuple[Callable[[Any], Any], ...]:
    from fastio.diagnose.bench.compute import load_function

    return tuple(map(load_function, names))


_WRITTEN = {
    "data": Written(argument=True),
    "threads": Written(least=0),
    "transforms": Written(
        "transform", "MODULE:FUNCTION", "May be repeated.", many=True, parse=_functions
    ),
    "pipeline": Written(metavar="MODULE:NAME"),
    "model": Written(metavar="NAME|MODULE:FUNCTION"),
    "rate": Written("accelerator", "RATE"),
    "bus": Written(metavar="GB/S", parse=lambda given: given * 1e9),
    "baseline": Written(metavar="FOLDER"),
    "epochs": Written(least=0),
    "seconds": Written(least=1),
    "work": Written(metavar="DIR"),
    "as_json": Written("json", "FILE|-"),
    "html": Written(metavar="FILE"),
}


@command(Options, written=_WRITTEN)
def bench(
    given: Given, ladder: bool = False, as_json: str | None = None, html: Path | None = None
) -> None:
    """Measure where the time of an epoch goes, name the bottleneck, and predict what a fix gains.

    Times the model alone, the loader alone, and both together, warm and cold.

    Args:
        ladder: Train on DATA, an image folder, once for each optimisation, adding one at a time:
            from DataLoader without workers to several processes, and finally with a full recipe of
            augmentation. Uses --model (convnet), --epochs (1) and, for the full recipe, --pipeline.
        as_json: Write all measurements as JSON to this file, or to stdout (-).
        html: Write an HTML page with plots.
    """
    check_there(given["data"])
    if as_json not in (None, "-"):
        as_json = local_only(as_json, "--json")
    _check_written("--json", None if as_json == "-" else as_json)
    _check_written("--html", html)
    given["model"] = given["model"] or ("convnet" if ladder else None)
    given["transforms"] = given["transforms"] or ()
    options = Options(**given)
    (_climb if ladder else _measure)(options, as_json, html)


def _check_written(option: str, path: str | Path | None) -> None:
    """Raises an error before the measurement if its result could not be written.

    Raises:
        OptionError: the path is a folder.
        BenchError: the folder of the path is not writable.
    """
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise OptionError(f"{option} {path} is a folder: give the path of a file")
    if is_stream(target):
        return
    try:
        with tempfile.TemporaryFile(dir=target.absolute().parent):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise BenchError(f"{option} {path} cannot be written: {reason}") from error


def _measure(options: Options, as_json: str | None, html: Path | None) -> None:
    """Runs a bench, prints its report and writes its files."""
    from fastio.diagnose import diagnose
    from fastio.diagnose.bench import bench as run_bench
    from fastio.diagnose.report import bench_report

    with _status() as say:
        measured = run_bench(options, say)
    findings = diagnose(measured)
    told = measured.to_dict() | {"findings": [each.to_dict() for each in findings]}
    _report(bench_report(measured, findings), told, as_json, html)


def _climb(options: Options, as_json: str | None, html: Path | None) -> None:
    """Measures a ladder, prints its table and writes its files."""
    from dataclasses import asdict

    from fastio.diagnose.bench import ladder
    from fastio.diagnose.report import ladder_report

    with _status() as say:
        rungs = ladder(options, say)
    told = {"rungs": [asdict(rung) for rung in rungs]}
    _report(ladder_report(rungs, _facts(options)), told, as_json, html)


def _facts(options: Options) -> dict[str, str]:
    """Returns the facts on data, machine and settings that the page of a ladder shows."""
    from fastio.diagnose.bench.ladder import BATCH_SIZE
    from fastio.diagnose.probes.machine import machine_facts
    from fastio.diagnose.report import machine_line

    here = machine_facts()
    trained = f"{options.model}, {counted(max(1, options.epochs), 'epochs')} of each rung"
    batch_size = options.batch_size or BATCH_SIZE
    return {
        "data": str(options.data),
        "machine": machine_line(here),
        "settings": f"{trained}, {options.size} pixels, batches of {batch_size}",
        "date": here.date,
    }


def _report(report: Report, told: dict[str, Any], as_json: str | None, html: Path | None) -> None:
    """Writes the page and the JSON, which may go to stdout ("-"), and else prints the report."""
    from fastio.diagnose.report import print_report, write_page

    if html is not None:
        write_page(report, html)
    if as_json == "-":
        print(json_text(told, indent=1))
        return
    if as_json is not None:
        write_output(as_json, json_text(told, indent=1).encode() + b"\n")
    print_report(report)


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Shows on stderr which measurement runs; prints nothing if stderr is not a terminal.

    Returns:
        A function to call with what is measured.
    """
    if not stderr_is_terminal():
        yield lambda what: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda what: status.update(Text(shown(f"measuring: {what}")))
