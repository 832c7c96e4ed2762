"""`BufferPool`: memory for zero-copy calls, lent and taken back."""


class BufferPool:
    """A pool of registered memory."""


RegisteredBufferPool = BufferPool
