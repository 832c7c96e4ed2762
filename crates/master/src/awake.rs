//! Keeps a worker from sleeping between two requests that follow each other closely.
//!
//! A worker's runtime sleeps in the kernel when it has nothing to do, and to be woken takes as long as a request. So
//! after each request a task of the runtime goes on yielding for a moment: as long as a task wants to run, the
//! runtime asks its sockets without sleeping.

use mooncrate_wire::clock::boottime;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// What the requests of one worker and its task share. One thread uses it, so every access is relaxed.
#[derive(Debug, Default)]
pub(crate) struct Awake {
    last: AtomicU64,
    on: AtomicBool,
    request: Notify,
}

impl Awake {
    /// A request came.
    pub(crate) fn touch(&self) {
        self.last.store(boottime().0, Ordering::Relaxed);
        if !self.on.swap(true, Ordering::Relaxed) {
            self.request.notify_one();
        }
    }

    /// Keeps the runtime awake for so long after each request. It ends with its runtime.
    pub(crate) async fn keep(&self, time: Duration) {
        loop {
            self.request.notified().await;
            while boottime().0 < self.last.load(Ordering::Relaxed) + time.as_nanos() as u64 {
                tokio::task::yield_now().await;
            }
            self.on.store(false, Ordering::Relaxed);
        }
    }
}
