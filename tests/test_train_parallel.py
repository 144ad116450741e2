"""Several processes train as one does: by torchrun, gloo and CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.train import Options, fit
from fastio.train.parallel import (
    Process,
    _blocks,
    _device,
    _gpus,
    accumulating,
    processes,
    wrap,
)
from tests.train_support import TinyTask, run_apart, tiny_data, weights_of

# Sums of float32 in another order: measured differences are below 1e-6.
TOLERANCE = 1e-4

Saved = dict[str, Any]


def base(data: Path) -> dict[str, Any]:
    return {
        "data": str(data),
        "epochs": 2,
        "batch_size": 8,
        "log_every": 1,
        "threads": 1,
        "device": "cpu",
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # 45 samples are two global batches of 16 and a rest of 13, which does not divide by two.
    return tiny_data(tmp_path_factory.mktemp("tiny") / "data", 45)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Saved]:
    """What two processes make of several runs, started once."""
    folder = tmp_path_factory.mktemp("two")
    plain = base(data)
    runs: dict[str, Saved] = {
        "ddp": plain | {"val": str(data)},
        "split": plain | {"val_split": 0.3},
        "accumulated": plain | {"grad_accum": 2, "clip_grad_norm": 0.5, "batch_size": 4},
        "one batch": plain | {"batch_size": 32},
        "fsdp": plain | {"parallel": "fsdp", "val": str(data)},
        "ddp ema": plain | {"ema": 0.8, "val": str(data)},
        "fsdp ema": plain | {"parallel": "fsdp", "ema": 0.8, "val": str(data)},
        "fsdp fp16": plain | {"parallel": "fsdp", "amp": "fp16", "clip_grad_norm": 0.5},
        "ddp kept": plain
        | {"epochs": 3, "ema": 0.8, "checkpoint_dir": str(folder / "ddp checkpoints")},
        "fsdp kept": plain
        | {"epochs": 3, "ema": 0.8, "checkpoint_dir": str(folder / "fsdp checkpoints")}
        | {"parallel": "fsdp"},
    }
    given = [{"options": o, "result": str(folder / name)} for name, o in runs.items()]
    for run in given:
        if "kept" in run["result"]:
            run["stop"] = 3  # in the second epoch: SIGTERM to one of the two
    assert run_apart(given, folder, processes=2) == 0
    return {
        name: torch.load(folder / name, weights_only=True)
        | {"folder": options.get("checkpoint_dir")}
        for name, options in runs.items()
    }


def one(data: Path, **changes: Any) -> Saved:
    """The same in one process."""
    options = Options(**{**base(data), **changes})
    result = fit(TinyTask(options), options)
    return {"weights": weights_of(result), "points": result.points, "history": result.history}


def assert_close(found: Saved, expected: Saved) -> None:
    losses = [point["loss"] for point in expected["points"]]
    assert [point["loss"] for point in found["points"]] == pytest.approx(losses, abs=TOLERANCE)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "ddp ema", "fsdp ema"])
def test_two_processes_are_one_with_the_doubled_batch(
    two: dict[str, Saved], data: Path, kind: str
) -> None:
    ema = 0.8 if "ema" in kind else None
    expected = one(data, batch_size=16, val_batch_size=32, val=str(data), ema=ema)
    assert_close(two[kind], expected)
    # 45 samples are evaluated on, the last batch being padded on one of the two.
    for found, record in zip(two[kind]["history"], expected["history"], strict=True):
        assert found["val"]["accuracy"] * 45 == pytest.approx(record["val"]["accuracy"] * 45)
        assert found["val"]["loss"] == pytest.approx(record["val"]["loss"], abs=TOLERANCE)


def test_held_out_rows_are_the_same_for_any_number_of_processes(
    two: dict[str, Saved], data: Path
) -> None:
    expected = one(data, batch_size=16, val_batch_size=32, val_split=0.3)
    assert_close(two["split"], expected)
    found, wanted = two["split"]["history"][-1]["val"], expected["history"][-1]["val"]
    assert found["accuracy"] == pytest.approx(wanted["accuracy"])
    assert found["loss"] == pytest.approx(wanted["loss"], abs=TOLERANCE)


def test_accumulated_batches_are_one_batch_also_where_the_last_group_is_short(
    two: dict[str, Saved], data: Path
) -> None:
    # Five batches of 8 are two groups of 2 and a group of one.
    alone = one(data, batch_size=8, grad_accum=2, clip_grad_norm=0.5)
    assert len(alone["points"]) == 6
    assert_close(two["accumulated"], alone)


def test_a_batch_that_does_not_divide_is_weighed_by_its_samples(
    two: dict[str, Saved], data: Path
) -> None:
    # 45 samples in one global batch of up to 64: one process has 23, the other 22 and a padded one.
    assert_close(two["one batch"], one(data, batch_size=64))


def test_fsdp_scales_gradients_of_fp16(two: dict[str, Saved], data: Path) -> None:
    expected = one(data, batch_size=16, amp="fp16", clip_grad_norm=0.5)
    losses = [point["loss"] for point in expected["points"]]
    found = [point["loss"] for point in two["fsdp fp16"]["points"]]
    assert found == pytest.approx(losses, abs=0.02)  # of ten bits, summed in another order


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_signal_to_one_process_stops_both_and_one_alone_goes_on(
    two: dict[str, Saved], data: Path, kind: str
) -> None:
    stopped = two[f"{kind} kept"]
    assert [point["step"] for point in stopped["points"]] == [1, 2, 3]
    folder = stopped["folder"]
    expected = one(data, batch_size=16, epochs=3, ema=0.8)
    resumed = one(data, batch_size=16, epochs=3, ema=0.8, checkpoint_dir=folder, resume=True)
    assert resumed["points"][:3] == stopped["points"]
    assert_close(resumed, expected)


def test_data_parallel_on_a_cpu_is_the_model_itself(data: Path) -> None:
    assert_close(one(data, parallel="dp"), one(data))


def test_autocast_holds_inside_data_parallel(data: Path) -> None:
    options = Options(**base(data), parallel="dp", amp="bf16")
    called = wrap(torch.nn.Linear(2, 2), Process(torch.device("cpu"), "dp"), options)
    assert called(torch.zeros(1, 2)).dtype == torch.bfloat16


def test_gradients_of_one_process_need_no_exchange() -> None:
    model = torch.nn.Linear(2, 2)
    with accumulating(model, Process(torch.device("cpu")), last=False):
        model(torch.zeros(1, 2)).sum().backward()
    assert model.weight.grad is not None


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_processes_have_to_be_started_by_torchrun(data: Path, kind: Any) -> None:
    with (
        pytest.raises(fastio.OptionError, match="torchrun"),
        processes(Options(str(data), parallel=kind, device="cpu")),
    ):
        pass


def test_data_parallel_under_torchrun_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(fastio.OptionError, match="leave --parallel out"),
        processes(Options(str(data), parallel="dp", device="cpu")),
    ):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(data: Path) -> None:
    with (
        pytest.raises(fastio.TrainError, match="no GPU"),
        processes(Options(str(data), device="cuda")),
    ):
        pass


@pytest.mark.parametrize(
    ("device", "rank", "expected"),
    [(None, None, 1), ("cuda", None, 1), ("cuda:2", None, 2), ("cuda", "3", 3), (None, "0", 0)],
)
def test_a_gpu_is_meant_by_its_number(
    device: str | None, rank: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.cuda.set_device refuses "cuda" alone."""
    chosen: list[torch.device] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    found = _device(Options("x", device=device), launched=rank is not None)
    assert found == torch.device("cuda", expected)
    assert chosen == [found]


def test_data_parallel_begins_with_the_gpu_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert _gpus(torch.device("cuda", 2)) == [2, 0, 1, 3]


def test_fsdp_gathers_a_model_by_its_outermost_blocks() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    blocks = torch.nn.ModuleList([inner, torch.nn.Linear(2, 2)])
    model = torch.nn.ModuleDict({"embedding": torch.nn.Linear(2, 2), "blocks": blocks})
    assert list(_blocks(model)) == [inner, blocks[1]]
