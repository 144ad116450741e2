"""Batches on their device: a stream of copies that runs ahead of the consumer.

The flow on a CUDA device, for every batch::

    pinned host memory --copy stream--> device --copy stream--> finish --> consumer's stream
                             |                      |
                             copied: slot released  finished: the consumer's stream waits for it

A host batch is given back only after the event `copied`, so a slot is never overwritten under a
copy. The consumer's stream waits for `finished`, and every tensor is recorded on that stream, so
that the allocator does not hand its memory to a later copy while the consumer's kernels still
read it. On a CPU, and on accelerators without such streams, the same code runs without them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastio.errors import warn
from fastio.runtime.lifecycle import Owner
from fastio.stats import Stats
from fastio.tensors.ragged import dense
from fastio.tensors.trees import Tree, map_leaves, to_device

# Devices

Device = torch.device


def resolve_device(device: Device | str | int | None) -> Device | None:
    """Returns a device as a torch.device; "cuda" becomes the current CUDA device, with its index.

    Raises:
        RuntimeError: torch finds no such device.
    """
    if device is None:
        return None
    meant = torch.device(device)
    kinds = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
    if meant.type in kinds and not kinds[meant.type].is_available():
        name = meant.type.upper()
        raise RuntimeError(f"device={device!r}: torch finds no {name} device on this machine")
    if meant.type != "cuda":
        return meant
    index, count = meant.index, torch.cuda.device_count()
    if index is not None and index >= count:
        raise RuntimeError(
            f"device={device!r}: this machine has {count} CUDA devices, numbered from cuda:0"
        )
    # "cuda" alone is not equal to any with an index.
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)


def current(device: Device | None) -> AbstractContextManager[Any]:
    """Makes a CUDA device the current one of this thread inside a `with` block.

    Without it, torch would also initialise the first device where it is not told one (as when a
    thread of DataLoader pins memory), which takes hundreds of megabytes there.
    """
    if device is None or device.type != "cuda":
        return nullcontext()
    context: AbstractContextManager[Any] = torch.cuda.device(device)
    return context


def has_pinned_memory() -> bool:
    """Returns whether an accelerator can use page-locked memory; warns if not, as torch does."""
    if torch.cuda.is_available():
        return True
    warn(
        "'pin_memory' argument is set as true but no accelerator is found: batches are delivered "
        "in ordinary memory"
    )
    return False


# Copying ahead


@dataclass(slots=True)
class HostBatch:
    """One batch in host memory, on its way to the device.

    Attributes:
        data: the batch as a tree.
        info: what is delivered with the data.
        release: returns its memory; called once, when no copy reads it any more. None if the memory
            is freed together with the tensors of `data`.
    """

    data: Tree
    info: Any = None
    release: Callable[[], None] | None = None


class CopyStream:
    """A new CUDA stream for copies to `device`, apart from the consumer's stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # A batch callable may hold weights that the consumer's stream is still filling.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def active(self) -> AbstractContextManager[Any]:
        """Returns a context in which the device work of this thread runs on this stream."""
        context: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def record(self, *, timed: bool = False) -> torch.cuda.Event:
        """Returns an event that completes after everything put on this stream so far.

        Args:
            timed: whether it records a time, which makes waiting for it slower.
        """
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def hand_over(self, event: torch.cuda.Event, data: Tree) -> None:
        """Makes the consumer's stream wait for `event`, and marks `data` as used by that stream."""
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_event(event)

        def use(leaf: Any) -> Any:
            for part in dense(leaf) if isinstance(leaf, Tensor) else (leaf,):
                if part.is_cuda if isinstance(part, Tensor) else hasattr(part, "record_stream"):
                    part.record_stream(consumer)
            return leaf

        map_leaves(use, data)


def copy_stream(device: Device | None) -> CopyStream | None:
    """Returns a new stream for copies to a device; None if the device needs none."""
    return CopyStream(device) if device is not None and device.type == "cuda" else None


