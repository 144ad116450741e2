"""Loaders under Accelerate and the Trainer of transformers: compared with plain loops over them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

import fastio
from tests.support import flat, numbered_folder
from tests.trainers import BATCH, ROWS, STEPS, import_trainers, trainers_script

if find_spec("accelerate") is None:
    pytest.skip("accelerate is not installed", allow_module_level=True)
if TYPE_CHECKING:  # see _trainers
    from tests.accelerate_names import (
        Accelerator,
        DataLoaderConfiguration,
        PreparedLoader,
        ProjectConfiguration,
        TrainerLoaders,
        prepare,
        skip_first_batches,
    )


@pytest.fixture(scope="module", autouse=True)
def _trainers() -> None:
    import_trainers("tests.accelerate_names", globals())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("accelerate") / "packed"
    rows = [{"x": np.float32(row / ROWS), "labels": np.float32(row % 3)} for row in range(ROWS)]
    fastio.pack(rows, path)
    return path


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    return Accelerator(cpu=True, gradient_accumulation_steps=4)


def loader(packed: Path, **options: Any) -> fastio.Loader:
    return fastio.Loader(packed, BATCH, **{"shuffle": True, "seed": 0, **options})


def told(batch: Any) -> list[int]:
    """The rows of a batch."""
    return [round(x * ROWS) for x in batch["x"].tolist()]


def epoch_rows(packed: Path, epochs: int) -> list[list[int]]:
    with loader(packed) as plain:
        return [told(batch) for _ in range(epochs) for batch in plain]


def test_accelerate_leaves_prepared_loaders_as_they_are(
    packed: Path, accelerator: Accelerator
) -> None:
    bare = loader(packed)
    prepared = prepare(accelerator, bare)
    assert accelerator.prepare(prepared) is prepared
    assert [told(batch) for _ in range(2) for batch in prepared] == epoch_rows(packed, 2)
    bare.close()


def test_a_loader_is_not_taken_apart_for_a_plain_dataloader(
    packed: Path, accelerator: Accelerator
) -> None:
    with loader(packed) as bare:
        with pytest.raises(RuntimeError, match=r"use fastio\.integrations\.accelerate\.prepare"):
            accelerator.prepare(bare)
        with pytest.raises(RuntimeError, match=r"use fastio\.integrations\.accelerate\.prepare"):
            skip_first_batches(bare, 1)


def test_gradients_are_applied_behind_the_last_batch(
    packed: Path, accelerator: Accelerator
) -> None:
    model, optimizer = accelerator.prepare(*_model())
    with loader(packed) as bare:
        synced = []
        for _ in range(2):
            for batch in prepare(accelerator, bare):
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch["x"][:, None]).mean())
                    optimizer.step()
                    optimizer.zero_grad()
                    synced.append(accelerator.sync_gradients)
    assert synced == [False, False, False, True, False, True] * 2
    assert not accelerator.gradient_state.in_dataloader


def test_evaluating_in_an_epoch_leaves_it_where_it_is(
    packed: Path, accelerator: Accelerator
) -> None:
    with loader(packed) as train, loader(packed, shuffle=False) as other:
        outer, inner = prepare(accelerator, train), prepare(accelerator, other)
        ends = []
        for step, _ in enumerate(outer):
            if step == STEPS - 1:
                ends.append(accelerator.gradient_state.end_of_dataloader)
                for _ in inner:
                    ends.append(accelerator.gradient_state.end_of_dataloader)
                ends.append(accelerator.gradient_state.end_of_dataloader)
    assert ends == [True, *[False] * (STEPS - 1), True, True]


def test_a_loop_that_is_left_is_no_longer_counted(packed: Path, accelerator: Accelerator) -> None:
    with loader(packed) as bare:
        for _ in prepare(accelerator, bare):
            break
        assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("step", range(1, 2 * STEPS + 1))
def test_a_state_goes_on_at_the_next_sample(
    packed: Path, accelerator: Accelerator, tmp_path: Path, step: int
) -> None:
    with loader(packed) as bare:
        prepared = prepare(accelerator, bare)
        seen = 0
        for _ in range(2):
            for _ in prepared:
                seen += 1
                if seen == step:
                    accelerator.save_state(str(tmp_path))
    again = Accelerator(cpu=True)
    again.project_configuration = ProjectConfiguration()
    with loader(packed) as bare:
        prepared = prepare(again, bare)
        again.load_state(str(tmp_path))
        rest = [told(batch) for _ in range(3) for batch in prepared]
    whole = epoch_rows(packed, 5)
    assert rest == whole[step : step + len(rest)]
    assert len(rest) > 2 * STEPS


class Lines(IterableDataset[dict[str, torch.Tensor]]):
    """Rows in order, as of a stream whose length nobody knows."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return ({"x": torch.tensor(row / ROWS)} for row in range(ROWS))


