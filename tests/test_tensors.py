"""Tensors of a batch: trees, views of slots, and the last transforms."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch

from fastio import Normalize, ToDtype, TransformError
from fastio.tensors.trees import (
    Finish,
    Tail,
    first_tensor,
    image_tensors,
    map_leaves,
    owner_tensor,
    to_device,
    value_tensors,
)
from tests.support import import_torchvision

CPU = torch.device("cpu")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Pair = namedtuple("Pair", ["left", "right"])


# Trees


def test_map_leaves_keeps_the_shape_of_every_branch() -> None:
    tree = {"a": [1, (2, 3)], "b": Pair(4, OrderedDict(c=5)), "d": "text"}
    mapped = map_leaves(lambda x: x * 10 if isinstance(x, int) else x, tree)
    assert mapped == {"a": [10, (20, 30)], "b": Pair(40, OrderedDict(c=50)), "d": "text"}
    assert isinstance(mapped["b"], Pair)
    assert isinstance(mapped["b"].right, OrderedDict)


def test_map_leaves_keeps_the_type_of_a_mapping_that_no_plain_call_rebuilds() -> None:
    tree = defaultdict(list, a=1)
    mapped = map_leaves(lambda x: x + 1, tree)
    assert mapped == {"a": 2}
    assert mapped["missing"] == []
    assert tree == {"a": 1}


def test_to_device_leaves_what_is_no_tensor_as_it_is() -> None:
    marker = object()
    moved = to_device({"x": torch.ones(2), "y": [marker, b"bytes"]}, CPU)
    assert torch.equal(moved["x"], torch.ones(2))
    assert moved["y"] == [marker, b"bytes"]


def test_first_tensor_is_found_at_any_depth() -> None:
    assert first_tensor(["a", {"b": (1, torch.tensor(7))}, torch.tensor(8)]) == 7
    assert first_tensor(["a", 1]) is None


# Slot rows as tensors


def test_image_tensors_are_channels_last_views_of_the_slot() -> None:
    slot = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    images = image_tensors(slot, channels_last=True)
    assert images.shape == (2, 3, 4, 5)
    assert images.is_contiguous(memory_format=torch.channels_last)
    slot[1, 2, 3, 0] = 255
    assert images[1, 0, 2, 3] == 255


def test_image_tensors_of_a_channels_first_slot_are_contiguous() -> None:
    images = image_tensors(np.zeros((2, 3, 4, 5), np.float32), channels_last=False)
    assert images.shape == (2, 3, 4, 5)
    assert images.is_contiguous()


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_of_unequal_size_are_a_list(channels_last: bool) -> None:
    arrays = [np.zeros((4, 5, 3), np.uint8), np.zeros((7, 2, 3), np.uint8)]
    arrays = arrays if channels_last else [array.transpose(2, 0, 1).copy() for array in arrays]
    images = image_tensors(arrays, channels_last=channels_last)
    assert [tuple(image.shape) for image in images] == [(3, 4, 5), (3, 7, 2)]
    assert all(image.is_contiguous() is not channels_last for image in images)


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_that_happen_to_be_of_one_size_are_one_tensor(channels_last: bool) -> None:
    shape = (4, 5, 3) if channels_last else (3, 4, 5)
    arrays = [np.full(shape, value, np.uint8) for value in (1, 2)]
    images = image_tensors(arrays, channels_last=channels_last)
    assert images.shape == (2, 3, 4, 5)
    assert images[:, 0, 0, 0].tolist() == [1, 2]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert images.is_contiguous(memory_format=layout)


def test_an_owner_tensor_shares_the_storage_that_the_array_is_a_view_of() -> None:
    memory = torch.zeros(4 * 6 * 5, dtype=torch.uint8)
    array = memory.numpy().view("float32").reshape(6, 5)[2:4]
    array[:] = np.arange(10).reshape(2, 5)
    tensor = owner_tensor(array)
    assert tensor.untyped_storage().data_ptr() == memory.data_ptr()
    assert torch.equal(tensor, torch.arange(10, dtype=torch.float32).view(2, 5))


def test_value_tensors_turns_numbers_to_tensors_and_leaves_text() -> None:
    assert torch.equal(value_tensors(np.array([1, 2])), torch.tensor([1, 2]))
    assert value_tensors(["a", "b"]) == ["a", "b"]
    unequal = value_tensors([np.zeros(2, np.float32), np.zeros((3, 1), np.float32)])
    assert [tuple(value.shape) for value in unequal] == [(2,), (3, 1)]


# The tail


def bytes_image() -> torch.Tensor:
    every_value = torch.arange(256, dtype=torch.uint8)
    return every_value.repeat(3, 1).view(3, 16, 16).repeat(2, 1, 1, 1)


def test_normalize_on_bytes_is_torchvision_s_after_to_dtype_float() -> None:
    v2 = import_torchvision().transforms.v2
    wanted = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    x = bytes_image()
    torch.testing.assert_close(Tail([Normalize(MEAN, STD)])(x), wanted(x), rtol=0, atol=1e-6)


def test_to_dtype_then_normalize_gives_torchvision_s_values() -> None:
    v2 = import_torchvision().transforms.v2
    wanted = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    x = bytes_image()
    mine = Tail([ToDtype("float32", scale=True), Normalize(MEAN, STD)])(x)
    assert torch.equal(mine, wanted(x))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("scale", [True, False])
def test_to_dtype_of_bytes_gives_torchvision_s_values(dtype: str, scale: bool) -> None:
    v2 = import_torchvision().transforms.v2
    x = bytes_image()
    wanted = v2.ToDtype(getattr(torch, dtype), scale=scale)(x)
    assert torch.equal(Tail([ToDtype(dtype, scale=scale)])(x), wanted)


def test_to_dtype_of_floats_back_to_bytes_gives_torchvision_s_values() -> None:
    v2 = import_torchvision().transforms.v2
    x = torch.linspace(0, 1, 3 * 64).view(1, 3, 8, 8)
    wanted = v2.ToDtype(torch.uint8, scale=True)(x)
    assert torch.equal(Tail([ToDtype("uint8", scale=True)])(x), wanted)


def test_one_mean_stands_for_all_channels() -> None:
    x = bytes_image()
    assert torch.equal(
        Tail([Normalize([0.5], [0.25])])(x), Tail([Normalize([0.5] * 3, [0.25] * 3)])(x)
    )


def test_the_tail_keeps_channels_last_and_its_input() -> None:
    x = bytes_image().contiguous(memory_format=torch.channels_last)
    before = x.clone()
    out = Tail([Normalize(MEAN, STD), ToDtype("float16")])(x)
    assert out.dtype == torch.float16
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, before)


def test_normalize_of_floats_does_not_write_into_its_input() -> None:
    x = torch.ones(1, 3, 2, 2)
    Tail([Normalize(MEAN, STD)])(x)
    assert torch.equal(x, torch.ones(1, 3, 2, 2))


def test_the_tail_applies_to_each_image_of_a_list() -> None:
    images = [bytes_image()[0], bytes_image()[0, :, :4]]
    out = Tail([Normalize(MEAN, STD)])(images)
    assert [tuple(image.shape) for image in out] == [(3, 16, 16), (3, 4, 16)]
    whole = Tail([Normalize(MEAN, STD)])(bytes_image())
    assert torch.equal(out[0], whole[0])


def test_normalize_refuses_other_integers_naming_them() -> None:
    with pytest.raises(TransformError, match="int32"):
        Tail([Normalize(MEAN, STD)])(torch.zeros(1, 3, 2, 2, dtype=torch.int32))


# Finish


def test_finish_changes_the_parts_it_was_given() -> None:
    finish = Finish([(0, lambda x: x + 1), (0, lambda x: x * 10)])
    assert finish((1, 5)) == (20, 5)
    assert finish([1, 5]) == [20, 5]
    assert finish(Pair(1, 5)) == Pair(20, 5)
    assert Finish([("a", lambda x: x + 1)])({"a": 1, "b": 2}) == {"a": 2, "b": 2}


def test_finish_gives_the_whole_batch_to_functions_without_a_key() -> None:
    finish = Finish([(1, lambda y: y + 1), (None, lambda batch: (batch[1], batch[0]))])
    assert finish((1, 5)) == (6, 1)
