"""Benches made up for tests: what a machine would have measured."""

from __future__ import annotations

from typing import Any, Literal

from fastio.diagnose import Measured
from fastio.diagnose.facts import DataFacts, MachineFacts
from fastio.diagnose.measured import STAGES, Epoch, Phase, PhaseName, Settings
from fastio.stats import Stats

ROWS = 10_000
SAMPLES = 1_000  # of every phase


def measured(
    phases: list[Phase],
    *,
    cores: int = 4,
    kind: str = "packed",
    storage: Any = "disk",
    settings: dict[str, Any] | None = None,
    **others: Any,
) -> Measured:
    """A bench with these phases, on a packed dataset of ROWS images."""
    return Measured(
        MachineFacts(
            "Test CPU", cores, "avx2", 1 << 35, "2.13", "cpu", "2026-11-22T08:00:00+00:00"
        ),
        DataFacts("data", kind, {"blocks": ROWS}, ROWS, ROWS * 100_000, 100_000.0, storage),
        Settings(**{"batch_size": 100, "threads": 2, **(settings or {})}),
        tuple(phases),
        **others,
    )


def split(name: Literal["warm", "cold"], *seconds: float) -> Epoch:
    """An epoch with the seconds of each stage but augmentation, in the order of the data flow."""
    stages = [stage for stage in STAGES if stage != "augment"]
    return Epoch(name, sum(seconds), dict(zip(stages, seconds, strict=True)))


def phase(name: PhaseName, us: float, **busy_us: float) -> Phase:
    """A phase of SAMPLES.

    Args:
        name: which.
        us: microseconds a sample.
        busy_us: of its stages, by the names of `Stats` and `Phase` without the unit.
    """
    busy = {f"{stage}_s": value * SAMPLES / 1e6 for stage, value in busy_us.items()}
    own = {name: busy.pop(name, 0.0) for name in ("compute_s", "cpu_s")}
    stats = Stats(**busy, bytes_read=SAMPLES * 100_000)  # type: ignore[arg-type]
    return Phase(name, SAMPLES, us * SAMPLES / 1e6, stats, steps=10, **own)
