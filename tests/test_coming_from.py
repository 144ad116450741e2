"""The code of docs/coming_from.md packs files that other libraries have written."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

import fastio
from tests.pictures import jpeg
from tests.support import torchvision_first

PAGE = Path(__file__).parent.parent / "docs" / "coming_from.md"
COUNT = 80
VALUES = np.random.default_rng(0).normal(size=(COUNT, 7)).astype(np.float32)
JPEGS = [jpeg(seed=number) for number in range(COUNT)]


def code_of_sections() -> dict[str, str]:
    """The code of each section of the page by its heading, on the lines of the page."""
    found = {}
    for section in re.finditer(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE.read_text(), re.MULTILINE):
        for code in re.finditer(r"^```py\n(.*?)^```$", section[2], re.DOTALL | re.MULTILINE):
            line = section.string.count("\n", 0, section.start(2) + code.start(1))
            found[section[1]] = "\n" * line + code[1]
    return found


CODE = code_of_sections()


def write_hdf5() -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File("volumes.h5", "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(8, 7), compression="gzip")
        file["label"] = np.arange(COUNT)


def write_zarr() -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group("volumes.zarr", mode="w")
    group.create_array("x", data=VALUES, chunks=(8, 7))
    group.create_array("label", data=np.arange(COUNT))


def write_npy() -> None:
    np.save("rows.npy", VALUES)


def write_lmdb() -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open("photos.lmdb", map_size=1 << 26) as env, env.begin(write=True) as transaction:
        for number, file in enumerate(JPEGS):
            transaction.put(b"%08d" % number, file)


def write_mds() -> None:
    torchvision_first()
    streaming = pytest.importorskip("streaming")
    write_files()  # Streaming copies the files of images that were opened by their names
    columns = {"image": "jpeg", "label": "int"}
    with streaming.MDSWriter(out="mds/", columns=columns, size_limit=1 << 16) as out:
        for number in range(COUNT):
            out.write({"image": PIL.Image.open(f"{number}.jpg"), "label": number})


def litdata_sample(folder: str, number: int) -> dict[str, Any]:
    return {"image": PIL.Image.open(f"{folder}/{number}.jpg"), "label": number}


def write_litdata() -> None:
    litdata = pytest.importorskip("litdata")
    Path("files").mkdir()
    for number, file in enumerate(JPEGS):
        Path(f"files/{number}.jpg").write_bytes(file)
    sample = partial(litdata_sample, str(Path("files").absolute()))
    litdata.optimize(
        sample, list(range(COUNT)), "optimized", num_workers=1, chunk_bytes=1 << 16, verbose=False
    )


def write_beton() -> None:
    writer = pytest.importorskip("ffcv.writer")
    from ffcv.fields import IntField, RGBImageField

    fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
    samples = [(PIL.Image.open(io.BytesIO(file)), at) for at, file in enumerate(JPEGS)]
    writer.DatasetWriter("photos.beton", fields, num_workers=1).from_indexed_dataset(samples)


def write_tfrecord() -> None:
    tfrecord = pytest.importorskip("tfrecord")
    out = tfrecord.TFRecordWriter("photos.tfrecord")
    for number, file in enumerate(JPEGS):
        out.write({"image/encoded": (file, "byte"), "image/class/label": (number, "int")})
    out.close()


def write_files() -> None:
    for number, file in enumerate(JPEGS):
        Path(f"{number}.jpg").write_bytes(file)


def check_values(found: fastio.Dataset) -> None:
    np.testing.assert_array_equal([sample["x"] for sample in found], VALUES)


def check_labelled(found: fastio.Dataset) -> None:
    check_values(found)
    assert [sample["label"] for sample in found] == list(range(COUNT))


def check_files(found: fastio.Dataset) -> None:
    """All JPEGs are stored byte for byte."""
    assert [bytes(found.stored_image("image", row).data) for row in range(COUNT)] == JPEGS
    if "label" in found.schema.fields:
        labels = found.gather("label", np.arange(COUNT))
        assert labels.tolist() in (list(range(COUNT)), [row % 2 for row in range(COUNT)])


def check_jpegs(found: fastio.Dataset) -> None:
    """The JPEGs are those that FFCV has made of its images."""
    for row in range(COUNT):
        stored = bytes(found.stored_image("image", row).data)
        assert stored.startswith(b"\xff\xd8\xff")
        pixels = np.asarray(PIL.Image.open(io.BytesIO(JPEGS[row])).convert("RGB"), np.int16)
        assert abs(pixels - found[row][0]).mean() < 12
        assert found[row][1] == row


SECTIONS: dict[str, tuple[Callable[[], None], Callable[[fastio.Dataset], None]]] = {
    "HDF5": (write_hdf5, check_labelled),
    "Zarr": (write_zarr, check_labelled),
    "Memory-mapped arrays": (write_npy, check_values),
    "LMDB": (write_lmdb, check_files),
    "MosaicML Streaming (MDS)": (write_mds, check_files),
    "LitData": (write_litdata, check_files),
    "FFCV": (write_beton, check_jpegs),
    "TFRecord": (write_tfrecord, check_files),
    "A torch Dataset that decodes images": (write_files, check_files),
}


def test_every_section_with_code_is_run() -> None:
    assert CODE.keys() == SECTIONS.keys()


@pytest.mark.filterwarnings("default")  # of other libraries
@pytest.mark.parametrize("shard_size", ["64MiB", "2KiB"])
@pytest.mark.parametrize("section", SECTIONS)
def test_the_code_of_a_section_packs_files_of_its_format(
    section: str, shard_size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large shards are filled by this process, and small ones by the worker processes."""
    monkeypatch.chdir(tmp_path)
    write, check = SECTIONS[section]
    write()
    pack = partial(fastio.pack, workers=2, shard_size=shard_size)
    names: dict[str, Any] = {
        "__name__": "coming_from",
        "fastio": type("Fastio", (), {"pack": staticmethod(pack)}),
        "torch": torch,
        "np": np,
        "PIL": PIL,
        "paths": [f"{number}.jpg" for number in range(COUNT)],
    }
    exec(compile(CODE[section], str(PAGE), "exec"), names)
    with fastio.Dataset("packed/") as found:
        check(found)
