//! A takeover as the node sees it: which pages, how many records and which heartbeats come before each of its
//! segments is served. The leader is the real catalog behind the seam of masters, in this process and without
//! threads, so every count is exact.

use super::Serve;
use super::leader::{Event, Leader};
use crate::config::NodeConfig;
use crate::disk::{SsdConfig, TierConfig};
use crate::duty::{Node, NodeError};
use crate::guard::{GuardStart, Watcher, report_death};
use mooncrate_core::catalog::Start;
use mooncrate_core::error::MountError;
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{
    Extent, Generation, Incarnation, Label, LeaderEpoch, Locator, Medium, Name, Now, ObjectId,
};
use mooncrate_core::{PutToken, Seal, SegmentId, Slot, TenantId};
use mooncrate_lock::Mutex;
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{Adopt, BeginWrite, LabelHash, Life, Segment};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Records on the disk: five pages of them.
const RECORDS: u32 = 2100;
const LEN: u64 = 100;
/// Longer than any test takes, however busy the machine is.
const NEVER: Duration = Duration::from_hours(1);

fn config(directory: &Path, heartbeat: Duration) -> NodeConfig {
    NodeConfig {
        segment_bytes: 1 << 20,
        shared: false,
        tier: TierConfig {
            disks: vec![SsdConfig::new(directory, 64 << 20)],
            ..TierConfig::default()
        },
        heartbeat,
        ..NodeConfig::default()
    }
}

/// A node with memory and a disk, and its first leader.
fn unmounted(directory: &Path, heartbeat: Duration) -> (Arc<Node>, Arc<Leader>) {
    let leader = Arc::new(Leader::new(LeaderEpoch(1), Start::New));
    let config = config(directory, heartbeat);
    let node = Node::new(config, Arc::clone(&leader) as _, Vec::new()).unwrap();
    leader.watch(node.segments());
    (node, leader)
}

/// The same, mounted.
fn node(directory: &Path, heartbeat: Duration) -> (Arc<Node>, Arc<Leader>) {
    let (node, leader) = unmounted(directory, heartbeat);
    node.mount(Serve::Memory).unwrap();
    let of_disk = |event: &Event| matches!(event, Event::Page { segment, .. } if segment.medium() == Medium::Ssd);
    assert!(!leader.events().iter().any(of_disk), "before threads are there that obey for it");
    node.mount(Serve::Each).unwrap();
    (node, leader)
}

fn disk(node: &Node) -> Arc<Segment> {
    node.segments().get(node.disks()[0].id).unwrap()
}

fn memory(node: &Node) -> Arc<Segment> {
    node.segments().get(node.segment()).unwrap()
}

/// Records come onto the disk, as by copies that the first leader ordered.
fn fill(disk: &Arc<Segment>) {
    for n in 0..RECORDS {
        let key = format!("record {n}");
        let label = Label::plain(Name::new(TenantId::DEFAULT, key.as_bytes())).unwrap().encode();
        let bytes = extent_bytes(LEN);
        let record = Adopt {
            slot: Slot(n),
            extent: Extent::new(u64::from(n) * bytes, bytes).unwrap(),
            len: LEN,
            label: &label,
            object: ObjectId { epoch: LeaderEpoch(1), sequence: u64::from(n) + 1 },
            seal: Seal(7),
        };
        disk.adopt(boottime(), &record).unwrap();
    }
}

/// Values come into memory, as by puts that the first leader planned.
fn put(memory: &Arc<Segment>, values: u32) {
    for n in 0..values {
        let key = format!("value {n}");
        let label = Label::plain(Name::new(TenantId::DEFAULT, key.as_bytes())).unwrap().encode();
        let bytes = extent_bytes(LEN);
        let locator = Locator {
            segment: memory.spec().segment,
            incarnation: memory.spec().incarnation,
            slot: Slot(n),
            generation: Generation(0),
            extent: Extent::new(u64::from(n) * bytes, bytes).unwrap(),
            stripe: 0,
            grant: None,
        };
        let wanted = BeginWrite {
            locator,
            token: PutToken(7),
            object: ObjectId { epoch: LeaderEpoch(1), sequence: 10_000 + u64::from(n) },
            epoch: memory.epoch(),
            len: LEN,
            label: &label,
            hash: LabelHash::of(&label),
        };
        let mut guard = memory.begin(boottime(), &wanted).unwrap();
        guard.write(0, &[7; LEN as usize]).unwrap();
        let seal = guard.seal();
        guard.publish(boottime(), PutToken(7), seal).unwrap();
    }
}

