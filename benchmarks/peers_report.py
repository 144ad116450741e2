"""The table and the plot of benchmarks/peers.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from common import console, new_table
from rich.table import Table

_STEP, _WIDTH = 46, 760  # pixels, of a bar with its name, and of the longest one
# For light and dark paper; the names stand out from either.
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}.other{fill:#aab2bd}.fastio{fill:#0072b3}"
    "rect.paper{fill:#ffffff}@media(prefers-color-scheme:dark){text{fill:#e9ecf0}"
    ".other{fill:#5d6775}.fastio{fill:#3a9fdb}rect.paper{fill:#14171c}}"
)


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
    found = sorted(medians(result).items(), key=lambda item: item[1])
    width, height = _WIDTH + 40, len(found) * _STEP + 74
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
        f'<style>{_STYLE}</style><rect class="paper" width="100%" height="100%"/>',
        '<text x="20" y="38" style="font-weight:700">Images a second of each loader</text>',
    ]
    for number, (name, rate) in enumerate(found):
        y, length = 70 + number * _STEP, rate / found[-1][1] * _WIDTH
        colour = "fastio" if name.startswith("fastio") else "other"
        parts += [
            f'<text x="20" y="{y}">{escape(name)}</text>',
            f'<text x="{width - 20}" y="{y}" text-anchor="end">{rate:,.0f}</text>',
            f'<rect class="{colour}" x="20" y="{y + 7}" width="{length:.1f}" height="13"/>',
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>\n"]))
