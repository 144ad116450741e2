"""Image fields in the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fastio import _native
from fastio.engine.batch import AnyArray
from fastio.engine.fields.images import ImageSource
from fastio.errors import TransformError
from fastio.packed.rows import Rows
from fastio.schema import Image, Schema
from fastio.stage import Stager
from fastio.transforms import Compiled, Pointwise, affine, augmentation


@dataclass(frozen=True)
class ImageField:
    """The settings of an image field, known before the first batch."""

    name: str
    source: ImageSource
    compiled: Compiled
    geometry: _native.Geometry
    channels: int
    affine: tuple[list[float], list[float]] | None
    tail: tuple[Pointwise, ...]
    max_pixels: int

    def shape(self, channels_last: bool) -> tuple[tuple[int, ...], str] | None:
        """Returns the shape and dtype of one row in a slot; None if sizes differ."""
        size = self.compiled.size
        if size is None:
            return None
        shape = (*size, self.channels) if channels_last else (self.channels, *size)
        return shape, "uint8" if self.affine is None else "float32"

    def decode_with_pillow(
        self, row: int, draws: tuple[int, int, int], channels_last: bool, out: AnyArray | None
    ) -> AnyArray | None:
        """Decodes one image with Pillow that the native engine cannot decode.

        Args:
            row: row of the dataset.
            draws: seed, epoch and key of the augmentations; see `plan.draw_keys`.
            channels_last: layout of `out`, or of the result.
            out: the row's memory in a slot, which is filled; None if sizes differ.

        Returns:
            uint8 (H, W, C) or (C, H, W) if there is no `out`.
        """
        pixels = self.source.pixels(row)
        height, width = pixels.shape[:2]
        seed, epoch, key = draws
        place = out
        if place is None:
            (plan,) = augmentation(self.compiled, seed, epoch, [key], [height], [width])
            size, depth = plan.window[2:], self.channels
            place = np.empty((*size, depth) if channels_last else (depth, *size), np.uint8)
        _native.transform(
            self.geometry, seed, epoch, key, pixels, place, channels_last, self.affine
        )
        return place if out is None else None


def check_names(schema: Schema, fields: Sequence[str], transforms: Mapping[str, Compiled]) -> None:
    """Raises an error if a field does not exist, or transforms are given for a non-image field.

    Raises:
        TransformError: with the names of the existing fields.
    """
    for name in (*fields, *transforms):
        if name not in schema.fields:
            raise TransformError(f"no field {name!r}: the dataset has {', '.join(schema.fields)}")
    for name in transforms:
        if not isinstance(schema.fields[name], Image):
            raise TransformError(f"field {name!r} is no image, transforms are for images")


def image_field(
    dataset: Rows,
    name: str,
    kind: Image,
    compiled: Compiled | None,
    normalize_on_cpu: bool,
    stager: Stager | None = None,
) -> ImageField:
    """Returns one image field with compiled transforms; `compiled` None keeps the pixels."""
    compiled = compiled or Compiled()
    fused = None
    if normalize_on_cpu and compiled.size is not None:
        fused = affine(compiled.tail, kind.channels)
    return ImageField(
        name,
        ImageSource(dataset, name, stager),
        compiled,
        compiled.native(),
        kind.channels,
        fused,
        compiled.tail if fused is None else (),
        dataset.max_pixels,
    )
