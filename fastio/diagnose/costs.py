"""The cost model: seconds of a sample in each stage, and the epoch time that follows.

The method is DS-Analyzer's (Mohan, Phanishayee, Raniwala, Chidambaram: "Analyzing and Mitigating
Data Stalls in DNN Training", VLDB 2021): each stage is measured alone, and stages that run beside
each other take as long as the slowest of them. Two things are added to it. Stages that take turns
on the loop's thread add up; and where loader and model compute on the same cores, nothing is faster
than all processor time divided by the cores.

`costs` derives them from the runs of a bench, `Case` from what the probes of a doctor found.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from fastio.diagnose.facts import Facts, Trial
from fastio.diagnose.findings import packing
from fastio.diagnose.measured import Measured, PhaseName, Stage
from fastio.diagnose.options import Use

_HELD_BYTES = 64 << 20  # that a loader without a cache brings ahead, also for the next epoch
_RESIDENT = 0.9  # of the available memory: a dataset that is smaller stays in the page cache


@dataclass(frozen=True)
class Costs:
    """The seconds that a sample takes in each stage when the stage runs alone.

    Attributes:
        prep_s: the loader's threads, with the data in memory, without Python transforms.
        augment_s: the part of `prep_s` that operations on pixels, such as ColorJitter, take.
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
    augment_s: float = 0.0
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
            "decode": self.prep_s - self.augment_s,
            "augment": self.augment_s,
            "transform": self.transform_s,
            "copy": self.copy_s,
            "compute": self.compute_s,
        }
        return {stage: 1 / seconds for stage, seconds in stages.items() if seconds}

    def waits_for(self, cold: bool = False) -> Stage:
        """Returns the stage that limits the rate; of stages that run in turn, the longest."""
        if self.supply_s(cold) >= self.loop_s:
            if cold and self.fetch_s > _SLOWER * self.prep_s:
                return "fetch"
            return "augment" if self.augment_s > self.prep_s / 2 else "decode"
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

    def each(name: PhaseName, value: str) -> float:
        """Returns a value of a phase for each sample; 0.0 of a phase that is missing."""
        phase = measured.phase(name)
        return attrgetter(value)(phase) / phase.samples if phase and phase.samples else 0.0

    transform_s, prep_s = each("loader_warm", "stats.transform_s"), each("loader_warm", "seconds")
    curve = {point.threads: point.samples_per_s for point in measured.threads}
    alone = curve.get(settings.threads, 0.0) if transform_s else 0.0
    if alone:
        prep_s = 1 / alone
    fetch_s = each("loader_cold", "seconds")
    warm = measured.phase("loader_warm")
    return Costs(
        prep_s=prep_s,
        augment_s=prep_s * warm.stats.augment_share if warm else 0.0,
        fetch_s=fetch_s if fetch_s > _SLOWER * max(prep_s, transform_s) else 0.0,
        transform_s=transform_s,
        copy_s=each("together_warm", "stats.copy_s"),
        compute_s=each("compute", "seconds"),
        prep_cpu_s=max(0.0, each("loader_warm", "cpu_s") - transform_s),
        compute_cpu_s=0.0 if settings.asynchronous else each("compute", "cpu_s"),
        cores=max(1, measured.machine.cores),
        asynchronous=settings.asynchronous,
        blocking_copies=settings.blocking_copies,
    )


# --- From the facts of the probes -----------------------------------------------------------------


class Unknown(Exception):
    """A fact that was asked for is not known."""


