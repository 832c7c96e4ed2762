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

# Before anything native is loaded.
import mooncrate._interpreter  # noqa: F401, I001
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

from mooncrate._native import View, __version__
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

if TYPE_CHECKING:
    from mooncrate.aio import AsyncStore

# The format of our gRPC is the package `mooncrate.v1`: what is generated from it lies beside this package.
__path__ = extend_path(__path__, __name__)


def __getattr__(name: str) -> Any:
    # What most programs have no use for, and asyncio with it, takes a third of the time of this import.
    if name == "AsyncStore":
        from mooncrate.aio import AsyncStore

        globals()[name] = AsyncStore
        return AsyncStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
