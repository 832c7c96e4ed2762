"""Servers as real processes in a folder of their own, what a scenario says and finds, and waits with an end."""

import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mooncrate

# What a start or a stop may take on a busy machine.
PATIENCE = 60.0
ANY = "127.0.0.1:0"
# The exit status of commands for a key that is not there.
NO_SUCH_KEY = 3
KIB, MIB = 1 << 10, 1 << 20


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@dataclass
class Row:
    """One line of the table: what was looked at, what was seen, what is wanted."""

    scenario: int
    what: str
    seen: str
    goal: str
    holds: bool


@dataclass
class Server:
    """A process that runs until it is stopped or killed."""

    process: subprocess.Popen[bytes]
    said: dict[str, Any]
    name: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """SIGTERM, as an operator stops it."""
        self.process.terminate()
        self.process.wait(PATIENCE)


@dataclass
class Scene:
    """One scenario: its processes, its folder, and what it found."""

    number: int
    options: Any
    folder: pathlib.Path
    rows: list[Row] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)
    stores: list[mooncrate.Store] = field(default_factory=list)

    def say(self, words: str) -> None:
        print(f"  {words}", flush=True)

    def check(self, what: str, *, seen: str, goal: str, holds: bool) -> None:
        """Adds a line to the table."""
        self.rows.append(Row(self.number, what, seen, goal, holds))
        self.say(f"{'holds' if holds else 'DOES NOT HOLD'}: {what}: {seen} (goal: {goal})")

    def start(self, role: str, *flags: str, name: str = "") -> Server:
        """Starts `mooncrate ROLE` and waits until it says that it is ready."""
        name = name or role
        arguments = [os.environ["MOONCRATE_BINARY"], role, "--json"]
        if "--master" not in flags:
            arguments += ["--master", ANY]
        if role != "node" and "--admin" not in flags:
            arguments += ["--admin", ANY]
        if role != "node":
            arguments += ["--grpc", "off"]
        if role != "master":
            arguments += [
                "--data",
                ANY,
                "--node-name",
                name,
                "--unix",
                str(self.folder / f"{name}.sock"),
            ]
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [*arguments, *flags],
                cwd=self.folder,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        server = Server(process, {}, name)
        self.servers.append(server)
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
        line = process.stdout.readline() if ready else b""
        if not line:
            log_text = (self.folder / f"{name}.log").read_text()
            raise RuntimeError(f"`mooncrate {role}` did not start: {log_text[-2000:]}")
        server.said = json.loads(line)
        return server

    def _environment(self) -> dict[str, str]:
        """Without the settings of whoever runs the drill."""
        plain = {key: text for key, text in os.environ.items() if not key.startswith("MOONCRATE_")}
        return {**plain, "XDG_RUNTIME_DIR": str(self.folder), "XDG_STATE_HOME": str(self.state)}

    @property
    def state(self) -> pathlib.Path:
        """Where masters keep their state."""
        return self.folder / "state"

    def node(self, master: Server, name: str, *flags: str, size: str = "64MiB") -> Server:
        """Starts a node that joins this master."""
        return self.start(
            "node", "--master", master.said["master"], "--segment-size", size, *flags, name=name
        )

    def client(self, master: Server | str, *, timeout: float = 5.0, **more: Any) -> mooncrate.Store:
        """A client of the native package, closed when the scenario ends."""
        address = master if isinstance(master, str) else master.said["master"]
        store = mooncrate.Store(master=address, timeout=timeout, **more)
        self.stores.append(store)
        return store

    def command(self, *arguments: str) -> Any:
        """What the command prints as JSON, or None if there is no such key."""
        done = subprocess.run(
            [os.environ["MOONCRATE_BINARY"], *arguments, "--json"],
            env=self._environment(),
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode not in (0, NO_SUCH_KEY):
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.decode()}")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def http(self, server: Server, path: str) -> str:
        with urllib.request.urlopen(server.said["admin"] + path, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def end(self) -> None:
        """Ends every process of the scenario, by its id, whatever state it is in."""
        for store in self.stores:
            store.close()
        for server in self.servers:
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait(PATIENCE)
            if server.process.stdout is not None:
                server.process.stdout.close()


@contextmanager
def scene(number: int, options: Any) -> Iterator[Scene]:
    # Short: the path of a Unix socket has at most 107 bytes.
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"drill{number}-"))
    made = Scene(number, options, folder)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


def until(seconds: float, done: Callable[[], Any], *, step: float = 0.02) -> tuple[float, Any]:
    """Asks again and again until the answer is true; seconds that it took, and the last answer."""
    began = time.monotonic()
    while True:
        answer = done()
        took = time.monotonic() - began
        if answer or took > seconds:
            return took, answer
        time.sleep(step)


def attempt(call: Callable[[], Any]) -> Any:
    """The result of a call, or its error as a value."""
    try:
        return call()
    except mooncrate.Error as error:
        return error


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that a call took, and its result or error."""
    began = time.monotonic()
    answer = attempt(call)
    return time.monotonic() - began, answer


def acknowledged(seconds: float, call: Callable[[], Any]) -> bool:
    """Tries a call until it is acknowledged; False if it never was."""
    _, done = until(seconds, lambda: not isinstance(attempt(call), mooncrate.Error))
    return bool(done)


def value(word: str, number: int, size: int) -> bytes:
    """A value that says what it is."""
    line = f"{word}-{number:06d}|".encode()
    return (line * (size // len(line) + 1))[:size]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
