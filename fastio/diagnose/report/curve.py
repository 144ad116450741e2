"""The loader's rate over its threads, with what it is compared to as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastio.diagnose.measured import ThreadRate
from fastio.diagnose.report import words
from fastio.diagnose.report.canvas import SMALL, WIDE, Canvas, ticks, width_of

_MUCH_HIGHER = 3  # times the best point: a line there would press the curve to the bottom
_STEEP = 24.0  # pixels up to the next point
_TOP, _BOTTOM, _LEFT, _INSET = 34.0, 240.0, 56.0, 24.0


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
        room = self.right - _LEFT - 2 * _INSET
        span = self.most - self.fewest
        return _LEFT + _INSET + room * ((threads - self.fewest) / span if span else 0.5)

    def y(self, samples_per_s: float) -> float:
        return _BOTTOM - samples_per_s / self.highest * (_BOTTOM - _TOP)


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
    canvas = Canvas(width, _BOTTOM + 44, f"{noun} a second over threads of the loader")
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
        canvas.line([(_LEFT, y), (scale.right, y)], "other" if tick == 0 else "line")
        canvas.text(_LEFT - 8, y, words.rate(tick), "soft", align="right", size=SMALL)
    canvas.text(0, 10, f"{noun}/s", "soft", size=SMALL)
    middle = (_LEFT + scale.right) / 2
    canvas.text(middle, _BOTTOM + 34, "threads", "soft", align="center", size=SMALL)


def _references(canvas: Canvas, scale: _Scale, references: Sequence[Reference]) -> None:
    """Draws dashed lines with their names at the right end, moved apart where they are close."""
    lowest = float("inf")
    for one in sorted(references, key=lambda one: one.samples_per_s):
        y = scale.y(one.samples_per_s)
        canvas.line([(_LEFT, y), (scale.right, y)], one.colour, width=1.5, dashes=(4, 3))
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
        canvas.text(x, _BOTTOM + 14, f"{point.threads}", "soft", align="center", size=SMALL)
