//! On the same host: the owner passes its memory over a Unix socket, we map it once, and then a get
//! is a copy that asks nobody (R3). Large puts store straight into the owner's memory between a
//! begin and a signal; small ones go through the socket, where one round trip does it all.
//!
//! Memory is mapped once per mount, however often its locators turn out stale. That is safe because a
//! mapping is no proof of anything. An incarnation names one mount, whose two files never change, so mapping
//! them again would show the same bytes; and every read asks the mapped headers, after the copy: the life
//! of the slot, the owner's leave to serve, the owner's death, the seal. A locator of another mount finds
//! no mapping here, whichever is older ([`Mapped`], [0039](../../../docs/decisions/0039-mapped-once.md)).

use crate::direct::{DirectPuts, DirectWritten};
use crate::engine::EngineConfig;
use crate::error::TransferError;
use crate::local::each;
use crate::staged::{self, on_disk};
use crate::stream::{Stream, StreamSent};
use crate::{OpenPut, Path, Read, Sent, Transport, View, ViewBytes, Write, Written, go_on};
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::tally::Count;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_core::{Incarnation, Seal, SegmentId};
use mooncrate_lock::{Mutex, RwLock, interrupt};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{Identity, Mapping};
use mooncrate_rt as rt;
use mooncrate_wire::message::{self, DataReply, DataRequest, PinId};
use mooncrate_wire::pool::PooledLink;
use mooncrate_wire::{
    Address, CallError, DataError, DecodeError, Hello, Link, LinkConfig, LinkKind, Role,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How long the release of a view or of a range may take; the end of a call must not be held up.
pub(crate) const UNPIN_TIME: Duration = Duration::from_millis(500);

/// How long memory is kept after its owner's leave to serve has run out. An owner that lives and has lost its
/// master keeps what it holds, and the same mount may serve again after any time. So this is no proof of
/// anything: it bounds what is held for the dead, and a mount that comes back is mapped again.
const KEPT: Duration = Duration::from_secs(10);

type Mounts = BTreeMap<(SegmentId, Incarnation), Arc<Mapping>>;

/// Memory of one owner that is mapped.
#[derive(Debug, Default)]
struct Mapped {
    mounts: RwLock<Mounts>,
    /// Held while memory is mapped, so that two callers do not map the same. Never over a call.
    making: Mutex<()>,
    /// How often memory was mapped and kept.
    count: Count,
}

/// What a process has mapped of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedMemory {
    /// How often memory was mapped so far. What was not served when it was looked at is not counted: it was not
    /// kept.
    pub maps: u64,
    /// Mounts that are mapped now. What only a view keeps is not counted.
    pub mounts: u64,
    /// Bytes of their payload.
    pub bytes: u64,
}

