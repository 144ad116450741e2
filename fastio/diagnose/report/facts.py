"""What the probes found, in a few lines: the machine, the data, and the rate of each stage."""

from __future__ import annotations

from fastio.diagnose.costs import Costs, cold_rate, network_bytes_s, stays_in_memory
from fastio.diagnose.facts import Facts
from fastio.diagnose.report import words
from fastio.diagnose.use import Use


def fact_lines(facts: Facts, now: Costs | None, use: Use) -> list[tuple[str, str]]:
    """Returns lines (subject, text) of all facts that are known.

    Args:
        facts: of the probes.
        now: what a sample costs by them; None: not known.
        use: how the data is loaded.
    """
    lines = [
        ("machine", _machine(facts)),
        ("data", _data(facts)),
        ("memory", _memory(facts)),
        ("rates", _rates(facts, now)),
        ("you wait for", _waits(facts, now, use)),
    ]
    notes = [("not measured", note) for note in facts.notes]
    return [(name, text) for name, text in (*lines, *notes) if text]


def _machine(facts: Facts) -> str:
    machine, settings, gpu = facts.machine, facts.settings, facts.gpu
    if machine is None:
        return ""
    parts = [f"{words.counted(machine.cores, 'cores')} of {machine.cpu} ({machine.simd})"]
    if machine.others_cores is not None:
        parts.append(f"{machine.others_cores:.1f} used by other processes")
    parts.append(f"{words.size(machine.memory_bytes)} of memory")
    if gpu is not None:
        parts.append(f"{gpu.count} x {gpu.name}" if gpu.count > 1 else gpu.name)
    if settings is not None:
        threads = words.counted(settings.torch_threads, "threads")
        parts.append(f"torch {machine.torch} with {threads}")
    return ", ".join(parts)


def _data(facts: Facts) -> str:
    data, images, tables = facts.data, facts.images, facts.tables
    if data is None:
        return ""
    least = "" if data.complete else "more than "
    kind = f"packed {data.kind}" if data.packed and data.kind != "packed" else data.kind
    parts = [f"{kind}: {least}{words.counted(data.rows, 'samples')}"] if data.rows else [kind]
    if data.nbytes:
        parts.append(f"{words.size(data.nbytes)} in {words.counted(data.files, 'files')}")
    if images is not None and images.formats:
        parts += [f"{share:.0%} {name}" for name, share in images.formats.items()]
    parts += [f"{count:,} {codec}" for codec, count in data.codecs.items() if count]
    if images is not None and images.long_side:
        parts.append(f"median {images.short_side} x {images.long_side} pixels")
    if tables is not None and tables.columns:
        parts.append(f"{tables.columns} columns, row groups of {tables.group_rows:,} rows")
        parts.append("/".join(tables.compressions).lower())
    if facts.storage is not None:
        parts.append(f"on {facts.storage.file_system}")
    return ", ".join(part for part in parts if part)


def _memory(facts: Facts) -> str:
    machine, data, storage = facts.machine, facts.data, facts.storage
    if machine is None or data is None or data.remote or not data.nbytes:
        return ""
    fits = "the data fits" if stays_in_memory(facts) else "the data does not fit"
    share = storage.resident_share if storage is not None else None
    now = "" if share is None else f"; {share:.0%} of it is in the page cache now"
    return f"{words.size(machine.available_bytes)} free: {fits}{now}"


def _rates(facts: Facts, now: Costs | None) -> str:
    """Returns the samples per second of each stage, as text."""
    parts = []
    cold, images, remote, storage = cold_rate(facts), facts.images, facts.remote, facts.storage
    if cold:
        parts.append(f"disk {cold:,.0f}/s")
    if remote is not None and remote.latency_s is not None:
        rate = (network_bytes_s(facts) or 0.0) / 1e6
        parts.append(f"network {rate:,.0f} MB/s, {remote.latency_s * 1e3:,.1f} ms a request")
    if now is not None and now.prep_s:
        one = images.one_thread_rate if images is not None else None
        alone = f" ({one:,.0f} on one thread)" if one else ""
        parts.append(f"loader {1 / now.prep_s:,.0f}/s{alone}")
    if images is not None and images.pillow_rate:
        parts.append(f"Pillow {images.pillow_rate:,.0f}/s a process")
    if storage is not None and storage.write_bytes_s:
        parts.append(f"writes {storage.write_bytes_s / 1e6:,.0f} MB/s")
    return ", ".join(parts)


def _waits(facts: Facts, now: Costs | None, use: Use) -> str:
    if now is None:
        return ""
    rate = f"{now.samples_per_s(cold=True):,.0f} samples/s"
    stage = now.waits_for(cold=True)
    if stage == "compute":
        return f"the model ({rate})"
    remote = facts.data is not None and facts.data.remote
    names = {
        "decode": "the loader's threads",
        "fetch": "the network" if remote else "the disk",
        "copy": "copies to the GPU",
    }
    unless = "" if use.model_rate else "; a slower model never waits"
    return f"{names[stage]} ({rate}{unless})"
