"""Store: objects below a URL, with retries, a deadline, and errors that name what happened."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastio.errors import SourceChanged, SourceNotFound, StoreError
from fastio.shown import without_secrets
from fastio.store.options import family_of
from fastio.store.ranges import Span, coalesce, parallel
from fastio.store.receive import Receiver
from fastio.store.retry import Failed, Limits, OtherVersion, Permanent, attempt
from fastio.store.transfers import Transfers
from fastio.store.urls import join, redact, scheme_of, secrets_of
from fastio.store.versions import Marks, Stamp

T = TypeVar("T")

# A write has this much more time for what it sends: a deadline for reads would cut large ones off.
_WRITTEN_BYTES_PER_S = 1 << 20
_SHORTEST_S = 0.01
# A server that did not answer plainly so often is not asked for plain answers any more.
_NOT_PLAIN = 3
_LONGEST_CAUSE = 400  # characters; servers answer with whole pages


class Backend(Protocol):
    """One attempt at each request, within limit_s seconds; see the two implementations.

    Raises:
        FileNotFoundError: there is no such object.
        retry.OtherVersion: it is of another version than `expect`; the answer may say so instead.
        retry.Permanent: another attempt would end likewise.
        Exception: anything else, which another attempt may mend.
    """

    name: str
    is_plain: bool

    def stat(self, name: str, limit_s: float) -> Marks: ...
    def read(
        self, name: str, offset: int, length: int | None, limit_s: float, expect: Stamp | None
    ) -> tuple[memoryview, Marks]: ...
    def write(self, name: str, data: memoryview | Path, limit_s: float) -> None: ...
    def list(self, folder: str, limit_s: float) -> list[tuple[str, Marks]]: ...
    def delete(self, name: str, limit_s: float) -> None: ...


def open_store(
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    deadline_s: float = 60.0,
    timeout_s: float = 15.0,
) -> Store:
    """A store of the objects below a URL; nothing is requested yet.

    Args:
        url: of a folder: "s3://bucket/prefix", "https://host/path", any other that fsspec knows.
        storage_options: credentials, endpoint and the like, in fsspec's or obstore's words.
        deadline_s: seconds for a call, all attempts together. A write has one more for each MiB.
        timeout_s: seconds after which an attempt without progress is given up and tried again.
            fsspec does not tell progress: there, less than 1 MiB/s counts as none.

    Raises:
        StoreError: the URL or an option is not understood, or a package is missing for it.
    """
    store = Store(url, storage_options, deadline_s=deadline_s, timeout_s=timeout_s)
    _ = store.backend
    return store


class Store:
    """Objects below a URL. Thread-safe; goes through forks and pickling, and opens anew there.

    Names are relative to the URL, as the store has them (not percent-encoded). Every call waits
    without the interpreter's lock and raises

    - SourceNotFound: there is no such object;
    - SourceChanged: it is of another version than the one that was expected;
    - StoreError: every attempt until the deadline failed, or the answer would stay the same
      (permission denied, a range that the object does not have, a server that ignores ranges).

    Attributes:
        url: without credentials, for messages.
        transfers: what went wrong on the way and was made again.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        deadline_s: float = 60.0,
        timeout_s: float = 15.0,
    ) -> None:
        if deadline_s <= 0 or timeout_s <= 0:
            raise ValueError(f"deadline_s={deadline_s} and timeout_s={timeout_s} must be positive")
        self._location = url
        self._options = dict(storage_options or {})
        self._limits = Limits(deadline_s, timeout_s)
        self._secrets = secrets_of(url, self._options)
        self.url = without_secrets(url)
        self.transfers = Transfers()
        # With the process that it belongs to: a forked child makes its own.
        self._opened: tuple[int, Backend] | None = None
        self._receiver: Receiver | None = None
        self._not_plain = 0  # answers that the receiver left to the backend

    @property
    def is_plain(self) -> bool:
        """Whether bytes come without TLS, as far as is known: then nothing vouches for the way."""
        return self._backend().is_plain

    @property
    def backend(self) -> str:
        """The library that takes it: "obstore" or "fsspec"."""
        return self._backend().name

    def stat(self, name: str) -> Stamp:
        """Size and version of an object; one request.

        Reads that are given it as `expect` are all of this version.
        """
        return self._call(name, lambda backend, left_s: backend.stat(name, left_s)).stamp()

    def size(self, name: str) -> int:
        """Bytes of an object; one request."""
        return self.stat(name).size

    def exists(self, name: str) -> bool:
        """Whether there is such an object; one request."""
        try:
            self.stat(name)
        except SourceNotFound:
            return False
        return True

    def read(
        self,
        name: str,
        offset: int = 0,
        length: int | None = None,
        *,
        expect: Stamp | None = None,
        stop: threading.Event | None = None,
    ) -> memoryview:
        """Bytes of an object, in one request; uint8, read-only, not copied from what arrived.

        Args:
            name: of the object.
            offset: first byte.
            length: bytes, all of which the object must have; None: to its end.
            expect: the version that the bytes must be of; None: whichever there is.
            stop: when set, a failed attempt is the last one.
        """
        if offset < 0 or (length is not None and length < 0):
            raise ValueError(f"offset {offset} and length {length} must not be negative")
        if length == 0:
            return memoryview(b"")

        def request(backend: Backend, left_s: float) -> memoryview:
            return _of_version(
                backend,
                name,
                expect,
                left_s,
                lambda: backend.read(name, offset, length, left_s, expect),
            )

        return self._call(name, request, stop=stop, expect=expect)

    def read_into(
        self,
        name: str,
        offset: int,
        views: Sequence[memoryview],
        *,
        expect: Stamp | None = None,
    ) -> None:
        """Bytes of an object, in one request, into memory of the caller's.

        Args:
            name: of the object.
            offset: first byte.
            views: of writable bytes, filled one after the other. The object must have as many.
                After an error they hold anything.
            expect: as `read` takes it.
        """
        length = sum(view.nbytes for view in views)

        def receive(backend: Backend, left_s: float) -> tuple[None, Marks]:
            receiver = self._receiver
            if receiver is not None:
                marks = receiver.receive(name, offset, views, left_s, expect)
                if marks is not None:
                    return None, marks
                self.transfers.note_retry()
                self._not_plain += 1
                if self._not_plain >= _NOT_PLAIN:
                    self._receiver = None
            data, marks = backend.read(name, offset, length, left_s, expect)
            at = 0
            for view in views:
                view[:] = data[at : at + view.nbytes]
                at += view.nbytes
            return None, marks

        def request(backend: Backend, left_s: float) -> None:
            _of_version(backend, name, expect, left_s, lambda: receive(backend, left_s))

        if length:
            self._call(name, request, expect=expect)

    def read_ranges(
        self, name: str, ranges: Sequence[tuple[int, int]], *, expect: Stamp | None = None
    ) -> list[memoryview]:
        """Several ranges (offset, length) of an object, in their order.

        Neighbours with small gaps are fetched in one request, and share its memory; up to 16
        requests run at once.
        """
        spans = coalesce(ranges)

        def read(span: Span, stop: threading.Event) -> memoryview:
            return self.read(name, span.offset, span.length, expect=expect, stop=stop)

        parts = [memoryview(b"")] * len(ranges)
        for span, data in zip(spans, parallel([partial(read, s) for s in spans]), strict=True):
            for number in span.members:
                offset, length = ranges[number]
                parts[number] = data[offset - span.offset : offset - span.offset + length]
        return parts

    def write(self, name: str, data: bytes | bytearray | memoryview | str | Path) -> None:
        """Write a whole object; readers see all of it or what was there before.

        Args:
            name: of the object; one that exists is replaced.
            data: the bytes (anything with C-contiguous memory), or a local file's path.
        """
        source = Path(data) if isinstance(data, (str, Path)) else _bytes_of(data)
        nbytes = source.stat().st_size if isinstance(source, Path) else source.nbytes
        deadline_s = self._limits.deadline_s + nbytes / _WRITTEN_BYTES_PER_S
        self._call(
            name,
            lambda backend, left_s: backend.write(name, source, left_s),
            doing="written",
            deadline_s=deadline_s,
        )

    def list(self, prefix: str = "") -> list[tuple[str, Stamp]]:
        """Names and stamps of all objects whose names begin with a prefix, sorted.

        Where a store lists no sizes, as web servers do, each object is a request of its own.
        """
        folder = prefix.rpartition("/")[0]
        found = self._call(
            folder, lambda backend, left_s: backend.list(folder, left_s), doing="listed"
        )
        wanted = sorted(
            (item for item in found if item[0].startswith(prefix)), key=lambda item: item[0]
        )

        def stamp(name: str, marks: Marks, _: threading.Event) -> Stamp:
            return self.stat(name) if marks.size is None else marks.stamp()

        stamps = parallel([partial(stamp, *item) for item in wanted])
        return [(name, each) for (name, _), each in zip(wanted, stamps, strict=True)]

    def delete(self, name: str) -> None:
        """Delete an object; whether deleting none is an error is up to the server."""
        self._call(name, lambda backend, left_s: backend.delete(name, left_s), doing="deleted")

    def close(self) -> None:
        """Let go of connections; a later call opens new ones."""
        self._opened = self._receiver = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({without_secrets(self.url)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        limits = self._limits
        make = partial(Store, deadline_s=limits.deadline_s, timeout_s=limits.timeout_s)
        return make, (self._location, self._options)

    def _backend(self) -> Backend:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            # Two threads may both open one: the later stays, and the other ends with its call.
            opened = (os.getpid(), self._open())
            # Options may say anything about how requests are made, which the backends know.
            plain = not self._options and Receiver.serves(self._location)
            self._receiver = Receiver(self._location, self._limits) if plain else None
            self._opened = opened
        return opened[1]

    def _open(self) -> Backend:
        try:
            return _open_backend(self._location, self._options, self._limits)
        except Unopened as error:
            text = redact(str(error), self._secrets)
        raise StoreError(f"{self.url}: {text}")

    def _call(
        self,
        name: str,
        request: Callable[[Backend, float], T],
        *,
        doing: str = "read",
        deadline_s: float | None = None,
        stop: threading.Event | None = None,
        expect: Stamp | None = None,
    ) -> T:
        """What a request returns; errors are raised without the causes, which may have secrets."""
        backend = self._backend()
        problem: FileNotFoundError | Permanent | Failed
        try:
            return attempt(
                lambda left_s: request(backend, left_s),
                deadline_s or self._limits.deadline_s,
                stop,
                self.transfers.note_retry,
            )
        except (FileNotFoundError, Permanent, Failed) as error:
            problem = error
        url = without_secrets(join(self._location, name)) if name else self.url
        if isinstance(problem, OtherVersion):
            raise SourceChanged(
                f"{url} was replaced while it was being read: it was {expect} when it was opened, "
                f"and {problem}. Open it again, and do not write to objects that are being read"
            )
        raise self._error(url, doing, problem)

    def _error(
        self, url: str, doing: str, problem: FileNotFoundError | Permanent | Failed
    ) -> SourceNotFound | StoreError:
        if isinstance(problem, FileNotFoundError):
            return SourceNotFound(f"{url}: there is no such object")
        if isinstance(problem, Failed):
            cause: Exception = problem.cause
            tries = "1 attempt" if problem.attempts == 1 else f"{problem.attempts} attempts"
            how = f"cannot be {doing}: {tries} in {problem.seconds:.1f} s, the last one: "
        else:
            cause, how = problem, f"cannot be {doing}: "
        text = " ".join(redact(str(cause) or type(cause).__name__, self._secrets).split())
        if len(text) > _LONGEST_CAUSE:
            text = text[:_LONGEST_CAUSE] + " ..."
        return StoreError(f"{url} {how}{text}")


def _of_version(
    backend: Backend,
    name: str,
    expect: Stamp | None,
    limit_s: float,
    ask: Callable[[], tuple[T, Marks]],
) -> T:
    """What a request brought, if it is of the version that is expected.

    The object is asked for its version once more where an answer is of another one, or does not
    say of which, or is refused: bytes that came between two equal stamps are of that version.

    Raises:
        OtherVersion: the object has changed; says what it is now.
        OSError: it has not, but the answer was of something else.
        Exception: what `ask` raised, of an object that has not changed.
    """
    if expect is None:
        return ask()[0]
    until_s = time.monotonic() + limit_s
    problem: Permanent | None = None
    try:
        value, marks = ask()
        agrees = marks.agrees(expect)
        if agrees:
            return value
    except OtherVersion:
        agrees = False
    except Permanent as error:
        agrees, problem = None, error
    now = backend.stat(name, max(until_s - time.monotonic(), _SHORTEST_S))
    if now.agrees(expect) is False:
        raise OtherVersion(f"is {now.stamp()} now")
    if problem is not None:
        raise problem
    if agrees is False:
        raise OSError(f"the response was of another version than the object's: {expect}")
    return value


class Unopened(Exception):
    """No library takes a URL with these options; the message says why."""


def _open_backend(url: str, options: Mapping[str, Any], limits: Limits) -> Backend:
    """obstore where it is installed and takes the URL and the options, else fsspec."""
    scheme = scheme_of(url)
    declined = ""
    if family_of(scheme) is not None and "::" not in url:
        opened, declined = _try_obstore(url, options, limits)
        if opened is not None:
            return opened
    try:
        from fastio.store.fsspec_backend import FsspecBackend

        return FsspecBackend(url, options, limits)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError):
            reason = f"{_missing(scheme, error)}"
    raise Unopened("; ".join(filter(None, (declined, f"fsspec: {reason}"))))


def _try_obstore(
    url: str, options: Mapping[str, Any], limits: Limits
) -> tuple[Backend | None, str]:
    """obstore's backend, or why it is not taken."""
    from fastio.store.options import Untranslatable

    ours = "fastio.store.obstore_backend" in sys.modules
    if not ours and "obstore" in sys.modules and _is_forked_worker():
        return None, "obstore may have been used before this process was forked"
    try:
        from fastio.store import obstore_backend
    except ImportError:
        return None, "obstore is not installed"
    if not obstore_backend.usable():
        return None, "obstore does not work in a forked process (spawn and forkserver do)"
    try:
        return obstore_backend.ObstoreBackend(url, options, limits), ""
    except Untranslatable as error:
        return None, f"obstore does not take {error}"
    except Exception as error:
        return None, f"obstore: {str(error).partition(chr(10))[0]}"


def _is_forked_worker() -> bool:
    """Whether multiprocessing forked this process: spawned ones rename their main module."""
    spawned = sys.modules["__main__"].__name__ == "__mp_main__"
    return multiprocessing.parent_process() is not None and not spawned


def _missing(scheme: str, error: ImportError) -> str:
    """Which packages serve a scheme, and how to get them."""
    package = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "http": "aiohttp"}.get(
        family_of(scheme) or ""
    )
    if package is None:
        return f"{error}"
    return f"{error}: pip install obstore, or pip install {package}"


def _bytes_of(data: Any) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")
