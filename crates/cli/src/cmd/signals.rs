//! The signals that end a command in order.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals to end, caught.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None`: whoever started us (`nohup`) wants us to outlive the terminal.
    hang_up: Option<Signal>,
}

impl Signals {
    /// Catches them from now on; inside a runtime.
    pub(super) fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            // The terminal is gone: that is no reason to end less orderly.
            hang_up: if ignores_hang_ups() { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    /// The next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = hung_up(&mut self.hang_up) => {}
        }
    }
}

async fn hung_up(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP, the first signal, is ignored; catching it would undo that.
fn ignores_hang_ups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}
