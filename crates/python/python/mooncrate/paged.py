"""The KV cache of running sequences, in blocks, in memory of this process or of a GPU.

    from mooncrate.paged import Geometry, PagedCache

    geometry = Geometry(layers=2, kv_heads=4, head_dim=64, block_tokens=16)
    cache = PagedCache(geometry, blocks=64, layout="token-major", model="tiny")
    cache.allocate("a", range(40))            # Admitted(blocks=3, cached_tokens=0)
    k = cache.tokens_view("a", 0, "k").numpy()    # [heads, tokens, dim], the memory itself
    k[:] = 1
    cache.publish("a", 40)                    # two full blocks can be shared from now on
    cache.allocate("b", range(40))            # Admitted(blocks=3, cached_tokens=32)
    cache.keep_important("a", k.sum((0, 2)), 30)  # Kept(tokens=30, dropped=10, blocks=2)

With `memory="cuda"` the blocks lie on a GPU, and `torch.from_dlpack(view)` shows them without a copy.

What must stay true: arrays made of views are the memory of the cache, and keep the blocks that they
show. NumPy is imported when it is needed.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncrate import _native
from mooncrate._native import BlockTables, Geometry, PagedView
from mooncrate.errors import Busy, Full, Invalid, UnknownSequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy
    from typing_extensions import Buffer

__all__ = [
    "Admitted",
    "BlockTables",
    "Busy",
    "Full",
    "Geometry",
    "Invalid",
    "Kept",
    "PagedCache",
    "PagedView",
    "Shard",
    "TokenPlace",
    "UnknownSequence",
]

# Element types that NumPy has only with ml_dtypes, and the integers that have their bits.
BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


class Admitted(NamedTuple):
    """A sequence that was admitted."""

    blocks: int
    """Its blocks."""
    cached_tokens: int
    """Tokens at the front whose KV is there already; never all of them."""


class Kept(NamedTuple):
    """What a sequence has after its least important tokens were dropped."""

    tokens: int
    """Its tokens."""
    dropped: int
    """Tokens that the call dropped."""
    blocks: int
    """Its blocks."""


class Shard(NamedTuple):
    """The part of a model's KV that one cache holds; the default is all of it.

    Count parts of the KV, not processes: ranks that hold copies of the same heads, as all tensor-parallel ranks do
    with MLA, give the same numbers."""

    tensor_rank: int = 0
    """Which part of the KV heads."""
    tensor_ranks: int = 1
    """Parts that the KV heads are split into."""
    stage: int = 0
    """Which pipeline stage."""
    stages: int = 1
    """Pipeline stages."""
    first_layer: int = 0
    """The first of its layers, counted in the whole model; how many it has is in the geometry."""


class TokenPlace(NamedTuple):
    """Where a token lies."""

    logical_block: int
    """Which block of its sequence."""
    slot: int
    """Which slot of that block."""


class PagedCache(_native.PagedCache):
    __slots__ = ()
    __doc__ = _native.PagedCache.__doc__

    def allocate(
        self,
        id: str,
        tokens: "Iterable[int] | Buffer | None" = None,
        *,
        count: int | None = None,
        tenant: int = 0,
        adapter: str = "",
        cache_salt: str | bytes = "",
        extra_keys: "Iterable[tuple[int, str | bytes]] | None" = None,
        rank: int = 0,
        contiguous: bool = False,
    ) -> Admitted:
        """Admits a sequence: the longest prefix of it that is cached is used, and blocks are taken for
        the rest. Full if there are too few.

        tokens: their ids, as a list or an array. count: how many, where they are not told; such
        sequences share nothing. tenant: sequences of different ones share nothing. adapter: the LoRA
        adapter. cache_salt: sequences of different salts share nothing. extra_keys: what changes the KV
        beside the token ids, as pairs of a token and a key: the index of the first placeholder token of an
        image, and the hash of the image. rank: what the policies by rank go by; higher stays longer, and a
        block that is found gets the rank of who found it. contiguous: the blocks lie in a row if that is
        possible.
        """
        taken = super().allocate(
            id,
            tokens,
            count=count,
            tenant=tenant,
            adapter=adapter,
            cache_salt=cache_salt,
            extra_keys=None if extra_keys is None else list(extra_keys),
            rank=rank,
            contiguous=contiguous,
        )
        return Admitted(*taken)

    def append(
        self,
        id: str,
        tokens: "Iterable[int] | Buffer | None" = None,
        *,
        count: int | None = None,
        extra_keys: "Iterable[tuple[int, str | bytes]] | None" = None,
    ) -> int:
        """Adds tokens whose KV is about to be written; how many blocks were added for them. Tokens that are only
        counted end the sharing of this sequence. extra_keys: as in `allocate`; tokens are counted from the start
        of the sequence."""
        keys = None if extra_keys is None else list(extra_keys)
        return super().append(id, tokens, count=count, extra_keys=keys)

    def block_keys(
        self,
        tokens: "Iterable[int] | Buffer",
        *,
        tenant: int = 0,
        adapter: str = "",
        cache_salt: str | bytes = "",
        extra_keys: "Iterable[tuple[int, str | bytes]] | None" = None,
    ) -> list[bytes]:
        """The keys of the full blocks of a prompt in a store, in their order: for engines that move blocks between
        the cache and a store by themselves. A key says all that changes the bytes of its block, so the cache must
        have been made with its `shard`."""
        keys = None if extra_keys is None else list(extra_keys)
        return super().block_keys(
            tokens, tenant=tenant, adapter=adapter, cache_salt=cache_salt, extra_keys=keys
        )

    @property
    def shard(self) -> Shard | None:
        """Which part of the model's KV it holds, if that was said."""
        told = super().shard
        return None if told is None else Shard(*told)

    def keep_important(self, id: str, scores: "Iterable[float] | Buffer", keep: int) -> Kept:
        """Keeps the `keep` tokens with the highest scores, drops the others, and gives their blocks back.

        scores: one number for each token, as a list or an array of floats. Of equal scores the later token
        stays; float("inf") for one that must stay. The survivors move together to the front, so the block
        table and the indices of tokens are new; `positions` says where they came from. Needs free blocks
        for the tokens that move: Full if there are too few.
        """
        return Kept(*super().keep_important(id, floats(scores), keep))

    def token_place(self, id: str) -> TokenPlace:
        """Where the last token of a sequence lies."""
        return TokenPlace(*super().token_place(id))

    # What torch has on the host is written as an array of NumPy over the same memory.
    def block_table(self, id: str, out: Any = None, *, pad: int = -1) -> Any:
        """The blocks of a sequence as a list. With `out`, an array of int32, they are written there, `pad`
        behind them, and their number is the result."""
        return super().block_table(id, host(out), pad=pad)

    def fill_block_tables(self, ids: "Sequence[str]", out: Any, *, pad: int = -1) -> None:
        """The blocks of each sequence as a row of `out`, an array of int32 of two dimensions, `pad` behind
        them and in rows that are left."""
        super().fill_block_tables(ids, host(out), pad=pad)

    def block_tables(self, out: Any, *, pad: int = -1) -> BlockTables:
        """A table as `fill_block_tables` makes, kept up to date by `update(ids)`: each update writes what is new since
        the last one, so a step costs what its sequences have grown by. Nobody else writes to `out`."""
        return super().block_tables(host(out), pad=pad)

    def slot_mapping(self, items: "Sequence[str | tuple[str, int, int]]", out: Any) -> int:
        """For each token of each item, a sequence or (id, start, stop), `block * block_tokens + slot`, in
        an array of int64, -1 behind them; how many tokens."""
        return super().slot_mapping(items, host(out))

    def csr(self, ids: "Sequence[str]", indptr: Any, indices: Any, last_page_len: Any) -> int:
        """FlashInfer's page table in three arrays of int32. `last_page_len` says how many sequences fit;
        places that are left become empty sequences. How many pages there are."""
        return super().csr(ids, host(indptr), host(indices), host(last_page_len))

    def write_tokens(self, id: str, layer: int, start: int, k: Any, v: Any = None) -> None:
        """Copies K and V of tokens from `start` on into one layer: arrays `[tokens, heads, dim]` of NumPy or
        torch, of the type of the cache. For MLA there is no V. Published tokens are refused."""
        if (v is None) != self.geometry.is_mla:
            words = "an MLA cache has no V: leave it out" if v is not None else "give K and V"
            raise Invalid(words)
        halves = [("k", self._bits(k, "k"))]
        if v is not None:
            halves.append(("v", self._bits(v, "v")))
            if halves[0][1].shape[0] != halves[1][1].shape[0]:
                raise Invalid("k and v have different numbers of tokens")
        for name, bits in halves:
            self._write_tokens(id, layer, name, start, bits)

    def read_tokens(
        self, id: str, layer: int, start: int = 0, stop: int | None = None, *, raw: bool = False
    ) -> "tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any] | None]":
        """Copies of K and V of some tokens of one layer, `[tokens, heads, dim]`; for MLA V is None. With `raw`
        the elements are unsigned integers, the bits."""
        import numpy

        held = self.used_tokens(id)
        stop = held if stop is None else stop
        if not 0 <= start <= stop <= held:
            raise Invalid(f"tokens {start} to {stop} of {id!r} were asked for, it has {held}")
        geometry = self.geometry
        shape = (stop - start, geometry.kv_heads, geometry.head_dim)
        found = []
        for name in ["k"] if geometry.is_mla else ["k", "v"]:
            room: Any = numpy.empty(shape, BITS.get(geometry.dtype, geometry.dtype))
            self._read_tokens(id, layer, name, start, room)
            found.append(typed(room, geometry.dtype, raw))
        return found[0], found[1] if len(found) > 1 else None

    def _bits(self, array: Any, name: str) -> Any:
        """The elements of K or V in C order, as an array of the right shape."""
        import numpy

        geometry = self.geometry
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(array, torch.Tensor):
            given = str(array.dtype).removeprefix("torch.")
            dense = array.detach().cpu().contiguous()
            if given in BITS:
                dense = dense.view(getattr(torch, BITS[given]))
            array = dense.numpy()
        else:
            array = numpy.asarray(array)
            given = array.dtype.name
        if given not in (geometry.dtype, BITS.get(geometry.dtype)):
            words = f"{name} has elements of {given}, the cache has {geometry.dtype}: convert it first"
            raise Invalid(words)
        heads, dim = geometry.kv_heads, geometry.head_dim
        if geometry.is_mla and array.ndim == 2:
            array = array[:, None, :]
        if array.shape[1:] != (heads, dim) or array.ndim != 3:
            raise Invalid(f"{name} has the shape {array.shape}; use (tokens, {heads}, {dim})")
        # Types that NumPy does not know cannot be had as a buffer.
        bits = BITS.get(geometry.dtype, geometry.dtype)
        return numpy.ascontiguousarray(array).view(bits)


def host(array: Any) -> Any:
    """An array that can be written in place."""
    # Who gives a tensor has imported torch.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.is_cuda:
            words = "a table is filled on the host: pass a pinned tensor, then copy it to the GPU with copy_"
            raise Invalid(words)
        return array.numpy()
    return array


def floats(scores: Any) -> Any:
    """Floats of any width as an array of float32; anything else as it is."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(scores, torch.Tensor) and scores.is_floating_point():
        return scores.detach().float().cpu().numpy()
    if numpy is not None and isinstance(scores, numpy.ndarray) and scores.dtype.kind == "f":
        return scores.astype("float32", copy=False)
    return scores


def typed(array: "numpy.ndarray[Any, Any]", name: str, raw: bool) -> "numpy.ndarray[Any, Any]":
    """An array over the same memory with elements of this type, or their bits."""
    if raw:
        return array.view(f"uint{8 * array.dtype.itemsize}")
    if name not in BITS:
        return array
    try:
        ml_dtypes = import_module("ml_dtypes")
    except ImportError:
        words = f"NumPy has no {name}; install ml_dtypes, use torch.from_dlpack(view), or ask for raw=True"
        raise Invalid(words) from None
    return array.view(getattr(ml_dtypes, name))
