"""A real `mooncrate serve`, and stubs that are generated from the proto files each time.

The binary is $MOONCRATE_BINARY; `./dev test grpc` builds it and sets everything up.
"""

import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import uuid

import grpc
import pytest
from grpc_tools import protoc

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
# Generous: the machine may be busy with other things. No test passes or fails by a time.
PATIENCE = 60

STUBS = tempfile.TemporaryDirectory(prefix="mooncrate-grpc-")


def generate():
    for folder, name in ((ROOT / "proto", "mooncrate/v1/master.proto"), (HERE, "preview.proto")):
        arguments = ["", f"-I{folder}", f"--python_out={STUBS.name}"]
        arguments += [f"--grpc_python_out={STUBS.name}", str(folder / name)]
        assert protoc.main(arguments) == 0, f"protoc refused {name}"
    sys.path.insert(0, STUBS.name)


generate()


class Server:
    """`mooncrate serve` on free ports, in a folder of its own."""

    def __init__(self, folder, more=()):
        self.folder = folder
        self.binary = os.environ["MOONCRATE_BINARY"]
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MOONCRATE_")
        }
        self.environment["XDG_RUNTIME_DIR"] = str(folder)
        any_port = "127.0.0.1:0"
        arguments = [self.binary, "serve", "--json", "--segment-size", "64MiB"]
        for door in ("--master", "--admin", "--data", "--grpc"):
            arguments += [door, any_port]
        arguments += more
        self.log = open(folder / "serve.log", "wb")
        self.process = subprocess.Popen(
            arguments, cwd=folder, env=self.environment, stdout=subprocess.PIPE, stderr=self.log
        )
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        assert line, f"serve did not start: {(folder / 'serve.log').read_text()}"
        self.started = json.loads(line)

    def cli(self, *arguments, data=b""):
        """A client command against this server."""
        command = [self.binary, *arguments, "--master", self.started["master"]]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, input=data, capture_output=True,
            timeout=PATIENCE, check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def token(self, role, tenant):
        """A token, made from the secret in the server's folder."""
        command = [self.binary, "token", "derive", "--role", role, "--tenant", tenant]
        command += ["--token-file", "cluster.token"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, timeout=PATIENCE,
            check=True, text=True,
        )
        return done.stdout.strip()

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
def channel(server):
    with grpc.insecure_channel(server.started["grpc"]) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE)
        yield channel


@pytest.fixture
def key():
    return f"python/{uuid.uuid4()}"
