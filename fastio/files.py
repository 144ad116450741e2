"""How files are written, whole or not at all, and read, where they are files at all.

Both stand in one place because both meet what others put into a folder: a link at the name that is
about to be written, or a pipe at a name that is about to be read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

AnyPath = str | os.PathLike[str]

# What the name of a file that is being written ends in, as a regular expression. It cannot be
# guessed, so nothing can be laid there before.
TEMPORARY_ENDING = r"\.[0-9a-f]{16}\.tmp"
_TEMPORARY = re.compile(rf"(.+){TEMPORARY_ENDING}", re.DOTALL)
_LONGEST_NAME = 200  # bytes of a name that a temporary one keeps; file systems have 255
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# What stands for the open files of a process.
_STREAMS = ("/dev/stdout", "/dev/stderr")
_STREAM_FOLDERS = ("/dev/fd/", "/proc/")
_MOST_VISITS = 1000  # of one folder, by as many links
_KINDS = {
    stat.S_IFIFO: "a pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
}

# --- Writing --------------------------------------------------------------------------------------


class WholeFile:
    """A file that appears under its name when it is whole, or not at all. For one thread.

    It is written under a temporary name beside its own that nobody can guess, and which is opened
    so that no link is followed. What was at its name, a link too, is replaced. Until then the file
    is locked, so that `remove_leftovers` can tell it from one of a process that was killed.

    Args:
        path: its name.

    Attributes:
        file: to write to; `finish` flushes and closes it.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = Path(path)
        self._temporary, descriptor = _locked(self._path)
        self.file: IO[bytes] = os.fdopen(descriptor, "w+b")

    def finish(self, *, flush: bool = True) -> None:
        """Gives the file its name.

        Args:
            flush: the file and the entry in its folder to the disk, so that it outlives a power
                cut.

        Raises:
            OSError: it cannot be written; `discard` it then.
        """
        self.file.flush()
        if flush:
            os.fsync(self.file.fileno())
        os.replace(self._temporary, self._path)
        self.file.close()
        if flush:
            flush_folder(self._path.parent)

    def discard(self) -> None:
        """Deletes what was written. Has no effect after `finish`."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            os.unlink(self._temporary)


@contextmanager
def whole_file(path: AnyPath, *, flush: bool = True) -> Iterator[IO[bytes]]:
    """A file to write, which has its name when the block ends, and is gone when that raises.

    Args:
        path, flush: see `WholeFile`.

    Raises:
        OSError: it cannot be written; what was at the path stays.
    """
    written = WholeFile(path)
    try:
        yield written.file
        written.finish(flush=flush)
    except BaseException:
        written.discard()
        raise


def write_output(path: AnyPath, data: bytes) -> None:
    """Writes a file that a user named: whole or not at all, but for pipes and devices.

    Raises:
        OSError: it cannot be written.
    """
    if is_stream(path):
        with open(path, "wb") as file:
            file.write(data)
        return
    remove_leftovers(Path(path).parent, Path(path).name)
    with whole_file(path) as file:
        file.write(data)


def is_stream(path: AnyPath) -> bool:
    """Whether a path means a pipe or a device, or by /dev/stdout and the like an open file."""
    name = os.path.abspath(path)
    if name.startswith(_STREAM_FOLDERS) or name in _STREAMS:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def new_file(path: AnyPath, flags: int) -> int:
    """An `opener` for `open`: an empty file in the place of what was there, a link too.

    Raises:
        OSError: it cannot be made.
    """
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, flags | _NEW, 0o666)


def second_name(path: AnyPath, name: AnyPath) -> None:
    """Gives a file a second name, atomically; what had the name is replaced.

    Raises:
        OSError: the file system has no second names, or it cannot be written.
    """
    temporary = temporary_name(name)
    os.link(path, temporary)
    try:
        os.replace(temporary, name)
        # Of two names of one file, which it has already, replacing deletes neither.
        temporary.unlink(missing_ok=True)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush_folder(Path(name).parent)


def temporary_name(path: AnyPath) -> Path:
    """A name beside a path that nobody can guess."""
    path = Path(path)
    kept = os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME])
    return path.with_name(f"{kept}.{secrets.token_hex(8)}.tmp")


def remove_leftovers(folder: AnyPath, name: str | None = None) -> int:
    """Deletes what writers that were killed left in a folder; those at work keep theirs.

    Args:
        folder: where they wrote.
        name: of the file that they wrote; None: of any.

    Returns:
        How many files were deleted; those that cannot be are left.
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
    """Flushes a folder's entries to the disk, so that renames in it outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> tuple[Path, int]:
    """A new temporary file beside a path, and its descriptor, which is locked."""
    while True:
        temporary = temporary_name(path)
        descriptor = os.open(temporary, _NEW | os.O_RDWR, 0o666)
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Before it was locked, `remove_leftovers` of another process may have taken it for one.
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)


def _removed(path: str) -> bool:
    """Deletes a temporary file, or a second name, that no process writes."""
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
    """An `opener` for `open`, which takes regular files alone, and waits for nothing else.

    Opening a pipe waits for its writer, and reading a device may never end: where the names come
    from data, `open(path, "rb", opener=only_files)` is what opens them.

    Raises:
        OSError: it is no regular file, or cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check_kind(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: AnyPath) -> bytes:
    """The bytes of a regular file.

    Raises:
        OSError: it is none, or cannot be read.
    """
    with open(path, "rb", opener=only_files) as file:
        return file.read()


def check_file(path: AnyPath) -> None:
    """Refuses what is no regular file, before others open it by its name.

    Raises:
        OSError: it is none, or is not there.
    """
    _check_kind(os.stat(path).st_mode, path)


def _check_kind(mode: int, path: AnyPath) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "of another type")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))


def walk(root: AnyPath) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` through links to folders too, which ends where links lead round in a circle.

    Raises:
        OSError: a link leads to a folder that it lies in; or links lead to one folder more than a
            thousand times.
    """
    above: dict[str, tuple[tuple[int, int], ...]] = {}
    visits: dict[tuple[int, int], int] = {}
    for folder, folders, names in os.walk(root, followlinks=True):
        try:
            status = os.stat(folder)
        except OSError:
            continue  # deleted meanwhile
        own = (status.st_dev, status.st_ino)
        outside = above.pop(folder, ())
        if own in outside:
            raise OSError(
                errno.ELOOP, "a link leads to a folder that it lies in, which makes a cycle", folder
            )
        visits[own] = visits.get(own, 0) + 1
        if visits[own] > _MOST_VISITS:
            raise OSError(errno.ELOOP, f"more than {_MOST_VISITS:,} links lead to it", folder)
        yield folder, folders, names
        for name in folders:
            above[os.path.join(folder, name)] = (*outside, own)
