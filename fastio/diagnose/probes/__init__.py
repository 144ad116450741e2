"""Probes: each measures one thing and returns facts. Bounded in time and bytes; they only read.

What a probe cannot find out is None, and a note says why.

- `machine`: machine, settings, GPU, what other processes use
- `data`, `storage`, `remote`: what the dataset is, and how fast its bytes come
- `samples`: how fast images and rows are decoded, as they are and packed as a trial
- `rates`: attempts that may fail or hang; samples a second of loaders that are compared
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from fastio.diagnose.facts import Facts
from fastio.diagnose.imagesteps import ImageSteps
from fastio.diagnose.options import Use, check_applies
from fastio.diagnose.probes.data import Context, look_at
from fastio.diagnose.probes.machine import (
    CoreTimes,
    cores_of_others,
    gpu_facts,
    machine_facts,
    settings_facts,
)
from fastio.diagnose.probes.rates import Attempts
from fastio.diagnose.probes.remote import remote_facts
from fastio.diagnose.probes.samples import image_facts, table_facts
from fastio.diagnose.probes.storage import storage_facts

__all__ = ["examine"]

BUDGET_S = 45.0  # no probe begins later
_WATCHED_S = 1.0  # how long other processes are watched if there is no data to measure


def examine(path: str | None = None, use: Use | None = None) -> Facts:
    """Measures the machine, and a dataset if one is given, in less than a minute.

    Args:
        path: path or URL of data that a loader reads; None examines the machine only.
        use: how the user loads the data.

    Raises:
        SourceNotFound: there is nothing at the path that a loader takes.
        BenchError: the transforms of `use.pipeline` cannot be imported.
        OptionError: an option does not apply to the data.
        FastioError: the data is damaged, or its store refuses access.
        TimeoutError: the store does not answer.
    """
    use, began = use or Use(), CoreTimes.now()
    attempts = Attempts(BUDGET_S)
    if use.pipeline is not None:
        ImageSteps.named(use.pipeline)  # a mistake in it is an error, not a probe that failed
    data = None if path is None else look_at(path, use.storage_options)
    if data is not None:
        kind, remote = data.facts.kind, data.facts.remote
        images = remote or kind not in ("tables", "tokens", "sounds")
        check_applies(use, data.facts.path, images=images, tokens=True, remote=remote)
    facts = Facts(
        **attempts.each(
            {
                "machine": ("the machine", machine_facts),
                "settings": ("torch's settings", settings_facts),
                "gpu": ("the GPU", gpu_facts),
            }
        )
    )
    machine = facts.machine
    if data is None:
        time.sleep(_WATCHED_S)
    else:
        context = Context(data, use, attempts, machine.cores if machine else 1)
        facts = replace(facts, data=data.facts, **attempts.each(_probes(context)))
    if machine is not None:
        others = cores_of_others(began, CoreTimes.now())
        facts = replace(facts, machine=replace(machine, others_cores=others))
    return replace(facts, notes=tuple(attempts.notes))


def _probes(context: Context) -> dict[str, tuple[Any, ...]]:
    """Returns the probes of a kind of data, by the part of the facts that they find out."""
    if context.data.facts.remote:
        return {"remote": ("the store", remote_facts, context)}
    samples: dict[str, tuple[Any, ...]] = {"images": ("images", image_facts, context)}
    if context.data.facts.kind in ("tables", "tokens"):
        samples = {"tables": ("tables", table_facts, context)}
    # Before anything else reads the files.
    return {"storage": ("storage", storage_facts, context), **samples}
