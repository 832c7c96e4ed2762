//! rt: what code asks of the system that it runs on: time, sleep, threads, randomness, cores, and to wait
//! for another thread.
//!
//! ```text
//!   master, node, client, transfer, wire, mem, ssd, lock ──► rt ──┬─► the operating system
//!                                                                 └─► a World, in threads that entered one
//! ```
//!
//! Every call goes to the operating system, unless the calling thread has entered a [`World`]: then the world
//! answers. The simulator runs the shipped code in worlds with virtual time, where one seed is one order of
//! events. A thread outside of a world pays one read of a thread-local word for each call.
//!
//! What must stay true: the word is memory of the thread and has no destructor, so a forked child is not
//! concerned. Code that runs in a world calls the system for none of these things on its own; `cargo xtask
//! tidy` refuses such calls in the crates above.
//!
//! Deliberately absent: locks (`lock` builds them on [`World::wait`]), sockets outside of a world, files, and any
//! state.
#![forbid(unsafe_code)]

mod thread;

pub use thread::{Thread, spawn, spawn_small};

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::Waker;
use std::time::Duration;

/// Which clock is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Time since the machine was started. It never steps, and goes on while the machine sleeps.
    Boot,
    /// Time since 1970, which an operator may set.
    Wall,
}

/// What a socket is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Bytes to read, or the end of the stream.
    Read,
    /// Room for bytes.
    Write,
}

