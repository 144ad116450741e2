"""The journal of a pack in a store, whose whole parts are objects of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import fsspec
import pytest

import fastio
from fastio import PackError, SampleError, SourceChanged
from fastio.pack import stored_journal
from fastio.pack.journal import Journal
from fastio.pack.stored_journal import StoredJournal, parts_of, stored_lines
from fastio.packed import JOURNAL_NAME
from fastio.store import Store, open_store
from tests.support import contents, until, without_ids

URL = "memory://parts/dataset"


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(URL, None) as store:
        yield store
    memory = fsspec.filesystem("memory")
    if memory.exists("/parts"):
        memory.rm("/parts", recursive=True)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_journal, "PART_BYTES", 1000)


def numbers(stop: int, total: int, before: Callable[[], None]) -> Iterator[int]:
    yield from range(stop)
    if stop < total:
        before()
        raise RuntimeError("interrupted")


def pack(
    stop: int, dst: Any = URL, before: Callable[[], None] = lambda: None, **options: Any
) -> fastio.PackReport:
    return fastio.pack(numbers(stop, 100, before), dst, shard_size=80, **options)


def interrupted(stop: int, **options: Any) -> None:
    with pytest.raises(SampleError, match="interrupted"):
        pack(stop, **options)


def head_of(store: Store) -> bytes:
    return bytes(store.read(JOURNAL_NAME))


def names(store: Store) -> set[str]:
    return {name for name, _ in store.list()}


def shards_of(store: Store, part: str) -> set[str]:
    lines = bytes(store.read(part)).splitlines()
    return {entry["name"] for line in lines for entry in json.loads(line).get("entries", ())}


def test_each_line_is_sent_once_when_its_part_is_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, list[bytes]] = {}
    write = Store.write

    def noted(self: Store, name: str, data: Any) -> None:
        write(self, name, data)
        sent.setdefault(name, []).append(bytes(data) if isinstance(data, bytes) else b"")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", noted)
        # Uploads send the journal, in threads.
        interrupted(95, before=lambda: until(lambda: len(parts_of(head_of(store))) >= 2))
    parts = parts_of(head_of(store))
    assert len(parts) >= 2
    assert all(len(sent[name]) == 1 for name in parts)
    first_line = len(head_of(store).splitlines()[0])
    assert max(map(len, sent[JOURNAL_NAME])) < first_line + 2 * 1000
    lines = [json.loads(line) for line in stored_lines(store, head_of(store))]
    units = [(line["number"], line["end"]["samples"]) for line in lines[2:]]
    assert units == [(number, 10) for number in range(len(units))]


def test_resuming_keeps_whole_parts_and_gives_the_same_dataset(
    store: Store, tmp_path: Path
) -> None:
    pack(100, tmp_path / "expected")

    def four_are_there() -> bool:
        return {shard.split("-")[1] for shard in names(store) if shard.startswith("shard-")} >= {
            f"{number:06}" for number in range(4)
        }

    interrupted(65, before=lambda: until(four_are_there))
    # A part may name shards whose upload the error has ended.
    kept = [
        *takewhile(lambda part: shards_of(store, part) <= names(store), parts_of(head_of(store)))
    ]
    assert len(kept) >= 2
    interrupted(85, resume=True)
    assert parts_of(head_of(store))[: len(kept)] == kept
    pack(100, resume=True)
    found = {name: bytes(store.read(name)) for name in names(store)}
    assert without_ids(found) == without_ids(contents(tmp_path / "expected"))


def test_a_lost_shard_of_an_early_part_ends_what_is_kept(store: Store, tmp_path: Path) -> None:
    pack(100, tmp_path / "expected")
    interrupted(85)
    store.delete(next(name for name in names(store) if name.startswith("shard-000001-")))
    assert pack(100, resume=True).rows == 100
    found = {name: bytes(store.read(name)) for name in names(store)}
    assert without_ids(found) == without_ids(contents(tmp_path / "expected"))


def test_a_journal_that_lacks_a_part_is_damaged(store: Store) -> None:
    interrupted(85)
    store.delete(parts_of(head_of(store))[0])
    with pytest.raises(PackError, match=r"pack\.journal is damaged .*start again with overwrite"):
        pack(100, resume=True)
    pack(100, overwrite=True)
    assert not any(name.startswith(JOURNAL_NAME) for name in names(store))


@pytest.mark.parametrize("name", ["shard-000000.arrow", "../x", 1])
def test_a_journal_names_only_parts(store: Store, name: Any) -> None:
    interrupted(85)
    first, _, rest = head_of(store).partition(b"\n")
    store.write(
        JOURNAL_NAME, json.dumps({**json.loads(first), "parts": [name]}).encode() + b"\n" + rest
    )
    with pytest.raises(PackError, match=r"pack\.journal is damaged .*not names of parts"):
        pack(100, resume=True)


def test_a_discarded_pack_leaves_no_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = Store.write

    def noted(self: Store, name: str, data: Any) -> None:
        write(self, name, data)
        written.append(name)

    monkeypatch.setattr(Store, "write", noted)
    schema = fastio.Schema({"number": fastio.Scalar("int64")})
    writer = fastio.Writer(URL, schema, shard_size=80)
    for number in range(95):
        writer.write({"number": number})
    writer.discard()
    assert any(name.startswith(f"{JOURNAL_NAME}-") for name in written)
    assert names(store) == set()


def test_of_two_drivers_one_deletes_neither_journal_nor_parts_of_the_other(
    store: Store, tmp_path: Path
) -> None:
    """One begins first; the other is refused, or takes over what the first one has sent."""
    drivers = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        local = Journal(folder, {"source": "list"}, resume=False)
        with open(local.path, "ab") as file:
            file.writelines(b'{"end": %d}\n' % n for n in range(200))
        drivers.append((StoredJournal(store), local))
    (first, one), (second, other) = drivers
    first.claim(one.path)
    sent = names(store)
    assert sent == {JOURNAL_NAME, *first.parts}
    with pytest.raises(SourceChanged, match="written or deleted by another process"):
        second.claim(other.path)
    assert not second.delete()
    assert sent < names(store)  # and parts of the second one, which no journal names
    third = StoredJournal(store)
    with open(other.path, "wb") as taken:
        third.fetch(taken, {})
    third.claim(other.path)
    assert third.parts == first.parts
    for call in (first.check, lambda: first.send(one.path)):
        with pytest.raises(SourceChanged):
            call()
    assert not first.delete()
    assert sent < names(store)
    assert third.delete()
    assert not names(store) & sent
    one.close()
    other.close()
