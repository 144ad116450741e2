"""Lists of transforms, taken apart in what the engine, the device and the batch do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.errors import TransformError
from fastio.order.order import WORD
from fastio.transforms.batches import BATCH_TRANSFORMS, mixing_of
from fastio.transforms.per_sample import PerSample, Pipeline
from fastio.transforms.pixel_checks import PixelTransform
from fastio.transforms.pixels import RGB, Grayscale, Pad, RandomErasing
from fastio.transforms.specs import (
    GEOMETRIC,
    POINTWISE,
    CenterCrop,
    Geometric,
    Normalize,
    OnBatch,
    Pointwise,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ToDtype,
    pair,
    spoken,
)
from fastio.transforms.torchvision import flat, from_torchvision, is_torchvision, sample_form

NATIVE = (*GEOMETRIC, PixelTransform)
"""The types of the transforms that the engine's threads run while they decode."""

STEPS = 256
"""The most native steps of a list: so many numbers key the draws of each stream."""


@dataclass(frozen=True)
class Compiled:
    """A list of transforms, divided into the parts that the engine, the device and the batch run.

    Attributes:
        steps: crops, resizes, flips and operations on pixels, for the engine's threads.
        tail: ToDtype and Normalize.
        erasing: RandomErasing steps after the tail, their values in units of its result.
        batch: what `OnBatch` holds: callables that take and return a batch of the field.
        per_sample: Python functions that run once per sample after the geometric steps, with the
            ToDtype and Normalize steps that come before one of them.
        stream: number of its random draws, below 65,536. Lists with equal numbers draw alike.
    """

    steps: tuple[Geometric | PixelTransform, ...] = ()
    tail: tuple[Pointwise, ...] = ()
    erasing: tuple[RandomErasing, ...] = ()
    batch: tuple[Callable[[Any], Any], ...] = ()
    per_sample: tuple[PerSample | Pointwise, ...] = ()
    stream: int = 0

    @property
    def size(self) -> tuple[int, int] | None:
        """The (height, width) of every image; None if it depends on the image."""
        size: tuple[int, int] | None = None
        for step in self.steps:
            if isinstance(step, Resize) and step.one_number():
                size = None
            elif isinstance(step, (RandomResizedCrop, Resize, CenterCrop, RandomCrop)):
                size = pair(step.size, type(step).__name__)
            elif isinstance(step, Pad) and size is not None:
                left, top, right, bottom = step.sides()
                size = size[0] + top + bottom, size[1] + left + right
        return size

    def channels(self, of_image: int) -> int:
        """Returns the number of channels of the result for images with `of_image` channels."""
        for step in reversed(self.steps):
            if isinstance(step, Grayscale):
                return step.num_output_channels
            if isinstance(step, RGB):
                return 3
        return of_image

    @property
    def random(self) -> bool:
        """Whether random numbers are drawn for each sample, or Python functions may draw some."""
        fixed = (Resize, CenterCrop, Pad, Grayscale, RGB)
        draws = any(not isinstance(step, fixed) for step in self.steps)
        return draws or bool(self.erasing or self.per_sample)

    def native(self, of_image: int = 3) -> _native.Chain:
        """Returns the part for the engine, for images with `of_image` channels.

        Gray images are to be decoded to `channels(1)` channels, which are equal.
        """
        chain = _native.Chain()
        # Each stream has numbers of its own for its steps, so that two fields draw independently.
        first, gray = self.stream * STEPS, self.channels(of_image) == 1
        for number, step in enumerate(self.steps):
            chain.count_from(first + number)
            if isinstance(step, RGB) or (isinstance(step, Grayscale) and of_image == 1):
                continue
            if isinstance(step, Grayscale) and step.num_output_channels == 1 and gray:
                chain.to_gray()
            elif isinstance(step, PixelTransform):
                chain.augment(step.node())
            else:
                step.add_to(chain)
        chain.count_from(first + len(self.steps))
        for erasing in self.erasing:
            chain.erase_at_end(erasing.node())
        return chain


def compile(transforms: Sequence[Any], field: str | None = None) -> Compiled:
    """Divides a list of transforms; see the module's description.

    torchvision's own objects are accepted where `from_torchvision` knows them. Other callables run
    once per sample, as in a `PerSample`. A ToDtype("uint8") before a crop, resize or flip changes
    nothing and is left out.

    Args:
        transforms: the list.
        field: name of the field, for messages.

    Raises:
        TransformError: a step is no transform, or stands after a later part.
    """
    parts = _Parts(field)
    for place, given in enumerate(transforms):
        known = from_torchvision(given)
        if known is not None and parts.per_sample and any(is_native(step) for step in known):
            known = None  # torchvision's own object gets what the functions before it return
        for step in [given] if known is None else known:
            parts.add(step, transforms[:place])
    return parts.compiled()


def is_native(step: object) -> bool:
    """Returns whether a step is run by the engine's threads while they decode."""
    return isinstance(step, NATIVE)


