"""Samples are appended to a dataset as its next version, and readers of older ones go on."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import fastio
from fastio import (
    Dataset,
    DatasetNotFound,
    Loader,
    OptionError,
    PackConflict,
    PackError,
    Scalar,
    Schema,
    SchemaError,
    SourceChanged,
    StateMismatch,
    gc,
    pack,
)
from fastio.cli import main
from fastio.pack.journal import Journal, Plan
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, version_name
from fastio.store import Store, open_store
from fastio.store.obstore_backend import ObstoreBackend
from tests.children import run_code
from tests.pictures import write_folder
from tests.servers import S3, s3_server
from tests.support import contents, without_ids

SIZE = 80  # bytes of a shard: ten numbers
SINGLE = Schema({"label": Scalar("int64")}, "single")

# Appends numbers, and is killed right before a call of a function that changes files.
KILLER = """
import sys
from fastio.pack import pack
from tests.children import killed_at

killed_at(int(sys.argv[2]))
pack(list(range(100, 125)), sys.argv[1], shard_size=80, append=True)
"""


# Appends with a Writer, and is killed before it finishes.
UNFINISHED_WRITER = """
import os, signal, sys
import fastio

schema = fastio.Schema({"label": fastio.Scalar("int64")}, "single")
writer = fastio.Writer(sys.argv[1], schema, append=True, shard_size=80)
writer.write(25)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dataset of 25 numbers in 3 shards."""
    pack(range(25), tmp_path / "data", shard_size=SIZE)
    return tmp_path / "data"


def append(path: Path | str, source: Any, **options: Any) -> fastio.PackReport:
    return pack(source, path, **{"shard_size": SIZE, "append": True, **options})


def rows(path: Path, version: int | None = None) -> list[Any]:
    with fastio.open(path, version=version) as dataset:
        assert [check.problem for check in dataset.verify()] == [None] * dataset.num_shards
        return list(dataset)


def run(*words: str) -> Any:
    return CliRunner().invoke(main, list(words))


def test_what_is_appended_is_the_next_version(data: Path) -> None:
    before = contents(data)
    report = append(data, range(25, 40))
    assert (report.rows, report.shards) == (15, 2)
    assert rows(data) == list(range(40))
    assert rows(data, 1) == list(range(25))
    assert rows(data, 2) == list(range(40))
    after = contents(data)
    assert {name for name, old in before.items() if after[name] != old} == {MANIFEST_NAME}
    assert after["manifest-000001.arrow"] == before[MANIFEST_NAME]
    append(data, range(40, 45))
    assert [len(rows(data, version)) for version in (1, 2, 3)] == [25, 40, 45]
    with pytest.raises(DatasetNotFound, match=r"no version 4: the newest one is 3"):
        fastio.open(data, version=4)


def test_the_same_appends_give_the_same_bytes(data: Path, tmp_path: Path) -> None:
    pack(range(25), tmp_path / "other", shard_size=SIZE)
    for path in (data, tmp_path / "other"):
        append(path, range(25, 40))
    assert contents(data) == contents(tmp_path / "other")
    fingerprints = {Dataset(data, version=version).fingerprint for version in (1, 2)}
    assert len(fingerprints) == 2


def test_info_lists_versions_and_verify_checks_each(data: Path) -> None:
    append(data, range(25, 40))
    found = json.loads(run("info", str(data), "--json").stdout)
    assert found["version"] == 2
    about = [(each["version"], each["rows"], each["kept"]) for each in found["versions"]]
    assert about == [(1, 25, True), (2, 40, True)]
    assert found["versions"][0]["fingerprint"] == Dataset(data, version=1).fingerprint
    assert "1            25 samples, 3 shards, added: range" in run("info", str(data)).stdout
    assert json.loads(run("info", str(data), "--version", "1", "--json").stdout)["rows"] == 25
    for version in ("1", "2"):
        assert run("verify", str(data), "--version", version, "-q").exit_code == 0


@pytest.mark.parametrize("resumes", [True, False], ids=["resumed", "discarded"])
def test_an_append_killed_anywhere_loses_nothing(data: Path, tmp_path: Path, resumes: bool) -> None:
    pack(range(25), tmp_path / "whole", shard_size=SIZE)
    more = list(range(100, 125))
    append(tmp_path / "whole", more)
    expected = contents(tmp_path / "whole")
    for kill_at in count(1, 1 if resumes else 3):
        out = tmp_path / f"out{kill_at}"
        pack(range(25), out, shard_size=SIZE)
        done = run_code(KILLER, out, kill_at)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert rows(out)[:25] == rows(out, 1) == list(range(25))
        version = Dataset(out).manifest.version
        if resumes and (out / JOURNAL_NAME).exists() and (out / JOURNAL_NAME).stat().st_size:
            assert append(out, more, resume=True).rows == 25
        else:
            gc(out, unfinished=True)
            if version == 1:
                append(out, more)
        gc(out)
        assert contents(out) == expected
    assert kill_at > 15


def test_an_unfinished_append_is_to_be_resumed_or_discarded(data: Path) -> None:
    def interrupted() -> Iterator[int]:
        yield from range(25, 60)
        raise RuntimeError("interrupted")

    with pytest.raises(fastio.SampleError):
        append(data, interrupted())
    assert rows(data) == list(range(25))
    with pytest.raises(PackError, match=r"unfinished append.*--resume.*fastio gc --unfinished"):
        append(data, range(3))
    with pytest.raises(PackError, match="an append; resume it with append"):
        pack(range(60), data, shard_size=SIZE, resume=True)
    left = len(list(data.glob("shard-v2-*")))
    assert left == 3
    report = gc(data)
    assert (report.files, report.unfinished) == (0, True)
    assert len(list(data.glob("shard-v2-*"))) == left
    assert gc(data, unfinished=True).files == left
    assert append(data, range(25, 28)).rows == 3
    assert rows(data) == list(range(28))
    with pytest.raises(
        PackError, match=r"no unfinished append.*newest version, 2, was packed from range"
    ):
        append(data, range(3), resume=True)


def test_gc_leaves_an_append_that_runs_alone(data: Path) -> None:
    """It may have written shards that no version names yet."""
    refused: list[bool] = []

    def source() -> Iterator[int]:
        for number in range(25, 60):
            if number == 55:
                for unfinished in (False, True):
                    done = run("gc", str(data), *(["--unfinished"] if unfinished else []))
                    refused.append(done.exit_code == 1)
                    assert "another process is packing" in done.output
            yield number

    append(data, source())
    assert refused == [True, True]
    assert rows(data) == list(range(60))


def test_a_full_disk_is_named_and_the_append_can_go_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace
    for name in ("shard-v2-000001", MANIFEST_NAME):

        def full(src: Any, dst: Any, name: str = name) -> None:
            if name in str(dst):
                raise OSError(errno.ENOSPC, "No space left on device", str(src))
            replace(src, dst)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            with pytest.raises(PackError, match=r"No space left.*--resume"):
                append(data, range(25, 50), resume=(data / JOURNAL_NAME).exists())
        assert rows(data) == list(range(25))
    append(data, range(25, 50), resume=True)
    assert rows(data) == list(range(50))
    assert gc(data).files == 0


def test_two_appends_at_once(data: Path) -> None:
    """One holds the journal; one that was opened before and comes after is refused, too."""
    journal = Journal(data, {"append_to": Dataset(data).fingerprint}, resume=False)
    try:
        with pytest.raises(PackConflict, match="another process is packing"):
            append(data, [1], resume=True)
    finally:
        journal.remove()
    schema = Dataset(data).schema
    with fastio.Writer(data, schema, append=True, shard_size=SIZE) as writer:
        for number in range(25, 45):
            writer.write(number)
        for again in ([1], range(25, 45)):
            with pytest.raises(PackConflict, match="another process is packing"):
                append(data, again)

    def late() -> Iterator[int]:
        yield 26

    with pytest.MonkeyPatch.context() as patch:
        from fastio.pack import destination

        check = destination.check_may_append

        def overtaken(*arguments: Any) -> None:
            patch.setattr(destination, "check_may_append", check)
            append(data, [100])
            check(*arguments)

        patch.setattr(destination, "check_may_append", overtaken)
        with pytest.raises(
            PackConflict, match=r"has changed .* since this append began: append again"
        ):
            append(data, late())
    assert rows(data) == [*range(45), 100]
    assert not (data / JOURNAL_NAME).exists()


def test_a_writer_appends_and_takes_only_its_own_back(data: Path) -> None:
    schema = Schema({"label": Scalar("int64")}, "single")
    before = contents(data)

    def fail() -> None:
        with fastio.Writer(data, schema, append=True, shard_size=SIZE) as writer:
            for number in range(35):
                writer.write(number)
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail()
    assert contents(data) == before
    with fastio.Writer(data, schema, append=True, shard_size=SIZE) as writer:
        writer.write(25)
    assert rows(data) == list(range(26))
    with pytest.raises(SchemaError, match="float64"):
        fastio.Writer(data, Schema({"label": Scalar("float64")}, "single"), append=True)


def test_an_error_after_the_manifest_was_written_undoes_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(journal: Journal) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    for out in (data, tmp_path / "new"):
        appends = out == data
        monkeypatch.setattr(Journal, "remove", interrupted)
        with pytest.raises(KeyboardInterrupt), fastio.Writer(out, SINGLE, append=appends) as writer:
            writer.write(25)
        assert rows(out) == [*range(25), 25][-26 if appends else -1 :]
        assert not (out / JOURNAL_NAME).exists()


def test_an_append_that_was_completed_is_not_repeated_by_accident(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(journal: Journal) -> None:
        raise KeyboardInterrupt

    def complete() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "remove", interrupted)
            with pytest.raises(KeyboardInterrupt):
                append(data, range(25, 40))

    complete()
    for _ in range(2):
        with pytest.raises(PackError, match=r"is complete.*version 2.*first run `fastio gc`"):
            append(data, range(25, 40))
    with pytest.raises(PackError, match="first run `fastio gc`"):
        fastio.Writer(data, SINGLE, append=True)
    with pytest.raises(PackError, match=r"nothing to resume .*shard_size was 80, now 800"):
        append(data, range(25, 40), resume=True, shard_size=800)
    report = append(data, range(25, 40), resume=True)
    assert (report.was_complete, report.rows) == (True, 15)
    assert rows(data) == list(range(40))
    assert not (data / JOURNAL_NAME).exists()
    complete()
    assert gc(data).files == 0
    append(data, [100])
    assert rows(data) == [*range(40), *range(25, 40), 100]


def test_an_unfinished_writer_can_only_be_discarded(data: Path) -> None:
    child = run_code(UNFINISHED_WRITER, data)
    assert child.returncode == -signal.SIGKILL, child.stderr
    with pytest.raises(PackError, match="a Writer cannot be resumed, with `fastio gc") as error:
        append(data, [1])
    assert "--resume" not in str(error.value)
    gc(data, unfinished=True)
    append(data, [25])
    assert rows(data) == list(range(26))


def test_a_journal_that_was_replaced_meanwhile_is_not_deleted(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {}, resume=False)
    journal.path.rename(tmp_path / "moved")
    journal.path.write_text("another process's")
    journal.remove()
    assert journal.path.read_text() == "another process's"


def test_a_journal_that_cannot_be_deleted_is_named(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    options = {"append_to": Dataset(data).fingerprint}
    append(data, [25])
    Journal(data, options, resume=False).close()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        with pytest.raises(PackError, match=r"cannot write .*pack.journal: Permission denied"):
            append(data, [26])
    append(data, [26])
    assert rows(data) == list(range(27))


def test_a_journal_without_options_replaces_no_dataset(data: Path) -> None:
    append(data, range(25, 40))
    (data / JOURNAL_NAME).write_bytes(b'{"journal": 1, "opt')
    before = contents(data)
    with pytest.raises(PackError, match=r"unknown what to resume.*--append --resume.*unfinished"):
        pack(range(500, 505), data, shard_size=SIZE, resume=True)
    assert contents(data) == before
    append(data, [40], resume=True)
    assert rows(data) == list(range(41))


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = Journal(tmp_path, {}, resume=False)
    before = journal.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(PackError, match="No space left"):
            journal.keep_plan(Plan(unit_rows=1))
    journal.close()
    assert journal.path.read_bytes() == before


def test_nothing_to_append_changes_nothing(data: Path) -> None:
    before = contents(data)
    with pytest.raises(PackError, match="nothing to pack"):
        append(data, [])
    with pytest.raises(PackError, match="nothing to pack"):
        append(data, iter(()))
    assert contents(data) == before


def test_nothing_to_append_to_is_said(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no dataset to append to: .* does not exist"):
        append(tmp_path / "none", [1])
    with pytest.raises(OptionError, match="append and overwrite cannot be combined"):
        append(tmp_path / "none", [1], overwrite=True)
    with pytest.raises(OptionError, match="append and overwrite cannot be combined"):
        fastio.Writer(tmp_path / "none", SINGLE, append=True, overwrite=True)
    assert list(tmp_path.iterdir()) == []


def test_other_fields_are_named(data: Path) -> None:
    before = contents(data)
    with pytest.raises(SchemaError, match=r"list cannot be appended to .*: fields must .*float64"):
        append(data, [1.5])
    with pytest.raises(SchemaError, match=r"structure must .*dict|fields"):
        append(data, [{"label": 1}])
    assert contents(data) == before


# --- Classes, words, statistics, codebooks --------------------------------------------------------


def test_classes_grow_and_keep_their_numbers(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for name in ("cat", "dog"):
        write_folder(tmp_path / name, 1, 3)
        one.mkdir(exist_ok=True)
        (tmp_path / name / "class0").rename(one / name)
    write_folder(tmp_path / "more", 2, 2)
    two.mkdir()
    (tmp_path / "more" / "class0").rename(two / "ape")
    (tmp_path / "more" / "class1").rename(two / "dog")
    pack(one, tmp_path / "out")
    pack(two, tmp_path / "out", append=True)
    with Dataset(tmp_path / "out") as dataset:
        assert dataset.classes == ("cat", "dog", "ape")
        assert [dataset[row][1] for row in range(10)] == [0, 0, 0, 1, 1, 1, 2, 2, 1, 1]
    assert Dataset(tmp_path / "out", version=1).classes == ("cat", "dog")
    pack([(np.zeros((4, 4, 3), np.uint8), 1)], tmp_path / "numbers")
    with pytest.raises(SchemaError, match=r"classes have names \(ape, dog.*without names"):
        pack(two, tmp_path / "numbers", append=True)


def table(words: list[str], numbers: list[float]) -> pa.Table:
    return pa.table({"w": pa.array(words).dictionary_encode(), "x": pa.array(numbers)})


def test_vocabularies_and_statistics_grow(tmp_path: Path) -> None:
    first = table(["b", "a", "b"], [1.0, 2.0, float("nan")])
    second = table(["c", "a"], [5.0, -7.0])
    pack(first, tmp_path / "out")
    pack(second, tmp_path / "out", append=True)
    pack(pa.concat_tables([first, second]).unify_dictionaries(), tmp_path / "whole")
    found, whole = Dataset(tmp_path / "out"), Dataset(tmp_path / "whole")
    assert found.schema.vocabularies == {"w": ("b", "a", "c")}
    assert list(map(str, found)) == list(map(str, whole))
    for mine, other in zip(found.manifest.statistics, whole.manifest.statistics, strict=True):
        assert mine == pytest.approx(other)
    with pytest.raises(SchemaError, match="fields"):
        pack(pa.table({"x": [1.0]}), tmp_path / "out", append=True)


def test_codec_and_codebook_are_those_of_the_dataset(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", 2, 20)
    pack(folder, tmp_path / "jpeg", codec="jpeg")
    pack(folder, tmp_path / "jpeg", append=True)
    assert Dataset(tmp_path / "jpeg").manifest.codec_counts()["image"]["jpeg"] == 80
    pack(folder, tmp_path / "jpeg", append=True, codec="raw")
    assert Dataset(tmp_path / "jpeg").manifest.codec_counts()["image"]["raw"] == 40
    pack(folder, tmp_path / "out", codebook="train")
    pack(folder, tmp_path / "out", append=True)
    found = Dataset(tmp_path / "out")
    assert found.manifest.codebook == Dataset(tmp_path / "out", version=1).manifest.codebook
    assert found.manifest.packing["codebook"] == "trained"
    assert np.array_equal(found[0][0], found[40][0])
    for other in ("default", "train"):
        with pytest.raises(PackError, match="can have only one: leave out codebook"):
            pack(folder, tmp_path / "out", append=True, codebook=other)


def test_tokens_need_the_same_tokenizer(tmp_path: Path) -> None:
    pack(["some text"], tmp_path / "out", tokenizer="bytes")
    pack(["more"], tmp_path / "out", tokenizer="bytes", append=True)
    assert bytes(Dataset(tmp_path / "out")[1]["tokens"][:-1].astype("u1")) == b"more"

    def other(text: str) -> list[int]:
        return [1]

    with pytest.raises(PackError, match=r"its tokenizer is .*use the same"):
        pack(
            ["x"],
            tmp_path / "out",
            tokenizer=other,
            vocabulary_size=257,
            separator=256,
            append=True,
        )


# --- Readers --------------------------------------------------------------------------------------


def test_loaders_that_read_go_on_with_their_version(data: Path) -> None:
    with Loader(data, batch_size=5, shuffle=True, seed=1) as loader:
        epoch = iter(loader)
        seen = next(epoch).tolist()
        for more in (range(25, 40), range(40, 50)):
            append(data, more)
            seen += next(epoch).tolist()
            gc(data, keep=1)
        for batch in epoch:
            seen += batch.tolist()
        assert sorted(seen) == list(range(25))
        assert sorted(n for batch in loader for n in batch.tolist()) == list(range(25))
    with Loader(data, batch_size=5) as loader:
        assert sum(len(batch) for batch in loader) == 50


def test_a_process_that_opens_it_later_gets_the_same_version(data: Path) -> None:
    with Dataset(data) as dataset:
        sent = pickle.dumps(dataset)
        append(data, [25])
        with pickle.loads(sent) as again:
            assert list(again) == list(range(25))
        gc(data, keep=1)
        with pytest.raises(DatasetNotFound, match="no version 1"):
            pickle.loads(sent)


def test_another_dataset_in_its_place_is_noticed_still(data: Path, tmp_path: Path) -> None:
    with Dataset(data) as old, Dataset(data, version=1):
        append(data, [25])
        old.shards.check_unchanged()
        with Dataset(data, version=1) as one:
            pack(range(30), data, shard_size=SIZE, overwrite=True)
            for dataset in (old, one):
                with pytest.raises(SourceChanged, match="replaced"):
                    dataset.shards.check_unchanged()


def test_a_state_of_an_older_version_goes_on_in_it(data: Path) -> None:
    with Loader(data, batch_size=5, shuffle=True, seed=1) as loader:
        expected = [batch.tolist() for batch in loader]
    with Loader(data, batch_size=5, shuffle=True, seed=1) as loader:
        epoch = iter(loader)
        begun = [next(epoch).tolist() for _ in range(2)]
        state = loader.state_dict()
    append(data, range(25, 40))
    with (
        Loader(data, batch_size=5, shuffle=True, seed=1) as loader,
        pytest.raises(StateMismatch, match=r"version 1 of this dataset.*open\(path, version=1\)"),
    ):
        loader.load_state_dict(state)
    with (
        fastio.open(data, version=1) as dataset,
        Loader(dataset, batch_size=5, shuffle=True, seed=1) as loader,
    ):
        loader.load_state_dict(state)
        assert [*begun, *(batch.tolist() for batch in loader)] == expected


@pytest.mark.parametrize("how", [{"batch_size": 5}, {"batch_size": 4, "drop_last": True}])
def test_a_state_after_the_last_batch_of_an_older_version_goes_on_with_the_next_epoch(
    data: Path, how: dict[str, Any]
) -> None:
    with Loader(data, shuffle=True, seed=1, **how) as loader:
        for _ in loader:
            state = loader.state_dict()  # in the loop: the epoch has no further batch
    append(data, range(25, 40))
    with Loader(data, shuffle=True, seed=1, **how) as loader:
        loader.set_epoch(1)
        expected = [batch.tolist() for batch in loader]
    with Loader(data, shuffle=True, seed=1, **how) as loader:
        loader.load_state_dict(state)
        assert list(loader) == []  # the rest of epoch 0, as without an append
        assert [batch.tolist() for batch in loader] == expected
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert [batch.tolist() for batch in loader] == expected


def test_a_state_before_the_last_batch_is_of_an_older_version(data: Path) -> None:
    with Loader(data, 4, shuffle=True, seed=1) as loader:
        states = [loader.state_dict() for _ in loader]
    assert [state["ended"] for state in states] == [False] * 6 + [True]
    append(data, range(25, 40))
    with (
        Loader(data, 4, shuffle=True, seed=1) as loader,
        pytest.raises(StateMismatch, match="version 1 of this dataset"),
    ):
        loader.load_state_dict(states[-2])


# --- gc -------------------------------------------------------------------------------------------


def test_gc_deletes_versions_and_what_none_names(data: Path) -> None:
    for more in (range(25, 40), range(40, 50)):
        append(data, more)
    (data / "shard-v9-000000-0123456789abcdef.arrow").write_text("left by a killed append")
    (data / f"{MANIFEST_NAME}.0123456789abcdef.tmp").write_text("left by a killed pack")
    (data / "notes.txt").write_text("not ours")
    report = gc(data)
    assert (report.versions, report.files) == ([], 2)
    assert len(rows(data, 1)) == 25
    assert gc(data, keep=2).versions == [1]
    assert gc(data, keep=2).files == 0
    with pytest.raises(DatasetNotFound, match="no version 1"):
        fastio.open(data, version=1)
    assert [len(rows(data, version)) for version in (2, 3)] == [40, 50]
    assert "(deleted by fastio gc)" in run("info", str(data)).stdout
    assert (data / "notes.txt").exists()
    done = run("gc", str(data), "--keep", "1")
    assert done.exit_code == 0
    assert "deleted 1 version, 1 file" in done.stdout
    assert rows(data) == list(range(50))


def test_gc_needs_a_dataset_and_a_number(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound):
        gc(tmp_path)
    assert not (tmp_path / JOURNAL_NAME).exists()
    with pytest.raises(fastio.OptionError, match="keep must be at least 1"):
        gc(data, keep=0)


def test_overwriting_deletes_all_versions(data: Path) -> None:
    append(data, [25])
    pack([1], data, overwrite=True)
    assert set(without_ids(contents(data))) == {MANIFEST_NAME, "shard-000000.arrow"}
    assert Dataset(data).manifest.history == ()


def test_the_command_appends(data: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", 2, 3)
    pack(folder, tmp_path / "out")
    done = run("pack", str(folder), str(tmp_path / "out"), "--append", "-q")
    assert done.exit_code == 0, done.output
    assert len(Dataset(tmp_path / "out")) == 12


# --- In a store -----------------------------------------------------------------------------------

# Appends numbers to a URL, and is killed right before the given write of an object.
REMOTE_KILLER = """
import json, sys