/// Another leader, which knows what the last one knew; the leave that the last one gave is over.
fn take_over(node: &Node, leader: &Leader, epoch: u64) {
    leader.succeed(LeaderEpoch(epoch), node.id());
    for segment in node.segments().all().iter().chain(&node.segments().private()) {
        segment.set_serve_until(Now(0));
    }
}

/// Was: all records of all disks, because leave to serve came when the last page of the last segment was in.
#[test]
fn memory_is_served_before_the_first_record_of_a_disk_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    fill(&disk(&node));
    take_over(&node, &leader, 2);
    node.mount(Serve::Each).unwrap();
    let told = leader.events();
    let unserved = told.iter().map(|event| match event {
        Event::Page { segment, records, served, .. } if segment.medium() == Medium::Ssd => {
            if served.contains(&node.segment()) { 0 } else { *records }
        }
        _ => 0,
    });
    assert_eq!(unserved.sum::<u32>(), 0, "records told before memory was served: {told:?}");
    assert_eq!(leader.objects(), RECORDS as usize, "and all of them were told");
    // One heartbeat per segment, and no page of memory behind one of a disk.
    let beats = told.iter().filter(|event| matches!(event, Event::Beat)).count();
    assert_eq!(beats, node.segments().all().len());
    let served = |segment: &Segment| segment.serving(boottime()).is_ok();
    assert!(served(&memory(&node)) && served(&disk(&node)));
}

/// A disk tells for minutes, and the leave of memory is renewed meanwhile, page by page here. The disk itself is
/// not served before its last page: the leader may give keys to others that it has not heard of.
#[test]
fn a_disk_is_not_served_while_it_tells_and_memory_is() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), Duration::ZERO);
    fill(&disk(&node));
    take_over(&node, &leader, 2);
    node.mount(Serve::Each).unwrap();
    let (of_disk, told) = (disk(&node).spec().segment, leader.events());
    let pages = told.iter().enumerate().filter_map(|(at, event)| match event {
        Event::Page { segment, served, .. } if *segment == of_disk => Some((at, served)),
        _ => None,
    });
    let pages: Vec<_> = pages.collect();
    assert_eq!(pages.len(), 5, "{told:?}");
    for (at, served) in pages {
        assert_eq!(*served, [node.segment()], "at event {at}: {told:?}");
        assert_eq!(told[at - 1], Event::Beat, "before event {at}: {told:?}");
    }
    assert!(disk(&node).serving(boottime()).is_ok());
    let staging = node.segments().private();
    assert!(staging.iter().all(|staging| staging.serving(boottime()).is_ok()));
}

/// The link breaks in the middle of the disk: memory stays served, and the node tells the disk again.
#[test]
fn what_was_told_is_served_although_the_rest_was_not() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    fill(&disk(&node));
    take_over(&node, &leader, 2);
    leader.break_at_page(4);
    assert!(matches!(node.mount(Serve::Each), Err(NodeError::Call(_))));
    assert!(memory(&node).serving(boottime()).is_ok());
    assert!(disk(&node).serving(boottime()).is_err());
    assert!(node.segments().private().iter().all(|one| one.serving(boottime()).is_err()));
    assert_ne!(node.standing().lock().mounted, Some(LeaderEpoch(2)), "it is not done");
    node.mount(Serve::Each).unwrap();
    assert!(disk(&node).serving(boottime()).is_ok());
    assert_eq!(leader.objects(), RECORDS as usize);
}

