"""Epochs side by side (warm, cold, DataLoader's), and the rungs of a ladder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fastio.diagnose.measured import Measured, PhaseName, Stage

Part = Stage | Literal["wait"]

_RUNS: dict[Literal["warm", "cold"], PhaseName] = {"warm": "together_warm", "cold": "together_cold"}


@dataclass(frozen=True)
class Epoch:
    """The seconds of one epoch by stage.

    Attributes:
        name: "warm", "cold" or "DataLoader".
        epoch_s: seconds of it.
        samples_per_s: its rate.
        au: accelerator utilisation, 0.0 to 1.0; None: not told.
        stages: seconds of each; of DataLoader, whose workers are not looked into, "compute" alone.
    """

    name: str
    epoch_s: float
    samples_per_s: float
    au: float | None
    stages: dict[Stage, float] = field(default_factory=dict)

    @property
    def wait_s(self) -> float | None:
        """The seconds in which the model did not compute; None if unknown."""
        return self.epoch_s - self.stages["compute"] if "compute" in self.stages else None

    def parts(self) -> list[tuple[Part, float]]:
        """Yields the stages and their seconds, which add up to the epoch, without empty stages."""
        found: list[tuple[Part, float]] = [(s, spent) for s, spent in self.stages.items() if spent]
        rest = self.epoch_s - sum(spent for _, spent in found)
        return [("wait", rest), *found] if rest > 1e-6 * self.epoch_s else found


def epochs(measured: Measured) -> Iterator[Epoch]:
    """Yields the epochs that were measured, DataLoader's last."""
    rows = measured.dataset.rows
    for split in measured.splits:
        if split.epoch_s > 0:
            run = measured.phase(_RUNS[split.name])
            au = run.au if run else None
            yield Epoch(split.name, split.epoch_s, rows / split.epoch_s, au, dict(split.parts()))
    baseline = measured.phase("baseline_together")
    if baseline is not None and baseline.samples and baseline.seconds > 0:
        compute_s = baseline.busy.compute_s / baseline.samples * rows
        yield Epoch(
            "DataLoader",
            measured.epoch_s(baseline),
            baseline.samples_per_s,
            baseline.au,
            {"compute": compute_s} if compute_s else {},
        )


@dataclass(frozen=True)
class Rung:
    """One rung of a ladder: everything of the rungs before it, and one change more.

    Attributes:
        name: the trick in a few words.
        epoch_s: seconds of an epoch; None: it was not measured.
        accuracy: top-1 after training, 0.0 to 1.0; None: nothing was trained.
        shown: whether this machine could show it.
        why_not: why it could not; "" where it could.
    """

    name: str
    epoch_s: float | None = None
    accuracy: float | None = None
    shown: bool = True
    why_not: str = ""

    @property
    def time_s(self) -> float | None:
        """The seconds of an epoch; None if there is nothing to show."""
        return self.epoch_s if self.shown and self.epoch_s else None


def speed_ups(rungs: Sequence[Rung]) -> list[tuple[float | None, float | None]]:
    """Returns each rung's speed-up over the first rung that was shown, and over the previous one.

    None for rungs that were not shown, and for the first.
    """
    first: float | None = None
    before: float | None = None
    found: list[tuple[float | None, float | None]] = []
    for rung in rungs:
        now = rung.time_s
        if now is None or first is None or before is None:
            found.append((None, None))
        else:
            found.append((first / now, before / now))
        if now is not None:
            first, before = first or now, now
    return found
