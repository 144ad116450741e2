"""What a sample costs in each stage, and what an epoch takes then.

The method is DS-Analyzer's (Mohan, Phanishayee, Raniwala, Chidambaram: "Analyzing and Mitigating
Data Stalls in DNN Training", VLDB 2021): each stage is measured alone, and stages that run beside
each other take as long as the slowest of them. Two things are added to it. Stages that take turns
on the loop's thread add up; and where loader and model compute on the same cores, nothing is faster
than all processor time divided by the cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastio.diagnose.measured import Measured, Stage


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
