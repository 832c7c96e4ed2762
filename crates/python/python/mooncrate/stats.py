"""The shape of what `Store.stats`, `PagedCache.stats` and `NanoKVCache.stats` give."""

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
    """What this store counted. Every get that found its value is in one of local, shared, stream, direct_gets;
    of all those, disk had to be loaded from a disk. direct_puts and direct_gets went between the memory of a
    GPU and VRAM of this host; device_fallbacks could not, and went through pinned memory."""

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
    direct_puts: int
    direct_gets: int
    device_fallbacks: int


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
    """How full a paged cache is, and what it did so far. Blocks that several sequences share are used once."""

    sequences: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    evicted_blocks: int
    block_bytes: int
    hit_tokens: int
    miss_tokens: int
    hit_blocks: int
    miss_blocks: int
    forks: int
    copied_blocks: int
    dropped_tokens: int
    spilled_blocks: int
    spilled_bytes: int
    fetched_blocks: int
    fetched_bytes: int
    suspended_sequences: int
    resumed_sequences: int


class NanoStats(TypedDict):
    """What a rank of the GPU-resident cache has done since it joined."""

    plans: int
    t_plan_us: int
    oom_count: int
    bytes_tx: int
    bytes_rx: int
    freed_count: int
    evict_count: int
    evict_in_use_retry: int
    stuck_put_reclaimed: int
    waiting: int
    bytes_used: int
    bytes_total: int
    ready_count: int
