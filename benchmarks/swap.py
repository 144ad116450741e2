"""The swap alone: datasets as people have them, through DataLoader and through fastio.Loader.

    .venv/bin/python benchmarks/swap.py [SHAPE ...] [--batches 200] [--rounds 5] [--json FILE]

Both loaders get the same dataset and the same arguments: only the class name differs. A round reads
BATCHES batches with each, as many epochs as that takes; starting worker processes counts, as it
does for whoever trains. The ratio is the median of those of the rounds, above 1 where fastio is
faster. A shape that is slower than DataLoader is a defect, and makes the exit code 1: below 0.9,
since times of two cores differ by as much from round to round.

Names of shapes choose some of them. ImageFolder needs torchvision, rows of Hugging Face datasets.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import ROOT, console, machine, machine_line, new_table, temporary_folder, write_json
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)

import fastio

sys.path.insert(0, str(ROOT))

import plain_torchvision
from make_images import make_images

SLOWER = 0.9


@dataclass(frozen=True)
class Shape:
    """One way in which people hold data.

    Attributes:
        name: what the table calls it.
        make: the dataset, of a folder for files.
        arguments: of both loaders, of the dataset.
        needs: a package without which it is left out.
    """

    name: str
    make: Callable[[Path], Any]
    arguments: Callable[[Any], dict[str, Any]] = field(default=lambda dataset: {})
    needs: str | None = None


# --- Datasets -------------------------------------------------------------------------------------


class Squares(Dataset[tuple[torch.Tensor, int]]):
    """A map-style dataset in Python: an array made for each row, and a label."""

    def __init__(self, rows: int) -> None:
        self.values = np.random.default_rng(0).standard_normal((rows, 128)).astype(np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.values[row] ** 2), row % 10


class Records(Dataset[dict[str, Any]]):
    """Dicts of a number, an array and a string."""

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": np.full(16, row, np.float32), "label": row % 7, "name": f"row {row}"}


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of a file of tokens, as small language models are trained on."""

    def __init__(self, folder: Path, context: int = 256) -> None:
        path = folder / "tokens.bin"
        np.random.default_rng(0).integers(0, 50_000, 4_000_000, np.uint16).tofile(path)
        self.tokens = np.memmap(path, np.uint16, "r")
        self.context = context

    def __len__(self) -> int:
        return len(self.tokens) // self.context - 1

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.tokens[row * self.context :][: self.context + 1].astype(np.int64)
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])


class Stream(IterableDataset[torch.Tensor]):
    """A dataset that iterates, each worker over a part of its own."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for row in range(first, 20_000, step):
            yield torch.full((64,), float(row))


class Batched(Dataset[tuple[torch.Tensor, ...]]):
    """Tensors that are indexed by a whole batch of rows at once."""

    def __init__(self) -> None:
        self.x, self.y = torch.randn(200_000, 40), torch.arange(200_000)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: list[int]) -> tuple[torch.Tensor, ...]:
        return self.x[rows], self.y[rows]


def columns(folder: Path) -> TensorDataset:
    return TensorDataset(torch.randn(100_000, 40), torch.arange(100_000))


def small_images(folder: Path) -> TensorDataset:
    images = torch.randint(0, 256, (20_000, 3, 32, 32), dtype=torch.uint8)
    return TensorDataset(images, torch.arange(20_000) % 10)


def photos(folder: Path) -> Path:
    if not (folder / "photos").exists():
        make_images(folder / "photos", count=400, classes=4, seed=0)
    return folder / "photos"


def image_folder(folder: Path, *steps: str) -> Any:
    """torchvision's ImageFolder with a crop, a flip, further steps and ToTensor."""
    torchvision = plain_torchvision.load()
    v1 = torchvision.transforms
    chain = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip()]
    chain += [v1.ColorJitter(0.4, 0.4, 0.4, 0.1)] if "colour" in steps else []
    return torchvision.datasets.ImageFolder(photos(folder), v1.Compose([*chain, v1.ToTensor()]))


