"""Packing data that is open, in memory, or a part of either, by the thousand rows.

It is stored as its samples would be, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
import torch
from PIL import Image as PillowImage
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import fastio
from fastio.errors import OptionError, PackError
from tests.support import pack_stopped

ROWS = 100_000  # several pieces of 32,768 rows
RNG = np.random.default_rng(7)
COLUMNS: dict[str, Any] = {
    "x": RNG.random(ROWS, np.float32),
    "code": RNG.integers(0, 1 << 40, ROWS),
    "flag": RNG.integers(0, 2, ROWS).astype(bool),
    "vector": RNG.random((ROWS, 3)),
}


def packed(source: Any, path: Path, **options: Any) -> Any:
    fastio.pack(source, path, **options)
    return fastio.open(path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.parquet"
    numbers = pa.table({"a": range(1000), "b": np.arange(1000.0), "c": [None, *range(999)]})
    pa_parquet.write_table(numbers, path, row_group_size=300)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"columns": ["b", "a"]},
        {"groups": {"both": ["a", "b"]}, "dtypes": {"both": "float32"}, "nulls": {"c": 0}},
        {"columns": ["a"], "filters": [("a", ">", 500)]},
    ],
)
def test_an_open_table_gives_the_bytes_of_its_files(
    table: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    wanted = packed(table, tmp_path / "path", **options)
    found = packed(fastio.open(table, **options), tmp_path / "open")
    assert found.fingerprint == wanted.fingerprint
    assert [s.name for s in Path(found.path).iterdir()] == [
        s.name for s in Path(wanted.path).iterdir()
    ]


def test_an_open_hugging_face_dataset_gives_the_bytes_of_the_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"a": list(range(50)), "text": ["x" * n for n in range(50)]})
    wanted = packed(data, tmp_path / "data")
    assert packed(fastio.open(data), tmp_path / "open").fingerprint == wanted.fingerprint


def sources() -> dict[str, Any]:
    x, code = COLUMNS["x"], COLUMNS["code"]
    return {
        "dict": COLUMNS,
        "open dict": fastio.open(COLUMNS),
        "tuple": (x, code),
        "array": code,
        "rows": COLUMNS["vector"],
        "strided": np.asfortranarray(COLUMNS["vector"]),
        "tensors": TensorDataset(torch.from_numpy(x), torch.from_numpy(code)),
        "tensor": torch.from_numpy(COLUMNS["vector"]),
        "wide": RNG.random((9, 2, 800)),
        "wide dict": {"wide": RNG.random((9, 2, 800)), "label": np.arange(9)},
    }


@pytest.mark.parametrize("name", sources())
def test_arrays_are_stored_as_their_samples(tmp_path: Path, name: str) -> None:
    source = sources()[name]
    found = packed(source, tmp_path / "columns", shard_size="1MiB")
    samples = fastio.open(source) if type(source) in (dict, tuple) else source
    count = len(samples)
    wanted = packed((samples[row] for row in range(min(count, 300))), tmp_path / "samples")
    assert found.schema.fields == wanted.schema.fields
    assert found.schema.structure == wanted.schema.structure
    assert len(found) == count
    for field in wanted.schema.fields:
        first = np.arange(len(wanted))
        np.testing.assert_array_equal(found.gather(field, first), wanted.gather(field, first))
        rows = RNG.integers(0, count, 200)
        expected = np.stack([np.asarray(value_of(samples[int(row)], field, found)) for row in rows])
        np.testing.assert_array_equal(found.gather(field, rows), expected)
    assert all(check.problem is None for check in found.verify())


def value_of(sample: Any, field: str, dataset: Any) -> Any:
    if dataset.schema.structure == "dict":
        return sample[field]
    if dataset.schema.structure == "tuple":
        return sample[list(dataset.schema.fields).index(field)]
    return sample


def test_arrays_that_are_images_as_samples_are_images(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (20, 8, 8, 3), np.uint8)
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    for number, source in enumerate(
        [TensorDataset(planes, torch.arange(20)), (pixels, np.arange(20)), {"image": pixels}]
    ):
        found = packed(source, tmp_path / str(number))
        assert found.schema.fields["image"] == fastio.Image()
        np.testing.assert_array_equal(found.image("image", 7), pixels[7])


@pytest.mark.parametrize("kind", ["numbers", "photos"])
def test_a_subset_has_its_rows_in_its_order(tmp_path: Path, kind: str) -> None:
    rows = [5, 3, 3, -1, 0]
    if kind == "numbers":
        data = packed(COLUMNS, tmp_path / "data")
        found = packed(Subset(data, rows), tmp_path / "subset")
        for field in COLUMNS:
            expected = COLUMNS[field][rows]
            np.testing.assert_array_equal(found.gather(field, np.arange(5)), expected)
        return
    for number in range(8):
        path = tmp_path / "photos" / f"c{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = RNG.integers(0, 256, (16, 16, 3), np.uint8)
        PillowImage.fromarray(pixels).save(path, quality=50)
    folder = fastio.open(tmp_path / "photos")
    found = packed(Subset(folder, rows), tmp_path / "subset", codec="jpeg")
    assert found.classes == folder.classes
    for place, row in enumerate(rows):
        original = row % len(folder)
        # Equal, because they are not compressed again.
        expected = folder.image("image", original)
        np.testing.assert_array_equal(found.image("image", place), expected)
        assert found[place][1] == folder[original][1]


@pytest.mark.parametrize("codec", ["blocks", "jpeg", "raw"])
@pytest.mark.parametrize("other", ["blocks", "jpeg", "raw"])
def test_images_of_a_packed_subset_are_those_of_the_files(
    tmp_path: Path, codec: Any, other: Any
) -> None:
    ramp = np.add.outer(np.arange(40), np.arange(48))[..., None] * [1, 2, 3]
    for number in range(6):
        path = tmp_path / "photos" / "c" / f"{number}.{'png' if number == 3 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = ((ramp + 5 * number) % 256).astype(np.uint8)
        PillowImage.fromarray(pixels).save(path)
    data = packed(tmp_path / "photos", tmp_path / "data", codec=codec)
    found = packed(Subset(data, [4, 3, 0]), tmp_path / "subset", codec=other)
    files = packed(tmp_path / "photos", tmp_path / "files", codec=other)
    for place, row in enumerate([4, 3, 0]):
        # Images that are stored as pixels stay so. Others are encoded as their files are.
        wanted = data if codec == "raw" else files
        pixels = wanted.image("image", row)
        np.testing.assert_array_equal(found.image("image", place), pixels)
        stored = found.stored_image("image", place)
        assert stored.codec == wanted.stored_image("image", row).codec
    assert all(check.problem is None for check in found.verify())


def test_arrays_and_samples_can_be_appended_to_each_other(tmp_path: Path) -> None:
    samples = [{"a": n, "b": n / 2} for n in range(10)]
    arrays = {"a": np.arange(10, 30), "b": np.arange(10, 30) / 2}
    for first, second, name in ((samples, arrays, "samples"), (arrays, samples, "arrays")):
        fastio.pack(first, tmp_path / name)
        found = packed(second, tmp_path / name, append=True)
        of_each = [list(range(10)), list(range(10, 30))]
        parts = of_each if first is samples else of_each[::-1]
        assert found.gather("a", np.arange(30)).tolist() == parts[0] + parts[1]
        assert all(check.problem is None for check in found.verify())


def test_a_pack_of_arrays_that_stopped_goes_on_with_the_same_arrays_only(tmp_path: Path) -> None:
    wanted = packed(COLUMNS, tmp_path / "whole", shard_size="256KiB")
    pack_stopped(2, COLUMNS, tmp_path / "part", shard_size="256KiB")
    others = {**COLUMNS, "x": COLUMNS["x"] + 1}
    with pytest.raises(PackError, match="has changed since its first"):
        fastio.pack(others, tmp_path / "part", shard_size="256KiB", resume=True)
    found = packed(COLUMNS, tmp_path / "part", shard_size="256KiB", resume=True)
    assert found.fingerprint == wanted.fingerprint


def test_no_rows_and_options_of_others(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="nothing to pack"):
        fastio.pack({"a": np.arange(0)}, tmp_path / "none")
    with pytest.raises(OptionError, match="can only be used with tables"):
        fastio.pack({"a": np.arange(3)}, tmp_path / "columns", columns=["a"])
    assert len(packed({"a": np.arange(3)}, tmp_path / "skip", on_error="skip")) == 3


def test_a_tuple_of_arrays_that_are_alike_is_packed_as_samples(tmp_path: Path) -> None:
    arrays = np.arange(3), np.arange(10, 13)
    found = packed(arrays, tmp_path / "out")
    assert len(found) == 2
    np.testing.assert_array_equal(found[1], arrays[1])


@pytest.mark.parametrize("option", [{"codec": "jpeg"}, {"quality": 80}, {"on_error": "skip"}])
def test_options_of_images_are_allowed_for_samples_without_images(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    for number, source in enumerate([COLUMNS["code"], TensorDataset(torch.arange(3))]):
        assert len(packed(source, tmp_path / str(number), **option)) == len(source)


class Doubled(fastio.Dataset):
    """Changes the samples of a packed dataset."""

    def __getitem__(self, index: int) -> Any:
        return {name: 2 * value for name, value in super().__getitem__(index).items()}


def test_a_subset_of_a_class_that_changes_samples_has_these_samples(tmp_path: Path) -> None:
    fastio.pack({"a": np.arange(9), "b": np.arange(9.0)}, tmp_path / "data")
    data = Doubled(tmp_path / "data")
    wanted = [{"a": 6, "b": 6.0}, {"a": 16, "b": 16.0}]
    assert list(packed(Subset(data, [3, -1]), tmp_path / "out")) == wanted
    assert list(packed(data, tmp_path / "all"))[3] == wanted[0]
    for source, rows in ((data, [0, 2, 4]), (Subset(data, [3, -1]), [6, 16])):
        with (
            pytest.warns(fastio.PerformanceWarning, match="no native reader for Doubled"),
            fastio.Loader(source, 3) as loader,
        ):
            assert next(iter(loader))["a"].tolist() == rows


class Reads:
    """A user's dataset that reads another."""

    def __init__(self, inner: Any) -> None:
        self.parts = {"inner": [inner]}

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.parts["inner"][0][index]


