"""Which blocks rows need, when they are needed next, and how datasets are cut."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastio
from fastio import Dataset
from fastio.cache import Consumer
from fastio.order.orders import Orders
from fastio.order.plan import Plan
from fastio.order.sampling import Ranks, Sampling
from fastio.stage import Blocks, Forecast, Lookahead, Stager, StagingPlan, ahead_bytes, cut
from fastio.stage.forecast import next_use

MIB = 1 << 20


def by_hand(forecast: Forecast, position: int, ahead: int, block: int) -> float:
    """The next use of a block, found by walking through this epoch's order and the next one's."""
    assert forecast.orders is not None
    rows = forecast.orders.rows
    everything = np.arange(rows)
    walk = np.concatenate(
        [forecast.orders.epoch(forecast.epoch + epoch).at(everything) for epoch in (0, 1)]
    )
    uses = np.flatnonzero(walk // forecast.block_rows == block)
    uses = uses[uses >= position]
    return float(uses[0])


@given(
    rows=st.integers(1, 200),
    block_rows=st.integers(1, 20),
    window=st.integers(1, 5),
    mode=st.sampled_from(["sequential", "shuffle"]),
    epoch=st.integers(0, 3),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_forecast_by_rows_is_what_walking_through_the_order_finds(
    rows: int,
    block_rows: int,
    window: int,
    mode: Literal["sequential", "shuffle"],
    epoch: int,
    data: Any,
) -> None:
    orders = Orders(rows, 7, mode, block_rows, window)
    forecast = Forecast(orders, epoch, block_rows)
    position = data.draw(st.integers(0, rows - 1))
    blocks = np.arange(-(-rows // block_rows))
    found = forecast.next_use(position, position, blocks)
    for block in blocks.tolist():
        use = by_hand(forecast, position, position, block)
        assert found[block] == (-1 if use <= position else use - position)


@given(
    rows=st.integers(1, 300),
    block_rows=st.integers(1, 20),
    window=st.integers(1, 5),
    epoch=st.integers(0, 2),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_forecast_of_a_window_order_is_when_the_blocks_window_begins(
    rows: int, block_rows: int, window: int, epoch: int, data: Any
) -> None:
    orders = Orders(rows, 7, "window", block_rows, window)
    forecast = Forecast(orders, epoch, block_rows)
    position = data.draw(st.integers(0, rows - 1))
    blocks = np.arange(-(-rows // block_rows))
    found = forecast.next_use(position, position, blocks)
    begins, ends = orders.epoch(epoch).window_of(blocks)
    later, _ = orders.epoch(epoch + 1).window_of(blocks)
    for block in blocks.tolist():
        if begins[block] <= position < ends[block]:
            assert found[block] == -1
        elif begins[block] > position:
            assert found[block] == begins[block] - position
        else:
            assert found[block] == rows + later[block] - position


def test_what_is_being_fetched_is_in_use_also_beyond_the_epochs_end() -> None:
    orders = Orders(100, 0, "sequential", 10, 1)
    forecast = Forecast(orders, 0, 10)
    found = forecast.next_use(50, 125, np.arange(10))
    assert found.tolist() == [-1, -1, -1, 80, 90, -1, -1, -1, -1, -1]


def test_the_nearest_of_several_runs_counts() -> None:
    forecast = Forecast(Orders(100, 0, "sequential", 10, 1), 0, 10).text
    runs = [Consumer(1, forecast, 0, 0), Consumer(1, forecast, 45, 45)]
    assert next_use(runs, np.array([0, 4, 5, 9])).tolist() == [-1, -1, 5, 45]


def test_heads_of_shards_are_in_use_and_samplers_are_unknown() -> None:
    heads, sampler = Forecast(None, 0, 0).text, Forecast(None, 0, 10).text
    assert next_use([Consumer(1, heads, 0, 0)], np.array([3])).tolist() == [-1]
    assert next_use([Consumer(1, sampler, 0, 0)], np.array([3])).tolist() == [np.inf]


@pytest.mark.parametrize("text", ["", "null", "[]", '{"orders": 3}', '{"orders": {"rows": -1}}'])
def test_another_versions_forecast_says_nothing(text: str) -> None:
    assert next_use([Consumer(1, text, 0, 0)], np.array([3])).tolist() == [np.inf]


def test_the_epoch_in_which_data_comes_in_is_shuffled_by_windows_and_later_ones_wholly() -> None:
    orders = Orders(1000, 3, "settle", 10, 4)
    assert orders.epoch(0) == Orders(1000, 3, "window", 10, 4).epoch(0)
    assert orders.epoch(1) == Orders(1000, 3, "shuffle", 10, 4).epoch(1)


@pytest.mark.parametrize("room", [None, 0, 5 * MIB, 100 * MIB, 1 << 40])
@pytest.mark.parametrize("rows", [1, 10, 10_000, 10**9])
@pytest.mark.parametrize("row_bytes", [1, 110_000, 50 * MIB])
def test_a_cut_suits_the_dataset_and_the_room(rows: int, row_bytes: int, room: int | None) -> None:
    chosen = cut(rows, rows * row_bytes, room)
    assert chosen.block_rows >= 1
    assert 1 <= chosen.window <= 32
    if room is not None and chosen.window > 1:
        assert chosen.window * chosen.block_rows * row_bytes <= room // 8


def test_blocks_say_where_every_image_lies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 40, (90, 2))
    samples = [
        {
            "left": rng.integers(0, 256, (int(h), int(w), 3), np.uint8),
            "right": rng.integers(0, 256, (int(w), int(h), 3), np.uint8),
        }
        for h, w in sizes
    ]
    fastio.pack(samples, tmp_path / "packed", codec="raw", shard_size="40KiB")
    local = fastio.open(tmp_path / "packed")
    assert local.num_shards > 2
    with Dataset(_as_memory(tmp_path / "packed")) as dataset:
        blocks = Blocks(dataset, 7)
        rows = np.array([89, 0, 6, 7, 41, 42, 13], np.int64)
        assert blocks.of(rows).tolist() == [12, 0, 1, 5, 6]
        for field in ("left", "right"):
            reads = dataset.image_reads(field, rows)
            places = (*blocks.locate(field, rows, reads), reads.length)
            for row, block, offset, length in zip(rows, *places, strict=True):
                parts, problem = blocks.fetch(int(block))
                assert problem is None
                data = b"".join(bytes(part) for part in parts)
                assert len(data) == blocks.size(int(block))
                pixels = samples[int(row)][field]
                assert data[offset : offset + length] == pixels.tobytes()


def _as_memory(folder: Path) -> str:
    import fsspec

    files = fsspec.filesystem("memory")
    for path in folder.iterdir():
        files.pipe_file(f"/{folder.parent.name}/{path.name}", path.read_bytes())
    return f"memory://{folder.parent.name}"


def test_images_that_are_not_asked_for_are_not_fetched(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [(rng.integers(0, 256, (64, 64, 3), np.uint8), index) for index in range(200)]
    fastio.pack(samples, tmp_path / "packed", codec="raw")
    url = _as_memory(tmp_path / "packed")
    with fastio.Loader(url, 10, shuffle=True, seed=0, fields=["label"]) as loader:
        found = [int(n) for batch in loader for n in batch[0]]
        assert sorted(found) == list(range(200))
        assert loader.stats().bytes_fetched < 0.1 * loader.dataset.nbytes


class _Counted:
    """A stager that counts the blocks that are wanted, of 10 rows and 100 bytes."""

    def __init__(self) -> None:
        self.generation = object()
        self.blocks = SimpleNamespace(mean_bytes=100, of=lambda rows: np.unique(rows // 10))
        self.wanted = set[int]()

    def want(self, blocks: Any) -> None:
        self.wanted |= set(blocks.tolist())

    def done(self, blocks: Any) -> None:
        self.wanted -= set(blocks.tolist())

    def nothing(self, *_: Any) -> None:
        """Stands for the calls that are not looked at."""

    carry = tell = nothing


@pytest.mark.parametrize("most", [0, 1000, 3000])
def test_blocks_are_requested_further_ahead_once_as_many_bytes_were_used(most: int) -> None:
    orders, stager = Orders(1000, 0, "sequential"), _Counted()
    staging = StagingPlan(Forecast(orders, 0, 10), 0, 400, most_bytes=most)
    run = Lookahead(iter(Plan(orders.epoch(0), 10)), cast(Stager, stager), staging)
    for step, planned in enumerate(run):
        blocks = run.blocks(planned)
        left = 100 - step
        assert len(stager.wanted) == min(left, max(4, min(most // 100, step)))
        stager.done(blocks)


@pytest.mark.parametrize(
    "sampling", [Sampling(8), Sampling(8, order="shuffle"), Sampling(sampler=[1])]
)
def test_without_windows_blocks_are_fetched_far_ahead_too(sampling: Sampling) -> None:
    without_cache: Any = SimpleNamespace(cache=None, blocks=None)
    assert ahead_bytes(sampling, without_cache, Ranks()) == 64 * MIB
