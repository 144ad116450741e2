"""Loader on the native path: what is yielded, in which order, on which rank."""

from __future__ import annotations

import contextlib
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastio
from fastio import Loader
from tests.numbered import ROWS, SMALL, loader, rows_of
from tests.support import flat, slow_reads, tell, told

# What is yielded


def test_batches_are_tuples_of_contiguous_bytes_and_labels(folder: Path) -> None:
    with loader(folder) as batches:
        batch = next(iter(batches))
    assert isinstance(batch, tuple)
    images, labels = batch
    assert (images.shape, images.dtype) == ((5, 3, 8, 8), torch.uint8)
    assert images.is_contiguous()
    assert images.view(5, -1).shape == (5, 192)
    assert (labels.tolist(), labels.dtype) == ([0] * 5, torch.int64)


def test_it_says_what_it_loads(folder: Path) -> None:
    with loader(folder) as loading:
        text = repr(loading)
    expected = f"Loader({loading.dataset!r}, batch_size=5, native path, rows are not shuffled)"
    assert text == expected


def test_it_says_how_rows_are_shuffled(folder: Path) -> None:
    with loader(folder, shuffle=True, seed=0) as loading:
        assert repr(loading).endswith("rows are shuffled over the whole dataset)")


def test_images_are_in_channels_last_memory_when_asked(folder: Path) -> None:
    with loader(folder, channels_last=True) as last, loader(folder) as first:
        a, b = next(iter(last))[0], next(iter(first))[0]
    assert a.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(a, b)


def test_images_of_unequal_size_come_as_a_list(folder: Path) -> None:
    with loader(folder, transforms=None) as batches:
        images, _ = next(iter(batches))
    assert [tuple(image.shape) for image in images[:2]] == [(3, 32, 24), (3, 36, 32)]
    assert told(images) == [0, 1, 2, 3, 4]


def test_fields_are_delivered_in_the_order_asked_for(folder: Path) -> None:
    with loader(folder, fields=["label", "image"]) as batches:
        labels, images = next(iter(batches))
    assert labels.tolist() == [0] * 5
    assert told(images) == [0, 1, 2, 3, 4]


def test_without_batch_size_single_samples_come(folder: Path) -> None:
    with loader(folder, None) as samples:
        assert len(samples) == ROWS
        image, label = list(samples)[-1]
    assert image.shape == (3, 8, 8)
    assert told([image]) == [ROWS - 1]
    assert label == 2


def test_an_image_of_one_size_in_the_dataset_is_batched_without_a_transform(tmp_path: Path) -> None:
    samples = [{"image": np.full((6, 7, 3), value, np.uint8), "x": value} for value in range(4)]
    fastio.pack(samples, tmp_path / "packed")
    with Loader(tmp_path / "packed", 4) as batches:
        (batch,) = list(batches)
    assert batch["image"].shape == (4, 3, 6, 7)
    assert batch["x"].tolist() == [0, 1, 2, 3]


def test_a_packed_dataset_keeps_its_structure_and_types(tmp_path: Path) -> None:
    samples = [
        {"text": f"t{i}", "raw": b"r%d" % i, "vector": np.full(3, i, np.float32), "flag": i > 1}
        for i in range(4)
    ]
    fastio.pack(samples, tmp_path / "packed")
    with Loader(tmp_path / "packed", 3) as batches:
        batch = next(iter(batches))
    assert list(batch) == ["text", "raw", "vector", "flag"]
    assert batch["text"] == ["t0", "t1", "t2"]
    assert batch["raw"] == [b"r0", b"r1", b"r2"]
    assert torch.equal(batch["vector"], torch.arange(3.0)[:, None].repeat(1, 3))
    assert batch["flag"].tolist() == [False, False, True]


def test_single_values_come_as_a_bare_tensor(tmp_path: Path) -> None:
    fastio.pack([float(i) for i in range(5)], tmp_path / "packed")
    with Loader(tmp_path / "packed", 3) as batches:
        assert [batch.tolist() for batch in batches] == [[0.0, 1.0, 2.0], [3.0, 4.0]]


def test_batches_keep_their_values_while_later_ones_are_made(folder: Path) -> None:
    with loader(folder, 2, prefetch_factor=1) as batches:
        kept = [images for epoch in range(3) for images, _ in batches]
    assert [row for images in kept for row in told(images)] == list(range(ROWS)) * 3


