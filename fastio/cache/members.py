"""Which processes work in a cache folder: a locked file for each.

The system drops a lock when its process ends, however it ends, so a process that is gone can be
told from one that is slow, and no number of it is ever believed longer than it lives.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import weakref
from contextlib import suppress
from pathlib import Path

from fastio.cache.held import HeldFolder
from fastio.errors import CacheError

_TOKEN = re.compile(r"[0-9]{1,10}-[0-9a-f]{12}")


class Member:
    """This process, as others see it in a cache folder, until `leave` or its end.

    Args:
        folder: where the files of the members are.

    Attributes:
        token: its name, unique among all members of all times.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: HeldFolder) -> None:
        self._folder = folder
        self._descriptor = -1
        while self._descriptor < 0:
            # Whoever tidies up may take it for a dead one's, before it is locked.
            with suppress(FileNotFoundError):
                self._descriptor = self._enter(folder)
        _close_in_children(self)

    def _enter(self, folder: HeldFolder) -> int:
        """Makes the file, and returns its descriptor, which holds the lock."""
        if not folder.is_there():
            raise CacheError(
                f"{folder.path} was deleted while the cache was being opened; open it again"
            )
        self.token = f"{os.getpid()}-{secrets.token_hex(6)}"
        # Locked before it has its name: nobody ever sees that unlocked while we live.
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

        Args:
            forgotten: nothing is left to take back; else others do that, as for a dead one.
        """
        if self._descriptor < 0:
            return
        if forgotten:
            self._folder.unlink(self.token)
        os.close(self._descriptor)
        self._descriptor = -1

    def forget(self) -> None:
        """In a forked child: the membership is the parent's."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _close_in_children(member: Member) -> None:
    """A child that kept the descriptor would keep the lock after its parent's end."""
    reference = weakref.ref(member)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.forget()

    os.register_at_fork(after_in_child=close)


def is_alive(folder: HeldFolder, token: str) -> bool:
    """Whether a member's process still runs. What is no member's name is nobody alive."""
    if not _TOKEN.fullmatch(token.removeprefix(".")):
        return False
    try:
        descriptor = folder.open(token, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not ours to judge
    try:
        # Shared, so that two who ask at once do not take each other for the member.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def forget(folder: HeldFolder, token: str) -> None:
    """Deletes the file of a member that is dead."""
    if _TOKEN.fullmatch(token):
        folder.unlink(token)


def is_stopped(token: str) -> bool:
    """Whether a member's process is suspended (SIGSTOP, Ctrl-Z, a debugger), where that is told.

    The number of a process means another one in another container: who asks must be able to bear a
    wrong answer.
    """
    process = token.partition("-")[0]
    if not process.isdecimal():
        return False
    try:
        status = Path("/proc", process, "stat").read_bytes()
    except OSError:
        return False
    # Behind the program's name, which is in brackets and may hold anything.
    return status.rpartition(b") ")[2][:1] in (b"T", b"t")


def members(folder: HeldFolder) -> list[str]:
    """The tokens of all members, of dead ones too."""
    try:
        return [name for name in folder.names() if _TOKEN.fullmatch(name)]
    except OSError:
        return []


def token_of(name: str) -> str | None:
    """The member that a file in `tmp/` belongs to; None where it is not one of the cache's."""
    token = name.partition(".")[0]
    return token if _TOKEN.fullmatch(token) and token != name else None


def remove_unborn(folder: HeldFolder) -> None:
    """Deletes what members have left that were killed before they had their name."""
    with suppress(OSError):
        for name in folder.names():
            born = name.startswith(".") and _TOKEN.fullmatch(name[1:])
            if born and not is_alive(folder, name):
                folder.unlink(name)
