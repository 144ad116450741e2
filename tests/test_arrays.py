"""Arrays and tensors in memory: natively, with what DataLoader delivers."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import fastio
from fastio import Loader, OptionError, SchemaError
from tests.torch_support import assert_same, equal

ROWS = 37
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (ROWS, 8, 12, 3), np.uint8)


def pairs(rows: int = ROWS) -> TensorDataset:
    return TensorDataset(torch.randn(rows, 5), torch.arange(rows))


# --- TensorDataset --------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_tensor_dataset(shuffle: bool, drop_last: bool, batch_size: int) -> None:
    assert_same(pairs(), batch_size, shuffle=shuffle, drop_last=drop_last)


def test_single_samples() -> None:
    assert_same(pairs(), None, shuffle=True)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
        *(torch.float16, torch.float32, torch.float64, torch.complex64),
    ],
)
@pytest.mark.parametrize("shape", [(3,), (2, 1, 3)])
def test_types(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = torch.randint(0, 2, (ROWS, *shape)).to(dtype)
    assert_same(TensorDataset(values), 5, shuffle=True)
    if dtype != torch.complex64:
        assert_same(TensorDataset(values[(slice(None), *(0 for _ in shape))]), 5)


LAYOUTS = {
    "transposed": lambda x: x.transpose(1, 2),
    "every second row": lambda x: x[::2],
    "a part of each row": lambda x: x[:, 1:3],
    "columns of a table": lambda x: x[:, 1, 2],
    "repeated": lambda x: x[:1].expand(ROWS, 4, 6),
    "permuted rows": lambda x: x.permute(2, 1, 0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strides(name: str) -> None:
    whole = torch.arange(ROWS * 4 * 6).reshape(ROWS, 4, 6)
    assert_same(TensorDataset(LAYOUTS[name](whole)), 4, shuffle=True)


def test_large_rows_use_threads() -> None:
    assert_same(TensorDataset(torch.randn(200, 3000), torch.arange(200)), 64, shuffle=True)


def test_forty_columns() -> None:
    assert_same(TensorDataset(*torch.randn(40, ROWS)), 8, shuffle=True)


def test_changes_show_in_later_batches() -> None:
    values = torch.zeros(ROWS)
    with Loader(TensorDataset(values), ROWS) as loader:
        assert next(iter(loader))[0].sum() == 0
        values += 1
        assert next(iter(loader))[0].sum() == ROWS


def test_other_tensors_are_read_from_the_next_epoch_on() -> None:
    dataset = pairs()
    with Loader(dataset, ROWS) as loader:
        list(loader)
        dataset.tensors = (torch.ones(3, 2), torch.arange(3))
        assert len(loader) == 1
        ((values, _),) = list(loader)
    assert values.shape == (3, 2)


def test_delivered_batches_are_copies() -> None:
    values = torch.zeros(ROWS, 3)
    with Loader(TensorDataset(values), 4) as loader:
        for (batch,) in loader:
            batch += 1
    assert not values.any()


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.zeros(4, dtype=torch.bfloat16), "bfloat16"),
        (torch.zeros(4, requires_grad=True), "requires grad"),
        (torch.zeros(4, 3).to_sparse(), "sparse"),
        (torch.zeros(4, 0), "shape"),
    ],
)
def test_tensors_that_numpy_lacks_take_the_torch_path(tensor: torch.Tensor, reason: str) -> None:
    dataset = TensorDataset(tensor)
    with Loader(dataset, 2) as loader:
        assert loader.path == "torch"
        assert reason in loader.stats().reason.lower()
        if not tensor.is_sparse:
            assert equal(list(loader), list(DataLoader(dataset, 2)))


def test_an_empty_dataset_has_no_batches() -> None:
    with Loader(TensorDataset(torch.zeros(0, 3)), 4) as loader:
        assert len(loader) == 0
        assert list(loader) == []


def test_an_empty_array_of_images_has_no_batches() -> None:
    with fastio.open(PIXELS[:0], images=[0]) as dataset, Loader(dataset, 4) as loader:
        assert len(dataset) == 0
        assert list(loader) == []


def test_subclasses_are_the_users_own() -> None:
    class Own(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return (self.tensors[0][index] + 1,)

    dataset = Own(torch.zeros(4))
    with Loader(dataset, 4) as loader:
        assert loader.path == "torch"
        assert next(iter(loader))[0].tolist() == [1, 1, 1, 1]


def test_collate_fn_gets_tensors() -> None:
    def collate(samples: list[Any]) -> Any:
        assert all(type(part) is torch.Tensor for sample in samples for part in sample)
        assert all(type(sample) is tuple for sample in samples)
        return torch.stack([values for values, _ in samples]), [int(n) for _, n in samples]

    assert_same(pairs(), 4, collate_fn=collate, shuffle=True)


def test_tensors_that_torch_moves_are_read_where_they_are() -> None:
    values = torch.arange(12_000_000.0)  # so many that their memory is unmapped when they move
    pixels = torch.randint(0, 256, (4_000, 3, 64, 64), dtype=torch.uint8)
    expected = pixels[:200].clone()
    images = fastio.open(TensorDataset(pixels), images=[0])
    with Loader(TensorDataset(values), 4) as loader, Loader(images, 50) as pictures:
        batches, others = iter(loader), iter(pictures)
        found, seen = [next(batches)], [next(others)]
        values.share_memory_()
        pixels.share_memory_()
        found += [next(batches) for _ in range(20)]
        seen += [next(others) for _ in range(3)]
    assert torch.cat([batch for (batch,) in found]).tolist() == list(range(84))
    assert torch.equal(torch.cat([batch for (batch,) in seen]), expected)


def test_a_copy_of_a_loader_reads_the_copy_of_its_data() -> None:
    values = torch.zeros(1_000)
    with Loader(TensorDataset(values), 1_000) as loader:
        assert len(pickle.dumps(loader)) < 2 * values.nbytes
        with copy.deepcopy(loader) as other:
            other.dataset.tensors[0].fill_(7)
            assert next(iter(other))[0].sum() == 7_000
        assert next(iter(loader))[0].sum() == 0


def test_tensor_datasets_of_many_tensors_and_of_lists() -> None:
    assert_same(TensorDataset(*(torch.arange(6) + n for n in range(70))), 4)
    dataset = pairs()
    dataset.tensors = list(dataset.tensors)  # type: ignore[assignment]
    with Loader(dataset, 4) as loader:
        assert loader.path == "native"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_take_the_torch_path() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    with Loader(TensorDataset(nested), None) as loader:
        assert loader.path == "torch"
        assert [len(sample) for (sample,) in loader] == [2, 3]


def test_a_field_of_a_structured_array() -> None:
    table = np.zeros(10, [("a", "u1"), ("x", "<f4")])
    table["x"] = np.arange(10)
    with Loader(table["x"], 4) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(10))


def test_rows_in_descending_order() -> None:
    with Loader(np.arange(10)[::-1], 4) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(9, -1, -1))


# --- Parts of datasets, and samplers --------------------------------------------------------------


def test_subsets_and_concatenations() -> None:
    dataset = pairs()
    first, second = random_split(dataset, [20, 17], torch.Generator().manual_seed(0))
    assert_same(first, 4, shuffle=True)
    assert_same(Subset(second, [3, 3, -1, 0]), 3)
    assert_same(ConcatDataset([dataset, pairs(11)]), 6, shuffle=True)
    assert_same(ConcatDataset([Subset(dataset, [1, 2]), first]), 6, shuffle=True)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
@pytest.mark.parametrize("nested", [False, True])
def test_indices_of_a_subset_that_change_in_place_are_read_again(kind: Any, nested: bool) -> None:
    indices = kind([4, 1, 7, 30])
    part = Subset(TensorDataset(torch.arange(ROWS)), indices)
    with Loader(ConcatDataset([part, part]) if nested else part, 4) as loader:
        for _ in range(2):
            indices[1] = (int(indices[1]) + 1) % ROWS
            (rows,) = next(iter(loader))
            assert rows.tolist() == [int(index) for index in indices]


@pytest.mark.parametrize("replacement", [False, True])
def test_weighted_sampler(replacement: bool) -> None:
    weights = [float(row + 1) for row in range(ROWS)]

    def sampler() -> Any:
        generator = torch.Generator().manual_seed(3)
        return WeightedRandomSampler(weights, 30, replacement, generator)

    expected = list(DataLoader(DATA, 4, sampler=sampler()))
    with Loader(DATA, 4, sampler=sampler()) as loader:
        assert loader.path == "native"
        assert equal(list(loader), [tuple(batch) for batch in expected])


DATA = pairs()


def test_subset_sampler_and_batch_sampler() -> None:
    assert_same(DATA, 4, sampler=SubsetRandomSampler([5, 1, 7, 30]))
    batches = [[3, 1], [0], [36, 36, 2]]
    expected = [DATA[batch] for batch in batches]
    with Loader(DATA, batch_sampler=batches) as loader:
        assert equal(list(loader), expected)


def test_a_sampler_of_whole_batches() -> None:
    def options() -> dict[str, Any]:
        return {"sampler": BatchSampler(SequentialSampler(DATA), 4, False)}

    with Loader(DATA, None, **options()) as loader:
        assert equal(list(loader), list(DataLoader(DATA, None, **options())))


def test_distributed_sampler() -> None:
    for rank in range(2):
        sampler: Any = torch.utils.data.DistributedSampler(DATA, 2, rank, seed=5)
        expected = list(DataLoader(DATA, 4, sampler=sampler))
        with Loader(DATA, 4, sampler=sampler) as loader:
            assert loader.path == "native"
            assert equal(list(loader), [tuple(batch) for batch in expected])


def test_resume_in_the_middle_of_an_epoch() -> None:
    with Loader(DATA, 4, shuffle=True, seed=2) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
        rest = list(batches) + list(loader)
    with Loader(DATA, 4, shuffle=True, seed=2) as other:
        other.load_state_dict(state)
        assert equal(list(other) + list(other), rest)


def test_a_state_of_other_arrays_is_refused() -> None:
    with Loader(DATA, 4, seed=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    changed = TensorDataset(DATA.tensors[0] + 1, DATA.tensors[1])
    with Loader(changed, 4, seed=2) as other, pytest.raises(fastio.StateMismatch):
        other.load_state_dict(state)


def test_a_state_outlives_changes_in_place() -> None:
    dataset = pairs()
    with Loader(dataset, 4, seed=2) as loader:
        batches = iter(loader)
        next(batches)
        dataset.tensors[0].add_(1)
        state = loader.state_dict()
        rest = [numbers for _, numbers in batches]
    with Loader(dataset, 4, seed=2) as other:
        other.load_state_dict(state)
        assert equal([numbers for _, numbers in other], rest)


def test_ranks_share_an_epoch() -> None:
    found: list[int] = []
    for rank in range(3):
        with Loader(DATA, 2, shuffle=True, seed=4, rank=rank, world_size=3) as loader:
            for _, numbers in loader:
                found += numbers[: loader.batch.valid].tolist()
    assert sorted(found) == list(range(ROWS))


# --- Arrays, tensors, tuples and dicts ------------------------------------------------------------


def test_structures() -> None:
    values, labels = RANDOM.random((ROWS, 3)), np.arange(ROWS)
    cases: list[tuple[Any, Any]] = [
        (values, torch.from_numpy(values)),
        (torch.from_numpy(values), torch.from_numpy(values)),
        ((values, torch.from_numpy(labels)), (torch.from_numpy(values), torch.from_numpy(labels))),
        (
            {"x": values, "y": labels},
            {k: torch.from_numpy(v) for k, v in (("x", values), ("y", labels))},
        ),
    ]
    for source, expected in cases:
        with Loader(source, ROWS) as loader:
            assert loader.path == "native"
            assert equal(next(iter(loader)), expected)
            assert len(loader.dataset) == ROWS


def test_strings() -> None:
    with Loader({"name": np.array(["a", "b", "ü"]), "n": np.arange(3)}, 2) as loader:
        assert [batch["name"] for batch in loader] == [["a", "b"], ["ü"]]


@pytest.mark.parametrize("count", [3, 64, 100])
def test_tuples_of_samples_are_datasets_as_for_dataloader(count: int) -> None:
    samples = tuple(torch.full((2,), n) for n in range(count))
    with Loader(samples, 2) as loader:
        assert equal(list(loader), list(DataLoader(samples, 2)))  # type: ignore[arg-type]
    with fastio.open(samples[:3]) as columns:
        assert len(columns) == 2


def test_what_cannot_be_columns_takes_the_torch_path() -> None:
    others: list[Any] = [
        torch.zeros(8, dtype=torch.bfloat16),
        torch.zeros(8, requires_grad=True),
        torch.zeros(8, 0),
        {0: torch.zeros(3), 1: torch.ones(3)},
        (torch.zeros(3), torch.zeros(4)),
    ]
    for source in others:
        size = None if type(source) is tuple else 2
        with Loader(source, size) as loader:
            assert loader.path == "torch"
            assert equal(list(loader), list(DataLoader(source, size)))


def test_samples_of_tensors_are_tensors() -> None:
    values = torch.randn(8, 3)
    assert_same(values, 4, collate_fn=torch.stack)
    assert_same(torch.arange(4), None)
    numbers = TensorDataset(torch.arange(6), torch.rand(6))
    for dataset in (numbers, fastio.open(numbers)):
        with Loader(dataset, 2, collate_fn=list) as loader:
            assert equal(list(loader), list(DataLoader(numbers, 2, collate_fn=list)))
        for device in (None, "cpu"):
            with Loader(dataset, None, device=device) as loader:
                assert equal(list(loader), list(DataLoader(numbers, None)))


def test_dicts_need_equal_lengths() -> None:
    with pytest.raises(SchemaError, match="'x' has 3, 'y' has 4"):
        fastio.open({"x": np.zeros(3), "y": np.zeros(4)})


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, ">f4"), "byte order"),
        (np.zeros(3, "datetime64[s]"), "datetime64"),
        (np.ma.masked_array([1, 2], [True, False]), "MaskedArray is not a plain array"),
        (np.array([1, "a"], object), "object"),
        (np.zeros(3, [("a", "i4")]), "void"),
    ],
)
def test_arrays_that_cannot_be_fields(array: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        fastio.open({"x": array})
    with pytest.raises(SchemaError, match=message):  # a DataLoader would say KeyError: 0
        Loader({"x": array}, 2)


def test_options_of_other_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "1.jpg").write_bytes(b"")
    with pytest.raises(OptionError, match="columns is an option for"):
        fastio.open(np.zeros(3), columns=["a"])
    with pytest.raises(OptionError, match="images is an option for arrays in memory"):
        fastio.open(str(tmp_path), images=[0])


def test_indexing_and_pickling() -> None:
    with fastio.open({"x": np.arange(6).reshape(3, 2), "image": PIXELS[:3]}, images=["image"]) as d:
        again = pickle.loads(pickle.dumps(d))
        assert again.fingerprint == d.fingerprint
        for each in (d, again):
            assert each[-1]["x"].tolist() == [4, 5]
            assert np.array_equal(each[1]["image"], PIXELS[1])
        with pytest.raises(IndexError):
            d[3]


# --- Images ---------------------------------------------------------------------------------------

ORDERS = {
    "HWC": lambda x: x,
    "CHW": lambda x: np.ascontiguousarray(x.transpose(0, 3, 1, 2)),
    "HWC seen as CHW": lambda x: x.transpose(0, 3, 1, 2),
    "CHW seen as HWC": lambda x: np.ascontiguousarray(x.transpose(0, 3, 1, 2)).transpose(
        0, 2, 3, 1
    ),
    "WHC": lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
    "CWH": lambda x: np.ascontiguousarray(x.transpose(0, 3, 2, 1)).transpose(0, 3, 2, 1),
    "CWH seen as CHW": lambda x: np.ascontiguousarray(x.transpose(0, 3, 2, 1)).transpose(
        0, 1, 3, 2
    ),
    "every third": lambda x: x[::3],
    "Fortran": lambda x: np.asfortranarray(x.transpose(1, 2, 3, 0)).transpose(3, 0, 1, 2),
}


def rows_of(array: Any) -> Any:
    """Images of an array as (rows, C, H, W)."""
    if array.ndim == 3:
        return array[:, None]
    return array.transpose(0, 3, 1, 2) if array.shape[3] in (1, 3) else array


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_layouts_of_images(order: str, channels_last: bool) -> None:
    array = ORDERS[order](PIXELS)
    dataset = fastio.open(array, images=[0])
    assert dataset.image_size("image", 0) == (8, 12)
    with Loader(dataset, 5, channels_last=channels_last) as loader:
        found = torch.cat(list(loader)).numpy()
    assert np.array_equal(found, rows_of(array))
    with Loader(pickle.loads(pickle.dumps(dataset)), 5) as again:
        assert np.array_equal(torch.cat(list(again)).numpy(), found)
    assert np.array_equal(dataset[2], rows_of(array)[2].transpose(1, 2, 0))


@pytest.mark.parametrize("order", ORDERS)
def test_crops_do_not_depend_on_the_layout(order: str) -> None:
    steps = [
        fastio.RandomResizedCrop(6),
        fastio.RandomHorizontalFlip(),
        fastio.RandomVerticalFlip(),
    ]
    batches = []
    for array in (ORDERS[order](PIXELS), np.ascontiguousarray(ORDERS[order](PIXELS))):
        with Loader(fastio.open(array, images=[0]), 5, transforms=steps, seed=3) as loader:
            batches.append(torch.cat(list(loader)))
    assert torch.equal(*batches)


@settings(max_examples=40)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([None, 1, 3])),
    st.booleans(),
    st.permutations([0, 1, 2]),
)
def test_any_shape_and_order(
    shape: tuple[int, int, int | None], first: bool, order: list[int]
) -> None:
    height, width, channels = shape
    sizes = [height, width] if channels is None else [height, width, channels]
    if first and channels is not None:
        sizes = [channels, height, width]
    axes = [axis for axis in order if axis < len(sizes)]
    memory = RANDOM.integers(0, 256, (3, *(sizes[axis] for axis in axes)), np.uint8)
    array = memory.transpose(0, *(1 + axes.index(axis) for axis in range(len(sizes))))
    ambiguous = channels is not None and (width if first else height) in (1, 3)
    try:
        dataset = fastio.open(array, images=[0])
    except SchemaError as error:  # of channels between the other axes, and of unclear axes
        assert ("could be its channels" in str(error)) == ambiguous  # noqa: PT017
        assert ambiguous or "not contiguous" in str(error)  # noqa: PT017
        return
    assert not ambiguous
    with Loader(dataset, 3) as loader:
        (found,) = list(loader)
    assert np.array_equal(found.numpy(), rows_of(array))


def test_gray_images() -> None:
    gray = PIXELS[:, :, :, 0].copy()
    for array in (gray, gray[:, :, :, None], gray[:, None]):
        with Loader(fastio.open(array, images=[0]), 5) as loader:
            found = torch.cat(list(loader))
        assert np.array_equal(found[:, 0].numpy(), gray)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 4, 4), np.float32), "float32"),
        (np.zeros((3, 4), np.uint8), r"\(3, 4\)"),
        (np.zeros((3, 4, 4, 2), np.uint8), "1 or 3 channels"),
        (np.zeros((3, 4, 0, 3), np.uint8), "no pixels"),
        (PIXELS[:, :, :, 1], "not contiguous"),
        (PIXELS[:, :, 1:5], "not contiguous"),
        (PIXELS[:, :, ::-1], "not contiguous"),
        (PIXELS[::-1], "descending"),
        (np.zeros((4, 1, 28, 3), np.uint8), "could be its channels"),
    ],
)
def test_arrays_that_hold_no_images(array: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        fastio.open(array, images=[0])


def test_images_must_exist() -> None:
    with pytest.raises(SchemaError, match="images has 2; there are 0, 1"):
        fastio.open((PIXELS, np.arange(ROWS)), images=[2])
    with pytest.raises(SchemaError, match="images has 'picture'; there are image"):
        fastio.open({"image": PIXELS}, images=["picture"])
    with pytest.raises(ValueError, match=r"images=\['image'\]"):
        fastio.open({"image": PIXELS}, images="image")


def test_images_of_a_tensor_dataset() -> None:
    dataset = TensorDataset(torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.arange(ROWS))
    with Loader(
        fastio.open(dataset, images=[0]), ROWS, transforms=[fastio.CenterCrop(4)]
    ) as loader:
        ((images, labels),) = list(loader)
    assert np.array_equal(images.numpy(), PIXELS[:, 2:6, 4:8].transpose(0, 3, 1, 2))
    assert labels.tolist() == list(range(ROWS))


def test_python_for_each_sample() -> None:
    with Loader(
        fastio.open((PIXELS, np.arange(ROWS)), images=[0]),
        5,
        num_workers=2,
        transforms=[fastio.PerSample(invert, workers="threads")],
    ) as loader:
        found = torch.cat([images for images, _ in loader])
    assert np.array_equal(found.numpy(), 255 - PIXELS.transpose(0, 3, 1, 2))


def invert(pixels: Any) -> Any:
    return 255 - pixels


def test_a_mix_with_a_packed_dataset(tmp_path: Any) -> None:
    fastio.pack(fastio.open((PIXELS, np.arange(ROWS)), images=[0]), tmp_path / "packed")
    with fastio.open(tmp_path / "packed") as packed:
        assert np.array_equal(packed[3][0], PIXELS[3])
        both = fastio.mix([(packed, 1), (fastio.open((PIXELS, np.arange(ROWS)), images=[0]), 1)])
        with Loader(both, 4, seed=1) as loader:
            images, _ = next(iter(loader))
    assert images.shape == (4, 3, 8, 12)


@pytest.mark.parametrize("open_it", [fastio.open, partial(fastio.Loader, batch_size=2)])
def test_a_table_in_memory_is_refused_with_what_to_do(open_it: Any) -> None:
    table = pa.table({"a": [1, 2], "b": [3, 4]})
    pandas = pytest.importorskip("pandas")
    for each in (table, table.to_batches()[0], pandas.DataFrame({"a": [1, 2]})):
        with pytest.raises(fastio.DatasetNotFound, match=f"{type(each).__name__} in memory.*pack"):
            open_it(each)
    arrays = {name: table[name].to_numpy() for name in table.column_names}
    with fastio.Loader(arrays, batch_size=2) as loader:  # as the message advises
        assert next(iter(loader))["b"].tolist() == [3, 4]
