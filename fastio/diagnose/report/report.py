"""What a bench, a ladder or a doctor found out, described once for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastio.diagnose import words
from fastio.diagnose.facts import Facts
from fastio.diagnose.findings import Finding, by_gain
from fastio.diagnose.measured import Epoch, Measured, PhaseName, Rung
from fastio.diagnose.options import Use
from fastio.diagnose.report.plots import Figure, figures, ladder_figure
from fastio.diagnose.report.summary import (
    Headline,
    ceiling_line,
    dataset_line,
    fact_lines,
    headlines,
    ladder_verdict,
    machine_line,
    remarks,
    settings_line,
    verdict,
)
from fastio.diagnose.report.tables import RUN_NAMES, Table, all_tables, ladder_table


@dataclass(frozen=True)
class Report:
    """The contents of a report, in reading order. Texts may hold anything, and are shown cleaned.

    Attributes:
        command: the command that found it out.
        facts: names and texts of facts of data and machine.
        subject: path of the data.
        verdict, lead: the result in a sentence; another one below it.
        numbers: the main numbers.
        findings: causes of lost time, the largest gain first; None if none were looked for.
        epochs: epochs as bars, which a page has among its figures.
        figures: the plots of a page.
        tables: all tables that have rows.
        method, remarks: how it was measured, for a page; what else is to be said.
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


def bench_report(
    measured: Measured, findings: Sequence[Finding], rungs: Sequence[Rung] = ()
) -> Report:
    """Returns the report of a bench, and of a ladder that ran with it."""
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
        tuple(figures(measured, rungs)),
        tuple(all_tables(measured, rungs)),
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
    "baseline_together": "the same with the model. Its worker processes are not profiled: all time "
    "without the model counts as waiting.",
}


def _runs(measured: Measured) -> list[str]:
    """Returns one line about each run that was made, and one about accelerator utilisation."""
    lines = [words.sentence(f"{RUN_NAMES[run.name]}: {_RUNS[run.name]}") for run in measured.phases]
    if any(run.au is not None for run in measured.phases):
        lines.append(
            "AU, accelerator utilisation: compute time / run time, as MLPerf Storage defines it."
        )
    return lines
