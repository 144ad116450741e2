"""What the rules are asked about: facts of the probes, the runs of a bench, a loader's statistics.

`Case` has what the probes of a doctor found, and what follows from it. `BenchCase` and `StatsCase`
answer the same questions from what ran. Each has the costs of a sample (`now`) and says how much
faster an epoch would be with others (`gain`), so that one rule serves all three. What a case does
not know raises Unknown, and the rules that ask for it do not apply.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np

from fastio.diagnose.costs import Costs, costs, epoch_after, epoch_now
from fastio.diagnose.facts import Facts, MachineFacts, Trial
from fastio.diagnose.findings import Culprit, faster_model, packing
from fastio.diagnose.measured import Measured, Stage
from fastio.diagnose.options import Use
from fastio.diagnose.thresholds import FITS_IN_MEMORY, HELD_BYTES, LEAST_GAIN
from fastio.runtime.properties import cached_property
from fastio.stats import Stats


class Unknown(Exception):
    """A fact that was asked for is not known."""


class Known:
    """An object whose attributes raise Unknown if they are None."""

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
    return Case(facts, use).given("now")  # type: ignore[no-any-return]


class Case(Known):
    """The facts that the probes found, and what follows from them for a way of using the data.

    Whatever is not known raises Unknown: the parts of the facts, their values, and what follows.

    Attributes:
        facts, use: the facts with None for what is not known; how the data is loaded.
        stats, busy: statistics of a loader that ran, and what its threads did, as text.
        model_share: the share of an epoch in which the model computes.
        model_advice: what can make the model faster.
    """

    stats: Stats | None = None
    busy: str | None = None
    model_share: float | None = None
    model_advice = faster_model()

    def __init__(self, facts: Facts, use: Use) -> None:
        super().__init__(facts)
        self.facts, self.use = facts, use

    def given(self, name: str) -> Any:
        """Returns the attribute with a name, which is computed from the facts; None if unknown."""
        try:
            return getattr(self, name)
        except Unknown:
            return None

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
        # A loader without a cache keeps up to this size in memory, and fetches nothing in later
        # epochs.
        if 0 < nbytes <= HELD_BYTES:
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
        return data.nbytes < FITS_IN_MEMORY * machine.available_bytes

    # --- What the rules of stages ask: another kind of case answers otherwise ---------------------

    def is_slow(self, culprit: Culprit) -> bool:
        """Returns whether an epoch is known to wait for this culprit; for unknown costs."""
        if culprit == "network":
            return self.use.cache is None and self.cached_share < 1.0 and self.network_rate > 0
        return culprit == "fetch" and self.facts.storage is not None

    def waits(self, culprit: Culprit) -> str:
        """Returns the beginning of a sentence on what an epoch waits for."""
        return "an epoch waits for"

    def gain(self, after: Costs, culprit: Culprit) -> float:
        """Returns the speed-up of an epoch with other costs, of which the culprit's are lower."""
        # If no rate is known, the gain is unknown: the computed time of an epoch would be 0.
        if not after.rates():
            raise Unknown
        return self.now.gain_of(after)

    @property
    def rates_by_threads(self) -> dict[int, float]:
        """Samples per second of the loader, by its number of threads."""
        cores: int = self.machine.cores
        return {count: self.decodes(count) for count in sorted({self.threads, cores})}

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
        share = 1.0 if trial.bytes_share is None else trial.bytes_share
        data = replace(data, nbytes=round(data.nbytes * share))
        stays = Case(replace(self.facts, data=data), self.use).in_memory
        faster = trial.before_rate / trial.rate
        prep_s = self.now.prep_s * faster
        return replace(
            self.now,
            prep_s=prep_s,
            prep_cpu_s=self.now.prep_cpu_s * faster,
            augment_s=min(self.now.augment_s, prep_s),
            fetch_s=0.0 if stays else self.now.fetch_s * share,
        )

    def how_to_pack(self, options: str = "") -> str:
        """Returns the commands that pack the data, which is exported first if it is packed."""
        data = known(self.facts.data)
        if data.packed:
            return f"`fastio export {data.path} FOLDER`; {packing('FOLDER', options)}"
        return packing(data.path, options)


