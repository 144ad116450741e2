"""One small network trained on the same photos with torch's DataLoader and with fastio.

`contenders` makes the loaders that tools/demo compares, and `train` is the training loop that uses
each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import fastio
from fastio.diagnose.bench.baseline import PillowFolder
from fastio.diagnose.imagesteps import evaluation_edge
from fastio.train.kinds import MEAN, STD

CLASSES = 6
BATCH = 32
LEARNING_RATE = 5e-3
# Number of epochs that are loaded without a network; one epoch can take a quarter of a second. The
# number is fixed, not the time, so that training always begins with the same epoch and its crops.
LOADING_EPOCHS = 3
MOST_EPOCHS = 200  # with a cache, in case recoding takes too long

Report = Callable[[int], None]


@dataclass(frozen=True)
class Settings:
    """The settings of a run of the demo.

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
        """The folder of the photos: train/ and val/, with a folder for each class."""
        return self.work / f"photos-{self.photos}"

    @property
    def packed(self) -> Path:
        """The folder of the packed datasets."""
        return self.work / "packed"

    @property
    def cache(self) -> Path:
        """The folder of the cache, where the photos are recoded while epochs run."""
        return self.work / "cache"

    @property
    def parts(self) -> dict[str, int]:
        """The number of photos to train with and to evaluate with."""
        return {"train": self.photos, "val": max(CLASSES, self.photos // 4)}


# --- The loaders ----------------------------------------------------------------------------------


def plain_loader(settings: Settings, part: str) -> DataLoader[Any]:
    """Returns a DataLoader of a part of the photos, "train" or "val", decoded by Pillow."""
    training = part == "train"
    return DataLoader(
        PillowFolder(str(settings.folder / part), settings.size, normalized=True, augment=training),
        BATCH,
        shuffle=training,
        drop_last=training,
        num_workers=settings.cores,
        persistent_workers=training,
        pin_memory=settings.device.type == "cuda",
    )


def fast_loader(
    settings: Settings, folder: Path, part: str, seed: int = 0, cache: Any = None
) -> fastio.Loader:
    """Returns a fastio loader of the same part, from a folder of images or a packed dataset."""
    training = part == "train"
    crops = [fastio.RandomResizedCrop(settings.size), fastio.RandomHorizontalFlip()]
    middle = [fastio.Resize(evaluation_edge(settings.size)), fastio.CenterCrop(settings.size)]
    return fastio.Loader(
        folder / part,
        BATCH,
        shuffle=training,
        drop_last=training,
        num_workers=settings.cores,
        device=settings.device,
        transforms=[*(crops if training else middle), fastio.Normalize(MEAN, STD)],
        seed=seed,
        cache=cache,
        channels_last=True,  # as the network's weights
    )


@dataclass(frozen=True)
class Contender:
    """A way to load the photos: batches (images, labels) to train and to evaluate with."""

    name: str
    train: Any
    val: Any


def contenders(settings: Settings) -> Iterator[Contender]:
    """Yields three loaders of the same photos, transforms and batch size, one after the other."""
    plain = plain_loader(settings, "train"), plain_loader(settings, "val")
    yield Contender("DataLoader + Pillow", *plain)
    for name, folder in (
        ("fastio, same folder", settings.folder),
        ("fastio, packed", settings.packed),
    ):
        with (
            fast_loader(settings, folder, "train") as train,
            fast_loader(settings, folder, "val") as val,
        ):
            yield Contender(name, train, val)


@dataclass(frozen=True)
class RecodedEpoch:
    """An epoch of the folder with a cache.

    Attributes:
        images_per_s: images loaded per second, without a network.
        share: the share of its images that were read from records in the cache, 0 to 1.
    """

    images_per_s: float
    share: float


def recoded_epochs(settings: Settings, report: Report) -> list[RecodedEpoch]:
    """Loads the folder with `cache=` until an epoch reads all images from records."""
    found: list[RecodedEpoch] = []
    # "always", because these loaders leave no processor idle.
    cache = fastio.Cache(settings.cache, pack="always")
    with cache, fast_loader(settings, settings.folder, "train", cache=cache) as loader:
        while len(found) < MOST_EPOCHS and (not found or found[-1].share < 1):
            before, start, images = loader.stats().from_recoded, time.perf_counter(), 0
            for batch, _ in loader:
                images += len(batch)
            seconds = time.perf_counter() - start
            read = loader.stats().from_recoded - before
            found.append(RecodedEpoch(images / seconds, read / images))
            report(1)
    return found


# --- Training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The measurements of one contender.

    Attributes:
        images_per_s: images per second of epochs without a network.
        epoch_s: seconds of an epoch of training, the mean.
        wait_s: seconds of an epoch in which training waits for the next batch, the mean.
        accuracy: the share of the held-out photos that are classified correctly, 0 to 1.
    """

    name: str
    images_per_s: float
    epoch_s: float
    wait_s: float
    accuracy: float


def network(device: torch.device) -> nn.Module:
    """Returns a network of four small convolutions, always with the same initial weights."""

    def layer(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            *layer(3, 8, kernel=4, stride=4, padding=0),
            *layer(8, 16, kernel=3, stride=2, padding=1),
            *layer(16, 32, kernel=3, stride=2, padding=1),
            *layer(32, 64, kernel=3, stride=2, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, CLASSES),
        )
    # torch's stub leaves this argument out.
    return model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def measure(contender: Contender, settings: Settings, report: Report) -> Result:
    """Loads without a network, trains, and evaluates; calls `report` with numbers of images."""
    torch.manual_seed(0)  # DataLoader's order and its workers' crops come from it
    next(iter(contender.train))  # starts workers and threads
    images = 0
    start = time.perf_counter()
    for _ in range(LOADING_EPOCHS):
        for batch, _ in contender.train:
            images += len(batch)
            report(len(batch))
    images_per_s = images / (time.perf_counter() - start)
    model = network(settings.device)
    trained = train(model, contender.train, settings, report)
    accuracy = evaluate(trained.mean, contender.val, settings.device, report)
    return Result(contender.name, images_per_s, trained.epoch_s, trained.wait_s, accuracy)


def accuracy_again(settings: Settings, seed: int, folder: Path | None, report: Report) -> float:
    """Trains with another order and other crops, and returns the accuracy.

    Args:
        settings, report: As of `measure`.
        seed: Of the order and the crops.
        folder: What fastio loads; None for DataLoader.
    """
    with ExitStack() as stack:
        if folder is None:
            torch.manual_seed(seed)
            loaders: list[Any] = [plain_loader(settings, part) for part in ("train", "val")]
        else:
            loaders = [
                stack.enter_context(fast_loader(settings, folder, part, seed))
                for part in ("train", "val")
            ]
        trained = train(network(settings.device), loaders[0], settings, report)
        return evaluate(trained.mean, loaders[1], settings.device, report)


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        epoch_s: seconds of an epoch, the mean.
        wait_s: seconds of an epoch in which training waits for the next batch, the mean.
        loss: the mean of the last epoch's training losses.
        mean: the network with the moving average of its weights, whose accuracy depends less on
            chance than that of the last weights.
    """

    epoch_s: float
    wait_s: float
    loss: float
    mean: nn.Module


def train(model: nn.Module, loader: Any, settings: Settings, report: Report) -> Trained:
    """Trains for the number of epochs in the settings."""
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    steps = settings.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    average = get_ema_multi_avg_fn(0.97)  # type: ignore[no-untyped-call]
    mean = AveragedModel(model, multi_avg_fn=average, use_buffers=True)
    wait_s = 0.0
    start = time.perf_counter()
    for _ in range(settings.epochs):
        losses = []
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
            mean.update_parameters(model)
            losses.append(loss.detach())
            report(len(labels))
            asked = time.perf_counter()
    if settings.device.type == "cuda":
        torch.cuda.synchronize(settings.device)
    epoch_s = (time.perf_counter() - start) / settings.epochs
    return Trained(epoch_s, wait_s / settings.epochs, float(torch.stack(losses).mean()), mean)


def evaluate(model: nn.Module, loader: Any, device: torch.device, report: Report) -> float:
    """Returns the share of the loader's photos that are classified correctly, 0 to 1."""
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for images, labels in loader:
            found = model(images.to(device)).argmax(1)
            right += int(found.eq(labels.to(device)).sum())
            total += len(labels)
            report(len(labels))
    return right / total
