"""A folder that a dataset is packed to. `remote` has destinations in object stores.

This module checks which files may exist at the destination before a pack, and which files belong to
a pack and can be deleted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from fastio.errors import (
    DatasetExists,
    DatasetNotFound,
    FormatUnsupported,
    ManifestInvalid,
    OptionError,
    PackError,
    SourceNotFound,
)
from fastio.pack.items import AGAIN
from fastio.pack.journal import (
    APPEND_TO,
    GC,
    WRITER,
    FinishedUnit,
    Journal,
    differences,
    writing_to,
)
from fastio.pack.journal_file import contents_of, exclusive_access, remove_if, shortened
from fastio.pack.names import is_task_output_name, own_files
from fastio.pack.refusals import changed_meanwhile, check_may_append, check_may_pack, check_repeated
from fastio.pack.task_output import FolderOutput, TaskOutput, WrittenUnit, give_names
from fastio.packed import JOURNAL_NAME, MANIFEST_NAME, Manifest, ShardEntry, version_name
from fastio.packed.stored import newest_manifest
from fastio.runtime.files import flush_folder, read_file, second_name, whole_file
from fastio.runtime.texts import FileSizes, Names
from fastio.store import absolute_path, is_remote, open_store

_OLDER = "manifest-"  # how the names of older versions' manifests begin


def complete_dataset(
    dst: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    identity: Mapping[str, Any],
    total: int | None,
) -> Manifest | None:
    """Returns the manifest of a complete dataset; None if there is no dataset, or a journal.

    Args:
        dst, storage_options: The destination.
        identity, total: The options that the dataset's bytes depend on, and the number of samples
            of the source, see `encoder.Encoder`.

    Raises:
        DatasetExists: It was packed from another source, or with other options.
    """
    # The dataset that an interrupted pack was to overwrite may be damaged.
    if _has_journal(dst, storage_options):
        return None
    try:
        manifest = newest_manifest(dst, storage_options)
    except DatasetNotFound:
        return None
    packing = manifest.packing
    found = {**packing, "schema": manifest.schema.to_json(), "shard_size": packing["shard_bytes"]}
    if manifest.history:  # `packing` describes the last append
        found["source"] = manifest.history[0].source
    if "tokens" in found:  # which also counts empty documents there
        found["tokens"] = {key: found["tokens"].get(key) for key in identity.get("tokens", ())}
    # Of the codebook, the manifest has the origin, and the identity the hash.
    different = differences(found, identity, found.keys() & identity.keys() - {"codebook"})
    # Of tables, these are files.
    packed = manifest.rows + (0 if "table" in packing else packing["skipped"])
    # Empty documents are left out, and after an append, `packing` has what that has skipped.
    is_known = "tokens" not in packing and not manifest.history
    if is_known and total not in (None, packed):
        different = different or f"the source had {packed} samples, now {total}"
    if different:
        raise DatasetExists(
            f"{manifest.folder} contains a complete dataset that was packed from another source or "
            f"with other options: {different}. Choose another destination, or replace it with "
            "overwrite (--overwrite)"
        )
    return manifest


def _has_journal(dst: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> bool:
    if is_remote(dst):
        with open_store(str(dst), storage_options) as store:
            return store.exists(JOURNAL_NAME)
    path = Path(absolute_path(dst), JOURNAL_NAME)
    return path.exists() and path.stat().st_size > 0  # a killed gc leaves an empty one


class Destination:
    """A folder that a dataset is packed to. Used by one thread.

    Attributes:
        name: The path or URL, for messages.
        folder: The folder in which the packer writes shards and the manifest.
        pack_id: The id that the names of all shards of this process contain; valid after `open`. In
            a store it is random: a process that was suspended may write or delete objects when it
            continues, and with the id these are never objects of another process. In a folder it is
            "", except while a dataset is overwritten: its shards stay until the new one is
            complete, so the new shards need other names.
        replaces: Whether the pack replaces a dataset there; valid after `open`. If so, its journal
            stays if it fails, even without shards: a pack that is resumed must not take the old
            dataset for the finished one.
    """

    pack_id = ""
    replaces = False

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.folder = Path(absolute_path(folder))
        self._overwrites = False
        self._unneeded = Names()  # what `finish` deletes

    def open(
        self,
        options: Mapping[str, Any],
        resume: bool,
        overwrite: bool,
        base: Manifest | None = None,
    ) -> Journal:
        """Prepares the destination, and returns the journal of the finished units. Called first.

        Raises:
            OptionError: `resume` and `overwrite` are combined.
            DatasetExists, PackError: As for `check_may_pack` or `check_may_append`, or the
                journal has other options.
            PackConflict: Another process packs there, or has appended to `base`.
            OSError: It cannot be created or changed.
        """
        if resume and overwrite:
            raise OptionError(
                "resume and overwrite cannot be combined: resume (--resume) alone continues an "
                "interrupted overwrite"
            )
        own = self._before(appends=base is not None and not resume)
        self._overwrites = overwrite
        made_room = overwrite and self._make_room()
        if base is not None:
            if own.get(JOURNAL_NAME) and not resume:
                raise self._unfinished()
            check_may_append(self.name, own, resume, base)
        elif not overwrite:
            check_may_pack(self.name, own, resume)
        self._journal = self._open_journal(options, resume, own)
        if overwrite and not made_room:
            self.delete(self._leftovers(self.files(), ""))
        if base is not None:
            try:
                self._check_newest(base)
            except BaseException:
                # A new append leaves no journal behind. A resumed one keeps its journal, and can be
                # resumed again.
                self.close(keep=resume)
                raise
        return self._journal

    def _before(self, appends: bool) -> Mapping[str, int]:
        """Returns `files`. For a new append, may leave out all but the manifest and the journal."""
        return self.files()

    def _make_room(self) -> bool:
        """Discards an unfinished pack, to overwrite what is at the destination.

        Its journal keeps the first line until that of the new pack replaces it: without a journal,
        a pack that is resumed would take the old dataset for the finished one.

        Returns:
            Whether there is a journal.
        """
        with shortened(self.folder) as (found, pack_id):
            if found:
                self.delete(self._leftovers(self.files(), pack_id))
        return found

    def _leftovers(self, own: Mapping[str, int], pack_id: str) -> Names:
        """Returns the files that only a discarded pack with this id needs.

        A dataset there stays complete until `finish`. Beside a damaged manifest, these are the
        shards with the id in their names.
        """
        needed = Names((JOURNAL_NAME,))
        if MANIFEST_NAME in own:
            try:
                newest = self._newest()
            except (DatasetNotFound, FormatUnsupported, ManifestInvalid):
                return Names(self._files_of_pack(own, {pack_id}))
            versions = (version_name(each.version) for each in newest.history)
            needed = Names(chain(needed, (MANIFEST_NAME,), versions, shards_of(newest)))
        return needed.compared(own)[1]

    def _files_of_pack(self, own: Iterable[str], ids: Iterable[str]) -> list[str]:
        """Returns the files of an unfinished pack, by its ids, if the manifest is unreadable.

        If an id is in the manifest, the pack had finished: then there are none.
        """
        wanted = [f"-{one}" for one in ids if one]
        with suppress(FileNotFoundError):  # a link to a file that is not there
            manifest = self._manifest_bytes()
            if any(each.encode() in manifest for each in wanted):
                return []
        return [name for name in own if any(each in name for each in wanted)]

    def _manifest_bytes(self) -> bytes:
        return read_file(self.folder / MANIFEST_NAME)

    def discard_beside_damage(self) -> list[int] | None:
        """Discards an interrupted overwrite of a dataset whose manifest is unreadable.

        Returns:
            The sizes of the files that were deleted, without the journal; None if there is no
            journal.

        Raises:
            PackConflict: Another process is packing there.
        """
        if not os.path.lexists(self.folder / MANIFEST_NAME):
            return None
        with shortened(self.folder) as (_, pack_id):
            if not pack_id:
                return None
            own = self.files()
            unneeded = self._files_of_pack(own, {pack_id})
            sizes = [own[name] for name in unneeded]
            self.delete([*unneeded, JOURNAL_NAME])
        return sizes

    def fence(self, newest: Manifest) -> None:
        """Ensures that no process that has lost the journal can write a manifest any more.

        Called before shards are deleted that `newest`, the newest version, does not name.

        Raises:
            PackConflict: Another process has replaced the manifest since it was read.
        """

    def remove_ended_pack(self, base: Manifest) -> None:
        """Deletes the journal of a pack that has ended; `base` is the newest version.

        Such a pack was killed after it had written its manifest, or cannot write it any more.
        """
        self._remove_journal_if(lambda journal: _has_ended(*contents_of(journal), base))

    def was_completed(self, base: Manifest, identity: Mapping[str, Any] | None) -> bool:
        """Returns whether the append to be resumed wrote `base`; then deletes its journal.

        Args:
            base: The newest version.
            identity: The options of the append that is resumed; None if a new one begins.

        Raises:
            PackError: An append that was killed after it had written `base` is not to be resumed,
                or has other options: without this error, its samples might be appended twice.
        """
        completed = False

        def has_ended(journal: Iterable[bytes]) -> bool:
            nonlocal completed
            options, names = contents_of(journal)
            ended = _has_ended(options, names, base)
            completed = ended and APPEND_TO in options and _has_all(base, names)
            if completed:
                check_repeated(self.name, base, options, identity)
            return ended

        with writing_to(self.name):
            self._remove_journal_if(has_ended)
        return completed

    @contextmanager
    def exclusive_access(self, discard: bool) -> Iterator[tuple[bool, Mapping[str, int]]]:
        """See `journal_file.exclusive_access`; also yields `files`."""
        with exclusive_access(self.folder, discard) as unfinished:
            yield unfinished, self.files()

    def _remove_journal_if(self, is_unneeded: Callable[[Iterable[bytes]], bool]) -> None:
        """See `journal_file.remove_if`."""
        remove_if(self.folder, is_unneeded)

    def _unfinished(self) -> PackError:
        """Returns the error of an append where another one has not finished.

        Raises:
            PackConflict: The other one is running.
        """
        how = "repeat its command with resume (--resume), or discard it with "

        def ask(journal: Iterable[bytes]) -> bool:
            nonlocal how
            source = contents_of(journal)[0].get("source")
            if source == WRITER:
                how = "discard it, because a Writer cannot be resumed, with "
            elif source == GC:
                how = "delete its journal with "
            return False

        self._remove_journal_if(ask)
        return PackError(
            f"{self.name} contains an unfinished append, pack or gc: wait until its process ends; "
            f"if it was interrupted, {how}`fastio gc --unfinished`"
        )

    def _check_newest(self, base: Manifest) -> None:
        """Raises PackConflict if the dataset was replaced or appended to since it was opened."""
        if not is_same(Manifest(self.folder), base):
            raise changed_meanwhile(self.name)

    def _is_committed(self, names: Names) -> bool:
        """Returns whether the manifest at the destination names any of these shards."""
        try:
            return any(names.find(name) is not None for name in shards_of(self._newest()))
        except (DatasetNotFound, FormatUnsupported, ManifestInvalid, SourceNotFound):
            return False  # there is no manifest that this process has written

    def _newest(self) -> Manifest:
        return Manifest(self.folder)

    def files(self) -> Mapping[str, int]:
        """Returns names and sizes of the files that only a pack can have written."""
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise PackError(f"{folder} is a file: give a folder to pack to")
        folder.mkdir(parents=True, exist_ok=True)
        # Not a dict, which would take too much memory for millions of shards.
        return FileSizes((name, (folder / name).lstat().st_size) for name in own_files(folder))

    def delete(self, names: Iterable[str]) -> None:
        """Deletes files, the manifest first: without it, the rest is not a dataset."""
        # All names are collected first, because they may come from a listing of this folder.
        names = Names(names)
        if names.find(MANIFEST_NAME) is not None:
            (self.folder / MANIFEST_NAME).unlink()
            # The deletion is flushed before shards are deleted, because a crash must not leave a
            # manifest without its shards.
            flush_folder(self.folder)
        for name in names:
            if name != MANIFEST_NAME:
                (self.folder / name).unlink(missing_ok=True)

    def _open_journal(
        self, options: Mapping[str, Any], resume: bool, own: Mapping[str, int]
    ) -> Journal:
        journal = Journal(self.folder, options, resume, self.name, self._overwrites)
        # A resumed pack may overwrite a dataset, too. The journal keeps the id of the first one.
        self.replaces = APPEND_TO not in options and os.path.lexists(self.folder / MANIFEST_NAME)
        self.pack_id = journal.id if self.replaces else ""
        return journal

    def check(self, entry: ShardEntry) -> None:
        """Raises PackError unless a shard that the journal calls finished is there."""
        path = self.folder / entry.name
        found = path.stat().st_size if path.is_file() else None
        if found != entry.bytes:
            state = "is missing" if found is None else f"has {found} bytes"
            raise PackError(f"cannot resume: {path} {state}, expected {entry.bytes} bytes; {AGAIN}")

    def record(self, unit: FinishedUnit) -> None:
        """Notes that all shards of a unit were written to the folder."""
        self._journal.append(unit)

    def send(self, entry: ShardEntry) -> None:
        """Takes a shard that was written to the folder, after `record` if it is a unit's last."""

    def task_output(self) -> TaskOutput:
        """Returns where processes on other machines put shards. Called after `open`.

        Deletes what such processes have left there for an earlier driver.
        """
        self.delete(filter(is_task_output_name, self.files()))
        return FolderOutput(self.folder, self._journal.id)

    def record_written(self, written: WrittenUnit) -> None:
        """Gives the shards of a unit, which another process has written, their names, and notes it.

        Raises:
            PackError: A shard is missing.
        """
        try:
            give_names(self.folder, written)
        except FileNotFoundError as error:
            name = os.path.basename(error.filename).removesuffix(written.ending)
            raise self._missing(name) from error
        self._journal.append(written.unit)

    def prepare(self, names: Names, base: Manifest | None) -> None:
        """Prepares for the manifest: called after all uploads, right before it is written.

        In a new dataset, `finish` will delete all files except the shards that are named. When
        samples are appended, gives the manifest of `base` a second name, and leaves other files to
        `gc`.

        Raises:
            PackConflict: Another process has appended to `base`.
            PackError: A shard that is named is missing.
        """
        strays = self._strays(names, own_files(self.folder))
        if base is None:
            kept = (JOURNAL_NAME, MANIFEST_NAME)
            self._unneeded = Names(name for name in strays if name not in kept)
            return
        self._check_newest(base)
        newest, older = (self.folder / n for n in (MANIFEST_NAME, version_name(base.version)))
        try:
            second_name(newest, older)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            with whole_file(older) as file:  # some file systems have no links
                file.write(read_file(newest))

    def _strays(self, names: Names, there: Iterable[str]) -> Names:
        """Returns the files that are not among the shards; PackError if a shard is not there."""
        missing, strays = names.compared(there)
        if missing is not None:
            raise self._missing(missing)
        return strays

    def _missing(self, name: str) -> PackError:
        return PackError(
            f"{name} was written by this pack, but is missing in {self.name}: another process has "
            "deleted it, or the path leads to another folder on a machine of the pack. Pack again "
            "with overwrite (--overwrite), to a folder that all machines share"
        )

    def finish(self) -> None:
        """Completes the dataset, whose manifest was written to the folder.

        Deletes the files that it does not need, such as those that it replaces, and the journal.
        """
        # Older versions first: a reader that is to open a version of the new dataset by its number
        # must not find that of the old one.
        self.delete(name for name in self._unneeded if name.startswith(_OLDER))
        self.delete(self._unneeded)
        self._journal.remove()

    def discard(self, names: Names) -> None:
        """Deletes the shards that are named, and the journal.

        Deletes only the journal if the manifest names these shards: an error that was raised after
        the manifest had been written does not undo it.
        """
        if not self._is_committed(names):
            there = own_files(self.folder)
            self.delete(name for name in there if names.find(name) is not None)
        self._journal.remove()

    def close(self, keep: bool) -> None:
        """Closes the destination, and deletes the journal unless `keep`. Idempotent."""
        if not keep:
            self._journal.remove()
        self._journal.close()


def _has_ended(options: Mapping[str, Any], names: Names, base: Manifest) -> bool:
    """Returns whether a journal is that of an append to a version before `base`.

    Or that of a first pack, all of whose shards are in `base`.
    """
    if options and APPEND_TO not in options:
        return _has_all(base, names)
    return options.get(APPEND_TO) in {each.fingerprint for each in base.history}


def _has_all(base: Manifest, names: Names) -> bool:
    """Returns whether a dataset has all of these shards, and there are any."""
    return len(names) > 0 and names.compared(shards_of(base))[0] is None


def shards_of(manifest: Manifest) -> Iterator[str]:
    """Yields the names of the shards of a dataset, in the order of its manifest."""
    return (name.as_py() for name in manifest.column("name"))


def is_same(found: Manifest, base: Manifest) -> bool:
    """Returns whether two manifests have the same fingerprint and name the same shards."""
    return found.fingerprint == base.fingerprint and found.is_version_of(base)
