//! On the same host: the owner passes its memory over a Unix socket, we map it once, and then a get
//! is a copy that asks nobody (R3). Large puts store straight into the owner's memory between a
//! begin and a signal; small ones go through the socket, where one round trip does it all.

use crate::engine::EngineConfig;
use crate::error::TransferError;
use crate::staged::{self, on_disk};
use crate::stream::{Stream, StreamSent, answer, begin_write};
use crate::{
    OpenPut, Path, Read, Sent, Transport, View, ViewBytes, Write, Written, go_on, one_by_one,
};
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::time::Deadline;
use mooncrate_core::{Incarnation, PutToken, Seal, SegmentId};
use mooncrate_lock::{Mutex, RwLock, interrupt};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{Identity, Mapping};
use mooncrate_wire::message::{self, DataReply, DataRequest, PinId};
use mooncrate_wire::pool::PooledLink;
use mooncrate_wire::{
    Address, CallError, DataError, DecodeError, Hello, Link, LinkConfig, LinkKind, Role,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a view's release may take; its end must not hold its owner up.
const UNPIN_TIME: Duration = Duration::from_millis(500);

type Mappings = BTreeMap<(SegmentId, Incarnation), Arc<Mapping>>;

/// A node on this host.
#[derive(Clone, Debug)]
pub struct Shared {
    address: Address,
    stream: Stream,
    role: Role,
    inline_bytes_max: u64,
    link_config: LinkConfig,
    mappings: Arc<RwLock<Mappings>>,
    /// Pins are booked to the connection that asked for them, so they have one of their own. Views
    /// share it, because whoever finds the connection broken must let go of it.
    pins: Arc<Mutex<Option<Arc<PinLink>>>>,
}

impl Shared {
    /// The node that listens at this Unix socket.
    pub fn new(address: Address, config: &EngineConfig) -> Self {
        Self {
            stream: Stream::as_role(address.clone(), config.role, &config.links),
            role: config.role,
            address,
            inline_bytes_max: config.inline_bytes_max,
            link_config: config.links.link.clone(),
            mappings: Arc::default(),
            pins: Arc::default(),
        }
    }

    /// Maps a segment, if it is not mapped yet.
    pub fn attach(&self, segment: SegmentId, deadline: Deadline) -> Result<(), TransferError> {
        let mut link = self.stream.link(deadline)?;
        let request = DataRequest::Attach(message::Attach { segment });
        let attached = match link.call_data(&request, &[], deadline)? {
            DataReply::Attach(attached) => attached?,
            other => return Err(unexpected(&other)),
        };
        let fds = link.take_fds();
        let (headers, payload, life) = match &fds[..] {
            [headers, payload] => (headers, payload, None),
            [headers, payload, life] => (headers, payload, Some(life.as_fd())),
            _ => return Err(no_descriptors()),
        };
        let identity = Identity {
            segment,
            incarnation: attached.incarnation,
            bytes: attached.bytes,
            slots: attached.slots,
        };
        let mapping = Mapping::new(headers.as_fd(), payload.as_fd(), life, identity)
            .map_err(TransferError::Map)?;
        let mut mappings = self.mappings.write();
        // Earlier mounts of the segment are dead; views hold what they still need.
        mappings.retain(|(other, _), _| *other != segment);
        mappings.insert((segment, attached.incarnation), Arc::new(mapping));
        Ok(())
    }

    /// Whether a value goes through the socket.
    fn goes_inline(&self, write: &Write<'_>) -> bool {
        write.value.len() != 1 || write.len() <= self.inline_bytes_max
    }

    fn mapping(&self, locator: &Locator) -> Result<Arc<Mapping>, TransferError> {
        let mappings = self.mappings.read();
        if let Some(found) = mappings.get(&(locator.segment, locator.incarnation)) {
            return Ok(Arc::clone(found));
        }
        let known = mappings.keys().any(|(segment, _)| *segment == locator.segment);
        Err(if known { DataError::Stale } else { DataError::UnknownSegment }.into())
    }

    fn read_one(&self, read: &mut Read<'_>) -> Result<(), TransferError> {
        read.check()?;
        go_on(read.len)?;
        let mapping = self.mapping(&read.locator)?;
        let (locator, seal) = (&read.locator, read.seal);
        match read.start {
            None => mapping.read_into(locator, seal, read.into, boottime)?,
            Some(start) => {
                let sealed = (read.len, seal);
                mapping.read_part_into(locator, sealed, start, read.into, boottime)?;
            }
        }
        Ok(())
    }

    /// As [`Shared::read_one`] in the owner's staging memory, which is new when the owner is.
    fn read_staged(&self, read: &mut Read<'_>, deadline: Deadline) -> Result<(), TransferError> {
        if self.mapping(&read.locator).is_err() {
            self.attach(read.locator.segment, deadline)?;
        }
        self.read_one(read)
    }

    /// The way that needs no shared memory.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Has the owner keep a value in place for us.
    pub(crate) fn pin_at_owner(
        &self,
        locator: &Locator,
        deadline: Deadline,
    ) -> Result<PinnedByOwner, TransferError> {
        let deadline = self.stream.soon(deadline);
        let link = self.pin_link(deadline)?;
        let id = link.pin(locator, deadline).inspect_err(|_| forget_broken(&self.pins, &link))?;
        let pins = Arc::clone(&self.pins);
        Ok(PinnedByOwner { link, id, pins, within: None })
    }

    fn pin_link(&self, deadline: Deadline) -> Result<Arc<PinLink>, CallError> {
        let _held = interrupt::hold();
        let mut pins = self.pins.lock();
        // Looking costs a system call, the pin a round trip: a peer that hung up is found out here.
        if let Some(link) = pins.as_ref().filter(|link| link.link.lock().is_idle()) {
            return Ok(Arc::clone(link));
        }
        let hello = Hello::new(self.role, LinkKind::Data, "views");
        let link = Link::connect(&self.address, &hello, &self.link_config, deadline)?;
        let link = Arc::new(PinLink { link: Mutex::new(link) });
        *pins = Some(Arc::clone(&link));
        Ok(link)
    }
}

impl Transport for Shared {
    fn path(&self) -> Path {
        Path::Shared
    }

    fn read(&self, reads: &mut [Read<'_>], deadline: Deadline) {
        if reads.iter().any(on_disk) {
            staged::read(&self.stream, reads, deadline, &mut |_, staged, deadline| {
                for read in staged {
                    read.result = self.read_staged(read, deadline);
                }
                Ok(())
            });
        }
        for read in reads.iter_mut().filter(|read| !on_disk(read)) {
            read.result = self.read_one(read);
        }
    }

    fn write<'a>(
        &'a self,
        write: &Write<'a>,
        deadline: Deadline,
    ) -> Result<Box<dyn Written + 'a>, TransferError> {
        let [value] = write.value else {
            return Ok(Box::new(self.stream.start_write(write, deadline)?));
        };
        if self.goes_inline(write) {
            return Ok(Box::new(self.stream.start_write(write, deadline)?));
        }
        let mapping = self.mapping(&write.locator)?;
        let mut link = self.stream.link(deadline)?;
        let begin = DataRequest::Begin(message::Begin { put: begin_write(write) });
        link.send_data(&begin, &[], deadline)?;
        answer(&mut link, deadline)??;
        // From here on the owner books the range to this link: should we die, it hangs up, and only
        // then can the range be used again (R7).
        let fds = link.take_fds();
        let writable = fds.first().ok_or_else(no_descriptors)?;
        let seal = mapping.write_value(writable.as_fd(), &write.locator, value)?;
        let (locator, token) = (write.locator, write.token);
        Ok(Box::new(DirectWritten { link, locator, token, seal, signalled: false, deadline }))
    }

    /// Small values go through the socket in one exchange, after those that are stored straight into the
    /// owner's memory.
    fn send<'a>(&'a self, writes: &'a [Write<'a>], deadline: Deadline) -> Box<dyn Sent + 'a> {
        let (inline, direct): (Vec<&Write<'_>>, Vec<&Write<'_>>) =
            writes.iter().partition(|write| self.goes_inline(write));
        let places = writes.iter().map(|write| self.goes_inline(write)).collect();
        let direct = one_by_one(self, direct.into_iter(), deadline);
        let inline = if direct.iter().any(|one| matches!(one, Err(TransferError::Call(_)))) {
            // It does not answer: the others would wait for it once more.
            StreamSent::untried(inline)
        } else {
            self.stream.start_writes(inline, deadline)
        };
        Box::new(SharedSent { inline, direct, places })
    }

    /// Through the socket: the owner sums the value when it is signalled, so nobody but the owner may
    /// store into it until then.
    fn open(
        &self,
        put: &message::BeginWrite<'_>,
        deadline: Deadline,
    ) -> Result<Box<dyn OpenPut>, TransferError> {
        self.stream.open(put, deadline)
    }

    fn view(
        &self,
        locator: &Locator,
        len: u64,
        seal: Seal,
        deadline: Deadline,
    ) -> Result<Option<View>, TransferError> {
        if locator.segment.medium() != Medium::Dram {
            return Ok(None);
        }
        let mapping = self.mapping(locator)?;
        if extent_bytes(len) != locator.extent.len() {
            return Err(DataError::OutOfBounds.into());
        }
        let mut pin = self.pin_at_owner(locator, deadline)?;
        // Until it is known to be good, it is a part of this call.
        pin.within = Some(self.stream.soon(deadline));
        let mut pin = SharedPin { mapping, locator: *locator, len, pin };
        if seal_of(pin.bytes()) != seal {
            return Err(DataError::Corrupt.into());
        }
        pin.pin.within = None;
        Ok(Some(View { bytes: ViewBytes::Shared(pin) }))
    }

    fn verify(&self, locator: &Locator, deadline: Deadline) -> Result<bool, TransferError> {
        self.stream.verify(locator, deadline)
    }

    fn hasty(&self, silence_max: Duration) -> Arc<dyn Transport> {
        Arc::new(Self { stream: self.stream.with_silence(silence_max), ..self.clone() })
    }
}

