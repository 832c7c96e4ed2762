"""The disk of a store that lends memory, as Mooncake's settings and variables name it."""

import os
import socket
from collections.abc import Mapping

DEFAULT_PATH = "/data/file_storage"
DEFAULT_BYTES = 2_000_000_000_000
#: Of the file system, where nobody says how much may be used.
SHARE = 0.9
#: Variable there, option of a disk here.
_OPTIONS = {
    "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": "backend",
    "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": "bucket_size",
    "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": "bucket_keys",
    "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "evict",
}


#: Stores of one machine that may be given the same directory.
SHARERS_MAX = 64
_NO = ("0", "false", "off", "no")


def is_refused(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment wants no disk, unless a store is told to have one."""
    return variables.get("MOONCAKE_OFFLOAD_ENABLED", "").lower() in _NO


def is_named(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names a directory, which a store then uses without being told to."""
    return bool(variables.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH")) and not is_refused(variables)


def _room(path: str) -> int:
    """What may be used of the file system that a directory is in, or will be."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        there = os.statvfs(path or ".")
    except OSError:
        # The node says what is wrong with it.
        return DEFAULT_BYTES
    return int(there.f_frsize * there.f_blocks * SHARE)


def disk(
    enabled: bool,
    path: str,
    variables: Mapping[str, str] = os.environ,
    *,
    root: str = "",
    label: str = "",
    sharer: int = 1,
) -> str | None:
    """The disk as `PATH=SIZE` with options; None if there shall be none.

    A directory belongs to one process, and engines give all of theirs the same one: the second and later
    sharers have folders in it. In `root`, which the master names for all machines, everybody has one:
    named after the machine, so that whoever comes next there finds what it holds.
    """
    own = path or variables.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "")
    folder = label or f"store-{sharer}"
    if enabled and (own or not root):
        path = own or DEFAULT_PATH
        path = os.path.join(path, folder) if sharer > 1 else path
    elif root and (enabled or not is_refused(variables)):
        path = os.path.join(root, f"{socket.gethostname()}-{folder}")
    else:
        return None
    size = variables.get("MOONCAKE_BUCKET_MAX_TOTAL_SIZE") or variables.get(
        "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"
    )
    text = f"{path}={size or min(DEFAULT_BYTES, _room(path))}"
    for name, option in _OPTIONS.items():
        value = variables.get(name, "").lower()
        if value and value != "none":
            text += f",{option}={value}"
    uring = variables.get("MOONCAKE_OFFLOAD_USE_URING") or variables.get("MOONCAKE_USE_URING")
    if uring:
        text += ",io=uring" if uring.lower() in ("1", "true", "on", "yes") else ",io=posix"
    return text
