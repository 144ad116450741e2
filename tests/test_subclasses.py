"""Classes that users derive from those of datasets: pickled, they stay what they are."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio


class Doubled(fastio.Dataset):
    def __getitem__(self, index: int) -> Any:
        return {name: 2 * value for name, value in super().__getitem__(index).items()}


class Keys(fastio.TarDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)["__key__"]


class First(fastio.TokenWindows):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)["inputs"][0]


class Scaled(fastio.Dataset):
    def __init__(self, path: str, scale: int) -> None:
        super().__init__(path)
        self.scale = scale


class Pickled(Scaled):
    def __reduce__(self) -> Any:
        return Pickled, (self.path, self.scale)


def packed(folder: Path) -> str:
    fastio.pack({"a": np.arange(3), "b": np.arange(3)}, folder / "packed")
    return str(folder / "packed")


def tar(folder: Path) -> str:
    path = folder / "a.tar"
    with tarfile.open(path, "w") as file:
        for number in range(3):
            about = tarfile.TarInfo(f"{number}.cls")
            about.size = 1
            file.addfile(about, io.BytesIO(b"7"))
    return str(path)


def windows(folder: Path) -> Any:
    np.arange(40, dtype=np.uint16).tofile(folder / "tokens.bin")
    documents = fastio.open(folder / "tokens.bin", dtypes={"tokens": "uint16"})
    return First(documents, 10)


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: Doubled(packed(folder)),
        lambda folder: Keys(tar(folder)),
        windows,
        lambda folder: Pickled(packed(folder), 5),
    ],
    ids=["packed", "tars", "windows", "reduce"],
)
def test_a_copy_is_of_the_users_class_and_has_its_samples(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    dataset = make(tmp_path)
    dataset.memory = "1MiB"
    copy = pickle.loads(pickle.dumps(dataset))
    assert type(copy) is type(dataset)
    assert [copy[row] for row in range(len(copy))] == [dataset[row] for row in range(len(dataset))]
    assert copy.memory == "1MiB"


def test_a_class_with_arguments_that_are_not_known_is_not_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"cannot pickle Scaled, .* define __reduce__ in it"):
        pickle.dumps(Scaled(packed(tmp_path), 5))
