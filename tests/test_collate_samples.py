"""`collate_fn` gets what `dataset[i]` gives: compared with DataLoader over the same dataset."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

import fastio
from fastio import Loader, PerformanceWarning
from tests.support import import_torchvision, numbered_folder, open_loader

pytestmark = pytest.mark.usefixtures("warned_anew")


def same(found: Any, expected: Any) -> None:
    """Compares two samples: types, and values to the last bit."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, value in expected.items():
            same(found[name], value)
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            same(mine, theirs)
    elif isinstance(expected, Image.Image):
        assert (found.mode, found.size, found.tobytes()) == (
            expected.mode,
            expected.size,
            expected.tobytes(),
        )
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected or (found != found and expected != expected)


def batches_of(loader: Any) -> list[list[Any]]:
    return [list(batch) for batch in loader]


def compare(source: Any, path: str = "native", **options: Any) -> None:
    """All samples of a loader, in order, and what DataLoader gives for them."""
    wanted = batches_of(DataLoader(source, 3, collate_fn=list))
    with open_loader(source, 3, collate_fn=list, **options) as loader:
        assert loader.path == path
        found = batches_of(loader)
    assert [len(batch) for batch in found] == [len(batch) for batch in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        same(mine, theirs)


# Image folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = numbered_folder(tmp_path_factory.mktemp("collate") / "photos", (3, 2))
    noise = np.random.default_rng(0).integers(0, 256, (20, 30), np.uint8)
    Image.fromarray(noise).save(path / "class0" / "gray.png")
    return path


def image_folder(folder: Path, *steps: str | Any, version: str = "v1") -> Any:
    vision = import_torchvision()
    known = vision.transforms.v2 if version == "v2" else vision.transforms
    made = [getattr(known, step)() if isinstance(step, str) else step for step in steps]
    transform = known.Compose(made) if made else None
    return vision.datasets.ImageFolder(str(folder), transform=transform)


@pytest.mark.parametrize("channels_last", [True, False])
def test_an_image_folder_without_transforms_gives_pil_images(
    folder: Path, channels_last: bool
) -> None:
    compare(image_folder(folder), channels_last=channels_last)
    compare(Subset(image_folder(folder), [4, 1, 2]), channels_last=channels_last)


@pytest.mark.parametrize("steps", [["ToTensor"], ["PILToTensor"]])
def test_an_image_folder_with_to_tensor_gives_tensors(folder: Path, steps: list[str]) -> None:
    compare(image_folder(folder, *steps))


@pytest.mark.parametrize("steps", [["ToImage"], ["ToImage", "ToPureTensor"], ["PILToTensor"]])
def test_v2_s_image_tensors_are_what_its_transforms_give(folder: Path, steps: list[str]) -> None:
    compare(image_folder(folder, *steps, version="v2"))


@pytest.mark.parametrize("channels_last", [True, False])
def test_crops_of_pil_images_are_pil_images(folder: Path, channels_last: bool) -> None:
    crop = import_torchvision().transforms.CenterCrop(16)
    compare(image_folder(folder, crop), channels_last=channels_last)
    compare(image_folder(folder, crop, "PILToTensor"))


def test_transforms_of_the_loader_make_tensors(folder: Path) -> None:
    how = fastio.CenterCrop(16)
    with Loader(image_folder(folder), 3, transforms=how, collate_fn=list) as loader:
        image, label = next(iter(loader))[0]
    assert (image.shape, image.dtype, type(label)) == ((3, 16, 16), torch.uint8, int)


# fastio's own datasets


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(1)
    schema = fastio.Schema(
        {
            "image": fastio.Image(),
            "int64": fastio.Scalar("int64"),
            "int32": fastio.Scalar("int32"),
            "bool": fastio.Scalar("bool"),
            "fixed": fastio.Array("float32", (2, 3)),
            "open": fastio.Array("float32", (None,)),
            "any": fastio.Array("int16"),
            "tokens": fastio.Tokens("uint16"),
            "text": fastio.Text(),
            "bytes": fastio.Bytes(),
        }
    )
    rows = [
        {
            "image": random.integers(0, 256, (8 + row % 2, 9, 3), np.uint8),
            "int64": row,
            "int32": np.int32(row),
            "bool": row % 2 == 0,
            "fixed": random.random((2, 3), np.float32),
            "open": random.random(row, np.float32),
            "any": np.zeros((row, 2), np.int16),
            "tokens": np.arange(row, dtype=np.uint16),
            "text": f"row {row}",
            "bytes": bytes(row),
        }
        for row in range(7)
    ]
    path = tmp_path_factory.mktemp("collate") / "packed"
    fastio.pack(rows, path, schema=schema)
    return path


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_packed_dataset_gives_its_samples(packed: Path, channels_last: bool) -> None:
    with fastio.open(packed) as dataset:
        compare(dataset, channels_last=channels_last)
        compare(dataset, channels_last=channels_last, ragged="padded")


def test_a_folder_gives_its_samples(folder: Path) -> None:
    compare(fastio.FolderDataset(folder))


def test_fields_with_transforms_are_tensors_and_the_others_are_not(packed: Path) -> None:
    how = {"image": fastio.CenterCrop(4), "fixed": fastio.ToDtype("float16")}
    with Loader(packed, 3, transforms=how, collate_fn=list) as loader:
        sample = next(iter(loader))[1]
    assert (sample["image"].shape, sample["image"].dtype) == ((3, 4, 4), torch.uint8)
    assert sample["fixed"].dtype == torch.float16
    assert isinstance(sample["open"], np.ndarray)
    assert sample["int64"] == 1


def test_samples_may_be_kept_while_others_come(packed: Path) -> None:
    with fastio.open(packed) as dataset, Loader(dataset, 2, collate_fn=list) as loader:
        kept = [sample for _ in range(3) for batch in loader for sample in batch]
        for row, sample in enumerate(kept):
            same(sample, dataset[row % len(dataset)])


def test_tars_give_their_samples(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for row in range(5):
            file = io.BytesIO()
            Image.new("RGB", (14, 12 + row), (row, 7, 9)).save(file, "jpeg")
            parts = {"jpg": file.getvalue(), "cls": b"%d" % row, "txt": b"row %d" % row}
            for suffix, data in parts.items():
                member = tarfile.TarInfo(f"{row}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    with fastio.open(tmp_path / "t.tar") as dataset:
        compare(dataset)


# Tables


TABLE = {
    "int64": pa.array([1, 2, 3, 4]),
    "int32": pa.array([1, 2, 3, 4], pa.int32()),
    "float32": pa.array([0.1, 0.2, None, 0.4], pa.float32()),
    "float64": pa.array([0.1, 0.2, 0.3, 0.4]),
    "bool": pa.array([True, False, True, True]),
    "text": pa.array(["a", "bc", "", "d"]),
    "list": pa.array([[1, 2], [], [3], [4, 5, 6]], pa.list_(pa.int32())),
    "fixed": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
}


@pytest.mark.parametrize("ragged", [None, "padded", {"list": "flat"}])
def test_a_table_gives_its_samples_without_lengths(tmp_path: Path, ragged: Any) -> None:
    pyarrow.parquet.write_table(pa.table(TABLE), tmp_path / "t.parquet")
    with fastio.open(tmp_path / "t.parquet") as dataset:
        assert "list_length" not in dataset[0]
        compare(dataset, ragged=ragged)


NULLS: dict[str, Any] = {
    "whole": pa.array([1, None, 3, None]),
    "small": pa.array([None, 2, 3, 4], pa.int8()),
    "flag": pa.array([True, None, None, False]),
    "text": pa.array(["a", None, "", "d"]),
    "data": pa.array([b"a", b"bc", None, b""]),
    "list": pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32())),
    "word": pa.array(["x", None, "y", "x"]).dictionary_encode(),
    "full": pa.array([1, 2, 3, 4]),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fields", [None, ["full", "list", "whole"]])
def test_nulls_of_a_table_are_none(tmp_path: Path, shuffle: bool, fields: Any) -> None:
    pyarrow.parquet.write_table(pa.table(NULLS), tmp_path / "t.parquet")
    rows = pa.table(NULLS).to_pylist()
    path = tmp_path / "t.parquet"
    with Loader(path, 2, shuffle, collate_fn=list, fields=fields) as loader:
        samples = [sample for batch in loader for sample in batch]
    assert [list(sample) for sample in samples] == [fields or list(NULLS)] * 4
    for sample in samples:
        row = next(row for row in rows if row["full"] == sample["full"])
        for name, value in sample.items():
            if name == "word" and value is not None:
                assert isinstance(value, np.generic)  # its code
            elif isinstance(value, np.ndarray):
                assert value.tolist() == row[name]
            else:
                assert value == row[name]


def test_nulls_within_lists_are_still_refused(tmp_path: Path) -> None:
    table = pa.table({"list": pa.array([[1, None], [2]], pa.list_(pa.int32()))})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with (
        Loader(tmp_path / "t.parquet", 2, collate_fn=list) as loader,
        pytest.raises(fastio.SchemaError, match="has 1 null"),
    ):
        next(iter(loader))


def test_what_nulls_are_to_be_goes_before(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"x": [1, None]}), tmp_path / "t.parquet")
    with Loader(fastio.open(tmp_path / "t.parquet", nulls={"x": -1}), 2, collate_fn=list) as loader:
        assert next(iter(loader)) == [{"x": 1}, {"x": -1}]
    with Loader(
        fastio.open(tmp_path / "t.parquet", nulls={"x": "mask"}), 2, collate_fn=list
    ) as loader:
        assert next(iter(loader)) == [{"x": 1, "x_valid": True}, {"x": 0, "x_valid": False}]


