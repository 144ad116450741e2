"""A run on the terminal: a line an epoch, and a bar below them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.progress import TimeRemainingColumn as Remaining
from torch import Tensor

from fastio.train.monitor import Monitor
from fastio.train.run import Run

_LOOK_S = 0.3  # between two looks at the loss, each of which waits for the GPU


class Bar(Monitor):
    """Lines and a bar on standard error; where that is no terminal, the lines alone.

    A star marks the best epoch so far.

    A context: leaving it takes the bar away.

    Args:
        cpu_advice: a line for runs on the CPU.
        console: where to.
    """

    def __init__(self, cpu_advice: str | None = None, console: Console | None = None) -> None:
        self._cpu_advice = cpu_advice
        self._console = console or Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
            Remaining(compact=True),
            console=self._console,
            transient=True,
            expand=True,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._units = 0
        self._began_s = self._looked_s = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, run: Run) -> None:
        place, options = run.place, run.options
        weights = sum(p.numel() for p in run.model.parameters())
        several = f", {place.parallel} of {place.world_size}" if place.parallel else ""
        samples = options.batch_size * options.grad_accum * place.world_size
        steps = "1 step" if run.steps_per_epoch == 1 else f"{run.steps_per_epoch:,} steps"
        self._console.print(
            f"{weights / 1e6:.1f} M weights on {place.device}{several}; "
            f"{steps} an epoch of {samples:,} samples"
        )
        if place.device.type == "cpu" and self._cpu_advice:
            self._console.print(self._cpu_advice, style="dim")
        if place.parallel == "dp":
            self._console.print(
                "torchrun --nproc-per-node N -m fastio train ... (ddp) is faster than dp",
                style="dim",
            )
        self._bar.start()
        if run.progress.step:
            self._console.print(f"going on after step {run.progress.step:,}")

    def begin_epoch(self, run: Run) -> None:
        number = f"epoch {run.progress.epoch + 1}/{run.options.epochs}"
        self._show(number, run.steps_per_epoch, run.progress.epoch_step)
        self._before = run.loader.stats()

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        self._units += size * run.place.world_size
        if self._task is None or not self._is_time():
            return
        stats = run.loader.stats() - self._before
        rate = self._units / (self._looked_s - self._began_s)
        parts = [
            f"{rate:,.0f} {run.task.unit}/s",
            f"loss {float(loss):.3f}",
            f"wait {stats.wait_share:.0%}",
            *_utilisation(run.place.device),
        ]
        self._bar.update(
            self._task, completed=run.progress.epoch_step, now="  ".join(parts), refresh=True
        )

    def begin_evaluation(self, run: Run) -> None:
        assert run.val_loader is not None
        self._show("  evaluation", len(run.val_loader), 0)

    def evaluated(self, run: Run, size: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task)

    def end_epoch(self, run: Run, record: dict[str, Any]) -> None:
        of = str(run.options.epochs)
        parts = [
            f"{record['epoch']:{len(of)}}/{of}",
            f"train {_readable(record['train'])}",
            *([f"val {_readable(record['val'])}"] if record["val"] else []),
            f"{record['units_per_s']:,.0f} {run.task.unit}/s",
            f"wait {record['wait_share']:.0%}",
            f"{record['seconds']:.1f} s",
            *(["*"] if run.progress.best_epoch == record["epoch"] else []),
        ]
        self._console.print("  ".join(parts), soft_wrap=True)

    def end(self, run: Run) -> None:
        self._bar.stop()

    def _show(self, description: str, total: int, completed: int) -> None:
        """Begins the bar anew."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._units, self._began_s = 0, time.perf_counter()
        self._task = self._bar.add_task(description, total=total, completed=completed, now="")

    def _is_time(self) -> bool:
        now_s = time.perf_counter()
        if now_s - self._looked_s < _LOOK_S:
            return False
        self._looked_s = now_s
        return True


def _readable(metrics: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.3g}" for name, value in metrics.items())


def _utilisation(device: torch.device) -> list[str]:
    """How busy the GPU is, where the package that tells it (nvidia-ml-py) is installed."""
    if device.type != "cuda":
        return []
    try:
        return [f"GPU {torch.cuda.utilization(device)}%"]
    except Exception:  # NVML has errors of its own: a part of a GPU (MIG) does not tell
        return []
