//! Pages of announcements on their way into the index. One thread takes them in, one after the other,
//! while the workers read the next ones from their sockets: a node that announces millions of headers
//! keeps no worker from those who ask, and announcers do not wake each other for every slice.
//!
//! What must stay true: pages of one segment are taken in the order in which they came. Pages of memory go before
//! those of disks, whichever node they are from: memory is served when all of it is told, and a disk may have
//! millions of records. But no disk waits for the memory of all: after [`MEMORY_ROW`] pages of memory comes one
//! of a disk, because its node gives a page up that is not answered in time, and tells everything again. The
//! queues need no bound of their own: a connection holds a bounded number of requests and bytes that are not
//! answered.

use crate::service::Master;
use mooncrate_core::Medium;
use mooncrate_core::error::MountError;
use mooncrate_lock::Mutex;
use mooncrate_wire::message::Announce;
use mooncrate_wire::task::blocking;
use mooncrate_wire::{Answer, Reply};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Pages of memory that are taken in before one of a disk that waits.
const MEMORY_ROW: u32 = 8;

/// Pages that wait, and whether somebody takes them in.
#[derive(Debug, Default)]
pub(crate) struct Intake(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    memory: VecDeque<Page>,
    disks: VecDeque<Page>,
    /// Pages of memory since the last one of a disk.
    row: u32,
    busy: bool,
}

impl Queue {
    fn next(&mut self) -> Option<Page> {
        if self.row < MEMORY_ROW
            && let Some(page) = self.memory.pop_front()
        {
            // A disk that does not wait has missed nothing.
            self.row = if self.disks.is_empty() { 0 } else { self.row + 1 };
            return Some(page);
        }
        self.row = 0;
        self.disks.pop_front().or_else(|| self.memory.pop_front())
    }
}

/// A page, and who waits for it.
#[derive(Debug)]
struct Page {
    told: Announce,
    taken: oneshot::Sender<Result<(), MountError>>,
}

impl Intake {
    /// Adds a page; whether somebody must be sent to take it in.
    fn add(&self, page: Page) -> bool {
        let mut queue = self.0.lock();
        let disk = page.told.segment.medium() == Medium::Ssd;
        if disk {
            queue.disks.push_back(page);
        } else {
            queue.memory.push_back(page);
        }
        !std::mem::replace(&mut queue.busy, true)
    }

    /// The next page; if there is none, whoever asks is done.
    fn next(&self) -> Option<Page> {
        let mut queue = self.0.lock();
        let next = queue.next();
        queue.busy = next.is_some();
        next
    }
}

/// Whoever takes pages in and panics gives up those that wait, so that their nodes mount again, and
/// the next page finds somebody else.
struct AtWork<'a>(&'a Intake);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.0.lock() = Queue::default();
        }
    }
}

impl Master {
    /// A page from a socket: it is answered when it is in the index, the last one when the segment is
    /// open. Opening takes long if the segment holds much, so a thread of its own does it.
    pub(crate) fn take_in(self: &Arc<Self>, told: Announce) -> Answer {
        let (segment, incarnation, last) = (told.segment, told.incarnation, told.last);
        let (taken, waiting) = oneshot::channel();
        if self.intake.add(Page { told, taken }) {
            let master = Arc::clone(self);
            drop(blocking(move || master.take_pages()));
        }
        let master = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            // Given up: told again, it will be tried again.
            let given_up = Err(MountError::UnknownNode);
            let taken = waiting.await.unwrap_or(given_up);
            if taken.is_err() || !last {
                return Reply::Announce(taken);
            }
            let opening = blocking(move || master.open_segment(segment, incarnation));
            Reply::Announce(opening.await.unwrap_or(given_up))
        }))
    }

    /// Takes pages in until none is left.
    fn take_pages(&self) {
        let _at_work = AtWork(&self.intake);
        while let Some(Page { told, taken }) = self.intake.next() {
            // A caller that has gone is no longer interested.
            let _ = taken.send(self.announce_page(&told));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::{Incarnation, LeaderEpoch, NodeId, SegmentId};

    fn page(medium: Medium, node: u64, number: u64) -> Page {
        Page {
            told: Announce {
                epoch: LeaderEpoch(1),
                segment: SegmentId::on(medium, NodeId(node), 0),
                incarnation: Incarnation(number),
                page: Vec::new(),
                last: false,
            },
            taken: oneshot::channel().0,
        }
    }

    /// Was: first come, first served. Memory of one node waited for the disks of all others.
    #[test]
    fn pages_of_memory_wait_for_no_disk() {
        let intake = Intake::default();
        assert!(intake.add(page(Medium::Ssd, 1, 1)), "somebody must come");
        for (medium, node, number) in [
            (Medium::Ssd, 1, 2),
            (Medium::Dram, 2, 3),
            (Medium::Ssd, 3, 4),
            (Medium::Vram, 2, 5),
            (Medium::Dram, 4, 6),
        ] {
            assert!(!intake.add(page(medium, node, number)), "somebody is there");
        }
        let taken = std::iter::from_fn(|| intake.next()).map(|page| page.told.incarnation.0);
        assert_eq!(taken.collect::<Vec<_>>(), [3, 5, 6, 1, 2, 4]);
        assert!(intake.add(page(Medium::Ssd, 1, 7)), "the last one has left");
    }

    /// Was: a disk waited until no memory was left. Its node gave it up, and told its memory again.
    #[test]
    fn a_disk_waits_for_eight_pages_of_memory() {
        let intake = Intake::default();
        for number in 0..20 {
            intake.add(page(Medium::Dram, 1, number));
        }
        let numbers = |count: usize| -> Vec<u64> {
            let taken = std::iter::from_fn(|| intake.next()).take(count);
            taken.map(|page| page.told.incarnation.0).collect()
        };
        // However much memory came before: that took nothing from a disk.
        assert_eq!(numbers(10), (0..10).collect::<Vec<_>>());
        for number in [100, 101, 102] {
            intake.add(page(Medium::Ssd, 2, number));
        }
        for number in 20..30 {
            intake.add(page(Medium::Dram, 1, number));
        }
        assert_eq!(numbers(9), [10, 11, 12, 13, 14, 15, 16, 17, 100]);
        assert_eq!(numbers(9), [18, 19, 20, 21, 22, 23, 24, 25, 101]);
        assert_eq!(numbers(9), [26, 27, 28, 29, 102], "none is lost");
    }
}
