//! The owner's end: a thread per connection, because a connection is a reader or writer at work, and
//! a blocked thread costs less than a task that has to be woken. Whatever a connection has begun or
//! pinned is booked to it and ends with it (R4, R7).

mod connection;
mod far;
mod overdue;
mod pins;
mod staging;
mod tally;

pub use tally::{DataTally, Refusals};

use crate::segments::Segments;
use connection::Connection;
use mooncrate_core::door::{Limits, Origin};
use mooncrate_core::limits::DEVICE_GRACE;
use mooncrate_core::{HostId, LeaderEpoch, Now, TenantId};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::WriteGuard;
use mooncrate_mem::clock::boottime;
use mooncrate_rt as rt;
use mooncrate_wire::address::Bound;
use mooncrate_wire::door::{Keeper, Place, Turned, descriptor_share, user_of};
use mooncrate_wire::link::{Accepted, Closer};
use mooncrate_wire::{Address, Gate, HelloAck, Kind, Link, LinkConfig, LinkKind, auth};
use pins::PinBook;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How often a listener looks for ranges whose time is over, if nobody calls.
const LATE_LOOK: Duration = Duration::from_secs(1);
/// Threads beyond the connections that count: those whose callers were displaced and that are about to end.
const LEAVING_MAX: usize = 1024;
/// How long a newcomer waits for one of them to end, before the listener looks whether it should end itself.
const THREAD_WAIT: Duration = Duration::from_millis(100);
/// Pause after an accept that failed: out of descriptors does not get better by trying at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Settings of a data server.
#[derive(Clone, Debug)]
pub struct DataServerConfig {
    /// Name for people.
    pub name: String,
    /// The machine this is.
    pub host: HostId,
    /// Connections at once, those that have said no hello among them; these make room for others.
    pub connections_max: usize,
    /// From the connection to the end of its hello, TLS included.
    pub hello_time: Duration,
    /// A connection without pins and open puts that says nothing for this long is closed.
    pub idle_time: Duration,
    /// Share of a segment, in percent, that one connection may pin for views.
    pub pinned_percent_max: u64,
    /// The same for all connections of a tenant together, where others use the segment as well.
    pub tenant_pinned_percent_max: u64,
    /// A connection that has kept a removed value pinned for this long gets no more pins before it lets go.
    pub pin_age_max: Duration,
    /// Share of a segment, in percent, that the unfinished puts of one connection may take.
    pub open_percent_max: u64,
    /// Bytes that one connection may have staged from disks; one value always finds leave.
    pub staged_bytes_max: u64,
    /// What callers must show.
    pub gate: Gate,
    /// The one tenant whose values are here; `None`: everybody's. Where callers have credentials,
    /// only the memory of a dedicated node is shared, and only with its tenant: no memfd ever holds
    /// values of two.
    pub dedicated: Option<TenantId>,
    /// Users, besides our own and root, whose processes may map the memory.
    pub share_users: Vec<u32>,
    /// How long a range of GPU memory is kept that a process was storing to when it hung up: its GPU may
    /// still be at it until the driver has ended the work of a dead process.
    pub device_grace: Duration,
}

impl Default for DataServerConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            host: HostId(0),
            connections_max: descriptor_share(3, 4096),
            hello_time: Duration::from_secs(3),
            idle_time: Duration::from_mins(1),
            pinned_percent_max: 25,
            tenant_pinned_percent_max: 50,
            pin_age_max: Duration::from_mins(5),
            open_percent_max: 10,
            staged_bytes_max: 64 << 20,
            gate: Gate::default(),
            dedicated: None,
            share_users: Vec::new(),
            device_grace: DEVICE_GRACE,
        }
    }
}

/// Serves the segments of this process to other processes.
#[derive(Debug)]
pub struct DataServer {
    inner: Arc<Inner>,
    listeners: Vec<rt::Thread<()>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) segments: Arc<Segments>,
    pub(crate) config: DataServerConfig,
    pub(crate) tally: Arc<DataTally>,
    stopping: AtomicBool,
    /// Readable from when it stops: listeners wait for callers and for this.
    stop: OwnedFd,
    next: AtomicU64,
    keeper: Keeper,
    /// Connections with a thread, also those that have not said hello.
    threads: Mutex<usize>,
    /// One of those threads has ended.
    ended: Condvar,
    open: Mutex<BTreeMap<u64, OpenConnection>>,
    closed: Condvar,
    /// Puts of GPU processes that hung up, and until when their ranges are kept (R7). No more than fit
    /// the segments.
    late: Mutex<Vec<(Now, WriteGuard)>>,
    /// What tenants have pinned.
    pub(crate) pinned: PinBook,
    /// Connections that have puts in parts.
    pub(crate) sessions: AtomicUsize,
}

