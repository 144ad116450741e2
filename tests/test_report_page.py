"""The page of a bench: well-formed, complete, of itself alone, safe with any names."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from fastio.diagnose import Finding
from fastio.diagnose.measured import Rung
from fastio.diagnose.report import bench_report, ladder_report, write_page
from fastio.diagnose.report.page import page
from fastio.diagnose.report.plots import figures
from fastio.diagnose.report.report import verdict
from tests import report_samples as samples
from tests.html_page import Page

HOSTILE = '</title><script>alert(\'1\')</script>"onload="x" & <b>bold</b> \x1b[2J \udcff 日本語'
SEEN = '</title><script>alert(\'1\')</script>"onload="x" & <b>bold</b>'


REPORTS = {
    name: bench_report(make(), samples.PHOTO_FINDINGS) for name, make in samples.SAMPLES.items()
} | {"ladder": ladder_report(samples.LADDER, {"machine": "a machine"})}


@pytest.fixture(scope="module", name="pages")
def pages_of_all_samples() -> dict[str, Page]:
    return {name: Page(page(report)) for name, report in REPORTS.items()}


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_refers_to_nothing_outside(name: str, pages: dict[str, Page]) -> None:
    shown = pages[name]
    assert {tag for tag, _ in shown.elements}.isdisjoint(
        {"script", "link", "img", "iframe", "object", "embed", "base", "a", "use", "image"}
    )
    for _, attributes in shown.elements:
        assert {"src", "href", "xlink:href", "srcset", "data", "action"}.isdisjoint(attributes)
        assert not any(key.startswith("on") for key in attributes)
        assert not any("url(" in (value or "") for value in attributes.values())
    assert not re.search(r"url\(|@import|@font-face|https?:", shown.style)


def test_browsers_are_told_to_load_nothing(pages: dict[str, Page]) -> None:
    policies = [
        attributes["content"]
        for tag, attributes in pages["photos"].elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none';style-src 'unsafe-inline'"]


@pytest.mark.parametrize("name", REPORTS)
def test_every_number_is_on_the_page(name: str, pages: dict[str, Page]) -> None:
    report, shown = REPORTS[name], pages[name]
    for headline in report.numbers:
        assert {headline.label, headline.value, headline.note} <= {t for _, t in shown.texts}
    cells = [text for tag, text in shown.texts if tag in ("td", "th")]
    for table in report.tables:
        wanted = [cell for row in (table.columns, *table.rows) for cell in row if cell]
        places = [number for number, cell in enumerate(cells) if cell == wanted[0]]
        assert any(cells[at : at + len(wanted)] == wanted for at in places), table.title
    for line in report.remarks:
        assert line in shown.text


def test_the_verdict_comes_first_then_findings_plots_numbers_and_method(
    pages: dict[str, Page],
) -> None:
    text = pages["photos"].text
    order = [
        "/data/imagenet-50k.blocks",
        verdict(samples.photos()),
        samples.MACHINE.cpu,
        "2026-11-22 07:52 UTC",
        "What to change",
        "The loader runs 1 thread where 2 cores are allowed.",
        "A cold epoch waits 19% of its time for the disk.",
        "A finding without a gain comes last.",
        "Plots",
        "Numbers",
        "How it was measured",
        "AU, accelerator utilisation",
    ]
    title = text.index("\n")  # the first line is the document's title
    places = [text.index(part, title) for part in order]
    assert places == sorted(places)


def test_titles_form_an_outline(pages: dict[str, Page]) -> None:
    levels = [int(tag[1]) for tag, _ in pages["photos"].elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("name", REPORTS)
def test_every_plot_is_there_with_its_title_and_caption(name: str, pages: dict[str, Page]) -> None:
    expected = REPORTS[name].figures
    assert pages[name].count("figure") == len(expected)
    drawn = [attributes["class"] for _, attributes in pages[name].elements if "class" in attributes]
    assert drawn.count("plot") == len(expected)
    for figure in expected:
        assert figure.title in pages[name].text
        assert figure.caption in pages[name].text


def test_photos_have_every_plot() -> None:
    titles = [figure.title for figure in figures(samples.photos())]
    assert titles == [
        "Epoch time",
        "What an epoch waits for",
        "A few steps, warm",
        "A few steps, cold",
        "Throughput over threads",
    ]
    assert [figure.title for figure in REPORTS["ladder"].figures] == ["Ladder"]
    assert figures(samples.empty()) == []


def test_no_id_is_there_twice(pages: dict[str, Page]) -> None:
    ids = [attributes["id"] for _, attributes in pages["photos"].elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_light_dark_narrow_and_print_have_their_rules(pages: dict[str, Page]) -> None:
    style = pages["photos"].style
    for rule in ("(prefers-color-scheme:dark)", "max-width:600px", "@media print", "color-scheme:"):
        assert rule in style
    declared = set(re.findall(r"--([a-z_]+):", style))
    used = set(re.findall(r"var\(--([a-z_]+)", style))
    for _, attributes in pages["photos"].elements:
        used |= set(re.findall(r"var\(--([a-z_]+)", attributes.get("style") or ""))
    assert used <= declared
    assert style.count("{") == style.count("}")


def named(name: str) -> Page:
    """The page of a bench in which every text is that name."""
    measured = samples.photos()
    measured = replace(
        measured,
        machine=replace(measured.machine, cpu=name, torch=name, device=name, date=name),
        dataset=replace(measured.dataset, path=name, kind=name),
        settings=replace(measured.settings, transforms=(name,), model=name, device=name),
        predictions=tuple(replace(one, name=name) for one in measured.predictions),
        trainings=tuple(replace(one, name=name) for one in measured.trainings),
        notes=(name,),
        baseline=name,
    )
    findings = [Finding("decode", name, name, 2.0, (name,))]
    reports = bench_report(measured, findings), ladder_report([Rung(name, 1.0)], {})
    markup = "".join(map(page, reports))
    markup.encode("utf-8")
    assert "\x1b" not in markup
    return Page(markup)


def test_names_cannot_become_markup() -> None:
    shown = named(HOSTILE)
    harmless = named("x")
    assert [tag for tag, _ in shown.elements] == [tag for tag, _ in harmless.elements]
    assert [set(attributes) for _, attributes in shown.elements] == [
        set(attributes) for _, attributes in harmless.elements
    ]
    # Title, path, kind, machine, settings, date, finding, tables, notes ... show it as a text.
    assert shown.text.count(SEEN) >= 15


def test_the_page_is_written_whole_in_utf_8(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("an older one")
    measured = replace(samples.bare(), notes=("größe 日本語",))
    write_page(bench_report(measured, ()), target)
    assert target.read_bytes() == page(bench_report(measured, ())).encode("utf-8")
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_page_that_fails_leaves_the_older_one(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("an older one")
    with pytest.raises(UndefinedError):
        write_page(replace(bench_report(samples.bare(), ()), findings=(object(),)), target)  # type: ignore[arg-type]
    assert target.read_text() == "an older one"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_page(bench_report(samples.bare(), ()), tmp_path / "missing" / "page.html")
