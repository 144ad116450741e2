"""Memory that the processes of one user on one machine share.

`NodeMemory` is a file in memory without a name (memfd_create). Ranks use it for copies of tables,
and to note what was verified. native/core/node_memory.h describes what is in it.

- Nobody owns the memory. The system frees it when the last process that has it open has ended, even
  if all of them are killed at the same time.
- Processes find each other by a small file per key, a line for each user of the memory: its
  process and descriptor. A new process opens the memory through /proc/PID/fd/FD of any user that
  is alive; the first one creates the memory. The file is locked while it is read and changed, which
  takes less than a millisecond. Lines of dead processes, and files without living users, are
  deleted by the next process that creates memory: what a killed process leaves is one such line.
- The files are in a folder that only this user can enter, and the memory must belong to this user
  and be sealed against resizing. So no other user can provide it, and no process can cut it off.
- Processes in containers that do not share their process numbers do not find each other, because
  the names of the files contain the namespace. Each container has its own memory then. Files of
  other namespaces are never deleted: their processes cannot be seen.
- If any of this is not possible here (not Linux, no /proc), the constructor raises OSError, and
  the caller continues without shared memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import resource
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastio import _native

_SHM = "/dev/shm"  # on this machine in any case, unlike a folder for temporary files
_SHMEM_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_FORMAT = 1  # of the memory: versions of fastio with another one do not use the same memory
_LOCK_S = 5.0  # a process that was stopped while it had the lock is not waited for longer
_CLOSE_S = 0.5  # likewise when memory is let go of, maybe by a thread that has the lock itself
_POLL_S = 0.001
_FILES_PART = 0.25  # of the descriptors that a process may open, at most so many are for memory
_FILES_EACH = 2  # here, and in native code


class NodeMemory:
    """Memory with an entry for each shard, shared by all processes that use the same key.

    Args:
        key: What it is for: letters, digits and "-". Processes that use the same key must use the
            same sizes.
        shards: The number of entries.
        nbytes: The room for copies. It takes no memory until something is written to it.

    Attributes:
        native: The memory.

    Raises:
        OSError: If memory cannot be shared here.
    """

    def __init__(self, key: str, shards: int, nbytes: int = 0) -> None:
        size = _native.NodeMemory.bytes_for(shards, nbytes)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _FILES_PART / _FILES_EACH
        if 0 <= most <= len(_in_use):
            raise OSError(
                f"this process shares {len(_in_use)} blocks of memory, and the limit is {most:.0f} "
                "because of its limit of open files (ulimit -n)"
            )
        try:
            folder, namespace = _folder(), _namespace()
            file = folder / f"{key}-{_FORMAT}{namespace}"
            with _locked(file) as users:
                lines = _read(users)
                opened = (_open(line, size) for line in lines)
                found = next((fd for fd in opened if fd is not None), None)
                fd = _create(key, size) if found is None else found
                line = _line(fd)
                # Removes the line when this object is collected, or the process ends.
                self._end = weakref.finalize(self, _let_go, file, line, fd)
                _in_use.add(self)
                _write(users, [*(line for line in lines if _lives(line)), line])
            if found is None:
                _sweep(folder, namespace)
            self.native = _native.NodeMemory(fd, shards)
        except (AttributeError, ValueError) as error:  # no memfd_create
            raise OSError(f"memory cannot be shared on this system: {error}") from error

    def close(self) -> None:
        """Releases the memory, which stays as long as native code uses it. Idempotent."""
        _in_use.discard(self)
        self._end()


_in_use: weakref.WeakSet[NodeMemory] = weakref.WeakSet()  # of this process


def _let_go(file: Path, line: str, fd: int) -> None:
    """Deletes the line of a user, and closes its descriptor."""
    if int(line.split()[0]) == os.getpid():  # not in a forked child
        with suppress(OSError), _locked(file, _CLOSE_S) as users:
            left = [each for each in _read(users) if each != line and _lives(each)]
            _write(users, left)
            if not left:
                file.unlink()
    os.close(fd)


def has_shared_huge_pages() -> bool:
    """Returns whether the system gives huge pages to memory that processes share."""
    try:
        setting = _SHMEM_PAGES.read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return False
    if setting != "never":
        return setting != "deny"
    release = re.match(r"(\d+)\.(\d+)", platform.release())  # 6.1 has MADV_COLLAPSE
    return release is not None and (int(release[1]), int(release[2])) >= (6, 1)


def _namespace() -> str:
    """Returns how the names of files end whose users are in this namespace of processes."""
    return f"-{os.stat('/proc/self/ns/pid').st_ino}"


def _folder() -> Path:
    """Returns the folder of the files with users, which only this user can enter."""
    there = os.path.isdir(_SHM) and os.access(_SHM, os.W_OK | os.X_OK)
    path = Path(_SHM if there else tempfile.gettempdir(), f"fastio-{os.geteuid()}")
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not private or status.st_uid != os.geteuid():
        raise PermissionError(f"{path} must be a folder that only you can enter: delete it")
    return path


@contextmanager
def _locked(path: Path, wait_s: float = _LOCK_S) -> Iterator[int]:
    """Opens a file with users, which is made if it is missing, and locks it."""
    deadline_s = time.monotonic() + wait_s
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline_s:
                        raise
                    time.sleep(_POLL_S)
            there = False
            with suppress(FileNotFoundError):
                there = os.path.samestat(os.fstat(fd), os.stat(path))
            # Else it was deleted between opening and locking, by its last user: a lock on it would
            # exclude nobody, because the next process makes another file.
            if there:
                yield fd
                return
        finally:
            # A child that was forked meanwhile has the descriptor too: closing it is not enough.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def _read(users: int) -> list[str]:
    lines = os.pread(users, 1 << 20, 0).decode("ascii", "replace").splitlines()
    return [line for line in lines if re.fullmatch(r"\d+ \d+ \d+ \d+", line)]


def _write(users: int, lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    if os.pwrite(users, data, 0) < len(data):  # before it is cut off: the disk may be full
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(users, len(data))


def _line(fd: int) -> str:
    """Returns the line of this process, a user of the memory."""
    found = os.fstat(fd)
    return f"{os.getpid()} {fd} {found.st_dev} {found.st_ino}"


def _lives(line: str) -> bool:
    """Returns whether a user has the memory open still."""
    # Numbers of processes and descriptors are used again: only the inode tells that it is this
    # memory, and not another file of another process.
    pid, fd, device, inode = map(int, line.split())
    with suppress(OSError):
        found = os.stat(f"/proc/{pid}/fd/{fd}")
        return (found.st_dev, found.st_ino) == (device, inode)
    return False


def _open(line: str, size: int) -> int | None:
    """Opens the memory of a user; None if it is gone, or not what it should be."""
    if not _lives(line):
        return None
    pid, number, device, inode = map(int, line.split())
    with suppress(OSError):
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        found = os.fstat(fd)
        sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        if (
            (found.st_dev, found.st_ino, found.st_size) == (device, inode, size)
            and found.st_uid == os.geteuid()
            and fcntl.fcntl(fd, fcntl.F_GET_SEALS) & sealed == sealed
        ):
            return fd
        os.close(fd)
    return None


def _create(key: str, size: int) -> int:
    fd = os.memfd_create(f"fastio-{key}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size)
        # Nobody can cut it off afterwards: a mapped page beyond the end would end every process
        # that reads it (SIGBUS).
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _sweep(folder: Path, namespace: str) -> None:
    """Deletes files without living users. Those that are locked are in use."""
    for path in folder.glob(f"*{namespace}"):
        with suppress(OSError), _locked(path, wait_s=0) as users:
            if not any(map(_lives, _read(users))):
                path.unlink()
