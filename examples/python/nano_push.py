#!/usr/bin/env python3
"""Prefill pushes KV pages into the memory of decode with a Triton kernel of its own; decode reads them in place.

    python3 nano_push.py                    two ranks on a GPU; without one: --backend host
    python3 nano_push.py --backend host
    python3 nano_push.py --values 64 --bytes 8388608

Two processes, which this program starts itself: rank 0 is prefill, rank 1 is decode. For each value

    prefill   open_for_write    the master reserves room in the heap of decode: a plan of ranks and offsets
              its kernel        computes K and V, stores them to the heap of decode, and the program that
                                comes last publishes them: no copy, no call on the way
              commit            the master gives the value to its key
    decode    get_location      where it is, in its own heap
              its kernel        waits for the word of the header, pins the value, sums it up in place, unpins

The "model" is arithmetic: byte i of a value follows from the number of the value, so decode knows the sum
that it must find. With --backend host the heaps are host memory, and NumPy does what the kernels do.

One GPU is enough: the two heaps lie on it side by side. Without MPS (nvidia-cuda-mps-control) the kernels of
two processes take turns of milliseconds; times printed then say nothing about the cache.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

from mooncrate import NanoKVCache

PREFILL, DECODE = 0, 1
PERIOD = 251


def expected(number, length):
    """What a value is: byte i is (i * 7 + number) % 251."""
    return ((np.arange(length, dtype=np.int64) * 7 + number) % PERIOD).astype(np.uint8)


def key(number):
    return f"prompt/{number}"


def prefill_on_host(cache, args):
    for number in range(args.values):
        plan = cache.open_for_write(key(number), args.bytes, preferred_segment=DECODE)
        data = expected(number, args.bytes)
        for start in range(0, args.bytes, plan.page_bytes):
            cache.push(plan, data[start : start + plan.page_bytes], start)
        cache.commit(key(number))


def decode_on_host(cache, args):
    for number in range(args.values):
        place = wait_for(cache, number, args.patience)
        assert place.owner_rank == cache.rank
        room = np.empty(place.bytes_total, np.uint8)
        assert cache.get_into(key(number), room)
        assert (room == expected(number, args.bytes)).all(), f"value {number} is another one"


def wait_for(cache, number, patience):
    """Where a value is, as soon as it has been committed."""
    end = time.monotonic() + patience
    while not (place := cache.get_location(key(number))):
        assert time.monotonic() < end, f"value {number} was not committed within {patience} s"
        time.sleep(0.0005)
    return place


class Gpu:
    """What both ranks need for their kernels: the bases, and words that a launch counts and answers with."""

    def __init__(self, cache):
        import torch

        import nano_push_kernels as kernels

        self.torch, self.kernels = torch, kernels
        torch.cuda.set_device(cache.device)
        self.bases = torch.tensor(cache.heap_bases, dtype=torch.int64, device="cuda")
        self.counter, self.outcome = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
        self.total = torch.zeros(1, dtype=torch.int64, device="cuda")


def prefill_on_gpu(cache, args):
    gpu = Gpu(cache)
    for number in range(args.values):
        plan = cache.open_for_write(key(number), args.bytes, preferred_segment=DECODE)
        gpu.kernels.prefill[gpu.kernels.grid(plan)](
            number, plan.payload_offset, plan.header_offset, plan.page_bytes, plan.bytes_total, plan.epoch,
            plan.dst_rank, gpu.bases, gpu.counter, gpu.outcome, TILE=gpu.kernels.TILE,
        )  # fmt: skip
        # Reading the answer waits for the kernel; commit would accept a plan that is already published.
        assert gpu.outcome.item() == 1, f"the plan of value {number} was given up"
        cache.commit(key(number))


def decode_on_gpu(cache, args):
    gpu = Gpu(cache)
    for number in range(args.values):
        place = wait_for(cache, number, args.patience)
        assert place.owner_rank == cache.rank
        where = (place.header_offset, place.epoch, cache.rank, place.owner_rank, gpu.bases)
        gpu.total.zero_()
        # In one stream: the second kernel goes by what the first one left in `outcome`.
        gpu.kernels.nano.pin_value[(1,)](*where, 1_000_000, gpu.outcome)
        gpu.kernels.decode[gpu.kernels.grid(place)](
            place.payload_offset, place.page_bytes, place.bytes_total, *where, gpu.counter, gpu.outcome,
            gpu.total, TILE=gpu.kernels.TILE,
        )  # fmt: skip
        assert gpu.outcome.item() == gpu.kernels.nano.READY.value, f"value {number} could not be pinned"
        wanted = int(expected(number, args.bytes).sum(dtype=np.int64))
        assert gpu.total.item() == wanted, f"value {number} is another one"
        # And once as a copy, into a tensor.
        copy = gpu.torch.empty(args.bytes, dtype=gpu.torch.uint8, device="cuda")
        assert cache.get_into(key(number), copy)
        assert (copy.cpu().numpy() == expected(number, args.bytes)).all(), f"copy {number} is another one"


WORK = {
    ("host", PREFILL): prefill_on_host, ("host", DECODE): decode_on_host,
    ("cuda", PREFILL): prefill_on_gpu, ("cuda", DECODE): decode_on_gpu,
}  # fmt: skip


def run_rank(args):
    heap_bytes = 64 << 20
    needed = 2 * args.values * (args.bytes + args.page)
    with NanoKVCache(
        max(heap_bytes, needed), page_bytes=args.page, rank=args.rank, world=2, path=args.path,
        backend=args.backend, join_timeout=args.patience,
    ) as cache:  # fmt: skip
        began = time.monotonic()
        WORK[args.backend, args.rank](cache, args)
        took = time.monotonic() - began
        name = "prefill" if args.rank == PREFILL else "decode"
        stats = cache.stats()
        print(
            f"{name}: {args.values} values of {args.bytes} bytes in {took:.3f} s, all of them right; "
            f"{stats['t_plan_us']} us for a plan",
            flush=True,
        )


def run_both(args):
    with tempfile.TemporaryDirectory(prefix="nano-push-") as folder:
        path = os.path.join(folder, "meet")
        command = [sys.executable, __file__, *sys.argv[1:], "--path", path, "--rank"]
        ranks = [subprocess.Popen([*command, str(rank)]) for rank in (PREFILL, DECODE)]
        try:
            return max(rank.wait(10 * args.patience) != 0 for rank in ranks)
        finally:
            for rank in ranks:
                rank.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--values", type=int, default=16, help="how many values")
    parser.add_argument("--bytes", type=int, default=1_000_003, help="of each value")
    parser.add_argument("--page", type=int, default=256 * 1024, help="bytes of a page")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds that a rank waits for the other")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is None:
        return run_both(args)
    run_rank(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
