"""Rules on the model's side: torch's build and settings, copies to the GPU, the allocator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fastio.diagnose.costs import expected
from fastio.diagnose.facts import Facts, GpuFacts
from fastio.diagnose.findings import COPIES_AHEAD, Culprit, Finding, faster_model
from fastio.diagnose.options import Use

_FASTER = 1.2


def build(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a GPU that torch does not see."""
    settings, machine = facts.settings, facts.machine
    if settings is None or not settings.nvidia or facts.gpu is not None:
        return
    why = "was built without CUDA" if settings.torch_cuda is None else "finds no usable driver"
    yield Finding(
        "machine",
        f"there is an NVIDIA device, but torch {machine.torch if machine else ''} {why}",
        "install torch for CUDA (pytorch.org/get-started), or a driver that fits it",
    )


def slow_model(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports that the model limits the rate."""
    now = expected(facts, use)
    if now is None or now.waits_for(cold=True) != "compute":
        return
    faster = replace(now, compute_s=0.0).samples_per_s(cold=True)
    yield Finding(
        "compute",
        "training waits for the model: data is ready before it is needed",
        faster_model(),
        None,
        (f"{1 / now.compute_s:,.0f} samples/s by the model, {faster:,.0f} by the loader",),
    )


def allocator(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests another memory allocator for training on the CPU."""
    settings = facts.settings
    if settings is None or facts.gpu is not None or settings.allocator != "malloc":
        return
    if settings.other_allocator is not None:
        yield Finding(
            "memory",
            "training on the CPU uses malloc, which returns large blocks to the system each time",
            f"preload another one: LD_PRELOAD={settings.other_allocator} python train.py",
        )


def tf32(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests TF32 for matrix products in float32."""
    gpu = facts.gpu
    if gpu is None or gpu.tf32:
        return
    times = _times_float32(gpu, "tf32")
    yield from _where_faster(
        times,
        "settings",
        "matrix products in float32 do not use TF32 unless the program enables it",
        'call torch.set_float32_matmul_precision("high")',
        f"a matrix product takes 1/{times:.1f} of the time on this {gpu.name}",
    )


def autocast(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests autocast to half precision."""
    gpu = facts.gpu
    if gpu is None:
        return
    times = _times_float32(gpu, "bfloat16")
    yield from _where_faster(
        times,
        "settings",
        "models in float32 leave most of the GPU unused",
        'use torch.autocast("cuda", torch.bfloat16) and torch.compile(model); fastio train --amp',
        f"a matrix product in bfloat16 takes 1/{times:.1f} of the time in float32",
    )


def channels_last(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests channels-last memory for convolutions."""
    gpu = facts.gpu
    if gpu is None or facts.images is None:
        return
    times = gpu.channels_last_gain or 0.0
    yield from _where_faster(
        times,
        "settings",
        "convolutional models in the contiguous layout convert or compute slowly",
        "use model.to(memory_format=torch.channels_last) and Loader(channels_last=True); fastio "
        "train --channels-last",
        f"a convolution takes 1/{times:.1f} of the time",
    )


def pinned(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests pinned memory for copies to the GPU."""
    gpu = facts.gpu
    if gpu is None or not gpu.pinned_bytes_s or not gpu.pageable_bytes_s:
        return
    yield from _where_faster(
        gpu.pinned_bytes_s / gpu.pageable_bytes_s,
        "copy",
        "copies from memory that is not pinned are slow, and the loop waits for them",
        COPIES_AHEAD,
        f"{gpu.pinned_bytes_s / 1e9:.1f} GB/s from pinned memory, "
        f"{gpu.pageable_bytes_s / 1e9:.1f} from other",
    )


def _times_float32(gpu: GpuFacts, dtype: str) -> float:
    """Returns the speed-up of a matrix product over float32; 0 if unknown."""
    if dtype not in gpu.flops or "float32" not in gpu.flops:
        return 0.0
    return gpu.flops[dtype] / gpu.flops["float32"]


def _where_faster(
    times: float, culprit: Culprit, waits_for: str, advice: str, evidence: str
) -> Iterator[Finding]:
    """Yields a finding about an operation that can be `times` as fast, if it is worth it."""
    if times > _FASTER:
        yield Finding(culprit, waits_for, advice, None, (evidence,))


def link(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a GPU with fewer PCIe lanes than it supports."""
    gpu = facts.gpu
    if gpu is None or gpu.link is None or gpu.best_link is None:
        return
    now, best = (2 ** one[0] * one[1] for one in (gpu.link, gpu.best_link))
    if now < best:
        yield Finding(
            "machine",
            f"the GPU's link runs at PCIe {gpu.link[0]} x{gpu.link[1]}, below the possible "
            f"{gpu.best_link[0]} x{gpu.best_link[1]}",
            "use another slot, or change the firmware's PCIe settings (some GPUs slow their link "
            "down while idle)",
        )


MODEL_RULES = (build, allocator, tf32, autocast, channels_last, pinned, link)
