"""The state of a run: its parts, checks of them, saving and restoring."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Concatenate, ParamSpec

import numpy as np
import torch
from torch import Tensor, nn

import fastio
from fastio.train import checkpoint
from fastio.train.checkpoint import BEST, HISTORY, LAST
from fastio.train.learner import Learner
from fastio.train.monitor import Monitor
from fastio.train.objectives import Outcome
from fastio.train.options import Options
from fastio.train.parallel import Process, local, on_main
from fastio.train.task import Task

# As fairseq's --min-loss-scale: below it, gradients overflow for another reason than their scale.
_LOWEST_SCALE = 1e-4

Sums = dict[str, Tensor]
P = ParamSpec("P")


def _state_dicts() -> ModuleType:
    """Returns torch's module for the states of sharded models.

    It is imported when it is needed: it imports DTensor and SymPy, which takes more than half of
    the time that importing torch takes.
    """
    return import_module("torch.distributed.checkpoint.state_dict")


class Totals:
    """Sums on the device, which are not waited for until they are requested."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sums: Sums = {}

    def add(self, outcome: Outcome, count: int | Tensor) -> None:
        """Adds a batch."""
        device = outcome.loss.device
        if not isinstance(count, Tensor):  # filled by a kernel, where a copy would be waited for
            count = torch.full((), count, device=device)
        values = {"loss": outcome.loss, "count": count, **outcome.sums}
        given = {n: value.detach().to(device, torch.float64) for n, value in values.items()}
        self._sums = added(self._sums, given)

    def take(self) -> Sums:
        """Returns the sums over all processes since the last call, as float64 on the CPU.

        All processes call it, each of them having added batches.
        """
        names, values = list(self._sums), list(self._sums.values())
        self._sums = {}
        if not values:
            return {}
        flat = self._process.sum(torch.cat([value.reshape(-1) for value in values])).cpu()
        parts = torch.split(flat, [value.numel() for value in values])
        return {n: p.reshape(v.shape) for n, p, v in zip(names, parts, values, strict=True)}


def added(sums: Mapping[str, Tensor], more: Mapping[str, Tensor]) -> Sums:
    """Returns the sum of two mappings, key by key."""
    return {**sums, **{n: sums[n] + v if n in sums else v for n, v in more.items()}}


@dataclass
class Progress:
    """The progress of a run; all of it is saved.

    Attributes:
        epoch: The number of complete epochs, including their evaluation.
        step: The number of steps of the optimizer.
        epoch_step: The number of steps of the current epoch.
        best, best_epoch: The best metric so far and the epoch, from 1, that had it.
        waiting: The number of evaluations since then.
        sums, window: The sums since the epoch began, and since the last point of the history.
        history, points: As in `Result`.
    """

    epoch: int = 0
    step: int = 0
    epoch_step: int = 0
    best: float | None = None
    best_epoch: int = 0
    waiting: int = 0
    sums: Sums = field(default_factory=dict)
    window: Sums = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)


