//! One ring of one thread: many spans on their way at once.
//!
//! ```text
//!   Feed ─► slot (holds step and number) ─► entry ─► kernel
//!             ▲            short: the rest again │
//!             └── completion, by its number ◄────┘
//! ```
//!
//! What must stay true (S10): a slot keeps its step, and with it the borrow of the memory, from before its
//! entry is queued until its completion was seen, also when this code panics; completions are matched by
//! number, never by order; after a submission or a wait has failed, nothing is returned before the kernel
//! has let go of all memory, and the ring is not used again.

use super::span::{Cutter, ReadSpans, Rest, Span, WriteSpans};
use super::tamper::Tamper;
use io_uring::{IoUring, opcode, squeue, types};
use mooncrate_rt as rt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Operations that are under way at once.
pub(super) const DEPTH: usize = 32;
/// The kernel gets entries together until they are so many bytes, and no more at once: it pins the memory of all before
/// the device hears of the first. Half of this was no better.
const SEND_BYTES: usize = 1 << 20;
/// How often the kernel may ask to try the same step again.
const TRIES: u32 = 1000;
/// One registered buffer is at most this long; the kernel refuses more.
const FIXED_BYTES: usize = 1 << 30;
/// How long a thread sleeps between two looks at a ring that it cannot wait on any more.
const LAND_SLEEP: Duration = Duration::from_millis(1);
/// After so many looks somebody should know.
const LAND_WARN: u32 = 10_000;

/// A ring. Between two calls nothing is under way in it.
pub(super) struct Ring {
    io: IoUring,
    /// Entries that were queued so far: the number of an operation is unique in its ring.
    queued: u64,
    /// Registered buffers by index: ascending addresses, no overlaps.
    fixed: Vec<Range<usize>>,
    /// How many regions of the disk were looked at for `fixed`.
    pub regions: usize,
    /// For each slot, where the pieces of what it writes lie.
    vectors: [Vec<libc::iovec>; DEPTH],
}

impl Ring {
    /// A ring for this thread.
    pub(super) fn new() -> io::Result<Self> {
        // Without interrupts of the thread where the kernel knows how: it looks at completions when it
        // waits. Task work that runs only in a wait (`DEFER_TASKRUN`) would save more, but a ring that
        // cannot be waited on any more must still get its completions.
        let mut builder = IoUring::builder();
        let io = builder.dontfork().setup_coop_taskrun().setup_single_issuer().build(DEPTH as u32);
        let io = match io {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                IoUring::builder().dontfork().build(DEPTH as u32)?
            }
            io => io?,
        };
        let vectors = [const { Vec::new() }; DEPTH];
        let mut ring = Self { io, queued: 0, fixed: Vec::new(), regions: 0, vectors };
        ring.try_out()?;
        Ok(ring)
    }

    /// Some hosts let a program make rings and refuse their use.
    fn try_out(&mut self) -> io::Result<()> {
        let nothing = opcode::Nop::new().build().user_data(u64::MAX);
        // SAFETY: the entry names no memory.
        let pushed = unsafe { self.io.submission().push(&nothing) };
        pushed.expect("the ring is new and empty");
        retry_on_intr(|| self.io.submit_and_wait(1))?;
        match self.io.completion().next() {
            Some(seen) if seen.user_data() == u64::MAX => Ok(()),
            _ => Err(io::Error::other("the ring does not answer")),
        }
    }

    /// Registers memory in place of what was registered before. An error leaves nothing registered.
    pub(super) fn register(&mut self, regions: &[Range<usize>]) -> io::Result<()> {
        self.regions = regions.len();
        if !std::mem::take(&mut self.fixed).is_empty() {
            self.io.submitter().unregister_buffers()?;
        }
        let mut fixed: Vec<Range<usize>> = Vec::new();
        for region in regions {
            let starts = region.clone().step_by(FIXED_BYTES);
            fixed.extend(starts.map(|at| at..region.end.min(at + FIXED_BYTES)));
        }
        fixed.sort_by_key(|range| range.start);
        let buffers: Vec<libc::iovec> = fixed
            .iter()
            .map(|range| libc::iovec {
                iov_base: std::ptr::without_provenance_mut(range.start),
                iov_len: range.len(),
            })
            .collect();
        // SAFETY: the kernel pins the pages, or answers that there are none. It writes to them only for
        // entries of `Flight::queue`, which name memory that a step borrows.
        unsafe { self.io.submitter().register_buffers(&buffers)? };
        self.fixed = fixed;
        Ok(())
    }

    /// The registered buffer that holds all of some memory.
    fn fixed(&self, start: usize, len: usize) -> Option<u16> {
        let index = self.fixed.partition_point(|range| range.end <= start);
        let range = self.fixed.get(index)?;
        let holds = range.start <= start && start + len <= range.end;
        holds.then(|| u16::try_from(index).ok()).flatten()
    }

    /// Carries out jobs. An error is one of the ring: it must not be used again; jobs that were not
    /// finished have failed with it, and the kernel has let go of all memory.
    pub(super) fn run(
        &mut self,
        jobs: &mut [Job<'_>],
        cutter: &Cutter,
        tamper: &Tamper,
    ) -> io::Result<()> {
        let mut feed = Feed { jobs, at: 0, cutter };
        let slots = [const { None }; DEPTH];
        let mut flight =
            Flight { ring: self, slots, free: (0..DEPTH).collect(), flying: 0, unsent: 0, tamper };
        let flown = flight.fly(&mut feed);
        if let Err(error) = &flown {
            flight.land();
            for slot in flight.slots.iter_mut().filter_map(Option::take) {
                *feed.jobs[slot.job].result = Err(copy(error));
            }
            for job in feed.jobs.iter_mut().skip(feed.at) {
                if job.result.is_ok() {
                    *job.result = Err(copy(error));
                }
            }
        }
        flown
    }
}

