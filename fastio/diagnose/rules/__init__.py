"""From facts to findings: one file a family. A rule is a function of facts and use alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastio.diagnose.facts import Facts
from fastio.diagnose.findings import Finding, by_gain
from fastio.diagnose.measured import Measured
from fastio.diagnose.rules.images import IMAGE_RULES
from fastio.diagnose.rules.live import diagnose_stats
from fastio.diagnose.rules.machine import MACHINE_RULES
from fastio.diagnose.rules.model import MODEL_RULES, slow_model
from fastio.diagnose.rules.runs import diagnose as diagnose_runs
from fastio.diagnose.rules.storage import STORAGE_RULES
from fastio.diagnose.rules.tables import TABLE_RULES
from fastio.diagnose.use import Use

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
    """What could be changed, the largest gain first; those whose gain cannot be told last."""
    if isinstance(found, Measured):
        return diagnose_runs(found)
    use = use or Use()
    findings = [finding for rule in RULES for finding in rule(found, use)]
    return by_gain(one for one in findings if one.gain is None or one.gain >= _WORTH)


__all__ = ["RULES", "diagnose", "diagnose_stats"]
