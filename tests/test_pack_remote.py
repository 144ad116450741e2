"""Packing to a URL: the bytes of a local pack, uploaded as it goes, whole or resumable."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from typer.testing import CliRunner

import fastio
from fastio import DatasetExists, DatasetNotFound, OptionError, PackError, SampleError
from fastio.cli import main
from fastio.pack import stored_journal
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME
from fastio.store import Store, open_store
from tests import support
from tests.children import run_code
from tests.pictures import write_folder
from tests.servers import S3, http_folder, s3_server
from tests.support import without_ids

SHARD_SIZE = 2000
URL = "memory://packs/dataset"

# Packs, and kills itself right before the given write of an object.
KILLER = """
import json, sys

source, destination, kill_at, shard_size, options = sys.argv[1:]
from fastio.pack import pack
from fastio.store import Store
from tests.children import killed_at

killed_at(int(kill_at), Store, ("write", "replace"))
pack(source, destination, shard_size=int(shard_size), storage_options=json.loads(options))
"""


class Killed(BaseException):
    """Stands for the end of the process: nothing reaches the store behind it."""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").rm("/packs", recursive=True) if contents(URL) else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images")


@pytest.fixture
def expected(folder: Path, tmp_path: Path) -> dict[str, bytes | str]:
    """What a local pack of the folder consists of."""
    fastio.pack(folder, tmp_path / "local", shard_size=SHARD_SIZE)
    return without_ids(support.contents(tmp_path / "local"))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    pytest.importorskip("moto", reason="S3 is moto's here")
    with s3_server() as server:
        yield server


def contents(url: str, options: dict[str, Any] | None = None) -> dict[str, bytes]:
    """The objects of a folder by name."""
    store = open_store(url, options)
    try:
        return {name: bytes(store.read(name)) for name, _ in store.list()}
    except fastio.SourceNotFound:
        return {}


def packed(url: str = URL, options: dict[str, Any] | None = None) -> dict[str, bytes | str]:
    """Returns what does not depend on the place of a folder, by object name."""
    return without_ids(contents(url, options))


def pack(source: Any, url: str = URL, **options: Any) -> fastio.PackReport:
    return fastio.pack(source, url, **{"shard_size": SHARD_SIZE, **options})


def test_the_store_gets_the_bytes_of_a_local_pack(
    folder: Path, expected: dict[str, bytes | str]
) -> None:
    report = pack(folder)
    assert packed() == expected
    assert report.shards == len(expected) - 1 > 2
    assert report.bytes == sum(len(d) for name, d in expected.items() if name != MANIFEST_NAME)


def test_s3_gets_them_too(folder: Path, expected: dict[str, bytes | str], s3: S3) -> None:
    url = s3.bucket("packs") + "/some/where"
    pack(folder, url, storage_options=s3.options())
    assert packed(url, s3.options()) == expected
    with fastio.open(url, storage_options=s3.options()) as dataset:
        assert len(dataset) == 15
        assert [check.problem for check in dataset.verify()] == [None] * dataset.num_shards


def test_a_writer_takes_a_url(tmp_path: Path) -> None:
    schema = fastio.Schema({"number": fastio.Scalar("int64")})
    with fastio.Writer(URL, schema, shard_size=80, staging=tmp_path) as writer:
        for number in range(40):
            writer.write({"number": number})
    with fastio.open(URL) as dataset:
        assert [sample["number"] for sample in dataset] == list(range(40))
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_fails_deletes_what_it_uploaded() -> None:
    fsspec.filesystem("memory").pipe_file("/packs/dataset/notes.txt", b"mine")
    schema = fastio.Schema({"number": fastio.Scalar("int64")})

    def write_half() -> None:
        with fastio.Writer(URL, schema, shard_size=80) as writer:
            for number in range(40):
                writer.write({"number": number})
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        write_half()
    assert set(contents(URL)) == {"notes.txt"}


def test_shards_are_deleted_here_when_they_are_there(folder: Path, tmp_path: Path) -> None:
    seen: list[set[str]] = []
    default = tmp_path / "default"  # other processes of pytest pack to the real one
    default.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(default))
        write = Store.write

        def noted(self: Store, name: str, data: Any) -> None:
            write(self, name, data)
            seen.append({path.name for path in tmp_path.glob("staging/*/shard-*")})

        patch.setattr(Store, "write", noted)
        pack(folder, staging=tmp_path / "staging", shard_size=1000)
    assert max(len(names) for names in seen) <= 7
    assert list((tmp_path / "staging").iterdir()) == []
    assert list(default.iterdir()) == []


def test_the_manifest_comes_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = Store.write

    def noted(self: Store, name: str, data: Any) -> None:
        if name == MANIFEST_NAME:
            with pytest.raises(DatasetNotFound):
                fastio.open(URL)
        write(self, name, data)
        written.append(name)

    monkeypatch.setattr(Store, "write", noted)
    pack(folder)
    assert written[-1] == MANIFEST_NAME
    assert written.count(MANIFEST_NAME) == 1
    for name in {name for name in written if name.startswith("shard")}:
        assert written.index(JOURNAL_NAME) < written.index(name)


def test_a_dataset_there_is_replaced_only_if_asked(folder: Path) -> None:
    pack(range(50), shard_size=80)
    before = contents(URL)
    for resume in (False, True):
        with pytest.raises(DatasetExists, match="overwrite"):
            pack(folder, resume=resume)
    assert contents(URL) == before
    fsspec.filesystem("memory").pipe_file("/packs/dataset/notes.txt", b"mine")
    pack([1, 2, 3], overwrite=True)
    assert set(packed()) == {MANIFEST_NAME, "shard-000000.arrow", "notes.txt"}


@pytest.mark.parametrize("written", ["s3a://overwritten/data/", "S3://overwritten//data"])
def test_a_dataset_that_is_read_is_not_overwritten_by_another_spelling(
    written: str, s3: S3
) -> None:
    url, options = s3.bucket("overwritten") + "/data", s3.options()
    fastio.pack([{"x": 1}, {"x": 2}], url, storage_options=options, overwrite=True)
    with fastio.open(url, storage_options=options) as data:
        with pytest.raises(PackError, match="would delete"):
            fastio.pack((row for row in data), written, storage_options=options, overwrite=True)
        assert list(data) == [{"x": 1}, {"x": 2}]


def test_overwriting_deletes_only_after_the_manifest_was_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack(range(50), shard_size=80)
    deleted: list[str] = []
    delete = Store.delete

    def noted(self: Store, name: str, *rest: Any) -> None:
        with fastio.open(URL) as dataset:
            assert list(dataset) == [1]
        deleted.append(name)
        delete(self, name, *rest)

    monkeypatch.setattr(Store, "delete", noted)
    pack([1], overwrite=True)
    assert len(deleted) > 3
    assert MANIFEST_NAME not in deleted


def uploaded() -> set[str]:
    """The names of the shards that are there."""
    return {name for name in contents(URL) if name.startswith("shard")}


def number(shard: str) -> int:
    return int(shard.split("-")[1].removesuffix(".arrow"))


@pytest.mark.parametrize("part_bytes", [stored_journal.PART_BYTES, 700])
def test_a_pack_that_dies_at_any_request_can_be_resumed(
    folder: Path, expected: dict[str, bytes | str], monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    """Also if the journal has several parts, which may stay beside a complete dataset."""
    monkeypatch.setattr(stored_journal, "PART_BYTES", part_bytes)
    deaths = 0
    while die_at(deaths + 1, folder, monkeypatch):
        deaths += 1
        there = uploaded()
        if MANIFEST_NAME not in contents(URL):
            with pytest.raises(DatasetNotFound):
                fastio.open(URL)
        elif JOURNAL_NAME not in contents(URL):
            left = packed().keys() - expected.keys()
            assert all(name.startswith(f"{JOURNAL_NAME}-") for name in left)
            assert packed().items() >= expected.items()
            delete_all()
            continue
        if there:
            with pytest.raises((PackError, DatasetExists), match=r"incomplete|a dataset"):
                pack(folder)
        written = resumed(folder, monkeypatch)
        assert packed() == expected
        # Those whose journal was there too, in a row from the first one, were not sent again.
        numbers = {number(name) for name in there}
        row = next(n for n in range(99) if n not in numbers)
        assert not {number(name) for name in written if name.startswith("shard")} & {*range(row)}
        delete_all()
    assert packed() == expected
    assert deaths >= 3 * (len(expected) - 1)


def die_at(request: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Packs; whether it died right before a request that changes the store, or asks for a size."""
    count, lock = 0, threading.Lock()

    def deadly(call: Any) -> Any:
        def count_and_call(*args: Any) -> Any:
            nonlocal count
            with lock:
                count += 1
                if count >= request:
                    raise Killed
            return call(*args)

        return count_and_call

    with monkeypatch.context() as patch:
        for name in ("write", "size", "delete"):
            patch.setattr(Store, name, deadly(getattr(Store, name)))
        try:
            pack(folder, workers=1)
        except Killed:
            return True
    return False


def resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Resumes; the names of what was written."""
    written: list[str] = []
    with monkeypatch.context() as patch:
        write = Store.write

        def noted(self: Store, name: str, data: Any) -> None:
            written.append(name)
            write(self, name, data)

        patch.setattr(Store, "write", noted)
        pack(folder, resume=True)
    return written


def delete_all() -> None:
    fsspec.filesystem("memory").rm("/packs", recursive=True)


@pytest.mark.parametrize("upload", [3, 6])
def test_a_killed_pack_is_resumed_on_another_machine(
    upload: int, folder: Path, expected: dict[str, bytes | str], s3: S3, tmp_path: Path
) -> None:
    url = s3.bucket(f"killed{upload}") + "/dataset"
    options = s3.options()
    arguments = [folder, url, upload, SHARD_SIZE, json.dumps(options)]
    done = run_code(KILLER, *arguments, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == -signal.SIGKILL, done.stderr
    pack(folder, url, storage_options=options, resume=True)
    assert packed(url, options) == expected


def test_a_staging_folder_of_a_killed_pack_is_used_again(
    folder: Path, expected: dict[str, bytes | str], tmp_path: Path
) -> None:
    with pytest.raises(SampleError, match="interrupted"):
        pack(interrupted(20), staging=tmp_path, shard_size=80)
    left = tmp_path / "fastio-left"
    left.mkdir()
    (left / "notes.txt").write_text("mine")
    pack(folder, overwrite=True, staging=tmp_path)
    assert packed() == expected
    assert (left / "notes.txt").exists()


def interrupted(count: int) -> Iterator[int]:
    yield from range(count)
    raise RuntimeError("interrupted")


def test_a_shard_that_was_changed_there_is_packed_again(
    folder: Path, expected: dict[str, bytes | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert die_at(8, folder, monkeypatch)
    name = sorted(uploaded())[0]
    fsspec.filesystem("memory").pipe_file(f"/packs/dataset/{name}", b"short")
    pack(folder, resume=True)
    assert packed() == expected


def test_other_options_cannot_resume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert die_at(6, folder, monkeypatch)
    with pytest.raises(PackError, match="codec was"):
        pack(folder, resume=True, codec="raw")


def test_an_upload_that_fails_names_the_shard_and_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Store.write

    def refuse(self: Store, name: str, data: Any) -> None:
        if name.startswith("shard-000001-"):
            raise fastio.StoreError(f"{self.url}/{name} cannot be written: no")
        write(self, name, data)

    monkeypatch.setattr(Store, "write", refuse)
    with pytest.raises(PackError, match=rf"{URL}/shard-000001-[0-9a-f]+\.arrow .*--resume"):
        pack(folder)
    assert MANIFEST_NAME not in contents(URL)


def test_an_upload_that_comes_short_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "size", lambda self, name: 5)
    with pytest.raises(PackError, match=r"shard-\d+-[0-9a-f]+\.arrow has 5 bytes after it was"):
        pack(folder)


def test_a_web_server_is_refused_with_its_url(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    with (
        http_folder(tmp_path / "www", python=True) as url,
        pytest.raises(PackError, match=f"{url}.*nothing was uploaded"),
    ):
        pack(folder, url)


def test_options_of_urls_need_one(tmp_path: Path) -> None:
    for options in ({"staging": tmp_path}, {"storage_options": {}}):
        with pytest.raises(OptionError, match="can only be used with a URL"):
            fastio.pack([1], tmp_path / "out", **options)


# --- The commands --------------------------------------------------------------------------------


def run(*arguments: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_commands_take_urls(folder: Path, s3: S3, tmp_path: Path) -> None:
    url = s3.bucket("commands") + "/dataset"
    inner = s3.options()["client_kwargs"]
    words = ["aws_access_key_id=a-key-id", "aws_secret_access_key=a-secret"]
    words += [f"endpoint={inner['endpoint_url']}", f"region={inner['region_name']}"]
    options = [part for word in words for part in ("--storage-options", word)]
    assert run("pack", folder, url, "--shard-size", "2KB", "--quiet", *options)[0] == 0
    code, out, _ = run("info", url, "--json", *options)
    assert (code, json.loads(out)["rows"]) == (0, 15)
    assert run("verify", url, "--deep", "--quiet", *options)[0] == 0
    assert run("export", url, tmp_path / "out", "--quiet", *options)[0] == 0
    assert len([path for path in (tmp_path / "out").rglob("*.*") if path.is_file()]) == 15
    for more in ([], ["--transform", "Resize((32, 32))"]):
        sheet = tmp_path / f"sheet{len(more)}.png"
        assert run("show", url, "--out", sheet, "--count", 4, *more, *options)[0] == 0
        assert sheet.stat().st_size > 0


def test_verify_names_what_is_damaged_behind_a_url(folder: Path) -> None:
    pack(folder)
    fs = fsspec.filesystem("memory")
    shard = sorted(uploaded())[1]
    data = bytearray(fs.cat_file(f"/packs/dataset/{shard}"))
    data[len(data) // 2] ^= 1
    fs.pipe_file(f"/packs/dataset/{shard}", bytes(data))
    code, _, error = run("verify", URL, "--quiet")
    assert code == 1
    assert shard in error
