"""Results of Python functions for the samples of a batch, and the memory in which they lie.

A result is an array, a tensor, a PIL image, or a dict, tuple or list of such values and others. Its
arrays are numbered in the order in which they come. The memory of a batch has a region for each
number, in which array k of row i lies at i * capacity. Arrays that do not fit, because no result
was seen yet or a larger one came, are kept beside the memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastio.engine.ragged import Selectable
from fastio.packed.pixels import pillow_image
from fastio.runtime.properties import cached_property
from fastio.tensors.trees import map_leaves

Kind = Literal["array", "tensor", "image", "pillow"]
AnyArray = npt.NDArray[Any]
_ALIGNED = 64


class Lying(NamedTuple):
    """An array of a result that lies in the memory of the batch.

    Attributes:
        number: number of the array among the arrays of the result.
        dtype, shape: dtype and shape of the array. Arrays of kind "image" and "pillow" are
            (C, H, W), or (H, W, C) if image batches are channels last.
        kind: what the function returned.
    """

    number: int
    dtype: str
    shape: tuple[int, ...]
    kind: Kind


class Loose(NamedTuple):
    """An array of a result that has memory of its own."""

    array: AnyArray
    kind: Kind


_ARRAYS = (Lying, Loose)


@dataclass(frozen=True)
class Layout:
    """Where the arrays of results lie in the memory of a batch.

    Attributes:
        rows: number of rows.
        capacities: bytes of a row in the region of each array.
    """

    rows: int
    capacities: tuple[int, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The offset of each region in bytes, and the size of the memory."""
        sizes = [-(-self.rows * each // _ALIGNED) * _ALIGNED for each in self.capacities]
        return tuple(accumulate(sizes, initial=0))

    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes."""
        return self.offsets[-1]


class ResultWriter:
    """Writes results of rows to the memory of a batch.

    Args:
        memory: uint8 (n,), at least the layout's size; None if it has no regions.
        layout: where the arrays go.
        image: whether a result that is an array of three axes is an image (H, W, C).
        channels_last: whether images are stored (H, W, C).

    Attributes:
        sizes: smallest and largest size in bytes of each array.
    """

    def __init__(
        self, memory: AnyArray | None, layout: Layout, image: bool, channels_last: bool
    ) -> None:
        self._memory = memory
        self._layout = layout
        self._image = image
        self._channels_last = channels_last
        self._row = self._next = 0
        self._last: Any = None
        self.sizes: dict[int, tuple[int, int]] = {}

    def put(self, row: int, value: Any) -> Any:
        """Returns a result with `Lying` and `Loose` in place of its arrays."""
        self._row, self._next = row, 0
        if self._image and isinstance(value, np.ndarray) and value.ndim == 3:
            put = self._array(value, "image")
        else:
            put = map_leaves(self._leaf, value, _is_leaf)
        # Equal sizes share one object, which is pickled once.
        if type(put) is type(self._last) is Lying and put == self._last:
            return self._last
        self._last = put
        return put

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return self._array(value, "array")
        if isinstance(value, Tensor):
            numbers = _numbers(value)
            return value if numbers is None else self._array(numbers, "tensor")
        if is_pillow(value):
            pixels = np.asarray(value)
            return self._array(pixels[..., None] if pixels.ndim == 2 else pixels, "pillow")
        return value

    def _array(self, array: AnyArray, kind: Kind) -> Lying | Loose:
        if kind in ("image", "pillow") and not self._channels_last:
            array = array.transpose(2, 0, 1)
        number = self._next
        self._next += 1
        capacities = self._layout.capacities
        least, most = self.sizes.get(number, (array.nbytes, 0))
        self.sizes[number] = min(least, array.nbytes), max(most, array.nbytes)
        # There is no memory if all arrays have been empty so far.
        if not array.nbytes or number >= len(capacities) or array.nbytes > capacities[number]:
            return Loose(np.array(array, order="C"), kind)
        begin = self._layout.offsets[number] + self._row * capacities[number]
        np.copyto(_in(self._memory, begin, array.dtype, array.shape), array)
        return Lying(number, array.dtype.str, array.shape, kind)


class Results(Selectable):
    """The results of the samples of a batch.

    Args:
        values: result of each sample, as `ResultWriter.put` returned it.
        memory: memory of the batch; None if no array lies in it.
        layout: where arrays lie in it.
        channels_last: whether images are stored (H, W, C).
        rows: int64 (n,), row of each sample in the memory; None if they are in order.
    """

    def __init__(
        self,
        values: Sequence[Any],
        memory: AnyArray | None,
        layout: Layout,
        channels_last: bool,
        rows: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._values = values
        self._memory = memory
        self._layout = layout
        self._channels_last = channels_last
        self._rows = rows

    def __len__(self) -> int:
        return len(self._values)

    def take(self, places: npt.NDArray[np.int64]) -> Results:
        """Returns the results of some samples."""
        rows = places if self._rows is None else self._rows[places]
        values = [self._values[place] for place in places.tolist()]
        return Results(values, self._memory, self._layout, self._channels_last, rows)

    def batch(self) -> Any:
        """Returns the results as a batch: stacked where shapes agree, else as lists."""
        return self._collated(list(self._values))

    def samples(self, pillow: bool) -> list[Any]:
        """Returns the results one by one, as the function returned them.

        Args:
            pillow: whether PIL images are returned as such; else as tensors (C, H, W).
        """

        def restored(value: Lying | Loose, row: int) -> Any:
            array = self._array(value, row)
            if value.kind == "pillow" and pillow:
                return pillow_image(array if self._channels_last else array.transpose(1, 2, 0))
            return array if value.kind == "array" else self._as_tensor(array, value.kind)

        return self._restored(self._values, restored)

    def _collated(self, values: list[Any]) -> Any:
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            if all(isinstance(value, _ARRAYS) for value in values):
                return self._stacked(values)
            if all(type(value) in (bool, int, float) for value in values):
                return _of_numbers(values)
            return self._restored(values, self._tensor)
        if isinstance(first, Lying) and self._rows is None and values.count(first) == len(values):
            # If all arrays have one shape and fill their places, their memory is the batch, without
            # a copy.
            capacity = self._layout.capacities[first.number]
            if np.dtype(first.dtype).itemsize * int(np.prod(first.shape)) == capacity:
                begin = self._layout.offsets[first.number]
                shape = (len(values), *first.shape)
                return self._as_tensor(_in(self._memory, begin, first.dtype, shape), first.kind)
        if isinstance(first, _ARRAYS):
            return self._stacked(values)
        if isinstance(first, dict) and all(value.keys() == first.keys() for value in values):
            return {key: self._collated([value[key] for value in values]) for key in first}
        if isinstance(first, (tuple, list)) and all(len(value) == len(first) for value in values):
            parts = [self._collated(list(part)) for part in zip(*values, strict=True)]
            if isinstance(first, list):
                return parts
            return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
        if isinstance(first, (bool, int, float, np.number, np.bool_)):
            return _of_numbers(values)
        if isinstance(first, Tensor) and len({(v.shape, v.dtype) for v in values}) == 1:
            return torch.stack(values)
        return self._restored(values, self._tensor)

    def _in_rows(self, values: Sequence[Any]) -> Iterable[tuple[Any, int]]:
        """Returns the samples' values with their rows in the memory."""
        rows = range(len(values)) if self._rows is None else self._rows.tolist()
        return zip(values, rows, strict=True)

    def _restored(
        self, values: Sequence[Any], restored: Callable[[Lying | Loose, int], Any]
    ) -> list[Any]:
        """Returns values of any structure as a list, with their arrays converted by a function."""

        def of_leaf(row: int, leaf: Any) -> Any:
            return restored(leaf, row) if isinstance(leaf, _ARRAYS) else leaf

        return [
            map_leaves(partial(of_leaf, row), value, _is_leaf)
            for value, row in self._in_rows(values)
        ]

    def _stacked(self, values: list[Any]) -> Any:
        arrays = [self._array(value, row) for value, row in self._in_rows(values)]
        alike = len({(array.shape, array.dtype) for array in arrays}) == 1
        if alike and len({value.kind for value in values}) == 1:
            return self._as_tensor(np.stack(arrays), values[0].kind)
        return self._restored(values, self._tensor)

    def _tensor(self, value: Lying | Loose, row: int) -> Tensor:
        return self._as_tensor(self._array(value, row), value.kind)

    def _as_tensor(self, array: AnyArray, kind: Kind) -> Tensor:
        tensor = torch.from_numpy(array)
        last = self._channels_last and kind in ("image", "pillow")
        return tensor.movedim(-1, -3) if last else tensor

    def _array(self, value: Lying | Loose, row: int) -> AnyArray:
        if isinstance(value, Loose):
            return value.array
        begin = self._layout.offsets[value.number] + row * self._layout.capacities[value.number]
        return _in(self._memory, begin, value.dtype, value.shape)


def _is_leaf(value: Any) -> bool:
    """Returns whether a tuple or a mapping in a result is a leaf of it."""
    # A mapping that is not a dict may accept only tensors as values, for example a TensorDict.
    return isinstance(value, _ARRAYS) or (
        isinstance(value, Mapping) and not isinstance(value, dict)
    )


def is_pillow(value: Any) -> bool:
    """Returns whether a value is a PIL image."""
    # Pillow is not imported for this: a process without it can have no images of it.
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def _in(memory: AnyArray | None, begin: int, dtype: Any, shape: tuple[int, ...]) -> AnyArray:
    """Returns an array that lies in the memory of a batch."""
    assert memory is not None
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    view: AnyArray = memory[begin : begin + nbytes].view(dtype).reshape(shape)
    return view


def _numbers(tensor: Tensor) -> AnyArray | None:
    """Returns a tensor as an array that shares its memory; None if NumPy has no such arrays."""
    try:
        array: AnyArray = tensor.detach().numpy()
    except (TypeError, RuntimeError):  # bfloat16, sparse, of another device
        return None
    return array


def _of_numbers(values: list[Any]) -> Any:
    array = np.asarray(values)
    # Integers that fit no dtype make an array of objects, which torch does not take, or of rounded
    # floats.
    rounded = array.dtype.kind == "f" and all(isinstance(value, int) for value in values)
    exact = array.dtype.kind in "biufc" and not rounded
    return torch.from_numpy(array) if exact else values
