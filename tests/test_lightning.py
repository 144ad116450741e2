"""Loaders under Lightning's Trainer: whose samples, in which epoch, and where a checkpoint goes on.

What is trained on is recorded row by row, and compared with a training that was not interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

import fastio
from tests.support import flat, numbered_folder
from tests.trainers import BATCH, ROWS, STEPS, import_trainers, trainers_script

if find_spec("lightning") is None:
    pytest.skip("lightning is not installed", allow_module_level=True)
if TYPE_CHECKING:  # see _trainers
    from tests.lightning_models import (
        Classifier,
        CSVLogger,
        EarlyStopping,
        ModelCheckpoint,
        OneCycle,
        Recorder,
        data,
        lightning,
        pytorch_lightning,
        trainer,
    )

# What Lightning advises a run of a second about.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        "The number of training batches",
        "You called `self.log.*but have no logger",
        "Checkpoint directory .* exists and is not empty",
        "Couldn't infer the batch indices",
        "You defined a `validation_step` but have no `val_dataloader`",
        "GPU available but not used",
        "Be aware that when using `ckpt_path`, callbacks",
        "`isinstance.treespec, LeafSpec",
    )
]


@pytest.fixture(scope="module", autouse=True)
def _trainers() -> None:
    import_trainers("tests.lightning_models", globals())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lightning") / "packed"
    fastio.pack([{"x": np.float32(row)} for row in range(ROWS)], path)
    return path


@pytest.fixture(autouse=True)
def _unwrapped() -> Iterator[None]:
    """Lightning wraps DataLoader's classes while a hook runs, for good where the hook raises."""
    names = ("__init__", "__setattr__", "__delattr__")
    classes = [DataLoader, *DataLoader.__subclasses__(), BatchSampler]
    kept = [{name: vars(one)[name] for name in names if name in vars(one)} for one in classes]
    yield
    for one, own in zip(classes, kept, strict=True):
        for name in names:
            if name in own:
                setattr(one, name, own[name])
            elif name in vars(one):
                delattr(one, name)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def epoch_rows(packed: Path, epochs: int, **options: Any) -> list[list[int]]:
    """The rows of all batches of a plain loop over a loader."""
    with fastio.Loader(packed, BATCH, shuffle=True, seed=0, **options) as loader:
        return [batch["x"].int().tolist() for _ in range(epochs) for batch in loader]


def test_an_epoch_of_the_trainer_is_one_of_the_loader(packed: Path) -> None:
    model = Recorder()
    trainer(limit_val_batches=2).fit(model, datamodule=data(packed, val=True))
    assert model.trained == epoch_rows(packed, 3)
    assert model.evaluated[:2] == [list(range(8)), list(range(8, 16))]


def test_mixed_precision(packed: Path) -> None:
    model = Recorder()
    trainer(precision="bf16-mixed").fit(model, datamodule=data(packed))
    assert model.trained == epoch_rows(packed, 3)


def test_early_stopping(packed: Path) -> None:
    model = Recorder()
    stopping = EarlyStopping("constant", patience=1)
    trainer(stopping, max_epochs=9).fit(model, datamodule=data(packed, val=True))
    assert model.trained == epoch_rows(packed, 2)


def test_limited_epochs_begin_anew(packed: Path) -> None:
    model = Recorder()
    trainer(limit_train_batches=2).fit(model, datamodule=data(packed))
    whole = epoch_rows(packed, 3)
    assert model.trained == flat(whole[STEPS * n : STEPS * n + 2] for n in range(3))


def test_overfitting_takes_the_same_batches_each_epoch(packed: Path) -> None:
    model = Recorder()
    trainer(overfit_batches=2).fit(model, datamodule=data(packed))
    assert model.trained == epoch_rows(packed, 1)[:2] * 3


