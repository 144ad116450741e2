"""Tables are learned from, and what is said of a model is what plain arithmetic says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import fastio
from fastio.train import Options
from fastio.train.fields import Columns, listed, moments
from fastio.train.kinds import tabular_task
from fastio.train.loop import fit
from fastio.train.models import DLRM, Scaled, TabularMLP
from fastio.train.objectives import BINS, area_under_curve, logit_counts
from fastio.train.options import TabularSettings
from fastio.train.parallel import Process
from tests.support import open_loader

GROUPS = {"dense": ["I1", "I2"], "sparse": ["C1", "C2", "C3"]}
PROCESS = Process(torch.device("cpu"))


def clicks(rows: int, seed: int) -> pa.Table:
    """The label is decided by two columns of numbers and one of ids."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for name in GROUPS["dense"]:
        columns[name] = rng.exponential(100, rows).astype(np.float32)
    for name in GROUPS["sparse"]:
        columns[name] = rng.integers(-(1 << 31), 1 << 31, rows).astype(np.int32)
    score = np.log1p(columns["I1"]) - np.log1p(columns["I2"]) + 3 * (columns["C2"] % 2 - 0.5)
    columns["label"] = (score > 0).astype(np.int64)
    columns["price"] = score * 100 + 5000
    columns["bought"] = pa.array(np.where(score > 0, "yes", "no")).dictionary_encode()
    return pa.table(columns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    train, val = clicks(6000, 0), clicks(1000, 1)
    pq.write_table(train, folder / "train.parquet")
    # The same words, numbered the other way round.
    words = pa.DictionaryArray.from_arrays(
        pa.array((val["label"].to_numpy() == 1).astype(np.int32)), ["no", "yes"]
    )
    val = val.set_column(val.schema.get_field_index("bought"), "bought", words)
    pq.write_table(val, folder / "val.parquet")
    assert train["bought"].chunk(0).dictionary.to_pylist() == ["yes", "no"]
    for name in ("train", "val"):
        fastio.pack(folder / f"{name}.parquet", folder / name, groups=GROUPS)
    return folder


def options(folder: Path, **changes: Any) -> Options:
    made = Options(
        data=str(folder / "train"),
        val=str(folder / "val"),
        epochs=3,
        batch_size=200,
        lr=0.01,
        threads=1,
        device="cpu",
    )
    return replace(made, **changes)


CHOSEN = TabularSettings(dense=["dense"], sparse=["sparse"], table_rows=16)


def test_packed_clicks_are_learned(folder: Path) -> None:
    settings = replace(CHOSEN, dense_transform="log1p")
    run = options(folder)
    task = tabular_task(run, settings)
    assert isinstance(task.model().get_submodule("model"), DLRM)
    result = fit(task, run)
    assert result.best is not None
    assert result.best > 0.98


def test_files_as_they_are_are_learned_by_an_mlp(folder: Path) -> None:
    files = {
        part: str(folder / f"{name}.parquet") for part, name in [("data", "train"), ("val", "val")]
    }
    run = options(folder, **files)
    task = tabular_task(run, replace(CHOSEN, model="mlp", groups=GROUPS))
    assert isinstance(task.model().get_submodule("model"), TabularMLP)
    result = fit(task, run)
    assert result.best is not None
    assert result.best > 0.95


def test_prices_are_learned(folder: Path) -> None:
    run = options(folder)
    result = fit(tabular_task(run, replace(CHOSEN, objective="regression", label="price")), run)
    assert result.history[-1]["val"]["r2"] > 0.9
    assert result.best == result.history[-1]["val"]["rmse"] < 60


def test_words_count_however_they_are_numbered(folder: Path) -> None:
    """`val` numbers "no" and "yes" otherwise than `train`."""
    run = options(folder)
    result = fit(tabular_task(run, replace(CHOSEN, label="bought")), run)
    assert result.best is not None
    assert result.best > 0.95


def evaluated(task: Any, model: nn.Module, world_size: int) -> dict[str, float]:
    """The metrics of `val`, summed up over all ranks."""
    sums: dict[str, torch.Tensor] = {"loss": torch.zeros(()), "count": torch.zeros(())}
    for rank in range(world_size):
        arguments = task.reading(task.options.val, PROCESS)
        arguments.pop("opener")  # the data has no groups of columns
        with open_loader(
            task.options.val, 300, rank=rank, world_size=world_size, **arguments
        ) as loader:
            for batch in loader:
                valid = loader.batch.valid
                outcome = task.step(model, batch, valid)
                found = {"loss": outcome.loss, **outcome.sums}
                found["count"] = torch.tensor(task.count(batch, valid))
                for name, value in found.items():
                    sums[name] = sums.get(name, torch.zeros(())) + value.detach().double()
    return {"loss": float(sums["loss"] / sums["count"]), **task.metrics(sums)}


def predictions(task: Any, model: nn.Module) -> tuple[NDArray[Any], NDArray[Any]]:
    """What the model says of all of `val`, and the labels, both float64."""
    with fastio.Loader(task.options.val, 1000) as loader:
        batch = next(iter(loader))
    outputs = model(batch["dense"], batch["sparse"].long()).detach().double().numpy()
    return outputs, batch[task.settings.label].double().numpy()


@pytest.mark.parametrize("world_size", [1, 3, 7])
def test_evaluation_is_a_plain_computation(folder: Path, world_size: int) -> None:
    """Also where 1,000 rows in batches of 300 leave ranks with rows that repeat others."""
    torch.manual_seed(0)
    task = tabular_task(options(folder), CHOSEN)
    model = task.model().eval()
    logits, labels = predictions(task, model)
    got = evaluated(task, model, world_size)
    log_loss = np.logaddexp(0, np.where(labels == 1, -logits, logits)).mean()
    assert got["loss"] == pytest.approx(log_loss, rel=1e-5)
    above = logits[labels == 1][:, None] - logits[labels == 0][None, :]
    area = ((above > 0) + 0.5 * (above == 0)).mean()
    within_a_bin = (np.abs(above) < 1 / 512).mean()
    assert 0.02 < area < 0.98
    assert got["auc"] == pytest.approx(area, abs=within_a_bin / 2 + 1e-9)


def test_evaluation_of_a_regression_is_a_plain_computation(folder: Path) -> None:
    torch.manual_seed(0)
    task = tabular_task(options(folder), replace(CHOSEN, objective="regression", label="price"))
    model = task.model().eval()
    outputs, prices = predictions(task, model)
    got = evaluated(task, model, 3)
    trained = clicks(6000, 0)["price"].to_numpy()
    squared = ((outputs - prices) ** 2).mean()
    assert got["loss"] == pytest.approx(squared / trained.var(), rel=1e-5)
    assert got["rmse"] == pytest.approx(np.sqrt(squared), rel=1e-6)
    assert got["r2"] == pytest.approx(1 - squared / prices.var(), rel=1e-5)


def test_area_under_the_curve_counts_pairs() -> None:
    """Logits that are bins' numbers: ties count half, sums over parts are those of the whole."""
    rng = np.random.default_rng(0)
    logits, labels = rng.integers(-20, 20, 500) / 512 + 1 / 1024, rng.integers(0, 2, 500)
    counts = [
        logit_counts(torch.tensor(logits[part]), torch.tensor(labels[part]))
        for part in (slice(0, 123), slice(123, 500))
    ]
    above = logits[labels == 1][:, None] - logits[labels == 0][None, :]
    expected = ((above > 0) + 0.5 * (above == 0)).mean()
    assert area_under_curve(counts[0] + counts[1]) == pytest.approx(expected, abs=1e-12)


def test_area_under_the_curve_takes_any_logit() -> None:
    logits = torch.tensor([-torch.inf, -1e30, 1e30, torch.inf, torch.nan])
    counts = logit_counts(logits, torch.tensor([0, 0, 1, 1, 0]))
    assert counts.sum() == 5
    assert counts[0, 0] == 3
    assert counts[1, BINS - 1] == 2
    assert area_under_curve(counts) == 1.0
    assert area_under_curve(logit_counts(logits, torch.ones(5))) == 0.5


def test_moments_leave_out_what_is_no_number(tmp_path: Path) -> None:
    values = np.array([1, 2, np.nan, 4, np.inf, 5], np.float32)
    constant = np.full(6, 1e6 + 0.1, np.float64)
    pq.write_table(pa.table({"a": values, "b": constant}), tmp_path / "x.parquet")
    columns = Columns({"a": 1, "b": 1}, {})
    mean, deviation = moments(str(tmp_path / "x.parquet"), ["a", "b"], columns.numbers)
    known = values[np.isfinite(values)]
    assert mean.numpy() == pytest.approx([known.mean(), np.float32(constant[0])])
    assert deviation.numpy() == pytest.approx([known.std(), 1.0])


def test_points_in_time_have_their_own_mean_and_deviation(tmp_path: Path) -> None:
    """Seconds since 1970 within two minutes: float32 has steps of 128 there."""
    times = 1.7e9 + np.arange(120.0)
    pq.write_table(pa.table({"at": times}), tmp_path / "x.parquet")
    columns = Columns({"at": 1}, {})
    mean, deviation = moments(str(tmp_path / "x.parquet"), ["at"], columns.numbers)
    assert float(mean) == pytest.approx(times.mean(), rel=1e-15)
    assert float(deviation) == pytest.approx(times.std(), rel=1e-9)
    numbers = columns.numbers({"at": torch.from_numpy(times)})
    scaled = Scaled(Given(), (mean, deviation))(numbers, torch.zeros(120, 0))
    assert scaled.numpy() == pytest.approx((times - times.mean()) / times.std(), abs=1e-5)


class Given(nn.Module):
    """The sum of what the model is given."""

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        return dense.sum(1)


def test_numbers_are_scaled_and_nan_is_the_mean() -> None:
    numbers = torch.tensor([[2.0, torch.nan], [4.0, 30.0], [torch.inf, -torch.inf]])
    ids = torch.zeros(3, 0)
    scale = torch.tensor([2.0, 10.0]), torch.tensor([2.0, 5.0])
    standard = Scaled(Given(), scale, (100.0, 10.0))
    assert standard(numbers, ids).tolist() == pytest.approx([100, 100 + 10 * (1 + 4), 100])
    log1p = Scaled(Given(), None)
    counts = torch.tensor([[-3.0, 1.0], [torch.nan, 7.0]])
    assert log1p(counts, ids[:2]).tolist() == pytest.approx([np.log(2), np.log(8)])


def test_columns_are_found_by_their_types(folder: Path) -> None:
    fields = {
        "dense": fastio.Array("int32", (2,)),
        "label": fastio.Scalar("float32"),
        "age": fastio.Scalar("float64"),
        "city": fastio.Scalar("uint32"),
    }
    found = Columns.of(fields, "label", None, None)
    assert found == Columns({"dense": 2, "age": 1}, {"city": 1})
    batch = {
        "dense": torch.tensor([[1, 2]]),
        "age": torch.tensor([3.5]),
        "city": torch.tensor([4], dtype=torch.uint32),
    }
    assert found.numbers(batch).tolist() == [[1, 2, 3.5]]
    assert found.ids(batch).tolist() == [[4]]
    assert Columns.of(fields, "label", ["age"], None) == Columns({"age": 1}, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (TabularSettings(label="click"), "no field 'click'; the fields are dense"),
        (replace(CHOSEN, dense=["age"]), "no field 'age'"),
        (replace(CHOSEN, dense=[], model="dlrm"), "0 columns of numbers"),
        (replace(CHOSEN, dense=[], sparse=[]), "no field other than 'label'"),
        (replace(CHOSEN, label="price"), "neither 0 nor 1"),
    ],
)
def test_what_cannot_be_learned_is_an_error(
    folder: Path, settings: TabularSettings, message: str
) -> None:
    run = options(folder, epochs=1)
    with pytest.raises(fastio.TrainError, match=message):
        fit(tabular_task(run, settings), run)


