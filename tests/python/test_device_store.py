"""Values of GPUs, on an emulator of the driver: put from device memory, got into it, in the order of streams.

The emulator's device memory is memory of the process, so what lies there can be looked at; a stream can be held,
as a slow kernel would. What a real GPU does is shown by `device_store.py`, which `./dev gpu` runs.
"""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

import mooncrate
from conftest import PATIENCE, Server
from test_paged_cuda import has_driver

HEAD = '''
import asyncio, ctypes, gc, sys, threading, time
import mooncrate
from mooncrate._native import Raw, memory_device
cuda = ctypes.CDLL("libcuda.so")
u64, size_t, ptr, byref = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.byref
context = ptr()
assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0

def allocated(size):
    at = u64()
    assert cuda.cuMemAlloc_v2(byref(at), size_t(size)) == 0
    return at.value

def freed(at):
    assert cuda.cuMemFree_v2(u64(at)) == 0

class Array:
    """What CuPy shows: memory of a GPU by `__cuda_array_interface__`."""
    def __init__(self, at, size, *, readonly=False, stream=None, strides=None, typestr="|u1", shape=None):
        self.at, self.size = at, size
        self.__cuda_array_interface__ = {
            "version": 3, "data": (at, readonly), "shape": shape or (size,), "typestr": typestr,
            "strides": strides, "stream": stream,
        }
    # On the class, as real arrays have it.
    __cuda_array_interface__ = None
    def bytes(self):
        return ctypes.string_at(self.at, self.size)
    def write(self, data):
        ctypes.memmove(self.at, data, len(data))
        return self

class Shown:
    """What knows DLPack alone."""
    def __init__(self, view):
        self.view = view
    def __dlpack__(self, **more):
        self.asked = more
        return self.view.__dlpack__(**more)
    def __dlpack_device__(self):
        return self.view.__dlpack_device__()

def stream():
    made = ptr()
    assert cuda.cuStreamCreate(byref(made), 0) == 0
    return made.value

def hold(handle, held=True):
    assert cuda.emulatorHold(ptr(handle), int(held)) == 0

def fill(handle, array, byte):
    assert cuda.emulatorFill(ptr(handle), ptr(array.at), ctypes.c_ubyte(byte), size_t(array.size)) == 0

def copy(handle, to, source):
    cuda.cuCtxSetCurrent(context)
    assert cuda.cuMemcpyDtoDAsync_v2(u64(to.at), u64(source.at), size_t(to.size), ptr(handle)) == 0

def data(size, seed=1):
    pattern = bytes((i * 31 + seed * 7 + (i >> 8)) & 255 for i in range(4099))
    return (pattern * (size // len(pattern) + 1))[:size]

def refused(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("it was taken")

def ended():
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
'''


