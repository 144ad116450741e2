"""Ranges of objects by plain HTTP/1.1, received into memory of the caller's.

A library that returns bytes has put them together from what arrived, and who writes them to a disk
past the page cache copies them to aligned memory first. Here the system puts them there at once.

Only what a server answers plainly is taken: 206, with a length, not encoded. Everything else,
redirects and errors among it, is left to those who know it all.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.request
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from fastio.store.retry import Limits
from fastio.store.urls import join

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
        proxies = urllib.request.getproxies()
        through = "http" in proxies or "all" in proxies
        return not through or bool(urllib.request.proxy_bypass(parts.netloc))

    def receive(self, name: str, offset: int, views: Sequence[memoryview], limit_s: float) -> bool:
        """Receives a range of an object.

        Args:
            name: of the object.
            offset: first byte.
            views: of writable bytes, filled one after the other; together not empty.
            limit_s: seconds that it may take.

        Returns:
            Whether all of it was received; False: the server answered in another way.

        Raises:
            FileNotFoundError: the server says that there is no such object.
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
        connection, kept = self._connection(limit_s)
        answer = None
        reusable = False
        try:
            try:
                answer = _ask(connection, target, headers)
            except (ConnectionError, http.client.BadStatusLine):
                if not kept:  # which the server may have closed meanwhile
                    raise
                connection.close()
                if time.monotonic() > until_s:
                    raise
                connection.connect()
                answer = _ask(connection, target, headers)
            if not _is_plain(answer, offset, length):
                return False
            for view in views:
                _fill(view, answer, until_s)
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
        return True

    def close(self) -> None:
        """Closes idle connections."""
        with suppress(IndexError):
            while True:
                _, connection = self._idle.pop()
                connection.close()

    def __del__(self) -> None:
        self.close()

    def _connection(self, limit_s: float) -> tuple[http.client.HTTPConnection, bool]:
        """One that is connected, and whether it was used before."""
        timeout_s = max(0.001, min(self._limits.timeout_s, limit_s))
        with suppress(IndexError):
            while True:
                since_s, connection = self._idle.pop()
                if time.monotonic() - since_s < _IDLE_S and connection.sock is not None:
                    connection.timeout = timeout_s  # of a socket that is opened again
                    connection.sock.settimeout(timeout_s)
                    return connection, True
                connection.close()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection, False


def _fill(view: memoryview, answer: http.client.HTTPResponse, until_s: float) -> None:
    """Receives as many bytes as a view has; what stalls ends with the socket's timeout."""
    at = 0
    while at < view.nbytes:
        count = answer.fp.readinto1(view[at:])  # what has arrived, at most
        if not count:
            raise OSError(f"the connection ended {view.nbytes - at} bytes too early")
        at += count
        if time.monotonic() > until_s:
            raise TimeoutError("it took too long")


def _ask(
    connection: http.client.HTTPConnection, target: str, headers: dict[str, str]
) -> http.client.HTTPResponse:
    connection.request("GET", target, headers=headers)
    return connection.getresponse()


def _is_plain(answer: http.client.HTTPResponse, offset: int, length: int) -> bool:
    """Whether an answer's body is the range that was asked for, and nothing else.

    Raises:
        FileNotFoundError, OSError: as `receive`.
    """
    if answer.status == 404:
        raise FileNotFoundError
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