/// Was: a mount forgot what the same leader had heard, so memory was told again and its leave was not renewed
/// meanwhile, whenever a link broke while a disk was told.
#[test]
fn memory_is_told_once_however_often_the_link_breaks() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    put(&memory(&node), 600);
    fill(&disk(&node));
    take_over(&node, &leader, 2);
    for page in [4, 6] {
        leader.break_at_page(page);
        assert!(matches!(node.mount(Serve::Each), Err(NodeError::Call(_))));
        // Its leave is renewed before anything else is told.
        memory(&node).set_serve_until(Now(0));
    }
    node.mount(Serve::Each).unwrap();
    let told = leader.events();
    let pages = told.iter().filter_map(|event| match event {
        Event::Page { segment, records, served } => Some((*segment, *records, served)),
        Event::Beat => None,
    });
    let (of_memory, of_disk): (Vec<_>, Vec<_>) =
        pages.partition(|(segment, ..)| *segment == node.segment());
    let records = of_memory.iter().map(|(_, records, _)| *records);
    assert_eq!(records.collect::<Vec<_>>(), [512, 88], "{told:?}");
    assert_eq!(of_disk.len(), 2 + 2 + 5, "{told:?}");
    assert!(of_disk.iter().all(|(_, _, served)| **served == [node.segment()]), "{told:?}");
    assert!(memory(&node).serving(boottime()).is_ok() && disk(&node).serving(boottime()).is_ok());
    assert_eq!(leader.objects(), RECORDS as usize + 600);
}

/// Another leader has heard nothing, so all is told to it.
#[test]
fn what_another_leader_heard_is_told_again() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    put(&memory(&node), 600);
    for epoch in [2, 3] {
        take_over(&node, &leader, epoch);
        node.mount(Serve::Each).unwrap();
        assert_eq!(leader.objects(), 600, "leader {epoch}");
        assert!(memory(&node).serving(boottime()).is_ok());
    }
}

/// A node whose name another process has taken hears so while it tells. Was: that it is unknown, so it told
/// everything again.
#[test]
fn a_refused_heartbeat_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), Duration::ZERO);
    fill(&disk(&node));
    take_over(&node, &leader, 2);
    let stale = MountError::StaleIncarnation { last: Incarnation(9), over: false };
    leader.refuse_beats(Some(stale));
    let refused = node.mount(Serve::Each);
    assert!(matches!(refused, Err(NodeError::Mount(error)) if error == stale), "{refused:?}");
}

/// The mount of an earlier start of this node reached the master late, and has ended. Was: the node took the number
/// after its own with each heartbeat, and never reached it.
#[test]
fn a_node_goes_above_a_later_number_whose_mount_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    let earlier_directory = tempfile::tempdir().unwrap();
    let config = config(earlier_directory.path(), NEVER);
    let earlier = Node::new(config, Arc::clone(&leader) as _, Vec::new()).unwrap();
    earlier.begin(Incarnation(1 << 62));
    earlier.mount(Serve::Each).unwrap();
    let own = || memory(&node).spec().incarnation;
    let before = own();
    // It may be alive.
    node.mount_again();
    assert_eq!(own(), Incarnation(before.0 + 1));
    leader.forget(node.id());
    node.mount_again();
    assert_eq!(own(), Incarnation((1 << 62) + 2));
    node.mount_again();
    assert!(leader.knows(node.id()));
}

/// Was: the stamp was written by the thread of heartbeats, and a slow disk ended the serving leases of memory.
#[test]
fn a_mount_does_not_wait_for_a_disk_to_be_written() {
    let directory = tempfile::tempdir().unwrap();
    drop(unmounted(directory.path(), NEVER));
    let (node, _leader) = node(directory.path(), NEVER);
    let stamp = || std::fs::read_to_string(directory.path().join("stamp")).unwrap();
    let no_stamp_before = "before 0000000000000000 0000000000000000";
    assert!(!stamp().contains(no_stamp_before), "{}", stamp());
    node.disks()[0].write_confirmed();
    assert!(stamp().contains(no_stamp_before), "{}", stamp());
}

/// Was: it went ahead by a minute, then two, until the master took it, and the overshoot was left to the next
/// start. After some 25 starts it was refused for ever.
#[test]
fn a_start_of_a_late_clock_takes_the_number_after_the_last_one() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    node.begin(Incarnation(1 << 62));
    node.mount(Serve::Each).unwrap();
    for start in 2..=3 {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path(), NEVER);
        let node = Node::new(config, Arc::clone(&leader) as _, Vec::new()).unwrap();
        node.mount_first().unwrap();
        assert_eq!(memory(&node).spec().incarnation, Incarnation((1 << 62) + start));
    }
}

