"""The GPU-resident cache, with a real process for each rank: heaps in host memory, and on an emulated GPU."""

import os
import pathlib
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import mooncrate
from conftest import PATIENCE, python
from mooncrate import NanoKVCache
from mooncrate.nano import NotReady

EXAMPLE = pathlib.Path(__file__).parent.parent.parent / "examples/python/nano_push.py"
# Every rank runs this first. A page of 4 KiB gives small values several pages.
FRONT = """
import sys
import numpy as np
import mooncrate
from mooncrate.nano import NanoKVCache, NotReady

def refused(words, call, *given, kind=mooncrate.Error, **more):
    try:
        call(*given, **more)
    except kind as error:
        assert words in str(error), error
        return error
    raise AssertionError(f"not refused: {words}")

def stamped(length, seed):
    return np.random.default_rng(seed).integers(0, 256, length, "u1")

path, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
MORE = {"heap_bytes": 4 << 20, "page_bytes": 4096, "slots": 64, "backend": "host", "path": path}
"""
JOIN = "cache = NanoKVCache(**MORE, rank=rank, world=world)\nnext_rank = (rank + 1) % world\n"


def started(folder, world, code, front, **environment):
    program = front + textwrap.dedent(code)
    return [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", program, f"{folder}/meet", str(rank), str(world)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **{name: value.format(rank=rank) for name, value in environment.items()}},
        )
        for rank in range(world)
    ]  # fmt: skip


def ended(processes):
    """What each rank printed. All of them must end well and say nothing else."""
    said = []
    try:
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    # All at once: one rank that fails makes the others fail.
    errors = {rank: errors for rank, (_, errors) in enumerate(said) if errors}
    assert not errors, "\n".join(f"rank {rank}: {words}" for rank, words in errors.items())
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [out for out, _ in said]


def together(folder, world, code, front=FRONT + JOIN, **environment):
    return ended(started(folder, world, code, front, **environment))


def alone(**more):
    return NanoKVCache(**{"heap_bytes": 4 << 20, "slots": 64, "backend": "host", "rank": 0, "world": 1, **more})


# Several ranks


@pytest.mark.parametrize("world", [2, 4])
def test_what_one_rank_puts_every_rank_gets(tmp_path, world):
    together(tmp_path, world, """
        lengths = [0, 1, 4095, 4096, 4097, 100_000]
        for length in lengths:
            cache.put(f"{rank}/{length}", stamped(length, rank), preferred_segment=next_rank)
        cache.barrier()
        for owner in range(world):
            for length in lengths:
                key, value = f"{owner}/{length}", stamped(length, owner)
                assert (cache.get(key) == value).all() and cache.get(key).size == length
                room = np.zeros(length, "u1")
                assert cache.get_into(key, room) is True and (room == value).all()
                room = bytearray(length)
                assert cache.get(key, dst=room) is room and room == value.tobytes()
                meta = cache.get_location(key)
                assert meta.owner_rank == (owner + 1) % world and meta.bytes_total == length
                assert meta.n_pages == -(-length // 4096) and meta.page_bytes == 4096
                assert meta.n_pages * 4096 - meta.bytes_total == (length and 4096 - meta.last_page_bytes)
        cache.barrier()
        for length in lengths:
            assert cache.remove(f"{rank}/{length}") is True
        cache.barrier()
        for length in lengths:
            key = f"{next_rank}/{length}"
            assert cache.get(key) is None and cache.get_location(key) is None
            assert not cache.get_into(key, bytearray(length)) and not cache.touch(key)
            assert cache.remove(key) is False
        stats = cache.stats()
        assert stats["bytes_tx"] == sum(lengths) and stats["bytes_rx"] == 4 * world * sum(lengths)
        assert stats["plans"] == len(lengths) and all(type(number) is int for number in stats.values())
        cache.close()
    """)  # fmt: skip


