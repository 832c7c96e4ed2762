"""The expert exchange with a real process for each rank, in host memory: every result is compared with the dense
reference of `ep_ranks.py`, bit for bit. `test_ep_cuda.py` does the same on an emulated GPU."""

import inspect
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

import ep_ranks
import mooncrate
from conftest import PATIENCE, python
from mooncrate.ep import Communicator
from test_nano import ended, started

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples/python/ep_layer.py"
FRONT = "from ep_ranks import *\n"
JOIN = FRONT + "ep = joined()\n"


def begun(folder, world, code, front=JOIN, **environment):
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return started(folder, world, code, front, PYTHONPATH=":".join(paths), **environment)


def together(folder, world, code, front=JOIN, **environment):
    return ended(begun(folder, world, code, front, **environment))


# Layers


@pytest.mark.parametrize("world", [2, 3, 4])
def test_layers_are_equal_to_the_dense_reference_bit_for_bit(tmp_path, world):
    together(tmp_path, world, """
        assert (ep.rank, ep.world, ep.device, ep.epoch) == (RANK, WORLD, None, 0)
        assert (ep.local_experts, ep.rows_max, ep.token_bytes) == (12 // WORLD, 6 * WORLD, 64)
        places = None
        for step in range(20):
            # None, all, or any number of tokens; in some steps nobody has one.
            few = {0: 0, 1: 6, 2: 6 * (RANK == 0)}.get(step)
            x, ids, weights = drawn(1, RANK, step, tokens=few)
            rows, counts = ep.dispatch(x, ids, weights, layer=step)
            came = [drawn(1, rank, step, tokens={0: 0, 1: 6, 2: 6 * (rank == 0)}.get(step)) for rank in range(WORLD)]
            for expert in range(ep.local_experts):
                # By ascending slot: of rank 0 first, each in its order.
                wanted = [x[token] for x, ids, _ in came for token in range(len(x))
                          if RANK * ep.local_experts + expert in ids[token]]
                assert counts[expert] == len(wanted)
                assert (rows[expert, : len(wanted)] == np.array(wanted, "u2").reshape(-1, 32)).all()
            assert rows.dtype == np.uint16 and counts.dtype == np.int32
            # The same memory each time.
            places = places or (rows.ctypes.data, counts.ctypes.data)
            assert places == (rows.ctypes.data, counts.ctypes.data)
            y, wanted = computed(ep, rows, counts), expected(ep, x, ids, weights)
            room = {0: None, 1: np.zeros((len(x), 32), "u2"), 2: np.zeros((6, 32), "u2")}[step % 3]
            out = ep.combine(y, out=room)
            assert (room is None and out.shape == (len(x), 32)) or out is room
            assert (out[: len(x)] == wanted).all()
        ep.close()
    """)  # fmt: skip


def test_the_reference_is_no_plain_sum():
    """The order of sums and roundings shows in the bits, so the comparison above can fail."""
    x, ids, weights = ep_ranks.drawn(1, 0, 3, tokens=6)
    two, four = (ep_ranks.dense(x, ids, weights, world, 12, 32) for world in (2, 4))
    assert (two != four).any(), "ranks round"
    ids, weights = ep_ranks.ORDERED
    same = {"expert": lambda expert, x: x}
    assert not ep_ranks.dense(x[:1], ids, weights, 2, 12, 32, **same).any()
    assert ep_ranks.dense(x[:1], ids[:, ::-1], weights[:, ::-1], 2, 12, 32, **same).any(), "places have an order"
    # fma by integers: 2^-24 is lost without it, and once more by two roundings.
    one, tiny = np.float32(1), np.float32(2.0**-24)
    values = ep_ranks.fused(one + 2 * tiny, np.array([1 + 2.0**-23], "f4"), np.array([-1], "f4"))
    assert values[0] == np.float32(2.0**-22 + 2.0**-46)


