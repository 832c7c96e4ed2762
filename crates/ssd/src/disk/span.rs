//! How a read or a write is cut into spans that the kernel takes as they are.
//!
//! On a file that is open for direct I/O a span starts at a multiple of [`ALIGN`], in the file and in
//! memory, and extends to one. Bytes that lie so are moved straight from or to the caller's memory; the
//! rest goes through a room. Large operations are cut, so that one of them alone keeps a device busy.
//!
//! What must stay true: spans of one operation do not overlap and cover all of it; a span that moved fewer
//! bytes than asked is resumed at a whole block, or fails when there was no progress (S10). Nothing is ever
//! read in order to be written back. The simulated disk cuts and resumes by this code, too: what it tries
//! is what runs on a real one.

use crate::ALIGN;
use crate::room::{Lent, Rooms, round_up};
use mooncrate_core::canary::{self, Canary};
use std::io;
use std::os::fd::BorrowedFd;

/// An operation of at most so many bytes goes through one room rather than in several spans: a copy of
/// this size costs less than another trip to the device.
const SMALL: usize = 64 << 10;

/// Bytes on their way between memory and a file.
#[derive(Debug)]
enum Bytes<'a> {
    /// Into the caller's memory.
    In(&'a mut [u8]),
    /// Into a room; what follows its first `skip` bytes is copied to the caller in the end.
    InRoom { room: Lent, skip: usize, into: &'a mut [u8] },
    /// From the caller's memory.
    Out(&'a [u8]),
    /// From a room.
    OutRoom(Lent),
}

/// One transfer that the kernel takes as it is.
#[derive(Debug)]
pub(super) struct Span<'a, F = BorrowedFd<'a>> {
    /// The file.
    pub fd: F,
    /// Where the rest of it begins in the file.
    pub offset: u64,
    /// Bytes that were moved; a multiple of `align`.
    done: usize,
    /// Positions from which it can be resumed are multiples of this.
    align: usize,
    bytes: Bytes<'a>,
}

/// The memory of a span that is still to be moved.
pub(super) enum Rest<'s> {
    /// Filled from the file.
    In(&'s mut [u8]),
    /// Written to the file.
    Out(&'s [u8]),
}

impl<F> Span<'_, F> {
    /// What is still to be moved.
    pub(super) fn rest(&mut self) -> Rest<'_> {
        let done = self.done;
        match &mut self.bytes {
            Bytes::In(into) => Rest::In(&mut into[done..]),
            Bytes::InRoom { room, .. } => Rest::In(&mut room[done..]),
            Bytes::Out(from) => Rest::Out(&from[done..]),
            Bytes::OutRoom(room) => Rest::Out(&room[done..]),
        }
    }

    /// Notes that the kernel has moved `moved` bytes of the rest. `true`: all is done; `false`: go on with
    /// what [`Span::rest`] gives now.
    pub(super) fn moved(&mut self, moved: usize) -> io::Result<bool> {
        let there = self.done + moved;
        // A room may extend beyond the end of the file; only what the caller wants must be there.
        let (need, out) = match &self.bytes {
            Bytes::In(into) => (into.len(), false),
            Bytes::InRoom { skip, into, .. } => (skip + into.len(), false),
            Bytes::Out(from) => (from.len(), true),
            Bytes::OutRoom(room) => (room.len(), true),
        };
        let short_is_fine = !out && canary::on(Canary::ShortReadAccepted);
        if there >= need || short_is_fine {
            if let Bytes::InRoom { room, skip, into } = &mut self.bytes {
                into.copy_from_slice(&room[*skip..][..into.len()]);
            }
            return Ok(true);
        }
        let whole = there / self.align * self.align;
        if whole <= self.done {
            return Err(if out {
                io::Error::new(io::ErrorKind::WriteZero, "the disk took no more bytes")
            } else {
                io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the read does")
            });
        }
        self.offset += (whole - self.done) as u64;
        self.done = whole;
        Ok(false)
    }
}

/// How operations are cut.
#[derive(Clone, Debug)]
pub(super) struct Cutter {
    /// Most bytes of a span; whole blocks.
    cut: usize,
    /// Rooms of that size.
    rooms: Rooms,
}

impl Cutter {
    /// Spans of at most `cut` bytes; up to `keep` rooms of that size are kept for reuse.
    pub(super) fn new(cut: usize, keep: usize) -> Self {
        assert!(cut.is_multiple_of(ALIGN) && cut >= SMALL, "spans of {cut} bytes");
        Self { cut, rooms: Rooms::new(cut, keep) }
    }
}

/// The spans of one operation.
pub(super) enum Spans<'a> {
    Read(ReadSpans<'a>),
    Write(WriteSpans<'a>),
}

impl<'a> Spans<'a> {
    /// The next one; `None` when all were made.
    pub(super) fn next(&mut self, cutter: &Cutter) -> Option<Span<'a>> {
        match self {
            Self::Read(spans) => spans.next(cutter),
            Self::Write(spans) => spans.next(cutter),
        }
    }
}

/// The spans of one read, made one by one.
pub(super) struct ReadSpans<'a, F = BorrowedFd<'a>> {
    pub fd: F,
    pub direct: bool,
    pub offset: u64,
    pub into: &'a mut [u8],
}

impl<'a, F: Copy> ReadSpans<'a, F> {
    /// The next one; `None` when all were made.
    pub(super) fn next(&mut self, cutter: &Cutter) -> Option<Span<'a, F>> {
        let left = self.into.len();
        if left == 0 {
            return None;
        }
        let skip = (self.offset % ALIGN as u64) as usize;
        let shift = self.into.as_ptr().addr() % ALIGN;
        let (fd, start) = (self.fd, self.offset - skip as u64);
        if !self.direct {
            let offset = self.offset;
            let bytes = Bytes::In(self.take(left.min(cutter.cut)));
            return Some(Span { fd, offset, done: 0, align: 1, bytes });
        }
        let bytes = if skip == 0 && shift == 0 && left >= ALIGN {
            Bytes::In(self.take((left / ALIGN * ALIGN).min(cutter.cut)))
        } else {
            let some = if skip + left <= SMALL {
                left
            } else if shift == skip {
                // After the first block the rest can go straight.
                left.min(ALIGN - skip)
            } else {
                left.min(cutter.cut - skip)
            };
            let mut room = cutter.rooms.take();
            room.set_len(round_up(skip + some));
            Bytes::InRoom { room, skip, into: self.take(some) }
        };
        Some(Span { fd, offset: start, done: 0, align: ALIGN, bytes })
    }

    fn take(&mut self, bytes: usize) -> &'a mut [u8] {
        let (head, tail) = std::mem::take(&mut self.into).split_at_mut(bytes);
        self.into = tail;
        self.offset += bytes as u64;
        head
    }
}

