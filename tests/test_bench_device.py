"""What computes in a bench: emulated accelerators by a clock of the test's, models on the CPU."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import nn

from fastio.diagnose import device as module
from fastio.diagnose.bench.compute import batch_loss, learner_of
from fastio.diagnose.device import (
    CpuModel,
    CudaModel,
    EmulatedAccelerator,
    resident,
    tree_bytes,
)
from fastio.diagnose.loop import Limit, Resident, phase_of, run_loop
from fastio.diagnose.options import Options


class Clock:
    """A time that passes in sleep() alone, always a little longer than was asked for."""

    late_s = 0.01

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


BATCH = torch.zeros(50, 20, dtype=torch.uint8)  # 1,000 bytes


def test_steps_follow_one_another_without_a_gap(clock: Clock) -> None:
    accelerator = EmulatedAccelerator(rate=100)
    for _ in range(3):
        accelerator.step(BATCH, 50)
    accelerator.wait()
    assert accelerator.computing == [(100.0, 100.5), (100.5, 101.0), (101.0, 101.5)]
    assert clock.now == pytest.approx(101.5 + Clock.late_s)


def test_a_step_begins_when_its_batch_is_there(clock: Clock) -> None:
    accelerator = EmulatedAccelerator(rate=100)
    accelerator.step(BATCH, 50)
    clock.now += 2.0
    accelerator.step(BATCH, 50)
    assert accelerator.computing[1] == (102.0, 102.5)


def test_the_loop_is_one_step_ahead_at_most(clock: Clock) -> None:
    accelerator = EmulatedAccelerator(rate=100)
    accelerator.step(BATCH, 50)
    assert clock.now == 100.0  # the first one begins at once
    accelerator.step(BATCH, 50)
    assert clock.now == pytest.approx(100.5 + Clock.late_s)


def test_copies_ahead_hide_behind_steps(clock: Clock) -> None:
    accelerator = EmulatedAccelerator(rate=100, bus=4000)  # a copy takes 0.25 s, a step 0.5
    for _ in range(3):
        accelerator.step(BATCH, 50)
    starts = [start for start, _ in accelerator.computing]
    assert starts == pytest.approx([100.25, 100.75, 101.25], abs=0.03)
    assert [end - start for start, end in accelerator.copying] == [0.25] * 3
    assert not accelerator.blocked


def test_blocking_copies_stand_between_steps(clock: Clock) -> None:
    accelerator = EmulatedAccelerator(rate=100, bus=4000, blocking=True)
    for _ in range(3):
        accelerator.step(BATCH, 50)
    starts = [start for start, _ in accelerator.computing]
    assert starts == pytest.approx([100.25, 101.0, 101.75], abs=0.05)
    assert len(accelerator.blocked) == 3


def test_rates_are_above_nothing() -> None:
    with pytest.raises(ValueError, match="above 0"):
        EmulatedAccelerator(0)
    with pytest.raises(ValueError, match="above 0"):
        EmulatedAccelerator(1, bus=-1)


def test_bytes_of_a_batch_are_those_of_its_tensors() -> None:
    assert tree_bytes({"a": BATCH, "b": ("words", [BATCH, 3])}) == 2000


def test_a_model_on_the_cpu_notes_when_it_computed() -> None:
    seen = []
    found = CpuModel(seen.append)
    found.step("batch", 1)
    assert seen == ["batch"]
    assert len(found.computing) == 1
    assert not found.asynchronous


def test_a_resident_batch_has_memory_of_its_own() -> None:
    images = torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    kept = resident((images, ["words"]), torch.device("cpu"))
    images.fill_(1)
    assert float(kept[0].sum()) == 0
    assert kept[0].is_contiguous(memory_format=torch.channels_last)
    assert kept[1] == ["words"]


def test_resident_batches_have_no_end() -> None:
    batches = Resident([("a", 1), ("b", 2)])
    found = [(batch, batches.batch.valid) for batch in islice(batches, 3)]
    assert found == [("a", 1), ("b", 2), ("a", 1)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("blocking", [False, True])
def test_a_model_on_a_gpu_is_timed_there(blocking: bool) -> None:
    gpu = torch.device("cuda", 0)
    learner = learner_of(nn.Linear(64, 64), gpu, Options("data", model="m:f"))
    found = CudaModel(lambda batch: learner.step([batch], batch_loss), gpu, blocking)
    batch = torch.ones(16, 64, device="cpu" if blocking else gpu)
    run = run_loop(Resident([((batch,), 16)]), found, Limit(60.0, 8))
    assert len(run.computing) == 8
    assert all(start <= end for start, end in run.computing)
    assert bool(run.blocked) == blocking
    assert phase_of("compute", [run]).au is not None
