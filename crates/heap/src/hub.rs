//! Rank 0's side of a group: it knows every link, so it is the one that says who is missing.

use crate::error::{Failure, FailureKind, GroupError};
use crate::frame::{Frame, Kind, LinkEnd, receive, send, wait};
use crate::group::Shared;
use crate::rank::{RANKS_MAX, Rank, Ranks, World};
use mooncrate_core::Deadline;
use mooncrate_mem::clock::boottime;
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// How long a process that has connected may take to say who it is.
const HELLO: Duration = Duration::from_secs(1);
/// How long the hub tries to tell a rank why the group is over.
const FAREWELL: Duration = Duration::from_millis(20);

/// A rank of a larger group is told that there are fewer here.
const LARGEST: World = World::new(RANKS_MAX).expect("a world has that many");

/// The links to all ranks but 0, in their order.
#[derive(Debug)]
pub(crate) struct Hub {
    world: World,
    links: Vec<UnixStream>,
}

impl Hub {
    /// Waits at `path` for the other ranks. The socket is gone afterwards, whatever happened.
    pub(crate) fn meet(
        path: &Path,
        world: World,
        layout: u64,
        until: Deadline,
    ) -> Result<Self, GroupError> {
        let listener = listen(path).map_err(|error| meet_error(path, error))?;
        let met = gather_hellos(&listener, world, layout, until);
        let _ = std::fs::remove_file(path);
        let (mut waiting, failed) = met.map_err(|error| meet_error(path, error))?;
        let mut failed = failed;
        for (rank, link) in &waiting {
            if failed.is_none()
                && let Err(end) = send(link, Kind::Welcome, (0, 0), &[], None, until)
            {
                failed = Some(ended(&end, *rank, "meet"));
            }
        }
        if let Some(failure) = failed {
            tell(waiting.iter().map(|(_, link)| link), 0, &failure);
            return Err(GroupError::Failed(failure));
        }
        waiting.sort_by_key(|(rank, _)| *rank);
        Ok(Self { world, links: waiting.into_iter().map(|(_, link)| link).collect() })
    }

    /// The hub's side of a gather: waits for what each rank brings, then sends everything to everybody.
    pub(crate) fn gather(
        &mut self,
        doing: &str,
        round: u32,
        own: &[u8],
        fd: Option<BorrowedFd<'_>>,
        until: Deadline,
    ) -> Result<Vec<Shared>, Failure> {
        let gathered = self.collect(doing, round, own, until);
        let told = gathered.and_then(|gathered| {
            self.spread(doing, round, &gathered, fd, until)?;
            Ok(gathered)
        });
        if let Err(failure) = &told {
            tell(self.links.iter(), round, failure);
        }
        told
    }

