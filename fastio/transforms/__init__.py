"""Image transforms as frozen specifications, with torchvision's names, parameters and meaning.

A list of them runs in parts. The geometric ones (crops, resizes, flips) and the operations on
pixels (colours, blur, policies such as RandAugment) become one `fastio._native.Chain`, which the
engine's threads apply while they decode: the first crop decodes only the pixels that are wanted.
`Normalize` and `ToDtype` come next and change values, not places; `RandomErasing` may follow them.
Callables in `OnBatch` come last and run once a batch::

    transforms = [RandomResizedCrop(224), ColorJitter(0.4), Normalize(mean, std), OnBatch(f)]

Any other callable runs once per sample, in Python, as `PerSample(f)` does: between the geometric
ones and those that change values.

The random draws of the native part are a function of (seed, epoch, row, occurrence of the row,
place in the list), so they can be asked for afterwards: see `augmentation`.
"""

from __future__ import annotations

from fastio.transforms.audio import AudioDecode, BytesFile
from fastio.transforms.batches import BATCH_TRANSFORMS, CutMix, Mixed, Mixup, StepDraw
from fastio.transforms.compiled import (
    NATIVE,
    STEPS,
    Augmentation,
    Compiled,
    affine,
    augmentation,
    compile,
    from_pipeline,
    on_whole_batch,
)
from fastio.transforms.drawn import (
    AugMix,
    AutoAugment,
    Compose,
    RandAugment,
    RandomApply,
    RandomChoice,
    RandomOrder,
    TrivialAugmentWide,
)
from fastio.transforms.per_sample import PerSample, Pipeline, SampleType, Workers
from fastio.transforms.pixels import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    Pad,
    RandomAdjustSharpness,
    RandomAffine,
    RandomAutocontrast,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPerspective,
    RandomPosterize,
    RandomRotation,
    RandomSolarize,
)
from fastio.transforms.specs import (
    GEOMETRIC,
    CenterCrop,
    Geometric,
    Normalize,
    OnBatch,
    Pointwise,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    spoken,
)
from fastio.transforms.torchvision import from_torchvision, sample_form
from fastio.transforms.views import MOST_VIEWS, OnViews, SameDraws, ViewList, Views

__all__ = [
    "BATCH_TRANSFORMS",
    "GEOMETRIC",
    "MOST_VIEWS",
    "NATIVE",
    "STEPS",
    "AudioDecode",
    "AugMix",
    "Augmentation",
    "AutoAugment",
    "BytesFile",
    "CenterCrop",
    "ColorJitter",
    "Compiled",
    "Compose",
    "CutMix",
    "GaussianBlur",
    "Geometric",
    "Grayscale",
    "Mixed",
    "Mixup",
    "Normalize",
    "OnBatch",
    "OnViews",
    "Pad",
    "PerSample",
    "Pipeline",
    "Pointwise",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "SameDraws",
    "SampleType",
    "StepDraw",
    "ToDtype",
    "TrivialAugmentWide",
    "ViewList",
    "Views",
    "Workers",
    "affine",
    "augmentation",
    "compile",
    "from_pipeline",
    "from_torchvision",
    "on_whole_batch",
    "sample_form",
    "spoken",
]