def test_a_saved_directory_of_the_datasets_package_is_a_table(tmp_path: Path) -> None:
    rows_of(x=[1, None, 3], y=["a", None, ""]).save_to_disk(tmp_path / "saved")
    with Loader(tmp_path / "saved", 3, collate_fn=list) as loader:
        assert next(iter(loader)) == [
            {"x": 1, "y": "a"},
            {"x": None, "y": None},
            {"x": 3, "y": ""},
        ]


# Rows of the datasets package


def rows_of(**columns: Any) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


PLAIN: dict[str, Sequence[Any]] = {
    "ids": [[1, 2, 3], [4], [], [5, 6], [7]],
    "label": [0, 1, 0, 1, 1],
    "score": [0.5, 1.5, 2.5, 3.5, 4.5],
    "text": ["a", "bé", "", "d", "e"],
    "good": [True, False, True, False, True],
}


def test_hugging_face_rows_are_python_s_values() -> None:
    with pytest.warns(PerformanceWarning, match="collate_fn"):
        compare(rows_of(**PLAIN), "torch")
    compare(rows_of(**PLAIN), fields=list(PLAIN))


@pytest.mark.parametrize(
    "column",
    [
        [["a", "b"], [], None, ["c", None], []],
        ["x", None, "", "é", None],
        [{"a": 1, "b": None}, None, {"a": None, "b": "q"}, {"a": 3, "b": "z"}, None],
        [[["a"], []], [], None, [[None, "b"]], [[]]],
    ],
    ids=["lists", "texts", "structs", "nested"],
)
def test_strings_and_nulls_of_hugging_face_rows(column: Sequence[Any]) -> None:
    compare(rows_of(x=column), "torch")