def test_an_open_dataset_can_be_given_and_is_left_open(folder: Path) -> None:
    dataset = fastio.FolderDataset(folder)
    with Loader(dataset, 5, transforms=SMALL) as batches:
        assert batches.dataset is dataset
        assert next(iter(batches))[1].tolist() == [0] * 5
    assert len(dataset) == ROWS


# Order


def test_without_shuffle_rows_come_in_order(folder: Path) -> None:
    with loader(folder) as batches:
        assert rows_of(batches) == [
            [0, 1, 2, 3, 4],
            [5, 6, 7, 8, 9],
            [10, 11, 12, 13, 14],
            [15, 16, 17, 18, 19],
            [20, 21, 22, 23],
        ]


def test_every_row_comes_once_in_a_shuffled_epoch(folder: Path) -> None:
    with loader(folder, shuffle=True) as batches:
        first = flat(rows_of(batches))
        second = flat(rows_of(batches))
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second
    assert first != sorted(first)


def test_the_order_is_a_function_of_seed_and_epoch(folder: Path) -> None:
    def order(seed: int, epoch: int, threads: int) -> list[list[int]]:
        with loader(folder, shuffle=True, seed=seed, num_workers=threads) as batches:
            batches.set_epoch(epoch)
            return rows_of(batches)

    assert order(7, 3, 1) == order(7, 3, 3)
    assert order(7, 3, 1) != order(8, 3, 1)
    assert order(7, 3, 1) != order(7, 4, 1)


def test_labels_and_rows_belong_to_their_images(folder: Path) -> None:
    labels = np.repeat([0, 1, 2], [9, 7, 8])
    with loader(folder, shuffle=True) as batches:
        for images, targets in batches:
            rows = told(images)
            assert batches.batch.rows is not None
            assert batches.batch.rows.tolist() == rows
            assert targets.tolist() == labels[rows].tolist()


def test_window_order_has_every_row_once(folder: Path) -> None:
    with loader(folder, shuffle=True, order="window") as batches:
        assert sorted(flat(rows_of(batches))) == list(range(ROWS))


@pytest.mark.parametrize("drop_last", [True, False])
def test_len_is_the_number_of_batches(folder: Path, drop_last: bool) -> None:
    with loader(folder, drop_last=drop_last) as batches:
        assert len(batches) == len(list(batches)) == (4 if drop_last else 5)


def test_a_sampler_is_followed_exactly(folder: Path) -> None:
    with loader(folder, 3, sampler=[5, 5, -1, 0, 7], drop_last=False) as batches:
        assert len(batches) == 2
        assert rows_of(batches) == [[5, 5, 23], [0, 7]]


def test_a_batch_sampler_is_followed_exactly(folder: Path) -> None:
    with loader(folder, 1, batch_sampler=[[3], [1, 2, 0], [9, 9]]) as batches:
        assert len(batches) == 3
        assert rows_of(batches) == [[3], [1, 2, 0], [9, 9]]


def test_an_endless_sampler_is_read_as_far_as_needed(folder: Path) -> None:
    class Endless:
        def __iter__(self) -> Any:
            return (number % 4 for number in count())

    with loader(folder, 3, sampler=Endless()) as batches:
        assert rows_of(islice(batches, 3)) == [[0, 1, 2], [3, 0, 1], [2, 3, 0]]


def test_a_sampler_is_asked_again_every_epoch(folder: Path) -> None:
    sampler = torch.utils.data.RandomSampler(range(ROWS))
    with loader(folder, sampler=sampler) as batches:
        first, second = rows_of(batches), rows_of(batches)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(ROWS))
    assert first != second


def test_a_row_out_of_range_is_an_index_error(folder: Path) -> None:
    with loader(folder, sampler=[0, ROWS]) as batches, pytest.raises(IndexError, match="row 24,"):
        list(batches)


# Epochs


def test_iterating_again_is_the_next_epoch_also_after_a_break(folder: Path) -> None:
    with loader(folder, shuffle=True) as batches:
        epochs = []
        for _ in range(3):
            for _ in batches:
                epochs.append(batches.batch.epoch)
                break
    assert epochs == [0, 1, 2]


def test_set_epoch_chooses_the_next_epoch(folder: Path) -> None:
    with loader(folder, shuffle=True) as batches:
        zero = rows_of(batches)
        batches.set_epoch(0)
        assert rows_of(batches) == zero
        batches.set_epoch(9)
        next(iter(batches))
        assert batches.batch.epoch == 9


