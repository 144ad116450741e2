"""What a Loader is beside its batches: a DataLoader, with the attributes that DataLoader has."""

from __future__ import annotations

import copy
import pickle
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
    random_split,
)

import fastio
from tests.support import import_torchvision, numbered_folder, open_loader
from tests.torch_support import OwnDataset

ROWS = 20


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("surface") / "packed"
    fastio.pack([{"x": np.int64(row)} for row in range(ROWS)], path)
    return path


class Numbers(Dataset[int]):
    def __getitem__(self, row: int) -> int:
        return row

    def __len__(self) -> int:
        return ROWS


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(ROWS))


@pytest.fixture(params=["native", "torch"])
def source(request: pytest.FixtureRequest, packed: Path) -> Any:
    return packed if request.param == "native" else OwnDataset(ROWS)


def rows(batches: Any) -> list[list[int]]:
    return [(b["x"] if isinstance(b, dict) else b[0]).tolist() for b in batches]


def test_a_loader_is_a_dataloader(source: Any) -> None:
    with fastio.Loader(source) as loader:
        assert isinstance(loader, DataLoader)
    assert fastio.Loader[int].__origin__ is fastio.Loader


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_samplers_give_the_next_epoch_and_leave_it_there(
    source: Any, shuffle: bool, drop_last: bool
) -> None:
    with fastio.Loader(source, 6, shuffle, drop_last=drop_last) as loader:
        kind = RandomSampler if shuffle else SequentialSampler
        assert isinstance(loader.sampler, kind)
        assert type(loader.batch_sampler) is BatchSampler
        assert loader.batch_sampler.sampler is loader.sampler
        assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (6, drop_last)
        assert len(loader.sampler) == ROWS
        assert len(loader.batch_sampler) == len(loader)
        for _ in range(2):
            before = torch.get_rng_state()
            told = [list(loader.batch_sampler) for _ in range(2)]
            assert torch.equal(torch.get_rng_state(), before)
            assert sorted(loader.sampler) == list(range(ROWS))
            assert told == [rows(loader)] * 2


def test_samplers_peek_at_a_generator(packed: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    with fastio.Loader(packed, 6, True, generator=generator) as loader:
        assert list(loader.batch_sampler) == rows(loader)
        assert list(loader.batch_sampler) == rows(loader)


def test_samplers_of_a_rank_give_its_rows(packed: Path) -> None:
    with fastio.Loader(packed, 3, True, seed=0, rank=1, world_size=2) as loader:
        assert list(loader.batch_sampler) == rows(loader)
        assert len(loader.sampler) == sum(map(len, rows(loader)))


def test_samplers_of_the_user_are_the_loader_s(source: Any) -> None:
    sampler = SubsetRandomSampler(range(7))
    with fastio.Loader(source, 3, sampler=sampler) as loader:
        assert loader.sampler is sampler
        assert loader.batch_sampler.sampler is sampler
    batches = BatchSampler(sampler, 2, False)
    with fastio.Loader(source, batch_sampler=batches) as loader:
        assert loader.batch_sampler is batches
        assert isinstance(loader.sampler, SequentialSampler)
        assert loader.batch_size is None
    with fastio.Loader(source, None) as loader:
        assert loader.batch_sampler is None


def test_a_dataset_that_iterates_has_an_endless_sampler() -> None:
    plain = DataLoader(Stream(), 4)
    with fastio.Loader(Stream(), 4) as loader:
        assert type(loader.sampler) is type(plain.sampler)
        assert loader.batch_sampler.batch_size == 4


def test_attributes_are_those_of_dataloader() -> None:
    def init(worker: int) -> None: ...

    generator = torch.Generator()
    options: dict[str, Any] = {
        "num_workers": 1,
        "timeout": 3,
        "worker_init_fn": init,
        "generator": generator,
        "persistent_workers": True,
        "multiprocessing_context": "spawn",
        "drop_last": True,
    }
    plain = DataLoader(Numbers(), 4, **options)
    with open_loader(Numbers(), 4, **options) as loader:
        names = [name for name in vars(plain) if not name.startswith("_")]
        assert {"pin_memory", "prefetch_factor", "collate_fn", "in_order"} < set(names)
        for name in names:
            if not name.endswith("sampler"):
                assert getattr(loader, name) is getattr(plain, name) or name == "dataset"
        assert loader.multiprocessing_context.get_start_method() == "spawn"


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "prefetch_factor": 3}]
)
def test_prefetch_factor_is_that_of_dataloader(source: Any, options: dict[str, Any]) -> None:
    """On each path: programs that make the loader again take it from there."""
    plain = DataLoader(Numbers(), 4, **options)
    with fastio.Loader(source, 4, **options) as loader:
        assert loader.prefetch_factor == plain.prefetch_factor


