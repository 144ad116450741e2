"""Rules that turn facts into findings, one file per family. A rule depends on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastio.diagnose.facts import Facts
from fastio.diagnose.findings import Finding, by_gain
from fastio.diagnose.measured import Measured
from fastio.diagnose.options import Use
from fastio.diagnose.rules.images import IMAGE_RULES
from fastio.diagnose.rules.live import diagnose_stats
from fastio.diagnose.rules.machine import MACHINE_RULES
from fastio.diagnose.rules.model import MODEL_RULES, slow_model
from fastio.diagnose.rules.runs import of_runs
from fastio.diagnose.rules.storage import STORAGE_RULES
from fastio.diagnose.rules.tables import TABLE_RULES

Rule = Callable[[Facts, Use], Iterable[Finding]]

# What is waited for comes before what might be better, where no gain tells them apart.
RULES: tuple[Rule, ...] = (
    slow_model,
    *IMAGE_RULES,
    *TABLE_RULES,
    *STORAGE_RULES,
    *MACHINE_RULES,
    *MODEL_RULES,
)
_WORTH = 1.03  # a gain that is less is not worth a line


def diagnose(found: Facts | Measured, use: Use | None = None) -> tuple[Finding, ...]:
    """Returns the findings, the largest gain first; those without a known gain come last.

    Args:
        found: by the probes, or in the runs of a bench, which are asked the same rules: of a bench
            those of its machine and its data apply.
        use: how the data is loaded; a bench tells that itself.
    """
    if isinstance(found, Measured):
        first = of_runs(found)
        facts = Facts(found.machine, data=found.dataset)
        use = Use(found.settings.batch_size, found.settings.threads)
    else:
        first, facts, use = (), found, use or Use()
    findings = [*first, *(finding for rule in RULES for finding in rule(facts, use))]
    return by_gain(one for one in findings if one.gain is None or one.gain >= _WORTH)


__all__ = ["RULES", "diagnose", "diagnose_stats"]