def test_a_loader_made_anew_goes_on_with_the_trainers_epoch(packed: Path) -> None:
    model = Recorder()
    trainer(reload_dataloaders_every_n_epochs=1).fit(model, datamodule=data(packed))
    assert model.trained == epoch_rows(packed, 3)


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints and after how many steps each was taken."""
    found = sorted((int(p.stem.partition("step=")[2]), p) for p in folder.glob("*.ckpt"))
    assert found
    return found


@pytest.mark.parametrize(
    ("saving", "training"),
    [
        ({"every_n_train_steps": 1}, {}),
        ({"every_n_train_steps": 1}, {"limit_train_batches": 4}),
        ({"every_n_epochs": 1}, {}),
        ({"every_n_epochs": 1, "save_on_train_epoch_end": True}, {}),
        ({"monitor": "constant", "save_on_train_epoch_end": False}, {"val_check_interval": 3}),
        ({"every_n_train_steps": 4}, {"max_epochs": -1, "max_steps": 15}),
    ],
    ids=["steps", "limited", "validation", "epochs", "mid-epoch validation", "max_steps"],
)
def test_a_checkpoint_goes_on_at_the_next_sample(
    packed: Path,
    tmp_path: Path,
    saving: dict[str, Any],
    training: dict[str, Any],
) -> None:
    model = Recorder()
    saver = ModelCheckpoint(tmp_path, save_top_k=-1, **saving)
    options = {"max_epochs": 2, **training}
    trainer(saver, **options).fit(model, datamodule=data(packed, val=True))
    for step, path in checkpoints(tmp_path):
        again = Recorder()
        trainer(**options).fit(again, datamodule=data(packed, val=True), ckpt_path=path)
        assert again.trained == model.trained[step:], path.name


class Lines(IterableDataset[dict[str, torch.Tensor]]):
    """Rows in order, as of a stream whose length nobody knows."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return ({"x": torch.tensor(float(row))} for row in range(ROWS))


def test_a_stream_without_a_length_goes_on_at_the_next_sample(tmp_path: Path) -> None:
    """The Trainer is a batch ahead of its steps, to see where the stream ends."""

    def stream() -> fastio.integrations.lightning.DataModule:
        return fastio.integrations.lightning.DataModule({"dataset": Lines(), "batch_size": BATCH})

    model = Recorder()
    saver = ModelCheckpoint(tmp_path, save_top_k=-1, every_n_train_steps=1)
    trainer(saver, max_epochs=2).fit(model, datamodule=stream())
    assert sorted(flat(model.trained)) == sorted([*range(ROWS)] * 2)
    for step, path in checkpoints(tmp_path):
        again = Recorder()
        trainer(max_epochs=2).fit(again, datamodule=stream(), ckpt_path=path)
        assert again.trained == model.trained[step:], path.name


def test_a_step_that_failed_is_done_again(packed: Path, tmp_path: Path) -> None:
    model = Recorder(fail_at=8)
    failing = trainer()
    with pytest.raises(RuntimeError, match="stopped here"):
        failing.fit(model, datamodule=data(packed))
    failing.save_checkpoint(tmp_path / "failed.ckpt")
    again = Recorder()
    trainer().fit(again, datamodule=data(packed), ckpt_path=tmp_path / "failed.ckpt")
    assert model.trained + again.trained == epoch_rows(packed, 3)


def test_a_checkpoint_of_a_finished_run_goes_on_with_more_epochs(
    packed: Path, tmp_path: Path
) -> None:
    model = Recorder()
    first = trainer(max_epochs=1)
    first.fit(model, datamodule=data(packed))
    first.save_checkpoint(tmp_path / "end.ckpt")
    again = Recorder()
    trainer().fit(again, datamodule=data(packed), ckpt_path=tmp_path / "end.ckpt")
    assert model.trained + again.trained == epoch_rows(packed, 3)


def test_a_model_that_counts_steps_first_does_not_lose_the_state(
    packed: Path, tmp_path: Path
) -> None:
    """Lightning then makes its loaders before it reads where they stood (its issue 20550)."""
    model = OneCycle()
    saver = ModelCheckpoint(tmp_path, save_top_k=-1, every_n_train_steps=4)
    trainer(saver, max_epochs=2).fit(model, datamodule=data(packed))
    for step, path in checkpoints(tmp_path):
        again = OneCycle()
        trainer(max_epochs=2).fit(again, datamodule=data(packed), ckpt_path=path)
        assert again.trained == model.trained[step:], path.name


def test_another_batch_size_in_the_middle_of_an_epoch_is_told(packed: Path, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=2)
    trainer(saver, max_epochs=1, limit_train_batches=3).fit(Recorder(), datamodule=data(packed))
    [(_, path)] = checkpoints(tmp_path)
    again = Recorder()
    with pytest.warns(UserWarning, match="another batch size"):
        trainer(max_epochs=1).fit(again, datamodule=data(packed, batch_size=4), ckpt_path=path)
    assert not set(flat(again.trained)) & set(flat(epoch_rows(packed, 1)[:2]))


def test_validating_a_checkpoint_leaves_training_where_it_is(packed: Path, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=2)
    module = data(packed, val=True)
    trainer(saver, max_epochs=1, limit_train_batches=3).fit(Recorder(), datamodule=module)
    [(_, path)] = checkpoints(tmp_path)
    trainer().validate(Recorder(), datamodule=module, ckpt_path=path, verbose=False)
    model = Recorder()
    trainer(max_epochs=1).fit(model, datamodule=module)
    assert model.trained == epoch_rows(packed, 1)


