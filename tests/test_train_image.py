"""fastio train image, and what all of fastio train's commands have in common."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fastio
from fastio.cli import main
from fastio.train import Options, fit
from fastio.train.kinds import LearnedTask, image_task
from fastio.train.models import IMAGE_MODELS
from fastio.train.options import ImageSettings
from fastio.train.parallel import Process
from tests.support import import_torchvision, numbered_folder
from tests.train_support import ROOT, StopAt

HERE = Process(torch.device("cpu"))
SMALL = ["--size", "16", "--batch-size", "8", "--device", "cpu", "--threads", "1"]
TINY = ["--model", "tiny", *SMALL]


def tiny(classes: int, size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, classes))


@pytest.fixture(autouse=True)
def _a_tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IMAGE_MODELS, "tiny", tiny)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images of 3 classes."""
    return numbered_folder(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def sources(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same as a folder, packed, and as tars."""
    root = tmp_path_factory.mktemp("packed")
    fastio.pack(folder, root / "packed")
    fastio.export(root / "packed", root / "tars", to="webdataset")
    return {"folder": str(folder), "packed": str(root / "packed"), "tars": str(root / "tars")}


def options(data: str | Path, **changes: Any) -> Options:
    plain = {"epochs": 1, "batch_size": 8, "threads": 1, "device": "cpu"}
    return Options(**{"data": str(data), **plain, **changes})


def small(given: Options, **settings: Any) -> LearnedTask:
    return image_task(given, ImageSettings(**{"model": "tiny", "size": 16, **settings}))


@pytest.mark.parametrize("kind", ["folder", "packed", "tars"])
def test_images_and_classes_come_from_any_container(sources: dict[str, str], kind: str) -> None:
    task = small(options(sources[kind]))
    assert task.identity()["classes"] == 3
    with task.train_loader(HERE) as loader:
        batch = next(iter(loader))
    (images,), labels = task.inputs(batch), task.target(batch)
    assert (images.shape, images.dtype) == ((8, 3, 16, 16), torch.float32)
    assert (labels.shape, labels.dtype) == ((8,), torch.int64)


def test_an_epoch_trains_and_evaluates(sources: dict[str, str]) -> None:
    given = options(sources["packed"], val=sources["folder"], channels_last=True)
    (record,) = fit(small(given), given).history
    assert 0 <= record["val"]["accuracy"] <= 1
    assert record["step"] == 3


@pytest.mark.parametrize("augment", get_args(get_type_hints(ImageSettings)["augment"]))
def test_augmentations_are_those_of_training_alone(sources: dict[str, str], augment: str) -> None:
    given = options(sources["packed"], val=sources["packed"], val_batch_size=8, seed=1)
    plain, task = small(given), small(given, augment=augment, erasing=0.5)
    val, other = task.val_loader(HERE), plain.val_loader(HERE)
    assert val is not None
    assert other is not None
    with task.train_loader(HERE) as loader, plain.train_loader(HERE) as usual, val, other:
        (images,), (before,) = task.inputs(next(iter(loader))), task.inputs(next(iter(usual)))
        assert images.shape == before.shape
        assert images.isfinite().all()
        assert not torch.equal(images, before)
        assert torch.equal(next(iter(val))[0], next(iter(other))[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"augment": "mix"}, "augment must be one of none, trivial"),
        ({"erasing": 1.5}, "erasing must be in"),
        ({"mixup": -1.0}, "mixup must be 0 or a positive number, got -1.0"),
        ({"cutmix": float("inf")}, "cutmix must be 0 or a positive number, got inf"),
        ({"mixup": float("nan")}, "mixup must be"),
        ({"repeat": 0}, "repeat must be at least 1, got 0"),
    ],
)
def test_wrong_augmentations_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(fastio.OptionError, match=message):
        ImageSettings(**settings)


@pytest.mark.parametrize("kind", ["folder", "packed", "tars"])
@pytest.mark.parametrize("alphas", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_images_and_labels_are_mixed_in_training_alone(
    sources: dict[str, str], kind: str, alphas: dict[str, float]
) -> None:
    given = options(sources[kind], val=sources[kind], val_batch_size=8, seed=1)
    task, plain = small(given, **alphas), small(given)
    val = task.val_loader(HERE)
    assert val is not None
    with task.train_loader(HERE) as loader, plain.train_loader(HERE) as usual, val:
        for batch, unmixed in zip(loader, usual, strict=True):
            labels, own = task.target(batch), plain.target(unmixed)
            assert (labels.shape, labels.dtype) == ((8, 3), torch.float32)
            torch.testing.assert_close(labels.sum(1), torch.ones(8))
            other = torch.nn.functional.one_hot(own.roll(1), 3).float()
            weights = labels - torch.nn.functional.one_hot(own, 3)
            mixed = weights.abs().sum(1) > 0
            assert torch.equal(mixed, (own != own.roll(1)) & mixed.any())
            assert (labels[mixed].gather(1, other[mixed].argmax(1, True)) > 0).all()
        assert task.target(next(iter(val))).dtype == torch.int64
    outcome = task.step(torch.nn.Identity(), (labels.log().clamp(min=-9), labels), 8)
    assert int(outcome.sums["correct"]) == 8


def test_mixed_labels_are_smoothed_as_others(folder: Path) -> None:
    task = small(options(folder, label_smoothing=0.3), mixup=0.2)
    scores, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    soft = torch.nn.functional.one_hot(labels, 3).float()
    model = torch.nn.Identity()
    found, expected = (task.step(model, (scores, each), 4) for each in (soft, labels))
    torch.testing.assert_close(found.loss, expected.loss)
    assert found.sums["correct"] == expected.sums["correct"]


@pytest.mark.parametrize("held_out", [0.0, 0.25])
def test_repeated_images_are_drawn_apart_and_evaluated_once(
    sources: dict[str, str], held_out: float
) -> None:
    given = options(sources["packed"], val_split=held_out, val_batch_size=2, batch_size=6)
    task = small(given, repeat=3, erasing=1.0)  # which tells copies of one colour apart
    with task.train_loader(HERE) as loader:
        batches = [(loader.batch.rows, images) for images, _ in loader]
    assert [sorted(rows.tolist()).count(rows[0]) for rows, _ in batches] == [3] * len(batches)
    assert len(batches) == (3 if held_out else 4)  # of 18 and of 24 images
    different = {image.numpy().tobytes() for _, images in batches for image in images}
    assert len(different) == 6 * len(batches)
    if held_out:
        val = task.val_loader(HERE)
        assert val is not None
        with val:
            assert [len(images) for images, _ in val] == [2, 2, 2]


def test_all_of_a_recipe_trains_and_evaluates(sources: dict[str, str]) -> None:
    given = options(
        sources["tars"], val=sources["tars"], ema=0.5, label_smoothing=0.1, batch_size=7
    )
    settings = {"augment": "three", "erasing": 0.2, "mixup": 0.8, "cutmix": 1.0, "repeat": 2}
    (record,) = fit(small(given, **settings), given).history
    assert 0 <= record["val"]["accuracy"] <= 1
    assert record["step"] == 3


def test_classes_of_other_data_are_known_by_their_names(folder: Path, tmp_path: Path) -> None:
    """The data to evaluate on has two of the three classes: its number 1 is class 2."""
    other = tmp_path / "other"
    for name in ("class0", "class2"):
        (other / name).mkdir(parents=True)
        for image in (folder / name).iterdir():
            (other / name / image.name).write_bytes(image.read_bytes())
    task = small(options(folder, val=str(other), val_batch_size=32))
    loader = task.val_loader(HERE)
    assert loader is not None
    with loader:
        labels = task.target(next(iter(loader))).tolist()
    assert labels == [0] * 9 + [2] * 8


def test_smoothing_is_for_training_alone(folder: Path) -> None:
    task = small(options(folder, label_smoothing=0.5))
    model = torch.nn.Identity()
    scores = torch.tensor([[9.0, 0.0, 0.0]])
    batch = scores, torch.tensor([0])
    smoothed = float(task.step(model, batch, 1).loss)
    assert float(task.step(model.eval(), batch, 1).loss) < 0.01 < smoothed


def test_padding_counts_nowhere(folder: Path) -> None:
    task = small(options(folder))
    model = torch.nn.Identity().eval()
    batch = torch.tensor([[5.0, 0, 0], [0, 5.0, 0]]), torch.tensor([0, 1])
    half = task.step(model, batch, 1)
    both = task.step(model, batch, 2)
    assert float(both.loss) == pytest.approx(2 * float(half.loss))
    assert (half.sums["correct"], both.sums["correct"]) == (1, 2)


def test_an_unknown_model_names_those_there_are(folder: Path) -> None:
    import_torchvision()  # without it, the error is that torchvision is missing
    with pytest.raises(fastio.OptionError, match="resnet18"):
        small(options(folder), model="nonesuch").model()


def test_data_without_images_is_refused(tmp_path: Path) -> None:
    fastio.pack([{"x": 1.0, "label": 1}], tmp_path / "numbers")
    with pytest.raises(fastio.TrainError, match="no images; its fields are x, label"):
        image_task(options(tmp_path / "numbers"))


# The command line


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["train", "image", *arguments])


def test_the_command_prints_json(folder: Path, tmp_path: Path) -> None:
    result = run(str(folder), *TINY, "--epochs", "2", "--val-split", "0.25", "--json", "--quiet")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["reason"] == "done"
    assert [record["epoch"] for record in found["history"]] == [1, 2]


def test_the_command_says_what_came_of_it(folder: Path, tmp_path: Path) -> None:
    events = tmp_path / "events"
    kept = ["--checkpoint-dir", str(tmp_path / "kept"), "--tensorboard", str(events)]
    result = run(str(folder), *TINY, "--epochs", "1", *kept)
    assert result.exit_code == 0
    assert "best accuracy" in result.stdout
    assert (tmp_path / "kept" / "best.pt").exists()
    assert list(events.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "need checkpoint_dir"),
        (["--val-split", "1.5"], "val_split must be"),
        (["--mixup", "-1"], "mixup must be 0 or a positive number"),
        (["--ema", "2"], "ema must be above 0 and below 1"),
        (["--parallel", "fsdp"], "torchrun"),
        (["--model", "nonesuch"], "nonesuch"),
        (["--label", "nonesuch"], "no field 'nonesuch'"),
    ],
)
def test_wrong_options_are_one_line(folder: Path, arguments: list[str], message: str) -> None:
    result = run(str(folder), *TINY, *arguments)
    # The data has fields of its own; without torchvision it is not known which models there are.
    assert result.exit_code in {"--label": (1,), "--model": (1, 2)}.get(arguments[0], (2,))
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_how_to_go_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("fastio.train.progress.Bar", lambda **_: nullcontext(StopAt(2, number)))
        result = run(str(folder), *TINY, "--checkpoint-dir", str(tmp_path))
    assert result.exit_code == 128 + number
    assert "--resume" in result.stderr
    resumed = run(str(folder), *TINY, "--checkpoint-dir", str(tmp_path), "--resume", "--json")
    assert json.loads(resumed.stdout)["steps"] == 30


def test_every_option_is_a_flag_of_all_three_commands() -> None:
    for command in ("image", "text", "tabular"):
        text = CliRunner().invoke(main, ["train", command, "--help"], env={"COLUMNS": "200"}).stdout
        for name in Options.__dataclass_fields__:
            assert name == "data" or f"--{name.replace('_', '-')}" in text
        training = (ROOT / "docs" / "training.md").read_text()
        shared = {f"--{name.replace('_', '-')}" for name in Options.__dataclass_fields__}
        assert {flag for flag in shared - {"--data"} if f"`{flag}" not in training} == set()


def test_torchrun_starts_the_module(folder: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", "2", "-m", "fastio", "train", "image", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *SMALL, "--epochs", "1", "--json", "--model", "vit-tiny"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=440,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # of rank 0 alone
    assert json.loads(line)["steps"] == 1
    assert "ddp of 2" in done.stderr
