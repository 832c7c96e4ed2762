"""Dummy stores: thin clients of a process that lends the memory."""

import pytest
from conftest import MIB, free_port, memory, python
from processes import Cluster
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A `mooncake_master` and a `mooncake_client`, as they are installed."""
    with Cluster(tmp_path_factory.mktemp("dummy"), "--default_kv_lease_ttl=500") as cluster:
        cluster.lend()
        yield cluster


@pytest.fixture
def client(cluster, make_store):
    """The address of the `mooncake_client`, and an ordinary store beside it."""
    other = make_store(0, master=cluster)
    other.remove_all(force=True)
    return f"127.0.0.1:{cluster.clients[0].port}", other


@pytest.fixture
def dummy(client):
    store = MooncakeDistributedStore()
    assert store.setup_dummy(64 * MIB, 16 * MIB, client[0]) == 0
    yield store
    store.close()


@pytest.mark.check(51)
def test_a_dummy_store_stores(dummy, client):
    assert dummy.get_hostname() == "" and dummy.health_check() == 0
    assert dummy.put("dummy/a", b"value") == 0 and dummy.get("dummy/a") == b"value"
    assert client[1].get("dummy/a") == b"value"
    assert len(dummy.get_replica_desc("dummy/a")) == 1
    assert dummy.batch_put_session_start(["dummy/s"], [4]) == [0]
    assert dummy.batch_put_session_revoke(["dummy/s"]) == [0]


@pytest.mark.check(51)
def test_a_dummy_store_wants_shared_memory(dummy):
    allocator = MooncakeHostMemAllocator()
    region, heap = allocator.alloc(MIB), memory(4096)
    assert dummy.register_buffer(region, MIB) == 0 and dummy.register_buffer(region, MIB) == 0
    assert dummy.register_buffer(heap.ptr, heap.size) == -1
    assert dummy.register_buffer(region, MIB + 4096) == -1
    assert dummy.put_from("dummy/region", region, 1000) == 0
    assert dummy.get_into("dummy/region", region + 5000, 1000) == 1000
    assert dummy.put_from("dummy/heap", heap.ptr, 1000) == -600
    assert dummy.get_into("dummy/region", heap.ptr, 1000) == -600
    assert dummy.batch_put_from(["dummy/x"], [heap.ptr], [10]) == [-600]
    assert dummy.batch_get_into_multi_buffers(["dummy/region"], [[heap.ptr]], [[1000]]) == [-600]
    assert dummy.put_from("dummy/edge", region + MIB - 10, 20) == -600
    pool = dummy.alloc_from_mem_pool(8192)
    assert pool > 0 and dummy.register_buffer(pool, 8192) == 0
    assert dummy.put_from("dummy/pool", pool, 8192) == 0
    assert allocator.free(region) == 0


def test_parts_of_a_region_can_be_registered(dummy):
    # The published package answers -1; engines register each of their pools inside one region.
    region = MooncakeHostMemAllocator().alloc(MIB)
    first, second = region + 4096, region + MIB // 2
    assert dummy.register_buffer(first, 8192) == 0 and dummy.register_buffer(first, 8192) == 0
    assert dummy.register_buffer(second, MIB // 2) == 0
    assert dummy.register_buffer(second, MIB // 2 + 1) == -1
    assert dummy.put_from("dummy/part", first, 8192) == 0
    assert dummy.get_into("dummy/part", second, 8192) == 8192
    assert dummy.get_into_ranges([second], [["dummy/part"]], [[[0]]], [[[1]]], [[[9]]]) == [[[9]]]
    # Beside the whole they count, too.
    assert dummy.unregister_buffer(second) == 0 and dummy.unregister_buffer(second) == -600
    assert dummy.unregister_buffer(first) == 0 and dummy.register_buffer(region, MIB) == 0
    assert dummy.register_buffer(first, 8192) == 0 and dummy.register_buffer(region, 8192) == 0
    assert dummy.unregister_buffer(first) == 0 and dummy.unregister_buffer(first) == -600
    assert [dummy.unregister_buffer(region) for _ in range(3)] == [0, 0, -600]


@pytest.mark.check(51)
def test_no_server_no_dummy(store):
    lonely = MooncakeDistributedStore()
    assert lonely.setup_dummy(MIB, MIB, f"127.0.0.1:{free_port()}") == -1
    assert lonely.setup_dummy(MIB, MIB, "nonsense") == -1
    assert lonely.health_check() == 1
    assert store.alloc_from_mem_pool(4096) == 0


@pytest.mark.check(51)
def test_two_dummy_processes_share_data(client):
    program = """
        import sys
        from mooncake.store import MooncakeDistributedStore

        store = MooncakeDistributedStore()
        assert store.setup_dummy(1 << 20, 1 << 20, sys.argv[1]) == 0
        if sys.argv[2] == "write":
            assert store.put("dummy/shared", b"from the first process") == 0
        else:
            print(store.get("dummy/shared").decode())
        """
    assert python(program, client[0], "write") == ""
    assert python(program, client[0], "read").strip() == "from the first process"
