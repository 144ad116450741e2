"""Rules that turn facts into findings. A rule depends on nothing but the facts and the costs.

- `rule`: what a rule is, and what it is asked about
- `data`, `machine`: the rules of the doctor, of which those that apply are asked of a bench, too
- `runs`: what a bench finds and predicts, and what the statistics of a loader show
"""

from __future__ import annotations

from fastio.diagnose.costs import Case
from fastio.diagnose.facts import Facts
from fastio.diagnose.findings import Finding, by_gain
from fastio.diagnose.measured import Measured
from fastio.diagnose.options import Use
from fastio.diagnose.rules.data import IMAGE_RULES, STORAGE_RULES, TABLE_RULES
from fastio.diagnose.rules.machine import MACHINE_RULES, MODEL_RULES, SLOW_MODEL
from fastio.diagnose.rules.runs import diagnose_stats, of_runs

# What is waited for comes before what might be better, where no gain tells them apart.
RULES = (
    SLOW_MODEL,
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
        found: the facts of the probes, or the result of a bench. For a bench, the rules of its
            machine and its data are asked beside those of its runs.
        use: how the data is loaded; a bench tells that itself.
    """
    first: tuple[Finding, ...] = ()
    if isinstance(found, Measured):
        first, facts = of_runs(found), Facts(found.machine, data=found.dataset)
        case = Case(facts, Use(found.settings.batch_size, found.settings.threads))
    else:
        case = Case(found, use or Use())
    findings = [*first, *(finding for rule in RULES for finding in rule.findings(case))]
    return by_gain(one for one in findings if one.gain is None or one.gain >= _WORTH)


__all__ = ["RULES", "diagnose", "diagnose_stats"]
