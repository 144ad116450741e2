"""Documents padded to a batch's longest, in batches of similar lengths."""

from __future__ import annotations

import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

import fastio
from fastio import (
    Loader,
    Scalar,
    Schema,
    SchemaError,
    StateMismatch,
    Text,
    TokenPad,
    Tokens,
    TransformError,
)
from tests.token_support import Padding

ROWS = 333


def length_of(row: int) -> int:
    return int(np.random.default_rng(row).integers(0, 90))


def tokens_of(row: int) -> list[int]:
    return [(row * 31 + i) % 60_000 + 1 for i in range(length_of(row))]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents") / "ds"
    schema = Schema({"tokens": Tokens("uint16"), "label": Scalar("int64"), "text": Text()})
    with fastio.Writer(path, schema, shard_size=4 << 10) as writer:
        for row in range(ROWS):
            writer.write({"tokens": tokens_of(row), "label": row, "text": f"document {row}"})
    return path


def check(batch: dict[str, Any], padding: Padding) -> None:
    """Every row of a batch has its document's tokens, and no more padding than is needed."""
    rows = batch["label"].tolist()
    cut = [tokens_of(row)[: padding.max_length] for row in rows]
    longest = max(len(tokens) for tokens in cut)
    length = batch["input_ids"].shape[1]
    assert length == padding.length(longest)
    assert batch["attention_mask"].shape == (len(rows), length)
    for place, tokens in enumerate(cut):
        rest = [padding.pad] * (length - len(tokens))
        assert batch["input_ids"][place].tolist() == tokens + rest
        mask = [1] * len(tokens) + [0] * len(rest)
        assert batch["attention_mask"][place].tolist() == mask
    assert batch["text"] == [f"document {row}" for row in rows]


@pytest.mark.parametrize(
    "padding",
    [
        Padding(1000),
        Padding(17, multiple_of=5, pad=9),
        Padding(64, multiple_of=1, dtype="int32"),
        Padding(40, pool=3),
    ],
)
def test_every_document_comes_once_with_its_other_fields(packed: Path, padding: Padding) -> None:
    for shuffle in (False, True):
        with Loader(padding(packed), 16, shuffle=shuffle, seed=0) as loader:
            rows = []
            for batch in loader:
                check(batch, padding)
                rows += batch["label"].tolist()
            assert sorted(rows) == list(range(ROWS))
            assert len(loader) == -(-ROWS // 16)
            assert batch["input_ids"].dtype == getattr(torch, padding.dtype)


def tokens_padded(packed: Path, padding: Padding) -> int:
    with Loader(padding(packed), 16, shuffle=True, seed=0) as loader:
        return sum(int((batch["attention_mask"] == 0).sum()) for batch in loader)


def test_batches_of_similar_lengths_have_little_padding(packed: Path) -> None:
    plain = tokens_padded(packed, Padding(100, multiple_of=1))
    pooled = tokens_padded(packed, Padding(100, multiple_of=1, pool=20))
    assert pooled < plain / 4


def labels(loader: Loader) -> list[list[int]]:
    return [batch["label"].tolist() for batch in loader]


def test_batches_of_similar_lengths_come_in_another_order_each_epoch(packed: Path) -> None:
    with Loader(TokenPad(packed, 100, pool=100), 16, shuffle=True, seed=0) as loader:
        first, second = labels(loader), labels(loader)
    assert first != second
    means = [np.mean([length_of(row) for row in batch]) for batch in first]
    assert means != sorted(means)
    with Loader(TokenPad(packed, 100, pool=100), 16, shuffle=True, seed=0) as loader:
        assert labels(loader) == first


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 20])
def test_an_epoch_of_similar_lengths_goes_on_where_it_stopped(packed: Path, stop: int) -> None:
    data = TokenPad(packed, 100, pool=5)
    how: Any = {"shuffle": True}
    with Loader(data, 16, **how) as loader:
        whole = labels(loader)
        loader.set_epoch(0)
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
        state = loader.state_dict()
    with Loader(TokenPad(packed, 100, pool=5), 16, **how) as loader:
        loader.load_state_dict(state)
        assert labels(loader) == whole[stop:]
    with Loader(data, 8, **how) as loader, pytest.raises(StateMismatch):
        loader.load_state_dict(state)


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_batches_of_similar_lengths(packed: Path, drop_last: bool) -> None:
    how: Any = {"shuffle": True, "seed": 0, "drop_last": drop_last}
    data = TokenPad(packed, 100, pool=4)
    with Loader(data, 24, **how) as loader:
        alone = [sorted(rows) for rows in labels(loader)]
    steps: list[list[list[int]]] = []
    for rank in range(3):
        with Loader(data, 8, rank=rank, world_size=3, **how) as loader:
            steps.append([b["label"][: loader.batch.valid].tolist() for b in loader])
    assert {len(mine) for mine in steps} == {len(alone)}
    together = [sorted(chain(*parts)) for parts in zip(*steps, strict=True)]
    assert together == alone
    if not drop_last:
        assert sorted(chain(*together)) == list(range(ROWS))


def test_fields_may_be_chosen(packed: Path) -> None:
    data, names = TokenPad(packed, 8), ["label", "input_ids", "attention_mask"]
    with Loader(data, 4, fields=names) as loader:
        assert list(next(iter(loader))) == names
    with Loader(data, 4, fields=["text", "label"]) as loader:
        assert list(next(iter(loader))) == ["text", "label"]
    with pytest.raises(TransformError, match="delivered together"):
        Loader(data, 4, fields=["input_ids"])


