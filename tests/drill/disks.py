"""Scenario 1: values that were removed while a disk was away, in every way a disk can come back."""

import json
import pathlib
import shutil
from collections.abc import Callable
from functools import partial

import mooncrate
from harness import KIB, Scene, Server, acknowledged, attempt, until, value

KEYS = 50
SIZE = 64 * KIB


def removed_values_stay_removed(scene: Scene) -> None:
    _restart_keeps(scene)
    for what, variant in VARIANTS.items():
        folder = scene.folder / variant.__name__
        folder.mkdir()
        disks = Disks(scene, folder)
        scene.say(f"{what}:")
        disks.judge(what, variant(disks))


def _restart_keeps(scene: Scene) -> None:
    """The other half of the promise, without which the rest is easy: a plain restart keeps what was put."""
    folder = scene.folder / "kept"
    folder.mkdir()
    disks = Disks(scene, folder)
    server = disks.serve("A", "B")
    disks.fill(server)
    server.stop()
    server = disks.serve("A", "B")
    client = scene.client(server)

    def found() -> int:
        there = [attempt(partial(client.get, key(number))) for number in range(KEYS)]
        return sum(one == value("v1", number, SIZE) for number, one in enumerate(there))

    until(20, lambda: found() == KEYS, step=0.2)
    back = found()
    client.close()
    server.stop()
    scene.check(
        "a plain restart", seen=f"{back} of {KEYS} back", goal=f"{KEYS} back", holds=back == KEYS
    )


class Disks:
    """Two directories A and B, and servers over some of them."""

    def __init__(self, scene: Scene, folder: pathlib.Path) -> None:
        self.scene = scene
        self.folder = folder
        self.removed: list[int] = []

    def serve(self, *names: str, state: bool = False) -> Server:
        """`mooncrate serve` over these directories, in this order."""
        disks = [flag for name in names for flag in ("--ssd", f"{self.folder / name}=256MiB")]
        more = ["--state-file", str(self.folder / "state")] if state else []
        flags = ["--offload", "eager", "--segment-size", "64MiB", *disks, *more]
        return self.scene.start("serve", *flags, name="serve")

    def fill(self, server: Server, word: str = "v1") -> None:
        """Puts all keys, and waits until each is on a disk."""
        client = self.scene.client(server)
        assert all([self._put(client, number, word) for number in range(KEYS)])
        took, kept = until(30, lambda: all(is_on_disk(self.scene, server, n) for n in range(KEYS)))
        self.scene.say(f"{KEYS} keys put ({word}); all on disks after {took:.1f} s: {bool(kept)}")
        client.close()

    def replace_and_remove(self, server: Server) -> None:
        """Puts all keys again (v2) and removes them; remembers which removals were acknowledged."""
        client = self.scene.client(server)
        put = [n for n in range(KEYS) if self._put(client, n)]
        self.removed = [n for n in range(KEYS) if self._remove(client, n)]
        self.scene.say(
            f"v2: {len(put)} of {KEYS} puts and {len(self.removed)} of {KEYS} removals acknowledged"
        )
        client.close()

    @staticmethod
    def _put(client: mooncrate.Store, number: int, word: str = "v2") -> bool:
        return acknowledged(20, lambda: client.put(key(number), value(word, number, SIZE), upsert=True))

    @staticmethod
    def _remove(client: mooncrate.Store, number: int) -> bool:
        return acknowledged(20, lambda: client.remove(key(number)))

    def judge(self, what: str, server: Server) -> None:
        """Reads every removed key; each must be a miss."""
        client = self.scene.client(server)
        until(15, lambda: not json.loads(self.scene.http(server, "/v1/usage"))["rebuilding"])
        found = [attempt(partial(client.get, key(number))) for number in self.removed]
        back = [one for one in found if isinstance(one, bytes)]
        old = sum(one.startswith(b"v1") for one in back)
        client.close()
        server.stop()
        seen = f"{len(back)} of {len(self.removed)} came back ({old} as v1)"
        goal = f"{KEYS} removed, 0 come back"
        holds = not back and len(self.removed) == KEYS
        self.scene.check(what, seen=seen, goal=goal, holds=holds)


