"""The shape of what `Store.stats` and `PagedCache.stats` give."""

from typing import TypedDict


class Counted(TypedDict):
    """What the master counted since it began to lead."""

    puts: int
    hits: int
    misses: int
    removed: int
    evicted: int
    evicted_bytes: int
    busy: int
    expired: int
    replaced: int


class Client(TypedDict):
    """What this store counted. Every get that found its value is in one of local, shared, stream;
    of all those, disk had to be loaded from a disk."""

    cached: int
    stale: int
    corrupt: int
    misses: int
    fallbacks: int
    local: int
    shared: int
    stream: int
    disk: int
    bytes_read: int
    puts: int
    bytes_written: int


class Stats(TypedDict):
    """The cluster in numbers."""

    leader: str
    rebuilding: bool
    nodes: int
    objects: int
    open_puts: int
    capacity_bytes: int
    used_bytes: int
    quarantined_bytes: int
    largest_free_run: int
    index_bytes: int
    counted: Counted
    client: Client


class PagedStats(TypedDict):
    """How full a paged cache is. Blocks that several sequences share are used once."""

    sequences: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    evicted_blocks: int
    block_bytes: int
