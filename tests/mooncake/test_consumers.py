"""The sequences of calls that engines make, in the shapes in which they make them."""

import os
import signal
import threading
import time
import warnings

import pytest
from conftest import MIB, PATIENCE, memory, python
from mooncake.store import BufferPool, MooncakeDistributedStore, ReplicateConfig


@pytest.mark.check(61)
def test_like_lmcache(master):
    store = MooncakeDistributedStore()
    given = {
        "local_hostname": "localhost",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": str(64 * MIB),
        "local_buffer_size": str(16 * MIB),
        "protocol": "tcp",
        "device_name": "",
        "master_server_address": master.address,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.setup(given)
    try:
        assert store.health_check() == 0
        arena = memory(MIB)
        assert store.register_buffer(arena.ptr, arena.size) == 0
        wish = ReplicateConfig()
        wish.preferred_segment = store.get_hostname()
        assert not store.is_exist("lm/chunk")
        head, data = b"meta" * 4, bytes(range(256)) * 16
        store.put_parts("lm/chunk", head, data, config=wish)
        assert store.is_exist("lm/chunk")
        (handle,) = store.batch_get_buffer(["lm/chunk"])
        view = memoryview(handle)
        assert bytes(view[:16]) == head and bytes(view[16:]) == data
        places = [arena.ptr, arena.ptr + 8192]
        assert store.batch_put_from(["lm/1", "lm/2"], places, [4096, 4096], wish) == [0, 0]
        assert store.batch_get_into(["lm/1", "lm/chunk"], places, [4096, 8192]) == [4096, 4112]
        assert store.batch_is_exist(["lm/1", "lm/none"]) == [1, 0]
        assert store.unregister_buffer(arena.ptr) == 0
    finally:
        assert store.close() == 0


@pytest.mark.check(61)
def test_like_vllm(master, make_store):
    lender = make_store()
    store = make_store(0, tenant_id="default")
    blocks = memory(bytes(range(256)) * 64)
    assert store.register_buffer(blocks.ptr, blocks.size) == 0
    wish = ReplicateConfig()
    wish.preferred_segment = lender.get_hostname()
    keys = [f"vllm/{n}" for n in range(8)]
    places = [[blocks.ptr + n * 2048, blocks.ptr + n * 2048 + 1024] for n in range(8)]
    sizes = [[1024, 512]] * 8
    assert hasattr(ReplicateConfig, "group_ids")
    wish.group_ids = ["request-1"] * 8
    assert store.batch_put_from_multi_buffers(keys, places, sizes, wish) == [0] * 8
    assert store.batch_is_exist([*keys, "vllm/none"]) == [1] * 8 + [0]
    target = memory(blocks.size)
    into = [[target.ptr + n * 2048, target.ptr + n * 2048 + 1024] for n in range(8)]
    results = store.batch_get_into_multi_buffers([*keys, "vllm/none"], [*into, into[0]], [*sizes, sizes[0]])
    assert results == [1536] * 8 + [-704]
    assert bytes(target)[:1536] == bytes(blocks)[:1536]
    found = store.batch_get_replica_desc(keys)
    assert list(found) == keys and all(one[0].is_memory_replica() for one in found.values())
    assert store.remove_all(force=True) >= 8


@pytest.mark.check(61)
def test_like_sglang_with_an_exit_without_close(master):
    said = python(
        """
        import sys
        from mooncake.store import MooncakeDistributedStore

        store = MooncakeDistributedStore()
        optional = {"enable_ssd_offload": False, "tenant_id": "default", "speed": "ludicrous"}
        arguments = ("localhost", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1], None)
        while True:
            try:
                assert store.setup(*arguments, **optional) == 0
                break
            except TypeError as error:
                bad = [name for name in optional if name in str(error)]
                assert bad == ["speed"], error
                for name in bad:
                    del optional[name]
        check = "sglang_warmup"
        assert store.put(check, bytes(4096)) == 0
        assert store.is_exist(check) == 1 and store.get(check) == bytes(4096)
        import ctypes
        pool = (ctypes.c_char * (1 << 20))()
        first = ctypes.addressof(pool)
        assert store.register_buffer(first, 1 << 20) == 0
        keys = [f"sgl/{n}" for n in range(16)]
        places = [first + n * 4096 for n in range(16)]
        assert store.batch_is_exist(keys) == [0] * 16
        assert store.batch_put_from(keys, places, [4096] * 16) == [0] * 16
        assert store.batch_get_into(keys, places, [4096] * 16) == [4096] * 16
        store.remove_all()
        print("done")
        """,
        master.address,
    )
    assert said.strip() == "done"
    # It said farewell: its segment is not there any more.
    store = MooncakeDistributedStore()
    arguments = ("localhost", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", master.address)
    assert store.setup(*arguments) == 0
    assert store.batch_is_exist(["sgl/0", "sglang_warmup"]) == [0, 0]
    store.close()


def test_a_child_of_a_fork_is_told(make_store):
    store = make_store()
    assert store.put("fork", b"value") == 0
    assert store.batch_put_session_start(["fork/open"], [1]) == [0]
    child = os.fork()
    if child == 0:
        # -600 and an empty value, no crash, no hang; and the parent's store stays as it is.
        good = store.put("fork/child", b"x") == -600 and store.get("fork") == b""
        good = good and store.batch_put_session_end(["fork/open"]) == [-600]
        good = good and store.batch_get_session_start(["fork"]) == [-600]
        good = good and store.health_check() != 0 and store.close() == 0
        os._exit(0 if good else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.get("fork") == b"value" and store.is_exist("fork/child") == 0
    # The child has taken nothing of the parent's session along.
    source = memory(b"x")
    write = store.batch_put_from_multi_buffer_ranges
    assert write(["fork/open"], [[source.ptr]], [[1]], [[0]]) == [1]
    assert store.batch_put_session_end(["fork/open"]) == [0] and store.get("fork/open") == b"x"


def test_a_child_waits_for_no_lock_of_its_parent(make_store):
    # The crash hunt found it: a thread of the parent was inside a call when another one forked, and the
    # child waited for ever for a lock that nobody would open.
    store = make_store()
    pool = BufferPool(store)
    held, over = threading.Event(), threading.Event()

    def hold():
        with store._live.lock, store._setup_lock, pool._changed:
            held.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        good = store.unmount_segment(["1-2"]) == -1 and store.register_buffer(8192, 10) == -600
        good = good and store.close() == 0
        try:
            pool.acquire(10)
        except RuntimeError:
            os._exit(0 if good else 1)
        os._exit(2)
    end = time.monotonic() + PATIENCE
    done, status = os.waitpid(child, os.WNOHANG)
    while not done and time.monotonic() < end:
        time.sleep(0.01)
        done, status = os.waitpid(child, os.WNOHANG)
    over.set()
    thread.join(PATIENCE)
    if not done:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert done and os.waitstatus_to_exitcode(status) == 0
