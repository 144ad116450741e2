"""Where a dataset is packed to: a folder, or a place in a store.

This module knows which files may be there already, and which belong to a pack and can be deleted.

A store gets the same files as a folder: `pack.journal` first, which names each shard before it is
sent, then the shards, several at once, and the manifest last. So an interrupted pack is no dataset,
and any machine can go on with it: it believes the journal as far as the shards that it names are
there with their sizes. A shard is deleted here when the store says that it has it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from fastio.errors import (
    DatasetExists,
    DatasetNotFound,
    PackError,
    SourceNotFound,
    StoreError,
)
from fastio.pack.journal import FinishedUnit, Journal, check_not_in_use, differences
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, Dataset, Manifest, ShardEntry
from fastio.runtime.files import TEMPORARY_ENDING, flush_folder, whole_file
from fastio.runtime.threads import WAIT_S, DaemonPool, wait_for
from fastio.store import is_remote, open_store

_OWN_NAME = re.compile(
    rf"(?:shard-[0-9]{{6,}}(?:-[0-9]+)?\.arrow|{re.escape(MANIFEST_NAME)})(?:{TEMPORARY_ENDING})?"
    rf"|{re.escape(JOURNAL_NAME)}"
)
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


def shard_name(unit: int, part: int) -> str:
    """Returns the file name of a shard, given its unit and its number in it."""
    return f"shard-{unit:06d}-{part}.arrow" if part else f"shard-{unit:06d}.arrow"


def complete_dataset(
    dst: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    identity: Mapping[str, Any],
) -> Manifest | None:
    """Returns the manifest of a dataset that is complete; None if there is none, or a journal.

    Args:
        dst, storage_options: The destination.
        identity: The options that the dataset's bytes depend on, see `packer.Encoder`.

    Raises:
        DatasetExists: It was packed of another source, or with other options.
    """
    try:
        with Dataset(dst, storage_options) as dataset:
            if _has_journal(dataset):
                return None
            manifest = dataset.manifest
    except DatasetNotFound:
        return None
    packing = manifest.packing
    found = {**packing, "schema": manifest.schema.to_json(), "shard_size": packing["shard_bytes"]}
    if "tokens" in found:  # which also counts empty documents there
        found["tokens"] = {key: found["tokens"].get(key) for key in identity.get("tokens", ())}
    # Of the codebook, the manifest only says where it is from.
    different = differences(found, identity, found.keys() & identity.keys() - {"codebook"})
    if different:
        raise DatasetExists(
            f"{manifest.folder} contains a complete dataset that was packed of another source or "
            f"with other options: {different}. Choose another destination, or replace it with "
            "overwrite (--overwrite)"
        )
    return manifest


def _has_journal(dataset: Dataset) -> bool:
    if dataset.remote_part is None:
        return (Path(dataset.path) / JOURNAL_NAME).exists()
    try:
        return dataset.store.stat(JOURNAL_NAME) is not None
    except SourceNotFound:
        return False


class Destination:
    """A folder that a dataset is packed to. Used by one thread.

    Attributes:
        name: The path or URL, for messages.
        folder: The folder in which the packer writes shards and the manifest.
    """

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.folder = folder

    def open(self, options: Mapping[str, Any], resume: bool, overwrite: bool) -> Journal:
        """Prepares the destination, and returns the journal of what is finished. Called first.

        Raises:
            DatasetExists, PackError: As for `_check_may_pack`, or the journal has other options.
            OSError: It cannot be created or changed.
        """
        if resume and overwrite:
            raise PackError("resume and overwrite cannot be combined: choose one")
        own = self._own_files()
        if overwrite:
            self._delete(own)
        else:
            _check_may_pack(self.name, own, resume)
        self._journal = self._open_journal(options, resume, own)
        return self._journal

    def _own_files(self) -> Mapping[str, int]:
        """Returns names and sizes of the files that only a pack can have written."""
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise PackError(f"{folder} is a file: give a folder to pack to")
        folder.mkdir(parents=True, exist_ok=True)
        return {name: (folder / name).lstat().st_size for name in own_files(folder)}

    def _delete(self, names: Iterable[str]) -> None:
        """Deletes files, the manifest first: without it, the rest is not a dataset."""
        if JOURNAL_NAME in names:
            check_not_in_use(self.folder)
        for name in sorted(names, key=lambda name: name != MANIFEST_NAME):
            (self.folder / name).unlink()
            if name == MANIFEST_NAME:
                flush_folder(self.folder)

    def _open_journal(
        self, options: Mapping[str, Any], resume: bool, own: Mapping[str, int]
    ) -> Journal:
        return Journal(self.folder, options, resume)

    def check(self, entry: ShardEntry) -> None:
        """Raises PackError unless a shard that the journal calls finished is there."""
        path = self.folder / entry.name
        found = path.stat().st_size if path.is_file() else None
        if found != entry.bytes:
            state = "is missing" if found is None else f"has {found} bytes"
            raise PackError(
                f"cannot resume: {path} {state}, expected {entry.bytes} bytes; start again with "
                "overwrite"
            )

    def record(self, unit: FinishedUnit) -> None:
        """Notes that all shards of a unit were written to the folder."""
        self._journal.append(unit)

    def send(self, entry: ShardEntry) -> None:
        """Takes a shard that was written to the folder, after `record` if it is a unit's last."""

    def keep_only(self, names: Iterable[str]) -> None:
        """Deletes the pack's own files except those named, after all uploads."""
        remove_strays(self.folder, set(names))

    def finish(self) -> None:
        """Takes the manifest that was written to the folder, which completes the dataset."""
        self._journal.remove()

    def discard(self) -> None:
        """Deletes everything that was written."""
        remove_strays(self.folder, {JOURNAL_NAME})
        self._journal.remove()

    def close(self, keep: bool) -> None:
        """Closes it. If `keep`, something is finished and can be resumed. Idempotent."""
        if not keep:
            self._journal.remove()
        self._journal.close()


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
            return {name: stamp.size for name, stamp in listed if _OWN_NAME.fullmatch(name)}
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

    def keep_only(self, names: Iterable[str]) -> None:
        """See `Destination`; waits until all shards are uploaded."""
        with self._advice():
            for upload in self._uploads:
                wait_for(upload)
            self._delete(set(self._own_files()) - set(names))

    def finish(self) -> None:
        """See `Destination`."""
        with self._advice():
            path = self.folder / MANIFEST_NAME
            self._send(MANIFEST_NAME, path.stat().st_size)
            self._store.delete(JOURNAL_NAME)
            path.unlink()
            super().finish()

    def discard(self) -> None:
        """See `Destination`."""
        self._end_uploads()
        self._delete(self._own_files())
        super().discard()
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


