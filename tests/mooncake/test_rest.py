"""The REST service, as a real process over a real master."""

import http.client
import json
import urllib.parse

import mooncrate
import pytest
from processes import (
    Cluster,
    Program,
    ask,
    ask_json,
    ended,
    free_ports,
    listeners,
    start_retrying,
    until,
)

MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("rest"), "--default_kv_lease_ttl=1") as cluster:
        yield cluster


def config(cluster, **more):
    return {
        "local_hostname": "localhost",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": 64 * MIB,
        "local_buffer_size": 16 * MIB,
        "protocol": "tcp",
        "device_name": "",
        "master_server_address": cluster.address,
        **more,
    }


def serve(cluster, *flags, **settings):
    path = cluster.folder / "store.json"
    path.write_text(json.dumps(config(cluster, **settings)))

    def make():
        [port] = free_ports(1)
        where = ("--config", str(path), "--port", str(port))
        program = Program(cluster.folder, "mc_store_rest_server", *where, *flags, ports=(port,))
        program.port = port
        return program

    return start_retrying(make)


@pytest.fixture(scope="module")
def rest(cluster):
    with serve(cluster) as program:
        yield program.port


def put(port, key, value):
    return ask_json(port, "/api/put", "PUT", {"key": key, "value": value})


def test_values_are_put_found_and_removed(rest):
    for key in ("plain", "with/slash and ünicode"):
        path = urllib.parse.quote(key, safe="")
        assert ask_json(rest, f"/api/exist/{path}") == (200, {"exists": False})
        assert ask_json(rest, f"/api/get/{path}") == (404, {"error": "Key not found"})
        assert put(rest, key, "välue") == (200, {"status": "success"})
        assert ask_json(rest, f"/api/exist/{path}") == (200, {"exists": True})
        assert ask(rest, f"/api/get/{path}") == (200, "välue".encode())
    assert ask_json(rest, "/api/remove/nobody", "DELETE")[0] == 500


def test_one_key_or_all_are_removed(rest):
    for key in ("gone-1", "gone-2"):
        assert put(rest, key, "v")[0] == 200
    assert ask_json(rest, "/api/remove/gone-1", "DELETE") == (200, {"status": "success"})
    assert ask_json(rest, "/api/exist/gone-1") == (200, {"exists": False})
    status, body = ask_json(rest, "/api/remove_all", "DELETE")
    assert status == 200 and body["status"].startswith("success removed ")
    assert ask_json(rest, "/api/exist/gone-2") == (200, {"exists": False})


def test_a_value_of_no_bytes_is_a_value(cluster, rest):
    """It was 500: the store's own `get` says the same of a failure. Only native clients store such values."""
    with mooncrate.Store(master=cluster.address) as native:
        native.put("nothing", b"")
    assert ask_json(rest, "/api/exist/nothing") == (200, {"exists": True})
    assert ask(rest, "/api/get/nothing") == (200, b"")
    assert ask(rest, "/api/get/nothing", "HEAD") == (200, b"")


def test_bodies_are_bounded(rest):
    """It is known from the head, and told before anything of the body is there."""
    connection = http.client.HTTPConnection("127.0.0.1", rest, timeout=30)
    connection.putrequest("PUT", "/api/put")
    connection.putheader("Content-Length", str(101 << 20))
    connection.endheaders()
    assert connection.getresponse().status == 500
    connection.close()


def test_pages_of_other_sites_get_nothing(rest):
    put(rest, "secret", "v")
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert ask(rest, "/api/get/secret", headers=headers)[0] == 403


def test_memory_is_mounted_and_unmounted(cluster, rest):
    def capacity():
        rows = ask_json(cluster.admin, "/get_segments_detail")[1]["segments"]
        return sum(row["size_bytes"] for row in rows)

    before = capacity()
    assert ask_json(rest, "/api/mount", "POST", {"size": 0})[0] == 400
    status, body = ask_json(rest, "/api/mount", "POST", {"size": 32 * MIB})
    assert status == 200 and body["allocated_size"] >= 32 * MIB
    assert capacity() >= before + 32 * MIB
    assert ask_json(rest, "/api/unmount", "POST", {}) == (400, {"error": "Missing segment_ids"})
    ids = body["segment_ids"]
    assert ask_json(rest, "/api/unmount", "POST", {"segment_ids": ids})[0] == 200
    until("it is gone", lambda: capacity() == before)
    assert ask_json(rest, "/api/unmount", "POST", {"segment_ids": ["1-2"]})[0] == 500
    assert ask_json(rest, "/api/unmount_local_disk", "POST", {})[0] == 200


def test_names_of_shared_memory_are_no_paths(rest):
    for name in ("", "/", "..", "a/b", "/../etc/passwd", 7):
        assert ask_json(rest, "/api/mount_shm", "POST", {"name": name, "size": MIB})[0] == 400
    assert ask_json(rest, "/api/reconfigure", "POST", {"mode": "fast"})[0] == 400
    assert ask_json(rest, "/api/reconfigure", "POST", {"mode": "decode"})[0] == 400
    answer = ask_json(rest, "/api/reconfigure", "POST", {"mode": "prefill"})
    assert answer == (200, {"status": "success", "mode": "prefill"})


def test_settings_come_from_the_command_line_too(cluster):
    name = f"localhost:{free_ports(1)[0]}"
    with serve(
        cluster, "-D", f"local_hostname={name}", "-Dglobal_segment_size=33554432"
    ) as program:
        assert listeners(program.port) == {program.process.pid}
        # It takes its port first, and sets its store up then: a taken port is found out at once.
        until(
            "its segment",
            lambda: name in ask(cluster.admin, "/get_all_segments")[1].decode().splitlines(),
        )
    assert name not in ask(cluster.admin, "/get_all_segments")[1].decode().splitlines()


def test_without_a_master_it_ends_after_its_time(cluster):
    path = cluster.folder / "lost.json"
    [port, nobody] = free_ports(2)
    path.write_text(json.dumps(config(cluster, master_server_address=f"127.0.0.1:{nobody}")))
    flags = ("--config", str(path), "--port", str(port), "--max-wait-time", "0.5")
    code, said = ended(cluster.folder, "mc_store_rest_server", *flags)
    assert code == 1 and "could not be set up" in said
    code, said = ended(cluster.folder, "mc_store_rest_server", "--config", "/no/such/file")
    assert code == 1 and "cannot be used" in said


def test_the_engine_can_be_imported_and_says_that_it_is_none():
    from mooncake import engine

    assert engine.SUPPORT_CUDA is False
    assert int(engine.TransferOpcode.Read) == 0 and int(engine.TransferOpcode.Write) == 1
    assert engine.TransferNotify("name", "text").msg == "text"
    with pytest.raises(NotImplementedError, match="no transfer engine"):
        engine.TransferEngine()
