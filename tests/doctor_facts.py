"""Facts as the probes of fastio doctor find them, of a machine and a dataset without faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastio.diagnose import Facts, Use, diagnose
from fastio.diagnose.facts import (
    DataFacts,
    GpuFacts,
    ImageFacts,
    MachineFacts,
    RemoteFacts,
    SettingsFacts,
    StorageFacts,
    TableFacts,
    Trial,
)

MACHINE = MachineFacts(
    cpu="a processor",
    cores=4,
    allowed_cores=4,
    simd="avx2",
    memory_bytes=32 << 30,
    available_bytes=16 << 30,
    others_cores=0.1,
    swapped_bytes=0,
    shm_bytes=16 << 30,
    open_files=65536,
    most_open_files=1 << 20,
    huge_pages="madvise",
)
SETTINGS = SettingsFacts(None, torch_threads=4)
GPU = GpuFacts("a GPU", 1, (9, 0), 80 << 30, tf32=True, cudnn_benchmark=False)
FOLDER = DataFacts("photos/", "folder", rows=10_000, nbytes=1_100_000_000, files=10_000)
PACKED = replace(FOLDER, kind="packed", packed=True, files=20, codecs={"blocks": 10_000})
STORAGE = StorageFacts("ext4", resident_share=1.0, cold_reads_s=3000.0)
IMAGES = ImageFacts(
    100,
    {"JPEG": 1.0},
    mean_bytes=110_000,
    mean_pixels=200_000,
    short_side=375,
    long_side=500,
    threads=4,
    rate=2000.0,
    one_thread_rate=550.0,
    pillow_rate=250.0,
    trials=(Trial("blocks", None, 48, 8000.0, 1.06),),
)
TABLES = TableFacts(
    "parquet",
    columns=40,
    row_groups=10,
    group_rows=100_000,
    group_bytes=16_000_000,
    compressions=("SNAPPY",),
    threads=4,
    rate=2e6,
    trial=Trial("", None, 200_000, 8e6, 1.5),
)
REMOTE = RemoteFacts("obstore", 0.03, 50e6, 200e6, 8000.0)

FAULTLESS = Facts(
    MACHINE, SETTINGS, data=PACKED, storage=STORAGE, images=replace(IMAGES, trials=())
)


def of_machine(**parts: Any) -> Facts:
    """Faultless facts but for some of the machine."""
    return replace(FAULTLESS, machine=replace(MACHINE, **parts))


def culprits(facts: Facts, **use: Any) -> list[str]:
    """Who is to blame, the largest gain first."""
    return [finding.culprit for finding in diagnose(facts, Use(**use))]


def advice(facts: Facts, **use: Any) -> str:
    """All that is said to do."""
    return "\n".join(finding.advice for finding in diagnose(facts, Use(**use)))


def gains(facts: Facts, **use: Any) -> list[float | None]:
    """What is predicted, in order."""
    return [finding.gain for finding in diagnose(facts, Use(**use))]
