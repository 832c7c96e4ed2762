//! Copies that the master orders: this node fetches replicas from other owners into its own memory.
//!
//! A few threads and a short queue. What does not fit into the queue is refused at once: the master
//! asks again later, or somebody else. A copy is read and verified as every reader does, straight
//! into the slot it is for, and published as every writer does; until then nobody can see it. A copy
//! that fails leaves nothing behind: its guard gives the slot back. Orders that were given before are
//! passed over until the master has heard what became of them: it repeats them, as it cannot know
//! whether they arrived.

use crate::duty::Node;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::copy::{CopyDone, CopyOrder};
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Generation, Incarnation, SegmentId, Slot};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{BeginWrite, LabelHash, WriteGuard};
use mooncrate_transfer::{Engine, Read, TransferError};
use mooncrate_wire::message::NodeCommand;
use mooncrate_wire::{DataError, HangUp};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Copies and commands that wait for a thread.
const QUEUE_MAX: usize = 256;
/// Results that wait for a master that does not answer; it gives such copies up by itself.
const UNTOLD_MAX: usize = 1024;
/// Results that are told in one call while more copies wait, and their bytes. A call costs as much as the
/// copy of a small value; the master keeps many more copies under way, so nobody waits for these.
const TOLD_TOGETHER: usize = 16;
const TOLD_BYTES: u64 = 1 << 20;
/// Bytes that are fetched at a time on the way to a GPU: whole slices.
const FAR_PIECE_BYTES: u64 = 16 << 20;
/// How long the owner of a source is looked for before the next one has its turn.
const ROUTE_TIME: Duration = Duration::from_secs(2);
/// Pause before results are told again that nobody has heard.
const NAP: Duration = Duration::from_millis(100);

/// What a copy thread does.
enum Task {
    Copy(Box<CopyOrder>),
    Command(NodeCommand),
}

/// The life that an order is for.
type Life = (SegmentId, Incarnation, Slot, Generation);

fn life(target: &CopyDone) -> Life {
    (target.segment, target.incarnation, target.slot, target.generation)
}

/// Copies that wait, and results that were not told yet.
pub(crate) struct Copier {
    engine: Engine,
    /// Ends what the engine waits for.
    hang_up: HangUp,
    queue: Mutex<VecDeque<Task>>,
    /// Orders that the master has not heard of yet.
    taken: Mutex<BTreeSet<Life>>,
    wake: Condvar,
    untold: Mutex<Untold>,
}

/// What became of copies, and how many bytes were copied.
#[derive(Default)]
struct Untold {
    done: Vec<CopyDone>,
    bytes: u64,
}

impl Copier {
    /// `hang_up` is that of the engine's links.
    pub(crate) fn new(engine: Engine, hang_up: HangUp) -> Self {
        let (queue, taken, untold) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { engine, hang_up, queue, taken, wake: Condvar::new(), untold }
    }

    /// Ends the fetches that are under way: the node stops.
    pub(crate) fn stop(&self) {
        self.hang_up.now();
        // Under the lock: whoever has just looked whether the node stops waits by now, and is woken.
        let _queue = self.queue.lock();
        self.wake.notify_all();
    }

    /// Takes work, or refuses it.
    pub(crate) fn add(&self, copies: Vec<CopyOrder>, commands: Vec<NodeCommand>) {
        let mut queue = self.queue.lock();
        // Commands are few and not repeated: they always find room.
        queue.extend(commands.into_iter().map(Task::Command));
        for order in copies {
            let refused = CopyDone::of(&order.target, false);
            if !self.taken.lock().insert(life(&refused)) {
                continue;
            }
            if queue.len() < QUEUE_MAX {
                queue.push_back(Task::Copy(Box::new(order)));
            } else {
                self.remember(refused, 0);
            }
        }
        drop(queue);
        self.wake.notify_all();
    }

