"""What a call costs from Python, beside the same call from Rust, over shared memory on this machine.

    ./dev bench-python

$MOONCRATE_BINARY and $HOT_GET are release builds of `mooncrate` and of the example `hot_get`.
"""

import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import mooncrate
from conftest import Server

ROWS = 200


def median_ns(calls, call):
    """Nanoseconds of one call: the median of many rows of `calls`. The loop, and the lambda around
    the call, count as Python's."""
    found = []
    for _ in range(ROWS):
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        found.append((time.perf_counter_ns() - start) / calls)
    return statistics.median(found)


def main():
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder))
        try:
            rust = [
                float(word)
                for word in subprocess.run(
                    [os.environ["HOT_GET"], server.master], capture_output=True, check=True, text=True
                ).stdout.split()
            ]
            with mooncrate.Store(master=server.master) as store:
                target, keys = bytearray(4096), [f"exists/{number}" for number in range(128)]
                get_into, exists_batch = store.get_into, store.exists_batch
                assert get_into("hot", target) == 4096 and target == b"\7" * 4096
                python = [
                    median_ns(5000, lambda: get_into("hot", target)),
                    median_ns(50, lambda: exists_batch(keys)),
                ]
                assert store.stats()["client"]["shared"] >= 5000 * ROWS
        finally:
            server.stop()
    print(f"{'shared memory, 1 thread':<32}{'Rust':>10}{'Python':>10}{'more':>10}")
    for name, ours, theirs in zip(
        ("get_into 4 KiB", "exists_batch 128 keys"), rust, python, strict=True
    ):
        print(f"{name:<32}{ours:>7.0f} ns{theirs:>7.0f} ns{theirs - ours:>7.0f} ns")


if __name__ == "__main__":
    main()
