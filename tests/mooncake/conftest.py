"""A real `mooncake_master`, and stores of the drop-in; `./dev test python` builds the packages and sets everything up.
Tests that show a behaviour of the list in `checks.py` carry its number: `@pytest.mark.check(7)`.
"""

import ctypes
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from checks import Checks
from processes import PATIENCE, Program, free_ports, start_retrying

# A shell lets its jobs in the background ignore Ctrl-C, and their children inherit that; not these.
signal.signal(signal.SIGINT, signal.default_int_handler)
MIB = 1 << 20
# What a lookup holds its object for.
LEASE_SECONDS = 0.5


def pytest_addoption(parser):
    parser.addoption("--checks", action="store_true", help="end with the list of checks")


def pytest_configure(config):
    config.addinivalue_line("markers", "check(number): shows this check of the list in checks.py")
    if config.getoption("--checks"):
        config.pluginmanager.register(Checks(), "checks")


class Master:
    """`mooncake_master` on ports of its own, which it keeps when it is started again."""

    def __init__(self, folder, **variables):
        self.folder, self.variables = folder, variables
        self.ports = None
        start_retrying(self.start)

    def start(self):
        port, metrics = self.ports or free_ports(2)
        flags = (f"--port={port}", f"--metrics_port={metrics}")
        # Short, so that tests can wait for the end of it.
        flags += (f"--default_kv_lease_ttl={int(LEASE_SECONDS * 1000)}",)
        self.program = Program(self.folder, "mooncake_master", *flags, ports=(port, metrics), **self.variables)
        self.ports = (port, metrics)
        self.address, self.admin = f"127.0.0.1:{port}", f"http://127.0.0.1:{metrics}"

    @property
    def process(self):
        return self.program.process

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self):
        if self.process.poll() is None:
            self.program.stop()


@pytest.fixture(scope="session")
def master(tmp_path_factory):
    """One master for all tests that do not disturb it."""
    master = Master(tmp_path_factory.mktemp("master"))
    yield master
    master.stop()


@pytest.fixture
def own_master(tmp_path):
    """A master of the test's own."""
    master = Master(tmp_path)
    yield master
    master.stop()


@pytest.fixture
def make_store(request):
    """Makes stores, and closes them: `make_store(segment=…, buffer=…, master=…)`."""
    made = []

    def make(
        segment=64 * MIB, buffer=16 * MIB, *,
        host="localhost", metadata="P2PHANDSHAKE", master=None, kind=None, **more,
    ):
        from mooncake.store import MooncakeDistributedStore

        master = master or request.getfixturevalue("master")
        store = (kind or MooncakeDistributedStore)()
        arguments = (host, metadata, segment, buffer, "tcp", "ibp6s0", master.address)
        assert store.setup(*arguments, **more) == 0
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store):
    """A store with 64 MiB of its own, alone in the cluster, and empty."""
    store = make_store()
    store.remove_all(force=True)
    return store


class Memory:
    """Bytes at an address."""

    def __init__(self, size, fill=b""):
        self.size = size
        self.array = (ctypes.c_char * max(size, 1))()
        self.ptr = ctypes.addressof(self.array)
        if fill:
            self.array[: len(fill)] = fill

    def __bytes__(self):
        return self.array.raw[: self.size]


def memory(content):
    """Memory with this content, or of this size."""
    if isinstance(content, int):
        return Memory(content)
    return Memory(len(content), bytes(content))


def after_lease():
    """Waits until what was looked up is held no more."""
    time.sleep(LEASE_SECONDS + 0.1)


def free_port():
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def python(code, *arguments, ok=True):
    """Runs a program in another Python; what it printed. It must end well, unless told otherwise."""
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False, text=True)
    if ok:
        assert done.returncode == 0, done.stderr
    return done.stdout
