"""The numbers of a bench as tables of texts; the terminal and the page show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any

from fastio.diagnose import words
from fastio.diagnose.measured import (
    TOGETHER,
    Epoch,
    Measured,
    Phase,
    PhaseName,
    Prediction,
    Rung,
    Stage,
)
from fastio.runtime.sizes import size_text

RUN_NAMES: dict[PhaseName, str] = {
    "compute": "model alone",
    "loader_warm": "loader alone, warm",
    "loader_cold": "loader alone, cold",
    "together_warm": "together, warm",
    "together_cold": "together, cold",
    "baseline_loader": "DataLoader alone",
    "baseline_together": "DataLoader and model",
}
STAGE_NAMES: dict[Stage, str] = {
    "fetch": "fetch: disk or network",
    "decode": "decode: loader's threads",
    "augment": "augment: loader's threads",
    "transform": "transform: in Python",
    "copy": "copy: to the device",
    "compute": "compute: the model",
}


@dataclass(frozen=True)
class Table:
    """A table of texts. The first column names the row, the others hold numbers.

    Attributes:
        title: title of the table.
        columns: headings of the columns.
        rows: rows, each with a text for each column.
        note: explanation of the columns; "" if the headings suffice.
        sums: number of rows at the end that are sums of the rows above.
        long_last: whether the last column holds text instead of numbers.
        detailed: whether only the page shows the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    sums: int = 0
    long_last: bool = False
    detailed: bool = False


Columns = Mapping[str, Callable[[Any], str]]  # for each heading, a function: row -> text


def _filled(title: str, shown: Iterable[Any], columns: Columns, note: str = "") -> Table:
    """Returns a table with a row for each of what is shown."""
    rows = tuple(tuple(text(one) for text in columns.values()) for one in shown)
    return Table(title, tuple(columns), rows, note)


def all_tables(measured: Measured) -> list[Table]:
    """Returns every table that has rows, in reading order."""
    tables = (
        epoch_table(measured),
        predictions_table(measured),
        trainings_table(measured),
        runs_table(measured),
        busy_table(measured),
        threads_table(measured),
    )
    return [table for table in tables if table.rows]


def epoch_table(measured: Measured) -> Table:
    """Returns the seconds of an epoch by stage, warm, cold and with DataLoader."""
    shown, rows = measured.all_epochs(), measured.dataset.rows

    def cells(spent: float | None, epoch: Epoch) -> tuple[str, str]:
        share = "" if spent is None else words.percent(spent / epoch.epoch_s)
        return words.seconds_like(spent, epoch.epoch_s), share

    def of_stage(stage: Stage) -> Callable[[Epoch], tuple[str, str]]:
        return lambda epoch: cells(epoch.stages.get(stage), epoch)

    runs = {epoch.name: measured.phase(epoch.run) for epoch in shown}
    utilisation = {name: None if run is None else run.au for name, run in runs.items()}
    augmented = any(epoch.stages.get("augment") for epoch in shown)
    names = {stage: name for stage, name in STAGE_NAMES.items() if augmented or stage != "augment"}
    lines: dict[str, Callable[[Epoch], tuple[str, str]]] = {
        **{name: of_stage(stage) for stage, name in names.items()},
        "waiting in all": lambda epoch: cells(epoch.wait_s, epoch),
        "epoch": lambda epoch: (words.seconds_like(epoch.epoch_s, epoch.epoch_s), ""),
        f"{measured.dataset.noun}/s": lambda epoch: (words.rate(rows / epoch.epoch_s), ""),
    }
    if any(au is not None for au in utilisation.values()):
        lines["AU"] = lambda epoch: (words.percent(utilisation[epoch.name]), "")
    return Table(
        "One epoch",
        ("", *(text for epoch in shown for text in (epoch.name, ""))),
        tuple((name, *chain(*map(line, shown))) for name, line in lines.items()) if shown else (),
        "Seconds that the loop waited for each stage; work that overlaps another stage is not "
        "counted. AU: accelerator utilisation, compute time / run time.",
        sums=len(lines) - len(names),
    )


def predictions_table(measured: Measured) -> Table:
    """Returns the predicted epochs, with measured times where there are some."""
    largest = max((one.epoch_s for one in measured.predictions), default=0.0)

    def off(one: Prediction) -> str:
        if one.is_now or not one.measured_s:
            return words.NOTHING
        return f"{(one.epoch_s / one.measured_s - 1) * 100:+.1f}%"

    columns: Columns = {
        "epoch": lambda one: words.clean(one.name),
        "predicted": lambda one: words.seconds_like(None if one.is_now else one.epoch_s, largest),
        "measured": lambda one: words.seconds_like(
            one.epoch_s if one.is_now else one.measured_s, largest
        ),
        "off by": off,
    }
    return _filled("Predictions", measured.predictions, columns)


