"""How a store is set up and closed, in both forms, and what it answers before and after."""

import inspect
import os
import time
import warnings

import pytest
from conftest import MIB, PATIENCE, free_port, memory
from mooncake.store import MooncakeDistributedStore, ReplicateConfig


def settings(master, **more):
    return {
        "local_hostname": "localhost",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_addr": master.address,
        **more,
    }


@pytest.fixture
def fresh():
    store = MooncakeDistributedStore()
    yield store
    store.close()


@pytest.mark.check(1)
def test_setup_by_position(fresh, master):
    arguments = ("localhost", "P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "ibp6s0", master.address)
    assert fresh.setup(*arguments) == 0
    host, _, port = fresh.get_hostname().rpartition(":")
    assert host == "localhost" and 12300 <= int(port) <= 14300


@pytest.mark.check(2)
def test_a_name_with_a_port_is_kept(fresh, master):
    rest = ("P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "", master.address)
    assert fresh.setup("localhost:15987", *rest) == 0
    assert fresh.get_hostname() == "localhost:15987"
    with pytest.raises(TypeError):
        fresh.setup("localhost", *rest[:-1])
    with pytest.raises(TypeError, match="enable_warp_drive"):
        fresh.setup("localhost", *rest, enable_warp_drive=True)
    with pytest.raises(TypeError, match="engine"):
        fresh.setup("localhost", *rest, object())
    with pytest.raises(TypeError):
        fresh.setup("localhost", "P2PHANDSHAKE", "64MB", *rest[2:])


def test_more_memory_than_there_is_is_refused_with_the_way_out(fresh, master, caplog):
    rest = (16 * MIB, "tcp", "", master.address)
    # No machine has so much; before, the kernel killed the process when its pages ran out.
    assert fresh.setup("localhost", "P2PHANDSHAKE", 64 << 40, *rest) == -600
    assert "64.0 TiB" in caplog.text and "MOONCRATE_MEMORY_OVERCOMMIT=1" in caplog.text
    assert fresh.setup("localhost", "P2PHANDSHAKE", 16 * MIB, *rest) == 0
    more = fresh.allocate_and_mount_segment(64 << 40)
    assert more == {"ret": -600, "segment_ids": [], "allocated_size": 0}
    assert fresh.put("still/works", b"value") == 0
    assert fresh.remove("still/works", force=True) == 0


@pytest.mark.parametrize(
    "name, value",
    [("MIN_PORT", "many"), ("MIN_PORT", "-5"), ("MAX_PORT", "70000"), ("SETUP_RETRIES", "many")],
)
def test_ports_that_are_none_are_refused_by_name(fresh, master, caplog, monkeypatch, name, value):
    monkeypatch.setenv(f"MC_STORE_CLIENT_{name}", value)
    rest = (16 * MIB, "tcp", "", master.address)
    assert fresh.setup("localhost", "P2PHANDSHAKE", 16 * MIB, *rest) == -600
    assert f"MC_STORE_CLIENT_{name}" in caplog.text


@pytest.mark.check(2)
def test_two_stores_may_have_one_name(make_store):
    first = make_store(host="localhost:15988")
    second = make_store(host="localhost:15988")
    assert first.get_hostname() == second.get_hostname() == "localhost:15988"
    wish = ReplicateConfig()
    wish.replica_num = 2
    assert first.put("one/name", b"value", wish) == 0
    assert len(first.get_replica_desc("one/name")) == 2
    assert first.remove("one/name", force=True) == 0


@pytest.mark.check(3)
@pytest.mark.parametrize("size", ["64 MB", "16mb", "0.0625GB", "16777216", 64 * MIB, 16 * MIB])
def test_sizes_in_a_dict(fresh, master, size):
    assert fresh.setup(settings(master, global_segment_size=size, local_buffer_size=size)) == 0
    assert fresh.put("sizes", b"x" * 100) == 0
    assert fresh.remove("sizes", force=True) == 0


@pytest.mark.check(3)
@pytest.mark.parametrize(
    "bad",
    [
        {"global_segment_size": "50%"},
        {"global_segment_size": 512},
        {"local_buffer_size": "-1"},
        {"global_segment_size": "16 parsec"},
        {"local_buffer_size": "2TB"},
        {"local_hostname": ""},
        {"metadata_server": ""},
        {"client_http_port": "many"},
        {"protocol": "carrier pigeon"},
    ],
)
def test_settings_that_cannot_be_meant(fresh, master, bad):
    assert fresh.setup(settings(master, **bad)) == -600
    assert fresh.health_check() == 1
    missing = settings(master)
    del missing["local_hostname"]
    assert fresh.setup(missing) == -600


@pytest.mark.check(4)
def test_both_spellings_reach_the_master(fresh, master):
    given = {
        "local_hostname": "localhost",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master.address,
        "device_name": "mlx5_0",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh.setup(given) == 0
    with pytest.warns(UserWarning, match=r"global_segmnt_size.*global_segment_size"):
        assert fresh.setup(settings(master, global_segmnt_size=1)) == 0


@pytest.mark.check(5)
def test_closing_and_setting_up_again(fresh, master):
    assert fresh.close() == 0 and fresh.health_check() == 1
    assert fresh.setup(settings(master)) == 0 and fresh.health_check() == 0
    assert fresh.put("again", b"value") == 0 and fresh.get("again") == b"value"
    assert fresh.close() == 0 and fresh.close() == 0 and fresh.health_check() == 1
    assert fresh.setup(settings(master)) == 0
    assert fresh.get("again") == b"" and fresh.is_exist("again") == 0
    # On a live store it replaces what was there.
    assert fresh.put("again", b"other") == 0
    assert fresh.setup(settings(master)) == 0
    assert fresh.health_check() == 0 and fresh.is_exist("again") == 0


def nothing_set_up(store):
    """What every method answers without a setup: its name, arguments and answer."""
    config, place = ReplicateConfig(), memory(16).ptr
    two = ["a", "b"]
    bad, all_bad = -600, [-600, -600]
    return [
        ("put", ("k", b"v", config), bad),
        ("put_parts", ("k", b"v"), bad),
        ("put_parts", ("k",), bad),
        ("put_batch", (two, [b"1", b"2"]), bad),
        ("upsert", ("k", b"v"), bad),
        ("upsert_parts", ("k", b"v"), bad),
        ("upsert_batch", (two, [b"1", b"2"]), bad),
        ("get", ("k",), b""),
        ("get_batch", (two,), [b"", b""]),
        ("get_buffer", ("k",), None),
        ("batch_get_buffer", (two,), [None, None]),
        ("is_exist", ("k",), 0),
        ("batch_is_exist", (two,), [0, 0]),
        ("get_size", ("k",), bad),
        ("remove", ("k",), bad),
        ("batch_remove", (two,), all_bad),
        ("remove_all", (), bad),
        ("remove_by_regex", ("k",), bad),
        ("register_buffer", (place, 16), bad),
        ("unregister_buffer", (place,), bad),
        ("put_from", ("k", place, 16), bad),
        ("put_from", ("k", place, 0), bad),
        ("upsert_from", ("k", place, 16), bad),
        ("batch_put_from", (two, [place, place], [8, 8]), all_bad),
        ("batch_upsert_from", (two, [place, place], [8, 8]), all_bad),
        ("put_from_with_metadata", ("k", place, place, 8, 8), bad),
        ("batch_put_from_multi_buffers", (two, [[place]] * 2, [[8]] * 2), all_bad),
        ("get_into", ("k", place, 16), bad),
        ("batch_get_into", (two, [place, place], [8, 8]), all_bad),
        ("batch_get_into_multi_buffers", (two, [[place]] * 2, [[8]] * 2), all_bad),
        ("get_into_ranges", ([place], [["k"]], [[[0]]], [[[0]]], [[[4]]]), [[[bad]]]),
        ("batch_get_session_start", (two,), all_bad),
        ("batch_get_into_multi_buffer_ranges", (two, [[place]] * 2, [[8]] * 2, [[0]] * 2), all_bad),
        ("batch_get_session_end", (two,), bad),
        ("batch_put_session_start", (two, [8, 8]), all_bad),
        ("batch_put_from_multi_buffer_ranges", (two, [[place]] * 2, [[8]] * 2, [[0]] * 2), all_bad),
        ("batch_put_session_end", (two,), all_bad),
        ("batch_put_session_revoke", (two,), all_bad),
        ("get_replica_desc", ("k",), []),
        ("batch_get_replica_desc", (two,), {}),
        ("batch_replica_clear", (two,), []),
        ("create_copy_task", ("k", ["s"]), ((0, 0), bad)),
        ("create_move_task", ("k", "s", "t"), ((0, 0), bad)),
        ("query_task", ((1, 2),), (None, -1400)),
        ("mount_segment", ("/dev/null", 4096), {"ret": -1, "segment_ids": []}),
        (
            "allocate_and_mount_segment", (4096,),
            {"ret": -1, "segment_ids": [], "allocated_size": 0},
        ),
        ("unmount_segment", (["1-2"],), -1),
        ("unmount_and_free_segment", (["1-2"],), -1),
        ("unmount_local_disk_segment", (), -1),
        ("get_offload_rpc_read_count", (), 0),
        ("alloc_from_mem_pool", (4096,), 0),
        ("get_hostname", (), ""),
        ("health_check", (), 1),
        ("close", (), 0),
    ]


@pytest.mark.check(6)
def test_nothing_crashes_without_a_setup(fresh, master):
    asked = nothing_set_up(fresh)
    for name, arguments, answer in asked:
        assert getattr(fresh, name)(*arguments) == answer, name
    assert fresh.setup(settings(master)) == 0
    fresh.close()
    for name, arguments, answer in asked:
        assert getattr(fresh, name)(*arguments) == answer, name
    # All calls but those of tensors, which stand on these, and the setups.
    known = {name for name, _, _ in asked} | {"setup", "setup_dummy", "init_all"}
    public = {
        name for name, _ in inspect.getmembers(MooncakeDistributedStore, callable)
        if not name.startswith("_") and "tensor" not in name
    }
    assert public == known


@pytest.mark.check(6)
def test_an_empty_batch_is_an_empty_list(fresh):
    for name in ("get_batch", "batch_is_exist", "batch_get_buffer", "batch_remove"):
        assert getattr(fresh, name)([]) == []


def test_a_master_that_is_not_there(fresh):
    began = time.monotonic()
    nobody = f"127.0.0.1:{free_port()}"
    rest = ("P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "", nobody)
    assert fresh.setup("localhost:15989", *rest) == -600
    assert fresh.setup("localhost", *rest) == -1
    assert fresh.health_check() == 1
    assert time.monotonic() - began < PATIENCE


def test_without_rdma_values_travel_over_tcp(fresh, master, monkeypatch, caplog):
    rest = ("P2PHANDSHAKE", 64 * MIB, 16 * MIB, "rdma", "", master.address)
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    assert fresh.setup("localhost", *rest) == 0
    assert fresh.put("rdma", b"value") == 0 and fresh.get("rdma") == b"value"
    assert fresh.remove("rdma", force=True) == 0
    if not os.environ.get("MOONCAKE_MASTER"):
        warned = [one for one in caplog.records if one.levelname == "WARNING"]
        assert len(warned) == 1 and "rdma" in warned[0].getMessage()
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    assert fresh.setup("localhost", *rest) == 0


def test_nothing_exists_before_a_setup_and_after_a_failed_one(fresh, master):
    # LMCache ignores the code of a setup and takes any other answer for a hit.
    def nothing():
        return fresh.is_exist("never") == 0 and fresh.batch_is_exist(["never", "ever"]) == [0, 0]

    assert nothing()
    assert fresh.setup(settings(master, protocol="carrier pigeon")) == -600
    assert nothing()
    nobody = settings(master, master_server_addr=f"127.0.0.1:{free_port()}")
    assert fresh.setup(nobody) < 0
    assert nothing()


def test_a_failed_setup_leaves_nothing(fresh, master):
    assert fresh.setup(settings(master, global_segment_size=2048)) == -600
    assert fresh.health_check() == 1 and fresh.put("k", b"v") == -600


@pytest.mark.parametrize("server", ["http://h:1/metadata", "etcd://h:2379", "redis://h:6379"])
def test_metadata_servers_are_accepted_and_not_asked(fresh, master, server):
    assert fresh.setup(settings(master, metadata_server=server)) == 0
