"""A process that packs to a store is suspended, and continues after others have gone on there.

What it sends then must not change a dataset of the others, wherever it was suspended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import fastio
from fastio import PackConflict, PackError, SampleError
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME
from fastio.store import Store
from tests.test_pack_claims import SINGLE, SIZE, Place, has_shards, s3_place, until_it_wins

__all__ = ["s3_place"]  # a fixture


def suspended(method: str, prefix: str, meanwhile: Callable[[], object], number: int = 1) -> Any:
    """Suspends the process right before it sends a request, and does something meanwhile.

    Args:
        method: A method of `Store`.
        prefix: How the name of the object begins.
        meanwhile: What happens before the request is sent.
        number: Which of these requests it is, from 1.
    """
    patch, original, count = pytest.MonkeyPatch(), getattr(Store, method), 0

    def send(self: Store, name: str, *rest: Any, **options: Any) -> Any:
        nonlocal count
        count += name.startswith(prefix)
        if name.startswith(prefix) and count == number:
            patch.undo()
            meanwhile()
        return original(self, name, *rest, **options)

    patch.setattr(Store, method, send)
    return patch


def interrupted(place: Place, count: int, shards: int, **options: Any) -> None:
    """A pack or an append that ends before its last sample, after shards were uploaded."""
    before = len([name for name in place.contents() if name.startswith("shard-")])

    def samples() -> Iterator[int]:
        yield from range(count)
        has_shards(place, before + shards)
        raise RuntimeError("interrupted")

    with pytest.raises(SampleError, match="interrupted"):
        place.pack(samples(), **options)


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_a_shard_that_arrives_late_does_not_replace_one_of_another_pack(
    s3_place: Place, how: str
) -> None:
    numbers = range(60) if how == "resume" else range(100, 160)

    def take() -> None:
        until_it_wins(lambda: s3_place.pack(iter(numbers), **{how: True}))

    suspended("write", "shard-", take, number=2)
    with pytest.raises(PackConflict, match="another process has taken over"):
        s3_place.pack(iter(range(60)))
    assert s3_place.rows() == list(numbers)
    s3_place.gc()
    assert s3_place.rows() == list(numbers)


def test_a_late_deletion_of_an_overwriting_pack_spares_the_next_pack_s_shards(
    s3_place: Place,
) -> None:
    """The two have the same source, so that their shards have the same bytes."""
    s3_place.pack(range(60))
    suspended("delete", "", lambda: s3_place.pack(range(60), overwrite=True))
    with suppress(PackConflict):  # only if it has more to delete
        s3_place.pack(range(60), overwrite=True)
    assert s3_place.rows() == list(range(60))


def test_a_late_deletion_of_gc_spares_shards_of_an_append(s3_place: Place) -> None:
    """The append has the samples of the unfinished one whose shards gc deletes."""
    s3_place.pack(range(20))
    interrupted(s3_place, 45, 3, append=True)

    def others() -> None:
        s3_place.gc(unfinished=True)
        s3_place.pack(iter(range(45)), append=True)

    suspended("delete", "shard-v2", others)
    with suppress(PackConflict):
        s3_place.gc(unfinished=True)
    assert s3_place.rows() == [*range(20), *range(45)]


def test_a_late_deletion_of_a_writer_spares_shards_of_the_next_one(s3_place: Place) -> None:
    options: dict[str, Any] = {"shard_size": SIZE, "storage_options": s3_place.options}

    def write(writer: fastio.Writer) -> fastio.Writer:
        for number in range(40):
            writer.write(number)
        return writer

    def second() -> None:
        with fastio.Writer(s3_place.url, SINGLE, overwrite=True, **options) as writer:
            write(writer)

    first = write(fastio.Writer(s3_place.url, SINGLE, **options))
    has_shards(s3_place, 2)
    suspended("delete", "shard-", second)
    with suppress(PackConflict):
        first.discard()
    assert s3_place.rows() == list(range(40))


# --- Manifests ------------------------------------------------------------------------------------


def test_a_late_manifest_of_an_append_never_names_shards_that_gc_has_deleted(
    s3_place: Place,
) -> None:
    s3_place.pack(range(20))
    suspended("replace", MANIFEST_NAME, lambda: s3_place.gc(unfinished=True))
    with pytest.raises(PackConflict, match=r"has changed .* since this append began"):
        s3_place.pack(range(40), append=True)
    assert s3_place.rows() == list(range(20))
    s3_place.pack([20], append=True)
    assert s3_place.rows() == list(range(21))


def test_a_late_manifest_of_a_pack_names_shards_that_the_next_one_has_not_deleted(
    s3_place: Place,
) -> None:
    """The next one has begun to overwrite, and was interrupted."""
    suspended("replace", MANIFEST_NAME, lambda: interrupted(s3_place, 45, 4, overwrite=True))
    s3_place.pack(range(60))
    assert s3_place.rows() == list(range(60))
    s3_place.gc(unfinished=True)
    assert s3_place.rows() == list(range(60))


def test_a_pack_that_another_one_has_overtaken_deletes_none_of_its_shards(
    s3_place: Place,
) -> None:
    """The first one's manifest arrives late, after the second one has listed what is there."""

    def second() -> None:
        suspended("replace", MANIFEST_NAME, ended.append)  # ... until the first one has ended
        with pytest.raises(PackConflict):
            s3_place.pack(range(100, 130), overwrite=True)

    class Ended(list[int]):
        def append(self, value: int = 0) -> None:
            s3_place.store().replace(MANIFEST_NAME, self.manifest, None)

        manifest = b""

    ended = Ended()
    replace = Store.replace

    def first(self: Store, name: str, data: Any, *rest: Any) -> Any:
        if name == MANIFEST_NAME:
            patch.undo()
            ended.manifest = bytes(data)
            second()
        return replace(self, name, data, *rest)

    patch = pytest.MonkeyPatch()
    patch.setattr(Store, "replace", first)
    s3_place.pack(range(60))
    assert s3_place.rows() == list(range(60))


