"""Datasets over HDF5, Zarr, LMDB and memory-mapped files are packed as people write them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset as TorchDataset

from fastio import Dataset, pack
from tests.pictures import jpeg

COUNT = 80
VALUES = np.random.default_rng(0).normal(size=(COUNT, 7)).astype(np.float32)


class OpenedLate(TorchDataset[Any]):
    """Opens its file when the first sample is read, and keeps it open."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = str(path), None

    def __len__(self) -> int:
        return COUNT

    def opened(self) -> Any:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)  # samples that are read very fast are not read in worker processes
        if self.file is None:
            self.file = self.opened()
        return self.sample(self.file, index)

    def sample(self, file: Any, index: int) -> Any:
        return {"x": file["x"][index], "label": int(file["y"][index])}


def check_packed(dataset: Any, out: Path) -> None:
    pack(dataset, out, workers=2)
    found = list(Dataset(out))
    np.testing.assert_array_equal([sample["x"] for sample in found], VALUES)
    assert [sample["label"] for sample in found] == list(range(COUNT))
    assert dataset.file is None  # opened by the worker processes only


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(8, 7), compression="gzip")
        file["y"] = np.arange(COUNT)

    class Hdf5(OpenedLate):
        def opened(self) -> Any:
            return h5py.File(self.path, "r")

    check_packed(Hdf5(tmp_path / "a.h5"), tmp_path / "out")


def test_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group.create_array("x", data=VALUES, chunks=(8, 7))
    group.create_array("y", data=np.arange(COUNT))

    class Zarr(OpenedLate):
        def opened(self) -> Any:
            return zarr.open_group(self.path, mode="r")

    check_packed(Zarr(tmp_path / "a.zarr"), tmp_path / "out")


def test_lmdb_keeps_the_bytes_of_images(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    files = [jpeg(seed=number) for number in range(COUNT)]
    with lmdb.open(str(tmp_path / "a.lmdb"), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for number, file in enumerate(files):
            txn.put(b"%08d" % number, file)

    class Lmdb(OpenedLate):
        def opened(self) -> Any:
            return lmdb.open(self.path, readonly=True, lock=False, readahead=False)

        def sample(self, file: Any, index: int) -> Any:
            with file.begin() as txn:
                return txn.get(b"%08d" % index), index

    pack(Lmdb(tmp_path / "a.lmdb"), tmp_path / "out", workers=2, codec="jpeg")
    with Dataset(tmp_path / "out") as found:
        for number, file in enumerate(files):
            assert bytes(found.stored_image("image", number).data) == file


def test_memory_mapped_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES)

    class Mapped(OpenedLate):
        def opened(self) -> Any:
            return np.load(self.path, mmap_mode="r")

        def sample(self, file: Any, index: int) -> Any:
            return {"x": file[index], "label": index}

    check_packed(Mapped(tmp_path / "x.npy"), tmp_path / "out")
