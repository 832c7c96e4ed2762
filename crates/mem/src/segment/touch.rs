//! Taking the pages of a segment from the system before values need them.
//!
//! A page of shared memory is charged to the cgroup of the process that touches it first. Without this a client that stores
//! a value directly pays for the page, and a limit that is too small is met hours after the start.

use super::Segment;
use mooncrate_core::Extent;
use std::io;

/// Bytes between two calls of the listener: some ten milliseconds of work.
const STEP_BYTES: u64 = 64 << 20;

/// Pages of a segment that the system did not give.
#[derive(Debug, thiserror::Error)]
#[error("{touched} bytes were touched, then: {source}")]
pub struct TouchError {
    /// Bytes whose pages are there.
    pub touched: u64,
    /// What the system said: `ENOMEM`, `EFAULT` where a store would have met SIGBUS, `EHWPOISON` for a broken page.
    pub source: io::Error,
}

impl Segment {
    /// Takes all pages of the payload, step by step; `each` gets the number of bytes that are there after each step. What
    /// lies in them stays as it is. A segment that is not in memory of the host has none to take.
    pub fn touch(&self, mut each: impl FnMut(u64)) -> Result<(), TouchError> {
        let Some(payload) = self.payload.region() else { return Ok(()) };
        let mut touched = 0;
        while touched < self.spec.bytes {
            let step = Extent::new(touched, STEP_BYTES.min(self.spec.bytes - touched));
            let step = step.expect("a part of the segment");
            payload.touch(step).map_err(|source| TouchError { touched, source })?;
            touched += step.len();
            each(touched);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::SegmentSpec;
    use mooncrate_core::{Incarnation, SegmentId};

    /// Pages of a memfd that the system has given, in bytes.
    fn present(segment: &Segment) -> u64 {
        let file = rustix::fs::fstat(segment.writable_fd().unwrap()).unwrap();
        file.st_blocks.cast_unsigned() * 512
    }

    #[test]
    fn all_pages_are_there_and_each_step_is_told() {
        let bytes = STEP_BYTES + 8192;
        let spec = SegmentSpec {
            segment: SegmentId(1),
            incarnation: Incarnation(1),
            bytes,
            slots: 16,
            shared: true,
            huge: false,
        };
        let segment = Segment::create(spec).unwrap();
        assert!(present(&segment) < bytes / 2, "nothing is taken before");
        let mut told = Vec::new();
        segment.touch(|touched| told.push(touched)).unwrap();
        assert_eq!(told, [STEP_BYTES, bytes]);
        assert!(present(&segment) >= bytes, "{} of {bytes}", present(&segment));
        segment.touch(|_| ()).unwrap();
    }
}
