//! Over a socket: requests are pipelined, values go straight from where they are to where they
//! belong, and both ends sum them while they are in cache.

use crate::error::TransferError;
use crate::lanes::Lanes;
use crate::part::Cover;
use crate::staged::{self, on_disk};
use crate::{OpenPut, Path, Read, Sent, Transport, View, Write, Written};
use mooncrate_core::plan::Locator;
use mooncrate_core::time::Deadline;
use mooncrate_core::{PutToken, Seal};
use mooncrate_mem::SliceSums;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::message::{self, DataReply, DataRequest};
use mooncrate_wire::pool::PooledLink;
use mooncrate_wire::{
    Address, CallError, DataError, DecodeError, Hello, Link, LinkKind, LinkPool, PoolConfig, Role,
};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

/// Reads in flight on one link. Requests are small, so the owner can always take this many while it
/// is sending; more could fill both directions and stall.
const READS_AHEAD: usize = 32;
/// Values that are sent ahead of the answers for those before them; a link takes 256 requests, and each is two.
const WRITES_AHEAD: usize = 64;
/// Their bytes: what the socket of an owner that is stopped still takes, so that nobody waits to send.
const WRITE_BYTES_AHEAD: u64 = 128 << 10;
/// A value up to this size goes out in one piece with its frame.
const ONE_PIECE_BYTES: u64 = 64 << 10;
/// Larger values are summed and sent in chunks of this size, each while it is in cache.
const CHUNK_BYTES: usize = 256 << 10;

/// A node behind a socket.
#[derive(Clone, Debug)]
pub struct Stream {
    pool: Arc<LinkPool>,
    lanes: Lanes,
    /// Longest wait in which nothing moves.
    silence_max: Duration,
}

impl Stream {
    /// A node that serves data at `address`.
    pub fn new(address: Address, config: &PoolConfig) -> Self {
        Self::as_role(address, Role::Client, config)
    }

    /// The same, for a caller of another role.
    pub fn as_role(address: Address, role: Role, config: &PoolConfig) -> Self {
        let hello = Hello::new(role, LinkKind::Data, "data");
        // An owner that is gone took its memory along: nothing is gained by waiting for the next
        // one at its address, while another copy may be a moment away.
        let config = PoolConfig { reconnect_time: Duration::ZERO, ..config.clone() };
        let pool = Arc::new(LinkPool::new(address, hello, config));
        Self { pool, lanes: Lanes::default(), silence_max: Duration::MAX }
    }

    /// The same node, with large values over so many links.
    #[must_use]
    pub fn with_lanes(self, lanes: Lanes) -> Self {
        Self { lanes, ..self }
    }

    /// The same node and links, for a caller that gives up when nothing moves for so long.
    pub(crate) fn with_silence(&self, silence_max: Duration) -> Self {
        Self { pool: Arc::clone(&self.pool), lanes: self.lanes, silence_max }
    }

    /// Until when an exchange of a few bytes is waited for.
    pub(crate) fn soon(&self, deadline: Deadline) -> Deadline {
        deadline.min(boottime().deadline_in(self.silence_max))
    }

