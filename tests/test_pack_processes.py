"""Worker processes read the samples of a Python dataset for a pack, in order."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import queue
import re
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

import fastio
from fastio import (
    Dataset,
    PackError,
    PerformanceWarning,
    SampleError,
    SchemaError,
    pack,
)
from fastio.pack import objects
from fastio.packed import JOURNAL_NAME
from fastio.sources.torch_calls import DatasetCalls
from tests.children import run_code
from tests.pictures import decoded, jpeg
from tests.support import contents


class Samples(TorchDataset[Any]):
    """A map-style dataset of what a function returns for a number, after some time."""

    def __init__(self, count: int, sample: Callable[[int], Any], takes_s: float = 0.002) -> None:
        self.count, self.sample, self.takes_s = count, sample, takes_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.takes_s)  # longer than it takes to send the sample from a process
        return self.sample(index)


def process(index: int) -> dict[str, int]:
    return {"index": index, "process": os.getpid()}


def test_processes_read_the_samples_and_keep_their_order(tmp_path: Path) -> None:
    pack(Samples(200, process), tmp_path / "out", workers=3)
    found = list(Dataset(tmp_path / "out"))
    assert [sample["index"] for sample in found] == list(range(200))
    assert len({sample["process"] for sample in found} - {os.getpid()}) == 3


@pytest.mark.parametrize(("count", "workers"), [(200, 1), (31, 4)])
def test_one_worker_or_few_samples_are_read_in_this_process(
    tmp_path: Path, count: int, workers: int
) -> None:
    pack(Samples(count, process), tmp_path / "out", workers=workers)
    assert {sample["process"] for sample in Dataset(tmp_path / "out")} == {os.getpid()}


def test_samples_that_are_read_faster_than_they_are_sent_are_read_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than a busy machine interrupts the reads for, each of which takes microseconds.
    monkeypatch.setattr(objects, "_MESSAGE_S", 60.0)
    data = bytes(1 << 20)
    source = Samples(64, lambda index: {"process": os.getpid(), "data": data}, takes_s=0)
    pack(source, tmp_path / "out", workers=2)
    assert {sample["process"] for sample in Dataset(tmp_path / "out")} == {os.getpid()}


def test_lists_are_read_in_this_process(tmp_path: Path) -> None:
    class Sample(dict[str, Any]):
        def __reduce__(self) -> Any:
            raise AssertionError("sent to another process")

    pack([Sample(x=number) for number in range(100)], tmp_path / "out", workers=2)
    assert len(Dataset(tmp_path / "out")) == 100


class OpensOnce:
    """Opens its file when the first sample is read, as datasets of HDF5 files and LMDB do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: io.BufferedReader | None = None
        self.opened_by = 0

    def __len__(self) -> int:
        return self.path.stat().st_size // 8

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)  # as above
        if self.file is None:
            self.file, self.opened_by = self.path.open("rb", buffering=8), os.getpid()
        assert self.opened_by == os.getpid(), "opened by another process"
        self.file.seek(8 * index)
        return int.from_bytes(self.file.read(8), "little")


def test_a_worker_never_has_a_file_that_the_dataset_opened_for_a_sample_here(
    tmp_path: Path,
) -> None:
    (tmp_path / "numbers").write_bytes(np.arange(1000, dtype="<i8").tobytes())
    dataset = OpensOnce(tmp_path / "numbers")
    pack(dataset, tmp_path / "out", workers=2)
    assert [int(number) for number in Dataset(tmp_path / "out")] == list(range(1000))
    assert dataset.file is None


def values(index: int) -> dict[str, Any]:
    return {
        "image": PillowImage.open(io.BytesIO(jpeg(seed=index))),
        "drawn": PillowImage.new("RGB", (4, 3), (index, 0, 0)),
        "pixels": torch.full((3, 5, 4), index, dtype=torch.uint8),
        "array": np.full((2, 3), index, np.float32),
        "tensor": torch.full((2,), float(index)),
        "view": memoryview(b"%d" % index),
        "text": str(index),
        "flag": index % 2 == 0,
        "number": torch.tensor(index, dtype=torch.int16),
    }


def test_the_bytes_are_those_of_one_thread(tmp_path: Path) -> None:
    pack(Samples(50, values), tmp_path / "one", workers=1, shard_size=20_000)
    pack(Samples(50, values), tmp_path / "two", workers=2, shard_size=20_000)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_the_file_of_an_image_that_a_worker_opened_is_kept(tmp_path: Path) -> None:
    pack(Samples(40, values), tmp_path / "out", workers=2, codec="jpeg")
    with Dataset(tmp_path / "out") as dataset:
        np.testing.assert_array_equal(dataset[33]["image"], decoded(jpeg(seed=33)))
        assert bytes(dataset.stored_image("image", 33).data) == jpeg(seed=33)


