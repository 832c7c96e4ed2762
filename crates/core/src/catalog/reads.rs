//! reads: what clients read without asking, told in marks.
//!
//! A client that remembers a locator reads without a call, so the catalog sees nothing of it. The client
//! keeps a mark per object that it read, merges the reads of one object into one mark, and tells all marks
//! in one report, some milliseconds later ([`ReadMark`]). Each mark counts as a lookup does: in the eviction
//! order, for soft pins, for promotion from disks, and for the extra copies of what is read often.
//!
//! What must stay true: a mark costs O(1); reports of all clients together stay below [`REPORTS_MAX`] per
//! window, because their pause grows with their number.

use super::Catalog;
use super::objects::{EntryId, Stage};
use super::segments::NOBODY;
use crate::ids::TenantId;
use crate::plan::ReadMark;
use crate::time::Now;
use std::time::Duration;

/// Pause between two reports of a client: what is told late by that much is evicted too early only if its
/// segment was refilled in that time.
pub const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest that clients are asked for.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Reports are counted over windows of this length …
const WINDOW: Duration = Duration::from_millis(100);
/// … and if there were more in one, the pause doubles: 10,000 per second are a few percent of a core.
const REPORTS_MAX: u32 = 1000;

/// How often clients report.
#[derive(Debug)]
pub(super) struct ReportRate {
    window: Now,
    reports: u32,
    pause: Duration,
}

impl Default for ReportRate {
    fn default() -> Self {
        Self { window: Now(0), reports: 0, pause: PAUSE_MIN }
    }
}

impl ReportRate {
    /// A report came; the pause that its client shall keep until the next one.
    fn heard(&mut self, now: Now) -> Duration {
        if now.since(self.window) >= WINDOW {
            if self.reports > REPORTS_MAX {
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            } else if self.reports < REPORTS_MAX / 4 {
                self.pause = (self.pause / 2).max(PAUSE_MIN);
            }
            (self.window, self.reports) = (now, 0);
        }
        self.reports = self.reports.saturating_add(1);
        self.pause
    }
}

impl Catalog {
    /// A client of this tenant begins a report; how long it shall wait before the next one. A report is no request in
    /// the clock of chains: when one comes depends on a pause, not on what is read.
    pub fn report_heard(&mut self, now: Now) -> Duration {
        self.reports.heard(now)
    }

    /// Reads that a client made without asking. Marks of objects that are gone, or that have more or fewer
    /// copies than the client knows, are added to `outdated`: the client should ask for those again. While
    /// nodes are still to announce, nothing is known to be gone, and what a client remembers may be all
    /// there is to read by.
    pub fn note_reads(
        &mut self,
        now: Now,
        tenant: TenantId,
        marks: &[ReadMark],
        outdated: &mut Vec<ReadMark>,
    ) {
        let known = self.rebuild.is_none();
        for mark in marks {
            let Some(id) = self.marked(tenant, mark) else {
                if known {
                    outdated.push(*mark);
                }
                continue;
            };
            self.touch_parts(id);
            self.chain_read_again(id);
            if self.objects.entry(id).extra.is_some() {
                self.was_read(now, id);
            }
            if self.only_on_disk(self.objects.entry(id)) {
                self.read_from_disk(now, id, mark.reads);
            } else {
                self.heat_counts(id, mark.reads);
            }
            let parts = self.objects.entry(id).parts.as_slice().iter();
            let copies = parts.filter(|part| self.part_readable(part)).count();
            if known && copies != usize::from(mark.copies) {
                outdated.push(*mark);
            }
        }
    }

    /// The finished object that a mark names, if it is this tenant's.
    fn marked(&self, tenant: TenantId, mark: &ReadMark) -> Option<EntryId> {
        let book = self.segments.book(self.segments.find(mark.segment)?);
        let slot = book.slots.get(mark.slot.0)?;
        if slot.generation != mark.generation || slot.entry == NOBODY {
            return None;
        }
        let entry = self.objects.get(slot.entry)?;
        (entry.tenant == tenant && entry.stage == Stage::Ready).then_some(slot.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten clients that keep the shortest pause are let be. A thousand are slowed down until they are
    /// within the bound, and sped up again when most of them are gone.
    #[test]
    fn the_pause_follows_the_number_of_clients() {
        let mut rate = ReportRate::default();
        let mut now = Now(1_000_000_000);
        let mut run = |clients: u32, windows: u32| {
            let (mut pause, mut most) = (PAUSE_MIN, 0);
            for _ in 0..windows {
                let reports = clients * (WINDOW.as_millis() / pause.as_millis()).max(1) as u32;
                let step = WINDOW / reports;
                most = reports;
                for _ in 0..reports {
                    now = now.plus(step);
                    pause = rate.heard(now);
                }
            }
            (pause, most)
        };
        assert_eq!(run(10, 20), (PAUSE_MIN, 100));
        let (pause, reports) = run(1000, 40);
        assert!(pause >= WINDOW && reports <= REPORTS_MAX, "{pause:?}, {reports} reports");
        assert_eq!(run(10, 40).0, PAUSE_MIN);
    }
}
