"""Mooncrate under the names of Mooncake: programs that import `mooncake.store` need no change.

Importing refuses to go on where another distribution owns this package, too. As `mooncrate_mooncake` it is no
rival of anybody: that is how `mooncrate-beside` installs it.
"""

from pkgutil import extend_path

from ._absent import offer
from ._guard import refuse_to_shadow

if __name__ == "mooncake":
    refuse_to_shadow()
    offer()

# Other distributions may add modules of their own beside ours.
__path__ = extend_path(__path__, __name__)

from .buffer_pool import BufferPool, RegisteredBufferPool  # noqa: E402  (after the guard)

__all__ = ["BufferPool", "RegisteredBufferPool"]