/// Was: the memory of a node that starts, and the threads that obey its master, waited for all records of its disks.
#[test]
fn a_first_mount_does_not_wait_for_disks() {
    let directory = tempfile::tempdir().unwrap();
    let leader = Arc::new(Leader::new(LeaderEpoch(1), Start::New));
    let config = config(directory.path(), NEVER);
    let node = Node::new(config, Arc::clone(&leader) as _, Vec::new()).unwrap();
    fill(&disk(&node));
    node.mount_first().unwrap();
    assert_eq!(leader.objects(), 0, "none is told");
    assert!(memory(&node).serving(boottime()).is_ok());
    assert!(disk(&node).serving(boottime()).is_err());
    assert_eq!(leader.offers().len(), 2, "and the leader knows that there are some");
    node.heartbeat();
    assert_eq!(leader.objects(), RECORDS as usize);
    assert!(disk(&node).serving(boottime()).is_ok());
}

/// The first mount has told everything, and the heartbeat behind it is lost on the leader: the node lives, and
/// its next heartbeat mounts again.
#[test]
fn a_first_mount_does_not_fail_by_its_last_heartbeat() {
    let directory = tempfile::tempdir().unwrap();
    let leader = Arc::new(Leader::new(LeaderEpoch(1), Start::New));
    let node = Node::new(config(directory.path(), NEVER), Arc::clone(&leader) as _, Vec::new());
    let node = node.unwrap();
    leader.refuse_beats(Some(MountError::UnknownNode));
    node.mount_first().unwrap();
    assert!(memory(&node).serving(boottime()).is_err(), "nobody gave leave");
    leader.refuse_beats(None);
    node.heartbeat();
    assert!(memory(&node).serving(boottime()).is_ok() && disk(&node).serving(boottime()).is_ok());
}

/// A leader that hears one segment may never hear of another, and strike keys of it. The next leader is told for
/// each of them whether any leader can have done so (G6). Was: one answer for the whole node, renewed by each
/// acknowledged heartbeat.
#[test]
fn each_segment_lapses_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    let second = node.mount_segment(1, 1 << 20).unwrap();
    node.mount(Serve::Each).unwrap();
    let lapsed = |segment: SegmentId| {
        let offers = leader.offers();
        offers.iter().find(|offer| offer.segment == segment).unwrap().evidence.lapsed
    };
    assert!(!lapsed(node.segment()) && !lapsed(second));
    // Nobody has given leave for a registration time.
    for (_, at) in node.standing().lock().current.values_mut() {
        *at = Now(0);
    }
    take_over(&node, &leader, 2);
    // The last page of the second one does not get through.
    let first = node.segment().min(second);
    let later = node.segment().max(second);
    leader.break_at_page(1);
    assert!(matches!(node.mount(Serve::Each), Err(NodeError::Call(_))));
    assert!(lapsed(first) && lapsed(later), "as it was when it mounted");
    leader.succeed(LeaderEpoch(3), node.id());
    node.mount(Serve::Each).unwrap();
    assert_eq!((lapsed(first), lapsed(later)), (false, true), "the first one had leave meanwhile");
}

/// A leader that has forgotten a node may not take a segment that is added for all that it has: its heartbeats would
/// give leave to serve what was given up. Was: the rest of the node never came back, and was served (C2).
#[test]
fn a_segment_that_is_added_does_not_stand_for_a_forgotten_node() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    put(&memory(&node), 3);
    leader.forget(node.id());
    let refused = node.mount_segment(1, 1 << 20);
    assert!(matches!(refused, Err(NodeError::Mount(MountError::UnknownNode))), "{refused:?}");
    let before = memory(&node).spec().incarnation;
    // The first one hears that the node is unknown, the second one mounts what has begun anew.
    node.heartbeat();
    node.heartbeat();
    assert!(memory(&node).spec().incarnation > before, "under another number");
    assert!(memory(&node).serving(boottime()).is_ok());
    node.mount_segment(1, 1 << 20).unwrap();
}

/// A master with shorter leases than the default may have given keys of a node up before the node's first lease. Before:
/// the next leader trusted the memory of such a node (C4).
#[test]
fn memory_without_a_first_lease_proves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = unmounted(directory.path(), NEVER);
    leader.withhold_leave(true);
    node.mount(Serve::Memory).unwrap();
    put(&memory(&node), 3);
    take_over(&node, &leader, 2);
    node.mount(Serve::Each).unwrap();
    assert!(
        leader.offers().iter().any(|told| told.segment == node.segment() && told.evidence.lapsed)
    );
}

