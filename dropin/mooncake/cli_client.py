"""The client under the module that its console script has there."""

from ._absent import getter
from ._client import main

__all__ = ["main"]
__getattr__ = getter(__name__)