#[derive(Debug)]
struct OpenConnection {
    closer: Arc<Closer>,
    /// A request is being handled; only then is there something to finish.
    busy: Arc<AtomicBool>,
}

impl DataServer {
    /// Serves on these sockets until [`DataServer::stop`]. What it does is counted in `tally`.
    pub fn start(
        segments: Arc<Segments>,
        mut config: DataServerConfig,
        tally: Arc<DataTally>,
        sockets: Vec<Bound>,
    ) -> io::Result<Self> {
        config.gate = config.gate.at_door(config.connections_max);
        let limits = Limits::proving(config.connections_max);
        let crowded = |turned: &Turned| tracing::warn!("{turned}");
        let inner = Arc::new(Inner {
            keeper: Keeper::new("the data port", limits, crowded),
            segments,
            config,
            tally,
            stopping: AtomicBool::new(false),
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
            next: AtomicU64::new(0),
            threads: Mutex::default(),
            ended: Condvar::new(),
            open: Mutex::default(),
            closed: Condvar::new(),
            late: Mutex::default(),
            pinned: PinBook::default(),
            sessions: AtomicUsize::new(0),
        });
        let mut listeners = Vec::new();
        for socket in sockets {
            let inner = Arc::clone(&inner);
            listeners.push(rt::spawn("data-accept", move || inner.accept_loop(&socket))?);
        }
        Ok(Self { inner, listeners })
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.inner.open.lock().len()
    }

    /// Takes no new connection, lets requests that are being handled end for up to `grace`, closes
    /// the rest.
    pub fn stop(mut self, grace: Duration) {
        self.end(grace);
    }

    fn end(&mut self, grace: Duration) {
        self.inner.stopping.store(true, Ordering::Release);
        // Nobody reads it, so it wakes every listener. If it could not be written they would look in a second.
        let _ = rustix::io::write(&self.inner.stop, &1_u64.to_le_bytes());
        for listener in self.listeners.drain(..) {
            let _ended = listener.join();
        }
        let deadline = boottime().deadline_in(grace);
        let mut open = self.inner.open.lock();
        loop {
            let over = deadline.passed(boottime());
            for connection in open.values() {
                // Acquire: pairs with the Release of the connection's own store.
                if over || !connection.busy.load(Ordering::Acquire) {
                    connection.closer.close();
                }
            }
            if open.is_empty() {
                return;
            }
            self.inner.closed.wait_for(&mut open, Duration::from_millis(10));
        }
    }
}

impl Drop for DataServer {
    /// Whoever starts something else beside it and fails leaves no socket behind.
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

impl Inner {
    /// Acquire: pairs with the Release in `stop`.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Keeps the range of a put whose writer hung up while its GPU may still store there.
    pub(crate) fn keep_late(&self, guard: WriteGuard) {
        let until = boottime().plus(self.config.device_grace);
        self.late.lock().push((until, guard));
    }

    /// Gives such ranges back when their time is over.
    fn end_late(&self) {
        let now = boottime();
        // Dropped outside of the lock: that may zero the range.
        let over: Vec<_> = self.late.lock().extract_if(.., |(until, _)| *until <= now).collect();
        drop(over);
    }

