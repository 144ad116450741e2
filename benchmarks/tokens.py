"""Windows of tokens: tokens a second as int64, beside a memory map through DataLoader.

    .venv/bin/python benchmarks/tokens.py [--tokens 400000000] [--json FILE]

The corpus is made: documents of 1,000 tokens on average, uint16. A window has 1,025 tokens, 1,024
of them inputs. Beside the loader: DataLoader over a Dataset that slices a numpy memmap, as small
GPT trainers have it; the batch that nanoGPT stacks from a memmap by hand; and the least that all of
them do: widening windows into one tensor that is kept, in order.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import console, machine_line, new_table, temporary_folder, write_json
from torch.utils.data import DataLoader, Dataset

import fastio

LENGTH = 1024
BATCH = 256
MEAN_DOCUMENT = 1000


def make_corpus(folder: Path, tokens: int) -> None:
    """The same tokens packed, and as one file of uint16."""
    rng = np.random.default_rng(0)
    schema = fastio.Schema({"tokens": fastio.Tokens("uint16", 50_257, 50_256)})
    with (
        open(folder / "tokens.bin", "wb") as flat,
        fastio.Writer(folder / "packed", schema) as writer,
    ):
        left = tokens
        while left > 0:
            size = min(left, int(rng.integers(2, 2 * MEAN_DOCUMENT)))
            document = rng.integers(0, 50_256, size, np.uint16)
            document[-1] = 50_256
            writer.write({"tokens": document})
            flat.write(document.tobytes())
            left -= size


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of a memory map."""

    def __init__(self, path: Path) -> None:
        self._tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = index * LENGTH
        window = torch.from_numpy(self._tokens[begin : begin + LENGTH + 1].astype(np.int64))
        return window[:-1], window[1:]


def rate(batches: Callable[[], Iterator[Any]], rounds: int) -> float:
    """Tokens a second, windows of LENGTH + 1: the best of the rounds."""
    best = 0.0
    for _ in range(rounds):
        windows, start = 0, time.perf_counter()
        for batch in batches():
            inputs = batch["inputs"] if isinstance(batch, dict) else batch[0]
            windows += len(inputs)
        best = max(best, windows * (LENGTH + 1) / (time.perf_counter() - start))
    return best


def packed(path: Path, threads: int, rounds: int, **windows: Any) -> float:
    """The loader, shuffled and warm."""
    data = fastio.TokenWindows(path, LENGTH, **windows)
    with fastio.Loader(data, BATCH, shuffle=True, num_workers=threads, drop_last=True) as loader:
        rate(lambda: iter(loader), 1)
        return rate(lambda: iter(loader), rounds)


def memmap_loader(path: Path, workers: int) -> float:
    """DataLoader over a memory map, for some batches."""
    loader = DataLoader(Windows(path), BATCH, shuffle=True, num_workers=workers, drop_last=True)
    batches = iter(loader)
    next(batches)
    return rate(lambda: islice(batches, 100), 1)


def by_hand(path: Path) -> float:
    """nanoGPT's get_batch: windows anywhere, stacked."""
    data = np.memmap(path, np.uint16, "r")

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(100):
            begins = torch.randint(len(data) - LENGTH - 1, (BATCH,)).tolist()
            yield (
                torch.stack(
                    [torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in begins]
                ),
                torch.stack(
                    [
                        torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64))
                        for i in begins
                    ]
                ),
            )

    return rate(batches, 3)


def widening(path: Path) -> float:
    """Windows in order, widened into a tensor that is kept."""
    data = torch.from_numpy(np.fromfile(path, np.uint16, 1 << 26).view(np.int16))
    kept = torch.empty((BATCH, LENGTH + 1), dtype=torch.int64)

    def batches() -> Iterator[tuple[torch.Tensor]]:
        for begin in range(0, len(data) - BATCH * LENGTH - 1, BATCH * LENGTH):
            flat = data[begin : begin + BATCH * LENGTH + 1]
            kept.copy_(flat.unfold(0, LENGTH + 1, LENGTH))
            yield (kept,)

    return rate(batches, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=400_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console().print(machine_line())
    rounds = arguments.rounds
    with temporary_folder() as work:
        make_corpus(work, arguments.tokens)
        flat, path = work / "tokens.bin", work / "packed"
        figures = {"packed, 1 thread": packed(path, 1, rounds)}
        figures["packed, 2 threads"] = packed(path, 2, rounds)
        marks = {"positions": True, "documents": True}
        figures["with documents and positions, 1 thread"] = packed(path, 1, rounds, **marks)
        figures["best-fit, 1 thread"] = packed(path, 1, rounds, packing="best-fit")
        figures["DataLoader over a memmap, 0 workers"] = memmap_loader(flat, 0)
        figures["DataLoader over a memmap, 1 worker"] = memmap_loader(flat, 1)
        figures["DataLoader over a memmap, 2 workers"] = memmap_loader(flat, 2)
        figures["by hand, as nanoGPT"] = by_hand(flat)
        figures["widening alone, in order"] = widening(flat)
    table = new_table(f"windows of {LENGTH + 1} tokens", "M tokens/s", "packed is times this")
    first = figures["packed, 1 thread"]
    for name, tokens_s in figures.items():
        table.add_row(name, f"{tokens_s / 1e6:,.0f}", f"{first / tokens_s:.2f}")
    console().print(table)
    write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
