//! The master's side of control links: frames in, `wire::api::answer`, frames out. The server that ships runs on an
//! async runtime; until that runs in a world, this stands in its place.

use mooncrate_core::HostId;
use mooncrate_core::TenantId;
use mooncrate_core::time::Now;
use mooncrate_lock::Mutex;
use mooncrate_master::Master;
use mooncrate_mem::clock::boottime;
use mooncrate_rt::{self as rt, Way};
use mooncrate_wire::api;
use mooncrate_wire::clock::deadline_of;
use mooncrate_wire::frame::{Stamp, VERSION_HELLO, encode_frame};
use mooncrate_wire::inbox::Inbox;
use mooncrate_wire::message::agree;
use mooncrate_wire::{Hello, HelloAck, Kind, LinkKind, Reply, Request, RequestId};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks for callers.
const LOOK: Duration = Duration::from_secs(1);

/// Answers control links at `address` until the process ends.
pub(super) fn serve(master: &Arc<Master>, address: &str) {
    loop {
        let world = rt::world().expect("a master runs in a world");
        let Ok(Some(socket)) = world.accept(address, LOOK) else { continue };
        let link = Arc::new(Link { socket, out: Mutex::new(()), master: Arc::clone(master) });
        // It ends with its caller.
        let _ = rt::spawn("control", move || link.converse());
    }
}

struct Link {
    socket: OwnedFd,
    /// Held while a frame is sent.
    out: Mutex<()>,
    master: Arc<Master>,
}

/// The stream is over, or makes no sense.
struct Over;

impl Link {
    fn converse(self: &Arc<Self>) {
        let _ = self.frames();
        if let Some(world) = rt::world() {
            world.closing(self.socket.as_fd());
        }
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn frames(self: &Arc<Self>) -> Result<(), Over> {
        let (mut inbox, mut version) = (Inbox::default(), None);
        loop {
            while let Some(frame) = inbox.next_frame().map_err(|_| Over)? {
                let (kind, id) = (frame.header.kind(), frame.header.request());
                let body = inbox.bytes(frame.body.clone());
                match version {
                    None => version = Some(self.greet(id, kind, body)?),
                    Some(version) => {
                        self.take(version, id, kind, frame.header.deadline_ms(), body)?;
                    }
                }
            }
            let count = loop {
                match rustix::io::read(&self.socket, inbox.space()) {
                    Ok(0) => return Err(Over),
                    Ok(count) => break count,
                    Err(Errno::AGAIN | Errno::INTR) => self.wait(Way::Read),
                    Err(_) => return Err(Over),
                }
            };
            inbox.filled(count);
        }
    }

    fn wait(&self, way: Way) {
        if let Some(world) = rt::world() {
            world.wait_for_socket(self.socket.as_fd(), way, LOOK);
        }
    }

    fn greet(&self, id: RequestId, kind: Kind, body: &[u8]) -> Result<u8, Over> {
        if kind != Kind::Hello {
            return Err(Over);
        }
        let hello = Hello::decode(body).map_err(|_| Over)?;
        let version = agree(&hello, LinkKind::Control).map_err(|_| Over)?;
        let epoch = self.master.leader_epoch();
        let ack = HelloAck { version, name: "master".to_owned(), epoch, host: HostId(1) };
        self.send(VERSION_HELLO, Kind::Hello, id, |out| ack.encode(out))?;
        Ok(version)
    }

    /// Answers a request: those that may wait in a thread of their own.
    fn take(
        self: &Arc<Self>,
        version: u8,
        id: RequestId,
        kind: Kind,
        budget_ms: u32,
        body: &[u8],
    ) -> Result<(), Over> {
        let arrived = boottime();
        if matches!(
            kind,
            Kind::Ping | Kind::Locate | Kind::Look | Kind::Exist | Kind::Heartbeat | Kind::Nodes
        ) {
            let request = Request::decode(kind, body).map_err(|_| Over)?;
            return self.answer(version, id, request, budget_ms, arrived);
        }
        let (this, body) = (Arc::clone(self), body.to_vec());
        let work = move || {
            if let Ok(request) = Request::decode(kind, &body) {
                let _ = this.answer(version, id, request, budget_ms, arrived);
            }
        };
        rt::spawn("request", work).map(|_| ()).map_err(|_| Over)
    }

    fn answer(
        &self,
        version: u8,
        id: RequestId,
        request: Request<'_>,
        budget_ms: u32,
        arrived: Now,
    ) -> Result<(), Over> {
        let kind = request.kind();
        let scope = self.master.scope(TenantId::DEFAULT);
        let reply = api::answer(&*scope, request, deadline_of(budget_ms, arrived));
        let kind = if let Reply::Refuse(_) = &reply { Kind::Refuse } else { kind };
        self.send(version, kind, id, |out| reply.encode(out))
    }

    fn send(
        &self,
        version: u8,
        kind: Kind,
        request: RequestId,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Over> {
        let stamp = Stamp { version, kind, reply: true, request, deadline_ms: 0 };
        let mut out = Vec::new();
        encode_frame(&mut out, stamp, encode).map_err(|_| Over)?;
        let _turn = self.out.lock();
        let mut rest = &out[..];
        while !rest.is_empty() {
            self.wait(Way::Write);
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(Over),
            }
        }
        Ok(())
    }
}
