#!/usr/bin/env python3
"""Checks that the package `mooncake` and a master work together, and says what it saw.

    MASTER_SERVER=host:port python3 distributed_object_store_provider.py

Ends at the first step that fails.
"""

import argparse
import ctypes
import os
import sys

from mooncake.store import MooncakeDistributedStore, ReplicateConfig


def options() -> argparse.Namespace:
    environment = os.environ.get
    parser = argparse.ArgumentParser(
        description="Puts, reads and removes a few values, and verifies every byte."
    )
    add = parser.add_argument
    add("--protocol", default=environment("PROTOCOL", "tcp"), help="tcp or rdma; $PROTOCOL")
    add("--device-name", default=environment("DEVICE_NAME", "ibp6s0"), help="$DEVICE_NAME")
    add("--local-hostname", default=environment("LOCAL_HOSTNAME", "localhost"))
    add("--metadata-server", default=environment("METADATA_ADDR", "127.0.0.1:2379"))
    add("--master-server", default=environment("MASTER_SERVER", "127.0.0.1:50051"))
    add("--global-segment-size", type=int, default=64, help="MiB to lend (%(default)s)")
    return parser.parse_args()


def check(what: str, holds: bool) -> None:
    """Says that a step did what it should; ends the program if it did not."""
    if not holds:
        sys.exit(f"FAILED: {what}")
    print(f"ok: {what}")


def steps(store: MooncakeDistributedStore) -> None:
    key, small, large = "provider/one", b"Hello, cluster!", os.urandom(4 << 20)
    store.remove_by_regex("^provider/", True)
    check("a key that was never put is empty", store.get(key) == b"")
    check("a put stores a value", store.put(key, small) == 0)
    check("the key exists", store.is_exist(key) == 1)
    check("a get returns exactly that value", store.get(key) == small)
    check("a second put keeps the first value", store.put(key, b"other") == 0)
    check("and so does the store", store.get(key) == small)
    check("an upsert replaces it", store.upsert(key, b"other") == 0 and store.get(key) == b"other")

    config = ReplicateConfig()
    config.replica_num = 1
    memory = ctypes.create_string_buffer(large, len(large))
    address = ctypes.addressof(memory)
    check("memory is registered", store.register_buffer(address, len(large)) == 0)
    check("4 MiB go out of it", store.put_from("provider/large", address, len(large), config) == 0)
    ctypes.memset(address, 0, len(large))
    read = store.get_into("provider/large", address, len(large))
    check("and come back into it", read == len(large) and memory.raw == large)
    check("memory is given back", store.unregister_buffer(address) == 0)

    keys = [f"provider/{number}" for number in range(100)]
    values = [bytes([number]) * 100 for number in range(100)]
    check("100 values go in at once", store.put_batch(keys, values) == 0)
    check("and come back at once", store.get_batch(keys) == values)
    check("a removed value is gone", store.remove(key, True) == 0 and store.is_exist(key) == 0)
    check("101 others are removed by their names", store.remove_by_regex("^provider/", True) == 101)


def main() -> None:
    given = options()
    store = MooncakeDistributedStore()
    code = store.setup(
        given.local_hostname,
        given.metadata_server,
        given.global_segment_size << 20,
        16 << 20,
        given.protocol,
        given.device_name,
        given.master_server,
    )
    check(f"a store is set up with the master at {given.master_server}", code == 0)
    try:
        steps(store)
    finally:
        check("the store is closed", store.close() == 0)
    print("all steps passed")


if __name__ == "__main__":
    main()
