"""Packing on Ray survives the loss of worker processes, of machines, and of the driver."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import fastio
from fastio.errors import DatasetNotFound, PackError
from fastio.pack import ray_engine
from fastio.pack.packer import Packer
from fastio.pack.ray_engine import _tasks
from fastio.packed import JOURNAL_NAME
from tests.pictures import write_folder
from tests.ray_support import PATIENCE_S, cluster_of, task_processes
from tests.support import contents

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of(2) as cluster:
        yield cluster


@pytest.fixture
def connected(cluster: Any) -> Iterator[Any]:
    import ray

    ray.init(cluster.address, log_to_driver=False, logging_level="warning")
    yield cluster
    ray.shutdown()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_folder(folder, 60)
    return folder


@pytest.fixture(scope="module")
def expected(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "packed"
    assert fastio.pack(photos, out, shard_size=SHARD).shards > 30
    return contents(out)


SHARD = 10_000


@contextmanager
def killing_tasks(times: int) -> Iterator[Callable[[], None]]:
    """A function that has the processes killed that run tasks then, or next; called so many times.

    A thread kills them. The driver goes on, because without it no task would begin.
    """
    asked = threading.Semaphore(0)
    done, ended = [], threading.Event()

    def kill() -> None:
        while asked.acquire() and not ended.is_set():
            while not (found := task_processes()) and not ended.wait(0.005):
                pass
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            done.append(found)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield asked.release
    finally:
        ended.set()
        asked.release()
        thread.join()
    assert len(list(filter(None, done))) == times


def test_lost_processes_and_machines_lose_and_repeat_nothing(
    connected: Any, photos: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    record, events = Packer._record_written, {1: "kill", 4: "kill", 6: "lose", 9: "kill"}
    seen = 0
    extra = connected.add_node(num_cpus=1, object_store_memory=100 << 20)
    connected.wait_for_nodes(timeout=PATIENCE_S)

    def disturb(self: Packer[Any, Any], unit: Any) -> None:
        nonlocal seen
        record(self, unit)
        seen += 1
        event = events.get(seen)
        if event == "kill":
            kill()
        elif event == "lose":
            connected.remove_node(extra, allow_graceful=False)

    with pytest.MonkeyPatch.context() as patch, killing_tasks(3) as kill:
        patch.setattr(Packer, "_record_written", disturb)
        report = fastio.pack(photos, tmp_path / "out", shard_size=SHARD, engine="ray")
    assert report.rows == 300
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.jsonl.gz"])
def test_text_that_many_tasks_or_one_reads_goes_on_after_a_kill(
    connected: Any, tmp_path: Path, name: str
) -> None:
    source = tmp_path / name
    with gzip.open(source, "wt") if name.endswith(".gz") else open(source, "w") as file:
        for number in range(200):
            file.write(json.dumps({"text": f"{number} " * 5000}) + "\n")
    record, seen = Packer._record_written, 0

    def disturb(self: Packer[Any, Any], unit: Any) -> None:
        nonlocal seen
        record(self, unit)
        seen += 1
        if seen in (2, 30):
            kill()

    options: dict[str, Any] = {"tokenizer": "bytes", "shard_size": 50_000}
    with pytest.MonkeyPatch.context() as patch, killing_tasks(2) as kill:
        patch.setattr(Packer, "_record_written", disturb)
        fastio.pack(source, tmp_path / "ray", engine="ray", **options)
    assert seen > 30
    fastio.pack(source, tmp_path / "threads", **options)
    assert contents(tmp_path / "ray") == contents(tmp_path / "threads")


def test_a_unit_that_ends_its_process_each_time_is_named(connected: Any, tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"unit 0 \(samples 0 to .*\) was lost 11 times"):
        fastio.pack(Deadly(), tmp_path / "out", shard_size=1000, engine="ray")
    with pytest.raises(DatasetNotFound):
        fastio.open(tmp_path / "out")


class Deadly:
    """Samples whose process ends, except the driver's."""

    def __init__(self) -> None:
        self.driver = os.getpid()

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if os.getpid() != self.driver:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize("length", ["known", "unknown"])
def test_a_full_disk_of_a_machine_is_named_and_the_pack_can_be_resumed(
    connected: Any, tmp_path: Path, length: str
) -> None:
    """One task packs each unit, or a single one packs all."""
    flag = tmp_path / "full"
    flag.touch()
    source: Any = Full(flag) if length == "known" else tmp_path / "rows.csv"
    if length == "unknown":
        source.write_text("x\n" + "".join(f"{number}\n" for number in range(100)))
    with pytest.MonkeyPatch.context() as patch:
        if length == "unknown":
            patch.setattr(ray_engine, "_tasks", lambda: tasks_on_a_full_disk(flag))
        with pytest.raises(
            PackError,
            match=r"a disk of .*, a machine of the Ray cluster, is full \(the file system mounted "
            r"at /.*cannot write .*out/shard-.*No space left .*--resume",
        ):
            fastio.pack(source, tmp_path / "out", shard_size=80, engine="ray")
    with pytest.raises(DatasetNotFound):
        fastio.open(tmp_path / "out")
    flag.unlink()
    report = fastio.pack(source, tmp_path / "out", shard_size=80, engine="ray", resume=True)
    assert report.rows == 100
    fastio.pack(source, tmp_path / "expected", shard_size=80)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


class Full:
    """Samples whose processes, except the driver's, have a full disk from unit 5 on."""

    def __init__(self, flag: Path) -> None:
        self.flag, self.driver = flag, os.getpid()

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if os.getpid() != self.driver:
            fill_disk(self.flag.exists() and index >= 50)
        return index


def fill_disk(is_full: bool) -> None:
    """Makes renames of this process fail as on a full disk, or not."""
    import errno
    import os
    from pathlib import Path

    def full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", os.fspath(Path(source)))

    real = getattr(os.replace, "real", os.replace)
    full.real = real  # type: ignore[attr-defined]
    os.replace = full if is_full else real


def tasks_on_a_full_disk(flag: Path) -> Any:
    """The functions of tasks, of which the one for a whole source has a full disk."""
    unit, source = _tasks()

    def fastio_pack_source(*arguments: Any) -> Any:
        from tests.test_pack_ray_kills import fill_disk

        fill_disk(flag.exists())
        try:
            yield from source(*arguments)
        finally:
            fill_disk(False)

    return unit, fastio_pack_source


def test_a_killed_driver_s_pack_is_resumed(
    cluster: Any, photos: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fastio", "pack", str(photos), str(out), "--quiet"]
    command += [f"--shard-size={SHARD}", f"--ray={cluster.address}"]
    driver = subprocess.Popen(command)
    journal = out / JOURNAL_NAME
    while driver.poll() is None:
        if journal.exists() and journal.read_bytes().count(b"\n") > 6:
            driver.kill()
            break
        time.sleep(0.005)
    assert driver.wait() == -signal.SIGKILL
    with pytest.raises(DatasetNotFound):
        fastio.open(out)
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert contents(out) == expected