def test_heaps_are_emptied_to_a_share_and_tell_what_they_hold(tmp_path):
    together(tmp_path, 2, """
        for number in range(8):
            cache.put(f"{rank}/{number}", stamped(100_000, rank), preferred_segment=rank)
        full = cache.stats()
        assert full["ready_count"] == 8 and full["bytes_used"] >= 800_000
        assert full["bytes_total"] > full["bytes_used"]
        page = cache.metrics()
        assert f'mooncrate_nano_heap_values{{rank="{rank}"}} 8.0' in page
        assert "mooncrate_nano_pushed_bytes_total 800000" in page
        assert "mooncrate_nano_push_seconds_count 8" in page
        cache.barrier()
        half = full["bytes_used"] / full["bytes_total"] / 2
        if rank == 0:
            cache.evict_until_below(half)
        cache.barrier()
        assert cache.stats()["ready_count"] == 4
        assert cache.get(f"{rank}/3") is None and cache.get(f"{rank}/4") is not None
        cache.evict_until_below(0, rank=rank)
        assert cache.stats()["bytes_used"] == 0
        refused("give one from 0.0", cache.evict_until_below, 1.5)
        refused("give one from 0.0", cache.evict_until_below, float("nan"))
        refused("is no rank", cache.evict_until_below, 0.5, rank=2)
        cache.close()
    """)  # fmt: skip


@pytest.mark.parametrize("checksums", [False, True])
def test_large_values_lie_in_one_heap_in_one_piece(tmp_path, checksums):
    """The master of a store cuts values of more than 64 MiB where there are two segments."""
    join = JOIN.replace("**MORE", f"**{{**MORE, 'heap_bytes': 160 << 20}}, checksums={checksums}")
    together(tmp_path, 2, """
        if rank == 0:
            for size in (64 << 20, 65 << 20, 128 << 20):
                for again in range(2):
                    value = np.full(size, size >> 20, "u1")
                    value[-100:] = again
                    cache.put("large", value, preferred_segment=1)
                    meta = cache.get_location("large")
                    assert (meta.owner_rank, meta.bytes_total) == (1, size)
                    assert (cache.get("large") == value).all()
                    assert cache.remove("large")
            refused("bytes", cache.put, "too large", np.zeros(161 << 20, "u1"), kind=mooncrate.TooLarge)
        cache.barrier()
        cache.close()
    """, FRONT + join)  # fmt: skip


@pytest.mark.parametrize("world", [2, 4])
def test_a_plan_is_written_in_parts_and_seen_when_it_is_committed(tmp_path, world):
    together(tmp_path, world, """
        mine, other, value = f"plan/{rank}", f"plan/{next_rank}", stamped(10_000, rank)
        plan = cache.open_for_write(mine, 10_000, preferred_segment=next_rank)
        assert (plan.dst_rank, plan.bytes_total, plan.page_bytes) == (next_rank, 10_000, 4096)
        assert (plan.n_pages, plan.last_page_bytes) == (3, 10_000 - 2 * 4096)
        cache.barrier()
        found = cache.get_location(other)
        assert found is NotReady.WRITING and not found
        busy = refused("being written", cache.get, other, kind=mooncrate.Busy)
        assert busy.advice == "retry"
        refused("being written", cache.get_into, other, bytearray(10_000), kind=mooncrate.Busy)
        cache.barrier()
        cache.push(plan, value[4096:], 4096)
        cache.push(plan, value[:4096])
        refused("the value has 10000 bytes", cache.push, plan, value, 1, kind=mooncrate.Invalid)
        cache.commit(mine)
        cache.commit(mine)
        error = refused("no plan of this process is open", cache.commit, "another", kind=mooncrate.Invalid)
        assert error.kind == "no plan"
        cache.barrier()
        assert (cache.get(other) == stamped(10_000, next_rank)).all()
        meta = cache.get_location(mine)
        for name in ["key_hash", "header_offset", "payload_offset", "n_pages", "last_page_bytes", "epoch"]:
            assert getattr(meta, name) == getattr(plan, name), name
        cache.barrier()
        # A plan that is given up leaves its key free.
        cache.remove(mine)
        cache.open_for_write(mine, 5)
        cache.abandon(mine)
        refused("no plan", cache.abandon, mine)
        cache.put(mine, b"again")
        assert cache.get(mine).tobytes() == b"again"
        cache.close()
    """)  # fmt: skip


