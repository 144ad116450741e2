"""Everything that can be said of a training run, whatever is trained."""

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
    """How to train. Tasks have settings of their own beside these (image size, columns, ...).

    What changes the result:

    Attributes:
        data: what to train on; anything that `fastio.Loader` takes.
        val: what to evaluate on after every epoch; None for `val_split`, or nothing.
        val_split: the part of `data`, 0.0 to 1.0, that is evaluated on instead of trained on.
        epochs: passes over the data.
        batch_size: samples of a batch on each process; of data with fewer than a batch of all
            processes, each step has all samples.
        grad_accum: batches whose gradients make up one step of the optimizer.
        optimizer: "adamw" or "sgd" (Nesterov, momentum 0.9); with "onecycle", momentum (of AdamW
            beta1) goes from 0.95 to 0.85 and back, as the learning rate rises and falls.
        lr: the highest learning rate; None for the task's.
        weight_decay: of matrices and kernels; biases, norms, scales of layers and a vision
            transformer's class token and positions have none.
        schedule: "onecycle" (one-cycle, annealed by cosine), "cosine", or "constant"; per step.
        warmup: epochs, or parts of one, in which the learning rate rises.
        label_smoothing: of the cross-entropy, 0.0 to 1.0.
        clip_grad_norm: the highest norm of all gradients together; None for no limit.
        amp: autocast to "bf16" or "fp16", the latter with scaled gradients; None for float32.
        seed: of weights, order, augmentation and dropout.
        deterministic: use PyTorch's deterministic algorithms only, which may be slower.
        early_stopping: end after as many evaluations without a better metric, which needs data to
            evaluate on; None for never.

    What changes speed:

        val_batch_size: of the evaluation; None for twice `batch_size`.
        threads: of each loader; 0 for all cores that this process may use.
        device: "cpu", "cuda", "cuda:1", ...; None for a GPU where there is one.
        compile: compile the model with torch.compile.
        channels_last: keep weights and images in channels-last memory.
        parallel: "dp", "ddp" or "fsdp"; None for "ddp" where torchrun started several processes.

    What is told and kept:

        checkpoint_dir: where `last.pt`, `best.pt` and `history.json` are kept; None for nowhere.
        checkpoint_every: also save every so many steps of the optimizer; None for epochs' ends.
        resume: go on from `checkpoint_dir`'s `last.pt`, or from the beginning where there is none.
        log_every: steps between two points of the history, and of TensorBoard and Visdom.
        tensorboard: folder for event files.
        visdom: URL of a visdom server.

    Raises:
        TrainError: a value is out of its range, or two exclude each other.
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
            raise fastio.TrainError("val and val_split exclude each other: give one of them")
        if self.checkpoint_dir is None and (self.resume or self.checkpoint_every):
            raise fastio.TrainError("resume and checkpoint_every need checkpoint_dir")
        if self.compile and self.parallel == "dp":
            raise fastio.TrainError(
                "compile does not work with parallel=dp, whose copies of the model would all use "
                "the first one's weights: start processes by torchrun (ddp), or leave one out"
            )

    def identity(self) -> dict[str, Any]:
        """What a checkpoint that is resumed must have in common, as JSON values.

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
