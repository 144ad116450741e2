"""The torch path: what DataLoader gives, and epochs, ranks, states and devices besides."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import re
import signal
import time
from collections import namedtuple
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import fastio
from fastio import Loader, OnBatch
from fastio.tensors.trees import map_leaves
from tests.children import LIMIT_S
from tests.support import flat

ROWS = 23
Sample = namedtuple("Sample", ["x", "y"])


class Squares(Dataset[Any]):
    """Row i is i and its square, in one of the structures that DataLoader knows."""

    def __init__(self, structure: str = "tuple") -> None:
        self.structure = structure

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        x, y = np.full(2, index, np.float32), index * index
        return {
            "tuple": (x, y),
            "dict": {"x": x, "y": y, "name": f"row {index}"},
            "named": Sample(x, y),
            "single": torch.tensor(index),
        }[self.structure]


class Numbers(IterableDataset[int]):
    """0 to 22, shared out among the workers."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, ROWS, step))


class Keyed(Dataset[str]):
    """Indexed by strings."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: str) -> str:
        return index.upper()


class TooLarge(Squares):
    """Rows that no shared memory has room for."""

    def __getitem__(self, index: int) -> Any:
        return torch.UntypedStorage._new_using_fd_cpu(1 << 44)


class Failing(Squares):
    def __getitem__(self, index: int) -> Any:
        if index == 6:
            raise OSError("row 6")
        return super().__getitem__(index)


class Located(Squares):
    """A worker's process id beside every row."""

    def __getitem__(self, index: int) -> Any:
        return index, os.getpid()


