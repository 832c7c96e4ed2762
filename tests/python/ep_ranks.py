"""What every rank of the tests of the expert exchange runs first: batches, experts, and the dense reference in NumPy.

The reference visits each expert of each token in the order in which the exchange adds up: the experts of one rank by
top-k position, in f32 with one rounding for each product and sum, then one rounding to bf16; then the ranks in
their order, and one rounding. Results of the exchange are equal to it bit for bit.
"""

import sys

import numpy as np

import mooncrate
import mooncrate.ep

# A route whose sum shows the order: what is small is lost if it comes first.
ORDERED = np.array([[3, 0, 5]], "i4"), np.array([[2.0**-30, 1, -1]], "f4")
SHAPE = {"tokens_max": 6, "top_k": 3, "hidden": 32, "experts": 12}


class Communicator(mooncrate.ep.Communicator):
    """Most tests are not about which layer it is."""

    def dispatch(self, *batch, layer=0, **more):
        return super().dispatch(*batch, layer=layer, **more)

    def moe_forward(self, *given, layer=0, **more):
        return super().moe_forward(*given, layer=layer, **more)


def refused(words, call, *given, kind=mooncrate.Invalid, **more):
    """The exception that a call must raise, with these words."""
    try:
        call(*given, **more)
    except kind as error:
        assert words in str(error), error
        return error
    raise AssertionError(f"not refused: {words}")


def to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    """The nearest bf16; of two equally near the even one. There is no NaN in these tests."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def fused(weight, values, total):
    """fma(weight, values, total) of f32. A product of two f32 is exact in f64; the sum is rounded to odd there, so
    that the rounding to f32 is the only one that counts."""
    product, addend = np.float64(weight) * values.astype(np.float64), total.astype(np.float64)
    rounded = product + addend
    # Knuth's two-sum: what the rounding has lost, exactly.
    back = rounded - product
    lost = (product - (rounded - back)) + (addend - back)
    bits = rounded.view(np.int64)
    to_odd = (lost != 0) & (bits & 1 == 0)
    away = (lost > 0) == (rounded > 0)
    return np.where(to_odd, bits + np.where(away, 1, -1), bits).view(np.float64).astype(np.float32)


def drawn(seed, rank, step, shape=None, tokens=None):
    """What a rank sends in a step: x, ids, weights."""
    shape = {**SHAPE, **(shape or {})}
    rng = np.random.default_rng([seed, rank, step])
    if tokens is None:
        tokens = int(rng.integers(0, shape["tokens_max"] + 1))
    x = to_bf16(rng.standard_normal((tokens, shape["hidden"])).astype("f4"))
    ids = np.array([rng.permutation(shape["experts"])[: shape["top_k"]] for _ in range(tokens)], "i4")
    weights = rng.random((tokens, shape["top_k"]), "f4") - np.float32(0.25)
    return x, ids.reshape(tokens, shape["top_k"]), weights


def scale(expert):
    return np.float32(0.5 + expert / 128)


def scaled(expert, x):
    """The expert of these tests: each element times a number of its own, in f32, rounded once."""
    return to_bf16(scale(expert) * to_f32(x))


def computed(ep, rows, counts, expert=scaled):
    """What the experts of this rank make of the rows; what nobody may read is NaN."""
    y = np.full((ep.local_experts, ep.rows_max, ep.hidden), 0xFFFF, np.uint16)
    for at, count in enumerate(np.asarray(counts)):
        y[at, :count] = expert(ep.rank * ep.local_experts + at, np.asarray(rows)[at, :count])
    return y


def dense(x, ids, weights, world, experts, hidden, expert=scaled):
    """The reference."""
    local, out = experts // world, np.zeros((len(x), hidden), np.uint16)
    for token in range(len(x)):
        total = np.zeros(hidden, np.float32)
        for rank in range(world):
            places = [k for k, chosen in enumerate(ids[token]) if chosen // local == rank]
            inner = np.zeros(hidden, np.float32)
            for k in places:
                made = expert(int(ids[token, k]), x[token])
                inner = fused(weights[token, k], to_f32(made), inner)
            if places:
                total += to_f32(to_bf16(inner))
        out[token] = to_bf16(total)
    return out


def expected(ep, x, ids, weights, expert=scaled):
    return dense(x, ids, weights, ep.world, ep.experts, ep.hidden, expert)


def sums(matrix, x):
    """Products of a matrix with a vector, in f64 for tests that allow a distance."""
    return to_f32(matrix).astype(np.float64) @ to_f32(x).astype(np.float64)


def gated(w13, w2, x):
    """An expert of `moe_forward`, in f64."""
    gate, up = sums(w13[0], x), sums(w13[1], x)
    return to_f32(w2).astype(np.float64) @ (gate / (1 + np.exp(-gate)) * up)


# As `test_nano.started` starts them; the tests themselves use the reference alone.
PATH, RANK, WORLD = (sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) if sys.argv[0] == "-c" and len(sys.argv) > 3 else ("", 0, 0)
# Half of the patience of the tests, so that a rank whose neighbour failed ends before they do.
MORE = {**SHAPE, "backend": "host", "path": PATH, "rank": RANK, "world": WORLD, "timeout": 30, "first_timeout": 30}


def joined(**more):
    return Communicator(**{**MORE, **more})