def key(number: int) -> str:
    return f"disk/{number}"


def is_on_disk(scene: Scene, server: Server, number: int) -> bool:
    """Whether a finished copy of the value is on a disk."""
    told = scene.command("stat", key(number), "--master", server.said["master"])
    return told is not None and any(copy["medium"] == "ssd" for copy in told["replicas"])


def left_out(disks: Disks) -> Server:
    """A start without A; then with both."""
    return _left_out(disks, ("A", "B"))


def other_order(disks: Disks) -> Server:
    """The same, and the directories are listed in another order."""
    return _left_out(disks, ("B", "A"))


def _left_out(disks: Disks, final: tuple[str, ...]) -> Server:
    server = disks.serve("A", "B")
    disks.fill(server)
    server.stop()
    server = disks.serve("B")
    disks.replace_and_remove(server)
    server.stop()
    return disks.serve(*final)


def older_backup(disks: Disks) -> Server:
    """A is copied, used on, and the copy put in its place."""
    server = disks.serve("A", "B")
    disks.fill(server)
    server.stop()
    copy(disks.folder, "A", "backup")
    server = disks.serve("A", "B")
    disks.replace_and_remove(server)
    server.stop()
    shutil.rmtree(disks.folder / "A")
    (disks.folder / "backup").rename(disks.folder / "A")
    return disks.serve("A", "B")


def copied(disks: Disks) -> Server:
    """A copy of A comes as a third disk, after the values of A were removed."""
    server = disks.serve("A", "B")
    disks.fill(server)
    server.stop()
    copy(disks.folder, "A", "copy")
    server = disks.serve("A", "B")
    disks.replace_and_remove(server)
    server.stop()
    try:
        return disks.serve("A", "B", "copy")
    except RuntimeError as error:
        # Two directories that claim to be one disk may be refused: then nothing of them is served.
        disks.scene.say(f"the server does not start with both: {str(error)[-200:].strip()}")
        return disks.serve("A", "B")


def state_lost(disks: Disks) -> Server:
    """As left out, and the state file of the master is lost before A is back."""
    return _state(disks, older=False)


def state_older(disks: Disks) -> Server:
    """As left out, and the state file is one from before."""
    return _state(disks, older=True)


def _state(disks: Disks, *, older: bool) -> Server:
    server = disks.serve("A", "B", state=True)
    disks.fill(server)
    server.stop()
    state = disks.folder / "state"
    before = state.read_bytes()
    server = disks.serve("B", state=True)
    disks.replace_and_remove(server)
    server.stop()
    if older:
        state.write_bytes(before)
    else:
        state.unlink()
    return disks.serve("A", "B", state=True)


def moved(disks: Disks) -> Server:
    """Two nodes with a disk each; that of the first comes back with a third node."""
    scene = disks.scene
    master = scene.start("master", "--offload", "eager", "--state-file", str(disks.folder / "state"))
    nodes = {name: _node(disks, master, name, disk) for name, disk in (("x", "A"), ("y", "B"))}
    disks.fill(master)
    nodes["x"].stop()
    disks.replace_and_remove(master)
    _node(disks, master, "z", "A")
    return master


def _node(disks: Disks, master: Server, name: str, disk: str) -> Server:
    return disks.scene.node(master, name, "--ssd", f"{disks.folder / disk}=256MiB")


def copy(folder: pathlib.Path, source: str, target: str) -> None:
    """cp -a"""
    shutil.copytree(folder / source, folder / target, symlinks=True)


VARIANTS: dict[str, Callable[[Disks], Server]] = {
    "a disk left out and returned": left_out,
    "the same, listed in another order": other_order,
    "a disk restored from an older backup": older_backup,
    "a copy of a disk beside it": copied,
    "left out, and the state file lost": state_lost,
    "left out, and the state file older": state_older,
    "a disk moved to another node": moved,
}
