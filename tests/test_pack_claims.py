"""Of several processes that pack to one place in a store, one wins, and the others lose nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError

import fastio
from fastio import ManifestInvalid, PackConflict, PackError, Scalar, Schema, StoreError
from fastio.pack import remote as remote_module
from fastio.pack import stored_journal
from fastio.pack.stored_journal import StoredJournal
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME
from fastio.store import Store, open_store
from tests.servers import S3
from tests.support import contents, packing_ends_after, without_ids

SIZE = 80  # bytes of a shard: ten numbers
SINGLE = Schema({"label": Scalar("int64")}, "single")
MEMORY = "memory://claims/data"


class Place:
    """A folder in a store, with or without conditional writes."""

    def __init__(self, url: str, options: dict[str, Any] | None) -> None:
        self.url, self.options = url, options

    def pack(self, source: Any, **options: Any) -> fastio.PackReport:
        how = {"shard_size": SIZE, "storage_options": self.options, "workers": 1, **options}
        return fastio.pack(source, self.url, **how)

    def gc(self, **options: Any) -> fastio.GcReport:
        return fastio.gc(self.url, storage_options=self.options, **options)

    def store(self) -> Store:
        return open_store(self.url, self.options)

    def contents(self) -> dict[str, bytes]:
        store = self.store()
        try:
            return {name: bytes(store.read(name)) for name, _ in store.list()}
        except fastio.SourceNotFound:
            return {}

    def rows(self) -> list[Any]:
        with fastio.open(self.url, storage_options=self.options) as dataset:
            assert [check.problem for check in dataset.verify()] == [None] * dataset.num_shards
            return list(dataset)


@pytest.fixture(autouse=True)
def atomic_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are written one after another: moto compares and writes in two steps."""
    lock, put = threading.RLock(), StoredJournal._put

    def alone(self: StoredJournal, head: bytes) -> None:
        with lock:
            put(self, head)

    monkeypatch.setattr(StoredJournal, "_put", alone)


_numbers = iter(range(10_000))


@pytest.fixture
def s3_place(s3: S3) -> Place:
    return Place(f"{s3.bucket('claims')}/{next(_numbers)}", s3.options())


