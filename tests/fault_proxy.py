"""The process behind `servers.FaultProxy`: HTTP/1.1 in, HTTP/1.1 out, with faults between.

    python fault_proxy.py HOST PORT SEED

It prints its port; then takes a line of JSON at a time, [command, arguments], and answers with one,
until its input ends. Bodies go from socket to socket through a pipe in the kernel and are nowhere
held as a whole. A thread a connection, with an upstream connection of its own.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import re
import select
import signal
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
GATHER_S = 60.0  # for the requests that are gathered
LOG_S = 0.5  # for answers to end that are under way


@dataclass
class Fault:
    """How often a fault strikes: the next n answers, or each with a probability, `most` in all."""

    next: int = 0
    p: float = 0.0
    match: str = ""
    most: int | None = None


@dataclass
class Storm:
    """Faults on a part of all requests, of many kinds: each request has one, or none.

    Which one a request has depends on the seed, on its path and range, and on how often that was
    asked for: threads that come in another order change nothing.

    Attributes:
        rate: of the requests.
        kinds: see `servers.FaultProxy.storm`.
        old: (host, port) of a server that has another version of every object.
        spans: by path: parts of objects that "flip" keeps to; other objects are flipped anywhere.
        match: only where this is in the path.
    """

    rate: float
    kinds: list[str]
    seed: int = 0
    old: tuple[str, int] | None = None
    spans: dict[str, list[list[int]]] = field(default_factory=dict)
    match: str = ""
    asked: Counter[str] = field(default_factory=Counter)

    def draw(self, method: str, path: str, range_: str) -> tuple[str, random.Random]:
        """The fault of a request, "" for none, and what is to be drawn for it."""
        request = f"{method} {path} {range_}"
        self.asked[request] += 1
        choice = random.Random(f"{self.seed} {request} {self.asked[request]}")
        if self.match not in path or choice.random() >= self.rate:
            return "", choice
        ranged = method == "GET" and bool(range_)
        kinds = [kind for kind in self.kinds if ranged or kind in ("status", "stall", "garbage")]
        return (choice.choice(kinds) if kinds else ""), choice


@dataclass
class State:
    """What the proxy does, and what it did; everything under the lock."""

    random: random.Random
    latency_s: float = 0.0
    bandwidth: float | None = None  # bytes/s of all connections together
    status: int = 503
    faults: dict[str, Fault] = field(default_factory=dict)
    storm: Storm | None = None
    log: list[list[Any]] = field(default_factory=list)  # method, path, start, status, body bytes
    struck: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    answering: int = 0  # answers that are not in the log yet
    gathering: int = 0  # so many different requests wait until all of them are there
    gathered: set[str] = field(default_factory=set)
    met: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    free_at: float = 0.0  # when all that was let through has gone, at the limit's speed
    paid_at: float = 0.0

    def strikes(self, name: str, path: str) -> bool:
        """Whether a fault strikes this answer."""
        with self.lock:
            fault = self.faults.get(name)
            if fault is None or fault.match not in path:
                return False
            if fault.most == 0:
                return False
            if fault.next > 0:
                fault.next -= 1
            elif not (fault.p and self.random.random() < fault.p):
                return False
            if fault.most is not None:
                fault.most -= 1
            self.struck[name] += 1
            return True

    def draw(self, method: str, path: str, range_: str) -> tuple[str, random.Random]:
        """The fault that a storm has for a request."""
        with self.lock:
            if self.storm is None:
                return "", self.random
            return self.storm.draw(method, path, range_)

    def gather(self, method: str, path: str, range_: str) -> None:
        """Wait until as many requests are there as are gathered, or for a while in vain."""
        with self.lock:
            if not self.gathering:
                return
            self.gathered.add(f"{method} {path} {range_}")  # once, if it is tried again
            if len(self.gathered) >= self.gathering:
                self.met.set()
        self.met.wait(GATHER_S)

    def count(self, fault: str) -> None:
        """Count a fault of a storm."""
        with self.lock:
            self.struck[fault] += 1

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
        state.gather(method, path, header(head, "range"))
        fault, choice = state.draw(method, path, header(head, "range"))
        if fault == "stall" or state.strikes("stall", path):
            state.count(fault) if fault else None
            self.log(method, path, 0, 0, 0)
            self.wait_for_goodbye()
        if fault == "status" or state.strikes("status", path):
            state.count(fault) if fault else None
            return self.refuse(method, path, head)
        if fault:
            return Lie(self, method, path, head, choice).tell(fault)
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
        sent, noted = 0, False
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
            elif length:
                # Noted before the last byte goes: else who has it all may ask what was sent, or
                # have it forgotten, while this thread has yet to run.
                self.relay(self.upstream, self.client, length - 1)
                self.log(method, path, start, status, length)
                noted = True
                self.relay(self.upstream, self.client, 1)
            else:
                sent = self.body(head, self.upstream, self.client, answer=True)
        finally:
            if not noted:
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


class Lie:
    """A request whose answer a storm spoils. The answer is held as a whole."""

    def __init__(
        self, connection: Connection, method: str, path: str, head: bytes, choice: random.Random
    ) -> None:
        self.connection, self.state = connection, connection.state
        self.method, self.path, self.head = method, path, head
        self.choice = choice

    def tell(self, fault: str) -> bool:
        """Answer with a fault, and count it under its name; False where the connection ends."""
        if fault == "garbage":
            return self.send(fault, self.garbage(), b"", ends=True)
        answer, body = self.fetch(self.head)
        if not answer.startswith(b"HTTP/1.1 206") or not body:
            self.connection.log(self.method, self.path, 0, int(answer[9:12]), len(body))
            self.connection.client.sock.sendall(answer + body)
            return True
        spoil = getattr(self, fault)
        return bool(spoil(answer, bytearray(body)))

    def flip(self, answer: bytes, body: bytearray) -> bool:
        """One bit is wrong, within the spans where there are some."""
        place = self.place(answer, len(body))
        if place is None:
            return self.reset(answer, body)
        body[place] ^= 1 << self.choice.randrange(8)
        return self.send("flip", answer, body)

    def garble(self, answer: bytes, body: bytearray) -> bool:
        """One byte of each 64 is wrong."""
        for begin in range(0, len(body), 64):
            place = begin + self.choice.randrange(min(64, len(body) - begin))
            body[place] ^= self.choice.randrange(1, 256)
        return self.send("garble", answer, body)

    def swap(self, answer: bytes, body: bytearray) -> bool:
        """The bytes of another range, under the headers of this one."""
        start, end, size = self.span(answer)
        length = end - start
        others = [at for at in (start - length, end, start - 1, start + 1, 0) if at != start]
        fits = [at for at in others if 0 <= at <= size - length]
        if fits:
            range_ = b"bytes=%d-%d" % (fits[0], fits[0] + length - 1)
            _, other = self.fetch(set_header(self.head, b"Range", range_))
            if len(other) == length and other != body:
                return self.send("swap", answer, other)
        return self.garble(answer, body)

    def stale(self, answer: bytes, body: bytearray) -> bool:
        """The bytes of another version of the object, under the headers of this one."""
        assert self.state.storm is not None
        old = self.state.storm.old
        if old is not None:
            _, other = self.fetch(self.head, old)
            if len(other) == len(body) and other != body:
                return self.send("stale", answer, other)
        return self.garble(answer, body)

    def truncate(self, answer: bytes, body: bytearray) -> bool:
        """The connection ends within the body."""
        return self.send("truncate", answer, body[: self.choice.randrange(len(body))], ends=True)

    def reset(self, answer: bytes, body: bytearray) -> bool:
        """The connection is reset within the body."""
        part = body[: self.choice.randrange(len(body))]
        linger = struct.pack("ii", 1, 0)
        self.connection.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return self.send("reset", answer, part, ends=True)

    def stall_body(self, answer: bytes, body: bytearray) -> bool:
        """The body never goes on."""
        self.send("stall_body", answer, body[: self.choice.randrange(len(body))])
        self.connection.wait_for_goodbye()
        return False

    def range(self, answer: bytes, body: bytearray) -> bool:
        """The headers say that it is another range."""
        start, end, size = self.span(answer)
        by = self.choice.choice((-1, 1, 64))
        other = b"bytes %d-%d/%d" % (max(0, start + by), max(0, end - 1 + by), size)
        return self.send("range", set_header(answer, b"Content-Range", other), body)

    def whole(self, answer: bytes, body: bytearray) -> bool:
        """The status of a whole object, with the bytes of the range."""
        start, end, size = self.span(answer)
        if end - start == size:  # it is the whole object: that would be a correct response
            return self.reset(answer, body)
        answer = set_header(answer, b"Content-Range", None)
        answer = b"HTTP/1.1 200 OK" + answer[answer.index(b"\r\n") :]
        return self.send("whole", answer, body)

    def length(self, answer: bytes, body: bytearray) -> bool:
        """The headers say that there are fewer bytes, or more than come."""
        less = self.choice.randrange(len(body))
        said = self.choice.choice((less, len(body) + 1 + less))
        answer = set_header(answer, b"Content-Length", b"%d" % said)
        return self.send("length", answer, body[:said], ends=True)

    def empty(self, answer: bytes, body: bytearray) -> bool:
        """There is no body."""
        return self.send("empty", set_header(answer, b"Content-Length", b"0"), b"")

    def garbage(self) -> bytes:
        """What is no answer, or only begins as one."""
        noise = self.choice.randbytes(200)
        begin = self.choice.choice((b"", b"HTTP/1.1 206 Partial Content\r\n", b"HTTP/9.9 abc\r\n"))
        return begin + noise + b"\r\n\r\n"

    def fetch(self, head: bytes, target: tuple[str, int] | None = None) -> tuple[bytes, bytes]:
        """The answer to a request: its head and its body."""
        connection = self.connection
        if target is None:
            answer = connection.ask(head)
            return answer, self.rest(answer, connection.upstream)
        for name in (b"If-Match", b"If-Range", b"If-Unmodified-Since"):
            head = set_header(head, name, None)
        side = Side(socket.create_connection(target))
        try:
            side.sock.sendall(head)
            answer = side.until(b"\r\n\r\n")
            return answer, self.rest(answer, side)
        finally:
            side.sock.close()

    def rest(self, answer: bytes, side: Side | None) -> bytes:
        assert side is not None
        if self.method == "HEAD":
            return b""
        left, parts = int(header(answer, "content-length") or 0), []
        while left:
            parts.append(side.some(left))
            left -= len(parts[-1])
        return b"".join(parts)

    def span(self, answer: bytes) -> tuple[int, int, int]:
        """First byte, end and size that an answer's head tells."""
        found = re.match(r"bytes (\d+)-(\d+)/(\d+)", header(answer, "content-range"))
        assert found is not None
        return int(found[1]), int(found[2]) + 1, int(found[3])

    def place(self, answer: bytes, length: int) -> int | None:
        """A byte of the body that may be wrong; None where there is none."""
        assert self.state.storm is not None
        spans = self.state.storm.spans.get(self.path.partition("?")[0])
        if spans is None:
            return self.choice.randrange(length)
        start = self.span(answer)[0]
        bounds = [(max(begin - start, 0), min(end - start, length)) for begin, end in spans]
        places = [at for begin, end in bounds for at in range(begin, end)]
        return self.choice.choice(places) if places else None

    def send(self, fault: str, head: bytes, body: bytes | bytearray, ends: bool = False) -> bool:
        self.state.count(fault)
        found = re.match(r"bytes (\d+)-", header(head, "content-range"))
        start = int(found[1]) if found else 0
        status = int(head[9:12]) if head[9:12].isdigit() else 0
        self.connection.log(self.method, self.path, start, status, len(body))
        self.connection.client.sock.sendall(head + body)
        return not ends


