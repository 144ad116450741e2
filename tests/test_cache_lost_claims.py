"""A claim that is lost while its owner lives: whoever comes late harms nobody, and is told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastio import Cache, CacheError
from fastio.cache import CacheFolder, Source

MIB = 1 << 20
PIECE = 64 << 10
OURS, THEIRS = b"a" * PIECE, b"b" * PIECE


@pytest.fixture
def first(tmp_path: Path) -> Iterator[CacheFolder]:
    opened = CacheFolder(tmp_path / "cache", 4 * MIB)
    yield opened
    opened.close()


@pytest.fixture
def second(first: CacheFolder) -> Iterator[CacheFolder]:
    opened = CacheFolder(first.path, 4 * MIB)
    yield opened
    opened.close()


def source_of(folder: CacheFolder) -> Source:
    return folder.source("http://host/data", "0123456789abcdef", 1000, 10, 100 * PIECE)


def lose_claims(folder: CacheFolder) -> None:
    """Others take its process for dead from now on, as where they cannot see its membership."""
    (folder.path / "members" / folder.token).unlink()


def assert_whole_and_counted_once(folder: CacheFolder) -> None:
    source = source_of(folder)
    assert folder.file(source, 1).read_bytes() == THEIRS
    assert folder.has(source, 1, PIECE)
    assert folder.claim(source, {1: PIECE}) == {1: "ready"}
    assert list((folder.path / "tmp").iterdir()) == []
    cache = Cache(folder.path)
    status, check = cache.status(), cache.verify()
    cache.close()
    assert (status.pieces, status.bytes, status.claims) == (1, PIECE, 0)
    assert (status.misses, status.fetched_bytes) == (1, PIECE)
    assert (check.damaged, check.strays) == ([], [])


def test_what_was_written_before_the_claim_was_lost_is_published_in_vain(
    first: CacheFolder, second: CacheFolder
) -> None:
    assert first.claim(source_of(first), {1: PIECE}) == {1: "mine"}
    late = first.write(source_of(first), 1, [OURS])
    lose_claims(first)
    assert second.claim(source_of(second), {1: PIECE}) == {1: "mine"}
    assert second.store(source_of(second), 1, [THEIRS])
    assert first.publish(source_of(first), {1: late}) == set()
    assert_whole_and_counted_once(second)


def test_what_is_written_after_the_claim_was_lost_is_published_in_vain(
    first: CacheFolder, second: CacheFolder
) -> None:
    assert first.claim(source_of(first), {1: PIECE}) == {1: "mine"}
    lose_claims(first)
    assert second.claim(source_of(second), {1: PIECE}) == {1: "mine"}
    assert second.store(source_of(second), 1, [THEIRS])
    assert not first.store(source_of(first), 1, [OURS])
    first.abandon(source_of(first), [1])
    assert_whole_and_counted_once(second)


def test_one_that_comes_late_leaves_what_another_is_writing(
    first: CacheFolder, second: CacheFolder
) -> None:
    assert first.claim(source_of(first), {1: PIECE}) == {1: "mine"}
    lose_claims(first)
    assert second.claim(source_of(second), {1: PIECE}) == {1: "mine"}
    written = second.write(source_of(second), 1, [THEIRS])
    assert not first.store(source_of(first), 1, [OURS])
    assert not first.has(source_of(first), 1, PIECE)
    assert second.publish(source_of(second), {1: written}) == {1}
    assert_whole_and_counted_once(second)


def test_a_claim_that_was_given_back_and_taken_again_is_the_second_writers(
    first: CacheFolder,
) -> None:
    source = source_of(first)
    first.claim(source, {1: PIECE})
    late = first.write(source, 1, [OURS])
    first.abandon(source, [1])
    assert first.claim(source, {1: PIECE}) == {1: "mine"}
    written = first.write(source, 1, [THEIRS])
    assert first.publish(source, {1: late}) == set()
    assert first.publish(source, {1: written}) == {1}
    assert_whole_and_counted_once(first)


def test_what_is_abandoned_leaves_nothing_that_was_written(first: CacheFolder) -> None:
    source = source_of(first)
    first.claim(source, {1: PIECE, 11: PIECE})
    first.write(source, 1, [OURS])
    kept = first.write(source, 11, [OURS])
    first.abandon(source, [1])
    assert list((first.path / "tmp").iterdir()) == [first.path / "tmp" / kept.name]
    assert first.publish(source, {11: kept}) == {11}


def test_a_folder_that_was_made_again_is_not_touched_by_who_has_the_old_one(
    tmp_path: Path,
) -> None:
    old = CacheFolder(tmp_path / "cache", 4 * MIB)
    source = source_of(old)
    old.claim(source, {2: PIECE})
    assert old.store(source, 2, [OURS])
    old.claim(source, {1: PIECE, 3: PIECE})
    shutil.rmtree(old.path)
    new = CacheFolder(tmp_path / "cache", 4 * MIB)
    assert new.claim(source_of(new), {1: PIECE}) == {1: "mine"}
    assert new.store(source_of(new), 1, [THEIRS])
    assert not old.store(source, 1, [OURS])
    old.abandon(source, [1])
    with pytest.raises(CacheError, match="was deleted"):
        old.drop(source, [1])
    old.close()  # with a claim that is open
    assert_whole_and_counted_once(new)
    new.close()


def test_a_publication_that_fails_leaves_its_claims_to_be_abandoned(
    first: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(first)
    first.claim(source, {1: PIECE, 2: PIECE})
    written = {number: first.write(source, number, [OURS]) for number in (1, 2)}
    put = first.files.put

    def put_one(file: object, key: str, number: int) -> bool:
        if number == 2:
            raise OSError(30, "Read-only file system")
        return put(written[number], key, number)

    with monkeypatch.context() as patch:
        patch.setattr(first.files, "put", put_one)
        with pytest.raises(OSError, match="Read-only"):
            first.publish(source, written)
    first.abandon(source, [1, 2])
    assert not first.has(source, 1, PIECE)
    assert list((first.path / "tmp").iterdir()) == []
    assert first.claim(source, {1: PIECE}) == {1: "mine"}
    assert first.store(source, 1, [THEIRS])
    assert_whole_and_counted_once(first)
