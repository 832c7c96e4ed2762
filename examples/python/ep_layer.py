#!/usr/bin/env python3
"""Two processes exchange the tokens of a mixture of experts, layer after layer, in host memory.

    python3 ep_layer.py
    python3 ep_layer.py --layers 100

This program starts both ranks itself. In each layer a rank draws tokens and a route for each of them,

    dispatch    sends every token to the ranks of its experts; what came here is in the order of this rank's experts
    its experts each multiplies a token with a number of its own: that stands for two products of matrices
    combine     sends results back, and adds them up with the weights of the route

and compares the sums with the same computed alone. With `backend="cuda"` the same calls take tensors of torch, and are
queued on its current stream; docs/ep.md says more.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np

from mooncrate.ep import Communicator

HIDDEN, EXPERTS, TOP_K, TOKENS = 256, 16, 4, 8


def bf16(values):
    """The upper half of each f32: numbers here have few bits, so nothing is lost."""
    return (values.astype("f4").view("u4") >> 16).astype("u2")


def f32(bits):
    return (bits.astype("u4") << 16).view("f4")


def factor(expert):
    return 1 + expert / 4


def run_rank(args):
    rng = np.random.default_rng(args.rank)
    with Communicator(
        hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, tokens_max=TOKENS, backend="host",
        rank=args.rank, world=2, path=args.path,
    ) as ep:  # fmt: skip
        for layer in range(args.layers):
            tokens = int(rng.integers(0, TOKENS + 1))
            x = rng.integers(-4, 5, (tokens, HIDDEN)).astype("f4")
            ids = np.array([rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)], "i4").reshape(tokens, TOP_K)
            weights = np.full((tokens, TOP_K), 1 / TOP_K, "f4")

            rows, counts = ep.dispatch(bf16(x), ids, weights, layer=layer)
            y = np.zeros((ep.local_experts, ep.rows_max, HIDDEN), "u2")
            for at, count in enumerate(counts):
                y[at, :count] = bf16(f32(rows[at, :count]) * factor(ep.rank * ep.local_experts + at))
            out = ep.combine(y)

            wanted = x * factor(ids).mean(1, keepdims=True)
            assert np.abs(f32(out) - wanted).max(initial=0) <= 0.25, f"layer {layer} is wrong"
        print(f"rank {args.rank}: {args.layers} layers, all of them right", flush=True)


def run_both(args):
    with tempfile.TemporaryDirectory(prefix="ep-layer-") as folder:
        command = [sys.executable, __file__, "--layers", str(args.layers), "--path", os.path.join(folder, "meet")]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(2)]
        try:
            return max(rank.wait() != 0 for rank in ranks)
        finally:
            for rank in ranks:
                rank.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=20, help="how many")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is None:
        return run_both(args)
    run_rank(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
