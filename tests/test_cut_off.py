"""Shards that somebody cuts off while they are mapped: errors with a name, never a bus error."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import fastio
from fastio import Cache, Loader, ShardCorrupt, SourceNotFound
from fastio.engine.fields import Columns
from fastio.sources.table.direct import TableDataset
from fastio.sources.table.options import TableOptions
from tests.pictures import picture, save
from tests.servers import http_folder
from tests.staging_support import pack_table
from tests.support import open_loader

ROWS = 4000


def cut(path: Path) -> None:
    """Leaves no byte of a file, which stays the same file."""
    os.truncate(path, 0)


def numbers(loader: Loader) -> list[int]:
    """Every row's number, whose array is checked."""
    found = []
    for batch in loader:
        x = batch["x"].numpy()
        np.testing.assert_array_equal(x, np.repeat(x[:, :1], 8, axis=1))
        assert x[:, 0].tolist() == batch["y"].tolist()
        found += batch["y"].tolist()
    return found


def test_rows_of_a_local_shard_that_is_cut_off_are_named(tmp_path: Path) -> None:
    pack_table(tmp_path / "ds", ROWS)
    with Loader(tmp_path / "ds", batch_size=100, prefetch_factor=1) as loader:
        assert sorted(numbers(loader)) == list(range(ROWS))
        cut(tmp_path / "ds" / "shard-000001.arrow")
        with pytest.raises(ShardCorrupt, match=r"shard-000001\.arrow.*cut off"):
            numbers(loader)


@pytest.mark.parametrize("opened", [False, True], ids=("opened later", "opened before"))
def test_a_handler_that_was_set_back_is_put_in_its_place(tmp_path: Path, opened: bool) -> None:
    """As Lightning's Trainer does at its end, with all signals."""
    pack_table(tmp_path / "ds", ROWS)
    before = signal.getsignal(signal.SIGBUS)
    with Loader(tmp_path / "ds", batch_size=100, prefetch_factor=1) as loader:
        if opened:
            assert sorted(numbers(loader)) == list(range(ROWS))
        signal.signal(signal.SIGBUS, before or signal.SIG_DFL)
        if not opened:
            assert sorted(numbers(loader)) == list(range(ROWS))
        cut(tmp_path / "ds" / "shard-000001.arrow")
        with pytest.raises(ShardCorrupt, match=r"shard-000001\.arrow.*cut off"):
            numbers(loader)


def samples(kind: str) -> list[dict[str, Any]]:
    """Samples of one kind of field beside their numbers."""
    values: dict[str, Any] = {
        "numbers": lambda row: np.full(64, row),
        "text": lambda row: f"row {row} " * 40,
        "arrays": lambda row: np.full((row % 3 + 1, 64), row),
        "raw images": lambda row: np.full((16, 16, 3), row, np.uint8),
        "JPEGs": lambda row: save(picture(16, 16, row), "JPEG"),
        "PNGs": lambda row: save(picture(16, 16, row), "PNG"),
    }
    return [{"value": values[kind](row), "row": row} for row in range(40)]


def missing(path: Path) -> None:
    """Takes a file away."""
    path.unlink()


def other_head(path: Path) -> None:
    """Flips a bit of a file's head."""
    data = bytearray(path.read_bytes())
    data[40] ^= 4
    path.write_bytes(data)


