"""Cleaning up after packs and appends: what gc deletes, and what unfinished ones say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError

import fastio
from fastio import (
    Loader,
    OptionError,
    PackConflict,
    PackError,
    SampleError,
    Scalar,
    Schema,
    SchemaError,
    StateMismatch,
    Writer,
    gc,
    pack,
)
from fastio.pack.journal import Journal
from fastio.pack.stored_journal import renewed
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, version_name
from fastio.store import Store, open_store
from tests.pictures import write_folder
from tests.support import without_ids
from tests.test_growing import SINGLE, SIZE, Remote, append, data, remote, rows, run, s3

__all__ = ["data", "remote", "s3"]  # fixtures


# --- gc -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["x", 1.5, 0, -1, [2]])
def test_gc_names_an_impossible_number_of_versions(data: Path, keep: Any) -> None:
    with pytest.raises(OptionError, match="keep must be at least 1 and an integer, got"):
        gc(data, keep=keep)


@pytest.mark.parametrize("state", ["damaged", "empty", "a link", "a folder"])
def test_gc_needs_no_manifest_but_the_newest(data: Path, tmp_path: Path, state: str) -> None:
    append(data, range(25, 50))
    append(data, range(50, 60))
    older = data / version_name(1)
    older.unlink()
    if state == "damaged":
        older.write_bytes(b"ARROW1" + bytes(1000))
    elif state == "empty":
        older.touch()
    elif state == "a link":
        older.symlink_to(tmp_path / "nowhere")
    else:
        older.mkdir()
    stray = data / "shard-v2-000009-0123456789abcdef.arrow"
    stray.write_bytes(b"stray")
    found = gc(data)
    assert (found.files, found.versions) == (1, [])
    assert os.path.lexists(older)
    assert rows(data) == list(range(60))
    assert rows(data, 2) == list(range(50))


def test_no_append_begins_while_gc_runs_in_a_store(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might upload a shard under the name of one that gc deletes."""
    list_pages, asked = Store.pages, []

    def listing(self: Store, *rest: Any) -> Any:
        monkeypatch.undo()
        with pytest.raises(PackError, match=r"unfinished append, pack or gc.*gc --unfinished"):
            remote.append([25])
        asked.append(1)
        return list_pages(self, *rest)

    monkeypatch.setattr(Store, "pages", listing)
    remote.gc()
    assert asked
    assert JOURNAL_NAME not in remote.contents()
    assert remote.append([25]).rows == 1
    assert remote.rows() == list(range(26))


