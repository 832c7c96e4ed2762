//! Saving: a queue of pinned blocks, and the thread that stores them.
//!
//! ```text
//! save ─► pins ─► queue (bounded by bytes) ─► thread: batch by batch ─► pins released, waiter woken
//!                    └ cancel, stop, panic ──────────────────────────► the same, without storing the rest
//! ```
//!
//! What must stay true: the pins of a save end with it, however it ends, and its waiter hears of that. All pins
//! of a save are held until its end and released together, because [`mooncrate_paged::Pool::release`] orders a
//! chain for eviction by its last block first only if it gets the whole chain.

use super::{Link, SpillError};
use crate::{Error, Looked, Stored};
use mooncrate_client::Error as ClientError;
use mooncrate_core::error::PutError;
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_paged::{PinnedBlocks, SpillKey};
use mooncrate_wire::clock::boottime;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What became of a save.
#[derive(Debug, Default)]
#[must_use]
pub struct Saved {
    /// Blocks that were to be saved.
    pub blocks: usize,
    /// Of them, those that were stored now.
    pub stored: usize,
    /// Of them, those that the store had already.
    pub there: usize,
    /// The first error. Blocks after the batch that it belongs to were not tried.
    pub failed: Option<SpillError>,
    /// Whether it was cancelled before its end.
    pub cancelled: bool,
}

impl Saved {
    /// Whether the store has all of the blocks.
    pub const fn is_whole(&self) -> bool {
        self.stored + self.there == self.blocks
    }
}

/// A save that is under way. Dropping this does not end it.
#[derive(Debug)]
#[must_use = "whether it succeeded is told here"]
pub struct Saving {
    progress: Arc<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    state: Mutex<SaveState>,
    /// `done` was set.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SaveState {
    cancelled: bool,
    done: Option<Saved>,
}

impl Saving {
    /// Waits for the end, for so long at most; then this is given back.
    pub fn wait(self, most: Duration) -> Result<Saved, Self> {
        let deadline = boottime().deadline_in(most);
        let mut state = self.progress.state.lock();
        loop {
            if let Some(saved) = state.done.take() {
                return Ok(saved);
            }
            let left = deadline.left(boottime());
            if left.is_zero() {
                break;
            }
            self.progress.ended.wait_for(&mut state, left);
        }
        drop(state);
        Err(self)
    }

    /// Waits for the end, which comes: every save is done, or ended when its queue is.
    pub(super) fn until_done(self) -> Saved {
        let mut state = self.progress.state.lock();
        loop {
            if let Some(saved) = state.done.take() {
                return saved;
            }
            self.progress.ended.wait(&mut state);
        }
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.progress.state.lock().done.is_some()
    }

    /// Ends it after the batch that is on its way. What was stored stays.
    pub fn cancel(&self) {
        self.progress.state.lock().cancelled = true;
    }
}

/// One save in the queue.
#[derive(Debug)]
struct Job {
    /// `None` once it has ended.
    pinned: Option<PinnedBlocks>,
    bytes: u64,
    progress: Arc<Progress>,
}

impl Job {
    /// Releases the pins, then tells the waiter: who was told finds no pin.
    fn end(&mut self, saved: Saved) {
        if self.pinned.take().is_some() {
            self.progress.state.lock().done = Some(saved);
            self.progress.ended.notify_all();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let blocks = self.pinned.as_ref().map_or(0, PinnedBlocks::len);
        self.end(Saved { blocks, cancelled: true, ..Saved::default() });
    }
}

/// Saves that wait.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<Waiting>,
    /// A job came, or the end.
    changed: Condvar,
    /// The end came. Apart from `changed`, so that a job never wakes the wrong thread.
    stopped: Condvar,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Bytes of blocks of all jobs, with the one that is being done.
    bytes: u64,
    stopped: bool,
}

