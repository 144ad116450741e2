"""Windows with document bounds and padded documents in mixes, beside a slow reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastio
from fastio import (
    Loader,
    Scalar,
    Schema,
    StateMismatch,
    Text,
    Tokens,
    mix,
)
from tests.token_support import Padding, Windows

ROWS = {"a": 200, "b": 45, "c": 9}
WEIGHTS = (0.5, 0.3, 0.2)
STOP = 300


def tokens_of(label: int) -> list[int]:
    length = int(np.random.default_rng(label).integers(1, 120))
    return [(label * 31 + i) % 60_000 + 1 for i in range(length)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets, of two types of tokens; labels tell dataset and row."""
    root = tmp_path_factory.mktemp("mix")
    for place, (name, rows) in enumerate(ROWS.items()):
        dtype = "uint32" if name == "b" else "uint16"
        schema = Schema({"tokens": Tokens(dtype), "label": Scalar("int64"), "text": Text()})
        with fastio.Writer(root / name, schema, shard_size=4 << 10) as writer:
            for row in range(rows):
                label = 1000 * place + row
                text = f"document {label}"
                writer.write({"tokens": tokens_of(label), "label": label, "text": text})
    return root


def sources(folder: Path, view: Any) -> Any:
    views = [view(folder / name) for name in ROWS]
    return mix(dict(zip(views, WEIGHTS, strict=True)), seed=3, stop=STOP)


def loader_of(folder: Path, view: Any, **options: Any) -> Loader:
    given: dict[str, Any] = {
        "batch_size": 8,
        "shuffle": True,
        "num_workers": 1,
        "seed": 0,
    } | options
    return Loader(sources(folder, view), **given)


# --- Windows --------------------------------------------------------------------------------------


def singles(folder: Path, windows: Windows) -> dict[tuple[int, ...], dict[str, torch.Tensor]]:
    """Every window of every dataset by its tokens, loaded by itself."""
    found = {}
    for name in ROWS:
        with Loader(windows(folder / name), 1) as loader:
            for batch in loader:
                key = tuple(batch["inputs"][0].tolist())
                found[key] = dict(batch)
    return found


@pytest.mark.parametrize(
    "windows",
    [
        Windows(50, cu_seqlens=True),
        Windows(64, documents=True, positions=True),
        Windows(48, packing="best-fit", cu_seqlens=True, documents=True, dtype="int32"),
        Windows(40, stride=17, cu_seqlens=True, targets=False),
    ],
    ids=("cu_seqlens", "documents", "best-fit", "stride"),
)
def test_a_mixed_batch_is_its_windows_one_after_the_other(folder: Path, windows: Windows) -> None:
    alone = singles(folder, windows)
    kinds = set()
    with loader_of(folder, windows) as loader:
        for batch in loader:
            rows = [alone[tuple(tokens.tolist())] for tokens in batch["inputs"]]
            for name in set(batch) - {"cu_seqlens", "max_seqlen"}:
                assert torch.equal(batch[name], torch.cat([row[name] for row in rows]))
            assert set(batch) == set(rows[0])
            kinds.add(len(rows))
            if not windows.cu_seqlens:
                continue
            bounds = [0]
            for place, row in enumerate(rows):
                begin = place * windows.length
                bounds += [begin + end for end in row["cu_seqlens"][1:].tolist()]
            assert batch["cu_seqlens"].dtype == torch.int32
            assert batch["cu_seqlens"].tolist() == bounds
            assert batch["max_seqlen"] == max(np.diff(bounds))
    assert kinds == {8, STOP % 8}


# --- Padded documents -----------------------------------------------------------------------------


def check(batch: dict[str, Any], padding: Padding) -> list[int]:
    """Compares a batch with its documents; returns their labels."""
    labels: list[int] = batch["label"].tolist()
    documents = [tokens_of(label)[: padding.max_length] for label in labels]
    length = padding.length(max(map(len, documents)))
    rest = [length - len(document) for document in documents]
    expected = [d + [padding.pad] * n for d, n in zip(documents, rest, strict=True)]
    mask = [[1] * len(d) + [0] * n for d, n in zip(documents, rest, strict=True)]
    assert batch["input_ids"].tolist() == expected
    assert batch["attention_mask"].tolist() == mask
    assert batch["text"] == [f"document {label}" for label in labels]
    return labels