def test_testing_and_predicting_take_each_sample_once(packed: Path) -> None:
    split = {"dataset": packed, "batch_size": BATCH, "seed": 0}
    module = fastio.integrations.lightning.DataModule(test=split, predict=[split, split])
    model = Recorder()
    trainer().test(model, datamodule=module, verbose=False)
    assert flat(model.evaluated) == [*range(ROWS)]
    model.evaluated.clear()
    trainer().predict(model, datamodule=module)
    assert flat(model.evaluated) == [*range(ROWS)] * 2


@pytest.fixture
def unpatched() -> Iterator[None]:
    """Undoes what Lightning leaves behind in classes where a hook that makes loaders raises."""
    classes = [*fastio.Loader.__mro__, torch.utils.data.BatchSampler]
    before = [(cls, dict(vars(cls))) for cls in classes if cls.__module__ != "builtins"]
    yield
    for cls, attributes in before:
        for name in ("__init__", "__setattr__", "__delattr__"):
            if name in attributes:
                setattr(cls, name, attributes[name])
            elif name in vars(cls):
                delattr(cls, name)
            if f"__old{name}" in vars(cls):
                delattr(cls, f"__old{name}")


@pytest.mark.usefixtures("unpatched")
def test_what_is_not_given_is_not_there(packed: Path) -> None:
    with pytest.raises(lightning.pytorch.utilities.exceptions.MisconfigurationException):
        trainer().test(Recorder(), datamodule=data(packed))


def test_loaders_are_closed_at_the_end_unless_they_were_given(packed: Path) -> None:
    given = fastio.Loader(packed, BATCH)
    module = fastio.integrations.lightning.DataModule(
        train={"dataset": packed, "batch_size": BATCH}, val=given
    )
    run = trainer(max_epochs=1)
    run.fit(Recorder(), datamodule=module)
    with pytest.raises(fastio.LoaderClosed):
        iter(run.train_dataloader.loader)
    assert next(iter(given))["x"].tolist() == [*range(BATCH)]
    given.close()


def test_without_a_trainer_the_loader_itself_comes(packed: Path) -> None:
    module = data(packed)
    assert next(iter(module.train_dataloader()))["x"].int().tolist() == epoch_rows(packed, 1)[0]
    module.teardown("fit")


def test_a_bare_loader_is_sharded_by_nobody_else_and_goes_on_within_an_epoch(
    packed: Path, tmp_path: Path
) -> None:
    def fit(**options: Any) -> list[list[int]]:
        model = Recorder()
        with fastio.Loader(packed, BATCH, shuffle=True, seed=0) as loader:
            callbacks = options.pop("callbacks", [])
            trainer(*callbacks, max_epochs=2).fit(model, loader, **options)
        return model.trained

    saver = ModelCheckpoint(tmp_path, save_top_k=-1, every_n_train_steps=4)
    whole = fit(callbacks=[saver])
    assert sorted(flat(whole)) == sorted([*range(ROWS)] * 2)
    for step, path in checkpoints(tmp_path):
        assert fit(ckpt_path=path) == whole[step:]