def test_bytes_written_to_the_mapped_heap_are_the_value(tmp_path):
    """What a kernel does: the base of the owner plus the offset of the plan."""
    together(tmp_path, 2, """
        import ctypes
        assert len(cache.heap_bases) == 2 and all(base % 4096 == 0 for base in cache.heap_bases)
        value = stamped(9_000, rank).tobytes()
        plan = cache.open_for_write(f"mapped/{rank}", len(value), preferred_segment=next_rank)
        ctypes.memmove(cache.heap_bases[plan.dst_rank] + plan.payload_offset, value, len(value))
        cache.commit(f"mapped/{rank}")
        cache.barrier()
        meta = cache.get_location(f"mapped/{next_rank}")
        found = ctypes.string_at(cache.heap_bases[meta.owner_rank] + meta.payload_offset, meta.bytes_total)
        assert found == stamped(9_000, next_rank).tobytes()
        cache.barrier()
        cache.close()
    """)  # fmt: skip


def test_ranks_come_from_the_environment(tmp_path):
    said = together(tmp_path, 2, """
        with NanoKVCache(**MORE) as cache:
            print(cache)
        print(cache)
    """, FRONT, RANK="{rank}", WORLD_SIZE="2")  # fmt: skip
    for rank, out in enumerate(said):
        assert out.splitlines() == [
            f"<mooncrate.NanoKVCache, rank {rank} of 2, host>", "<mooncrate.NanoKVCache, closed>",
        ]  # fmt: skip


def test_ranks_come_from_torch_distributed(tmp_path):
    """With the calls of torch.distributed that are used, over a file: torch itself is too large for CI."""
    together(tmp_path, 2, """
        import pathlib, time, types
        file = pathlib.Path(path).with_name("said")

        def broadcast(objects, src):
            assert src == 0 and (objects[0] is None) == (rank != 0)
            if rank == 0:
                file.with_suffix(".new").write_text(objects[0])
                file.with_suffix(".new").rename(file)
            while not file.exists():
                time.sleep(0.01)
            objects[0] = file.read_text()

        group = types.ModuleType("torch.distributed")
        group.is_available = group.is_initialized = lambda: True
        group.get_rank, group.get_world_size = lambda: rank, lambda: world
        group.broadcast_object_list = broadcast
        sys.modules["torch.distributed"] = group
        del MORE["path"]
        refused("torch.distributed has rank", NanoKVCache, **MORE, rank=1 - rank, kind=mooncrate.Invalid)
        refused("torch.distributed has rank", NanoKVCache, **MORE, world=3, kind=mooncrate.Invalid)
        with NanoKVCache(**MORE) as cache:
            assert (cache.rank, cache.world) == (rank, world)
            folder = pathlib.Path(file.read_text()).parent
            assert folder.exists()
        cache.close()
        assert rank == 1 or not folder.exists()
    """, FRONT)  # fmt: skip


def test_a_rank_that_fails_does_not_wait_for_the_others(tmp_path):
    together(tmp_path, 2, """
        try:
            with NanoKVCache(**MORE, rank=rank, world=world, join_timeout=30) as cache:
                cache.put(f"kept/{rank}", b"value", preferred_segment=1)
                if rank == 1:
                    raise RuntimeError("on purpose")
                cache.barrier()
        except RuntimeError as error:
            assert rank == 1 and str(error) == "on purpose"
        except mooncrate.Unavailable as error:
            assert rank == 0 and "rank 1" in str(error), error
        else:
            raise AssertionError("nobody noticed")
    """, FRONT)  # fmt: skip


def test_the_values_of_a_rank_that_died_are_misses_and_can_be_put_again(tmp_path):
    """A rank that is stopped keeps its values, so the end of a process is told to the master."""
    together(tmp_path, 2, """
        import os, time
        if rank == 1:
            cache.put("its own", b"first", preferred_segment=1)
        cache.barrier()
        if rank == 1:
            os._exit(0)
        while cache.get("its own") is not None:
            time.sleep(0.001)
        # Its serving lease ends first.
        until = time.monotonic() + 30
        while True:
            try:
                cache.put("its own", b"second", preferred_segment=0)
                break
            except mooncrate.Busy:
                assert time.monotonic() < until
                time.sleep(0.01)
        assert cache.get("its own").tobytes() == b"second"
        refused("", cache.put, "to the dead", b"", preferred_segment=1)
        os._exit(0)
    """)  # fmt: skip