class _Parts:
    """The parts of a list of transforms while they are collected; see `compile`."""

    def __init__(self, field: str | None) -> None:
        self._field = field
        self._steps: list[Geometric | PixelTransform] = []
        self._tail: list[Pointwise] = []
        self._erasing: list[RandomErasing] = []
        self._batch: list[Callable[[Any], Any]] = []
        self.per_sample: list[PerSample | Pointwise] = []

    def add(self, step: Any, before: Sequence[Any]) -> None:
        """Adds a step to its part; `before` are the steps of the list before it."""
        if isinstance(step, OnBatch):
            self._batch.append(step.function)
        elif self._batch:
            last = OnBatch(self._batch[-1])
            raise TransformError(f"{spoken(step)} comes after {last}: put OnBatch last")
        elif isinstance(step, POINTWISE):
            self._add_pointwise(step)
        elif is_native(step):
            self._add_native(step)
        elif self._erasing:
            raise TransformError(
                f"{spoken(step)} comes after {self._erasing[-1]}: put RandomErasing before ToDtype "
                "and Normalize, or after all functions"
            )
        else:
            self.per_sample += [*self._tail, _per_sample(step, before, self._field)]
            self._tail.clear()

    def _add_native(self, step: Geometric | PixelTransform) -> None:
        if all(isinstance(done, ToDtype) and done.dtype == "uint8" for done in self._tail):
            self._tail.clear()  # images are uint8 up to here: torchvision's recipes say so
        before = [*self.per_sample, *self._tail]
        if not before:
            self._steps.append(step)
        elif isinstance(step, RandomErasing) and not self.per_sample:
            self._erasing.append(step)
        else:
            raise TransformError(
                f"{step} comes after {before[-1]}: put crops, resizes, flips and operations on "
                "pixels first"
            )

    def _add_pointwise(self, step: Pointwise) -> None:
        self._tail.append(step)
        # Erasing comes last, also after this step, but its value is given in the units before the
        # step.
        if isinstance(step, Normalize):
            self._erasing = [erasing.normalized(step.mean, step.std) for erasing in self._erasing]

    def compiled(self) -> Compiled:
        """Returns all parts, checked against each other."""
        steps, tail = tuple(self._steps), tuple(self._tail)
        erasing, batch = tuple(self._erasing), tuple(self._batch)
        found = Compiled(steps, tail, erasing, batch, tuple(self.per_sample))
        if found.erasing and (found.size is None or affine(tail, 3) is None):
            raise TransformError(
                f"{found.erasing[0]} comes after {tail[-1]}: this needs images of one size, and "
                "float32 values. Put it before ToDtype and Normalize"
            )
        if len(steps) + len(erasing) > STEPS:
            raise TransformError(f"{len(steps)} transforms in one list: at most {STEPS}")
        for step in found.steps:
            if isinstance(step, RandomErasing) and step.value == "random":
                raise TransformError(f"{step} needs floats: put it after ToDtype or Normalize")
        return found


def on_whole_batch(
    transforms: Sequence[Any], classes: Sequence[str] | None = None
) -> tuple[Callable[..., Any], ...]:
    """Returns the callables under the key None, which receive the whole batch.

    Args:
        transforms: callables; `OnBatch` is allowed.
        classes: names of the classes of the dataset, which `Mixup` and `CutMix` count; None if it
            has no names.

    Raises:
        TransformError: one cannot be called, or is a transform of a single field.
    """
    found: list[Callable[..., Any]] = []
    for given in transforms:
        step = mixing_of(given) or given
        if isinstance(step, BATCH_TRANSFORMS):
            found.append(step if classes is None else step.of_classes(len(classes)))
            continue
        if (
            isinstance(step, (*GEOMETRIC, *POINTWISE, PixelTransform))
            or from_torchvision(step) is not None
        ):
            raise TransformError(
                f"transforms={{None: ...}} takes callables on the whole batch, but {spoken(step)} "
                "applies to one field: use transforms={field: ...}"
            )
        found.append(_called(step.function if isinstance(step, OnBatch) else step, ""))
    return tuple(found)


def _per_sample(step: object, before: Sequence[Any], field: str | None) -> PerSample:
    """Returns a step that is no specification as one that runs once per sample.

    A transform of torchvision gets the type of image that the steps before it would give it.

    Raises:
        TransformError: the step cannot be called.
    """
    if isinstance(step, PerSample):
        return step
    if mixing_of(step) is not None:
        raise TransformError(
            f"{spoken(step)} mixes whole batches, labels too: write transforms={{None: "
            f"{spoken(step)}, ...}}"
        )
    function = _called(step, "" if field is None else f" (of field {field!r})")
    form = sample_form(Pipeline(tuple(before))) if is_torchvision(step) else None
    return PerSample(function, sample=form)


def _called(step: object, where: str) -> Callable[..., Any]:
    """Returns a step; raises TransformError if it is a transform's class, or cannot be called."""
    if isinstance(step, type) and _makes_transforms(step):
        name = step.__name__
        raise TransformError(f"{name}{where} is a class: give an object, as in {name}(...)")
    if not callable(step):
        raise TransformError(f"{step!r}{where} is neither a transform nor callable")
    return step


