"""The options of a training run, and the settings of each task.

The command line takes its options and their help from these classes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import fastio
from fastio.store import local_only, local_path

Amp = Literal["bf16", "fp16"]
Parallel = Literal["dp", "ddp", "fsdp"]


@dataclass(frozen=True)
class Options:
    """The options of a training run. Tasks have settings of their own (image size, columns, ...).

    Only those under "Training" change the result.

    Training:
        data: Data to train on: anything that a Loader reads.
        val: Data to evaluate on after every epoch.
        val_split: Fraction of the data to hold out for evaluation, for example 0.1.
        epochs: Number of epochs.
        batch_size: Samples per batch on each process. If the data has fewer samples than a batch of
            all processes, each step has all samples.
        grad_accum: Number of batches whose gradients are accumulated for one optimizer step.
        optimizer: The optimizer; sgd has Nesterov momentum of 0.9. With onecycle, the momentum (of
            AdamW beta1) goes from 0.95 to 0.85 and back.
        lr: Maximum learning rate (default: set by the task).
        weight_decay: Weight decay of matrices and convolution kernels. Biases, norms, class tokens
            and positions have none.
        schedule: Learning rate schedule, per step; onecycle anneals by cosine.
        warmup: Length of the learning rate warm-up in epochs, for example 0.5.
        label_smoothing: Label smoothing of the cross-entropy loss of classes, at least 0.0 and
            below 1.0. Not for language models and tables.
        clip_grad_norm: Maximum total norm of the gradients (default: no clipping).
        ema: Keep and evaluate an exponential moving average of the weights, with this decay per
            step, above 0.0 and below 1.0 (default: no average).
        amp: Mixed precision; fp16 scales gradients (default: float32).
        seed: Seed of weights, order, augmentation and dropout.
        deterministic: Give bit-identical results in every run on the same machine; may be slower.
        early_stopping: Stop after this many evaluations without an improvement. The result is the
            model of the best epoch, also of a run that does not stop early.

    Performance:
        val_batch_size: Batch size of the evaluation (default: twice the batch size).
        threads: Number of threads of each loader; 0 uses all cores.
        device: Device: cpu, cuda, cuda:1, ... (default: a GPU if there is one).
        compile: Compile the model with torch.compile.
        channels_last: Keep weights and images in channels-last memory, for faster convolutions.
        parallel: Parallelism: ddp and fsdp need torchrun, where ddp is the default; dp uses one
            process.

    Checkpoints and logging:
        checkpoint_dir: Folder for last.pt, best.pt and history.json.
        checkpoint_every: Also save a checkpoint every this many steps.
        resume: Continue exactly from last.pt of the checkpoint folder, if it exists. With more
            epochs than the run had, the schedule is computed anew for the new number of epochs.
        log_every: Number of steps between two logged points.
        tensorboard: Write TensorBoard event files to this folder; needs fastio[tensorboard].
        visdom: Plot on the visdom server at this URL; needs fastio[visdom].

    Raises:
        OptionError: a value is out of range, or two options exclude each other.
    """

    data: str
    val: str | None = None
    val_split: float = 0.0
    epochs: int = 10
    batch_size: int = 64
    grad_accum: int = 1
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float | None = None
    weight_decay: float = 0.01
    schedule: Literal["onecycle", "cosine", "constant"] = "onecycle"
    warmup: float = 1.0
    label_smoothing: float = 0.0
    clip_grad_norm: float | None = None
    ema: float | None = None
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
        counts = ("epochs", "batch_size", "grad_accum", "log_every")
        _check_least(self, 1, *counts, "early_stopping", "checkpoint_every", "val_batch_size")
        _check_least(self, 0, "weight_decay", "warmup", "threads")
        _check_choices(self, "optimizer", "schedule", "amp", "parallel")
        for name in ("val_split", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise fastio.OptionError(
                    f"{name} must be at least 0 and below 1, got {getattr(self, name)}"
                )
        for name in ("lr", "clip_grad_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise fastio.OptionError(f"{name} must be above 0, got {value}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise fastio.OptionError(f"ema must be above 0 and below 1, got {self.ema}")
        if self.val is not None and self.val_split:
            raise fastio.OptionError("val and val_split cannot be combined: give one of them")
        if self.checkpoint_dir is not None:
            local = local_only(self.checkpoint_dir, "checkpoint_dir")
            object.__setattr__(self, "checkpoint_dir", local)
        # TensorBoard writes to URLs of stores, too.
        object.__setattr__(self, "tensorboard", local_path(self.tensorboard))
        if self.checkpoint_dir is None and (self.resume or self.checkpoint_every):
            raise fastio.OptionError("resume and checkpoint_every need checkpoint_dir")
        if self.compile and self.parallel == "dp":
            raise fastio.OptionError(
                "compile cannot be combined with parallel=dp, whose copies of the model would "
                "all use the weights of the first one: use torchrun (ddp), or leave one of the "
                "two out"
            )

    def identity(self) -> dict[str, Any]:
        """Returns the options that a resumed checkpoint must have in common with the run, as JSON
        values.

        The batch is left out: what counts is the samples of a step, which the loop knows. The
        loader's state identifies the data. The number of epochs, which may grow, is compared
        separately.
        """
        names = [field.name for field in dataclasses.fields(self)]
        decides = names[: names.index("val_batch_size")]
        left_out = {"data", "val", "batch_size", "grad_accum", "deterministic", "early_stopping"}
        return {name: getattr(self, name) for name in decides if name not in left_out}


@dataclass(frozen=True)
class ImageSettings:
    """The settings of image classification.

    Attributes:
        model: Model: resnet18, resnet50, alexnet, convnet, vit-tiny, vit-small, or a torchvision
            model. Weights are random.
        size: Height and width of cropped images, in pixels.
        label: Field to predict (default: label, class or cls).
        augment: Augmentation after the random crop and flip: TrivialAugmentWide, RandAugment(2, 9),
            AutoAugment, the three-augment of DeiT III with ColorJitter(0.3), or the colours and
            blur of SimCLR.
        erasing: Probability of RandomErasing after normalisation, 0.0 to 1.0.
        mixup: Mix each image and label with those of another image of the batch; the weight has
            the distribution Beta(ALPHA, ALPHA), for example 0.8. 0.0 mixes nothing.
        cutmix: Replace a rectangle of each image by that of another image of the batch; its area
            has the distribution Beta(ALPHA, ALPHA), for example 1.0. 0.0 replaces nothing. With
            mixup and cutmix, each batch uses one of the two at random.
        repeat: How often an image occurs in an epoch, each time with random draws of its own. The
            number of samples per epoch stays the same, so that an epoch has fewer images.
    """

    model: str = "resnet18"
    size: int = 224
    label: str | None = None
    augment: Literal["none", "trivial", "rand", "auto", "three", "simclr"] = "none"
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    repeat: int = 1

    def __post_init__(self) -> None:
        _check_least(self, 1, "size", "repeat")
        for name in ("mixup", "cutmix"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise fastio.OptionError(
                    f"{name} must be 0 or a positive number, got {getattr(self, name)!r}"
                )
        _check_choices(self, "augment")
        if not 0.0 <= self.erasing <= 1.0:
            raise fastio.OptionError(f"erasing must be in [0, 1], got {self.erasing!r}")


@dataclass(frozen=True)
class TextSettings:
    """The settings of training on text.

    Attributes:
        objective: Classify documents, or predict the next token (lm). Default: classify if the data
            has a label.
        model: Model: tiny, small or distilbert, with random weights; or a transformers model that
            is on this machine, by name or folder.
        length: Maximum tokens per document, or tokens per window.
        label: Field to predict (default: label or class).
    """

    objective: Literal["classify", "lm"] | None = None
    model: str = "small"
    length: int = 512
    label: str | None = None

    def __post_init__(self) -> None:
        _check_choices(self, "objective")
        _check_least(self, 1, "length")


@dataclass(frozen=True)
class TabularSettings:
    """The settings of training on a table.

    Attributes:
        objective: Kind of label: two values (binary) or any number (regression).
        model: Model: dlrm or mlp (default: dlrm if there are both numbers and ids).
        label: Field to predict.
        dense: Fields of numbers, single columns or groups (default: dense and floats).
        sparse: Fields of ids, single columns or groups (default: sparse and integers).
        dense_transform: Transform of the numeric fields before the model: standard subtracts the
            mean of the first million rows and divides by their deviation, log1p takes
            log(1 + max(x, 0)). NaN and infinity become 0 after it.
        table_rows: Rows of each embedding table; ids are taken modulo this number.
        groups: Table files: columns that become one array, by the name of the group.
    """

    objective: Literal["binary", "regression"] = "binary"
    model: Literal["dlrm", "mlp"] | None = None
    label: str = "label"
    dense: Sequence[str] | None = None
    sparse: Sequence[str] | None = None
    dense_transform: Literal["standard", "log1p", "none"] = "standard"
    table_rows: int = 100_000
    groups: Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        _check_choices(self, "objective", "model", "dense_transform")
        _check_least(self, 1, "table_rows")


def _check_least(settings: Any, smallest: int, *names: str) -> None:
    """Raises OptionError if a setting that is given is too small, or not a number."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= smallest:
            raise fastio.OptionError(f"{name} must be at least {smallest}, got {value}")


def _check_choices(settings: Any, *names: str) -> None:
    """Raises OptionError if a setting is none of the values that its annotation allows."""
    hints = get_type_hints(type(settings))
    for name in names:
        value = getattr(settings, name)
        parts = [get_args(part) or (part,) for part in get_args(hints[name])]
        known = [word for part in parts for word in part if isinstance(word, str)]
        if value is not None and value not in known:
            raise fastio.OptionError(f"{name} must be one of {', '.join(known)}, got {value!r}")
