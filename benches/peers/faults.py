"""What callers see when something is done to the servers: for how long, and which answers.

Of two owners one is killed or stopped; the master is killed and started again two seconds later; a writer is
killed in the middle of a put. A caller does what users of a cache do: get, and put what is not there.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from processes import Silent
from race import note
from sides import MIB, Cluster, Home, Side
from tiers import at_once

KEYS, SIZE = 64, 65536
RESTART = 2.0
STOPPED = 10.0
DOOMED = 16 * MIB
# Into the put; a put of 16 MiB takes some milliseconds everywhere.
DELAYS = (0.0005, 0.002, 0.004)


def run(home: Home, sides: list[Side], quick: bool) -> dict[str, Any]:
    """Every fault on every side that has the part that it hits; all sides at once."""
    limit = 10.0 if quick else 30.0
    found: dict[str, Any] = {}
    for name, (work, needs_owners) in FAULTS.items():
        able = [side for side in sides if side.owners or not needs_owners]
        found[name] = at_once(able, lambda side, work=work: work(home, side, limit))
        for side in sides:
            if side not in able:
                found[name][side.name] = {"not offered": True}
            note(f"{name}, {side.name}: {found[name][side.name]!s:.160}")
    return found


def _watched(
    cluster: Cluster, limit: float, least: float, fault: Callable[[], None], then: Callable[[], None]
) -> dict:
    """Has a caller watch while a fault is done, and `then` after it; what it saw."""
    caller = cluster.worker(slots=False)
    # By one that lends nothing, so that both owners get some, and not by the caller, who would remember the places.
    cluster.worker(slots=False).ask("fill", prefix="kept", count=KEYS, size=SIZE)
    caller.tell("watch", prefix="kept", count=KEYS, size=SIZE, least=least, limit=limit, settle=2.0)
    caller.hear(60)
    time.sleep(0.5)
    struck = time.monotonic()
    fault()
    try:
        then()
        watched = caller.hear(limit + 60)
    except Silent as error:
        return {"silent": str(error), "after": time.monotonic() - struck}
    return summary(watched, struck)


def summary(watched: dict, struck: float) -> dict:
    """What a caller saw from the moment of the fault on."""
    seen = [one for one in watched["seen"] if one[0] >= struck]
    result: dict[str, Any] = {"limit": watched["limit"], "watched": watched["ended"] - struck, "wrong": 0}
    for what in ("get", "put"):
        bad = [one for one in seen if one[2].startswith(what) and one[3]]
        calls = [one[1] for one in seen if one[2].startswith(what)]
        answers = Counter(one[3] for one in bad)
        result["wrong"] += answers.pop("WRONG", 0)
        result[what] = {
            "until": max((one[0] for one in bad), default=struck) - struck,
            "answers": dict(answers),
            "longest": max(calls, default=0.0),
        }
    return result


def _owner_killed(home: Home, side: Side, limit: float) -> dict:
    with Cluster(home, side, segment=256 * MIB, owners=2) as cluster:
        late: dict[str, Any] = {}

        def newcomer() -> None:
            """Who comes after the death has nothing mapped and remembers nothing."""
            keys = [["late", number] for number in range(KEYS)]
            late.update(
                cluster.worker(slots=False).ask("usable", limit + 60, keys=keys, size=SIZE, limit=limit)
            )

        cluster.worker(slots=False).ask("fill", prefix="late", count=KEYS, size=SIZE)
        return {**_watched(cluster, limit, 4.0, cluster.lenders[1].kill, newcomer), "newcomer": late}


def _owner_stopped(home: Home, side: Side, limit: float) -> dict:
    with Cluster(home, side, segment=256 * MIB, owners=2) as cluster:
        owner = cluster.lenders[1]

        def on() -> None:
            time.sleep(STOPPED)
            owner.send(signal.SIGCONT)

        return _watched(cluster, limit, STOPPED + 2, lambda: owner.send(signal.SIGSTOP), on)


def _master_killed(home: Home, side: Side, limit: float) -> dict:
    with Cluster(home, side, segment=256 * MIB) as cluster:

        def back() -> None:
            time.sleep(RESTART)
            cluster.restart_master()

        return _watched(cluster, limit, RESTART + 3, cluster.master.kill, back)


def _writer_killed(home: Home, side: Side, limit: float) -> dict:
    """Kills a writer in each of some puts; then the keys must be whole, or missing, and can be put again."""
    with Cluster(home, side, segment=512 * MIB) as cluster:
        caller = cluster.worker(slots=False)
        keys = []
        for lap, delay in enumerate(DELAYS):
            writer = cluster.worker(slots=False)
            writer.tell("doom", prefix=f"doom{lap}", size=DOOMED)
            # Not its first: connections are open by then.
            number = -1
            while number < lap + 2:
                number = writer.hear(60)["putting"]
            time.sleep(delay)
            writer.kill()
            keys.append([f"doom{lap}", number])
        return caller.ask("usable", limit + 60, keys=keys, size=DOOMED, limit=limit)


FAULTS = {
    "owner killed": (_owner_killed, True),
    "owner stopped for 10 s": (_owner_stopped, True),
    "master killed, back after 2 s": (_master_killed, False),
    "writer killed in mid-put": (_writer_killed, False),
}
