"""Seeded slow-downs, one at a time: does the bench name the culprit, and predict the mended epoch?

    .venv/bin/python benchmarks/culprits.py [FOLDER] [--only NAME ...] [--json FILE]

Each case is measured as it is and once more with the remedy; what the first bench predicted for the
remedy is compared with what the second measured. The slow disk is a limit on the reads of a control
group (version 1 or 2), which needs root; the slow network is a proxy on loopback. The accelerator
is emulated, so that both benches have the same.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    console,
    linked,
    machine_line,
    new_table,
    photo_parser,
    source_photos,
    temporary_folder,
    write_json,
)

import fastio
from fastio.bench import Options, bench
from fastio.diagnose import diagnose, epoch_now

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.servers import FaultProxy, http_folder

PHOTOS = 3000
SLOW_DISK = 40e6  # bytes/s
SLOW_NETWORK = 40e6  # bytes/s
LATENCY_S = 0.005
WITHIN = 0.15


@dataclass(frozen=True)
class Case:
    """A slow-down and its remedy.

    Attributes:
        name: of the slow-down.
        culprit: that is to be named first.
        remedy: the prediction that is checked.
        slow, mended: what is measured.
        hindered: holds while the slow one is measured.
    """

    name: str
    culprit: str
    remedy: str
    slow: Options
    mended: Options
    hindered: Callable[[], AbstractContextManager[None]] = nullcontext


def heavy_transform(images: torch.Tensor) -> torch.Tensor:
    """Two milliseconds of NumPy an image, one image after the other, as it is often written."""
    for image in images:
        begin = time.thread_time()
        while time.thread_time() - begin < 2e-3:
            np.sort(image[0, :16].numpy(), axis=None)
    return images


@contextmanager
def slow_reads(folder: Path, rate: float) -> Iterator[None]:
    """This process reads from a folder's disk at no more than `rate` bytes/s.

    Raises:
        OSError: control groups cannot be made here.
    """
    stat = folder.stat()
    device = f"{os.major(stat.st_dev)}:{os.minor(stat.st_dev)}"
    old = Path("/sys/fs/cgroup/blkio")
    root = old if old.is_dir() else Path("/sys/fs/cgroup")
    controller = "blkio" if old.is_dir() else ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            home = root / path.lstrip("/")
    group = root / f"fastio-culprits-{os.getpid()}"
    group.mkdir()
    try:
        if old.is_dir():
            (group / "blkio.throttle.read_bps_device").write_text(f"{device} {rate:.0f}")
        else:
            (group / "io.max").write_text(f"{device} rbps={rate:.0f}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


@contextmanager
def slow_network(proxy: FaultProxy) -> Iterator[None]:
    """The proxy has latency and little bandwidth."""
    proxy.set(latency_s=LATENCY_S, bandwidth=SLOW_NETWORK)
    try:
        yield
    finally:
        proxy.set()


def cases(photos: Path, packed: Path, proxy: FaultProxy) -> list[Case]:
    """All slow-downs."""
    local = Options(data=str(packed), batch_size=128, rate=1000, seconds=24, cold=False)
    faster = replace(local, rate=20_000)
    memory = "in memory, or from a faster disk"
    return [
        Case(
            "slow disk",
            "fetch",
            memory,
            replace(faster, cold=True),
            faster,
            lambda: slow_reads(packed, SLOW_DISK),
        ),
        Case(
            "slow network",
            "network",
            "from a cache on this machine",
            replace(faster, data=proxy.url, cold=True),
            replace(faster, data=proxy.url),
            lambda: slow_network(proxy),
        ),
        Case(
            "heavy Python transform",
            "transform",
            "without Python transforms",
            replace(local, transforms=(heavy_transform,)),
            local,
        ),
        Case(
            "too few threads",
            "threads",
            f"threads: {cores()}",
            replace(faster, threads=1),
            replace(faster, threads=cores()),
        ),
        Case(
            "slow copy",
            "copy",
            "copies ahead, on a stream",
            replace(local, bus=0.15e9, blocking_copies=True),
            replace(local, bus=0.15e9),
        ),
        Case(
            "slow model",
            "compute",
            "a model of no time: what the loader gives",
            replace(local, rate=300),
            replace(local, rate=1e6),
        ),
        Case(
            "JPEG files",
            "decode",
            "packed as blocks",
            replace(faster, data=str(photos)),
            faster,
        ),
    ]


def cores() -> int:
    """Of this machine, for this process."""
    return len(os.sched_getaffinity(0))


def judged(case: Case) -> dict[str, Any]:
    """Both benches of a case, compared."""
    with case.hindered():
        slow = bench(case.slow)
    findings = diagnose(slow)
    mended = bench(case.mended)
    predicted = {one.name: one.epoch_s for one in slow.predictions}.get(case.remedy)
    measured_s = epoch_now(mended)
    return {
        "case": case.name,
        "culprit": case.culprit,
        "named": findings[0].culprit,
        "before_s": epoch_now(slow, cold=case.slow.cold),
        "predicted_s": predicted,
        "measured_s": measured_s,
        "off": None if predicted is None else predicted / measured_s - 1,
        "findings": [finding.to_dict() for finding in findings],
        "slow": slow.to_dict(),
        "mended": mended.to_dict(),
    }


def main() -> None:
    """All cases, one after the other; exits with 1 where one is not as it is to be."""
    parser = photo_parser(__doc__)
    parser.add_argument("--only", action="append", help="cases, by name; several times")
    parser.add_argument("--work", type=Path, help="where photos and the packed data are kept")
    arguments = parser.parse_args()
    with nullcontext(arguments.work) if arguments.work else temporary_folder() as work:
        photos, packed = work / "photos", work / "packed"
        if not packed.is_dir():
            source = source_photos(arguments, work)
            linked(source, PHOTOS, photos)
            fastio.pack(photos, packed)
        with http_folder(packed) as url, FaultProxy(url) as proxy:
            chosen = [
                case
                for case in cases(photos, packed, proxy)
                if not arguments.only or case.name in arguments.only
            ]
            results = [judged(case) for case in chosen]
    table = new_table("slowed down by", "named", "epoch s", "predicted s", "measured s", "off by")
    bad = 0
    for one in results:
        off = one["off"]
        good = one["named"] == one["culprit"] and off is not None and abs(off) <= WITHIN
        bad += not good
        table.add_row(
            one["case"],
            one["named"],
            f"{one['before_s']:.2f}",
            "" if off is None else f"{one['predicted_s']:.2f}",
            f"{one['measured_s']:.2f}",
            "" if off is None else f"{off:+.0%}{'' if good else ' !'}",
        )
    console().print(machine_line())
    console().print(table)
    write_json(arguments.json, {"cases": results})
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
