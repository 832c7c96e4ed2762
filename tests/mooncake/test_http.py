"""Mooncake's admin HTTP on a real master with real clients that lend memory."""

import subprocess
import sys
import urllib.error
import urllib.parse

import mooncrate
import pytest
from processes import Cluster, ask, ask_json, environment, free_ports, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("http"), "--enable_multi_tenants=true") as cluster:
        cluster.empty = ask(cluster.admin, "/get_all_segments")
        cluster.lend()
        yield cluster


@pytest.fixture
def store(cluster):
    with mooncrate.Store(master=cluster.address) as store:
        yield store


@pytest.mark.check(58)
def test_a_master_alone_leads_and_serves(cluster):
    health = {
        "status": "ok",
        "role": "leader",
        "ha_state": "serving",
        "service_ready": True,
        "leader_address": None,
        "view_version": None,
    }
    assert ask_json(cluster.admin, "/health") == (200, health)
    assert ask(cluster.admin, "/role") == (200, b"leader")
    assert ask(cluster.admin, "/ha_status") == (200, b"serving")
    nobody = {"present": False, "leader_address": None, "view_version": None}
    assert ask_json(cluster.admin, "/leader") == (200, nobody)
    assert ask_json(cluster.admin, "/kv_events/status")[1]["enabled"] is False
    assert ask(cluster.admin, "/nowhere") == (404, b"404 Not Found")
    assert ask(cluster.admin, "/health", "POST", b"") == (404, b"404 Not Found")


@pytest.mark.check(58)
def test_segments_are_listed_when_they_are_mounted(cluster):
    assert cluster.empty == (200, b"")
    name = cluster.clients[0].segment
    assert ask(cluster.admin, "/get_all_segments") == (200, f"{name}\n".encode())
    status, detail = ask_json(cluster.admin, "/get_segments_detail")
    assert (status, detail["total_segments"]) == (200, 1)
    [row] = detail["segments"]
    assert row["segment_name"] == name and row["te_endpoint"] == name
    assert (row["size_bytes"], row["size_human"]) == (64 << 20, "0.0625 GiB")
    assert (row["status"], row["protocol"]) == ("OK", "tcp")
    assert set(row) == {
        "segment_name",
        "segment_id",
        "client_id",
        "base_address",
        "size_bytes",
        "size_human",
        "te_endpoint",
        "protocol",
        "status",
        "allocator_used_bytes",
        "allocator_capacity_bytes",
        "allocator_usage_percent",
    }


@pytest.mark.check(58)
def test_the_status_of_a_segment(cluster):
    name = cluster.clients[0].segment
    path = "/api/v1/segments/status"
    fine = {
        "success": True,
        "segment": name,
        "status": 1,
        "status_name": "OK",
        "error_code": 0,
        "error_message": "",
    }
    assert ask_json(cluster.admin, f"{path}?segment={urllib.parse.quote(name)}") == (200, fine)
    refused = {
        "success": False,
        "error_code": -600,
        "error_message": "Missing segment query parameter",
    }
    assert ask_json(cluster.admin, path) == (400, refused)
    status, body = ask_json(cluster.admin, f"{path}?segment=nobody")
    assert (status, body["success"], body["error_code"]) == (404, False, -101)


