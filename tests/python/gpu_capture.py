"""Whether torch can capture graphs, in its default mode, while other threads of the process use mooncrate.

    MOONCRATE_BINARY=… python3 gpu_capture.py       with the package `mooncrate` beside it (`rig.py` says more)

One thread captures graphs of its own work and replays them: 60, and on until 60 calls of the other thread lay within a
capture. That one puts, reads and removes a tensor of 1 MiB all the time, in a store of this process, in a store of another process, and in a cache of two ranks. Every capture and
every call of the other thread must succeed.
"""

import collections
import os
import pathlib
import sys
import tempfile
import threading
import time

from rig import run_checks, run_ranks, torch_or_skip

ROW = "torch captures graphs beside calls of mooncrate"
CAPTURES, BYTES = 60, 1 << 20
# Seconds until enough calls must have come to lie within a capture.
PATIENCE = 60
RANKS = sys.argv[1:]

torch = torch_or_skip(ROW)
import mooncrate


class Beside(threading.Thread):
    """Calls `work(number)` again and again, and counts the errors and the calls that ran beside a capture."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self.work, self.end = work, threading.Event()
        self.captures = [0, 0]  # begun, ended
        self.calls, self.inside, self.errors = 0, 0, collections.Counter()

    def run(self):
        while not self.end.is_set():
            begun, ended = self.captures
            try:
                self.work(self.calls)
            except BaseException as error:
                self.errors[f"{type(error).__name__}: {error}"[:300]] += 1
                time.sleep(0.001)
            self.calls += 1
            # One capture was under way at the start and at the end of the call.
            self.inside += begun == ended + 1 and [begun, ended] == self.captures

    def stop(self):
        self.end.set()
        self.join(60)
        assert not self.is_alive(), "a call beside a capture does not end"


def capture(beside):
    """Captures and replays until enough calls lay within a capture; how many captures, and what failed."""
    failed, number, until = collections.Counter(), 0, time.monotonic() + PATIENCE
    x = torch.arange(1 << 16, device="cuda", dtype=torch.float32)
    out = torch.zeros_like(x)
    torch.cuda.synchronize()
    while number < CAPTURES or (beside.inside < CAPTURES and time.monotonic() < until):
        number += 1
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                beside.captures[0] += 1
                try:
                    torch.mul(x, float(number), out=out)
                    time.sleep(0.01)
                    for _ in range(20):
                        out.add_(1)
                finally:
                    beside.captures[1] += 1
            out.zero_()
            graph.replay()
            assert torch.equal(out, x * number + 20), "the graph computes something else"
        except Exception as error:
            failed[f"{type(error).__name__}: {error}".split("\n")[0]] += 1
    return number, failed


def together(work):
    """Captures beside `work`; everything must succeed."""
    work(-1)  # the first call loads kernels and locks memory
    torch.cuda.synchronize()
    beside = Beside(work)
    beside.start()
    captures, failed = capture(beside)
    beside.stop()
    torch.cuda.synchronize()
    work(-2)
    words = f"{captures} captures, {failed.total()} failed; {beside.calls} calls beside them, {beside.inside} within a "
    words += f"capture, {beside.errors.total()} failed"
    print(f"    {words}", flush=True)
    assert not failed and not beside.errors, f"{words}\n{dict(failed)}\n{dict(beside.errors)}"
    assert beside.inside >= CAPTURES, f"too few calls came to lie within a capture: {words}"


def random(seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (BYTES,), dtype=torch.uint8, device="cuda", generator=generator)


def store_calls(store, **more):
    """A put, a get and a remove, on a stream of the thread that calls."""
    value, room, side = random(1), torch.zeros(BYTES, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()
    expected = value.cpu().numpy().tobytes()

    def work(number):
        key = f"beside/{number}"
        with torch.cuda.stream(side):
            while True:
                try:
                    assert store.put(key, value, **more), "the key had a value"
                    break
                except mooncrate.Busy as error:
                    # The room of the value before is on its way back.
                    if "STREAM_CAPTURE" in str(error):
                        raise
                    time.sleep(error.retry_after or 0.001)
            assert store.get_into(key, room) == BYTES
            if number % 16 == 0:
                assert store.get(key) == expected
        assert store.remove(key, force=True)
        if number < 0:
            side.synchronize()
            assert torch.equal(room, value), "wrong bytes"
            room.zero_()

    return work


def beside_a_store_of_this_process():
    with mooncrate.Store(segment_size="256MiB") as store:
        together(store_calls(store))


def beside_a_store_of_another_process():
    from device_store import Server

    with tempfile.TemporaryDirectory(prefix="mooncrate-capture-") as folder:
        server = Server(pathlib.Path(folder))
        try:
            with mooncrate.Store(master=server.master, timeout=60.0) as store:
                together(store_calls(store))
                if server.vram:
                    together(store_calls(store, medium="vram"))
        finally:
            server.stop()


def beside_puts_of_nano():
    print("".join(run_ranks(__file__, 2)), end="")


def as_rank(path, rank, world):
    from mooncrate.nano import NanoKVCache

    with NanoKVCache(256 << 20, rank=rank, world=world, path=path) as cache:
        value, room, side = random(rank), torch.zeros(BYTES, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()

        def work(number):
            with torch.cuda.stream(side):
                cache.put(f"beside/{rank}", value, preferred_segment=number % world)
                assert cache.get_into(f"beside/{rank}", room)
                assert cache.remove(f"beside/{rank}")
            if number < 0:
                side.synchronize()
                assert torch.equal(room, value), "wrong bytes"
                room.zero_()

        together(work)
        cache.barrier()


if RANKS:
    as_rank(RANKS[0], int(RANKS[1]), int(RANKS[2]))
else:
    checks = [beside_a_store_of_this_process, beside_puts_of_nano]
    if "MOONCRATE_BINARY" in os.environ:
        checks.insert(1, beside_a_store_of_another_process)
    run_checks(ROW, checks)
