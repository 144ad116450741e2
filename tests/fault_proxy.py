"""The process behind `servers.FaultProxy`: HTTP/1.1 in, HTTP/1.1 out, with faults between.

    python fault_proxy.py HOST PORT SEED

It prints its port; then takes a line of JSON at a time, [command, arguments], and answers with one,
until its input ends. Bodies go from socket to socket through a pipe in the kernel and are nowhere
held as a whole. A thread a connection, with an upstream connection of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

PIPE_BYTES = 1 << 20
LIMITED_PIECE_S = 0.005  # with a bandwidth, pieces of this much time
LATE_S = 0.25  # what a thread that woke late may catch up; an idle limit saves nothing up
LOG_S = 0.5  # for answers to end that are under way


@dataclass
class Fault:
    """How often a fault strikes: the next n answers, or each with a probability."""

    next: int = 0
    p: float = 0.0
    match: str = ""


@dataclass
class State:
    """What the proxy does, and what it did; everything under the lock."""

    random: random.Random
    latency_s: float = 0.0
    bandwidth: float | None = None  # bytes/s of all connections together
    status: int = 503
    faults: dict[str, Fault] = field(default_factory=dict)
    log: list[list[Any]] = field(default_factory=list)  # method, path, start, status, body bytes
    struck: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    answering: int = 0  # answers that are not in the log yet
    lock: threading.Lock = field(default_factory=threading.Lock)
    free_at: float = 0.0  # when all that was let through has gone, at the limit's speed
    paid_at: float = 0.0

    def strikes(self, name: str, path: str) -> bool:
        """Whether a fault strikes this answer."""
        with self.lock:
            fault = self.faults.get(name)
            if fault is None or fault.match not in path:
                return False
            if fault.next > 0:
                fault.next -= 1
            elif not (fault.p and self.random.random() < fault.p):
                return False
            self.struck[name] += 1
            return True

    def piece(self, left: int) -> int:
        """How many bytes may go at once."""
        rate = self.bandwidth
        return min(left, PIPE_BYTES if rate is None else max(1, int(rate * LIMITED_PIECE_S)))

    def pay(self, nbytes: int) -> None:
        """Wait until these bytes may have gone, after those of all others."""
        with self.lock:
            if self.bandwidth is None:
                return
            now = time.monotonic()
            idle = now - self.paid_at > LATE_S
            self.paid_at = now
            self.free_at = max(self.free_at, now if idle else now - LATE_S)
            self.free_at += nbytes / self.bandwidth
            wait_s = self.free_at - now
        if wait_s > 0:
            time.sleep(wait_s)


class Closed(Exception):
    """A side is gone, or a fault ended the connection."""


class Side:
    """One of the two connections, with what was read of it beyond a head."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.ahead = b""

    def until(self, mark: bytes) -> bytes:
        """Bytes up to a mark, with it; b"" where the other end closed before the first byte."""
        while mark not in self.ahead:
            more = self.sock.recv(4096)
            if not more:
                if self.ahead:
                    raise Closed
                return b""
            self.ahead += more
        found, _, self.ahead = self.ahead.partition(mark)
        return found + mark

    def some(self, most: int) -> bytes:
        """At least one byte."""
        if not self.ahead:
            self.ahead = self.sock.recv(min(most, 65536))
            if not self.ahead:
                raise Closed
        found, self.ahead = self.ahead[:most], self.ahead[most:]
        return found


