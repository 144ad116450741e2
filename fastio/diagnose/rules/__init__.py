"""Rules that turn measurements into findings. A rule depends on nothing but what it is asked about.

- `rule`: what a rule is
- `stages`: what an epoch waits for, stage by stage, and the remedies
- `data`, `machine`: what data, machine, torch and model lack

Doctor, bench and the statistics of a loader ask the same rules, each with its own kind of case
(`cases.py`). All thresholds are in `thresholds.py`.
"""

from __future__ import annotations

from fastio.diagnose.cases import BenchCase, Case, StatsCase
from fastio.diagnose.costs import epoch_after, epoch_now
from fastio.diagnose.facts import Facts
from fastio.diagnose.findings import Finding, by_gain
from fastio.diagnose.measured import Measured, Prediction
from fastio.diagnose.options import Use
from fastio.diagnose.rules.data import DATA_RULES
from fastio.diagnose.rules.machine import MACHINE_RULES
from fastio.diagnose.rules.stages import LIMIT_RULES, MODEL_RULE, STAGE_RULES
from fastio.stats import Stats

# What is waited for comes before what might be better, where no gain tells them apart.
RULES = (MODEL_RULE, *STAGE_RULES, *DATA_RULES, *MACHINE_RULES)


def diagnose(found: Facts | Measured, use: Use | None = None) -> tuple[Finding, ...]:
    """Returns the findings, the largest gain first; those without a known gain come last.

    Args:
        found: the facts of the probes, or the result of a bench.
        use: how the data is loaded; a bench tells that itself.
    """
    return _findings(BenchCase(found) if isinstance(found, Measured) else Case(found, use or Use()))


def diagnose_stats(
    stats: Stats, cores: int, model_rate: float | None = None
) -> tuple[Finding, ...]:
    """Returns the findings from `Loader.stats()` of some epochs, the largest gain first.

    Args:
        stats: the statistics of a loader, or the difference of two snapshots.
        cores: number of cores that the process may use.
        model_rate: samples per second that the model takes when data is there; None if unknown.
            Without it, gains are upper bounds.
    """
    return _findings(StatsCase(stats, cores, model_rate)) if stats.elapsed_s else ()


def _findings(case: Case) -> tuple[Finding, ...]:
    found = [finding for rule in RULES for finding in rule.findings(case)]
    limits = [finding for rule in LIMIT_RULES for finding in rule.findings(case)]
    # Limits without a gain would only repeat what the other findings say an epoch waits for.
    if any(one.gain is not None for one in found):
        limits = [one for one in limits if one.gain is not None]
    return by_gain([*limits, *found])


def predictions(measured: Measured) -> tuple[Prediction, ...]:
    """Returns the epoch times now, cold and warm, and after each change, the shortest first."""
    cold, warm = measured.phase("together_cold"), measured.phase("together_warm")
    now = [
        Prediction(f"now, {name}", measured.epoch_s(phase), measured.epoch_s(phase))
        for name, phase in (("cold", cold), ("warm", warm))
        if phase is not None
    ]
    known = None if warm is None else epoch_now(measured)  # what a remedy for storage would bring
    after = [
        Prediction(
            name, epoch_after(measured, costs), known if culprit in ("network", "fetch") else None
        )
        for rule in RULES
        for name, culprit, costs in rule.changes(BenchCase(measured))
    ]
    return (*now, *sorted(after, key=lambda one: one.epoch_s))


__all__ = ["RULES", "diagnose", "diagnose_stats", "predictions"]
