//! Named bounds. Everything a peer can make us allocate or hold is checked against one of these
//! first.

use std::time::Duration;

/// Bytes of the longest key.
pub const KEY_BYTES_MAX: usize = 8192;
/// Bytes of the largest value: its extent must fit 32 bits of a header.
pub const VALUE_BYTES_MAX: u64 = 3 << 30;
/// Items in one batch call; the client library splits larger ones.
pub const BATCH_ITEMS_MAX: usize = 4096;
/// Replicas of one object.
pub const REPLICAS_MAX: usize = 8;
/// Stripes of one object.
pub const STRIPES_MAX: usize = 32;
/// Segments of one node.
pub const SEGMENTS_PER_NODE_MAX: usize = 64;
/// Readers that may pin one slot at a time.
pub const PINS_MAX: u32 = 1 << 20;
/// Longest lease, in milliseconds; it bounds the takeover grace.
pub const LEASE_MS_MAX: u32 = 10_000;
/// Bytes of a slice: each has its own checksum.
pub const SLICE_BYTES: u64 = 1 << 20;
/// Every extent starts and ends at a multiple of this.
pub const EXTENT_ALIGN: u64 = 64;
/// Bytes of the largest block of disks in use; direct I/O moves memory that lies like this.
pub const BLOCK_BYTES: u64 = 4096;
/// Bytes of the longest label: a key and what the owner keeps beside it.
pub const LABEL_BYTES_MAX: usize = KEY_BYTES_MAX + 64;
/// How long the GPU of a process that has ended may go on storing: under MPS its kernels end when the driver has noticed.
/// A range that it was writing to is kept so long (R7).
pub const DEVICE_GRACE: Duration = Duration::from_secs(5);
/// Members of one group; a put into a full group stores the object without a group.
pub const GROUP_MEMBERS_MAX: u32 = 65_536;
