"""Probes of the first CUDA device: rates of copies, and speed-ups by settings."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from fastio.diagnose.facts import GpuFacts

_COPY_BYTES = 64 << 20
_EDGE = 4096  # of the matrices
_IMAGES = (32, 128, 56, 56)  # of the convolution
_NVIDIA_SMI = ("nvidia-smi", "--format=csv,noheader,nounits")


def gpu_facts() -> GpuFacts | None:
    """Returns the facts of the first CUDA device, or None if torch finds none."""
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda", 0)
    about = torch.cuda.get_device_properties(device)
    pinned = copy_rate(device, pinned=True)
    return GpuFacts(
        name=about.name,
        count=torch.cuda.device_count(),
        capability=(about.major, about.minor),
        memory_bytes=about.total_memory,
        tf32=torch.backends.cuda.matmul.allow_tf32,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        pinned_bytes_s=pinned,
        # Asked for right behind a copy: an idle link goes to sleep.
        link=_link("current", about),
        best_link=_link("max", about),
        pageable_bytes_s=copy_rate(device, pinned=False),
        flops=matmul_rates(device, (about.major, about.minor)),
        channels_last_gain=channels_last_gain(device),
    )


def copy_rate(device: torch.device, *, pinned: bool, times: int = 8) -> float:
    """Returns the bytes per second of copies to a device."""
    host = torch.zeros(_COPY_BYTES, dtype=torch.uint8, pin_memory=pinned)
    there = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    seconds = _seconds(device, lambda: there.copy_(host, non_blocking=pinned), times)
    return _COPY_BYTES / seconds


def matmul_rates(device: torch.device, capability: tuple[int, int]) -> dict[str, float]:
    """Returns the floating-point operations per second of a matrix product, by type."""
    rates = {}
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for name, dtype, tf32 in (
            ("float32", torch.float32, False),
            ("tf32", torch.float32, True),
            ("bfloat16", torch.bfloat16, False),
        ):
            if name != "float32" and capability < (8, 0):
                continue
            torch.backends.cuda.matmul.allow_tf32 = tf32
            one = torch.ones((_EDGE, _EDGE), dtype=dtype, device=device)
            out = torch.empty_like(one)
            seconds = _seconds(device, _product(one, out), 5)
            rates[name] = 2 * _EDGE**3 / seconds
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return rates


def channels_last_gain(device: torch.device) -> float:
    """Returns the speed-up of a half-precision convolution by channels_last memory."""
    layer = torch.nn.Conv2d(_IMAGES[1], _IMAGES[1], 3, padding=1).requires_grad_(False)
    layer = layer.to(device, torch.float16)
    images = torch.zeros(_IMAGES, dtype=torch.float16, device=device)
    contiguous = _seconds(device, lambda: layer(images), 10)
    layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = images.to(memory_format=torch.channels_last)
    return contiguous / _seconds(device, lambda: layer(images), 10)


def _product(one: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.mm(one, one, out=out)


def _seconds(device: torch.device, work: Callable[[], object], times: int) -> float:
    """Returns the seconds that an operation takes on the device after a warm-up."""
    work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    stream = torch.cuda.current_stream(device)
    begin.record(stream)
    for _ in range(times):
        work()
    end.record(stream)
    end.synchronize()
    seconds: float = begin.elapsed_time(end) / 1e3
    return max(seconds / times, 1e-9)


def _link(which: str, about: Any) -> tuple[int, int] | None:
    """Returns PCIe generation and lanes, "current" or "max"; None if nvidia-smi does not report
    them.

    Args:
        which: of the two.
        about: the device's properties. nvidia-smi counts devices that CUDA_VISIBLE_DEVICES hides,
            so the device is named by what is its alone.
    """
    query = f"--query-gpu=pcie.link.gen.{which},pcie.link.width.{which}"
    device = f"--id=GPU-{about.uuid}"
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(
            [*_NVIDIA_SMI, device, query], capture_output=True, text=True, timeout=10, check=True
        )
        generation, width = done.stdout.split(",")
        return int(generation), int(width)
    return None