url, kill_at, options = sys.argv[1:]
from fastio.pack import pack
from fastio.store import Store
from tests.children import killed_at

killed_at(int(kill_at), Store, ("write", "replace", "delete"))
options = json.loads(options)
pack(list(range(100, 125)), url, shard_size=80, append=True, storage_options=options)
"""


class Remote:
    """A dataset of 25 numbers at a URL of moto's S3."""

    def __init__(self, server: S3, name: str) -> None:
        self.options = server.options()
        self.url = f"{server.bucket('growing')}/{name}"
        pack(range(25), self.url, shard_size=SIZE, storage_options=self.options)

    def append(self, source: Any, **options: Any) -> fastio.PackReport:
        return append(self.url, source, storage_options=self.options, **options)

    def rows(self, version: int | None = None) -> list[Any]:
        with fastio.open(self.url, storage_options=self.options, version=version) as dataset:
            assert [check.problem for check in dataset.verify()] == [None] * dataset.num_shards
            return list(dataset)

    def contents(self) -> dict[str, bytes]:
        store = open_store(self.url, self.options)
        return {name: bytes(store.read(name)) for name, _ in store.list()}

    def gc(self, **options: Any) -> fastio.GcReport:
        """Calls gc, again if an append is writing its journal at the moment."""
        while True:
            try:
                return gc(self.url, storage_options=self.options, **options)
            except PackConflict:
                pass

    def discard(self) -> fastio.GcReport:
        return self.gc(unfinished=True)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    pytest.importorskip("moto", reason="S3 is moto's here")
    with s3_server() as server:
        yield server


