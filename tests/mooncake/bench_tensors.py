"""What tensors cost through the drop-in, beside a copy of the same bytes by torch on this machine.

    MOONCRATE_BINARY=target/release/mooncrate python tests/mooncake/bench_tensors.py

A get is one copy into new memory, so `clone` is its floor; `get_tensor_into` reads into memory that
is there, so `copy_` is. Medians of rounds in which all of them take turns, so that a busy machine is
busy for all. Nothing passes or fails by these figures.
"""

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from conftest import Master
from mooncake.store import MooncakeDistributedStore

SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
HEAD = 304


def rounds(calls, count):
    """Median seconds of each call."""
    took = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            took[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in took.items()}


def measure(store, size, count):
    tensor = torch.randint(0, 1 << 40, (size // 8,))
    target = torch.zeros_like(tensor)
    room = torch.zeros(size + HEAD, dtype=torch.uint8)
    assert store.upsert_tensor("read", tensor) == 0
    read = store.get_tensor("read")
    assert torch.equal(read, tensor)
    calls = {
        "clone": tensor.clone,
        "get_tensor": lambda: store.get_tensor("read"),
        "copy_": lambda: target.copy_(tensor),
        "get_tensor_into": lambda: store.get_tensor_into("read", room.data_ptr(), room.numel()),
        "upsert_tensor": lambda: store.upsert_tensor("write", tensor),
    }
    return rounds(calls, count)


def main():
    parser = argparse.ArgumentParser(description="Measures tensors beside copies by torch.")
    parser.add_argument("--rounds", type=int, default=50, help="of each size (%(default)s)")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        master = Master(Path(folder))
        store = MooncakeDistributedStore()
        arguments = ("localhost", "P2PHANDSHAKE", 1 << 30, 16 << 20, "tcp", "", master.address)
        assert store.setup(*arguments) == 0
        try:
            for size in SIZES:
                took = measure(store, size, given.rounds)
                words = ", ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in took.items())
                ratios = took["get_tensor"] / took["clone"], took["get_tensor_into"] / took["copy_"]
                print(f"{size >> 10} KiB, us: {words}; get/clone {ratios[0]:.2f}, ", end="")
                print(f"into/copy_ {ratios[1]:.2f}", flush=True)
        finally:
            store.close()
            master.stop()


if __name__ == "__main__":
    main()
