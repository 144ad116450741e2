"""The loop: what an interrupted run goes on to is what an undisturbed one comes to, bit for bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastio
from fastio.train import Options, Outcome, Result, fit
from fastio.train.checkpoint import load
from fastio.train.loop import time_epochs
from fastio.train.monitor import Monitor
from fastio.train.run import Run
from tests.train_support import (
    Crash,
    CrashAt,
    StopAt,
    TinyTask,
    run_apart,
    same_weights,
    tiny_data,
    tiny_options,
    train,
    weights_of,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("tiny") / "data", 60)


def options(data: Path, **changes: Any) -> Options:
    """Seven steps an epoch, three epochs."""
    return tiny_options(data, **{"epochs": 3, **changes})


def timeless(result: Result) -> dict[str, Any]:
    """What does not depend on how fast it went, or on when it was interrupted."""
    untimed = [
        {k: v for k, v in record.items() if k in ("epoch", "step", "train", "val")}
        for record in result.history
    ]
    found = result.to_dict() | {"history": untimed}
    return json.loads(json.dumps(found))


def assert_same(found: Result, expected: Result) -> None:
    assert same_weights(weights_of(found), weights_of(expected))
    assert timeless(found) == timeless(expected)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grad accum": {"grad_accum": 2, "clip_grad_norm": 0.5},
    "bf16": {"amp": "bf16", "schedule": "cosine", "warmup": 0.5},
    "fp16": {"amp": "fp16", "optimizer": "sgd", "lr": 0.1},
    "val split": {"val_split": 0.3, "early_stopping": 1, "lr": 1e-6, "schedule": "constant"},
    "ema": {"ema": 0.9, "val_split": 0.3, "checkpoint_every": 2, "grad_accum": 2},
    "ema of the best": {"ema": 0.5, "val_split": 0.3, "early_stopping": 1, "lr": 1e-6},
    "deterministic": {"deterministic": True, "schedule": "constant", "warmup": 0.0},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_that_crashed_in_an_epoch_goes_on_exactly(
    data: Path, tmp_path: Path, name: str
) -> None:
    given = {"checkpoint_every": 3} | VARIANTS[name]
    expected = train(options(data, **given, checkpoint_dir=str(tmp_path / "whole")))
    crashing = options(data, **given, checkpoint_dir=str(tmp_path / "kept"), resume=True)
    short = "val_split" in given or "grad_accum" in given
    steps = (2, 5) if short else (2, 11)
    for step in steps:  # before the first checkpoint, and in the middle of an epoch
        with pytest.raises(Crash):
            train(crashing, CrashAt(step))
    assert load(tmp_path / "kept" / "last.pt")["progress"]["step"] < steps[1]
    assert_same(train(crashing), expected)


def test_a_killed_process_loses_nothing_that_was_saved(data: Path, tmp_path: Path) -> None:
    """Of another process, by SIGKILL, after step 5 of 14 in groups of two batches and bf16."""
    given = options(
        data,
        grad_accum=2,
        amp="bf16",
        deterministic=True,
        val_split=0.2,
        checkpoint_every=1,
        checkpoint_dir=str(tmp_path / "kept"),
    )
    crash = {"options": given.__dict__, "dropout": 0.3, "crash": 5, "result": ""}
    assert run_apart([crash], tmp_path) == -signal.SIGKILL
    assert load(tmp_path / "kept" / "last.pt")["progress"]["step"] == 4
    whole = options(**{**given.__dict__, "checkpoint_dir": str(tmp_path / "whole")})
    resumed = options(**{**given.__dict__, "resume": True})
    assert_same(train(resumed), train(whole))


@pytest.mark.parametrize("step", [3, 7, 21])
def test_a_signal_ends_the_run_behind_its_step(data: Path, tmp_path: Path, step: int) -> None:
    """In the middle of an epoch, at its end before the evaluation, and at the end of all."""
    given = {"val": str(data), "checkpoint_dir": str(tmp_path / "kept")}
    stopped = train(options(data, **given), StopAt(step))
    assert (stopped.reason, stopped.signal) == ("interrupted", signal.SIGTERM)
    assert stopped.steps == step
    expected = train(options(data, val=str(data)))
    assert_same(train(options(data, **given, resume=True)), expected)


class StopInEvaluation(Monitor):
    """Sends a signal in the middle of the second evaluation."""

    def evaluated(self, run: Run, size: int) -> None:
        if run.progress.epoch == 1:
            signal.raise_signal(signal.SIGINT)


def test_an_evaluation_that_was_interrupted_is_made_anew(data: Path, tmp_path: Path) -> None:
    given = {"val": str(data), "checkpoint_dir": str(tmp_path / "kept")}
    stopped = train(options(data, **given), StopInEvaluation())
    assert (stopped.signal, len(stopped.history)) == (signal.SIGINT, 1)
    assert_same(train(options(data, **given, resume=True)), train(options(data, val=str(data))))


def test_signals_are_handled_as_before_when_it_is_over(data: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    train(options(data, epochs=1), StopAt(2))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_run_that_is_complete_is_not_trained_again(data: Path, tmp_path: Path) -> None:
    given = options(data, checkpoint_dir=str(tmp_path), resume=True)
    expected = train(given)
    assert_same(train(given, CrashAt(expected.steps + 1)), expected)


class Scripted(TinyTask):
    """Its metric is what is given, one value after the other."""

    def __init__(self, given: Options, scores: list[float]) -> None:
        super().__init__(given)
        self.scores = iter(scores)

    def metrics(self, sums: Any) -> dict[str, float]:
        return {"accuracy": next(self.scores)}


class Weights(Monitor):
    """Notes the weights behind every epoch."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def end_epoch(self, run: Run, record: dict[str, Any]) -> None:
        self.seen.append({name: value.clone() for name, value in run.model.state_dict().items()})


