"""fastio bench: measure where the time of an epoch goes."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    BadParameter,
    StorageOptions,
    check_there,
    clear_errors,
    counted,
    parse_storage_options,
)
from fastio.cli.train_options import Amp
from fastio.errors import BenchError
from fastio.runtime.files import is_stream, write_output
from fastio.shown import shown, shown_values

if TYPE_CHECKING:
    from fastio.diagnose.bench import Options
    from fastio.diagnose.findings import Finding
    from fastio.diagnose.measured import Measured


def bench(
    data: Annotated[
        str | None,
        typer.Argument(
            help="Any dataset that a Loader reads: packed, images, tars, tables, tokens, a URL. "
            "Without it, photos of the preset's size are generated."
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples per step.")] = None,
    threads: Annotated[
        int, typer.Option(min=0, help="Number of threads of the loader; 0 uses all cores.")
    ] = 0,
    size: Annotated[
        int, typer.Option(min=1, help="Height and width of cropped images, in pixels.")
    ] = 224,
    length: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of tokens per window (default: 1,024; with --model NAME: 512)."
        ),
    ] = None,
    transform: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A function of your own, called on each batch of images; may be repeated.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|MODULE:FUNCTION",
            help="The model to train: alexnet, convnet, resnet18, resnet50, vit-tiny or vit-small "
            "on images; tiny, small or distilbert on tokens; dlrm or mlp on tables; or a function "
            "that returns a torch module, or a callable that trains on a batch.",
        ),
    ] = None,
    amp: Annotated[
        Amp | None,
        typer.Option(help="Mixed precision; fp16 scales gradients. Default: float32."),
    ] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the model with torch.compile.")
    ] = False,
    channels_last: Annotated[
        bool,
        typer.Option(
            help="Keep weights and images in channels-last memory, for faster convolutions."
        ),
    ] = False,
    accelerator: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="Emulate an accelerator that processes RATE samples/s."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Emulate an accelerator of MLPerf Storage, such as resnet50-h100."),
    ] = None,
    bus: Annotated[
        float | None,
        typer.Option(metavar="GB/S", help="Bus of the emulated accelerator (default: infinite)."),
    ] = None,
    copies: Annotated[
        str,
        typer.Option(
            metavar="stream|blocking", help="Copy ahead of the step, or wait for each copy."
        ),
    ] = "stream",
    device: Annotated[
        str | None, typer.Option(help="Device of the model (default: a GPU if there is one).")
    ] = (None),
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Also measure torch's DataLoader with Pillow on this image folder; without DATA, "
            "'made' stands for the generated photos.",
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=0, help="Epochs to train with each loader, to compare accuracy.")
    ] = 0,
    val: Annotated[str | None, typer.Option(help="Images to evaluate on after --epochs.")] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="Approximate duration of the whole benchmark.")
    ] = 60.0,
    steps: Annotated[int | None, typer.Option(min=1, help="Maximum steps of each run.")] = None,
    cold: Annotated[
        bool, typer.Option(help="Also measure with an empty page cache or remote cache.")
    ] = True,
    cache: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for a temporary cache of a URL's data."),
    ] = None,
    work: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder in which generated and packed data is kept."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order and the augmentations.")] = 0,
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
    if copies not in ("stream", "blocking"):
        raise BadParameter(f"--copies must be stream or blocking, got {copies!r}")
    found_options = parse_storage_options(storage_options)
    with clear_errors():
        check_there(data)
        _check_written("--json", None if as_json == "-" else as_json)
        _check_written("--html", html)
        from fastio.diagnose.bench import Options
        from fastio.diagnose.bench.compute import load_function

        options = Options(
            data=data,
            batch_size=batch_size,
            threads=threads,
            size=size,
            length=length,
            transforms=tuple(load_function(name) for name in transform or ()),
            model=model or ("convnet" if ladder else None),
            rate=accelerator,
            preset=preset,
            bus=None if bus is None else bus * 1e9,
            blocking_copies=copies == "blocking",
            device=device,
            amp=None if amp is None else amp.value,
            compile=compile,
            channels_last=channels_last,
            baseline=baseline,
            epochs=epochs,
            val=val,
            seconds=seconds,
            steps=steps,
            cold=cold,
            cache=cache,
            work=work,
            seed=seed,
            storage_options=found_options,
        )
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
        raise BenchError(f"{option} {path} is a folder: name a file in it")
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
