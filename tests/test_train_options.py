"""Options that are refused, learning rates, and what a split trains and evaluates on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fastio
from fastio.train import Options
from fastio.train.learner import make_optimizer, make_scheduler
from fastio.train.loaders import (
    evaluation_loader,
    has_full_batch,
    split_rows,
    training_loader,
)
from fastio.train.models import VisionTransformer
from fastio.train.parallel import Process, processes
from tests.train_support import tiny_data

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"early_stopping": 0}, "early_stopping"),
        ({"warmup": -1.0}, "warmup"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"val_split": 1.0}, "val_split must be at least 0 and below 1"),
        ({"val": "x", "val_split": 0.5}, "cannot be combined"),
        ({"compile": True, "parallel": "dp"}, "compile cannot be combined with parallel=dp"),
        ({"ema": 0.0}, "ema must be above 0 and below 1, got 0"),
        ({"ema": 1.0}, "ema must be above 0"),
        ({"ema": float("nan")}, "ema must be above 0"),
        ({"optimizer": "adam"}, "optimizer must be one of adamw, sgd, got 'adam'"),
        ({"schedule": "linear"}, "schedule must be one of onecycle, cosine, constant"),
        ({"amp": "float16"}, "amp must be one of bf16, fp16, got 'float16'"),
        ({"parallel": "DDP"}, "parallel must be one of dp, ddp, fsdp, got 'DDP'"),
        ({"resume": True}, "checkpoint_dir"),
        ({"checkpoint_every": 5}, "checkpoint_dir"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(fastio.OptionError, match=message):
        Options("data", **changes)


def rates(epochs: int = 2, **changes: Any) -> list[float]:
    """The learning rate of each step of epochs of six steps, the highest being 1."""
    options = Options("data", epochs=epochs, **changes)
    optimizer = make_optimizer(nn.Linear(2, 2), options, 1.0)
    scheduler = make_scheduler(optimizer, options, 6, 1.0)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6 * epochs):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return found


@pytest.mark.parametrize("schedule", ["onecycle", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0.5, 1.0])
def test_the_rate_rises_to_its_highest_in_the_warm_up(schedule: str, warmup: float) -> None:
    found = rates(schedule=schedule, warmup=warmup)
    steps = round(6 * warmup)
    assert np.argmax(found) in (steps - 1, steps)
    assert max(found) == pytest.approx(1, abs=0.03)
    assert found[: steps - 1] == sorted(found[: steps - 1])


@pytest.mark.parametrize("schedule", ["onecycle", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_the_rate_falls_to_almost_nothing(schedule: str, warmup: float) -> None:
    found = rates(schedule=schedule, warmup=warmup)
    assert 0 < found[-1] < 0.1
    assert found[7:] == sorted(found[7:], reverse=True)


def test_a_constant_rate_is_constant() -> None:
    assert rates(schedule="constant", warmup=0.0) == [1.0] * 12


@pytest.mark.parametrize("warmup", [2.0, 9.0])
def test_a_warm_up_may_be_longer_than_the_run(warmup: float) -> None:
    assert len(rates(schedule="cosine", warmup=warmup)) == 12


def test_biases_and_normalisation_do_not_decay() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    model[0].bias.requires_grad_(False)
    optimizer = make_optimizer(model, Options("data", weight_decay=0.5), 1.0)
    decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decays == {id(model[0].weight): 0.5, id(model[1].weight): 0.0, id(model[1].bias): 0.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("tiny") / "data", 23)


@given(rows=st.integers(2, 60), part=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_a_split_has_every_row_once(rows: int, part: float, seed: int) -> None:
    train, held = split_rows(rows, part, seed)
    assert sorted([*train, *held]) == list(range(rows))
    assert len(train) > 0
    assert len(held) > 0


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_parts_of_a_split_are_dealt_to_processes(data: Path, world_size: int) -> None:
    """Of 23 samples 7 are held out; each is evaluated on once, whatever the number of processes."""
    options = Options(str(data), batch_size=2, val_batch_size=2, val_split=0.3)
    held = split_rows(23, 0.3, 0)[1].tolist()
    seen: list[int] = []
    for rank in range(world_size):
        loader = evaluation_loader(options, Process(CPU, "ddp", rank, world_size))
        assert loader is not None
        with loader:
            for _ in loader:
                rows = loader.batch.rows[: loader.batch.valid]
                seen += loader.dataset.indices[rows].tolist()
    assert sorted(seen) == held


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_a_training_loader_leaves_out_what_is_no_full_batch(data: Path, held_out: float) -> None:
    options = Options(str(data), batch_size=8, val_split=held_out)
    with training_loader(options, Process(CPU)) as loader:
        assert [len(batch["label"]) for batch in loader] == [8, 8]
        loader.set_epoch(1)
        first = [loader.batch.rows.tolist() for _ in loader]
        loader.set_epoch(2)
        assert [loader.batch.rows.tolist() for _ in loader] != first


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_less_than_a_batch_is_trained_on_nevertheless(data: Path, held_out: float) -> None:
    options = Options(str(data), batch_size=64, val_split=held_out)
    with training_loader(options, Process(CPU)) as loader:
        assert [len(batch["label"]) for batch in loader] == [23 if not held_out else 16]


def test_an_evaluation_loader_leaves_out_nothing(data: Path) -> None:
    options = Options(str(data), batch_size=8, val=str(data))
    loader = evaluation_loader(options, Process(CPU))
    assert loader is not None
    with loader:
        assert [loader.batch.valid for _ in loader] == [16, 7]


def test_without_data_to_evaluate_on_there_is_no_loader(data: Path) -> None:
    assert evaluation_loader(Options(str(data)), Process(CPU)) is None


@pytest.mark.parametrize("held_out", [0.0, 0.3])
@pytest.mark.parametrize(("batch_size", "full"), [(16, True), (17, False), (24, False)])
def test_less_than_a_batch_is_known(
    data: Path, held_out: float, batch_size: int, full: bool
) -> None:
    """Of 23 samples; 16 are left where some are held out."""
    options = Options(str(data), batch_size=batch_size, val_split=held_out)
    with training_loader(options, Process(CPU)) as loader:
        assert has_full_batch(loader) == (full or (not held_out and batch_size < 24))


def test_one_sample_is_too_few(tmp_path: Path) -> None:
    one, two = (tiny_data(tmp_path / str(rows), rows) for rows in (1, 2))
    for options in (Options(str(one)), Options(str(two), val_split=0.5)):
        with pytest.raises(fastio.TrainError, match="1 sample to train on"):
            training_loader(options, Process(CPU))


def test_class_tokens_positions_and_scales_do_not_decay() -> None:
    model = VisionTransformer(2, 8, width=8, depth=1, heads=1)
    optimizer = make_optimizer(model, Options("data", weight_decay=0.5), 1.0)
    decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    found = {name for name, p in model.named_parameters() if decays[id(p)]}
    layer = ["attention.qkv", "attention.out", "mlp.0", "mlp.2"]
    names = ["patches", "classifier", *(f"layers.0.{name}" for name in layer)]
    assert found == {f"{name}.weight" for name in names}


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "meta", "mps"])
def test_a_device_that_is_none_is_named(device: str) -> None:
    with (
        pytest.raises(fastio.OptionError, match=f"device={device}.*use cpu"),
        processes(Options("data", device=device)),
    ):
        pass
