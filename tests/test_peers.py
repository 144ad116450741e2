"""benchmarks/peers.py: every loader is measured as often as asked for, and says what it did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PHOTOS = 44  # 11 batches of 4: memory is looked at after ten


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The benchmark with fastio's own loaders, on copies of two photos."""
    return subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "peers.py", folder / "photos", *arguments),
            *("--only", "fastio_loader", "--images", str(PHOTOS), "--threads", "1"),
            *("--rounds", "1", "--work", folder / "work", "--json", folder / "peers.json"),
        ],
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After one round with batches of 4."""
    folder = tmp_path_factory.mktemp("peers")
    for number, name in enumerate(("cat", "dog")):
        path = folder / "photos" / name / "0.jpg"
        path.parent.mkdir(parents=True)
        Image.effect_noise((300, 260 + number), 60).convert("RGB").save(path)
    done = run(folder, "--batch", "4", "--plot", str(folder / "bars.svg"))
    assert done.returncode == 0, done.stderr
    return folder


def test_an_epoch_of_each_is_all_photos(folder: Path) -> None:
    epochs = json.loads((folder / "peers.json").read_text())["epochs"]
    assert sorted(epochs) == [
        "fastio, image folder as it is",
        "fastio, packed, blocks",
        "fastio, packed, jpeg",
    ]
    for (figures,) in epochs.values():
        assert figures["images"] == PHOTOS
        assert min(figures[name] for name in ("seconds", "memory_mb", "data_bytes")) > 0


def test_what_was_measured_is_reported_again_and_not_measured_again(folder: Path) -> None:
    before = (folder / "peers.json").read_text()
    done = run(folder, "--batch", "4")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "peers.json").read_text())["epochs"] == json.loads(before)["epochs"]
    assert "fastio, packed, blocks" in done.stdout
    assert "images/s" in done.stdout
    assert "<svg" in (folder / "bars.svg").read_text()


def test_figures_of_other_settings_are_not_mixed(folder: Path) -> None:
    done = run(folder, "--batch", "5")
    assert done.returncode == 1
    assert "figures of other settings" in done.stderr
