"""Memory whose writers wait until they are let go: a thread that hangs as in a read, at will."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pytest

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(os.uname().machine)
_API, _REGISTER, _ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
_USER_MODE_ONLY, _MODE_MISSING, _VERSION = 1, 1, 0xAA


class HangingMemory:
    """Memory that Linux's userfaultfd watches; skips the test where that cannot be had.

    Attributes:
        array: uint8 (n,). Who touches it waits for `let_go`.
    """

    def __init__(self, nbytes: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        flags = os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY
        self._fd = -1 if _USERFAULTFD is None else libc.syscall(_USERFAULTFD, flags)
        if self._fd < 0:
            pytest.skip("there is no userfaultfd here")
        self._size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self._begin = self.array.ctypes.data
        fcntl.ioctl(self._fd, _API, struct.pack("QQQ", _VERSION, 0, 0))
        fcntl.ioctl(
            self._fd, _REGISTER, struct.pack("QQQQ", self._begin, self._size, _MODE_MISSING, 0)
        )

    def touched(self, timeout_s: float) -> bool:
        """Whether somebody waits for it by then."""
        import select

        return bool(select.select([self._fd], [], [], timeout_s)[0])

    def let_go(self) -> None:
        """Has zeros there, and those who wait go on."""
        if self._fd < 0:
            return
        fcntl.ioctl(self._fd, _ZEROPAGE, struct.pack("QQQQq", self._begin, self._size, 0, 0, 0))
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> HangingMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.let_go()
