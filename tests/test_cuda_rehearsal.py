"""The way to a GPU, rehearsed without one; see `tests.cuda_rehearsal`.

With a GPU the tests of `test_device` and `test_loader_cuda` say more, and these are left out.
"""

from __future__ import annotations

import gc
import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fastio
from fastio import Loader, Normalize
from fastio.device import DevicePrefetcher, HostBatch, copy_stream
from fastio.diagnose.probes import machine as probes
from fastio.tensors.trees import Tail
from fastio.train import Options, Result, fit
from fastio.train.kinds import image_task, tabular_task, text_task
from fastio.train.monitor import Monitor
from fastio.train.options import ImageSettings, TabularSettings, TextSettings
from fastio.train.parallel import _device
from fastio.train.task import Task
from tests import test_bench_device, test_device, test_loader_cuda
from tests.cuda_rehearsal import Event, Rehearsal, rehearsed
from tests.token_support import Padding, Windows
from tests.train_support import Crash, CrashAt, TinyTask, tiny_data

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")

GPU = torch.device("cuda", 0)
ROWS = 24
NORMALIZE = fastio.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsal]:
    with rehearsed(monkeypatch) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rehearsal")


@pytest.fixture(scope="module")
def photos(folder: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (ROWS, 12, 12, 3), np.uint8)
    fastio.pack([(image, row) for row, image in enumerate(noise)], folder / "photos")
    return folder / "photos"


@pytest.fixture(scope="module")
def tokens(folder: Path) -> Path:
    schema = fastio.Schema({"text": fastio.Tokens("uint8"), "label": fastio.Scalar("int64")})
    rows = [{"text": np.arange(1 + n % 7, dtype=np.uint8), "label": n % 3} for n in range(ROWS)]
    fastio.pack(rows, folder / "tokens", schema=schema)
    return folder / "tokens"


@pytest.fixture(scope="module")
def ragged(folder: Path) -> Path:
    schema = fastio.Schema({"x": fastio.Array("float32", (None, 3)), "y": fastio.Text()})
    rows = [{"x": np.full((n % 5, 3), n, np.float32), "y": str(n)} for n in range(ROWS)]
    fastio.pack(rows, folder / "ragged", schema=schema)
    return folder / "ragged"


@pytest.fixture(scope="module")
def parquet(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    label = np.arange(ROWS) % 2
    table = pa.table({"a": np.arange(ROWS), "b": np.arange(ROWS) / 3, "label": label})
    pq.write_table(table, folder / "table.parquet", row_group_size=8)
    return folder / "table.parquet"


@pytest.fixture(scope="module")
def lists(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"x": [[float(n)] * (n % 4) for n in range(ROWS)], "y": np.arange(ROWS)})
    pq.write_table(table, folder / "lists.parquet", row_group_size=8)
    return folder / "lists.parquet"


# The rehearsal itself


def test_work_is_done_when_somebody_waits_for_it(gpu: Rehearsal) -> None:
    pinned = torch.arange(4).pin_memory()
    doubled = pinned.to("cuda", non_blocking=True) * 2
    pinned.fill_(7)
    assert doubled.device == GPU
    assert not gpu.host_waits
    assert doubled.tolist() == [14, 14, 14, 14]  # the copy read what is there now


def test_memory_that_another_stream_uses_is_lent_again_unless_that_is_recorded(
    gpu: Rehearsal,
) -> None:
    def seen(recorded: bool) -> list[int]:
        side, consumer = torch.cuda.Stream(), torch.cuda.current_stream()
        with torch.cuda.stream(side):
            batch = torch.full((64,), 1, device="cuda")
        consumer.wait_stream(side)
        if recorded:
            batch.record_stream(consumer)
        read = batch + 0
        del batch
        with torch.cuda.stream(side):
            torch.full((64,), 2, device="cuda")
        side.synchronize()
        return read.unique().tolist()

    assert seen(recorded=True) == [1]
    assert seen(recorded=False) == [2]


