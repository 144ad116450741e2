"""Folders of a cache, held open: what is in them is reached by descriptor, and never by a link.

A cache writes and deletes files in a place that others may have prepared. So each folder is opened
below the one that it lies in (`openat`), links are not followed, files are made and not opened
where they are there already, and whose a folder is, and who may write to it, is looked at first.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fastio.errors import CacheError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_GROUP_WRITES, _ALL_WRITE = 0o020, 0o002
# Linux's form of access control lists (uapi/linux/posix_acl_xattr.h): a version, then entries.
_ACL_ENTRIES = 4
_ACL_ENTRY = struct.Struct("<HHI")  # tag, permissions, id
_ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_WRITE = 0x02, 0x08, 0x10, 0x2


@dataclass(frozen=True)
class Access:
    """Who may use a cache's files.

    Attributes:
        shared: the group of the folder too, and not only the user whom it belongs to.
    """

    shared: bool = False

    @property
    def folder_mode(self) -> int:
        """Of folders that are made; a shared one passes its group on to what is made in it."""
        return 0o2770 if self.shared else 0o700

    @property
    def file_mode(self) -> int:
        """Of files that are made."""
        return 0o660 if self.shared else 0o600

    def check(self, path: Path, found: os.stat_result) -> None:
        """Refuses what others could have written, or could write.

        Args:
            path: of the folder or file, for messages.
            found: what it is.

        Raises:
            CacheError: names its owner or its mode, and what to do.
        """
        mode = stat.S_IMODE(found.st_mode)
        mine = found.st_uid == os.geteuid()
        if mode & _ALL_WRITE:
            raise CacheError(
                f"{path} has mode {mode:04o}: everybody may write to it, and whoever writes to a "
                f"cache decides what a loader reads. Use another folder, or run: chmod o-w '{path}'"
            )
        if self.shared:
            if not mine and found.st_gid not in {os.getegid(), *os.getgroups()}:
                raise CacheError(
                    f"{path} belongs to user {_user(found.st_uid)} and group "
                    f"{_group(found.st_gid)}, and you ({_user(os.geteuid())}) are not in it: use "
                    "another folder, or ask to be added to the group"
                )
            return
        if not mine:
            raise CacheError(
                f"{path} belongs to user {_user(found.st_uid)}, not to you "
                f"({_user(os.geteuid())}): whoever writes to a cache decides what a loader reads. "
                "Use a folder of your own; or, if the cache is shared and you trust its group, "
                "use Cache(path, shared=True) or --shared"
            )
        if mode & _GROUP_WRITES:
            raise CacheError(
                f"{path} has mode {mode:04o}: its group {_group(found.st_gid)} may write to it. "
                f"Run: chmod g-w '{path}'; or, if the cache is shared and you trust its group, use "
                "Cache(path, shared=True) or --shared"
            )

    def check_list(self, path: Path, descriptor: int) -> None:
        """Refuses a folder that an access control list lets others write to.

        The mode tells the list's mask as the group's permissions, and not who is on the list: of a
        shared folder that may be anybody. What is made in it gets its default list.

        Raises:
            CacheError: names who may write, and what to do.
        """
        for kind in ("access", "default") if self.shared else ("access",):
            for writer in _listed_writers(descriptor, f"system.posix_acl_{kind}"):
                raise CacheError(
                    f"{path} has an access control list by which {writer} may write to it, and "
                    "whoever writes to a cache decides what a loader reads. Use another folder, or "
                    f"run: setfacl -b '{path}'"
                )


def _listed_writers(descriptor: int, name: str) -> Iterator[str]:
    """The users and groups whom a folder's access control list names, and lets write."""
    try:
        data = os.getxattr(descriptor, name)
    except (OSError, AttributeError):  # there is none, or the system has no such lists
        return
    whole = len(data) - (len(data) - _ACL_ENTRIES) % _ACL_ENTRY.size
    entries = list(_ACL_ENTRY.iter_unpack(data[_ACL_ENTRIES:whole]))
    mask = next((allowed for tag, allowed, _ in entries if tag == _ACL_MASK), _ACL_WRITE)
    for tag, allowed, number in entries:
        if allowed & mask & _ACL_WRITE:
            if tag == _ACL_USER:
                yield f"user {_user(number)}"
            elif tag == _ACL_GROUP:
                yield f"group {_group(number)}"


