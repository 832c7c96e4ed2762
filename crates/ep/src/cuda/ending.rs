//! How a step ends: by its success, a failure, a reset of all ranks, or because this rank leaves.
//!
//! What must stay true: whoever comes to a reset has no kernel left that stores or waits. Where it is known on which
//! streams those are, nothing else is waited for: another communicator on the same GPU may have a layer queued that waits
//! for a rank which is in this reset.

use super::{ABORT, CudaEp, LEAVES, OVER, REPORT, STATUS_BYTES};
use crate::barrier::{Fault, Op};
use crate::error::EpError;
use crate::layout::ctl;
use crate::memory::own;
use mooncrate_gpu::{Event, Stream};
use mooncrate_heap::{Group, Ranks};
use mooncrate_lock::interrupt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{Builder, scope, sleep};
use std::time::Duration;

/// Looks for the end of a stream before the thread sleeps between two of them: some hundred microseconds.
const FINISH_SPINS: u32 = 256;
const FINISH_PAUSE: Duration = Duration::from_micros(200);

/// Where graphs that hold layers of a communicator may still run when it is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replays {
    /// On any stream: if layers were recorded, the reset waits for everything on the GPU, also for the layers of other
    /// communicators.
    Anywhere,
    /// On the streams that the reset is given, or nowhere any more.
    Named,
}

impl CudaEp {
    /// Why this rank has failed, if it has: what the GPU has told so far. It waits for nobody, so ask after
    /// the stream has come to its end.
    pub fn status(&self) -> Result<(), EpError> {
        let word = |at: u64| {
            let place = (self.status.device_address() + REPORT + at) as *const u64;
            // SAFETY: the place is in page-locked memory of `self`, aligned, and any 8 bytes are a number.
            // The GPU may store to it meanwhile, so it is read by one volatile access and no reference
            // to it is made.
            unsafe { place.read_volatile() }
        };
        // The GPU stores the first word last.
        let first = word(0);
        match Fault::read(self.rank(), [first, word(8), word(16)]) {
            None => Ok(()),
            Some(fault) => {
                self.told.set(true);
                Err(EpError::Fault(fault))
            }
        }
    }

    /// Waits until everything that is queued on the stream has ended, and tells whether this rank has failed.
    /// Meanwhile it looks which processes of the group have ended ([`CudaEp::notice`]), so that nobody waits for
    /// them until the timeout.
    pub fn finish(&self, stream: &Stream) -> Result<(), EpError> {
        self.done.record(stream)?;
        self.await_event(&self.done)?;
        self.status()
    }

    fn await_event(&self, event: &Event) -> Result<(), EpError> {
        self.attend(|| Ok(event.is_passed()?))
    }

