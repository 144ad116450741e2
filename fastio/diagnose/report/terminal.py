"""Prints reports in the terminal, or in a log without colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from fastio.diagnose import words
from fastio.diagnose.findings import Finding
from fastio.diagnose.measured import Epoch, Part
from fastio.diagnose.report.report import Report
from fastio.diagnose.report.tables import Table

_STYLES: dict[Part, str] = {
    "fetch": "white on blue",
    "decode": "black on cyan",
    "augment": "black on bright_cyan",
    "transform": "white on magenta",
    "copy": "black on yellow",
    "compute": "black on green",
    "wait": "white on red",
}
_BAR_NAMES = 11  # columns before the bars: "DataLoader "
_BAR_ENDS = 12  # columns after them: " 25 min 05 s"
_NAME_WIDTH = 28  # of a table's first column, before it is wrapped
_ASCII = str.maketrans(
    {words.TIMES: "x", words.NOTHING: "-", "µ": "u", "│": "|", "─": "-", "•": "-"}
)


def print_report(report: Report, *, console: Console | None = None) -> None:
    """Prints a report: verdict, findings, tables.

    Args:
        report: report to print.
        console: console to print to (default: standard output). With at least 80 columns nothing
            is cut off. Terminals with another encoding than UTF-8 get ASCII.
    """
    parts: list[RenderableType] = []
    if report.subject:
        subject = words.clean(report.subject)
        parts.append(Text.assemble((f"{report.command}  ", "dim"), (subject, "bold")))
    if report.facts:
        grid = RichTable.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column()
        for name, text in report.facts:
            grid.add_row(name, Text(words.clean(text)))
        parts.append(grid)
    parts += [Text(report.verdict, style="bold")] if report.verdict else []
    parts += [_Bars(report.epochs)] if report.epochs else []
    parts += [Text(report.lead)] if report.lead else []
    parts += [_findings(report.findings)] if report.findings is not None else []
    parts += [_table(table) for table in report.tables if not table.detailed]
    parts += (
        [Group(*(Text(line, style="dim") for line in report.remarks))] if report.remarks else []
    )
    console = console or Console()
    for part in parts:
        shown = _Ascii(part) if console.options.ascii_only else part
        console.print(shown, highlight=False)
        console.print()


class _Bars:
    """Epochs as bars of one scale, divided into stages."""

    def __init__(self, shown: Sequence[Epoch]) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = max(10, min(options.max_width, 100) - _BAR_NAMES - _BAR_ENDS)
        # Without colours, the bars are lines.
        fill = " " if console.color_system else "─"
        longest = max((epoch.epoch_s for epoch in self._shown), default=1.0)
        for epoch in self._shown:
            line = Text(f"{epoch.name:<{_BAR_NAMES}}")
            begin = 0.0
            for part, spent in epoch.parts():
                end = begin + spent / longest * width
                line.append(_piece(part, spent / epoch.epoch_s, round(end) - round(begin), fill))
                begin = end
            yield line.append(f" {words.seconds(epoch.epoch_s)}")


def _piece(part: Part, share: float, width: int, fill: str) -> Text:
    """Returns a piece of a bar that can be told from its neighbours without colours."""
    texts = (f"{part} {words.percent(share)}", part, part[0])
    label = next((text for text in texts if len(text) < width), "")
    return Text(f"│{label}".ljust(width, fill)[:width], style=_STYLES[part])


def _findings(findings: Sequence[Finding]) -> RenderableType:
    """Prints numbered remedies, what is waited for, and the evidence."""
    if not findings:
        return Text(words.NO_FINDINGS)
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_column(justify="right")
    grid.add_column()
    for number, finding in enumerate(findings, 1):
        waits_for = words.sentence(finding.waits_for)
        gain = "" if finding.gain is None else f" Epoch {words.times(finding.gain)} faster."
        about = Text.assemble((waits_for, "bold"), (gain, "bold green"))
        about.append("\n" + words.sentence(finding.advice))
        grid.add_row(f"{number}.", about)
        for line in finding.evidence:
            grid.add_row("", Text(f"• {words.clean(line)}", style="dim"))
    return grid


def _table(table: Table) -> RenderableType:
    """Prints a table with its title and its note."""
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, heading in enumerate(table.columns):
        name = number == 0
        text = name or (table.long_last and number == len(table.columns) - 1)
        longest = max((len(row[number]) for row in table.rows), default=0)
        drawn.add_column(
            Text(heading),
            justify="left" if text else "right",
            min_width=_NAME_WIDTH if name and longest > _NAME_WIDTH else None,
            # Widths that rich takes off several columns do not add up: letters would be lost.
            no_wrap=not text or (name and longest <= _NAME_WIDTH),
        )
    for number, row in enumerate(table.rows, 1):
        ends = table.sums > 0 and number == len(table.rows) - table.sums
        drawn.add_row(*(Text(cell) for cell in row), end_section=ends)
    note = [Text(table.note, style="dim")] if table.note else []
    return Group(Text(table.title, style="bold"), drawn, *note)


class _Ascii:
    """Renders another renderable in ASCII."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._inner, options):
            plain = text.translate(_ASCII).encode("ascii", "replace").decode()
            yield Segment(plain, style, control)