def test_an_append_whose_journal_comes_after_gc_s_fails(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked for a journal before gc wrote its own."""
    delete = Store.delete
    failed: list[str] = []

    def deleting(self: Store, name: str, *rest: Any) -> None:
        monkeypatch.undo()
        other = open_store(remote.url, remote.options)
        try:
            other.replace(JOURNAL_NAME, b"{}\n", None)
        except fastio.SourceChanged:
            failed.append(name)
        delete(self, name, *rest)

    monkeypatch.setattr(Store, "delete", deleting)
    open_store(remote.url, remote.options).write("shard-000009.arrow", b"left")
    remote.gc()
    assert failed == ["shard-000009.arrow"]
    names = {MANIFEST_NAME, *(f"shard-00000{n}.arrow" for n in range(3))}
    assert set(without_ids(remote.contents())) == names


def test_the_journal_of_a_killed_gc_is_discarded_like_an_append(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*rest: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Store, "list", killed)
        patch.setattr(Store, "delete", killed)
        with pytest.raises(Killed):
            remote.gc()
    # The last thing that it did was to renew its journal.
    assert json.loads(remote.contents()[JOURNAL_NAME])["options"] == {"source": "fastio gc"}
    assert remote.gc().unfinished
    with pytest.raises(PackError, match="delete its journal with `fastio gc --unfinished`"):
        remote.append([25])
    assert not remote.discard().unfinished
    assert remote.append([25]).rows == 1


@pytest.mark.parametrize(
    "answer",
    [
        NotImplementedError("operation not yet implemented"),
        GenericError("Server returned an error response with status code: 501: not implemented"),
    ],
)
def test_a_store_without_conditional_writes_is_cleaned_up_and_not_appended_to(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    put = obstore.put

    def unconditional(client: Any, name: str, data: Any, *, mode: Any = None, **how: Any) -> Any:
        if mode is not None:
            raise answer
        return put(client, name, data, **how)

    open_store(remote.url, remote.options).write("shard-000009.arrow", b"left")
    monkeypatch.setattr(obstore, "put", unconditional)
    with pytest.raises(PackError, match=r"cannot append .* does not support conditional writes"):
        remote.append([25])
    assert remote.discard().files >= 1
    names = {MANIFEST_NAME, *(f"shard-00000{n}.arrow" for n in range(3))}
    assert set(without_ids(remote.contents())) == names
    assert remote.rows() == list(range(25))


def test_gc_that_meets_another_one_says_so(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Store.replace

    def replacing(self: Store, name: str, data: bytes, *rest: Any) -> Any:
        monkeypatch.undo()
        replace(open_store(remote.url, remote.options), name, renewed(data), *rest)
        return replace(self, name, data, *rest)

    monkeypatch.setattr(Store, "replace", replacing)
    with pytest.raises(PackConflict, match="another process is packing to"):
        gc(remote.url, storage_options=remote.options)
    remote.discard()


# --- Packs that were killed at their end ----------------------------------------------------------


def killed_before_its_journal_is_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first pack that has written its manifest."""
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", Journal.close)
        pack(range(25), path, shard_size=SIZE)
    assert (path / JOURNAL_NAME).stat().st_size


def test_an_append_goes_on_after_a_first_pack_that_was_killed_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    killed_before_its_journal_is_deleted(path, monkeypatch)
    with pytest.raises(PackError, match=r"no unfinished append to resume.*leave out resume"):
        append(path, range(25, 40), resume=True)
    assert append(path, range(25, 40)).rows == 15
    assert rows(path) == list(range(40))


def test_gc_deletes_the_journal_of_a_first_pack_that_was_killed_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    killed_before_its_journal_is_deleted(path, monkeypatch)
    assert not gc(path).unfinished
    assert not (path / JOURNAL_NAME).exists()
    assert rows(path) == list(range(25))


def test_a_first_pack_that_is_not_complete_is_kept(data: Path) -> None:
    options = {"journal": 1, "options": {"source": "list"}}
    unit = {"entries": [{"name": "shard-000007.arrow"}]}
    (data / JOURNAL_NAME).write_text(f"{json.dumps(options)}\n{json.dumps(unit)}\n")
    assert gc(data).unfinished
    with pytest.raises(PackError, match="unfinished append, pack or gc"):
        append(data, [25])


# --- Errors ---------------------------------------------------------------------------------------


def test_other_options_of_a_resumed_pack_name_the_destination(tmp_path: Path) -> None:
    def source() -> Any:
        yield from range(25)
        raise RuntimeError("interrupted")

    path = tmp_path / "out"
    with pytest.raises(SampleError, match="interrupted"):
        pack(source(), path, shard_size=SIZE)
    with pytest.raises(PackError, match=f"cannot resume the pack to {path}, .*shard_size was 80"):
        pack(source(), path, shard_size=2 * SIZE, resume=True)


def test_a_writer_whose_upload_fails_does_not_speak_of_resuming(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = remote.contents()

    def failing(self: Store, name: str, data: Any) -> None:
        raise fastio.StoreError("503 Slow Down")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", failing)
        with (
            pytest.raises(PackError, match=r"503.*a Writer cannot continue: write all") as caught,
            Writer(remote.url, SINGLE, append=True, storage_options=remote.options) as writer,
        ):
            writer.write(25)
    assert "kept" not in str(caught.value)
    assert remote.contents() == before


NAMED = Schema({"x": Scalar("int64"), "label": Scalar("int64")}, classes=("a", "b"))


def test_a_writer_refuses_the_number_of_no_class(tmp_path: Path) -> None:
    def write() -> None:
        with Writer(tmp_path / "out", NAMED) as writer:
            writer.write({"x": 1, "label": -1})
            writer.write({"x": 2, "label": 2})

    with pytest.raises(
        SchemaError, match="sample 1: no class has the number 2: the schema has 2 classes"
    ):
        write()
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()


def test_a_new_pack_refuses_the_number_of_no_class(tmp_path: Path) -> None:
    samples = [{"x": 1, "label": 0}, {"x": 2, "label": 7}]
    with pytest.raises(SchemaError, match="sample 1: no class has the number 7"):
        pack(samples, tmp_path / "out", schema=NAMED)
    report = pack(samples, tmp_path / "other", schema=NAMED, on_error="skip")
    assert (report.rows, len(report.skipped)) == (1, 1)


# --- States ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_state_from_between_two_epochs_goes_on_with_the_new_rows(
    data: Path, shuffle: bool
) -> None:
    options: dict[str, Any] = {"batch_size": 5, "shuffle": shuffle, "seed": 1}
    with Loader(data, **options) as loader:
        list(loader)
        state = loader.state_dict()
    append(data, range(25, 40))
    with Loader(data, **options) as loader:
        loader.set_epoch(1)
        expected = [batch.tolist() for batch in loader]
    with Loader(data, **options) as loader:
        loader.load_state_dict(state)
        found = [batch.tolist() for batch in loader]
        assert loader.state_dict()["epoch"] == 2
    assert found == expected
    assert sorted(number for batch in found for number in batch) == list(range(40))


def test_a_state_of_a_newer_version_does_not_fit_an_older_one(data: Path) -> None:
    append(data, range(25, 40))
    with Loader(data, batch_size=5, shuffle=True, seed=1) as loader:
        list(loader)
        state = loader.state_dict()
    with (
        fastio.open(data, version=1) as dataset,
        Loader(dataset, batch_size=5, shuffle=True, seed=1) as loader,
        pytest.raises(StateMismatch, match="belongs to another dataset"),
    ):
        loader.load_state_dict(state)


# --- Commands -------------------------------------------------------------------------------------


def test_show_and_export_take_a_version(tmp_path: Path) -> None:
    path, old, new = (str(tmp_path / name) for name in ("out", "old", "new"))
    pack(write_folder(tmp_path / "images", 1, 2), path)
    pack(write_folder(tmp_path / "more", 1, 3), path, append=True)
    for version, folder, count in (("1", old, 2), ("2", new, 5)):
        done = run("export", path, folder, "--version", version, "-q")
        assert done.exit_code == 0, done.output
        assert len(list(Path(folder).rglob("*.jpg"))) == count
        sheet = f"{tmp_path}/sheet.png"
        shown = run("show", path, "--out", sheet, "--version", version, "--json")
        assert json.loads(shown.stdout)["samples"] == count
    assert run("show", path, "--out", sheet, "--version", "3").exit_code == 1
