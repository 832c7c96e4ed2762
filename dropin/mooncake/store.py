"""The store: one class with the calls of all tiers, and the types that go with it.

The calls live in small modules by what they are about; this one puts them together.
"""

from mooncrate._native import BufferHandle

from ._allocator import (
    MooncakeHostMemAllocator,
    bind_to_numa_node,
    get_alloc_func_addr,
    get_free_func_addr,
)
from ._dummy import DummyCalls
from ._enums import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    ObjectDataType,
    QueryTaskResponse,
    ReplicaDescriptor,
    ReplicaStatus,
    SoftPinAction,
    TaskStatus,
    TaskType,
)
from ._parallel import ParallelAxis, ReadTarget, TensorParallelism
from ._pool import (
    BufferLease,
    BufferLeaseView,
    BufferPool,
    RegisteredBufferLease,
    RegisteredBufferLeaseView,
    RegisteredBufferPool,
)
from ._ranges import SessionCalls
from ._replicas import ReplicaCalls
from ._replicate import ReplicateConfig
from ._segments import SegmentCalls
from ._tensor import TensorCalls
from ._torch import deserialize_tensor as _deserialize_tensor
from ._torch import serialize_tensor as _serialize_tensor
from ._torch import tensor_metadata_size as _tensor_metadata_size


class MooncakeDistributedStore(DummyCalls, SessionCalls, ReplicaCalls, SegmentCalls, TensorCalls):
    """A store of a cluster: codes instead of exceptions, addresses instead of buffers."""


# Callers also know the members by their names alone; where two share one, the later wins.
for _enum in (ObjectDataType, ReplicaStatus, TaskType, TaskStatus):
    globals().update(_enum.__members__)

__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
]
