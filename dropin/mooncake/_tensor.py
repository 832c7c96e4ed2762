"""All calls of the store that know tensors, put together."""

from ._parallel_reads import ParallelReads
from ._parallel_writes import ParallelWrites
from ._safetensors import FileCalls
from ._tp import TpCalls


class TensorCalls(TpCalls, ParallelWrites, ParallelReads, FileCalls):
    """Tensors: plain, in shards, in layouts, in files."""
