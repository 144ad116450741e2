"""Servers for tests on this machine: a folder over HTTP, S3, and faults in front of either.

Each is a process of its own, so that tests may fork and measure, and ends with the block that it is
used in, or with the process that started it, however that ends::

    with http_folder(path) as url, FaultProxy(url) as proxy:
        store = open_store(proxy.url)
        proxy.fail("reset", next=1)
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

HERE = Path(__file__).parent
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PYTHON = (sys.executable, "-S")  # without what is installed, which takes a while to find

_NGINX = """
daemon off; master_process off; worker_processes 1;
pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; sendfile_max_chunk 1m; tcp_nodelay on;
  keepalive_timeout 600; keepalive_requests 1000000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port} backlog=512; root "{root}"; }}
}}
"""


def _die_with_parent() -> None:
    """Has this process killed when the one that started it is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone after the block, and when this process is gone.

    Python's servers see to the latter themselves: a `preexec_fn` needs a fork of this process,
    which takes some 30 ms where it is large.
    """
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def http_folder(path: str | Path, *, ranges: bool = True, python: bool = False) -> Iterator[str]:
    """The URL of a folder over HTTP/1.1, with ranges and kept connections.

    Args:
        path: of the folder.
        ranges: False: the server ignores them, and answers 200 with everything.
        python: take Python's server even where there is nginx.
    """
    nginx = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if nginx and ranges and not python:
        with _nginx(nginx, Path(path).resolve()) as url:
            yield url
        return
    command = [*_PYTHON, __file__, "http", str(path), "ranges" if ranges else "whole"]
    with _process(command) as process:
        yield f"http://127.0.0.1:{_port_of(process)}"


@contextmanager
def _nginx(nginx: str, root: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="nginx-") as folder:
        for _ in range(10):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            config = Path(folder, "nginx.conf")
            config.write_text(_NGINX.format(folder=folder, port=port, root=root))
            log = subprocess.DEVNULL
            command = [nginx, "-c", str(config), "-p", folder]
            with _process(command, stderr=log, preexec_fn=_die_with_parent) as process:
                if _answers(port, process):
                    yield f"http://127.0.0.1:{port}"
                    return
    raise RuntimeError("nginx does not start")


def _answers(port: int, process: subprocess.Popen[str]) -> bool:
    """Whether a server takes connections; False once its process ended (the port was taken)."""
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return process.poll() is None
    return False


def _port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} did not start")
    return int(line)


@dataclass(frozen=True)
class S3:
    """A running S3 server.

    Attributes:
        endpoint: its URL.
    """

    endpoint: str

    def options(self, endpoint: str | None = None) -> dict[str, Any]:
        """storage_options for it, or for a proxy in front of it."""
        return {
            "key": "testing-key-id",
            "secret": "testing-secret-key",
            "client_kwargs": {
                "endpoint_url": endpoint or self.endpoint,
                "region_name": "us-east-1",
            },
        }

    def bucket(self, name: str) -> str:
        """Make a bucket, and return its URL."""
        self._request("PUT", f"/{name}")
        return f"s3://{name}"

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object, without any of the clients that are tested."""
        self._request("PUT", f"/{bucket}/{quote(key)}", data)

    def _request(self, method: str, path: str, data: bytes = b"") -> None:
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=60)
        # moto tells S3 from its other services, and the region, by these.
        headers = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=a/20250101/us-east-1/s3/aws4_request"
        }
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:200]!r}")


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server of moto's, empty; needs the package moto[server]."""
    with _process([sys.executable, __file__, "s3"], stderr=subprocess.DEVNULL) as process:
        yield S3(f"http://127.0.0.1:{_port_of(process)}")


# Faults that who speaks HTTP notices, and those that only who knows the bytes does.
OPEN_FAULTS: tuple[str, ...] = ("status", "stall", "garbage", "reset", "truncate", "stall_body")
OPEN_FAULTS += ("range", "whole", "length", "empty")
HIDDEN_FAULTS = ("flip", "garble", "swap", "stale")
STORM = OPEN_FAULTS + HIDDEN_FAULTS


@dataclass(frozen=True)
class Answer:
    """A request that went through a proxy.

    Attributes:
        method, path: of the request; the path not percent-encoded and without a query.
        start: first byte of the range that was answered.
        status: 0 where there was no answer.
        sent: bytes of the body that went to the client.
    """

    method: str
    path: str
    start: int
    status: int
    sent: int


