"""One attempt at a request through obstore, whose own retries are off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import obstore.exceptions as errors
import obstore.store as stores

from fastio.runtime.lifecycle import Owner
from fastio.store.options import Settings, family_of, for_obstore
from fastio.store.retry import (
    SHORTEST_S,
    SLOWEST_BYTES_PER_S,
    Doubtful,
    Limits,
    OtherVersion,
    Permanent,
    Unconditional,
)
from fastio.store.urls import scheme_of
from fastio.store.versions import Marks, Stamp

if TYPE_CHECKING:
    from fastio.store.fsspec_backend import FsspecBackend

# obstore's threads do not survive a fork, and a call in a forked child waits for ever. This module
# is imported with the first client, so a process with another number is such a child.
_IMPORTER = Owner()

_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000  # S3 takes 10,000
_WRITES_AT_ONCE = 4

_PERMANENT = (
    errors.InvalidPathError,
    errors.UnknownConfigurationKeyError,
    errors.PreconditionError,
    errors.NotModifiedError,
    errors.AlreadyExistsError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_DENIED = (errors.PermissionDeniedError, errors.UnauthenticatedError)
# 4xx, and what a server never implements; of 4xx another attempt may change these: timeout, too
# early, too many requests.
_STATUS = re.compile(r"status code: ([34]\d\d|501|505)\b")
_TRANSIENT_STATUS = frozenset({"408", "425", "429"})
# What stands behind obstore's "error following redirect", where https would go on as http.
_NOT_FOLLOWED = "error following redirect"
_INSECURE = "source: BadScheme"
# Why no request was answered, which obstore's sentence does not say: it is in the dump behind it.
_UNSENT = "error sending request"
_REFUSED = "ConnectionRefused"
_UNSENT_WHY = (
    ("kind: Timeout", "no response in time"),
    (_REFUSED, "the connection was refused"),
)
# S3's answer to a header that a server does not have, such as If-None-Match.
_NOT_IMPLEMENTED = re.compile(r"status code: 501\b|<Code>NotImplemented</Code>")
# S3's answer (409) to a conditional write at the same time as another request for the object: none
# of the two may have been carried out.
_UNDECIDED = re.compile(r"ConditionalRequestConflict|OperationAborted")
_PAGE = re.compile(r"<!doctype html|<html", re.IGNORECASE)
_TRANSIENT_CODE = re.compile(r"RequestTimeout|SlowDown|InternalError|Throttl")


def usable() -> bool:
    """Returns whether obstore works in this process. It does not in a forked child of a user."""
    return _IMPORTER.is_here


class ObstoreBackend:
    """Single attempts at requests through obstore.

    Args:
        url: A URL with the scheme of one of obstore's stores.
        options: storage_options with the names of obstore or fsspec.
        limits: The time limits of the store; later attempts have clients with shorter ones.

    Raises:
        options.Untranslatable: The options are for another library.
        obstore.exceptions.BaseError, ValueError: obstore refuses the URL or the options.
    """

    name = "obstore"

    def __init__(self, url: str, options: Mapping[str, Any], limits: Limits) -> None:
        family = family_of(scheme_of(url))
        assert family is not None
        self._family = family
        self._limits = limits
        self._given = url, options
        self._pages: FsspecBackend | None = None  # of a web server that answered no WebDAV request
        self._settings = for_obstore(family, url, options)
        self._url = self._settings.url
        self.is_plain = self._settings.allow_http
        # By total timeout and whether reads are timed. Two threads may make the same one: no harm.
        self._clients: dict[tuple[float, bool], Any] = {}
        self._client(limits.deadline_s)

    def stat(self, name: str, limit_s: float) -> Marks:
        """Returns the size and version of an object."""
        with _Translated():
            return Marks.of_info(obstore.head(self._client(limit_s), name))

    def read(
        self, name: str, offset: int, length: int | None, limit_s: float, expect: Stamp | None
    ) -> tuple[memoryview, Marks]:
        """Reads a range of an object in one request; to the end if `length` is None."""
        wanted: Any = {}
        # Web servers without ranges, such as Python's, can still send a whole file.
        whole = (
            self._family == "http" and expect is not None and (offset, length) == (0, expect.size)
        )
        if length is not None and not whole:
            wanted["range"] = (offset, offset + length)
        elif offset:
            wanted["range"] = {"offset": offset}
        if expect is not None and expect.etag is not None:
            wanted["if_match"] = expect.etag
        elif expect is not None and expect.version_id is not None:
            wanted["version"] = expect.version_id
        with _Translated():
            try:
                answer = obstore.get(self._client(limit_s), name, options=wanted or None)
            except errors.PreconditionError as error:
                raise OtherVersion(_summary(error)) from None
            size = int(answer.meta["size"])
            # A server without ETags answers with the whole file that has replaced this one.
            if whole and size != length:
                raise OtherVersion(f"the object has {size} bytes")
            start, end = answer.range
            expected = size - offset if length is None else length
            if start != offset or end - start != expected:
                _complain(offset, expected, start, end, size)
            data = memoryview(answer.bytes())
        if data.nbytes != expected:
            raise OSError(f"{data.nbytes} bytes were received instead of {expected}")
        return data, Marks.of_info(answer.meta)

    def write(self, name: str, data: memoryview | Path, limit_s: float) -> None:
        """Writes a whole object, in parts if it is large; each request has a time of its own."""
        nbytes = data.stat().st_size if isinstance(data, Path) else data.nbytes
        part = max(_PART_BYTES, -(-nbytes // _MOST_PARTS))
        in_parts = self._family != "http" and nbytes > part
        with _Translated():
            obstore.put(
                self._client_for_writing(part if in_parts else nbytes, limit_s),
                name,
                data if isinstance(data, Path) or nbytes else b"",
                use_multipart=in_parts,
                chunk_size=part,
                max_concurrency=_WRITES_AT_ONCE,
            )

    def replace(self, name: str, data: memoryview, limit_s: float, expect: Stamp | None) -> Marks:
        """Writes a whole object if it has the version `expect`. See `Store.replace`."""
        with _Translated():
            client = self._client_for_writing(data.nbytes, limit_s)
            mode: Any = "create"
            try:
                if expect is not None:
                    found = obstore.head(client, name)
                    if not Marks.of_info(found).agrees(expect):
                        raise OtherVersion(f"is {Marks.of_info(found).stamp()} now")
                    # Stamps lack the store's generation, so it is taken from this response.
                    marks = {key: found.get(key) for key in ("e_tag", "version")}
                    mode = {key: mark for key, mark in marks.items() if mark is not None}
                put = _put_if(client, name, data, mode)
            except FileNotFoundError:
                raise OtherVersion("was deleted") from None
            except (errors.AlreadyExistsError, errors.PreconditionError) as error:
                if _UNDECIDED.search(str(error)):
                    raise OSError(_summary(error)) from None
                raise OtherVersion(_summary(error)) from None
        # The answer to a put has no size.
        return replace(Marks.of_info(dict(put)), size=data.nbytes)

    def pages(self, folder: str, after: str, limit_s: float) -> Iterator[list[tuple[str, Marks]]]:
        """Yields names, sizes and versions of the objects below a folder, from a name on."""
        with _Translated():
            listed = iter(
                obstore.list(
                    self._client(limit_s), folder or None, offset=after or None, chunk_size=1000
                )
            )
        came = bool(after)
        while True:
            try:
                with _Translated():
                    page = next(listed, None)
            except Permanent:
                # A web server without WebDAV is listed by its pages of links. An error after a
                # first page has another cause.
                if self._family != "http" or (came and self._pages is None):
                    raise
                yield from self._index_pages().pages(folder, after, limit_s)
                return
            if page is None:
                return
            came = True
            yield [_listed(item) for item in page]

    def level(
        self, folder: str, limit_s: float
    ) -> tuple[list[str], list[tuple[str, Marks]]] | None:
        """Returns the folders and objects directly in a folder."""
        if self._pages is not None:
            return self._pages.level(folder, limit_s)
        with _Translated():
            found = obstore.list_with_delimiter(self._client(limit_s), folder or None)
        return list(found["common_prefixes"]), [_listed(item) for item in found["objects"]]

    def copy(self, name: str, to: str, nbytes: int, limit_s: float) -> None:
        """Copies an object within the store."""
        with _Translated():
            obstore.copy(self._client_for_writing(nbytes, limit_s), name, to)

    def delete(self, name: str, limit_s: float) -> None:
        """Deletes an object."""
        with _Translated():
            obstore.delete(self._client(limit_s), name)

    def _index_pages(self) -> FsspecBackend:
        """Returns the backend that lists a web server without WebDAV by its pages of links."""
        if self._pages is None:
            from fastio.store.fsspec_backend import FsspecBackend  # which few programs need

            self._pages = FsspecBackend(self._given[0], self._given[1], self._limits)
        return self._pages

    def _client(self, limit_s: float) -> Any:
        """Returns a client whose requests take at most limit_s: the deadline, a half of it, ..."""
        # obstore sets time limits for a client, not for a request. A few clients, each with half
        # the limit of the one before, serve all requests.
        total_s = self._limits.deadline_s
        while total_s > limit_s and total_s > SHORTEST_S:
            total_s /= 2
        return self._kept(total_s, True)

    def _client_for_writing(self, nbytes: int, limit_s: float) -> Any:
        """Returns a client whose requests have the time to send this much."""
        total_s = self._limits.timeout_s
        while total_s < self._limits.timeout_s + nbytes / SLOWEST_BYTES_PER_S:
            total_s *= 2
        if total_s <= limit_s:
            return self._kept(total_s, False)
        # This client is not kept: each object has another limit, and a client has connections of
        # its own.
        return self._make(limit_s, False)

    def _kept(self, total_s: float, timed_reads: bool) -> Any:
        key = (total_s, timed_reads)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = self._make(total_s, timed_reads)
        return client

    def _make(self, total_s: float, timed_reads: bool) -> Any:
        timeout_s = min(self._limits.timeout_s, total_s)
        options: dict[str, Any] = {
            "allow_http": self._settings.allow_http,
            "timeout": timedelta(seconds=total_s),
            "connect_timeout": timedelta(seconds=timeout_s),
            **self._settings.client,
        }
        if isinstance(options["timeout"], timedelta):  # the user's, within what is left
            options["timeout"] = min(options["timeout"], timedelta(seconds=total_s))
        if timed_reads:
            # It counts from the request to the first byte too, and so would stop long uploads.
            options.setdefault("read_timeout", timedelta(seconds=timeout_s))
        retry: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=total_s)}
        return _connect(self._family, self._url, self._settings, options, retry)


def _connect(family: str, url: str, settings: Settings, client: Any, retry: Any) -> Any:
    """Returns one of obstore's stores, made from a bucket and a prefix: keys may have "#"."""
    config: Any = settings.config
    if family == "http":
        return stores.HTTPStore.from_url(
            url.partition("#")[0], client_options=client, retry_config=retry
        )
    place = url.partition("://")[2]
    bucket, _, prefix = place.partition("/")
    more: Any = {"config": config, "client_options": client, "retry_config": retry}
    if family == "az" and "@" in bucket:  # container@account.host
        return stores.AzureStore.from_url(url, **more)
    kinds: Any = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
    return kinds[family](bucket, prefix=prefix.strip("/") or None, **more)


