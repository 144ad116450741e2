"""Hugging Face datasets: the files' bytes in Arrow, `set_transform`, torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets  # type: ignore[import-untyped,import-not-found,unused-ignore]
from torch.utils.data import DataLoader
from vision import crop_and_normalize, decoded
from work import Pairs, Settings, listed


def _rows(files: list[tuple[Path, int]]) -> Iterator[dict[str, Any]]:
    for file, label in files:
        yield {"image": {"bytes": file.read_bytes(), "path": None}, "label": label}


def prepare(photos: Path, target: Path, variant: str) -> None:
    """A dataset with a column Image, saved to disk."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    with TemporaryDirectory(dir=target) as cache:
        made = datasets.Dataset.from_generator(
            _rows, features=features, gen_kwargs={"files": listed(photos)}, cache_dir=cache
        )
        made.save_to_disk(str(target / "saved"))


def open_loader(data: Path, settings: Settings) -> Iterable[Any]:
    """The column's bytes are decoded by the transform: by its own feature, Pillow would."""
    dataset = datasets.load_from_disk(str(data / "saved"))
    dataset = dataset.cast_column("image", datasets.Image(decode=False))
    crop = crop_and_normalize()

    def transform(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        images = [crop(decoded(image["bytes"])) for image in rows["image"]]
        return {"image": images, "label": rows["label"]}

    dataset.set_transform(transform)
    return Pairs(
        DataLoader(
            dataset,
            settings.batch,
            shuffle=True,
            num_workers=settings.threads,
            persistent_workers=True,
        )
    )
