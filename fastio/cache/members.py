"""Which processes work in a cache folder: a locked file for each.

The system drops a lock when its process ends, however it ends, so a process that is gone can be
told from one that is slow, and no number of it is ever believed longer than it lives.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import weakref
from contextlib import suppress
from pathlib import Path


class Member:
    """This process, as others see it in a cache folder, until `leave` or its end.

    Args:
        folder: where the files of the members are; made if need be.

    Attributes:
        token: its name, unique among all members of all times.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.token = f"{os.getpid()}-{secrets.token_hex(6)}"
        # Locked before it has its name: nobody ever sees it unlocked while we live.
        hidden = folder / f".{self.token}"
        self._descriptor = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.rename(hidden, folder / self.token)
        _close_in_children(self)

    def leave(self) -> None:
        """Ends the membership. Idempotent."""
        if self._descriptor < 0:
            return
        with suppress(OSError):
            (self._folder / self.token).unlink()
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


def is_alive(folder: Path, token: str) -> bool:
    """Whether a member's process still runs."""
    try:
        descriptor = os.open(folder / token, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not ours to judge
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def members(folder: Path) -> list[str]:
    """The tokens of all members, of dead ones too."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        return []
