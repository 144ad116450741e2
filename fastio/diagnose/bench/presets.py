"""Accelerators as MLPerf Storage emulates them: sizes of samples, batches and seconds of a step.

The figures are those of the benchmark's own workload files, configs/dlio/workload/*.yaml of
https://github.com/mlcommons/storage:

- resnet50 and unet3d on a100 and h100: v2.0 (commit caa90c9, June 2025)
- unet3d on b200: commit 0d75b41
- retinanet on b200 and mi355: commits 11460d0 and 76f4545
- dlrm on b200 and mi355: commits 0b42eb5 and 11460d0

The b200 and mi355 files are of the version after 2.0. Results of `fastio bench` are not official
MLPerf results: figures and definition of utilisation are the same, the program is another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
