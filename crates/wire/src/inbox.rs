//! A stream cut into frames, without I/O: the owner reads into [`Inbox::space`], says how much
//! came, and takes frames out. The blocking links and the server use the same one.
//!
//! What must stay true: memory follows what a peer has *sent*, not what it has promised. A header
//! that announces 8 MiB gets room step by step, as bytes arrive, so ten thousand stalled senders
//! cost ten thousand small buffers.

use crate::error::FrameError;
use crate::frame::{FRAME_HEADER_BYTES, Frame, decode_frame};
use std::ops::Range;

/// Bytes read at a time while frames are small. Larger would make attachments pass through it.
pub const INBOX_BYTES: usize = 16 << 10;
/// A buffer that a large frame stretched beyond this goes back to its first size when it is empty.
const KEEP_BYTES_MAX: usize = 256 << 10;

/// Bytes that arrived and are not taken yet.
#[derive(Debug)]
pub struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { bytes: vec![0; INBOX_BYTES], start: 0, end: 0 }
    }
}

impl Inbox {
    /// The next complete frame, if there is one; its `body` is a range for [`Inbox::bytes`], valid
    /// until the next call of [`Inbox::space`].
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(mut frame) = decode_frame(&self.bytes[self.start..self.end])? else {
            return Ok(None);
        };
        frame.body = frame.body.start + self.start..frame.body.end + self.start;
        self.start += frame.consumed;
        Ok(Some(frame))
    }

    /// Whether the next frame is here, or something that is none.
    pub fn has_frame(&self) -> bool {
        !matches!(decode_frame(&self.bytes[self.start..self.end]), Ok(None))
    }

    /// Bytes of a frame's body.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Bytes that are here and belong to no frame that was taken.
    pub fn held(&self) -> usize {
        self.end - self.start
    }

    /// Memory it takes.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Takes up to `target.len()` held bytes as they are: the start of an attachment.
    pub fn take(&mut self, target: &mut [u8]) -> usize {
        let count = self.held().min(target.len());
        target[..count].copy_from_slice(&self.bytes[self.start..self.start + count]);
        self.start += count;
        count
    }

    /// Room for what is read next; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        if self.held() == 0 {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEEP_BYTES_MAX {
                self.bytes = vec![0; INBOX_BYTES];
            }
        }
        // Move the beginning of a cut frame down once little room is left behind it.
        if self.start > 0 && self.bytes.len() - self.end < self.bytes.len() / 4 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.held());
        }
        if self.end == self.bytes.len() {
            // The whole buffer is one cut frame, whose header was checked: double what *arrived*.
            let wanted =
                (self.bytes.len() * 2).min(FRAME_HEADER_BYTES + crate::frame::BODY_BYTES_MAX);
            assert!(
                wanted > self.bytes.len(),
                "a frame larger than its limit passed the header check"
            );
            self.bytes.resize(wanted, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// `count` bytes were read into the space.
    pub fn filled(&mut self, count: usize) {
        self.end += count;
        assert!(self.end <= self.bytes.len(), "more was read than there was room for");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{BODY_BYTES_MAX, RequestId, Stamp, VERSION_MIN, encode_frame};
    use crate::kind::Kind;

    fn frame(request: u64, body: &[u8]) -> Vec<u8> {
        let stamp = Stamp {
            version: VERSION_MIN,
            kind: Kind::Locate,
            reply: false,
            request: RequestId(request),
            deadline_ms: 0,
        };
        let mut out = Vec::new();
        encode_frame(&mut out, stamp, |out| out.extend_from_slice(body)).unwrap();
        out
    }

    /// Whatever the pieces a stream arrives in, the same frames come out.
    #[test]
    fn frames_come_out_of_any_pieces() {
        let mut stream = Vec::new();
        let sizes = [0, 1, 5_000, 40_000, 7, 300_000, 3];
        for (n, size) in sizes.into_iter().enumerate() {
            stream.extend(frame(n as u64, &vec![n as u8; size]));
        }
        for piece in [1, 13, 4096, 100_000] {
            let mut inbox = Inbox::default();
            let mut seen = Vec::new();
            let mut rest = &stream[..];
            while !rest.is_empty() || inbox.held() > 0 {
                while let Some(frame) = inbox.next_frame().unwrap() {
                    let body = inbox.bytes(frame.body);
                    assert!(body.iter().all(|b| u64::from(*b) == frame.header.request().0));
                    seen.push(body.len());
                }
                let space = inbox.space();
                let count = space.len().min(piece).min(rest.len());
                space[..count].copy_from_slice(&rest[..count]);
                inbox.filled(count);
                rest = &rest[count..];
            }
            assert_eq!(seen, sizes, "pieces of {piece}");
        }
    }

    #[test]
    fn memory_follows_what_arrived() {
        let whole = frame(0, &vec![1; BODY_BYTES_MAX]);
        let mut inbox = Inbox::default();
        let mut sent = 0;
        // A sender promises 8 MiB, then trickles: twice what it sent is the most it can claim.
        while sent < 1 << 20 {
            let space = inbox.space();
            let count = space.len().min(1000);
            space[..count].copy_from_slice(&whole[sent..sent + count]);
            inbox.filled(count);
            sent += count;
            assert!(inbox.next_frame().unwrap().is_none());
            assert!(inbox.capacity() <= INBOX_BYTES.max(2 * sent + 1000), "{sent}");
        }
        // The largest frame fits.
        while sent < whole.len() {
            let space = inbox.space();
            let count = space.len().min(whole.len() - sent);
            space[..count].copy_from_slice(&whole[sent..sent + count]);
            inbox.filled(count);
            sent += count;
        }
        assert_eq!(inbox.next_frame().unwrap().unwrap().body.len(), BODY_BYTES_MAX);
        inbox.space();
        assert_eq!(inbox.capacity(), INBOX_BYTES, "and its room is given back");
    }
}
