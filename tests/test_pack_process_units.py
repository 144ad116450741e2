"""Worker processes pack whole units of a Python dataset, and the result is that of one thread."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset as TorchDataset

import fastio
from fastio import Dataset, PackError, SampleError, WorkerDied, pack
from fastio.pack import objects, process_units, task_output
from fastio.packed import JOURNAL_NAME
from tests.pictures import jpeg
from tests.support import contents

ROWS = 100  # of 8 bytes in a unit
SHARD = 8 * ROWS


class Samples(TorchDataset[Any]):
    """What a function returns for a number, without any delay: too fast to be sent one by one."""

    def __init__(self, count: int, sample: Callable[[int], Any]) -> None:
        self.count, self.sample = count, sample

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


@pytest.fixture(autouse=True)
def never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine takes to read samples, they are not sent one by one."""
    monkeypatch.setattr(objects, "_MESSAGE_S", 60.0)


def process(index: int) -> int:
    return os.getpid()


def processes_of_units(out: Path) -> list[set[int]]:
    found = [int(value) for value in Dataset(out)]
    return [set(found[at : at + ROWS]) for at in range(0, len(found), ROWS)]


@pytest.mark.parametrize("units", [2, 3, 6, 7])
def test_each_process_packs_whole_units_and_the_rest_is_packed_here(
    tmp_path: Path, units: int
) -> None:
    pack(Samples(units * ROWS, process), tmp_path / "out", workers=2, shard_size=SHARD)
    found = processes_of_units(tmp_path / "out")
    assert len(found) == units
    whole = units // 2 * 2
    assert all(len(each) == 1 for each in found)
    assert os.getpid() not in set.union(*found[:whole])
    assert len(set.union(*found[:whole])) == 2
    assert found[whole:] == [{os.getpid()}] * (units - whole)


def test_fewer_units_than_processes_are_packed_by_this_process(tmp_path: Path) -> None:
    pack(Samples(2 * ROWS, process), tmp_path / "out", workers=3, shard_size=SHARD)
    assert processes_of_units(tmp_path / "out") == [{os.getpid()}] * 2


def test_processes_do_not_pack_units_if_memory_is_scarce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_units, "available_memory", lambda: 4 * SHARD)
    pack(Samples(4 * ROWS, process), tmp_path / "out", workers=2, shard_size=SHARD)
    assert processes_of_units(tmp_path / "out") == [{os.getpid()}] * 4


def mixed(index: int) -> dict[str, Any]:
    return {
        "image": jpeg(seed=index % 7),
        "array": np.full((40, 50), index, np.float32),
        "text": "x" * (index % 50),
        "number": index,
    }


@pytest.mark.parametrize("codec", ["blocks", "jpeg"])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_bytes_are_those_of_one_thread(tmp_path: Path, codec: Any, workers: int) -> None:
    for name, count in (("one", 1), ("many", workers)):
        pack(
            Samples(250, mixed),
            tmp_path / name,
            workers=count,
            shard_size="256KiB",
            codec=codec,
        )
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert Dataset(tmp_path / "one").manifest.shards > 4


def test_a_trained_codebook_is_the_same(tmp_path: Path) -> None:
    for name, count in (("one", 1), ("many", 2)):
        options: dict[str, Any] = {"workers": count, "shard_size": "64KiB", "codebook": "train"}
        pack(Samples(80, lambda index: jpeg(seed=index)), tmp_path / name, **options)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


class ShorterElsewhere(Samples):
    """Says another length in worker processes, as if files were deleted meanwhile."""

    def __init__(self, count: int, elsewhere: int, sample: Callable[[int], Any]) -> None:
        super().__init__(count, sample)
        self.elsewhere, self.process = elsewhere, os.getpid()

    def __len__(self) -> int:
        return self.count if os.getpid() == self.process else self.elsewhere


@pytest.mark.parametrize("elsewhere", [350, 399, 200, 1000])
def test_units_have_the_rows_of_the_length_in_this_process(tmp_path: Path, elsewhere: int) -> None:
    samples = ShorterElsewhere(4 * ROWS, elsewhere, lambda index: index)
    report = pack(samples, tmp_path / "out", workers=2, shard_size=SHARD)
    assert report.rows == 4 * ROWS
    assert [int(number) for number in Dataset(tmp_path / "out")] == list(range(4 * ROWS))


def bad_at_450(index: int) -> int:
    if index == 450:
        raise ValueError("it is damaged")
    return index


