"""The console scripts: their flags, what becomes of them, and the processes that they are."""

import importlib
import json
import os
import pathlib
import signal
import socket
import sys
import tomllib

import mooncrate
import pytest
from conftest import python
from mooncake import _client, _master
from mooncake._flags import BadFlag
from mooncake.store import MooncakeDistributedStore
from processes import (
    SCRIPTS,
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


def master_values(*arguments):
    return _master.parser().parse(arguments)


def master_command(*arguments):
    """The command of ours, as a dict of its flags."""
    command, notes = _master.translate(master_values(*arguments))
    assert command[0] == "master"
    return pairs(command[1:]), notes


def client_command(*arguments):
    command, notes = _client.translate(_client.parser().parse(arguments))
    assert command[0] == "node"
    return pairs(command[1:]), notes


def pairs(words):
    found = {}
    while words:
        name = words.pop(0)
        found[name] = words.pop(0) if words and not words[0].startswith("--") else True
    return found


@pytest.mark.check(60)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--rpc_port=7", "--enable_http_metadata_server=true", "--eviction_ratio=0.2"],
        ["--rpc_port", "7", "--enable_http_metadata_server", "--eviction_ratio", "0.2"],
        ["-rpc_port=7", "-enable_http_metadata_server", "-eviction_ratio", "0.2"],
        ["--rpc-port=7", "--enable-http-metadata-server=1", "--eviction-ratio=0.2"],
    ],
)
def test_flags_have_many_spellings(arguments):
    values = master_values(*arguments)
    assert values["rpc_port"] == 7
    assert values["enable_http_metadata_server"] is True
    assert values["eviction_ratio"] == 0.2
    assert values["metrics_port"] == 9003
    assert values.warnings == []


def test_switches_can_be_turned_off():
    assert master_values("--noenable_metric_reporting")["enable_metric_reporting"] is False
    assert master_values("--enable_ha=false")["enable_ha"] is False
    values = master_values("--enable_http_metadata_server", "false", "--port=9")
    assert (values["enable_http_metadata_server"], values["port"]) == (False, 9)
    assert "after `=`" in values.warnings[0]


@pytest.mark.check(60)
def test_unknown_flags_warn_and_name_the_nearest():
    values = master_values("--defualt_kv_lease_ttl=5", "--frobnicate", "x", "--port=9", "stray")
    assert values["port"] == 9 and not values.was_given("default_kv_lease_ttl")
    assert "--default_kv_lease_ttl" in values.warnings[0]
    assert "--frobnicate" in values.warnings[1] and "stray" in values.warnings[2]
    assert len(values.warnings) == 3


def test_flags_without_effect_say_so_once_and_only_if_they_ask_for_something():
    quiet = master_values("--enable_offload=false", "--logtostderr", "--v=2", "--minloglevel", "0")
    assert quiet.warnings == []
    values = master_values(
        "--offload_force_evict=true", "--quota_bytes=7", "--oplog_dir=/y", "--cxl_path", "z"
    )
    assert len(values.warnings) == 4
    for name, warning in zip(
        ("oplog_dir", "cxl_path", "offload_force_evict", "quota_bytes"), values.warnings
    ):
        assert f"--{name} has no effect" in warning


@pytest.mark.check(60)
@pytest.mark.parametrize(
    "argument, words",
    [
        ("--port=many", "whole number"),
        ("--port=70000", "65535"),
        ("--port=-1", "0 to 65535"),
        ("--eviction_ratio=2", "0 to 1"),
        ("--eviction_high_watermark_ratio=nan", "0 to 1"),
        ("--default_kv_lease_ttl=5 parsecs", "500ms"),
        ("--default_kv_lease_ttl=-1", "500ms"),
        ("--enable_ha=perhaps", "true or false"),
        ("--memory_allocator=magic", "offset, cachelib"),
        ("--allocation_strategy=best", "free_ratio_first"),
        ("--rpc_port", "needs a value"),
    ],
)
def test_bad_values_of_known_flags_stop(argument, words):
    with pytest.raises(BadFlag, match=words):
        master_values(argument)


@pytest.mark.parametrize(
    "text, ms", [("500", 500), ("500ms", 500), ("5s", 5000), ("1m", 60_000), ("1h", 3_600_000)]
)
def test_spans_of_time_have_units(text, ms):
    assert master_values(f"--default_kv_lease_ttl={text}")["default_kv_lease_ttl"] == ms
    assert master_command(f"--default_kv_lease_ttl={text}")[0]["--lease-ttl"] == f"{ms}ms"


