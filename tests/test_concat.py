"""Datasets that torch's ConcatDataset and Subset join: as DataLoader has them, the native way."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import fastio
from fastio.feed.native import NativeFeed
from fastio.tensors.trees import merged
from tests.support import import_torchvision, numbered_folder

COUNTS = (20, 7, 31)


def samples(first: int, count: int) -> Iterator[dict[str, Any]]:
    for x in range(first, first + count):
        yield {"x": x, "text": f"row {x}", "v": np.full(3, x, np.float32)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("concat")
    for number, count in enumerate(COUNTS):
        fastio.pack(samples(100 * number, count), folder / str(number), shard_size=1 << 10)
    return folder


@pytest.fixture
def parts(root: Path) -> Iterator[list[Any]]:
    opened = [fastio.open(root / str(number)) for number in range(len(COUNTS))]
    yield opened
    for dataset in opened:
        dataset.close()


def plain(batches: Any) -> list[Any]:
    """What batches have, to be compared."""
    if isinstance(batches, torch.Tensor) and not batches.ndim:  # of a single sample
        return [batches.item()]
    if isinstance(batches, torch.Tensor):
        return [str(batches.dtype), batches.tolist()]
    if isinstance(batches, dict):
        return [(name, plain(value)) for name, value in batches.items()]
    if isinstance(batches, (tuple, list)):
        return [plain(value) for value in batches]
    return [batches]


def xs(batches: Any) -> list[int]:
    return [x for batch in batches for x in batch["x"].tolist()]


SHAPES: dict[str, Callable[[list[Any]], Any]] = {
    "parts": lambda p: ConcatDataset(p),
    "nested": lambda p: ConcatDataset([ConcatDataset(p[:2]), p[2]]),
    "subset of concat": lambda p: Subset(ConcatDataset(p), [57, 3, 20, -1, 26, 27, 3]),
    "concat of subsets": lambda p: ConcatDataset([Subset(p[0], [5, 1]), p[1], Subset(p[2], [-1])]),
    "folds of one": lambda p: ConcatDataset([Subset(p[2], range(9)), Subset(p[2], [30, 4])]),
    "twice": lambda p: ConcatDataset([p[1], p[0], p[1]]),
    "deep": lambda p: Subset(
        ConcatDataset([Subset(ConcatDataset(p), range(40, 9, -3)), p[1]]), [17, 0]
    ),
}
OPTIONS: dict[str, Any] = {
    "in order": {},
    "drop_last": {"drop_last": True},
    "singles": {"batch_size": None},
    "sampler": {"sampler": [1, 0, 1, -1]},
    "batch_sampler": {"batch_sampler": [[1, 0], [1]], "batch_size": 1},
    "collate": {"collate_fn": lambda found: [(s["x"], s["text"], s["v"].tolist()) for s in found]},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_batches_are_dataloader_s(
    shape: Callable[[list[Any]], Any], options: dict[str, Any], parts: list[Any]
) -> None:
    joined, how = shape(parts), {"batch_size": 4, **options}
    expected = plain(list(DataLoader(joined, **how)))
    with fastio.Loader(joined, **how) as loader:
        assert loader.path == "native"
        assert len(loader) == len(expected)
        assert [plain(list(loader)) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_generator_draws_dataloader_s_order(
    shape: Callable[[list[Any]], Any], parts: list[Any]
) -> None:
    joined = shape(parts)
    theirs = DataLoader(joined, 4, True, generator=torch.Generator().manual_seed(3))
    with fastio.Loader(joined, 4, True, generator=torch.Generator().manual_seed(3)) as loader:
        assert [plain(list(loader)) for _ in range(2)] == [plain(list(theirs)) for _ in range(2)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_are_numbers_of_the_whole(shape: Callable[[list[Any]], Any], parts: list[Any]) -> None:
    joined = shape(parts)
    with fastio.Loader(joined, 4, True, seed=5) as loader:
        told = list(loader.sampler)
        found, rows = [], []
        for batch in loader:
            found += batch["x"].tolist()
            assert loader.batch.rows is not None
            rows += loader.batch.rows.tolist()
    assert rows == told
    assert sorted(rows) == list(range(len(joined)))
    assert found == [joined[row]["x"] for row in rows]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("done", [0, 1, 6])
def test_an_epoch_goes_on_where_its_state_says(done: int, shuffle: bool, parts: list[Any]) -> None:
    joined = ConcatDataset(parts)
    with fastio.Loader(joined, 5, shuffle, seed=3) as loader:
        batches = iter(loader)
        for _ in range(done):
            next(batches)
        state, rest = loader.state_dict(), [xs(batches), xs(loader)]
    with fastio.Loader(joined, 5, shuffle, seed=4) as loader:
        loader.load_state_dict(state)
        assert [xs(loader), xs(loader)] == rest
    others = ConcatDataset(parts[1:])
    with fastio.Loader(others, 5, shuffle) as loader, pytest.raises(fastio.StateMismatch):
        loader.load_state_dict(state)


def test_ranks_share_the_rows(parts: list[Any]) -> None:
    found: list[int] = []
    for rank in range(2):
        joined = ConcatDataset(parts)
        with fastio.Loader(joined, 3, True, rank=rank, world_size=2, seed=1) as loader:
            found += xs(loader)
    assert sorted(found) == xs([{"x": torch.tensor([s["x"] for s in ConcatDataset(parts)])}])


def test_one_part_after_the_other_is_read_to_its_end(tmp_path: Path) -> None:
    counts = 700, 500, 600  # more batches than are planned ahead
    for number, count in enumerate(counts):
        fastio.pack(samples(1000 * number, count), tmp_path / str(number))
    opened = [fastio.open(tmp_path / str(number)) for number in range(3)]
    with fastio.Loader(ConcatDataset(opened), 3) as loader:
        expected = [1000 * number + x for number, count in enumerate(counts) for x in range(count)]
        assert xs(loader) == expected
    for dataset in opened:
        dataset.close()


def test_a_loader_of_several_can_be_pickled(parts: list[Any]) -> None:
    loader = fastio.Loader(ConcatDataset(parts), 4, True, seed=1)
    with loader, pickle.loads(pickle.dumps(loader)) as again:
        assert xs(again) == xs(loader)


@pytest.mark.parametrize("nested", [False, True])
def test_a_concat_dataset_of_one_dataset_is_read_natively(nested: bool, parts: list[Any]) -> None:
    """Or images of packed data would be delivered as (H, W, C), and `fields` would be refused."""
    alone: Any = ConcatDataset([parts[0]])
    given: Any = ConcatDataset([alone]) if nested else alone
    with (
        fastio.Loader(given, 7, shuffle=True, seed=1, fields=["v", "x"]) as joined,
        fastio.Loader(parts[0], 7, shuffle=True, seed=1, fields=["v", "x"]) as plainly,
    ):
        assert joined.path == "native"
        assert plain(list(joined)) == plain(list(plainly))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_numbers_of_two_parts_meet_in_a_batch(dtype: str) -> None:
    """torch assigns to picked rows of tensors of most types, but not of these."""
    most = np.iinfo(dtype).max
    arrays = [np.full((4, 2), most - part, dtype) for part in range(2)]
    both: Any = ConcatDataset([fastio.open({"x": array}) for array in arrays])
    with fastio.Loader(both, batch_size=8) as loader:
        (batch,) = loader
    assert batch["x"].numpy().tolist() == np.concatenate(arrays).tolist()
    assert batch["x"].dtype == getattr(torch, dtype)


def test_numbers_of_two_types_are_never_joined_bit_by_bit() -> None:
    places = [np.array([0]), np.array([1])]
    for first, second in [("float32", "int32"), ("uint16", "int16"), ("int16", "uint16")]:
        parts = [torch.ones(1, dtype=getattr(torch, name)) for name in (first, second)]
        with pytest.raises(RuntimeError, match=r"dtype|not implemented"):
            merged(list(zip(parts, places, strict=True)), 2, False)


@pytest.mark.parametrize("second", ["tensors", "other fields"])
def test_what_is_not_alike_comes_as_from_dataloader(
    second: str, parts: list[Any], tmp_path: Path
) -> None:
    other: Any = TensorDataset(torch.arange(3))
    if second == "other fields":
        fastio.pack(({"x": x, "other": "row"} for x in range(4)), tmp_path)
        other = fastio.open(tmp_path)
    joined: Any = ConcatDataset([parts[1], other])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fastio.PerformanceWarning)  # once a process and reason
        with fastio.Loader(joined, 1) as loader:
            assert loader.path == "torch"
            assert "ConcatDataset" in str(loader.stats().reason)
            assert plain(list(loader)) == plain(list(DataLoader(joined, 1)))


def test_torch_s_seed_gives_dataloader_s_order(parts: list[Any]) -> None:
    joined = ConcatDataset([parts[0], Subset(parts[2], [5, 3, 9])])
    torch.manual_seed(4)
    expected = [plain(list(batches)) for batches in [DataLoader(joined, 4, True)] * 2]
    torch.manual_seed(4)
    with fastio.Loader(joined, 4, True) as loader:
        assert [plain(list(loader)) for _ in range(2)] == expected


@pytest.mark.parametrize("kind", ["concatenated", "interleaved", "joined", "with packed rows"])
@pytest.mark.parametrize("options", [{}, {"sampler": [5, 0, 6]}], ids=["in order", "sampler"])
def test_hugging_face_s_datasets_come_the_native_way(
    kind: str, options: dict[str, Any], parts: list[Any]
) -> None:
    datasets = pytest.importorskip("datasets")
    halves = [
        datasets.Dataset.from_dict({"x": range(at, at + 9), "text": [str(at)] * 9})
        for at in (0, 50)
    ]
    packed = Subset(parts[0], [4, 2])
    joined: Any = {
        "concatenated": lambda: datasets.concatenate_datasets(halves),
        "interleaved": lambda: datasets.interleave_datasets(halves),
        "joined": lambda: ConcatDataset([halves[0], Subset(halves[1], [8, 1])]),
        "with packed rows": lambda: ConcatDataset([halves[1].select(range(5)), packed]),
    }[kind]()
    with fastio.Loader(joined, 4, fields=["x", "text"], **options) as loader:
        assert loader.path == "native"
        found = [(batch["x"].tolist(), batch["text"]) for batch in loader]
    rows = options.get("sampler", range(len(joined)))
    samples = [joined[row] for row in rows]
    expected = [
        [(s["x"], s["text"]) for s in samples[at : at + 4]] for at in range(0, len(rows), 4)
    ]
    assert [list(zip(*batch, strict=True)) for batch in found] == expected


# Images


@pytest.fixture
def images(tmp_path: Path) -> list[Any]:
    """A torchvision ImageFolder, a folder that fastio opened, and the same packed."""
    vision = import_torchvision()
    folder = numbered_folder(tmp_path / "images")
    fastio.pack(folder, tmp_path / "packed")
    steps = vision.transforms.Compose([vision.transforms.ToTensor()])
    own = vision.datasets.ImageFolder(folder, steps)
    return [own, fastio.open(folder), fastio.open(tmp_path / "packed")]


def test_folders_and_packed_images_are_one(images: list[Any]) -> None:
    _, folder, packed = images
    joined: Any = ConcatDataset([packed, Subset(folder, [3, 0])])
    with fastio.Loader(joined, 4) as loader:
        assert loader.path == "native"
        found = [(image, label) for batch in loader for image, label in zip(*batch, strict=True)]
    for (image, label), (pixels, expected) in zip(found, joined, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels)
        assert int(label) == expected
    folder.close()
    packed.close()


def test_crops_are_told_and_of_every_row_its_own(images: list[Any]) -> None:
    _, folder, packed = images
    joined: Any = ConcatDataset([packed, folder])
    crop = [fastio.RandomResizedCrop(8)]
    with fastio.Loader(joined, 4, True, transforms=crop, seed=2) as loader:
        for _ in loader:
            assert loader.batch.rows is not None
            told = loader.augmentation(loader.batch.rows)
            assert len(told) == len(loader.batch.rows)
        rows = len(packed)
        first, second = (loader.augmentation(np.arange(rows) + at) for at in (0, rows))
        assert first != second
    with fastio.Loader(packed, 4, transforms=crop, seed=2) as alone:
        next(iter(alone))
        assert alone.augmentation(np.arange(rows), epoch=0) == first
    folder.close()
    packed.close()


def test_behind_a_bad_sample_batches_are_whole(tmp_path: Path) -> None:
    folders = [fastio.open(numbered_folder(tmp_path / name, (5, 5))) for name in "ab"]
    bad, _ = folders[1].samples[0]
    Path(bad).write_bytes(b"no image")
    found: list[Any] = []
    with fastio.Loader(ConcatDataset(folders), 3, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(7):
            try:
                next(batches)
                assert loader.batch.rows is not None
                found.append(loader.batch.rows.tolist())
            except fastio.SampleError:
                found.append("bad")
        assert next(batches, None) is None
    expected: list[Any] = [list(range(at, min(at + 3, 20))) for at in range(0, 20, 3)]
    assert found == [*expected[:3], "bad", *expected[4:]]


def test_feeds_of_parts_are_closed_where_a_later_part_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []
    close = NativeFeed.close

    def noted(feed: NativeFeed) -> None:
        closed.append(feed.dataset)
        close(feed)

    monkeypatch.setattr(NativeFeed, "close", noted)
    fastio.pack([{"y": 1}, {"y": 2}], tmp_path / "other")
    with fastio.open(root / "0") as first, fastio.open(tmp_path / "other") as other:
        with pytest.raises(fastio.FastioError, match="'x'"):
            fastio.Loader(ConcatDataset([first, other]), 2, fields=["x"])
        assert closed == [first]
