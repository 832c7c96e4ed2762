"""Routes and inputs of the REST service and of the metadata server: which status each gets, and what it says.

The tables hold for the published package, too. It runs each of them as `python -m`, with aiohttp.
"""

import http.client
import json
import os
import pathlib
import socket
import urllib.parse

import pytest
from conftest import MIB, PATIENCE
from processes import Program, free_ports, start_retrying, until

ALL = ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH")


def call(port, verb, path, body=None, headers=None):
    """Status, body and headers of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(verb, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def start(folder, module, *flags):
    def make():
        [port] = free_ports(1)
        program = Program(folder, module, "--port", str(port), *flags, ports=(port,))
        program.port = port
        return program

    return start_retrying(make)


def serve(folder, master):
    """The REST service over a store with memory of its own."""
    settings = {
        "local_hostname": "localhost",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": 64 * MIB,
        "local_buffer_size": 16 * MIB,
        "protocol": "tcp",
        "device_name": "",
        "master_server_address": master.address,
    }
    (folder / "store.json").write_text(json.dumps(settings))
    module = "mooncake.mooncake_store_service"
    return start(folder, module, "--config", str(folder / "store.json"))


def post(port, route, **body):
    """Status and JSON of an answer."""
    status, said, _ = call(port, "POST", f"/api/{route}", json.dumps(body).encode())
    return status, json.loads(said)


@pytest.fixture(scope="module")
def rest(master, tmp_path_factory):
    with serve(tmp_path_factory.mktemp("rest"), master) as program:
        for key in ("here", "a/b", "ü"):
            body = json.dumps({"key": key, "value": f"value of {key}"}).encode()
            assert call(program.port, "PUT", "/api/put", body)[0] == 200
        yield program.port


@pytest.fixture(scope="module")
def shared():
    """A file of shared memory, by its name."""
    path = pathlib.Path(f"/dev/shm/mooncrate-test-{os.getpid()}")
    path.write_bytes(bytes(16 * MIB))
    yield path.name
    path.unlink()


# ---- REST: which routes there are ------------------------------------------------------------------------

ROUTES = {
    "/api/put": {"PUT"},
    "/api/get/here": {"GET", "HEAD"},
    "/api/exist/here": {"GET", "HEAD"},
    "/api/remove/nobody": {"DELETE"},
    "/api/remove_all": {"DELETE"},
    **{
        f"/api/{name}": {"POST"}
        for name in "mount unmount mount_shm unmount_shm unmount_local_disk reconfigure".split()
    },
}


@pytest.mark.parametrize("path", ROUTES)
def test_other_verbs_of_a_route(rest, path):
    for verb in ALL:
        if verb in ROUTES[path]:
            continue
        status, body, headers = call(rest, verb, path)
        assert (verb, status, body) == (verb, 405, b"" if verb == "HEAD" else b"405: Method Not Allowed")
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert {word.strip() for word in headers["Allow"].split(",")} == ROUTES[path]


NOWHERE = """/ /api /api/ /nope /health /metrics /api/get /api/get/ /api/get// /api/get/a/b /api/get/here/ /api/exist
    /api/exist/a/b /api/remove /api/remove/a/b /api/put/ /api/put/k /api/remove_all/ /api//get/here
    //api/get/here ///api/get/here //localhost/api/get/here""".split()


@pytest.mark.parametrize("path", NOWHERE)
def test_paths_that_are_no_route(rest, path):
    for verb in ALL:
        status, body, headers = call(rest, verb, path)
        assert (verb, status, body) == (verb, 404, b"" if verb == "HEAD" else b"404: Not Found")
        assert headers["Content-Type"] == "text/plain; charset=utf-8"


def test_a_verb_that_is_none(rest):
    assert call(rest, "FOO", "/api/get/here")[0] == 400


