"""Processes on other machines cannot write to the shards of a pack: only its driver names them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastio
from fastio.errors import PackError
from fastio.pack.encoder import Encoder
from fastio.pack.journal import Plan
from fastio.pack.names import is_task_output_name
from fastio.pack.remote import open_destination
from fastio.pack.task_output import FolderOutput, TaskOutput, WrittenUnit, new_ending
from fastio.pack.units import ShardWriter, pack_unit
from fastio.store import open_store
from tests.servers import S3
from tests.support import contents, without_ids

Task = Generator[None, None, WrittenUnit]


class Elsewhere:
    """In place of Ray: packs units as tasks do, in this process."""

    def __init__(
        self,
        encoder: Encoder[Any, Any],
        make: Callable[[int], Encoder[Any, Any]],
        src: Any,
        name: str,
        destination: Any,
        workers: int | None,
    ) -> None:
        self.encoder, self.make, self.destination = encoder, make, destination

    def run(self, plan: Plan, finished: Any, writer: ShardWriter) -> Iterator[WrittenUnit]:
        place: TaskOutput = self.destination.task_output()
        assert self.encoder.total is not None
        assert plan.unit_rows is not None

        def begin(number: int) -> Task:
            """A task that has found its destination, and has written nothing yet."""

            def task() -> Task:
                with place.folder() as folder:
                    yield
                    own = replace(writer, folder=folder, ending=new_ending())
                    unit = pack_unit(self.make(0), plan, number, own)
                    place.put(folder, [entry.name + own.ending for entry in unit.entries])
                return WrittenUnit(unit, own.ending)

            begun = task()
            next(begun)
            return begun

        for number in range(len(finished), -(-self.encoder.total // plan.unit_rows)):
            self.before(number, begin)
            yield end(begin(number))

    def rest(self, plan: Plan, number: int) -> Iterator[Any]:
        return iter(())

    def before(self, number: int, begin: Callable[[int], Task]) -> None:
        """Called before a unit is packed."""


def end(task: Task) -> WrittenUnit:
    try:
        next(task)
    except StopIteration as done:
        written = done.value
        assert isinstance(written, WrittenUnit)
        return written
    raise AssertionError("the task has not ended")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fastio.pack.api"], "RayRunner", Elsewhere)


def pack(source: Any, out: Path | str, **options: Any) -> fastio.PackReport:
    return fastio.pack(source, out, engine="ray", **options)


def interrupted(source: Path, out: Path | str, **options: Any) -> list[Task]:
    """A pack whose driver ends at its third unit; returns tasks of units 2 and 3 that go on."""
    tasks: list[Task] = []

    def stop(self: Elsewhere, number: int, begin: Callable[[int], Task]) -> None:
        if number == 2:
            tasks.extend([begin(2), begin(3)])
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Elsewhere, "before", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(source, out, **options)
    return tasks


@pytest.fixture(params=["folder", "store"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[str, dict[str, Any], Callable[[], dict[str, bytes]]]:
    """A destination, its options, and what returns its files."""
    if request.param == "folder":
        return str(tmp_path / "out"), {}, lambda: contents(tmp_path / "out")
    s3: S3 = request.getfixturevalue("s3")
    url, options = (
        s3.bucket(re.sub("[^a-z0-9]+", "-", request.node.name)[-60:].strip("-")) + "/out",
        {"storage_options": s3.options()},
    )

    def files() -> dict[str, bytes]:
        with open_store(url, s3.options()) as store:
            return {name: bytes(store.read(name)) for name, _ in store.list()}

    return url, options, files


def test_a_task_that_outlives_its_driver_changes_nothing_in_the_next_pack(
    folder: Path, tmp_path: Path, place: Any
) -> None:
    out, options, files = place
    first, second = interrupted(folder, out, shard_size=1000, **options)

    def meanwhile(self: Elsewhere, number: int, begin: Any) -> None:
        if number == 3:  # unit 2 has been accepted, and 3 has not
            assert end(first).unit.entries[0].name.startswith("shard-000002")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Elsewhere, "before", meanwhile)
        pack(folder, out, shard_size=1200, overwrite=True, **options)
    fastio.pack(folder, tmp_path / "expected", shard_size=1200)
    expected = files()
    assert without_ids(expected) == without_ids(contents(tmp_path / "expected"))
    assert end(second).unit.entries[0].name.startswith("shard-000003")
    left = files().keys() - expected.keys()
    assert len(left) == 1
    assert all(map(is_task_output_name, left))
    assert fastio.gc(out, **options).files == 1
    assert without_ids(files()) == without_ids(expected)


def test_a_resumed_pack_deletes_what_tasks_of_the_killed_driver_have_written(
    folder: Path, tmp_path: Path, place: Any
) -> None:
    out, options, files = place
    for task in interrupted(folder, out, shard_size=1000, **options):
        end(task)
    assert sum(map(is_task_output_name, files())) >= 2
    seen = []

    def look(self: Elsewhere, number: int, begin: Any) -> None:
        if not seen:  # nothing has been accepted yet
            seen.extend([*map(is_task_output_name, files()), False])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Elsewhere, "before", look)
        pack(folder, out, shard_size=1000, resume=True, **options)
    assert seen
    assert not any(seen)
    fastio.pack(folder, tmp_path / "expected", shard_size=1000)
    assert without_ids(files()) == without_ids(contents(tmp_path / "expected"))


def test_shards_that_no_driver_has_accepted_do_not_keep_a_pack_from_starting(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "shard-000003.arrow.0123456789abcdef.written").write_bytes(b"left")
    (out / "shard-000004.arrow.0123456789abcdef.written.fedcba9876543210.tmp").write_bytes(b"left")
    fastio.pack(folder, out, shard_size=1000)
    fastio.pack(folder, tmp_path / "expected", shard_size=1000)
    assert contents(out) == contents(tmp_path / "expected")


def test_a_shard_that_is_missing_when_it_is_accepted_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    out, options, _ = place
    run = Elsewhere.run

    def lose(self: Elsewhere, *most: Any) -> Iterator[WrittenUnit]:
        for written in run(self, *most):
            yield replace(written, ending=new_ending())

    monkeypatch.setattr(Elsewhere, "run", lose)
    with pytest.raises(PackError, match=r"shard-000000\S*\.arrow was written .* but is missing in"):
        pack(folder, out, shard_size=1000, **options)


def test_an_append_on_other_machines_has_the_bytes_of_one_on_this(
    folder: Path, tmp_path: Path
) -> None:
    for name, engine in (("here", "threads"), ("there", "ray")):
        fastio.pack(folder, tmp_path / name, shard_size=1000)
        fastio.pack(
            folder,
            tmp_path / name,
            shard_size=1000,
            append=True,
            engine=engine,  # type: ignore[arg-type]
        )
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_machine_without_the_destination_is_named(tmp_path: Path) -> None:
    place = FolderOutput(tmp_path, "0123456789abcdef")
    with pytest.raises(PackError, match=r"does not find the journal .* file system that all"):
        place.folder().__enter__()


def test_the_staging_folder_of_tasks_may_be_a_file_url(tmp_path: Path) -> None:
    destination = open_destination("memory://staged", None, (tmp_path / "staging").as_uri())
    destination.open({"source": "x"}, resume=False, overwrite=False)
    try:
        with destination.task_output().folder() as folder:
            assert folder.parent == tmp_path / "staging"
    finally:
        destination.close(keep=False)


def test_a_unit_behind_the_last_sample_that_a_machine_finds_is_an_error(
    folder: Path, tmp_path: Path
) -> None:
    def behind(self: Elsewhere, number: int, begin: Callable[[int], Task]) -> None:
        end(begin(50))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Elsewhere, "before", behind)
        with pytest.raises(PackError, match=r"has \d+ samples, but \d+"):
            pack(folder, tmp_path / "out", shard_size=1000)
