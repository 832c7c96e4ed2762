"""The store under the module that early vLLM integrations import."""

from mooncake._preview import PreviewStore as MooncakeDistributedStore

__all__ = ["MooncakeDistributedStore"]
