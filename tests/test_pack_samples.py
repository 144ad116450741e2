"""Samples of Python become fields of the types that a table in `fastio.pack` promises."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fastio import (
    Array,
    Bytes,
    Image,
    SampleError,
    Scalar,
    Schema,
    SchemaError,
    Text,
    Writer,
    pack,
)
from fastio import Dataset as open_dataset
from fastio.pack.cells import infer_schema
from fastio.pack.items import spread
from fastio.schema import Field
from tests.pictures import jpeg, picture, pixels, png


def packed(tmp_path: Path, samples: Any, **options: Any) -> list[Any]:
    """Samples packed and read again."""
    pack(samples, tmp_path / "out", **options)
    with open_dataset(tmp_path / "out") as dataset:
        return list(dataset)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (7, Scalar("int64")),
        (True, Scalar("bool")),
        (0.5, Scalar("float64")),
        (np.float32(1), Scalar("float32")),
        (np.float64(1), Scalar("float64")),
        (np.uint8(1), Scalar("uint8")),
        (np.bool_(True), Scalar("bool")),
        (np.array(1, np.int16), Scalar("int16")),
        (torch.tensor(1.0), Scalar("float32")),
        (torch.tensor(3), Scalar("int64")),
        ("text", Text()),
        (np.str_("text"), Text()),
        (b"data", Bytes()),
        (bytearray(b"data"), Bytes()),
        (np.zeros((2, 3)), Array("float64", (2, 3))),
        (np.zeros(4, np.float16), Array("float16", (4,))),
        (np.zeros(0, np.int32), Array("int32", None)),
        (np.zeros(3, ">f4"), Array("float32", (3,))),
        (torch.zeros(2, 5), Array("float32", (2, 5))),
        (torch.zeros(3, dtype=torch.bool), Array("bool", (3,))),
        (picture(), Image("RGB")),
        (picture().convert("L"), Image("L")),
        (picture().convert("RGBA"), Image("RGB")),
        (jpeg(), Image("RGB")),
        (png(), Image("RGB")),
        (pixels(4, 5), Image("RGB")),
        (pixels(4, 5, channels=1), Image("L")),
        (np.zeros((4, 5, 4), np.uint8), Array("uint8", (4, 5, 4))),
        (np.zeros((4, 5, 3), np.int16), Array("int16", (4, 5, 3))),
        (torch.zeros(3, 4, 5, dtype=torch.uint8), Image("RGB")),
        (torch.zeros(1, 4, 5, dtype=torch.uint8), Image("L")),
        (torch.zeros(4, 5, 3, dtype=torch.uint8), Array("uint8", (4, 5, 3))),
    ],
)
def test_a_value_s_type_decides_its_field(value: Any, field: Field) -> None:
    assert infer_schema({"x": value}) == Schema({"x": field}, "dict")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 2],
        (1, 2),
        {"a": 1},
        {1, 2},
        object(),
        1j,
        np.array(["a", "b"]),
        np.array([None]),
        np.datetime64("2020-01-01"),
        np.complex64(1j),
    ],
)
def test_a_value_that_cannot_be_stored_is_described(value: Any) -> None:
    with pytest.raises(SchemaError, match=r"value 1 of the first sample is an? .*cannot be stored"):
        infer_schema((0, value))


def test_a_tensor_without_a_numpy_dtype_is_described() -> None:
    with pytest.raises(SchemaError, match="bfloat16"):
        infer_schema(torch.zeros(3, dtype=torch.bfloat16))


def test_fields_of_tuples_are_named_by_what_they_are() -> None:
    schema = infer_schema((jpeg(), 1, 2, 0.5, "x", b"y", np.zeros(3), png()))
    assert schema.structure == "tuple"
    names = ["image", "label", "label_1", "value", "text", "bytes", "array", "image_1"]
    assert list(schema.fields) == names


def test_named_tuples_name_their_fields(tmp_path: Path) -> None:
    point = namedtuple("point", ["x", "y"])
    assert list(infer_schema(point(1, 2.5)).fields) == ["x", "y"]
    assert packed(tmp_path, [point(1, 2.5)]) == [(1, 2.5)]


@pytest.mark.parametrize("samples", [[(1, "a"), (2, "b")], [{"n": 1}, {"n": 2}], [5, 6], ["a"]])
def test_samples_keep_their_structure(tmp_path: Path, samples: list[Any]) -> None:
    assert packed(tmp_path, samples) == samples


def test_lists_come_back_as_tuples(tmp_path: Path) -> None:
    assert packed(tmp_path, [[1, "a"], [2, "b"]]) == [(1, "a"), (2, "b")]


def test_dicts_may_come_in_another_order(tmp_path: Path) -> None:
    samples = [{"a": 1, "b": "x"}, {"b": "y", "a": 2}]
    assert packed(tmp_path, samples) == samples


def test_any_iterable_can_be_packed(tmp_path: Path) -> None:
    assert packed(tmp_path / "a", (n * n for n in range(5))) == [0, 1, 4, 9, 16]
    assert packed(tmp_path / "b", {3: "x", 4: "y"}.items()) == [(3, "x"), (4, "y")]


@pytest.mark.parametrize("good", [0, 2])
def test_an_error_of_an_iterable_is_an_error_of_the_sample(tmp_path: Path, good: int) -> None:
    def samples() -> Iterator[int]:
        yield from range(good)
        raise KeyError("missing")

    with pytest.raises(SampleError, match=f"sample {good}: 'missing'"):
        pack(samples(), tmp_path / "out")


def test_a_torch_dataset_can_be_packed(tmp_path: Path) -> None:
    x, y = torch.arange(12.0).reshape(4, 3), torch.arange(4)
    found = packed(tmp_path, TensorDataset(x, y))
    np.testing.assert_array_equal(np.stack([array for array, _ in found]), x.numpy())
    assert [label for _, label in found] == [0, 1, 2, 3]


def test_a_torch_iterable_dataset_is_iterated_even_if_it_has_a_length(tmp_path: Path) -> None:
    class Stream(IterableDataset[int]):
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[int]:
            return iter([1, 2, 3])

    assert packed(tmp_path, Stream()) == [1, 2, 3]


def test_with_one_worker_a_dataset_is_called_in_order_by_one_thread(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    class Recorder(Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            calls.append((index, threading.get_ident()))
            return pixels(8, 8, seed=index)

    pack(Recorder(), tmp_path / "out", workers=1)
    tried = [0, *spread(40, 8)]  # the first decides the schema, and some how many make a unit
    assert [index for index, _ in calls] == [*tried, *range(40)]
    assert {thread for _, thread in calls} == {threading.get_ident()}


def test_a_dataset_s_class_names_are_kept(tmp_path: Path) -> None:
    class Named(Dataset[Any]):
        classes = ("cat", "dog")

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return pixels(3, 3), 1

    pack(Named(), tmp_path / "out")
    assert open_dataset(tmp_path / "out").classes == ("cat", "dog")


def test_tensors_of_pixels_are_stored_rows_first(tmp_path: Path) -> None:
    image = pixels(5, 7)
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    (found,) = packed(tmp_path, [tensor])
    np.testing.assert_array_equal(found, image)


def test_tensors_that_need_a_gradient_can_be_packed(tmp_path: Path) -> None:
    (found,) = packed(tmp_path, [torch.ones(2, requires_grad=True)])
    assert found.tolist() == [1, 1]


def test_arrays_of_differing_shapes_need_a_schema(tmp_path: Path) -> None:
    samples = [np.ones((2, 3)), np.ones((4, 1)), np.ones((0, 7))]
    with pytest.raises(SchemaError, match=r"sample 1.*'array'.*\(4, 1\).*None"):
        pack(samples, tmp_path / "out")
    schema = Schema({"x": Array("float64", None)}, "single")
    found = packed(tmp_path, samples, schema=schema, overwrite=True)
    assert [array.shape for array in found] == [(2, 3), (4, 1), (0, 7)]


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (1, None, "None"),
        (1, 2.5, "expected a number"),
        (1, "2", "expected int64"),
        (1, True, "expected int64"),
        (1, 2**63, "does not fit int64"),
        (True, 1, "expected bool"),
        (1.5, "x", "float64"),
        (np.uint8(1), 256, "does not fit uint8"),
        (np.uint8(1), -1, "does not fit uint8"),
        (np.float16(1), 1e6, "does not fit float16"),
        (1, np.zeros(2, np.int64), "array of shape"),
        (np.zeros(2), np.ma.array([1.0, 2.0], mask=[False, True]), "masked array"),
        ("x", 5, "expected a str"),
        ("x", b"x", "expected a str"),
        ("x", "\ud800", "surrogates"),
        (b"x", "x", "expected bytes"),
        (np.zeros(3), np.zeros(3, np.float32), "dtype is float32"),
        (np.zeros(3), np.zeros(4), "shape"),
        (np.zeros(3), 5, "expected an array"),
        (pixels(3, 3), 5, "expected an image"),
        (pixels(3, 3), pixels(3, 3, channels=1), "expected uint8"),
        (pixels(3, 3), None, "None"),
        ((1, 2), (1, 2, 3), "tuple of 2 values"),
        ((1, 2), 1, "tuple of 2 values"),
        ({"a": 1}, {"b": 1}, "keys a"),
        ({"a": 1}, {"a": 1, "b": 1}, "keys a"),
        ({"a": 1}, {}, "keys a"),
        ({"a": 1}, (1,), "keys a"),
    ],
)
def test_a_later_sample_that_does_not_fit_is_named(
    tmp_path: Path, first: Any, second: Any, reason: str
) -> None:
    with pytest.raises(SchemaError, match=reason) as caught:
        pack([first, first, second, first], tmp_path / "out")
    assert "sample 2" in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", 3),
        ("float32", np.int64(3)),
        ("float64", float("nan")),
        ("float16", float("inf")),
        ("int8", np.int64(-128)),
        ("uint64", 2**64 - 1),
        ("int64", np.array(5)),
        ("bool", np.bool_(False)),
    ],
)
def test_numbers_that_fit_are_taken(tmp_path: Path, dtype: str, value: Any) -> None:
    (found,) = packed(tmp_path, [value], schema=Schema({"x": Scalar(dtype)}, "single"))
    np.testing.assert_array_equal(found, np.asarray(value).astype(dtype))


def test_keys_must_be_possible_names(tmp_path: Path) -> None:
    for key in ("a.b", "", 5):
        with pytest.raises(SchemaError, match="name"):
            pack([{key: 1}], tmp_path / "out")


def test_many_small_samples_are_packed_in_the_caller_s_thread(tmp_path: Path) -> None:
    schema = Schema({"a": Scalar("int32"), "b": Array("float32", (2,)), "c": Text()}, "dict")
    with Writer(tmp_path / "out", schema, shard_size=3000) as writer:
        for number in range(2000):
            writer.write({"a": number, "b": np.float32([number, 1]), "c": str(number)})
    with open_dataset(tmp_path / "out") as dataset:
        rows = np.arange(2000)
        assert np.array_equal(dataset.gather("a", rows), rows)
        assert dataset.gather("c", rows) == [str(number) for number in range(2000)]
