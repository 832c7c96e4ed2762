"""Graphs that another library records beside us, on an emulator of the driver that forbids what NVIDIA's forbids.

torch records in the strictest mode by default: a call of any thread that could disturb the recording ends it. What a
real GPU and torch do is shown by `gpu_capture.py`.
"""

import textwrap

from test_device_store import emulated  # noqa: F401, a fixture

RECORDED = '''
import contextlib

GLOBAL = 0

@contextlib.contextmanager
def recording():
    """Somebody records a graph on a stream of theirs, in the strictest mode; it must come to its end."""
    theirs, room, graph, nodes = stream(), allocated(64), ptr(), size_t()
    assert cuda.cuStreamBeginCapture_v2(ptr(theirs), GLOBAL) == 0
    try:
        yield
    finally:
        cuda.cuCtxSetCurrent(context)
        filled = cuda.cuMemsetD8Async(u64(room), ctypes.c_ubyte(1), size_t(64), ptr(theirs))
        ended = cuda.cuStreamEndCapture(ptr(theirs), byref(graph))
        assert (filled, ended) == (0, 0), f"the recording was ended by others: {filled}, {ended}"
        assert cuda.cuGraphGetNodes(graph, None, byref(nodes)) == 0
        assert nodes.value == 1, f"{nodes.value} nodes: work of others is part of the graph"
        assert cuda.cuGraphDestroy(graph) == 0
        freed(room)
        assert cuda.cuStreamDestroy_v2(ptr(theirs)) == 0

def beside(work):
    """Does the work beside a recording, in another thread and in the one that records."""
    errors = []
    def caught():
        try:
            work()
        except BaseException as error:
            errors.append(error)
    with recording():
        thread = threading.Thread(target=caught)
        thread.start()
        thread.join()
        caught()
    if errors:
        raise errors[0]
'''


def test_a_store_beside_a_recording(emulated, server):  # noqa: F811
    """The first call, which loads kernels and locks memory, lies within the recording, too."""
    code = """
        def work(store):
            def once():
                for size in (100, 1 << 20, 5 << 20):
                    source, target = Array(allocated_before.pop(), size), Array(allocated_before.pop(), size)
                    source.write(data(size))
                    key = f"{threading.get_ident()}/{size}"
                    own = streams.pop()
                    assert store.put(key, source, stream=own)
                    assert store.get(key) == data(size)
                    assert store.get_into(key, target, stream=own) == size
                    assert cuda.cuCtxSetCurrent(context) == 0
                    done.append((target, size, own))
                    assert store.remove(key, force=True)
            return once

        for open_store in (
            lambda: mooncrate.Store(segment_size="64MiB"),
            lambda: mooncrate.Store(master=sys.argv[1], timeout=60.0),
        ):
            allocated_before = [allocated(5 << 20) for _ in range(12)]
            kept, streams, done = list(allocated_before), [stream() for _ in range(6)], []
            with open_store() as store:
                beside(work(store))
                for target, size, own in done:
                    assert cuda.cuStreamSynchronize(ptr(own)) == 0
                    assert target.bytes() == data(size)
                assert len(done) == 6
            for at in kept:
                freed(at)
    """
    emulated(RECORDED + "\n" + textwrap.dedent(code), server.master)


def test_a_nano_cache_beside_a_recording(emulated):  # noqa: F811
    emulated(
        RECORDED
        + textwrap.dedent("""
        from mooncrate.nano import NanoKVCache
        for checksums in (False, True):
            arrays = [Array(allocated(100_000), 100_000).write(data(100_000)) for _ in range(2)]
            with NanoKVCache(4 << 20, rank=0, world=1, page_bytes=4096, slots=64, checksums=checksums) as cache:
                def work():
                    source, target = arrays
                    target.write(bytes(100_000))
                    cache.put("key", source)
                    assert cache.get_into("key", target)
                    assert target.bytes() == data(100_000)
                    plan = cache.open_for_write("plan", 5000)
                    cache.push(plan, data(5000))
                    cache.commit("plan")
                    room = bytearray(5000)
                    assert cache.get_into("plan", room) and room == data(5000)
                    assert cache.remove("key") and cache.remove("plan")
                    cache.open_for_write("given up", 100)
                    cache.abandon("given up")
                beside(work)
            for array in arrays:
                freed(array.at)
        """)
    )


def test_a_paged_cache_beside_a_recording(emulated):  # noqa: F811
    emulated(
        RECORDED
        + textwrap.dedent("""
        import numpy as np
        from mooncrate.paged import Geometry, PagedCache
        def work():
            geometry = Geometry(layers=2, kv_heads=2, head_dim=8, block_tokens=4, dtype="float32")
            cache = PagedCache(geometry, 16, memory="cuda")
            cache.allocate("a", range(10))
            rows = np.arange(160, dtype="f4").reshape(10, 2, 8)
            cache.write_tokens("a", 0, 0, rows, -rows)
            cache.publish("a", 10)
            cache.fork("a", "b")
            cache.write_tokens("b", 0, 9, rows[:1], rows[:1])
            assert (cache.read_tokens("a", 0)[1] == -rows).all()
            del cache
            gc.collect()
        beside(work)
        """)
    )
