"""Batches on their device, copied ahead of the consumer.

The order of copies, events and releases is tested on a stream that the test itself moves forward;
the same with real copies needs a CUDA device and is skipped without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from fastio import Normalize, Stats
from fastio.device import DevicePrefetcher, HostBatch, copy_stream, resolve_device
from fastio.tensors.trees import Finish, Tail, image_tensors, pinned_memory

CPU = torch.device("cpu")
BYTES = torch.arange(256, dtype=torch.uint8).repeat(3, 1).view(3, 16, 16).repeat(2, 1, 1, 1)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Of the tests with CUDA; `test_cuda_rehearsal` runs them with less.
COUNT, SIZE, EDGE = 200, 1 << 20, 2048  # batches, numbers of one, rows of a matrix
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_only_cuda_has_a_copy_stream_here() -> None:
    assert copy_stream(None) is None
    assert copy_stream(CPU) is None


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_another_accelerator_that_is_not_there_is_refused_by_name(device: str) -> None:
    if {"mps": torch.backends.mps, "xpu": torch.xpu}[device].is_available():
        pytest.skip(f"there is {device}")
    with pytest.raises(RuntimeError, match=device):
        resolve_device(device)


def test_resolve_device_takes_what_torch_takes() -> None:
    assert resolve_device(None) is None
    assert resolve_device("cpu") == CPU
    assert resolve_device(torch.device("meta")) == torch.device("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_cuda_device_that_is_not_there_is_refused_by_name(device: str) -> None:
    with pytest.raises(RuntimeError, match=device):
        resolve_device(device)


@needs_cuda
def test_cuda_alone_is_the_current_device() -> None:
    assert resolve_device("cuda") == torch.device("cuda", torch.cuda.current_device())


@needs_cuda
def test_a_cuda_device_beyond_the_last_is_refused() -> None:
    beyond = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(RuntimeError, match=beyond):
        resolve_device(beyond)


# Without a stream


def test_without_a_device_data_passes_through_finish_and_beside_info() -> None:
    batches = iter([HostBatch(1, "one"), HostBatch(2, "two")])
    prefetcher = DevicePrefetcher(batches, None, finish=lambda data, _: data * 10)
    assert list(prefetcher) == [(10, "one"), (20, "two")]


def test_without_a_stream_nothing_is_taken_ahead() -> None:
    taken = []

    def batches() -> Iterator[HostBatch]:
        for number in range(3):
            taken.append(number)
            yield HostBatch(number)

    prefetcher = DevicePrefetcher(batches(), CPU)
    next(prefetcher)
    assert taken == [0]


# With a stream that the test moves forward


class FakeEvent:
    def __init__(self, stream: FakeStream, place: int) -> None:
        self.stream = stream
        self.place = place

    def query(self) -> bool:
        return self.stream.done >= self.place

    def synchronize(self) -> None:
        self.stream.done = max(self.stream.done, self.place)

    def elapsed_time(self, end_event: FakeEvent) -> float:
        return 1000.0 * (end_event.place - self.place)


class FakeStream:
    """Every recorded event is one step; events up to `done` have happened."""

    def __init__(self) -> None:
        self.recorded = 0
        self.done = 0
        self.entered = 0
        self.handed_over: list[tuple[int, Any]] = []

    def active(self) -> AbstractContextManager[None]:
        @contextmanager
        def enter() -> Iterator[None]:
            self.entered += 1
            try:
                yield
            finally:
                self.entered -= 1

        return enter()

    def record(self, *, timed: bool = False) -> FakeEvent:
        self.recorded += 1
        return FakeEvent(self, self.recorded)

    def hand_over(self, event: Any, data: Any) -> None:
        self.handed_over.append((event.place, data))

    def complete(self) -> None:
        """Everything that was put on the stream so far has happened."""
        self.done = self.recorded


def numbered(count: int, released: list[int]) -> Iterator[HostBatch]:
    for number in range(count):
        yield HostBatch(number, -number, lambda number=number: released.append(number))


def test_a_host_batch_is_released_only_after_its_copy() -> None:
    released: list[int] = []
    stream = FakeStream()
    prefetcher = DevicePrefetcher(numbered(5, released), CPU, ahead=1, stream=stream)
    next(prefetcher)
    next(prefetcher)
    assert released == []
    stream.done = 2  # batch 0: start and copied
    next(prefetcher)
    assert released == [0]
    stream.complete()
    next(prefetcher)
    assert released == [0, 1, 2, 3]


def test_ahead_bounds_how_many_host_batches_are_held() -> None:
    released: list[int] = []
    taken: list[int] = []

    def counted() -> Iterator[HostBatch]:
        for batch in numbered(10, released):
            taken.append(batch.data)
            yield batch

    prefetcher = DevicePrefetcher(counted(), CPU, ahead=2, stream=FakeStream())
    next(prefetcher)
    assert taken == [0, 1, 2]
    next(prefetcher)
    assert taken == [0, 1, 2, 3]


def test_the_consumer_waits_for_the_event_behind_finish() -> None:
    stream = FakeStream()
    places: list[int] = []

    def finish(data: int, _: object) -> int:
        assert stream.entered == 1
        places.append(stream.recorded)
        return data + 100

    prefetcher = DevicePrefetcher(numbered(2, []), CPU, finish=finish, stream=stream)
    assert [data for data, _ in prefetcher] == [100, 101]
    assert [data for _, data in stream.handed_over] == [100, 101]
    assert [place for place, _ in stream.handed_over] == [place + 1 for place in places]


def test_batches_are_taken_ahead_only_while_they_are_ready() -> None:
    taken: list[int] = []
    available = 1

    def counted() -> Iterator[HostBatch]:
        for batch in numbered(10, []):
            taken.append(batch.data)
            yield batch

    prefetcher = DevicePrefetcher(
        counted(), CPU, ahead=4, ready=lambda: len(taken) < available, stream=FakeStream()
    )
    assert next(prefetcher)[0] == 0
    assert taken == [0]
    assert next(prefetcher)[0] == 1  # none was ready: this one is waited for
    available = 4
    assert next(prefetcher)[0] == 2
    assert taken == [0, 1, 2, 3]


def test_an_error_comes_after_the_batches_before_it() -> None:
    def failing() -> Iterator[HostBatch]:
        yield HostBatch(0)
        yield HostBatch(1)
        raise OSError("disk")

    prefetcher = DevicePrefetcher(failing(), CPU, ahead=3, stream=FakeStream())
    assert next(prefetcher)[0] == 0
    assert next(prefetcher)[0] == 1
    with pytest.raises(OSError, match="disk"):
        next(prefetcher)
    with pytest.raises(StopIteration):
        next(prefetcher)


def test_a_failing_finish_still_releases_the_host_batch_after_its_copy() -> None:
    released: list[int] = []
    stream = FakeStream()

    def finish(data: int, _: object) -> int:
        raise ValueError("no")

    prefetcher = DevicePrefetcher(numbered(3, released), CPU, finish=finish, stream=stream)
    with pytest.raises(ValueError, match="no"):
        next(prefetcher)
    assert released == []
    prefetcher.close()
    assert released == [0]


def test_close_waits_for_the_copies_and_releases_everything() -> None:
    released: list[int] = []
    closed: list[bool] = []

    def batches() -> Iterator[HostBatch]:
        try:
            yield from numbered(9, released)
        finally:
            closed.append(True)

    stream = FakeStream()
    prefetcher = DevicePrefetcher(batches(), CPU, ahead=3, stream=stream)
    next(prefetcher)
    prefetcher.close()
    prefetcher.close()
    assert released == [0, 1, 2, 3]
    assert closed == [True]
    assert list(prefetcher) == []


def test_the_time_of_copies_is_counted() -> None:
    stats = Stats()
    stream = FakeStream()
    prefetcher = DevicePrefetcher(numbered(3, []), CPU, stats=stats, stream=stream)
    next(prefetcher)
    prefetcher.close()
    assert stats.copy_s == 2.0  # the batch handed out and the one ahead of it


def test_ahead_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="ahead"):
        DevicePrefetcher(iter([]), CPU, ahead=0)


# With CUDA


@needs_cuda
def test_slots_are_not_overwritten_under_a_slow_consumer_s_copies() -> None:
    """Two slots, refilled the moment they are released, while the GPU lags far behind."""
    device = torch.device("cuda", torch.cuda.current_device())
    free = [pinned_memory((SIZE,), "int32") for _ in range(2)]

    def batches() -> Iterator[HostBatch]:
        for number in range(COUNT):
            assert free, "a released slot is there whenever a batch is asked for"
            slot = free.pop()
            slot.fill(number)
            yield HostBatch(torch.from_numpy(slot), number, lambda slot=slot: free.append(slot))

    prefetcher = DevicePrefetcher(
        batches(),
        device,
        finish=lambda x, _: x * 2,
        ready=lambda: bool(free),
        stream=copy_stream(device),
    )
    weights = torch.ones(EDGE, EDGE, device=device)
    sums = []
    for data, number in prefetcher:
        for _ in range(3):
            weights = weights @ weights * 1e-4  # keeps the consumer's stream busy
        sums.append((number, (data == 2 * number).all()))
        while not free:  # the copy, not the consumer, gives the slot back
            prefetcher._give_back()
    assert len(sums) == COUNT
    assert all(bool(same) for _, same in sums)


@needs_cuda
def test_memory_of_a_dropped_batch_is_not_reused_under_the_consumer_s_kernels() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    hosts = (
        HostBatch(torch.full((SIZE,), number, dtype=torch.int32).pin_memory(), number)
        for number in range(COUNT)
    )
    weights = torch.ones(EDGE, EDGE, device=device)
    seen = []
    for data, number in DevicePrefetcher(hosts, device, ahead=2, stream=copy_stream(device)):
        for _ in range(3):
            weights = weights @ weights * 1e-4
        seen.append((number, (data == number).all()))
        del data
    assert [number for number, _ in seen] == list(range(COUNT))
    assert all(bool(same) for _, same in seen)


@needs_cuda
def test_channels_last_and_bytes_survive_the_copy() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    slot = pinned_memory((4, 16, 16, 3), "uint8")
    slot[:] = np.random.default_rng(0).integers(0, 256, slot.shape, dtype=np.uint8)
    images = image_tensors(slot, channels_last=True)
    data, _ = next(DevicePrefetcher(iter([HostBatch(images)]), device, stream=copy_stream(device)))
    assert data.dtype == torch.uint8
    assert data.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(data.cpu(), images)


@needs_cuda
def test_the_tail_on_the_device_gives_the_cpu_s_values() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    tail = Tail([Normalize(MEAN, STD)])
    finish = Finish([(0, tail)])
    batch = (BYTES.pin_memory(), torch.arange(2))
    batches = iter([HostBatch(batch)])
    prefetcher = DevicePrefetcher(batches, device, finish=finish, stream=copy_stream(device))
    (images, labels), _ = next(prefetcher)
    torch.testing.assert_close(images.cpu(), tail(BYTES), rtol=0, atol=1e-6)
    assert labels.device == device


@needs_cuda
def test_pageable_tensors_arrive_too() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    batches = iter([HostBatch({"x": torch.arange(5)})])
    data, _ = next(DevicePrefetcher(batches, device, stream=copy_stream(device)))
    assert torch.equal(data["x"].cpu(), torch.arange(5))


@needs_cuda
def test_the_allocator_gives_pinned_memory() -> None:
    array = pinned_memory((3, 5), "float32")
    assert torch.from_numpy(array).is_pinned()
    assert array.shape == (3, 5)
    assert array.flags.writeable
