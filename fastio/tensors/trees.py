"""Tensors of a batch before they are handed out: trees of them, views of slots, last transforms."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastio.errors import TransformError
from fastio.tensors.ragged import is_jagged, map_jagged
from fastio.transforms import BATCH_TRANSFORMS, Normalize, ToDtype, ViewList

Int64s = np.ndarray[Any, np.dtype[np.int64]]
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
Tree = Any  # tensors in tuples, named tuples, lists and mappings, beside any other values


# Trees


def map_leaves(
    function: Callable[[Any], Any], tree: Tree, is_leaf: Callable[[Any], bool] | None = None
) -> Tree:
    """Returns a tree with the same structure after a function is applied to each leaf.

    Tuples, named tuples, lists and mappings are branches; everything else (strings too) is a leaf,
    and so is whatever `is_leaf` says. A mapping keeps its type if it can be copied and updated.
    """
    if is_leaf is not None and is_leaf(tree):
        return function(tree)
    if isinstance(tree, tuple):
        values = [map_leaves(function, value, is_leaf) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    if isinstance(tree, list):
        values = [map_leaves(function, value, is_leaf) for value in tree]
        return ViewList(values) if isinstance(tree, ViewList) else values
    if isinstance(tree, Mapping):
        mapped = {key: map_leaves(function, value, is_leaf) for key, value in tree.items()}
        if type(tree) is dict or not isinstance(tree, MutableMapping):
            return mapped
        clone = copy.copy(tree)  # defaultdict and others that a plain call would not rebuild
        clone.update(mapped)
        return clone
    return function(tree)


def first_tensor(tree: Tree) -> Tensor | None:
    """Returns the first tensor among the leaves, or None."""
    found: list[Tensor] = []
    map_leaves(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, tree)
    return found[0] if found else None


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Returns the tree with its tensors on a device; CUDA copies are put on the current stream.

    Strides are kept. Other leaves stay as they are, except those that have both `to` and
    `record_stream`, as a tensor has (graph batches do).
    """
    non_blocking = device.type == "cuda"

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            movable = hasattr(leaf, "to") and hasattr(leaf, "record_stream")
            return leaf.to(device, non_blocking=non_blocking) if movable else leaf
        if is_jagged(leaf):
            return map_jagged(move, leaf)
        if non_blocking and not leaf.is_cuda:
            leaf = _pinned_as_one(leaf)  # a copy of anything else would wait for the stream
        return leaf.to(device, non_blocking=non_blocking)

    return map_leaves(move, tree)


def pin(tree: Tree) -> Tree:
    """Returns the tree with its tensors in pinned memory, copied if necessary. Requires CUDA.

    Other leaves with a method `pin_memory` are replaced by its result, as DataLoader does.
    """

    def pinned(leaf: Any) -> Any:
        if is_jagged(leaf):
            return map_jagged(pinned, leaf)
        if isinstance(leaf, Tensor):
            return _pinned_as_one(leaf)
        return leaf.pin_memory() if hasattr(leaf, "pin_memory") else leaf

    return map_leaves(pinned, tree)


def _pinned_as_one(leaf: Tensor) -> Tensor:
    """Returns a tensor in pinned memory without gaps between its elements, copied if necessary.

    torch's own pin_memory would first copy a part of wider rows (documents that are cut to the
    longest one) to pageable memory.
    """
    if leaf.layout != torch.strided or leaf.is_nested:
        return leaf.pin_memory()
    extent = 1 + sum((n - 1) * step for n, step in zip(leaf.shape, leaf.stride(), strict=True))
    if extent == leaf.numel() or leaf.numel() == 0:
        return leaf if leaf.is_pinned() else leaf.pin_memory()
    return torch.empty_like(leaf, pin_memory=True).copy_(leaf)


