"""Enumerations and descriptors, as callers print, compare and convert them."""

from dataclasses import dataclass
from enum import IntEnum


class ObjectDataType(IntEnum):
    """What a value is, as a label."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(IntEnum):
    """What a put does with the soft pin of its object."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicaStatus(IntEnum):
    """The state of a replica. Those that are told of are COMPLETE: others cannot be found."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class TaskType(IntEnum):
    """What a task does."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class TaskStatus(IntEnum):
    """How far a task is. FAILED comes before SUCCESS."""

    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3


@dataclass(frozen=True)
class Descriptor:
    """The memory of a replica. The address is the offset in its segment: nobody gets pointers."""

    size: int
    buffer_address: int
    transport_endpoint: str


@dataclass(frozen=True)
class MemoryDescriptor:
    """A replica in memory."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True)
class DiskDescriptor:
    """A replica on a disk."""

    file_path: str
    object_size: int


@dataclass(frozen=True)
class ReplicaDescriptor:
    """A replica: where it is, and whether it can be read. One on the disk of a store has neither descriptor:
    its owner loads it for whoever asks."""

    status: ReplicaStatus
    _memory: MemoryDescriptor | None = None
    _disk: DiskDescriptor | None = None
    _local_disk: bool = False

    def is_memory_replica(self) -> bool:
        return self._memory is not None

    def is_disk_replica(self) -> bool:
        return self._disk is not None

    def is_local_disk_replica(self) -> bool:
        return self._local_disk

    def get_memory_descriptor(self) -> MemoryDescriptor:
        if self._memory is None:
            raise RuntimeError("this replica is not in memory; ask is_memory_replica() first")
        return self._memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        if self._disk is None:
            raise RuntimeError("this replica is not on a disk; ask is_disk_replica() first")
        return self._disk


@dataclass
class QueryTaskResponse:
    """A copy or move task, as it is now."""

    id: tuple[int, int]
    type: TaskType
    status: TaskStatus
    created_at_ms_epoch: int
    last_updated_at_ms_epoch: int
    assigned_client: str
    message: str
