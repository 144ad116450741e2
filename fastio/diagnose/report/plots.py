"""The plots of a bench: epochs as bars, the rate over threads, a few steps over time.

`figures` chooses which of them there is data for, with their titles and captions; the macros of
plots.html draw them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastio.diagnose import words
from fastio.diagnose.measured import STAGES, Epoch, Measured, Rung, Span, ThreadRate
from fastio.diagnose.report.tables import speed_ups
from fastio.runtime.sizes import counted


@dataclass(frozen=True)
class Figure:
    """A plot that is to be drawn.

    Attributes:
        title: a few words.
        caption: how to read it.
        macro: the macro of plots.html that draws it.
        values: the arguments of the macro, by name.
    """

    title: str
    caption: str
    macro: Literal["bars", "split_bars", "thread_curve", "timeline"]
    values: Mapping[str, Any]


def figures(measured: Measured) -> list[Figure]:
    """Returns the plots for which there is data, in reading order."""
    found: list[Figure] = []
    shown = measured.all_epochs()
    if len(shown) + len(measured.predictions) > 1:
        found.append(epoch_times(measured))
    if shown:
        found.append(split_epochs(shown))
    runs: tuple[Literal["warm", "cold"], ...] = ("warm", "cold")
    for run in runs:
        spans = [span for span in measured.timeline if span.run == run]
        if spans:
            batch = counted(measured.settings.batch_size, measured.dataset.noun)
            found.append(timeline(spans, run, batch))
    if measured.threads:
        found.append(thread_curve(measured))
    return found


@dataclass(frozen=True)
class Bar:
    """A horizontal bar below its name and its value.

    Attributes:
        name: what it measures.
        value: its length, on the scale of all bars of a plot; None shows the text alone.
        text: the value with its unit, or why there is none.
        colour: name of a colour of the page.
        strong: whether its texts are bold.
        hollow: whether it is an outline, for what is predicted and not measured.
    """

    name: str
    value: float | None
    text: str
    colour: str = "other"
    strong: bool = False
    hollow: bool = False


def epoch_times(measured: Measured) -> Figure:
    """Returns a bar per epoch, the slowest first, and one per prediction."""
    shown = []
    for epoch in sorted(measured.all_epochs(), key=lambda epoch: -epoch.epoch_s):
        ours = epoch.name != "DataLoader"
        name, colour = (f"fastio, {epoch.name}", "fastio") if ours else (epoch.name, "other")
        shown.append(Bar(name, epoch.epoch_s, words.seconds(epoch.epoch_s), colour, strong=ours))
    for one in measured.predictions:
        if not one.is_now:
            text = words.seconds(one.epoch_s)
            if one.measured_s is not None:
                text += f", measured {words.seconds(one.measured_s)}"
            shown.append(Bar(one.name, one.epoch_s, text, "fastio", hollow=True))
    caption = "Time of a whole epoch; dashed: predicted from the same measurements."
    return Figure("Epoch time", caption, "bars", {"shown": shown})


def ladder_figure(rungs: Sequence[Rung]) -> Figure:
    """Returns a bar per rung: epoch time, speed-up, accuracy, or why there is none."""
    best = min((rung.epoch_s for rung in rungs if rung.epoch_s), default=None)
    shown = []
    for rung, (first, _) in zip(rungs, speed_ups(rungs), strict=True):
        if rung.epoch_s is None:
            shown.append(Bar(rung.name, None, f"not shown: {words.clean(rung.why_not)}"))
            continue
        texts = [words.seconds(rung.epoch_s), "" if first is None else words.times(first)]
        texts.append("" if rung.accuracy is None else words.accuracy(rung.accuracy))
        text = " · ".join(filter(None, texts))
        shown.append(Bar(rung.name, rung.epoch_s, text, "fastio", rung.epoch_s == best))
    caption = "One more optimisation per rung: epoch time · speed-up over the first · top-1."
    return Figure("Ladder", caption, "bars", {"shown": shown})


def split_epochs(epochs: Sequence[Epoch]) -> Figure:
    """Returns each epoch as a bar, divided into stages."""
    caption = (
        "What the training loop waited for during one epoch. Work that overlaps another stage "
        "is not shown: a faster loader can save all that is not compute."
    )
    return Figure("What an epoch waits for", caption, "split_bars", {"epochs": epochs})


# --- The rate over threads ------------------------------------------------------------------------

_MUCH_HIGHER = 3  # times the best point: a line there would press the curve to the bottom


@dataclass(frozen=True)
class Reference:
    """A rate to compare with: its name, samples per second, and a colour of the page."""

    name: str
    samples_per_s: float
    colour: str


def thread_curve(measured: Measured) -> Figure:
    """Returns rates over threads as a curve, and the model and DataLoader as lines."""
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
    values = curve(measured.threads, references) | {"noun": measured.dataset.noun}
    return Figure("Throughput over threads", caption, "thread_curve", values)


def curve(points: Sequence[ThreadRate], references: Sequence[Reference]) -> dict[str, Any]:
    """Returns a curve and the references in its range ("near") and far above it ("beyond")."""
    best = max((point.samples_per_s for point in points), default=0.0) or 1.0
    near, beyond = (
        [one for one in references if (one.samples_per_s > _MUCH_HIGHER * best) == above]
        for above in (False, True)
    )
    near.sort(key=lambda one: one.samples_per_s)
    highest = 1.12 * max([best, *(one.samples_per_s for one in near)])
    scale = {"highest": highest, "ticks": list(ticks(highest, 4))}
    return {"points": points, "near": near, "beyond": beyond, **scale}


def ticks(highest: float, about: int) -> Iterator[float]:
    """Yields round numbers from zero to a highest one."""
    raw = highest / about
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    # The tolerance is for powers of 10 below 1, which are not exact.
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    for number in range(int(highest / step + 1e-9) + 1):
        yield number * step


# --- A few steps over time ------------------------------------------------------------------------

_STEPS = 10


def timeline(spans: Sequence[Span], run: str, batch: str) -> Figure:
    """Returns consecutive steps from the middle of a run, without the first ones.

    Args:
        spans: spans of the run.
        run: name of the run.
        batch: description of the batch of a step.
    """
    numbers = sorted({span.step for span in spans})
    first = min(len(numbers) // 4, max(0, len(numbers) - _STEPS))
    chosen = numbers[first : first + _STEPS]
    few = [span for span in spans if span.step in chosen]
    # What the first of them waits for while the step before is computed belongs to that.
    before = [span.end_s for span in spans if span.step in numbers[max(0, first - 1) : first]]
    begin_s = max([min((span.start_s for span in few), default=0.0), *before])
    lasts_s = max([0.0, *(span.end_s - begin_s for span in few)]) or 1.0
    steps, end_s = [], begin_s
    for number in chosen:  # until its computation ends; the next may already be waited for
        start_s, end_s = end_s, max(end_s, *(span.end_s for span in few if span.step == number))
        steps.append((number, start_s, end_s))
    lanes = {stage: [span for span in few if span.stage == stage] for stage in STAGES}
    units = (("s", 1.0, 2.0), ("ms", 1e3, 2e-3), ("µs", 1e6, 0.0))
    unit, scale = next((unit, scale) for unit, scale, least in units if lasts_s >= least)
    caption = (
        f"Consecutive steps of {batch}: what the loop waits for, and when the model computes. A "
        "band ends with the computation of its step."
    )
    values = {
        "begin_s": begin_s,
        "lasts_s": lasts_s,
        "steps": steps,
        "lanes": {stage: found for stage, found in lanes.items() if found},
        "ticks": [(tick / scale, f"{tick:,g} {unit}") for tick in ticks(lasts_s * scale, 5)],
    }
    return Figure(f"A few steps, {run}", caption, "timeline", values)
