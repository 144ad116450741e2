"""From what was measured to "you wait for X; do Y": pure arithmetic, no clock, no files."""

from __future__ import annotations

from fastio.diagnose.costs import Costs, costs
from fastio.diagnose.diagnosis import (
    Change,
    changes,
    cold_split,
    diagnose,
    epoch_after,
    epoch_now,
    predictions,
)
from fastio.diagnose.findings import Culprit, Finding, by_gain
from fastio.diagnose.measured import (
    LEAST_STEPS,
    Busy,
    DatasetFacts,
    Machine,
    Measured,
    Memory,
    Phase,
    PhaseName,
    Prediction,
    Settings,
    Span,
    Split,
    Stage,
    Storage,
    ThreadRate,
    Training,
)

__all__ = [
    "LEAST_STEPS",
    "Busy",
    "Change",
    "Costs",
    "Culprit",
    "DatasetFacts",
    "Finding",
    "Machine",
    "Measured",
    "Memory",
    "Phase",
    "PhaseName",
    "Prediction",
    "Settings",
    "Span",
    "Split",
    "Stage",
    "Storage",
    "ThreadRate",
    "Training",
    "by_gain",
    "changes",
    "cold_split",
    "costs",
    "diagnose",
    "epoch_after",
    "epoch_now",
    "predictions",
]
