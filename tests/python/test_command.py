"""The command `mooncrate` of the package: what the native program does, in a Python process."""

import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tomllib

import pytest

import mooncrate
from conftest import PATIENCE, python

ROOT = pathlib.Path(__file__).parent.parent.parent
# What the console script does, under the name that it has there.
SCRIPT = "import sys; sys.argv[0] = 'mooncrate'; from mooncrate._cli import main; main()"

# Variables of ours are settings, and $MOONCRATE_BINARY is none.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith("MOONCRATE_")
}


def command(*arguments):
    return [sys.executable, "-c", SCRIPT, *arguments]


def said(*arguments):
    done = subprocess.run(
        arguments, capture_output=True, timeout=PATIENCE, check=False, env=ENVIRONMENT
    )
    return done.returncode, done.stdout, done.stderr


def test_the_script_is_the_function():
    """The manifest names what the tests here call."""
    manifest = tomllib.loads((ROOT / "crates/python/pyproject.toml").read_text())
    module, name = manifest["project"]["scripts"]["mooncrate"].split(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["serve", "--help"], [], ["nonsense"], ["get", "--bad"]],
)
def test_it_says_what_the_native_program_says(arguments):
    native = said(os.environ["MOONCRATE_BINARY"], *arguments)
    assert said(*command(*arguments)) == native
    assert native[0] == (0 if arguments and arguments[-1] in ("--version", "--help") else 2)


def test_it_runs_as_a_module_under_a_name_that_can_be_pasted():
    code, out, _ = said(sys.executable, "-m", "mooncrate", "get", "--help")
    name = f"{os.path.basename(sys.executable)} -m mooncrate"
    assert code == 0 and f"Usage: {name} get".encode() in out


def test_it_asks_a_cluster(server):
    with mooncrate.Store(master=server.master) as store:
        store.put("command/key", b"no end of line")
    there = ("--master", server.master)
    # Without a line end nothing would flush what is left.
    assert said(*command("get", "command/key", *there)) == (0, b"no end of line", b"")
    code, out, err = said(*command("get", "command/none", *there))
    assert (code, out) == (3, b"") and b"command/none" in err
    code, out, err = said(*command("stat", "--master", "127.0.0.1:1"))
    assert (code, out) == (1, b"") and err.startswith(b"mooncrate: cannot reach the master")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_stops_in_order(tmp_path, number):
    doors = [part for door in ("--master", "--admin", "--data") for part in (door, "127.0.0.1:0")]
    serve = command("serve", "--json", "--segment-size", "8MiB", "--grpc", "off", *doors)
    environment = {**ENVIRONMENT, "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(
        serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=tmp_path
    ) as server:
        try:
            ready, _, _ = select.select([server.stdout], [], [], PATIENCE)
            master = json.loads(server.stdout.readline() if ready else b"")["master"]
            with mooncrate.Store(master=master) as store:
                assert store.put("key", b"value") and store.get("key") == b"value"
            # The process that was started is the server: no other one has to be told.
            server.send_signal(number)
            _, err = server.communicate(timeout=PATIENCE)
            assert server.returncode == 0 and b"Traceback" not in err, err
        finally:
            server.kill()
    host, port = master.rsplit(":", 1)
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), timeout=PATIENCE)


def test_what_only_asks_is_ended_by_ctrl_c():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        master = f"127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(command("stat", "--master", master), env=ENVIRONMENT) as asking:
            try:
                with silent.accept()[0]:
                    asking.send_signal(signal.SIGINT)
                    assert asking.wait(PATIENCE) == -signal.SIGINT
            finally:
                asking.kill()


def test_once_in_a_process_and_python_gets_its_signals_back():
    out = python(
        """
        import signal, mooncrate
        from mooncrate._cli import run
        before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
        assert run(["--version"]) == 0
        assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before
        try:
            run(["--version"])
        except RuntimeError as error:
            print(error)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert out.startswith("mooncrate ") and out.endswith("\ninterrupted\n") and "once" in out