/// Values on their way: small ones over the socket, the others are in place already.
struct SharedSent<'a> {
    inline: StreamSent<'a>,
    direct: Vec<Result<Seal, TransferError>>,
    /// Which of all values are small.
    places: Vec<bool>,
}

impl Sent for SharedSent<'_> {
    fn finish(self: Box<Self>, deadline: Deadline) -> Vec<Result<Seal, TransferError>> {
        let Self { inline, direct, places } = *self;
        let mut inline = Box::new(inline).finish(deadline).into_iter();
        let mut direct = direct.into_iter();
        let mut next = |small: bool| if small { inline.next() } else { direct.next() };
        places.into_iter().map(|small| next(small).expect("one result per value")).collect()
    }
}

/// A value stored straight into the owner's memory.
struct DirectWritten<'a> {
    link: PooledLink<'a>,
    locator: Locator,
    token: PutToken,
    seal: Seal,
    /// The owner has been told; nothing is left to give up.
    signalled: bool,
    /// Of the call that wrote it.
    deadline: Deadline,
}

impl Written for DirectWritten<'_> {
    fn seal(&self) -> Seal {
        self.seal
    }

    fn signal(mut self: Box<Self>, deadline: Deadline) -> Result<(), TransferError> {
        let signal = message::Signal { locator: self.locator, token: self.token, seal: self.seal };
        self.signalled = true;
        self.link.send_data(&DataRequest::Signal(signal), &[], deadline)?;
        Ok(answer(&mut self.link, deadline)??)
    }
}

