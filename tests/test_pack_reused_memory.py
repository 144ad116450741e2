"""Samples of Python whose memory is used again for the next sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

import fastio
from tests.pictures import save

ROWS = 30
SCHEMA = fastio.Schema(
    {
        "image": fastio.Image(),
        "pillow": fastio.Image(),
        "tensor": fastio.Array("float32", (3,)),
        "array": fastio.Array("int64", None),
        "tokens": fastio.Tokens("uint16"),
        "bytes": fastio.Bytes(),
    }
)


class Reused:
    """Gives the same objects for every sample, with other contents."""

    def __init__(self) -> None:
        self._image = np.zeros((5, 4, 3), np.uint8)
        self._pillow = PillowImage.new("RGB", (4, 5))
        self._tensor = torch.zeros(3)
        self._array = np.zeros(8, np.int64)
        self._tokens = np.zeros(8, np.uint16)
        self._bytes = bytearray(4)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        if row >= ROWS:
            raise IndexError(row)
        self._image[:] = row
        self._pillow.paste((row, row, row), (0, 0, 4, 5))
        self._tensor[:] = row
        self._array[:] = row
        self._tokens[:] = row
        self._bytes[:] = bytes([row] * 4)
        return {
            "image": self._image,
            "pillow": self._pillow,
            "tensor": self._tensor,
            "array": self._array[: row % 8],
            "tokens": self._tokens[: 1 + row % 7],
            "bytes": memoryview(self._bytes),
        }


def check(path: Path, names: list[str]) -> None:
    with fastio.open(path) as dataset:
        assert len(dataset) == ROWS
        for row, sample in enumerate(dataset):
            found = {name: np.asarray(sample[name]) for name in names if name != "bytes"}
            if "bytes" in names:
                found["bytes"] = np.frombuffer(sample["bytes"], np.uint8)
            for name, value in found.items():
                assert np.all(value == row), (row, name)


@pytest.mark.parametrize("names", [list(SCHEMA.fields), ["tokens", "array", "bytes"]])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("way", ["dataset", "iterable", "writer"])
def test_each_sample_is_packed_as_it_was_given(
    tmp_path: Path, way: str, workers: int, names: list[str]
) -> None:
    class Some(Reused):
        def __getitem__(self, row: int) -> dict[str, Any]:
            sample = super().__getitem__(row)
            return {name: sample[name] for name in names}

    schema = fastio.Schema({name: SCHEMA.fields[name] for name in names}, "dict")
    out = tmp_path / "out"
    if way == "writer":
        with fastio.Writer(out, schema, codec="raw", workers=workers) as writer:
            for sample in iter(Some()):
                writer.write(sample)
    else:
        source = Some() if way == "dataset" else iter(Some())
        fastio.pack(source, out, schema=schema, codec="raw", workers=workers)
    check(out, names)


@pytest.mark.parametrize("first", ["tensor", "file"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_list_of_images_is_packed_as_it_was_given(
    tmp_path: Path, workers: int, first: str
) -> None:
    schema = fastio.Schema({"images": fastio.Images("RGB")}, "single")
    tensor, array = torch.zeros((3, 4, 5), dtype=torch.uint8), np.zeros((4, 5, 3), np.uint8)
    with fastio.Writer(tmp_path / "out", schema, codec="raw", workers=workers) as writer:
        for row in range(ROWS):
            tensor[:], array[:] = row, row
            given = (
                tensor
                if first == "tensor"
                else save(PillowImage.new("RGB", (5, 4), (row, row, row)), "PNG")
            )
            writer.write([given, array])
    with fastio.open(tmp_path / "out") as dataset:
        for row, images in enumerate(dataset):
            assert [set(np.unique(each)) for each in images] == [{row}, {row}]
