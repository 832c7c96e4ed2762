//! Disks that fail.

use super::rig::{Rig, id};
use mooncrate_core::plan::{Notice, OrderResult};
use mooncrate_mem::clock::boottime;
use mooncrate_ssd::Kind;

fn freed(rig: &Rig) -> usize {
    let mut news = Vec::new();
    rig.segment().tick(boottime(), &mut news);
    let freed = |notice: &&Notice| matches!(notice.result, OrderResult::Freed { .. });
    news.iter().filter(freed).count()
}

/// An eviction whose second step fails does not hold its slots until the next start: the records are removed
/// like all others, and their slots are free then, not before.
#[test]
fn an_eviction_that_fails_is_taken_up_again() {
    for kind in [Kind::Bucket, Kind::PerKey, Kind::Offset] {
        let rig = Rig::new(kind);
        assert!(rig.keep(1, 0));
        *rig.gate.deletions_fail.lock() = 1;
        let ticket = rig.disk.backend.unlink(1).unwrap();
        let retired = rig.disk.retire(ticket.records());
        rig.disk.delete_evicted(ticket, retired);
        assert_eq!(freed(&rig), 0, "it is still on the disk");
        rig.end(&[]);
        assert_eq!(freed(&rig), 1, "{kind:?}");
        assert!(!rig.on_disk().contains(&id(1)), "{kind:?}");
    }
}
