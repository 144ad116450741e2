"""The tasks of `fastio train`: images, text and tables, each described by one `LearnedTask`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import fastio
from fastio.train.fields import Columns, Groups, Labels, listed, moments, schema_of
from fastio.train.models import (
    ENCODER_SIZES,
    IMAGE_MODELS,
    TABULAR_MODELS,
    LanguageModel,
    Pretrained,
    Scaled,
    TextClassifier,
)
from fastio.train.objectives import (
    Objective,
    Outcome,
    binary,
    classification,
    next_token,
    regression,
)
from fastio.train.options import ImageSettings, Options, TabularSettings, TextSettings
from fastio.train.parallel import Process
from fastio.train.task import Task

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
_POOL = 50  # batches whose documents are sorted by length together

Reading = Callable[[str, Process, bool], dict[str, Any]]


@dataclass
class LearnedTask(Task):
    """A task that is described by data: what is read, what the model gets, and what it learns.

    Attributes:
        name, unit, lr: As in `Task`.
        settings: The settings of the kind of data.
        objective: The loss and the metrics.
        make: Returns the model.
        inputs: Returns the arguments of the model for a batch.
        target: Returns the targets of a batch, one for each sample.
        read: Returns the arguments of the loader, given the data, the process, and whether to
            train.
        learned: Properties of the data that a resumed checkpoint must share, as JSON values.
        losses: The number of losses of a sample.
        units: A batch -> the number of units in each of its samples.
        labels: The classes; None if numbers or tokens are predicted.
    """

    name: str
    unit: str
    options: Options
    settings: Any
    objective: Objective
    make: Callable[[], nn.Module]
    inputs: Callable[[Any], tuple[Tensor, ...]]
    target: Callable[[Any], Tensor]
    read: Reading
    learned: dict[str, Any]
    losses: int = 1
    units: Callable[[Any], int] = lambda batch: 1
    labels: Labels | None = None
    lr: float = 1e-3
    metric: str = field(init=False)
    greater_is_better: bool = field(init=False)

    def __post_init__(self) -> None:
        self.metric = self.objective.metric
        self.greater_is_better = self.objective.greater_is_better

    def reading(self, data: str, process: Process, *, train: bool = False) -> dict[str, Any]:
        return self.read(data, process, train)

    def model(self) -> nn.Module:
        return self.make()

    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        outputs = model(*self.inputs(batch))[:valid]
        return self.objective.outcome(outputs, self.target(batch)[:valid], model.training)

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        return self.objective.metrics(sums)

    def count(self, batch: Any, valid: int) -> int:
        return valid * self.losses

    def size(self, batch: Any, valid: int) -> int:
        return valid * self.units(batch)

    def identity(self) -> dict[str, Any]:
        settings = {**asdict(self.settings), **self.learned}
        settings.pop("groups", None)  # `learned` has the columns that they make
        return settings


# --- Images ---------------------------------------------------------------------------------------


def image_task(options: Options, settings: ImageSettings | None = None) -> LearnedTask:
    """Returns an image classifier, trained on random crops and evaluated on centre crops.

    Raises:
        TrainError: The data has no images, or not the label.
    """
    settings = settings or ImageSettings()
    schema, size = schema_of(options.data), settings.size
    fields = schema.fields
    images = [name for name, kind in fields.items() if isinstance(kind, fastio.Image)]
    if not images:
        raise fastio.TrainError(f"{options.data} has no images; its fields are {listed(fields)}")
    named = (name for name in ("label", "class", "cls") if name in fields)
    labels = Labels.of(options.data, settings.label or next(named, "label"))
    parts = (images[0], labels.field) if schema.structure == "dict" else (0, 1)  # in a batch

    def read(data: str, process: Process, train: bool) -> dict[str, Any]:
        crop: list[Any] = [fastio.Resize(size * 8 // 7), fastio.CenterCrop(size)]
        last: list[Any] = [fastio.Normalize(MEAN, STD)]
        # Evaluation sees whole images with their own labels.
        mixed = mixing(settings, len(labels.words), *parts) if train else []
        if train:
            crop = [fastio.RandomResizedCrop(size), fastio.RandomHorizontalFlip()]
            crop += augmentations(settings.augment, size)
            last += [fastio.RandomErasing(settings.erasing)] if settings.erasing else []
        steps = {images[0]: [*crop, *last], None: mixed}
        return {
            "fields": [images[0], labels.field],
            "transforms": steps | labels.transforms(data, process.device),
            "channels_last": options.channels_last,
            "repeat": settings.repeat if train else 1,
        }

    def target(batch: Any) -> Tensor:
        found: Tensor = batch[labels.field] if isinstance(batch, dict) else batch[1]
        return found if found.is_floating_point() else found.long()  # mixed labels, or numbers

    return LearnedTask(
        "image",
        "images",
        options,
        settings,
        classification(options.label_smoothing),
        partial(_image_model, settings.model, len(labels.words), size),
        inputs=lambda batch: (batch[images[0]] if isinstance(batch, dict) else batch[0],),
        target=target,
        read=read,
        learned={"classes": len(labels.words)},
        labels=labels,
    )


def augmentations(name: str, size: int) -> list[Any]:
    """Returns the transforms of an augmentation by its name in `ImageSettings`.

    Args:
        name: the name.
        size: height and width of the images, which the kernel of SimCLR's blur is a tenth of.
    """
    if name == "trivial":
        return [fastio.TrivialAugmentWide()]
    if name == "rand":
        return [fastio.RandAugment(2, 9)]
    if name == "auto":
        return [fastio.AutoAugment()]
    if name == "three":  # Touvron et al., "DeiT III: Revenge of the ViT", 2022
        one = [fastio.Grayscale(3), fastio.RandomSolarize(128, 1.0), fastio.GaussianBlur(5)]
        return [fastio.RandomChoice(one), fastio.ColorJitter(0.3, 0.3, 0.3)]
    if name == "simclr":  # Chen et al., "A Simple Framework for Contrastive Learning", 2020
        return [
            fastio.RandomApply([fastio.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            fastio.RandomGrayscale(0.2),
            fastio.RandomApply([fastio.GaussianBlur(size // 10 // 2 * 2 + 1)], p=0.5),
        ]
    return []


def mixing(settings: ImageSettings, classes: int, image: int | str, label: int | str) -> list[Any]:
    """Returns a list with the transform of whole batches, or without any if nothing is mixed.

    Args:
        settings: The settings.
        classes: The number of classes.
        image, label: The positions or keys of images and labels in a batch.
    """
    alphas = {fastio.Mixup: settings.mixup, fastio.CutMix: settings.cutmix}
    given = [
        kind(alpha, classes, image=image, label=label) for kind, alpha in alphas.items() if alpha
    ]
    return [fastio.RandomChoice(given)] if len(given) > 1 else given


def _image_model(name: str, classes: int, size: int) -> nn.Module:
    """Returns a model of `IMAGE_MODELS` or of torchvision with initial weights.

    Raises:
        PackageMissing: It may be one of torchvision's, which cannot be imported.
        OptionError: There is no such model, or it does not take images of this size.
    """
    if name in IMAGE_MODELS:
        try:
            return IMAGE_MODELS[name](classes, size)
        except ValueError as error:
            raise fastio.OptionError(f"size={size}: {error}") from error
    known = ", ".join(IMAGE_MODELS)
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        purpose = f"make model={name}, which is not one of {known}"
        raise fastio.PackageMissing("torchvision", purpose, "torchvision", error) from error
    # Those of the package itself classify images; its subpackages have other kinds.
    if name not in models.list_models(module=models):
        raise fastio.OptionError(
            f"model={name} is neither one of {known} nor a torchvision model; torchvision has "
            f"{listed(models.list_models(module=models), name)}"
        )
    # Of two models, which also give the scores of auxiliary classifiers unless told not to.
    more = {"aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **more)
    except (ValueError, TypeError) as error:
        raise fastio.OptionError(
            f"model={name} is not one of {known}, and torchvision could not create it: {error}"
        ) from error
    return model


# --- Text -----------------------------------------------------------------------------------------


def text_task(options: Options, settings: TextSettings | None = None) -> LearnedTask:
    """Returns the classification of documents, or the modelling of language, on packed tokens.

    Documents are padded to the longest of a batch of similar lengths, and throughput includes
    padding; a language model gets windows of one length.

    Raises:
        TrainError: The data has no tokens, not the label, or does not tell its vocabulary's size.
    """
    settings = settings or TextSettings()
    schema = schema_of(options.data)
    if not schema.token_fields:
        raise fastio.TrainError(
            f"{options.data} has no tokens: create them from text with `fastio pack TEXT "
            "DESTINATION --tokenizer bytes` (or another tokenizer), and --columns label for "
            "the target; to pack arrays of integers as tokens, use a schema with "
            "fastio.Tokens('uint32')"
        )
    tokens = schema.token_fields[0]
    kind: Any = schema.fields[tokens]
    vocabulary = kind.vocabulary_size or {"uint8": 1 << 8, "uint16": 1 << 16}.get(kind.dtype)
    if vocabulary is None:
        raise fastio.TrainError(
            f"{options.data} does not have a vocabulary size: pack it with a tokenizer"
        )
    common = partial(LearnedTask, "text", "tokens", options, settings)
    label = settings.label or next((n for n in ("label", "class") if n in schema.fields), None)
    if (settings.objective or ("lm" if label is None else "classify")) == "lm":
        _no_smoothing(options, "a language model")
        return _language_task(common, settings, tokens, vocabulary)
    labels = Labels.of(options.data, label or "label")
    pad = partial(fastio.TokenPad, max_length=settings.length, field=tokens, pool=_POOL)
    return common(
        classification(options.label_smoothing),
        partial(_text_model, settings, vocabulary, len(labels.words)),
        inputs=lambda batch: (batch["input_ids"], batch["attention_mask"]),
        target=lambda batch: batch[labels.field].long(),
        read=lambda data, process, _: {
            "opener": pad,
            "transforms": labels.transforms(data, process.device),
        },
        learned={"vocabulary_size": vocabulary, "classes": len(labels.words)},
        units=lambda batch: int(batch["input_ids"].shape[1]),
        labels=labels,
        lr=5e-4 if settings.model in ENCODER_SIZES else 5e-5,
    )


def _no_smoothing(options: Options, what: str) -> None:
    """Raises OptionError if labels are to be smoothed where there are no classes."""
    if options.label_smoothing:
        raise fastio.OptionError(
            f"label_smoothing is for classes of images and documents, not for {what}: leave it out"
        )


def _language_task(
    common: Callable[..., LearnedTask], settings: TextSettings, tokens: str, vocabulary: int
) -> LearnedTask:
    windows = partial(fastio.TokenWindows, length=settings.length, field=tokens)
    return common(
        next_token(),
        partial(_text_model, settings, vocabulary, None),
        inputs=lambda batch: (batch["inputs"],),
        target=lambda batch: batch["targets"],
        read=lambda data, process, _: {"opener": windows},
        learned={"vocabulary_size": vocabulary},
        losses=settings.length,
        units=lambda batch: settings.length,
        lr=5e-4,
    )


def _text_model(settings: TextSettings, vocabulary: int, classes: int | None) -> nn.Module:
    """Returns a classifier, or a language model without classes, by name or of transformers."""
    name, length = settings.model, settings.length
    if name not in ENCODER_SIZES:
        if classes is None:
            return Pretrained(name, "AutoModelForCausalLM", vocabulary, length)
        return Pretrained(
            name,
            "AutoModelForSequenceClassification",
            vocabulary,
            length,
            num_labels=classes,
        )
    size = ENCODER_SIZES[name]
    size = replace(size, max_length=max(size.max_length, length))
    if classes is None:
        return LanguageModel(vocabulary, size)
    return TextClassifier(classes, vocabulary, size)


# --- Tables ---------------------------------------------------------------------------------------


def tabular_task(options: Options, settings: TabularSettings | None = None) -> LearnedTask:
    """Returns the task for a packed table, or for table files as they are.

    Numbers and ids are groups of columns (`dense` and `sparse`), or fields of their own.

    Raises:
        OptionError: Labels are to be smoothed.
        TrainError: The table lacks fields, or has ones that cannot be learned from.
    """
    settings = settings or TabularSettings()
    _no_smoothing(options, "a table")
    schema, label = schema_of(options.data, settings.groups), settings.label
    columns = Columns.of(schema.fields, label, settings.dense, settings.sparse)
    words = isinstance(schema.fields[label], fastio.Text) or schema.vocabularies.get(label)
    labels, scale, objective = None, (0.0, 1.0), binary(label)
    opener = partial(_open_table, groups=settings.groups)
    if settings.objective == "regression":
        mean, deviation = moments(opener(options.data), [label], partial(_numbers, options, label))
        scale = float(mean), float(deviation)
        objective = regression(scale[1])
    elif words:
        labels = Labels.of(options.data, label)
        if len(labels.words) != 2:
            raise fastio.TrainError(
                f"{options.data}: {label!r} has {len(labels.words)} values, but the objective "
                "binary needs two"
            )

    def read(data: str, process: Process, train: bool) -> dict[str, Any]:
        steps = {} if labels is None else labels.transforms(data, process.device)
        return {
            "fields": [label, *columns.dense, *columns.sparse],
            "opener": opener,
            "transforms": steps or None,
        }

    def make() -> nn.Module:
        return Scaled(_tabular_model(settings, columns), _dense_scale(), scale)

    def _dense_scale() -> tuple[Tensor, Tensor] | None:
        """Returns what the numbers are standardised by; None if their logarithm is taken."""
        dense = sum(columns.dense.values())
        if settings.dense_transform == "standard" and dense:
            return moments(opener(options.data), columns.dense, columns.numbers)
        log = settings.dense_transform == "log1p"
        return None if log else (torch.zeros(dense), torch.ones(dense))

    return LearnedTask(
        "tabular",
        "rows",
        options,
        settings,
        objective,
        make,
        inputs=lambda batch: (columns.numbers(batch), columns.ids(batch)),
        target=lambda batch: batch[label],
        read=read,
        learned={"dense": dict(columns.dense), "sparse": dict(columns.sparse)},
        labels=labels,
    )


def _open_table(data: str, groups: Groups | None) -> Any:
    """Opens table files whose columns form groups; returns other data as it is."""
    return data if groups is None else fastio.open(data, groups=groups)


def _tabular_model(settings: TabularSettings, columns: Columns) -> nn.Module:
    dense, sparse = sum(columns.dense.values()), sum(columns.sparse.values())
    name = settings.model or ("dlrm" if dense and sparse else "mlp")
    if name == "dlrm" and not (dense and sparse):
        raise fastio.TrainError(
            f"dlrm needs columns of numbers and of ids, and there are {dense} columns of "
            f"numbers and {sparse} of ids: choose columns with dense and sparse, or use "
            "the model mlp"
        )
    return TABULAR_MODELS[name](dense, sparse, settings.table_rows)


def _numbers(options: Options, label: str, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the labels of a batch: float64 (N, 1).

    Raises:
        TrainError: One is not a number.
    """
    labels = batch[label].double()
    if not labels.isfinite().all():
        raise fastio.TrainError(
            f"{options.data}: {label!r} is NaN or infinite in "
            f"{int((~labels.isfinite()).sum()):,} of {len(labels):,} rows: leave them out "
            "with `fastio pack --filter`, or predict another field"
        )
    return labels.unsqueeze(1)


def task_of(settings: ImageSettings | TextSettings | TabularSettings, how: Options) -> LearnedTask:
    """Returns the task of some settings. Raises as `image_task`, `text_task` and `tabular_task`."""
    if isinstance(settings, ImageSettings):
        return image_task(how, settings)
    return (
        text_task(how, settings)
        if isinstance(settings, TextSettings)
        else tabular_task(how, settings)
    )
