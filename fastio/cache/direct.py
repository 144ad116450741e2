"""Writing files past the system's page cache.

What is staged hours before it is read would only push other things out of the page cache, and
copying it there costs more processor time than all the rest of staging it.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

_ALIGNMENT = 4096  # of addresses, offsets and lengths; no disk asks for more
_BUFFER_BYTES = 1 << 20
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)


class Digest(Protocol):
    """A hash that bytes are added to."""

    def update(self, data: Any, /) -> Any: ...


def write_direct(path: Path, parts: Sequence[Any], digest: Digest) -> bool:
    """Writes a file of bytes-like objects that follow one another, if the file system can.

    Args:
        path: the file, which is made.
        parts: what it is to hold.
        digest: gets all bytes, unless False is returned.

    Returns:
        Whether it was written; False: nothing was, and nothing was hashed.

    Raises:
        OSError: it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        raise
    buffer = memoryview(mmap.mmap(-1, _BUFFER_BYTES))  # aligned to pages
    try:
        held = total = 0
        for part in parts:
            data = memoryview(part).cast("B")
            while data:
                count = min(data.nbytes, _BUFFER_BYTES - held)
                buffer[held : held + count] = data[:count]
                digest.update(buffer[held : held + count])
                data, held, total = data[count:], held + count, total + count
                if held == _BUFFER_BYTES:
                    _write(descriptor, buffer)
                    held = 0
        if held:
            _write(descriptor, buffer[: -(-held // _ALIGNMENT) * _ALIGNMENT])
            os.truncate(descriptor, total)
    finally:
        os.close(descriptor)
    return True


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
