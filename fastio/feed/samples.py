"""Samples for `collate_fn`, made from a decoded batch in the form that `dataset[i]` has."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fastio.engine.ragged import RaggedBatch
from fastio.packed.pixels import pillow_image
from fastio.schema import Field, Image

ImageForm = Literal["array", "pillow", "tensor", "tv_tensor"]
_PYTHONS = (np.int64, np.float64, np.bool_)  # types that convert to Python without loss


@dataclass(frozen=True)
class SampleForm:
    """The form of `dataset[i]`.

    Attributes:
        images: "array" for uint8 (H, W, C); "pillow" for PIL images; "tensor" for tensors (C, H,
            W); "tv_tensor" for torchvision.tv_tensors.Image. None gives arrays, and tensors if the
            loader has transforms for them.
        python: whether numbers are Python's and arrays are lists, as in rows of the datasets
            package. Otherwise arrays, and numbers of types that Python lacks (int32, float32, ...),
            are NumPy's.
    """

    images: ImageForm | None = None
    python: bool = False


def field_samples(
    raw: Any,
    part: Any,
    kind: Field,
    form: SampleForm,
    *,
    transformed: bool,
    channels_last: bool,
) -> list[Any]:
    """Returns one field of the samples of a batch.

    Args:
        raw: values of the field as the engine gives them: an array (n, ...), a list, or a
            `RaggedBatch`.
        part: the same values as tensors, after transforms.
        kind: type of the field.
        form: form of the samples.
        transformed: whether the loader has transforms for the field.
        channels_last: whether images in `raw` are (H, W, C); else they are (C, H, W).
    """
    if isinstance(kind, Image):
        images = form.images or ("tensor" if transformed else "array")
        if images in ("tensor", "tv_tensor"):
            return [_tv_image(image) for image in part] if images == "tv_tensor" else list(part)
        rows = list(raw) if channels_last else [row.transpose(1, 2, 0) for row in raw]
        return [pillow_image(r) if images == "pillow" else np.ascontiguousarray(r) for r in rows]
    if transformed:
        return list(part)
    if isinstance(raw, RaggedBatch):
        raw = raw.rows()
    if form.python:
        if isinstance(raw, np.ndarray):
            return list(raw.tolist())
        return [row.tolist() if isinstance(row, np.ndarray) else row for row in raw]
    if isinstance(raw, np.ndarray) and raw.ndim == 1 and raw.dtype in _PYTHONS:
        return list(raw.tolist())
    return list(raw)


def _tv_image(image: Any) -> Any:
    # torchvision is there where one of its transforms is.
    return sys.modules["torchvision.tv_tensors"].Image(image)