def test_documents_alone_without_batches(packed: Path) -> None:
    with Loader(TokenPad(packed, 100, multiple_of=1), None) as loader:
        sample = next(iter(loader))
    assert sample["input_ids"].tolist() == (tokens_of(0) or [0])


def test_what_makes_no_sense_is_refused(packed: Path, tmp_path: Path) -> None:
    for bad in ({"max_length": 0}, {"max_length": 4, "pool": -1}, {"max_length": 4, "dtype": "f"}):
        with pytest.raises(TransformError):
            TokenPad(packed, **bad)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="only for fields of tokens"):
        TokenPad(packed, 8, field="label")
    schema = Schema({"tokens": Tokens(), "input_ids": Scalar("int64")})
    fastio.pack([{"tokens": [1], "input_ids": 3}], tmp_path / "ds", schema=schema)
    with pytest.raises(SchemaError, match="input_ids"):
        TokenPad(tmp_path / "ds", 8)


def test_torch_s_dataloader_pads_a_batch_to_its_longest(packed: Path) -> None:
    padding = Padding(64, multiple_of=4)
    for batch in DataLoader(padding(packed), 16):  # type: ignore[arg-type,var-annotated]
        check(batch, padding)


def test_a_row_is_padded_as_a_batch_of_its_own(packed: Path) -> None:
    data = TokenPad(packed, 100)
    with Loader(data, 1) as loader:
        for row, batch in zip(range(40), loader, strict=False):
            assert list(data[row]) == list(batch) == list(data.fields)
            assert data[row]["input_ids"].tolist() == batch["input_ids"][0].tolist()
            assert data[row]["attention_mask"].tolist() == batch["attention_mask"][0].tolist()
    again = pickle.loads(pickle.dumps(data))
    assert (again.fingerprint, len(again)) == (data.fingerprint, ROWS)


@pytest.mark.parametrize("pool", [0, 3])
def test_documents_of_subsets_come_once(packed: Path, pool: int) -> None:
    padding, rows = Padding(40, pool=pool), list(range(300, 20, -7))
    with fastio.open(packed) as first, fastio.open(packed) as second:
        joined: Any = ConcatDataset([first, second])
        for source in (Subset(first, rows), Subset(joined, [row + ROWS for row in rows])):  # type: ignore[arg-type]
            view = padding(source)
            assert [view[i]["label"] for i in range(3)] == rows[:3]
            for data in (view, Subset(padding(source.dataset), source.indices)):  # type: ignore[arg-type]
                with Loader(data, 8, shuffle=True) as loader:
                    seen = []
                    for batch in loader:
                        check(batch, padding)
                        seen += batch["label"].tolist()
                assert sorted(seen) == sorted(rows)


# Samples that collate_fn gets


def samples_of(kind: Any, data: Any, **options: Any) -> list[list[tuple[Any, ...]]]:
    """The types and values of the samples of each batch, as collate_fn gets them."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.dtype, value.flags.c_contiguous, value.tolist()
        return type(value), value

    def seen(samples: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [tuple((name, plain(value)) for name, value in row.items()) for row in samples]

    torch.manual_seed(2)
    return list(kind(data, 7, collate_fn=seen, **options))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("rows", [None, [5, 300, 5, 41, 2, 9, 80, 81, 82]])
@pytest.mark.parametrize("sources", [1, 2])
def test_collate_fn_gets_the_samples_that_dataloader_gives(
    packed: Path, sources: int, rows: list[int] | None, shuffle: bool
) -> None:
    opened: list[Any] = [fastio.open(packed) for _ in range(sources)]
    view: Any = TokenPad(opened[0] if sources == 1 else ConcatDataset(opened), 100, multiple_of=4)
    data: Any = view if rows is None else Subset(view, rows)
    found = samples_of(Loader, data, shuffle=shuffle)
    assert found == samples_of(DataLoader, data, shuffle=shuffle)
    assert len({len(dict(batch[0])["input_ids"][2]) for batch in found}) > 1  # lengths vary
    for each in opened:
        each.close()


def test_collate_fn_gets_transformed_documents_as_tensors_of_the_longest(packed: Path) -> None:
    def doubled(tokens: torch.Tensor) -> torch.Tensor:
        return tokens * 2

    data = TokenPad(packed, 100, multiple_of=1)
    steps: Any = {"input_ids": fastio.OnBatch(doubled)}
    with Loader(data, 6, transforms=steps, collate_fn=list) as loader:
        batch = next(iter(loader))
    longest = max(map(length_of, range(6)))
    for row, sample in enumerate(batch):
        assert sample["input_ids"].shape == sample["attention_mask"].shape == (longest,)
        assert sample["input_ids"][: length_of(row)].tolist() == [2 * t for t in tokens_of(row)]


# An array of integers where tokens are wanted


@pytest.mark.parametrize("view", [fastio.TokenWindows, TokenPad])
@pytest.mark.parametrize("field", [None, "ids"])
def test_an_array_of_integers_is_told_to_be_packed_as_tokens(
    tmp_path: Path, view: Any, field: str | None
) -> None:
    fastio.pack([{"ids": np.arange(9, dtype=np.int32)} for _ in range(3)], tmp_path / "ds")
    with pytest.raises(fastio.FastioError, match=r"'ids' is an array of integers.*fastio\.Tokens"):
        view(tmp_path / "ds", 4, field=field)


def test_arrays_of_integers_of_differing_lengths_are_told_to_be_tokens(tmp_path: Path) -> None:
    documents = [{"ids": np.arange(length)} for length in (3, 5)]
    with pytest.raises(fastio.FastioError, match=r"fastio\.Tokens\('uint32'\)"):
        fastio.pack(documents, tmp_path / "ds")
