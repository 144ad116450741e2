"""The numbers of a bench as tables of texts; the terminal and the page show the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fastio.diagnose import words
from fastio.diagnose.measured import Measured, Phase, PhaseName, Prediction, Stage
from fastio.diagnose.report.epochs import Epoch, Rung, epochs, speed_ups
from fastio.diagnose.report.summary import is_now, noun

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
    "transform": "transform: in Python",
    "copy": "copy: to the device",
    "compute": "compute: the model",
}


@dataclass(frozen=True)
class Table:
    """A table of texts. The first column names the row, the others hold numbers.

    Attributes:
        title: a few words.
        columns: headings.
        rows: of as many texts as there are columns.
        note: what the columns mean; "" where they say it themselves.
        sums: how many rows at the end are sums of those above.
        long_last: the last column holds text, not numbers.
        detailed: whether it is left to the page.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    sums: int = 0
    long_last: bool = False
    detailed: bool = False


def all_tables(measured: Measured, rungs: Sequence[Rung] = ()) -> list[Table]:
    """Returns every table that has rows, in reading order."""
    tables = (
        epoch_table(measured),
        predictions_table(measured),
        trainings_table(measured),
        ladder_table(rungs),
        runs_table(measured),
        busy_table(measured),
        threads_table(measured),
    )
    return [table for table in tables if table.rows]


def epoch_table(measured: Measured) -> Table:
    """Returns the seconds of an epoch by stage, warm, cold and with DataLoader."""
    shown = list(epochs(measured))
    stages = [
        (name, [_cells(epoch.stages.get(stage), epoch) for epoch in shown])
        for stage, name in STAGE_NAMES.items()
    ]
    sums = [
        ("waiting in all", [_cells(epoch.wait_s, epoch) for epoch in shown]),
        ("epoch", [(words.seconds_like(epoch.epoch_s, epoch.epoch_s), "") for epoch in shown]),
        (f"{noun(measured.dataset)}/s", [(words.rate(one.samples_per_s), "") for one in shown]),
    ]
    if any(epoch.au is not None for epoch in shown):
        sums.append(("AU", [(words.percent(epoch.au), "") for epoch in shown]))
    rows = tuple(
        (name, *(text for pair in pairs for text in pair)) for name, pairs in (*stages, *sums)
    )
    return Table(
        "One epoch",
        ("", *(text for epoch in shown for text in (epoch.name, ""))),
        rows if shown else (),
        "Seconds that the loop waited for each stage; work that overlaps another stage is not "
        "counted. AU: accelerator utilisation, compute time / run time.",
        sums=len(sums),
    )


def _cells(spent: float | None, epoch: Epoch) -> tuple[str, str]:
    share = None if spent is None else spent / epoch.epoch_s
    return words.seconds_like(spent, epoch.epoch_s), "" if share is None else words.percent(share)


def predictions_table(measured: Measured) -> Table:
    """Returns the predicted epochs, with measured times where there are some."""
    largest = max((one.epoch_s for one in measured.predictions), default=0.0)
    rows = tuple((words.clean(one.name), *_predicted(one, largest)) for one in measured.predictions)
    columns = ("epoch", "predicted", "measured", "off by")
    return Table("Predictions", columns, rows)


def _predicted(one: Prediction, largest: float) -> tuple[str, str, str]:
    if is_now(one):
        return words.NOTHING, words.seconds_like(one.epoch_s, largest), words.NOTHING
    off = f"{(one.epoch_s / one.measured_s - 1) * 100:+.1f}%" if one.measured_s else words.NOTHING
    predicted, later = (words.seconds_like(s, largest) for s in (one.epoch_s, one.measured_s))
    return predicted, later, off


def trainings_table(measured: Measured) -> Table:
    """Returns accuracy and time of the trainings."""
    longest = max((one.seconds for one in measured.trainings), default=0.0)
    rows = tuple(
        (
            words.clean(one.name),
            f"{one.epochs:,}",
            words.seconds_like(one.seconds, longest),
            words.accuracy(one.accuracy),
            "not finite" if one.loss is None else f"{one.loss:.3f}",
        )
        for one in measured.trainings
    )
    columns = ("training", "epochs", "in all", "top-1", "last loss")
    return Table("Accuracy", columns, rows)


