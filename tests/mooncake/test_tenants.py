"""Whose keys these are, who may ask, and where memory is served."""

import os
import socket
import subprocess

import pytest
from conftest import MIB, PATIENCE, Master
from mooncake.store import MooncakeDistributedStore

REST = ("P2PHANDSHAKE", 32 * MIB, 16 * MIB, "tcp", "")


def test_tenants_have_keys_of_their_own(store, make_store):
    acme = make_store(0, tenant_id="acme")
    assert store.put("tenant/key", b"ours") == 0
    assert acme.is_exist("tenant/key") == 0 and acme.put("tenant/key", b"theirs") == 0
    assert store.get("tenant/key") == b"ours" and acme.get("tenant/key") == b"theirs"
    assert acme.remove_all(force=True) == 1
    assert store.get("tenant/key") == b"ours" and acme.get("tenant/key") == b""


def test_the_case_of_a_tenants_name_counts(store, make_store):
    upper, lower = make_store(0, tenant_id="Team-A"), make_store(0, tenant_id="team-a")
    assert upper.put("tenant/case", b"upper") == 0 and upper.get("tenant/case") == b"upper"
    assert lower.is_exist("tenant/case") == 0 and store.is_exist("tenant/case") == 0
    assert lower.put("tenant/case", b"lower") == 0
    assert upper.get("tenant/case") == b"upper" and lower.get("tenant/case") == b"lower"
    assert upper.remove_all(force=True) == lower.remove_all(force=True) == 1


def test_a_bad_tenant_is_refused(master):
    store = MooncakeDistributedStore()
    assert store.setup("localhost:15991", *REST, master.address, tenant_id="Not A Tenant") == -600
    assert store.health_check() == 1


def test_memory_is_not_served_to_everybody(master, caplog):
    # Nobody is asked for credentials here, so other machines must not reach the memory; and a store that is
    # found under a name at which nobody answers is worse than none.
    store = MooncakeDistributedStore()
    for host in ("192.0.2.7:15992", "192.0.2.7"):
        caplog.clear()
        assert store.setup(host, *REST, master.address) == -600
        assert "MOONCRATE_TOKEN_FILE" in caplog.text and "192.0.2.7" in caplog.text
        assert "MOONCRATE_INSECURE_LISTEN=1" in caplog.text
        assert store.health_check() == 1 and store.is_exist("served") == 0
    # Whoever lends nothing serves nothing.
    pure = ("P2PHANDSHAKE", 0, 16 * MIB, "tcp", "")
    assert store.setup("192.0.2.7:15992", *pure, master.address) == 0
    assert store.allocate_and_mount_segment(16 * MIB)["ret"] == -1
    assert store.close() == 0


def own_address():
    """An address of this machine that others reach, if it has one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def test_memory_is_served_under_the_name_where_that_is_allowed(make_store, monkeypatch):
    host = own_address()
    if host is None or host.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    monkeypatch.setenv("MOONCRATE_INSECURE_LISTEN", "1")
    store = make_store(host=host)
    name = store.get_hostname()
    assert name.startswith(f"{host}:") and store.put("served", b"value") == 0
    (found,) = store.get_replica_desc("served")
    assert found.get_memory_descriptor().buffer_descriptor.transport_endpoint == name
    # Somebody answers there.
    socket.create_connection((host, int(name.rpartition(":")[2])), timeout=PATIENCE).close()
    assert store.remove("served", force=True) == 0


def test_an_address_of_another_machine_cannot_be_served(master, monkeypatch, caplog):
    monkeypatch.setenv("MOONCRATE_INSECURE_LISTEN", "1")
    store = MooncakeDistributedStore()
    assert store.setup("192.0.2.7:15992", *REST, master.address) == -600
    assert store.setup("192.0.2.7", *REST, master.address) == -1
    assert "no free port" in caplog.text and "192.0.2.7" in caplog.records[-1].getMessage()
    assert store.health_check() == 1


@pytest.fixture
def guarded(tmp_path):
    """A cluster with a secret; the file that holds it."""
    token = tmp_path / "cluster.token"
    command = [os.environ["MOONCRATE_BINARY"], "token", "new"]
    secret = subprocess.check_output(command, env={"PATH": os.environ["PATH"]})
    token.touch(mode=0o600)
    token.write_bytes(secret)
    master = Master(tmp_path, MOONCRATE_TOKEN_FILE=str(token))
    yield master, token
    master.stop()


def test_a_cluster_with_a_secret(guarded, monkeypatch):
    master, token = guarded
    store = MooncakeDistributedStore()
    assert store.setup("localhost:15993", *REST, master.address) == -600
    monkeypatch.setenv("MOONCRATE_TOKEN_FILE", str(token))
    assert store.setup("localhost:15993", *REST, master.address) == 0
    assert store.put("secret", b"value") == 0 and store.get("secret") == b"value"
    store.close()