class Known:
    """An object whose attributes raise Unknown where they are None."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = known(getattr(self._inner, name))
        return Known(value) if is_dataclass(value) else value


def known(value: Any) -> Any:
    """Returns a value that is not None, or raises Unknown."""
    if value is None:
        raise Unknown
    return value


def fastest(*rates: float | None) -> Any:
    """Returns the highest rate that is known and above 0, or raises Unknown."""
    return known(max((rate for rate in rates if rate), default=None))


def expected(facts: Facts, use: Use) -> Costs | None:
    """Returns the costs of a sample in later epochs; None if no rate is known."""
    try:
        return Case(facts, use).now
    except Unknown:
        return None


class Case(Known):
    """The facts that the probes found, and what follows from them for a way of using the data.

    Whatever is not known raises Unknown: the parts of the facts, their values, and what follows.

    Attributes:
        facts, use: the facts with None for what is not known; how the data is loaded.
    """

    def __init__(self, facts: Facts, use: Use) -> None:
        super().__init__(facts)
        self.facts, self.use = facts, use

    def given(self, name: str, default: Any = None) -> Any:
        """Returns what follows from the facts by its name; a default if it is not known."""
        try:
            return getattr(self, name)
        except Unknown:
            return default

    @cached_property
    def now(self) -> Costs:
        """The costs of a sample in later epochs. What memory or a cache lacks is fetched again."""
        network, disk = self.given("network_rate"), self.given("cold_rate")
        fetch_s = (1.0 - self.cached_share) / network if network else 0.0
        if disk and not self.in_memory:
            fetch_s = 1 / disk
        decode, copies = self.given("loader_rate"), self.given("copy_rate")
        found = Costs(
            prep_s=1 / decode if decode else 0.0,
            augment_s=self.facts.images.augment_share / decode
            if self.facts.images and decode
            else 0.0,
            fetch_s=fetch_s,
            copy_s=1 / copies if copies else 0.0,
        )
        if not found.sample_s(cold=True):
            raise Unknown
        rate = self.use.model_rate
        return replace(found, compute_s=1 / rate) if rate else found

    @property
    def limit(self) -> Stage:
        """The stage that later epochs wait for."""
        return self.now.waits_for(cold=True)

    @property
    def rate(self) -> float:
        """Samples per second of the stage that later epochs wait for."""
        return self.now.samples_per_s(cold=True)

    @property
    def threads(self) -> int:
        """The number of threads of the user's loader."""
        return self.use.threads or (self.facts.machine.cores if self.facts.machine else 1)

    @property
    def ranks(self) -> int:
        """The number of processes of the job on this machine."""
        return self.settings.local_ranks  # type: ignore[no-any-return]

    @property
    def loader_rate(self) -> float:
        """Samples per second that the user's loader decodes from memory."""
        return self.decodes(self.threads)

    def decodes(self, threads: int) -> float:
        """Returns the samples per second that a loader with some threads decodes from memory.

        Rates between measured numbers of threads are interpolated linearly, not extrapolated.
        """
        images = self.facts.images
        if self.facts.tables is not None:
            return fastest(self.facts.tables.rate)  # type: ignore[no-any-return]
        if images is None:
            return fastest(self.remote.decode_rate)  # type: ignore[no-any-return]
        if not images.rate or not images.one_thread_rate:
            return fastest(images.rate)  # type: ignore[no-any-return]
        rates = dict([(1, images.one_thread_rate), *filter(None, [images.used])])
        rates[images.threads] = images.rate
        counts = sorted(rates)
        return float(np.interp(threads, counts, [rates[count] for count in counts]))

    @property
    def cold_rate(self) -> float:
        """Samples per second from disk, with nothing in the page cache."""
        storage, data = known(self.facts.storage), self.data
        if data.kind in ("tables", "tokens"):  # which are read in large pieces
            return fastest(storage.sequential_bytes_s) / fastest(data.sample_bytes)  # type: ignore[no-any-return]
        rates = storage.cold_reads_s, storage.cold_reads_parallel_s
        return storage.cold_loader_s or fastest(*rates)  # type: ignore[no-any-return]

    @property
    def network_bytes_s(self) -> float:
        """Bytes per second from the store: of a loader if measured, else of the best stream."""
        remote = known(self.facts.remote)
        return remote.loader_bytes_s or fastest(remote.stream_bytes_s, remote.parallel_bytes_s)  # type: ignore[no-any-return]

    @property
    def network_rate(self) -> float:
        """Samples per second from the store."""
        return self.network_bytes_s / fastest(self.data.sample_bytes)  # type: ignore[no-any-return]

    @property
    def copy_rate(self) -> float:
        """Images per second that are copied to the GPU, as uint8 from pinned memory."""
        pixels = self.use.crop**2 if self.images else 0
        return self.gpu.pinned_bytes_s / (3 * pixels)  # type: ignore[no-any-return]

    @property
    def cached_share(self) -> float:
        """The share of a remote dataset that the cache or the loader's memory holds."""
        nbytes = self.facts.data.nbytes if self.facts.data else 0
        if 0 < nbytes <= _HELD_BYTES:
            return 1.0
        if self.use.cache is None or not nbytes:
            return 0.0 if self.use.cache is None else 1.0
        room = self.facts.remote.cache_bytes if self.facts.remote else None
        return 1.0 if room is None else min(1.0, room / nbytes)

    @property
    def in_memory(self) -> bool:
        """Whether every epoch but the first reads from the page cache."""
        data, machine = self.facts.data, self.facts.machine
        if data is None or machine is None or data.remote or not data.complete:
            return False
        return data.nbytes < _RESIDENT * machine.available_bytes

    # --- Packing ----------------------------------------------------------------------------------

    @property
    def trial(self) -> Trial:
        """The trial pack of images as they are, or of rows."""
        return self._trial(shrunk=False)

    @property
    def shrunk(self) -> Trial:
        """The trial pack of smaller images."""
        return self._trial(shrunk=True)

    def _trial(self, shrunk: bool) -> Trial:
        images, tables = self.facts.images, self.facts.tables
        trials = images.trials if images else (tables.trial,) if tables else ()
        found = (t for t in trials if t and t.rate and (t.max_side is not None) == shrunk)
        trial: Trial = known(next(found, None))
        before = trial.before_rate or (images.rate if images else 1 / self.now.prep_s)
        return replace(trial, before_rate=fastest(before))

    def packed(self, trial: Trial) -> Costs:
        """Returns the costs of a sample of the packed data.

        The trial used all threads and a part of the data: the rest is faster by the same factor.
        """
        assert trial.before_rate is not None
        data = known(self.facts.data)
        data = replace(data, nbytes=round(data.nbytes * trial.bytes_share))
        stays = Case(self.facts.replaced(data=data), self.use).in_memory
        prep_s = self.now.prep_s * trial.before_rate / trial.rate
        return replace(
            self.now,
            prep_s=prep_s,
            augment_s=min(self.now.augment_s, prep_s),
            fetch_s=0.0 if stays else self.now.fetch_s * trial.bytes_share,
        )

    def how_to_pack(self, options: str = "") -> str:
        """Returns the commands that pack the data, which is exported first if it is packed."""
        data = known(self.facts.data)
        if data.packed:
            return f"`fastio export {data.path} FOLDER`; {packing('FOLDER', options)}"
        return packing(data.path, options)
