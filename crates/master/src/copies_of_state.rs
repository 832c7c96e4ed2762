//! The state of a master that lives beside the disks of its node: a copy on each of them.
//!
//! A list that lies on the disks it speaks of is worth less than one elsewhere: it is pulled and put back with
//! them. A start without disk A may acknowledge removals that only its own disks know of; later A comes back
//! with a list on it that never heard of them. So the list counts only if it is complete: every disk that
//! it names is here, and shows the stamp it names. Every start draws new stamps, so a list that missed a start
//! of any of its disks is not complete. What must stay true: whoever reads an older list either misses a
//! disk of it or finds another stamp, or also reads the newer list.

use crate::config::StateDisk;
use crate::kept::Kept;
use crate::state_file::StateFile;
use mooncrate_core::catalog::Trusted;
use mooncrate_core::{Medium, SegmentId};
use std::collections::BTreeSet;
use std::io;

/// The copies.
#[derive(Debug)]
pub(crate) struct StateCopies {
    files: Vec<(SegmentId, StateFile)>,
    /// Disks on the list that was last written. A later list must reach one of them, or who finds the older
    /// list complete would not see the newer one.
    listed: BTreeSet<SegmentId>,
    /// Of the last write: all copies of one write have the same.
    serial: u64,
}

impl StateCopies {
    /// Reads the copies and takes the latest one; its list only if it is complete.
    pub(crate) fn open(disks: &[StateDisk]) -> io::Result<(Self, Option<Kept>)> {
        let mut files = Vec::new();
        let mut latest: Option<Kept> = None;
        for disk in disks {
            let (file, kept) = StateFile::open(&disk.file)?;
            files.push((disk.segment, file));
            let later = |kept: &Kept| {
                let order = |kept: &Kept| (kept.epoch, kept.serial);
                latest.as_ref().is_none_or(|latest| order(latest) < order(kept))
            };
            if kept.as_ref().is_some_and(later) {
                latest = kept;
            }
        }
        if let Some(kept) = &mut latest
            && !complete(&kept.trusted, disks)
        {
            kept.trusted.clear();
        }
        let listed = latest.as_ref().map_or_else(BTreeSet::new, listed_in);
        let serial = latest.as_ref().map_or(0, |kept| kept.serial);
        Ok((Self { files, listed, serial }, latest))
    }

    /// Makes all copies say `kept`; a no-op if they do.
    pub(crate) fn keep(&mut self, kept: &Kept) -> io::Result<()> {
        let now = Kept { serial: self.serial, ..kept.clone() };
        if self.files.iter().all(|(_, file)| file.says(&now)) {
            return Ok(());
        }
        self.serial += 1;
        let next = Kept { serial: self.serial, ..now };
        let mut failed = None;
        let (mut written, mut reached) = (0, self.listed.is_empty());
        for (segment, file) in &mut self.files {
            match file.keep(next.clone()) {
                Ok(()) => {
                    written += 1;
                    reached |= self.listed.contains(segment);
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if !reached || written == 0 => return Err(error),
            Some(error) => tracing::warn!(%error, "a copy of the master's state is out of date"),
            None => {}
        }
        self.listed = listed_in(&next);
        Ok(())
    }
}

fn listed_in(kept: &Kept) -> BTreeSet<SegmentId> {
    disks_of(&kept.trusted).map(|trusted| trusted.segment).collect()
}

fn disks_of(list: &[Trusted]) -> impl Iterator<Item = &Trusted> {
    list.iter().filter(|trusted| trusted.segment.medium() == Medium::Ssd)
}

/// Whether every disk of the list is here, as the list knows it.
fn complete(list: &[Trusted], disks: &[StateDisk]) -> bool {
    disks_of(list).all(|trusted| {
        let here = disks.iter().find(|disk| disk.segment == trusted.segment);
        here.is_some_and(|disk| disk.evidence.names(trusted.stamp))
    })
}
