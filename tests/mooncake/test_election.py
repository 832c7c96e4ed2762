"""Two `mooncake_master`s that elect a leader through etcd, and what each says of itself."""

import shutil
import subprocess

import pytest
from processes import Cluster, ask, ask_json, free_ports, start_retrying, until


class Etcd:
    """A directory of its own, on free ports."""

    def __init__(self, folder):
        self.client, peer = free_ports(2)
        urls = [f"http://127.0.0.1:{port}" for port in (self.client, peer)]
        self.log = folder / "etcd.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    "etcd",
                    f"--data-dir={folder / 'etcd'}",
                    f"--listen-client-urls={urls[0]}",
                    f"--advertise-client-urls={urls[0]}",
                    f"--listen-peer-urls={urls[1]}",
                    f"--initial-advertise-peer-urls={urls[1]}",
                    f"--initial-cluster=default={urls[1]}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            until("etcd answers", self.answers)
        except BaseException:
            self.stop()
            raise

    def answers(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            return ask(self.client, "/health")[0] == 200
        except OSError:
            return False

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def etcd(tmp_path):
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed; ./dev test installs it")
    etcd = start_retrying(lambda: Etcd(tmp_path))
    yield etcd
    etcd.stop()


def role(cluster):
    return ask(cluster.admin, "/role")[1].decode()


@pytest.mark.check(58)
def test_a_standby_says_who_leads_and_takes_over(tmp_path, etcd):
    where = "--rpc_address=127.0.0.1"
    flags = (
        "--enable_ha=true",
        where,
        f"--etcd_endpoints=127.0.0.1:{etcd.client}",
        "--cluster_id=c",
    )
    with Cluster(tmp_path, *flags) as first:
        until("the first one leads", lambda: role(first) == "leader")
        leads = until("it knows", lambda: ask_json(first.admin, "/leader")[1])
        assert leads["present"] is True and leads["leader_address"] == first.address
        assert isinstance(leads["view_version"], int)
        with Cluster(tmp_path, *flags) as second:
            assert role(second) == "standby"
            assert ask(second.admin, "/ha_status") == (200, b"standby")
            known = {"present": True, "leader_address": first.address, "view_version": None}
            until("it knows, too", lambda: ask_json(second.admin, "/leader") == (200, known))
            status, health = ask_json(second.admin, "/health")
            assert (status, health["role"], health["service_ready"]) == (200, "standby", False)
            status, refused = ask_json(second.admin, "/query_key?key=k")
            assert (status, refused["error_code"]) == (503, -1011)
            assert refused["error_message"] == "service plane is not active"
            first.master.process.kill()
            first.master.process.wait()
            until("the second one leads", lambda: role(second) == "leader")
            status, health = ask_json(second.admin, "/health")
            assert (status, health["leader_address"]) == (200, second.address)
