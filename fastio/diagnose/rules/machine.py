"""Rules of the machine, torch and the model: cores, quotas, limits, settings, the GPU."""

from __future__ import annotations

from typing import Any

from fastio.diagnose import thresholds
from fastio.diagnose.cases import Case
from fastio.diagnose.findings import COPIES_AHEAD
from fastio.diagnose.rules.rule import Rule


def _throttled(case: Case) -> bool:
    machine = case.machine
    return machine.quota < machine.allowed_cores and machine.throttled_share > thresholds.THROTTLED  # type: ignore[no-any-return]


def _shared_cores(case: Case) -> dict[str, Any] | None:
    """Returns what other processes use, where they leave too few cores."""
    machine = case.machine
    allowed = machine.allowed_cores or machine.cores
    if allowed - machine.others_cores >= thresholds.FREE_CORES * machine.cores:
        return None
    return {"allowed": allowed}


def _reopened(case: Case) -> bool:
    """Returns whether there are more shards than files that a loader keeps open."""
    most, data = case.machine.open_files, case.data
    many = data.packed and data.files >= most // thresholds.OPEN_SHARDS
    return many and most <= thresholds.FEW_OPEN_FILES  # type: ignore[no-any-return]


_OF_THE_MACHINE = (
    Rule(
        "threads",
        lambda c: (
            (wanted := c.ranks * c.settings.torch_threads) > c.machine.cores
            and {"wanted": wanted, "each": max(1, c.machine.cores // c.ranks)}
        ),
        "torch starts {wanted} threads for operators on {machine.cores} cores",
        "set OMP_NUM_THREADS={each}, or call torch.set_num_threads()",
    ),
    Rule(
        "threads",
        lambda c: (
            (threads := c.ranks * c.threads) > thresholds.THREADS_PER_CORE * c.machine.cores
            and {"all": threads, "each": max(1, c.machine.cores // c.ranks)}
        ),
        "{all} loading threads share {machine.cores} cores",
        "Loader(num_workers={each}) in each process",
    ),
    Rule(
        "machine",
        _throttled,
        "the container used up its CPU quota ({machine.quota:g} of {machine.allowed_cores} cores) "
        "in {machine.throttled_share:.0%} of the periods",
        "raise the limit (docker --cpus, resources.limits.cpu), or start fewer threads",
    ),
    Rule(
        "machine",
        _shared_cores,
        "other processes used {machine.others_cores:.1f} of the {allowed} cores during the "
        "measurement",
        "rates are lower than on an idle machine: find these processes with `top`, and measure "
        "again without them. Gains compare measurements made in turns, and change less",
        ("{images.threads} threads are {images.scaling:.1f} x as fast as one",),
    ),
    Rule(
        "machine",
        lambda c: (
            c.machine.simd == "portable"
            and (c.facts.data is None or c.data.kind not in ("tables", "tokens"))
        ),
        "this processor has no AVX2, so block records decode no faster than JPEGs",
        "use a machine with AVX2, or --codec raw where storage is cheap",
    ),
    Rule(
        "memory",
        lambda c: c.machine.swapped_bytes > thresholds.SWAPPED * c.machine.memory_bytes,
        "the system has swapped out {machine.swapped_bytes:size} of memory",
        "end processes that are not needed, or use smaller batches and less prefetching",
    ),
    Rule(
        "memory",
        lambda c: (
            c.machine.shm_bytes < thresholds.SMALL_SHM
            and {"batch": c.use.batch_size * c.use.crop**2 * 4 * 3}
        ),  # float32 pixels
        "/dev/shm has {machine.shm_bytes:size}, and DataLoader's workers send batches of "
        "{batch:size} through it",
        "start the container with --shm-size 8g or --ipc host; fastio's own threads need none",
    ),
    Rule(
        "settings",
        lambda c: _reopened(c) and {"most": c.facts.machine.most_open_files or 65536},
        "a process may open {machine.open_files:,} files, and shards get a quarter of them: most "
        "of the {data.files:,} shards are opened again for each read",
        "raise the limit: ulimit -n {most}",
    ),
    Rule(
        "memory",
        lambda c: c.machine.huge_pages == "never" and c.data.kind == "tables",
        "the system provides no huge pages, which make random rows in memory about twice as fast",
        "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    ),
)


def _faster_product(case: Case, dtype: str) -> dict[str, float] | None:
    """Returns how much faster a matrix product of a type is than one of float32, if it is."""
    flops = case.gpu.flops
    times = flops.get(dtype, 0.0) / flops.get("float32", 1.0)
    return {"times": times} if "float32" in flops and times > thresholds.FASTER else None


def _slower_link(case: Case) -> bool:
    now, best = (2**generation * lanes for generation, lanes in (case.gpu.link, case.gpu.best_link))
    return now < best  # type: ignore[no-any-return]


_OF_THE_MODEL = (
    Rule(
        "machine",
        lambda c: (
            c.settings.nvidia
            and c.facts.gpu is None
            and {
                "why": "finds no usable driver"
                if c.facts.settings.torch_cuda
                else "was built without CUDA"
            }
        ),
        "there is an NVIDIA device, but torch {machine.torch} {why}",
        "install torch for CUDA (pytorch.org/get-started), or a driver that fits it",
    ),
    Rule(
        "memory",
        lambda c: (
            c.facts.gpu is None and c.settings.allocator == "malloc" and c.settings.other_allocator
        ),
        "training on the CPU uses malloc, which returns large blocks to the system each time",
        "preload another one: LD_PRELOAD={settings.other_allocator} python train.py",
    ),
    Rule(
        "settings",
        lambda c: not c.gpu.tf32 and _faster_product(c, "tf32"),
        "matrix products in float32 do not use TF32 unless the program enables it",
        'call torch.set_float32_matmul_precision("high")',
        ("a matrix product takes 1/{times:.1f} of the time on this {gpu.name}",),
    ),
    Rule(
        "settings",
        lambda c: _faster_product(c, "bfloat16"),
        "models in float32 leave most of the GPU unused",
        'use torch.autocast("cuda", torch.bfloat16) and torch.compile(model); fastio train --amp',
        ("a matrix product in bfloat16 takes 1/{times:.1f} of the time in float32",),
    ),
    Rule(
        "settings",
        lambda c: c.images and c.gpu.channels_last_gain > thresholds.FASTER,
        "convolutional models in the contiguous layout convert or compute slowly",
        "use model.to(memory_format=torch.channels_last) and Loader(channels_last=True); fastio "
        "train --channels-last",
        ("a convolution takes 1/{gpu.channels_last_gain:.1f} of the time",),
    ),
    Rule(
        "copy",
        lambda c: c.gpu.pinned_bytes_s > thresholds.FASTER * c.gpu.pageable_bytes_s,
        "copies from memory that is not pinned are slow, and the loop waits for them",
        COPIES_AHEAD,
        (
            "{gpu.pinned_bytes_s:size}/s from pinned memory, "
            "{gpu.pageable_bytes_s:size}/s from other",
        ),
    ),
    Rule(
        "machine",
        _slower_link,
        "the GPU's link runs at PCIe {gpu.link[0]} x{gpu.link[1]}, below the possible "
        "{gpu.best_link[0]} x{gpu.best_link[1]}",
        "use another slot, or change the firmware's PCIe settings (some GPUs slow their link down "
        "while idle)",
    ),
)

MACHINE_RULES = (*_OF_THE_MACHINE, *_OF_THE_MODEL)
