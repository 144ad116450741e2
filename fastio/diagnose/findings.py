"""Findings of a diagnosis: cause, remedy, predicted gain; and remedies of several rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Culprit = Literal[
    "fetch",  # a local disk, or a file system that behaves like one
    "network",  # bytes that come from another machine
    "decode",  # the format: decoding takes all threads
    "augment",  # operations on pixels, such as ColorJitter, in Python
    "transform",  # transforms written in Python
    "threads",  # fewer threads than cores, or more than are of use
    "copy",  # memory to the device
    "compute",  # the model: data is not what is waited for
    "memory",  # too little of it, or the allocator
    "files",  # many small files, images larger than needed, progressive JPEGs
    "settings",  # of the model's run: TF32, autocast, channels_last, compile, ...
    "machine",  # what the machine lacks or shares: instruction sets, quotas, swap
]


@dataclass(frozen=True)
class Finding:
    """One cause of lost time, and its remedy.

    Attributes:
        culprit: the cause.
        waits_for: what is waited for, as a sentence without a full stop: "the model waits 62% of
            an epoch for threads that decode".
        advice: what to do: a command or an argument.
        gain: predicted speed-up of an epoch, 1.0 or more; None if unknown.
        evidence: short lines with the measurements.
    """

    culprit: Culprit
    waits_for: str
    advice: str
    gain: float | None = None
    evidence: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values."""
        return asdict(self)


def by_gain(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Returns the findings sorted by gain, the largest first; those without a gain come last."""
    return tuple(sorted(findings, key=lambda one: -(one.gain or 0.0)))


# --- Remedies -------------------------------------------------------------------------------------

COPIES_AHEAD = (
    "Loader(device=...): batches are copied from pinned memory on a stream of their own, ahead of "
    "the step"
)


def packing(path: str | None, options: str = "") -> str:
    """Returns the command that packs the data at a path."""
    return f"`fastio pack {path or 'DATA'} PACKED{options}`, then Loader('PACKED')"


def faster_model(*, amp: bool = False, channels_last: bool = False, compiled: bool = False) -> str:
    """Returns how a model can be made faster, without what it uses already."""
    known = (
        ("autocast to bf16", amp),
        ("channels_last", channels_last),
        ("torch.compile", compiled),
        ("a larger batch", False),
    )
    ways = ", ".join(name for name, there in known if not there)
    return f"make the model faster ({ways}), or train on more accelerators"
