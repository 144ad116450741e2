"""Where each public name of fastio is defined, for type checkers and for `__init__.py`."""

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

__version__: str
