"""Which plots a bench gives, with their titles and what is to be seen in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from fastio.diagnose.measured import Measured
from fastio.diagnose.report import plots, words
from fastio.diagnose.report.canvas import Canvas
from fastio.diagnose.report.curve import Reference, thread_curve
from fastio.diagnose.report.epochs import Epoch, epochs
from fastio.diagnose.report.plots import Bar
from fastio.diagnose.report.rungs import Rung
from fastio.diagnose.report.summary import is_now, noun, threads
from fastio.diagnose.report.timeline import timeline


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
    shown = list(epochs(measured))
    if len(shown) + len(measured.predictions) > 1:
        found.append(_epoch_times(measured, shown))
    if shown:
        caption = (
            "What the training loop waited for during one epoch. Work that overlaps another stage "
            "is not shown: a faster loader can save all that is not compute."
        )
        split_bars = partial(plots.split_bars, shown)
        found.append(Figure("What an epoch waits for", caption, split_bars))
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
    caption = "One optimisation more a rung: epoch time · speed-up over the first · top-1."
    return Figure("Ladder", caption, partial(plots.ladder, rungs))


def _epoch_times(measured: Measured, shown: Sequence[Epoch]) -> Figure:
    slowest_first = sorted(shown, key=lambda epoch: -epoch.epoch_s)
    bars = [
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
        if not is_now(one):
            text = words.seconds(one.epoch_s)
            if one.measured_s is not None:
                text += f", measured {words.seconds(one.measured_s)}"
            bars.append(Bar(one.name, one.epoch_s, text, "fastio", hollow=True))
    caption = "Time of a whole epoch; dashed: predicted from the same measurements."
    return Figure("Epoch time", caption, partial(plots.bars, bars, "Epoch time"))


def _timeline(measured: Measured, run: Literal["warm", "cold"]) -> Figure:
    spans = [span for span in measured.timeline if span.run == run]
    batch = words.counted(measured.settings.batch_size, noun(measured.dataset))
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
    caption = (
        f"The loader alone, warm; training used {threads(measured.settings.threads)}. Above the "
        "model's line, training no longer waits for the loader."
    )
    draw = partial(thread_curve, measured.threads, noun(measured.dataset), references)
    return Figure("Throughput over threads", caption, draw)