@pytest.fixture
def emulated(emulator):
    """Runs a program in another Python, with a GPU that is emulated."""
    dropin = pathlib.Path(__file__).parent.parent.parent / "dropin"
    paths = [emulator, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(paths),
        "PYTHONPATH": ":".join([str(dropin), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }

    def run(code, *arguments):
        # In a function, so that everything is given back before the end: the emulator complains about leaks.
        program = HEAD + "def program():\n" + textwrap.indent(textwrap.dedent(code), "    ")
        program += "\nprogram()\ngc.collect()\nended()\n"
        command = [sys.executable, "-X", "faulthandler", "-c", program, *arguments]
        done = subprocess.run(
            command, capture_output=True, timeout=2 * PATIENCE, check=False, text=True, env=environment
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return run


class OnNoGpu:
    """Claims to be on a GPU, where there is none."""

    __cuda_array_interface__ = {
        "version": 3, "data": (4096, False), "shape": (4,), "typestr": "|u1", "strides": None,
    }  # fmt: skip


def test_without_a_driver_there_is_one_clear_error(store):
    if has_driver():
        pytest.skip("this machine has a driver")
    for call in (
        lambda: store.put("key", OnNoGpu()),
        lambda: store.put_batch({"key": OnNoGpu()}),
        lambda: store.get_into("key", OnNoGpu()),
    ):
        with pytest.raises(mooncrate.Unavailable, match="no CUDA driver: .* install NVIDIA's driver") as caught:
            call()
        assert caught.value.kind == "gpu"
    assert not store.exists("key")


def test_what_is_no_memory_at_all_is_refused_as_ever(store):
    with pytest.raises(TypeError, match="int has none"):
        store.put("key", 7)
    with pytest.raises(TypeError, match="encode the text"):
        store.put("key", "text")
    with pytest.raises(TypeError, match="float has none"):
        store.get_into("key", 1.5)


def test_host_memory_by_dlpack_alone(store):
    numpy = pytest.importorskip("numpy")

    class Shown:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **more):
            return self.array.__dlpack__(**more)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    array = numpy.arange(1000, dtype="f8")
    assert store.put("key", Shown(array))
    assert store.get("key") == array.tobytes()
    room = numpy.zeros(1000)
    assert store.get_into("key", Shown(room)) == 8000 and (room == array).all()
    with pytest.raises(mooncrate.Invalid, match="not contiguous"):
        store.put("other", Shown(array[::2]))


def test_many_values_go_into_host_memory_at_once(any_store):
    any_store.put("into/a", b"a" * 100)
    any_store.put("into/b", b"b" * 70000)
    rooms = {"into/a": bytearray(200), "into/none": bytearray(9), "into/b": bytearray(70000)}
    assert any_store.get_into_batch(rooms) == [100, None, 70000]
    assert rooms["into/a"] == b"a" * 100 + bytes(100) and rooms["into/b"] == b"b" * 70000
    small = any_store.get_into_batch([("into/b", bytearray(5)), ("into/a", bytearray(100))])
    assert isinstance(small[0], mooncrate.TooLarge) and small[1] == 100
    any_store.remove_prefix("into/")


SIZES = [1, 2, 15, 100, 4096, 65_537, 1 << 20, (1 << 20) + 17, 5 << 20]


def test_values_of_every_size_come_back_from_any_offset(emulated):
    emulated(f"""
        with mooncrate.Store(segment_size="64MiB") as store:
            for size in {SIZES}:
                source, target = allocated(size + 64), allocated(size + 64)
                for offset in (0, 1, 13):
                    key, value = f"{{size}}/{{offset}}", data(size, offset)
                    array = Array(source + offset, size).write(value)
                    assert store.put(key, array)
                    assert store.get(key) == value
                    ctypes.memset(target, 0xee, size + 64)
                    assert store.get_into(key, Array(target + offset, size)) == size
                    cuda.cuCtxSynchronize()
                    found = ctypes.string_at(target, size + 64)
                    assert found == b"\\xee" * offset + value + b"\\xee" * (64 - offset), (size, offset)
                    # A longer target keeps what is behind the value.
                    assert store.get_into(key, Array(target, size + 64)) == size
                    store.remove(key)
                freed(source), freed(target)
            empty = Array(0, 0)
            assert store.put("empty", empty) and store.get("empty") == b""
            assert store.get_into("empty", empty) == 0
            at = allocated(8)
            assert store.get_into("empty", Array(at, 8)) == 0
            assert store.get_into("none", Array(at, 8)) is None
            assert not store.put("empty", Array(at, 8)), "a key that has a value keeps it"
            freed(at)
    """)


def test_a_put_comes_after_the_work_of_its_stream(emulated):
    emulated("""
        own = stream()
        at = allocated(100_000)
        array = Array(at, 100_000)
        with mooncrate.Store(segment_size="64MiB") as store:
            for number, (given, handle) in enumerate([(own, own), (0, 0), (1, 0), (None, 0)]):
                array.write(b"o" * 100_000)
                hold(handle)
                fill(handle, array, 65 + number)
                threading.Timer(0.1, lambda: hold(handle, False)).start()
                assert store.put(f"key{number}", array, stream=given)
                assert store.get(f"key{number}") == bytes([65 + number]) * 100_000, (given, handle)
            # The stream that the array itself names, and the default stream of this thread alone.
            for number, handle in enumerate([own, 2]):
                array = Array(at, 100_000, stream=handle).write(b"o" * 100_000)
                fill(handle, array, 97 + number)
                assert store.put(f"named{number}", array)
                assert store.get(f"named{number}") == bytes([97 + number]) * 100_000
        freed(at)
        cuda.cuStreamDestroy_v2(ptr(own))
    """)


def test_a_get_stands_between_the_work_before_and_after_it(emulated):
    emulated("""
        own = stream()
        at, other = allocated(3_000_000), allocated(3_000_000)
        array, seen = Array(at, 3_000_000), Array(other, 3_000_000)
        value = data(3_000_000)
        with mooncrate.Store(segment_size="64MiB") as store:
            store.put("key", value)
            for handle in (own, 0, 2):
                array.write(b"o" * 3_000_000)
                hold(handle)
                copy(handle, seen, array)            # reads what was there before
                fill(handle, array, 0x58)            # writes before the get does
                assert store.get_into("key", array, stream=handle) == 3_000_000
                # The call has returned, and the stream has not come so far.
                assert array.bytes() == b"o" * 3_000_000, handle
                after = Array(other, 3_000_000)
                hold(handle, False)
                cuda.cuCtxSynchronize()
                assert seen.bytes() == b"o" * 3_000_000 and array.bytes() == value, handle
                hold(handle)
                fill(handle, array, 0x59)
                assert store.get_into("key", array, stream=handle) == 3_000_000
                copy(handle, after, array)           # a later kernel sees the value
                hold(handle, False)
                cuda.cuCtxSynchronize()
                assert after.bytes() == value, handle
        freed(at), freed(other)
        cuda.cuStreamDestroy_v2(ptr(own))
    """)


def test_a_stream_that_does_not_end_is_an_error_and_nothing_is_lost(emulated):
    emulated("""
        own = stream()
        at = allocated(1 << 20)
        array = Array(at, 1 << 20).write(data(1 << 20))
        with mooncrate.Store(segment_size="64MiB", timeout=0.3) as store:
            hold(own)
            fill(own, array, 65)
            try:
                store.put("key", array, stream=own)
                raise AssertionError("it was taken")
            except mooncrate.Busy as error:
                assert "did not end within" in str(error), error
                assert (error.kind, error.advice) == ("late stream", "retry")
            assert not store.exists("key")
            hold(own, False)
            assert store.put("key", array, stream=own)
            assert store.get("key") == b"A" * (1 << 20)
        freed(at)
        cuda.cuStreamDestroy_v2(ptr(own))
    """)


def test_bad_memory_and_bad_streams_are_named(emulated):
    emulated("""
        at = allocated(4096)
        with mooncrate.Store(segment_size="64MiB") as store:
            store.put("key", data(4096))
            words = refused(lambda: store.put("bad", Array(at, 4097)), mooncrate.Invalid)
            assert "only 4096 bytes are allocated on GPU 0" in words, words
            words = refused(lambda: store.get_into("key", Array(at + 1, 4096)), mooncrate.Invalid)
            assert "only 4095 bytes" in words, words
            host = ctypes.create_string_buffer(64)
            words = refused(lambda: store.put("bad", Array(ctypes.addressof(host), 64)), mooncrate.Invalid)
            assert "not memory of a GPU" in words, words
            strided = Array(at, 1024, shape=(32, 32), strides=(64, 1))
            assert "not contiguous" in refused(lambda: store.put("bad", strided), mooncrate.Invalid)
            dense = Array(at, 1024, shape=(32, 32), strides=(32, 1))
            assert store.put("dense", dense)
            readonly = Array(at, 4096, readonly=True)
            assert "read-only" in refused(lambda: store.get_into("key", readonly), mooncrate.Invalid)
            assert store.put("readonly", readonly)
            words = refused(lambda: store.get_into("key", Array(at, 4095)), mooncrate.TooLarge)
            assert "4096 bytes, the buffer 4095" in words, words
            assert "no handle" in refused(lambda: store.put("bad", dense, stream=-3), mooncrate.Invalid)
            assert "a stream is" in refused(lambda: store.put("bad", dense, stream="0"), TypeError)
            own = stream()
            assert cuda.cuStreamBeginCapture_v2(ptr(own), 0) == 0
            for call in (lambda: store.put("bad", dense, stream=own), lambda: store.get_into("key", readonly)):
                refused(call, mooncrate.Invalid)
            words = refused(lambda: store.get_into("key", Array(at, 4096), stream=own), mooncrate.Invalid)
            assert "recorded into a graph" in words, words
            graph = ptr()
            assert cuda.cuStreamEndCapture(ptr(own), byref(graph)) == 0
            assert cuda.cuGraphDestroy(graph) == 0
            cuda.cuStreamDestroy_v2(ptr(own))
            assert not store.exists("bad")
            freed(at)
            words = refused(lambda: store.put("bad", Array(at, 4096)), mooncrate.Invalid)
            assert "freed" in words, words
    """)


def test_dlpack_alone_is_enough(emulated):
    emulated("""
        from mooncrate.paged import Geometry, PagedCache
        cache = PagedCache(Geometry(layers=1, kv_heads=1, head_dim=8, block_tokens=4, dtype="float32"), 16,
                           memory="cuda", layout="token-major")
        cache.allocate("a", count=16, contiguous=True)
        view = Shown(cache.tokens_view("a", 0, "k"))
        with mooncrate.Store(segment_size="64MiB") as store:
            value = data(16 * 8 * 4)
            store.put("key", value)
            assert store.get_into("key", view) == len(value)
            # Its library was asked to see to the order with the default stream.
            assert view.asked["stream"] == 1
            cuda.cuCtxSynchronize()
            assert store.put("copy", view, stream=0) and store.get("copy") == value
            assert view.asked["stream"] == 1
        del view, cache
    """)


def test_batches_of_host_and_device_memory(emulated):
    emulated("""
        sizes = [1, 300, 70_000, 3 << 20, 20 << 20, 20 << 20, 12]
        at = [allocated(size) for size in sizes]
        values = [data(size, seed) for seed, size in enumerate(sizes)]
        arrays = [Array(*one).write(value) for one, value in zip(zip(at, sizes), values)]
        with mooncrate.Store(segment_size="256MiB") as store:
            items = {f"device/{n}": array for n, array in enumerate(arrays)}
            items["host"] = b"h" * 500
            items[b""] = arrays[0]
            stored = store.put_batch(items)
            assert stored[:-1] == [True] * (len(sizes) + 1), stored
            assert isinstance(stored[-1], mooncrate.Invalid), stored[-1]
            for n, value in enumerate(values):
                assert store.get(f"device/{n}") == value, n
            for array in arrays:
                array.write(bytes(array.size))
            room = bytearray(600)
            goals = [(f"device/{n}", array) for n, array in enumerate(arrays)]
            goals[2:2] = [("none", arrays[0]), ("host", room), ("device/1", Array(at[0], 1))]
            got = store.get_into_batch(goals)
            assert [one for at, one in enumerate(got) if at not in (2, 3, 4)] == sizes, got
            assert got[2] is None and got[3] == 500 and isinstance(got[4], mooncrate.TooLarge), got
            cuda.cuCtxSynchronize()
            assert [array.bytes() for array in arrays] == values
            parts = [b"head", arrays[1], b"", bytearray(b"tail"), arrays[0]]
            assert store.put_parts("parts", parts)
            assert store.get("parts") == b"head" + values[1] + b"tail" + values[0]
        for one in at:
            freed(one)
    """)


def test_the_loop_has_the_same_calls(emulated):
    emulated("""
        async def main():
            own = stream()
            at = allocated(1 << 20)
            array, value = Array(at, 1 << 20), data(1 << 20)
            async with mooncrate.AsyncStore(segment_size="64MiB") as store:
                array.write(value)
                assert await store.put("key", array, stream=own)
                assert await store.get("key") == value
                hold(own)
                fill(own, array, 66)
                late = store.put("late", array, stream=own)
                await asyncio.sleep(0.05)
                hold(own, False)
                assert await late and await store.get("late") == b"B" * (1 << 20)
                assert await store.get_into("key", array, stream=own) == 1 << 20
                assert cuda.cuStreamSynchronize(ptr(own)) == 0 and array.bytes() == value
                assert await store.put_batch({"a": array, "b": b"b"}) == [True, True]
                array.write(bytes(1 << 20))
                assert await store.get_into_batch([("a", array), ("none", array)]) == [1 << 20, None]
                cuda.cuCtxSynchronize()
                assert array.bytes() == value
                # Nobody waits for it; its memory is let alone all the same.
                store.get_into("key", array)
            freed(at)
            cuda.cuStreamDestroy_v2(ptr(own))
        asyncio.run(main())
    """)


def test_a_cluster_holds_values_of_gpus(emulated, server):
    emulated(
        """
        at = allocated(9 << 20)
        for path in (True, False):
            with mooncrate.Store(master=sys.argv[1], shared_memory=path) as store:
                for size in (1, 5000, 9 << 20):
                    value = data(size)
                    assert store.put("gpu", Array(at, size).write(value), upsert=True)
                    Array(at, size).write(bytes(size))
                    assert store.get("gpu") == value
                    assert store.get_into("gpu", Array(at, size)) == size
                    cuda.cuCtxSynchronize()
                    assert Array(at, size).bytes() == value, (path, size)
                store.remove("gpu", force=True)
        freed(at)
        """,
        server.master,
    )


def test_the_drop_in_takes_addresses_of_gpus(emulated, server):
    emulated(
        """
        import logging
        from mooncake.store import MooncakeDistributedStore
        logging.disable()
        at, host = allocated(1 << 20), ctypes.create_string_buffer(5000)
        array, value = Array(at, 1 << 20), data(1 << 20)
        store = MooncakeDistributedStore()
        assert store.setup("localhost", "", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
        assert memory_device(at, 1 << 20) == 0 and memory_device(at + 1, 1 << 20) is None
        assert store.register_buffer(at, 1 << 20) == 0
        assert store.register_buffer(at + 4096, 10) != 0, "it overlaps"
        array.write(value)
        assert store.put_from("gpu", at, 1 << 20) == 0
        assert store.get("gpu") == value
        array.write(bytes(1 << 20))
        assert store.get_into("gpu", at, 1 << 20) == 1 << 20 and array.bytes() == value
        assert store.get_into("none", at, 1 << 20) == -704
        assert store.get_into("gpu", at, 1000) < 0
        assert store.batch_put_from(["a", "b"], [at, at + 4097], [4097, 10]) == [0, 0]
        assert store.batch_get_into(["a", "b"], [at + 8192, at + 3], [4097, 10]) == [4097, 10]
        assert ctypes.string_at(at + 8192, 4097) == value[:4097]
        assert ctypes.string_at(at + 3, 10) == value[4097:4107]
        array.write(value)
        ctypes.memmove(host, b"h" * 5000, 5000)
        pieces = [[at + 1, ctypes.addressof(host), at + 70_000]]
        assert store.batch_put_from_multi_buffers(["c"], pieces, [[100, 5000, 900]]) == [0]
        assert store.get("c") == value[1:101] + b"h" * 5000 + value[70_000:70_900]
        array.write(bytes(1 << 20)), ctypes.memmove(host, bytes(5000), 5000)
        assert store.batch_get_into_multi_buffers(["c"], pieces, [[100, 5000, 900]]) == [6000]
        assert ctypes.string_at(at + 1, 100) == value[1:101] and host.raw == b"h" * 5000
        assert ctypes.string_at(at + 70_000, 900) == value[70_000:70_900]
        assert store.batch_get_into_multi_buffers(["c"], pieces, [[100, 5000, 901]])[0] < 0
        assert store.unregister_buffer(at) == 0
        assert store.put_from("again", at, 100) == 0, "the driver knows it anyway"
        for key in ("gpu", "a", "b", "c", "again"):
            store.remove(key, True)
        assert store.close() == 0
        freed(at)
        """,
        server.master,
    )


@pytest.fixture
def lender(emulator, tmp_path):
    """A server that lends memory of the emulated GPU."""
    more = ("--segment-size", "64MiB", "--vram", "0=32MiB")
    server = Server(tmp_path, more, {"LD_LIBRARY_PATH": emulator})
    yield server
    server.stop()


def test_values_in_vram_go_straight_between_gpus(emulated, lender):
    emulated(
        """
        at, to = allocated(9 << 20), allocated(9 << 20)
        with mooncrate.Store(master=sys.argv[1]) as store:
            sizes = [1, 15, 4097, 1 << 20, (1 << 20) + 5, (5 << 20) + 16]
            for number, size in enumerate(sizes):
                value, key = data(size, number), f"vram/{size}"
                assert store.put(key, Array(at + number, size).write(value), medium="vram")
                assert store.get_into(key, Array(to + 3, size)) == size
                cuda.cuCtxSynchronize()
                assert Array(to + 3, size).bytes() == value, size
                # Who has no GPU reads it through its owner, and finds the same.
                assert store.get(key) == value, size
                assert not store.put(key, Array(at, size), medium="vram"), "it has a value"
            client = store.stats()["client"]
            assert client["direct_puts"] == client["direct_gets"] == len(sizes), client
            assert client["device_fallbacks"] == 0, client
            # A batch goes the same way, and so does an update.
            rooms = [(f"vram/{size}", Array(to, size)) for size in sizes[:3]]
            assert store.get_into_batch(rooms) == sizes[:3]
            assert store.stats()["client"]["direct_gets"] > len(sizes)
            assert store.put("vram/1", Array(at, 1).write(b"u"), medium="vram", upsert=True)
            assert store.get_into("vram/1", Array(to, 1)) == 1 and Array(to, 1).bytes() == b"u"
            # Values of hosts go to VRAM, too, and values of GPUs to hosts.
            assert store.put("vram/host", b"h" * 3_000_000, medium="vram")
            assert store.get_into("vram/host", Array(to, 3_000_000)) == 3_000_000
            assert Array(to, 3_000_000).bytes() == b"h" * 3_000_000
            before = store.stats()["client"]["direct_gets"]
            assert store.put("dram", Array(at, 5000).write(data(5000)), medium="dram")
            assert store.get_into("dram", Array(to, 5000)) == 5000
            assert store.stats()["client"]["direct_gets"] == before
            words = refused(lambda: store.put("bad", b"x", medium="tape"), mooncrate.Invalid)
            assert "vram, dram or ssd" in words, words
        # Over the network there is no memory to share.
        with mooncrate.Store(master=sys.argv[1], shared_memory=False) as store:
            assert store.put("far", Array(at, 5000).write(data(5000)), medium="vram")
            assert store.get_into("far", Array(to, 5000)) == 5000
            cuda.cuCtxSynchronize()
            assert Array(to, 5000).bytes() == data(5000)
            client = store.stats()["client"]
            assert client["direct_puts"] == client["direct_gets"] == 0, client
            assert client["device_fallbacks"] == 2, client
        freed(at), freed(to)
        """,
        lender.master,
    )


def test_a_get_from_vram_waits_for_the_work_before_it(emulated, lender):
    emulated(
        """
        own = stream()
        at, to = allocated(2 << 20), allocated(2 << 20)
        value = data(2 << 20)
        target, seen = Array(to, 2 << 20), Array(at, 2 << 20)
        with mooncrate.Store(master=sys.argv[1]) as store:
            store.put("key", seen.write(value), medium="vram")
            target.write(b"o" * (2 << 20))
            hold(own)
            copy(own, seen, target)
            fill(own, target, 66)
            threading.Timer(0.1, lambda: hold(own, False)).start()
            assert store.get_into("key", target, stream=own) == 2 << 20
            cuda.cuCtxSynchronize()
            assert seen.bytes() == b"o" * (2 << 20) and target.bytes() == value
            assert store.stats()["client"]["direct_gets"] == 1
        # Longer than a call may take: it goes through a room, and stands in line with its stream.
        with mooncrate.Store(master=sys.argv[1], timeout=0.5) as store:
            hold(own)
            fill(own, target, 66)
            assert store.get_into("key", target, stream=own) == 2 << 20
            assert target.bytes() == value, "nothing has happened yet"
            target.write(b"o" * (2 << 20))
            hold(own, False)
            cuda.cuCtxSynchronize()
            assert target.bytes() == value
            assert store.stats()["client"]["device_fallbacks"] == 1
        freed(at), freed(to)
        cuda.cuStreamDestroy_v2(ptr(own))
        """,
        lender.master,
    )


def test_bytes_that_went_bad_in_vram_are_never_handed_out(emulated, lender):
    """A GPU process that may write to the segment breaks a value: a get finds out, however it goes."""
    emulated(
        """
        at, to = allocated(2 << 20), allocated(2 << 20)
        with mooncrate.Store(master=sys.argv[1]) as store:
            value = data(2 << 20)
            assert store.put("key", Array(at, 2 << 20).write(value), medium="vram")
            assert store.get_into("key", Array(to, 2 << 20)) == 2 << 20
            # The segment is mapped here: it has the value somewhere besides our two.
            with open("/proc/self/maps") as maps:
                mapped = [line.split()[0].split("-") for line in maps if "device memory" in line and "rw" in line]
            broken = 0
            for first, end in mapped:
                first, end = int(first, 16), int(end, 16)
                found = ctypes.string_at(first, end - first).find(value)
                if found >= 0 and first + found not in (at, to):
                    ctypes.memset(first + found + 1_500_000, value[1_500_000] ^ 1, 1)
                    broken += 1
            assert broken >= 1, "the value was not found"
            try:
                got = store.get_into("key", Array(to, 2 << 20))
            except mooncrate.Error as error:
                got = error
            assert got is None or isinstance(got, mooncrate.Error), got
        freed(at), freed(to)
        """,
        lender.master,
    )


def test_a_get_to_a_gpu_that_is_interrupted(emulated, tmp_path):
    """Nothing is on its way to the caller's memory when the call has raised, and the next call has all it needs."""
    server = Server(tmp_path)
    arguments = [server.master, str(server.process.pid), str(pathlib.Path(__file__).parent)]
    code = """
        sys.path.insert(0, sys.argv[3])
        import interrupts
        size, pid = 4 << 20, int(sys.argv[2])
        store = mooncrate.Store(master=sys.argv[1], timeout=interrupts.HOUR, shared_memory=False)
        array = Array(allocated(size), size)
        interrupts.settled(store)
        store.put("key", data(size))
        store.put("other", data(size))
        assert store.get_into("key", array) == size
        array.write(b"x" * size)
        interrupts.still(pid, store.get_into, "key", array)
        interrupts.settled(store)
        interrupts.still(pid, store.get_into_batch, {"key": array, "other": array})
        interrupts.settled(store)
        assert array.bytes() == b"x" * size
        for key in ("key", "other"):
            got = interrupts.eventually(store.get_into, key, array)
            assert got is None or (got == size and array.bytes() == data(size))
        interrupts.eventually(store.remove_prefix, "", force=True)
        store.close()
        freed(array.at)
    """
    try:
        emulated(code, *arguments)
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()
