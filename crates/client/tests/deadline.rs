//! Every wait of a call ends at the deadline of the call, whoever waits. A master answers where values
//! are, and then never again: what a client asks it next must not have a time of its own.
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use mooncrate_client::{Client, ClientConfig};
use mooncrate_core::catalog::InUse;
use mooncrate_core::copy::DrainStat;
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::plan::{Located, Locator, Looked, PutConfig, ReadMark, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, NodeId, ObjectId, Seal, SegmentId, Slot, Striping,
};
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{EngineConfig, Segments};
use mooncrate_wire::api::Batch;
use mooncrate_wire::message::{
    Announce, ClusterStat, Command, CopyKey, Drain, DropCopy, Evict, Heartbeat, List, Listing,
    Look, MarksHeard, Mount, Mounted, NodeEntry, OrderBatch, Orders, Pulse, PutEndItem, PutItem,
    PutReplan, PutRevokeItem, RemoveMatching, Removed, SetQuota, Unmount,
};
use mooncrate_wire::{CallError, MasterApi};
use std::sync::Arc;
use std::time::Duration;

const CALL_TIME: Duration = Duration::from_millis(400);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(1500);

/// Knows two places of every key, and does not say whose they are.
struct Master;

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

    fn locate(&self, _: u32, keys: &[&[u8]], _: Deadline) -> Batch<Located, GetError> {
        Ok(keys.iter().map(|_| Ok(located())).collect())
    }

    fn nodes(&self, deadline: Deadline) -> Result<Vec<NodeEntry>, CallError> {
        silence(deadline)
    }

    fn put_start(
        &self,
        _: &PutConfig,
        _: &[PutItem<'_>],
        deadline: Deadline,
    ) -> Batch<WritePlan, PutError> {
        silence(deadline)
    }

    fn put_end(&self, _: &[PutEndItem<'_>], deadline: Deadline) -> Batch<(), PutError> {
        silence(deadline)
    }

    fn put_revoke(&self, _: &[PutRevokeItem<'_>], deadline: Deadline) -> Batch<(), PutError> {
        silence(deadline)
    }

    fn put_replan(
        &self,
        _: &PutReplan<'_>,
        deadline: Deadline,
    ) -> Result<Result<WritePlan, PutError>, CallError> {
        silence(deadline)
    }

    fn exist(&self, _: &[&[u8]], deadline: Deadline) -> Batch<bool, GetError> {
        silence(deadline)
    }

    fn look(&self, _: &Look<'_>, deadline: Deadline) -> Batch<Looked, GetError> {
        silence(deadline)
    }

    fn remove(&self, _: bool, _: &[&[u8]], deadline: Deadline) -> Batch<(), RemoveError> {
        silence(deadline)
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
    Client::new(config, EngineConfig::default(), Arc::new(Master), Arc::new(Segments::default()))
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
