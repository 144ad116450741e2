"""The training loop: epochs of steps, evaluation, checkpoints.

Read `fit` first, then `train_epoch`, `train_step` and `evaluate`.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

import fastio
from fastio.shown import finite
from fastio.train.monitor import Monitor
from fastio.train.options import Options
from fastio.train.parallel import Process, autocast, processes, sync_buffers
from fastio.train.run import Run, Sums, Totals
from fastio.train.task import Task

Record = dict[str, Any]

_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        history: A record of each epoch: "epoch", "step", "train" and "val" (metrics; "val" is None
            without evaluation data), "seconds", "units_per_s" of training, "wait_share".
        points: A record of every `log_every` steps: "step", "epoch", "loss" (the mean since the
            last record), "lr".
        metric: The name of the task's metric.
        best: The best value of the metric; None before the end of the first epoch.
        best_epoch: The epoch, from 1, that had it.
        steps: The number of steps of the optimizer.
        reason: Why the run ended: "done", "early stopping" or "interrupted".
        signal: The number of the signal that interrupted it, or 0.
        model: The trained model; with `ema`, the one with averaged weights. With `early_stopping`,
            it has the weights of the best epoch, unless the run was interrupted.
    """

    history: list[Record]
    points: list[Record]
    metric: str
    best: float | None
    best_epoch: int
    steps: int
    reason: str
    signal: int
    model: nn.Module

    def to_dict(self) -> Record:
        """Returns everything but the model as JSON values; None for numbers that are not finite."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "model"]
        return {name: finite(getattr(self, name)) for name in names}


def fit(task: Task, options: Options, *monitors: Monitor) -> Result:
    """Trains a task's model, from the beginning or from a checkpoint.

    Under torchrun every process calls it. The first Ctrl-C or SIGTERM ends the run after the step
    under way, which is saved where there is a `checkpoint_dir`.

    Args:
        task: What is trained.
        options: How.
        monitors: Receive the events of the run, on the main process.

    Raises:
        OptionError: The options do not fit how the process was started, or the task.
        TrainError: The options do not fit the machine, or the loss is not finite.
        CheckpointError: The checkpoint that is resumed is damaged or of another run.
        FastioError: The data cannot be read.
    """
    with (
        processes(options) as process,
        noted_signal() as signal,
        Run(task, options, process, monitors, signal) as run,
    ):
        if options.resume:
            run.resume()
        run.tell(Monitor.begin)
        progress = run.progress
        while progress.epoch < options.epochs and not run.stops_early:
            began = run.loader.stats(), time.perf_counter()
            if not train_epoch(run):
                break
            # Checked before the evaluation, whose metrics would be NaN without a hint at the cause.
            run.check_weights()
            metrics = evaluate(run) if run.val_loader is not None else None
            if run.interrupted:
                break
            record = _record(run, metrics, *began)
            improved = run.end_epoch(record)
            run.tell(Monitor.end_epoch, record)
            if options.checkpoint_dir is not None:
                run.save(best=improved)
        if run.interrupted and options.checkpoint_dir is not None:
            run.save()
        elif options.early_stopping is not None:
            run.restore_best()
        run.tell(Monitor.end)
        return Result(
            progress.history,
            progress.points,
            task.metric,
            progress.best,
            progress.best_epoch,
            progress.step,
            "interrupted" if run.interrupted else "early stopping" if run.stops_early else "done",
            run.interrupted,
            run.result,
        )


@dataclass(frozen=True)
class Timed:
    """The result of epochs that were trained to measure their time.

    Attributes:
        seconds: Duration of all epochs, without start-up and evaluation.
        train: The training metrics of the last epoch.
        val: The metrics of the evaluation after it; empty without evaluation data.
    """

    seconds: float
    train: dict[str, float]
    val: dict[str, float]


def time_epochs(task: Task, options: Options, process: Process) -> Timed:
    """Trains `options.epochs` as `fit` does, without checkpoints, and measures the time.

    A few steps before it warm up workers and the compiler; their result is discarded. A loss that
    is not finite is not an error.

    Raises:
        FastioError: The data cannot be read.
    """
    # A point of the history would refuse a loss that is not finite.
    options = dataclasses.replace(options, log_every=1 << 60)
    with Run(task, options, process) as run:
        _warm_up(run)
        began_s = time.perf_counter()
        for epoch in range(options.epochs):
            run.progress.epoch, run.progress.epoch_step = epoch, 0
            run.totals.take()
            train_epoch(run)
        train = means(task, run.totals.take())  # waits for the device
        seconds = time.perf_counter() - began_s
        val = evaluate(run) if run.val_loader is not None else None
        return Timed(seconds, train, val or {})


def _warm_up(run: Run) -> None:
    """Makes some steps and discards their result; none if the model has lazy layers."""
    if any(is_lazy(weights) for weights in run.model.parameters()):
        return
    weights = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.learner.called.train()
    run.loader.set_epoch(0)
    steps = groups(run.loader, run.options.grad_accum)
    for group in islice(steps, _WARM_UP_STEPS):
        train_step(run, group)
    # Ends the epoch that was begun, which would otherwise read ahead during the timed one.
    steps.close()
    run.model.load_state_dict(weights)
    run.learner.begin()


def train_epoch(run: Run) -> bool:
    """Trains the rest of an epoch. Returns False if a signal interrupted it."""
    options, progress = run.options, run.progress
    if progress.epoch_step >= run.steps_per_epoch:
        return True  # it was interrupted after its last step
    run.loader.set_epoch(progress.epoch)  # continues the epoch of a loaded state
    run.learner.called.train()
    run.units = 0
    run.tell(Monitor.begin_epoch)
    for group in groups(run.loader, options.grad_accum):
        loss = train_step(run, group)
        progress.step += 1
        progress.epoch_step += 1
        size = sum(run.task.size(batch, valid) for batch, valid in group)
        run.units += size
        run.tell(Monitor.step, size, loss)
        if progress.step % options.log_every == 0:
            run.tell(Monitor.point, log_point(run))
        if run.check_signal():
            return False
        if options.checkpoint_every and progress.step % options.checkpoint_every == 0:
            run.save()
    return True


def groups(loader: fastio.Loader, size: int) -> Generator[list[tuple[Any, int]], None, None]:
    """Yields the batches of each step with their numbers of valid samples."""
    batches = ((batch, loader.batch.valid) for batch in loader)
    while group := list(islice(batches, size)):
        yield group


def train_step(run: Run, group: list[tuple[Any, int]]) -> torch.Tensor:
    """Makes one step of the optimizer on some batches. Returns their loss on this process.

    The losses are divided by their number in all batches of all processes, so that each sample (or
    token) has the same weight, also in batches that are shorter, padded or masked. DDP and FSDP
    average gradients, hence the factor of the number of processes.
    """
    task, process = run.task, run.process
    counts = [task.count(batch, valid) for batch, valid in group]
    # One sum over processes in each step; the number is not read, so the GPU is not waited for.
    total = process.sum(summed(counts, process.device))
    # At least 1: a step may have nothing that counts.
    share = process.world_size / total.clamp(min=1)

    def loss(model: nn.Module, part: tuple[Any, int, int | torch.Tensor]) -> torch.Tensor:
        batch, valid, count = part
        outcome = task.step(model, batch, valid)
        run.totals.add(outcome, count)
        return outcome.loss * share

    parts = [(batch, valid, count) for (batch, valid), count in zip(group, counts, strict=True)]
    found = run.learner.step(parts, loss)
    run.note_loss(found)
    return found


def summed(counts: list[int | torch.Tensor], device: torch.device) -> torch.Tensor:
    """Returns the sum of tensors, a float32 scalar on the device, without waiting for it."""
    total = sum(counts)
    if isinstance(total, torch.Tensor):
        return total.to(device, torch.float32)
    return torch.full((), float(total), device=device)


@torch.no_grad()
def evaluate(run: Run) -> dict[str, float] | None:
    """Returns the metrics on the evaluation data; None if it was interrupted."""
    assert run.val_loader is not None
    for model in dict.fromkeys((run.model, run.result)):
        sync_buffers(model, run.process)
    run.evaluated.eval()
    run.val_loader.set_epoch(0)
    run.tell(Monitor.begin_evaluation)
    totals = Totals(run.process)
    # A loader draws from torch's generator. An evaluation that was interrupted is made anew, and
    # training must not notice.
    drawn = torch.get_rng_state()
    batches = iter(run.val_loader)
    torch.set_rng_state(drawn)
    # FSDP keeps weights that it gathers, and training cannot use tensors of inference mode.
    with torch.inference_mode(run.process.parallel != "fsdp"):
        for batch in batches:
            valid = run.val_loader.batch.valid
            with autocast(run.process.device, run.options):
                outcome = run.task.step(run.evaluated, batch, valid)
            totals.add(outcome, run.task.count(batch, valid))
            run.tell(Monitor.evaluated, run.task.size(batch, valid))
            if run.check_signal():
                return None
    return means(run.task, totals.take())


def means(task: Task, sums: Sums) -> dict[str, float]:
    """Returns the task's metrics, and the mean loss per sample or token."""
    loss = float(sums["loss"] / sums["count"].clamp(min=1))
    return {"loss": loss, **task.metrics(sums)}