def ladder_table(rungs: Sequence[Rung]) -> Table:
    """Returns a ladder with one change per row; rungs that were not shown say why."""
    longest = max((rung.time_s or 0.0 for rung in rungs), default=0.0)
    rows = tuple(
        (
            words.clean(rung.name),
            words.seconds_like(rung.time_s, longest),
            words.times(first),
            words.times(before),
            words.accuracy(rung.accuracy if rung.time_s else None),
            "" if rung.time_s else words.clean(rung.why_not) or "not measured",
        )
        for rung, (first, before) in zip(rungs, speed_ups(rungs), strict=True)
    )
    columns = ("rung", "epoch", "in all", "by it", "top-1", "")
    note = "In all: speed-up over the first rung; by it: over the previous rung."
    return Table("Ladder", columns, rows, note, long_last=True)


def runs_table(measured: Measured) -> Table:
    """Returns the runs of the bench."""
    rows = tuple(
        (
            RUN_NAMES[run.name],
            f"{run.steps:,}",
            words.rate(run.samples_per_s),
            words.percent(_reached(measured, run)),
            words.percent(run.wait_share),
            words.NOTHING if run.cores_busy is None else f"{run.cores_busy:.2f}",
            words.percent(run.au),
        )
        for run in measured.phases
    )
    what = noun(measured.dataset)
    columns = ("run", "steps", f"{what}/s", "ceiling", "waited", "cores", "AU")
    reached = any(_reached(measured, run) is not None for run in measured.phases)
    ceiling = "Ceiling: throughput relative to the model alone. " if reached else ""
    beside = ", though a GPU may have computed meanwhile" if measured.settings.asynchronous else ""
    note = (
        f"{ceiling}Waited: share of the time that the loop waited for a batch{beside}. Cores: "
        "cores that the process and its workers kept busy."
    )
    return _without_empty_columns(Table("Runs", columns, rows, note))


def _reached(measured: Measured, run: Phase) -> float | None:
    """Returns a run's rate relative to the ceiling, for runs with a loader and the model."""
    together = ("together_warm", "together_cold", "baseline_together")
    return measured.reach(run.name) if run.name in together else None


def busy_table(measured: Measured) -> Table:
    """Returns the busy seconds of each stage in each run, summed over threads."""
    rows = tuple((RUN_NAMES[run.name], *_busy(run)) for run in measured.phases)
    columns = ("run", "read", "decode", "resample", "Python", "copy", "compute", "bytes", "fetched")
    note = (
        "Seconds of each stage, summed over threads, overlapping or not. Bytes: read from files or "
        "mapped memory; fetched: over the network. DataLoader's workers are not profiled."
    )
    return _without_empty_columns(Table("Busy time", columns, rows, note, detailed=True))


def _without_empty_columns(table: Table) -> Table:
    """Returns the table without columns that have no values; without rows if no column is left."""
    kept = [
        number
        for number in range(len(table.columns))
        if number == 0 or any(row[number] != words.NOTHING for row in table.rows)
    ]
    columns = tuple(table.columns[number] for number in kept)
    rows = tuple(tuple(row[number] for number in kept) for row in table.rows)
    return replace(table, columns=columns, rows=rows if len(kept) > 1 else ())


def _busy(run: Phase) -> Iterator[str]:
    busy = run.busy
    threads = (busy.read_s, busy.decode_s, busy.resample_s)
    for spent in (*threads, busy.transform_s, busy.copy_s, busy.compute_s):
        yield words.seconds(spent) if spent else words.NOTHING
    for nbytes in (run.bytes_read, run.bytes_fetched):
        yield words.size(nbytes) if nbytes else words.NOTHING


def threads_table(measured: Measured) -> Table:
    """Returns the loader's rates over threads."""
    first = measured.threads[0] if measured.threads else None
    rows = tuple(
        (
            f"{point.threads:,}",
            words.rate(point.samples_per_s),
            words.times(_ratio(point.samples_per_s, first.samples_per_s if first else 0.0)),
        )
        for point in measured.threads
    )
    columns = ("threads", f"{noun(measured.dataset)}/s", "against the first")
    return Table("Loader alone over threads, warm", columns, rows)


def _ratio(value: float, of: float) -> float | None:
    return value / of if of else None
