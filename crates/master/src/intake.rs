//! Pages of announcements on their way into the index. One thread takes them in, one after the other,
//! while the workers read the next ones from their sockets: a node that announces millions of headers
//! keeps no worker from those who ask, and announcers do not wake each other for every slice.
//!
//! What must stay true: pages are taken in the order in which they came. The queue needs no bound of its
//! own: a connection holds a bounded number of requests and bytes that are not answered.

use crate::service::Master;
use mooncrate_core::error::MountError;
use mooncrate_lock::Mutex;
use mooncrate_wire::message::Announce;
use mooncrate_wire::{Answer, Reply};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

/// Pages that wait, and whether somebody takes them in.
#[derive(Debug, Default)]
pub(crate) struct Intake(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    pages: VecDeque<Page>,
    busy: bool,
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
        queue.pages.push_back(page);
        !std::mem::replace(&mut queue.busy, true)
    }

    /// The next page; if there is none, whoever asks is done.
    fn next(&self) -> Option<Page> {
        let mut queue = self.0.lock();
        let next = queue.pages.pop_front();
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
            spawn_blocking(move || master.take_pages());
        }
        let master = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            // Given up: told again, it will be tried again.
            let given_up = Err(MountError::UnknownNode);
            let taken = waiting.await.unwrap_or(given_up);
            if taken.is_err() || !last {
                return Reply::Announce(taken);
            }
            let opening = spawn_blocking(move || master.open_segment(segment, incarnation));
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
