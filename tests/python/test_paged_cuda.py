"""Paged caches in pinned memory and in memory of a GPU, on an emulator of the driver.

The emulator's device memory is memory of the process, so what lies there can be looked at. What torch does with
a real GPU is shown by `torch_views.py`, which `./dev gpu` runs.
"""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

import mooncrate
from conftest import PATIENCE
from mooncrate.paged import Geometry, PagedCache

EMULATOR = pathlib.Path(__file__).parent.parent.parent / "crates/gpu/tests/emulator/driver.cpp"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """Runs a program in another Python, with a GPU that is emulated."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the emulator of the driver needs g++")
    folder = tmp_path_factory.mktemp("emulator")
    build = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
    subprocess.run([*build, "-o", folder / "libcuda.so", EMULATOR], check=True)
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(paths)}

    def run(code):
        # In a function, so that everything is given back before the end: the emulator complains about leaks.
        program = HEAD + "def program():\n" + textwrap.indent(textwrap.dedent(code), "    ")
        program += "\nprogram()\ngc.collect()\n"
        command = [sys.executable, "-X", "faulthandler", "-c", program]
        done = subprocess.run(
            command, capture_output=True, timeout=PATIENCE, check=False, text=True, env=environment
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr

    return run


HEAD = '''
import ctypes, gc
import numpy as np
import mooncrate
from mooncrate.paged import Geometry, PagedCache

def made(memory, dtype="float32", **more):
    geometry = Geometry(layers=2, kv_heads=2, head_dim=8, block_tokens=4, dtype=dtype)
    return PagedCache(geometry, 16, memory=memory, **more)

def stamped(tokens):
    return np.arange(tokens * 16, dtype="f4").reshape(tokens, 2, 8)

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("rank", ctypes.c_int32),
                ("kind", ctypes.c_uint8 * 4), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]

class Versioned(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]

def exported(view, **more):
    """What a consumer of DLPack is told; the capsule, too, which keeps it."""
    capsule = view.__dlpack__(max_version=(1, 1), **more)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    head = ctypes.cast(pointer(capsule, b"dltensor_versioned"), ctypes.POINTER(Versioned)).contents
    return head, capsule

def refused(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("it was taken")
'''


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("memory", ["pinned", "cuda"])
def test_without_a_driver_there_is_one_clear_error(memory):
    if has_driver():
        pytest.skip("this machine has a driver")
    geometry = Geometry(layers=1, kv_heads=1, head_dim=8)
    with pytest.raises(mooncrate.Invalid, match="no CUDA driver: .* install NVIDIA's driver") as caught:
        PagedCache(geometry, 4, memory=memory)
    assert (caught.value.kind, caught.value.advice) == ("no gpu", "give up")


def test_memory_is_chosen_by_name():
    geometry = Geometry(layers=1, kv_heads=1, head_dim=8)
    with pytest.raises(mooncrate.Invalid, match="choose of host, pinned, cuda"):
        PagedCache(geometry, 4, memory="vram")
    with pytest.raises(mooncrate.Invalid):
        PagedCache(geometry, 4, memory="cuda", device=-1)
    cache = PagedCache(geometry, 4)
    assert (cache.memory, cache.device) == ("host", None)


def test_host_memory_has_no_interface_of_a_gpu():
    cache = PagedCache(Geometry(layers=1, kv_heads=1, head_dim=8, dtype="float32"), 4)
    cache.allocate("a", count=4)
    view = cache.view("a", 0)
    assert not hasattr(view, "__cuda_array_interface__") and view.__dlpack_device__() == (1, 0)
    assert view.__array__().ctypes.data != 0 and view.__array__("f8").dtype == "f8"
    with pytest.raises(BufferError, match="stream"):
        view.__dlpack__(stream=1)


def test_a_gpu_that_is_not_there_is_named(emulated):
    emulated("""
        words = refused(lambda: made("cuda", device=9), mooncrate.Invalid)
        assert "no GPU number 9" in words, words
        big = Geometry(layers=1, kv_heads=8, head_dim=128, block_tokens=1024, dtype="float32")
        words = refused(lambda: PagedCache(big, 4096, memory="cuda"), MemoryError)
        assert "OUT_OF_MEMORY" in words, words
    """)


def test_views_of_a_gpu_have_its_addresses(emulated):
    emulated("""
        cache = made("cuda")
        assert (cache.memory, cache.device) == ("cuda", 0)
        cache.allocate("first", count=1)
        cache.allocate("a", count=10, contiguous=True)
        cache.write_tokens("a", 1, 0, stamped(10), stamped(10) + 500)
        view = cache.view("a", 1, "v")
        interface = view.__cuda_array_interface__
        assert interface["version"] == 3 and interface["stream"] is None
        assert interface["data"] == (view.data_ptr, False) and interface["typestr"] == "<f4"
        assert interface["shape"] == view.shape == (2, 3, 4, 8)
        assert interface["strides"] == tuple(4 * step for step in view.strides)
        pages = cache.pages(1)
        block = cache.block_table("a")[0]
        steps = block * pages.strides[0] + pages.strides[1]
        assert view.data_ptr == pages.data_ptr + 4 * steps

        head, capsule = exported(view, stream=1)
        tensor = head.tensor
        assert tensor.data == view.data_ptr and tuple(tensor.device) == (2, 0)
        assert view.__dlpack_device__() == (2, 0)
        assert tuple(tensor.shape[:tensor.rank]) == view.shape
        assert tuple(tensor.strides[:tensor.rank]) == view.strides
        assert (head.flags, tensor.offset, tuple(tensor.kind)) == (0, 0, (2, 32, 1, 0))

        # The emulator's device memory can be read: token 5 is slot 1 of the second block.
        row = (view.strides[0] * 1 + view.strides[1] * 1 + view.strides[2] * 1) * 4
        found = np.ctypeslib.as_array((ctypes.c_float * 8).from_address(view.data_ptr + row))
        assert (found == stamped(10)[5, 1] + 500).all()
        found[:] = 7
        assert (cache.read_tokens("a", 1)[1][5, 1] == 7).all()
        assert "GPU 0" in repr(view)
    """)


def test_numpy_and_copies_of_a_gpu_are_refused_in_words(emulated):
    emulated("""
        cache = made("cuda")
        cache.allocate("a", range(9), contiguous=True)
        view = cache.view("a", 0)
        for call in (view.numpy, lambda: np.asarray(view), lambda: np.array(view, "f8")):
            assert "memory of GPU 0" in refused(call, TypeError)
        assert not hasattr(view, "__array_interface__")
        assert "clone" in refused(lambda: view.__dlpack__(copy=True), BufferError)
        assert "(2, 0)" in refused(lambda: view.__dlpack__(dl_device=(1, 0)), BufferError)
        view.__dlpack__(dl_device=(2, 0), stream=2, copy=False)
        cache.publish("a", 9)
        assert "own=True" in refused(view.__dlpack__, BufferError)
        assert exported(view)[0].flags == 1 and view.__cuda_array_interface__["data"][1]
        assert exported(cache.view("a", 0, own=True))[0].flags == 0
    """)


def test_a_cache_on_a_gpu_does_what_one_on_the_host_does(emulated):
    emulated("""
        for layout in ("nhd", "hnd", "token-major", "head-major", "block-first", "layer-block-head"):
            caches = [made(memory, layout=layout, blocks_max=20) for memory in ("host", "pinned", "cuda")]
            for cache in caches:
                cache.allocate("a", range(10))
                cache.write_tokens("a", 0, 0, stamped(10), -stamped(10))
                cache.publish("a", 10)
                assert cache.allocate("b", range(10)).cached_tokens == 8
                cache.fork("a", "c")
                cache.write_tokens("c", 0, 9, stamped(1), stamped(1))
                cache.resize(20)
                cache.append("b", count=60)
                table = np.zeros((3, 20), "i4")
                cache.fill_block_tables(["a", "b", "c"], table)
                found = [cache.read_tokens(name, layer) for name in "abc" for layer in range(2)]
                if cache is caches[0]:
                    wanted, first = found, table
                assert (table == first).all()
                for one, other in zip(found, wanted):
                    assert (one[0] == other[0]).all() and (one[1] == other[1]).all(), layout
                cache.free("b")
                cache.allocate("d", count=40, tenant=3)
                assert not cache.read_tokens("d", 0)[0].any()
    """)


def test_pinned_memory_is_host_memory_and_says_what_it_is(emulated):
    emulated("""
        cache = made("pinned", "bfloat16")
        assert (cache.memory, cache.device) == ("pinned", 0)
        cache.allocate("a", count=10, contiguous=True)
        view = cache.view("a", 0, "k")
        assert view.__dlpack_device__() == (3, 0) and "pinned" in repr(view)
        assert not hasattr(view, "__cuda_array_interface__")
        array = view.numpy(raw=True)
        assert array.ctypes.data == view.data_ptr
        array[:] = 0x3f80
        assert (cache.read_tokens("a", 0, raw=True)[0] == 0x3f80).all()
        for wish, wanted in ((None, (1, 0)), ((1, 0), (1, 0)), ((3, 0), (3, 0))):
            head, capsule = exported(view, dl_device=wish)
            assert tuple(head.tensor.device) == wanted and head.tensor.data == view.data_ptr
        assert "(1, 0)" in refused(lambda: view.__dlpack__(dl_device=(2, 0)), BufferError)
        copy, capsule = exported(view, copy=True)
        assert copy.tensor.data != view.data_ptr and tuple(copy.tensor.device) == (1, 0)
        floats = made("pinned")
        floats.allocate("a", count=4)
        view = floats.view("a", 0)
        assert np.from_dlpack(view).ctypes.data == view.data_ptr
    """)


def test_views_of_a_gpu_keep_their_blocks(emulated):
    emulated("""
        cache = made("cuda")
        cache.allocate("a", count=8, contiguous=True)
        head, capsule = exported(cache.view("a", 0))
        view = cache.view("a", 0)
        cache.free("a")
        assert cache.stats()["used_blocks"] == 2
        del head, capsule
        gc.collect()
        assert cache.stats()["used_blocks"] == 2
        del view
        gc.collect()
        assert cache.stats()["used_blocks"] == 0
        view = None
        pages = cache.pages(0)
        del cache
        gc.collect()
        assert ctypes.c_float.from_address(pages.data_ptr).value == 0, "the memory outlives the cache"
        del pages
        gc.collect()
    """)
