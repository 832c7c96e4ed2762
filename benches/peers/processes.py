"""Processes that the race starts, asks, signals and ends, each by its own id."""

import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import threading
import time
from typing import Any

# What a start or a stop may take on a busy machine.
PATIENCE = 60.0


def free_port() -> int:
    """A port that nobody has now, on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """One program; what it says goes to a log."""

    def __init__(self, name: str, command: list, folder: pathlib.Path, environment: dict) -> None:
        self.name, self.command, self.folder, self.environment = (
            name,
            [*map(str, command)],
            folder,
            environment,
        )
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen | None = None
        self.start()

    def start(self, piped: bool = False) -> None:
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdin=pipe,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
            )

    def listening(self, port: int) -> None:
        """Waits until it answers on a port."""
        end = time.monotonic() + PATIENCE
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {self.tail()}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not listen: {self.tail()}")
            time.sleep(0.005)

    def tail(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-1500:]
        except OSError:
            return "its folder is gone"

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def strike(self) -> None:
        """kill -9, without a wait; a stopped process dies of that, too."""
        if self.process.poll() is None:
            self.process.kill()

    def kill(self) -> None:
        """The same, and its end."""
        self.strike()
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass

    def resident(self) -> int:
        """Bytes of memory that it and its children use."""
        return sum(map(_resident, _family(self.process.pid)))


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += _family(int(child))
    return found


def _resident(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


class Asked(RuntimeError):
    """A worker answered with an error."""


class Silent(RuntimeError):
    """A worker did not answer in time; it was killed."""


class Wrong(RuntimeError):
    """A store gave wrong bytes."""


class Worker(Process):
    """`worker.py` with one store open."""

    def __init__(
        self, name: str, python: str, settings: dict, folder: pathlib.Path, environment: dict
    ) -> None:
        self.lines: queue.Queue = queue.Queue()
        script = pathlib.Path(__file__).with_name("worker.py")
        super().__init__(name, [python, script, json.dumps(settings)], folder, environment)

    def start(self, piped: bool = True) -> None:
        super().start(piped)
        threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True).start()

    def _read(self, pipe, lines: queue.Queue) -> None:
        try:
            for line in pipe:
                if line.startswith(b'{"peers":'):
                    lines.put(json.loads(line)["peers"])
                else:
                    with open(self.log, "ab") as log:
                        log.write(line)
        except (OSError, ValueError):
            pass
        lines.put(None)

    def ready(self) -> dict:
        return self.hear(PATIENCE)

    def tell(self, do: str, **words: Any) -> None:
        try:
            self.process.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            raise Silent(f"{self.name} ended (exit {self.process.poll()}): {self.tail()[-400:]}") from None

    def hear(self, seconds: float) -> dict:
        """The next thing it says."""
        try:
            found = self.lines.get(timeout=seconds)
        except queue.Empty:
            self.kill()
            raise Silent(f"{self.name} did not answer within {seconds:.0f} s") from None
        if found is None:
            raise Silent(f"{self.name} ended (exit {self.process.poll()}): {self.tail()[-400:]}")
        if found.get("wrong"):
            raise Wrong(found["error"])
        if "error" in found:
            raise Asked(found["error"])
        return found

    def ask(self, do: str, patience: float = PATIENCE, **words: Any) -> dict:
        self.tell(do, **words)
        return self.hear(patience)


def plain_environment(**more: str) -> dict[str, str]:
    """Without the settings of whoever runs the race."""
    foreign = ("MOONCRATE_", "MC_", "MOONCAKE_", "GLOG_", "PYTHONPATH")
    plain = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    return {**plain, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **more}
