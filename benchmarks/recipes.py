"""Images a second of whole training recipes: fastio beside torchvision v2 in a DataLoader.

    .venv/bin/python benchmarks/recipes.py [FOLDER] [--count 2000] [--rounds 3] [--json FILE]

FOLDER has a folder of photos for each class; without it, photos are made. Every recipe begins with
RandomResizedCrop(224) and RandomHorizontalFlip, and gives uint8 batches; "dino" gives ten crops of
each photo. The DataLoader decodes the
JPEG files with Pillow and runs torchvision's transforms on uint8 tensors, in as many workers as
fastio, which reads a packed dataset, has threads. Where they are installed, Albumentations (in the
DataLoader) and NVIDIA DALI (its CPU pipeline) run what they have of a recipe.

A round runs every loader once; the table has medians of the rounds. "of plain" is the share of the
rate of fastio's own crops and flips; the augmentations alone are timed by `loader.stats()`.

Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    console,
    let_others_end,
    linked,
    machine,
    machine_line,
    new_table,
    photo_parser,
    source_photos,
    temporary_folder,
    write_json,
)
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import fastio

import plain_torchvision  # isort: skip

SIZE = 224
BATCH = 64
CROP = [fastio.RandomResizedCrop(SIZE), fastio.RandomHorizontalFlip()]


def jitter(v: Any, size: int = SIZE) -> list[Any]:
    """Returns SimCLR's changes of colour and its blur, with a kernel of a tenth of the image."""
    return [
        v.RandomApply([v.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        v.RandomGrayscale(0.2),
        v.RandomApply([v.GaussianBlur(size // 10 // 2 * 2 + 1)], p=0.5),
    ]


def three(v: Any) -> list[Any]:
    """One of three augmentations, and colours: Touvron et al., "DeiT III", 2022."""
    one = [v.Grayscale(3), v.RandomSolarize(128, 1.0), v.GaussianBlur(5, (0.1, 2.0))]
    return [v.RandomChoice(one), v.ColorJitter(0.3, 0.3, 0.3)]


def dino(v: Any) -> list[tuple[int, list[Any]]]:
    """Two large and eight small crops of each photo: Caron et al., "Emerging properties", 2021."""
    colours = [v.RandomApply([v.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8), v.RandomGrayscale(0.2)]
    large = [v.RandomResizedCrop(SIZE, scale=(0.4, 1.0)), v.RandomHorizontalFlip(), *colours]
    small = [v.RandomResizedCrop(96, scale=(0.05, 0.4)), v.RandomHorizontalFlip(), *colours]
    blur = partial(v.GaussianBlur, 23, (0.1, 2.0))
    solarized = [v.RandomApply([blur()], p=0.1), v.RandomSolarize(128, 0.2)]
    return [
        (1, [*large, blur()]), (1, [*large, *solarized]),
        (8, [*small, v.RandomApply([blur()], p=0.5)]),
    ]  # fmt: skip


# With torchvision.transforms.v2 or with fastio itself, which have the same names.
RECIPES: dict[str, Callable[[Any], list[Any]]] = {
    "plain": lambda v: [],
    "trivial": lambda v: [v.TrivialAugmentWide(), v.RandomErasing(0.1)],
    "rand": lambda v: [v.RandAugment(2, 9)],
    "simclr": jitter,
    "three": three,
}
SAID = {
    "plain": "crop and flip",
    "trivial": "TrivialAugmentWide, RandomErasing(0.1)",
    "rand": "RandAugment(2, 9)",
    "simclr": "ColorJitter p 0.8, gray p 0.2, blur p 0.5",
    "three": "three-augment, ColorJitter(0.3)",
    "dino": "DINO: 2 crops of 224, 8 of 96",
}


class Photos(Dataset[Any]):
    """Files that Pillow decodes, and a function of each image."""

    def __init__(self, files: list[Path], transform: Callable[[Any], Any]) -> None:
        self._files = files
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, row: int) -> Any:
        with Image.open(self._files[row]) as image:
            return self._transform(image.convert("RGB"))


class Crops:
    """Several outputs of an image."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self._transforms]


def fastio_transforms(recipe: str) -> Any:
    if recipe == "dino":
        return fastio.Views(dino(fastio))
    return [*CROP, *RECIPES[recipe](fastio)]


def torchvision_transform(recipe: str) -> Callable[[Any], Any]:
    v2 = plain_torchvision.load().transforms.v2
    if recipe == "dino":
        crops = [v2.Compose(steps) for count, steps in dino(v2) for _ in range(count)]
        several: Callable[[Any], Any] = v2.Compose([v2.ToImage(), Crops(crops)])
        return several
    first = [v2.ToImage(), v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()]
    transform: Callable[[Any], Any] = v2.Compose([*first, *RECIPES[recipe](v2)])
    return transform


def albumentations_transform(recipe: str) -> Callable[[Any], Any] | None:
    """What Albumentations has of a recipe; None if it is not installed, or has not all of it."""
    try:
        import albumentations as albu
    except ImportError:
        return None
    steps = {
        "plain": [],
        "simclr": [
            albu.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
            albu.ToGray(p=0.2),
            albu.GaussianBlur(blur_limit=(23, 23), sigma_limit=(0.1, 2.0), p=0.5),
        ],
        "three": [
            albu.OneOf(
                [
                    albu.ToGray(p=1),
                    albu.Solarize(p=1),
                    albu.GaussianBlur(blur_limit=(5, 5), sigma_limit=(0.1, 2.0), p=1),
                ],
                p=1,
            ),
            albu.ColorJitter(0.3, 0.3, 0.3, 0, p=1),
        ],
    }.get(recipe)
    if steps is None:
        return None
    first = [albu.RandomResizedCrop(size=(SIZE, SIZE)), albu.HorizontalFlip(p=0.5)]
    return partial(_with_albumentations, albu.Compose([*first, *steps]))


def _with_albumentations(compose: Any, image: Any) -> Any:
    return np.ascontiguousarray(compose(image=np.asarray(image))["image"].transpose(2, 0, 1))


def dali_batches(recipe: str, files: list[Path], threads: int) -> Iterable[Any] | None:
    """DALI's CPU pipeline of a recipe that it has as an operation; None without DALI."""
    try:
        import nvidia.dali.fn as fn
        from nvidia.dali import pipeline_def
        from nvidia.dali.auto_aug import rand_augment, trivial_augment
    except ImportError:
        return None
    policies = {
        "plain": lambda images: images,
        "trivial": trivial_augment.trivial_augment_wide,
        "rand": partial(rand_augment.rand_augment, n=2, m=9),
    }
    if recipe not in policies:
        return None

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=BATCH, num_threads=threads, device_id=None, enable_conditionals=True
    )
    def pipeline() -> Any:
        encoded, _ = fn.readers.file(files=[str(path) for path in files], random_shuffle=True)
        images = fn.decoders.image_random_crop(encoded, device="cpu")
        images = fn.resize(images, size=(SIZE, SIZE))
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        return fn.transpose(policies[recipe](images), perm=[2, 0, 1])

    built = pipeline()
    built.build()
    return _DaliEpochs(built, len(files) // BATCH)


class _DaliEpochs:
    """Epochs of a pipeline, as many batches in each as whole ones fit."""

    def __init__(self, pipeline: Any, batches: int) -> None:
        self._pipeline = pipeline
        self._batches = batches

    def __iter__(self) -> Any:
        for _ in range(self._batches):
            yield self._pipeline.run()[0]


@dataclass
class Variant:
    """A loader of a recipe and the rates of its epochs."""

    recipe: str
    name: str
    batches: Iterable[Any]
    rates: list[float] = field(default_factory=list)

    def epoch(self) -> float:
        """Images a second of one epoch."""
        let_others_end()
        start, images = time.perf_counter(), 0
        for batch in self.batches:
            images += len(batch[0]) if isinstance(batch, list) else len(batch)
        return images / (time.perf_counter() - start)


class Pixels:
    """The images of a fastio loader, without labels."""

    def __init__(self, loader: fastio.Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return (images for images, _ in self.loader)


def variants(
    files: list[Path], packed: Path, arguments: argparse.Namespace, opened: ExitStack
) -> list[Variant]:
    """Everything that is measured, recipe by recipe."""
    threads = arguments.threads
    found: list[Variant] = []
    for recipe in arguments.only or SAID:
        steps = fastio_transforms(recipe)
        loader = opened.enter_context(
            fastio.Loader(packed, BATCH, shuffle=True, num_workers=threads, transforms=steps)
        )
        found.append(Variant(recipe, "fastio", Pixels(loader)))
        for name, make in (
            ("DataLoader", torchvision_transform),
            ("Albumentations", albumentations_transform),
        ):
            transform = make(recipe)
            if transform is not None:
                data = Photos(files[: arguments.slow], transform)
                plain: DataLoader[Any] = DataLoader(
                    data, BATCH, shuffle=True, num_workers=threads, persistent_workers=True
                )
                found.append(Variant(recipe, name, plain))
        dali = dali_batches(recipe, files, threads)
        if dali is not None:
            found.append(Variant(recipe, "DALI", dali))
    return found


def augment_us(loader: fastio.Loader) -> float:
    """Microseconds of a thread that the operations on pixels of an image take."""
    stats = loader.stats()
    return stats.augment_s / max(1, stats.images_decoded) * 1e6


def measure(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    files = source_photos(arguments, work)
    repeated = linked(files, arguments.count, work / "repeated")
    rows = sorted(repeated.glob("*/*"))
    fastio.pack(repeated, work / "packed", codec="blocks")
    with ExitStack() as opened:
        found = variants(rows, work / "packed", arguments, opened)
        for variant in found:
            variant.epoch()
        for _ in range(arguments.rounds):
            for variant in found:
                variant.rates.append(variant.epoch())
        results: dict[str, dict[str, Any]] = {}
        for variant in found:
            of_recipe = results.setdefault(variant.recipe, {})
            of_recipe[variant.name] = statistics.median(variant.rates)
            if isinstance(variant.batches, Pixels):
                of_recipe["augment_us"] = augment_us(variant.batches.loader)
    return {"machine": machine(), "threads": arguments.threads, "recipes": results}


def report(result: dict[str, Any]) -> None:
    out = console()
    names = [name for name in ("DataLoader", "Albumentations", "DALI")
             if any(name in rates for rates in result["recipes"].values())]  # fmt: skip
    table = new_table(
        "images/s", "fastio", "of plain", "augmentation, us", *names, *(f"x {n}" for n in names)
    )
    plain = result["recipes"].get("plain", {}).get("fastio")
    for recipe, rates in result["recipes"].items():
        own = rates["fastio"]
        table.add_row(
            SAID[recipe],
            f"{own:,.0f}",
            f"{own / plain:.0%}" if plain else "-",
            f"{rates['augment_us']:.0f}",
            *(f"{rates[name]:,.0f}" if name in rates else "-" for name in names),
            *(f"{own / rates[name]:.1f}" if name in rates else "-" for name in names),
        )
    out.print(
        f"{SIZE} x {SIZE} uint8, {result['threads']} threads or workers; {machine_line()}", table
    )


def main() -> int:
    parser = photo_parser(__doc__)
    parser.add_argument("--count", type=int, default=2000, help="rows, by repeating (2000)")
    parser.add_argument("--slow", type=int, default=500, help="rows of the DataLoader's epochs")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    parser.add_argument("--only", action="append", choices=list(SAID), help="a recipe")
    arguments = parser.parse_args()
    with temporary_folder() as work:
        result = measure(arguments, work)
    report(result)
    write_json(arguments.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
