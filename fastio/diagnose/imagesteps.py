"""The transforms of each image: those of the user's own script, or a random crop and a flip.

`ImageSteps` has the transforms in two forms. One is a sequence of Python functions, which run one
after the other on a PIL image as in the workers of torch's DataLoader. The other is the list that a
Loader takes.
"""

from __future__ import annotations

import importlib
import inspect
import io
import math
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from PIL import Image

from fastio.diagnose.facts import StepKind
from fastio.errors import OptionError
from fastio.runtime.signatures import parameters
from fastio.train.kinds import MEAN, STD
from fastio.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop
from fastio.transforms.compiled import NATIVE, from_pipeline
from fastio.transforms.per_sample import PerSample
from fastio.transforms.pixel_checks import PixelTransform
from fastio.transforms.specs import GEOMETRIC, POINTWISE, OnBatch
from fastio.transforms.torchvision import flat, from_torchvision


@dataclass(frozen=True)
class PythonStep:
    """A transform as a function of an image.

    Attributes:
        name: a short name of the transform.
        kind: what it does.
        function: takes and returns an image: a PIL image, or what the step before it returned.
    """

    name: str
    kind: StepKind
    function: Callable[[Any], Any]


@dataclass(frozen=True)
class ImageSteps:
    """The transforms of each image.

    Attributes:
        python: the transforms in Python; () if they are fastio's own, which only a Loader runs.
        native: the list that a Loader takes.
        by_user: whether they are the user's own.
    """

    python: tuple[PythonStep, ...]
    native: tuple[Any, ...]
    by_user: bool = False

    @classmethod
    def of(cls, pipeline: str | None, size: int, normalized: bool = False) -> ImageSteps:
        """Returns the transforms of a user's script as `named` does; without one, the `usual`."""
        return cls.usual(size, normalized) if pipeline is None else cls.named(pipeline, normalized)

    @classmethod
    def usual(cls, size: int, normalized: bool = False) -> ImageSteps:
        """Returns a random crop and flip, as in ImageNet training.

        Args:
            size: height and width of the crops, in pixels.
            normalized: whether a Loader delivers normalised float32 images instead of uint8.
        """
        python = (
            PythonStep("RandomResizedCrop", "crop", partial(random_crop, size=size)),
            PythonStep("RandomHorizontalFlip", "crop", random_flip),
        )
        last = [Normalize(MEAN, STD)] if normalized else []
        return cls(python, (RandomResizedCrop(size), RandomHorizontalFlip(), *last))

    @classmethod
    def named(cls, name: str, normalized: bool = False) -> ImageSteps:
        """Returns the transforms of a user's script.

        Args:
            name: "module:name" of a torchvision transform, a list of transforms, an ImageFolder or
                DataLoader that has one, or a function without arguments that returns any of these.
            normalized: whether to add ImageNet's normalisation at the end if the transforms have
                none.

        Raises:
            OptionError: the name cannot be imported, or names something else.
        """
        found = _transform_of(load_named(name), name)
        listed = isinstance(found, (list, tuple))
        steps = [step for each in (found if listed else [found]) for step in flat(each)]
        own = any(isinstance(step, (*NATIVE, *POINTWISE, PerSample, OnBatch)) for step in steps)
        native = list(steps) if listed or own else from_pipeline(found)
        if normalized and not any(_has_values(step) for step in native):
            native.append(Normalize(MEAN, STD))
        python = [] if own else [PythonStep(spelled(step), _kind(step), step) for step in steps]
        return cls(tuple(python), tuple(native), by_user=True)


def _has_values(step: Any) -> bool:
    """Returns whether a step converts pixels to floats, or, being Python, may do so."""
    known = from_torchvision(step) or [step]
    return any(isinstance(each, (*POINTWISE, PerSample)) for each in known)


def _transform_of(found: Any, name: str) -> Any:
    """Returns the transforms of an object that was imported by its name; see `ImageSteps.named`."""
    if inspect.isfunction(found) and not parameters(found):
        found = found()
    # The `dataset` of a DataLoader or a Subset has the transform.
    while not callable(found) and hasattr(found, "dataset"):
        found = found.dataset
    if not callable(found):
        found = getattr(found, "transform", found)
    if not callable(found) and not (isinstance(found, (list, tuple)) and found):
        raise OptionError(
            f"{name} is {found!r}: expected a torchvision transform, a list of transforms, or a "
            "dataset or DataLoader that has one"
        )
    return found


def spelled(step: Any) -> str:
    """Returns a short name of a transform: "RandAugment", "RandomApply(ColorJitter)"."""
    name: str = getattr(step, "__name__", type(step).__name__)
    inner: Any = getattr(step, "transforms", None)
    return f"{name}({', '.join(map(spelled, inner))})" if hasattr(inner, "__iter__") else name


def _kind(step: Any) -> StepKind:
    known = from_torchvision(step)
    if known is None:
        return "python"
    if any(isinstance(each, PixelTransform) for each in known):
        return "augment"
    return "crop" if any(isinstance(each, GEOMETRIC) for each in known) else "convert"


def load_named(name: str) -> Any:
    """Returns the object that "module:name" names. The module may be in the working directory.

    Raises:
        OptionError: it cannot be imported.
    """
    # `python -m` puts the working directory first in sys.path. The command `fastio` has the folder
    # of its script there instead.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module, _, attribute = name.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(f"{name} cannot be imported as MODULE:NAME: {error}") from error


# --- A crop and a flip as torchvision draws them, on PIL images -----------------------------------


def decoded(data: bytes) -> Image.Image:
    """Returns an RGB image of an image file, as torchvision's ImageFolder does."""
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def random_crop(image: Image.Image, size: int) -> Image.Image:
    """Applies RandomResizedCrop(size)."""
    image = image.crop(random_box(image.width, image.height))
    return image.resize((size, size), Image.Resampling.BILINEAR)


def random_flip(image: Image.Image) -> Image.Image:
    """Applies RandomHorizontalFlip()."""
    if random.random() < 0.5:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Returns (left, top, right, bottom) of a random crop."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            return x, y, x + w, y + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    x, y = (width - w) // 2, (height - h) // 2
    return x, y, x + w, y + h


def middle(image: Image.Image, size: int) -> Image.Image:
    """Applies Resize(evaluation_edge(size)) and CenterCrop(size)."""
    edge, shorter = evaluation_edge(size), min(image.width, image.height)
    width, height = edge * image.width // shorter, edge * image.height // shorter
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    x, y = round((width - size) / 2), round((height - size) / 2)
    return image.crop((x, y, x + size, y + size))


def evaluation_edge(size: int) -> int:
    """Returns the shorter edge before the centre crop: 256 for 224, and in proportion."""
    return size * 8 // 7
