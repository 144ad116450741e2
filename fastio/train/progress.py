"""Shows a run in the terminal: one line per epoch, and a progress bar below."""

from __future__ import annotations

import math
import os
import resource
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.progress import TimeRemainingColumn as Remaining
from torch import Tensor

import fastio
from fastio.shown import stderr_is_terminal
from fastio.train.loaders import has_full_batch
from fastio.train.monitor import Monitor
from fastio.train.run import Run

_LOOK_S = 0.3  # between two looks at the loss, each of which waits for the GPU
_WINDOW_S = 10  # rates are means over this time


class _Look(NamedTuple):
    """A reading of the units that this process trained on, and of the loader's statistics."""

    time_s: float
    units: int
    stats: fastio.Stats


class Bar(Monitor):
    """A progress bar and one line per epoch on standard error; only lines if it is no terminal.

    The bar's rate and data wait are those of the last ten seconds, an epoch's those of its
    training. Data wait is the part of the time that the loop waited for a batch. A star marks the
    best epoch so far. Leaving the context removes the bar.

    Args:
        advises: Whether to print advice on what would make a run on the CPU faster.
        console: Where to print (default: standard error).
    """

    def __init__(self, advises: bool = False, console: Console | None = None) -> None:
        self._advises = advises
        self._usage = Usage.now()
        self._console = console or Console(
            stderr=True,
            force_terminal=stderr_is_terminal(),  # regardless of FORCE_COLOR
            highlight=False,
            markup=False,
            emoji=False,
        )
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
        self._looks: deque[_Look] = deque()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def begin(self, run: Run) -> None:
        process, options = run.process, run.options
        weights = sum(p.numel() for p in run.model.parameters())
        several = f", {process.parallel} of {process.world_size}" if process.parallel else ""
        samples = options.batch_size * options.grad_accum * process.world_size
        steps = "1 step" if run.steps_per_epoch == 1 else f"{run.steps_per_epoch:,} steps"
        self._print(
            f"{_count(weights)} weights on {process.device}{several}; "
            f"{steps} an epoch of {samples:,} samples"
        )
        if not has_full_batch(run.loader):
            batch = options.batch_size * process.world_size
            self._print(
                f"the data has less than a batch of {batch:,} samples: each step has all of it"
            )
        steps_in_all = options.epochs * run.steps_per_epoch
        if options.ema is not None and 1 / (1 - options.ema) > steps_in_all:
            self._print(
                f"--ema {options.ema} averages about {1 / (1 - options.ema):,.0f} steps, and the "
                f"run has {steps_in_all:,}: the initial weights dominate the average. Use a lower "
                "decay"
            )
        if process.parallel == "dp":
            faster = "torchrun --nproc-per-node N -m fastio train ... (ddp) is faster than dp"
            self._print(faster, style="dim")
        self._bar.start()
        self._usage = Usage.now()
        if run.progress.step:
            self._print(f"continues after step {run.progress.step:,}")
        if run.prolonged is not None:
            self._print(run.prolonged)

    def begin_epoch(self, run: Run) -> None:
        number = f"epoch {run.progress.epoch + 1}/{run.options.epochs}"
        self._show(number, run.steps_per_epoch, run.progress.epoch_step)
        self._looks = deque([_Look(time.perf_counter(), 0, run.loader.stats())])

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        now_s = time.perf_counter()
        if self._task is None or now_s - self._looks[-1].time_s < _LOOK_S:
            return
        latest = _Look(now_s, run.units, run.loader.stats())
        while len(self._looks) > 1 and now_s - self._looks[0].time_s > _WINDOW_S:
            self._looks.popleft()
        before = self._looks[0]
        self._looks.append(latest)
        units = (latest.units - before.units) * run.process.world_size
        rate = units / (now_s - before.time_s)
        parts = [
            f"{rate:,.0f} {run.task.unit}/s",
            f"loss {float(loss):.3f}",
            f"data wait {(latest.stats - before.stats).wait_share:.0%}",
            *_utilisation(run.process.device),
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
        rate = f"{record['units_per_s']:,.0f} {run.task.unit}/s"
        parts = [
            f"{record['epoch']:{len(of)}}/{of}",
            f"train {_readable(record['train'])}",
            *([f"val {_readable(record['val'])}"] if record["val"] else []),
            # A run that is resumed after the last step of an epoch trains nothing in it.
            *([rate, f"data wait {record['wait_share']:.0%}"] if record["units_per_s"] else []),
            f"{record['seconds']:.1f} s",
            *(["*"] if run.progress.best_epoch == record["epoch"] else []),
        ]
        self._print("  ".join(parts))
        unfit = [name for name, value in (record["val"] or {}).items() if not math.isfinite(value)]
        if unfit:
            self._print(
                f"{' and '.join(unfit)} of the evaluation not finite: look at its data, and at the "
                "learning rate"
            )
        advises = self._advises and run.process.device.type == "cpu"
        advice = allocator_advice(self._usage, Usage.now()) if advises else None
        if advice is not None:  # once
            self._print(advice, style="dim")
            self._advises = False

    def end(self, run: Run) -> None:
        self._bar.stop()

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, soft_wrap=True)

    def _show(self, description: str, total: int, completed: int) -> None:
        """Starts a new bar."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(description, total=total, completed=completed, now="")


def _readable(metrics: Mapping[str, float]) -> str:
    """Returns metrics with three digits, trailing zeros included, so that lines are aligned."""
    figures = {
        name: f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")
        for name, value in metrics.items()
    }
    return " ".join(f"{name} {figure}" for name, figure in figures.items())


def _count(weights: int) -> str:
    return f"{weights / 1e6:.1f} M" if weights >= 100_000 else f"{weights:,}"


def _utilisation(device: torch.device) -> list[str]:
    """Returns the utilisation of the GPU, if the package nvidia-ml-py is installed."""
    if device.type != "cuda":
        return []
    try:
        return [f"GPU {torch.cuda.utilization(device)}%"]
    except Exception:  # NVML has errors of its own: a part of a GPU (MIG) does not tell
        return []


# --- Advice on memory allocators ------------------------------------------------------------------

# Training on CPUs allocates and frees large tensors all the time. glibc's malloc returns their
# pages to the kernel unless two variables tell it to keep them; jemalloc, preloaded, needs
# settings for it, too. benchmarks/LOG.md has what they gain: 4 to 17% of the processor time.
# Up to what size freed memory is kept, and how much of it: beyond what a step allocates.
_GLIBC = "MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=17179869184"
_JEMALLOC = "MALLOC_CONF=oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"

# A page fault costs 0.5 to 5 microseconds. Both were exceeded where keeping pages made a step
# faster, and neither where it did not.
_SYSTEM_SHARE = 0.05
_FAULTS_PER_S = 10_000
_LEAST_S = 10  # of processors, as memory is faulted in at the beginning with any allocator


class Usage(NamedTuple):
    """Processor time, its own and in the kernel, and page faults without disk of this process."""

    user_s: float
    system_s: float
    faults: int

    @classmethod
    def now(cls) -> Usage:
        """Returns the usage until now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime, used.ru_stime, used.ru_minflt)


def allocator_advice(
    before: Usage, after: Usage, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Returns one line of advice on the memory allocator, for training on CPUs.

    None if page faults took little of the time between `before` and `after`, if that is too short
    to tell, or if the allocator keeps memory already, or is another one.
    """
    system_s, faults = after.system_s - before.system_s, after.faults - before.faults
    used_s = after.user_s - before.user_s + system_s
    costly = system_s > _SYSTEM_SHARE * used_s and faults > _FAULTS_PER_S * used_s
    preloaded = environment.get("LD_PRELOAD", "")
    known = "jemalloc" in preloaded or "malloc" not in preloaded
    settings = _JEMALLOC if "jemalloc" in preloaded else _GLIBC
    if used_s < _LEAST_S or not costly or not known or settings.partition("=")[0] in environment:
        return None
    return (
        f"{system_s / used_s:.0%} of the CPU time is spent in the operating system, mostly on page "
        f"faults. Setting `{settings}` in the environment keeps freed memory, which may be faster"
    )
