"""The store's backend for datasets on the Hugging Face Hub: hf://datasets/ORG/NAME[@REVISION].

The package huggingface_hub knows the Hub's API: pages of listings, endpoint, token, limits of
rates. fastio makes the requests for files itself, in one commit that is looked up once, so that
data cannot change while it is read. A token is sent to the Hub only: files are on other hosts, to
which the Hub redirects with URLs that need none.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import urljoin, urlsplit

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub import errors as hub_errors
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    get_session,
    parse_ratelimit_headers,
)

from fastio.store.answers import REDIRECTS, check_redirect, expected_body
from fastio.store.retry import Later, Limits, Permanent
from fastio.store.versions import Marks, Stamp

_PAGE = 1000
_MOST_REDIRECTS = 5
_TRANSIENT = frozenset({408, 425, 500, 502, 503, 504})


class HubBackend:
    """Single attempts at requests to the Hub.

    Args:
        url: hf://datasets/ORG/NAME, with @REVISION and a folder behind it as wanted.
        options: `endpoint` and `token`; those of huggingface_hub's environment if they are missing.
        limits: The time limits of the store.

    Raises:
        ValueError: The URL is no dataset of the Hub, or there are other options.
    """

    name = "huggingface_hub"

    def __init__(self, url: str, options: Mapping[str, Any], limits: Limits) -> None:
        unknown = options.keys() - {"endpoint", "token"}
        if unknown:
            raise ValueError(f"the Hub takes the options endpoint and token, not {sorted(unknown)}")
        self._repo, self._revision, self._folder = repository_of(url)
        self._endpoint = str(options.get("endpoint") or constants.ENDPOINT).rstrip("/")
        self._token: str | bool | None = options.get("token")
        self._api = HfApi(endpoint=self._endpoint, token=self._token)
        self._limits = limits
        self._lock = threading.Lock()
        self._pinned: str | None = None
        self.is_plain = self._endpoint.startswith("http://")

    def commit(self) -> str:
        """Returns the commit that is read, which is looked up once."""
        # All requests read one commit, so that data cannot change between them. Other threads wait
        # for the response instead of requesting it again.
        with self._lock:
            if self._pinned is None:
                with _Translated():
                    found = self._api.dataset_info(
                        self._repo, revision=self._revision, timeout=self._limits.timeout_s
                    )
                self._pinned = str(found.sha)
            return self._pinned

    def stat(self, name: str, limit_s: float) -> Marks:
        """Returns the size and hash of a file."""
        path, commit = self._path(name), self.commit()
        with _Translated():
            found = self._api.get_paths_info(
                self._repo, [path], revision=commit, repo_type="dataset"
            )
        for each in found:
            if each.path == path and hasattr(each, "size"):
                return _marks(each)
        raise FileNotFoundError(name)

    def read(
        self, name: str, offset: int, length: int | None, limit_s: float, expect: Stamp | None
    ) -> tuple[memoryview, Marks]:
        """Reads a range of a file; to the end if `length` is None."""
        until_s = time.monotonic() + limit_s
        url = hf_hub_url(
            self._repo,
            self._path(name),
            repo_type="dataset",
            revision=self.commit(),
            endpoint=self._endpoint,
        )
        headers = build_hf_headers(token=self._token)
        own: dict[str, str] = {"Accept-Encoding": "identity"}
        if offset or length is not None:
            own["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        etag, here = "", url
        with _Translated():
            for _ in range(_MOST_REDIRECTS + 1):
                ours = _origin(here) == _origin(url)
                asked = get_session().stream(
                    "GET",
                    here,
                    # The token is not sent to other hosts, where URLs need none.
                    headers={**headers, **own} if ours else own,
                    timeout=self._limits.timeout_s,
                    follow_redirects=False,
                )
                with asked as answer:
                    if ours:
                        told = answer.headers
                        # This is the hash that `stat` returns; the host to which the Hub redirects
                        # has another ETag.
                        etag = etag or told.get("X-Linked-Etag") or told.get("ETag") or ""
                    location = answer.headers.get("Location")
                    if answer.status_code in REDIRECTS and location:
                        target = urljoin(here, location)
                        check_redirect(urlsplit(here).scheme, urlsplit(target).scheme)
                        here = target
                        continue
                    if answer.status_code != 416:
                        _check_status(answer, name)
                    count, marks = expected_body(answer.status_code, answer.headers, offset, length)
                    data = _body(answer, count, until_s)
                    return memoryview(data), Marks(marks.size, etag.removeprefix("W/"))
        raise Permanent(f"the server redirects more than {_MOST_REDIRECTS} times")

    def _refused(self, *args: Any, **options: Any) -> NoReturn:
        raise Permanent("fastio does not write to the Hub: pack to a folder, and upload that")

    write = replace = copy = delete = _refused

    def pages(self, folder: str, after: str, limit_s: float) -> Iterator[list[tuple[str, Marks]]]:
        """Yields the files below a folder. The order is that of the Hub, the same each time."""
        commit, root = self.commit(), f"{self._folder}/" if self._folder else ""
        with _Translated():
            tree = self._api.list_repo_tree(
                self._repo,
                self._path(folder) or None,
                recursive=True,
                revision=commit,
                repo_type="dataset",
            )
        files = (each for each in tree if hasattr(each, "size"))
        found = ((each.path.removeprefix(root), _marks(each)) for each in files)
        if after:
            # The Hub cannot begin a listing at a name.
            found = itertools.dropwhile(lambda each: each[0] != after, found)  # type: ignore[assignment]
            with _Translated():
                next(found, None)
        while True:
            with _Translated():
                page = list(itertools.islice(found, _PAGE))
            if not page:
                return
            yield page

    def level(
        self, folder: str, limit_s: float
    ) -> tuple[list[str], list[tuple[str, Marks]]] | None:
        """Returns None: the Hub lists a whole tree as fast as one level of it."""
        return None

    def _path(self, name: str) -> str:
        return "/".join(filter(None, (self._folder, name)))


def repository_of(url: str) -> tuple[str, str | None, str]:
    """Returns ORG/NAME, the revision or None, and the folder that a URL names.

    Raises:
        ValueError: It is not of the form hf://datasets/ORG/NAME[@REVISION][/FOLDER].
    """
    kind, *parts = url.partition("://")[2].strip("/").split("/")
    if kind != "datasets" or len(parts) < 2:
        raise ValueError(f"expected hf://datasets/ORG/NAME, got {url}")
    organisation, repository, *folders = parts
    name, _, revision = repository.partition("@")
    if revision == "refs" and len(folders) >= 2:  # refs/convert/parquet, refs/pr/1
        revision, folders = "/".join((revision, *folders[:2])), folders[2:]
    return f"{organisation}/{name}", revision or None, "/".join(folders)


def _marks(file: Any) -> Marks:
    return Marks(int(file.size), f'"{file.lfs.sha256 if file.lfs is not None else file.blob_id}"')


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _check_status(answer: Any, name: str) -> None:
    status: int = answer.status_code
    if status == 404:
        raise FileNotFoundError(name)
    if status == 429:
        raise Later("HTTP status 429: too many requests", _pause_s(answer.headers))
    if status in _TRANSIENT:
        raise OSError(f"HTTP status {status}")
    if status in (401, 403):
        raise Permanent(
            f"permission denied: HTTP status {status}. A private or gated dataset needs a token "
            "that may read it: set HF_TOKEN, or run `hf auth login`"
        )
    if status >= 400:
        raise Permanent(f"HTTP status {status}")


def _pause_s(headers: Any) -> float:
    """Returns for how long the server asks to wait after too many requests."""
    told = str(headers.get("Retry-After", ""))
    if told.isdecimal():
        return float(told)
    limit = parse_ratelimit_headers(headers)
    return 1.0 if limit is None else float(limit.reset_in_seconds)


def _body(answer: Any, count: int | None, until_s: float) -> bytes:
    """Returns a body of `count` bytes. Stops reading when more arrive."""
    parts, came = [], 0
    for part in answer.iter_raw():
        parts.append(part)
        came += len(part)
        if count is not None and came > count:
            break
        if time.monotonic() > until_s:
            raise TimeoutError("the attempt took too long")
    if count is not None and came != count:
        raise OSError(f"{came} bytes were received instead of {count}")
    return b"".join(parts)


class _Translated:
    """Raises the errors of huggingface_hub as FileNotFoundError, Permanent, Later or OSError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        ours = isinstance(error, (FileNotFoundError, Permanent, Later))
        if error is None or (ours and not isinstance(error, hub_errors.HfHubHTTPError)):
            return
        text = " ".join(str(error).split())
        if isinstance(error, hub_errors.RevisionNotFoundError):
            raise Permanent("there is no such revision") from None
        if isinstance(error, hub_errors.GatedRepoError):
            raise Permanent(
                "the dataset is gated: request access on its page, and set HF_TOKEN"
            ) from None
        if isinstance(error, hub_errors.RepositoryNotFoundError):
            raise Permanent(
                "there is no such dataset; or it is private, and needs a token: set HF_TOKEN, or "
                "run `hf auth login`"
            ) from None
        if isinstance(error, hub_errors.EntryNotFoundError):
            raise FileNotFoundError(text) from None
        if isinstance(error, (hub_errors.OfflineModeIsEnabled, hub_errors.HFValidationError)):
            raise Permanent(text) from None
        if isinstance(error, hub_errors.HfHubHTTPError) and error.response is not None:
            _check_status(error.response, text)
        if isinstance(error, Exception) and not isinstance(error, (ValueError, TypeError, OSError)):
            raise OSError(f"{type(error).__name__}: {text}") from None


__all__ = ["HubBackend", "repository_of"]
