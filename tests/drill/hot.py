"""Scenario 9: values that are read all the time, beside many that are put and never read."""

import subprocess
import sys
import textwrap
import time

from harness import MIB, PATIENCE, Scene, attempt, milliseconds, until

HOT = 50
# The figures of the full size; fewer cold values shrink the pool and the hot set with them.
COLD, POOL_MIB = 2500, 256
# Cold values per second, at most: slow enough that each hot value is read several times while the pool is
# filled once.
PACE = 750


def hot_values_stay(scene: Scene) -> None:
    share = scene.options.values / COLD
    pool, hot = max(16, round(POOL_MIB * share)), max(4, round(HOT * share))
    for policy in ("density", "lru"):
        _beside_cold_puts(scene, policy, pool, hot)
    _promoted(scene)


# Puts the hot values, and reads each every 100 ms until its input is closed. Who has put a value remembers
# where it is, so no read asks the master.
READER = """
    import sys, threading, time
    import mooncrate

    store, count = mooncrate.Store(master=sys.argv[1]), int(sys.argv[2])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    names = [f"hot/{number}" for number in range(count)]
    for name in names:
        store.put(name, bytes(range(256)) * 4096)
    print("ready", flush=True)
    reads = missed = 0
    while not ended.is_set():
        began = time.monotonic()
        for place, name in enumerate(names):
            reads += 1
            try:
                missed += store.get(name) is None
            except mooncrate.Error:
                missed += 1
            time.sleep(max(0.0, began + 0.1 * (place + 1) / count - time.monotonic()))
    print(reads, missed)
"""


def _beside_cold_puts(scene: Scene, policy: str, pool: int, hot: int) -> None:
    share = pool / POOL_MIB
    server = scene.start(
        "serve", "--segment-size", f"{pool}MiB", "--evict-policy", policy, name=f"serve-{policy}"
    )
    store = scene.client(server, timeout=10.0)
    body = bytes(range(256)) * (MIB // 256)
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(READER), server.said["master"], str(hot)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdin is not None and reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        began = time.monotonic()
        failed = 0
        for number in range(scene.options.values):
            time.sleep(max(0.0, began + number / (PACE * share) - time.monotonic()))
            failed += attempt(lambda number=number: store.put(f"cold/{number}", body)) is not True
        took = time.monotonic() - began
        reader.stdin.close()
        reads, missed = map(int, reader.stdout.readline().split())
        reader.wait(PATIENCE)
    finally:
        reader.kill()
        reader.wait()
    scene.say(
        f"{policy}: {scene.options.values} cold puts in {took:.1f} s through {pool} MiB, {failed} failed"
    )
    seen = f"{missed} of {reads} missed, {failed} puts failed"
    holds = missed <= reads / 100 and not failed
    scene.check(
        f"reads of {hot} hot values beside cold puts, {policy}",
        seen=seen,
        goal="1 % missed",
        holds=holds,
    )
    store.close()
    server.stop()


def _promoted(scene: Scene) -> None:
    """More than memory holds, on a disk; some of it is read again."""
    disk = scene.folder / "disk"
    count, again = 1000, 40
    server = scene.start("serve", "--segment-size", "128MiB", "--ssd", f"{disk}=2GiB", name="serve-disk")
    store = scene.client(server, timeout=30.0)
    body = bytes(range(256)) * (MIB // 256)
    began = time.monotonic()
    for number in range(count):
        until(30, lambda number=number: attempt(lambda: store.put(f"disk/{number}", body)) is True)
    scene.say(
        f"{count} values of 1 MiB through 128 MiB onto a disk in {time.monotonic() - began:.0f} s"
    )
    names = [f"disk/{number}" for number in range(0, count // 2, count // 2 // again)][:again]
    for _ in range(3):
        for name in names:
            attempt(lambda name=name: store.get(name))
        time.sleep(0.5)

    def in_memory() -> int:
        # What is listed counts as no read. A value on a disk has one copy, in memory one more.
        listed = scene.command("ls", "disk/", "--limit", "10000", "--master", server.said["master"])
        return sum(row["replicas"] > 1 for row in listed["keys"] if row["key"] in names)

    until(10, lambda: in_memory() == again, step=1.0)
    promoted = in_memory()
    took = []
    for name in names:
        began = time.monotonic()
        store.get(name)
        took.append(time.monotonic() - began)
    took.sort()
    seen = f"{promoted} of {again} in memory, median read {milliseconds(took[len(took) // 2])}"
    scene.check(
        "values on a disk after three reads each",
        seen=seen,
        goal=f"{again} in memory",
        holds=promoted == again,
    )
