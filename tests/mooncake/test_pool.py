"""`BufferPool` at its edges: what it counts, when it is full, and which arguments it takes.

All of it holds for the published package, too.
"""

import threading

import pytest
from conftest import MIB, PATIENCE
from mooncake.store import BufferPool, MooncakeDistributedStore


@pytest.fixture
def make_pool(store):
    """Makes pools of a store with a local buffer of 16 MiB."""
    return lambda **how: BufferPool(store, **how)


def until_full(pool, size, at_most):
    """Leases of one size, as many as there are."""
    leases = []
    while len(leases) < at_most:
        try:
            leases.append(pool.acquire(size, block=False))
        except RuntimeError as error:
            assert str(error) == "buffer pool is exhausted"
            break
    return leases


@pytest.mark.check(52)
def test_no_bytes_are_a_lease_too(make_pool, store):
    pool = make_pool()
    lease = pool.acquire(0)
    assert lease.size == 0 and lease.ptr > 0
    view = lease.buffer
    assert (len(view), view.format, view.readonly) == (0, "B", False)
    assert store.put_from("nothing", lease.ptr, 0) == 0
    with pytest.raises(RuntimeError, match="exported views"):
        lease.release()
    del view
    lease.release()
    pool.close()


@pytest.mark.check(52)
@pytest.mark.parametrize("largest", [None, 0, 100, 65536, MIB])
def test_the_largest_class_bounds_no_lease(make_pool, largest):
    pool = make_pool(max_size_class=largest)
    for size in (1, 65537, MIB + 1, 17 * MIB, 32 * MIB):
        with pool.acquire(size, block=False) as lease:
            assert lease.size == size
            with lease.buffer as view:
                view[0], view[-1] = 1, 2
    with pytest.raises(RuntimeError, match="requested buffer size exceeds pool capacity"):
        pool.acquire(32 * MIB + 1)
    pool.close()


@pytest.mark.check(52)
def test_a_pool_counts_the_bytes_that_were_asked_for(make_pool):
    pool = make_pool()
    # More small leases than there are pieces of a size class in it.
    assert len(until_full(pool, 100, 1000)) == 1000
    assert len(until_full(pool, MIB, 100)) == 32
    for size in (16 * MIB, 8 * MIB):
        assert len(until_full(pool, size, 100)) == 32 * MIB // size
    pool.close()


@pytest.mark.check(52)
def test_a_full_pool_that_does_not_wait_raises(make_pool):
    pool = make_pool(max_bytes=16 * MIB, block_on_exhaustion=False, default_timeout=0.05)
    lease = pool.acquire(16 * MIB)
    for how in ({}, {"timeout": 60}, {"block": False}):
        for size in (0, 1):
            with pytest.raises(RuntimeError, match="buffer pool is exhausted"):
                pool.acquire(size, **how)
    with pytest.raises(RuntimeError, match="timed out waiting for buffer"):
        pool.acquire(1, block=True)
    with pytest.raises(RuntimeError, match="exceeds pool capacity"):
        pool.acquire(16 * MIB + 1)
    lease.release()
    pool.acquire(1).release()
    pool.close()


@pytest.mark.check(52)
def test_max_regions_bounds_how_many_leases_there_are(make_pool):
    none = make_pool(max_regions=0)
    assert until_full(none, 1, 10) == []
    with pytest.raises(RuntimeError, match="timed out waiting for buffer"):
        none.acquire(1, timeout=0.01)
    for regions in (1, 2, 3):
        pool = make_pool(max_bytes=64 * MIB, max_regions=regions)
        assert [len(until_full(pool, size, 10)) for size in (0, 1, MIB, 17 * MIB)] == [regions] * 4
        pool.close()


@pytest.mark.check(52)
def test_who_waits_for_a_region_gets_the_next_one(make_pool):
    pool = make_pool(max_regions=1)
    held, got = pool.acquire(1), []
    with pytest.raises(RuntimeError, match="buffer pool is exhausted"):
        pool.acquire(1, block=False)
    waiter = threading.Thread(target=lambda: got.append(pool.acquire(5, timeout=PATIENCE)))
    waiter.start()
    held.release()
    waiter.join(PATIENCE)
    assert [lease.size for lease in got] == [5]
    got.clear()
    pool.close()


@pytest.mark.check(52)
@pytest.mark.parametrize("size", [-1, 1 << 64, 1.5, "1", None])
def test_a_size_is_a_number_of_64_bits(make_pool, size):
    pool = make_pool()
    with pytest.raises(TypeError):
        pool.acquire(size)
    with pytest.raises(TypeError):
        pool.prewarm(size, 1)
    with pytest.raises(TypeError):
        pool.prewarm(1, size)
    pool.close()


@pytest.mark.check(52)
def test_bad_arguments_of_a_pool(make_pool):
    for name in ("max_bytes", "min_size_class", "alignment", "prewarm_count"):
        for bad in (-1, "x", None):
            with pytest.raises(TypeError):
                make_pool(**{name: bad})
    for name in ("max_size_class", "max_regions"):
        for bad in (-1, "x", 1.5):
            with pytest.raises(RuntimeError):
                make_pool(**{name: bad})
    for how in ({"min_size_class": 0}, {"alignment": 0}, {"default_timeout": "x"}):
        with pytest.raises(RuntimeError):
            make_pool(**how)
    for bad in (None, 1, "store", MooncakeDistributedStore()):
        with pytest.raises(RuntimeError):
            BufferPool(bad)


@pytest.mark.check(52)
def test_bad_times_are_told_by_the_call_that_waits(make_pool):
    pool = make_pool(default_timeout=-1)
    with pytest.raises(RuntimeError, match="non-negative"):
        pool.acquire(1)
    assert pool.acquire(1, timeout=0).size == 1
    for bad in ({"timeout": -1}, {"timeout": -1, "block": False}, {"timeout": "x"}, {"block": "x"}):
        with pytest.raises(RuntimeError):
            pool.acquire(1, **bad)
    pool.close()


@pytest.mark.check(52)
def test_a_released_lease_and_a_closed_pool(make_pool):
    pool = make_pool()
    lease = pool.acquire(7)
    lease.release()
    lease.release()
    assert lease.size == 7 and lease.__enter__() is lease
    with pytest.raises(BufferError):
        _ = lease.buffer
    pool.close()
    pool.close()
    assert pool.prewarm(1, 1) is None
    with pytest.raises(RuntimeError, match="buffer pool is closed"):
        pool.acquire(0)
    with pytest.raises(RuntimeError, match="exceeds pool capacity"):
        pool.acquire(1 << 40)
