"""fastio doctor: what one waits for, what to change, and what that would bring."""

from __future__ import annotations

import json
import sys
import textwrap
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
    readable_bytes,
    say,
    say_json,
)

if TYPE_CHECKING:
    from fastio.diagnose import Facts, Pipeline, Use
    from fastio.diagnose.findings import Finding

EXIT_FINDINGS = 3
_WIDTH = 100
_BEFORE_ADVICE = 9  # characters


def doctor(
    data: Annotated[
        str | None,
        typer.Argument(help="What a loader takes: a path or a URL. Without it: the machine."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples a step.")] = 256,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="num_workers of your loader; default: all cores."),
    ] = None,
    crop: Annotated[int, typer.Option("--crop", min=1, help="Pixels that images become.")] = 224,
    model_rate: Annotated[
        float | None,
        typer.Option(
            "--model-rate",
            min=0.001,
            metavar="SAMPLES/S",
            help="What the model takes when data is there, as `fastio bench` measures it.",
        ),
    ] = None,
    cache: Annotated[
        str | None, typer.Option("--cache", help="The folder your loader keeps a URL's data in.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            min=1,
            help="That you train; default: so many that the first does not count.",
        ),
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
        typer.Option("--scratch", help="A folder to measure writing in (64 MiB, deleted again)."),
    ] = None,
    storage_options: StorageOptions = None,
    fail_over: Annotated[
        float, typer.Option("--fail-over", min=1.0, help="Exit with 3 for a gain of this or more.")
    ] = 1.2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what you wait for, what to change, and what that would bring, in less than a minute."""
    options = parse_storage_options(storage_options) or {}
    with clear_errors():
        check_there(data)
        from fastio.diagnose import Use, diagnose, pipeline_of
        from fastio.diagnose.probes import examine

        use = Use(batch_size, threads, crop, model_rate, cache, options, scratch, epochs)
        if stats is not None:
            found = _of_stats(stats, model_rate)
            told: dict[str, Any] = {}
            lines: list[str] = []
        else:
            if not as_json and sys.stderr.isatty():
                print("measuring ...", end="\r", file=sys.stderr, flush=True)
            facts = examine(data, use)
            found, stages = diagnose(facts, use), pipeline_of(facts, use)
            told = {"facts": facts.to_dict(), "stages": stages.stages if stages else {}}
            lines = _summary(facts, stages, use)
    if as_json:
        say_json(told | {"findings": [finding.to_dict() for finding in found]})
    else:
        say(*"\n".join([*lines, *_advice(found)]).split("\n"))
    if any((finding.gain or 0.0) >= fail_over for finding in found):
        raise typer.Exit(EXIT_FINDINGS)


def _of_stats(path: Path, model_rate: float | None) -> tuple[Finding, ...]:
    from dataclasses import fields

    from fastio.cores import available_cores
    from fastio.diagnose import diagnose_stats
    from fastio.stats import Stats

    try:
        values = json.loads(path.read_text())
        known = {field.name: values[field.name] for field in fields(Stats) if field.name in values}
    except (ValueError, TypeError) as error:
        raise BadParameter(
            f"{path} does not contain the JSON of loader.stats().to_dict()"
        ) from error
    return diagnose_stats(Stats(**known), available_cores(), model_rate)


# --- What was measured ----------------------------------------------------------------------------


def _summary(facts: Facts, stages: Pipeline | None, use: Use) -> list[str]:
    lines = [
        ("machine", _machine(facts)),
        ("data", _data(facts)),
        ("memory", _memory(facts)),
        ("rates", _rates(facts, stages)),
        ("you wait for", _waits(stages, use)),
    ]
    notes = [("not measured", note) for note in facts.notes]
    return [_wrapped(f"{key:<13} ", text, 14) for key, text in (*lines, *notes) if text]


def _machine(facts: Facts) -> str:
    machine, settings, gpu = facts.machine, facts.settings, facts.gpu
    if machine is None:
        return ""
    parts = [f"{counted(machine.cores, 'core')} of {machine.cpu} ({machine.simd})"]
    parts.append(readable_bytes(machine.memory_bytes))
    if gpu is not None:
        parts.append(f"{gpu.count} x {gpu.name}" if gpu.count > 1 else gpu.name)
    if settings is not None:
        parts.append(f"torch {settings.torch}, {settings.torch_threads} threads")
    return ", ".join(parts)


def _data(facts: Facts) -> str:
    data, images, tables = facts.data, facts.images, facts.tables
    if data is None:
        return ""
    least = "" if data.complete else "more than "
    kind = f"packed {data.kind}" if data.packed and data.kind != "packed" else data.kind
    parts = [f"{kind}: {least}{counted(data.rows, 'sample')}"] if data.rows else [kind]
    if data.nbytes:
        parts.append(f"{readable_bytes(data.nbytes)} in {counted(data.files, 'file')}")
    if images is not None and images.formats:
        parts.append(", ".join(f"{share:.0%} {name}" for name, share in images.formats.items()))
    if data.codecs:
        parts.append(
            ", ".join(f"{count:,} {codec}" for codec, count in data.codecs.items() if count)
        )
    if images is not None and images.long_side:
        parts.append(f"median {images.short_side} x {images.long_side} pixels")
    if tables is not None and tables.columns:
        parts.append(
            f"{tables.columns} columns, row groups of {tables.group_rows:,} rows, "
            f"{'/'.join(tables.compressions).lower()}"
        )
    if facts.storage is not None:
        parts.append(f"on {facts.storage.file_system}")
    return ", ".join(parts)


def _memory(facts: Facts) -> str:
    from fastio.diagnose.pipeline import stays_in_memory

    machine, data, storage = facts.machine, facts.data, facts.storage
    if machine is None or data is None or data.remote or not data.nbytes:
        return ""
    fits = "the data fits" if stays_in_memory(facts) else "the data does not fit"
    share = storage.resident_share if storage is not None else None
    now = "" if share is None else f"; {share:.0%} of it is there now"
    return f"{readable_bytes(machine.available_bytes)} free: {fits}{now}"


def _rates(facts: Facts, stages: Pipeline | None) -> str:
    """Samples a second, stage by stage."""
    from fastio.diagnose.pipeline import cold_rate, network_bytes_s

    parts = []
    cold, images, remote = cold_rate(facts), facts.images, facts.remote
    if cold:
        parts.append(f"disk {cold:,.0f}/s")
    if remote is not None and remote.latency_s is not None:
        rate = (network_bytes_s(facts) or 0.0) / 1e6
        parts.append(f"network {rate:,.0f} MB/s, {remote.latency_s * 1e3:,.1f} ms a request")
    if stages is not None and "decode" in stages.stages:
        rate = stages.stages["decode"]
        one = images.one_thread_rate if images is not None else None
        parts.append(f"loader {rate:,.0f}/s" + (f" ({one:,.0f} on one thread)" if one else ""))
    if images is not None and images.pillow_rate:
        parts.append(f"Pillow {images.pillow_rate:,.0f}/s a process")
    if facts.storage is not None and facts.storage.write_bytes_s:
        parts.append(f"writes {facts.storage.write_bytes_s / 1e6:,.0f} MB/s")
    return ", ".join(parts)


def _waits(stages: Pipeline | None, use: Use) -> str:
    if stages is None:
        return ""
    rate = f"{stages.rate:,.0f} samples/s"
    if stages.slowest == "model":
        return f"the model ({rate})"
    names = {
        "decode": "the loader's threads",
        "disk": "the disk",
        "network": "the network",
        "copy": "copies to the GPU",
    }
    unless = "" if use.model_rate else "; a model that takes less waits for nothing"
    return f"{names[stages.slowest]} ({rate}{unless})"


# --- What to do -----------------------------------------------------------------------------------


def _advice(found: tuple[Finding, ...]) -> list[str]:
    if not found:
        return ["", "Nothing to gain of note."]
    lines = []
    for finding in found:
        gain = f"{finding.gain:.1f} x" if finding.gain is not None else ""
        words = finding.waits_for[:1].upper() + finding.waits_for[1:]
        lines += ["", _wrapped(f"{gain:>7}  ", words, _BEFORE_ADVICE)]
        lines.append(_wrapped(" " * _BEFORE_ADVICE + "> ", finding.advice, _BEFORE_ADVICE + 2))
        for line in finding.evidence:
            lines.append(_wrapped(" " * _BEFORE_ADVICE + "  ", line, _BEFORE_ADVICE + 2))
    if any(finding.gain is not None for finding in found):
        lines += ["", "Gains are estimates by the rates above: the slowest stage decides an epoch."]
    return lines


def _wrapped(first: str, text: str, indent: int) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
