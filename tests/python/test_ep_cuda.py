"""The expert exchange on a GPU, with a process for each rank, on an emulator of the driver.

The emulator's device memory is memory of the process, so what lies there can be looked at; a stream can be held, as a
slow kernel would. What torch and a real GPU do is shown by `ep_torch.py`, which `./dev gpu` runs.
"""

import signal

import pytest

from conftest import PATIENCE
from test_ep import BAD_VALUES, FRONT, LEFT_EARLY, begun, together

GPU = (
    FRONT
    + '''
import ctypes
cuda = ctypes.CDLL("libcuda.so")
u64, size_t, ptr, byref = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.byref
context = ptr()
assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
ADDRESSES = []

class Array:
    """What CuPy shows: memory of a GPU by `__cuda_array_interface__`."""
    def __init__(self, array, *, stream=None, readonly=False, strides=None, room=None):
        at = u64()
        assert cuda.cuMemAlloc_v2(byref(at), size_t(max(room or 0, array.nbytes, 1))) == 0
        ADDRESSES.append(at.value)
        self.at = at.value
        self.np = np.frombuffer((ctypes.c_ubyte * array.nbytes).from_address(at.value), array.dtype)
        self.np = self.np.reshape(array.shape)
        self.np[...] = array
        self.__cuda_array_interface__ = {
            "version": 3, "data": (at.value if array.nbytes else 0, readonly), "shape": array.shape,
            "typestr": array.dtype.str, "strides": strides, "stream": stream,
        }

class Shown:
    """What knows DLPack alone."""
    def __init__(self, view):
        self.view = view
        self.asked = []
    def __dlpack__(self, **more):
        self.asked.append(more["stream"])
        return self.view.__dlpack__(**more)
    def __dlpack_device__(self):
        return self.view.__dlpack_device__()

def stream():
    made = ptr()
    assert cuda.cuStreamCreate(byref(made), 0) == 0
    return made.value

def arrays(*batch, **more):
    return [Array(array, **more) for array in batch]

def seen(view):
    """What lies in the memory that a view shows."""
    count = int(np.prod(view.shape))
    kind = {"bfloat16": "u2", "int32": "i4", "uint8": "u1"}[view.dtype]
    data = (ctypes.c_ubyte * (count * np.dtype(kind).itemsize)).from_address(view.data_ptr)
    return np.frombuffer(data, kind).reshape(view.shape)

def given_back():
    """The emulator complains about what is left."""
    for at in ADDRESSES:
        assert cuda.cuMemFree_v2(u64(at)) == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0

MORE["backend"] = "cuda"
'''
)


def on_gpu(folder, world, code, emulator):
    together(folder, world, code, GPU, LD_LIBRARY_PATH=emulator)


def test_layers_are_equal_to_the_dense_reference_bit_for_bit(tmp_path, emulator):
    """Batches of all sizes, with and without memory for the result, in streams of the caller's."""
    on_gpu(tmp_path, 2, """
        ep = joined()
        assert (ep.device, ep.epoch) == (0, 0) and repr(ep).endswith("rank %d of 2, cuda:0>" % RANK)
        own = stream()
        places = None
        for step in range(12):
            few = {0: 0, 1: 6, 2: 3}.get(step)
            x, ids, weights = drawn(1, RANK, step, tokens=few)
            # By the default stream, by a handle, and by what the arrays say.
            handle = {0: None, 1: own, 2: None}[step % 3]
            batch = arrays(x, ids, weights, stream=own if step % 3 == 2 else None)
            rows, counts = ep.dispatch(*batch, layer=step, stream=handle)
            assert (rows.shape, rows.dtype, counts.shape) == ((6, 12, 32), "bfloat16", (6,))
            places = places or (rows.data_ptr, counts.data_ptr)
            assert places == (rows.data_ptr, counts.data_ptr)
            ep.finish(own if step % 3 else None)
            y = Array(computed(ep, seen(rows), seen(counts)))
            room = [None, Array(np.zeros((6, 32), "u2")), Array(np.zeros((len(x), 32), "u2"))][step // 3 % 3]
            out = ep.combine(y, out=room, stream=handle if step % 3 != 2 else own)
            ep.finish(handle if step % 3 != 2 else own)
            found = seen(out) if room is None else room.np
            assert out is room or out.shape == (6, 32)
            assert (found[: len(x)] == expected(ep, x, ids, weights)).all(), step
        ep.close()
        assert places[0] == rows.data_ptr and seen(rows).shape == (6, 12, 32)
        del ep, rows, counts, out, batch, y, room
        given_back()
    """, emulator)  # fmt: skip