@pytest.mark.parametrize("kept", [True, False])
def test_early_stopping_gives_the_best_weights(data: Path, tmp_path: Path, kept: bool) -> None:
    folder = str(tmp_path) if kept else None
    given = options(
        data, epochs=9, early_stopping=2, val_split=0.2, log_every=100, checkpoint_dir=folder
    )
    scores = [0.5, 0.9, 0.9, 0.7]
    # Each epoch asks for the metrics of its evaluation, then for those of training.
    task, monitor = Scripted(given, [s for score in scores for s in (score, 0.0)]), Weights()
    result = fit(task, given, monitor)
    assert (result.reason, result.best, result.best_epoch) == ("early stopping", 0.9, 2)
    assert same_weights(weights_of(result), monitor.seen[1])
    if kept:
        assert load(tmp_path / "best.pt")["progress"]["epoch"] == 2
        assert load(tmp_path / "last.pt")["progress"]["epoch"] == 4
        history = json.loads((tmp_path / "history.json").read_text())["history"]
        assert [record["val"]["accuracy"] for record in history] == scores


def test_a_run_that_does_not_stop_early_gives_the_best_weights_too(data: Path) -> None:
    given = options(data, epochs=3, early_stopping=2, val_split=0.2, log_every=100)
    scores = [0.5, 0.9, 0.7]
    task, monitor = Scripted(given, [s for score in scores for s in (score, 0.0)]), Weights()
    result = fit(task, given, monitor)
    assert (result.reason, result.best_epoch) == ("done", 2)
    assert same_weights(weights_of(result), monitor.seen[1])


def test_a_smaller_metric_may_be_the_better_one(data: Path) -> None:
    class Lowest(TinyTask):
        metric = "loss"
        greater_is_better = False

    given = options(data)
    result = fit(Lowest(given), given)
    losses = [record["train"]["loss"] for record in result.history]
    assert result.best == min(losses)


def test_without_data_to_evaluate_on_training_decides_what_is_best(data: Path) -> None:
    result = train(options(data))
    assert result.best == max(record["train"]["accuracy"] for record in result.history)


def test_it_learns(data: Path) -> None:
    result = train(options(data, epochs=10, val_split=0.2), dropout=0.0)
    assert result.history[-1]["train"]["accuracy"] > 0.8


def test_epochs_that_are_timed_are_trained_as_fit_does(data: Path) -> None:
    """The steps that warm up are forgotten."""

    class Counted(TinyTask):
        steps = 0

        def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
            self.steps += model.training
            return super().step(model, batch, valid)

    given = options(data, epochs=2, val=str(data))
    result = train(given, dropout=0.0)
    task = Counted(given, 0.0)
    timed = time_epochs(task, given, _here())
    last = result.history[-1]
    assert task.steps == 3 + 2 * 7  # those that warm up, and two epochs
    assert timed.val == pytest.approx(last["val"])
    assert timed.train == pytest.approx(last["train"])
    assert timed.seconds > 0


def test_a_loss_that_is_not_finite_names_its_step(data: Path, tmp_path: Path) -> None:
    class Bad(TinyTask):
        steps = 0

        def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
            outcome = super().step(model, batch, valid)
            self.steps += 1
            return Outcome(outcome.loss / (0.0 if self.steps >= 5 else 1.0), outcome.sums)

    given = options(data, log_every=100, checkpoint_every=4, checkpoint_dir=str(tmp_path))
    with pytest.raises(fastio.TrainError, match="loss of step 5 is not finite"):
        fit(Bad(given), given)
    assert load(tmp_path / "last.pt")["progress"]["step"] == 4  # nothing bad is saved


