#!/usr/bin/env python3
"""Prefill and decode through `mooncake.store`: a process that fills the cluster, one that verifies.

    ROLE=prefill python3 stress_cluster_benchmark.py
    ROLE=decode  python3 stress_cluster_benchmark.py

Values go out of and into registered memory, a batch at a time, without copies in between. Prefill
stays until decode says that it has read everything, because values in its memory go with it.
"""

import argparse
import ctypes
import os
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mooncake.store import MooncakeDistributedStore


def options() -> argparse.Namespace:
    environment = os.environ.get
    parser = argparse.ArgumentParser(
        description="Stores values in a cluster (prefill), or reads and verifies them (decode)."
    )
    add = parser.add_argument
    add(
        "--role",
        choices=["prefill", "decode"],
        default=environment("ROLE"),
        help="what this process does; $ROLE",
    )
    add("--protocol", default=environment("PROTOCOL", "tcp"), help="tcp or rdma; $PROTOCOL")
    add("--device-name", default=environment("DEVICE_NAME", "ibp6s0"), help="$DEVICE_NAME")
    add("--local-hostname", default=environment("LOCAL_HOSTNAME", "localhost"))
    add(
        "--metadata-server",
        default=environment("METADATA_ADDR", "127.0.0.1:2379"),
        help="$METADATA_ADDR; Mooncrate needs none and asks none",
    )
    add(
        "--master-server",
        default=environment("MASTER_SERVER", "127.0.0.1:50051"),
        help="host:port; $MASTER_SERVER",
    )
    add("--global-segment-size", type=int, default=3200, help="MiB to lend (%(default)s)")
    add("--local-buffer-size", type=int, default=512, help="MiB to stage in (%(default)s)")
    add("--value-length", type=int, default=1 << 20, help="bytes (%(default)s)")
    add("--batch-size", type=int, default=8, help="values in one call (%(default)s)")
    add("--num-workers", type=int, default=1, help="threads that do so at once (%(default)s)")
    add("--max-requests", type=int, default=1000, help="values (%(default)s)")
    add("--patience", type=float, default=60.0, help="seconds to wait (%(default)s)")
    given = parser.parse_args()
    if given.role not in ("prefill", "decode"):
        parser.error("set ROLE=prefill or ROLE=decode, or give --role")
    if min(given.value_length, given.batch_size, given.num_workers, given.max_requests) < 1:
        parser.error("lengths, batches, workers and requests are at least 1")
    return given


def value(key: str, length: int) -> bytes:
    """The one value that a key may have."""
    return random.Random(key).randbytes(length)


@dataclass
class Counts:
    """What became of calls."""

    took: list[float] = field(default_factory=list)
    failed: int = 0
    wrong: int = 0


class Rooms:
    """Registered memory for the values of one batch."""

    def __init__(self, store: MooncakeDistributedStore, count: int, length: int) -> None:
        self.store, self.length = store, length
        self.memory = ctypes.create_string_buffer(count * length)
        first = ctypes.addressof(self.memory)
        self.addresses = [first + number * length for number in range(count)]
        if code := store.register_buffer(first, count * length):
            sys.exit(f"register_buffer: {code}")

    def fill(self, place: int, held: bytes) -> None:
        ctypes.memmove(self.addresses[place], held, self.length)

    def read(self, place: int) -> bytes:
        return ctypes.string_at(self.addresses[place], self.length)

    def close(self) -> None:
        self.store.unregister_buffer(self.addresses[0])


def batches(given: argparse.Namespace) -> list[list[str]]:
    """The keys of all requests, a batch at a time."""
    keys = [f"stress/{number}" for number in range(given.max_requests)]
    return [
        keys[start : start + given.batch_size] for start in range(0, len(keys), given.batch_size)
    ]


