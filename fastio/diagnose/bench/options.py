"""The options of a bench, and accelerators as MLPerf Storage emulates them.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastio.errors import BenchError as BenchError


@dataclass(frozen=True)
class Preset:
    """An accelerator with a workload.

    Attributes:
        name: "resnet50-h100".
        kind: what a sample is.
        batch_size: samples a step.
        step_s: seconds of a step.
        record_bytes: mean size of a sample in its file.
        au: the least accelerator utilisation that MLPerf Storage asks for, 0.0 to 1.0.
        record_stdev: standard deviation of that size, 0 where the file gives none.
    """

    name: str
    kind: Literal["image", "volume", "table"]
    batch_size: int
    step_s: float
    record_bytes: int
    au: float
    record_stdev: int = 0

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
        Preset("unet3d-a100", "volume", 7, 0.636, 146_600_628, 0.90, 68_341_808),
        Preset("unet3d-h100", "volume", 7, 0.323, 146_600_628, 0.90, 68_341_808),
        Preset("unet3d-b200", "volume", 7, 0.162, 146_600_628, 0.90, 68_341_808),
        Preset("dlrm-b200", "table", 16_384, 0.000375, 761, 0.70),
        Preset("dlrm-mi355", "table", 16_384, 0.0005625, 761, 0.70),
    )
}


@dataclass(frozen=True)
class Options:
    """The options of a bench. All but the data have a default.

    Attributes:
        data: a path, a URL, a pattern or a list of them, or a dataset of fastio's; None: photos of
            the preset's size are made, and packed.
        batch_size: samples a step; None: the preset's, or 256, or 16,384 rows of tables, or 32 of
            text for a model by name.
        threads: of the loader; 0 for all cores that this process may use.
        size: images are cropped to, in pixels.
        length: of the windows that tokens come in, and of documents what is kept for a model; None:
            512 for a model by name, else 1,024.
        transforms: callables of the user's own, on batches of the image field, or on whole batches
            where there is no image.
        model: a name of fastio.train's models, or "module:function"; None: an accelerator is
            emulated.
        rate: samples/s of an emulated accelerator; None: the preset's.
        preset: a name of `PRESETS`; None without a model or a rate: by the kind of data.
        bus: bytes/s to the emulated accelerator; None: copies take no time.
        blocking_copies: the loop waits for each copy, as without Loader(device=).
        device: of a model; None: the GPU where there is one.
        amp: autocast of the model to "bf16" or "fp16", the latter with scaled gradients; None for
            float32.
        compile: the model goes through torch.compile.
        channels_last: weights and images lie in channels-last memory.
        seconds: about what the whole bench may take.
        steps: of each run, at most; None for what the time allows.
        cold: also measure with nothing in the page cache, or in a remote dataset's cache.
        cache: folder in which a temporary one has a remote dataset's data meanwhile; what else
            is there is neither used nor touched. None: the system's for temporary files.
        storage_options: for a URL.
        baseline: an image folder for torch's DataLoader and Pillow; None: without.
        epochs: to train on images with each loader, for the accuracy; 0 for none.
        val: images to evaluate on then; None: those that are trained on.
        work: where data is made, and kept for the next time; None: a temporary folder.
        seed: of the order and of all augmentations.

    Raises:
        BenchError: values exclude each other, or are not known.
    """

    data: Any = None
    batch_size: int | None = None
    threads: int = 0
    size: int = 224
    length: int | None = None
    transforms: tuple[Callable[[Any], Any], ...] = ()
    model: str | None = None
    rate: float | None = None
    preset: str | None = None
    bus: float | None = None
    blocking_copies: bool = False
    device: str | None = None
    amp: Literal["bf16", "fp16"] | None = None
    compile: bool = False
    channels_last: bool = False
    seconds: float = 60.0
    steps: int | None = None
    cold: bool = True
    cache: str | None = None
    storage_options: Mapping[str, Any] | None = None
    baseline: str | None = None
    epochs: int = 0
    val: str | None = None
    work: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise BenchError(
                f"there is no preset {self.preset!r}; there are {', '.join(sorted(PRESETS))}"
            )
        if self.model is not None and (self.rate is not None or self.preset is not None):
            raise BenchError("a model computes or an accelerator is emulated: give one of the two")
        if self.model is not None and self.bus is not None:
            raise BenchError("bus is of an emulated accelerator; a model has the machine's own")
        if self.amp not in (None, "bf16", "fp16"):
            raise BenchError(f"amp is bf16 or fp16, not {self.amp!r}")
        if self.model is None:
            for name in ("amp", "compile", "channels_last"):
                if getattr(self, name):
                    raise BenchError(f"{name} is of a model that computes: give model= as well")
        for name in ("batch_size", "length", "rate", "bus", "seconds", "steps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BenchError(f"{name} must be above 0, got {value}")
        if self.data is None and self.preset is None:
            raise BenchError("name the data, or a preset that data is made for")
        if self.epochs and self.model is None:
            raise BenchError("epochs are trained with a model: give model= as well")
        if self.epochs < 0 or self.threads < 0:
            raise BenchError("epochs and threads are 0 or more")

    @property
    def model_by_name(self) -> bool:
        """Whether the model is one of fastio.train's, and not a user's function."""
        return self.model is not None and ":" not in self.model

    @property
    def emulated(self) -> Preset | None:
        """The preset, if one was named."""
        return None if self.preset is None else PRESETS[self.preset]