# --- What ran -------------------------------------------------------------------------------------

_STAGES: dict[Culprit, tuple[Stage, ...]] = {  # the stages in which a culprit causes waits
    "network": ("fetch",),
    "threads": ("decode", "augment"),  # which the same threads do
}


class BenchCase(Case):
    """The runs of a bench. Epochs are those that it measured; a cold one waits for storage."""

    def __init__(self, measured: Measured) -> None:
        settings = measured.settings
        super().__init__(
            Facts(measured.machine, data=measured.dataset),
            Use(settings.batch_size, settings.threads),
        )
        self.measured = measured
        warm, codec = measured.epoch("warm"), measured.dataset.codec
        if warm is not None and warm.epoch_s:
            self.model_share = warm.stages.get("compute", 0.0) / warm.epoch_s
        self.model_advice = faster_model(
            amp=bool(settings.amp),
            channels_last=settings.channels_last or not codec,
            compiled=settings.compile,
        )

    @cached_property
    def now(self) -> Costs:
        """The costs of a sample."""
        return costs(self.measured)

    @property
    def limit(self) -> Stage:
        """The stage that a warm epoch waits for."""
        return self.now.waits_for()

    @property
    def rate(self) -> float:
        """Samples per second of that stage."""
        return self.now.samples_per_s()

    def is_slow(self, culprit: Culprit) -> bool:
        """Returns whether a cold epoch waits for this storage, or a warm one for another stage."""
        if culprit not in ("network", "fetch"):
            return self.limit == culprit
        by_network = self.measured.dataset.storage == "network"
        slow = self.now.waits_for(cold=True) == "fetch"
        return slow and by_network == (culprit == "network")

    def waits(self, culprit: Culprit) -> str:
        """Returns the beginning of a sentence with the share of an epoch that waits."""
        cold, stages = culprit in ("network", "fetch"), _STAGES.get(culprit, (culprit,))
        epoch = self.measured.epoch("cold" if cold else "warm")
        if epoch is None or not epoch.epoch_s:
            return super().waits(culprit)
        share = sum(spent for stage, spent in epoch.stages.items() if stage in stages)
        return f"{share / epoch.epoch_s:.0%} of {'a cold' if cold else 'an'} epoch waits for"

    def gain(self, after: Costs, culprit: Culprit) -> float:
        """Returns the speed-up of the measured epoch with other costs."""
        now_s = epoch_now(self.measured, cold=culprit in ("network", "fetch"))
        after_s = epoch_after(self.measured, after)
        return now_s / after_s if after_s else 1.0

    @property
    def rates_by_threads(self) -> dict[int, float]:
        """Samples per second of the loader, by its number of threads, as they were measured."""
        return {point.threads: point.samples_per_s for point in self.measured.threads}

    @property
    def trial(self) -> Trial:
        """The part of the data that was packed as a trial."""
        rate = self.measured.packed_samples_per_s
        if not rate or not self.now.prep_s:
            raise Unknown
        return Trial("blocks", None, 0, rate, None, 1 / self.now.prep_s)