def test_whole_layers_give_the_bits_of_the_host(tmp_path, emulator):
    on_gpu(tmp_path, 2, """
        rng = np.random.default_rng(7)
        w13 = to_bf16(rng.standard_normal((12, 2, 16, 32)).astype("f4") / 4)[RANK * 6 : RANK * 6 + 6]
        w2 = to_bf16(rng.standard_normal((12, 32, 16)).astype("f4") / 4)[RANK * 6 : RANK * 6 + 6]
        ep, host = joined(inter=16), joined(inter=16, backend="host")
        weights = Array(w13), Array(w2)
        for tokens in (6, 2, 0):
            batch = drawn(3, RANK, tokens, tokens=tokens)
            out = ep.moe_forward(*arrays(*batch), *weights)
            ep.finish()
            assert (seen(out)[:tokens] == host.moe_forward(*batch, w13, w2)).all()
        refused("w13 has elements of <f4", ep.moe_forward, *arrays(*batch), Array(w13.astype("f4")), weights[1])
        # Kernels read 16 bytes at a time. Nothing is sent before that is known, so the layer goes on.
        odd = [Array(array, room=array.nbytes + 2) for array in (w13, w2)]
        for array in odd:
            array.__cuda_array_interface__["data"] = array.at + 2, False
        batch = drawn(3, RANK, 9, tokens=6)
        if RANK == 1:
            refused("w13 begins at", ep.moe_forward, *arrays(*batch), odd[0], weights[1])
            refused("w2 begins at", ep.moe_forward, *arrays(*batch), weights[0], odd[1])
        out = ep.moe_forward(*arrays(*batch), *weights)
        ep.finish()
        assert (seen(out) == host.moe_forward(*batch, w13, w2)).all()
        host.close()
        ep.close()
        del ep, out
        given_back()
    """, emulator)  # fmt: skip


def test_fp8_tokens_are_moved_as_they_are(tmp_path, emulator):
    on_gpu(tmp_path, 2, """
        ep = joined(hidden=128, payload="fp8")
        first = lambda expert, x: to_bf16(x[..., :128].astype("f4") + np.float32(expert))
        for step, tokens in enumerate((6, 2)):
            _, ids, weights = drawn(2, RANK, step, tokens=tokens)
            x = np.random.default_rng([RANK, step]).integers(0, 256, (tokens, 144), "u1")
            rows, counts = ep.dispatch(*arrays(x, ids, weights))
            ep.finish()
            assert rows.dtype == "uint8"
            out = ep.combine(Array(computed(ep, seen(rows), seen(counts), first)))
            ep.finish()
            assert (seen(out)[:tokens] == expected(ep, x, ids, weights, first)).all()
        ep.close()
        del ep, rows, counts, out
        given_back()
    """, emulator)  # fmt: skip


