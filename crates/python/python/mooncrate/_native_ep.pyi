"""What `mooncrate._native` has for the expert exchange; there is no module of this name, only this part of the stubs."""

from os import PathLike
from typing import Any, Self, final

import numpy
from typing_extensions import Buffer

# On a GPU: address, bytes, and whether they are known to be there; otherwise the driver is asked.
_Memory = Buffer | tuple[int, int, bool]

@final
class EpView:
    """Memory of a communicator as a tensor: `torch.from_dlpack(view)`, `numpy.asarray(view)`, or, on a GPU,
    `__cuda_array_interface__`. The memory stays until the last array of it is gone, also after `close`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """How many along each dimension; the elements lie in C order."""

    @property
    def dtype(self) -> str:
        """The name of the element type."""

    @property
    def data_ptr(self) -> int:
        """The address of the first element. It never changes."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...

@final
class EpRank:
    """What stands behind `Communicator`. Memory is an object with the buffer protocol, or, on a GPU, its address,
    its bytes and whether they are known to be there. `stream` is a handle; on the host it is not looked at."""

    def __new__(
        cls,
        *,
        path: str | PathLike[str],
        rank: int,
        world: int,
        tokens_max: int,
        top_k: int,
        hidden: int,
        experts: int,
        rows_max: int | None,
        payload: str,
        inter: int | None,
        blocks: int | None,
        backend: str,
        device: int,
        timeout: float,
        first_timeout: float,
        join_timeout: float,
    ) -> Self: ...
    @property
    def closed(self) -> bool: ...
    def bounds(self) -> tuple[int, int]: ...
    def views(self) -> tuple[EpView, EpView, EpView]: ...
    def dispatch(
        self,
        x: _Memory,
        ids: _Memory,
        weights: _Memory,
        tokens: int,
        *,
        wide: bool,
        count: _Memory | None,
        layer: int,
        stream: int,
    ) -> bool: ...
    def combine(self, y: _Memory, out: _Memory | None, *, stream: int) -> None: ...
    def forward(
        self,
        x: _Memory,
        ids: _Memory,
        weights: _Memory,
        tokens: int,
        w13: _Memory,
        w2: _Memory,
        out: _Memory | None,
        *,
        wide: bool,
        count: _Memory | None,
        layer: int,
        stream: int,
    ) -> bool: ...
    def check(self) -> None: ...
    def finish(self, streams: list[int]) -> None: ...
    def notice(self) -> tuple[int, ...]: ...
    def reset(self, replays: int | None) -> None: ...
    def epoch(self) -> int: ...
    def close(self, together: bool = True) -> None: ...
