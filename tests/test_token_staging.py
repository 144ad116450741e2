"""Windows of tokens and padded documents of remote datasets: fetched ahead, once, in any order."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import fastio
from fastio import Cache, Loader, Scalar, Schema, Tokens
from fastio.order.order import ShardOrder
from fastio.order.orders import Orders
from fastio.order.plan import Plan
from fastio.stage import Forecast, Lookahead, Stager, StagingPlan
from tests.servers import Answer, FaultProxy
from tests.staging_support import piece_files
from tests.support import open_loader
from tests.token_support import Padding, Windows

DOCS = 1200
SHARD = 16 << 10
WINDOWS = Windows(64)
LATENCY_S = 0.03


def tokens_of(row: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    length = int(np.random.default_rng(row).integers(1, 400))
    return ((row * 7919 + np.arange(length)) % 65536).astype(np.uint16)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    schema = Schema({"tokens": Tokens("uint16"), "label": Scalar("int64")})
    with fastio.Writer(folder / "docs", schema, shard_size=SHARD) as writer:
        for row in range(DOCS):
            writer.write({"tokens": tokens_of(row), "label": row})
    return folder


def shard_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "docs").glob("shard-*"))


@pytest.fixture(params=(None, 64 << 20, 300 << 10), ids=("memory", "cache", "small"))
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Cache | None:
    return None if request.param is None else Cache(tmp_path / "cache", request.param)


def local_windows(root: Path, windows: Windows = WINDOWS) -> torch.Tensor:
    """The inputs of all windows, in order."""
    with Loader(windows(root / "docs"), 64) as loader:
        return torch.cat([batch["inputs"] for batch in loader])


def window_bounds(root: Path) -> list[int]:
    """The first window of each shard, and their number."""
    with fastio.open(root / "docs") as dataset:
        assert isinstance(dataset, fastio.Dataset)
        tokens = dataset.manifest.shard_tokens("tokens")
    return np.append(0, np.cumsum(np.maximum(0, (tokens - 65) // 64 + 1))).tolist()


def name_of(answer: Answer) -> str:
    return answer.path.rsplit("/", 1)[1]


def shards_asked_for(proxy: FaultProxy) -> set[str]:
    return {name_of(answer) for answer in proxy.answers("shard", "GET")}


def epoch_of(loader: Loader, expected: torch.Tensor) -> list[int]:
    """One epoch's rows, each window compared with what it must be."""
    rows = []
    for batch in loader:
        assert loader.batch.rows is not None
        assert torch.equal(batch["inputs"], expected[loader.batch.rows])
        rows += loader.batch.rows[: loader.batch.valid].tolist()
    return rows


def windows_loader(url: str, cache: Cache | None, **options: Any) -> Loader:
    given: dict[str, Any] = {
        "batch_size": 8,
        "shuffle": True,
        "seed": 0,
        "num_workers": 1,
    } | options
    return open_loader(f"{url}/docs", view=WINDOWS, cache=cache, **given)


@pytest.mark.parametrize("order", ["auto", "sequential", "shuffle", "window"])
def test_windows_are_those_of_the_local_copy(
    order: Any, proxy: FaultProxy, root: Path, cache: Cache | None
) -> None:
    expected = local_windows(root)
    shuffle = None if order != "auto" else True
    options: dict[str, Any] = {"shuffle": shuffle, "order": order, "batch_size": 61}
    with windows_loader(proxy.url, cache, **options) as loader:
        epochs = [epoch_of(loader, expected) for _ in range(3)]
    everything = list(range(len(expected)))
    assert all(sorted(rows) == everything for rows in epochs)
    assert (epochs[0] == epochs[1]) == (order == "sequential")