    /// A link of one's own to the node.
    pub(crate) fn link(&self, deadline: Deadline) -> Result<PooledLink<'_>, CallError> {
        Ok(self.hurried(self.pool.checkout(self.soon(deadline))?))
    }

    /// The same without waiting for one that others use; `None`: all of them are in use.
    pub(crate) fn free_link(
        &self,
        deadline: Deadline,
    ) -> Result<Option<PooledLink<'_>>, CallError> {
        let link = self.pool.checkout_free(self.soon(deadline))?;
        Ok(link.map(|link| self.hurried(link)))
    }

    fn hurried<'a>(&self, mut link: PooledLink<'a>) -> PooledLink<'a> {
        link.set_silence_max(self.silence_max);
        link
    }

    /// Sends a write and leaves its reply on the way.
    pub(crate) fn start_write<'a>(
        &'a self,
        write: &Write<'a>,
        deadline: Deadline,
    ) -> Result<StreamWritten<'a>, TransferError> {
        let mut link = self.link(deadline)?;
        let seal = send_value(&mut link, write, deadline)?;
        link.flush(deadline)?;
        Ok(StreamWritten { link, locator: write.locator, token: write.token, seal })
    }

    /// Sends the first of some values, each with its signal; the rest follows as answers come.
    pub(crate) fn start_writes<'a>(
        &'a self,
        writes: Vec<&'a Write<'a>>,
        deadline: Deadline,
    ) -> StreamSent<'a> {
        let mut sent = StreamSent::untried(writes);
        if sent.writes.is_empty() {
            return sent;
        }
        match self.free_link(deadline) {
            Ok(Some(link)) => sent.begin(link, deadline),
            // The caller may hold other links until it has finished with them: it must not wait here.
            Ok(None) => sent.late = Some(self),
            Err(error) => sent.give_up(error),
        }
        sent
    }

    fn read_all(
        &self,
        reads: &mut [Read<'_>],
        deadline: Deadline,
    ) -> Result<(), (CallError, bool)> {
        let mut link = self.link(deadline).map_err(|error| (error, false))?;
        let fresh = !link.is_reused();
        let mut came = false;
        read_over(&mut link, reads, deadline, &mut came).map_err(|error| (error, !fresh && !came))
    }

    /// Closes the links that nobody uses.
    pub(crate) fn forget_idle(&self) {
        self.pool.forget_idle();
    }
}