def figures(what: str, took: list[float], total: int) -> str:
    """One line: how many calls, how fast, how long the median and the slowest in a hundred took."""
    took = sorted(took)
    middle, slow = took[len(took) // 2], took[min(len(took) - 1, len(took) * 99 // 100)]
    return (
        f"{what}: {len(took)} calls, {total} bytes, "
        f"{total / max(sum(took), 1e-9) / 1e6:.0f} MB/s in each worker's calls, "
        f"p50 {middle * 1e6:.0f} us, p99 {slow * 1e6:.0f} us"
    )


def appear(store: MooncakeDistributedStore, keys: list[str], until: float) -> bool:
    """Waits until all keys exist, no longer than until then."""
    while store.batch_is_exist(keys) != [1] * len(keys):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def shared_out(given: argparse.Namespace, work: Callable[[list[list[str]]], Counts]) -> Counts:
    """All batches, by so many workers at once."""
    all_batches = batches(given)
    shares = [all_batches[first :: given.num_workers] for first in range(given.num_workers)]
    with ThreadPoolExecutor(given.num_workers) as threads:
        done = [*threads.map(work, filter(None, shares))]
    return Counts(
        [one for counts in done for one in counts.took],
        sum(counts.failed for counts in done),
        sum(counts.wrong for counts in done),
    )


def prefill(store: MooncakeDistributedStore, given: argparse.Namespace) -> int:
    def puts(share: list[list[str]]) -> Counts:
        rooms, counts = Rooms(store, given.batch_size, given.value_length), Counts()
        for keys in share:
            for place, key in enumerate(keys):
                rooms.fill(place, value(key, given.value_length))
            sizes = [given.value_length] * len(keys)
            began = time.perf_counter()
            codes = store.batch_put_from(keys, rooms.addresses[: len(keys)], sizes)
            counts.took.append(time.perf_counter() - began)
            counts.failed += sum(code != 0 for code in codes)
        rooms.close()
        return counts

    store.remove("stress/done", True)
    counts = shared_out(given, puts)
    total = given.max_requests * given.value_length
    print(figures("prefill: puts", counts.took, total), flush=True)
    if counts.failed:
        print(f"prefill: {counts.failed} puts failed", file=sys.stderr)
        return 1
    if not appear(store, ["stress/done"], time.monotonic() + given.patience):
        print(f"prefill: no decode finished within {given.patience} s", file=sys.stderr)
        return 1
    # The answer: who stored the word waits for it, because the word may lie in its own memory.
    store.remove("stress/done", True)
    return 0


def decode(store: MooncakeDistributedStore, given: argparse.Namespace) -> int:
    until = time.monotonic() + given.patience

    def gets(share: list[list[str]]) -> Counts:
        rooms, counts = Rooms(store, given.batch_size, given.value_length), Counts()
        for keys in share:
            if not appear(store, keys, until):
                raise TimeoutError(f"{keys[0]} did not come within {given.patience} s")
            sizes = [given.value_length] * len(keys)
            began = time.perf_counter()
            lengths = store.batch_get_into(keys, rooms.addresses[: len(keys)], sizes)
            counts.took.append(time.perf_counter() - began)
            for place, (key, length) in enumerate(zip(keys, lengths, strict=True)):
                counts.failed += length != given.value_length
                counts.wrong += rooms.read(place) != value(key, given.value_length)
        rooms.close()
        return counts

    try:
        counts = shared_out(given, gets)
    except TimeoutError as error:
        print(f"decode: {error}", file=sys.stderr)
        return 1
    store.put("stress/done", b"1")
    while store.is_exist("stress/done") == 1 and time.monotonic() < until:
        time.sleep(0.01)
    print(figures("decode: gets", counts.took, given.max_requests * given.value_length))
    print(f"decode: {given.max_requests} read, {counts.failed} failed, {counts.wrong} wrong")
    return 1 if counts.failed or counts.wrong else 0


def main() -> int:
    given = options()
    store = MooncakeDistributedStore()
    code = store.setup(
        given.local_hostname,
        given.metadata_server,
        given.global_segment_size << 20,
        given.local_buffer_size << 20,
        given.protocol,
        given.device_name,
        given.master_server,
    )
    if code != 0:
        print(f"setup: {code}; is a master at {given.master_server}?", file=sys.stderr)
        return 1
    try:
        return prefill(store, given) if given.role == "prefill" else decode(store, given)
    finally:
        store.close()


if __name__ == "__main__":
    sys.exit(main())
