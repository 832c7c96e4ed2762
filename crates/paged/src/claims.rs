//! Who is touching a block right now: one atomic word per block.
//!
//! ```text
//!   0 free ──read──► 1, 2, … readers      0 ──write──► WRITER      0 ◄──admit/retire──► ABSENT
//! ```
//!
//! This is a borrow check at run time, across threads: many readers, or one writer. It is what makes the safe
//! calls of an arena safe. It says nothing about who owns a block; the block pool decides that, and with a
//! correct pool no claim is ever refused. A refusal therefore means two calls for the same block at once, and
//! it is reported instead of waited for.
//!
//! What must stay true: while a write claim is held, no other claim on that block is granted. A claim that
//! ends (Release) happens before the next one on that block begins (Acquire), so the bytes of one are seen by
//! the other.

use crate::atomic::{AtomicU32, Ordering};
use crate::ids::BlockId;
use crate::part::{BlockCopy, BlockRun};
use std::ops::Range;

/// One thread writes.
const WRITER: u32 = u32::MAX;
/// The block is beyond the current size of the arena.
const ABSENT: u32 = u32::MAX - 1;
/// Readers of one block at once. Far more than threads; it keeps the count away from the two marks.
const READERS_MAX: u32 = 1 << 30;

/// Why a claim was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The arena does not have the block now.
    Absent(BlockId),
    /// Another claim stands against it.
    Busy(BlockId),
}

/// The words of all blocks that an arena reserved room for. Other crates can neither name nor use it.
#[derive(Debug)]
pub struct Claims {
    words: Box<[AtomicU32]>,
}

impl Claims {
    /// Words for `reserved` blocks, of which the first `present` exist.
    pub(crate) fn new(reserved: u32, present: u32) -> Self {
        let word = |id| AtomicU32::new(if id < present { 0 } else { ABSENT });
        Self { words: (0..reserved).map(word).collect() }
    }

