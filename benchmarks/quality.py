"""How near a loader's pixels are to exact ones: mean difference, share of equal values, PSNR.

    .venv/bin/python benchmarks/quality.py [FOLDER] [--crops 4] [--large 8] [--json FILE]

FOLDER has a folder of photos for each class; without it, photos are made. The exact pixels are
those of libjpeg-turbo's full decode (Pillow's open().convert("RGB")), cropped and resized with
Pillow's antialiased triangle filter in float64, nothing rounded in between, and rounded once in the
end. Compared with them, for the same crops, which have fixed seeds:

  blocks         what the loader delivers from a packed dataset
  packed jpeg    the same of codec="jpeg"
  Pillow         Pillow's resize() of Pillow's decode: fixed point, rounded to uint8 after each axis
  Pillow, draft  the same of a decode in draft mode, as far reduced as the crop has the pixels;
                 of training crops alone

on RandomResizedCrop(224) + flip, several crops a photo, and on Resize(256) + CenterCrop(224); on
the photos given, and on 12-megapixel ones made of them (benchmarks/large.py tells how). For blocks
and draft mode also by how much a crop shrinks: planes of crops that shrink much are decoded at a
reduced size.

Differences are in levels of 255. PSNR is of all values pooled; "worst" is the crop where it is
least.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    SHRINKS,
    about_photos,
    console,
    linked,
    machine,
    new_table,
    photo_parser,
    shrink_name,
    source_photos,
    temporary_folder,
    write_json,
)
from large import make_large, pillow_crop
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.table import Table

import fastio
from fastio.sources import FolderDataset
from fastio.transforms import Augmentation

TRAINING = [fastio.RandomResizedCrop(224), fastio.RandomHorizontalFlip()]
VALIDATION = [fastio.Resize(256), fastio.CenterCrop(224)]
LARGE_MEGAPIXELS = 12
BATCH = 8

# --- Exact pixels ---------------------------------------------------------------------------------


def triangle_weights(size: int, out: int) -> NDArray[np.float64]:
    """Pillow's antialiased triangle filter from `size` samples to `out`: (out, size)."""
    scale = size / out
    reach = max(scale, 1.0)
    centres = (np.arange(out) + 0.5) * scale
    first = np.maximum((centres - reach + 0.5).astype(int), 0)[:, None]
    last = np.minimum((centres + reach + 0.5).astype(int), size)[:, None]
    samples = np.arange(size)
    weights = 1 - np.abs(samples + 0.5 - centres[:, None]) / reach
    weights = np.where((samples >= first) & (samples < last), np.maximum(weights, 0), 0)
    normalised: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
    return normalised


def exact(pixels: NDArray[np.uint8], drawn: Augmentation) -> NDArray[np.uint8]:
    """What a transform makes of upright pixels (H, W, 3): uint8 (h, w, 3), rounded once."""
    y, x, height, width = drawn.crop
    top, left, rows, columns = drawn.window
    down = triangle_weights(height, drawn.resized[0])[top : top + rows]
    across = triangle_weights(width, drawn.resized[1])[left : left + columns]
    planes = pixels[y : y + height, x : x + width].transpose(2, 0, 1).astype(np.float64)
    result = (down @ planes @ across.T).transpose(1, 2, 0)
    return flipped(np.clip(np.floor(result + 0.5), 0, 255).astype(np.uint8), drawn)


def by_pillow(pixels: NDArray[np.uint8], drawn: Augmentation) -> NDArray[np.uint8]:
    """The same by Pillow's resize()."""
    y, x, height, width = drawn.crop
    top, left, rows, columns = drawn.window
    image = Image.fromarray(pixels[y : y + height, x : x + width])
    resized = image.resize(drawn.resized[::-1], Image.Resampling.BILINEAR)
    window = resized.crop((left, top, left + columns, top + rows))
    return flipped(np.asarray(window), drawn)


def flipped(pixels: NDArray[np.uint8], drawn: Augmentation) -> NDArray[np.uint8]:
    return pixels[:, ::-1] if drawn.flip_horizontal else pixels


def decoded(path: Path) -> NDArray[np.uint8]:
    """All pixels of a photo, upright: (H, W, 3)."""
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


