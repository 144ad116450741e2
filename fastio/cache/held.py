"""Open folders of a cache, accessed by file descriptor and never through a symbolic link.

A cache writes and deletes files in a place that other users may have prepared. For safety, each
folder is opened relative to its parent (`openat`), symbolic links are not followed, new files are
created with O_EXCL, and the owner and mode of a folder are checked before it is used.
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
# Binary layout of Linux's access control lists (uapi/linux/posix_acl_xattr.h): version, entries.
_ACL_ENTRIES = 4
_ACL_ENTRY = struct.Struct("<HHI")  # tag, permissions, id
_ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_WRITE = 0x02, 0x08, 0x10, 0x2


@dataclass(frozen=True)
class Access:
    """Who may read and write the files of a cache: the owner and, if shared, the group."""

    shared: bool = False

    @property
    def folder_mode(self) -> int:
        """The mode of new folders. Shared folders have setgid, so that new files get the group."""
        return 0o2770 if self.shared else 0o700

    @property
    def file_mode(self) -> int:
        """The mode of new files."""
        return 0o660 if self.shared else 0o600

    def check(self, path: Path, found: os.stat_result) -> None:
        """Refuses a folder or file that other users could have written or could write to.

        Args:
            path: The path of the folder or file, for messages.
            found: Its status, as `os.stat` returns it.

        Raises:
            CacheError: If it has another owner or an unsafe mode. The message says what to do.
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
        """Raises CacheError if an access control list lets other users write to a folder.

        The mode alone is not enough: with an access control list, the mode's group bits hold the
        list's mask and do not tell which users are listed. For a shared folder the default list is
        checked too, because new files and folders inherit it.
        """
        for kind in ("access", "default") if self.shared else ("access",):
            for writer in _listed_writers(descriptor, f"system.posix_acl_{kind}"):
                raise CacheError(
                    f"{path} has an access control list by which {writer} may write to it, and "
                    "whoever writes to a cache decides what a loader reads. Use another folder, or "
                    f"run: setfacl -b '{path}'"
                )


def _listed_writers(descriptor: int, name: str) -> Iterator[str]:
    """Yields the users and groups whom a folder's access control list allows to write."""
    try:
        data = os.getxattr(descriptor, name)
    except (OSError, AttributeError):  # no list, or no support for lists on this system
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
    """An open folder. Thread-safe.

    Methods raise OSError if the system refuses, and for symbolic links.

    Code that opens a folder for a short time closes it. A folder that several threads use is closed
    when its last reference goes, because an earlier close could let the system reuse the descriptor
    for another folder while a thread still uses it.

    Args:
        descriptor: The folder's descriptor. This object closes it.
        path: The folder's path, for messages.
        access: Who may use the folder, and the modes of what is created in it.

    Raises:
        CacheError: If `access` refuses the folder. The descriptor is closed in this case.
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
        """Opens a cache's top folder, which is created if needed; CacheError if it is not safe."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        # The user may name the cache by a symbolic link. The folder it points to is checked.
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
        """Opens a folder inside this one.

        Args:
            name: The folder's name.
            make: Whether to create the folder if it does not exist.

        Raises:
            CacheError: If it belongs to another user, or others may write to it.
        """
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._descriptor)
                if self.access.shared:  # mkdir applies the umask, and this mode must be exact
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
        """Creates a file and returns its descriptor."""
        flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, self.access.file_mode, dir_fd=self._descriptor)
        if self.access.shared:  # open applies the umask, and this mode must be exact
            try:
                os.fchmod(descriptor, self.access.file_mode)
            except BaseException:
                os.close(descriptor)
                raise
        return descriptor

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Opens a regular file and returns its descriptor; FileNotFoundError if it is none."""
        if not stat.S_ISREG(self.stat(name).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", str(self.path / name))
        # The file may be replaced between the two calls: O_NOFOLLOW refuses a symbolic link, and
        # O_NONBLOCK does not wait for the other end of a pipe.
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=self._descriptor)

    def stat(self, name: str) -> os.stat_result:
        """Returns the status of a directory entry. Symbolic links are not followed."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Returns whether a regular file of this name exists."""
        try:
            return stat.S_ISREG(self.stat(name).st_mode)
        except OSError:
            return False

    def is_there(self) -> bool:
        """Returns whether the folder still exists, that is, whether nobody has deleted it."""
        return os.fstat(self._descriptor).st_nlink > 0

    def names(self) -> list[str]:
        """Returns the names of the folder's entries."""
        # Threads share the descriptor and with it the listing's position, so open a new one.
        descriptor = os.open(".", _FOLDER, dir_fd=self._descriptor)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, name: str, to: HeldFolder, new: str) -> None:
        """Moves a file to another folder and replaces a file of that name there."""
        os.rename(name, new, src_dir_fd=self._descriptor, dst_dir_fd=to._descriptor)

    def unlink(self, name: str) -> None:
        """Deletes a file. Does nothing if it does not exist or cannot be deleted."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def rmdir(self, name: str) -> None:
        """Deletes a folder. Does nothing if it does not exist or is not empty."""
        with suppress(OSError):
            os.rmdir(name, dir_fd=self._descriptor)

    def close(self) -> None:
        """Closes the descriptor. Idempotent."""
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
