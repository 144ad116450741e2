"""A rehearsal of CUDA: tensors on "cuda" in this machine's memory, their work done late.

What a GPU does is put on the queues of streams here too, and is done only when somebody has to
wait for it, as late as CUDA allows: by synchronize(), by an event, by a look at a value. Memory
that is let go of is lent again at once, the last first, unless CUDA's allocators would wait: those
of the device by the stream that it was taken on and by record_stream, that of pinned memory by the
copies that torch knows of. So whoever forgets an event reads or writes what is not there yet, or
not any more, and gets other values than the CPU gives.

A tensor on the device is a plain one whose storage lies in a block of the rehearsal's.
`torch.Tensor.device` and the like tell so, and every operator on such tensors is caught below
autograd, in which the devices of its arguments are compared and from which only what it looks at
(`host_waits`) is known at once.

It cannot show: speed; the numbers of CUDA's kernels; errors of the driver; CUDA work of several
threads (which may pin memory here, and no more); and what is C++ behind Python's back: nccl,
DataParallel, torch.compile, CUDA graphs, `torch.save` of tensors on the device.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

CPU = torch.device("cpu")
DEVICES = 2
aten = torch.ops.aten
_POISON = 0xCD  # what memory has in it that nobody wrote to
# What has to know values before it returns.
LOOKS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten._unique2.default,
    aten.bincount.default,
}


# Streams


class Stream:
    """A queue of work. `put` counts what came, `done` what has happened."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("cuda", 0) if device is None else torch.device(device)
        self.work: deque[Callable[[], object] | Event] = deque()
        self.put = self.done = 0

    def add(self, work: Callable[[], object] | Event) -> None:
        self.work.append(work)
        self.put += 1

    def advance(self) -> None:
        """Does one piece of work; a wait for an event that is not there yet makes that advance."""
        work = self.work[0]
        if isinstance(work, Event):
            if not work.done:
                work.stream.advance()
                return
        else:
            with _plainly():
                work()
        self.work.popleft()
        self.done += 1

    def synchronize(self) -> None:
        while self.work:
            self.advance()

    def wait_event(self, event: Event) -> None:
        self.add(event)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        return False


