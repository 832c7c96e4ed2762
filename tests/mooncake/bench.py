"""The drop-in beside the published package that it stands in for: the same program, the same calls.

    ./dev bench-mooncake

One folder of an environment with each package is given (`--ours`, `--theirs`). For each package a master
and an owner of memory are started, then a third process calls; the packages take turns. A value that is
read is compared. What is printed: the median call of all rounds, in microseconds.
"""

import argparse
import ctypes
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SEGMENT = 1 << 30
BUFFER = 256 << 20
ROUNDS = 5
PATIENCE = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def opened(master: str, segment: int, name: str = "localhost"):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(name, "P2PHANDSHAKE", segment, BUFFER, "tcp", "", master)
    assert code == 0, f"setup gave {code}"
    return store


def owner(master: str) -> None:
    """Lends memory until its input ends."""
    store = opened(master, SEGMENT)
    print(json.dumps({"ready": store.get_hostname()}), flush=True)
    sys.stdin.read()
    store.close()


class Calls:
    """The calls that are measured: each makes what it needs, then gives the call and its check."""

    def __init__(self, store, label: str) -> None:
        self.store, self.label, self.count = store, label, 0
        self.memory = ctypes.create_string_buffer(BUFFER)
        self.address = ctypes.addressof(self.memory)
        assert store.register_buffer(self.address, BUFFER) == 0

    def key(self) -> str:
        self.count += 1
        return f"{self.label}/{self.count}"

    def stored(self, size: int) -> tuple[str, bytes]:
        key, value = self.key(), (self.label.encode() * (size // len(self.label) + 1))[:size]
        assert self.store.put(key, value) == 0
        return key, value

    def put(self, size: int):
        value = b"\7" * size

        def call():
            assert self.store.put(self.key(), value) == 0

        return call

    def get(self, size: int):
        key, value = self.stored(size)
        assert self.store.get(key) == value
        return lambda: self.store.get(key)

    def get_into(self, size: int):
        key, value = self.stored(size)
        assert self.store.get_into(key, self.address, size) == size
        assert ctypes.string_at(self.address, size) == value
        return lambda: self.store.get_into(key, self.address, size)

    def exist(self, keys: int):
        names = [self.stored(64)[0] for _ in range(keys)]
        assert self.store.batch_is_exist(names) == [1] * keys
        return lambda: self.store.batch_is_exist(names)

    def _pieces(self, keys: int, size: int):
        names = [self.key() for _ in range(keys)]
        return names, [self.address + number * size for number in range(keys)], [size] * keys

    def batch_put_from(self, keys: int, size: int):
        def call():
            assert self.store.batch_put_from(*self._pieces(keys, size)) == [0] * keys

        return call

    def batch_get_into(self, keys: int, size: int):
        names, addresses, sizes = self._pieces(keys, size)
        ctypes.memset(self.address, 9, keys * size)
        assert self.store.batch_put_from(names, addresses, sizes) == [0] * keys
        ctypes.memset(self.address, 0, keys * size)

        def call():
            assert self.store.batch_get_into(names, addresses, sizes) == sizes

        call()
        assert ctypes.string_at(self.address, keys * size) == b"\x09" * (keys * size)
        return call

    def layers_out(self, keys: int, layers: int, size: int):
        names, _, _ = self._pieces(keys, 1)
        pieces = [
            [self.address + (number * layers + layer) * size for layer in range(layers)]
            for number in range(keys)
        ]
        sizes = [[size] * layers] * keys
        assert self.store.batch_put_from_multi_buffers(names, pieces, sizes) == [0] * keys

        def call():
            found = self.store.batch_get_into_multi_buffers(names, pieces, sizes)
            assert found == [layers * size] * keys

        return call


# Name, calls of a round, what makes the call, bytes that one call moves.
ROWS = [
    ("put 4 KiB", 300, lambda c: c.put(4096), 4096),
    ("get 4 KiB", 1000, lambda c: c.get(4096), 4096),
    ("get_into 4 KiB", 1000, lambda c: c.get_into(4096), 4096),
    ("put 1 MiB", 50, lambda c: c.put(1 << 20), 1 << 20),
    ("get 1 MiB", 50, lambda c: c.get(1 << 20), 1 << 20),
    ("get_into 1 MiB", 50, lambda c: c.get_into(1 << 20), 1 << 20),
    ("get_into 16 MiB", 10, lambda c: c.get_into(16 << 20), 16 << 20),
    ("batch_is_exist 1", 500, lambda c: c.exist(1), 0),
    ("batch_is_exist 128", 200, lambda c: c.exist(128), 0),
    ("batch_put_from 32 x 64 KiB", 10, lambda c: c.batch_put_from(32, 65536), 32 * 65536),
    ("batch_get_into 32 x 64 KiB", 30, lambda c: c.batch_get_into(32, 65536), 32 * 65536),
    ("multi get 16 x 32 x 4 KiB", 30, lambda c: c.layers_out(16, 32, 4096), 16 * 32 * 4096),
]


def caller(master: str, label: str) -> None:
    """Measures every row once; prints the median microseconds of a call for each."""
    store = opened(master, 0)
    calls = Calls(store, label)
    found = {}
    for name, count, make, _ in ROWS:
        call, times = make(calls), []
        call()
        for _ in range(count):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        found[name] = statistics.median(times) / 1000
        store.remove_all(True)
    print(json.dumps(found), flush=True)
    store.close()


class Side:
    """One package: its master and the owner of its memory."""

    def __init__(self, environment: pathlib.Path, folder: pathlib.Path) -> None:
        self.python = environment / "bin" / "python"
        self.log = open(folder / "log", "wb")
        self.address = f"127.0.0.1:{free_port()}"
        port, metrics = self.address.split(":")[1], free_port()
        flags = [f"--port={port}", f"--metrics_port={metrics}", "--rpc_address=127.0.0.1"]
        self.processes = [self.start(environment / "bin" / "mooncake_master", *flags)]
        until = time.monotonic() + PATIENCE
        while socket.socket().connect_ex(("127.0.0.1", int(port))) != 0:
            assert time.monotonic() < until, "the master did not start"
            time.sleep(0.1)
        lender = self.start(self.python, __file__, "--owner", self.address, piped=True)
        self.processes.append(lender)
        self.said(lender, "ready")

    def start(self, *command, piped: bool = False) -> subprocess.Popen:
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        out = subprocess.PIPE if piped else self.log
        return subprocess.Popen([*map(str, command)], stdin=pipe, stdout=out, stderr=self.log)

    def said(self, process: subprocess.Popen, word: str) -> dict:
        """The line of JSON that has the word; packages may print lines of their own before it."""
        for line in process.stdout:
            if line.startswith(b"{") and word in json.loads(line):
                return json.loads(line)
        raise AssertionError(f"a process ended without saying {word!r}; see {self.log.name}")

    def round(self, label: str) -> dict:
        process = self.start(self.python, __file__, "--caller", self.address, label, piped=True)
        found = self.said(process, ROWS[0][0])
        process.stdin.close()
        process.wait(PATIENCE)
        return found

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        self.log.close()


def compare(environments: dict[str, pathlib.Path], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sides = {}
        try:
            for name, environment in environments.items():
                own = pathlib.Path(folder, name)
                own.mkdir()
                sides[name] = Side(environment, own)
            found = {name: [] for name in sides}
            for number in range(rounds):
                for name, side in sides.items():
                    print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
                    found[name].append(side.round(f"{name}{number}"))
        finally:
            for side in sides.values():
                side.stop()
    names = [*sides]
    print(f"{'one caller, memory of another process':<40}" + "".join(f"{n:>14}" for n in names))
    for row, _, _, size in ROWS:
        medians = [statistics.median(one[row] for one in found[name]) for name in names]
        line = f"{row:<40}" + "".join(f"{median:>11.1f} µs" for median in medians)
        if len(medians) > 1:
            line += f"{medians[1] / medians[0]:>8.1f} x"
        if size:
            line += "  " + ", ".join(f"{size / median / 1000:.2f}" for median in medians) + " GB/s"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ours", type=pathlib.Path, help="an environment with the drop-in")
    parser.add_argument("--theirs", type=pathlib.Path, help="an environment with the published one")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--owner", metavar="MASTER", help=argparse.SUPPRESS)
    parser.add_argument("--caller", nargs=2, metavar=("MASTER", "LABEL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.owner:
        return owner(given.owner)
    if given.caller:
        return caller(*given.caller)
    environments = {"mooncrate": given.ours, "mooncake": given.theirs}
    chosen = {name: path for name, path in environments.items() if path}
    if not chosen:
        parser.error("name an environment with --ours, --theirs, or both")
    return compare(chosen, given.rounds)


if __name__ == "__main__":
    main()
