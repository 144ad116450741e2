"""Rules of the machine and its settings: cores, quotas, threads, instruction sets, limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fastio.diagnose.costs import decode_rate, expected, threads_of
from fastio.diagnose.facts import Facts
from fastio.diagnose.findings import THREADS, Finding
from fastio.diagnose.options import Use

_FREE = 0.75  # of the cores that are to be used: where others leave less, it is worth a line
_FEW_FILES = 1024
_SWAPPED = 0.05  # of the memory
_SHM_BYTES = 1 << 30
_FLOAT_BYTES = 4 * 3  # of a pixel, as DataLoader's workers send it


def few_threads(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a loader with fewer threads than cores."""
    machine, now = facts.machine, expected(facts, use)
    if machine is None or now is None or now.waits_for(cold=True) != "decode":
        return
    threads = threads_of(facts, use)
    if threads >= machine.cores:
        return
    best = decode_rate(facts, use, machine.cores)
    if not best:
        return
    yield Finding(
        "threads",
        f"you wait for {threads} threads to decode, on {machine.cores} cores",
        THREADS,
        now.gain_of(replace(now, prep_s=1 / best)),
        (f"{best:,.0f} samples/s with {machine.cores}, {1 / now.prep_s:,.0f} with {threads}",),
    )


def many_threads(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports more threads than cores on a machine whose processor also computes the model."""
    machine, settings = facts.machine, facts.settings
    if machine is None or settings is None:
        return
    ranks, cores = settings.local_ranks, machine.cores
    wanted = ranks * settings.torch_threads
    if wanted > cores:
        yield Finding(
            "threads",
            f"torch starts {wanted} threads for operators on {cores} cores",
            f"set OMP_NUM_THREADS={max(1, cores // ranks)}, or call torch.set_num_threads()",
        )
    loader = threads_of(facts, use) * ranks
    if loader > 2 * cores:
        yield Finding(
            "threads",
            f"{loader} loading threads share {cores} cores",
            f"Loader(num_workers={max(1, cores // ranks)}) in each process",
        )


def quota(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a container's CPU quota that is used up."""
    machine = facts.machine
    if machine is None or machine.quota is None:
        return
    held = machine.throttled_share
    if machine.quota < machine.allowed_cores and held is not None and held > 0.05:
        yield Finding(
            "machine",
            f"the container used up its CPU quota ({machine.quota:g} of {machine.allowed_cores} "
            f"cores) in {held:.0%} of the periods",
            "raise the limit (docker --cpus, resources.limits.cpu), or start fewer threads",
        )


def shared_cores(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports cores that other processes use at the same time."""
    machine, images = facts.machine, facts.images
    if machine is None or machine.others_cores is None:
        return
    allowed, others = machine.allowed_cores or machine.cores, machine.others_cores
    if allowed - others >= _FREE * machine.cores:
        return
    evidence: tuple[str, ...] = ()
    if images is not None and images.rate and images.one_thread_rate and images.threads > 1:
        scaled = images.rate / images.one_thread_rate
        evidence = (f"{images.threads} threads do {scaled:.1f} x the work of one",)
    yield Finding(
        "machine",
        f"other processes used {others:.1f} of the {allowed} cores during the measurement",
        "find them with `top`, end them, and measure again",
        None,
        evidence,
    )


def instructions(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a processor without the instructions for fast decoding."""
    machine, data = facts.machine, facts.data
    if machine is None or machine.simd != "portable":
        return
    if data is not None and (data.kind in ("tables", "tokens")):
        return
    yield Finding(
        "machine",
        "this processor has no AVX2, so block records decode no faster than JPEGs",
        "use a machine with AVX2, or --codec raw where storage is cheap",
    )


def memory(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a machine that swaps."""
    machine = facts.machine
    if machine is None or not machine.swapped_bytes:
        return
    if machine.swapped_bytes > _SWAPPED * machine.memory_bytes:
        yield Finding(
            "memory",
            f"the system has swapped out {machine.swapped_bytes / 1e9:,.1f} GB of memory",
            "end processes that are not needed, or use smaller batches and less prefetching",
        )


def shared_memory(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a small /dev/shm, through which DataLoader's workers send batches."""
    machine = facts.machine
    if machine is None or machine.shm_bytes is None or machine.shm_bytes >= _SHM_BYTES:
        return
    batch = use.batch_size * use.crop**2 * _FLOAT_BYTES
    yield Finding(
        "memory",
        f"/dev/shm has {machine.shm_bytes / 1e6:,.0f} MB, and DataLoader's workers send batches "
        f"of {batch / 1e6:,.0f} MB through it",
        "start the container with --shm-size 8g or --ipc host; fastio's own threads need none",
    )


def open_files(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports a limit of open files that is too low for many shards."""
    machine, data = facts.machine, facts.data
    if machine is None or machine.open_files is None or machine.open_files > _FEW_FILES:
        return
    if data is None or not data.packed or data.files < machine.open_files // 4:
        return
    yield Finding(
        "settings",
        f"a process may open {machine.open_files:,} files, and shards get a quarter of them: most "
        f"of the {data.files:,} shards are opened again for each read",
        f"raise the limit: ulimit -n {machine.most_open_files or 65536}",
    )


def huge_pages(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests huge pages for tables in memory."""
    machine, data = facts.machine, facts.data
    if machine is None or data is None or machine.huge_pages != "never":
        return
    if data.kind == "tables":
        yield Finding(
            "memory",
            "the system provides no huge pages, which make random rows in memory about twice as "
            "fast",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


MACHINE_RULES = (
    few_threads,
    many_threads,
    quota,
    shared_cores,
    instructions,
    memory,
    shared_memory,
    open_files,
    huge_pages,
)
