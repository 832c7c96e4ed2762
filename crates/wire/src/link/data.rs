//! The data side of a link: requests and replies with attachments, and the called side, which on
//! data links is a blocking link as well.

use super::Link;
use crate::clock::{boottime, deadline_of};
use crate::error::{CallError, DecodeError, Refusal, RefusalCode};
use crate::frame::RequestId;
use crate::message::{DataReply, DataRequest};
use mooncrate_core::time::Deadline;
use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Bytes received at a time: what arrived is summed by the caller while it is in cache.
const CHUNK_BYTES: usize = 256 << 10;
/// An attachment up to this size is copied, to be sent together with others.
const QUEUED_PART_MAX: u64 = 16 << 10;
/// What waits to be sent together leaves when it is this much.
const QUEUED_BYTES_MAX: usize = 64 << 10;

/// A request that arrived.
#[derive(Debug)]
pub struct Asked<'a> {
    /// To be named in the reply.
    pub id: RequestId,
    /// When the caller gives up.
    pub deadline: Deadline,
    /// What it asks.
    pub request: DataRequest<'a>,
}

impl Link {
    /// Sends a request to a node. A `Write` or `WritePart` is followed by its bytes: `parts` first, the rest by
    /// [`Link::send_part`], so that a caller can sum and send piece by piece.
    pub fn send_data(
        &mut self,
        request: &DataRequest<'_>,
        parts: &[IoSlice<'_>],
        deadline: Deadline,
    ) -> Result<RequestId, CallError> {
        let id = self.queue_data(request, parts, deadline)?;
        self.flush(deadline)?;
        Ok(id)
    }

    /// The same, but what is small waits for what follows, for [`Link::flush`], or until this side waits for
    /// the peer.
    pub fn queue_data(
        &mut self,
        request: &DataRequest<'_>,
        parts: &[IoSlice<'_>],
        deadline: Deadline,
    ) -> Result<RequestId, CallError> {
        let attached = match request {
            DataRequest::Write(write) => write.put.len,
            DataRequest::WritePart(part) => part.len,
            _ => 0,
        };
        let id = self.reserve(request.kind())?;
        let staged = self.stage(request.kind(), id, false, deadline, |out| request.encode(out));
        if let Err(error) = staged {
            self.in_flight.retain(|(asked, _)| *asked != id);
            return Err(error);
        }
        self.queue(attached, parts, deadline)?;
        Ok(id)
    }

    /// The next reply of a node. The bytes of a `Read` follow: [`Link::recv_attachment`].
    pub fn recv_data(&mut self, deadline: Deadline) -> Result<(RequestId, DataReply), CallError> {
        self.recv_reply(deadline, "a reply", DataReply::decode)
    }

    /// Asks a node and waits for its answer. Nothing else may be in flight.
    pub fn call_data(
        &mut self,
        request: &DataRequest<'_>,
        parts: &[IoSlice<'_>],
        deadline: Deadline,
    ) -> Result<DataReply, CallError> {
        assert!(
            self.broken || self.in_flight.is_empty(),
            "call needs a link of its own; use send and recv"
        );
        self.send_data(request, parts, deadline)?;
        match self.recv_reply(deadline, request.kind().awaited(), DataReply::decode)? {
            (_, DataReply::Refuse(refusal)) => Err(refusal.into()),
            (_, reply) => Ok(reply),
        }
    }

    /// More bytes of the attachment that was announced.
    pub fn send_part(&mut self, bytes: &[u8], deadline: Deadline) -> Result<(), CallError> {
        if self.broken {
            return Err(self.channel.closed("room to send"));
        }
        assert!(bytes.len() as u64 <= self.attached_out, "more bytes than were announced");
        let sent = self.channel.write_all(bytes, &[], deadline, "room to send");
        self.attached_out -= bytes.len() as u64;
        self.broken |= sent.is_err();
        sent
    }

    /// Bytes of the attachment that are still to be sent.
    pub fn part_left(&self) -> u64 {
        self.attached_out
    }

    /// Bytes of the attachment that are still to be received.
    pub fn attachment_left(&self) -> u64 {
        self.attached_in
    }

    /// Receives `target.len()` bytes of the attachment, straight into `target`; only what had come
    /// together with the frame is copied. `on_chunk` sees each piece as it arrives, in order.
    pub fn recv_attachment(
        &mut self,
        target: &mut [u8],
        mut on_chunk: impl FnMut(&[u8]),
        deadline: Deadline,
    ) -> Result<(), CallError> {
        if self.broken {
            return Err(self.channel.closed("the bytes of a value"));
        }
        assert!(target.len() as u64 <= self.attached_in, "more bytes than were announced");
        let mut at = self.inbox.take(target);
        if at > 0 {
            on_chunk(&target[..at]);
        }
        if at < target.len() {
            self.flush(deadline)?;
        }
        while at < target.len() {
            let end = target.len().min(at + CHUNK_BYTES);
            let piece = &mut target[at..end];
            let came = self.channel.read(piece, None, deadline, "the bytes of a value");
            self.broken |= came.is_err();
            let count = came?;
            on_chunk(&target[at..at + count]);
            at += count;
        }
        self.attached_in -= target.len() as u64;
        Ok(())
    }

    /// Reads the rest of the attachment and forgets it, so that the link can go on after a value
    /// that was refused.
    pub fn skip_attachment(&mut self, deadline: Deadline) -> Result<(), CallError> {
        let mut sink = [0; 16 << 10];
        while self.attached_in > 0 {
            let count = sink.len().min(usize::try_from(self.attached_in).expect("64-bit target"));
            self.recv_attachment(&mut sink[..count], |_| (), deadline)?;
        }
        Ok(())
    }

    /// Descriptors that came with the last frames.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// The called side: the next request. What is not one is refused in words, and the link is
    /// closed. A deadline at which nothing of a request has come leaves the link as it was.
    pub fn recv_request(&mut self, deadline: Deadline) -> Result<Asked<'_>, CallError> {
        let (was_open, answered) = (!self.broken, self.outbox.is_empty());
        let frame = self.read_frame(deadline, "a request").inspect_err(|error| {
            let quiet = matches!(error, CallError::Deadline { .. }) && self.inbox.held() == 0;
            // An answer that was cut short cannot be mended.
            self.broken = !(quiet && was_open && answered);
        })?;
        let arrived = boottime();
        let (id, kind) = (frame.header.request(), frame.header.kind());
        self.attached_in = frame.attached;
        let refused = if frame.header.is_reply() {
            Some((RefusalCode::Protocol, DecodeError::Unexpected { kind }))
        } else if kind.link() != Some(self.kind) {
            Some((RefusalCode::WrongLink, DecodeError::Unexpected { kind }))
        } else {
            DataRequest::decode(kind, self.inbox.bytes(frame.body.clone()))
                .err()
                .map(|error| (RefusalCode::Protocol, error))
        };
        if let Some((code, error)) = refused {
            let words = format!("this is a {} link: {error}", self.kind);
            self.refuse(id, &Refusal::new(code, words), deadline);
            return Err(error.into());
        }
        let request = DataRequest::decode(kind, self.inbox.bytes(frame.body))?;
        let deadline = deadline_of(frame.header.deadline_ms(), arrived);
        Ok(Asked { id, deadline, request })
    }

    /// The called side: whether another request is here already, so that answers can wait for its answer.
    pub fn has_request(&self) -> bool {
        self.inbox.has_frame()
    }

    /// The called side: answers, as [`Link::queue_data`] asks. A `Read` is followed by its bytes.
    pub fn queue_reply(
        &mut self,
        id: RequestId,
        reply: &DataReply,
        parts: &[IoSlice<'_>],
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let attached = match reply {
            DataReply::Read(read) => read.result.unwrap_or(0),
            _ => 0,
        };
        self.stage(reply.kind(), id, true, deadline, |out| reply.encode(out))?;
        self.queue(attached, parts, deadline)
    }

    /// The called side: answers, with descriptors. Only on Unix sockets.
    pub fn send_reply_with_fds(
        &mut self,
        id: RequestId,
        reply: &DataReply,
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<(), CallError> {
        self.write_with_fds(reply.kind(), id, true, deadline, fds, |out| reply.encode(out))
    }

    /// Takes the first parts of the attachment of the last frame in the outbox, and sends all of it if it is not
    /// small, or more bytes follow.
    fn queue(
        &mut self,
        attached: u64,
        parts: &[IoSlice<'_>],
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let given: u64 = parts.iter().map(|part| part.len() as u64).sum();
        assert!(given <= attached, "more bytes than were announced");
        self.attached_out = attached - given;
        if given < attached || given > QUEUED_PART_MAX {
            return self.send_outbox(parts, deadline);
        }
        for part in parts {
            self.outbox.extend_from_slice(part);
        }
        if self.outbox.len() < QUEUED_BYTES_MAX { Ok(()) } else { self.flush(deadline) }
    }
}