@pytest.mark.parametrize(
    "windows",
    [
        Windows(64, packing="best-fit"),
        Windows(50, positions=True, documents=True, cu_seqlens=True),
        Windows(40, stride=13),
        Windows(4000),  # many shards have none
    ],
    ids=("best-fit", "documents", "stride", "long"),
)
def test_every_kind_of_window(
    windows: Windows, proxy: FaultProxy, root: Path, cache: Cache | None
) -> None:
    options: dict[str, Any] = {"view": windows, "batch_size": 61}
    with (
        open_loader(root / "docs", **options) as local,
        open_loader(f"{proxy.url}/docs", cache=cache, **options) as remote,
    ):
        for ours, theirs in zip(local, remote, strict=True):
            assert ours.keys() == theirs.keys()
            for name in ours:
                assert np.array_equal(ours[name], theirs[name])


@pytest.mark.parametrize("kept", [False, True], ids=("memory", "cache"))
def test_every_byte_is_fetched_once_an_epoch_and_once_for_all_where_it_is_kept(
    kept: bool, proxy: FaultProxy, root: Path, tmp_path: Path
) -> None:
    expected, whole = local_windows(root), shard_bytes(root)
    cache = Cache(tmp_path / "cache") if kept else None
    with windows_loader(proxy.url, cache) as loader:
        for epoch in range(3):
            assert sorted(epoch_of(loader, expected)) == list(range(len(expected)))
            assert proxy.sent_twice("shard") == 0 or not kept
            sent = proxy.sent("shard")
            most = whole if kept else (epoch + 1) * whole + 8 * 2 * SHARD
            assert sent <= most
    assert proxy.sent("shard") >= whole


def test_a_window_of_shards_is_used_up_before_the_next_one(proxy: FaultProxy, root: Path) -> None:
    bounds = window_bounds(root)
    with windows_loader(proxy.url, None) as loader:
        rows = epoch_of(loader, local_windows(root))
    shards = np.searchsorted(bounds, rows, side="right") - 1
    places = [np.flatnonzero(shards == shard) for shard in range(len(bounds) - 1)]
    window = [int(np.diff(bounds)[shard]) for shard in range(len(bounds) - 1)]
    assert all(np.ptp(at) < 4 * max(window) for at in places)
    assert any(np.ptp(at) >= size for at, size in zip(places, window, strict=True))


def test_the_next_windows_shards_are_there_before_a_batch_needs_them(
    proxy: FaultProxy, root: Path, tmp_path: Path
) -> None:
    """With one batch taken, two windows of shards come; they need no server after that."""
    proxy.set(latency_s=LATENCY_S)
    expected = local_windows(root)
    with windows_loader(proxy.url, Cache(tmp_path / "cache"), batch_size=1) as loader:
        run, spans = iter(loader), list(ShardOrder(window_bounds(root), 0, 0, 4).spans())
        next(run)
        names = [{f"shard-{n:06}.arrow" for n in shards.tolist()} for _, shards in spans[:2]]
        deadline_s = time.monotonic() + 30
        asked = shards_asked_for(proxy)
        while not asked >= names[0] | names[1] and time.monotonic() < deadline_s:
            time.sleep(0.01)
            asked = shards_asked_for(proxy)
        assert asked >= names[0] | names[1]
        proxy.fail("status", p=1.0, match="shard")
        for _ in range(spans[1][0] - 1):
            batch = next(run)
            assert loader.batch.rows is not None
            assert torch.equal(batch["inputs"], expected[loader.batch.rows])


class Asked:
    """A stager that notes which shards are wanted, of windows of 4 shards of 25 rows."""

    def __init__(self, bounds: list[int]) -> None:
        self.generation = object()
        self.blocks = SimpleNamespace(mean_bytes=100, of=self.shards_of)
        self.bounds = bounds
        self.wanted = Counter[int]()

    def shards_of(self, rows: Any) -> Any:
        return np.unique(np.searchsorted(self.bounds, rows, side="right") - 1)

    def want(self, shards: Any) -> None:
        self.wanted.update(shards.tolist())

    def done(self, shards: Any) -> None:
        self.wanted.subtract(shards.tolist())
        self.wanted += Counter()  # leaves out what is not wanted any more
        assert self.wanted.total() >= 0

    def carry(self, shards: Any) -> None:
        self.carried = shards

    def tell(self, *_: Any) -> None:
        """Nobody listens."""