@pytest.mark.parametrize("skipped", [0, 1, 4])
@pytest.mark.parametrize("kind", ["order", "sampler", "batch sampler", "stream"])
def test_skipped_batches_are_counted_from_the_epochs_beginning(
    packed: Path, accelerator: Accelerator, kind: str, skipped: int
) -> None:
    def made() -> fastio.Loader:
        if kind == "sampler":
            return fastio.Loader(packed, BATCH, sampler=range(ROWS))
        if kind == "batch sampler":
            return fastio.Loader(packed, batch_sampler=[[0], [1, 2], [3], [4, 5], [6], [7, 8]])
        return fastio.Loader(Lines(), BATCH) if kind == "stream" else loader(packed)

    with made() as plain:
        whole = [told(batch) for batch in plain]
    with made() as bare:
        prepared = prepare(accelerator, bare)
        for _ in zip(range(2), prepared, strict=False):
            pass
        prepared.load_state_dict(prepared.state_dict())  # in the middle of the epoch
        assert [told(batch) for batch in skip_first_batches(prepared, skipped)] == whole[skipped:]
        if kind == "order":
            prepared.set_epoch(1)
            assert [told(batch) for batch in prepared] == epoch_rows(packed, 2)[STEPS:]


def test_batches_of_a_loader_without_a_device_are_moved(
    packed: Path, accelerator: Accelerator
) -> None:
    with loader(packed) as bare:
        prepared = PreparedLoader(accelerator, bare)
        prepared.device = torch.device("meta")
        assert next(iter(prepared))["x"].device.type == "meta"
    with loader(packed, device="cpu") as bare:
        prepared = PreparedLoader(accelerator, bare)
        prepared.device = torch.device("meta")
        assert next(iter(prepared))["x"].device.type == "cpu"


def test_another_device_is_refused(packed: Path, accelerator: Accelerator) -> None:
    with loader(packed, device="meta") as bare, pytest.raises(ValueError, match="delivers to meta"):
        prepare(accelerator, bare)


