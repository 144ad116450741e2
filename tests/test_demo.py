"""tools/demo, in small: it runs to its end, keeps what it should, and fails in clear words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import demo
import pytest
import side_by_side
import torch

import fastio

ROOT = Path(__file__).parent.parent
SMALL = ("--count", "64", "--epochs", "1", "--size", "32")


def run_demo(
    work: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "demo.py"), *SMALL, "--work", str(work)]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=300, env=env
    )


def without_development_packages(folder: Path) -> dict[str, str]:
    """An environment in which no process finds what `tools/setup --no-dev` leaves out."""
    extras = (ROOT / "pyproject.toml").read_text().split("\ndev = [")[1].split("\n]")[0]
    names = re.findall(r'^  "([\w-]+)', extras, re.MULTILINE)
    assert "hypothesis" in names
    modules = [name.replace("-", "_") for name in [*names, "torchvision"]]
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({modules}))\n"
    )
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder after its first run, without development packages, and what it printed."""
    work = tmp_path_factory.mktemp("demo")
    done = run_demo(work, env=without_development_packages(tmp_path_factory.mktemp("site")))
    assert done.returncode == 0, done.stderr
    return work, done.stdout


# --- The whole ------------------------------------------------------------------------------------


@pytest.mark.long
def test_prints_a_row_for_every_loader(first_run: tuple[Path, str]) -> None:
    rows = [line.strip() for line in first_run[1].splitlines() if line.strip().endswith("%")]
    assert [row[:19].strip() for row in rows] == [
        "DataLoader + Pillow",
        "fastio, same folder",
        "fastio, packed",
        *[row[:19].strip() for row in rows[3:]],
    ]
    assert "same folder, cache=" in first_run[1]
    assert rows[3].split()[0] == "1"  # epoch
    assert not (first_run[0] / "cache").exists()


@pytest.mark.long
def test_folder_and_packed_train_on_the_same_crops_in_the_same_order(
    first_run: tuple[Path, str], tmp_path: Path
) -> None:
    photos = first_run[0] / "photos-64"
    fastio.pack(photos / "train", tmp_path / "packed" / "train")
    settings = side_by_side.Settings(64, 1, 128, tmp_path, torch.device("cpu"), 2)
    with (
        side_by_side.fast_loader(settings, photos, "train") as folder,
        side_by_side.fast_loader(settings, settings.packed, "train") as packed,
    ):
        for (images, labels), (others, their_labels) in zip(folder, packed, strict=True):
            assert labels.equal(their_labels)
            # Block records are shrunk in another way than JPEGs, which changes a level here and
            # there; another crop of the photo would differ by tens of levels. One is about 1 / 57.
            assert float((images - others).abs().mean()) < 1 / 57


@pytest.mark.long
def test_output_fits_a_terminal_and_has_no_colour_codes(first_run: tuple[Path, str]) -> None:
    lines = [line.rstrip() for line in first_run[1].splitlines() if str(first_run[0]) not in line]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in first_run[1]


@pytest.mark.long
def test_photos_stay_for_the_next_run_and_packed_data_goes(first_run: tuple[Path, str]) -> None:
    work, _ = first_run
    assert [path.name for path in work.iterdir()] == ["photos-64"]
    made = {path: path.stat().st_mtime_ns for path in work.rglob("*.jpg")}
    again = run_demo(work, "--keep", "--trainings", "2")
    said = " ".join(again.stdout.split())  # wherever lines end
    assert "made by an earlier run" in said
    assert "mean of 2 trainings" in said
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*.jpg")} == made
    assert (work / "packed" / "train" / "manifest.arrow").is_file()
    shutil.rmtree(work / "packed")


@pytest.mark.long
def test_a_damaged_photo_is_named_and_ends_it(first_run: tuple[Path, str], tmp_path: Path) -> None:
    work = shutil.copytree(first_run[0], tmp_path / "work")
    photo = next(work.rglob("*.jpg"))
    photo.write_bytes(b"no photo")
    done = run_demo(work)
    assert done.returncode == 1
    assert done.stderr.startswith(f"demo: {photo}: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("--count", "3"), ("--epochs", "0"), ("--size", "1")])
def test_impossible_settings_are_refused(arguments: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as refused:
        demo.main(list(arguments))
    assert refused.value.code == 2


# --- What it says ---------------------------------------------------------------------------------


def test_means_that_differ_by_chance_are_called_equal() -> None:
    said = demo.about_accuracy([0.7, 0.72, 0.74, 0.76], [0.72, 0.72, 0.75, 0.77])
    # Standard errors 1.291 and 1.225 points: 2.447 times their root sum of squares.
    assert "differ by 1.0 points; chance explains up to 4.4: equal accuracy." in said


def test_means_that_differ_by_more_are_not() -> None:
    said = demo.about_accuracy([0.8, 0.82, 0.84, 0.86], [0.72, 0.72, 0.75, 0.77])
    assert "differ by 9.0 points; chance explains up to 4.4: NOT equal." in said
    assert "--trainings" in said


def test_epochs_are_compared_with_dataloaders() -> None:
    results = [
        side_by_side.Result("plain", 100.0, 8.0, 6.0, 0.5),
        side_by_side.Result("fast", 400.0, 2.0, 0.5, 0.5),
    ]
    settings = side_by_side.Settings(64, 1, 32, Path(), torch.device("cpu"), 2)
    said = demo.about_speed(results, settings)
    assert "4.0 times as many images per second" in said
    assert "4.0 times shorter" in said
    assert "1.5 s" in said
