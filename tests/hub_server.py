"""A server that answers as the Hugging Face Hub does, for datasets in a folder.

It has the parts of the Hub's API that readers use: information on a dataset, its tree in pages
with Link headers, information on paths, and files, which are redirected to a second address as the
Hub redirects to its CDN. It was written after the Hub's documentation, and not compared with it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 3  # files of a page of a tree: few, so that small datasets have several


class Hub:
    """A running server.

    Attributes:
        endpoint: Its URL, for HF_ENDPOINT.
        asked: Method, path and Authorization header of the requests so far.
        token: The token that all datasets need, if they need one.
        busy: The number of requests for files that are answered by 429 with Retry-After.
        commits: The folder of each commit; the last is main.
    """

    def __init__(self, repository: str, folder: Path) -> None:
        self.repository = repository
        self.commits = {hashlib.sha1(b"1").hexdigest(): folder}
        self.token = ""
        self.busy = 0
        self.asked: list[tuple[str, str, str]] = []
        self.cdn = self.endpoint = ""

    def commit(self, folder: Path) -> str:
        """Makes the files of a folder the newest commit, and returns its name."""
        name = hashlib.sha1(str(len(self.commits) + 1).encode()).hexdigest()
        self.commits[name] = folder
        return name

    def folder(self, revision: str) -> tuple[str, Path] | None:
        """Returns the commit of a revision and its folder."""
        if revision in ("main", ""):
            revision = list(self.commits)[-1]
        folder = self.commits.get(revision)
        return None if folder is None else (revision, folder)


def _entry(root: Path, path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    about: dict[str, Any] = {
        "type": "file",
        "path": path.relative_to(root).as_posix(),
        "size": len(data),
        "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
    }
    if path.suffix != ".md":
        about["lfs"] = {
            "oid": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "pointerSize": 130,
        }
    return about


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms behind its headers

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_GET

    def _answer(self) -> None:
        hub, url = self.hub, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        authorization = self.headers.get("Authorization", "")
        hub.asked.append((self.command, unquote(url.path), authorization))
        path = unquote(url.path).strip("/")
        if path.startswith("cdn/"):
            return self._file(Path("/" + path.removeprefix("cdn/")), {})
        if hub.token and authorization != f"Bearer {hub.token}":
            return self._send(401, {"X-Error-Code": "RepoNotFound"}, b"{}")
        api = f"api/datasets/{hub.repository}"
        if path == api or path.startswith(api + "/"):
            return self._api(path.removeprefix(api).strip("/"), parse_qs(url.query), body)
        files = f"datasets/{hub.repository}/resolve/"
        if path.startswith(files):
            revision, _, name = path.removeprefix(files).partition("/")
            found = hub.folder(revision)
            if found is None:
                return self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"")
            return self._resolve(*found, name)
        return self._send(404, {"X-Error-Code": "RepoNotFound"}, b"{}")

    def _api(self, rest: str, query: dict[str, list[str]], body: bytes) -> None:
        hub = self.hub
        what, _, revision = rest.partition("/")
        found = hub.folder(revision.partition("/")[0])
        if found is None:
            return self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
        commit, root = found
        entries = [_entry(root, path) for path in sorted(root.rglob("*")) if path.is_file()]
        if what in ("", "revision"):
            siblings = [{"rfilename": each["path"]} for each in entries]
            about = {"_id": "1", "id": hub.repository, "sha": commit, "siblings": siblings}
            about |= {"private": False, "tags": [], "downloads": 0, "likes": 0}
            return self._json(about)
        if what == "paths-info":
            if self.headers.get("Content-Type", "").startswith("application/json"):
                wanted = json.loads(body)["paths"]
            else:
                wanted = parse_qs(body.decode())["paths"]
            wanted = [wanted] if isinstance(wanted, str) else wanted
            folders = [
                {"type": "directory", "path": name, "oid": "0" * 40}
                for name in wanted
                if name and (root / name).is_dir()
            ]
            return self._json([each for each in entries if each["path"] in wanted] + folders)
        if what == "tree":
            folder = revision.partition("/")[2]
            if folder and not (root / folder).is_dir():
                return self._send(404, {"X-Error-Code": "EntryNotFound"}, b"{}")
            inside = [e for e in entries if e["path"].startswith(folder + "/" if folder else "")]
            if query.get("recursive", ["false"])[0].lower() not in ("true", "1"):
                begin = len(folder) + 1 if folder else 0
                below = [each["path"][begin:].partition("/") for each in inside]
                inside = [each for each in inside if "/" not in each["path"][begin:]]
                for name in sorted({first for first, slash, _ in below if slash}):
                    path = f"{folder}/{name}".strip("/")
                    inside.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": path})
            at = int(query.get("cursor", ["0"])[0])
            more = {}
            if at + PAGE < len(inside):
                kept = "&".join(f"{n}={v[0]}" for n, v in query.items() if n != "cursor")
                link = f"{hub.endpoint}{urlsplit(self.path).path}?{kept}&cursor={at + PAGE}"
                more["Link"] = f'<{link}>; rel="next"'
            return self._json(inside[at : at + PAGE], more)
        return self._send(404, {"X-Error-Code": "EntryNotFound"}, b"{}")

    def _resolve(self, commit: str, root: Path, name: str) -> None:
        path = root / name
        if not path.is_file():
            return self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b"")
        if self.hub.busy and self.command == "GET":
            self.hub.busy -= 1
            return self._send(429, {"Retry-After": "0"}, b"")
        about = _entry(root, path)
        etag = about["lfs"]["oid"] if "lfs" in about else about["oid"]
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(about["size"])}
        if "lfs" not in about:
            return self._file(path, {**headers, "ETag": f'"{etag}"'})
        headers |= {"X-Linked-Etag": f'"{etag}"', "Location": f"{self.hub.cdn}/cdn{path}"}
        return self._send(302, headers, b"")

    def _file(self, path: Path, headers: dict[str, str]) -> None:
        data = path.read_bytes()
        headers = {"ETag": f'"cdn-{len(data)}"', **headers, "Accept-Ranges": "bytes"}
        span = self.headers.get("Range", "")
        if not span:
            return self._send(200, headers, data)
        first, _, last = span.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(data)) + 1, len(data))
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        return self._send(206, headers, data[begin:end])

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        more = {"Content-Type": "application/json", **(headers or {})}
        self._send(200, more, json.dumps(value).encode())

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def hub_server(repository: str, folder: Path) -> Iterator[Hub]:
    """A Hub with one dataset, whose first commit has the files of a folder."""
    hub = Hub(repository, folder)
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    hub.endpoint, hub.cdn = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