@pytest.fixture
def second_of_two(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    monkeypatch.setattr(Accelerator, "num_processes", property(lambda self: 2))
    monkeypatch.setattr(Accelerator, "process_index", property(lambda self: 1))
    return accelerator


def test_a_loader_that_is_sharded_for_other_processes_is_refused(
    packed: Path, second_of_two: Accelerator
) -> None:
    sampler = DistributedSampler(range(ROWS), num_replicas=2, rank=0)  # type: ignore[arg-type]
    given: list[dict[str, Any]] = [
        {"rank": 0, "world_size": 2},
        {"rank": 2, "world_size": 3},
        {"shuffle": None, "sampler": sampler},
    ]
    for how in given:
        with (
            loader(packed, **how) as bare,
            pytest.raises(ValueError, match=r"was created with .* this is process 1 of 2"),
        ):
            prepare(second_of_two, bare)


def test_a_loader_that_is_sharded_for_these_processes_is_taken(
    packed: Path, second_of_two: Accelerator
) -> None:
    sampler = DistributedSampler(range(ROWS), num_replicas=2, rank=1)  # type: ignore[arg-type]
    given: list[dict[str, Any]] = [
        {"rank": 1, "world_size": 2},
        {"shuffle": None, "sampler": sampler},
        {"distributed": True},
        {"distributed": False},
        {},
    ]
    for how in given:
        with loader(packed, **how) as bare:
            prepare(second_of_two, bare)


def test_nothing_is_dropped_where_each_process_gets_all_samples(
    packed: Path, second_of_two: Accelerator
) -> None:
    for how in ({"distributed": False}, {"rank": 0, "world_size": 1}):
        with loader(packed, **how) as bare:
            prepared = prepare(second_of_two, bare)
            assert len([*prepared]) == len(bare)
            assert prepared.remainder == 0


def test_a_sampler_that_gives_each_process_everything_is_warned_of(
    packed: Path, second_of_two: Accelerator
) -> None:
    with (
        loader(packed, shuffle=None, sampler=range(ROWS)) as bare,
        pytest.warns(fastio.ShardingWarning, match="each of the 2 processes gets all") as caught,
    ):
        prepare(second_of_two, bare)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"split_batches": True}, {}, "batch size divided by the number of processes"),
        ({"split_batches": True}, {"drop_last": True}, "batch size divided by"),
        ({"even_batches": False}, {}, "repeats samples for it.*drop_last=True"),
        ({"even_batches": False}, {"drop_last": True}, None),
        ({"even_batches": False}, {"distributed": False}, None),
    ],
)
def test_other_batches_than_the_loader_s_are_refused(
    packed: Path,
    second_of_two: Accelerator,
    config: dict[str, bool],
    options: dict[str, Any],
    message: str | None,
) -> None:
    second_of_two.dataloader_config = DataLoaderConfiguration(**config)
    refused = nullcontext() if message is None else pytest.raises(ValueError, match=message)
    with loader(packed, **options) as bare, refused:
        prepare(second_of_two, bare)


def test_one_process_needs_no_split_batches(packed: Path) -> None:
    config = DataLoaderConfiguration(split_batches=True, even_batches=False)
    alone = Accelerator(cpu=True, dataloader_config=config)
    with loader(packed) as bare:
        rows = [row for batch in prepare(alone, bare) for row in told(batch)]
    assert sorted(rows) == list(range(ROWS))


def test_a_loader_is_prepared_once(packed: Path, accelerator: Accelerator) -> None:
    with loader(packed) as bare:
        prepared: Any = prepare(accelerator, bare)
        with pytest.raises(TypeError, match="already prepared"):
            prepare(accelerator, prepared)
        other: Any = DataLoader(range(3))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="pass other objects to accelerator"):
            prepare(accelerator, other)


def _model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), 0.1)


