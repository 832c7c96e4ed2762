//! The lists that kernels follow: slots, blocks, pairs and moves, in device memory.
//!
//! A list that comes from the host is checked entry by entry before it is uploaded. A list that was made
//! on the device can only be checked by the kernel, which refuses indices that do not exist; that no two
//! entries write to one place is then up to whoever made it.

use super::{BlockSpace, KernelError};
use crate::BlockId;
use mooncrate_gpu::{DeviceBuffer, Gpu, Span, Stream};
use std::collections::BTreeSet;
use std::marker::PhantomData;

/// The place of a token: block × tokens of a block + place in the block; negative: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Slot(pub i64);

impl Slot {
    /// No slot: this token is not written.
    pub const SKIP: Self = Self(-1);

    /// The slot of a token of a block.
    pub fn new(block: BlockId, token: u32, block_tokens: u32) -> Self {
        Self(i64::from(block.0) * i64::from(block_tokens) + i64::from(token))
    }

    /// Block and token, unless the slot lies outside of `blocks` blocks.
    pub fn split(self, blocks: u32, block_tokens: u32) -> Option<(u32, u32)> {
        let slot = u64::try_from(self.0).ok()?;
        let block = u32::try_from(slot / u64::from(block_tokens)).ok().filter(|at| *at < blocks)?;
        Some((block, (slot % u64::from(block_tokens)) as u32))
    }
}

/// A block that is written: an entry of `scatter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct TargetBlock(pub BlockId);

/// One block to copy: an entry of `copy_blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockPair {
    /// The block that is read.
    pub source: BlockId,
    /// The block that is written.
    pub target: BlockId,
}

/// One token to move: an entry of `compact`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RowMove {
    /// The slot that is read.
    pub source: Slot,
    /// The slot that is written.
    pub target: Slot,
}

/// An entry of a list that a kernel follows.
pub trait Entry: Copy + sealed::Sealed {
    /// Bytes of an entry in device memory.
    const BYTES: u64;
    /// The entry as the kernel reads it, little-endian.
    fn encode(&self, bytes: &mut Vec<u8>);
    /// Refuses a list that reaches outside, or that writes to one place twice.
    fn check(list: &[Self], blocks: u32, block_tokens: u32) -> Result<(), KernelError>;
}

mod sealed {
    /// Lists are for the kernels of this crate.
    pub trait Sealed {}
    impl Sealed for super::Slot {}
    impl Sealed for super::BlockId {}
    impl Sealed for super::TargetBlock {}
    impl Sealed for super::BlockPair {}
    impl Sealed for super::RowMove {}
}

impl Entry for Slot {
    const BYTES: u64 = 8;

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.0.to_le_bytes());
    }

    fn check(list: &[Self], blocks: u32, block_tokens: u32) -> Result<(), KernelError> {
        let mut written = BTreeSet::new();
        for slot in list.iter().filter(|slot| **slot != Self::SKIP) {
            slot_exists(*slot, blocks, block_tokens)?;
            once(&mut written, "slot", slot.0)?;
        }
        Ok(())
    }
}

impl Entry for BlockId {
    const BYTES: u64 = 4;

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.0.to_le_bytes());
    }

    fn check(list: &[Self], blocks: u32, _: u32) -> Result<(), KernelError> {
        list.iter().try_for_each(|block| block_exists(*block, blocks))
    }
}

impl Entry for TargetBlock {
    const BYTES: u64 = 4;

    fn encode(&self, bytes: &mut Vec<u8>) {
        self.0.encode(bytes);
    }

    fn check(list: &[Self], blocks: u32, _: u32) -> Result<(), KernelError> {
        let mut written = BTreeSet::new();
        list.iter().try_for_each(|target| {
            block_exists(target.0, blocks)?;
            once(&mut written, "block", i64::from(target.0.0))
        })
    }
}

impl Entry for BlockPair {
    const BYTES: u64 = 8;

    fn encode(&self, bytes: &mut Vec<u8>) {
        self.source.encode(bytes);
        self.target.encode(bytes);
    }

    fn check(list: &[Self], blocks: u32, _: u32) -> Result<(), KernelError> {
        let mut written = BTreeSet::new();
        for pair in list {
            block_exists(pair.source, blocks)?;
            block_exists(pair.target, blocks)?;
            once(&mut written, "block", i64::from(pair.target.0))?;
        }
        let sources = list.iter().map(|pair| i64::from(pair.source.0));
        apart(&written, sources)
    }
}

impl Entry for RowMove {
    const BYTES: u64 = 16;