class FaultProxy:
    """A proxy in front of an http server, whose faults are switched while it runs.

    Args:
        target: URL of the server; the proxy's has the same path.
        seed: of the faults that strike by chance, and of where in a body they do.
    """

    def __init__(self, target: str, seed: int = 0) -> None:
        self._target = urlsplit(target)
        self._seed = seed
        self._lock = threading.Lock()
        self.url = ""

    def __enter__(self) -> FaultProxy:
        where = [str(self._target.hostname), str(self._target.port or 80)]
        command = [*_PYTHON, str(HERE / "fault_proxy.py"), *where, str(self._seed)]
        self._context = _process(command)
        self._process = self._context.__enter__()
        self.url = self._target._replace(netloc=f"127.0.0.1:{_port_of(self._process)}").geturl()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._context.__exit__(*exception)

    def fail(
        self,
        fault: str,
        *,
        next: int = 0,
        p: float = 0.0,
        match: str = "",
        status: int | None = None,
        most: int | None = None,
    ) -> None:
        """Switch a fault on, in place of what was said of it before.

        Args:
            fault: "status" (an answer of this status, 503 at first, without a body), "stall" (never
                answers), and in the middle of a body: "reset", "truncate" (closes), "stall_body"
                (never goes on), "flip" (one bit is wrong).
            next: that many answers have it.
            p: each answer behind these has it with this probability.
            match: only where this is in the path.
            status: for "status".
            most: answers have it in all.
        """
        self._say("fail", fault=fault, next=next, p=p, match=match, status=status, most=most)

    def storm(
        self,
        rate: float,
        kinds: Sequence[str] = STORM,
        *,
        seed: int = 0,
        old: str = "",
        spans: Mapping[str, Sequence[tuple[int, int]]] | None = None,
        match: str = "",
    ) -> None:
        """Spoil a part of all answers, each in one of several ways; `struck` counts them by kind.

        Args:
            rate: of the requests.
            kinds: some of `STORM`. Of these, "status", "stall", "garbage" (no HTTP at all),
                "reset", "truncate", "stall_body", "range" (the headers say another one), "whole"
                (status 200), "length" (of the body, said wrongly) and "empty" (no body) can be told
                by who knows HTTP. "flip" (one bit), "garble" (a byte of each 64), "swap" (bytes of
                another range) and "stale" (bytes of another version) cannot.
            seed: of what is drawn.
            old: for "stale": URL of a server that has another version of all objects.
            spans: by path: parts of the object that "flip" keeps to.
            match: only where this is in the path.
        """
        parts = urlsplit(old)
        self._say(
            "storm",
            rate=rate,
            kinds=list(kinds),
            seed=seed,
            old=[parts.hostname, parts.port] if old else None,
            spans=dict(spans or {}),
            match=match,
        )

    def set(self, *, latency_s: float = 0.0, bandwidth: float | None = None) -> None:
        """How long every request waits, and bytes/s of all connections together."""
        self._say("set", latency_s=latency_s, bandwidth=bandwidth)

    def gather(self, requests: int) -> None:
        """Answer no request until so many different ones wait for an answer; see `met`."""
        self._say("gather", requests=requests)

    def met(self) -> bool:
        """Whether the requests of `gather` were all there at once."""
        return bool(self._say("met"))

    def calm(self) -> None:
        """No faults, no latency, no limit, and nothing is gathered."""
        self._say("calm")

    def forget(self) -> None:
        """Count from here."""
        self._say("forget")

    def struck(self) -> Counter[str]:
        """How often each fault struck."""
        return Counter(self._say("struck"))

    def answers(self, match: str = "", method: str = "") -> list[Answer]:
        """The requests so far whose path has this in it."""
        log = (Answer(m, unquote(p.split("?")[0]), *rest) for m, p, *rest in self._say("log"))
        return [a for a in log if match in a.path and method in ("", a.method)]

    def sent(self, match: str = "") -> int:
        """Bytes of bodies sent so far, of paths with this in them."""
        return sum(answer.sent for answer in self.answers(match))

    def sent_twice(self, match: str = "") -> int:
        """Bytes sent that had been sent before, each time counted; by path and range."""
        spans: dict[str, list[tuple[int, int]]] = {}
        for a in self.answers(match, "GET"):
            spans.setdefault(a.path, []).append((a.start, a.start + a.sent))
        twice = 0
        for found in spans.values():
            reached = 0
            for start, end in sorted(found):
                twice += max(0, min(end, reached) - start)
                reached = max(reached, end)
        return twice

    def _say(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps([command, arguments]) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


def _serve_folder(path: str, ranges: bool) -> None:
    """Serve a folder until the input ends; prints the port."""
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms behind its headers

        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            file = Path(self.translate_path(self.path))
            if not (ranges and wanted.startswith("bytes=") and file.is_file()):
                return super().do_GET()
            size = file.stat().st_size
            first, _, last = wanted[len("bytes=") :].partition("-")
            start = int(first) if first else max(0, size - int(last))
            end = min(size, int(last) + 1) if first and last else size
            if start >= size:
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Content-Length", str(end - start))
            self.send_header("Last-Modified", self.date_time_string(int(file.stat().st_mtime)))
            self.end_headers()
            self.wfile.flush()
            with file.open("rb") as source:
                self.connection.sendfile(source, start, end - start)
            return None

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 512

        def handle_error(self, *_: Any) -> None:  # clients that give up
            pass

    from functools import partial

    server = Server(("127.0.0.1", 0), partial(Handler, directory=path))
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _serve_s3() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import WSGIRequestHandler

    WSGIRequestHandler.disable_nagle_algorithm = True  # as above
    # For each request, moto looks for the service among its folders, and writes a line to stderr.
    app = create_backend_app("s3")
    DomainDispatcherApplication.get_application = lambda self, environ: app
    WSGIRequestHandler.log_request = lambda *_: None
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)


if __name__ == "__main__":
    _die_with_parent()
    if sys.argv[1] == "s3":
        _serve_s3()
    else:
        _serve_folder(sys.argv[2], sys.argv[3] == "ranges")
    sys.stdin.read()
    os._exit(0)
