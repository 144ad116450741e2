"""Warming a cache: all of a remote dataset, checked, in the pieces that a loader looks for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from typer.testing import CliRunner

import fastio
from fastio import Cache, CacheError, DatasetNotFound, StoreError, warm
from fastio.cache import CacheFolder, block_of
from fastio.cache.index import LOADING
from fastio.cli import main
from fastio.stage.pace import Pace
from fastio.store import Store

ROWS = 300
BLOCK = 256 << 10  # bytes, of small datasets


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A dataset of 5 MB in blocks of 22 rows, some of which lie in two shards."""
    rng = np.random.default_rng(0)
    url = "memory://warm/dataset"
    schema = fastio.Schema({"image": fastio.Image(), "label": fastio.Scalar("int64")})
    with fastio.Writer(url, schema, codec="raw", shard_size="1MB", overwrite=True) as writer:
        for row in range(ROWS):
            image = rng.integers(0, 256, (60, 64 + row % 3, 3), dtype=np.uint8)
            writer.write({"image": image, "label": row})
    yield url
    fsspec.filesystem("memory").rm("/warm", recursive=True)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Names and lengths of what is read from stores from here on."""
    done: list[tuple[str, int]] = []
    read = Store.read

    def noted(self: Store, name: str, offset: int = 0, length: Any = None, **more: Any) -> Any:
        data = read(self, name, offset, length, **more)
        done.append((name, data.nbytes))
        return data

    read_into = Store.read_into

    def noted_into(self: Store, name: str, offset: int, views: Any, **more: Any) -> None:
        read_into(self, name, offset, views, **more)
        done.append((name, sum(view.nbytes for view in views)))

    monkeypatch.setattr(Store, "read", noted)
    monkeypatch.setattr(Store, "read_into", noted_into)
    return done


def image_bytes(reads: list[tuple[str, int]]) -> int:
    """Bytes of large reads of shards."""
    return sum(size for name, size in reads if name.startswith("shard") and size > 20_000)


def pieces(path: Path) -> list[Path]:
    return sorted(file for file in (path / "data").rglob("*") if file.is_file())


def labels_of(loader: fastio.Loader) -> list[int]:
    with loader:
        return sorted(int(label) for batch in loader for label in batch["label"])


def test_a_loader_fetches_no_image_of_a_warm_dataset(
    url: str, tmp_path: Path, reads: list[tuple[str, int]]
) -> None:
    report = warm(url, tmp_path / "cache")
    assert report.complete
    assert (report.rows, report.rows_staged) == (ROWS, ROWS)
    assert report.bytes == report.bytes_fetched > 3_000_000
    reads.clear()
    loader = fastio.Loader(url, batch_size=50, shuffle=True, seed=0, cache=tmp_path / "cache")
    assert labels_of(loader) == list(range(ROWS))
    assert {name for name, _ in reads} == {"manifest.arrow"}


def test_neighbouring_blocks_come_by_one_request(
    url: str, tmp_path: Path, reads: list[tuple[str, int]]
) -> None:
    report = warm(url, tmp_path / "cache")
    large = [size for name, size in reads if name.startswith("shard") and size > 100_000]
    with fastio.open(url) as dataset:
        assert len(large) == dataset.num_shards < report.bytes // BLOCK
    assert sum(large) == report.bytes


def test_what_is_there_is_not_fetched_again(
    url: str, tmp_path: Path, reads: list[tuple[str, int]]
) -> None:
    warm(url, tmp_path / "cache")
    gone = max(pieces(tmp_path / "cache"), key=lambda path: path.stat().st_size)
    size = gone.stat().st_size
    gone.unlink()
    reads.clear()
    report = warm(url, tmp_path / "cache")
    assert report.complete
    assert report.bytes_fetched == size
    assert image_bytes(reads) == size


def test_a_small_budget_holds_the_beginning(url: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 3_000_000)
    report = warm(url, cache)
    assert not report.complete
    assert 0 < report.rows_staged < ROWS
    with fastio.open(url, cache=cache) as dataset:
        source = max(
            (tmp_path / "cache" / "data").iterdir(), key=lambda folder: len(pieces_in(folder))
        )
        numbers = pieces_in(source)
        assert numbers == list(range(len(numbers)))
        assert len(dataset) == ROWS
    assert cache.status().bytes <= 3_000_000
    again = warm(url, cache)
    assert (again.rows_staged, again.bytes_fetched) == (report.rows_staged, 0)
    cache.close()


def pieces_in(folder: Path) -> list[int]:
    """The blocks of the pieces in the folder of a source."""
    return sorted(block_of(int(file.name)) for file in folder.rglob("*") if file.is_file())


def test_another_dataset_that_nobody_uses_makes_room(url: str, tmp_path: Path) -> None:
    other = "memory://warm/other"
    noise = np.random.default_rng(1).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    fastio.pack([(noise, n) for n in range(60)], other, overwrite=True)
    cache = Cache(tmp_path / "cache", 6_000_000)
    assert warm(other, cache).complete
    assert warm(url, cache).complete
    assert cache.status().bytes <= 6_000_000
    cache.close()


def test_what_a_process_is_fetching_is_waited_for_until_it_is_gone(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = warm(url, tmp_path / "cache")
    other = CacheFolder(tmp_path / "cache")
    with other.index.transaction() as db:
        rows = db.execute(
            "SELECT source, number FROM pieces WHERE size > 100000 ORDER BY number LIMIT 2"
        ).fetchall()
        for row in rows:
            db.execute(
                "UPDATE pieces SET state = ?, owner = ? WHERE source = ? AND number = ?",
                (LOADING, other.token, *row),
            )
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        other.close()

    monkeypatch.setattr(time, "sleep", nap)
    again = warm(url, tmp_path / "cache")
    assert naps
    assert again.complete
    assert again.bytes == report.bytes
    assert again.bytes_fetched > 0


def test_a_dataset_without_images_is_staged_by_shards(tmp_path: Path) -> None:
    url = "memory://warm/numbers"
    fastio.pack(range(2000), url, shard_size=4000, overwrite=True)
    report = warm(url, tmp_path / "cache")
    assert report.complete
    assert report.rows_staged == 2000
    assert warm(url, tmp_path / "cache").bytes_fetched == 0
    with fastio.Loader(url, batch_size=500, cache=tmp_path / "cache") as loader:
        assert sum(len(batch) for batch in loader) == 2000
    (dataset,) = Cache(tmp_path / "cache").status().datasets
    assert dataset.share == 1


def test_what_is_damaged_at_the_source_is_named_and_not_kept(tmp_path: Path) -> None:
    url = "memory://warm/damaged"
    noise = np.random.default_rng(2).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    fastio.pack([(noise, n) for n in range(60)], url, overwrite=True)
    fs = fsspec.filesystem("memory")
    (path,) = fs.glob("/warm/damaged/shard-000000-*.arrow")
    data = bytearray(fs.cat_file(path))
    data[len(data) // 2] ^= 1
    fs.pipe_file(path, bytes(data))
    report = warm(url, tmp_path / "cache")
    assert not report.complete
    assert 0 < report.rows_staged < 60
    (problem,) = report.damaged
    assert f"{path.rpartition('/')[2]} row" in problem
    assert "CRC-32C" in problem
    assert Cache(tmp_path / "cache").verify().damaged == []


def test_progress_adds_up_to_what_is_staged(url: str, tmp_path: Path) -> None:
    steps: list[int] = []
    report = warm(url, tmp_path / "cache", advance=steps.append)
    assert sum(steps) == report.bytes


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    url = "memory://warm/missing"
    noise = np.random.default_rng(2).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    fastio.pack([(noise, n) for n in range(60)], url, shard_size="500KB", overwrite=True)
    fs = fsspec.filesystem("memory")
    fs.rm(fs.glob("/warm/missing/shard-000002-*.arrow")[0])
    with pytest.raises(fastio.SourceNotFound, match=r"shard-000002-[0-9a-f]+\.arrow"):
        warm(url, tmp_path / "cache")
    status = Cache(tmp_path / "cache").status()
    assert (status.claims, status.processes) == (0, 0)


@pytest.mark.parametrize("nothing", ["memory://warm/nothing", "nonsense://warm"])
def test_what_is_no_dataset_is_refused(nothing: str, tmp_path: Path) -> None:
    with pytest.raises((DatasetNotFound, StoreError)):
        warm(nothing, tmp_path / "cache")


def test_a_folder_of_something_else_is_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CacheError, match=r"notes\.txt"):
        warm(url, tmp_path)


def test_a_loader_that_runs_keeps_what_it_needs(url: str, tmp_path: Path) -> None:
    other = "memory://warm/large"
    noise = np.random.default_rng(3).integers(0, 256, (120, 120, 3), dtype=np.uint8)
    fastio.pack([(noise, n) for n in range(120)], other, overwrite=True)
    cache = Cache(tmp_path / "cache", 6_000_000)
    with fastio.Loader(url, batch_size=20, shuffle=True, seed=0, cache=cache) as loader:
        batches = iter(loader)
        rows = [int(n) for n in next(batches)["label"]]
        assert not warm(other, Cache(tmp_path / "cache", 6_000_000)).complete
        rows += [int(n) for batch in batches for n in batch["label"]]
    assert sorted(rows) == list(range(ROWS))
    cache.close()


def test_the_command_says_what_it_did(url: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    arguments = ["cache", "warm", url, folder, "--budget", "50MB", "--json", "--quiet"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["complete"]
    assert found["rows_staged"] == ROWS


def test_requests_grow_in_number_while_a_writer_is_free_and_shrink_while_none_is() -> None:
    pace = Pace(8)
    assert pace.limit == 6
    for _ in range(20):
        with pace.request():
            pass
        with pace.write():
            pass
    assert pace.limit == 8

    def write_late() -> None:
        with pace.write():
            pass

    late = threading.Thread(target=write_late)
    with ExitStack() as writers:
        for _ in range(3):
            writers.enter_context(pace.write())
        late.start()
        while pace.limit == 8:
            time.sleep(0.001)
        assert pace.limit == 7
        assert late.is_alive()
    late.join(60)
    assert not late.is_alive()
