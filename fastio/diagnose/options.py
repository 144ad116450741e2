"""The options of doctor and bench, and accelerators as MLPerf Storage emulates them.

The command line takes its options and their help from these classes.

The figures of the accelerators are those of the benchmark's own workload files,
configs/dlio/workload/*.yaml of https://github.com/mlcommons/storage:

- resnet50 and unet3d on a100 and h100: v2.0 (commit caa90c9, June 2025)
- unet3d on b200: commit 0d75b41
- retinanet on b200 and mi355: commits 11460d0 and 76f4545
- dlrm on b200 and mi355: commits 0b42eb5 and 11460d0

The b200 and mi355 files are of the version after 2.0. Results of `fastio bench` are not official
MLPerf results: figures and definition of utilisation are the same, the program is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from fastio.errors import OptionError
from fastio.store import local_only, local_path


@dataclass(frozen=True)
class Preset:
    """An accelerator with a workload.

    Attributes:
        name: name of workload and accelerator, such as "resnet50-h100".
        kind: kind of the samples.
        batch_size: samples per step.
        step_s: duration of a step in seconds.
        record_bytes: mean size of a sample in its file, in bytes.
        au: least accelerator utilisation that MLPerf Storage requires, 0.0 to 1.0.
    """

    name: str
    kind: Literal["image", "volume", "table"]
    batch_size: int
    step_s: float
    record_bytes: int
    au: float

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.batch_size / self.step_s


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("resnet50-a100", "image", 400, 0.435, 114_660, 0.90),
        Preset("resnet50-h100", "image", 400, 0.224, 114_660, 0.90),
        Preset("retinanet-b200", "image", 24, 0.04755, 322_957, 0.85),
        Preset("retinanet-mi355", "image", 32, 0.0634, 322_957, 0.85),
        Preset("unet3d-a100", "volume", 7, 0.636, 146_600_628, 0.90),
        Preset("unet3d-h100", "volume", 7, 0.323, 146_600_628, 0.90),
        Preset("unet3d-b200", "volume", 7, 0.162, 146_600_628, 0.90),
        Preset("dlrm-b200", "table", 16_384, 0.000375, 761, 0.70),
        Preset("dlrm-mi355", "table", 16_384, 0.0005625, 761, 0.70),
    )
}


@dataclass(frozen=True)
class Options:
    """The options of a bench.

    Attributes:
        data: Any dataset that a Loader reads: packed, images, tars, tables, tokens, a URL. Without
            it, photos of the preset's size are generated.
        batch_size: Samples per step (default: the preset's, or 256; 16,384 rows of tables, 32
            documents for a model by name).
        threads: Number of threads of the loader; 0 uses all cores.
        size: Height and width of cropped images, in pixels.
        length: Number of tokens per window (default: 1,024; 512 for a model by name).
        pipeline: The transforms of each image in your script: a torchvision transform, a list of
            transforms, or an ImageFolder or DataLoader that has one (default: a random crop and a
            flip). The baseline runs them in Python, the loader natively.
        transforms: A function of your own, called on each batch of images, or on whole batches if
            there are no images.
        model: The model to train: alexnet, convnet, resnet18, resnet50, vit-tiny or vit-small on
            images; tiny, small or distilbert on tokens; dlrm or mlp on tables; or a function that
            returns a torch module, or a callable that trains on a batch. Without it, an accelerator
            is emulated.
        amp: Mixed precision; fp16 scales gradients (default: float32).
        compile: Compile the model with torch.compile.
        channels_last: Keep weights and images in channels-last memory, for faster convolutions.
        rate: Emulate an accelerator that processes this many samples/s.
        preset: Emulate an accelerator of MLPerf Storage, such as resnet50-h100.
        bus: Bandwidth to the emulated accelerator in bytes per second, on the command line in GB/s
            (default: infinite).
        blocking_copies: Wait for each copy to the device, as without Loader(device=).
        device: Device of the model (default: a GPU if there is one).
        baseline: Also measure torch's DataLoader with Pillow on this image folder; without data,
            'made' stands for the generated photos.
        epochs: Epochs to train with each loader, to compare accuracy.
        val: Images to evaluate on after the epochs (default: those that are trained on).
        seconds: Approximate duration of the whole benchmark.
        steps: Maximum steps of each run (default: what the time allows).
        cold: Also measure with an empty page cache or remote cache.
        cache: Folder for a temporary cache of a URL's data; its other contents are not touched.
        work: Folder in which generated and packed data is kept (default: a temporary folder).
        seed: Seed of the order and the augmentations.
        storage_options: Storage options for a URL.

    Raises:
        OptionError: values exclude each other, or are not known.
    """

    data: Any = None
    batch_size: int | None = None
    threads: int = 0
    size: int = 224
    length: int | None = None
    pipeline: str | None = None
    transforms: tuple[Callable[[Any], Any], ...] = ()
    model: str | None = None
    amp: Literal["bf16", "fp16"] | None = None
    compile: bool = False
    channels_last: bool = False
    rate: float | None = None
    preset: str | None = None
    bus: float | None = None
    blocking_copies: bool = False
    device: str | None = None
    baseline: str | None = None
    epochs: int = 0
    val: str | None = None
    seconds: float = 60.0
    steps: int | None = None
    cold: bool = True
    cache: str | None = None
    work: str | None = None
    seed: int = 0
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("data", "val"):
            object.__setattr__(self, name, local_path(getattr(self, name)))
        for name in ("cache", "work"):
            _keep_local(self, name)
        if self.preset is not None and self.preset not in PRESETS:
            raise OptionError(
                f"there is no preset {self.preset!r}. Known presets: {', '.join(sorted(PRESETS))}"
            )
        if self.model is not None and (self.rate is not None or self.preset is not None):
            raise OptionError(
                "model and an emulated accelerator cannot be combined: give one of them"
            )
        if self.rate is not None and self.preset is not None:
            raise OptionError(
                "preset cannot be combined with the rate of another accelerator: give one of them"
            )
        if self.model is not None and self.bus is not None:
            raise OptionError("bus is of an emulated accelerator: leave it out with a model")
        if self.amp not in (None, "bf16", "fp16"):
            raise OptionError(f"amp must be 'bf16' or 'fp16', not {self.amp!r}")
        if self.model is None:
            for name in ("amp", "compile", "channels_last", "device"):
                if getattr(self, name):
                    raise OptionError(f"{name} needs model: give model= as well")
        for name in ("batch_size", "length", "rate", "bus", "seconds", "steps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise OptionError(f"{name} must be above 0, got {value}")
        if self.data is None and self.preset is None:
            raise OptionError("give the data, or a preset for which data can be made")
        if self.epochs and self.model is None:
            raise OptionError("epochs needs model: give model= as well")
        if self.epochs < 0 or self.threads < 0:
            raise OptionError("epochs and threads must be at least 0")

    @property
    def model_by_name(self) -> bool:
        """Whether the model is one of fastio.train's, and not a user's function."""
        return self.model is not None and ":" not in self.model

    @property
    def emulated(self) -> Preset | None:
        """The preset, if one was named."""
        return None if self.preset is None else PRESETS[self.preset]


@dataclass(frozen=True)
class Use:
    """How the user loads data and trains: the options of a doctor.

    Attributes:
        batch_size: Samples per step.
        threads: num_workers of your loader (default: all cores).
        crop: Height and width of cropped images, in pixels.
        pipeline: The transforms of each image in your script: a torchvision transform, a list of
            transforms, or an ImageFolder or DataLoader that has one (default: a random crop and a
            flip).
        model_rate: Throughput of the model alone, as `fastio bench` measures it.
        cache: Cache folder of your loader, for a URL.
        epochs: Planned epochs (default: many).
        scratch: Folder whose write speed is measured (64 MiB, deleted afterwards).
        storage_options: Storage options for a URL.
    """

    batch_size: int = 256
    threads: int | None = None
    crop: int = 224
    pipeline: str | None = None
    model_rate: float | None = None
    cache: str | None = None
    epochs: int | None = None
    scratch: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("cache", "scratch"):
            _keep_local(self, name)


def _keep_local(options: Options | Use, name: str) -> None:
    """Replaces a file URL by its path in an option for a local folder, which may be None."""
    given = getattr(options, name)
    if given is not None:
        object.__setattr__(options, name, local_only(given, name))


def check_used(options: Options | Use, used: Collection[str], why: str) -> None:
    """Raises OptionError if an option has another value than its default and is not used.

    Args:
        options: the options.
        used: the names of those that are used.
        why: the end of the message, after the name of an option.
    """
    for each in fields(options):
        made = each.default_factory
        default = each.default if made is MISSING else made()
        if each.name not in used and getattr(options, each.name) != default:
            raise OptionError(f"{each.name} {why}")


def check_applies(
    options: Options | Use, data: str, *, images: bool, tokens: bool, remote: bool
) -> None:
    """Raises OptionError if an option is for another kind of data.

    Args:
        options: the options.
        data: the path or URL of the data.
        images, tokens: whether images are decoded, and whether windows of tokens are read.
        remote: whether it is behind a URL.
    """
    of_kinds = (
        (images, ("crop", "pipeline"), "images", "has no images that a loader decodes"),
        (tokens, ("length",), "tokens", "has none"),
        (remote, ("cache", "storage_options"), "URLs", "is not one"),
    )
    every = {each.name for each in fields(options)}
    for applies, names, kind, lacks in of_kinds:
        if not applies:
            check_used(
                options,
                every.difference(names),
                f"can only be used with {kind}, and {data} {lacks}",
            )
