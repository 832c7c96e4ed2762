//! The 128-byte header that describes an object on any medium, kept by the owner of the bytes.
//!
//! Offsets follow the header of the GPU-resident cache (Nano), so that one layout serves memory and VRAM.
//! Its `state` and `reader_refcnt` (offset 56) are the one control word; its pad and the 40 bytes that it
//! leaves open carry the seal, the object id and the low half of the fingerprint. `payload_base` is an offset into the segment, never an address.
//!
//! ```text
//!   0 key_hash u64          8 key_fp_hi u64       16 key_len u32        20 header_version u32
//!  24 payload_base u64     32 bytes_total u64     40 page_size u32      44 n_pages u32
//!  48 last_page_bytes u32  52 epoch u32           56 control word u64
//!  64 state_ts u64         72 last_access u64     80 flags u32          84 producer_rank u32
//!  88 seal u64             96 object epoch u64   104 object sequence u64
//! 112 key_fp_lo u64       120 extent_bytes u64
//! ```

/// Bytes of a header.
pub const HEADER_BYTES: usize = 128;
/// Version of this layout.
pub const HEADER_VERSION: u32 = 1;
/// Offset of the control word.
pub const WORD_OFFSET: usize = 56;

/// The header as plain data. In memory that is shared, the control word is only touched through
/// `mem`, as one atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Header {
    /// xxh64 of the label: tenant, key and wishes, see [`crate::label`].
    pub key_hash: u64,
    /// High half of the label's xxh3-128.
    pub key_fp_hi: u64,
    /// Bytes of the label; the owner keeps the label itself beside the header.
    pub key_len: u32,
    /// [`HEADER_VERSION`].
    pub header_version: u32,
    /// Offset of the payload in the segment.
    pub payload_base: u64,
    /// Bytes of the value.
    pub bytes_total: u64,
    /// Bytes of a page; host segments use one page per object.
    pub page_size: u32,
    /// Pages of the payload.
    pub n_pages: u32,
    /// Bytes used of the last page.
    pub last_page_bytes: u32,
    /// Low half of the leader epoch under which the slot was reserved, for people who debug.
    pub epoch: u32,
    /// The control word.
    pub word: u64,
    /// Owner's clock at the last change of state.
    pub state_ts: u64,
    /// Owner's clock at the last access it saw.
    pub last_access: u64,
    /// None defined yet.
    pub flags: u32,
    /// The rank that writes or wrote it, where ranks write by themselves; else zero.
    pub producer_rank: u32,
    /// The object's seal, valid once READY.
    pub seal: u64,
    /// Object id: leader epoch.
    pub object_epoch: u64,
    /// Object id: sequence.
    pub object_sequence: u64,
    /// Low half of the label's xxh3-128.
    pub key_fp_lo: u64,
    /// Bytes of the extent: the value, its slice table, rounded up.
    pub extent_bytes: u64,
}

const WORDS: usize = HEADER_BYTES / 8;

impl Header {
    /// The header as its numbers, two halves joined where two share one.
    pub fn to_words(&self) -> [u64; WORDS] {
        [
            self.key_hash,
            self.key_fp_hi,
            pair(self.key_len, self.header_version),
            self.payload_base,
            self.bytes_total,
            pair(self.page_size, self.n_pages),
            pair(self.last_page_bytes, self.epoch),
            self.word,
            self.state_ts,
            self.last_access,
            pair(self.flags, self.producer_rank),
            self.seal,
            self.object_epoch,
            self.object_sequence,
            self.key_fp_lo,
            self.extent_bytes,
        ]
    }

    /// The header of which these are the numbers.
    pub fn from_words(w: &[u64; WORDS]) -> Header {
        let (low, high) = (|at: usize| w[at] as u32, |at: usize| (w[at] >> 32) as u32);
        Header {
            key_hash: w[0],
            key_fp_hi: w[1],
            key_len: low(2),
            header_version: high(2),
            payload_base: w[3],
            bytes_total: w[4],
            page_size: low(5),
            n_pages: high(5),
            last_page_bytes: low(6),
            epoch: high(6),
            word: w[7],
            state_ts: w[8],
            last_access: w[9],
            flags: low(10),
            producer_rank: high(10),
            seal: w[11],
            object_epoch: w[12],
            object_sequence: w[13],
            key_fp_lo: w[14],
            extent_bytes: w[15],
        }
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Header>() == HEADER_BYTES && align_of::<Header>() == 64);
    assert!(offset_of!(Header, key_len) == 16 && offset_of!(Header, payload_base) == 24);
    assert!(offset_of!(Header, page_size) == 40 && offset_of!(Header, last_page_bytes) == 48);
    assert!(offset_of!(Header, word) == WORD_OFFSET && offset_of!(Header, state_ts) == 64);
    assert!(offset_of!(Header, flags) == 80 && offset_of!(Header, seal) == 88);
    assert!(offset_of!(Header, extent_bytes) == 120);
};