/// A node on this host.
#[derive(Clone, Debug)]
pub struct Shared {
    address: Address,
    stream: Stream,
    role: Role,
    inline_bytes_max: u64,
    link_config: LinkConfig,
    mapped: Arc<Mapped>,
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
            mapped: Arc::default(),
            pins: Arc::default(),
        }
    }

    /// Asks the owner for the present mount of a segment, and maps it unless it is mapped already. `Fenced`: its
    /// owner has not served it for so long that it would be let go of at once.
    pub fn attach(&self, segment: SegmentId, deadline: Deadline) -> Result<(), TransferError> {
        let mut link = self.stream.link(deadline)?;
        self.attach_over(&mut link, segment, deadline)
    }

    /// The same over a link that the caller holds: it must not wait for another one.
    fn attach_over(
        &self,
        link: &mut PooledLink<'_>,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<(), TransferError> {
        let request = DataRequest::Attach(message::Attach { segment, stores: false });
        let attached = match link.call_data(&request, &[], deadline)? {
            DataReply::Attach(attached) => attached?,
            other => return Err(unexpected(&other)),
        };
        let fds = link.take_fds();
        let identity = Identity {
            segment,
            incarnation: attached.incarnation,
            bytes: attached.bytes,
            slots: attached.slots,
        };
        let earlier = self.mapped.keep(&fds, identity)?;
        // No lock is held here, and no time of this call is spent on it.
        drop_apart(earlier);
        Ok(())
    }

    /// Whether this mount of a segment (`None`: any) is mapped, and its owner may serve it. Whoever finds it
    /// otherwise asks the owner, and so learns whether it is still there.
    pub(crate) fn serves(&self, segment: SegmentId, mount: Option<Incarnation>) -> bool {
        let mounts = self.mapped.mounts.read();
        let mut found = mounts.iter().filter(|((mapped, incarnation), _)| {
            *mapped == segment && mount.is_none_or(|mount| mount == *incarnation)
        });
        found.any(|(_, mapping)| boottime() < mapping.serve_until())
    }

    /// Lets go of memory that its owner does not serve any more; which mounts those were. Waits for nobody.
    pub(crate) fn let_go(&self, now: Now) -> Vec<(SegmentId, Incarnation)> {
        // Usually there is none, and readers must not wait for that to be found out.
        if !self.mapped.mounts.read().values().any(|mapping| over(mapping, now)) {
            return Vec::new();
        }
        let gone = self.mapped.take_where(|_, mapping| over(mapping, now));
        let mounts = gone.keys().copied().collect();
        drop_apart(gone);
        mounts
    }

    /// What is mapped of this owner.
    pub fn mapped(&self) -> MappedMemory {
        let mounts = self.mapped.mounts.read();
        let bytes = mounts.values().map(|mapping| mapping.identity().bytes).sum();
        MappedMemory { maps: self.mapped.count.value(), mounts: mounts.len() as u64, bytes }
    }

    /// Stores and publishes values over one link, then begins with the small ones. An owner that does not answer is
    /// not asked again.
    fn send_over<'a>(
        &'a self,
        link: Result<PooledLink<'a>, CallError>,
        direct: &[&'a Write<'a>],
        inline: Vec<&'a Write<'a>>,
        deadline: Deadline,
    ) -> (Direct<'a>, StreamSent<'a>) {
        let results = match link {
            Ok(link) => DirectPuts::new(self, link, direct, deadline).put_all(),
            Err(error) => {
                let rest = direct[1..].iter().map(|_| Err(TransferError::NotTried));
                std::iter::once(Err(error.into())).chain(rest).collect()
            }
        };
        let inline = if results.iter().any(|one| matches!(one, Err(TransferError::Call(_)))) {
            // It does not answer: the others would wait for it once more.
            StreamSent::untried(inline)
        } else {
            self.stream.start_writes(inline, deadline)
        };
        (Direct::Done(results), inline)
    }

    /// Whether a value goes through the socket.
    fn goes_inline(&self, write: &Write<'_>) -> bool {
        write.value.len() != 1 || write.len() <= self.inline_bytes_max
    }

    pub(crate) fn mapping(&self, locator: &Locator) -> Result<Arc<Mapping>, TransferError> {
        let mounts = self.mapped.mounts.read();
        if let Some(found) = mounts.get(&(locator.segment, locator.incarnation)) {
            return Ok(Arc::clone(found));
        }
        let known = mounts.keys().any(|(segment, _)| *segment == locator.segment);
        Err(if known { DataError::Stale } else { DataError::UnknownSegment }.into())
    }

    /// The same with leave to store there, which the owner gives once per mount. Nothing may be in flight on the link.
    pub(crate) fn storable(
        &self,
        link: &mut PooledLink<'_>,
        locator: &Locator,
        deadline: Deadline,
    ) -> Result<Arc<Mapping>, TransferError> {
        let mapping = self.mapping(locator)?;
        if mapping.takes_stores() {
            return Ok(mapping);
        }
        let attach = message::Attach { segment: locator.segment, stores: true };
        match link.call_data(&DataRequest::Attach(attach), &[], deadline)? {
            DataReply::Attach(attached) => attached?,
            other => return Err(unexpected(&other)),
        };
        let writable = link.take_fds().pop().ok_or_else(no_descriptors)?;
        // Another mount is another file, and is refused.
        mapping.allow_stores(writable).map_err(TransferError::Map)?;
        Ok(mapping)
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
    fn read_staged(
        &self,
        link: &mut PooledLink<'_>,
        read: &mut Read<'_>,
        deadline: Deadline,
    ) -> Result<(), TransferError> {
        if self.mapping(&read.locator).is_err() {
            self.attach_over(link, read.locator.segment, deadline)?;
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

impl Mapped {
    /// Maps a mount, unless it is mapped or of no use; the mounts that it replaces. They are for the caller to
    /// drop, after the locks of this.
    fn keep(&self, fds: &[OwnedFd], identity: Identity) -> Result<Mounts, TransferError> {
        let mount = (identity.segment, identity.incarnation);
        let _making = self.making.lock();
        {
            let mounts = self.mounts.read();
            // An answer that took long may name a mount that another one has replaced meanwhile.
            let later = |other: &(SegmentId, Incarnation), mapping: &Mapping| {
                other.0 == mount.0 && other.1 > mount.1 && boottime() < mapping.serve_until()
            };
            if mounts.contains_key(&mount) || mounts.iter().any(|(at, one)| later(at, one)) {
                return Ok(Mounts::new());
            }
        }
        let (headers, payload, life) = match fds {
            [headers, payload] => (headers, payload, None),
            [headers, payload, life] => (headers, payload, Some(life.as_fd())),
            _ => return Err(no_descriptors()),
        };
        let mapping = Mapping::new(headers.as_fd(), payload.as_fd(), life, identity)
            .map_err(TransferError::Map)?;
        if over(&mapping, boottime()) {
            // It would be let go of by the next look, and mapped by the next read, for as long as an outage of
            // the master lasts. Nobody has touched its pages, so to unmap it takes no time.
            return Err(TransferError::Fenced);
        }
        self.count.one();
        self.mounts.write().insert(mount, Arc::new(mapping));
        // Earlier mounts of the segment are dead; views hold what they still need.
        Ok(self.take_where(|other, _| other.0 == mount.0 && other.1 < mount.1))
    }

    /// Takes these mounts out.
    fn take_where(&self, gone: impl Fn(&(SegmentId, Incarnation), &Mapping) -> bool) -> Mounts {
        let mut mounts = self.mounts.write();
        let all = std::mem::take(&mut *mounts);
        let (over, kept) = all.into_iter().partition(|(mount, mapping)| gone(mount, mapping));
        *mounts = kept;
        over
    }
}

/// Whether memory is of no use any more, as far as one can tell.
fn over(mapping: &Mapping, now: Now) -> bool {
    match mapping.serve_until() {
        // Its guard says that it is dead, or the owner itself took its leave back.
        Now(0) => true,
        until => now >= until.plus(KEPT),
    }
}

/// Drops something on a thread of its own: to unmap hundreds of gigabytes takes seconds, which are nobody's. It
/// is dropped here only if there is no thread to be had.
fn drop_apart<T: Send + 'static>(gone: BTreeMap<(SegmentId, Incarnation), T>) {
    if !gone.is_empty() {
        // A thread that does not start drops what it was given.
        let _ = rt::spawn("unmap", move || drop(gone));
    }
}

impl Transport for Shared {
    fn path(&self) -> Path {
        Path::Shared
    }

    fn read(&self, reads: &mut [Read<'_>], deadline: Deadline) {
        if reads.iter().any(on_disk) {
            staged::read(&self.stream, reads, deadline, &mut |link, staged, deadline| {
                for read in staged {
                    read.result = self.read_staged(link, read, deadline);
                }
                Ok(())
            });
        }
        for read in reads.iter_mut().filter(|read| !on_disk(read)) {
            read.result = self.read_one(read);
        }
    }

    fn living(&self, lives: &[Locator]) -> Vec<bool> {
        match lives.first().map(|first| self.mapping(first)) {
            Some(Ok(mapping)) => mapping.one_sided().living(each(lives), boottime),
            _ => vec![false; lives.len()],
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
        Ok(Box::new(DirectWritten::store(
            self,
            self.stream.link(deadline)?,
            write,
            value,
            deadline,
        )?))
    }

    /// Small values go through the socket in one exchange, after those that are stored straight into the
    /// owner's memory.
    fn send<'a>(&'a self, writes: &'a [Write<'a>], deadline: Deadline) -> Box<dyn Sent + 'a> {
        let places = writes.iter().map(|write| self.goes_inline(write)).collect();
        let (inline, direct): (Vec<&Write<'_>>, Vec<&Write<'_>>) =
            writes.iter().partition(|write| self.goes_inline(write));
        if direct.is_empty() {
            let inline = self.stream.start_writes(inline, deadline);
            return Box::new(SharedSent { inline, direct: Direct::Done(Vec::new()), places });
        }
        let (direct, inline) = match self.stream.free_link(deadline) {
            // The caller may hold other links until it has finished with them: it must not wait here.
            Ok(None) => (Direct::Late(self, direct), StreamSent::untried(inline)),
            Ok(Some(link)) => self.send_over(Ok(link), &direct, inline, deadline),
            Err(error) => self.send_over(Err(error), &direct, inline, deadline),
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

    fn verify(
        &self,
        locator: &Locator,
        seal: Seal,
        deadline: Deadline,
    ) -> Result<bool, TransferError> {
        self.stream.verify(locator, seal, deadline)
    }

    fn hasty(&self, silence_max: Duration) -> Arc<dyn Transport> {
        Arc::new(Self { stream: self.stream.with_silence(silence_max), ..self.clone() })
    }
}

/// Values on their way: small ones over the socket, the others are in place already, or wait for a link.
struct SharedSent<'a> {
    inline: StreamSent<'a>,
    direct: Direct<'a>,
    /// Which of all values are small.
    places: Vec<bool>,
}

/// Values that are stored straight into the owner's memory.
enum Direct<'a> {
    Done(Vec<Result<Seal, TransferError>>),
    /// No link was free. Nothing is sent before there is one, small values neither.
    Late(&'a Shared, Vec<&'a Write<'a>>),
}

impl Sent for SharedSent<'_> {
    fn has_begun(&self) -> bool {
        matches!(self.direct, Direct::Done(_)) && self.inline.has_begun()
    }

    fn finish(self: Box<Self>, deadline: Deadline) -> Vec<Result<Seal, TransferError>> {
        let Self { mut inline, mut direct, places } = *self;
        if let Direct::Late(shared, writes) = direct {
            let link = shared.stream.link(deadline);
            (direct, inline) = shared.send_over(link, &writes, inline.into_writes(), deadline);
        }
        let Direct::Done(direct) = direct else { unreachable!("they were sent just now") };
        let mut inline = Box::new(inline).finish(deadline).into_iter();
        let mut direct = direct.into_iter();
        let mut next = |small: bool| if small { inline.next() } else { direct.next() };
        places.into_iter().map(|small| next(small).expect("one result per value")).collect()
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
pub(crate) fn last_words(time: Duration) -> Duration {
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

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_mem::{Segment, SegmentSpec};
    use std::sync::mpsc::{Sender, channel};

    /// Tells which thread it ends on.
    struct Told(Sender<Option<String>>);

    impl Drop for Told {
        fn drop(&mut self) {
            self.0.send(std::thread::current().name().map(Into::into)).unwrap();
        }
    }

    /// A mount of the segment that is served until then, for as long as it is held here.
    fn mount(number: u64, until: Now) -> Arc<Segment> {
        let (segment, incarnation) = (SegmentId(1), Incarnation(number));
        let (bytes, slots) = (1 << 20, 16);
        let spec = SegmentSpec { segment, incarnation, bytes, slots, shared: true, huge: false };
        let made = Segment::create(spec).unwrap();
        made.set_serve_until(until);
        made
    }

    /// Maps it; how many it replaced.
    fn keep(mapped: &Mapped, mount: &Segment) -> Result<usize, TransferError> {
        let (headers, payload) = mount.fds().unwrap();
        let fds = [headers, payload].map(|fd| fd.try_clone_to_owned().unwrap());
        Ok(mapped.keep(&fds, mount.spec().identity())?.len())
    }

    /// An answer that took long does not bring back the mount that another one has replaced.
    #[test]
    fn a_late_answer_replaces_no_later_mount() {
        let mapped = Mapped::default();
        let kept = || mapped.mounts.read().keys().map(|mount| mount.1.0).collect::<Vec<_>>();
        let ever = Now(u64::MAX);
        let (earlier, first, later) = (mount(4, ever), mount(5, ever), mount(6, ever));
        assert_eq!(keep(&mapped, &first).unwrap(), 0);
        assert_eq!(keep(&mapped, &earlier).unwrap(), 0);
        assert_eq!((kept(), mapped.count.value()), (vec![5], 1), "late");
        assert_eq!(keep(&mapped, &later).unwrap(), 1);
        assert_eq!((kept(), mapped.count.value()), (vec![6], 2));
        // One that serves is not shut out by one that does not, whatever their numbers.
        later.set_serve_until(Now(0));
        assert_eq!(keep(&mapped, &earlier).unwrap(), 0);
        assert_eq!((kept(), mapped.count.value()), (vec![4, 6], 3));
        assert!(matches!(keep(&mapped, &mount(7, Now(0))), Err(TransferError::Fenced)));
        assert_eq!((kept(), mapped.count.value()), (vec![4, 6], 3));
    }

    /// What takes long to unmap takes nobody's time.
    #[test]
    fn memory_is_unmapped_on_a_thread_of_its_own() {
        let (tell, told) = channel();
        drop_apart(BTreeMap::from([((SegmentId(1), Incarnation(1)), Told(tell))]));
        let thread = told.recv_timeout(Duration::from_mins(1)).unwrap();
        assert_eq!(thread.as_deref(), Some("unmap"));
    }
}