def test_plans_that_an_exception_left_open_give_their_room_back(tmp_path):
    """To the heap of another rank, which goes on."""
    together(tmp_path, 2, """
        import time
        try:
            with NanoKVCache(**MORE, rank=rank, world=world) as cache:
                if rank == 1:
                    cache.open_for_write("left open", 1 << 20, preferred_segment=0)
                cache.barrier()
                if rank == 1:
                    raise RuntimeError("on purpose")
                # Long before the put timeout of 30 s, and without waiting for the end of the process.
                while cache.stats()["bytes_used"] > 0:
                    time.sleep(0.001)
                cache.put("left open", bytes(3 << 20), preferred_segment=0)
                raise RuntimeError("on purpose")
        except RuntimeError:
            pass
        if rank == 1:
            time.sleep(5)
    """, FRONT)  # fmt: skip


def test_what_is_touched_is_evicted_last():
    with alone() as cache:
        for number in range(3):
            cache.put(str(number), bytes(1 << 20))
        assert cache.touch("0") and not cache.touch("none")
        cache.evict_until_below(0.6)
        assert cache.get_location("0") is not None and cache.get_location("1") is None


def test_stats_tell_evictions_from_removes_and_rescues_from_puts_that_were_given_up():
    with alone(put_timeout=0.3) as cache:
        for number in range(3):
            cache.put(str(number), b"value")
        assert cache.remove("0")
        cache.open_for_write("given up", 100)
        cache.abandon("given up")

        def stats(name, least):
            until = time.monotonic() + PATIENCE
            while cache.stats()[name] < least and time.monotonic() < until:
                time.sleep(0.001)
            assert cache.stats()[name] == least
            return {name: cache.stats()[name] for name in ("evict_count", "stuck_put_reclaimed")}

        assert stats("freed_count", 2) == {"evict_count": 0, "stuck_put_reclaimed": 0}
        cache.evict_until_below(0)
        assert stats("freed_count", 4) == {"evict_count": 2, "stuck_put_reclaimed": 0}
        cache.open_for_write("forgotten", 100)
        assert stats("stuck_put_reclaimed", 1)["evict_count"] == 2
        with pytest.raises(mooncrate.Error, match="the plan is dead"):
            cache.commit("forgotten")


def test_ranks_that_disagree_are_told(tmp_path):
    together(tmp_path, 2, """
        MORE["page_bytes"] = 4096 * (1 + rank)
        refused("layout", NanoKVCache, **MORE, rank=rank, world=world, kind=mooncrate.Unavailable)
    """, FRONT)  # fmt: skip


# One rank


def test_a_world_of_one_needs_no_path(tmp_path):
    with alone() as cache:
        assert (cache.rank, cache.world, cache.device) == (0, 1, None)
        assert len(cache.heap_bases) == 1
        cache.put("a", np.arange(5, dtype="f4"))
        assert (cache.get("a").view("f4") == np.arange(5)).all()
        cache.put(b"b", b"")
        assert cache.get("b").size == 0 and cache.touch("b")
    with pytest.raises(mooncrate.Closed, match="has left"):
        cache.get("a")
    cache.close()


def test_a_value_never_changes():
    with alone() as cache:
        cache.put("a", b"first")
        with pytest.raises(mooncrate.Error, match="already has a value") as caught:
            cache.put("a", b"second")
        assert (caught.value.advice, caught.value.kind) == ("treat as done", "exists")
        assert cache.get("a").tobytes() == b"first"


def test_a_full_heap_evicts_what_was_put_first():
    with alone() as cache:
        for number in range(40):
            cache.put(str(number), np.full(256 << 10, number, "u1"))
        assert cache.get("0") is None and (cache.get("39") == 39).all()
        assert cache.stats()["evict_count"] > 0
        with pytest.raises(mooncrate.TooLarge):
            cache.put("large", bytes(5 << 20))


def test_checksums_find_damage():
    import ctypes

    with alone(checksums=True) as cache:
        cache.put("a", bytes(1000))
        meta = cache.get_location("a")
        ctypes.memset(cache.heap_bases[0] + meta.payload_offset + 500, 1, 1)
        with pytest.raises(mooncrate.Error, match="is damaged") as caught:
            cache.get("a")
        assert caught.value.kind == "damaged"


def test_bad_arguments_are_refused_in_words():
    for words, more in [
        ("the master runs in the process of rank 0", {"master_rank": 1}),
        ("give path", {"world": 2}),
        ("multiple of 16", {"page_bytes": 100}),
        ("have no room for", {"heap_bytes": 4096}),
        ('backend is "cuda" or "host"', {"backend": "disk"}),
        ("put_timeout=0 is no span", {"put_timeout": 0.0}),
        ("-1 is out of range", {"heap_bytes": -1}),
    ]:
        with pytest.raises(mooncrate.Invalid, match=words):
            alone(**more)
    with pytest.raises(mooncrate.Unavailable, match="rank 3 of a world of 1"):
        alone(rank=3, path="unused")
    with pytest.raises(mooncrate.Invalid, match="give rank, set RANK"):
        NanoKVCache(1 << 20, backend="host", world=1)


