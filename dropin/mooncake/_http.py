"""A small HTTP server on threads, with bounds: connections, time, heads, bodies.

What must stay true: a caller that is slow or silent ends by itself; nobody on another machine is served
unless the operator says so; a page of another web site gets nothing from a server on this machine.
"""

import io
import json
import logging
import signal
import socket
import socketserver
import sys
import threading
import time
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ._hosts import is_local, says_yes
from ._request import CONTINUE, BadHead, Headers, answer_head, read_head

log = logging.getLogger("mooncake")

# Connections at a time; more wait to be accepted, so many at most.
CONNECTIONS_MAX = 64
WAITING_MAX = 128
# Seconds that a connection may be silent; for a request without its body, or for a body, beside what its
# bytes take at the slowest pace that is waited for.
SILENCE = 10.0
REQUEST_SECONDS = 30.0
PACE_BYTES = 256 << 10
# Seconds between two looks at whether the server is to end.
STEP = 0.05
# Bytes of a body that nobody wants, which are read all the same, and for how long: see `Handler._linger`.
LINGER_BYTES_MAX = 256 << 20
LINGER_SECONDS = 60.0
# The verbs there are; some servers refuse others as no HTTP at all.
VERBS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"))
JSON = "application/json; charset=utf-8"
# Of the line before a chunk; of lines after the last one.
LINE_BYTES_MAX = 256
TRAILERS_MAX = 64
# Of a length; more are no number of bytes, and Python would refuse very many.
LENGTH_DIGITS_MAX = 18


def _hex(word: bytes) -> int | None:
    """The size of a chunk; None where it is none."""
    return int(word, 16) if len(word) <= 16 and word.isalnum() and not set(word) - HEX else None


HEX = frozenset(b"0123456789abcdefABCDEF")


class Ending:
    """The end that SIGINT or SIGTERM asks for. Made and waited for in the main thread, before others begin.

    The signals are blocked and waited for, not handled: a handler of Python's does not run while its thread
    waits for a lock, if the signal came a moment before.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, self.SIGNALS)
        self.asked = False

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for it, at most so long; whether it was asked for."""
        if self.asked:
            return True
        if seconds is None:
            signal.sigwait(self.SIGNALS)
            self.asked = True
        else:
            self.asked = signal.sigtimedwait(self.SIGNALS, max(seconds, 0.0)) is not None
        return self.asked


class NotOpen(Exception):
    """An address that other machines reach, and nobody's word that they may."""


def host_to_bind(host: str, insecure: bool | None = None) -> str:
    """Where a server that asks for no credentials may listen, for this wish.

    Everywhere means this machine, unless the operator accepts the risk; one other address is refused.
    """
    if insecure is None:
        insecure = says_yes("MOONCRATE_INSECURE_LISTEN")
    if insecure or is_local(host):
        return host
    fix = "accept the risk with MOONCRATE_INSECURE_LISTEN=1"
    if host in ("", "0.0.0.0", "::"):
        log.warning(
            "listening on 127.0.0.1, not on %r: nobody is asked for credentials there; %s",
            host,
            fix,
        )
        return "127.0.0.1"
    raise NotOpen(
        f"other machines could connect to {host}, and nobody is asked for credentials there; listen on "
        f"127.0.0.1, or {fix}"
    )