def merged(trees: list[tuple[Any, Int64s]], count: int, pinned: bool) -> Any:
    """Joins batches of the same structure into one.

    Args:
        trees: each batch, and the places of its rows in the result, int64 (n,). Tensors of one
            shape become one tensor, everything else becomes lists.
        count: number of rows of the result.
        pinned: whether its tensors are in pinned memory; needs CUDA.
    """
    first = trees[0][0]
    if isinstance(first, dict):
        return {
            key: merged([(tree[key], at) for tree, at in trees], count, pinned) for key in first
        }
    if isinstance(first, (tuple, ViewList)):
        return type(first)(
            merged([(tree[place], at) for tree, at in trees], count, pinned)
            for place in range(len(first))
        )
    parts = [tree for tree, _ in trees]
    if all(isinstance(part, Tensor) and part.shape[1:] == first.shape[1:] for part in parts):
        return _merged_tensors(trees, count, pinned)
    values: list[Any] = [None] * count
    for part, at in trees:
        for place, value in zip(at.tolist(), part, strict=True):
            values[place] = value
    return values


def _merged_tensors(trees: list[tuple[Tensor, Int64s]], count: int, pinned: bool) -> Tensor:
    first = trees[0][0]
    channels_last = first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)
    out = torch.empty(
        (count, *first.shape[1:]),
        dtype=first.dtype,
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
        pin_memory=pinned,
    )
    # torch 2.13 cannot assign to indexed rows of uint16, uint32 and uint64 tensors.
    signed = _SIGNED.get(first.dtype)
    for part, at in trees:
        places = torch.from_numpy(at)
        if signed is None or part.dtype != first.dtype:
            out[places] = part  # raises an error for another type
        else:
            out.view(signed)[places] = part.view(signed)
    return out


def rows_of(tree: Tree, places: Int64s) -> Tree:
    """Returns the rows of a batch at some places, int64 (n,)."""
    if isinstance(tree, dict):
        return {key: rows_of(value, places) for key, value in tree.items()}
    if isinstance(tree, (tuple, ViewList)):
        return type(tree)(rows_of(value, places) for value in tree)
    if isinstance(tree, Tensor):
        return tree[torch.from_numpy(places)]
    return [tree[place] for place in places.tolist()]


# Slots as tensors


def image_tensors(images: Any, *, channels_last: bool, fresh: bool = False) -> Any:
    """Returns the image rows of a slot as tensors that share their memory.

    Args:
        images: an array (N, H, W, C), or (N, C, H, W) without `channels_last`; or a list of N
            arrays (H, W, C) or (C, H, W), whose sizes may differ.
        channels_last: the layout of the arrays.
        fresh: whether the array is memory of `pinned_memory` that is not used again. The result is
            then a view of the tensor that owns the memory, so that torch's allocator knows of every
            copy from it and waits for them before it reuses the memory.

    Returns:
        A tensor (N, C, H, W), or a list of N tensors (C, H, W) if sizes differ.
    """
    if isinstance(images, list):
        if len({image.shape for image in images}) == 1:
            stacked = torch.from_numpy(np.stack(images))
            return stacked.permute(0, 3, 1, 2) if channels_last else stacked
        views = [torch.from_numpy(image) for image in images]
        return [view.permute(2, 0, 1) for view in views] if channels_last else views
    tensor = owner_tensor(images) if fresh else torch.from_numpy(images)
    return tensor.permute(0, 3, 1, 2) if channels_last else tensor


