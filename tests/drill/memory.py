"""Scenarios 3 and 8: memory that changes by itself, and addresses that are no memory."""

import json
import os
import re
import subprocess
import sys
import textwrap

import mooncrate
from harness import KIB, PATIENCE, Scene, Server, attempt, until, value

# Families of /metrics that could count copies that were found bad.
BAD = re.compile(
    r"^mooncrate_\w*(?:bad|corrupt|checksum|rotten|spoiled)\w*(?:\{[^}]*\})? ([0-9.e+]+)$", re.M
)


def flipped_byte(scene: Scene) -> None:
    _one_copy(scene)
    _two_copies(scene)


def _one_copy(scene: Scene) -> None:
    server = scene.start("serve", name="one")
    store = scene.client(server)
    what = value("flip", 1, 64 * KIB)
    assert store.put("flip", what)
    flip(server, what)
    scene.say("one copy, one byte of it flipped in the memory of its owner")
    first = attempt(lambda: scene.client(server).get("flip"))
    wrong = isinstance(first, bytes) and first != what
    scene.say(f"get: {first if isinstance(first, mooncrate.Error) else type(first).__name__}")
    took, again = until(10, lambda: attempt(lambda: store.put("flip", what)) is True)
    same = attempt(lambda: scene.client(server).get("flip")) == what
    when = f"put again after {took:.1f} s" if again else "cannot be put again within 10 s"
    seen = (
        f"{'WRONG BYTES' if wrong else 'no wrong bytes'}, {when}, then {'read' if same else 'NOT read'}"
    )
    scene.check(
        "a key whose only copy is bad",
        seen=seen,
        goal="usable again in 2 s",
        holds=not wrong and bool(again) and took < 2 and same,
    )
    _, counted = until(
        5, lambda: any(float(count) > 0 for count in BAD.findall(scene.http(server, "/metrics")))
    )
    seen = "counted" if counted else "nothing counted"
    scene.check("a bad copy in /metrics", seen=seen, goal="counted", holds=bool(counted))


def _two_copies(scene: Scene) -> None:
    master = scene.start("master")
    nodes = [scene.node(master, name) for name in ("x", "y")]
    store = scene.client(master)
    names = [f"flip/{number}" for number in range(10)]
    values = {name: value("flip", number, 64 * KIB) for number, name in enumerate(names)}
    assert all(stored is True for stored in store.put_batch(values, replicas=2))
    for what in values.values():
        flip(nodes[0], what)
    scene.say("ten values with two copies, a byte of each copy on x flipped")
    right = wrong = 0
    for _ in range(20):
        # A fresh client each time chooses its copies anew.
        with mooncrate.Store(master=master.said["master"]) as client:
            for name, what in values.items():
                found = attempt(lambda name=name, client=client: client.get(name))
                right += found == what
                wrong += isinstance(found, bytes) and found != what
    seen = f"{right} right, {wrong} wrong of 200"
    scene.check(
        "gets while another copy is good", seen=seen, goal="200 right", holds=right == 200 and not wrong
    )

    def sound(node: Server) -> int:
        return sum(holds(node, what) for what in values.values())

    took, whole = until(30, lambda: sound(nodes[0]) == 10 and copies(scene, master) == 20, step=0.5)
    seen = f"{copies(scene, master)} copies, {sound(nodes[0])} of 10 good on x after {took:.0f} s"
    scene.check("bad copies made anew", seen=seen, goal="20 copies, 10 good, in 30 s", holds=bool(whole))


def copies(scene: Scene, master: Server) -> int:
    listed = json.loads(scene.http(master, "/v1/keys?prefix=flip/"))
    return sum(entry["replicas"] for entry in listed["keys"])


def flip(server: Server, what: bytes) -> None:
    """Changes one byte in the middle of a value, in the memory of its owner."""
    at = find(server, what)
    if at is None:
        raise RuntimeError(f"{server.name} does not hold the value in its memory")
    place = at + len(what) // 2
    memory = os.open(f"/proc/{server.pid}/mem", os.O_RDWR)
    try:
        byte = os.pread(memory, 1, place)
        os.pwrite(memory, bytes([byte[0] ^ 1]), place)
    finally:
        os.close(memory)


def holds(server: Server, what: bytes) -> bool:
    return find(server, what) is not None


def find(server: Server, what: bytes) -> int | None:
    """Where the node has exactly these bytes."""
    memory = os.open(f"/proc/{server.pid}/mem", os.O_RDONLY)
    try:
        for start, end in segments(server.pid):
            # In one read: the segments of a drill are small.
            at = os.pread(memory, end - start, start).find(what)
            if at >= 0:
                return start + at
    finally:
        os.close(memory)
    return None


def segments(pid: int) -> list[tuple[int, int]]:
    """The writable mappings of memory files of a process."""
    found = []
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            place, access, *rest = line.split()
            if "memfd:" in line and access.startswith("rw"):
                start, end = (int(text, 16) for text in place.split("-"))
                found.append((start, end))
    return found


def unmapped_address(scene: Scene) -> None:
    server = scene.start("serve", name="serve")
    for what, code, goal in CALLS:
        program = textwrap.dedent(HEAD) + code + "\nprint(answer)\nstore.close()\n"
        done = subprocess.run(
            [sys.executable, "-c", program, server.said["master"]],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            text=True,
        )
        answer = done.stdout.strip()
        ended = f"the process ended with {done.returncode}" if done.returncode else f"answer {answer}"
        scene.check(
            what, seen=ended, goal=f"answer {goal}", holds=done.returncode == 0 and answer == goal
        )


HEAD = """
    import ctypes, sys
    from mooncake.store import MooncakeDistributedStore

    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def memory(access):
        return libc.mmap(None, 8192, access, 0x22, -1, 0)

    # Before the other is unmapped: the next mapping might take its place.
    good = memory(3)
    unmapped = memory(3)
    libc.munmap(unmapped, 8192)
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
    assert store.put("value", b"v" * 8192) == 0
"""
CALLS = (
    ("put_from of memory that is not mapped", "answer = store.put_from('k', unmapped, 8192)", "-800"),
    (
        "get_into of memory that is not mapped",
        "answer = store.get_into('value', unmapped, 8192)",
        "-800",
    ),
    (
        "get_into of memory that is read-only",
        "answer = store.get_into('value', memory(1), 8192)",
        "-800",
    ),
    (
        "batch_put_from with one bad address",
        "answer = store.batch_put_from(['a', 'b', 'c'], [good, unmapped, good], [8192] * 3)",
        "[0, -800, 0]",
    ),
    (
        "batch_get_into with one bad address",
        "answer = store.batch_get_into(['value'] * 3, [good, unmapped, good], [8192] * 3)",
        "[8192, -800, 8192]",
    ),
    (
        "register_buffer of memory that is not mapped",
        "answer = store.register_buffer(unmapped, 8192)",
        "-600",
    ),
)
