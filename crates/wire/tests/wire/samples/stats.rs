//! What a leader tells about its cluster.

use super::Samples;
use mooncrate_core::catalog::Counters;
use mooncrate_core::ids::*;
use mooncrate_wire::message::*;

impl Samples {
    pub(super) fn stat(&mut self, epoch: LeaderEpoch) -> ClusterStat {
        ClusterStat {
            epoch,
            leader: self.text(),
            rebuilding: self.yes(),
            nodes: self.u32(),
            objects: self.u64(),
            open_puts: self.u64(),
            capacity_bytes: self.u64(),
            used_bytes: self.u64(),
            quarantined_bytes: self.u64(),
            largest_free_run: self.u64(),
            counters: self.counters(),
            index_bytes: self.u64(),
            segments: self.list(|s| SegmentRow {
                offer: s.offer(),
                open: s.yes(),
                used_bytes: s.u64(),
                quarantined_bytes: s.u64(),
                largest_free_run: s.u64(),
                objects: s.u64(),
            }),
            tenants: self.list(|s| TenantRow {
                tenant: TenantId(s.u32()),
                used_bytes: s.u64(),
                hard_bytes: s.u64(),
                quota: s.optional(Self::u64),
            }),
            disk_root: self.text(),
        }
    }

    fn counters(&mut self) -> Counters {
        Counters {
            puts: self.u64(),
            hits: self.u64(),
            misses: self.u64(),
            removed: self.u64(),
            evicted: self.u64(),
            evicted_bytes: self.u64(),
            evict_skipped: self.u64(),
            busy: self.u64(),
            expired: self.u64(),
            replaced: self.u64(),
            replanned: self.u64(),
            puts_expired: self.u64(),
            stale_tokens: self.u64(),
            nodes_lost: self.u64(),
            announced_dropped: self.u64(),
            copied: self.u64(),
            copied_bytes: self.u64(),
            copies_failed: self.u64(),
            hits_disk: self.u64(),
            offloaded: self.u64(),
            offloaded_bytes: self.u64(),
            offloads_refused: self.u64(),
            evicted_unsaved: self.u64(),
            promoted: self.u64(),
            promoted_bytes: self.u64(),
            disk_evicted: self.u64(),
            disk_lost: self.u64(),
            disks_returned: self.u64(),
            disk_dropped: self.u64(),
            ledger_struck: self.u64(),
            lapsed_struck: self.u64(),
            late_dropped: self.u64(),
            bad_replicas: self.u64(),
            hits_vram: self.u64(),
            demoted: self.u64(),
            demoted_bytes: self.u64(),
        }
    }
}