def set_header(head: bytes, name: bytes, value: bytes | None) -> bytes:
    """A head with another value of a header, or without it."""
    line = b"" if value is None else b"\r\n" + name + b": " + value
    pattern = rb"\r\n" + name + rb":[^\r]*"
    made, count = re.subn(pattern, lambda _: line, head, flags=re.IGNORECASE)
    return made if count or value is None else head[:-4] + line + head[-4:]


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
    # A client may have all of an answer before it is noted here; noted behind "forget", it would
    # count as one of what follows.
    if command in ("log", "forget"):
        until_s = time.monotonic() + LOG_S
        while state.answering and time.monotonic() < until_s:
            time.sleep(0.001)
    with state.lock:
        if command == "fail":
            name = arguments.pop("fault")
            state.status = arguments.pop("status", None) or state.status
            state.faults[name] = Fault(**arguments)
        elif command == "storm":
            old = arguments.pop("old")
            state.storm = Storm(**arguments, old=old and (old[0], old[1]))
        elif command == "calm":
            state.faults.clear()
            state.storm = None
            state.latency_s, state.bandwidth, state.gathering = 0.0, None, 0
            state.met.set()
        elif command == "set":
            for name, value in arguments.items():
                setattr(state, name, value)
        elif command == "gather":
            state.gathering = arguments["requests"]
            state.gathered.clear()
            state.met.clear()
        elif command == "met":
            return state.met.is_set()
        elif command == "forget":
            state.log.clear()
            state.struck.clear()
        elif command == "log":
            return state.log
        elif command == "struck":
            return dict(state.struck)
    return None


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: when its parent is gone
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
