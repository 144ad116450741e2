"""Rows that come several times in an epoch get draws of their own; a sampler's epoch is theirs."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import BatchSampler, DistributedSampler, WeightedRandomSampler

import fastio
from fastio import Loader, RandomCrop, RandomHorizontalFlip
from fastio.order.plan import Occurrences, draw_keys

ROWS = 6
STEPS = [RandomCrop(8), RandomHorizontalFlip()]
REPEATED = [3, 0, 3, 3, 5, -3, 0, 1, 3, 2, 2, 3, 4]  # -3 is row 3, too
OCCURRENCES = [0, 0, 1, 2, 0, 3, 1, 0, 4, 0, 1, 5, 0]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("occurrences") / "packed"
    noise = np.random.default_rng(0).integers(0, 256, (ROWS, 40, 50, 3), np.uint8)
    fastio.pack([{"image": image, "row": row} for row, image in enumerate(noise)], path)
    return path


def loader(path: Path, batch_size: int = 5, **options: Any) -> Loader:
    how = {"transforms": {"image": STEPS}, "num_workers": 1, "seed": 0, **options}
    return Loader(path, batch_size, **how)


def images_of(path: Path, batch_size: int = 5, **options: Any) -> torch.Tensor:
    with loader(path, batch_size, **options) as batches:
        return torch.cat([batch["image"] for batch in batches])


def crop(image: np.ndarray[Any, Any], drawn: fastio.transforms.Augmentation) -> torch.Tensor:
    """What an augmentation makes of an image, (3, 8, 8)."""
    y, x, height, width = drawn.window
    kept = image[y : y + height, x : x + width]
    return torch.from_numpy(kept[:, :: -1 if drawn.flip_horizontal else 1].copy()).permute(2, 0, 1)


# Counting


@given(st.lists(st.lists(st.integers(0, 5), max_size=9), max_size=9))
def test_rows_are_counted_in_the_order_in_which_they_come(batches: list[list[int]]) -> None:
    seen, before = Occurrences(6), Counter[int]()
    for batch in batches:
        wanted = []
        for row in batch:
            wanted.append(before[row])
            before[row] += 1
        assert seen.count(np.array(batch, np.int64)).tolist() == wanted


def test_no_two_occurrences_of_any_rows_share_a_key() -> None:
    rows, occurrences = np.divmod(np.arange(1 << 18, dtype=np.int64), 1 << 9)
    keys = draw_keys(rows * 0x7FFFFFFFFF, occurrences)
    assert len(np.unique(keys)) == len(keys)
    assert (keys[occurrences == 0] == rows[occurrences == 0] * 0x7FFFFFFFFF).all()


# Draws


@pytest.mark.parametrize("how", ["sampler", "batch_sampler"])
@pytest.mark.parametrize(("threads", "size"), [(1, 5), (3, 2), (2, 13)])
def test_a_row_that_comes_again_is_drawn_again(
    packed: Path, how: str, threads: int, size: int
) -> None:
    sampler: Any = REPEATED
    if how == "batch_sampler":
        sampler = [REPEATED[begin : begin + size] for begin in range(0, len(REPEATED), size)]
        size = 1
    found = images_of(packed, size, num_workers=threads, **{how: sampler})
    with fastio.open(packed) as dataset:
        stored = [dataset[row]["image"] for row in range(ROWS)]
    with loader(packed) as asked:
        rows = np.array(REPEATED) % ROWS
        drawn = asked.augmentation(rows, epoch=0, occurrence=OCCURRENCES)
    for image, row, what in zip(found, rows.tolist(), drawn, strict=True):
        assert torch.equal(image, crop(stored[row], what))
    assert len({(row, what) for row, what in zip(rows.tolist(), drawn, strict=True)}) == len(rows)


def test_batches_tell_the_occurrences(packed: Path) -> None:
    with loader(packed, sampler=REPEATED) as batches:
        told = []
        for _ in batches:
            assert batches.batch.occurrences is not None
            told += batches.batch.occurrences.tolist()
        assert told == OCCURRENCES
        list(batches)  # another epoch begins anew
        assert batches.batch.occurrences.tolist() == OCCURRENCES[-3:]


def test_rows_are_not_counted_where_it_does_not_matter(packed: Path) -> None:
    for options in ({"shuffle": True}, {"sampler": REPEATED, "transforms": None}):
        with loader(packed, 1, **options) as batches:
            next(iter(batches))
            assert batches.batch.occurrences is None


@pytest.mark.parametrize("done", range(4))
@pytest.mark.parametrize("size", [3, 4])
def test_a_resumed_epoch_counts_what_it_leaves_out(packed: Path, done: int, size: int) -> None:
    whole = images_of(packed, sampler=REPEATED)
    with loader(packed, 3, sampler=REPEATED) as batches:
        list(islice(batches, done))
        state = json.loads(json.dumps(batches.state_dict()))
    with loader(packed, size, sampler=REPEATED) as resumed:
        resumed.load_state_dict(state)
        rest = [batch["image"] for batch in resumed]
    assert torch.equal(torch.cat(rest), whole[3 * done :])
    batch_sampler = [REPEATED[:3], REPEATED[3:6], REPEATED[6:9], REPEATED[9:]]
    with loader(packed, 1, batch_sampler=batch_sampler) as resumed:
        resumed.load_state_dict(state)
        rest = [batch["image"] for batch in resumed]
    assert torch.equal(torch.cat(rest), whole[3 * done :])


def test_rows_that_a_subset_has_twice_are_drawn_twice(packed: Path) -> None:
    with fastio.open(packed) as dataset:
        subset = torch.utils.data.Subset(dataset, [4, 2, 4, 4])
        for options in ({}, {"shuffle": True}, {"sampler": [0, 1, 2, 3, 2]}):
            images = images_of(subset, **options)  # type: ignore[arg-type]
            assert len({image.numpy().tobytes() for image in images}) == len(images)


def test_images_of_rows_that_a_subset_has_twice_are_those_of_their_rows(packed: Path) -> None:
    picked = [4, 2, 4, 5, 1, 4, 0]
    with fastio.open(packed) as dataset:
        images = [torch.from_numpy(dataset[row]["image"]).permute(2, 0, 1) for row in range(ROWS)]
        subset = torch.utils.data.Subset(dataset, picked)
        for shuffle in (False, True):
            with Loader(subset, 2, shuffle=shuffle, seed=0, num_workers=1) as batches:
                for batch in batches:
                    for image, row in zip(batch["image"], batch["row"].tolist(), strict=True):
                        assert torch.equal(image, images[row])


def test_what_pillow_decodes_is_drawn_again_too(tmp_path: Path) -> None:
    (tmp_path / "images" / "class").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "images" / "class" / "0.png")
    with Loader(tmp_path / "images", 8, sampler=[0] * 8, transforms=STEPS, seed=0) as batches:
        ((images, _),) = batches
        drawn = batches.augmentation([0] * 8, occurrence=range(8))
    assert len(set(drawn)) == 8
    for image, what in zip(images, drawn, strict=True):
        assert torch.equal(image, crop(noise, what))


def test_rows_that_are_left_out_keep_the_others_occurrences(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "class"
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8)
    Image.fromarray(noise).save(folder / "0.png")
    (folder / "1.png").write_bytes(b"damaged")
    for on_error, wanted in (("skip", [0, 1, 2]), ("replace", [0, 1, 1, 2, 0])):
        options: dict[str, Any] = {"transforms": STEPS, "seed": 0, "on_error": on_error}
        with Loader(tmp_path / "images", 5, sampler=[0, 1, 0, 0, 1], **options) as batches:
            list(batches)
            occurrences = batches.batch.occurrences
        assert occurrences is not None
        assert occurrences.tolist() == wanted


def test_clips_are_drawn_again(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    (tmp_path / "sounds").mkdir()
    noise = np.random.default_rng(0).integers(-9000, 9000, 5000).astype(np.int16)
    soundfile.write(tmp_path / "sounds" / "0.wav", noise, 8000, subtype="PCM_16")
    clips = fastio.AudioDecode(length=30, dtype="int16")
    with Loader(tmp_path / "sounds", 9, sampler=[0] * 9, transforms=clips, seed=0) as batches:
        (batch,) = batches
    sound = batch[0] if isinstance(batch, (tuple, list)) else batch
    sound = sound["audio"] if isinstance(sound, dict) else sound
    assert len({tuple(clip.reshape(-1).tolist()) for clip in sound}) == 9


def test_each_rank_draws_its_own_for_a_row_that_several_get(packed: Path) -> None:
    alone = images_of(packed, sampler=range(ROWS))
    first, second = (
        images_of(packed, sampler=range(ROWS), rank=rank, world_size=2) for rank in range(2)
    )
    assert torch.equal(first, alone)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with loader(packed, ROWS, sampler=range(ROWS), rank=1, world_size=2) as batches:
        told = batches.augmentation(range(ROWS), epoch=0)
    with loader(packed) as other:
        assert told != other.augmentation(range(ROWS), epoch=0)


def test_draws_of_occurrences_are_even_and_independent(packed: Path) -> None:
    count = 20_000
    with loader(packed) as asked:
        drawn = asked.augmentation([2] * count, epoch=0, occurrence=range(count))
    places = np.array([(what.window[0], what.window[1], what.flip_horizontal) for what in drawn])
    for values, kinds in zip(places.T, (33, 43, 2), strict=True):  # 40 - 8 + 1 rows, 50 - 8 + 1
        observed = np.bincount(values, minlength=kinds)
        assert len(observed) == kinds
        chi_square = ((observed - count / kinds) ** 2 / (count / kinds)).sum()
        assert chi_square < kinds - 1 + 5 * np.sqrt(2 * (kinds - 1))
        centred = values - values.mean()
        following = (centred[1:] * centred[:-1]).mean() / centred.var()
        assert abs(following) < 5 / np.sqrt(count)


def test_oversampling_sees_other_crops(packed: Path) -> None:
    torch.manual_seed(0)
    sampler = WeightedRandomSampler([1, 0, 0, 0, 0, 9], 40)
    images = images_of(packed, 8, sampler=sampler)
    assert len({image.numpy().tobytes() for image in images}) == 40


# A sampler's epoch


def epoch_of(batches: Loader) -> int:
    list(batches)
    return batches.batch.epoch


@pytest.mark.parametrize("inside", [False, True])
def test_the_draws_epoch_follows_the_sampler_s(packed: Path, inside: bool) -> None:
    sampler = DistributedSampler(range(ROWS), 1, 0)
    how: dict[str, Any] = {"sampler": sampler}
    if inside:
        how = {"batch_size": 1, "batch_sampler": BatchSampler(sampler, 2, False)}
    with loader(packed, **how) as batches:
        found = []
        for epoch in (0, 1, 2, 7, 3):
            sampler.set_epoch(epoch)
            found.append(epoch_of(batches))
        assert found == [0, 1, 2, 7, 3]
        assert epoch_of(batches) == 4  # nobody moved it: no crop comes again


def test_a_sampler_that_was_moved_before_the_loader_was_made_counts(packed: Path) -> None:
    sampler = DistributedSampler(range(ROWS), 1, 0)
    sampler.set_epoch(5)
    with loader(packed, sampler=sampler) as batches:
        assert epoch_of(batches) == 5


def test_set_epoch_tells_the_sampler_and_the_later_call_decides(packed: Path) -> None:
    sampler = DistributedSampler(range(ROWS), 1, 0)
    with loader(packed, sampler=sampler) as batches:
        batches.set_epoch(4)
        assert sampler.epoch == 4
        assert epoch_of(batches) == 4
        sampler.set_epoch(2)
        batches.set_epoch(9)
        assert (sampler.epoch, epoch_of(batches)) == (9, 9)
        batches.set_epoch(3)
        sampler.set_epoch(6)
        assert epoch_of(batches) == 6


@pytest.mark.parametrize("told", [False, True])
def test_a_loaded_state_moves_the_sampler(packed: Path, told: bool) -> None:
    def make() -> tuple[Any, Loader]:
        sampler = DistributedSampler(range(ROWS), 1, 0)
        return sampler, loader(packed, 2, sampler=sampler)

    sampler, batches = make()
    with batches:
        sampler.set_epoch(3)
        whole = [batch["image"] for batch in batches]
        batches.set_epoch(3)
        next(iter(batches))
        state = batches.state_dict()
    sampler, resumed = make()
    with resumed:
        resumed.load_state_dict(state)
        if told:  # as a loop does that knows its epoch
            sampler.set_epoch(3)
        rest = [batch["image"] for batch in resumed]
    assert all(map(torch.equal, rest, whole[1:]))
    assert len(rest) == 2