def _check_may_pack(name: str, own: Collection[str], resume: bool) -> None:
    """Checks that a destination may be packed to without overwriting, given its own files.

    Raises:
        DatasetExists: It holds a dataset.
        PackError: It holds a half-written dataset, which is not to be resumed.
    """
    has_journal = JOURNAL_NAME in own
    if MANIFEST_NAME in own and not (resume and has_journal):
        raise DatasetExists(
            f"{name} contains a dataset already; choose another destination, or replace it with "
            "overwrite (--overwrite)"
        )
    if own and not has_journal:
        some = sorted(own)[:3]
        raise PackError(
            f"{name} contains parts of a dataset ({', '.join(some)}{', ...' * (len(own) > 3)}) "
            "but no journal to resume from; choose another destination, or replace them with "
            "overwrite (--overwrite)"
        )
    if has_journal and not resume:
        raise PackError(
            f"{name} contains an incomplete dataset; finish it with resume (--resume), or "
            "start again with overwrite (--overwrite)"
        )


def own_files(folder: Path) -> list[str]:
    """Returns the names of the files in a folder that only a pack can have written, sorted."""
    return sorted(name for name in os.listdir(folder) if _OWN_NAME.fullmatch(name))


def remove_strays(folder: Path, kept: set[str]) -> None:
    """Deletes our own files except those named: what a killed pack has left unfinished."""
    for name in own_files(folder):
        if name not in kept:
            (folder / name).unlink()
