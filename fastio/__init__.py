"""fastio is a high-throughput data loader for PyTorch.

`pack` converts a folder of images, or any iterable of samples, into a sharded dataset. `Loader`
replaces torch's DataLoader for packed datasets, image folders, WebDataset tars, table files and
torch datasets.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from fastio.runtime.build import _native as _native  # first: it says what is missing

if _TYPE_CHECKING:
    # isort: off
    from fastio.cache import (
        Cache as Cache,
    )
    from fastio.errors import (
        AudioError as AudioError,
        BenchError as BenchError,
        BuildMissing as BuildMissing,
        CacheError as CacheError,
        CheckpointError as CheckpointError,
        DatasetClosed as DatasetClosed,
        DatasetExists as DatasetExists,
        DatasetNotFound as DatasetNotFound,
        FastioError as FastioError,
        FormatUnsupported as FormatUnsupported,
        ImageError as ImageError,
        LoaderClosed as LoaderClosed,
        LoaderTimeout as LoaderTimeout,
        ManifestInvalid as ManifestInvalid,
        MeasuredInvalid as MeasuredInvalid,
        OptionError as OptionError,
        PackConflict as PackConflict,
        PackageMissing as PackageMissing,
        PackError as PackError,
        PerformanceWarning as PerformanceWarning,
        PerSampleError as PerSampleError,
        SampleError as SampleError,
        SchemaError as SchemaError,
        ShardCorrupt as ShardCorrupt,
        ShardingWarning as ShardingWarning,
        SourceChanged as SourceChanged,
        SourceNotFound as SourceNotFound,
        StateMismatch as StateMismatch,
        StoreError as StoreError,
        TrainError as TrainError,
        TransformError as TransformError,
        WorkerDied as WorkerDied,
    )
    from fastio.loader import (
        Loader as Loader,
    )
    from fastio.pack import (
        ExportReport as ExportReport,
        GcReport as GcReport,
        PackReport as PackReport,
        Writer as Writer,
        export as export,
        gc as gc,
        pack as pack,
    )
    from fastio.packed import (
        Dataset as Dataset,
    )
    from fastio.schema import (
        Array as Array,
        Bytes as Bytes,
        Image as Image,
        Images as Images,
        Scalar as Scalar,
        Schema as Schema,
        Text as Text,
        Tokens as Tokens,
    )
    from fastio.sources import (
        ArrayDataset as ArrayDataset,
        AudioFolder as AudioFolder,
        FolderDataset as FolderDataset,
        TarDataset as TarDataset,
        open as open,
    )
    from fastio.stage import (
        WarmReport as WarmReport,
        warm as warm,
    )
    from fastio.stats import (
        Stats as Stats,
    )
    from fastio.transforms import (
        AudioDecode as AudioDecode,
        Augmentation as Augmentation,
        AugMix as AugMix,
        AutoAugment as AutoAugment,
        CenterCrop as CenterCrop,
        ColorJitter as ColorJitter,
        Compose as Compose,
        CutMix as CutMix,
        GaussianBlur as GaussianBlur,
        Grayscale as Grayscale,
        Mixup as Mixup,
        Normalize as Normalize,
        OnBatch as OnBatch,
        Pad as Pad,
        PerSample as PerSample,
        RandAugment as RandAugment,
        RandomAdjustSharpness as RandomAdjustSharpness,
        RandomAffine as RandomAffine,
        RandomApply as RandomApply,
        RandomAutocontrast as RandomAutocontrast,
        RandomChoice as RandomChoice,
        RandomCrop as RandomCrop,
        RandomEqualize as RandomEqualize,
        RandomErasing as RandomErasing,
        RandomGrayscale as RandomGrayscale,
        RandomHorizontalFlip as RandomHorizontalFlip,
        RandomInvert as RandomInvert,
        RandomOrder as RandomOrder,
        RandomPerspective as RandomPerspective,
        RandomPosterize as RandomPosterize,
        RandomResizedCrop as RandomResizedCrop,
        RandomRotation as RandomRotation,
        RandomSolarize as RandomSolarize,
        RandomVerticalFlip as RandomVerticalFlip,
        Resize as Resize,
        SameDraws as SameDraws,
        ToDtype as ToDtype,
        TrivialAugmentWide as TrivialAugmentWide,
        Views as Views,
    )
    from fastio.views.mixing import (
        Mix as Mix,
        mix as mix,
    )
    from fastio.views.padded import (
        TokenPad as TokenPad,
    )
    from fastio.views.windows import (
        TokenWindows as TokenWindows,
    )

    # isort: on
    __version__: str

# Where each public name is defined. A module is imported when one of its names is first used, since
# torch takes a second to import, and NumPy, pyarrow and Pillow together half of one.
_NAMES = {
    "fastio.cache": ("Cache",),
    "fastio.errors": (
        "AudioError",
        "BenchError",
        "BuildMissing",
        "CacheError",
        "CheckpointError",
        "DatasetClosed",
        "DatasetExists",
        "DatasetNotFound",
        "FastioError",
        "FormatUnsupported",
        "ImageError",
        "LoaderClosed",
        "LoaderTimeout",
        "ManifestInvalid",
        "MeasuredInvalid",
        "OptionError",
        "PackConflict",
        "PackError",
        "PackageMissing",
        "PerSampleError",
        "PerformanceWarning",
        "SampleError",
        "SchemaError",
        "ShardCorrupt",
        "ShardingWarning",
        "SourceChanged",
        "SourceNotFound",
        "StateMismatch",
        "StoreError",
        "TrainError",
        "TransformError",
        "WorkerDied",
    ),
    "fastio.loader": ("Loader",),
    "fastio.pack": (
        "ExportReport",
        "GcReport",
        "PackReport",
        "Writer",
        "export",
        "gc",
        "pack",
    ),
    "fastio.packed": ("Dataset",),
    "fastio.schema": (
        "Array",
        "Bytes",
        "Image",
        "Images",
        "Scalar",
        "Schema",
        "Text",
        "Tokens",
    ),
    "fastio.sources": (
        "ArrayDataset",
        "AudioFolder",
        "FolderDataset",
        "TarDataset",
        "open",
    ),
    "fastio.stage": (
        "WarmReport",
        "warm",
    ),
    "fastio.stats": ("Stats",),
    "fastio.transforms": (
        "AudioDecode",
        "AugMix",
        "Augmentation",
        "AutoAugment",
        "CenterCrop",
        "ColorJitter",
        "Compose",
        "CutMix",
        "GaussianBlur",
        "Grayscale",
        "Mixup",
        "Normalize",
        "OnBatch",
        "Pad",
        "PerSample",
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
        "ToDtype",
        "TrivialAugmentWide",
        "Views",
    ),
    "fastio.views.mixing": (
        "Mix",
        "mix",
    ),
    "fastio.views.padded": ("TokenPad",),
    "fastio.views.windows": ("TokenWindows",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


class _Package(_ModuleType):
    """This package. Its attribute `pack` is the function, not the subpackage of that name, which
    the import system would bind here."""

    def __setattr__(self, name: str, value: _Any) -> None:
        if name not in _HOMES or not isinstance(value, _ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self) -> _Any:
        # cloudpickle, with which Ray sends functions, knows modules of the usual class only.
        return _import_module, (self.__name__,)


_sys.modules[__name__].__class__ = _Package

if not _TYPE_CHECKING:  # with it, type checkers would take any name for one of this package's

    def __getattr__(name: str) -> _Any:
        if name == "__version__":
            from importlib.metadata import version

            value = version("fastio")
        elif name in _HOMES:
            value = getattr(_import_module(_HOMES[name]), name)
        elif not name.startswith("_") and _find_spec(f"fastio.{name}"):
            return _import_module(f"fastio.{name}")
        else:
            raise AttributeError(f"module 'fastio' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