KINDS = ("numbers", "text", "arrays", "raw images", "JPEGs", "PNGs")
_FIELD = {"arrays": fastio.Array("int64", (None, 64))}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a dataset of each kind."""
    folder: Path = tmp_path_factory.mktemp("packed")
    for kind in KINDS:
        schema = None
        if kind in _FIELD:
            schema = fastio.Schema({"value": _FIELD[kind], "row": fastio.Scalar("int64")})
        fastio.pack(samples(kind), folder / kind, shard_size=6000, schema=schema, codec="jpeg")
    return folder


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("damage", "is_open"), [(cut, True), (cut, False), (missing, False), (other_head, False)]
)
def test_what_is_wrong_with_a_whole_shard_is_no_error_of_samples(
    tmp_path: Path, packed: Path, damage: Any, is_open: bool, kind: str, on_error: Any
) -> None:
    """Its rows are no bad samples: leaving them out would train on a part of the data."""
    shutil.copytree(packed / kind, tmp_path / "ds")
    options: dict[str, Any] = {"ragged": {"value": "list"}} if kind == "arrays" else {}
    images = {"transforms": [fastio.Resize((8, 8))]} if kind[:3] in ("raw", "JPE", "PNG") else {}
    with open_loader(
        tmp_path / "ds", 4, prefetch_factor=1, num_workers=1, on_error=on_error, **options, **images
    ) as loader:
        if is_open:
            assert sum(len(batch["row"]) for batch in loader) == 40
        damage(tmp_path / "ds" / "shard-000001.arrow")
        with pytest.raises((ShardCorrupt, SourceNotFound), match=r"shard-000001\.arrow"):
            list(loader)
        assert loader.stats().skipped == loader.stats().replaced == 0


def test_gather_names_a_cut_off_shard_and_reads_it_anew_when_it_is_mended(tmp_path: Path) -> None:
    pack_table(tmp_path / "ds", ROWS)
    path = tmp_path / "ds" / "shard-000000.arrow"
    dataset = fastio.open(tmp_path / "ds")
    rows = np.arange(3)
    assert dataset.gather("y", rows).tolist() == [0, 1, 2]
    whole = path.read_bytes()
    cut(path)
    with pytest.raises(ShardCorrupt, match=r"shard-000000\.arrow was cut off while it was read"):
        dataset.gather("y", rows)
    path.write_bytes(whole)
    dataset = fastio.open(tmp_path / "ds")
    assert dataset.gather("y", rows).tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_table_file_that_is_cut_off_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x.{kind}"
    table = pa.table({"x": np.arange(50_000), "y": np.random.default_rng(0).random(50_000)})
    if kind == "parquet":
        pa.parquet.write_table(table, path, row_group_size=5000)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, 5000)
    with Loader(path, batch_size=100, shuffle=True, num_workers=1) as loader:
        assert sorted(np.concatenate([b["x"].numpy() for b in loader])) == list(range(50_000))
        cut(path)
        with pytest.raises(ShardCorrupt, match=rf"x\.{kind}"):
            list(loader)


def cut_everything(folder: Path) -> int:
    """Cuts off the pieces of data in a cache."""
    pieces = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 20_000]
    pieces = [path for path in pieces if "sqlite" not in path.name and "state" not in path.name]
    for path in pieces:
        cut(path)
    return len(pieces)


def test_shards_that_are_cut_off_in_the_cache_are_fetched_again(tmp_path: Path) -> None:
    pack_table(tmp_path / "ds", ROWS)
    cache = Cache(tmp_path / "cache")
    with http_folder(tmp_path) as url, Loader(f"{url}/ds", batch_size=100, cache=cache) as loader:
        assert sorted(numbers(loader)) == list(range(ROWS))
        assert cut_everything(tmp_path / "cache") > 3
        assert sorted(numbers(loader)) == list(range(ROWS))


def test_a_remote_dataset_fetches_again_what_was_cut_off_under_gather(tmp_path: Path) -> None:
    pack_table(tmp_path / "ds", ROWS)
    with http_folder(tmp_path) as url:
        dataset = fastio.open(f"{url}/ds", cache=tmp_path / "cache")
        rows = np.arange(0, ROWS, 7)
        assert dataset.gather("y", rows).tolist() == rows.tolist()
        assert cut_everything(tmp_path / "cache") > 3
        assert dataset.gather("y", rows).tolist() == rows.tolist()


class StillBroken:
    """A native slot whose first row failed."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slot, name)

    def failures(self) -> list[tuple[int, int, str]]:
        return [(0, 3, "cut off")]


@pytest.mark.parametrize(("broken", "is_told"), [(3, False), (4, True)])
def test_rows_are_bad_only_if_the_last_attempt_did_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int, is_told: bool
) -> None:
    pack_table(tmp_path / "ds", 50)
    gather = Columns.gather
    calls = iter(range(100))

    def failing(self: Columns, *arguments: Any) -> Any:
        slot = gather(self, *arguments)
        return StillBroken(slot) if next(calls) < broken else slot

    monkeypatch.setattr(Columns, "gather", failing)
    monkeypatch.setattr(Columns, "renew", lambda self, rows: True)
    with Loader(tmp_path / "ds", batch_size=50) as loader:
        if is_told:
            with pytest.raises(ShardCorrupt, match="cut off"):
                numbers(loader)
        else:
            assert numbers(loader) == list(range(50))


class LateLock:
    """A lock that another thread has first, which lets go of shard 0."""

    def __init__(self, columns: Any) -> None:
        self._columns, self._begun = columns, False

    def __enter__(self) -> None:
        if not self._begun:
            self._begun = True
            del self._columns._set[0]
            self._columns.table.unset(0)

    def __exit__(self, *error: object) -> None:
        pass


def test_a_shard_that_another_thread_lets_go_of_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_table(tmp_path / "ds", 50)
    gather = Columns.gather
    late = []

    def watched(self: Any, *arguments: Any) -> Any:
        self._always_kept = False
        if self._set:  # it was there when this thread looked
            self._lock = LateLock(self)
            late.append(self._lock)
        return gather(self, *arguments)

    monkeypatch.setattr(Columns, "gather", watched)
    with Loader(tmp_path / "ds", batch_size=10) as loader:
        assert numbers(loader) == list(range(50))
    assert len(late) == 4


def test_strings_of_an_arrow_file_stay_what_they_were_when_it_is_cut_off(tmp_path: Path) -> None:
    words = [f"row {n}" for n in range(ROWS)]
    table = pa.table({"text": words, "list": [[n] * (n % 3) for n in range(ROWS)]})
    path = tmp_path / "0.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    dataset = TableDataset([str(path)], TableOptions(), memory=1 << 24, threads=1)
    (rows,) = dataset.read(dataset.groups[0], None, False)
    cut(path)
    text = rows.ragged["text"]
    assert text.values.tobytes().decode() == "".join(words)
    assert rows.ragged["list"].values.tolist() == [n for n in range(ROWS) for _ in range(n % 3)]