def log_point(run: Run) -> Record:
    """Records the loss of all processes since the last point in the history."""
    run.flush()
    window, run.progress.window = run.progress.window, {}
    record = {
        "step": run.progress.step,
        "epoch": run.progress.epoch + 1,
        "loss": means(run.task, window)["loss"],
        "lr": run.learner.scheduler.get_last_lr()[0],
    }
    run.progress.points.append(record)
    return record


def _record(run: Run, val: dict[str, float] | None, before: fastio.Stats, began_s: float) -> Record:
    """Returns the record of an epoch."""
    run.flush()
    stats = run.loader.stats() - before
    return {
        "epoch": run.progress.epoch + 1,
        "step": run.progress.step,
        "train": means(run.task, run.progress.sums),
        "val": val,
        "seconds": time.perf_counter() - began_s,
        "units_per_s": run.units * run.process.world_size / max(stats.elapsed_s, 1e-9),
        "wait_share": stats.wait_share,
    }


@contextmanager
def noted_signal() -> Iterator[Callable[[], int]]:
    """Records the first SIGINT or SIGTERM; the second one acts as usual.

    Outside the main thread, which alone may handle signals, nothing is recorded.

    Returns:
        A function that returns the number of the signal, or 0.
    """
    came, before = 0, dict[signal.Signals, Any]()

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = number
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        restore()
