"""Several datasets as one: shares, orders, epochs, resuming, ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch.utils.data import ConcatDataset, Subset

import fastio
from fastio import (
    Loader,
    RandomResizedCrop,
    Schema,
    SchemaError,
    Tokens,
    TokenWindows,
    TransformError,
    mix,
)
from fastio.views.mixing import CYCLE, MixOrder
from tests.servers import http_folder
from tests.staging_support import noise, pack_noise
from tests.support import open_loader
from tests.torch_support import OwnDataset


def pack_numbers(path: Path, first: int, count: int) -> Path:
    fastio.pack(({"x": i, "text": f"row {i}"} for i in range(first, first + count)), path)
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, float]:
    """Three sources, whose numbers begin at 0, 10,000 and 20,000."""
    folder = tmp_path_factory.mktemp("sources")
    counts = {"a": 500, "b": 120, "c": 33}
    paths = [
        pack_numbers(folder / name, 10_000 * i, count)
        for i, (name, count) in enumerate(counts.items())
    ]
    return dict(zip(paths, (5.0, 3.0, 2.0), strict=True))


def numbers(loader: Loader) -> list[int]:
    found = []
    for batch in loader:
        found += batch["x"].tolist()
        assert batch["text"] == [f"row {x}" for x in batch["x"].tolist()]
    return found


def order(rows: list[int], weights: tuple[float, ...], **options: Any) -> MixOrder:
    how: dict[str, Any] = {"seed": 1, "order_seed": 2, "shuffle": True, "stop": "all", **options}
    return MixOrder(rows, weights, **how)


# --- The order ------------------------------------------------------------------------------------


def test_every_cycle_has_each_source_s_share() -> None:
    mixed = order([1_000_000, 1_000_000, 1_000_000], (0.5, 0.3, 0.2))
    for begin in (0, CYCLE, 5 * CYCLE):
        parts = mixed.parts(0, np.arange(begin, begin + CYCLE))
        assert [len(part.rows) for part in parts] == [5000, 3000, 2000]
        assert sorted(np.concatenate([part.places for part in parts])) == list(range(CYCLE))


def test_a_source_goes_through_its_rows_epoch_after_epoch() -> None:
    mixed = order([700, 90], (0.8, 0.2), stop=3000)
    seen: dict[int, dict[int, list[int]]] = {0: {}, 1: {}}
    for epoch in range(4):
        for begin in range(0, 3000, 37):
            positions = np.arange(begin, min(begin + 37, 3000))
            for part in mixed.parts(epoch, positions):
                seen[part.source].setdefault(part.epoch, []).extend(part.rows.tolist())
    for source, rows in ((0, 700), (1, 90)):
        passes = seen[source]
        assert sorted(passes) == list(range(len(passes)))
        for number in list(passes)[:-1]:
            assert sorted(passes[number]) == list(range(rows))
    assert seen[1][0] != seen[1][1]


def test_where_an_epoch_ends() -> None:
    assert order([500, 120, 33], (0.5, 0.3, 0.2)).samples == 1000
    assert order([500, 120, 33], (0.5, 0.3, 0.2), stop="first").samples == 165
    assert order([500, 120, 33], (0.5, 0.3, 0.2), stop=77).samples == 77


def test_any_positions_can_be_asked_for() -> None:
    mixed = order([50, 60], (0.3, 0.7), stop=200)
    whole = mixed.parts(1, np.arange(200))
    at = {
        int(place): (part.source, part.epoch, int(row))
        for part in whole
        for place, row in zip(part.places, part.rows, strict=True)
    }
    for positions in (np.array([199]), np.array([5, 3, 150, 3])):
        for part in mixed.parts(1, positions):
            for place, row in zip(part.places, part.rows, strict=True):
                assert at[int(positions[place])] == (part.source, part.epoch, int(row))


# --- The loader -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_a_mix_has_its_shares_and_all_rows(sources: dict[Path, float], batch_size: int) -> None:
    with Loader(mix(sources), batch_size, shuffle=True, seed=0) as loader:
        assert len(loader) == -(-1000 // batch_size)
        found = numbers(loader)
    count = Counter(x // 10_000 for x in found)
    assert sum(count.values()) == 1000
    assert all(abs(count[i] - share) < 70 for i, share in enumerate((500, 300, 200)))
    # Sources smaller than their share have come once at least, and in whole epochs but for one.
    for first, rows in ((10_000, 120), (20_000, 33)):
        times = Counter(x for x in found if first <= x < first + 10_000)
        assert set(times) == set(range(first, first + rows))
        assert max(times.values()) - min(times.values()) <= 1


def test_turns_follow_the_loader_s_seed_where_the_mix_has_none(sources: dict[Path, float]) -> None:
    def turns(of_mix: int | None, of_loader: int | None) -> list[int]:
        torch.manual_seed(8)
        with Loader(mix(sources, seed=of_mix), 16, seed=of_loader) as loader:
            return numbers(loader)

    assert turns(None, 3) == turns(3, 4)
    assert turns(None, 3) != turns(None, 4)
    assert turns(None, None) == turns(None, None) != turns(None, 0)


def test_what_is_delivered_depends_on_the_seeds_alone(sources: dict[Path, float]) -> None:
    def epochs(threads: int, **seeds: int) -> list[list[int]]:
        spec = mix(sources, seed=seeds.get("turns", 0))
        how: Any = {"num_workers": threads, "seed": seeds.get("rows", 0)}
        with open_loader(spec, 16, shuffle=True, **how) as loader:
            return [numbers(loader), numbers(loader)]

    first = epochs(1)
    assert epochs(2) == first
    assert first[0] != first[1]
    assert epochs(1, turns=5)[0] != first[0]
    other = epochs(1, rows=5)[0]
    assert other != first[0]
    assert [x // 10_000 for x in other] == [x // 10_000 for x in first[0]]


def test_a_generator_decides_the_order_and_sources_continue_from_epoch_to_epoch(
    sources: dict[Path, float],
) -> None:
    def epochs(drawn: int, **how: Any) -> list[int]:
        generator = torch.Generator().manual_seed(drawn)
        spec = mix(sources, stop=70)
        with Loader(spec, 16, shuffle=True, generator=generator, **how) as loader:
            return [x for _ in range(8) for x in numbers(loader)]

    found = epochs(1)
    for first, rows in ((10_000, 120), (20_000, 33)):
        of_source = [x for x in found if first <= x < first + 10_000]
        for begin in range(0, len(of_source) - rows + 1, rows):
            assert len(set(of_source[begin : begin + rows])) == rows
    assert epochs(1) == found != epochs(2)
    assert epochs(1, seed=3) == epochs(2, seed=3)


@pytest.mark.parametrize("stop", [1, 9, 40])
def test_a_mix_goes_on_where_it_stopped_with_any_ranks(
    sources: dict[Path, float], stop: int
) -> None:
    with Loader(mix(sources), 16, shuffle=True, seed=0) as loader:
        whole = numbers(loader)
        second = numbers(loader)
        loader.set_epoch(0)
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
        state = loader.state_dict()
    rest: list[int] = []
    for rank in range(2):
        with Loader(mix(sources), 8, shuffle=True, seed=0, rank=rank, world_size=2) as loader:
            loader.load_state_dict(state)
            for batch in loader:
                rest += batch["x"][: loader.batch.valid].tolist()
            if rank == 0:
                after = numbers(loader)
    assert sorted(rest) == sorted(whole[16 * stop :])
    assert set(after) <= set(second)


def test_without_shuffling_each_source_is_in_its_order(sources: dict[Path, float]) -> None:
    with Loader(mix(sources), 10) as loader:
        found = numbers(loader)
    for first, rows in ((0, 500), (10_000, 120), (20_000, 33)):
        mine = [x - first for x in found if first <= x < first + 10_000]
        expected = [i % rows for i in range(len(mine))]
        assert sorted(mine) == sorted(expected)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_keep_their_layout_and_get_new_crops_each_time(
    tmp_path: Path, layout: torch.memory_format
) -> None:
    path = pack_noise(tmp_path / "a", rows=12)
    crops = [RandomResizedCrop((16, 16))]
    seen: dict[int, list[torch.Tensor]] = {}
    last = layout == torch.channels_last
    with Loader(mix({path: 1}, stop=48), 8, transforms=crops, channels_last=last) as loader:
        for images, labels in loader:
            assert images.shape[1:] == (3, 16, 16)
            assert images.is_contiguous(memory_format=layout)
            for image, label in zip(images, labels.tolist(), strict=True):
                seen.setdefault(label, []).append(image.clone())
    assert sorted(seen) == list(range(12))
    for images in seen.values():
        assert len(images) == 4
        assert len({tuple(image.flatten().tolist()) for image in images}) == 4


def test_bad_samples_are_left_out_of_a_mix(tmp_path: Path) -> None:
    paths = [pack_noise(tmp_path / name, rows=40) for name in ("a", "b")]
    shard = next((tmp_path / "a").glob("shard-*"))
    data = bytearray(shard.read_bytes())
    at = data.find(noise(7).tobytes())
    data[at] ^= 1
    shard.write_bytes(data)
    spec = mix({paths[0]: 1, paths[1]: 1}, seed=0, stop=80)
    with Loader(spec, 5, transforms=[RandomResizedCrop(8)], on_error="skip") as loader:
        labels = [label for _, labels in loader for label in labels.tolist()]
        assert len(labels) == 79
        assert loader.stats().skipped == 1
        assert Counter(labels)[7] == 1
    with (
        Loader(spec, 5, transforms=[RandomResizedCrop(8)]) as loader,
        pytest.raises(fastio.SampleError, match="row 7"),
    ):
        list(loader)


def test_windows_of_tokens_are_mixed(tmp_path: Path) -> None:
    schema = Schema({"tokens": Tokens("uint16")})
    for place, name in enumerate("ab"):
        docs = [{"tokens": np.full(100, 10 * i + place, np.uint16)} for i in range(50)]
        fastio.pack(docs, tmp_path / name, schema=schema)
    a, b = (TokenWindows(tmp_path / name, 50) for name in "ab")
    with Loader(mix({a: 0.25, b: 0.75}, stop=200), 20, shuffle=True) as loader:
        windows = torch.cat([batch["inputs"] for batch in loader])
    share = (windows[:, 0] % 10 == 0).float().mean()
    assert windows.shape == (200, 50)
    assert 0.15 < share < 0.35


def test_a_remote_source_beside_a_local_one(sources: dict[Path, float], tmp_path: Path) -> None:
    local = next(iter(sources))
    with (
        http_folder(local.parent) as url,
        Loader(mix([(local, 1), (f"{url}/b", 1)]), 32, shuffle=True, seed=0) as loader,
    ):
        found = numbers(loader)
    assert set(found) >= set(range(500)) | set(range(10_000, 10_120))


def test_datasets_that_the_user_opened_stay_open(sources: dict[Path, float]) -> None:
    first, second, _ = sources
    dataset = fastio.open(first)
    with Loader(mix([(dataset, 1), (second, 1)]), 8) as loader:
        next(iter(loader))
    assert dataset[3]["x"] == 3


def test_what_cannot_be_mixed_is_named(sources: dict[Path, float], tmp_path: Path) -> None:
    first = next(iter(sources))
    for bad in ({}, {first: 0.0}, {first: -1}, {first: float("nan")}, [first], "ab"):
        with pytest.raises(ValueError, match="weight"):
            mix(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1/"):
        mix([(first, 1), (first, 1e-9)])
    for stop in ("never", 0, 2.5):
        with pytest.raises(ValueError, match="stop must be"):
            mix({first: 1}, stop=stop)  # type: ignore[arg-type]
    fastio.pack([{"y": 1.5}], tmp_path / "other")
    with pytest.raises(SchemaError, match="sources of one loader must be alike"):
        Loader(mix([(first, 1), (tmp_path / "other", 1)]))
    with pytest.raises(ValueError, match="determines the order"):
        Loader(mix({first: 1}), sampler=[1, 2])
    with pytest.raises(TransformError, match="pack it"):
        Loader(mix([(OwnDataset(3), 1)]))


# --- Of parts -------------------------------------------------------------------------------------


def test_subsets_and_concatenations_are_mixed(sources: dict[Path, float]) -> None:
    first, second, third = (fastio.open(path) for path in sources)
    picked = [7, 3, 3, *range(400, 450)]
    joined: Any = ConcatDataset([second, Subset(third, range(5))])
    spec = mix([(Subset(first, picked), 2), (joined, 1)], seed=3)
    expected = [*picked, *range(10_000, 10_120), *range(20_000, 20_005)]
    with Loader(spec, 8, shuffle=True, seed=1) as loader:
        batches = iter(loader)
        begin = [next(batches)["x"].tolist() for _ in range(3)]
        state = loader.state_dict()
        found = [x for xs in begin for x in xs] + [x for b in batches for x in b["x"].tolist()]
    assert set(found) == set(expected)
    times = Counter(found)  # the Subset comes four times and a part, all of the other one
    assert {times[row] for row in picked if row != 3} <= {4, 5}
    assert times[3] in (8, 9, 10)
    assert {count for row, count in times.items() if row >= 10_000} <= {1, 2}
    with Loader(spec, 8, shuffle=True, seed=1) as loader:
        loader.load_state_dict(state)
        assert numbers(loader) == found[24:]
    for dataset in (first, second, third):
        dataset.close()


def test_rows_of_a_subset_in_a_mix_are_its_places(sources: dict[Path, float]) -> None:
    with fastio.open(next(iter(sources))) as dataset:
        picked = [9, 4, 4, 1]
        with Loader(mix({Subset(dataset, picked): 1.0}), 2) as loader:
            found = [(batch["x"].tolist(), loader.batch.rows) for batch in loader]
    assert [x for xs, _ in found for x in xs] == picked
    assert [rows.tolist() for _, rows in found if rows is not None] == [[0, 1], [2, 3]]


def test_a_mix_has_a_collate_fn(sources: dict[Path, float]) -> None:
    def collate(samples: list[Any]) -> list[Any]:
        return [(sample["x"], sample["text"]) for sample in samples]

    with Loader(mix(sources, stop=50), 8, shuffle=True, seed=1) as loader:
        expected = [(x, f"row {x}") for x in numbers(loader)]
    with Loader(mix(sources, stop=50), 8, shuffle=True, seed=1, collate_fn=collate) as loader:
        assert [pair for batch in loader for pair in batch] == expected


def test_tables_are_mixed_with_packed_rows(sources: dict[Path, float], tmp_path: Path) -> None:
    table = {"x": list(range(50_000, 50_040)), "text": [f"row {50_000 + i}" for i in range(40)]}
    parquet.write_table(pa.table(table), tmp_path / "t.parquet", row_group_size=7)
    first = next(iter(sources))
    with Loader(mix([(first, 1), (tmp_path / "t.parquet", 1)], stop=80), 8, True, seed=0) as loader:
        assert {x for x in numbers(loader) if x >= 50_000} == set(table["x"])