# --- Comparing ------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Differences of some crops' values to the exact ones."""

    crops: int = 0
    values: int = 0
    sum_abs: float = 0
    sum_squares: float = 0
    equal: int = 0
    within_one: int = 0
    most: int = 0
    psnrs: list[float] = field(default_factory=list)

    def add(self, found: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> None:
        difference = np.abs(found.astype(int) - wanted)
        squares = float((difference**2).sum())
        self.crops += 1
        self.values += difference.size
        self.sum_abs += float(difference.sum())
        self.sum_squares += squares
        self.equal += int((difference == 0).sum())
        self.within_one += int((difference <= 1).sum())
        self.most = max(self.most, int(difference.max()))
        self.psnrs.append(psnr(squares, difference.size))

    def summary(self) -> dict[str, float]:
        return {
            "crops": self.crops,
            "mean_abs_difference": self.sum_abs / self.values,
            "equal": self.equal / self.values,
            "within_one": self.within_one / self.values,
            "most": self.most,
            "psnr": psnr(self.sum_squares, self.values),
            "worst_psnr": min(self.psnrs),
        }


def psnr(sum_squares: float, values: int) -> float:
    """In dB; 99 where nothing differs."""
    return min(99.0, 10 * math.log10(255**2 * values / max(sum_squares, 1e-9)))


def deliveries(
    dataset: Path, transforms: Sequence[Any], epochs: int
) -> Iterator[tuple[int, Augmentation, NDArray[np.uint8]]]:
    """(row, what is done to it, (h, w, 3) pixels) of all rows of some epochs, in order."""
    with fastio.Loader(dataset, BATCH, transforms={"image": list(transforms)}, seed=0) as loader:
        for epoch in range(epochs):
            for images, _ in loader:
                rows = np.asarray(loader.batch.rows)
                drawn = loader.augmentation(rows, epoch=epoch)
                for row, draw, image in zip(rows.tolist(), drawn, images, strict=True):
                    yield row, draw, image.permute(1, 2, 0).numpy()


def compare(
    folder: Path, packed: dict[str, Path], transforms: Sequence[Any], epochs: int
) -> dict[str, dict[str, float]]:
    """Summaries by contender; of blocks and draft mode also by shrink."""
    paths = FolderDataset(folder).paths
    tallies: dict[str, Tally] = {}
    streams = [deliveries(packed[codec], transforms, epochs) for codec in ("blocks", "jpeg")]
    for (row, drawn, blocks), (_, _, jpeg) in zip(*streams, strict=True):
        pixels = decoded(Path(paths[row]))
        wanted = exact(pixels, drawn)
        found = {"blocks": blocks, "packed jpeg": jpeg, "Pillow": by_pillow(pixels, drawn)}
        if transforms is TRAINING:
            found["Pillow, draft"] = pillow_crop(Path(paths[row]), drawn, draft=True)
        shrink = min(a / b for a, b in zip(drawn.crop[2:], drawn.resized, strict=True))
        for name, values in found.items():
            for key in (name, f"{name}, shrink {shrink_name(shrink)}"):
                tallies.setdefault(key, Tally()).add(values, wanted)
    split = [f", shrink {name}" for name in SHRINKS]
    order = ["blocks", *(f"blocks{part}" for part in split), "packed jpeg", "Pillow"]
    order += ["Pillow, draft", *(f"Pillow, draft{part}" for part in split)]
    return {name: tallies[name].summary() for name in order if name in tallies}


def compare_all(files: Sequence[Path], work: Path, crops: int) -> dict[str, Any]:
    """Both transforms on some photos."""
    folder = linked(files, len(files), work / "photos")
    packed = {codec: work / codec for codec in ("blocks", "jpeg")}
    for codec, target in packed.items():
        fastio.pack(folder, target, codec=codec)  # type: ignore[arg-type]
    return {
        f"RandomResizedCrop(224), {crops} crops a photo": compare(folder, packed, TRAINING, crops),
        "Resize(256) + CenterCrop(224)": compare(folder, packed, VALIDATION, 1),
    }


def table(summaries: dict[str, dict[str, float]]) -> Table:
    out = new_table(
        "", "crops", "mean difference", "equal", "within one", "most", "PSNR dB", "worst dB"
    )
    for name, s in summaries.items():
        out.add_row(
            name,
            f"{s['crops']:,}",
            f"{s['mean_abs_difference']:.4f}",
            f"{s['equal']:.2%}",
            f"{s['within_one']:.3%}",
            f"{s['most']}",
            f"{s['psnr']:.1f}",
            f"{s['worst_psnr']:.1f}",
        )
    return out


def measured(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    files = source_photos(arguments, work)
    about = about_photos(files, arguments.held_out)
    differences = {about: compare_all(files, work / "given", arguments.crops)}
    if arguments.large:
        large = make_large(files, work / "made-large", LARGE_MEGAPIXELS, arguments.large)
        name = f"{len(large)} photos of {LARGE_MEGAPIXELS} megapixels made of them"
        differences[name] = compare_all(large, work / "large", arguments.large_crops)
    return {"machine": machine(), "differences": differences}


def main() -> None:
    parser = photo_parser(__doc__)
    parser.add_argument("--crops", type=int, default=4, help="of each photo (4)")
    parser.add_argument("--large", type=int, default=8, help="12-megapixel photos; 0: none (8)")
    parser.add_argument("--large-crops", type=int, default=12, help="of each of those (12)")
    arguments = parser.parse_args()
    with temporary_folder() as work:
        result = measured(arguments, work)
    out = console()
    for about, by_transform in result["differences"].items():
        for transform, summaries in by_transform.items():
            out.print(f"{transform}: {about}", table(summaries), sep="\n")
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
