"""One of the two ranks of `ep_torch.py --exchange`: `mooncrate.ep` on tensors, compared with the same sums by torch.

    python3 ep_torch_ranks.py PATH RANK [backend]

Each check says its name; the last line says how many passed. The weights have few bits, so that the fused product and
sum of the exchange can be written in f64: results must be equal bit for bit. With backend "host" the same runs on
tensors of the processor, without graphs.
"""

import sys
import time

import torch

import mooncrate
from mooncrate.ep import Communicator

PATH, RANK, BACKEND = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "cuda"
GPU = BACKEND == "cuda"
DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
WORLD, TOKENS, TOP_K, HIDDEN, EXPERTS, INTER = 2, 32, 4, 1024, 16, 64
LOCAL = EXPERTS // WORLD
REPLAYS = 1000 if GPU else 20
SCALES = (0.5 + torch.arange(EXPERTS) / 16).to(DEVICE)
CHECKS = []


def check(work):
    CHECKS.append(work)
    return work


def drawn(step, tokens=TOKENS):
    """What this rank sends in a step."""
    generator = torch.Generator().manual_seed(step * WORLD + RANK)
    x = torch.randn(tokens, HIDDEN, generator=generator).to(torch.bfloat16)
    ids = torch.rand(tokens, EXPERTS, generator=generator).topk(TOP_K, dim=1).indices.to(torch.int32)
    weights = torch.randint(-32, 64, (tokens, TOP_K), generator=generator) / 64
    return x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE)


def experts(rows):
    """All rows at once, also those without a token: their number is known on the GPU only."""
    own = SCALES[RANK * LOCAL : (RANK + 1) * LOCAL]
    return (rows.float() * own[:, None, None]).to(torch.bfloat16)


def dense(x, ids, weights):
    """Each token and its experts, without an exchange, in its order of sums."""
    total = torch.zeros(len(x), HIDDEN, device=DEVICE)
    for rank in range(WORLD):
        inner = torch.zeros(len(x), HIDDEN, device=DEVICE)
        for k in range(TOP_K):
            y = (x.float() * SCALES[ids[:, k].long()][:, None]).to(torch.bfloat16)
            fused = (inner.double() + weights[:, k, None].double() * y.double()).float()
            inner = torch.where((ids[:, k] // LOCAL == rank)[:, None], fused, inner)
        total += inner.to(torch.bfloat16).float()
    return total.to(torch.bfloat16)


def equal(out, wanted):
    assert out.shape == wanted.shape and torch.equal(out.view(torch.int16), wanted.view(torch.int16))


def refused(words, kind, call, *given, **more):
    try:
        call(*given, **more)
    except kind as error:
        assert words in str(error), error
        return error
    raise AssertionError(f"not refused: {words}")


@check
def plain_calls(ep):
    side = torch.cuda.Stream() if GPU else None
    places = set()
    for step, tokens in enumerate([0, 1, 7, 31, 32, 32, 5, 0, 16]):
        batch = drawn(step, tokens)
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side if step % 2 else None) if GPU else torch.no_grad():
            rows, counts = ep.dispatch(*batch, layer=step)
            places.add((rows.data_ptr(), counts.data_ptr()))
            assert (rows.shape, rows.dtype, counts.dtype) == ((LOCAL, 64, HIDDEN), torch.bfloat16, torch.int32)
            room = [None, torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16, device=DEVICE), torch.empty_like(batch[0])]
            out = ep.combine(experts(rows), out=room[step % 3])
            ep.finish()
            equal(out[:tokens], dense(*batch))
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
    assert len(places) == 1, "the memory moved"


@check
def tensors_that_do_not_fit(ep):
    x, ids, weights = drawn(50)
    Invalid = mooncrate.Invalid
    refused("give x.to(torch.bfloat16)", Invalid, ep.dispatch, x.float(), ids, weights, layer=0)
    refused("give topk_ids.to(torch.int32)", Invalid, ep.dispatch, x, ids.short(), weights, layer=0)
    refused("give x.contiguous()", Invalid, ep.dispatch, x.repeat(1, 2)[:, ::2], ids, weights, layer=0)
    refused("x has the shape", Invalid, ep.dispatch, x[:, :8].contiguous(), ids, weights, layer=0)
    if GPU:
        refused("x is on the host, this communicator on GPU 0", Invalid, ep.dispatch, x.cpu(), ids, weights, layer=0)
    # Nothing was sent: the layer goes on.
    rows, _ = ep.dispatch(x, ids.long(), weights, layer=0)
    equal(ep.combine(experts(rows)), dense(x, ids, weights))