    /// Notes an order that others carry out; false: it was given before.
    pub(crate) fn begin(&self, order: &CopyOrder) -> bool {
        self.taken.lock().insert(life(&CopyDone::of(&order.target, false)))
    }

    /// Lets go of the memory of nodes that do not serve it any more. Waits for nobody.
    pub(crate) fn let_go(&self) {
        self.engine.let_go(boottime());
    }

    /// There is something to tell.
    pub(crate) fn wake(&self) {
        // Under the lock, for the same reason as in `stop`.
        let _queue = self.queue.lock();
        self.wake.notify_one();
    }

    /// The next task, when there is one; `None`: there are results to tell, or the node stops.
    fn next(&self, stopping: impl Fn() -> bool) -> Option<Task> {
        let mut queue = self.queue.lock();
        if queue.is_empty() && !stopping() {
            if self.has_untold() {
                // Some that nobody has heard, or another thread is about to tell them.
                self.wake.wait_for(&mut queue, NAP);
            } else {
                self.wake.wait(&mut queue);
            }
        }
        queue.pop_front()
    }

    fn has_untold(&self) -> bool {
        !self.untold.lock().done.is_empty()
    }

    pub(crate) fn remember(&self, done: CopyDone, bytes: u64) {
        let mut untold = self.untold.lock();
        if untold.done.len() < UNTOLD_MAX {
            untold.done.push(done);
            untold.bytes += bytes;
        } else {
            self.taken.lock().remove(&life(&done));
        }
    }

    /// Whether results should be told now: there are many, or nothing else is to be done.
    fn should_tell(&self) -> bool {
        // Looked at one after the other: a thread that holds both locks could wait for another one.
        let many = {
            let untold = self.untold.lock();
            untold.done.len() >= TOLD_TOGETHER || untold.bytes >= TOLD_BYTES
        };
        many || self.queue.lock().is_empty()
    }

    /// Results to tell.
    pub(crate) fn take_untold(&self) -> Vec<CopyDone> {
        std::mem::take(&mut *self.untold.lock()).done
    }

    /// They were heard.
    pub(crate) fn told(&self, done: &[CopyDone]) {
        let mut taken = self.taken.lock();
        for one in done {
            taken.remove(&life(one));
        }
    }

    /// They were not heard.
    pub(crate) fn put_back(&self, done: Vec<CopyDone>) {
        for one in done {
            self.remember(one, 0);
        }
    }
}

impl Node {
    /// One of the copy threads, for as long as the node lives.
    pub(crate) fn fetch_copies(&self) {
        while !self.stopping() {
            match self.copier().next(|| self.stopping()) {
                Some(Task::Copy(order)) => {
                    if canary::on(Canary::CopyToldEarly) {
                        self.copier().remember(CopyDone::of(&order.target, true), 0);
                        self.tell_copies();
                    }
                    let fetched = self.fetch(&order);
                    if let Err(error) = &fetched {
                        tracing::debug!(%error, target = ?order.target, "copy failed");
                    }
                    let done = CopyDone::of(&order.target, fetched.is_ok());
                    self.copier().remember(done, order.len);
                }
                Some(Task::Command(command)) => self.obey(command),
                None => {}
            }
            if self.copier().should_tell() {
                self.tell_copies();
            }
        }
    }

    fn obey(&self, command: NodeCommand) {
        let done = match command {
            NodeCommand::Mount { index, bytes } => self.mount_segment(index, bytes).map(|_| ()),
            NodeCommand::Unmount { index } => self.unmount_segment(index),
        };
        match done {
            Ok(()) => tracing::info!(?command, "carried out"),
            Err(error) => tracing::error!(?command, %error, "not carried out"),
        }
    }