def test_stats_are_logged(packed: Path, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    monitor = fastio.integrations.lightning.StatsMonitor(every_n_steps=2)
    trainer(monitor, max_epochs=1, logger=logger).fit(Recorder(), datamodule=data(packed))
    logger.save()
    lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("loader/wait_share")
    shares = [float(line.split(",")[column]) for line in lines[1:] if line.split(",")[column]]
    assert len(shares) == STEPS // 2
    assert all(0 <= share <= 1 for share in shares)


def test_stats_of_another_loader_are_refused(packed: Path) -> None:
    other = torch.utils.data.DataLoader([{"x": torch.zeros(())}])
    with pytest.raises(TypeError, match=r"one fastio\.Loader"):
        trainer(fastio.integrations.lightning.StatsMonitor()).fit(Recorder(), other)


def test_the_other_package_has_the_same(packed: Path) -> None:
    class Model(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.rows: list[int] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.rows += batch["x"].int().tolist()
            loss: torch.Tensor = self.layer(batch["x"][:, None]).mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    model = Model()
    module = fastio.integrations.pytorch_lightning.DataModule(
        {"dataset": packed, "batch_size": BATCH}
    )
    pytorch_lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[fastio.integrations.pytorch_lightning.StatsMonitor()],
    ).fit(model, datamodule=module)
    assert model.rows == [*range(ROWS)]


@pytest.mark.filterwarnings("ignore")  # of Lightning's defaults, which the script keeps
def test_the_script_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fastio.pack(numbered_folder(Path("photos"), (9, 9)), "packed")
    crop = [fastio.RandomResizedCrop(32), fastio.ToDtype("float32", scale=True)]
    names: dict[str, Any] = {"model": Classifier(), "crop": crop}
    exec(trainers_script("lightning"), names)
    assert names["trainer"].global_step == 2 * 5


TWO_PROCESSES = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from tests.test_lightning import Path, checkpoints, import_trainers
import_trainers("tests.lightning_models", globals())

packed, out = Path(sys.argv[1]), Path(sys.argv[2])
both = {"strategy": "ddp", "devices": 2, "max_epochs": 2}
model = Recorder()
saver = ModelCheckpoint(out, every_n_train_steps=2, save_top_k=-1)
run = trainer(saver, **both)
run.fit(model, datamodule=data(packed))
found = {"whole": model.trained}
for step, path in checkpoints(out):
    again = Recorder()
    trainer(**both).fit(again, datamodule=data(packed), ckpt_path=path)
    found[str(step)] = again.trained
(out / f"{run.global_rank}.json").write_text(json.dumps(found))
"""


@pytest.mark.long
def test_two_processes_get_each_sample_once_and_go_on(packed: Path, tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root}/tools", "CUDA_VISIBLE_DEVICES": ""}
    # Lightning's own launcher looks for a free port, which others may take before it is used.
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, str(script), str(packed), str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=300, capture_output=True)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    for name in first:
        done = 0 if name == "whole" else int(name)
        assert first[name] == first["whole"][done:]
        assert second[name] == second["whole"][done:]
    with fastio.Loader(packed, 2 * BATCH, shuffle=True, seed=0) as loader:
        together = [set(batch["x"].int().tolist()) for _ in range(2) for batch in loader]
    assert [{*a, *b} for a, b in zip(first["whole"], second["whole"], strict=True)] == together


def rows_of(batches: Any) -> list[int]:
    return [int(x) for batch in batches for x in batch["x"].tolist()]


def test_fabric_takes_a_loader(packed: Path) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    with fastio.Loader(packed, BATCH, shuffle=True, seed=3) as loader:
        prepared = fabric.setup_dataloaders(loader)
        expected = [list(loader.sampler), rows_of(loader), rows_of(loader)]
        assert expected[0] == expected[1]
        loader.set_epoch(0)
        assert [rows_of(prepared), rows_of(prepared)] == expected[1:]
        assert prepared.batch_sampler.sampler is prepared.sampler is loader.sampler


@pytest.mark.parametrize("made_in_a_hook", [False, True])
def test_lightning_s_sampler_comes_to_a_loader_of_the_same_arguments(
    packed: Path, made_in_a_hook: bool
) -> None:
    from lightning.fabric.utilities.data import _replace_dunder_methods, _update_dataloader
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

    def make() -> fastio.Loader:
        return fastio.Loader(
            str(packed), BATCH, shuffle=True, fields=["x"], num_workers=1, channels_last=False
        )

    if made_in_a_hook:
        with (
            _replace_dunder_methods(DataLoader, "dataset"),
            _replace_dunder_methods(BatchSampler),
        ):
            loader = make()
    else:
        loader = make()
    sampler = DistributedSampler(range(ROWS), 2, 1, shuffle=False)
    with loader, _update_dataloader(loader, sampler) as again:
        assert type(again) is fastio.Loader
        assert (again.path, again.batch_size, again.sampler) == ("native", BATCH, sampler)
        assert again.fields == ("x",)
        assert not again.channels_last
        assert rows_of(again) == list(range(1, ROWS, 2))


def test_overfitting_a_bare_loader_is_in_order(packed: Path) -> None:
    model = Recorder()
    with fastio.Loader(packed, BATCH, shuffle=True) as loader, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You requested to overfit")
        warnings.filterwarnings("ignore", "The 'train_dataloader' does not have many workers")
        trainer(max_epochs=2, overfit_batches=2).fit(model, loader)
    assert flat(model.trained) == [*range(2 * BATCH)] * 2


def test_predicting_keeps_the_order_and_tells_the_rows(packed: Path) -> None:
    class Predicts(Recorder):
        def predict_step(self, batch: Any, batch_idx: int) -> list[int]:
            return [int(x) for x in batch["x"].tolist()]

    with fastio.Loader(packed, BATCH) as loader, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The 'predict_dataloader' does not have many workers")
        found: Any = trainer().predict(Predicts(), loader)
    assert flat(found) == list(range(ROWS))