/// One operation and its outcome.
pub(super) struct Job<'a> {
    /// What is not under way yet.
    pub work: Work<'a>,
    /// `Ok` until something fails.
    pub result: &'a mut io::Result<()>,
}

/// What is left of an operation.
pub(super) enum Work<'a> {
    Read(ReadSpans<'a>),
    Write(WriteSpans<'a>),
    /// A file or a directory; `None` when it is under way.
    Sync(Option<Syncing<'a>>),
}

/// A sync.
#[derive(Clone, Copy)]
pub(super) struct Syncing<'a> {
    pub fd: BorrowedFd<'a>,
    /// Of the data alone, and what is needed to find them.
    pub data: bool,
}

/// What one entry does.
enum Step<'a> {
    Move(Span<'a>),
    Sync(Syncing<'a>),
}

impl<'a> Work<'a> {
    /// The next step; `None` when all were made.
    fn next(&mut self, cutter: &Cutter) -> Option<Step<'a>> {
        match self {
            Self::Read(spans) => spans.next(cutter).map(Step::Move),
            Self::Write(spans) => spans.next(cutter).map(Step::Move),
            Self::Sync(sync) => sync.take().map(Step::Sync),
        }
    }
}

impl Step<'_> {
    /// Bytes that are still to be moved.
    fn bytes(&self) -> usize {
        match self {
            Self::Move(span) => span.left(),
            Self::Sync(_) => 0,
        }
    }

    /// Notes what the kernel answered. `false`: there is more to do.
    fn ended(&mut self, outcome: usize) -> io::Result<bool> {
        match self {
            Self::Move(span) => span.moved(outcome),
            Self::Sync(_) => Ok(true),
        }
    }
}

/// Gives out the steps of jobs, one job after the other.
struct Feed<'j, 'a> {
    jobs: &'j mut [Job<'a>],
    /// All jobs before this one are cut up.
    at: usize,
    cutter: &'j Cutter,
}

