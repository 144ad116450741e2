"""A small S3 server for tests and benchmarks: objects in memory, a latency, a bandwidth, a log.

It answers GET, HEAD and ListObjectsV2, which is all that a reader needs, at a few thousand requests
a second from one process::

    with object_server({"photos/cat/1.jpg": data}, latency_s=0.03) as server:
        fastio.open(server.url + "/photos", storage_options=server.options)
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_PAGE = 1000


class ObjectServer:
    """A running server; see `object_server`.

    Attributes:
        endpoint: The URL of the server.
        url: The URL of its only bucket.
        options: storage_options for it.
    """

    def __init__(self, process: Popen[str]) -> None:
        self._process = process
        self._lock = threading.Lock()
        self.endpoint = f"http://127.0.0.1:{self._read()}"
        self.url = f"s3://{BUCKET}"
        self.options: dict[str, Any] = {
            "key": "testing-key-id",
            "secret": "testing-secret-key",
            "client_kwargs": {"endpoint_url": self.endpoint, "region_name": "us-east-1"},
        }

    def add(self, folder: str | Path, prefix: str = "") -> None:
        """Serves the files below a folder as well, under a prefix."""
        self._say("add", folder=str(folder), prefix=prefix)

    def make(self, prefix: str, folders: int, files: int, suffix: str = ".jpg") -> None:
        """Adds `files` empty-looking objects in each of `folders` folders."""
        self._say("make", prefix=prefix, folders=folders, files=files, suffix=suffix)

    def put(self, key: str, data: bytes) -> None:
        """Writes an object."""
        self._say("put", key=key, data=data.hex())

    def delete(self, key: str) -> None:
        """Deletes an object."""
        self._say("delete", key=key)

    def fail(self, key: str, status: int, count: int) -> None:
        """Answers the next requests for a key with a status."""
        self._say("fail", key=key, status=status, count=count)

    def set(self, *, latency_s: float = 0.0, bandwidth: float = 0.0) -> None:
        """Sets the time that every request waits, and bytes/s of all connections (0: no limit)."""
        self._say("set", latency_s=latency_s, bandwidth=bandwidth)

    def requests(self) -> list[str]:
        """Returns the requests since the last call: "GET key" or "LIST prefix"."""
        found: list[str] = self._say("log")
        return found

    def most_at_once(self) -> int:
        """Returns the largest number of requests that were in flight together."""
        return int(self._say("most"))

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def _say(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps([command, arguments]) + "\n")
            self._process.stdin.flush()
            return self._read()


@contextmanager
def object_server(
    objects: Mapping[str, bytes] | None = None, *, latency_s: float = 0.0, bandwidth: float = 0.0
) -> Iterator[ObjectServer]:
    """A server with some objects, which ends with the block."""
    command = [sys.executable, __file__]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            server = ObjectServer(process)
            for key, data in (objects or {}).items():
                server.put(key, data)
            server.set(latency_s=latency_s, bandwidth=bandwidth)
            yield server
        finally:
            process.kill()


@dataclass
class _State:
    """What the server has and does. A body is bytes, the path of a file, or a size in bytes."""

    bodies: dict[str, bytes | str | int] = field(default_factory=dict)
    etags: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    failing: dict[str, list[int]] = field(default_factory=dict)
    latency_s: float = 0.0
    bandwidth: float = 0.0
    free_s: float = 0.0
    now: int = 0
    most: int = 0
    log: list[str] = field(default_factory=list)

    def body(self, key: str) -> bytes | None:
        found = self.bodies.get(key)
        if isinstance(found, str):
            found = self.bodies[key] = Path(found).read_bytes()
        return bytes(found) if isinstance(found, int) else found

    def etag(self, key: str, body: bytes) -> str:
        """The ETag of an object, which is hashed once: S3 does not hash what it sends either."""
        found = self.etags.get(key)
        if found is None or found[0] is not body:
            digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
            found = self.etags[key] = body, f'"{digest}"'
        return found[1]


class _Connection(asyncio.Protocol):
    """Answers the requests of one connection, one after another."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._came = b""
        self._busy: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        if self._busy is None or self._busy.done():
            self._busy = asyncio.ensure_future(self._answer_all())

    async def _answer_all(self) -> None:
        while b"\r\n\r\n" in self._came:
            head, _, self._came = self._came.partition(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            method, target, _ = lines[0].split(" ")
            state = self._state
            state.now += 1
            state.most = max(state.most, state.now)
            status, more, body = self._answer(method, target, headers)
            wait_s = state.latency_s
            if state.bandwidth and method == "GET":
                loop_s = asyncio.get_running_loop().time()
                state.free_s = max(state.free_s, loop_s) + len(body) / state.bandwidth
                wait_s = max(wait_s, state.free_s - loop_s)
            if wait_s:
                await asyncio.sleep(wait_s)
            state.now -= 1
            text = "".join(f"{name}: {value}\r\n" for name, value in more.items())
            begin = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{text}\r\n"
            self._transport.write(begin.encode() + (b"" if method == "HEAD" else body))

    def _answer(
        self, method: str, target: str, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        state, parts = self._state, urlsplit(target)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if "list-type" in query:
            state.log.append(f"LIST {query.get('prefix', '')}")
            return 200, {"Content-Type": "application/xml"}, self._page(query).encode()
        state.log.append(f"{method} {key}")
        failing = state.failing.get(key)
        if failing:
            return failing.pop(), {}, b""
        body = state.body(key)
        if body is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        about = {"ETag": state.etag(key, body), "Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}
        if headers.get("if-match", about["ETag"]) != about["ETag"]:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        wanted = headers.get("range", "")
        if wanted and body:
            first, last = wanted.removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last or len(body)) + 1, len(body))
            about["Content-Range"] = f"bytes {begin}-{end - 1}/{len(body)}"
            return 206, about, body[begin:end]
        return 200, about, body

    def _page(self, query: dict[str, str]) -> str:
        state, prefix = self._state, query.get("prefix", "")
        delimiter = query.get("delimiter", "")
        after = query.get("continuation-token", "")
        at = max(bisect_left(state.keys, prefix), bisect_right(state.keys, after))
        found, count, token = [], 0, ""
        while at < len(state.keys) and state.keys[at].startswith(prefix):
            key = state.keys[at]
            below, slash, _ = key[len(prefix) :].partition(delimiter or "\0")
            if count == _PAGE:
                break
            if slash:
                token = prefix + below + slash + "\U0010ffff"
                shown = escape(prefix + below + slash)
                found.append(f"<CommonPrefixes><Prefix>{shown}</Prefix></CommonPrefixes>")
                at = bisect_left(state.keys, token)
            else:
                body, token = state.bodies[key], key
                size, etag = (body, '"0"') if isinstance(body, int) else (0, "")
                if not isinstance(body, int):
                    whole = state.body(key) or b""
                    size, etag = len(whole), state.etag(key, whole)
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>{etag}</ETag>"
                    "<LastModified>2026-11-02T10:00:00.000Z</LastModified></Contents>"
                )
                at += 1
            count += 1
        more = at < len(state.keys) and state.keys[at].startswith(prefix)
        tail = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if more else ""
        return (
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{count}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{''.join(found)}{tail}</ListBucketResult>"
        )


def _obey(state: _State, command: str, given: dict[str, Any]) -> Any:
    if command == "put":
        state.bodies[given["key"]] = bytes.fromhex(given["data"])
    elif command == "delete":
        state.bodies.pop(given["key"], None)
    elif command == "add":
        root = Path(given["folder"])
        names = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        state.bodies.update({given["prefix"] + name: str(root / name) for name in names})
    elif command == "make":
        for folder in range(given["folders"]):
            for file in range(given["files"]):
                name = f"{given['prefix']}{folder:05d}/{file:07d}{given['suffix']}"
                state.bodies[name] = 100
    elif command == "fail":
        state.failing[given["key"]] = [given["status"]] * given["count"]
    elif command == "set":
        state.latency_s, state.bandwidth = given["latency_s"], given["bandwidth"]
    elif command == "log":
        found, state.log = state.log, []
        return found
    elif command == "most":
        return state.most
    state.keys = sorted(state.bodies)
    return None


async def _serve() -> None:
    state, loop = _State(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(state), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, given = json.loads(line)
        print(json.dumps(_obey(state, command, given)), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve())
