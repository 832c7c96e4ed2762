//! A world of `mooncrate_rt` for shipped code: its threads are fibers of one OS thread, its time is virtual, its
//! network is this file's neighbour. One seed is one order of events.
//!
//! ```text
//!   run ──► the next timer that is due ──► bytes arrive, sleepers wake
//!    ▲  └─► one fiber that can go on, drawn by the seed ──► shipped code, until it calls the world
//!    └──────────────────────────────────────────────────────────┘
//! ```
//!
//! A fiber belongs to a process, and a process to a host with clocks of its own. A process that is stopped runs none of
//! its fibers. One that is killed never runs again and is not unwound: its stacks are leaked, because destructors would
//! be an orderly exit. Its connections end, as the kernel would end them.
//!
//! What must stay true: no borrow of the kernel is held while a fiber runs; nothing here reads a real clock or draws
//! what the seed does not fix.

mod net;
mod world;

use crate::Nanos;
use crate::clock::Clock;
use crate::swarm::pick;
use crate::trace::Trace;
use generator::{Generator, Gn};
use mooncrate_core::rng::Rng;
use mooncrate_rt::{self as rt, Way, Work};
use net::{EndId, Net};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::Duration;
use world::FIBERS;

/// Words of a fiber's stack: 1 MiB, of which the system gives what is touched.
const STACK_WORDS: usize = 1 << 17;
/// Virtual time that the code between two calls of the world takes, at most.
const STEP_NANOS_MAX: u64 = 1_500;
/// What a look at a clock takes: a loop that only looks at the clock ends.
const LOOK_NANOS: u64 = 20;
/// How long a fiber leaves others a lock that it wants: at first, and at most.
const TAKEN_NANOS: (u64, u64) = (1_000, 100_000);
/// Queues above this are not addresses of condition variables.
const QUEUES: usize = 1 << 62;

/// Names a process of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(usize);

/// Names a machine of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostIx(usize);

/// Names a fiber of the run.
type FiberId = usize;

struct Fiber {
    /// `None` while it runs, and when it has ended.
    code: Option<Generator<'static, (), ()>>,
    process: ProcessId,
    name: String,
    /// Where it waits to be woken.
    queue: Option<usize>,
    /// Counts its waits: a timer of an earlier wait has no effect.
    waits: u64,
    /// The last wait ended because its time was over.
    over: bool,
    /// How long it leaves the next lock that is taken.
    patience: u64,
    ended: bool,
}

struct Process {
    name: String,
    host: HostIx,
    stopped: bool,
    /// For how long it has been stopped, and since when it is.
    stood: Nanos,
    stands_since: Nanos,
    /// Killed, or its machine is without power.
    dead: bool,
    /// Fibers that could go on and must not, because the process is stopped.
    parked: Vec<FiberId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Wake(FiberId, u64),
    /// A fiber that runs late may go on.
    Late(FiberId),
    /// Of async code.
    Waker(u64),
    Deliver(EndId),
    /// Looks at all connections: some are closed without a word.
    Sweep,
}

struct Kernel {
    rng: Rng,
    now: Nanos,
    trace: Trace,
    /// The clocks of each machine.
    hosts: Vec<Clock>,
    processes: Vec<Process>,
    fibers: Vec<Fiber>,
    current: Option<FiberId>,
    ready: Vec<FiberId>,
    timers: BinaryHeap<Reverse<(Nanos, u64, Timer)>>,
    timers_set: u64,
    queues: BTreeMap<usize, Vec<FiberId>>,
    /// Async code that waits at queues, and for timers.
    watchers: BTreeMap<usize, Vec<Waker>>,
    wakers: BTreeMap<u64, Waker>,
    net: Net,
    /// Places without a wait at which another fiber runs, in parts per thousand.
    switch: u32,
    late: Late,
    panicked: Option<String>,
}

/// Threads that could go on and are not run for a while, as on a busy machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Late {
    /// How often, in parts per thousand.
    pub permille: u32,
    /// For how long, at most.
    pub nanos_max: Nanos,
}

