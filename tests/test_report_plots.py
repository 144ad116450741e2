"""Plots: what is drawn, for no data, little data and hostile names."""

from __future__ import annotations

import re

import pytest

from fastio.diagnose import Measured, words
from fastio.diagnose.measured import STAGES, Epoch, Rung, Span, Stage, ThreadRate
from fastio.diagnose.report import Report
from fastio.diagnose.report.page import page
from fastio.diagnose.report.plots import (
    Bar,
    Figure,
    Reference,
    curve,
    epoch_times,
    figures,
    ladder_figure,
    split_epochs,
    thread_curve,
    ticks,
    timeline,
)
from tests import report_samples as samples
from tests.html_page import Page, colours

HOSTILE = '<script>alert("1")</script> & $x^2$ \x1b[31m \udcff 日本語 \N{PARTY POPPER}\n2'


def drawn(figure: Figure) -> Page:
    """A page with one plot."""
    return Page(page(Report("plots", (), figures=(figure,))))


def texts(figure: Figure) -> set[str]:
    """All texts of a plot."""
    return {" ".join(text.split()) for _, text in drawn(figure).texts}


def bars(*shown: Bar) -> Figure:
    """A plot of bars."""
    return Figure("Bars", "", "bars", {"shown": shown})


def rates(points: list[ThreadRate], *references: Reference) -> Figure:
    """A curve of rates."""
    return Figure("Rates", "", "thread_curve", {**curve(points, references), "noun": "rows"})


def empty(*epochs: Epoch) -> Measured:
    """Nothing but some epochs."""
    return Measured(samples.MACHINE, samples.PHOTOS, samples.photos().settings, (), epochs)


@pytest.mark.parametrize(
    "figure",
    [
        bars(),
        bars(Bar("one", 0.0, "0")),
        bars(Bar("one", None, "not there")),
        epoch_times(empty()),
        epoch_times(empty(Epoch("warm", 1.0))),
        ladder_figure([Rung("one", 1.0)]),
        ladder_figure([Rung("one", why_not="no GPU")]),
        split_epochs([Epoch("warm", 1.0)]),
        timeline([], "warm", ""),
        timeline([Span(3, "compute", 1.0, 1.0)], "warm", ""),
        timeline([Span(3, "compute", 1.0, 1.5)], "warm", ""),
        rates([ThreadRate(1, 0.0)]),
        rates([ThreadRate(4, 99.0)]),
    ],
)
def test_no_data_or_one_datum_is_drawn(figure: Figure) -> None:
    shown = drawn(figure)
    assert shown.count("figure") == 1
    for _, attributes in shown.elements:
        for value in re.findall(r"(?:left|bottom|width):([^;%]*)%", attributes.get("style") or ""):
            assert 0.0 <= float(value) <= 100.0


def test_bars_are_as_long_as_their_values() -> None:
    figure = bars(Bar("a", 10.0, "10 s", "fastio"), Bar("b", 2.5, "2.5 s", "fastio"))
    assert drawn(figure).places("length", of=("width",)) == [[100.0], [25.0]]
    assert {"a", "b", "10 s", "2.5 s"} <= texts(figure)


def test_what_is_predicted_is_hollow_and_what_fastio_reaches_is_strong() -> None:
    shown = drawn(epoch_times(samples.photos()))
    assert len(shown.styles("length")) == 5
    assert len(shown.styles("length", "hollow")) == 2
    strong = [one for _, one in shown.elements if one.get("class") == "bar strong"]
    assert len(strong) == 2


def test_long_names_leave_room_for_values() -> None:
    """Names are cut off by the page's style, and values are not."""
    shown = drawn(bars(Bar("name " * 50, 1.0, "1 s", "fastio")))
    assert "1 s" in {text for _, text in shown.texts}
    assert "span:first-child{overflow:hidden;text-overflow:ellipsis}" in shown.style


def test_ladder_shows_speed_ups_accuracy_and_what_is_missing() -> None:
    found = texts(ladder_figure(samples.LADDER))
    assert f"48.1 s · 12.7{words.TIMES} · 44.1%" in found
    assert "not shown: no GPU" in found
    assert {rung.name for rung in samples.LADDER} <= found