impl<'a> Feed<'_, 'a> {
    fn next(&mut self) -> Option<(usize, Step<'a>)> {
        while let Some(job) = self.jobs.get_mut(self.at) {
            // The rest of an operation that has failed is not worth the trip.
            if job.result.is_ok()
                && let Some(step) = job.work.next(self.cutter)
            {
                return Some((self.at, step));
            }
            self.at += 1;
        }
        None
    }
}

/// A step on its way.
struct Slot<'a> {
    number: u64,
    job: usize,
    tries: u32,
    step: Step<'a>,
}

/// A ring in use. Dropped, it waits for what is under way: the slots borrow the memory.
struct Flight<'r, 'a> {
    ring: &'r mut Ring,
    slots: [Option<Slot<'a>>; DEPTH],
    /// Slots that are empty.
    free: Vec<usize>,
    /// Entries that were queued and not completed.
    flying: usize,
    /// Bytes of those that the kernel did not get yet.
    unsent: usize,
    tamper: &'r Tamper,
}

impl<'a> Flight<'_, 'a> {
    fn fly(&mut self, feed: &mut Feed<'_, 'a>) -> io::Result<()> {
        loop {
            while let Some(&index) = self.free.last()
                && let Some((job, step)) = feed.next()
            {
                self.free.pop();
                self.queue(index, Slot { number: 0, job, tries: 0, step });
                if self.unsent >= SEND_BYTES {
                    self.send(0)?;
                }
            }
            if self.flying == 0 {
                return Ok(());
            }
            self.send(1)?;
            while let Some((number, outcome)) = self.completion() {
                self.complete(feed, number, outcome)?;
            }
        }
    }

    /// Queues what is left of a step.
    fn queue(&mut self, index: usize, mut slot: Slot<'a>) {
        slot.number = self.ring.queued * DEPTH as u64 + index as u64;
        self.ring.queued += 1;
        let number = slot.number;
        self.unsent += slot.step.bytes();
        // The slot has its place before the kernel hears of the memory, and is not touched until then.
        let slot = self.slots[index].insert(slot);
        let entry = entry(self.ring, index, &mut slot.step, self.tamper).user_data(number);
        // SAFETY: the memory of the entry is borrowed, or owned as a room, by the step in the slot, and the
        // list of its pieces is touched only here, for a slot that nothing uses. A slot is emptied only when
        // its completion was seen, or after `land`; `drop` lands before slots and ring go.
        let pushed = unsafe { self.ring.io.submission().push(&entry) };
        pushed.expect("there are as many entries as slots");
        self.flying += 1;
    }

    /// Hands over what is queued, and waits for so many completions.
    fn send(&mut self, wait: usize) -> io::Result<()> {
        self.tamper.before_wait()?;
        self.unsent = 0;
        retry_on_intr(|| self.ring.io.submit_and_wait(wait)).map(drop)
    }

    fn completion(&mut self) -> Option<(u64, i32)> {
        let seen = self.ring.io.completion().next()?;
        Some((seen.user_data(), seen.result()))
    }

    fn complete(&mut self, feed: &mut Feed<'_, 'a>, number: u64, outcome: i32) -> io::Result<()> {
        let index = (number % DEPTH as u64) as usize;
        let slot = self.slots[index].take_if(|slot| slot.number == number);
        let Some(mut slot) = slot else {
            return Err(io::Error::other("the ring completed what was not under way"));
        };
        self.flying -= 1;
        let ended = match usize::try_from(outcome) {
            Ok(outcome) => slot.step.ended(outcome),
            Err(_) => match io::Error::from_raw_os_error(-outcome) {
                error if may_retry(&error) && slot.tries < TRIES => {
                    slot.tries += 1;
                    Ok(false)
                }
                error => Err(error),
            },
        };
        match ended {
            Ok(false) => {
                self.queue(index, slot);
                return Ok(());
            }
            Ok(true) => {}
            // The first error of an operation is the one that is told.
            Err(error) => {
                let result = &mut *feed.jobs[slot.job].result;
                if result.is_ok() {
                    *result = Err(error);
                }
            }
        }
        self.free.push(index);
        Ok(())
    }

