//! Values in memory of a GPU: sent and taken in pieces, through rooms of the owner, and lent to GPU
//! processes of this machine.

use super::connection::Connection;
use mooncrate_core::time::Deadline;
use mooncrate_core::{PutToken, Seal, SegmentId};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{
    FarShare, PinGuard, PublishError, ReadError, Room, Segment, Unpublished, WriteError, WriteGuard,
};
use mooncrate_rt as rt;
use mooncrate_wire::message::{self, DataReply, Lent, ReadReply};
use mooncrate_wire::{CallError, DataError, RequestId};
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a request waits for a room before it is told to come again.
const ROOM_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a peer may take over one piece of a value while it holds a room: one that is stopped, or has no
/// wish to go on, shall not keep others from theirs.
const PIECE_TIME_MAX: Duration = Duration::from_secs(5);
/// Between two looks, where looking did not wait by itself.
const ROOM_LOOK: Duration = Duration::from_millis(1);

impl Connection<'_> {
    /// Sends a part of a value, one room at a time, pinned until its last byte has left (R5). What fails
    /// before the first byte is said; later the bytes are promised, so the link ends. How many were sent.
    pub(super) fn read_far(
        &mut self,
        id: RequestId,
        read: &message::Read,
        pin: &PinGuard,
        deadline: Deadline,
    ) -> Result<Option<u64>, CallError> {
        let first = self.first_piece(read, pin, deadline);
        let (mut room, mut count) = match first {
            Ok(first) => first,
            Err(error) => {
                let error = self.server.tally.refused.wire(error);
                let refused = DataReply::Read(ReadReply { result: Err(error) });
                self.link.queue_reply(id, &refused, &[], deadline)?;
                return Ok(None);
            }
        };
        let reply = DataReply::Read(ReadReply { result: Ok(read.len) });
        let piece = IoSlice::new(&room.bytes()[..count]);
        self.link.queue_reply(id, &reply, &[piece], piece_deadline(deadline))?;
        let mut sent = count as u64;
        while sent < read.len {
            count = piece_len(&mut *room, read.len - sent);
            pin.load(&mut *room, read.start + sent, count).map_err(|error| CallError::Io {
                doing: "loading bytes from a GPU",
                peer: String::from("the memory of this node"),
                source: std::io::Error::other(error),
            })?;
            self.link.send_part(&room.bytes()[..count], piece_deadline(deadline))?;
            sent += count as u64;
        }
        Ok(Some(sent))
    }

    fn first_piece(
        &self,
        read: &message::Read,
        pin: &PinGuard,
        deadline: Deadline,
    ) -> Result<(Box<dyn Room>, usize), DataError> {
        let inside = read.start.checked_add(read.len).is_some_and(|end| end <= pin.sealed_len());
        if !inside {
            return Err(DataError::OutOfBounds);
        }
        let mut room = self.room_within(deadline, || pin.room())?;
        let count = piece_len(&mut *room, read.len);
        pin.load(&mut *room, read.start, count).map_err(|error| match error {
            ReadError::OutOfBounds => DataError::OutOfBounds,
            _ => DataError::Device,
        })?;
        Ok((room, count))
    }

    /// Waits for a room, for as long as the caller waits and no longer than is good for anybody.
    fn room_within(
        &self,
        deadline: Deadline,
        room: impl Fn() -> Result<Option<Box<dyn Room>>, ReadError>,
    ) -> Result<Box<dyn Room>, DataError> {
        let end = deadline.min(boottime().deadline_in(ROOM_TIME_MAX));
        loop {
            match room() {
                Ok(Some(room)) => return Ok(room),
                Ok(None) => return Err(DataError::Unsupported),
                Err(_) if end.passed(boottime()) || self.server.stopping() => {
                    return Err(DataError::Busy { after_ms: super::connection::BUSY_MS });
                }
                Err(_) => rt::sleep(ROOM_LOOK),
            }
        }
    }

    /// Lends the memory of a GPU that a segment lies in, to whom it may share memory with.
    pub(super) fn lend(
        &mut self,
        id: RequestId,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        match self.lent(segment) {
            Ok((lent, share)) => {
                let reply = DataReply::Lend(Ok(lent));
                self.link.send_reply_with_fds(id, &reply, &[share.memory.as_fd()], deadline)
            }
            Err(error) => {
                let error = self.server.tally.refused.wire(error);
                self.link.queue_reply(id, &DataReply::Lend(Err(error)), &[], deadline)
            }
        }
    }

    fn lent(&self, segment: SegmentId) -> Result<(Lent, FarShare), DataError> {
        let found = self.server.segments.get(segment).ok_or(DataError::UnknownSegment)?;
        let far = found.far().filter(|_| self.may_share()).ok_or(DataError::Unsupported)?;
        let share = far.share().map_err(|_| DataError::Device)?.ok_or(DataError::Unsupported)?;
        let identity = found.spec().identity();
        let lent = Lent {
            incarnation: identity.incarnation,
            bytes: identity.bytes,
            memory_bytes: share.memory_bytes,
            device: share.device,
        };
        Ok((lent, share))
    }
}

/// Until when one piece has to have moved that waits in a room.
fn piece_deadline(deadline: Deadline) -> Deadline {
    deadline.min(boottime().deadline_in(PIECE_TIME_MAX))
}

/// The same for the next bytes of a guard: those that go to host memory have all the time there is.
pub(super) fn bytes_deadline(guard: &WriteGuard, deadline: Deadline) -> Deadline {
    if guard.segment().far().is_some() { piece_deadline(deadline) } else { deadline }
}

/// As much as fits a room.
fn piece_len(room: &mut dyn Room, left: u64) -> usize {
    room.bytes().len().min(usize::try_from(left).unwrap_or(usize::MAX))
}

/// Waits until a guard has a place for its next bytes, if it will have one; what it then says counts.
pub(super) fn wait_for_room(
    guard: &mut WriteGuard,
    deadline: Deadline,
    mut ask: impl FnMut(&mut WriteGuard) -> Result<(), WriteError>,
) {
    if guard.segment().far().is_none() {
        return;
    }
    let end = deadline.min(boottime().deadline_in(ROOM_TIME_MAX));
    while ask(guard) == Err(WriteError::Busy) && !end.passed(boottime()) {
        rt::sleep(ROOM_LOOK);
    }
}

/// Publishes a put in parts. The owner sums what came, so it may have to wait for a room.
pub(super) fn publish_parts(
    mut guard: WriteGuard,
    token: PutToken,
    seal: Seal,
    deadline: Deadline,
) -> Result<(), Box<Unpublished>> {
    let end = deadline.min(boottime().deadline_in(ROOM_TIME_MAX));
    loop {
        match guard.publish_placed(boottime(), token, seal) {
            Err(busy) if busy.error == PublishError::Busy && !end.passed(boottime()) => {
                guard = busy.guard;
                rt::sleep(ROOM_LOOK);
            }
            published => return published,
        }
    }
}

/// Whether a peer that may share memory can store a value into this segment by itself.
pub(super) fn stores_directly(segment: &Arc<Segment>) -> bool {
    segment.writable_fd().is_some() || segment.far().is_some()
}
