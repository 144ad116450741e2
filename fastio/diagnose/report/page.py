"""A bench as one HTML page that needs nothing else: no network, no fonts, no scripts."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fastio.diagnose import words
from fastio.diagnose.findings import Finding, by_gain
from fastio.diagnose.measured import Measured, PhaseName
from fastio.diagnose.report.canvas import FONTS, NARROW, WIDE, css
from fastio.diagnose.report.epochs import Rung
from fastio.diagnose.report.plots import Figure, figures, ladder_figure
from fastio.diagnose.report.summary import (
    ceiling_line,
    dataset_line,
    headlines,
    ladder_verdict,
    machine_line,
    remarks,
    settings_line,
    verdict,
)
from fastio.diagnose.report.tables import RUN_NAMES, Table, all_tables, ladder_table
from fastio.runtime.files import write_output


def write_page(
    measured: Measured,
    findings: Sequence[Finding],
    path: str | os.PathLike[str],
    *,
    rungs: Sequence[Rung] = (),
) -> None:
    """Writes the page atomically.

    Args:
        measured: what was measured.
        findings: what was found in it; shown in order of gain.
        path: of the file to write; one that is there is replaced.
        rungs: of a ladder that ran with it.

    Raises:
        OSError: it cannot be written.
    """
    write_output(path, page(measured, findings, rungs=rungs).encode())


def write_ladder(
    rungs: Sequence[Rung], facts: Mapping[str, str], path: str | os.PathLike[str]
) -> None:
    """Writes the page of a ladder atomically.

    Args:
        rungs: of the ladder.
        facts: what was trained, on what and how: "data", "machine" and the like, a line each.
        path: of the file to write; one that is there is replaced.

    Raises:
        OSError: it cannot be written.
    """
    facts = {name: words.date(fact) if name == "date" else fact for name, fact in facts.items()}
    table = ladder_table(rungs)
    drawn = _figure(ladder_figure(rungs))
    head = (
        f'<header><p class="kind">fastio bench --ladder</p><h1 class="verdict">'
        f'{_text(ladder_verdict(rungs))}</h1><dl class="facts">{_listed(facts)}</dl></header>\n'
    )
    parts = [head, _section("Rungs", drawn), _section("Numbers", _table(table))]
    write_output(path, "".join(_document("fastio bench --ladder", parts)).encode())


def page(measured: Measured, findings: Sequence[Finding], *, rungs: Sequence[Rung] = ()) -> str:
    """Returns the page as HTML."""
    title = f"fastio bench: {words.clean(measured.dataset.path)}"
    drawn = "".join(map(_figure, figures(measured, rungs)))
    parts = [
        _head(measured),
        _section("What to change", _findings(findings)),
        _section("Plots", drawn),
        _section("Numbers", "".join(_table(table) for table in all_tables(measured, rungs))),
        _section("How it was measured", _how(measured)),
    ]
    return "".join(_document(title, parts))


def _document(title: str, parts: list[str]) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    # Even a browser that were told otherwise loads nothing.
    yield '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
    yield "style-src 'unsafe-inline'\">"
    yield f"<title>{_text(title)}</title><style>{style()}</style></head><body><main>\n"
    yield from parts
    yield "</main></body></html>\n"


def _head(measured: Measured) -> str:
    settings = [settings_line(measured.settings), *measured.settings.transforms]
    facts = {
        "data": dataset_line(measured.dataset),
        "machine": machine_line(measured.machine),
        "settings": ", ".join(map(words.clean, settings)),
        "date": words.date(measured.machine.date),
    }
    numbers = "".join(
        f'<div><dt>{_text(one.label)}</dt><dd class="value">{_text(one.value)}</dd>'
        f'<dd class="note">{_text(one.note)}</dd></div>'
        for one in headlines(measured)
    )
    path = _text(measured.dataset.path)
    return (
        f'<header><p class="kind">fastio bench <span class="path">{path}</span></p>'
        f'<h1 class="verdict">{_text(verdict(measured))}</h1>{_paragraph(ceiling_line(measured))}'
        f'<dl class="numbers">{numbers}</dl><dl class="facts">{_listed(facts)}</dl></header>\n'
    )


def _listed(facts: Mapping[str, str]) -> str:
    return "".join(f"<dt>{_text(name)}</dt><dd>{_text(fact)}</dd>" for name, fact in facts.items())


def _section(title: str, content: str) -> str:
    """Returns a section; "" if it is empty."""
    return f"<section><h2>{title}</h2>{content}</section>\n" if content else ""


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<p>Nothing was found that would make an epoch shorter.</p>"
    return f'<ol class="findings">{"".join(map(_finding, by_gain(findings)))}</ol>'


def _finding(finding: Finding) -> str:
    gain = ""
    if finding.gain is not None:
        gain = f'<span class="gain">epoch {_text(words.times(finding.gain))} faster</span>'
    evidence = "".join(map(_item, finding.evidence))
    return (
        f"<li>{gain}<h3>{_text(words.sentence(finding.waits_for))}</h3>"
        f'<p class="advice">{_text(words.sentence(finding.advice))}</p>'
        f"{f'<ul>{evidence}</ul>' if evidence else ''}</li>"
    )


def _figure(figure: Figure) -> str:
    """Returns a plot in two widths, one for wide screens and one for narrow ones."""
    wide, narrow = (figure.draw(width=width).svg() for width in (WIDE, NARROW))
    return (
        f"<figure><figcaption><h3>{_text(figure.title)}</h3><p>{_text(figure.caption)}</p>"
        f'</figcaption><div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>\n'
    )


def _table(table: Table) -> str:
    headings = "".join(f'<th scope="col">{_text(heading)}</th>' for heading in table.columns)
    parts = len(table.rows) - table.sums
    kinds = [""] * parts + ["sum first"] * min(1, table.sums) + ["sum"] * (table.sums - 1)
    rows = "".join(_row(row, kind, table) for row, kind in zip(table.rows, kinds, strict=True))
    about = f'<p class="about">{_text(table.note)}</p>' if table.note else ""
    return (
        f'<div class="table"><h3>{_text(table.title)}</h3><div class="scroll"><table><thead><tr>'
        f"{headings}</tr></thead><tbody>{rows}</tbody></table></div>{about}</div>\n"
    )


def _row(row: tuple[str, ...], kind: str, table: Table) -> str:
    name, *cells, last = (_text(cell) for cell in row)
    texts = "".join(f"<td>{cell}</td>" for cell in cells)
    end = '<td class="text">' if table.long_last else "<td>"
    begin = f'<tr class="{kind}">' if kind else "<tr>"
    return f'{begin}<th scope="row">{name}</th>{texts}{end}{last}</td></tr>'


def _how(measured: Measured) -> str:
    lists = [method(measured), remarks(measured)]
    listed = "".join(f"<ul>{''.join(map(_item, lines))}</ul>" for lines in lists if lines)
    return f'<div class="how"><p>{_text(METHOD)}</p>{listed}</div>'


def _paragraph(line: str) -> str:
    """Returns a paragraph below the verdict; "" if there is no text."""
    return f'<p class="lead">{_text(line)}</p>' if line else ""


def _item(line: str) -> str:
    return f"<li>{_text(line)}</li>"


def _text(text: str) -> str:
    """Returns text that is escaped for HTML and for attributes."""
    return html.escape(words.clean(text))


# --- How it was measured --------------------------------------------------------------------------

METHOD = (
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


def method(measured: Measured) -> tuple[str, ...]:
    """Returns one line about each run that was made, and one about accelerator utilisation."""
    lines = [words.sentence(f"{RUN_NAMES[run.name]}: {_RUNS[run.name]}") for run in measured.phases]
    if any(run.au is not None for run in measured.phases):
        lines.append(
            "AU, accelerator utilisation: compute time / run time, as MLPerf Storage defines it."
        )
    return tuple(lines)


def style() -> str:
    """Returns the style sheet."""
    rules = Path(__file__).with_name("page.css").read_text()
    rules = re.sub(r"/\*.*?\*/|\s*\n\s*", "", rules)
    return css() + rules.replace("FONTS", FONTS).replace("CONTENT", str(WIDE + 48))
