"""Receives ranges of objects by plain HTTP/1.1 directly into the caller's memory.

This saves copies: a library that returns bytes assembles them from what arrived, and writing them
with direct I/O needs another copy to aligned memory. Here the system puts the data into the
caller's buffer.

Only simple responses are accepted: status 206, with a length, without encoding. The caller falls
back to the backend for anything else, including redirects.
"""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fastio.runtime.threads import DaemonPool
from fastio.store.retry import Limits, OtherVersion
from fastio.store.urls import join, proxy_of
from fastio.store.versions import Marks, Stamp

_KEPT = 64  # idle connections
_IDLE_S = 20.0  # servers close connections that are idle for longer, some after 30 s
_PLAIN_URL = re.compile(r"(?i:http)://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[^#\s]*)?")
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class Receiver:
    """Connections to the server of a URL that `serves` accepts. Thread-safe.

    Each connection is used by one thread at a time.
    """

    def __init__(self, url: str, limits: Limits) -> None:
        self._url = url
        self._limits = limits
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or http.client.HTTP_PORT
        self._idle: deque[tuple[float, http.client.HTTPConnection]] = deque()

    @staticmethod
    def serves(url: str) -> bool:
        """Returns whether a URL can be requested without credentials, TLS or a proxy."""
        # URLs that would need encoding or other special treatment are left to the backend.
        if not (url.isascii() and url.isprintable() and _PLAIN_URL.fullmatch(url)):
            return False
        try:
            parts = urlsplit(url)
            _ = parts.port  # raises if the port is not valid
        except ValueError:
            return False
        return proxy_of(url) is None

    def receive(
        self,
        name: str,
        offset: int,
        views: Sequence[memoryview],
        limit_s: float,
        expect: Stamp | None = None,
    ) -> Marks | None:
        """Receives a range of an object.

        Args:
            name, offset: The name of the object, and the first byte.
            views: Writable memory that is filled one view after another; at least one byte in all.
            limit_s: Seconds for connecting and receiving the whole response.
            expect: The expected version.

        Returns:
            What the response says of its version; None if the server's response is not simple, in
            which case the caller has to use another way.

        Raises:
            FileNotFoundError: The server says that there is no such object.
            OtherVersion: The object has another version than `expect`.
            OSError: Another attempt may succeed.
        """
        until_s = time.monotonic() + limit_s
        length = sum(view.nbytes for view in views)
        parts = urlsplit(join(self._url, name))
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        headers = {
            "Range": f"bytes={offset}-{offset + length - 1}",
            "Accept-Encoding": "identity",
        }
        if expect is not None and expect.etag is not None:
            headers["If-Match"] = expect.etag
        connection, kept = self._connection(until_s)
        answer = None
        reusable = False
        try:
            try:
                answer = _ask(connection, target, headers)
            except ConnectionError:
                if not kept:  # an idle connection may have been closed by the server
                    raise
                connection.close()
                connection = self._connected(until_s)
                answer = _ask(connection, target, headers)
            if not _is_plain(answer, offset, length):
                return None
            for view in views:
                _fill(view, answer)
            # Set only now: unread bytes of this response would be taken for the next response.
            reusable = not answer.will_close
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
        finally:
            if answer is not None:
                answer.close()  # closes the connection too if the server ends it
            if reusable and len(self._idle) < _KEPT:
                self._idle.append((time.monotonic(), connection))
            else:
                connection.close()
        total = answer.getheader("Content-Range", "").rpartition("/")[2]
        return Marks.of_headers(answer.headers, int(total) if total.isdecimal() else None)

    def close(self) -> None:
        """Closes idle connections."""
        with suppress(IndexError):
            while True:
                _, connection = self._idle.pop()
                connection.close()

    def __del__(self) -> None:
        self.close()

    def _connection(self, until_s: float) -> tuple[http.client.HTTPConnection, bool]:
        """Returns an open connection, and whether it was used before."""
        with suppress(IndexError):
            while True:
                # The connection that was used last, because the server is least likely to have
                # closed it.
                since_s, connection = self._idle.pop()
                if time.monotonic() - since_s < _IDLE_S and connection.sock is not None:
                    assert isinstance(connection.sock, _TimedSocket)
                    connection.sock.until_s = until_s
                    return connection, True
                connection.close()
        return self._connected(until_s), False

    def _connected(self, until_s: float) -> http.client.HTTPConnection:
        problem: OSError = OSError(f"the name {self._host} has no address")
        for family, kind, protocol, _, address in self._addresses(until_s):
            sock = _TimedSocket(family, kind, protocol)
            sock.stall_s, sock.until_s = self._limits.timeout_s, until_s
            try:
                sock.connect(address)
                # Otherwise a request may wait for the acknowledgement of the one before (Nagle's
                # algorithm).
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                sock.close()
                problem = error
                continue
            connection = http.client.HTTPConnection(self._host, self._port)
            connection.sock = sock
            return connection
        raise problem

    def _addresses(self, until_s: float) -> list[Any]:
        """Looks the host up, in a thread: the system's function may not return.

        It waits for as long as it likes for a name server. In a forked child it waits for ever if a
        thread of the parent was in it at the fork, and held a lock of the C library.
        """
        look_up = partial(socket.getaddrinfo, self._host, self._port, type=socket.SOCK_STREAM)
        pool = DaemonPool(1, "fastio-look-up")
        limit_s = max(0.0, min(self._limits.timeout_s, until_s - time.monotonic()))
        try:
            return pool.submit(look_up).result(limit_s)
        except FutureTimeout:
            raise TimeoutError(f"no address of {self._host} within {limit_s:.3g} s") from None
        finally:
            pool.shutdown(wait=False)


