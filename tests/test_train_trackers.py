"""What a run tells: curves in TensorBoard and Visdom, lines and a bar on a terminal."""

from __future__ import annotations

import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fastio
from fastio.train import Options, fit
from fastio.train.monitor import TensorBoard, Visdom
from fastio.train.progress import Bar, Usage, _count, _readable, _utilisation, allocator_advice
from tests.train_support import Crash, CrashAt, TinyTask, tiny_data, tiny_options


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("tiny") / "data", 24)


def options(data: Path, **changes: Any) -> Options:
    return tiny_options(data, **{"epochs": 2, "log_every": 1, "val": str(data), **changes})


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars of event files, by name."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    return {
        name: [(event.step, event.value) for event in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def test_tensorboard_has_the_curves_of_the_run(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    given = options(data)
    result = fit(TinyTask(given), given, TensorBoard(str(tmp_path)))
    found = curves(tmp_path)
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3, 4, 5, 6]
    losses = [point["loss"] for point in result.points]
    assert [value for _, value in found["train/loss"]] == pytest.approx(losses, rel=1e-6)
    assert [step for step, _ in found["epoch/val_accuracy"]] == [3, 6]
    assert sum(value for _, value in found["loader/samples"]) == 48
    assert {"train/lr", "loader/samples_per_s", "loader/wait_share", "loader/decode_s"} <= {*found}


def test_a_resumed_run_goes_on_in_the_same_curves(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    kept = {"checkpoint_dir": str(tmp_path / "kept"), "checkpoint_every": 2, "resume": True}
    given = options(data, **kept)
    events = tmp_path / "events"
    with pytest.raises(Crash):
        fit(TinyTask(given), given, TensorBoard(str(events)), CrashAt(6))
    fit(TinyTask(given), given, TensorBoard(str(events)))
    assert [step for step, _ in curves(events)["train/loss"]] == [1, 2, 3, 4, 5, 6]


def test_tensorboard_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(fastio.PackageMissing, match=r"fastio\[tensorboard\]"):
        TensorBoard(str(tmp_path))


def test_a_folder_that_tensorboard_cannot_write_is_named(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    given = options(data)
    with pytest.raises(fastio.TrainError, match=r"tensorboard=.*file cannot be written \("):
        fit(TinyTask(given), given, TensorBoard(str(tmp_path / "file")))


class FakeVisdom:
    """What of visdom.Visdom is called, noted."""

    answers = True
    made: list[FakeVisdom]

    def __init__(self, server: str, port: int, use_incoming_socket: bool) -> None:
        self.address = server, port
        self.lines: dict[str, list[tuple[int, float]]] = {}
        type(self).made.append(self)

    def check_connection(self, timeout_seconds: float) -> bool:
        return self.answers

    def line(
        self, values: list[float], steps: list[int], win: str, update: str, opts: dict[str, str]
    ) -> None:
        assert update == "append"
        self.lines.setdefault(win, []).append((steps[0], values[0]))


@pytest.fixture
def visdom(monkeypatch: pytest.MonkeyPatch) -> type[FakeVisdom]:
    module: Any = types.ModuleType("visdom")

    class Fresh(FakeVisdom):
        made: list[FakeVisdom] = []  # noqa: RUF012

    module.Visdom = Fresh
    monkeypatch.setitem(sys.modules, "visdom", module)
    return Fresh


def test_visdom_gets_a_window_a_curve(data: Path, visdom: type[FakeVisdom]) -> None:
    given = options(data)
    result = fit(TinyTask(given), given, Visdom("http://plots:8100"))
    (server,) = visdom.made
    assert server.address == ("http://plots", 8100)
    assert server.lines["train/loss"] == [(p["step"], p["loss"]) for p in result.points]
    assert [step for step, _ in server.lines["epoch/val_accuracy"]] == [3, 6]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("localhost", ("http://localhost", 8097)),
        ("https://x.org", ("https://x.org", 8097)),
        ("box:9", ("http://box", 9)),
    ],
)
def test_a_visdom_url_may_be_short(
    visdom: type[FakeVisdom], url: str, address: tuple[str, int]
) -> None:
    Visdom(url)
    assert visdom.made[0].address == address


def test_a_visdom_server_that_does_not_answer_is_named(visdom: type[FakeVisdom]) -> None:
    visdom.answers = False
    with pytest.raises(fastio.TrainError, match="no Visdom server answers at http://nowhere:1"):
        Visdom("http://nowhere:1")


def test_visdom_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "visdom", None)
    with pytest.raises(fastio.PackageMissing, match=r"fastio\[visdom\]"):
        Visdom("http://localhost:8097")


