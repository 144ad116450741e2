"""fastio bench from end to end: what it writes, not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fastio
from fastio.cli import main
from fastio.diagnose import Measured
from fastio.train.models import ENCODER_SIZES, EncoderSize
from fastio.train.options import TabularSettings
from tests.servers import http_folder
from tests.support import numbered_folder

QUICK = ("--seconds", 1, "--steps", 3, "--batch-size", 4, "--size", 16, "--threads", 2)


def run(*arguments: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of fastio bench."""
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def small_model() -> nn.Module:
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), pool, nn.Flatten(), nn.Linear(4, 3))


def lazy_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))


def same(images: torch.Tensor) -> torch.Tensor:
    return images


def no_model() -> int:
    return 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return numbered_folder(tmp_path / "photos")


def test_an_emulated_accelerator_beside_dataloader(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, a first pass has all its steps: one step tells no utilisation.
    monkeypatch.setattr("fastio.diagnose.loop._PATIENCE", 1e6)
    out = tmp_path / "bench.json"
    code, text, _ = run(
        *(folder, "--accelerator", 5000, "--baseline", folder, "--json", out, *QUICK),
        *("--transform", "tests.test_bench_cli:same", "--bus", 1),
    )
    assert code == 0
    assert "24 images" in text
    values = json.loads(out.read_text())
    measured = Measured.from_dict(values)
    names = [phase.name for phase in measured.phases]
    warm = ["compute", "loader_warm", "together_warm", "baseline_loader", "baseline_together"]
    assert [name for name in names if not name.endswith("cold")] == warm
    assert measured.dataset.rows == 24
    assert measured.settings.accelerator_rate == 5000
    assert all(phase.samples > 0 and phase.seconds > 0 for phase in measured.phases)
    together = measured.phase("together_warm")
    assert together is not None
    assert together.au is not None
    assert 0 < together.au <= 1
    assert together.stats.transform_s > 0
    split = measured.epoch("warm")
    assert split is not None
    assert split.epoch_s > 0
    assert {span.stage for span in measured.timeline} >= {"compute", "transform"}
    assert 2 in [point.threads for point in measured.threads]
    assert measured.packed_samples_per_s is not None
    assert measured.accelerators_fed is not None
    assert measured.predictions
    assert values["findings"]
    assert values["findings"][0]["culprit"]
    phases = {phase["name"]: phase for phase in values["phases"]}
    assert phases["baseline_together"]["of_ceiling"] > 0
    assert phases["baseline_together"]["stats"]["copy_s"] > 0
    assert phases["loader_warm"]["of_ceiling"] is None
    assert phases["loader_warm"]["cores_busy"] > 0


def test_a_model_on_the_cpu(folder: Path, tmp_path: Path) -> None:
    fastio.pack(folder, tmp_path / "packed")
    model = f"{__name__}:small_model"
    code, text, _ = run(
        *(tmp_path / "packed", "--model", model, "--device", "cpu", "--json", "-", "--no-cold"),
        *("--epochs", 1, "--val", folder, *QUICK, "--amp", "bf16", "--channels-last"),
    )
    assert code == 0
    measured = Measured.from_dict(json.loads(text))
    assert measured.settings.model == model
    assert not measured.settings.asynchronous
    assert measured.phase("loader_cold") is None
    assert measured.settings.transforms[0] == "RandomResizedCrop(16)"
    assert (measured.settings.amp, measured.settings.channels_last) == ("bf16", True)
    (training,) = measured.trainings
    assert (training.name, training.epochs) == ("fastio", 1)
    assert 0 <= training.accuracy <= 1
    assert training.loss is not None
    assert np.isfinite(training.loss)


def lost() -> nn.Module:
    layer = nn.Linear(3 * 16 * 16, 3)
    nn.init.constant_(layer.weight, float("nan"))
    return nn.Sequential(nn.Flatten(), layer)


def test_a_loss_that_is_no_number_is_no_error(folder: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "page.html", tmp_path / "bench.json"
    code, text, _ = run(
        *(folder, "--model", f"{__name__}:lost", "--device", "cpu", "--json", out, "--html", page),
        *("--no-cold", "--epochs", 1, *QUICK),
    )
    assert code == 0
    (training,) = Measured.from_dict(json.loads(out.read_text())).trainings
    assert training.loss is None
    assert "not finite" in text
    assert "not finite" in page.read_text()


def test_a_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(folder, "--accelerator", 5000, "--html", page, "--no-cold", *QUICK)[0] == 0
    assert "<html" in page.read_text()


def test_rows(tmp_path: Path) -> None:
    data = tmp_path / "rows"
    fastio.pack(({"x": np.full(3, row, np.float32)} for row in range(64)), data)
    code, text, _ = run(data, "--preset", "dlrm-b200", "--json", "-", *QUICK)
    assert code == 0
    measured = Measured.from_dict(json.loads(text))
    assert measured.settings.accelerator == "dlrm-b200"
    assert measured.settings.au_target == 0.7
    assert measured.settings.batch_size == 4


def clicks(folder: Path, label: str = "label") -> Path:
    """Packed rows of two numbers, two ids and a label of 0 and 1."""
    rows = (
        {
            "dense": np.full(2, row / 64, np.float32),
            "sparse": np.full(2, row, np.int64),
            label: row % 2,
        }
        for row in range(64)
    )
    fastio.pack(rows, folder)
    return folder


def tokens(folder: Path, label: bool = False) -> Path:
    """Packed documents of 40 bytes each."""
    corpus = folder.with_suffix(".jsonl")
    extra = ', "label": "{}"' if label else ""
    corpus.write_text(
        "".join(f'{{"text": "{"word " * 8}"{extra.format("ab"[row % 2])}}}\n' for row in range(24))
    )
    fastio.pack(corpus, folder, tokenizer="bytes", columns=["text", "label"] if label else ["text"])
    return folder


@pytest.mark.parametrize("name", ["dlrm", "mlp"])
def test_a_model_of_tables_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TabularSettings, "table_rows", 64)
    code, text, _ = run(
        *(clicks(tmp_path / "clicks"), "--model", name, "--device", "cpu", "--json", "-", *QUICK),
        "--no-cold",
    )
    assert code == 0
    measured = Measured.from_dict(json.loads(text))
    assert measured.settings.model == name
    assert measured.dataset.rows == 64
    together = measured.phase("together_warm")
    assert together is not None
    assert together.compute_s > 0


@pytest.mark.parametrize(
    ("label", "rows", "transform"), [(False, 24 * 40 // 17, "TokenWindows(16)"), (True, 24, "Pad")]
)
def test_a_model_of_tokens_by_name(
    label: bool, rows: int, transform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODER_SIZES, "tiny", EncoderSize(8, 1, 1, 16))
    data = tokens(tmp_path / "tokens", label)
    code, text, _ = run(
        *(data, "--model", "tiny", "--device", "cpu", "--json", "-", "--no-cold", *QUICK),
        *("--length", 16, "--amp", "bf16"),
    )
    assert code == 0
    measured = Measured.from_dict(json.loads(text))
    assert measured.settings.amp == "bf16"
    assert measured.dataset.rows == pytest.approx(rows, abs=24)
    assert any(transform in step for step in measured.settings.transforms)


def test_what_a_model_by_name_misses_is_said(tmp_path: Path) -> None:
    data = clicks(tmp_path / "clicks", label="clicked")
    code, _, errors = run(data, "--model", "dlrm", *QUICK)
    assert code == 1
    assert "no field 'label'; the fields are dense, sparse, clicked" in errors
    assert "MODULE:FUNCTION" in errors
    assert (
        "no model 'resnet18' for tables. Known models: dlrm, mlp"
        in run(data, "--model", "resnet18")[2]
    )
    assert "epochs need images" in run(data, "--model", "dlrm", "--epochs", 1)[2]


def test_images_too_small_for_a_model_are_said(folder: Path) -> None:
    code, _, errors = run(folder, "--model", "convnet", *QUICK)
    assert code == 2
    assert "--size 16: ConvNet needs images of at least 32 pixels" in errors


def test_images_to_evaluate_on_must_have_the_same_classes(folder: Path, tmp_path: Path) -> None:
    other = numbered_folder(tmp_path / "val")
    next(other.iterdir()).rename(other / "zebra")
    code, _, errors = run(folder, "--model", "convnet", "--epochs", 1, "--val", other)
    assert code == 1
    assert "only one of them has" in errors
    assert "zebra" in errors


def test_too_few_batches_of_dataloader_are_no_figure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.diagnose.bench.runs._LEAST_BATCHES", 1 << 30)
    code, text, _ = run(
        folder, "--accelerator", 5000, "--baseline", folder, "--json", "-", "--no-cold", *QUICK
    )
    assert code == 0
    measured = Measured.from_dict(json.loads(text))
    assert measured.phase("baseline_loader") is None
    assert any("too few for a figure" in note for note in measured.notes)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing/there"], 1, "nothing/there"),
        (["{folder}", "--preset", "abacus"], 2, "there is no preset"),
        ([], 2, "give the data"),
        (["{folder}", "--model", "convnet", "--bus", 1], 2, "bus is of an emulated accelerator"),
        (["{folder}", "--model", "abacus", *QUICK], 2, "no model 'abacus' for images"),
        (["{folder}", "--model", "dlrm", *QUICK], 2, "no model 'dlrm' for images"),
        (["{folder}", "--ladder", "--compile"], 2, "a ladder has its own steps for amp"),
        (
            ["{folder}", "--ladder", "--val", "nowhere", "--batch-size", 4],
            1,
            "nowhere is not",
        ),
        (["{folder}", "--model", "m:f", "--amp", "fp8"], 2, "fp8"),
        (["{folder}", "--amp", "bf16"], 2, "amp needs model"),
        (["{folder}", "--length", 64], 2, "length can only be used with tokens"),
        (["{folder}", "--cache", "kept"], 2, "cache can only be used with URLs"),
        (["{folder}", "--ladder", "--batch-size", 4, "--steps", 9], 2, "steps is not used by a"),
        (["{folder}", "--device", "cpu"], 2, "device needs model"),
        (["{folder}", "--html", "{folder}"], 2, "is a folder"),
        (["{folder}", "--json", "{folder}/no/where.json"], 1, "cannot be written"),
        (["{folder}", "--model", "resnet18", "--val", "{folder}"], 2, "val needs epochs"),
        (["{folder}", "--model", "convnet", "--epochs", 1, "--val", "nowhere"], 1, "nowhere"),
        (["{folder}", "--model", "no:where", *QUICK], 2, "MODULE:NAME"),
        (["{folder}", "--model", "convnet", "--device", "gpu"], 2, "device 'gpu' cannot be used"),
        (
            ["{folder}", "--ladder", "--batch-size", 4, "--device", "gpu"],
            2,
            "device 'gpu' cannot be used",
        ),
        (["{folder}", "--model", "tests.test_bench_cli:no_model", *QUICK], 1, "a torch module"),
        (
            ["{folder}", "--model", "tests.test_bench_cli:lazy_model", "--channels-last", *QUICK],
            2,
            "have no weights yet",
        ),
        (["{folder}", "--transform", "fastio:nothing"], 2, "MODULE:NAME"),
        (["{folder}", "--baseline", "nothing"], 1, "nothing is not a folder"),
    ],
)
def test_what_is_not_possible_is_said(
    arguments: list[str], code: int, message: str, folder: Path
) -> None:
    found = run(*(str(one).format(folder=folder) for one in arguments))
    assert found[0] == code
    assert message in " ".join(found[2].split())


def test_data_behind_a_url(folder: Path, tmp_path: Path) -> None:
    fastio.pack(folder, tmp_path / "packed")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "mine").write_text("mine")
    with http_folder(tmp_path / "packed") as url:
        code, text, _ = run(url, "--accelerator", 5000, "--json", "-", "--cache", cache, *QUICK)
    assert code == 0
    assert [path.name for path in cache.iterdir()] == ["mine"]  # and nothing is left behind
    measured = Measured.from_dict(json.loads(text))
    assert measured.dataset.storage == "network"
    cold, warm = measured.phase("loader_cold"), measured.phase("loader_warm")
    assert cold is not None
    assert warm is not None
    assert cold.stats.bytes_fetched > 0
    assert warm.stats.bytes_fetched == 0
    split = measured.epoch("cold")
    assert split is not None