def test_a_file_gives_flags_and_the_command_line_wins(tmp_path):
    path = tmp_path / "master.json"
    given = {
        "metrics_port": 77,
        "client_live_ttl_sec": 60,
        "enable_http_metadata_server": True,
        "eviction_ratio": "0.1",
        "frobnicate": 1,
    }
    path.write_text(json.dumps(given))
    values = master_values("--metrics_port=78", f"--config_path={path}")
    assert (values["metrics_port"], values["client_ttl"]) == (78, 60)
    assert values["enable_http_metadata_server"] is True and values["eviction_ratio"] == 0.1
    assert any("frobnicate" in warning for warning in values.warnings)
    path.write_text(json.dumps({"metrics_port": "many"}))
    with pytest.raises(BadFlag, match="metrics_port: many"):
        master_values(f"--config_path={path}")
    path.write_text(json.dumps({"metrics_port": [1]}))
    with pytest.raises(BadFlag, match="a text, a number"):
        master_values(f"--config_path={path}")
    with pytest.raises(BadFlag, match="cannot be read"):
        master_values("--config_path=/no/such/file")


def test_yaml_is_read_where_it_can_be(tmp_path, monkeypatch):
    path = tmp_path / "master.yaml"
    path.write_text("metrics_port: 77\nenable_ha: false\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(BadFlag, match="pip install pyyaml"):
        master_values(f"--config_path={path}")
    monkeypatch.undo()
    try:
        import yaml  # noqa: F401
    except ImportError:
        return
    assert master_values(f"--config_path={path}")["metrics_port"] == 77


def test_a_master_becomes_ours_with_the_usual_ports():
    command, notes = master_command()
    assert command == {
        "--master": "127.0.0.1:50051",
        "--grpc": "off",
        "--admin": "127.0.0.1:9003",
        "--mooncake-http": True,
        "--lease-ttl": "10000ms",
        "--put-timeout": "30s",
        "--evict-above": "90.0%",
        "--evict-to": "85.0%",
        "--placement": "random",
    }
    assert len(notes) == 1 and "for this machine only" in notes[0]
    assert "--token_file" in notes[0] and "--insecure_listen" in notes[0]


def test_a_masters_flags_reach_ours():
    command, notes = master_command(
        "--port=1",
        "--rpc_port=2",
        "--rpc_address=localhost",
        "--metrics_port=3",
        "--eviction_high_watermark_ratio=0.955",
        "--eviction_ratio=0.0001",
        "--allocation_strategy=free_ratio_first",
        "--put_start_discard_timeout_sec=9",
        "--enable_multi_tenants",
        "--enable_http_metadata_server",
        "--http_metadata_server_port=4",
        "--max_threads=1",
        "--state_file=s",
        "--enable_ha",
        "--etcd_endpoints=a:1;b:2",
        "--cluster_id=c",
    )
    assert notes == []
    assert command["--master"] == "localhost:2"
    assert command["--admin"] == "127.0.0.1:3"
    assert (command["--evict-above"], command["--evict-to"]) == ("95.5%", "95.4%")
    assert command["--placement"] == "least-loaded"
    assert command["--put-timeout"] == "9s"
    assert command["--mooncake-quotas"] is True
    assert command["--mooncake-metadata"] == "127.0.0.1:4"
    assert command["--workers"] == "1"
    assert command["--state-file"] == "s"
    assert (command["--etcd"], command["--etcd-prefix"]) == ("http://a:1,http://b:2", "c")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--rpc_address=0.0.0.0"], "MOONCRATE_TOKEN_FILE"),
        (["--rpc_address=0.0.0.0"], "--insecure_listen"),
        (["--metrics_host=0.0.0.0"], "this machine only"),
        (["--enable_http_metadata_server", "--http_metadata_server_host=0.0.0.0"], "insecure"),
        (["--enable_ha"], "etcd_endpoints"),
        (["--enable_ha", "--etcd_endpoints=a:1", "--insecure_listen"], "rpc_address"),
        (["--enable_ha", "--ha_backend_type=redis"], "etcd"),
    ],
)
def test_a_master_stays_closed_without_credentials(arguments, words, monkeypatch):
    monkeypatch.delenv("MOONCRATE_TOKEN_FILE", raising=False)
    with pytest.raises(BadFlag, match=words):
        master_command(*arguments)


