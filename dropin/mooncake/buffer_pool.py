"""`BufferPool`, where callers look for it. With Mooncake `import mooncake` has imported the store, too."""

from .store import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
