"""The codes that callers see, and which error of the store becomes which.

A code is a plain negative int: callers compare with 0 and with a few values. What must stay true: a
code never says "done" for what is not done, and -200 means "no room" only, because vLLM stops storing
when it sees it.
"""

import logging
from collections import Counter
from collections.abc import Sequence

import mooncrate

log = logging.getLogger("mooncake.store")

OK = 0
INTERNAL_ERROR = -1
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
ILLEGAL_CLIENT = -601
REPLICA_IS_NOT_READY = -703
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
OBJECT_HAS_LEASE = -706
LEASE_EXPIRED = -707
OBJECT_HAS_REPLICATION_TASK = -708
REPLICA_NOT_FOUND = -710
OBJECT_REPLICA_BUSY = -714
TRANSFER_FAIL = -800
CHECKSUM_MISMATCH = -801
RPC_FAIL = -900
RPC_TIMEOUT = -901
UNAVAILABLE_IN_CURRENT_STATUS = -1010
TASK_NOT_FOUND = -1400
DFS_SERVICE_UNAVAILABLE = -1601
TENANT_QUOTA_EXCEEDED = -1700

NAMES = {
    code: name for name, code in list(globals().items()) if name.isupper() and isinstance(code, int)
}

_BY_KIND = {
    "bad key": INVALID_PARAMS,
    "bad replicas": INVALID_PARAMS,
    "bad request": INVALID_PARAMS,
    "broken": TRANSFER_FAIL,
    "busy": OBJECT_HAS_REPLICATION_TASK,
    "corrupt": CHECKSUM_MISMATCH,
    "deadline": RPC_TIMEOUT,
    "deferred": OBJECT_REPLICA_BUSY,
    "denied": ILLEGAL_CLIENT,
    "exists": OBJECT_ALREADY_EXISTS,
    "gap": INVALID_PARAMS,
    "held": OBJECT_REPLICA_BUSY,
    "in progress": REPLICA_IS_NOT_READY,
    "lease over": LEASE_EXPIRED,
    "leased": OBJECT_HAS_LEASE,
    "missing": OBJECT_NOT_FOUND,
    "no room": NO_AVAILABLE_HANDLE,
    "no source": REPLICA_NOT_FOUND,
    "no such put": LEASE_EXPIRED,
    "no target": INVALID_PARAMS,
    "open bind": INVALID_PARAMS,
    "out of range": INVALID_PARAMS,
    "over": INVALID_PARAMS,
    "overlap": INVALID_PARAMS,
    "quota": TENANT_QUOTA_EXCEEDED,
    "rebuilding": UNAVAILABLE_IN_CURRENT_STATUS,
    "replacing": OBJECT_REPLICA_BUSY,
    "scattered": INVALID_PARAMS,
    "timed out": LEASE_EXPIRED,
    "too large": INVALID_PARAMS,
    "too small": INVALID_PARAMS,
    "transfer": TRANSFER_FAIL,
    "unreachable": RPC_FAIL,
    "unusable memory": TRANSFER_FAIL,
}

_BY_CLASS = (
    (mooncrate.Invalid, INVALID_PARAMS),
    (mooncrate.TooLarge, INVALID_PARAMS),
    (mooncrate.Closed, INVALID_PARAMS),
    (mooncrate.Denied, ILLEGAL_CLIENT),
    (mooncrate.Unavailable, RPC_FAIL),
    (mooncrate.Busy, UNAVAILABLE_IN_CURRENT_STATUS),
)


def code_of(error: mooncrate.Error) -> int:
    """The code for an error."""
    code = _BY_KIND.get(error.kind)
    if code is not None:
        return code
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return INTERNAL_ERROR


def say(what: str, error: mooncrate.Error) -> int:
    """The code for an error, which is also logged: the code alone says little."""
    code = code_of(error)
    log.warning("%s: %s (%d)", what, error, code)
    return code


# Places of keys in a batch, and why each failed.
Failed = list[tuple[int, mooncrate.Error]]


def tell(what: str, keys: Sequence[str | bytes], codes: Sequence[int], failed: Failed) -> None:
    """Logs the failures of a batch in one line: a pool that is full would otherwise fill the log."""
    if not failed:
        return
    place, error = failed[0]
    if len(failed) == 1:
        log.warning("%s of %r: %s (%d)", what, keys[place], error, codes[place])
        return
    counts = Counter(codes[place] for place, _ in failed).most_common()
    log.warning(
        "%s: %d of %d keys failed (%s); the first is %r: %s",
        what,
        len(failed),
        len(keys),
        ", ".join(f"{code} {count} times" for code, count in counts),
        keys[place],
        error,
    )
