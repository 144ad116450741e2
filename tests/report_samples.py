"""What benches might have measured, for tests of the report: numbers that fit together."""

from __future__ import annotations

from dataclasses import replace

from fastio.diagnose import Finding, Measured
from fastio.diagnose.facts import DataFacts, MachineFacts
from fastio.diagnose.measured import (
    Memory,
    Phase,
    PhaseName,
    Prediction,
    Rung,
    Settings,
    Span,
    Stage,
    ThreadRate,
    Training,
)
from fastio.stats import Stats
from tests.measurements import split

MACHINE = MachineFacts(
    "Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz",
    2,
    "avx2",
    16_400_000_000,
    "2.13.0",
    "cpu",
    "2026-11-22T07:52:26Z",
)
PHOTOS = DataFacts(
    "/data/imagenet-50k.blocks",
    "packed",
    {"blocks": 50_000},
    50_000,
    5_921_000_000,
    71_300.0,
    "disk",
)
CROP = ("RandomResizedCrop(224)", "RandomHorizontalFlip()")


def phase(
    name: PhaseName,
    rows: int,
    seconds: float,
    threads_s: tuple[float, float, float] = (0.0, 0.0, 0.0),
    compute_s: float = 0.0,
    au: float | None = None,
    **spent_s: float,
) -> Phase:
    """A run of that length; it waited whenever the model did not compute.

    Args:
        name, rows, seconds, compute_s, au: of the run.
        threads_s: of the loader's threads: reading, decoding, resampling.
        spent_s: others that a loader counts.
    """
    read_s, decode_s, resample_s = threads_s
    busy = Stats(read_s=read_s, decode_s=decode_s, resample_s=resample_s, **spent_s)  # type: ignore[arg-type]
    nbytes = 0 if name == "compute" else 71_300 * rows
    wait_s = 0.0 if name == "compute" else max(0.0, seconds - compute_s - busy.transform_s)
    stats = replace(busy, wait_s=wait_s, bytes_read=nbytes)
    return Phase(name, rows, seconds, stats, compute_s, rows // 64, 1.7 * seconds, au)


def timeline(run: str, waits: dict[Stage, float], compute_s: float, steps: int = 24) -> list[Span]:
    """Steps one after another, each with waits that vary a little."""
    spans, now = [], 0.0
    for step in range(steps):
        wobble = 1 + 0.4 * ((step * 7) % 5 - 2) / 5
        for stage, spent in (*waits.items(), ("compute", compute_s)):
            end = now + spent * (1.0 if stage == "compute" else wobble)
            spans.append(Span(step, stage, now, end, "cold" if run == "cold" else "warm"))
            now = end
    return spans


def photos() -> Measured:
    """Photos packed as blocks before an emulated accelerator, with DataLoader on their folder."""
    rows = 8_000
    return Measured(
        machine=MACHINE,
        dataset=PHOTOS,
        settings=Settings(64, 1, CROP, "", "resnet50-h100", 1786.0),
        phases=(
            phase("compute", rows, 4.479, compute_s=4.479, au=1.0),
            phase("loader_warm", rows, 7.619, (0.11, 6.41, 0.98)),
            phase("loader_cold", rows, 9.412, (2.05, 6.45, 0.97)),
            phase("together_warm", rows, 7.702, (0.12, 6.47, 0.99), compute_s=4.479, au=0.5815),
            phase("together_cold", rows, 9.467, (2.11, 6.49, 0.98), compute_s=4.479, au=0.4731),
            phase("baseline_loader", rows, 24.71),
            phase("baseline_together", rows, 24.93, compute_s=4.479, au=0.1797),
        ),
        epochs=(
            split("warm", 0.0, 20.14, 0.0, 0.0, 27.994),
            split("cold", 11.03, 20.14, 0.0, 0.0, 27.994),
        ),
        timeline=(
            *timeline("warm", {"decode": 0.0258}, 0.0358),
            *timeline("cold", {"fetch": 0.0141, "decode": 0.0258}, 0.0358),
        ),
        threads=(
            ThreadRate(1, 1050.0),
            ThreadRate(2, 2012.0),
            ThreadRate(3, 2075.0),
            ThreadRate(4, 2051.0),
        ),
        predictions=(
            Prediction("now, warm", 48.13, 48.13),
            Prediction("threads: 2", 29.1, 29.9),
            Prediction("model alone", 27.99),
        ),
        trainings=(
            Training("fastio", 5, 241.2, 0.4431, 2.414),
            Training("DataLoader", 5, 779.8, 0.4418, 2.421),
        ),
        memory=Memory(612_000_000, 11_900_000_000),
        accelerators_fed=0.53,
        notes=("The page cache was dropped with posix_fadvise before the cold run.",),
        baseline="/data/imagenet-50k",
    )


PHOTO_FINDINGS = (
    Finding(
        "network",
        "a finding without a gain comes last",
        "nothing need be done",
    ),
    Finding(
        "threads",
        "the loader runs 1 thread where 2 cores are allowed",
        "pass num_workers=2, or num_workers='auto'",
        1.65,
        (
            "1 thread: 1,050 images/s; 2 threads: 2,012 images/s; the model takes 1,786 images/s",
            "the process used 1.70 of 2 cores",
        ),
    ),
    Finding(
        "fetch",
        "a cold epoch waits 19% of its time for the disk",
        "keep the dataset on a faster disk, or in memory: it is 5.92 GB of 11.9 GB available",
        1.23,
        ("cold 59.2 s, warm 48.1 s an epoch", "71 kB a sample, 60 MB/s while training"),
    ),
)


def remote_cold() -> Measured:
    """A remote dataset that is read for the first time: the network is what is waited for."""
    facts = DataFacts(
        "s3://bucket/laion/part-00",
        "packed",
        {"blocks": 1_200_000},
        1_200_000,
        141 * 10**9,
        1.17e5,
        "network",
    )
    rows = 20_000
    fetched = Phase(
        "together_cold", rows, 97.5,
        Stats(read_s=88.2, decode_s=11.1, resample_s=2.2, copy_s=0.6, wait_s=88.6,
              bytes_fetched=2_340_000_000),
        8.1, 78, 19.8, 0.083,
    )  # fmt: skip
    return Measured(
        machine=MachineFacts("AMD EPYC 9V84", 16, "avx512", 128 * 10**9, "2.13.0+cu130",
                        "NVIDIA H200", "2026-11-22T08:11:03Z"),
        dataset=facts,
        settings=Settings(256, 16, CROP, "resnet50", "", None, "cuda"),
        phases=(phase("compute", rows, 8.1, compute_s=8.1, au=1.0), fetched),
        epochs=(split("cold", 5310.0, 0.0, 0.0, 54.0, 486.0),),
        timeline=tuple(timeline("cold", {"fetch": 1.13, "copy": 0.012}, 0.104, 12)),
        predictions=(Prediction("now, cold", 5850.0, 5850.0), Prediction("cache holds all", 540.0)),
        notes=("Fetching took 24 MB/s over 30 ms of latency.",),
    )  # fmt: skip


def compute_bound() -> Measured:
    """A model that is slower than its data."""
    rows = 2_000
    return Measured(
        machine=MACHINE,
        dataset=DataFacts(
            "photos", "folder", {"jpeg": 9_469}, 9_469, 985_000_000, 104_000.0, "memory"
        ),
        settings=Settings(32, 2, CROP, "resnet18"),
        phases=(
            phase("compute", rows, 61.2, compute_s=61.2, au=1.0),
            phase("loader_warm", rows, 2.25, (0.02, 3.1, 1.2)),
            phase("together_warm", rows, 61.6, (0.02, 3.1, 1.2), compute_s=61.2, au=0.9935),
        ),
        epochs=(split("warm", 0.0, 1.9, 0.0, 0.0, 289.75),),
        timeline=tuple(timeline("warm", {"decode": 0.006}, 0.98, 6)),
        threads=(ThreadRate(1, 462.0), ThreadRate(2, 889.0)),
    )


def table() -> Measured:
    """Rows of a table: no images, 200 columns, a Python transform."""
    facts = DataFacts("clicks.fastio", "tables", {}, 45_840_617, 34_880_000_000, 761.0, "disk")
    rows = 8_000_000
    return Measured(
        machine=MACHINE,
        dataset=facts,
        settings=Settings(16_384, 2, ("log1p",), "", "dlrm-h100", 43_700_000.0),
        phases=(
            phase("loader_warm", rows, 0.74, (0.08, 0.0, 1.31), transform_s=0.3),
            phase(
                "together_warm",
                rows,
                0.931,
                (0.08, 0.0, 1.3),
                au=0.1966,
                copy_s=0.31,
                transform_s=0.183,
            ),
        ),
        epochs=(split("warm", 0.0, 2.51, 1.776, 0.0, 1.0486),),
        timeline=tuple(timeline("warm", {"decode": 0.0009, "transform": 0.00063}, 0.000375, 30)),
        accelerators_fed=0.22,
    )


def bare() -> Measured:
    """The loader alone and nothing else."""
    return Measured(
        machine=MachineFacts("", 1, "portable", 2 * 10**9, "2.4.0", "cpu", "2026-11-22T00:00:00Z"),
        dataset=DataFacts("x", "torch", {}, 100, 0, 0.0, "memory"),
        settings=Settings(1, 1),
        phases=(phase("loader_warm", 100, 0.5),),
    )


def empty() -> Measured:
    """No run at all."""
    return Measured(MACHINE, PHOTOS, Settings(1, 1), ())


SAMPLES = {make.__name__: make for make in (photos, remote_cold, compute_bound, table, bare, empty)}

LADDER = (
    Rung("DataLoader, 0 workers", 612.0, 0.441),
    Rung("workers = cores", 323.0, 0.443),
    Rung("pin_memory", why_not="no GPU"),
    Rung("folder through fastio", 141.0, 0.442),
    Rung("packed as jpeg", 121.0, 0.440),
    Rung("packed as blocks", 48.1, 0.4415),
    Rung("device prefetch", why_not="no GPU"),
    Rung("autocast bf16", 39.7, 0.4402),
    Rung("torch.compile", 33.2, 0.4411),
    Rung("channels_last", 33.9, 0.4409),
    Rung("DDP, 2 processes", why_not="2 cores are busy with one process"),
)