class Overflow(Monitor):
    """Begins with a scale that no gradient survives, and notes how it goes on."""

    def __init__(self) -> None:
        self.scales: list[float] = []
        self.rates: list[float] = []

    def begin(self, run: Run) -> None:
        run.learner.scaler.load_state_dict(run.learner.scaler.state_dict() | {"scale": 2.0**127})

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        self.scales.append(run.learner.scaler.get_scale())
        self.rates.append(run.learner.scheduler.get_last_lr()[0])


def test_fp16_leaves_out_steps_whose_gradients_overflow_and_saves_its_scale(
    data: Path, tmp_path: Path
) -> None:
    given = options(data, amp="fp16", checkpoint_dir=str(tmp_path), epochs=1)
    monitor = Overflow()
    train(given, monitor)
    assert monitor.scales[:2] == [2.0**126, 2.0**125]
    assert monitor.rates[0] == monitor.rates[1]  # the schedule waits, too
    assert load(tmp_path / "last.pt")["scaler"]["scale"] == monitor.scales[-1]


def test_both_parts_of_a_split_are_all_rows(data: Path) -> None:
    given = options(data, val_split=0.25, val_batch_size=4, batch_size=4)
    task = TinyTask(given)
    with Run(task, given, _here()) as run:
        parts = [(loader, loader.dataset.indices) for loader in (run.loader, run.val_loader)]  # type: ignore[union-attr]
        seen, held = ([rows[loader.batch.rows].tolist() for _ in loader] for loader, rows in parts)
        training, evaluation = ({row for batch in part for row in batch} for part in (seen, held))
    assert (len(training), len(evaluation)) == (44, 15)  # of 45 rows to train on, one is left over
    assert not training & evaluation


def _here() -> Any:
    from fastio.train.parallel import Process

    return Process(torch.device("cpu"))


def test_a_metric_that_is_no_number_is_never_the_best(data: Path) -> None:
    class Unsettled(TinyTask):
        calls = 0

        def metrics(self, sums: Any) -> dict[str, float]:
            """Of the evaluation first, where no points are logged."""
            self.calls += 1
            return {"accuracy": float("nan")} if self.calls == 1 else super().metrics(sums)

    given = options(data, epochs=2, early_stopping=5, log_every=1000, val_split=0.2)
    result = fit(Unsettled(given), given)
    assert result.best is not None
    assert result.best_epoch == 2


def test_numbers_that_are_not_finite_are_null_in_json(data: Path, tmp_path: Path) -> None:
    class Unsettled(TinyTask):
        def metrics(self, sums: Any) -> dict[str, float]:
            return {"accuracy": float("nan")}

    given = options(data, epochs=1, checkpoint_dir=str(tmp_path))
    result = fit(Unsettled(given), given)
    text = (tmp_path / "history.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["history"][0]["train"]["accuracy"] is None
    assert result.to_dict()["history"][0]["train"]["accuracy"] is None


def test_early_stopping_without_data_to_evaluate_on_says_what_to_give(data: Path) -> None:
    with pytest.raises(fastio.OptionError, match=r"--val DATA.*--val-split 0\.1"):
        train(options(data, early_stopping=1))


class Poison(Monitor):
    """Makes a weight infinite behind a step, as a gradient that is not finite does."""

    def __init__(self, step: int) -> None:
        self._step = step

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        if run.progress.step == self._step:
            next(run.model.parameters()).data[0] = torch.inf


def test_weights_that_the_last_step_spoilt_are_not_saved(data: Path, tmp_path: Path) -> None:
    given = options(data, epochs=1, checkpoint_dir=str(tmp_path))
    with pytest.raises(fastio.TrainError, match="weights are not finite after step 7"):
        train(given, Poison(7))
    assert list(tmp_path.iterdir()) == []


class Hopeless(Monitor):
    """Lowers the scale of gradients as steps do whose gradients overflow at any scale."""

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        run.learner.scaler.update(1e-6)


def test_gradients_that_overflow_at_any_scale_are_an_error(data: Path) -> None:
    with pytest.raises(fastio.TrainError, match=r"gradients overflowed.*--amp bf16"):
        train(options(data, amp="fp16"), Hopeless())


@pytest.mark.parametrize("parallel", [None, "dp"])
def test_a_task_can_tell_training_from_evaluation_by_the_model(data: Path, parallel: Any) -> None:
    """Label smoothing is for training alone."""
    seen = []

    class Told(TinyTask):
        def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
            seen.append(model.training)
            return super().step(model, batch, valid)

    given = options(data, epochs=2, batch_size=64, val=str(data), parallel=parallel)
    fit(Told(given), given)
    assert seen == [True, False] * 2


def test_data_that_differs_between_processes_is_named(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.train.parallel.Process.gather", lambda self, value: [value, [9, 0]])
    with pytest.raises(fastio.TrainError, match=r"\[7, 0\] on rank 0 and \[9, 0\] on rank 1"):
        train(options(data))