    fn collect(
        &self,
        doing: &str,
        round: u32,
        own: &[u8],
        until: Deadline,
    ) -> Result<Vec<Shared>, Failure> {
        let name = name_of(own).to_vec();
        let mut came: Vec<Option<Shared>> = self.world.ranks().map(|_| None).collect();
        came[0] = Some(Shared { body: own[1 + name.len()..].to_vec(), fd: None });
        loop {
            let missing: Vec<(Rank, &UnixStream)> =
                self.spokes().filter(|(rank, _)| came[rank.index()].is_none()).collect();
            if missing.is_empty() {
                return Ok(came.into_iter().flatten().collect());
            }
            let mut fds: Vec<PollFd<'_>> =
                missing.iter().map(|(_, link)| PollFd::new(link, PollFlags::IN)).collect();
            let ranks: Ranks = missing.iter().map(|(rank, _)| *rank).collect();
            match wait(&mut fds, until) {
                Ok(true) => {}
                Ok(false) => return Err(Failure::new(FailureKind::Late, ranks, doing)),
                Err(_) => return Err(Failure::new(FailureKind::Lost, ranks, doing)),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            for ((rank, link), _) in missing.iter().zip(ready).filter(|(_, ready)| *ready) {
                let frame = receive(link, until).map_err(|end| ended(&end, *rank, doing))?;
                let differs = || Failure::new(FailureKind::Differs, Ranks::only(*rank), doing);
                if (frame.kind, frame.round) != (Kind::Share, round) || name_of(&frame.body) != name
                {
                    return Err(differs());
                }
                let body = frame.body[1 + name.len()..].to_vec();
                came[rank.index()] = Some(Shared { body, fd: frame.fd });
            }
        }
    }

    /// Sends what all ranks brought to each of them; its own descriptor no rank gets back.
    fn spread(
        &self,
        doing: &str,
        round: u32,
        gathered: &[Shared],
        own: Option<BorrowedFd<'_>>,
        until: Deadline,
    ) -> Result<(), Failure> {
        for (rank, link) in self.spokes() {
            for (from, shared) in self.world.ranks().zip(gathered) {
                let fd = if from == Rank::HUB { own } else { shared.fd.as_ref().map(AsFd::as_fd) };
                let fd = fd.filter(|_| from != rank);
                send(link, Kind::Gathered, (from.number(), round), &shared.body, fd, until)
                    .map_err(|end| ended(&end, rank, doing))?;
            }
        }
        Ok(())
    }

    fn spokes(&self) -> impl Iterator<Item = (Rank, &UnixStream)> {
        self.world.ranks().skip(1).zip(&self.links)
    }
}

/// The name of the call that a share was made for; empty if there is none.
fn name_of(body: &[u8]) -> &[u8] {
    body.split_first().and_then(|(len, rest)| rest.get(..usize::from(*len))).unwrap_or_default()
}

fn ended(end: &LinkEnd, rank: Rank, doing: &str) -> Failure {
    let kind = match end {
        LinkEnd::Late => FailureKind::Late,
        LinkEnd::Gone => FailureKind::Lost,
    };
    Failure::new(kind, Ranks::only(rank), doing)
}

/// Tells everybody who still listens.
fn tell<'a>(links: impl Iterator<Item = &'a UnixStream>, round: u32, failure: &Failure) {
    let body = failure.encode();
    for link in links {
        let until = boottime().deadline_in(FAREWELL);
        let _ = send(link, Kind::Failed, (0, round), &body, None, until);
    }
}

/// Listens at `path`, in the place of a hub that is gone, but never of one that is there.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                let text = "another group is meeting there; choose another path";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

type Met = (Vec<(Rank, UnixStream)>, Option<Failure>);

/// The links of all who came, and why the group is not complete, if it is not.
fn gather_hellos(
    listener: &UnixListener,
    world: World,
    layout: u64,
    until: Deadline,
) -> io::Result<Met> {
    let mut met: Vec<(Rank, UnixStream)> = Vec::new();
    while met.len() + 1 < world.len() {
        if !wait(&mut [PollFd::new(listener, PollFlags::IN)], until)? {
            let here: Ranks = met.iter().map(|(rank, _)| *rank).chain([Rank::HUB]).collect();
            let missing = world.all().without(here);
            return Ok((met, Some(Failure::new(FailureKind::Late, missing, "meet"))));
        }
        let link = match listener.accept() {
            Ok((link, _)) => link,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        if socket_peercred(&link)?.uid != geteuid() {
            continue;
        }
        link.set_nonblocking(true)?;
        let soon = boottime().deadline_in(HELLO);
        // Who says nothing that makes sense is no rank.
        let Ok(hello) = receive(&link, if soon < until { soon } else { until }) else { continue };
        let Some(rank) = LARGEST.rank(usize::from(hello.rank)) else { continue };
        let taken = rank == Rank::HUB || met.iter().any(|(other, _)| *other == rank);
        let wrong = judge(&hello, world, layout, taken);
        met.push((rank, link));
        if let Some(kind) = wrong {
            return Ok((met, Some(Failure::new(kind, Ranks::only(rank), "meet"))));
        }
    }
    Ok((met, None))
}

/// What is wrong with a hello.
fn judge(hello: &Frame, world: World, layout: u64, taken: bool) -> Option<FailureKind> {
    let Some((theirs, rest)) = hello.body.split_first() else {
        return Some(FailureKind::OtherLayout);
    };
    if usize::from(*theirs) != world.len() {
        Some(FailureKind::OtherWorld)
    } else if rest != layout.to_le_bytes() || hello.kind != Kind::Hello {
        Some(FailureKind::OtherLayout)
    } else if taken {
        Some(FailureKind::Taken)
    } else {
        None
    }
}

fn meet_error(path: &Path, error: io::Error) -> GroupError {
    GroupError::Meet { path: path.display().to_string(), error }
}