    /// Claims neighbouring blocks for reading: all of them, or none.
    pub(crate) fn read(&self, run: BlockRun) -> Result<ReadClaim<'_>, Refusal> {
        // The guard grows with each block, so that dropping it on an error ends what was claimed.
        let mut claim = ReadClaim { claims: self, run: BlockRun { first: run.first, count: 0 } };
        for step in 0..run.count {
            self.begin_read(BlockId(run.first.0.saturating_add(step)))?;
            claim.run.count += 1;
        }
        Ok(claim)
    }

    /// Claims one block for writing.
    pub(crate) fn write(&self, block: BlockId) -> Result<WriteClaim<'_>, Refusal> {
        self.begin_write(block)?;
        Ok(WriteClaim { claims: self, block })
    }

    /// Claims one block for reading; [`Claims::end_read`] must follow.
    pub(crate) fn begin_read(&self, block: BlockId) -> Result<(), Refusal> {
        let word = self.word(block)?;
        // Acquire: pairs with the Release in `end_write` and `admit`.
        word.fetch_update(Ordering::Acquire, Ordering::Relaxed, |now| {
            (now < READERS_MAX).then(|| now + 1)
        })
        .map(|_| ())
        .map_err(|now| refusal(now, block))
    }

    /// Claims one block for writing; [`Claims::end_write`] must follow.
    pub(crate) fn begin_write(&self, block: BlockId) -> Result<(), Refusal> {
        self.exchange(block, 0, WRITER)
    }

    /// Claims the blocks of copies, sources for reading and targets for writing: all or none. Refuses a list
    /// in which a target is named twice or is also a source. [`Claims::end_copies`] must follow.
    pub(crate) fn begin_copies(&self, copies: &[BlockCopy]) -> Result<(), Refusal> {
        for (place, copy) in copies.iter().enumerate() {
            let begun = self.begin_read(copy.source).and_then(|()| {
                self.begin_write(copy.target).inspect_err(|_| self.end_read(copy.source))
            });
            begun.inspect_err(|_| self.end_copies(&copies[..place]))?;
        }
        Ok(())
    }

    /// Ends what [`Claims::begin_copies`] began.
    pub(crate) fn end_copies(&self, copies: &[BlockCopy]) {
        for copy in copies {
            self.end_read(copy.source);
            self.end_write(copy.target);
        }
    }

    /// Claims blocks that tokens move between, sources for reading and targets for writing: all or none. Refuses
    /// a target that is named twice or is also a source. [`Claims::end_moves`] must follow.
    pub(crate) fn begin_moves(
        &self,
        sources: &[BlockId],
        targets: &[BlockId],
    ) -> Result<(), Refusal> {
        for (place, source) in sources.iter().enumerate() {
            self.begin_read(*source).inspect_err(|_| self.end_moves(&sources[..place], &[]))?;
        }
        self.begin_writes(targets).inspect_err(|_| self.end_moves(sources, &[]))
    }

    /// Ends what [`Claims::begin_moves`] began.
    pub(crate) fn end_moves(&self, sources: &[BlockId], targets: &[BlockId]) {
        for block in sources {
            self.end_read(*block);
        }
        self.end_writes(targets);
    }

    /// Claims blocks for writing: all or none. [`Claims::end_writes`] must follow.
    pub(crate) fn begin_writes(&self, blocks: &[BlockId]) -> Result<(), Refusal> {
        for (place, block) in blocks.iter().enumerate() {
            self.begin_write(*block).inspect_err(|_| self.end_writes(&blocks[..place]))?;
        }
        Ok(())
    }

    /// Ends what [`Claims::begin_writes`] began.
    pub(crate) fn end_writes(&self, blocks: &[BlockId]) {
        for block in blocks {
            self.end_write(*block);
        }
    }

    /// Ends one read claim.
    pub(crate) fn end_read(&self, block: BlockId) {
        // Release: pairs with the Acquire of the writer that comes next.
        let before = self.words[block.0 as usize].fetch_sub(1, Ordering::Release);
        assert!((1..=READERS_MAX).contains(&before), "{block:?} had no read claim: {before:#x}");
    }

    /// Ends the write claim.
    pub(crate) fn end_write(&self, block: BlockId) {
        self.exchange(block, WRITER, 0).expect("the write claim ends once, by its holder");
    }

    /// Takes blocks out of the arena, if nobody touches any of them: all or none.
    pub(crate) fn retire_all(&self, blocks: Range<u32>) -> Result<(), Refusal> {
        for id in blocks.clone() {
            let retired = self.retire(BlockId(id));
            retired.inspect_err(|_| self.admit_all(blocks.start..id))?;
        }
        Ok(())
    }

    /// Brings blocks into the arena.
    pub(crate) fn admit_all(&self, blocks: Range<u32>) {
        blocks.for_each(|id| self.admit(BlockId(id)));
    }

    /// Takes a block out of the arena, if nobody touches it.
    pub(crate) fn retire(&self, block: BlockId) -> Result<(), Refusal> {
        self.exchange(block, 0, ABSENT)
    }

    /// Brings a block into the arena.
    pub(crate) fn admit(&self, block: BlockId) {
        self.exchange(block, ABSENT, 0).expect("only resizing admits, one call at a time");
    }

    fn exchange(&self, block: BlockId, from: u32, to: u32) -> Result<(), Refusal> {
        // AcqRel: to take a block pairs with the Release of whoever had it; to give it back is that Release.
        self.word(block)?
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|now| refusal(now, block))
    }

    fn word(&self, block: BlockId) -> Result<&AtomicU32, Refusal> {
        self.words.get(block.0 as usize).ok_or(Refusal::Absent(block))
    }
}

fn refusal(now: u32, block: BlockId) -> Refusal {
    if now == ABSENT { Refusal::Absent(block) } else { Refusal::Busy(block) }
}

