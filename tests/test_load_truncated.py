"""`PIL.ImageFile.LOAD_TRUNCATED_IMAGES`: files that are cut off come as Pillow would load them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

import fastio
from fastio import Loader

SIDE = 96


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)


def cut_off(form: str) -> bytes:
    """Two thirds of a file of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, form)
    return file.getvalue()[: len(file.getvalue()) * 2 // 3]


def by_pillow(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)


def class_folder(path: Path, data: bytes, suffix: str) -> Path:
    (path / "cats").mkdir(parents=True)
    (path / "cats" / f"cut{suffix}").write_bytes(data)
    Image.new("RGB", (SIDE, SIDE), (1, 2, 3)).save(path / "cats" / "good.jpg")
    return path


@pytest.mark.parametrize("form", ["jpeg", "png"])
def test_files_of_a_folder(tmp_path: Path, lenient: None, form: str) -> None:
    data = cut_off(form)
    with Loader(class_folder(tmp_path / "photos", data, f".{form}"), 2) as loader:
        (images, _), *_ = list(loader)
    assert np.array_equal(images[0].numpy(), by_pillow(data))
    assert images[1].float().mean() < 8


def test_crops_of_them_are_those_of_what_pillow_loads(tmp_path: Path, lenient: None) -> None:
    data = cut_off("jpeg")
    path = class_folder(tmp_path / "photos", data, ".jpg")
    with Loader(path, 2, transforms=fastio.CenterCrop(32)) as loader:
        images, _ = next(iter(loader))
    assert np.array_equal(images[0].numpy(), by_pillow(data)[:, 32:64, 32:64])


def test_members_of_a_tar(tmp_path: Path, lenient: None) -> None:
    data = cut_off("jpeg")
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        member = tarfile.TarInfo("0.jpg")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    with Loader(tmp_path / "t.tar", 1, fields=["jpg"]) as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch["jpg"][0].numpy(), by_pillow(data))


@pytest.mark.parametrize("form", ["jpeg", "png"])
def test_without_it_they_are_errors(tmp_path: Path, form: str) -> None:
    path = class_folder(tmp_path / "photos", cut_off(form), f".{form}")
    with Loader(path, 2) as loader, pytest.raises(fastio.ImageError, match="cut"):
        next(iter(loader))


def test_a_file_that_pillow_does_not_load_either_is_an_error(tmp_path: Path, lenient: None) -> None:
    path = class_folder(tmp_path / "photos", cut_off("jpeg")[:20], ".jpg")
    with Loader(path, 2) as loader, pytest.raises(fastio.ImageError, match="cut"):
        next(iter(loader))


@pytest.mark.parametrize("codec", ["blocks", "jpeg", "raw"])
def test_packed_they_are_the_pixels_that_pillow_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Any
) -> None:
    data = cut_off("jpeg")
    path = class_folder(tmp_path / "photos", data, ".jpg")
    with pytest.raises(fastio.ImageError, match="cut"):
        fastio.pack(path, tmp_path / "no", codec=codec)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    fastio.pack(path, tmp_path / "packed", codec=codec)
    expected = by_pillow(data)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    with Loader(tmp_path / "packed", 2) as loader:
        images, _ = next(iter(loader))
    assert np.array_equal(images[0].numpy(), expected)
