"""What is not a rate of calls: the way from nothing to the first get, memory per object, and disks."""

import concurrent.futures
import statistics
import time
from typing import Any

from processes import Asked, Wrong
from race import note
from sides import MIB, Cluster, Home, Side, stop_all

OBJECT = 128
MEMORY_THREADS = 4


def first_get(home: Home, sides: list[Side], rounds: int) -> dict[str, Any]:
    """Seconds from starting the first server to a value that was put and read: master, owner and caller are
    started one after the other."""
    samples: dict[str, list[float]] = {}
    for _ in range(rounds):
        for side in sides:
            samples.setdefault(side.name, []).append(_first(home, side))
    for name, seconds in samples.items():
        if seconds:
            note(f"nothing to first get, {name}: {statistics.median(seconds):.2f} s")
    return samples


def _first(home: Home, side: Side) -> float:
    began = time.monotonic()
    with Cluster(home, side, segment=64 * MIB) as cluster:
        caller = cluster.worker(slots=False)
        answer = caller.ask("usable", keys=[["first", 0]], size=4096, limit=50)
        if answer["never"]:
            raise Asked(f"{side.name}: no value within 50 s: {answer['answers']}")
        return time.monotonic() - began


def at_once(sides: list[Side], work: Any) -> dict[str, Any]:
    """Does something on all sides at the same time: nothing here is judged by its rate."""
    found = {}
    with concurrent.futures.ThreadPoolExecutor(len(sides) or 1) as pool:
        running = {side.name: pool.submit(work, side) for side in sides}
        try:
            for name, one in running.items():
                found[name] = _answer(name, one)
        except BaseException:
            # The pool waits for all its threads, and they wait for their servers.
            stop_all()
            raise
    return found


def _answer(name: str, one: concurrent.futures.Future) -> Any:
    try:
        return one.result()
    except Wrong:
        raise
    except (OSError, RuntimeError) as error:
        note(f"{name}: {error}")
        return {"failed": str(error)}


def memory(home: Home, sides: list[Side], objects: int) -> dict[str, Any]:
    """What the servers grow by, for each of many objects of 128 bytes."""
    note(f"memory of {objects:,} objects")

    def work(side: Side) -> dict:
        # By default a segment of ours has a slot for every 4 KiB.
        with Cluster(home, side, segment=5120 * MIB) as cluster:
            # One value before: what a server allocates for its first is not of the objects.
            owner = cluster.lenders[0]
            owner.ask("fill", prefix="one", count=1, size=OBJECT)
            servers = {"master": cluster.master}
            if side.owners:
                servers["owner"] = owner
            before = {name: one.resident() for name, one in servers.items()}
            done = owner.ask("many", 600, count=objects, size=OBJECT, threads=MEMORY_THREADS)
            grown = {name: (one.resident() - before[name]) / done["count"] for name, one in servers.items()}
            return {"bytes": grown, "objects": done["count"], "seconds": done["seconds"], "before": before}

    return {"objects": objects, "value": OBJECT, "sides": at_once(sides, work)}


def disk(home: Home, sides: list[Side], quick: bool) -> dict[str, Any]:
    """Values for more than memory holds, then reads of the oldest ones, which memory cannot have."""
    room, size = (64 * MIB, MIB) if quick else (256 * MIB, MIB)
    count = 4 * room // size
    note(f"disk: {count} values of 1 MiB through {room // MIB} MiB of memory")
    found: dict[str, Any] = {"memory": room, "values": count, "size": size, "sides": {}}
    for side in sides:
        if side.kind == "redis":
            found["sides"][side.name] = {"not offered": True}
            continue
        found["sides"].update(at_once([side], lambda one: _disk(home, one, room, count, size)))
        note(f"disk, {side.name}: {found['sides'][side.name]}")
    return found


def _disk(home: Home, side: Side, room: int, count: int, size: int) -> dict:
    with Cluster(home, side, segment=room, disk=True) as cluster:
        caller = cluster.worker()
        stored = caller.ask("spill", 120, count=count, size=size, wait=5)
        # The oldest half: a fourth of all fits into memory, and it was written last.
        half = stored["stored"] // 2
        old = caller.ask("reread", 120, start=0, count=half, size=size, seconds=10)
        rest = caller.ask("reread", 120, start=half, count=stored["stored"] - half, size=size, seconds=5)
        return {"stored": stored, "oldest": old, "newest": rest}
