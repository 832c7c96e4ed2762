"""How long `NanoKVCache.put` and `get_into` take from Python: a table of medians and 95th percentiles.

    python3 gpu_nano_times.py [ROUNDS]      with the package `mooncrate` beside it (`rig.py` says more)

Two ranks under MPS. Each rank in turn, while the other one is idle, puts tensors into the other's heap and gets them
back, and removes them, which is not measured. A call is timed from its start to its return on an idle stream:

    in a row         eight puts after each other, then eight gets
    after a pause    one put and one get after some milliseconds in which the process slept
    beside a kernel  the same, while another stream has a kernel of some milliseconds queued, which no call has to wait for

The floor is what torch takes for two small kernels and an event in the place of the put. What was read is compared.
"""

import sys
import time

from rig import run_checks, run_ranks, torch_or_skip

ROW = "times of NanoKVCache"
WHEN = ["in a row", "after a pause", "beside a kernel"]
SIZES = {"4 KiB": 4 << 10, "256 KiB": 256 << 10, "8 MiB": 8 << 20}

torch = torch_or_skip(ROW)


def percentiles(times):
    times = sorted(times)
    return f"{times[len(times) // 2] * 1e6:.1f} | {times[len(times) * 95 // 100] * 1e6:.1f}"


def measure(cache, rank, name, size, rounds, when):
    """A row of the table: puts to the other rank's heap and gets from there."""
    value = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    room, small = torch.zeros_like(value), torch.zeros(16, device="cuda")
    side, elsewhere, mark = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event()
    many = 8 if when == "in a row" else 1

    def floor(_):
        small.add_(1)
        small.add_(1)
        mark.record(side)
        while not mark.query():
            pass

    def timed(work, keys):
        """The times of some calls after each other, after a pause."""
        time.sleep(0.002)
        value.add_(1)
        side.synchronize()
        if when == "beside a kernel":
            with torch.cuda.stream(elsewhere):
                torch.cuda._sleep(6_000_000)
        times = []
        for key in keys:
            began = time.perf_counter()
            work(key)
            times.append(time.perf_counter() - began)
        return times

    def put(key):
        cache.put(key, value, preferred_segment=1 - rank)

    def get(key):
        assert cache.get_into(key, room), "a value that was just put is not there"

    floors, puts, gets = [], [], []
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for number in range(rounds + 10):
            keys = [f"{rank}/{name}/{when}/{number}/{at}" for at in range(many)]
            for all_times, work in (floors, floor), (puts, put), (gets, get):
                all_times += timed(work, keys)
                elsewhere.synchronize()
                if work is put:
                    there = value.clone()
            side.synchronize()
            if number % 16 == 0:
                assert torch.equal(room, there), "wrong bytes"
            for key in keys:
                cache.remove(key)
    times = " | ".join(percentiles(times[10 * many :]) for times in (floors, puts, gets))
    return f"| {name} | rank {rank} | {when} | {times} |"


def as_rank(path, rank, world, rounds):
    from mooncrate.nano import NanoKVCache

    with NanoKVCache(1 << 30, rank=rank, world=world, path=path) as cache:
        for when in WHEN:
            for name, size in SIZES.items():
                for turn in range(world):
                    cache.barrier()
                    if turn == rank:
                        print(measure(cache, rank, name, size, rounds, when), flush=True)
        cache.barrier()


def table():
    rounds = sys.argv[1] if len(sys.argv) > 1 else "100"
    said = "".join(run_ranks(__file__, 2, rounds)).splitlines()
    rows = [line for line in said if line.startswith("| ")]
    print("\n".join(line for line in said if line not in rows))
    print("\n| bytes | caller | the call comes | floor µs p50 | p95 | put µs p50 | p95 | get_into µs p50 | p95 |")
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    print()


if len(sys.argv) > 2:
    as_rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
else:
    run_checks(ROW, [table])
