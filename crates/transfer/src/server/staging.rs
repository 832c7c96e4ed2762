//! What was staged from disks for one connection. It is the connection's until it releases it, hangs up,
//! or the lease is over: then the stager has taken it back by itself, and only our books need mending.

use super::Inner;
use super::connection::{Life, life};
use mooncrate_core::plan::Locator;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_mem::clock::boottime;
use mooncrate_wire::DataError;
use mooncrate_wire::message::{StageItem, Staged};
use std::collections::BTreeMap;
use std::time::Duration;

/// Hint when a connection has enough staged.
const BUSY_MS: u32 = 2;

/// What is booked to a connection.
#[derive(Debug, Default)]
pub(super) struct Booked {
    lives: BTreeMap<Life, Booking>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Booking {
    locator: Locator,
    until: Now,
}

impl Booked {
    /// Stages what the peer has leave for, as far as its share of the staging memory goes.
    pub(super) fn stage(
        &mut self,
        server: &Inner,
        items: &[StageItem],
        leave: impl Fn(&StageItem) -> Result<(), DataError>,
        deadline: Deadline,
    ) -> Vec<Result<Staged, DataError>> {
        self.forget_over(server, boottime());
        let refused = &server.tally.refused;
        let Some(stager) = server.segments.stager() else {
            return items.iter().map(|_| Err(refused.wire(DataError::UnknownSegment))).collect();
        };
        let mut bytes = self.bytes;
        let mut asked = Vec::with_capacity(items.len());
        let mut results: Vec<Result<Staged, DataError>> = items
            .iter()
            .map(|item| {
                leave(item)?;
                let after = bytes.saturating_add(item.len);
                if bytes > 0 && after > server.config.staged_bytes_max {
                    return Err(DataError::Busy { after_ms: BUSY_MS });
                }
                bytes = after;
                asked.push(*item);
                // Replaced below: one answer for each that was asked for.
                Err(DataError::Unsupported)
            })
            .collect();
        let mut answers = stager.stage(&asked, deadline).into_iter();
        for result in &mut results {
            if matches!(result, Err(DataError::Unsupported)) {
                *result = answers.next().unwrap_or(Err(DataError::Unsupported));
            }
            match result {
                Ok(one) => self.book(server, one),
                Err(error) => *error = refused.wire(*error),
            }
        }
        results
    }

    fn book(&mut self, server: &Inner, staged: &Staged) {
        let until = boottime().plus(Duration::from_millis(staged.lease_ms.into()));
        let booking = Booking { locator: staged.locator, until };
        self.bytes += booking.locator.extent.len();
        server.tally.staged.one();
        server.tally.staged_bytes.raise(booking.locator.extent.len());
        self.lives.insert(life(&staged.locator), booking);
    }

    /// Gives back what is booked here; the rest is somebody else's.
    pub(super) fn release(&mut self, server: &Inner, locators: &[Locator]) {
        let mine: Vec<Locator> =
            locators.iter().filter_map(|locator| self.strike(server, &life(locator))).collect();
        if let (false, Some(stager)) = (mine.is_empty(), server.segments.stager()) {
            stager.release(&mine);
        }
    }

    /// The connection is over.
    pub(super) fn release_all(&mut self, server: &Inner) {
        let all: Vec<Locator> = self.lives.values().map(|booking| booking.locator).collect();
        self.release(server, &all);
    }

    fn forget_over(&mut self, server: &Inner, now: Now) {
        let over: Vec<Life> =
            self.lives.iter().filter(|(_, one)| one.until <= now).map(|(life, _)| *life).collect();
        for life in over {
            self.strike(server, &life);
        }
    }

    fn strike(&mut self, server: &Inner, life: &Life) -> Option<Locator> {
        let booking = self.lives.remove(life)?;
        let bytes = booking.locator.extent.len();
        self.bytes -= bytes;
        server.tally.staged_bytes.lower(bytes);
        Some(booking.locator)
    }
}
