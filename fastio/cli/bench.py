"""fastio bench: measure where the time of an epoch goes."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    StorageOptions,
    check_there,
    clear_errors,
    counted,
    parse_storage_options,
)
from fastio.cli.described import Written, descriptions, with_options_of
from fastio.diagnose.options import Options
from fastio.errors import BenchError
from fastio.runtime.files import is_stream, write_output
from fastio.shown import shown, shown_values

if TYPE_CHECKING:
    from fastio.diagnose.findings import Finding
    from fastio.diagnose.measured import Measured


def _functions(names: list[str]) -> tuple[Callable[[Any], Any], ...]:
    from fastio.diagnose.bench.compute import load_function

    return tuple(map(load_function, names))


_WRITTEN = {
    "threads": Written(least=0),
    "transforms": Written(
        "transform", "MODULE:FUNCTION", "May be repeated.", many=True, parse=_functions
    ),
    "model": Written(metavar="NAME|MODULE:FUNCTION"),
    "rate": Written("accelerator", "RATE"),
    "bus": Written(metavar="GB/S", parse=lambda given: given * 1e9),
    "baseline": Written(metavar="FOLDER"),
    "epochs": Written(least=0),
    "seconds": Written(least=1),
    "cache": Written(metavar="DIR"),
    "work": Written(metavar="DIR"),
    "seed": Written(least=0),
}


@with_options_of(Options, written=_WRITTEN, without=frozenset({"data", "storage_options"}))
def bench(
    given: dict[str, Any],
    data: Annotated[str | None, typer.Argument(help=descriptions(Options)["data"])] = None,
    ladder: Annotated[
        bool,
        typer.Option(
            "--ladder",
            help="Train on DATA, an image folder, once for each optimisation, adding one at a "
            "time: from DataLoader without workers to several processes. Uses --model (convnet) "
            "and --epochs (1).",
        ),
    ] = False,
    storage_options: StorageOptions = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write all measurements as JSON.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page with plots.")] = None,
) -> None:
    """Measure where the time of an epoch goes, name the bottleneck, and predict what a fix gains.

    Times the model alone, the loader alone, and both together, warm and cold.
    """
    stored = parse_storage_options(storage_options)
    with clear_errors():
        check_there(data)
        _check_written("--json", None if as_json == "-" else as_json)
        _check_written("--html", html)
        given["model"] = given["model"] or ("convnet" if ladder else None)
        given["transforms"] = given["transforms"] or ()
        options = Options(data, storage_options=stored, **given)
        if ladder:
            _climb(options, as_json, html)
            return
        measured, findings = _measure(options)
        if html is not None:
            from fastio.diagnose.report import write_page

            write_page(measured, findings, html)
        if as_json is not None:
            _write_json(as_json, measured, findings)
        if as_json != "-":
            from fastio.diagnose.report import print_report

            print_report(measured, findings)


def _check_written(option: str, path: str | Path | None) -> None:
    """Raises an error before the measurement if its result could not be written.

    Raises:
        BenchError: the path is a folder, or the folder of the path is not writable.
    """
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise BenchError(f"{option} {path} is a folder: give the path of a file")
    if is_stream(target):
        return
    try:
        with tempfile.TemporaryFile(dir=target.absolute().parent):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise BenchError(f"{option} {path} cannot be written: {reason}") from error


def _measure(options: Options) -> tuple[Measured, tuple[Finding, ...]]:
    from fastio.diagnose import diagnose
    from fastio.diagnose.bench import bench as run_bench

    with _spinner() as say:
        measured = run_bench(options, say)
    return measured, diagnose(measured)


def _climb(options: Options, as_json: str | None, html: Path | None) -> None:
    """Measures a ladder, prints its table and writes its files."""
    from dataclasses import asdict

    from fastio.diagnose.bench import ladder
    from fastio.diagnose.report import print_ladder, write_ladder

    with _spinner() as say:
        rungs = ladder(options, say)
    if html is not None:
        write_ladder(rungs, _facts(options), html)
    if as_json is not None:
        _write(as_json, {"rungs": [asdict(rung) for rung in rungs]})
    if as_json != "-":
        print_ladder(rungs)


def _facts(options: Options) -> dict[str, str]:
    """Returns the facts on data, machine and settings that the page of a ladder shows."""
    from fastio.diagnose.bench.ladder import BATCH_SIZE
    from fastio.diagnose.probes.machine import machine_facts
    from fastio.diagnose.report import machine_line

    here = machine_facts()
    trained = f"{options.model}, {counted(max(1, options.epochs), 'epoch')} of each rung"
    batch_size = options.batch_size or BATCH_SIZE
    return {
        "data": str(options.data),
        "machine": machine_line(here),
        "settings": f"{trained}, {options.size} pixels, batches of {batch_size}",
        "date": here.date,
    }


def _write_json(where: str, measured: Measured, findings: tuple[Finding, ...]) -> None:
    """Writes the measurements, with the findings under "findings", to a file or to stdout ("-")."""
    _write(where, measured.to_dict() | {"findings": [f.to_dict() for f in findings]})


def _write(where: str, values: dict[str, Any]) -> None:
    text = json.dumps(shown_values(values), indent=1, allow_nan=False)
    if where == "-":
        print(text)
    else:
        write_output(where, text.encode() + b"\n")


class _Spinner:
    """Shows on stderr which measurement runs; prints nothing if stderr is not a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._status = Console(stderr=True).status("")

    def __call__(self, what: str) -> None:
        from rich.text import Text

        self._status.update(Text(shown(f"measuring: {what}")))


@contextmanager
def _spinner() -> Iterator[_Spinner]:
    spinner = _Spinner()
    if not sys.stderr.isatty():
        yield spinner
        return
    with spinner._status:
        yield spinner
