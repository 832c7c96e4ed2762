//! Memory for blocks on their way, bounded: whoever wants more waits until others are done.
//!
//! Buffers are used again, because fresh memory costs a page fault per 4 KiB. A buffer holds old bytes when it
//! is taken; callers use only what they have written into it.

use super::SpillError;
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_wire::clock::boottime;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Spare buffers that are kept.
const SPARE_MAX: usize = super::BATCHES_IN_FLIGHT as usize;

#[derive(Debug)]
pub(super) struct Buffers {
    state: Mutex<InFlight>,
    /// Somebody gave bytes back.
    freed: Condvar,
    bytes_max: u64,
    wait_max: Duration,
}

#[derive(Debug, Default)]
struct InFlight {
    bytes: u64,
    spare: Vec<Vec<u8>>,
}

impl Buffers {
    pub(super) fn new(bytes_max: u64, wait_max: Duration) -> Self {
        let state = Mutex::new(InFlight::default());
        Self { state, freed: Condvar::new(), bytes_max, wait_max }
    }

    /// How long a call waits for others.
    pub(super) const fn wait_max(&self) -> Duration {
        self.wait_max
    }

    /// A buffer of this length. One that is larger than the bound counts as the bound: it travels alone.
    pub(super) fn take(&self, len: usize) -> Result<Buffer<'_>, SpillError> {
        let counted = (len as u64).min(self.bytes_max);
        let deadline = boottime().deadline_in(self.wait_max);
        let mut state = self.state.lock();
        while state.bytes + counted > self.bytes_max {
            let left = deadline.left(boottime());
            if left.is_zero() {
                let waited_ms = self.wait_max.as_millis() as u64;
                return Err(SpillError::Busy { max: self.bytes_max, waited_ms });
            }
            self.freed.wait_for(&mut state, left);
        }
        state.bytes += counted;
        let mut bytes = state.spare.pop().unwrap_or_default();
        drop(state);
        if bytes.len() < len {
            bytes = vec![0; len];
        }
        Ok(Buffer { buffers: self, bytes, len, counted })
    }
}

/// Bytes in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    buffers: &'a Buffers,
    /// At least `len` bytes.
    bytes: Vec<u8>,
    len: usize,
    counted: u64,
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut state = self.buffers.state.lock();
        state.bytes -= self.counted;
        if state.spare.len() < SPARE_MAX && self.bytes.len() as u64 <= self.buffers.bytes_max {
            state.spare.push(std::mem::take(&mut self.bytes));
        }
        drop(state);
        self.buffers.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_flight_are_bounded() {
        let buffers = Buffers::new(100, Duration::from_millis(1));
        let first = buffers.take(60).unwrap();
        let busy = buffers.take(41).unwrap_err();
        assert!(matches!(busy, SpillError::Busy { max: 100, .. }), "{busy}");
        assert!(matches!(busy.advice(), crate::Advice::Retry { .. }));
        let second = buffers.take(40).unwrap();
        drop((first, second));
        // Larger than the bound: alone.
        let large = buffers.take(500).unwrap();
        assert_eq!(large.len(), 500);
        assert!(buffers.take(1).is_err());
        drop(large);
        assert_eq!(buffers.take(100).unwrap().len(), 100);
    }

    #[test]
    fn who_waits_gets_what_is_given_back() {
        let buffers = Buffers::new(100, Duration::from_mins(1));
        let held = buffers.take(100).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| buffers.take(50).map(|buffer| buffer.len()));
            drop(held);
            assert_eq!(waiting.join().unwrap().unwrap(), 50);
        });
    }
}
