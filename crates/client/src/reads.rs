//! Reads that asked nobody are told to the master: they count for the life of what was read.
//!
//! ```text
//!   read ─► cache: a mark per object, reads of the same object merged
//!                 │ the first mark after a pause, or any later call: is a report due?
//!                 ▼
//!   report ─► master: eviction order, promotion, copies of what is hot
//!          ◄─ earlier reports: which remembered places are outdated, and how long to pause
//! ```
//!
//! What must stay true: a read whose object is marked already pays an increment; a report is sent by
//! whoever calls next and waits for no answer; at most [`crate::cache::MARKS_MAX`] objects are told per
//! report. A client that makes no more calls tells no more: what it read in the last [`REPORT_PAUSE_MIN`],
//! or in the last part of that if the values were large, it keeps to itself until its next call.

use crate::cache::Noted;
use crate::client::Client;
use crate::packed::First;
use mooncrate_core::catalog::REPORT_PAUSE_MIN;
use mooncrate_core::key::KeyHash;
use mooncrate_core::plan::{Located, ReadMark};
use mooncrate_core::time::Now;
use mooncrate_lock::Mutex;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::CallError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A read of so many bytes takes longer than a report, so it need not wait for a whole pause …
const LARGE_BYTES: u64 = 256 << 10;
/// … but for this part of it.
const LARGE_SHARE: u32 = 50;
/// How long a report may take when it has to find the master first.
const REPORT_TIME: Duration = Duration::from_millis(50);
/// Pauses after reports that failed.
const FAILED_MIN: Duration = Duration::from_millis(100);
const FAILED_MAX: Duration = Duration::from_secs(2);

/// When reports are due, and what they hold.
///
/// The numbers are read by every call and written by the one that reports. They order nothing, so all
/// accesses are relaxed: the marks are under locks of their own.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// There are marks that were not told.
    waiting: AtomicBool,
    /// Not before then, in nanoseconds of `boottime` …
    next: AtomicU64,
    /// … or then, after reads of [`LARGE_BYTES`].
    next_large: AtomicU64,
    report: Mutex<Report>,
}

#[derive(Debug)]
struct Report {
    /// Marks on their way out, and those of a report that failed.
    marks: Vec<ReadMark>,
    pause: Duration,
    /// The pause after the last report, if it failed.
    failed: Duration,
}

impl Default for Report {
    fn default() -> Self {
        Self { marks: Vec::new(), pause: REPORT_PAUSE_MIN, failed: Duration::ZERO }
    }
}

/// What reads of remembered places add to the next report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Remembered {
    /// A mark was made where there was none for a while: the clock is worth a look.
    first: bool,
    /// Bytes of the objects that were marked.
    bytes: u64,
}

impl Remembered {
    fn add(&mut self, noted: Noted, len: u64) {
        if let Noted::New { first } = noted {
            self.first |= first;
            self.bytes += len;
        }
    }
}

impl Client {
    /// The remembered place of a key, where this client may use it: one that holds what it reads only while the
    /// hold of an earlier read lasts ([`Client::hold_end`]). Whoever reads it says so by
    /// [`Client::tell_reads`].
    pub(crate) fn remembered(
        &self,
        hash: KeyHash,
        key: &[u8],
        reads: &mut Remembered,
    ) -> Option<Located> {
        let held = self.config.holds.then(boottime);
        let (located, noted) = self.cache.get(hash, key, held)?;
        self.counters.at(hash.0).cached.one();
        reads.add(noted, located.len());
        Some(located)
    }

    /// The same for the first copy of a value in one stripe. `now`: the clock.
    pub(crate) fn remembered_first(
        &self,
        hash: KeyHash,
        key: &[u8],
        now: Now,
        reads: &mut Remembered,
    ) -> Option<First> {
        let (first, noted) = self.cache.first(hash, key, self.config.holds.then_some(now))?;
        self.counters.at(hash.0).cached.one();
        reads.add(noted, first.len);
        Some(first)
    }

    /// Tells the master of reads, if it is time.
    pub(crate) fn tell_reads(&self, reads: Remembered) {
        let large = reads.bytes >= LARGE_BYTES;
        self.note_reads(reads);
        if reads.first || large {
            self.report_if_due(boottime(), large);
        }
    }

    /// Has the next call tell of reads.
    pub(crate) fn note_reads(&self, reads: Remembered) {
        if reads.first {
            self.reports.waiting.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn report_if_due(&self, now: Now, large: bool) {
        let Reports { waiting, next, next_large, .. } = &self.reports;
        let next = if large { next_large } else { next };
        if waiting.load(Ordering::Relaxed) && now.0 >= next.load(Ordering::Relaxed) {
            self.report(now);
        }
    }

    /// Whether a report is due, for who must not wait for one.
    pub(crate) fn owes_report(&self, now: Now) -> bool {
        let Reports { waiting, next, .. } = &self.reports;
        waiting.load(Ordering::Relaxed) && now.0 >= next.load(Ordering::Relaxed)
    }

    fn report(&self, now: Now) {
        // Another thread reports: it takes our marks along, or leaves them to the next report.
        let Some(mut report) = self.reports.report.try_lock() else { return };
        let Report { marks, pause, failed } = &mut *report;
        // Before the marks are taken: a read that marks after that says so again.
        self.reports.waiting.store(false, Ordering::Relaxed);
        self.cache.take_marks(marks);
        if marks.is_empty() {
            return;
        }
        match self.master.tell_reads(marks, now.deadline_in(REPORT_TIME)) {
            Ok(heard) => {
                marks.clear();
                *failed = Duration::ZERO;
                if heard.pause_ms > 0 {
                    *pause = Duration::from_millis(heard.pause_ms.into());
                }
                for mark in &heard.outdated {
                    self.cache.forget_marked(mark);
                }
                self.report_after(now, *pause, *pause / LARGE_SHARE);
            }
            Err(error) => {
                // They are told with the next report.
                self.reports.waiting.store(true, Ordering::Relaxed);
                let after = if matches!(error, CallError::Busy { .. }) {
                    // Earlier reports are not answered yet: a master that is slow, not one that is gone.
                    *pause
                } else {
                    *failed = (*failed * 2).clamp(FAILED_MIN, FAILED_MAX);
                    *failed
                };
                self.report_after(now, after, after);
            }
        }
    }

    fn report_after(&self, now: Now, pause: Duration, large: Duration) {
        self.reports.next.store(now.plus(pause).0, Ordering::Relaxed);
        self.reports.next_large.store(now.plus(large).0, Ordering::Relaxed);
    }
}
