"""Which tables are copied to memory, and which are too large to be shuffled row by row."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import fastio
from fastio import Loader, _native
from fastio.engine.fields.columns import Columns
from fastio.order.sampling import Sampling
from fastio.runtime import memory
from fastio.stage import shuffling
from tests.children import in_fork
from tests.staging_support import pack_table
from tests.support import give_memory

SHUFFLED = Sampling(16, shuffle=True)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> fastio.Dataset:
    return fastio.open(pack_table(tmp_path_factory.mktemp("table") / "ds"))  # type: ignore[return-value]


def place(
    table: fastio.Dataset,
    monkeypatch: pytest.MonkeyPatch,
    times: float,
    sampling: Sampling = SHUFFLED,
    resident: bool | None = None,
) -> tuple[Sampling, bool | None]:
    """On a machine whose free memory is so many times the table."""
    monkeypatch.setattr(shuffling, "_WORTH_BYTES", 0)
    monkeypatch.setattr(shuffling, "_BLOCK_BYTES", 1 << 10)
    give_memory(monkeypatch, int(table.manifest.nbytes * times))
    return shuffling.place_table(table, sampling, resident)


def test_a_shuffled_table_that_takes_less_than_half_may_be_resident(
    table: fastio.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place(table, monkeypatch, 2.3) == (SHUFFLED, None)
    assert place(table, monkeypatch, 1.9)[1] is False


def test_ranks_on_a_machine_share_one_copy(
    table: fastio.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert place(table, monkeypatch, 2.3) == (SHUFFLED, None)
    assert place(table, monkeypatch, 1.9)[1] is False


def test_what_is_read_in_order_is_not_copied(
    table: fastio.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place(table, monkeypatch, 10, Sampling(16))[1] is False
    assert place(table, monkeypatch, 10, Sampling(16), resident=True)[1] is True
    assert place(table, monkeypatch, 10, SHUFFLED, resident=False)[1] is False


def test_a_small_table_is_left_where_it_is(
    table: fastio.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_memory(monkeypatch, 1 << 40)
    assert shuffling.place_table(table, SHUFFLED, None) == (SHUFFLED, False)


def test_a_table_that_half_of_the_memory_cannot_hold_is_shuffled_by_windows(
    table: fastio.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, resident = place(table, monkeypatch, 1.4)  # other programs need some of it
    assert resident is False
    assert chosen.mode == "window"
    how = chosen.how
    assert (how.kind, how.reason) == ("window", "memory")
    assert how.block is not None
    assert how.window is not None
    assert 0.1 < how.block * how.window / len(table) < 0.2  # 1 / 8 of the memory, rounded down
    assert how.sentence() == (
        f"rows are shuffled within windows of {how.window:,} blocks of {how.block:,} rows: the "
        "table is larger than half of the memory"
    )
    asked = Sampling(16, order="shuffle")
    assert place(table, monkeypatch, 1.4, asked)[0] == asked
    assert place(table, monkeypatch, 1.4, resident=True) == (SHUFFLED, True)


def test_available_memory_is_some_and_a_container_s_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory.available_memory() > 1 << 20
    (tmp_path / "max").write_text("5000\n")
    (tmp_path / "now").write_text("2000\n")
    monkeypatch.setattr(memory, "_CGROUPS", ((str(tmp_path / "max"), str(tmp_path / "now")),))
    assert memory.available_memory() == 3000
    (tmp_path / "max").write_text("max\n")
    assert memory.available_memory() > 1 << 20


_MAPS = """\
7f0000000000-7f0040000000 r--s 00000000 fd:00 {inode}                       /data/shard 1
Rss:              {rss} kB
FilePmdMapped:    {huge} kB
VmFlags: rd mr mw me ms
7f0050000000-7f0060000000 rw-p 00000000 00:00 0
Rss:              999999 kB
FilePmdMapped:         0 kB
"""


@pytest.mark.parametrize(("rss", "huge", "share"), [(1000, 250, 0.25), (1000, 1000, 1), (0, 0, 1)])
def test_the_share_of_huge_pages_is_that_of_the_files(
    rss: int, huge: int, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text(_MAPS.format(inode=os.stat(tmp_path).st_ino, rss=rss, huge=huge))
    monkeypatch.setattr(memory, "_MAPS", file)
    assert memory.huge_page_share([tmp_path]) == share
    monkeypatch.setattr(memory, "_MAPS", tmp_path / "missing")
    assert memory.huge_page_share([tmp_path]) == 1


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/self/smaps")
def test_the_share_of_a_mapped_file_is_known(table: fastio.Dataset) -> None:
    assert 0 <= memory.huge_page_share(Path(table.path).glob("shard-*")) <= 1


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_table_by_small_pages_is_copied_after_an_epoch(
    table: fastio.Dataset, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every row is right, before, while and after it is copied."""
    asked: list[int] = []

    def pages(files: Iterable[str]) -> float:
        asked.append(len(list(files)))
        return share

    shards = len(list(Path(table.path).glob("shard-*")))
    copied = 0 if share else shards
    layout = table.fixed_columns(list(table.schema.fields))
    assert layout is not None
    monkeypatch.setattr("fastio.engine.fields.columns.huge_page_share", pages)
    columns = Columns(layout, resident=None)
    engine = _native.Engine(2)
    place = [field.name for field in columns.fields].index("y")
    rows = np.random.default_rng(0).permutation(len(table))
    for epoch in range(4):
        y = np.empty(len(rows), np.int64)
        out = [y if at == place else None for at in range(len(columns.fields))]
        slot = columns.gather(engine, rows, out)
        assert slot.wait(60)
        assert (y == rows).all()
        assert asked == ([] if epoch == 0 else [shards])
        deadline_s = time.monotonic() + 60
        while epoch and columns.table.resident < copied:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
    assert columns.table.resident == copied
    columns.close()


def test_a_resident_table_gives_every_row(table: fastio.Dataset) -> None:
    with Loader(fastio.open(table.path, resident=True), batch_size=64, shuffle=True) as loader:
        for _ in range(3):
            rows = [row for batch in loader for row in batch["y"].tolist()]
            assert sorted(rows) == list(range(len(table)))


def test_a_forked_child_makes_its_own_copy_and_ends(table: fastio.Dataset) -> None:
    with Loader(fastio.open(table.path, resident=True), batch_size=64, shuffle=True) as loader:
        iterator = iter(loader)
        next(iterator)

        def work() -> bool:
            rows = [row for batch in loader for row in batch["y"].tolist()]
            loader.close()
            return sorted(rows) == list(range(len(table)))

        assert in_fork(work) == 0
        rest = sum(len(batch["y"]) for batch in iterator)
    assert rest == len(table) - 64