def test_the_first_error_in_order_ends_the_pack_and_the_units_before_it_are_kept(
    tmp_path: Path,
) -> None:
    with pytest.raises(SampleError, match=r"sample 450: .*it is damaged") as caught:
        pack(Samples(1000, bad_at_450), tmp_path / "out", workers=2, shard_size=SHARD)
    assert caught.value.row == 450
    assert "bad_at_450" in str(caught.value.__cause__.__cause__)  # type: ignore[union-attr]
    lines = (tmp_path / "out" / JOURNAL_NAME).read_text().splitlines()[2:]
    names = [entry["name"] for line in lines for entry in json.loads(line)["entries"]]
    assert names == [f"shard-{unit:06d}.arrow" for unit in range(4)]
    # Nothing is left of the units that other processes had written by then.
    assert sorted(os.listdir(tmp_path / "out")) == sorted([*names, JOURNAL_NAME])
    done = pack(
        Samples(1000, lambda index: index),
        tmp_path / "out",
        workers=2,
        shard_size=SHARD,
        resume=True,
    )
    assert done.rows == 1000
    assert [int(number) for number in Dataset(tmp_path / "out")] == list(range(1000))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dataset_that_has_become_shorter_is_noticed(tmp_path: Path, workers: int) -> None:
    options: dict[str, Any] = {"workers": workers, "shard_size": SHARD}
    with pytest.raises(SampleError):
        pack(Samples(1000, bad_at_450), tmp_path / "out", **options)
    with pytest.raises(PackError, match="has 250 samples, but 400"):
        pack(Samples(250, bad_at_450), tmp_path / "out", resume=True, **options)


def test_an_error_in_the_first_unit_leaves_nothing(tmp_path: Path) -> None:
    def bad(index: int) -> int:
        if index == 70:
            raise ValueError("it is damaged")
        return index

    with pytest.raises(SampleError):
        pack(Samples(1000, bad), tmp_path / "out", workers=2, shard_size=SHARD)
    assert os.listdir(tmp_path / "out") == []


def test_bad_samples_are_left_out(tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        options: dict[str, Any] = {"workers": workers, "shard_size": SHARD, "on_error": "skip"}
        report = pack(Samples(650, bad_at_450), tmp_path / name, **options)
        assert report.rows == 649
        assert [name for name, _ in report.skipped] == ["sample 450"]
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_a_worker_that_is_killed_is_named_and_the_pack_resumes(tmp_path: Path) -> None:
    def killed(index: int) -> int:
        if index == 750:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    options: dict[str, Any] = {"workers": 2, "shard_size": SHARD}
    with pytest.raises(WorkerDied, match="Samples ended"):
        pack(Samples(1000, killed), tmp_path / "out", **options)
    pack(Samples(1000, lambda index: index), tmp_path / "out", resume=True, **options)
    assert [int(number) for number in Dataset(tmp_path / "out")] == list(range(1000))
    left = [name for name in os.listdir(tmp_path / "out") if "written" in name]
    assert left == []


def test_a_pack_that_is_interrupted_does_not_wait_for_the_units_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unit would take minutes."""

    def slow(index: int) -> int:
        if index > 2 * ROWS:
            time.sleep(5)
        return index

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(task_output, "flush_folder", stop)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pack(Samples(1000, slow), tmp_path / "out", workers=2, shard_size=SHARD)
    assert time.monotonic() - begin < 200  # the third unit alone would take 500 s


def test_an_append_of_classes_has_the_bytes_of_one_thread(tmp_path: Path) -> None:
    class Named(Samples):
        def __init__(self, count: int, classes: list[str]) -> None:
            super().__init__(count, lambda index: (str(index), index % len(classes)))
            self.classes = classes

    for name, workers in (("one", 1), ("two", 2)):
        options: dict[str, Any] = {"workers": workers, "shard_size": 4096}
        pack(Named(600, ["cat", "dog"]), tmp_path / name, **options)
        pack(Named(1000, ["dog", "fox"]), tmp_path / name, append=True, **options)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    with fastio.open(tmp_path / "two") as found:
        assert found.classes == ("cat", "dog", "fox")
        assert [int(found[row][1]) for row in (600, 601)] == [1, 2]


def test_units_are_packed_in_processes_for_a_store(tmp_path: Path) -> None:
    pack(Samples(600, lambda index: index), tmp_path / "here", workers=1, shard_size=SHARD)
    pack(Samples(600, lambda index: index), "memory://units", workers=2, shard_size=SHARD)
    with fastio.open("memory://units") as found:
        assert [int(number) for number in found] == list(range(600))
        assert found.fingerprint == fastio.open(tmp_path / "here").fingerprint
