"""Checkpoints: published whole, read safely, refused where they do not belong."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastio
from fastio.train import Options, fit
from fastio.train.checkpoint import keep, load, restore_rng_state, rng_state, save
from fastio.train.parallel import Process, on_main
from fastio.train.run import Run
from tests.train_support import TinyTask, tiny_data, tiny_options

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("tiny") / "data", 20)


def options(data: Path, folder: Path, **changes: Any) -> Options:
    kept = {"epochs": 1, "checkpoint_dir": str(folder), "resume": True}
    return tiny_options(data, **{**kept, **changes})


@pytest.fixture
def kept(data: Path, tmp_path: Path) -> Path:
    """The folder of a run that ended."""
    given = options(data, tmp_path)
    fit(TinyTask(given), given)
    return tmp_path


def test_torch_reads_a_checkpoint_safely_and_the_model_is_a_plain_state_dict(kept: Path) -> None:
    content = torch.load(kept / "last.pt", weights_only=True)
    given = options(kept, kept)
    TinyTask(given).model().load_state_dict(content["model"])


def test_nothing_else_is_left_in_the_folder(kept: Path) -> None:
    assert sorted(p.name for p in kept.iterdir()) == ["best.pt", "history.json", "last.pt"]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["file/runs", "long" * 100])
def test_a_folder_that_cannot_be_written_is_refused_before_training(
    data: Path, tmp_path: Path, name: str, resume: bool
) -> None:
    (tmp_path / "file").touch()
    given = options(data, tmp_path / name, resume=resume)
    with pytest.raises(fastio.TrainError, match=f"{name} cannot be written"):
        Run(TinyTask(given), given, Process(CPU))


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    save({"a": 1}, path)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(fastio.CheckpointError, match=r"last\.pt cannot be written \(No space"):
        save({"a": 2}, path)
    assert load(path)["a"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_an_error_that_says_nothing_is_told_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(descriptor: int) -> None:
        raise OSError

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(fastio.CheckpointError, match=r"cannot be written \(OSError\)"):
        save({"a": 1}, tmp_path / "last.pt")


def test_what_torch_says_of_a_full_disk_is_told_in_the_system_s_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torch_save(content: Any, file: Any) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise RuntimeError("PytorchStreamWriter failed writing file data/0") from error

    monkeypatch.setattr(torch, "save", torch_save)
    with pytest.raises(fastio.CheckpointError, match=r"\(No space left on device\)"):
        save({"a": 2}, tmp_path / "last.pt")


def test_a_run_is_not_overwritten_by_another_one(kept: Path, data: Path) -> None:
    before = (kept / "last.pt").read_bytes()
    given = options(data, kept, resume=False)
    with pytest.raises(fastio.TrainError, match=r"last\.pt was written.*--resume"):
        fit(TinyTask(given), given)
    assert (kept / "last.pt").read_bytes() == before


def test_what_fails_on_the_main_process_fails_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise fastio.CheckpointError("the disk is full")

    with pytest.raises(fastio.CheckpointError, match="the disk is full"):
        on_main(Process(CPU), fail)
    monkeypatch.setattr(Process, "gather", lambda self, value: ["the disk is full", value])
    with pytest.raises(fastio.TrainError, match="the disk is full"):
        on_main(Process(CPU, "ddp", 1, 2), lambda: pytest.fail("rank 1 writes nothing"))


def test_a_checkpoint_that_is_kept_outlives_the_next_one(tmp_path: Path) -> None:
    last, best = tmp_path / "last.pt", tmp_path / "best.pt"
    for number in (1, 2):
        save({"a": number}, last)
        if number == 1:
            keep(last, best)
    assert (load(best)["a"], load(last)["a"]) == (1, 2)


def test_a_checkpoint_is_copied_where_files_have_no_second_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*paths: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    save({"a": 1}, tmp_path / "best.pt")
    keep(tmp_path / "best.pt", tmp_path / "last.pt")
    assert load(tmp_path / "last.pt")["a"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.pt", "last.pt"]


def test_a_kill_between_the_best_and_the_last_loses_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best is there first: what `last` counts as the best is never older than it says."""
    given = options(data, tmp_path, epochs=2)

    def killed(path: Path, name: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("fastio.train.checkpoint.keep", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(TinyTask(given), given)
    assert [p.name for p in tmp_path.iterdir()] == ["best.pt"]
    result = fit(TinyTask(given), given)
    assert load(tmp_path / "best.pt")["progress"]["best_epoch"] == result.best_epoch


def test_batches_that_make_another_number_of_steps_are_refused(kept: Path, data: Path) -> None:
    """20 samples: two batches of 8, or three steps of two batches of 4, the last one of one."""
    given = options(data, kept, batch_size=4, grad_accum=2)
    with pytest.raises(fastio.CheckpointError, match="steps_per_epoch 2 there, 3 here"):
        fit(TinyTask(given), given)


@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.9])
def test_a_flipped_bit_is_found(kept: Path, data: Path, place: float) -> None:
    path = kept / "last.pt"
    content = bytearray(path.read_bytes())
    weights = torch.load(path, weights_only=True)["model"]["0.weight"].numpy().tobytes()
    position = int(place * len(content)) if place != 0.5 else content.index(weights) + 9
    content[position] ^= 0x10
    path.write_bytes(content)
    given = options(data, kept)
    try:
        before = torch.load(path, weights_only=True)
    except Exception:
        before = None
    if place == 0.5:
        assert before is not None, "torch alone does not notice it in a tensor"
    with pytest.raises(fastio.CheckpointError, match=r"last\.pt"):
        fit(TinyTask(given), given)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused(kept: Path, data: Path, share: float) -> None:
    path = kept / "last.pt"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    given = options(data, kept)
    with pytest.raises(fastio.CheckpointError, match=r"last\.pt is damaged or not a checkpoint"):
        fit(TinyTask(given), given)


