"""The master under the module that its console script has there."""

from ._absent import getter
from ._master import main

__all__ = ["main"]
__getattr__ = getter(__name__)