def shown(data: Path, terminal: bool, **changes: Any) -> str:
    """What a run writes."""
    file = io.StringIO()
    given = options(data, **changes)
    console = Console(file=file, width=100, force_terminal=terminal, highlight=False)
    with Bar(console=console) as bar:
        fit(TinyTask(given), given, bar)
    return file.getvalue()


def test_a_log_has_a_line_an_epoch(data: Path) -> None:
    lines = shown(data, terminal=False).splitlines()
    assert lines[0] == "163 weights on cpu; 3 steps an epoch of 8 samples"
    number = r"[\d.,e-]+"
    for epoch, line in enumerate(lines[1:3], 1):
        assert re.fullmatch(
            rf"{epoch}/2  train loss {number} accuracy {number}  val loss {number} "
            rf"accuracy {number}  {number} rows/s  data wait \d+%  {number} s(  \*)?",
            line,
        )


def test_figures_have_three_digits_and_few_weights_are_counted() -> None:
    metrics = {"loss": 0.7, "accuracy": 1.0, "near": 99.97, "perplexity": 1234.5, "zero": 0.0}
    shown = "loss 0.700 accuracy 1.00 near 100 perplexity 1,234 zero 0.00"
    assert _readable(metrics) == shown
    assert [_count(number) for number in (18, 99_999, 100_000, 25_557_032)] == [
        "18",
        "99,999",
        "0.1 M",
        "25.6 M",
    ]


def test_a_terminal_has_a_bar_too(data: Path) -> None:
    text = shown(data, terminal=True)
    assert "epoch 2/2" in text
    assert "evaluation" in text


def test_dp_is_advised_against(data: Path) -> None:
    assert "torchrun" in shown(data, terminal=False, parallel="dp")


def test_a_gpu_that_does_not_tell_how_busy_it_is_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NVMLError(Exception):
        """As pynvml's: no RuntimeError."""

    def utilization(device: torch.device) -> int:
        raise NVMLError("Not Supported")

    monkeypatch.setattr("torch.cuda.utilization", utilization)
    assert _utilisation(torch.device("cuda", 0)) == []
    monkeypatch.setattr("torch.cuda.utilization", lambda device: 7)
    assert _utilisation(torch.device("cuda", 0)) == ["GPU 7%"]
    assert _utilisation(torch.device("cpu")) == []


def test_less_than_a_batch_is_told(data: Path) -> None:
    line = "the data has less than a batch of 32 samples: each step has all of it"
    assert line in shown(data, terminal=False, batch_size=32).splitlines()
    assert line not in shown(data, terminal=False, batch_size=24).splitlines()


def test_an_evaluation_that_is_not_finite_is_told(data: Path) -> None:
    class Unsettled(TinyTask):
        def metrics(self, sums: Any) -> dict[str, float]:
            return {"accuracy": float("nan")}

    file = io.StringIO()
    given = options(data, epochs=1)
    with Bar(console=Console(file=file, width=60)) as bar:
        fit(Unsettled(given), given, bar)
    assert "accuracy of the evaluation not finite: look at its data" in file.getvalue()


IDLE = Usage(0.0, 0.0, 0)
FAULTING = Usage(user_s=9.0, system_s=1.0, faults=300_000)


def advice(after: Usage = FAULTING, **environment: str) -> str | None:
    return allocator_advice(IDLE, after, environment)


@pytest.mark.parametrize("change", [{"system_s": 0.1}, {"faults": 500}])
def test_without_page_faults_there_is_no_advice(change: dict[str, Any]) -> None:
    assert advice() is not None
    assert advice(FAULTING._replace(**change)) is None
    assert advice(IDLE) is None
    assert advice(Usage(4.5, 0.5, 150_000)) is None  # too short to tell


def test_an_allocator_is_told_in_its_own_variables_to_keep_memory() -> None:
    assert "10% of the CPU time is spent in the operating system" in str(advice())
    assert "`MALLOC_CONF=" in str(advice(LD_PRELOAD="/usr/lib/libjemalloc.so.2"))
    assert advice(LD_PRELOAD="/usr/lib/libtcmalloc.so.4") is None  # which keeps it


def test_an_allocator_that_was_told_needs_no_advice() -> None:
    assert advice(MALLOC_MMAP_THRESHOLD_="1") is None
    assert advice(LD_PRELOAD="libjemalloc.so.2", MALLOC_CONF="dirty_decay_ms:-1") is None


def test_advice_is_given_once_and_where_it_is_wanted(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.train.progress.allocator_advice", lambda *_: "use jemalloc")
    for wanted in (True, False):
        file = io.StringIO()
        given = options(data)
        with Bar(wanted, Console(file=file, width=100)) as bar:
            fit(TinyTask(given), given, bar)
        assert file.getvalue().count("use jemalloc") == wanted
