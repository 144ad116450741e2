"""fastio cache: what it holds is told, pruned, cleared and checked; foreign files stay."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import fastio
from fastio import Cache, OptionError, warm
from fastio.cache import CacheFolder
from fastio.cli import main
from fastio.cli.parsing import parse_storage_options

URLS = ("memory://cache-cli/first", "memory://cache-cli/second")


@pytest.fixture(scope="module", autouse=True)
def datasets() -> None:
    """Two datasets of 30 images."""
    for seed, url in enumerate(URLS):
        noise = np.random.default_rng(seed).integers(0, 256, (30, 100, 100, 3), dtype=np.uint8)
        fastio.pack([(noise[n], n) for n in range(30)], url, overwrite=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache that holds both; the second was used last."""
    for url in URLS:
        assert warm(url, tmp_path / "cache").complete
    return tmp_path / "cache"


def run(*arguments: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    result = CliRunner().invoke(main, ["cache", *(str(argument) for argument in arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def run_json(*arguments: Any) -> Any:
    code, out, _ = run(*arguments, "--json")
    assert code == 0
    return json.loads(out)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "data").rglob("*") if path.is_file())


@pytest.fixture
def other(folder: Path) -> Iterator[CacheFolder]:
    """Another process, as the cache sees it."""
    opened = CacheFolder(folder)
    yield opened
    opened.close()


def test_status_tells_what_there_is_of_each_dataset(folder: Path) -> None:
    found = run_json("status", folder)
    assert found["pieces"] == len(files(folder))
    on_disk = sum(-(-path.stat().st_size // 4096) * 4096 for path in files(folder))
    assert found["bytes"] == on_disk == sum(dataset["bytes"] for dataset in found["datasets"])
    assert [dataset["url"] for dataset in found["datasets"]] == list(URLS)
    assert {(dataset["rows"], dataset["share"]) for dataset in found["datasets"]} == {(30, 1.0)}
    assert found["fetched_bytes"] == sum(path.stat().st_size for path in files(folder))
    assert (found["processes"], found["claims"], found["evicted"]) == (0, 0, 0)
    assert found["free_bytes"] > 0


def test_status_counts_hits_and_misses(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    for _ in range(2):
        with fastio.Loader(URLS[0], batch_size=10, cache=folder) as loader:
            assert sum(len(batch[1]) for batch in loader) == 30
    found = run_json("status", folder)
    assert found["hits"] > 0
    assert found["misses"] > 0
    assert found["hit_rate"] == found["hits"] / (found["hits"] + found["misses"])


def test_status_tells_who_is_there(folder: Path, other: CacheFolder) -> None:
    source = other.source(URLS[0], "0" * 16, 30, 7, 1000)
    assert other.claim(source, {0: 10, 1: 10}) == {0: "mine", 1: "mine"}
    found = run_json("status", folder)
    assert (found["processes"], found["claims"]) == (1, 2)


def test_status_reads_well(folder: Path) -> None:
    code, out, _ = run("status", folder)
    assert code == 0
    assert f"dataset      {URLS[0]}\n  100.0% of 30 samples" in out
    assert "0 other processes" in out


@pytest.mark.parametrize("command", ["status", "prune", "clear", "verify"])
def test_a_folder_that_is_no_cache_is_left_alone(command: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("mine")
    more = ["--to", "1KB"] if command == "prune" else []
    told = {tmp_path: "it has no file fastio-cache.json", tmp_path / "nothing": "does not exist"}
    for folder, problem in told.items():
        code, _, error = run(command, folder, *more)
        assert code == 1
        assert problem in " ".join(error.split())
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "mine"]


def test_prune_deletes_what_was_used_longest_ago(folder: Path) -> None:
    before = run_json("status", folder)
    second = before["datasets"][1]
    removed = run_json("prune", folder, "--to", str(second["bytes"]))
    assert removed["bytes"] == before["bytes"] - second["bytes"]
    after = run_json("status", folder)
    assert [dataset["url"] for dataset in after["datasets"]] == [URLS[1]]
    assert after["bytes"] == second["bytes"]
    assert after["pieces"] == len(files(folder))


def test_prune_leaves_what_fits(folder: Path) -> None:
    assert run_json("prune", folder, "--to", "1GB") == {"pieces": 0, "bytes": 0}


def test_prune_needs_a_size(folder: Path) -> None:
    code, _, error = run("prune", folder, "--to", "much")
    assert code == 2
    assert "to 'much' is not a size" in error
    assert run("prune", folder)[0] == 2


def test_clear_deletes_all_pieces_and_no_foreign_file(folder: Path) -> None:
    foreign = [folder / "notes.txt", folder / "data" / "notes.txt", files(folder)[0].parent / "x"]
    for path in foreign:
        path.write_text("mine")
    before = run_json("status", folder)
    removed = run_json("clear", folder)
    assert removed == {"pieces": before["pieces"], "bytes": before["bytes"]}
    assert files(folder) == sorted(foreign[1:])
    assert foreign[0].exists()
    assert run_json("status", folder)["bytes"] == 0


def test_clear_of_one_dataset_leaves_the_other(folder: Path) -> None:
    run_json("clear", folder, "--dataset", URLS[0] + "/")
    (left,) = run_json("status", folder)["datasets"]
    assert left["url"] == URLS[1]
    assert warm(URLS[0], folder).complete


def test_clear_takes_the_relative_path_of_local_data(
    folder: Path, other: CacheFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = other.source(str(Path("photos").absolute()), "1" * 16, 30, 7, 1000)
    other.claim(source, {0: 10})
    assert other.store(source, 0, [b"0123456789"])
    assert run_json("clear", folder, "--dataset", "photos/")["pieces"] == 1


def test_clear_of_an_unknown_dataset_names_those_that_are_there(folder: Path) -> None:
    code, _, error = run("clear", folder, "--dataset", "s3://elsewhere")
    assert code == 1
    assert all(url in error for url in URLS)


def test_clear_leaves_what_a_live_process_is_fetching(folder: Path, other: CacheFolder) -> None:
    source = other.source(URLS[0], "0" * 16, 30, 7, 1000)
    other.claim(source, {0: 10})
    run_json("clear", folder)
    assert other.store(source, 0, [b"0123456789"])
    assert other.file(source, 0).read_bytes() == b"0123456789"
    assert run_json("status", folder)["pieces"] == 1


def test_a_running_loader_goes_on_when_its_cache_is_cleared(folder: Path) -> None:
    with fastio.Loader(URLS[0], batch_size=5, shuffle=True, seed=0, cache=folder) as loader:
        batches = iter(loader)
        labels = [int(n) for n in next(batches)[1]]
        run_json("clear", folder)
        labels += [int(n) for batch in batches for n in batch[1]]
    assert sorted(labels) == list(range(30))


def test_verify_finds_nothing_wrong_with_a_good_cache(folder: Path) -> None:
    found = run_json("verify", folder, "--quiet")
    assert (found["pieces"], found["damaged"], found["strays"]) == (len(files(folder)), [], [])
    code, out, _ = run("verify", folder)
    assert code == 0
    assert "checked" in out


def test_verify_names_and_deletes_damaged_pieces(folder: Path) -> None:
    flipped, short, missing = files(folder)[:3]
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    short.write_bytes(short.read_bytes()[:-1])
    missing.unlink()
    code, _, error = run("verify", folder, "--quiet")
    assert code == 1
    for path, problem in ((flipped, "xxh3"), (short, "bytes, expected"), (missing, "missing")):
        (line,) = [line for line in error.splitlines() if str(path) in line]
        assert problem in line
    assert not {flipped, short, missing} & set(files(folder))
    assert run_json("verify", folder, "--quiet")["damaged"] == []
    assert all(warm(url, folder).complete for url in URLS)


def test_verify_deletes_stray_files_of_the_layout_only(folder: Path) -> None:
    stray = files(folder)[0].with_name("999")
    unknown = folder / "data" / ("0" * 16 + "-5") / "0" / "1"
    unknown.parent.mkdir(parents=True)
    foreign = [folder / "data" / "mine" / "0" / "1", stray.with_name("1.txt")]
    foreign[0].parent.mkdir(parents=True)
    for path in (stray, unknown, *foreign):
        path.write_text("1")
    found = run_json("verify", folder, "--quiet")
    assert sorted(found["strays"]) == sorted(map(str, (stray, unknown)))
    assert not stray.exists()
    assert not unknown.exists()
    assert all(path.exists() for path in foreign)


def test_a_cache_has_the_commands_as_methods(folder: Path) -> None:
    with Cache(folder) as cache:
        assert cache.status().hit_rate is None or cache.status().hits >= 0
        assert cache.prune("1GB").pieces == 0
        assert cache.verify().damaged == []
        assert cache.clear(URLS[0]).pieces > 0
        assert cache.clear().pieces > 0
        with pytest.raises(OptionError, match="not a size"):
            cache.prune("all")


def test_storage_options_are_words_or_json() -> None:
    assert parse_storage_options(None) is None
    assert parse_storage_options(["key=1=2", "anon=true"]) == {"key": "1=2", "anon": True}
    assert parse_storage_options(['{"a": {"b": 1}}', "c=d"]) == {"a": {"b": 1}, "c": "d"}


@pytest.mark.parametrize("wrong", ["word", "=value", "{no json"])
def test_storage_options_that_are_neither_are_wrong_usage(wrong: str, tmp_path: Path) -> None:
    assert run("warm", URLS[0], tmp_path / "cache", "--storage-options", wrong)[0] == 2


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_local_data_is_not_fetched(kind: str, tmp_path: Path) -> None:
    image = tmp_path / "photos" / "a" / "0.png"
    image.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(image)
    data = tmp_path / "photos"
    if kind == "tar":
        data = tmp_path / "photos.tar"
        with tarfile.open(data, "w") as tar:
            tar.add(image, "0.png")
    code, _, err = run("warm", data, tmp_path / "cache")
    assert code == 2
    assert f"{data} is local" in " ".join(err.split())
    with pytest.raises(OptionError, match="is local"):
        warm(str(data), tmp_path / "cache")