def _listed(item: Any) -> tuple[str, Marks]:
    return str(item["path"]), Marks.of_info(item)


def _complain(offset: int, expected: int, start: int, end: int, size: int) -> None:
    asked = f"bytes {offset} to {offset + expected}"
    if offset + expected > size:
        raise Permanent(f"{asked} were requested, but the object has {size} bytes")
    raise OSError(f"{asked} were requested, but {start} to {end} of {size} were received")


def _put_if(client: Any, name: str, data: memoryview, mode: Any) -> Any:
    """Writes an object under a condition; raises Unconditional if the store supports none."""
    try:
        return obstore.put(client, name, data, mode=mode, use_multipart=False)
    except (NotImplementedError, errors.BaseError) as error:
        text = _summary(error)
        if isinstance(error, NotImplementedError) or _NOT_IMPLEMENTED.search(text):
            raise Unconditional(text) from None
        raise


class _Translated:
    """Raises obstore's errors as FileNotFoundError, Permanent or OSError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, (FileNotFoundError, Permanent)):
            return
        text = _summary(error)
        if isinstance(error, _DENIED):
            raise Permanent(f"permission denied: {text}") from None
        if isinstance(error, errors.NotSupportedError):  # a whole object came, and not a range
            raise Doubtful(text) from None
        if isinstance(error, _PERMANENT):
            raise Permanent(text) from None
        if _NOT_FOLLOWED in text:
            insecure = _INSECURE in str(error)
            why = "the server redirects from https to http: not followed"
            raise Permanent(why if insecure else text) from None
        status = _STATUS.search(text)
        final = status and status[1] not in _TRANSIENT_STATUS and not _TRANSIENT_CODE.search(text)
        if final:
            raise Permanent(text) from None
        if _UNSENT in text and _REFUSED in str(error):
            raise ConnectionRefusedError(text) from None
        if isinstance(error, errors.BaseError):
            raise OSError(text) from None


def _summary(error: BaseException) -> str:
    """Returns the sentence of an error of obstore, without the debug output behind it."""
    text = str(error).partition("\n\nDebug source:")[0]
    text = _PAGE.split(text)[0].strip(" :\n") or type(error).__name__
    if text.endswith(_UNSENT):
        why = next((words for mark, words in _UNSENT_WHY if mark in str(error)), "")
        text += f": {why}" if why else ""
    return text
