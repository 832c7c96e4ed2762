//! What lies where in the heap of a rank. Every rank evaluates the same function of the shape, so offsets are
//! the same everywhere; `docs/ep.md` draws it.
//!
//! ```text
//! ctl   256 B             this rank alone writes it     claim, phase, epoch, the error of this rank
//! sig   [2][8] u64        slot s: written by rank s     tag << 32 | phase, of odd and even phases
//! sent  u32[4 + T_cap]    this rank alone writes it     tokens of this step, and where each one went
//! meta  [slots] 64 B      slot = s·T_cap + t: by s      local experts, weights, stamp
//! recv  [slots] tokens    the same                      the token: bf16, or fp8 with scales
//! ret   [world, T_cap, H] row d·T_cap + t: by rank d    what rank d computed for token t of this rank
//! ```

use crate::config::{Shape, TOP_K_MAX};
use mooncrate_heap::{Layout, Part, RANKS_MAX};

/// Offsets of the words of `ctl`, each 8 bytes. Mirrors `ep.cuh`.
pub mod ctl {
    /// Not zero while a communicator uses this heap.
    pub const CLAIM: u64 = 0;
    /// Phases that this rank has passed, modulo 2^32.
    pub const PHASE: u64 = 8;
    /// How often the group was reset.
    pub const EPOCH: u64 = 16;
    /// Blocks of the running kernel that have ended; in the upper half those that found something wrong.
    pub const ARRIVED: u64 = 24;
    /// The first violation of this step ([`crate::barrier::Violation`]); all ones: none.
    pub const BAD: u64 = 32;
    /// Why this rank has failed ([`crate::barrier::Record`]), three words; the first one is 0 while it has not.
    pub const ERROR: u64 = 40;
    /// Bytes of all of it.
    pub const BYTES: u64 = 256;
}

/// Offsets in a metadata row. Mirrors `ep.cuh`.
pub mod row {
    /// Local expert of each of the token's top-k positions, i16; -1: it belongs to another rank.
    pub const EXPERTS: usize = 0;
    /// Weight of each, f32; 0 where the expert is -1.
    pub const WEIGHTS: usize = 16;
    /// How many experts are not -1, u32.
    pub const COUNT: usize = 48;
    /// The phase in which the row was written, u32.
    pub const STAMP: usize = 52;
    /// Bytes of a row; the last 8 are zero.
    pub const BYTES: usize = 64;
}
const _: () = assert!(row::WEIGHTS == TOP_K_MAX as usize * 2);
const _: () = assert!(row::COUNT == row::WEIGHTS + TOP_K_MAX as usize * 4);

/// Bytes before the masks of `sent`: the number of tokens, and zeros.
pub const SENT_HEAD: u64 = 16;

/// Offsets of all parts, and the length of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpLayout {
    shape: Shape,
    sig: u64,
    sent: u64,
    meta: u64,
    recv: u64,
    ret: u64,
    bytes: u64,
    hash: u64,
}

impl EpLayout {
    /// The layout of a shape.
    pub fn new(shape: Shape) -> Self {
        let slots = u64::from(shape.slots());
        let part = |name, bytes, align| Part { name, bytes, align };
        // The bounds of a shape keep all of this below 2^36 bytes.
        let layout = Layout::new([
            part("ctl", ctl::BYTES, 256),
            part("sig", 2 * RANKS_MAX as u64 * 8, 128),
            part("sent", SENT_HEAD + 4 * u64::from(shape.tokens_max()), 128),
            part("meta", slots * row::BYTES as u64, 256),
            part("recv", slots * shape.token_bytes(), 256),
            part("ret", slots * shape.row_bytes(), 256),
        ])
        .expect("parts of a shape are neither empty nor too long");
        let at = |name| layout.place(name).expect("the part was just placed").offset();
        Self {
            shape,
            sig: at("sig"),
            sent: at("sent"),
            meta: at("meta"),
            recv: at("recv"),
            ret: at("ret"),
            bytes: layout.bytes(),
            hash: layout.hash() ^ shape.hash(),
        }
    }

    /// The shape that it was made for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of a heap that holds it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What all ranks compare when they meet.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The word by which `source` says which phase it has come to; phases of one parity share it.
    pub fn signal(&self, phase: u32, source: u32) -> u64 {
        self.sig + 8 * (u64::from(phase & 1) * RANKS_MAX as u64 + u64::from(source))
    }

    /// The number of tokens of this step.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// To which ranks a token went, a bit for each.
    pub fn sent_mask(&self, token: u32) -> u64 {
        self.sent + SENT_HEAD + 4 * u64::from(token)
    }

    /// The metadata row of a slot.
    pub fn meta(&self, slot: u32) -> u64 {
        self.meta + u64::from(slot) * row::BYTES as u64
    }

    /// The token of a slot.
    pub fn recv(&self, slot: u32) -> u64 {
        self.recv + u64::from(slot) * self.shape.token_bytes()
    }

    /// What rank `from` computed for a token of the rank whose heap this is.
    pub fn ret(&self, from: u32, token: u32) -> u64 {
        self.ret + u64::from(self.shape.slot(from, token)) * self.shape.row_bytes()
    }

    /// Where the parts begin: sig, sent, meta, recv, ret. Kernels take them by value.
    pub fn offsets(&self) -> [u64; 5] {
        [self.sig, self.sent, self.meta, self.recv, self.ret]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EpConfig;

    #[test]
    fn the_parts_of_the_default_are_where_the_page_says() {
        let layout = EpLayout::new(EpConfig::default().shape().unwrap());
        assert_eq!(layout.offsets(), [256, 384, 768, 17_152, 3_687_168]);
        assert_eq!(layout.bytes(), 7_357_184);
        assert_eq!((layout.signal(0, 0), layout.signal(1, 0)), (256, 320));
        assert_eq!((layout.signal(2, 7), layout.signal(u32::MAX, 7)), (312, 376));
        assert_eq!(layout.meta(255) + 64, layout.recv(0));
        assert_eq!(layout.recv(255) + 14_336, layout.ret(0, 0));
        assert_eq!(layout.ret(7, 31) + 14_336, layout.bytes());
        assert_eq!(layout.sent_mask(0) - layout.sent(), 16);
    }

    /// The largest shape that the bounds allow.
    #[test]
    fn the_largest_shape_has_a_layout() {
        let config =
            EpConfig { tokens_max: 4096, hidden: 65_536, experts: 8192, ..EpConfig::default() };
        let layout = EpLayout::new(config.shape().unwrap());
        assert!(layout.bytes() > 2 * 32_768 * 131_072);
        for offset in layout.offsets() {
            assert!(offset.is_multiple_of(16), "kernels move 16 bytes at a time: {offset}");
        }
    }

    #[test]
    fn another_shape_is_another_layout() {
        let hash = |config: EpConfig| EpLayout::new(config.shape().unwrap()).hash();
        // The same bytes, but other experts.
        let other = EpConfig { experts: 128, ..EpConfig::default() };
        assert_ne!(hash(EpConfig::default()), hash(other));
    }
}
