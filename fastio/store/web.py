"""HTTP requests for the fsspec backend, with checked ranges and safe redirects.

fsspec's own HTTP file system accepts any body, and aiohttp sends the user's headers to whatever
host a server redirects to. With this module, a response that is not the requested range is an
error, a redirect from https to http is refused, and the user's headers, auth and cookies go only to
the host of the URL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

import yarl

from fastio.store.answers import REDIRECTS, check_redirect, expected_body, range_of
from fastio.store.retry import OtherVersion, Permanent
from fastio.store.urls import basic_authorization, proxy_of
from fastio.store.versions import Marks, Stamp

_MOST_REDIRECTS = 10
# Headers that say which bytes are wanted, not who wants them. These may go to other hosts.
_OF_THE_OBJECT = frozenset({"range", "if-match", "accept-encoding"})
_OWN = "headers", "auth", "cookies"
_OF_THE_USER = "auth", "cookies", "proxy_headers", "params"
# Status codes of servers that do not answer HEAD, such as for signed URLs made for GET.
_NO_HEAD = frozenset({400, 401, 403, 405, 501})


def client_maker(make: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[WebSession]]:
    """Wraps `get_client` of fsspec's HTTPFileSystem, so that clients follow these rules."""

    async def make_session(**options: Any) -> WebSession:
        own: dict[str, Any] = {name: options.pop(name, None) for name in _OWN}
        own = {name: value for name, value in own.items() if value}
        return WebSession(await make(**options), own, "proxy" in options or "trust_env" in options)

    return make_session