def test_protected_attributes_cannot_be_assigned_to(source: Any) -> None:
    protected = "batch_size", "batch_sampler", "sampler", "drop_last", "dataset"
    with fastio.Loader(source) as loader:
        for name in (*protected, "persistent_workers", "transforms", "seed", "device"):
            with pytest.raises(ValueError, match=f"{name} attribute should not be set after"):
                setattr(loader, name, None)
        loader.mine = 3


def test_attributes_that_may_be_assigned_to_are_followed(source: Any) -> None:
    with fastio.Loader(source, 10) as loader:
        list(loader)
        loader.collate_fn = len
        assert list(loader) == [10, 10]
        loader.collate_fn = default_collate
        assert rows(loader) == [list(range(10)), list(range(10, 20))]
        assert loader.stats().samples == 60


def test_an_iterator_goes_on_while_the_loader_changes(source: Any) -> None:
    with fastio.Loader(source, 10) as loader:
        first = iter(loader)
        next(first)
        loader.collate_fn = len
        assert list(loader) == [10, 10]
        assert rows(first) == [list(range(10, 20))]


def test_samplers_survive_pickling_and_hold_no_loader(packed: Path) -> None:
    loader = fastio.Loader(packed, 6, True)
    again = pickle.loads(pickle.dumps(loader))
    assert list(again.batch_sampler) == list(loader.batch_sampler) == rows(again)
    gone = weakref.ref(loader)
    sampler = loader.sampler
    del loader
    assert gone() is None
    assert len(list(sampler)) == ROWS
    again.close()