class NotPickled(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("two numbers are needed to make this")


def bad_at_21(index: int) -> int:
    if index == 21:
        raise NotPickled(1, 2)
    return index


def all_bad(index: int) -> int:
    raise ValueError("bad")


def test_an_error_of_the_dataset_names_the_sample_and_has_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"sample 21: .*two numbers are needed") as caught:
        pack(Samples(64, bad_at_21), tmp_path / "out", workers=2)
    assert caught.value.row == 21
    assert "bad_at_21" in str(caught.value.__cause__.__cause__)  # type: ignore[union-attr]


def test_bad_samples_can_be_skipped(tmp_path: Path) -> None:
    report = pack(Samples(64, bad_at_21), tmp_path / "out", workers=2, on_error="skip")
    assert report.rows == 63
    assert [name for name, _ in report.skipped] == ["sample 21"]


def changing(index: int) -> dict[str, Any]:
    return {"x": index} if index != 40 else {"y": index}


def odd(index: int) -> dict[str, Any]:
    return {"x": index if index != 40 else (number for number in range(3))}


@pytest.mark.parametrize(
    ("sample", "problem"),
    [(changing, "sample 40: expected a dict with the keys x"), (odd, "sample 40: field 'x'")],
)
def test_a_sample_that_does_not_fit_the_first_one_is_named(
    tmp_path: Path, sample: Callable[[int], Any], problem: str
) -> None:
    with pytest.raises(SchemaError, match=problem):
        pack(Samples(64, sample), tmp_path / "out", workers=2)


def first_ones_are_bad(index: int) -> int:
    if index < 5:
        raise ValueError("not there")
    return index


def test_the_first_sample_that_can_be_read_decides_the_schema(tmp_path: Path) -> None:
    report = pack(Samples(64, first_ones_are_bad), tmp_path / "out", workers=2, on_error="skip")
    assert (report.rows, len(report.skipped)) == (59, 5)


def test_a_dataset_without_a_readable_sample_is_an_error(tmp_path: Path) -> None:
    def never(index: int) -> int:
        raise OSError("the disk is away")

    with pytest.raises(PackError, match="no sample of Samples can be read: the disk is away"):
        pack(Samples(64, never), tmp_path / "out", workers=2)


KILLED = """
import os, signal, sys
from pathlib import Path
from fastio import WorkerDied, pack
from tests.test_pack_processes import Samples

folder = Path(sys.argv[1])
def killed_at_900(index):
    if index == 900 and not (folder / "alive").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return index

resume = len(sys.argv) > 2
try:
    pack(Samples(1000, killed_at_900), folder / "out", workers=2, shard_size=400, resume=resume)
except WorkerDied as error:
    print(error)
"""


def test_a_worker_that_is_killed_is_named_and_the_pack_resumes(tmp_path: Path) -> None:
    # In a process of its own, because a thread of multiprocessing fails to send the killed worker
    # its next task.
    told = run_code(KILLED, tmp_path)
    assert re.search("read samples of Samples ended: .*resume=True", told.stdout), told.stderr
    lines = (tmp_path / "out" / JOURNAL_NAME).read_text().splitlines()[2:]
    kept = {entry["name"] for line in lines for entry in json.loads(line)["entries"]}
    assert kept
    stamps = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in kept}
    (tmp_path / "alive").touch()
    assert run_code(KILLED, tmp_path, "resume").returncode == 0
    assert [int(number) for number in Dataset(tmp_path / "out")] == list(range(1000))
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in kept} == stamps


