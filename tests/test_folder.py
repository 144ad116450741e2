"""An image folder is seen as torchvision's ImageFolder sees it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import fastio
from fastio import (
    Dataset,
    DatasetNotFound,
    FolderDataset,
    Image,
    ImageError,
    Scalar,
    Schema,
    SchemaError,
    SourceNotFound,
    pack,
)
from fastio.packed import JOURNAL_NAME
from tests.pictures import decoded, jpeg, oriented_jpeg, png, png_16_bit, write_folder
from tests.support import import_torchvision


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


def test_rows_and_classes_are_those_of_torchvision(tmp_path: Path) -> None:
    names = [
        "b/2.JPG", "b/10.jpg", "b/1.png", "b/notes.txt", "b/.hidden.jpeg", "B/x.webp",
        "a/deep/er/1.jpeg", "a/z.tiff", "a/deep.jpg/1.bmp", "ä/日本語 🎈.pgm", "loose.jpg",
    ]  # fmt: skip
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    os.symlink(tmp_path / "a" / "deep", tmp_path / "B" / "link")
    found = FolderDataset(tmp_path)
    expected = import_torchvision().datasets.ImageFolder(str(tmp_path))
    assert list(zip(found.paths, found.labels.tolist(), strict=True)) == expected.samples
    assert list(found.classes) == expected.classes


def test_it_looks_like_a_packed_dataset(folder: Path) -> None:
    dataset = FolderDataset(folder)
    assert len(dataset) == 15
    assert dataset.path == str(folder)
    assert dataset.classes == ("class0", "class1", "class2")
    fields = {"image": Image(), "label": Scalar("int64")}
    assert dataset.schema == Schema(fields, "tuple", dataset.classes)
    assert dataset.sample_name(7) == str(folder / "class1" / "2.jpg")


def test_no_file_is_opened_before_it_is_asked_for(folder: Path) -> None:
    for path in folder.rglob("*.jpg"):
        path.unlink()
        os.symlink("/nowhere", path)
    assert len(FolderDataset(folder)) == 15


def test_samples_are_upright_pixels_and_labels(folder: Path) -> None:
    (folder / "class1" / "0.jpg").write_bytes(oriented_jpeg(6, 20, 30))
    dataset = FolderDataset(folder)
    image, label = dataset[0]
    np.testing.assert_array_equal(image, decoded((folder / "class0" / "0.jpg").read_bytes()))
    assert label == 0
    image, label = dataset[5]
    assert image.shape == (30, 20, 3)
    assert label == 1
    assert [label for _, label in dataset] == [0] * 5 + [1] * 5 + [2] * 5
    assert dataset[-1][1] == 2


def test_labels_are_gathered(folder: Path) -> None:
    dataset = FolderDataset(folder)
    assert dataset.gather("label", np.array([14, 0, 5])).tolist() == [2, 0, 1]
    for rows in ([15], [-1]):
        with pytest.raises(IndexError, match="out of range"):
            dataset.gather("label", np.array(rows))
    with pytest.raises(SchemaError, match="is an image"):
        dataset.gather("image", np.array([0]))


@pytest.mark.parametrize("row", [15, -16])
def test_rows_out_of_range_are_index_errors(folder: Path, row: int) -> None:
    with pytest.raises(IndexError, match="out of range"):
        FolderDataset(folder)[row]


def test_a_field_without_files_has_no_bytes_and_no_images(folder: Path) -> None:
    dataset = FolderDataset(folder)
    for name in ("label", "nothing"):
        with pytest.raises(fastio.SchemaError, match=name):
            dataset.read(name, 0)
        with pytest.raises(fastio.SchemaError, match=name):
            dataset.image_reads(name, np.arange(1))


def test_paths_are_a_sequence(folder: Path) -> None:
    paths = FolderDataset(folder).paths
    assert list(paths) == [paths[row] for row in range(len(paths))]
    assert paths[-1] == paths[14]
    assert paths[2:4] == [paths[2], paths[3]]
    assert paths[0] in paths


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "class"
    folder.mkdir()
    name = os.fsencode(folder) + b"/\xff\xfe.jpg"
    with open(name, "wb") as file:
        file.write(jpeg())
    dataset = FolderDataset(tmp_path)
    assert os.fsencode(dataset.paths[0]) == name
    assert dataset[0][0].shape == (24, 32, 3)
    assert len(dataset.fingerprint) == 16


def test_names_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    folder = tmp_path / ("c" * 255)
    folder.mkdir()
    (folder / ("n" * 251 + ".jpg")).write_bytes(jpeg())
    assert FolderDataset(tmp_path)[0][1] == 0


def test_a_listed_dataset_has_the_files_in_the_order_given(folder: Path) -> None:
    samples = [(str(folder / "class2" / "1.jpg"), 1), (str(folder / "class0" / "3.jpg"), 0)]
    dataset = FolderDataset.from_samples(samples, ["x", "y"])
    assert list(dataset.paths) == [path for path, _ in samples]
    assert dataset.gather("label", np.array([0, 1])).tolist() == [1, 0]
    assert dataset.classes == ("x", "y")
    assert dataset[0][0].shape == (23, 40, 3)


@pytest.mark.parametrize("end", ["", "/"])
def test_a_listed_folder_has_its_paths_and_fingerprint(folder: Path, end: str) -> None:
    whole = FolderDataset(folder)
    samples = list(zip(whole.paths, whole.labels.tolist(), strict=True))
    listed = FolderDataset.from_samples(samples, whole.classes, str(folder) + end)
    assert list(listed.paths) == list(whole.paths)
    assert listed.fingerprint == whole.fingerprint
    for path in ("/tmp/x.jpg", f"{folder}//x.jpg"):
        elsewhere = FolderDataset.from_samples([(path, 0)], ["x"], str(folder))
        assert list(elsewhere.paths) == [path]


def test_a_listed_dataset_can_leave_images_as_stored(folder: Path) -> None:
    path = folder / "class1" / "0.jpg"
    path.write_bytes(oriented_jpeg(6, 20, 30))
    upright = FolderDataset.from_samples([(str(path), 0)], ["x"])
    stored = FolderDataset.from_samples([(str(path), 0)], ["x"], upright=False)
    assert upright[0][0].shape == (30, 20, 3)
    np.testing.assert_array_equal(stored[0][0], decoded(path.read_bytes()))


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(SourceNotFound, match="empty"):
        FolderDataset.from_samples([], [])


def test_a_pickled_dataset_does_not_look_at_the_folder_again(folder: Path) -> None:
    dataset = FolderDataset(folder)
    data = pickle.dumps(dataset)
    (folder / "class0" / "new.jpg").write_bytes(jpeg())
    again = pickle.loads(data)
    assert list(again.paths) == list(dataset.paths)
    assert again.fingerprint == dataset.fingerprint


def test_the_fingerprint_tells_names_labels_and_classes_apart(tmp_path: Path) -> None:
    lists = [
        ([("ab", 0), ("c", 0)], ["x"]),
        ([("a", 0), ("bc", 0)], ["x"]),
        ([("ab", 0), ("c", 1)], ["x"]),
        ([("ab", 0), ("c", 0)], ["y"]),
        ([("c", 0), ("ab", 0)], ["x"]),
    ]
    prints = {FolderDataset.from_samples(samples, names).fingerprint for samples, names in lists}
    assert len(prints) == len(lists)
    roots = [write_folder(tmp_path / name) for name in ("one", "two")]
    assert FolderDataset(roots[0]).fingerprint == FolderDataset(roots[1]).fingerprint


@pytest.mark.parametrize("data", [b"", b"text", jpeg()[:-100], png_16_bit(True)])
def test_a_bad_file_is_named(folder: Path, data: bytes) -> None:
    path = folder / "class1" / "2.jpg"
    path.write_bytes(data)
    with pytest.raises(ImageError, match=r"class1/2\.jpg") as caught:
        FolderDataset(folder)[7]
    assert caught.value.row == 7
    assert caught.value.name == str(path)


def test_a_png_named_jpg_is_read(folder: Path) -> None:
    (folder / "class0" / "0.jpg").write_bytes(png(9, 8))
    assert FolderDataset(folder)[0][0].shape == (9, 8, 3)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="nothing does not exist"):
        FolderDataset(tmp_path / "nothing")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceNotFound, match="is a file"):
        FolderDataset(tmp_path / "file")


def test_an_empty_folder_has_no_classes(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="Couldn't find any class folder"):
        FolderDataset(tmp_path)


def test_images_without_class_folders_get_advice(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(jpeg())
    with pytest.raises(SourceNotFound, match=r"1 images are directly in it.*CSV or JSONL"):
        FolderDataset(tmp_path)


def test_a_class_without_images_is_named_as_torchvision_names_it(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "void").mkdir()
    (folder / "void" / "notes.txt").write_text("")
    with pytest.raises(FileNotFoundError, match="no valid file for the classes empty, void"):
        FolderDataset(folder)


def test_open_tells_packed_from_folder(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "packed")
    assert isinstance(fastio.open(tmp_path / "packed"), Dataset)
    assert isinstance(fastio.open(folder), FolderDataset)


def test_open_does_not_take_a_half_written_dataset_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).write_text("")
    with pytest.raises(DatasetNotFound, match="--resume"):
        fastio.open(tmp_path)


def test_open_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="nothing does not exist"):
        fastio.open(tmp_path / "nothing")