def test_overwriting_keeps_the_dataset_until_the_new_one_is_complete(s3_place: Place) -> None:
    s3_place.pack(range(20))
    interrupted(s3_place, 45, 3, overwrite=True)
    assert s3_place.rows() == list(range(20))
    with pytest.raises(PackError, match="unfinished append, pack or gc"):
        s3_place.pack([1], append=True)
    assert s3_place.gc().unfinished
    s3_place.pack((number for number in range(60)), resume=True)
    assert s3_place.rows() == list(range(60))
    names = {name.partition("-")[0] for name in s3_place.contents()}
    assert names == {"shard", MANIFEST_NAME}
    assert len(s3_place.contents()) == 7


def test_a_resumed_append_deletes_shards_that_it_did_not_resume(s3_place: Place) -> None:
    """Uploads end in any order: a killed append has left shards behind one that is missing."""
    s3_place.pack(range(20))
    interrupted(s3_place, 45, 3, append=True)
    first = next(name for name in s3_place.contents() if name.startswith("shard-v2-000000-"))
    s3_place.store().delete(first)
    s3_place.pack((number for number in range(60)), append=True, resume=True)
    assert s3_place.rows() == [*range(20), *range(60)]
    assert len([name for name in s3_place.contents() if name.startswith("shard-v2-")]) == 6
    assert s3_place.gc().files == 0


# --- Processes ------------------------------------------------------------------------------------

SLEEPER = """
import json, signal, sys, threading
import fastio
from fastio.store import Store

url, options, prefix, method = sys.argv[1:]
send, count = getattr(Store, method), 0


def sleepy(self, name, *rest):
    global count
    count += name.startswith(prefix)
    if count == 2 and name.startswith(prefix):
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # stops all threads
    return send(self, name, *rest)


setattr(Store, method, sleepy)
fastio.pack(range(60), url, shard_size=80, storage_options=json.loads(options), workers=1)
"""


def test_a_stopped_process_that_is_continued_changes_nothing(s3_place: Place) -> None:
    arguments = [s3_place.url, json.dumps(s3_place.options), "shard-", "write"]
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            s3_place.pack(range(100, 160), overwrite=True)
            assert JOURNAL_NAME not in s3_place.contents()
        finally:
            os.kill(process.pid, signal.SIGCONT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "PackConflict: another process has taken over" in errors
    assert s3_place.rows() == list(range(100, 160))
    assert s3_place.gc().files == 1  # the shard that it uploaded late
    assert s3_place.rows() == list(range(100, 160))


# --- Datasets with the same fingerprint -----------------------------------------------------------


def test_an_append_does_not_name_shards_of_an_equal_dataset_that_was_overwritten(
    s3_place: Place,
) -> None:
    s3_place.pack(range(20))
    suspended("replace", JOURNAL_NAME, lambda: s3_place.pack(range(20), overwrite=True))
    with pytest.raises(PackConflict, match=r"has changed .* since this append began"):
        s3_place.pack([20], append=True)
    assert s3_place.rows() == list(range(20))


def test_gc_deletes_no_shards_of_an_equal_dataset_whose_manifest_arrives_late(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives after gc has read the old manifest, whose shards have other names."""
    s3_place.pack(range(20))
    replace, late = Store.replace, list[bytes]()

    def overtaken(self: Store, name: str, data: Any, *rest: Any) -> Any:
        if name == MANIFEST_NAME and not late:
            late.append(bytes(data))
            # The third request is that of `fence`, after both manifests were read.
            suspended("stat", MANIFEST_NAME, arrive, number=3)
            with pytest.raises(PackConflict):
                s3_place.gc(unfinished=True)
        return replace(self, name, data, *rest)

    def arrive() -> None:
        store = s3_place.store()
        replace(store, MANIFEST_NAME, late[0], store.stat(MANIFEST_NAME))

    monkeypatch.setattr(Store, "replace", overtaken)
    with suppress(PackConflict):  # the manifest has arrived already
        s3_place.pack(range(20), overwrite=True)
    assert s3_place.rows() == list(range(20))


def test_a_late_copy_of_an_old_manifest_replaces_none_of_the_next_dataset(
    s3_place: Place,
) -> None:
    s3_place.pack(range(20))

    def others() -> None:
        s3_place.pack(range(100, 130), overwrite=True)
        s3_place.pack([130], append=True)

    suspended("replace", "manifest-", others)
    with pytest.raises(PackConflict):
        s3_place.pack([20], append=True)
    assert s3_place.rows() == list(range(100, 131))
    with fastio.open(s3_place.url, version=1, storage_options=s3_place.options) as dataset:
        assert list(dataset) == list(range(100, 130))