/// The spans of one write, made one by one. Where `direct` is set, offset and length are whole blocks.
pub(super) struct WriteSpans<'a, F = BorrowedFd<'a>> {
    pub fd: F,
    pub direct: bool,
    pub offset: u64,
    pub pieces: &'a [&'a [u8]],
    /// Bytes of the first piece that are used up.
    pub used: usize,
    /// Bytes left of all pieces.
    pub left: usize,
}

impl<'a, F: Copy> WriteSpans<'a, F> {
    /// The next one; `None` when all were made.
    pub(super) fn next(&mut self, cutter: &Cutter) -> Option<Span<'a, F>> {
        let (fd, offset) = (self.fd, self.offset);
        let piece = self.piece()?;
        if !self.direct {
            let bytes = Bytes::Out(self.take(piece.len().min(cutter.cut)));
            return Some(Span { fd, offset, done: 0, align: 1, bytes });
        }
        let one_copy = self.left <= SMALL && piece.len() < self.left;
        let bytes = if straight(piece) && !one_copy {
            Bytes::Out(self.take((piece.len() / ALIGN * ALIGN).min(cutter.cut)))
        } else {
            let mut room = cutter.rooms.take();
            while let Some(piece) = self.piece() {
                let whole = !room.is_empty() && room.len().is_multiple_of(ALIGN);
                if room.left() == 0 || (whole && straight(piece) && !one_copy) {
                    break;
                }
                // Up to where the rest of a piece could go straight, if it ever can.
                let some = piece.len().min(room.left());
                let some = self.take(some);
                room.push(some);
            }
            debug_assert!(room.len().is_multiple_of(ALIGN));
            Bytes::OutRoom(room)
        };
        Some(Span { fd, offset, done: 0, align: ALIGN, bytes })
    }

    /// What is left of the first piece that has bytes.
    fn piece(&mut self) -> Option<&'a [u8]> {
        loop {
            let rest = &self.pieces.first()?[self.used..];
            if !rest.is_empty() {
                return Some(rest);
            }
            self.pieces = &self.pieces[1..];
            self.used = 0;
        }
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let taken = &self.pieces[0][self.used..][..bytes];
        self.used += bytes;
        self.left -= bytes;
        self.offset += bytes as u64;
        taken
    }
}

/// Whether a piece can go as it lies, but for what is behind its last whole block.
fn straight(piece: &[u8]) -> bool {
    piece.as_ptr().addr().is_multiple_of(ALIGN) && piece.len() >= ALIGN
}
