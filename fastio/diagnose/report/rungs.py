"""The rungs of a ladder: one trick more each, with its epoch time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