def test_a_layer_that_is_captured_is_replayed_with_other_tokens(tmp_path, emulator):
    """The caller's graph, as torch.cuda.graph makes it: rows go back as they are, so that all of it is queued."""
    on_gpu(tmp_path, 2, """
        ep, own = joined(), stream()
        batch, count = arrays(*drawn(4, RANK, 0, tokens=6)), Array(np.zeros(1, "i4"))
        small, out = arrays(*drawn(4, RANK, 0, tokens=2)), Array(np.zeros((6, 32), "u2"))
        short = Array(np.zeros((2, 32), "u2"))
        same = lambda expert, x: x

        def captured(work):
            graph, run = ptr(), ptr()
            assert cuda.cuStreamBeginCapture_v2(ptr(own), 2) == 0
            work()
            assert cuda.cuStreamEndCapture(ptr(own), byref(graph)) == 0
            assert cuda.cuGraphInstantiateWithFlags(byref(run), graph, u64(0)) == 0
            return graph, run

        def any_number():
            rows, _ = ep.dispatch(*batch, tokens=count, layer=3, stream=own)
            assert ep.combine(rows, out=out, stream=own) is out
            refused("recorded", ep.finish, own)

        def two():
            rows, _ = ep.dispatch(*small, layer=4, stream=own)
            ep.combine(rows, out=short, stream=own)

        first, second = captured(any_number), captured(two)
        for step in range(30):
            tokens = step % 7
            x, ids, weights = drawn(5, RANK, step, tokens=6)
            count.np[0] = tokens
            for to, array in zip(batch, (x, ids, weights), strict=True):
                to.np[...] = array
            out.np[...] = 0xFFFF
            assert cuda.cuGraphLaunch(first[1], ptr(own)) == 0
            ep.finish(own)
            wanted = expected(ep, x[:tokens], ids[:tokens], weights[:tokens], same)
            assert (out.np[:tokens] == wanted).all() and (out.np[tokens:] == 0xFFFF).all(), step
            # And the other graph, and a plain call, between its replays.
            x, ids, weights = drawn(6, RANK, step, tokens=2)
            for to, array in zip(small, (x, ids, weights), strict=True):
                to.np[...] = array
            assert cuda.cuGraphLaunch(second[1], ptr(own)) == 0
            ep.finish(own)
            assert (short.np == expected(ep, x, ids, weights, same)).all(), step
            if step % 10 == 0:
                rows, _ = ep.dispatch(*small, stream=own)
                assert ep.combine(rows, out=short, stream=own) is short
                ep.finish(own)
                assert (short.np == expected(ep, x, ids, weights, same)).all()
        # More tokens than fit: found on the GPU, told to all, forgotten by a reset; the graph stays good.
        count.np[0] = 7 if RANK == 1 else 1
        assert cuda.cuGraphLaunch(first[1], ptr(own)) == 0
        error = refused("rank 1 has", ep.finish, own, kind=mooncrate.Error)
        assert error.kind == "too many tokens" and isinstance(error, mooncrate.Invalid) == (RANK == 1)
        refused("rank 1 has", ep.dispatch, *batch, kind=mooncrate.Error)
        ep.reset()
        assert ep.epoch == 1
        x, ids, weights = drawn(5, RANK, 0, tokens=6)
        for to, array in zip(batch, (x, ids, weights), strict=True):
            to.np[...] = array
        count.np[0] = 4
        assert cuda.cuGraphLaunch(first[1], ptr(own)) == 0
        ep.finish(own)
        assert (out.np[:4] == expected(ep, x[:4], ids[:4], weights[:4], same)).all()
        for graph, run in (first, second):
            assert cuda.cuGraphExecDestroy(run) == cuda.cuGraphDestroy(graph) == 0
        ep.close()
        del ep, rows
        given_back()
    """, emulator)  # fmt: skip


def test_calls_are_in_the_order_of_the_stream_and_do_not_wait(tmp_path, emulator):
    """Everything is queued while the stream is held: before it, the tokens that are sent."""
    on_gpu(tmp_path, 2, """
        ep, own = joined(), stream()
        hold = lambda held: cuda.emulatorHold(ptr(own), int(held))
        for tokens in (6, 3):
            x, ids, weights = drawn(7, RANK, tokens, tokens=tokens)
            source, batch = Array(x), arrays(np.full_like(x, 0xFFFF), ids, weights)
            room = Array(np.zeros((tokens, 32), "u2"))
            assert hold(True) == 0
            cuda.cuCtxSetCurrent(context)
            assert cuda.cuMemcpyDtoDAsync_v2(u64(batch[0].at), u64(source.at), size_t(x.nbytes), ptr(own)) == 0
            rows, counts = ep.dispatch(*batch, stream=own)
            ep.combine(rows, out=room, stream=own)
            ep.check()
            assert not room.np.any(), "it was not queued"
            assert hold(False) == 0
            ep.finish(own)
            assert (room.np == expected(ep, x, ids, weights, lambda expert, x: x)).all()
        ep.close()
        del ep, rows, counts
        given_back()
    """, emulator)  # fmt: skip


