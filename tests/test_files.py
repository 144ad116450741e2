"""Files are written whole or not at all, through no link that others laid; walks come to an end."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fastio
from fastio import PackError
from fastio.cli import main
from fastio.diagnose.report import ladder_report, write_page
from fastio.packed import JOURNAL_NAME
from fastio.packed.shard_writer import write_shard
from fastio.runtime.files import (
    is_stream,
    read_file,
    remove_leftovers,
    second_name,
    walk,
    whole_file,
    write_output,
)
from fastio.train.checkpoint import keep, save
from tests.children import run_code
from tests.pictures import jpeg, write_folder

VICTIM = b"another user's file"


def planted(folder: Path, *names: str) -> Path:
    """A file elsewhere, to which links lead from the names that a writer may take."""
    victim = folder.parent / "victim"
    victim.write_bytes(VICTIM)
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).symlink_to(victim)
    return victim


def a_shard(folder: Path) -> None:
    write_shard(folder / "shard-000000.arrow", pa.record_batch({"x": np.arange(3)}))


def a_checkpoint(folder: Path) -> None:
    save({"model": {}}, folder / "last.pt")
    keep(folder / "last.pt", folder / "best.pt")


def a_report(folder: Path) -> None:
    write_page(ladder_report([], {}), folder / "report.html")


def a_pack(folder: Path) -> None:
    fastio.pack([1, 2, 3], folder, overwrite=True)


def tars(folder: Path) -> None:
    fastio.pack([1, 2, 3], folder.parent / "packed")
    fastio.export(folder.parent / "packed", folder, to="webdataset", overwrite=True)


def exported_files(folder: Path) -> None:
    samples = [{"image": jpeg(), "caption": "a"}]
    fastio.pack(samples, folder.parent / "packed")
    fastio.export(folder.parent / "packed", folder, overwrite=True)


def a_sheet(folder: Path) -> None:
    images = write_folder(folder.parent / "images", 1, 1)
    done = CliRunner().invoke(main, ["show", str(images), "--out", str(folder / "sheet.png")])
    assert done.exit_code == 0, done.output


WRITERS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "shard": (a_shard, ("shard-000000.arrow", "shard-000000.arrow.tmp")),
    "checkpoint": (a_checkpoint, ("last.pt", "last.pt.tmp", "best.pt", "best.pt.tmp")),
    "report": (a_report, ("report.html", f".report.html.{os.getpid()}")),
    "pack": (a_pack, ("manifest.arrow", "manifest.arrow.tmp", "shard-000000.arrow.tmp")),
    "tars": (tars, ("000000.tar", "000000.tar.tmp")),
    "export": (exported_files, ("samples.jsonl",)),
    "sheet": (a_sheet, ("sheet.png",)),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_follows_no_link_that_lies_at_its_name(writer: str, tmp_path: Path) -> None:
    write, names = WRITERS[writer]
    victim = planted(tmp_path / "folder", *names)
    write(tmp_path / "folder")
    assert victim.read_bytes() == VICTIM
    written = [path for path in (tmp_path / "folder").rglob("*") if not path.is_symlink()]
    assert any(path.is_file() for path in written)


def test_an_exported_image_replaces_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", 1, 1)
    fastio.pack(images, tmp_path / "packed")
    (tmp_path / "out" / "class0").mkdir(parents=True)
    victim = planted(tmp_path / "out" / "class0", "0.jpg", "000000.jpg")
    fastio.export(tmp_path / "packed", tmp_path / "out", overwrite=True)
    assert victim.read_bytes() == VICTIM


def test_a_class_folder_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", 1, 1)
    fastio.pack(images, tmp_path / "packed")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "class0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PackError, match="is a link"):
        fastio.export(tmp_path / "packed", tmp_path / "out", overwrite=True)
    assert not os.listdir(tmp_path / "elsewhere")


def test_a_journal_that_is_a_link_is_refused(tmp_path: Path) -> None:
    victim = planted(tmp_path / "out", JOURNAL_NAME)
    with pytest.raises(PackError):
        fastio.pack([1, 2, 3], tmp_path / "out", resume=True)
    assert victim.read_bytes() == VICTIM


def test_a_staging_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    from fastio.pack.remote import RemoteDestination

    name = RemoteDestination("memory://staged/data", None, tmp_path)._make_folder().name
    (tmp_path / name).rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PackError, match="is a link"):
        fastio.pack([1, 2, 3], "memory://staged/data", staging=tmp_path)


def test_what_raises_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")

    def interrupted() -> None:
        with whole_file(tmp_path / "file") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "file").read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


def test_names_of_files_being_written_differ_each_time(tmp_path: Path) -> None:
    with whole_file(tmp_path / "file"), whole_file(tmp_path / "file"):
        names = os.listdir(tmp_path)
        assert len(names) == len(set(names)) == 2


def test_a_second_name_is_given_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    second_name(tmp_path / "a", tmp_path / "b")
    second_name(tmp_path / "a", tmp_path / "b")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


KILLED = """
import os, signal, sys
from fastio.runtime.files import WholeFile
WholeFile(sys.argv[1]).file.write(b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_killed_writers_go_and_those_at_work_keep_theirs(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run_code(KILLED, path)
    assert len(os.listdir(tmp_path)) == 1
    with whole_file(path) as file:
        assert remove_leftovers(tmp_path) == 1
        file.write(b"whole")
    assert path.read_bytes() == b"whole"


def test_an_output_may_be_a_pipe_or_an_open_file(tmp_path: Path) -> None:
    code = "from fastio.runtime.files import write_output; write_output('/dev/stdout', b'told')"
    (tmp_path / "out").touch()
    assert run_code(code).stdout == "told"
    assert is_stream("/dev/null")
    assert not is_stream(tmp_path / "out")
    write_output("/dev/null", b"told")
    assert Path("/dev/null").is_char_device()


def test_a_json_that_is_a_link_is_replaced(tmp_path: Path) -> None:
    victim = planted(tmp_path / "folder", "found.json")
    write_output(tmp_path / "folder" / "found.json", b"{}")
    assert victim.read_bytes() == VICTIM
    assert json.loads((tmp_path / "folder" / "found.json").read_bytes()) == {}


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path in (
        tmp_path / "pipe",
        tmp_path / "socket",
        tmp_path / "circle",
        tmp_path,
        "/dev/zero",
    ):
        with pytest.raises(OSError, match=r"not a regular file|No such device|symbolic links"):
            read_file(path)


def test_a_walk_names_the_link_that_leads_round_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match=r"folder that contains it.*up"):
        list(walk(tmp_path))


def test_a_walk_through_links_that_double_at_each_level_ends(tmp_path: Path) -> None:
    for level in range(30):
        (tmp_path / f"{level}").mkdir()
        for name in "ab":
            (tmp_path / f"{level}" / name).symlink_to(tmp_path / f"{level + 1}")
    (tmp_path / "30").mkdir()
    with pytest.raises(OSError, match="links lead to it"):
        list(walk(tmp_path / "0"))


def test_two_links_to_one_folder_are_walked_both(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "x.jpg").touch()
    (tmp_path / "root").mkdir()
    for name in ("train", "again"):
        (tmp_path / "root" / name).symlink_to(tmp_path / "images")
    assert sum(len(names) for _, _, names in walk(tmp_path / "root")) == 2
