//! The signals that end a command in order.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals to end, caught.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Catches them from now on; inside a runtime.
    pub(super) fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            // The terminal is gone: that is no reason to end less orderly.
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