class _TimedSocket(socket.socket):
    """A socket with a deadline for all operations together.

    A plain socket's timeout restarts with each received byte, and http.client reads many times: the
    status line, the headers, and any number of "100 Continue" responses before them.

    Attributes:
        stall_s: The timeout of one call in seconds.
        until_s: The deadline, as a value of time.monotonic().
    """

    stall_s = 0.0
    until_s = 0.0

    def connect(self, address: Any) -> None:
        self._limit()
        super().connect(address)

    def sendall(self, data: Any, flags: int = 0) -> None:
        self._limit()
        super().sendall(data, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self._limit()
        return super().recv_into(buffer, nbytes, flags)

    def _limit(self) -> None:
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the attempt took too long")
        self.settimeout(min(self.stall_s, left_s))


def _fill(view: memoryview, answer: http.client.HTTPResponse) -> None:
    """Fills a view with received bytes. A stalled server causes a timeout of the socket."""
    at = 0
    while at < view.nbytes:
        count = answer.fp.readinto1(view[at:])  # returns what has arrived
        if not count:
            raise OSError(f"the connection ended {view.nbytes - at} bytes too early")
        at += count


def _ask(
    connection: http.client.HTTPConnection, target: str, headers: dict[str, str]
) -> http.client.HTTPResponse:
    connection.request("GET", target, headers=headers)
    return connection.getresponse()


def _is_plain(answer: http.client.HTTPResponse, offset: int, length: int) -> bool:
    """Returns whether the body of a response is exactly the requested range."""
    if answer.status == 404:
        raise FileNotFoundError
    if answer.status == 412:
        raise OtherVersion("HTTP status 412: the object has another version")
    if answer.status in _TRANSIENT:
        raise OSError(f"HTTP status {answer.status} {answer.reason}")
    unit, _, found = answer.getheader("Content-Range", "").partition(" ")
    return (
        answer.status == 206
        and not answer.chunked
        and answer.length == length
        and answer.getheader("Content-Encoding", "identity") == "identity"
        and unit.lower() == "bytes"
        and found.partition("/")[0] == f"{offset}-{offset + length - 1}"
    )
