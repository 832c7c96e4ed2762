"""What the HTTP servers of the drop-in do with callers that are slow, many, or write odd requests."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from conftest import PATIENCE
from mooncake import _http, _request
from mooncake.http_metadata_server import KVBootstrapServer
from mooncake.mooncake_store_service import MooncakeStoreService, _Handler
from processes import Cluster, ask


@pytest.fixture
def metadata():
    server = KVBootstrapServer(0, "127.0.0.1")
    server.run()
    yield server.port
    server.close()


@pytest.fixture
def rest(store, monkeypatch):
    """The routes of the REST server over a store of this process."""
    monkeypatch.setattr(MooncakeStoreService, "__init__", lambda self: None)
    service = MooncakeStoreService()
    service.store = store
    server = _http.Server("127.0.0.1", 0, type("Bound", (_Handler,), {"service": service}))
    server.start("test-rest")
    yield server.port
    server.close()


def say(port, raw):
    """Sends bytes and closes that way; all that is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            return answer.read()


def status(answer):
    return int(answer.split()[1]) if answer else None


# ---- slow callers ----------------------------------------------------------------------------------------

HEAD = b"PUT /metadata?key=k HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "first, answer",
    [(b"GET /", b""), (HEAD + b"X: ", b""), (HEAD + b"Content-Length: 1000000\r\n\r\n", b"HTTP/1.1 408 ")],
    ids=["line", "headers", "body"],
)
def test_a_byte_now_and_then_does_not_keep_a_connection(metadata, monkeypatch, first, answer):
    """Each byte was waited for anew, so 64 such callers kept everybody else away for days."""
    monkeypatch.setattr(_http, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(_http, "PACE_BYTES", 1 << 30)
    end = time.monotonic() + PATIENCE
    with socket.create_connection(("127.0.0.1", metadata), timeout=0.01) as connection:
        connection.sendall(first)
        heard = b""
        while time.monotonic() < end:
            try:
                connection.sendall(b"x")
                some = connection.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                break
            if not some:
                break
            heard += some
        else:
            pytest.fail("it is served still")
    assert heard.startswith(answer)
    assert ask(metadata, "/metadata?key=k")[0] == 404


def test_a_slow_reader_has_time_for_each_piece(metadata, monkeypatch):
    """The time for silence was counted for the whole answer, and large ones were cut."""
    value, asked = bytes(1 << 20), []
    assert ask(metadata, "/metadata?key=large", "PUT", value)[0] == 200
    plain = _http.left
    monkeypatch.setattr(_http, "left", lambda end: asked.append(threading.get_ident()) or plain(end))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", metadata))
        connection.sendall(b"GET /metadata?key=large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        heard = bytearray()
        while some := connection.recv(4096):
            heard += some
    assert heard.endswith(b"\r\n\r\n" + value)
    assert len(asked) > 3


def test_a_caller_that_hangs_up_leaves_no_trace(rest, caplog):
    for body in (b"", b'{"key": "half'):
        assert say(rest, b"PUT /api/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + body) == b""
    assert ask(rest, "/api/get/half")[0] == 404
    assert "Traceback" not in caplog.text


# ---- many callers ----------------------------------------------------------------------------------------


def test_callers_that_come_at_once_are_all_let_in():
    """It listens, and accepts nobody yet: those who wait stand in the queue of the kernel."""
    server = _http.Server("127.0.0.1", 0, _Handler)
    callers = []
    try:
        for _ in range(30):
            callers.append(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE))
    finally:
        for caller in callers:
            caller.close()
        server.close()


def test_thirty_threads_get_what_they_put(rest):
    def work(number):
        connection = http.client.HTTPConnection("127.0.0.1", rest, timeout=PATIENCE)
        for turn in range(5):
            key, value = f"t{number}/{turn}", f"{number}:{turn};" * 3000
            connection.request("PUT", "/api/put", json.dumps({"key": key, "value": value}))
            assert connection.getresponse().read() == b'{"status": "success"}'
            connection.request("GET", f"/api/get/{quote(key, safe='')}")
            assert connection.getresponse().read() == value.encode()
        connection.close()
        return number

    with ThreadPoolExecutor(30) as threads:
        assert [*threads.map(work, range(30))] == [*range(30)]


# ---- odd requests ----------------------------------------------------------------------------------------


def test_a_key_in_a_path_is_exactly_its_bytes(rest, store):
    for key in ("\ufffd", "ü", "a", b"\xfe"):
        assert store.put(key, b"value of " + (key if isinstance(key, bytes) else key.encode())) == 0
    # These two were looked up as the first key, and `#b` was cut off.
    assert ask(rest, "/api/get/%FF")[0] == 404
    assert ask(rest, "/api/get/%FE") == (200, b"value of \xfe")
    plain = b"GET /api/get/%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert status(say(rest, plain % b"a#b")) == 404
    assert say(rest, plain % "ü".encode()).endswith("value of ü".encode())
    assert ask(rest, "/api/remove/%FF", "DELETE")[0] == 500
    assert ask(rest, "/api/get/%EF%BF%BD") == (200, "value of \ufffd".encode())


def test_two_keys_of_metadata_that_are_no_text_are_two(metadata):
    for key in ("%ff", "%fe", "%EF%BF%BD"):
        assert ask(metadata, f"/metadata?key={key}", "PUT", key.encode())[0] == 200
    for key in ("%ff", "%fe", "%EF%BF%BD"):
        assert ask(metadata, f"/metadata?key={key}") == (200, key.encode())
    raw = b"GET /metadata?key=\xff HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert say(metadata, raw).endswith(b"%ff")


def test_requests_that_nobody_should_send_are_answered(metadata):
    ask(metadata, "/metadata?key=k", "PUT", b"v")
    host = b" HTTP/1.1\r\nHost: localhost\r\n"
    for line, more, wanted in (
        (b"GET http://localhost/metadata?key=k", b"", 200),
        (b"GET http://localhost?key=k", b"", 404),
        (b"GET http://[/metadata?key=k", b"", 200),
        (b"GET *", b"", 404),
        (b"GET /metadata?key=k", b"Origin: http://[\r\n", 403),
        (b"PUT /metadata?key=k", b"Content-Length: " + b"9" * 5000 + b"\r\n", 400),
        (b"PUT /metadata?key=k", b"Content-Length: 1\r\nContent-Length: 5\r\n", 200),
        (b"PUT /metadata?key=k", b"Transfer-Encoding: gzip\r\n", 400),
        (b"GET /metadata?key=" + b"x" * 70000, b"", 414),
        (b"GET /metadata?key=k", b"X: " + b"x" * 70000 + b"\r\n", 431),
        (b"GET /metadata?key=k", b"X: y\r\n" * 200, 431),
    ):
        found = status(say(metadata, line + host + more + b"\r\nb"))
        assert (line[:40], more[:40], found) == (line[:40], more[:40], wanted)


def test_a_letter_of_a_path_may_have_a_byte_that_looks_like_a_blank(rest, store):
    """`à` ends with a byte that Python takes for white space, and was cut in two there."""
    assert store.put("à la carte", b"value") == 0
    assert say(rest, "GET /api/get/à%20la%20carte HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).endswith(b"value")


@pytest.mark.parametrize(
    "line",
    [b"Content-Length : 1", b" folded: 1", b"\tfolded", b"no colon", b": no name", b"X: a\rb", b"X: a\0b", b"X\xa0: 1"],
)
def test_a_header_that_two_could_read_in_two_ways_is_refused(metadata, line):
    """What one takes for a header, and the next one for a body, lets a caller speak for another."""
    head = b"PUT /metadata?key=two HTTP/1.1\r\nHost: localhost\r\nX: y\r\n" + line + b"\r\nContent-Length: 1\r\n\r\nb"
    answer = say(metadata, head)
    assert status(answer) == 400 and b"\r\nConnection: close\r\n" in answer
    assert ask(metadata, "/metadata?key=two")[0] == 404


@pytest.mark.parametrize(
    "line, wanted",
    [
        (b"GET /metadata?key=k", 400),
        (b"GET  /metadata HTTP/1.1", 400),
        (b"GET /a\tb HTTP/1.1", 400),
        (b"G(T /metadata HTTP/1.1", 400),
        (b"GET /metadata HTTP/1.x", 400),
        (b"GET /metadata HTTP/11", 400),
        (b"GET /metadata HTTP/1.11", 400),
        (b"GET /metadata FTP/1.1", 400),
        (b"GET /metadata HTTP/2.0", 505),
        (b"PRI * HTTP/2.0", 505),
    ],
)
def test_a_line_that_is_no_request_is_told_so(metadata, line, wanted):
    answer = say(metadata, line + b"\r\n\r\n")
    assert status(answer) == wanted and b"\r\nConnection: close\r\n" in answer


def test_a_connection_lasts_as_long_as_its_caller_wishes(metadata):
    """Requests stand behind each other; those behind the last one are not answered."""
    host, put = b"Host: localhost\r\n", b"PUT /metadata?key=lasts HTTP/1.1\r\n"
    ask(metadata, "/metadata?key=lasts", "PUT", b"v")
    get = b"GET /metadata?key=lasts HTTP/1.%d\r\n" + host
    for first, answers in (
        (get % 1, 2),
        (get % 1 + b"connection: Close\r\n", 1),
        (get % 0, 1),
        (get % 0 + b"Connection: keep-alive\r\n", 2),
        # Some callers end a body with a line of its own.
        (put + host + b"Content-Length: 1\r\n\r\nv", 2),
    ):
        answer = say(metadata, first + b"\r\n" + get % 1 + b"\r\n")
        assert (first, answer.count(b"HTTP/1.1 200 OK\r\n")) == (first, answers)
        assert answer.count(b"\r\nDate: ") == answers


def test_a_caller_is_told_to_go_on_before_it_sends_its_body(metadata):
    with socket.create_connection(("127.0.0.1", metadata), timeout=PATIENCE) as connection:
        connection.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        answer = connection.makefile("rb")
        assert (answer.readline(), answer.readline()) == (b"HTTP/1.1 100 Continue\r\n", b"\r\n")
        connection.sendall(b"body")
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
    assert ask(metadata, "/metadata?key=k") == (200, b"body")


def test_the_head_alone_has_the_length_of_the_body(rest, store):
    assert store.put("head", b"12345") == 0
    answer = say(rest, b"HEAD /api/get/head HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"\r\nContent-Length: 5\r\n" in answer and answer.endswith(b"\r\n\r\n")


def test_the_date_is_that_of_http():
    assert _request._date(784111777.9) == "Sun, 06 Nov 1994 08:49:37 GMT"


# ---- who may connect -------------------------------------------------------------------------------------


def test_a_master_starts_with_the_switches_that_stores_take(tmp_path):
    """It refused to: a 1 is neither true nor false."""
    with Cluster(tmp_path, MOONCRATE_INSECURE_LISTEN="1", MOONCRATE_MEMORY_OVERCOMMIT="True") as cluster:
        assert ask(cluster.admin, "/role") == (200, b"leader")


def test_the_switch_opens_the_servers(monkeypatch):
    monkeypatch.setenv("MOONCRATE_INSECURE_LISTEN", "1")
    assert _http.host_to_bind("0.0.0.0") == "0.0.0.0"
    monkeypatch.setenv("MOONCRATE_INSECURE_LISTEN", "0")
    assert _http.host_to_bind("0.0.0.0") == "127.0.0.1"