@pytest.mark.parametrize(
    "verb, path, status, body",
    [
        ("GET", "/api/get/here", 200, b"value of here"),
        ("GET", "/api/get/here?x=1", 200, b"value of here"),
        ("GET", "/api/get/h%65re", 200, b"value of here"),
        ("GET", "/api/get/a%2Fb", 200, b"value of a/b"),
        ("GET", "/api/get/%C3%BC", 200, "value of ü".encode()),
        ("HEAD", "/api/get/here", 200, b""),
        ("GET", "/api/get/nobody", 404, {"error": "Key not found"}),
        ("GET", "/api/get/%zz", 404, {"error": "Key not found"}),
        ("HEAD", "/api/get/nobody", 404, b""),
        ("GET", "/api/exist/here", 200, {"exists": True}),
        ("GET", "/api/exist/a%2Fb", 200, {"exists": True}),
        ("GET", "/api/exist/nobody", 200, {"exists": False}),
        ("HEAD", "/api/exist/nobody", 200, b""),
        ("DELETE", "/api/remove/nobody", 500, {"error": "Remove operation failed"}),
    ],
)
def test_keys_in_a_path(rest, verb, path, status, body):
    found, said, headers = call(rest, verb, path)
    plain = isinstance(body, bytes)
    assert (found, said if plain else json.loads(said)) == (status, body)
    kind = "application/octet-stream" if status == 200 and plain and "get" in path else "application/json"
    assert headers["Content-Type"].split(";")[0] == kind


# ---- REST: what a body may be ----------------------------------------------------------------------------

WITH_BODY = {path: next(iter(verbs)) for path, verbs in ROUTES.items() if verbs in ({"PUT"}, {"POST"})}


@pytest.mark.parametrize("path", WITH_BODY)
@pytest.mark.parametrize("body", [None, b"", b"{", b"\xff", b"[]", b"null", b"1", b'"x"'], ids=repr)
def test_bodies_that_are_no_object(rest, path, body):
    status, said, _ = call(rest, WITH_BODY[path], path, body)
    # One call tells it apart, the others answer what broke.
    assert status == (400 if path.endswith("local_disk") else 500)
    assert [*json.loads(said)] == ["error"]


@pytest.mark.parametrize(
    "encoded, kind, status",
    [
        ("utf-8", None, 200),
        ("utf-8", "application/json; charset=utf-8", 200),
        ("latin-1", "application/json; charset=latin-1", 200),
        ("latin-1", 'text/plain; Charset="ISO-8859-1"', 200),
        ("latin-1", "application/json; version=1; charset=latin-1; charset=utf-8", 200),
        ("utf-16", "application/json; charset=utf-16", 200),
        ("utf-8-sig", "application/json; charset=utf-8-sig", 200),
        ("utf-8", "application/json; charset=", 200),
        ("utf-8", "charset=latin-1", 200),
        # What is not said is not guessed.
        ("latin-1", None, 500),
        ("utf-16", None, 500),
        ("utf-8-sig", None, 500),
        ("utf-8", "application/json; charset=ascii", 500),
        ("utf-8", "application/json; charset=nope", 500),
        ("utf-8", "application/json; charset=hex", 500),
        ("utf-8", "application/json; charset=punycode", 500),
    ],
    ids=str,
)
def test_bodies_are_in_the_charset_that_is_named(rest, encoded, kind, status):
    key = f"charset of {encoded} {kind}"
    body = json.dumps({"key": key, "value": "\xe4"}, ensure_ascii=False).encode(encoded)
    found, said, _ = call(rest, "PUT", "/api/put", body, {"Content-Type": kind} if kind else {})
    assert (found, [*json.loads(said)]) == (status, ["status" if status == 200 else "error"])
    read = call(rest, "GET", f"/api/get/{urllib.parse.quote(key, safe='')}")
    assert read[:2] == (200, "\xe4".encode()) if status == 200 else read[0] == 404


