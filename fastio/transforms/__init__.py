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

- `specs`: crops, resizes, flips, Normalize, ToDtype, OnBatch
- `pixels`, `pixel_checks`: operations on pixels, and the checks of their parameters
- `drawn`, `policies`: policies and lists from which operations are drawn, and their tables
- `per_sample`, `batches`, `views`: Python functions, Mixup and CutMix, several outputs of an image
- `audio`: decoding of sound; `torchvision`: torchvision's transforms as fastio's
- `compiled`: divides a list among the engine, the workers and the device
"""

from __future__ import annotations

# isort: off
from fastio.transforms.audio import AudioDecode as AudioDecode, BytesFile as BytesFile
from fastio.transforms.batches import (
    BATCH_TRANSFORMS as BATCH_TRANSFORMS,
    CutMix as CutMix,
    Mixed as Mixed,
    Mixup as Mixup,
    StepDraw as StepDraw,
)
from fastio.transforms.compiled import (
    NATIVE as NATIVE,
    STEPS as STEPS,
    Augmentation as Augmentation,
    Compiled as Compiled,
    affine as affine,
    augmentation as augmentation,
    compile as compile,
    from_pipeline as from_pipeline,
    on_whole_batch as on_whole_batch,
)
from fastio.transforms.drawn import (
    AugMix as AugMix,
    AutoAugment as AutoAugment,
    Compose as Compose,
    RandAugment as RandAugment,
    RandomApply as RandomApply,
    RandomChoice as RandomChoice,
    RandomOrder as RandomOrder,
    TrivialAugmentWide as TrivialAugmentWide,
)
from fastio.transforms.per_sample import (
    PerSample as PerSample,
    Pipeline as Pipeline,
    SampleType as SampleType,
    Workers as Workers,
)
from fastio.transforms.pixels import (
    RGB as RGB,
    ColorJitter as ColorJitter,
    GaussianBlur as GaussianBlur,
    Grayscale as Grayscale,
    Pad as Pad,
    RandomAdjustSharpness as RandomAdjustSharpness,
    RandomAffine as RandomAffine,
    RandomAutocontrast as RandomAutocontrast,
    RandomEqualize as RandomEqualize,
    RandomErasing as RandomErasing,
    RandomGrayscale as RandomGrayscale,
    RandomInvert as RandomInvert,
    RandomPerspective as RandomPerspective,
    RandomPosterize as RandomPosterize,
    RandomRotation as RandomRotation,
    RandomSolarize as RandomSolarize,
)
from fastio.transforms.specs import (
    GEOMETRIC as GEOMETRIC,
    CenterCrop as CenterCrop,
    Geometric as Geometric,
    Normalize as Normalize,
    OnBatch as OnBatch,
    Pointwise as Pointwise,
    RandomCrop as RandomCrop,
    RandomHorizontalFlip as RandomHorizontalFlip,
    RandomResizedCrop as RandomResizedCrop,
    RandomVerticalFlip as RandomVerticalFlip,
    Resize as Resize,
    ToDtype as ToDtype,
    spoken as spoken,
)
from fastio.transforms.torchvision import (
    from_torchvision as from_torchvision,
    sample_form as sample_form,
)
from fastio.transforms.views import (
    MOST_VIEWS as MOST_VIEWS,
    OnViews as OnViews,
    SameDraws as SameDraws,
    ViewList as ViewList,
    Views as Views,
)
