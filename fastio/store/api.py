"""`Store`: reads and writes objects below a URL, with retries, deadlines and clear errors."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastio.errors import SourceChanged, SourceNotFound, StoreError
from fastio.runtime.lifecycle import Owner, new_lock
from fastio.runtime.threads import DaemonPool, wait_for
from fastio.shown import without_secrets
from fastio.store.backends import Backend, marks_of_equal, of_version, open_backend
from fastio.store.options import check_seconds, for_rust, seconds_of
from fastio.store.ranges import Span, coalesce, parallel
from fastio.store.receive import Receiver
from fastio.store.retry import (
    SLOWEST_BYTES_PER_S,
    Failed,
    Limits,
    OtherVersion,
    Permanent,
    Transfers,
    attempt,
    error_of,
)
from fastio.store.urls import join, secrets_of
from fastio.store.versions import Marks, Stamp

T = TypeVar("T")

_DEADLINE_S = 60.0
_TIMEOUT_S = 15.0
# After this many responses that are not simple, `Receiver` is not used any more.
_NOT_PLAIN = 3
# For how long a server that has never answered may refuse connections, as while it starts.
_REFUSED_S = 10.0
# With 30 ms a request, 64 requests at a time would be 2,000 objects a second.
OBJECTS_AT_ONCE = 128
_POOLS = new_lock()  # held while a store's threads are made


def open_store(url: str, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Opens a store of the objects below a URL. Sends no request.

    Args:
        url: The URL of a folder: "s3://bucket/prefix", "https://host/path", or any other that
            fsspec knows.
        storage_options: Credentials, endpoint and so on, with the names of fsspec or obstore.
            deadline_s: seconds for a call, including all attempts (60); a write has one more for
            each MiB. timeout_s: seconds after which an attempt without progress is retried (15).
            fsspec does not report progress; there, a rate below 1 MiB/s counts as no progress.
            listing_s is ignored: it sets how long listings are kept.

    Raises:
        StoreError: If the URL or an option is not understood, or a package for it is missing.
    """
    options = dict(storage_options or {})
    try:
        check_seconds(options)
    except ValueError as error:
        raise StoreError(f"{without_secrets(url)}: {error}") from None
    deadline_s = seconds_of(options.pop("deadline_s", _DEADLINE_S))
    timeout_s = seconds_of(options.pop("timeout_s", _TIMEOUT_S))
    options.pop("listing_s", None)
    store = Store(url, options, deadline_s=deadline_s, timeout_s=timeout_s)
    # Opens the library, so that a wrong option or a missing package is an error here.
    _ = store.backend
    return store