def test_labels_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    price = np.where(np.arange(50) % 10 == 7, np.nan, np.arange(50.0))
    table = pa.table({"x": np.arange(50, dtype=np.float32), "price": price})
    pq.write_table(table, tmp_path / "x.parquet")
    run = Options(data=str(tmp_path / "x.parquet"), batch_size=8, threads=1, device="cpu")
    settings = TabularSettings(objective="regression", label="price")
    with pytest.raises(fastio.TrainError, match="'price' is NaN or infinite in 5 of 50 rows"):
        fit(tabular_task(run, settings), run)


def test_of_many_names_those_like_the_wanted_one_are_listed() -> None:
    names = [f"w{n}" for n in range(600)]
    text = listed(names, "w6000")
    assert text.startswith("w60")
    assert text.endswith("... (600 in all)")
    assert len(text.split(", ")) == 11
    assert listed(names[:3], "w6000") == "w0, w1, w2"
    assert listed(names, "zzz").startswith("w0, w1, w2, ")


def test_text_is_no_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["a", "b"], "label": [0, 1]}), tmp_path / "x.parquet")
    with pytest.raises(fastio.TrainError, match="'name' is Text"):
        tabular_task(Options(data=str(tmp_path / "x.parquet")))


def test_a_part_of_files_as_they_are_can_be_held_out(folder: Path) -> None:
    run = options(folder, data=str(folder / "train.parquet"), val=None, val_split=0.1)
    result = fit(tabular_task(run, replace(CHOSEN, groups=GROUPS)), run)
    assert result.best is not None
    assert result.best > 0.95


def test_labels_of_tables_are_not_smoothed(folder: Path) -> None:
    run = options(folder, label_smoothing=0.1)
    with pytest.raises(fastio.OptionError, match=r"label_smoothing .* not for a table"):
        tabular_task(run)


@pytest.mark.parametrize("name", ["objective", "model", "dense_transform"])
def test_settings_name_what_is_possible(name: str) -> None:
    with pytest.raises(fastio.OptionError, match=f"{name} must be one of "):
        TabularSettings(**{name: "other"})  # type: ignore[arg-type]
