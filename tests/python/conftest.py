"""Stores in this process, and a real `mooncrate serve`.

The binary is $MOONCRATE_BINARY; `./dev test python` builds it and the package and sets everything up.
"""

import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

import mooncrate

# Generous: the machine may be busy with other things. No test passes or fails by a time.
PATIENCE = 60

# A shell lets its jobs in the background ignore Ctrl-C, and their children inherit that; not these.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Server:
    """`mooncrate serve` on free ports, in a folder of its own."""

    def __init__(self, folder, more=("--segment-size", "64MiB"), environment=()):
        self.folder = folder
        self.binary = os.environ["MOONCRATE_BINARY"]
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MOONCRATE_")
        }
        self.environment["XDG_RUNTIME_DIR"] = str(folder)
        self.environment.update(environment)
        arguments = [self.binary, "serve", "--json"]
        for door in ("--master", "--admin", "--data"):
            arguments += [door, "127.0.0.1:0"]
        arguments += ["--grpc", "off", *more]
        self.log = open(folder / "serve.log", "wb")
        self.process = subprocess.Popen(
            arguments, cwd=folder, env=self.environment, stdout=subprocess.PIPE, stderr=self.log
        )
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        assert line, f"serve did not start: {(folder / 'serve.log').read_text()}"
        self.master = json.loads(line)["master"]

    def stop(self):
        self.process.terminate()
        try:
            assert self.process.wait(PATIENCE) == 0
        finally:
            self.process.kill()
            self.process.stdout.close()
            self.log.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("serve"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def emulator(tmp_path_factory):
    """A folder for LD_LIBRARY_PATH with a CUDA driver that needs no GPU: device memory is host memory."""
    if shutil.which("g++") is None:
        pytest.skip("the emulator of the driver needs g++")
    folder = tmp_path_factory.mktemp("emulator")
    source = pathlib.Path(__file__).parent.parent.parent / "crates/gpu/tests/emulator/driver.cpp"
    command = ["g++", "-std=c++17", "-O1", "-Wno-unknown-pragmas", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", folder / "libcuda.so", source], check=True, timeout=5 * PATIENCE)
    # By this name it is looked for where nothing shall be loaded.
    (folder / "libcuda.so.1").symlink_to("libcuda.so")
    return str(folder)


@pytest.fixture
def store():
    with mooncrate.Store(segment_size="64MiB") as store:
        yield store


@pytest.fixture(params=["embedded", "shared memory", "tcp"])
def any_store(request):
    """A store that holds its values itself, or reads them over one of the two other paths."""
    if request.param == "embedded":
        opened = mooncrate.Store(segment_size="64MiB")
    else:
        master = request.getfixturevalue("server").master
        opened = mooncrate.Store(master=master, shared_memory=request.param == "shared memory")
    with opened as store:
        yield store


def python(code, *arguments):
    """Runs a program in another Python; what it printed. It must end well and say nothing else."""
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
