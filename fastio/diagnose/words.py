"""Formats numbers and names for readers; the terminal, the plots and the page share this."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from fastio.diagnose.facts import StepFacts, spent
from fastio.runtime.sizes import decimals, three_digits
from fastio.shown import shown

NO_FINDINGS = "Nothing was found that would make an epoch shorter."
NOTHING = "\N{EN DASH}"  # stands where a value was not measured
TIMES = "\N{MULTIPLICATION SIGN}"
_MINUTE, _HOUR = 60.0, 3600.0
# Unit, its seconds, and the time from which on the next unit is taken.
_UNITS = (
    ("µs", 1e-6, 0.9995e-3),
    ("ms", 1e-3, 0.9995),
    ("s", 1.0, _HOUR),
    ("min", _MINUTE, 10 * _HOUR),
)


def clean(text: str) -> str:
    """Returns one line of text that any terminal, font and XML reader accepts, without secrets.

    White space becomes single spaces, control characters their escapes, and URLs lose their
    credentials: see `fastio.shown`.
    """
    return shown(" ".join(text.split()))


def sentence(text: str) -> str:
    """Returns a clean text with a capital letter first and a full stop last."""
    text = clean(text)
    return text if not text else text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def date(text: str) -> str:
    """Returns an ISO 8601 date to the minute, "2026-11-22 07:52 UTC"; other texts as they are."""
    match = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?(\.\d+)?(Z|\+00:00)", clean(text))
    return f"{match[1]} {match[2]} UTC" if match else clean(text)


def seconds(value: float | None) -> str:
    """Returns a time with its unit: "8.30 ms", "41.2 s", "612 s", "25 min 05 s", "1 h 12 min"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    # Rounded to whole minutes, this time is at least an hour.
    if value >= _HOUR - _MINUTE / 2:
        minutes = round(value / _MINUTE)
        return f"{minutes // 60:,} h {minutes % 60:02d} min"
    if value >= 20 * _MINUTE:
        return f"{round(value) // 60} min {round(value) % 60:02d} s"
    return seconds_like(value, value)


def seconds_like(value: float | None, largest: float) -> str:
    """Returns a time in the unit and with the decimals that suit the largest value of a column."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0 s"
    unit, scale = next(
        ((unit, scale) for unit, scale, until in _UNITS if largest < until), ("h", _HOUR)
    )
    return f"{value / scale:,.{decimals(largest / scale)}f} {unit}"


def rate(value: float | None) -> str:
    """Returns samples per second without the unit: "1,786", "12.4 M", "8.3"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value >= 999_500:
        return f"{three_digits(value / 1e6)} M"
    return three_digits(value)


def percent(value: float | None) -> str:
    """Returns a share of 1.0 as a percentage; values near 0 and 1 keep a digit: "0.4%", "99.6%"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if 0 < value < 0.0005:
        return "<0.1%"
    if 0.9995 <= value < 1:
        return ">99.9%"
    near_an_end = 0 < abs(value) < 0.0095 or 0.9905 < abs(value) < 1
    return f"{value * 100:.1f}%" if near_an_end else f"{value * 100:.0f}%"


def accuracy(value: float | None) -> str:
    """Returns a top-1 accuracy of 1.0 with one decimal: "71.2%"."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value * 100:.1f}%"


def times(value: float | None) -> str:
    """Returns a factor: "4.2\N{MULTIPLICATION SIGN}"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    digits = 2 if value < 1.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f}{TIMES}"


def steps_line(steps: Iterable[StepFacts]) -> str:
    """Returns the time of a sample in each kind of step, with the names if there are several.

    An example: "decode 5.2 ms, crop 1.1 ms, augment 7.4 ms (RandAugment 5.0, ColorJitter 2.4)".
    """
    found = list(steps)
    kinds = dict.fromkeys(step.kind for step in found)
    parts = []
    for kind in kinds:
        these = [step for step in found if step.kind == kind]
        names = [f"{step.name} {three_digits(step.seconds * 1e3)}" for step in these]
        told = f" ({', '.join(names)})" if kind in ("augment", "python") else ""
        kind_name = "your functions" if kind == "python" else kind
        parts.append(f"{kind_name} {three_digits(spent(these) * 1e3)} ms{told}")
    return ", ".join(parts)