PADDINGS = [
    Padding(1000),
    Padding(30, multiple_of=7, pad=9),
    Padding(64, multiple_of=1, dtype="int32"),
    Padding(120, multiple_of=1, pool=4),
]


@pytest.mark.parametrize("padding", PADDINGS, ids=("whole", "cut", "int32", "pool"))
def test_documents_are_padded_to_the_longest_of_the_mixed_batch(
    folder: Path, padding: Padding
) -> None:
    with loader_of(folder, padding) as loader:
        epochs = [[label for batch in loader for label in check(batch, padding)] for _ in range(3)]
    assert [len(labels) for labels in epochs] == [STOP] * 3
    # Sources go through their rows evenly, from one epoch of the mix to the next.
    everything = np.array(epochs).reshape(-1)
    for place, rows in enumerate(ROWS.values()):
        times = np.bincount(everything[everything // 1000 == place] % 1000, minlength=rows)
        assert times.max() - times.min() <= 1


def test_batches_of_similar_lengths_have_the_samples_of_the_mix(folder: Path) -> None:
    """The same samples, in batches with less padding; of the small source several epochs a pool."""
    filled, seen = [], []
    for pool in (0, 12):
        padding = Padding(120, multiple_of=1, pool=pool)
        with loader_of(folder, padding) as loader:
            batches = list(loader)
        seen.append(sorted(label for batch in batches for label in check(batch, padding)))
        tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
        filled.append(tokens / sum(batch["attention_mask"].numel() for batch in batches))
    assert seen[0] == seen[1]
    assert filled[0] < 0.75 < 0.9 < filled[1]


@pytest.mark.parametrize("pool", [0, 3, 50])
@pytest.mark.parametrize("stop", [1, 7, 30])
def test_a_mix_of_documents_goes_on_where_it_stopped_with_any_ranks(
    folder: Path, pool: int, stop: int
) -> None:
    padding = Padding(100, pool=pool)
    with loader_of(folder, padding) as loader:
        whole = [sorted(check(batch, padding)) for batch in loader]
        loader.set_epoch(0)
        run = iter(loader)
        for _ in range(stop):
            next(run)
        state = loader.state_dict()
    parts: list[list[int]] = [[] for _ in whole[stop:]]
    for rank in range(2):
        with loader_of(folder, padding, batch_size=4, rank=rank, world_size=2) as loader:
            loader.load_state_dict(state)
            for place, batch in enumerate(loader):
                parts[place] += check(batch, padding)[: loader.batch.valid]
    assert [sorted(part) for part in parts] == whole[stop:]


def test_batches_of_similar_lengths_go_on_with_as_many_samples_a_step(folder: Path) -> None:
    padding = Padding(100, pool=3)
    with loader_of(folder, padding) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with (
        loader_of(folder, padding, batch_size=5) as loader,
        pytest.raises(StateMismatch, match="another order"),
    ):
        loader.load_state_dict(state)


def test_what_is_delivered_depends_on_the_seeds_alone(folder: Path) -> None:
    padding = Padding(100, pool=5)

    def labels(**options: Any) -> list[list[int]]:
        with loader_of(folder, padding, **options) as loader:
            return [check(batch, padding) for batch in loader]

    first = labels()
    assert labels(num_workers=2, prefetch_factor=5) == first
    assert labels(seed=1) != first


@pytest.mark.parametrize("batch_size", [1, 3, 64, 400])
@pytest.mark.parametrize("pool", [0, 2])
def test_every_rank_has_as_many_steps_and_nothing_is_lost(
    folder: Path, batch_size: int, pool: int
) -> None:
    padding = Padding(20, pool=pool)
    seen, steps = [], set()
    for rank in range(3):
        ranks: dict[str, Any] = {"rank": rank, "world_size": 3, "batch_size": batch_size}
        with loader_of(folder, padding, **ranks) as loader:
            count = 0
            for batch in loader:
                seen += check(batch, padding)[: loader.batch.valid]
                count += 1
            assert count == len(loader)
            steps.add(count)
    assert len(steps) == 1
    assert len(seen) == STOP
