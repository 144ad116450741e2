"""Warming a cache with WebDataset tars: an epoch fetches nothing of the samples then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fastio
from fastio import Cache, TarDataset, warm
from fastio.cli import main
from tests.pictures import png
from tests.servers import FaultProxy
from tests.tars import write_tar

TARS, SAMPLES = 3, 40
ROWS = TARS * SAMPLES
PATTERN = "train-{000..002}.tar"
FIELDS = ("png", "cls")
MIB = 1 << 20
MOST_ASKED = 1024  # bytes that asking for the tars' sizes may take


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 MB of samples of one image, a number and a text; the last one has no text."""
    folder = tmp_path_factory.mktemp("tars")
    for number in range(TARS):
        rows = range(number * SAMPLES, (number + 1) * SAMPLES)
        members = [member for row in rows for member in sample(row)]
        write_tar(folder / f"train-{number:03}.tar", members[: -1 if number == 2 else None])
    return folder


def sample(row: int) -> list[tuple[str, bytes]]:
    return [
        (f"{row:06}.png", png(90, 100, seed=row)),
        (f"{row:06}.cls", str(row).encode()),
        (f"{row:06}.txt", f"sample {row}".encode()),
    ]


def epoch(proxy: FaultProxy, cache: Path, **options: Any) -> dict[int, bytes]:
    """The pixels of all samples, by their numbers."""
    url = f"{proxy.url}/{PATTERN}"
    with fastio.Loader(
        url, 8, shuffle=True, seed=0, fields=FIELDS, cache=cache, **options
    ) as loader:
        return {
            int(number): image.numpy().tobytes()
            for batch in loader
            for number, image in zip(batch["cls"], batch["png"], strict=True)
        }


def index_only(proxy: FaultProxy, cache: Path) -> None:
    """Makes the pass over the tars' headers, so that it is not counted."""
    TarDataset(f"{proxy.url}/{PATTERN}", cache=Cache(cache), fields=FIELDS).close()
    proxy.forget()


def pixels(root: Path) -> dict[int, bytes]:
    with fastio.TarDataset(str(root / PATTERN), fields=FIELDS) as dataset:
        images = (np.moveaxis(dataset.image("png", row), 2, 0) for row in range(ROWS))
        return {row: image.tobytes() for row, image in enumerate(images)}


def test_an_epoch_of_warm_tars_fetches_nothing_of_the_samples(
    proxy: FaultProxy, root: Path, tmp_path: Path
) -> None:
    report = warm(f"{proxy.url}/{PATTERN}", tmp_path / "cache", fields=FIELDS)
    assert report.complete
    assert (report.rows, report.rows_staged, report.damaged) == (ROWS, ROWS, [])
    assert report.bytes == report.bytes_fetched > 2 * MIB
    proxy.forget()
    assert epoch(proxy, tmp_path / "cache") == pixels(root)
    assert proxy.sent() < MOST_ASKED


def test_small_neighbours_come_by_one_request(proxy: FaultProxy, tmp_path: Path) -> None:
    index_only(proxy, tmp_path / "cache")
    report = warm(f"{proxy.url}/{PATTERN}", tmp_path / "cache", fields=FIELDS)
    assert len(proxy.answers(".tar", method="GET")) == TARS  # and a list of the tars
    assert proxy.sent() < report.bytes + ROWS * 4096


def test_what_is_there_is_not_fetched_again(proxy: FaultProxy, tmp_path: Path) -> None:
    first = warm(f"{proxy.url}/{PATTERN}", tmp_path / "cache", fields=FIELDS)
    proxy.forget()
    again = warm(f"{proxy.url}/{PATTERN}", tmp_path / "cache", fields=FIELDS)
    assert (again.bytes, again.bytes_fetched, again.complete) == (first.bytes, 0, True)
    assert proxy.sent() < MOST_ASKED


def test_a_small_budget_holds_the_beginning(proxy: FaultProxy, root: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 2 * MIB)
    report = warm(f"{proxy.url}/{PATTERN}", cache, fields=FIELDS)
    assert 0 < report.rows_staged < ROWS
    assert cache.status().bytes <= 2 * MIB
    assert not cache.verify().damaged
    assert epoch(proxy, tmp_path / "cache") == pixels(root)
    cache.close()


@pytest.mark.parametrize("fault", ["truncate", "reset", "status"])
def test_faults_on_the_way_are_not_noticed(
    fault: str, proxy: FaultProxy, root: Path, tmp_path: Path
) -> None:
    index_only(proxy, tmp_path / "cache")
    proxy.fail(fault, next=2)
    assert warm(f"{proxy.url}/{PATTERN}", tmp_path / "cache", fields=FIELDS).complete
    assert proxy.struck()[fault] == 2
    assert epoch(proxy, tmp_path / "cache") == pixels(root)


def test_samples_that_lack_a_field_are_named(proxy: FaultProxy, tmp_path: Path) -> None:
    with pytest.raises(fastio.SchemaError, match=r"it has no \.txt"):
        warm(f"{proxy.url}/{PATTERN}", tmp_path / "cache")


def test_progress_adds_up_to_what_is_staged(proxy: FaultProxy, tmp_path: Path) -> None:
    steps: list[int] = []
    report = warm(f"{proxy.url}/{PATTERN}", tmp_path / "cache", fields=FIELDS, advance=steps.append)
    assert sum(steps) == report.bytes


def test_the_command_reads_the_headers_once_and_says_what_it_did(
    proxy: FaultProxy, root: Path, tmp_path: Path
) -> None:
    arguments = ["cache", "warm", f"{proxy.url}/{PATTERN}", str(tmp_path / "cache")]
    options = ["--field", "png", "--field", "cls", "--json", "--quiet"]
    result = CliRunner().invoke(main, [*arguments, *options])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["complete"]
    assert found["rows_staged"] == ROWS
    total = sum(path.stat().st_size for path in root.iterdir())
    assert proxy.sent() < 2.5 * total  # headers with what lies between them, and samples
    proxy.forget()
    assert len(epoch(proxy, tmp_path / "cache")) == ROWS
    assert proxy.sent() < MOST_ASKED
