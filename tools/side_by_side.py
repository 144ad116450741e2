"""One small network trained on the same photos with torch's DataLoader and with fastio.

The part of tools/demo to read: `contenders` has the loaders side by side, `train` is the loop that
all of them feed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pillow_folder import PillowFolder, evaluation_edge
from torch import nn
from torch.utils.data import DataLoader

import fastio

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSES = 6
BATCH = 32
LEARNING_RATE = 5e-3

Report = Callable[[int], None]


@dataclass(frozen=True)
class Settings:
    """What the demo is run with.

    Attributes:
        photos: how many to train with.
        epochs: of each training.
        size: height and width of the network's input, in pixels.
        work: the folder for photos and packed data.
        device: where the network is.
        cores: workers of DataLoader, threads of fastio.
    """

    photos: int
    epochs: int
    size: int
    work: Path
    device: torch.device
    cores: int

    @property
    def folder(self) -> Path:
        """Where these photos are, or will be: train/ and val/, a folder a class in each."""
        return self.work / f"photos-{self.photos}"

    @property
    def packed(self) -> Path:
        """Where they are packed."""
        return self.work / "packed"

    @property
    def parts(self) -> dict[str, int]:
        """How many photos there are to train with and to evaluate with."""
        return {"train": self.photos, "val": max(CLASSES, self.photos // 6)}


# --- The loaders ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """A way to load the photos: batches (images, labels) to train and to evaluate with."""

    name: str
    train: Any
    val: Any


def contenders(settings: Settings) -> Iterator[Contender]:
    """The same photos, transforms, batch size and cores, loaded in three ways, one at a time."""
    cores, size = settings.cores, settings.size

    def plain(part: str) -> DataLoader[Any]:
        training = part == "train"
        return DataLoader(
            PillowFolder(settings.folder / part, size, training, (MEAN, STD)),
            BATCH,
            shuffle=training,
            drop_last=training,
            num_workers=cores,
            persistent_workers=training,
            pin_memory=settings.device.type == "cuda",
        )

    crops = [fastio.RandomResizedCrop(size), fastio.RandomHorizontalFlip()]
    middle = [fastio.Resize(evaluation_edge(size)), fastio.CenterCrop(size)]
    normalize = fastio.Normalize(MEAN, STD)

    def fast(folder: Path, part: str) -> fastio.Loader:
        training = part == "train"
        return fastio.Loader(
            folder / part,
            BATCH,
            shuffle=training,
            drop_last=training,
            num_workers=cores,
            device=settings.device,
            transforms=[*(crops if training else middle), normalize],
        )

    yield Contender("DataLoader + Pillow", plain("train"), plain("val"))
    for name, folder in (
        ("fastio, same folder", settings.folder),
        ("fastio, packed", settings.packed),
    ):
        with fast(folder, "train") as train, fast(folder, "val") as val:
            yield Contender(name, train, val)


# --- Training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What one contender did.

    Attributes:
        images_per_s: of a pass over the training photos without a network.
        epoch_s: seconds of an epoch of training, the mean.
        wait_s: of these, waiting for the next batch.
        correct: bool (n,), which of the held-out photos the network tells at the end.
    """

    name: str
    images_per_s: float
    epoch_s: float
    wait_s: float
    correct: torch.Tensor

    @property
    def accuracy(self) -> float:
        """The share of the held-out photos that the network tells, 0 to 1."""
        return float(self.correct.double().mean())


def network() -> nn.Module:
    """Four small convolutions: about the least work that tells these classes."""

    def layer(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *layer(3, 8, kernel=4, stride=4, padding=0),
        *layer(8, 16, kernel=3, stride=2, padding=1),
        *layer(16, 32, kernel=3, stride=2, padding=1),
        *layer(32, 64, kernel=3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def measure(contender: Contender, settings: Settings, report: Report) -> Result:
    """Loads an epoch without a network, trains, and evaluates; reports images as they are done."""
    device = settings.device
    torch.manual_seed(0)  # the same weights for each; DataLoader's order comes from it too
    # torch's stub leaves this argument out.
    model = network().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    next(iter(contender.train))  # starts workers and threads
    start = time.perf_counter()
    images = 0
    for batch, _ in contender.train:
        images += len(batch)
        report(len(batch))
    images_per_s = images / (time.perf_counter() - start)
    epoch_s, wait_s = train(model, contender.train, settings, report)
    correct = evaluate(model, contender.val, device, report)
    return Result(contender.name, images_per_s, epoch_s, wait_s, correct)


def train(model: nn.Module, loader: Any, settings: Settings, report: Report) -> tuple[float, float]:
    """Trains for some epochs; returns the seconds of an epoch and how many of them it waited."""
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    steps = settings.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    wait_s = 0.0
    start = time.perf_counter()
    for _ in range(settings.epochs):
        asked = time.perf_counter()
        for images, labels in loader:
            wait_s += time.perf_counter() - asked
            images = images.to(settings.device, non_blocking=True)
            labels = labels.to(settings.device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            report(len(labels))
            asked = time.perf_counter()
    if settings.device.type == "cuda":
        torch.cuda.synchronize(settings.device)
    return (time.perf_counter() - start) / settings.epochs, wait_s / settings.epochs


def evaluate(model: nn.Module, loader: Any, device: torch.device, report: Report) -> torch.Tensor:
    """Which of the loader's photos the network tells, in the loader's order: bool (n,)."""
    model.eval()
    found = []
    with torch.inference_mode():
        for images, labels in loader:
            found.append(model(images.to(device)).argmax(1).eq(labels.to(device)).cpu())
            report(len(labels))
    return torch.cat(found)
