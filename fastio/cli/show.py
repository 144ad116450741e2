"""fastio show: a contact sheet of a dataset."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import clear_errors
from fastio.errors import SchemaError

if TYPE_CHECKING:
    from fastio.dataset import Dataset
    from fastio.formats import FolderDataset

_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def show(
    dst: Annotated[str, typer.Argument(help="A packed dataset or an image folder.")],
    out: Annotated[Path, typer.Option(help="The image to write, as in sheet.png.")],
    count: Annotated[int, typer.Option(min=1, help="Samples to show.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Chooses the samples.")] = 0,
) -> None:
    """Draw samples and their labels on a contact sheet."""
    if out.suffix.lower() not in _IMAGE_SUFFIXES:
        raise typer.BadParameter(f"--out must end in {', '.join(_IMAGE_SUFFIXES)}, got {out}")
    with clear_errors():
        from fastio.formats import open_any
        from fastio.report import contact_sheet

        with open_any(dst) as dataset:
            field = _image_field(dataset)
            rows = _choose(len(dataset), count, seed)
            images = (_value(dataset, row, field) for row in rows)
            contact_sheet(images, _captions(dataset, rows)).save(out)
            print(f"{out}: {len(rows)} of {len(dataset):,} samples")


def _choose(rows: int, count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(rows), min(count, rows))


def _image_field(dataset: Dataset | FolderDataset) -> str:
    fields = dataset.schema.image_fields
    if not fields:
        raise SchemaError(f"{dataset.path} has no images to show")
    return fields[0]


def _value(dataset: Dataset | FolderDataset, row: int, field: str) -> Any:
    """One field of a sample, whatever its structure."""
    sample: Any = dataset[row]
    if dataset.schema.structure == "dict":
        return sample[field]
    if dataset.schema.structure == "tuple":
        return sample[list(dataset.schema.fields).index(field)]
    return sample


def _captions(dataset: Dataset | FolderDataset, rows: list[int]) -> list[str]:
    """The rows' numbers and their values that can be told in a word."""
    import numpy as np

    from fastio.schema import Scalar, Text

    captions = [str(row) for row in rows]
    separator = ": "
    for name, kind in dataset.schema.fields.items():
        if not isinstance(kind, (Scalar, Text)):
            continue
        words = [str(value) for value in dataset.gather(name, np.array(rows))]
        if dataset.classes and name in ("label", "class"):
            classes = dict(enumerate(dataset.classes))
            words = [classes.get(int(word), word) for word in words]
        captions = [
            f"{caption}{separator}{word}" for caption, word in zip(captions, words, strict=True)
        ]
        separator = ", "
    return captions
