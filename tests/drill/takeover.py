"""Scenarios 2 and 10: masters that come back knowing nothing, or after a long time."""

import shutil
import signal
import threading
import time
from functools import partial

import mooncrate
from harness import KIB, Scene, Server, attempt, free_port, milliseconds, timed, until, value

# Longer than an owner may serve without a master (10 s), with room for a busy machine.
OBSERVED = 30.0
# Goals for the first put: after a fresh start, and where a master has lost what it knew.
FRESH_SECONDS, WAIT_SECONDS = 1.0, 3.0


def one_value_per_key(scene: Scene) -> None:
    _one_value(scene, "started without a state file", delete=False)
    _one_value(scene, "whose state was deleted by hand", delete=True)
    _starts_at_once(scene)
    _restart_without_state(scene)


def _one_value(scene: Scene, which: str, *, delete: bool) -> None:
    # Only a master at an address that was named keeps its state by itself.
    where = ["--master", f"127.0.0.1:{free_port()}"] if delete else []
    suffix = "-deleted" if delete else ""
    master = scene.start("master", *where)
    owner = scene.node(master, f"x{suffix}")
    writer = scene.client(master)
    old = {name: value("v1", number, KIB) for number, name in enumerate(("put", "remove"))}
    for name, what in old.items():
        assert writer.put(name, what)
    scene.node(master, f"y{suffix}")
    reader = scene.client(master)
    assert all(reader.get(name) == what for name, what in old.items())
    scene.say(f"a master {which}, nodes x and y; two values on x; a client has read both")

    owner.signal(signal.SIGSTOP)
    master.kill()
    if delete:
        assert any(scene.state.rglob("*.state")), "it keeps its state without being told"
        shutil.rmtree(scene.state)
    master = scene.start("master", "--master", master.said["master"])
    scene.say("x is stopped, the master killed and started again at the same place")

    watch = Watch(reader, old)
    other = scene.client(master)
    put_at = watch.act("put", lambda: other.put("put", value("v2", 0, KIB)))
    removed_at = watch.act("remove", lambda: other.remove("remove"))
    # Until x could serve no longer, and for a while after it has come back.
    watch.wait(12)
    owner.signal(signal.SIGCONT)
    scene.say("x goes on")
    watch.wait(12)
    watch.end()
    for name, what, at in (
        ("put", "a value beside the one that was put", put_at),
        ("remove", "a value after its removal", removed_at),
    ):
        when = "never" if at is None else f"after {at:.1f} s"
        seen = f"acknowledged {when}, then read {watch.stale[name]} times as v1"
        holds = at is not None and watch.stale[name] == 0
        what = f"a master {which}: {what}"
        scene.check(what, seen=seen, goal=f"in {OBSERVED:.0f} s, then 0 reads of v1", holds=holds)


class Watch:
    """Reads keys all the time, and counts reads of the old value that began after it was replaced."""

    def __init__(self, reader: mooncrate.Store, old: dict[str, bytes]) -> None:
        self.reader, self.old = reader, old
        self.stale = dict.fromkeys(old, 0)
        self._over: dict[str, float] = {}
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def act(self, name: str, call: object) -> float | None:
        """Tries a change until it is acknowledged; seconds after the beginning."""
        _, done = until(OBSERVED, lambda: not isinstance(attempt(call), mooncrate.Error))  # type: ignore[arg-type]
        if not done:
            return None
        self._over[name] = time.monotonic()
        return self._over[name] - self._began

    def _read(self) -> None:
        while not self._ended.is_set():
            for name, what in self.old.items():
                began = time.monotonic()
                found = attempt(partial(self.reader.get, name))
                if found == what and began > self._over.get(name, began):
                    self.stale[name] += 1
            time.sleep(0.01)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def _starts_at_once(scene: Scene) -> None:
    """What starts a cluster of its own knows that it is new."""
    server = scene.start("serve", name="serve")
    took, _ = timed(lambda: scene.client(server).put("new", b"new"))
    master = scene.start("master", "--master", f"127.0.0.1:{free_port()}", name="fresh")
    scene.node(master, "first")
    alone, stored = timed(lambda: scene.client(master).put("new", b"new"))
    seen = f"{milliseconds(alone)}, one call, answered {stored}"
    goal = f"{FRESH_SECONDS:.0f} s, not refused"
    holds = stored is True and alone < FRESH_SECONDS
    scene.check("the first put after a fresh start of a master", seen=seen, goal=goal, holds=holds)
    began = time.monotonic()
    with mooncrate.Store() as store:
        store.put("new", b"new")
    embedded = time.monotonic() - began
    seen = f"serve {milliseconds(took)}, embedded {milliseconds(embedded)}"
    scene.check(
        "the first put of a new store", seen=seen, goal="1 s each", holds=max(took, embedded) < 1
    )


