"""Windows of tokens: equal to slices of the documents, for every way of cutting them."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import fastio
from fastio import Loader, Schema, SchemaError, Tokens, TokenWindows, TransformError
from fastio._native import best_fit
from tests.servers import http_folder
from tests.token_support import Windows

Documents = list[np.ndarray[Any, np.dtype[Any]]]


def documents(count: int, seed: int = 0, longest: int = 200, dtype: str = "uint16") -> Documents:
    """Documents of any lengths from 1; a token tells its document and its place."""
    rng = np.random.default_rng(seed)
    top = np.iinfo(dtype).max + 1
    lengths = rng.integers(1, longest, count)
    return [((i * 7919 + np.arange(n)) % top).astype(dtype) for i, n in enumerate(lengths)]


def pack(path: Path, docs: Documents, dtype: str = "uint16", shard_size: int = 8 << 10) -> Path:
    schema = Schema({"tokens": Tokens(dtype)})
    with fastio.Writer(path, schema, shard_size=shard_size) as writer:
        for doc in docs:
            writer.write({"tokens": doc})
    return path


def streams(path: Path) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """All tokens of each shard, one after the other, read row by row."""
    with fastio.open(path) as dataset:
        assert isinstance(dataset, fastio.Dataset)
        ends = np.cumsum(dataset.manifest.shard_rows).tolist()
        rows = [dataset[i]["tokens"] for i in range(len(dataset))]
        starts = [0, *ends[:-1]]
        return [np.concatenate(rows[a:b]) for a, b in zip(starts, ends, strict=True)]


def loaded(path: Any, windows: Windows, **options: Any) -> dict[str, torch.Tensor]:
    """All windows of an epoch."""
    with Loader(windows(path), batch_size=7, **options) as loader:
        batches = list(loader)
    keys = [key for key in batches[0] if key not in ("cu_seqlens", "max_seqlen")]
    return {key: torch.cat([batch[key] for batch in batches]) for key in keys}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("tokens") / "ds", documents(400))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("wide", ["int32", "int64"])
def test_contiguous_windows_are_slices_of_the_shards(tmp_path: Path, dtype: str, wide: Any) -> None:
    path = pack(tmp_path / "ds", documents(300, dtype=dtype), dtype)
    got = loaded(path, Windows(33, dtype=wide))
    rows = []
    for stream in streams(path):
        rows += [stream[i : i + 34] for i in range(0, len(stream) - 33, 33)]
    expected = torch.from_numpy(np.stack(rows).astype(wide))
    assert torch.equal(got["inputs"], expected[:, :-1])
    assert torch.equal(got["targets"], expected[:, 1:])


def test_inputs_and_targets_are_contiguous_each(packed: Path) -> None:
    with Loader(TokenWindows(packed, 16), batch_size=4) as loader:
        batch = next(iter(loader))
    assert batch["inputs"].view(-1).shape == batch["targets"].view(-1).shape == (64,)
    assert torch.equal(batch["inputs"][:, 1:], batch["targets"][:, :-1])


def test_windows_may_overlap_or_leave_gaps(packed: Path) -> None:
    for stride in (1, 5, 50):
        got = loaded(packed, Windows(20, stride=stride, targets=False))
        rows = []
        for stream in streams(packed):
            rows += [stream[i : i + 20] for i in range(0, len(stream) - 19, stride)]
        assert set(got) == {"inputs"}
        assert torch.equal(got["inputs"], torch.from_numpy(np.stack(rows).astype(np.int64)))


def check_by_document(path: Path, windows: Windows) -> dict[str, torch.Tensor]:
    """The loader's windows are those that the view returns for each index."""
    with windows(path) as view:
        plain = [view[i] for i in range(len(view))]
    got = loaded(path, windows)
    for key, values in got.items():
        expected = torch.from_numpy(np.stack([window[key] for window in plain]))
        assert torch.equal(values, expected), key
    return got