@pytest.mark.parametrize("shuffle", [False, True])
def test_random_split_of_an_opened_dataset_is_native(packed: Path, shuffle: bool) -> None:
    with fastio.open(packed) as dataset:
        halves = random_split(dataset, [0.75, 0.25], torch.Generator().manual_seed(1))
        found = []
        for half in halves:
            with fastio.Loader(half, 4, shuffle) as loader:
                assert loader.path == "native"
                assert loader.dataset is half
                assert (len(loader), len(loader.sampler)) == (-(-len(half) // 4), len(half))
                told = list(loader.sampler)
                given = [x for batch in rows(loader) for x in batch]
                assert given == [half.indices[place] for place in told]
                assert sorted(told) == list(range(len(half)))
                found += given
        assert sorted(found) == list(range(ROWS))


def test_subsets_of_subsets_samplers_and_places(packed: Path) -> None:
    with fastio.open(packed) as dataset:
        inner = Subset(dataset, [3, 9, -1, 9, 4])
        subset = Subset(inner, torch.tensor([4, 2, 0, 1]))
        with fastio.Loader(subset, 3) as loader:
            assert rows(loader) == [[4, 19, 3], [9]]
            assert loader.batch.rows is not None
            assert loader.batch.rows.tolist() == [3]
        with fastio.Loader(subset, 2, sampler=[1, 1, 0]) as loader:
            assert rows(loader) == [[19, 19], [4]]


@pytest.mark.parametrize("use", ["loader", "pack"])
@pytest.mark.parametrize("kind", ["packed", "files"])
def test_an_index_out_of_range_is_named_with_its_place(
    kind: str, use: str, packed: Path, tmp_path: Path
) -> None:
    folder = numbered_folder(tmp_path / "images", (3, 2))
    files = kind == "files"
    dataset: Any = (
        import_torchvision().datasets.ImageFolder(folder) if files else fastio.open(packed)
    )
    uses = {"loader": fastio.Loader, "pack": lambda data: fastio.pack(data, tmp_path / "out")}
    count = len(dataset)
    for indices, wrong in (([0, -1, count, count + 1], count), ([1, 0, -count - 1], -count - 1)):
        told = (
            f"the index {wrong} of a Subset, at position 2 of {len(indices)}, is out of range for "
            f"a dataset of {count} samples"
        )
        with pytest.raises(IndexError, match=told):
            uses[use](Subset(dataset, indices))


def test_a_subset_goes_on_where_its_state_says_and_is_no_other_subset(packed: Path) -> None:
    with fastio.open(packed) as dataset:
        first, second = Subset(dataset, range(9)), Subset(dataset, range(9, 18))
        with fastio.Loader(first, 2, True, seed=3) as loader:
            batches = iter(loader)
            next(batches)
            state, left = loader.state_dict(), rows(batches)
        with fastio.Loader(first, 2, True, seed=3) as loader:
            loader.load_state_dict(state)
            assert rows(loader) == left
        with fastio.Loader(second, 2, True) as loader, pytest.raises(fastio.StateMismatch):
            loader.load_state_dict(state)


def test_ranks_share_a_subset(packed: Path) -> None:
    with fastio.open(packed) as dataset:
        subset = Subset(dataset, range(0, ROWS, 2))
        found: list[int] = []
        for rank in range(2):
            with fastio.Loader(subset, 2, True, rank=rank, world_size=2, seed=1) as loader:
                found += [x for batch in rows(loader) for x in batch]
        assert set(found) == set(range(0, ROWS, 2))


def test_halves_of_a_folder_are_cropped_as_transforms_say(tmp_path: Path) -> None:
    numbered_folder(tmp_path)
    with fastio.open(tmp_path) as dataset:
        subset = Subset(dataset, [7, 2])
        with fastio.Loader(subset, 2, transforms=[fastio.CenterCrop(8)]) as loader:
            [(images, labels)] = loader
            assert images.shape == (2, 3, 8, 8)
            assert labels.tolist() == [dataset[7][1], dataset[2][1]]
            assert len(loader.augmentation([0, 1])) == 2


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    """A torchvision ImageFolder whose images come as crops of 8 pixels."""
    vision = import_torchvision()
    steps = [vision.transforms.CenterCrop(8), vision.transforms.ToTensor()]
    return vision.datasets.ImageFolder(
        numbered_folder(tmp_path / "images"), vision.transforms.Compose(steps)
    )


def shapes(batches: Any) -> set[tuple[int, ...]]:
    return {tuple(images.shape[1:]) for images, _ in batches}


@pytest.mark.parametrize("nested", [False, True])
def test_a_transform_that_is_changed_on_the_dataset_is_followed(folder: Any, nested: bool) -> None:
    vision = import_torchvision()
    dataset = Subset(folder, range(5)) if nested else folder
    with fastio.Loader(dataset, 4, num_workers=1) as loader:
        assert shapes(loader) == {(3, 8, 8)}
        folder.transform.transforms[0] = vision.transforms.CenterCrop(6)
        assert shapes(loader) == {(3, 6, 6)}
        folder.transform.transforms[0].size = (5, 4)
        assert shapes(loader) == {(3, 5, 4)}
        folder.transform = vision.transforms.Compose(
            [vision.transforms.Resize((7, 7)), vision.transforms.ToTensor()]
        )
        assert shapes(loader) == {(3, 7, 7)}
        assert loader.path == "native"
        assert loader.stats().samples == 4 * len(dataset)


def test_a_target_transform_that_is_set_later_is_followed(folder: Any) -> None:
    with fastio.Loader(folder, 4, num_workers=0) as loader:
        assert {int(y) for _, labels in loader for y in labels} == {0, 1, 2}
        folder.target_transform = lambda label: label + 10
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fastio.PerformanceWarning)
            assert {int(y) for _, labels in loader for y in labels} == {10, 11, 12}


def test_a_transform_that_is_set_where_none_was_is_followed(folder: Any) -> None:
    folder.transform = None
    with fastio.Loader(folder, 4, num_workers=0) as loader:
        assert loader.path == "native"
        list(loader)
        folder.transform = lambda image: torch.zeros(3, 2, 2)  # known to nobody
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fastio.PerformanceWarning)
            assert shapes(loader) == {(3, 2, 2)}


