"""A source is cut into units that depend on it alone, and no shard has samples of two units."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastio import Dataset, pack
from fastio.pack import packer
from fastio.packed import JOURNAL_NAME
from tests.pictures import write_folder
from tests.support import contents


def rows_of_shards(out: Path) -> list[int]:
    return list(Dataset(out).manifest.shard_rows)


class Texts:
    """Samples of these lengths."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> str:
        return "x" * self.lengths[index]


def journal_of(source: Any, out: Path, **options: Any) -> list[Any]:
    """The lines of the journal of a pack that stops before its manifest."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packer, "write_manifest", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(source, out, **options)
    return [json.loads(line) for line in (out / JOURNAL_NAME).read_text().splitlines()]


def test_units_have_equal_numbers_of_rows_and_about_the_size_of_a_shard(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(50, 150, 1000).tolist()
    pack(Texts(*lengths), tmp_path / "out", shard_size=5000)
    rows = rows_of_shards(tmp_path / "out")
    assert len(set(rows[:-1])) == 1
    assert sum(rows) == 1000
    sizes = Dataset(tmp_path / "out").manifest.shard_bytes[:-1]
    assert 4000 < np.mean(sizes) < 7000  # with the heads of the files


def test_samples_spread_over_the_source_decide_how_many_rows(tmp_path: Path) -> None:
    """And not the first ones, which may be of another kind."""
    pack(Texts(*[10_000] * 200, *[10] * 3800), tmp_path / "out", shard_size=10_000)
    assert len(rows_of_shards(tmp_path / "out")) < 350  # the size itself would make 204
    pack(Texts(*[10] * 3800, *[10_000] * 200), tmp_path / "other", shard_size=10_000)
    sizes = Dataset(tmp_path / "other").manifest.shard_bytes
    assert max(sizes) < 2.5 * 10_000 + 3000


def test_a_unit_much_larger_than_a_shard_becomes_several(tmp_path: Path) -> None:
    """Each row of the end reaches twice the size of a shard; no shard goes over a unit's end."""
    source = Texts(*[100] * 992, *[25_000] * 8)
    *units, end = journal_of(source, tmp_path / "out", shard_size=10_000)[2:]
    names = [entry["name"] for entry in end["entries"]]
    assert len(names) > 1
    assert names[1] == names[0].replace(".arrow", "-1.arrow")
    pack(source, tmp_path / "out", shard_size=10_000, resume=True)
    first = Dataset(tmp_path / "out").manifest.first_row
    assert sum(unit["end"]["samples"] for unit in units) in first
    assert [len(text) for text in Dataset(tmp_path / "out")] == list(source.lengths)


def test_the_plan_is_made_once(tmp_path: Path) -> None:
    """A pack that is resumed does not cut anew what a changed source would."""
    lengths = [100] * 300
    lines = journal_of(Texts(*lengths), tmp_path / "out", shard_size=3000)
    unit_rows = lines[1]["plan"]["unit_rows"]
    for name in contents(tmp_path / "out"):
        if name != JOURNAL_NAME and name > "shard-000001.arrow":
            (tmp_path / "out" / name).unlink()
    kept = (tmp_path / "out" / JOURNAL_NAME).read_bytes().splitlines(keepends=True)[:4]
    (tmp_path / "out" / JOURNAL_NAME).write_bytes(b"".join(kept))
    grown = [*lengths[: 2 * unit_rows], *[500] * (300 - 2 * unit_rows)]
    pack(Texts(*grown), tmp_path / "out", shard_size=3000, resume=True)
    found = Dataset(tmp_path / "out")
    assert [len(text) for text in found] == grown
    firsts = set(found.manifest.first_row.tolist())
    assert set(range(0, 300, unit_rows)) <= firsts


def test_units_of_fixed_sizes_are_known_beforehand(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(100, dtype=np.int64), "y": np.arange(100.0)})
    assert journal_of(table, tmp_path / "a", shard_size=160)[1]["plan"]["unit_rows"] == 10
    assert journal_of(range(100), tmp_path / "b", shard_size=80)[1]["plan"]["unit_rows"] == 10
    asked: list[int] = []

    class Numbers:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            asked.append(index)
            return index

    pack(Numbers(), tmp_path / "c", shard_size=80)
    assert asked == [0, *range(20)]  # the first one decides the schema


def test_what_is_read_once_is_cut_by_size(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield from Texts(*range(100))

    assert journal_of(texts(), tmp_path / "out", shard_size=500)[1]["plan"]["unit_rows"] is None


def test_a_unit_without_a_good_sample_has_no_shard(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", 1, 100)
    for path in sorted((folder / "class0").iterdir())[2:-2]:
        path.write_bytes(b"")
    options: dict[str, Any] = {"shard_size": 1000, "on_error": "skip"}
    lines = journal_of(folder, tmp_path / "out", **options)
    assert [] in [line["entries"] for line in lines[2:]]
    report = pack(folder, tmp_path / "out", **options, resume=True)
    assert (report.rows, len(report.skipped)) == (4, 96)
    pack(folder, tmp_path / "again", **options)
    assert contents(tmp_path / "again") == contents(tmp_path / "out")


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_threads_does_not_matter(tmp_path: Path, workers: int) -> None:
    folder = write_folder(tmp_path / "images", 3, 20)
    pack(folder, tmp_path / "expected", shard_size=4000, workers=2)
    pack(folder, tmp_path / "out", shard_size=4000, workers=workers)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