    /// Waits for everything on the GPU. A thread waits, because nobody can be looked for in that call.
    fn await_gpu(&self) -> Result<(), EpError> {
        let gpu = self.side.gpu();
        scope(|threads| {
            let named = Builder::new().name("ep-drain".into());
            let Ok(thread) = named.spawn_scoped(threads, || gpu.synchronize()) else {
                // Who ends later than this is waited for until the timeout.
                self.notice();
                return Ok(gpu.synchronize()?);
            };
            self.attend(|| Ok(thread.is_finished()))?;
            Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic))?)
        })
    }

    /// Waits until something is over that waits of this rank may keep from it, and looks meanwhile who has ended.
    fn attend(&self, mut is_over: impl FnMut() -> Result<bool, EpError>) -> Result<(), EpError> {
        let mut looks = 0u32;
        // Every wait on the GPU has a timeout, so this ends.
        while !is_over()? {
            looks = looks.saturating_add(1);
            if looks < FINISH_SPINS {
                std::hint::spin_loop();
                continue;
            }
            self.notice();
            if interrupt::sleep(FINISH_PAUSE) {
                // What is queued cannot be taken back, but its time is over.
                self.give_up(OVER);
                sleep(FINISH_PAUSE);
            }
        }
        // No wait that was queued before is left, and those to come have their time.
        self.aborted.set(self.aborted.get() & !OVER);
        self.tell(ABORT, self.aborted.get());
        Ok(())
    }

    /// Lets waits of this rank end that wait for one of these ranks, and of those that were given up before.
    pub fn abort(&self, ranks: Ranks) {
        self.give_up(ranks.bits().into());
    }

    fn give_up(&self, bits: u64) {
        self.aborted.set(self.aborted.get() | bits);
        self.tell(ABORT, self.aborted.get());
    }

    /// Looks which processes of the group have ended, and lets waits for them end. [`CudaEp::finish`] does so;
    /// who waits for the stream in another way calls it from time to time, or the timeout tells.
    pub fn notice(&self) -> Ranks {
        let gone = self.watch.gone();
        if !gone.is_empty() {
            self.abort(gone);
        }
        gone
    }

    fn tell(&self, at: u64, value: u64) {
        let place = (self.status.device_address() + at) as *mut u64;
        // SAFETY: the place is in page-locked memory of `self` and aligned. The GPU only reads the word of
        // aborts, and stores to the report only while a kernel of this rank runs.
        unsafe { place.write_volatile(value) };
    }

    /// After a failure: all ranks forget it and begin again with phase 1. All ranks call it together. It waits until
    /// everything on `streams`, all plain layers, and all replays have ended.
    pub fn reset(
        &self,
        group: &mut Group,
        streams: &[&Stream],
        replays: Replays,
        within: Duration,
    ) -> Result<(), EpError> {
        self.drain(streams, replays)?;
        let epoch = self.epoch(&self.side)?.to_le_bytes();
        let epochs = group.gather("reset the exchange", &epoch, None, within)?;
        let epochs = epochs.iter().filter_map(|shared| shared.body.first_chunk());
        let epoch = epochs.map(|bytes| u64::from_le_bytes(*bytes)).max().unwrap_or(0) + 1;
        let cleared = self.clear(&self.side, epoch);
        group.barrier("start the exchange again", within)?;
        cleared
    }

    fn drain(&self, streams: &[&Stream], replays: Replays) -> Result<(), EpError> {
        for stream in streams {
            stream.not_recording("wait for a stream")?;
            self.done.record(stream)?;
            self.await_event(&self.done)?;
        }
        let known = |handle| streams.iter().any(|stream| stream.raw() == handle);
        let lost = self.course.under_way_on().is_some_and(|handle| !known(handle));
        if lost || (replays == Replays::Anywhere && self.course.has_recorded()) {
            return self.await_gpu();
        }
        // Plain layers follow each other, so this is the end of all of them.
        self.await_event(&self.ends[0])
    }

    /// How often the group was reset.
    pub fn epoch(&self, stream: &Stream) -> Result<u64, EpError> {
        let mut bytes = [0; 8];
        own(&self.heap)?.part(ctl::EPOCH..ctl::EPOCH + 8)?.read(&mut bytes, stream)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// This rank's part of a reset, where all ranks are in one process: no kernel of any rank may run, and
    /// none may be launched before all ranks have done this.
    pub fn clear(&self, stream: &Stream, epoch: u64) -> Result<(), EpError> {
        let own = own(&self.heap)?;
        let sig = self.layout.signal(0, 0);
        own.part(sig..sig + 16 * mooncrate_heap::RANKS_MAX as u64)?.fill(0, stream)?;
        // Phases begin anew, so a stamp of before could be that of a step to come.
        own.part(self.layout.meta(0)..self.layout.recv(0))?.fill(0, stream)?;
        let mut words = [0; ctl::BYTES as usize];
        words[ctl::CLAIM as usize] = 1;
        words[ctl::EPOCH as usize..][..8].copy_from_slice(&epoch.to_le_bytes());
        words[ctl::BAD as usize..][..8].fill(0xff);
        own.part(0..ctl::BYTES)?.write(&words, stream)?;
        for at in (0..STATUS_BYTES as u64).step_by(8) {
            self.tell(at, 0);
        }
        self.aborted.set(0);
        self.told.set(false);
        self.course.reset();
        Ok(())
    }

    /// Gives the communicator up: the other ranks hear of it at once, if they come to another layer, and do not
    /// wait for their timeout. Whole layers that are queued are done first; the error is that of a failed one, if
    /// [`CudaEp::status`] or [`CudaEp::finish`] has not told of it. A layer that was only begun is given up.
    /// Then all ranks together give their heaps back, so each has to call this, after an error as well.
    /// A communicator that is dropped says the same, and waits for no other rank; CUDA IPC does not allow that while
    /// others still use the heap.
    pub fn close(self, group: &mut Group, within: Duration) -> Result<(), EpError> {
        let left = self.leave();
        let heap = Arc::clone(&self.heap);
        drop(self);
        match Arc::into_inner(heap) {
            Some(heap) => heap.close(group, within)?,
            // Whoever made the heap holds it, and gives it back.
            None => group.barrier("close heaps", within)?,
        }
        left
    }

    /// Tells all ranks that this one does not come any more, unless it has failed: then they know. Gives back how
    /// what was queued has ended, if nobody was told.
    fn leave(&self) -> Result<(), EpError> {
        if self.left.replace(true) {
            return Ok(());
        }
        let known = self.told.get();
        let under_way = self.course.is_under_way();
        if under_way {
            // The rest of the layer never comes: nobody waits for it, neither this rank nor the others, who may be
            // on the same GPU. A kernel that runs may signal over this, so it is said again below.
            self.give_up(LEAVES);
            self.say_left(false)?;
        }
        // Otherwise what was queued is done as if nothing were: every wait on the GPU has a timeout, so this ends.
        while !under_way && !self.ends[0].is_passed()? {
            self.notice();
            sleep(FINISH_PAUSE);
        }
        // Graphs of whole layers may be on other streams.
        self.await_gpu()?;
        let ended = self.status();
        self.give_up(LEAVES);
        self.say_left(true)?;
        self.side.synchronize()?;
        match ended {
            Err(EpError::Fault(fault)) if known || fault.is_leave_of(self.rank()) => Ok(()),
            ended => ended,
        }
    }

    /// State of this rank is changed by kernels only: words of 8 bytes arrive as one, and in the order of a stream.
    fn say_left(&self, ended: bool) -> Result<(), EpError> {
        // SAFETY: as in `dispatch`.
        unsafe { self.kernels.leave(&self.side, self.step, self.tag(Op::Dispatch), ended) }?;
        Ok(())
    }
}

impl Drop for CudaEp {
    /// The others would wait for this rank until their timeout. Nobody is left to hear of an error.
    fn drop(&mut self) {
        let _ = self.leave();
    }
}
