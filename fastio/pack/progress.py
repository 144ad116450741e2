"""A progress bar for long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
    if not shown:
        yield lambda count: None
        return
    progress = _bar(unit)
    with progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)


def _bar(unit: str | None) -> Any:
    # rich takes a tenth of the time in which fastio is imported, and most processes show no bar.
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Rate(rich.ProgressColumn):
        """Shows the rate in units per second."""

        def render(self, task: rich.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} {unit}/s")

    counts: list[rich.ProgressColumn] = []
    if unit == "bytes":
        size = rich.DownloadColumn(binary_units=True)
        counts = [rich.BarColumn(), size, rich.TransferSpeedColumn()]
    elif unit is not None:
        counts = [rich.BarColumn(), rich.MofNCompleteColumn(), Rate()]
    return rich.Progress(
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}"),
        *counts,
        rich.TimeElapsedColumn(),
        *([] if unit is None else [rich.TimeRemainingColumn()]),
        console=Console(stderr=True),
    )