fn no_network(address: &str) -> io::Error {
    let text = format!("this world has no network, so nobody is at {address}");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// A thread of a world, numbered by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task(pub u64);

/// What a thread of a world does.
pub type Work = Box<dyn FnOnce() + Send>;

/// Answers for the system in threads that entered it. What a world does not define is the system's answer.
pub trait World: Sync {
    /// Nanoseconds on a clock of the calling thread's machine.
    fn now(&self, clock: Clock) -> u64 {
        system_time(clock)
    }

    /// Sleeps.
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// A place where another thread may run: between the parts of a copy, before an operation of a disk.
    fn step(&self);

    /// The same before a lock is taken.
    fn before_lock(&self) {
        self.step();
    }

    /// Another thread has the lock that this one wants: others run first, then it tries again.
    fn taken(&self);

    /// Waits for [`World::wake`] of this queue, or until `time` has passed; whether it has. May also end for no
    /// reason. Queues are named by addresses.
    fn wait(&self, queue: usize, time: Option<Duration>) -> bool;

    /// Wakes one thread that waits at this queue, or all.
    fn wake(&self, queue: usize, all: bool);

    /// Starts a thread that has entered this world, too.
    fn spawn(&self, name: &str, work: Work) -> io::Result<Task> {
        let _ = work;
        let text = format!("this world runs no other threads, so not {name}");
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    /// Whether the thread has ended.
    fn has_ended(&self, task: Task) -> bool {
        let _ = task;
        true
    }

    /// Connects to an address of this world: a stream socket that does not block, or a refusal. A machine that gives no
    /// answer is waited for no longer than `time`.
    fn connect(&self, address: &str, time: Duration) -> io::Result<OwnedFd> {
        let _ = time;
        Err(no_network(address))
    }

    /// Takes a connection that somebody made to `address`, where the caller listens from the first call on; waits for
    /// one no longer than `time`.
    fn accept(&self, address: &str, time: Duration) -> io::Result<Option<OwnedFd>> {
        let _ = time;
        Err(no_network(address))
    }

    /// Waits until a call on this socket need not wait, or `time` has passed. May also end for no reason.
    fn wait_for_socket(&self, socket: BorrowedFd<'_>, way: Way, time: Duration) {
        let _ = (socket, way);
        self.sleep(time);
    }

    /// Wakes `waker` when a call on this socket need not wait, or sooner.
    fn watch_socket(&self, socket: BorrowedFd<'_>, way: Way, waker: &Waker) {
        let _ = (socket, way);
        waker.wake_by_ref();
    }

    /// Takes a connection that somebody made to `address`, where the caller listens from the first call on. If there is
    /// none, `waker` is woken when there may be one.
    fn poll_accept(&self, address: &str, waker: &Waker) -> io::Result<Option<OwnedFd>> {
        let _ = waker;
        Err(no_network(address))
    }

    /// Wakes `waker` after `time`, or sooner; the number of this timer.
    fn wake_after(&self, time: Duration, waker: &Waker) -> u64 {
        let _ = time;
        waker.wake_by_ref();
        0
    }

    /// Nobody waits for this timer any more.
    fn forget_timer(&self, timer: u64) {
        let _ = timer;
    }

    /// The caller is about to end the connection of this socket.
    fn closing(&self, socket: BorrowedFd<'_>) {
        let _ = socket;
    }

    /// Fills `into` with random bytes.
    fn random(&self, into: &mut [u8]) -> io::Result<()> {
        system_random(into)
    }

    /// How many threads can run at the same time.
    fn cores(&self) -> usize {
        system_cores()
    }

    /// How many threads a call may start that borrow from it and end before it does.
    fn helpers(&self) -> usize {
        0
    }
}

thread_local! {
    static WORLD: Cell<Option<&'static dyn World>> = const { Cell::new(None) };
}

/// From now on `world` answers this thread, or with `None` the system.
pub fn enter(world: Option<&'static dyn World>) {
    WORLD.set(world);
}

/// The world that this thread has entered.
pub fn world() -> Option<&'static dyn World> {
    WORLD.get()
}

/// Nanoseconds since the machine was started: `CLOCK_BOOTTIME`.
pub fn boottime() -> u64 {
    now(Clock::Boot)
}

/// Nanoseconds since 1970. No lease and no deadline hangs on it.
pub fn wall_time() -> u64 {
    now(Clock::Wall)
}

fn now(clock: Clock) -> u64 {
    match world() {
        Some(world) => world.now(clock),
        None => system_time(clock),
    }
}

fn system_time(clock: Clock) -> u64 {
    let clock = match clock {
        Clock::Boot => ClockId::Boottime,
        Clock::Wall => ClockId::Realtime,
    };
    let time = clock_gettime(clock);
    // A wall clock before 1970 reads as 1970.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).expect("the kernel gives 0 to 999,999,999");
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Sleeps.
pub fn sleep(time: Duration) {
    match world() {
        Some(world) => world.sleep(time),
        None => std::thread::sleep(time),
    }
}

/// A place where another thread of the world may run; outside of a world nothing.
pub fn step() {
    if let Some(world) = world() {
        world.step();
    }
}

/// Fills `into` with random bytes that nobody can guess.
pub fn random(into: &mut [u8]) -> io::Result<()> {
    match world() {
        Some(world) => world.random(into),
        None => system_random(into),
    }
}

fn system_random(into: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        let rest = &mut into[filled..];
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// How many threads of this process can run at the same time, at least 1.
pub fn cores() -> usize {
    match world() {
        Some(world) => world.cores(),
        None => system_cores(),
    }
}

/// How many threads a call may start that borrow from it and end before it does. A world runs no such threads: the
/// call does their work by itself.
pub fn helpers() -> usize {
    world().map_or(usize::MAX, World::helpers)
}

fn system_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn both_clocks_advance() {
        for clock in [boottime, wall_time] {
            let first = clock();
            sleep(Duration::from_millis(2));
            assert!((2..2_000).contains(&((clock() - first) / 1_000_000)));
        }
        assert!(wall_time() > 1_700_000_000 * 1_000_000_000, "seconds since 1970");
    }

    #[test]
    fn a_thread_ends_with_a_result_or_a_panic() {
        let fine = spawn("fine", || std::thread::current().name().map(String::from)).unwrap();
        assert_eq!(fine.join().unwrap().unwrap(), "fine");
        let bad = spawn("bad", || panic!("on purpose")).unwrap();
        while !bad.is_finished() {
            sleep(Duration::from_millis(1));
        }
        assert!(bad.join().is_err());
    }

    #[test]
    fn random_bytes_are_random_and_all_of_them_are_filled() {
        let (mut one, mut other) = ([0; 400], [0; 400]);
        random(&mut one).unwrap();
        random(&mut other).unwrap();
        assert_ne!(one, other);
        assert!(one.iter().rev().take(40).any(|byte| *byte != 0));
    }

    /// Counts what it is asked, and runs nothing.
    struct Counting(AtomicU64);

    impl World for Counting {
        fn now(&self, clock: Clock) -> u64 {
            self.0.load(Ordering::Relaxed) + u64::from(clock == Clock::Wall)
        }

        fn sleep(&self, time: Duration) {
            self.0.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::Relaxed);
        }

        fn step(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn taken(&self) {}

        fn wait(&self, _queue: usize, _time: Option<Duration>) -> bool {
            true
        }

        fn wake(&self, _queue: usize, _all: bool) {}

        fn cores(&self) -> usize {
            77
        }
    }

    static COUNTING: Counting = Counting(AtomicU64::new(0));

    #[test]
    fn a_world_answers_who_entered_it() {
        enter(Some(&COUNTING));
        sleep(Duration::from_hours(1));
        step();
        assert_eq!((boottime(), wall_time(), cores()), (3_600_000_000_001, 3_600_000_000_002, 77));
        assert_eq!(spawn("other", || ()).unwrap_err().kind(), io::ErrorKind::Unsupported);
        let other = std::thread::scope(|scope| scope.spawn(cores).join().unwrap());
        assert_eq!(other, system_cores(), "another thread is not in the world");
        enter(None);
        step();
        assert_eq!(COUNTING.0.load(Ordering::Relaxed), 3_600_000_000_001);
    }
}