def test_of_a_selection_of_rows_and_columns() -> None:
    some = rows_of(**PLAIN).select([3, 0, 4]).select_columns(["text", "ids"])
    compare(some, "torch")
    compare(some, fields=["text", "ids"])


def test_subsets_and_joined_datasets_give_their_samples(folder: Path, packed: Path) -> None:
    compare(Subset(rows_of(**PLAIN), [3, 1]), "torch")
    compare(Subset(rows_of(**PLAIN), [3, 1]), fields=list(PLAIN))
    compare(Subset(rows_of(x=[1, None, 3]), [2, 1]), "torch")
    compare(ConcatDataset([rows_of(**PLAIN), rows_of(**PLAIN)]), "torch")
    joined: Any = ConcatDataset([image_folder(folder), image_folder(folder)])
    compare(joined)
    compare(Subset(joined, [7, 0]))
    with fastio.open(packed) as dataset:
        compare(Subset(dataset, [6, 2]))


@pytest.mark.parametrize(("fields", "path"), [(None, "torch"), (list(PLAIN), "native")])
def test_in_any_order(fields: Any, path: str) -> None:
    source = rows_of(**PLAIN)
    with Loader(source, 2, sampler=[4, 0, 3], collate_fn=list, fields=fields) as loader:
        assert loader.path == path
        found = [sample for batch in loader for sample in batch]
    for sample, row in zip(found, (4, 0, 3), strict=True):
        same(sample, source[row])


