"""The metadata server: the script's and the one inside the master, by the same rules."""

import http.client
import logging
import threading

import pytest
from mooncake import http_metadata_server
from mooncake.http_metadata_server import KVBootstrapServer, KVPoll
from processes import Cluster, Program, ask, free_ports, start_retrying


@pytest.fixture(scope="module", params=["script", "master"])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("metadata")
    if request.param == "script":

        def make():
            [port] = free_ports(1)
            flags = ("--port", str(port))
            return Program(folder, "mooncake_http_metadata_server", *flags, ports=(port,))

        with start_retrying(make) as program:
            yield request.param, program.ports[0]
        return
    [port] = free_ports(1)
    flags = ("--enable_http_metadata_server=true", f"--http_metadata_server_port={port}")
    with Cluster(folder, *flags) as cluster:
        cluster.master.wait_for(port)
        yield request.param, port


def key(name):
    return f"/metadata?key={name}"


@pytest.mark.check(59)
def test_bytes_are_kept_replaced_and_dropped(server):
    _, port = server
    where = key("mooncake/ram/localhost:12345")
    assert ask(port, where) == (404, b"metadata not found")
    assert ask(port, where, "DELETE") == (404, b"metadata not found")
    for body in (b'{"a": 1}', b"\x00\xff any bytes", b""):
        assert ask(port, where, "PUT", body) == (200, b"metadata updated")
        assert ask(port, where) == (200, body)
    assert ask(port, where, "DELETE") == (200, b"metadata deleted")
    assert ask(port, where) == (404, b"metadata not found")


@pytest.mark.check(59)
def test_what_is_stored_is_called_json(server):
    _, port = server
    ask(port, key("json"), "PUT", b"{}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", key("json"))
    assert connection.getresponse().getheader("Content-Type") == "application/json"
    connection.close()


@pytest.mark.check(59)
def test_an_rpc_meta_key_has_one_writer(server):
    _, port = server
    where = key("mooncake/rpc_meta/a")
    assert ask(port, where, "PUT", b"1") == (200, b"metadata updated")
    assert ask(port, where, "PUT", b"1") == (200, b"metadata unchanged")
    assert ask(port, where, "PUT", b"2") == (400, b"Duplicate rpc_meta key not allowed")
    assert ask(port, where) == (200, b"1")
    assert ask(port, where, "DELETE") == (200, b"metadata deleted")
    assert ask(port, where, "PUT", b"2") == (200, b"metadata updated")
    assert ask(port, where, "DELETE") == (200, b"metadata deleted")


@pytest.mark.check(59)
def test_keys_are_decoded(server):
    _, port = server
    assert ask(port, key("a%2Fb%20c"), "PUT", b"v") == (200, b"metadata updated")
    assert ask(port, key("a/b+c")) == (200, b"v")


@pytest.mark.check(59)
def test_a_request_without_key_or_with_another_verb(server):
    kind, port = server
    missing = b"metadata key is required" if kind == "script" else b"Missing key parameter"
    for path in ("/metadata", "/metadata?key=", "/metadata?other=1"):
        assert ask(port, path) == (400, missing)
    wrong = (405, b"Method not allowed") if kind == "script" else (404, b"404 Not Found")
    assert ask(port, key("k"), "POST", b"x") == wrong
    assert ask(port, "/nowhere")[0] == 404
    if kind == "master":
        assert ask(port, "/health") == (200, b"OK")


@pytest.mark.check(59)
def test_what_is_kept_is_bounded(server):
    _, port = server
    large = b"x" * ((1 << 20) + 1)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("PUT", key("large"))
    connection.putheader("Content-Length", str(len(large)))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert ask(port, key("large"))[0] == 404
    assert ask(port, key("x" * 9000), "PUT", b"v")[0] == 400


def test_pages_of_other_sites_get_nothing(server):
    _, port = server
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert ask(port, key("k"), "GET", headers=headers)[0] == 403


def test_the_class_runs_in_this_process():
    server = KVBootstrapServer(0, "127.0.0.1")
    assert server.poll() == KVPoll.Failed
    server.close()
    thread = server.run()
    assert isinstance(thread, threading.Thread) and server.poll() == KVPoll.Success
    assert ask(server.port, key("k"), "PUT", b"v") == (200, b"metadata updated")
    with pytest.raises(RuntimeError, match="already"):
        server.run()
    # Held, so that it is `close` that gives the port back, and not the end of the object.
    inner = server._server
    server.close()
    server.close()
    assert inner.socket.fileno() == -1
    assert server.poll() == KVPoll.Failed
    # The port is free, and nothing is left of what was kept.
    again = KVBootstrapServer(server.port, "127.0.0.1")
    again.run()
    assert ask(again.port, key("k"))[0] == 404
    again.close()


def test_everywhere_means_this_machine_unless_the_operator_says_otherwise(caplog, monkeypatch):
    monkeypatch.delenv("MOONCRATE_INSECURE_LISTEN", raising=False)
    server = KVBootstrapServer(0)
    with caplog.at_level(logging.WARNING):
        server.run()
    assert server._server.server_address[0] == "127.0.0.1"
    assert "MOONCRATE_INSECURE_LISTEN" in caplog.text
    server.close()
    with pytest.raises(http_metadata_server.NotOpen, match="MOONCRATE_INSECURE_LISTEN"):
        KVBootstrapServer(0, "192.0.2.1").run()


def test_a_full_server_says_so(monkeypatch):
    monkeypatch.setattr(http_metadata_server, "TOTAL_BYTES_MAX", 1000)
    server = KVBootstrapServer(0, "127.0.0.1")
    server.run()
    assert ask(server.port, key("a"), "PUT", b"x" * 500)[0] == 200
    assert ask(server.port, key("b"), "PUT", b"x" * 500)[0] == 507
    assert ask(server.port, key("a"), "PUT", b"")[0] == 200
    assert ask(server.port, key("b"), "PUT", b"x" * 500)[0] == 200
    server.close()


def test_a_signal_at_any_moment_ends_the_script(tmp_path):
    """A handler of Python's does not run while its thread waits for a lock, if the signal came a moment
    before that: the script then never ended. So signals come as soon as the port is open, many times."""
    for _ in range(12):

        def make():
            [port] = free_ports(1)
            flags = ("--port", str(port))
            return Program(tmp_path, "mooncake_http_metadata_server", *flags, ports=(port,))

        start_retrying(make).stop()
