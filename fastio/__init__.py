"""fastio is a high-throughput data loader for PyTorch.

`pack` converts a folder of images, or any iterable of samples, into a sharded dataset. `Loader`
replaces torch's DataLoader for packed datasets, image folders, WebDataset tars, table files and
torch datasets.
"""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from fastio.runtime.build import _native as _native  # first: it says what is missing

# isort: split
from fastio.cache import Cache
from fastio.errors import (
    AudioError,
    BenchError,
    BuildMissing,
    CacheError,
    CheckpointError,
    DatasetExists,
    DatasetNotFound,
    FastioError,
    FormatVersionUnsupported,
    ImageError,
    LoaderClosed,
    LoaderTimeout,
    ManifestInvalid,
    MeasuredInvalid,
    OptionError,
    PackError,
    PerformanceWarning,
    PerSampleError,
    SampleError,
    SchemaError,
    ShardCorrupt,
    ShardingWarning,
    SourceChanged,
    SourceNotFound,
    StateMismatch,
    StoreError,
    TrainError,
    TransformError,
    WorkerDied,
)
from fastio.pack import ExportReport, PackReport, Writer, export, pack
from fastio.packed import Dataset
from fastio.schema import Array, Bytes, Image, Scalar, Schema, Text, Tokens
from fastio.sources import (
    ArrayDataset,
    AudioFolder,
    FolderDataset,
    TarDataset,
    open,
)
from fastio.stage import WarmReport, warm
from fastio.stats import Stats
from fastio.transforms import (
    AudioDecode,
    Augmentation,
    AugMix,
    AutoAugment,
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    GaussianBlur,
    Grayscale,
    Mixup,
    Normalize,
    OnBatch,
    Pad,
    PerSample,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomCrop,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    Resize,
    SameDraws,
    ToDtype,
    TrivialAugmentWide,
    Views,
)
from fastio.views.mixing import Mix, mix
from fastio.views.padded import TokenPad
from fastio.views.windows import TokenWindows

if _TYPE_CHECKING:
    from fastio.loader import Loader as Loader

__version__ = _version("fastio")

__all__ = [
    "Array",
    "ArrayDataset",
    "AudioDecode",
    "AudioError",
    "AudioFolder",
    "AugMix",
    "Augmentation",
    "AutoAugment",
    "BenchError",
    "BuildMissing",
    "Bytes",
    "Cache",
    "CacheError",
    "CenterCrop",
    "CheckpointError",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Dataset",
    "DatasetExists",
    "DatasetNotFound",
    "ExportReport",
    "FastioError",
    "FolderDataset",
    "FormatVersionUnsupported",
    "GaussianBlur",
    "Grayscale",
    "Image",
    "ImageError",
    "Loader",
    "LoaderClosed",
    "LoaderTimeout",
    "ManifestInvalid",
    "MeasuredInvalid",
    "Mix",
    "Mixup",
    "Normalize",
    "OnBatch",
    "OptionError",
    "PackError",
    "PackReport",
    "Pad",
    "PerSample",
    "PerSampleError",
    "PerformanceWarning",
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
    "SampleError",
    "Scalar",
    "Schema",
    "SchemaError",
    "ShardCorrupt",
    "ShardingWarning",
    "SourceChanged",
    "SourceNotFound",
    "StateMismatch",
    "Stats",
    "StoreError",
    "TarDataset",
    "Text",
    "ToDtype",
    "TokenPad",
    "TokenWindows",
    "Tokens",
    "TrainError",
    "TransformError",
    "TrivialAugmentWide",
    "Views",
    "WarmReport",
    "WorkerDied",
    "Writer",
    "export",
    "mix",
    "open",
    "pack",
    "warm",
]


def __getattr__(name: str) -> _Any:
    # Loader is a DataLoader, and torch takes a second to import.
    if name != "Loader":
        raise AttributeError(f"module 'fastio' has no attribute {name!r}")
    from fastio.loader import Loader

    globals()[name] = Loader
    return Loader