@pytest.mark.check(58)
def test_a_key_is_found_and_stays_removable(cluster, store):
    name = "a key/with ünusual%20parts"
    store.put(name, b"hello")
    status, body = ask_json(cluster.admin, f"/query_key?key={urllib.parse.quote(name, safe='')}")
    assert (status, body["success"]) == (200, True)
    [copy] = body["data"]
    assert set(copy) == {"size_", "buffer_address_", "protocol_", "transport_endpoint_"}
    assert (copy["size_"], copy["protocol_"]) == (5, "tcp")
    assert copy["transport_endpoint_"] == cluster.clients[0].segment
    # Neither a look nor a list holds it.
    ask(cluster.admin, f"/batch_query_keys?keys={urllib.parse.quote(name, safe='')}")
    assert name in ask(cluster.admin, "/get_all_keys")[1].decode().splitlines()
    assert store.remove(name) is True
    missing = {"success": False, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"}
    assert ask_json(cluster.admin, f"/query_key?key={urllib.parse.quote(name)}") == (404, missing)


@pytest.mark.check(58)
def test_keys_are_looked_at_in_batches(cluster, store):
    store.put("batch-1", b"x" * 100)
    for query in ("keys=batch-1,batch-2", "keys=batch-1%2Cbatch-2"):
        status, body = ask_json(cluster.admin, f"/batch_query_keys?{query}")
        assert (status, body["success"]) == (200, True)
        found, missing = body["data"]["batch-1"], body["data"]["batch-2"]
        assert (found["ok"], found["error"], found["values"][0]["size_"]) == (True, None, 100)
        assert missing == {
            "ok": False,
            "error": "OBJECT_NOT_FOUND",
            "values": None,
            "disk_values": None,
            "local_disk_values": None,
            "nof_values": None,
        }
    status, body = ask_json(cluster.admin, "/batch_query_keys")
    assert (status, body["success"]) == (400, False)
    assert body["error"].startswith("No keys provided.")


@pytest.mark.check(58)
def test_a_segment_in_numbers(cluster, store):
    name = cluster.clients[0].segment
    store.put("counted", b"x" * 1000)
    status, text = ask(cluster.admin, f"/query_segment?segment={urllib.parse.quote(name)}")
    first, used, capacity = text.decode().splitlines()
    assert (status, first) == (200, name)
    assert used.startswith("Used(bytes): ") and int(used.split()[1]) >= 1000
    assert capacity == f"Capacity(bytes) : {64 << 20}"
    assert ask(cluster.admin, "/query_segment?segment=x") == (500, b"Failed to query segment")


def test_metrics_of_theirs_and_ours(cluster, store):
    store.put("measured", b"x")
    status, text = ask(cluster.admin, "/metrics")
    numbers = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if line[0] != "#")
    assert status == 200
    assert float(numbers["master_key_count"]) >= 1
    assert numbers["master_active_clients"] == "1"
    assert numbers["master_total_capacity_bytes"] == str(64 << 20)
    assert float(numbers["master_put_start_requests_total"]) >= 1
    assert float(numbers["master_mount_segment_requests_total"]) == 1
    assert float(numbers["mooncrate_master_puts_total"]) >= 1
    status, line = ask(cluster.admin, "/metrics/summary")
    assert status == 200 and line.startswith(
        b"role=leader, state=serving, service_ready=true, master={"
    )
    assert b" (soft-pinned: 0) | Clients: " in line and b"Clients: 1" in line and b"ha={" in line


def test_quotas_of_tenants(cluster):
    path = "/api/v1/tenant_quotas?tenant_id=acme"
    status, body = ask_json(cluster.admin, path, "PUT", {"requested_quota_bytes": 100})
    assert (status, body["data"]["requested_quota_bytes"]) == (200, 100)
    with mooncrate.Store(master=cluster.address, tenant="acme") as store:
        with pytest.raises(mooncrate.Error):
            store.put("too large", b"x" * 1000)
        assert ask_json(cluster.admin, path, "DELETE")[0] == 200
        store.put("too large", b"x" * 1000)
        removed = ask_json(
            cluster.admin, "/api/v1/remove_all?force=true&tenant_id=acme", "POST", {}
        )
        assert removed == (200, {"success": True, "removed_count": 1})


def test_quotas_are_refused_where_there_are_no_tenants(tmp_path):
    with Cluster(tmp_path) as cluster:
        status, body = ask_json(cluster.admin, "/api/v1/tenant_quotas")
        assert (status, body["error_code"]) == (409, -1011)