def test_credentials_or_the_operators_word_open_a_master(monkeypatch):
    command, notes = master_command("--token_file=t", "--rpc_address=0.0.0.0")
    assert (command["--master"], command["--token-file"], notes) == ("0.0.0.0:50051", "t", [])
    assert master_command("--insecure_listen")[0]["--master"] == "0.0.0.0:50051"
    assert master_command("--insecure_listen")[0]["--insecure-listen"] is True
    monkeypatch.setenv("MOONCRATE_TOKEN_FILE", "t")
    assert master_command()[0]["--master"] == "0.0.0.0:50051"


def test_a_client_becomes_a_node():
    command, notes = client_command("--host=localhost:15000", "--master_server_address=m:1")
    assert command == {
        "--master": "m:1",
        "--data": "localhost:15000",
        "--node-name": "localhost:15000",
        "--segment-size": f"{4 << 30}B",
        "--mooncake-door": "127.0.0.1:50052",
        "--mooncake-tenant": "default",
    }
    assert notes == []
    command, notes = client_command("--insecure_listen")
    assert command["--data"].startswith("127.0.0.1:") and "--host=ADDRESS" in notes[0]
    command, notes = client_command(
        "--global_segment_size", "1.5 GB", "--tenant_id=a", "--enable_http_server"
    )
    assert command["--segment-size"] == f"{3 << 29}B"
    assert (command["--mooncake-tenant"], command["--node-admin"]) == ("a", "127.0.0.1:9300")
    host, port = command["--node-name"].split(":")
    assert host == "127.0.0.1" and 12300 <= int(port) <= 14300
    assert command["--data"] == command["--node-name"] and "this machine only" in notes[0]


@pytest.mark.parametrize(
    "argument, words",
    [
        ("--global_segment_size=many", "a size is wanted"),
        ("--global_segment_size=50%", "a size is wanted"),
        ("--global_segment_size=0", "lends nothing"),
        ("--protocol=pigeon", "tcp"),
        ("--host=192.0.2.1", "credentials"),
    ],
)
def test_bad_values_stop_a_client(argument, words, monkeypatch):
    monkeypatch.delenv("MOONCRATE_TOKEN_FILE", raising=False)
    with pytest.raises(BadFlag, match=words):
        client_command(argument)


def test_the_scripts_are_installed_under_their_names():
    root = pathlib.Path(importlib.import_module("mooncake").__file__).parent.parent
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == set(SCRIPTS)
    for name, where in scripts.items():
        module, function = where.split(":")
        assert (module, function) == SCRIPTS[name]


@pytest.mark.check(60)
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_master_is_the_process_that_was_started(tmp_path, by):
    with Cluster(tmp_path, "--frobnicate=1", "--default_kv_lease_ttl", "500") as cluster:
        master = cluster.master
        assert listeners(cluster.port) == {master.process.pid}
        assert listeners(cluster.admin) == {master.process.pid}
        assert "no flag --frobnicate" in master.log
        assert "for this machine only" in master.log
        assert ask(cluster.admin, "/role") == (200, b"leader")
        master.stop(by)


@pytest.mark.check(60)
def test_a_client_lends_memory_and_tells_dummy_stores_where(tmp_path):
    with Cluster(tmp_path) as cluster:
        [http] = free_ports(1)
        client = cluster.lend("--enable_http_server", f"--http_port={http}", "--tenant_id=acme")
        pid = client.process.pid
        assert listeners(client.port) == {pid} and listeners(http) == {pid}
        names = until("it is mounted", lambda: ask(cluster.admin, "/get_all_segments")[1])
        assert names.decode() == f"{client.segment}\n"
        told = {
            "mooncrate_client": 1,
            "master": cluster.address,
            "segment": client.segment,
            "tenant": "acme",
        }
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", client.port), timeout=10) as door:
                door.sendall(b'{"mooncrate_client":1}\n')
                assert json.loads(door.makefile().readline()) == told
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as door:
            door.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert "error" in json.loads(door.makefile().readline())
        assert ask_json(http, "/health") == (200, {"status": "healthy", "code": 0})
        status, text = ask(http, "/metrics")
        assert status == 200 and b"mooncrate_node_mounted 1" in text
        status, text = ask(http, "/metrics/summary")
        assert status == 200 and text.startswith(b"role=client, health=healthy")
        assert ask(http, "/nowhere") == (404, b"404 Not Found")
        client.stop()
        until("it has left", lambda: ask(cluster.admin, "/get_all_segments") == (200, b""))


