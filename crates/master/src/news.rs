//! News: something changed that a waiting call may care about. Calls wait for it in threads (a
//! master in the same process) and in tasks (a master behind a socket), so it wakes both.

use mooncrate_core::Now;
use mooncrate_core::time::Deadline;
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_wire::task::timeout;
use std::time::Duration;
use tokio::sync::Notify;

/// How often a call that waits for the cluster looks again by itself: time alone brings some of it about.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A counter that wakes whoever waits for it to move.
#[derive(Debug, Default)]
pub(crate) struct News {
    version: Mutex<u64>,
    changed: Condvar,
    notify: Notify,
}

impl News {
    /// What is known now. Read it *before* looking at the state that it guards.
    pub(crate) fn version(&self) -> u64 {
        *self.version.lock()
    }

    /// Something changed.
    pub(crate) fn publish(&self) {
        *self.version.lock() += 1;
        self.changed.notify_all();
        self.notify.notify_waiters();
    }

    /// Blocks until there is news since `seen`, or it is time to look again.
    pub(crate) fn wait(&self, seen: u64, now: Now, deadline: Deadline) {
        self.wait_for(seen, deadline.left(now).min(LOOK_AGAIN));
    }

    /// The same, in a task.
    pub(crate) async fn wait_async(&self, seen: u64, now: Now, deadline: Deadline) {
        self.wait_for_async(seen, deadline.left(now).min(LOOK_AGAIN)).await;
    }

    /// Blocks until there is news since `seen`, for so long at most. Also ends for no reason: look again.
    pub(crate) fn wait_for(&self, seen: u64, time: Duration) {
        let mut version = self.version.lock();
        if *version == seen {
            self.changed.wait_for(&mut version, time);
        }
    }

    /// The same, in a task.
    pub(crate) async fn wait_for_async(&self, seen: u64, time: Duration) {
        // Enlisted before the version is compared, so nothing falls between the two.
        let news = self.notify.notified();
        if self.version() == seen {
            let _timeout = timeout(time, news).await;
        }
    }
}