    /// Fetches one replica from the first owner that has it.
    fn fetch(&self, order: &CopyOrder) -> Result<(), TransferError> {
        let now = boottime();
        let deadline = now.deadline_in(Duration::from_millis(u64::from(order.time_ms)));
        let segment = self.segments().find(&order.target)?;
        let label = order.label.encode();
        let mut guard = segment.begin(
            now,
            &BeginWrite {
                locator: order.target,
                token: order.token,
                object: order.object,
                epoch: order.epoch,
                len: order.len,
                label: &label,
                hash: LabelHash::of(&label),
            },
        )?;
        if segment.is_in_place() {
            self.fill(&mut guard, order, deadline)?;
            // Summed once more on its way: what is published is what was sealed.
            guard.filled(order.len as usize)?;
        } else {
            self.fill_far(&mut guard, order, deadline)?;
        }
        let published = guard.publish(boottime(), order.token, order.seal);
        Ok(published.map_err(|refused| refused.error)?)
    }

    fn fill(
        &self,
        guard: &mut WriteGuard,
        order: &CopyOrder,
        deadline: Deadline,
    ) -> Result<(), TransferError> {
        let mut last = TransferError::NoRoute;
        for source in &order.sources {
            if guard.aborted() || self.stopping() {
                break;
            }
            // Nothing counts as written before `filled`, so the next source starts anew.
            let into = guard.buffer(order.len as usize)?;
            match self.fetch_from(source, order, 0, into, deadline) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The same into memory of a GPU: piece by piece, each verified by the seal of the value, so that a
    /// thread needs memory for one piece.
    fn fill_far(
        &self,
        guard: &mut WriteGuard,
        order: &CopyOrder,
        deadline: Deadline,
    ) -> Result<(), TransferError> {
        let mut piece = vec![0; order.len.min(FAR_PIECE_BYTES) as usize];
        while guard.seen() < order.len {
            let start = guard.seen();
            let len = (order.len - start).min(FAR_PIECE_BYTES) as usize;
            let into = &mut piece[..len];
            self.fetch_part(order, start, into, deadline, || guard.aborted())?;
            guard.write(start, into)?;
        }
        Ok(())
    }

    /// Fetches the value of an order into memory of ours, from the first owner that has it.
    pub(crate) fn fetch_into(
        &self,
        order: &CopyOrder,
        into: &mut [u8],
        deadline: Deadline,
        aborted: impl Fn() -> bool,
    ) -> Result<(), TransferError> {
        self.fetch_part(order, 0, into, deadline, aborted)
    }

    /// The same for the part that starts there and is as long as `into`.
    fn fetch_part(
        &self,
        order: &CopyOrder,
        start: u64,
        into: &mut [u8],
        deadline: Deadline,
        aborted: impl Fn() -> bool,
    ) -> Result<(), TransferError> {
        let mut last = TransferError::NoRoute;
        for source in &order.sources {
            if aborted() || self.stopping() {
                break;
            }
            match self.fetch_from(source, order, start, into, deadline) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn fetch_from(
        &self,
        source: &Locator,
        order: &CopyOrder,
        start: u64,
        into: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), TransferError> {
        // A master that stands still is not asked for the way for as long as a copy may take.
        let soon = boottime().deadline_in(ROUTE_TIME).min(deadline);
        let transport = self.copier().engine.transport(source, soon)?;
        let whole = start == 0 && into.len() as u64 == order.len;
        let mut reads = [if whole {
            Read::new(*source, order.len, order.seal, into)
        } else {
            Read::part(*source, order.len, order.seal, start, into)
        }];
        transport.read(&mut reads, deadline);
        let [read] = reads;
        let result = read.result;
        if let (Err(TransferError::Data(DataError::Corrupt)), Medium::Dram | Medium::Vram) =
            (&result, source.segment.medium())
        {
            // Its owner looks at it, and retires it if it is bad; the copy goes on with the next source.
            let _ = transport.verify(source, order.seal, deadline);
        }
        if result.is_err() {
            self.copier().engine.forget(source.segment);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::label::Label;
    use mooncrate_core::{Extent, LeaderEpoch, Name, ObjectId, PutToken, Seal, TenantId};
    use mooncrate_transfer::{Directory, EngineConfig, Route, Segments};
    use mooncrate_wire::CallError;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::Builder;

    /// Knows nobody: nothing is fetched here.
    #[derive(Debug)]
    struct Nowhere;

    impl Directory for Nowhere {
        fn route(
            &self,
            _segment: SegmentId,
            _incarnation: Incarnation,
            _deadline: Deadline,
        ) -> Result<Option<Route>, CallError> {
            Ok(None)
        }
    }

    fn order(slot: u32) -> CopyOrder {
        let target = Locator {
            segment: SegmentId(1),
            incarnation: Incarnation(1),
            slot: Slot(slot),
            generation: Generation(1),
            extent: Extent::new(0, 4096).unwrap(),
            stripe: 0,
            grant: None,
        };
        CopyOrder {
            target,
            sources: Vec::new(),
            token: PutToken(1),
            object: ObjectId { epoch: LeaderEpoch(1), sequence: 1 },
            epoch: LeaderEpoch(1),
            len: 10,
            seal: Seal(0),
            label: Label::plain(Name::new(TenantId::DEFAULT, b"k")).unwrap(),
            time_ms: 1000,
        }
    }

    /// The master repeats what it has no answer to; a copy is made once, and refused once.
    #[test]
    fn repeated_orders_are_passed_over_until_their_answer_was_heard() {
        let engine =
            Engine::new(EngineConfig::default(), Arc::<Segments>::default(), Arc::new(Nowhere));
        let copier = Copier::new(engine, HangUp::default());
        let waiting = |copier: &Copier| copier.queue.lock().len();
        copier.add(vec![order(1), order(2), order(1)], Vec::new());
        copier.add(vec![order(2)], Vec::new());
        assert_eq!(waiting(&copier), 2);
        assert!(copier.next(|| false).is_some());
        copier.add(vec![order(1)], Vec::new());
        assert_eq!(waiting(&copier), 1, "under way");
        let done = CopyDone::of(&order(1).target, true);
        copier.remember(done, 10);
        let told = copier.take_untold();
        copier.add(vec![order(1)], Vec::new());
        copier.put_back(told.clone());
        assert_eq!((waiting(&copier), copier.take_untold()), (1, told.clone()), "not heard yet");
        copier.told(&told);
        copier.add(vec![order(1)], Vec::new());
        assert_eq!(waiting(&copier), 2, "what comes after that is another order");
    }

    /// Threads without work sleep until somebody has a reason to wake them, and each reason does, however
    /// close it comes to their falling asleep.
    #[test]
    fn threads_without_work_are_woken_by_every_reason() {
        let engine =
            Engine::new(EngineConfig::default(), Arc::<Segments>::default(), Arc::new(Nowhere));
        let copier = Arc::new(Copier::new(engine, HangUp::default()));
        for round in 0..300 {
            let (tell, told) = std::sync::mpsc::channel();
            let stopping = Arc::new(AtomicBool::new(false));
            let (of, stops) = (Arc::clone(&copier), Arc::clone(&stopping));
            let sleeper = Builder::new().spawn(move || {
                let stopped = || stops.load(Ordering::Acquire);
                let mut task = None;
                while task.is_none() && !of.has_untold() && !stopped() {
                    task = of.next(stopped);
                }
                tell.send(task.is_some()).unwrap();
            });
            let sleeper = sleeper.unwrap();
            match round % 3 {
                0 => copier.add(Vec::new(), vec![NodeCommand::Unmount { index: 1 }]),
                1 => {
                    copier.remember(CopyDone::of(&order(1).target, false), 0);
                    copier.wake();
                }
                _ => {
                    stopping.store(true, Ordering::Release);
                    copier.stop();
                }
            }
            let worked = told.recv_timeout(Duration::from_mins(1)).expect("it sleeps on");
            assert_eq!(worked, round % 3 == 0);
            sleeper.join().unwrap();
            copier.take_untold();
        }
    }
}