def _restart_without_state(scene: Scene) -> None:
    """Killed with the state deleted, and with a `serve` that has a disk: one call, which waits."""
    at = f"127.0.0.1:{free_port()}"
    master = scene.start("master", "--master", at, name="lost")
    scene.node(master, "stays")
    assert scene.client(master).put("before", b"x")
    master.kill()
    shutil.rmtree(scene.state)
    master = scene.start("master", "--master", at, name="lost")
    _waits(scene, "the first put after a restart without state", master)
    flags = ("--master", f"127.0.0.1:{free_port()}", "--ssd", f"{scene.folder / 'disk'}=64MiB")
    server = scene.start("serve", *flags, name="disked")
    assert scene.client(server).put("before", b"x")
    server.kill()
    server = scene.start("serve", *flags, name="disked")
    _waits(scene, "the first put after kill -9 of a serve with a disk", server)


def _waits(scene: Scene, what: str, master: Server) -> None:
    took, stored = timed(lambda: scene.client(master).put("after", b"x"))
    seen = f"{milliseconds(took)}, one call, answered {stored}"
    goal = f"{WAIT_SECONDS:.0f} s, not refused"
    scene.check(what, seen=seen, goal=goal, holds=stored is True and took < WAIT_SECONDS)


def master_away_for_long(scene: Scene) -> None:
    for seconds in (25, 60):
        _away(scene, seconds)


def _away(scene: Scene, seconds: int) -> None:
    state = str(scene.folder / f"away-{seconds}.state")
    master = scene.start("master", "--state-file", state)
    for name in ("x", "y"):
        scene.node(master, f"{name}{seconds}")
    store = scene.client(master)
    values = {f"away/{number}": value("v1", number, 4 * KIB) for number in range(200)}
    assert all(stored is True for stored in store.put_batch(values))
    removed = [f"away/{number}" for number in range(0, 200, 10)]
    assert all(gone is True for gone in store.remove_batch(removed))
    kept = {name: what for name, what in values.items() if name not in removed}
    master.kill()
    scene.say(
        f"{len(kept)} values on two nodes, {len(removed)} removed; the master is away for {seconds} s"
    )
    time.sleep(seconds)
    master = scene.start("master", "--master", master.said["master"], "--state-file", state)
    client = scene.client(master)

    def back() -> bool:
        return sum(client_get(client, name) == what for name, what in kept.items()) == len(kept)

    took, all_back = until(15, back, step=0.1)
    found = sum(client_get(client, name) == what for name, what in kept.items())
    returned = sum(isinstance(client_get(client, name), bytes) for name in removed)
    when = f"after {took:.1f} s" if all_back else "for good"
    seen = f"{found} of {len(kept)} back {when}, {returned} removed ones"
    holds = found == len(kept) and returned == 0 and took < 5
    scene.check(
        f"a master away for {seconds} s",
        seen=seen,
        goal=f"{len(kept)} back in 5 s, 0 removed ones",
        holds=holds,
    )
    _stop(scene, master)


def client_get(client: mooncrate.Store, name: str) -> object:
    return attempt(partial(client.get, name))


def _stop(scene: Scene, master: Server) -> None:
    for server in [*scene.servers]:
        if server.process.poll() is None and server is not master:
            server.kill()
    master.kill()