def test_contiguous_windows_know_their_documents(packed: Path) -> None:
    windows = Windows(64, positions=True, documents=True, ignore=-1)
    got = check_by_document(packed, windows)
    plain = loaded(packed, Windows(64))
    assert torch.equal(got["inputs"], plain["inputs"])
    known = got["targets"] != -1
    assert torch.equal(got["targets"][known], plain["targets"][known])
    # A target is left out where the next token is another document's first.
    first = (got["positions"] == 0)[:, 1:]
    assert torch.equal(~known[:, :-1], first)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=60),
    st.integers(1, 40),
)
def test_best_fit_windows_hold_every_token_once(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], length: int
) -> None:
    begins = np.cumsum([0, *lengths])
    docs = [np.arange(a, b).astype(np.uint16) for a, b in pairwise(begins)]
    path = pack(tmp_path_factory.mktemp("fit") / "ds", docs, shard_size=512)
    windows = Windows(length, packing="best-fit", positions=True, documents=True, pad=60_000)
    got = check_by_document(path, windows)
    there = got["documents"] >= 0
    assert sorted(got["inputs"][there].tolist()) == list(range(begins[-1]))
    assert (got["inputs"][~there] == 60_000).all()
    assert (got["targets"][~there] == -100).all()
    # Whole documents, cut only where they are longer than a window.
    starts = got["inputs"][there & (got["positions"] == 0)].tolist()
    cuts = [
        int(a) + n for a, size in zip(begins, lengths, strict=False) for n in range(0, size, length)
    ]
    assert sorted(starts) == cuts


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 100), max_size=200), st.integers(100, 300))
def test_best_fit_puts_pieces_where_there_is_room(sizes: list[int], room: int) -> None:
    bins = best_fit(np.array(sizes, np.int32), room)
    used = np.bincount(bins, sizes, minlength=1)
    assert used.max(initial=0) <= room
    assert len(np.unique(bins)) == (bins.max() + 1 if len(sizes) else 0)
    # The plain way: longest first, each where least room is left.
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [i for i, left in enumerate(rooms) if left >= size]
        if fitting:
            rooms[min(fitting, key=lambda i: rooms[i])] -= size
        else:
            rooms.append(room - size)
    assert sorted(room - used[: len(rooms)]) == sorted(rooms)


def test_cu_seqlens_say_where_documents_begin_in_a_batch(packed: Path) -> None:
    windows = Windows(48, packing="best-fit", positions=True, cu_seqlens=True)
    with Loader(windows(packed), batch_size=5) as loader:
        for batch in loader:
            bounds = batch["cu_seqlens"]
            assert bounds.dtype == torch.int32
            assert "documents" not in batch
            flat = batch["positions"].flatten()
            assert bounds[0] == 0
            assert bounds[-1] == flat.numel()
            parts = [flat[a:b] for a, b in pairwise(bounds)]
            assert batch["max_seqlen"] == max(len(part) for part in parts)
            for part in parts:
                alone = torch.arange(len(part))
                assert torch.equal(part, alone) or not part.any()  # a document, or padding


def test_a_shuffled_epoch_has_every_window_once_and_goes_on_after_a_stop(packed: Path) -> None:
    windows = Windows(32)
    with Loader(windows(packed), batch_size=7, shuffle=True) as loader:
        whole = [batch["inputs"].clone() for batch in loader]
        iterator = iter(loader)
        first = [next(iterator)["inputs"].clone() for _ in range(3)]
        state = loader.state_dict()
        rest = [batch["inputs"].clone() for batch in iterator]
    in_order = loaded(packed, windows)["inputs"]
    assert sorted(torch.cat(whole).tolist()) == sorted(in_order.tolist())
    assert sorted(torch.cat(first + rest).tolist()) == sorted(in_order.tolist())
    with Loader(windows(packed), batch_size=7, shuffle=True) as loader:
        loader.load_state_dict(state)
        again = [batch["inputs"].clone() for batch in loader]
    assert all(torch.equal(a, b) for a, b in zip(again, rest, strict=True))


