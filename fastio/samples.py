"""Samples for `collate_fn`: what indexing the dataset gives, made of a batch that was decoded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fastio.dataset.pixels import pillow_image
from fastio.ragged import RaggedBatch
from fastio.schema import Field, Image

ImageForm = Literal["array", "pillow", "tensor", "tv_tensor"]
_PYTHONS = (np.int64, np.float64, np.bool_)  # what Python has without loss


@dataclass(frozen=True)
class SampleForm:
    """What `dataset[i]` gives.

    Attributes:
        images: "array": uint8 (H, W, C); "pillow": PIL images; "tensor": tensors (C, H, W);
            "tv_tensor": such as a torchvision.tv_tensors.Image. None: arrays, and tensors where the
            loader has transforms for them.
        python: numbers are Python's and arrays are lists, as in rows of the datasets package.
            Otherwise numbers that Python has not (int32, float32, ...) are NumPy's, and arrays too.
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
    """One field of the samples of a batch.

    Args:
        raw: the field as the engine has it: an array (n, ...), a list, or a `RaggedBatch`.
        part: the same as tensors, transforms done.
        kind: of the field.
        form: what samples look like.
        transformed: whether the loader has transforms for the field.
        channels_last: images in `raw` are (H, W, C), else (C, H, W).
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