class HeldFolder:
    """A folder that is held open. Thread-safe.

    The one who opened a folder for a moment closes it. One that several threads use is let go of
    with its last reference: none of them may meet another folder under the same descriptor.

    Args:
        descriptor: of the folder, which this object closes.
        path: where it was, for messages.
        access: who may use it, and what is made in it.

    Raises:
        CacheError: `access` refuses it; the descriptor is closed then.
    """

    def __init__(self, descriptor: int, path: Path, access: Access) -> None:
        self._descriptor = descriptor
        self.path = path
        self.access = access
        try:
            access.check_list(path, descriptor)
            access.check(path, os.fstat(descriptor))
        except BaseException:
            self.close()
            raise

    @classmethod
    def top(cls, path: Path, access: Access) -> HeldFolder:
        """A cache's own folder, made if need be.

        Raises:
            CacheError: it belongs to others, or others may write to it.
            OSError: it cannot be made or opened.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        # A link to it is the user's own way of naming it: what it leads to is looked at.
        descriptor = os.open(path, _FOLDER)
        try:
            status = os.fstat(descriptor)
            if access.shared and status.st_uid == os.geteuid() and not os.listdir(descriptor):
                os.fchmod(descriptor, access.folder_mode)
            elif access.shared and status.st_mode & access.folder_mode != access.folder_mode:
                raise CacheError(
                    f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: it was not made for "
                    "sharing. Use an empty or a new folder; or use this one alone, without "
                    "shared=True (--shared)"
                )
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, path, access)

    def folder(self, name: str, *, make: bool = False) -> HeldFolder:
        """A folder in this one.

        Raises:
            CacheError: it belongs to others, or others may write to it.
            OSError: it is not there, or is a link; or it cannot be made.
        """
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._descriptor)
                if self.access.shared:  # whatever the umask is
                    self._change_mode(name)
        descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._descriptor)
        return HeldFolder(descriptor, self.path / name, self.access)

    def _change_mode(self, name: str) -> None:
        descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._descriptor)
        try:
            os.fchmod(descriptor, self.access.folder_mode)
        finally:
            os.close(descriptor)

    def create(self, name: str, flags: int = os.O_WRONLY) -> int:
        """Makes a file that is not there yet, and opens it; returns its descriptor.

        Raises:
            OSError: it is there, or cannot be made.
        """
        flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, self.access.file_mode, dir_fd=self._descriptor)
        if self.access.shared:  # whatever the umask is
            try:
                os.fchmod(descriptor, self.access.file_mode)
            except BaseException:
                os.close(descriptor)
                raise
        return descriptor

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Opens a regular file that is there; returns its descriptor.

        Raises:
            FileNotFoundError: there is none, or something else is in its place.
            OSError: it cannot be opened.
        """
        if not stat.S_ISREG(self.stat(name).st_mode):
            raise FileNotFoundError(errno.ENOENT, "no regular file", str(self.path / name))
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=self._descriptor)

    def stat(self, name: str) -> os.stat_result:
        """What is there by a name: of a link, the link.

        Raises:
            OSError: nothing is.
        """
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Whether a regular file is there by a name."""
        try:
            return stat.S_ISREG(self.stat(name).st_mode)
        except OSError:
            return False

    def is_there(self) -> bool:
        """Whether the folder was not deleted since."""
        return os.fstat(self._descriptor).st_nlink > 0

    def names(self) -> list[str]:
        """What is in it.

        Raises:
            OSError: it cannot be read.
        """
        # Opened anew: where a listing stands belongs to the descriptor, which threads share.
        descriptor = os.open(".", _FOLDER, dir_fd=self._descriptor)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, name: str, to: HeldFolder, new: str) -> None:
        """Gives a file another place; what is there is replaced.

        Raises:
            OSError: it cannot be put there.
        """
        os.rename(name, new, src_dir_fd=self._descriptor, dst_dir_fd=to._descriptor)

    def unlink(self, name: str) -> None:
        """Deletes a file, if it is there and can be deleted."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def rmdir(self, name: str) -> None:
        """Deletes a folder, if it is there and empty."""
        with suppress(OSError):
            os.rmdir(name, dir_fd=self._descriptor)

    def close(self) -> None:
        """Lets go of the folder. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> HeldFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return f"{grp.getgrgid(number).gr_name} ({number})"
    except KeyError:
        return str(number)
