"""The processes that use a cache folder, each represented by a locked file.

The operating system releases a lock when its process ends for any reason. A dead process can thus
be told from a slow one, and a reused process id is never mistaken for a live member.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from fastio.cache.held import HeldFolder
from fastio.errors import CacheError
from fastio.runtime.lifecycle import after_fork

_TOKEN = re.compile(r"[0-9]{1,10}-[0-9a-f]{12}")


class Member:
    """The membership of this process in a cache folder, until `leave` or the end of the process.

    Attributes:
        token: The member's name. It is never used again.
    """

    def __init__(self, folder: HeldFolder) -> None:
        self._folder = folder
        self._descriptor = -1
        while self._descriptor < 0:
            # A process that cleans up may delete the file before it is locked: try again.
            with suppress(FileNotFoundError):
                self._descriptor = self._enter(folder)
        after_fork(self.forget)  # the child's descriptor would keep the lock otherwise

    def _enter(self, folder: HeldFolder) -> int:
        """Creates the member's file and returns its descriptor, which holds the lock."""
        if not folder.is_there():
            raise CacheError(
                f"{folder.path} was deleted while the cache was being opened; open it again"
            )
        self.token = f"{os.getpid()}-{secrets.token_hex(6)}"
        # Lock the file before the rename, so that nobody sees an unlocked file of a live member.
        hidden = f".{self.token}"
        descriptor = folder.create(hidden, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            folder.rename(hidden, folder, self.token)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def leave(self, *, forgotten: bool = True) -> None:
        """Ends the membership. Idempotent.

        If not `forgotten`, there is something left to clean up: the file stays, and other processes
        clean up as for a dead member.
        """
        descriptor = self._taken()
        if descriptor < 0:
            return
        try:
            if forgotten:
                self._folder.unlink(self.token)
            # A child that is forked just now has the descriptor too, and would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def __del__(self) -> None:
        # A member that was not closed: other processes clean up after it, as after a dead one.
        self.forget()

    def forget(self) -> None:
        """Closes the descriptor in a forked child, because the membership belongs to the parent."""
        descriptor = self._taken()
        if descriptor >= 0:
            os.close(descriptor)

    def _taken(self) -> int:
        """Returns the descriptor for the caller to close; -1 if it was taken before.

        The object forgets the number before the descriptor is closed. Otherwise, after a fork or
        Ctrl-C between the two, it would be closed again, when another file may have the number.
        """
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor


def is_alive(folder: HeldFolder, token: str) -> bool:
    """Returns whether a member's process is running. Returns False for an invalid token."""
    if not _TOKEN.fullmatch(token.removeprefix(".")):
        return False
    try:
        descriptor = folder.open(token, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it cannot be checked: assume that the process is running
    try:
        # A shared lock, so that two processes that check at once do not see each other's lock.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def forget(folder: HeldFolder, token: str) -> None:
    """Deletes the file of a dead member."""
    if _TOKEN.fullmatch(token):
        folder.unlink(token)


def is_stopped(token: str) -> bool:
    """Returns whether a member's process is suspended (SIGSTOP, Ctrl-Z, a debugger).

    Returns False if the state is unknown. In another container the same process id belongs to
    another process, so the caller must tolerate a wrong answer.
    """
    process = token.partition("-")[0]
    if not process.isdecimal():
        return False
    try:
        status = Path("/proc", process, "stat").read_bytes()
    except OSError:
        return False
    # The state follows the program's name, which is in parentheses and may hold any characters.
    return status.rpartition(b") ")[2][:1] in (b"T", b"t")


def members(folder: HeldFolder) -> list[str]:
    """Returns the tokens of all members, including dead ones."""
    try:
        return [name for name in folder.names() if _TOKEN.fullmatch(name)]
    except OSError:
        return []


def token_of(name: str) -> str | None:
    """Returns the member that a file in `tmp/` belongs to; None if it is not a cache file."""
    token = name.partition(".")[0]
    return token if _TOKEN.fullmatch(token) and token != name else None


def remove_unborn(folder: HeldFolder) -> None:
    """Deletes the files of processes that were killed before they had renamed their member file."""
    with suppress(OSError):
        for name in folder.names():
            born = name.startswith(".") and _TOKEN.fullmatch(name[1:])
            if born and not is_alive(folder, name):
                folder.unlink(name)
