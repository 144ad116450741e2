"""What a bench, a ladder or a doctor found out, described once for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastio.diagnose import words
from fastio.diagnose.cases import Case
from fastio.diagnose.facts import DataFacts, Facts, MachineFacts
from fastio.diagnose.findings import Finding, by_gain
from fastio.diagnose.measured import Epoch, Measured, PhaseName, Rung, Settings, Stage
from fastio.diagnose.options import Use
from fastio.diagnose.report.plots import Figure, figures, ladder_figure
from fastio.diagnose.report.tables import RUN_NAMES, Table, all_tables, ladder_table
from fastio.diagnose.rules.rule import Texts
from fastio.runtime.sizes import counted, size_text


@dataclass(frozen=True)
class Headline:
    """A number in large type: its label, the number with its unit, and a short explanation."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The contents of a report, in reading order. Texts may hold anything, and are shown cleaned.

    Attributes:
        command: command that made the report.
        facts: names and texts of facts of data and machine.
        subject: path of the data.
        verdict, lead: the result in a sentence, and a second sentence below it.
        numbers: the main numbers.
        findings: causes of lost time, the largest gain first; None if they were not determined.
        epochs: epochs that the terminal shows as bars; a page has them among its figures.
        figures: plots of the page.
        tables: tables that have rows.
        method: sentences for the page on how the numbers were measured.
        remarks: further remarks.
    """

    command: str
    facts: tuple[tuple[str, str], ...]
    subject: str = ""
    verdict: str = ""
    lead: str = ""
    numbers: tuple[Headline, ...] = ()
    findings: tuple[Finding, ...] | None = None
    epochs: tuple[Epoch, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    method: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def bench_report(measured: Measured, findings: Sequence[Finding]) -> Report:
    """Returns the report of a bench."""
    settings = [settings_line(measured.settings), *measured.settings.transforms]
    facts = {
        "data": dataset_line(measured.dataset),
        "machine": machine_line(measured.machine),
        "settings": ", ".join(settings),
        "date": words.date(measured.machine.date),
    }
    return Report(
        "fastio bench",
        tuple(facts.items()),
        measured.dataset.path,
        verdict(measured),
        ceiling_line(measured),
        headlines(measured),
        by_gain(findings),
        tuple(measured.all_epochs()),
        tuple(figures(measured)),
        tuple(all_tables(measured)),
        (_METHOD, *_runs(measured)),
        remarks(measured),
    )


def ladder_report(rungs: Sequence[Rung], facts: Mapping[str, str]) -> Report:
    """Returns the report of a ladder.

    Args:
        rungs: the rungs.
        facts: what was trained, on what and how: "data", "machine" and the like.
    """
    return Report(
        "fastio bench --ladder",
        tuple((name, words.date(text)) for name, text in facts.items()),
        verdict=ladder_verdict(rungs),
        figures=(ladder_figure(rungs),),
        tables=(ladder_table(rungs),),
    )


def doctor_report(facts: Facts | None, findings: Sequence[Finding], use: Use) -> Report:
    """Returns the report of a doctor; None for the facts of a loader that ran."""
    lines = () if facts is None else fact_lines(facts, use)
    gains = "Gains are estimates: the slowest stage decides how long an epoch takes."
    known = any(finding.gain is not None for finding in findings)
    return Report(
        "fastio doctor",
        tuple(lines),
        findings=by_gain(findings),
        remarks=(gains,) if known else (),
    )


# --- How it was measured --------------------------------------------------------------------------

_METHOD = (
    "The same work is timed with parts of it left out; the differences show which stage training "
    "waits for and which stages overlap (after DS-Analyzer: Mohan et al., Analyzing and Mitigating "
    "Data Stalls in DNN Training, VLDB 2021). No time includes the start of threads and worker "
    "processes. The time of an epoch is the number of its samples divided by the measured rate."
)
_RUNS: dict[PhaseName, str] = {
    "compute": "the model, or the emulated accelerator, on batches that are ready: an upper limit "
    "for any loader.",
    "loader_warm": "the loader without a model, all data in memory: reading, decoding, resizing.",
    "loader_cold": "the loader without a model, no data in memory: the additional time is that of "
    "the disk or the network.",
    "together_warm": "loader and model as in training, all data in memory.",
    "together_cold": "loader and model as in training, no data in memory.",
    "baseline_loader": "torch's DataLoader with Pillow and the same transforms, with one worker "
    "process a core, all data in memory, epochs without a pause. Batches for a GPU are copied from "
    "pinned memory as uint8, without blocking, and normalised there.",
    "baseline_together": "the same with the model. The time without the model is divided in the "
    "ratio of the steps of one worker process, which were timed alone.",
}


def _runs(measured: Measured) -> list[str]:
    """Returns one line about each run that was made, and one about accelerator utilisation."""
    lines = [words.sentence(f"{RUN_NAMES[run.name]}: {_RUNS[run.name]}") for run in measured.phases]
    if any(run.au is not None for run in measured.phases):
        lines.append(
            "AU, accelerator utilisation: compute time / run time, as MLPerf Storage defines it."
        )
    return lines


# --- In words -------------------------------------------------------------------------------------

HARDLY_WAITING = 0.05  # share of an epoch: with less waiting, the model is the limit
_ALL_BUT_ALL = 0.95  # share of the waiting: with more, only this stage is named
_NEARLY_SAME = 0.03  # epochs that differ by less are called equally long
_EPOCHS: tuple[PhaseName, PhaseName] = ("together_warm", "baseline_together")


def verdict(measured: Measured) -> str:
    """Returns one sentence: how long an epoch takes, and what it waits for."""
    epoch = measured.epoch("warm") or measured.epoch("cold")
    if epoch is None or epoch.epoch_s <= 0:
        return _verdict_of_the_loader(measured)
    waiting = epoch.wait_share
    if waiting < HARDLY_WAITING:
        state = f"the model is the limit: it computes {words.percent(1 - waiting)} of the time"
    else:
        waits = {stage: spent for stage, spent in epoch.stages.items() if stage != "compute"}
        stage = max(waits, key=lambda stage: waits[stage])
        mostly = "" if waits[stage] >= _ALL_BUT_ALL * (epoch.wait_s or 0.0) else "mostly "
        cause = waited_for(measured.dataset, stage)
        state = f"the model waits {words.percent(waiting)} of it, {mostly}for {cause}"
    beside = _against_baseline(measured) if epoch.name == "warm" else " cold"
    return f"An epoch takes {words.seconds(epoch.epoch_s)}{beside}; {state}."


def ceiling_line(measured: Measured) -> str:
    """Returns a sentence that compares the loaders with the model alone; "" if not measured."""
    ceiling = measured.ceiling
    reached = [
        f"{name} reaches {words.percent(share)}"
        for name, share in (
            ("fastio", measured.reach("together_warm")),
            ("DataLoader", measured.reach("baseline_together")),
        )
        if share is not None
    ]
    if ceiling is None or not reached:
        return ""
    what = f"{words.rate(ceiling)} {measured.dataset.noun}/s"
    first = f"{reached[0]} of the rate of the model alone ({what})"
    return "; ".join([first, *reached[1:]]) + "."


def headlines(measured: Measured) -> tuple[Headline, ...]:
    """Returns the main numbers of the run; those that were not measured are left out."""
    found = []
    for epoch in measured.epochs:
        note = f"{words.percent(epoch.wait_share)} of it waiting for data"
        found.append(Headline(f"epoch, {epoch.name}", words.seconds(epoch.epoch_s), note))
    factor, slow = factor_of(measured, *_EPOCHS), measured.phase("baseline_together")
    if factor is not None and slow is not None:
        note = f"its epoch: {words.seconds(measured.epoch_s(slow))}"
        found.append(Headline("faster than DataLoader", words.times(factor), note))
    reached = measured.reach("together_warm")
    if reached is not None and measured.ceiling:
        note = f"{words.rate(measured.ceiling)} {measured.dataset.noun}/s"
        found.append(Headline("of the model's own rate", words.percent(reached), note))
    together = measured.phase("together_warm") or measured.phase("together_cold")
    if together is not None and together.au is not None:
        note = "compute time / run time"
        found.append(Headline("accelerator utilisation", words.percent(together.au), note))
    loader = measured.phase("loader_warm") or measured.phase("loader_cold")
    if loader is not None:
        note = f"{measured.dataset.noun}/s by {counted(measured.settings.threads, 'threads')}"
        found.append(Headline("loader alone", words.rate(loader.samples_per_s), note))
    if measured.accelerators_fed is not None:
        fed = f"{measured.accelerators_fed:.2f}"
        found.append(Headline("accelerators kept busy", fed, accelerator(measured.settings)))
    return tuple(found)


def remarks(measured: Measured) -> tuple[str, ...]:
    """Returns sentences with what the tables do not show."""
    found = []
    if measured.accelerators_fed is not None:
        found.append(
            f"The loader alone is fast enough for {measured.accelerators_fed:.2f} x "
            f"{accelerator(measured.settings)} at the utilisation that MLPerf Storage requires."
        )
    if measured.baseline:
        found.append(f"DataLoader reads {words.clean(measured.baseline)}.")
    if measured.worker_steps:
        steps = words.steps_line(measured.worker_steps)
        found.append(f"A DataLoader worker takes for one sample: {steps}.")
    if measured.memory is not None:
        peak, free = (
            size_text(nbytes)
            for nbytes in (measured.memory.peak_rss_bytes, measured.memory.available_bytes)
        )
        found.append(f"Peak resident memory: {peak}; {free} were available at the start.")
    return (*found, *(words.sentence(note) for note in measured.notes))


def waited_for(dataset: DataFacts, stage: Stage) -> str:
    """Returns the name of a stage for somebody who waits for it: "the network", "decoding"."""
    if stage == "fetch":
        return {"network": "the network", "disk": "the disk", "memory": "files"}[dataset.storage]
    if stage == "decode":
        return "decoding" if dataset.codec else "the loader's threads"
    names = {
        "augment": "augmentation",
        "transform": "transforms in Python",
        "copy": "copies to the device",
    }
    return names.get(stage, "the model")


def dataset_line(dataset: DataFacts) -> str:
    """Returns a description of the data without its path: "packed as blocks, 50,000 images, 5.48
    GB, on disk".
    """
    kind = "files in folders" if dataset.kind == "folder" else words.clean(dataset.what)
    if dataset.kind == "packed" and dataset.codec:
        kind = f"packed as {words.clean(dataset.codec)}"
    place = {"disk": "on disk", "memory": "in memory", "network": "over the network"}
    amount = f"{counted(dataset.rows, dataset.noun)}, {size_text(dataset.nbytes)}"
    return f"{kind}, {amount}, {place[dataset.storage]}"


def ladder_verdict(rungs: Sequence[Rung]) -> str:
    """Returns the result of a ladder in one sentence."""
    times = [(rung.epoch_s, rung.name) for rung in rungs if rung.epoch_s]
    if not times:
        return "This machine cannot run any rung of the ladder."
    (first_s, _), (best_s, best) = times[0], min(times)
    if best_s == first_s:
        return "No rung is faster than the first."
    return (
        f"An epoch of {words.seconds(first_s)} takes {words.seconds(best_s)}, "
        f"{words.times(first_s / best_s)} faster, with everything down to: {words.clean(best)}."
    )


def machine_line(machine: MachineFacts) -> str:
    """Returns the machine in one line: processor, cores, memory, torch, device."""
    cores = counted(machine.cores, "cores")
    memory = f"{size_text(machine.memory_bytes)} memory"
    parts = (machine.cpu, cores, machine.simd, memory, f"torch {machine.torch}", machine.device)
    return ", ".join(words.clean(part) for part in parts if part)


def settings_line(settings: Settings) -> str:
    """Returns the settings in one line: batch size, threads, model, seed."""
    parts = [f"batches of {settings.batch_size:,}", counted(settings.threads, "threads")]
    emulated = ", emulated" if settings.accelerator_rate is not None else ""
    parts.append(words.clean(settings.model) or f"{accelerator(settings)}{emulated}")
    parts.append(words.clean(settings.amp))
    parts.append("torch.compile" if settings.compile else "")
    parts.append("channels_last" if settings.channels_last else "")
    parts = [part for part in parts if part]
    return ", ".join([*parts, f"device {words.clean(settings.device)}", f"seed {settings.seed}"])


def accelerator(settings: Settings) -> str:
    """Returns the name of the emulated accelerator, "resnet50-h100 (1,786/s)", or "no model"."""
    name = words.clean(settings.accelerator)
    if settings.accelerator_rate is None:
        return name or "no model"
    speed = f"{words.rate(settings.accelerator_rate)}/s"
    return f"{name} ({speed})" if name else f"an accelerator of {speed}"


def factor_of(measured: Measured, fast: PhaseName, slow: PhaseName) -> float | None:
    """Returns the ratio of the rates of two runs; None if one is unknown."""
    rates = [run.samples_per_s for run in map(measured.phase, (fast, slow)) if run is not None]
    return rates[0] / rates[1] if len(rates) == 2 and all(rates) else None


def _against_baseline(measured: Measured) -> str:
    factor = factor_of(measured, *_EPOCHS)
    if factor is None:
        return ""
    if abs(factor - 1) < _NEARLY_SAME:
        return ", as long as DataLoader's"
    faster = factor > 1
    by = words.times(factor if faster else 1 / factor)
    return f", {by} {'faster' if faster else 'slower'} than DataLoader's"


def _verdict_of_the_loader(measured: Measured) -> str:
    loader = measured.phase("loader_warm") or measured.phase("loader_cold")
    if loader is None:
        return "No measurement shows what an epoch waits for."
    state = "warm" if loader.name == "loader_warm" else "cold"
    epoch = words.seconds(measured.epoch_s(loader))
    speed = f"{words.rate(loader.samples_per_s)} {measured.dataset.noun}/s"
    factor = factor_of(measured, "loader_warm", "baseline_loader")
    beside = "" if factor is None else f", {words.times(factor)} DataLoader's rate"
    return f"The loader alone, {state}, delivers {speed}{beside}: an epoch in {epoch}."


# --- Facts of the probes --------------------------------------------------------------------------

# The parts of each line. A part with a value that is not known is left out.
_LINES = {
    "machine": (
        "{machine.cores:cores} of {machine.cpu} ({machine.simd})",
        "{machine.others_cores:.1f} of them used by other processes",
        "{machine.memory_bytes:size} of memory",
        "{gpus}",
        "torch {machine.torch} with {settings.torch_threads:threads}",
    ),
    "data": (
        "{kind}",
        "{nbytes:size} in {data.files:files}",
        "{formats}",
        "{codecs}",
        "median {images.short_side} x {long_side} pixels",
        "{columns} columns, row groups of {tables.group_rows:,} rows",
        "{compressions}",
        "on {storage.file_system}",
    ),
    "memory": ("{machine.available_bytes:size} free: {fits}{resident}",),
    "in Python": ("a sample takes {steps}",),
    "in fastio": ("{augmented} of the work of its threads is augmentation",),
    "rates": (
        "disk {cold_rate:,.0f}/s",
        "network {network_bytes_s:size}/s, {latency_ms:,.1f} ms a request",
        "loader {loader_rate:,.0f}/s{alone}",
        "Pillow {images.pillow_rate:,.0f}/s a process",
        "writes {storage.write_bytes_s:size}/s",
    ),
    "you wait for": ("{waited} ({rate:,.0f} samples/s{unless})",),
}


def fact_lines(facts: Facts, use: Use) -> list[tuple[str, str]]:
    """Returns lines (subject, text) of all facts that are known.

    Args:
        facts: what the probes found.
        use: how the data is loaded.
    """
    case = Case(facts, use)
    texts = Texts(case, _values(case))
    lines = [(name, ", ".join(texts.of_known(parts))) for name, parts in _LINES.items()]
    notes = [("not measured", note) for note in _grouped(facts.notes)]
    return [(name, text) for name, text in (*lines, *notes) if text]


def _grouped(notes: Sequence[str]) -> list[str]:
    """Returns notes "what: why", in which those with the same reason are joined to one."""
    found: dict[str, list[str]] = {}
    for note in notes:
        what, _, why = note.partition(": ")
        found.setdefault(why, []).append(what)
    return [": ".join(filter(None, (", ".join(whats), why))) for why, whats in found.items()]


def _values(case: Case) -> dict[str, Any]:
    """Returns the values of the lines that are no facts themselves; None if not known."""
    data, images, tables, gpu = (
        getattr(case.facts, name) for name in ("data", "images", "tables", "gpu")
    )
    names = ("gpus", "kind", "codecs", "nbytes", "fits", "resident", "formats", "long_side")
    more = ("steps", "augmented", "columns", "compressions", "latency_ms")
    values: dict[str, Any] = dict.fromkeys((*names, *more))
    if gpu is not None:
        values["gpus"] = f"{gpu.count} x {gpu.name}" if gpu.count > 1 else gpu.name
    if data is not None:
        least = "" if data.complete else "more than "
        rows = f": {least}{counted(data.rows, 'samples')}" if data.rows else ""
        values["kind"] = data.what + rows
        stored = data.codecs if data.packed else {}
        codecs = [f"{count:,} {codec}" for codec, count in stored.items() if count]
        values |= {"codecs": ", ".join(codecs) or None, "nbytes": data.nbytes or None}
    if data is not None and data.nbytes and not data.remote:
        values["fits"] = f"the data {'fits' if case.in_memory else 'does not fit'}"
        share = case.facts.storage.resident_share if case.facts.storage else None
        there = "" if share is None else f"; {share:.0%} of it is in the page cache now"
        values["resident"] = there
    one = None
    if images is not None:
        formats = [f"{share:.0%} {name}" for name, share in images.formats.items()]
        values |= {"formats": ", ".join(formats) or None, "long_side": images.long_side or None}
        one = images.one_thread_rate
        by_user = case.use.pipeline is not None
        values["steps"] = words.steps_line(images.steps) or None if by_user else None
        values["augmented"] = words.percent(images.augment_share) if images.augment_share else None
    if tables is not None:
        values["columns"] = tables.columns or None
        values["compressions"] = "/".join(tables.compressions).lower() or None
    if case.facts.remote is not None and case.facts.remote.latency_s is not None:
        values["latency_ms"] = case.facts.remote.latency_s * 1e3
    values["alone"] = f" ({one:,.0f} on one thread)" if one else ""
    limit = case.given("limit")
    values["waited"] = waited_for(data, limit) if data is not None and limit else None
    values["unless"] = "" if case.use.model_rate else "; a slower model never waits"
    return values
