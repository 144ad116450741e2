"""Who is told how a run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from fastio.train.run import Run


class Monitor:
    """What a run tells, on the main process alone; each method does nothing here.

    Tensors are on the device, and whoever looks at one waits for it: look rarely.
    """

    def begin(self, run: Run) -> None:
        """Training begins, or goes on."""

    def begin_epoch(self, run: Run) -> None:
        """The steps of an epoch, or what is left of them, begin."""

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        """A step of the optimizer was made on `size` units of this process."""

    def point(self, run: Run, record: dict[str, Any]) -> None:
        """`log_every` steps were made; see `Result.points`."""

    def begin_evaluation(self, run: Run) -> None:
        """The evaluation begins."""

    def evaluated(self, run: Run, size: int) -> None:
        """A batch of `size` units was evaluated."""

    def end_epoch(self, run: Run, record: dict[str, Any]) -> None:
        """An epoch is complete; see `Result.history`."""

    def end(self, run: Run) -> None:
        """Training ends; not called where an error ended it."""


class Monitors(Monitor):
    """Several, told one after the other."""

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
