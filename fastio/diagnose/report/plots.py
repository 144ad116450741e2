"""The plots of a bench: epochs as bars, the rate over threads, a few steps over time.

`figures` chooses which of them there is data for, with their titles and captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

from fastio.diagnose import words
from fastio.diagnose.measured import STAGES, Epoch, Measured, Rung, Span, Stage, ThreadRate
from fastio.diagnose.report.canvas import (
    ROOMY,
    SMALL,
    WIDE,
    Canvas,
    fitting,
    shortened,
    text_on,
    ticks,
    width_of,
)
from fastio.diagnose.report.tables import speed_ups
from fastio.runtime.sizes import counted

_LABEL_GAP = 10
_BAR_STEP, _BAR_THICK, _SPLIT_STEP, _SPLIT_THICK = 46, 13, 78, 30  # pixels


@dataclass(frozen=True)
class Bar:
    """A bar of `bars`.

    Attributes:
        name: what it measures.
        value: its length; None draws the text alone.
        text: the value with its unit, or why there is none.
        colour: name of a colour of the palette.
        strong: whether its texts are bold.
        hollow: whether it is an outline, for what is predicted and not measured.
    """

    name: str
    value: float | None
    text: str
    colour: str = "other"
    strong: bool = False
    hollow: bool = False


def bars(shown: Sequence[Bar], label: str, *, width: int = WIDE) -> Canvas:
    """Draws horizontal bars from zero, each below its name and its value."""
    longest = max((bar.value or 0.0 for bar in shown), default=0.0) or 1.0
    canvas = Canvas(width, max(1, len(shown)) * _BAR_STEP, label)
    for number, bar in enumerate(shown):
        top = number * _BAR_STEP
        if bar.value is None:
            canvas.text(0, top + 10, shortened(bar.name, width))
            canvas.text(0, top + 28, shortened(bar.text, width), "soft")
            continue
        text = shortened(bar.text, width * 0.7, bold=bar.strong)
        room = width - width_of(text, bold=bar.strong) - 10
        canvas.text(0, top + 10, shortened(bar.name, room, bold=bar.strong), bold=bar.strong)
        canvas.text(width, top + 10, text, align="right", bold=bar.strong)
        length = max(1.0, bar.value / longest * width)
        canvas.box(0, top + 21, length, _BAR_THICK, bar.colour, hollow=bar.hollow)
    return canvas


def ladder(rungs: Sequence[Rung], *, width: int = WIDE) -> Canvas:
    """Draws a bar per rung: epoch time, speed-up over the first, accuracy, or why it is missing."""
    best = min((rung.time_s for rung in rungs if rung.time_s), default=None)
    shown = []
    for rung, (first, _) in zip(rungs, speed_ups(rungs), strict=True):
        if rung.time_s is None:
            why = words.clean(rung.why_not) or "not measured"
            shown.append(Bar(rung.name, None, f"not shown: {why}"))
            continue
        texts = [words.seconds(rung.time_s), "" if first is None else words.times(first)]
        texts.append("" if rung.accuracy is None else words.accuracy(rung.accuracy))
        text = " · ".join(filter(None, texts))
        shown.append(Bar(rung.name, rung.time_s, text, "fastio", rung.time_s == best))
    return bars(shown, "Epoch time by rung of the ladder", width=width)


def split_bars(epochs: Sequence[Epoch], *, width: int = WIDE) -> Canvas:
    """Draws each epoch as a bar, divided into stages."""
    canvas = Canvas(
        width, max(1, len(epochs)) * _SPLIT_STEP - 6, "What each epoch waits for, by stage"
    )
    longest = max((epoch.epoch_s for epoch in epochs), default=0.0) or 1.0
    for number, epoch in enumerate(epochs):
        top = number * _SPLIT_STEP + 22
        canvas.text(0, top - 12, f"{epoch.name}, {words.seconds(epoch.epoch_s)}", bold=True)
        left = 0.0
        below: list[_Label] = []
        for part, spent in epoch.parts():
            length = spent / longest * width
            canvas.box(left, top, max(0.75, length - 1), _SPLIT_THICK, part)
            share = words.percent(spent / epoch.epoch_s)
            texts = (f"{part} {words.seconds(spent)} · {share}", f"{part} {share}")
            text = fitting(texts, length - 14)
            if text:
                canvas.text(left + 8, top + _SPLIT_THICK / 2, text, text_on(part))
            else:
                below.append(_Label(texts[1], left, spent))
            left += length
        for label, x in _spread(below, width):
            canvas.text(x, top + _SPLIT_THICK + 11, label.text, "soft", size=SMALL)
    return canvas


class _Label(NamedTuple):
    """A text with its wanted position and its weight."""

    text: str
    x: float
    weight: float


def _spread(labels: list[_Label], width: float) -> list[tuple[_Label, float]]:
    """Returns positions on one line that do not overlap; the lightest label is dropped if there is
    no room.
    """
    sizes = [width_of(label.text, SMALL) for label in labels]
    places: list[float] = []
    free = 0.0
    for label, size in zip(labels, sizes, strict=True):
        places.append(max(free, label.x))
        free = places[-1] + size + _LABEL_GAP
    limit = width
    for number in reversed(range(len(labels))):
        places[number] = min(places[number], limit - sizes[number])
        limit = places[number] - _LABEL_GAP
    if places and places[0] < -0.5:
        lightest = min(labels, key=lambda label: label.weight)
        return _spread([label for label in labels if label is not lightest], width)
    return list(zip(labels, places, strict=True))


# --- The rate over threads ------------------------------------------------------------------------

_MUCH_HIGHER = 3  # times the best point: a line there would press the curve to the bottom
_STEEP = 24.0  # pixels up to the next point
_CURVE_TOP, _CURVE_BOTTOM, _CURVE_LEFT, _CURVE_INSET = 34.0, 240.0, 56.0, 24.0


@dataclass(frozen=True)
class Reference:
    """A rate to compare with: its name, samples per second, and a colour of the palette."""

    name: str
    samples_per_s: float
    colour: str


@dataclass(frozen=True)
class _Scale:
    """The positions of threads and rates on the canvas."""

    right: float
    fewest: int
    most: int
    highest: float

    def x(self, threads: int) -> float:
        room = self.right - _CURVE_LEFT - 2 * _CURVE_INSET
        span = self.most - self.fewest
        return _CURVE_LEFT + _CURVE_INSET + room * ((threads - self.fewest) / span if span else 0.5)

    def y(self, samples_per_s: float) -> float:
        return _CURVE_BOTTOM - samples_per_s / self.highest * (_CURVE_BOTTOM - _CURVE_TOP)


def thread_curve(
    points: Sequence[ThreadRate],
    noun: str,
    references: Sequence[Reference] = (),
    *,
    width: int = WIDE,
) -> Canvas:
    """Draws rates over threads as a curve, and references as dashed lines.

    Args:
        points: ascending.
        noun: what a sample is called, in the plural.
        references: those far above the curve are named, without a line.
        width: in pixels.
    """
    best = max((point.samples_per_s for point in points), default=0.0) or 1.0
    near = [one for one in references if one.samples_per_s <= _MUCH_HIGHER * best]
    beyond = [one for one in references if one.samples_per_s > _MUCH_HIGHER * best]
    margin = max((width_of(one.name, SMALL, bold=True) for one in near), default=8.0)
    scale = _Scale(
        width - margin - 8,
        min((point.threads for point in points), default=0),
        max((point.threads for point in points), default=1),
        1.12 * max([best, *(one.samples_per_s for one in near)]),
    )
    canvas = Canvas(width, _CURVE_BOTTOM + 44, f"{noun} a second over threads of the loader")
    _axes(canvas, scale, noun)
    for one in beyond:
        text = f"{one.name}: {words.rate(one.samples_per_s)} {noun}/s, above this plot"
        canvas.text(width, 10, text, one.colour, align="right", size=SMALL, bold=True)
    _references(canvas, scale, near)
    _curve(canvas, scale, points)
    return canvas


def _axes(canvas: Canvas, scale: _Scale, noun: str) -> None:
    for tick in ticks(scale.highest, 4):
        y = scale.y(tick)
        canvas.line([(_CURVE_LEFT, y), (scale.right, y)], "other" if tick == 0 else "line")
        canvas.text(_CURVE_LEFT - 8, y, words.rate(tick), "soft", align="right", size=SMALL)
    canvas.text(0, 10, f"{noun}/s", "soft", size=SMALL)
    middle = (_CURVE_LEFT + scale.right) / 2
    canvas.text(middle, _CURVE_BOTTOM + 34, "threads", "soft", align="center", size=SMALL)


def _references(canvas: Canvas, scale: _Scale, references: Sequence[Reference]) -> None:
    """Draws dashed lines with their names at the right end, moved apart where they are close."""
    lowest = float("inf")
    for one in sorted(references, key=lambda one: one.samples_per_s):
        y = scale.y(one.samples_per_s)
        canvas.line([(_CURVE_LEFT, y), (scale.right, y)], one.colour, width=1.5, dashes=(4, 3))
        at = min(y, lowest - 32)
        canvas.text(scale.right + 8, at - 7, one.name, one.colour, size=SMALL, bold=True)
        canvas.text(scale.right + 8, at + 8, words.rate(one.samples_per_s), one.colour, size=SMALL)
        lowest = at


def _curve(canvas: Canvas, scale: _Scale, points: Sequence[ThreadRate]) -> None:
    places = [(scale.x(point.threads), scale.y(point.samples_per_s)) for point in points]
    texts = [words.rate(point.samples_per_s) for point in points]
    labels = []
    for (x, y), (_, after), text in zip(places, places[1:] + places[-1:], texts, strict=False):
        wide = width_of(text, SMALL, bold=True)
        steep = y - after > _STEEP  # the curve goes where the label would be
        labels.append((x + 8, y + 12) if steep else (x - wide / 2, y - 15))
        # Lines do not run through the text.
        canvas.box(labels[-1][0] - 2, labels[-1][1] - 8, wide + 4, 16, "paper")
    if len(places) > 1:
        canvas.line(places, "fastio", width=2.5)
    for (x, y), (left, middle), text, point in zip(places, labels, texts, points, strict=True):
        canvas.dot(x, y, "fastio")
        wide = width_of(text, SMALL, bold=True)
        canvas.text(left + wide / 2, middle, text, bold=True, align="center", size=SMALL)
        canvas.text(x, _CURVE_BOTTOM + 14, f"{point.threads}", "soft", align="center", size=SMALL)


# --- A few steps over time ------------------------------------------------------------------------

_LEFT, _TOP, _LANE, _THICK, _RIGHT, _AXIS = 82.0, 24.0, 34.0, 22.0, 16.0, 34.0  # pixels
_STEPS, _STEPS_NARROW = 10, 4


@dataclass(frozen=True)
class _Shown:
    """The spans that are drawn, and their position on the canvas."""

    spans: tuple[Span, ...]
    begin_s: float
    lasts_s: float
    pixels_a_second: float

    def x(self, at_s: float) -> float:
        return _LEFT + max(0.0, at_s - self.begin_s) * self.pixels_a_second

    @property
    def lanes(self) -> list[Stage]:
        return [stage for stage in STAGES if any(span.stage == stage for span in self.spans)]

    @property
    def bottom(self) -> float:
        return _TOP + max(1, len(self.lanes)) * _LANE


def timeline(spans: Sequence[Span], *, width: int = WIDE) -> Canvas:
    """Draws consecutive steps from the middle of a run, without the first ones.

    Args:
        spans: of one run.
        width: in pixels.
    """
    steps = sorted({span.step for span in spans})
    count = _STEPS if width >= ROOMY else _STEPS_NARROW
    first = min(len(steps) // 4, max(0, len(steps) - count))
    chosen = steps[first : first + count]
    few = tuple(span for span in spans if span.step in chosen)
    # What the first of them waits for while the step before is computed belongs to that.
    before = [span.end_s for span in spans if span.step in steps[max(0, first - 1) : first]]
    begin_s = max([min((span.start_s for span in few), default=0.0), *before])
    lasts_s = max([0.0, *(span.end_s - begin_s for span in few)]) or 1.0
    shown = _Shown(few, begin_s, lasts_s, (width - _LEFT - _RIGHT) / lasts_s)
    canvas = Canvas(width, shown.bottom + _AXIS, "A few training steps by stage, over time")
    _steps(canvas, shown)
    for number, stage in enumerate(shown.lanes):
        _lane(canvas, shown, stage, _TOP + number * _LANE + (_LANE - _THICK) / 2)
    _axis(canvas, shown)
    return canvas


def _steps(canvas: Canvas, shown: _Shown) -> None:
    """Draws a band for each step until its computation ends; the next step may already be waited
    for.
    """
    begin = shown.begin_s
    for number, step in enumerate(sorted({span.step for span in shown.spans})):
        end = max(begin, *(span.end_s for span in shown.spans if span.step == step))
        left, width = shown.x(begin), shown.x(end) - shown.x(begin)
        if number % 2 == 0:
            canvas.box(left, 4, width, shown.bottom - 4, "panel")
        text = fitting((f"step {step}", f"{step}"), width, SMALL)
        canvas.text(left + width / 2, 15, text, "soft", align="center", size=SMALL)
        begin = end


def _lane(canvas: Canvas, shown: _Shown, stage: Stage, top: float) -> None:
    canvas.text(0, top + _THICK / 2, stage)
    for span in shown.spans:
        if span.stage == stage:
            left, right = shown.x(span.start_s), shown.x(span.end_s)
            if right > _LEFT:
                canvas.box(left, top, max(0.75, right - left - 0.5), _THICK, stage)


def _axis(canvas: Canvas, shown: _Shown) -> None:
    """Draws the time since the first of the steps."""
    units = (("s", 1.0, 2.0), ("ms", 1e3, 2e-3), ("µs", 1e6, 0.0))
    unit, scale = next((unit, scale) for unit, scale, least in units if shown.lasts_s >= least)
    y = shown.bottom
    canvas.line([(_LEFT, y), (canvas.width - _RIGHT, y)], "other")
    for tick in ticks(shown.lasts_s * scale, 5 if canvas.width >= ROOMY else 3):
        x = shown.x(shown.begin_s + tick / scale)
        canvas.line([(x, y), (x, y + 4)], "other")
        canvas.text(x, y + 16, f"{tick:,g} {unit}", "soft", align="center", size=SMALL)


# --- Which plots a bench gives --------------------------------------------------------------------


class _Draw(Protocol):
    def __call__(self, *, width: int) -> Canvas: ...


@dataclass(frozen=True)
class Figure:
    """A plot that is drawn when its width is known.

    Attributes:
        title: a few words.
        caption: how to read it.
        draw: draws it for a width in pixels.
    """

    title: str
    caption: str
    draw: _Draw


def figures(measured: Measured, rungs: Sequence[Rung] = ()) -> list[Figure]:
    """Returns the plots for which there is data, in reading order."""
    found: list[Figure] = []
    shown = measured.all_epochs()
    if len(shown) + len(measured.predictions) > 1:
        found.append(_epoch_times(measured, shown))
    if shown:
        caption = (
            "What the training loop waited for during one epoch. Work that overlaps another stage "
            "is not shown: a faster loader can save all that is not compute."
        )
        found.append(Figure("What an epoch waits for", caption, partial(split_bars, shown)))
    runs: tuple[Literal["warm", "cold"], ...] = ("warm", "cold")
    for run in runs:
        if any(span.run == run for span in measured.timeline):
            found.append(_timeline(measured, run))
    if measured.threads:
        found.append(_thread_curve(measured))
    if rungs:
        found.append(ladder_figure(rungs))
    return found


def ladder_figure(rungs: Sequence[Rung]) -> Figure:
    """Returns the rungs of a ladder as a bar chart."""
    caption = "One more optimisation per rung: epoch time · speed-up over the first · top-1."
    return Figure("Ladder", caption, partial(ladder, rungs))


def _epoch_times(measured: Measured, shown: Sequence[Epoch]) -> Figure:
    slowest_first = sorted(shown, key=lambda epoch: -epoch.epoch_s)
    shown_bars = [
        Bar(
            epoch.name if epoch.name == "DataLoader" else f"fastio, {epoch.name}",
            epoch.epoch_s,
            words.seconds(epoch.epoch_s),
            "other" if epoch.name == "DataLoader" else "fastio",
            strong=epoch.name != "DataLoader",
        )
        for epoch in slowest_first
    ]
    for one in measured.predictions:
        if not one.is_now:
            text = words.seconds(one.epoch_s)
            if one.measured_s is not None:
                text += f", measured {words.seconds(one.measured_s)}"
            shown_bars.append(Bar(one.name, one.epoch_s, text, "fastio", hollow=True))
    caption = "Time of a whole epoch; dashed: predicted from the same measurements."
    return Figure("Epoch time", caption, partial(bars, shown_bars, "Epoch time"))


def _timeline(measured: Measured, run: Literal["warm", "cold"]) -> Figure:
    spans = [span for span in measured.timeline if span.run == run]
    batch = counted(measured.settings.batch_size, measured.dataset.noun)
    caption = (
        f"Consecutive steps of {batch}: what the loop waits for, and when the model computes. A "
        "band ends with the computation of its step."
    )
    return Figure(f"A few steps, {run}", caption, partial(timeline, spans))


def _thread_curve(measured: Measured) -> Figure:
    model, baseline = measured.phase("compute"), measured.phase("baseline_loader")
    ceiling = model.samples_per_s if model else measured.settings.accelerator_rate
    references = [] if not ceiling else [Reference("the model", ceiling, "good")]
    if baseline is not None:
        references.append(Reference("DataLoader", baseline.samples_per_s, "soft"))
    used = counted(measured.settings.threads, "threads")
    caption = (
        f"The loader alone, warm; training used {used}. Above the "
        "model's line, training no longer waits for the loader."
    )
    draw = partial(thread_curve, measured.threads, measured.dataset.noun, references)
    return Figure("Throughput over threads", caption, draw)