class Connection:
    """A client's connection, from its first request to its end."""

    def __init__(self, client: socket.socket, target: tuple[str, int], state: State) -> None:
        self.client = Side(client)
        self.target = target
        self.state = state
        self.upstream: Side | None = None
        self.pipe = os.pipe()
        fcntl.fcntl(self.pipe[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def run(self) -> None:
        """Serve requests until a side closes."""
        try:
            while self.exchange():
                pass
        except (Closed, OSError):
            pass
        finally:
            self.client.sock.close()
            if self.upstream is not None:
                self.upstream.sock.close()
            os.close(self.pipe[0])
            os.close(self.pipe[1])

    def exchange(self) -> bool:
        """One request and its answer; False where the connection ends with it."""
        head = self.client.until(b"\r\n\r\n")
        if not head:
            return False
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        state = self.state
        if state.latency_s:
            time.sleep(state.latency_s)
        if state.strikes("stall", path):
            self.log(method, path, 0, 0, 0)
            self.wait_for_goodbye()
        if state.strikes("status", path):
            return self.refuse(method, path, head)
        answer = self.ask(head)
        status = int(answer.split(b" ", 2)[1])
        self.answer(method, path, status, answer)
        gone = (header(head, "connection") or header(answer, "connection")).lower() == "close"
        return not gone and not answer.startswith(b"HTTP/1.0")

    def ask(self, head: bytes) -> bytes:
        """Send a request upstream, with its body, and return the head of the answer."""
        if header(head, "expect"):
            self.client.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"\r\nexpect:[^\r]*", b"", head, count=1, flags=re.IGNORECASE)
        for fresh in (self.upstream is None, True):
            if fresh:
                self.upstream = Side(socket.create_connection(self.target))
            assert self.upstream is not None
            try:
                self.upstream.sock.sendall(head)
                self.body(head, self.client, self.upstream)
                answer = self.upstream.until(b"\r\n\r\n")
            except ConnectionError:
                answer = b""
            if answer or fresh:
                break
        if not answer:
            raise Closed
        return answer

    def answer(self, method: str, path: str, status: int, head: bytes) -> None:
        """Send an answer on, as far as the faults let it go."""
        assert self.upstream is not None
        found = re.match(r"bytes (\d+)-", header(head, "content-range"))
        start = int(found[1]) if found else 0
        length = int(header(head, "content-length") or 0)
        with self.state.lock:
            self.state.answering += 1
        sent = 0
        try:
            self.client.sock.sendall(head)
            if method == "HEAD" or status in (204, 304):
                return
            if length and (fault := self.fault_in_body(path)):
                sent = self.state.random.randrange(length)
                self.relay(self.upstream, self.client, sent)
                if fault == "flip":
                    bit = 1 << self.state.random.randrange(8)
                    self.client.sock.sendall(bytes([self.upstream.some(1)[0] ^ bit]))
                    sent += 1
                else:
                    self.end(fault)
                self.relay(self.upstream, self.client, length - sent)
                sent = length
            else:
                sent = self.body(head, self.upstream, self.client, answer=True)
        finally:
            self.log(method, path, start, status, sent)
            with self.state.lock:
                self.state.answering -= 1

    def fault_in_body(self, path: str) -> str:
        names = ("reset", "truncate", "stall_body", "flip")
        return next((name for name in names if self.state.strikes(name, path)), "")

    def end(self, fault: str) -> None:
        """Break off: by a reset, by closing, or by never going on."""
        if fault == "reset":
            linger = struct.pack("ii", 1, 0)
            self.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        elif fault == "stall_body":
            self.wait_for_goodbye()
        raise Closed

    def wait_for_goodbye(self) -> None:
        """Wait until the client closes, however long; what it still sends is dropped."""
        while True:
            select.select([self.client.sock], [], [])
            if not self.client.sock.recv(65536):
                raise Closed

    def refuse(self, method: str, path: str, head: bytes) -> bool:
        """Answer with an error of our own."""
        status = self.state.status
        self.log(method, path, 0, status, 0)
        self.client.sock.sendall(
            f"HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        return False

    def body(self, head: bytes, source: Side, sink: Side, answer: bool = False) -> int:
        """Move a body as its head says, and return its bytes."""
        if "chunked" in header(head, "transfer-encoding").lower():
            return self.chunks(source, sink)
        if text := header(head, "content-length"):
            self.relay(source, sink, int(text))
            return int(text)
        sent = 0
        try:
            while answer:  # until the server closes
                sent += self.relay(source, sink, 1)
        except Closed:
            pass
        return sent

    def chunks(self, source: Side, sink: Side) -> int:
        total = 0
        while True:
            line = source.until(b"\r\n")
            sink.sock.sendall(line)
            size = int(line.split(b";")[0], 16)
            if not size:
                break
            self.relay(source, sink, size + 2)
            total += size
        line = b""
        while line != b"\r\n":  # trailers, and the empty line behind them
            line = source.until(b"\r\n")
            sink.sock.sendall(line)
        return total

    def relay(self, source: Side, sink: Side, nbytes: int) -> int:
        """Move this many bytes, through a pipe and without looking at them."""
        left = nbytes
        while left:
            if source.ahead:
                piece = source.some(self.state.piece(left))
                sink.sock.sendall(piece)
                moved = len(piece)
            else:
                moved = self.splice(source, sink, self.state.piece(left))
            self.state.pay(moved)
            left -= moved
        return nbytes

    def splice(self, source: Side, sink: Side, most: int) -> int:
        moved = os.splice(source.sock.fileno(), self.pipe[1], most)
        if not moved:
            raise Closed
        left = moved
        while left:
            left -= os.splice(self.pipe[0], sink.sock.fileno(), left)
        return moved

    def log(self, method: str, path: str, start: int, status: int, sent: int) -> None:
        with self.state.lock:
            self.state.log.append([method, path, start, status, sent])


def header(head: bytes, name: str) -> str:
    """The value of a header, "" where there is none."""
    found = re.search(rb"\r\n" + name.encode() + rb":[ \t]*([^\r]*)", head, re.IGNORECASE)
    return found[1].decode("latin-1").strip() if found else ""


def accept(listener: socket.socket, target: tuple[str, int], state: State) -> None:
    """Serve every connection that comes, for ever."""
    while True:
        client, _ = listener.accept()
        state.connections += 1
        connection = Connection(client, target, state)
        threading.Thread(target=connection.run, daemon=True).start()


def obey(state: State, command: str, arguments: dict[str, Any]) -> Any:
    """Do what a line says, and return the answer."""
    if command == "log":  # a client may have all of an answer before it is noted here
        until_s = time.monotonic() + LOG_S
        while state.answering and time.monotonic() < until_s:
            time.sleep(0.001)
    with state.lock:
        if command == "fail":
            name = arguments.pop("fault")
            state.status = arguments.pop("status", None) or state.status
            state.faults[name] = Fault(**arguments)
        elif command == "calm":
            state.faults.clear()
            state.latency_s, state.bandwidth = 0.0, None
        elif command == "set":
            for name, value in arguments.items():
                setattr(state, name, value)
        elif command == "forget":
            state.log.clear()
            state.struck.clear()
        elif command == "log":
            return state.log
        elif command == "struck":
            return dict(state.struck)
    return None


def main() -> None:
    host, port, seed = sys.argv[1:]
    state = State(random.Random(int(seed)))
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    threading.Thread(target=accept, args=(listener, (host, int(port)), state), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        print(json.dumps(obey(state, command, arguments)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