@pytest.fixture
def remote(s3: S3, tmp_path: Path) -> Remote:
    return Remote(s3, tmp_path.name)


def test_an_append_lists_the_store_once(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    list_pages, asked = Store.pages, []

    def listing(self: Store, *rest: Any) -> Any:
        asked.append(1)
        return list_pages(self, *rest)

    monkeypatch.setattr(Store, "pages", listing)
    remote.append([25])
    assert len(asked) == 1


def test_a_store_gets_the_bytes_of_a_local_append(remote: Remote, data: Path) -> None:
    append(data, range(25, 40))
    with fastio.open(remote.url, storage_options=remote.options) as before:
        report = remote.append(range(25, 40))
        assert (report.rows, report.shards) == (15, 2)
        assert without_ids(remote.contents()) == without_ids(contents(data))
        assert list(before) == list(range(25))
        before.shards.check_manifest()
    assert remote.rows() == list(range(40))
    assert remote.rows(1) == list(range(25))
    with pytest.raises(DatasetNotFound, match="no version 3"):
        remote.rows(3)
    found = fastio.sources.describe(remote.url, storage_options=remote.options)
    assert [each["kept"] for each in found["versions"]] == [True, True]
    assert remote.gc(keep=1).versions == [1]
    found = fastio.sources.describe(remote.url, storage_options=remote.options)
    assert [each["kept"] for each in found["versions"]] == [False, True]
    assert remote.rows() == list(range(40))


def test_an_append_to_a_store_killed_anywhere_loses_nothing(
    s3: S3, tmp_path: Path, data: Path
) -> None:
    more = list(range(100, 125))
    append(data, more)
    expected = without_ids(contents(data))
    for kill_at in count(1):
        out = Remote(s3, f"{tmp_path.name}-{kill_at}")
        done = run_code(REMOTE_KILLER, out.url, kill_at, json.dumps(out.options))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert out.rows()[:25] == out.rows(1) == list(range(25))
        if JOURNAL_NAME in out.contents():
            assert out.append(more, resume=True).rows == 25
        else:
            out.append(more)
        assert without_ids(out.contents()) == expected
    assert kill_at > 8


def test_of_two_appends_to_a_store_one_wins(remote: Remote) -> None:
    """Whoever comes second is told so, wherever the first one is."""

    def first_shard_of(name: str) -> None:
        """Runs another append right before the first write of an object of this name."""
        replace = Store.replace

        def overtaken(self: Store, called: str, *rest: Any) -> Any:
            if called == name:
                patch.setattr(Store, "replace", replace)
                if name == MANIFEST_NAME:  # the other one must not find a journal
                    self.delete(JOURNAL_NAME)
                remote.append([100])
            return replace(self, called, *rest)

        patch.setattr(Store, "replace", overtaken)

    for name in (JOURNAL_NAME, MANIFEST_NAME):
        before = remote.rows()
        with pytest.MonkeyPatch.context() as patch:
            first_shard_of(name)
            with pytest.raises(PackConflict, match=r"has changed .* since this append began"):
                remote.append(range(25, 50))
        assert remote.rows() == [*before, 100]
        remote.gc(unfinished=True)
    assert remote.append([101]).rows == 1


def test_an_append_that_was_discarded_while_it_ran_fails(remote: Remote) -> None:
    def source() -> Iterator[int]:
        for number in range(25, 125):
            if number == 124:
                assert remote.gc().unfinished
                assert remote.discard().files > 0
            yield number

    with pytest.raises(PackConflict):
        remote.append(source())
    assert remote.rows() == list(range(25))


def test_a_response_that_is_lost_is_no_other_writer(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is there when it is written once more, with the same bytes."""
    put, lost = ObstoreBackend.replace, []

    def losing(self: Any, *arguments: Any) -> Any:
        result = put(self, *arguments)
        if arguments[0] not in lost:
            lost.append(arguments[0])
            raise OSError("the connection was lost")
        return result

    monkeypatch.setattr(ObstoreBackend, "replace", losing)
    remote.append(range(25, 50))
    assert lost == [JOURNAL_NAME, version_name(1), MANIFEST_NAME]
    assert remote.rows() == list(range(50))


def test_a_writer_appends_to_a_store_and_takes_its_own_back(remote: Remote) -> None:
    before = remote.contents()
    schema = Schema({"label": Scalar("int64")}, "single")

    def write(numbers: int, fails: bool) -> None:
        options: dict[str, Any] = {"shard_size": SIZE, "storage_options": remote.options}
        with fastio.Writer(remote.url, schema, append=True, **options) as writer:
            for number in range(numbers):
                writer.write(25 + number)
            if fails:
                raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        write(35, True)
    assert remote.contents() == before
    write(15, False)
    assert remote.rows() == list(range(40))


def written(remote: Remote, numbers: int, before_finish: Callable[[], object]) -> None:
    options: dict[str, Any] = {"shard_size": SIZE, "storage_options": remote.options}
    with fastio.Writer(remote.url, SINGLE, append=True, **options) as writer:
        for number in range(numbers):
            writer.write(25 + number)
        before_finish()


def test_an_error_after_the_manifest_was_stored_undoes_nothing(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's deletion fails once, or the response to a manifest that was written is lost."""
    delete, replace = Store.delete, Store.replace

    def failing_delete(self: Store, name: str, *rest: Any) -> None:
        monkeypatch.undo()
        raise fastio.StoreError("503 Slow Down")

    def failing_replace(self: Store, name: str, *rest: Any) -> Any:
        stamp = replace(self, name, *rest)
        if name == MANIFEST_NAME:
            monkeypatch.undo()
            raise fastio.StoreError("503 Slow Down")
        return stamp

    monkeypatch.setattr(Store, "delete", failing_delete)
    with pytest.raises(PackError, match="503"):
        written(remote, 5, lambda: None)
    assert remote.rows() == list(range(30))
    monkeypatch.setattr(Store, "replace", failing_replace)
    with pytest.raises(PackError, match="503"):
        written(remote, 6, lambda: None)
    assert remote.rows() == [*range(30), *range(25, 31)]
    remote.append([100])
    assert remote.rows(3) == [*range(30), *range(25, 31)]
    assert Store.delete is delete


def test_a_writer_that_was_given_up_deletes_nothing_of_its_successor(remote: Remote) -> None:
    uploaded = threading.Event()

    def succeed() -> None:
        while not any("shard-v2-000002" in name for name in remote.contents()):
            pass  # the uploads go on in threads
        remote.discard()
        remote.append(range(25, 65))  # shards of the same names
        uploaded.set()

    with pytest.raises(PackError):
        written(remote, 40, succeed)
    assert uploaded.is_set()
    assert remote.rows() == list(range(65))


def test_a_writer_deletes_no_journal_of_another(remote: Remote) -> None:
    def fail() -> None:
        while not any("shard-v2-000002" in name for name in remote.contents()):
            pass  # the uploads go on in threads
        store = open_store(remote.url, remote.options)
        store.write(JOURNAL_NAME, bytes(store.read(JOURNAL_NAME)) + b"\n")
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        written(remote, 40, fail)
    assert JOURNAL_NAME in remote.contents()
    assert any("shard-v2-000002" in name for name in remote.contents())


def test_a_completed_append_to_a_store_is_not_repeated(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Store, name: str, *rest: Any) -> None:
        monkeypatch.undo()
        raise fastio.StoreError("503 Slow Down")

    monkeypatch.setattr(Store, "delete", failing)
    with pytest.raises(PackError, match=r"is complete, but .*503.*fastio gc"):
        remote.append(range(25, 40))
    with pytest.raises(PackError, match=r"is complete.*version 2.*first run `fastio gc`"):
        remote.append(range(25, 40))
    assert remote.append(range(25, 40), resume=True).was_complete
    journal = b'{"journal": 1, "options": {"append_to": "%s", "source": "list"}}\n'
    first = fastio.open(remote.url, storage_options=remote.options, version=1)
    open_store(remote.url, remote.options).write(JOURNAL_NAME, journal % first.fingerprint.encode())
    with pytest.raises(PackError, match="no unfinished append to resume"):
        remote.append([1], resume=True)  # of this journal, no shard is in the newest version
    assert remote.append([40]).rows == 1
    assert remote.rows() == list(range(41))


def test_a_journal_without_options_replaces_no_dataset_of_a_store(remote: Remote) -> None:
    open_store(remote.url, remote.options).write(JOURNAL_NAME, b'{"journal": 1, "opt')
    with pytest.raises(PackError, match=r"unknown what to resume.*--append --resume"):
        pack([1], remote.url, resume=True, storage_options=remote.options)
    assert remote.rows() == list(range(25))


def test_stores_without_conditions_are_refused() -> None:
    url = "memory://growing/data"
    pack(range(25), url, shard_size=SIZE)
    asked: list[int] = []

    def source() -> Iterator[int]:
        for number in range(3):
            asked.append(number)
            yield number

    with pytest.raises(PackError, match=r"conditional writes.*Use s3, gs or az with obstore"):
        pack(source(), url, append=True)
    assert len(asked) <= 1  # the first sample tells the schema
    with fastio.open(url) as dataset:
        assert len(dataset) == 25