def test_fp8_tokens_are_moved_as_they_are(tmp_path):
    together(tmp_path, 2, """
        ep = joined(hidden=128, payload="fp8")
        assert ep.token_bytes == 144

        def halved(expert, x):
            # A stand-in for an expert that reads elements and the scale.
            values = x[..., :128].astype("f4") + x[..., 128:132].copy().view("<f4") * np.float32(expert)
            return to_bf16(values)

        for step in range(4):
            _, ids, weights = drawn(2, RANK, step)
            x = np.random.default_rng([RANK, step]).integers(0, 256, (len(ids), 144), "u1")
            x[:, 128:132] = np.full((len(ids), 1), 0.25, "<f4").view("u1")
            x[:, 132:] = 0
            rows, counts = ep.dispatch(x, ids, weights)
            assert rows.dtype == np.uint8 and rows.shape == (6, 12, 144)
            out = ep.combine(computed(ep, rows, counts, halved))
            assert (out == expected(ep, x, ids, weights, halved)).all()
        refused("x has elements of uint16; give uint8", ep.dispatch, np.zeros((1, 72), "u2"), ids[:1], weights[:1])
        refused("leave inter out", joined, hidden=128, payload="fp8", inter=8)
        ep.close()
    """, FRONT)  # fmt: skip


def test_whole_layers_with_the_experts_that_are_here(tmp_path):
    """What each expert makes of a token is asked for with one expert alone; sums of several are then equal to the
    reference with these, bit for bit."""
    together(tmp_path, 2, """
        ep = joined(inter=16)
        rng = np.random.default_rng(7)
        w13 = to_bf16(rng.standard_normal((12, 2, 16, 32)).astype("f4") / 4)
        w2 = to_bf16(rng.standard_normal((12, 32, 16)).astype("f4") / 4)
        own = slice(RANK * 6, RANK * 6 + 6)
        first, second = w13[own].copy(), w2[own].copy()
        x, ids, weights = drawn(3, RANK, 0, tokens=6)
        alone = {}
        for expert in range(12):
            only = np.array([[expert, (expert + 1) % 12, (expert + 2) % 12]] * 6, "i4")
            made = ep.moe_forward(x, only, np.array([[1, 0, 0]] * 6, "f4"), first, second).copy()
            for token in range(6):
                alone[expert, x[token].tobytes()] = made[token]
                near = gated(w13[expert], w2[expert], x[token])
                assert np.abs(to_f32(made[token]) - near).max() <= 0.02 * max(1, np.abs(near).max())
        expert = lambda expert, x: alone[expert, x.tobytes()]
        for tokens in (6, 3, 0):
            batch = x[:tokens].copy(), ids[:tokens].copy(), weights[:tokens].copy()
            room = np.zeros((tokens, 32), "u2")
            assert ep.moe_forward(*batch, first, second, out=room, layer=tokens) is room
            assert (room == expected(ep, *batch, expert)).all()
        words = "w13 has the shape (6, 16, 32); use (6, 2, 16, 32)"
        refused(words, ep.moe_forward, x, ids, weights, first[:, 0].copy(), second)
        refused("w2 has elements of float32", ep.moe_forward, x, ids, weights, first, second.astype("f4"))
        bad = np.zeros((5, 32), "u2")
        refused("out has the shape (5, 32)", ep.moe_forward, x, ids, weights, first, second, out=bad)
        out = ep.moe_forward(x, ids, weights, first, second)
        assert (out == expected(ep, x, ids, weights, expert)).all()
        ep.close()
        ep = joined()
        refused("make the Communicator with inter=", ep.moe_forward, x, ids, weights, first, second)
        ep.close()
    """, FRONT)  # fmt: skip


