"""A run that is resumed with more epochs: its rates, its weights, and what is said about them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from fastio.train import Options, fit
from fastio.train.checkpoint import load
from fastio.train.kinds import image_task
from fastio.train.monitor import Monitor
from fastio.train.options import ImageSettings
from fastio.train.progress import Bar
from fastio.train.run import Run
from tests.support import numbered_folder
from tests.test_train_options import rates
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

STEPS = 6  # an epoch, as in `rates`


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("tiny") / "data", 8 * STEPS)


def options(data: Path, folder: Path | None, **changes: Any) -> Options:
    kept = {} if folder is None else {"checkpoint_dir": str(folder), "resume": True}
    return tiny_options(data, **{"epochs": 2, **kept, "checkpoint_every": 1, **changes})


class Rates(Monitor):
    """Notes the learning rate and beta1 of each step that comes."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.betas: list[float] = []

    def begin(self, run: Run) -> None:
        self._note(run)

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        self._note(run)

    def _note(self, run: Run) -> None:
        (group, *_) = run.learner.optimizer.param_groups
        self.seen.append(group["lr"])
        self.betas.append(group["betas"][0])


@pytest.mark.parametrize("schedule", ["onecycle", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0.5, 3.5])
@pytest.mark.parametrize("stop", [None, 8])
def test_the_rest_has_the_rates_of_the_longer_schedule(
    data: Path, tmp_path: Path, schedule: Any, warmup: float, stop: int | None
) -> None:
    same = {"schedule": schedule, "warmup": warmup, "lr": 1.0}
    train(options(data, tmp_path, **same), *([] if stop is None else [StopAt(stop)]))
    begins = stop or 2 * STEPS
    found, whole = Rates(), Rates()
    train(options(data, tmp_path, **same, epochs=4), found)
    train(options(data, None, **same, epochs=4, checkpoint_every=None), whole)
    assert found.seen == whole.seen[begins:]
    assert found.betas == whole.betas[begins:]
    expected = rates(epochs=4, schedule=schedule, warmup=warmup)[begins:]
    assert found.seen[:-1] == pytest.approx(expected)


@pytest.mark.parametrize("ema", [None, 0.8])
@pytest.mark.parametrize("amp", [None, "fp16"])
def test_a_prolonged_run_of_constant_rate_is_that_from_the_beginning(
    data: Path, tmp_path: Path, ema: float | None, amp: Any
) -> None:
    same: dict[str, Any] = {"schedule": "constant", "warmup": 0.5, "ema": ema, "amp": amp}
    train(options(data, tmp_path, **same))
    found = train(options(data, tmp_path, **same, epochs=3))
    expected = train(options(data, tmp_path / "whole", **same, epochs=3))
    assert same_weights(weights_of(found), weights_of(expected))
    assert found.points == expected.points


def test_a_prolonged_run_that_crashes_is_continued_exactly(data: Path, tmp_path: Path) -> None:
    weights = []
    for crashes in ([], [9, 14, 17]):
        folder = tmp_path / str(crashes)
        train(options(data, folder, ema=0.9), StopAt(8))
        longer = options(data, folder, ema=0.9, epochs=3)
        for step in crashes:
            with pytest.raises(Crash):
                train(longer, CrashAt(step))
        weights.append(weights_of(train(longer)))
    assert same_weights(*weights)


def told(given: Options) -> str:
    """What a run prints about itself."""
    file = io.StringIO()
    with Bar(console=Console(file=file, width=200)) as bar:
        train(given, bar)
    return file.getvalue()


def test_it_is_said_what_becomes_of_the_schedule(data: Path, tmp_path: Path) -> None:
    for schedule, said in (
        ("onecycle", "The schedule onecycle is computed anew for 3 epochs"),
        ("cosine", "The schedule cosine is computed anew for 3 epochs"),
        ("constant", "The learning rate is constant: 1.00e-02 as before"),
    ):
        given = {"schedule": schedule, "lr": 0.01}
        folder = tmp_path / schedule
        assert "the run had" not in told(options(data, folder, **given))
        assert "the run had" not in told(options(data, folder, **given))
        text = told(options(data, folder, **given, epochs=3))
        assert f"the run had 2 epochs and now has 3. {said}" in text
        rate = rates(epochs=3, schedule=schedule)[2 * STEPS] * 0.01
        assert f"{rate:.2e}" in text
        assert ("is not that of 3 epochs from the beginning" in text) == (schedule != "constant")


def test_an_average_of_more_steps_than_there_are_is_told(data: Path) -> None:
    assert "averages about 100 steps, and the run has 12" in told(
        options(data, None, ema=0.99, checkpoint_every=None)
    )
    assert "averages" not in told(options(data, None, ema=0.9, checkpoint_every=None))


class Averages(Monitor):
    """Averages the weights itself."""

    def __init__(self, decay: float) -> None:
        self.decay = decay

    def begin(self, run: Run) -> None:
        self.mean = {name: value.clone() for name, value in run.model.state_dict().items()}

    def step(self, run: Run, size: int, loss: Tensor) -> None:
        for name, value in run.model.state_dict().items():
            self.mean[name].lerp_(value, 1 - self.decay)