class Event:
    """A place in a stream's queue."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing
        self.stream = Stream()
        self.place = 0

    @property
    def done(self) -> bool:
        return self.stream.done >= self.place

    def record(self, stream: Stream) -> None:
        self.stream, self.place = stream, stream.put

    def query(self) -> bool:
        """Late, but not never: each look that fails lets the stream do one thing."""
        if self.done:
            return True
        self.stream.advance()
        return False

    def synchronize(self) -> None:
        while not self.done:
            self.stream.advance()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds, one for each piece of work in between."""
        if not (self.timed and end_event.timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        assert self.done
        assert end_event.done
        return float(end_event.place - self.place)


# Memory


class Block:
    """A piece of memory, which is lent again and again."""

    def __init__(self, nbytes: int, device: torch.device, stream: Stream | None) -> None:
        self.memory = np.empty(nbytes, np.uint8)
        self.buffer = torch.from_numpy(self.memory)
        self.nbytes = nbytes
        self.device = device
        self.stream = stream  # that it was taken on; None: pinned host memory
        self.used_on: set[Stream] = set()  # other streams, as far as the allocator knows
        self.waits: list[Event] = []  # since it was let go of
        self.storage = -1  # that it was lent as

    @property
    def address(self) -> int:
        return self.buffer.data_ptr()

    def view(self, of: Tensor) -> Tensor:
        """A tensor's elements, without holding the tensor's memory: as a GPU knows them."""
        nbytes = self.nbytes // of.element_size() * of.element_size()
        first = of.data_ptr() - self.address if of.numel() else 0
        assert first % of.element_size() == 0
        whole = self.buffer[:nbytes].view(of.dtype)
        return whole.as_strided(of.shape, of.stride(), first // of.element_size())


class Heap:
    """Lends memory as torch's caching allocators do. Thread-safe."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.free: list[Block] = []
        self.lock = threading.RLock()

    def take(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        stream: Stream | None,
    ) -> Tensor:
        """An uninitialised tensor."""
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        nbytes = max(-(-extent * dtype.itemsize // 64) * 64, 64)
        with self.lock, _plainly():
            block = self._again(nbytes, device, stream) or Block(nbytes, device, stream)
            self.blocks[block.address] = block
        block.waits, block.used_on = [], set()
        memory = block.memory[:]  # lives as long as a tensor that it is lent to
        weakref.finalize(memory, self._give_back, block).atexit = False
        with _plainly():
            storage = torch.from_numpy(memory).untyped_storage()
        block.storage = storage._cdata
        if stream is None:
            block.memory.fill(_POISON)
        else:
            stream.add(lambda: block.memory.fill(_POISON))
        with _plainly():
            return torch.empty(0, dtype=dtype).set_(storage, 0, shape, stride)

    def of(self, tensor: Tensor) -> Block | None:
        """The block that a tensor on the device, or on pinned memory, lies in."""
        with torch._C.DisableTorchFunction():
            if tensor.is_nested:
                return self.of(tensor._values) if hasattr(tensor, "_values") else None
            if tensor.layout != torch.strided or tensor.is_meta:
                return None
            address = torch._C.TensorBase.untyped_storage(tensor).data_ptr()
        block = self.blocks.get(address)
        if block is None and self.blocks:  # a view by way of NumPy has a storage of its own
            inside = (b for b in self.pinned() if b.address <= address < b.address + b.nbytes)
            block = next(inside, None)
        return block

    def pinned(self) -> list[Block]:
        with self.lock:
            return [block for block in self.blocks.values() if block.stream is None]

    def allocated(self, device: torch.device) -> int:
        """Bytes of the device that are lent."""
        with self.lock:
            lent = [b for b in self.blocks.values() if b.device == device and b not in self.free]
        return sum(block.nbytes for block in lent)

    def _again(self, nbytes: int, device: torch.device, stream: Stream | None) -> Block | None:
        for place in range(len(self.free) - 1, -1, -1):
            block = self.free[place]
            alike = (block.nbytes, block.device, block.stream) == (nbytes, device, stream)
            if alike and all(event.done for event in block.waits):
                return self.free.pop(place)
        return None

    def _give_back(self, block: Block) -> None:
        with self.lock:
            block.waits = [stream.record_event() for stream in block.used_on]
            self.free.append(block)


# The device


class Rehearsal:
    """The machine's CUDA devices.

    Attributes:
        host_waits: why the host had to wait for a stream, in order.
        contexts: devices on which some thread of this process has done something.
    """

    def __init__(self) -> None:
        self.heap = Heap()
        self.host_waits: list[str] = []
        self.contexts: set[int] = set()
        self.current = 0
        self.inside: torch.device | None = None
        self.streams = [Stream(torch.device("cuda", n)) for n in range(DEVICES)]
        self.all_streams: weakref.WeakSet[Stream] = weakref.WeakSet(self.streams)

    def device_of(self, tensor: Tensor) -> torch.device | None:
        """Where a tensor is; None: not on a device of the rehearsal."""
        block = self.heap.of(tensor)
        return None if block is None or block.stream is None else block.device

    def device(self, meant: Any) -> torch.device | None:
        """A CUDA device with its index; None of any other."""
        found = torch.device(meant) if meant is not None else CPU
        if found.type != "cuda":
            return None
        found = torch.device("cuda", self.current if found.index is None else found.index)
        if found.index >= DEVICES:
            raise RuntimeError("CUDA error: invalid device ordinal")
        self.contexts.add(found.index)
        return found

    def stream_of(self, device: Any = None) -> Stream:
        found = self.device("cuda" if device is None else device)
        assert found is not None
        return self.streams[found.index]

    def new_stream(self, device: Any = None, priority: int = 0) -> Stream:
        stream = Stream(self.device("cuda" if device is None else device))
        self.all_streams.add(stream)
        return stream

    def synchronize(self, device: Any = None) -> None:
        meant = self.device("cuda" if device is None else device)
        for stream in list(self.all_streams):
            if stream.device == meant:
                stream.synchronize()

    @contextmanager
    def on_stream(self, stream: Stream) -> Iterator[None]:
        index = stream.device.index
        before = self.streams[index], self.current
        self.streams[index], self.current = stream, index
        try:
            yield
        finally:
            self.streams[index], self.current = before

    @contextmanager
    def on_device(self, device: Any) -> Iterator[None]:
        before = self.current
        self.set_device(device)
        try:
            yield
        finally:
            self.current = before

    def set_device(self, device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        assert index is not None, "Expected a torch.device with a specified index"
        self.device(torch.device("cuda", index))
        if threading.current_thread() is threading.main_thread():
            self.current = index

    def new(self, like: Tensor, device: torch.device) -> Tensor:
        """Memory of the device for what is like a tensor, on the current stream."""
        stream = self.stream_of(device)
        return self.heap.take(tuple(like.shape), like.stride(), like.dtype, device, stream)

    def new_pinned(self, like: Tensor) -> Tensor:
        return self.heap.take(tuple(like.shape), like.stride(), like.dtype, CPU, None)

    def made(self, value: Tensor, device: torch.device) -> Tensor:
        """What a function made of nothing, on the device."""
        target = self.new(value, device)
        there = self.raw(target)
        self.stream_of(device).add(lambda: there.copy_(value))
        return target.requires_grad_(value.requires_grad)

    @contextmanager
    def within(self, device: torch.device | None) -> Iterator[None]:
        """While it is entered, what torch's C++ makes for its own use is on the device."""
        before, self.inside = self.inside, device
        try:
            yield
        finally:
            self.inside = before

    def wait(self, device: torch.device, why: str) -> None:
        """The host waits for the current stream."""
        self.host_waits.append(why)
        self.stream_of(device).synchronize()

    def upload(self, source: Tensor, target: Tensor, non_blocking: bool) -> Tensor:
        """Copies from the host. Only what is pinned and lies close together is not waited for."""
        device = self.device_of(target)
        assert device is not None
        stream, block = self.stream_of(device), self.heap.of(source)
        there = self.raw(target)
        alike = source.dtype == target.dtype and source.stride() == target.stride()
        if non_blocking and block is not None and (alike or source.numel() <= 1):
            here = self.raw(source)
            stream.add(lambda: there.copy_(here))
            storage = source.untyped_storage()._cdata
            if storage == block.storage or source.data_ptr() == block.address:
                block.used_on.add(stream)  # else torch does not know whose memory it is
            return target
        staged = source.detach().clone()
        stream.add(lambda: there.copy_(staged))
        self.wait(device, "copy")
        return target

    def raw(self, tensor: Tensor) -> Tensor:
        """Its elements without its memory; of a tensor elsewhere, as they are now."""
        block = self.heap.of(tensor)
        with _plainly():
            return tensor.clone() if block is None else block.view(tensor)


class Factories(TorchFunctionMode):
    """Functions that make tensors on a device."""

    def __init__(self, gpu: Rehearsal) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch._C._nn._parse_to:
            return func(*args, **kwargs)
        gpu, meant = self.gpu, kwargs.get("device")
        device = None if meant is None else gpu.device(meant)
        if device is None:
            places = (gpu.device_of(arg) for arg in args if isinstance(arg, Tensor))
            with gpu.within(next((place for place in places if place is not None), None)):
                return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "device": CPU})
        if gpu.device_of(made) is not None:
            return made
        if func in (torch.tensor, torch.as_tensor):
            return gpu.upload(made, gpu.new(made, device), non_blocking=False)
        return gpu.made(made, device)


