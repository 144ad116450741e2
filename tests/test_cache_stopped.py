"""A process that is stopped while it fetches: others go on, and nothing is amiss when it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fastio import Cache, Dataset, warm
from fastio.cache import CacheFolder, Source
from fastio.cache.members import is_stopped
from fastio.cache.report import status
from fastio.stage import Blocks
from tests.servers import http_folder
from tests.staging_support import MIB, Reference, disk_use, pack_noise, piece_files, remote_loader

ROWS = 128
BUDGET = 8 * MIB
PIECE = 64 << 10


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_noise(tmp_path_factory.mktemp("served") / "photos", ROWS)


@pytest.fixture(scope="module")
def url(photos: Path) -> Iterator[str]:
    with http_folder(photos) as url:
        yield url


@contextmanager
def stopped(work: Any, *arguments: Any) -> Iterator[Any]:
    """A process that does `work` until it sends something, and is stopped then.

    Yields what continues it, and waits for its end.
    """
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments))
    process.start()
    theirs.close()
    assert process.pid is not None
    try:
        assert ours.recv() == "claimed"
        os.kill(process.pid, signal.SIGSTOP)
        while not is_stopped(f"{process.pid}-0"):
            time.sleep(0.001)

        def go_on() -> None:
            ours.send("go on")
            os.kill(process.pid, signal.SIGCONT)
            process.join(60)
            assert process.exitcode == 0

        yield go_on
    finally:
        process.kill()
        process.join()


def store_a_piece(pipe: Any, path: Path) -> None:
    folder = CacheFolder(path, BUDGET)
    source = piece_source(folder)
    assert folder.claim(source, {1: PIECE}) == {1: "mine"}
    pipe.send("claimed")
    pipe.recv()
    assert folder.store(source, 1, [b"x" * PIECE])
    folder.close()


def piece_source(folder: CacheFolder) -> Source:
    return folder.source("http://host/data", "0123456789abcdef", 1000, 10, 100 * PIECE)


def load(pipe: Any, url: str, photos: Path, path: Path) -> None:
    """An epoch, whose first fetch of a block waits."""
    fetch, waits = Blocks.fetch, [True]

    def wait_and_fetch(blocks: Blocks, number: int, known: Any = None) -> Any:
        if waits.pop() if waits else False:
            kept = blocks.dataset.head_source()
            assert kept is not None
            # With this claim alone, and not within another thread's transaction, which would lock
            # all others out.
            while True:
                with kept[0].index.reading():
                    if status(kept[0]).claims == 1:
                        pipe.send("claimed")
                        pipe.recv()
                        break
                time.sleep(0.001)
        return fetch(blocks, number, known)

    Blocks.fetch = wait_and_fetch  # type: ignore[method-assign]
    with remote_loader(url, Cache(path, BUDGET)) as loader:
        assert sorted(Reference(photos).epoch(loader)) == list(range(ROWS))


def claim_heads(pipe: Any, url: str, path: Path) -> None:
    with Dataset(url, None, Cache(path, BUDGET)) as dataset:
        kept = dataset.head_source()
        assert kept is not None
        sizes = dict.fromkeys(range(dataset.num_shards), PIECE)
        assert set(kept[0].claim(kept[1], sizes).values()) == {"mine"}
        pipe.send("claimed")
        pipe.recv()
        kept[0].abandon(kept[1], sizes)


def assert_sound(cache: Cache) -> None:
    """Nothing is damaged, claimed or nobody's, and the budget holds."""
    found = cache.verify()
    assert not found.damaged
    assert not found.strays
    assert len(list(piece_files(cache))) == found.pieces
    assert not list((cache.path / "tmp").iterdir())
    assert cache.status().claims == 0
    assert max(disk_use(cache.path), cache.status().bytes) <= BUDGET


def test_what_a_stopped_process_has_claimed_stays_its_own_and_nobody_waits(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, BUDGET)
    source = piece_source(folder)
    with stopped(store_a_piece, tmp_path) as go_on:
        assert folder.claim(source, {1: PIECE}) == {1: "no room"}
        assert folder.claim(source, {1: PIECE}, if_stopped="stopped") == {1: "stopped"}
        go_on()
    assert folder.claim(source, {1: PIECE}) == {1: "ready"}
    folder.close()
    assert_sound(Cache(tmp_path))


def test_a_loader_goes_on_without_the_block_that_a_stopped_one_fetches(
    url: str, photos: Path, tmp_path: Path
) -> None:
    cache = Cache(tmp_path, BUDGET)
    with stopped(load, url, photos, tmp_path) as go_on:
        with remote_loader(url, cache, timeout=60) as loader:  # far less than others are waited for
            assert sorted(Reference(photos).epoch(loader)) == list(range(ROWS))
        assert cache.status().claims
        go_on()
    assert_sound(cache)
    cache.close()


def test_heads_that_a_stopped_process_fetches_are_not_waited_for(
    url: str, photos: Path, tmp_path: Path
) -> None:
    cache = Cache(tmp_path, BUDGET)
    with stopped(claim_heads, url, tmp_path) as go_on:
        with remote_loader(url, cache, timeout=25) as loader:  # less than heads are waited for
            assert sorted(Reference(photos).epoch(loader)) == list(range(ROWS))
        go_on()
    assert_sound(cache)
    cache.close()


def test_warming_leaves_a_stopped_process_its_block_and_stages_the_rest(
    url: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.stage.warming.OTHERS_DEADLINE_S", float("inf"))
    with stopped(load, url, photos, tmp_path) as go_on:
        report = warm(url, Cache(tmp_path, BUDGET))
        assert not report.complete
        assert report.rows_staged > ROWS / 2
        go_on()
    assert warm(url, Cache(tmp_path, BUDGET)).complete
    assert_sound(Cache(tmp_path))
