"""Random datasets and options of a loader, compared with a slow model: each row once, unchanged.

A dataset is drawn as nested Subsets and ConcatDatasets of arrays in memory or of packed samples
with fields of random types. The expected samples are kept beside it. A loader with random options
must deliver them with their dtypes, each row once in an epoch over all ranks, and a resumed loader
the rest. A failure names the seed of its case.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

import fastio

SIZES = (1, 2, 3, 7, 31, 65)
DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
)
TEXTS = ("", "é", "日本語", "line\nline", "x" * 300)

Sample = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A dataset, which is opened anew at each call, and its samples."""

    open: Callable[[], Any]
    samples: list[Sample]


def arrays(draw: random.Random) -> Drawn:
    count = draw.choice(SIZES)
    columns = {f"f{n}": column(draw, count) for n in range(draw.randint(1, 4))}
    samples = [{name: values[row] for name, values in columns.items()} for row in range(count)]
    return Drawn(lambda: fastio.open(columns), samples)


def packed(draw: random.Random, folder: Path) -> Drawn:
    """Samples in one or two versions and any number of shards, written in shards of any size."""
    first = arrays(draw).samples
    texts = [{**sample, "text": draw.choice(TEXTS)} for sample in first]
    cut = draw.randint(1, len(texts))
    for part in filter(None, (texts[:cut], texts[cut:])):
        size = draw.choice((1, 1000, 1 << 20))
        fastio.pack(part, folder, shard_size=size, workers=1, append=folder.exists())
    return Drawn(lambda: fastio.open(folder), texts)


def column(draw: random.Random, count: int) -> np.ndarray[Any, Any]:
    """Random bits of a random dtype and shape, contiguous or not."""
    dtype, shape = np.dtype(draw.choice(DTYPES)), draw.choice(((), (), (3,), (2, 2)))
    rows = np.random.default_rng(draw.getrandbits(32)).integers(0, 2, (2 * count, *shape, 8))
    values = np.packbits(rows.astype(np.uint8), axis=-1)[..., 0].astype(dtype)
    if dtype.kind == "u":
        values = (np.iinfo(dtype).max - values).astype(dtype)
    return values[::2] if draw.random() < 0.5 else np.ascontiguousarray(values[:count])


def nested(draw: random.Random, inner: Drawn) -> Drawn:
    """The dataset in up to two Subsets and ConcatDatasets."""
    for _ in range(draw.randint(0, 2)):
        opened, samples = inner.open, inner.samples
        if draw.random() < 0.6:
            count = draw.choice((1, len(samples), 2 * len(samples)))
            rows = [draw.randrange(-len(samples), len(samples)) for _ in range(count)]
            inner = Drawn(subset(opened, rows), [samples[row] for row in rows])
        else:
            times = draw.randint(1, 3)
            inner = Drawn(concatenated(opened, times), samples * times)
    return inner


def subset(opened: Callable[[], Any], rows: list[int]) -> Callable[[], Any]:
    return lambda: Subset(opened(), rows)


def concatenated(opened: Callable[[], Any], times: int) -> Callable[[], Any]:
    return lambda: ConcatDataset([opened() for _ in range(times)])


def delivered(loader: fastio.Loader[Any], samples: list[Sample]) -> Iterator[list[int]]:
    """Yields the rows that count of each batch, after its values were compared."""
    for batch in loader:
        info = loader.batch
        assert info.rows is not None
        for place, row in enumerate(info.rows.tolist()):
            got = {name: values[place] for name, values in batch.items()}
            assert got.keys() == samples[row].keys()
            for name, wanted in samples[row].items():
                same(got[name], wanted)
        yield info.rows.tolist()[: info.valid]


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, str):
        assert got == wanted
        return
    array = got.numpy()
    assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
    assert array.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_every_row_comes_once_and_unchanged_and_a_resumed_loader_has_the_rest(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    kind = packed(draw, tmp_path / "packed") if seed % 2 else arrays(draw)
    drawn = nested(draw, kind)
    count = len(drawn.samples)
    options = draw.choice(({}, {"shuffle": True, "seed": 1}, {"shuffle": True, "order": "window"}))
    options = {"seed": 2, **options, "drop_last": draw.random() < 0.3}
    batch_size, world_size = draw.choice((1, 2, 3, 7, 100)), draw.randint(1, 3)

    def loader(rank: int, ranks: int) -> fastio.Loader[Any]:
        own = {"rank": rank, "world_size": ranks} if ranks > 1 else {}
        threads = draw.choice((1, 2))
        return fastio.Loader(drawn.open(), batch_size, num_workers=threads, **options, **own)

    def epoch(ranks: int, state: dict[str, Any] | None = None) -> list[list[list[int]]]:
        """The rows of each step of each rank."""
        found = []
        for rank in range(ranks):
            with loader(rank, ranks) as made:
                assert made.path == "native"
                if state is not None:
                    made.load_state_dict(state)
                found.append(list(delivered(made, drawn.samples)))
        return found

    whole = epoch(world_size)
    steps = list(zip(*whole, strict=True))
    rows = [row for step in steps for part in step for row in part]
    wanted = count - count % (batch_size * world_size) if options["drop_last"] else count
    assert len(rows) == len(set(rows)) == wanted
    if "shuffle" not in options:
        assert rows == list(range(wanted))

    done = draw.randint(0, len(steps))
    with loader(0, world_size) as made:
        batches = delivered(made, drawn.samples)
        for _ in range(done):
            next(batches)
        state = json.loads(json.dumps(made.state_dict()))
    assert epoch(world_size, state) == [part[done:] for part in whole]
    if not options["drop_last"]:
        before = [row for step in steps[:done] for part in step for row in part]
        after = [row for part in epoch(world_size + 1, state) for step in part for row in step]
        assert sorted(before + after) == list(range(count))
