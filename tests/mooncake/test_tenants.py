"""Whose keys these are, who may ask, and where memory is served."""

import os
import subprocess

import pytest
from conftest import MIB, Master
from mooncake.store import MooncakeDistributedStore

REST = ("P2PHANDSHAKE", 32 * MIB, 16 * MIB, "tcp", "")


def test_tenants_have_keys_of_their_own(store, make_store):
    acme = make_store(0, tenant_id="acme")
    assert store.put("tenant/key", b"ours") == 0
    assert acme.is_exist("tenant/key") == 0 and acme.put("tenant/key", b"theirs") == 0
    assert store.get("tenant/key") == b"ours" and acme.get("tenant/key") == b"theirs"
    assert acme.remove_all(force=True) == 1
    assert store.get("tenant/key") == b"ours" and acme.get("tenant/key") == b""


def test_a_bad_tenant_is_refused(master):
    store = MooncakeDistributedStore()
    assert store.setup("localhost:15991", *REST, master.address, tenant_id="Not A Tenant") == -600
    assert store.health_check() == 1


def test_memory_is_not_served_to_everybody(master, caplog):
    # Nobody is asked for credentials here, so other machines must not reach the memory.
    store = MooncakeDistributedStore()
    assert store.setup("192.0.2.7:15992", *REST, master.address) == 0
    assert store.get_hostname() == "192.0.2.7:15992"
    assert "MOONCRATE_TOKEN_FILE" in caplog.text
    assert store.put("served", b"value") == 0 and store.get("served") == b"value"
    (found,) = store.get_replica_desc("served")
    endpoint = found.get_memory_descriptor().buffer_descriptor.transport_endpoint
    assert endpoint.startswith("127.0.0.1:")
    store.close()


@pytest.fixture
def guarded(tmp_path):
    """A cluster with a secret; the file that holds it."""
    token = tmp_path / "cluster.token"
    command = [os.environ["MOONCRATE_BINARY"], "token", "new"]
    secret = subprocess.check_output(command, env={"PATH": os.environ["PATH"]})
    token.touch(mode=0o600)
    token.write_bytes(secret)
    master = Master(tmp_path, ["--token-file", str(token)])
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
