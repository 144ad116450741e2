"""Processes that recode the same folder: they divide the work, and may be killed at any time."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fastio import Cache
from fastio.recoded import images
from tests.recoding import (
    PIECE_BYTES,
    ROWS,
    _small_pieces,  # noqa: F401 - a fixture
    age,
    epoch,
    from_pack,
    near,
    open_loader,
    photos,
    pieces,
    recode_all,
    same,
)
from tests.support import until

pytestmark = pytest.mark.usefixtures("_small_pieces")
CONTEXT = multiprocessing.get_context("forkserver")


def recode(folder: Path, cache: Path, rows: int, answer: Any) -> None:
    """Recodes all of a folder with others; sends how many images it has recoded itself."""
    images._PIECE_BYTES = PIECE_BYTES
    with open_loader(folder, cache) as loader:  # all have the same seed, and want the same blocks
        epoch(loader)
        answer.send("ready")
        recode_all(loader, rows)
        answer.send(loader.stats().recoded)


def started(*arguments: Any) -> tuple[Any, Any]:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=recode, args=(*arguments, theirs))
    process.start()
    theirs.close()
    return process, ours


def test_processes_divide_the_work_and_see_one_anothers_records(tmp_path: Path) -> None:
    rows = 64
    folder = photos(tmp_path / "photos", rows)
    found = [started(folder, tmp_path / "cache", rows) for _ in range(3)]
    recoded = []
    for process, answer in found:
        assert answer.recv() == "ready"
        recoded.append(answer.recv())
        process.join()
    assert sum(recoded) == rows
    with open_loader(folder, tmp_path / "cache") as loader:
        assert same(epoch(loader), from_pack(folder, tmp_path / "packed", 0))
        assert loader.stats().from_recoded == rows


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.long)])
def test_a_process_that_is_killed_leaves_whole_pieces_or_none(kills: int, tmp_path: Path) -> None:
    rows = 64
    folder = photos(tmp_path / "photos", rows)
    draw = random.Random(3)
    for kill in range(kills):
        process, answer = started(folder, tmp_path / "cache", rows)
        assert answer.recv() == "ready"
        time.sleep(draw.uniform(0, 0.05))  # any moment will do
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with open_loader(folder, tmp_path / "cache") as loader, open_loader(folder) as plain:
            assert near(epoch(loader), epoch(plain))
        if kill % 2:
            os.utime(folder / "class-0" / "000.jpg")  # its block is recoded again
            age(folder)
    with open_loader(folder, tmp_path / "cache") as loader:
        recode_all(loader, rows)
        loader.set_epoch(1)
        assert same(epoch(loader), from_pack(folder, tmp_path / "packed", 1))
    with Cache(tmp_path / "cache") as cache:
        found = cache.status()
        assert (found.claims, found.damaged) == (0, 0)
        assert cache.verify().strays == []
    assert not list((tmp_path / "cache" / "tmp").iterdir())
    assert len(pieces(tmp_path / "cache")) == found.pieces


def test_a_forked_child_recodes_and_reads_for_itself(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    with open_loader(folder, tmp_path / "cache") as loader:
        epoch(loader)
        child = os.fork()
        if not child:
            status = 1
            try:
                recode_all(loader)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        recode_all(loader)


def test_ranks_share_the_records(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    ranks = [{"rank": rank, "world_size": 2, "drop_last": True} for rank in range(2)]
    loaders = [open_loader(folder, tmp_path / "cache", **rank) for rank in ranks]
    for loader in loaders:
        recode_all(loader, ROWS // 2 // 5 * 5)
    # A block of rows that the last epochs dropped may still be on its way.
    until(lambda: sum(loader.stats().recoded for loader in loaders) >= ROWS)
    assert sum(loader.stats().recoded for loader in loaders) == ROWS
    for loader in loaders:
        loader.close()


def test_the_interpreter_ends_without_close_and_without_a_word(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    code = """
import sys, fastio
loader = fastio.Loader(sys.argv[1], 4, transforms=[fastio.CenterCrop(8)], cache=sys.argv[2])
batches = iter(loader)
next(batches)
"""
    # A new interpreter: the test is about what happens when it unloads modules.
    command = [sys.executable, "-c", code, folder, tmp_path / "cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