PUT, IDS, SHM = "Missing key or value", "Missing segment_ids", "Missing or invalid name or size"
SIZE, MODE = "Invalid size, must be a positive integer", "Invalid mode. Use 'decode' or 'prefill'"
DECODE = "Missing path or size for decode mode"
GRACE = "Invalid grace_period_seconds, must be a non-negative integer no greater than 3600"
ONE = {"segment_ids": ["1-2"]}
FILE = {"name": "NAME", "size": 16 * MIB}
PATH = {"mode": "decode", "path": "/dev/shm/NAME", "size": 16 * MIB}

# Route, body, status, and the text of the error where it is told; NAME is the file of shared memory.
BODIES = [
    ("put", {}, 400, PUT),
    ("put", {"key": "k"}, 400, PUT),
    ("put", {"value": "v"}, 400, PUT),
    ("put", {"key": "", "value": "v"}, 400, PUT),
    ("put", {"key": 0, "value": "v"}, 400, PUT),
    ("put", {"key": "k", "value": None}, 400, PUT),
    ("put", {"key": "k", "value": ""}, 500, "PUT operation failed"),
    ("put", {"key": "k", "value": 1}, 500, None),
    ("put", {"key": "k", "value": True}, 500, None),
    ("put", {"key": "k", "value": ["a"]}, 500, None),
    ("put", {"key": "k", "value": {"a": 1}}, 500, None),
    ("put", {"key": "k", "value": "\ud800"}, 500, None),
    ("put", {"key": 1, "value": "v"}, 500, None),
    ("put", {"key": ["k"], "value": "v"}, 500, None),
    ("put", {"key": True, "value": "v"}, 500, None),
    ("put", {"key": "\ud800", "value": "v"}, 500, None),
    ("put", {"key": "more", "value": "v", "extra": 1}, 200, None),
    ("put", {"key": "here", "value": "other"}, 200, None),
    ("mount", {}, 400, SIZE),
    ("mount", {"size": 0}, 400, SIZE),
    ("mount", {"size": -1}, 400, SIZE),
    ("mount", {"size": "16777216"}, 400, SIZE),
    ("mount", {"size": True}, 400, SIZE),
    ("mount", {"size": 1.5}, 400, SIZE),
    ("mount", {"size": None}, 400, SIZE),
    ("mount", {"size": 1 << 62}, 500, None),
    ("mount", {"size": 1 << 70}, 500, None),
    ("mount", {"size": 16 * MIB, "protocol": 5}, 500, None),
    ("mount", {"size": 16 * MIB, "location": 5}, 500, None),
    *[
        (route, body, status, text if route == "unmount" or status == 400 else None)
        for route in ("unmount", "unmount_shm")
        for body, status, text in [
            ({}, 400, IDS),
            ({"segment_ids": []}, 400, IDS),
            ({"segment_ids": None}, 400, IDS),
            ({"segment_ids": ""}, 500, "Unmount and free failed, ret=-1"),
            ({"segment_ids": "junk"}, 500, "Unmount and free failed, ret=-1"),
            ({"segment_ids": ["junk"]}, 500, "Unmount and free failed, ret=-1"),
            (ONE, 500, "Unmount and free failed, ret=-1"),
            ({"segment_ids": 5}, 500, None),
            ({"segment_ids": [5]}, 500, None),
            ({"segment_ids": {"a": 1}}, 500, None),
            ({**ONE, "grace_period_seconds": -1}, 500, None),
            ({**ONE, "grace_period_seconds": "x"}, 500, None),
            ({**ONE, "grace_period_seconds": 1.5}, 500, None),
        ]
    ],
    ("mount_shm", {}, 400, SHM),
    ("mount_shm", {"name": "NAME"}, 400, SHM),
    ("mount_shm", {"size": 16 * MIB}, 400, SHM),
    *[("mount_shm", {"name": name, "size": 1}, 400, SHM) for name in ("", "/", "..", "a/b", 5)],
    ("mount_shm", {"name": "no-such-file-there", "size": 16 * MIB}, 500, "Mount failed, ret=-1"),
    ("mount_shm", {**FILE, "size": 32 * MIB}, 500, "Mount failed, ret=-1"),
    ("mount_shm", {**FILE, "size": -1}, 500, None),
    ("mount_shm", {**FILE, "size": "x"}, 500, None),
    ("mount_shm", {**FILE, "size": 1.5}, 500, None),
    ("mount_shm", {**FILE, "size": 0}, 200, None),
    ("mount_shm", {"name": "no-such-file-there", "size": 0}, 500, "Mount failed, ret=-1"),
    ("mount_shm", {**FILE, "size": 0, "offset": 5}, 500, "Mount failed, ret=-1"),
    ("mount_shm", {**FILE, "size": 0, "offset": 32 * MIB}, 500, "Mount failed, ret=-1"),
    ("mount_shm", {**FILE, "offset": 5}, 500, "Mount failed, ret=-1"),
    ("mount_shm", {**FILE, "offset": -1}, 500, None),
    ("mount_shm", {**FILE, "offset": "x"}, 500, None),
    ("mount_shm", {**FILE, "protocol": 5}, 500, None),
    ("mount_shm", {**FILE, "location": 5}, 500, None),
    ("reconfigure", {}, 400, MODE),
    ("reconfigure", {"mode": "x"}, 400, MODE),
    ("reconfigure", {"mode": 5}, 500, None),
    ("reconfigure", {"mode": None}, 500, None),
    ("reconfigure", {"mode": "DECODE"}, 400, DECODE),
    ("reconfigure", {"mode": "decode", "size": 1}, 400, DECODE),
    ("reconfigure", {**PATH, "size": None}, 400, DECODE),
    ("reconfigure", {**PATH, "path": ""}, 400, DECODE),
    ("reconfigure", {**PATH, "path": 5}, 500, None),
    ("reconfigure", {**PATH, "path": "/nope"}, 500, "Mount failed, ret=-1; rolled back to prefill"),
    *[
        ("reconfigure", {**PATH, "path": path, "size": 0}, 500, "Mount failed, ret=-1; rolled back to prefill")
        for path in ("/nope", "/dev/shm")
    ],
    ("reconfigure", {**PATH, "size": "x"}, 500, None),
    ("reconfigure", {**PATH, "size": -5}, 500, None),
    ("reconfigure", {**PATH, "offset": "x"}, 500, None),
    ("reconfigure", {"mode": "prefill"}, 200, None),
    ("reconfigure", {"mode": "PREFILL", "more": 1}, 200, None),
    *[
        ("unmount_local_disk", {"grace_period_seconds": bad}, 400, GRACE)
        for bad in (-1, "x", 1.5, True, 3601, None)
    ],
    ("unmount_local_disk", {}, 200, None),
    ("unmount_local_disk", {"grace_period_seconds": 0}, 200, None),
]