class WebSession:
    """An aiohttp session that follows redirects by the rules of this module.

    Args:
        session: The aiohttp session.
        own: The user's headers, auth and cookies, which are sent only to the host of the URL.
        has_proxy: Whether the session was configured with a proxy.
    """

    def __init__(self, session: Any, own: dict[str, Any], has_proxy: bool) -> None:
        self._session = session
        self._own = own
        self._has_proxy = has_proxy

    def get(self, url: Any, **options: Any) -> _Answer:
        """Sends a GET request. See aiohttp.ClientSession for the options."""
        return _Answer(self._request("GET", url, options))

    def head(self, url: Any, **options: Any) -> _Answer:
        """Sends a HEAD request. See `get`."""
        return _Answer(self._request("HEAD", url, options))

    def put(self, url: Any, **options: Any) -> _Answer:
        """Sends a PUT request. See `get`."""
        return _Answer(self._request("PUT", url, options))

    def post(self, url: Any, **options: Any) -> _Answer:
        """Sends a POST request. See `get`."""
        return _Answer(self._request("POST", url, options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def _request(self, method: str, url: Any, options: dict[str, Any]) -> Any:
        url, options = _with_authorization(yarl.URL(url), self._with_own(options))
        home = url
        for _ in range(_MOST_REDIRECTS + 1):
            here = options if _same_host(home, url) else _without_user(options)
            if not self._has_proxy and "proxy" not in options:
                here = {**here, "proxy": proxy_of(str(url))}
            answer = await self._session.request(method, url, allow_redirects=False, **here)
            location = answer.headers.get("Location")
            if answer.status not in REDIRECTS or not location:
                return answer
            answer.release()
            url = _followed(method, url, location)
            # The URL of a redirect is complete, so params are dropped, as aiohttp does.
            options = {name: value for name, value in options.items() if name != "params"}
            if _same_host(home, url):
                url = url.with_user(None)
        raise Permanent(f"the server redirects more than {_MOST_REDIRECTS} times")

    def _with_own(self, options: dict[str, Any]) -> dict[str, Any]:
        headers = {**(self._own.get("headers") or {}), **(options.get("headers") or {})}
        return {**self._own, **options, "headers": headers}


class _Answer:
    """The result of a request: can be awaited or used with `async with`, as in aiohttp."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._answer: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        answer: Generator[Any, None, Any] = self._request.__await__()
        return answer

    async def __aenter__(self) -> Any:
        self._answer = await self._request
        return await self._answer.__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        await self._answer.__aexit__(*exception)


def _with_authorization(url: yarl.URL, options: dict[str, Any]) -> tuple[yarl.URL, dict[str, Any]]:
    """Moves user:password@ from a URL to an Authorization header, as Basic (RFC 7617)."""
    if url.raw_user is None and url.raw_password is None:
        return url, options
    known = {name.lower() for name in options["headers"]}
    if "authorization" not in known and not options.get("auth"):
        header = basic_authorization(url.raw_user or "", url.raw_password or "")
        options = {**options, "headers": {**options["headers"], "Authorization": header}}
    return url.with_user(None), options


def _same_host(home: yarl.URL, url: yarl.URL) -> bool:
    """Returns whether credentials for `home` may go to `url`: same host, or upgraded to https."""
    if (home.scheme, home.host, home.port) == (url.scheme, url.host, url.port):
        return True
    upgraded = (home.scheme, url.scheme) == ("http", "https")
    return upgraded and home.host == url.host and home.is_default_port() and url.is_default_port()


def _without_user(options: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in options.items() if name not in _OF_THE_USER}
    headers = options["headers"].items()
    kept["headers"] = {n: value for n, value in headers if n.lower() in _OF_THE_OBJECT}
    return kept


def _followed(method: str, url: yarl.URL, location: str) -> yarl.URL:
    """Returns the URL that a redirect leads to."""
    target = url.join(yarl.URL(location))
    if method not in ("GET", "HEAD"):
        raise Permanent(
            f"the server redirects a {method} request to {target}: use that URL instead"
        )
    check_redirect(url.scheme, target.scheme)
    return target


async def stat(fs: Any, url: str) -> Marks:
    """Returns what the server says of an object. The size is always known.

    Raises:
        FileNotFoundError, Permanent, aiohttp.ClientError: As for `fetch`.
    """
    session = await fs.set_session()
    options = _options(fs)
    async with session.head(fs.encode_url(url), **options) as answer:
        length = answer.headers.get("Content-Length")
        if answer.status == 200 and length is not None:
            return Marks.of_headers(answer.headers, int(length))
        if answer.status != 200 and answer.status not in _NO_HEAD:
            _raise_for_status(answer, url)
    # HEAD was refused, or its response has no length. The response for the first byte has it.
    options["headers"]["Range"] = "bytes=0-0"
    async with session.get(fs.encode_url(url), **options) as answer:
        said = range_of(answer.headers)
        if answer.status == 206 and said is not None and said[2] is not None:
            return Marks.of_headers(answer.headers, said[2])
        if answer.status == 416:  # an empty object has no first byte
            total = answer.headers.get("Content-Range", "").rpartition("*/")[2]
            if total == "0":
                return Marks.of_headers(answer.headers, 0)
        _raise_for_status(answer, url)
        length = answer.headers.get("Content-Length")
        if answer.status != 200 or length is None:
            raise Permanent("the server does not report the object's size")
        return Marks.of_headers(answer.headers, int(length))


async def fetch(
    fs: Any, url: str, offset: int, length: int | None, expect: Stamp | None
) -> tuple[bytes, Marks]:
    """Reads a range of an object, and returns it with what the response says of its version.

    Args:
        fs: fsspec's HTTPFileSystem.
        url: The URL of the object.
        offset: The first byte.
        length: The number of bytes. If None, all up to the end.
        expect: The expected version, which is requested with If-Match if it has a strong ETag.

    Raises:
        FileNotFoundError: If there is no such object.
        OtherVersion: If the object has another version than `expect`.
        Permanent: If the response is unusable and would be the same next time.
        OSError, aiohttp.ClientError: If another attempt may succeed.
    """
    session = await fs.set_session()
    options = _options(fs)
    if offset or length is not None:
        last = "" if length is None else offset + length - 1
        options["headers"]["Range"] = f"bytes={offset}-{last}"
    if expect is not None and expect.etag is not None:
        options["headers"]["If-Match"] = expect.etag
    async with session.get(fs.encode_url(url), **options) as answer:
        if answer.status == 412:
            raise OtherVersion("HTTP status 412: the object has another version")
        if answer.status != 416:
            _raise_for_status(answer, str(answer.url))
        count, marks = expected_body(answer.status, answer.headers, offset, length)
        data = await _body(answer, count)
    return data, marks


def _options(fs: Any) -> dict[str, Any]:
    """Returns the user's options for a request, without compression of the response."""
    headers = {**(fs.kwargs.get("headers") or {}), "Accept-Encoding": "identity"}
    return {**fs.kwargs, "headers": headers}


async def _body(answer: Any, count: int | None) -> bytes:
    """Reads a body of `count` bytes. Stops reading when more arrive.

    Raises:
        OSError: If the body is shorter or longer.
    """
    parts = []
    came = 0
    async for part in answer.content.iter_any():
        parts.append(part)
        came += len(part)
        if count is not None and came > count:
            break
    if count is not None and came != count:
        raise OSError(f"{came} bytes were received instead of {count}")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _raise_for_status(answer: Any, url: str) -> None:
    if answer.status == 404:
        raise FileNotFoundError(url)
    answer.raise_for_status()


__all__ = ["WebSession", "client_maker", "fetch", "stat"]
