"""What an import brings along, and what is imported later: nothing."""

import os
import subprocess
import sys
import textwrap

import pytest
from conftest import PATIENCE

PUBLISHED = bool(os.environ.get("MOONCAKE_MASTER"))
ours_only = pytest.mark.skipif(PUBLISHED, reason="about the modules of the drop-in")


def alone(program, *arguments):
    """What a process of its own says: this one has imported much already."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_package_has_its_store():
    """Programs say `import mooncake` and then `mooncake.store.…`."""
    assert alone(
        """
        import mooncake
        print(mooncake.store.BufferPool is mooncake.BufferPool, mooncake.store.MooncakeDistributedStore.__name__)
        """
    ) == ["True", "MooncakeDistributedStore"]


@ours_only
@pytest.mark.parametrize("module", ["mooncake.store", "mooncake._master", "mooncake._client", "mooncrate"])
def test_what_no_store_needs_is_not_imported(module):
    """They took longer than all the rest: half of the time from a start to the first value."""
    found = alone(f"import sys, {module}; print(*sys.modules)")
    assert module in found
    assert not {"asyncio", "http.server", "http.client", "ssl", "email", "hashlib", "decimal"} & {*found}


@ours_only
def test_nothing_is_imported_late(master):
    """A child that is forked while another thread imports a module waits for ever where it needs the same."""
    program = """
        import socket, sys
        import mooncake.store
        before = {*sys.modules}
        store = mooncake.store.MooncakeDistributedStore()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = ("localhost", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", sys.argv[1])
        assert store.setup(*settings, enable_client_http_server=True, client_http_port=port) == 0
        assert store.put("late", b"value") == 0 and store.get("late") == b"value"
        assert store.put_batch(["late/1", "late/2"], [b"1", b"2"]) == 0
        assert store.get_batch(["late/1", "late/2"]) == [b"1", b"2"] and store.is_exist("late") == 1
        with mooncake.BufferPool(store).acquire(4096) as lease:
            assert store.get_into("late", lease.ptr, 4096) == 5
        with socket.create_connection(("127.0.0.1", port)) as caller:
            caller.sendall(b"GET /health HTTP/1.0\\r\\n\\r\\n")
            assert b"200 OK" in caller.makefile("rb").readline()
        assert store.remove("late", True) == 0 and store.close() == 0
        print(*{*sys.modules} - before)
    """
    assert alone(program, master.address) == []
