"""The disk of a store that lends memory, as Mooncake's settings and variables name it."""

import os
from collections.abc import Mapping

DEFAULT_PATH = "/data/file_storage"
DEFAULT_BYTES = "2000000000000"
#: Variable there, option of a disk here.
_OPTIONS = {
    "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": "backend",
    "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": "bucket_size",
    "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": "bucket_keys",
    "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "evict",
}


def disk(enabled: bool, path: str, variables: Mapping[str, str] = os.environ) -> str | None:
    """The disk as `PATH=SIZE` with options; None if there shall be none."""
    if not enabled:
        return None
    path = path or variables.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH") or DEFAULT_PATH
    size = variables.get("MOONCAKE_BUCKET_MAX_TOTAL_SIZE") or variables.get(
        "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"
    )
    text = f"{path}={size or DEFAULT_BYTES}"
    for name, option in _OPTIONS.items():
        value = variables.get(name, "").lower()
        if value and value != "none":
            text += f",{option}={value}"
    uring = variables.get("MOONCAKE_OFFLOAD_USE_URING") or variables.get("MOONCAKE_USE_URING")
    if uring:
        text += ",io=uring" if uring.lower() in ("1", "true", "on", "yes") else ",io=posix"
    return text
