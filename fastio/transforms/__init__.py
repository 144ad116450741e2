"""Image transforms as frozen specifications, with torchvision's names, parameters and meaning.

A list of them runs in parts. The geometric ones (crops, resizes, flips) become one
`fastio._native.Geometry`, which the engine's threads apply while they decode: only the pixels that
are wanted are computed. `Normalize` and `ToDtype` come next and change values, not places.
Callables in `OnBatch` come last and run once a batch::

    transforms = [RandomResizedCrop(224), RandomHorizontalFlip(), Normalize(mean, std), OnBatch(f)]

Any other callable runs once per sample, in Python, as `PerSample(f)` does: between the geometric
ones and those that change values.

The random draws of the geometric part are a function of (seed, epoch, row, occurrence of the
row, place in the list), so they can be asked for afterwards: see `augmentation`.
"""

from __future__ import annotations

from fastio.transforms.audio import AudioDecode, BytesFile
from fastio.transforms.compiled import (
    Augmentation,
    Compiled,
    affine,
    augmentation,
    compile,
    from_pipeline,
    on_whole_batch,
)
from fastio.transforms.per_sample import PerSample, Pipeline
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

__all__ = [
    "GEOMETRIC",
    "AudioDecode",
    "Augmentation",
    "BytesFile",
    "CenterCrop",
    "Compiled",
    "Geometric",
    "Normalize",
    "OnBatch",
    "PerSample",
    "Pipeline",
    "Pointwise",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "affine",
    "augmentation",
    "compile",
    "from_pipeline",
    "from_torchvision",
    "on_whole_batch",
    "sample_form",
    "spoken",
]