@pytest.mark.parametrize("copied", [False, True])
def test_samples_and_indices_that_are_changed_in_place_are_followed(
    folder: Any, copied: bool
) -> None:
    half = Subset(folder, [0, 1, 2])
    with fastio.Loader(folder, 4) as whole, fastio.Loader(half, 4) as part:
        if copied:
            whole, part = copy.deepcopy(whole), copy.deepcopy(part)
        for loader in (whole, part):
            list(loader)
        half, folder = part.dataset, whole.dataset
        half.indices.reverse()
        half.indices[0] = 10
        assert [int(y) for _, labels in part for y in labels] == [
            half.dataset.samples[i][1] for i in (10, 1, 0)
        ]
        del folder.samples[2:]
        assert [int(y) for _, labels in whole for y in labels] == [y for _, y in folder.samples]
        assert len(folder.samples) == 2


def test_image_folders_of_a_relative_and_an_absolute_root_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vision = import_torchvision()
    numbered_folder(tmp_path / "images", (2, 3))
    monkeypatch.chdir(tmp_path)
    steps = vision.transforms.ToTensor()
    roots = "images", str(tmp_path / "images")
    parts = [vision.datasets.ImageFolder(root, steps) for root in roots]
    with fastio.Loader(ConcatDataset(parts), 4) as loader:
        assert loader.path == "native"
        labels = [int(y) for _, batch in loader for y in batch]
    assert labels == parts[0].targets + parts[1].targets


def test_concatenated_image_folders_are_native(folder: Any, tmp_path: Path) -> None:
    vision = import_torchvision()
    other = vision.datasets.ImageFolder(
        numbered_folder(tmp_path / "others", (2, 3)), folder.transform
    )
    joined = ConcatDataset([folder, Subset(other, [4, 0])])
    plain = DataLoader(joined, 4)
    with fastio.Loader(joined, 4) as loader:
        assert loader.path == "native"
        found = [(images, labels.tolist()) for images, labels in loader]
    for (images, labels), (expected, their) in zip(found, plain, strict=True):
        assert labels == their.tolist()
        assert (images - expected).abs().max() <= 1 / 255 + 1e-6


def test_subsets_of_hugging_face_s_datasets_are_native() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"x": list(range(ROWS))})
    with fastio.Loader(Subset(dataset, [5, 3, 11]), 2) as loader:
        assert loader.path == "native"
        assert rows(loader) == [[5, 3], [11]]


def test_datasets_of_classes_have_what_an_image_folder_has(folder: Any, tmp_path: Path) -> None:
    names = "classes", "class_to_idx", "targets"
    with fastio.open(folder.root) as opened:
        assert opened.samples == folder.samples
        found = [getattr(opened, name) for name in names]
    fastio.pack(folder.root, tmp_path / "packed")
    with fastio.open(tmp_path / "packed") as packed_images:
        assert not hasattr(packed_images, "samples")
        assert [getattr(packed_images, name) for name in names] == found
    expected = [tuple(folder.classes), folder.class_to_idx, folder.targets]
    assert found == expected