def test_bad_memory_is_refused_in_words():
    with alone() as cache:
        cache.put("a", bytes(10))
        with pytest.raises(mooncrate.Invalid, match="the value has 10 bytes, the memory given 9"):
            cache.get_into("a", bytearray(9))
        with pytest.raises(ValueError, match="C order"):
            cache.put("b", np.zeros((4, 4))[:, 1])
        with pytest.raises(TypeError, match="read-only"):
            cache.get_into("a", bytes(10))
        with pytest.raises(TypeError, match="a key is str or bytes"):
            cache.put(7, b"")
        with pytest.raises(mooncrate.Invalid, match="9 is no rank of a world of 1"):
            cache.put("b", b"", preferred_segment=9)
        with pytest.raises(mooncrate.Invalid):
            cache.put("", b"empty key")
        assert cache.get_location("b") is None


class OnGpu:
    """What CuPy's arrays look like to others."""

    def __init__(self, strides=None, readonly=False, shape=(4, 4)):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (1 << 40, readonly), "strides": strides, "version": 3,
            "stream": None,
        }  # fmt: skip


def test_device_memory_is_for_caches_on_a_gpu():
    with alone() as cache:
        cache.put("a", bytes(64))
        for refused in [cache.put, cache.get_into]:
            with pytest.raises(mooncrate.Invalid, match="values in dram") as caught:
                refused("a" if refused == cache.get_into else "b", OnGpu(strides=(16, 4)))
            assert caught.value.kind == "other memory"
        with pytest.raises(mooncrate.Invalid, match="not contiguous"):
            cache.put("b", OnGpu(strides=(4, 16)))
        with pytest.raises(mooncrate.Invalid, match="read-only"):
            cache.get_into("a", OnGpu(readonly=True))
        assert cache.get_location("b") is None


def test_tensors_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed; ./dev test --torch")
    with alone() as cache:
        value = torch.randn(3, 5).to(torch.bfloat16).requires_grad_()
        cache.put("a", value)
        room = torch.zeros(3, 5, dtype=torch.bfloat16)
        assert cache.get("a", dst=room) is room and torch.equal(room, value)
        assert torch.equal(cache.get("a").view(torch.bfloat16).reshape(3, 5), value)
        with pytest.raises(mooncrate.Invalid, match="contiguous"):
            cache.put("b", value.T)
        with pytest.raises(mooncrate.Invalid, match="the value has 30 bytes, the memory given 60"):
            cache.get_into("a", torch.zeros(3, 5))


def test_a_forked_child_is_told():
    python("""
        import os
        import mooncrate
        cache = mooncrate.NanoKVCache(4 << 20, slots=64, backend="host", rank=0, world=1)
        cache.put("a", b"value")
        child = os.fork()
        if child == 0:
            try:
                cache.get("a")
            except mooncrate.Closed as error:
                os._exit(7 if "before a fork" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert bytes(cache.get("a")) == b"value"
        cache.close()
    """)


def test_other_threads_run_while_a_rank_waits(tmp_path):
    """The GIL is free while a rank waits for one that never comes."""
    python(f"""
        import threading
        import mooncrate
        failed = []
        def join():
            try:
                mooncrate.NanoKVCache(4 << 20, backend="host", rank=0, world=2, path={str(tmp_path / "meet")!r},
                                      join_timeout=1.0)
            except mooncrate.Unavailable as error:
                failed.append(str(error))
        waiting = threading.Thread(target=join)
        waiting.start()
        steps = 0
        while waiting.is_alive():
            steps += 1
        waiting.join()
        assert steps > 1000, steps
        assert "1" in failed[0], failed
    """)


def test_not_ready_is_false():
    assert not NotReady.WRITING and isinstance(NotReady.WRITING, NotReady)


