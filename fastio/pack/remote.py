"""A destination in an object store, which a dataset is packed to through a local staging folder.

The store gets the same files as a folder: first `pack.journal`, which names each shard before it
is uploaded, then the shards, several at a time, and last the manifest. So an interrupted pack is
not a dataset, and any machine can resume it: it uses the journal up to the first unit whose shards
are missing or have another size. A local shard is deleted after it was uploaded.

The journal is also the claim of one process to the destination (`stored_journal`), and is written
before anything else. A process checks its claim before each upload and between deletions. It
replaces the manifest only if that is still the version that was there when the claim began.

A process may be suspended right after such a check, so data does not depend on the checks. The
names of shards contain a random id of the process that writes them: a late upload or deletion
affects no shard of a later process. Shards that a new manifest does not need are deleted after it
was written, also where it overwrites a dataset: a process that has lost its claim, and whose shards
are deleted, can write no manifest any more. `gc` ensures that by `stored_manifest`.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import xxhash

from fastio.errors import PackConflict, PackError, SourceChanged, SourceNotFound, StoreError
from fastio.pack.destination import Destination, is_same
from fastio.pack.journal import APPEND_TO, WRITER, Journal, unreadable_journal
from fastio.pack.journal_file import check_not_in_use, in_use
from fastio.pack.names import is_own_name, remove_strays, shard_prefix
from fastio.pack.refusals import changed_meanwhile, not_for_paths, taken_over
from fastio.pack.stored_journal import (
    StoredJournal,
    delete_parts,
    known_ids,
    parts_of,
    renewed,
    stored_lines,
)
from fastio.pack.stored_manifest import renew_manifest, stamp_of
from fastio.pack.task_output import StoreOutput, TaskOutput, WrittenUnit, accept, upload
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, Manifest, ShardEntry, version_name
from fastio.packed.stored import fetch_to, manifest_on_disk
from fastio.runtime.ahead import in_order
from fastio.runtime.files import mapped, whole_file
from fastio.runtime.texts import FileSizes, Names
from fastio.runtime.threads import WAIT_S, DaemonPool, wait_for
from fastio.store import NoConditionalWrites, Stamp, is_remote, local_only, open_store

_UPLOADS = 4
_WAITING = 2  # shards that are finished while all uploads are busy
_DELETIONS = 16
_DELETIONS_PER_CHECK = 64  # objects that are deleted between two checks of the claim
_COPIES = 32  # shards of other processes that get their names at once
_JOURNAL_EVERY_S = 10.0  # how often the journal is sent while other processes upload shards


def open_destination(
    dst: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    staging: str | os.PathLike[str] | None,
) -> Destination:
    """Returns the destination of a path or URL; OptionError if an option does not fit it."""
    if is_remote(dst):
        return RemoteDestination(str(dst), storage_options, staging)
    if storage_options is not None or staging is not None:
        raise not_for_paths(dst)
    return Destination(Path(dst))


class RemoteDestination(Destination):
    """A dataset's folder in a store, with a local staging folder."""

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        staging: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(Path())  # the folder is made when it is opened
        self._store = open_store(url, storage_options)
        self._staging = None if staging is None else local_only(staging, "staging")
        self.name = self._store.url
        self._slots = threading.Semaphore(_UPLOADS + _WAITING)
        self._pool = DaemonPool(_UPLOADS, "fastio-upload")
        self._uploads: list[Future[None]] = []
        self._copy_slots = threading.Semaphore(_COPIES)
        self._stopped = threading.Event()
        self._is_writer = False
        self._journal_sent_s = -math.inf
        self._stored = StoredJournal(self._store)
        self._is_claimed = False
        self._base: Manifest | None = None  # of an append
        # The versions of manifests after the claim, by name, or None: only these are replaced.
        self._found: dict[str, Stamp | None] = {}

    def files(self) -> Mapping[str, int]:
        """Returns names and sizes of the objects that only a pack can have written."""
        try:
            listed = chain.from_iterable(map(self._store.stamped, self._store.pages()))
            return FileSizes((name, stamp.size) for name, stamp in listed if is_own_name(name))
        except SourceNotFound:
            return {}  # there is no such folder yet

    def delete(self, names: Iterable[str]) -> None:
        """See `Destination`. Deletes several objects at once, and stops if the claim is lost."""
        names = iter(Names(names))
        while some := list(islice(names, _DELETIONS_PER_CHECK)):
            try:
                if self._is_claimed:
                    self._stored.check()
            except SourceChanged as error:
                raise taken_over(self.name) from error
            for _ in in_order(self._store.delete, some, _DELETIONS):
                pass

    def _before(self, appends: bool) -> Mapping[str, int]:
        """See `Destination`. An append lists the objects once, in `prepare`."""
        if not appends:
            return self.files()
        found = {name: stamp_of(self._store, name) for name in (JOURNAL_NAME, MANIFEST_NAME)}
        return {name: stamp.size for name, stamp in found.items() if stamp is not None}

    def _make_room(self) -> bool:
        """See `Destination`. Does nothing: `finish` also deletes files of an unfinished pack."""
        return True

    def fence(self, newest: Manifest) -> None:
        """See `Destination`."""
        try:
            with suppress(NoConditionalWrites):
                renew_manifest(self._store, newest)
        except (SourceChanged, SourceNotFound) as error:
            raise in_use(self.name) from error

    def _open_journal(
        self, options: Mapping[str, Any], resume: bool, own: Mapping[str, int]
    ) -> Journal:
        """Makes the local folder, and opens a copy of the store's journal in it."""
        self._is_writer = options.get("source") == WRITER
        self.replaces = APPEND_TO not in options and MANIFEST_NAME in own
        self.folder = folder = self._make_folder()
        try:
            check_not_in_use(folder)
            remove_strays(folder, {JOURNAL_NAME})
            self._stored = StoredJournal(self._store, conditional=APPEND_TO in options)
            with whole_file(folder / JOURNAL_NAME) as file:
                if JOURNAL_NAME in own:
                    self._stored.fetch(file, own if resume else None)
                is_known = file.tell() or self._overwrites or APPEND_TO in options
                if MANIFEST_NAME in own and not is_known:
                    raise unreadable_journal(self.name)
            journal = Journal(folder, options, resume, self.name)
            self.pack_id = journal.id  # which is new for each process
        except BaseException as error:
            self._leave_folder()
            if isinstance(error, SourceChanged):
                raise in_use(self.name) from error
            raise
        try:
            self._claim(journal, MANIFEST_NAME in own)
        except BaseException:
            journal.close()
            self._leave_folder()
            raise
        return journal

    def _claim(self, journal: Journal, has_manifest: bool) -> None:
        """Claims the destination for this process, by writing the journal to the store.

        Args:
            journal: The local copy.
            has_manifest: Whether there was a manifest when the destination was listed.

        Raises:
            PackConflict: Another process has claimed it since it was listed.
        """
        with self._advice():
            try:
                self._stored.claim(journal.path)
            except SourceChanged as error:
                raise in_use(self.name) from error
            self._is_claimed = True
            found = self._found[MANIFEST_NAME] = stamp_of(self._store, MANIFEST_NAME)
        if not self._overwrites and (found is not None) != has_manifest:
            self._stored.delete()
            raise PackConflict(
                f"another process has just packed to {self.name}, or deleted the dataset there: "
                "check what is there with `fastio info`, then pack again"
            )

    @contextmanager
    def exclusive_access(self, discard: bool) -> Iterator[tuple[bool, Mapping[str, int]]]:
        """See `Destination`. A running pack or append fails when its journal is discarded.

        Meanwhile a journal of this process is there, so that no other process begins. If this one
        is killed, its journal is discarded like that of an unfinished append.
        """
        unfinished = self._stored.find() > 0
        if unfinished and not discard:
            yield True, self.files()
            return
        self._stored.claim_for_gc()
        self._is_claimed = True
        try:
            yield unfinished, self.files()
        finally:
            self._is_claimed = False
            self._stored.delete()

    def discard_beside_damage(self) -> list[int] | None:
        """See `Destination`. Leaves shards whose id is not in the journal."""
        self._stored.find()
        ids = known_ids(self._store)
        if not ids or stamp_of(self._store, MANIFEST_NAME) is None:
            return None
        self._stored.claim_for_gc(ids)
        self._is_claimed = True
        own = self.files()
        unneeded = self._files_of_pack(own, ids)
        self.delete(unneeded)
        self._stored.delete()  # not after an error: the ids are nowhere else
        return [own[name] for name in unneeded]

    def _manifest_bytes(self) -> bytes:
        return bytes(self._store.read(MANIFEST_NAME))

    def _remove_journal_if(self, is_unneeded: Callable[[Iterable[bytes]], bool]) -> None:
        """See `Destination`. A running pack is detected only if it writes its journal now."""
        try:
            stamp = self._store.stat(JOURNAL_NAME)
            if not stamp.size:  # has no meaning
                return
            head = bytes(self._store.read(JOURNAL_NAME, expect=stamp))
            if not is_unneeded(stored_lines(self._store, head)):
                return
            with suppress(NoConditionalWrites):
                stamp = self._store.replace(JOURNAL_NAME, renewed(head), stamp)
        except SourceNotFound:
            return
        except SourceChanged as error:
            raise in_use(self.name) from error
        self._store.delete(JOURNAL_NAME, stamp)
        delete_parts(self._store, parts_of(head))

    def _check_newest(self, base: Manifest) -> None:
        """See `Destination`. Keeps a copy of the manifest, which gets a second name later."""
        self._base = base
        name = version_name(base.version)
        self._found[name] = stamp_of(self._store, name)
        with open(self.folder / name, "wb") as file:
            fetch_to(self._store, MANIFEST_NAME, file, self._found[MANIFEST_NAME])
        if not is_same(Manifest(self.name, str(self.folder / name)), base):
            raise changed_meanwhile(self.name)

    def check(self, entry: ShardEntry) -> None:
        """See `Destination`. Does nothing: all shards were checked when it was opened."""

    def send(self, entry: ShardEntry) -> None:
        """See `Destination`; waits while many shards wait to be uploaded."""
        length = self._journal.path.stat().st_size
        self._wait_for(self._slots)
        self._uploads.append(self._pool.submit(self._upload, entry, length))

    def task_output(self) -> TaskOutput:
        """See `Destination`. Sends the plan, without which shards cannot be resumed."""
        with self._advice():
            self._stored.send(self._journal.path)
            super().task_output()
        self._pool.resize(_COPIES)
        return StoreOutput(self._store, self._staging)

    def record_written(self, written: WrittenUnit) -> None:
        """See `Destination`; waits while many shards wait for their names.

        Sends the journal now and then: it grows with every unit.
        """
        self._journal.append(written.unit)
        for entry in written.unit.entries:
            self._wait_for(self._copy_slots)
            self._uploads.append(self._pool.submit(self._accept, entry, written.ending))
        now = time.monotonic()
        if now - self._journal_sent_s > _JOURNAL_EVERY_S and not self._stored.is_sending():
            self._journal_sent_s = now
            length = self._journal.path.stat().st_size
            self._uploads.append(self._pool.submit(self._stored.send, self._journal.path, length))
        with self._advice():
            self._collect()

    def prepare(self, names: Names, base: Manifest | None) -> None:
        """See `Destination`; waits until all shards are uploaded."""
        with self._advice():
            for future in self._uploads:
                wait_for(future)
            listed = self.files()
            # The listing has no shards of a process that takes over from here on.
            self._stored.send(self._journal.path)
            if base is None:
                strays = self._strays(names, listed)
                kept = {JOURNAL_NAME, MANIFEST_NAME, *self._stored.parts}
                self._unneeded = Names(name for name in strays if name not in kept)
                return
            missing, others = names.compared(listed)
            begins = shard_prefix(base.version + 1)  # of those that were not resumed
            self._unneeded = Names(name for name in others if name.startswith(begins))
            if missing is not None or others.find(JOURNAL_NAME) is None:
                raise PackConflict(
                    "another process has deleted shards or the journal of this append to "
                    f"{self.name}, perhaps with `fastio gc --unfinished`: append again"
                )

    def finish(self) -> None:
        """See `Destination`. Publishes the manifest first."""
        with self._advice():
            path = self.folder / MANIFEST_NAME
            self._commit(path)
            try:
                self.delete(self._unneeded)
                self._stored.delete()
            except StoreError as error:
                if self._base is None:
                    raise
                raise PackError(
                    f"the append to {self.name} is complete, but its journal, or a shard that it "
                    f"does not need, cannot be deleted: {error}; delete it with `fastio gc`"
                ) from error
            path.unlink()
            self._journal.remove()

    def _commit(self, path: Path) -> None:
        """Writes the manifest; SourceChanged if another process has taken over or written one."""
        self._stored.send(self._journal.path)  # fails if the claim is lost
        if self._base is not None:
            older = version_name(self._base.version)
            self._store.replace(older, mapped(self.folder / older), self._found[older])
        if self._stored.is_conditional:
            self._store.replace(MANIFEST_NAME, mapped(path), self._found[MANIFEST_NAME])
        else:
            upload(self._store, path)

    def discard(self, names: Names) -> None:
        """See `Destination`. Deletes nothing if another process has taken over.

        The journal is deleted last, because without it another process may begin.
        """
        self._end_uploads()
        if self._stored.renew():
            if not self._is_committed(names):
                self.delete(name for name in self.files() if names.find(name) is not None)
            self._stored.delete()
        self._journal.remove()
        self._leave_folder()

    def close(self, keep: bool) -> None:
        """See `Destination`. The journal in the store stays if `keep`."""
        self._end_uploads()
        # An error here must not replace the error that ends the pack.
        with suppress(StoreError, SourceNotFound, SourceChanged):
            if not keep:
                self._stored.delete()
            # Shards of other processes may have been recorded since it was last sent.
            elif self._journal_sent_s > 0 and self._journal.path.exists():
                self._stored.send(self._journal.path, self._journal.path.stat().st_size)
        super().close(keep=True)
        self._leave_folder()
        self._store.close()

    def _newest(self) -> Manifest:
        return manifest_on_disk(self._store)

    # --- Uploads ----------------------------------------------------------------------------------

    def _upload(self, entry: ShardEntry, journal_length: int) -> None:
        """Sends a shard, after a journal that names it."""
        try:
            if self._stopped.is_set():
                return
            self._stored.send(self._journal.path, journal_length)
            self._stored.check()
            upload(self._store, self.folder / entry.name)
            (self.folder / entry.name).unlink()
        except BaseException as error:
            self._stopped.set()
            if isinstance(error, SourceNotFound):
                self._stored.check()  # another process may have taken over, and deleted the shard
            raise
        finally:
            self._slots.release()

    def _accept(self, entry: ShardEntry, ending: str) -> None:
        """Gives a shard that another process has uploaded its name."""
        try:
            if not self._stopped.is_set():
                self._stored.check()
                accept(self._store, entry, ending)
        except SourceNotFound as error:
            self._stopped.set()
            raise self._missing(entry.name) from error
        except BaseException:
            self._stopped.set()
            raise
        finally:
            self._copy_slots.release()

    def _wait_for(self, slots: threading.Semaphore) -> None:
        """Takes a slot, after which the errors of uploads that have ended are raised."""
        while not slots.acquire(timeout=WAIT_S):
            pass
        try:
            with self._advice():
                self._collect()
        except BaseException:
            slots.release()
            raise

    def _collect(self) -> None:
        """Raises the errors of uploads that have ended."""
        done = [future for future in self._uploads if future.done()]
        self._uploads = [future for future in self._uploads if not future.done()]
        for future in done:
            future.result()

    def _end_uploads(self) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _advice(self) -> Iterator[None]:
        """Raises errors of the store as PackError, with advice on the uploaded files."""
        try:
            yield
        except NoConditionalWrites as error:
            raise PackError(
                f"cannot append to {self.name}: its store does not support conditional writes, "
                f"which an append needs ({error}). Use s3, gs or az with obstore, or a newer server"
            ) from error
        except SourceChanged as error:
            conflict = taken_over if self._base is None else changed_meanwhile
            raise conflict(self.name) from error
        except (StoreError, SourceNotFound) as error:
            if self._stored.is_new:
                raise PackError(f"{error}; nothing was uploaded") from error
            how = "resume (--resume)"
            if self._base is not None:
                how = "append and resume (--append --resume)"
            advice = f"the uploaded files are kept: continue with {how}"
            if self._is_writer:
                advice = "a Writer cannot continue: write all of its samples again"
            raise PackError(f"{error}; {advice}") from error

    # --- The local folder -------------------------------------------------------------------------

    def _make_folder(self) -> Path:
        if self._staging is None:
            return Path(tempfile.mkdtemp(prefix="fastio-pack-"))
        # Each destination has its own folder, so that packs to different ones do not mix files.
        name = f"fastio-{xxhash.xxh3_64_hexdigest(self.name.encode())}"
        folder = Path(self._staging) / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PackError(
                f"{folder} is a link or belongs to another user: delete it, or choose another "
                "folder (staging, --staging)"
            )
        return folder

    def _leave_folder(self) -> None:
        """Deletes the local folder; the store's journal has all information."""
        if self._staging is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            with suppress(OSError):
                remove_strays(self.folder, set())
                self.folder.rmdir()
