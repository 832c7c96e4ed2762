"""The expert exchange on a real GPU, with tensors and streams of torch: two processes share the GPU.

Every layer is compared with the same sums by torch, bit for bit; weights have few bits, so that the fused product and
sum of the exchange can be written in f64. `./dev gpu` runs this file; without torch or a GPU each test is skipped.
Several processes on one GPU take turns without MPS, so that each wait costs milliseconds; results are the same.
"""

import multiprocessing
import os
import pathlib
import signal
import tempfile
import threading
import time

import pytest

import mooncrate
from mooncrate.ep import Communicator

try:
    import torch

    WHY = None if torch.cuda.is_available() else "torch finds no CUDA GPU"
except ImportError as error:
    WHY = f"torch: {error}"

pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))

# Seconds that two ranks may take; nothing passes or fails by less.
PATIENCE = 240
WORLD, TOKENS, FEW, TOP_K, HIDDEN, EXPERTS, INTER = 2, 32, 7, 4, 1024, 16, 64
LOCAL = EXPERTS // WORLD
LAYERS = 40
# About 2 ms of an H200.
SLOW_CYCLES = 4_000_000


def together(scenario, *given):
    """Runs a scenario in two processes, which end without an error."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="mooncrate-ep-") as folder:
        ranks = [context.Process(target=scenario, args=(folder, rank, *given)) for rank in range(WORLD)]
        try:
            for rank in ranks:
                rank.start()
            until = time.monotonic() + PATIENCE
            for rank in ranks:
                rank.join(max(0, until - time.monotonic()))
            codes = [rank.exitcode for rank in ranks]
        finally:
            for rank in ranks:
                if rank.is_alive():
                    rank.kill()
    assert codes == [0] * WORLD, f"exit codes {codes} (None: no end after {PATIENCE} s); what the ranks said is above"


def joined(folder, rank, name="meet", **more):
    torch.cuda.set_device(0)
    shape = {"tokens_max": TOKENS, "top_k": TOP_K, "hidden": HIDDEN, "experts": EXPERTS}
    times = {"timeout": 60, "first_timeout": 120, "join_timeout": 120}
    return Communicator(**{**shape, **times, "rank": rank, "world": WORLD, "path": f"{folder}/{name}", **more})


def drawn(rank, step, tokens=FEW, top_k=TOP_K, hidden=HIDDEN, experts=EXPERTS):
    """What a rank sends in a step, on the host."""
    generator = torch.Generator().manual_seed(step * WORLD + rank)
    x = torch.randn(tokens, hidden, generator=generator).to(torch.bfloat16)
    ids = torch.rand(tokens, experts, generator=generator).topk(top_k, dim=1).indices.to(torch.int32)
    weights = torch.randint(-32, 64, (tokens, top_k), generator=generator) / 64
    return x, ids, weights


def on_gpu(batch):
    return tuple(tensor.cuda() for tensor in batch)


def scales():
    """Made on the GPU, so that a capture may hold it."""
    return 0.5 + torch.arange(EXPERTS, device="cuda") / 16


def scaled(rows, own):
    """The experts: all rows at once, also those without a token, because only the GPU knows how many there are."""
    return (rows.float() * own[:, None, None]).to(torch.bfloat16)


def dense(x, ids, weights):
    """Each token and its experts, without an exchange, in its order of sums. Expert -1 is no expert."""
    every = scales()
    total = torch.zeros(len(x), HIDDEN, device="cuda")
    for rank in range(WORLD):
        inner = torch.zeros(len(x), HIDDEN, device="cuda")
        for k in range(TOP_K):
            expert = ids[:, k].long()
            y = (x.float() * every[expert.clamp(min=0)][:, None]).to(torch.bfloat16)
            fused = (inner.double() + weights[:, k, None].double() * y.double()).float()
            here = (expert >= 0) & (torch.div(expert, LOCAL, rounding_mode="floor") == rank)
            inner = torch.where(here[:, None], fused, inner)
        total += inner.to(torch.bfloat16).float()
    return total.to(torch.bfloat16)


def same(out, wanted):
    return out.shape == wanted.shape and torch.equal(out.view(torch.int16), wanted.view(torch.int16))


def layer(ep, rank, batch, number, out=None):
    """One layer, queued on the current stream."""
    own = scales()[rank * LOCAL : (rank + 1) * LOCAL]
    rows, _ = ep.dispatch(*batch, layer=number)
    return ep.combine(scaled(rows, own), out=out)


def judged(outs, batches):
    """Every layer must be right."""
    torch.cuda.synchronize()
    wrong = [at for at, (out, batch) in enumerate(zip(outs, batches, strict=True)) if not same(out, dense(*batch))]
    assert not wrong, f"{len(wrong)} of {len(outs)} layers are wrong: {wrong}"


def refused(kind, call, *given, **more):
    try:
        call(*given, **more)
    except kind as error:
        return error
    raise AssertionError(f"{call} was not refused")


# The order of layers


def layers_in_turn(folder, rank, slow, keeps):
    """Layers in turn on two streams, and no event of the caller between them."""
    ep = joined(folder, rank)
    batches = [on_gpu(drawn(rank, step)) for step in range(LAYERS)]
    outs = [torch.full((FEW, HIDDEN), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
    own = scales()[rank * LOCAL : (rank + 1) * LOCAL]
    # The kernels of torch are loaded before the first of these layers.
    layer(ep, rank, batches[0], 0, outs[0])
    ep.finish()
    outs[0].copy_(layer(ep, rank, batches[0], 0))
    ep.finish()
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for step in range(LAYERS):
        with torch.cuda.stream(streams[step % 2]):
            if slow and step % 2:
                torch.cuda._sleep(SLOW_CYCLES)
            rows, _ = ep.dispatch(*batches[step], layer=step)
            if keeps:
                ep.combine(scaled(rows, own), out=outs[step])
            else:
                # The result is memory of the communicator: read in the stream of the layer, before the next one.
                outs[step].copy_(ep.combine(scaled(rows, own)))
    ep.finish()
    judged(outs, batches)
    ep.close()


@pytest.mark.parametrize("slow", [True, False], ids=["slow", "plain"])
def test_layers_in_turn_on_two_streams(slow):
    together(layers_in_turn, slow, True)


def test_results_of_the_communicator_are_read_before_the_next_layer():
    together(layers_in_turn, True, False)


def captured_between(folder, rank):
    """A layer is captured before the result of a plain one is read, behind a slow kernel; the next one is elsewhere."""
    ep = joined(folder, rank)
    batches = [on_gpu(drawn(rank, 400 + step)) for step in range(3)]
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    kept = [layer(ep, rank, batches[0], 0)[:FEW].clone()]
    for _ in range(LAYERS // 4):
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            out = layer(ep, rank, batches[0], 0)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            layer(ep, rank, batches[1], 1)
        with torch.cuda.stream(first):
            torch.cuda._sleep(25 * SLOW_CYCLES)
            kept.append(out[:FEW].clone())
        with torch.cuda.stream(second):
            layer(ep, rank, batches[2], 2)
    for stream in (first, second):
        ep.finish(stream)
    judged(kept, [batches[0]] * len(kept))
    ep.close()


def test_a_capture_between_two_layers_forgets_no_result():
    together(captured_between)


def captured_layers(folder, rank):
    """Two layers on two streams of one capture, joined at its end only."""
    ep = joined(folder, rank)
    batches = [on_gpu(drawn(rank, step)) for step in range(2)]
    outs = [torch.zeros(FEW, HIDDEN, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    for step in range(2):
        layer(ep, rank, batches[step], step, outs[step])
    ep.finish()
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        torch.cuda._sleep(SLOW_CYCLES)
        layer(ep, rank, batches[0], 0, outs[0])
        with torch.cuda.stream(side):
            layer(ep, rank, batches[1], 1, outs[1])
        torch.cuda.current_stream().wait_stream(side)
    for replay in range(10):
        for step in range(2):
            for to, source in zip(batches[step], on_gpu(drawn(rank, 100 + 2 * replay + step)), strict=True):
                to.copy_(source)
            outs[step].fill_(float("nan"))
        graph.replay()
        ep.finish()
        judged(outs, batches)
    ep.close()


def test_two_layers_on_two_streams_of_one_capture():
    together(captured_layers)


# Inputs


def padded(folder, rank):
    """-1 in any place of a route, and tokens without a route at all: those get zeros."""
    ep = joined(folder, rank)
    batches, outs = [], []
    for step, tokens in enumerate([FEW, TOKENS, FEW]):
        x, ids, weights = drawn(rank, 200 + step, tokens)
        chosen = torch.rand(tokens, TOP_K, generator=torch.Generator().manual_seed(step)) < 0.5
        ids[chosen] = -1
        ids[step] = -1
        # What is not routed has no weight either, whatever stands there.
        weights[chosen] = float("nan")
        batches.append(on_gpu((x, ids, weights.where(~chosen, torch.tensor(0.5)))))
        sent = batches[-1][0], batches[-1][1], weights.cuda()
        outs.append(layer(ep, rank, sent, step, torch.empty_like(sent[0])))
    ep.finish()
    judged(outs, batches)
    assert not outs[1][1].any(), "a token without experts has zeros"
    ep.close()


def test_expert_minus_one_is_not_routed():
    together(padded)


def wide(folder, rank):
    """Ids as torch's topk gives them: in a full batch, in a small one, and in a capture."""
    ep = joined(folder, rank)
    batches, outs = [], []
    for step, tokens in enumerate([TOKENS, FEW]):
        x, ids, weights = on_gpu(drawn(rank, 300 + step, tokens))
        batches.append((x, ids, weights))
        outs.append(layer(ep, rank, (x, ids.long(), weights), step, torch.empty_like(x)))
    ep.finish()
    judged(outs, batches)
    x, ids, weights = batches[0]
    fixed = x, ids.long(), weights
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(ep, rank, fixed, 5, outs[0])
    for replay in range(5):
        batch = on_gpu(drawn(rank, 310 + replay, TOKENS))
        for to, source in zip(fixed, batch, strict=True):
            to.copy_(source)
        outs[0].fill_(float("nan"))
        graph.replay()
        ep.finish()
        judged(outs[:1], [batch])
    ep.close()


