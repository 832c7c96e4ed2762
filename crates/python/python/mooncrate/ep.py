"""The expert exchange of a mixture of experts: tokens go to the ranks of their experts, and results come back.

    from mooncrate.ep import Communicator

    # In each process of a torchrun, after torch.distributed.init_process_group():
    with Communicator(hidden=7168, experts=256, top_k=8, tokens_max=32) as ep:
        # rows [local_experts, rows_max, hidden], counts [local_experts]
        rows, counts = ep.dispatch(x, topk_ids, topk_weights, layer=layer)
        y = my_grouped_gemm(rows, counts)                         # the same layout, bf16
        out = ep.combine(y)                                       # [tokens, hidden]

On a GPU the calls are queued on torch's current stream, or on `stream=`; they neither wait nor allocate, and the
memory that they leave results in stays where it is, so a layer can be captured by `torch.cuda.graph`. Whether a step
has failed is told by `finish` and `check`, and by the next call. With `backend="host"` the ranks exchange through host
memory, and a call has ended when it returns.

What must stay true: what is wrong with an argument is found before anything is sent, so the layer can go on. Neither
torch nor NumPy is imported before it is needed. Arrays of results are the memory of the communicator itself, which the
next layer overwrites.
"""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from mooncrate._native import EpRank, EpView, dlpack_memory, dlpack_tensor
from mooncrate.devices import CUDA, HOST, LEGACY, PINNED, cuda_interface, exported, handle, torch_size
from mooncrate.errors import Closed, Invalid, Unavailable
from mooncrate.nano import current_device, meeting_place, membership

if TYPE_CHECKING:
    import tempfile
    from os import PathLike

__all__ = ["Closed", "Communicator", "EpView", "Invalid", "Received", "Unavailable"]

# Ids of experts are either.
IDS = "int32 or int64"
# What other names each element type has: of torch; of NumPy, which has no bf16; of a `__cuda_array_interface__`; of
# DLPack.
TORCH = {IDS: ("int32", "int64")}
NUMPY = {"bfloat16": ("bfloat16", "uint16", "void16"), "uint8": ("uint8",), IDS: ("int32", "int64")}
TYPESTR = {
    "bfloat16": ("<u2", "<V2", "|V2"), "uint8": ("|u1",), "int32": ("<i4",), IDS: ("<i4", "<i8"), "float32": ("<f4",),
}  # fmt: skip
DLPACK = {
    "bfloat16": [(4, 16, 1), (1, 16, 1)], "uint8": [(1, 8, 1)], "int32": [(0, 32, 1)], IDS: [(0, 32, 1), (0, 64, 1)],
    "float32": [(2, 32, 1)],
}  # fmt: skip


class Received(NamedTuple):
    """Tokens that came for the experts of this rank: memory of the communicator, which the next dispatch overwrites."""

    rows: Any
    """`[local_experts, rows_max, hidden]` of bf16, or `[local_experts, rows_max, token_bytes]` of uint8 for fp8."""
    counts: Any
    """`[local_experts]` of int32: how many rows each expert has. Rows after them are unspecified."""


class Array(NamedTuple):
    """An argument: what the native half takes, and what results should look like."""

    # An object with the buffer protocol; on a GPU (address, bytes, whether torch vouches for them).
    memory: Any
    shape: tuple[int, ...]
    # The stream that it is in the order of, if it says so.
    stream: int | None
    # "torch", a dtype of NumPy, or None.
    family: Any
    # Whatever keeps the memory during the call.
    owner: Any = None

    @property
    def nbytes(self) -> int:
        size: int = self.memory[1] if isinstance(self.memory, tuple) else self.memory.nbytes
        return size


class Batch(NamedTuple):
    """The arguments of a dispatch."""

    x: Array
    ids: Array
    # Whether they are int64.
    wide: bool
    weights: Array
    # Device memory that says how many tokens count, or None.
    count: Any
    # How many there are, or fit.
    tokens: int
    stream: int