def test_the_average_of_the_weights_is_evaluated_kept_and_returned(
    data: Path, tmp_path: Path
) -> None:
    given = options(data, tmp_path, ema=0.7, val=str(data))
    task, own = TinyTask(given), Averages(0.7)
    seen: list[int] = []

    class Noted(TinyTask):
        def step(self, model: nn.Module, batch: Any, valid: int) -> Any:
            if not model.training:
                seen.append(id(model))
            return super().step(model, batch, valid)

    result = fit(Noted(given), given, own)
    assert set(seen) == {id(result.model)}
    for name, value in weights_of(result).items():
        torch.testing.assert_close(value, own.mean[name])
    content = load(tmp_path / "last.pt")
    assert same_weights(content["ema"], weights_of(result))
    assert not same_weights(content["model"], content["ema"])
    task.model().load_state_dict(content["ema"])


def test_statistics_of_norms_are_averaged_and_counts_are_copied(tmp_path: Path) -> None:
    given, settings = photo_options(tmp_path), ImageSettings(model="convnet", size=32)

    class Buffers(Averages):
        def step(self, run: Run, size: int, loss: Tensor) -> None:
            for name, value in run.model.named_buffers():
                if value.is_floating_point():
                    self.mean[name].lerp_(value, 1 - self.decay)
                else:
                    self.mean[name] = value.clone()

    own = Buffers(0.5)
    result = fit(image_task(given, settings), given, own)
    buffers = dict(result.model.named_buffers())
    assert any(name.endswith("num_batches_tracked") for name in buffers)
    for name, value in buffers.items():
        torch.testing.assert_close(value, own.mean[name])


def test_lazy_layers_cannot_be_averaged(data: Path) -> None:
    class Lazy(TinyTask):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.LazyLinear(3))

    given = options(data, None, ema=0.5, checkpoint_every=None)
    with pytest.raises(Exception, match="lazy layers"):
        fit(Lazy(given), given)


# Images, with all that mixes and repeats them


def photo_options(folder: Path, **changes: Any) -> Options:
    photos = folder / "photos"
    if not photos.exists():
        numbered_folder(photos)
    plain = {"epochs": 2, "batch_size": 4, "threads": 1, "device": "cpu", "ema": 0.5}
    return Options(**{"data": str(photos), **plain, **changes})


RECIPE: dict[str, Any] = {
    "model": "convnet",
    "size": 32,
    "augment": "trivial",
    "erasing": 0.5,
    "mixup": 0.8,
    "cutmix": 1.0,
    "repeat": 3,
}


def test_mixed_and_repeated_images_resume_exactly_and_prolonged(tmp_path: Path) -> None:
    """Six steps an epoch. Stopped in mid-epoch, prolonged, crashed in mid-epoch, continued."""
    settings = ImageSettings(**RECIPE)
    same = {"label_smoothing": 0.1, "checkpoint_every": 1}
    found = []
    for stops in ([], [StopAt(4)], [StopAt(9)]):
        kept = {"checkpoint_dir": str(tmp_path / f"kept{len(found)}"), "resume": True}
        given = photo_options(tmp_path, **same, **kept)
        for stop in stops:
            fit(image_task(given, settings), given, stop)
        fit(image_task(given, settings), given)
        longer = photo_options(tmp_path, **same, **kept, epochs=3)
        if stops:
            with pytest.raises(Crash):
                fit(image_task(longer, settings), longer, CrashAt(16))
        found.append(weights_of(fit(image_task(longer, settings), longer)))
    assert same_weights(found[0], found[1])
    assert same_weights(found[0], found[2])


def test_two_ranks_resume_mixed_images_exactly_and_prolonged(tmp_path: Path) -> None:
    """Three steps an epoch for both together; the signal goes to one of them."""
    runs = []
    for name, stop in (("whole", None), ("stopped", 4)):
        kept = {"checkpoint_dir": str(tmp_path / name), "resume": True, "checkpoint_every": 1}
        given = photo_options(tmp_path, **kept)
        for number, (epochs, at) in enumerate([(2, stop), (2, None), (3, stop and 8), (3, None)]):
            run: dict[str, Any] = {
                "options": {**given.__dict__, "epochs": epochs},
                "image": RECIPE,
                "result": str(tmp_path / f"{name}{number}"),
            }
            runs.append(run | ({} if at is None else {"stop": at}))
    assert run_apart(runs, tmp_path, processes=2) == 0
    whole, stopped = (
        torch.load(tmp_path / f"{name}3", weights_only=True) for name in ("whole", "stopped")
    )
    assert same_weights(whole["weights"], stopped["weights"])
    assert [record["step"] for record in stopped["history"]] == [3, 6, 9]
    first = torch.load(tmp_path / "stopped0", weights_only=True)
    assert not same_weights(first["weights"], stopped["weights"])