def test_the_example_runs():
    command = [sys.executable, str(EXAMPLE), "--backend", "host", "--values", "4", "--bytes", "300001"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert sorted(line.split(":")[0] for line in done.stdout.splitlines()) == ["decode", "prefill"]
    assert done.stdout.count("all of them right") == 2


# On a GPU: an emulator of the driver, whose device memory is host memory

ON_GPU = """
class OnGpu:
    def __init__(self, array, device=0, **more):
        self.array, self.device = array, device
        address = array.ctypes.data, False
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": address, "version": 3, "stream": 1, **more,
        }

    def __dlpack_device__(self):
        return 2, self.device

MORE["backend"] = "cuda"
"""


@pytest.mark.parametrize("checksums", [False, True])
def test_arrays_on_a_gpu_go_to_heaps_on_a_gpu(tmp_path, emulator, checksums):
    join = JOIN.replace("**MORE", f"**MORE, checksums={checksums}")
    together(tmp_path, 2, """
        assert cache.device == 0 and repr(cache).endswith("of 2, cuda:0>")
        values = [np.arange(length, dtype="f4") + rank for length in (0, 1, 1000, 30_001)]
        for number, value in enumerate(values):
            cache.put(f"{rank}/{number}", OnGpu(value), preferred_segment=next_rank)
        plan = cache.open_for_write(f"{rank}/plan", 8000, preferred_segment=next_rank)
        cache.push(plan, OnGpu(np.full(500, rank, "f8")), 4000)
        cache.push(plan, np.full(500, rank, "f8"))
        cache.commit(f"{rank}/plan")
        cache.barrier()
        for owner in range(world):
            for number, value in enumerate(values):
                key, wanted = f"{owner}/{number}", value - rank + owner
                room = np.zeros_like(value)
                assert cache.get_into(key, OnGpu(room)) and (room == wanted).all()
                assert (cache.get(key).view("f4") == wanted).all()
            assert (cache.get(f"{owner}/plan").view("f8") == owner).all()
        other = OnGpu(np.zeros(1, "f4"), device=1)
        words = "the tensor is on GPU 1, the heap of this rank on GPU 0"
        refused(words, cache.put, "other", other, kind=mooncrate.Invalid)
        refused(words, cache.get_into, f"{rank}/1", other, kind=mooncrate.Invalid)
        short = OnGpu(np.zeros(7, "u1"))
        refused("the value has 4 bytes, the memory given 7", cache.get_into, f"{rank}/1", short)
        cache.close()
    """, FRONT + ON_GPU + join, LD_LIBRARY_PATH=emulator)  # fmt: skip


@pytest.mark.parametrize(
    ("peers", "words"),
    [("none", "cannot reach the memory of the GPU of rank"), ("no atomics", "has no native atomics in the memory")],
)
def test_gpus_that_cannot_share_words_are_refused(tmp_path, emulator, peers, words):
    """A compare-and-swap on the memory of another GPU is one only where the two have native atomics."""
    together(tmp_path, 2, f"""
        refused({words!r}, NanoKVCache, **MORE, rank=rank, world=world, device=rank, kind=mooncrate.Unavailable)
    """, FRONT + ON_GPU, LD_LIBRARY_PATH=emulator, EMULATOR_GPUS="2", EMULATOR_PEERS=peers)  # fmt: skip


def test_ranks_that_share_a_gpu_without_mps_are_told(tmp_path, emulator):
    together(tmp_path, 2, """
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with NanoKVCache(**MORE, rank=rank, world=world) as cache:
                cache.put(f"{rank}", b"value")
        assert ["nvidia-cuda-mps-control -d" in str(one.message) for one in told] == [True], told
    """, FRONT + ON_GPU, LD_LIBRARY_PATH=emulator, EMULATOR_MPS="none")  # fmt: skip


def test_a_gpu_that_is_not_there_is_named(tmp_path, emulator):
    together(tmp_path, 1, """
        refused("7", NanoKVCache, **MORE, rank=0, world=1, device=7, kind=mooncrate.Unavailable)
    """, FRONT + ON_GPU, LD_LIBRARY_PATH=emulator)  # fmt: skip


def test_no_driver_is_an_error_in_words(tmp_path):
    said = together(tmp_path, 1, """
        try:
            with NanoKVCache(**{**MORE, "backend": "cuda"}, rank=0, world=1):
                print("there is a GPU")
        except mooncrate.Unavailable as error:
            print(error)
    """, FRONT)  # fmt: skip
    assert "no CUDA driver" in said[0] or said[0] == "there is a GPU\n"