def test_pinned_memory_is_lent_again_under_a_copy_that_torch_does_not_know_of(
    gpu: Rehearsal,
) -> None:
    def seen(through_numpy: bool) -> list[int]:
        pinned = torch.full((64,), 1).pin_memory()
        part = torch.from_numpy(pinned.numpy())[4:] if through_numpy else pinned[4:]
        there = part.to("cuda", non_blocking=True)
        del pinned, part
        torch.full((64,), 2).pin_memory()
        return there.unique().tolist()

    assert seen(through_numpy=False) == [1]
    assert seen(through_numpy=True) == [2]


def test_tensors_of_two_devices_do_not_mix(gpu: Rehearsal) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + torch.ones(3)


# Tests for a GPU


@pytest.mark.parametrize(
    "name",
    [
        "test_cuda_alone_is_the_current_device",
        "test_a_cuda_device_beyond_the_last_is_refused",
        "test_slots_are_not_overwritten_under_a_slow_consumer_s_copies",
        "test_memory_of_a_dropped_batch_is_not_reused_under_the_consumer_s_kernels",
        "test_channels_last_and_bytes_survive_the_copy",
        "test_the_tail_on_the_device_gives_the_cpu_s_values",
        "test_pageable_tensors_arrive_too",
        "test_the_allocator_gives_pinned_memory",
    ],
)
def test_the_device_s_tests_for_a_gpu_pass(
    gpu: Rehearsal, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_device, "COUNT", 20)
    monkeypatch.setattr(test_device, "SIZE", 256)
    monkeypatch.setattr(test_device, "EDGE", 4)
    getattr(test_device, name)()


@pytest.fixture(scope="module")
def loader_data(folder: Path) -> dict[str, Path]:
    photos = test_loader_cuda.packed_photos(folder / "loader photos")
    return {"packed": photos, "ragged": test_loader_cuda.packed_rows(folder / "loader rows")}


# Python 3.12 and later warn of every fork of a process that has threads.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("test_batches_are_those_of_the_cpu_while_the_consumer_lags_behind", {}),
        ("test_bytes_cross_the_bus_and_callables_run_on_the_device", {}),
        ("test_pinned_batches_survive_a_copy_from_a_part_of_them_that_was_dropped", {}),
        ("test_an_early_break_frees_what_is_in_flight", {}),
        ("test_the_torch_path_delivers_on_the_device_too", {"workers": 0}),
        ("test_the_torch_path_delivers_on_the_device_too", {"workers": 1}),
        ("test_collate_fn_s_batches_are_delivered_on_the_device", {}),
        *(
            ("test_rows_that_differ_in_size_are_those_of_the_cpu", {"form": form})
            for form in ("list", "padded", "nested", "flat")
        ),
        ("test_both_parts_of_a_nested_tensor_are_pinned_and_copied", {}),
    ],
)
def test_the_loader_s_tests_for_a_gpu_pass(
    gpu: Rehearsal,
    name: str,
    arguments: dict[str, Any],
    loader_data: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_loader_cuda, "EDGE", 4)
    monkeypatch.setattr(test_loader_cuda, "EPOCHS", 1)
    test = getattr(test_loader_cuda, name)
    takes = test.__code__.co_varnames[: test.__code__.co_argcount]
    test(**{name: path for name, path in loader_data.items() if name in takes}, **arguments)


@pytest.mark.parametrize("blocking", [False, True])
def test_the_bench_s_test_for_a_gpu_passes(gpu: Rehearsal, blocking: bool) -> None:
    test_bench_device.test_a_model_on_a_gpu_is_timed_there(blocking)


# Loaders


def flat(batch: Any) -> list[Any]:
    """A batch's numbers, and the bytes of its strings, one after the other."""
    if isinstance(batch, torch.Tensor):
        parts: Any = batch.unbind() if batch.is_nested else None
        return flat(list(parts)) if parts is not None else batch.flatten().tolist()
    if isinstance(batch, dict):
        return [value for name, part in batch.items() for value in (*flat(name), *flat(part))]
    if isinstance(batch, (tuple, list)):
        return [value for part in batch for value in flat(part)]
    return list(batch.encode()) if isinstance(batch, str) else [batch]