    /// Waits until the kernel has let go of all memory, without asking it anything: what it answers is not
    /// to be trusted any more. Completions appear in memory that both share. This takes as long as the disk
    /// takes; to return earlier would let a late read write into memory that has another owner by then.
    fn land(&mut self) {
        let mut queue = self.ring.io.submission();
        queue.sync();
        // These were never handed over, and the ring is not used again.
        let kept = queue.len();
        drop(queue);
        let mut left = self.flying.saturating_sub(kept);
        let mut looks = 0;
        loop {
            while let Some((number, _)) = self.completion() {
                let index = (number % DEPTH as u64) as usize;
                if self.slots[index].as_ref().is_some_and(|slot| slot.number == number) {
                    left = left.saturating_sub(1);
                }
            }
            if left == 0 {
                self.flying = 0;
                return;
            }
            rt::sleep(LAND_SLEEP);
            looks += 1;
            if looks == LAND_WARN {
                tracing::error!(
                    operations = left,
                    "a ring failed, and the disk does not finish them"
                );
            }
        }
    }
}

impl Drop for Flight<'_, '_> {
    fn drop(&mut self) {
        // At rest nothing flies, and after a failure it has landed already: this is for panics.
        self.land();
    }
}

/// The entry that does what is left of a step.
fn entry(ring: &mut Ring, index: usize, step: &mut Step<'_>, tamper: &Tamper) -> squeue::Entry {
    let span = match step {
        Step::Move(span) => span,
        Step::Sync(Syncing { fd, data }) => {
            let what = if *data { types::FsyncFlags::DATASYNC } else { types::FsyncFlags::empty() };
            return opcode::Fsync::new(types::Fd(fd.as_raw_fd())).flags(what).build();
        }
    };
    let (fd, offset) = (types::Fd(span.fd.as_raw_fd()), span.offset);
    match span.rest() {
        Rest::In(into) => {
            let len = tamper.cut(into.len());
            match ring.fixed(into.as_ptr().addr(), len) {
                Some(index) => {
                    let (into, len) = (into.as_mut_ptr(), len as u32);
                    opcode::ReadFixed::new(fd, into, len, index).offset(offset).build()
                }
                None => opcode::Read::new(fd, into.as_mut_ptr(), len as u32).offset(offset).build(),
            }
        }
        Rest::Out(first, rest) => {
            let vector = &mut ring.vectors[index];
            vector.clear();
            vector.push(iovec(first));
            vector.extend(rest.map(iovec));
            let all = vector.iter().map(|piece| piece.iov_len).sum();
            shorten(vector, tamper.cut(all));
            if vector.len() > 1 {
                let (pieces, count) = (vector.as_ptr(), vector.len() as u32);
                return opcode::Writev::new(fd, pieces, count).offset(offset).build();
            }
            let len = vector[0].iov_len;
            match ring.fixed(first.as_ptr().addr(), len) {
                Some(index) => {
                    let (from, len) = (first.as_ptr(), len as u32);
                    opcode::WriteFixed::new(fd, from, len, index).offset(offset).build()
                }
                None => opcode::Write::new(fd, first.as_ptr(), len as u32).offset(offset).build(),
            }
        }
    }
}

/// Where a piece lies. The kernel only reads it.
fn iovec(piece: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() }
}

/// Cuts a list of pieces to so many bytes.
fn shorten(vector: &mut Vec<libc::iovec>, mut bytes: usize) {
    vector.retain_mut(|piece| {
        piece.iov_len = piece.iov_len.min(bytes);
        bytes -= piece.iov_len;
        piece.iov_len > 0
    });
}

/// A signal is no failure.
fn retry_on_intr<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// The kernel was disturbed, and nothing was moved.
fn may_retry(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// The same error once more, for another operation.
pub(super) fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
