"""Requests that are carried out twice, because an answer was lost and a client repeats them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError

from fastio.errors import SourceChanged, SourceNotFound
from fastio.store import Store, open_store, retry
from tests.servers import S3

_numbers = itertools.count()


@pytest.fixture
def store(s3: S3) -> Store:
    return open_store(f"{s3.bucket('repeated')}/{next(_numbers)}", s3.options())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.005)


def lost() -> GenericError:
    """Returns the error of a request whose answer did not arrive."""
    return GenericError("Generic S3 error: Server returned an error response with status code: 503")


def repeated(monkeypatch: pytest.MonkeyPatch, between: Callable[[], object] = int) -> None:
    """Carries conditional writes out twice, as a proxy does, with something between the two."""
    put = obstore.put

    def twice(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        put(*args, **options)
        between()
        return put(*args, **options)

    monkeypatch.setattr(obstore, "put", twice)


def test_a_new_object_that_is_written_twice_is_no_conflict(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated(monkeypatch)
    stamp = store.replace("new", b"one", None)
    assert stamp == store.stat("new")
    assert store.replace("new", b"two", stamp) == store.stat("new")


def test_an_object_that_is_replaced_twice_is_no_conflict(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = store.replace("old", b"one", None)
    repeated(monkeypatch)
    assert store.replace("old", b"two", stamp) == store.stat("old")
    assert store.read("old") == b"two"


@pytest.mark.parametrize("between", ["written", "deleted"])
def test_a_write_that_is_repeated_after_another_process_s_is_a_conflict(
    store: Store, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    stamp = store.replace("theirs", b"one", None)

    def others() -> None:
        if between == "written":
            store.write("theirs", b"six")
        else:
            store.delete("theirs")

    repeated(monkeypatch, others)
    with pytest.raises(SourceChanged, match="was changed by another process"):
        store.replace("theirs", b"two", stamp)
    assert store.exists("theirs") == (between == "written")
    if between == "written":
        assert store.read("theirs") == b"six"


def test_what_another_process_has_deleted_is_deleted(store: Store) -> None:
    """Google's and Microsoft's stores, and file systems of fsspec, answer that there is none."""
    store.delete("nothing")
    other = open_store("memory://repeated/folder", None)
    other.write("x", b"1")
    other.delete("x")
    other.delete("x")


def test_a_deletion_whose_answer_was_lost_succeeds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, calls = obstore.delete, []

    def answers(client: Any, name: str) -> None:
        calls.append(name)
        delete(client, name)
        raise FileNotFoundError(name) if len(calls) > 1 else lost()

    store.write("x", b"1")
    monkeypatch.setattr(obstore, "delete", answers)
    store.delete("x")
    assert len(calls) == 2
    with pytest.raises(SourceNotFound):
        store.stat("x")


def test_a_repeated_deletion_of_one_version_spares_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request was carried out, and another process has written the object since."""
    delete, calls = obstore.delete, []

    def replaced(client: Any, name: str) -> None:
        calls.append(name)
        delete(client, name)
        store.write(name, b"new")
        raise lost()

    stamp = store.replace("x", b"old", None)
    monkeypatch.setattr(obstore, "delete", replaced)
    store.delete("x", expect=stamp)
    assert len(calls) == 1
    assert store.read("x") == b"new"