class Store:
    """The objects below a URL. Thread-safe; can be forked and pickled, and then opens anew.

    Names are relative to the URL, as the store has them (not percent-encoded). All calls release
    the GIL while they wait. They raise

    - SourceNotFound if there is no such object;
    - SourceChanged if the object has another version than the expected one;
    - StoreError if every attempt until the deadline has failed, or if a retry would not help
      (permission denied, a range beyond the object's end, a server that ignores ranges).

    Attributes:
        url: The URL without credentials, for messages.
        transfers: Counters of retries and of data that was fetched again.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        deadline_s: float = _DEADLINE_S,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._location = url
        self._options = dict(storage_options or {})
        self._limits = Limits(deadline_s, timeout_s)
        self._secrets = secrets_of(url, self._options)
        self.url = without_secrets(url)
        self.transfers = Transfers()
        # The backend with the process id that opened it, because a forked child opens its own.
        self._opened: tuple[Owner, Backend] | None = None
        self._receiver: Receiver | None = None
        self._answered = False  # whether a server has ever answered
        self._not_plain = 0  # responses that the receiver could not handle
        self._pool: tuple[Owner, DaemonPool] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether requests go without TLS, as far as is known, so that data may be altered."""
        return self._backend().is_plain

    def options_of_rust(self) -> dict[str, str]:
        """Returns the options as the Rust crate object_store names them, for libraries that use it.

        Raises:
            StoreError: object_store cannot read this URL, or does not take an option.
        """
        return for_rust(self._location, self._options)

    @property
    def backend(self) -> str:
        """The library that makes the requests: "obstore" or "fsspec"."""
        return self._backend().name

    def stat(self, name: str) -> Stamp:
        """Returns the size and version of an object, in one request.

        Pass the result to reads as `expect` so that they all read this version.
        """
        return self._call(name, lambda backend, left_s: backend.stat(name, left_s)).stamp()

    def exists(self, name: str) -> bool:
        """Returns whether there is an object of this name, in one request."""
        try:
            self.stat(name)
        except SourceNotFound:
            return False
        return True

    def size(self, name: str) -> int:
        """Returns the size of an object in bytes, in one request."""
        return self.stat(name).size

    def read(
        self,
        name: str,
        offset: int = 0,
        length: int | None = None,
        *,
        expect: Stamp | None = None,
        stop: threading.Event | None = None,
    ) -> memoryview:
        """Reads bytes of an object in one request.

        Args:
            name: The name of the object.
            offset: The first byte.
            length: The number of bytes, all of which must exist. If None, all up to the end.
            expect: The version that the bytes must have. If None, any version.
            stop: If this event is set, a failed attempt is not retried.

        Returns:
            Read-only uint8 memory, as it was received, without a copy.

        Raises:
            ValueError: The offset or the length is negative.
        """
        if offset < 0 or (length is not None and length < 0):
            raise ValueError(f"offset {offset} and length {length} must not be negative")
        if length == 0:
            return memoryview(b"")

        def request(backend: Backend, left_s: float) -> memoryview:
            return of_version(
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
        """Reads bytes of an object in one request into the caller's memory.

        Args:
            name, offset, expect: As for `read`.
            views: Writable memory that is filled one view after another. The object must have all
                of these bytes. After an error the contents are undefined.
        """
        length = sum(view.nbytes for view in views)

        def receive(backend: Backend, left_s: float) -> tuple[None, Marks]:
            receiver = self._receiver
            if receiver is not None:
                marks = receiver.receive(name, offset, views, left_s, expect)
                if marks is not None:
                    return None, marks
                # Nothing was received, and the backend repeats the request.
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
            of_version(backend, name, expect, left_s, lambda: receive(backend, left_s))

        if length:
            self._call(name, request, expect=expect)

    def read_ranges(
        self, name: str, ranges: Sequence[tuple[int, int]], *, expect: Stamp | None = None
    ) -> list[memoryview]:
        """Reads several ranges (offset, length) of an object and returns them in the given order.

        Ranges with small gaps are fetched in one request and share its memory. Up to 16 requests
        run at once.
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
        """Writes a whole object. Readers see either the new object or the previous one.

        The data are bytes (anything with C-contiguous memory), or the path of a local file.
        """
        source = Path(data) if isinstance(data, (str, Path)) else _bytes_of(data)
        nbytes = source.stat().st_size if isinstance(source, Path) else source.nbytes
        self._write(name, nbytes, lambda own, left_s: own.write(name, source, left_s))

    def replace(self, name: str, data: bytes | memoryview, expect: Stamp | None) -> Stamp:
        """Writes a whole object, unless another process has written it since it was read.

        If two processes replace the same version, one succeeds and the other one fails, unless both
        write the same bytes.

        Args:
            name, data: The name of the object, and its new contents.
            expect: The version to replace; None to create an object that must not exist yet.

        Returns:
            The new version.

        Raises:
            SourceChanged: The object has another version, was deleted, or exists already.
            NoConditionalWrites: The store cannot do it.
        """
        view = memoryview(data)

        def request(backend: Backend, left_s: float) -> Marks:
            try:
                return backend.replace(name, view, left_s, expect)
            except OtherVersion:
                # The answer to a request that was carried out before, and whose answer was lost.
                marks = marks_of_equal(backend, name, view, left_s)
                if marks is None:
                    raise
                return marks

        limit_s = self._deadline_s(view.nbytes)
        return self._call(name, request, doing="written", deadline_s=limit_s, expect=expect).stamp()

    def pages(self, folder: str = "") -> Iterator[list[tuple[str, Marks]]]:
        """Yields the objects below a folder as the store lists them, up to 1,000 at a time.

        Each page has its own deadline. After a failure the listing goes on where it was.
        """
        after, listed = "", None

        def next_page(backend: Backend, left_s: float) -> list[tuple[str, Marks]] | None:
            nonlocal listed
            try:
                listed = listed or backend.pages(folder, after, left_s)
                return next(listed, None)
            # An iterator that has raised has ended: the next attempt begins after the last page.
            except BaseException:
                listed = None
                raise

        while (page := self._call(folder, next_page, doing="listed")) is not None:
            if page:
                yield page
                after = page[-1][0]

    def level(self, folder: str = "") -> tuple[list[str], list[tuple[str, Marks]]] | None:
        """Returns the folders and objects directly in a folder, by their whole names.

        None if the store cannot list a single level.
        """
        return self._call(folder, lambda own, left_s: own.level(folder, left_s), doing="listed")

    def stamped(self, found: Sequence[tuple[str, Marks]]) -> list[tuple[str, Stamp]]:
        """Returns listed objects with their stamps. Requests those that the listing lacks."""
        lacking = [name for name, marks in found if marks.size is None]
        known = dict(zip(lacking, self.stats(lacking), strict=True)) if lacking else {}
        return [(name, known.get(name) or marks.stamp()) for name, marks in found]

    def stats(self, names: Sequence[str]) -> list[Stamp]:
        """Returns the stamps of many objects, in one request each, many at a time."""

        def stat(name: str, _: threading.Event) -> Stamp:
            return self.stat(name)

        return parallel([partial(stat, name) for name in names], OBJECTS_AT_ONCE)

    def read_each(
        self, wanted: Sequence[tuple[str, int, int, Stamp | None]]
    ) -> list[memoryview | SourceNotFound | SourceChanged]:
        """Reads one range of each of many objects, up to 128 at a time for all callers together.

        Args:
            wanted: The name, offset, length and expected version of each.

        Returns:
            For each, its bytes, or why there is no such object of this version.

        Raises:
            StoreError: As `read`, for the first that cannot be read.
        """
        stop = threading.Event()

        def read(
            name: str, offset: int, length: int, expect: Stamp | None
        ) -> memoryview | SourceNotFound | SourceChanged:
            # Another read has failed: its error is raised, and no results are returned.
            if stop.is_set():
                return memoryview(b"")
            try:
                return self.read(name, offset, length, expect=expect, stop=stop)
            except (SourceNotFound, SourceChanged) as error:
                return error

        if len(wanted) < 2:
            return [read(*each) for each in wanted]
        running = self._objects_pool().submit_all([partial(read, *each) for each in wanted])
        try:
            return wait_for(running)
        finally:
            stop.set()

    def list(self, prefix: str = "") -> list[tuple[str, Stamp]]:
        """Lists the names and stamps of all objects whose names begin with a prefix, sorted.

        If a store lists no sizes, as web servers do, this sends one request for each object.
        """
        found = itertools.chain.from_iterable(self.pages(prefix.rpartition("/")[0]))
        wanted = [each for each in found if each[0].startswith(prefix)]
        return sorted(self.stamped(wanted), key=lambda each: each[0])

    def copy(self, name: str, to: str, nbytes: int) -> None:
        """Copies an object of so many bytes within the store, which replaces an object `to`."""
        self._write(to, nbytes, lambda own, left_s: own.copy(name, to, nbytes, left_s))

    def delete(self, name: str, expect: Stamp | None = None) -> None:
        """Deletes an object, unless it has another version than `expect`, or there is none."""

        def request(backend: Backend, left_s: float) -> None:
            with suppress(FileNotFoundError):
                # A repeated DELETE, by a proxy or after a lost answer, must not delete the object
                # that another process has written meanwhile. An unknown version (None) counts as
                # the same.
                if expect is None or backend.stat(name, left_s).agrees(expect) is not False:
                    backend.delete(name, left_s)

        self._call(name, request, doing="deleted")

    def close(self) -> None:
        """Closes connections. A later call opens new ones."""
        self._opened = self._receiver = self._pool = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({without_secrets(self.url)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        limits = self._limits
        # `_answered` is included, so that a worker process waits as long as this one for a server
        # that restarts.
        make = partial(Store, deadline_s=limits.deadline_s, timeout_s=limits.timeout_s)
        return make, (self._location, self._options), {"_answered": self._answered}

    def _objects_pool(self) -> DaemonPool:
        """Returns the threads that read many objects; a forked child starts its own."""
        with _POOLS:
            pool = self._pool
            if pool is None or not pool[0].is_here:
                pool = self._pool = (Owner(), DaemonPool(OBJECTS_AT_ONCE, "fastio-objects"))
        return pool[1]

    def _backend(self) -> Backend:
        opened = self._opened
        if opened is None or not opened[0].is_here:
            # Of two that are opened at the same time, the later stays.
            made = open_backend(self._location, self._options, self._limits, self._secrets)
            # With options the receiver is not used, because only the backends interpret them.
            plain = not self._options and Receiver.serves(self._location)
            self._receiver = Receiver(self._location, self._limits) if plain else None
            opened = self._opened = (Owner(), made)
        return opened[1]

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
        """Runs a request with retries. Raised errors have no cause, which might contain secrets."""
        backend = self._backend()
        problem: FileNotFoundError | Permanent | Failed
        try:
            found = attempt(
                lambda left_s: request(backend, left_s),
                deadline_s or self._limits.deadline_s,
                stop,
                self.transfers.note_retry,
                # A server that has answered before may be restarting.
                lambda: math.inf if self._answered else _REFUSED_S,
            )
        except (FileNotFoundError, Permanent, Failed) as error:
            problem = error
            # An error for an object that is missing or forbidden is a response of the server, too.
            self._answered |= not isinstance(error, Failed)
        else:
            self._answered = True
            return found
        try:
            # Outside of the `except` block, because the `__context__` might contain secrets.
            url = without_secrets(join(self._location, name)) if name else self.url
            raise error_of(url, problem, doing, expect, self._secrets)
        finally:
            # It refers to this frame and those of all callers, whose variables would stay until
            # the garbage collector runs.
            del problem

    def _write(self, name: str, nbytes: int, request: Callable[[Backend, float], None]) -> None:
        self._call(name, request, doing="written", deadline_s=self._deadline_s(nbytes))

    def _deadline_s(self, nbytes: int) -> float:
        # Grows with the size, because a fixed deadline would cut large writes off.
        return self._limits.deadline_s + nbytes / SLOWEST_BYTES_PER_S


def _bytes_of(data: Any) -> memoryview:
    view = memoryview(data)
    # Python refuses to cast a view with a zero in its shape.
    return view.cast("B") if view.nbytes else memoryview(b"")