@pytest.mark.parametrize("route, body, status, text", BODIES, ids=lambda part: str(part)[:60])
def test_what_a_body_says(rest, shared, route, body, status, text):
    raw = json.dumps(body).replace("NAME", shared).encode()
    path = f"/api/{route}"
    found, said, headers = call(rest, WITH_BODY[path], path, raw)
    said = json.loads(said)
    assert found == status, said
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert said["status"] == "success" if status == 200 else isinstance(said["error"], str)
    if text is not None:
        assert said["error"] == text


def test_memory_comes_and_goes(rest, shared):
    status, said = post(rest, "mount", size=MIB, protocol="carrier", more=1)
    assert status == 200 and said["allocated_size"] == 16 * MIB
    [one] = said["segment_ids"]
    assert post(rest, "unmount", segment_ids=one) == (200, {"status": "success"})
    assert post(rest, "unmount", segment_ids=one)[0] == 500
    status, said = post(rest, "mount_shm", name=f"/{shared}", size=16 * MIB)
    assert status == 200
    ids = said["segment_ids"]
    told = {"error": "Unmount failed for one or more segments", "failed_segment_ids": ["1-2"]}
    assert post(rest, "unmount_shm", segment_ids=["1-2", *ids]) == (500, told)
    assert post(rest, "unmount_shm", segment_ids=ids)[0] == 500
    file = {"path": f"/dev/shm/{shared}", "size": 16 * MIB}
    status, said = post(rest, "reconfigure", mode="Decode", **file)
    assert (status, said["mode"], len(said["segment_ids"])) == (200, "decode", 1)
    told = {"error": "Mount failed, ret=-1; keeping previous decode segments", "mode": "decode"}
    for size in (0, 16 * MIB):
        assert post(rest, "reconfigure", mode="decode", path="/nope", size=size) == (500, told)
    assert post(rest, "reconfigure", mode="prefill") == (200, {"status": "success", "mode": "prefill"})