def _makes_transforms(given: type) -> bool:
    """Returns whether objects of a class are transforms; others, as float, may be functions."""
    ours = (*NATIVE, *POINTWISE, *BATCH_TRANSFORMS, OnBatch, PerSample)
    called = any("__call__" in vars(base) for base in given.__mro__ if base is not type)
    return called or issubclass(given, ours)


def from_pipeline(transform: Any) -> list[Any]:
    """Returns the transform of a torchvision dataset as a list of fastio's.

    The steps before the first one that fastio cannot run natively are specifications. This step and
    all that follow it run once per sample, in Python, as the dataset would run them.
    """
    steps = list(flat(transform))
    converted = [_of_pipeline(step, steps[:place]) for place, step in enumerate(steps)]
    known = [each for found in converted for each in found or []]
    if None not in converted and _compiles(known):
        return known
    # As many steps as possible run natively. All steps after the first one that cannot must get its
    # result.
    known, begin = [], 0
    while begin < len(steps):
        found = converted[begin]
        if found in ([ToDtype("uint8")], [ToDtype("uint8", scale=True)]):
            found = []  # images are uint8 up to here
        if found is None or any(isinstance(each, POINTWISE) for each in found):
            break
        if not _compiles([*known, *found]):
            break
        known += found
        begin += 1
    form = sample_form(Pipeline(tuple(steps[:begin])))
    return [*known, PerSample(Pipeline(tuple(steps[begin:])), sample=form)]


def _of_pipeline(step: Any, before: Sequence[Any]) -> list[Any] | None:
    """Returns a step of a torchvision pipeline as a list of fastio's; None if it is unknown."""
    found = from_torchvision(step)
    if found is None or sample_form(Pipeline(tuple(before))) != "pillow":
        return found
    # torchvision ignores antialias=False for PIL images.
    return [
        replace(each, antialias=True) if isinstance(each, (RandomResizedCrop, Resize)) else each
        for each in found
    ]


def _compiles(steps: Sequence[Any]) -> bool:
    try:
        compile(steps)
    except TransformError:
        return False
    return True


def affine(tail: Sequence[Pointwise], channels: int) -> tuple[list[float], list[float]] | None:
    """Returns `tail` as float32 x * scale + bias on uint8 pixels, with one (scale, bias) per
    channel.

    None where it is more than that, or less (empty).

    Raises:
        TransformError: Normalize has another number of channels.
    """
    if not tail:
        return None
    scale, bias = np.ones(channels), np.zeros(channels)
    is_float = False
    for step in tail:
        if isinstance(step, ToDtype):
            if step.dtype != "float32":
                return None
            if step.scale and not is_float:
                scale, bias = scale / 255.0, bias / 255.0
        else:
            if len(step.mean) not in (1, channels):
                raise TransformError(
                    f"{step} has {len(step.mean)} channels, but the images have {channels}"
                )
            if not is_float:
                scale, bias = scale / 255.0, bias / 255.0
            std = np.asarray(step.std)
            scale, bias = scale / std, (bias - np.asarray(step.mean)) / std
        is_float = True
    return scale.tolist(), bias.tolist()


class Augmentation(NamedTuple):
    """What is done to one image; the first crop is in pixels of the upright source.

    The crop (y, x, height, width) is resampled to (resized_height, resized_width). The window
    (y, x, height, width) of the result is kept, with zeros where it exceeds it. Then it is flipped.
    Then come the operations on pixels, in order, each with its name and its numbers: those of
    torchvision's function of that name (see the documentation of transforms).
    """

    crop: tuple[int, int, int, int]
    resized: tuple[int, int]
    window: tuple[int, int, int, int]
    flip_horizontal: bool
    flip_vertical: bool
    operations: tuple[tuple[str, tuple[float, ...]], ...]
    size: tuple[int, int]


def augmentation(
    compiled: Compiled,
    seed: int,
    epoch: int,
    rows: npt.ArrayLike,
    heights: npt.ArrayLike,
    widths: npt.ArrayLike,
) -> list[Augmentation]:
    """Returns the parameters that the engine draws for rows of an epoch, without decoding.

    Args:
        compiled: the transforms.
        seed, epoch: seed and epoch of the loader.
        rows: int64 (n,), the keys of the draws: global row numbers, or those of `plan.draw_keys`.
        heights, widths: int32 (n,), sizes of the upright images in pixels.
    """
    drawn = compiled.native().draws(
        seed & WORD,
        epoch,
        np.ascontiguousarray(rows, np.int64),
        np.ascontiguousarray(heights, np.int32),
        np.ascontiguousarray(widths, np.int32),
    )
    return [
        Augmentation(
            (v[0], v[1], v[2], v[3]),
            (v[4], v[5]),
            (v[6], v[7], v[8], v[9]),
            bool(v[10]),
            bool(v[11]),
            operations,
            size,
        )
        for size, v, operations in drawn
    ]