def test_tensors_of_torch(tmp_path):
    """What `./dev gpu` runs on a GPU, on tensors of the processor."""
    pytest.importorskip("torch", reason="torch is not installed; ./dev test --torch")
    command = [sys.executable, str(HERE / "ep_torch_ranks.py"), str(tmp_path / "meet")]
    processes = [
        subprocess.Popen([*command, str(rank), "host"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for out in ended(processes):
        assert out.splitlines()[-1].startswith("5 passed, 20 replays"), out


def test_arrays_of_ml_dtypes(tmp_path):
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    together(tmp_path, 2, """
        from ml_dtypes import bfloat16
        x, ids, weights = drawn(5, RANK, 0)
        rows, counts = ep.dispatch(x.view(bfloat16), ids, weights)
        assert rows.dtype == bfloat16
        out = ep.combine(computed(ep, rows.view("u2"), counts).view(bfloat16))
        assert out.dtype == bfloat16 and (out.view("u2") == expected(ep, x, ids, weights)).all()
        ep.close()
    """)  # fmt: skip


def test_rows_may_be_given_back_as_they_are(tmp_path):
    """Without a copy: the memory that rows came in is what is sent. It outlives its communicator."""
    together(tmp_path, 2, """
        x, ids, weights = drawn(6, RANK, 0, tokens=6)
        ids[2], weights[2] = ORDERED[0][0], ORDERED[1][0]
        ids[3], weights[3] = ORDERED[0][0, ::-1], ORDERED[1][0, ::-1]
        rows, counts = ep.dispatch(x, ids, weights)
        out = ep.combine(rows)
        assert not out[2].any() and out[3].any()
        wanted = expected(ep, x, ids, weights, lambda expert, x: x)
        assert (out == wanted).all()
        view = ep._views[0]
        assert np.asarray(view).ctypes.data == view.data_ptr == rows.ctypes.data
        assert (view.shape, view.dtype, view.__dlpack_device__()) == ((6, 12, 32), "bfloat16", (1, 0))
        assert (np.from_dlpack(ep._views[1]) == counts).all() and repr(view).endswith("bfloat16 [6, 12, 32]>")
        assert not hasattr(view, "__cuda_array_interface__")
        ep.close()
        assert (out == wanted).all() and rows.any()
        del ep, view
        assert (out == wanted).all() and rows.any()
    """)  # fmt: skip


# What is wrong


def test_bad_memory_is_refused_before_anything_is_sent(tmp_path):
    """On one rank alone: the others would notice. After all of it the layer goes on."""
    together(tmp_path, 2, """
        x, ids, weights = drawn(7, RANK, 0, tokens=4)
        class OnGpu:
            __cuda_array_interface__ = {"typestr": "<u2", "data": (1 << 40, False), "shape": (4, 32), "version": 3}
        if RANK == 1:
            for words, bad in [
                ("x has elements of float32; give bfloat16 (ml_dtypes), or its bits as uint16",
                 (to_f32(x), ids, weights)),
                ("x has elements of >u2", (x.astype(">u2"), ids, weights)),
                ("x has the shape (4, 31); use (tokens, 32)", (x[:, :31].copy(), ids, weights)),
                ("x has the shape (128,); use (tokens, 32)", (x.reshape(-1), ids, weights)),
                ("x is not contiguous; give numpy.ascontiguousarray(x)", (x[::2], ids, weights)),
                ("x has 8 tokens, tokens_max is 6; send them in several steps", (np.zeros((8, 32), "u2"), ids, weights)),
                ("x is of type list", (x.tolist(), ids, weights)),
                ('x is on GPU 0, this communicator on the host; make the communicators with backend="cuda"',
                 (OnGpu(), ids, weights)),
                ("topk_ids has elements of int16; give int32 or int64", (x, ids.astype("i2"), weights)),
                ("topk_ids has the shape (4, 2); use (4, 3)", (x, ids[:, :2].copy(), weights)),
                ("topk_weights has elements of float64; give float32", (x, ids, weights.astype("f8"))),
                ("topk_weights has the shape (3, 3); use (4, 3)", (x, ids, weights[:3].copy())),
            ]:
                refused(words, ep.dispatch, *bad)
            odd = np.zeros(4 * 64 + 1, "u1")[1:].view("u2").reshape(4, 32)
            refused("does not begin at a multiple of 2 bytes", ep.dispatch, odd, ids, weights)
            refused("70000 is out of range", ep.dispatch, x, ids, weights, layer=70000)
            refused('stream is for backend="cuda"', ep.dispatch, x, ids, weights, stream=1)
            refused('tokens is for backend="cuda"', ep.dispatch, x, ids, weights, tokens=ids)
            refused("call dispatch before combine", ep.combine, np.zeros((6, 12, 32), "u2"))
        rows, counts = ep.dispatch(x, ids, weights)
        y = computed(ep, rows, counts)
        if RANK == 0:
            error = refused("call combine before the next dispatch", ep.dispatch, x, ids, weights)
            assert error.kind == "order"
            refused("y has the shape (5, 12, 32); use (6, 12, 32)", ep.combine, y[1:])
            refused("y has elements of float32", ep.combine, y.astype("f4"))
            refused("out has the shape (3, 32); use (4, 32), or (6, 32)", ep.combine, y, out=np.zeros((3, 32), "u2"))
            locked = np.zeros((4, 32), "u2")
            locked.flags.writeable = False
            refused("out is read-only", ep.combine, y, out=locked)
        assert (ep.combine(y) == expected(ep, x, ids, weights)).all()
        ep.check()
        ep.finish()
        ep.close()
    """)  # fmt: skip


def test_ids_of_int64_and_positions_that_are_not_routed(tmp_path):
    """-1 is what engines pad routes with: it goes nowhere, and its weight is not read."""
    together(tmp_path, 2, """
        for step in range(4):
            x, ids, weights = drawn(20, RANK, step, tokens=6)
            ids[1], ids[3, 1], ids[4, :2] = -1, -1, -1
            weights[ids == -1] = np.nan
            rows, counts = ep.dispatch(x, ids.astype("i8") if step % 2 else ids, weights)
            y, wanted = computed(ep, rows, counts), expected(ep, x, ids, weights)
            assert (ep.combine(y) == wanted).all() and not wanted[1].any()
        # Nobody's low 32 bits are taken for an expert.
        ids = ids.astype("i8")
        ids[0, 0] = 2**32 + 3 if RANK == 1 else 3
        ids[0, 1:] = 4, 5
        kind = mooncrate.Invalid if RANK == 1 else mooncrate.Error
        error = refused("rank 1", ep.dispatch, x, ids, weights, kind=kind)
        assert (error.kind, error.ranks) == ("bad expert", (1,)), error
        ep.close()
    """)  # fmt: skip


def test_a_layer_has_to_be_named():
    """Ranks in different layers are found out by its number, so none is taken for granted."""
    for call in (Communicator.dispatch, Communicator.moe_forward):
        layer = inspect.signature(call).parameters["layer"]
        assert (layer.kind, layer.default) == (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty)


BAD_VALUES = """
    def failed(kind, words, call, *given):
        try:
            call(*given)
        except mooncrate.Error as error:
            assert error.kind == kind and words in str(error) and error.ranks == (1,), (error, error.kind)
            assert isinstance(error, mooncrate.Invalid) == (RANK == 1), type(error)
            assert error.advice == "retry" and "mend the input, and call reset() in every rank" in str(error)
            return
        raise AssertionError(f"nobody noticed: {kind}")

    for step, (kind, words) in enumerate([
        ("bad weight", "gives token 2 the weight NaN in place 1"),
        ("bad weight", "gives token 2 the weight inf in place 1"),
        ("bad expert", "routes token 2 to expert 12 in place 1: there is none"),
        ("bad expert", "routes token 2 to expert -2 in place 1"),
        ("expert twice", "twice, again in place 1"),
    ]):
        x, ids, weights = drawn(8, RANK, step, tokens=5)
        if RANK == 1:
            array, value = [(weights, np.nan), (weights, np.inf), (ids, 12), (ids, -2), (ids, ids[2, 0])][step]
            array[2, 1] = value
        failed(kind, words if RANK == 1 else "rank 1", ep.dispatch, x, ids, weights)
        # The first failure is everybody's, until all of them reset.
        failed(kind, "rank 1", ep.dispatch, x, ids, weights)
        failed(kind, "rank 1", ep.check)
        failed(kind, "rank 1", ep.combine, np.zeros((ep.local_experts, ep.rows_max, 32), "u2"))
        ep.reset()
        assert ep.epoch == step + 1
        ep.check()
        x, ids, weights = drawn(9, RANK, step)
        rows, counts = ep.dispatch(x, ids, weights)
        assert (ep.combine(computed(ep, rows, counts)) == expected(ep, x, ids, weights)).all()
    ep.close()
"""


def test_bad_values_fail_the_step_for_all_and_a_reset_ends_it(tmp_path):
    together(tmp_path, 3, BAD_VALUES)


def test_more_rows_than_an_expert_has_room_for(tmp_path):
    together(tmp_path, 2, """
        ep = joined(rows_max=2)
        x, _, weights = drawn(10, RANK, 0, tokens=2)
        ids = np.array([[0, 6, 7], [0, 8, 9]], "i4")
        def layer():
            # Rank 1 hears of it when it waits: now, or after it has packed its own.
            rows, counts = ep.dispatch(x, ids, weights)
            ep.combine(rows)
        error = refused("rank 0 got", layer, kind=mooncrate.Error)
        assert error.kind == "overflow" and "larger rows_max" in str(error) and error.ranks == (0,)
        ep.close()
    """, FRONT)  # fmt: skip


def test_ranks_in_different_layers_are_told(tmp_path):
    together(tmp_path, 2, """
        batch = drawn(11, RANK, 0)
        error = refused("layer", ep.dispatch, *batch, layer=RANK, kind=mooncrate.Error)
        assert error.kind == "desync" and "same layers in the same order" in str(error), error
        ep.reset()
        rows, counts = ep.dispatch(*batch)
        assert (ep.combine(computed(ep, rows, counts)) == expected(ep, *batch)).all()
        ep.close()
    """)  # fmt: skip


def test_a_rank_that_is_killed_between_dispatch_and_combine(tmp_path):
    """The others are told who it was, at once: the timeout is far longer than this test may take."""
    processes = begun(tmp_path, 3, """
        import os, signal
        ep = joined(timeout=600, join_timeout=600)
        batch = drawn(12, RANK, 0)
        rows, counts = ep.dispatch(*batch)
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        error = refused("rank 1 ended", ep.combine, computed(ep, rows, counts), kind=mooncrate.Unavailable)
        assert (error.kind, error.ranks, error.advice) == ("lost", (1,), "give up")
        assert "make a new Communicator in every rank" in str(error)
        assert ep.notice() == (1,)
        refused("rank 1 ended", ep.dispatch, *batch, kind=mooncrate.Unavailable)
        # A group does not go on without a rank, and says so.
        refused("rank 1", ep.reset, kind=mooncrate.Unavailable)
        refused("rank 1", ep.close, kind=mooncrate.Unavailable)
        refused("closed", ep.check, kind=mooncrate.Closed)
        assert repr(ep) == "<mooncrate.ep.Communicator, closed>"
        # What came before is still there.
        assert rows.shape == (4, 18, 32)
        print("told")
    """, FRONT)  # fmt: skip
    said = []
    try:
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, -signal.SIGKILL, 0], said
    assert said == [("told\n", ""), ("", ""), ("told\n", "")]


def test_a_rank_that_does_not_come_in_time(tmp_path):
    together(tmp_path, 2, """
        import pathlib, time
        ep = joined(timeout=0.5, first_timeout=0.5)
        told = pathlib.Path(PATH).with_name("told")
        if RANK == 0:
            error = refused("rank 1 did not come in time", ep.dispatch, *drawn(13, 0, 0), kind=mooncrate.Unavailable)
            assert (error.kind, error.ranks, error.advice) == ("timeout", (1,), "retry")
            told.write_text("")
        while not told.exists():
            time.sleep(0.01)
        if RANK == 1:
            error = refused("rank 1 did not come in time", ep.dispatch, *drawn(13, 1, 0), kind=mooncrate.Unavailable)
            assert "found by rank 0" in str(error)
        ep.close()
    """, FRONT)  # fmt: skip


def test_a_rank_that_leaves_on_the_way(tmp_path):
    together(tmp_path, 2, """
        try:
            with joined(timeout=600) as ep:
                rows, counts = ep.dispatch(*drawn(14, RANK, 0))
                if RANK == 1:
                    raise RuntimeError("on purpose")
                ep.combine(computed(ep, rows, counts))
        except RuntimeError as error:
            assert RANK == 1 and str(error) == "on purpose"
        except mooncrate.Unavailable as error:
            assert RANK == 0 and error.kind in ("left", "lost") and "rank 1" in str(error), error
        else:
            raise AssertionError("nobody noticed")
    """, FRONT)  # fmt: skip


# Rank 1 is done, rank 0 comes once more: it is told long before the timeout, and both of them leave.
LEFT_EARLY = """
    ep = joined(timeout=600, first_timeout=600, join_timeout=600)
    given = globals().get("arrays", lambda *batch: batch)(*drawn(20, RANK, 0, tokens=6))
    ep.combine(ep.dispatch(*given).rows)
    ep.finish()
    if RANK == 0:
        def layer():
            ep.dispatch(*given)
            ep.finish()
        error = refused("rank 1", layer, kind=mooncrate.Unavailable)
        assert (error.kind, error.ranks) == ("left", (1,)), error
    ep.close()
    assert ep._native.closed
    ep.close()
    del ep
    globals().get("given_back", lambda: None)()
"""


def test_a_rank_that_closes_early_is_named_at_once(tmp_path):
    together(tmp_path, 2, LEFT_EARLY, FRONT)


def test_a_reset_waits_for_a_rank_that_still_waits(tmp_path):
    """A wait of the first phase may be longer than the time that ranks have to join."""
    together(tmp_path, 2, """
        import pathlib, time
        here, there = (pathlib.Path(PATH).with_name(f"ready{rank}") for rank in (RANK, 1 - RANK))
        def meet():
            here.write_text("")
            while not there.exists():
                time.sleep(0.01)
        meet()
        ep = joined(timeout=1, first_timeout=12, join_timeout=10)
        if RANK == 0:
            refused("call reset() in every rank", ep.dispatch, *drawn(21, 0, 0), kind=mooncrate.Unavailable)
        ep.reset()
        assert ep.epoch == 1
        ep.close()
    """, FRONT)  # fmt: skip


# Ranks meet


def test_a_second_communicator_has_memory_of_its_own(tmp_path):
    """At the same place, while the first one is at work: the layers of both go on side by side."""
    together(tmp_path, 2, """
        other = joined(tokens_max=3)
        for step in range(3):
            first, second = drawn(15, RANK, step), drawn(16, RANK, step, {"tokens_max": 3})
            rows, counts = ep.dispatch(*first)
            rows_2, counts_2 = other.dispatch(*second)
            assert rows.ctypes.data != rows_2.ctypes.data
            out = other.combine(computed(other, rows_2, counts_2))
            assert (out == expected(other, *second)).all()
            assert (ep.combine(computed(ep, rows, counts)) == expected(ep, *first)).all()
        ep.close()
        rows, counts = other.dispatch(*second)
        assert (other.combine(computed(other, rows, counts)) == expected(other, *second)).all()
        other.close()
    """)  # fmt: skip


def test_ranks_come_from_the_environment(tmp_path):
    said = together(tmp_path, 2, """
        for name in ("rank", "world"):
            del MORE[name]
        with Communicator(**MORE) as ep:
            print(ep)
        print(ep)
    """, FRONT, RANK="{rank}", WORLD_SIZE="2")  # fmt: skip
    for rank, out in enumerate(said):
        assert out.splitlines() == [
            f"<mooncrate.ep.Communicator, rank {rank} of 2, host>", "<mooncrate.ep.Communicator, closed>",
        ]  # fmt: skip


def test_ranks_with_another_configuration_are_told(tmp_path):
    together(tmp_path, 3, """
        error = refused("the configuration of rank 2 differs", joined, hidden=32 + 8 * (RANK == 2))
        assert error.kind == "other shape"
    """, FRONT)  # fmt: skip


def test_a_rank_that_is_missing_at_the_start_is_named(tmp_path):
    more = {"backend": "host", "path": str(tmp_path / "meet"), "world": 2, "join_timeout": 0.5}
    with pytest.raises(mooncrate.Unavailable, match="rank 1 did not come in time") as caught:
        Communicator(rank=0, **more)
    assert caught.value.kind == "ranks did not meet"
    with pytest.raises(mooncrate.Unavailable, match="rank 0 did not answer .* is it started, with the same path"):
        Communicator(rank=1, **more)


def test_bad_configurations_are_refused_at_once(tmp_path):
    for words, more in [
        ("256 experts on 3 ranks: the world must divide the experts; add 2", {"world": 3}),
        ("world is 1; choose 2 to 8", {"world": 1}),
        ("world is 9; choose 2 to 8", {"world": 9}),
        ("hidden is 7172; rows move in pieces of 16 bytes", {"hidden": 7172}),
        ("a multiple of 128", {"hidden": 7176, "payload": "fp8"}),
        ("top_k is 9; choose 1 to 8", {"top_k": 9}),
        ("tokens_max is 0; choose 1 to 4096", {"tokens_max": 0}),
        ("rows_max is 65; choose 1 to 64", {"rows_max": 65}),
        ("-1 is out of range", {"experts": -1}),
        ("inter is 12; choose a multiple of 8", {"inter": 12}),
        ('backend is "cuda" or "host"', {"backend": "disk"}),
        ('payload is "bf16" or "fp8"', {"payload": "fp4"}),
        ("timeout=0 is no span", {"timeout": 0.0}),
        ("rank 2 of a world of 2", {"rank": 2}),
        ("give path, a Unix socket", {"path": None}),
    ]:
        given = {"backend": "host", "path": str(tmp_path / "meet"), "rank": 0, "world": 2, **more}
        with pytest.raises(mooncrate.Invalid, match=words):
            Communicator(**given)
    with pytest.raises(mooncrate.Invalid, match="give rank, set RANK"):
        Communicator(backend="host", world=2)


def test_no_driver_is_an_error_in_words(tmp_path):
    given = {"path": str(tmp_path / "meet"), "rank": 0, "world": 2, "join_timeout": 0.5}
    with pytest.raises(mooncrate.Unavailable, match="no CUDA driver|rank 1 did not come in time"):
        Communicator(**given)


# Processes and threads


def test_a_forked_child_is_told(tmp_path):
    together(tmp_path, 2, """
        import os
        batch = drawn(17, RANK, 0)
        child = os.fork()
        if child == 0:
            try:
                ep.dispatch(*batch)
            except mooncrate.Closed as error:
                os._exit(7 if "before a fork" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        rows, counts = ep.dispatch(*batch)
        assert (ep.combine(computed(ep, rows, counts)) == expected(ep, *batch)).all()
        ep.close()
    """)  # fmt: skip


def test_other_threads_run_while_a_rank_waits(tmp_path):
    """Rank 1 comes when a thread of rank 0 lets it: a rank that held the GIL would wait for itself."""
    together(tmp_path, 2, """
        import pathlib, threading, time
        file = pathlib.Path(PATH).with_name("go")
        batch = drawn(18, RANK, 0)
        if RANK == 1:
            while not file.exists():
                time.sleep(0.01)
        else:
            began = threading.Event()
            def release():
                began.wait()
                for _ in range(100):
                    # It does not wait for the call that is under way.
                    assert repr(ep).endswith("rank 0 of 2, host>")
                    time.sleep(0.001)
                file.write_text("")
            threading.Thread(target=release).start()
            began.set()
        rows, counts = ep.dispatch(*batch)
        assert file.exists()
        assert (ep.combine(computed(ep, rows, counts)) == expected(ep, *batch)).all()
        ep.close()
    """)  # fmt: skip


def test_ctrl_c_is_raised_when_the_call_ends(tmp_path):
    """As in every call of this package that waits for other ranks: at the latest after its timeout."""
    together(tmp_path, 2, """
        import os, pathlib, signal, threading, time
        ep = joined(timeout=2, first_timeout=2)
        done = pathlib.Path(PATH).with_name("done")
        if RANK == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
                try:
                    ep.dispatch(*drawn(19, 0, 0))
                except mooncrate.Unavailable:
                    time.sleep(60)
                raise AssertionError("nobody interrupted")
            except KeyboardInterrupt:
                done.write_text("")
        while not done.exists():
            time.sleep(0.01)
        ep.close()
    """, FRONT)  # fmt: skip


def test_nothing_is_imported_unasked():
    python("""
        import sys
        import mooncrate.ep
        assert not {"numpy", "torch"} & set(sys.modules)
    """)


def test_the_example_runs():
    command = [sys.executable, str(EXAMPLE), "--layers", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.count("3 layers, all of them right") == 2
