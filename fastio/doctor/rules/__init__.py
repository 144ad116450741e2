"""From facts to findings: one file a family. A rule is a function of facts and use alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastio.diagnose.findings import Finding, by_gain
from fastio.doctor.facts import Facts
from fastio.doctor.rules.images import IMAGE_RULES
from fastio.doctor.rules.live import diagnose_stats
from fastio.doctor.rules.machine import MACHINE_RULES
from fastio.doctor.rules.model import MODEL_RULES, slow_model
from fastio.doctor.rules.storage import STORAGE_RULES
from fastio.doctor.rules.tables import TABLE_RULES
from fastio.doctor.use import Use

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


def diagnose(facts: Facts, use: Use) -> tuple[Finding, ...]:
    """What could be changed, the largest gain first; those whose gain cannot be told last."""
    found = [finding for rule in RULES for finding in rule(facts, use)]
    return by_gain(one for one in found if one.gain is None or one.gain >= _WORTH)


__all__ = ["RULES", "diagnose", "diagnose_stats"]
