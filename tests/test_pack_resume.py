"""A pack that is killed anywhere goes on where it was, and gives the bytes of one left in peace."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from fastio import Dataset as open_dataset
from fastio import (
    DatasetExists,
    DatasetNotFound,
    FolderDataset,
    ImageError,
    PackError,
    PackReport,
    SampleError,
    Scalar,
    Schema,
    pack,
)
from fastio.cli import main
from fastio.pack import packer, samples
from fastio.pack.images import choose_codebook
from fastio.pack.journal import Journal
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME
from tests.children import run_code
from tests.pictures import jpeg, write_folder
from tests.support import contents, packing_ends_after

SHARD_SIZE = 5000

# Packs, and kills itself at a call of a function that changes files.
KILLER = """
import json, os, sys

source, destination, kill_at, shard_size = sys.argv[1:]

from fastio.pack import pack
from tests.children import killed_at

killed_at(int(kill_at))

options = json.loads(os.environ.get("OPTIONS", "{}"))
pack(source, destination, shard_size=int(shard_size), on_error="skip", workers=2, **options)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An image folder with two bad files."""
    folder = write_folder(tmp_path / "images")
    (folder / "class0" / "1.jpg").write_bytes(b"")
    (folder / "class2" / "4.jpg").write_bytes(b"text")
    return folder


def resume(source: Any, out: Path, **options: Any) -> PackReport:
    given = {"shard_size": SHARD_SIZE, "on_error": "skip", "resume": True, **options}
    return pack(source, out, **given)


def test_a_pack_killed_at_any_point_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    report = pack(folder, tmp_path / "expected", shard_size=SHARD_SIZE, on_error="skip")
    expected = contents(tmp_path / "expected")
    kills = 0
    while True:
        out = tmp_path / f"out{kills}"
        done = run_code(KILLER, folder, out, kills + 1, SHARD_SIZE)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        kills += 1
        if not (out / MANIFEST_NAME).exists():
            with pytest.raises(DatasetNotFound, match="incomplete"):
                open_dataset(out)
        if not (out / JOURNAL_NAME).exists() and (out / MANIFEST_NAME).exists():
            assert resume(folder, out).was_complete
            assert contents(out) == expected
            continue
        finished = {path: path.stat() for path in finished_shards(out)}
        resume(folder, out)
        assert contents(out) == expected
        for path, before in finished.items():
            after = path.stat()
            assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert report.shards >= 2
    assert kills >= 4 * report.shards + 5


def test_a_list_of_files_with_other_labels_is_not_resumed(folder: Path, tmp_path: Path) -> None:
    good = sorted(map(str, (folder / "class0").glob("[2-9].jpg"))) * 10
    files = [*good, str(folder / "class2" / "4.jpg")]  # the last one is damaged

    def dataset(label: int) -> FolderDataset:
        return FolderDataset.from_samples([(file, label) for file in files], ["a", "b"])

    with pytest.raises(ImageError):
        pack(dataset(0), tmp_path / "out", shard_size=SHARD_SIZE)
    assert finished_shards(tmp_path / "out")
    Path(files[-1]).write_bytes(jpeg(20, 30))
    with pytest.raises(PackError, match="cannot resume"):
        resume(dataset(1), tmp_path / "out", on_error="raise")
    assert resume(dataset(0), tmp_path / "out", on_error="raise").rows == len(files)


def finished_shards(out: Path) -> list[Path]:
    """The shards that the journal says are finished."""
    lines = map(json.loads, (out / JOURNAL_NAME).read_bytes().splitlines())
    return [out / entry["name"] for line in lines for entry in line.get("entries", ())]


def interrupted(out: Path, count: int) -> None:
    """A pack of numbers of which some shards are finished."""

    def samples() -> Iterator[int]:
        yield from range(count)
        raise RuntimeError("interrupted")

    with pytest.raises(SampleError, match="interrupted"):
        pack(samples(), out, shard_size=80)


def test_a_journal_torn_anywhere_costs_no_more_than_a_shard(tmp_path: Path) -> None:
    pack((n for n in range(50)), tmp_path / "expected", shard_size=80)
    expected = contents(tmp_path / "expected")
    interrupted(tmp_path / "out", 35)
    half = contents(tmp_path / "out")
    journal = half[JOURNAL_NAME]
    ends = [place for place, byte in enumerate(journal) if byte == ord("\n")]
    cuts = {0, 1, *(end + around for end in ends for around in (-1, 0, 1)), *range(9, ends[1], 99)}
    for length in sorted(cuts):
        for name in contents(tmp_path / "out"):
            (tmp_path / "out" / name).unlink()
        for name, data in half.items():
            (tmp_path / "out" / name).write_bytes(data)
        (tmp_path / "out" / JOURNAL_NAME).write_bytes(journal[:length])
        pack((n for n in range(50)), tmp_path / "out", shard_size=80, resume=True)
        assert contents(tmp_path / "out") == expected


def test_resuming_a_finished_pack_says_so(folder: Path, tmp_path: Path) -> None:
    expected = resume(folder, tmp_path / "out")
    before = contents(tmp_path / "out")
    found = resume(folder, tmp_path / "out")
    assert found.was_complete
    assert (found.rows, found.shards, found.bytes) == (13, expected.shards, expected.bytes)
    with pytest.raises(DatasetExists, match=r"codec was \"blocks\", now \"raw\".*--overwrite"):
        resume(folder, tmp_path / "out", codec="raw")
    with pytest.raises(DatasetExists, match=r'source was "images", now "list"'):
        resume([1, 2], tmp_path / "out")
    added = write_folder(tmp_path / "added" / "images", 3, 6)
    with pytest.raises(DatasetExists, match=r"had 15 samples, now 18\. .*--overwrite"):
        resume(added, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    line = ["pack", str(folder), str(tmp_path / "out"), "--resume"]
    done = CliRunner().invoke(main, [*line, "--shard-size", str(SHARD_SIZE)])
    assert done.exit_code == 0
    assert f"complete already, nothing to resume: 13 samples in {expected.shards}" in done.stdout


@pytest.mark.parametrize("name", ["added", "added/images"])
def test_a_finished_pack_to_which_samples_were_appended_is_complete(
    folder: Path, tmp_path: Path, name: str
) -> None:
    expected = resume(folder, tmp_path / "out")
    added = write_folder(tmp_path / name, 3, 1)
    pack(added, tmp_path / "out", shard_size=SHARD_SIZE, on_error="skip", append=True)
    before = contents(tmp_path / "out")
    found = resume(folder, tmp_path / "out")
    assert found.was_complete
    assert (found.rows, found.shards, found.bytes) == (13, expected.shards, expected.bytes)
    assert contents(tmp_path / "out") == before


def test_the_report_counts_what_was_finished_before(folder: Path, tmp_path: Path) -> None:
    expected = pack(folder, tmp_path / "expected", shard_size=SHARD_SIZE, on_error="skip")
    killed(folder, tmp_path / "out", after_shards=1)
    found = pack(folder, tmp_path / "out", shard_size=SHARD_SIZE, on_error="skip", resume=True)
    assert found.rows == expected.rows == 13
    assert (found.shards, found.bytes) == (expected.shards, expected.bytes)
    assert found.skipped == expected.skipped


def killed(folder: Path, out: Path, after_shards: int) -> None:
    """A pack of a folder that was killed when the plan and some shards were written."""
    done = run_code(KILLER, folder, out, 3 + 4 * after_shards + 1, SHARD_SIZE)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len((out / JOURNAL_NAME).read_bytes().splitlines()) == 2 + after_shards


@pytest.mark.parametrize("kind", ["samples", "rows"])
def test_the_progress_of_a_resumed_pack_begins_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source: Any = range(50) if kind == "samples" else pa.table({"x": range(50)})
    with packing_ends_after(2), pytest.raises(KeyboardInterrupt):
        pack(source, tmp_path / "out", shard_size=80)
    lines = map(json.loads, (tmp_path / "out" / JOURNAL_NAME).read_bytes().splitlines())
    finished = sum(entry["rows"] for line in lines for entry in line.get("entries", ()))
    advances: list[int] = []

    @contextmanager
    def bar(*arguments: Any) -> Iterator[Callable[[int], None]]:
        advances.append(arguments[-1])
        yield advances.append

    monkeypatch.setattr(packer, "progress_bar", bar)
    pack(source, tmp_path / "out", shard_size=80, resume=True)
    assert 0 < advances[0] == finished
    assert sum(advances) == 50


def test_resuming_what_was_never_begun_just_packs(folder: Path, tmp_path: Path) -> None:
    resume(folder, tmp_path / "out")
    pack(folder, tmp_path / "expected", shard_size=SHARD_SIZE, on_error="skip")
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_another_number_of_workers_may_go_on(folder: Path, tmp_path: Path) -> None:
    killed(folder, tmp_path / "out", after_shards=1)
    resume(folder, tmp_path / "out", workers=5)
    pack(folder, tmp_path / "expected", shard_size=SHARD_SIZE, on_error="skip")
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shard_size": SHARD_SIZE + 1}, "shard_size was 5000, now 5001"),
        ({"codec": "raw"}, 'codec was ".*", now "raw"'),
        ({"on_error": "raise"}, 'on_error was "skip", now "raise"'),
        ({"max_side": 20}, "max_side was null, now 20"),
        ({"quality": 80}, "quality was null, now 80"),
        ({"codebook": "train"}, 'codebook was "[0-9a-f]{16}", now "train"'),
    ],
)
def test_other_options_are_named(
    folder: Path, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    killed(folder, tmp_path / "out", after_shards=1)
    before = contents(tmp_path / "out")
    with pytest.raises(PackError, match=f"cannot resume.*{named}"):
        resume(folder, tmp_path / "out", **options)
    assert contents(tmp_path / "out") == before


def test_stating_the_default_is_no_other_option(folder: Path, tmp_path: Path) -> None:
    killed(folder, tmp_path / "out", after_shards=1)
    resume(folder, tmp_path / "out", codec="blocks", codebook="default")


def test_another_codebook_file_is_noticed_by_its_contents(folder: Path, tmp_path: Path) -> None:
    default = choose_codebook(None).data or b""
    (tmp_path / "book").write_bytes(default)
    killed(folder, tmp_path / "out", after_shards=1)
    before = contents(tmp_path / "out")
    (tmp_path / "other").write_bytes(default[:65] + default[65:130] * 255)
    with pytest.raises(PackError, match=r"cannot resume.*codebook was"):
        resume(folder, tmp_path / "out", codebook=tmp_path / "other")
    assert contents(tmp_path / "out") == before
    resume(folder, tmp_path / "out", codebook=tmp_path / "book")


@pytest.mark.parametrize("after_shards", [0, 1])
def test_a_trained_codebook_outlives_a_kill(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_shards: int
) -> None:
    """It is not trained again: by then the source may give another one."""
    pack(folder, tmp_path / "expected", shard_size=SHARD_SIZE, on_error="skip", codebook="train")
    monkeypatch.setenv("OPTIONS", '{"codebook": "train"}')
    killed(folder, tmp_path / "out", after_shards)

    def refuse(*_: Any) -> bytes:
        raise AssertionError("trained again")

    with monkeypatch.context() as patch:
        patch.setattr(samples, "train_codebook", refuse)
        resume(folder, tmp_path / "out", codebook="train")
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_a_pack_killed_before_its_codebook_was_kept_trains_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> bytes:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"shard_size": SHARD_SIZE, "on_error": "skip", "codebook": "train"}
    with monkeypatch.context() as patch:
        patch.setattr(samples, "train_codebook", die)
        with pytest.raises(KeyboardInterrupt):
            pack(folder, tmp_path / "out", **options)
    pack(folder, tmp_path / "out", resume=True, **options)
    pack(folder, tmp_path / "expected", **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_another_source_is_named(folder: Path, tmp_path: Path) -> None:
    killed(folder, tmp_path / "out", after_shards=1)
    (folder / "class9").mkdir()
    (folder / "class9" / "0.jpg").write_bytes(jpeg())
    with pytest.raises(PackError, match=r"cannot resume.*schema was"):
        resume(folder, tmp_path / "out")
    with pytest.raises(PackError, match=r'cannot resume.*source was "images", now "list"'):
        resume([1, 2], tmp_path / "out")


@pytest.mark.parametrize("change", ["touch", "grow", "add", "remove", "rename"])
def test_a_change_of_what_is_packed_already_is_noticed(
    folder: Path, tmp_path: Path, change: str
) -> None:
    killed(folder, tmp_path / "out", after_shards=1)
    path = folder / "class0" / "0.jpg"
    if change == "touch":
        os.utime(path, (1, 1))
    elif change == "grow":
        status = path.stat()
        path.write_bytes(path.read_bytes() + b"x")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "add":
        (folder / "class0" / "00.jpg").write_bytes(jpeg())
    elif change == "remove":
        path.unlink()
    else:
        path.rename(path.with_name("00.jpg"))
    with pytest.raises(PackError, match="images has changed since its first"):
        resume(folder, tmp_path / "out")


def test_a_change_of_what_is_not_packed_yet_is_taken_as_it_is(folder: Path, tmp_path: Path) -> None:
    killed(folder, tmp_path / "out", after_shards=1)
    (folder / "class2" / "4.jpg").write_bytes(jpeg())
    (folder / "class2" / "5.jpg").write_bytes(jpeg())
    report = resume(folder, tmp_path / "out")
    expected = pack(folder, tmp_path / "expected", on_error="skip")
    assert (report.rows, report.skipped) == (expected.rows, expected.skipped)
    found, wanted = open_dataset(tmp_path / "out"), open_dataset(tmp_path / "expected")
    assert all(np.array_equal(found[row][0], wanted[row][0]) for row in range(report.rows))


def test_a_list_s_change_is_noticed_where_it_matters(tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(9)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(jpeg(seed=number))
    listed = tmp_path / "list.csv"

    def write(*scores: int) -> None:
        lines = [f"{name},{score}\n" for name, score in zip(names, scores, strict=False)]
        listed.write_text("path,score\n" + "".join(lines))

    write(*range(9))
    (tmp_path / "7.jpg").write_bytes(b"")
    with pytest.raises(ImageError):
        pack(listed, tmp_path / "out", shard_size=2000)
    (tmp_path / "7.jpg").write_bytes(jpeg())
    write(99, 1, 2, 3, 4, 5, 6, 7, 8)
    with pytest.raises(PackError, match=r"list\.csv has changed"):
        pack(listed, tmp_path / "out", shard_size=2000, resume=True)
    write(0, 1, 2, 3, 4, 5, 6, 7, 99)
    pack(listed, tmp_path / "out", shard_size=2000, resume=True)
    assert open_dataset(tmp_path / "out")[8][1] == 99


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_finished_shard_that_is_not_whole_is_named(
    folder: Path, tmp_path: Path, damage: str
) -> None:
    killed(folder, tmp_path / "out", after_shards=1)
    path = tmp_path / "out" / "shard-000000.arrow"
    data = path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(data[:-1])
    with pytest.raises(PackError, match=r"shard-000000\.arrow (is missing|has \d+ bytes)"):
        resume(folder, tmp_path / "out")


@pytest.mark.parametrize(
    "line",
    [
        *("", "{}", "[]", "null", "\x00\x00"),
        *('{"entries": [{}], "end": {}}', '{"plan": {"codebook": "AAAA"}}', '{"plan": []}'),
    ],
)
def test_a_damaged_journal_is_named(tmp_path: Path, line: str) -> None:
    interrupted(tmp_path / "out", 35)
    with open(tmp_path / "out" / JOURNAL_NAME, "a") as file:
        file.write(line + "\n")
    with pytest.raises(PackError, match=r"pack\.journal is damaged"):
        pack((n for n in range(50)), tmp_path / "out", shard_size=80, resume=True)


def test_a_journal_with_a_line_twice_is_damaged(tmp_path: Path) -> None:
    """Two drivers on a file system without locks may have written it."""
    interrupted(tmp_path / "out", 35)
    journal = tmp_path / "out" / JOURNAL_NAME
    *_, last = journal.read_bytes().splitlines(keepends=True)
    with open(journal, "ab") as file:
        file.write(last)
    with pytest.raises(PackError, match=r"pack\.journal is damaged .*in the place of unit"):
        pack((n for n in range(50)), tmp_path / "out", shard_size=80, resume=True)


def test_a_finished_unit_takes_less_than_300_bytes(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", 35)
    path = tmp_path / "out" / JOURNAL_NAME
    first, plan, line, *_ = path.read_text().splitlines(keepends=True)
    units = ((json.loads(line), number) for number in range(10_000))
    lines = ({**unit, "number": number} for unit, number in units)
    path.write_text(first + plan + "".join(f"{json.dumps(line)}\n" for line in lines))
    options = json.loads(first)["options"]
    tracemalloc.start()
    try:
        journal = Journal(tmp_path / "out", options, resume=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(journal.finished) == len(journal.finished.shards) == 10_000
    assert sum(1 for _ in journal.finished.ends()) == 10_000
    journal.close()
    assert peak < 300 * 10_000


def test_a_dataset_s_finished_samples_are_not_asked_for_again(tmp_path: Path) -> None:
    class Numbers:
        def __init__(self, fail_at: int) -> None:
            self.fail_at = fail_at
            self.asked: list[int] = []

        def __len__(self) -> int:
            return 50

        def __getitem__(self, index: int) -> int:
            self.asked.append(index)
            if index == self.fail_at:
                raise RuntimeError("no")
            return index

    pack(Numbers(-1), tmp_path / "expected", shard_size=80, workers=1)
    with pytest.raises(SampleError):
        pack(Numbers(35), tmp_path / "out", shard_size=80, workers=1)
    again = Numbers(-1)
    pack(again, tmp_path / "out", shard_size=80, workers=1, resume=True)
    assert again.asked == [0, *range(30, 50)]  # the first decides the schema
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_a_source_that_has_become_shorter_is_noticed(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", 35)
    with pytest.raises(PackError, match="has 10 samples, but 30"):
        pack((n for n in range(10)), tmp_path / "out", shard_size=80, resume=True)


def test_a_source_that_has_grown_since_its_end_was_packed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packer, "write_manifest", die)
        with pytest.raises(KeyboardInterrupt):
            pack((n for n in range(35)), tmp_path / "out", shard_size=80)
    with pytest.raises(PackError, match=r"had 35 samples when .* has more now"):
        pack((n for n in range(36)), tmp_path / "out", shard_size=80, resume=True)
    pack((n for n in range(35)), tmp_path / "out", shard_size=80, resume=True)
    assert list(open_dataset(tmp_path / "out")) == list(range(35))


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}])
def test_two_packs_do_not_write_to_one_folder(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "out").mkdir()
    journal = Journal(tmp_path / "out", {}, resume=False)
    try:
        with pytest.raises(PackError, match="another process is packing"):
            pack([1], tmp_path / "out", **options)
        assert (tmp_path / "out" / JOURNAL_NAME).stat().st_size > 0
    finally:
        journal.close()


def test_a_dead_pack_s_lock_is_gone(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", 35)
    pack([1], tmp_path / "out", overwrite=True)
    assert open_dataset(tmp_path / "out").schema == Schema({"label": Scalar("int64")}, "single")
