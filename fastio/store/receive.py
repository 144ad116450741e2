"""Ranges of objects by plain HTTP/1.1, received into memory of the caller's.

A library that returns bytes has put them together from what arrived, and who writes them to a disk
past the page cache copies them to aligned memory first. Here the system puts them there at once.

Only what a server answers plainly is taken: 206, with a length, not encoded. Everything else,
redirects and errors among it, is left to those who know it all.
"""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from fastio.store.proxies import proxy_of
from fastio.store.retry import Limits, OtherVersion
from fastio.store.urls import join
from fastio.store.versions import Marks, Stamp

_KEPT = 64  # connections
_IDLE_S = 20.0  # servers close what is idle for longer, some after half a minute
_PLAIN_URL = re.compile(r"(?i:http)://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[^#\s]*)?")
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class Receiver:
    """Connections to the server of a URL, each used by one thread at a time. Thread-safe.

    Args:
        url: of a folder, for which `serves` is true.
        limits: of the store.
    """

    def __init__(self, url: str, limits: Limits) -> None:
        self._url = url
        self._limits = limits
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or http.client.HTTP_PORT
        self._idle: deque[tuple[float, http.client.HTTPConnection]] = deque()

    @staticmethod
    def serves(url: str) -> bool:
        """Whether objects below a URL can be asked for without credentials, TLS or a proxy."""
        # What would have to be encoded, stripped or refused is left to those who do it.
        if not (url.isascii() and url.isprintable() and _PLAIN_URL.fullmatch(url)):
            return False
        try:
            parts = urlsplit(url)
            _ = parts.port  # checked when it is asked for
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
            name: of the object.
            offset: first byte.
            views: of writable bytes, filled one after the other; together not empty.
            limit_s: seconds that it may take: connecting, the answer's head and its body together.
            expect: the version that is asked for.

        Returns:
            What the answer says of its version; None: the server answered in another way.

        Raises:
            FileNotFoundError: the server says that there is no such object.
            OtherVersion: it has another version than the one that is asked for.
            OSError: another attempt may help.
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
                if not kept:  # which the server may have closed meanwhile
                    raise
                connection.close()
                connection = self._connected(until_s)
                answer = _ask(connection, target, headers)
            if not _is_plain(answer, offset, length):
                return None
            for view in views:
                _fill(view, answer)
            reusable = not answer.will_close
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
        finally:
            if answer is not None:
                answer.close()  # the connection's too, where the server ends it
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
        """One that is connected, and whether it was used before."""
        with suppress(IndexError):
            while True:
                since_s, connection = self._idle.pop()
                if time.monotonic() - since_s < _IDLE_S and connection.sock is not None:
                    assert isinstance(connection.sock, _TimedSocket)
                    connection.sock.until_s = until_s
                    return connection, True
                connection.close()
        return self._connected(until_s), False

    def _connected(self, until_s: float) -> http.client.HTTPConnection:
        problem: OSError = OSError(f"the name {self._host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        ):
            sock = _TimedSocket(family, kind, protocol)
            sock.stall_s, sock.until_s = self._limits.timeout_s, until_s
            try:
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                sock.close()
                problem = error
                continue
            connection = http.client.HTTPConnection(self._host, self._port)
            connection.sock = sock
            return connection
        raise problem


class _TimedSocket(socket.socket):
    """A socket on which nothing goes on behind a deadline, however slowly bytes drip.

    A socket's own timeout begins anew with each byte, and http.client waits for many of them: the
    status line, headers, any number of "100 Continue" before them.

    Attributes:
        stall_s: seconds that one call may take.
        until_s: the deadline, by time.monotonic().
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
    """Receives as many bytes as a view has; what stalls ends with the socket's timeout."""
    at = 0
    while at < view.nbytes:
        count = answer.fp.readinto1(view[at:])  # what has arrived, at most
        if not count:
            raise OSError(f"the connection ended {view.nbytes - at} bytes too early")
        at += count


def _ask(
    connection: http.client.HTTPConnection, target: str, headers: dict[str, str]
) -> http.client.HTTPResponse:
    connection.request("GET", target, headers=headers)
    return connection.getresponse()


def _is_plain(answer: http.client.HTTPResponse, offset: int, length: int) -> bool:
    """Whether an answer's body is the range that was asked for, and nothing else.

    Raises:
        FileNotFoundError, OtherVersion, OSError: as `receive`.
    """
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
