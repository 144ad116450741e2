"""On machines with many cores, worker processes pack whole units of files of images."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset
from typer.testing import CliRunner

import fastio
from fastio import ImageError, WorkerDied, pack
from fastio.cli import main
from fastio.pack import items, process_units, sources
from fastio.pack.process_units import ProcessUnits
from tests.children import run_code
from tests.pictures import jpeg
from tests.support import contents

PHOTOS = 40
OPTIONS: dict[str, Any] = {"shard_size": "8KiB"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(PHOTOS):
        path = folder / f"c{number // 20}" / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(48, 40, seed=number))
    return folder


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are enough, on any machine."""
    monkeypatch.setattr(sources, "_LEAST_PROCESSES", 2)
    monkeypatch.setattr(sources, "available_cores", lambda: 2)


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The units of each pack that processes were given."""
    seen: list[range] = []
    numbers = ProcessUnits._numbers

    def noted(self: ProcessUnits, left: range) -> range:
        seen.append(numbers(self, left))
        return seen[-1]

    monkeypatch.setattr(ProcessUnits, "_numbers", noted)
    return seen


def tar_of(photos: Path, path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        for file in sorted(photos.rglob("*.jpg")):
            tar.add(file, file.name)
    return path


@pytest.mark.parametrize("kind", ["folder", "tar", "open"])
def test_processes_give_the_bytes_of_one_thread(
    photos: Path, tmp_path: Path, units: list[range], kind: str
) -> None:
    given: dict[str, Any] = {"folder": photos, "open": fastio.open(photos)}
    source = given.get(kind) or tar_of(photos, tmp_path / "photos.tar")
    pack(source, tmp_path / "thread", workers=1, **OPTIONS)
    assert units == []
    report = pack(source, tmp_path / "processes", workers=2, **OPTIONS)
    assert report.rows == PHOTOS
    assert len(units[0]) == report.shards > 2
    assert contents(tmp_path / "processes") == contents(tmp_path / "thread")


def test_a_source_with_few_units_a_cache_or_a_subset_is_packed_by_threads(
    photos: Path, tmp_path: Path, units: list[range], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "available_cores", lambda: 4)
    pack(photos, tmp_path / "one", workers=4)
    assert [len(each) for each in units] == [0]
    with fastio.Loader(photos, 4, cache=tmp_path / "cache") as loader:
        list(loader)
    pack(photos, tmp_path / "cached", workers=4, from_cache=tmp_path / "cache", **OPTIONS)
    pack(Subset(fastio.open(photos), range(30)), tmp_path / "subset", workers=4, **OPTIONS)
    assert len(units) == 1


def test_memory_that_is_scarce_is_not_shared_by_processes(
    photos: Path, tmp_path: Path, units: list[range], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_units, "available_memory", lambda: 10 << 10)
    assert pack(photos, tmp_path / "out", workers=2, **OPTIONS).rows == PHOTOS
    assert [len(each) for each in units] == [0]


@pytest.mark.parametrize("bad", [3, 37])
def test_a_bad_photo_is_the_error_of_threads(photos: Path, tmp_path: Path, bad: int) -> None:
    folder = shutil.copytree(photos, tmp_path / "photos")
    path = sorted(folder.rglob("*.jpg"))[bad]
    path.write_bytes(path.read_bytes()[:200])
    messages = []
    for workers in (1, 2):
        with pytest.raises(ImageError, match=path.name) as caught:
            pack(folder, tmp_path / f"raise{workers}", workers=workers, **OPTIONS)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    skipped = [
        pack(folder, tmp_path / f"skip{n}", workers=n, on_error="skip", **OPTIONS).skipped
        for n in (1, 2)
    ]
    assert skipped[0] == skipped[1]
    assert len(skipped[0]) == 1
    assert contents(tmp_path / "skip2") == contents(tmp_path / "skip1")


def test_a_pack_goes_on_after_a_killed_process(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, flag = os.getpid(), tmp_path / "killed"
    read = items.RowImage.read

    def deadly(self: Any) -> bytes:
        data = read(self)
        if self.row == 30 and os.getpid() != parent and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return data

    pack(photos, tmp_path / "whole", workers=1, **OPTIONS)
    monkeypatch.setattr(items.RowImage, "read", deadly)
    with pytest.raises(WorkerDied, match="resume=True"):
        pack(photos, tmp_path / "out", workers=2, **OPTIONS)
    assert flag.exists()
    assert pack(photos, tmp_path / "out", workers=2, resume=True, **OPTIONS).rows == PHOTOS
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


# In a process of its own: an interrupt may leave a pipe to a worker half closed. When that is
# collected, later, it would close whatever has its number by then.
INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
import fastio
from fastio.pack import items, sources

sources._LEAST_PROCESSES, sources.available_cores = 2, lambda: 2
photos, out, flag = sys.argv[1], sys.argv[2], Path(sys.argv[3])
parent, read = os.getpid(), items.RowImage.read

def slow(image):
    if os.getpid() != parent:
        flag.touch()
        time.sleep(0.5)
    return read(image)

def interrupt():
    while not flag.exists():
        time.sleep(0.05)
    os.kill(parent, signal.SIGINT)

items.RowImage.read = slow
threading.Thread(target=interrupt).start()
try:
    fastio.pack(photos, out, workers=2, shard_size="8KiB")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_ends_the_processes_soon(photos: Path, tmp_path: Path) -> None:
    done = run_code(INTERRUPTED, photos, tmp_path / "out", tmp_path / "begun")
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert pack(photos, tmp_path / "out", resume=True, **OPTIONS).rows == PHOTOS


def test_the_command_forks_where_python_does_not_by_default(
    photos: Path, tmp_path: Path, units: list[range], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    methods = ["forkserver", "fork", "spawn"]  # as in Python 3.14
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    multiprocessing.set_start_method(None, force=True)
    try:
        pack(photos, tmp_path / "threads", workers=2, **OPTIONS)
        assert units == []
        command = ["pack", str(photos), str(tmp_path / "out"), "--workers=2", "--shard-size=8KiB"]
        result = CliRunner().invoke(main, [*command, "--quiet"])
        assert result.exit_code == 0, result.output
        assert len(units) == 1
        assert multiprocessing.get_start_method(allow_none=True) is None
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "threads")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_that_does_not_fork_packs_images_by_threads(
    photos: Path, tmp_path: Path, method: str
) -> None:
    # Not below `if __name__ == "__main__"`: other processes would pack again.
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys, fastio\n"
        "from fastio.pack import sources\n"
        "from PIL import ImageFile\n"
        "ImageFile.LOAD_TRUNCATED_IMAGES = True\n"
        "sources._LEAST_PROCESSES, sources.available_cores = 2, lambda: 2\n"
        "multiprocessing.set_start_method(sys.argv[3])\n"
        "fastio.pack(sys.argv[1], sys.argv[2], workers=2, shard_size='8KiB')\n"
    )
    folder = shutil.copytree(photos, tmp_path / "photos")
    path = sorted(folder.rglob("*.jpg"))[7]
    path.write_bytes(path.read_bytes()[:-200])
    command = [sys.executable, script, folder, tmp_path / "out", method]
    subprocess.run(command, check=True, timeout=120)
    assert len(fastio.open(tmp_path / "out")) == PHOTOS
