"""A small task to train on the CPU, in this process or in others.

`make` is given a file with a JSON list of runs, {"options": {...}, "dropout": P, "image": {...},
"crash": N, "stop": N, "result": PATH}, makes them one after the other, and saves what came of each.
A run with "image" trains on images, with these settings. One with "crash" kills its process with
SIGKILL at that step; one with "stop" sends rank 0 a SIGTERM.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fastio
from fastio.train import Options, Outcome, Result, Task, fit
from fastio.train.kinds import image_task
from fastio.train.monitor import Monitor
from fastio.train.options import ImageSettings
from fastio.train.run import Run
from tests.children import run_code, run_ranks

ROOT = Path(__file__).parent.parent


class TinyTask(Task):
    """Rows of 6 numbers, whose class is which third of them has the highest sum."""

    name = "tiny"
    unit = "rows"
    metric = "accuracy"
    greater_is_better = True
    lr = 0.02

    def __init__(self, options: Options, dropout: float = 0.0, width: int = 16) -> None:
        super().__init__(options)
        self.dropout, self.width = dropout, width

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, self.width),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(self.width, 3),
        )

    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        numbers, labels = batch["numbers"], batch["label"]
        scores, labels = model(numbers)[:valid], labels[:valid]
        loss = cross_entropy(scores, labels, reduction="sum")
        return Outcome(loss, {"correct": (scores.argmax(1) == labels).sum()})

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        return {"accuracy": float(sums["correct"] / sums["count"])}

    def identity(self) -> dict[str, Any]:
        return {"width": self.width}


def tiny_options(data: Path, **changes: Any) -> Options:
    """Options for the task, whose epoch is as many steps as the data has eights of rows."""
    plain = {"batch_size": 8, "log_every": 2, "threads": 1, "device": "cpu"}
    return Options(**{"data": str(data), **plain, **changes})


def train(given: Options, *monitors: Monitor, dropout: float = 0.3) -> Result:
    """Trains on the task."""
    return fit(TinyTask(given, dropout), given, *monitors)


def tiny_data(path: Path, rows: int, seed: int = 0) -> Path:
    """A packed dataset for the task."""
    numbers = np.random.default_rng(seed).standard_normal((rows, 6), np.float32)
    labels = numbers.reshape(rows, 3, 2).sum(2).argmax(1)
    schema = fastio.Schema(
        {"numbers": fastio.Array("float32", (6,)), "label": fastio.Scalar("int64")}
    )
    with fastio.Writer(path, schema) as writer:
        for row, label in zip(numbers, labels, strict=True):
            writer.write({"numbers": row, "label": int(label)})
    return path


class Crash(RuntimeError):
    """What `CrashAt` raises."""


class CrashAt(Monitor):
    """Ends the run at a step without a chance to save: by an error, or by SIGKILL."""

    def __init__(self, step: int, kill: bool = False) -> None:
        self._step, self._kill = step, kill

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        if run.progress.step == self._step and self._kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if run.progress.step == self._step:
            raise Crash


class StopAt(Monitor):
    """Sends its process a signal at a step."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self._step, self._number = step, number

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        if run.progress.step == self._step:
            os.kill(os.getpid(), self._number)


def weights_of(result: Result) -> dict[str, Tensor]:
    """The trained weights."""
    return {name: value.detach().clone() for name, value in result.model.state_dict().items()}


def same_weights(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether they are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def run_apart(runs: list[dict[str, Any]], folder: Path, processes: int = 1) -> int:
    """Makes runs in other processes, in ranks where these are several; the exit status."""
    plan = folder / "runs.json"
    plan.write_text(json.dumps(runs))
    code = "import sys; from tests.train_support import make; make(sys.argv[1])"
    done = run_ranks(code, plan, ranks=processes) if processes > 1 else run_code(code, plan)
    print(done.stdout, done.stderr, sep="\n")  # shown where the test fails
    return done.returncode


def make(plan: str) -> None:
    """Makes the runs of a file."""
    faulthandler.dump_traceback_later(220, exit=True)
    torch.set_num_threads(1)
    if "RANK" in os.environ:  # once for all runs
        torch.distributed.init_process_group("gloo")
    for given in json.loads(Path(plan).read_text()):
        options = Options(**given["options"])
        monitors: list[Monitor] = []
        if "crash" in given:
            monitors.append(CrashAt(given["crash"], kill=True))
        if "stop" in given:
            monitors.append(StopAt(given["stop"]))
        task: Task = TinyTask(options, given.get("dropout", 0.0))
        if "image" in given:
            task = image_task(options, ImageSettings(**given["image"]))
        result = fit(task, options, *monitors)
        weights = weights_of(result)
        if options.parallel == "fsdp":
            weights = {name: value.full_tensor() for name, value in weights.items()}  # type: ignore[operator]
        if os.environ.get("RANK", "0") == "0":
            saved = {"weights": weights, "points": result.points, "history": result.history}
            torch.save(saved, given["result"])
