"""Memory that is handed out: handles, pools, the allocator."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import MIB, PATIENCE, memory
from mooncake import BufferPool, RegisteredBufferPool, buffer_pool, store as module
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator


@pytest.mark.check(43)
def test_a_handle_is_a_copy_of_its_own(store):
    assert store.put("handle", b"0123456789") == 0
    handle = store.get_buffer("handle")
    assert isinstance(handle, module.BufferHandle)
    assert len(handle) == handle.size() == 10 and handle.ptr() > 0
    view = memoryview(handle)
    assert (view.ndim, view.itemsize, view.format, view.readonly) == (1, 1, "b", False)
    assert bytes(view) == b"0123456789" and view.c_contiguous
    view[0] = 65
    assert store.get("handle") == b"0123456789"
    assert store.remove("handle", force=True) == 0
    assert bytes(handle) == b"A123456789"
    array = np.frombuffer(handle, np.uint8, count=4, offset=2)
    del handle, view
    gc.collect()
    assert array.tobytes() == b"2345"
    assert store.get_into("handle", array.ctypes.data, 4) == -704


@pytest.mark.check(43)
def test_handles_of_many_keys(store):
    store.put_batch(["h/a", "h/b"], [b"a", b"bb"])
    found = store.batch_get_buffer(["h/a", "h/missing", "h/b", "h/a"])
    assert [one and bytes(one) for one in found] == [b"a", None, b"bb", b"a"]
    assert found[0].ptr() != found[3].ptr()


@pytest.mark.check(44)
def test_a_pure_client(store, make_store):
    client = make_store(0)
    assert client.put("pure/a", b"from the client") == 0
    assert store.get("pure/a") == b"from the client"
    assert store.put("pure/b", b"from the owner") == 0
    assert client.get("pure/b") == b"from the owner"

    bare = make_store(0, 0)
    source, target = memory(b"zero copy"), memory(20)
    assert bare.put("pure/c", b"copying") == -600 and bare.is_exist("pure/c") == 0
    assert bare.put_batch(["pure/c"], [b"copying"]) == -600
    assert bare.get("pure/b") == b"" and bare.get_batch(["pure/b"]) == [b""]
    assert bare.get_buffer("pure/b") is None
    assert bare.put_from("pure/c", source.ptr, source.size) == 0
    assert bare.get_into("pure/c", target.ptr, target.size) == 9
    assert bytes(target)[:9] == b"zero copy"


@pytest.mark.check(45)
def test_values_larger_than_the_local_buffer(make_store):
    store = make_store(64 * MIB, 64 * 1024)
    value = bytes(range(256)) * (20 * MIB // 256)
    assert store.put("large", value) == 0
    assert store.get("large") == value
    handles = [store.get_buffer("large") for _ in range(3)]
    assert all(bytes(handle) == value for handle in handles)
    assert store.remove("large", force=True) == 0


@pytest.mark.check(52)
def test_a_lease_of_a_pool(store):
    assert BufferPool is RegisteredBufferPool is buffer_pool.BufferPool is module.BufferPool
    pool = BufferPool(store)
    with pool.acquire(1000) as lease:
        assert lease.size == 1000 and lease.ptr % 8388608 == 0
        view = lease.buffer
        assert (len(view), view.format, view.readonly) == (1000, "B", False)
        view[:5] = b"hello"
        assert store.put_from("pool", lease.ptr, 5) == 0
        assert store.get_into("pool", lease.ptr + 100, 900) == 5
        assert bytes(view[100:105]) == b"hello"
        # It is registered: ranges may go there.
        ranges = store.get_into_ranges([lease.ptr], [["pool"]], [[[200]]], [[[1]]], [[[3]]])
        assert ranges == [[[3]]] and bytes(view[200:203]) == b"ell"
        with pytest.raises(RuntimeError, match="cannot release buffer while exported views exist"):
            lease.release()
        with pytest.raises(RuntimeError, match="cannot close buffer pool with active leases"):
            pool.close()
        view.release()
    lease.release()
    with pytest.raises(RuntimeError, match="buffer lease is closed"):
        _ = lease.ptr
    pool.close()
    with pytest.raises(RuntimeError, match="buffer pool is closed"):
        pool.acquire(1)


@pytest.mark.check(52)
def test_what_a_pool_refuses(store, make_store):
    with pytest.raises(RuntimeError, match="not initialized"):
        BufferPool(MooncakeDistributedStore())
    with pytest.raises(RuntimeError, match="local buffer"):
        BufferPool(make_store(0, 0))
    for alignment in (0, 4, 12):
        with pytest.raises(RuntimeError, match="power of two"):
            BufferPool(store, alignment=alignment)
    pool = BufferPool(store, max_bytes=1, alignment=4096, block_on_exhaustion=False)
    with pytest.raises(RuntimeError, match="requested buffer size exceeds pool capacity"):
        pool.acquire(17 * MIB)
    lease = pool.acquire(16 * MIB)
    assert lease.ptr % 4096 == 0
    with pytest.raises(RuntimeError, match="buffer pool is exhausted"):
        pool.acquire(1)
    with pytest.raises(RuntimeError, match="timed out waiting for buffer"):
        pool.acquire(1, block=True, timeout=0.05)
    with pytest.raises(RuntimeError, match="negative"):
        pool.acquire(1, timeout=-1)
    lease.release()
    pool.buffer(1).release()
    pool.prewarm(MIB, 100)
    pool.close()


@pytest.mark.check(52)
def test_a_pool_wakes_who_waits(store):
    pool = BufferPool(store, max_bytes=16 * MIB, default_timeout=PATIENCE)
    held = pool.acquire(16 * MIB)
    ticks, got = [], []

    def wait():
        got.append(pool.acquire(MIB))

    waiter = threading.Thread(target=wait)
    waiter.start()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        # The waiter leaves the interpreter to others.
        ticks.append(time.monotonic())
        time.sleep(0.001)
    assert len(ticks) > 10 and not got
    held.release()
    waiter.join(PATIENCE)
    assert got and got[0].size == MIB
    got.clear()
    pool.close()


@pytest.mark.check(52)
def test_dropped_leases_and_views_are_given_back(store):
    pool = BufferPool(store, max_bytes=16 * MIB, block_on_exhaustion=False)
    lease = pool.acquire(16 * MIB)
    view = lease.buffer
    gone = weakref.ref(lease)
    del lease
    gc.collect()
    assert gone() is None
    view[:4] = b"view"
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(1)
    del view
    gc.collect()
    pool.acquire(16 * MIB).release()
    pool.close()


def test_the_allocator(store):
    allocator = MooncakeHostMemAllocator()
    first = allocator.alloc(100_000)
    assert first % 4096 == 0
    source = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 100_000).from_address(first))
    assert not source.any()
    source[:] = 7
    assert store.put_from("allocated", first, 100_000) == 0
    assert store.get("allocated") == b"\x07" * 100_000
    del source
    assert allocator.free(first) == 0 and allocator.free(first) == -1 and allocator.free(8) == -1
    for bad in (0, -1, 1 << 62):
        with pytest.raises(RuntimeError):
            allocator.alloc(bad)
    assert module.get_alloc_func_addr() > 0 and module.get_free_func_addr() > 0


def test_the_allocator_as_functions_of_c():
    import ctypes

    alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(
        module.get_alloc_func_addr()
    )
    free = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
    )(module.get_free_func_addr())
    place = alloc(8192, 0, None)
    assert place and ctypes.string_at(place, 8192) == bytes(8192)
    free(place, 8192, 0, None)
    assert MooncakeHostMemAllocator().free(place) == -1


def test_binding_to_a_node_never_raises(caplog):
    import os

    before = os.sched_getaffinity(0)
    try:
        assert module.bind_to_numa_node(0) is None
        assert module.bind_to_numa_node(1000) is None
        assert "bind_to_numa_node(1000)" in caplog.text
    finally:
        os.sched_setaffinity(0, before)
