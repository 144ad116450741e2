"""Image classification: folders, packed datasets, tars and the like of images with a label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from torch import Tensor, nn

import fastio
from fastio.train.labels import Labels, listed
from fastio.train.models import IMAGE_MODELS
from fastio.train.options import ImageSettings, Options
from fastio.train.parallel import Place
from fastio.train.task import Outcome, Task, accuracy, classified

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


def image_task(options: Options, settings: ImageSettings | None = None) -> ImageTask:
    """Returns the task for a dataset of images.

    Raises:
        TrainError: the data has no images, or not the label.
    """
    settings = settings or ImageSettings()
    with fastio.Loader(options.data) as loader:
        schema = getattr(loader.dataset, "schema", None)
    fields = {} if schema is None else schema.fields
    images = [name for name, kind in fields.items() if isinstance(kind, fastio.Image)]
    if not images:
        raise fastio.TrainError(
            f"{options.data} has no images; its fields are {listed(fields) or 'none'}"
        )
    label = settings.label or next((n for n in ("label", "class", "cls") if n in fields), "label")
    return ImageTask(options, settings, images[0], Labels.of(options.data, label))


class ImageTask(Task):
    """An image classifier, trained on random crops and evaluated on centre crops.

    Args:
        options: how to train.
        settings: what is learned.
        field: the data's field of images.
        labels: the classes.
    """

    name: ClassVar[str] = "image"
    unit: ClassVar[str] = "images"
    metric: ClassVar[str] = "accuracy"
    greater_is_better: ClassVar[bool] = True

    def __init__(
        self, options: Options, settings: ImageSettings, field: str, labels: Labels
    ) -> None:
        super().__init__(options)
        self.settings, self.field, self.labels = settings, field, labels

    def reading(self, data: str, place: Place, *, train: bool = False) -> dict[str, Any]:
        size = self.settings.size
        crop: list[Any] = [fastio.Resize(size * 8 // 7), fastio.CenterCrop(size)]
        if train:
            crop = [fastio.RandomResizedCrop(size), fastio.RandomHorizontalFlip()]
        numbering = self.labels.numbering(data, place.device)
        transforms: dict[str, Any] = {self.field: [*crop, fastio.Normalize(MEAN, STD)]}
        if numbering is not None:
            transforms[self.labels.field] = fastio.OnBatch(numbering)
        return {
            "fields": [self.field, self.labels.field],
            "transforms": transforms,
            "channels_last": self.options.channels_last,
        }

    def model(self) -> nn.Module:
        name, classes = self.settings.model, len(self.labels.words)
        if name not in IMAGE_MODELS:
            return _torchvision_model(name, classes)
        try:
            return IMAGE_MODELS[name](classes, self.settings.size)
        except ValueError as error:
            raise fastio.TrainError(f"size={self.settings.size}: {error}") from error

    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        images, labels = self._pair(batch)
        smoothing = self.options.label_smoothing if model.training else 0.0
        return classified(model(images), labels, valid, smoothing)

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        return accuracy(sums)

    def identity(self) -> dict[str, Any]:
        return {**asdict(self.settings), "classes": len(self.labels.words)}

    def _pair(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Returns images float32 (N, 3, H, W) and class numbers int64 (N,)."""
        if isinstance(batch, dict):
            images, labels = batch[self.field], batch[self.labels.field]
        else:
            images, labels = batch
        return images, labels.long()


def _torchvision_model(name: str, classes: int) -> nn.Module:
    """Returns a model of torchvision with initial weights.

    Raises:
        TrainError: torchvision is not there, or has no such model.
    """
    known = ", ".join(IMAGE_MODELS)
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        raise fastio.TrainError(
            f"model={name} is not one of {known}, and torchvision, which may have it, cannot "
            f"be imported: {error}"
        ) from error
    # Those of the package itself classify images; its subpackages have other kinds.
    if name not in models.list_models(module=models):
        raise fastio.TrainError(
            f"model={name} is neither one of {known} nor a torchvision model; torchvision has "
            f"{listed(models.list_models(module=models), name)}"
        )
    # Of two models, which also give the scores of auxiliary classifiers unless told not to.
    more = {"aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **more)
    except (ValueError, TypeError) as error:
        raise fastio.TrainError(
            f"model={name} is not one of {known}, and torchvision could not create it: {error}"
        ) from error
    return model
