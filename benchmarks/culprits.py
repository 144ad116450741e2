"""Seeded slow-downs, one at a time: do bench and doctor name the culprit, and predict the mend?

    .venv/bin/python benchmarks/culprits.py [FOLDER] [--only NAME ...] [--json FILE]

Each case is measured as it is and, before and after that, with the remedy, so that a machine that
drifts does so for both; what the bench predicted for the remedy is compared with what was measured.
Where the case holds, the doctor is asked as a user would: about the data, or, where the fault is in
the program, with the stats of a loader that ran. What it names first, and what it says the remedy
gains, is compared with what the benches measured. The slow disk is a limit on the reads of a
control group (version 1 or 2), which needs root; the slow network is a proxy on loopback. The
accelerator is emulated, so that all benches have the same; with stats, the doctor is told its rate.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean
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
from rich.table import Table

import fastio
from fastio.diagnose import Finding, Use, diagnose, diagnose_stats, epoch_now
from fastio.diagnose.bench import Options, bench
from fastio.diagnose.bench.subject import Subject
from fastio.diagnose.device import EmulatedAccelerator
from fastio.diagnose.loop import Limit, run_loop
from fastio.diagnose.probes import examine
from fastio.diagnose.probes.data import drop, local_files
from fastio.stats import Stats

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.servers import FaultProxy, http_folder

PHOTOS = 3000
SECONDS = 20.0  # of a bench, about
SLOW_DISK = 40e6  # bytes/s
SLOW_NETWORK = 40e6  # bytes/s
LATENCY_S = 0.005
WITHIN = 0.15
RAN_S = 5.0  # the loader whose stats the doctor gets

Findings = tuple[Finding, ...]


@dataclass(frozen=True)
class Case:
    """A slow-down and its remedy.

    Attributes:
        name: of the slow-down.
        culprit: that is to be named first.
        remedy: the bench's prediction that is checked.
        advice: words of the doctor's finding whose gain is checked; "": it gives none.
        slow, mended: what is measured.
        use: what the doctor is told; None: it gets the stats of a loader that ran.
        hindered: holds while the slow one is measured.
    """

    name: str
    culprit: str
    remedy: str
    advice: str
    slow: Options
    mended: Options
    use: Use | None = None
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
    local = Options(data=str(packed), batch_size=128, rate=1000, seconds=SECONDS, cold=False)
    faster = replace(local, rate=20_000)
    memory = "in memory, or from a faster disk"
    return [
        Case(
            "slow disk",
            "fetch",
            memory,
            "faster disk",
            replace(faster, cold=True),
            faster,
            Use(epochs=1),
            lambda: slow_reads(packed, SLOW_DISK),
        ),
        Case(
            "slow network",
            "network",
            "from a cache on this machine",
            "cache=",
            replace(faster, data=proxy.url, cold=True),
            replace(faster, data=proxy.url),
            Use(),
            lambda: slow_network(proxy),
        ),
        Case(
            "heavy Python transform",
            "transform",
            "without Python transforms",
            "transforms",
            replace(local, transforms=(heavy_transform,)),
            local,
        ),
        Case(
            "too few threads",
            "threads",
            f"threads: {cores()}",
            "num_workers",
            replace(faster, threads=1),
            replace(faster, threads=cores()),
            Use(threads=1),
        ),
        Case(
            "slow copy",
            "copy",
            "copies ahead, on a stream",
            "ahead of the step",
            replace(local, bus=0.15e9, blocking_copies=True),
            replace(local, bus=0.15e9),
        ),
        Case(
            "slow model",
            "compute",
            "if the model took no time",
            "",
            replace(local, rate=300),
            replace(local, rate=1e6),
            Use(model_rate=300),
        ),
        Case(
            "JPEG files",
            "decode",
            "packed as blocks",
            "fastio pack",
            replace(faster, data=str(photos)),
            faster,
            Use(),
        ),
    ]


def cores() -> int:
    """Of this machine, for this process."""
    return len(os.sched_getaffinity(0))


def asked(case: Case) -> Findings:
    """What the doctor says."""
    if case.use is None:
        return diagnose_stats(stats_of_a_run(case.slow), cores(), case.slow.rate)
    if case.slow.cold:
        drop(local_files(case.slow.data))
    use = replace(case.use, batch_size=case.slow.batch_size or case.use.batch_size)
    return diagnose(examine(case.slow.data, use), use)


def whole_epoch_s(options: Options) -> float:
    """Seconds of an epoch with nothing in memory: a bench sees a few steps of it."""
    assert options.rate is not None
    drop(local_files(options.data))
    with Subject.of(options).open() as loader:
        run = run_loop(loader, EmulatedAccelerator(options.rate), Limit(60.0))
    return run.end_s - run.marks[0]


def stats_of_a_run(options: Options) -> Stats:
    """What a loader says after some seconds of its epoch, by way of JSON."""
    assert options.rate is not None
    device = EmulatedAccelerator(options.rate, options.bus, options.blocking_copies)
    with Subject.of(options).open() as loader:
        run = run_loop(loader, device, Limit(RAN_S))
    told = json.loads(json.dumps((run.stats[-1] - run.stats[run.first]).to_dict()))
    return Stats(**{field.name: told[field.name] for field in fields(Stats)})


def judged(case: Case) -> dict[str, Any]:
    """The benches of a case, and the doctor, compared."""
    half = replace(case.mended, seconds=case.mended.seconds / 2)
    mended = [bench(half)]
    with case.hindered():
        slow = bench(case.slow)
        said = asked(case)
        before_s = whole_epoch_s(case.slow) if case.slow.cold else epoch_now(slow)
    findings = diagnose(slow)
    mended.append(bench(half))
    predicted = {one.name: one.epoch_s for one in slow.predictions}.get(case.remedy)
    measured_s = mean(map(epoch_now, mended))
    gains = [one.gain for one in said if case.advice and case.advice in one.advice]
    gain = gains[0] if gains else None
    return {
        "case": case.name,
        "culprit": case.culprit,
        "named": findings[0].culprit,
        "before_s": before_s,
        "predicted_s": predicted,
        "measured_s": measured_s,
        "off": None if predicted is None else predicted / measured_s - 1,
        "doctor": said[0].culprit if said else "nothing",
        "gain": gain,
        "measured_gain": before_s / measured_s,
        "gain_off": None if gain is None else gain / (before_s / measured_s) - 1,
        "said": [finding.to_dict() for finding in said],
        "findings": [finding.to_dict() for finding in findings],
        "slow": slow.to_dict(),
        "mended": [one.to_dict() for one in mended],
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
    console().print(machine_line())
    console().print(table_of(results))
    write_json(arguments.json, {"cases": results})
    sys.exit(0 if all(map(is_good, results)) else 1)


def is_good(one: dict[str, Any]) -> bool:
    """Whether both named the culprit, and all that was predicted was near."""
    named = one["named"] == one["culprit"] == one["doctor"]
    offs = [one["off"], *([] if one["gain_off"] is None else [one["gain_off"]])]
    return named and all(off is not None and abs(off) <= WITHIN for off in offs)


def table_of(results: list[dict[str, Any]]) -> Table:
    """A line a case."""
    table = new_table(
        "slowed down by",
        "bench names",
        "epoch s",
        "predicted s",
        "measured s",
        "off by",
        "doctor names",
        "gain",
        "measured",
        "off by",
    )
    for one in results:
        table.add_row(
            one["case"] + ("" if is_good(one) else " !"),
            one["named"],
            f"{one['before_s']:.2f}",
            "" if one["off"] is None else f"{one['predicted_s']:.2f}",
            f"{one['measured_s']:.2f}",
            "" if one["off"] is None else f"{one['off']:+.0%}",
            one["doctor"],
            "" if one["gain"] is None else f"{one['gain']:.2f}",
            f"{one['measured_gain']:.2f}",
            "" if one["gain_off"] is None else f"{one['gain_off']:+.0%}",
        )
    return table


if __name__ == "__main__":
    main()