/// The serving lease ends during a mount: another leader may have given keys up and died in between. Before: the next
/// leader was offered a lease that had not ended (C1).
#[test]
fn a_lease_that_ends_during_a_mount_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    let late = Arc::clone(&node);
    take_over(&node, &leader, 2);
    leader.meanwhile(move || {
        let mut standing = late.standing().lock();
        standing.current.clear();
        standing.began = Now(0);
    });
    node.mount(Serve::Each).unwrap();
    let offers = leader.offers();
    assert!(offers.iter().any(|told| told.segment == node.segment() && told.evidence.lapsed));
}

/// A segment is added while the node mounts again, and its leader does not hear of it. Was: it never took part, because
/// the mount that had begun before it was taken for all.
#[test]
fn a_segment_that_is_added_while_a_node_mounts_takes_part() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    let (adds, breaks) = (Arc::clone(&node), Arc::clone(&leader));
    take_over(&node, &leader, 2);
    leader.meanwhile(move || {
        breaks.break_at_page(0);
        adds.mount_segment(1, 1 << 20).unwrap_err();
    });
    node.mount(Serve::Each).unwrap();
    let added = node.segments().get(SegmentId::of(node.id(), 1)).unwrap();
    // The first heartbeat mounts again, the reply to the second one grants the lease.
    node.heartbeat();
    node.heartbeat();
    assert!(added.serving(boottime()).is_ok());
}

/// A node that came late has told all, and has not yet dropped what was struck, when its leader dies: the next
/// one must not take it for current (G6). Was: each acknowledged heartbeat counted.
#[test]
fn memory_is_not_current_before_it_may_be_served() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), NEVER);
    let lapsed = || {
        let offers = leader.offers();
        offers.iter().find(|offer| offer.segment == node.segment()).unwrap().evidence.lapsed
    };
    node.standing().lock().current.clear();
    node.standing().lock().began = Now(0);
    leader.withhold_leave(true);
    for epoch in [2, 3] {
        take_over(&node, &leader, epoch);
        node.mount(Serve::Each).unwrap();
        assert!(lapsed(), "leader {epoch}");
        assert!(memory(&node).serving(boottime()).is_err());
    }
    leader.withhold_leave(false);
    node.mount(Serve::Each).unwrap();
    take_over(&node, &leader, 4);
    node.mount(Serve::Each).unwrap();
    assert!(!lapsed());
}

/// Another leader has come while the disk is told: the rest of the pages would be in vain.
#[test]
fn a_node_does_not_tell_a_leader_that_was_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (node, leader) = node(directory.path(), Duration::ZERO);
    fill(&disk(&node));
    take_over(&node, &leader, 2);
    leader.succeed_at_page(3, LeaderEpoch(3), node.id());
    assert!(node.mount(Serve::Each).is_err());
    let pages = leader.events().iter().filter(|one| matches!(one, Event::Page { .. })).count();
    assert!(pages <= 3, "{pages} pages");
    node.mount(Serve::Each).unwrap();
    assert_eq!(leader.objects(), RECORDS as usize);
}

/// While it is proved that no master leads, a lease that has not ended is extended, for half a registration in all. One
/// that has ended stays so: the last master may have given keys up since.
#[test]
fn a_lease_is_extended_while_nobody_listens() {
    let directory = tempfile::tempdir().unwrap();
    let (node, _leader) = node(directory.path(), NEVER);
    let granted = node.standing().lock().leave;
    let at = |ms| granted.plus(Duration::from_millis(ms));
    let until = || memory(&node).serve_until();
    let lapsed = |now| node.standing().lock().has_lapsed(memory(&node).spec(), now);
    assert_eq!(until(), at(2_500));
    for (asked, ends) in [(2_000, 4_500), (4_400, 6_900), (6_800, 9_300), (9_200, 10_000)] {
        node.extend_leases(at(asked), at(asked + 50));
        assert_eq!(until(), at(ends), "asked at {asked}");
        assert!(!lapsed(at(asked + 2_499)) && lapsed(at(asked + 2_500)));
    }
    node.extend_leases(at(9_900), at(9_950));
    assert_eq!(until(), at(10_000));
    memory(&node).set_serve_until(at(1_000));
    node.extend_leases(at(1_000), at(1_050));
    assert_eq!(until(), at(1_000), "it had ended");
}