/// Does the open reads over one link; `came` says whether one came back.
pub(crate) fn read_over(
    link: &mut PooledLink<'_>,
    reads: &mut [Read<'_>],
    deadline: Deadline,
    came: &mut bool,
) -> Result<(), CallError> {
    // The next to send, and those on the way.
    let (mut sent, mut ahead) = (0, 0);
    for next in 0..reads.len() {
        if !open(&reads[next]) {
            continue;
        }
        while sent < reads.len() && ahead < READS_AHEAD {
            if open(&reads[sent]) {
                ask(link, &reads[sent], deadline)?;
                ahead += 1;
            }
            sent += 1;
        }
        let read = &mut reads[next];
        read.result = receive(link, read, deadline)?;
        ahead -= 1;
        *came = true;
    }
    Ok(())
}

/// Whether a read is still to be done over the one link.
fn open(read: &Read<'_>) -> bool {
    matches!(read.result, Err(TransferError::NotTried)) && !on_disk(read)
}

/// Sends what a read needs.
fn ask(link: &mut PooledLink<'_>, read: &Read<'_>, deadline: Deadline) -> Result<(), CallError> {
    if let Some(cover) = Cover::of(read) {
        return cover.ask(link, &read.locator, deadline);
    }
    let Read { locator, len, .. } = *read;
    link.queue_data(&DataRequest::Read(message::Read { locator, start: 0, len }), &[], deadline)?;
    Ok(())
}

/// Takes one reply with its bytes. The outer error ends the link, the inner one only this read.
fn receive(
    link: &mut PooledLink<'_>,
    read: &mut Read<'_>,
    deadline: Deadline,
) -> Result<Result<(), TransferError>, CallError> {
    if let Some(cover) = Cover::of(read) {
        return cover.receive(link, read, deadline);
    }
    Ok(receive_sums(link, read.into, deadline)?.and_then(|sums| {
        if sums.seal() == read.seal { Ok(()) } else { Err(DataError::Corrupt.into()) }
    }))
}

/// The same for bytes that are not judged yet: the sums of what arrived.
pub(crate) fn receive_sums(
    link: &mut PooledLink<'_>,
    into: &mut [u8],
    deadline: Deadline,
) -> Result<Result<SliceSums, TransferError>, CallError> {
    if let Err(error) = receive_len(link, into.len() as u64, deadline)? {
        return Ok(Err(error.into()));
    }
    let mut sums = SliceSums::new();
    link.recv_attachment(into, |chunk| sums.update(chunk), deadline)?;
    Ok(Ok(sums))
}

/// Takes the head of a reply to a read; `wanted` bytes follow it, unless the owner refused.
pub(crate) fn receive_len(
    link: &mut PooledLink<'_>,
    wanted: u64,
    deadline: Deadline,
) -> Result<Result<(), DataError>, CallError> {
    let reply = match link.recv_data(deadline)? {
        (_, DataReply::Read(reply)) => reply,
        (_, DataReply::Refuse(refusal)) => return Err(refusal.into()),
        (_, other) => return Err(DecodeError::Unexpected { kind: other.kind() }.into()),
    };
    match reply.result {
        Ok(came) if came == wanted => Ok(Ok(())),
        Ok(came) => {
            let what = "the length of a value";
            Err(DecodeError::BadValue { what, value: came }.into())
        }
        Err(error) => Ok(Err(error)),
    }
}

impl Transport for Stream {
    fn path(&self) -> Path {
        Path::Stream
    }

    fn read(&self, reads: &mut [Read<'_>], deadline: Deadline) {
        for read in &mut *reads {
            read.result = read.check().and(Err(TransferError::NotTried));
        }
        for read in &mut *reads {
            if open(read)
                && read.start.is_none()
                && let Some(done) = self.lanes.read(self, read, deadline)
            {
                read.result = done;
            }
        }
        if reads.iter().any(on_disk) {
            staged::read(self, reads, deadline, &mut |link, reads, deadline| {
                read_over(link, reads, deadline, &mut false)
            });
        }
        if !reads.iter().any(open) {
            return;
        }
        let mut outcome = self.read_all(reads, deadline);
        if let Err((_, true)) = outcome {
            // The link had rested and its peer was gone: nothing was read, so ask over a new one.
            self.pool.forget_idle();
            outcome = self.read_all(reads, deadline);
        }
        if let Err((error, _)) = outcome {
            let first = reads.iter_mut().find(|read| open(read));
            if let Some(read) = first {
                read.result = Err(error.into());
            }
        }
    }

    fn write<'a>(
        &'a self,
        write: &Write<'a>,
        deadline: Deadline,
    ) -> Result<Box<dyn Written + 'a>, TransferError> {
        Ok(Box::new(self.start_write(write, deadline)?))
    }

    fn send<'a>(&'a self, writes: &'a [Write<'a>], deadline: Deadline) -> Box<dyn Sent + 'a> {
        Box::new(self.start_writes(writes.iter().collect(), deadline))
    }

    fn open(
        &self,
        put: &message::BeginWrite<'_>,
        deadline: Deadline,
    ) -> Result<Box<dyn OpenPut>, TransferError> {
        // A link of its own: the put is booked to it and may stay open for long, and hanging up gives
        // the range back.
        let mut link = self.pool.dedicated(deadline)?;
        link.set_silence_max(self.silence_max);
        let request = DataRequest::Open(message::Open { put: *put });
        told(link.call_data(&request, &[], deadline)?)??;
        Ok(Box::new(StreamOpen { link, locator: put.locator, token: put.token }))
    }

    fn view(
        &self,
        _locator: &Locator,
        _len: u64,
        _seal: Seal,
        _deadline: Deadline,
    ) -> Result<Option<View>, TransferError> {
        Ok(None)
    }

    fn verify(
        &self,
        locator: &Locator,
        seal: Seal,
        deadline: Deadline,
    ) -> Result<bool, TransferError> {
        let request = DataRequest::Verify(message::Verify { locator: *locator, seal });
        match self.link(deadline)?.call_data(&request, &[], deadline)? {
            DataReply::Verify(answer) => Ok(answer?),
            DataReply::Refuse(refusal) => Err(CallError::from(refusal).into()),
            other => Err(CallError::from(DecodeError::Unexpected { kind: other.kind() }).into()),
        }
    }

    fn hasty(&self, silence_max: Duration) -> Arc<dyn Transport> {
        Arc::new(self.with_silence(silence_max))
    }
}