def test_a_file_of_something_else_is_refused(kept: Path, data: Path) -> None:
    torch.save({"state_dict": {}}, kept / "last.pt")
    given = options(data, kept)
    with pytest.raises(fastio.CheckpointError, match="not a checkpoint of fastio train"):
        fit(TinyTask(given), given)


def test_code_in_a_file_is_not_run(kept: Path, data: Path) -> None:
    torch.save({"version": 1, "model": Evil(kept / "ran")}, kept / "last.pt")
    given = options(data, kept)
    with pytest.raises(fastio.CheckpointError):
        fit(TinyTask(given), given)
    assert not (kept / "ran").exists()


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_another_version_is_refused_naming_both(kept: Path, data: Path) -> None:
    content = load(kept / "last.pt") | {"version": 99}
    torch.save(content, kept / "last.pt")
    given = options(data, kept)
    with pytest.raises(fastio.CheckpointError, match=r"99.*1"):
        fit(TinyTask(given), given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.5}, "lr None there, 0.5 here"),
        ({"ema": 0.9}, r"ema None there, 0\.9 here"),
        ({"epochs": 5, "lr": 0.5}, "another run: lr None there, 0.5 here. Use"),
        ({"batch_size": 4}, "samples_per_step 8 there, 4 here"),
        ({"seed": 1}, "seed 0 there, 1 here"),
    ],
)
def test_other_options_are_refused_by_name(
    kept: Path, data: Path, changes: dict[str, Any], message: str
) -> None:
    given = options(data, kept, **changes)
    with pytest.raises(fastio.CheckpointError, match=message):
        fit(TinyTask(given), given)


def test_fewer_epochs_are_refused_and_more_are_suggested(data: Path, tmp_path: Path) -> None:
    before, given = (options(data, tmp_path, epochs=epochs) for epochs in (2, 1))
    fit(TinyTask(before), before)
    with pytest.raises(fastio.CheckpointError, match=r"epochs 2 there, 1 here.*with more epochs"):
        fit(TinyTask(given), given)


def test_what_does_not_change_the_result_may_differ(tmp_path: Path) -> None:
    data = tiny_data(tmp_path / "even", 16)
    before = options(data, tmp_path / "kept")
    fit(TinyTask(before), before)
    given = options(
        data, tmp_path / "kept", threads=2, val_batch_size=3, batch_size=4, grad_accum=2
    )
    assert fit(TinyTask(given), given).reason == "done"


def test_another_model_is_refused(kept: Path, data: Path) -> None:
    given = options(data, kept)
    with pytest.raises(fastio.CheckpointError, match="width 16 there, 8 here"):
        fit(TinyTask(given, width=8), given)


def test_other_data_is_refused(kept: Path, tmp_path: Path) -> None:
    given = options(tiny_data(tmp_path / "other", 20, seed=9), kept)
    with pytest.raises(fastio.StateMismatch, match="another dataset"):
        fit(TinyTask(given), given)


def test_random_states_come_back() -> None:
    state = rng_state(CPU)

    def draw() -> list[float]:
        return [random.gauss(0, 1), float(np.random.normal()), float(torch.rand(()))]

    random.gauss(0, 1)  # the second number of a pair is kept for later
    first = rng_state(CPU)
    drawn = draw()
    restore_rng_state(first, CPU)
    assert draw() == drawn
    restore_rng_state(state, CPU)
