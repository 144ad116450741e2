"""Transforms that mix the samples of a batch, on the batch's device: Mixup and CutMix.

Their random numbers are a function of (seed, epoch, rank, step of the epoch), so that they are the
same after a resume, and for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fastio.errors import TransformError
from fastio.order.order import WORD
from fastio.transforms.specs import check_probability

_NAMED = (None, "label", "class")  # labels whose classes a dataset names
_USUAL_LABELS = "_find_labels_default_heuristic"  # torchvision's function that finds labels
_LABELS = ("label", "labels", "class", "cls", "target")


class StepDraw(NamedTuple):
    """What the random numbers of a batch depend on."""

    seed: int
    epoch: int
    rank: int
    step: int

    def generator(self) -> np.random.Generator:
        """Returns a new generator of the batch's random numbers."""
        key = np.array([self.seed & WORD, self.rank], np.uint64)
        # The last word is "mix" in ASCII.
        counter = np.array([0, self.step, self.epoch, 0x6D6978], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Mixed(NamedTuple):
    """How the samples of a batch are mixed with those before them.

    Attributes:
        weight: weight of each sample's own label; the rest is that of the sample before it.
        box: (top, left, bottom, right) of the rectangle that is replaced, for CutMix; None for
            Mixup, which adds whole images with these weights.
    """

    weight: float
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class _Mixing:
    """Mixes each sample of a batch with the sample before it; see `Mixup` and `CutMix`."""

    alpha: float = 1.0
    num_classes: int | None = None
    p: float = 1.0
    label_smoothing: float = 0.0
    image: int | str | None = None
    label: int | str | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.alpha, (int, float)) or not 0 < self.alpha < math.inf:
            raise TransformError(f"{name}: alpha must be positive, got {self.alpha!r}")
        if self.num_classes is not None and self.num_classes < 1:
            raise TransformError(f"{name}: num_classes must be >= 1, got {self.num_classes!r}")
        if not 0 <= self.label_smoothing < 1:
            raise TransformError(
                f"{name}: label_smoothing must be in [0, 1), got {self.label_smoothing!r}"
            )
        check_probability(self.p, name)

    def of_classes(self, count: int) -> _Mixing:
        """Returns this transform for labels of a dataset that names its classes."""
        if self.num_classes is not None or self.label not in _NAMED:
            return self
        return replace(self, num_classes=count)

    def drawn(self, draw: StepDraw, height: int, width: int) -> Mixed | None:
        """Returns how a batch of images of height x width is mixed; None if it is not."""
        rng = draw.generator()
        if rng.random() >= self.p:
            return None
        return self._mixed(rng, float(rng.beta(self.alpha, self.alpha)), height, width)

    def _mixed(self, rng: np.random.Generator, weight: float, height: int, width: int) -> Mixed:
        raise NotImplementedError

    def __call__(self, batch: Any, draw: StepDraw) -> Any:
        """Returns the batch with mixed images and soft labels, float32 (N, classes)."""
        image, label = self._keys(batch)
        images, labels = batch[image], self._probabilities(batch[label])
        if len(images) != len(labels):
            raise self._bad(f"{len(images)} images and {len(labels)} labels")
        mixed = self.drawn(draw, *images.shape[-2:])
        if mixed is not None:
            images = self._images(images, mixed)
            labels = labels.roll(1, 0).mul_(1.0 - mixed.weight).add_(labels, alpha=mixed.weight)
        return _with(_with(batch, image, images), label, labels)

    def _images(self, images: Any, mixed: Mixed) -> Any:
        rolled = images.roll(1, 0)
        if mixed.box is not None:
            top, left, bottom, right = mixed.box
            out = images.clone()
            out[..., top:bottom, left:right] = rolled[..., top:bottom, left:right]
            return out
        if not images.is_floating_point():
            raise self._bad("images must be floats: add Normalize, or ToDtype with scale=True")
        return rolled.mul_(1.0 - mixed.weight).add_(images, alpha=mixed.weight)

    def _probabilities(self, labels: Any) -> Any:
        if labels.ndim == 1 and not labels.is_floating_point():
            if self.num_classes is None:
                raise self._bad(
                    "num_classes must be given for labels that are class numbers, of a dataset "
                    "that does not name its classes"
                )
            # Not on a GPU, which would have to be waited for.
            if len(labels) and labels.device.type == "cpu":
                for label in (int(labels.min()), int(labels.max())):
                    if not 0 <= label < self.num_classes:
                        raise self._bad(f"label {label} of {self.num_classes} classes")
            zeros = labels.new_zeros((len(labels), self.num_classes)).float()
            labels = zeros.scatter_(1, labels.long()[:, None], 1.0)
        if labels.ndim != 2:
            raise self._bad(f"labels must be (N,) or (N, classes), got {tuple(labels.shape)}")
        rest = self.label_smoothing / labels.shape[1]
        return labels.float().mul(1.0 - self.label_smoothing).add_(rest)

    def _keys(self, batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, Mapping):
            tensors = [k for k, part in batch.items() if getattr(part, "ndim", 0) == 4]
            images: list[Any] = tensors if self.image is None else [self.image]
            known = [key for key in _LABELS if key in batch][:1]
            labels: list[Any] = known if self.label is None else [self.label]
            if len(images) != 1 or not labels:
                raise self._bad(f"name image= and label=; the batch has {list(batch)}")
            return images[0], labels[0]
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise self._bad("a batch must have images and labels")
        return 0 if self.image is None else self.image, 1 if self.label is None else self.label

    def _bad(self, what: str) -> TransformError:
        return TransformError(f"{type(self).__name__}: {what}")