impl Queue {
    pub(super) fn new(bytes_max: u64) -> Self {
        let (changed, stopped) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::new(Waiting::default()), changed, stopped, bytes_max }
    }

    pub(super) fn push(
        &self,
        pinned: PinnedBlocks,
        block_bytes: usize,
    ) -> Result<Saving, SpillError> {
        let bytes = (pinned.len() * block_bytes) as u64;
        let mut state = self.state.lock();
        if state.bytes > 0 && state.bytes + bytes > self.bytes_max {
            return Err(SpillError::QueueFull {
                queued_bytes: state.bytes,
                more_bytes: bytes,
                max: self.bytes_max,
            });
        }
        let progress = Arc::new(Progress::default());
        let job = Job { pinned: Some(pinned), bytes, progress: Arc::clone(&progress) };
        if state.stopped {
            drop(state);
            // Ends it as cancelled.
            drop(job);
            return Ok(Saving { progress });
        }
        state.bytes += bytes;
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(Saving { progress })
    }

    /// The worker: saves until it is stopped.
    pub(super) fn work(&self, link: &Link) {
        while let Some(mut job) = self.next() {
            let progress = Arc::clone(&job.progress);
            let goes_on = || !progress.state.lock().cancelled && !self.state.lock().stopped;
            let pinned = job.pinned.as_ref().expect("a job that waits has its blocks");
            let saved = save_all(link, pinned, goes_on);
            // First the room in the queue: who was told can save again.
            self.state.lock().bytes -= job.bytes;
            job.end(saved);
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Whether it is stopped, or will be within this time.
    pub(super) fn is_stopped(&self, within: Duration) -> bool {
        let deadline = boottime().deadline_in(within);
        let mut state = self.state.lock();
        while !state.stopped {
            let left = deadline.left(boottime());
            if left.is_zero() {
                break;
            }
            self.stopped.wait_for(&mut state, left);
        }
        state.stopped
    }

    /// Ends all saves, but for a batch that is on its way.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.changed.notify_all();
        self.stopped.notify_all();
        drop(jobs);
    }
}

/// Stores blocks in order, batch by batch, while `goes_on` says so.
pub(super) fn save_all(link: &Link, pinned: &PinnedBlocks, goes_on: impl Fn() -> bool) -> Saved {
    let mut saved = Saved { blocks: pinned.len(), ..Saved::default() };
    for start in (0..pinned.len()).step_by(link.batch_blocks) {
        if !goes_on() {
            saved.cancelled = true;
            break;
        }
        let batch = start..pinned.len().min(start + link.batch_blocks);
        if let Err(error) = save_batch(link, pinned, batch, &mut saved) {
            saved.failed = Some(error);
            break;
        }
    }
    saved
}

/// Stores what the store does not have of a batch.
fn save_batch(
    link: &Link,
    pinned: &PinnedBlocks,
    batch: Range<usize>,
    saved: &mut Saved,
) -> Result<(), SpillError> {
    let keys: Vec<_> = batch.clone().map(|at| pinned.key(at)).collect();
    let asked: Vec<&[u8]> = keys.iter().map(SpillKey::as_bytes).collect();
    let there = there(link, &asked)?;
    let absent: Vec<usize> = (0..keys.len()).filter(|at| !there[*at]).collect();
    saved.there += keys.len() - absent.len();
    if absent.is_empty() {
        return Ok(());
    }
    let block_bytes = link.block_bytes();
    let mut buffer = link.buffers.take(absent.len() * block_bytes)?;
    for (at, payload) in absent.iter().zip(buffer.chunks_exact_mut(block_bytes)) {
        pinned.read(batch.start + at, payload)?;
    }
    let values = buffer.chunks_exact(block_bytes);
    let items = absent.iter().map(|at| asked[*at]).zip(values).collect();
    put_all(link, items, saved)
}

/// Puts blocks. Engines share prefixes, so another one may be storing the same block at this moment: it is waited
/// for, and if it gives up, the block is stored here.
fn put_all(
    link: &Link,
    mut items: Vec<(&[u8], &[u8])>,
    saved: &mut Saved,
) -> Result<(), SpillError> {
    let deadline = boottime().deadline_in(link.buffers.wait_max());
    loop {
        let (mut theirs, mut hint, mut failed) = (Vec::new(), 0, None);
        for (item, stored) in items.iter().zip(link.store.put_batch(&items)) {
            match stored {
                Ok(Stored::New) => saved.stored += 1,
                Ok(Stored::AlreadyThere) => saved.there += 1,
                Err(Error::Client(ClientError::Put(PutError::InProgress { after_ms })))
                    if !deadline.passed(boottime()) =>
                {
                    theirs.push(*item);
                    hint = hint.max(after_ms);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        if theirs.is_empty() {
            return Ok(());
        }
        items = theirs;
        std::thread::sleep(Duration::from_millis(hint.into()));
    }
}

/// Which of these keys the store has a block under. A value of another length is no block: nobody can use it, and a
/// put would be told that there is one, so it is removed.
fn there(link: &Link, keys: &[&[u8]]) -> Result<Vec<bool>, SpillError> {
    let block_bytes = link.block_bytes() as u64;
    let mut there = Vec::with_capacity(keys.len());
    for (key, looked) in keys.iter().zip(link.store.look(keys, false, false)?) {
        there.push(match looked {
            Ok(Looked::Here { len, .. }) if len == block_bytes => true,
            Ok(Looked::Here { .. }) => {
                link.store.remove(key, false)?;
                false
            }
            // One that is being written, or of which nothing is known, is put: that tells.
            _ => false,
        });
    }
    Ok(there)
}