def test_split_bars_name_every_part() -> None:
    epochs = samples.photos().all_epochs()
    figure = split_epochs(epochs)
    shown, found = drawn(figure), texts(figure)
    longest = max(epoch.epoch_s for epoch in epochs)
    for epoch in epochs:
        assert f"{epoch.name}, {words.seconds(epoch.epoch_s)}" in found
        for part, spent in epoch.parts():
            share = words.percent(spent / epoch.epoch_s)
            assert f"{part} {words.seconds(spent)} · {share}" in found
    for part in ("fetch", "decode", "compute", "wait"):
        lengths = [spent for epoch in epochs for name, spent in epoch.parts() if name == part]
        widths = [width for (width,) in shown.places(part, of=("width",))]
        assert widths == pytest.approx([100 * spent / longest for spent in lengths], abs=0.01)


def test_names_of_small_parts_are_below_their_bar() -> None:
    parts: dict[Stage, float] = {"fetch": 1.0, "decode": 2.0, "transform": 1.5, "copy": 0.5}
    shown = drawn(split_epochs([Epoch("warm", 65.0, {**parts, "compute": 60.0})]))
    assert len(shown.styles("short")) == 4
    within = [text for tag, text in shown.texts if tag == "div"]
    assert within == ["compute 60.0 s · 92%"]
    below = [one.get("class") for tag, one in shown.elements if tag == "span" and "class" in one]
    assert below == ["", "", "", "", "within"]  # which is shown on narrow screens


def test_timeline_has_a_lane_a_stage_and_a_box_a_span() -> None:
    spans = samples.timeline("cold", {"fetch": 0.1, "decode": 0.2}, 0.3)
    figure = timeline(spans, "cold", "4 images")
    shown, found = drawn(figure), texts(figure)
    steps = [text for text in found if text.startswith("step ")]
    assert len(steps) == 10
    for stage in ("fetch", "decode", "compute"):
        assert stage in found
        places = shown.places(stage)
        assert len(places) == len(steps)
        assert all(left >= 0 and left + width <= 100.1 for left, width in places)
    assert "copy" not in found
    assert any(re.fullmatch(r"[\d.]+ s", text) for text in found)


def test_timeline_s_bands_end_where_steps_are_computed() -> None:
    """The loop waits for a batch while the step before is still computed."""
    spans = []
    for step in range(12):
        spans.append(Span(step, "decode", step - 0.6, step - 0.1))
        spans.append(Span(step, "compute", float(step), step + 1.0))
    shown = drawn(timeline(spans, "warm", ""))
    bands, computed = shown.places("step"), shown.places("compute")
    assert bands[0][0] == pytest.approx(computed[0][0], abs=0.1)
    for band, box in zip(bands, computed, strict=True):
        assert band == pytest.approx(box, abs=0.1)
    assert all(left >= bands[0][0] - 0.1 for left, _ in shown.places("decode"))


@pytest.mark.parametrize(("step_s", "unit"), [(2e-5, "µs"), (1e-2, "ms"), (3.0, "s")])
def test_timeline_s_axis_has_a_fitting_unit(step_s: float, unit: str) -> None:
    spans = samples.timeline("warm", {"decode": step_s / 4}, step_s / 2)
    assert any(text.endswith(f" {unit}") for text in texts(timeline(spans, "warm", "")))


def test_thread_curve_shows_points_ceiling_and_baseline() -> None:
    figure = thread_curve(samples.photos())
    found = texts(figure)
    assert {"1,050", "2,012", "the model", "1,786", "DataLoader", "324"} <= found
    assert {"1", "2", "3", "4", "threads", "images/s"} <= found
    shown = drawn(figure)
    places = shown.places("dot", of=("left", "bottom"))
    assert [left for left, _ in places] == pytest.approx([0, 100 / 3, 200 / 3, 100])
    rated = [point.samples_per_s for point in samples.photos().threads]
    scale = places[0][1] / rated[0]
    assert [bottom for _, bottom in places] == pytest.approx([rate * scale for rate in rated])
    assert shown.places("reference", of=("bottom",))[1][0] == pytest.approx(1786 * scale, abs=0.01)