class Run:
    """The model, the loaders and the progress of a run.

    A context: leaving it closes the loaders.

    Args:
        task: What is trained.
        options: How.
        process: This process.
        monitors: Receive the events of the run, on the main process only.
        signal: Returns the number of the signal that came to this process, or 0.

    Attributes:
        learner: The model with its optimizer, schedule and scaler.
        model: The model, whose weights are trained.
        result: The model that is the result of the run: with `ema` the averaged one, else `model`.
        evaluated: `result` as it is called for evaluation.
        prolonged: A message about a resumed run with another number of epochs; None for others.
        interrupted: The number of the signal that ends the run, or 0.
        units: Those that this process trained on in the epoch under way; see `Task.size`.
    """

    def __init__(
        self,
        task: Task,
        options: Options,
        process: Process,
        monitors: Sequence[Monitor] = (),
        signal: Callable[[], int] = int,
    ) -> None:
        self.task, self.options, self.process = task, options, process
        self._monitors, self._signal = monitors if process.main else (), signal
        self.interrupted = 0
        self.units = 0
        if options.checkpoint_dir is not None:
            folder = Path(options.checkpoint_dir)
            on_main(process, lambda: checkpoint.check_folder(folder, options.resume))
        self._open = ExitStack()
        self._open.enter_context(backends(options, process))
        try:
            self.loader = self._open.enter_context(task.train_loader(process))
            self.val_loader = task.val_loader(process)
            if self.val_loader is not None:
                self._open.enter_context(self.val_loader)
            check_loaders(options, process, self.loader, self.val_loader)
            self.steps_per_epoch = -(-len(self.loader) // options.grad_accum)
            _seed(options.seed)  # the same weights on all processes
            lr = task.lr if options.lr is None else options.lr
            self.learner = Learner(task.model(), options, process, lr, self.steps_per_epoch)
            self.model = self.learner.model
            self.result = self.learner.averaged or self.model
            # DataParallel also divides evaluation batches among the GPUs. DDP and FSDP processes
            # have batches of their own.
            whole = process.parallel == "dp" and self.result is self.model
            self.evaluated = self.learner.called if whole else self.result
            _seed(options.seed + 1 + process.rank)  # dropout of its own on each
        except BaseException:
            self._open.close()
            raise
        self.progress = Progress()
        self.totals = Totals(process)
        self._bad_step = self._no_bad_step()
        self._best_weights: dict[str, Any] | None = None
        self.prolonged: str | None = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def tell(
        self, event: Callable[Concatenate[Monitor, Run, P], None], *of: P.args, **named: P.kwargs
    ) -> None:
        """Calls a method of all monitors: `tell(Monitor.point, record)`."""
        for monitor in self._monitors:
            getattr(monitor, event.__name__)(self, *of, **named)

    def check_signal(self) -> bool:
        """Returns whether a signal came to any process, which ends the run."""
        self.interrupted = self.process.highest(self._signal())
        return bool(self.interrupted)

    @property
    def stops_early(self) -> bool:
        """Whether the metric has not improved for `early_stopping` evaluations."""
        patience = self.options.early_stopping
        return patience is not None and self.progress.waiting >= patience

    def note_loss(self, loss: Tensor) -> None:
        """Records the first step whose loss is not finite, without waiting for the device."""
        step = torch.where(loss.isfinite(), torch.inf, float(self.progress.step + 1))
        self._bad_step = torch.minimum(self._bad_step, step)

    def flush(self) -> None:
        """Adds the sums of all processes to the progress.

        Raises:
            TrainError: a loss was not finite, or gradients overflow whatever they are scaled by.
        """
        bad = float(self.process.lowest(self._bad_step))
        self._bad_step = self._no_bad_step()
        sums = self.totals.take()
        if bad < torch.inf:
            self.task.metrics(sums)  # which may know better what is wrong with the data
            raise fastio.TrainError(
                f"the loss of step {int(bad)} is not finite: {self._advice}, and check the data"
            )
        if self.learner.scaler.is_enabled() and self.learner.scaler.get_scale() < _LOWEST_SCALE:
            raise fastio.TrainError(
                f"gradients overflowed in all of the last steps before step {self.progress.step}, "
                f"down to a scale of {self.learner.scaler.get_scale():.1g}: {self._advice}"
            )
        self.progress.sums = added(self.progress.sums, sums)
        self.progress.window = added(self.progress.window, sums)

    def check_weights(self) -> None:
        """Raises an error if a weight is not finite, which no loss shows after the last step.

        Raises:
            TrainError: one is not finite, or as `flush`.
        """
        self.flush()
        if not finite_weights(self.model, self.process):
            raise fastio.TrainError(
                f"the weights are not finite after step {self.progress.step}: {self._advice}"
            )

    @property
    def _advice(self) -> str:
        """Returns advice on how to keep numbers finite."""
        other = ", --amp bf16" if self.options.amp == "fp16" else ""
        return f"try a lower --lr, a longer --warmup, --clip-grad-norm 1{other}"

    def end_epoch(self, record: dict[str, Any]) -> bool:
        """Records an epoch. Returns whether its metric is the best so far."""
        progress = self.progress
        progress.history.append(record)
        progress.epoch += 1
        progress.epoch_step = 0
        progress.sums = {}
        value = (record["val"] or record["train"])[self.task.metric]
        sign = 1 if self.task.greater_is_better else -1
        improved = progress.best is None or sign * value > sign * progress.best
        improved = improved and not math.isnan(value)  # nothing is better than NaN
        progress.waiting = 0 if improved else progress.waiting + 1
        if improved:
            progress.best, progress.best_epoch = value, progress.epoch
            if self.options.early_stopping and self.options.checkpoint_dir is None:
                state = self.result.state_dict()
                # Without a folder for checkpoints, the best weights stay in memory.
                self._best_weights = {name: value.clone() for name, value in state.items()}
        return improved

    def save(self, best: bool = False) -> None:
        """Saves the run; `best` also keeps it as the best one. All processes call it."""
        self.check_weights()
        states = self._full_states()
        random_states = self.process.gather(checkpoint.rng_state(self.process.device))
        content = {
            "identity": self._identity(),
            "world_size": self.process.world_size,
            **states,
            "scheduler": self.learner.scheduler.state_dict(),
            "scaler": self.learner.scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "rng": random_states,
            "progress": vars(self.progress),
        }
        # No process continues, or ends, before the files are written.
        on_main(self.process, lambda: self._write(content, best))

    def _full_states(self) -> dict[str, Any]:
        """Returns the states of models and optimizer, on rank 0's CPU. All processes call it."""
        # Only with FSDP do the other processes have parts of the state.
        if not self.process.main and self.process.parallel != "fsdp":
            return {}
        dcp = _state_dicts()
        how = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = dcp.get_state_dict(self.model, self.learner.optimizer, options=how)
        states: dict[str, Any] = {"model": model, "optimizer": optimizer}
        if self.learner.averaged is not None:
            states["ema"] = dcp.get_model_state_dict(self.learner.averaged, options=how)
        return states

    def _write(self, content: dict[str, Any], best: bool) -> None:
        if best:  # first, so that what `last` calls the best is there
            checkpoint.save(content, self._path(BEST))
            checkpoint.keep(self._path(BEST), self._path(LAST))
        else:
            checkpoint.save(content, self._path(LAST))
        history = {"history": self.progress.history, "points": self.progress.points}
        checkpoint.save_json(history, self._path(HISTORY))

    def resume(self) -> None:
        """Restores the last checkpoint if there is one; every process reads it.

        Raises:
            CheckpointError: The checkpoint is damaged or of another run.
            StateMismatch: It is of other data.
        """
        path = self._path(LAST)
        found = self.process.gather(path.exists())
        if not all(found):
            if any(found):
                raise fastio.CheckpointError(
                    f"{path} does not exist for all processes: rank {found.index(False)} does "
                    "not see it. --checkpoint-dir must be on a file system that all machines "
                    "share"
                )
            return
        content = checkpoint.load(path)
        before = checkpoint.check_identity(content["identity"], self._identity(), path)
        self.loader.load_state_dict(content["loader"])
        dcp = _state_dicts()
        full = dcp.StateDictOptions(full_state_dict=True)  # independent of how FSDP shards tensors
        try:
            dcp.set_state_dict(
                self.model,
                self.learner.optimizer,
                model_state_dict=content["model"],
                optim_state_dict=content["optimizer"],
                options=full,
            )
            if self.learner.averaged is not None:
                dcp.set_model_state_dict(self.learner.averaged, content["ema"], options=full)
        except (RuntimeError, KeyError) as error:
            raise fastio.CheckpointError(f"{path} does not fit the model: {error}") from error
        if before == self.options.epochs:
            self.learner.scheduler.load_state_dict(content["scheduler"])
        else:
            self._prolong(before, content["scheduler"])
        self.learner.scaler.load_state_dict(content["scaler"])
        self.progress = Progress(**content["progress"])
        # There is a state for each process. With another number of processes, the generators stay
        # as they were seeded.
        if content["world_size"] == self.process.world_size:
            checkpoint.restore_rng_state(content["rng"][self.process.rank], self.process.device)

    def _prolong(self, before: int, scheduler: Mapping[str, Any]) -> None:
        """Continues with the schedule of another number of epochs, and sets `prolonged`."""
        self.learner.reschedule(scheduler["last_epoch"])
        old, (new, *_) = scheduler["_last_lr"][0], self.learner.scheduler.get_last_lr()
        epochs, schedule = self.options.epochs, self.options.schedule
        had = f"{before} epoch{'' if before == 1 else 's'}"
        said = f"the run had {had} and now has {epochs}. "
        warmed = round(self.options.warmup * self.steps_per_epoch)
        if schedule == "constant" and warmed < min(before, epochs) * self.steps_per_epoch:
            self.prolonged = (
                f"{said}The learning rate is constant: {new:.2e} as before. The result is that of "
                f"a run with {epochs} epochs from the beginning"
            )
            return
        self.prolonged = (
            f"{said}The schedule {schedule} is computed anew for {epochs} epochs: the learning "
            f"rate changes from {old:.2e} to {new:.2e}, and the warm-up is not repeated. The steps "
            f"before followed the schedule of {had}, so the result is not that of {epochs} epochs "
            "from the beginning"
        )

    def restore_best(self) -> None:
        """Restores the model's weights of the best epoch."""
        if self.progress.best is None:
            return  # the metric was never a number
        if self._best_weights is not None:
            self.result.load_state_dict(self._best_weights)
        else:
            best = checkpoint.load(self._path(BEST))
            name = "model" if self.result is self.model else "ema"
            dcp = _state_dicts()
            full = dcp.StateDictOptions(full_state_dict=True)
            dcp.set_model_state_dict(self.result, best[name], options=full)

    def _path(self, name: str) -> Path:
        folder = Path(str(self.options.checkpoint_dir))
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def _identity(self) -> dict[str, Any]:
        options = self.options
        samples = options.batch_size * options.grad_accum * self.process.world_size
        own = {
            "task": self.task.name,
            "samples_per_step": samples,
            "steps_per_epoch": self.steps_per_epoch,
            **self.task.identity(),
        }
        return {**options.identity(), **own}

    def _no_bad_step(self) -> Tensor:
        return torch.tensor(torch.inf, device=self.process.device)


@contextmanager
def backends(options: Options, process: Process) -> Iterator[None]:
    """Sets PyTorch's backends for speed or determinism, and restores them at the end."""
    before = (
        torch.backends.cudnn.benchmark,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )
    if options.deterministic:
        # Matrix products of cuBLAS are deterministic only with a workspace of fixed size (see
        # "Reproducibility" in the documentation of PyTorch).
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    elif process.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32
    # cuDNN chooses the fastest algorithm by timing, so another run may get another one.
    torch.backends.cudnn.benchmark = not options.deterministic
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before[0]
        torch.set_float32_matmul_precision(before[1])
        torch.use_deterministic_algorithms(before[2])


def _seed(seed: int) -> None:
    """Seeds all random generators of this process."""
    random.seed(seed)
    # NumPy takes seeds of 32 bits only.
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def check_loaders(
    options: Options, process: Process, loader: fastio.Loader, val_loader: fastio.Loader | None
) -> None:
    """Raises an error for data that cannot be used for training or evaluation. All processes call
    it.

    Raises:
        TrainError: it has no batch, is not the same on all processes, or there is none to stop
            early by.
    """
    if options.early_stopping is not None and val_loader is None:
        raise fastio.OptionError(
            "early_stopping needs validation data: use val (--val DATA), or val_split "
            "(--val-split 0.1)"
        )
    if not len(loader):
        raise fastio.TrainError(f"{options.data} has no samples to train on")
    if val_loader is not None and not len(val_loader):
        raise fastio.TrainError(f"{options.val or options.data} has no samples to evaluate on")
    batches = process.gather([len(loader), 0 if val_loader is None else len(val_loader)])
    for rank, found in enumerate(batches):
        if found != batches[0]:
            raise fastio.TrainError(
                "the processes have different data: the numbers of training and validation "
                f"batches are {batches[0]} on rank 0 and {found} on rank {rank}. Use the same "
                "files on all ranks"
            )


def finite_weights(model: nn.Module, process: Process) -> bool:
    """Returns whether the weights are finite on all processes. All processes call it."""
    parts = [local(weight).isfinite().all() for weight in model.parameters()]
    good = torch.stack(parts).all().float() if parts else torch.ones((), device=process.device)
    return bool(process.lowest(good))
