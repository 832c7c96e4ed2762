//! Masters that fail their clients. One answers where values are, and then never again: every wait of a call
//! ends at the deadline of the call, and what a client asks next has no time of its own. Another one loses one
//! frame of a batch: the answers of the others count.
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use mooncrate_client::{Client, ClientConfig, Error, Opened, PutSession, Stored, Wishes};
use mooncrate_core::catalog::InUse;
use mooncrate_core::copy::DrainStat;
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::ids::GroupId;
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_core::plan::{Located, Locator, Looked, PutConfig, ReadMark, WritePlan};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, NodeId, ObjectId, PutToken, Seal, SegmentId,
    Slot, Striping,
};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{Segment, SegmentSpec};
use mooncrate_transfer::{EngineConfig, Segments};
use mooncrate_wire::api::Batch;
use mooncrate_wire::message::{
    Announce, ClusterStat, Command, CopyKey, Drain, DropCopy, Evict, Heartbeat, List, Listing,
    Look, MarksHeard, Mount, Mounted, NodeEntry, OrderBatch, Orders, Pulse, PutEndItem, PutItem,
    PutReplan, PutRevokeItem, RemoveMatching, Removed, SetQuota, Unmount,
};
use mooncrate_wire::{CallError, Kind, MasterApi};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const EPOCH: LeaderEpoch = LeaderEpoch(3);
/// Two full frames and one key.
const KEYS: u32 = 2 * BATCH_ITEMS_MAX as u32 + 1;
const CALL_TIME: Duration = Duration::from_millis(400);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(1500);

/// Knows two places of every key, and does not say whose they are.
#[derive(Default)]
struct Master {
    /// Or it answers everything, and knows no key, but for the second frame of one kind.
    lossy: Option<Lossy>,
}

/// A master of one segment, which lies in the process of its client.
struct Lossy {
    segment: Arc<Segment>,
    slots: AtomicU32,
    /// The groups of values that room was reserved for, frame by frame.
    groups: Mutex<Vec<Vec<GroupId>>>,
    /// Of which kind a frame is lost, and how many came.
    loses: Mutex<(Kind, usize)>,
}

impl Master {
    /// A frame of a batch has come: what is answered to each of its items, unless it is lost.
    fn answer<I, T, E>(
        &self,
        kind: Kind,
        items: &[I],
        deadline: Deadline,
        one: impl FnMut(&I) -> Result<T, E>,
    ) -> Batch<T, E> {
        let Some(lossy) = &self.lossy else { return silence(deadline) };
        let (loses, frames) = &mut *lossy.loses.lock().unwrap();
        assert!(items.len() <= BATCH_ITEMS_MAX, "a frame takes no more");
        *frames += usize::from(*loses == kind);
        if *loses == kind && *frames == 2 {
            return Err(CallError::Closed { peer: "the master".into(), awaited: "an answer" });
        }
        Ok(items.iter().map(one).collect())
    }
}

impl Lossy {
    fn plan(&self, item: &PutItem<'_>) -> WritePlan {
        let slot = self.slots.fetch_add(1, Ordering::Relaxed);
        let bytes = extent_bytes(item.len);
        let spec = self.segment.spec();
        let locator = Locator {
            segment: spec.segment,
            incarnation: spec.incarnation,
            slot: Slot(slot),
            generation: Generation(0),
            extent: Extent::new(u64::from(slot) * bytes, bytes).unwrap(),
            stripe: 0,
            grant: None,
        };
        WritePlan {
            object: ObjectId { epoch: EPOCH, sequence: u64::from(slot) + 1 },
            token: PutToken(u64::from(slot) + 1),
            epoch: EPOCH,
            striping: Striping::whole(item.len),
            replicas: vec![locator],
        }
    }
}

fn silence<T>(deadline: Deadline) -> Result<T, CallError> {
    std::thread::sleep(deadline.left(boottime()));
    let awaited = "the answer of a master that is stopped";
    Err(CallError::Deadline { awaited, silent: Duration::ZERO })
}

fn located() -> Located {
    let locator = |node: u64| Locator {
        segment: SegmentId::of(NodeId(node), 0),
        incarnation: Incarnation(1),
        slot: Slot(0),
        generation: Generation(1),
        extent: Extent::new(0, 4096).unwrap(),
        stripe: 0,
        grant: None,
    };
    Located {
        object: ObjectId::default(),
        striping: Striping::whole(4096),
        seal: Seal(0),
        more_seals: Vec::new(),
        lease_ms: 0,
        replicas: vec![locator(1), locator(2)],
    }
}

impl MasterApi for Master {
    fn ping(&self, deadline: Deadline) -> Result<LeaderEpoch, CallError> {
        silence(deadline)
    }

