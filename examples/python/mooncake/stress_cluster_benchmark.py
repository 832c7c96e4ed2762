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
    add("--max-requests", type=int, default=1000, help="values (%(default)s)")
    add("--patience", type=float, default=60.0, help="seconds to wait (%(default)s)")
    given = parser.parse_args()
    if given.role not in ("prefill", "decode"):
        parser.error("set ROLE=prefill or ROLE=decode, or give --role")
    if min(given.value_length, given.batch_size, given.max_requests) < 1:
        parser.error("lengths, batches and requests are at least 1")
    return given


def value(key: str, length: int) -> bytes:
    """The one value that a key may have."""
    return random.Random(key).randbytes(length)


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
        f"{what}: {len(took)} calls, {total} bytes, {total / max(sum(took), 1e-9) / 1e6:.0f} MB/s, "
        f"p50 {middle * 1e6:.0f} us, p99 {slow * 1e6:.0f} us"
    )


def appear(store: MooncakeDistributedStore, keys: list[str], until: float) -> bool:
    """Waits until all keys exist, no longer than until then."""
    while store.batch_is_exist(keys) != [1] * len(keys):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def prefill(store: MooncakeDistributedStore, given: argparse.Namespace) -> int:
    store.remove("stress/done", True)
    rooms, took, failed = Rooms(store, given.batch_size, given.value_length), [], 0
    for keys in batches(given):
        for place, key in enumerate(keys):
            rooms.fill(place, value(key, given.value_length))
        sizes = [given.value_length] * len(keys)
        began = time.perf_counter()
        codes = store.batch_put_from(keys, rooms.addresses[: len(keys)], sizes)
        took.append(time.perf_counter() - began)
        failed += sum(code != 0 for code in codes)
    rooms.close()
    print(figures("prefill: puts", took, given.max_requests * given.value_length), flush=True)
    if failed:
        print(f"prefill: {failed} puts failed", file=sys.stderr)
        return 1
    if not appear(store, ["stress/done"], time.monotonic() + given.patience):
        print(f"prefill: no decode finished within {given.patience} s", file=sys.stderr)
        return 1
    return 0


def decode(store: MooncakeDistributedStore, given: argparse.Namespace) -> int:
    rooms, took = Rooms(store, given.batch_size, given.value_length), []
    until, failed, wrong = time.monotonic() + given.patience, 0, 0
    for keys in batches(given):
        if not appear(store, keys, until):
            print(f"decode: {keys[0]} did not come within {given.patience} s", file=sys.stderr)
            return 1
        sizes = [given.value_length] * len(keys)
        began = time.perf_counter()
        lengths = store.batch_get_into(keys, rooms.addresses[: len(keys)], sizes)
        took.append(time.perf_counter() - began)
        for place, (key, length) in enumerate(zip(keys, lengths, strict=True)):
            failed += length != given.value_length
            wrong += rooms.read(place) != value(key, given.value_length)
    rooms.close()
    store.put("stress/done", b"1")
    print(figures("decode: gets", took, given.max_requests * given.value_length))
    print(f"decode: {given.max_requests} read, {failed} failed, {wrong} wrong")
    return 1 if failed or wrong else 0


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
