"""Plots: what is drawn, for no data, little data and hostile names; what is left untouched."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from fastio.diagnose import words
from fastio.diagnose.measured import Epoch, Rung, Span, ThreadRate
from fastio.diagnose.report import canvas
from fastio.diagnose.report.canvas import NARROW, WIDE, Canvas, shortened, ticks, width_of
from fastio.diagnose.report.plots import (
    Bar,
    Reference,
    bars,
    figures,
    ladder,
    split_bars,
    thread_curve,
    timeline,
)
from tests import report_samples as samples

HOSTILE = '<script>alert("1")</script> & $x^2$ \x1b[31m \udcff 日本語 \N{PARTY POPPER}\n2'

WIDTHS = pytest.mark.parametrize("width", [WIDE, NARROW])


def root(canvas: Canvas) -> ET.Element:
    """A drawing, parsed."""
    return ET.fromstring(canvas.svg())


def texts(canvas: Canvas) -> list[str]:
    """All texts of a drawing."""
    return ["".join(text.itertext()) for text in root(canvas).iter("text")]


def boxes(canvas: Canvas, colour: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of every rectangle of a colour."""
    found = []
    for box in root(canvas).iter("rect"):
        if f"var(--{colour}," in box.get("style", ""):
            x, y, width, height = (float(box.get(k, "")) for k in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


@WIDTHS
@pytest.mark.parametrize(
    "draw",
    [
        lambda width: bars([], "none", width=width),
        lambda width: bars([Bar("one", 0.0, "0")], "one", width=width),
        lambda width: bars([Bar("one", None, "not there")], "one", width=width),
        lambda width: ladder([], width=width),
        lambda width: ladder([Rung("one", 1.0)], width=width),
        lambda width: ladder([Rung("one", shown=False, why_not="no GPU")], width=width),
        lambda width: split_bars([], width=width),
        lambda width: split_bars([Epoch("warm", 1.0)], width=width),
        lambda width: timeline([], width=width),
        lambda width: timeline([Span(3, "compute", 1.0, 1.0)], width=width),
        lambda width: timeline([Span(3, "compute", 1.0, 1.5)], width=width),
        lambda width: thread_curve([], "images", width=width),
        lambda width: thread_curve([ThreadRate(1, 0.0)], "images", width=width),
        lambda width: thread_curve([ThreadRate(4, 99.0)], "images", width=width),
    ],
)
def test_no_data_or_one_datum_is_drawn(draw: Callable[[int], Canvas], width: int) -> None:
    drawn = root(draw(width))
    assert drawn.get("viewBox", "").startswith(f"0 0 {width} ")
    assert "nan" not in ET.tostring(drawn, "unicode").replace("dominant", "")


@WIDTHS
def test_bars_are_as_long_as_their_values(width: int) -> None:
    shown = [Bar("a", 10.0, "10 s", "fastio"), Bar("b", 2.5, "2.5 s", "fastio")]
    (left, _, long, _), (_, _, short, _) = boxes(bars(shown, "", width=width), "fastio")
    assert (short - left) / (long - left) == pytest.approx(0.25, abs=0.01)
    assert {"a", "b", "10 s", "2.5 s"} <= set(texts(bars(shown, "", width=width)))


@WIDTHS
def test_long_names_leave_room_for_bars(width: int) -> None:
    canvas = bars([Bar("name " * 50, 1.0, "1 s", "fastio")], "", width=width)
    ((left, _, right, _),) = boxes(canvas, "fastio")
    assert right - left > width / 3
    assert "1 s" in texts(canvas)


@WIDTHS
def test_ladder_shows_speed_ups_accuracy_and_what_is_missing(width: int) -> None:
    found = texts(ladder(samples.LADDER, width=width))
    assert f"48.1 s · 12.7{words.TIMES} · 44.1%" in found
    assert "not shown: no GPU" in found
    assert {rung.name for rung in samples.LADDER} <= set(found)


@WIDTHS
def test_split_bars_name_every_part(width: int) -> None:
    shown = samples.photos().all_epochs()
    found = " ".join(texts(split_bars(shown, width=width)))
    for epoch in shown:
        assert f"{epoch.name}, " in found
    for part in ("fetch", "decode", "compute", "wait"):
        assert part in found
    cold = shown[1]
    left, right = 0.0, cold.epoch_s / shown[2].epoch_s * width
    fetch, decode = (boxes(split_bars(shown, width=width), part) for part in ("fetch", "decode"))
    assert fetch[0][0] == pytest.approx(left, abs=1)
    assert decode[1][0] == pytest.approx(fetch[0][2] + 1, abs=1)
    assert right == pytest.approx(boxes(split_bars(shown, width=width), "compute")[1][2], abs=2)


@pytest.mark.parametrize("width", [WIDE, NARROW, 200])
def test_labels_of_small_parts_do_not_run_into_each_other(width: int) -> None:
    parts = {"fetch": 1.0, "decode": 2.0, "transform": 1.5, "copy": 0.5, "compute": 60.0}
    canvas = split_bars([Epoch("warm", 65.0, parts)], width=width)
    places = []
    for text in root(canvas).iter("text"):
        label = "".join(text.itertext())
        x, y = float(text.get("x", 0)), float(text.get("y", 0))
        if y > 55:  # below the bar
            places.append((x, x + width_of(label, 11.5)))
    assert len(places) >= 2
    assert all(left >= 0 and right <= width + 0.5 for left, right in places)
    assert all(one[1] < other[0] for one, other in pairwise(places))


@WIDTHS
def test_timeline_has_a_lane_a_stage_and_a_box_a_span(width: int) -> None:
    spans = samples.timeline("cold", {"fetch": 0.1, "decode": 0.2}, 0.3)
    canvas = timeline(spans, width=width)
    steps = [text for text in texts(canvas) if text.startswith("step ")]
    assert len(steps) == (10 if width == WIDE else 4)
    for stage in ("fetch", "decode", "compute"):
        assert stage in texts(canvas)
        drawn = boxes(canvas, stage)
        assert len(drawn) == len(steps)
        assert len({top for _, top, _, _ in drawn}) == 1
        assert all(80 <= left < right <= width for left, _, right, _ in drawn)
    assert "copy" not in texts(canvas)
    assert any(re.fullmatch(r"[\d.]+ s", text) for text in texts(canvas))


@WIDTHS
def test_timeline_s_bands_end_where_steps_are_computed(width: int) -> None:
    """The loop waits for a batch while the step before is still computed."""
    spans = []
    for step in range(12):
        spans.append(Span(step, "decode", step - 0.6, step - 0.1))
        spans.append(Span(step, "compute", float(step), step + 1.0))
    canvas = timeline(spans, width=width)
    computed = boxes(canvas, "compute")
    bands = boxes(canvas, "panel")
    assert computed[0][0] == pytest.approx(bands[0][0], abs=0.1)
    for (left, _, right, _), band in zip(computed[0::2], bands, strict=True):
        assert (band[0], band[2]) == pytest.approx((left, right), abs=1)
    assert all(left >= bands[0][0] - 0.1 for left, *_ in boxes(canvas, "decode"))


@pytest.mark.parametrize(("step_s", "unit"), [(2e-5, "µs"), (1e-2, "ms"), (3.0, "s")])
def test_timeline_s_axis_has_a_fitting_unit(step_s: float, unit: str) -> None:
    spans = samples.timeline("warm", {"decode": step_s / 4}, step_s / 2)
    assert any(text.endswith(f" {unit}") for text in texts(timeline(spans)))


@WIDTHS
def test_thread_curve_shows_points_ceiling_and_baseline(width: int) -> None:
    references = [Reference("the model", 1786.0, "good"), Reference("DataLoader", 324.0, "soft")]
    found = texts(thread_curve(samples.photos().threads, "images", references, width=width))
    assert {"1,050", "2,012", "the model", "1,786", "DataLoader", "324"} <= set(found)
    assert {"1", "2", "3", "4", "threads", "images/s"} <= set(found)


@WIDTHS
def test_a_ceiling_far_above_does_not_flatten_the_curve(width: int) -> None:
    points = [ThreadRate(1, 100.0), ThreadRate(2, 200.0)]
    far = thread_curve(points, "rows", [Reference("the model", 1e6, "good")], width=width)
    assert any("above this plot" in text for text in texts(far))
    assert "200" in texts(far)
    assert not any(text.endswith("M") for text in texts(far))


@WIDTHS
def test_names_of_near_references_are_moved_apart(width: int) -> None:
    near = [Reference("one", 150.0, "good"), Reference("other", 151.0, "soft")]
    canvas = thread_curve([ThreadRate(1, 100.0)], "rows", near, width=width)
    heights = {}
    for text in root(canvas).iter("text"):
        heights["".join(text.itertext())] = float(text.get("y", 0))
    assert abs(heights["one"] - heights["other"]) > 25


@WIDTHS
def test_hostile_names_are_texts(width: int) -> None:
    canvas = bars([Bar(HOSTILE, 1.0, HOSTILE)], HOSTILE, width=width)
    markup = canvas.svg()
    assert "<script" not in markup
    assert "\x1b" not in markup
    assert "\udcff" not in markup
    assert any(text.startswith("<script>") for text in texts(canvas))
    assert root(canvas).get("aria-label", "").startswith("<script>")


def test_names_that_look_like_what_is_tidied_stay_as_they_are() -> None:
    name = ' id="x" font-family: y; #0072b2 font: 9px z; > <'
    assert name.strip() in texts(bars([Bar(name, 1.0, "1")], ""))


FIGURES = {figure.title: figure for figure in figures(samples.photos(), samples.LADDER)}


@pytest.mark.parametrize("title", FIGURES)
def test_inline_drawings_refer_to_nothing(title: str) -> None:
    markup = FIGURES[title].draw(width=WIDE).svg()
    for word in ("http", "url(", "href", " id=", "<metadata", "<image", "font-family"):
        assert word not in markup
    coloured = set(re.findall(r"#[0-9a-f]{6}", markup))
    assert coloured <= {colour.light for colour in canvas.COLOURS.values()}
    for fallback in coloured:
        assert markup.count(fallback) == markup.count(f",{fallback})")


def test_the_same_data_give_the_same_drawing() -> None:
    first, second = (split_bars(samples.photos().all_epochs()).svg() for _ in range(2))
    assert first == second


def test_a_file_of_its_own_is_an_svg_for_both_papers(tmp_path: Path) -> None:
    canvas = bars([Bar("größe", 1.0, "1 s", "fastio")], "Title & more")
    inline = canvas.svg()
    canvas.write(tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    parsed = ET.fromstring(text)
    assert parsed.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme:dark" in text
    found = ["".join(one.itertext()) for one in parsed.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Title & more", "größe", "1 s"} <= set(found)
    assert canvas.svg() == inline


def test_a_drawing_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    canvas = bars([], "")
    with pytest.raises(OSError, match="missing"):
        canvas.write(tmp_path / "missing" / "plot.svg")
    with pytest.raises(ValueError, match="not supported"):
        canvas.write(tmp_path / "plot.xyz")


def luminance(shade: str) -> float:
    """Of a colour, as WCAG 2 defines it."""
    parts = [value / 255 for value in bytes.fromhex(shade[1:])]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("paper", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        ("ink", "paper"),
        ("soft", "paper"),
        ("soft", "panel"),
        ("good", "paper"),
        *((canvas.text_on(part), part) for part in ("fetch", "decode", "transform", "copy")),
        *((canvas.text_on(part), part) for part in ("compute", "wait")),
    ],
)
def test_texts_stand_out_from_what_they_are_on(text: str, ground: str, paper: str) -> None:
    """By 4.5 : 1, which WCAG 2 asks for of small texts."""
    shades = [luminance(getattr(canvas.COLOURS[name], paper)) for name in (text, ground)]
    assert (max(shades) + 0.05) / (min(shades) + 0.05) >= 4.5


def test_shortened_texts_fit() -> None:
    for text in ("", "short", "a long text " * 9, "日本語" * 30):
        assert width_of(shortened(text, 120.0)) <= 120.0
    assert shortened("short", 120.0) == "short"


@pytest.mark.parametrize("highest", [0.0, 0.003, 0.7, 1.0, 12.0, 2324.0, 4.7e7])
def test_ticks_are_few_round_and_in_range(highest: float) -> None:
    found = list(ticks(highest, 4))
    assert found[0] == 0.0
    assert len(found) <= 6
    assert all(tick <= highest * (1 + 1e-9) for tick in found)
    if highest:
        assert len(found) >= 2
