"""Ctrl-C ends a call that waits: no code of the call, and nothing half done."""

import os
import pathlib
import signal

from conftest import python

# `interrupts.py` is shared with the tests of the other package.
SHARED = pathlib.Path(__file__).parent.parent / "python"


def test_calls_to_a_master_that_stands_still(own_master):
    """With an hour for each call: one that is not interrupted outlives the patience of the test."""
    pid = own_master.process.pid
    try:
        said = python(
            """
            import os, sys
            os.environ["MC_RPC_TIMEOUT_MS"] = "3600000"
            sys.path.insert(0, sys.argv[1])
            from interrupts import *
            from mooncake.store import MooncakeDistributedStore
            master, pid = sys.argv[2], int(sys.argv[3])
            store = MooncakeDistributedStore()
            assert store.setup("localhost", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master) == 0
            value = os.urandom(100_000)
            assert store.put("key", value) == 0
            memory = bytearray(value)
            import ctypes
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            still(pid, store.put, "a", value)
            still(pid, store.put_from, "b", address, len(memory))
            still(pid, store.batch_put_from, ["c", "d"], [address] * 2, [1000] * 2)
            still(pid, store.remove, "key")
            while store.put("e", value) != 0:
                time.sleep(0.05)
            assert store.get("e") in (b"", value)
            # Sessions that are open are given up at the end: the first wait is the only one.
            other = MooncakeDistributedStore()
            assert other.setup("localhost", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
            while other.batch_put_session_start(["f", "g"], [1000] * 2) != [0, 0]:
                other.batch_put_session_revoke(["f", "g"])
            still(pid, other.close)
            store.close()
            print("ended well")
            """,
            SHARED, own_master.address, pid,
        )  # fmt: skip
    finally:
        os.kill(pid, signal.SIGCONT)
    assert said == "ended well\n"
