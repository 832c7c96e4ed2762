//! Whether the process that owns shared segments is dead: one page of a memfd that it makes for its guard
//! and for everybody who maps its segments.
//!
//! ```text
//!   owner   create ─► guard maps it for writing ─► seal: nobody else can ─► set_mounts …
//!   guard   the owner is dead ─► end: every reader of this machine stops ─► mounts: tells the master
//!   reader  watch ─► is_over, after each copy and before it is believed
//! ```
//!
//! A mapping outlives its owner, and what it shows may be read until the owner's leave to serve runs out
//! (R10). A process that is killed cannot take that leave back; its guard can, for all of its segments
//! at once. What must stay true: once `end` has returned, no copy that is finished later is believed.

use crate::atomic::{AtomicU64, Ordering};
use crate::region::{Access, Pages, Region};
use mooncrate_core::limits::SEGMENTS_PER_NODE_MAX;
use mooncrate_core::{Extent, Incarnation, NodeId, SegmentId};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::fence;

/// "mooncliv", read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"mooncliv");
const BYTES: usize = 4096;

/// Words of the page, by index.
mod word_at {
    pub(super) const MAGIC: usize = 0;
    /// On a cache line of its own: readers look at it all the time, and it changes once.
    pub(super) const OVER: usize = 8;
    pub(super) const NODE: usize = 16;
    pub(super) const COUNT: usize = 17;
    /// Pairs: segment, incarnation.
    pub(super) const MOUNTS: usize = 24;
}

const _: () = assert!(8 * (word_at::MOUNTS + 2 * SEGMENTS_PER_NODE_MAX) <= BYTES);

/// The page.
#[derive(Debug)]
pub struct Life {
    region: Region,
}

impl Life {
    /// That of a process that has just begun.
    pub fn create() -> io::Result<Self> {
        let life = Self { region: Region::memfd("mooncrate-life", BYTES, Pages::Small)? };
        life.word(word_at::MAGIC).store(MAGIC, Ordering::Relaxed);
        Ok(life)
    }

    /// The guard's: it can end the life. Before [`Life::seal`].
    pub fn guard(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Self::map(fd, Access::ReadWrite)
    }

    /// A reader's.
    pub(crate) fn watch(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Self::map(fd, Access::ReadOnly)
    }

    fn map(fd: BorrowedFd<'_>, access: Access) -> io::Result<Self> {
        let life = Self { region: Region::map(fd, BYTES, access)? };
        if life.word(word_at::MAGIC).load(Ordering::Relaxed) == MAGIC {
            return Ok(life);
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "this memfd is no page of a life"))
    }

    /// To be passed to the guard, and after [`Life::seal`] to readers.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.region.fd()
    }

    /// From now on nobody can map it for writing: a reader could fence all others.
    pub fn seal(&self) -> io::Result<()> {
        self.region.seal_writes()
    }

    /// What the owner has mounted, for its guard to name. Before anybody can read it.
    pub fn set_mounts(&self, node: NodeId, mounts: &[(SegmentId, Incarnation)]) {
        self.word(word_at::NODE).store(node.0, Ordering::Relaxed);
        let mounts = &mounts[..mounts.len().min(SEGMENTS_PER_NODE_MAX)];
        for (at, (segment, incarnation)) in mounts.iter().enumerate() {
            let at = word_at::MOUNTS + 2 * at;
            self.word(at).store(segment.0, Ordering::Relaxed);
            self.word(at + 1).store(incarnation.0, Ordering::Relaxed);
        }
        // Relaxed, all of it: the guard looks when the owner is dead, which the kernel has ordered. A
        // list that was being written then names only mounts that the owner had at some time.
        self.word(word_at::COUNT).store(mounts.len() as u64, Ordering::Relaxed);
    }

    /// The node that the owner was.
    pub fn node(&self) -> NodeId {
        NodeId(self.word(word_at::NODE).load(Ordering::Relaxed))
    }

    /// What the owner had mounted.
    pub fn mounts(&self) -> Vec<(SegmentId, Incarnation)> {
        let load = |at: usize| self.word(at).load(Ordering::Relaxed);
        let count = (load(word_at::COUNT) as usize).min(SEGMENTS_PER_NODE_MAX);
        let pairs = (0..count).map(|n| word_at::MOUNTS + 2 * n);
        pairs.map(|at| (SegmentId(load(at)), Incarnation(load(at + 1)))).collect()
    }

    /// The owner is dead: nobody reads its segments any more.
    pub fn end(&self) {
        assert_eq!(self.region.access(), Access::ReadWrite, "readers end nobody's life");
        self.word(word_at::OVER).store(1, Ordering::Relaxed);
        // SeqCst: the store is visible before anything that is sent after this. Whoever looks later sees
        // it; who looked before had finished his copy before.
        fence(Ordering::SeqCst);
    }

    /// Whether the owner is known to be dead. To be asked after the copy, like the leave to serve.
    pub fn is_over(&self) -> bool {
        // Relaxed: the Acquire fence after the copy keeps this load behind it (`word::load_again`).
        self.word(word_at::OVER).load(Ordering::Relaxed) != 0
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        let extent = Extent::new(8 * at as u64, 8).expect("offsets are far below the maximum");
        let at = self.region.check(extent).expect("the page has room for all words");
        // SAFETY: inside of the mapping, which lives as long as `self`; aligned, because offsets are
        // multiples of 8 from a page; only ever accessed as an atomic.
        unsafe { at.cast::<AtomicU64>().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_ends_a_life_for_every_reader() {
        let owner = Life::create().unwrap();
        let guard = Life::guard(owner.fd().unwrap()).unwrap();
        owner.seal().unwrap();
        assert!(Life::guard(owner.fd().unwrap()).is_err(), "readers cannot become guards");
        let reader = Life::watch(owner.fd().unwrap()).unwrap();
        let mounts = [(SegmentId(3), Incarnation(7)), (SegmentId(4), Incarnation(7))];
        owner.set_mounts(NodeId(9), &mounts);
        assert_eq!((guard.node(), &guard.mounts()[..]), (NodeId(9), &mounts[..]));
        owner.set_mounts(NodeId(9), &mounts[1..]);
        assert_eq!(guard.mounts(), mounts[1..]);
        drop(owner);
        assert!(!reader.is_over());
        guard.end();
        assert!(reader.is_over());
    }

    #[test]
    fn something_else_is_no_life() {
        let other = Region::memfd("other", BYTES, Pages::Small).unwrap();
        assert!(Life::watch(other.fd().unwrap()).is_err());
    }
}
