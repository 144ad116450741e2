"""The libraries that make requests: what each must do, and which of them serves a URL."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastio.errors import PackageMissing, StoreError
from fastio.shown import without_secrets
from fastio.store.options import Untranslatable, family_of
from fastio.store.retry import SHORTEST_S, Limits, OtherVersion, Permanent
from fastio.store.urls import redact, scheme_of
from fastio.store.versions import Marks, Stamp

T = TypeVar("T")


class Backend(Protocol):
    """Makes one attempt at each request, within limit_s seconds.

    Raises:
        FileNotFoundError: If there is no such object.
        retry.OtherVersion: If the object has another version than `expect`. A backend may instead
            report the version in the returned marks.
        retry.Permanent: If another attempt would fail in the same way.
        Exception: Anything else is retried.
    """

    name: str
    is_plain: bool

    def stat(self, name: str, limit_s: float) -> Marks: ...
    def read(
        self, name: str, offset: int, length: int | None, limit_s: float, expect: Stamp | None
    ) -> tuple[memoryview, Marks]: ...
    def write(self, name: str, data: memoryview | Path, limit_s: float) -> None: ...
    def replace(
        self, name: str, data: memoryview, limit_s: float, expect: Stamp | None
    ) -> Marks: ...
    def copy(self, name: str, to: str, nbytes: int, limit_s: float) -> None: ...
    def pages(
        self, folder: str, after: str, limit_s: float
    ) -> Iterator[list[tuple[str, Marks]]]: ...
    def level(
        self, folder: str, limit_s: float
    ) -> tuple[list[str], list[tuple[str, Marks]]] | None: ...
    def delete(self, name: str, limit_s: float) -> None: ...


def open_backend(
    url: str, options: Mapping[str, Any], limits: Limits, secrets: tuple[str, ...]
) -> Backend:
    """Opens obstore if it supports the URL and the options, else fsspec.

    Raises:
        PackageMissing: The package that serves the URL is not installed.
        StoreError: Neither supports them.
    """
    scheme, declined = scheme_of(url), ""
    # Only fsspec knows chains, such as "simplecache::hf://datasets/...".
    if scheme == "hf" and "::" not in url:
        return _open_hub(url, options, limits)
    if family_of(scheme) is not None and "::" not in url:
        opened, declined = _try_obstore(url, options, limits)
        if opened is not None:
            return opened
    try:
        from fastio.store.fsspec_backend import FsspecBackend

        return FsspecBackend(url, options, limits)
    except ImportError as error:
        package, reason = _package(scheme, error), str(error)
        if package is not None:
            also = f" ({redact(declined, secrets)})" if declined else ""
            name = without_secrets(url)
            raise PackageMissing(package, f"open {name}{also}", package, reason) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    text = redact("; ".join(filter(None, (declined, f"fsspec: {reason}"))), secrets)
    raise StoreError(f"{without_secrets(url)}: {text}")


def _open_hub(url: str, options: Mapping[str, Any], limits: Limits) -> Backend:
    try:
        from fastio.store.hub_backend import HubBackend  # which imports huggingface_hub

        return HubBackend(url, options, limits)
    except ImportError as error:
        purpose = f"open {without_secrets(url)}"
        raise PackageMissing("huggingface_hub", purpose, "fastio[hub]", error) from None
    except ValueError as error:
        raise StoreError(f"{without_secrets(url)}: {error}") from None


def _try_obstore(
    url: str, options: Mapping[str, Any], limits: Limits
) -> tuple[Backend | None, str]:
    """Returns obstore's backend, or None and the reason why it cannot be used."""
    # obstore's threads do not survive a fork. If only the user's code has imported it, it may have
    # been used before the fork.
    ours = "fastio.store.obstore_backend" in sys.modules
    if not ours and "obstore" in sys.modules and _is_forked_worker():
        return None, "obstore may have been used before this process was forked"
    from fastio.store import obstore_backend

    if not obstore_backend.usable():
        return None, "obstore does not work in a forked process (spawn and forkserver do)"
    try:
        return obstore_backend.ObstoreBackend(url, options, limits), ""
    except Untranslatable as error:
        return None, f"obstore does not take {error}"
    except Exception as error:
        return None, f"obstore: {str(error).partition(chr(10))[0]}"


def _is_forked_worker() -> bool:
    """Returns whether multiprocessing forked this process. Spawned ones rename the main module."""
    spawned = sys.modules["__main__"].__name__ == "__mp_main__"
    return multiprocessing.parent_process() is not None and not spawned


def _package(scheme: str, error: BaseException | None) -> str | None:
    """Returns the package that is missing for a scheme; None if fsspec does not name it."""
    known = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}.get(family_of(scheme) or "")
    while known is None and error is not None:  # fsspec raises its own error from the first one
        known = error.name if isinstance(error, ModuleNotFoundError) else None
        error = error.__cause__
    return known


def of_version(
    backend: Backend,
    name: str,
    expect: Stamp | None,
    limit_s: float,
    ask: Callable[[], tuple[T, Marks]],
) -> T:
    """Returns the result of a request, if it is of the expected version.

    If the response has another version, does not tell its version, or is refused, the object's
    version is requested once more: bytes received between two equal stamps have that version.
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
    now = backend.stat(name, max(until_s - time.monotonic(), SHORTEST_S))
    if now.agrees(expect) is False:
        raise OtherVersion(f"is {now.stamp()} now")
    if problem is not None:
        raise problem
    if agrees is False:
        raise OSError(f"the response was of another version than the object's: {expect}")
    return value


def marks_of_equal(backend: Backend, name: str, data: memoryview, limit_s: float) -> Marks | None:
    """Returns the marks of an object that has these bytes; None if it has others or is missing."""
    try:
        # The size is compared first, because the object may be large.
        if backend.stat(name, limit_s).size != data.nbytes:
            return None
        found, marks = backend.read(name, 0, None, limit_s, None)
    except FileNotFoundError:
        return None
    return marks if found == data else None
