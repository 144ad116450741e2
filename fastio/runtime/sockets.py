"""Where multiprocessing makes its Unix sockets, whose paths must be short."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from multiprocessing import util

_MOST_BYTES = 107  # of the path of a Unix socket on Linux (sun_path of unix(7))
# multiprocessing's names in the temporary folder: of a folder, and of a socket in it.
_FOLDER, _SOCKET = "pymp-xxxxxxxx", "listener-xxxxxxxx"
_SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")


def ensure_short_socket_paths() -> None:
    """Has multiprocessing make its sockets in /tmp if TMPDIR is too long for them.

    Tensors in shared memory are sent to other processes through such sockets, and the fork server
    has one. With a TMPDIR of more than 75 bytes, as batch systems of clusters set it, binding a
    socket fails with "AF_UNIX path too long". Child processes that start afterwards use the same
    folder, which is removed when this process ends. Does nothing if the path is short enough, or if
    no folder with a short path is writable.
    """
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    used = config.get("tempdir") or os.path.join(tempfile.gettempdir(), _FOLDER)
    if len(os.fsencode(os.path.join(used, _SOCKET))) <= _MOST_BYTES:
        return
    for folder in _SHORT_FOLDERS:
        try:
            short = tempfile.mkdtemp(prefix="pymp-", dir=folder)
        except OSError:
            continue
        # The priority is that of the folder of multiprocessing: it is removed after its sockets are
        # closed.
        util.Finalize(None, shutil.rmtree, args=(short, True), exitpriority=-100)
        config["tempdir"] = short
        return