def test_layers_in_turn_on_two_streams(tmp_path, emulator):
    """No event of the caller is between them, and every second one is behind a slow kernel. A stream of the emulator that
    has waited overtakes what is left in the stream that it waited for, so copies that are not part of a layer show."""
    on_gpu(tmp_path, 2, """
        same = lambda expert, x: x
        for tokens in (2, 6):
            for keeps in (True, False):
                ep, streams = joined(), [stream(), stream()]
                hold = lambda held: cuda.emulatorHold(ptr(streams[1]), int(held))
                batches = [drawn(13, RANK, step, tokens=tokens) for step in range(40)]
                given = [arrays(*batch) for batch in batches]
                rooms = [Array(np.full((tokens, 32), 0xFFFF, "u2")) for _ in batches]
                for step in range(40):
                    own = streams[step % 2]
                    if step % 4 == 1:
                        assert hold(True) == 0
                    rows, counts = ep.dispatch(*given[step], layer=step, stream=own)
                    if keeps:
                        ep.combine(rows, out=rooms[step], stream=own)
                    else:
                        # Read where the communicator has it, in the stream of the layer.
                        out = ep.combine(rows, stream=own)
                        cuda.cuCtxSetCurrent(context)
                        size = size_t(rooms[step].np.nbytes)
                        assert cuda.cuMemcpyDtoDAsync_v2(u64(rooms[step].at), u64(out.data_ptr), size, ptr(own)) == 0
                    if step % 4 == 3:
                        assert hold(False) == 0
                for own in streams:
                    ep.finish(own)
                wrong = [step for step, (batch, room) in enumerate(zip(batches, rooms, strict=True))
                         if (room.np != expected(ep, *batch, same)).any()]
                assert not wrong, f"{tokens} tokens, {keeps}: {len(wrong)} of 40 layers are wrong: {wrong}"
                ep.close()
                del ep, rows, counts
                for own in streams:
                    assert cuda.cuStreamDestroy_v2(ptr(own)) == 0
        del out
        given_back()
    """, emulator)  # fmt: skip


def test_a_capture_between_two_layers_forgets_no_result(tmp_path, emulator):
    """A layer is recorded before the result of another one is read, where the communicator has it; then comes one on
    another stream."""
    on_gpu(tmp_path, 2, """
        ep, first, second, own = joined(), stream(), stream(), stream()
        batches = [drawn(23, RANK, step, tokens=6) for step in range(3)]
        given = [arrays(*batch) for batch in batches]
        room, graph = Array(np.full((6, 32), 0xFFFF, "u2")), ptr()
        assert cuda.emulatorHold(ptr(first), 1) == 0
        out = ep.combine(ep.dispatch(*given[0], stream=first).rows, stream=first)
        assert cuda.cuStreamBeginCapture_v2(ptr(own), 2) == 0
        ep.combine(ep.dispatch(*given[1], stream=own).rows, stream=own)
        assert cuda.cuStreamEndCapture(ptr(own), byref(graph)) == cuda.cuGraphDestroy(graph) == 0
        cuda.cuCtxSetCurrent(context)
        size = size_t(room.np.nbytes)
        assert cuda.cuMemcpyDtoDAsync_v2(u64(room.at), u64(out.data_ptr), size, ptr(first)) == 0
        ep.combine(ep.dispatch(*given[2], stream=second).rows, stream=second)
        assert cuda.emulatorHold(ptr(first), 0) == 0
        for stream in (first, second):
            ep.finish(stream)
        same = lambda expert, x: x
        assert (seen(out) == expected(ep, *batches[2], same)).all()
        assert (room.np == expected(ep, *batches[0], same)).all(), "overwritten before it was read"
        ep.close()
        del ep, out
        given_back()
    """, emulator)  # fmt: skip


