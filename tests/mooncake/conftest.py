"""A real `mooncrate master`, and stores of the drop-in.

The binary is $MOONCRATE_BINARY; `./dev test python` builds it and the packages and sets everything up.
Tests that show a behaviour of the list in `checks.py` carry its number: `@pytest.mark.check(7)`.
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from checks import Checks

# Generous: the machine may be busy with other things. No test passes or fails by a time.
PATIENCE = 60
# A shell lets its jobs in the background ignore Ctrl-C, and their children inherit that; not these.
signal.signal(signal.SIGINT, signal.default_int_handler)
MIB = 1 << 20
# What a lookup holds its object for; short, so that tests can wait for the end of it.
LEASE_SECONDS = 0.5


def pytest_addoption(parser):
    parser.addoption("--checks", action="store_true", help="end with the list of checks")


def pytest_configure(config):
    config.addinivalue_line("markers", "check(number): shows this check of the list in checks.py")
    if config.getoption("--checks"):
        config.pluginmanager.register(Checks(), "checks")


class Master:
    """`mooncrate master` on a port of its own, which it keeps when it is started again."""

    def __init__(self, folder, more=()):
        self.folder = folder
        self.more = more
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MOONCRATE_")
        }
        self.environment["XDG_RUNTIME_DIR"] = str(folder)
        self.address = "127.0.0.1:0"
        self.process = None
        self.start()

    def start(self):
        if os.environ.get("MOONCAKE_MASTER"):
            return self._start_theirs(os.environ["MOONCAKE_MASTER"])
        arguments = [os.environ["MOONCRATE_BINARY"], "master", "--json", "--master", self.address]
        arguments += ["--admin", "127.0.0.1:0", "--lease-ttl", f"{int(LEASE_SECONDS * 1000)}ms"]
        # Started again, it knows its nodes, and waits for nobody else.
        arguments += ["--state-file", str(self.folder / "master.state")]
        self.log = open(self.folder / "master.log", "ab")
        self.process = subprocess.Popen(
            [*arguments, *self.more],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=self.log,
        )
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        assert line, f"the master did not start: {(self.folder / 'master.log').read_text()}"
        said = json.loads(line)
        self.address, self.admin = said["master"], said.get("admin")

    def _start_theirs(self, program):
        """The master of the package that the drop-in stands in for: what its tests describe is its doing."""
        if self.process is None:
            self.address = f"127.0.0.1:{free_port()}"
        port, metrics = self.address.split(":")[1], free_port()
        self.admin = f"http://127.0.0.1:{metrics}"
        self.log = open(self.folder / "master.log", "ab")
        lease = f"--default_kv_lease_ttl={int(LEASE_SECONDS * 1000)}"
        command = [program, f"--port={port}", f"--metrics_port={metrics}", lease]
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=self.log
        )
        end = time.monotonic() + PATIENCE
        while socket.socket().connect_ex(("127.0.0.1", int(port))) != 0:
            assert time.monotonic() < end, "their master did not start"
            time.sleep(0.1)

    def kill(self):
        self.process.kill()
        self._ended()

    def stop(self):
        self.process.terminate()
        self._ended()

    def _ended(self):
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.stdout.close()
            self.log.close()


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
