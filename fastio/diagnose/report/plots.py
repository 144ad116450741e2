"""Bars: of epochs and other figures, of a ladder's rungs, and epochs cut in stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastio.diagnose.report import palette, words
from fastio.diagnose.report.canvas import ROOMY, SMALL, WIDE, Canvas, fitting, shortened, width_of
from fastio.diagnose.report.epochs import Epoch
from fastio.diagnose.report.rungs import Rung, speed_ups

_LABEL_GAP = 10
_STEP_BESIDE, _STEP_BELOW = 34, 46  # pixels a bar


@dataclass(frozen=True)
class Bar:
    """A bar of `bars`.

    Attributes:
        name: of what it measures.
        value: its length; None: nothing is drawn, the text alone.
        text: at its end: the value with its unit.
        colour: of the palette.
        strong: its texts are bold.
        hollow: an outline, as of what is predicted and not measured.
    """

    name: str
    value: float | None
    text: str
    colour: str = "other"
    strong: bool = False
    hollow: bool = False


def bars(shown: Sequence[Bar], label: str, *, width: int = WIDE) -> Canvas:
    """Draws horizontal bars from zero, each with its name and its value."""
    longest = max((bar.value or 0.0 for bar in shown), default=0.0) or 1.0
    beside = width >= ROOMY
    step = _STEP_BESIDE if beside else _STEP_BELOW
    canvas = Canvas(width, max(1, len(shown)) * step, label)
    (_bars_beside if beside else _bars_below)(shown, longest, canvas)
    return canvas


def _bars_beside(shown: Sequence[Bar], longest: float, canvas: Canvas) -> None:
    """Draws names, bars and values on one line."""
    names = max((width_of(bar.name, bold=bar.strong) for bar in shown), default=0.0)
    ends = max((width_of(bar.text, bold=bar.strong) for bar in shown if bar.value), default=0.0)
    left = min(names + 12, canvas.width * 0.45)
    room = max(40.0, canvas.width - left - ends - 8)
    for number, bar in enumerate(shown):
        top = number * _STEP_BESIDE + 6
        canvas.text(0, top + 11, shortened(bar.name, left - 10, bold=bar.strong), bold=bar.strong)
        if bar.value is None:
            canvas.text(left, top + 11, shortened(bar.text, canvas.width - left), "soft")
            continue
        length = max(1.0, bar.value / longest * room)
        canvas.box(left, top, length, 22, bar.colour, hollow=bar.hollow)
        canvas.text(left + length + 8, top + 11, bar.text, bold=bar.strong)


def _bars_below(shown: Sequence[Bar], longest: float, canvas: Canvas) -> None:
    """Draws bars below their names and values."""
    for number, bar in enumerate(shown):
        top = number * _STEP_BELOW
        if bar.value is None:
            canvas.text(0, top + 10, shortened(bar.name, canvas.width))
            canvas.text(0, top + 28, shortened(bar.text, canvas.width), "soft")
            continue
        text = shortened(bar.text, canvas.width * 0.7, bold=bar.strong)
        room = canvas.width - width_of(text, bold=bar.strong) - 10
        canvas.text(0, top + 10, shortened(bar.name, room, bold=bar.strong), bold=bar.strong)
        canvas.text(canvas.width, top + 10, text, align="right", bold=bar.strong)
        length = max(1.0, bar.value / longest * canvas.width)
        canvas.box(0, top + 21, length, 13, bar.colour, hollow=bar.hollow)


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
    step, thick = 78, 30
    canvas = Canvas(width, max(1, len(epochs)) * step - 6, "What each epoch waits for, by stage")
    longest = max((epoch.epoch_s for epoch in epochs), default=0.0) or 1.0
    for number, epoch in enumerate(epochs):
        top = number * step + 22
        name = f"{epoch.name}, {words.seconds(epoch.epoch_s)}"
        canvas.text(0, top - 12, name, bold=True)
        left = 0.0
        below: list[_Label] = []
        for part, spent in epoch.parts():
            length = spent / longest * width
            canvas.box(left, top, max(0.75, length - 1), thick, part)
            share = words.percent(spent / epoch.epoch_s)
            texts = (f"{part} {words.seconds(spent)} · {share}", f"{part} {share}")
            text = fitting(texts, length - 14)
            if text:
                canvas.text(left + 8, top + thick / 2, text, palette.text_on(part))
            else:
                below.append(_Label(texts[1], left, spent))
            left += length
        for label, x in _spread(below, width):
            canvas.text(x, top + thick + 11, label.text, "soft", size=SMALL)
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