    fn accept_loop(self: &Arc<Self>, socket: &Bound) {
        while !self.stopping() {
            self.end_late();
            if !self.has_thread() {
                continue;
            }
            match accept(socket, &self.stop) {
                Ok(Some((connection, from))) => self.welcome(connection, from),
                Ok(None) => {}
                Err(error) => {
                    self.keeper.failed(&error);
                    rt::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Whether a thread may be spent on a newcomer; waits a little for one. In a burst the threads of displaced
    /// callers take a moment to end. Until then newcomers stay where the system keeps them, instead of being
    /// sent away. Listeners may be one off: nobody reads more into it.
    fn has_thread(&self) -> bool {
        let most = self.config.connections_max;
        let most = most + LEAVING_MAX.min(most);
        let mut threads = self.threads.lock();
        if *threads >= most {
            self.ended.wait_for(&mut threads, THREAD_WAIT);
        }
        *threads < most
    }

    fn thread_ended(&self) {
        *self.threads.lock() -= 1;
        self.ended.notify_one();
    }

    fn welcome(self: &Arc<Self>, socket: OwnedFd, from: Origin) {
        let closer = match Closer::of(&socket) {
            Ok(closer) => Arc::new(closer),
            Err(error) => return self.keeper.failed(&error),
        };
        let hang_up = Arc::clone(&closer);
        let Some(place) = self.keeper.admit(from, move || hang_up.close()) else { return };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::clone(self);
        *self.threads.lock() += 1;
        let unix = matches!(from, Origin::User(_));
        let started = rt::spawn_small(&format!("data-{id}"), move || {
            inner.converse(id, socket, unix, &place, closer);
            inner.thread_ended();
        });
        if let Err(error) = started {
            self.thread_ended();
            self.keeper.failed(&error);
        }
    }

    /// One connection, from hello to hang-up.
    fn converse(&self, id: u64, socket: OwnedFd, unix: bool, place: &Place, closer: Arc<Closer>) {
        let deadline = boottime().deadline_in(self.config.hello_time);
        let hello = |_: &mooncrate_wire::Hello, version| HelloAck {
            version,
            name: self.config.name.clone(),
            epoch: self.epoch(),
            host: self.config.host,
        };
        let config = LinkConfig::default();
        let gate = &self.config.gate;
        let accepted = Link::accept(socket, LinkKind::Data, &config, gate, deadline, hello);
        let Accepted { link, credential, seat: _seat, .. } = match accepted {
            Ok(accepted) => accepted,
            Err(error) => return tracing::debug!(%error, "a caller was not let in"),
        };
        if gate.is_guarded() && !auth::may(credential.role, Kind::Read) {
            return tracing::debug!(role = %credential.role, "no business with values");
        }
        if !place.prove() {
            return tracing::debug!("a caller was displaced in its hello");
        }
        let busy = Arc::new(AtomicBool::new(false));
        {
            let mut open = self.open.lock();
            if self.stopping() {
                return;
            }
            open.insert(id, OpenConnection { closer, busy: Arc::clone(&busy) });
            self.tally.connections.raise(1);
        }
        let ended = Connection::new(self, link, credential, unix, busy).run();
        if let Err(error) = ended {
            tracing::debug!(%error, "a data connection ended");
        }
        self.open.lock().remove(&id);
        self.tally.connections.lower(1);
        self.closed.notify_all();
    }

    fn epoch(&self) -> LeaderEpoch {
        let segments = self.segments.all();
        segments.iter().map(|segment| segment.epoch()).max().unwrap_or_default()
    }
}

/// Waits for a connection; `None`: look whether to go on.
fn accept(socket: &Bound, stop: &OwnedFd) -> io::Result<Option<(OwnedFd, Origin)>> {
    let accepted = match socket {
        Bound::Tcp(listener) if has_caller(listener.as_fd(), stop)? => {
            listener.accept().map(|(stream, from)| (stream.into(), Origin::of(from.ip())))
        }
        Bound::Unix(listener) if has_caller(listener.as_fd(), stop)? => {
            listener.accept().map(|(stream, _)| {
                let user = user_of(&stream);
                (stream.into(), user)
            })
        }
        Bound::Tcp(_) | Bound::Unix(_) => return Ok(None),
        Bound::World(address) => {
            let world = rt::world().ok_or(io::ErrorKind::Unsupported)?;
            let came = world.accept(&address.name_in_world(), LATE_LOOK)?;
            return Ok(came.map(|socket| {
                let from = match address {
                    Address::Tcp(_) => Origin::of(Ipv4Addr::LOCALHOST.into()),
                    Address::Unix(_) => user_of(&socket),
                };
                (socket, from)
            }));
        }
    };
    match accepted {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        accepted => accepted.map(Some),
    }
}

/// Waits for a caller, or for a reason to look whether to go on; whether there is one.
fn has_caller(listener: BorrowedFd<'_>, stop: &OwnedFd) -> io::Result<bool> {
    let look = Timespec { tv_sec: LATE_LOOK.as_secs().cast_signed(), tv_nsec: 0 };
    let mut fds = [PollFd::new(&listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    match poll(&mut fds, Some(&look)) {
        Ok(0) | Err(Errno::INTR) => Ok(false),
        Ok(_) => Ok(!fds[0].revents().is_empty()),
        Err(error) => Err(error.into()),
    }
}
