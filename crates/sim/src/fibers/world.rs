//! What fibers ask of the world that they run in.

use super::{KERNEL, Kernel, LOOK_NANOS, QUEUES, TAKEN_NANOS, Timer, WOKEN, nanos, with};
use mooncrate_rt::{self as rt, Task, Way, Work, World};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::Waker;
use std::time::Duration;

/// Ends the turn of the current fiber.
#[expect(deprecated, reason = "a scope cannot be reached from where shipped code waits")]
fn give_way() {
    generator::yield_with(());
}

pub(super) struct Fibers;

pub(super) static FIBERS: Fibers = Fibers;

impl Fibers {
    /// Another fiber may run here.
    fn may_switch() {
        // A switch in the middle of a panic would leave the thread panicking for others.
        if std::thread::panicking() {
            return;
        }
        let switches = with(|kernel| {
            let switches = kernel.rng.chance(kernel.switch);
            if switches {
                let id = kernel.current.expect("a fiber calls");
                kernel.make_ready(id);
            }
            switches
        });
        if switches {
            give_way();
        }
    }
}

impl World for Fibers {
    fn now(&self, clock: rt::Clock) -> u64 {
        with(|kernel| {
            kernel.now += LOOK_NANOS;
            let (process, now) = (kernel.process_of_current(), kernel.now);
            let of_host = &kernel.hosts[kernel.processes[process.0].host.0];
            match clock {
                rt::Clock::Boot => of_host.leases(now).0,
                rt::Clock::Wall => of_host.wall_time(now),
            }
        })
    }

    fn sleep(&self, time: Duration) {
        with(|kernel| kernel.begin_wait(None, Some(nanos(time))));
        give_way();
    }

    fn step(&self) {
        Self::may_switch();
    }

    fn taken(&self) {
        with(|kernel| {
            let id = kernel.current.expect("a fiber calls");
            let fiber = &mut kernel.fibers[id];
            let pause = fiber.patience;
            fiber.patience = (pause * 2).min(TAKEN_NANOS.1);
            kernel.begin_wait(None, Some(pause));
        });
        give_way();
    }

    fn wait(&self, queue: usize, time: Option<Duration>) -> bool {
        let id = with(|kernel| {
            let id = kernel.current.expect("a fiber calls");
            kernel.fibers[id].patience = TAKEN_NANOS.0;
            kernel.begin_wait(Some(queue), time.map(nanos));
            id
        });
        give_way();
        with(|kernel| kernel.fibers[id].over)
    }

    fn wake(&self, queue: usize, all: bool) {
        KERNEL.with(|kernel| match kernel.try_borrow_mut() {
            Ok(mut kernel) => kernel.as_mut().expect("a run has begun").wake(queue, all),
            Err(_) => WOKEN.with_borrow_mut(|woken| woken.push(queue)),
        });
    }

    fn spawn(&self, name: &str, work: Work) -> io::Result<Task> {
        let id = with(|kernel| {
            let process = kernel.process_of_current();
            kernel.start(process, name, work)
        });
        Ok(Task(id as u64))
    }

    fn has_ended(&self, task: Task) -> bool {
        with(|kernel| kernel.fibers[task.0 as usize].ended)
    }

    fn connect(&self, address: &str, time: Duration) -> io::Result<OwnedFd> {
        let made = with(|kernel| {
            let process = kernel.process_of_current();
            let (socket, listener) = kernel.net.connect(process, address)?;
            kernel.wake(listener, false);
            Ok(socket)
        });
        if made.as_ref().is_err_and(|error: &io::Error| error.kind() == io::ErrorKind::TimedOut) {
            self.sleep(time);
        }
        made
    }

    fn accept(&self, address: &str, time: Duration) -> io::Result<Option<OwnedFd>> {
        let take = |kernel: &mut Kernel| {
            let process = kernel.process_of_current();
            let (listener, came) = kernel.net.accept(process, address);
            if came.is_none() {
                kernel.begin_wait(Some(listener), Some(nanos(time)));
            }
            came
        };
        if let Some(came) = with(take) {
            return Ok(Some(came));
        }
        give_way();
        Ok(with(|kernel| {
            let process = kernel.process_of_current();
            kernel.net.accept(process, address).1
        }))
    }

    fn wait_for_socket(&self, socket: BorrowedFd<'_>, way: Way, time: Duration) {
        let waits = with(|kernel| {
            let end = kernel.waits_for(socket, way);
            if let Some(end) = end {
                kernel.begin_wait(Some(QUEUES | end.0), Some(nanos(time)));
            }
            end.is_some()
        });
        if waits {
            give_way();
        } else {
            Self::may_switch();
        }
    }

    fn watch_socket(&self, socket: BorrowedFd<'_>, way: Way, waker: &Waker) {
        let waits = with(|kernel| {
            let end = kernel.waits_for(socket, way)?;
            kernel.watch(QUEUES | end.0, waker);
            Some(end)
        });
        if waits.is_none() {
            waker.wake_by_ref();
        }
    }

    fn poll_accept(&self, address: &str, waker: &Waker) -> io::Result<Option<OwnedFd>> {
        Ok(with(|kernel| {
            let process = kernel.process_of_current();
            let (listener, came) = kernel.net.accept(process, address);
            if came.is_none() {
                kernel.watch(listener, waker);
            }
            came
        }))
    }

    fn wake_after(&self, time: Duration, waker: &Waker) -> u64 {
        with(|kernel| {
            let number = kernel.timers_set + 1;
            kernel.wakers.insert(number, waker.clone());
            kernel.set_timer(kernel.now.saturating_add(nanos(time)), Timer::Waker(number));
            number
        })
    }

    fn forget_timer(&self, timer: u64) {
        with(|kernel| kernel.wakers.remove(&timer));
    }

    fn closing(&self, socket: BorrowedFd<'_>) {
        with(|kernel| {
            let process = kernel.process_of_current();
            for end in kernel.net.closing(process, socket) {
                kernel.wake(QUEUES | end.0, true);
            }
        });
    }

    fn random(&self, into: &mut [u8]) -> io::Result<()> {
        with(|kernel| {
            for part in into.chunks_mut(8) {
                let drawn = kernel.rng.next().to_le_bytes();
                part.copy_from_slice(&drawn[..part.len()]);
            }
        });
        Ok(())
    }

    fn cores(&self) -> usize {
        1
    }
}
