"""The options of a training run that all tasks have in common."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import fastio

Amp = Literal["bf16", "fp16"]
Parallel = Literal["dp", "ddp", "fsdp"]
Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["onecycle", "cosine", "constant"]


@dataclass(frozen=True)
class Options:
    """The options of a training run. Tasks have settings of their own (image size, columns, ...).

    What changes the result:

    Attributes:
        data: training data; anything that `fastio.Loader` takes.
        val: evaluation data, used after every epoch; None for `val_split`, or no evaluation.
        val_split: share of `data`, 0.0 to 1.0, that is held out for evaluation.
        epochs: number of passes over the data.
        batch_size: samples per batch on each process; if the data has fewer samples than a batch
            of all processes, each step has all samples.
        grad_accum: number of batches whose gradients are summed for one optimizer step.
        optimizer: "adamw" or "sgd" (Nesterov, momentum 0.9); with "onecycle", momentum (of AdamW
            beta1) goes from 0.95 to 0.85 and back, as the learning rate rises and falls.
        lr: highest learning rate; None for the task's default.
        weight_decay: weight decay of matrices and kernels; biases, norms, layer scales and the
            class token and positions of a vision transformer have none.
        schedule: "onecycle" (one-cycle, annealed by cosine), "cosine", or "constant"; per step.
        warmup: epochs, also fractional, in which the learning rate rises.
        label_smoothing: label smoothing of the cross-entropy, 0.0 to 1.0.
        clip_grad_norm: largest norm of all gradients together; None for no limit.
        amp: autocast to "bf16", or to "fp16" with gradient scaling; None for float32.
        seed: seed of weights, order, augmentation and dropout.
        deterministic: use only PyTorch's deterministic algorithms, which may be slower.
        early_stopping: number of evaluations without improvement after which training ends;
            needs evaluation data. None for never.

    What changes speed:

        val_batch_size: batch size of the evaluation; None for twice `batch_size`.
        threads: threads of each loader; 0 for all cores that this process may use.
        device: "cpu", "cuda", "cuda:1", ...; None for a GPU if there is one.
        compile: compile the model with torch.compile.
        channels_last: keep weights and images in channels-last memory.
        parallel: "dp", "ddp" or "fsdp"; None for "ddp" if torchrun started several processes.

    Checkpoints and logging:

        checkpoint_dir: folder for `last.pt`, `best.pt` and `history.json`; None for no checkpoints.
        checkpoint_every: optimizer steps between checkpoints; None saves after epochs only.
        resume: continue from `last.pt` in `checkpoint_dir`; start a new run if there is none.
        log_every: steps between points in the history, TensorBoard and Visdom.
        tensorboard: folder for event files; None for none.
        visdom: URL of a visdom server; None for none.

    Raises:
        TrainError: a value is out of range, or two options exclude each other.
    """

    data: str
    val: str | None = None
    val_split: float = 0.0
    epochs: int = 10
    batch_size: int = 64
    grad_accum: int = 1
    optimizer: Optimizer = "adamw"
    lr: float | None = None
    weight_decay: float = 0.01
    schedule: Schedule = "onecycle"
    warmup: float = 1.0
    label_smoothing: float = 0.0
    clip_grad_norm: float | None = None
    amp: Amp | None = None
    seed: int = 0
    deterministic: bool = False
    early_stopping: int | None = None

    val_batch_size: int | None = None
    threads: int = 0
    device: str | None = None
    compile: bool = False
    channels_last: bool = False
    parallel: Parallel | None = None

    checkpoint_dir: str | None = None
    checkpoint_every: int | None = None
    resume: bool = False
    log_every: int = 50
    tensorboard: str | None = None
    visdom: str | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "grad_accum", "log_every"):
            _at_least(name, getattr(self, name), 1)
        for name in ("early_stopping", "checkpoint_every", "val_batch_size"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for name in ("weight_decay", "warmup", "threads"):
            _at_least(name, getattr(self, name), 0)
        for name in ("val_split", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise fastio.TrainError(
                    f"{name} must be at least 0 and below 1, got {getattr(self, name)}"
                )
        for name in ("lr", "clip_grad_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise fastio.TrainError(f"{name} must be above 0, got {value}")
        if self.val is not None and self.val_split:
            raise fastio.TrainError("val and val_split cannot be combined: give one of them")
        if self.checkpoint_dir is None and (self.resume or self.checkpoint_every):
            raise fastio.TrainError("resume and checkpoint_every need checkpoint_dir")
        if self.compile and self.parallel == "dp":
            raise fastio.TrainError(
                "compile does not work with parallel=dp, whose copies of the model would all use "
                "the first one's weights: start processes by torchrun (ddp), or leave one out"
            )

    def identity(self) -> dict[str, Any]:
        """Returns the options that a resumed checkpoint must have in common with the run, as JSON
        values.

        The batch is left out: what counts is the samples of a step, which the loop knows. Data is
        known by the loader. A constant learning rate does not depend on how many epochs there are.
        """
        names = [field.name for field in dataclasses.fields(self)]
        decides = names[: names.index("val_batch_size")]
        left_out = {"data", "val", "batch_size", "grad_accum", "deterministic", "early_stopping"}
        if self.schedule == "constant":
            left_out.add("epochs")
        return {name: getattr(self, name) for name in decides if name not in left_out}


def _at_least(name: str, value: float, smallest: int) -> None:
    if not value >= smallest:
        raise fastio.TrainError(f"{name} must be at least {smallest}, got {value}")
