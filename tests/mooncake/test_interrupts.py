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
            # Sessions of one call: nothing is left of a start or an end that was interrupted.
            still(pid, store.batch_put_session_start, ["k", "l"], [1000] * 2)
            assert store.batch_put_session_end(["k", "l"]) == [-600] * 2
            some = ["h", "i", "j"]
            while store.batch_put_session_start(some, [1000] * 3) != [0, 0, 0]:
                store.batch_put_session_revoke(some)
                time.sleep(0.05)
            columns = [[[address]] * 3, [[1000]] * 3, [[0]] * 3]
            assert store.batch_put_from_multi_buffer_ranges(some, *columns) == [1000] * 3
            still(pid, store.batch_put_session_end, some)
            assert store.batch_put_session_end(some) == [-600] * 3
            still(pid, store.batch_get_session_start, ["key"])
            while store.put("h", b"fresh") != 0:
                time.sleep(0.05)
            assert store.get("h") in (b"fresh", value[:1000])
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