def test_int64_ids_are_taken():
    together(wide)


def too_wide(folder, rank):
    """An id whose low 32 bits alone name an expert is refused like any other that does not exist."""
    ep = joined(folder, rank)
    x, ids, weights = on_gpu(drawn(rank, 320, TOKENS))
    ids = ids.long()
    if rank == 1:
        ids[3, 2] += 1 << 32

    def attempt():
        layer(ep, rank, (x, ids, weights), 0)
        ep.finish()

    error = refused(mooncrate.Error, attempt)
    assert (error.kind, error.ranks) == ("bad expert", (1,)), str(error)
    ep.reset()
    x, ids, weights = on_gpu(drawn(rank, 321, TOKENS))
    out = layer(ep, rank, (x, ids.long(), weights), 1, torch.empty_like(x))
    ep.finish()
    judged([out], [(x, ids, weights)])
    ep.close()


def test_int64_ids_beyond_int32_are_refused():
    together(too_wide)


# Failures


def interrupted(folder, rank):
    """Ctrl-C while a rank waits for one that is alive: its time is over, and it has not ended."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ep = joined(folder, rank)
    batch, told = on_gpu(drawn(rank, 400)), pathlib.Path(folder, "told")
    judged([layer(ep, rank, batch, 0, torch.empty_like(batch[0]))], [batch])
    if rank == 0:
        layer(ep, rank, batch, 1)
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        try:
            try:
                ep.finish()
            except mooncrate.Unavailable:
                time.sleep(PATIENCE)
            raise AssertionError("no KeyboardInterrupt")
        except KeyboardInterrupt:
            pass
        told.touch()
    while not told.exists():
        time.sleep(0.01)

    def attempt():
        if rank == 1:
            layer(ep, rank, batch, 1)
        ep.finish()

    error = refused(mooncrate.Unavailable, attempt)
    assert (error.kind, error.ranks) == ("timeout", (1,)), (error.kind, error.ranks, str(error))
    ep.reset()
    out = layer(ep, rank, batch, 2, torch.empty_like(batch[0]))
    ep.finish()
    judged([out], [batch])
    ep.close()


def test_ctrl_c_names_a_live_rank_as_late():
    together(interrupted)


def reset_beside(folder, rank):
    """One communicator is reset while a layer of another one waits on the same GPU for a rank that is in the reset."""
    failed, beside = joined(folder, rank), joined(folder, rank, "beside", timeout=15)
    batch, out = on_gpu(drawn(rank, 500)), None
    judged([layer(beside, rank, batch, 0, torch.empty_like(batch[0]))], [batch])
    bad = (batch[0], batch[1], batch[2].clone())
    if rank == 1:
        bad[2][0, 0] = float("nan")

    def attempt():
        layer(failed, rank, bad, 0)
        failed.finish()

    assert refused(mooncrate.Error, attempt).kind == "bad weight"
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    if rank == 1:
        failed.reset()
    with torch.cuda.stream(side):
        out = layer(beside, rank, batch, 1, torch.empty_like(batch[0]))
    if rank == 0:
        failed.reset()
    beside.finish(side)
    judged([out], [batch])
    out = layer(failed, rank, batch, 1, torch.empty_like(batch[0]))
    failed.finish()
    judged([out], [batch])
    beside.close()
    failed.close()


def test_a_reset_leaves_other_communicators_alone():
    together(reset_beside)


# Experts


def gated(x, w13, w2):
    """An expert in f64."""
    gate, up = (x.double() @ w13[half].double().T for half in range(2))
    return torch.nn.functional.silu(gate) * up @ w2.double().T


def near(out, wanted):
    """How far a result is from the same in f64, by token: bf16 rounds four times on the way, by 2^-9 at most each."""
    return ((out.double() - wanted).norm(dim=1) / wanted.norm(dim=1).clamp(min=1e-9)).max().item()


def whole_layers(folder, rank, shape):
    """`moe_forward` against f64, at any shape; at a small one also against the same call on the host."""
    tokens, top_k, hidden, experts, inter = shape
    names = {"tokens_max": tokens, "top_k": top_k, "hidden": hidden, "experts": experts, "inter": inter}
    ep, local = joined(folder, rank, **names), experts // WORLD
    generator = torch.Generator(device="cuda").manual_seed(7)
    # Both ranks draw the weights of all experts, for the reference.
    w13 = [torch.randn(2, inter, hidden, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(experts)]
    w2 = [torch.randn(hidden, inter, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(experts)]
    w13 = torch.stack(w13) / hidden**0.5
    w2 = torch.stack(w2) / inter**0.5
    own = slice(rank * local, (rank + 1) * local)
    x, ids, weights = drawn(rank, 600, tokens, top_k, hidden, experts)
    batch = on_gpu((x, ids, weights))
    out = torch.empty_like(batch[0])
    ep.moe_forward(*batch, w13[own], w2[own], out=out, layer=0)
    ep.finish()
    wanted = torch.zeros(tokens, hidden, dtype=torch.float64, device="cuda")
    for expert in range(experts):
        token, k = (batch[1] == expert).nonzero(as_tuple=True)
        if len(token):
            made = gated(batch[0][token], w13[expert], w2[expert])
            wanted.index_add_(0, token, made * batch[2][token, k, None].double())
    far = near(out, wanted)
    print(f"rank {rank}: {shape}: furthest token {far:.5f} of its norm from f64", flush=True)
    assert far < 0.01
    again = torch.empty_like(out)
    ep.moe_forward(*batch, w13[own], w2[own], out=again, layer=1)
    ep.finish()
    assert same(out, again), "a GPU gives the same bits in every run"
    if hidden <= HIDDEN:
        host = joined(folder, rank, "host", **names, backend="host")
        from_host = host.moe_forward(x, ids, weights, w13[own].cpu(), w2[own].cpu(), layer=0)
        assert near(from_host.cuda(), wanted) < 0.01
        # Tensor cores add up in another order, so bits differ, within the roundings of bf16.
        assert near(out, from_host.cuda().double()) < 0.01
        host.close()
    ep.close()


@pytest.mark.parametrize(
    "shape", [(FEW, TOP_K, HIDDEN, EXPERTS, INTER), (32, 8, 7168, 32, 2048)], ids=["small", "deepseek-v3"]
)
def test_whole_layers_are_near_f64(shape):
    together(whole_layers, shape)
