"""The cost model: seconds of a sample in each stage, and the epoch time that follows.

The method is DS-Analyzer's (Mohan, Phanishayee, Raniwala, Chidambaram: "Analyzing and Mitigating
Data Stalls in DNN Training", VLDB 2021): each stage is measured alone, and stages that run beside
each other take as long as the slowest of them. Two things are added to it. Stages that take turns
on the loop's thread add up; and where loader and model compute on the same cores, nothing is faster
than all processor time divided by the cores.

`costs` derives the costs of a sample from the runs of a bench. `cases.py` derives them from the
facts of the probes and from the statistics of a loader.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from fastio.diagnose.measured import Epoch, Measured, PhaseName, Stage
from fastio.diagnose.thresholds import COLD_IS_SLOWER, MOST_OVERHEAD


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
            if cold and self.fetch_s > COLD_IS_SLOWER * self.prep_s:
                return "fetch"
            return "augment" if self.augment_s > self.prep_s / 2 else "decode"
        stages: dict[Stage, float] = {
            "transform": self.transform_s,
            "copy": self.copy_s,
            "compute": self.compute_s,
        }
        return max(stages, key=lambda stage: stages[stage])


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
    # `loader_warm` was measured with the Python transforms, and the curve without them.
    curve = {point.threads: point.samples_per_s for point in measured.threads}
    alone = curve.get(settings.threads, 0.0) if transform_s else 0.0
    if alone:
        prep_s = 1 / alone
    fetch_s = each("loader_cold", "seconds")
    warm = measured.phase("loader_warm")
    return Costs(
        prep_s=prep_s,
        augment_s=prep_s * warm.stats.augment_share if warm else 0.0,
        # A cold run that is hardly slower does not wait for storage: the difference is noise.
        fetch_s=fetch_s if fetch_s > COLD_IS_SLOWER * max(prep_s, transform_s) else 0.0,
        transform_s=transform_s,
        copy_s=each("together_warm", "stats.copy_s"),
        compute_s=each("compute", "seconds"),
        prep_cpu_s=max(0.0, each("loader_warm", "cpu_s") - transform_s),
        compute_cpu_s=0.0 if settings.asynchronous else each("compute", "cpu_s"),
        cores=max(1, measured.machine.cores),
        asynchronous=settings.asynchronous,
        blocking_copies=settings.blocking_copies,
    )


def epoch_after(measured: Measured, after: Costs, cold: bool = False) -> float:
    """Returns the predicted seconds of an epoch.

    Args:
        measured: the measurements of the present epoch. If it took longer than the cost model
            says, the side that it waited for (loader or loop) is assumed to stay slower than its
            costs by the same factor.
        after: the costs of a sample after the change.
        cold: whether the epoch reads from storage.
    """
    now = costs(measured)
    together = measured.phase("together_warm")
    overhead = 1.0
    if together is not None and together.samples and now.sample_s() > 0:
        overhead = together.seconds / together.samples / now.sample_s()
    overhead = min(max(overhead, 1.0), MOST_OVERHEAD)
    # The side that was not waited for (loader or loop) had idle time, so the overhead applies only
    # to the other side.
    loader = now.waits_for() in ("decode", "augment", "fetch")
    supply_s = after.supply_s(cold) * (overhead if loader else 1.0)
    loop_s = after.loop_s * (1.0 if loader else overhead)
    return max(supply_s, loop_s, after.cpu_s) * measured.dataset.rows


def epoch_now(measured: Measured, cold: bool = False) -> float:
    """Returns the seconds of an epoch as it is: measured together, or computed from the phases."""
    phase = measured.phase("together_cold" if cold else "together_warm")
    if phase is not None and phase.samples:
        return measured.epoch_s(phase)
    return epoch_after(measured, costs(measured), cold)


def cold_epoch(warm: Epoch, epoch_s: float, wait_s: float) -> Epoch:
    """Returns a cold epoch by stage.

    The time by which it is longer than the warm epoch counts as fetching, but at most the time in
    which the loop waited. The rest of the difference has another cause, such as a busy machine that
    makes the model slower. It is divided among the stages of the warm epoch in proportion.

    Args:
        warm: the warm epoch.
        epoch_s: seconds of the cold epoch.
        wait_s: seconds of the cold epoch in which the loop waited for a batch.
    """
    fetch_s = min(max(0.0, epoch_s - warm.epoch_s), wait_s)
    rest = (epoch_s - fetch_s) / warm.epoch_s if warm.epoch_s else 0.0
    stages = {stage: spent * rest for stage, spent in warm.stages.items()}
    return Epoch("cold", epoch_s, stages | {"fetch": fetch_s})