class Timed(socket.SocketIO):
    """What a caller sends, until its time is over. A byte now and then would keep a connection for ever."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, "r")
        self.connection = connection
        self.end = time.monotonic()

    def grant(self, seconds: float) -> None:
        """From now on it has so long."""
        self.end = time.monotonic() + seconds

    def readinto(self, buffer: Any) -> int | None:
        self.connection.settimeout(left(self.end))
        return super().readinto(buffer)


def left(end: float) -> float:
    """Seconds to wait for the next byte; TimeoutError if there are none."""
    seconds = min(SILENCE, end - time.monotonic())
    if seconds <= 0:
        raise TimeoutError("a caller was too slow")
    return seconds


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listens at once; serves between `start` and `close`."""

    daemon_threads = True
    # A server that was just ended has left connections behind, and its port is free all the same.
    allow_reuse_address = True
    # Threads of callers end with their sockets; nobody waits for them.
    block_on_close = False
    # With the few of the standard library some of 30 callers at once would wait for a second.
    request_queue_size = WAITING_MAX

    def __init__(self, host: str, port: int, handler: type["Handler"]) -> None:
        self.slots = threading.Semaphore(CONNECTIONS_MAX)
        self.ending = threading.Event()
        self.thread: threading.Thread | None = None
        self.only_here = is_local(host)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host.strip("[]"), port), handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self.slots.acquire(timeout=STEP):
            if self.ending.is_set():
                self.shutdown_request(request)
                return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a caller was lost: %r", sys.exception())

    def start(self, name: str) -> threading.Thread:
        """Answers from now on, in a thread of its own."""
        self.thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": STEP}, name=name, daemon=True
        )
        self.thread.start()
        return self.thread

    def close(self) -> None:
        """Takes no more callers, and gives the port back; repeatable."""
        self.ending.set()
        if self.thread is not None and self.thread.is_alive():
            self.shutdown()
            self.thread.join()
        self.server_close()


