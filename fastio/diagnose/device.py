"""What computes in a bench: a model, or an accelerator that is emulated; and when it did."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fastio.tensors.trees import map_leaves, to_device

Interval = tuple[float, float]  # begin and end, in seconds of time.perf_counter()


def total(intervals: list[Interval]) -> float:
    """Returns the seconds of intervals that do not overlap."""
    return sum(end - start for start, end in intervals)


def within(intervals: list[Interval], begin: float, stop: float) -> list[Interval]:
    """Returns the parts of intervals that lie between two moments."""
    cut = ((max(start, begin), min(end, stop)) for start, end in intervals)
    return [(start, end) for start, end in cut if end > start]


def subtract(intervals: list[Interval], others: list[Interval]) -> list[Interval]:
    """Returns intervals (ascending, disjoint) without the parts that others cover."""
    left = []
    holes = sorted(others)
    at = 0
    for start, end in intervals:
        while at < len(holes) and holes[at][1] <= start:
            at += 1
        for hole_start, hole_end in islice(holes, at, None):
            if hole_start >= end or start >= end:
                break
            if hole_start > start:
                left.append((start, hole_start))
            start = max(start, hole_end)
        if start < end:
            left.append((start, end))
    return left


# --- Devices --------------------------------------------------------------------------------------


class Device:
    """A consumer of batches, which records when it was busy. This base class waits for nothing.

    Attributes:
        asynchronous: whether it computes in parallel with the loop's thread.
        computing: intervals in which it computed, one per step that has ended.
        copying: intervals in which batches were copied to it, where that is known per step.
        blocked: intervals in which the loop's thread waited for copies.
    """

    asynchronous = True

    def __init__(self) -> None:
        self.computing: list[Interval] = []
        self.copying: list[Interval] = []
        self.blocked: list[Interval] = []

    def step(self, batch: Any, samples: int) -> None:
        """Takes a batch; returns when the loop may fetch the next one."""

    def wait(self) -> None:
        """Returns when all steps have ended."""

    def reset(self) -> None:
        """Clears the intervals; lists that were returned before keep their values."""
        self.computing, self.copying, self.blocked = [], [], []


class EmulatedAccelerator(Device):
    """Takes the time that an accelerator would take, without computing.

    As on a GPU, steps run one after the other beside the loop: a step begins when its batch is
    there and the step before has ended, on a schedule of absolute times, so that a thread that
    wakes late delays nothing. The loop is one step ahead at most.

    Args:
        rate: samples per second.
        bus: bandwidth of copies to it, in bytes per second; None for copies that take no time.
        blocking: whether the loop waits for each copy, and the copy for the step before it, as with
            `.to(device)` from pageable memory. If False, copies run ahead of their steps.
    """

    def __init__(self, rate: float, bus: float | None = None, blocking: bool = False) -> None:
        super().__init__()
        if rate <= 0 or (bus is not None and bus <= 0):
            raise ValueError(
                f"the rates of an emulated accelerator must be above 0, got {rate} and {bus}"
            )
        self._rate = rate
        self._bus = bus
        self._blocking = blocking
        self._free_s = 0.0  # when the last step ends
        self._bus_free_s = 0.0  # when the last copy ends

    def step(self, batch: Any, samples: int) -> None:
        there = time.perf_counter()
        if self._bus is not None:
            there = self._copied(there, tree_bytes(batch) / self._bus)
        start = max(there, self._free_s)
        self._free_s = start + samples / self._rate
        self.computing.append((start, self._free_s))
        _sleep_until(start)

    def wait(self) -> None:
        _sleep_until(self._free_s)

    def _copied(self, now: float, seconds: float) -> float:
        """Returns when a copy that may begin now has ended."""
        start = max(now, self._free_s if self._blocking else self._bus_free_s)
        end = self._bus_free_s = start + seconds
        self.copying.append((start, end))
        if self._blocking:
            _sleep_until(end)
            self.blocked.append((now, end))
        return end


def _sleep_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


def tree_bytes(batch: Any) -> int:
    """Returns the bytes of a batch's tensors."""
    sizes: list[int] = []
    map_leaves(lambda leaf: sizes.append(leaf.nbytes) if isinstance(leaf, Tensor) else None, batch)
    return sum(sizes)


TrainStep = Callable[[Any], Any]  # takes a batch: forward, backward, update


class CpuModel(Device):
    """A model that is computed on the loop's own cores."""

    asynchronous = False

    def __init__(self, train_step: TrainStep) -> None:
        super().__init__()
        self._train_step = train_step

    def step(self, batch: Any, samples: int) -> None:
        begin = time.perf_counter()
        self._train_step(batch)
        self.computing.append((begin, time.perf_counter()))


class CudaModel(Device):
    """A model on a CUDA device. The loop runs at most one step ahead of it.

    Args:
        train_step: launches a step on the current stream. Time that it waits counts for the loop.
        device: device of the model and the batches.
        blocking: whether batches come in host memory and the loop copies them itself.
    """

    def __init__(self, train_step: TrainStep, device: torch.device, blocking: bool = False) -> None:
        super().__init__()
        self._train_step = train_step
        self._device = device
        self._blocking = blocking
        self._running: deque[tuple[Any, Any]] = deque()
        torch.cuda.synchronize(device)
        # An event gives only the time since another event. The time of this one on the host's clock
        # is known, so the times of all others follow from it.
        self._zero = self._event()
        self._zero.synchronize()
        self._zero_s = time.perf_counter()

    def step(self, batch: Any, samples: int) -> None:
        if self._blocking:
            begin = time.perf_counter()
            batch = _copied_now(batch, self._device)
            self.blocked.append((begin, time.perf_counter()))
        start = self._event()
        self._train_step(batch)
        # Work is only queued here. The time of a step is known when its end event has happened.
        self._running.append((start, self._event()))
        while len(self._running) > 1:
            self._note_oldest()

    def wait(self) -> None:
        while self._running:
            self._note_oldest()

    def _note_oldest(self) -> None:
        start, end = self._running.popleft()
        end.synchronize()
        first, last = (self._zero.elapsed_time(event) / 1e3 for event in (start, end))
        self.computing.append((self._zero_s + first, self._zero_s + last))

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def _copied_now(batch: Any, device: torch.device) -> Any:
    """Returns a batch copied as plain training loops do: from pageable memory, blocking."""
    return map_leaves(
        lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf,
        batch,
    )


def resident(batch: Any, device: torch.device | None) -> Any:
    """Returns a copy of a batch in its own memory on a device."""
    kept = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)
    return kept if device is None else to_device(kept, device)
