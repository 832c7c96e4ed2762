//! What lies on disks is as closed as what lies in memory.

use crate::cluster::{Guarded, ask, link, within};
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    Attach, DataReply, DataRequest, Read, Role, Stage, StageItem, Staged,
};
use mooncrate_wire::{DataError, Link, LinkKind};
use std::time::Duration;

/// The copy on a disk, once it is there.
fn on_disk(cluster: &Guarded, tenant: &str, key: &[u8]) -> Locator {
    let end = boottime().deadline_in(Duration::from_mins(1));
    loop {
        let copies = cluster.locate_all(tenant, key);
        if let Some(found) = copies.into_iter().find(|at| at.segment.medium() == Medium::Ssd) {
            return found;
        }
        assert!(!end.passed(boottime()), "it was not copied to the disk");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn stage(link: &mut Link, locator: Locator, len: u64) -> Result<Staged, DataError> {
    let items = vec![StageItem { locator, start: 0, len }];
    let request = DataRequest::Stage(Stage { items: items.into() });
    match link.call_data(&request, &[], within(10_000)).unwrap() {
        DataReply::Stage(mut staged) => staged.remove(0),
        other => panic!("{other:?}"),
    }
}

/// A disk is staged for those whom the master gave leave, and what is staged is theirs alone.
#[test]
fn security_a_disk_is_staged_for_its_tenant_alone() {
    let cluster = Guarded::with_disk(None);
    let value = b"a secret of acme";
    cluster.store("acme", false).put(b"k", value).unwrap();
    let good = on_disk(&cluster, "acme", b"k");
    let len = value.len() as u64;
    let mut owner = cluster.data("acme");
    let mut thief = cluster.data("evil");
    assert_eq!(stage(&mut thief, good, len), Err(DataError::Denied));
    assert_eq!(stage(&mut thief, Locator { grant: None, ..good }, len), Err(DataError::Denied));
    assert_eq!(stage(&mut owner, Locator { grant: None, ..good }, len), Err(DataError::Denied));
    let staged = stage(&mut owner, good, len).unwrap();
    let read = |locator| DataRequest::Read(Read { locator, start: 0, len });
    assert_eq!(ask(&mut thief, &read(staged.locator)), Err(DataError::Denied));
    let bare = Locator { grant: None, ..staged.locator };
    assert_eq!(ask(&mut thief, &read(bare)), Err(DataError::Denied));
    assert_eq!(ask(&mut cluster.data("acme"), &read(staged.locator)), Ok(()));

    // Staging memory holds values of all tenants: nobody maps it.
    let mut unix = link(LinkKind::Data, &cluster.unix(), Role::Client, "acme");
    let segment = SegmentId::staging(NodeId::named("n"));
    let attach = DataRequest::Attach(Attach { segment, stores: false });
    assert_eq!(ask(&mut unix, &attach), Err(DataError::Unsupported));
}

/// Restarted, so that nothing is in memory: the library finds its way to the disk, with and without
/// shared memory.
#[test]
fn security_clients_with_a_token_read_disks() {
    for dedicated in [None, Some("acme")] {
        let cluster = Guarded::with_disk(dedicated);
        let value = vec![7; 3_000_000];
        cluster.store("acme", false).put(b"k", &value).unwrap();
        let disk = on_disk(&cluster, "acme", b"k");
        for shared in [false, true] {
            let store = cluster.store("acme", shared);
            assert_eq!(store.get(b"k").unwrap().as_ref(), Some(&value));
        }
        // Straight from the disk: runs of slices, each granted on its own.
        let mut data = cluster.data("acme");
        let items = vec![StageItem { locator: disk, start: 1 << 20, len: 1 << 20 }];
        let request = DataRequest::Stage(Stage { items: items.into() });
        let DataReply::Stage(staged) = data.call_data(&request, &[], within(10_000)).unwrap()
        else {
            panic!("another answer");
        };
        let staged = staged[0].unwrap();
        assert_eq!(staged.len, (1 << 20) + 3 * 8);
        assert!(staged.locator.grant.is_some());
    }
}