def test_batch_before_the_first_is_an_error(folder: Path) -> None:
    with loader(folder) as batches, pytest.raises(RuntimeError, match="no batch"):
        _ = batches.batch


# Ranks


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_share_every_global_batch(folder: Path, world_size: int) -> None:
    parts, steps = [], set()
    for rank in range(world_size):
        with loader(folder, 2, shuffle=True, rank=rank, world_size=world_size) as batches:
            steps.add(len(batches))
            rows = []
            for images, _ in batches:
                rows.append(told(images)[: batches.batch.valid])
            parts.append(rows)
    assert len(steps) == 1
    whole = [flat(step) for step in zip(*parts, strict=True)]
    assert sorted(flat(whole)) == list(range(ROWS))
    with loader(folder, 2 * world_size, shuffle=True) as batches:
        assert rows_of(batches) == whole


def test_distributed_takes_rank_and_world_size_from_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with loader(folder, 4, distributed=True) as batches:
        assert len(batches) == 3
        assert rows_of(batches)[0] == [4, 5, 6, 7]


@pytest.mark.parametrize("rank", ["", "x", "2"])
def test_an_impossible_rank_in_the_environment_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=f"RANK and WORLD_SIZE, '{rank}' and '2'"):
        loader(folder, 4, distributed=True)


def test_distributed_asks_torch_distributed_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    batches = loader(folder, 4, distributed=True)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert len(batches) == 6
    finally:
        torch.distributed.destroy_process_group()
    assert len(batches) == 3
    batches.close()


def test_a_sampler_is_not_shared_out_among_ranks(folder: Path) -> None:
    with loader(folder, 2, sampler=[1, 2, 3], rank=1, world_size=2) as batches:
        assert rows_of(batches) == [[1, 2], [3]]


# Arguments


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": -1},
        {"batch_size": 0},
        {"batch_size": 2.0},
        {"shuffle": True, "sampler": [0]},
        {"batch_sampler": [[0]], "drop_last": True},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"order": "random"},
        {"order": "sequential", "shuffle": True},
        {"order": "window", "shuffle": False},
        {"order": "window", "sampler": [0]},
        {"rank": 0},
        {"rank": 2, "world_size": 2},
        {"on_error": "ignore"},
        {"fields": "image"},
    ],
    ids=str,
)
def test_impossible_arguments_are_refused_at_once(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Loader(folder, **{"batch_size": 1, **options})


def test_a_seed_that_is_no_integer_is_named(folder: Path) -> None:
    with pytest.raises(TypeError, match=r"seed must be an integer or None, got 1\.5"):
        Loader(folder, seed=1.5)  # type: ignore[arg-type]


def test_a_path_without_data_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(fastio.SourceNotFound):
        Loader(tmp_path / "nothing")


def test_worker_arguments_are_accepted_without_effect(folder: Path) -> None:
    with loader(
        folder,
        worker_init_fn=print,
        multiprocessing_context="spawn",
        persistent_workers=True,
        num_workers=0,
        timeout=60,
        in_order=False,
    ) as batches:
        assert rows_of(batches)[0] == [0, 1, 2, 3, 4]


def test_a_batch_that_takes_longer_than_the_timeout_is_an_error_and_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = slow_reads(monkeypatch)
    (tmp_path / "class").mkdir()
    Image.new("RGB", (9, 9), tell(7)).save(tmp_path / "class" / "slow.png")
    with loader(tmp_path, timeout=0.05) as batches:
        iterator = iter(batches)
        with pytest.raises(fastio.LoaderTimeout):
            next(iterator)
        arrived.set()
        images = None
        while images is None:
            with contextlib.suppress(fastio.LoaderTimeout):
                images, _ = next(iterator)
    assert told(images) == [7]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is something to pin memory for")
def test_pin_memory_without_an_accelerator_warns_as_torch_does(folder: Path) -> None:
    with pytest.warns(UserWarning, match="no accelerator"):
        batches = loader(folder, pin_memory=True)
    assert rows_of(batches)[0] == [0, 1, 2, 3, 4]
    batches.close()


# Statistics


def test_stats_count_what_was_done(folder: Path) -> None:
    with loader(folder) as batches:
        list(batches)
        stats = batches.stats()
    assert (stats.path, stats.reason) == ("native", "")
    assert (stats.batches, stats.samples, stats.images_decoded) == (5, ROWS, ROWS)
    assert stats.bytes_read == sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    assert stats.decode_s > 0
    assert stats.wait_s > 0
    assert stats.samples_per_s > 0