/// Sends a value, or queues it; its seal.
fn send_value(
    link: &mut PooledLink<'_>,
    write: &Write<'_>,
    deadline: Deadline,
) -> Result<Seal, CallError> {
    let put = begin_write(write);
    let request = DataRequest::Write(message::Write { put });
    let mut sums = SliceSums::new();
    if put.len <= ONE_PIECE_BYTES {
        for piece in write.value {
            sums.update(piece);
        }
        let parts: Vec<IoSlice<'_>> = write.value.iter().map(|p| IoSlice::new(p)).collect();
        link.queue_data(&request, &parts, deadline)?;
    } else {
        link.send_data(&request, &[], deadline)?;
        for chunk in write.value.iter().flat_map(|piece| piece.chunks(CHUNK_BYTES)) {
            sums.update(chunk);
            link.send_part(chunk, deadline)?;
        }
    }
    Ok(sums.seal())
}

/// Values on their way over one link, each followed by its signal.
pub(crate) struct StreamSent<'a> {
    /// `None` after an error. Dropping it hangs up, and the owner gives back what it has not published.
    link: Option<PooledLink<'a>>,
    /// Where a link is waited for, if none was free. Nothing is sent before.
    late: Option<&'a Stream>,
    /// The error, until a value has it.
    broken: Option<CallError>,
    writes: Vec<&'a Write<'a>>,
    /// Of those that were sent.
    seals: Vec<Seal>,
    /// Of those that were answered for.
    results: Vec<Result<Seal, TransferError>>,
}

impl<'a> StreamSent<'a> {
    /// Values that are not sent at all.
    pub(crate) fn untried(writes: Vec<&'a Write<'a>>) -> Self {
        let (seals, results) = (Vec::new(), Vec::new());
        Self { link: None, late: None, broken: None, writes, seals, results }
    }

    /// The values, of which none was sent.
    pub(crate) fn into_writes(self) -> Vec<&'a Write<'a>> {
        self.writes
    }

    fn begin(&mut self, link: PooledLink<'a>, deadline: Deadline) {
        self.link = Some(link);
        self.fill(deadline);
    }

    /// Whether it needs no link that others hold.
    pub(crate) fn has_begun(&self) -> bool {
        self.late.is_none()
    }

    /// Sends on, as far as that may be ahead of the answers.
    fn fill(&mut self, deadline: Deadline) {
        let ahead: u64 =
            self.writes[self.results.len()..self.seals.len()].iter().map(|w| w.len()).sum();
        let (mut bytes, mut count) = (ahead, self.seals.len() - self.results.len());
        while let Some(write) = self.writes.get(self.seals.len())
            && let Some(link) = &mut self.link
            && (count == 0 || (count < WRITES_AHEAD && bytes + write.len() <= WRITE_BYTES_AHEAD))
        {
            let sent = send_value(link, write, deadline).and_then(|seal| {
                let (locator, token) = (write.locator, write.token);
                let signal = message::Signal { locator, token, seal };
                link.queue_data(&DataRequest::Signal(signal), &[], deadline)?;
                Ok(seal)
            });
            match sent {
                Ok(seal) => self.seals.push(seal),
                Err(error) => return self.give_up(error),
            }
            (bytes, count) = (bytes + write.len(), count + 1);
        }
        let flushed = self.link.as_mut().map_or(Ok(()), |link| link.flush(deadline));
        if let Err(error) = flushed {
            self.give_up(error);
        }
    }

    fn give_up(&mut self, error: CallError) {
        self.link = None;
        self.broken.get_or_insert(error);
    }

    /// Takes the owner's word on the next value.
    fn next(&mut self, deadline: Deadline) -> Result<Result<(), DataError>, CallError> {
        let link = self.link.as_mut().expect("looked at by the caller");
        let written = answer(link, deadline)?;
        let published = answer(link, deadline)?;
        Ok(written.and(published))
    }
}