def test_other_windows_are_another_dataset_for_a_state(packed: Path) -> None:
    with Loader(TokenWindows(packed, 32)) as loader:
        state = loader.state_dict()
    with (
        Loader(TokenWindows(packed, 33)) as loader,
        pytest.raises(fastio.StateMismatch),
    ):
        loader.load_state_dict(state)


def test_resident_windows_are_the_same(packed: Path) -> None:
    windows = Windows(40, positions=True)
    plain, resident = loaded(packed, windows), loaded(fastio.open(packed, resident=True), windows)
    assert all(torch.equal(plain[key], resident[key]) for key in plain)


def test_windows_of_a_remote_dataset(packed: Path) -> None:
    with (
        http_folder(packed.parent) as url,
        Loader(TokenWindows(f"{url}/ds", 32), batch_size=7) as loader,
    ):
        got = torch.cat([batch["inputs"] for batch in loader])
    assert torch.equal(got, loaded(packed, Windows(32))["inputs"])


def test_ranks_share_the_windows(packed: Path) -> None:
    parts = []
    for rank in range(3):
        ranks: Any = {"rank": rank, "world_size": 3}
        with Loader(TokenWindows(packed, 32), batch_size=4, **ranks) as loader:
            for batch in loader:
                parts += batch["inputs"][: loader.batch.valid].tolist()
    assert sorted(parts) == sorted(loaded(packed, Windows(32))["inputs"].tolist())


def test_documents_themselves_are_lists_of_arrays(packed: Path) -> None:
    with Loader(packed, batch_size=3) as loader:
        batch = next(iter(loader))
    expected = documents(400)[:3]
    assert [tokens.tolist() for tokens in batch["tokens"]] == [doc.tolist() for doc in expected]


def test_callables_get_the_batch(packed: Path) -> None:
    transforms: Any = {None: lambda batch: batch["inputs"] + 1}
    with Loader(TokenWindows(packed, 8), batch_size=2, transforms=transforms) as loader:
        assert next(iter(loader)).shape == (2, 8)


def test_a_single_window_without_batches(packed: Path) -> None:
    with Loader(TokenWindows(packed, 8), batch_size=None) as loader:
        assert next(iter(loader))["inputs"].shape == (8,)


def test_what_makes_no_sense_is_refused(packed: Path, tmp_path: Path) -> None:
    for bad in ({"length": 0}, {"length": 8, "stride": 0}, {"length": 8.0}, {"length": 1 << 25}):
        with pytest.raises(TransformError):
            TokenWindows(packed, **bad)  # type: ignore[arg-type]
    with pytest.raises(TransformError, match="stride cannot be used with best-fit"):
        TokenWindows(packed, 8, stride=4, packing="best-fit")
    with pytest.raises(TransformError, match="no shard with 1000001 tokens"):
        TokenWindows(packed, 1_000_000)
    with pytest.raises(SchemaError, match="only for fields of tokens"):
        TokenWindows(packed, 8, field="text")
    with pytest.raises(TransformError, match="cu_seqlens cannot be used with batch_size=None"):
        Loader(TokenWindows(packed, 8, cu_seqlens=True), batch_size=None)
    with pytest.raises(TransformError, match="collate_fn cannot be used"):
        Loader(TokenWindows(packed, 8), collate_fn=list)
    with pytest.raises(TransformError, match="leave out fields="):
        Loader(TokenWindows(packed, 8), fields=["inputs"])
    fastio.pack([(1, 2)], tmp_path / "other")
    with pytest.raises(SchemaError, match="exactly one field of tokens"):
        TokenWindows(tmp_path / "other", 8)
    with pytest.raises(TransformError, match="needs a packed dataset"):
        TokenWindows(TokenWindows(packed, 8), 4)


@pytest.mark.parametrize("view", [TokenWindows, fastio.TokenPad])
def test_a_view_as_a_transform_is_told_to_be_a_dataset(packed: Path, view: Any) -> None:
    line = rf"fastio\.Loader\(fastio\.{view.__name__}\(dataset, "
    with pytest.raises(TypeError, match=line):
        view(128)
    for step in (view(packed, 8), {"tokens": view(packed, 8)}, {"tokens": [view(packed, 8)]}):
        with pytest.raises(TransformError, match=line):
            Loader(packed, transforms=step)


