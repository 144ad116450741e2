"""The cache folder: claims, budget, eviction, what dead processes leave, foreign files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastio import Cache, CacheError, OptionError
from fastio.cache import CacheFolder, Consumer, Source

MIB = 1 << 20
PIECE = 64 << 10


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CacheFolder]:
    opened = CacheFolder(tmp_path / "cache", 4 * MIB)
    yield opened
    opened.close()


def make_source(folder: CacheFolder, fingerprint: str = "0123456789abcdef") -> Source:
    return folder.source("http://host/data", fingerprint, 1000, 10, 100 * PIECE)


def put(folder: CacheFolder, source: Source, number: int, size: int = PIECE) -> str:
    outcome = folder.claim(source, {number: size})[number]
    if outcome == "mine":
        assert folder.store(source, number, [bytes([number % 256]) * size])
    return outcome


def stored_bytes(folder: CacheFolder) -> int:
    return sum(path.stat().st_size for path in (folder.path / "data").rglob("*") if path.is_file())


def test_a_piece_is_there_after_it_was_stored(folder: CacheFolder) -> None:
    source = make_source(folder)
    assert not folder.has(source, 7, PIECE)
    assert folder.claim(source, {7: PIECE}) == {7: "mine"}
    assert not folder.has(source, 7, PIECE)
    assert folder.store(source, 7, [b"a" * 100, b"b" * (PIECE - 100)])
    assert folder.has(source, 7, PIECE)
    assert folder.file(source, 7).read_bytes() == b"a" * 100 + b"b" * (PIECE - 100)
    assert folder.claim(source, {7: PIECE}) == {7: "ready"}


def test_a_piece_of_another_size_is_not_there(folder: CacheFolder) -> None:
    source = make_source(folder)
    put(folder, source, 1)
    os.truncate(folder.file(source, 1), PIECE - 1)
    assert not folder.has(source, 1, PIECE)


def test_what_one_claims_is_others_for_all_others(folder: CacheFolder) -> None:
    source = make_source(folder)
    assert folder.claim(source, {1: PIECE}) == {1: "mine"}
    assert folder.claim(source, {1: PIECE, 2: PIECE}) == {1: "others", 2: "mine"}
    second = CacheFolder(folder.path, 4 * MIB)
    assert second.claim(make_source(second), {1: PIECE}) == {1: "others"}
    second.close()


def test_an_abandoned_claim_is_anybodys(folder: CacheFolder) -> None:
    source = make_source(folder)
    folder.claim(source, {1: PIECE})
    folder.abandon(source, [1])
    assert folder.claim(source, {1: PIECE}) == {1: "mine"}


def test_closing_gives_claims_back(folder: CacheFolder) -> None:
    second = CacheFolder(folder.path, 4 * MIB)
    assert second.claim(make_source(second), {1: PIECE}) == {1: "mine"}
    second.close()
    assert folder.claim(make_source(folder), {1: PIECE}) == {1: "mine"}


def test_copies_of_the_same_bytes_are_one_source(folder: CacheFolder) -> None:
    first = folder.source("http://a/data", "0123456789abcdef", 1000, 10, 1)
    again = folder.source("s3://b/data", "0123456789abcdef", 1000, 10, 1)
    other = folder.source("http://a/data", "f123456789abcdef", 1000, 10, 1)
    assert first.number == again.number
    assert first.number != other.number


def test_the_budget_is_never_exceeded(folder: CacheFolder) -> None:
    source = make_source(folder)
    for number in range(200):
        assert put(folder, source, number) == "mine"
        assert stored_bytes(folder) <= folder.room
    assert stored_bytes(folder) > folder.room - 2 * PIECE
    everything = sum(p.stat().st_size for p in folder.path.rglob("*") if p.is_file())
    assert everything <= folder.budget


def test_without_a_forecast_the_longest_unused_goes_first(folder: CacheFolder) -> None:
    source = make_source(folder)
    count = folder.room // PIECE
    for number in range(count):
        put(folder, source, number)
    folder.note_use(source, [0])
    put(folder, source, count)
    assert folder.has(source, 0, PIECE)
    assert not folder.has(source, 1, PIECE)


def test_what_is_needed_furthest_in_the_future_goes_first(tmp_path: Path) -> None:
    asked: list[Sequence[Consumer]] = []

    def next_use(runs: Sequence[Consumer], numbers: Any) -> Any:
        asked.append(runs)
        return np.where(numbers == 3, 1e6, numbers).astype(np.float64)

    folder = CacheFolder(tmp_path / "cache", 4 * MIB)
    folder.rank_by(next_use)
    source = make_source(folder)
    count = folder.room // PIECE
    for number in range(count):
        put(folder, source, number)
    folder.tell(1, Consumer(source.number, "{}", 5, 6))
    put(folder, source, count)
    assert not folder.has(source, 3, PIECE)
    put(folder, source, count + 1)
    assert not folder.has(source, count, PIECE)
    assert asked[-1] == [Consumer(source.number, "{}", 5, 6)]
    folder.close()


def test_what_is_in_use_stays_and_the_caller_learns_that_there_is_no_room(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "cache", 4 * MIB)
    folder.rank_by(lambda runs, n: np.full(len(n), -1.0))
    source = make_source(folder)
    count = folder.room // PIECE
    for number in range(count):
        put(folder, source, number)
    folder.tell(1, Consumer(source.number, "{}", 0, 0))
    assert folder.claim(source, {count: PIECE}) == {count: "no room"}
    folder.end_run(1)
    assert folder.claim(source, {count: PIECE}) == {count: "mine"}
    folder.close()


def test_what_the_caller_keeps_stays(folder: CacheFolder) -> None:
    source = make_source(folder)
    count = folder.room // PIECE
    for number in range(count):
        put(folder, source, number)
    outcome = folder.claim(source, {count: PIECE}, keep=range(count))
    assert outcome == {count: "no room"}


def test_a_piece_larger_than_the_budget_has_no_room(folder: CacheFolder) -> None:
    assert folder.claim(make_source(folder), {1: 5 * MIB}) == {1: "no room"}


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf"), "much", "1" + "0" * 400])
def test_a_budget_that_is_no_size_is_an_error(tmp_path: Path, budget: Any) -> None:
    with pytest.raises(OptionError, match="is not a size"):
        Cache(tmp_path, budget=budget)


def test_a_dropped_piece_is_fetched_again(folder: CacheFolder) -> None:
    source = make_source(folder)
    put(folder, source, 1)
    folder.drop(source, [1])
    assert not folder.has(source, 1, PIECE)
    assert put(folder, source, 1) == "mine"


def test_an_empty_path_and_an_empty_folder_become_caches(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new/nested"):
        CacheFolder(tmp_path / name, MIB).close()
        CacheFolder(tmp_path / name, MIB).close()


def test_a_folder_with_anything_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("important")
    with pytest.raises(CacheError, match=r"not a fastio cache.*mine\.txt"):
        CacheFolder(tmp_path, MIB)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be used"):
        CacheFolder(tmp_path / "file", MIB)


def test_foreign_files_in_a_cache_outlive_everything(folder: CacheFolder) -> None:
    source = make_source(folder)
    put(folder, source, 0)
    foreign = [folder.path / "notes.txt", folder.file(source, 0).parent / "picture.jpg"]
    for path in foreign:
        path.write_text("mine")
    for number in range(1, 100):
        put(folder, source, number)
    folder.close()
    CacheFolder(folder.path, 2 * MIB).close()
    assert all(path.read_text() == "mine" for path in foreign)


def claim_and_wait(path: Path, pipe: Any, stage: str) -> None:
    folder = CacheFolder(path, 4 * MIB)
    source = make_source(folder)
    folder.tell(1, Consumer(source.number, "{}", 0, 0))
    folder.claim(source, {1: PIECE, 2: PIECE})
    if stage == "written":
        (folder.path / "tmp" / f"{folder._member.token}.1-1").write_bytes(b"half")
    if stage == "renamed":
        target = folder.file(source, 1)
        target.parent.mkdir(parents=True)
        target.write_bytes(b"x" * PIECE)
    pipe.send("ready")
    threading.Event().wait()


@pytest.mark.parametrize("stage", ["claimed", "written", "renamed"])
@pytest.mark.parametrize("reopen", [False, True])
def test_what_a_killed_process_left_is_taken_back(
    folder: CacheFolder, stage: str, reopen: bool
) -> None:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=claim_and_wait, args=(folder.path, theirs, stage))
    process.start()
    assert ours.recv() == "ready"
    source = make_source(folder)
    assert folder.claim(source, {1: PIECE}) == {1: "others"}
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()

    other = CacheFolder(folder.path, 4 * MIB) if reopen else folder
    assert other.claim(source, {1: PIECE, 2: PIECE}) == {1: "mine", 2: "mine"}
    assert other.store(source, 1, [b"y" * PIECE])
    assert other.file(source, 1).read_bytes() == b"y" * PIECE
    assert list((folder.path / "tmp").iterdir()) == []
    if reopen:
        assert len(list((folder.path / "members").iterdir())) == 2
        other.close()


def test_a_child_of_fork_does_not_keep_its_parents_membership(folder: CacheFolder) -> None:
    from fastio.cache.members import is_alive

    child = os.fork()
    if child == 0:
        threading.Event().wait()
    try:
        folder.close()
        assert not is_alive(folder.files.members, folder._member.token)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("event", ["fork", "interrupt"])
def test_a_descriptor_is_closed_once_whatever_comes_right_after(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """A fork in another thread, or Ctrl-C: its number may be another file's by then."""
    close, ours, opened = os.close, folder._member._descriptor, -1

    def close_and_open(descriptor: int) -> None:
        nonlocal opened
        close(descriptor)
        if descriptor != ours or opened >= 0:
            return
        opened = os.open(os.devnull, os.O_RDONLY)
        assert opened == ours
        if event == "interrupt":
            raise KeyboardInterrupt
        child = os.fork()
        if child == 0:
            os._exit(not Path(f"/proc/self/fd/{opened}").exists())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_and_open)
        with pytest.raises(KeyboardInterrupt) if event == "interrupt" else nullcontext():
            folder._member.leave()
    folder._member.forget()
    folder._member.leave()
    os.close(opened)


def test_an_index_of_another_version_is_refused(folder: CacheFolder) -> None:
    import sqlite3

    folder.close()
    with sqlite3.connect(folder.path / "index.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(CacheError, match="version 99"):
        CacheFolder(folder.path, MIB)


def test_a_damaged_index_is_an_error_that_names_it(folder: CacheFolder) -> None:
    folder.close()
    for path in folder.path.glob("index.sqlite*"):
        path.write_bytes(b"not a database" * 1000)
    with pytest.raises(CacheError, match=r"index\.sqlite"):
        CacheFolder(folder.path, MIB)


def open_and_close(folder: Path, caches: int, start: Any) -> None:
    for number in range(caches):
        start.wait(120)
        CacheFolder(folder / str(number), MIB).close()


def test_processes_that_make_a_cache_at_the_same_time_all_open_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    start = context.Barrier(6)
    processes = [
        context.Process(target=open_and_close, args=(tmp_path, 8, start)) for _ in range(6)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