    fn locate(&self, _: u32, keys: &[&[u8]], deadline: Deadline) -> Batch<Located, GetError> {
        if self.lossy.is_none() {
            return Ok(keys.iter().map(|_| Ok(located())).collect());
        }
        self.answer(Kind::Locate, keys, deadline, |_| Err(GetError::NotFound))
    }

    fn nodes(&self, deadline: Deadline) -> Result<Vec<NodeEntry>, CallError> {
        silence(deadline)
    }

    fn put_start(
        &self,
        _: &PutConfig,
        items: &[PutItem<'_>],
        deadline: Deadline,
    ) -> Batch<WritePlan, PutError> {
        if let Some(lossy) = &self.lossy {
            lossy.groups.lock().unwrap().push(items.iter().map(|item| item.group).collect());
        }
        let plan = |item: &PutItem<'_>| Ok(self.lossy.as_ref().unwrap().plan(item));
        self.answer(Kind::PutStart, items, deadline, plan)
    }

    fn put_end(&self, items: &[PutEndItem<'_>], deadline: Deadline) -> Batch<(), PutError> {
        self.answer(Kind::PutEnd, items, deadline, |_| Ok(()))
    }

    fn put_revoke(&self, items: &[PutRevokeItem<'_>], deadline: Deadline) -> Batch<(), PutError> {
        self.answer(Kind::PutRevoke, items, deadline, |_| Ok(()))
    }

    fn put_replan(
        &self,
        _: &PutReplan<'_>,
        deadline: Deadline,
    ) -> Result<Result<WritePlan, PutError>, CallError> {
        silence(deadline)
    }

    fn exist(&self, keys: &[&[u8]], deadline: Deadline) -> Batch<bool, GetError> {
        self.answer(Kind::Exist, keys, deadline, |_| Ok(false))
    }

    fn look(&self, ask: &Look<'_>, deadline: Deadline) -> Batch<Looked, GetError> {
        self.answer(Kind::Look, &ask.keys, deadline, |_| Ok(Looked::Missing))
    }

    fn remove(&self, _: bool, keys: &[&[u8]], deadline: Deadline) -> Batch<(), RemoveError> {
        self.answer(Kind::Remove, keys, deadline, |_| Err(RemoveError::NotFound))
    }

    fn remove_matching(
        &self,
        _: &RemoveMatching<'_>,
        deadline: Deadline,
    ) -> Result<Result<Removed, RemoveError>, CallError> {
        silence(deadline)
    }

    fn set_quota(&self, _: &SetQuota, deadline: Deadline) -> Result<(), CallError> {
        silence(deadline)
    }

    fn drain(&self, _: &Drain, deadline: Deadline) -> Result<Option<DrainStat>, CallError> {
        silence(deadline)
    }

    fn evict(&self, _: &Evict, deadline: Deadline) -> Result<Option<InUse>, CallError> {
        silence(deadline)
    }

    fn copy(
        &self,
        _: &CopyKey<'_>,
        deadline: Deadline,
    ) -> Result<Result<(), CopyError>, CallError> {
        silence(deadline)
    }

    fn drop_copy(
        &self,
        _: &DropCopy<'_>,
        deadline: Deadline,
    ) -> Result<Result<(), CopyError>, CallError> {
        silence(deadline)
    }

    fn tell_reads(&self, _: &[ReadMark], deadline: Deadline) -> Result<MarksHeard, CallError> {
        if self.lossy.is_some() {
            return Ok(MarksHeard { pause_ms: 0, outdated: Vec::new() });
        }
        silence(deadline)
    }

    fn command(&self, _: &Command, deadline: Deadline) -> Result<bool, CallError> {
        silence(deadline)
    }

    fn list(&self, _: &List<'_>, deadline: Deadline) -> Result<Listing, CallError> {
        silence(deadline)
    }

    fn stat(&self, deadline: Deadline) -> Result<ClusterStat, CallError> {
        silence(deadline)
    }

    fn mount(
        &self,
        _: &Mount,
        deadline: Deadline,
    ) -> Result<Result<Mounted, MountError>, CallError> {
        silence(deadline)
    }

    fn announce(
        &self,
        _: Announce,
        deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError> {
        silence(deadline)
    }

    fn unmount(
        &self,
        _: &Unmount,
        deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError> {
        silence(deadline)
    }

    fn heartbeat(
        &self,
        _: &Heartbeat,
        deadline: Deadline,
    ) -> Result<Result<Pulse, MountError>, CallError> {
        silence(deadline)
    }

    fn orders(
        &self,
        _: &Orders,
        deadline: Deadline,
    ) -> Result<Result<OrderBatch, MountError>, CallError> {
        silence(deadline)
    }
}

fn client() -> Client {
    let config = ClientConfig { call_time: CALL_TIME, ..ClientConfig::default() };
    Client::new(config, EngineConfig::default(), Arc::<Master>::default(), Arc::default())
}

type Call = fn(&Client, &[&[u8]]);

/// The copies of each key were sorted by how far their owners are, and the master was asked for that with
/// 500 ms per unknown copy: 6 s here, and as many seconds as there are keys elsewhere.
#[test]
fn looking_for_owners_ends_at_the_deadline_of_the_call() {
    let keys: Vec<Vec<u8>> = (0..6).map(|n| format!("key {n}").into_bytes()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let calls: [(&str, Call); 5] = [
        ("get", |client, keys| assert!(client.get(keys[0]).is_err())),
        ("size", |client, keys| assert_eq!(client.size(keys[0]).unwrap(), Some(4096))),
        ("get_batch", |client, keys| {
            assert!(client.get_batch(keys).iter().all(Result::is_err));
        }),
        ("get_into_batch", |client, keys| {
            let mut targets: Vec<Vec<u8>> = keys.iter().map(|_| vec![0; 4096]).collect();
            let mut items: Vec<(&[u8], &mut [u8])> = keys
                .iter()
                .zip(&mut targets)
                .map(|(key, target)| (*key, &mut target[..]))
                .collect();
            assert!(client.get_into_batch(&mut items).iter().all(Result::is_err));
        }),
        ("get_session", |client, keys| {
            assert!(client.get_session(keys[0], Duration::from_secs(1)).unwrap().is_some());
        }),
    ];
    for (name, call) in calls {
        let client = client();
        let began = boottime();
        call(&client, &keys);
        let time = boottime().since(began);
        assert!(time < CALL_TIME + SLACK, "{name}: {time:?}");
    }
}

/// A client of a master that loses a frame of this kind.
fn losing(kind: Kind) -> Client {
    remembering(kind, ClientConfig::default().locator_bytes_max)
}

/// The same, with so many bytes for remembered places.
fn remembering(kind: Kind, locator_bytes_max: usize) -> Client {
    with_master(kind, locator_bytes_max).0
}

/// The same with its master.
fn with_master(kind: Kind, locator_bytes_max: usize) -> (Client, Arc<Master>) {
    let spec = SegmentSpec {
        segment: SegmentId::of(NodeId(1), 0),
        incarnation: Incarnation(1),
        bytes: u64::from(KEYS) * 64,
        slots: KEYS,
        shared: false,
        huge: false,
    };
    let segment = Segment::create(spec).unwrap();
    segment.witness(EPOCH).unwrap();
    segment.set_serve_until(Now(u64::MAX));
    let segments = Arc::<Segments>::default();
    segments.insert(Arc::clone(&segment));
    let (slots, loses) = (AtomicU32::new(0), Mutex::new((kind, 0)));
    let lossy = Lossy { segment, slots, groups: Mutex::default(), loses };
    let master = Arc::new(Master { lossy: Some(lossy) });
    let call_time = Duration::from_mins(1);
    let config = ClientConfig { call_time, locator_bytes_max, ..ClientConfig::default() };
    let known: Arc<dyn MasterApi> = Arc::<Master>::clone(&master);
    (Client::new(config, EngineConfig::default(), known, segments), master)
}

/// All keys but those of the second frame have this answer; those have the error of their frame.
fn all_but_one_frame<T: std::fmt::Debug + PartialEq>(results: &[Result<T, Error>], answer: &T) {
    assert_eq!(results.len(), KEYS as usize);
    for (at, result) in results.iter().enumerate() {
        let lost = (BATCH_ITEMS_MAX..2 * BATCH_ITEMS_MAX).contains(&at);
        match result {
            Ok(found) => assert!(!lost && found == answer, "{at}: {found:?}"),
            Err(error) => assert!(lost && matches!(error, Error::Master(_)), "{at}: {error:?}"),
        }
    }
}

/// 4,097 answers of each batch were thrown away with the 4,096 that did not come: values that were stored counted
/// as failed, and nobody knew which keys were removed.
#[test]
fn a_lost_frame_takes_no_other_answers_along() {
    let keys: Vec<[u8; 4]> = (0..KEYS).map(u32::to_le_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let values: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (*key, *key)).collect();

    all_but_one_frame(&losing(Kind::Look).exists_batch(&keys).unwrap(), &false);
    all_but_one_frame(&losing(Kind::Remove).remove_batch(&keys, false).unwrap(), &false);
    let looked = losing(Kind::Look).look(&keys, false, false).unwrap();
    all_but_one_frame(&looked, &Looked::Missing);
    all_but_one_frame(&losing(Kind::Locate).get_batch(&keys), &None);
    all_but_one_frame(&losing(Kind::PutStart).put_batch(&values), &Stored::New);

    let client = losing(Kind::PutEnd);
    let stored = client.put_batch(&values);
    all_but_one_frame(&stored, &Stored::New);
    // What was stored is known: its places were remembered, and its bytes are read there.
    for ((key, stored), found) in keys.iter().zip(stored).zip(client.get_batch(&keys)) {
        assert_eq!(found.unwrap(), stored.is_ok().then(|| key.to_vec()));
    }
}

/// What a client remembers has a bound in bytes: where its keys do not all fit, the rest is forgotten.
#[test]
fn remembered_places_stay_within_their_bytes() {
    let keys: Vec<[u8; 4]> = (0..KEYS).map(u32::to_le_bytes).collect();
    let values: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &key[..])).collect();
    for (bytes_max, all) in [(64 << 20, true), (256 << 10, false)] {
        let client = remembering(Kind::Ping, bytes_max);
        assert!(client.put_batch(&values).iter().all(Result::is_ok));
        let (places, bytes) = client.remembered_places();
        assert_eq!(places == KEYS as usize, all, "{places} places");
        assert!(bytes <= bytes_max, "{bytes} bytes");
        // An entry of 32 bytes, 96 for key and place, and tables that are not quite full.
        assert!(bytes / places <= 160, "{bytes} bytes for {places} places");
    }
}

/// Values of 32 groups were 32 batches: each had a call of its own to begin it and one to end it.
#[test]
fn groups_of_a_batch_travel_in_one_frame() {
    let keys: Vec<[u8; 4]> = (0..32_u32).map(u32::to_le_bytes).collect();
    let values: Vec<[&[u8]; 1]> = keys.iter().map(|key| [&key[..]]).collect();
    let items: Vec<(&[u8], &[&[u8]])> =
        keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..])).collect();
    // One has none of its own, and so that of all.
    let groups: Vec<GroupId> = (0..32).map(GroupId).collect();
    let config = PutConfig { group: GroupId(77), ..PutConfig::default() };
    for counted in [Kind::PutStart, Kind::PutEnd] {
        let (client, master) = with_master(counted, 1 << 20);
        let stored = client.put_parts_batch(&items, Wishes::grouped(&config, &groups));
        assert!(stored.iter().all(|one| matches!(one, Ok(Stored::New))), "{stored:?}");
        let lossy = master.lossy.as_ref().unwrap();
        assert_eq!(lossy.loses.lock().unwrap().1, 1, "frames of {counted}");
        assert_eq!(*lossy.groups.lock().unwrap(), std::slice::from_ref(&groups));
        // An owner keeps the group beside the value: a master that is rebuilt learns it there.
        let (told, _) = lossy.segment.announce(Slot(0), groups.len());
        let kept = told.into_iter().map(|one| one.life.unwrap().object.unwrap().label.group);
        let expected = [GroupId(77)].into_iter().chain(groups[1..].iter().copied());
        assert_eq!(kept.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

/// Each session began with a call of its own, and ended with one.
#[test]
fn sessions_of_a_batch_are_begun_and_ended_together() {
    let keys: Vec<[u8; 4]> = (0..32_u32).map(u32::to_le_bytes).collect();
    let items: Vec<(&[u8], u64)> = keys.iter().map(|key| (&key[..], 4)).collect();
    let groups: Vec<GroupId> = (1..=32).map(GroupId).collect();
    let config = PutConfig::default();
    for counted in [Kind::PutStart, Kind::PutEnd, Kind::PutRevoke, Kind::Locate] {
        let (client, master) = with_master(counted, 1 << 20);
        let lossy = master.lossy.as_ref().unwrap();
        let frames = || lossy.loses.lock().unwrap().1;
        let started = client.put_sessions(&items, Wishes::grouped(&config, &groups));
        let sessions: Vec<PutSession> = started.into_iter().map(Result::unwrap).collect();
        assert_eq!(*lossy.groups.lock().unwrap(), std::slice::from_ref(&groups));
        for (key, session) in keys.iter().zip(&sessions) {
            client.session_write(session, 0, key).unwrap();
        }
        assert_eq!(frames(), usize::from(counted == Kind::PutStart));
        let (some, others) = sessions.split_at(16);
        let ended = client.sessions_end(&some.iter().collect::<Vec<_>>());
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        assert_eq!(client.sessions_revoke(&others.iter().collect::<Vec<_>>()), [true; 16]);
        // Those that are over ask nobody.
        let all: Vec<&PutSession> = sessions.iter().collect();
        assert!(client.sessions_end(&all).iter().all(Result::is_err));
        assert_eq!(client.sessions_revoke(&all), [false; 32]);
        let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let opened = client.get_sessions(&names, Duration::from_secs(1));
        assert!(opened.iter().all(|one| matches!(one, Ok(Opened::Missing))));
        assert_eq!(frames(), 1, "frames of {counted}");
    }
}