@pytest.mark.parametrize(
    "source",
    [
        lambda data: Subset(Subset(data, [1, 2]), [0]),
        lambda data: ConcatDataset([[{"a": 1, "b": 1.0}], ConcatDataset([Subset(data, [1])])]),
        Reads,
        lambda data: ConcatDataset([Reads(data)]),
        lambda data: (row for row in data),
        lambda data: map(dict, data),
        lambda data: (dict(row) for row in filter(None, iter(data))),
        lambda data: fastio.Loader(data, None),
        lambda data: Doubled(data.path),
    ],
)
def test_what_reads_a_dataset_does_not_overwrite_it(
    source: Callable[[Any], Any], tmp_path: Path
) -> None:
    data = packed({"a": np.arange(9), "b": np.arange(9.0)}, tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for place in (tmp_path / "data", tmp_path / "link"):
        with pytest.raises(PackError, match="would delete"):
            fastio.pack(source(data), place, overwrite=True)
    assert len(fastio.open(tmp_path / "data")) == 9


def test_an_open_dataset_that_is_not_read_is_overwritten(tmp_path: Path) -> None:
    data = packed({"a": np.arange(9)}, tmp_path / "data")
    fastio.pack([{"a": np.int64(3)} for _ in range(2)], tmp_path / "data", overwrite=True)
    assert len(data) == 9
    assert len(fastio.open(tmp_path / "data")) == 2