class Kernels(TorchDispatchMode):
    """Operators on tensors of the device."""

    def __init__(self, gpu: Rehearsal) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(tensor.is_nested for tensor in tensors):
            return NotImplemented  # its own operators on its parts come here
        found = [(tensor, self.gpu.device_of(tensor)) for tensor in tensors]
        devices = {device for _, device in found if device is not None}
        if not devices and not tensors and self.gpu.inside is not None:
            return self.gpu.made(func(*args, **kwargs), self.gpu.inside)
        if not devices:
            return func(*args, **kwargs)
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        device = devices.pop()
        if func is aten.copy_.default and found[1][1] is None:
            return self.gpu.upload(args[1], args[0], non_blocking=bool((*args, False)[2]))
        indices = func in (aten.index.Tensor, aten.index_put_.default)
        for tensor, place in found:
            if place != device and not (place is None and (tensor.ndim == 0 or indices)):
                raise RuntimeError(
                    f"{func}: Expected all tensors to be on the same device, but found at least "
                    f"two devices, {device} and {place or 'cpu'}!"
                )
        by_mask = indices and any(t.dtype == torch.bool for t in tensors[1:])
        by_host = indices and any(place is None for _, place in found)
        if func in LOOKS or by_mask or by_host:
            self.gpu.wait(device, str(func))
            return self._returned(func, func(*args, **kwargs), device)
        returns = func._schema.returns
        if returns and all(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return func(*args, **kwargs)  # a view
        return self._put(func, args, kwargs, device)

    def _returned(self, func: Any, result: Any, device: torch.device) -> Any:
        """What is known already, as tensors of the device."""

        def moved(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or self.gpu.device_of(leaf) is not None:
                return leaf
            target = self.gpu.new(leaf, device)
            self.gpu.stream_of(device).synchronize()
            self.gpu.raw(target).copy_(leaf)
            return target

        return tree_map(moved, result)

    def _put(self, func: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
        """Puts an operator on the current stream; its results are there later."""

        def zeros(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).zero_()

        kept = torch.get_rng_state()
        shaped = tree_map(zeros, (args, kwargs))
        outline = func(*shaped[0], **shaped[1])  # of zeros: shapes, and what is written to
        torch.set_rng_state(kept)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        same = {id(t): g for t, g in zip(_tensors(shaped), given, strict=True)}
        results = [
            same.get(id(leaf)) if id(leaf) in same else self.gpu.new(leaf, device)
            for leaf in _tensors(outline)
        ]
        fresh = [id(leaf) not in same for leaf in _tensors(outline)]
        there = [self.gpu.raw(result) for result in results]
        raw_args, raw_kwargs = tree_map(
            lambda leaf: self.gpu.raw(leaf) if isinstance(leaf, Tensor) else leaf, (args, kwargs)
        )

        def work() -> None:
            made = _tensors(func(*raw_args, **raw_kwargs))
            for target, value, new in zip(there, made, fresh, strict=True):
                if new:
                    target.copy_(value)

        self.gpu.stream_of(device).add(work)
        left = iter(results)
        return tree_map(lambda leaf: next(left) if isinstance(leaf, Tensor) else leaf, outline)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def _plainly() -> Iterator[None]:
    """Operators act at once, whoever calls them."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch._C._ExcludeDispatchKeyGuard(keys),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


# What torch's names stand for


def _methods(gpu: Rehearsal) -> dict[str, Any]:
    """Of torch.Tensor."""
    base = torch._C.TensorBase

    def device(self: Tensor) -> torch.device:
        return gpu.device_of(self) or base.device.__get__(self)

    def is_cuda(self: Tensor) -> bool:
        return gpu.device_of(self) is not None

    def to(self: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            args = (device(args[0]), args[0].dtype, *args[1:])
        meant, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        target, here = None if meant is None else gpu.device(meant), gpu.device_of(self)
        how = {} if layout is None else {"memory_format": layout}
        if meant is None or target == here:
            return base.to(self, dtype=dtype or self.dtype, copy=copy, **how)
        if target is None:  # to the host
            assert here is not None or meant.type == "cpu", meant
            if here is not None:
                gpu.wait(here, "to the host")
                with _plainly():
                    self = gpu.raw(self).clone()
            return base.to(self, dtype=dtype or self.dtype, copy=copy, **how)
        assert here is None, "copies between two devices are not rehearsed"
        source = base.to(self.detach(), dtype=dtype or self.dtype, **how)
        like = torch.empty_like(source, pin_memory=False)
        moved = gpu.upload(source, gpu.new(like, target), non_blocking)
        return moved.requires_grad_(self.requires_grad)

    def cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
        return to(self, "cuda" if device is None else device, non_blocking=non_blocking)

    def cpu(self: Tensor) -> Tensor:
        return to(self, CPU)

    def is_pinned(self: Tensor, device: Any = None) -> bool:
        block = gpu.heap.of(self)
        return block is not None and block.stream is None

    def pin_memory(self: Tensor, device: Any = None) -> Tensor:
        if gpu.device_of(self) is not None:
            raise RuntimeError("cannot pin 'torch.cuda' only dense CPU tensors can be pinned")
        return self if is_pinned(self) else gpu.new_pinned(self).copy_(self)

    def record_stream(self: Tensor, stream: Stream) -> None:
        block = gpu.heap.of(self)
        assert block is not None
        assert block.stream is not None
        if stream is not block.stream:
            block.used_on.add(stream)

    def numpy(self: Tensor, **kwargs: Any) -> Any:
        if gpu.device_of(self) is not None:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return base.numpy(self, **kwargs)

    def tolist(self: Tensor) -> Any:
        return base.tolist(cpu(self))

    return {
        "device": property(device),
        "is_cuda": property(is_cuda),
        "to": to,
        "cuda": cuda,
        "cpu": cpu,
        "is_pinned": is_pinned,
        "pin_memory": pin_memory,
        "record_stream": record_stream,
        "numpy": numpy,
        "tolist": tolist,
    }


def _cuda(gpu: Rehearsal) -> dict[str, Any]:
    """Of torch.cuda."""
    about = SimpleNamespace(
        name="rehearsal", major=9, minor=0, total_memory=1 << 30, multi_processor_count=1, uuid="0"
    )
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: DEVICES,
        "current_device": lambda: gpu.current,
        "set_device": gpu.set_device,
        "device": gpu.on_device,
        "Stream": gpu.new_stream,
        "Event": Event,
        "stream": gpu.on_stream,
        "current_stream": gpu.stream_of,
        "synchronize": gpu.synchronize,
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: gpu.heap.allocated(gpu.device(device or "cuda")),
        "get_device_properties": lambda device=None: about,
        "get_device_name": lambda device=None: about.name,
        "is_bf16_supported": lambda: True,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
    }


def _accelerator(gpu: Rehearsal) -> dict[str, Any]:
    """Of torch.accelerator, which DataLoader asks."""
    return {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: gpu.current,
        "current_stream": gpu.stream_of,
        "set_device_index": gpu.set_device,
    }


def _with_pinned(gpu: Rehearsal, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of torch's that may be asked for pinned memory, on any thread."""

    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        found = function(*args, **kwargs)
        return gpu.new_pinned(found).copy_(found) if pin_memory else found

    return made


def _grouped(gpu: Rehearsal, function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.optim's grouping of tensors, by devices as the rehearsal has them."""

    def groups(lists: Any, *args: Any) -> Any:
        found = function(lists, *args)
        return {
            (tensors[0][0].device, dtype): (tensors, indices)
            for (_, dtype), (tensors, indices) in found.items()
        }

    return groups


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """One whose first argument is the type of a device."""
    return lambda device="cuda", *args, **kwargs: function("cpu", *args, **kwargs)


@contextmanager
def rehearsed(patch: pytest.MonkeyPatch) -> Iterator[Rehearsal]:
    """While it is entered, this thread has two CUDA devices."""
    gpu = Rehearsal()
    for name, value in _methods(gpu).items():
        patch.setattr(torch.Tensor, name, value)
    for module, names in ((torch.cuda, _cuda(gpu)), (torch.accelerator, _accelerator(gpu))):
        for name, value in names.items():
            patch.setattr(module, name, value)
    for name in ("empty", "zeros", "empty_like"):
        patch.setattr(torch, name, _with_pinned(gpu, getattr(torch, name)))
    name = "_group_tensors_by_device_and_dtype"
    patch.setattr(torch._C, name, _grouped(gpu, getattr(torch._C, name)))
    patch.setattr(torch, "autocast", _on_cpu(torch.autocast))
    patch.setattr(torch.amp, "GradScaler", _on_cpu(torch.amp.GradScaler))
    with Factories(gpu), Kernels(gpu):
        yield gpu
    for stream in list(gpu.all_streams):
        stream.synchronize()