class Uneven(IterableDataset[int]):
    """One sample in the first worker, many in the others."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(1 if info is not None and not info.id else ROWS))


def plain(tree: Any) -> Any:
    """Tensors and arrays as lists, so that batches can be compared."""
    return map_leaves(lambda leaf: leaf.tolist() if hasattr(leaf, "tolist") else leaf, tree)


def assert_same_as_data_loader(dataset: Any, *arguments: Any, **options: Any) -> None:
    """Loader and DataLoader, made alike, give the same batches."""

    def generated() -> dict[str, Any]:
        if "generator" not in options:
            return options
        return {**options, "generator": torch.Generator().manual_seed(options["generator"])}

    torch.manual_seed(0)
    wanted = DataLoader(dataset, *arguments, **generated())
    batches = [list(wanted) for _ in range(2)]
    torch.manual_seed(0)
    with Loader(dataset, *arguments, **generated()) as mine:
        assert mine.path == "torch"
        for epoch in batches:
            found = list(mine)
            assert plain(found) == plain(epoch)
            assert [type(batch) for batch in found] == [type(batch) for batch in epoch]


# As DataLoader


@pytest.mark.parametrize("structure", ["tuple", "dict", "named", "single"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_data_loader(structure: str, workers: int) -> None:
    assert_same_as_data_loader(Squares(structure), 4, num_workers=workers)


@pytest.mark.parametrize(
    "options",
    [
        {"drop_last": True},
        {"sampler": [3, 1, 1, 7, -1]},
        {"sampler": range(0, ROWS, 2), "drop_last": True},
        {"batch_size": 1, "batch_sampler": [[1, 2], [5]]},
        {"batch_size": 1, "batch_sampler": BatchSampler(range(10), 3, False)},
        {"batch_size": None},
        {"batch_size": None, "sampler": [4, 2]},
        {"collate_fn": list},
        {"shuffle": True, "generator": 5},
        {"shuffle": True, "generator": 5, "num_workers": 2},
        {"sampler": WeightedRandomSampler([1.0] * ROWS, 9)},
        {"num_workers": 2, "prefetch_factor": 3},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "fork"},
        {"num_workers": 1, "timeout": 100},
    ],
    # Addresses are others in each process that collects the tests.
    ids=lambda options: re.sub(r" object at 0x[0-9a-f]+", "", str(options)),
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_arguments_mean_what_they_mean_to_data_loader(options: dict[str, Any]) -> None:
    assert_same_as_data_loader(Squares(), **{"batch_size": 4, **options})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, None])
def test_a_dataset_that_iterates_gives_what_it_gives_data_loader(
    workers: int, batch_size: int | None
) -> None:
    assert_same_as_data_loader(Numbers(), batch_size, num_workers=workers)


def test_a_list_is_a_dataset() -> None:
    assert_same_as_data_loader([torch.tensor(i) for i in range(5)], 2)


def test_keys_need_not_be_numbers() -> None:
    assert_same_as_data_loader(Keyed(), 2, sampler=["a", "b", "c"])
    with Loader(Keyed(), 2, sampler=["a", "b", "c"]) as batches:
        list(batches)
        assert (batches.batch.rows, batches.batch.valid) == (None, 1)


def test_a_sampler_of_lists_without_batching_gives_lists_as_keys() -> None:
    numbers = torch.arange(10) * 10
    assert_same_as_data_loader(numbers, None, sampler=[[1, 2], [3]])


def test_worker_init_fn_runs_in_every_worker() -> None:
    def fail(worker: int) -> None:
        raise ValueError(f"worker {worker} starts")

    with (
        Loader(Squares(), 4, num_workers=1, worker_init_fn=fail) as batches,
        pytest.raises(ValueError, match="worker 0 starts"),
    ):
        next(iter(batches))


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"multiprocessing_context": "spawn"},
        {"num_workers": 1, "multiprocessing_context": "no such"},
    ],
    ids=str,
)
def test_what_data_loader_refuses_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        DataLoader(Squares(), **options)
    with pytest.raises(ValueError, match=r"."):
        Loader(Squares(), **options)


@pytest.mark.parametrize(
    "options",
    [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}, {"order": "shuffle"}],
    ids=str,
)
def test_an_order_for_a_dataset_that_iterates_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="determines the order itself"):
        Loader(Numbers(), **options)


def test_len_of_a_dataset_that_iterates_is_its_own_business() -> None:
    with Loader(Numbers(), 4) as batches, pytest.raises(TypeError):
        len(batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_dataset_is_raised_and_the_next_batches_come(workers: int) -> None:
    with Loader(Failing(), 4, num_workers=workers) as batches:
        iterator = iter(batches)
        next(iterator)
        with pytest.raises(OSError, match="row 6"):
            next(iterator)
        assert next(iterator)[1].tolist() == [64, 81, 100, 121]
        assert batches.batch.rows is not None
        assert batches.batch.rows.tolist() == [8, 9, 10, 11]


def test_persistent_workers_stay_and_end_with_close() -> None:
    batches = Loader(Located(), 4, num_workers=1, persistent_workers=True)
    pids = {pid for _ in range(2) for _, pids in batches for pid in pids.tolist()}
    assert len(pids) == 1
    batches.close()
    assert not os.path.exists(f"/proc/{pids.pop()}")


@pytest.mark.parametrize("ended", [1, 2])
def test_persistent_workers_that_ended_are_replaced_in_the_next_epoch(ended: int) -> None:
    with Loader(Located(), 4, num_workers=2, persistent_workers=True) as batches:
        pids = {pid for _, pids in batches for pid in pids.tolist()}
        iterator = iter(batches)  # kept, as by the traceback of a KeyboardInterrupt
        next(iterator)
        workers = [w for w in multiprocessing.active_children() if w.pid in pids][:ended]
        for worker in workers:
            os.kill(worker.pid or 0, signal.SIGINT)  # Ctrl-C is sent to all processes of a group
            worker.join()  # its sentinel is ready a moment before its exit code
        found = list(batches)
        assert [n for numbers, _ in found for n in numbers.tolist()] == [*range(ROWS)]
        assert not pids & {pid for _, pids in found for pid in pids.tolist()}


def test_an_iterator_goes_on_beside_another_after_one_of_its_workers_has_ended() -> None:
    others = set(multiprocessing.active_children())
    with Loader(Uneven(), 1, num_workers=2) as batches:
        first = iter(batches)
        before = [next(first) for _ in range(6)]
        # The worker that has no more samples ends.
        while len(set(multiprocessing.active_children()) - others) > 1:
            time.sleep(0.01)
        second = iter(batches)
        assert len(before + list(first)) == len(list(second)) == 1 + ROWS


def test_workers_end_with_their_iterator() -> None:
    with Loader(Located(), 4, num_workers=1) as batches:
        for _, pids in batches:
            pid = pids[0].item()
            break
        assert not os.path.exists(f"/proc/{pid}")


# Order, epochs, ranks


def rows_of(batches: Any) -> list[list[int]]:
    return [x[:, 0].int().tolist() for x, _ in batches]


def test_shuffle_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, workers: int) -> list[list[list[int]]]:
        with Loader(Squares(), 4, shuffle=True, seed=seed, num_workers=workers) as batches:
            return [rows_of(batches), rows_of(batches)]

    first, second = order(1, 0)
    assert [first, second] == order(1, 2)
    assert first != second
    assert order(2, 0)[0] != first
    assert sorted(flat(first)) == list(range(ROWS))


def test_both_paths_draw_the_same_order(tmp_path: Any) -> None:
    fastio.pack([(np.full(2, i, np.float32), i) for i in range(ROWS)], tmp_path / "packed")
    with (
        Loader(Squares(), 4, shuffle=True, seed=3) as torch_path,
        Loader(tmp_path / "packed", 4, shuffle=True, seed=3) as native,
    ):
        assert native.path == "native"
        assert rows_of(torch_path) == rows_of(native)


@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_every_global_batch_and_make_the_same_steps(shuffle: bool) -> None:
    parts = []
    for rank in range(3):
        with Loader(Squares(), 2, shuffle=shuffle, seed=0, rank=rank, world_size=3) as batches:
            rows = [x[: batches.batch.valid, 0].int().tolist() for x, _ in batches]
            assert len(rows) == len(batches)
            parts.append(rows)
    with Loader(Squares(), 6, shuffle=shuffle, seed=0) as batches:
        assert [flat(step) for step in zip(*parts, strict=True)] == rows_of(batches)


def test_a_distributed_sampler_does_its_own_sharding() -> None:
    parts = []
    for rank in range(2):
        sampler = DistributedSampler(range(ROWS), 2, rank, shuffle=False)
        with Loader(Squares(), 4, sampler=sampler, rank=rank, world_size=2) as batches:
            parts.append(flat(rows_of(batches)))
    assert parts[0] == list(range(0, ROWS, 2))
    assert parts[1][:11] == list(range(1, ROWS, 2))


def test_ranks_with_a_generator_share_the_order_that_it_draws() -> None:
    parts = []
    for rank in range(2):
        generator = torch.Generator().manual_seed(7)
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "generator": generator}
        with Loader(Squares(), 3, shuffle=True, **options) as batches:
            parts.append([x[: batches.batch.valid, 0].int().tolist() for x, _ in batches])
    assert sorted(flat(flat(zip(*parts, strict=True)))) == list(range(ROWS))


def test_batch_tells_rows_and_steps() -> None:
    with Loader(Squares(), 4, shuffle=True) as batches:
        for step, (x, _) in enumerate(batches):
            assert batches.batch.rows is not None
            assert batches.batch.rows.tolist() == x[:, 0].tolist()
            assert (batches.batch.step, batches.batch.epoch) == (step, 0)


class Waiting(Dataset[int]):
    """Row 8 comes after row 12, if another process reads that one."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __len__(self) -> int:
        return 13

    def __getitem__(self, row: int) -> int:
        if row == 12:
            self.mark.touch()
        until_s = time.monotonic() + 20
        while row == 8 and not self.mark.exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        return row


