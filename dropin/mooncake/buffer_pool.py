"""`BufferPool`, where callers look for it."""

from ._pool import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