def test_memory_that_was_unmounted_elsewhere(rest, shared):
    """The way back to prefill was closed for ever, and a new decode unmounted its own memory: its id was the old
    one's. Upstream refuses the first unmount, and is not stuck, either."""
    file = {"path": f"/dev/shm/{shared}", "size": 16 * MIB}
    status, old = post(rest, "reconfigure", mode="decode", **file)
    assert status == 200
    post(rest, "unmount", segment_ids=old["segment_ids"])
    status, new = post(rest, "reconfigure", mode="decode", **file)
    assert status == 200 and {*new["segment_ids"]}.isdisjoint(old["segment_ids"])
    assert post(rest, "unmount_shm", segment_ids=new["segment_ids"])[0] == 200
    post(rest, "unmount", segment_ids=post(rest, "reconfigure", mode="decode", **file)[1]["segment_ids"])
    assert post(rest, "reconfigure", mode="prefill") == (200, {"status": "success", "mode": "prefill"})


def test_prefill_after_an_unmount_that_the_master_did_not_hear(own_master, tmp_path, shared):
    """The segment was forgotten before it was unmounted: each later call found an id that nobody knew."""
    with serve(tmp_path, own_master) as program:
        file = {"path": f"/dev/shm/{shared}", "size": 16 * MIB}
        assert post(program.port, "reconfigure", mode="decode", **file)[0] == 200
        own_master.kill()
        assert post(program.port, "reconfigure", mode="prefill")[0] == 500
        own_master.start()
        until("prefill", lambda: post(program.port, "reconfigure", mode="prefill")[0] == 200)


def test_a_body_that_is_too_large_is_answered(rest):
    """A caller sends all of it before it looks for an answer, and must find one then."""
    large = b'{"key": "k", "value": "' + b"x" * (100 * MIB) + b'"}'
    status, said, _ = call(rest, "PUT", "/api/put", large)
    assert (status, json.loads(said)) == (500, {"error": "Request Entity Too Large"})
    assert call(rest, "GET", "/api/exist/k")[1] == b'{"exists": false}'


@pytest.mark.parametrize(
    "raw, status",
    [
        (b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + b'{"key": "k", "va' + b"\r\nA;x=y\r\n" + b'lue": "v"}', None),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"Content-Length: x\r\n\r\n{}", 400),
        (b"Content-Length: -1\r\n\r\n{}", 400),
    ],
    ids=["chunks", "no size", "no number", "negative"],
)
def test_bodies_without_a_length(rest, raw, status):
    raw = raw if status else raw + b"\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", rest), timeout=PATIENCE) as connection:
        connection.sendall(b"PUT /api/put HTTP/1.1\r\nHost: localhost\r\n" + raw)
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 %d " % (status or 200)) or answer.startswith(b"HTTP/1.0 400 ")


# ---- metadata --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    with start(tmp_path_factory.mktemp("metadata"), "mooncake.http_metadata_server") as program:
        yield program.port