class StatsCase(Case):
    """The statistics of a loader that ran.

    The gain of a remedy assumes that it removes the whole wait of its culprit. An epoch never takes
    less than the loader's threads and the model need. Without the model's rate, gains are upper
    bounds.

    Args:
        stats: the statistics of a loader, or the difference of two snapshots, of some time.
        cores: number of cores that the process may use.
        model_rate: samples per second that the model takes when data is there; None if unknown.

    Attributes:
        waited: the seconds of waiting by what causes it, as far as it is known.
    """

    def __init__(self, stats: Stats, cores: int, model_rate: float | None) -> None:
        use = Use(threads=stats.threads or None, model_rate=model_rate)
        super().__init__(Facts(MachineFacts("", cores, "", 0)), use)
        self.stats: Stats = stats
        self._samples = max(1, stats.samples)
        self._model_s = stats.samples / model_rate if model_rate else None
        # Between two batches the loop may do more than the model needs, such as copies and logging.
        own_s = stats.between_s if self._model_s is None else min(stats.between_s, self._model_s)
        self.model_share = own_s / stats.elapsed_s
        self.waited: dict[Culprit, float] = {
            self._threads_culprit: stats.wait_s - stats.fetch_s - stats.transform_s,
            "network": stats.fetch_s,
            "transform": stats.transform_s,
        }
        if not stats.copy_s:  # else a stream of the loader copies
            self.waited["copy"] = stats.between_s - own_s
        if stats.path == "native":
            workers = f"; workers: {stats.sample_s:.1f} s in per-sample functions"
            self.busy = (
                f"threads: {stats.read_s:.1f} s reading, {stats.decode_s:.1f} s decoding, "
                f"{stats.resample_s:.1f} s resizing, {stats.augment_s:.1f} s augmenting"
            ) + workers * bool(stats.sample_s)

    @property
    def _threads_culprit(self) -> Culprit:
        """What makes threads or workers slow."""
        stats = self.stats
        if stats.path == "torch":
            return "threads"
        if stats.sample_s > stats.busy_s:
            return "augment"
        if 0 < stats.threads < self.facts.machine.cores:  # type: ignore[union-attr]
            return "threads"
        if stats.augment_s > stats.busy_s / 2:
            return "augment"
        return "fetch" if stats.read_s > stats.busy_s / 2 else "decode"

    @cached_property
    def now(self) -> Costs:
        """The costs of a sample that are known from counters: the least that each stage takes."""
        stats, each = self.stats, 1 / self._samples
        threads = max(1, stats.threads)
        return Costs(
            prep_s=(stats.busy_s - stats.read_s) / threads * each,
            augment_s=stats.augment_s / threads * each,
            transform_s=stats.transform_s * each,
            copy_s=(stats.copy_s or self.waited["copy"]) * each,
            compute_s=(self._model_s or 0.0) * each,
            blocking_copies=not stats.copy_s,
        )

    @property
    def limit(self) -> Stage:
        """The stage that the loop waited for."""
        if self.stats.copy_s * LEAST_GAIN >= self.stats.elapsed_s:
            return "copy"
        waits = self.stats.elapsed_s >= LEAST_GAIN * self.stats.between_s
        return "decode" if waits else "compute"

    @property
    def rate(self) -> float:
        """Samples per second of the loop."""
        return self._samples / self.stats.elapsed_s

    def is_slow(self, culprit: Culprit) -> bool:
        """Returns whether the loop waited for this culprit."""
        return self.waited.get(culprit, 0.0) > 0.0

    def waits(self, culprit: Culprit) -> str:
        """Returns the beginning of a sentence with the share of the time, if it is known."""
        if culprit not in self.waited:
            return super().waits(culprit)
        return f"{self.waited[culprit] / self.stats.elapsed_s:.0%} of an epoch waits for"

    def gain(self, after: Costs, culprit: Culprit) -> float:
        """Returns the speed-up without the waiting of a culprit."""
        elapsed_s = self.stats.elapsed_s
        # A lower limit, because the time is 0 if no stage has a known cost.
        least_s = max(after.sample_s() * self._samples, 1e-3 * elapsed_s)
        waited_s: float = known(self.waited.get(culprit))
        return max(1.0, elapsed_s / max(elapsed_s - waited_s, least_s))

    @property
    def rates_by_threads(self) -> dict[int, float]:
        """Samples per second: more threads give at most as many more as they are."""
        if self.stats.path != "native" or self._threads_culprit != "threads":
            raise Unknown
        cores = self.machine.cores
        return {self.threads: self.rate, cores: self.rate * cores / self.threads}