@check
def bad_weights_and_reset(ep):
    x, ids, weights = drawn(60)
    if RANK == 1:
        weights[3, 2] = float("nan")

    def layer():
        ep.combine(experts(ep.dispatch(x, ids, weights, layer=0).rows))
        ep.finish()

    error = refused("rank 1 gives", mooncrate.Error, layer)
    assert error.kind == "bad weight" and error.ranks == (1,)
    ep.reset()
    x, ids, weights = drawn(61)
    out = ep.combine(experts(ep.dispatch(x, ids, weights, layer=0).rows))
    ep.finish()
    equal(out, dense(x, ids, weights))


class Captured:
    """A layer in a graph of torch, with the tensors that it reads and writes."""

    def __init__(self, ep, layer, *, counted=False, rows=TOKENS):
        self.ep, self.rows = ep, rows
        self.x, self.ids, self.weights = drawn(0, rows)
        self.tokens = torch.full((1,), TOKENS, dtype=torch.int32, device=DEVICE)
        self.out = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
        self.layer, self.counted = layer, counted
        if not GPU:
            return
        # Once before, as torch asks for: everybody does it, so it is a layer like any other.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.work()
        torch.cuda.current_stream().wait_stream(side)
        ep.finish()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.work()

    def work(self):
        more = {"tokens": self.tokens} if self.counted and GPU else {}
        rows, _ = self.ep.dispatch(self.x, self.ids, self.weights, layer=self.layer, **more)
        self.ep.combine(experts(rows), out=self.out)

    def replay(self, step, tokens):
        batch = drawn(step, self.rows)
        for to, source in zip((self.x, self.ids, self.weights), batch, strict=True):
            to.copy_(source)
        self.tokens.fill_(tokens)
        self.out.fill_(float("nan"))
        if GPU:
            self.graph.replay()
        else:
            self.work()
        # The reference is queued behind the replay, so that the comparison sees it in order.
        right = dense(*batch)
        self.ep.finish()
        tokens = tokens if self.counted and GPU else self.rows
        equal(self.out[:tokens], right[:tokens])
        assert self.out[tokens:].isnan().all(), "rows without a token were written"


@check
def graphs_replayed_with_other_tokens(ep):
    # One that is told on the GPU how many tokens there are, one that is always full, one that copies its few.
    counted, full, few = Captured(ep, 1, counted=True), Captured(ep, 2), Captured(ep, 3, rows=5)
    for step in range(REPLAYS):
        # Another number of tokens on each rank.
        graph = {8: full, 9: few}.get(step % 10, counted)
        graph.replay(1000 + step, (step * 7 + RANK * 3) % (TOKENS + 1))


@check
def whole_layers(ep):
    generator = torch.Generator().manual_seed(RANK)
    w13 = (torch.randn(LOCAL, 2, INTER, HIDDEN, generator=generator) / 32).to(DEVICE, torch.bfloat16)
    w2 = (torch.randn(LOCAL, HIDDEN, INTER, generator=generator) / 8).to(DEVICE, torch.bfloat16)
    batch = drawn(70)
    first = ep.moe_forward(*batch, w13, w2, layer=0).clone()
    ep.finish()
    assert first.isfinite().all() and first.any()
    if not GPU:
        equal(ep.moe_forward(*batch, w13, w2, layer=0), first)
        return
    out = torch.zeros_like(batch[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ep.moe_forward(*batch, w13, w2, out=out, layer=0)
    for _ in range(20):
        out.zero_()
        graph.replay()
        ep.finish()
        equal(out, first)


def main():
    began = time.perf_counter()
    with Communicator(
        tokens_max=TOKENS, top_k=TOP_K, hidden=HIDDEN, experts=EXPERTS, inter=INTER, rank=RANK, world=WORLD, path=PATH,
        backend=BACKEND, timeout=60, first_timeout=120, join_timeout=120,
    ) as ep:  # fmt: skip
        for work in CHECKS:
            start = time.perf_counter()
            work(ep)
            print(f"ok      rank {RANK}: {work.__name__}  {time.perf_counter() - start:.1f} s", flush=True)
    print(f"{len(CHECKS)} passed, {REPLAYS} replays, in {time.perf_counter() - began:.0f} s", flush=True)


main()