def test_ids_of_int64_and_positions_that_are_not_routed(tmp_path, emulator):
    """In a batch that is read where it is, and in one that is copied first."""
    on_gpu(tmp_path, 2, """
        ep = joined()
        same = lambda expert, x: x
        for step in range(4):
            tokens = 6 - step // 2
            x, ids, weights = drawn(21, RANK, step, tokens=tokens)
            ids[1], ids[3, 1], ids[4, :2] = -1, -1, -1
            weights[ids == -1] = np.nan
            rows, counts = ep.dispatch(*arrays(x, ids.astype("i8") if step % 2 else ids, weights))
            out = ep.combine(rows)
            ep.finish()
            wanted = expected(ep, x, ids, weights, same)
            assert (seen(out)[:tokens] == wanted).all() and not wanted[1].any(), step
        refused("topk_ids has the shape", ep.dispatch, *arrays(x, ids[:, :2].copy().astype("i8"), weights))
        ids = ids.astype("i8")
        ids[0, 0] = 2**32 + 3 if RANK == 1 else 3
        ids[0, 1:] = 4, 5
        ep.dispatch(*arrays(x, ids, weights))
        error = refused("rank 1", ep.finish, kind=mooncrate.Error)
        assert (error.kind, error.ranks) == ("bad expert", (1,)), error
        ep.close()
        del ep, rows, counts, out
        given_back()
    """, emulator)  # fmt: skip


def test_a_reset_leaves_other_communicators_alone(tmp_path, emulator):
    """A layer of another communicator stands still on the same GPU until the reset is over."""
    on_gpu(tmp_path, 2, """
        ep, beside, own, other = joined(), joined(), stream(), stream()
        same = lambda expert, x: x
        hold = lambda stream, held: cuda.emulatorHold(ptr(stream), int(held))
        x, ids, weights = drawn(22, RANK, 0, tokens=6)
        room, wanted = Array(np.zeros((6, 32), "u2")), expected(ep, x, ids, weights, same)
        batch, bad = arrays(x, ids, weights), arrays(x, ids, weights)
        bad[2].np[0, 0] = np.nan if RANK == 1 else 1
        assert hold(other, True) == 0
        beside.combine(beside.dispatch(*batch, stream=other).rows, out=room, stream=other)
        for _ in range(2):
            rows, counts = ep.dispatch(*bad, stream=own)
            refused("rank 1", ep.finish, own, kind=mooncrate.Error)
            ep.reset()
            ep.dispatch(*batch, stream=own)
            out = ep.combine(rows, stream=own)
            ep.finish(own)
            assert (seen(out) == wanted).all()
        assert not room.np.any(), "the other layer ran"
        assert hold(other, False) == 0
        beside.finish(other)
        assert (room.np == wanted).all()
        # Graphs may be replayed on any stream: the reset waits for all of them, or for the one that is named.
        graph = ptr()
        assert cuda.cuStreamBeginCapture_v2(ptr(own), 2) == 0
        ep.combine(ep.dispatch(*batch, stream=own).rows, stream=own)
        assert cuda.cuStreamEndCapture(ptr(own), byref(graph)) == cuda.cuGraphDestroy(graph) == 0
        assert hold(other, True) == 0
        beside.combine(beside.dispatch(*batch, stream=other).rows, out=room, stream=other)
        ep.reset(stream=own)
        assert ep.epoch == 3 and hold(other, False) == 0
        beside.finish(other)
        beside.close()
        ep.close()
        del ep, beside, rows, counts, out
        given_back()
    """, emulator)  # fmt: skip


