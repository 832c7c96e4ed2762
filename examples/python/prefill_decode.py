#!/usr/bin/env python3
"""Prefill and decode over one cluster: a process that fills it, and one that reads and verifies.

    ROLE=prefill python3 prefill_decode.py
    ROLE=decode  python3 prefill_decode.py

Prefill lends memory to the cluster, stores its values, and stays until decode says that it has read
them, because values that lie in its memory go with it. What each value is follows from its key, so
that decode knows every byte without being told.
"""

import argparse
import os
import random
import sys
import time

import mooncrate


def options() -> argparse.Namespace:
    environment = os.environ.get
    parser = argparse.ArgumentParser(
        description="Stores values in a cluster (prefill), or reads and verifies them (decode)."
    )
    parser.add_argument(
        "--role",
        choices=["prefill", "decode"],
        default=environment("ROLE"),
        help="what this process does; $ROLE",
    )
    parser.add_argument(
        "--master",
        default=environment("MASTER_SERVER", "127.0.0.1:50051"),
        help="host:port of the master; $MASTER_SERVER (%(default)s)",
    )
    parser.add_argument(
        "--segment-size", default="3200MiB", help="memory that prefill lends (%(default)s)"
    )
    parser.add_argument("--value-length", type=int, default=1 << 20, help="bytes (%(default)s)")
    parser.add_argument("--max-requests", type=int, default=1000, help="values (%(default)s)")
    parser.add_argument("--run", default="prefill-decode", help="prefix of all keys (%(default)s)")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds to wait for the other (%(default)s)"
    )
    given = parser.parse_args()
    # A default from the environment is not checked by argparse.
    if given.role not in ("prefill", "decode"):
        parser.error("set ROLE=prefill or ROLE=decode, or give --role")
    if given.value_length < 1 or given.max_requests < 1:
        parser.error("--value-length and --max-requests are at least 1")
    return given


def value(key: str, length: int) -> bytes:
    """The one value that a key may have."""
    return random.Random(key).randbytes(length)


def figures(what: str, took: list[float], length: int) -> str:
    """One line: how many, how fast, how long the median and the slowest in a hundred took."""
    took = sorted(took)
    middle, slow = took[len(took) // 2], took[min(len(took) - 1, len(took) * 99 // 100)]
    rate = len(took) * length / max(sum(took), 1e-9) / 1e6
    return (
        f"{what}: {len(took)} of {length} bytes, {rate:.0f} MB/s, "
        f"p50 {middle * 1e6:.0f} us, p99 {slow * 1e6:.0f} us"
    )


def appears(store: mooncrate.Store, key: str, until: float) -> bool:
    """Waits for a key, no longer than until then."""
    while not store.exists(key):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def prefill(given: argparse.Namespace) -> int:
    done, took = f"{given.run}/done", []
    with mooncrate.Store(master=given.master, segment_size=given.segment_size) as store:
        store.remove(done, force=True)
        for number in range(given.max_requests):
            key = f"{given.run}/{number}"
            held = value(key, given.value_length)
            began = time.perf_counter()
            store.put(key, held)
            took.append(time.perf_counter() - began)
        print(figures("prefill: puts", took, given.value_length), flush=True)
        if not appears(store, done, time.monotonic() + given.patience):
            print(f"prefill: no decode finished within {given.patience} s", file=sys.stderr)
            return 1
    return 0


def decode(given: argparse.Namespace) -> int:
    took, missing, wrong = [], 0, 0
    room = bytearray(given.value_length)
    with mooncrate.Store(master=given.master) as store:
        until = time.monotonic() + given.patience
        for number in range(given.max_requests):
            key = f"{given.run}/{number}"
            if not appears(store, key, until):
                print(f"decode: {key} did not come within {given.patience} s", file=sys.stderr)
                return 1
            began = time.perf_counter()
            length = store.get_into(key, room)
            took.append(time.perf_counter() - began)
            missing += length is None
            wrong += length is not None and room[:length] != value(key, given.value_length)
        store.put(f"{given.run}/done", b"1")
    print(figures("decode: gets", took, given.value_length))
    print(f"decode: {len(took)} read, {missing} missing, {wrong} wrong")
    return 1 if missing or wrong else 0


if __name__ == "__main__":
    chosen = options()
    try:
        sys.exit(prefill(chosen) if chosen.role == "prefill" else decode(chosen))
    except mooncrate.Error as error:
        sys.exit(f"{chosen.role}: {error}")