def token_rows(folder: Path) -> Any:
    """Rows of a Hugging Face dataset after a tokenizer: lists of unequal lengths."""
    datasets: Any = import_module("datasets")
    lengths = np.random.default_rng(0).integers(10, 120, 20_000)
    rows = [list(range(length)) for length in lengths.tolist()]
    return datasets.Dataset.from_dict({"input_ids": rows, "label": [0] * len(rows)})


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """What a collator of the transformers library does with them."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    rows = [list(s["input_ids"]) + [0] * (longest - len(s["input_ids"])) for s in samples]
    return {
        "input_ids": torch.tensor(rows),
        "labels": torch.tensor([int(sample["label"]) for sample in samples]),
    }


def formatted(folder: Path) -> Any:
    datasets: Any = import_module("datasets")
    rows = np.random.default_rng(0).standard_normal((20_000, 16)).astype(np.float32)
    dataset = datasets.Dataset.from_dict({"x": list(rows), "y": list(range(20_000))})
    return dataset.with_format("torch")


def listed(folder: Path) -> list[dict[str, Any]]:
    return [{"x": torch.full((8,), float(row)), "y": row} for row in range(20_000)]


def shuffled(batch_size: int, workers: int = 0) -> Callable[[Any], dict[str, Any]]:
    return lambda dataset: {"batch_size": batch_size, "shuffle": True, "num_workers": workers}


def weighted(dataset: Any) -> dict[str, Any]:
    weights = torch.linspace(0.1, 1.0, len(dataset)).tolist()
    return {"batch_size": 256, "sampler": WeightedRandomSampler(weights, len(dataset))}


def whole_batches(dataset: Any) -> dict[str, Any]:
    sampler = BatchSampler(RandomSampler(dataset), 256, drop_last=False)
    return {"batch_size": None, "sampler": sampler}


SHAPES = (
    Shape("TensorDataset of 40 columns", columns, shuffled(256)),
    Shape("TensorDataset of 40 columns, 2 workers", columns, shuffled(256, 2)),
    Shape("TensorDataset, WeightedRandomSampler", columns, weighted),
    Shape("TensorDataset of 32 x 32 images", small_images, shuffled(128)),
    Shape("ConcatDataset of two TensorDatasets", lambda f: ConcatDataset([columns(f)] * 2),
          shuffled(256)),
    Shape("random_split of a TensorDataset", lambda f: random_split(columns(f), [0.8, 0.2])[0],
          shuffled(256)),
    Shape("arrays in Python", lambda f: Squares(40_000), shuffled(128)),
    Shape("arrays in Python, 2 workers", lambda f: Squares(40_000), shuffled(128, 2)),
    Shape("dicts in Python, 2 workers", lambda f: Records(), shuffled(64, 2)),
    Shape("a list of dicts", listed, shuffled(64)),
    Shape("windows of a file of tokens", Windows, shuffled(32)),
    Shape("a dataset that iterates, 2 workers", lambda f: Stream(),
          lambda d: {"batch_size": 64, "num_workers": 2}),
    Shape("a dataset indexed by batches", lambda f: Batched(), whole_batches),
    Shape("tokens of a Hugging Face dataset, padding collator", token_rows,
          lambda d: {**shuffled(64)(d), "collate_fn": padded}, "datasets"),
    Shape("columns of a Hugging Face dataset, torch format", formatted, shuffled(64), "datasets"),
    Shape("ImageFolder, crop and flip, 2 workers", image_folder, shuffled(32, 2), "torchvision"),
    Shape("ImageFolder with ColorJitter, 2 workers", lambda f: image_folder(f, "colour"),
          shuffled(32, 2), "torchvision"),
)  # fmt: skip


# --- Measuring ------------------------------------------------------------------------------------


def endless(loader: Any) -> Generator[Any, None, None]:
    while True:
        yield from loader


def seconds(make: Callable[[], Any], batches: int) -> float:
    """How long so many batches take, from the first `iter` on."""
    loader = make()
    begin = time.perf_counter()
    reading = endless(loader)
    for _ in islice(reading, batches):
        pass
    spent = time.perf_counter() - begin
    reading.close()
    if isinstance(loader, fastio.Loader):
        loader.close()
    return spent


def measure(shape: Shape, folder: Path, batches: int, rounds: int) -> dict[str, Any]:
    """Batches a second of both loaders, and the ratios round by round."""
    dataset = shape.make(folder)
    arguments = shape.arguments(dataset)
    classes: dict[str, Any] = {"DataLoader": DataLoader, "fastio": fastio.Loader}
    times: dict[str, list[float]] = {name: [] for name in classes}
    for number in range(rounds + 1):  # the first is not counted: imports, files' first reading
        order = list(classes) if number % 2 else list(classes)[::-1]
        for name in order:
            spent = seconds(partial(classes[name], dataset, **arguments), batches)
            if number:
                times[name].append(spent)
    ratios = [a / b for a, b in zip(times["DataLoader"], times["fastio"], strict=True)]
    with fastio.Loader(dataset, **arguments) as loader:
        stats = loader.stats()
    return {
        **{name: batches / statistics.median(spent) for name, spent in times.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "path": stats.path,
        "reason": stats.reason,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", nargs="*", help="parts of names (all)")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # those of worker processes and of the slow path
    found = {}
    out = console()
    table = new_table("dataset", "DataLoader, batches/s", "fastio", "ratio", "min .. max", "path")
    with temporary_folder() as folder:
        for shape in SHAPES:
            if arguments.shapes and not any(part in shape.name for part in arguments.shapes):
                continue
            try:
                result = measure(shape, folder, arguments.batches, arguments.rounds)
            except ImportError as error:
                if shape.needs is None:
                    raise
                out.print(f"{shape.name}: left out, {error}")
                continue
            found[shape.name] = result
            table.add_row(
                shape.name,
                f"{result['DataLoader']:,.0f}",
                f"{result['fastio']:,.0f}",
                f"{result['ratio']:.2f} x",
                f"{min(result['ratios']):.2f} .. {max(result['ratios']):.2f}",
                result["path"],
            )
    out.print(
        f"{arguments.batches} batches, medians of {arguments.rounds} rounds; {machine_line()}"
    )
    out.print(table)
    write_json(arguments.json, {"machine": machine(), "shapes": found})
    slower = [name for name, result in found.items() if result["ratio"] < SLOWER]
    if slower:
        sys.exit(f"slower than DataLoader: {', '.join(slower)}")


if __name__ == "__main__":
    main()