class Communicator:
    """A rank of the exchange. All ranks make one, with the same arguments; it returns when all have.

    tokens_max: the most tokens of a rank in a step; each step may have any number up to it, also none.
    top_k: experts of each token. hidden: elements of a token, a multiple of 8.
    experts: of all ranks together; each rank has an equal share, in order.
    rows_max: rows that one expert has room for; otherwise as many as can come.
    payload: "bf16", or "fp8": tokens of `token_bytes` bytes, `[hidden]` e4m3, `[hidden / 128]` f32 scales, zeros.
    inter: elements between the two products of an expert: makes room for `moe_forward`.
    blocks: on a GPU, most blocks of the kernels that go over the rows of all ranks; otherwise six for each
        multiprocessor, shared by the ranks that this GPU has. Results do not depend on it.
    rank, world: who this is, of how many (2 to 8). Where torch.distributed is initialised they are its own;
        otherwise given, or from the environment (RANK, WORLD_SIZE).
    path: a Unix socket where the ranks meet, in a folder that only they may write to; rank 0 makes it. With
        torch.distributed rank 0 finds a path and tells the others.
    backend: "cuda", or "host" for processes on host memory.
    device: the number of the GPU; otherwise torch's current one, or 0. Several ranks may share one.
    timeout, first_timeout, join_timeout: seconds that a rank waits for the others in a phase, in the first phase
        after a start or a reset, and for the others to make, reset or close their communicators.
    """

    def __init__(
        self,
        *,
        tokens_max: int = 32,
        top_k: int = 8,
        hidden: int = 7168,
        experts: int = 256,
        rows_max: int | None = None,
        payload: Literal["bf16", "fp8"] = "bf16",
        inter: int | None = None,
        blocks: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        path: "str | PathLike[str] | None" = None,
        backend: Literal["cuda", "host"] = "cuda",
        device: int | None = None,
        timeout: float = 5.0,
        first_timeout: float = 60.0,
        join_timeout: float = 60.0,
    ) -> None:
        self._rank, self._world = membership(rank, world)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if path is None:
            path, self._folder = meeting_place(self._rank, self._world, "mooncrate-ep-")
        if device is None:
            device = current_device() if backend == "cuda" else 0
        try:
            self._native = EpRank(
                path=path, rank=self._rank, world=self._world, tokens_max=tokens_max, top_k=top_k, hidden=hidden,
                experts=experts, rows_max=rows_max, payload=payload, inter=inter, blocks=blocks, backend=backend,
                device=device, timeout=timeout, first_timeout=first_timeout, join_timeout=join_timeout,
            )  # fmt: skip
        except BaseException:
            self._tidy()
            raise
        self._device = device if backend == "cuda" else None
        self._shape = (tokens_max, top_k, hidden, experts)
        self._payload, self._inter = payload, inter
        self._rows_max, self._token_bytes = self._native.bounds()
        self._views = self._native.views()
        # Arrays over the views, by family: made once, so that a call makes none.
        self._shown: dict[Any, tuple[Any, Any, Any]] = {None: self._views}
        # Tokens of the layer that is under way.
        self._sent: int | None = None
        # The stream of the last dispatch, and whatever keeps it: a layer goes on where it began.
        self._began: int | None = None
        # Streams of the last layers, plain and recorded.
        self._keeps: list[Any] = [None, None]

    # A layer

    def dispatch(
        self,
        x: Any,
        topk_ids: Any,
        topk_weights: Any,
        *,
        layer: int,
        tokens: Any = None,
        stream: Any = None,
    ) -> Received:
        """Sends the tokens of this rank to the ranks of their experts, and gives those that came here.

        x: `[tokens, hidden]` of bf16 (of NumPy, ml_dtypes' bfloat16 or uint16, the bits), or `[tokens, token_bytes]`
            of uint8 for fp8. topk_ids: `[tokens, top_k]` of int32 or int64; -1: not routed, and its weight is not
            read. topk_weights: the same of float32. All of them contiguous, in the memory of the backend.
        layer: which layer of the model this is, 0 to 65,535. Ranks that come to different layers fail, on all
            ranks, instead of mixing their tokens; so name each one.
        tokens: on a GPU, an int32 tensor of one element that says how many of `tokens_max` rows count: it is read
            when the work runs, so a graph can be replayed with any number.
        stream: a handle, or a stream of torch or CuPy; otherwise torch's current one for tensors of torch, the one
            that an array names, or the default stream. It lives until the next layer begins, and, unless this one is
            captured, until the next one that is not.

        A batch on a GPU that has room for fewer than `tokens_max` tokens is copied there first.
        """
        batch = self._batch(x, topk_ids, topk_weights, tokens, stream)
        recorded = self._native.dispatch(
            batch.x.memory, batch.ids.memory, batch.weights.memory, batch.tokens,
            wide=batch.wide, count=batch.count, layer=layer, stream=batch.stream,
        )  # fmt: skip
        self._sent = batch.tokens
        self._began, self._keeps[recorded] = batch.stream, stream
        rows, counts, _ = self._results(batch.x.family)
        return Received(rows, counts)

    def combine(self, y: Any, *, out: Any = None, stream: Any = None) -> Any:
        """Sends what the experts of this rank made of the rows to the ranks of the tokens, and gives the weighted sums
        for the tokens of this rank, `[tokens, hidden]` of bf16.

        y: `[local_experts, rows_max, hidden]` of bf16; rows after the counts are not read. `rows` itself may be it.
        out: `[tokens, hidden]`, or `[tokens_max, hidden]`, of bf16: the result is there. Otherwise it is in memory of
            the communicator, which the next layer overwrites, on another stream after what was queued on this one
            until its dispatch; for neither torch nor NumPy with `tokens_max` rows.
        stream: that of the dispatch, also where neither it nor an array names one.
        """
        if self._sent is None:
            # A dispatch that failed has said why, and says it again.
            self._native.check()
            raise Invalid("nothing was dispatched: call dispatch before combine")
        asked = self._asked(stream, (y, out))
        ready = asked or self._began or LEGACY
        results = self._array("y", y, "bfloat16", (self.local_experts, self._rows_max, self.hidden), ready)
        room = None if out is None else self._out(out, self._sent, ready)
        order = self._order([results] if room is None else [results, room], asked, ready)
        self._native.combine(results.memory, room and room.memory, stream=order)
        return self._combined(out, results.family)

    def moe_forward(
        self,
        x: Any,
        topk_ids: Any,
        topk_weights: Any,
        w13: Any,
        w2: Any,
        *,
        layer: int,
        out: Any = None,
        tokens: Any = None,
        stream: Any = None,
    ) -> Any:
        """A whole layer with plain experts, `w2 · (silu(gate · x) × (up · x))`. A backend gives the same bits in every
        run; those of a GPU differ from the host's within the rounding of bf16, because tensor cores add up the products
        in another order. The communicator was made with `inter`.

        w13: `[local_experts, 2, inter, hidden]` of bf16, the gate and what it is multiplied with. w2: `[local_experts,
        hidden, inter]`. All others are as in `dispatch` and `combine`.
        """
        if self._inter is None:
            raise Invalid("there is no memory for experts here: make the Communicator with inter=…")
        batch = self._batch(x, topk_ids, topk_weights, tokens, stream)
        local, inter = self.local_experts, self._inter
        first = self._array("w13", w13, "bfloat16", (local, 2, inter, self.hidden), batch.stream)
        second = self._array("w2", w2, "bfloat16", (local, self.hidden, inter), batch.stream)
        room = None if out is None else self._out(out, batch.tokens, batch.stream)
        recorded = self._native.forward(
            batch.x.memory, batch.ids.memory, batch.weights.memory, batch.tokens, first.memory, second.memory,
            room and room.memory, wide=batch.wide, count=batch.count, layer=layer, stream=batch.stream,
        )  # fmt: skip
        self._sent = batch.tokens
        self._began, self._keeps[recorded] = batch.stream, stream
        return self._combined(out, batch.x.family)

    def _combined(self, out: Any, family: Any) -> Any:
        sent, self._sent = self._sent, None
        if out is not None:
            return out
        own = self._results(family)[2]
        return own if family is None else own[:sent]

    # The group

    def check(self) -> None:
        """Raises why this rank has failed, if it has; of a GPU, what it has told so far. It waits for no rank and for
        no stream, but for a call of another thread that is under way."""
        self._native.check()

    def finish(self, stream: Any = None) -> None:
        """Waits until what is queued on the stream has ended, and raises why this rank has failed, if it has. It also
        notices processes that have ended, so that nobody waits for them until the timeout.

        stream: otherwise that of the last layer, and torch's current one, where graphs may have been replayed.
        """
        asked = self._asked(stream, ())
        streams = [asked] if asked else [self._began, self._current()]
        self._native.finish(list(dict.fromkeys(number for number in streams if number)) or [LEGACY])

    def notice(self) -> tuple[int, ...]:
        """Ranks whose processes have ended. On a GPU, waits for them end at once, where otherwise they end after the
        timeout: for those who wait for the stream without `finish`, now and then, in the thread that makes the calls:
        it waits for a call of another thread that is under way."""
        return self._native.notice()

    def reset(self, stream: Any = None) -> None:
        """After a failure: all ranks call it, forget the failure and the layer that was under way, and begin again.
        Graphs stay valid. If a rank is gone, make new communicators.

        stream: says that all replays of graphs with layers have ended, or are on this stream. Otherwise a communicator
            with such graphs waits for everything on its GPU: layers of other communicators that wait for a rank in this
            reset then fail by their timeout.
        """
        self._native.reset(self._asked(stream, ()))
        self._sent = self._began = None
        self._keeps = [None, None]

    def close(self) -> None:
        """Leaves the exchange, together with all other ranks: those that come to another layer instead are told at
        once. What is queued is done before; if it fails, and no call has raised that, this one does when it has left.
        Graphs that were captured from it must not be replayed any more. Again, it does nothing."""
        try:
            self._native.close()
        finally:
            self._tidy()

    def _tidy(self) -> None:
        self._began = None
        self._keeps = [None, None]
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The others may never come to their end: they see that this rank is gone.
        self._native.close(together=False)
        self._tidy()

    def __repr__(self) -> str:
        if self._native.closed:
            return "<mooncrate.ep.Communicator, closed>"
        where = "host" if self._device is None else f"cuda:{self._device}"
        return f"<mooncrate.ep.Communicator, rank {self._rank} of {self._world}, {where}>"

    @property
    def rank(self) -> int:
        """Who this is."""
        return self._rank

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self._world

    @property
    def device(self) -> int | None:
        """The number of the GPU of this rank; None: it is on the host."""
        return self._device

    @property
    def tokens_max(self) -> int:
        """The most tokens of a rank in a step."""
        return self._shape[0]

    @property
    def top_k(self) -> int:
        """Experts of each token."""
        return self._shape[1]

    @property
    def hidden(self) -> int:
        """Elements of a token."""
        return self._shape[2]

    @property
    def experts(self) -> int:
        """Experts of all ranks; those of this one are `rank * local_experts` and the following."""
        return self._shape[3]

    @property
    def local_experts(self) -> int:
        """Experts of each rank."""
        return self._shape[3] // self._world

    @property
    def rows_max(self) -> int:
        """Rows that one expert has room for."""
        return self._rows_max

    @property
    def token_bytes(self) -> int:
        """Bytes of a token on its way to the experts."""
        return self._token_bytes

    @property
    def epoch(self) -> int:
        """How often the group was reset. On a GPU this waits for a small copy."""
        return self._native.epoch()

    # Memory

    def _batch(self, x: Any, ids: Any, weights: Any, tokens: Any, stream: Any) -> Batch:
        bf16 = self._payload == "bf16"
        width = self.hidden if bf16 else self._token_bytes
        asked = self._asked(stream, (x, ids, weights, tokens))
        ready = asked or LEGACY
        given = self._array("x", x, "bfloat16" if bf16 else "uint8", (None, width), ready)
        sent = given.shape[0]
        if sent > self.tokens_max:
            words = f"x has {sent} tokens, tokens_max is {self.tokens_max}"
            raise Invalid(f"{words}; send them in several steps, or make the communicators for more")
        routes = (sent, self.top_k)
        arrays = [
            given,
            self._array("topk_ids", ids, IDS, routes, ready),
            self._array("topk_weights", weights, "float32", routes, ready),
        ]
        count = None
        if tokens is not None:
            if self._device is None:
                raise Invalid('tokens is for backend="cuda"; on the host give x[:tokens], and so on')
            if sent != self.tokens_max:
                raise Invalid(f"with tokens, x has room for all {self.tokens_max} rows that may count, not {sent}")
            arrays.append(self._array("tokens", tokens, "int32", None, ready))
            if arrays[3].shape not in ((), (1,)):
                raise Invalid(f"tokens has the shape {arrays[3].shape}; use one element")
            count = arrays[3].memory
        order = self._order(arrays, asked, ready)
        wide = arrays[1].nbytes == 8 * sent * self.top_k
        return Batch(arrays[0], arrays[1], wide, arrays[2], count, sent, order)

    def _out(self, out: Any, sent: int, ready: int) -> Array:
        room = self._array("out", out, "bfloat16", (None, self.hidden), ready, written=True)
        if room.shape[0] not in (sent, self.tokens_max):
            words = f"out has the shape {room.shape}; use ({sent}, {self.hidden})"
            raise Invalid(f"{words}, or ({self.tokens_max}, {self.hidden})")
        return room

    def _asked(self, stream: Any, given: tuple[Any, ...]) -> int | None:
        """The stream that the caller names: in words, or by tensors of torch. The default stream has two names, 0 and
        LEGACY; here it has the second one, so that streams can be compared."""
        if self._device is None:
            if stream is not None:
                raise Invalid('stream is for backend="cuda"; on the host calls have ended when they return')
            return None
        number = handle(stream)
        if number is not None:
            return number or LEGACY
        torch = sys.modules.get("torch")
        if torch is not None and any(isinstance(array, torch.Tensor) for array in given):
            return self._current()
        return None

    def _current(self) -> int | None:
        """The stream that torch works in, if it does."""
        torch = sys.modules.get("torch")
        if self._device is None or torch is None or not torch.cuda.is_initialized():
            return None
        current: int = torch.cuda.current_stream(self._device).cuda_stream
        return current or LEGACY

    def _order(self, arrays: list[Array], asked: int | None, otherwise: int) -> int:
        """The stream that work is queued on: `otherwise` where neither the caller nor an array names one."""
        if asked is not None:
            return asked
        named = {array.stream or LEGACY for array in arrays if array.stream is not None}
        if len(named) > 1:
            raise Invalid("the arrays are in the order of different streams; give stream, and let it wait for them")
        return named.pop() if named else otherwise

    def _results(self, family: Any) -> tuple[Any, Any, Any]:
        """The memory of the communicator as arrays of this family."""
        shown = self._shown.get(family)
        if shown is None:
            if family == "torch":
                torch = sys.modules["torch"]
                rows, counts, out = (torch.from_dlpack(view) for view in self._views)
            else:
                import numpy

                rows, counts, out = (numpy.asarray(view) for view in self._views)
                # Two bytes without a meaning: as the caller has them, or their bits.
                bits = family if family.itemsize == 2 else numpy.dtype("u2")
                rows, out = (array.view(bits) if array.dtype.kind == "V" else array for array in (rows, out))
            shown = self._shown[family] = rows, counts, out
        return shown

    def _array(
        self,
        name: str,
        given: Any,
        wanted: str,
        shape: tuple[int | None, ...] | None,
        ready: int,
        *,
        written: bool = False,
    ) -> Array:
        """An argument that has this element type and this shape (None: any number), in the memory of the backend.
        Who shows it by DLPack sees to it that it can be used on the stream `ready`."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(given, torch.Tensor):
            array = self._of_torch(torch, name, given, wanted)
        elif getattr(given, "__cuda_array_interface__", None) is not None:
            array = self._of_interface(name, given, wanted, written)
        elif self._device is not None and hasattr(given, "__dlpack__") and not hasattr(given, "__array_interface__"):
            array = self._of_dlpack(name, given, wanted, ready, written)
        else:
            array = self._of_numpy(name, given, wanted, written)
        if shape is None:
            return array
        fits = len(array.shape) == len(shape)
        if not fits or any(b is not None and a != b for a, b in zip(array.shape, shape, strict=True)):
            use = ", ".join("tokens" if count is None else str(count) for count in shape)
            raise Invalid(f"{name} has the shape {array.shape}; use ({use})")
        return array

    def _check_place(self, name: str, device: int | None) -> None:
        """Refuses memory of another place; None: the host."""
        if device == self._device:
            return
        there = "the host" if device is None else f"GPU {device}"
        if self._device is None:
            way = f'make the communicators with backend="cuda", or copy {name} to the host'
            raise Invalid(f"{name} is on {there}, this communicator on the host; {way}")
        raise Invalid(f"{name} is on {there}, this communicator on GPU {self._device}; copy {name} there")

    def _of_torch(self, torch: Any, name: str, tensor: Any, wanted: str) -> Array:
        has = str(tensor.dtype).removeprefix("torch.")
        kinds = TORCH.get(wanted, (wanted,))
        if has not in kinds:
            raise Invalid(f"{name} has elements of {has}; give {name}.to(torch.{kinds[0]})")
        if tensor.device.type not in ("cpu", "cuda"):
            raise Invalid(f"{name} is on {tensor.device}; give a tensor on a CUDA GPU or on the host")
        self._check_place(name, tensor.device.index if tensor.device.type == "cuda" else None)
        if not tensor.is_contiguous():
            raise Invalid(f"{name} is not contiguous; give {name}.contiguous()")
        size = torch_size(torch, tensor)
        if self._device is None:
            memory = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        else:
            memory = tensor.data_ptr(), size, True
        return Array(memory, tuple(tensor.shape), None, "torch")

    def _of_interface(self, name: str, given: Any, wanted: str, written: bool) -> Array:
        interface = given.__cuda_array_interface__
        if self._device is None:
            self._check_place(name, 0)
        if interface["typestr"] not in TYPESTR[wanted]:
            raise Invalid(f"{name} has elements of {interface['typestr']}; give {wanted}")
        try:
            address, size, stream = cuda_interface(interface, written)
        except Invalid as error:
            raise Invalid(f"{name}: {error}") from None
        return Array((address, size, False), tuple(interface["shape"]), stream, None)

    def _of_dlpack(self, name: str, given: Any, wanted: str, ready: int, written: bool) -> Array:
        kind, index = given.__dlpack_device__()
        self._check_place(name, index if kind == CUDA else None)
        capsule = exported(given, {"stream": ready})
        kind, shape = dlpack_tensor(capsule)
        if kind not in DLPACK[wanted]:
            raise Invalid(f"{name} has elements of another type (DLPack's {kind}); give {wanted}")
        address, size, contiguous, readonly = dlpack_memory(capsule)
        if not contiguous:
            raise Invalid(f"{name} is not contiguous; give a copy in C order")
        if written and readonly:
            raise Invalid(f"{name} is read-only; give an array that may be written")
        return Array((address, size, False), tuple(shape), ready, None, (capsule, given))

    def _of_numpy(self, name: str, given: Any, wanted: str, written: bool) -> Array:
        import numpy

        if hasattr(given, "__dlpack_device__") and given.__dlpack_device__()[0] not in (HOST, PINNED):
            self._check_place(name, given.__dlpack_device__()[1])
        if not isinstance(given, numpy.ndarray):
            if not hasattr(given, "__array_interface__"):
                kind = type(given).__name__
                raise Invalid(f"{name} is of type {kind}; give an array of NumPy or a tensor of torch")
            given = numpy.asarray(given)
        self._check_place(name, None)
        has = given.dtype.name
        if has not in NUMPY.get(wanted, (wanted,)) or not given.dtype.isnative:
            also = " (ml_dtypes), or its bits as uint16" if wanted == "bfloat16" else ""
            raise Invalid(f"{name} has elements of {given.dtype}; give {wanted}{also}")
        if not given.flags.c_contiguous:
            raise Invalid(f"{name} is not contiguous; give numpy.ascontiguousarray({name})")
        if written and not given.flags.writeable:
            raise Invalid(f"{name} is read-only; give an array that may be written")
        bits = given.view(numpy.uint16) if wanted == "bfloat16" and given.ndim else given
        family = given.dtype if given.dtype.kind != "V" or has == "bfloat16" else numpy.dtype("u2")
        return Array(bits, tuple(given.shape), None, family)