impl Drop for DirectWritten<'_> {
    /// A put that was not signalled is told to the owner, so that the link can go on.
    fn drop(&mut self) {
        if !self.signalled && self.link.at_rest() {
            let abandon = message::Abandon { locator: self.locator, token: self.token };
            let deadline = boottime().deadline_in(last_words(UNPIN_TIME)).min(self.deadline);
            // A failure closes the link, which tells the owner the same.
            let _ = interrupt::finally(|| {
                self.link.call_data(&DataRequest::Abandon(abandon), &[], deadline)
            });
        }
    }
}

/// The connection that pins are booked to. It closes when its last view is gone: closing it earlier
/// would let the owner free bytes that somebody still looks at.
#[derive(Debug)]
struct PinLink {
    link: Mutex<Link>,
}

impl PinLink {
    fn pin(&self, locator: &Locator, deadline: Deadline) -> Result<PinId, TransferError> {
        let pin = message::Pin { locators: Cow::Borrowed(std::slice::from_ref(locator)) };
        // The end of a view needs this lock, and a view may end wherever Python runs.
        let _held = interrupt::hold();
        match self.link.lock().call_data(&DataRequest::Pin(pin), &[], deadline)? {
            DataReply::Pin(results) if results.len() == 1 => Ok(results[0]?),
            other => Err(unexpected(&other)),
        }
    }
}