class Handler(socketserver.BaseRequestHandler):
    """Reads requests, one after the other; `route` of a subclass answers each."""

    body_max = 1 << 20
    # Verbs that come to `route`; None: all of them.
    verbs: frozenset[str] | None = None
    server: Server
    # Of the request: its verb, what it asks for, and the path of that as it was sent.
    command = ""
    path = ""
    sent_path = ""
    # Bytes of its body that were not read; below 0: nobody knows how many.
    _unread = 0

    def setup(self) -> None:
        self.connection: socket.socket = self.request
        self.timed = Timed(self.connection)
        self.rfile = io.BufferedReader(self.timed)
        self.headers = Headers()
        self.close_connection = False

    def finish(self) -> None:
        self.rfile.close()

    def handle(self) -> None:
        while not self.close_connection:
            self.timed.grant(REQUEST_SECONDS)
            try:
                self._one()
            except BadHead as bad:
                # Where it ends, and another one begins, nobody knows.
                self.command, self._unread = "", -1
                self.reply(bad.status, str(bad))
                self._linger()

    def _one(self) -> None:
        head = read_head(self.rfile.readline)
        if head is None:
            self.close_connection = True
            return
        self.command, self.path, self.headers = head.verb, head.path, head.headers
        self.close_connection = head.last()
        log.debug("%s: %a", self.client_address[0], str(head))
        if head.waits():
            self._send(CONTINUE)
        self._answer()

    def route(self, path: str, query: dict[str, str]) -> None:
        """Answers the request by one `reply`."""
        raise NotImplementedError

    def _answer(self) -> None:
        self._unread = self._length()
        if self.verbs is not None and self.command not in self.verbs:
            self.reply(400, "Bad Request: there is no such verb")
        elif not self._from_here():
            self.reply(403, "this is served to its own machine, under a local name")
        else:
            self.sent_path, _, query = self._target().partition("?")
            # Two keys that are no texts are two keys. Of a name that is given twice the first counts.
            pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
            self.timed.grant(REQUEST_SECONDS + self._bytes_at_most() / PACE_BYTES)
            self.route(unquote(self.sent_path), dict(reversed(pairs)))
        self._linger()

    def _target(self) -> str:
        """Path and query. Bytes that should have been encoded are, and a host before the path is cut."""
        sent = "".join(one if one < "\x80" else f"%{ord(one):02X}" for one in self.path)
        _, found, rest = sent.partition("://")
        if sent.startswith("/") or not found:
            return sent
        end = min((rest.find(mark) for mark in "/?" if mark in rest), default=len(rest))
        return rest[end:] if rest[end:].startswith("/") else f"/{rest[end:]}"

    def _bytes_at_most(self) -> int:
        return self.body_max if self._unread < 0 else min(self._unread, self.body_max)

    def _linger(self) -> None:
        """Reads on after an answer that came before the end of the body, without keeping anything.

        Most callers send all before they look for an answer, and lose it if the connection is reset meanwhile.
        """
        self.timed.grant(LINGER_SECONDS)
        wanted = LINGER_BYTES_MAX if self._unread < 0 else min(self._unread, LINGER_BYTES_MAX)
        while wanted > 0:
            some = self.rfile.read1(min(wanted, 1 << 16))
            if not some:
                break
            wanted -= len(some)

    def _length(self) -> int:
        text = self.headers.get("Content-Length", "0")
        chunked = "Transfer-Encoding" in self.headers
        return (
            int(text) if text.isdecimal() and len(text) <= LENGTH_DIGITS_MAX and not chunked else -1
        )

    def _from_here(self) -> bool:
        """Whether a request to a server of this machine is meant for it: a web page may point its own
        name at 127.0.0.1, or send a request there."""
        if not self.server.only_here:
            return True
        host = self.headers.get("Host", "localhost")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        site = self.headers.get("Sec-Fetch-Site", "")
        try:
            origin = urlsplit(self.headers.get("Origin", "http://localhost")).hostname or ""
        except ValueError:
            return False
        return is_local(name) and is_local(origin) and site != "cross-site"

    def body(self) -> bytes | None:
        """The body; None: there is none that can be read, and the caller was told, or is gone."""
        try:
            return self._body()
        except OSError as error:
            # Nothing more can be read from this connection.
            self.close_connection, self._unread = True, 0
            if isinstance(error, TimeoutError):
                self.reply(408, "Request Timeout")
            return None

    def _body(self) -> bytes | None:
        if self._unread < 0:
            return self._chunks()
        if self._unread > self.body_max:
            self.refuse_large()
            return None
        read = self.rfile.read(self._unread)
        if len(read) < self._unread:
            self.close_connection = True
            return None
        self._unread = 0
        return read

    def _chunks(self) -> bytes | None:
        """A body in chunks. The connection ends with it, so whatever is wrong in it ends there, too."""
        self.close_connection = True
        if self.headers.get("Transfer-Encoding", "").strip().lower() != "chunked":
            self.reply(400, "Bad Request: the length of the body is unknown")
            return None
        read = bytearray()
        while True:
            size = _hex(self.rfile.readline(LINE_BYTES_MAX).partition(b";")[0].strip())
            if size == 0:
                return bytes(read) if self._trailers() else None
            if size is not None and len(read) + size > self.body_max:
                self.refuse_large()
                return None
            some = self.rfile.read(size) if size is not None else b""
            if size is None or len(some) < size or self.rfile.read(2) != b"\r\n":
                self.reply(400, "Bad Request: a chunk has no good size")
                return None
            read += some

    def _trailers(self) -> bool:
        """What may follow the last chunk, up to an empty line; nobody wants it."""
        for _ in range(TRAILERS_MAX):
            if self.rfile.readline(LINE_BYTES_MAX).strip() == b"":
                self._unread = 0
                return True
        self.reply(400, "Bad Request: too much after the last chunk")
        return False

    def refuse_large(self) -> None:
        """Answers a body beyond the bound."""
        self.reply(413, "Payload Too Large")

    def reply(
        self,
        status: int,
        body: str | bytes,
        kind: str = "text/plain; charset=utf-8",
        allow: str = "",
    ) -> None:
        """Answers; `allow` names the verbs that a route has."""
        raw = body.encode() if isinstance(body, str) else body
        # What was not read would be taken for the next request.
        if self._unread:
            self.close_connection = True
        headers = {"Content-Type": kind, "Content-Length": str(len(raw))}
        if allow:
            headers["Allow"] = allow
        if self.close_connection:
            headers["Connection"] = "close"
        # At once, where it is short: of two pieces the second would wait until the first has arrived.
        begin = b"" if self.command == "HEAD" else raw[:PACE_BYTES]
        self._send(answer_head(status, headers) + begin)
        if begin:
            self._send(memoryview(raw)[len(begin) :])

    def _send(self, raw: bytes | memoryview) -> None:
        """All of it, as long as somebody takes it, and not too slowly."""
        end = time.monotonic() + REQUEST_SECONDS + len(raw) / PACE_BYTES
        rest = memoryview(raw)
        while rest:
            self.connection.settimeout(left(end))
            rest = rest[self.connection.send(rest[:PACE_BYTES]) :]

    def reply_json(self, status: int, body: Any) -> None:
        """Answers in JSON."""
        self.reply(status, json.dumps(body), "application/json")
