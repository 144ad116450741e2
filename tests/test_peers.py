"""benchmarks/peers.py: epochs are all photos, rounds go on, settings do not mix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PHOTOS = 44  # 11 batches of 4: memory is looked at after ten
SETTINGS = {"images": 100, "batch": 4, "threads": 2}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return __import__("peers")


def figures(rate: float) -> dict[str, Any]:
    """What a runner writes of 100 images."""
    times = {"seconds": 100 / rate, "cpu_s": 150 / rate}
    return {"images": 100, "memory_mb": 300.0, "version": "1", "data_bytes": 1000, **times}


def result(**rates: list[float]) -> dict[str, Any]:
    """What was measured of loaders."""
    epochs = {name: [figures(rate) for rate in found] for name, found in rates.items()}
    about = {"date": "2026-01-01", "machine": {"cpu": "a processor", "simd": "avx2"}}
    return {**about, "settings": SETTINGS, "epochs": epochs, "not_measured": {"b": "no reason"}}


def test_an_epoch_of_fastio_is_all_photos(tmp_path: Path) -> None:
    for number in range(PHOTOS):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (300, 260), (number, 90, 60)).save(path)
    runner = [sys.executable, BENCHMARKS / "peers" / "runner.py", "measure", "fastio_loader"]
    options = ["--batch", "4", "--threads", "1", "--package", "fastio"]
    out = tmp_path / "figures.json"
    command = [*runner, "folder", tmp_path / "photos", *options, "--out", out]
    subprocess.run(list(map(str, command)), check=True, timeout=300)
    found = json.loads(out.read_text())
    assert found["images"] == PHOTOS
    assert min(found["seconds"], found["memory_mb"]) > 0


def test_loaders_are_measured_round_by_round(peers: Any) -> None:
    loaders = peers.LOADERS[:3]
    first, second, third = (loader.name for loader in loaders)
    had = result(**{first: [1.0, 1.0], second: [1.0]})
    assert [one.name for one in peers.missing(had, loaders, 2)] == [third, second, third]


def test_figures_of_other_settings_are_not_mixed(peers: Any, tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_text(json.dumps(result(a=[1.0])))
    assert peers.load(path, SETTINGS)["epochs"] == result(a=[1.0])["epochs"]
    with pytest.raises(SystemExit, match="figures of other settings"):
        peers.load(path, SETTINGS | {"batch": 5})


def test_the_report_has_medians_and_what_is_not_in_it(
    peers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = result(a=[100.0, 300.0, 200.0], fastio=[800.0])
    peers.report(measured)
    shown = capsys.readouterr().out
    for figure in ("200", "4.0 x", "7.50"):  # images/s, against the first, ms of processor
        assert figure in shown
    assert "Not measured: b: no reason" in shown
    peers.draw(measured, tmp_path / "bars.svg")
    assert "<svg" in (tmp_path / "bars.svg").read_text()