/// A pin that the owner holds for us, and the bytes it keeps in place.
#[derive(Debug)]
pub(crate) struct SharedPin {
    mapping: Arc<Mapping>,
    locator: Locator,
    len: u64,
    pin: PinnedByOwner,
}

/// A pin that the owner holds for us.
#[derive(Debug)]
pub(crate) struct PinnedByOwner {
    link: Arc<PinLink>,
    id: PinId,
    /// Where `link` is kept for the next pin.
    pins: Arc<Mutex<Option<Arc<PinLink>>>>,
    /// Until when it may be given back, while the call that made it lasts.
    within: Option<Deadline>,
}

impl SharedPin {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the owner pinned this life for the link of `self.pin`, which keeps it open; a link that
        // met an error is not closed before its last pin is dropped.
        let bytes = unsafe { self.mapping.pinned_bytes(&self.locator, self.len) };
        bytes.expect("the pin was granted for this locator")
    }
}

impl Drop for PinnedByOwner {
    fn drop(&mut self) {
        let unpin = message::Unpin { ids: Cow::Borrowed(std::slice::from_ref(&self.id)) };
        let soon = boottime().deadline_in(last_words(UNPIN_TIME));
        let deadline = self.within.map_or(soon, |within| soon.min(within));
        let gone = interrupt::finally(|| {
            self.link.link.lock().call_data(&DataRequest::Unpin(unpin), &[], deadline)
        });
        if gone.is_err() {
            // The pin goes when the link does, and the link when its last view does.
            forget_broken(&self.pins, &self.link);
        }
    }
}

/// How long the last words of a call may take: less where its caller was interrupted and waits for its end.
fn last_words(time: Duration) -> Duration {
    if interrupt::ended() { time.min(interrupt::SLICE) } else { time }
}

/// Lets go of a link that met an error, unless it was replaced already. Kept for a next view that
/// may never come, it would keep everything pinned that is booked to it.
fn forget_broken(pins: &Mutex<Option<Arc<PinLink>>>, link: &Arc<PinLink>) {
    let broken = !link.link.lock().is_open();
    let mut pins = pins.lock();
    if broken && pins.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, link)) {
        *pins = None;
    }
}

fn no_descriptors() -> TransferError {
    TransferError::Map(std::io::Error::other("the owner sent no descriptors"))
}

fn unexpected(reply: &DataReply) -> TransferError {
    CallError::from(DecodeError::Unexpected { kind: reply.kind() }).into()
}