def test_batches_out_of_order_have_the_rows_and_the_valid_samples_of_their_own(
    tmp_path: Path,
) -> None:
    counted, positions = [], []
    for rank in range(2):
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "prefetch_factor": 2}
        dataset = Waiting(tmp_path / f"mark{rank}")
        with Loader(dataset, 2, num_workers=2, in_order=False, **options) as batches:
            for x in batches:
                assert batches.batch.rows is not None
                assert batches.batch.rows.tolist() == x.tolist()
                counted += x[: batches.batch.valid].tolist()
                positions.append(batches.batch.next_position)
    assert sorted(counted) == list(range(13))  # the last batch of rank 1 is padded
    assert positions == [4, 8, 12, 13] * 2


# State


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_resumes_exactly(workers: int) -> None:
    def make() -> Loader:
        return Loader(Squares(), 4, shuffle=True, seed=4, num_workers=workers)

    with make() as batches:
        batches.set_epoch(1)
        rows, states = [], [batches.state_dict()]
        for x, _ in batches:
            rows.append(x[:, 0].int().tolist())
            states.append(batches.state_dict())
        states.append(batches.state_dict())
    for done, state in enumerate(states[:-1]):
        with make() as resumed:
            resumed.load_state_dict(state)
            assert rows_of(resumed) == rows[done:]
    assert (states[-1]["epoch"], states[-1]["position"]) == (2, 0)


def test_a_resumed_map_style_dataset_is_not_read_before_its_position() -> None:
    read: list[int] = []

    class Reading(Squares):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return super().__getitem__(index)

    with Loader(Reading(), 4) as batches:
        list(islice(batches, 3))
        state = batches.state_dict()
        read.clear()
        batches.load_state_dict(state)
        next(iter(batches))
    assert read == [12, 13, 14, 15]


