"""The table and the plot of benchmarks/peers.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import console, new_table
from rich.table import Table

from fastio.diagnose.report.plots import Bar, bars


def rates(epochs: Sequence[dict[str, Any]]) -> list[float]:
    """Images a second of each epoch."""
    return [epoch["images"] / epoch["seconds"] for epoch in epochs]


def medians(result: dict[str, Any]) -> dict[str, float]:
    """Images a second of each loader that was measured."""
    return {name: statistics.median(rates(epochs)) for name, epochs in result["epochs"].items()}


def table(result: dict[str, Any]) -> Table:
    """A row for each loader."""
    out = new_table(
        "loader", "images/s", "min .. max", "against the first", "CPU ms an image", "MB", "data"
    )
    found = medians(result)
    first = next(iter(found))
    source = result["epochs"][first][0]["data_bytes"]
    for name, rate in found.items():
        epochs = result["epochs"][name]
        cpu = statistics.median(epoch["cpu_s"] / epoch["images"] for epoch in epochs)
        memory = statistics.median(epoch["memory_mb"] for epoch in epochs)
        out.add_row(
            f"{name} ({epochs[-1]['version']})",
            f"{rate:,.0f}",
            f"{min(rates(epochs)):,.0f} .. {max(rates(epochs)):,.0f}",
            f"{rate / found[first]:.1f} x",
            f"{cpu * 1e3:.2f}",
            f"{memory:,.0f}",
            f"{epochs[-1]['data_bytes'] / source:.2f} x",
        )
    return out


def report(result: dict[str, Any]) -> None:
    """Prints the table, and what is not in it with the reason."""
    out, settings, about = console(), result["settings"], result["machine"]
    if result["epochs"]:
        out.print(
            f"{settings['images']:,} photos, RandomResizedCrop(224), flip, float32 batches of "
            f"{settings['batch']}, warm page cache, medians; {settings['threads']} cores of "
            f"{about['cpu']}, {about['simd']}, {result['date']}",
            table(result),
            "MB: memory of all its processes, mapped files not counted. Data: over the photos'.",
            sep="\n",
        )
    for name, reason in result["not_measured"].items():
        out.print(f"Not measured: {name}: {reason}", markup=False)


def draw(result: dict[str, Any], path: Path) -> None:
    """Bars of images a second, the fastest at the bottom; a .svg file."""
    shown = [
        Bar(name, rate, f"{rate:,.0f}", "fastio" if name.startswith("fastio") else "other")
        for name, rate in sorted(medians(result).items(), key=lambda item: item[1])
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    bars(shown, "Images a second of each loader").write(path)
