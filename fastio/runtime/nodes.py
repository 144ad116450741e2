"""The number of machines of a distributed run, as the launcher says."""

from __future__ import annotations

import os
from math import gcd


def node_count(world_size: int) -> int:
    """Returns the number of nodes among which the ranks of a run are divided evenly.

    It is the number that torchrun gives to all of its processes, or else Slurm, if its step has one
    task per rank. All ranks get the same number, which divides the world size; 1 if it is unknown.

    Args:
        world_size: number of ranks.
    """
    nodes = _number("GROUP_WORLD_SIZE")
    if nodes is None and _number("SLURM_STEP_NUM_TASKS") == world_size:
        nodes = _number("SLURM_STEP_NUM_NODES")
    return gcd(nodes or 1, world_size)


def _number(name: str) -> int | None:
    """Returns the positive number in an environment variable, or None."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else None
