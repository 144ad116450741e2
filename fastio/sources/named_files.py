"""Files that data name by a path: which of them are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from fastio.runtime.files import read_file
from fastio.store import local_path


class NamedFiles:
    """The files that a dataset or a list may name: those below its own folder, and no others.

    Who made the data is not always who reads them, and a path in them may name any file of the
    reader's: a key, a mail. So a path, with its links followed, has to stay below the folder that
    the data lie in, or below one that the user names. Paths that are not absolute are taken from
    the data's folder, then from those.

    Args:
        folder: The folder of the data. None if the user made the data in this process: they may
            then name any file.
        roots: Further folders.
    """

    def __init__(
        self, folder: str | None, roots: Iterable[str | os.PathLike[str]] | None = None
    ) -> None:
        if isinstance(roots, (str, bytes, os.PathLike)):
            raise ValueError(
                f"roots must be a list of folders, got one path: write roots=[{roots!r}]"
            )
        self._folder = folder
        folders = [] if folder is None else [folder, *(local_path(root) for root in roots or ())]
        self._roots = [os.path.realpath(each) for each in folders]

    def find(self, path: str) -> str:
        """Returns where a file lies, without links.

        Raises:
            PermissionError: the file lies in none of the folders.
            ValueError: the path contains NUL.
            SourceNotFound: the path is a file URL with the name of another host.
        """
        path = local_path(path)
        if self._folder is None:
            return path
        found = [os.path.realpath(os.path.join(root, path)) for root in self._roots]
        inside = [real for real in found if self._is_inside(real)]
        there = next(filter(os.path.exists, inside), None)
        if there is not None or inside:
            return there or inside[0]
        raise PermissionError(
            errno.EACCES,
            f"it lies outside {self._folder}, and data may only name files below their own folder. "
            "If you trust the data, allow other folders with roots=[...] (--root)",
            path,
        )

    def read(self, path: str) -> bytes:
        """Returns the bytes of a file, or raises OSError or, as `find`, ValueError."""
        return read_file(self.find(path))

    def _is_inside(self, real: str) -> bool:
        return any(real.startswith(os.path.join(root, "")) for root in self._roots)
