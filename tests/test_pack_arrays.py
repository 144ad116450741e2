"""Folders of .npy and .npz files, packed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastio
from fastio import Array, Loader, Scalar, SchemaError


def save(path: Path, array: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def test_arrays_in_class_folders_keep_their_values_in_any_layout(tmp_path: Path) -> None:
    arrays = {
        "a/0.npy": np.arange(12.0).reshape(3, 4),
        "a/1.npy": np.asfortranarray(np.arange(15.0).reshape(3, 5)),
        "b/2.npy": np.arange(3.0).reshape(3, 1).astype(">f8"),
    }
    for name, array in arrays.items():
        save(tmp_path / "src" / name, array)
    report = fastio.pack(tmp_path / "src", tmp_path / "dst")
    assert (report.rows, report.skipped) == (3, [])
    with fastio.open(tmp_path / "dst") as dataset:
        assert dataset.schema.fields == {
            "array": Array("float64", (3, None)),
            "label": Scalar("int64"),
        }
        assert dataset.schema.classes == ("a", "b")
        for (array, label), (name, expected) in zip(dataset, arrays.items(), strict=True):
            np.testing.assert_array_equal(array, expected)
            assert "ab"[label] == name[0]
    with Loader(tmp_path / "dst", 3, ragged="padded") as loader:
        (((padded, lengths), labels),) = loader
    assert (tuple(padded.shape), lengths.tolist()) == ((3, 3, 5), [4, 5, 1])
    assert labels.tolist() == [0, 0, 1]


def test_a_folder_of_files_of_one_shape(tmp_path: Path) -> None:
    for n in range(4):
        save(tmp_path / "src" / f"{n}.npy", np.full((2, 2), n, np.complex64))
    fastio.pack(tmp_path / "src", tmp_path / "dst")
    with Loader(tmp_path / "dst", 4) as loader:
        (batch,) = loader
    assert batch.shape == (4, 2, 2)
    assert batch[:, 0, 0].real.tolist() == [0, 1, 2, 3]


def test_npz_files_are_dicts(tmp_path: Path) -> None:
    for n in range(3):
        path = tmp_path / "src" / "x" / f"{n}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, image=np.ones((n, 2), np.int16), age=np.float32(n))
    fastio.pack(tmp_path / "src", tmp_path / "dst")
    with fastio.open(tmp_path / "dst") as dataset:
        assert dataset.schema.fields == {
            "image": Array("int16", (None, 2)),
            "age": Scalar("float32"),
            "label": Scalar("int64"),
        }
        assert [sample["image"].shape for sample in dataset] == [(0, 2), (1, 2), (2, 2)]
        assert [sample["age"] for sample in dataset] == [0, 1, 2]


def test_damaged_files_are_named_or_left_out(tmp_path: Path) -> None:
    save(tmp_path / "src" / "0.npy", np.arange(5))
    save(tmp_path / "src" / "1.npy", np.arange(9))
    data = (tmp_path / "src" / "1.npy").read_bytes()
    (tmp_path / "src" / "1.npy").write_bytes(data[:-8])
    (tmp_path / "src" / "2.npy").write_bytes(b"none")
    with pytest.raises(fastio.SampleError, match=r"1\.npy"):
        fastio.pack(tmp_path / "src", tmp_path / "dst")
    report = fastio.pack(tmp_path / "src", tmp_path / "other", on_error="skip")
    assert (report.rows, len(report.skipped)) == (1, 2)


def test_any_damage_of_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    for n in range(4):
        np.savez_compressed(folder / f"{n}.npz", x=np.random.default_rng(n).random(500))
    compressed = bytearray((folder / "1.npz").read_bytes())
    compressed[60:200] = b"\xff" * 140
    (folder / "1.npz").write_bytes(compressed)
    np.savez(folder / "2.npz", x=np.zeros(500))
    stored = bytearray((folder / "2.npz").read_bytes())
    stored[1000] ^= 255
    (folder / "2.npz").write_bytes(stored)
    with pytest.raises(fastio.SampleError, match=r"1\.npz"):
        fastio.pack(folder, tmp_path / "dst")
    report = fastio.pack(folder, tmp_path / "rest", on_error="skip")
    assert report.rows == 2
    assert [Path(name).name for name, _ in report.skipped] == ["1.npz", "2.npz"]


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    save(tmp_path / "src" / "0.npy", np.zeros(3))
    (tmp_path / "src" / "1.npy").touch()
    with pytest.raises(fastio.SampleError, match=r"1\.npy"):
        fastio.pack(tmp_path / "src", tmp_path / "dst")


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "types" / "0.npy", np.arange(5))
    save(tmp_path / "types" / "1.npy", np.arange(5.0))
    with pytest.raises(SchemaError, match=r"int64 in .*0\.npy and float64 in .*1\.npy"):
        fastio.pack(tmp_path / "types", tmp_path / "dst")
    save(tmp_path / "objects" / "0.npy", np.array([None]))
    with pytest.raises(SchemaError, match="object"):
        fastio.pack(tmp_path / "objects", tmp_path / "dst")
    save(tmp_path / "mixed" / "0.npy", np.arange(5))
    np.savez(tmp_path / "mixed" / "1.npz", x=np.arange(5))
    with pytest.raises(SchemaError, match=r"\.npy and \.npz"):
        fastio.pack(tmp_path / "mixed", tmp_path / "dst")


def test_shapes_may_differ_in_axes(tmp_path: Path) -> None:
    save(tmp_path / "src" / "0.npy", np.arange(4))
    save(tmp_path / "src" / "1.npy", np.arange(4).reshape(2, 2))
    fastio.pack(tmp_path / "src", tmp_path / "dst")
    with Loader(tmp_path / "dst", 2) as loader:
        (batch,) = loader
    assert [tuple(array.shape) for array in batch] == [(4,), (2, 2)]


def test_an_array_may_be_named_label_where_there_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for number in range(3):
        np.savez(tmp_path / "src" / f"{number}.npz", x=np.ones(2), label=np.int64(number))
    fastio.pack(tmp_path / "src", tmp_path / "dst")
    with fastio.open(tmp_path / "dst") as dataset:
        assert [sample["label"] for sample in dataset] == [0, 1, 2]
