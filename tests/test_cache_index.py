"""The database of a cache folder."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from fastio.cache.held import Access, HeldFolder
from fastio.cache.index import Index, count

MIB = 1 << 20


def test_the_log_stays_small_although_somebody_reads_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.cache.index._LOG_WAIT_S", 60.0)  # readers may get no processor
    path = tmp_path / "index.sqlite"
    index = Index(HeldFolder.top(tmp_path, Access()))
    ended = threading.Event()
    turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def read(me: int) -> None:
        mine, others = turns[me], turns[1 - me]
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            while not ended.is_set():
                assert mine.acquire(timeout=60)
                if db.in_transaction:
                    db.execute("COMMIT")  # the other one reads
                db.execute("BEGIN")
                db.execute("SELECT * FROM totals").fetchall()
                others.release()
            others.release()

    # Each ends its reading when the other has begun: there is no moment at which nobody reads.
    readers = [threading.Thread(target=read, args=(me,)) for me in range(2)]
    for reader in readers:
        reader.start()
    try:
        largest = 0
        for _ in range(600):
            with index.transaction() as db:
                count(db, hits=1)
            largest = max(largest, Path(f"{path}-wal").stat().st_size)
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert largest < MIB
    index.close()


def test_a_reader_that_never_ends_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    index = Index(HeldFolder.top(tmp_path, Access()))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN")
        db.execute("SELECT * FROM totals").fetchall()
        waits: list[str] = []
        assert index._db is not None
        index._db.set_trace_callback(lambda sql: waits.append(sql) if sql.endswith("=20") else None)
        for _ in range(600):
            with index.transaction() as own:
                count(own, hits=1)
        assert 0 < len(waits) < 60  # of 0.1 s each
    index.close()


def test_a_fork_waits_until_a_thread_has_opened_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise SQLite in the child takes the thread's locks for its own, and never frees them."""
    open_once, begun, opened = Index._open_once, threading.Event(), threading.Event()

    def slowly(index: Index) -> None:
        begun.set()
        time.sleep(0.2)
        open_once(index)
        opened.set()

    monkeypatch.setattr(Index, "_open_once", slowly)
    with ThreadPoolExecutor(1) as pool:
        index = pool.submit(Index, HeldFolder.top(tmp_path, Access()))
        begun.wait()
        child = os.fork()
        if child == 0:
            os._exit(0 if opened.is_set() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        index.result().close()