def test_a_drain_job_empties_a_segment_and_nothing_is_lost(tmp_path):
    with Cluster(tmp_path) as cluster:
        first = cluster.lend()
        with mooncrate.Store(master=cluster.address) as store:
            values = {f"k{number}": bytes([number]) * 10_000 for number in range(50)}
            for name, value in values.items():
                store.put(name, value)
            second = cluster.lend()
            wanted = {"segments": [first.segment], "target_segments": [], "max_concurrency": 4}
            status, begun = ask_json(cluster.admin, "/api/v1/drain_jobs", "POST", wanted)
            assert (status, begun["status"]) == (200, "CREATED")
            query = f"/api/v1/drain_jobs/query?job_id={begun['job_id']}"
            until(
                "it is drained",
                lambda: ask_json(cluster.admin, query)[1]["status_name"] == "SUCCEEDED",
            )
            job = ask_json(cluster.admin, query)[1]
            assert (job["type_name"], job["segments"]) == ("DRAIN", [first.segment])
            assert job["succeeded_units"] == 50 and job["migrated_bytes"] >= 500_000
            assert (job["failed_units"], job["active_units"], job["blocked_units"]) == (0, 0, 0)
            status_path = f"/api/v1/segments/status?segment={first.segment}"
            assert ask_json(cluster.admin, status_path)[1]["status_name"] == "DRAINED"
            first.stop()
            until(
                "it has left",
                lambda: (
                    ask(cluster.admin, "/get_all_segments")[1].decode() == f"{second.segment}\n"
                ),
            )
            assert ask_json(cluster.admin, query)[1]["status_name"] == "SUCCEEDED"
            assert {name: store.get(name) for name in values} == values
            removed = ask_json(cluster.admin, "/api/v1/remove_all?force=true", "POST", {})
            assert removed == (200, {"success": True, "removed_count": 50})
            assert store.get("k1") is None


def test_changes_need_an_admin_token_where_there_are_tokens(tmp_path):
    token = tmp_path / "cluster.token"
    code = "import sys; from mooncrate._cli import run; sys.exit(run(sys.argv[1:]))"

    def mint(*words):
        line = [sys.executable, "-c", code, *words]
        plain = environment(tmp_path)
        return subprocess.run(line, capture_output=True, check=True, env=plain).stdout

    token.touch(0o600)
    token.write_bytes(mint("token", "new"))
    admin = mint("token", "derive", "--role", "admin", "--token-file", str(token)).decode().strip()
    with Cluster(tmp_path, f"--token_file={token}", "--rpc_address=127.0.0.1") as cluster:
        path = "/api/v1/remove_all?force=true"
        assert ask(cluster.admin, "/health")[0] == 200
        assert ask(cluster.admin, path, "POST", b"")[0] == 401
        bearer = {"Authorization": f"Bearer {admin}"}
        assert ask(cluster.admin, path, "POST", b"", bearer)[0] == 200
        assert "remove all" in cluster.master.log


def test_a_store_may_show_its_health_and_its_numbers(make_store):
    [port] = free_ports(1)
    store = make_store(enable_client_http_server=True, client_http_port=port)
    store.put("shown", b"x" * 1000)
    assert store.get("shown") == b"x" * 1000
    assert ask_json(port, "/health") == (200, {"status": "healthy", "code": 0})
    status, text = ask(port, "/metrics")
    numbers = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if line[0] != "#")
    assert status == 200 and int(numbers["mooncake_transfer_read_bytes"]) >= 1000
    assert int(numbers["mooncake_transfer_write_bytes"]) >= 1000
    status, line = ask(port, "/metrics/summary")
    assert status == 200 and line.startswith(b"role=client, health=healthy, gets=1")
    assert ask(port, "/shown") == (404, b"404 Not Found")
    # Another store that wants the same port is a store without it.
    other = make_store(enable_client_http_server=True, client_http_port=port)
    assert other.get("shown") == b"x" * 1000
    store.close()
    with pytest.raises(urllib.error.URLError):
        ask(port, "/health")
