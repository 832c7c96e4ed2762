"""The transfer engine of Mooncake's, as far as consumers of the store touch it: they import it.

There is no engine of ours beneath these names. Making one says so, at once and in words.
"""

from enum import IntEnum

SUPPORT_CUDA = False

_NONE = (
    "Mooncrate has no transfer engine: `mooncake.store` moves values by itself. A connector that moves memory "
    "between two engines (a prefill/decode connector, for example) needs Mooncake's own package"
)


class TransferOpcode(IntEnum):
    """Which way bytes would move."""

    Read = 0
    Write = 1


class TransferNotify:
    """A message that would be sent along with a transfer."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg


class TransferEngine:
    """Not there: every way to get one raises NotImplementedError."""

    TransferOpcode = TransferOpcode

    def __init__(self, *_: object, **__: object) -> None:
        raise NotImplementedError(_NONE)