def test_a_label_stands_beside_a_point_from_which_the_curve_rises_steeply() -> None:
    shown = drawn(rates([ThreadRate(1, 100.0), ThreadRate(2, 200.0), ThreadRate(3, 201.0)]))
    assert len(shown.styles("steep")) == 1


def test_a_ceiling_far_above_does_not_flatten_the_curve() -> None:
    points = [ThreadRate(1, 100.0), ThreadRate(2, 200.0)]
    found = texts(rates(points, Reference("the model", 1e6, "good")))
    assert any("above this plot" in text for text in found)
    assert "200" in found
    assert not any(text.endswith("M") for text in found)


def test_names_of_near_references_are_moved_apart() -> None:
    near = Reference("one", 150.0, "good"), Reference("other", 151.0, "soft")
    ((one,), (other,)) = drawn(rates([ThreadRate(1, 100.0)], *near)).places("name", of=("bottom",))
    assert other - one > 15


def test_hostile_names_are_texts() -> None:
    figure = bars(Bar(HOSTILE, 1.0, HOSTILE))
    markup = page(Report("plots", (), figures=(figure,)))
    assert "<script" not in markup
    assert "\x1b" not in markup
    assert "\udcff" not in markup
    assert sum(text.startswith("<script>") for _, text in drawn(figure).texts) == 2


def test_names_that_look_like_what_is_tidied_stay_as_they_are() -> None:
    name = ' id="x" font-family: y; #0072b2 font: 9px z; > <'
    assert name.strip() in texts(bars(Bar(name, 1.0, "1")))


LADDER = ladder_figure(samples.LADDER)
FIGURES = {figure.title: figure for figure in (*figures(samples.photos()), LADDER)}


@pytest.mark.parametrize("title", FIGURES)
def test_drawings_refer_to_nothing_and_have_the_page_s_colours(title: str) -> None:
    shown = drawn(FIGURES[title])
    known = colours(shown.style)["light"]
    for _, attributes in shown.elements:
        assert {"id", "href", "src"}.isdisjoint(attributes)
        style = attributes.get("style") or ""
        assert "url(" not in style
        assert "#" not in style
        assert {*re.findall(r"var\(--(\w+)\)", style)} <= {*known}


def test_the_same_data_give_the_same_drawing() -> None:
    report = Report("plots", (), figures=tuple(FIGURES.values()))
    assert page(report) == page(report)


def luminance(shade: str) -> float:
    """Of a colour, as WCAG 2 defines it."""
    parts = [value / 255 for value in bytes.fromhex(shade[1:])]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


STYLE = Page(page(Report("plots", ()))).style
ON_STAGES = [
    (text, part)
    for parts, text in re.findall(r"^([.,\w]+)\{color:var\(--(\w+)\)\}", STYLE, re.MULTILINE)
    if text.startswith("on_")
    for part in re.findall(r"\w+", parts)
]


def test_every_part_of_an_epoch_has_its_colours() -> None:
    assert {part for _, part in ON_STAGES} == {*STAGES, "wait"}
    for part in (*STAGES, "wait"):
        assert f".{part}{{background:var(--{part})}}" in STYLE


@pytest.mark.parametrize("paper", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [("ink", "paper"), ("soft", "paper"), ("soft", "panel"), ("good", "paper"), *ON_STAGES],
)
def test_texts_stand_out_from_what_they_are_on(text: str, ground: str, paper: str) -> None:
    """By 4.5 : 1, which WCAG 2 asks for of small texts."""
    known = colours(STYLE)[paper]
    shades = [luminance(known[name]) for name in (text, ground)]
    assert (max(shades) + 0.05) / (min(shades) + 0.05) >= 4.5


@pytest.mark.parametrize("highest", [0.0, 0.003, 0.7, 1.0, 12.0, 2324.0, 4.7e7])
def test_ticks_are_few_round_and_in_range(highest: float) -> None:
    found = list(ticks(highest, 4))
    assert found[0] == 0.0
    assert len(found) <= 6
    assert all(tick <= highest * (1 + 1e-9) for tick in found)
    if highest:
        assert len(found) >= 2