def test_datasets_without_classes_have_no_targets(packed: Path) -> None:
    with fastio.open(packed) as dataset:
        assert dataset.classes is None
        assert not hasattr(dataset, "class_to_idx")
        assert not hasattr(dataset, "targets")


@pytest.mark.parametrize("shuffle", [False, True])
def test_data_pipes_are_told_whether_to_shuffle(shuffle: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates them
        from torch.utils.data.datapipes.iter import IterableWrapper

        found = []
        for kind in (DataLoader, fastio.Loader):
            torch.manual_seed(3)
            pipe = IterableWrapper(list(range(ROWS))).shuffle()
            found.append([x for batch in kind(pipe, 4, shuffle) for x in batch.tolist()])
    assert found[0] == found[1]
    assert (found[1] == list(range(ROWS))) != shuffle


@pytest.mark.parametrize("option", ["shuffle", "sampler", "batch_sampler"])
def test_what_a_dataset_that_iterates_has_no_use_for_is_refused_in_torch_s_words(
    option: str,
) -> None:
    words = f"DataLoader with IterableDataset: expected unspecified {option} option"
    for kind in (DataLoader, fastio.Loader):
        with pytest.raises(ValueError, match=words):
            kind(Stream(), **{option: 3})


def test_a_concat_dataset_of_others_says_why_it_is_slow(packed: Path) -> None:
    others: Any = OwnDataset(ROWS)
    with fastio.open(packed) as dataset, warnings.catch_warnings():
        warnings.simplefilter("ignore", fastio.PerformanceWarning)
        joined: Any = ConcatDataset([dataset, others])
        with fastio.Loader(joined, 1) as loader:
            assert [x for batch in rows(loader) for x in batch] == [*range(ROWS), *range(ROWS)]
            assert "the ConcatDataset has a OwnDataset" in loader.stats().reason


@pytest.mark.parametrize("shuffle", [False, True])
def test_places_of_a_subset_are_told_where_rows_repeat(packed: Path, shuffle: bool) -> None:
    picked = [3, 3, 5, 3, -1]
    with fastio.open(packed) as dataset, fastio.Loader(Subset(dataset, picked), 2, shuffle) as it:
        found = [(batch["x"].tolist(), it.batch.rows.tolist()) for batch in it]
    places = [place for _, rows in found for place in rows]
    assert sorted(places) == list(range(len(picked)))
    assert [x for xs, _ in found for x in xs] == [picked[place] % ROWS for place in places]


def test_indices_of_unequal_lengths_are_the_dataset_s_own_business() -> None:
    class Rows(Numbers):
        def __getitem__(self, row: Any) -> int:
            return sum(row)

    subset = Subset(Rows(), [[1], [2, 3]])  # type: ignore[list-item]
    with fastio.Loader(subset) as loader, torch.no_grad():
        assert [batch.tolist() for batch in loader] == [[1], [5]]


def test_the_length_follows_a_dataset_that_grew_at_once(folder: Any, packed: Path) -> None:
    with fastio.open(packed) as dataset:
        subset = Subset(dataset, [1, 2, 3])
        for source, grow in (
            (folder, lambda: folder.samples.extend(folder.samples)),
            (subset, lambda: subset.indices.extend([5, 4])),
        ):
            with fastio.Loader(source, 2) as loader:
                plain = DataLoader(source, 2)
                batches = iter(loader)
                next(batches)
                assert len(loader) == len(plain)
                grow()
                assert len(loader) == len(loader.batch_sampler) == len(plain)
                assert len(list(loader)) == len(plain)


def test_the_package_can_be_pickled_as_a_name() -> None:
    """As cloudpickle does with a function that refers to `fastio`."""
    assert pickle.loads(pickle.dumps(fastio)) is fastio