/// Neighbouring blocks that nobody writes while this lives.
#[derive(Debug)]
pub(crate) struct ReadClaim<'a> {
    claims: &'a Claims,
    run: BlockRun,
}

impl Drop for ReadClaim<'_> {
    fn drop(&mut self) {
        (0..self.run.count).for_each(|step| self.claims.end_read(BlockId(self.run.first.0 + step)));
    }
}

/// A block that nobody else touches while this lives.
#[derive(Debug)]
pub(crate) struct WriteClaim<'a> {
    claims: &'a Claims,
    block: BlockId,
}

impl Drop for WriteClaim<'_> {
    fn drop(&mut self) {
        self.claims.end_write(self.block);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const B: [BlockId; 4] = [BlockId(0), BlockId(1), BlockId(2), BlockId(3)];

    fn run(first: u32, count: u32) -> BlockRun {
        BlockRun { first: BlockId(first), count }
    }

    #[test]
    fn many_readers_or_one_writer() {
        let claims = Claims::new(4, 3);
        let one = claims.read(run(0, 2)).unwrap();
        let two = claims.read(run(1, 2)).unwrap();
        assert_eq!(claims.write(B[1]).unwrap_err(), Refusal::Busy(B[1]));
        drop(one);
        assert!(claims.write(B[0]).is_ok());
        assert_eq!(claims.write(B[1]).unwrap_err(), Refusal::Busy(B[1]));
        drop(two);
        let writer = claims.write(B[1]).unwrap();
        assert_eq!(claims.begin_read(B[1]), Err(Refusal::Busy(B[1])));
        assert_eq!(claims.retire(B[1]), Err(Refusal::Busy(B[1])));
        drop(writer);
        assert!(claims.read(run(1, 1)).is_ok());
    }

    #[test]
    fn a_refused_run_leaves_no_claim_behind() {
        let claims = Claims::new(4, 4);
        let writer = claims.write(B[2]).unwrap();
        assert_eq!(claims.read(run(0, 4)).unwrap_err(), Refusal::Busy(B[2]));
        drop(writer);
        for block in B {
            assert!(claims.write(block).is_ok(), "{block:?}");
        }
    }

    #[test]
    fn absent_blocks_have_no_claims() {
        let claims = Claims::new(4, 2);
        assert_eq!(claims.write(B[2]).unwrap_err(), Refusal::Absent(B[2]));
        assert_eq!(claims.read(run(1, 2)).unwrap_err(), Refusal::Absent(B[2]));
        assert_eq!(claims.begin_read(BlockId(9)), Err(Refusal::Absent(BlockId(9))));
        claims.admit(B[2]);
        assert!(claims.read(run(1, 2)).is_ok());
        claims.retire(B[1]).unwrap();
        assert_eq!(claims.write(B[1]).unwrap_err(), Refusal::Absent(B[1]));
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// The bytes of one block, which loom watches for races.
    struct Shared {
        claims: Claims,
        bytes: UnsafeCell<u32>,
    }

    fn write(shared: &Shared) {
        if let Ok(_claim) = shared.claims.write(BlockId(0)) {
            // SAFETY: under the claim; loom fails the test if that is not so.
            shared.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
        }
    }

    fn read(shared: &Shared) -> u32 {
        match shared.claims.read(BlockRun { first: BlockId(0), count: 1 }) {
            // SAFETY: as above.
            Ok(_claim) => shared.bytes.with(|bytes| unsafe { *bytes }),
            Err(_) => 0,
        }
    }

    /// Two writers and a reader of one block: no two of them are ever at its bytes together.
    #[test]
    fn claims_exclude() {
        loom::model(|| {
            let shared = Arc::new(Shared { claims: Claims::new(1, 1), bytes: UnsafeCell::new(0) });
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || write(&shared))
                })
                .collect();
            let seen = read(&shared);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert!(seen <= read(&shared));
        });
    }
}
