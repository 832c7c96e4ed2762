//! Reading what nobody reads: a record that has gone bad is found before it is needed.

use super::Disk;
use crate::duty::Node;
use mooncrate_mem::clock::boottime;
use std::time::Duration;

/// Between two steps.
const STEP: Duration = Duration::from_secs(1);

impl Node {
    /// A thread that scrubs a disk, a little every second, for as long as the node lives.
    pub(crate) fn scrub_records(&self, disk: &Disk, bytes_per_second: u64) {
        let mut cursor = 0;
        while !self.stopping() {
            self.nap(STEP);
            if self.stopping() {
                return;
            }
            let began = boottime();
            let (bad, next) = disk.backend.scrub(cursor, bytes_per_second);
            disk.tally.scrubbed_bytes.add(bytes_per_second);
            cursor = next;
            for id in bad {
                disk.went_bad(id);
            }
            // A slow disk is left alone as long again as it took.
            self.nap(boottime().since(began));
        }
    }
}
