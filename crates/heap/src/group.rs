//! The processes of all ranks: they meet at a Unix socket, share, wait for each other, and part.
//!
//! ```text
//! rank 1 ── Hello ──►           Share ──►              Share ──►
//! rank 2 ── Hello ──►  hub      Share ──►  hub  …      (ended)     hub
//!          ◄─ Welcome ─         ◄─ Gathered × world    ◄─ Failed: rank 2 ended
//! ```

use crate::error::{Failure, FailureKind, GroupError};
use crate::frame::{BODY_MAX, Frame, Kind, LinkEnd, receive, send, wait};
use crate::hub::Hub;
use crate::rank::{Rank, Ranks, World};
use mooncrate_core::Deadline;
use mooncrate_lock::interrupt;
use mooncrate_mem::clock::boottime;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two attempts to reach a hub that is not there yet.
const KNOCK: Duration = Duration::from_millis(5);
/// What a rank waits longer than the hub, so that the hub, which knows who is missing, is the first to
/// give up.
const PATIENCE: Duration = Duration::from_millis(20);

/// A deadline that has passed: look, do not wait.
const NOW: Deadline = Deadline(0);

/// Which group, and who this process is in it.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// Where the ranks meet: a Unix socket that rank 0 makes. It must not be longer than 107 bytes.
    pub path: PathBuf,
    /// This process's number.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
    /// What all must agree on, such as [`crate::Layout::hash`].
    pub layout: u64,
    /// How long to wait for the others.
    pub within: Duration,
}

/// What a rank brought to a [`Group::gather`].
#[derive(Debug, Default)]
pub struct Shared {
    /// Bytes.
    pub body: Vec<u8>,
    /// A descriptor; `None` for one's own.
    pub fd: Option<OwnedFd>,
}

/// A complete group. Its calls are collective: every rank makes the same ones in the same order.
#[derive(Debug)]
pub struct Group {
    rank: Rank,
    world: World,
    links: Links,
    /// Calls so far.
    round: u32,
    /// Why there will be no further one.
    failure: Option<Failure>,
    watch: Watch,
}

/// The processes of a group: each handed out a descriptor of itself, so that nobody has to tell of an end.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// By rank; `None` for this process itself.
    processes: Arc<[Option<OwnedFd>]>,
}

impl Watch {
    /// Ranks whose processes have ended. It does not wait, also while another thread is in a call of the group.
    pub fn gone(&self) -> Ranks {
        let ended = |process: &OwnedFd| wait(&mut [PollFd::new(process, PollFlags::IN)], NOW);
        let ended = |process: &Option<OwnedFd>| {
            process.as_ref().is_some_and(|process| ended(process).unwrap_or(false))
        };
        let bits = self.processes.iter().enumerate();
        Ranks::from_bits(bits.fold(0, |bits, (at, one)| bits | u8::from(ended(one)) << at))
    }
}

#[derive(Debug)]
enum Links {
    Hub(Hub),
    /// To the hub.
    Spoke(UnixStream),
}

impl Group {
    /// Waits until all ranks are there.
    pub fn join(spec: &GroupSpec) -> Result<Self, GroupError> {
        let bad = || GroupError::BadRank { rank: spec.rank, world: spec.world };
        let world = World::new(spec.world).ok_or_else(bad)?;
        let rank = world.rank(spec.rank).ok_or_else(bad)?;
        let until = boottime().deadline_in(spec.within);
        let links = if rank == Rank::HUB {
            Links::Hub(Hub::meet(&spec.path, world, spec.layout, until)?)
        } else {
            Links::Spoke(introduce(spec, rank, until)?)
        };
        let mut group =
            Self { rank, world, links, round: 0, failure: None, watch: Watch::default() };
        let this = pidfd_open(getpid(), PidfdFlags::empty());
        let this = this.map_err(|error| GroupError::Meet {
            path: spec.path.display().to_string(),
            error: error.into(),
        })?;
        let met = group.gather("meet", &[], Some(this.as_fd()), until.left(boottime()))?;
        group.watch = Watch { processes: met.into_iter().map(|shared| shared.fd).collect() };
        Ok(group)
    }

    /// Who this process is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many there are.
    pub fn world(&self) -> World {
        self.world
    }