def trainings_table(measured: Measured) -> Table:
    """Returns accuracy and time of the trainings."""
    longest = max((one.seconds for one in measured.trainings), default=0.0)
    columns: Columns = {
        "training": lambda one: words.clean(one.name),
        "epochs": lambda one: f"{one.epochs:,}",
        "time": lambda one: words.seconds_like(one.seconds, longest),
        "top-1": lambda one: words.accuracy(one.accuracy),
        "last loss": lambda one: "not finite" if one.loss is None else f"{one.loss:.3f}",
    }
    return _filled("Accuracy", measured.trainings, columns)


def speed_ups(rungs: Sequence[Rung]) -> list[tuple[float | None, float | None]]:
    """Returns each rung's speed-up over the first rung that was trained, and over the previous one.

    None for rungs that were not trained, and for the first.
    """
    trained: list[float] = []
    found: list[tuple[float | None, float | None]] = []
    for rung in rungs:
        now = rung.epoch_s
        found.append((trained[0] / now, trained[-1] / now) if now and trained else (None, None))
        trained += [now] if now else []
    return found


def ladder_table(rungs: Sequence[Rung]) -> Table:
    """Returns a ladder with one change per row; rungs that were not trained say why."""
    longest = max((rung.epoch_s or 0.0 for rung in rungs), default=0.0)
    columns: Columns = {
        "rung": lambda row: words.clean(row[0].name),
        "epoch": lambda row: words.seconds_like(row[0].epoch_s, longest),
        "total": lambda row: words.times(row[1][0]),
        "step": lambda row: words.times(row[1][1]),
        "top-1": lambda row: words.accuracy(row[0].accuracy),
        "": lambda row: words.clean(row[0].why_not),
    }
    note = "Total: speed-up over the first rung; step: over the previous one."
    shown = zip(rungs, speed_ups(rungs), strict=True)
    return replace(_filled("Ladder", shown, columns, note), long_last=True)


def runs_table(measured: Measured) -> Table:
    """Returns the runs of the bench."""
    reached = {name: measured.reach(name) for name in TOGETHER}
    columns: Columns = {
        "run": lambda run: RUN_NAMES[run.name],
        "steps": lambda run: f"{run.steps:,}",
        f"{measured.dataset.noun}/s": lambda run: words.rate(run.samples_per_s),
        "of model": lambda run: words.percent(reached.get(run.name)),
        "waited": lambda run: words.percent(run.wait_share),
        "cores": lambda run: words.NOTHING if run.cores_busy is None else f"{run.cores_busy:.2f}",
        "AU": lambda run: words.percent(run.au),
    }
    ceiling = "Of model: throughput relative to the model alone. " if any(reached.values()) else ""
    beside = ", though a GPU may have computed meanwhile" if measured.settings.asynchronous else ""
    note = (
        f"{ceiling}Waited: share of the time that the loop waited for a batch{beside}. Cores: "
        "cores that the process and its workers kept busy."
    )
    return _without_empty_columns(_filled("Runs", measured.phases, columns, note))


def busy_table(measured: Measured) -> Table:
    """Returns the busy seconds of each stage in each run, summed over threads."""

    def seconds(name: str) -> Callable[[Phase], str]:
        spent = attrgetter(name)
        return lambda run: words.seconds(spent(run) or None)

    def size(nbytes: int) -> str:
        return size_text(nbytes) if nbytes else words.NOTHING

    columns: Columns = {
        "run": lambda run: RUN_NAMES[run.name],
        "read": seconds("stats.read_s"),
        "decode": seconds("stats.decode_s"),
        "resample": seconds("stats.resample_s"),
        "augment": seconds("stats.augment_s"),
        "Python": seconds("stats.transform_s"),
        "copy": seconds("stats.copy_s"),
        "compute": seconds("compute_s"),
        "bytes": lambda run: size(run.stats.bytes_read),
        "fetched": lambda run: size(run.stats.bytes_fetched),
    }
    note = (
        "Seconds of each stage, summed over threads, overlapping or not. Bytes: read from files or "
        "mapped memory; fetched: over the network. DataLoader's workers are not profiled."
    )
    table = _without_empty_columns(_filled("Busy time", measured.phases, columns, note))
    return replace(table, detailed=True)


def _without_empty_columns(table: Table) -> Table:
    """Returns the table without columns that have no values; without rows if no column is left."""
    columns = list(zip(*table.rows, strict=True))
    kept = [n for n, column in enumerate(columns) if n == 0 or {*column} != {words.NOTHING}]
    rows = tuple(tuple(row[n] for n in kept) for row in table.rows) if len(kept) > 1 else ()
    return replace(table, columns=tuple(table.columns[n] for n in kept), rows=rows)


def threads_table(measured: Measured) -> Table:
    """Returns the loader's rates over threads."""
    first = measured.threads[0].samples_per_s if measured.threads else 0.0
    columns: Columns = {
        "threads": lambda point: f"{point.threads:,}",
        f"{measured.dataset.noun}/s": lambda point: words.rate(point.samples_per_s),
        "against the first": lambda point: words.times(
            point.samples_per_s / first if first else None
        ),
    }
    return _filled("Loader alone over threads, warm", measured.threads, columns)