def test_the_processes_end_with_the_pack(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    pack(Samples(64, process), tmp_path / "out", workers=2)
    for bad, message in ((bad_at_21, "sample 21:"), (all_bad, "no sample of Samples can be read")):
        with pytest.raises(fastio.FastioError, match=message):
            pack(Samples(64, bad), tmp_path / "bad", workers=2)
        assert set(multiprocessing.active_children()) <= before


def third(data: Any, is_wanted: Callable[[], bool]) -> Any:
    return data[2]


def test_calls_that_are_not_closed_end_their_processes_with_the_object() -> None:
    before = set(multiprocessing.active_children())
    calls = DatasetCalls(list(range(9)), 3, "numbers")
    assert list(calls.results([third])) == [2]
    queues = calls._reader._latest()._index_queues
    pipes = [pipe for queue in queues for pipe in (queue._reader, queue._writer)]
    assert len(set(multiprocessing.active_children()) - before) == 3
    del calls
    assert set(multiprocessing.active_children()) <= before
    # By the threads of the queues, and not by the garbage collector.
    assert all(pipe.closed for pipe in pipes)


NOT_PICKLED = """
import threading
from fastio.sources.torch_calls import DatasetCalls
from tests.test_pack_processes import third

lock = threading.Lock()
calls = DatasetCalls(list(range(9)), 2, "numbers")
try:
    list(calls.results([third, lambda data, is_wanted: lock.locked()]))
except TypeError as error:
    print(error)
calls.close()
"""


def test_a_call_that_cannot_be_pickled_is_an_error_and_is_not_waited_for() -> None:
    told = run_code(NOT_PICKLED)
    assert told.returncode == 0, told.stderr
    assert re.match("a function that reads numbers in worker.* cannot be pickled: ", told.stdout)


def test_the_pipes_to_the_processes_are_closed_with_the_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of the next pack would close what has the number of a half-closed pipe by then."""
    close, begun, ended = Connection.close, [], []

    def slowly(connection: Any) -> None:
        begun.append(connection)
        time.sleep(0.1)  # as on a busy machine
        close(connection)
        ended.append(connection)

    monkeypatch.setattr(Connection, "close", slowly)
    pack(Samples(64, process), tmp_path / "out", workers=2)
    assert len(begun) == len(ended) == 4  # two for each worker


def test_the_end_of_a_worker_that_was_not_forked_points_to_the_main_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "forkserver")
    calls = DatasetCalls([0, 1], 1, "Samples")
    message = r'Samples ended: DataLoader worker .* exited unexpectedly\. .*__name__ == "__main__"'
    with pytest.raises(fastio.WorkerDied, match=message), calls.naming_deaths():
        raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly") from queue.Empty()
    calls.close()


def test_large_samples_pass_through_shared_memory(tmp_path: Path) -> None:
    def large(index: int) -> np.ndarray[Any, Any]:
        return np.full(1_000_000, index, np.int16)

    pack(Samples(32, large, 0.05), tmp_path / "out", workers=2)
    found = Dataset(tmp_path / "out")
    assert [int(found[row].min()) for row in (0, 31)] == [0, 31]
    assert found[31].shape == (1_000_000,)


def test_large_images_pass_through_shared_memory(tmp_path: Path) -> None:
    def large(index: int) -> torch.Tensor:
        return torch.full((3, 200, 300), index, dtype=torch.uint8)

    pack(Samples(40, large, 0.02), tmp_path / "out", workers=2)
    with Dataset(tmp_path / "out") as found:
        assert [int(found[row].max()) for row in range(40)] == list(range(40))


def test_torch_s_random_numbers_are_not_drawn(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    pack(Samples(64, process), tmp_path / "out", workers=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_dataset_that_cannot_be_sent_is_read_here_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "spawn")
    source = Samples(64, lambda index: process(index))
    with pytest.warns(PerformanceWarning, match=r"Samples is read by one thread.*pickle"):
        pack(source, tmp_path / "out", workers=2)
    assert {sample["process"] for sample in Dataset(tmp_path / "out")} == {os.getpid()}


class Streaming(IterableDataset[Any]):
    """An IterableDataset whose samples have numbers too, as MosaicML's and LitData's have."""

    def __len__(self) -> int:
        return 64

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("its own order may repeat samples")

    def __getitem__(self, index: int) -> int:
        return index


def test_an_iterable_dataset_with_numbered_samples_is_read_by_number(tmp_path: Path) -> None:
    pack(Streaming(), tmp_path / "out", workers=2)
    assert [int(number) for number in Dataset(tmp_path / "out")] == list(range(64))


class Sharded(IterableDataset[Any]):
    """An IterableDataset that divides its samples among the workers of a DataLoader."""

    def __len__(self) -> int:
        return 64

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        yield from range(
            0 if worker is None else worker.id, 64, worker.num_workers if worker else 1
        )


def test_what_can_only_be_iterated_over_is_read_by_one_thread(tmp_path: Path) -> None:
    pack(Sharded(), tmp_path / "out", workers=2)
    assert [int(number) for number in Dataset(tmp_path / "out")] == list(range(64))


def test_a_pack_with_processes_can_be_appended_to(tmp_path: Path) -> None:
    pack(Samples(64, process), tmp_path / "out", workers=2)
    pack(Samples(100, process), tmp_path / "out", workers=2, append=True)
    found = [sample["index"] for sample in fastio.open(tmp_path / "out")]
    assert found == [*range(64), *range(100)]