    /// Shares bytes and a descriptor with all ranks, and gives what each of them shared, by rank. `doing`
    /// says in errors what this is about, and must be the same everywhere.
    pub fn gather(
        &mut self,
        doing: &'static str,
        body: &[u8],
        fd: Option<BorrowedFd<'_>>,
        within: Duration,
    ) -> Result<Vec<Shared>, GroupError> {
        if let Some(failure) = &self.failure {
            return Err(GroupError::Failed(failure.clone()));
        }
        // The name of the call goes along, so that ranks that lost each other's pace are found.
        let mut named = vec![u8::try_from(doing.len()).expect("names of calls are short")];
        named.extend_from_slice(doing.as_bytes());
        named.extend_from_slice(body);
        if named.len() > BODY_MAX {
            return Err(GroupError::TooLong { bytes: body.len() });
        }
        self.round += 1;
        let until = boottime().deadline_in(within);
        let gathered = match &mut self.links {
            Links::Hub(hub) => hub.gather(doing, self.round, &named, fd, until),
            Links::Spoke(link) => {
                let until = boottime().deadline_in(within + within / 20 + PATIENCE);
                share(link, doing, (self.rank, self.world, self.round), &named, fd, until)
            }
        };
        gathered.map_err(|failure| {
            self.failure = Some(failure.clone());
            GroupError::Failed(failure)
        })
    }

    /// Waits until all ranks have come to this point.
    pub fn barrier(&mut self, doing: &'static str, within: Duration) -> Result<(), GroupError> {
        self.gather(doing, &[], None, within).map(drop)
    }

    /// Tells who has ended, also to other threads.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// The last call: waits for the others, so that nobody's end looks like a failure to somebody else. A
    /// group that failed before is left at once.
    pub fn leave(mut self, within: Duration) -> Result<(), GroupError> {
        self.barrier("leave", within)
    }
}

/// A rank's way to the hub: retried until somebody listens there.
fn introduce(spec: &GroupSpec, rank: Rank, until: Deadline) -> Result<UnixStream, GroupError> {
    let path = || spec.path.display().to_string();
    let link = loop {
        match UnixStream::connect(&spec.path) {
            Ok(link) => break link,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(GroupError::Meet { path: path(), error });
            }
            Err(_) if until.passed(boottime()) || interrupt::sleep(KNOCK) => {
                return Err(GroupError::NoHub { path: path(), within: spec.within });
            }
            Err(_) => {}
        }
    };
    link.set_nonblocking(true).map_err(|error| GroupError::Meet { path: path(), error })?;
    let mut hello = vec![spec.world.try_into().expect("a world has at most 8 ranks")];
    hello.extend_from_slice(&spec.layout.to_le_bytes());
    let doing = "meet";
    let answer = send(&link, Kind::Hello, (rank.number(), 0), &hello, None, until).and_then(|()| {
        receive(&link, Deadline(until.0.saturating_add(PATIENCE.as_nanos() as u64)))
    });
    match answer {
        Ok(Frame { kind: Kind::Welcome, .. }) => Ok(link),
        answer => Err(GroupError::Failed(from_hub(answer, doing))),
    }
}

/// A rank's side of [`Group::gather`].
fn share(
    link: &UnixStream,
    doing: &str,
    (rank, world, round): (Rank, World, u32),
    body: &[u8],
    fd: Option<BorrowedFd<'_>>,
    until: Deadline,
) -> Result<Vec<Shared>, Failure> {
    // A hub that failed has said why before it closed: read that also when sending does not work any more.
    let sent = send(link, Kind::Share, (rank.number(), round), body, fd, until);
    let mut gathered = Vec::with_capacity(world.len());
    for from in world.ranks() {
        match receive(link, until) {
            Ok(frame)
                if sent.is_ok()
                    && (frame.kind, frame.rank, frame.round)
                        == (Kind::Gathered, from.number(), round) =>
            {
                gathered.push(Shared { body: frame.body, fd: frame.fd });
            }
            answer => return Err(from_hub(answer, doing)),
        }
    }
    Ok(gathered)
}

/// What the hub's answer means when it is not what was asked for.
fn from_hub(answer: Result<Frame, LinkEnd>, doing: &str) -> Failure {
    let hub = Ranks::only(Rank::HUB);
    match answer {
        Ok(Frame { kind: Kind::Failed, body, .. }) => {
            Failure::decode(&body).unwrap_or_else(|| Failure::new(FailureKind::Differs, hub, doing))
        }
        Ok(_) => Failure::new(FailureKind::Differs, hub, doing),
        Err(LinkEnd::Late) => Failure::new(FailureKind::Late, hub, doing),
        Err(LinkEnd::Gone) => Failure::new(FailureKind::Lost, hub, doing),
    }
}
