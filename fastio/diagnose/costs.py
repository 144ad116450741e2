"""What a sample costs in each stage, and what an epoch takes then.

The method is DS-Analyzer's (Mohan, Phanishayee, Raniwala, Chidambaram: "Analyzing and Mitigating
Data Stalls in DNN Training", VLDB 2021): each stage is measured alone, and stages that run beside
each other take as long as the slowest of them. Two things are added to it. Stages that take turns
on the loop's thread add up; and where loader and model compute on the same cores, nothing is faster
than all processor time divided by the cores.

`costs` reads them off the runs of a bench, `expected` off what the probes of a doctor found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fastio.diagnose.facts import Facts
from fastio.diagnose.measured import Measured, Stage
from fastio.diagnose.use import Use

_HELD_BYTES = 64 << 20  # that a loader without a cache brings ahead, also for the next epoch
_RESIDENT = 0.9  # of the available memory: a dataset that is smaller stays in the page cache


@dataclass(frozen=True)
class Costs:
    """Seconds a sample, each stage alone.

    Attributes:
        prep_s: the loader's threads, the data in memory, Python transforms left out.
        fetch_s: storage, which the threads wait for, decoding included: the loader alone, cold.
            0.0 where that was not measured.
        transform_s: transforms written in Python, on the loop's thread.
        copy_s: to the device.
        compute_s: the model, or the emulated accelerator.
        prep_cpu_s: processor seconds that the loader takes, on all cores together.
        compute_cpu_s: processor seconds that a model on the CPU takes; 0.0 for a device.
        cores: that both have.
        asynchronous: the device computes beside the loop's thread.
        blocking_copies: the loop's thread waits for each copy.
    """

    prep_s: float
    fetch_s: float = 0.0
    transform_s: float = 0.0
    copy_s: float = 0.0
    compute_s: float = 0.0
    prep_cpu_s: float = 0.0
    compute_cpu_s: float = 0.0
    cores: int = 1
    asynchronous: bool = True
    blocking_copies: bool = False

    @property
    def loop_s(self) -> float:
        """The loop, if batches were always there.

        A blocking copy stands in the device's queue: it waits for the step before, and the next
        step for it.
        """
        if not self.asynchronous:
            return self.transform_s + self.copy_s + self.compute_s
        if self.blocking_copies:
            return max(self.transform_s, self.compute_s) + self.copy_s
        return max(self.transform_s, self.copy_s, self.compute_s)

    @property
    def cpu_s(self) -> float:
        """All processor time, spread over the cores."""
        return (self.prep_cpu_s + self.transform_s + self.compute_cpu_s) / self.cores

    def supply_s(self, cold: bool = False) -> float:
        """The loader without the loop."""
        return max(self.prep_s, self.fetch_s if cold else 0.0)

    def sample_s(self, cold: bool = False) -> float:
        """Loader and loop together."""
        return max(self.loop_s, self.supply_s(cold), self.cpu_s)

    def samples_per_s(self, cold: bool = False) -> float:
        """Loader and loop together; 0.0 where nothing costs anything."""
        seconds = self.sample_s(cold)
        return 1 / seconds if seconds else 0.0

    def gain_of(self, after: Costs) -> float:
        """An epoch's time that reads from storage / its time with other costs."""
        seconds = after.sample_s(cold=True)
        return self.sample_s(cold=True) / seconds if seconds else 1.0

    def rates(self) -> dict[Stage, float]:
        """Samples a second of each stage alone; those that cost nothing are left out."""
        stages: dict[Stage, float] = {
            "fetch": self.fetch_s,
            "decode": self.prep_s,
            "transform": self.transform_s,
            "copy": self.copy_s,
            "compute": self.compute_s,
        }
        return {stage: 1 / seconds for stage, seconds in stages.items() if seconds}

    def waits_for(self, cold: bool = False) -> Stage:
        """The stage that decides `sample_s`; of several that take turns, the longest."""
        if self.supply_s(cold) >= self.loop_s:
            return "fetch" if cold and self.fetch_s > _SLOWER * self.prep_s else "decode"
        stages: dict[Stage, float] = {
            "transform": self.transform_s,
            "copy": self.copy_s,
            "compute": self.compute_s,
        }
        return max(stages, key=lambda stage: stages[stage])


# Cold runs that take less than this times the warm one wait for nothing but the threads.
_SLOWER = 1.1


def costs(measured: Measured) -> Costs:
    """What a sample costs in the runs of a bench.

    Phases that are missing cost nothing. The loader's rate without Python transforms is that of
    the curve over threads where there is one.
    """
    settings = measured.settings
    warm, cold = measured.phase("loader_warm"), measured.phase("loader_cold")
    compute, together = measured.phase("compute"), measured.phase("together_warm")
    transform_s = copy_s = prep_s = prep_cpu_s = 0.0
    if warm is not None and warm.samples:
        transform_s = warm.busy.transform_s / warm.samples
        curve = {point.threads: point.samples_per_s for point in measured.threads}
        alone = curve.get(settings.threads, 0.0) if transform_s else 0.0
        prep_s = 1 / alone if alone else warm.seconds / warm.samples
        prep_cpu_s = max(0.0, warm.cpu_s / warm.samples - transform_s)
    if together is not None and together.samples:
        copy_s = together.busy.copy_s / together.samples
    fetch_s = 0.0
    if cold is not None and cold.samples:
        fetch_s = cold.seconds / cold.samples
    compute_s = compute_cpu_s = 0.0
    if compute is not None and compute.samples:
        compute_s = compute.seconds / compute.samples
        compute_cpu_s = 0.0 if settings.asynchronous else compute.cpu_s / compute.samples
    return Costs(
        prep_s=prep_s,
        fetch_s=fetch_s if fetch_s > _SLOWER * max(prep_s, transform_s) else 0.0,
        transform_s=transform_s,
        copy_s=copy_s,
        compute_s=compute_s,
        prep_cpu_s=prep_cpu_s,
        compute_cpu_s=compute_cpu_s,
        cores=max(1, measured.machine.cores),
        asynchronous=settings.asynchronous,
        blocking_copies=settings.blocking_copies,
    )


def expected(facts: Facts, use: Use) -> Costs | None:
    """What a sample costs in an epoch that is not the first; None where no rate is known.

    What memory or a cache does not hold is fetched in each of them.
    """
    decode, copies, disk = decode_rate(facts, use), copy_rate(facts, use), cold_rate(facts)
    network, missing = network_rate(facts), 1.0 - cached_share(facts, use)
    fetch_s = missing / network if network else 0.0
    if disk and not stays_in_memory(facts):
        fetch_s = 1 / disk
    found = Costs(
        prep_s=1 / decode if decode else 0.0,
        fetch_s=fetch_s,
        copy_s=1 / copies if copies else 0.0,
    )
    if not found.sample_s(cold=True):
        return None
    return replace(found, compute_s=1 / use.model_rate) if use.model_rate else found


# --- Rates that the probes found -----------------------------------------------------------------


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