@pytest.mark.parametrize("ahead", [0, 1000, 2400, 10_000])
def test_no_more_is_asked_for_than_the_bytes_ahead_and_a_window(ahead: int) -> None:
    bounds = list(range(0, 1201, 25))
    stager = Asked(bounds)
    orders = Orders(1200, 0, "window", 1, 4, bounds=tuple(bounds))
    order = orders.epoch(0)
    assert isinstance(order, ShardOrder)
    windows = [shards.tolist() for _, shards in order.spans()]
    plan = Plan(order, 10)
    staging = StagingPlan(Forecast(orders, 0, 0), 0, ahead)
    run = Lookahead(iter(plan), cast(Stager, stager), staging)
    least = max(6, ahead // 100)
    for planned in run:
        current = (planned.next_position - 1) // 100
        ended = planned.next_position % 100 == 0  # then the window is the batch's alone
        most = least + (-least) % 4
        coming = windows[current + ended : current + ended + -(-most // 4)]
        asked = {shard for window in coming for shard in window}
        blocks = run.blocks(planned)
        assert set(stager.wanted) - set(blocks.tolist()) <= asked
        due = coming[: 1 if ended else 2]
        assert set(stager.wanted) | set(blocks.tolist()) >= {s for w in due for s in w}
        stager.done(blocks)
        run.finished(planned)
    assert not stager.wanted
    assert stager.carried == []


def test_the_next_epochs_first_window_comes_at_the_end_of_this_one(
    proxy: FaultProxy, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a dataset that is much larger: two windows at a time, and nothing used is kept.
    monkeypatch.setattr("fastio.feed.native.ahead_bytes", lambda *_: 0)
    monkeypatch.setattr("fastio.packed.stored._KEPT_WHOLE_BYTES", 0)
    bounds = window_bounds(root)
    end, shards = next(ShardOrder(bounds, 0, 1, 4).spans())
    first = {f"shard-{n:06}.arrow" for n in shards.tolist()}
    with windows_loader(proxy.url, None) as loader:
        assert sum(1 for _ in loader) == len(loader)
        deadline_s = time.monotonic() + 30
        asked = Counter[str]()
        while not all(asked[name] == 2 for name in first) and time.monotonic() < deadline_s:
            asked = Counter(name_of(a) for a in proxy.answers("shard", "GET"))
            time.sleep(0.01)
        assert all(asked[name] >= 2 for name in first), asked
        proxy.fail("status", p=1.0, match="shard")
        run, expected = iter(loader), local_windows(root)
        assert loader.batch.rows is not None
        for _ in range(end // 8):
            batch = next(run)
            assert loader.batch.epoch == 1
            assert torch.equal(batch["inputs"], expected[loader.batch.rows])


def test_an_epoch_takes_as_long_as_its_bytes_not_as_its_requests(proxy: FaultProxy) -> None:
    with windows_loader(proxy.url, None, batch_size=64) as loader:
        proxy.gather(4)  # requests that are made one after the other are never met
        assert sum(1 for _ in loader) == len(loader)
    assert proxy.met()


def test_padded_documents_come_by_windows_of_shards(proxy: FaultProxy, cache: Cache | None) -> None:
    padding = Padding(100, multiple_of=4)
    data = padding(fastio.open(f"{proxy.url}/docs", cache=cache))
    with Loader(data, 8, shuffle=True, seed=0, num_workers=1) as loader:
        for _ in range(2):
            labels = []
            for batch in loader:
                documents = [tokens_of(row)[:100] for row in batch["label"].tolist()]
                longest = padding.length(max(map(len, documents)))
                assert batch["input_ids"].shape == (len(documents), longest)
                for row, document in zip(batch["input_ids"], documents, strict=True):
                    assert np.array_equal(row[: len(document)], document)
                    assert not row[len(document) :].any()
                labels += batch["label"].tolist()
            assert sorted(labels) == list(range(DOCS))


def test_padded_documents_in_batches_of_like_lengths(
    proxy: FaultProxy, root: Path, cache: Cache | None
) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 0, "num_workers": 1}
    view = Padding(400, multiple_of=1, pool=6)
    with open_loader(f"{proxy.url}/docs", 8, view=view, cache=cache, **options) as loader:
        batches = list(loader)
    assert sorted(row for batch in batches for row in batch["label"].tolist()) == list(range(DOCS))
    padding = 1 - sum(int(b["attention_mask"].sum()) for b in batches) / sum(
        b["attention_mask"].numel() for b in batches
    )
    assert padding < 0.15


@pytest.mark.parametrize("worlds", [(2, 2), (2, 1), (1, 4)])
def test_an_epoch_goes_on_at_another_world_size_with_another_cache(
    worlds: tuple[int, int], proxy: FaultProxy, root: Path, tmp_path: Path
) -> None:
    expected, seen, states = local_windows(root), list[int](), []
    for rank in range(worlds[0]):
        cache = Cache(tmp_path / "one", 300 << 10)
        ranks: dict[str, Any] = {"rank": rank, "world_size": worlds[0]}
        with windows_loader(proxy.url, cache, **ranks) as loader:
            for step, batch in enumerate(loader):
                assert loader.batch.rows is not None
                assert torch.equal(batch["inputs"], expected[loader.batch.rows])
                seen += loader.batch.rows.tolist()
                if step == 10:
                    break
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    for rank in range(worlds[1]):
        ranks = {"rank": rank, "world_size": worlds[1]}
        with windows_loader(proxy.url, None, **ranks) as loader:
            loader.load_state_dict(states[0])
            seen += epoch_of(loader, expected)
    assert sorted(seen) == list(range(len(expected)))


def test_a_small_cache_keeps_what_is_needed_next(
    proxy: FaultProxy, root: Path, tmp_path: Path
) -> None:
    """Read in order again and again, whoever keeps what was used last has nothing of use."""
    expected, whole = local_windows(root), shard_bytes(root)
    cache = Cache(tmp_path / "cache", whole * 6 // 10)
    with windows_loader(proxy.url, cache, shuffle=False) as loader:
        epoch_of(loader, expected)
        proxy.forget()
        for _ in range(3):
            epoch_of(loader, expected)
    assert proxy.sent("shard") < 3 * whole * 0.8
    assert sum(path.stat().st_size for path in piece_files(cache)) <= whole * 6 // 10


def test_damaged_bytes_are_fetched_again(proxy: FaultProxy, root: Path, tmp_path: Path) -> None:
    proxy.fail("flip", match="shard", p=0.2)
    expected = local_windows(root)
    with windows_loader(proxy.url, Cache(tmp_path / "cache")) as loader:
        assert sorted(epoch_of(loader, expected)) == list(range(len(expected)))
    assert proxy.struck()["flip"]


def test_a_mix_of_remote_and_local_windows(proxy: FaultProxy, root: Path) -> None:
    mixed = fastio.mix([(WINDOWS(f"{proxy.url}/docs"), 1), (WINDOWS(root / "docs"), 1)])
    with Loader(mixed, 8, shuffle=True, seed=0) as loader:
        remote = [batch["inputs"].clone() for batch in loader]
    local = fastio.mix([(WINDOWS(root / "docs"), 1), (WINDOWS(root / "docs"), 1)])
    with Loader(local, 8, shuffle=True, seed=0) as loader:
        for ours, theirs in zip(remote, loader, strict=True):
            assert torch.equal(ours, theirs["inputs"])