/// The process stood still between the question whether anybody listens and its answer, and its lease ended then:
/// the master may have given keys up and died before it was asked for. Was: extended, because the lease had not ended
/// when the question began.
#[test]
fn a_lease_that_ends_before_the_refusal_is_not_extended() {
    let directory = tempfile::tempdir().unwrap();
    let (node, _leader) = node(directory.path(), NEVER);
    let granted = node.standing().lock().leave;
    let at = |ms| granted.plus(Duration::from_millis(ms));
    node.extend_leases(at(2_400), at(2_600));
    assert_eq!(memory(&node).serve_until(), at(2_500));
}

/// Was: the segment was gone at the node, a second unmount said Ok, and the master listed it until the node ended.
#[test]
fn an_unmount_that_was_not_heard_is_told_again() {
    let folder = tempfile::tempdir().unwrap();
    let (node, leader) = node(folder.path(), NEVER);
    let spec = *memory(&node).spec();
    for _ in 0..2 {
        assert!(matches!(node.unmount_segment(0), Err(NodeError::Call(_))));
    }
    assert!(node.segments().get(spec.segment).is_none());
    leader.hear_unmounts();
    // As after each heartbeat that is answered.
    node.tell_unmounted().unwrap();
    assert_eq!(leader.unmounts(), [(spec.segment, spec.incarnation)]);
    node.tell_unmounted().unwrap();
    node.unmount_segment(0).unwrap();
    assert_eq!(leader.unmounts().len(), 1, "once is enough");
}

/// Was: a heartbeat that came behind the farewell was answered `UnknownNode`, the node mounted again what it had left,
/// nothing, and the master listed it for 20 s.
#[test]
fn a_node_that_has_left_does_not_mount_again() {
    let folder = tempfile::tempdir().unwrap();
    let (node, leader) = node(folder.path(), NEVER);
    leader.hear_unmounts();
    let leaves = Arc::clone(&node);
    leader.meanwhile(move || leaves.stop());
    node.stay_known();
    assert!(!leader.knows(node.id()));
}

/// The same for a first mount that is on its way when the node stops.
#[test]
fn a_farewell_comes_after_a_mount_on_its_way() {
    let folder = tempfile::tempdir().unwrap();
    let (node, leader) = unmounted(folder.path(), NEVER);
    leader.hear_unmounts();
    let (leaves, (give, take)) = (Arc::clone(&node), std::sync::mpsc::channel());
    leader.meanwhile(move || {
        let leaving = mooncrate_rt::spawn("leaves", move || leaves.stop()).unwrap();
        give.send(leaving).unwrap();
        // Long enough for a farewell that does not wait.
        mooncrate_rt::sleep(Duration::from_millis(100));
    });
    // What is told after it is told to nobody.
    let _left = node.mount(Serve::Memory);
    take.recv().unwrap().join().unwrap();
    assert!(!leader.knows(node.id()));
}

/// A guard that a test has.
#[derive(Debug, Default)]
struct Kept(Mutex<Option<Life>>);

impl Watcher for Kept {
    fn watch(&self, life: Life) -> std::io::Result<()> {
        *self.0.lock() = Some(life);
        Ok(())
    }

    fn dismiss(&self) {
        *self.0.lock() = None;
    }
}

#[test]
fn a_guard_says_what_a_dead_node_had_and_a_farewell_dismisses_it() {
    let folder = tempfile::tempdir().unwrap();
    let leader = Arc::new(Leader::new(LeaderEpoch(1), Start::New));
    leader.hear_unmounts();
    let kept = Arc::new(Kept::default());
    let guard = Some(GuardStart::Given(Arc::clone(&kept) as _));
    let config = NodeConfig { guard, ..config(folder.path(), NEVER) };
    let node = Node::new(config, Arc::clone(&leader) as _, Vec::new()).unwrap();
    node.mount(Serve::Each).unwrap();
    let life = node.segments().life().unwrap();
    report_death(kept.0.lock().as_ref().unwrap(), &*leader).unwrap();
    assert!(life.is_over());
    assert_eq!(leader.unmounts().len(), 2, "memory and a disk");
    assert!(!leader.knows(node.id()));
    node.stop();
    assert!(kept.0.lock().is_none(), "the master has heard the farewell");
}