def test_a_layer_stays_on_the_stream_of_its_dispatch(tmp_path, emulator):
    """Also where nothing names it again. The default stream has two names, of which torch uses the other one."""
    on_gpu(tmp_path, 2, """
        import threading
        ep, own, other = joined(), stream(), stream()
        same = lambda expert, x: x
        hold = lambda held: cuda.emulatorHold(ptr(own), int(held))
        x, ids, weights = drawn(10, RANK, 0, tokens=6)
        batch, room = arrays(x, ids, weights), Array(np.zeros((6, 32), "u2"))
        wanted = expected(ep, x, ids, weights, same)
        assert hold(True) == 0
        rows, counts = ep.dispatch(*batch, stream=own)
        ep.combine(rows, out=room)
        assert not room.np.any(), "it was not queued behind its dispatch"
        release = threading.Timer(0.2, hold, [False])
        release.start()
        ep.finish()
        assert (room.np == wanted).all(), "it waited for another stream"
        release.join()

        class Default:
            cuda_stream = 0

        for first, second in [(Default(), 1), (1, 0), (None, Default()), (0, None), (own, own)]:
            room.np[...] = 0
            rows, counts = ep.dispatch(*batch, stream=first)
            error = refused("give both the same stream", ep.combine, rows, stream=other)
            assert error.kind == "order"
            ep.combine(rows, out=room, stream=second)
            ep.finish(second)
            assert (room.np == wanted).all()
        # Who knows DLPack is asked to be ready in the stream of the layer.
        shown, goal = Shown(ep.dispatch(*batch, stream=own).rows), Shown(ep._views[2])
        ep.combine(shown, out=goal)
        ep.finish()
        assert (shown.asked, goal.asked) == ([own], [own]) and (seen(goal.view) == wanted).all()
        for number, named in [(other, other), (0, 1), (None, 1)]:
            shown = [Shown(view) for view in (ep._views[2], ep._views[1], ep._views[1])]
            refused("topk_ids has", ep.dispatch, *shown, stream=number)
            assert shown[0].asked == [named]
        ep.close()
        del ep, rows, counts, shown, goal
        given_back()
    """, emulator)  # fmt: skip


def test_a_dispatch_in_the_middle_of_a_layer_queues_nothing(tmp_path, emulator):
    """What a layer has yet to read stays as it is; a layer whose capture has ended never began."""
    on_gpu(tmp_path, 2, """
        ep, own, other = joined(), stream(), stream()
        same = lambda expert, x: x

        def captured(stream, work):
            graph, nodes = ptr(), size_t(99)
            assert cuda.cuStreamBeginCapture_v2(ptr(stream), 2) == 0
            work()
            assert cuda.cuStreamEndCapture(ptr(stream), byref(graph)) == 0
            assert cuda.cuGraphGetNodes(graph, None, byref(nodes)) == 0
            assert cuda.cuGraphDestroy(graph) == 0
            return nodes.value

        x, ids, weights = drawn(11, RANK, 0, tokens=3)
        batch, second = arrays(x, ids, weights), arrays(*drawn(11, RANK, 1, tokens=2))
        assert captured(own, lambda: ep.dispatch(*second, stream=own)) > 3
        error = refused("capture whole layers", ep.combine, ep._views[0], stream=own)
        assert error.kind == "order"
        for again in range(2):
            rows, counts = ep.dispatch(*batch, stream=own)
            words = "call combine before the next dispatch"
            assert captured(other, lambda: refused(words, ep.dispatch, *second, stream=other)) == 0
            assert captured(other, lambda: refused("capture whole layers", ep.combine, rows, stream=other)) == 0
            out = ep.combine(rows, stream=own)
            ep.finish(own)
            assert (seen(out)[:3] == expected(ep, x, ids, weights, same)).all()
        # A reset ends the layer, too.
        ep.dispatch(*second, stream=own)
        ep.reset()
        rows, counts = ep.dispatch(*batch, stream=own)
        out = ep.combine(rows)
        ep.finish()
        assert (seen(out)[:3] == expected(ep, x, ids, weights, same)).all()
        ep.close()
        del ep, rows, counts, out
        given_back()
    """, emulator)  # fmt: skip


def test_a_rank_that_closes_early_is_named_at_once(tmp_path, emulator):
    together(tmp_path, 2, LEFT_EARLY, GPU, LD_LIBRARY_PATH=emulator)


def test_close_raises_what_no_call_has_raised(tmp_path, emulator):
    """What is queued is done first, and may fail."""
    on_gpu(tmp_path, 2, """
        import threading
        ep, own = joined(), stream()
        hold = lambda held: cuda.emulatorHold(ptr(own), int(held))
        x, ids, weights = drawn(12, RANK, 0, tokens=6)
        weights[3, 2] = float("nan") if RANK == 1 else 1
        batch, room = arrays(x, ids, weights), Array(np.zeros((6, 32), "u2"))
        assert hold(True) == 0
        rows, counts = ep.dispatch(*batch, stream=own)
        ep.combine(rows, out=room)
        ep.check()
        release = threading.Timer(0.2, hold, [False])
        release.start()
        error = refused("rank 1 gives", ep.close, kind=mooncrate.Error)
        assert (error.kind, error.ranks) == ("bad weight", (1,))
        release.join()
        assert repr(ep).endswith("closed>")
        ep.close()
        del ep, rows, counts
        given_back()
    """, emulator)  # fmt: skip


