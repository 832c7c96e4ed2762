"""The store that people use: the native one."""

from mooncrate._native import Store

__all__ = ["Store"]
