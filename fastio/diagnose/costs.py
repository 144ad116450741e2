"""The cost model: seconds of a sample in each stage, and the epoch time that follows.

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
from fastio.diagnose.options import Use

_HELD_BYTES = 64 << 20  # that a loader without a cache brings ahead, also for the next epoch
_RESIDENT = 0.9  # of the available memory: a dataset that is smaller stays in the page cache


@dataclass(frozen=True)
class Costs:
    """The seconds that a sample takes in each stage when the stage runs alone.

    Attributes:
        prep_s: the loader's threads, with the data in memory, without Python transforms.
        fetch_s: the loader alone, cold: waiting for storage, and decoding. 0.0 if not measured.
        transform_s: Python transforms, on the thread of the training loop.
        copy_s: copies to the device.
        compute_s: the model, or the emulated accelerator.
        prep_cpu_s: processor seconds of the loader, summed over all cores.
        compute_cpu_s: processor seconds of a model on the CPU; 0.0 for a device.
        cores: cores that loader and model share.
        asynchronous: whether the device computes in parallel with the training loop.
        blocking_copies: whether the training loop waits for each copy.
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
        """The seconds of the training loop if it never waits for a batch.

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
        """The processor seconds of all stages, divided by the cores."""
        return (self.prep_cpu_s + self.transform_s + self.compute_cpu_s) / self.cores

    def supply_s(self, cold: bool = False) -> float:
        """Returns the seconds of the loader without the training loop."""
        return max(self.prep_s, self.fetch_s if cold else 0.0)

    def sample_s(self, cold: bool = False) -> float:
        """Returns the seconds of loader and training loop together."""
        return max(self.loop_s, self.supply_s(cold), self.cpu_s)

    def samples_per_s(self, cold: bool = False) -> float:
        """Returns the samples per second of loader and loop together; 0.0 if nothing has a cost."""
        seconds = self.sample_s(cold)
        return 1 / seconds if seconds else 0.0

    def gain_of(self, after: Costs) -> float:
        """Returns the speed-up of a cold epoch with other costs."""
        seconds = after.sample_s(cold=True)
        return self.sample_s(cold=True) / seconds if seconds else 1.0

    def rates(self) -> dict[Stage, float]:
        """Returns the samples per second of each stage alone. Stages without cost are left out."""
        stages: dict[Stage, float] = {
            "fetch": self.fetch_s,
            "decode": self.prep_s,
            "transform": self.transform_s,
            "copy": self.copy_s,
            "compute": self.compute_s,
        }
        return {stage: 1 / seconds for stage, seconds in stages.items() if seconds}

    def waits_for(self, cold: bool = False) -> Stage:
        """Returns the stage that limits the rate; of stages that run in turn, the longest."""
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
    """Returns the costs of a sample, from the runs of a bench.

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
    """Returns the costs of a sample in later epochs, from the probes' facts; None if no rate is
    known.

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


# --- Rates that the probes found ------------------------------------------------------------------


def threads_of(facts: Facts, use: Use) -> int:
    """Returns the number of threads of the user's loader."""
    return use.threads or (facts.machine.cores if facts.machine else 1)


def decode_rate(facts: Facts, use: Use, threads: int | None = None) -> float | None:
    """Returns the samples per second that the loader decodes from memory.

    Args:
        facts, use: see there.
        threads: number of threads; None for the user's. Rates between measured numbers of threads
            are interpolated linearly; there is no extrapolation.
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
    """Returns the samples per second from disk, with nothing in the page cache."""
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
    """Returns the samples per second from the store."""
    bandwidth = network_bytes_s(facts)
    if bandwidth is None or facts.data is None or not facts.data.sample_bytes:
        return None
    return bandwidth / facts.data.sample_bytes


def network_bytes_s(facts: Facts) -> float | None:
    """Returns the bytes per second from the store, of a loader if measured, else the best stream
    rate.
    """
    if facts.remote is None:
        return None
    if facts.remote.loader_bytes_s:
        return facts.remote.loader_bytes_s
    rates = [facts.remote.stream_bytes_s, facts.remote.parallel_bytes_s]
    return max((rate for rate in rates if rate), default=None)


def cached_share(facts: Facts, use: Use) -> float:
    """Returns the share of a remote dataset that fits into the cache or the loader's memory."""
    if facts.data is not None and 0 < facts.data.nbytes <= _HELD_BYTES:
        return 1.0
    if use.cache is None or facts.data is None or not facts.data.nbytes:
        return 0.0 if use.cache is None else 1.0
    room = facts.remote.cache_bytes if facts.remote else None
    return 1.0 if room is None else min(1.0, room / facts.data.nbytes)


def copy_rate(facts: Facts, use: Use) -> float | None:
    """Returns the images per second that are copied to the GPU, as uint8 from pinned memory."""
    if facts.gpu is None or facts.images is None or not facts.gpu.pinned_bytes_s:
        return None
    return facts.gpu.pinned_bytes_s / (3 * use.crop * use.crop)


def stays_in_memory(facts: Facts) -> bool:
    """Returns whether every epoch but the first reads from the page cache."""
    if facts.data is None or facts.machine is None or facts.data.remote:
        return False
    if not facts.data.complete:
        return False
    return facts.data.nbytes < _RESIDENT * facts.machine.available_bytes
