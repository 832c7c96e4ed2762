"""Scenarios 5 and 6: a master that falls silent in the middle of a call, is dead, or is stopped."""

import signal
import socket
import statistics
import threading
import time
from typing import Any

from harness import KIB, Scene, attempt, milliseconds, timed, until, value
from mooncake.store import MooncakeDistributedStore

# What a call may take beyond its deadline on a busy machine.
GRACE = 0.5


def calls_end_in_time(scene: Scene) -> None:
    master = scene.start("master")
    proxy = Proxy(master.said["master"])
    try:
        store = scene.client(proxy.address, timeout=2.0)
        # Nodes that this client has not heard of: it must ask the master where they are.
        for name in ("x", "y"):
            scene.node(master, name)
        writer = scene.client(master)
        values = {f"late/{number}": value("v1", number, KIB) for number in range(20)}
        assert all(stored is True for stored in writer.put_batch(values, replicas=2))
        scene.say(
            "a client with a deadline of 2 s; values with two copies on nodes that it does not know yet"
        )
        for what, call in (
            ("get_batch of 20 keys", lambda: store.get_batch(values)),
            ("get of one key", lambda: store.get("late/1")),
        ):
            # Its connection is open, and the next answer is the one to the call.
            assert until(1, lambda: attempt(lambda: store.exists("late/0")) is True)[1]
            proxy.silent_after(1)
            took, _ = timed(call)
            proxy.silent_after(None)
            seen, goal = milliseconds(took), f"2 s, and {GRACE} s of grace"
            scene.check(
                f"{what}, the master silent after its first answer",
                seen=seen,
                goal=goal,
                holds=took < 2 + GRACE,
            )
    finally:
        proxy.end()


class Proxy:
    """Stands before a master, and swallows its answers when told to."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._answers: int | None = None
        self._sockets: list[socket.socket] = [self._listener]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def silent_after(self, answers: int | None) -> None:
        """Lets so many answers of the master through, then none; None: all."""
        with self._lock:
            self._answers = answers

    def _passes(self) -> bool:
        with self._lock:
            if self._answers is None:
                return True
            self._answers -= 1
            return self._answers >= 0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while chunk := source.recv(1 << 20):
                if not answers or self._passes():
                    target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def end(self) -> None:
        for one in self._sockets:
            one.close()


def master_away(scene: Scene) -> None:
    state = str(scene.folder / "master.state")
    master = scene.start("master", "--state-file", state)
    scene.node(master, "x", size="128MiB")
    scene.say(
        "a master with --state-file, one node, the drop-in and the native client, 20 values that both have read"
    )
    dropin = MooncakeDistributedStore()
    assert dropin.setup("localhost", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master.said["master"]) == 0
    native = scene.client(master)
    try:
        values = {f"engine/{number}": value("v1", number, 4 * KIB) for number in range(20)}
        for how in ("killed", "stopped"):
            _read(native, dropin, values)
            if how == "killed":
                master.kill()
            else:
                master.signal(signal.SIGSTOP)
            scene.say(f"the master is {how}")
            _without_master(scene, how, dropin, native, values)
            if how == "killed":
                master = scene.start("master", "--master", master.said["master"], "--state-file", state)
            else:
                master.signal(signal.SIGCONT)
            _back(scene, how, dropin, native)
    finally:
        # Whatever came in between: a stopped master cannot be told to end.
        if master.process.poll() is None:
            master.signal(signal.SIGCONT)
        dropin.close()


def _read(native: Any, dropin: Any, values: dict[str, bytes]) -> None:
    """Stores the values, unless they are there, and lets both clients read them."""

    def both() -> bool:
        native.put_batch(values)
        found = timed(
            lambda: [dropin.get(name) == what == native.get(name) for name, what in values.items()]
        )[1]
        return isinstance(found, list) and all(found)

    if not until(40, both, step=0.5)[1]:
        raise RuntimeError("the values cannot be stored and read")


def _without_master(scene: Scene, how: str, dropin: Any, native: Any, values: dict[str, bytes]) -> None:
    name = "engine/0"
    # Reads first: the owner may serve for some seconds only.
    for package, store in (("native", native), ("drop-in", dropin)):
        began = time.monotonic()
        good = 0
        for key, what in values.items():
            good += timed(lambda store=store, key=key: store.get(key))[1] == what
            if time.monotonic() - began > 5:
                break
        took = time.monotonic() - began
        seen = f"{good} of {len(values)} in {milliseconds(took)}"
        scene.check(
            f"master {how}: gets of read values, {package}",
            seen=seen,
            goal=f"{len(values)} in 5 s",
            holds=good == len(values) and took < 5,
        )
    first, answer = timed(lambda: dropin.is_exist("engine/unknown"))
    later = [timed(lambda: dropin.is_exist("engine/unknown")) for _ in range(_calls(first))]
    answers = {answer, *[said for _, said in later]}
    seen = f"answers {sorted(answers)}, first call {milliseconds(first)}"
    scene.check(f"master {how}: is_exist of an unknown key", seen=seen, goal="[0]", holds=answers == {0})
    _later(scene, f"master {how}: later calls of is_exist", [took for took, _ in later])
    put = [timed(lambda n=n: dropin.put(f"engine/new/{n}", b"x"))[0] for n in range(1 + _calls(first))]
    _later(scene, f"master {how}: later puts of the drop-in", put[1:])
    asked = [timed(lambda: native.exists(name))[0] for _ in range(1 + _calls(first))]
    _later(scene, f"master {how}: later calls of exists, native", asked[1:])


def _calls(first: float) -> int:
    """How often a call is made again: often, unless each of them takes seconds."""
    return 20 if first < 0.5 else 2


def _later(scene: Scene, what: str, took: list[float]) -> None:
    middle = statistics.median(took)
    seen = f"median {milliseconds(middle)}, worst {milliseconds(max(took))}"
    scene.check(what, seen=seen, goal="median 1 ms", holds=middle <= 0.001)


def _back(scene: Scene, how: str, dropin: Any, native: Any) -> None:
    def works() -> bool:
        name = f"engine/back/{how}"
        said = timed(lambda: native.put(name, b"x", upsert=True))[1]
        return said is True and dropin.is_exist(name) == 1

    took, back = until(30, works, step=0.05)
    seen = milliseconds(took) if back else "not within 30 s"
    scene.check(
        f"master {how}: both packages work again after it is back",
        seen=seen,
        goal="5 s",
        holds=bool(back) and took < 5,
    )
