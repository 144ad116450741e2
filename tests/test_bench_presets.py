"""The accelerators of MLPerf Storage, and photos of their size."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import fastio
from fastio import OptionError
from fastio.diagnose.bench import PRESETS, synthetic
from fastio.diagnose.bench.synthetic import jpeg_of_size
from fastio.diagnose.bench.synthetic import synthetic as make


def test_rates_follow_from_batches_and_steps() -> None:
    rates = {name: round(preset.rate) for name, preset in PRESETS.items()}
    assert rates["resnet50-h100"] == 1786
    assert rates["resnet50-a100"] == 920
    assert rates["retinanet-b200"] == 505
    assert rates["dlrm-b200"] == 43_690_667
    assert PRESETS["unet3d-h100"].rate == pytest.approx(21.7, abs=0.05)


def test_names_are_those_they_are_found_by() -> None:
    assert all(name == preset.name for name, preset in PRESETS.items())
    assert all(0 < preset.au < 1 for preset in PRESETS.values())


def test_photos_have_the_size_that_is_asked_for() -> None:
    data = jpeg_of_size(30_000, seed=1)
    assert len(data) == pytest.approx(30_000, rel=0.06)
    image = Image.open(io.BytesIO(data))
    assert image.width * 3 == pytest.approx(image.height * 4, abs=4)
    assert data != jpeg_of_size(30_000, seed=2)


def test_photos_are_made_once_and_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "_PHOTOS", 3)
    monkeypatch.setattr(synthetic, "jpeg_of_size", lambda nbytes, seed: jpeg_of_size(9000, seed))
    photos, packed = make(PRESETS["resnet50-h100"], tmp_path, 25)
    assert len(list(photos.glob("*/*.jpg"))) == 25
    with fastio.open(packed) as dataset:
        assert len(dataset) == 25
    before = (packed / "manifest.arrow").stat().st_mtime_ns
    assert make(PRESETS["resnet50-h100"], tmp_path, 25) == (photos, packed)
    assert (packed / "manifest.arrow").stat().st_mtime_ns == before


def test_what_an_interrupted_run_left_half_packed_is_packed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic, "_PHOTOS", 2)
    monkeypatch.setattr(synthetic, "jpeg_of_size", lambda nbytes, seed: jpeg_of_size(9000, seed))

    def interrupted(photos: Path, packed: Path, **options: Any) -> None:
        packed.mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "pack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(PRESETS["resnet50-h100"], tmp_path, 4)
    with fastio.open(make(PRESETS["resnet50-h100"], tmp_path, 4)[1]) as dataset:
        assert len(dataset) == 4


def test_there_are_photos_for_presets_of_images_alone(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="table"):
        make(PRESETS["dlrm-b200"], tmp_path, 10)