class Tiny(torch.nn.Module):
    """A model with the interface of those of transformers, that notes its rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)
        self.dropout = torch.nn.Dropout(0.5)
        self.trained: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        (self.trained if self.training else self.evaluated).append(told({"x": x}))
        out = self.layer(self.dropout(x[:, None]) + x[:, None])[:, 0]
        return {"loss": (out - labels).square().mean(), "logits": out}


def trainer(
    folder: Path, train: Any, evaluation: Any = None, model: Any = None, **options: Any
) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transformers")

    class Trainer(TrainerLoaders, transformers.Trainer):  # type: ignore[misc, name-defined]
        pass

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        disable_tqdm=True,
        report_to=[],
        save_strategy="steps",
        logging_strategy="no",
        **{"num_train_epochs": 2, "save_steps": 1000, "learning_rate": 0.1, **options},
    )
    return Trainer(
        model=Tiny() if model is None else model,
        args=arguments,
        train_dataset=train,
        eval_dataset=evaluation,
        compute_metrics=lambda outputs: {
            "rows": len(outputs.predictions),
            "sum": float(outputs.label_ids.sum()),
        },
    )


@pytest.mark.parametrize(("every", "accumulated"), [(3, 1), (1, 4)])
def test_the_trainer_goes_on_at_the_next_sample(
    packed: Path, tmp_path: Path, every: int, accumulated: int
) -> None:
    options = {"save_steps": every, "gradient_accumulation_steps": accumulated}
    with loader(packed) as bare:
        whole = trainer(tmp_path, bare, **options)
        whole.train()
    assert whole.model.trained == epoch_rows(packed, 2)
    last = whole.state.global_step
    assert {path.name for path in tmp_path.glob("checkpoint-*")} >= {f"checkpoint-{last}"}
    for step in range(every, last, every):
        path = tmp_path / f"checkpoint-{step}"
        with loader(packed) as bare:
            again = trainer(tmp_path / "again", bare, **options)
            again.train(resume_from_checkpoint=str(path))
        epoch, left = divmod(step, -(-STEPS // accumulated))
        assert again.model.trained == whole.model.trained[epoch * STEPS + left * accumulated :]
        for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
            assert torch.equal(one, other), path.name


def test_the_trainer_evaluates_each_sample_once(packed: Path, tmp_path: Path) -> None:
    with loader(packed, shuffle=False) as one, loader(packed) as other:
        both = trainer(tmp_path, None, {"one": one, "other": other})
        for _ in range(2):
            found = both.evaluate()
            assert found["eval_one_rows"] == found["eval_other_rows"] == ROWS
            assert found["eval_one_sum"] == sum(row % 3 for row in range(ROWS))
        assert both.model.evaluated[STEPS : 2 * STEPS] == epoch_rows(packed, 1)
        assert both.model.evaluated[2 * STEPS :] == both.model.evaluated[: 2 * STEPS]
        assert len(both.predict(one).predictions) == ROWS


def test_a_batch_size_that_the_trainer_does_not_know_is_refused(
    packed: Path, tmp_path: Path
) -> None:
    with fastio.Loader(packed, 4) as small, pytest.raises(ValueError, match="batch_size is 4"):
        trainer(tmp_path, small).train()


def test_a_loader_without_a_seed_with_which_the_trainer_could_not_resume_is_refused(
    packed: Path, tmp_path: Path
) -> None:
    with loader(packed, seed=None) as bare, pytest.raises(ValueError, match=r"seed=args\.seed"):
        trainer(tmp_path, bare).train()
    generator = torch.Generator()
    with loader(packed, generator=generator) as bare, pytest.raises(ValueError, match="generator"):
        trainer(tmp_path, bare).train()
    with loader(packed, seed=None, shuffle=False) as bare:
        trainer(tmp_path, bare, max_steps=1).train()


@pytest.mark.parametrize(
    ("sampler", "refused"),
    [
        (RandomSampler(range(ROWS)), True),
        (DistributedSampler(range(ROWS), num_replicas=1, rank=0), False),  # type: ignore[arg-type]
        (SequentialSampler(range(ROWS)), False),
        ([*range(ROWS)], False),
    ],
)
def test_a_sampler_with_which_the_trainer_could_not_resume_is_refused(
    packed: Path, tmp_path: Path, sampler: Any, refused: bool
) -> None:
    message = "RandomSampler may yield another order"
    raises = pytest.raises(ValueError, match=message) if refused else nullcontext()
    with loader(packed, shuffle=None, sampler=sampler) as bare, raises:
        trainer(tmp_path, bare, max_steps=1).train()


def test_the_trainers_datasets_stay_its_own(tmp_path: Path) -> None:
    rows = [{"x": torch.tensor(row / ROWS), "labels": torch.tensor(0.0)} for row in range(ROWS)]
    own = trainer(tmp_path, rows, rows, num_train_epochs=1)
    own.train()
    assert sorted(flat(own.model.trained)) == [*range(ROWS)]
    assert own.evaluate()["eval_rows"] == len(own.predict(rows).predictions) == ROWS


def test_the_trainer_s_own_class_names_the_one_for_loaders(packed: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    options = transformers.TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to=[])
    with loader(packed) as bare, pytest.raises(TypeError, match=r"accelerate\.TrainerLoaders"):
        transformers.Trainer(Tiny(), options, train_dataset=bare).train()


def test_accelerates_script_of_the_docs(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fastio.pack(numbered_folder(Path("photos"), (9, 9)), "packed")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
    names: dict[str, Any] = {
        "model": net,
        "optimizer": torch.optim.AdamW(net.parameters(), 1e-3),
        "loss": torch.nn.functional.cross_entropy,
        "crop": [fastio.RandomResizedCrop(32), fastio.ToDtype("float32", scale=True)],
    }
    exec(trainers_script("accelerate"), names)
    assert names["loader"].state_dict()["epoch"] == 2
    names["loader"].loader.close()


@pytest.mark.filterwarnings("ignore")  # of the Trainer's defaults, which the script keeps
def test_the_trainers_script_of_the_docs(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    monkeypatch.chdir(tmp_path)
    texts = [{"text": "A document. " * 20} for _ in range(20)]
    fastio.pack(texts, "tokens", tokenizer="bytes")
    size = {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(vocab_size=257, **size)
    names: dict[str, Any] = {"model": transformers.GPT2LMHeadModel(config)}
    exec(trainers_script("transformers"), names)
    assert names["trainer"].state.global_step == len(names["loader"])
    names["loader"].close()


TWO_PROCESSES = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from tests import test_accelerate
test_accelerate.import_trainers("tests.accelerate_names", vars(test_accelerate))
from tests.test_accelerate import *
from tests.test_accelerate import _model

packed, out = Path(sys.argv[1]), Path(sys.argv[2])
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(*_model())
found = {"rows": [], "gathered": [], "rest": []}
with loader(packed) as bare, loader(packed, shuffle=False) as other:
    train, valid = prepare(accelerator, bare), prepare(accelerator, other)
    for step, batch in enumerate(train):
        found["rows"] += told(batch)
        accelerator.backward(model(batch["x"][:, None]).mean())
        if step == 0:
            accelerator.save_state(str(out / "state"))
    for batch in valid:
        found["gathered"] += told({"x": accelerator.gather_for_metrics(batch["x"])})
    accelerator.load_state(str(out / "state"))
    for batch in train:
        found["rest"] += told(batch)
    testing = trainer(out, bare, other, Tiny(), num_train_epochs=1)
    testing.train()
    found["trained"] = flat(testing.model.trained)
    found["evaluated"] = testing.evaluate()["eval_sum"]
(out / f"{accelerator.process_index}.json").write_text(json.dumps(found))
accelerator.end_training()
"""


@pytest.mark.long
def test_two_processes_get_each_sample_once(packed: Path, tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    root = Path(__file__).parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": f"{root}:{root}/tools",
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*launch, str(script), str(packed), str(tmp_path)],
        env=environment,
        check=True,
        timeout=300,
        capture_output=True,
    )
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    # The last batch is padded with rows of the epoch's beginning.
    assert {*first["rows"], *second["rows"]} == {*range(ROWS)}
    assert len(first["rows"]) == len(second["rows"]) == -(-ROWS // 2)
    assert first["gathered"] == second["gathered"] == [*range(ROWS)]
    assert (first["rest"], second["rest"]) == (first["rows"][BATCH:], second["rows"][BATCH:])
    assert (first["trained"], second["trained"]) == (first["rows"], second["rows"])
    assert first["evaluated"] == second["evaluated"] == sum(row % 3 for row in range(ROWS))
