"""Receivers of the events of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from fastio.train.run import Run


class Monitor:
    """Receives the events of a run on the main process. Each method does nothing by default.

    Tensors are on the device, and whoever looks at one waits for it: look rarely.
    """

    def begin(self, run: Run) -> None:
        """Is called when training begins or resumes."""

    def begin_epoch(self, run: Run) -> None:
        """Is called before the (remaining) steps of an epoch."""

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        """Is called after an optimizer step on `size` units of this process."""

    def point(self, run: Run, record: dict[str, Any]) -> None:
        """Is called after every `log_every` steps; see `Result.points`."""

    def begin_evaluation(self, run: Run) -> None:
        """Is called before an evaluation."""

    def evaluated(self, run: Run, size: int) -> None:
        """Is called after a batch of `size` units was evaluated."""

    def end_epoch(self, run: Run, record: dict[str, Any]) -> None:
        """Is called after an epoch; see `Result.history`."""

    def end(self, run: Run) -> None:
        """Is called when training ends, but not after an error."""


class Monitors(Monitor):
    """Passes events to several monitors, one after the other."""

    def __init__(self, *monitors: Monitor) -> None:
        self._monitors = monitors

    def begin(self, run: Run) -> None:
        for monitor in self._monitors:
            monitor.begin(run)

    def begin_epoch(self, run: Run) -> None:
        for monitor in self._monitors:
            monitor.begin_epoch(run)

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        for monitor in self._monitors:
            monitor.step(run, size, loss)

    def point(self, run: Run, record: dict[str, Any]) -> None:
        for monitor in self._monitors:
            monitor.point(run, record)

    def begin_evaluation(self, run: Run) -> None:
        for monitor in self._monitors:
            monitor.begin_evaluation(run)

    def evaluated(self, run: Run, size: int) -> None:
        for monitor in self._monitors:
            monitor.evaluated(run, size)

    def end_epoch(self, run: Run, record: dict[str, Any]) -> None:
        for monitor in self._monitors:
            monitor.end_epoch(run, record)

    def end(self, run: Run) -> None:
        for monitor in self._monitors:
            monitor.end(run)
