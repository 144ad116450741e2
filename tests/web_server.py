"""A web server in this process whose answers a test decides, header by header."""

from __future__ import annotations

import hashlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Asked:
    """A request that came.

    Attributes:
        method: "GET" or "HEAD".
        target: as the request line has it: a path, or a URL where a proxy is asked.
        headers: by lower-case names.
    """

    method: str
    target: str
    headers: dict[str, str]


@dataclass
class Answer:
    """What is sent for a request; to be changed by `WebServer.lie`."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:  # clients that give up
        pass


@dataclass
class WebServer:
    """Objects over HTTP, with ranges and versions; ends with the block that it is used in.

    Attributes:
        objects: bytes by path, without the first "/".
        versions: "etag", "weak", "modified" (Last-Modified alone) or "" (neither).
        obeys: whether If-Match is looked at.
        redirects: where a path leads to, by path.
        needs: the Authorization header without which the answer is 401.
        lie: changes answers before they are sent.
        asked: the requests that came.
        times: of the objects' changes, in seconds, by path.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    versions: str = "etag"
    obeys: bool = True
    redirects: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    lie: Callable[[Asked, Answer], None] | None = None
    certificate: Path | None = None
    asked: list[Asked] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=dict)
    url: str = ""

    def __enter__(self) -> WebServer:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a body waits 40 ms behind its headers

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, self.path, headers)
                owner.asked.append(asked)
                answer = owner.answer(asked)
                if owner.lie is not None:
                    owner.lie(asked, answer)
                self.send_response(answer.status)
                answer.headers.setdefault("Content-Length", str(len(answer.body)))
                for name, value in answer.headers.items():
                    if value:
                        self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(answer.body)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        scheme = "http"
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *exception: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def replace(self, path: str, data: bytes) -> None:
        """Puts another version in the place of an object, a minute younger."""
        self.objects[path] = data
        self.times[path] = self.times.get(path, 1_700_000_000) + 60

    def answer(self, asked: Asked) -> Answer:
        """What an honest server answers."""
        path = unquote(urlsplit(asked.target).path).lstrip("/")
        if self.needs and asked.headers.get("authorization") != self.needs:
            return Answer(401, {}, b"")
        if path in self.redirects:
            return Answer(302, {"Location": self.redirects[path]}, b"")
        data = self.objects.get(path)
        if data is None:
            return Answer(404, {}, b"")
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        headers = {
            "etag": {"ETag": etag},
            "weak": {"ETag": f"W/{etag}"},
            "modified": {
                "Last-Modified": formatdate(self.times.get(path, 1_700_000_000), usegmt=True)
            },
        }.get(self.versions, {})
        wanted = asked.headers.get("if-match")
        if self.obeys and wanted not in (None, "*", headers.get("ETag", "")):
            return Answer(412, headers, b"")
        if "range" not in asked.headers:
            head = {"Content-Length": str(len(data))} if asked.method == "HEAD" else {}
            return Answer(200, {**headers, **head}, data)
        first, _, last = asked.headers["range"].partition("=")[2].partition("-")
        start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
        if start >= len(data):
            return Answer(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return Answer(206, headers, data[start:end])


@dataclass
class TunnelProxy:
    """A proxy for https, which passes the bytes of tunnels on; ends with its block.

    Attributes:
        status: the answer to CONNECT; 200 opens the tunnel, 0 is no answer until the block's end.
        tunnels: the tunnels that were asked for: "host:port" and Proxy-Authorization.
    """

    status: int = 200
    tunnels: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> TunnelProxy:
        owner, ended = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                owner.tunnels.append((self.path, self.headers["Proxy-Authorization"]))
                if not owner.status:
                    ended.wait()
                elif owner.status != 200:
                    self.send_error(owner.status)
                else:
                    host, _, port = self.path.rpartition(":")
                    with socket.create_connection((host, int(port))) as there:
                        self.send_response(200)
                        self.end_headers()
                        _pass_on(self.connection, there)
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._ended, self._server = ended, _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *exception: Any) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()


def _pass_on(here: socket.socket, there: socket.socket) -> None:
    """Until one of two sockets ends, sends what comes from each to the other."""
    while True:
        for source in select.select([here, there], [], [])[0]:
            data = source.recv(65536)
            if not data:
                return
            (there if source is here else here).sendall(data)


def certificate(folder: Path) -> Path:
    """A file with a key and a certificate for 127.0.0.1 that nobody vouches for."""
    from datetime import datetime, timedelta, timezone
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(timezone.utc)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path
