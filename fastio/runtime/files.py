"""Writes files atomically, and reads regular files only.

Both guard against what other users may put into a folder: a symbolic link at the name that is about
to be written, or a pipe at a name that is about to be read.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import resource
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

AnyPath = str | os.PathLike[str]

# The ending of temporary files, as a regular expression. It has 64 random bits, so that nobody can
# create the file beforehand.
TEMPORARY_ENDING = r"\.[0-9a-f]{16}\.tmp"
_TEMPORARY = re.compile(rf"(.+){TEMPORARY_ENDING}", re.DOTALL)
_LONGEST_NAME = 200  # bytes of the name that a temporary name keeps; file systems allow 255
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Paths that refer to open files of a process.
_STREAMS = ("/dev/stdout", "/dev/stderr")
_STREAM_FOLDERS = ("/dev/fd/", "/proc/")
_MOST_VISITS = 1000  # of one folder through different links
_CYCLE = "a link leads to a folder that contains it, which makes a cycle: delete the link"
_TOO_MANY = f"more than {_MOST_VISITS:,} links lead to it: delete the links"
_KINDS = {
    stat.S_IFIFO: "a pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
}

# --- Writing --------------------------------------------------------------------------------------


class WholeFile:
    """A file that is written atomically: it appears under its name complete, or not at all.

    The data goes to a temporary file in the same folder, whose name is random and which is opened
    without following links. `finish` renames it, which replaces an existing file or link. The
    temporary file is locked meanwhile, so that `remove_leftovers` can tell it from one that a
    killed process has left. Not thread-safe.

    Args:
        path: The path of the file.

    Attributes:
        file: The file object to write to. `finish` flushes and closes it.

    Raises:
        OSError: If the temporary file cannot be created.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = Path(path)
        self._temporary, descriptor = _locked(self._path)
        self.file: IO[bytes] = os.fdopen(descriptor, "w+b")

    def finish(self) -> None:
        """Renames the temporary file to its final name.

        The file and its directory entry are flushed to the disk, so that they survive a power
        failure.

        Raises:
            OSError: If the file cannot be written. Call `discard` in this case.
        """
        # Contents first, then the name: after a power failure, the name must not stand for an empty
        # file.
        self.file.flush()
        os.fsync(self.file.fileno())
        # Before the file is closed, which releases its lock: `remove_leftovers` of another process
        # would delete an unlocked temporary file.
        os.replace(self._temporary, self._path)
        self.file.close()
        flush_folder(self._path.parent)

    def discard(self) -> None:
        """Deletes the temporary file. Has no effect after `finish`."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            os.unlink(self._temporary)


@contextmanager
def whole_file(path: AnyPath) -> Iterator[IO[bytes]]:
    """Opens a file that gets its name when the block ends, and is deleted if the block raises.

    Args:
        path: See `WholeFile`.

    Raises:
        OSError: If the file cannot be written. An existing file at the path is kept.
    """
    written = WholeFile(path)
    try:
        yield written.file
        written.finish()
    except BaseException:
        written.discard()
        raise


def write_output(path: AnyPath, data: bytes) -> None:
    """Writes a file that the user has named: atomically, unless it is a pipe or a device.

    Raises:
        OSError: If the file cannot be written.
    """
    if is_stream(path):
        with open(path, "wb") as file:
            file.write(data)
        return
    remove_leftovers(Path(path).parent, Path(path).name)
    with whole_file(path) as file:
        file.write(data)


def is_stream(path: AnyPath) -> bool:
    """Returns whether a path is a pipe or a device, or names an open file such as /dev/stdout."""
    name = os.path.abspath(path)
    # Renaming a file over these names would not write to what is open there.
    if name.startswith(_STREAM_FOLDERS) or name in _STREAMS:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def new_file(path: AnyPath, flags: int) -> int:
    """Creates an empty file and replaces an existing file or link. An `opener` for `open`.

    Raises:
        OSError: If the file cannot be created.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, flags | _NEW, 0o666)


def second_name(path: AnyPath, name: AnyPath) -> None:
    """Creates a hard link to a file atomically, and replaces an existing file of that name.

    Raises:
        OSError: If the file system has no hard links, or the link cannot be created.
    """
    temporary = temporary_name(name)
    os.link(path, temporary)
    try:
        os.replace(temporary, name)
        # If both names already belong to the same file, os.replace does nothing and keeps both.
        temporary.unlink(missing_ok=True)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush_folder(Path(name).parent)