class DevicePrefetcher:
    """Yields (data on the device, info) for each batch of an iterator of host batches.

    With a stream, up to `ahead` batches after the one that is delivered are copied meanwhile. An
    error of `batches` or `finish` is raised after the batches before it were delivered; the next
    call returns the batch after it. Not thread-safe: for one consumer.

    Args:
        batches: the host batches; tensors in pinned memory are copied asynchronously.
        device: the device; None leaves the data where it is. A CUDA device has an index.
        finish: called with the data on the device and its info, on the copy stream.
        ahead: batches to copy ahead, at least 1.
        ready: returns whether next(batches) would return at once. Without it, a batch is delivered
            only after the `ahead` batches after it have arrived.
        stats: its `copy_s` and `transform_s` are increased.
        stream: see `copy_stream`; one for all epochs, because torch does not reuse the memory of
            one stream on another. None copies without one.
    """

    def __init__(
        self,
        batches: Iterator[HostBatch],
        device: torch.device | None,
        *,
        finish: Callable[[Tree, Any], Tree] | None = None,
        ahead: int = 1,
        ready: Callable[[], bool] | None = None,
        stats: Stats | None = None,
        stream: CopyStream | None = None,
    ) -> None:
        if ahead < 1:
            raise ValueError(f"ahead must be at least 1, got {ahead}")
        self._batches = batches
        self._device = device
        self._finish = finish
        self._ahead = ahead
        self._ready = ready
        self._stats = stats
        self._stream = stream
        # Batches to hand out: the data, their info, and the event after which the data may be used.
        self._finished: deque[tuple[Tree, Any, torch.cuda.Event]] = deque()
        # Batches that are being copied: the copies run between the two events.
        self._copying: deque[tuple[HostBatch, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._error: Exception | None = None  # what came instead of the next batch
        self._owner = Owner()

    def __iter__(self) -> DevicePrefetcher:
        return self

    def __next__(self) -> tuple[Tree, Any]:
        if self._stream is None:
            host = next(self._batches)
            data = host.data if self._device is None else to_device(host.data, self._device)
            return self._finished_data(data, host.info), host.info
        self._give_back()
        if not self._finished and self._error is None:
            self._put_next(self._stream)
        while (
            len(self._finished) <= self._ahead
            and self._error is None
            and (self._ready is None or self._ready())
        ):
            self._put_next(self._stream)
        if not self._finished:
            assert self._error is not None
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # whose traceback knows this frame, and those that hold the batch
        data, info, event = self._finished.popleft()
        self._stream.hand_over(event, data)
        return data, info

    def close(self) -> None:
        """Waits for copies in progress, returns all memory and closes `batches`. Idempotent."""
        batches, self._batches = self._batches, iter(())
        self._error = None
        self._finished.clear()
        if not self._owner.is_here:  # a forked child cannot use CUDA, nor its parent's events
            self._copying.clear()
        for _, _, copied in self._copying:
            copied.synchronize()
        self._give_back()
        close = getattr(batches, "close", None)
        if close is not None:
            close()

    def _finished_data(self, data: Tree, info: Any) -> Tree:
        if self._finish is None:
            return data
        began_s = time.perf_counter()
        data = self._finish(data, info)
        if self._stats is not None:
            self._stats.transform_s += time.perf_counter() - began_s
        return data

    def _put_next(self, stream: CopyStream) -> None:
        """Takes one host batch, and puts its copy and `finish` on the stream."""
        try:
            host = next(self._batches)
            with stream.active():
                start = stream.record(timed=True)
                try:
                    data = host.data if self._device is None else to_device(host.data, self._device)
                finally:  # also a copy that failed half-way may still be reading
                    self._copying.append((host, start, stream.record(timed=True)))
                finished = self._finished_data(data, host.info)
                self._finished.append((finished, host.info, stream.record()))
        except Exception as error:
            self._error = error

    def _give_back(self) -> None:
        while self._copying:
            host, start, copied = self._copying[0]
            if not copied.query():  # type: ignore[no-untyped-call]
                return
            self._copying.popleft()
            if self._stats is not None:
                self._stats.copy_s += start.elapsed_time(copied) / 1e3
            if host.release is not None:
                host.release()
