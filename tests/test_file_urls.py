"""file: URLs are the paths that they name, wherever a path can be given."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from typer.testing import CliRunner

import fastio
from fastio import diagnose, train
from fastio.cli import main
from fastio.store import local_path
from tests.support import numbered_folder
from tests.tars import write_tars

NAME = "a folder 100% größe #1?"
ROWS = 5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with characters that URLs encode. Nothing is written to the working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    place = tmp_path / NAME
    place.mkdir()
    yield place
    assert not os.listdir(tmp_path / "here")


def rows() -> list[dict[str, Any]]:
    return [{"x": np.int64(row), "text": f"row {row}"} for row in range(ROWS)]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("file:///y", "/y"),
        ("file://localhost/a/b", "/a/b"),
        ("FILE://LocalHost/a", "/a"),
        ("file:/a", "/a"),
        ("local:///a", "/a"),
        ("file:///a%20b/%C3%A9%25", "/a b/é%"),
        ("file:///a/%FF", os.fsdecode(b"/a/\xff")),
        ("file:///a/*.tar?x#y", "/a/*.tar?x#y"),
        ("file:///", "/"),
        (Path("file:///a%20b"), "/a b"),
        *((same, same) for same in ("/a%20b", "file:a", "file", "s3://b/file:///x", "", 3, None)),
        ("simplecache::file:///x", "simplecache::file:///x"),
        (Path("/a%20b"), Path("/a%20b")),
    ],
)
def test_a_file_url_is_a_path_and_nothing_else_is(given: Any, path: Any) -> None:
    assert local_path(given) == path


@pytest.mark.parametrize("make", ["from_path", "localhost"])
def test_any_path_survives_as_a_url(make: str, folder: Path) -> None:
    url = folder.as_uri()
    if make == "localhost":
        url = url.replace("file://", "file://localhost")
    assert local_path(url) == str(folder)


def test_a_file_of_another_host_is_an_error_that_says_what_to_write(folder: Path) -> None:
    for use in (fastio.open, fastio.Loader, lambda url: fastio.pack(rows(), url), fastio.Cache):
        with pytest.raises(fastio.SourceNotFound, match=r"host 'y'.*file:///y/z"):
            use("file://y/z")


def test_packed_data_is_written_read_and_cleaned_by_url(folder: Path) -> None:
    url = (folder / "packed").as_uri()
    fastio.pack(rows(), url)
    assert (folder / "packed" / "manifest.arrow").exists()
    for dataset in (fastio.open(url), fastio.Dataset(url)):
        with dataset:
            assert [row["x"] for row in dataset] == list(range(ROWS))
    with fastio.Loader(url, ROWS) as loader:
        assert loader.path == "native"
        assert next(iter(loader))["x"].tolist() == list(range(ROWS))
    fastio.pack(rows(), url, append=True)
    with pytest.raises(fastio.DatasetExists):
        fastio.pack(rows(), url)
    fastio.gc(url, keep=1)
    with fastio.open(folder / "packed") as dataset:
        assert len(dataset) == 2 * ROWS
        writer_url = (folder / "written").as_uri()
        with fastio.Writer(writer_url, dataset.schema) as writer:
            writer.write(dataset[0])
    assert len(fastio.open(folder / "written")) == 1


def write_table(folder: Path) -> str:
    pa_parquet.write_table(pa.table({"x": range(ROWS)}), folder / "t.parquet")
    return (folder / "t.parquet").as_uri()


def write_images(folder: Path) -> str:
    return numbered_folder(folder / "images", (3, 2)).as_uri()


def write_tar(folder: Path) -> str:
    write_tars(folder / "tars", (ROWS,))
    return (folder / "tars").as_uri()


MAKE: dict[str, Callable[[Path], str]] = {
    "table": write_table,
    "images": write_images,
    "tars": write_tar,
}


@pytest.mark.parametrize("make", MAKE)
def test_other_data_is_opened_and_packed_by_url(make: str, folder: Path) -> None:
    url = MAKE[make](folder)
    with fastio.open(url) as dataset:
        assert len(dataset) == ROWS
    fastio.pack(url, (folder / "packed").as_uri())
    assert len(fastio.open(folder / "packed")) == ROWS


def test_lists_and_patterns_may_be_urls(folder: Path) -> None:
    for number in range(2):
        pa_parquet.write_table(pa.table({"x": range(ROWS)}), folder / f"{number}.parquet")
    urls = [(folder / f"{number}.parquet").as_uri() for number in range(2)]
    pattern = folder.as_uri() + "/*.parquet"
    for source in (urls, pattern):
        assert len(fastio.open(source)) == 2 * ROWS
    fastio.pack(urls, folder / "packed")
    assert len(fastio.open(folder / "packed")) == 2 * ROWS


def test_a_list_of_images_may_name_them_by_url(folder: Path) -> None:
    images = numbered_folder(folder / "images", (2, 1))
    names = sorted(images.rglob("*.jpg"))
    lines = ["path,label", *(f"{path.as_uri()},{row}" for row, path in enumerate(names))]
    (folder / "list.csv").write_text("\n".join(lines))
    fastio.pack((folder / "list.csv").as_uri(), folder / "packed")
    assert len(fastio.open(folder / "packed")) == len(names) == 3


def test_texts_and_tokenizers_may_be_urls(folder: Path) -> None:
    (folder / "a.txt").write_text("some text")
    url = (folder / "a.txt").as_uri()
    for number, source in enumerate((url, [url], folder.as_uri())):
        packed = folder.parent / f"packed-{number}"
        fastio.pack(source, packed, tokenizer="bytes")
        assert len(fastio.open(packed)) == 1


def test_caches_and_exports_may_be_urls(folder: Path) -> None:
    assert fastio.Cache((folder / "cache").as_uri()).path == folder / "cache"
    fastio.pack(write_images(folder), folder / "packed")
    fastio.export((folder / "packed").as_uri(), (folder / "out").as_uri())
    assert len(fastio.open(folder / "out")) == ROWS


def test_commands_take_urls(folder: Path) -> None:
    source, packed = write_images(folder), (folder / "packed").as_uri()
    commands = [
        ["pack", source, packed],
        ["info", packed],
        ["verify", "--deep", packed],
        ["show", packed, "--out", str(folder / "sheet.png")],
        ["export", packed, (folder / "out").as_uri()],
        ["gc", packed],
        ["doctor", packed],
    ]
    for command in commands:
        done = CliRunner().invoke(main, command)
        assert done.exit_code in ((0, 3) if command[0] == "doctor" else (0,)), done.output
    assert (folder / "packed" / "manifest.arrow").exists()
    assert (folder / "out").exists()


def test_folders_of_training_and_of_probes_may_be_urls(folder: Path) -> None:
    options = train.Options("data", checkpoint_dir=folder.as_uri(), tensorboard=folder.as_uri())
    assert options.checkpoint_dir == options.tensorboard == str(folder)
    use = diagnose.Use(cache=folder.as_uri(), scratch=folder.as_uri())
    assert use.cache == use.scratch == str(folder)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda url: train.Options("data", checkpoint_dir=url), "checkpoint_dir"),
        (lambda url: diagnose.Use(scratch=url), "scratch"),
        (lambda url: fastio.Cache(url), "the folder of a cache"),
        (lambda url: fastio.export(url, url), "dst"),
    ],
)
def test_the_url_of_a_store_is_no_folder_of_this_machine(
    make: Callable[[str], Any], option: str, folder: Path
) -> None:
    with pytest.raises(fastio.OptionError, match=f"^{option} must be a path on this machine"):
        make("s3://bucket/folder")


def test_files_that_commands_write_and_read_may_be_urls(folder: Path) -> None:
    images = write_images(folder)
    done = CliRunner().invoke(main, ["show", images, "--out", (folder / "a b.png").as_uri()])
    assert done.exit_code == 0, done.output
    assert (folder / "a b.png").exists()
    with fastio.Loader(images, 2, transforms={"image": fastio.CenterCrop(8)}) as loader:
        list(loader)
        (folder / "s.json").write_text(json.dumps(loader.stats().to_dict()))
    done = CliRunner().invoke(main, ["doctor", "--stats", (folder / "s.json").as_uri()])
    assert done.exit_code in (0, 3), done.output


@pytest.mark.parametrize(
    "command",
    [
        ["show", ".", "--out", "s3://bucket/sheet.png"],
        ["bench", ".", "--html", "s3://bucket/page.html"],
        ["bench", ".", "--json", "s3://bucket/page.json"],
        ["doctor", "--stats", "s3://bucket/stats.json"],
        ["doctor", ".", "--scratch", "s3://bucket/scratch"],
        ["train", "tabular", ".", "--checkpoint-dir", "s3://bucket/run"],
    ],
)
def test_commands_say_which_option_is_local(command: list[str], folder: Path) -> None:
    done = CliRunner().invoke(main, command, terminal_width=200)
    assert done.exit_code in (1, 2)
    told = " ".join(done.output.replace("│", "").split())
    assert "must be a path on this machine, not a URL" in told
    assert command[-2].strip("-").replace("-", "_") in told.replace("-", "_")


@pytest.mark.parametrize("url", ["file://out", "file://", "file://localhost"])
def test_a_url_without_a_path_is_no_folder_at_the_root(url: str) -> None:
    with pytest.raises(fastio.SourceNotFound, match=r"host 'out'.*file:///out|has no path"):
        fastio.open(url)
