"""The gRPC door of a cluster that asks for tokens, with and without TLS: who is let in, what they see, and
bytes that go to a node which checks the grant in every locator."""

import os
import shutil
import ssl
import subprocess

import blake3
import grpc
import pytest
from conftest import PATIENCE, Server
from frames import Denied, Node, Refused
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mooncrate.v1 import master_pb2 as pb
from test_master import Master, fetch

DENIED = 0x58
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED


def guarded(folder, more=()):
    """A server with a secret of its own."""
    path = folder / "cluster.token"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(os.urandom(32).hex())
    return Server(folder, ["--token-file", str(path), *more])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = guarded(tmp_path_factory.mktemp("guarded"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.started["grpc"]) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE)
        yield channel


def refused(call, code):
    with pytest.raises(grpc.RpcError) as error:
        call()
    assert error.value.code() == code, error.value
    return error.value.details()


def test_the_hash_is_the_published_one():
    empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert blake3.plain(b"").hex() == empty


def test_bytes_go_in_and_come_out_with_a_token(server, channel, key):
    acme = Master(channel, server.token("client", "acme"))
    value = bytes(range(256)) * 30
    acme.store(key, value)
    found = acme.find(key)
    assert fetch(found, **acme.access) == value
    # Another tenant has other keys, and nothing that it could use of these.
    zeta = Master(channel, server.token("client", "zeta"))
    assert zeta.find(key).status_code == pb.NOT_FOUND
    assert zeta.remove(key, force=True).status_code == pb.NOT_FOUND
    with pytest.raises(Refused) as error:
        fetch(found, **zeta.access)
    assert error.value.code == DENIED
    zeta.store(key, b"another value")
    assert fetch(acme.find(key), **acme.access) == value
    assert acme.remove(key).status_code == pb.OK


def test_nobody_comes_in_without_the_right_token(server, channel, key):
    good = server.token("client", "acme")
    acme = Master(channel, good)
    acme.store(key, b"v")
    secret = (server.folder / "cluster.token").read_text()
    head, digits = good.rsplit(".", 1)
    for token, says in [
        (None, "mooncrate token derive"),
        (head + "." + digits[::-1], "not of this cluster"),
        ("client.zeta." + digits, "not of this cluster"),
        ("admin.acme." + digits, "not of this cluster"),
        ("nonsense", "not of this cluster"),
        (secret, "never sent"),
    ]:
        stranger = Master(channel, token)
        for call in (
            lambda: stranger.find(key),
            lambda: stranger.put_start(key, 1),
            lambda: stranger.put_end(key, seals=[1]),
            lambda: stranger.remove(key),
            lambda: stranger.mount("x/0", 4096),
            lambda: stranger.unmount(f"{server.started['node_name']}/0"),
        ):
            assert says in refused(call, UNAUTHENTICATED), token
    handle = acme.find(key).replica_list[0].handles[0]
    with pytest.raises(Denied):
        Node(handle.data_address)
    assert fetch(acme.find(key), **acme.access) == b"v"


def test_a_role_does_what_it_may(server, channel, key):
    name, size = server.started["node_name"], server.started["segment_bytes"]
    client = Master(channel, server.token("client", ""))
    node = Master(channel, server.token("node", ""))
    admin = Master(channel, server.token("admin", ""))
    assert "client" in refused(lambda: client.mount(f"{name}/1", size), PERMISSION_DENIED)
    assert "node" in refused(lambda: node.put_start(key, 1), PERMISSION_DENIED)
    assert admin.mount(f"{name}/1", size).status_code == pb.OK
    assert admin.unmount(f"{name}/1").status_code == pb.OK
    log = (server.folder / "serve.log").read_text()
    lines = [line for line in log.splitlines() if "audit" in line and "over gRPC" in line]
    assert len(lines) == 2 and all("admin" in line for line in lines), log


def test_health_is_told_to_everybody(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_token_is_not_sent_in_the_clear_to_other_machines(server):
    command = [server.binary, "master", "--master", "127.0.0.1:0", "--admin", "off"]
    command += ["--grpc", "0.0.0.0:0", "--token-file", "cluster.token", "--insecure-listen"]
    done = subprocess.run(
        command, cwd=server.folder, env=server.environment, capture_output=True, timeout=PATIENCE,
        check=False, text=True,
    )
    assert done.returncode == 2, done
    for way in ("--tls-cert", "--tls-key", "127.0.0.1:PORT", "--grpc off"):
        assert way in done.stderr, done.stderr


def openssl(folder, *arguments):
    subprocess.run(
        ["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=PATIENCE
    )


def certificates(folder):
    """A CA, and what it signed: for the server, and for a client of the tenant acme."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
    openssl(folder, "req", "-x509", *key, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name, names in (
        ("server", "DNS:master.mooncrate,DNS:node.mooncrate"),
        ("acme", "DNS:client.acme.mooncrate"),
    ):
        openssl(
            folder, "req", "-x509", *key, "-subj", f"/CN={name}", "-CA", "ca.pem",
            "-CAkey", "ca.key", "-addext", f"subjectAltName={names}",
            "-addext", "basicConstraints=critical,CA:FALSE",
            "-keyout", f"{name}.key", "-out", f"{name}.pem",
        )


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")
def test_the_door_of_a_cluster_with_tls_is_encrypted(tmp_path, key):
    certificates(tmp_path)
    read = lambda name: (tmp_path / name).read_bytes()
    more = ["--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-ca", "ca.pem"]
    server = guarded(tmp_path, more)
    try:
        tls = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        tls.load_cert_chain(tmp_path / "acme.pem", tmp_path / "acme.key")
        options = [("grpc.ssl_target_name_override", "master.mooncrate")]
        shown = grpc.ssl_channel_credentials(read("ca.pem"), read("acme.key"), read("acme.pem"))
        with grpc.secure_channel(server.started["grpc"], shown, options) as channel:
            # By the certificate; a token of another tenant beside it counts for neither.
            acme = Master(channel, None, tls)
            acme.store(key, b"over TLS")
            assert fetch(acme.find(key), **acme.access) == b"over TLS"
            zeta = Master(channel, server.token("client", "zeta"), tls)
            assert "another tenant" in refused(lambda: zeta.find(key), UNAUTHENTICATED)
            both = Master(channel, server.token("client", "acme"), tls)
            assert fetch(both.find(key), **both.access) == b"over TLS"
            wrong = Master(channel, "client.acme." + "0" * 64, tls)
            assert "not of this" in refused(lambda: wrong.find(key), UNAUTHENTICATED)
        # Not without a certificate of the CA, and not in the clear.
        unknown = grpc.ssl_channel_credentials(read("ca.pem"))
        with grpc.secure_channel(server.started["grpc"], unknown, options) as channel:
            refused(lambda: Master(channel, server.token("client", "acme")).find(key),
                    grpc.StatusCode.UNAVAILABLE)
        with grpc.insecure_channel(server.started["grpc"]) as channel:
            refused(lambda: Master(channel, server.token("client", "acme")).find(key),
                    grpc.StatusCode.UNAVAILABLE)
    finally:
        server.stop()