def test_a_view_of_windows_is_a_dataset(packed: Path) -> None:
    windows = TokenWindows(packed, 8, positions=True, cu_seqlens=True)
    assert windows.fields == ("inputs", "targets", "positions")
    assert windows.dataset.path == str(packed)
    assert repr(windows) == f"TokenWindows({str(packed)!r}, 8, field='tokens', rows={len(windows)})"
    assert set(windows[-1]) == set(windows.fields)
    with pytest.raises(IndexError, match="row"):
        windows[len(windows)]
    again = pickle.loads(pickle.dumps(windows))
    assert (again.fingerprint, len(again)) == (windows.fingerprint, len(windows))
    assert np.array_equal(again[3]["inputs"], windows[3]["inputs"])


def test_only_a_dataset_that_a_view_opened_is_closed_with_it(packed: Path) -> None:
    with fastio.open(packed) as dataset:
        TokenWindows(dataset, 8).close()
        assert len(dataset[0]["tokens"])
        with Loader(TokenWindows(dataset, 8), 4) as loader:
            assert loader.dataset.dataset is dataset


@pytest.mark.parametrize("context", [None, "spawn"])
def test_torch_s_dataloader_reads_windows(packed: Path, context: Any) -> None:
    windows = TokenWindows(packed, 32)
    workers = {"num_workers": 1, "multiprocessing_context": context} if context else {}
    theirs = list(DataLoader(windows, 7, **workers))  # type: ignore[arg-type,var-annotated]
    with Loader(windows, 7) as loader:
        for mine, batch in zip(loader, theirs, strict=True):
            assert all(torch.equal(mine[name], batch[name]) for name in windows.fields)


def test_a_subset_of_windows_has_these_windows(packed: Path) -> None:
    windows, rows = TokenWindows(packed, 32), [5, 3, 40, 3]
    with Loader(Subset(windows, rows), 4) as loader:  # type: ignore[arg-type]
        (batch,) = loader
    expected = np.stack([windows[row]["inputs"] for row in rows])
    assert np.array_equal(batch["inputs"], expected)


