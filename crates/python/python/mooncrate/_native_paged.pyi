"""What `mooncrate._native` has for paged caches; there is no module of this name, only this part of the stubs."""

from collections.abc import Iterable, Sequence
from typing import Any, Self, final, overload

import numpy
from typing_extensions import Buffer, disjoint_base

from mooncrate.stats import PagedStats

@final
class Geometry:
    """What a KV cache stores for each token, and how many tokens make a block.

    layers, kv_heads: of this rank, after the split over tensor-parallel ones. head_dim: elements of a vector.
    dtype: "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2" or "int8"; torch's and NumPy's
        own are understood.
    """

    def __new__(
        cls,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        block_tokens: int = 16,
        dtype: Any = "float16",
    ) -> Self: ...
    @staticmethod
    def mla(
        *,
        layers: int,
        latent_dim: int,
        rope_dim: int = 0,
        block_tokens: int = 16,
        dtype: Any = "float16",
    ) -> Geometry:
        """What a model with multi-head latent attention stores: one vector per token and layer, no V."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int:
        """Elements of one head's vector; for MLA of the whole latent vector."""

    @property
    def block_tokens(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def is_mla(self) -> bool: ...
    @property
    def block_bytes(self) -> int:
        """Bytes of a block, all layers, K and V."""

    @property
    def token_bytes(self) -> int: ...
    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PagedView:
    """Memory of a paged cache as a tensor, in place. The blocks stay with their sequence until the view and
    every array made of it are gone. Blocks that were published are shown read-only; who writes to others
    leaves them alone while anybody else reads or writes these tokens.

    Memory of a GPU is shown by `__cuda_array_interface__` (`torch.as_tensor`, CuPy, Numba) and by DLPack
    (`torch.from_dlpack`); bfloat16 and eight-bit floats by DLPack only. Calls of the cache have ended when
    they return. Kernels of the caller must have ended (`torch.cuda.synchronize()`, or an event) before
    he calls the cache to read, publish or free what they touch."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]:
        """Elements, not bytes, from one to the next along each dimension."""

    @property
    def dtype(self) -> str: ...
    @property
    def data_ptr(self) -> int:
        """The address of the first element; of a GPU, if the memory lies there."""

    @property
    def readonly(self) -> bool:
        """Whether an array that is made now may only be read: a block of it was published."""

    @property
    def contiguous(self) -> bool: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]: ...
    def numpy(self, *, raw: bool = False) -> numpy.ndarray[Any, Any]:
        """An array over the same memory. With `raw` its elements are unsigned integers, the bits: for
        types that NumPy has not, unless ml_dtypes is installed. TypeError for memory of a GPU."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. AttributeError for memory of the host."""

    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: object | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """The memory as a tensor of another library, without a copy unless `copy=True`. BufferError for
        consumers that cannot be told that it is read-only, or of its type."""

@final
class BlockTables:
    """A table of block ids in an array of the caller, a row for each sequence; see `PagedCache.block_tables`."""

    def update(self, ids: Sequence[str]) -> int:
        """Makes row `n` that of sequence `ids[n]`, and pads the others; how many numbers were written."""

@disjoint_base
class PagedCache:
    """The KV cache of running sequences, in blocks, in memory of this process or of a GPU. Any thread may call.

    blocks: how many there are. blocks_max: how many `resize` may make of them; address space for all of
        these is reserved, memory is used when it is touched.
    layout: "nhd", "hnd", "token-major", "head-major", "block-first", "layer-block-head" or "mla"; NHD unless
        told otherwise, for an MLA geometry "mla".
    model: whose KV it is, with all that changes the values: weights, revision, quantisation.
    shard: which part of the model's KV it is: a `mooncrate.paged.Shard`. An engine that is not split, and shares
        blocks with nobody, needs none.
    policy: which cached blocks go first: "density" (learned from the requests), "lru", "fifo", "priority" or "importance".
    prefix_caching: whether sequences that begin with the same tokens share blocks.
    memory: "host"; "pinned", host memory that GPUs copy from and to at the speed of the link; or "cuda", memory
        of a GPU. Pinned and GPU memory is taken at once for `blocks_max` blocks. Both need NVIDIA's driver
        (Invalid says so, with the kind "no gpu"); nothing else of CUDA.
    device: the number of the GPU, for "pinned" and "cuda".
    """

    def __new__(
        cls,
        geometry: Geometry,
        blocks: int,
        *,
        layout: str | None = None,
        model: str = "",
        shard: tuple[int, int, int, int, int] | None = None,
        policy: str = "density",
        blocks_max: int | None = None,
        prefix_caching: bool = True,
        memory: str = "host",
        device: int = 0,
    ) -> Self: ...
    def allocate(
        self,
        id: str,
        tokens: Iterable[int] | Buffer | None = None,
        *,
        count: int | None = None,
        tenant: int = 0,
        adapter: str = "",
        cache_salt: str | bytes = "",
        extra_keys: Sequence[tuple[int, str | bytes]] | None = None,
        rank: int = 0,
        contiguous: bool = False,
    ) -> tuple[int, int]: ...
    def append(
        self,
        id: str,
        tokens: Iterable[int] | Buffer | None = None,
        *,
        count: int | None = None,
        extra_keys: Sequence[tuple[int, str | bytes]] | None = None,
    ) -> int: ...
    def block_keys(
        self,
        tokens: Iterable[int] | Buffer,
        *,
        tenant: int = 0,
        adapter: str = "",
        cache_salt: str | bytes = "",
        extra_keys: Sequence[tuple[int, str | bytes]] | None = None,
    ) -> list[bytes]: ...

    def publish(self, id: str, written: int) -> int:
        """The KV of the first `written` tokens is in place: the full blocks among them never change again,
        and others that begin with the same tokens find them. How many blocks these are."""

    def fork(self, id: str, child: str) -> None:
        """A second sequence with the same tokens: published blocks are shared, others copied."""

    def keep_important(
        self, id: str, scores: Iterable[float] | Buffer, keep: int
    ) -> tuple[int, int, int]: ...
    def positions(self, id: str) -> list[int]:
        """The position of each token in the text: 0, 1, 2 and so on, unless tokens were dropped."""

    def next_position(self, id: str) -> int:
        """The position that the next token will have: its tokens, and those that were dropped."""

    def free(self, id: str) -> None:
        """Ends a sequence. Its blocks go back with the last view of it; published ones stay cached until
        their room is needed."""

    def used_tokens(self, id: str) -> int: ...
    def token_place(self, id: str) -> tuple[int, int]:
        """Where the last token lies: which block of the sequence, and which slot in it."""

    def __contains__(self, id: str, /) -> bool: ...
    @overload
    def block_table(self, id: str, out: None = None, *, pad: int = -1) -> list[int]: ...
    @overload
    def block_table(self, id: str, out: Any, *, pad: int = -1) -> int:
        """The blocks of a sequence; with `out`, an array of int32, they are written there, `pad` behind
        them, and their number is the result."""

    def fill_block_tables(self, ids: Sequence[str], out: Any, *, pad: int = -1) -> None:
        """The blocks of each sequence as a row of `out`, an array of int32 of two dimensions, `pad` behind
        them and in rows that are left."""

    def block_tables(self, out: Any, *, pad: int = -1) -> BlockTables: ...
    def slot_mapping(self, items: Sequence[str | tuple[str, int, int]], out: Any) -> int:
        """For each token of each item, a sequence or (id, start, stop), `block * block_tokens + slot`, in an
        array of int64, -1 behind them; how many tokens."""

    def csr(self, ids: Sequence[str], indptr: Any, indices: Any, last_page_len: Any) -> int:
        """FlashInfer's page table in three arrays of int32. `last_page_len` says how many sequences fit;
        places that are left become empty sequences. How many pages there are."""

    def view(self, id: str, layer: int, half: str = "k", *, own: bool = False) -> PagedView:
        """`[heads, blocks, block tokens, dim]` of K or V, if the blocks lie in a row. With `own` only of
        blocks that are not published, which may be written."""

    def tokens_view(self, id: str, layer: int, half: str = "k", *, own: bool = False) -> PagedView:
        """`[heads, tokens, dim]`, where the layout has such a tensor: head-major or token-major, any with
        one head, or within one block."""

    def pages(self, layer: int, order: str | None = None) -> PagedView:
        """All blocks of a layer, for engines: `[blocks, 2, block tokens, heads, dim]`; in the order "hnd" heads
        come before tokens; for MLA `[blocks, block tokens, dim]`. It may be written, and it is the engine that
        must leave published blocks alone."""

    def _write_tokens(self, id: str, layer: int, name: str, start: int, source: Buffer) -> int: ...
    def _read_tokens(self, id: str, layer: int, name: str, start: int, target: Buffer) -> None: ...
    def resize(self, blocks: int) -> None:
        """Changes the number of blocks, up to `blocks_max`, while sequences use others. Busy if blocks
        beyond the new end are in use."""

    def stats(self) -> PagedStats: ...
    def metrics(self) -> str:
        """The numbers of `stats` as a page that Prometheus reads, in the OpenMetrics format."""

    def dump(self) -> str:
        """The cache in words, one line for each sequence."""

    def block_map(self) -> str:
        """A letter for each block: `.` free, `c` cached, `#` private to one sequence, a digit for so many
        sequences that use it, `+` for more than 9."""

    @property
    def geometry(self) -> Geometry: ...
    @property
    def layout(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def shard(self) -> tuple[int, int, int, int, int] | None:
        """Which part of the model's KV it holds, if that was said."""

    @property
    def memory(self) -> str:
        """Where its blocks lie: "host", "pinned" or "cuda"."""

    @property
    def device(self) -> int | None:
        """The GPU that its memory belongs to, or is pinned for; None in ordinary memory."""
