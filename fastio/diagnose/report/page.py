"""A report as one HTML page that needs nothing else: no network, no fonts, no scripts."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fastio.diagnose import words
from fastio.diagnose.findings import Finding
from fastio.diagnose.report.canvas import FONTS, NARROW, WIDE, css
from fastio.diagnose.report.plots import Figure
from fastio.diagnose.report.report import Report
from fastio.diagnose.report.tables import Table
from fastio.runtime.files import write_output


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Writes a report as a page, atomically.

    Args:
        report: what is shown.
        path: file to write; one that is there is replaced.

    Raises:
        OSError: it cannot be written.
    """
    write_output(path, page(report).encode())


def page(report: Report) -> str:
    """Returns a report as HTML."""
    title = f"{report.command}: {report.subject}" if report.subject else report.command
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            # Even a browser that were told otherwise loads nothing.
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';',
            "style-src 'unsafe-inline'\">",
            f"<title>{_text(title)}</title><style>{style()}</style></head><body><main>\n",
            _head(report),
            _section("What to change", _findings(report.findings)),
            _section("Plots", _all(map(_figure, report.figures))),
            _section("Numbers", _all(map(_table, report.tables))),
            _section("How it was measured", _how(report)),
            "</main></body></html>\n",
        ]
    )


def _head(report: Report) -> str:
    path = f' <span class="path">{_text(report.subject)}</span>' if report.subject else ""
    verdict = f'<h1 class="verdict">{_text(report.verdict)}</h1>' if report.verdict else ""
    lead = f'<p class="lead">{_text(report.lead)}</p>' if report.lead else ""
    numbers = _all(
        f'<div><dt>{_text(one.label)}</dt><dd class="value">{_text(one.value)}</dd>'
        f'<dd class="note">{_text(one.note)}</dd></div>'
        for one in report.numbers
    )
    facts = _all(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in report.facts)
    return (
        f'<header><p class="kind">{report.command}{path}</p>{verdict}{lead}'
        f'<dl class="numbers">{numbers}</dl><dl class="facts">{facts}</dl></header>\n'
    )


def _section(title: str, content: str) -> str:
    """Returns a section; "" if it is empty."""
    return f"<section><h2>{title}</h2>{content}</section>\n" if content else ""


def _findings(findings: tuple[Finding, ...] | None) -> str:
    if not findings:
        return "" if findings is None else f"<p>{words.NO_FINDINGS}</p>"
    return f'<ol class="findings">{_all(map(_finding, findings))}</ol>'


def _finding(finding: Finding) -> str:
    gain = ""
    if finding.gain is not None:
        gain = f'<span class="gain">epoch {_text(words.times(finding.gain))} faster</span>'
    return (
        f"<li>{gain}<h3>{_text(words.sentence(finding.waits_for))}</h3>"
        f'<p class="advice">{_coded(words.sentence(finding.advice))}</p>'
        f"{_list(finding.evidence)}</li>"
    )


def _figure(figure: Figure) -> str:
    """Returns a plot in two widths, one for wide screens and one for narrow ones."""
    wide, narrow = (figure.draw(width=width).svg() for width in (WIDE, NARROW))
    return (
        f"<figure><figcaption><h3>{_text(figure.title)}</h3><p>{_text(figure.caption)}</p>"
        f'</figcaption><div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>\n'
    )


def _table(table: Table) -> str:
    headings = _all(f'<th scope="col">{_text(heading)}</th>' for heading in table.columns)
    parts = len(table.rows) - table.sums
    kinds = [""] * parts + ["sum first"] * min(1, table.sums) + ["sum"] * (table.sums - 1)
    rows = ""
    for kind, row in zip(kinds, table.rows, strict=True):
        name, *cells, last = map(_text, row)
        rows += f'<tr class="{kind}">' if kind else "<tr>"
        rows += f'<th scope="row">{name}</th>{_all(f"<td>{cell}</td>" for cell in cells)}'
        rows += f'<td class="text">{last}</td></tr>' if table.long_last else f"<td>{last}</td></tr>"
    about = f'<p class="about">{_text(table.note)}</p>' if table.note else ""
    return (
        f'<div class="table"><h3>{_text(table.title)}</h3><div class="scroll"><table><thead><tr>'
        f"{headings}</tr></thead><tbody>{rows}</tbody></table></div>{about}</div>\n"
    )


def _how(report: Report) -> str:
    method = "".join(f"<p>{_text(line)}</p>" for line in report.method[:1])
    content = f"{method}{_list(report.method[1:])}{_list(report.remarks)}"
    return f'<div class="how">{content}</div>' if content else ""


def _list(lines: Iterable[str]) -> str:
    """Returns a list of lines; "" if there are none."""
    items = _all(f"<li>{_text(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _all(parts: Iterable[str]) -> str:
    return "".join(parts)


def _coded(text: str) -> str:
    """Returns text as HTML; parts between backticks become <code> elements."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", _text(text))


def _text(text: str) -> str:
    """Returns text that is escaped for HTML and for attributes."""
    return html.escape(words.clean(text))


def style() -> str:
    """Returns the style sheet."""
    rules = Path(__file__).with_name("page.css").read_text()
    rules = re.sub(r"/\*.*?\*/|\s*\n\s*", "", rules)
    return css() + rules.replace("FONTS", FONTS).replace("CONTENT", str(WIDE + 48))
