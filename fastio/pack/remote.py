"""Where a dataset is packed to: a folder or, with a local staging folder, a place in a store.

A store gets the same files as a folder: `pack.journal` first, which names each shard before it is
sent, then the shards, several at once, and the manifest last. So an interrupted pack is no dataset,
and any machine can go on with it: it believes the journal as far as the shards that it names are
there with their sizes. A shard is deleted here when the store says that it has it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from fastio.errors import PackError, SourceNotFound, StoreError
from fastio.pack.destination import Destination, is_own_name, own_files, remove_strays
from fastio.pack.journal import Journal, check_not_in_use
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, Manifest, ShardEntry
from fastio.runtime.files import whole_file
from fastio.runtime.threads import WAIT_S, DaemonPool, wait_for
from fastio.store import is_remote, open_store

_UPLOADS = 4
_WAITING = 2  # shards that are finished while all uploads are busy
_DELETIONS = 16


def open_destination(
    dst: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    staging: str | os.PathLike[str] | None,
) -> Destination:
    """Returns the destination of a path or URL; PackError if an option does not fit it."""
    if is_remote(dst):
        return RemoteDestination(str(dst), storage_options, staging)
    if storage_options is not None or staging is not None:
        raise PackError(
            "storage_options and staging can only be used with a URL as the destination, and "
            f"{os.fspath(dst)} is a local path"
        )
    return Destination(Path(dst))


class RemoteDestination(Destination):
    """A dataset's place in a store, with a local staging folder."""

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        staging: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(Path())  # the folder is made when it is opened
        self._store = open_store(url, storage_options)
        self._staging = staging
        self.name = self._store.url
        self._slots = threading.Semaphore(_UPLOADS + _WAITING)
        self._pool = DaemonPool(_UPLOADS, "fastio-upload")
        self._uploads: list[Future[None]] = []
        self._stopped = threading.Event()
        self._journal_lock = threading.Lock()
        self._journaled = 0  # bytes of the journal that the store has

    def _own_files(self) -> dict[str, int]:
        """Returns names and sizes of the objects that only a pack can have written."""
        try:
            listed = self._store.list()
            return {name: stamp.size for name, stamp in listed if is_own_name(name)}
        except SourceNotFound:
            return {}  # there is no such folder yet

    def _delete(self, names: Iterable[str]) -> None:
        """See `Destination`. Deletes several objects at once."""
        left = set(names)
        if MANIFEST_NAME in left:
            left.remove(MANIFEST_NAME)
            self._store.delete(MANIFEST_NAME)
        with DaemonPool(_DELETIONS, "fastio-delete") as pool:
            for _ in pool.map(self._store.delete, sorted(left)):
                pass

    def _open_journal(
        self, options: Mapping[str, Any], resume: bool, own: Mapping[str, int]
    ) -> Journal:
        """Makes the local folder, and opens the journal in it with what is in the store."""
        self.folder = folder = self._make_folder()
        try:
            if JOURNAL_NAME in own_files(folder):
                check_not_in_use(folder)
            remove_strays(folder, {JOURNAL_NAME})
            kept = b""
            if resume and JOURNAL_NAME in own:
                kept = _believed(bytes(self._store.read(JOURNAL_NAME)), own)
            with whole_file(folder / JOURNAL_NAME) as file:
                file.write(kept)
            return Journal(folder, options, resume)
        except BaseException:
            self._leave_folder()
            raise

    def settle(self, base: Manifest) -> bool:
        """See `Destination`."""
        raise PackError(f"appending to a URL is not supported yet: {self.name}")

    def check(self, entry: ShardEntry) -> None:
        """See `Destination`; opening looked for all shards."""

    def send(self, entry: ShardEntry) -> None:
        """See `Destination`; waits while many shards wait to be uploaded."""
        length = self._journal.path.stat().st_size
        while not self._slots.acquire(timeout=WAIT_S):
            pass
        with self._advice():
            self._collect()
        self._uploads.append(self._pool.submit(self._upload, entry, length))

    def prepare(self, names: set[str], base: Manifest | None) -> None:
        """See `Destination`; waits until all shards are uploaded."""
        with self._advice():
            for upload in self._uploads:
                wait_for(upload)
            self._delete(set(self._own_files()) - names - {JOURNAL_NAME, MANIFEST_NAME})

    def finish(self) -> None:
        """See `Destination`."""
        with self._advice():
            path = self.folder / MANIFEST_NAME
            self._send(MANIFEST_NAME, path.stat().st_size)
            self._store.delete(JOURNAL_NAME)
            path.unlink()
            super().finish()

    def discard(self, names: set[str], base: Manifest | None) -> None:
        """See `Destination`."""
        self._end_uploads()
        self._delete(self._own_files())
        super().discard(names, None)
        self._leave_folder()

    def close(self, keep: bool) -> None:
        """See `Destination`. The journal in the store stays in any case."""
        self._end_uploads()
        super().close(keep=True)
        self._leave_folder()
        self._store.close()

    # --- Uploads ----------------------------------------------------------------------------------

    def _upload(self, entry: ShardEntry, journal_length: int) -> None:
        """Sends a shard, after a journal that names it."""
        try:
            if self._stopped.is_set():
                return
            self._send_journal(journal_length)
            self._send(entry.name, entry.bytes)
            (self.folder / entry.name).unlink()
        except BaseException:
            self._stopped.set()
            raise
        finally:
            self._slots.release()

    def _send_journal(self, length: int) -> None:
        with self._journal_lock:
            if self._journaled < length:
                lines = self._journal.path.read_bytes()
                lines = lines[: lines.rfind(b"\n") + 1]
                self._store.write(JOURNAL_NAME, lines)
                self._journaled = len(lines)

    def _send(self, name: str, nbytes: int) -> None:
        self._store.write(name, self.folder / name)
        found = self._store.size(name)
        if found != nbytes:
            raise PackError(
                f"{self.name.rstrip('/')}/{name} has {found:,} bytes after it was uploaded, "
                f"expected {nbytes:,}"
            )

    def _collect(self) -> None:
        """Raises the errors of uploads that have ended."""
        done = [upload for upload in self._uploads if upload.done()]
        self._uploads = [upload for upload in self._uploads if not upload.done()]
        for upload in done:
            upload.result()

    def _end_uploads(self) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _advice(self) -> Iterator[None]:
        """Adds to errors of the store what to do about what is uploaded already."""
        try:
            yield
        except (StoreError, SourceNotFound) as error:
            raise PackError(
                f"{error}; the uploaded files are kept: continue with resume (--resume)"
            ) from error

    # --- The local folder -------------------------------------------------------------------------

    def _make_folder(self) -> Path:
        if self._staging is None:
            return Path(tempfile.mkdtemp(prefix="fastio-pack-"))
        # One for each destination: two packs never meet, and nothing of others is in it.
        folder = Path(self._staging) / f"fastio-{xxhash.xxh3_64_hexdigest(self.name.encode())}"
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


def _believed(journal: bytes, sizes: Mapping[str, int]) -> bytes:
    """Returns the lines of a journal up to the first unit whose shards are not all in the store."""
    kept = []
    for line in journal.splitlines(keepends=True):
        try:
            entries = json.loads(line).get("entries", ())
            if any(sizes.get(entry["name"]) != entry["bytes"] for entry in entries):
                break
        except (AttributeError, KeyError, TypeError, ValueError):
            return journal  # whoever reads it says what is wrong with it
        kept.append(line)
    return b"".join(kept)
