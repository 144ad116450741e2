"""A progress bar for long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastio.shown import stderr_is_terminal


@contextmanager
def progress_bar(
    label: str, counted: str | None, total: int | None, shown: bool, begun: int = 0
) -> Iterator[Callable[[int], None]]:
    """Shows a bar on stderr with a rate and the remaining time.

    Args:
        label: What is being done.
        counted: What is counted, as in "120 samples/s", or "bytes". If None, there is no rate.
        total: The number of these, or None if it is unknown.
        shown: If False, nothing is shown.
        begun: The number of these that were done before, which do not count for the rate.

    Returns:
        A function to call with the number of these that are done since it was last called.
    """
    if not shown:
        yield lambda count: None
        return
    progress = _bar(counted)
    with progress:
        task = progress.add_task(label, total=total, completed=begun, begun=begun)
        yield lambda count: progress.advance(task, count)


def _bar(counted: str | None) -> Any:
    # rich takes a tenth of the time in which fastio is imported, and most processes show no bar.
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Rate(rich.ProgressColumn):
        """Shows the mean rate per second: rich's own is that of the last steps, often a burst."""

        def render(self, task: rich.Task) -> Text:
            seconds = task.finished_time or task.elapsed
            done = task.completed - task.fields["begun"]
            return Text(f"{done / seconds:,.0f} {counted}/s" if seconds else "")

    counts: list[rich.ProgressColumn] = []
    if counted == "bytes":
        size = rich.DownloadColumn(binary_units=True)
        counts = [rich.BarColumn(), size, rich.TransferSpeedColumn()]
    elif counted is not None:
        counts = [rich.BarColumn(), rich.MofNCompleteColumn(), Rate()]
    return rich.Progress(
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}"),
        *counts,
        rich.TimeElapsedColumn(),
        *([] if counted is None else [rich.TimeRemainingColumn()]),
        # With FORCE_COLOR, which CI often sets, rich would also write the animation to log files.
        console=Console(stderr=True, force_terminal=stderr_is_terminal()),
    )