def owner_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Returns an array as a view of the tensor that owns its memory, if a tensor owns it."""
    owner: Any = array
    while isinstance(owner, np.ndarray):  # views of views
        owner = owner.base
    same = torch.from_numpy(array)
    if not isinstance(owner, Tensor):
        return same
    whole = owner.view(same.dtype)
    offset = (same.data_ptr() - owner.data_ptr()) // same.element_size()
    return whole.as_strided(same.shape, same.stride(), offset)


def value_tensors(values: Any, *, fresh: bool = False) -> Any:
    """Returns a field without images as tensors that share its memory.

    Args:
        values: an array or a list; a list of str or bytes is returned as it is.
        fresh: as in `image_tensors`.
    """
    if isinstance(values, np.ndarray):
        return owner_tensor(values) if fresh else torch.from_numpy(values)
    return [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values]


def pinned_memory(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Returns an uninitialised C-order array in page-locked memory. Requires CUDA.

    A GPU copies from it at full speed while the consumer works. The memory is freed when no array
    or view refers to it.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    # The array keeps the tensor, and the tensor returns the memory to torch's allocator.
    memory = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    array: np.ndarray[Any, Any] = memory.view(dtype).reshape(shape)
    return array


# Last transforms


class Tail:
    """The last steps of a field's transforms, on tensors (N, C, H, W) or (C, H, W).

    As torchvision's: Normalize is (x - mean) / std; on uint8 it is taken to follow
    ToDtype(float32, scale=True). Memory format is kept. Constants are put on each device once.

    Args:
        steps: Normalize and ToDtype, in order.

    Raises (when called):
        TransformError: a step does not fit the tensor's dtype.
    """

    def __init__(self, steps: Sequence[Normalize | ToDtype]) -> None:
        self._steps = tuple(steps)
        self._constants: dict[tuple[Normalize, bool, torch.dtype, torch.device], list[Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_steps": self._steps, "_constants": {}}  # another process may not have the device

    def __call__(self, x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return [self(image) for image in x]
        for step in self._steps:
            x = self._normalize(x, step) if isinstance(step, Normalize) else _to_dtype(x, step)
        return x

    def _normalize(self, x: Tensor, step: Normalize) -> Tensor:
        bytes_in = x.dtype == torch.uint8
        if not bytes_in and not x.is_floating_point():
            raise TransformError(f"Normalize needs uint8 or floating images, got {x.dtype}")
        dtype = torch.float32 if bytes_in else x.dtype
        key = (step, bytes_in, dtype, x.device)
        if key not in self._constants:
            mean = torch.tensor(step.mean, dtype=torch.float64)[:, None, None]
            std = torch.tensor(step.std, dtype=torch.float64)[:, None, None]
            # Bytes become floats in a new tensor anyway, so that scaling and normalising them takes
            # one multiplication and one addition in place. Computed in float64, rounded once.
            pair = (1 / (255 * std), -mean / std) if bytes_in else (mean, std)
            self._constants[key] = [value.to(x.device, dtype) for value in pair]
        first, second = self._constants[key]
        # Floats may share their memory with the caller, so the subtraction makes a new tensor.
        return x.to(dtype).mul_(first).add_(second) if bytes_in else x.sub(first).div_(second)


def _to_dtype(x: Tensor, step: ToDtype) -> Tensor:
    dtype: torch.dtype = getattr(torch, step.dtype)
    if not step.scale or x.dtype == dtype or (x.is_floating_point() and dtype.is_floating_point):
        return x.to(dtype)
    if x.dtype == torch.uint8 and dtype.is_floating_point:
        return x.to(dtype).mul_(1 / 255)
    if x.is_floating_point() and dtype == torch.uint8:
        # torchvision's rounding: 256 equal intervals, 1.0 in the last.
        return x.mul(255 + 1.0 - 1e-3).to(dtype)
    raise TransformError(f"ToDtype(scale=True) cannot turn {x.dtype} into {dtype}")


Step = tuple[int | str | None, Callable[..., Any]]


class Finish:
    """Applies functions to parts of a batch, one after the other.

    Args:
        steps: (key, function): the part of the batch under `key` (a position in a tuple or list,
            a key of a mapping, None for the whole batch) becomes function(part).
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)

    @property
    def mixing(self) -> list[Any]:
        """The steps that mix the samples of a batch."""
        return [function for _, function in self._steps if isinstance(function, BATCH_TRANSFORMS)]

    def __call__(self, data: Tree, draw: Any = None) -> Tree:
        """Returns the batch after all steps.

        Args:
            data: the batch.
            draw: what the random numbers of the batch depend on, for steps that draw some.
        """
        for key, function in self._steps:
            if isinstance(function, BATCH_TRANSFORMS):
                data = function(data, draw)
            else:
                data = function(data) if key is None else _with_part(data, key, function)
        return data


def _with_part(data: Tree, key: int | str, function: Callable[[Any], Any]) -> Tree:
    if isinstance(data, tuple):
        parts = list(data)
        place = int(key)
        parts[place] = function(parts[place])
        return type(data)(*parts) if hasattr(data, "_fields") else tuple(parts)
    clone = copy.copy(data)
    clone[key] = function(clone[key])
    return clone