def temporary_name(path: AnyPath) -> Path:
    """Returns a random, unpredictable name in the same folder as a path."""
    path = Path(path)
    kept = os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME])
    return path.with_name(f"{kept}.{secrets.token_hex(8)}.tmp")


def remove_leftovers(folder: AnyPath, name: str | None = None) -> int:
    """Deletes temporary files that killed processes have left. Files being written are kept.

    Args:
        folder: The folder to clean up.
        name: The name of the file whose temporary files are deleted. If None, those of any file.

    Returns:
        The number of deleted files. Files that cannot be deleted are ignored.
    """
    removed = 0
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for found in names:
        match = _TEMPORARY.fullmatch(found)
        if match is not None and name in (None, match[1]):
            removed += _removed(os.path.join(folder, found))
    return removed


def flush_folder(path: AnyPath) -> None:
    """Flushes a folder's entries to the disk, so that renames in it survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> tuple[Path, int]:
    """Creates and locks a temporary file beside a path. Returns its path and descriptor."""
    while True:
        temporary = temporary_name(path)
        descriptor = os.open(temporary, _NEW | os.O_RDWR, 0o666)
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Before it was locked, `remove_leftovers` of another process may have deleted it.
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)


def _removed(path: str) -> bool:
    """Deletes a temporary file unless a process is writing it. Returns whether it was deleted."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


# --- Reading --------------------------------------------------------------------------------------


def only_files(path: AnyPath, flags: int) -> int:
    """Opens a regular file, and refuses anything else without blocking. An `opener` for `open`.

    Opening a pipe blocks until it has a writer, and reading a device may never end. Where names
    come from data, open them with `open(path, "rb", opener=only_files)`.

    Raises:
        OSError: If it is not a regular file, or cannot be opened.
    """
    # O_NOCTTY: a terminal must not become the one that controls this process.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check_kind(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def most_open(wanted: int) -> int:
    """Returns how many files may stay open, up to `wanted`: a quarter of the process's limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else min(limit // 4, wanted)


def read_file(path: AnyPath) -> bytes:
    """Returns the contents of a regular file.

    Raises:
        OSError: If it is not a regular file, or cannot be read.
    """
    with open(path, "rb", opener=only_files) as file:
        return file.read()


def mapped(path: AnyPath) -> memoryview:
    """Returns the bytes of a file that is not empty, mapped: they take no memory of the process.

    Raises:
        OSError: If the file cannot be opened.
    """
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def read_part(path: AnyPath, offset: int, length: int) -> bytes | None:
    """Returns bytes of a local file; None if they are not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, length, offset)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return data if len(data) == length else None


def check_file(path: AnyPath) -> None:
    """Raises unless a path is a regular file. For files that other code opens by name.

    Raises:
        OSError: If it is not a regular file, or does not exist.
    """
    _check_kind(os.stat(path).st_mode, path)


def _check_kind(mode: int, path: AnyPath) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "of another type")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))


def unless_gone(error: OSError) -> None:
    """Raises the error of a folder that cannot be read. For `os.walk`, which leaves such out.

    Raises:
        OSError: The given error, unless the folder was deleted meanwhile.
    """
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def walk(root: AnyPath) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walks a tree like `os.walk`, follows links to folders, and stops at cycles of links.

    Raises:
        OSError: If a folder cannot be read, if a link leads to a folder that contains it, or if
            more than a thousand links lead to one folder.
    """
    above: dict[str, tuple[tuple[int, int], ...]] = {}
    visits: dict[tuple[int, int], int] = {}
    for folder, folders, names in os.walk(root, onerror=unless_gone, followlinks=True):
        try:
            status = os.stat(folder)
        except OSError:
            continue  # deleted meanwhile
        own = (status.st_dev, status.st_ino)
        outside = above.pop(folder, ())
        if own in outside:
            raise OSError(errno.ELOOP, _CYCLE, folder)
        visits[own] = visits.get(own, 0) + 1
        if visits[own] > _MOST_VISITS:
            raise OSError(errno.ELOOP, _TOO_MANY, folder)
        yield folder, folders, names
        for name in folders:
            above[os.path.join(folder, name)] = (*outside, own)