    fn encode(&self, bytes: &mut Vec<u8>) {
        self.source.encode(bytes);
        self.target.encode(bytes);
    }

    fn check(list: &[Self], blocks: u32, block_tokens: u32) -> Result<(), KernelError> {
        let mut written = BTreeSet::new();
        let mut targets = BTreeSet::new();
        for step in list {
            slot_exists(step.source, blocks, block_tokens)?;
            slot_exists(step.target, blocks, block_tokens)?;
            once(&mut written, "slot", step.target.0)?;
            targets.insert(step.target.0 / i64::from(block_tokens));
        }
        apart(&targets, list.iter().map(|step| step.source.0 / i64::from(block_tokens)))
    }
}

fn block_exists(block: BlockId, blocks: u32) -> Result<(), KernelError> {
    if block.0 < blocks {
        return Ok(());
    }
    let (index, count) = (i64::from(block.0), u64::from(blocks));
    Err(KernelError::OutOfRange { what: "block", index, count })
}

fn slot_exists(slot: Slot, blocks: u32, block_tokens: u32) -> Result<(), KernelError> {
    if slot.split(blocks, block_tokens).is_some() {
        return Ok(());
    }
    let count = u64::from(blocks) * u64::from(block_tokens);
    Err(KernelError::OutOfRange { what: "slot", index: slot.0, count })
}

fn once(written: &mut BTreeSet<i64>, what: &'static str, index: i64) -> Result<(), KernelError> {
    if written.insert(index) {
        return Ok(());
    }
    Err(KernelError::Conflict { what, index, conflict: "is written twice in one launch" })
}

fn apart(written: &BTreeSet<i64>, mut read: impl Iterator<Item = i64>) -> Result<(), KernelError> {
    match read.find(|block| written.contains(block)) {
        None => Ok(()),
        Some(index) => {
            let conflict = "is read and written in one launch; its bytes would depend on the order";
            Err(KernelError::Conflict { what: "block", index, conflict })
        }
    }
}

/// A list in device memory, as a launch takes it.
#[derive(Debug)]
pub struct Entries<'a, T> {
    memory: Span<'a>,
    count: u32,
    kind: PhantomData<T>,
}

impl<T> Clone for Entries<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Entries<'_, T> {}

impl<'a, T: Entry> Entries<'a, T> {
    /// A list that was made on the device. Kernels refuse indices that do not exist; that no two entries
    /// write to one place, and that none reads what another writes, is the caller's to see to. Otherwise
    /// the bytes at that place are of one or the other.
    pub fn on_device(memory: Span<'a>, count: u32) -> Result<Self, KernelError> {
        let needed = u64::from(count) * T::BYTES;
        if needed > memory.len() {
            return Err(KernelError::TooShort { what: "a list", needed, given: memory.len() });
        }
        let (what, value) = ("the address of a list", memory.address());
        let unit = T::BYTES.min(8);
        if !value.is_multiple_of(unit) {
            return Err(KernelError::Misaligned { what, value, unit });
        }
        Ok(Self { memory, count, kind: PhantomData })
    }

    /// How many entries it has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Where the first one lies.
    #[cfg(test)]
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    pub(super) fn memory(&self) -> Span<'a> {
        self.memory
    }
}

/// A list of the host's at an address that stays the same, so that a recorded launch can follow it again
/// with other entries.
#[derive(Debug)]
pub struct DeviceList<T> {
    memory: DeviceBuffer,
    count: u32,
    kind: PhantomData<T>,
}

impl<T: Entry> DeviceList<T> {
    /// Room for `capacity` entries; none of them is set.
    pub fn with_capacity(gpu: &Gpu, capacity: u32) -> Result<Self, KernelError> {
        let memory = DeviceBuffer::new(gpu, u64::from(capacity.max(1)) * T::BYTES)?;
        Ok(Self { memory, count: 0, kind: PhantomData })
    }

    /// A new list with these entries, for launches on `space`.
    pub fn upload(
        list: &[T],
        space: &BlockSpace<'_>,
        stream: &Stream,
    ) -> Result<Self, KernelError> {
        let capacity = u32::try_from(list.len())
            .map_err(|_| KernelError::Shape(format!("a list of {} entries", list.len())))?;
        let mut made = Self::with_capacity(stream.gpu(), capacity)?;
        made.set(list, space, stream)?;
        Ok(made)
    }

