//! How a read or a write is cut into spans that the kernel takes as they are.
//!
//! On a file that is open for direct I/O a span starts and ends at a multiple of [`ALIGN`] in the file, and
//! its memory lies as the device wants it ([`Lie`]). Bytes that do are moved straight from or to the caller's
//! memory; the rest goes through a room. Pieces that are written side by side share a span. Large operations
//! are cut, so that one of them alone keeps a device busy.
//!
//! What must stay true: spans of one operation do not overlap and cover all of it; a span that moved fewer
//! bytes than asked is resumed at a whole block, or fails when there was no progress (S10). Nothing is ever
//! read in order to be written back. The simulated disk cuts and resumes by this code, too: what it tries
//! is what runs on a real one.

use crate::ALIGN;
use crate::room::{Lent, Room, Rooms, round_up};
use mooncrate_core::canary::{self, Canary};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// An operation of at most so many bytes goes through one room rather than in several spans: a copy of
/// this size costs less than another trip to the device.
const SMALL: usize = 64 << 10;

/// Pieces that share a span.
const PARTS_MAX: usize = 64;

/// Bytes on their way between memory and a file.
#[derive(Debug)]
enum Bytes<'a> {
    /// Into the caller's memory.
    In(&'a mut [u8]),
    /// Into a room; what follows its first `skip` bytes is copied to the caller in the end.
    InRoom { room: Lent, skip: usize, into: &'a mut [u8] },
    /// From the caller's memory and a room, part by part; `len` bytes in all.
    Out { parts: Vec<Part<'a>>, room: Option<Lent>, len: usize },
}

/// A part of what is written.
#[derive(Debug)]
enum Part<'a> {
    /// As it lies.
    Straight(&'a [u8]),
    /// A part of the span's room.
    Room(Range<usize>),
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
    /// Written to the file: the first piece, and those behind it.
    Out(&'s [u8], Pieces<'s>),
}

impl<F> Span<'_, F> {
    /// What is still to be moved.
    pub(super) fn rest(&mut self) -> Rest<'_> {
        let done = self.done;
        match &mut self.bytes {
            Bytes::In(into) => Rest::In(&mut into[done..]),
            Bytes::InRoom { room, .. } => Rest::In(&mut room[done..]),
            Bytes::Out { parts, room, .. } => {
                let mut pieces = Pieces { parts: parts.iter(), room: room.as_deref(), skip: done };
                let first = pieces.next().unwrap_or_default();
                Rest::Out(first, pieces)
            }
        }
    }

    /// Bytes of the rest.
    pub(super) fn left(&self) -> usize {
        let all = match &self.bytes {
            Bytes::In(into) => into.len(),
            Bytes::InRoom { room, .. } => room.len(),
            Bytes::Out { len, .. } => *len,
        };
        all - self.done
    }

    /// Notes that the kernel has moved `moved` bytes of the rest. `true`: all is done; `false`: go on with
    /// what [`Span::rest`] gives now.
    pub(super) fn moved(&mut self, moved: usize) -> io::Result<bool> {
        let there = self.done + moved;
        // A room may extend beyond the end of the file; only what the caller wants must be there.
        let (need, out) = match &self.bytes {
            Bytes::In(into) => (into.len(), false),
            Bytes::InRoom { skip, into, .. } => (skip + into.len(), false),
            Bytes::Out { len, .. } => (*len, true),
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

/// The pieces of what is still to be written.
pub(super) struct Pieces<'s> {
    parts: std::slice::Iter<'s, Part<'s>>,
    room: Option<&'s Room>,
    /// Bytes that are written already.
    skip: usize,
}

impl<'s> Iterator for Pieces<'s> {
    type Item = &'s [u8];

    fn next(&mut self) -> Option<&'s [u8]> {
        loop {
            let piece = match (self.parts.next()?, self.room) {
                (Part::Straight(piece), _) => piece,
                (Part::Room(range), Some(room)) => &room[range.clone()],
                (Part::Room(_), None) => unreachable!("parts of a room have one"),
            };
            if let Some(rest) = piece.get(self.skip..).filter(|rest| !rest.is_empty()) {
                self.skip = 0;
                return Some(rest);
            }
            self.skip -= piece.len();
        }
    }
}

/// How memory must lie to be moved straight on a file that is open for direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lie {
    /// Addresses are multiples of this.
    pub align: usize,
}

impl Lie {
    /// What every device takes.
    pub(super) const BLOCKS: Self = Self { align: ALIGN };

    /// Whether bytes can go as they lie, but for what is behind their last whole block.
    fn suits(self, bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(self.align) && bytes.len() >= ALIGN
    }
}