def test_a_state_resumes_within_a_sampler() -> None:
    with Loader(Squares(), 2, sampler=[9, 8, 7, 6, 5]) as batches:
        next(iter(batches))
        batches.load_state_dict(batches.state_dict())
        assert rows_of(batches) == [[7, 6], [5]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_resumes_within_a_dataset_that_iterates(workers: int) -> None:
    with Loader(Numbers(), 4, num_workers=workers) as batches:
        whole = plain(list(batches))
        list(islice(batches, 2))
        batches.load_state_dict(batches.state_dict())
        assert plain(list(batches)) == whole[2:]


def test_a_state_of_another_dataset_is_refused() -> None:
    with (
        Loader(Squares()) as batches,
        Loader([1, 2]) as other,
        pytest.raises(fastio.StateMismatch, match="Squares"),
    ):
        other.load_state_dict(batches.state_dict())


# Transforms and the rest


def test_transforms_apply_to_the_first_part_or_to_the_named_ones() -> None:
    steps = [fastio.ToDtype("float16"), OnBatch(lambda x: x + 1)]
    with Loader(Squares(), 4, transforms=steps) as batches:
        x, y = next(iter(batches))
    assert (x.dtype, x[:, 0].tolist(), y.tolist()) == (torch.float16, [1, 2, 3, 4], [0, 1, 4, 9])
    transforms = {"y": OnBatch(lambda y: -y), None: lambda batch: (batch["x"], batch["y"])}
    with Loader(Squares("dict"), 4, transforms=transforms) as batches:
        x, y = next(iter(batches))
    assert y.tolist() == [0, -1, -4, -9]
    with Loader(Squares("single"), 4, transforms=OnBatch(lambda x: x * 2)) as batches:
        assert next(iter(batches)).tolist() == [0, 2, 4, 6]


def test_a_list_of_transforms_for_mappings_is_refused_naming_the_keys() -> None:
    with (
        Loader(Squares("dict"), 4, transforms=[OnBatch(lambda x: x)]) as batches,
        pytest.raises(fastio.TransformError, match="'x', 'y', 'name'"),
    ):
        next(iter(batches))


def test_augmentation_is_not_known_here() -> None:
    with Loader(Squares()) as batches, pytest.raises(fastio.TransformError, match="Squares"):
        batches.augmentation([0])


def test_stats_count_batches_and_samples_and_say_why_torch() -> None:
    with Loader(Squares(), 4) as batches:
        list(batches)
        stats = batches.stats()
    assert (stats.batches, stats.samples, stats.path) == (6, ROWS, "torch")
    assert "Squares" in stats.reason
    with Loader(Numbers(), 4) as batches:
        list(batches)
        assert batches.stats().samples == ROWS


@pytest.mark.parametrize("persistent", [True, False])
def test_a_pickled_loader_goes_on_where_it_stood(persistent: bool) -> None:
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": persistent}
    with Loader(Squares(), 4, shuffle=True, seed=0, **options) as batches:
        list(batches)
        with pickle.loads(pickle.dumps(batches)) as copy:
            assert rows_of(copy) == rows_of(batches)


def test_a_random_sampler_over_the_dataset_is_asked_again_every_epoch() -> None:
    dataset = Squares()
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(1))
    with Loader(dataset, 4, sampler=sampler) as batches:
        first, second = rows_of(batches), rows_of(batches)
    assert first != second
    assert sorted(flat(first)) == sorted(flat(second))


class HeldBack:
    """Its first sample comes when a file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 6

    def __getitem__(self, row: int) -> int:
        while row == 0 and not self.path.exists():
            time.sleep(0.01)
        return row


def test_after_a_timeout_the_same_batch_comes_with_its_rows(tmp_path: Path) -> None:
    free = tmp_path / "free"
    with Loader(HeldBack(free), 2, num_workers=1, timeout=0.2) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="timed out"):
                next(batches)
        free.touch()
        read: list[list[int]] = []
        while len(read) < 3:
            try:
                read.append(next(batches).tolist())
            except RuntimeError:
                continue
            assert loader.batch.rows is not None
            assert loader.batch.rows.tolist() == read[-1]
        assert read == [[0, 1], [2, 3], [4, 5]]
        assert loader.state_dict()["position"] == 6


def test_full_shared_memory_is_named_with_what_to_do() -> None:
    with (
        Loader(TooLarge(), 4, num_workers=1) as loader,
        pytest.raises(RuntimeError, match=r"^/dev/shm is full.* --shm-size 8g .*num_workers"),
    ):
        next(iter(loader))


def test_an_error_of_a_worker_does_not_keep_the_workers_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        loader = Loader(Failing(), 4, num_workers=1, persistent_workers=True)
        batches = iter(loader)
        with pytest.raises(OSError, match="row 6"):
            list(batches)
        workers = multiprocessing.active_children()
        assert workers
        del batches, loader
        for worker in workers:
            worker.join(LIMIT_S)
            assert worker.exitcode is not None
    finally:
        gc.enable()
