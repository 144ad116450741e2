"""The report of a bench in the terminal: nothing is lost in any width or without colours."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from fastio.diagnose import Finding, Measured
from fastio.diagnose.measured import Rung
from fastio.diagnose.report import bench_report, ladder_report, print_report
from fastio.diagnose.report.report import verdict
from fastio.diagnose.report.tables import all_tables, ladder_table
from tests import report_samples as samples
from tests.measurements import split


def printed(
    measured: Measured,
    width: int,
    *,
    findings: Sequence[Finding] = samples.PHOTO_FINDINGS,
    rungs: Sequence[Rung] = samples.LADDER,
    colours: bool = False,
    encoding: str = "utf-8",
) -> str:
    """What a console of that width shows."""
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, encoding, write_through=True, newline="\n") as file:
        system = "standard" if colours else None
        console = Console(file=file, width=width, force_terminal=colours, color_system=system)
        print_report(bench_report(measured, findings), console=console)
        print_report(ladder_report(rungs, {}), console=console)
        return buffer.getvalue().decode(encoding)


def words_of(text: str) -> str:
    """A text without line ends and runs of spaces, in which wrapped sentences are found again."""
    return " ".join(text.split())


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", samples.SAMPLES)
def test_nothing_is_wider_than_the_terminal_or_cut_off(name: str, width: int) -> None:
    measured = samples.SAMPLES[name]()
    text = printed(measured, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert words_of(verdict(measured)) in words_of(text)


@pytest.mark.parametrize("width", [80, 100])
def test_every_number_is_there(width: int) -> None:
    measured = samples.photos()
    text = words_of(printed(measured, width))
    tables = [table for table in all_tables(measured) if not table.detailed]
    tables.append(ladder_table(samples.LADDER))
    assert len(tables) >= 6
    for table in tables:
        # The last column may be wrapped.
        for row in table.rows:
            cells = row[:-1] if table.long_last else row
            assert words_of(" ".join(cells)) in text


def test_findings_are_in_order_of_gain_with_their_evidence() -> None:
    text = words_of(printed(samples.photos(), 100))
    places = [
        text.index(part)
        for part in (
            "1. The loader runs 1 thread where 2 cores are allowed. Epoch 1.65",
            "Pass num_workers=2, or num_workers='auto'.",
            "the process used 1.70 of 2 cores",
            "2. A cold epoch waits 19% of its time for the disk. Epoch 1.23",
            "cold 59.2 s, warm 48.1 s an epoch",
            "3. A finding without a gain comes last. Nothing need be done.",
        )
    ]
    assert places == sorted(places)


def test_no_findings_are_said_to_be_none() -> None:
    assert "Nothing was found" in printed(samples.photos(), 80, findings=())


def test_logs_have_no_escape_sequences_and_terminals_do() -> None:
    assert "\x1b" not in printed(samples.photos(), 80)
    coloured = printed(samples.photos(), 80, colours=True)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert bare != coloured
    # Colours alone fill the bars.
    assert words_of(bare) == words_of(re.sub("─+(?= |│)", " ", printed(samples.photos(), 80)))


def test_stages_are_told_apart_without_colours() -> None:
    (bar,) = (line for line in printed(samples.table(), 80).splitlines() if line.startswith("warm"))
    for stage in ("decode 47%", "transform 33%", "compute"):
        assert f"│{stage}" in bar
    assert bar.endswith("5.33 s")


def test_bars_are_as_long_as_their_epochs() -> None:
    lines = printed(samples.photos(), 100).splitlines()
    bars = {
        name: re.sub(r" [0-9. s]+$", "", line[11:])
        for line in lines
        for name in ("warm", "cold", "DataLoader")
        if line.startswith(name) and "│" in line
    }
    assert len(bars["DataLoader"]) == 77
    assert len(bars["warm"]) / 77 == pytest.approx(48.13 / 155.8, abs=0.02)
    assert len(bars["cold"]) / 77 == pytest.approx(59.16 / 155.8, abs=0.02)


def test_terminals_that_are_no_utf_8_get_ascii() -> None:
    named = replace(samples.PHOTOS, path="/data/größe")
    text = printed(replace(samples.photos(), dataset=named), 80, encoding="ascii")
    assert "/data/gr??e" in text
    assert "3.2x faster than DataLoader's" in text
    assert max(map(len, text.splitlines())) <= 80


def test_names_cannot_write_markup_or_escape_sequences() -> None:
    hostile = "[bold red]x[/] \x1b[2J\x07\nnext \udcff"
    measured = samples.photos()
    measured = replace(
        measured,
        dataset=replace(measured.dataset, path=hostile, kind=hostile, codecs={hostile: 1}),
        settings=replace(measured.settings, model=hostile, transforms=(hostile,)),
        notes=(hostile,),
        baseline=hostile,
    )
    finding = Finding("decode", hostile, hostile, 2.0, (hostile,))
    text = printed(measured, 100, findings=[finding], rungs=[Rung(hostile, 1.0)])
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count("[bold red]x[/]") >= 7


def test_an_epoch_of_one_tiny_part_is_drawn() -> None:
    measured = replace(samples.photos(), epochs=(split("warm", 1e-9, 0, 0, 0, 1.0),))
    assert "compute" in printed(measured, 80)


def test_a_ladder_can_be_printed_alone() -> None:
    buffer = io.StringIO()
    print_report(ladder_report(samples.LADDER, {}), console=Console(file=buffer, width=80))
    text = words_of(buffer.getvalue())
    assert "packed as blocks 48 s" in text
    assert "no GPU" in text


def test_a_ladder_without_rungs_is_an_empty_table() -> None:
    buffer = io.StringIO()
    print_report(ladder_report([], {}), console=Console(file=buffer, width=80))
    assert "rung" in buffer.getvalue()


def test_no_letter_of_a_reason_is_lost() -> None:
    why = "this processor has no instructions for bfloat16: it would be slower"
    rungs = [Rung("DataLoader, 0 workers", 22.2, 0.779), Rung("x", why_not=why)]
    for width in range(72, 110):
        buffer = io.StringIO()
        print_report(ladder_report(rungs, {}), console=Console(file=buffer, width=width))
        told = [line[46:].split() for line in buffer.getvalue().splitlines()]
        assert why in " ".join(word for line in told for word in line), width
