//! The guard of a node: a small process that outlives it by a moment, knows for certain that it is dead,
//! and says so.
//!
//! ```text
//!   node    starts its guard ─► lends it a page ([`Life`]) ─► mounts, serves … is killed
//!   guard   waits for the death of its parent ─► ends the life: no mapping of this machine reads on
//!           ─► unmount, for the dead node: its keys are free, or read elsewhere
//! ```
//!
//! Without it a master cannot tell a node that is dead from one that is stopped or cut off, whose memory
//! readers of its machine may still use: it waits for the end of the serving lease (R10). The kernel tells
//! a child for certain when its parent is dead, and a stopped parent is not. What must stay true: the
//! guard tells nobody before the last mapping is useless. A guard that is killed as well tells nothing,
//! and everything is as it is without one.

use mooncrate_core::canary::{self, Canary};
use mooncrate_lock::Mutex;
use mooncrate_mem::Life;
use mooncrate_mem::clock::boottime;
use mooncrate_rt as rt;
use mooncrate_wire::MasterApi;
use mooncrate_wire::message::Unmount;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How long a guard may take to start.
const START_MAX: Duration = Duration::from_secs(5);
/// Between two looks at the parent, where the kernel does not wake us.
const LOOK: Duration = Duration::from_millis(20);
/// The same where it does: no look is needed, but a lost one would cost everything.
const LOOK_ANYWAY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How long a call to the master may take.
const CALL_TIME: Duration = Duration::from_secs(2);
/// How long masters are looked for: longer than they keep a node that they do not hear.
const TELL_MAX: Duration = Duration::from_secs(30);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// What a guard says when it watches.
const READY: u8 = b'g';

/// How a guard is started: a program that calls [`keep_watch`] when it is given `--guard-of=PID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; `--guard-of` is added to them.
    pub args: Vec<OsString>,
}

/// Where a node gets its guard.
#[derive(Clone, Debug)]
pub enum GuardStart {
    /// A process that this one starts.
    Command(GuardCommand),
    /// Not a process of the system: somebody who is there already, such as a simulated one.
    Given(Arc<dyn Watcher>),
}

/// Somebody who knows for certain when this process is dead, and lives on.
pub trait Watcher: fmt::Debug + Send + Sync {
    /// From now on he watches; when this process is dead he calls [`report_death`].
    fn watch(&self, life: Life) -> io::Result<()>;

    /// He is not needed any more.
    fn dismiss(&self);
}

/// A guard that watches this process.
#[derive(Debug)]
pub(crate) enum Guard {
    Process(Mutex<Child>),
    Given(Arc<dyn Watcher>),
}

impl Guard {
    /// Starts it, lends it the page, and waits until it watches. Then the page is sealed.
    pub(crate) fn start(how: &GuardStart, life: &Life) -> io::Result<Self> {
        let page = life.fd().ok_or(io::ErrorKind::Unsupported)?;
        let (guard, watches) = match how {
            GuardStart::Command(command) => {
                let mut child = spawn(command, page.try_clone_to_owned()?)?;
                let watches = ready(&mut child);
                (Self::Process(Mutex::new(child)), watches)
            }
            GuardStart::Given(given) => {
                let watches = Life::guard(page).and_then(|life| given.watch(life));
                (Self::Given(Arc::clone(given)), watches)
            }
        };
        let sealed = watches.and_then(|()| life.seal());
        if sealed.is_err() {
            guard.dismiss();
        }
        sealed.map(|()| guard)
    }

    /// It is not needed any more: the node has ended in order and said so.
    pub(crate) fn dismiss(&self) {
        match self {
            Self::Process(child) => {
                let mut child = child.lock();
                let _ = child.kill();
                let _ = child.wait();
            }
            Self::Given(given) => given.dismiss(),
        }
    }
}

/// Starts a guard, whose standard input is the page.
fn spawn(command: &GuardCommand, page: OwnedFd) -> io::Result<Child> {
    Command::new(&command.program)
        .args(&command.args)
        .arg(format!("--guard-of={}", std::process::id()))
        .stdin(page)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Not of the terminal's group: Ctrl-C is for the node, which ends in order.
        .process_group(0)
        .spawn()
}

/// Waits for the guard's word.
fn ready(child: &mut Child) -> io::Result<()> {
    let out = child.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut fds = [PollFd::new(out, PollFlags::IN)];
    let limit = Timespec { tv_sec: START_MAX.as_secs().cast_signed(), tv_nsec: 0 };
    if poll(&mut fds, Some(&limit))? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "it did not start in time"));
    }
    let mut said = [0];
    out.read_exact(&mut said)?;
    if said == [READY] { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// The work of a guard: watches its parent `owner`, whose page is its standard input, until that is dead.
/// Then it says so.
pub fn keep_watch(owner: u32, master: &dyn MasterApi) -> io::Result<()> {
    let life = Life::guard(io::stdin().as_fd())?;
    let watch = Watch::new(owner)?;
    io::stdout().write_all(&[READY])?;
    io::stdout().flush()?;
    watch.wait_for_death();
    report_death(&life, master)
}

/// What a guard does when its node is dead: ends what can still be read of it, and unmounts it, unless it had
/// nothing mounted.
pub fn report_death(life: &Life, master: &dyn MasterApi) -> io::Result<()> {
    if !canary::on(Canary::DeadButReadable) {
        life.end();
    }
    let segments = life.mounts();
    if segments.is_empty() {
        return Ok(());
    }
    let unmount = Unmount { node: life.node(), segments };
    let end = boottime().deadline_in(TELL_MAX);
    while !end.passed(boottime()) {
        let deadline = boottime().deadline_in(CALL_TIME);
        if let Ok(Ok(())) = master.unmount(&unmount, deadline) {
            return Ok(());
        }
        rt::sleep(PAUSE);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no master was reached"))
}

/// A look at one's parent.
struct Watch {
    owner: Pid,
    /// Becomes readable when it dies; `None`: an old kernel.
    death: Option<OwnedFd>,
}

impl Watch {
    fn new(owner: u32) -> io::Result<Self> {
        let owner = Pid::from_raw(owner.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
        // Of our parent, if it still is when we look: while it lives nobody else has its number.
        Ok(Self { owner, death: pidfd_open(owner, PidfdFlags::empty()).ok() })
    }

    fn wait_for_death(&self) {
        // A process without its parent gets another one: init, or whoever reaps for it.
        while getppid() == Some(self.owner) {
            match &self.death {
                Some(death) => {
                    // An interrupted wait looks again.
                    let _ = poll(&mut [PollFd::new(death, PollFlags::IN)], Some(&LOOK_ANYWAY));
                }
                None => rt::sleep(LOOK),
            }
        }
    }
}
