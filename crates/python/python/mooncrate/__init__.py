"""A store of KV cache for LLM inference: a get returns exactly the bytes that were put, or a miss.

    import mooncrate

    with mooncrate.Store() as store:
        store.put("prompt/42", b"kv pages")
        assert store.get("prompt/42") == b"kv pages"
        with store.view("prompt/42") as view:   # no copy, read-only, pinned
            assert bytes(view) == b"kv pages"

The KV blocks of running sequences, in this process, are in `mooncrate.paged`; KV objects in the memory of GPUs
are in `mooncrate.nano`; the expert exchange of MoE layers is in `mooncrate.ep`.
"""

# All at once, also what few programs use: a child that is forked while another thread imports something would wait
# for ever where it needs the same.
# Before anything native is loaded.
import mooncrate._interpreter  # noqa: F401, I001
from pkgutil import extend_path

from mooncrate._native import View, __version__
from mooncrate.aio import AsyncStore
from mooncrate.errors import (
    Busy,
    Closed,
    Denied,
    Error,
    Full,
    Invalid,
    TooLarge,
    Unavailable,
    UnknownSequence,
)
from mooncrate.nano import NanoKVCache
from mooncrate.store import Store

# The format of our gRPC is the package `mooncrate.v1`: what is generated from it lies beside this package.
__path__ = extend_path(__path__, __name__)

__all__ = [
    "AsyncStore",
    "Busy",
    "Closed",
    "Denied",
    "Error",
    "Full",
    "Invalid",
    "NanoKVCache",
    "Store",
    "TooLarge",
    "Unavailable",
    "UnknownSequence",
    "View",
    "__version__",
]