thread_local! {
    static KERNEL: RefCell<Option<Kernel>> = const { RefCell::new(None) };
    /// Queues that wakers of async code woke while the kernel was at work.
    static WOKEN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn with<T>(work: impl FnOnce(&mut Kernel) -> T) -> T {
    KERNEL.with_borrow_mut(|kernel| work(kernel.as_mut().expect("a run has begun")))
}

/// Begins a run on this thread. An earlier one is dropped, and its fibers leaked.
pub fn begin(seed: u64, late: Late, trace: Trace) {
    let mut rng = Rng::stream(seed, "fibers");
    let switch = *pick(&mut rng, &[0, 2, 10, 50, 200]);
    let net = Net::new(Rng::stream(seed, "network"));
    let mut kernel = Kernel {
        rng,
        now: 0,
        trace,
        hosts: Vec::new(),
        processes: Vec::new(),
        fibers: Vec::new(),
        current: None,
        ready: Vec::new(),
        timers: BinaryHeap::new(),
        timers_set: 0,
        queues: BTreeMap::new(),
        watchers: BTreeMap::new(),
        wakers: BTreeMap::new(),
        net,
        switch,
        late,
        panicked: None,
    };
    kernel.set_timer(net::SWEEP, Timer::Sweep);
    KERNEL.set(Some(kernel));
}

/// Ends the run: what is left of it is leaked; the trace.
pub fn end() -> Trace {
    let mut kernel = KERNEL.take().expect("a run has begun");
    kernel.fibers.drain(..).filter_map(|fiber| fiber.code).for_each(std::mem::forget);
    kernel.trace
}

/// Makes a machine with clocks of its own.
pub fn host(clock: Clock) -> HostIx {
    with(|kernel| {
        kernel.hosts.push(clock);
        HostIx(kernel.hosts.len() - 1)
    })
}

/// Sets the wall clock of a machine by an hour.
pub fn step_wall(host: HostIx, forward: bool) {
    with(|kernel| kernel.hosts[host.0].step_wall(forward));
}

/// From now on no thread runs late.
pub fn be_in_time() {
    with(|kernel| kernel.late = Late::default());
}

/// Sets all wall clocks right again.
pub fn right_walls() {
    with(|kernel| kernel.hosts.iter_mut().for_each(Clock::right_wall));
}

/// Makes a process on a machine.
pub fn process(name: &str, host: HostIx) -> ProcessId {
    with(|kernel| {
        kernel.processes.push(Process {
            name: name.into(),
            host,
            stopped: false,
            dead: false,
            stood: 0,
            stands_since: 0,
            parked: Vec::new(),
        });
        ProcessId(kernel.processes.len() - 1)
    })
}

/// Starts a fiber of a process.
pub fn start(process: ProcessId, name: &str, work: impl FnOnce() + Send + 'static) {
    with(|kernel| kernel.start(process, name, Box::new(work)));
}

/// Kills a process: SIGKILL.
pub fn kill(process: ProcessId) {
    with(|kernel| kernel.kill(process, true));
}

/// Takes the power from a process's machine: it ends, and its peers hear nothing.
pub fn vanish(process: ProcessId) {
    with(|kernel| kernel.kill(process, false));
}

/// Whether a process was killed.
pub fn is_dead(process: ProcessId) -> bool {
    with(|kernel| kernel.processes[process.0].dead)
}

/// Ends some connection of a process, with what is on its way.
pub fn reset(process: ProcessId) {
    with(|kernel| {
        kernel.net.reset_one(process);
        kernel.tell_net();
    });
}

/// Lets a bit flip on its way to a process that serves.
pub fn garble(process: ProcessId) {
    with(|kernel| kernel.net.garble_one(process));
}

/// Stops a process: SIGSTOP.
pub fn stop(process: ProcessId) {
    with(|kernel| kernel.stop(process));
}

/// Lets a stopped process go on: SIGCONT.
pub fn go_on(process: ProcessId) {
    with(|kernel| kernel.go_on(process));
}

/// From now on nothing arrives between two processes, or everything does again.
pub fn cut(one: ProcessId, other: ProcessId, is_cut: bool) {
    with(|kernel| kernel.net.cut(one, other, is_cut));
}

/// True time since the run began.
pub fn true_time() -> Nanos {
    with(|kernel| kernel.now)
}

/// True time since the run began in which a process, which runs now, could run.
pub fn running_time(process: ProcessId) -> Nanos {
    with(|kernel| kernel.now - kernel.processes[process.0].stood)
}

/// What the threads of all processes do, for a report: who waits, and since how many waits.
pub fn threads() -> Vec<String> {
    with(|kernel| {
        let alive = kernel.fibers.iter().filter(|fiber| !fiber.ended);
        let line = |fiber: &Fiber| {
            let process = &kernel.processes[fiber.process.0];
            let stopped = if process.stopped { ", stopped" } else { "" };
            let waits = fiber.queue.map_or_else(String::new, |queue| format!(" at {queue:x}"));
            format!("{}, {}: wait {}{waits}{stopped}", process.name, fiber.name, fiber.waits)
        };
        alive.map(line).collect()
    })
}

/// Adds to the trace of this run.
pub fn note(tag: u64, detail: u64, text: impl FnOnce() -> String) {
    with(|kernel| {
        let now = kernel.now;
        kernel.trace.mix(tag, now, detail);
        kernel.trace.say(now, text);
    });
}

/// Runs fibers until `until`, in true time, or until `done`; what a fiber panicked with.
pub fn run(until: Nanos, mut done: impl FnMut() -> bool) -> Result<(), String> {
    loop {
        if let Some(words) = with(|kernel| kernel.panicked.take()) {
            return Err(words);
        }
        if done() {
            return Ok(());
        }
        let Some((id, mut code)) = with(|kernel| kernel.next(until)) else { return Ok(()) };
        rt::enter(Some(&FIBERS));
        let ran = catch_unwind(AssertUnwindSafe(|| code.resume()));
        rt::enter(None);
        with(|kernel| kernel.has_run(id, code, ran.err().map(|panic| words(&*panic))));
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let owned = panic.downcast_ref::<String>().cloned();
    let words = owned.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    words.unwrap_or_else(|| "a panic without words".to_owned())
}

impl Kernel {
    fn start(&mut self, process: ProcessId, name: &str, work: Work) -> FiberId {
        let fiber = Fiber {
            code: Some(Gn::new_opt(STACK_WORDS, work)),
            process,
            name: name.into(),
            queue: None,
            waits: 0,
            over: false,
            patience: TAKEN_NANOS.0,
            ended: false,
        };
        self.fibers.push(fiber);
        let id = self.fibers.len() - 1;
        self.make_ready(id);
        id
    }

    fn set_timer(&mut self, at: Nanos, timer: Timer) {
        self.timers_set += 1;
        self.timers.push(Reverse((at, self.timers_set, timer)));
    }

    /// The next fiber that runs, after everything that is due by then; `None`: time is over.
    fn next(&mut self, until: Nanos) -> Option<(FiberId, Generator<'static, (), ()>)> {
        self.pump();
        loop {
            let due = self.timers.peek().map(|Reverse((at, ..))| *at);
            if due.is_some_and(|due| due <= self.now || (self.ready.is_empty() && due <= until)) {
                let Reverse((at, _, timer)) = self.timers.pop().expect("it is there");
                self.now = self.now.max(at);
                self.fire(timer);
                continue;
            }
            if self.now >= until || self.ready.is_empty() {
                self.now = self.now.max(until.min(due.unwrap_or(until)));
                return None;
            }
            let at = self.rng.below(self.ready.len() as u64) as usize;
            let id = self.ready.swap_remove(at);
            let Some(code) = self.fibers[id].code.take() else { continue };
            self.now += 1 + self.rng.below(STEP_NANOS_MAX);
            self.current = Some(id);
            return Some((id, code));
        }
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Wake(id, waits) if self.fibers[id].waits == waits => {
                self.fibers[id].over = true;
                self.wake_fiber(id);
            }
            Timer::Wake(..) => {}
            Timer::Late(id) => self.run_next(id),
            Timer::Waker(number) => {
                let waker = self.wakers.remove(&number);
                self.call(waker);
            }
            Timer::Deliver(end) => self.deliver(end),
            Timer::Sweep => {
                self.net.touch_written();
                self.pump();
                let next = self.now + net::SWEEP;
                self.set_timer(next, Timer::Sweep);
            }
        }
    }

    fn has_run(&mut self, id: FiberId, code: Generator<'static, (), ()>, panicked: Option<String>) {
        self.current = None;
        let fiber = &mut self.fibers[id];
        if let Some(words) = panicked {
            fiber.ended = true;
            let of = &self.processes[fiber.process.0].name;
            self.panicked.get_or_insert(format!("{of}, thread {}: {words}", fiber.name));
            std::mem::forget(code);
        } else if code.is_done() {
            fiber.ended = true;
        } else {
            fiber.code = Some(code);
        }
    }

    /// A fiber can go on; at once, or late.
    fn make_ready(&mut self, id: FiberId) {
        if self.late.permille > 0 && self.rng.chance(self.late.permille) {
            let late = 1 + self.rng.below(self.late.nanos_max);
            return self.set_timer(self.now + late, Timer::Late(id));
        }
        self.run_next(id);
    }

    fn run_next(&mut self, id: FiberId) {
        let process = &mut self.processes[self.fibers[id].process.0];
        if process.stopped {
            process.parked.push(id);
        } else {
            self.ready.push(id);
        }
    }

    /// The current fiber waits from now on.
    fn begin_wait(&mut self, queue: Option<usize>, time: Option<Nanos>) {
        let id = self.current.expect("a fiber waits");
        let fiber = &mut self.fibers[id];
        fiber.waits += 1;
        fiber.over = false;
        fiber.queue = queue;
        let waits = fiber.waits;
        if let Some(queue) = queue {
            self.queues.entry(queue).or_default().push(id);
        }
        if let Some(time) = time {
            self.set_timer(self.now.saturating_add(time), Timer::Wake(id, waits));
        }
    }

    fn wake_fiber(&mut self, id: FiberId) {
        let fiber = &mut self.fibers[id];
        fiber.waits += 1;
        if let Some(queue) = fiber.queue.take() {
            let waiting = self.queues.get_mut(&queue).expect("it waits there");
            waiting.retain(|other| *other != id);
            if waiting.is_empty() {
                self.queues.remove(&queue);
            }
        }
        self.make_ready(id);
    }

    /// Calls wakers of async code. What they wake is a queue.
    fn call(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        wakers.into_iter().for_each(Waker::wake);
        for queue in WOKEN.take() {
            self.wake(queue, true);
        }
    }

    fn wake(&mut self, queue: usize, all: bool) {
        if let Some(watchers) = self.watchers.remove(&queue) {
            self.call(watchers);
        }
        while let Some(waiting) = self.queues.get(&queue) {
            let id = *pick(&mut self.rng, waiting);
            self.wake_fiber(id);
            if !all {
                return;
            }
        }
    }

    fn kill(&mut self, process: ProcessId, is_heard: bool) {
        let name = self.processes[process.0].name.clone();
        self.trace.say(self.now, || format!("{name} is killed"));
        self.processes[process.0].dead = true;
        for id in 0..self.fibers.len() {
            let fiber = &mut self.fibers[id];
            if fiber.process != process || fiber.ended {
                continue;
            }
            fiber.ended = true;
            // Not dropped: that would unwind it.
            fiber.code.take().into_iter().for_each(std::mem::forget);
            fiber.waits += 1;
            if let Some(queue) = fiber.queue.take()
                && let Some(waiting) = self.queues.get_mut(&queue)
            {
                waiting.retain(|other| *other != id);
                if waiting.is_empty() {
                    self.queues.remove(&queue);
                }
            }
        }
        let fibers = &self.fibers;
        self.ready.retain(|id| !fibers[*id].ended);
        self.net.kill(process, self.now, is_heard);
        self.pump();
    }

    fn stop(&mut self, process: ProcessId) {
        self.processes[process.0].stopped = true;
        self.processes[process.0].stands_since = self.now;
        let fibers = &self.fibers;
        let parked = self.ready.extract_if(.., |id| fibers[*id].process == process);
        self.processes[process.0].parked.extend(parked);
    }

    fn go_on(&mut self, process: ProcessId) {
        let of = &mut self.processes[process.0];
        of.stopped = false;
        of.stood += self.now - of.stands_since;
        let parked = std::mem::take(&mut self.processes[process.0].parked);
        let fibers = &self.fibers;
        self.ready.extend(parked.into_iter().filter(|id| !fibers[*id].ended));
    }

    /// Takes over what processes have written since the last time.
    fn pump(&mut self) {
        for (end, due) in self.net.pump(self.now) {
            self.set_timer(due, Timer::Deliver(end));
        }
        self.tell_net();
    }

    fn deliver(&mut self, end: EndId) {
        if let Some(again) = self.net.deliver(end, self.now) {
            self.set_timer(again, Timer::Deliver(end));
        }
        self.tell_net();
    }

    /// Wakes who waits for a socket, and traces what moved.
    fn tell_net(&mut self) {
        for end in self.net.take_changed() {
            self.wake(QUEUES | end.0, true);
        }
        for (tag, detail) in self.net.take_moved() {
            self.trace.mix(tag, self.now, detail);
        }
    }

    fn process_of_current(&self) -> ProcessId {
        self.fibers[self.current.expect("a fiber calls")].process
    }
}

impl Kernel {
    /// The end of this socket, if a call on it would wait now.
    fn waits_for(&mut self, socket: BorrowedFd<'_>, way: Way) -> Option<EndId> {
        self.pump();
        let end = self.net.end_of(socket)?;
        self.net.touch(end);
        if way == Way::Read {
            self.deliver_more(end);
        }
        (!net::is_ready(socket, way)).then_some(end)
    }

    /// Async code waits at a queue.
    fn watch(&mut self, queue: usize, waker: &Waker) {
        let watchers = self.watchers.entry(queue).or_default();
        if !watchers.iter().any(|other| other.will_wake(waker)) {
            watchers.push(waker.clone());
        }
    }

    /// What has arrived and did not fit before.
    fn deliver_more(&mut self, end: EndId) {
        if self.net.has_arrived(end, self.now) {
            self.deliver(end);
        }
    }
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