@pytest.mark.parametrize(
    "columns",
    [
        {"x": [1, None, 3, 4]},
        {"x": [0.5, None, 3.5, 4.5]},
        {"x": ["a", None, "c", "d"]},
        {"x": [[1, None], None, [3], []]},
        {"x": [[[1], [2, 3]], [[4]], [], [[5]]]},
        {"x": [["a", "b"], ["c"], [], ["d"]]},
        {"x": [{"a": 1, "b": "c"}] * 4},
    ],
)
def test_nulls_and_what_is_nested_reach_it(columns: Any) -> None:
    with pytest.warns(PerformanceWarning, match="collate_fn"):
        compare(rows_of(**columns), "torch")


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_formats_of_the_datasets_package_reach_it(kind: str) -> None:
    with pytest.warns(PerformanceWarning, match="format"):
        compare(rows_of(**PLAIN).with_format(kind), "torch")


def test_images_of_the_datasets_package_are_its_pil_images() -> None:
    datasets = pytest.importorskip("datasets")
    images = [Image.new("RGB", (5, 4), (row, 2, 3)) for row in range(4)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    source = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 2, 3]}, features=features)
    with pytest.warns(PerformanceWarning, match="'image'"):
        compare(source, "torch")
    with Loader(source, 2, transforms=fastio.CenterCrop(2), collate_fn=list) as loader:
        assert loader.path == "native"
        sample = next(iter(loader))[1]
    assert (sample["image"].shape, type(sample["label"])) == ((3, 2, 2), int)


def test_columns_that_are_named_are_fastio_s_values() -> None:
    source = rows_of(x=[1, None, 3], y=[1, 2, 3])
    with Loader(fastio.open(source, columns=["y"]), 3, collate_fn=list) as loader:
        assert loader.path == "native"
        assert next(iter(loader)) == [{"y": 1}, {"y": 2}, {"y": 3}]


# Single samples


@pytest.mark.parametrize("step", [None, "ToTensor", "PILToTensor"])
def test_single_samples_of_an_image_folder_are_data_loader_s(
    folder: Path, step: str | None
) -> None:
    source = image_folder(folder, *([step] if step else []))
    with Loader(source, None) as loader:
        assert loader.path == "native"
        same(list(loader), list(DataLoader(source, None)))


def test_numbers_of_single_samples_are_what_data_loader_gives(packed: Path) -> None:
    names = ["int64", "int32", "bool", "fixed", "open", "any", "text", "bytes"]
    with fastio.open(packed) as dataset, Loader(dataset, None, fields=names) as loader:
        wanted = [{name: one[name] for name in names} for one in DataLoader(dataset, None)]
        same(list(loader), wanted)


def test_numbers_of_single_samples_with_transforms_are_tensors(packed: Path) -> None:
    how = {"int64": fastio.OnBatch(lambda values: values * 2)}
    with Loader(packed, None, fields=["int64"], transforms=how) as loader:
        values = [sample["int64"] for sample in loader]
    assert all(isinstance(value, torch.Tensor) for value in values)
    assert [int(value) for value in values] == [0, 2, 4, 6, 8, 10, 12]


def test_labels_of_single_padded_documents_are_what_data_loader_gives(tmp_path: Path) -> None:
    schema = fastio.Schema({"tokens": fastio.Tokens("uint16"), "label": fastio.Scalar("int64")})
    rows = [{"tokens": np.arange(row, dtype=np.uint16), "label": row} for row in range(1, 7)]
    fastio.pack(rows, tmp_path / "tokens", schema=schema)
    with fastio.open(tmp_path / "tokens") as dataset:
        documents = fastio.TokenPad(dataset, 9)
        with Loader(documents, None) as loader:
            same(list(loader), list(DataLoader(documents, None)))