@pytest.fixture(params=["s3", "memory"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "s3":
        yield request.getfixturevalue("s3_place")
        return
    yield Place(MEMORY, None)
    memory = fsspec.filesystem("memory")
    if memory.exists("/claims"):
        memory.rm("/claims", recursive=True)


def local(path: Path, source: Any, **options: Any) -> dict[str, bytes | str]:
    """What a local pack consists of."""
    fastio.pack(source, path, shard_size=SIZE, **options)
    return without_ids(contents(path))


def numbers(stop: int, at: int, meanwhile: Callable[[], object]) -> Iterator[int]:
    """Numbers, with something that happens before one of them."""
    for number in range(stop):
        if number == at:
            meanwhile()
        yield number


def until_it_wins(work: Callable[[], object]) -> None:
    """Repeats what is refused while the other process writes its journal at the same moment."""
    while True:
        try:
            work()
            return
        except PackConflict:
            pass


def has_shards(place: Place, count: int) -> None:
    """Waits until so many shards are there: uploads go on in threads."""
    while sum(name.startswith("shard-") for name in place.contents()) < count:
        pass


# --- gc ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: b""])
def test_gc_discards_an_interrupted_overwrite_of_a_damaged_dataset(
    place: Place, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.pack(range(20))
    store = place.store()
    manifest = bytes(store.read(MANIFEST_NAME))
    store.write(MANIFEST_NAME, damage(manifest))
    damaged = place.contents()
    with pytest.raises(ManifestInvalid):
        place.gc(unfinished=True)  # nothing was interrupted
    monkeypatch.setattr(stored_journal, "PART_BYTES", 100)
    for options in ({"overwrite": True}, {"resume": True}):
        with packing_ends_after(2), pytest.raises(KeyboardInterrupt):
            place.pack(range(100, 150), **options)
    left = place.contents().keys() - damaged.keys()
    ids = {name[-22:] for name in left if name.startswith("shard-")}
    assert len(ids) == 2
    assert any(name.startswith(f"{JOURNAL_NAME}-") for name in left)
    with pytest.raises(ManifestInvalid):
        place.gc()
    assert place.gc(unfinished=True).files == len(left) - 1
    assert place.contents() == damaged
    store.write(MANIFEST_NAME, manifest)
    assert place.rows() == [*range(20)]


def test_a_gc_that_fails_beside_a_damaged_manifest_is_repeated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.pack(range(20))
    place.store().write(MANIFEST_NAME, b"")
    damaged = place.contents()
    with packing_ends_after(3), pytest.raises(KeyboardInterrupt):
        place.pack(range(100, 150), overwrite=True)
    left = place.contents().keys() - damaged.keys() - {JOURNAL_NAME}
    assert len(left) >= 2
    delete, refused = Store.delete, max(left)

    def delete_others(self: Store, name: str, *arguments: Any) -> None:
        if name == refused:
            raise StoreError("the store is busy")
        delete(self, name, *arguments)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Store, "delete", delete_others)
            with pytest.raises(StoreError, match="busy"):
                place.gc(unfinished=True)
    assert refused in place.contents()
    place.gc(unfinished=True)
    assert place.contents() == damaged


# --- Two drivers ----------------------------------------------------------------------------------


def test_a_pack_that_comes_second_is_refused_before_it_writes(place: Place, tmp_path: Path) -> None:
    refused: list[int] = []

    def second() -> None:
        assert JOURNAL_NAME in place.contents()  # before any sample was read
        with pytest.raises(PackError, match="contains an incomplete dataset"):
            place.pack(range(100, 150))
        refused.append(1)

    place.pack(numbers(60, 1, second))
    assert refused
    assert place.rows() == list(range(60))
    assert set(without_ids(place.contents())) == set(local(tmp_path / "out", range(60)))


@pytest.mark.parametrize("ends", [True, False], ids=["has ended", "still runs"])
def test_a_pack_that_has_listed_before_another_one_began_is_refused(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    claim = StoredJournal.claim
    kept: list[dict[str, bytes]] = []

    def overtaken(self: StoredJournal, path: Path) -> None:
        monkeypatch.setattr(StoredJournal, "claim", claim)
        if ends:
            place.pack(range(30))
        else:
            place.store().write(JOURNAL_NAME, b'{"journal": 1, "id": "other", "options": {}}\n')
        kept.append(place.contents())
        claim(self, path)

    monkeypatch.setattr(StoredJournal, "claim", overtaken)
    how = "has just packed to" if ends else "another process is packing to"
    with pytest.raises(PackConflict, match=how):
        place.pack(range(500, 560))
    assert place.contents() == kept[0]
    if ends:
        assert place.rows() == list(range(30))


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_a_pack_that_is_taken_over_stops_and_deletes_nothing(
    place: Place, tmp_path: Path, how: str
) -> None:
    expected: list[dict[str, bytes]] = []

    def take() -> None:
        has_shards(place, 1)
        if how == "resume":
            until_it_wins(lambda: place.pack(numbers(60, -1, take), resume=True))
        else:
            until_it_wins(lambda: place.pack(range(100, 190), overwrite=True))
        expected.append(place.contents())

    with pytest.raises(PackConflict, match="another process has taken over"):
        place.pack(numbers(60, 35, take))
    assert place.contents() == expected[0]
    rows = range(60) if how == "resume" else range(100, 190)
    assert set(without_ids(expected[0])) == set(local(tmp_path / "out", rows))
    assert place.rows() == list(rows)


def test_a_pack_that_loses_its_claim_before_its_manifest_leaves_the_other_s(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look at its claim and the manifest."""
    replace = Store.replace

    def overtaken(self: Store, name: str, *rest: Any) -> Any:
        if name == MANIFEST_NAME:
            monkeypatch.setattr(Store, "replace", replace)
            s3_place.pack(range(100, 130), overwrite=True)
        return replace(self, name, *rest)

    monkeypatch.setattr(Store, "replace", overtaken)
    with pytest.raises(PackConflict, match="taken over"):
        s3_place.pack(range(30))
    assert s3_place.rows() == list(range(100, 130))


def test_of_two_that_resume_one_wins(
    s3_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        has_shards(s3_place, 2)
        raise RuntimeError("interrupted")

    with pytest.raises(fastio.SampleError):
        s3_place.pack(numbers(60, 45, stop))
    claim = StoredJournal.claim

    def overtaken(self: StoredJournal, path: Path) -> None:
        monkeypatch.setattr(StoredJournal, "claim", claim)
        s3_place.pack(numbers(60, -1, stop), resume=True)
        claim(self, path)

    monkeypatch.setattr(StoredJournal, "claim", overtaken)
    with pytest.raises(PackConflict, match="another process is packing to"):
        s3_place.pack(numbers(60, -1, stop), resume=True)
    assert s3_place.rows() == list(range(60))
    assert JOURNAL_NAME not in s3_place.contents()


class Killed(BaseException):
    """Stands for the end of the process: nothing reaches the store behind it."""


def test_a_claim_of_a_process_killed_at_any_request_is_taken_at_once(
    s3: S3, tmp_path: Path
) -> None:
    expected = local(tmp_path / "out", range(25))
    deaths = 0
    while True:
        place = Place(f"{s3.bucket('claims')}/killed-{deaths}", s3.options())
        if not killed_at(deaths + 1, lambda place=place: place.pack(range(25))):
            break
        deaths += 1
        if {MANIFEST_NAME, JOURNAL_NAME} & set(place.contents()) != {MANIFEST_NAME}:
            place.pack(range(25), resume=JOURNAL_NAME in place.contents())
        assert without_ids(place.contents()) == expected
    assert without_ids(place.contents()) == expected
    assert deaths > 15


def killed_at(request: int, work: Callable[[], object]) -> bool:
    """Whether it died right before a request, of those that a pack sends."""
    count, lock = 0, threading.Lock()

    def deadly(call: Any) -> Any:
        def count_and_call(*args: Any, **options: Any) -> Any:
            nonlocal count
            with lock:
                count += 1
                if count >= request:
                    raise Killed
            return call(*args, **options)

        return count_and_call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "replace", "stat", "delete", "read"):
            patch.setattr(Store, name, deadly(getattr(Store, name)))
        try:
            work()
        except Killed:
            return True
    return False


def test_a_pack_that_fails_before_its_first_shard_gives_its_claim_back(place: Place) -> None:
    def fail() -> None:
        assert JOURNAL_NAME in place.contents()
        raise RuntimeError("no")

    with pytest.raises(fastio.SampleError):
        place.pack(numbers(60, 5, fail))
    assert place.contents() == {}
    place.pack(range(25))
    assert place.rows() == list(range(25))


def test_a_writer_deletes_its_shards_while_it_has_the_claim(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the journal, another pack could begin and upload shards of the same names."""
    delete, deleted = Store.delete, []

    def noted(self: Store, name: str, *rest: Any) -> None:
        deleted.append(name)
        delete(self, name, *rest)

    monkeypatch.setattr(Store, "delete", noted)
    options: dict[str, Any] = {"shard_size": SIZE, "storage_options": s3_place.options}
    writer = fastio.Writer(s3_place.url, SINGLE, **options)
    for number in range(40):
        writer.write(number)
    has_shards(s3_place, 2)
    writer.discard()
    assert deleted[-1] == JOURNAL_NAME
    assert len(deleted) > 2
    assert s3_place.contents() == {}


# --- gc -------------------------------------------------------------------------------------------


def test_a_gc_that_was_discarded_deletes_nothing_of_an_append_that_began_later(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append uploads shards whose names gc has listed as leftovers."""
    s3_place.pack(range(25))

    def stop() -> None:
        while not any("shard-v2-000002" in name for name in s3_place.contents()):
            pass
        raise RuntimeError("interrupted")

    with pytest.raises(fastio.SampleError):
        s3_place.pack(numbers(60, 45, stop), append=True)
    s3_place.store().delete(JOURNAL_NAME)  # what is left has no journal
    delete = Store.delete

    def deleting(self: Store, name: str, *rest: Any) -> None:
        monkeypatch.setattr(Store, "delete", delete)
        delete(self, name, *rest)
        s3_place.gc(unfinished=True)  # somebody thinks that the first one has died
        s3_place.pack(range(60), append=True)

    monkeypatch.setattr(remote_module, "_DELETIONS_PER_CHECK", 1)
    monkeypatch.setattr(Store, "delete", deleting)
    with pytest.raises(PackConflict, match="another process has taken over"):
        s3_place.gc()
    assert s3_place.rows() == [*range(25), *range(60)]


# --- Answers of stores ----------------------------------------------------------------------------


@pytest.mark.parametrize("written", [True, False], ids=["was written", "was not written"])
@pytest.mark.parametrize(
    "answer",
    [
        AlreadyExistsError("409: <Code>ConditionalRequestConflict</Code>"),
        GenericError("Server returned an error response with status code: 503: Slow Down"),
    ],
)
def test_answers_that_decide_nothing_are_no_conflict(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch, answer: Exception, written: bool
) -> None:
    put, asked = obstore.put, set()

    def undecided(client: Any, name: str, data: Any, *, mode: Any = None, **how: Any) -> Any:
        if mode is None or name in asked:
            return put(client, name, data, mode=mode, **how)
        asked.add(name)
        if written:
            put(client, name, data, mode=mode, **how)
        raise answer

    monkeypatch.setattr(obstore, "put", undecided)
    s3_place.pack(range(25))
    assert asked == {JOURNAL_NAME, MANIFEST_NAME}
    assert s3_place.rows() == list(range(25))
    assert JOURNAL_NAME not in s3_place.contents()


def test_a_store_that_ignores_conditions_is_found_out(
    s3_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put

    def ignoring(client: Any, name: str, data: Any, *, mode: Any = None, **how: Any) -> Any:
        return put(client, name, data, **how)

    monkeypatch.setattr(obstore, "put", ignoring)

    def take() -> None:
        has_shards(s3_place, 1)
        until_it_wins(lambda: s3_place.pack(range(100, 130), overwrite=True))

    with pytest.raises(PackConflict, match="taken over"):
        s3_place.pack(numbers(60, 35, take))
    assert s3_place.rows() == list(range(100, 130))
    with pytest.raises(PackError, match=r"cannot append .* ignored the condition of a write"):
        s3_place.pack([1], append=True)
    assert JOURNAL_NAME not in s3_place.contents()


def test_clocks_are_not_asked(s3_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim has no time: the machine that resumes may be years ahead or behind."""
    seen: list[bytes] = []

    def look() -> None:
        seen.append(s3_place.contents()[JOURNAL_NAME])

    s3_place.pack(numbers(60, 35, look))
    assert set(json.loads(seen[0].splitlines()[0])) == {"journal", "id", "options"}