def are_close(found: list[Any], wanted: list[Any]) -> bool:
    """Whether numbers are those of `pytest.approx(wanted, rel=1e-5, abs=1e-6)`, which is slow."""
    one, other = np.array(found, np.float64), np.array(wanted, np.float64)
    tolerance = np.maximum(1e-5 * np.abs(other), 1e-6)
    return one.shape == other.shape and bool((np.abs(one - other) <= tolerance).all())


KINDS: dict[str, dict[str, Any]] = {
    "photos": {"transforms": [fastio.RandomResizedCrop(8), NORMALIZE]},
    "single photos": {"data": "photos", "batch_size": None},
    "photos as they are": {"data": "photos", "channels_last": True},
    "windows of tokens": {
        "data": "tokens",
        "view": Windows(5, cu_seqlens=True),
    },
    "padded tokens": {
        "data": "tokens",
        "view": Padding(16, multiple_of=1),
    },
    "rows": {"data": "ragged", "ragged": "list"},
    "nested rows": {"data": "ragged", "ragged": "nested"},
    "tables": {"data": "parquet"},
    "tables with lists": {"data": "lists", "ragged": "flat"},
    "mixed photos": {"data": "photos", "mix": True, "transforms": [NORMALIZE]},
    "mixed rows": {"data": "ragged", "mix": True, "ragged": "flat"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_cpu_s_and_no_copy_is_waited_for(
    gpu: Rehearsal, kind: str, request: pytest.FixtureRequest
) -> None:
    options = {"batch_size": 4, "shuffle": True, "seed": 0, "num_workers": 1} | KINDS[kind]
    path = request.getfixturevalue(options.pop("data", kind))
    path = options.pop("view", lambda source: source)(path)
    data = fastio.mix([(path, 1), (path, 2)]) if options.pop("mix", False) else path
    with Loader(data, **options) as host, Loader(data, device="cuda", **options) as mine:
        for epoch in range(2):
            expected = [flat(batch) for batch in host]
            gpu.host_waits.clear()
            found = list(mine)  # nothing makes the device hurry
            constants = 2 if NORMALIZE in options.get("transforms", ()) and epoch == 0 else 0
            assert len(gpu.host_waits) == constants
            for batch, wanted in zip(found, expected, strict=True):
                assert are_close(flat(batch), wanted)
    assert mine.stats().copy_s > 0


@pytest.mark.parametrize("data", ["photos", "parquet"])
def test_an_epoch_left_in_the_middle_waits_for_its_copies(
    gpu: Rehearsal, data: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(data)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 0, "num_workers": 1}
    with Loader(path, **options) as host, Loader(path, device="cuda", **options) as mine:
        expected = [flat(next(iter(host))) for _ in range(6)]
        found = [next(iter(mine)) for _ in range(6)]  # each iterator is dropped at once
        assert [flat(batch) for batch in found] == expected


def test_a_batch_is_there_for_the_stream_that_asked_for_it(gpu: Rehearsal, photos: Path) -> None:
    options: dict[str, Any] = {"batch_size": 4, "transforms": [NORMALIZE], "num_workers": 1}
    with Loader(photos, **options) as host:
        expected = [float(images.sum()) for images, _ in host]
    side = torch.cuda.Stream()
    sums = []
    with Loader(photos, device="cuda", **options) as mine, torch.cuda.stream(side):
        for images, _ in mine:
            sums.append(images.sum())
            del images
    side.synchronize()
    assert [float(one) for one in sums] == pytest.approx(expected, rel=1e-4, abs=1e-3)


def test_a_state_counts_what_was_handed_out(gpu: Rehearsal, photos: Path) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 0, "num_workers": 1}
    with Loader(photos, device="cuda", **options) as mine, Loader(photos, **options) as host:
        expected = [labels.tolist() for _, labels in host]
        batches = iter(mine)
        labels = [next(batches)[1] for _ in range(2)]
        state = mine.state_dict()
        assert [one.tolist() for one in labels] == expected[:2]
        host.load_state_dict(state)
        assert [labels.tolist() for _, labels in host] == expected[2:]


def test_an_error_in_the_middle_frees_its_batch_and_leaves_the_others(
    gpu: Rehearsal, photos: Path
) -> None:
    calls = []

    def fails(images: torch.Tensor) -> torch.Tensor:
        calls.append(weakref.ref(images))
        if len(calls) == 2:
            raise ValueError("no")
        return images

    gc.disable()  # what is freed does not wait for the collector
    try:
        with Loader(
            photos, 4, device="cuda", transforms=[fastio.OnBatch(fails)], num_workers=1
        ) as mine:
            before = torch.cuda.memory_allocated()
            batches = iter(mine)
            assert next(batches)[1].tolist() == [0, 1, 2, 3]
            with pytest.raises(ValueError, match="no"):
                next(batches)
            assert calls[1]() is None
            assert next(batches)[1].tolist() == [8, 9, 10, 11]
            batches.close()
            assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_only_the_device_that_is_meant_is_used(gpu: Rehearsal, workers: int) -> None:
    dataset = TensorDataset(torch.arange(8), torch.arange(8))
    with Loader(dataset, 4, device="cuda:1", num_workers=workers) as mine:
        found = [x for x, _ in mine]
    assert [x.device for x in found] == [torch.device("cuda", 1)] * 2
    assert [x.tolist() for x in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert gpu.contexts == {1}


def test_events_have_times_only_where_they_are_read(gpu: Rehearsal, photos: Path) -> None:
    with Loader(photos, 4, device="cuda", num_workers=1) as mine:
        next(iter(mine))
        waits = [work for work in torch.cuda.current_stream().work if isinstance(work, Event)]
    assert [event.timed for event in waits] == [False]


@pytest.mark.parametrize("form", ["list", "padded", "nested", "flat"])
def test_all_of_a_mixed_batch_is_pinned(gpu: Rehearsal, ragged: Path, form: Any) -> None:
    mixed = fastio.mix([(ragged, 1), (ragged, 1)])
    with Loader(mixed, 4, pin_memory=True, ragged=form, fields=["x"], num_workers=1) as loader:
        leaves: list[torch.Tensor] = []
        for part in next(iter(loader)).values():
            nested = isinstance(part, torch.Tensor) and part.is_nested
            leaves += part if isinstance(part, list) else [part.values() if nested else part]
        assert all(leaf.is_pinned() for leaf in leaves if leaf.numel())


def test_a_loader_that_was_used_goes_to_another_process_without_its_device(
    gpu: Rehearsal, photos: Path
) -> None:
    tail = Tail([Normalize((0.5,) * 3, (0.5,) * 3)])
    tail(torch.zeros(1, 3, 2, 2, device="cuda"))
    assert pickle.loads(pickle.dumps(tail)).__dict__["_constants"] == {}


def test_a_forked_child_leaves_its_parent_s_copies_alone(
    gpu: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    hosts = iter([HostBatch(torch.zeros(4).pin_memory(), release=lambda: released.append(1))])
    prefetcher = DevicePrefetcher(hosts, GPU, stream=copy_stream(GPU))
    next(prefetcher)
    pid = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: pid + 1)
        child.setattr(Event, "synchronize", None)  # as good as CUDA's after a fork
        prefetcher.close()
    assert not released


# Training


class Waiting(Monitor):
    """Notes what the host waited for in each step."""

    def __init__(self, gpu: Rehearsal) -> None:
        self.gpu = gpu
        self.steps: list[list[str]] = []

    def begin_epoch(self, run: Any) -> None:
        self.gpu.host_waits.clear()

    def step(self, run: Any, size: int, loss: torch.Tensor) -> None:
        self.steps.append(list(self.gpu.host_waits))
        self.gpu.host_waits.clear()


@pytest.fixture(scope="module")
def tiny(folder: Path) -> str:
    return str(tiny_data(folder / "tiny", 24))


def trained(task: Callable[[Options], Task], *monitors: Monitor, **how: Any) -> Result:
    options = Options(**{"batch_size": 8, "threads": 1, "epochs": 2} | how)
    return fit(task(options), options, *monitors)


@pytest.mark.parametrize("amp", [None, "bf16", "fp16"])
def test_a_run_is_the_cpu_s_and_waits_for_no_step(gpu: Rehearsal, tiny: str, amp: Any) -> None:
    how = {"data": tiny, "val": tiny, "amp": amp, "clip_grad_norm": 1.0}
    expected = trained(TinyTask, device="cpu", **how)
    told = Waiting(gpu)
    found = trained(TinyTask, told, device="cuda", **how)
    for mine, other in zip(found.history, expected.history, strict=True):
        assert mine["train"]["loss"] == pytest.approx(other["train"]["loss"], abs=1e-4)
        assert mine["val"] == pytest.approx(other["val"], abs=1e-4)
    assert len(told.steps) == 6
    if amp != "fp16":  # whose scaler looks whether gradients overflowed
        assert not any(told.steps)


def test_a_run_that_ended_in_the_middle_goes_on_as_if_it_had_not(
    gpu: Rehearsal, tiny: str, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"data": tiny, "device": "cuda"}
    expected = trained(TinyTask, **how)
    how |= {"checkpoint_dir": str(tmp_path), "checkpoint_every": 2}
    with pytest.raises(Crash):
        trained(TinyTask, CrashAt(5), **how)
    found = trained(TinyTask, resume=True, **how)
    for name, weight in found.model.state_dict().items():
        assert weight.is_cuda
        assert torch.equal(weight, expected.model.state_dict()[name])


def text(objective: Any) -> Callable[[Options], Task]:
    return lambda options: text_task(options, TextSettings(objective, "tiny", length=8))


def photo_task(options: Options) -> Task:
    return image_task(options, ImageSettings("convnet", size=32))


@pytest.mark.parametrize(
    ("data", "task"),
    [
        ("photos", photo_task),
        ("tokens", text("classify")),
        ("tokens", text("lm")),
        ("parquet", lambda options: tabular_task(options, TabularSettings(table_rows=9))),
    ],
    ids=["image", "classify", "lm", "tabular"],
)
def test_every_task_trains_on_the_device_as_on_the_cpu(
    gpu: Rehearsal, data: str, task: Any, request: pytest.FixtureRequest
) -> None:
    path = str(request.getfixturevalue(data))
    how: dict[str, Any] = {"data": path, "val": path, "epochs": 1, "batch_size": 12}
    expected = trained(task, device="cpu", **how).history[0]
    told = Waiting(gpu)
    found = trained(task, told, device="cuda", **how).history[0]
    assert found["train"]["loss"] == pytest.approx(expected["train"]["loss"], rel=1e-3)
    assert found["val"]["loss"] == pytest.approx(expected["val"]["loss"], rel=1e-3)


@pytest.mark.parametrize("rank", [None, "2"])
def test_a_gpu_that_is_not_there_is_refused(
    gpu: Rehearsal, rank: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    with pytest.raises(fastio.TrainError, match="there are 2 GPUs"):
        _device(Options("x", device="cuda:2"), launched=rank is not None)


# The ladder and the doctor


@pytest.mark.parametrize(
    ("triton", "compiler", "why_not"),
    [(True, True, ""), (False, True, "triton"), (True, False, "C compiler")],
)
def test_a_ladder_compiles_for_a_gpu_where_triton_can(
    triton: bool, compiler: bool, why_not: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    ladder = import_module("fastio.diagnose.bench.ladder")
    monkeypatch.setattr(ladder, "find_spec", lambda name: object() if triton else None)
    monkeypatch.setattr(ladder.shutil, "which", lambda name: name if compiler else None)
    found = ladder._no_compiler(GPU)
    assert why_not in found
    assert bool(found) == bool(why_not)


def test_the_doctor_s_probes_of_a_gpu(gpu: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        raise OSError("no nvidia-smi")

    monkeypatch.setattr(probes, "_EDGE", 8)
    monkeypatch.setattr(probes, "_COPY_BYTES", 64)
    monkeypatch.setattr(probes, "_IMAGES", (1, 2, 4, 4))
    monkeypatch.setattr(probes.subprocess, "run", run)
    facts = probes.gpu_facts()
    assert facts is not None
    assert (facts.count, facts.capability, facts.link) == (2, (9, 0), None)
    assert set(facts.flops) == {"float32", "tf32", "bfloat16"}
    assert all("--id=GPU-0" in command for command in asked)
