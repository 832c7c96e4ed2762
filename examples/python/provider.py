#!/usr/bin/env python3
"""Checks that the package `mooncrate` and a cluster work together, and says what it saw.

    python3 provider.py                          a store in this process, no server needed
    MASTER_SERVER=host:port python3 provider.py  a cluster

Ends at the first step that fails.
"""

import argparse
import os
import sys

import mooncrate


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Puts, reads and removes a few values, and verifies every byte."
    )
    parser.add_argument(
        "--master",
        default=os.environ.get("MASTER_SERVER") or None,
        help="host:port of the master; $MASTER_SERVER; without one the store is in this process",
    )
    parser.add_argument("--segment-size", default="64MiB", help="memory to lend (%(default)s)")
    return parser.parse_args()


def check(what: str, holds: bool) -> None:
    """Says that a step did what it should; ends the program if it did not."""
    if not holds:
        sys.exit(f"FAILED: {what}")
    print(f"ok: {what}")


def steps(store: mooncrate.Store) -> None:
    key, small, large = "provider/one", b"Hello, cluster!", os.urandom(4 << 20)
    store.remove_prefix("provider/", force=True)
    check("a key that was never put is a miss", store.get(key) is None)
    check("a put stores a value", store.put(key, small))
    check("a get returns exactly that value", store.get(key) == small)
    check("a second put keeps the first value", not store.put(key, b"other"))
    check("and so does the store", store.get(key) == small)
    check("4 MiB go in", store.put("provider/large", large))
    with store.view("provider/large") as view:
        where = "in place" if view.in_place else "as a copy"
        check(f"and are shown {where}, byte for byte", bytes(view) == large)
    room = bytearray(len(large))
    read = store.get_into("provider/large", room)
    check("and are read into a buffer", read == len(large) and room == large)
    batch = {f"provider/{number}": bytes([number]) * 100 for number in range(100)}
    check("100 values go in at once", store.put_batch(batch) == [True] * 100)
    check("and come back at once", store.get_batch(batch) == [*batch.values()])
    check("a removed value is gone", store.remove(key, force=True) and store.get(key) is None)
    check(
        "101 others are removed by their prefix",
        store.remove_prefix("provider/", force=True) == 101,
    )


if __name__ == "__main__":
    given = options()
    try:
        with mooncrate.Store(master=given.master, segment_size=given.segment_size) as opened:
            steps(opened)
    except mooncrate.Error as error:
        sys.exit(f"FAILED: {error}")
    print("all steps passed")
