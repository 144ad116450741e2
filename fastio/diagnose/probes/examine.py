"""All probes, in their order."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from fastio.diagnose.facts import Facts, StorageFacts
from fastio.diagnose.options import Use
from fastio.diagnose.probes.data import Data, look_at
from fastio.diagnose.probes.gpu import gpu_facts
from fastio.diagnose.probes.images import image_facts
from fastio.diagnose.probes.machine import CoreTimes, cores_of_others, machine_facts, settings_facts
from fastio.diagnose.probes.rates import Attempts
from fastio.diagnose.probes.remote import remote_facts
from fastio.diagnose.probes.storage import cold_loader_rate, storage_facts, write_rate
from fastio.diagnose.probes.tables import table_facts

BUDGET_S = 45.0  # no probe begins later
_WATCHED_S = 1.0  # that others' use of the cores is watched for where nothing else is measured


def examine(path: str | None = None, use: Use | None = None) -> Facts:
    """Measures the machine, and a dataset if one is given, in less than a minute.

    Args:
        path: what a loader takes, a path or a URL; None: the machine alone.
        use: how it is loaded.

    Raises:
        SourceNotFound: there is nothing at the path that a loader takes.
        FastioError: it is damaged, or its store says why it does not give it.
        TimeoutError: its store does not answer.
    """
    use, began = use or Use(), CoreTimes.now()
    attempts = Attempts(BUDGET_S)
    data = None if path is None else look_at(path, use.storage_options)
    machine = attempts("the machine", machine_facts)
    settings = attempts("torch's settings", settings_facts)
    gpu = attempts("the GPU", gpu_facts)
    facts = Facts(machine, settings, gpu)
    if data is None:
        time.sleep(_WATCHED_S)
    else:
        facts = _of_data(facts, data, use, attempts)
    if machine is not None:
        others = cores_of_others(began, CoreTimes.now())
        facts = facts.replaced(machine=replace(machine, others_cores=others))
    return facts.replaced(notes=tuple(attempts.notes))


def _of_data(facts: Facts, data: Data, use: Use, attempts: Attempts) -> Facts:
    """Returns the facts with those of the data added."""
    threads = facts.machine.cores if facts.machine else 1
    facts = facts.replaced(data=data.facts)
    if data.facts.remote:
        return facts.replaced(remote=remote_facts(data, use, threads, attempts))
    # Before anything else reads the files.
    storage = attempts("storage", _storage, data, use, threads, attempts)
    facts = facts.replaced(storage=storage)
    if data.facts.kind in ("tables", "tokens"):
        return facts.replaced(tables=attempts("tables", table_facts, data, use, threads, attempts))
    return facts.replaced(images=attempts("images", image_facts, data, use, threads, attempts))


def _storage(data: Data, use: Use, threads: int, attempts: Attempts) -> StorageFacts | None:
    """Returns `storage_facts` with the cold rate of a loader and the write rate of the scratch
    folder.
    """
    found = storage_facts(data, data.facts.sample_bytes, attempts)
    if found is None:
        return None
    if data.facts.kind in ("folder", "packed"):
        cold = attempts("a cold loader", cold_loader_rate, data, use, use.threads or threads)
        found = replace(found, cold_loader_s=cold)
    if use.scratch is None:
        return found
    rate = attempts("writing to the scratch folder", write_rate, Path(use.scratch))
    return replace(found, write_bytes_s=rate)
