"""A progress bar for long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text


class _RateColumn(ProgressColumn):
    """Shows the rate in units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self._unit}/s")


@contextmanager
def progress_bar(
    label: str, unit: str | None, total: int | None, shown: bool
) -> Iterator[Callable[[int], None]]:
    """Shows a bar on stderr with a rate and the remaining time.

    Args:
        label: What is being done.
        unit: What is counted, as in "120 samples/s", or "bytes". If None, there is no rate.
        total: The number of units, or None if it is unknown.
        shown: If False, nothing is shown.

    Returns:
        A function to call with the number of units that are done since it was last called.
    """
    counts: list[ProgressColumn] = []
    if unit == "bytes":
        counts = [BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn()]
    elif unit is not None:
        counts = [BarColumn(), MofNCompleteColumn(), _RateColumn(unit)]
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *counts,
        TimeElapsedColumn(),
        *([] if unit is None else [TimeRemainingColumn()]),
        console=Console(stderr=True),
        disable=not shown,
    )
    with progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)
