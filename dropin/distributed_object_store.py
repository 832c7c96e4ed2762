"""The store under the name that the first benchmarks import."""

from mooncake._preview import PreviewStore as DistributedObjectStore

__all__ = ["DistributedObjectStore"]
