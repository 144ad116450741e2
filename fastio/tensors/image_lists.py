"""Batches of lists of images as tensors, and the last transforms of their images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fastio.engine.ragged import LENGTH_SUFFIX, Form, RaggedBatch
from fastio.tensors.ragged import is_jagged, nested, ragged_parts
from fastio.tensors.trees import Tail


def image_list_parts(
    name: str, values: RaggedBatch | list[list[Any]], *, channels_last: bool
) -> dict[str, Any]:
    """Returns a field of lists of images as tensors that share its memory.

    Args:
        name: name of the field.
        values: images of one size; or a list of n lists of arrays, if their sizes may differ.
        channels_last: whether the arrays are (H, W, C); else they are (C, H, W).

    Returns:
        What `ragged_parts` does, of rows (images, C, H, W). For lists: a list of n lists of tensors
        (C, H, W).
    """

    def planar(images: Tensor) -> Tensor:
        return images.movedim(-1, -3) if channels_last else images

    if isinstance(values, RaggedBatch):
        return ragged_parts(name, values, planar)
    return {name: [[planar(torch.from_numpy(image)) for image in images] for images in values]}


class OnImageLists:
    """Applies functions to a field of lists of images of a batch.

    Args:
        key: the field's position in a tuple or key of a dict; None if it is the only value.
        form: form of the batch.
        functions: functions that get the lists of the batch in its form, without the lengths or
            offsets beside them. A `Tail` gets each image, and padding stays zero.
    """

    def __init__(
        self,
        key: int | str | None,
        form: Form,
        functions: Sequence[Callable[[Any], Any]],
    ) -> None:
        self._key = key
        self._form = form
        self._functions = tuple(functions)

    def __call__(self, data: Any) -> Any:
        """Returns the batch after the functions."""
        if self._key is None:
            return self._with_sizes(data)
        if isinstance(data, tuple):
            return tuple(
                self._with_sizes(part) if place == self._key else part
                for place, part in enumerate(data)
            )
        lengths = data.get(f"{self._key}{LENGTH_SUFFIX}")
        return {**data, self._key: self._applied(data[self._key], lengths)}

    def _with_sizes(self, part: Any) -> Any:
        """Returns a field after the functions, which is a tuple if its lengths or offsets follow.

        Args:
            part: the field, or a tuple of it and its sizes.
        """
        if not isinstance(part, tuple):
            return self._applied(part, None)
        values, *sizes = part
        return (self._applied(values, sizes[0]), *sizes)

    def _applied(self, values: Any, lengths: Tensor | None) -> Any:
        for function in self._functions:
            if isinstance(function, Tail) and is_jagged(values):
                images = function(values.values())
                values = nested(images, values.offsets(), values._ragged_idx)
            else:
                values = function(values)
            if isinstance(function, Tail) and self._form == "padded":
                # Normalize changes the zeros of the padding after the last image.
                assert lengths is not None
                there = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
                values = values.masked_fill_(~there[:, :, None, None, None], 0)
        return values