def test_a_client_says_when_its_master_is_gone(tmp_path):
    with Cluster(tmp_path) as cluster:
        [http] = free_ports(1)
        client = cluster.lend("--enable_http_server", f"--http_port={http}")
        cluster.master.process.kill()
        cluster.master.process.wait()
        lost = (503, {"status": "master_unreachable", "code": 2})
        until("the master is missed", lambda: ask_json(http, "/health") == lost)
        client.stop()


@pytest.mark.check(60)
def test_bad_flags_end_a_program_with_one_line(tmp_path):
    for script, flag in [
        ("mooncake_master", "--port=many"),
        ("mooncake_master", "--rpc_address=0.0.0.0"),
        ("mooncake_client", "--global_segment_size=many"),
    ]:
        code, said = ended(tmp_path, script, flag)
        assert code == 1
        assert said.startswith(f"{script}: error: {flag}") and len(said.splitlines()) == 1


def test_a_port_that_is_taken_says_by_whom(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        [admin] = free_ports(1)
        code, said = ended(tmp_path, "mooncake_master", f"--port={port}", f"--metrics_port={admin}")
        assert code != 0 and f"port {port} is taken by process {os.getpid()}" in said


def test_help_lists_the_flags(tmp_path):
    code, said = ended(tmp_path, "mooncake_master", "--help")
    assert code == 0 and "--default_kv_lease_ttl=10000" in said
    code, said = ended(tmp_path, "mooncake_client", "-h")
    assert code == 0 and "--master_server_address=127.0.0.1:50051" in said


@pytest.mark.check(60)
def test_the_metadata_server_is_the_process_that_was_started(tmp_path):
    def make():
        [port] = free_ports(1)
        flags = ("--port", str(port), "--host", "127.0.0.1", "--log-level", "DEBUG")
        return Program(tmp_path, "mooncake_http_metadata_server", *flags, ports=(port,))

    server = start_retrying(make)
    assert listeners(server.ports[0]) == {server.process.pid}
    server.stop()


@pytest.mark.check(51)
def test_dummy_stores_come_and_go_and_share_what_a_client_lends(tmp_path):
    write = """
        import sys
        from mooncake.store import MooncakeDistributedStore
        store = MooncakeDistributedStore()
        assert store.setup_dummy(1 << 26, 1 << 24, sys.argv[1]) == 0
        assert store.put("shared", b"from another process" * 1000) == 0
        store.close()
    """
    read = """
        import sys
        from mooncake.store import MooncakeDistributedStore
        store = MooncakeDistributedStore()
        assert store.setup_dummy(1 << 26, 1 << 24, sys.argv[1]) == 0
        assert store.health_check() == 0 and store.get_hostname() == ""
        assert store.get("shared") == b"from another process" * 1000
        [copy] = store.get_replica_desc("shared")
        print(copy.get_memory_descriptor().buffer_descriptor.transport_endpoint)
    """
    with Cluster(tmp_path) as cluster:
        client = cluster.lend()
        door = f"127.0.0.1:{client.port}"
        python(write, door)
        # The one that wrote is gone; the memory is the client's.
        for _ in range(2):
            assert python(read, door).strip() == client.segment
        assert client.process.poll() is None
        client.stop()
        store = MooncakeDistributedStore()
        assert store.setup_dummy(1 << 26, 1 << 24, door) == -1


def test_watermarks_bound_what_is_in_use(tmp_path):
    flags = (
        "--eviction_high_watermark_ratio=0.5",
        "--eviction_ratio=0.1",
        "--default_kv_lease_ttl=1",
    )
    with Cluster(tmp_path, *flags) as cluster:
        cluster.lend(size="64MB")
        with mooncrate.Store(master=cluster.address) as store:
            for number in range(60):
                store.put(f"k{number}", b"x" * (1 << 20))

            def used():
                return ask_json(cluster.admin, "/get_segments_detail")[1]["segments"][0]

            until("room was made", lambda: used()["allocator_usage_percent"] <= 50)
            assert used()["allocator_usage_percent"] > 20
            assert b"master_evicted_key_count 0\n" not in ask(cluster.admin, "/metrics")[1]