@dataclass(frozen=True)
class Mixup(_Mixing):
    """Mixes each image of a batch with the one before it, and the labels with the same weights.

    Runs once per batch, on its device, under the key None of the transforms. The weight is drawn
    for the whole batch; see Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018.
    Images must be floats.

    Args:
        alpha: parameter of the Beta distribution of the weight.
        num_classes: number of classes. None takes it from a dataset that names its classes; labels
            that are probabilities (N, classes) do not need it.
        p: probability that a batch is mixed. Labels are made probabilities in any case.
        label_smoothing: part of the labels that is distributed over all classes, in [0, 1).
        image, label: position or key of images and labels in a batch. By default the first and
            second part of a tuple; in a dict the only tensor of four axes, and "label", "labels",
            "class", "cls" or "target".

    Raises:
        TransformError: a parameter is invalid, or a batch does not have such parts.
    """

    def _mixed(self, rng: np.random.Generator, weight: float, height: int, width: int) -> Mixed:
        return Mixed(weight)


@dataclass(frozen=True)
class CutMix(_Mixing):
    """Replaces a rectangle of each image of a batch by that of the image before it.

    Labels are mixed by the areas. Runs once per batch, on its device, under the key None of the
    transforms. The rectangle is drawn for the whole batch; see Yun et al., "CutMix: Regularization
    Strategy to Train Strong Classifiers with Localizable Features", 2019.

    Args:
        alpha, num_classes, p, label_smoothing, image, label: as in `Mixup`.

    Raises:
        TransformError: a parameter is invalid, or a batch does not have such parts.
    """

    def _mixed(self, rng: np.random.Generator, weight: float, height: int, width: int) -> Mixed:
        x, y = int(rng.integers(width)), int(rng.integers(height))
        part = 0.5 * math.sqrt(1.0 - weight)
        across, down = int(part * width), int(part * height)
        left, right = max(x - across, 0), min(x + across, width)
        top, bottom = max(y - down, 0), min(y + down, height)
        rest = 1.0 - (right - left) * (bottom - top) / (width * height)
        return Mixed(rest, (top, left, bottom, right))


@dataclass(frozen=True)
class BatchChoice:
    """Applies one transform of a list to each batch.

    Args:
        transforms: `Mixup` and `CutMix` transforms.
        weights: weights of the transforms; None for equal ones.
    """

    transforms: Sequence[_Mixing]
    weights: Sequence[float] | None = None

    def of_classes(self, count: int) -> BatchChoice:
        """Returns this choice for labels of a dataset that names its classes."""
        return replace(self, transforms=tuple(each.of_classes(count) for each in self.transforms))

    def drawn(self, draw: StepDraw, height: int, width: int) -> Mixed | None:
        """Returns how a batch of images of height x width is mixed; None if it is not."""
        return self._chosen(draw).drawn(draw, height, width)

    def __call__(self, batch: Any, draw: StepDraw) -> Any:
        """Returns the batch with mixed images and soft labels, float32 (N, classes)."""
        return self._chosen(draw)(batch, draw)

    def _chosen(self, draw: StepDraw) -> _Mixing:
        weights = np.ones(len(self.transforms)) if self.weights is None else np.array(self.weights)
        # From the end of what the batch may draw: the transform that is chosen begins as alone.
        rng = StepDraw(draw.seed ^ 0x5DEECE66D, *draw[1:]).generator()
        return self.transforms[int(rng.choice(len(self.transforms), p=weights / weights.sum()))]


BATCH_TRANSFORMS = (_Mixing, BatchChoice)


def mixing_of(step: Any) -> Any:
    """Returns a transform as one of this module's if it mixes batches, else None.

    torchvision's `MixUp` and `CutMix` are recognised by module and class, and a choice of them,
    unless a `labels_getter` was given.
    """
    if isinstance(step, BATCH_TRANSFORMS):
        return step
    kind = type(step)
    if kind.__name__ == "RandomChoice":
        inside = [mixing_of(each) for each in step.transforms]
        if inside and all(isinstance(each, _Mixing) for each in inside):
            weights = getattr(step, "probabilities", getattr(step, "p", None))
            return BatchChoice(tuple(inside), None if weights is None else tuple(weights))
    target = {"MixUp": Mixup, "CutMix": CutMix}.get(kind.__name__)
    if target is None or not kind.__module__.startswith("torchvision.transforms"):
        return None
    getter = getattr(step, "_labels_getter", None)
    if getattr(getter, "__name__", _USUAL_LABELS) != _USUAL_LABELS:
        return None  # the user's own function finds the labels
    return target(float(step.alpha), step.num_classes)


def _with(batch: Any, key: Any, part: Any) -> Any:
    """Returns a batch with another part."""
    if isinstance(batch, Mapping):
        return {**batch, key: part}
    parts = [part if place == key else each for place, each in enumerate(batch)]
    if hasattr(batch, "_fields"):
        return type(batch)(*parts)
    return tuple(parts) if isinstance(batch, tuple) else parts