impl Sent for StreamSent<'_> {
    fn has_begun(&self) -> bool {
        self.has_begun()
    }

    fn finish(mut self: Box<Self>, deadline: Deadline) -> Vec<Result<Seal, TransferError>> {
        if let Some(stream) = self.late.take() {
            match stream.link(deadline) {
                Ok(link) => self.begin(link, deadline),
                Err(error) => self.give_up(error),
            }
        }
        while self.link.is_some() && self.results.len() < self.writes.len() {
            let seal = self.seals[self.results.len()];
            match self.next(deadline) {
                Ok(published) => self.results.push(published.map(|()| seal).map_err(Into::into)),
                Err(error) => self.give_up(error),
            }
            self.fill(deadline);
        }
        let mut broken = self.broken.take().map(TransferError::from);
        while self.results.len() < self.writes.len() {
            self.results.push(Err(broken.take().unwrap_or(TransferError::NotTried)));
        }
        self.results
    }
}

/// What a frame says of a write.
pub(crate) fn begin_write<'a>(write: &Write<'a>) -> message::BeginWrite<'a> {
    message::BeginWrite {
        locator: write.locator,
        token: write.token,
        object: write.object,
        epoch: write.epoch,
        len: write.len(),
        label: write.label,
    }
}

/// A value that was sent; the owner's word on it is still on the way. Dropping it hangs up, and the
/// owner gives the range back.
pub(crate) struct StreamWritten<'a> {
    link: PooledLink<'a>,
    locator: Locator,
    token: PutToken,
    seal: Seal,
}

impl Written for StreamWritten<'_> {
    fn seal(&self) -> Seal {
        self.seal
    }

    fn signal(mut self: Box<Self>, deadline: Deadline) -> Result<(), TransferError> {
        let signal = message::Signal { locator: self.locator, token: self.token, seal: self.seal };
        self.link.send_data(&DataRequest::Signal(signal), &[], deadline)?;
        let written = answer(&mut self.link, deadline)?;
        let published = answer(&mut self.link, deadline)?;
        Ok(written.and(published)?)
    }
}

/// The owner's word on a write, a begin or an end.
pub(crate) fn answer(
    link: &mut PooledLink<'_>,
    deadline: Deadline,
) -> Result<Result<(), DataError>, CallError> {
    told(link.recv_data(deadline)?.1)
}

/// The same in a reply that has arrived.
fn told(reply: DataReply) -> Result<Result<(), DataError>, CallError> {
    match reply {
        DataReply::Write(result)
        | DataReply::Begin(result)
        | DataReply::Signal(result)
        | DataReply::Abandon(result)
        | DataReply::Open(result)
        | DataReply::WritePart(result) => Ok(result),
        DataReply::Refuse(refusal) => Err(refusal.into()),
        other => Err(DecodeError::Unexpected { kind: other.kind() }.into()),
    }
}

/// A put in parts, over a link of its own.
#[derive(Debug)]
struct StreamOpen {
    link: Link,
    locator: Locator,
    token: PutToken,
}

impl OpenPut for StreamOpen {
    fn write(&mut self, offset: u64, part: &[u8], deadline: Deadline) -> Result<(), TransferError> {
        let (len, locator, token) = (part.len() as u64, self.locator, self.token);
        let request = DataRequest::WritePart(message::WritePart { len, locator, token, offset });
        Ok(told(self.link.call_data(&request, &[IoSlice::new(part)], deadline)?)??)
    }

    fn signal(mut self: Box<Self>, seal: Seal, deadline: Deadline) -> Result<(), TransferError> {
        // Its owner sums the value, and says nothing meanwhile.
        self.link.set_silence_max(Duration::MAX);
        let signal = message::Signal { locator: self.locator, token: self.token, seal };
        Ok(told(self.link.call_data(&DataRequest::Signal(signal), &[], deadline)?)??)
    }
}
