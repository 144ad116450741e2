"""Stages that work at the same time, of which the slowest decides how long an epoch takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fastio.diagnose.facts import Facts
from fastio.diagnose.use import Use

StageName = Literal["network", "disk", "decode", "copy", "model"]
_HELD_BYTES = 64 << 20  # that a loader without a cache brings ahead, also for the next epoch
_RESIDENT = 0.9  # of the available memory: a dataset that is smaller stays in the page cache


@dataclass(frozen=True)
class Pipeline:
    """Samples a second of each stage, on its own."""

    stages: dict[StageName, float]

    @property
    def slowest(self) -> StageName:
        """That decides."""
        return min(self.stages, key=lambda name: self.stages[name])

    @property
    def rate(self) -> float:
        """Samples a second of all together."""
        return self.stages[self.slowest]

    def replaced(self, **rates: float) -> Pipeline:
        """The same with other rates."""
        return Pipeline({**self.stages, **rates})  # type: ignore[dict-item]

    def without(self, stage: StageName) -> Pipeline:
        """The same without a stage."""
        return Pipeline({name: rate for name, rate in self.stages.items() if name != stage})

    def gain_of(self, other: Pipeline) -> float:
        """An epoch's time / its time with the other one."""
        return other.rate / self.rate if other.stages else 1.0


def pipeline_of(facts: Facts, use: Use) -> Pipeline | None:
    """The stages of an epoch that is not the first; None where no rate is known."""
    stages: dict[StageName, float] = {}
    decode = decode_rate(facts, use)
    if decode:
        stages["decode"] = decode
    disk = cold_rate(facts)
    if disk and not stays_in_memory(facts):
        stages["disk"] = disk
    network, missing = network_rate(facts), 1.0 - cached_share(facts, use)
    if network and missing:
        stages["network"] = network / missing
    copies = copy_rate(facts, use)
    if copies:
        stages["copy"] = copies
    if not stages:
        return None
    if use.model_rate:
        stages["model"] = use.model_rate
    return Pipeline(stages)


def threads_of(facts: Facts, use: Use) -> int:
    """That the user's loader works with."""
    return use.threads or (facts.machine.cores if facts.machine else 1)


def decode_rate(facts: Facts, use: Use, threads: int | None = None) -> float | None:
    """Samples a second of the loader from memory.

    Args:
        facts, use: see there.
        threads: that it has; None: as used. Between numbers that were measured the rate is taken
            to rise evenly, and not beyond.
    """
    if facts.tables is not None:
        return facts.tables.rate
    if facts.images is None:
        return facts.remote.decode_rate if facts.remote else None
    images = facts.images
    if not images.rate or not images.one_thread_rate:
        return images.rate
    known = dict([(1, images.one_thread_rate), *filter(None, [images.used])])
    known[images.threads] = images.rate
    counts = sorted(known)
    wanted = threads or threads_of(facts, use)
    return float(np.interp(wanted, counts, [known[count] for count in counts]))


def cold_rate(facts: Facts) -> float | None:
    """Samples a second from the disk, nothing of them in memory."""
    storage, data = facts.storage, facts.data
    if storage is None or data is None:
        return None
    if data.kind in ("tables", "tokens"):  # which are read in large pieces
        bytes_s = storage.sequential_bytes_s
        return bytes_s / data.sample_bytes if bytes_s and data.sample_bytes else None
    if storage.cold_loader_s:
        return storage.cold_loader_s
    rates = [storage.cold_reads_s, storage.cold_reads_parallel_s]
    return max((rate for rate in rates if rate), default=None)


def network_rate(facts: Facts) -> float | None:
    """Samples a second from the store."""
    bandwidth = network_bytes_s(facts)
    if bandwidth is None or facts.data is None or not facts.data.sample_bytes:
        return None
    return bandwidth / facts.data.sample_bytes


def network_bytes_s(facts: Facts) -> float | None:
    """Bytes a second from the store: those of a loader, or else at best."""
    if facts.remote is None:
        return None
    if facts.remote.loader_bytes_s:
        return facts.remote.loader_bytes_s
    rates = [facts.remote.stream_bytes_s, facts.remote.parallel_bytes_s]
    return max((rate for rate in rates if rate), default=None)


def cached_share(facts: Facts, use: Use) -> float:
    """The part of a remote dataset that a cache, or the loader's memory, has room for."""
    if facts.data is not None and 0 < facts.data.nbytes <= _HELD_BYTES:
        return 1.0
    if use.cache is None or facts.data is None or not facts.data.nbytes:
        return 0.0 if use.cache is None else 1.0
    room = facts.remote.cache_bytes if facts.remote else None
    return 1.0 if room is None else min(1.0, room / facts.data.nbytes)


def copy_rate(facts: Facts, use: Use) -> float | None:
    """Images a second to the GPU, as uint8 from pinned memory."""
    if facts.gpu is None or facts.images is None or not facts.gpu.pinned_bytes_s:
        return None
    return facts.gpu.pinned_bytes_s / (3 * use.crop * use.crop)


def stays_in_memory(facts: Facts) -> bool:
    """Whether every epoch but the first reads from the page cache."""
    if facts.data is None or facts.machine is None or facts.data.remote:
        return False
    if not facts.data.complete:
        return False
    return facts.data.nbytes < _RESIDENT * facts.machine.available_bytes