ABSENT = [f"/metadata{query}" for query in ("", "?", "?key=", "?key=%20", "?KEY=k", "?other=1", "?key")]
ELSEWHERE = ["/", "/health", "/metadata/", "/metadata/k", "/metadata/?key=k", "//metadata", "//metadata?key=k"]


@pytest.mark.parametrize("verb", ALL)
def test_metadata_without_a_key_and_elsewhere(metadata, verb):
    for paths, status, text, kind in (
        (ABSENT, 400, b"metadata key is required", "application/json; charset=utf-8"),
        (ELSEWHERE, 404, b"404: Not Found", "text/plain; charset=utf-8"),
    ):
        for path in paths:
            found, said, headers = call(metadata, verb, path)
            wanted = (path, status, b"" if verb == "HEAD" else text)
            assert (path, found, said) == wanted and headers["Content-Type"] == kind


@pytest.mark.parametrize("verb", ["POST", "HEAD", "OPTIONS", "PATCH"])
def test_metadata_has_three_verbs(metadata, verb):
    status, said, headers = call(metadata, verb, "/metadata?key=k")
    assert (status, said) == (405, b"" if verb == "HEAD" else b"Method not allowed")
    assert headers["Content-Type"] == "application/json; charset=utf-8"


def test_metadata_and_a_verb_that_is_none(metadata):
    assert call(metadata, "FOO", "/metadata?key=k")[0] == 400


# In order: each row sees what the rows before it left.
STEPS = [
    ("GET", "k", None, 404, b"metadata not found"),
    ("DELETE", "k", None, 404, b"metadata not found"),
    ("PUT", "k", b"\x00\xff", 200, b"metadata updated"),
    ("GET", "k", None, 200, b"\x00\xff"),
    ("GET", "%20k%20", None, 200, b"\x00\xff"),
    ("PUT", "k", b"", 200, b"metadata updated"),
    ("GET", "k", None, 200, b""),
    ("DELETE", "k", None, 200, b"metadata deleted"),
    ("GET", "k", None, 404, b"metadata not found"),
    ("PUT", "a%2Bb", b"plus", 200, b"metadata updated"),
    ("GET", "a+b", None, 404, b"metadata not found"),
    ("GET", "a%2Bb", None, 200, b"plus"),
    ("PUT", "a%20b", b"space", 200, b"metadata updated"),
    ("GET", "a+b", None, 200, b"space"),
    ("GET", "%zz", None, 404, b"metadata not found"),
    ("PUT", "%ff", b"x", 200, b"metadata updated"),
    ("GET", "%ff", None, 200, b"x"),
    ("PUT", "first&key=second", b"1", 200, b"metadata updated"),
    ("GET", "first", None, 200, b"1"),
    ("GET", "second", None, 404, b"metadata not found"),
    ("PUT", "mooncake/rpc_meta/a", b"1", 200, b"metadata updated"),
    ("PUT", "mooncake/rpc_meta/a", b"2", 400, b"Duplicate rpc_meta key not allowed"),
    ("GET", "mooncake/rpc_meta/a", None, 200, b"1"),
    ("PUT", "large", b"x" * MIB, 200, b"metadata updated"),
    ("PUT", "long" + "x" * 8000, b"x", 200, b"metadata updated"),
]


def test_metadata_step_by_step(metadata):
    for verb, key, body, status, text in STEPS:
        found, said, headers = call(metadata, verb, f"/metadata?key={key}", body)
        assert (verb, key, found, said) == (verb, key, status, text)
        assert headers["Content-Type"].split(";")[0] == "application/json"


def test_metadata_that_is_too_large_is_answered(metadata):
    for size in (MIB + 1, 2 * MIB):
        assert call(metadata, "PUT", "/metadata?key=large", b"x" * size)[0] == 413
    assert call(metadata, "PUT", "/metadata?key=" + "x" * 9000, b"x")[0] == 400
