"""The store's backend for fsspec, which supports every scheme that fsspec knows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent import futures
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from fsspec.asyn import sync as run_in_loop
from fsspec.core import url_to_fs

from fastio.runtime.threads import DaemonPool
from fastio.store import index_pages
from fastio.store.options import for_fsspec
from fastio.store.retry import SLOWEST_BYTES_PER_S, Doubtful, Limits, Permanent, Unconditional
from fastio.store.urls import join, scheme_of
from fastio.store.versions import Marks, Stamp

_PERMANENT = (NotImplementedError, ImportError, TypeError, ValueError, IsADirectoryError)
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"})
_TRANSIENT_STATUS = frozenset({408, 425, 429})
# On these file systems a folder must exist before a file can be written to it.
_WITH_FOLDERS = frozenset({"file", "local", "sftp", "ssh", "smb", "hdfs", "webhdfs", "arrow_hdfs"})


class FsspecBackend:
    """Single attempts at requests through fsspec.

    Args:
        url: Any URL that fsspec knows, including chains.
        options: The storage_options, which are passed to the file system.
        limits: The time limits of the store.

    Raises:
        ImportError: If a package for the scheme is missing.
        ValueError: If fsspec does not know the scheme, or the file system does not know an option.
    """

    name = "fsspec"

    def __init__(self, url: str, options: Mapping[str, Any], limits: Limits) -> None:
        options = for_fsspec(scheme_of(url), options)
        if "::" not in url:
            options["skip_instance_cache"] = True  # an own instance, because `retries` is set below
        self._fs, self._root = url_to_fs(url, **options)
        # fsspec makes one attempt, because `retry` repeats requests, with one deadline for all
        # attempts.
        if "::" not in url and hasattr(self._fs, "retries"):
            self._fs.retries = 1
        self._on_the_web = urlsplit(self._root).scheme in ("http", "https")  # its paths are URLs
        self.is_plain = urlsplit(self._root).scheme == "http"
        self._web = _web_rules(self._fs) if "::" not in url else None
        self._limits = limits
        self._connected = False

    def stat(self, name: str, limit_s: float) -> Marks:
        """Returns the size and version of an object."""
        path, allowed_s = self._path(name), self._limits.timeout_s
        if self._web is not None:
            found: Marks = self._run(self._web.stat(self._fs, path), allowed_s, limit_s)
            return found
        info = self._call("info", allowed_s, limit_s, path)
        # Stores have no folders, but fsspec describes a common prefix of names as a folder.
        if info.get("type") == "directory":
            raise FileNotFoundError(name)
        if info.get("size") is None:
            raise Permanent("the server does not say how many bytes it has")
        return Marks.of_info(info)

    def read(
        self, name: str, offset: int, length: int | None, limit_s: float, expect: Stamp | None
    ) -> tuple[memoryview, Marks]:
        """Reads a range of an object in one request; to the end if `length` is None.

        The version of the returned bytes is known only for web servers.
        """
        if length is None:
            # The size is not known, so half of the time is allowed, which leaves time for another
            # attempt.
            allowed_s = max(self._limits.timeout_s, limit_s / 2)
        else:
            allowed_s = self._limits.timeout_s + length / SLOWEST_BYTES_PER_S
        path = self._path(name)
        if self._web is not None:
            request = self._web.fetch(self._fs, path, offset, length, expect)
            body, marks = self._run(request, allowed_s, limit_s)
            return memoryview(body), marks
        start = offset if offset or length is not None else None
        end = None if length is None else offset + length
        data = memoryview(self._call("cat_file", allowed_s, limit_s, path, start=start, end=end))
        if length is not None and data.nbytes != length:
            self._complain(name, offset, length, data.nbytes, limit_s)
        return data, Marks()

    def _complain(self, name: str, offset: int, length: int, came: int, limit_s: float) -> None:
        asked = f"bytes {offset} to {offset + length}"
        if came > length:
            raise Doubtful(
                f"{asked} were requested, but {came} bytes were received: the server ignores ranges"
            )
        size = self.stat(name, limit_s).size or 0
        if offset + length > size:
            raise Permanent(f"{asked} were requested, but the object has {size} bytes")
        raise OSError(f"{came} bytes were received instead of {length}")

    def write(self, name: str, data: memoryview | Path, limit_s: float) -> None:
        """Writes a whole object."""
        path = self._path(name)
        if _WITH_FOLDERS & _protocols(self._fs):
            self._fs.makedirs(self._fs._parent(path), exist_ok=True)
        nbytes = data.stat().st_size if isinstance(data, Path) else data.nbytes
        allowed_s = self._limits.timeout_s + nbytes / SLOWEST_BYTES_PER_S
        if isinstance(data, Path):
            self._call("put_file", allowed_s, limit_s, str(data), path)
        else:
            self._call("pipe_file", allowed_s, limit_s, path, bytes(data))

    def replace(self, name: str, data: memoryview, limit_s: float, expect: Stamp | None) -> Marks:
        """Raises Unconditional: file systems of fsspec have no conditional writes."""
        raise Unconditional("file systems of fsspec have no conditional writes")

    def pages(self, folder: str, after: str, limit_s: float) -> Iterator[list[tuple[str, Marks]]]:
        """Yields all objects below a folder, with sizes and versions as far as the store tells."""
        if self._web is not None:
            for names in _after(index_pages.pages(partial(self._page, limit_s), folder), after):
                yield [(name, Marks()) for name in names]
            return
        root = str(self._fs._strip_protocol(self._root)).rstrip("/")
        found = self._call("find", limit_s / 2, limit_s, self._path(folder), detail=True)
        if not isinstance(found, dict):
            raise Permanent("this file system does not list with sizes")
        names = [path[len(root) :].lstrip("/") for path in found]
        if self._on_the_web:
            names = [unquote(name) for name in names]
        # A listing that has come is not requested again for what follows it.
        yield [] if after else list(zip(names, map(Marks.of_info, found.values()), strict=True))

    def level(
        self, folder: str, limit_s: float
    ) -> tuple[list[str], list[tuple[str, Marks]]] | None:
        """Returns the folders and objects directly in a folder of a web server.

        Returns None for other stores, whose folders only `pages` lists.
        """
        if self._web is None:
            return None
        folders, names = index_pages.level(partial(self._page, limit_s), folder)
        return folders, [(name, Marks()) for name in names]

    def _page(self, limit_s: float, folder: str) -> bytes:
        """Returns the page of a folder of a web server; its name is "" or ends with "/"."""
        assert self._web is not None
        url = urlsplit(self._path(folder))
        path = url._replace(path=url.path.rstrip("/") + "/").geturl()
        request = self._web.fetch(self._fs, path, 0, None, None)
        body: bytes = self._run(request, self._limits.timeout_s, limit_s)[0]
        return body

    def copy(self, name: str, to: str, nbytes: int, limit_s: float) -> None:
        """Copies an object within the store."""
        allowed_s = self._limits.timeout_s + nbytes / SLOWEST_BYTES_PER_S
        self._call("cp_file", allowed_s, limit_s, self._path(name), self._path(to))

    def delete(self, name: str, limit_s: float) -> None:
        """Deletes an object."""
        self._call("rm_file", self._limits.timeout_s, limit_s, self._path(name))

    def _path(self, name: str) -> str:
        if not name:
            return str(self._root)
        if self._on_the_web:
            return join(self._root, name)
        return self._root.rstrip("/") + "/" + name if self._root else name

    def _call(
        self, method: str, allowed_s: float, limit_s: float, *args: Any, **options: Any
    ) -> Any:
        """Calls a method of the file system with a time limit and without its cache of listings."""
        seconds = min(allowed_s, limit_s)
        fs = self._fs
        if method in ("info", "find"):
            fs.invalidate_cache()
        if fs.async_impl and hasattr(fs, "_" + method):
            return self._run(getattr(fs, "_" + method)(*args, **options), seconds, limit_s)
        try:
            return _in_thread(lambda: getattr(fs, method)(*args, **options), seconds)
        except Exception as error:
            raise _translated(error, seconds) from None

    def _run(self, request: Coroutine[Any, Any, Any], allowed_s: float, limit_s: float) -> Any:
        """Runs a coroutine with a time limit. If it is cancelled, its connection is closed."""
        seconds = min(allowed_s, limit_s)
        try:
            self._connect(limit_s)

            async def run() -> Any:
                return await request

            return run_in_loop(self._fs.loop, run, timeout=seconds)
        except Exception as error:
            # A frame of fsspec in the traceback refers to the error, and would keep all frames.
            raise _translated(error.with_traceback(None), seconds) from None
        finally:
            request.close()  # avoids a warning if it was never started

    def _connect(self, limit_s: float) -> None:
        """Creates the file system's client, which may take longer than a request's time limit."""
        if not self._connected and hasattr(self._fs, "set_session"):
            run_in_loop(self._fs.loop, self._fs.set_session, timeout=limit_s)
        self._connected = True


def _in_thread(function: Callable[[], Any], seconds: float) -> Any:
    """Calls a function in a thread. After the time limit the thread is left to end by itself."""
    # A daemon thread: it may hang as long as its socket does, and must not delay the exit.
    pool = DaemonPool(1, "fastio-store-fsspec")
    try:
        return pool.submit(function).result(timeout=seconds)
    finally:
        pool.shutdown(wait=False)


def _web_rules(fs: Any) -> ModuleType | None:
    """Returns the `web` module for fsspec's file system for http(s), and installs its client."""
    http = sys.modules.get("fsspec.implementations.http")
    if http is None or type(fs) is not http.HTTPFileSystem:
        return None
    from fastio.store import web  # which needs aiohttp, as that file system does

    fs.get_client = web.client_maker(fs.get_client)
    return web


def _after(pages: Iterator[list[str]], last: str) -> Iterator[list[str]]:
    """Yields the pages after the one that ends with a name; all if it is ""."""
    for names in pages:
        if not last:
            yield names
        elif names[-1] == last:
            last = ""


def _translated(error: Exception, seconds: float) -> Exception:
    """Translates an error to Permanent, or to an error that is retried."""
    # Three classes in Python 3.10.
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, futures.TimeoutError)):
        return TimeoutError(f"no response within {seconds:.3g} s")
    if isinstance(error, (FileNotFoundError, Permanent)):
        return error
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    status = getattr(error, "status", None)
    if isinstance(error, PermissionError) or status in (401, 403):
        return Permanent(f"permission denied: {text}")
    if isinstance(error, _PERMANENT) or type(error).__name__ in _NO_CREDENTIALS:
        return Permanent(text)
    final = isinstance(status, int) and (300 <= status < 500 or status in (501, 505))
    if final and status not in _TRANSIENT_STATUS:
        return Permanent(text)
    return OSError(text)


def _protocols(fs: Any) -> set[str]:
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