def test_bad_memory_is_refused_before_anything_is_sent(tmp_path, emulator):
    on_gpu(tmp_path, 2, """
        ep = joined()
        x, ids, weights = drawn(8, RANK, 0, tokens=6)
        batch = arrays(x, ids, weights)
        if RANK == 1:
            assert ep.notice() == ()
            short = Array(x[:1])
            short.__cuda_array_interface__["shape"] = (6, 32)
            odd = Array(x, room=x.nbytes + 8)
            odd.__cuda_array_interface__["data"] = odd.at + 2, False
            for words, bad in [
                ("x is on the host, this communicator on GPU 0; copy x there", (x, *batch[1:])),
                ("x has elements of <f4; give bfloat16", (Array(to_f32(x)), *batch[1:])),
                ("x has the shape (6, 31); use (tokens, 32)", (Array(x[:, :31].copy()), *batch[1:])),
                ("x: the array is not contiguous", (Array(x, strides=(2, 12)), *batch[1:])),
                ("64 bytes are allocated on GPU 0", (short, *batch[1:])),
                ("topk_ids has elements of <i2; give int32 or int64", (batch[0], Array(ids.astype("i2")), batch[2])),
                ("topk_weights is on the host", (*batch[:2], weights)),
                ("in the order of different streams; give stream",
                 (Array(x, stream=stream()), Array(ids, stream=stream()), batch[2])),
            ]:
                refused(words, ep.dispatch, *bad)
            freed = Array(x)
            assert cuda.cuMemFree_v2(u64(ADDRESSES.pop())) == 0
            refused("not memory of a GPU that this process uses", ep.dispatch, freed, *batch[1:])
            count = Array(np.array([2], "i4"))
            refused("x has room for all 6 rows", ep.dispatch, *arrays(x[:2], ids[:2], weights[:2]), tokens=count)
            refused("tokens has the shape (6,)", ep.dispatch, *batch, tokens=Array(np.zeros(6, "i4")))
            refused("multiple of 16", ep.dispatch, odd, *batch[1:], tokens=count)
            refused("-5 is no handle", ep.dispatch, *batch, stream=-5)
            # Memory that kernels cannot read 16 bytes at a time is copied first.
            odd.np = np.frombuffer((ctypes.c_ubyte * x.nbytes).from_address(odd.at + 2), "u2").reshape(x.shape)
            odd.np[...] = x
            batch[0] = odd
        rows, counts = ep.dispatch(*batch)
        ep.finish()
        if RANK == 1:
            refused("y is on the host", ep.combine, np.zeros((6, 12, 32), "u2"))
            refused("y has the shape (6, 11, 32)", ep.combine, Array(np.zeros((6, 11, 32), "u2")))
            refused("read-only", ep.combine, rows, out=Array(x, readonly=True))
            refused("call combine before the next dispatch", ep.dispatch, *batch)
        # By DLPack, the memory itself.
        out = ep.combine(Shown(rows), out=Shown(ep._views[2]))
        ep.finish()
        assert (seen(out.view) == expected(ep, x, ids, weights, lambda expert, x: x)).all()
        refused("bfloat16", ep.dispatch, Shown(counts), *batch[1:])
        try:
            np.asarray(rows)
        except TypeError as error:
            assert "use torch.from_dlpack(view)" in str(error)
        assert rows.__dlpack_device__() == (2, 0) and not hasattr(rows, "__array_interface__")
        ep.close()
        del ep, rows, counts, out
        given_back()
    """, emulator)  # fmt: skip


