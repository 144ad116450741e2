"""Lists of transforms, taken apart in what the engine, the device and the batch do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastio import _native
from fastio.errors import TransformError
from fastio.transforms.per_sample import PerSample, Pipeline
from fastio.transforms.specs import (
    GEOMETRIC,
    POINTWISE,
    CenterCrop,
    Geometric,
    OnBatch,
    Pointwise,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ToDtype,
    pair,
    spoken,
)
from fastio.transforms.torchvision import flat, from_torchvision, sample_form


@dataclass(frozen=True)
class Compiled:
    """A list of transforms, divided into the parts that the engine, the device and the batch run.

    Attributes:
        geometry: crops, resizes and flips, for the engine's threads.
        tail: ToDtype and Normalize.
        batch: what `OnBatch` holds: callables that take and return a batch of the field.
        per_sample: Python functions that run once per sample after the geometric steps, with the
            ToDtype and Normalize steps that come before one of them.
    """

    geometry: tuple[Geometric, ...] = ()
    tail: tuple[Pointwise, ...] = ()
    batch: tuple[Callable[[Any], Any], ...] = ()
    per_sample: tuple[PerSample | Pointwise, ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        """The (height, width) of every image; None if it depends on the image."""
        size: tuple[int, int] | None = None
        for step in self.geometry:
            if isinstance(step, Resize) and step.one_number():
                size = None
            elif isinstance(step, (RandomResizedCrop, Resize, CenterCrop, RandomCrop)):
                size = pair(step.size, type(step).__name__)
        return size

    @property
    def random(self) -> bool:
        """Whether random numbers are drawn for each sample, or Python functions may draw some."""
        draws = any(not isinstance(step, (Resize, CenterCrop)) for step in self.geometry)
        return draws or bool(self.per_sample)

    def native(self) -> _native.Geometry:
        """Returns the geometric part for the engine.

        Raises:
            TransformError: it cannot be done in one resampling.
        """
        geometry = _native.Geometry()
        for step in self.geometry:
            try:
                step.add_to(geometry)
            except ValueError as error:
                raise TransformError(
                    f"{step}: {error}. Use one resizing step, or run the second one in a "
                    "fastio.OnBatch at the end of the list"
                ) from error
        return geometry


def compile(transforms: Sequence[Any], field: str | None = None) -> Compiled:
    """Divides a list of transforms; see the module's description.

    torchvision's own objects are accepted where `from_torchvision` knows them. Other callables run
    once per sample, as in a `PerSample`. A ToDtype("uint8") before a crop, resize or flip changes
    nothing and is left out.

    Args:
        transforms: the list.
        field: that it is for, for messages.

    Raises:
        TransformError: a step is no transform, stands after a later part, or the geometric ones
            cannot be done in one resampling.
    """
    geometry: list[Geometric] = []
    per_sample: list[PerSample | Pointwise] = []
    tail: list[Pointwise] = []
    batch: list[Callable[[Any], Any]] = []
    for place, given in enumerate(transforms):
        known = from_torchvision(given)
        if known is not None and per_sample and any(isinstance(s, GEOMETRIC) for s in known):
            known = None  # torchvision's own object crops what the functions before it return
        for step in [given] if known is None else known:
            if isinstance(step, GEOMETRIC):
                if all(isinstance(done, ToDtype) and done.dtype == "uint8" for done in tail):
                    tail.clear()  # images are uint8 up to here: torchvision's recipes say so
                if tail or batch or per_sample:
                    before = OnBatch(batch[-1]) if batch else [*per_sample, *tail][-1]
                    raise TransformError(
                        f"{step} comes after {before}: put crops, resizes and flips first"
                    )
                geometry.append(step)
            elif isinstance(step, POINTWISE):
                if batch:
                    raise TransformError(
                        f"{step} comes after {OnBatch(batch[-1])}: put OnBatch last"
                    )
                tail.append(step)
            elif isinstance(step, OnBatch):
                batch.append(step.function)
            elif batch:
                raise TransformError(
                    f"{spoken(step)} comes after {OnBatch(batch[-1])}: put OnBatch last"
                )
            else:
                per_sample += [*tail, _per_sample(step, transforms[:place], field)]
                tail.clear()
    compiled = Compiled(tuple(geometry), tuple(tail), tuple(batch), tuple(per_sample))
    compiled.native()  # impossible chains fail here, not in the first batch
    return compiled


def on_whole_batch(transforms: Sequence[Any]) -> tuple[Callable[[Any], Any], ...]:
    """Returns the callables under the key None, which receive the whole batch; `OnBatch` is
    allowed.

    Raises:
        TransformError: one cannot be called, or is a transform of a single field.
    """
    found: list[Callable[[Any], Any]] = []
    for step in transforms:
        if isinstance(step, (*GEOMETRIC, *POINTWISE)) or from_torchvision(step) is not None:
            raise TransformError(
                f"transforms={{None: ...}} takes callables on the whole batch, but {spoken(step)} "
                "applies to one field: use transforms={field: ...}"
            )
        function = step.function if isinstance(step, OnBatch) else step
        if not callable(function):
            raise TransformError(f"{step!r} is neither a transform nor callable")
        found.append(function)
    return tuple(found)


def _per_sample(step: object, before: Sequence[Any], field: str | None) -> PerSample:
    """Returns a step that is no specification as one that runs once per sample.

    A transform of torchvision gets the type of image that the steps before it would give it.

    Raises:
        TransformError: the step cannot be called.
    """
    if isinstance(step, PerSample):
        return step
    if not callable(step):
        where = "" if field is None else f" (of field {field!r})"
        raise TransformError(f"{step!r}{where} is neither a transform nor callable")
    theirs = type(step).__module__.startswith("torchvision.transforms")
    return PerSample(step, sample=sample_form(Pipeline(tuple(before))) if theirs else None)


def from_pipeline(transform: Any) -> list[Any]:
    """Returns the transform of a torchvision dataset as a list of fastio's.

    The steps before the first one that fastio cannot run natively are specifications. This step and
    all that follow it run once per sample, in Python, as the dataset would run them.
    """
    known = from_torchvision(transform)
    if known is not None and _compiles(known):
        return known
    steps, known, begin = list(flat(transform)), [], 0
    while begin < len(steps):
        found = from_torchvision(steps[begin])
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
    """The geometric transform of one image, in pixels of the upright source.

    The crop (y, x, height, width) is resampled to (resized_height, resized_width). The window
    (y, x, height, width) of the result is kept, with zeros where it exceeds it. Then it is flipped.
    """

    crop: tuple[int, int, int, int]
    resized: tuple[int, int]
    window: tuple[int, int, int, int]
    flip_horizontal: bool
    flip_vertical: bool


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
        seed, epoch: of the loader.
        rows: what they are keyed by, int64 (n,): global row numbers, or `plan.draw_keys`.
        heights, widths: of the upright images in pixels, int32 (n,).
    """
    rows = np.ascontiguousarray(rows, np.int64)
    out = np.empty((len(rows), 12), np.int32)
    compiled.native().plans(
        seed & 0xFFFFFFFFFFFFFFFF,
        epoch,
        rows,
        np.ascontiguousarray(heights, np.int32),
        np.ascontiguousarray(widths, np.int32),
        out,
    )
    return [
        Augmentation(
            (v[0], v[1], v[2], v[3]),
            (v[4], v[5]),
            (v[6], v[7], v[8], v[9]),
            bool(v[10]),
            bool(v[11]),
        )
        for v in out.tolist()
    ]