@pytest.mark.parametrize("bad", [[-1], [70_000], [[1, 2]], [0.5], ["a"]])
def test_tokens_that_do_not_fit_are_named(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(SchemaError, match="sample 0"):
        fastio.pack([{"tokens": bad}], tmp_path / "ds", schema=Schema({"tokens": Tokens()}))


def test_a_vocabulary_bounds_tokens(tmp_path: Path) -> None:
    schema = Schema({"tokens": Tokens("uint16", vocabulary_size=50)})
    with pytest.raises(SchemaError, match="vocabulary has 0 to 49"):
        fastio.pack([{"tokens": [3, 50]}], tmp_path / "ds", schema=schema)
    for kind in ({"dtype": "int64"}, {"vocabulary_size": 70_000}, {"separator": -1}):
        with pytest.raises(SchemaError):
            Tokens(**kind)  # type: ignore[arg-type]


def test_empty_documents_are_in_no_window(tmp_path: Path) -> None:
    docs = [np.arange(n, dtype=np.uint16) for n in (0, 5, 0, 0, 7, 0)]
    path = pack(tmp_path / "ds", docs)
    got = check_by_document(path, Windows(4, documents=True))
    assert got["documents"].tolist() == [[0, 0, 0, 0], [0, 1, 1, 1]]
    assert got["targets"].tolist() == [[1, 2, 3, 4], [-100, 1, 2, 3]]
    got = check_by_document(path, Windows(8, packing="best-fit", documents=True))
    assert got["inputs"].tolist() == [[0, 1, 2, 3, 4, 0, 0, 0], [0, 1, 2, 3, 4, 5, 6, 0]]


@pytest.mark.parametrize(
    "windows",
    [
        Windows(32),
        Windows(32, targets=False, stride=5),
        Windows(32, positions=True, documents=True),
        Windows(32, packing="best-fit"),
    ],
    ids=["plain", "overlapping", "documents", "best-fit"],
)
def test_windows_of_a_subset_are_those_of_its_documents(tmp_path: Path, windows: Windows) -> None:
    docs = documents(60)
    picked = [3, 4, 11, 12, 13, 59, 40]
    whole = pack(tmp_path / "whole", docs, shard_size=1 << 20)
    alone = pack(tmp_path / "alone", [docs[i] for i in sorted(picked)], shard_size=1 << 20)
    with fastio.open(whole) as dataset:
        found = loaded(Subset(dataset, picked), windows)  # type: ignore[arg-type]
    expected = loaded(alone, windows)
    assert set(found) == set(expected)
    for key, values in found.items():
        if key == "targets":  # what follows a document's last token is no target
            expected[key] = torch.where(values == windows.ignore, values, expected[key])
            assert (values != windows.ignore).float().mean() > 0.8
        assert torch.equal(values, expected[key]), key


def test_halves_of_documents_share_no_window_and_go_on(tmp_path: Path) -> None:
    docs = [np.full(50, number, np.uint16) for number in range(300)]
    path = pack(tmp_path / "ds", docs, shard_size=4 << 10)
    how: dict[str, Any] = {"seed": 1}
    with fastio.open(path) as dataset:
        assert dataset.num_shards > 3
        for half in random_split(dataset, [0.5, 0.5], torch.Generator().manual_seed(0)):
            with Loader(TokenWindows(half, 20), 8, True, **how) as loader:
                batches = iter(loader)
                first, state = next(batches)["inputs"], loader.state_dict()
                rest = torch.cat([batch["inputs"] for batch in batches])
            assert set(torch.cat([first, rest]).unique().tolist()) <= set(half.indices)
            with Loader(TokenWindows(half, 20), 8, True, **how) as loader:
                loader.load_state_dict(state)
                assert torch.equal(torch.cat([b["inputs"] for b in loader]), rest)


@pytest.mark.parametrize("packing", ["contiguous", "best-fit"])
def test_a_joined_dataset_without_picked_documents_is_left_out(
    tmp_path: Path, packing: Any
) -> None:
    docs = [np.full(50, number, np.uint16) for number in range(60)]
    paths = [pack(tmp_path / str(i), docs[30 * i : 30 * i + 30]) for i in range(2)]
    first, second = map(fastio.open, paths)
    for picked in ([3, 1, 2], [33, 31, 32]):
        joined: Any = Subset(ConcatDataset([first, second]), picked)
        with Loader(TokenWindows(joined, 20, packing=packing), 4) as loader:
            found = torch.cat([batch["inputs"] for batch in loader])
        assert set(found.unique().tolist()) - {0} == set(picked)
    first.close()
    second.close()


def test_too_few_tokens_are_those_of_the_documents_of_a_subset(tmp_path: Path) -> None:
    with fastio.open(pack(tmp_path, [np.ones(50, np.uint16)] * 30)) as dataset:
        with pytest.raises(
            TransformError, match=r"no shard with 2001 tokens, .*; all .* have 1500"
        ):
            TokenWindows(dataset, 2000)
        some: Any = Subset(dataset, [4])
        with pytest.raises(TransformError, match=r"81 tokens of the doc.* together have 50\."):
            TokenWindows(some, 80)


def test_windows_of_joined_subsets_are_those_of_their_documents(tmp_path: Path) -> None:
    docs = [np.full(50, number, np.uint16) for number in range(60)]
    paths = [pack(tmp_path / str(i), docs[30 * i : 30 * i + 30]) for i in range(2)]
    first, second = map(fastio.open, paths)
    joined: Any = Subset(ConcatDataset([first, second]), [1, 2, 3, 40, 41])
    with Loader(TokenWindows(joined, 20), 4) as loader:
        found = torch.cat([batch["inputs"] for batch in loader])
    assert set(found.unique().tolist()) == {1, 2, 3, 40, 41}
    assert len(found) == 149 // 20 + 99 // 20
    first.close()
    second.close()