    /// Replaces the entries, after everything that is queued on `stream`. Refuses a list that is wrong
    /// for `space`, and leaves the old one as it was.
    pub fn set(
        &mut self,
        list: &[T],
        space: &BlockSpace<'_>,
        stream: &Stream,
    ) -> Result<(), KernelError> {
        T::check(list, space.blocks(), space.rows().block_tokens)?;
        let mut bytes = Vec::with_capacity(list.len() * T::BYTES as usize);
        for entry in list {
            entry.encode(&mut bytes);
        }
        let (needed, given) = (bytes.len() as u64, self.memory.span().len());
        if needed > given {
            return Err(KernelError::TooShort { what: "a list", needed, given });
        }
        self.memory.span().write(&bytes, stream)?;
        self.count = list.len() as u32;
        Ok(())
    }

    /// The list, for a launch.
    pub fn entries(&self) -> Entries<'_, T> {
        Entries { memory: self.memory.span(), count: self.count, kind: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(source: u32, target: u32) -> BlockPair {
        BlockPair { source: BlockId(source), target: BlockId(target) }
    }

    fn step(source: i64, target: i64) -> RowMove {
        RowMove { source: Slot(source), target: Slot(target) }
    }

    #[test]
    fn slots_name_a_block_and_a_token() {
        assert_eq!(Slot::new(BlockId(3), 2, 16), Slot(50));
        assert_eq!(Slot(50).split(4, 16), Some((3, 2)));
        assert_eq!(Slot(64).split(4, 16), None);
        assert_eq!(Slot::SKIP.split(4, 16), None);
        assert_eq!(Slot(i64::MAX).split(u32::MAX, 1), None);
    }

    #[test]
    fn slots_are_written_once_and_exist() {
        assert!(Slot::check(&[Slot(0), Slot::SKIP, Slot(7), Slot::SKIP], 2, 4).is_ok());
        let error = Slot::check(&[Slot(8)], 2, 4).unwrap_err().to_string();
        assert_eq!(error, "slot 8 does not exist: there are 8");
        assert!(Slot::check(&[Slot(-2)], 2, 4).is_err());
        let error = Slot::check(&[Slot(5), Slot(1), Slot(5)], 2, 4).unwrap_err().to_string();
        assert_eq!(error, "slot 5 is written twice in one launch");
    }

    #[test]
    fn blocks_may_be_read_twice_but_not_written_twice() {
        let list = [BlockId(1), BlockId(0), BlockId(1)];
        assert!(BlockId::check(&list, 2, 4).is_ok());
        assert!(TargetBlock::check(&list.map(TargetBlock), 2, 4).is_err());
        assert!(TargetBlock::check(&list.map(TargetBlock)[..2], 2, 4).is_ok());
        assert!(BlockId::check(&list, 1, 4).is_err());
    }

    #[test]
    fn pairs_read_nothing_that_they_write() {
        assert!(BlockPair::check(&[pair(0, 1), pair(0, 2), pair(3, 4)], 5, 4).is_ok());
        assert!(BlockPair::check(&[pair(0, 5)], 5, 4).is_err());
        assert!(BlockPair::check(&[pair(5, 0)], 5, 4).is_err());
        assert!(BlockPair::check(&[pair(0, 2), pair(1, 2)], 5, 4).is_err());
        let error = BlockPair::check(&[pair(0, 1), pair(1, 2)], 5, 4).unwrap_err().to_string();
        assert!(error.starts_with("block 1 is read and written in one launch"), "{error}");
        assert!(BlockPair::check(&[pair(1, 1)], 5, 4).is_err());
    }

    #[test]
    fn moves_go_to_other_blocks() {
        assert!(RowMove::check(&[step(0, 4), step(3, 5), step(9, 6)], 3, 4).is_ok());
        // Slot 1 is free, but its block is read.
        let error = RowMove::check(&[step(0, 4), step(5, 1)], 3, 4).unwrap_err().to_string();
        assert!(error.starts_with("block 0 is read and written"), "{error}");
        assert!(RowMove::check(&[step(0, 4), step(1, 4)], 3, 4).is_err());
        assert!(RowMove::check(&[step(0, 12)], 3, 4).is_err());
        assert!(RowMove::check(&[step(-1, 4)], 3, 4).is_err());
    }

    #[test]
    fn entries_are_what_the_kernels_read() {
        fn encoded<T: Entry>(entry: T) -> Vec<u8> {
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            assert_eq!(bytes.len() as u64, T::BYTES);
            bytes
        }
        assert_eq!(encoded(Slot::SKIP), [0xff; 8]);
        assert_eq!(encoded(TargetBlock(BlockId(258))), [2, 1, 0, 0]);
        assert_eq!(encoded(pair(1, 2)), [1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(encoded(step(1, 2))[8], 2);
    }
}
