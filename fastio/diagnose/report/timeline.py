"""A few training steps over time, a lane for every stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastio.diagnose.measured import Span, Stage
from fastio.diagnose.report.canvas import ROOMY, SMALL, WIDE, Canvas, fitting, ticks

_ORDER: tuple[Stage, ...] = ("fetch", "decode", "transform", "copy", "compute")
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
        return [stage for stage in _ORDER if any(span.stage == stage for span in self.spans)]

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
