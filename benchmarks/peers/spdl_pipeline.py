"""SPDL: a pipeline of threads in which FFmpeg decodes, crops, scales and flips by a filter drawn
for each image, before colours are converted; batches are made of the frames."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import spdl.io
import torch
from spdl.pipeline import PipelineBuilder
from work import AREA, ASPECT, MEAN, SIZE, STD, Settings, listed

_MEAN = 255 * torch.tensor(MEAN).view(1, 3, 1, 1)
_SCALE = 1 / (255 * torch.tensor(STD).view(1, 3, 1, 1))


def _random_crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width, drawn as by torchvision's RandomResizedCrop."""
    for _ in range(10):
        area = height * width * random.uniform(*AREA)
        aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def _decoded(path: Path) -> Any:
    """Frames of one image, 224 by 224."""
    packets = spdl.io.demux_image(str(path))
    top, left, height, width = _random_crop(packets.height, packets.width)
    filters = [
        f"crop={width}:{height}:{left}:{top}:exact=1",
        f"scale={SIZE}:{SIZE}:flags=bilinear",
        *(["hflip"] if random.random() < 0.5 else []),
        "format=rgb24",
    ]
    return spdl.io.decode_packets(packets, filter_desc=",".join(filters))


def _batch(rows: list[tuple[Path, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 (N, 3, 224, 224) and labels."""
    frames = [_decoded(path) for path, _ in rows]
    pixels = spdl.io.to_torch(spdl.io.convert_frames(frames))
    images = pixels.permute(0, 3, 1, 2).float().sub_(_MEAN).mul_(_SCALE)
    return images, torch.tensor([label for _, label in rows])


@dataclass(frozen=True)
class _Epochs:
    """A pipeline an epoch, as its examples have it."""

    files: list[tuple[Path, int]]
    settings: Settings

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        pipeline = (
            PipelineBuilder()
            .add_source(random.sample(self.files, len(self.files)))
            .aggregate(self.settings.batch)
            .pipe(_batch, concurrency=self.settings.threads)
            .add_sink(2 * self.settings.threads)
            .build(num_threads=self.settings.threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


def prepare(photos: Path, target: Path, variant: str) -> None:
    """The photos are read as they are."""


def open_loader(data: Path, settings: Settings) -> Iterable[Any]:
    """Threads decode whole batches; torch's own threads would only be in their way."""
    torch.set_num_threads(1)
    return _Epochs(listed(data), settings)