def test_bad_values_fail_the_step_for_all_and_a_reset_ends_it(tmp_path, emulator):
    """The list of the host. Calls queue, so what is wrong is told by `finish`."""
    front = GPU + (
        "host = computed\n"
        "class Waiting(Communicator):\n"
        "    def dispatch(self, *batch, **more):\n"
        "        given = super().dispatch(*arrays(*batch), **more)\n"
        "        self.finish()\n"
        "        return given\n"
        "    def combine(self, y, **more):\n"
        "        out = super().combine(Array(y), **more)\n"
        "        self.finish()\n"
        "        return seen(out)[: self.many]\n"
        "def computed(ep, rows, counts):\n"
        "    return host(ep, seen(rows), seen(counts))\n"
        "def expected(ep, x, ids, weights):\n"
        "    ep.many = len(x)\n"
        "    return dense(x, ids, weights, ep.world, ep.experts, ep.hidden)\n"
        "Communicator.many = 6\n"
        "ep = Waiting(**MORE)\n"
    )
    code = BAD_VALUES.replace(
        "assert (ep.combine(computed(ep, rows, counts)) == expected(ep, x, ids, weights)).all()",
        "wanted = expected(ep, x, ids, weights)\n"
        "        assert (ep.combine(computed(ep, rows, counts)) == wanted).all()",
    )
    together(tmp_path, 2, code + "    del ep, rows, counts\n    given_back()\n", front, LD_LIBRARY_PATH=emulator)


def test_a_rank_that_is_killed_is_noticed(tmp_path, emulator):
    """Long before the timeout."""
    processes = begun(tmp_path, 2, """
        import os, signal, time
        ep = joined(timeout=600, join_timeout=600)
        batch = arrays(*drawn(9, RANK, 0))
        rows, counts = ep.dispatch(*batch)
        ep.finish()
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # The emulator does what is queued at once: the call itself waits, unless somebody has noticed before.
        while ep.notice() != (1,):
            time.sleep(0.01)
        ep.combine(rows)
        error = refused("rank 1 ended", ep.finish, kind=mooncrate.Unavailable)
        assert (error.kind, error.ranks) == ("lost", (1,)), error
        refused("rank 1", ep.close, kind=mooncrate.Unavailable)
        del ep, rows, counts
        given_back()
        print("told")
    """, GPU, LD_LIBRARY_PATH=emulator)  # fmt: skip
    said = []
    try:
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, -signal.SIGKILL], said
    assert said == [("told\n", ""), ("", "")]


@pytest.mark.parametrize("call", ["reset", "close"])
def test_a_wait_for_all_graphs_notices_who_was_killed(tmp_path, emulator, call):
    """The replay waits for the killed rank, and the call for the whole GPU: long before the timeout."""
    processes = begun(tmp_path, 2, """
        import os, signal, threading, time
        ep, own, graph, run = joined(timeout=600, first_timeout=600, join_timeout=600), stream(), ptr(), ptr()
        batch = arrays(*drawn(24, RANK, 0, tokens=6))
        assert cuda.cuStreamBeginCapture_v2(ptr(own), 2) == 0
        ep.combine(ep.dispatch(*batch, stream=own).rows, stream=own)
        assert cuda.cuStreamEndCapture(ptr(own), byref(graph)) == 0
        assert cuda.cuGraphInstantiateWithFlags(byref(run), graph, u64(0)) == 0
        if RANK == 1:
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        assert cuda.emulatorHold(ptr(own), 1) == cuda.cuGraphLaunch(run, ptr(own)) == 0
        # The emulator does what is queued in the thread that lets the stream go.
        replay = threading.Thread(target=cuda.emulatorHold, args=(ptr(own), 0))
        replay.start()
        time.sleep(0.2)
        if CALL == "reset":
            refused("rank 1", ep.reset, kind=mooncrate.Error)
        refused("rank 1", ep.close, kind=mooncrate.Unavailable)
        replay.join()
        assert cuda.cuGraphExecDestroy(run) == cuda.cuGraphDestroy(graph) == 0
        del ep
        given_back()
        print("told")
    """.replace("CALL", repr(call)), GPU, LD_LIBRARY_PATH=emulator)  # fmt: skip
    said = []
    try:
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, -signal.SIGKILL], said
    assert said == [("told\n", ""), ("", "")]