/// How operations are cut.
#[derive(Clone, Debug)]
pub(super) struct Cutter {
    /// Most bytes of a span that go as they lie, as a rule; whole blocks.
    straight: usize,
    /// Most bytes of a span that go through a room.
    cut: usize,
    /// Rooms of that size.
    rooms: Rooms,
}

impl Cutter {
    /// Spans of about `cut` bytes; up to `keep` rooms of that size are kept for reuse.
    pub(super) fn new(cut: usize, keep: usize) -> Self {
        assert!(cut.is_multiple_of(ALIGN) && cut >= SMALL, "spans of {cut} bytes");
        Self { straight: cut, cut, rooms: Rooms::new(cut, keep) }
    }

    /// The same, but spans of about `straight` bytes where no room is needed.
    pub(super) fn straight(self, straight: usize) -> Self {
        assert!(straight.is_multiple_of(ALIGN) && straight >= self.cut, "{straight} bytes");
        Self { straight, ..self }
    }

    /// Bytes of a span where `left` are left. A little that would be left over goes along: another trip costs
    /// more.
    fn most(&self, left: usize) -> usize {
        if left <= self.straight + SMALL { left } else { self.straight }
    }
}

/// The spans of one read, made one by one.
pub(super) struct ReadSpans<'a, F = BorrowedFd<'a>> {
    pub fd: F,
    /// `None`: the file is not open for direct I/O, and anything goes.
    pub lie: Option<Lie>,
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
        let (fd, offset) = (self.fd, self.offset);
        let Some(lie) = self.lie else {
            let bytes = Bytes::In(self.take(left.min(cutter.cut)));
            return Some(Span { fd, offset, done: 0, align: 1, bytes });
        };
        let skip = (offset % ALIGN as u64) as usize;
        if skip == 0 && lie.suits(self.into) {
            let whole = left / ALIGN * ALIGN;
            let bytes = Bytes::In(self.take(cutter.most(whole)));
            return Some(Span { fd, offset, done: 0, align: ALIGN, bytes });
        }
        let head = (ALIGN - skip) % ALIGN;
        let some = if skip + left <= SMALL {
            left
        } else if lie.suits(&self.into[head..]) {
            // Behind the first block the rest can go straight.
            head
        } else {
            left.min(cutter.cut - skip)
        };
        let mut room = cutter.rooms.take();
        room.set_len(round_up(skip + some));
        let bytes = Bytes::InRoom { room, skip, into: self.take(some) };
        Some(Span { fd, offset: offset - skip as u64, done: 0, align: ALIGN, bytes })
    }

    fn take(&mut self, bytes: usize) -> &'a mut [u8] {
        let (head, tail) = std::mem::take(&mut self.into).split_at_mut(bytes);
        self.into = tail;
        self.offset += bytes as u64;
        head
    }
}

/// The spans of one write, made one by one.
pub(super) struct WriteSpans<'a, F = BorrowedFd<'a>> {
    pub fd: F,
    /// `None`: the file is not open for direct I/O, and anything goes. Else offset and length are whole
    /// blocks.
    pub lie: Option<Lie>,
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
        let (mut parts, mut room, mut len) = (Vec::new(), None, 0);
        let copy_all = self.left <= SMALL && self.piece()?.len() < self.left;
        let most = cutter.most(self.left);
        while let Some(piece) = self.piece() {
            // Bytes of the block that is being filled.
            let begun = if self.lie.is_some() { len % ALIGN } else { 0 };
            if len == most || (parts.len() >= PARTS_MAX && begun == 0) {
                break;
            }
            let budget = most - len;
            let straight = match self.lie {
                None => piece.len(),
                Some(lie) if begun == 0 && !copy_all && lie.suits(piece) => {
                    piece.len() / ALIGN * ALIGN
                }
                Some(_) => 0,
            };
            if straight > 0 {
                let piece = self.take(straight.min(budget));
                len += piece.len();
                parts.push(Part::Straight(piece));
                continue;
            }
            let room = room.get_or_insert_with(|| cutter.rooms.take());
            let from = room.len();
            if from == cutter.cut {
                break;
            }
            // Up to the next whole block: behind it the piece may go straight. Else all of it.
            let mut some = piece.len().min(budget).min(cutter.cut - from);
            if begun > 0 {
                some = some.min(ALIGN - begun);
            }
            let piece = self.take(some);
            len += piece.len();
            room.push(piece);
            match parts.last_mut() {
                Some(Part::Room(range)) => range.end = room.len(),
                _ => parts.push(Part::Room(from..room.len())),
            }
        }
        let align = if self.lie.is_some() { ALIGN } else { 1 };
        debug_assert!(len.is_multiple_of(align));
        let bytes = Bytes::Out { parts, room, len };
        (len > 0).then_some(Span { fd, offset, done: 0, align, bytes })
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
