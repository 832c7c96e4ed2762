//! Copies that the master orders: this node fetches replicas from other owners into its own memory.
//!
//! A few threads and a short queue. What does not fit into the queue is refused at once: the master
//! asks again later, or somebody else. A copy is read and verified as every reader does, straight
//! into the slot it is for, and published as every writer does; until then nobody can see it. A copy
//! that fails leaves nothing behind: its guard gives the slot back.

use crate::duty::Node;
use mooncrate_core::copy::{CopyDone, CopyOrder};
use mooncrate_core::time::Deadline;
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{BeginWrite, LabelHash, WriteGuard};
use mooncrate_transfer::{Engine, Read, TransferError};
use mooncrate_wire::message::NodeCommand;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

/// Copies and commands that wait for a thread.
const QUEUE_MAX: usize = 256;
/// Results that wait for a master that does not answer; it gives such copies up by itself.
const UNTOLD_MAX: usize = 1024;
/// Results that are told in one call while more copies wait, and their bytes. A call costs as much as the
/// copy of a small value; the master keeps many more copies under way, so nobody waits for these.
const TOLD_TOGETHER: usize = 16;
const TOLD_BYTES: u64 = 1 << 20;
/// How long a thread waits before it looks whether the node stops.
const NAP: Duration = Duration::from_millis(100);

/// What a copy thread does.
enum Task {
    Copy(Box<CopyOrder>),
    Command(NodeCommand),
}

/// Copies that wait, and results that were not told yet.
pub(crate) struct Copier {
    engine: Engine,
    queue: Mutex<VecDeque<Task>>,
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
    pub(crate) fn new(engine: Engine) -> Self {
        let (queue, untold) = (Mutex::default(), Mutex::default());
        Self { engine, queue, wake: Condvar::new(), untold }
    }

    /// Takes work, or refuses it.
    pub(crate) fn add(&self, copies: Vec<CopyOrder>, commands: Vec<NodeCommand>) {
        let mut queue = self.queue.lock();
        // Commands are few and not repeated: they always find room.
        queue.extend(commands.into_iter().map(Task::Command));
        for order in copies {
            if queue.len() < QUEUE_MAX {
                queue.push_back(Task::Copy(Box::new(order)));
            } else {
                self.remember(CopyDone::of(&order.target, false), 0);
            }
        }
        drop(queue);
        self.wake.notify_all();
    }

    fn next(&self) -> Option<Task> {
        let mut queue = self.queue.lock();
        if queue.is_empty() {
            self.wake.wait_for(&mut queue, NAP);
        }
        queue.pop_front()
    }

    fn remember(&self, done: CopyDone, bytes: u64) {
        let mut untold = self.untold.lock();
        if untold.done.len() < UNTOLD_MAX {
            untold.done.push(done);
            untold.bytes += bytes;
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
            match self.copier().next() {
                Some(Task::Copy(order)) => {
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
        self.fill(&mut guard, order, deadline)?;
        // Summed once more on its way: what is published is what was sealed.
        guard.filled(order.len as usize)?;
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
            let transport = match self.copier().engine.transport(source, deadline) {
                Ok(transport) => transport,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            // Nothing counts as written before `filled`, so the next source starts anew.
            let into = guard.buffer(order.len as usize);
            let mut reads = [Read::new(*source, order.len, order.seal, into)];
            transport.read(&mut reads, deadline);
            let [read] = reads;
            match read.result {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
            self.copier().engine.forget(source.segment);
        }
        Err(last)
    }
}
