"""Owners that are certainly dead: what only they held is missing, not out of reach for a moment.

The master waits some seconds before it gives up a node that it does not hear. A read meanwhile fails as a
transfer, which vLLM takes for memory that is still in use. A machine that refuses the connection says that no
process listens there: the memory went with the process. What must stay true: a node that is only silent,
stopped or cut off is never called dead.
"""

import socket
from collections.abc import Sequence

import mooncrate

from ._codes import OBJECT_NOT_FOUND, TRANSFER_FAIL
from ._connection import Connection

# A machine that is there refuses at once; one that says nothing for so long proves nothing.
PROBE_SECONDS = 0.5


def miss_the_dead(live: Connection, keys: Sequence[str | bytes], codes: list[int]) -> None:
    """Turns failed transfers into misses where every owner of some part of the value is dead."""
    asked = [place for place, code in enumerate(codes) if code == TRANSFER_FAIL]
    if not asked:
        return
    try:
        found = live.raw.places([keys[place] for place in asked], hold=False)
        endpoints = {
            segment: endpoint
            for _, endpoint, memory, disks in live.raw.nodes()
            for segment in (*memory, *disks)
        }
    except mooncrate.Error:
        return
    dead: dict[str, bool] = {}
    for place, copies in zip(asked, found, strict=True):
        if isinstance(copies, mooncrate.Error):
            continue
        stripes: dict[int, list[bool]] = {}
        for segment, _, _, stripe, _ in copies or ():
            stripes.setdefault(stripe, []).append(_is_dead(endpoints.get(segment, ""), dead))
        # None: the master has given it up meanwhile.
        if copies is None or any(all(owners) for owners in stripes.values()):
            codes[place] = OBJECT_NOT_FOUND


def _is_dead(endpoint: str, dead: dict[str, bool]) -> bool:
    """Whether nobody listens at an endpoint, asked once for each."""
    if endpoint not in dead:
        host, _, port = endpoint.rpartition(":")
        dead[endpoint] = bool(host) and port.isdigit() and _refuses(host.strip("[]"), int(port))
    return dead[endpoint]


def _refuses(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=PROBE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
